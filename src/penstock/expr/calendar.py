"""Arrow's calendar for every year that a TIMESTAMP or a DATE can have.

Arrow is silently wrong beyond the years -32,767 to 32,767, and writes a year beyond 9999 without
the sign that it has in ISO 8601.  The calendar repeats every 400 years, which are whole weeks.  So
columns with such times are moved by whole cycles to the years 1570 to 2370, computed there, and
moved back; all others are left to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.types import BIGINT, DATE, INT, STRING
from penstock.model import I64, TIMESTAMP

_YEARS = 400
_CYCLE = 146_097
"""The days of so many years."""
_DAY = 86_400_000_000
_ARROW = (-10_000_000, 10_000_000)
"""Days since 1970 that Arrow computes with."""
_PLAIN = (-719_528, 2_932_897)
"""Days of the years 0 to 9999, which are written with four digits."""


def in_calendar(kernel: Callable[[Any], Any], moves: bool = False) -> Callable[[Any], pa.Array]:
    """Lift a kernel of a TIMESTAMP or DATE to all years; ``moves``: it gives a time of that type.

    A time that is out of range then is an error of Arrow.
    """

    def apply(time: pa.Array) -> pa.Array:
        if _within(time, _ARROW):
            return kernel(time)
        near, cycles = _moved(time)
        found = kernel(near)
        if not moves:
            return found
        count = INT if time.type == DATE else BIGINT
        away = pa.array(cycles * _length(time.type), count)
        return pc.add_checked(found.cast(count), away).cast(time.type)

    return apply


def years(time: pa.Array) -> pa.Array:
    """Return the years, as INT."""
    if _within(time, _ARROW):
        return pc.cast(pc.year(time), INT)
    near, cycles = _moved(time)
    return pc.cast(pc.add(pc.year(near), pa.array(cycles * _YEARS)), INT)


def written(time: pa.Array) -> pa.Array:
    """Return times as text, fractions of seconds without zeros at the end."""
    if _within(time, _PLAIN):
        text = pc.cast(time, STRING)
    else:
        near, _ = _moved(time)
        numbers = years(time).dictionary_encode()
        names = pa.array([_year_text(year) for year in numbers.dictionary.to_pylist()], STRING)
        rest = pc.utf8_slice_codeunits(pc.cast(near, STRING), 4)
        text = pc.binary_join_element_wise(names.take(numbers.indices), rest, "")
    return text if time.type == DATE else pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")


def _year_text(year: int) -> str:
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}"


def _length(type_: pa.DataType) -> int:
    """Return the length of a cycle in the unit of a type."""
    return _CYCLE * _DAY if type_ == TIMESTAMP else _CYCLE


def _within(time: pa.Array, days: tuple[int, int]) -> bool:
    """Whether all times are at or after the first day and before the second."""
    unit = _DAY if time.type == TIMESTAMP else 1
    bounds = pc.min_max(time.cast(BIGINT if time.type == TIMESTAMP else INT))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is None or (days[0] * unit <= low and high < days[1] * unit)


def _moved(time: pa.Array) -> tuple[pa.Array, I64]:
    """Return times of the years 1570 to 2370, and the cycles between them and the given ones."""
    counts = time.cast(BIGINT if time.type == TIMESTAMP else INT)
    null = pc.is_null(counts).to_numpy(zero_copy_only=False)
    numbers = pc.fill_null(counts, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    length = _length(time.type)
    rest = np.fmod(numbers, length)
    near = pa.array(rest, BIGINT, mask=null).cast(counts.type).cast(time.type)
    return near, (numbers - rest) // length
