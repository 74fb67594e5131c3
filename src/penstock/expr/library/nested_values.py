"""Making STRUCT, ARRAY and MAP values, and taking them apart: fields, elements, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.library.arrays import spread
from penstock.expr.library.conditional import equal
from penstock.expr.nested_types import field_place, has_map
from penstock.expr.nodes import Expr, Literal
from penstock.expr.signatures import (
    Function,
    Mismatch,
    Rule,
    Types,
    called,
    function,
    shared_type,
)
from penstock.expr.types import BOOLEAN, INT, NULL, STRING, common_type, is_integer
from penstock.model import I64, Mask
from penstock.nested.gathering import codes, first_of_each, joined, places_of, runs
from penstock.nested.shapes import (
    as_arrays,
    as_maps,
    as_structs,
    elements,
    fields_of,
    is_array,
    is_map,
    is_struct,
    owners,
    parts,
    valid_mask,
)


def of_nested(
    test: Callable[[pa.DataType], bool],
    words: str,
    gives: Callable[[pa.DataType], pa.DataType],
    *others: Callable[[pa.DataType], pa.DataType | None],
    optional: int = 0,
) -> Rule:
    """Return the rule of a function of one nested value and others, whose types follow from it."""

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        most = 1 + len(others)
        if not most - optional <= len(args) <= most:
            raise Mismatch(f"{most} argument{'' if most == 1 else 's'}")
        kind = args[0].type
        if not test(kind):
            raise Mismatch(f"{words} as argument 1")
        wanted = [kind]
        for number, (arg, other) in enumerate(zip(args[1:], others, strict=False), 2):
            target = other(kind)
            if target is None or (target == INT and not (is_integer(arg.type) or arg.type == NULL)):
                raise Mismatch(f"{'an INT' if target == INT else 'a value'} as argument {number}")
            if target != INT and common_type(target, arg.type) != target:
                raise Mismatch(f"a value of the same type as argument {number}")
            wanted.append(target)
        return tuple(wanted), gives(kind)

    return rule


def an_int(kind: pa.DataType) -> pa.DataType:
    """The argument is an INT."""
    return INT


def of_arrays(usage: str, *row: Any, **more: Any) -> Function:
    """Return a row of the table; Spark's function is called with columns, constants too."""
    more.setdefault("spark", called(more.get("name", usage.partition("(")[0])))
    return function(usage, *row, **more)


# Fields


def _field_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    value, name = args
    if not isinstance(name, Literal) or name.type != STRING:
        raise Mismatch("a STRUCT and the name of a field")
    if not is_struct(value.type):
        several = is_array(value.type) and is_struct(value.type.value_type)
        raise Mismatch(
            f"a STRUCT before .{name.value}"
            + (f"; take an element first, x[0].{name.value}" if several else "")
        )
    at = field_place(value.type, str(name.value))
    if at is None:
        listed = ", ".join(f.name for f in fields_of(value.type))
        raise Mismatch(f"a STRUCT with the field '{name.value}' (it has {listed})")
    return (value.type, STRING), value.type.field(at).type


def _field(value: pa.StructArray, name: str) -> pa.Array:
    at = field_place(value.type, name)
    return parts(value)[at or 0]


def _named_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    if not args or len(args) % 2:
        raise Mismatch("names and values in pairs, named_struct('a', x, 'b', y)")
    names = []
    for name in args[::2]:
        if not isinstance(name, Literal) or name.type != STRING or name.value is None:
            raise Mismatch("a constant text before each value")
        if str(name.value).lower() in names:
            raise Mismatch(f"each name once, but '{name.value}' is there twice")
        names.append(str(name.value).lower())
    kind = pa.struct(
        [
            pa.field(str(n.value), v.type)  # type: ignore[union-attr]
            for n, v in zip(args[::2], args[1::2], strict=True)
        ]
    )
    return tuple(arg.type for arg in args), kind


class _Names:
    """The even positions: names of fields."""

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and position % 2 == 0


def _named_struct(*args: Any) -> pa.Array:
    rows, columns = spread(*args[1::2])
    pairs = zip(args[::2], columns, strict=True)
    kind = pa.struct([pa.field(str(name), column.type) for name, column in pairs])
    return as_structs(kind, columns, np.ones(rows, bool))


# Elements


def _place_rule(zero: bool) -> Rule:
    """An ARRAY and an INT, or a MAP and a key."""

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        if len(args) != 2:
            raise Mismatch("2 arguments")
        value, place = args
        if is_map(value.type):
            if common_type(value.type.key_type, place.type) != value.type.key_type:
                raise Mismatch("a key of the type that the MAP has")
            return (value.type, value.type.key_type), value.type.item_type
        if not is_array(value.type):
            raise Mismatch("an ARRAY or MAP" + (" before [..]" if zero else " as argument 1"))
        if not (is_integer(place.type) or place.type == NULL):
            raise Mismatch("an INT as the place in an ARRAY")
        return (value.type, INT), value.type.value_type

    return rule


def _picked(values: pa.Array, index: I64, there: Mask) -> pa.Array:
    return values.take(pa.array(np.where(there, index, 0), mask=~there))


def _at(usage: str, first: int, strict: bool) -> Callable[..., Any]:
    """Return what takes the element at a place, counted from ``first``, or of a key."""

    def pick(value: Any, place: Any) -> pa.Array:
        _, (value, place) = spread(value, place)
        if is_map(value.type):
            return _of_key(value, place)
        places, values = elements(value)
        sizes, asked = np.diff(places), valid_mask(value) & valid_mask(place)
        number = np.asarray(pc.fill_null(place, first)).astype(np.int64)
        if first and (asked & (number == 0)).any():
            raise DataError(f"{usage} must get a place from 1 or below 0, got 0")
        index = np.where((number < 0) & (first == 1), sizes + number, number - first)
        there = asked & (index >= 0) & (index < sizes)
        if strict and (asked & ~there).any():
            row = int(np.argmax(asked & ~there))
            raise DataError(
                f"{usage} must get a place that the array has, got {number[row]} of "
                f"{sizes[row]} elements; get(x, i) and try_element_at(x, i) give null instead"
            )
        return _picked(values, places[:-1] + index, there)

    return pick


def _of_key(value: pa.Array, key: pa.Array) -> pa.Array:
    """Return the value of a key of each MAP; null where there is none."""
    places, entries = elements(value)
    keys, items = parts(entries)
    row = owners(places)
    hit = np.flatnonzero(np.asarray(pc.fill_null(equal(keys, key.take(pa.array(row))), False)))
    index = np.zeros(len(value), np.int64)
    there = np.zeros(len(value), bool)
    index[row[hit[::-1]]] = hit[::-1]  # the first of several
    there[row[hit]] = True
    return _picked(items, index, there)


def _size(value: pa.Array) -> pa.Array:
    places, _ = elements(value)
    return pa.array(np.diff(places).astype(np.int32), INT, mask=~valid_mask(value))


# Arrays and maps of values


def _array_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    shared = shared_type(args)
    if shared is None:
        raise Mismatch("values of one type (use CAST)")
    return (shared,) * len(args), pa.list_(shared)


def array_of(*values: Any) -> pa.Array:
    """Return the values of each row as an array."""
    if not values:
        return pa.array([[]], pa.list_(NULL))
    rows, columns = spread(*values)
    each = np.arange(rows + 1)
    return joined([(each, column) for column in columns], np.ones(rows, bool))


def _can_be_key(kind: pa.DataType) -> bool:
    return kind != NULL and not has_map(kind)


def _map_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    keys, values = shared_type(args[::2]), shared_type(args[1::2])
    if not args or len(args) % 2:
        raise Mismatch("keys and values in pairs, map(k, v, ..)")
    if keys is None or values is None or not _can_be_key(keys):
        raise Mismatch("keys of one type, which is no MAP, and values of one type")
    return (keys, values) * (len(args) // 2), pa.map_(keys, values)


def _map(*args: Any) -> pa.Array:
    _, columns = spread(*args)
    return _map_from_arrays(array_of(*columns[::2]), array_of(*columns[1::2]))


def _map_from_arrays(keys: Any, values: Any) -> pa.Array:
    _, (keys, values) = spread(keys, values)
    valid = valid_mask(keys) & valid_mask(values)
    (places, all_keys), (others, all_values) = elements(keys), elements(values)
    sizes = np.where(valid, np.diff(places), 0)
    if (valid & (np.diff(places) != np.diff(others))).any():
        raise DataError("map_from_arrays(keys, values) must get as many keys as values")
    all_keys = all_keys.take(pa.array(runs(places[:-1], sizes)))
    all_values = all_values.take(pa.array(runs(others[:-1], sizes)))
    return checked_maps(places_of(sizes), all_keys, all_values, valid)


def checked_maps(places: I64, keys: pa.Array, values: pa.Array, valid: Mask) -> pa.Array:
    """Return MAPs; a key that is null or there twice is an error."""
    if keys.null_count:
        raise DataError("the key of a MAP must not be null; leave such entries out")
    row = owners(places)
    if len(row):
        code = codes(keys)[0]
        if not first_of_each(row, code).all():
            twice = keys[int(np.argmin(first_of_each(row, code)))].as_py()
            raise DataError(
                f"a MAP must have each key once, got {twice!r} twice; leave one of them out"
            )
    return as_maps(places, keys, values, valid)


def _map_from_entries(entries: pa.Array) -> pa.Array:
    places, pairs = elements(entries)
    lost = ~valid_mask(pairs)
    valid = valid_mask(entries)
    if lost.any():  # as in Spark, a null entry makes the whole MAP null
        valid = valid.copy()
        valid[owners(places)[lost]] = False
    sizes = np.where(valid, np.diff(places), 0)
    keys, values = parts(pairs.take(pa.array(runs(places[:-1], sizes))))
    return checked_maps(places_of(sizes), keys, values, valid)


def _inside(which: int) -> Callable[[pa.Array], pa.Array]:
    def pick(value: pa.Array) -> pa.Array:
        places, entries = elements(value)
        return as_arrays(places, parts(entries)[which], valid_mask(value))

    return pick


def _entries(value: pa.Array) -> pa.Array:
    places, entries = elements(value)
    kind = _entry_type(value.type).value_type
    pairs = as_structs(kind, parts(entries), np.ones(len(entries), bool))
    return as_arrays(places, pairs, valid_mask(value))


def _entry_type(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def _has_key(value: Any, key: Any) -> pa.Array:
    _, (value, key) = spread(value, key)
    places, entries = elements(value)
    row = owners(places)
    same = equal(parts(entries)[0], key.take(pa.array(row)))
    found = np.zeros(len(value), bool)
    found[row[np.asarray(pc.fill_null(same, False))]] = True
    return pa.array(found, BOOLEAN, mask=~(valid_mask(value) & valid_mask(key)))


def _key_of(kind: pa.DataType) -> pa.DataType:
    key: pa.DataType = kind.key_type
    return key


def _sized(kind: pa.DataType) -> bool:
    return is_array(kind) or is_map(kind)


def _arrays_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    if len(args) != 2 or not all(is_array(arg.type) for arg in args):
        raise Mismatch("an ARRAY of keys and an ARRAY of values")
    keys, values = (arg.type for arg in args)
    if not _can_be_key(keys.value_type):
        raise Mismatch("keys that have a type, which is no MAP")
    return (keys, values), pa.map_(keys.value_type, values.value_type)


def _pairs(kind: pa.DataType) -> bool:
    if not (is_array(kind) and is_struct(kind.value_type) and kind.value_type.num_fields == 2):
        return False
    return _can_be_key(kind.value_type.field(0).type)


def _map_of_pairs(kind: pa.DataType) -> pa.DataType:
    key, value = fields_of(kind.value_type)
    return pa.map_(key.type, value.type)


FUNCTIONS = (
    of_arrays(
        "x.name",
        _field_rule,
        _field,
        "A field of a STRUCT.",
        name="get_field",
        spark=None,
        constants=(1,),
    ),
    of_arrays(
        "x[i]",
        _place_rule(True),
        _at("x[i]", 0, True),
        "The element of an ARRAY at a place counted from 0, which must be there; of a MAP, the "
        "value of a key, null where there is none.",
        name="get_element",
        spark=None,
        total=False,
    ),
    of_arrays(
        "get(x, i)",
        of_nested(is_array, "an ARRAY", lambda kind: kind.value_type, an_int),
        _at("get(x, i)", 0, False),
        "The element of an ARRAY at a place counted from 0, null where there is none.",
    ),
    of_arrays(
        "element_at(x, i)",
        _place_rule(False),
        _at("element_at(x, i)", 1, True),
        "The element of an ARRAY at a place counted from 1, or from the end where it is negative, "
        "which must be there; of a MAP, the value of a key, null where there is none.",
        total=False,
    ),
    of_arrays(
        "try_element_at(x, i)",
        _place_rule(False),
        _at("try_element_at(x, i)", 1, False),
        "As element_at, but null where there is no such element; a place of 0 is an error.",
        total=False,
    ),
    of_arrays(
        "named_struct('a', x, 'b', y, ..)",
        _named_rule,
        _named_struct,
        "A STRUCT of names and values. `STRUCT(a, x AS b)` has the names of its columns, or those "
        "behind AS, else col1, col2 ..",
        constants=_Names(),
    ),
    of_arrays("array(a, b, ..)", _array_rule, array_of, "An ARRAY of values of one type."),
    of_arrays(
        "map(k, v, k, v, ..)",
        _map_rule,
        _map,
        "A MAP of keys and values. Keys must not be null, and each there once.",
        spark=called("map"),
        total=False,
    ),
    of_arrays(
        "map_from_arrays(keys, values)",
        _arrays_rule,
        _map_from_arrays,
        "A MAP of an ARRAY of keys and one of values.",
        total=False,
    ),
    of_arrays(
        "map_from_entries(x)",
        of_nested(_pairs, "an ARRAY of STRUCTs of a key and a value", _map_of_pairs),
        _map_from_entries,
        "A MAP of an ARRAY of pairs; null where a pair is null.",
        total=False,
    ),
    of_arrays(
        "map_keys(x)",
        of_nested(is_map, "a MAP", lambda kind: pa.list_(kind.key_type)),
        _inside(0),
        "The keys of a MAP, as an ARRAY.",
    ),
    of_arrays(
        "map_values(x)",
        of_nested(is_map, "a MAP", lambda kind: pa.list_(kind.item_type)),
        _inside(1),
        "The values of a MAP, as an ARRAY.",
    ),
    of_arrays(
        "map_entries(x)",
        of_nested(is_map, "a MAP", _entry_type),
        _entries,
        "The entries of a MAP, as an ARRAY of STRUCTs of key and value.",
    ),
    of_arrays(
        "map_contains_key(x, key)",
        of_nested(is_map, "a MAP", lambda kind: BOOLEAN, _key_of),
        _has_key,
        "Whether a MAP has a key.",
    ),
    of_arrays(
        "size(x)",
        of_nested(_sized, "an ARRAY or MAP", lambda kind: INT),
        _size,
        "The number of elements of an ARRAY, or of entries of a MAP; null for null.",
        "cardinality",
        spark=called("size"),
    ),
    of_arrays(
        "array_size(x)",
        of_nested(is_array, "an ARRAY", lambda kind: INT),
        _size,
        "The number of elements of an ARRAY; null for null.",
    ),
)
