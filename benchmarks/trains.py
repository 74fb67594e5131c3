"""``python -m benchmarks.trains``: what trains cost and save, in the engine without Spark.

* ``large``: batches of 2 million rows into a join that makes fifty rows of one, with an aggregate
  behind it: the most anonymous memory (RssAnon) of the process, and rows per second.
* ``plain``: batches of 2 million rows into a join that makes about one row of one, and a sliding
  aggregate: rows per second.
* ``small``: batches of 10,000 rows into a join and an aggregate: rows per second.

Each side runs in processes of its own, in turn with the other: trains as they are chosen, against
one train a batch.  ``--raw`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.harness import console, plans_of
from penstock.physical.batch import Outcome
from penstock.runs.segments import SegmentStorage
from penstock.testing.local import LocalEngine

SIDES = {"one train": 1 << 40, "trains": 0}
BARS = {"large": (0.95, 0.25), "plain": (0.95, None), "small": (0.98, None)}
"""At least so many rows per second, at most so much of the memory, of one train."""

SCRIPT = """
CREATE STREAM a (k INT, g INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k INT, v BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY sums AS SELECT a.k, COUNT(*) AS n, SUM(b.v + a.g) AS s
  FROM a [RANGE {range}] JOIN b [RANGE {range}] ON a.k = b.k GROUP BY a.k;
"""

PLAIN = """
CREATE STREAM a (k INT, g INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k INT, v BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY pairs AS SELECT a.k, a.g, b.v
  FROM a [RANGE {range}] JOIN b [RANGE {range}] ON a.k = b.k;
CREATE QUERY sums AS SELECT k, COUNT(*) AS n, SUM(v) AS s
  FROM b [RANGE {range} SLIDE 1000] GROUP BY k;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains against one train a batch")
    parser.add_argument("names", nargs="*", default=["large", "plain", "small"])
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="of a large batch, both streams"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured(options.names[0], options.side, options.rows)))
        return
    found = {name: sides(name, options.rows, options.repeats) for name in options.names}
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    missed = show(found)
    raise SystemExit(1 if missed else 0)


def sides(name: str, rows: int, repeats: int) -> dict[str, dict[str, float]]:
    """Run both sides in turn; return the medians of what was measured."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for turn in range(repeats):
        for side in SIDES:
            console.print(f"{name}, {side}, {turn + 1} of {repeats}", style="dim")
            command = [sys.executable, "-m", "benchmarks.trains", name, "--side", side]
            told = subprocess.run(
                [*command, "--rows", str(rows)], check=True, capture_output=True, text=True
            )
            runs[side].append(json.loads(told.stdout))
    answers = {found["answers"] for some in runs.values() for found in some}
    if len(answers) != 1:
        raise SystemExit(f"both sides must give the same answers, got {answers}")
    return {
        side: {what: statistics.median(found[what] for found in some) for what in some[0]}
        for side, some in runs.items()
    }


def show(found: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Print a table; return whether a bar was missed."""
    table = Table("batches", "rows/s", "of one train", "MB", "of one train", "")
    missed = False
    for name, some in found.items():
        one, several = some["one train"], some["trains"]
        speed = several["rows/s"] / one["rows/s"]
        memory = several["megabytes"] / one["megabytes"]
        least, most = BARS[name]
        reached = speed >= least and (most is None or memory <= most)
        missed |= not reached
        table.add_row(
            name,
            f"{several['rows/s']:,.0f}",
            f"{speed:.2f} (≥ {least})",
            f"{several['megabytes']:,.0f}",
            f"{memory:.2f}" + ("" if most is None else f" (≤ {most})"),
            "reached" if reached else "missed",
        )
    console.print(table)
    return missed


def measured(name: str, side: str, rows: int) -> dict[str, float]:
    """Run one side in this process."""
    each, batches = (5_000, 100) if name == "small" else (rows // 2, 2)
    span = 2_000 if name == "small" else each
    # of a window of span // 20 there are fifty partners, or one
    keys = {"large": span // 500, "plain": span // 10, "small": 500}[name]
    script = (PLAIN if name == "plain" else SCRIPT).format(range=span // 20)
    engine = Counting(script, {"train.rows": SIDES[side]})
    random = np.random.default_rng(1)
    inputs = []
    for batch in range(batches):
        when = (
            np.arange(batch * span, batch * span + each)
            if each == span
            else np.sort(random.integers(batch * span, (batch + 1) * span, each))
        )
        inputs.append(
            {
                stream: pa.table(
                    {
                        "k": pa.array(random.integers(0, keys, each), pa.int32()),
                        other: pa.array(random.integers(0, 10, each), kind),
                        "t": pa.array(when, pa.int64()),
                    }
                )
                for stream, other, kind in (("a", "g", pa.int32()), ("b", "v", pa.int64()))
            }
        )
    with Memory() as memory:
        began = time.perf_counter()
        for tables in inputs:
            engine.batch(tables)
        seconds = time.perf_counter() - began
    return {
        "rows/s": 2 * each * batches / seconds,
        "megabytes": memory.most - memory.before,
        "answers": engine.rows,
    }


class Counting(LocalEngine):
    """The engine with its state and answers in files; answers are only counted."""

    def __init__(self, script: str, settings: dict[str, int]) -> None:
        super().__init__(plans_of(script), settings=settings)
        self.rows = 0
        self._folder = tempfile.TemporaryDirectory()
        self._storage: Any = SegmentStorage(self._folder.name, "0", False)

    def _take(self, outcome: Outcome) -> None:
        for states, new in zip(self._states, outcome.states, strict=True):
            states |= new
        self.rows += sum(result["rows"] for result in outcome.results)
        self._storage.close()
        self._storage = SegmentStorage(self._folder.name, str(self.number + 1), False)


class Memory:
    """Samples the anonymous memory of this process, in MB."""

    def __enter__(self) -> Memory:
        self.before = self.most = _anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, _anonymous())


def _anonymous() -> float:
    (found,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1024


if __name__ == "__main__":
    main()
