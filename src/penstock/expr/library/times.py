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
    function,
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
_RANGE: dict[str, Any] = {
    "total": False,
    "advice": "the time must stay within the range of TIMESTAMP; use CASE to leave such rows out",
}
_DATE_RANGE: dict[str, Any] = {
    "total": False,
    "advice": "the date must stay within the range of DATE; use CASE to leave such rows out",
}


def _part(name: str, kernel: Any, doc: str, *aliases: str, rule: Rule = _PART) -> Function:
    """A calendar field."""
    return function(f"{name}(t)", rule, kernel, doc, *aliases)


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
    function(
        "date_trunc(unit, t)",
        takes(TEXT, TIME, gives=TIMESTAMP),
        _date_trunc,
        "Start of the year, quarter, month, week (Monday), day, hour, minute, second, millisecond "
        "or microsecond.",
        spark=lambda f, unit, t: f.call_function("date_trunc", unit, t),
        constants=(0,),
    ),
    function(
        "unix_seconds(t)",
        _TO_COUNT,
        lambda t: _count(t, 1_000_000),
        "Whole seconds since 1970.",
    ),
    function(
        "unix_millis(t)", _TO_COUNT, lambda t: _count(t, 1_000), "Whole milliseconds since 1970."
    ),
    function("unix_micros(t)", _TO_COUNT, lambda t: _count(t, 1), "Microseconds since 1970."),
    function(
        "timestamp_seconds(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1_000_000),
        "Time from seconds since 1970.",
        **_RANGE,
    ),
    function(
        "timestamp_millis(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1_000),
        "Time from milliseconds since 1970.",
        **_RANGE,
    ),
    function(
        "timestamp_micros(n)",
        _FROM_COUNT,
        lambda n: _from_count(n, 1),
        "Time from microseconds since 1970.",
        **_RANGE,
    ),
    function(
        "time_add(t, microseconds), t + INTERVAL ..",
        takes(TIME, LONG, gives=TIMESTAMP),
        lambda t, n: pc.add_checked(t.cast(BIGINT), n).cast(TIMESTAMP),
        "A later time; earlier if the number is negative.",
        spark=lambda f, t, n: f.timestamp_micros(f.unix_micros(t) + n),
        **_RANGE,
    ),
    function(
        "time_diff(later, earlier)",
        takes(TIME, TIME, gives=BIGINT),
        lambda a, b: pc.subtract_checked(a.cast(BIGINT), b.cast(BIGINT)),
        "Microseconds from the second time to the first.",
        spark=lambda f, a, b: f.unix_micros(a) - f.unix_micros(b),
        **_RANGE,
    ),
    function("unix_date(d)", _DAY_PART, lambda d: d.cast(INT), "Days since 1970-01-01."),
    function(
        "date_from_unix_date(n)",
        takes(COUNT, gives=DATE),
        lambda n: n.cast(DATE),
        "Date from days since 1970-01-01.",
    ),
    function(
        "date_add(d, days)",
        takes(DAY, COUNT, gives=DATE),
        lambda d, n: pc.add_checked(d.cast(INT), n).cast(DATE),
        "A later date.",
        spark=lambda f, d, n: f.date_from_unix_date(f.unix_date(d) + n),
        **_DATE_RANGE,
    ),
    function(
        "date_sub(d, days)",
        takes(DAY, COUNT, gives=DATE),
        lambda d, n: pc.subtract_checked(d.cast(INT), n).cast(DATE),
        "An earlier date.",
        spark=lambda f, d, n: f.date_from_unix_date(f.unix_date(d) - n),
        **_DATE_RANGE,
    ),
    function(
        "date_diff(later, earlier)",
        takes(DAY, DAY, gives=INT),
        lambda a, b: pc.subtract_checked(a.cast(INT), b.cast(INT)),
        "Days from the second date to the first.",
        spark=lambda f, a, b: f.unix_date(a) - f.unix_date(b),
    ),
    function(
        "last_day(d)",
        takes(DAY, gives=DATE),
        _last_day,
        "The last day of the month.",
        spark=_spark_last_day,
    ),
)
