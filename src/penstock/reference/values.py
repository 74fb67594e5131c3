"""The oracle's values: how they compare, and what a type can hold.

A value is None, a bool, an int, a float, a Decimal, a str or bytes; timestamps and dates are
integer counts.  An ARRAY is the tuple of its elements, a STRUCT that of its fields, a MAP that of
its (key, value).
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from penstock.errors import DataError

NAN = math.nan
"""The one NaN. Tuples that hold this very object are equal and hash alike."""


def canonical(value: Any) -> Any:
    """Return the value with any NaN replaced by the one."""
    if isinstance(value, tuple):
        return tuple(map(canonical, value))
    return NAN if isinstance(value, float) and math.isnan(value) else value


def compare(a: Any, b: Any) -> int:
    """Return -1, 0 or 1: null is least, NaN is the greatest number and equal to itself."""
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if isinstance(a, tuple):
        found = (compare(x, y) for x, y in zip(a, b, strict=False))
        return next((c for c in found if c), (len(a) > len(b)) - (len(a) < len(b)))
    a_nan, b_nan = (isinstance(x, float) and math.isnan(x) for x in (a, b))
    if a_nan or b_nan:
        return a_nan - b_nan
    return int(a > b) - int(a < b)


def fit(value: Any, to: pa.DataType) -> Any:
    """Return a value as its type holds it; a count that is out of range is an error."""
    if value is None:
        return None
    if is_decimal(to):
        return _fitted(value, to)
    if pa.types.is_integer(to) or pa.types.is_temporal(to):
        if not -(2 ** (to.bit_width - 1)) <= value < 2 ** (to.bit_width - 1):
            raise DataError(f"a value of type {to} must fit it, got {value}")
        return int(value)
    if pa.types.is_floating(to):
        return single(value) if to == pa.float32() else double(value)
    return value


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a DECIMAL."""
    return isinstance(kind, pa.Decimal128Type)


def _fitted(value: Any, to: pa.DataType) -> Decimal:
    """Return a number as a DECIMAL holds it; too many digits before the point are an error."""
    units = _units(Fraction(value), to.scale)
    if abs(units) >= 10**to.precision:
        raise DataError(f"a value must fit DECIMAL({to.precision}, {to.scale}), got {value}")
    return of_units(units, to.scale)


def of_units(units: int, scale: int) -> Decimal:
    """Return so many units of ``10**-scale``."""
    digits = tuple(map(int, str(abs(units))))
    return Decimal((int(units < 0), digits, -scale))


def _units(value: Fraction, scale: int) -> int:
    size: int = math.floor(abs(value) * Fraction(10) ** scale + Fraction(1, 2))
    return -size if value < 0 else size


def double(value: Any) -> float:
    """Return the DOUBLE nearest to a number; beyond the largest one that is an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def single(value: Any) -> float:
    """Return the FLOAT nearest to a number; ties go to the even one, what is too large to infinity.

    An integer is rounded once, not first to a DOUBLE.
    """
    if isinstance(value, int):
        size = abs(value)
        unit = 1 << max(size.bit_length() - 24, 0)
        whole, rest = divmod(size, unit)
        whole += rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1)
        value = math.copysign(whole * unit, value)
    try:
        found: float = struct.unpack("f", struct.pack("f", double(value)))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return found
