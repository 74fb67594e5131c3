"""``python -m benchmarks [name ..] [--rows N] [--repeats N]``: all benchmarks, or those named.

Every line is a ratio of two sides measured in one run, on the same Spark, the same cores and the
same Parquet input.  Each side is warmed up first; a figure is the median of ``--repeats`` runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import against_ourselves, against_spark
from benchmarks.harness import Measure, console, draw, report, spark_session

BENCHMARKS = {
    "join": against_spark.join,
    "sliding": against_spark.sliding,
    "window": against_ourselves.long_window,
    "sharing": against_ourselves.sharing,
    "memory": against_ourselves.memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Penstock's benchmarks")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--raw", type=Path, help="JSON file that keeps the numbers")
    parser.add_argument("--plot", type=Path, help="PNG file of all numbers in the raw file")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark '{name}'; known: {', '.join(BENCHMARKS)}")
    if options.plot is not None and options.raw is None:
        parser.error("--plot draws what --raw keeps; give both")
    spark = spark_session()
    measures: list[Measure] = []
    for name in options.names or BENCHMARKS:
        rows = options.rows * (10 if name == "memory" else 1)
        found = BENCHMARKS[name](spark, rows, options.repeats)
        measures += found
        report(found, options.raw)
    console.rule("all")
    report(measures, None)
    if options.plot is not None:
        draw(options.raw, options.plot)


if __name__ == "__main__":
    main()
