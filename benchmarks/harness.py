"""What all benchmarks share: data, runs of both engines, medians, one table, raw numbers."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from penstock.physical.observation import bytes_of
from penstock.session import Session
from penstock.settings import Settings
from penstock.spark.engine import own_session

SCHEMA = "k BIGINT, v DOUBLE, t TIMESTAMP"
_UNLIMITED = {"batch.rows": 1 << 40, "batch.bytes": 1 << 50}
"""Both engines are given the same number of files per batch, and nothing else cuts it."""
TABLE_BEGINS = "<!-- measured: begin -->"
TABLE_ENDS = "<!-- measured: end -->"
console = Console()


@dataclass
class Measure:
    """One line of the result: a ratio, the bar it must reach if any, and what it was made of."""

    name: str
    ratio: float
    bar: float | None
    better: str  # 'above' or 'below'
    parts: dict[str, Any]

    @property
    def reached(self) -> bool:
        if self.bar is None:
            return True
        return self.ratio >= self.bar if self.better == "above" else self.ratio <= self.bar


def spark_session() -> SparkSession:
    """The Spark on which both sides run: every core of the machine, one shuffle partition each."""
    spark = own_session(None, Settings({"driver.memory": "6g"}))
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


Columns = dict[str, Any]


def keyed(keys: int) -> Callable[[np.random.Generator, int], Columns]:
    """Values of a row of `SCHEMA`: a key, and a number."""
    return lambda random, count: {"k": random.integers(0, keys, count), "v": random.random(count)}


def write_stream(
    path: Path,
    rows: int,
    keys: int | Callable[[np.random.Generator, int], Columns],
    per_second: int,
    seed: int,
    per_file: int = 50_000,
) -> int:
    """Write a stream as Parquet files, ``per_second`` rows of event time; return how many files.

    ``keys`` is a number of keys, or makes the columns of so many rows; the time ``t`` is added.
    The last file holds one row, much later and with values of its own, far below all others: with
    it everything before is final.
    """
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    make = keyed(keys) if isinstance(keys, int) else keys
    step = 1_000_000 // per_second
    files = -(-rows // per_file)
    for i in range(files):
        count = min(per_file, rows - i * per_file)
        when = (np.arange(count, dtype=np.int64) + i * per_file) * step
        _write(path, i, make(random, count), when)
    apart = {name: np.full(1, -1000 * seed, v.dtype) for name, v in make(random, 1).items()}
    _write(path, files, apart, np.array([rows * step + 3_600_000_000]))
    return files + 1


def _write(path: Path, number: int, columns: Columns, when: Any) -> None:
    times = pa.array(when, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**columns, "t": times}), path / f"{number:05d}.parquet")
    time.sleep(0.002)  # files arrive in order of their modification time


@dataclass(frozen=True)
class Ran:
    """One run of Penstock: its seconds, the rows of each query, what was between two batches.

    ``state`` are the bytes that the runs of the largest shard take at the end.
    """

    seconds: float
    rows: dict[str, int]
    between: list[float]
    state: int


def run_penstock(
    spark: SparkSession,
    script: str,
    per_batch: int,
    settings: dict[str, Any] | None = None,
    callbacks: Mapping[str, Callable[[int, pa.Table], None]] | None = None,
) -> Ran:
    """Run a script until nothing is left, ``per_batch`` files of a folder in one batch."""
    given = {"batch.files": per_batch, "trigger": 0, "batch.seconds": 0, **_UNLIMITED}
    given |= settings or {}
    with Session(spark, settings=given, autostart=False) as session:
        for sink, function in (callbacks or {}).items():
            session.callback(sink, function)
        session.sql(script)
        began = time.perf_counter()
        session.start()
        session.await_idle()
        session.stop()
        seconds = time.perf_counter() - began
        rows = {h.name: int(getattr(h.sink, "rows", 0)) for h in session.handles()}
        seen = session.pipeline.observation
        state = max(bytes_of(shard.values()) for shard in seen.manifest.states)
        return Ran(seconds, rows, [b - a for a, b in pairwise(seen.ended_at)], state)


def penstock(
    spark: SparkSession, script: str, per_batch: int, settings: dict[str, Any] | None = None
) -> tuple[float, dict[str, int], list[float]]:
    """Run a script; return the seconds, the rows of each query, the seconds between batches."""
    ran = run_penstock(spark, script, per_batch, settings)
    return ran.seconds, ran.rows, ran.between


def spark_stream(frame: DataFrame) -> tuple[float, int]:
    """Run a Spark stream until nothing is left, counting rows; return seconds and rows."""
    rows = 0

    def count(batch: DataFrame, _: int) -> None:
        nonlocal rows
        rows += batch.count()

    with folder() as checkpoint:
        began = time.perf_counter()
        query = (
            frame.writeStream.foreachBatch(count)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.perf_counter() - began, rows


def medians(
    sides: Mapping[str, Callable[[], float]],
    repeats: int,
    warm_up: Mapping[str, Callable[[], float]] | None = None,
) -> dict[str, float]:
    """Run each side once to warm up, then all in turn ``repeats`` times; return their medians.

    In turn, because a machine has slow minutes: they then hit all sides alike.  What a side leaves
    behind (pages to be written, garbage of Java, upkeep of state stores whose query has ended) is
    settled before the next one's clock starts.  A side warms up by a whole run, unless ``warm_up``
    has a shorter one for it.  With no repeats each side runs once, not warmed up: that measures
    nothing, but shows that it works.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name, run in {**sides, **(warm_up or {})}.items():
        if repeats == 0 and name not in (warm_up or {}):
            continue
        with console.status(f"{name}, warming up"):
            run()
    for i in range(max(repeats, 1)):
        for name, run in sides.items():
            _settle()
            with console.status(f"{name}, run {i + 1} of {repeats}"):
                found[name].append(run())
                console.log(f"{name}: {found[name][-1]:.2f} s")
    return {name: statistics.median(times) for name, times in found.items()}


def _settle() -> None:
    spark = SparkSession.getActiveSession()
    if spark is not None and spark._jvm is not None:
        spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        spark._jvm.System.gc()
    os.sync()


def report(measures: list[Measure], raw: Path | None) -> None:
    """Print the table and keep the raw numbers."""
    table = Table("measure", "ratio", "wanted", "", "measured")
    for m in measures:
        wanted, mark = "", ""
        if m.bar is not None:
            wanted = f"{'≥' if m.better == 'above' else '≤'} {m.bar:.3g} x"
            mark = "[green]reached[/]" if m.reached else "[red]missed[/]"
        parts = ", ".join(f"{k} {_short(v)}" for k, v in m.parts.items())
        table.add_row(m.name, f"{m.ratio:.2f} x", wanted, mark, parts)
    console.print(table)
    if raw is not None:
        known = json.loads(raw.read_text()) if raw.exists() else {}
        known |= {m.name: {**asdict(m), "reached": m.reached} for m in measures}
        raw.write_text(json.dumps(known, indent=2) + "\n")


def _short(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value > 100 else f"{value:.3g}" \
        if isinstance(value, float) else str(value)  # fmt: skip


def _wanted(m: Mapping[str, Any]) -> str:
    if m["bar"] is None:
        return "no bar"
    return f"{'at least' if m['better'] == 'above' else 'at most'} {m['bar']:.3g} x"


def write_table(raw: Path, page: Path) -> None:
    """Write the table of all raw numbers into a page, between its two marks."""
    lines = ["| measure | ratio | wanted | measured |", "|---|---|---|---|"]
    for m in json.loads(raw.read_text()).values():
        parts = ", ".join(f"{k} {_short(v)}" for k, v in m["parts"].items())
        lines.append(f"| {m['name']} | {m['ratio']:.2f} x | {_wanted(m)} | {parts} |")
    text = page.read_text()
    before, found, rest = text.partition(TABLE_BEGINS)
    _, ends, after = rest.partition(TABLE_ENDS)
    if not found or not ends:
        raise SystemExit(f"{page} must have the lines '{TABLE_BEGINS}' and '{TABLE_ENDS}'")
    table = "\n".join(lines)
    page.write_text(f"{before}{TABLE_BEGINS}\n\n{table}\n\n{TABLE_ENDS}{after}")


def draw(raw: Path, picture: Path) -> None:
    """Plot every measure of a file of raw numbers against its bar, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    known = json.loads(raw.read_text())
    names = list(reversed(known))
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(names) + 1.2), layout="constrained")
    for at, name in enumerate(names):
        m = known[name]
        colour = "#2a7f62" if m["reached"] else "#b5402f"
        axes.barh(at, m["ratio"], color=colour, height=0.55)
        if m["bar"] is not None:
            axes.plot([m["bar"]] * 2, [at - 0.38, at + 0.38], color="#222222", linewidth=2)
        beside = max(m["ratio"], m["bar"] or 0) * 1.06
        axes.text(beside, at, f"{m['ratio']:.3g} x", va="center", fontsize=9)
    labels = [f"{n}\n{_wanted(known[n])}" for n in names]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g} x")
    label = "ratio, both sides measured in one run; the black line is the bar"
    figure.supxlabel(label, fontsize=10)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
