"""Joins without equal keys: an order of the condition against testing every pair.

Each class joins two streams of ``rows`` rows whose windows hold a tenth of them (100,000 of a
million).  Testing every pair of that would take most of an hour, so the block-wise theta join, the
same query with ``join.index=false``, runs on the first tenth of the rows, once, and rates are
compared per row.  That favours it: while its window fills, a row meets half as many others as later
on.  Both find the same pairs there.

Equal density, twice the input: twice the rows, twice the rows in the window, and values spread over
twice the space, so that a row has as many partners as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.harness import (
    Columns,
    Measure,
    console,
    folder,
    medians,
    run_penstock,
    write_stream,
)

PER_SECOND = 10_000
PER_BATCH = 4
"""Files of 50,000 rows of each stream in one batch."""


@dataclass(frozen=True)
class JoinClass:
    """A class of conditions; ``values`` makes rows spread over ``size`` times the usual space."""

    name: str
    columns: str
    condition: str
    chosen: str
    values: Callable[[np.random.Generator, int, float], Columns]


def _band(random: np.random.Generator, count: int, size: float) -> Columns:
    return {"x": random.integers(0, int(100_000 * size), count)}


def _overlap(random: np.random.Generator, count: int, size: float) -> Columns:
    low = random.random(count) * 100_000 * size
    return {"lo": low, "hi": low + random.random(count) * 10}


def _spatial(random: np.random.Generator, count: int, size: float) -> Columns:
    side = size**0.5
    return {"x": random.random(count) * side, "y": random.random(count) * side}


CLASSES = {
    "band": JoinClass(
        "band join, within 5 of 100,000",
        "x BIGINT",
        "ABS(a.x - b.x) <= 5",
        "a.x AS ax, b.x AS bx",
        _band,
    ),
    "overlap": JoinClass(
        "interval-overlap join, lengths below 10 of 100,000",
        "lo DOUBLE, hi DOUBLE",
        "a.lo < b.hi AND b.lo < a.hi",
        "a.lo AS alo, b.lo AS blo",
        _overlap,
    ),
    "spatial": JoinClass(
        "spatial join, radius 0.1 % of the square",
        "x DOUBLE, y DOUBLE",
        "DISTANCE(a.x, a.y, b.x, b.y) <= 0.001",
        "a.x AS ax, b.x AS bx",
        _spatial,
    ),
}


def _script(base: Path, chosen: JoinClass, rows: int) -> str:
    schema = f"{chosen.columns}, t TIMESTAMP"
    window = rows * 1_000 // (10 * PER_SECOND)
    return f"""
    CREATE STREAM a ({schema}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({schema}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY pairs INTO nowhere AS SELECT {chosen.chosen}
      FROM a [RANGE {window} MILLISECONDS], b [RANGE {window} MILLISECONDS]
      WHERE {chosen.condition};
    """


def _write(base: Path, chosen: JoinClass, rows: int, size: float) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_stream(
            base / name,
            rows,
            lambda random, count: chosen.values(random, count, size),
            PER_SECOND,
            seed,
            min(50_000, max(rows // 20, 1_000)),
        )


def join_class(name: str) -> Callable[[SparkSession, int, int], list[Measure]]:
    """Return the benchmark of one class."""

    def run(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
        return _measure(spark, CLASSES[name], rows, repeats)

    return run


def _measure(spark: SparkSession, chosen: JoinClass, rows: int, repeats: int) -> list[Measure]:
    pairs: dict[str, int] = {}
    with folder() as base:
        _write(base / "whole", chosen, rows, 1)
        _write(base / "tenth", chosen, rows // 10, 1)
        _write(base / "twice", chosen, 2 * rows, 2)

        def timed(input: str, window_of: int, index: bool = True) -> float:
            """Run one side; the window is that of ``window_of`` rows."""
            script = _script(base / input, chosen, window_of)
            ran = run_penstock(spark, script, PER_BATCH, {"join.index": index})
            pairs[f"{input}, {'index' if index else 'theta'}"] = ran.rows["pairs"]
            return ran.seconds

        taken = medians(
            {
                f"{chosen.name}": lambda: timed("whole", rows),
                f"{chosen.name}, twice the input": lambda: timed("twice", 2 * rows),
            },
            repeats,
            {f"{chosen.name}, twice the input": lambda: timed("tenth", rows)},
        )
        with console.status(f"{chosen.name}, every pair of a tenth of the rows"):
            theta = timed("tenth", rows, index=False)
            console.log(f"{chosen.name}, every pair of a tenth of the rows: {theta:.2f} s")
    once, twice = taken.values()
    if pairs["tenth, index"] != pairs["tenth, theta"]:
        raise SystemExit(f"{chosen.name}: both ways must find the same pairs, got {pairs}")
    fast, slow = 2 * rows / once, 2 * (rows // 10) / theta
    shape = {"rows": 2 * rows, "pairs": pairs["whole, index"]}
    return [
        Measure(
            f"{chosen.name}, against testing every pair",
            fast / slow,
            30.0,
            "above",
            {"by order rows/s": fast, "every pair rows/s": slow, **shape},
        ),
        Measure(
            f"{chosen.name}, twice the input at equal density",
            twice / once,
            2.3,
            "below",
            {
                "once, seconds": once,
                "twice, seconds": twice,
                **shape,
                "pairs of twice": pairs["twice, index"],
            },
        ),
    ]
