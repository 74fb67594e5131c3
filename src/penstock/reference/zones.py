"""The oracle's time zones: one time after the other, by Python's own `zoneinfo` and `datetime`.

These end with the year 9999, and a zone's rule repeats with the calendar, every 400 years; what was
before the year 2 has the offset of that year.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.errors import DataError
from penstock.reference.times import CYCLE_DAYS, DAY, SECOND

_START = datetime(1970, 1, 1)
_CYCLE = CYCLE_DAYS * DAY
_FIRST = -1968 * 365 * DAY
_LAST = 7900 * 365 * DAY


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = re.match(
        "^(UTC|GMT|UT|)(?P<sign>[+-])(?P<hour>[0-9][0-9]?)(:?(?P<minute>[0-9]{2}))?$", name
    )
    if found and not name.endswith("\n"):
        hours, minutes = int(found["hour"]), int(found["minute"] or "0")
        size = timedelta(hours=hours, minutes=minutes)
        if minutes < 60 and size <= timedelta(hours=18):
            return timezone(-size if found["sign"] == "-" else size)
    if "/" in name:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise DataError(f"a time zone must be known, got {name!r}")


def _near(micros: int) -> datetime:
    """Return a time of the years 2 to 9999 at which clocks are as at another one."""
    if micros > _LAST:
        micros = _LAST - _CYCLE + (micros - _LAST) % _CYCLE
    return _START + timedelta(microseconds=max(micros, _FIRST))


def _size(offset: timedelta | None) -> int:
    assert offset is not None
    return (offset.days * 86_400 + offset.seconds) * SECOND


def _checked(micros: int) -> int:
    if not -(2**63) <= micros < 2**63:
        raise DataError("a time must be in the range of TIMESTAMP")
    return micros


def from_utc(micros: int, name: str) -> int:
    """Return what clocks show at an instant."""
    there = _near(micros).replace(tzinfo=UTC).astimezone(_zone(name))
    return _checked(micros + _size(there.utcoffset()))


def to_utc(micros: int, name: str) -> int:
    """Return the first instant at which clocks show a time, or would have without a change."""
    there = _near(micros).replace(tzinfo=_zone(name), fold=0)
    return _checked(micros - _size(there.utcoffset()))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "from_utc_timestamp": from_utc,
    "to_utc_timestamp": to_utc,
}
"""Functions of time zones, which are null where an argument is."""
