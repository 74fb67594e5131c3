"""Tables as JSON: whole columns are turned into text by Arrow, then joined row by row.

Timestamps are ISO 8601 in UTC, with microseconds only where there are some; NaN and the infinities
are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, because JSON has no such numbers.  A
DECIMAL is a number with all digits of its scale, BINARY a text in base 64, as Spark writes them.

All text is made in columns with 64-bit offsets: quotes and escapes may make it longer than 2 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decimals import is_decimal
from penstock.expr.decimal_casts import decimal_text
from penstock.model import TIMESTAMP, one_array
from penstock.nested.pieces import Pieces, joined_with, side_by_side
from penstock.nested.shapes import elements, is_map, is_nested, is_struct, parts, valid_mask
from penstock.sinks.base import Result, unique_names
from penstock.sources.readers.conversion import as_base64

_NO_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_TEXT = pa.large_string()
_CONTROL = r"[\x00-\x1f]"


def json_lines(table: pa.Table) -> bytes:
    """Return a table as lines of JSON objects."""
    rows: int = table.num_rows
    if rows == 0 or table.num_columns == 0:
        return b"{}\n" * rows
    table = unique_names(table)
    parts: list[Any] = []
    for number, name in enumerate(table.column_names):
        key = json.dumps(name, ensure_ascii=False)
        parts.append(pa.scalar(f"{', ' if number else '{'}{key}: "))
        parts.append(_encoded(one_array(table.column(name))))
    parts.append(pa.scalar("}\n"))
    text = [
        part.cast(_TEXT) if isinstance(part, pa.Array) else pa.scalar(part.as_py(), _TEXT)
        for part in parts
    ]
    lines = pc.binary_join_element_wise(*text, pa.scalar("", _TEXT))
    return b"".join(_bytes_of(chunk) for chunk in _chunks(lines))


def json_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Return a table's rows as dicts of what JSON can hold."""
    for line in json_lines(table).splitlines():
        yield json.loads(line)


def iso_text(times: pa.Array) -> pa.Array:
    """Return timestamps as ISO 8601 text, with microseconds only where there are some."""
    micros = times.cast(pa.timestamp("us")).view(pa.int64()).fill_null(0).to_numpy()
    text = pa.array(
        np.datetime_as_string(micros.view("datetime64[us]")).astype(object), pa.string()
    )
    short = pc.replace_substring_regex(text, r"\.000000$", "")
    return pc.if_else(times.is_valid(), short, pa.scalar(None, pa.string()))


def shown_time(result: Result) -> int | str | None:
    """Return the instant of a view as users see it."""
    if result.as_of is None or not result.timestamps:
        return result.as_of
    text: str = iso_text(pa.array([result.as_of], pa.int64()).cast(TIMESTAMP))[0].as_py()
    return text


def _chunks(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(array.chunks) if isinstance(array, pa.ChunkedArray) else [array]


def _bytes_of(lines: pa.Array) -> bytes:
    """Return the joined values of a string array: its data buffer."""
    offsets = np.frombuffer(lines.buffers()[1], np.int64)
    first, last = offsets[lines.offset], offsets[lines.offset + len(lines)]
    return bytes(lines.buffers()[2][int(first) : int(last)])


def _encoded(array: pa.Array) -> pa.Array:
    """Return a column's values as JSON text."""
    type = array.type
    if is_nested(type):
        return _nested(array)
    if pa.types.is_timestamp(type):
        text = _quoted(iso_text(array))
    elif pa.types.is_floating(type):
        text = _numbers(array)
    elif is_decimal(type):
        text = decimal_text(array)
    elif pa.types.is_binary(type):
        text = _quoted(as_base64(array))
    elif pa.types.is_integer(type) or pa.types.is_boolean(type):
        text = array.cast(pa.string())
    elif pa.types.is_date(type):
        text = _quoted(array.cast(pa.string()))
    else:
        text = _escaped(array.cast(pa.string()).cast(_TEXT))
    return text.fill_null("null")


def json_text(array: pa.Array) -> pa.Array:
    """Return a column's values as JSON text; null is null."""
    return pc.if_else(array.is_valid(), _encoded(array).cast(_TEXT), pa.scalar(None, _TEXT))


def _nested(array: pa.Array) -> pa.Array:
    """Return arrays and objects, written into one another."""
    rows, valid = len(array), valid_mask(array)
    if is_struct(array.type):
        whole = [Pieces.same(b"{", rows)]
        for at, (field, part) in enumerate(zip(array.type, parts(array), strict=True)):
            key = f"{', ' if at else ''}{json.dumps(field.name, ensure_ascii=False)}: "
            whole += [Pieces.same(key.encode(), rows), Pieces.of(_encoded(part))]
        whole.append(Pieces.same(b"}", rows))
    elif is_map(array.type):
        places, entries = elements(array)
        keys, values = parts(entries)
        keys = keys if pa.types.is_string(keys.type) else _key_text(keys)
        between = Pieces.same(b": ", len(keys))
        listed = side_by_side([Pieces.of(_escaped(keys)), between, Pieces.of(_encoded(values))])
        joined = joined_with(b", ", places, listed)
        whole = [Pieces.same(b"{", rows), joined, Pieces.same(b"}", rows)]
    else:
        places, values = elements(array)
        joined = joined_with(b", ", places, Pieces.of(_encoded(values)))
        whole = [Pieces.same(b"[", rows), joined, Pieces.same(b"]", rows)]
    if not valid.all():
        null = Pieces.same(b"null", rows).only(~valid)
        whole = [*(piece.only(valid) for piece in whole), null]
    return side_by_side(whole).text()


def _key_text(keys: pa.Array) -> pa.Array:
    """Return the keys of objects that are no texts: as JSON shows them, without its quotes."""
    text = _encoded(keys)
    if is_nested(keys.type):
        return text
    return pc.replace_substring_regex(text.cast(pa.string()), r'^"(.*)"$', r"\1")


def _quoted(text: pa.Array) -> pa.Array:
    quote = pa.scalar('"', _TEXT)
    return pc.binary_join_element_wise(quote, text.cast(_TEXT), quote, pa.scalar("", _TEXT))


def _numbers(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    text = pc.replace_substring_regex(text, r"^(-?[0-9]+)$", r"\1.0")
    if not pc.all(pc.is_finite(array)).as_py():
        for plain, shown in _NO_FINITE.items():
            text = pc.if_else(pc.equal(text, plain), pa.scalar(shown), text)
    return text


def _escaped(text: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(text, _CONTROL)).as_py():
        values = text.to_pylist()
        texts = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        return pa.array(texts, _TEXT)
    text = pc.replace_substring(text, "\\", "\\\\")
    return _quoted(pc.replace_substring(text, '"', '\\"'))
