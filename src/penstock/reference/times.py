"""The oracle's calendar: days and microseconds since 1970 as years, months, weeks and clock times.

The calendar repeats every 400 years, which are whole weeks.  So a day of any year is looked up in
the years 1 to 400 and moved by whole cycles; Python's own dates end with the year 9999.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date
from typing import Any, NamedTuple

from penstock.errors import InternalError

SECOND = 1_000_000
DAY = 86_400 * SECOND
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
EPOCH = date(1970, 1, 1).toordinal()


class Moment(NamedTuple):
    """A day count in the calendar: its twin of the years 1 to 400, and the years between them."""

    twin: date
    years: int

    @property
    def year(self) -> int:
        """The year; 0 is the one before the year 1."""
        return self.twin.year + self.years


def day_of(days: int) -> Moment:
    """Return the calendar day of a count of days since 1970-01-01."""
    cycles, rest = divmod(days + EPOCH - 1, CYCLE_DAYS)
    return Moment(date.fromordinal(rest + 1), cycles * CYCLE_YEARS)


def days_until(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to a calendar day; one that does not exist is an error."""
    cycles, rest = divmod(year - 1, CYCLE_YEARS)
    return date(rest + 1, month, day).toordinal() - EPOCH + cycles * CYCLE_DAYS


def date_text(days: int) -> str:
    """Return a date as it is written; a year beyond 9999 has a sign."""
    found = day_of(days)
    sign = "-" if found.year < 0 else "+" if found.year > 9999 else ""
    return f"{sign}{abs(found.year):04}-{found.twin.month:02}-{found.twin.day:02}"


def time_text(micros: int) -> str:
    """Return a time as it is written, its fraction without zeros at the end."""
    seconds, fraction = divmod(micros % DAY, SECOND)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{date_text(micros // DAY)} {clock}.{fraction:06}".rstrip("0").rstrip(".")


OF_DAY: dict[str, Callable[[int], int]] = {
    "year": lambda d: day_of(d).year,
    "quarter": lambda d: (day_of(d).twin.month + 2) // 3,
    "month": lambda d: day_of(d).twin.month,
    "day": lambda d: day_of(d).twin.day,
    "dayofyear": lambda d: day_of(d).twin.timetuple().tm_yday,
    "dayofweek": lambda d: day_of(d).twin.isoweekday() % 7 + 1,
    "weekday": lambda d: day_of(d).twin.weekday(),
    "weekofyear": lambda d: day_of(d).twin.isocalendar().week,
}
"""Parts of a calendar day, from its count of days; they are asked of a DATE and of a TIMESTAMP."""

_CLOCK = {
    "hour": 3600 * SECOND,
    "minute": 60 * SECOND,
    "second": SECOND,
    "millisecond": 1000,
    "microsecond": 1,
}
_OTHER_NAMES = {"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day"}


def _truncate(unit: str, micros: int) -> int:
    """Return the start of the unit of time that holds an instant."""
    unit = _OTHER_NAMES.get(unit.lower(), unit.lower())
    if unit in _CLOCK:
        return micros - micros % _CLOCK[unit]
    days = micros // DAY
    found = day_of(days)
    month = found.twin.month
    match unit:
        case "day":
            return days * DAY
        case "week":
            return (days - found.twin.weekday()) * DAY
        case "month":
            return days_until(found.year, month, 1) * DAY
        case "quarter":
            return days_until(found.year, month - (month - 1) % 3, 1) * DAY
        case "year":
            return days_until(found.year, 1, 1) * DAY
    raise InternalError(f"the reference does not know the unit '{unit}'")


def _last_day(days: int) -> int:
    found = day_of(days)
    next_month = found.year * 12 + found.twin.month
    return days_until(next_month // 12, next_month % 12 + 1, 1) - 1


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "hour": lambda t: t // _CLOCK["hour"] % 24,
    "minute": lambda t: t // _CLOCK["minute"] % 60,
    "second": lambda t: t // SECOND % 60,
    "date_trunc": _truncate,
    "unix_seconds": lambda t: t // SECOND,
    "unix_millis": lambda t: t // 1000,
    "unix_micros": lambda t: t,
    "timestamp_seconds": lambda n: n * SECOND,
    "timestamp_millis": lambda n: n * 1000,
    "timestamp_micros": lambda n: n,
    "time_add": operator.add,
    "time_diff": operator.sub,
    "unix_date": lambda d: d,
    "date_from_unix_date": lambda n: n,
    "date_add": operator.add,
    "date_sub": operator.sub,
    "date_diff": operator.sub,
    "last_day": _last_day,
}
"""Functions of times, which are null where an argument is."""
