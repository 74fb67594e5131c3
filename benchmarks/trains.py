"""``python -m benchmarks.trains``: what trains and temporary files cost and save, without Spark.

* ``large``: batches of 2 million rows into a join that makes fifty rows of one, with an aggregate
  behind it: the most anonymous memory (RssAnon) of the process, and rows per second.
* ``plain``: batches of 2 million rows into a join that makes about one row of one, and a sliding
  aggregate: rows per second.
* ``small``: batches of 10,000 rows into a join and an aggregate: rows per second.
* ``regroup``: what the join of ``large`` makes, in the task of a later stage that groups it by
  another key: memory and rows per second.
* ``packing``: five times as many rows that Spark has parsed, packed by one task: the same.

Each side runs in processes of its own, in turn with the other.  The first three compare trains as
they are chosen with one train a batch, the others `stage.memory` as it is with more than enough, so
that nothing goes into temporary files.  ``--raw`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks import one_task
from benchmarks.harness import console
from benchmarks.memory import Memory
from penstock.bench.scripts import plans_of
from penstock.physical.batch import Outcome
from penstock.runs.segments import SegmentStorage
from penstock.testing.local import LocalEngine

_TRAINS = {"one train": {"train.rows": 1 << 40}, "trains": {}}
_FILES = {"all in memory": {"stage.memory": 1 << 50}, "files": {}}
SIDES: dict[str, dict[str, dict[str, int]]] = {
    "large": _TRAINS,
    "plain": _TRAINS,
    "small": _TRAINS,
    "regroup": _FILES,
    "packing": _FILES,
}
"""The settings of both sides: how it would be, and how it is."""

BARS = {
    "large": (0.95, 0.25),
    "plain": (0.95, None),
    "small": (0.98, None),
    "regroup": (0.95, 0.25),
    "packing": (0.95, 0.5),
}
"""At least so many rows per second, at most so much of the memory, of the first side."""

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
    parser = argparse.ArgumentParser(description="What trains and temporary files cost and save")
    parser.add_argument("names", nargs="*", default=list(SIDES), help=", ".join(SIDES))
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="of a large batch, both streams"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--prepared", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "prepare":
        one_task.prepare(options.prepared, options.rows)
        return
    if options.side:
        name, settings = options.names[0], SIDES[options.names[0]][options.side]
        if name == "regroup":
            told = one_task.regroup(options.prepared, options.rows, settings)
        elif name == "packing":
            told = one_task.pack(5 * options.rows, settings)
        else:
            told = measured(name, settings, options.rows)
        print(json.dumps(told))
        return
    found = {name: sides(name, options.rows, options.repeats) for name in options.names}
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    missed = show(found)
    raise SystemExit(1 if missed else 0)


def sides(name: str, rows: int, repeats: int) -> dict[str, dict[str, float]]:
    """Run both sides in turn; return the medians of what was measured."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES[name]}
    with tempfile.TemporaryDirectory() as folder:
        if name == "regroup":
            _side(name, "prepare", rows, folder)
        for turn in range(repeats):
            for side, found in runs.items():
                console.print(f"{name}, {side}, {turn + 1} of {repeats}", style="dim")
                found.append(json.loads(_side(name, side, rows, folder)))
    answers = {found["answers"] for some in runs.values() for found in some}
    if len(answers) != 1:
        raise SystemExit(f"both sides must give the same answers, got {answers}")
    return {
        side: {what: statistics.median(found[what] for found in some) for what in some[0]}
        for side, some in runs.items()
    }


def _side(name: str, side: str, rows: int, folder: str) -> str:
    """Run one side in a process of its own; return what it tells."""
    command = [sys.executable, "-m", "benchmarks.trains", name, "--side", side]
    given = ["--rows", str(rows), "--prepared", f"{folder}/parcels"]
    told = subprocess.run([*command, *given], check=True, stdout=subprocess.PIPE, text=True)
    return told.stdout


def show(found: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Print a table; return whether a bar was missed."""
    table = Table("batches", "rows/s", "of the other side", "MB", "of the other side", "")
    missed = False
    for name, some in found.items():
        one, several = some.values()
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


def measured(name: str, settings: dict[str, int], rows: int) -> dict[str, float]:
    """Run one side in this process."""
    each, batches = (5_000, 500) if name == "small" else (rows // 2, 2)
    span = 2_000 if name == "small" else each
    # of a window of span // 20 there are fifty partners, or one
    keys = {"large": span // 500, "plain": span // 10, "small": 500}[name]
    script = (PLAIN if name == "plain" else SCRIPT).format(range=span // 20)
    engine = Counting(script, settings)
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

    def __init__(self, script: str, settings: dict[str, Any]) -> None:
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


if __name__ == "__main__":
    main()
