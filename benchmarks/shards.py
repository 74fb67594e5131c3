"""``python -m benchmarks.shards [--shards 2 32 256 1024]``: what a batch costs by number of shards.

Batches are tiny, so what is seen is the cost of the shards themselves, on two cores.  Of every
batch are shown

* the seconds that the driver's own Python works (its CPU time: planning, manifest, states),
* the bytes that are shipped: functions to tasks, and what goes through Spark's shuffles,
* the seconds of the batch, and of a Spark job of the same shape whose tasks do nothing: launching
  tasks and starting their Python is Spark's own cost, and it is shown apart.

It ends with an error if the driver needs more than a millisecond per shard and batch (judged from
256 shards on: below that a batch's fixed cost counts), or if one of the first two figures grows
faster than the shards.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from rich.table import Table

from benchmarks.harness import SCHEMA, console, folder, write_stream
from penstock.session import Session
from penstock.settings import Settings
from penstock.spark.engine import own_session

ROWS = 100
"""Rows of a batch."""
WARM_UP = 3
"""Batches that are not measured."""
STAGES = 2
MOST_MILLISECONDS = 1.0
MOST_GROWTH = 1.25
"""By how much more than the number of shards a figure may grow."""


@dataclass(frozen=True)
class Cost:
    """What one batch costs."""

    shards: int
    driver: float
    shipped: float
    seconds: float
    spark: float


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of shards")
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 32, 256, 1024])
    parser.add_argument("--batches", type=int, default=7)
    options = parser.parse_args()
    spark = own_session("local[2]", Settings({"driver.memory": "2g"}))
    costs = []
    table = Table("shards", "driver s", "ms/shard", "shipped MB", "kB/shard", "batch s", "Spark s")
    for shards in options.shards:
        costs.append(measure(spark, shards, options.batches))
        c = costs[-1]
        table.add_row(
            f"{shards:,}",
            f"{c.driver:.3f}",
            f"{1e3 * c.driver / shards:.2f}",
            f"{c.shipped / 1e6:.2f}",
            f"{c.shipped / 1e3 / shards:.1f}",
            f"{c.seconds:.2f}",
            f"{c.spark:.2f}",
        )
        console.print(table)
    judge(costs)


def measure(spark: SparkSession, shards: int, batches: int) -> Cost:
    """Run tiny batches over many keys: rows and the ends of rows go from any shard to any other."""
    settings = {"shards": shards, "batch.files": 1, "trigger": 0, "batch.seconds": 0}
    marks: list[tuple[float, float, int]] = []
    with folder() as base, pickled() as functions:
        write_stream(base / "s", ROWS * (batches + WARM_UP), 50, ROWS, 1, per_file=ROWS)
        with Session(spark, settings=settings, autostart=False) as session:
            session.callback("seen", lambda batch, rows: None)
            session.sql(script(base))
            admission, note = session.pipeline.admission, marks.append
            noted = admission.note

            def batch(*given: Any) -> None:  # this is called at the end of every batch
                noted(*given)
                note((time.perf_counter(), time.process_time(), len(functions)))

            admission.note = batch  # type: ignore[method-assign]
            session.start()
            session.await_idle()
            session.stop()
    wall = [b[0] - a[0] for a, b in pairwise(marks[WARM_UP:])]
    own = [b[1] - a[1] for a, b in pairwise(marks[WARM_UP:])]
    sent = functions[marks[-2][2] : marks[-1][2]][-STAGES - 1 :]
    shipped = sent[0] + shards * sum(sent[1:]) + shuffled(spark)
    alone = statistics.median(nothing(spark, shards) for _ in range(3))
    return Cost(shards, statistics.median(own), shipped, statistics.median(wall), alone)


def script(base: Path) -> str:
    return f"""
    CREATE STREAM s ({SCHEMA}) USING parquet OPTIONS (path '{base}/s') TIMESTAMP BY t;
    CREATE SINK seen USING callback OPTIONS (changes 'intervals');
    CREATE QUERY q INTO seen AS
      SELECT v, COUNT(*) AS n FROM s [PARTITION BY k ROWS 3] GROUP BY v;
    """


@contextmanager
def pickled() -> Iterator[list[int]]:
    """Collect the sizes of the functions that are sent to Spark meanwhile."""
    sizes: list[int] = []
    before = CloudPickleSerializer.dumps

    def dumps(self: CloudPickleSerializer, given: Any) -> bytes:
        data: bytes = before(self, given)
        sizes.append(len(data))
        return data

    CloudPickleSerializer.dumps = dumps  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        CloudPickleSerializer.dumps = before  # type: ignore[method-assign]


def shuffled(spark: SparkSession) -> int:
    """Return the bytes that the newest job with so many stages wrote for its shuffles."""
    context = spark.sparkContext
    assert context._jvm is not None
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    for at in range(jobs.size()):  # the newest first
        stages = jobs.apply(at).stageIds()
        if stages.size() == STAGES + 1:
            return sum(
                int(store.lastStageAttempt(stages.apply(i)).shuffleWriteBytes())
                for i in range(stages.size())
            )
    raise AssertionError("a batch must be one job of several stages")


def nothing(spark: SparkSession, shards: int) -> float:
    """Return the seconds of a job of the same shape that does nothing."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    began = time.perf_counter()
    frame = spark.range(0, ROWS, 1, 1).selectExpr(f"cast(id % {shards} as int) as shard")
    frame = frame.mapInArrow(passed, "shard int")
    for _ in range(STAGES):
        frame = frame.repartitionById(shards, frame["shard"]).mapInArrow(passed, "shard int")
    frame.collect()
    return time.perf_counter() - began


def judge(costs: list[Cost]) -> None:
    """Fail if a batch costs too much, or more than linear."""
    for c in costs:
        spent = 1e3 * c.driver / c.shards
        assert c.shards < 256 or spent <= MOST_MILLISECONDS, f"{c.shards} shards: {spent:.2f} ms"
    for a, b in pairwise(costs):
        bound = MOST_GROWTH * b.shards / a.shards
        for name in ("driver", "shipped"):
            grown = getattr(b, name) / getattr(a, name)
            assert grown <= bound, f"{name}, {a.shards} to {b.shards} shards: {grown:.1f} times"
    console.print("at most linear, and within a millisecond per shard and batch")


if __name__ == "__main__":
    main()
