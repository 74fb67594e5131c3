"""Reading static tables with Arrow: Parquet files in parts, plain CSV; what a table held."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from penstock.catalog import TableDef
from penstock.errors import DataError, suggest
from penstock.expr.types import type_name
from penstock.kernels.keys import sum_of_rows
from penstock.model import one_array
from penstock.nested.shapes import is_nested
from penstock.sources.readers.base import local_path
from penstock.sources.readers.conversion import convert, plain

Chunks = Iterator[pa.Table]

CHUNK_ROWS = 1 << 18
_CHUNK_BYTES = 16 << 20
"""A chunk has at most so many rows, and of wide rows fewer: it bounds memory."""
_PART_ROWS = 1 << 20
_READ_BUFFER = 1 << 20


@dataclass(frozen=True)
class Part:
    """Some row groups of a Parquet file; ``first`` is the number of their first row in it."""

    path: str
    groups: tuple[int, ...]
    first: int


class Contents:
    """What a table held, or a stream brought: rows, and the sum of their hashes in whatever order.

    Only the ``columns`` count that are read for sure.
    """

    def __init__(self, columns: Sequence[int], rows: int = 0, total: int = 0) -> None:
        self.columns = list(columns)
        self._rows = rows
        self._sum = total

    def add(self, table: pa.Table, columns: Sequence[int | str] | None = None) -> None:
        """Add rows; those that are set aside have other ``columns``."""
        counted = self.columns if columns is None else columns
        self._rows += table.num_rows
        self._sum += sum_of_rows([one_array(table.column(c)) for c in counted], table.num_rows)

    def describe(self) -> dict[str, Any]:
        return {"rows": self._rows, "sum": self._sum % 2**64, "columns": self.columns}


def check_path_given(owner: str, path: str | None) -> str:
    """Check that a path is given, and return it."""
    if not path:
        raise DataError(f"the {owner} must have a path; add OPTIONS (path '…') to it")
    return path


def check_path(owner: str, path: str | None) -> None:
    """Check that a path is given and that something is there."""
    path = check_path_given(owner, path)
    local = local_path(path)
    if local is not None and not Path(local).exists() and not glob.glob(local):
        raise DataError(
            f"the path of {owner} must exist, got '{path}'; "
            f"it was looked for at {Path(local).absolute()}"
        )


def empty_table(definition: TableDef) -> pa.Table:
    """Return no rows of a table."""
    return _table(definition, [pa.array([], field.type) for field in definition.schema])


def written_table(definition: TableDef, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows of plain values; times and dates are counts."""
    columns = []
    for at, field in enumerate(definition.schema):
        counts = {pa.timestamp("us"): pa.int64(), pa.date32(): pa.int32()}
        stored = counts.get(field.type, field.type)
        columns.append(pa.array([row[at] for row in rows], stored).cast(field.type))
    return _table(definition, columns)


def csv_table(definition: TableDef, path: str) -> pa.Table:
    """Read a CSV file with a header."""
    try:
        with pyarrow.csv.open_csv(path) as source:
            header = source.schema.names
        text = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        quoting = pyarrow.csv.ParseOptions(escape_char="\\")
        found = pyarrow.csv.read_csv(path, parse_options=quoting, convert_options=text)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"the file '{path}' of table {definition.name} must be CSV that can be read: {error}"
        ) from None
    chosen = table_columns(definition, found.column_names, by_place=False)
    rows = found.select(chosen)
    return one_chunk(definition, rows.to_batches()) if rows.num_rows else empty_table(definition)


# Parquet


def local_files(address: str) -> list[str] | None:
    """Return the files of a local path, of a folder those in it; None if Spark must look."""
    local = local_path(address)
    if local is None:
        return None
    path = Path(local).absolute()
    if path.is_file():
        return [str(path)]
    if not path.is_dir():
        return None
    found = sorted(p for p in path.iterdir() if not p.name.startswith(("_", ".")))
    return [str(p) for p in found] if all(p.is_file() for p in found) else None


def parts_of(definition: TableDef, files: Sequence[str]) -> list[Part]:
    """Cut files into parts of whole row groups; only their ends are read."""
    parts = []
    for path in files:
        metadata = _open(definition, path).metadata
        groups: list[int] = []
        first = rows = 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            rows += metadata.row_group(group).num_rows
            if rows - first >= _PART_ROWS or group == metadata.num_row_groups - 1:
                if rows > first:
                    parts.append(Part(path, tuple(groups), first))
                groups, first = [], rows
    return parts


def read_part(definition: TableDef, part: Part, needed: Sequence[int]) -> Chunks:
    """Read some row groups in chunks; columns that are not needed are null."""
    file = _open(definition, part.path)
    names = table_columns(definition, file.schema_arrow.names, by_place=False)
    chosen = [names[at] for at in needed]
    row = part.first
    groups = [file.metadata.row_group(group) for group in part.groups]
    width = sum(g.total_byte_size for g in groups) / max(1, sum(g.num_rows for g in groups))
    rows = max(1 << 10, min(CHUNK_ROWS, int(_CHUNK_BYTES / max(width, 1))))
    for batch in file.iter_batches(
        rows, row_groups=list(part.groups), columns=chosen, use_threads=False
    ):
        columns = [
            _fitted(definition, at, one_array(batch.column(chosen.index(names[at]))), part, row)
            if at in needed
            else pa.nulls(batch.num_rows, field.type)
            for at, field in enumerate(definition.schema)
        ]
        yield _table(definition, columns)
        row += batch.num_rows


def _open(definition: TableDef, path: str) -> Any:
    try:
        file = pyarrow.parquet.ParquetFile(
            path, buffer_size=_READ_BUFFER, pre_buffer=False, coerce_int96_timestamp_unit="us"
        )
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"the file '{path}' of table {definition.name} must be a Parquet file that can be "
            f"read: {error}"
        ) from None
    table_columns(definition, file.schema_arrow.names, by_place=False)
    return file


def fitting(definition: TableDef, batches: Iterable[pa.RecordBatch]) -> Chunks:
    """Yield record batches of Spark in chunks of the declared types."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        enough = sum(b.nbytes for b in waiting) >= _CHUNK_BYTES
        if enough or sum(b.num_rows for b in waiting) >= CHUNK_ROWS:
            yield one_chunk(definition, waiting)
            waiting = []
    if waiting:
        yield one_chunk(definition, waiting)


def one_chunk(definition: TableDef, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return record batches as one table of the declared types."""
    found = pa.Table.from_batches(batches)
    return _table(
        definition,
        [
            _fitted(definition, at, one_array(found.column(at)))
            for at in range(len(definition.schema))
        ],
    )


# Columns


def _table(definition: TableDef, columns: Sequence[pa.Array]) -> pa.Table:
    return pa.Table.from_arrays(
        columns, schema=pa.schema([pa.field(f.name, f.type) for f in definition.schema])
    )


def table_columns(definition: TableDef, found: Sequence[str], by_place: bool) -> list[str]:
    """Return the names that the declared columns have in the data."""
    names = definition.schema.names
    if by_place:
        if len(found) < len(names):
            raise DataError(
                f"the table {definition.name} must have {len(names)} columns, got {len(found)}"
            )
        return list(found[: len(names)])
    known = {name.strip().lower(): name for name in reversed(found)}
    for name in names:
        if name.lower() not in known:
            raise DataError(
                f"the column '{name}' of table {definition.name} must be in its data; "
                f"{suggest(name, found)}"
            )
    return [known[name.lower()] for name in names]


def _fitted(
    definition: TableDef, at: int, array: pa.Array, part: Part | None = None, first: int = 0
) -> pa.Array:
    """Return a column with its declared type; ``first`` is the number of its row in a file."""
    field = definition.schema[at]
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if is_text and is_nested(field.type):
        name = type_name(field.type)
        raise DataError(
            f"a column of text must have a type without others inside, got {name} for "
            f"'{field.name}' of table {definition.name}; declare it STRING and read JSON text with "
            f"from_json({field.name}, '{name}')"
        )
    if is_text and not pa.types.is_string(field.type):
        fitted = convert(array.cast(pa.string()), field.type)
    else:
        plainly = plain(array, field.type)
        if plainly is None:
            raise DataError(
                f"the column '{field.name}' of table {definition.name} must be "
                f"{type_name(field.type)}, got {array.type}; declare the type that the data has"
            )
        fitted = plainly
    result, bad = fitted
    if bad.any():
        row = int(bad.argmax())
        where = "" if part is None else f" in row {first + row + 1} of '{part.path}'"
        raise DataError(
            f"the column '{field.name}' of table {definition.name} must be "
            f"{type_name(field.type)}, got {array[row].as_py()!r}{where}"
        )
    return result
