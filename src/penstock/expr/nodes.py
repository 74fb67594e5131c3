"""The bound scalar expression tree: what the binder makes and both evaluators read.

Five node classes and no more.  Every node knows its Arrow type.  Operators such as ``+``, ``AND``
or ``=`` are `Call` with a name from the function table (`penstock.expr.functions`), so that adding
a function touches one table and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """The input's column at ``index``. ``name`` is for people; only the index counts."""

    index: int
    type: pa.DataType
    name: str = ""


@dataclass(frozen=True)
class Literal:
    """A constant: None, bool, int, float, str; timestamps and dates as their integer count."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True)
class Cast:
    """A conversion, checked: a value that does not fit is an error."""

    arg: Expr
    type: pa.DataType


@dataclass(frozen=True)
class Call:
    """A function or operator of the table, by its canonical lower-case name."""

    name: str
    args: tuple[Expr, ...]
    type: pa.DataType


@dataclass(frozen=True)
class Case:
    """``CASE WHEN .. THEN .. ELSE .. END``; a branch is evaluated only where it applies."""

    branches: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr
    type: pa.DataType


Expr: TypeAlias = Column | Literal | Cast | Call | Case


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate of a ``GROUP BY``.

    ``name`` is one of count, sum, avg, min, max, var_samp, var_pop, stddev_samp, stddev_pop,
    count_distinct.  ``arg`` is None for ``COUNT(*)``; nulls of ``arg`` are skipped.
    ``type``: count and count_distinct int64; sum int64 for integers, float64 for floats; avg and
    the variances float64; min and max the type of ``arg``.
    """

    name: str
    arg: Expr | None
    type: pa.DataType


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions."""
    match expr:
        case Cast(arg, _):
            return (arg,)
        case Call(_, args, _):
            return args
        case Case(branches, otherwise, _):
            return (*(e for branch in branches for e in branch), otherwise)
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; ``change`` returns a replacement or None to keep the node."""
    match expr:
        case Cast(arg, _):
            expr = replace(expr, arg=rewrite(arg, change))
        case Call(_, args, _):
            expr = replace(expr, args=tuple(rewrite(a, change) for a in args))
        case Case(branches, otherwise, _):
            expr = replace(
                expr,
                branches=tuple((rewrite(c, change), rewrite(v, change)) for c, v in branches),
                otherwise=rewrite(otherwise, change),
            )
    return change(expr) or expr


def columns_of(expr: Expr) -> frozenset[int]:
    """Return the positions of the input columns that the expression reads."""
    return frozenset(e.index for e in walk(expr) if isinstance(e, Column))


def substitute(expr: Expr, inputs: tuple[Expr, ...]) -> Expr:
    """Replace every column by the expression at its position in ``inputs``."""
    return rewrite(expr, lambda e: inputs[e.index] if isinstance(e, Column) else None)


def shift(expr: Expr, mapping: dict[int, int]) -> Expr:
    """Renumber columns."""
    return rewrite(
        expr,
        lambda e: replace(e, index=mapping[e.index]) if isinstance(e, Column) else None,
    )
