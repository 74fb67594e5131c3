"""Addresses of the web, and numbers with commas: texts with a grammar of their own.

Arrow has no kernels for them, so each distinct row of arguments is worked on once.  An address is
read as RFC 2396 has it, which Java follows; letters beyond ASCII are let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Context, Decimal
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pyarrow as pa

from penstock.expr.library.arrays import each_distinct
from penstock.expr.nodes import Expr
from penstock.expr.signatures import COUNT, LONG, REAL, TEXT, Kind, called, function, takes
from penstock.expr.types import STRING, is_decimal, is_integer

_PLAIN = "A-Za-z0-9_\\-!.~'()*"
_OTHER = "\\u00a1-\\u1fff\\u200b-\\u2027\\u202a-\\u202e\\u2030-\\u205e\\u2060-\\U0010ffff"
_ESCAPED = "%[0-9A-Fa-f]{2}"


def _of(signs: str) -> re.Pattern[str]:
    return re.compile(f"(?:[{_PLAIN}{_OTHER}{signs}]|{_ESCAPED})*")


_PATH, _ANY = _of(":@&=+$,;/"), _of(";/?:@&=+$,\\[\\]")
_REGISTRY, _USER = _of("$,;:@&=+"), _of(";:&=+$,")
_WHOLE = re.compile(
    r"(?:(?P<PROTOCOL>[A-Za-z][A-Za-z0-9+.-]*):)?(?:(?P<opaque>(?<=:)[^/#][^#]*)|"
    r"(?://(?P<AUTHORITY>[^/?#]*))?(?P<PATH>[^?#]*)(?:\?(?P<QUERY>[^#]*))?)(?:#(?P<REF>.*))?",
    re.DOTALL,
)
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_TOP = "[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|0?[0-9]{1,2})"
_SERVER = re.compile(
    r"(?:(?P<USERINFO>[^@]*)@)?"
    rf"(?P<HOST>{_BYTE}(?:\.{_BYTE}){{3}}|(?:{_LABEL}\.)*{_TOP}\.?|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?"
)
_PARTS = ("HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO")


def _parts(url: str) -> dict[str, str | None] | None:
    """Return the parts of an address by name, None if it is none."""
    found = _WHOLE.fullmatch(url)
    if found is None:
        return None
    parts: dict[str, str | None] = {**found.groupdict(), "HOST": None, "USERINFO": None}
    path, authority, opaque = parts["PATH"], parts["AUTHORITY"], parts.pop("opaque")
    scheme_missing = parts["PROTOCOL"] is None and ":" in re.split("[/?#]", url)[0]
    fits = (
        _ANY.fullmatch(parts["REF"] or "")
        and _ANY.fullmatch(parts["QUERY"] or "")
        and _PATH.fullmatch(path or "")
        and _ANY.fullmatch(opaque or "")
    )
    if scheme_missing or not fits or (authority == "" and not path):
        return None
    if parts["PROTOCOL"] is not None and not opaque and not path and authority is None:
        return None
    parts["AUTHORITY"] = authority or None
    if authority:
        server = _SERVER.fullmatch(authority)
        if server and _USER.fullmatch(server["USERINFO"] or ""):
            parts |= server.groupdict()
        elif not _REGISTRY.fullmatch(authority):
            return None
    query = parts["QUERY"]
    parts["FILE"] = path if query is None or path is None else f"{path}?{query}"
    return parts


def _part(url: str, name: str, key: str | None = None) -> str | None:
    if key is not None and name != "QUERY":
        return None
    parts = _parts(url)
    if parts is None:
        raise pa.ArrowInvalid(f"{url!r}, which is no address")
    if key is None:
        return parts[name] if name in _PARTS else None
    found = re.search(f"(?:&|^){re.escape(key)}=([^&]*)", parts["QUERY"] or "")
    return found[1] if found else None


def _try_part(url: str, name: str, key: str | None = None) -> str | None:
    return None if _parts(url) is None else _part(url, name, key)


def _decoded(text: str) -> str:
    if re.search("%(?![0-9A-Fa-f]{2})", text):
        raise pa.ArrowInvalid(f"{text!r}, in which % stands without two hexadecimal digits")
    return unquote_plus(text)


def _try_decoded(text: str) -> str | None:
    return None if re.search("%(?![0-9A-Fa-f]{2})", text) else unquote_plus(text)


_DIGITS = Context(prec=800)


def _with_commas(value: float | Decimal, digits: int) -> str | None:
    """Round half to even; a number that is written in the middle lies where its bits say."""
    if digits < 0:
        return None
    if digits > 400:
        raise pa.ArrowInvalid(f"{digits} digits behind the point, more than 400")
    if isinstance(value, float) and value != value:
        return "NaN"
    sign = "-" if value < 0 or str(value).startswith("-") else ""
    if isinstance(value, float) and abs(value) == float("inf"):
        return f"{sign}∞"
    exact = Decimal(value).copy_abs()
    written = exact if isinstance(value, Decimal) else Decimal(repr(value)).copy_abs()
    unit = Decimal(1).scaleb(-digits)
    low = written.quantize(unit, ROUND_DOWN, _DIGITS)
    way = ROUND_HALF_EVEN
    if written - low == unit / 2 and exact != written:
        way = ROUND_UP if exact > written else ROUND_DOWN
    return f"{sign}{written.quantize(unit, way, _DIGITS):,.{digits}f}"


def _number(expr: Expr) -> pa.DataType | None:
    if is_decimal(expr.type):
        return expr.type
    return LONG.accept(expr) if is_integer(expr.type) else REAL.accept(expr)


def _each(usage: str, change: Callable[..., Any]) -> Callable[..., pa.Array]:
    return lambda *values: each_distinct(usage, change, STRING, *values)


_URL = takes(TEXT, TEXT, TEXT, gives=STRING, optional=1)
_ONE = takes(TEXT, gives=STRING)

FUNCTIONS = (
    function(
        "parse_url(url, part [, key])",
        _URL,
        _each("parse_url(url, part)", _part),
        "A part of an address: 'HOST', 'PATH', 'QUERY', 'REF', 'PROTOCOL', 'FILE', 'AUTHORITY' or "
        "'USERINFO'; of the query also the value of a key. Null if it has no such part.",
        spark=None,
        total=False,
        advice="use try_parse_url, which gives null",
    ),
    function(
        "try_parse_url(url, part [, key])",
        _URL,
        _each("try_parse_url(url, part)", _try_part),
        "As parse_url; null where the text is no address.",
        spark=None,
    ),
    function(
        "url_encode(s)",
        _ONE,
        _each("url_encode(s)", lambda s: quote_plus(s, safe="*").replace("~", "%7E")),
        "The text as it stands in the query of an address: + for a blank, %C3%A9 for é.",
        spark=called("url_encode"),
        total=False,
    ),
    function(
        "url_decode(s)",
        _ONE,
        _each("url_decode(s)", _decoded),
        "What url_encode has made of a text.",
        spark=None,
        total=False,
        advice="use try_url_decode, which gives null",
    ),
    function(
        "try_url_decode(s)",
        _ONE,
        _each("try_url_decode(s)", _try_decoded),
        "As url_decode; null where that fails.",
        spark=None,
    ),
    function(
        "format_number(x, digits)",
        takes(Kind("a number", _number), COUNT, gives=STRING),
        _each("format_number(x, digits)", _with_commas),
        "The number with commas between thousands, rounded half to even to so many digits, at "
        "most 400; null if they are negative.",
        spark=None,
        total=False,
        advice="use fewer digits",
    ),
)
