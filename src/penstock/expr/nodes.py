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
    """A function or operator of the table, by its canonical lower-case name.

    One of the user's own has its place in Python as its name (`penstock.expr.own`).
    """

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

    ``name`` is a canonical one of `penstock.expr.library.aggregates`.  ``arg`` is None for
    ``COUNT(*)``; rows in which it is null are skipped.  ``more`` are further arguments: the other
    columns of count_distinct, the second variable of covar_pop, covar_samp and corr, the value that
    min_by and max_by give (their ``arg`` is what it is chosen by), the share of percentile, the
    delimiter of string_agg.  With ``distinct`` equal arguments count once.  The name may be the
    place of a class of the user's own (`penstock.expr.own`); ``state`` are then the names and types
    of what is kept of it.
    """

    name: str
    arg: Expr | None
    type: pa.DataType
    more: tuple[Expr, ...] = ()
    distinct: bool = False
    state: tuple[Column, ...] = ()

    @property
    def args(self) -> tuple[Expr, ...]:
        """All arguments, in order."""
        return self.more if self.arg is None else (self.arg, *self.more)

    def changed(self, change: Callable[[Expr], Expr]) -> AggregateCall:
        """Return the call with its arguments changed."""
        arg = None if self.arg is None else change(self.arg)
        return replace(self, arg=arg, more=tuple(map(change, self.more)))


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


def rebuilt(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with its direct sub-expressions changed."""
    match expr:
        case Cast(arg, _):
            return replace(expr, arg=change(arg))
        case Call(_, args, _):
            return replace(expr, args=tuple(map(change, args)))
        case Case(branches, otherwise, _):
            pairs = tuple((change(condition), change(value)) for condition, value in branches)
            return replace(expr, branches=pairs, otherwise=change(otherwise))
    return expr


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; ``change`` returns a replacement or None to keep the node."""
    expr = rebuilt(expr, lambda child: rewrite(child, change))
    return change(expr) or expr


def columns_of(expr: Expr) -> frozenset[int]:
    """Return the positions of the input columns that the expression reads."""
    return frozenset(e.index for e in walk(expr) if isinstance(e, Column))


def conjuncts(expr: Expr) -> list[Expr]:
    """Split a condition at its ANDs."""
    if isinstance(expr, Call) and expr.name == "and":
        return [part for arg in expr.args for part in conjuncts(arg)]
    return [expr]


def substitute(expr: Expr, inputs: tuple[Expr, ...]) -> Expr:
    """Replace every column by the expression at its position in ``inputs``."""
    return rewrite(expr, lambda e: inputs[e.index] if isinstance(e, Column) else None)


def shift(expr: Expr, mapping: dict[int, int]) -> Expr:
    """Renumber columns."""
    return rewrite(
        expr,
        lambda e: replace(e, index=mapping[e.index]) if isinstance(e, Column) else None,
    )
