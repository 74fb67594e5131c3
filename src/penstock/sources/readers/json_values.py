"""Values of JSON as texts that may fit a type: numbers as they are written, objects in order.

Inside of a nested value keys are those of the type, spelled exactly; keys that it does not have are
ignored, and one that is missing is null.  A MAP takes all keys of an object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.decimals import is_decimal
from penstock.expr.types import type_name
from penstock.model import Mask
from penstock.nested.json_text import Number, Object, loads, written
from penstock.nested.shapes import fields_of, is_array, is_map, is_nested, with_inner
from penstock.sources.readers.nested_columns import Fitted, fit_nested

_HALF = re.compile("[\ud800-\udfff]")


class BadValueError(Exception):
    """Says why a value or a line is rejected."""


def text_of(value: Any, type: pa.DataType, what: str) -> str | None:
    """Return a value as text that may fit its type; one that cannot is refused."""
    if value is None:
        return None
    if pa.types.is_string(type):
        text = str(value) if isinstance(value, str) else written(value)
        if not text.isascii() and _HALF.search(text):
            raise BadValueError(f"{what} must be text, got half of a surrogate pair")
        return text
    if is_nested(type):
        fits = isinstance(value, list) and isinstance(value, Object) != is_array(type)
        value = written(value) if fits else value
    elif isinstance(value, bool):
        fits = pa.types.is_boolean(type)
        value = str(value).lower()
    elif pa.types.is_boolean(type):
        fits = False
    elif pa.types.is_integer(type):
        fits = isinstance(value, Number)
    elif is_decimal(type):
        fits = isinstance(value, str)  # numbers, and texts of numbers
    elif pa.types.is_floating(type):
        fits = isinstance(value, Number) or value in ("NaN", "Infinity", "-Infinity")
    else:
        fits = isinstance(value, str) and not isinstance(value, Number)
        fits = fits and not _HALF.search(value)
    if not fits:
        raise BadValueError(f"{what} must be {type_name(type)}")
    return str(value)


# Nested values


def texts_inside(type: pa.DataType) -> pa.DataType:
    """Return a nested type with all plain types in it made STRING."""
    return with_inner(type, texts_inside) if is_nested(type) else pa.string()


def read_nested(
    texts: pa.Array,
    type: pa.DataType,
    convert: Callable[[pa.Array, pa.DataType], tuple[pa.Array, Mask]],
) -> tuple[pa.Array, Mask]:
    """Return JSON texts as a nested type, null where they do not fit, and where that is.

    ``convert`` does the same for a column of texts and a plain type.
    """
    bad: Mask = np.zeros(len(texts), bool)
    values: list[Any] = []
    for row, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = _shaped(loads(text), type)
                bad[row] = value is None and text.strip() != "null"
            except (ValueError, RecursionError, BadValueError):
                bad[row] = True
        values.append(value)
    found = _convert_inside(pa.array(values, texts_inside(type)), type, convert)
    return found[0], found[1] | bad


def _convert_inside(
    array: pa.Array,
    type: pa.DataType,
    convert: Callable[[pa.Array, pa.DataType], tuple[pa.Array, Mask]],
) -> tuple[pa.Array, Mask]:
    def inner(column: pa.Array, kind: pa.DataType) -> Fitted:
        if is_nested(kind):
            return fit_nested(column, kind, inner)
        return convert(column, kind)

    found = fit_nested(array, type, inner)
    assert found is not None
    return found


def _shaped(value: Any, type: pa.DataType) -> Any:
    """Return a value with the form of a type, its plain values as texts."""
    if not is_nested(type):
        return text_of(value, type, "a value")
    if value is None:
        return None
    if is_array(type):
        if not isinstance(value, list) or isinstance(value, Object):
            raise BadValueError("an array is wanted")
        return [_shaped(v, type.value_type) for v in value]
    if not isinstance(value, Object):
        raise BadValueError("an object is wanted")
    if is_map(type):
        if len({key for key, _ in value}) < len(value):
            raise BadValueError("a key must be there once")
        return [(_key(k, type.key_type), _shaped(v, type.item_type)) for k, v in value]
    fields = {field.name: field.type for field in fields_of(type)}
    found: dict[str, Any] = {}
    for key, inner in value:
        if key in fields:
            if key in found:
                raise BadValueError("a key must be there once")
            found[key] = _shaped(inner, fields[key])
    return found


def _key(key: str, type: pa.DataType) -> Any:
    if is_nested(type):
        return _shaped(loads(key), type)
    return text_of(key, pa.string(), "a key")
