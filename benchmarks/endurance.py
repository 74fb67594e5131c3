"""``python -m benchmarks.endurance``: very many tiny batches, and nothing may grow.

On Spark: rows are pushed, each push is a batch, queries come and go on the way.  Without Spark: the
engine with a real checkpoint, whose files are written, committed and swept.  Every so often the
files of the checkpoint, open descriptors and memory of the driver, of the JVM and of the workers
are noted, and drawn.  It ends with an error if the last quarter has more of anything than the
second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.harness import console, folder
from penstock.bench.scripts import plans_of
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import Manifest
from penstock.runs.segments import SegmentStorage
from penstock.session import Session
from penstock.testing import LocalEngine

SCRIPT = """
CREATE SINK few USING memory OPTIONS (rows '100');
CREATE SINK db USING sqlite OPTIONS (path '{path}/answers.db', table 'shown', changes 'view');
CREATE STREAM m (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE MATERIALIZED VIEW kept AS SELECT k, SUM(v) AS total FROM m [ROWS 50] GROUP BY k;
CREATE QUERY shown INTO db AS SELECT k, COUNT(*) AS n FROM m [RANGE 40] GROUP BY k;
CREATE QUERY pairs INTO few AS
  SELECT a.k, b.v FROM m [RANGE 10] a JOIN m [ROWS 20] b ON a.k = b.k AND a.v < b.v;
"""
ENGINE = """
CREATE STREAM m (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE MATERIALIZED VIEW kept AS SELECT k, SUM(v) AS total FROM m [ROWS 50] GROUP BY k;
"""
MEASURES = {
    "files": "files of the checkpoint",
    "bytes": "bytes of a manifest",
    "descriptors": "descriptors of the driver",
    "jvm_descriptors": "descriptors of the JVM",
    "driver": "MB, driver",
    "jvm": "MB, JVM",
    "workers": "MB, Python workers",
    "seconds": "ms per batch",
}
GROWTH = {"driver": 1.15, "jvm": 1.3, "workers": 1.15, "seconds": 1.5}
"""So much more the last quarter may have than the second; of everything else a tenth."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Penstock for a long time")
    parser.add_argument("--batches", type=int, default=10_000, help="on Spark")
    parser.add_argument("--engine", type=int, default=200_000, help="without Spark")
    parser.add_argument("--raw", type=Path, help="JSON file for the numbers")
    parser.add_argument("--plot", type=Path, help="PNG file for the picture")
    options = parser.parse_args()
    found = {} if options.raw is None or not options.raw.exists() else _read(options.raw)
    for name, count, work in (
        ("Spark", options.batches, on_spark),
        ("engine", options.engine, in_engine),
    ):
        if count:
            with folder() as path:
                found[name] = list(_watched(name, count, work(path, count)))
            if options.raw is not None:
                options.raw.write_text(json.dumps(found, indent=0) + "\n")
    if options.plot is not None:
        draw(found, options.plot)
    raise SystemExit(0 if judge(found) else 1)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _watched(
    name: str, count: int, samples: Iterator[dict[str, float]]
) -> Iterator[dict[str, float]]:
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(name, total=count)
        for sample in samples:
            progress.update(bar, completed=sample["batch"])
            if not console.is_terminal:
                console.print(f"{name} {sample}")
            yield sample


def on_spark(path: Path, count: int) -> Iterator[dict[str, float]]:
    """Run tiny batches on Spark; every hundredth one a query comes and an older one goes."""
    settings = {"trigger": "0ms", "shards": 2, "fsync": False, "batch.seconds": 0}
    with Session(settings=settings, checkpoint=path / "state") as session:
        session.sql(SCRIPT.replace("{path}", str(path)))
        began, every = time.perf_counter(), max(20, count // 100)
        for batch in range(count):
            session.push("m", [(batch % 7, i, batch) for i in range(3)])
            while session.pipeline.manifest.batch < batch:
                session.check()
                time.sleep(0.002)
            if batch % 100 == 50:
                where = f"WHERE k < {batch % 5}"
                text = f"SELECT k, MAX(v) AS top FROM m [ROWS 9] {where} GROUP BY k"
                session.sql(f"CREATE QUERY extra{batch} INTO few AS {text}")
                if batch > 300:
                    session.sql(f"DROP QUERY extra{batch - 200}")
            if batch % every == every - 1:
                spent = (time.perf_counter() - began) / every
                yield {"batch": batch + 1} | measured(path / "state", spent)
                began = time.perf_counter()


def in_engine(path: Path, count: int) -> Iterator[dict[str, float]]:
    """Run tiny batches without Spark, with a checkpoint."""
    engine = Written(path / "state")
    began, every = time.perf_counter(), max(200, count // 200)
    for batch in range(count):
        engine.turn([(batch % 7, i, batch) for i in range(3)])
        if batch % every == every - 1:
            spent = (time.perf_counter() - began) / every
            yield {"batch": batch + 1} | measured(path / "state", spent)
            began = time.perf_counter()


class Written(LocalEngine):
    """The engine with its state in files, committed and swept as a pipeline does it."""

    def __init__(self, path: Path) -> None:
        super().__init__(plans_of(ENGINE), mode="kept")
        self.checkpoint = Checkpoint(str(path), fsync=False)
        self.checkpoint.lock()
        self.checkpoint.open()
        self._manifest = Manifest(run=self.checkpoint.run)

    def turn(self, rows: list[tuple[int, int, int]]) -> None:
        """Run and commit a batch."""
        self._storage: Any = SegmentStorage(self.checkpoint.segments, str(self.number), False)
        self.batch({"m": rows})
        self._storage.close()
        for answers in self.answers.values():
            answers.clear()
        before = self._manifest
        states = [dict(s) for s in self._states]
        self._manifest = Manifest(batch=before.batch + 1, shards=1, states=states)
        self._manifest.follow(before, self.checkpoint.word)
        self.checkpoint.commit(self._manifest)
        needed = self._manifest.files() | before.files()
        self.checkpoint.sweep(needed, self._manifest.batch)


def measured(checkpoint: Path, seconds: float) -> dict[str, float]:
    """Return what is there now."""
    files = [Path(root, name) for root, _, names in os.walk(checkpoint) for name in names]
    manifests = sorted((checkpoint / "manifest").glob("0*.json"))
    children = _children(os.getpid())
    jvm = [pid for pid in children if "java" in _command(pid)]
    workers = [pid for pid in children if pid not in jvm and "python" in _command(pid)]
    return {
        "files": len(files),
        "bytes": manifests[-1].stat().st_size,
        "descriptors": _descriptors(os.getpid()),
        "jvm_descriptors": sum(map(_descriptors, jvm)),
        "driver": _megabytes(os.getpid()),
        "jvm": sum(map(_megabytes, jvm)),
        "workers": sum(map(_megabytes, workers)),
        "seconds": 1000 * seconds,
    }


def _children(pid: int) -> list[int]:
    found, parents = [], {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            parents[int(entry)] = _parent(int(entry))
    todo = [pid]
    while todo:
        at = todo.pop()
        mine = [child for child, parent in parents.items() if parent == at]
        found += mine
        todo += mine
    return found


def _parent(pid: int) -> int:
    return _of(pid, lambda: int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[1]))


def _megabytes(pid: int) -> int:
    def resident() -> int:
        text = Path(f"/proc/{pid}/status").read_text()
        anonymous = [line for line in text.splitlines() if line.startswith("RssAnon")]
        return int(anonymous[0].split()[1]) // 1024 if anonymous else 0

    return _of(pid, resident)


def _descriptors(pid: int) -> int:
    return _of(pid, lambda: len(os.listdir(f"/proc/{pid}/fd")))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def _of(pid: int, look: Callable[[], int]) -> int:
    try:
        return look()
    except OSError:
        return 0


def judge(found: dict[str, list[dict[str, float]]]) -> bool:
    """Compare the last quarter with the second one; print the table."""
    fine = True
    for name, samples in found.items():
        table = Table("", "second quarter", "last quarter", "ratio", title=f"{name}: tiny batches")
        part = len(samples) // 4
        if not part:
            console.print(f"{name}: too few batches to compare quarters")
            continue
        for key, label in MEASURES.items():
            early = statistics.median(s[key] for s in samples[part : 2 * part])
            late = statistics.median(s[key] for s in samples[3 * part :])
            if not early:
                continue
            ratio = late / early
            flat = ratio <= GROWTH.get(key, 1.1)
            fine &= flat
            mark = "" if flat else " grows"
            table.add_row(label, f"{early:,.0f}", f"{late:,.0f}", f"{ratio:.2f}{mark}")
        console.print(table)
    return fine


def draw(found: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw all measures over the batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for row, (name, samples) in enumerate(found.items()):
        groups = (
            ("files", "descriptors", "jvm_descriptors"),
            ("driver", "jvm", "workers"),
            ("seconds",),
        )
        for column, keys in enumerate(groups):
            axes = figure.add_subplot(len(found), 3, row * 3 + column + 1)
            for key in keys:
                values = [sample[key] for sample in samples]
                if any(values):
                    axes.plot([s["batch"] for s in samples], values, label=MEASURES[key], lw=1.2)
            axes.set_ylim(bottom=0)
            axes.set_title(f"{name}: {len(samples) and int(samples[-1]['batch']):,} batches")
            axes.legend(fontsize=7)
            axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
