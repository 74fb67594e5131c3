"""The oracle's other mathematics: remainders, rounding to even, hyperbolic functions, buckets."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from penstock.errors import DataError
from penstock.reference.logic import Thunk
from penstock.reference.values import NAN, single


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return NAN if math.isinf(a) or math.isnan(a) else math.fmod(a, b)
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _pmod(a: Any, b: Any, bits: int) -> Any:
    if b == 0:
        raise DataError("division by zero")
    rest = _remainder(a, b)
    if not rest < 0 < b:
        return rest
    moved = rest + b
    return _remainder(single(moved) if isinstance(moved, float) and bits == 32 else moved, b)


def _bround(value: Any, digits: int = 0) -> Any:
    """Round half to even, on the decimal digits that the value shows."""
    if isinstance(value, float) and (not math.isfinite(value) or digits > 400):
        return value
    scale = Fraction(10) ** min(max(digits, -400), 400)
    whole = round(abs(Fraction(repr(value)) * scale)) / scale
    if isinstance(value, float):
        return math.copysign(float(whole), value)
    return int(whole) * (-1 if value < 0 else 1)


def _rint(value: float) -> float:
    return math.copysign(float(round(abs(value))), value) if math.isfinite(value) else value


def _nanvl(value: Thunk, other: Thunk) -> Any:
    found = value()
    return other() if isinstance(found, float) and math.isnan(found) else found


def _width_bucket(value: float, low: float, high: float, count: int) -> int | None:
    if not 0 < count < 2**63 - 1 or math.isnan(value) or low == high:
        return None
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low > high:
        value, low, high = -value, -low, -high
    if value < low:
        return 0
    if value >= high:
        return count + 1
    part = float(count) * (value - low) / (high - low)
    if math.isnan(part):
        return 1
    return math.trunc(part) + 1 if part < 2.0**63 else -(2**63)


def _try(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Null where an integer does not fit the type of the result, which has so many bits."""

    def apply(a: Any, b: Any, bits: int) -> Any:
        found = function(a, b)
        fits = isinstance(found, float) or -(2 ** (bits - 1)) <= found < 2 ** (bits - 1)
        return found if fits else None

    return apply


def _own(function: Callable[..., float]) -> Callable[..., float]:
    """A function of numbers; NaN where it is not defined, infinity where it is too large."""

    def apply(*values: float) -> float:
        try:
            return function(*values)
        except ValueError:
            return NAN
        except OverflowError:
            return math.inf

    return apply


def _sinh(value: float) -> float:
    try:
        return math.sinh(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _atanh(value: float) -> float:
    if abs(value) == 1:
        return math.copysign(math.inf, value)
    return math.atanh(value) if abs(value) < 1 else NAN


def _over(function: Callable[[float], float]) -> Callable[[float], float]:
    """One divided by a function of an angle."""

    def apply(value: float) -> float:
        if not math.isfinite(value):
            return NAN
        found = function(value)
        return 1 / found if found else math.copysign(math.inf, found)

    return apply


def _log(base: float, value: float) -> float | None:
    if base <= 0 or value <= 0:
        return None
    above, below = math.log(value), math.log(base)
    if below:
        return above / below if not (math.isinf(above) and math.isinf(below)) else NAN
    return NAN if above == 0 or math.isnan(above) else math.copysign(math.inf, above)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "try_divide": lambda a, b: None if b == 0 else a / b,
    "try_mod": lambda a, b: None if b == 0 else _remainder(a, b),
    "bround": _bround,
    "rint": _rint,
    "factorial": lambda n: math.factorial(n) if 0 <= n <= 20 else None,
    "width_bucket": _width_bucket,
    "hypot": math.hypot,
    "log_base": _log,
    "log1p": lambda x: None if x <= -1 else math.log1p(x),
    "expm1": _own(math.expm1),
    "cbrt": _own(math.cbrt),
    "sinh": _sinh,
    "cosh": _own(math.cosh),
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": _own(math.acosh),
    "atanh": _atanh,
    "cot": _over(math.tan),
    "sec": _over(math.cos),
    "csc": _over(math.sin),
}
"""Functions of numbers, which are null where an argument is."""

WITH_BITS: dict[str, Callable[..., Any]] = {
    "pmod": _pmod,
    "try_add": _try(lambda a, b: a + b),
    "try_subtract": _try(lambda a, b: a - b),
    "try_multiply": _try(lambda a, b: a * b),
}
"""Functions that are also told how many bits the type of their first argument has."""

LAZY: dict[str, Callable[..., Any]] = {"nanvl": _nanvl}
"""Functions that see null arguments, or do not look at all of them."""
