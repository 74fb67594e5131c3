"""The oracle's JSON: read by Python, one text at a time."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.nested.shapes import fields_of, inner_types, is_array, is_map, is_nested, is_struct
from penstock.reference.casts import cast
from penstock.reference.times import time_text


class _Number(str):
    """A number as it stands there."""


class _Pairs(tuple[Any, ...]):
    """The keys and values of an object."""


_WRONG = object()


def _read(text: str) -> Any:
    try:
        found = json.loads(
            text,
            object_pairs_hook=lambda pairs: _Pairs(pairs),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
        )
    except (ValueError, RecursionError):
        return _WRONG
    return _whole(found)


def _whole(value: Any) -> Any:
    """Return a value with '?' for each half of a character."""
    if isinstance(value, _Pairs):
        return _Pairs((_whole(key), _whole(inner)) for key, inner in value)
    if isinstance(value, list):
        return [_whole(v) for v in value]
    if isinstance(value, str) and not isinstance(value, _Number):
        return "".join("?" if "\ud800" <= c <= "\udfff" else c for c in value)
    return value


def from_json(text: str | None, to: pa.DataType) -> Any:
    """Return a text as a value of a nested type."""
    if text is None or not text.strip():
        return None
    value = _fitted(_read(text), to)
    if value is not _WRONG and value is not None:
        return value
    return (None,) * to.num_fields if is_struct(to) else None


def _fitted(value: Any, to: pa.DataType) -> Any:
    if value is None or value is _WRONG:
        return value
    if is_array(to):
        if not isinstance(value, list):
            return _WRONG
        listed = [_fitted(v, to.value_type) for v in value]
        return _WRONG if _WRONG in listed else tuple(listed)
    if not is_nested(to):
        return _plain(value, to)
    if not isinstance(value, _Pairs):
        return _WRONG
    last = dict(value)
    if is_map(to):
        pairs = [
            (cast(k, pa.string(), to.key_type), _fitted(v, to.item_type)) for k, v in last.items()
        ]
        return _WRONG if any(v is _WRONG for _, v in pairs) else tuple(pairs)
    found = [_fitted(last.get(f.name), f.type) for f in fields_of(to)]
    return tuple(None if v is _WRONG else v for v in found)


def _plain(value: Any, to: pa.DataType) -> Any:
    number = isinstance(value, _Number)
    if pa.types.is_string(to):
        return str(value) if isinstance(value, str) and not number else _compact(value)
    if pa.types.is_boolean(to):
        return value if isinstance(value, bool) else _WRONG
    if isinstance(value, bool) or not isinstance(value, str):
        return _WRONG
    if pa.types.is_integer(to) and not (number and re.fullmatch("-?[0-9]+", value)):
        return _WRONG
    words = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF")
    if pa.types.is_floating(to) and not number and value not in words:
        return _WRONG
    if pa.types.is_temporal(to) and number:
        return _WRONG
    if pa.types.is_binary(to):
        try:
            return _WRONG if number else base64.b64decode(value, validate=True)
        except ValueError:
            return None
    try:
        return cast(value, pa.string(), to)
    except DataError:
        return _WRONG if pa.types.is_integer(to) else None


def _compact(value: Any) -> str:
    if isinstance(value, _Number):
        whole = re.fullmatch("-?[0-9]+", value)
        return str(value) if whole else str(cast(float(value), pa.float64(), pa.string()))
    if isinstance(value, _Pairs):
        return "{" + ",".join(f"{_quoted(k)}:{_compact(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_compact(v) for v in value) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    short = {
        '"': '\\"',
        "\\": "\\\\",
        "\n": "\\n",
        "\t": "\\t",
        "\r": "\\r",
        "\b": "\\b",
        "\f": "\\f",
    }
    marked = (short.get(c) or (f"\\u{ord(c):04X}" if c < " " else c) for c in text)
    return '"' + "".join(marked) + '"'


def get_json_object(text: str, path: str) -> str | None:
    """Return the part of a text at a path."""
    if not re.fullmatch(r"\$(\.[^.\[\]*'\"]+|\[\d+\]|\['[^']*'\])*", path):
        return None
    value = _read(text)
    for key, place, quoted in re.findall(r"\.([^.\[]+)|\[(\d+)\]|\['([^']*)'\]", path):
        if place:
            fits = isinstance(value, list) and int(place) < len(value)
            value = value[int(place)] if fits else None
        else:
            pairs = value if isinstance(value, _Pairs) else ()
            value = next((v for k, v in pairs if k == (key or quoted) and v is not None), None)
    if value is None and path == "$":
        return "null"
    if value is None or value is _WRONG:
        return None
    text_ = isinstance(value, str) and not isinstance(value, _Number)
    return str(value) if text_ else _compact(value)


def to_json(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> str | None:
    """Return a nested value as JSON."""
    return None if values[0] is None else _written(values[0], kinds[0])


def _written(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "null"
    inner = inner_types(kind)
    if is_map(kind):
        pairs = ((cast(k, inner[0], pa.string()), _written(v, inner[1])) for k, v in value)
        return "{" + ",".join(f"{_quoted(k)}:{v}" for k, v in pairs) + "}"
    if is_struct(kind):
        there = [(f, v) for f, v in zip(fields_of(kind), value, strict=True) if v is not None]
        return "{" + ",".join(f"{_quoted(f.name)}:{_written(v, f.type)}" for f, v in there) + "}"
    if is_nested(kind):
        return "[" + ",".join(_written(v, inner[0]) for v in value) + "]"
    if pa.types.is_timestamp(kind):
        text = time_text(value // 1000 * 1000)
        whole, _, part = text.partition(".")
        return f'"{whole.replace(" ", "T")}.{part.ljust(3, "0")[:3]}Z"'
    if pa.types.is_binary(kind):
        return _quoted(base64.b64encode(value).decode())
    text = str(cast(value, kind, pa.string()))
    strange = pa.types.is_floating(kind) and text[-1] in "Ny"
    if pa.types.is_string(kind) or pa.types.is_date(kind) or strange:
        return _quoted(text)
    return text


def _length(text: str) -> int | None:
    value = _read(text)
    return len(value) if isinstance(value, list) else None


def _keys(text: str) -> Any:
    value = _read(text)
    return tuple(key for key, _ in value) if isinstance(value, _Pairs) else None


def _split(text: str, pattern: str, limit: int = -1) -> Any:
    if pattern == "":
        parts = list(text) or [""]
        if 0 < limit < len(text):
            parts = [*text[: limit - 1], text[limit - 1 :]]
        return tuple(parts)
    parts, begin = [], 0
    for found in re.finditer(pattern, text):
        if 0 < limit <= len(parts) + 1:
            break
        parts.append(text[begin : found.start()])
        begin = found.end()
    return (*parts, text[begin:])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_json_object": get_json_object,
    "json_array_length": _length,
    "json_object_keys": _keys,
    "split": _split,
}
"""Functions that give null when an argument is null."""

WITH_TYPES: dict[str, Callable[..., Any]] = {"to_json": to_json}
"""Functions that are told the types of their arguments."""
