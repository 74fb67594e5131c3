"""The oracle's own interpreter of expressions: one row at a time, plain Python.

It follows ANSI SQL as Spark 4 reads it: null in, null out, unless a function says otherwise; a
result that does not fit its type, a division by zero or a text that is no number is an error;
``AND`` and ``OR`` are three-valued and look at their second argument only when the first leaves the
answer open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import InternalError
from penstock.expr.nodes import Call, Case, Cast, Column, Expr, Literal
from penstock.expr.own import is_own
from penstock.reference import (
    bits,
    collected,
    curves,
    decimals,
    hashes,
    jsons,
    logic,
    months,
    numbers,
    own,
    printing,
    texts,
    time_formats,
    times,
    urls,
    words,
    zones,
)
from penstock.reference.casts import cast, try_cast
from penstock.reference.values import canonical, compare, fit

__all__ = ["LAZY", "STRICT", "canonical", "compare", "evaluate"]

OF_DAY: dict[str, Callable[[int], Any]] = {**times.OF_DAY, **months.OF_DAY}
"""Parts of a calendar day; of a TIMESTAMP its day is taken."""

STRICT: dict[str, Callable[..., Any]] = {
    **logic.FUNCTIONS,
    **numbers.FUNCTIONS,
    **curves.FUNCTIONS,
    **bits.FUNCTIONS,
    **texts.FUNCTIONS,
    **words.FUNCTIONS,
    **urls.FUNCTIONS,
    **times.FUNCTIONS,
    **months.FUNCTIONS,
    **time_formats.FUNCTIONS,
    **zones.FUNCTIONS,
    **OF_DAY,
    **collected.FUNCTIONS,
    **jsons.FUNCTIONS,
}
"""Functions that give null when an argument is null."""

WITH_BITS: dict[str, Callable[..., Any]] = {**bits.WITH_BITS, **curves.WITH_BITS}
"""Functions as `STRICT` ones that are also told the bits of the type of their first argument."""

LAZY: dict[str, Callable[..., Any]] = {
    **logic.LAZY,
    **texts.LAZY,
    **words.LAZY,
    **curves.LAZY,
    **collected.LAZY,
}
"""Functions that see null arguments, or do not look at all of them."""

TYPED: dict[str, Callable[..., Any]] = {
    "hash": hashes.murmur,
    "xxhash64": hashes.xx64,
    "format_string": printing.format_string,
    **collected.WITH_TYPES,
    **jsons.WITH_TYPES,
}
"""Functions that are told the types of their arguments."""


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
        case Call("try_cast", (arg, _), to):
            return try_cast(evaluate(arg, row), arg.type, to)
        case Call("from_json", (arg, _), to):
            return jsons.from_json(evaluate(arg, row), to)
        case Case(branches, otherwise):
            for condition, value in branches:
                if evaluate(condition, row) is True:
                    return evaluate(value, row)
            return evaluate(otherwise, row)
        case Call(name, args, result):
            if is_own(name):
                return own.call(
                    name, [a.type for a in args], [evaluate(a, row) for a in args], result
                )
            if name in LAZY:
                return LAZY[name](*((lambda a=a: evaluate(a, row)) for a in args))
            if name in TYPED:
                return TYPED[name]([evaluate(a, row) for a in args], [a.type for a in args])
            if name not in STRICT and name not in WITH_BITS:
                raise InternalError(f"the reference does not know the function '{name}'")
            values = [evaluate(a, row) for a in args]
            if any(v is None for v in values):
                return None
            if any(isinstance(v, Decimal) for v in values):
                function = STRICT.get(name) or WITH_BITS[name]
                return decimals.call(function, name, values, result)
            if name in WITH_BITS:
                return fit(WITH_BITS[name](*values, args[0].type.bit_width), result)
            if name in OF_DAY and pa.types.is_timestamp(args[0].type):
                values = [value // times.DAY for value in values]
            return fit(STRICT[name](*values), result)
    raise InternalError(f"the reference does not know the expression {expr!r}")
