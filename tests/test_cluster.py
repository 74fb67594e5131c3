"""A real standalone cluster on loopback: a master and two workers give the oracle's answers.

The second run loses a worker on the way, with its executor and all that it held.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
import pytest

from penstock.model import INF
from penstock.session import Session
from penstock.settings import Settings
from penstock.sinks import read_committed
from penstock.spark.engine import own_settings
from tests.comparison import check_answer
from tests.conftest import SHORT_LIVED
from tests.world import World, make_world

PATIENCE = 280
"""Seconds after which a step has failed: a busy machine needs minutes for all of them."""

QUERIES = {
    "last_rows": "SELECT * FROM s [PARTITION BY k ROWS 2]",
    "totals": "SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s [RANGE 5] GROUP BY k",
    "pairs": "SELECT s.k, s.x, r.x AS z FROM s [RANGE 5] JOIN r [ROWS 4] ON s.k = r.k",
    "near": "SELECT s.x, q.x AS z FROM s [RANGE 5], q [ROWS 6] WHERE ABS(s.x - q.x) <= 1",
    "lonely": "SELECT s.k, s.x, r.x AS z FROM s [RANGE 6] LEFT JOIN r [ROWS 4] ON s.k = r.k",
    "missing": "SELECT k FROM s [RANGE 6] EXCEPT SELECT k FROM r [RANGE 6]",
}


@dataclass
class Cluster:
    """A master and its workers; each leads a session of processes that is ended with it."""

    folder: Path
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        environment = kept | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",  # the web pages of master and workers listen here too
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {SHORT_LIVED}",
            "SPARK_WORKER_DIR": str(self.folder / name),
            "SPARK_LOCAL_DIRS": str(self.folder / name),
        }
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{words[0]}", *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def workers(self) -> list[str]:
        return [name for name in self.processes if name != "master"]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start_worker(self, name: str) -> None:
        words = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0")
        self.start(name, "worker.Worker", self.address, *words)

    def told(self, name: str, pattern: str, times: int = 1) -> str:
        """Wait until a log has said something so many times; return the newest."""
        deadline = time.monotonic() + PATIENCE
        while True:
            text = self.log(name).read_text(errors="replace")
            found = re.findall(pattern, text)
            if len(found) >= times:
                return str(found[-1])
            assert self.processes[name].poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill a process that was started here and everything it has started, at once."""
        leader = self.processes.pop(name)
        for process in of_session(leader.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        leader.wait()


def of_session(leader: int) -> list[int]:
    """Return the processes of a session: pyspark's workers leave the group but not the session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(state[3]) == leader:
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "cluster")
    started.folder.mkdir()
    try:
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        started.start("master", "master.Master", *where)
        started.address = started.told("master", r"Starting Spark master at (spark://\S+)")
        for name in ("first", "second"):
            started.start_worker(name)
        started.told("master", r"Registering worker", 2)
        yield started
    finally:
        for name in list(started.processes):
            started.kill(name)


def write_script(folder: Path, world: World, rate: int | None = None) -> Path:
    text = world.declarations()
    if rate is not None:
        text = text.replace("null 'NULL'", f"null 'NULL', rate '{rate}'")
    for name, query in QUERIES.items():
        text += f"\nCREATE SINK {name} USING jsonl OPTIONS (path '{folder / name}');"
        text += f"\nCREATE QUERY {name} INTO {name} AS {query};"
    folder.mkdir()
    path = folder / "script.sql"
    path.write_text(text)
    return path


def run(script: Path, cluster: Cluster, **settings: Any) -> subprocess.Popen[str]:
    given = {"driver.host": "127.0.0.1", "executor.memory": "512m", "cluster.cores": 2} | settings
    words = ["run", script, "--master", cluster.address, "--checkpoint", script.parent / "state"]
    for name, value in given.items():
        words += ["--set", f"{name.replace('_', '.')}={value}"]
    return subprocess.Popen(
        [Path(sys.executable).parent / "penstock", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, err


def check_outputs(script: Path, world: World) -> None:
    """Compare what the sinks hold with the oracle."""
    with Session(autostart=False) as session:
        session.sql(script.read_text())
        for handle in session.handles():
            rows = []
            for row in read_committed(script.parent / handle.name):
                *values, start, end = row.values()
                rows.append((tuple(values), start, INF if end is None else end))
            assert rows
            check_answer(handle.definition.plan, rows, world.inputs())


def manifests(script: Path) -> list[Path]:
    return list((script.parent / "state" / "manifest").glob("0*.json"))


def test_what_a_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = {"driver.host": "10.0.0.7", "executor.memory": "3g", "cluster.cores": 12}
    settings = own_settings("spark://host:7077", Settings(given))
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "10.0.0.7"
    assert settings["spark.executor.memory"] == "3g"
    assert settings["spark.cores.max"] == settings["spark.default.parallelism"] == "12"
    assert settings["spark.pyspark.python"] == sys.executable
    assert settings["spark.ui.bindAddress"] == "127.0.0.1"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert own_settings("yarn", Settings())["spark.pyspark.python"] == "/opt/python"
    assert "spark.cores.max" not in own_settings("yarn", Settings())


@pytest.mark.spark
@pytest.mark.timeout(4 * PATIENCE)
def test_a_cluster_gives_the_same_answers_also_when_it_loses_a_worker(
    tmp_path: Path, cluster: Cluster
) -> None:
    world = make_world(tmp_path, rows=80)
    script = write_script(tmp_path / "whole", world)
    finish(run(script, cluster, batch_rows=30))
    check_outputs(script, world)
    executors = [cluster.log(name).read_text().count("Launch command") for name in cluster.workers]
    assert executors == [1, 1]

    script = write_script(tmp_path / "lost", world, rate=8)
    process = run(script, cluster)
    try:
        deadline = time.monotonic() + PATIENCE
        while len(manifests(script)) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = len(manifests(script))
        cluster.kill("first")
        finish(process)
    finally:
        process.kill()
    assert len(manifests(script)) > before
    check_outputs(script, world)
