"""The oracle's addresses of the web, and numbers with commas."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from penstock.errors import DataError
from penstock.reference.texts import checked

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_MARKS = "_-!.~'()*"


def _spelled(text: str, signs: str) -> bool:
    """Whether a text has only letters, digits, marks, escapes and some signs."""
    rest = text
    while rest:
        if rest[0] == "%":
            if len(rest) < 3 or any(c not in "0123456789abcdefABCDEF" for c in rest[1:3]):
                return False
            rest = rest[3:]
            continue
        plain = rest[0] in _LETTERS + _DIGITS + _MARKS + signs
        other = ord(rest[0]) > 0xA0 and unicodedata.category(rest[0])[0] != "Z"
        if not plain and not other:
            return False
        rest = rest[1:]
    return True


def _is_name(label: str) -> bool:
    inside = all(c in _LETTERS + _DIGITS + "-" for c in label)
    return bool(label) and inside and label[0] != "-" and label[-1] != "-"


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        return all(c in "0123456789abcdefABCDEF:." for c in host[1:-1]) and len(host) > 2
    numbers = host.split(".")
    if len(numbers) == 4 and all(n and all(c in _DIGITS for c in n) for n in numbers):
        return all(len(n) <= 3 and int(n) < 256 for n in numbers)
    labels = host.removesuffix(".").split(".")
    return all(map(_is_name, labels)) and labels[-1][0] in _LETTERS


def _server(authority: str) -> tuple[str | None, str | None]:
    """Return host and user of an authority, None for both if it names no server."""
    user, at, rest = authority.rpartition("@") if "@" in authority else ("", "", authority)
    if "@" in user or not _spelled(user, ";:&=+$,"):
        return None, None
    host, colon, port = rest.rpartition(":")
    if not colon or "]" in port:
        host, port = rest, ""
    if not _is_host(host) or any(c not in _DIGITS for c in port):
        return None, None
    return host, user if at else None


def _parts(url: str) -> dict[str, str | None] | None:
    rest, mark, fragment = url.partition("#")
    found: dict[str, str | None] = dict.fromkeys(("HOST", "USERINFO", "AUTHORITY", "FILE"))
    found |= {"REF": fragment if mark else None, "PROTOCOL": None, "PATH": None, "QUERY": None}
    if not _spelled(fragment, ";/?:@&=+$,[]"):
        return None
    stop = min((rest.index(c) for c in "/?" if c in rest), default=len(rest))
    if ":" in rest[:stop]:
        scheme, _, rest = rest.partition(":")
        if not scheme or scheme[0] not in _LETTERS:
            return None
        if any(c not in _LETTERS + _DIGITS + "+.-" for c in scheme) or not rest:
            return None
        found["PROTOCOL"] = scheme
        if rest[0] != "/":
            return found if _spelled(rest, ";/?:@&=+$,[]") else None
    rest, mark, query = rest.partition("?")
    if not _spelled(query, ";/?:@&=+$,[]"):
        return None
    found["QUERY"] = query if mark else None
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        if not authority and not rest:
            return None
        if authority:
            found["HOST"], found["USERINFO"] = _server(authority)
            if found["HOST"] is None and not _spelled(authority, "$,;:@&=+"):
                return None
            found["AUTHORITY"] = authority
    if not _spelled(rest, ":@&=+$,;/"):
        return None
    found["PATH"], found["FILE"] = rest, rest + mark + query
    return found


def _part(url: str, name: str, *key: str) -> str | None:
    if key and name != "QUERY":
        return None
    found = _parts(url)
    if found is None:
        raise DataError(f"an address must be one, got {url!r}")
    if not key:
        return found.get(name)
    pairs = [pair.partition("=") for pair in (found["QUERY"] or "").split("&")]
    named = f"{key[0]}="
    if "=" in key[0] or "&" in key[0]:  # looked for as it stands
        query = "&" + (found["QUERY"] or "")
        place = query.find("&" + named)
        return None if place < 0 else query[place + 1 + len(named) :].split("&")[0]
    return next((value for word, sign, value in pairs if sign and word == key[0]), None)


def _try_part(url: str, name: str, *key: str) -> str | None:
    return None if _parts(url) is None else _part(url, name, *key)


def _encoded(text: str) -> str:
    done = ""
    for byte in text.encode():
        plain = chr(byte) in _LETTERS + _DIGITS + ".-*_"
        done += chr(byte) if plain else "+" if byte == 32 else f"%{byte:02X}"
    return checked(done)


def _decoded(text: str) -> str:
    """Bytes that are escaped one after another are read together."""
    done, rest = "", text.replace("+", " ")
    while rest:
        data = b""
        while rest.startswith("%"):
            digits = rest[1:3]
            if len(digits) < 2 or any(c not in "0123456789abcdefABCDEF" for c in digits):
                raise DataError(f"two hexadecimal digits must follow %, got {text!r}")
            data, rest = data + bytes([int(digits, 16)]), rest[3:]
        done += data.decode("utf-8", "replace")
        done, rest = done + rest[:1], rest[1:]
    return done


def _try_decoded(text: str) -> str | None:
    try:
        return _decoded(text)
    except DataError:
        return None


def _format_number(value: Any, digits: int) -> str | None:
    if digits < 0:
        return None
    if digits > 400:
        raise DataError(f"a number must have at most 400 digits behind the point, got {digits}")
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if isinstance(value, float) and math.isinf(value):
        return f"{sign}∞"
    written = value if isinstance(value, Fraction) else Fraction(repr(value))
    shown = abs(written) * 10**digits
    whole = round(shown)
    if shown - math.floor(shown) == Fraction(1, 2):  # which side it is on, its bits say
        exact = abs(Fraction(value)) * 10**digits
        whole = whole if exact == shown else math.floor(shown) + (exact > shown)
    text = str(whole).rjust(digits + 1, "0")
    head, tail = (text[:-digits], "." + text[-digits:]) if digits else (text, "")
    groups = [head[max(i - 3, 0) : i] for i in range(len(head), 0, -3)][::-1]
    return sign + ",".join(groups) + tail


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "parse_url": _part,
    "try_parse_url": _try_part,
    "url_encode": _encoded,
    "url_decode": _decoded,
    "try_url_decode": _try_decoded,
    "format_number": _format_number,
}
"""Functions of texts and numbers, which are null where an argument is."""
