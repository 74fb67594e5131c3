"""Lines of JSON objects. A key that is missing is null; keys that are not declared are ignored.

A block is first given to Arrow whole.  When it fails, it is halved until the part that fails is
small, whose lines are then read one by one: there a number is accepted as text, and the texts
``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.expr.types import type_name
from penstock.model import I64, one_array
from penstock.spark.readers.base import Slice, make_slice, no_rejected, rejected_rows
from penstock.spark.readers.conversion import convert
from penstock.spark.readers.lines import Block, blocks, first_line, holds_text

_SMALL = 32
"""Lines of a failing part that are no longer halved but read one by one."""

_Rejected = list[tuple[int, str]]


def read_json(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a file of JSON objects."""
    keys = _keys(definition, source, wanted)
    for block in blocks(source, first, last):
        arrays, places, broken = _read(definition, block, keys)
        rejected = no_rejected()
        if broken:
            lost = np.array([at for at, _ in broken], np.int64)
            reasons = pa.array([reason for _, reason in broken], pa.string())
            rejected = rejected_rows(block.positions(lost), reasons, block.text(lost))
        yield make_slice(
            definition,
            arrays,
            block.positions(places),
            rejected,
            lambda at, block=block, places=places: block.text(places[at]),  # type: ignore[misc]
            shift,
        )


def check_json(definition: StreamDef, source: Any, path: str) -> None:
    """Check that a file has one object per line and is not one large array."""
    line, _ = first_line(source)
    if line.lstrip().startswith("["):
        raise DataError(
            f"the file '{path}' of stream {definition.name} must hold one JSON object per line, "
            f"but it starts with an array; write each object on a line of its own"
        )


def _keys(definition: StreamDef, source: Any, wanted: Sequence[int]) -> dict[int, str]:
    """Return the key of each wanted column, in the case in which the first object spells it."""
    line, _ = first_line(source)
    try:
        sample = json.loads(line)
    except ValueError:
        sample = {}
    spelled = {k.lower(): k for k in sample} if isinstance(sample, dict) else {}
    names = {at: definition.schema[at].name for at in wanted}
    return {at: spelled.get(name.lower(), name) for at, name in names.items()}


def _read(
    definition: StreamDef, block: Block, keys: Mapping[int, str]
) -> tuple[dict[int, pa.Array], I64, _Rejected]:
    """Read a block; return its columns, the places of its rows, and the lines that do not fit."""
    try:
        arrays, rows = _fast(definition, block, keys)
        places = np.arange(block.count) if rows == block.count else np.flatnonzero(~block.blank)
        if rows == len(places):
            return arrays, places, []
    except pa.ArrowInvalid:
        pass
    if block.count <= _SMALL:
        return _slow(definition, block, keys)
    middle = block.count // 2
    left, left_places, left_broken = _read(definition, block.part(0, middle), keys)
    right, right_places, right_broken = _read(definition, block.part(middle, block.count), keys)
    return (
        {at: pa.concat_arrays([left[at], right[at]]) for at in keys},
        np.concatenate([left_places, right_places + middle]),
        left_broken + [(at + middle, reason) for at, reason in right_broken],
    )


def _fast(
    definition: StreamDef, block: Block, keys: Mapping[int, str]
) -> tuple[dict[int, pa.Array], int]:
    declared = {at: definition.schema[at].type for at in keys}
    if not holds_text(block.data):
        return {at: pa.array([], type) for at, type in declared.items()}, 0
    # Arrow's JSON reader knows no dates: they are read as text.
    asked = [
        (key, pa.string() if pa.types.is_date(declared[at]) else declared[at])
        for at, key in keys.items()
    ]
    table = pyarrow.json.read_json(
        pa.BufferReader(block.data),
        read_options=pyarrow.json.ReadOptions(block_size=max(1 << 20, len(block.data) // 8)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(asked), unexpected_field_behavior="ignore"
        ),
    )
    arrays = {}
    for at, key in keys.items():
        array = one_array(table.column(key))
        if pa.types.is_date(declared[at]):
            array, bad = convert(array, declared[at])
            if bad.any():
                raise pa.ArrowInvalid("not a date")
        arrays[at] = array
    return arrays, table.num_rows


def _slow(
    definition: StreamDef, block: Block, keys: Mapping[int, str]
) -> tuple[dict[int, pa.Array], I64, _Rejected]:
    places: list[int] = []
    broken: _Rejected = []
    values: dict[int, list[pa.Array]] = {at: [] for at in keys}
    for place in np.flatnonzero(~block.blank).tolist():
        text = block.part(place, place + 1).data.to_pybytes()
        try:
            found = json.loads(text)
        except ValueError as error:
            broken.append((place, f"a line must be a JSON object: {error}"))
            continue
        if not isinstance(found, dict):
            broken.append((place, "a line must be a JSON object"))
            continue
        row = {}
        for at, key in keys.items():
            field = definition.schema[at]
            array = _value(found.get(key), field.type)
            if array is None:
                broken.append((place, f"the key '{key}' must be {type_name(field.type)}"))
                break
            row[at] = array
        else:
            places.append(place)
            for at, array in row.items():
                values[at].append(array)
    arrays = {
        at: pa.concat_arrays(parts) if parts else pa.array([], definition.schema[at].type)
        for at, parts in values.items()
    }
    return arrays, np.array(places, np.int64), broken


def _value(value: Any, type: pa.DataType) -> pa.Array | None:
    """Return a JSON value as an array of one, None if it does not fit the type."""
    if value is None:
        return pa.nulls(1, type)
    if pa.types.is_string(type):
        return pa.array([value if isinstance(value, str) else json.dumps(value)], type)
    if pa.types.is_boolean(type):
        return pa.array([value], type) if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(type):
        fits = isinstance(value, int)
    elif pa.types.is_floating(type):
        fits = isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    else:
        fits = isinstance(value, str)
    if not fits:
        return None
    array, bad = convert(pa.array([str(value)]), type)
    return None if bad.any() else array
