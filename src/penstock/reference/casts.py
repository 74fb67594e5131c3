"""The oracle's conversions between types: one value at a time, by the table of the language.

A value that does not fit is an error.  Text is read by one grammar per type: blanks, tabs and line
ends around it do not count, digits are those of ASCII.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, InternalError
from penstock.nested.shapes import inner_types, is_map, is_nested, is_struct
from penstock.reference.decimals import of_text
from penstock.reference.times import DAY, SECOND, date_text, days_until, time_text
from penstock.reference.values import NAN, double, fit, is_decimal, single

_INTEGER = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?")
_DATE = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?"
_ZONE = r"(?: ?(?:Z|([+-])(\d{1,2}):(\d{2})))?"
_DAY = re.compile(_DATE, re.ASCII)
_TIME = re.compile(f"{_DATE}(?:[ T]{_CLOCK}{_ZONE})?", re.ASCII)
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def cast(value: Any, source: pa.DataType, to: pa.DataType) -> Any:
    """Convert one value that is not null, checked."""
    if source == to:
        return value
    if is_nested(source):
        return _nested(value, source, to)
    try:
        if isinstance(value, bytes):
            return value.decode()
        if pa.types.is_binary(to):
            return value.encode()
        if pa.types.is_string(to):
            return _write(value, source)
        if pa.types.is_string(source):
            return fit(_read(value.strip(" \t\r\n"), to), to)
        return fit(_convert(value, source, to), to)
    except ValueError:
        raise DataError(f"a value must convert from {source} to {to}, got {value!r}") from None


def try_cast(value: Any, source: pa.DataType, to: pa.DataType) -> Any:
    """Convert a value, or what is inside of it; what does not fit is null."""
    if value is None:
        return None
    if is_nested(source) and is_nested(to):
        kinds, targets = inner_types(source), inner_types(to)
        if is_map(source):
            return tuple(tuple(map(try_cast, pair, kinds, targets)) for pair in value)
        if is_struct(source):
            return tuple(map(try_cast, value, kinds, targets))
        return tuple(try_cast(part, kinds[0], targets[0]) for part in value)
    try:
        return cast(value, source, to)
    except DataError:
        return None


def _nested(value: Any, source: pa.DataType, to: pa.DataType) -> Any:
    """Convert what is inside of a value, or write it."""

    def inner(part: Any, kind: pa.DataType, target: pa.DataType) -> Any:
        if part is None:
            return "null" if pa.types.is_string(to) else None
        return cast(part, kind, target)

    kinds = inner_types(source)
    targets = inner_types(to) if is_nested(to) else (to,) * len(kinds)
    if is_struct(source):
        parts = [inner(*three) for three in zip(value, kinds, targets, strict=True)]
        return "{" + ", ".join(parts) + "}" if not is_nested(to) else tuple(parts)
    if is_map(source):
        pairs = [
            tuple(inner(*three) for three in zip(pair, kinds, targets, strict=True))
            for pair in value
        ]
        if is_nested(to):
            return tuple(pairs)
        return "{" + ", ".join(" -> ".join(pair) for pair in pairs) + "}"
    parts = [inner(part, kinds[0], targets[0]) for part in value]
    return "[" + ", ".join(parts) + "]" if not is_nested(to) else tuple(parts)


def _convert(value: Any, source: pa.DataType, to: pa.DataType) -> Any:
    """Convert between numbers and truth values, or between times."""
    if is_decimal(to) and isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(value)
        return of_text(repr(value))
    if is_decimal(source) and pa.types.is_integer(to):
        return math.trunc(value)
    if pa.types.is_temporal(source) or pa.types.is_temporal(to):
        if pa.types.is_date(source) and pa.types.is_timestamp(to):
            return value * DAY
        if pa.types.is_timestamp(source) and pa.types.is_date(to):
            return value // DAY
        raise InternalError(f"the reference does not know the conversion from {source} to {to}")
    if pa.types.is_boolean(to):
        return value != 0
    if pa.types.is_floating(source) and pa.types.is_integer(to):
        return _cut(value, to)
    return value


def _cut(value: float, to: pa.DataType) -> int:
    """Cut a fraction towards zero; 2**63 counts as the largest BIGINT, which a DOUBLE cannot be."""
    if not math.isfinite(value):
        raise ValueError(value)
    return 2**63 - 1 if to == pa.int64() and value == 2.0**63 else math.trunc(value)


# To text


def _write(value: Any, source: pa.DataType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return _float_text(value, 9 if source == pa.float32() else 17)
    if pa.types.is_timestamp(source):
        return time_text(value)
    return date_text(value) if pa.types.is_date(source) else str(value)


def _float_text(value: float, most: int) -> str:
    """Return the fewest digits that are read back as the number, at most ``most`` of them.

    From 0.001 up to ten millions it is written plainly, as 0.25, otherwise as 2.5E-4.
    """
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    size = abs(value)
    if math.isinf(size):
        return f"{sign}Infinity"
    read = single if most == 9 else double
    found = (f"{size:.{digits}e}" for digits in range(most))
    mantissa, power = next(t for t in found if read(float(t)) == size).split("e")
    digits, exponent = mantissa.replace(".", "").rstrip("0"), int(power)
    if size == 0:
        return f"{sign}0.0"
    if 1e-3 <= size < 1e7:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole, fraction = digits[: exponent + 1], digits[exponent + 1 :]
        return f"{sign}{whole.ljust(exponent + 1, '0')}.{fraction or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


# From text


def _read(text: str, to: pa.DataType) -> Any:
    """Return what a text says; one that is outside of the type's grammar is a ValueError."""
    if pa.types.is_boolean(to):
        return _truth(text)
    if pa.types.is_integer(to):
        return int(_matched(_INTEGER, text)[0])
    if pa.types.is_floating(to):
        return _real(text)
    if is_decimal(to):
        return of_text(_matched(_REAL, text.lower() if text.isascii() else text)[0])
    if pa.types.is_date(to):
        return days_until(*map(int, _matched(_DAY, text).groups()))
    return _time(text)


def _matched(grammar: re.Pattern[str], text: str) -> re.Match[str]:
    found = grammar.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found


def _truth(text: str) -> bool:
    word = text.lower() if text.isascii() else text
    if word not in (*_TRUE, *_FALSE):
        raise ValueError(text)
    return word in _TRUE


def _real(text: str) -> float:
    word = text.lower() if text.isascii() else text
    if word == "nan":
        return NAN
    if word in ("inf", "infinity", "+inf", "+infinity", "-inf", "-infinity"):
        return float(word)
    return float(_matched(_REAL, word)[0])


def _time(text: str) -> int:
    found = _matched(_TIME, text)
    year, month, day = map(int, found.group(1, 2, 3))
    hour, minute, second, zone_hour, zone_minute = (
        int(part or 0) for part in found.group(4, 5, 6, 9, 10)
    )
    zone = zone_hour * 60 + zone_minute
    if hour > 23 or minute > 59 or second > 59 or zone_minute > 59 or zone > 18 * 60:
        raise ValueError(text)
    minutes = hour * 60 + minute - (-zone if found[8] == "-" else zone)
    micros = (minutes * 60 + second) * SECOND + int((found[7] or "").ljust(6, "0"))
    return days_until(year, month, day) * DAY + micros
