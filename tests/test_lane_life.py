"""The lane through everything that happens to it: lost processes, restarts, copies, backlogs."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import StateError
from penstock.lane import keeper
from penstock.lane.keeper import Lane
from penstock.lane.worker import Renewal, Worker, WorkerFailedError
from penstock.runs import failpoints
from penstock.session import Session
from penstock.sources.spool import Spool
from tests.lane_crashes import Alarms
from tests.lane_runs import ALARMS, PAIRS, STREAMS, LaneRun, wait_for
from tests.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ITSELF = "SELECT o.x, n.x AS z FROM a [RANGE 9] AS o JOIN a [RANGE 5] AS n ON o.k = n.k"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


# The process of the lane


def test_a_process_that_is_killed_again_and_again_loses_nothing(spark: Any) -> None:
    queries = {"pairs": PAIRS, "alarms": ALARMS, "itself": ITSELF}
    with LaneRun(spark, queries, shards=1) as run:
        now = run.play("before", 2)
        run.start()
        killed = set()
        for round in range(4):
            now = run.play(f"round {round}", 2, now)
            run.ready()
            run.alarm("a", [run.row(k, now, 5) for k in range(3)])
            pid = run.lane.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            run.push("b", [run.row(k, now, 5) for k in range(3)])
            run.push("a", [run.row(k, now + 1, 5) for k in range(3)])
            now += 2
        wait_for(lambda: run.lane.pid not in (None, *killed))
        run.ready()
        assert run.lane.status().running
        run.end()
        run.check()
        assert len(killed) == 4
        assert all(run.by_lane(name) > 0 for name in queries)


def test_a_batch_that_is_old_when_the_process_is_told_of_it_is_no_loss(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be swept by then; the process is told of the next one."""
    told: list[int] = []

    class Late(Worker):
        def renew(self, renewal: Renewal) -> None:
            told.append(renewal.batch)
            if len(set(told)) == 1:
                raise WorkerFailedError("the run file .. must be readable")
            super().renew(renewal)

    monkeypatch.setattr(keeper, "Worker", Late)
    monkeypatch.setattr(keeper, "_UNTIL_NEWER", 100.0)
    with LaneRun(spark, {"pairs": PAIRS}, shards=1) as run:
        now = run.play("before", 2)
        run.session.start()
        wait_for(lambda: told != [])
        while run.lane._told is None:
            run.push("r", [run.row(1, now)])
            now += 1
            run.session.await_idle(100)
        run.ready()
        run.alarm("a", [run.row(1, now, 3)])
        assert run.lane.status().losses == 0
        run.end()
        run.check()


def test_the_main_lane_goes_on_beside_a_process_that_hangs(spark: Any) -> None:
    with LaneRun(spark, {"pairs": PAIRS, "itself": ITSELF}, **{"lane.patience": 1.5}) as run:
        now = run.play("before", 2)
        run.start()
        run.alarm("a", [run.row(1, now, 5)])
        hanging = run.lane.pid
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        batch = run.session.pipeline.manifest.batch
        now = run.play("meanwhile", 3, now + 1)
        run.push("a", [run.row(2, now, 5)])
        wait_for(lambda: run.session.pipeline.manifest.batch > batch)
        told = set[str]()

        def given_up() -> bool:
            told.add(run.lane.status().why)
            return run.lane.pid not in (None, hanging)

        wait_for(given_up)
        assert any("its process was lost: it gave no answer within" in why for why in told), told
        run.push("r", [run.row(2, now)])
        run.session.await_idle(100)
        run.ready()
        run.alarm("a", [run.row(2, now + 1, 5)])
        # one that hangs when the run ends is not waited for, and one that goes on is not missed
        os.kill(run.lane.pid, signal.SIGSTOP)
        run.push("a", [run.row(2, now + 2, 5)])
        run.end()
        began = time.monotonic()
        run.session.stop()
        assert time.monotonic() - began < 20
        assert run.lane.pid is None
        run.check()


def test_what_a_hanging_process_does_not_answer_comes_by_a_batch(spark: Any) -> None:
    """Nothing is given up here: the batch does not wait longer than it may."""
    settings = {"lane.patience": 60, "lane.wait": 0.3}
    with LaneRun(spark, {"pairs": PAIRS}, shards=1, **settings) as run:
        run.push("r", [run.row(k, t) for t in (10, 20) for k in range(3)])
        run.push("a", [run.row(0, 10)])
        run.start()
        hanging = run.lane.pid
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        run.push("a", [run.row(1, 12, 5)])
        began = time.monotonic()
        run.session.await_idle(100)
        assert time.monotonic() - began >= 0.3
        assert run.lane.journal.last == 0
        os.kill(hanging, signal.SIGCONT)
        run.ready()
        assert run.lane.pid == hanging
        run.alarm("a", [run.row(2, 13, 5)])
        run.end()
        run.check()


def test_a_batch_waits_for_a_slow_answer_only_so_long(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while an answer is made, waits for `lane.wait`, and takes the row itself."""
    answer, hand_over = Worker.answer, Lane.hand_over
    waited: list[float] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(self: Worker, question: Any) -> Any:
        begun.set()
        assert go_on.wait(100)
        return answer(self, question)

    def timed(self: Lane, offsets: Any, timeline: Any) -> Any:
        assert begun.wait(100)
        began = time.monotonic()
        found = hand_over(self, offsets, timeline)
        waited.append(time.monotonic() - began)
        go_on.set()
        return found

    with LaneRun(spark, {"pairs": PAIRS, "itself": ITSELF}, **{"lane.wait": 0.3}) as run:
        now = run.play("before", 2)
        run.start()
        turns = run.lane.journal.last
        monkeypatch.setattr(Worker, "answer", slow)
        monkeypatch.setattr(Lane, "hand_over", timed)
        run.push("a", [run.row(1, now, 5)])
        run.session.await_idle(100)
        assert waited[0] >= 0.3
        assert run.lane.journal.last == turns
        run.end()
        run.check()


def test_a_batch_that_may_wait_lets_the_lane_answer(spark: Any) -> None:
    """Also when the lane has not looked yet, or is being told of the batch before."""
    with LaneRun(spark, {"pairs": PAIRS, "itself": ITSELF}, **{"lane.wait": 100}) as run:
        now = run.play("before", 2)
        run.start()
        for count in range(1, 6):
            run.push("a", [run.row(k, now + count, 5) for k in range(3)])
            run.session.await_idle(100)
            assert run.lane.status().answered == 3 * count
        run.end()
        run.check()


# Restarts


def test_a_session_goes_on_where_both_lanes_were(spark: Any, tmp_path: Path) -> None:
    queries = {"pairs": PAIRS, "alarms": ALARMS, "itself": ITSELF}
    folder = tmp_path / "checkpoint"
    with LaneRun(spark, queries, checkpoint=folder, shards=2) as run:
        now = run.play("before", 2)
        run.start()
        # the batch that takes these rows fails after they were handed over; the turn stays
        now = run.play("first", 2, now)
        run.session.await_idle(100)
        run.ready()
        before = run.session.pipeline.manifest.batch
        failpoints.arm("manifest-temp=raise")
        run.alarm("a", [run.row(k, now, 5) for k in range(4)])
        with pytest.raises(StateError, match="manifest-temp"):
            run.session.await_idle(100)
        assert run.session.pipeline.manifest.batch == before
        turns = run.lane.journal.last
    failpoints.arm("")
    with LaneRun(spark, queries, checkpoint=folder, before=run, shards=2) as run:
        assert run.lane.journal.last == turns
        run.session.start()
        run.push("b", [run.row(k, now, 5) for k in range(4)])
        now = run.play("second", 3, now + 1)
        run.session.await_idle(100)
        run.ready()
        run.alarm("a", [run.row(k, now, 5) for k in range(4)])
    # without a lane what it has answered is known all the same
    with LaneRun(spark, queries, checkpoint=folder, before=run, lane=False) as run:
        run.session.start()
        last = run.lane.journal.last
        now = run.play("third", 3, now + 1)
        run.session.await_idle(100)
        assert run.lane.journal.last == last > turns
        assert run.lane.status().why == "the setting lane is off"
    with LaneRun(spark, queries, checkpoint=folder, before=run) as run:
        run.start()
        now = run.play("fourth", 2, now)
        run.ready()
        run.alarm("a", [run.row(k, now, 5) for k in range(4)])
        run.end()
        run.check()
        assert all(run.by_lane(name) > 0 for name in queries)


def test_every_sink_gets_each_row_once_over_restarts(spark: Any, tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        alarms = Alarms.begin(tmp_path, 90, server.new_database(), fsync=False)
        alarms.pace(1)
        dice = random.Random("restarts")
        for _ in range(3):
            with Session(spark, checkpoint=alarms.checkpoint, settings=alarms.settings) as session:
                session.sql(alarms.script)
                turns = session.pipeline.lane.journal.last
                wait_for(lambda: session.pipeline.lane.journal.last > turns)  # noqa: B023
                time.sleep(dice.uniform(0, 0.5))
        alarms.pace(300)
        with Session(spark, checkpoint=alarms.checkpoint, settings=alarms.settings) as session:
            session.sql(alarms.script)
            assert session.await_end(timeout=200)
        alarms.check()
        assert alarms.turns() > 2
    finally:
        server.remove()


def test_the_console_gets_each_row_once(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with LaneRun(spark, {"pairs": PAIRS}, shards=1) as run:
        run.session.sql(
            "CREATE SINK shown USING console; "
            "CREATE QUERY seen INTO shown AS SELECT k, x AS seen_x FROM a [RANGE 4]"
        )
        run.push("a", [run.row(1, 10)])
        run.push("r", [run.row(1, 10)])
        run.start()
        run.alarm("a", [run.row(k, 11, k % 3) for k in range(9)])
        run.session.await_idle(100)
        run.end()
        assert run.lane.status().answered > 0
        expected = Counter(row[1] for row, _ in run.rows["a"])
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines() if "seen_x" in line]
    assert Counter(row["seen_x"] for row in told) == expected


def test_older_copies_are_refused(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "checkpoint", tmp_path / "out"
    streams = f"{STREAMS} CREATE SINK files USING jsonl OPTIONS (path '{out}');"

    def opened(before: LaneRun | None = None) -> LaneRun:
        run = LaneRun(spark, {"pairs": PAIRS}, streams, folder, before, shards=1)
        run.session.sql(f"CREATE QUERY kept INTO files AS {PAIRS}")
        return run

    def alarm(run: LaneRun, now: int) -> None:
        run.ready()
        run.alarm("a", [run.row(k, now, 5) for k in range(4)])
        run.session.await_idle(100)

    with opened() as run:
        now = run.play("before", 2)
        run.start()
        alarm(run, now)
    shutil.copytree(folder, tmp_path / "older")
    shutil.copytree(out, tmp_path / "older-out")
    with opened(run) as run:
        now = run.play("later", 2, now)
        run.start()
        alarm(run, now)
        alarm(run, now + 1)
    shutil.copytree(folder, tmp_path / "newer")
    shutil.copytree(out, tmp_path / "newer-out")

    def copied(part: str) -> LaneRun:
        for place, copy in ((folder, "newer"), (out, "newer-out")):
            shutil.rmtree(place)
            shutil.copytree(tmp_path / copy, place)
        if part == "sinks":
            shutil.rmtree(out)
            shutil.copytree(tmp_path / "older-out", out)
        elif part == "all":
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "older", folder)
        else:
            shutil.rmtree(folder / part)
            shutil.copytree(tmp_path / "older" / part, folder / part)
        return opened(run)

    def refused(part: str) -> str:
        with pytest.raises(StateError) as error, copied(part) as other:
            other.session.start()
        return str(error.value)

    told = refused("lane")
    assert "the journal of turns in" in told
    assert "it is an older copy, or files were lost" in told
    assert "Spark's log must not go beyond the manifests" in refused("manifest")
    assert "the checkpoint was brought back from an older copy" in refused("all")
    told = refused("sinks")
    assert "what was delivered is missing in the folder" in told
    assert "turns of 'kept~lane'" in told
    shutil.rmtree(folder)
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "newer", folder)
    shutil.copytree(tmp_path / "newer-out", out)
    with opened(run) as run:
        run.start()
        run.end()
        run.check("pairs")


@pytest.mark.parametrize("added", [True, False], ids=["added", "removed"])
def test_a_priority_that_comes_or_goes(spark: Any, tmp_path: Path, added: bool) -> None:
    """A query that takes the lane must begin anew; one that does not goes on exactly."""
    plain = STREAMS.replace(" PRIORITY p", "")
    first, second = (plain, STREAMS) if added else (STREAMS, plain)
    counts = {"counts": "SELECT k, COUNT(*) AS n FROM a [RANGE 9] GROUP BY k"}
    folder = tmp_path / "checkpoint"
    with LaneRun(spark, {"pairs": PAIRS} | counts, first, folder, shards=1) as run:
        now = run.play("before", 2)
        run.session.start()
        now = run.play("first", 3, now)
        run.session.await_idle(100)
        if not added:
            run.ready()
            run.alarm("a", [run.row(k, now, 5) for k in range(3)])
    with (
        pytest.raises(StateError, match="of query 'pairs' must have a PRIORITY as they had"),
        LaneRun(spark, {"pairs": PAIRS} | counts, second, folder, run) as other,
    ):
        other.session.start()
    with LaneRun(spark, counts, second, folder, run) as run:
        run.session.sql("DROP QUERY IF EXISTS pairs")
        run.session.start()
        run.play("second", 3, now + 1)
        run.end()
        run.check("counts")


# Much, and wrong


def test_a_backlog_with_alarms_in_front_is_answered_with_bounded_memory(spark: Any) -> None:
    """The lane reads a million rows, of which one in a hundred is important."""
    some = {"some": "SELECT k, x FROM a [NOW] WHERE k = 1"}
    with LaneRun(spark, some, shards=1, **{"batch.rows": 100_000}) as run:
        run.push("a", [run.row(0, 0)])
        run.start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rows = 1_000_000
        ids = np.arange(rows)
        level = np.where(ids % 100 == 1, 7, 0)
        table = pa.table({"k": ids % 10, "x": ids, "p": level, "t": ids // 100 + 1})
        for first in range(0, rows, 50_000):
            run.session.push("a", table.slice(first, 50_000))
        run.session.finish("a")
        for name in ("b", "r", "s"):
            run.session.finish(name)
        assert run.session.await_end(timeout=200)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        got = np.sort(np.concatenate([t.column("x").to_numpy() for _, t in run.got["some"]]))
        assert np.array_equal(got, ids[ids % 10 == 1])
        assert run.by_lane("some") > 0
        assert grown < 700, f"{grown:.0f} MB more than before"


def test_rows_whose_priority_fails_come_by_their_batch(spark: Any) -> None:
    with LaneRun(spark, {"pairs": PAIRS, "itself": ITSELF}, shards=1) as run:
        now = run.play("before", 2)
        run.start()
        run.ready()
        rows = [run.row(1, now, 3), run.row(2, now, -1), run.row(1, now, 3)]
        run.rows["a"] += [(row, now) for row in rows]
        folder, stream = run.session._spool_folder("a"), run.session.catalog.streams["a"]
        Spool(folder, stream.schema).push(rows)  # as another program might: push() refuses them
        run.lane.notify("a")
        wait_for(lambda: run.lane.status().unfit == 1)
        assert "PRIORITY p of stream a must be from 0" in run.lane.status().last_unfit
        now = run.play("more", 2, now)
        run.session.await_idle(100)
        run.ready()
        run.alarm("a", [run.row(1, now, 3)])
        assert run.lane.status().why == ""
        assert run.lane.status().unfit == 1
        run.end()
        run.check()


def test_a_stream_whose_files_are_gone_is_followed_again(spark: Any) -> None:
    """Spool files that all batches have taken are deleted, also those that the lane never read."""
    settings = {"retain.manifests": 0, "lane.patience": 60}
    with LaneRun(spark, {"pairs": PAIRS, "itself": ITSELF}, shards=1, **settings) as run:
        now = run.play("before", 2)
        run.start()
        run.alarm("a", [run.row(1, now, 3)])
        hanging = run.lane.pid
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        run.push("a", [run.row(1, now, 3)])
        for _ in range(4):  # the lane waits for its process, and reads nothing meanwhile
            now += 1
            run.push("a", [run.row(1, now, 3)])
            run.push("r", [run.row(1, now)])
            run.session.await_idle(100)
        os.kill(hanging, signal.SIGCONT)
        run.ready()
        wait_for(lambda: run.lane.status().waiting == 0)
        run.alarm("a", [run.row(1, now, 3)])
        run.end()
        run.check()
