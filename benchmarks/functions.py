"""``python -m benchmarks.functions [--rows N]``: functions of the user's own against built-in ones.

Each line is the speed of a query with a function of the user's own as a share of the same query
with built-in functions of equal work, without Spark: packing and one stage in one shard, state and
answers in files, as a Spark task does it.  Wanted is at least a third.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from penstock.bench.scripts import plans_of
from penstock.physical.batch import Arrivals, run_batch
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.progress import Progress, Timeline
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.timing import TimeRules

WANTED = 1 / 3
BATCH = 1 << 17
DECLARED = """
CREATE STREAM s (k INT, n BIGINT, x DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE FUNCTION line (x DOUBLE) RETURNS DOUBLE USING 'benchmarks.functions:line' TAKES NUMPY;
CREATE FUNCTION total (n BIGINT) RETURNS BIGINT USING 'benchmarks.functions:Total';
CREATE FUNCTION mean_of (x DOUBLE) RETURNS DOUBLE USING 'benchmarks.functions:Mean';
"""
PAIRS = {
    "scalar": ("SELECT k, line(x) AS y FROM s [NOW]", "SELECT k, x * 2.5 + 1.0 AS y FROM s [NOW]"),
    "scalar in WHERE": (
        "SELECT k, x FROM s [NOW] WHERE line(x) > 2.0",
        "SELECT k, x FROM s [NOW] WHERE x * 2.5 + 1.0 > 2.0",
    ),
    **{
        f"{name}, {window}": (
            f"SELECT k, {own} AS a FROM s [{window}] GROUP BY k",
            f"SELECT k, {built_in} AS a FROM s [{window}] GROUP BY k",
        )
        for name, own, built_in in (
            ("aggregate of whole numbers", "total(n)", "SUM(n)"),
            ("aggregate of floating numbers", "mean_of(x)", "AVG(x)"),
        )
        for window in ("TUMBLE 1 SECOND", "RANGE 4 SECONDS SLIDE 1 SECOND")
    },
    "aggregate of whole numbers, RANGE 1 SECOND": (
        "SELECT k, total(n) AS a FROM s [RANGE 1 SECOND] GROUP BY k",
        "SELECT k, SUM(n) AS a FROM s [RANGE 1 SECOND] GROUP BY k",
    ),
}
"""Queries of equal work: with a function of the user's own, and with built-in ones."""


def line(x):
    return x * 2.5 + 1.0


class Total:
    state = {"total": "BIGINT"}  # noqa: RUF012

    def add(self, states, groups, n):
        np.add.at(states["total"], groups, n)

    def merge(self, states, groups, others):
        np.add.at(states["total"], groups, others["total"])

    def remove(self, states, groups, others):
        np.subtract.at(states["total"], groups, others["total"])

    def result(self, states):
        return states["total"]


class Mean:
    state = {"rows": "BIGINT", "total": "DOUBLE"}  # noqa: RUF012

    def add(self, states, groups, x):
        count = len(states["rows"])
        states["rows"] += np.bincount(groups, minlength=count)
        states["total"] += np.bincount(groups, x, minlength=count)

    def merge(self, states, groups, others):
        for name in states:
            np.add.at(states[name], groups, others[name])

    def result(self, states):
        return states["total"] / states["rows"]


def table_of(rows: int, seed: int = 1) -> pa.Table:
    """Return rows of a hundred keys, a hundred thousand a second."""
    chance = np.random.default_rng(seed)
    return pa.table(
        {
            "k": chance.integers(0, 100, rows).astype(np.int32),
            "n": chance.integers(0, 1000, rows),
            "x": chance.random(rows),
            "t": pa.array(np.arange(rows) * 10).cast(pa.timestamp("us")),
        }
    )


def work_of(query: str, table: pa.Table) -> float:
    """Return the seconds of the processor that a query takes over all rows."""
    config = Settings()
    book = QueryBook(config)
    for name, node in plans_of(f"{DECLARED} CREATE QUERY q AS {query};").items():
        book.add(BookedQuery(name, node, "intervals"))
    plan = book.plan(Moment(0, {}, {}))
    progress: dict[str, Progress] = {"s": Progress()}
    states: list[dict[str, Any]] = [{}]
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for number, first in enumerate(range(0, table.num_rows + BATCH, BATCH)):
            with SegmentStorage(folder, str(number), False) as storage:
                some = table.slice(first, BATCH)
                parts = [("", some)] if some.num_rows else []
                arrivals = {"s": Arrivals(parts, 3, final=not parts)}
                timeline = Timeline(progress, {"s": TimeRules()})
                outcome, _ = run_batch(plan, arrivals, timeline, states, storage, config)
                states[0] |= outcome.states[0]
                progress = dict(timeline.after(outcome.told))
    return time.process_time() - began


def measure(rows: int, repeats: int = 3) -> dict[str, float]:
    """Return the speed of each own function as a share of the built-in one's."""
    table = table_of(rows)
    found = {}
    for name, (own, built_in) in PAIRS.items():
        for query in (own, built_in):
            work_of(query, table.slice(0, min(rows, 1000)))
        shares = [work_of(built_in, table) / work_of(own, table) for _ in range(repeats)]
        found[name] = median(shares)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.functions", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for name, share in measure(given.rows, given.repeats).items():
        mark = "" if share >= WANTED else "  (below a third)"
        Console().print(f"{name}: {share:.2f} of the built-in's speed{mark}")


if __name__ == "__main__":
    main()
