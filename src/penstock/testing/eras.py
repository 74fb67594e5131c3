"""What the oracle is asked about a query some of whose parts go on from texts before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node, TableScan
from penstock.expr.nodes import Column
from penstock.model import MIN_TIME, Field, Schema
from penstock.physical.eras import Eras, are_groups, era_of
from penstock.reference import Inputs, Steps, relation, snapshot_at, to_intervals

Row = tuple[Any, ...]
Elements = Mapping[str, Sequence[tuple[Row, int]]]


def elements_since(streams: Elements, since: int) -> dict[str, list[tuple[Row, int]]]:
    """Return the elements of streams that are seen from an instant on."""
    return {name: [e for e in some if e[1] >= since] for name, some in streams.items()}


def with_eras(
    plan: Node, eras: Eras, streams: Elements, tables: dict[str, list[Row]]
) -> tuple[Node, Inputs]:
    """Return a plan in which parts of eras before are tables, and what it sees."""
    since = MIN_TIME if eras[0].since is None else eras[0].since
    own = dict(tables)

    def visit(node: Node) -> Node:
        number = era_of(node, eras)
        if number == 0:
            return algebra.with_inputs(node, tuple(map(visit, algebra.inputs(node))))
        name = f"part {len(own)}"
        steps = _seen(*with_eras(node, eras[number:], streams, tables), since)
        rows = to_intervals(steps)
        own[name] = [(*v, max(start, since), end) for v, start, end in rows if end > since]
        return _as_table(name, node)

    return visit(plan), Inputs(elements_since(streams, since), own)


def _seen(part: Node, inputs: Inputs, since: int) -> Steps:
    """Return what a new era sees of a part.

    Of groups it is all that is there.  Of a join it is what begins in the era: all, without what
    there would be if no row had come in it.
    """
    whole = relation(part, inputs)
    if are_groups(part):
        return whole
    before = {name: [e for e in some if e[1] < since] for name, some in inputs.streams.items()}
    old = relation(part, replace(inputs, streams=before))
    instants = sorted({time for steps in (whole, old) for time, _ in steps})
    return [(time, snapshot_at(whole, time) - snapshot_at(old, time)) for time in instants]


def _as_table(name: str, node: Node) -> Node:
    """Return a table whose rows say from when to when they are valid, without these columns."""
    width = len(node.schema)
    times = (Field("from", pa.int64()), Field("to", pa.int64()))
    table = TableScan(name, Schema((*node.schema, *times)), width, width + 1)
    exprs = tuple(Column(i, field.type) for i, field in enumerate(node.schema))
    return algebra.Project(table, exprs, tuple(field.name for field in node.schema))
