"""The oracle's own interpreter of expressions and aggregates: one row at a time, plain Python.

It follows ANSI SQL as Spark 4 reads it: null in, null out, unless a function says otherwise; a
result that does not fit its type, a division by zero or a text that is no number is an error;
``AND`` and ``OR`` are three-valued and look at their second argument only when the first leaves the
answer open.

Floating-point sums are exact: they are added as fractions and rounded once, at the end.  So an
engine is measured against the true value and not against another way to round.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, InternalError
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Column, Expr, Literal

NAN = math.nan
"""The one NaN. Tuples that hold this very object are equal and hash alike."""


def canonical(value: Any) -> Any:
    """Return the value with any NaN replaced by the one."""
    return NAN if isinstance(value, float) and math.isnan(value) else value


def compare(a: Any, b: Any) -> int:
    """Return -1, 0 or 1: null is least, NaN is the greatest number and equal to itself."""
    if a is None or b is None:
        return (a is not None) - (b is not None)
    a_nan, b_nan = (isinstance(x, float) and math.isnan(x) for x in (a, b))
    if a_nan or b_nan:
        return a_nan - b_nan
    return int(a > b) - int(a < b)


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
            return fit(STRICT[name](*values), result)
    raise InternalError(f"the reference does not know the expression {expr!r}")


# Types


def fit(value: Any, to: pa.DataType) -> Any:
    """Return a value as its type holds it; an integer out of range is an error."""
    if value is None:
        return None
    if pa.types.is_integer(to):
        if not -(2 ** (to.bit_width - 1)) <= value < 2 ** (to.bit_width - 1):
            raise DataError(f"a value of type {to} must fit it, got {value}")
        return int(value)
    if pa.types.is_floating(to):
        value = float(value)
        return struct.unpack("f", struct.pack("f", value))[0] if to == pa.float32() else value
    return value


def cast(value: Any, source: pa.DataType, to: pa.DataType) -> Any:
    """Convert one value that is not null, checked."""
    if source == to:
        return value
    try:
        if pa.types.is_string(to):
            return _text(value)
        if pa.types.is_boolean(to):
            return _to_bool(value)
        if pa.types.is_integer(to):
            return fit(_to_int(value, source), to)
        if pa.types.is_floating(to):
            divisor = 1_000_000 if pa.types.is_timestamp(source) else 1
            return fit(float(value) / divisor if divisor > 1 else float(value), to)
        if pa.types.is_timestamp(to):
            if pa.types.is_date(source):
                return value * 86_400_000_000
            if pa.types.is_integer(source):
                return value * 1_000_000
        if pa.types.is_date(to) and pa.types.is_timestamp(source):
            return value // 86_400_000_000
    except (ValueError, OverflowError):
        raise DataError(f"a value must convert from {source} to {to}, got {value!r}") from None
    raise InternalError(f"the reference does not know the conversion from {source} to {to}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        words = {"true": True, "t": True, "yes": True, "y": True, "1": True}
        words |= {"false": False, "f": False, "no": False, "n": False, "0": False}
        if value.strip().lower() not in words:
            raise ValueError(value)
        return words[value.strip().lower()]
    return bool(value != 0)


def _to_int(value: Any, source: pa.DataType) -> int:
    if pa.types.is_timestamp(source):
        return int(value // 1_000_000)
    return int(value.strip()) if isinstance(value, str) else math.trunc(value)


# Functions


def _divide(a: float, b: float) -> float:
    if b == 0:
        raise DataError("division by zero")
    return a / b


def _quotient(a: int, b: int) -> int:
    if b == 0:
        raise DataError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: Any, b: Any) -> Any:
    if b == 0:
        raise DataError("division by zero")
    if isinstance(a, float) or isinstance(b, float):
        return math.fmod(a, b) if not math.isinf(a) else NAN
    return a - b * _quotient(a, b)


def _round(value: Any, digits: int = 0) -> Any:
    """Round half away from zero, on the decimal digits that the value shows."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    scale = Fraction(10) ** digits
    shifted = abs(Fraction(repr(value)) * scale)
    whole = math.floor(shifted + Fraction(1, 2)) / scale * (-1 if value < 0 else 1)
    return float(whole) if isinstance(value, float) else int(whole)


def _whole(function: Callable[[Any], int]) -> Callable[[Any], int]:
    """FLOOR and CEIL give a BIGINT; NaN and what is too large do not fit."""

    def apply(value: Any) -> int:
        if isinstance(value, float) and not -(2.0**63) <= value <= 2.0**63:
            raise DataError(f"a value of type BIGINT must fit it, got {value}")
        return min(function(value), 2**63 - 1)

    return apply


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else NAN


def _substring(text: str, position: int, length: int | None = None) -> str:
    """Positions count from 1; negative ones from the end; 0 is as 1."""
    start = position - 1 if position > 0 else 0 if position == 0 else len(text) + position
    end = len(text) if length is None else start + max(length, 0)
    return text[max(start, 0) : max(end, 0)]


def _like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[i:], pattern[1:]) for i in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "\\" and len(pattern) > 1:
        return text[0] == pattern[1] and _like(text[1:], pattern[2:])
    return pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:])


def _differences(values: Sequence[float]) -> list[float]:
    """Return the differences of the coordinates of two points, one after the other."""
    half = len(values) // 2
    return [abs(a - b) for a, b in zip(values[:half], values[half:], strict=True)]


def _euclid(*values: float) -> float:
    total = 0.0
    for difference in _differences(values):
        total += difference * difference
    return math.sqrt(total)


def _city_block(*values: float) -> float:
    return float(sum(_differences(values)))


def _farthest(*values: float) -> float:
    found = _differences(values)
    return NAN if any(math.isnan(d) for d in found) else max(found)


def _of_order(order: float, *values: float) -> float:
    if order in (1, 2):
        return _city_block(*values) if order == 1 else _euclid(*values)
    largest = _farthest(*values)
    if not math.isfinite(largest) or largest == 0 or math.isinf(order):
        return largest
    parts = [(d / largest) ** order for d in _differences(values)]
    return float(largest * sum(parts) ** (1 / order))


def _levenshtein(a: str, b: str, most: int | None = None) -> int:
    above = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (char != other)))
        above = row
    return -1 if most is not None and above[-1] > most else above[-1]


def _overlaps(a: Any, b: Any, c: Any, d: Any) -> bool:
    """SQL's definition: whichever starts later starts before the other one's end."""
    if compare(a, b) > 0:
        a, b = b, a
    if compare(c, d) > 0:
        c, d = d, c
    if compare(a, c) == 0:
        return True
    return compare(a, d) < 0 if compare(a, c) > 0 else compare(c, b) < 0


def _test(holds: Callable[[int], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: holds(compare(a, b))


STRICT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "div": _quotient,
    "mod": _remainder,
    "negate": operator.neg,
    "eq": _test(lambda c: c == 0),
    "ne": _test(lambda c: c != 0),
    "lt": _test(lambda c: c < 0),
    "le": _test(lambda c: c <= 0),
    "gt": _test(lambda c: c > 0),
    "ge": _test(lambda c: c >= 0),
    "not": operator.not_,
    "abs": abs,
    "ceil": _whole(math.ceil),
    "floor": _whole(math.floor),
    "round": _round,
    "sqrt": _root,
    "power": math.pow,
    "exp": math.exp,
    "sign": lambda x: float((x > 0) - (x < 0)),
    "upper": str.upper,
    "lower": str.lower,
    "length": len,
    "trim": lambda s: s.strip(" "),
    "ltrim": lambda s: s.lstrip(" "),
    "rtrim": lambda s: s.rstrip(" "),
    "concat": lambda *parts: "".join(parts),
    "substring": _substring,
    "replace": lambda s, old, new="": s.replace(old, new) if old else s,
    "startswith": lambda s, prefix: s.startswith(prefix),
    "endswith": lambda s, suffix: s.endswith(suffix),
    "contains": lambda s, part: part in s,
    "like": _like,
    "distance": _euclid,
    "distance_l1": _city_block,
    "distance_max": _farthest,
    "distance_lp": _of_order,
    "levenshtein": _levenshtein,
    "overlaps": _overlaps,
    "unix_micros": lambda t: t,
    "unix_date": lambda d: d,
    "time_add": operator.add,
    "time_diff": operator.sub,
    "date_add": operator.add,
    "date_sub": operator.sub,
    "date_diff": operator.sub,
}
"""Functions that give null when an argument is null."""

Thunk = Callable[[], Any]


def _and(a: Thunk, b: Thunk) -> bool | None:
    first = a()
    if first is False:
        return False
    second = b()
    return False if second is False else None if first is None or second is None else True


def _or(a: Thunk, b: Thunk) -> bool | None:
    first = a()
    if first is True:
        return True
    second = b()
    return True if second is True else None if first is None or second is None else False


def _in(value: Thunk, *options: Thunk) -> bool | None:
    found = value()
    if found is None:
        return None
    values = [option() for option in options]
    if any(v is not None and compare(found, v) == 0 for v in values):
        return True
    return None if None in values else False


def _coalesce(*args: Thunk) -> Any:
    return next((value for arg in args if (value := arg()) is not None), None)


def _null_if(a: Thunk, b: Thunk) -> Any:
    value, other = a(), b()
    equal = value is not None and other is not None and compare(value, other) == 0
    return None if equal else value


def _extreme(sign: int) -> Callable[..., Any]:
    """GREATEST and LEAST skip nulls."""

    def pick(*args: Thunk) -> Any:
        best = None
        for arg in args:
            value = arg()
            if value is not None and (best is None or compare(value, best) == sign):
                best = value
        return best

    return pick


LAZY: dict[str, Callable[..., Any]] = {
    "and": _and,
    "or": _or,
    "in": _in,
    "is_null": lambda a: a() is None,
    "is_nan": lambda a: compare(a(), NAN) == 0,
    "is_not_null": lambda a: a() is not None,
    "eq_null_safe": lambda a, b: compare(a(), b()) == 0,
    "coalesce": _coalesce,
    "nullif": _null_if,
    "greatest": _extreme(1),
    "least": _extreme(-1),
}
"""Functions that see null arguments, or do not look at all of them."""


# Aggregates


def aggregate(call: AggregateCall, rows: Sequence[Sequence[Any]]) -> Any:
    """Return one aggregate over the rows of a group."""
    if call.arg is None:
        return len(rows)
    values = [v for row in rows if (v := evaluate(call.arg, row)) is not None]
    match call.name:
        case "count":
            return len(values)
        case "count_distinct":
            return len(set(values))
        case "sum":
            return fit(_sum(values), call.type) if values else None
        case "avg":
            return _ratio(_sum(values), len(values)) if values else None
        case "min" | "max":
            best = values[0] if values else None
            for value in values:
                if compare(value, best) == (1 if call.name == "max" else -1):
                    best = value
            return best
        case "var_pop" | "stddev_pop":
            return _spread(values, len(values), root=call.name == "stddev_pop")
        case "var_samp" | "stddev_samp":
            return _spread(values, len(values) - 1, root=call.name == "stddev_samp")
    raise InternalError(f"the reference does not know the aggregate '{call.name}'")


def _sum(values: Sequence[Any]) -> Any:
    """Return the exact sum: an integer, a fraction, or the infinity or NaN that it comes to."""
    strange = [v for v in values if isinstance(v, float) and not math.isfinite(v)]
    if strange:
        return canonical(sum(strange))
    if any(isinstance(v, float) for v in values):
        return sum((Fraction(v) for v in values), Fraction(0))
    return sum(values)


def _ratio(total: Any, count: int) -> float:
    if isinstance(total, float):
        return total
    return float(Fraction(total) / count)


def _spread(values: Sequence[Any], divisor: int, root: bool) -> float | None:
    """Return the exact variance, or its root; null where the divisor is not above zero."""
    if divisor <= 0:
        return None
    total = _sum(values)
    if isinstance(total, float):
        return NAN
    mean = Fraction(total) / len(values)
    variance = sum(((Fraction(v) - mean) ** 2 for v in values), Fraction(0)) / divisor
    return math.sqrt(variance) if root else float(variance)
