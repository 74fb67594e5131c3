"""ASOF joins to physical operators: their distribution, and what the planner knows of the future.

A partner is looked for among the rows with equal keys, so both inputs are distributed by them; an
ASOF join without keys runs in one shard.

The operator stores less when it knows that compared values follow the time of their rows
(`penstock.operators.asof_join`).  `lag` finds that out: the time column of a stream, as it is or
moved by a constant, below windows whose rows start at their own time, or at the next pulse.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.expr import nodes as expr
from penstock.expr.nodes import Expr
from penstock.operators.asof_join import AsofJoinSpec
from penstock.operators.project import ProjectSpec
from penstock.physical.graph import Graph
from penstock.physical.joins import Joined, distributions

_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def asof_join(graph: Graph, node: algebra.AsofJoin, left: Joined, right: Joined) -> int:
    """Add the operators of an ASOF join; both inputs are lowered already."""
    types = [graph.nodes[side.at].types for side in (left, right)]
    keys = [
        tuple(expr.Column(k, columns[k]) for k in side.keys)
        for columns, side in zip(types, (left, right), strict=True)
    ]
    demands = distributions(graph, left, right)
    where = demands[0]
    lags = lag(node.left, node.left_at), lag(node.right, node.right_at)
    both = types[0] + types[1]
    joined = graph.operator(
        AsofJoinSpec(
            left_types=types[0],
            right_types=types[1],
            left_keys=keys[0],
            right_keys=keys[1],
            left_at=node.left_at,
            right_at=node.right_at,
            operator=node.operator,
            kind=node.kind,
            left_lag=lags[0],
            right_lag=lags[1],
        ),
        [left.at, right.at],
        demands,
        both,
        where,
        f"AsofJoin {_SIGNS[node.operator]}{' left' if node.kind == 'left' else ''}"
        f"{'' if left.keys else ' without keys'}{_lag_text(lags)}",
        algebra.update_pattern(node),
    )
    widths = len(node.left.schema), len(node.right.schema)
    if len(both) == sum(widths):
        return joined
    kept = [*range(widths[0]), *(len(types[0]) + i for i in range(widths[1]))]
    place = {k: i for i, k in enumerate(kept)}
    visible = where.kind != "hash" or all(k in place for k in where.keys)
    then = replace(where, keys=tuple(place[k] for k in where.keys)) if visible else None
    columns = tuple(expr.Column(i, both[i]) for i in kept)
    return graph.operator(
        ProjectSpec(columns),
        [joined],
        [None],
        node.schema.types,
        then,
        "Project",
        algebra.update_pattern(node),
    )


def _lag_text(lags: tuple[int | None, int | None]) -> str:
    """Say which sides are compared by the time of their rows."""
    known = [side for side, known in zip(("left", "right"), lags, strict=True) if known is not None]
    return f", {' and '.join(known)} by time" if known else ""


def lag(node: Node, at: Expr) -> int | None:
    """Return the least number such that a row's value is surely its start minus that, or more."""
    match node, at:
        case _, expr.Call("time_add" | "add", (moved, expr.Literal(int(by), _)), _):
            below = lag(node, moved)
            return None if below is None else below - by
        case _, expr.Call("subtract", (moved, expr.Literal(int(by), _)), _):
            below = lag(node, moved)
            return None if below is None else below + by
        case _, expr.Cast(inner, to) if pa.types.is_integer(inner.type) and to == pa.int64():
            return lag(node, inner)
        case algebra.Filter(below_node, _), _:
            return lag(below_node, at)
        case algebra.Project(below_node, exprs, _), _:
            return lag(below_node, expr.substitute(at, exprs))
        case algebra.Scan(), expr.Column(index):
            columns = node.columns or tuple(range(len(node.schema)))
            return 0 if columns[index] == node.time else None
        case algebra.Window(algebra.Scan() as scan, spec), expr.Column(index):
            own = lag(scan, at) if index < len(scan.schema) else None
            if own is None or spec.rows_slide is not None:
                return None
            own += spec.shift or 0
            if spec.hop is not None and spec.slide is not None:
                return own + spec.slide + (0 if spec.bounds is None else spec.hop)
            return own + (spec.slide - 1 if spec.slide is not None else 0)
    return None
