"""Streams with IDLE AFTER are passed over while they are silent; below that they are late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import algebra
from penstock.model import INF, MIN_TIME
from penstock.physical.packing import Packer
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Decision, Partition, Progress, Timeline, reported
from penstock.reference import Inputs
from penstock.session import Session
from penstock.settings import Settings
from penstock.timing import TimeRules
from tests.clock import Clock
from tests.comparison import check_answer, interval_rows


def streams(floors: dict[str, int], idle: set[str], group: bool = True) -> Timeline:
    """Streams that have given heartbeats; those that are idle become so in the next batch."""
    progress = {
        name: Progress(
            {"": Partition(floor=floor, max_time=floor)} if floor > MIN_TIME else {},
            floor=floor,
            final=floor == INF,
        )
        for name, floor in floors.items()
    }
    parts = {name: frozenset(progress[name].partitions or (None,)) for name in idle}
    decisions = {name: Decision(idle=some) for name, some in parts.items()}
    rules = dict.fromkeys(floors, TimeRules(slack=5))
    groups = (frozenset(floors),) if group else tuple(frozenset({name}) for name in floors)
    return Timeline(progress, rules, decisions, groups)


def came(timeline: Timeline, **times: int) -> dict[str, int]:
    """Let a row come of some streams; return all heartbeats."""
    reports = []
    for name, time in times.items():
        rules = timeline.rules[name]
        part = timeline.of(name).partition("").judged(np.array([time]), rules)[1]
        reports.append(reported(name, {"": part}))
    return {name: found.heartbeat for name, found in timeline.after(reports).items()}


def test_a_silent_stream_takes_the_heartbeat_of_the_others() -> None:
    before = {"busy": 10, "busier": 30, "quiet": 3, "never": MIN_TIME}
    silent = streams(before, {"quiet", "never"})
    assert came(silent, busy=25) == {"busy": 20, "busier": 30, "quiet": 20, "never": 20}
    assert came(silent, busy=25, quiet=9) == {"busy": 20, "busier": 30, "quiet": 4, "never": 4}


def test_streams_that_meet_in_no_query_say_nothing_about_one_another() -> None:
    apart = streams({"busy": 1_000_000, "quiet": 3}, {"quiet"}, group=False)
    assert came(apart, busy=2_000_000) == {"busy": 1_999_995, "quiet": 4}


def test_nothing_is_passed_where_nothing_was_heard() -> None:
    before = {"a": MIN_TIME, "b": MIN_TIME, "ended": INF}
    assert came(streams(before, {"a", "b"})) == before


def test_a_stream_that_is_silent_alone_closes_its_last_instant() -> None:
    assert came(streams({"quiet": 7}, {"quiet"})) == {"quiet": 8}


def test_where_all_are_silent_none_holds_the_others_back() -> None:
    assert came(streams({"ahead": 100, "behind": 50}, {"ahead", "behind"})) == {
        "ahead": 101,
        "behind": 101,
    }


def test_a_heartbeat_that_was_passed_never_goes_back() -> None:
    assert came(streams({"busy": 10, "quiet": 40}, {"quiet"}))["quiet"] == 41


def test_rows_below_the_passed_heartbeat_are_late() -> None:
    nothing = PhysicalPlan((), (), ())
    passed = Progress(floor=10)  # it never had a row
    packer = Packer(nothing, "s", 0, TimeRules(slack=5), passed, Settings(), 1)
    late = packer.add(pa.table({"t": [9, 10, 12, 8, 9]}))
    assert late.column("t").to_pylist() == [9, 8, 9]
    found = packer.appear()
    assert (found.accepted, found.late) == (2, 3)
    assert found.heartbeat(TimeRules(slack=5)) == 10
    assert packer.add(pa.table({"t": [20, 14, 15]})).column("t").to_pylist() == [14]
    assert packer.appear().heartbeat(TimeRules(slack=5)) == 15


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
