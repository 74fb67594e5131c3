"""Packing in parallel: streams of eight files each, packed by one task and by one per core.

``python -m benchmarks packing --rows N`` runs both sides in turn on the same input and the same
cores.  The files of a stream cover the same time: each has every eighth row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.harness import SCHEMA, Measure, folder, medians, penstock

FILES = 8
PER_SECOND = 10_000
BATCH_ROWS = 2_000_000


def packing(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Packing alone, the equality join and the sliding aggregate."""
    with folder() as base:
        for seed, (name, keys) in enumerate({"a": 100_000, "b": 100_000, "few": 100}.items()):
            write_side_by_side(base / name, rows, keys, seed, "parquet")
        write_side_by_side(base / "text", rows, 100, 9, "csv")
        scripts = {
            "packing of one csv stream": (_packing_alone(base), 1),
            "equality join": (_join(base), 2),
            "sliding sum and count": (_sliding(base), 1),
        }
        cores = spark.sparkContext.defaultParallelism
        return [
            _measure(spark, name, script, streams * rows, repeats, cores)
            for name, (script, streams) in scripts.items()
        ]


def write_side_by_side(path: Path, rows: int, keys: int, seed: int, kind: str) -> None:
    """Write a stream as eight files, each with every eighth row in the order of time."""
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    when = np.arange(rows, dtype=np.int64) * (1_000_000 // PER_SECOND)
    columns = {
        "k": pa.array(random.integers(0, keys, rows)),
        "v": pa.array(random.random(rows)),
        "t": pa.array(when, pa.timestamp("us")),
    }
    table = pa.table(columns)
    for file in range(FILES):
        some = table.take(pa.array(np.arange(file, rows, FILES)))
        if kind == "csv":
            pyarrow.csv.write_csv(some, path / f"{file}.csv")
        else:
            pq.write_table(some, path / f"{file}.parquet")


def _measure(
    spark: SparkSession, name: str, script: str, rows: int, repeats: int, cores: int
) -> Measure:
    found: dict[str, dict[str, int]] = {}

    def side(label: str, tasks: int) -> Callable[[], float]:
        def run() -> float:
            settings = {"pack.tasks": tasks, "batch.rows": BATCH_ROWS}
            seconds, found[label], _ = penstock(spark, script, FILES, settings)
            return seconds

        return run

    sides = {"one task": side("one task", 1), f"{cores} tasks": side(f"{cores} tasks", cores)}
    taken = medians({f"{name}, {label}": run for label, run in sides.items()}, repeats)
    if len({tuple(answer.items()) for answer in found.values()}) != 1:
        raise SystemExit(f"both must give as many answers, got {found}")
    one, several = (rows / seconds for seconds in taken.values())
    parts = {"one task rows/s": one, f"{cores} tasks rows/s": several, "rows": rows}
    title = f"{name}, eight files each, packed on all cores against one"
    return Measure(title, several / one, None if cores == 1 else 1.0, "above", parts)


def _packing_alone(base: Path) -> str:
    return f"""
    CREATE STREAM s ({SCHEMA}) USING replay OPTIONS (path '{base}/text') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY q INTO nowhere AS ISTREAM(SELECT k, v FROM s [NOW] WHERE v > 0.999);
    """


def _join(base: Path) -> str:
    return f"""
    CREATE STREAM a ({SCHEMA}) USING replay OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING replay OPTIONS (path '{base}/b') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY pairs INTO nowhere AS
      SELECT a.k, a.v AS av, b.v AS bv
      FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k;
    """


def _sliding(base: Path) -> str:
    return f"""
    CREATE STREAM a ({SCHEMA}) USING replay OPTIONS (path '{base}/few') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY sums INTO nowhere AS
      SELECT k, SUM(v) AS total, COUNT(*) AS n
      FROM a [RANGE 10 SECONDS SLIDE 100 MILLISECONDS] GROUP BY k;
    """
