"""The function table, and how calls are typed.

`FUNCTIONS` is the one list of what an expression may call; the Arrow evaluator, the Spark columns
and the documentation page all read it.  `resolve_call` and its sisters turn names and arguments
into typed nodes: they insert the conversions that the function's rule asks for, so that both
evaluators see arguments of exactly the right types and never convert on their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, NotSupportedError, QueryError, suggest
from penstock.expr.casts import cast_value, check_cast
from penstock.expr.library import conditional, distances, strings, times
from penstock.expr.library import math as mathematics
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Expr, Literal
from penstock.expr.signatures import Function, Mismatch, got, shared_type
from penstock.expr.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    is_floating,
    is_integer,
    is_numeric,
    is_temporal,
    type_name,
)
from penstock.model import TIMESTAMP

_SECTIONS: dict[str, tuple[Function, ...]] = {
    "Comparison, logic, nulls": conditional.FUNCTIONS,
    "Arithmetic and mathematics": mathematics.FUNCTIONS,
    "Distances": distances.FUNCTIONS,
    "Text": strings.FUNCTIONS,
    "Times": times.FUNCTIONS,
}

FUNCTIONS: dict[str, Function] = {f.name: f for part in _SECTIONS.values() for f in part}
"""Every function by its canonical name."""

_NAMES: dict[str, Function] = {
    name: function for function in FUNCTIONS.values() for name in (function.name, *function.aliases)
}


def resolve_call(name: str, args: Sequence[Expr]) -> Expr:
    """Return the typed expression of a call by any of the function's names."""
    key = name.lower()
    if key in _REWRITES:
        usage, rewrite, _ = _REWRITES[key]
        result = rewrite(args)
        if result is None:
            raise QueryError(f"function {usage} must get other arguments, got {got(args)}")
        return result
    function = _NAMES.get(key)
    if function is None:
        known = (*_NAMES, *_REWRITES, *AGGREGATES)
        raise QueryError(f"there is no function '{name}'; {suggest(key, known)}")
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


def coerce(expr: Expr, target: pa.DataType) -> Expr:
    """Return the expression converted to a type; a literal is converted at once."""
    if expr.type == target:
        return expr
    check_cast(expr.type, target)
    if isinstance(expr, Literal):
        try:
            return Literal(cast_value(expr.value, expr.type, target), target)
        except DataError as error:
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


def _negative(literal: Literal) -> Expr:
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


def _if(args: Sequence[Expr]) -> Expr | None:
    if len(args) not in (2, 3):
        return None
    return resolve_case([(args[0], args[1])], args[2] if len(args) == 3 else None)


def _nvl2(args: Sequence[Expr]) -> Expr | None:
    if len(args) != 3:
        return None
    return resolve_case([(resolve_call("is_not_null", args[:1]), args[1])], args[2])


def _between(args: Sequence[Expr]) -> Expr | None:
    if len(args) != 3:
        return None
    value, low, high = args
    return resolve_call(
        "and", (resolve_call("ge", (value, low)), resolve_call("le", (value, high)))
    )


def _cast_to(target: pa.DataType) -> Callable[[Sequence[Expr]], Expr | None]:
    return lambda args: resolve_cast(args[0], target) if len(args) == 1 else None


def _constant(value: float) -> Callable[[Sequence[Expr]], Expr | None]:
    return lambda args: None if args else Literal(value, DOUBLE)


_REWRITES: dict[str, tuple[str, Callable[[Sequence[Expr]], Expr | None], str]] = {
    "if": ("if(condition, a, b)", _if, "a where the condition holds, else b."),
    "iff": ("iff(condition, a, b)", _if, "As `if`."),
    "nvl2": ("nvl2(x, a, b)", _nvl2, "a where x is not null, else b."),
    "between": ("x BETWEEN low AND high", _between, "`x >= low AND x <= high`."),
    "to_date": ("to_date(x)", _cast_to(DATE), "`CAST(x AS DATE)`."),
    "to_timestamp": ("to_timestamp(x)", _cast_to(TIMESTAMP), "`CAST(x AS TIMESTAMP)`."),
    "pi": ("pi()", _constant(math.pi), "3.14159.."),
    "e": ("e()", _constant(math.e), "2.71828.."),
}

AGGREGATES: dict[str, str] = {
    "count": "count",
    "count_if": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
    "var_samp": "var_samp",
    "variance": "var_samp",
    "var_pop": "var_pop",
    "stddev_samp": "stddev_samp",
    "stddev": "stddev_samp",
    "std": "stddev_samp",
    "stddev_pop": "stddev_pop",
}
"""Every name of an aggregate, and its canonical one."""

_AGGREGATE_DOCS = (
    ("count(*)", "BIGINT", "Number of rows."),
    ("count(x)", "BIGINT", "Number of rows in which x is not null."),
    ("count(DISTINCT x)", "BIGINT", "Number of different values."),
    ("count_if(condition)", "BIGINT", "Number of rows in which the condition holds."),
    ("sum(x)", "BIGINT or DOUBLE", "Sum; of integers a BIGINT, of others a DOUBLE."),
    ("avg(x), mean(x)", "DOUBLE", "Mean."),
    ("min(x), max(x)", "type of x", "Smallest and largest number, text or time."),
    ("var_samp(x), variance(x)", "DOUBLE", "Variance of a sample; null for fewer than two values."),
    ("var_pop(x)", "DOUBLE", "Variance of a population."),
    ("stddev_samp(x), stddev(x), std(x)", "DOUBLE", "Square root of var_samp."),
    ("stddev_pop(x)", "DOUBLE", "Square root of var_pop."),
)


def is_aggregate(name: str) -> bool:
    """Whether the name is that of an aggregate."""
    return name.lower() in AGGREGATES


def resolve_aggregate(name: str, arg: Expr | None, distinct: bool = False) -> AggregateCall:
    """Return the typed aggregate; ``arg`` is None for ``COUNT(*)``."""
    key = AGGREGATES.get(name.lower())
    if key is None:
        raise QueryError(f"there is no aggregate '{name}'; {suggest(name.lower(), AGGREGATES)}")
    if arg is None:
        if key != "count" or distinct or name.lower() == "count_if":
            raise QueryError(f"aggregate {name}(x) must get an argument, got '*' or none")
        return AggregateCall("count", None, BIGINT)
    if name.lower() == "count_if":
        arg = resolve_case([(arg, Literal(1, INT))])
    if key == "count":
        return _count(arg, distinct)
    if key in ("min", "max"):
        return _extreme(key, arg)
    if distinct:
        raise NotSupportedError(
            f"DISTINCT is known for COUNT, MIN and MAX, got {name.upper()}(DISTINCT ..); "
            "select the distinct rows in a sub-query first"
        )
    if not (is_numeric(arg.type) or arg.type == NULL):
        hint = "; count with COUNT_IF(x)" if arg.type == BOOLEAN else "; use CAST"
        raise QueryError(f"aggregate {name}(x) must get a number, got {type_name(arg.type)}{hint}")
    target = BIGINT if key == "sum" and is_integer(arg.type) else DOUBLE
    return AggregateCall(key, coerce(arg, target), target)


def _count(arg: Expr, distinct: bool) -> AggregateCall:
    if arg.type == NULL:
        arg = coerce(arg, STRING)
    if distinct:
        return AggregateCall("count_distinct", arg, BIGINT)
    constant = isinstance(arg, Literal) and arg.value is not None
    return AggregateCall("count", None if constant else arg, BIGINT)


def _extreme(key: str, arg: Expr) -> AggregateCall:
    if arg.type == NULL:
        arg = coerce(arg, STRING)
    if not (is_numeric(arg.type) or is_temporal(arg.type) or arg.type == STRING):
        raise QueryError(
            f"aggregate {key}(x) must get a number, text or time, got {type_name(arg.type)}; use "
            f"{key}(CAST(x AS INT))"
        )
    return AggregateCall(key, arg, arg.type)


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
            lines.append(f"| {_code(f.usage)}{mark} | {aliases} | {f.doc} |")
        lines.append("")
    lines += ["## Short forms", "", "| call | meaning |", "|---|---|"]
    lines += [f"| {_code(usage)} | {doc} |" for usage, _, doc in _REWRITES.values()]
    lines += ["", "## Aggregates", "", "Nulls are skipped.", "", "| call | type | meaning |"]
    lines += ["|---|---|---|"]
    lines += [f"| {_code(usage)} | {type_} | {doc} |" for usage, type_, doc in _AGGREGATE_DOCS]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
