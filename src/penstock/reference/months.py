"""The oracle's calendar arithmetic: months, weekdays, times of parts, differences in units."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from penstock.errors import DataError
from penstock.reference.times import DAY, SECOND, day_of, days_until

_MICROS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": DAY,
    "dayofyear": DAY,
    "week": 7 * DAY,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}


def _length(year: int, month: int) -> int:
    """Return the number of days of a month."""
    following = days_until(year + month // 12, month % 12 + 1, 1)
    return following - days_until(year, month, 1)


def add_months(days: int, count: int) -> int:
    """Return the same day in another month, or its last one."""
    found = day_of(days)
    year, month = divmod(found.year * 12 + found.twin.month - 1 + count, 12)
    return days_until(year, month + 1, min(found.twin.day, _length(year, month + 1)))


def _months_between(one: int, other: int, rounding: bool = True) -> float:
    a, b = day_of(one // DAY), day_of(other // DAY)
    whole = (a.year - b.year) * 12 + a.twin.month - b.twin.month
    ends = [f.twin.day == _length(f.year, f.twin.month) for f in (a, b)]
    if a.twin.day == b.twin.day or all(ends):
        return float(whole)
    clocks = [t % DAY // SECOND for t in (one, other)]
    seconds = (a.twin.day - b.twin.day) * 86_400 + clocks[0] - clocks[1]
    found = whole + seconds / (31 * 86_400)
    return math.floor(Fraction(found * 1e8) + Fraction(1, 2)) / 1e8 if rounding else found


_NAMES = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def _next_day(days: int, name: str) -> int:
    wanted = [n for n, known in enumerate(_NAMES) if name.lower() in (known, known[:3], known[:2])]
    if not wanted:
        raise DataError(f"a day of the week must be known, got {name!r}")
    return next(d for d in range(days + 1, days + 8) if day_of(d).twin.weekday() == wanted[0])


def _trunc(days: int, unit: str) -> int:
    found = day_of(days)
    month = found.twin.month
    match unit.lower():
        case "year" | "yyyy" | "yy":
            return days_until(found.year, 1, 1)
        case "quarter":
            return days_until(found.year, (month - 1) // 3 * 3 + 1, 1)
        case "month" | "mon" | "mm":
            return days_until(found.year, month, 1)
    return days - found.twin.weekday()


def make_date(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a date, which must be in the calendar."""
    if not 1 <= month <= 12 or not 1 <= day <= _length(year, month):
        raise DataError(f"a date must be in the calendar, got {year}-{month}-{day}")
    return days_until(year, month, day)


def _make_time(*parts: Any) -> int:
    year, month, day, hour, minute = map(int, parts[:5])
    second = float(parts[5])
    if not (0 <= hour < 24 and 0 <= minute < 60 and math.isfinite(second)):
        raise DataError(f"a time must be on the clock, got {parts}")
    micros = math.floor(abs(Fraction(repr(second))) * SECOND + Fraction(1, 2))
    if micros > 60 * SECOND or (second < 0 and micros):
        raise DataError(f"seconds must be from 0 to 60, got {second}")
    days = make_date(year, month, day)
    if not -(2**31) <= days < 2**31:
        raise DataError(f"a date must be in the range of DATE, got {parts}")
    return days * DAY + (hour * 60 + minute) * 60 * SECOND + micros


def _try_make_time(*parts: Any) -> int | None:
    try:
        found = _make_time(*parts)
    except DataError:
        return None
    return found if -(2**63) <= found < 2**63 else None


def _add(unit: str, count: int, micros: int) -> int:
    unit = unit.lower()
    if unit in _MICROS:
        if not -(2**63) <= count * _MICROS[unit] < 2**63:
            raise DataError(f"a duration must fit BIGINT, got {count} {unit}")
        return micros + count * _MICROS[unit]
    if abs(count) > 10**7:
        raise DataError(f"a time must be in the range of TIMESTAMP, got {count} {unit}")
    return add_months(micros // DAY, count * _MONTHS[unit]) * DAY + micros % DAY


def _difference(unit: str, start: int, end: int) -> int:
    """Whole units, cut towards zero: those between the earlier and the later time."""
    if start > end:
        return -_difference(unit, end, start)
    unit = unit.lower()
    if unit in _MICROS:
        return (end - start) // _MICROS[unit]
    a, b = day_of(start // DAY), day_of(end // DAY)
    months = (b.year - a.year) * 12 + b.twin.month - a.twin.month
    behind = (b.twin.day, end % DAY) < (a.twin.day, start % DAY)
    return (months - behind) // _MONTHS[unit]


def _year_of_week(days: int) -> int:
    """The year of the Thursday of the week, which is what ISO 8601 says."""
    return day_of(days - day_of(days).twin.weekday() + 3).year


OF_DAY: dict[str, Callable[[int], Any]] = {
    "dayname": lambda d: _NAMES[day_of(d).twin.weekday()][:3].title(),
    "monthname": lambda d: "JanFebMarAprMayJunJulAugSepOctNovDec"[
        day_of(d).twin.month * 3 - 3 : day_of(d).twin.month * 3
    ],
    "yearofweek": _year_of_week,
}
"""Parts of a calendar day, from its count of days; they are asked of a DATE and of a TIMESTAMP."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add_months": add_months,
    "months_between": _months_between,
    "next_day": _next_day,
    "trunc": _trunc,
    "make_date": make_date,
    "make_timestamp": _make_time,
    "try_make_timestamp": _try_make_time,
    "timestampadd": _add,
    "timestampdiff": _difference,
}
"""Functions of times, which are null where an argument is."""
