"""A relational plan over tables that are there as a whole, answered once, in this process.

The same stages run as for a continuous query, in one shard: every row is valid for all time and the
heartbeat is at its end, so one turn gives the whole answer.  What a snapshot cannot say by itself
is done here:

* a global aggregate of nothing has one row in SQL; a continuous query has none until its input has
  ever had a row.  So global aggregates are computed first, and their row put in if it is missing;
* an answer that changes over time has no order.  This one has: the outermost ORDER BY sorts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import algebra
from penstock.algebra import Aggregate, Node, Project, SortKey, TableScan, TopK
from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Column, columns_of
from penstock.kernels.order import sort_indices
from penstock.model import I64, Batch, one_array
from penstock.optimizer import optimize
from penstock.physical.batch import run_batch
from penstock.physical.packing import TablePacker
from penstock.physical.parcels import Parcel
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Timeline
from penstock.runs.state import MemoryStorage
from penstock.settings import Settings

Tables = Mapping[str, tuple[pa.Array, ...]]
"""The columns of every table that a plan reads, by name; at least one column each."""


def answer_once(node: Node, tables: Tables, config: Settings) -> pa.Table:
    """Return the answer of a plan over tables, with the names of its columns, in its order."""
    below, top = _ordered(node)
    columns = _answer(below, tables, config)
    if top is not None:
        columns = _sorted(columns, top)
    names = node.schema.names  # a plan that only hides what it was sorted by keeps the first ones
    return pa.Table.from_arrays(list(columns[: len(names)]), names=list(names))


def _ordered(node: Node) -> tuple[Node, TopK | None]:
    """Take the outermost ORDER BY away: return what is below it, with what it sorts by, and it."""
    match node:
        case TopK():
            return node.input, node
        case Project(TopK() as top, exprs) if all(
            isinstance(e, Column) and e.index == at for at, e in enumerate(exprs)
        ):
            return top.input, top
    return node, None


def _sorted(columns: tuple[pa.Array, ...], top: TopK) -> tuple[pa.Array, ...]:
    """Return the first rows in the order of a `TopK`; ties by all columns."""
    chosen = pa.array(_order(columns, top.order)[top.offset : top.offset + top.limit])
    return tuple(column.take(chosen) for column in columns)


def _order(columns: tuple[pa.Array, ...], by: tuple[SortKey, ...]) -> I64:
    rows, ties = len(columns[0]), len(columns)
    keys = [evaluate(key.expr, columns, rows) for key in by]
    return sort_indices(
        [*keys, *columns],
        [*(key.descending for key in by), *([False] * ties)],
        [*(key.nulls_first for key in by), *([True] * ties)],
    )


def in_order(node: Node, rows: pa.Table) -> pa.Table:
    """Return a snapshot of a plan in an order that stays: that of its ORDER BY, then by columns.

    An ORDER BY whose columns the answer does not show is not known to it.
    """
    width = len(node.schema)
    if not width or rows.num_rows < 2:
        return rows
    _, top = _ordered(node)
    by = () if top is None else top.order
    if any(at >= width for key in by for at in columns_of(key.expr)):
        by = ()
    columns = tuple(one_array(column) for column in rows.columns[:width])
    return rows.take(pa.array(_order(columns, by)))


def _answer(node: Node, tables: Tables, config: Settings) -> tuple[pa.Array, ...]:
    if isinstance(node, TableScan):
        return tables[node.table]
    known = dict(tables)
    below = tuple(_settled(n, known, config) for n in algebra.inputs(node))
    found = _run(algebra.with_inputs(node, below), known, config)
    if isinstance(node, Aggregate) and not node.keys and len(found[0]) == 0:
        zero = {"count": 0, "count_distinct": 0}
        return tuple(pa.array([zero.get(call.name)], call.type) for call in node.aggregates)
    return found


def _settled(node: Node, tables: dict[str, tuple[pa.Array, ...]], config: Settings) -> Node:
    """Put the answer of every global aggregate in its place, as a table."""
    if isinstance(node, Aggregate) and not node.keys:
        name = f"aggregate {len(tables)}"
        tables[name] = _answer(node, tables, config)
        return TableScan(name, node.schema)
    below = tuple(_settled(n, tables, config) for n in algebra.inputs(node))
    return algebra.with_inputs(node, below)


def _run(node: Node, tables: Tables, config: Settings) -> tuple[pa.Array, ...]:
    """Run the stages of a plan without streams."""
    if config.rules:
        node = optimize({"": node})[""]
    if isinstance(node, TableScan):
        return tables[node.table]
    whole = plan([Query("", node)], config, {})
    parcels: list[Parcel] = []
    for at in whole.sources("table"):
        source = whole.nodes[at].source
        assert source is not None
        columns = tables[source.name]
        names = [f"c{i}" for i in range(len(columns))]
        packer = TablePacker(whole, [at], (None, None), config, 1)
        parcels += packer.pack(pa.Table.from_arrays(list(columns), names=names))
    storage = MemoryStorage()
    outcome, _ = run_batch(whole, {}, Timeline(), [{}], storage, config, parcels)
    parts = [Batch.from_table(storage.read(r["place"])) for r in outcome.results]
    found = Batch.concat(parts or [Batch.empty(node.schema.types)])
    return tuple(one_array(column) for column in found.columns)


def rows_at(columns: tuple[pa.Array, ...], valid: Any) -> tuple[pa.Array, ...]:
    """Return the rows for which a mask is true."""
    if valid.all():
        return columns
    index = pa.array(np.flatnonzero(valid))
    return tuple(column.take(index) for column in columns)
