"""Static tables: read by tasks, chunk by chunk, several at a time; the driver never holds rows.

* A local Parquet file, or a folder of them, is cut into parts of whole row groups; a task reads
  its part with Arrow, only the columns that the plan needs.
* Every other table is read by Spark, cut as Spark cuts it; a task is given its record batches.

What the rows of a table were is kept with the batch that read them, as for streams: their number
and the sum of their hashes, over the columns that were needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import TableDef, opened
from penstock.errors import (
    DataError,
    StateError,
    first_sentence,
    shown_cause,
)
from penstock.physical.batch import Outcome
from penstock.physical.packing import TablePacker, columns_read
from penstock.physical.parcels import SPARK_SCHEMA, Parcel, to_batches
from penstock.physical.plan import PhysicalPlan
from penstock.physical.reports import report
from penstock.runs import failpoints
from penstock.sources.table_formats import check_table, table_format
from penstock.sources.tables import Chunks, Contents, Part, fitting, read_part, table_columns
from penstock.spark.sources import SPARK_ERRORS, quoted
from penstock.spark.tasks import Batches, Job

Work = Callable[[Chunks], Iterator[Parcel]]
"""What a task does with the chunks of a table, which have all declared columns."""

_TASKS_PER_CORE = 16


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
        packer = TablePacker(job.plan, sources, valid, job.settings, job.shards)
        contents = Contents(needed)
        for chunk in chunks:
            contents.add(chunk)
            yield from packer.pack(chunk)
        yield report(_told(definition, contents) | packer.report())

    return table_frame(spark, definition, needed, pack)


def contents_frame(spark: SparkSession, definition: TableDef, columns: Sequence[int]) -> DataFrame:
    """Return a frame that reads a table again, only to tell what it holds."""

    def look(chunks: Chunks) -> Iterator[Parcel]:
        contents = Contents(columns)
        for chunk in chunks:
            contents.add(chunk)
        yield report(_told(definition, contents))

    return table_frame(spark, definition, columns, look)


def contents_of(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Put together what the tasks tell about each table."""
    return {
        name: Contents(
            parts[0]["columns"], sum(p["rows"] for p in parts), sum(p["sum"] for p in parts)
        ).describe()
        for name, parts in outcome.contents.items()
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
    found = table_format(definition)
    parts = found.parts(definition)
    written = found.at_hand(definition)
    if written is not None:
        return _written(spark, written, work)
    if parts is None:
        return _read_by_spark(spark, definition, work)
    cores = spark.sparkContext.defaultParallelism
    tasks = _dealt(parts, cores * _TASKS_PER_CORE)

    def run(batches: Batches) -> Batches:
        numbers = (n for batch in batches for n in batch.column(0).to_pylist())
        mine = (part for n in numbers for part in tasks[n])
        return to_batches(work(c for part in mine for c in read_part(definition, part, needed)))

    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(run, SPARK_SCHEMA)


def _written(spark: SparkSession, table: pa.Table, work: Work) -> DataFrame:
    """Return a frame of one task that works on rows which are at hand."""

    def run(batches: Batches) -> Batches:
        for _ in batches:
            yield from to_batches(work(iter([table])))

    return spark.range(0, 1, 1, 1).mapInArrow(run, SPARK_SCHEMA)


def _dealt(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Deal parts to at most so many tasks, neighbours together."""
    tasks = min(len(parts), most)
    edges = [len(parts) * i // tasks for i in range(tasks + 1)] if tasks else [0]
    return [list(parts[a:b]) for a, b in pairwise(edges)]


# Every other format


def read_whole(spark: SparkSession, definition: TableDef) -> pa.Table:
    """Return all rows of a table that only Spark can read."""
    found: pa.Table = _loaded(spark, definition, lambda frame: frame.toArrow())
    return found


def _read_by_spark(spark: SparkSession, definition: TableDef, work: Work) -> DataFrame:
    def run(batches: Batches) -> Batches:
        return to_batches(work(fitting(definition, batches)))

    parcels: DataFrame = _loaded(
        spark, definition, lambda found: found.mapInArrow(run, SPARK_SCHEMA)
    )
    return parcels


def _loaded(spark: SparkSession, definition: TableDef, use: Callable[[DataFrame], Any]) -> Any:
    """Return what is made of a table's frame, which has the declared columns in their order."""
    how = table_format(definition).spark_table(definition)
    try:
        loaded = spark.read.format(definition.format).options(**how.options).load()
        chosen = table_columns(definition, loaded.columns, how.by_place)
        return use(loaded.select(*(F.col(quoted(name)) for name in chosen)))
    except SPARK_ERRORS as error:
        raise DataError(
            f"the table {definition.name} must be readable by Spark as format "
            f"'{definition.format}', but: {first_sentence(error)}"
        ) from shown_cause(error)


def _told(definition: TableDef, contents: Contents) -> dict[str, Any]:
    return {"kind": "table", "table": definition.name, "input": contents.describe()}
