"""Times written and read by a format of letters, as Spark's date_format and to_timestamp have it.

A format is a constant.  It is read once into pieces; each piece is a column of text to write, or a
group of one regular expression to read, so that whole columns are worked on at once.

| letter | means | written as |
|---|---|---|
| y | year | y 2024, yy 24, yyyy 2024 |
| M, L | month | M 2, MM 02, MMM Feb, MMMM February |
| d, D | day of the month, of the year | d 9, dd 09, DDD 040 |
| Q, q, E | quarter, weekday; only written | Q 1, E Fri, EEEE Friday |
| H, k, K, h | hour from 0 to 23, 1 to 24, 0 to 11, 1 to 12 | HH 15 |
| a | half of the day | PM |
| m, s, S | minute, second, digits of its fraction | mm 04, SSS 123 |
| X, x | offset from UTC | XXX Z, xxx +00:00 |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.calendar import in_calendar, years
from penstock.expr.library.arrays import (
    each_distinct,
    null_mask,
    numpy_of,
    on_distinct,
    put_back,
)
from penstock.expr.library.months import calendar_days, outside, times_of
from penstock.expr.library.strings import concat
from penstock.expr.signatures import TEXT, TIME, called, function, takes
from penstock.expr.types import BIGINT, INT, STRING
from penstock.model import TIMESTAMP

Pieces: TypeAlias = tuple[tuple[str, int], ...]
"""Letters with how often each stands there; plain text with 0."""

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_DAY = 86_400_000_000
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MOST = {"y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "Q": 2, "q": 2, "E": 4, "a": 1, "S": 6}
_MOST |= {**dict.fromkeys("HkKhms", 2), "X": 3, "x": 3}


@lru_cache(256)
def pieces_of(format_: str) -> Pieces:
    """Read a format; a letter that is not known, or too often there, is an error."""
    found: list[tuple[str, int]] = []
    for part in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", format_, re.DOTALL):
        text, letter = part[0], part[2]
        if letter:
            if letter not in _MOST or len(text) > _MOST[letter]:
                known = "".join(_MOST)
                raise DataError(
                    f"a format must be made of the letters {known} and of text in single quotes, "
                    f"got {text!r} in {format_!r}"
                )
            found.append((letter, len(text)))
        elif text in "[]{}#'":
            raise DataError(f"a format must not have {text!r} outside of quotes, got {format_!r}")
        else:
            quoted = part[1]
            plain = text if quoted is None else quoted.replace("''", "'") or "'"
            found.append((plain, 0))
    return tuple(found)


# Writing


def _number(kernel: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    def write(time: Any, width: int) -> Any:
        text = pc.cast(pc.cast(in_calendar(kernel)(time), INT), STRING)
        return pc.utf8_lpad(text, width, "0")

    return write


def _name(kernel: Callable[[Any], Any], names: list[str]) -> Callable[[Any, int], Any]:
    def write(time: Any, width: int) -> Any:
        known = pa.array([name if width == 4 else name[:3] for name in names], STRING)
        return known.take(pc.cast(in_calendar(kernel)(time), INT))

    return write


def _hours(change: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    """Hours by another count; ``change`` is given those from 0 to 23."""
    written = pa.array([str(change(hour)) for hour in range(24)], STRING)

    def write(time: Any, width: int) -> Any:
        return pc.utf8_lpad(written.take(pc.cast(pc.hour(time), INT)), width, "0")

    return write


def _year(time: Any, width: int) -> Any:
    """Written once per distinct year."""

    def written(year: int) -> str:
        if width == 2:
            return f"{abs(year) % 100:02}"
        digits = f"{abs(year):0{width}}"
        plus = "+" if width >= 4 and len(digits) > width else ""
        return ("-" if year < 0 else plus) + digits

    return each_distinct("date_format(t, format)", written, STRING, years(time))


def _month(time: Any, width: int) -> Any:
    if width > 2:
        return _name(lambda t: pc.subtract(pc.month(t), 1), _MONTHS)(time, width)
    return _number(pc.month)(time, width)


def _fraction(time: Any, width: int) -> Any:
    micros = pc.add(pc.multiply(pc.millisecond(time), 1000), pc.microsecond(time))
    return pc.utf8_slice_codeunits(pc.utf8_lpad(pc.cast(micros, STRING), 6, "0"), 0, width)


def _half(time: Any, width: int) -> Any:
    return pc.if_else(pc.less(pc.hour(time), 12), "AM", "PM")


_WRITERS: dict[str, Callable[[Any, int], Any]] = {
    "y": _year,
    "M": _month,
    "L": _month,
    "d": _number(pc.day),
    "D": _number(pc.day_of_year),
    "Q": _number(pc.quarter),
    "q": _number(pc.quarter),
    "E": _name(lambda t: pc.day_of_week(t, count_from_zero=True, week_start=1), _DAYS),
    "a": _half,
    "H": _number(pc.hour),
    "k": _hours(lambda hour: hour or 24),
    "K": _hours(lambda hour: hour % 12),
    "h": _hours(lambda hour: hour % 12 or 12),
    "m": _number(pc.minute),
    "s": _number(pc.second),
    "S": _fraction,
    "X": lambda time, width: pa.scalar("Z", STRING),
    "x": lambda time, width: pa.scalar(("+00", "+0000", "+00:00")[width - 1], STRING),
}


_STEPS = {"S": 1, "s": 1_000_000, "m": 60_000_000, **dict.fromkeys("HkKha", 3_600_000_000)}


def _date_format(time: Any, format_: str | None) -> Any:
    """Times are cut to what the format shows, so that each distinct one is written once."""
    if format_ is None:
        return pa.nulls(len(time), STRING)
    step = min(
        (_STEPS.get(text, _DAY) for text, width in pieces_of(format_) if width), default=_DAY
    )
    if step == 1 or len(time) < 1024:
        return _written(time, format_)
    micros = time.cast(BIGINT)
    cut = np.floor_divide(numpy_of(micros), step)
    encoded = pa.array(cut, BIGINT, mask=null_mask(time)).dictionary_encode()
    first = np.maximum(encoded.dictionary.to_numpy(), -(2**63) // step + 1) * step
    lowest = encoded.dictionary.to_numpy() * 1.0 * step < -(2.0**63)
    distinct = pa.array(np.where(lowest, -(2**63), first), BIGINT).cast(TIMESTAMP)
    return put_back("date_format(t, format)", _written(distinct, format_), encoded.indices)


def _written(time: Any, format_: str) -> Any:
    columns = [
        _WRITERS[text](time, width) if width else pa.scalar(text, STRING)
        for text, width in pieces_of(format_)
    ]
    empty = pc.if_else(pc.is_valid(time), "", pa.scalar(None, STRING))
    return concat(empty, *columns)


# Reading

_ZONES = {
    ("X", 1): "Z|[+-][0-9]{2}(?:[0-9]{2})?",
    ("X", 2): "Z|[+-][0-9]{4}",
    ("X", 3): "Z|[+-][0-9]{2}:[0-9]{2}",
    ("x", 1): "[+-][0-9]{2}(?:[0-9]{2})?",
    ("x", 2): "[+-][0-9]{4}",
    ("x", 3): "[+-][0-9]{2}:[0-9]{2}",
}
_YEARS = {1: "-?[0-9]{1,9}", 2: "[0-9]{2}", 4: "-?[0-9]{4}|\\+[0-9]{5,9}"}
_HOURS = ("H", "k", "K", "h")


def _group(letter: str, width: int, format_: str) -> str:
    """Return the expression that reads a piece."""
    if letter == "y" and width in _YEARS:
        return _YEARS[width]
    if letter in "ML" and width > 2:
        names = [name if width == 4 else name[:3] for name in _MONTHS]
        return f"(?i:{'|'.join(names)})"
    if letter in "MLdHkKhms":
        return "[0-9]{1,18}" if width == 1 else "[0-9]{2}"
    if letter == "a":
        return "(?i:AM|PM)"
    if letter == "S":
        return f"[0-9]{{1,{width}}}"
    if (letter, width) in _ZONES:
        return _ZONES[letter, width]
    raise DataError(
        f"a format to read times must be made of y, yy, yyyy, M to MMMM, d, H, h, a, m, s, S and "
        f"X, got {letter * width!r} in {format_!r}"
    )


@lru_cache(256)
def _reader(format_: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the regular expression of a format, and its pieces in the order of the groups."""
    expression, groups = [], []
    for text, width in pieces_of(format_):
        if not width:
            expression.append(f"(?i:{re.escape(text) if text.isascii() else text})")
            continue
        groups.append(("M" if text == "L" else text, width))
        expression.append(f"(?P<g{len(groups) - 1}>{_group(text, width, format_)})")
    letters = [letter for letter, _ in groups]
    if len(set(letters)) < len(letters) or sum(letter in _HOURS for letter in letters) > 1:
        raise DataError(f"a format to read times must have each part once, got {format_!r}")
    if not groups:
        raise DataError(f"a format to read times must have letters, got {format_!r}")
    return f"\\A{''.join(expression)}\\z", tuple(groups)


def _value(text: Any, letter: str, width: int) -> Any:
    """Return what a column of texts says about one part, as NumPy integers; 0 for null."""
    text = pc.fill_null(text, "0")
    if letter == "M" and width > 2:
        known = pa.array([name[:3].lower() for name in _MONTHS])
        found = pc.index_in(pc.utf8_slice_codeunits(pc.ascii_lower(text), 0, 3), known)
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    if letter == "a":
        return pc.starts_with(pc.ascii_lower(text), "p").to_numpy(zero_copy_only=False).astype(int)
    if letter in "Xx":
        digits = pc.replace_substring_regex(text, pattern="[^0-9]", replacement="")
        padded = pc.utf8_rpad(pc.if_else(pc.equal(digits, ""), "0", digits), 4, "0")
        number = pc.cast(padded, BIGINT).to_numpy(zero_copy_only=False)
        minutes = np.where(number % 100 < 60, number // 100 * 60 + number % 100, 99_999)
        minus = pc.starts_with(text, "-").to_numpy(zero_copy_only=False)
        return np.where(minus, -minutes, minutes)
    if letter == "S":
        text = pc.utf8_rpad(text, 6, "0")
    text = pc.replace_substring_regex(text, pattern="\\A\\+", replacement="")
    return pc.cast(text, BIGINT).to_numpy(zero_copy_only=False)


def _hour(parts: dict[str, Any]) -> tuple[Any, Any]:
    """Return the hour of the day, and whether it is one."""
    half = parts.get("a", 0)
    if "H" in parts:
        return parts["H"], (parts["H"] < 24) & (("a" not in parts) | (parts["H"] // 12 == half))
    if "k" in parts:
        hour = parts["k"] % 24
        return hour, (parts["k"] >= 1) & (parts["k"] <= 24) & (
            ("a" not in parts) | (hour // 12 == half)
        )
    if "h" in parts:
        return parts["h"] % 12 + 12 * half, (parts["h"] >= 1) & (parts["h"] <= 12)
    if "K" in parts:
        return parts["K"] + 12 * half, parts["K"] < 12
    return np.int64(0), np.True_


def _parsed(text: Any, format_: str) -> tuple[Any, Any, Any, Any]:
    """Return the days and clock of the times in texts, where null, and where there is a time."""
    expression, groups = _reader(format_)
    found = pc.extract_regex(text, expression)
    known = pc.is_valid(found).to_numpy(zero_copy_only=False).copy()
    values = (_value(pc.struct_field(found, f"g{i}"), *group) for i, group in enumerate(groups))
    parts = dict(zip((letter for letter, _ in groups), values, strict=True))
    zeros = np.zeros(len(text), np.int64)
    year = parts.get("y", zeros + 1970)
    if ("y", 2) in groups:
        year = year + 2000
    if ("y", 4) in groups or ("y", 1) in groups:
        at = groups.index(("y", 4) if ("y", 4) in groups else ("y", 1))
        minus = pc.starts_with(pc.fill_null(pc.struct_field(found, f"g{at}"), ""), "-")
        known &= ~(minus.to_numpy(zero_copy_only=False) & (year == 0))
    days, there = calendar_days(year, parts.get("M", zeros + 1), parts.get("d", zeros + 1))
    hour, on_clock = _hour(parts)
    minute, second = parts.get("m", zeros), parts.get("s", zeros)
    zone = parts.get("X", parts.get("x", zeros))
    known &= there & on_clock & (minute < 60) & (second < 60) & (np.abs(zone) <= 18 * 60)
    seconds = np.where(known, (hour * 60 + minute - zone) * 60 + second, 0)
    clock = seconds * 1_000_000 + parts.get("S", zeros)
    return days + clock // _DAY, np.mod(clock, _DAY), null_mask(text), known


def _parse(text: Any, format_: str | None) -> pa.Array:
    if format_ is None:
        return pa.nulls(len(text), TIMESTAMP)
    days, clock, null, known = _parsed(text, format_)
    if (~known & ~null).any():
        wrong = text[int(np.flatnonzero(~known & ~null)[0])].as_py()
        raise DataError(
            f"to_timestamp(s, format) must get text such as {format_!r} says, got {wrong!r}; use "
            "try_to_timestamp, which gives null"
        )
    return times_of(days, clock, null)


def _try_parse(text: Any, format_: str | None) -> pa.Array:
    if format_ is None:
        return pa.nulls(len(text), TIMESTAMP)
    days, clock, null, known = _parsed(text, format_)
    return times_of(days, clock, null | ~known | outside(days, clock))


_READ = takes(TEXT, TEXT, gives=TIMESTAMP)

FUNCTIONS = (
    function(
        "date_format(t, format)",
        takes(TIME, TEXT, gives=STRING),
        _date_format,
        "A time as text, by a constant format such as 'yyyy-MM-dd HH:mm:ss.SSS' or 'd MMM yyyy'. "
        "Letters: y year, M month, d day, D day of the year, Q quarter, E weekday, H hour (k 1-24, "
        "K 0-11, h 1-12), a AM or PM, m minute, s second, S fraction, X and x offset from UTC; "
        "other text stands in single quotes.",
        spark=called("date_format"),
        constants=(1,),
        total=False,
    ),
    function(
        "to_timestamp(s, format)",
        _READ,
        on_distinct("to_timestamp(s, format)", _parse),
        "A time read from text by a constant format, letters as for date_format but D, Q and E. "
        "What is missing is that of 1970-01-01 00:00:00.",
        name="parse_timestamp",
        spark=None,
        constants=(1,),
        total=False,
    ),
    function(
        "try_to_timestamp(s, format)",
        _READ,
        on_distinct("try_to_timestamp(s, format)", _try_parse),
        "As to_timestamp; null where the text is not as the format says.",
        name="try_parse_timestamp",
        spark=None,
        constants=(1,),
    ),
)
