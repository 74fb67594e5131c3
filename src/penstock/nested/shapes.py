"""ARRAY, STRUCT and MAP columns taken apart into plain columns, and put together again.

The types are Arrow's ``list``, ``struct`` and ``map`` with the names that Arrow gives their parts;
`plain_type` makes such a type of any other that Arrow has for lists, texts and times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import I64, TIMESTAMP, Mask, one_array


def is_array(type: pa.DataType) -> bool:
    """Whether it is ARRAY<..>."""
    return isinstance(type, pa.ListType)


def is_struct(type: pa.DataType) -> bool:
    """Whether it is STRUCT<..>."""
    return isinstance(type, pa.StructType)


def is_map(type: pa.DataType) -> bool:
    """Whether it is MAP<..>."""
    return isinstance(type, pa.MapType)


def is_nested(type: pa.DataType) -> bool:
    """Whether values of the type hold other values."""
    return isinstance(type, pa.ListType | pa.StructType | pa.MapType)


def inner_types(type: pa.DataType) -> tuple[pa.DataType, ...]:
    """Return the types of what a value holds: elements, fields, or keys and values."""
    if is_map(type):
        return (type.key_type, type.item_type)
    if is_array(type):
        return (type.value_type,)
    return tuple(field.type for field in fields_of(type)) if is_struct(type) else ()


def fields_of(type: pa.DataType) -> tuple[pa.Field, ...]:
    """Return the fields of a STRUCT, in order."""
    return tuple(type.field(at) for at in range(type.num_fields))


def holds(type: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one inside of it, passes a test."""
    return test(type) or any(holds(inner, test) for inner in inner_types(type))


def with_inner(type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a nested type with the types inside of it changed."""
    if is_map(type):
        return pa.map_(change(type.key_type), change(type.item_type))
    if is_array(type):
        return pa.list_(change(type.value_type))
    return pa.struct([pa.field(f.name, change(f.type)) for f in fields_of(type)])


_TEXTS = (pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Return the type that Penstock has for the same values, or the type itself."""
    if pa.types.is_dictionary(type):
        return plain_type(type.value_type)
    if is_map(type) or is_struct(type):
        return with_inner(type, plain_type)
    if any(test(type) for test in _LISTS):
        return pa.list_(plain_type(type.value_type))
    if pa.types.is_timestamp(type):
        return TIMESTAMP
    if any(test(type) for test in _TEXTS):
        return pa.string()
    if any(test(type) for test in _BYTES):
        return pa.binary()
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return {**wider, pa.float16(): pa.float32()}.get(type, type)


# Taking apart


def valid_mask(array: pa.Array) -> Mask:
    """Return where values are not null."""
    if not array.null_count:
        return np.ones(len(array), bool)
    return np.asarray(array.is_valid())


def elements(array: pa.Array) -> tuple[I64, pa.Array]:
    """Return where each value of an ARRAY or MAP column begins in its elements, and these.

    There is one more place than there are rows.  Elements of a MAP are structs of key and value;
    null has no elements.
    """
    if is_map(array.type):
        entry = pa.struct(
            [pa.field("key", array.type.key_type, False), pa.field("value", array.type.item_type)]
        )
        array = array.cast(pa.list_(entry))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    places = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=places[1:])
    return places, array.flatten()


def parts(array: pa.Array) -> list[pa.Array]:
    """Return the fields of a STRUCT column; those of null are null."""
    return [one_array(part) for part in array.flatten()]


# Putting together


def _mask(valid: Mask) -> pa.Array | None:
    return None if valid.all() else pa.array(~valid)


def as_arrays(places: I64, values: pa.Array, valid: Mask) -> pa.Array:
    """Return an ARRAY column: the inverse of `elements`."""
    starts = pa.array(places.astype(np.int32))
    kind = pa.list_(values.type)
    if not len(valid):
        return pa.array([], kind)
    return pa.ListArray.from_arrays(starts, values, type=kind, mask=_mask(valid))


def as_maps(places: I64, keys: pa.Array, values: pa.Array, valid: Mask) -> pa.Array:
    """Return a MAP column of its keys and values."""
    starts = pa.array(places.astype(np.int32))
    kind = pa.map_(keys.type, values.type)
    if not len(valid):
        return pa.array([], kind)
    return pa.MapArray.from_arrays(starts, keys, values, type=kind, mask=_mask(valid))


def as_structs(type: pa.DataType, columns: list[pa.Array], valid: Mask) -> pa.Array:
    """Return a STRUCT column of its fields."""
    if not columns:
        return pa.array([{} if v else None for v in valid.tolist()], type)
    return pa.StructArray.from_arrays(columns, fields=list(type), mask=_mask(valid))


def changed(array: pa.Array, type: pa.DataType, change: Callable[..., pa.Array]) -> pa.Array:
    """Return a nested column as another type of the same form, its inner columns changed.

    ``change`` gets an inner column and the type that it must have.  Fields go by their places.
    """
    valid = valid_mask(array)
    if is_struct(type):
        columns = [change(c, f.type) for c, f in zip(parts(array), fields_of(type), strict=True)]
        return as_structs(type, columns, valid)
    places, inner = elements(array)
    if is_array(type):
        return as_arrays(places, change(inner, type.value_type), valid)
    keys, values = parts(inner)
    return as_maps(places, change(keys, type.key_type), change(values, type.item_type), valid)


def any_within(places: I64, marked: Mask) -> Mask:
    """Return which rows have a marked element."""
    counted = np.concatenate([[0], np.cumsum(marked)])
    found: Mask = counted[places[1:]] > counted[places[:-1]]
    return found


def owners(places: I64) -> I64:
    """Return the row of each element."""
    return np.repeat(np.arange(len(places) - 1), np.diff(places))
