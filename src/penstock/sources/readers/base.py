"""What every reader shares: slices of files, rejected rows, and the descriptors of slices.

A *descriptor* is a tiny row that Spark carries instead of data: it says which range of which file
belongs to a batch.  The task that packs a stream's rows reads the range itself with Arrow.

* ``[first, last)`` are bytes of a file of lines, which begin and end at line starts, or rows of a
  columnar file; ``last == -1`` means up to the end.
* ``ordinal >= 0`` is the arrival number of the slice's first line or row.  ``ordinal < 0`` stands
  for a file of a folder, whose rows the packer numbers itself: it is the file's modification time
  in microseconds minus ``FOLDER_ORDINAL``.
* Sorting by ``(ordinal, path, first)`` gives the order of arrival for every kind of source.
* ``shift`` is added to the time column; ``final`` marks the end of a finite source.
* ``partition`` and ``number`` name the source partition that the rows belong to: its progress and
  its late rows are its own.  A slice of no rows makes a partition known before it is read.
* ``floor`` is a heartbeat of the partition that holds after the slice; ``ends``: nothing more comes
  of the partition.

A `Slice` keeps every row of its range exactly once: either in ``table`` or in ``rejected``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from penstock.catalog import StreamDef
from penstock.errors import ConfigError, DataError, suggest
from penstock.expr.types import parse_type, type_name
from penstock.model import I64, INF, MIN_TIME, TIMESTAMP, Field, Mask, Schema, one_array, to_numpy
from penstock.timing import TimeRules

DESCRIPTOR = pa.schema(
    [
        ("stream", pa.string()),
        ("path", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ordinal", pa.int64()),
        ("shift", pa.int64()),
        ("final", pa.bool_()),
        ("partition", pa.string()),
        ("number", pa.int64()),
        ("floor", pa.int64()),
        ("ends", pa.bool_()),
    ]
)
"""The columns that every opened stream has."""


ARRIVAL = ("ordinal", "path", "first")
"""The columns that say in which order descriptors, and native rows, have arrived."""


class Descriptor(NamedTuple):
    """A slice of a file, as Spark carries it; see the head of this module."""

    stream: str
    path: str
    first: int
    last: int
    ordinal: int
    shift: int = 0
    final: bool = False
    partition: str = ""
    number: int = 0
    floor: int | None = None
    ends: bool = False


FOLDER_ORDINAL = 2**62
"""Subtracted from modification times, so that the ordinals of folder files are negative."""

REJECTED = pa.schema([("position", pa.int64()), ("reason", pa.string()), ("raw", pa.string())])

_BOUNDS: Mapping[pa.DataType, tuple[int, int]] = {
    TIMESTAMP: (-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.date32(): (-719_162, 2_932_896),
}
"""The first and last instant, and day, that every program and database can hold."""

RAW_BYTES = 1 << 16
"""Most bytes of a rejected row that are kept as its raw text."""

CORRUPT = "_corrupt_record"
"""The last field of a native struct: the text of a row that Spark could not parse, else null."""

EXTENSIONS: Mapping[str, str] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".arrow": "arrow",
}

COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".zip", ".snappy", ".lz4")

FORMATS: Mapping[str, str] = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "parquet": "parquet",
    "text": "text",
}
"""What the option ``format`` of a replayed stream may say, and the reader it means."""

RawText = Callable[[I64], list[str]]
"""Gives the text of the rows at some places of a block, made by `raw_text`."""


@dataclass(frozen=True)
class Slice:
    """Rows read from a part of a file.

    ``table`` has the declared columns and types; ``positions`` are the places of its rows counted
    from the start of the slice; ``rejected`` holds position, reason and raw text of the others.
    ``place`` tells where the row at a position stands, if that is a file.
    """

    table: pa.Table
    positions: I64
    rejected: pa.Table
    place: Callable[[int], str] | None = None


@dataclass(frozen=True)
class Asked:
    """What a reader is asked for: the rows ``[first, last)`` of a file, and the columns to parse.

    ``source`` is the file, which is open; ``shift`` is added to the time column.
    """

    definition: StreamDef
    source: Any
    path: str
    wanted: Sequence[int]
    first: int = 0
    last: int = 0
    shift: int = 0


def no_rows(definition: StreamDef) -> Slice:
    """Return a slice of no rows."""
    schema = pa.schema([pa.field(f.name, f.type) for f in definition.schema])
    return Slice(schema.empty_table(), np.empty(0, np.int64), REJECTED.empty_table())


def option(definition: StreamDef, name: str, default: str | None = None) -> str | None:
    """Return an option by its name in lower case, whatever case it was given in."""
    for key, value in definition.options.items():
        if key.lower() == name:
            return str(value)
    return default


def refuses_missing(definition: StreamDef) -> bool:
    """Return whether a JSON line must have every declared key: the option ``missing``."""
    given = (option(definition, "missing") or "null").lower()
    if given not in ("null", "error"):
        raise ConfigError(
            f"the option missing of stream {definition.name} must be 'null', a missing key is "
            f"null, or 'error', such a line is a bad row, got '{given}'"
        )
    return given == "error"


def to_json(definition: StreamDef) -> str:
    """Write down what a reader needs of a definition, for the process that plans batches."""
    return json.dumps(
        {
            "name": definition.name,
            "columns": [[f.name, type_name(f.type)] for f in definition.schema],
            "format": definition.format,
            "options": dict(definition.options),
            "time": definition.time,
            "slack": definition.timing.slack,
            "keeping": definition.timing.keeping,
        }
    )


def from_json(text: str) -> StreamDef:
    """The inverse of `to_json`."""
    found = json.loads(text)
    fields = tuple(Field(name, parse_type(type)) for name, type in found["columns"])
    timing = TimeRules(found["slack"], found["keeping"])
    return StreamDef(
        found["name"],
        Schema(fields),
        found["format"],
        found["options"],
        found["time"],
        timing=timing,
    )


def file_format(definition: StreamDef, path: str) -> str:
    """Return the reader of a file that an option or its name tells: csv, json, text, .."""
    given = option(definition, "format")
    if given is not None:
        if given.lower() not in FORMATS:
            raise DataError(
                f"the option format of stream {definition.name} must be a format of replay, "
                f"got '{given}'; {suggest(given, FORMATS)}"
            )
        return FORMATS[given.lower()]
    suffix = Path(path).suffix.lower()
    if suffix in COMPRESSED:
        raise DataError(
            f"the file '{path}' of stream {definition.name} must not be compressed, because it is "
            f"read in slices; unpack it, or use Parquet"
        )
    if suffix not in EXTENSIONS:
        raise DataError(
            f"the format of '{path}' of stream {definition.name} must be known, but its name ends "
            f"in '{suffix}'; add OPTIONS (format 'csv'), or one of {', '.join(sorted(FORMATS))}"
        )
    return EXTENSIONS[suffix]


def local_path(path: str) -> str | None:
    """Return the path of a local file, also of a ``file:`` address, None of any other address."""
    if path.startswith("file:"):
        plain = path[len("file:") :]
        return "/" + plain.lstrip("/")
    return None if "://" in path else path


class InputFile(pa.OSFile):  # type: ignore[misc]
    """A local file that must not get shorter while it is read.

    It is not mapped into memory: a mapped file that someone cuts kills the process that reads it.
    """

    path = ""

    def read_buffer(self, size: int | None = None) -> pa.Buffer:
        """Read so many bytes, or up to the end that the file had when it was opened."""
        left = self.size() - self.tell()
        data = super().read_buffer(size)
        if len(data) < (left if size is None else min(size, left)):
            raise shorter(self.path)
        return data


def shorter(path: str) -> DataError:
    """Return the error of a file that has less than it had when a batch was planned."""
    return DataError(
        f"the file '{path}' must stay as it is while the stream runs, but it has become shorter; "
        f"bring the old file back, or start with a new checkpoint"
    )


def open_input(path: str) -> Any:
    """Open a file for reading, through ``pyarrow.fs`` when it is not local."""
    local = local_path(path)
    try:
        if local is not None:
            opened = InputFile(local)
            opened.path = path
            return opened
        system, name = pyarrow.fs.FileSystem.from_uri(path)
        return system.open_input_file(unquote(name) if urlparse(path).scheme == "file" else name)
    except FileNotFoundError:
        raise DataError(
            f"the file '{path}' must exist while the stream runs, but it is gone; bring it back"
        ) from None


def wanted_columns(definition: StreamDef, columns: Sequence[int] | None) -> list[int]:
    """Return the positions of the columns to parse; the time column is always among them."""
    if columns is None:
        return list(range(len(definition.schema)))
    return sorted({*columns, definition.time})


def arrival_order(table: pa.Table) -> I64:
    """Return the order of arrival of descriptors, or of native rows: ``(ordinal, path, first)``.

    The sort is stable; rows without these columns' values keep their order.
    """
    rows = table.num_rows
    names = [name for name in ARRIVAL if table.column(name).null_count < rows]
    if rows < 2 or not names:
        return np.arange(rows)
    if names == ["ordinal"] and not table.column("ordinal").null_count:
        return np.argsort(to_numpy(table.column("ordinal")), kind="stable")
    keyed = table.select(names).append_column("_at", pa.array(np.arange(rows)))
    order = pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in (*names, "_at")])
    return np.asarray(order).view(np.int64)


def rejected_rows(positions: I64, reasons: pa.Array | list[str], raw: list[str]) -> pa.Table:
    """Return a table of rejected rows."""
    told = pa.array(reasons, pa.string()) if isinstance(reasons, list) else one_array(reasons)
    return pa.table(
        [pa.array(positions, pa.int64()), told, pa.array(raw, pa.string())], schema=REJECTED
    )


def raw_text(row: bytes, length: int | None = None) -> str:
    """Return what is kept of a rejected row: text that every sink can hold, and not too long.

    What is no text, and NUL, becomes U+FFFD.  ``length`` is that of the whole row, if ``row`` is
    its beginning.
    """
    length = len(row) if length is None else length
    text = row[:RAW_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")
    return text if length <= RAW_BYTES else f"{text} ... ({length:,} bytes in all)"


def no_rejected() -> pa.Table:
    """Return an empty table of rejected rows."""
    return REJECTED.empty_table()


def make_slice(
    asked: Asked, arrays: Mapping[int, pa.Array], positions: I64, rejected: pa.Table, raw: RawText
) -> Slice:
    """Put a slice together: drop rows without a usable time, shift it, fill other columns.

    ``raw`` gives the text of rows by their places in ``positions``.
    """
    definition = asked.definition
    bad: Mask = np.zeros(len(positions), bool)
    reasons: dict[int, str] = {}
    for reason, wrong in _unusable(definition, arrays):
        reasons |= dict.fromkeys(np.flatnonzero(wrong & ~bad).tolist(), reason)
        bad |= wrong
    if reasons:
        places = np.array(list(reasons), np.int64)
        told = rejected_rows(positions[places], list(reasons.values()), raw(places))
        rejected = pa.concat_tables([rejected, told])
        kept = np.flatnonzero(~bad)
        indices = pa.array(kept)
        arrays = {at: array.take(indices) for at, array in arrays.items()}
        positions = positions[kept]
    if asked.shift:
        arrays = {**arrays, definition.time: _shifted(arrays[definition.time], asked.shift)}
    rows = len(positions)
    fields = definition.schema.fields
    columns = [arrays[i] if i in arrays else pa.nulls(rows, f.type) for i, f in enumerate(fields)]
    table = pa.Table.from_arrays(
        columns, schema=pa.schema([pa.field(f.name, f.type) for f in fields])
    )
    if rejected.num_rows > 1:
        rejected = rejected.sort_by("position")
    return Slice(table, positions, rejected)


def _unusable(definition: StreamDef, arrays: Mapping[int, pa.Array]) -> Iterator[tuple[str, Mask]]:
    """Yield which rows hold values of the right type that no stream can go on with, and why."""
    time = arrays[definition.time]
    name = definition.schema[definition.time].name
    if time.null_count:
        yield f"the time column '{name}' is null", np.asarray(time.is_null())
    bounds = {at: _BOUNDS[array.type] for at, array in arrays.items() if array.type in _BOUNDS}
    if time.type == pa.int64():
        bounds[definition.time] = (MIN_TIME + 1, INF - 1)
    for at, (lowest, highest) in bounds.items():
        array, field = arrays[at], definition.schema[at]
        numbers = array.view(pa.int32() if array.type == pa.date32() else pa.int64())
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and (found["min"] < lowest or found["max"] > highest):
            outside = pc.or_(pc.less(numbers, lowest), pc.greater(numbers, highest))
            years = array.type in _BOUNDS
            must = "in a year from 1 to 9999" if years else f"from {lowest} to {highest}"
            reason = f"the column '{field.name}' must be {must}"
            yield reason, np.asarray(pc.fill_null(outside, False))


def _shifted(time: pa.Array, shift: int) -> pa.Array:
    if pa.types.is_timestamp(time.type):
        return pc.add_checked(time.view(pa.int64()), pa.scalar(shift)).view(time.type)
    shifted = pc.add_checked(time.cast(pa.int64()), pa.scalar(shift))
    try:
        return shifted.cast(time.type)
    except pa.ArrowInvalid:
        raise DataError(
            f"the time column must hold the shifted times of a looped source, but "
            f"{type_name(time.type)} is too narrow; declare it BIGINT"
        ) from None


def shortened(text: str) -> str:
    """Return the beginning of a text that is too long for a message."""
    return text if len(text) <= 500 else f"{text[:500]} ..."


def match_columns(asked: Asked, found: Sequence[str]) -> dict[int, int]:
    """Return, for each wanted column, the place of its name (in any case) among those found."""
    places: dict[str, int] = {}
    for place, name in enumerate(found):
        places.setdefault(name.strip().lower(), place)
    result = {}
    definition = asked.definition
    for at in asked.wanted:
        name = definition.schema[at].name
        if name.lower() not in places:
            raise DataError(
                f"the column '{name}' of stream {definition.name} must be in '{asked.path}', "
                f"but its columns are: {shortened(', '.join(found)) or '(none)'}; "
                f"declare the columns as the file names them"
            )
        result[at] = places[name.lower()]
    return result
