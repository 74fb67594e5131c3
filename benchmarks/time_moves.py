"""``python -m benchmarks.time_moves [latency] [month] [step]``: what clauses about time are worth.

* ``latency``: one row at a time is pushed; seconds until its answer is in a callback, on Spark.
* ``month``: a month of rows with heavy-tailed delays; SLACK AUTO against the fixed slack that keeps
  as many rows.
* ``step``: a fast stream joined with one a hundred times slower that stops for a while; rows that
  wait in the state, with STEP and without.  ``--plot`` draws them.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table
from tests.test_time import month as times_of_a_month

from benchmarks.harness import console, spark_session
from penstock.physical.progress import Partition
from penstock.session import Session
from penstock.timing import TimeRules

CLAUSES = ("HEARTBEAT FROM CLOCK", "IDLE AFTER 100 MILLISECONDS")


def latency(rows: int) -> None:
    """Push one row at a time; show how long its answer takes."""
    spark = spark_session()
    shown = Table("clause", "answered", "p50 s", "p90 s", "longest s", title="push to callback")
    for clause in CLAUSES:
        got: dict[int, float] = {}
        with Session(spark) as session:
            session.callback("seen", lambda _, table, got=got: _note(got, table))
            session.sql(
                f"""CREATE SINK seen USING callback;
                CREATE STREAM s (k INT, t TIMESTAMP) USING memory TIMESTAMP BY t {clause};
                CREATE QUERY q INTO seen AS ISTREAM (
                  SELECT k, COUNT(*) AS n FROM s [RANGE 10 SECONDS] GROUP BY k)"""
            )
            taken = []
            for key in range(rows + 3):
                began = time.monotonic()
                session.push("s", [(key, datetime.now(UTC))])
                while key not in got and time.monotonic() - began < 10:
                    time.sleep(0.001)
                if key >= 3 and key in got:  # the first ones start the workers
                    taken.append(got[key] - began)
                time.sleep(0.3)
        cuts = statistics.quantiles(taken, n=10)
        told = (f"{value:.3f}" for value in (cuts[4], cuts[8], max(taken)))
        shown.add_row(clause, f"{len(taken)} of {rows}", *told)
    console.print(shown)


def _note(got: dict[int, float], table: Any) -> None:
    for key in table["k"].to_pylist():
        got.setdefault(key, time.monotonic())


def month() -> None:
    """Judge the rows of a month; compare with the fixed slack that keeps as many."""
    times = times_of_a_month(np.random.default_rng(11))
    rules, late, slacks, part = TimeRules(keeping=0.999), 0, [], Partition()
    for first in range(0, len(times), 100):
        some, part = part.judged(times[first : first + 100], rules)
        late += int(some.sum())
        slacks.append(part.max_time - part.heartbeat(rules))
    kept = 1 - late / len(times)
    fixed = float(np.quantile(np.maximum.accumulate(times) - times, kept))
    mean = float(np.mean(slacks[10:]))
    console.print(
        f"SLACK AUTO KEEPING 99.9 %: kept {kept:.4%} of {len(times):,} rows, answers wait "
        f"{mean / 1e6:.0f} s on the average; a fixed slack that keeps as many waits "
        f"{fixed / 1e6:.0f} s: {mean / fixed:.2f} of it"
    )


def step(seconds: float, plot: Path | None) -> None:
    """Join a fast and a slow stream, with STEP and without; show what waits."""
    spark = spark_session()
    lines = {}
    for clause in ("STEP 1000", ""):
        lines[clause or "without STEP"] = _waiting(spark, clause, seconds)
    shown = Table("", "most rows waiting", "rows read while the slow stream stood still")
    for name, samples in lines.items():
        most = max(waiting for _, waiting, _ in samples)
        still = [read for at, _, read in samples if seconds / 4 < at < seconds * 3 / 4]
        shown.add_row(name, f"{most:,}", f"{still[-1] - still[0]:,}")
    console.print(shown)
    if plot is not None:
        _draw(lines, seconds, plot)


def _waiting(spark: Any, clause: str, seconds: float) -> list[tuple[float, int, int]]:
    """Return samples: seconds, rows in the state, rows of the fast stream that were read."""
    samples = []
    stop = threading.Event()
    with Session(spark, settings={"batch.rows": 2000}) as session:
        session.sql(
            f"""CREATE STREAM fast (k INT, t BIGINT) USING memory TIMESTAMP BY t {clause};
            CREATE STREAM slow (k INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE QUERY q AS ISTREAM (SELECT fast.k, slow.t FROM fast [RANGE 100] JOIN slow [NOW]
              ON fast.k = slow.k)"""
        )
        writer = threading.Thread(target=_write, args=(session, seconds, stop))
        writer.start()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            seen = session.pipeline.observation
            samples.append(
                (time.monotonic() - began, seen.state_rows("q"), seen.stream("fast").rows)
            )
            time.sleep(0.2)
        stop.set()
        writer.join()
    return samples


def _write(session: Session, seconds: float, stop: threading.Event) -> None:
    """Push 2,000 rows a second of the fast and 20 of the slow stream, which stops in the middle."""
    began = time.monotonic()
    reached = 0
    while not stop.wait(0.1):
        passed = time.monotonic() - began
        now = int(passed * 2000)
        session.push("fast", [(t % 50, t) for t in range(reached, now)])
        if not seconds / 4 < passed < seconds * 3 / 4:
            session.push("slow", [(t % 50, t) for t in range(reached, now) if t % 100 == 0])
        reached = now


def _draw(lines: dict[str, list[tuple[float, int, int]]], seconds: float, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for (name, samples), colour in zip(lines.items(), ("#2176AE", "#E07A1F"), strict=True):
        axes.plot([s[0] for s in samples], [s[1] for s in samples], label=name, color=colour)
    axes.axvspan(seconds / 4, seconds * 3 / 4, color="#7B8A97", alpha=0.15, lw=0)
    axes.text(seconds / 2, axes.get_ylim()[1] * 0.93, "the slow stream stands still", ha="center")
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows in the state of the join")
    axes.legend(frameon=False, loc="upper left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["latency", "month", "step"])
    parser.add_argument("--rows", type=int, default=40, help="rows of latency")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run of step")
    parser.add_argument("--plot", type=Path, help="PNG file for step")
    options = parser.parse_args()
    if "month" in options.names:
        month()
    if "latency" in options.names:
        latency(options.rows)
    if "step" in options.names:
        step(options.seconds, options.plot)


if __name__ == "__main__":
    main()
