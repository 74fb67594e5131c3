"""Penstock against itself: longer windows, more queries, and the memory of a worker."""

from __future__ import annotations

import statistics
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.beyond_memory import Resident
from benchmarks.harness import (
    SCHEMA,
    Measure,
    console,
    folder,
    medians,
    penstock,
    write_stream,
)


def _join_script(base: Path, seconds: int, queries: int = 1) -> str:
    made = "\n".join(
        f"CREATE QUERY q{i} INTO nowhere{i} AS SELECT k, av, bv FROM pairs WHERE av > 0.{i};"
        for i in range(queries)
    )
    sinks = "\n".join(f"CREATE SINK nowhere{i} USING blackhole;" for i in range(queries))
    return f"""
    CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
    {sinks}
    CREATE VIEW pairs AS SELECT a.k, a.v AS av, b.v AS bv
      FROM a [RANGE {seconds} SECONDS], b [RANGE {seconds} SECONDS] WHERE a.k = b.k;
    {made}
    """


def long_window(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """A join whose window is 100 times longer, with 100 times the keys: the same output per row."""
    with folder() as base:
        sides = {}
        for name, seconds, keys in (("short", 1, 10_000), ("long", 100, 1_000_000)):
            write_stream(base / name / "a", rows, keys, 10_000, 1)
            write_stream(base / name / "b", rows, keys, 10_000, 2)
            run = _join_script(base / name, seconds)
            sides[name] = lambda run=run: penstock(spark, run, 10)[0]
        rates = {name: 2 * rows / taken for name, taken in medians(sides, repeats).items()}
    return [
        Measure(
            "our join, window 100 times longer against short",
            rates["long"] / rates["short"],
            0.5,
            "above",
            {f"{k} rows/s": v for k, v in rates.items()},
        )
    ]


def sharing(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Ten queries that share a join against one of them alone: time per batch."""
    with folder() as base:
        write_stream(base / "a", rows, 100_000, 10_000, 1, max(rows // 40, 1))
        write_stream(base / "b", rows, 100_000, 10_000, 2, max(rows // 40, 1))

        def batch(queries: int) -> float:
            return statistics.median(penstock(spark, _join_script(base, 10, queries), 10)[2])

        times = medians({"one": lambda: batch(1), "ten": lambda: batch(10)}, repeats)
    return [
        Measure(
            "ten queries sharing a join against one: time per batch",
            times["ten"] / times["one"],
            2.5,
            "below",
            {f"{name}, seconds": seconds for name, seconds in times.items()},
        )
    ]


def memory(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Peak anonymous memory of a Python worker, with a window of all rows and of a tenth.

    Both streams together are the window; there are as many keys as rows, so that the output per row
    is the same.
    """
    found: dict[str, list[int]] = {"small window": [], "large window": []}
    for _ in range(max(repeats, 1)):
        for label, count in (("small window", rows // 10), ("large window", rows)):
            with folder() as base:
                write_stream(base / "a", count // 2, count, 10_000, 1, 200_000)
                write_stream(base / "b", count // 2, count, 10_000, 2, 200_000)
                with Resident() as resident:
                    penstock(spark, _join_script(base, 100_000), 2)
                found[label].append(resident.peaks["RssAnon"])
            console.log(f"{label}: {found[label][-1] >> 20} MB")
    peaks = {label: statistics.median(each) for label, each in found.items()}
    return [
        Measure(
            "peak RssAnon of a Python worker, window ten times larger",
            peaks["large window"] / peaks["small window"],
            2.0,
            "below",
            {f"{k}, MB": v / 2**20 for k, v in peaks.items()} | {"rows": rows},
        )
    ]
