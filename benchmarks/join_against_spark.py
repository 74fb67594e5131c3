"""Equality join of two Parquet streams: Penstock against Spark's own stream-stream join.

Both sides read the same files on the same Spark with the same number of files per batch, join on
100,000 keys within 10 s of event time, and count what comes out.  The first batches of each side
are warm-up; the figure is rows per second over the others, and the ratio of the two.  Both must
find the same number of pairs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.config import Config
from penstock.session import Session
from penstock.spark.engine import own_session

KEYS = 100_000
ROWS_PER_SECOND = 10_000
WINDOW = 10_000_000
SCHEMA = "k BIGINT, v DOUBLE, t TIMESTAMP"


def generate(folder: Path, files: int, rows: int) -> None:
    """Write both streams: one row every 100 microseconds, keys at random."""
    random = np.random.default_rng(7)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in track(range(files), f"writing stream {name}", transient=True):
            time_ = (np.arange(rows, dtype=np.int64) + i * rows) * (1_000_000 // ROWS_PER_SECOND)
            table = pa.table(
                {
                    "k": random.integers(0, KEYS, rows),
                    "v": random.random(rows),
                    "t": pa.array(time_, pa.timestamp("us", "UTC")),
                }
            )
            pq.write_table(table, folder / name / f"{i:05d}.parquet")
            time.sleep(0.002)  # files arrive in order of their modification time
        end = pa.table(  # a last row without partner, much later: everything before it is final
            {
                "k": [-1 if name == "a" else -2],
                "v": [0.0],
                "t": pa.array([int(time_[-1]) + 10 * WINDOW], pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(end, folder / name / f"{files:05d}.parquet")


def run_spark(spark: SparkSession, folder: Path, per_batch: int) -> tuple[list[float], int]:
    """Run Spark's own join and return the seconds of each batch and the number of pairs."""
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    pairs = 0
    seconds: list[float] = []

    def side(name: str):
        opened = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch)
        loaded = opened.parquet(str(folder / name)).withWatermark("t", "0 seconds")
        return loaded.select(*(F.col(c).alias(f"{name}_{c}") for c in ("k", "v", "t")))

    gap = F.unix_micros("a_t") - F.unix_micros("b_t")
    joined = side("a").join(
        side("b"),
        (F.col("a_k") == F.col("b_k"))
        & (F.col("a_t") > F.col("b_t") - F.expr("INTERVAL 10 SECONDS"))
        & (F.col("a_t") < F.col("b_t") + F.expr("INTERVAL 10 SECONDS"))
        & (F.abs(gap) < WINDOW),
    )
    began = time.perf_counter()

    def count(frame, _):
        nonlocal pairs, began
        pairs += frame.count()
        now = time.perf_counter()
        seconds.append(now - began)
        began = now

    query = (
        joined.writeStream.foreachBatch(count)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shutil.rmtree(checkpoint, ignore_errors=True)
    return seconds, pairs


def run_penstock(spark: SparkSession, folder: Path, per_batch: int) -> tuple[list[float], int]:
    """Run the same join in Penstock."""
    seconds: list[float] = []
    with Session(spark, settings={"batch.files": per_batch, "trigger": 0}) as session:
        session.sql(
            f"""
            CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{folder}/a') TIMESTAMP BY t;
            CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{folder}/b') TIMESTAMP BY t;
            CREATE SINK nowhere USING blackhole;
            CREATE QUERY pairs INTO nowhere AS
              SELECT a.k, a.v AS av, b.v AS bv
              FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k;
            """
        )
        session.await_idle()
        session.stop()
        ends = session.pipeline.metrics.ended_at
        seconds = [later - earlier for earlier, later in pairwise(ends)]
        seconds.insert(0, seconds[0])
        return seconds, session.query("pairs").sink.rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rows", type=int, default=50_000, help="rows per file")
    parser.add_argument("--per-batch", type=int, default=5, help="files of a stream per batch")
    options = parser.parse_args(arguments)
    console = Console()
    spark = own_session(None, Config({"driver.memory": "6g"}))
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    folder = Path(tempfile.mkdtemp(prefix="bench-join-"))
    try:
        generate(folder, options.files, options.rows)
        batch_rows = 2 * options.per_batch * options.rows
        table = Table("engine", "rows/s, steady state", "rows/s, whole run", "pairs")
        rates, found = {}, {}
        for name, run in (("Penstock", run_penstock), ("Spark stream-stream join", run_spark)):
            with console.status(f"running {name}"):
                seconds, pairs = run(spark, folder, options.per_batch)
            found[name] = pairs
            rates[name] = batch_rows / statistics.median(seconds[len(seconds) // 3 :])
            whole = batch_rows * len(seconds) / sum(seconds)
            table.add_row(name, f"{rates[name]:,.0f}", f"{whole:,.0f}", f"{pairs:,}")
        console.print(table)
        if len(set(found.values())) != 1:
            raise SystemExit(f"both engines must find the same pairs, got {found}")
        ours, theirs = rates.values()
        console.print(
            f"join of two streams, {KEYS:,} keys, window 10 s: "
            f"Penstock / Spark (default state store) = {ours / theirs:.1f} x (wanted: 3 x)"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
