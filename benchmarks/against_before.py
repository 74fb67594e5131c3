"""Penstock against an earlier version of itself: plans over time windows, in one run.

The earlier version is a commit, checked out beside the repository for as long as the benchmark
runs.  Both versions have a process and a Spark of their own, read the same files, and take turns.
Where there is no repository or no such commit, the benchmark says so and is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.before_job import PLANS
from benchmarks.harness import Measure, console, folder, medians, write_stream
from penstock.bench.jobs import Job, running

ROOT = Path(__file__).parent.parent
BEFORE = os.environ.get("PENSTOCK_BEFORE", "35dd49a655")
"""The commit to compare with: the last one before lifetimes had two methods, unless told."""
MOST = 1.05


def before(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Plans over time windows, which have no holders: time of a run, now against before."""
    found = _git("rev-parse", "--verify", "--quiet", f"{BEFORE}^{{commit}}")
    if found.returncode:
        console.print(
            f"the version before is left out: commit {BEFORE} must be in the repository of "
            f"{ROOT.name}; get its history with 'git fetch --unshallow'"
        )
        return []
    measures = []
    with folder() as base, ExitStack() as stack:
        for name, seed in (("a", 1), ("b", 2)):
            write_stream(base / name, rows, 100_000, 10_000, seed)
        trees = {"before": stack.enter_context(_checked_out(base)), "now": ROOT}
        jobs = {name: stack.enter_context(_job(base, name, tree)) for name, tree in trees.items()}
        for query in PLANS:
            sides = {
                f"{query}, {name}": lambda job=job, query=query: job.ask(query)
                for name, job in jobs.items()
            }
            taken = dict(zip(jobs, medians(sides, repeats).values(), strict=True))
            if len({job.last["rows"] for job in jobs.values()}) > 1:
                raise SystemExit(f"both versions must give the same rows of {query}")
            measures.append(
                Measure(
                    f"{query} over time windows, now against before lifetimes: time",
                    taken["now"] / taken["before"],
                    MOST,
                    "below",
                    {f"{name}, seconds": seconds for name, seconds in taken.items()},
                )
            )
    return measures


def _job(base: Path, name: str, tree: Path) -> AbstractContextManager[Job]:
    job = Path(__file__).with_name("before_job.py")
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"}
    return running([sys.executable, job, base], base / f"{name}.log", environment, tree)


@contextmanager
def _checked_out(base: Path) -> Iterator[Path]:
    tree = base / "tree"
    _git("worktree", "add", "--detach", "--quiet", str(tree), BEFORE).check_returncode()
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
