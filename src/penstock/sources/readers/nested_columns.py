"""Nested columns of files and frames as the declared types: what does not fit marks its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.model import Mask, one_array
from penstock.nested.shapes import (
    any_within,
    as_arrays,
    as_maps,
    as_structs,
    elements,
    fields_of,
    is_array,
    is_map,
    is_struct,
    parts,
    valid_mask,
)

Fitted: TypeAlias = tuple[pa.Array, Mask] | None
"""A column as its declared type, null where it does not fit, and where that is.

None: the types do not fit at all.
"""

_LISTS = (
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def fit_nested(
    array: pa.Array, type: pa.DataType, fit: Callable[[pa.Array, pa.DataType], Fitted]
) -> Fitted:
    """Return a nested column as a nested type; ``fit`` does the same for its inner columns.

    Fields go by their names, exactly or, where there is none, in any case; one that is missing is
    null.
    """
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type), np.zeros(len(array), bool)
    if any(test(array.type) for test in _LISTS):
        array = one_array(array.cast(pa.list_(array.type.value_type)))
    if is_struct(type):
        return _structs(array, type, fit) if is_struct(array.type) else None
    if is_map(type) != is_map(array.type) or not (is_map(type) or is_array(array.type)):
        return None
    places, inner = elements(array)
    valid = valid_mask(array)
    wanted = (type.key_type, type.item_type) if is_map(type) else (type.value_type,)
    columns, bad = [], np.zeros(len(array), bool)
    for given, kind in zip(parts(inner) if is_map(type) else [inner], wanted, strict=True):
        found = fit(given, kind)
        if found is None:
            return None
        columns.append(found[0])
        bad |= any_within(places, found[1])
    if is_map(type):
        lost = ~valid_mask(columns[0])
        if lost.any():  # a key that is null
            bad |= any_within(places, lost)
            keep = np.repeat(~bad, np.diff(places))
            columns = [column.filter(pa.array(keep)) for column in columns]
            places = np.concatenate([[0], np.cumsum(np.where(bad, 0, np.diff(places)))])
        return as_maps(places, columns[0], columns[1], valid & ~bad), bad
    return as_arrays(places, columns[0], valid & ~bad), bad


def _structs(
    array: pa.Array, type: pa.DataType, fit: Callable[[pa.Array, pa.DataType], Fitted]
) -> Fitted:
    names = [field.name for field in fields_of(array.type)]
    lowered = [name.lower() for name in names]
    given = parts(array)
    columns, bad = [], np.zeros(len(array), bool)
    for field in fields_of(type):
        if field.name in names:
            column = given[names.index(field.name)]
        elif lowered.count(field.name.lower()) == 1:
            column = given[lowered.index(field.name.lower())]
        else:
            column = pa.nulls(len(array), field.type)
        found = fit(column, field.type)
        if found is None:
            return None
        columns.append(found[0])
        bad |= found[1]
    return as_structs(type, columns, valid_mask(array) & ~bad), bad
