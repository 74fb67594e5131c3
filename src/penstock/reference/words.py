"""The oracle's other functions of text, and its hashes and digests: one value at a time."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import unicodedata
import zlib
from collections.abc import Callable
from typing import Any

from penstock.errors import DataError
from penstock.reference.logic import Thunk
from penstock.reference.texts import checked


def _part(text: str, position: int, length: int) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)] if length > 0 else ""


def _locate(search: Thunk, text: Thunk, position: Thunk = lambda: 1) -> int | None:
    start = position()
    if start is None:
        return 0
    wanted, found = search(), text()
    if wanted is None or found is None:
        return None
    if start < 1:
        return 0
    return found.find(wanted, start - 1) + 1 if wanted else 1


def _overlay(text: str, replacement: str, position: int, length: int = -1) -> str:
    gone = len(replacement) if length < 0 else length
    head = _part(text, 1, position - 1)
    tail = _part(text, position + gone, 2**32)
    return checked(head + replacement + tail)


def _translate(text: str, search: str, replacement: str) -> str:
    found = ""
    for character in text:
        place = search.find(character)
        found += character if place < 0 else replacement[place : place + 1]
    return found


_SOUNDS = {"BFPV": "1", "CGJKQSXZ": "2", "DT": "3", "L": "4", "MN": "5", "R": "6", "AEIOUY": "0"}


def _soundex(text: str) -> str:
    def code(letter: str) -> str:
        capital = letter.upper() if letter.isascii() and letter.isalpha() else " "
        return next((digit for letters, digit in _SOUNDS.items() if capital in letters), capital)

    if not text or not (text[0].isascii() and text[0].isalpha()):
        return text
    first = code(text[0])
    found, last = [text[0].upper()], "7" if first in "HW" else first
    for letter in text[1:]:
        now = code(letter)
        if now in ("H", "W"):
            continue
        if now in tuple("123456") and now != last:
            found.append(now)
        last = now
    return ("".join(found) + "000")[:4]


def _substring_index(text: str, delimiter: str, count: int) -> str:
    """Delimiters are counted at every place where one begins."""
    if not delimiter or count == 0:
        return ""
    size = len(delimiter)
    places = [i for i in range(len(text) - size + 1) if text[i : i + size] == delimiter]
    if abs(count) > len(places):
        return text
    return text[: places[count - 1]] if count > 0 else text[places[count] + size :]


def _elt(number: Thunk, *values: Thunk) -> Any:
    place = number()
    if place is None:
        return None
    if not 1 <= place <= len(values):
        raise DataError(f"a number must be from 1 to {len(values)}, got {place}")
    return values[place - 1]()


def _find_in_set(text: str, listed: str) -> int:
    return next((i for i, item in enumerate(listed.split(","), 1) if item == text), 0)


def _mask(text: Thunk, *letters: Thunk) -> str | None:
    found = text()
    if found is None:
        return None
    default: list[str | None] = ["X", "x", "n", None]
    given: list[str | None] = [letter() for letter in letters]
    upper, lower, digit, other = given + default[len(given) :]

    def masked(character: str) -> str:
        kind = unicodedata.category(character)
        chosen = {"Lu": upper, "Ll": lower, "Nd": digit}.get(kind, other)
        return chosen if chosen is not None else character

    return "".join(map(masked, found))


def _luhn(text: str) -> bool:
    if not text or any(c not in "0123456789" for c in text):
        return False
    total = 0
    for place in range(len(text)):
        digit = int(text[len(text) - 1 - place])
        total += sum(map(int, str(digit * 2))) if place % 2 else digit
    return total % 10 == 0


def _similarity(one: str, other: str) -> float:
    """Jaro's measure, and Winkler's share for an equal beginning; units are those of UTF-16."""
    a, b = ([u for (u,) in struct.iter_unpack("<H", t.encode("utf-16-le"))] for t in (one, other))
    if a == b:
        return 1.0
    reach = max(max(len(a), len(b)) // 2 - 1, 0)
    free = [True] * len(b)
    first = []
    for i, unit in enumerate(a):
        for j in range(max(0, i - reach), min(len(b), i + reach + 1)):
            if free[j] and b[j] == unit:
                free[j] = False
                first.append(unit)
                break
    second = [unit for unit, unused in zip(b, free, strict=True) if not unused]
    m = len(first)
    if m == 0:
        return 0.0
    t = sum(x != y for x, y in zip(first, second, strict=True)) / 2
    jaro = (m / len(a) + m / len(b) + (m - t) / m) / 3
    prefix = 0
    while prefix < min(4, len(a), len(b)) and a[prefix] == b[prefix]:
        prefix += 1
    return float(jaro + prefix * 0.1 * (1 - jaro))


# Digests


_OF_BASE64 = re.compile("[A-Za-z0-9+/=]")


def _data(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str.encode(value)


def _from_base64(text: str) -> bytes:
    plain = "".join(letter for letter in text if letter.isascii() and _OF_BASE64.match(letter))
    digits = plain.rstrip("=")
    if "=" in digits or len(digits) % 4 == 1:
        raise DataError(f"a text must be base 64, got {text!r}")
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def _from_hexadecimal(text: str) -> bytes | None:
    if any(letter not in "0123456789abcdefABCDEF" for letter in text):
        return None
    return int(text or "0", 16).to_bytes((len(text) + 1) // 2, "big")


def _encode(text: str, charset: str) -> bytes:
    if charset.upper() != "UTF-8":
        raise DataError(f"the character set must be UTF-8, got {charset}")
    return text.encode()


def _base64(text: Any) -> str:
    lines = [
        base64.b64encode(_data(text)[i : i + 57]).decode() for i in range(0, len(_data(text)), 57)
    ]
    return checked("\r\n".join(lines))


def _sha2(text: Any, bits: int) -> str | None:
    if bits not in (0, 224, 256, 384, 512):
        return None
    return str(getattr(hashlib, f"sha{bits or 256}")(_data(text)).hexdigest())


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ascii": lambda s: ord(s[0]) if s else 0,
    "char": lambda n: "" if n < 0 else chr(n % 256),
    "octet_length": lambda s: len(_data(s)),
    "bit_length": lambda s: 8 * len(_data(s)),
    "overlay": _overlay,
    "translate": _translate,
    "soundex": _soundex,
    "substring_index": _substring_index,
    "find_in_set": _find_in_set,
    "luhn_check": _luhn,
    "quote": lambda s: checked("'" + "\\'".join(s.split("'")) + "'"),
    "jaro_winkler_similarity": _similarity,
    "md5": lambda s: hashlib.md5(_data(s), usedforsecurity=False).hexdigest(),
    "sha1": lambda s: hashlib.sha1(_data(s), usedforsecurity=False).hexdigest(),
    "sha2": _sha2,
    "crc32": lambda s: zlib.crc32(_data(s)),
    "base64": _base64,
    "unbase64": _from_base64,
    "unhex": _from_hexadecimal,
    "encode": _encode,
    "to_base32": lambda s: checked(base64.b32encode(_data(s)).decode()),
}
"""Functions of text, which are null where an argument is."""

LAZY: dict[str, Callable[..., Any]] = {"locate": _locate, "elt": _elt, "mask": _mask}
"""Functions of text that see null arguments."""
