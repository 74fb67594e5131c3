"""Expressions before and after a GROUP BY.

Before: columns ``0 .. n-1`` are the input's, ``n + j`` stands for the j-th aggregate.  After:
columns ``0 .. k-1`` are the keys and ``k + j`` the aggregates.  An expression can be carried over
when everything in it is a key, an aggregate or a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.expr.nodes import Call, Case, Cast, Column, Expr


class Stray(Exception):  # noqa: N818 -- caught where the place in the text is known
    """A column that cannot be carried over."""

    def __init__(self, column: Column) -> None:
        super().__init__(column.name)
        self.column = column


def replace_from_top(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild top-down: where ``change`` returns a replacement, what is below is not visited."""
    found = change(expr)
    if found is not None:
        return found
    match expr:
        case Cast(arg, _):
            return replace(expr, arg=replace_from_top(arg, change))
        case Call(_, args, _):
            return replace(expr, args=tuple(replace_from_top(a, change) for a in args))
        case Case(branches, otherwise, _):
            return replace(
                expr,
                branches=tuple(
                    (replace_from_top(c, change), replace_from_top(v, change)) for c, v in branches
                ),
                otherwise=replace_from_top(otherwise, change),
            )
    return expr


def after_grouping(expr: Expr, keys: Sequence[Expr], names: Sequence[str], inputs: int) -> Expr:
    """Return the expression over the keys and aggregates; `Stray` when a column is neither."""

    def change(part: Expr) -> Expr | None:
        if part in keys:
            at = keys.index(part)
            return Column(at, part.type, names[at])
        if isinstance(part, Column):
            if part.index < inputs:
                raise Stray(part)
            return replace(part, index=len(keys) + part.index - inputs)
        return None

    return replace_from_top(expr, change)


def over_outputs(expr: Expr, outputs: Sequence[Expr], names: Sequence[str]) -> Expr:
    """Return the expression over the columns of a SELECT list; `Stray` when one is not in it."""

    def change(part: Expr) -> Expr | None:
        if part in outputs:
            at = outputs.index(part)
            return Column(at, part.type, names[at])
        if isinstance(part, Column):
            raise Stray(part)
        return None

    return replace_from_top(expr, change)
