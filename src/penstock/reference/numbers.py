"""The oracle's arithmetic, mathematics and distances: one row at a time, in plain Python.

Whole numbers are exact; whether a result fits its type is asked where the call is evaluated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from penstock.errors import DataError
from penstock.reference.values import NAN


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
    if isinstance(value, float) and (not math.isfinite(value) or digits > 400):
        return value
    scale = Fraction(10) ** max(digits, -400)
    shifted = abs(Fraction(repr(value)) * scale)
    whole = math.floor(shifted + Fraction(1, 2)) / scale
    if isinstance(value, float):
        return math.copysign(float(whole), value)
    return int(whole) * (-1 if value < 0 else 1)


def _whole(function: Callable[[Any], int]) -> Callable[[Any], int]:
    """FLOOR and CEIL give a BIGINT; NaN and what is too large do not fit."""

    def apply(value: Any) -> int:
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"a value of type BIGINT must fit it, got {value}")
        return function(value)

    return apply


def _sign(value: float) -> float:
    return NAN if math.isnan(value) else float((value > 0) - (value < 0))


def _real(function: Callable[[float], float]) -> Callable[[float], float]:
    """A function of one number; NaN where it is not defined, infinity where it is too large."""

    def apply(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return NAN
        except OverflowError:
            return math.inf

    return apply


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float | None]:
    return lambda value: None if value <= 0 else function(value)


def _power(base: float, exponent: float) -> float:
    """As in Java, 1 to the power of NaN or infinity is NaN."""
    if math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return NAN
    odd = math.isfinite(exponent) and math.fmod(exponent, 2) in (1, -1)
    sign = math.copysign(1.0, base) if odd else 1.0
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return sign * math.inf
    except ValueError:  # a negative power of zero, or a root of a negative number
        return sign * math.inf if base == 0 else NAN


# Distances


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
    total = 0.0
    for difference in _differences(values):
        total += difference
    return total


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


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "div": _quotient,
    "mod": _remainder,
    "negate": operator.neg,
    "abs": abs,
    "sign": _sign,
    "round": _round,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "sqrt": _real(math.sqrt),
    "exp": _real(math.exp),
    "ln": _logarithm(math.log),
    "log10": _logarithm(math.log10),
    "log2": _logarithm(math.log2),
    "power": _power,
    "sin": _real(math.sin),
    "cos": _real(math.cos),
    "tan": _real(math.tan),
    "asin": _real(math.asin),
    "acos": _real(math.acos),
    "atan": math.atan,
    "atan2": lambda y, x: math.atan2(y + 0.0, x + 0.0),  # -0.0 counts as 0.0
    "radians": math.radians,
    "degrees": math.degrees,
    "distance": _euclid,
    "distance_l1": _city_block,
    "distance_max": _farthest,
    "distance_lp": _of_order,
}
"""Functions of numbers, which are null where an argument is."""
