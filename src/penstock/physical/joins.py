"""Joins to physical operators: how the inputs are distributed, and which operator joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock import algebra
from penstock.expr import nodes as expr
from penstock.expr.nodes import Expr
from penstock.operators.join import JoinOperator
from penstock.operators.project import ProjectOperator
from penstock.physical.graph import Graph, aligned, translate, usable
from penstock.physical.plan import SINGLE, Exchange


@dataclass(frozen=True)
class Joined:
    """A lowered input of a join: its position in the graph, and the columns that are its keys.

    Computed keys stand behind the columns of the logical node.
    """

    at: int
    keys: tuple[int, ...]


def join(
    graph: Graph,
    node: algebra.Join,
    left: Joined,
    right: Joined,
    demands: Sequence[Exchange] | None = None,
    extra: Sequence[int] = (),
) -> int:
    """Add the operators of an inner join; both inputs are lowered already.

    ``extra`` are columns of the joined inputs that are kept behind those of the logical node.
    """
    types = [graph.nodes[side.at].types for side in (left, right)]
    widths = len(node.left.schema), len(node.right.schema)
    demands = demands or distributions(graph, left, right)
    where = demands[0]
    key_exprs = [
        tuple(expr.Column(k, columns[k]) for k in side.keys)
        for columns, side in zip(types, (left, right), strict=True)
    ]
    wide = len(types[0]) > widths[0] or len(types[1]) > widths[1]
    residual = node.residual
    if residual is not None and wide:
        moved = {i: i for i in range(widths[0])}
        moved |= {widths[0] + i: len(types[0]) + i for i in range(widths[1])}
        residual = expr.shift(residual, moved)
    joined = graph.operator(
        JoinOperator,
        (*types, *key_exprs, residual),
        [left.at, right.at],
        demands,
        types[0] + types[1],
        where,
        "Join" if left.keys else "Join without keys",
        algebra.update_pattern(node),
    )
    if not wide:
        return joined
    kept = [*range(widths[0]), *(len(types[0]) + i for i in range(widths[1])), *extra]
    both = types[0] + types[1]
    columns = tuple(expr.Column(i, both[i]) for i in kept)
    place = {k: i for i, k in enumerate(kept)}
    visible = where.kind != "hash" or all(k in place for k in where.keys)
    then = replace(where, keys=tuple(place[k] for k in where.keys)) if visible else None
    return graph.operator(
        ProjectOperator,
        (columns,),
        [joined],
        [None],
        tuple(c.type for c in columns),
        then,
        "Project",
        algebra.update_pattern(node),
    )


def distributions(graph: Graph, left: Joined, right: Joined) -> list[Exchange]:
    """Return how both inputs must be distributed so that equal keys meet."""
    if not left.keys:
        return [SINGLE, SINGLE]
    have_left = graph.nodes[left.at].partitioning
    have_right = graph.nodes[right.at].partitioning
    if have_left == SINGLE and have_right == SINGLE:
        return [SINGLE, SINGLE]
    if aligned(have_left, left.keys, have_right, right.keys):
        assert have_left is not None
        assert have_right is not None
        return [have_left, have_right]
    if usable(graph, left.at, left.keys):
        assert have_left is not None
        return [have_left, Exchange("hash", translate(have_left.keys, left.keys, right.keys))]
    if usable(graph, right.at, right.keys):
        assert have_right is not None
        return [Exchange("hash", translate(have_right.keys, right.keys, left.keys)), have_right]
    return [Exchange("hash", left.keys), Exchange("hash", right.keys)]


def with_key_columns(
    graph: Graph, below: int, keys: tuple[Expr, ...]
) -> tuple[int, tuple[int, ...]]:
    """Add computed key columns behind a node's own; return the node and the keys' positions."""
    types = graph.nodes[below].types
    positions: list[int] = []
    extra: list[Expr] = []
    for key in keys:
        if isinstance(key, expr.Column):
            positions.append(key.index)
        else:
            positions.append(len(types) + len(extra))
            extra.append(key)
    if not extra:
        return below, tuple(positions)
    columns: tuple[Expr, ...] = tuple(expr.Column(i, t) for i, t in enumerate(types))
    everything = columns + tuple(extra)
    wide = graph.stateless(
        ProjectOperator,
        (everything,),
        below,
        tuple(e.type for e in everything),
        graph.nodes[below].partitioning,
        "Project with keys",
        graph.nodes[below].pattern,
    )
    return wide, tuple(positions)
