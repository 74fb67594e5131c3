"""An outer join whose null rows are thrown away at once is a simpler join.

A condition *rejects* the nulls of a side when it cannot be true for a row in which all columns of
that side are null: ``b.x > 3`` does for b, ``b.x IS NULL`` does not.  Right above an outer join,
such a condition makes LEFT an inner join, and FULL a LEFT or RIGHT one.
"""

from __future__ import annotations

from dataclasses import replace

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import Call, Cast, Column, Expr, conjuncts
from penstock.optimizer.nameless import canonical

_STRICT = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "like", "ilike", "rlike", "add", "subtract", "multiply",
     "divide", "div", "mod", "negate", "not")
)  # fmt: skip
"""Functions that are null when any argument is."""

_WITHOUT = {
    ("left", "right"): "inner",
    ("right", "left"): "inner",
    ("full", "right"): "right",
    ("full", "left"): "left",
}
"""What is left of a kind of join when no row may have nulls on a side."""


def reduce_outer_joins(plan: Node, shared: frozenset[Node]) -> Node:
    """Turn outer joins below selections into simpler ones."""
    below = algebra.inputs(plan)
    new = tuple(reduce_outer_joins(n, shared) for n in below)
    if any(a is not b for a, b in zip(new, below, strict=True)):
        plan = algebra.with_inputs(plan, new)
    match plan:
        case algebra.Filter(algebra.Join() as join, predicate):
            kind = _reduced(join, conjuncts(predicate))
            if kind != join.kind and canonical(join) not in shared:
                return replace(plan, input=replace(join, kind=kind))
    return plan


def _reduced(join: algebra.Join, parts: list[Expr]) -> str:
    width = len(join.left.schema)
    sides = {
        "left": frozenset(range(width)),
        "right": frozenset(range(width, width + len(join.right.schema))),
    }
    kind = join.kind
    for side, columns in sides.items():
        if any(_rejects(part, columns) for part in parts):
            # FULL without null rows on the right has nulls only on its left: a RIGHT join
            kind = _WITHOUT.get((kind, side), kind)
    return kind


def _rejects(expr: Expr, columns: frozenset[int]) -> bool:
    """Whether a condition is not true where all of the columns are null."""
    if isinstance(expr, Call):
        match expr.name:
            case "and":
                return any(_rejects(arg, columns) for arg in expr.args)
            case "or":
                return all(_rejects(arg, columns) for arg in expr.args)
            case "is_not_null":
                return _is_null(expr.args[0], columns)
    return _is_null(expr, columns)


def _is_null(expr: Expr, columns: frozenset[int]) -> bool:
    """Whether an expression is surely null where all of the columns are null."""
    match expr:
        case Column(index):
            return index in columns
        case Cast(arg):
            return _is_null(arg, columns)
        case Call(name, args):
            return name in _STRICT and any(_is_null(arg, columns) for arg in args)
    return False
