"""One task, alone in its process: how much memory it takes, and how fast it is.

* A later stage: a join makes fifty rows of one, and the aggregate behind it groups by another key,
  so all that the join makes goes through an exchange.  `prepare` runs the stages up to there and
  writes the parcels into a file; `regroup` runs the last stage on them, as a Spark task does that
  gets them from other machines: batch by batch, each in memory of its own.
* `pack` packs rows that Spark has parsed.  They come from two readers, one after the other, so they
  have to be put in order first.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.memory import Memory
from penstock.bench.scripts import plans_of
from penstock.catalog import StreamDef
from penstock.model import Field, Schema
from penstock.physical.batch import Arrivals, pack_streams
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.parcels import Parcel, from_batches, to_batches
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Progress, Timeline
from penstock.physical.reports import read_report
from penstock.physical.stage import run_stage
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.sources.readers import CORRUPT, DESCRIPTOR
from penstock.spark.sources import native_column
from penstock.spark.tasks import Job, pack_task
from penstock.timing import TimeRules

SCRIPT = """
CREATE STREAM a (k INT, g INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k INT, v BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY sums AS SELECT a.g, COUNT(*) AS n, SUM(b.v) AS s
  FROM a [RANGE {range}] JOIN b [RANGE {range}] ON a.k = b.k GROUP BY a.g;
"""

_TIMELINE = Timeline({name: Progress() for name in "ab"}, {name: TimeRules() for name in "ab"})


def prepare(path: Path, rows: int) -> None:
    """Write what the last stage is sent of a batch of so many rows, of both streams together."""
    each = rows // 2
    plan, random = _plan(each), np.random.default_rng(1)
    arrivals = {}
    for stream, other, kind in (("a", "g", pa.int32()), ("b", "v", pa.int64())):
        columns = {
            "k": pa.array(random.integers(0, max(1, each // 500), each), pa.int32()),
            other: pa.array(random.integers(0, 10, each), kind),
            "t": pa.array(np.arange(each)),
        }
        arrivals[stream] = Arrivals([("", pa.table(columns))], 2)
    parcels: Any = pack_streams(plan, arrivals, _TIMELINE, Settings(), 1).parcels
    with tempfile.TemporaryDirectory() as folder, SegmentStorage(folder, "0", False) as storage:
        for stage in range(plan.stages - 1):
            parcels = _run(plan, stage, parcels, storage, Settings())
        batches = to_batches(parcels)
        first = next(batches)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def regroup(path: Path, rows: int, settings: dict[str, int]) -> dict[str, float]:
    """Run the last stage on what was prepared."""
    plan = _plan(rows // 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        SegmentStorage(folder, "1", False) as storage,
        pa.OSFile(str(path)) as file,
        Memory() as memory,
    ):
        began = time.perf_counter()
        batches = iter(pa.ipc.open_stream(file))
        parcels = from_batches(batches)
        reports = [*_run(plan, plan.stages - 1, parcels, storage, Settings(settings))]
        seconds = time.perf_counter() - began
    found = read_report(reports[-1])
    return {
        "rows/s": sum(effort[1] for effort in found["efforts"].values()) / seconds,
        "megabytes": memory.most - memory.before,
        "answers": sum(result["rows"] for result in found["results"]),
    }


def _run(
    plan: PhysicalPlan, stage: int, parcels: Any, storage: SegmentStorage, config: Settings
) -> Iterator[Parcel]:
    return run_stage(plan, stage, 0, 1, parcels, {}, storage, config, _TIMELINE)


PACKED = """
CREATE STREAM s (k BIGINT, v DOUBLE, t BIGINT) USING kafka
  OPTIONS (servers 'none', topic 'none') TIMESTAMP BY t;
CREATE QUERY q AS SELECT k, SUM(v) AS total FROM s [RANGE 100] GROUP BY k;
"""
_STREAM = StreamDef(
    "s",
    Schema((Field("k", pa.int64()), Field("v", pa.float64()), Field("t", pa.int64()))),
    "kafka",
    {},
    2,
)


def pack(rows: int, settings: dict[str, int]) -> dict[str, float]:
    """Pack so many rows in one task."""
    timeline = Timeline({"s": Progress()}, {"s": _STREAM.timing})
    with tempfile.TemporaryDirectory() as folder, Memory() as memory:
        streams = {"s": _STREAM}
        job = Job(0, plan_of(PACKED), Settings(settings), folder, 1, streams, timeline, "")
        began = time.perf_counter()
        found = sum(batch.nbytes for batch in pack_task(job)(_native(rows)))
        seconds = time.perf_counter() - began
    return {
        "rows/s": rows / seconds,
        "megabytes": memory.most - memory.before,
        "answers": found,
    }


def _native(rows: int, each: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    """Yield rows as Spark brings them, first the even ones and then the odd ones."""
    random = np.random.default_rng(1)
    for odd in (0, 1):
        for begin in range(odd, rows, 2 * each):
            at = np.arange(begin, min(begin + 2 * each, rows), 2)
            given = {"stream": pa.array(["s"]), "ordinal": pa.array(at)}
            columns = [
                given[field.name].take(pa.array(np.zeros(len(at), np.int64)))
                if field.name == "stream"
                else given.get(field.name, pa.nulls(len(at), field.type))
                for field in DESCRIPTOR
            ]
            values = [random.integers(0, 100, len(at)), random.random(len(at)), at]
            names = [*_STREAM.schema.names, CORRUPT]
            fields = [*map(pa.array, values), pa.nulls(len(at), pa.string())]
            struct = pa.StructArray.from_arrays(fields, names)
            yield pa.record_batch([*columns, struct], [*DESCRIPTOR.names, native_column("s")])


def plan_of(script: str) -> PhysicalPlan:
    """Return the plan of a script's queries as they begin."""
    book = QueryBook(Settings())
    for name, node in plans_of(script).items():
        book.add(BookedQuery(name, node, "intervals"))
    return book.plan(Moment(0, {}, {}))


def _plan(each: int) -> PhysicalPlan:
    return plan_of(SCRIPT.format(range=each // 20))
