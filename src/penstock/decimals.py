"""DECIMAL columns as integers, which count units of ``10**-scale``, and back.

A value has 128 bits: two *words*.  `integers` are ``int64`` where all values of a column fit into
it, which is the rule; otherwise they are Python's integers in an array of objects, slower and of
any size.  Arithmetic here widens before it could overflow, so it is exact, and the same code serves
both.  Rounding is half away from zero, as in Spark.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import Mask, to_mask

NARROW = 18
"""Digits that ``int64`` always holds: a DECIMAL with more is *wide*."""

WORDS = np.dtype([("low", "<u8"), ("high", "<i8")])
"""How Arrow keeps a DECIMAL."""

Integers: TypeAlias = npt.NDArray[Any]
Words: TypeAlias = npt.NDArray[Any]

_LIMIT = 2**63
_LOW = 2**64 - 1


def is_decimal(kind: pa.DataType) -> bool:
    """Whether a type is a DECIMAL."""
    return isinstance(kind, pa.Decimal128Type)


def is_wide(kind: pa.DataType) -> bool:
    """Whether a type is a DECIMAL whose values may not fit into ``int64``."""
    return isinstance(kind, pa.Decimal128Type) and kind.precision > NARROW


def words(column: pa.Array) -> Words:
    """Return the values of a column as words, 0 for null."""
    data = column.buffers()[1]
    if data is None or len(column) == 0:
        return np.zeros(len(column), WORDS)
    found = np.frombuffer(data, WORDS, len(column), column.offset * WORDS.itemsize)
    if column.null_count:
        found = found.copy()
        found[to_mask(column.is_null())] = 0
    return found


def of_words(values: Words, kind: pa.DataType, missing: Mask | None = None) -> pa.Array:
    """Return words as a column of a DECIMAL type, whose digits they have."""
    there = None
    if missing is not None and missing.any():
        there = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [there, pa.py_buffer(np.ascontiguousarray(values))]
    )


def in_words(values: Integers) -> Words:
    """Return integers, of 128 bits at most, as words."""
    found = np.empty(len(values), WORDS)
    if values.dtype == object:
        found["low"] = (values & _LOW).astype(np.uint64)
        found["high"] = (values >> 64).astype(np.int64)
    else:
        found["low"] = values.astype(np.int64).view(np.uint64)
        found["high"] = values >> 63
    return found


def of_words_integers(found: Words) -> Integers:
    """Return words as integers: ``int64`` if all of them fit."""
    low = np.ascontiguousarray(found["low"]).view(np.int64)
    if (found["high"] == low >> 63).all():
        return low
    wide: Integers = found["high"].astype(object) * 2**64 + found["low"].astype(object)
    return wide


def integers(column: pa.Array) -> Integers:
    """Return the values of a column as integers, 0 for null."""
    return of_words_integers(words(column))


def fitting(values: Integers, kind: pa.DataType) -> Mask:
    """Return which integers have no more digits than a DECIMAL type."""
    most = 10**kind.precision - 1
    if values.dtype != object and most >= _LIMIT:
        return np.ones(len(values), bool)
    return np.asarray((values <= most) & (values >= -most), bool)


def of_integers(values: Integers, kind: pa.DataType, missing: Mask | None = None) -> pa.Array:
    """Return integers as a column; one that has too many digits is an error, unless missing."""
    fits = fitting(values, kind)
    if not fits.all():
        wrong = ~fits if missing is None else ~fits & ~missing
        if wrong.any():
            raise pa.ArrowInvalid(f"{_shown(values[wrong][0], kind.scale)} has too many digits")
        values = np.where(fits, values, 0)
    return of_words(in_words(values), kind, missing)


def _shown(value: Any, scale: int) -> str:
    """Return a number of units as text."""
    digits = str(abs(int(value))).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if value < 0 else "") + whole + ("." + fraction if scale else "")


def largest(values: Integers | int) -> int:
    """Return the size of the largest integer."""
    if isinstance(values, int):
        return abs(values)
    if len(values) == 0:
        return 0
    return max(int(values.max()), -int(values.min()))


def _roomy(bound: int, *values: Any) -> Any:
    """Return integers in a form that holds numbers up to a bound."""
    if max(bound, *(abs(v) for v in values if isinstance(v, int)), 0) < _LIMIT:
        return list(values)
    return [v if isinstance(v, int) else v.astype(object) for v in values]


def plus(a: Integers, b: Integers) -> Integers:
    """Return the sum."""
    x, y = _roomy(largest(a) + largest(b), a, b)
    total: Integers = x + y
    return total


def times(a: Integers, b: Integers | int) -> Integers:
    """Return the product."""
    x, y = _roomy(largest(a) * largest(b), a, b)
    product: Integers = x * y
    return product


def divided(a: Integers, b: Integers | int) -> Integers:
    """Return the quotient, rounded half away from zero; the divisor is not 0."""
    a, b = _roomy(2 * (largest(a) + largest(b)), a, b)
    unit: Any = abs(b)
    size = (2 * np.abs(a) + unit) // (2 * unit)
    found: Integers = np.where((a < 0) != (b < 0), -size, size)
    return found


def half_even(a: Integers, unit: int) -> Integers:
    """Return the quotient by a positive integer, rounded half to even."""
    (a,) = _roomy(2 * (largest(a) + unit), a)
    size = np.abs(a)
    low, rest = size // unit, size % unit
    up = (2 * rest > unit) | ((2 * rest == unit) & (low % 2 == 1))
    low = low + up.astype(np.int64)
    found: Integers = np.where(a < 0, -low, low)
    return found


def cut(a: Integers, b: Integers | int) -> Integers:
    """Return the quotient, cut towards zero; the divisor is not 0."""
    a, b = _roomy(max(largest(a), largest(b)), a, b)
    size = np.abs(a) // abs(b)
    found: Integers = np.where((a < 0) != (b < 0), -size, size)
    return found


def rest(a: Integers, b: Integers) -> Integers:
    """Return what is left by `cut`; it has the sign of the dividend."""
    a, b = _roomy(max(largest(a), largest(b)), a, b)
    left = np.abs(a) % np.abs(b)
    found: Integers = np.where(a < 0, -left, left)
    return found


def shifted(values: Integers, places: int) -> Integers:
    """Return the integers with so many digits more behind the point, or less: then rounded."""
    if places >= 0:
        return times(values, 10**places) if places else values
    return divided(values, 10**-places)


def to_doubles(values: Integers, scale: int) -> npt.NDArray[np.float64]:
    """Return the nearest DOUBLE of each number of units."""
    if values.dtype != object and scale <= 22 and largest(values) <= 2**53:
        return np.asarray(values / 10.0**scale)  # both are exact, so it is rounded once
    unit = 10**scale
    return np.array([int(v) / unit for v in values], np.float64)
