"""Spools: the rows that a program pushes into a memory stream, kept as numbered Arrow files.

A file ``<number>-<rows>.arrow`` appears by one rename and never changes; numbers have no gaps.
The file ``finished`` marks the end.  So a stream over a spool can be restarted like any other.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from penstock.errors import DataError, suggest
from penstock.expr.types import type_name
from penstock.model import Schema, one_array
from penstock.spark.readers.conversion import plain

FILE_ROWS = 1 << 18
"""Most rows of one spool file: larger pushes are split."""

_FINISHED = "finished"
_lock = threading.Lock()
_NAME = re.compile(r"(\d{10})-(\d+)\.arrow")


@dataclass(frozen=True)
class SpoolPosition:
    """How many files of a spool have been taken, and the arrival number of the next row."""

    taken: int = 0
    ordinal: int = 0
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset log keeps it."""
        return asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> SpoolPosition:
        """The inverse of `to_json`."""
        return SpoolPosition(**found)


class SpoolFiles:
    """The files of a spool as a reader sees them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def rows(self) -> list[int]:
        """Return how many rows each file has, in order; it stops where a number is missing."""
        found = self._listed()
        counts: list[int] = []
        while len(counts) in found:
            counts.append(found[len(counts)])
        return counts

    def finished(self) -> bool:
        """Whether no more files will come."""
        return (self._folder / _FINISHED).exists()

    def advance(
        self, start: SpoolPosition, limit: int, target: SpoolPosition | None = None
    ) -> SpoolPosition:
        """Return where a batch from ``start`` of about ``limit`` rows ends."""
        finished = self.finished() if target is None else target.done
        counts = self.rows()[: None if target is None else target.taken]
        taken, ordinal = start.taken, start.ordinal
        while taken < len(counts) and (
            taken == start.taken or ordinal + counts[taken] - start.ordinal <= limit
        ):
            ordinal += counts[taken]
            taken += 1
        return SpoolPosition(taken, ordinal, finished and taken >= len(counts))

    def slices(
        self, stream: str, start: SpoolPosition, end: SpoolPosition
    ) -> list[tuple[str, str, int, int, int, int, bool]]:
        """Return the descriptors of the files between two positions; the last may be final."""
        counts = self._listed()
        found, ordinal = [], start.ordinal
        for number in range(start.taken, end.taken):
            if number not in counts:
                raise DataError(
                    f"the spool of stream {stream} must keep its files, but number {number} of "
                    f"'{self._folder}' is gone; start with a new checkpoint"
                )
            path = self._folder / f"{number:010d}-{counts[number]}.arrow"
            last = end.done and number + 1 == end.taken
            found.append((stream, str(path), 0, counts[number], ordinal, 0, last))
            ordinal += counts[number]
        if end.done and not found:
            found.append((stream, "", 0, 0, ordinal, 0, True))
        return found

    def _listed(self) -> dict[int, int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        matches = (_NAME.fullmatch(name) for name in names)
        return {int(m[1]): int(m[2]) for m in matches if m}


class Spool:
    """The writing end of a memory stream. Safe to use from several threads of one process."""

    def __init__(self, folder: str | Path, schema: Schema, fsync: bool = True) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._fsync = fsync
        self._files = SpoolFiles(self._folder)

    def push(self, rows: Any) -> None:
        """Add rows: dicts or tuples in a list, an Arrow table or batch, or a pandas DataFrame."""
        table = as_table(rows, self._schema)
        with _lock:
            if self._files.finished():
                raise DataError(
                    "rows must be pushed before finish(), but this stream is finished; "
                    "make a new one"
                )
            number = len(self._files.rows())
            for first in range(0, table.num_rows, FILE_ROWS):
                self._write(number, table.slice(first, FILE_ROWS))
                number += 1

    def finish(self) -> None:
        """Say that no more rows will come: the stream ends after those already pushed."""
        with _lock:
            self._publish(_FINISHED, b"")

    def _write(self, number: int, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._publish(f"{number:010d}-{table.num_rows}.arrow", sink.getvalue())

    def _publish(self, name: str, data: Any) -> None:
        hidden = self._folder / f".{name}.tmp"
        with open(hidden, "wb") as file:
            file.write(data)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())
        os.replace(hidden, self._folder / name)
        if self._fsync:
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def as_table(rows: Any, schema: Schema) -> pa.Table:
    """Return pushed rows as a table of the declared columns, or say what does not fit."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return _from_table(rows, schema)
    if hasattr(rows, "to_records") and hasattr(rows, "columns"):
        return _from_table(pa.Table.from_pandas(rows, preserve_index=False), schema)
    if isinstance(rows, dict | str | bytes) or not hasattr(rows, "__iter__"):
        raise DataError(
            f"pushed rows must be a list of dicts or tuples, an Arrow table or a pandas "
            f"DataFrame, got {type(rows).__name__}"
        )
    listed = list(rows)
    columns = _columns_of(listed, schema)
    arrays = [
        _typed(values, field.name, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=_arrow_schema(schema))


def _arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _columns_of(rows: Sequence[Any], schema: Schema) -> list[list[Any]]:
    names = [name.lower() for name in schema.names]
    known = set(names)
    tuples: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            lowered = {str(k).lower(): v for k, v in row.items()}
            for name in lowered:
                if name not in known:
                    raise DataError(
                        f"row {number} must have only declared columns, got '{name}'; "
                        f"{suggest(name, schema.names)}"
                    )
            tuples.append([lowered.get(name) for name in names])
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes):
            if len(row) != len(names):
                raise DataError(
                    f"row {number} must have {len(names)} values ({', '.join(schema.names)}), "
                    f"got {len(row)}"
                )
            tuples.append(row)
        else:
            raise DataError(
                f"row {number} must be a dict or a tuple, got {type(row).__name__}: {row!r}"
            )
    return [[row[at] for row in tuples] for at in range(len(names))]


def _typed(values: list[Any], name: str, type: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_timestamp(type):
            inferred = pa.array(values)
            fitted = plain(inferred, type)
            if fitted is not None:
                return fitted[0]
        return pa.array(values, type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        for number, value in enumerate(values):
            try:
                pa.array([value], type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
                raise DataError(
                    f"the column '{name}' of row {number} must be {type_name(type)}, got {value!r}"
                ) from None
        raise


def _from_table(table: pa.Table, schema: Schema) -> pa.Table:
    places = {name.lower(): at for at, name in enumerate(table.column_names)}
    extra = set(places) - {name.lower() for name in schema.names}
    if extra:
        name = sorted(extra)[0]
        raise DataError(
            f"pushed rows must have only declared columns, got '{name}'; "
            f"{suggest(name, schema.names)}"
        )
    arrays = []
    for field in schema:
        if field.name.lower() not in places:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column = one_array(table.column(places[field.name.lower()]))
        fitted = plain(column, field.type)
        if fitted is None:
            raise DataError(
                f"the column '{field.name}' of pushed rows must be {type_name(field.type)}, "
                f"got {column.type}; cast it first"
            )
        array, bad = fitted
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"the column '{field.name}' of row {row} must be {type_name(field.type)}, "
                f"got {column[row].as_py()!r}"
            )
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=_arrow_schema(schema))
