"""The oracle's functions of ARRAY, STRUCT and MAP values, which are tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.nested.shapes import fields_of, is_map
from penstock.reference.values import compare

_ORDER = cmp_to_key(compare)


def _same(a: Any, b: Any) -> bool:
    return compare(a, b) == 0


def _among(value: Any, values: Sequence[Any]) -> bool:
    return any(_same(value, other) for other in values)


def _once(values: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if not _among(value, found):
            found.append(value)
    return tuple(found)


def _value_of(entries: Any, key: Any) -> Any:
    return next((value for k, value in entries if _same(k, key)), None)


def _at(values: Any, place: int, first: int, strict: bool) -> Any:
    if first and place == 0:
        raise DataError("a place must be from 1 or below 0, got 0")
    at = place - first if place >= first else (place + len(values) if first else -1)
    if 0 <= at < len(values):
        return values[at]
    if strict:
        raise DataError(f"an array of {len(values)} elements must have the place {place}")
    return None


def _contains(values: Any, value: Any) -> bool | None:
    if any(v is not None and _same(v, value) for v in values):
        return True
    return None if None in values else False


def _position(values: Any, value: Any) -> int:
    found = [at for at, v in enumerate(values, 1) if v is not None and _same(v, value)]
    return found[0] if found else 0


def _slice(values: Any, start: int, length: int) -> Any:
    if start == 0 or length < 0:
        raise DataError("a slice must start at a place and have a length")
    begin = start - 1 if start > 0 else len(values) + start
    return values[begin : begin + length] if 0 <= begin < len(values) else ()


def _sorted(values: Any, ascending: bool = True) -> Any:
    return tuple(sorted(values, key=_ORDER, reverse=not ascending))


def _nulls_last(values: Any) -> Any:
    return tuple(sorted(values, key=lambda v: (v is None, _ORDER(v))))


def _extreme(largest: bool) -> Callable[[Any], Any]:
    def pick(values: Any) -> Any:
        there = _sorted([v for v in values if v is not None])
        return there[-1 if largest else 0] if there else None

    return pick


def _join(values: Any, delimiter: str, instead: str | None = None) -> str:
    texts = [instead if v is None else v for v in values]
    return delimiter.join(text for text in texts if text is not None)


def _flatten(values: Any) -> Any:
    return None if None in values else tuple(v for inner in values for v in inner)


def _overlap(a: Any, b: Any) -> bool | None:
    if any(v is not None and _among(v, b) for v in a):
        return True
    return None if a and b and (None in a or None in b) else False


def _sequence(start: int, stop: int, step: int | None = None) -> Any:
    by = step if step is not None else (1 if start <= stop else -1)
    if (by >= 0 and start > stop) or (by <= 0 and start < stop):
        raise DataError("a step must lead from start to stop")
    return tuple(range(start, stop + (1 if by >= 0 else -1), by or 1))


def _maps(pairs: Sequence[Any]) -> Any:
    keys = [key for key, _ in pairs]
    if None in keys or len(_once(keys)) < len(keys):
        raise DataError("the keys of a map must be there, and each once")
    return tuple(pairs)


def _from_arrays(keys: Any, values: Any) -> Any:
    if len(keys) != len(values):
        raise DataError("a map must have as many keys as values")
    return _maps(list(zip(keys, values, strict=True)))


def _from_entries(entries: Any) -> Any:
    return None if None in entries else _maps(entries)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get": lambda values, place: _at(values, place, 0, False),
    "map_from_arrays": _from_arrays,
    "map_from_entries": _from_entries,
    "map_keys": lambda entries: tuple(key for key, _ in entries),
    "map_values": lambda entries: tuple(value for _, value in entries),
    "map_entries": lambda entries: entries,
    "map_contains_key": lambda entries, key: any(_same(k, key) for k, _ in entries),
    "size": len,
    "array_size": len,
    "array_contains": _contains,
    "array_position": _position,
    "array_remove": lambda values, v: tuple(x for x in values if x is None or not _same(x, v)),
    "sort_array": _sorted,
    "array_sort": _nulls_last,
    "array_distinct": _once,
    "array_min": _extreme(False),
    "array_max": _extreme(True),
    "array_join": _join,
    "slice": _slice,
    "flatten": _flatten,
    "array_concat": lambda *arrays: tuple(v for values in arrays for v in values),
    "array_reverse": lambda values: values[::-1],
    "array_compact": lambda values: tuple(v for v in values if v is not None),
    "array_union": lambda a, b: _once((*a, *b)),
    "array_intersect": lambda a, b: _once([v for v in a if _among(v, b)]),
    "array_except": lambda a, b: _once([v for v in a if not _among(v, b)]),
    "arrays_overlap": _overlap,
    "sequence": _sequence,
}
"""Functions that give null when an argument is null."""


def _appended(before: bool) -> Callable[..., Any]:
    def put(values: Any, value: Any) -> Any:
        found, one = values(), value()
        if found is None:
            return None
        return (one, *found) if before else (*found, one)

    return put


def _repeat(value: Any, times: Any) -> Any:
    count = times()
    return None if count is None else (value(),) * max(count, 0)


LAZY: dict[str, Callable[..., Any]] = {
    "array": lambda *values: tuple(value() for value in values),
    "map": lambda *args: _maps([(k(), v()) for k, v in zip(args[::2], args[1::2], strict=True)]),
    "named_struct": lambda *args: tuple(value() for value in args[1::2]),
    "array_append": _appended(False),
    "array_prepend": _appended(True),
    "array_repeat": _repeat,
}
"""Functions that see null arguments."""


def _place(first: int, strict: bool) -> Callable[..., Any]:
    def pick(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> Any:
        if None in values:
            return None
        return _value_of(*values) if is_map(kinds[0]) else _at(values[0], values[1], first, strict)

    return pick


def _field(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> Any:
    names = [f.name.lower() for f in fields_of(kinds[0])]
    return None if values[0] is None else values[0][names.index(values[1].lower())]


WITH_TYPES: dict[str, Callable[..., Any]] = {
    "get_field": _field,
    "get_element": _place(0, True),
    "element_at": _place(1, True),
    "try_element_at": _place(1, False),
}
"""Functions that are told the types of their arguments."""
