"""Times. A TIMESTAMP counts microseconds in UTC, a DATE days; both since 1970-01-01.

Division of counts is towards minus infinity, so that times before 1970 fall into the right second.
Spark's functions of dates do not notice an overflow; so it is asked to add the counts of days.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import QueryError, suggest
from penstock.expr.calendar import in_calendar, years
from penstock.expr.signatures import (
    COUNT,
    DAY,
    DAY_OR_TIME,
    LONG,
    TEXT,
    TIME,
    Function,
    Rule,
    takes,
)
from penstock.expr.types import BIGINT, DATE, INT
from penstock.model import TIMESTAMP

UNITS: dict[str, str] = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
"""The units of date_trunc, with Spark's other names for them."""


def _field(kernel: Any) -> Any:
    return lambda time: pc.cast(kernel(time), INT)


def _day_of_week(time: Any) -> Any:
    return pc.cast(pc.day_of_week(time, count_from_zero=False, week_start=7), INT)


def _weekday(time: Any) -> Any:
    return pc.cast(pc.day_of_week(time, count_from_zero=True, week_start=1), INT)


def check_unit(unit: str) -> str:
    """Return the canonical name of a unit of date_trunc."""
    found = UNITS.get(unit.lower())
    if found is None:
        raise QueryError(
            f"the unit of date_trunc must be known, got '{unit}'; {suggest(unit, UNITS)}"
        )
    return found


def _date_trunc(unit: str | None, time: Any) -> Any:
    if unit is None:
        return pa.nulls(len(time), TIMESTAMP)
    options = pc.RoundTemporalOptions(unit=check_unit(unit), week_starts_monday=True)
    return in_calendar(lambda t: pc.floor_temporal(t, options=options), moves=True)(time)


def _count(time: Any, per: int) -> Any:
    """Return the count in a larger unit, rounded towards minus infinity."""
    micros = time.cast(BIGINT)
    if per == 1:
        return micros
    null = pc.is_null(micros).to_numpy(zero_copy_only=False)
    whole = np.floor_divide(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), per)
    return pa.array(whole, BIGINT, mask=null)


def _from_count(count: Any, per: int) -> Any:
    return pc.multiply_checked(count, pa.scalar(per, BIGINT)).cast(TIMESTAMP)


def _time_add(time: Any, micros: Any) -> Any:
    return pc.add_checked(time.cast(BIGINT), micros).cast(TIMESTAMP)


def _time_diff(later: Any, earlier: Any) -> Any:
    return pc.subtract_checked(later.cast(BIGINT), earlier.cast(BIGINT))


def _date_add(day: Any, days: Any) -> Any:
    return pc.add_checked(day.cast(INT), days).cast(DATE)


def _date_sub(day: Any, days: Any) -> Any:
    return pc.subtract_checked(day.cast(INT), days).cast(DATE)


def _date_diff(later: Any, earlier: Any) -> Any:
    return pc.subtract_checked(later.cast(INT), earlier.cast(INT))


def _last_day_near(day: Any) -> Any:
    end = pc.ceil_temporal(day, unit="month", ceil_is_strictly_greater=True)
    return pc.subtract(end.cast(INT), pa.scalar(1, INT)).cast(DATE)


_last_day = in_calendar(_last_day_near, moves=True)


def _spark_last_day(f: Any, day: Any) -> Any:
    """Spark's own function leaves the range of DATE without a word; a sum of integers does not."""
    return f.date_from_unix_date(f.unix_date(day) + f.date_diff(f.last_day(day), day))


_PART = takes(DAY_OR_TIME, gives=INT)
_CLOCK_PART = takes(TIME, gives=INT)
_DAY_PART = takes(DAY, gives=INT)
_TO_COUNT = takes(TIME, gives=BIGINT)
_FROM_COUNT = takes(LONG, gives=TIMESTAMP)
_RANGE = "the time must stay within the range of TIMESTAMP; use CASE to leave such rows out"
_DATE_RANGE = "the date must stay within the range of DATE; use CASE to leave such rows out"


def _part(name: str, kernel: Any, doc: str, *aliases: str, rule: Rule = _PART) -> Function:
    """A calendar field; Spark's function has the same name."""
    return Function(
        name, f"{name}(t)", rule, kernel, lambda f, t: getattr(f, name)(t), doc, aliases
    )


FUNCTIONS = (
    _part("year", years, "Year."),
    _part("quarter", in_calendar(_field(pc.quarter)), "Quarter, 1 to 4."),
    _part("month", in_calendar(_field(pc.month)), "Month, 1 to 12."),
    _part("day", in_calendar(_field(pc.day)), "Day of the month, 1 to 31.", "dayofmonth"),
    _part("dayofyear", in_calendar(_field(pc.day_of_year)), "Day of the year, 1 to 366."),
    _part("dayofweek", _day_of_week, "Day of the week, Sunday = 1 to Saturday = 7."),
    _part("weekday", _weekday, "Day of the week, Monday = 0 to Sunday = 6."),
    _part(
        "weekofyear",
        in_calendar(_field(pc.iso_week)),
        "Week of the year by ISO 8601, 1 to 53.",
        "week",
    ),
    _part("hour", _field(pc.hour), "Hour, 0 to 23.", rule=_CLOCK_PART),
    _part("minute", _field(pc.minute), "Minute, 0 to 59.", rule=_CLOCK_PART),
    _part("second", _field(pc.second), "Second, 0 to 59.", rule=_CLOCK_PART),
    Function(
        "date_trunc",
        "date_trunc(unit, t)",
        takes(TEXT, TIME, gives=TIMESTAMP),
        _date_trunc,
        lambda f, unit, t: f.call_function("date_trunc", unit, t),
        "Start of the year, quarter, month, week (Monday), day, hour, minute, second, millisecond "
        "or microsecond.",
        constants=(0,),
    ),
    Function(
        "unix_seconds",
        "unix_seconds(t)",
        _TO_COUNT,
        lambda t: _count(t, 1_000_000),
        lambda f, t: f.unix_seconds(t),
        "Whole seconds since 1970.",
        ("unix_timestamp",),
    ),
    Function(
        "unix_millis",
        "unix_millis(t)",
        _TO_COUNT,
        lambda t: _count(t, 1_000),
        lambda f, t: f.unix_millis(t),
        "Whole milliseconds since 1970.",
    ),
    Function(
        "unix_micros",
        "unix_micros(t)",
        _TO_COUNT,
        lambda t: _count(t, 1),
        lambda f, t: f.unix_micros(t),
        "Microseconds since 1970.",
    ),
    Function(
        "timestamp_seconds",
        "timestamp_seconds(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1_000_000),
        lambda f, n: f.timestamp_seconds(n),
        "Time from seconds since 1970.",
        total=False,
        advice=_RANGE,
    ),
    Function(
        "timestamp_millis",
        "timestamp_millis(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1_000),
        lambda f, n: f.timestamp_millis(n),
        "Time from milliseconds since 1970.",
        total=False,
        advice=_RANGE,
    ),
    Function(
        "timestamp_micros",
        "timestamp_micros(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1),
        lambda f, n: f.timestamp_micros(n),
        "Time from microseconds since 1970.",
        total=False,
        advice=_RANGE,
    ),
    Function(
        "time_add",
        "time_add(t, microseconds), t + INTERVAL ..",
        takes(TIME, LONG, gives=TIMESTAMP),
        _time_add,
        lambda f, t, n: f.timestamp_micros(f.unix_micros(t) + n),
        "A later time; earlier if the number is negative.",
        total=False,
        advice=_RANGE,
    ),
    Function(
        "time_diff",
        "time_diff(later, earlier)",
        takes(TIME, TIME, gives=BIGINT),
        _time_diff,
        lambda f, a, b: f.unix_micros(a) - f.unix_micros(b),
        "Microseconds from the second time to the first.",
        total=False,
        advice=_RANGE,
    ),
    Function(
        "unix_date",
        "unix_date(d)",
        _DAY_PART,
        lambda d: d.cast(INT),
        lambda f, d: f.unix_date(d),
        "Days since 1970-01-01.",
    ),
    Function(
        "date_from_unix_date",
        "date_from_unix_date(n)",
        takes(COUNT, gives=DATE),
        lambda n: n.cast(DATE),
        lambda f, n: f.date_from_unix_date(n),
        "Date from days since 1970-01-01.",
    ),
    Function(
        "date_add",
        "date_add(d, days)",
        takes(DAY, COUNT, gives=DATE),
        _date_add,
        lambda f, d, n: f.date_from_unix_date(f.unix_date(d) + n),
        "A later date.",
        ("dateadd",),
        total=False,
        advice=_DATE_RANGE,
    ),
    Function(
        "date_sub",
        "date_sub(d, days)",
        takes(DAY, COUNT, gives=DATE),
        _date_sub,
        lambda f, d, n: f.date_from_unix_date(f.unix_date(d) - n),
        "An earlier date.",
        total=False,
        advice=_DATE_RANGE,
    ),
    Function(
        "date_diff",
        "date_diff(later, earlier)",
        takes(DAY, DAY, gives=INT),
        _date_diff,
        lambda f, a, b: f.unix_date(a) - f.unix_date(b),
        "Days from the second date to the first.",
        ("datediff",),
    ),
    Function(
        "last_day",
        "last_day(d)",
        takes(DAY, gives=DATE),
        _last_day,
        _spark_last_day,
        "The last day of the month.",
    ),
)
