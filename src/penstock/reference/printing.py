"""The oracle's format_string: a format is read letter by letter, one value at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa

from penstock.reference.casts import cast


def format_string(values: Sequence[Any], types: Sequence[pa.DataType]) -> str | None:
    """Write values by a format that is known to fit them."""
    format_ = values[0]
    if format_ is None:
        return None
    made, at, following = "", 0, 1
    while at < len(format_):
        if format_[at] != "%":
            made += format_[at]
            at += 1
            continue
        end = at + 1
        while not (format_[end].isalpha() or format_[end] == "%"):
            end += 1
        said, letter = format_[at + 1 : end], format_[end]
        at = end + 1
        if letter in "%n":
            made += "%" if letter == "%" else "\n"
            continue
        place, dollar, rest = said.partition("$")
        if not dollar:
            place, rest = str(following), said
            following += 1
        value, type_ = values[int(place)], types[int(place)]
        made += _piece(value, type_, rest, letter)
    return made


def _piece(value: Any, type_: pa.DataType, said: str, letter: str) -> str:
    size, point, digits = said.partition(".")
    width = size.lstrip("-#+ 0,(")
    flags = size[: len(size) - len(width)]
    least, most = int(width or 0), int(digits) if point else None
    if value is None or letter in "sSbB":
        text = _plain(value, type_, letter, most)
    elif letter == "d":
        text = _number(value < 0, str(abs(value)), "", flags, least)
    elif letter in "xXo":
        text = _in_base(value, type_, flags, least, 8 if letter == "o" else 16)
    else:
        text = _float(value, flags, least, 6 if most is None else most, letter in "eE")
    if letter.isupper():
        text = text.upper()
    units = sum(2 if ord(c) >= 0x10000 else 1 for c in text)
    blanks = " " * max(least - units, 0)
    return text + blanks if "-" in flags else blanks + text


def _plain(value: Any, type_: pa.DataType, letter: str, most: int | None) -> str:
    if value is None:
        text = "false" if letter in "bB" else "null"
    else:
        text = value if isinstance(value, str) else cast(value, type_, pa.string())
    if most is None:
        return text
    kept, room = "", most
    for c in text:
        need = 2 if ord(c) >= 0x10000 else 1
        if need > room:
            return kept + ("?" if room else "")
        kept, room = kept + c, room - need
    return kept


def _number(negative: bool, whole: str, behind: str, flags: str, least: int) -> str:
    before, after = ("-", "") if negative else ("", "")
    if negative and "(" in flags:
        before, after = "(", ")"
    elif not negative:
        before = "+" if "+" in flags else " " if " " in flags else ""
    if "," in flags:
        for at in range(len(whole) - 3, 0, -3):
            whole = whole[:at] + "," + whole[at:]
    while "0" in flags and len(before + whole + behind + after) < least:
        whole = "0" + whole
    return before + whole + behind + after


def _in_base(value: int, type_: pa.DataType, flags: str, least: int, base: int) -> str:
    if value < 0:
        value += 2**type_.bit_width
    digits = ""
    while value or not digits:
        value, digit = divmod(value, base)
        digits = "0123456789abcdef"[digit] + digits
    before = {8: "0", 16: "0x"}[base] if "#" in flags else ""
    while "0" in flags and len(before + digits) < least:
        digits = "0" + digits
    return before + digits


def _float(value: float, flags: str, least: int, digits: int, scientific: bool) -> str:
    if math.isnan(value):
        return "NaN"
    negative = math.copysign(1, value) < 0
    if math.isinf(value):
        return _number(negative, "Infinity", "", flags.replace("0", "").replace(",", ""), 0)
    size, power = abs(Fraction(repr(value))), 0
    if scientific and size:
        while size >= 10:
            size, power = size / 10, power + 1
        while size < 1:
            size, power = size * 10, power - 1
    units = math.floor(size * 10**digits + Fraction(1, 2))
    if scientific and units >= 10 ** (digits + 1):
        units, power = units // 10, power + 1
    text = str(units).rjust(digits + 1, "0")
    whole, behind = text[: len(text) - digits], text[len(text) - digits :]
    behind = "." + behind if behind or "#" in flags else ""
    if scientific:
        behind += ("e-" if power < 0 else "e+") + str(abs(power)).rjust(2, "0")
    return _number(negative, whole, behind, flags, least)
