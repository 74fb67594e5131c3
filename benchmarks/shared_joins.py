"""``python -m benchmarks.shared_joins``: ten joins that differ in their windows, as one, or apart.

In the engine without Spark, with state and answers in files:

* Ten queries join two streams on one condition, with windows from 1 second to 10 minutes: rows per
  second and bytes of state of one shared join, of ten joins, and of the largest alone.
* When each query has its first and its last row of a large batch, with the results of the shared
  join in each order: ``lwo``, ``swf``, ``mqt``.  Operators make way after 16,384 rows
  (``scheduler.quantum``), so that answers can leave while the join works.

Each run is a process of its own, in turn with the others.  ``--raw`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.harness import console
from benchmarks.trains import Counting
from penstock.physical.batch import Outcome
from penstock.physical.observation import bytes_of

LONGEST = 600_000
WINDOWS = (1_000, *(LONGEST * i // 9 for i in range(1, 10)))
"""In milliseconds, as the streams count time: 1 s, 66.7 s, 133.3 s .. 10 min."""
SIDES: dict[str, dict[str, Any]] = {
    "apart": {"join.windows": "apart"},
    "shared": {"join.windows": "shared"},
    "largest alone": {},
}
ORDERS = ("lwo", "swf", "mqt")
LEAST_SPEED, MOST_STATE = 5.0, 1.2

STREAMS = """
CREATE STREAM a (k BIGINT, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM b (k BIGINT, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
"""
QUERY = """
CREATE QUERY w{window} AS SELECT a.k, x, y
  FROM a [RANGE {window}] JOIN b [RANGE {window}] ON a.k = b.k;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="One shared join against ten")
    parser.add_argument("--rows", type=int, default=600_000, help="of one stream in 10 minutes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measure = served if options.side in ORDERS else measured
        print(json.dumps(measure(options.side, options.rows)))
        return
    found = {side: medians(runs) for side, runs in all_runs(options).items()}
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    missed = show(found)
    raise SystemExit(1 if missed else 0)


def all_runs(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Run all sides in turn."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in (*SIDES, *ORDERS)}
    for turn in range(options.repeats):
        for side, some in runs.items():
            console.print(f"{side}, {turn + 1} of {options.repeats}", style="dim")
            command = [sys.executable, "-m", "benchmarks.shared_joins", "--side", side]
            told = subprocess.run(
                [*command, "--rows", str(options.rows)], check=True, capture_output=True, text=True
            )
            some.append(json.loads(told.stdout))
    for sides in (("apart", "shared"), ORDERS):
        answers = {found["answers"] for side in sides for found in runs[side]}
        if len(answers) != 1:
            raise SystemExit(f"{', '.join(sides)} must give the same answers, got {answers}")
    return runs


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {what: statistics.median(run[what] for run in runs) for what in runs[0]}


def show(found: dict[str, dict[str, float]]) -> bool:
    """Print two tables; return whether a bar was missed."""
    one, ten, alone = (found[side] for side in ("shared", "apart", "largest alone"))
    table = Table("ten queries", "rows/s", "rows per second of CPU", "MB of state")
    for side in SIDES:
        own = found[side]
        table.add_row(
            side, f"{own['rows/s']:,.0f}", f"{own['rows/cpu s']:,.0f}", f"{own['megabytes']:,.1f}"
        )
    console.print(table)
    speed, state = one["rows/s"] / ten["rows/s"], one["megabytes"] / alone["megabytes"]
    missed = speed < LEAST_SPEED or state > MOST_STATE
    cpu = one["rows/cpu s"] / ten["rows/cpu s"]
    console.print(
        f"one join against ten: {speed:.2f} x the rows/s (≥ {LEAST_SPEED}), {cpu:.2f} x per second "
        f"of CPU; {state:.2f} x the state of the largest alone (≤ {MOST_STATE}): "
        f"{'missed' if missed else 'reached'}"
    )
    table = Table("order", "first row of 1 s", "last row of 1 s", "mean last row", "batch")
    for order in ORDERS:
        own = found[order]
        table.add_row(order, *(f"{own[what]:.3f} s" for what in ("first", "last", "mean", "all")))
    console.print(table)
    return missed


def batches(rows: int, count: int, each: int, keys: int) -> list[dict[str, pa.Table]]:
    """Make so many batches of both streams, ``rows`` of each in 10 minutes."""
    random = np.random.default_rng(1)
    span = max(1, LONGEST * each // rows)
    return [
        {
            stream: pa.table(
                {
                    "k": random.integers(0, keys, each),
                    other: random.integers(0, 10, each),
                    "t": np.sort(random.integers(batch * span, (batch + 1) * span, each)),
                }
            )
            for stream, other in (("a", "x"), ("b", "y"))
        }
        for batch in range(count)
    ]


def script(windows: tuple[int, ...]) -> str:
    return STREAMS + "".join(QUERY.format(window=window) for window in windows)


def measured(side: str, rows: int) -> dict[str, float]:
    """Run one side in this process: 16 batches, each of one twelfth of 10 minutes."""
    windows = WINDOWS[-1:] if side == "largest alone" else WINDOWS
    engine = Counting(script(windows), SIDES[side])
    inputs = batches(rows, 16, rows // 12, rows)
    began, before = time.perf_counter(), time.process_time()
    for tables in inputs:
        engine.batch(tables)
    seconds, spent = time.perf_counter() - began, time.process_time() - before
    came = 2 * len(inputs) * (rows // 12)
    return {
        "rows/s": came / seconds,
        "rows/cpu s": came / spent,
        "megabytes": sum(bytes_of(shard.values()) for shard in engine._states) / 1e6,
        "answers": engine.rows,
    }


class Timed(Counting):
    """Also keeps how soon the queries of the last batch got their answers."""

    def _take(self, outcome: Outcome) -> None:
        super()._take(outcome)
        self.served = outcome.served


def served(order: str, rows: int) -> dict[str, float]:
    """Fill 10 minutes of state, then look at one batch of a minute, with ten partners a row."""
    settings = {"join.order": order, "train.rows": 1 << 40, "scheduler.quantum": 1 << 14}
    engine = Timed(script(WINDOWS), settings)
    *before, last = batches(rows, 11, rows // 10, max(1, rows // 10))
    for tables in before:
        engine.batch(tables)
    began = time.time()
    engine.batch(last)
    whole = time.time() - began
    smallest = engine.served[f"w{WINDOWS[0]}"]
    ends = [engine.served[f"w{window}"].last for window in WINDOWS]
    return {
        "first": smallest.first,
        "last": smallest.last,
        "mean": statistics.mean(ends),
        "all": whole,
        "answers": engine.rows,
    }


if __name__ == "__main__":
    main()
