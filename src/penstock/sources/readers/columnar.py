"""Columnar files: rows of Parquet files, and of the Arrow files of a spool.

A damaged file is refused as a whole, by its name.  Text in it that is not UTF-8 is a bad row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.expr.types import type_name
from penstock.model import Mask, one_array
from penstock.sources.links import check_bytes
from penstock.sources.readers.base import (
    CORRUPT,
    RAW_BYTES,
    Slice,
    make_slice,
    match_columns,
    no_rejected,
    raw_text,
    rejected_rows,
    shorter,
)
from penstock.sources.readers.conversion import plain

ALL_ROWS = 2**62
"""Stands for the end of a columnar file."""

BLOCK_ROWS = 1 << 18
"""Most rows of a Parquet file that are converted at once: bounds memory."""

BLOCK_BYTES = 1 << 28
"""About how many bytes of a Parquet file, unpacked, are converted at once."""

_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}

_VIEWS = (pa.string_view(), pa.binary_view())


@contextmanager
def damage_told(definition: StreamDef, path: str, kind: str) -> Iterator[None]:
    """Turn whatever Arrow says of a damaged file into a sentence that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(
            f"the file '{path}' of stream {definition.name} must be a whole {kind} file, but it "
            f"cannot be read: {error}; bring back an undamaged copy"
        ) from None


def read_parquet(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of a Parquet file, opening only the row groups that hold them."""
    with damage_told(definition, path, "Parquet"):
        file = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        told = sound_metadata(file)
        names = file.schema_arrow.names
    if told.num_rows < last < ALL_ROWS:
        raise shorter(path)
    places = match_columns(definition, wanted, names, path)
    chosen = [names[places[column]] for column in wanted]
    with damage_told(definition, path, "Parquet"):
        groups, begin, block = _row_groups(told, first, last)
        last = min(last, told.num_rows)
        at = begin
        for batch in file.iter_batches(block, row_groups=groups, columns=chosen):
            low, high = max(first - at, 0), min(last - at, batch.num_rows)
            if low < high:
                part = batch.slice(low, high - low)
                columns = [part.column(part.schema.names.index(name)) for name in chosen]
                yield typed(definition, wanted, columns, at + low - first, path, shift)
            at += batch.num_rows
            if at >= last:
                return
        if at < last:
            raise pa.ArrowInvalid(f"it has {at} rows of the {last} that its end tells of")


def sound_metadata(file: Any) -> Any:
    """Return what the end of a Parquet file tells; its row groups must have the rows it counts."""
    told = file.metadata
    rows = [told.row_group(number).num_rows for number in range(told.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) != told.num_rows:
        raise pa.ArrowInvalid(f"it counts {told.num_rows} rows, but its row groups {sum(rows)}")
    return told


def _row_groups(told: Any, first: int, last: int) -> tuple[list[int], int, int]:
    """Return the row groups that hold some rows, where they start, and the rows to read at once."""
    groups: list[int] = []
    start = begin = size = held = 0
    for number in range(told.num_row_groups):
        group = told.row_group(number)
        if start < last and start + group.num_rows > first:
            begin = begin if groups else start
            groups.append(number)
            held += group.num_rows
            size += group.total_byte_size
        start += group.num_rows
    block = held * BLOCK_BYTES // max(size, 1)
    return groups, begin, min(max(block, 1), BLOCK_ROWS)


def read_arrow(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of an Arrow file."""
    return _read_arrow(definition, source.read_buffer(), path, first, last, wanted, shift)


def read_spool(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of a spool's Arrow file, which must be what its name tells."""
    data = source.read_buffer()
    check_bytes(path, memoryview(data))
    return _read_arrow(definition, data, path, first, last, wanted, shift)


def _read_arrow(
    definition: StreamDef,
    data: pa.Buffer,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    with damage_told(definition, path, "Arrow"):
        table = pyarrow.ipc.open_file(data).read_all()
        if table.num_rows < last < ALL_ROWS:
            raise pa.ArrowInvalid(f"it has {table.num_rows} rows of {last}")
    places = match_columns(definition, wanted, table.column_names, path)
    with damage_told(definition, path, "Arrow"):
        for at in wanted:
            column = table.column(places[at])
            column.cast(_BYTES.get(column.type, column.type)).validate(full=True)
    table = table.slice(first, last - first)
    columns = [one_array(table.column(places[at])) for at in wanted]
    yield typed(definition, wanted, columns, 0, path, shift)


def read_native(
    definition: StreamDef,
    rows: pa.StructArray | pa.ChunkedArray,
    columns: Sequence[int] | None = None,
) -> Slice:
    """Return the rows that Spark parsed itself, from their native struct column.

    Rows whose last field, the corrupt record, is set are rejected.
    """
    struct = one_array(rows)
    wanted = (
        sorted({*columns, definition.time})
        if columns is not None
        else list(range(len(definition.schema)))
    )
    corrupt = struct.field(struct.type.get_field_index(CORRUPT))
    found = typed(
        definition,
        wanted,
        [struct.field(at) for at in wanted],
        0,
        f"stream {definition.name}",
        0,
        corrupt,
    )
    return found


def typed(
    definition: StreamDef,
    wanted: Sequence[int],
    columns: Sequence[pa.Array],
    position: int,
    path: str,
    shift: int,
    corrupt: pa.Array | None = None,
) -> Slice:
    """Make a slice of typed columns; values that the declared types cannot hold are rejected."""
    # Arrow cannot take rows of views.
    columns = [c.cast(pa.binary()) if c.type in _VIEWS else c for c in columns]
    rows = len(columns[0])
    places = np.arange(rows)
    bad: Mask = np.zeros(rows, bool)
    reasons = pa.nulls(rows, pa.string())
    if corrupt is not None and corrupt.null_count < rows:
        bad = np.asarray(corrupt.is_valid())
        reason = pa.scalar("the row does not fit the declared columns")
        reasons = pc.if_else(pa.array(bad), reason, reasons)
    arrays = {}
    for at, column in zip(wanted, columns, strict=True):
        field = definition.schema[at]
        fitted = plain(column, field.type)
        if fitted is None:
            raise DataError(
                f"the column '{field.name}' of '{path}' must be {type_name(field.type)} as stream "
                f"{definition.name} declares it, got {column.type}; declare the type that the "
                f"file has"
            )
        arrays[at], wrong = fitted
        if wrong.any():
            reason = pa.scalar(f"the column '{field.name}' must be {type_name(field.type)}")
            reasons = pc.if_else(pa.array(wrong & ~bad), reason, reasons)
            bad = bad | wrong

    def raw(at: Any) -> list[str]:
        chosen = pa.array(places[at])
        names = [definition.schema[i].name for i in wanted]
        taken = [_shown(column.take(chosen)) for column in columns]
        known = [None] * len(chosen) if corrupt is None else _shown(corrupt.take(chosen))
        return [
            raw_text((text or _as_json(dict(zip(names, values, strict=True)))).encode())
            for text, values in zip(known, zip(*taken, strict=True), strict=True)
        ]

    rejected = no_rejected()
    if bad.any():
        lost = np.flatnonzero(bad)
        rejected = rejected_rows(lost + position, reasons.take(pa.array(lost)), raw(lost))
        places = np.flatnonzero(~bad)
        arrays = {at: array.take(pa.array(places)) for at, array in arrays.items()}
    return make_slice(definition, arrays, places + position, rejected, raw, shift)


def _shown(column: pa.Array) -> list[Any]:
    """Return values as Python's, to show them: of text what can be read, of far times a number."""
    as_bytes = _BYTES.get(column.type, column.type)
    if pa.types.is_binary(as_bytes) or pa.types.is_large_binary(as_bytes):
        shown = column.cast(as_bytes).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in shown]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return list(column.view(f"int{column.type.bit_width}").to_pylist())


def _as_json(row: dict[str, Any]) -> str:
    """Return a row as JSON; long values are cut first, as the whole will be."""
    short = {k: v[:RAW_BYTES] if isinstance(v, str | bytes) else v for k, v in row.items()}
    return json.dumps(short, default=str)
