"""Readers of csv, text and JSON lines that are as plain as can be, to compare the real ones with.

They share nothing with the readers of Penstock: each line is looked at alone, character by
character, and each value is made by Python's own functions.
"""

from __future__ import annotations

import json
import math
import re
from datetime import date, datetime, timedelta
from typing import Any

COLUMNS = "n INT, s STRING, x DOUBLE, ok BOOLEAN, day DATE, at TIMESTAMP, t BIGINT"
NAMES = [part.split()[0] for part in COLUMNS.split(", ")]
TYPES = [part.split()[1] for part in COLUMNS.split(", ")]
TEXT_COLUMNS = "n INT, s STRING, x DOUBLE, t BIGINT"

Row = tuple[Any, ...]


class BadLineError(Exception):
    """A line that is no row."""


def read_lines(kind: str, body: bytes, null: str | None = None) -> tuple[dict[int, Row], set[int]]:
    """Return the rows of the lines of a file, without its header, and the places of bad lines."""
    rows: dict[int, Row] = {}
    bad = set()
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for place, line in enumerate(lines):
        if not line.strip(b" \t\r"):
            continue
        try:
            rows[place] = _row(kind, line, null)
        except BadLineError:
            bad.add(place)
    return rows, bad


def _row(kind: str, line: bytes, null: str | None) -> Row:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise BadLineError from None
    if "\0" in text:
        raise BadLineError
    if kind == "json":
        row = _json_row(text)
    else:
        text = text.removesuffix("\r")
        if "\r" in text:
            raise BadLineError
        types = [c.split()[1] for c in (COLUMNS if kind == "csv" else TEXT_COLUMNS).split(", ")]
        values = _split(text, '"', False) if kind == "csv" else _split(text, "'", True)
        if len(values) != len(types):
            raise BadLineError
        row = tuple(
            None
            if not quoted and value in ("", null)
            else _typed(value.strip() if kind == "text" else value, type)
            for (value, quoted), type in zip(values, types, strict=True)
        )
    time = row[-1]
    if time is None or not -(2**63) < time < 2**63 - 1:
        raise BadLineError
    return row


def _split(line: str, quote: str, loose: bool) -> list[tuple[str, bool]]:
    """Split a line into values, each with whether it was quoted."""
    values = []
    at = 0
    while True:
        begin = at
        if loose:
            while at < len(line) and line[at] in " \t":
                at += 1
        if at < len(line) and line[at] == quote:
            value = ""
            at += 1
            while True:
                if at == len(line):
                    raise BadLineError
                if line[at] == quote:
                    if line[at + 1 : at + 2] != quote:
                        break
                    at += 1
                value += line[at]
                at += 1
            at += 1
            while loose and at < len(line) and line[at] in " \t":
                at += 1
            if at < len(line) and line[at] != ",":
                raise BadLineError
            values.append((value, True))
        else:
            at = begin
            while at < len(line) and line[at] != ",":
                at += 1
            value = line[begin:at]
            if quote in value and not loose:
                raise BadLineError
            values.append((value, False))
        if at == len(line):
            return values
        at += 1


def _typed(text: str, type: str) -> Any:
    if type == "STRING":
        return text
    text = text.strip()
    if type == "BOOLEAN":
        if text in ("1", "true", "True", "TRUE", "t", "T", "yes"):
            return True
        if text in ("0", "false", "False", "FALSE", "f", "F", "no"):
            return False
        raise BadLineError
    if type in ("INT", "BIGINT"):
        return _integer(text, 31 if type == "INT" else 63)
    if type == "DOUBLE":
        return _double(text)
    if type == "DATE":
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise BadLineError
        return _day(text)
    return _instant(text)


def _integer(text: str, bits: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise BadLineError
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:
        raise BadLineError
    number = int(text)
    if not -(2**bits) <= number < 2**bits:
        raise BadLineError
    return number


def _double(text: str) -> float:
    if re.fullmatch(r"(?i)[+-]?(nan|inf|infinity)", text):
        return float(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        raise BadLineError
    number = float(text)
    if math.isinf(number):
        raise BadLineError
    return number


def _day(text: str) -> date:
    try:
        return date(*map(int, text.split("-")))
    except ValueError:
        raise BadLineError from None


def _instant(text: str) -> datetime:
    found = re.fullmatch(
        r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
        r"(?:[ T]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
        r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?",
        text,
    )
    if not found:
        raise BadLineError
    day = _day(found[1])
    hour, minute, second = (int(found[i] or 0) for i in (2, 3, 4))
    micros = int((found[5] or "0")[:6].ljust(6, "0"))
    zone = timedelta()
    if found[6] and found[6] != "Z":
        digits = found[6][1:].replace(":", "").ljust(4, "0")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if hours > 23 or minutes > 59:
            raise BadLineError
        zone = timedelta(hours=hours, minutes=minutes) * (-1 if found[6][0] == "-" else 1)
    try:
        return datetime(day.year, day.month, day.day, hour, minute, second, micros) - zone
    except (ValueError, OverflowError):
        raise BadLineError from None


class Number(str):
    """A number as it is written."""


class Pairs(list[tuple[str, Any]]):
    """An object."""


def _json_row(text: str) -> Row:
    if _depth(text) > 200:
        raise BadLineError
    try:
        found = json.loads(
            _words(text),
            object_pairs_hook=Pairs,
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
        )
    except ValueError:
        raise BadLineError from None
    if not isinstance(found, Pairs):
        raise BadLineError
    row = []
    for name, type in zip(NAMES, TYPES, strict=True):
        same = [v for k, v in found if k == name] or [
            v for k, v in found if k.isascii() and k.lower() == name
        ]
        if len(same) > 1:
            raise BadLineError
        row.append(_json_value(same[0], type) if same else None)
    return tuple(row)


def _depth(text: str) -> int:
    depth = most = 0
    inside = escaped = False
    for c in text:
        if inside:
            inside = escaped or c != '"'
            escaped = not escaped and c == "\\"
        elif c == '"':
            inside = True
        elif c in "[{":
            depth += 1
            most = max(most, depth)
        elif c in "]}":
            depth -= 1
    return most


def _words(text: str) -> str:
    """Write the words for numbers that are no numbers, outside of strings, as Python reads them."""
    result, at = "", 0
    inside = escaped = False
    while at < len(text):
        if inside:
            inside = escaped or text[at] != '"'
            escaped = not escaped and text[at] == "\\"
        elif text[at] == '"':
            inside = True
        elif text.startswith("-NaN", at):
            at += 1
        elif text.startswith("Inf", at) and not text.startswith("Infinity", at):
            result += "Infinity"
            at += 3
            continue
        elif text.startswith("Infinity", at):
            result += "Infinity"
            at += 8
            continue
        result += text[at]
        at += 1
    return result


def _json_value(value: Any, type: str) -> Any:
    if value is None:
        return None
    is_number = isinstance(value, Number)
    if type == "STRING":
        text = _text_of(value)
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadLineError
        return text
    if type == "BOOLEAN":
        if not isinstance(value, bool):
            raise BadLineError
        return value
    if isinstance(value, bool) or not isinstance(value, str):
        raise BadLineError
    if type in ("INT", "BIGINT"):
        if not is_number:
            raise BadLineError
        return _integer(value, 31 if type == "INT" else 63)
    if type == "DOUBLE":
        if not is_number and value not in ("NaN", "Infinity", "-Infinity"):
            raise BadLineError
        return _double(value)
    if is_number:
        raise BadLineError
    return _typed(value, type)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(k)}: {_inner(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inner, value)) + "]"
    return json.dumps(value)


def _inner(value: Any) -> str:
    plain_text = isinstance(value, str) and not isinstance(value, Number)
    return json.dumps(value) if plain_text else _text_of(value)
