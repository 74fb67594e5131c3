"""``python -m benchmarks.overload [--seconds 60]``: more input than can be taken, for a while.

A replay offers ``--offered`` rows per second, more than any machine takes.  Batches must come to
last about ``batch.seconds``, the lag grows with the clock, and memory stays bounded: that of the
Python workers, of Python here and of the JVM.  It ends with an error if memory grows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks.harness import console, folder
from penstock.session import Session

ROWS, KEYS, PER_SECOND = 1_000_000, 1_000, 100_000
WARM_UP = 15.0
"""Seconds that are not judged: workers start, windows fill, batches find their size."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Penstock under overload")
    parser.add_argument("--seconds", type=float, default=60.0, help="600 for the long run")
    parser.add_argument("--offered", type=int, default=5_000_000, help="rows per second")
    parser.add_argument("--target", type=float, default=1.0, help="the setting batch.seconds")
    parser.add_argument("--most", type=float, default=3_000.0, help="MB that workers may take")
    options = parser.parse_args()
    with folder() as path:
        write(path / "s.parquet")
        samples = run(path, options)
    judge(samples, options.most)


def write(path: Path) -> None:
    """Write ten seconds of event time; the replay repeats them, each round later."""
    random = np.random.default_rng(1)
    when = np.arange(ROWS, dtype=np.int64) * (1_000_000 // PER_SECOND)
    columns = {
        "k": pa.array(random.integers(0, KEYS, ROWS)),
        "v": pa.array(random.random(ROWS)),
        "t": pa.array(when).cast(pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), path, row_group_size=100_000)


def run(path: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run two queries for the given time; return what was seen every second."""
    samples: list[dict[str, Any]] = []
    settings = {"batch.seconds": options.target, "driver.memory": "2g"}
    with Session(settings=settings, checkpoint=path / "state", autostart=False) as session:
        for sink in ("totals", "pairs"):
            session.callback(sink, lambda batch, rows: None)
        session.sql(
            f"""
            CREATE STREAM s (k BIGINT, v DOUBLE, t TIMESTAMP) USING replay OPTIONS
              (path '{path / "s.parquet"}', loop 'true', rate '{options.offered}') TIMESTAMP BY t;
            CREATE SINK totals USING callback OPTIONS (changes 'intervals');
            CREATE SINK pairs USING callback OPTIONS (changes 'intervals');
            CREATE QUERY totals INTO totals AS SELECT k, COUNT(*) AS n, SUM(v) AS total
              FROM s [RANGE 10 SECONDS SLIDE 1 SECOND] GROUP BY k;
            CREATE QUERY pairs INTO pairs AS SELECT a.k, a.v, b.v AS w
              FROM s [RANGE 1 SECOND] a JOIN s [RANGE 1 SECOND] b ON a.k = b.k
              WHERE a.v > 0.999 AND b.v < 0.5;
            """
        )
        session.start()
        pipeline = session.pipeline
        while pipeline.observation.batches < 1:
            session.check()
            time.sleep(0.05)
        began, first = time.monotonic(), pipeline.observation.rows_in
        console.print("    s   batch  seconds     limit      rows/s      lag rows   py MB  jvm MB")
        while (spent := time.monotonic() - began) < options.seconds:
            time.sleep(1.0)
            session.check()
            workers, jvm = memory(os.getpid())
            seen = pipeline.observation
            taken = seen.rows_in - first
            samples.append(
                {
                    "second": spent,
                    "batch": seen.batches,
                    "batch_seconds": seen.batch_seconds,
                    "limit": pipeline.admission.rows,
                    "rate": seen.rate_in,
                    "lag": int(spent * options.offered) - taken,
                    "workers": workers,
                    "jvm": jvm,
                }
            )
            if len(samples) % 5 == 0:
                console.print(line(samples[-1]), highlight=False)
        session.stop()
    return samples


def line(sample: dict[str, Any]) -> str:
    return (
        f"{sample['second']:5.0f} {sample['batch']:7d} {sample['batch_seconds']:8.2f} "
        f"{sample['limit']:9,d} {sample['rate']:11,.0f} {sample['lag']:13,d} "
        f"{sample['workers']:7.0f} {sample['jvm']:7.0f}"
    )


def memory(parent: int) -> tuple[float, float]:
    """Return the MB of all Python processes of this run, itself included, and of its JVM.

    Files that are mapped into memory do not count: the system takes them back when it likes.
    """
    parents: dict[int, int] = {}
    anonymous: dict[int, float] = {}
    names: dict[int, str] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = dict(
                text.split(":", 1) for text in status.read_text().splitlines() if ":" in text
            )
        except OSError:
            continue
        process = int(status.parent.name)
        parents[process] = int(found["PPid"])
        names[process] = found["Name"].strip()
        anonymous[process] = int(found.get("RssAnon", "0 kB").split()[0]) / 1024
    workers = jvm = 0.0
    for process, name in names.items():
        at = process
        while at > 1 and at != parent:
            at = parents.get(at, 0)
        if at == parent and name == "java":
            jvm += anonymous[process]
        elif at == parent:
            workers += anonymous[process]
    return workers, jvm


def judge(samples: list[dict[str, Any]], most: float) -> None:
    """Print the whole run in one table; fail if memory is not bounded."""
    judged = [s for s in samples if s["second"] >= WARM_UP]
    assert len(judged) >= 6, f"a run must be longer than {WARM_UP + 6:.0f} seconds"
    third = len(judged) // 3
    early, late = judged[:third], judged[-third:]
    table = Table("", "first third", "last third", box=None)
    for name in ("batch_seconds", "limit", "rate", "lag", "workers", "jvm"):
        middles = [statistics.median(s[name] for s in part) for part in (early, late)]
        table.add_row(name, *(f"{middle:,.2f}" for middle in middles))
    console.print(table)
    peak = [max(s["workers"] for s in part) for part in (early, late)]
    assert peak[1] < most, f"Python must stay below {most:.0f} MB, got {peak[1]:.0f}"
    bound = 1.25 * peak[0] + 100
    assert peak[1] < bound, f"memory must not grow: {peak[0]:.0f} MB, then {peak[1]:.0f} MB"
    console.print(f"memory is bounded: {peak[0]:.0f} MB, then {peak[1]:.0f} MB at most")


if __name__ == "__main__":
    main()
