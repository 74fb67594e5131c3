"""Static tables: read by tasks, chunk by chunk, several at a time; the driver never holds rows.

* A local Parquet file, or a folder of them, is cut into parts of whole row groups; a task reads
  its part with Arrow, only the columns that the plan needs.
* Every other table is read by Spark, cut as Spark cuts it; a task is given its record batches.

What the rows of a table were is kept with the batch that read them, as for streams: their number
and the sum of their hashes, over the columns that were needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import TableDef, opened
from penstock.config import Config
from penstock.errors import DataError, NotSupportedError, StateError, shown_cause, suggest
from penstock.expr.types import type_name
from penstock.kernels.keys import sum_of_rows
from penstock.model import one_array
from penstock.physical.packing import TablePacker, columns_read
from penstock.physical.parcels import SPARK_SCHEMA, Parcel, report, to_batches
from penstock.physical.plan import PhysicalPlan
from penstock.runs import failpoints
from penstock.spark.failures import first_sentence
from penstock.spark.readers.base import local_path
from penstock.spark.readers.conversion import convert, plain
from penstock.spark.sources import SPARK_ERRORS, check_table, quoted
from penstock.spark.tasks import Batches, Job

Chunks = Iterator[pa.Table]
Work = Callable[[Chunks], Iterator[Parcel]]
"""What a task does with the chunks of a table, which have all declared columns."""

CHUNK_ROWS = 1 << 18
_CHUNK_BYTES = 16 << 20
"""A chunk has at most so many rows, and of wide rows fewer: it bounds memory."""
_PART_ROWS = 1 << 20
_TASKS_PER_CORE = 16
_READ_BUFFER = 1 << 20


@dataclass(frozen=True)
class Part:
    """Some row groups of a Parquet file; ``first`` is the number of their first row in it."""

    path: str
    groups: tuple[int, ...]
    first: int


class Contents:
    """What a table held, in whatever order its rows came."""

    def __init__(self, columns: Sequence[int], rows: int = 0, total: int = 0) -> None:
        self.columns = list(columns)
        self._rows = rows
        self._sum = total

    def add(self, table: pa.Table) -> None:
        columns = [one_array(table.column(c)) for c in self.columns]
        self._rows += table.num_rows
        self._sum += sum_of_rows(columns, table.num_rows)

    def describe(self) -> dict[str, Any]:
        return {"rows": self._rows, "sum": self._sum % 2**64, "columns": self.columns}


def new_tables(plan: PhysicalPlan, loaded: Iterable[str]) -> dict[str, list[int]]:
    """Return the tables that a plan has not had yet, each with the nodes that read it."""
    known, found = frozenset(loaded), dict[str, list[int]]()
    for at in plan.sources("table"):
        source = plan.nodes[at].source
        assert source is not None
        if plan.nodes[at].digest not in known:
            found.setdefault(source.name, []).append(at)
    return found


def packed_table(
    spark: SparkSession, definition: TableDef, sources: Sequence[int], job: Job
) -> DataFrame:
    """Return a frame of parcels: a table packed for the nodes of a plan that read it."""
    valid = (definition.valid_from, definition.valid_to)
    columns = frozenset[int]().union(*(columns_read(job.plan, at) for at in sources))
    needed = sorted(columns | {c for c in valid if c is not None}) or [0]

    def pack(chunks: Chunks) -> Iterator[Parcel]:
        failpoints.obey(job.failures)
        packer = TablePacker(job.plan, sources, valid, Config(job.settings), job.shards)
        contents = Contents(needed)
        for chunk in chunks:
            contents.add(chunk)
            yield from packer.pack(chunk)
        yield _told(definition, contents)

    return table_frame(spark, definition, needed, pack)


def contents_frame(spark: SparkSession, definition: TableDef, columns: Sequence[int]) -> DataFrame:
    """Return a frame that reads a table again, only to tell what it holds."""

    def look(chunks: Chunks) -> Iterator[Parcel]:
        contents = Contents(columns)
        for chunk in chunks:
            contents.add(chunk)
        yield _told(definition, contents)

    return table_frame(spark, definition, columns, look)


def contents_of(reports: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Put together what the tasks tell about each table."""
    told: dict[str, list[dict[str, Any]]] = {}
    for content in reports:
        if content["kind"] == "table":
            told.setdefault(content["table"], []).append(content["input"])
    return {
        name: Contents(
            parts[0]["columns"], sum(p["rows"] for p in parts), sum(p["sum"] for p in parts)
        ).describe()
        for name, parts in told.items()
    }


def check_contents(
    batch: int, before: Mapping[str, dict[str, Any]], now: Mapping[str, dict[str, Any]]
) -> None:
    """Check that tables which are read again hold what they held."""
    for name, held in before.items():
        holds = now.get(name, Contents(held["columns"]).describe())
        if holds != held:
            raise StateError(
                f"the rows of table {name}, which batch {batch} read, must be the same when the "
                f"batch is read again after a crash, but there were {held['rows']} and are "
                f"{holds['rows']}, or some have changed; bring the table back as it was, or use "
                f"another --checkpoint"
            )


def table_frame(
    spark: SparkSession, definition: TableDef, needed: Sequence[int], work: Work
) -> DataFrame:
    """Return a frame of parcels: each of its tasks reads a part of a table and works on it.

    Only the ``needed`` columns are sure to have their values.
    """
    definition = opened(definition)
    check_table(definition)
    files = _local_parquet(definition)
    if files is None:
        return _read_by_spark(spark, definition, work)
    cores = spark.sparkContext.defaultParallelism
    tasks = _dealt(parts_of(definition, files), cores * _TASKS_PER_CORE)

    def run(batches: Batches) -> Batches:
        numbers = (n for batch in batches for n in batch.column(0).to_pylist())
        parts = (part for n in numbers for part in tasks[n])
        return to_batches(work(c for part in parts for c in read_part(definition, part, needed)))

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(run, SPARK_SCHEMA)


def whole_table(definition: TableDef, spark: Callable[[], SparkSession] | None = None) -> pa.Table:
    """Return all rows of a table as they are now.

    Local Parquet and plain CSV files are read by Arrow, everything else by ``spark``.
    """
    definition = opened(definition)
    check_table(definition)
    files = _local_parquet(definition)
    if files is not None:
        every = range(len(definition.schema))
        parts = parts_of(definition, files)
        chunks = [chunk for part in parts for chunk in read_part(definition, part, every)]
        return pa.concat_tables([_empty(definition), *chunks])
    lines = _local_csv(definition)
    if lines is not None:
        return pa.concat_tables([_empty(definition), *(_csv(definition, p) for p in lines)])
    if spark is None:
        raise NotSupportedError(
            f"the table {definition.name} must be local Parquet or CSV to be read without Spark, "
            f"got format '{definition.format}' with its options; ask in the session that runs, or "
            f"keep what joins with it: CREATE MATERIALIZED VIEW name AS SELECT .. JOIN "
            f"{definition.name} .."
        )
    found: pa.Table = _loaded(spark(), definition, lambda frame: frame.toArrow())
    return _chunk(definition, found.to_batches()) if found.num_rows else _empty(definition)


def _empty(definition: TableDef) -> pa.Table:
    return _table(definition, [pa.array([], field.type) for field in definition.schema])


def _local_csv(definition: TableDef) -> list[str] | None:
    """Return the files of a table of CSV with a header that Arrow reads as Spark does."""
    options = {name.lower(): str(value) for name, value in definition.options.items()}
    plain = options.keys() <= {"path", "header"} and options.get("header", "true") == "true"
    if definition.format.lower() != "csv" or not plain:
        return None
    return _local_files(options.get("path", ""))


def _csv(definition: TableDef, path: str) -> pa.Table:
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
    chosen = _table_columns(definition, found.column_names, by_place=False)
    rows = found.select(chosen)
    return _chunk(definition, rows.to_batches()) if rows.num_rows else _empty(definition)


# Parquet


def _local_parquet(definition: TableDef) -> list[str] | None:
    """Return the files of a table that Arrow can read, None if it must be Spark."""
    if definition.format.lower() != "parquet" or {k.lower() for k in definition.options} != {
        "path"
    }:
        return None
    return _local_files(str(next(iter(definition.options.values()))))


def _local_files(address: str) -> list[str] | None:
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


def _dealt(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Deal parts to at most so many tasks, neighbours together."""
    tasks = min(len(parts), most)
    edges = [len(parts) * i // tasks for i in range(tasks + 1)] if tasks else [0]
    return [list(parts[a:b]) for a, b in pairwise(edges)]


def read_part(definition: TableDef, part: Part, needed: Sequence[int]) -> Chunks:
    """Read some row groups in chunks; columns that are not needed are null."""
    file = _open(definition, part.path)
    names = _table_columns(definition, file.schema_arrow.names, by_place=False)
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
    _table_columns(definition, file.schema_arrow.names, by_place=False)
    return file


# Every other format


def _read_by_spark(spark: SparkSession, definition: TableDef, work: Work) -> DataFrame:
    def run(batches: Batches) -> Batches:
        return to_batches(work(_fitting(definition, batches)))

    parcels: DataFrame = _loaded(
        spark, definition, lambda found: found.mapInArrow(run, SPARK_SCHEMA)
    )
    return parcels


def _loaded(spark: SparkSession, definition: TableDef, use: Callable[[DataFrame], Any]) -> Any:
    """Return what is made of a table's frame, which has the declared columns in their order."""
    kind = definition.format.lower()
    options = {name.lower(): str(value) for name, value in definition.options.items()}
    if kind == "csv":
        options.setdefault("header", "true")
    reader = spark.read.format(definition.format).options(**options)
    by_place = kind == "csv" and options["header"].lower() != "true"
    if kind == "json":
        reader = reader.option("primitivesAsString", "true")

    try:
        loaded = reader.load()
        chosen = _table_columns(definition, loaded.columns, by_place)
        return use(loaded.select(*(F.col(quoted(name)) for name in chosen)))
    except SPARK_ERRORS as error:
        raise DataError(
            f"the table {definition.name} must be readable by Spark as format "
            f"'{definition.format}', but: {first_sentence(error)}"
        ) from shown_cause(error)


def _fitting(definition: TableDef, batches: Batches) -> Chunks:
    """Yield record batches of Spark in chunks of the declared types."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        enough = sum(b.nbytes for b in waiting) >= _CHUNK_BYTES
        if enough or sum(b.num_rows for b in waiting) >= CHUNK_ROWS:
            yield _chunk(definition, waiting)
            waiting = []
    if waiting:
        yield _chunk(definition, waiting)


def _chunk(definition: TableDef, batches: Sequence[pa.RecordBatch]) -> pa.Table:
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


def _table_columns(definition: TableDef, found: Sequence[str], by_place: bool) -> list[str]:
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


def _told(definition: TableDef, contents: Contents) -> Parcel:
    return report({"kind": "table", "table": definition.name, "input": contents.describe()})
