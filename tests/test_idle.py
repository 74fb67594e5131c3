"""Streams with IDLE AFTER are passed over while they are silent; below that they are late."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import algebra
from penstock.model import INF, MIN_TIME
from penstock.physical.packing import Packer, Progress
from penstock.physical.plan import PhysicalPlan
from penstock.physical.stage import source_beats
from penstock.reference import Inputs
from penstock.session import Session
from penstock.settings import Settings
from tests.clock import Clock
from tests.comparison import check_answer, interval_rows


def test_a_silent_stream_takes_the_heartbeat_of_the_others() -> None:
    before = {"busy": 10, "busier": 30, "quiet": 3, "never": MIN_TIME}
    idle = frozenset({"quiet", "never"})
    assert source_beats(before, {"busy": 20}, idle) == {
        "busy": 20,
        "busier": 30,
        "quiet": 20,
        "never": 20,
    }
    woken = source_beats(before, {"busy": 20, "quiet": 5}, idle)
    assert (woken["quiet"], woken["never"]) == (5, 5)


def test_nothing_is_passed_where_nothing_was_heard() -> None:
    before = {"a": MIN_TIME, "b": MIN_TIME, "ended": INF}
    assert source_beats(before, {}, frozenset({"a", "b"})) == before


def test_a_heartbeat_that_was_passed_never_goes_back() -> None:
    beats = source_beats({"busy": 10, "quiet": 40}, {}, frozenset({"quiet"}))
    assert beats["quiet"] == 40


def test_rows_below_the_passed_heartbeat_are_late() -> None:
    nothing = PhysicalPlan((), (), ())
    passed = Progress(floor=10)  # it never had a row
    assert passed.heartbeat(5) == 10
    packer = Packer(nothing, "s", 0, 5, passed, Settings(), 1)
    late = packer.add(pa.table({"t": [9, 10, 12, 8, 9]}))
    assert late.column("t").to_pylist() == [9, 8, 9]
    assert (packer.progress.accepted, packer.progress.late) == (2, 3)
    assert packer.progress.heartbeat(5) == 10
    assert packer.add(pa.table({"t": [20, 14, 15]})).column("t").to_pylist() == [14]
    assert packer.progress.heartbeat(5) == 15


@pytest.mark.spark
def test_a_stream_that_never_spoke_is_passed_over_and_wakes(spark: Any, clock: Clock) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        query = session.sql(
            """
            CREATE STREAM busy (x INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE STREAM quiet (x INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 3
              IDLE AFTER 100 SECONDS;
            CREATE SINK kept USING memory OPTIONS (changes 'intervals');
            CREATE QUERY both INTO kept AS SELECT busy.x, quiet.x AS y
              FROM busy [RANGE 20] JOIN quiet [RANGE 20] ON busy.x = quiet.x;
            """
        )

        def push_and_wait(stream: str, *rows: tuple[int, int]) -> int:
            session.push(stream, list(rows))
            session.await_idle()
            return int(query.status()["heartbeat"])

        assert push_and_wait("busy", (1, 1), (2, 5)) == MIN_TIME
        clock.move_on(100)
        assert push_and_wait("busy", (3, 10)) == 10
        assert session.pipeline.manifest.progress["quiet"]["max_time"] == MIN_TIME
        assert push_and_wait("quiet", (1, 4), (2, 9), (3, 10), (1, 12)) == 10  # two are late
        assert session.pipeline.manifest.progress["quiet"]["late"] == 2
        assert push_and_wait("busy", (2, 30)) == 10  # silent again, not yet for long
        clock.move_on(100)
        assert push_and_wait("busy", (3, 40)) == 40
        assert push_and_wait("quiet", (2, 39), (3, 41)) == 40
        progress = session.pipeline.manifest.progress["quiet"]
        assert (progress["accepted"], progress["late"]) == (3, 3)
        for name in ("busy", "quiet"):
            session.finish(name)
        assert session.await_end(timeout=100)
        elements = {
            "busy": [((x, t), t) for x, t in [(1, 1), (2, 5), (3, 10), (2, 30), (3, 40)]],
            "quiet": [((x, t), t) for x, t in [(3, 10), (1, 12), (3, 41)]],
        }
        check_answer(query.definition.plan, interval_rows(query.rows()), Inputs(elements))


@pytest.mark.spark
def test_time_without_reading_is_no_silence(spark: Any, clock: Clock) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        query = session.sql(
            """
            CREATE STREAM busy (x INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE STREAM quiet (x INT, t BIGINT) USING memory TIMESTAMP BY t IDLE AFTER 5 HOURS;
            CREATE QUERY both AS SELECT x FROM busy [RANGE 2] UNION ALL
              SELECT x FROM quiet [RANGE 2];
            """
        )
        session.push("busy", [(1, 1)])
        session.push("quiet", [(1, 1)])
        session.await_idle()
        session.stop()
        clock.move_on(5 * 3600)
        session.push("busy", [(1, 9)])
        session.start()
        session.await_idle()
        assert query.status()["heartbeat"] == 1
        assert algebra.streams_of(query.definition.plan) == {"busy", "quiet"}
