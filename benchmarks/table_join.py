"""``python -m benchmarks.table_join [--table 20000000] [--memory 32mb]``: a table beyond memory.

A stream is joined with a Parquet table whose rows in the state of the join are many times what the
join may hold (``--memory``, the setting ``join.memory``).  While it runs, the memory of every
Python worker is read from outside, from ``/proc``: ``RssAnon`` is what it has allocated, ``VmRSS``
also counts the pages of mapped files.  The answer is compared with a sum computed beforehand; what
a worker that has loaded everything and done nothing takes is measured too, and taken off.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import console, folder
from penstock.session import Session

FILES, GROUP = 10, 500_000
KINDS = ("VmRSS", "RssAnon", "RssFile")


@dataclass
class Sampler:
    """Looks at all processes below this one, ten times a second; keeps the highest of each kind.

    ``peaks`` are of one worker, ``together`` of all at one instant, in MB.  Workers are forks of
    one parent: what they share with it counts in each of them.
    """

    peaks: dict[str, float] = field(default_factory=dict)
    together: dict[str, float] = field(default_factory=dict)
    driver: dict[str, float] = field(default_factory=dict)
    jvm: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def reset(self) -> None:
        for kept in (self.peaks, self.together, self.driver, self.jvm):
            kept.clear()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            total = dict.fromkeys(KINDS, 0.0)
            for kind_of, found in below(os.getpid()):
                if kind_of == "driver":
                    into = self.driver
                elif kind_of == "jvm":
                    into = self.jvm
                else:
                    into = self.peaks
                    for kind in KINDS:
                        total[kind] += found[kind]
                for kind in KINDS:
                    into[kind] = max(into.get(kind, 0.0), found[kind])
            for kind in KINDS:
                self.together[kind] = max(self.together.get(kind, 0.0), total[kind])


def below(parent: int) -> list[tuple[str, dict[str, float]]]:
    """Return what the processes of a run are (driver, jvm, worker) and their memory in MB."""
    known: dict[int, tuple[str, int, dict[str, float]]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        sizes = {kind: int(lines.get(kind, "0 kB").split()[0]) / 1024 for kind in KINDS}
        known[int(status.parent.name)] = (lines["Name"].strip(), int(lines["PPid"]), sizes)
    found = []
    for process, (name, _, sizes) in known.items():
        at, under_jvm = process, False
        while at > 1 and at != parent:
            at = known[at][1] if at in known else 0
            under_jvm = under_jvm or (at in known and known[at][0] == "java")
        if at != parent:
            continue
        if process == parent:
            found.append(("driver", sizes))
        elif name == "java":
            found.append(("jvm", sizes))
        elif under_jvm:
            found.append(("worker", sizes))
    return found


def write(path: Path, table_rows: int, stream_rows: int) -> tuple[int, int]:
    """Write a table of distinct keys and a stream of which half finds a partner; return the answer.

    The answer is the number of pairs and the sum of the table's values in them.
    """
    dice = np.random.default_rng(1)
    (path / "table").mkdir()
    key = dice.permutation(table_rows)
    for number, part in enumerate(np.array_split(key, FILES)):
        rows = pa.table({"k": part, "v": part * 7 + 3})
        pq.write_table(rows, path / "table" / f"{number}.parquet", row_group_size=GROUP)
    asked = dice.integers(0, 2 * table_rows, stream_rows)
    stream = pa.table({"k": asked, "t": np.arange(stream_rows)})
    pq.write_table(stream, path / "s.parquet", row_group_size=GROUP)
    met = asked[asked < table_rows]
    return len(met), int((met * 7 + 3).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="A stream and a table that is larger than memory")
    parser.add_argument("--table", type=int, default=20_000_000, help="rows of the table")
    parser.add_argument("--stream", type=int, default=1_000_000, help="rows of the stream")
    parser.add_argument("--batch", type=int, default=100_000, help="rows of the stream per batch")
    parser.add_argument("--memory", default="32mb", help="the setting join.memory")
    options = parser.parse_args()
    with folder() as path:
        with console.status("writing"):
            expected = write(path, options.table, options.stream)
        run(path, options, expected)


def run(path: Path, options: argparse.Namespace, expected: tuple[int, int]) -> None:
    """Run the query with and without the table, and print what was seen."""
    settings = {
        "join.memory": options.memory,
        "batch.rows": options.batch,
        "batch.seconds": 0,
        "driver.memory": "1g",
        "trigger": 0,
    }
    sampler = Sampler()
    found = [0, 0]

    def take(batch: int, rows: pa.Table) -> None:
        found[0] += rows.num_rows
        found[1] += pc.sum(rows.column("v")).as_py() or 0

    stream = f"""
        CREATE STREAM s (k BIGINT, t BIGINT) USING replay OPTIONS (path '{path}/s.parquet')
          TIMESTAMP BY t;
        CREATE SINK out USING callback OPTIONS (changes 'intervals');
    """
    with Session(settings=settings, autostart=False) as session:  # workers that hold no table
        session.callback("out", lambda batch, rows: None)
        session.sql(stream)
        session.sql("CREATE QUERY q INTO out AS SELECT k, t AS v FROM s [NOW] WHERE k < 100")
        session.start()
        session.await_end()
    idle = dict(sampler.peaks)
    sampler.reset()
    with Session(settings=settings, checkpoint=path / "state", autostart=False) as session:
        session.callback("out", take)
        session.sql(stream)
        session.sql(
            f"""
            CREATE TABLE d (k BIGINT, v BIGINT) USING parquet OPTIONS (path '{path}/table');
            CREATE QUERY q INTO out AS SELECT s.k, d.v FROM s [NOW] JOIN d ON s.k = d.k;
            """
        )
        began = time.perf_counter()
        session.start()
        while session.pipeline.observation.batches < 1:
            session.check()
            time.sleep(0.05)
        loaded = time.perf_counter() - began
        loading = dict(sampler.peaks)
        held = sum(f.stat().st_size for f in (path / "state" / "segments").iterdir()) / 2**20
        sampler.reset()
        assert session.await_end()
        seconds = time.perf_counter() - began
    sampler.stop()
    assert tuple(found) == expected, f"the answer must be {expected}, got {found}"
    size = sum(f.stat().st_size for f in (path / "table").iterdir()) / 2**20
    rate = (options.stream - options.batch) / (seconds - loaded)
    console.print(
        f"table: {options.table:,} rows, {size:.0f} MB as Parquet, {held:.0f} MB in the state; "
        f"join.memory {options.memory}, {session.pipeline.shards} shards"
    )
    console.print(
        f"first batch, which reads the table: {loaded:.1f} s; the rest of {options.stream:,} rows "
        f"in {seconds - loaded:.1f} s, {rate:,.0f} rows/s; {found[0]:,} pairs, as expected"
    )
    for name, seen in (
        ("a worker without the table", idle),
        ("a worker, reading the table", loading),
        ("a worker, joining", sampler.peaks),
        ("all workers, joining", sampler.together),
        ("the driver's Python", sampler.driver),
        ("Spark's JVM", sampler.jvm),
    ):
        console.print(f"{name:28}" + "".join(f"  {k} {seen.get(k, 0.0):6.0f} MB" for k in KINDS))


if __name__ == "__main__":
    main()
