"""Columnar files: rows of Parquet files, and of the Arrow files of a spool."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
from penstock.spark.readers.base import (
    CORRUPT,
    Slice,
    make_slice,
    match_columns,
    no_rejected,
    rejected_rows,
)
from penstock.spark.readers.conversion import plain

BLOCK_ROWS = 1 << 18
"""Rows of a Parquet file that are converted at once: bounds memory."""


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
    try:
        file = pyarrow.parquet.ParquetFile(source)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the file '{path}' of stream {definition.name} must be a Parquet file: {error}"
        ) from None
    names = file.schema_arrow.names
    places = match_columns(definition, wanted, names, path)
    groups, start, begin = [], 0, None
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if start < last and start + rows > first:
            groups.append(group)
            begin = start if begin is None else begin
        start += rows
    if begin is None:
        return
    at = begin
    chosen = [names[places[column]] for column in wanted]
    for batch in file.iter_batches(BLOCK_ROWS, row_groups=groups, columns=chosen):
        low, high = max(first - at, 0), min(last - at, batch.num_rows)
        if low < high:
            part = batch.slice(low, high - low)
            columns = [part.column(part.schema.get_field_index(name)) for name in chosen]
            yield typed(definition, wanted, columns, at + low - first, path, shift)
        at += batch.num_rows
        if at >= last:
            return


def read_arrow(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read rows ``[first, last)`` of an Arrow file of a spool."""
    table = pyarrow.ipc.open_file(source).read_all()
    places = match_columns(definition, wanted, table.column_names, path)
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

    def raw(at: Any) -> pa.Array:
        taken = [column.take(pa.array(places[at])) for column in columns]
        names = [definition.schema[i].name for i in wanted]
        texts = pa.array(
            [
                json.dumps(dict(zip(names, values, strict=True)), default=str)
                for values in zip(*(t.to_pylist() for t in taken), strict=True)
            ],
            pa.string(),
        )
        return texts if corrupt is None else pc.coalesce(corrupt.take(pa.array(places[at])), texts)

    rejected = no_rejected()
    if bad.any():
        lost = np.flatnonzero(bad)
        rejected = rejected_rows(lost + position, reasons.take(pa.array(lost)), raw(lost))
        places = np.flatnonzero(~bad)
        arrays = {at: array.take(pa.array(places)) for at, array in arrays.items()}
    return make_slice(definition, arrays, places + position, rejected, raw, shift)
