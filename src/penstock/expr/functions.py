"""The function table, and how calls are typed.

`FUNCTIONS` is the one list of what an expression may call; the Arrow evaluator, the Spark columns
and the documentation page all read it.  `resolve_call` and its sisters turn names and arguments
into typed nodes: they insert the conversions that the function's rule asks for, so that both
evaluators see arguments of exactly the right types and never convert on their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, QueryError
from penstock.expr import short_forms
from penstock.expr.casts import cast_value, check_cast
from penstock.expr.decimal_types import Written, beside_decimals, written
from penstock.expr.library import (
    aggregates,
    array_functions,
    bits,
    conditional,
    digests,
    distances,
    json_texts,
    months,
    nested_values,
    numbers,
    patterns,
    printing,
    strings,
    time_formats,
    times,
    urls,
    words,
    zones,
)
from penstock.expr.library import math as mathematics
from penstock.expr.meanings import meant
from penstock.expr.nodes import Call, Case, Cast, Expr, Literal
from penstock.expr.signatures import Function, Mismatch, got, shared_type
from penstock.expr.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    NULL,
    STRING,
    is_decimal,
    is_floating,
    is_integer,
    is_temporal,
    type_name,
)
from penstock.nested.shapes import is_array

_SECTIONS: dict[str, tuple[Function, ...]] = {
    "Comparison, logic, nulls": conditional.FUNCTIONS,
    "Arithmetic and mathematics": (*mathematics.FUNCTIONS, *numbers.FUNCTIONS),
    "Bits and bases": bits.FUNCTIONS,
    "Distances": distances.FUNCTIONS,
    "Text": (*strings.FUNCTIONS, *words.FUNCTIONS, *printing.FUNCTIONS),
    "Regular expressions": patterns.FUNCTIONS,
    "Addresses and numbers as text": urls.FUNCTIONS,
    "Hashes and encodings": digests.FUNCTIONS,
    "Arrays, structs and maps": (*nested_values.FUNCTIONS, *array_functions.FUNCTIONS),
    "JSON": json_texts.FUNCTIONS,
    "Times": (
        *times.FUNCTIONS,
        *months.FUNCTIONS,
        *time_formats.FUNCTIONS,
        *zones.FUNCTIONS,
    ),
}

FUNCTIONS: dict[str, Function] = {f.name: f for part in _SECTIONS.values() for f in part}
"""Every function by its canonical name."""

_NAMES: dict[str, Function] = {
    name: function for function in FUNCTIONS.values() for name in (function.name, *function.aliases)
}


_OF_ARRAYS = {"concat": "array_concat", "reverse": "array_reverse"}
"""Functions that mean another one of arrays."""


def resolve_call(name: str, args: Sequence[Expr]) -> Expr:
    """Return the typed expression of a call by any of the function's names."""
    key = name.lower()
    if key in _OF_ARRAYS and any(is_array(arg.type) for arg in args):
        key = _OF_ARRAYS[key]
    if key in short_forms.NAMES:
        usage, result = short_forms.resolve(_RESOLVER, key, args)
        if result is None:
            raise QueryError(f"function {usage} must get other arguments, got {got(args)}")
        return result
    function = _NAMES.get(key)
    if function is None:
        raise QueryError(unknown_function(name))
    args = _as_written(function.name, args)
    try:
        wanted, result_type = function.rule(args)
    except Mismatch as mismatch:
        raise QueryError(
            f"function {function.usage} must get {mismatch}, got {got(args)}"
        ) from None
    coerced = tuple(coerce(arg, type_) for arg, type_ in zip(args, wanted, strict=True))
    if function.name == "negate" and isinstance(coerced[0], Literal):
        return _negative(coerced[0])
    if function.name == "in":
        return _resolve_in(coerced)
    _check_constants(function, coerced)
    return Call(function.name, coerced, result_type)


def _as_written(name: str, args: Sequence[Expr]) -> Sequence[Expr]:
    """Return arguments with constants beside DECIMALs as what they are written as."""
    if not any(is_decimal(arg.type) for arg in args):
        return args
    return beside_decimals(name, [_computed(arg) or arg for arg in args])


def _computed(expr: Expr) -> Expr | None:
    """Return arithmetic of written constants, 1 - 0.2, as DECIMAL; None for everything else."""
    if not isinstance(expr, Call) or expr.type != DOUBLE:
        return None
    if expr.name not in ("add", "subtract", "multiply"):
        return None
    args = [_computed(arg) or written(arg) for arg in expr.args]
    return None if None in args else resolve_call(expr.name, [a for a in args if a is not None])


def is_function(name: str) -> bool:
    """Whether the name is that of a function, or of an operator written as one."""
    return name.lower() in _NAMES or name.lower() in short_forms.NAMES


def unknown_function(name: str, own: Iterable[str] = ()) -> str:
    """Say that there is no such function, and what was meant; operators are no suggestions.

    ``own`` are the names of the user's own functions.
    """
    calls = (f for f in FUNCTIONS.values() if "(" in f.usage.split(" ")[0][1:])
    written = {name for f in calls for name in (f.name, *f.aliases)}
    known = {*written, *short_forms.NAMES, *aggregates.NAMES, *own} - {"between"}
    return f"there is no function '{name}'; {meant(name, known)}"


def coerce(expr: Expr, target: pa.DataType) -> Expr:
    """Return the expression converted to a type; a literal is converted at once."""
    if expr.type == target:
        return expr
    check_cast(expr.type, target)
    if isinstance(expr, Literal):
        if is_decimal(target):
            expr = written(expr) or expr
        if target == DOUBLE and is_integer(expr.type) and expr.value is not None:
            return Literal(Written(expr.value), DOUBLE)
        try:
            return Literal(cast_value(expr.value, expr.type, target), target)
        except DataError as error:
            if is_temporal(target) and expr.type == STRING:
                form = "2024-01-31" if target == DATE else "2024-01-31 12:00:00"
                told = f"a {type_name(target)} must be a text such as '{form}'"
                raise QueryError(f"{told}, got '{expr.value}'") from None
            raise QueryError(str(error)) from None
    return Cast(expr, target)


def resolve_cast(expr: Expr, target: pa.DataType) -> Expr:
    """Return ``CAST(expr AS target)``, refusing pairs of types that cannot be converted."""
    check_cast(expr.type, target)
    if isinstance(expr, Literal) and expr.value is None:
        return Literal(None, target)
    return expr if expr.type == target else Cast(expr, target)


def resolve_case(branches: Sequence[tuple[Expr, Expr]], otherwise: Expr | None = None) -> Expr:
    """Return the typed ``CASE``; a missing ELSE is null."""
    values = [*(value for _, value in branches), otherwise or Literal(None, NULL)]
    values = list(_as_written("case", values))
    shared = shared_type(values)
    if shared is None:
        raise QueryError(
            f"the branches of CASE must have one type, got {got(values)}; use CAST in one of them"
        )
    conditions = []
    for condition, _ in branches:
        if condition.type not in (BOOLEAN, NULL):
            raise QueryError(
                f"a condition after WHEN must be BOOLEAN, got {type_name(condition.type)}; "
                "compare it with something"
            )
        conditions.append(coerce(condition, BOOLEAN))
    *results, last = (coerce(value, shared) for value in values)
    return Case(tuple(zip(conditions, results, strict=True)), last, shared)


class _Resolver:
    """What short forms are made with."""

    def call(self, name: str, args: Sequence[Expr]) -> Expr:
        return resolve_call(name, args)

    def cast(self, expr: Expr, target: pa.DataType) -> Expr:
        return resolve_cast(expr, target)

    def case(self, branches: Sequence[tuple[Expr, Expr]], otherwise: Expr | None = None) -> Expr:
        return resolve_case(branches, otherwise)


_RESOLVER = _Resolver()


def _negative(literal: Literal) -> Expr:
    if isinstance(literal.value, Decimal):
        return Literal(literal.value.copy_negate(), literal.type)
    value = None if literal.value is None else -literal.value
    if value is not None and is_integer(literal.type):
        bits = literal.type.bit_width - 1
        if value >= 2**bits:
            raise QueryError(
                f"-({literal.value}) must fit into {type_name(literal.type)}; use CAST"
            )
    return Literal(value, literal.type)


def _resolve_in(args: tuple[Expr, ...]) -> Expr:
    value, *listed = args
    if not all(isinstance(item, Literal) for item in listed):
        result = resolve_call("eq", (value, listed[0]))
        for item in listed[1:]:
            result = resolve_call("or", (result, resolve_call("eq", (value, item))))
        return result
    if is_floating(value.type) and any(isinstance(x, Literal) and x.value == 0 for x in listed):
        # Sets of numbers tell the two zeros apart, comparison does not: list both.
        listed = [*listed, Literal(0.0, value.type), Literal(-0.0, value.type)]
    return Call("in", (value, *listed), BOOLEAN)


def _check_constants(function: Function, args: tuple[Expr, ...]) -> None:
    """Find a wrong constant before there is data, by a trial on a column of one null."""
    trial: list[Any] = []
    found = False
    for position, arg in enumerate(args):
        if position not in function.constants:
            trial.append(pa.nulls(1, arg.type))
        elif isinstance(arg, Literal):
            trial.append(arg.value)
            found = True
        else:
            raise QueryError(
                f"function {function.usage} must get a constant as argument {position + 1}, "
                "got an expression"
            )
    if found:
        try:
            function.arrow(*trial)
        except (DataError, pa.ArrowInvalid) as error:
            raise QueryError(
                f"function {function.usage} cannot use its constant: {error}"
            ) from None


def document() -> str:
    """Return the documentation page of all functions and aggregates, in Markdown."""
    lines = [
        "# Functions",
        "",
        "<!-- generated by penstock.expr.functions.document(); do not edit -->",
        "",
        "Names are not case-sensitive. Unless said otherwise, a null argument gives null.",
        "Functions marked ° are evaluated by Penstock itself, never by Spark below it, because the",
        "two would not agree in every bit.",
        "",
        "Numbers are checked as in Spark's ANSI mode: an overflow, a division by zero or a",
        "conversion that does not fit is an error. NaN equals NaN and is greater than every",
        "number. Quoted text beside a time stands for a time: `t > '2024-01-31'`.",
        "",
        "A text that a function makes has at most 64 MiB (67,108,864 bytes), and the texts of the",
        "rows that are computed at once less than 2 GiB; more is an error.",
        "",
    ]
    for title, functions in _SECTIONS.items():
        lines += [f"## {title}", "", "| call | other names | meaning |", "|---|---|---|"]
        for f in functions:
            mark = "" if f.spark else " °"
            aliases = ", ".join(f"`{a}`" for a in f.aliases)
            lines.append(f"| {short_forms.code(f.usage)}{mark} | {aliases} | {f.doc} |")
        lines.append("")
    lines += short_forms.document()
    lines += ["", "## Aggregates", "", "Nulls are skipped.", "", "| call | type | meaning |"]
    lines += ["|---|---|---|"]
    lines += [
        f"| {short_forms.code(usage)} | {type_} | {doc} |" for usage, type_, doc in aggregates.DOCS
    ]
    return "\n".join(lines) + "\n"
