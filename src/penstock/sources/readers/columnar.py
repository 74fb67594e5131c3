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
    Asked,
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
"""Most rows of a columnar file that are converted at once: bounds memory."""

BLOCK_BYTES = 1 << 28
"""About how many bytes of a columnar file, unpacked, are converted at once."""

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


def read_parquet(asked: Asked) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of a Parquet file, opening only the row groups that hold them."""
    definition, path, first, last = asked.definition, asked.path, asked.first, asked.last
    with damage_told(definition, path, "Parquet"):
        file = pyarrow.parquet.ParquetFile(asked.source, page_checksum_verification=True)
        told = sound_metadata(file)
        names = file.schema_arrow.names
    if told.num_rows < last < ALL_ROWS:
        raise shorter(path)
    places = match_columns(asked, names)
    chosen = [names[places[column]] for column in asked.wanted]
    with damage_told(definition, path, "Parquet"):
        groups, begin, block = _row_groups(told, first, last)
        last = min(last, told.num_rows)
        at = begin
        for batch in file.iter_batches(block, row_groups=groups, columns=chosen):
            low, high = max(first - at, 0), min(last - at, batch.num_rows)
            if low < high:
                part = batch.slice(low, high - low)
                columns = [part.column(part.schema.names.index(name)) for name in chosen]
                yield typed(asked, columns, at + low - first)
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
    return groups, begin, _block(held, size)


def _block(rows: int, size: int) -> int:
    """Return how many of some rows, which have so many bytes, are converted at once."""
    return min(max(rows * BLOCK_BYTES // max(size, 1), 1), BLOCK_ROWS)


def read_arrow(asked: Asked) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of an Arrow file."""
    return _read_arrow(asked, asked.source.read_buffer())


def read_spool(asked: Asked) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of a spool's Arrow file, which must be what its name tells."""
    data = asked.source.read_buffer()
    check_bytes(asked.path, memoryview(data))
    return _read_arrow(asked, data)


def _read_arrow(asked: Asked, data: pa.Buffer) -> Iterator[Slice]:
    last, wanted = asked.last, asked.wanted
    with damage_told(asked.definition, asked.path, "Arrow"):
        table = pyarrow.ipc.open_file(data).read_all()
        if table.num_rows < last < ALL_ROWS:
            raise pa.ArrowInvalid(f"it has {table.num_rows} rows of {last}")
    places = match_columns(asked, table.column_names)
    with damage_told(asked.definition, asked.path, "Arrow"):
        for at in wanted:
            column = table.column(places[at])
            column.cast(_BYTES.get(column.type, column.type)).validate(full=True)
    table = table.slice(asked.first, last - asked.first)
    block = _block(table.num_rows, table.nbytes)
    for begin in range(0, max(table.num_rows, 1), block):
        part = table.slice(begin, block)
        yield typed(asked, [one_array(part.column(places[at])) for at in wanted], begin)


def read_native(
    definition: StreamDef, rows: pa.StructArray | pa.ChunkedArray, position: int = 0
) -> Slice:
    """Return the rows that Spark parsed itself, from their native struct column.

    ``position`` is that of the first.  Rows whose last field, the corrupt record, is set are
    rejected.
    """
    struct = one_array(rows)
    wanted = range(len(definition.schema))
    corrupt = struct.field(struct.type.get_field_index(CORRUPT))
    asked = Asked(definition, None, f"stream {definition.name}", wanted)
    return typed(asked, [struct.field(at) for at in wanted], position, corrupt)


def typed(
    asked: Asked,
    columns: Sequence[pa.Array],
    position: int = 0,
    corrupt: pa.Array | None = None,
) -> Slice:
    """Make a slice of typed columns; values that the declared types cannot hold are rejected."""
    definition, wanted = asked.definition, asked.wanted
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
                f"the column '{field.name}' of '{asked.path}' must be {type_name(field.type)} as "
                f"stream {definition.name} declares it, got {column.type}; declare the type that "
                f"the file has"
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
    return make_slice(asked, arrays, places + position, rejected, raw)


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
