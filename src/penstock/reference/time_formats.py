"""The oracle's formats of times: written and read letter by letter, one value at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock.errors import DataError
from penstock.reference.months import make_date
from penstock.reference.times import DAY, SECOND, day_of

_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August"]
_MONTHS += ["September", "October", "November", "December"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _pieces(format_: str) -> list[str]:
    """Return runs of one letter as they are, and other text behind a quote."""
    found: list[str] = []
    at = 0
    while at < len(format_):
        end = at + 1
        if format_[at] == "'":
            while format_[end] != "'" or format_[end : end + 2] == "''":
                end += 2 if format_[end] == "'" else 1
            found.append("'" + (format_[at + 1 : end].replace("''", "'") or "'"))
            end += 1
        elif format_[at].isascii() and format_[at].isalpha():
            while format_[end : end + 1] == format_[at]:
                end += 1
            found.append(format_[at:end])
        else:
            found.append("'" + format_[at])
        at = end
    return found


def _written(micros: int, piece: str) -> str:
    letter, width = piece[0], len(piece)
    date, clock = day_of(micros // DAY), micros % DAY
    hour = clock // (3600 * SECOND)
    month = date.twin.month
    match letter:
        case "'":
            return piece[1:]
        case "y":
            return _year(date.year, width)
        case "M" | "L" if width > 2:
            return _MONTHS[month - 1] if width == 4 else _MONTHS[month - 1][:3]
        case "E":
            name = _DAYS[date.twin.weekday()]
            return name if width == 4 else name[:3]
        case "a":
            return "PM" if hour >= 12 else "AM"
        case "S":
            return f"{clock % SECOND:06}"[:width]
        case "X":
            return "Z"
        case "x":
            return ["+00", "+0000", "+00:00"][width - 1]
    number = {
        "M": month,
        "L": month,
        "d": date.twin.day,
        "D": date.twin.timetuple().tm_yday,
        "Q": (month + 2) // 3,
        "q": (month + 2) // 3,
        "H": hour,
        "k": hour or 24,
        "K": hour % 12,
        "h": hour % 12 or 12,
        "m": clock // (60 * SECOND) % 60,
        "s": clock // SECOND % 60,
    }[letter]
    return str(number).rjust(width, "0")


def _year(year: int, width: int) -> str:
    if width == 2:
        return str(abs(year))[-2:].rjust(2, "0")
    digits = str(abs(year)).rjust(width, "0")
    if year < 0:
        return "-" + digits
    return "+" + digits if width >= 4 and len(digits) > width else digits


def date_format(micros: int, format_: str) -> str:
    """Write a time."""
    return "".join(_written(micros, piece) for piece in _pieces(format_))


def _pattern(piece: str) -> str:
    letter, width = piece[0], len(piece)
    if letter == "'":
        return re.escape(piece[1:])
    if letter == "y":
        return {1: "(-?[0-9]{1,9})", 2: "([0-9]{2})", 4: "(-?[0-9]{4}|[+][0-9]{5,9})"}[width]
    if letter in "ML" and width > 2:
        return "(" + "|".join(name if width == 4 else name[:3] for name in _MONTHS) + ")"
    if letter == "a":
        return "(AM|PM)"
    if letter == "S":
        return f"([0-9]{{1,{width}}})"
    if letter in "Xx":
        offset = ["[+-][0-9]{2}(?:[0-9]{2})?", "[+-][0-9]{4}", "[+-][0-9]{2}:[0-9]{2}"][width - 1]
        return f"(Z|{offset})" if letter == "X" else f"({offset})"
    return "([0-9]{1,18})" if width == 1 else "([0-9]{2})"


def parse(text: str, format_: str) -> int:
    """Read a time; what the format does not say is that of 1970-01-01 00:00:00."""
    pieces = _pieces(format_)
    found = re.fullmatch("".join(map(_pattern, pieces)), text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise DataError(f"a time must be written as {format_!r}, got {text!r}")
    said = dict(zip([p for p in pieces if p[0] != "'"], found.groups(), strict=True))
    parts = {piece[0]: _read(piece, value) for piece, value in said.items()}
    if parts.get("y") == 0 and any(p[0] == "y" and v.startswith("-") for p, v in said.items()):
        raise DataError(f"the year 0 has no sign, got {text!r}")
    month = parts.get("M", parts.get("L", 1))
    days = make_date(parts.get("y", 1970), month, parts.get("d", 1))
    if not -(2**31) <= days < 2**31:
        raise DataError(f"a date must be in the range of DATE, got {text!r}")
    minute, second = parts.get("m", 0), parts.get("s", 0)
    zone = parts.get("X", parts.get("x", 0))
    if minute > 59 or second > 59 or abs(zone) > 18 * 60:
        raise DataError(f"a time must be on the clock, got {text!r}")
    clock = (_hour(parts, text) * 60 + minute - zone) * 60 + second
    return days * DAY + clock * SECOND + parts.get("S", 0)


def _read(piece: str, value: str) -> int:
    letter = piece[0]
    if letter in "ML" and len(piece) > 2:
        return next(i for i, name in enumerate(_MONTHS, 1) if name[:3].lower() == value[:3].lower())
    if letter == "a":
        return int(value.lower() == "pm")
    if letter == "S":
        return int(value.ljust(6, "0"))
    if letter in "Xx":
        digits = [c for c in value if c.isdigit()]
        hours, minutes = int("".join(digits[:2]) or 0), int("".join(digits[2:]) or 0)
        size = hours * 60 + minutes if minutes < 60 else 10**6
        return -size if value[0] == "-" else size
    return int(value) + (2000 if piece == "yy" else 0)


def _hour(parts: dict[str, int], text: str) -> int:
    letter = next((known for known in "HkKh" if known in parts), None)
    if letter is None:
        return 0
    hour = parts[letter]
    low, high = {"H": (0, 23), "k": (1, 24), "K": (0, 11), "h": (1, 12)}[letter]
    if not low <= hour <= high:
        raise DataError(f"an hour must be from {low} to {high}, got {text!r}")
    if letter in "Kh":
        return hour % 12 + 12 * parts.get("a", 0)
    if "a" in parts and hour % 24 // 12 != parts["a"]:
        raise DataError(f"the hour must be in its half of the day, got {text!r}")
    return hour % 24


def try_parse(text: str, format_: str) -> int | None:
    """Read a time; null where it is not as the format says."""
    try:
        found = parse(text, format_)
    except DataError:
        return None
    return found if -(2**63) <= found < 2**63 else None


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "date_format": date_format,
    "parse_timestamp": parse,
    "try_parse_timestamp": try_parse,
}
"""Functions of formats, which are null where an argument is."""
