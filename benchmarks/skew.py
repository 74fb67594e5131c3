"""A join with a hot key: split while it runs against left in one shard; and what looking costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.harness import SCHEMA, Columns, Measure, folder, medians, run_penstock, write_stream

_KEYS = 10_000
_HOT = (0.3, 0.002)
"""The parts of the left and of the right rows that have one key: it makes most of the results."""


def _skewed(part: float) -> Callable[[np.random.Generator, int], Columns]:
    def make(random: np.random.Generator, count: int) -> Columns:
        keys = np.where(random.random(count) < part, -7, random.integers(0, _KEYS, count))
        return {"k": keys, "v": random.random(count)}

    return make


def _script(base: Path) -> str:
    return f"""
    CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY q INTO nowhere AS SELECT a.k, a.v AS av, b.v AS bv
      FROM a [RANGE 10 SECONDS], b [RANGE 10 SECONDS] WHERE a.k = b.k;
    """


def skew(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Rows per second with join.split=0 against join.split=1, with a hot key and without."""
    found = []
    skewed = f"one key has {_HOT[0]:.0%} of the left rows and {_HOT[1]:.1%} of the right ones"
    for what, parts in ((skewed, _HOT), ("no skew", (0.0, 0.0))):
        with folder() as base:
            for name, part, seed in (("a", parts[0], 1), ("b", parts[1], 2)):
                write_stream(base / name, rows, _skewed(part), 10_000, seed)
            made: dict[int, int] = {}

            def side(split: int, base: Path = base, made: dict[int, int] = made) -> float:
                ran = run_penstock(spark, _script(base), 4, {"join.split": split})
                made[split] = ran.rows["q"]
                return ran.seconds

            sides: dict[str, Callable[[], float]] = {
                "split": lambda side=side: side(0),
                "not split": lambda side=side: side(1),
            }
            rates = {name: 2 * rows / taken for name, taken in medians(sides, repeats).items()}
        if made[0] != made[1]:
            raise AssertionError(f"both must give the same answers, got {made[0]} and {made[1]}")
        ratio = rates["split"] / rates["not split"]
        measured: dict[str, float] = {f"{name}, rows/s": rate for name, rate in rates.items()}
        measured["results"] = made[0]
        found.append(Measure(f"hot keys split, {what}", ratio, None, "above", measured))
    return found
