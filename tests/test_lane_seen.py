"""What people see of the lane: status, the live table, what is said when its process is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.asking.checkpoints import open_checkpoint
from penstock.catalog import StreamDef
from penstock.cli import live
from penstock.cli.app import _json_row, app
from penstock.cli.live import LiveTable
from penstock.errors import DataError, QueryError
from penstock.lane.keeper import LaneStatus
from penstock.lane.latencies import Latencies
from penstock.lane.telling import LaneState
from penstock.session import Session
from penstock.settings import Settings
from tests.pages import ROOT, blocks_of

STREAMS = """
CREATE STREAM alarms (k BIGINT, p BIGINT, t BIGINT) USING memory TIMESTAMP BY t PRIORITY p;
CREATE STREAM temps (k BIGINT, v DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM ticks (value BIGINT, timestamp TIMESTAMP) USING rate TIMESTAMP BY timestamp
  PRIORITY value;
"""
JOINED = """
CREATE SINK kept USING memory OPTIONS (changes 'intervals');
CREATE QUERY hot INTO kept AS ISTREAM (
  SELECT a.k, a.t AS at, r.t AS rt, r.v
  FROM alarms [RANGE 1000] a JOIN temps [RANGE 1000] r ON a.k = r.k);
CREATE QUERY counted INTO kept AS SELECT COUNT(*) AS n FROM alarms [RANGE 1000];
CREATE QUERY plain INTO kept AS SELECT v FROM temps [RANGE 10];
"""


def status(**given: Any) -> LaneStatus:
    told: dict[str, Any] = {"running": True, "why": "", "turns": 3, "answered": 7, "waiting": 2}
    told |= {"latencies": {9: (5, 0.004, 0.02), 1: (2, 0.1, 0.3)}, "rate": 1.5}
    return LaneStatus(**(told | given))


@pytest.fixture(scope="module")
def streams() -> dict[str, StreamDef]:
    with Session(autostart=False) as session:
        session.sql(STREAMS)
        return dict(session.catalog.streams)


def state(found: LaneStatus, streams: list[StreamDef], **settings: Any) -> LaneState:
    made = LaneState.of(found, streams, Settings(settings))
    assert made is not None
    return made


def test_a_lane_is_there_where_streams_have_priorities(streams: dict[str, StreamDef]) -> None:
    assert LaneState.of(status(), [streams["temps"]], Settings()) is None
    runs = state(status(), list(streams.values()))
    assert str(runs) == "lane: 7 rows answered (1.5/s), 2 waiting"
    assert runs.described() == {
        "running": True,
        "why": "",
        "turns": 3,
        "answered": 7,
        "answered_per_second": 1.5,
        "waiting": 2,
        "latencies": {
            9: {"answered": 5, "p50": 0.004, "p99": 0.02},
            1: {"answered": 2, "p50": 0.1, "p99": 0.3},
        },
        "lost": 0,
        "last_loss": "",
        "unfit": 0,
        "last_unfit": "",
    }


def test_rows_that_have_no_priority_are_counted(streams: dict[str, StreamDef]) -> None:
    told = "PRIORITY p of stream temps must be from 0 (normal) to 255 on every row, got 300"
    runs = state(status(unfit=2, last_unfit=told), list(streams.values()))
    assert f"2 come with their batch: {told}" in str(runs)
    assert runs.described()["unfit"] == 2


def test_why_a_lane_does_not_run(streams: dict[str, StreamDef]) -> None:
    off = state(status(), [streams["alarms"]], lane="off")
    assert off.why == "the lane is off (lane=false)"
    assert not off.described()["running"]
    rate = state(status(), [streams["ticks"], streams["temps"]])
    assert rate.why == (
        "no stream with priorities can be tapped: Spark reads the format rate batch by batch"
    )
    lost = state(status(running=False, why="its process was lost"), [streams["alarms"]])
    assert str(lost) == "lane: 7 rows answered (1.5/s), 2 waiting; its process was lost"


def test_a_loss_is_a_sentence(streams: dict[str, StreamDef]) -> None:
    alarms = [streams["alarms"]]
    assert not state(status(), alarms).loss
    rows = "important rows come with their batches while it does not run"
    once = state(status(losses=1, last_loss="it was killed"), alarms)
    assert once.loss == f"the process of the lane was lost: it was killed; {rows}"
    often = state(status(losses=3, last_loss="it has ended"), alarms)
    assert often.loss == (
        f"the process of the lane was lost 3 times, the last time: it has ended; {rows}"
    )


def test_latencies_are_kept_by_priority() -> None:
    found = Latencies()
    for seconds in range(100):
        found.add(2, seconds, 1)
    found.add(7, 0.5, 10)
    assert list(found.summary()) == [7, 2]
    assert found.summary()[7] == (10, 0.5, 0.5)
    count, middle, high = found.summary()[2]
    assert (count, middle) == (100, 49.5)
    assert 97 < high < 99
    assert found.rate() == 11.0


# The page, and the demo

PAGE = ROOT / "docs/priorities.md"


def test_explain_says_what_the_page_says() -> None:
    (printed,) = [b.text for b in blocks_of(PAGE) if b.language == "text"]
    script, *_ = [b.text for b in blocks_of(PAGE) if b.language == "sql"]
    with Session(autostart=False) as session:
        session.sql(script)
        lines = session.query("desk").explain().splitlines()
    told = [line for line in lines if line.startswith(("priority of", "lane:"))]
    assert told == printed.splitlines()


def test_the_page_has_the_sentence_about_a_loss(streams: dict[str, StreamDef]) -> None:
    lost = state(status(losses=1, last_loss="it was killed"), [streams["alarms"]])
    assert f"> {lost.loss}\n" in PAGE.read_text()


def test_the_ways_of_the_control_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo shows: two queries take the lane, the others say why they do not."""
    room = ROOT / "examples/control_room"
    monkeypatch.chdir(tmp_path)
    making = [sys.executable, room / "generate.py", "demo-output/data"]
    subprocess.run(making, check=True, capture_output=True)
    with Session(autostart=False) as session:
        session.sql((room / "control_room.sql").read_text())
        told = {handle.name: handle.explain("physical") for handle in session.handles()}
    ways = {
        name: next((way for way in ("lane", "main") if f"\n{way}: " in text), "")
        for name, text in told.items()
    }
    assert {name for name, way in ways.items() if way == "lane"} == {"trips", "desk"}
    mains = {"alarms", "unnoticed", "day_shift", "desk_heat"}
    assert {name for name, way in ways.items() if way == "main"} == mains


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["17", "oil", "on", "the", "floor"], "nobody is in the control room: start `make demo`"),
        (["99", "oil"], "give a turbine from 1 to 60"),
        ([], "give a turbine from 1 to 60"),
    ],
)
def test_an_alarm_that_nobody_takes(words: list[str], says: str, tmp_path: Path) -> None:
    """The command of the page, in a copy of the examples where nothing runs."""
    assert ".venv/bin/python examples/control_room/desk.py 17 oil on the floor" in PAGE.read_text()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = [sys.executable, "examples/control_room/desk.py", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert says in done.stderr


# Rows from another process


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["push", "s", "{}"], "--checkpoint must be the folder of a checkpoint, got nothing"),
        (["push", "s", "--checkpoint", "{folder}"], "must have a committed batch to be read"),
    ],
)
def test_rows_for_nobody(words: list[str], says: str, tmp_path: Path) -> None:
    given = [word.replace("{folder}", str(tmp_path)) for word in words]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["{'k': 1}", "[1, 2]", "7", "k=1"])
def test_a_row_is_a_json_object(text: str) -> None:
    with pytest.raises(DataError, match="a row must be a JSON object"):
        _json_row(text)
    assert _json_row(' {"k": 1}') == {"k": 1}


# While it runs


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def shown(table: LiveTable, width: int = 120) -> str:
    console = Console(width=width, height=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table.render())
    return console.export_text()


@pytest.mark.spark
def test_what_is_seen_while_a_lane_answers(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LINE_EVERY", 0.0)
    patient = {"lane.wait": "30s"}  # on a busy machine a batch may be faster than the lane
    with Session(spark, checkpoint=tmp_path, autostart=False, settings=patient) as session:
        session.sql(STREAMS + JOINED)
        assert session.status()["lane"] is None
        session.push("temps", [(k, 20.0 + k, 10) for k in range(5)])
        session.push("alarms", [(77, 0, 1)])
        session.start()
        until(lambda: session.status()["batch"] >= 0)
        until(lambda: bool(session.status()["lane"]["running"]))
        session.push("temps", [(9, 1.0, 20)])
        until(lambda: session.status()["queries"]["hot"]["streams"]["temps"]["heartbeat"] == 20)
        session.push("alarms", [(1, 5, 100), (2, 9, 100)])
        until(lambda: session.status()["lane"]["answered"] == 2)

        told = session.status()
        lane = told["lane"]
        assert told["rows"] >= 7
        assert (lane["waiting"], lane["lost"], lane["why"]) == (0, 0, "")
        assert {p: found["answered"] for p, found in lane["latencies"].items()} == {9: 1, 5: 1}
        assert all(0 < found["p50"] <= found["p99"] < 30 for found in lane["latencies"].values())
        queries = told["queries"]
        assert queries["hot"]["lane"]["by"] == "lane"
        assert queries["hot"]["lane"]["rows"] == 2
        assert queries["hot"]["rows"] == 2
        assert queries["hot"]["rows_per_second"] > 0
        assert queries["counted"]["lane"]["by"] == "main"
        assert "aggregates need the original order" in queries["counted"]["lane"]["text"]
        assert queries["plain"]["lane"] is None
        assert "lane: important rows of alarms are answered" in session.query("hot").explain()

        table = LiveTable(session, Console(width=120), "alarms")
        screen = shown(table)
        assert "lane: 2 rows answered" in screen
        assert "none waiting" in screen
        assert "99 % within" in screen
        assert "lane: 2 rows answered" in table.line()

        killed = session.pipeline.lane.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        session.push("alarms", [(3, 5, 101)])
        until(lambda: session.status()["lane"]["lost"] > 0)
        sentence = "the process of the lane was lost"
        assert sentence in shown(table, 200)
        console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        lines = LiveTable(session, console, "alarms")
        for _ in range(3):
            lines._next = 0.0
            lines.tick()
        assert console.export_text().count(sentence) == 1

        until(lambda: bool(session.status()["lane"]["running"]))
        other = "push", "alarms", '{"k": 4, "p": 5, "t": 102}', "--checkpoint", str(tmp_path)
        assert "1 row pushed into alarms" in CliRunner().invoke(app, other).output
        until(lambda: session.query("hot").status()["rows"] >= 3)
        with pytest.raises(QueryError, match="no stream 'alarm'; did you mean 'alarms'"):
            open_checkpoint(tmp_path).writer("alarm")
        with pytest.raises(DataError, match="to 255 on every row, got 999"):
            open_checkpoint(tmp_path).writer("alarms").push([(4, 999, 103)])
        with pytest.raises(QueryError, match="stream 'ticks' is USING rate"):
            open_checkpoint(tmp_path).writer("ticks")
        open_checkpoint(tmp_path).writer("alarms").finish()
        session.finish("temps")
        assert session.await_end(120)
        assert session.query("hot").rows().num_rows == session.query("hot").status()["rows"] == 4
        assert session.status()["lane"]["why"] == "it was stopped"


@pytest.mark.spark
def test_a_lane_that_is_off_says_so(spark: Any, tmp_path: Path) -> None:
    with Session(spark, checkpoint=tmp_path, autostart=False, settings={"lane": "off"}) as session:
        session.sql(STREAMS + JOINED)
        session.push("temps", [(1, 20.0, 10)])
        session.push("alarms", [(1, 5, 10)])
        session.finish("alarms")
        session.finish("temps")
        session.start()
        assert session.await_end(120)
        told = session.query("hot").status()["lane"]
        assert (told["by"], told["running"], told["answered"]) == ("main", False, 0)
        assert told["why"] == "the lane is off (lane=false)"
        assert "the lane is off" in told["text"]
        assert session.query("hot").rows().num_rows == 1
