"""Penstock against Flink SQL: the equality join of two csv files, in one run.

Flink wants Python 3.9 to 3.12 and its own versions of NumPy and PyArrow, so it lives in an
environment of its own, ``.venv-flink``, made by ``python -m benchmarks.against_flink`` (about
800 MB).  Where that is missing the benchmark says so and leaves Flink out.

Both read the same rows from one csv file per stream, with every core of the machine; times are
whole milliseconds, because Flink's event time has no smaller ones.  Flink cannot pass over a
header, so its files have none; Penstock's differ from them in that one line.  Flink is set to be
fast: state in its heap, objects reused, no checkpoints, while Penstock makes its state durable
after every batch.  Both write into a sink that drops rows; their numbers of pairs are compared in a
first run that counts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import SparkSession

from benchmarks.harness import SCHEMA, Measure, console, folder, medians, run_penstock
from penstock.bench.jobs import Job, running

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venv-flink"
PYTHON = PLACE / "bin" / "python"
INSTALL = "python -m benchmarks.against_flink"
KEYS, PER_SECOND, WINDOW = 100_000, 10_000, 10


def flink(spark: SparkSession, rows: int, repeats: int) -> list[Measure]:
    """Equality join of two streams less than 10 s apart, against Flink SQL's interval join."""
    version = _installed()
    if version is None:
        console.print(
            f"Flink is left out: it must be installed in {PLACE.name} first; do that with "
            f"'{INSTALL}' (it needs Python 3.9 to 3.12)"
        )
        return []
    with folder() as base:
        for name, seed in (("a", 1), ("b", 2)):
            _write(base, name, rows, seed)
        pairs: dict[str, int] = {}

        def ours() -> float:
            ran = run_penstock(spark, _script(base), 1, {"batch.rows": 500_000})
            pairs["penstock"] = ran.rows["pairs"]
            return ran.seconds

        with _flink(base) as job:

            def count() -> float:
                seconds = job.ask(f"count {base / 'pairs'}")
                pairs["flink"] = _lines(base / "pairs")
                return seconds

            sides = {"csv join, Penstock": ours, "csv join, Flink": lambda: job.ask("run")}
            taken = medians(sides, repeats, {"csv join, Flink": count})
    if len(set(pairs.values())) != 1:
        raise SystemExit(f"both engines must find the same pairs, got {pairs}")
    fast, slow = (2 * rows / seconds for seconds in taken.values())
    return [
        Measure(
            f"equality join of csv files against Flink SQL {version}",
            fast / slow,
            None,
            "above",
            {"Penstock rows/s": fast, "Flink rows/s": slow, "rows": 2 * rows},
        )
    ]


def _script(base: Path) -> str:
    return f"""
    CREATE STREAM a ({SCHEMA}) USING replay OPTIONS (path '{base}/a-header.csv') TIMESTAMP BY t;
    CREATE STREAM b ({SCHEMA}) USING replay OPTIONS (path '{base}/b-header.csv') TIMESTAMP BY t;
    CREATE SINK nowhere USING blackhole;
    CREATE QUERY pairs INTO nowhere AS SELECT a.k, a.v AS av, b.v AS bv
      FROM a [RANGE {WINDOW} SECONDS], b [RANGE {WINDOW} SECONDS] WHERE a.k = b.k;
    """


def _write(base: Path, name: str, rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    when = np.arange(rows, dtype=np.int64) * 1_000 // PER_SECOND
    columns = {
        "k": random.integers(0, KEYS, rows),
        "v": random.random(rows),
        "t": pa.array(when, pa.timestamp("ms")),
    }
    plain = base / f"{name}.csv"
    options = pyarrow.csv.WriteOptions(include_header=False)
    pyarrow.csv.write_csv(pa.table(columns), plain, options)
    with open(base / f"{name}-header.csv", "wb") as copy, open(plain, "rb") as lines:
        copy.write(b"k,v,t\n")
        shutil.copyfileobj(lines, copy)


def _lines(path: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in path.rglob("*") if file.is_file())


def _flink(base: Path) -> AbstractContextManager[Job]:
    job = Path(__file__).with_name("flink_job.py")
    command = [PYTHON, job, base / "a.csv", base / "b.csv", WINDOW]
    return running(command, base / "flink.log")


def _installed() -> str | None:
    """Return the version of Flink in its environment, None if it is not there."""
    if not PYTHON.exists():
        return None
    asked = "from importlib.metadata import version; print(version('apache-flink'))"
    found = subprocess.run([str(PYTHON), "-c", asked], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def install() -> None:
    """Make the environment with the newest Flink that PyPI has for a Python that is here."""
    if _installed() is not None:
        print(f"apache-flink {_installed()} is in {PLACE}")
        return
    if (3, 9) <= sys.version_info[:2] <= (3, 12):
        venv.create(PLACE, with_pip=True, clear=True)
    else:
        fitting = next(filter(shutil.which, ("python3.12", "python3.11", "python3.10")), None)
        if fitting is None:
            raise SystemExit(
                "Flink needs Python 3.9 to 3.12, but none of python3.12, python3.11 and python3.10 "
                "is on the path; install one and try again"
            )
        subprocess.run([fitting, "-m", "venv", "--clear", str(PLACE)], check=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", "apache-flink"], check=True)
    print(f"apache-flink {_installed()} is in {PLACE}")


if __name__ == "__main__":
    install()
