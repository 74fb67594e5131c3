"""A bound on a number of rows is a top-n: ``WHERE r <= 10`` above ROW_NUMBER() AS r.

Without the bound every row of a group has a number, and all numbers behind a row change when it
comes or goes.  With it, only the first rows of each group are followed (`GroupTop`).  The other
functions of the same window are computed below.  ``r = 3`` is a bound too, and a condition.
"""

from __future__ import annotations

from dataclasses import replace

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.frames import ORDINALS
from penstock.expr.nodes import Call, Column, Expr, Literal, conjuncts
from penstock.optimizer.nameless import canonical
from penstock.optimizer.push_filters import conjunction

_TURNED = {"ge": "le", "gt": "lt", "eq": "eq"}


def bound_ranks(plan: Node, shared: frozenset[Node]) -> Node:
    """Put a `GroupTop` where a selection bounds a number."""
    below = algebra.inputs(plan)
    new = tuple(bound_ranks(n, shared) for n in below)
    if any(a is not b for a, b in zip(new, below, strict=True)):
        plan = algebra.with_inputs(plan, new)
    if not isinstance(plan, algebra.Filter) or not isinstance(plan.input, algebra.Rank):
        return plan
    rank = plan.input
    if shared and canonical(rank) in shared:
        return plan
    parts = conjuncts(plan.predicate)
    for at, call in enumerate(rank.calls):
        place = len(rank.input.schema) + at
        bounds = {p: n for p in parts if (n := _bound(p, place)) is not None}
        if call.name in ORDINALS and bounds:
            limit = min(bounds.values())
            top = _top(rank, at, max(limit, 0))
            rest = [p for p in parts if p not in bounds or (_is_equality(p) and bounds[p] != 1)]
            return algebra.Filter(top, conjunction(rest)) if rest else top
    return plan


def _top(rank: algebra.Rank, at: int, limit: int) -> Node:
    """Return the first rows by one function, with the columns as they were."""
    width = len(rank.input.schema)
    others = [i for i in range(len(rank.calls)) if i != at]
    below: Node = rank.input
    if others:
        calls = tuple(rank.calls[i] for i in others)
        below = replace(rank, calls=calls, names=tuple(rank.names[i] for i in others))
    name = (rank.names[at],)
    top = algebra.GroupTop(below, rank.partition, rank.order, rank.calls[at].name, limit, name)
    if at == len(others):
        return top
    places = {old: width + new for new, old in enumerate([*others, at])}
    order = [*range(width), *(places[i] for i in range(len(rank.calls)))]
    fields = [top.schema[i] for i in order]
    exprs = tuple(Column(i, f.type, f.name) for i, f in zip(order, fields, strict=True))
    return algebra.Project(top, exprs, tuple(f.name for f in fields))


def _bound(part: Expr, column: int) -> int | None:
    """Return the largest number that a condition lets through, if it compares it with a number."""
    if not isinstance(part, Call) or len(part.args) != 2:
        return None
    name, (left, right) = part.name, part.args
    if isinstance(left, Literal):
        name, left, right = _TURNED.get(name, ""), right, left
    if not isinstance(left, Column) or left.index != column or not isinstance(right, Literal):
        return None
    value = right.value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return {"le": value, "eq": value, "lt": value - 1}.get(name)


def _is_equality(part: Expr) -> bool:
    return isinstance(part, Call) and part.name == "eq"
