"""JSON: texts as values of a type, values as texts, and parts of texts.

What is read is read by Python, once for each distinct text; objects without others inside are read
by Arrow.  Both give the same values.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.errors import DataError, QueryError
from penstock.expr.casts import cast_array, double_text, try_cast_array
from penstock.expr.library.arrays import each_distinct, on_distinct
from penstock.expr.nested_types import NESTED, named_types
from penstock.expr.nodes import Expr, Literal
from penstock.expr.signatures import COUNT, TEXT, Mismatch, Types, function, takes
from penstock.expr.text_sizes import check_sizes
from penstock.expr.types import (
    BINARY,
    BOOLEAN,
    DATE,
    INT,
    NULL,
    STRING,
    is_floating,
    is_integer,
    is_numeric,
    parse_type,
)
from penstock.model import TIMESTAMP, one_array
from penstock.nested.json_text import Number, Object, loads
from penstock.nested.pieces import Pieces, joined_with, side_by_side
from penstock.nested.shapes import (
    as_structs,
    changed,
    elements,
    fields_of,
    is_array,
    is_map,
    is_nested,
    is_struct,
    parts,
    valid_mask,
    with_inner,
)

# from_json


def schema_type(text: str) -> pa.DataType:
    """Return the type that a schema means: ``a INT, b STRING`` or the name of a nested type."""
    if NESTED.match(text.strip()):
        return parse_type(text)
    return pa.struct([pa.field(*pair) for pair in named_types(text, text, parse_type)])


def _json_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    if len(args) != 2 or not isinstance(args[1], Literal) or args[1].type != STRING:
        raise Mismatch("a STRING and a constant schema, from_json(x, 'a INT, b ARRAY<STRING>')")
    if args[0].type not in (STRING, NULL):
        raise Mismatch("a STRING as argument 1")
    try:
        kind = schema_type(str(args[1].value))
    except QueryError as error:
        raise Mismatch(f"a schema that can be read ({error.message})") from None
    return (STRING, STRING), kind


_FLAT = r"\A\{[^{}\n\r]*\}\z"
_AT_ONCE = 1 << 12


def _from_json(text: Any, schema: str) -> pa.Array:
    kind = schema_type(schema)
    if is_struct(kind) and kind.num_fields and _arrow_reads(kind):
        return _by_pieces(text, kind)
    return on_distinct("from_json(x, schema)", lambda part: _one_by_one(part, kind))(text)


def _arrow_reads(kind: pa.DataType) -> bool:
    """Whether Arrow reads flat objects of such fields as they are meant: plain ones and lists."""
    for field in fields_of(kind):
        inner = field.type.value_type if is_array(field.type) else field.type
        if not (inner in (STRING, BOOLEAN) or is_integer(inner) or is_floating(inner)):
            return False
    return True


def _by_pieces(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Read by Arrow what it can read: pieces of texts that are flat objects."""
    flat = np.asarray(pc.fill_null(pc.match_substring_regex(text, _FLAT), False))
    found = []
    for first in range(0, max(len(text), 1), _AT_ONCE):
        part = text.slice(first, _AT_ONCE)
        read = _flat(part, kind) if len(part) and flat[first : first + len(part)].all() else None
        found.append(_one_by_one(part, kind) if read is None else read)
    return one_array(pa.chunked_array(found, kind))


def _flat(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return flat objects as STRUCTs; None where one of them does not fit."""
    lines = side_by_side([Pieces.of(text), Pieces.same(b"\n", len(text))])
    try:
        table = pyarrow.json.read_json(
            pa.py_buffer(np.ascontiguousarray(lines.data)),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=len(lines.data) + 1
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(text):
        return None
    columns = [one_array(table.column(field.name)) for field in fields_of(kind)]
    return as_structs(kind, columns, np.ones(len(text), bool))


_BAD = object()
"""Stands for a value that does not fit."""


def _one_by_one(text: pa.Array, kind: pa.DataType) -> pa.Array:
    values = []
    for one in text.to_pylist():
        found = None if one is None or not one.strip() else _shaped(_parsed(one), kind)
        if found is _BAD or (found is None and one and one.strip()):  # nulls, as in Spark
            found = {} if is_struct(kind) else None
        values.append(found)
    return _typed(pa.array(values, _texts_inside(kind)), kind)


_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def _parsed(text: str) -> Any:
    """Read a text; half a character, an escape without its other half, is '?', as in Spark."""
    if _ESCAPES.search(text):
        text = _ESCAPES.sub(lambda found: "?" if found["half"] else found[0], text)
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return _BAD


def _texts_inside(kind: pa.DataType) -> pa.DataType:
    return with_inner(kind, _texts_inside) if is_nested(kind) else STRING


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the form of a type and texts inside; `_BAD` where it does not fit."""
    if value is None or value is _BAD:
        return value
    if is_array(kind):
        if not isinstance(value, list) or isinstance(value, Object):
            return _BAD
        inner = [_shaped(v, kind.value_type) for v in value]
        return _BAD if _BAD in inner else inner
    if is_nested(kind):
        if not isinstance(value, Object):
            return _BAD
        if is_struct(kind):
            types = {field.name: field.type for field in fields_of(kind)}
            found = {k: _shaped(v, types[k]) for k, v in value if k in types}
            return {k: None if v is _BAD else v for k, v in found.items()}
        pairs = [(k, _shaped(v, kind.item_type)) for k, v in dict(value).items()]
        return _BAD if any(v is _BAD for _, v in pairs) else pairs
    return _leaf(value, kind)


def _leaf(value: Any, kind: pa.DataType) -> Any:
    """Return a plain value as text that CAST reads."""
    if kind == STRING:
        text = isinstance(value, str) and not isinstance(value, Number)
        return str(value) if text else _compact(value)
    if isinstance(value, bool):
        return str(value).lower() if kind == BOOLEAN else _BAD
    if not isinstance(value, str):
        return _BAD
    if isinstance(value, Number):
        if is_integer(kind) and (not value.lstrip("-").isdigit() or not _in_range(value, kind)):
            return _BAD
        return str(value) if is_numeric(kind) else _BAD
    if is_floating(kind):
        return value if value in ("NaN", "Infinity", "-Infinity", "+Infinity", "INF") else _BAD
    return _BAD if kind == BOOLEAN or is_integer(kind) else value


def _in_range(digits: str, kind: pa.DataType) -> bool:
    bits = kind.bit_width - 1
    return len(digits) < 25 and -(2**bits) <= int(digits) < 2**bits


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_nested(kind):
        return changed(array, kind, _typed)
    if kind == BINARY:
        return pa.array(map(_from_base64, array.to_pylist()), BINARY)
    return try_cast_array(array, kind)


def _from_base64(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return None


# get_json_object and its like

_STEP = re.compile(r"\.([^.\[\]*'\"]+)|\[(\d+)\]|\['([^']*)'\]")


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[str | int, ...] | None:
    """Return the keys and places of a path such as ``$.a[0].b``; None if it is none."""
    if not path.startswith("$"):
        return None
    at, found = 1, []
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            if "*" in path:
                raise DataError(
                    f"a path must name keys and places, such as $.a[0].b, got {path}; read all "
                    f"elements with from_json(x, 'ARRAY<..>')"
                )
            return None
        found.append(int(step[2]) if step[2] else step[1] or step[3])
        at = step.end()
    return tuple(found)


def _object(text: str, path: str) -> str | None:
    steps = _steps(path)
    value: Any = _BAD if steps is None else _parsed(text)
    for step in steps or ():
        if isinstance(step, int):
            fits = isinstance(value, list) and not isinstance(value, Object)
            value = value[step] if fits and step < len(value) else _BAD
        elif isinstance(value, Object):
            value = next((v for k, v in value if k == step and v is not None), _BAD)
        else:
            value = _BAD
    if value is None and not steps:
        return "null"
    if value is _BAD or value is None:
        return None
    return (
        str(value) if isinstance(value, str) and not isinstance(value, Number) else _compact(value)
    )


def _compact(value: Any) -> str:
    """Return a value as JSON without blanks, its numbers as Java writes them."""
    if isinstance(value, Number):
        whole = value.lstrip("-").isdigit()
        return str(value) if whole else double_text(float(value))
    if isinstance(value, Object):
        pairs = (f"{_text(key)}:{_compact(inner)}" for key, inner in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    found = json.dumps(value, ensure_ascii=False)
    return re.sub(r"\\u00(..)", lambda m: f"\\u00{m[1].upper()}", found)


def _length(text: str) -> int | None:
    value = _parsed(text)
    return len(value) if isinstance(value, list) and not isinstance(value, Object) else None


def _keys(text: str) -> list[str] | None:
    value = _parsed(text)
    return [key for key, _ in value] if isinstance(value, Object) else None


def _of_text(usage: str, change: Callable[..., Any], kind: pa.DataType) -> Callable[..., pa.Array]:
    return lambda *values: each_distinct(usage, change, kind, *values)


# to_json


def _to_json(value: pa.Array) -> pa.Array:
    found = _written(value)
    check_sizes(found.sizes, "to_json(x)")
    text = found.text().cast(STRING)
    return text if not value.null_count else pc.if_else(value.is_valid(), text, None)


def _written(array: pa.Array) -> Pieces:
    rows, valid, kind = len(array), valid_mask(array), array.type
    if is_struct(kind):
        whole = [Pieces.same(b"{", rows)]
        some = np.zeros(rows, bool)  # a field was written already
        for field, part in zip(kind, parts(array), strict=True):
            there = valid_mask(part)
            whole += [
                Pieces.same(b",", rows).only(there & some),
                Pieces.same(f"{_text(field.name)}:".encode(), rows).only(there),
                _written(part).only(there),
            ]
            some |= there
        whole.append(Pieces.same(b"}", rows))
    elif is_nested(kind):
        places, values = elements(array)
        if is_map(kind):
            keys, items = parts(values)
            colon = Pieces.same(b":", len(keys))
            listed = side_by_side([_plain(cast_array(keys, STRING)), colon, _written(items)])
        else:
            listed = _written(values)
        opening, closing = (b"{", b"}") if is_map(kind) else (b"[", b"]")
        joined = joined_with(b",", places, listed)
        whole = [Pieces.same(opening, rows), joined, Pieces.same(closing, rows)]
    else:
        whole = [_plain(array)]
    if valid.all():
        return side_by_side(whole)
    null = Pieces.same(b"null", rows).only(~valid)
    return side_by_side([*(piece.only(valid) for piece in whole), null])


def _plain(array: pa.Array) -> Pieces:
    kind = array.type
    if kind == TIMESTAMP:
        whole = pc.floor_temporal(array, unit="millisecond").cast(pa.timestamp("ms"))
        millis = pc.strftime(whole, format="%Y-%m-%dT%H:%M:%SZ")
        return Pieces.of(pc.binary_join_element_wise('"', millis, '"', ""))
    if kind == BINARY:
        coded = [None if v is None else base64.b64encode(v).decode() for v in array.to_pylist()]
        text = pa.array(coded, STRING)
    else:
        text = cast_array(array, STRING)
    quoted = kind in (STRING, DATE, BINARY)
    if is_floating(kind):
        strange = pc.invert(pc.is_finite(array))
        marked = pc.binary_join_element_wise('"', text, '"', "")
        text = pc.if_else(strange, marked, text)
    if quoted:
        if pc.any(pc.match_substring_regex(text, r'[\x00-\x1f"\\]')).as_py():
            text = each_distinct("to_json(x)", _text, STRING, text)
        else:
            text = pc.binary_join_element_wise('"', text, '"', "")
    return Pieces.of(text)


def _written_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    if len(args) != 1 or not is_nested(args[0].type):
        raise Mismatch("a STRUCT, ARRAY or MAP")
    return (args[0].type,), STRING


# split


def _split(text: Any, pattern: str | None, limit: int | None = -1) -> pa.Array:
    kind = pa.list_(STRING)
    if pattern is None or limit is None:
        return pa.nulls(len(text), kind)
    if pattern == "":
        return each_distinct("split(x, pattern)", lambda t: _characters(t, limit), kind, text)
    if pc.match_substring_regex(pa.array([""]), pattern)[0].as_py():
        raise DataError("a pattern must match at least one character, or be ''")
    if re.fullmatch(r"[\w ,;:/#@&=<>~'\"%!-]+", pattern, re.ASCII):  # no signs of expressions
        return pc.split_pattern(text, pattern, max_splits=limit - 1 if limit > 0 else None)
    return pc.split_pattern_regex(text, pattern, max_splits=limit - 1 if limit > 0 else None)


def _characters(text: str, limit: int) -> list[str]:
    if 0 < limit < len(text):
        return [*text[: limit - 1], text[limit - 1 :]]
    return list(text) or [""]


FUNCTIONS = (
    function(
        "from_json(x, 'a INT, b ARRAY<STRING>')",
        _json_rule,
        _from_json,
        "JSON text as a STRUCT of these fields, or as another nested type. What does not fit is "
        "null, and keys that are not named are left out. BINARY is base 64.",
        constants=(1,),
        spark=None,
    ),
    function(
        "to_json(x)",
        _written_rule,
        _to_json,
        "A STRUCT, ARRAY or MAP as JSON text; fields that are null are left out, BINARY is "
        "base 64.",
        spark=None,
    ),
    function(
        "get_json_object(x, '$.a[0].b')",
        takes(TEXT, TEXT, gives=STRING),
        _of_text("get_json_object(x, path)", _object, STRING),
        "A part of JSON text: a text as it is, anything else as JSON; null where there is none.",
        spark=None,
    ),
    function(
        "json_array_length(x)",
        takes(TEXT, gives=INT),
        _of_text("json_array_length(x)", _length, INT),
        "The number of elements of a JSON array; null for other texts.",
    ),
    function(
        "json_object_keys(x)",
        takes(TEXT, gives=pa.list_(STRING)),
        _of_text("json_object_keys(x)", _keys, pa.list_(STRING)),
        "The keys of a JSON object; null for other texts.",
    ),
    function(
        "split(x, pattern, limit)",
        takes(TEXT, TEXT, COUNT, gives=pa.list_(STRING), optional=1),
        _split,
        "Text cut at what an expression finds, into at most so many parts if the limit is above 0. "
        "`split(x, '')` gives the characters.",
        constants=(1, 2),
        spark=None,
    ),
)
