"""Nested values that a program pushes: dicts, lists and tuples of Python as a type has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from penstock.expr.casts import cast_value
from penstock.expr.types import STRING
from penstock.nested.shapes import fields_of, is_map, is_nested, is_struct


def nested_value(value: Any, type: pa.DataType) -> Any:
    """Return a value as Arrow takes it; one that does not fit is a ValueError.

    A STRUCT is a dict of its fields, in any case, or a tuple of all of them; a MAP is a dict or a
    list of pairs; an ARRAY is a list or tuple.
    """
    if value is None:
        return None
    if is_struct(type):
        return _struct(value, type)
    if is_map(type):
        pairs = value.items() if isinstance(value, Mapping) else _listed(value)
        found = [
            (nested_value(key, type.key_type), nested_value(inner, type.item_type))
            for key, inner in pairs
        ]
        if any(key is None for key, _ in found):
            raise ValueError("a key of a map must not be null")
        return found
    if is_nested(type):
        return [nested_value(inner, type.value_type) for inner in _listed(value)]
    if pa.types.is_integer(type) and isinstance(value, float) and not value.is_integer():
        raise ValueError("fractions are no integers")
    if isinstance(value, str) and (pa.types.is_timestamp(type) or pa.types.is_date(type)):
        return cast_value(value, STRING, type)
    return value


def _listed(value: Any) -> Any:
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__iter__"):
        raise TypeError("a list is wanted")
    return value


def _struct(value: Any, type: pa.DataType) -> dict[str, Any]:
    fields = fields_of(type)
    if isinstance(value, Mapping):
        given = {str(key).lower(): inner for key, inner in value.items()}
        if len(given) < len(value) or given.keys() - {field.name.lower() for field in fields}:
            raise ValueError("a dict must have fields of the struct, each once")
        listed = [given.get(field.name.lower()) for field in fields]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        listed = list(value)
    else:
        raise TypeError("a dict or a tuple is wanted")
    pairs = zip(fields, listed, strict=True)
    return {field.name: nested_value(inner, field.type) for field, inner in pairs}
