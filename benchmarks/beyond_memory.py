"""A window larger than the memory budget: the right answer, within the budget, not much slower.

The window holds all rows of both streams, with as many keys as rows.  It is joined in three ways,
with the same rows per batch:

* ``ample``: with a budget that everything fits into;
* ``tight``: with ``join.memory`` between a quarter and a fifth of the state of one shard (64 MB if
  each stream has six million rows);
* ``small``: with a window of one second.  That is what the workers need for a batch anyway: Python,
  its libraries, the rows of a batch and their results.

Workers keep memory from one run to the next, so each way has a process with a Spark of its own
(``python -m benchmarks.beyond_memory FOLDER SECONDS BUDGET``), and they take turns.  Answers are
compared by their number and the sum of the hashes of all result rows.  Resident memory is read from
outside, from ``/proc``; what the tight join takes beyond the small one is what it keeps of its
state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import (
    SCHEMA,
    Measure,
    console,
    folder,
    medians,
    run_penstock,
    spark_session,
    write_stream,
)
from penstock.bench.jobs import started
from penstock.kernels.keys import sum_of_rows
from penstock.model import one_array

PER_BATCH = 2
ROW_BYTES = 48
"""Bytes of a row in the state: key, value, two hash lanes, start, end."""


def beyond_memory(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Join two streams whose rows all stay in the window, with and without enough memory."""
    shards = os.cpu_count() or 1
    budget = max(int(2 * rows * ROW_BYTES / shards / 4.5), 1 << 20)
    windows = {"ample": (100_000, 1 << 40), "tight": (100_000, budget), "small": (1, budget)}
    found: dict[str, _Seen] = {}
    with folder() as base:
        for name, seed in (("a", 1), ("b", 2)):
            write_stream(base / name, rows, 2 * rows, 10_000, seed, max(rows // 40, 1_000))
        with ExitStack() as stack:
            sides = {w: stack.enter_context(_side(base, *windows[w])) for w in windows}

            def timed(label: str) -> float:
                seen = found[label] = sides[label].run(found.get(label))
                return seen.seconds

            taken = medians({w: lambda w=w: timed(w) for w in windows}, repeats)
    ample, tight, small = (found[label] for label in windows)
    if (tight.rows, tight.sum) != (ample.rows, ample.sum):
        raise SystemExit(f"memory must not change the answer, got {found}")
    if not all(seen.resident for seen in found.values()):
        raise SystemExit(f"the memory of Spark's Python workers must be seen, got {found}")
    kept = tight.resident - small.resident
    for label, seen in found.items():
        console.log(f"{label}: {seen.describe()}")
    parts = {
        "budget, MB": budget / 2**20,
        "state of a shard, MB": tight.state / 2**20,
        "rows": 2 * rows,
        "pairs": tight.rows,
    }
    memory = {
        f"{label} {name}, MB": value / 2**20
        for label, seen in found.items()
        for name, value in seen.peaks.items()
    }
    return [
        Measure(
            "state of a join against its memory budget",
            tight.state / budget,
            4.0,
            "above",
            parts,
        ),
        Measure(
            "resident memory that a join keeps of its state against the budget",
            max(kept, 0) / budget,
            1.0,
            "below",
            memory,
        ),
        Measure(
            "join beyond its memory budget against one within it: rate",
            taken["ample"] / taken["tight"],
            1 / 3,
            "above",
            {
                "ample rows/s": 2 * rows / taken["ample"],
                "tight rows/s": 2 * rows / taken["tight"],
                "rows": 2 * rows,
            },
        ),
    ]


@dataclass
class _Seen:
    """A run: its answer, the bytes of its largest shard, the highest memory of any worker."""

    seconds: float
    rows: int
    sum: int
    state: int
    peaks: dict[str, int]

    @property
    def resident(self) -> int:
        return self.peaks["VmRSS"]

    def describe(self) -> str:
        peaks = ", ".join(f"{name} {value >> 20} MB" for name, value in self.peaks.items())
        return f"{self.seconds:.2f} s, {self.rows} rows, sum {self.sum:016x}, {peaks}"


class _Side:
    """A process that joins when it is asked, watched from here."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, before: _Seen | None) -> _Seen:
        """Join once; the peaks are those of this run and of those before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with Resident(self._process.pid) as resident:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    break
            else:
                raise SystemExit(f"a side has ended; it said: {self._log.read_text()[-2000:]}")
        peaks = resident.peaks
        if before is not None:
            peaks = {name: max(value, before.peaks[name]) for name, value in peaks.items()}
        return _Seen(**json.loads(line), peaks=peaks)


@contextmanager
def _side(base: Path, seconds: int, budget: int) -> Iterator[_Side]:
    log = base / f"{seconds}-{budget}.log"
    command = [sys.executable, "-m", "benchmarks.beyond_memory", base, seconds, budget]
    with started(command, log) as process:
        yield _Side(process, log)


def _serve(base: Path, seconds: int, budget: int) -> None:
    """Answer each line on standard input by a run, told as a line of JSON."""
    spark = spark_session()
    for _ in sys.stdin:
        print(json.dumps(_joined(spark, base, seconds, budget)), flush=True)


def _joined(spark: SparkSession, base: Path, seconds: int, budget: int) -> dict[str, Any]:
    script = f"""
    CREATE STREAM a ({SCHEMA}) USING parquet OPTIONS (path '{base}/a') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING parquet OPTIONS (path '{base}/b') TIMESTAMP BY t;
    CREATE SINK counted USING callback OPTIONS (changes 'intervals');
    CREATE QUERY pairs INTO counted AS SELECT a.k, a.v AS av, b.v AS bv
      FROM a [RANGE {seconds} SECONDS], b [RANGE {seconds} SECONDS] WHERE a.k = b.k;
    """
    answer = {"rows": 0, "sum": 0}

    def count(_: int, rows: pa.Table) -> None:
        answer["rows"] += rows.num_rows
        columns = [one_array(column) for column in rows.columns]
        answer["sum"] = (answer["sum"] + sum_of_rows(columns, rows.num_rows)) % 2**64

    ran = run_penstock(spark, script, PER_BATCH, {"join.memory": budget}, {"counted": count})
    return {"seconds": ran.seconds, "state": ran.state, **answer}


class Resident:
    """Watches the memory of Spark's Python workers below a process, this one unless told.

    ``peaks`` are the highest bytes of any one worker; ``samples`` are (second, worker, bytes).
    """

    FIELDS = ("VmRSS", "RssAnon", "RssFile")

    def __init__(self, parent: int | None = None, every: float = 0.05) -> None:
        self._parent = os.getpid() if parent is None else parent
        self.peaks = dict.fromkeys(self.FIELDS, 0)
        self.samples: list[tuple[float, int, dict[str, int]]] = []
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Resident:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(self._every):
            for worker in _workers(self._parent):
                found = _status(worker)
                if found:
                    self.samples.append((time.monotonic() - began, worker, found))
                for name, value in found.items():
                    self.peaks[name] = max(self.peaks[name], value)


def _workers(parent: int) -> list[int]:
    """Return the Python workers of the Spark below a process, without the daemon they come from."""
    parents: dict[int, int] = {}
    workers = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            if b"pyspark.worker" in (entry / "cmdline").read_bytes():
                workers.add(int(entry.name))
        except OSError:
            continue

    def below(process: int) -> bool:
        while process > 1 and process != parent:
            process = parents.get(process, 0)
        return process == parent

    return [w for w in workers if parents.get(w) in workers and below(w)]


def _status(process: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {n: int(fields[n].split()[0]) << 10 for n in Resident.FIELDS if n in fields}


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
