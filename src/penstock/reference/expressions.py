"""The oracle's own interpreter of expressions: one row at a time, plain Python.

It follows ANSI SQL as Spark 4 reads it: null in, null out, unless a function says otherwise; a
result that does not fit its type, a division by zero or a text that is no number is an error;
``AND`` and ``OR`` are three-valued and look at their second argument only when the first leaves the
answer open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import InternalError
from penstock.expr.nodes import Call, Case, Cast, Column, Expr, Literal
from penstock.reference import logic, numbers, texts, times
from penstock.reference.casts import cast
from penstock.reference.values import canonical, compare, fit

__all__ = ["LAZY", "STRICT", "canonical", "compare", "evaluate"]

STRICT: dict[str, Callable[..., Any]] = {
    **logic.FUNCTIONS,
    **numbers.FUNCTIONS,
    **texts.FUNCTIONS,
    **times.FUNCTIONS,
    **times.OF_DAY,
}
"""Functions that give null when an argument is null."""

LAZY: dict[str, Callable[..., Any]] = {**logic.LAZY, **texts.LAZY}
"""Functions that see null arguments, or do not look at all of them."""


def evaluate(expr: Expr, row: Sequence[Any]) -> Any:
    """Return the value of an expression on one row."""
    return canonical(_evaluate(expr, row))


def _evaluate(expr: Expr, row: Sequence[Any]) -> Any:
    match expr:
        case Column(index):
            return row[index]
        case Literal(value):
            return value
        case Cast(arg, to):
            value = evaluate(arg, row)
            return None if value is None else cast(value, arg.type, to)
        case Case(branches, otherwise):
            for condition, value in branches:
                if evaluate(condition, row) is True:
                    return evaluate(value, row)
            return evaluate(otherwise, row)
        case Call(name, args, result):
            if name in LAZY:
                return LAZY[name](*((lambda a=a: evaluate(a, row)) for a in args))
            if name not in STRICT:
                raise InternalError(f"the reference does not know the function '{name}'")
            values = [evaluate(a, row) for a in args]
            if any(v is None for v in values):
                return None
            if name in times.OF_DAY and pa.types.is_timestamp(args[0].type):
                values = [value // times.DAY for value in values]
            return fit(STRICT[name](*values), result)
    raise InternalError(f"the reference does not know the expression {expr!r}")
