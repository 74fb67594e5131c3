"""Calendar arithmetic: months, weekdays, times made of their parts, and differences in units.

Counts of days and months go through NumPy's calendar, which has no bounds here.  A result that a
DATE or TIMESTAMP cannot hold is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import QueryError, suggest
from penstock.expr.calendar import in_calendar
from penstock.expr.library.arrays import (
    each_distinct,
    made_null,
    null_mask,
    numbers,
    numpy_of,
    spread,
)
from penstock.expr.library.math import rounded
from penstock.expr.library.times import UNITS
from penstock.expr.signatures import (
    COUNT,
    DAY,
    DAY_OR_TIME,
    LONG,
    REAL,
    TEXT,
    TIME,
    TRUTH,
    function,
    takes,
)
from penstock.expr.types import BIGINT, DATE, DOUBLE, INT, STRING
from penstock.model import I64, TIMESTAMP

_DAY = 86_400_000_000
_LENGTHS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": _DAY,
    "dayofyear": _DAY,
    "week": 7 * _DAY,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
STEPS = (*_LENGTHS, *_MONTHS)
"""The units of timestampadd and timestampdiff."""


def _split(days: I64) -> tuple[Any, I64, I64]:
    """Return the months since 1970, the day in the month from 0, and the days after it in it."""
    months = days.view("M8[D]").astype("M8[M]")
    first = months.astype("M8[D]").astype(np.int64)
    after = (months + 1).astype("M8[D]").astype(np.int64) - 1 - days
    return months.astype(np.int64), days - first, after


def _joined(months: I64, day: I64) -> Any:
    """Return the days since 1970 of a day in a month, at most its last one."""
    found = months.view("M8[M]")
    first = found.astype("M8[D]").astype(np.int64)
    last = (found + 1).astype("M8[D]").astype(np.int64) - 1
    return np.minimum(first + day, last)


def _days(column: pa.Array) -> Any:
    return numpy_of(column.cast(INT)).astype(np.int64)


def _dates(days: I64, null: Any) -> pa.Array:
    """Return days as dates; a day that a DATE cannot hold is an error."""
    if ((np.abs(days + 0.5) > 2**31) & ~null).any():
        raise pa.ArrowInvalid("a day outside of DATE")
    return pa.array(np.where(null, 0, days).astype(np.int32), INT, mask=null).cast(DATE)


def _micros(column: pa.Array) -> Any:
    return numpy_of(column.cast(BIGINT))


def outside(days: I64, clock: I64) -> Any:
    """Whether a TIMESTAMP cannot hold a time, given by its day and the microseconds in it."""
    most = (2**63 - 1) // _DAY
    low = (days < -most - 1) | ((days == -most - 1) & (clock < (most + 1) * _DAY - 2**63))
    high = (days > most) | ((days == most) & (clock > 2**63 - 1 - most * _DAY))
    return low | high


def times_of(days: I64, clock: I64, null: Any) -> pa.Array:
    """Return times of some days; one that a TIMESTAMP cannot hold is an error."""
    if (outside(days, clock) & ~null).any():
        raise pa.ArrowInvalid("a time outside of TIMESTAMP")
    with np.errstate(over="ignore"):
        return pa.array(days * _DAY + clock, BIGINT, mask=null).cast(TIMESTAMP)


def _add_months(day: Any, count: Any) -> pa.Array:
    _, (day, count) = spread(day, count)
    months, place, _ = _split(_days(day))
    moved = _joined(months + numpy_of(count).astype(np.int64), place)
    return _dates(moved, null_mask(day, count))


def _months_between(one: Any, other: Any, rounding: Any = None) -> pa.Array:
    rounding = pa.scalar(True) if rounding is None else rounding
    _, (one, other, rounding) = spread(one, other, rounding)
    parts = []
    for column in (one, other):
        micros = _micros(column)
        months, place, after = _split(np.floor_divide(micros, _DAY))
        parts.append((months, place, after, np.mod(micros, _DAY) // 1_000_000))
    (months, day, after, clock), (months_2, day_2, after_2, clock_2) = parts
    whole = (months - months_2).astype(np.float64)
    seconds = (day - day_2) * 86_400 + clock - clock_2
    exact = whole + seconds / (31 * 86_400.0)
    near = np.floor(exact * 1e8)
    near = (near + (exact * 1e8 - near >= 0.5)) / 1e8
    chosen = np.where(rounding.fill_null(False).to_numpy(zero_copy_only=False), near, exact)
    same = (day == day_2) | ((after == 0) & (after_2 == 0))
    return numbers(np.where(same, whole, chosen), DOUBLE, null_mask(one, other, rounding))


_WEEKDAYS = ("THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY")
"""In the order in which the days since 1970-01-01 go through them."""


def _weekday(name: str) -> int:
    word = name.upper()
    for number, known in enumerate(_WEEKDAYS):
        if word in (known, known[:3], known[:2]):
            return number
    raise pa.ArrowInvalid(f"{name!r}, which is no day of the week")


def _next_day(day: Any, name: Any) -> pa.Array:
    """Names are read once per distinct one."""
    _, (day, name) = spread(day, name)
    wanted = each_distinct("next_day(d, name)", _weekday, INT, name)
    days = _days(day)
    moved = days + 1 + np.mod(numpy_of(wanted) - 1 - days, 7)
    return _dates(moved, null_mask(day, name))


def _trunc(day: Any, unit: str | None) -> Any:
    if unit is None:
        return pa.nulls(len(day), DATE)
    found = UNITS.get(unit.lower())
    if found not in ("year", "quarter", "month", "week"):
        known = [name for name, of in UNITS.items() if of in ("year", "quarter", "month", "week")]
        raise QueryError(f"the unit of trunc must be known, got '{unit}'; {suggest(unit, known)}")
    options = pc.RoundTemporalOptions(unit=found, week_starts_monday=True)
    return in_calendar(lambda d: pc.floor_temporal(d, options=options), moves=True)(day)


def calendar_days(year: Any, month: Any, day: Any) -> tuple[I64, Any]:
    """Return days since 1970, and whether there is such a day."""
    known = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = (year.astype(np.int64) - 1970) * 12 + np.where(known, month, 1) - 1
    wanted = np.where(known, day, 1).astype(np.int64) - 1
    days = _joined(months, wanted)
    first = months.view("M8[M]").astype("M8[D]").astype(np.int64)
    return days, known & (days == first + wanted) & (np.abs(days + 0.5) <= 2**31)


def _make_date(*parts: Any) -> pa.Array:
    _, columns = spread(*parts)
    null = null_mask(*columns)
    days, known = calendar_days(*map(numpy_of, columns))
    if (~known & ~null).any():
        raise pa.ArrowInvalid("a day that is not in the calendar")
    return _dates(days, null)


def _made(*parts: Any) -> tuple[I64, I64, Any, Any]:
    """Return the days and the clock of times made of their parts, where null, where known."""
    _, columns = spread(*parts)
    null = null_mask(*columns)
    year, month, day, hour, minute = map(numpy_of, columns[:5])
    days, known = calendar_days(year, month, day)
    seconds = numpy_of(rounded(columns[5], 6))
    known &= (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60)
    known &= (seconds >= 0) & (seconds <= 60)
    micros = np.rint(np.where(known, seconds, 0.0) * 1e6).astype(np.int64)
    clock = (hour.astype(np.int64) * 60 + minute) * 60_000_000 + micros
    return days + clock // _DAY, np.mod(clock, _DAY), null, known


def _make_timestamp(*parts: Any) -> pa.Array:
    days, clock, null, known = _made(*parts)
    if (~known & ~null).any():
        raise pa.ArrowInvalid("a time that is not in the calendar")
    return times_of(days, clock, null)


def _try_make_timestamp(*parts: Any) -> pa.Array:
    days, clock, null, known = _made(*parts)
    return times_of(days, clock, null | ~known | outside(days, clock))


def check_step(unit: str, known: tuple[str, ...] = STEPS) -> str:
    """Return the canonical name of a unit of timestampadd or timestampdiff."""
    word = unit.lower()
    if word not in known:
        raise QueryError(f"a unit of time must be known, got '{unit}'; {suggest(word, known)}")
    return word


def _rows(*values: Any) -> int:
    return next(len(v) for v in values if isinstance(v, pa.Array))


def _add(unit: str | None, count: Any, time: Any) -> pa.Array:
    if unit is None:
        return pa.nulls(_rows(count, time), TIMESTAMP)
    word = check_step(unit)
    if word in _LENGTHS:
        needed = made_null(count, pc.is_null(time)) if isinstance(time, pa.Array) else count
        micros = pc.multiply_checked(needed, pa.scalar(_LENGTHS[word], BIGINT))
        return pc.add_checked(time.cast(BIGINT), micros).cast(TIMESTAMP)
    _, (count, time) = spread(count, time)
    null = null_mask(count, time)
    steps = numpy_of(count)
    if ((np.abs(steps.astype(np.float64)) > 1e7) & ~null).any():  # more than TIMESTAMP has
        raise pa.ArrowInvalid("a time outside of TIMESTAMP")
    micros = _micros(time)
    months, place, _ = _split(np.floor_divide(micros, _DAY))
    moved = _joined(months + np.where(null, 0, steps) * _MONTHS[word], place)
    return times_of(moved, np.mod(micros, _DAY), null)


def _difference(unit: str | None, start: Any, end: Any) -> pa.Array:
    """Return whole units from the start to the end, cut towards zero."""
    if unit is None:
        return pa.nulls(_rows(start, end), BIGINT)
    word = check_step(unit, tuple(step for step in STEPS if step != "dayofyear"))
    _, (start, end) = spread(start, end)
    null = null_mask(start, end)
    first, last = _micros(start), _micros(end)
    if word in _LENGTHS:
        forward = last >= first
        with np.errstate(over="ignore"):
            size = np.where(forward, last - first, first - last).view(np.uint64)
        whole = size // np.uint64(_LENGTHS[word])
        if ((whole >= 2**63) & ~null).any():
            raise pa.ArrowInvalid("overflow")
        found = whole.astype(np.int64)
        return numbers(np.where(forward, found, -found), BIGINT, null)
    months, day, _ = _split(np.floor_divide(first, _DAY))
    months_2, day_2, _ = _split(np.floor_divide(last, _DAY))
    place = day * _DAY + np.mod(first, _DAY)
    place_2 = day_2 * _DAY + np.mod(last, _DAY)
    steps = months_2 - months
    steps -= (steps > 0) & (place_2 < place)
    steps += (steps < 0) & (place_2 > place)
    cut = np.sign(steps) * (np.abs(steps) // _MONTHS[word])
    return numbers(cut, BIGINT, null)


def _year_of_week(time: Any) -> pa.Array:
    """The year of the Thursday of the week."""
    null = null_mask(time)
    days = _days(time) if time.type == DATE else np.floor_divide(_micros(time), _DAY)
    thursday = days - np.mod(days + 3, 7) + 3
    years = thursday.view("M8[D]").astype("M8[Y]").astype(np.int64) + 1970
    return pa.array(years.astype(np.int32), INT, mask=null)


def _named(kernel: Callable[[Any], Any], names: str) -> Any:
    table = pa.array(names.split(), STRING)
    return in_calendar(lambda time: table.take(pc.cast(kernel(time), INT)))


_day_name = _named(
    lambda t: pc.day_of_week(t, count_from_zero=True, week_start=1), "Mon Tue Wed Thu Fri Sat Sun"
)
_month_name = _named(
    lambda t: pc.subtract(pc.month(t), 1), "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
)

_PARTS = takes(COUNT, COUNT, COUNT, COUNT, COUNT, REAL, gives=TIMESTAMP)
_DATE_RANGE = "the date must stay within the range of DATE; use CASE to leave such rows out"
_TIME_RANGE = "the time must stay within the range of TIMESTAMP; use CASE to leave such rows out"
_UNIT_WORDS = ", ".join(unit.upper() for unit in STEPS)

FUNCTIONS = (
    function(
        "add_months(d, n)",
        takes(DAY, COUNT, gives=DATE),
        _add_months,
        "The same day n months later, or the last one of that month if it has no such day.",
        total=False,
        advice=_DATE_RANGE,
    ),
    function(
        "months_between(later, earlier [, rounded])",
        takes(TIME, TIME, TRUTH, gives=DOUBLE, optional=1),
        _months_between,
        "Months from the second time to the first; what is no whole month counts in months of 31 "
        "days. It is rounded to 8 digits unless the third argument is FALSE.",
        spark=None,
    ),
    function(
        "next_day(d, name)",
        takes(DAY, TEXT, gives=DATE),
        _next_day,
        "The first day after a date with a name such as 'MO', 'Mon' or 'Monday'.",
        spark=None,
        total=False,
        advice="write 'MO', 'TU', 'WE', 'TH', 'FR', 'SA' or 'SU'",
    ),
    function(
        "trunc(d, unit)",
        takes(DAY, TEXT, gives=DATE),
        _trunc,
        "The first day of the year, quarter, month or week (Monday).",
        spark=None,
        constants=(1,),
        total=False,
        advice=_DATE_RANGE,
    ),
    function(
        "make_date(year, month, day)",
        takes(COUNT, COUNT, COUNT, gives=DATE),
        _make_date,
        "A date of its parts; there must be such a day.",
        total=False,
        advice="use CASE to leave such rows out",
    ),
    function(
        "make_timestamp(year, month, day, hour, minute, second)",
        _PARTS,
        _make_timestamp,
        "A time of its parts; seconds may have a fraction, 60 is the next minute.",
        "make_timestamp_ltz",
        "make_timestamp_ntz",
        spark=None,
        total=False,
        advice="use try_make_timestamp, which gives null",
    ),
    function(
        "try_make_timestamp(year, month, day, hour, minute, second)",
        _PARTS,
        _try_make_timestamp,
        "As make_timestamp; null where there is no such time.",
        "try_make_timestamp_ltz",
        "try_make_timestamp_ntz",
        spark=None,
    ),
    function(
        "timestampadd(unit, n, t)",
        takes(TEXT, LONG, TIME, gives=TIMESTAMP),
        _add,
        f"A later time by n units: {_UNIT_WORDS}. The unit is a bare word or a text. Also "
        "`dateadd(unit, n, t)`.",
        spark=None,
        constants=(0,),
        total=False,
        advice=_TIME_RANGE,
    ),
    function(
        "timestampdiff(unit, start, end)",
        takes(TEXT, TIME, TIME, gives=BIGINT),
        _difference,
        "Whole units from start to end, cut towards zero; units as for timestampadd. Also "
        "`datediff(unit, start, end)`.",
        spark=None,
        constants=(0,),
        total=False,
    ),
    function("dayname(t)", takes(DAY_OR_TIME, gives=STRING), _day_name, "'Mon' to 'Sun'."),
    function("monthname(t)", takes(DAY_OR_TIME, gives=STRING), _month_name, "'Jan' to 'Dec'."),
    function(
        "yearofweek(t)",
        takes(DAY_OR_TIME, gives=INT),
        _year_of_week,
        "Year of the week by ISO 8601, which may differ from the year around New Year.",
        spark=lambda f, t: f.extract(f.lit("YEAROFWEEK"), t),
    ),
)
