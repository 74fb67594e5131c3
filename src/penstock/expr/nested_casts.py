"""Conversions of ARRAY, STRUCT and MAP: which there are, and how they look as text."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import QueryError
from penstock.expr.text_sizes import check_sizes
from penstock.nested.pieces import Pieces, joined_with, side_by_side
from penstock.nested.shapes import (
    elements,
    inner_types,
    is_array,
    is_map,
    is_nested,
    is_struct,
    parts,
    valid_mask,
)

_NULL, _STRING = pa.null(), pa.string()


def check_nested_cast(
    source: pa.DataType,
    target: pa.DataType,
    check: Callable[[pa.DataType, pa.DataType], None],
    name: Callable[[pa.DataType], str],
) -> None:
    """Raise a QueryError when nested values can never become others; ``check`` does inner ones."""
    if source in (target, _NULL) or target == _STRING:
        return
    if source == _STRING:
        raise QueryError(
            f"CAST must be between types that can be converted, got STRING to {name(target)}; read "
            f"JSON text with from_json(x, '{name(target)}'), or cut text with split(x, ',')"
        )
    same = type(source) is type(target) and is_nested(source)
    inner = inner_types(source), inner_types(target)
    if not same or len(inner[0]) != len(inner[1]):
        advice = "; take one value out of it first" if is_nested(source) else ""
        raise QueryError(
            f"CAST must be between types that can be converted, got {name(source)} to "
            f"{name(target)}{advice}"
        )
    for one, other in zip(*inner, strict=True):
        check(one, other)


def nested_text(array: pa.Array, cast: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """Return nested values as Spark writes them: ``[1, 2]``, ``{1, x}``, ``{k -> v}``."""
    found = _written(array, cast)
    check_sizes(found.sizes, "CAST to STRING")
    text = found.text().cast(_STRING)
    return text if not array.null_count else pc.if_else(array.is_valid(), text, None)


def _written(array: pa.Array, cast: Callable[[pa.Array, pa.DataType], pa.Array]) -> Pieces:
    rows, valid = len(array), valid_mask(array)
    if is_struct(array.type):
        inner = [_written(part, cast) for part in parts(array)]
        between = [piece for one in inner for piece in (Pieces.same(b", ", rows), one)][1:]
        whole = [Pieces.same(b"{", rows), *between, Pieces.same(b"}", rows)]
    elif is_nested(array.type):
        places, values = elements(array)
        listed = _written(values, cast)
        if is_map(array.type):
            keys, items = (_written(part, cast) for part in parts(values))
            listed = side_by_side([keys, Pieces.same(b" -> ", len(values)), items])
        opening, closing = (b"[", b"]") if is_array(array.type) else (b"{", b"}")
        joined = joined_with(b", ", places, listed)
        whole = [Pieces.same(opening, rows), joined, Pieces.same(closing, rows)]
    else:
        text = cast(array, _STRING)
        return Pieces.of(text.fill_null("null") if text.null_count else text)
    if valid.all():
        return side_by_side(whole)
    null = Pieces.same(b"null", rows).only(~valid)
    return side_by_side([*(piece.only(valid) for piece in whole), null])
