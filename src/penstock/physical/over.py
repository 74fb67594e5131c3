"""Window functions to operators: one per PARTITION BY, each where equal keys meet.

All of them see the elements in one order.  The arrival numbers of a declared stream travel as a
column from the first operator on; elements of a derived stream are ordered by their own columns,
and those that are equal in all of them stay in the order in which they came.
"""

from __future__ import annotations

import pyarrow as pa

from penstock import algebra
from penstock.cql.render import over_text
from penstock.expr.frames import OverCall
from penstock.expr.nodes import Column, Expr, shift
from penstock.operators.filter import FilterSpec
from penstock.operators.over import OverSpec
from penstock.operators.project import ProjectSpec
from penstock.physical.exchange import SINGLE, ByKey
from penstock.physical.graph import Graph, after, projected, relaxed


def over(graph: Graph, node: algebra.Over, below: int) -> int:
    """Add the operators of window functions, the selection and the projection above them."""
    width = len(node.input.schema)
    raw = isinstance(node.input, algebra.Scan)
    partitions = list(dict.fromkeys(call.partition for call in node.calls))
    below, positions = _with_keys(graph, below, [k for p in partitions for k in p])
    places: dict[int, int] = {i: i for i in range(width)}
    arrival: int | None = None
    for number, partition in enumerate(partitions):
        mine = [j for j, call in enumerate(node.calls) if call.partition == partition]
        types = graph.nodes[below].types
        keep = raw and number == 0 and len(partitions) > 1
        places |= {width + j: len(types) + i for i, j in enumerate(mine)}
        keys = tuple(positions[k] for k in partition)
        calls = tuple(node.calls[j] for j in mine)
        below = _operator(graph, below, keys, calls, (width, arrival, keep))
        if keep:
            arrival = len(types) + len(mine)
    if node.predicate is not None:
        types = graph.nodes[below].types
        have = graph.nodes[below].partitioning
        predicate = shift(node.predicate, places)
        below = graph.stateless(FilterSpec(predicate), below, types, have, "Filter", "monotonic")
    exprs = tuple(shift(e, places) for e in node.exprs)
    have = projected(graph.nodes[below].partitioning, exprs)
    types = node.schema.types
    return graph.stateless(ProjectSpec(exprs), below, types, have, "Project", "monotonic")


def _operator(
    graph: Graph,
    below: int,
    keys: tuple[int, ...],
    calls: tuple[OverCall, ...],
    order: tuple[int, int | None, bool],
) -> int:
    types = graph.nodes[below].types
    demand = relaxed(graph, below, ByKey(keys) if keys else SINGLE)
    names = [f"#{i}" for i in range(len(types))]
    label = ", ".join(dict.fromkeys(over_text(call, names, False) for call in calls))
    numbers = (pa.int64(),) if order[2] else ()
    return graph.operator(
        OverSpec(types, keys, calls, *order),
        [below],
        [demand],
        (*types, *(call.type for call in calls), *numbers),
        after(graph, below, demand),
        f"Over {label}",
        "monotonic",
    )


def _with_keys(graph: Graph, below: int, keys: list[Expr]) -> tuple[int, dict[Expr, int]]:
    """Add computed keys behind a node's columns; return the node and where each key stands."""
    types = graph.nodes[below].types
    columns: tuple[Expr, ...] = tuple(Column(i, t) for i, t in enumerate(types))
    positions: dict[Expr, int] = {}
    extra: list[Expr] = []
    for key in dict.fromkeys(keys):
        if isinstance(key, Column):
            positions[key] = key.index
        else:
            positions[key] = len(types) + len(extra)
            extra.append(key)
    if not extra:
        return below, positions
    everything = columns + tuple(extra)
    have = graph.nodes[below].partitioning
    kinds = tuple(e.type for e in everything)
    wide = graph.stateless(
        ProjectSpec(everything, True), below, kinds, have, "Project with keys", "monotonic"
    )
    return wide, positions
