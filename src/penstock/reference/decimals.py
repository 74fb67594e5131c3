"""The oracle's DECIMALs: exact fractions, rounded once at the end, half away from zero.

Python's own arithmetic of `Decimal` rounds to the digits of a context, so values become fractions
before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.reference.values import fit, is_decimal

SPARKS_SCALE = 39
"""Digits behind the point of a quotient before it is rounded to its scale."""


def of_text(text: str) -> Fraction:
    """Return the number that a text says; far too large or too small ones are cut off."""
    number = Decimal(text)
    if number and number.adjusted() > 100:
        raise DataError(f"a number must have at most 38 digits, got {text}")
    return Fraction(0) if number.adjusted() < -100 else Fraction(number)


def plain(value: Any) -> Any:
    """Return a DECIMAL as a fraction, other values as they are."""
    return Fraction(value) if isinstance(value, Decimal) else value


def rounded(value: Fraction, digits: int, even: bool) -> Fraction:
    """Round at a decimal digit: a half away from zero, or to the even neighbour."""
    if even:
        return Fraction(round(value * Fraction(10) ** digits)) / Fraction(10) ** digits
    size = math.floor(abs(value) * Fraction(10) ** digits + Fraction(1, 2))
    return (-size if value < 0 else size) / Fraction(10) ** digits


def _round(even: bool) -> Callable[..., Fraction]:
    return lambda value, digits=0: rounded(value, digits, even)


def _positive_rest(a: Fraction, b: Fraction) -> Fraction:
    if b == 0:
        raise DataError("division by zero")
    rest = _rest(a, b)
    return _rest(rest + b, b) if rest < 0 < b else rest


def _rest(a: Fraction, b: Fraction) -> Fraction:
    return a - b * math.trunc(a / b)


INSTEAD: dict[str, Callable[..., Any]] = {
    "round": _round(False),
    "bround": _round(True),
    "pmod": _positive_rest,
    "try_add": lambda a, b: a + b,
    "try_subtract": lambda a, b: a - b,
    "try_multiply": lambda a, b: a * b,
}
"""Functions that mean something else of DECIMALs than of other numbers."""


def call(
    function: Callable[..., Any], name: str, values: Sequence[Any], result: pa.DataType
) -> Any:
    """Return a function of values among which are DECIMALs, as its type holds it."""
    found = INSTEAD.get(name, function)(*map(plain, values))
    if name in ("divide", "try_divide") and found is not None and is_decimal(result):
        found = rounded(found, SPARKS_SCALE, False)
    try:
        return fit(found, result)
    except DataError:
        if name.startswith("try_"):
            return None
        raise
