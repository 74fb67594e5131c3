"""``python -m benchmarks.policies``: every scheduler on one plan, in the engine without Spark.

The join of ``benchmarks.trains large`` makes fifty rows of one, an aggregate is behind it, and a
second query reads one of the streams: in trains of 8,192 rows, bytes that waited between operators
at most, when the first and the last answers of both queries were there, and rows per second.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.harness import console
from benchmarks.trains import Counting
from penstock.settings import SCHEDULERS

SCRIPT = """
CREATE STREAM a (k INT, g INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k INT, g INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY sums AS SELECT a.k, COUNT(*) AS n, SUM(b.g + a.g) AS s
  FROM a [RANGE {range}] JOIN b [RANGE {range}] ON a.k = b.k GROUP BY a.k;
CREATE QUERY means AS SELECT k, AVG(g) AS mean FROM b [RANGE {range}] GROUP BY k;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Every scheduler on one plan")
    parser.add_argument("names", nargs="*", default=list(SCHEDULERS), help="schedulers")
    parser.add_argument("--rows", type=int, default=400_000, help="of a batch, both streams")
    parser.add_argument("--raw", type=Path)
    options = parser.parse_args()
    found = {name: measured(name, options.rows // 2) for name in options.names}
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    columns = ("MB held", "first of sums", "last", "first of means", "last", "rows/s")
    table = Table("scheduler", *columns)
    for name, numbers in found.items():
        held, *seconds, rate = numbers
        table.add_row(name, f"{held:.1f}", *(f"{s:.2f} s" for s in seconds), f"{rate:,.0f}")
    console.print(table)


def measured(name: str, each: int) -> tuple[float, ...]:
    """Run two batches, of which the second counts: the first is for the statistics."""
    settings = {"scheduler": name, "train.rows": 8192, "stage.memory": 1 << 40}
    engine = Counting(SCRIPT.format(range=each // 20), settings)
    dice = np.random.default_rng(1)
    for batch in range(2):
        rows = {
            stream: pa.table(
                {
                    "k": pa.array(dice.integers(0, max(1, each // 500), each), pa.int32()),
                    "g": pa.array(dice.integers(0, 10, each), pa.int32()),
                    "t": pa.array(np.arange(batch * each, (batch + 1) * each)),
                }
            )
            for stream in ("a", "b")
        }
        began = time.perf_counter()
        engine.batch(rows)
        rate = 2 * each / (time.perf_counter() - began)
    served = [engine.outcome.served[query] for query in ("sums", "means")]
    times = [seconds for one in served for seconds in (one.first, one.last)]
    return (engine.outcome.held / 1e6, *times, rate)


if __name__ == "__main__":
    main()
