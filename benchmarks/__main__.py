"""``python -m benchmarks [--only NAME ..] [--rows N] [--repeats N]``: all benchmarks, or some.

Every line is a ratio of two sides measured in one run, on the same Spark, the same cores and the
same input.  Each side is warmed up first; a figure is the median of ``--repeats`` runs.
``--raw`` keeps the numbers; ``--plot`` and ``--page`` draw and tabulate all that it has kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import (
    against_before,
    against_flink,
    against_ourselves,
    against_spark,
    beyond_memory,
    classes,
    eddies,
    packing,
    skew,
)
from benchmarks.harness import Measure, console, draw, report, spark_session, write_table


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, and by how much ``--rows`` is multiplied for it."""

    run: Callable[[SparkSession, int, int], list[Measure]]
    rows: float = 1.0


BENCHMARKS = {
    "join": Benchmark(against_spark.join),
    "before": Benchmark(against_before.before),
    "flink": Benchmark(against_flink.flink, 0.25),
    "band": Benchmark(classes.join_class("band"), 0.5),
    "overlap": Benchmark(classes.join_class("overlap"), 0.5),
    "spatial": Benchmark(classes.join_class("spatial"), 0.5),
    "beyond": Benchmark(beyond_memory.beyond_memory, 3),
    "skew": Benchmark(skew.skew, 0.5),
    "packing": Benchmark(packing.packing),
    "eddies": Benchmark(eddies.eddies, 2),
    "sliding": Benchmark(against_spark.sliding),
    "window": Benchmark(against_ourselves.long_window),
    "sharing": Benchmark(against_ourselves.sharing),
    "memory": Benchmark(against_ourselves.memory, 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--only", nargs="+", default=[], metavar="name", help="the same")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--raw", type=Path, help="JSON file that keeps the numbers")
    parser.add_argument("--plot", type=Path, help="PNG file of all numbers in the raw file")
    parser.add_argument("--page", type=Path, help="Markdown page that has the table of them")
    options = parser.parse_args()
    names = [*options.names, *options.only]
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark '{name}'; known: {', '.join(BENCHMARKS)}")
    if options.raw is None and (options.plot or options.page):
        parser.error("--plot and --page show what --raw keeps; give it too")
    spark = spark_session()
    measures: list[Measure] = []
    for name in names or BENCHMARKS:
        chosen = BENCHMARKS[name]
        found = chosen.run(spark, int(options.rows * chosen.rows), options.repeats)
        measures += found
        report(found, options.raw)
    console.rule("all")
    report(measures, None)
    if options.raw is not None and options.raw.exists() and json.loads(options.raw.read_text()):
        if options.plot is not None:
            draw(options.raw, options.plot)
        if options.page is not None:
            write_table(options.raw, options.page)


if __name__ == "__main__":
    main()
