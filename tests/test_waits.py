"""Rows that wait for time, late rows and heartbeats are told in sentences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import cql
from penstock.catalog import Catalog
from penstock.model import MIN_TIME
from penstock.physical.batch import Arrivals, run_batch
from penstock.physical.observation import Observation, Observer
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Decision, Progress, Timeline
from penstock.physical.waits import heartbeats, lost, waits
from penstock.runs.manifest import Manifest
from penstock.runs.state import MemoryStorage
from penstock.session import Session
from penstock.settings import Settings
from penstock.testing import to_table
from tests.clock import Clock

COUNT = "SELECT k, COUNT(*) AS n FROM s [RANGE 100] GROUP BY k"
BOTH = "SELECT s.k FROM s [RANGE 100] JOIN r [RANGE 100] ON s.k = r.k"


class Pipe:
    """Streams ``s`` and ``r`` with some clauses, read by a query, observed batch by batch."""

    def __init__(self, query: str = COUNT, s: str = "", r: str = "", kind: str = "BIGINT") -> None:
        self.catalog = Catalog()
        for name, clauses in (("s", s), ("r", r)):
            text = (
                f"CREATE STREAM {name} (k STRING, t {kind}) USING memory TIMESTAMP BY t {clauses}"
            )
            (parsed,) = cql.parse_script(text)
            statement: Any = cql.bind(parsed, self.catalog)
            self.catalog.add(statement.definition)
        self.streams = self.catalog.streams
        self.plan = plan([Query("q", cql.bind_query(query, self.catalog))], Settings(), {})
        self.manifest = Manifest(shards=2, states=[{}, {}])
        self.observer = Observer(self.manifest, lambda name: self.streams[name].timing)
        self.storage = MemoryStorage()

    def batch(
        self,
        fed: dict[str, Iterable[tuple[str, int]]] | None = None,
        final: tuple[str, ...] = (),
        **decisions: Decision,
    ) -> Observation:
        """Let rows come: by stream, or by stream and partition as ``s/1``."""
        parts: dict[str, list[tuple[str, Any]]] = {name: [] for name in self.streams}
        for key, rows in (fed or {}).items():
            name, _, partition = key.partition("/")
            parts[name].append((partition, to_table(self.streams[name].schema, list(rows))))
        read = {source.name for n in self.plan.nodes if (source := n.source) is not None}
        arrivals = {
            name: Arrivals(parts[name], self.streams[name].time, final=name in final)
            for name in sorted(read)
        }
        known = {name: Progress.of(told) for name, told in self.manifest.progress.items()}
        rules = {name: self.streams[name].timing for name in read}
        timeline = Timeline(known, rules, decisions, self.plan.stream_groups)
        outcome, _ = run_batch(
            self.plan, arrivals, timeline, self.manifest.states, self.storage, Settings()
        )
        self.manifest = Manifest(
            batch=self.manifest.batch + 1,
            shards=2,
            progress={n: found.describe() for n, found in timeline.after(outcome.told).items()},
            states=outcome.states,
        )
        return self.observer.observe(self.manifest, self.plan, outcome, 0.1)

    def waits(self) -> str | None:
        return waits(self.observer.newest, "q", self.streams)


def test_the_newest_row_waits_for_a_later_one() -> None:
    pipe = Pipe()
    assert pipe.waits() is None
    pipe.batch({"s": [("a", 5)]})
    assert pipe.waits() == (
        "1 row waits until time passes 5: no later row has come; "
        "IDLE AFTER or session.heartbeat() would release it"
    )
    pipe.batch({"s": [("a", 9), ("b", 9), ("b", 9)]})
    assert (pipe.waits() or "").startswith("3 rows wait until time passes 9: no later row has")
    pipe.batch(final=("s",))
    assert pipe.waits() is None, "a stream that has ended waits for nothing"


def test_times_are_shown_as_people_read_them() -> None:
    pipe = Pipe(kind="TIMESTAMP")
    pipe.batch({"s": [("a", 1_700_000_000_000_000)]})
    assert pipe.waits() == (
        "1 row waits until time passes 2023-11-14 22:13:20: no later row has come; "
        "IDLE AFTER or HEARTBEAT FROM CLOCK would release it"
    )


def test_what_is_declared_is_what_releases() -> None:
    pipe = Pipe(s="SLACK 3 IDLE AFTER 5 SECONDS")
    pipe.batch({"s": [("a", 7), ("a", 8)]})
    assert pipe.waits() == (
        "2 rows wait until time passes 8: no row after 11 has come (SLACK 3); "
        "after 5 SECONDS of silence the stream is passed over"
    )
    pipe.batch(s=Decision(idle=frozenset({""})))
    assert pipe.waits() is None
    clock = Pipe(s="HEARTBEAT FROM CLOCK LAG 2 SECONDS", kind="TIMESTAMP")
    clock.batch({"s": [("a", 1_700_000_000_000_000)]})
    assert (clock.waits() or "").endswith("HEARTBEAT FROM CLOCK releases it at 2023-11-14 22:13:22")
    auto = Pipe(s="SLACK AUTO")
    auto.batch({"s": [("a", 7)]})
    assert "too few rows have come for SLACK AUTO" in (auto.waits() or "")
    auto.batch({"s": [("a", t - t % 2) for t in range(8, 48)]})
    slack = auto.observer.newest.stream("s").slack
    assert slack is not None
    assert f"(SLACK AUTO, now {slack})" in (auto.waits() or "") or slack == 0


def test_a_pulse_waits_for_more_than_silence() -> None:
    pipe = Pipe(
        "SELECT k, COUNT(*) AS n FROM s [RANGE 10 SLIDE 10] GROUP BY k", s="IDLE AFTER 5 SECONDS"
    )
    pipe.batch({"s": [("a", 7)]})
    assert pipe.waits() == (
        "1 row waits until time passes 10: no later row has come; "
        "session.heartbeat() would release it"
    )
    pipe.batch(s=Decision({None: 11}))
    assert pipe.waits() is None


def test_the_stream_and_the_partition_that_hold_back_are_named() -> None:
    pipe = Pipe(BOTH, r="STEP 10")
    pipe.batch({"s": [("a", 5)], "r": [("a", 50)]})
    assert pipe.waits() == (
        "2 rows wait until stream s passes 50: no later row has come; "
        "session.heartbeat() would release them; stream r is not read further meanwhile (STEP 10)"
    )
    pipe.batch({"s/1": [("a", 80)], "s/2": [("b", 60)]})
    assert ": the unnamed partition of stream s has come to 5 only" in (pipe.waits() or "")
    silent = Pipe(BOTH)
    silent.batch({"r": [("a", 50)]})
    assert (silent.waits() or "").startswith(
        "1 row waits until stream s passes 50: nothing has come of stream s yet; "
    )


def test_answers_that_leave_at_once_do_not_wait() -> None:
    pipe = Pipe("ISTREAM (SELECT k FROM s)")
    pipe.batch({"s": [("a", 5)]})
    assert pipe.waits() is None


def test_partitions_are_observed() -> None:
    pipe = Pipe(s="SLACK 1 IDLE AFTER 5 SECONDS")
    seen = pipe.batch({"s/1": [("a", 9), ("a", 5)], "s/2": [("b", 4)]})
    found = seen.stream("s").partitions
    assert {name: (p.rows, p.late, p.newest, p.heartbeat) for name, p in found.items()} == {
        "1": (2, 1, 9, 8),
        "2": (1, 0, 4, 3),
    }
    assert seen.stream("s").heartbeat == 3
    assert "partition 2 of stream s has come to 3 only" in (pipe.waits() or "")
    seen = pipe.batch(s=Decision(idle=frozenset({"2"})))
    assert [p.idle for p in seen.stream("s").partitions.values()] == [False, True]
    assert heartbeats(pipe.streams["s"], seen.stream("s")) == (
        "heartbeats of s: SLACK 1, IDLE AFTER 5 SECONDS, 2 partitions, 1 idle"
    )


def test_where_heartbeats_come_from() -> None:
    clauses = "SLACK AUTO KEEPING 99 % IDLE AFTER 5 SECONDS PUNCTUATION WHEN k = 'end'"
    pipe = Pipe(s=clauses)
    declared = (
        "heartbeats of s: SLACK AUTO KEEPING 99 %{}, IDLE AFTER 5 SECONDS, "
        "PUNCTUATION WHEN k = 'end'{}"
    )
    stream = pipe.streams["s"]
    assert heartbeats(stream) == declared.format("", "")
    seen = pipe.batch({"s": [("a", 5)]})
    assert heartbeats(stream, seen.stream("s")) == declared.format(
        " (not known yet)", ", 1 partition"
    )
    seen = pipe.batch({"s": [("a", 5 + i) for i in range(40)]})
    assert " (now 0)" in heartbeats(stream, seen.stream("s"))
    assert heartbeats(stream, pipe.batch(final=("s",)).stream("s")).endswith(", ended")


def test_rows_that_were_dropped_are_told() -> None:
    pipe = Pipe(s="SLACK 2")
    assert list(lost(pipe.observer.newest, pipe.streams)) == []
    seen = pipe.batch({"s": [("a", 9), ("a", 5), ("a", 6), ("a", 7)]})
    told = "of stream s came too late and were dropped: SLACK 2; declare a larger SLACK, SLACK AUTO"
    assert list(lost(seen, pipe.streams)) == [f"2 rows {told} or LATE INTO a sink"]
    later = Observer(pipe.manifest).newest
    assert list(lost(later, pipe.streams)) == [], "they were told by the run that dropped them"
    aside = {"s": replace(pipe.streams["s"], late="aside")}
    assert list(lost(seen, aside)) == [], "a sink has them"


@pytest.mark.spark
def test_a_session_says_what_waits_and_what_was_late(spark: Any, clock: Clock) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        count = session.sql(
            """
            CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t SLACK 1;
            CREATE STREAM unread (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE QUERY passed AS ISTREAM (SELECT k, t FROM s [RANGE 5]);
            CREATE QUERY counted AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k;
            """
        )
        session.push("s", [("a", 5), ("a", 3), ("b", 7)])
        text = (
            "1 row waits until time passes 7: no row after 8 has come (SLACK 1); "
            "IDLE AFTER or session.heartbeat() would release it"
        )
        assert session.await_idle() == [f"query counted: {text}"]
        assert session.query("passed").rows().column("k").to_pylist() == ["a", "b"]
        assert (count.status()["waits"], count.status()["late"]) == (text, 1)
        assert count.status()["streams"]["s"]["partitions"][""]["late"] == 1
        later = session.sql("CREATE QUERY later AS SELECT k FROM s [ROWS 3]")
        session.push("s", [("a", 2), ("a", 9)])
        session.await_idle()
        assert (count.status()["late"], later.status()["late"]) == (2, 1)
        queries = {row["query"]: row for row in session.sql("SHOW QUERIES").to_pylist()}
        assert queries["counted"]["late"] == 2
        assert "until time passes 9" in queries["counted"]["waits"]
        assert queries["passed"]["waits"] is None
        streams = {row["stream"]: row for row in session.sql("SHOW STREAMS").to_pylist()}
        assert streams["s"] == {
            "stream": "s",
            "format": "memory",
            "rows": 5,
            "late": 2,
            "rejected": 0,
            "heartbeat": "8",
            "newest": "9",
            "partitions": 1,
            "slack": "1",
        }
        assert (streams["unread"]["rows"], streams["unread"]["slack"]) == (None, "0")
        assert "heartbeats of s: SLACK 1, 1 partition" in count.explain("physical")
        session.heartbeat("s", 10)
        session.await_idle()
        assert session.waits() == []
        assert count.status()["heartbeat"] == 10 > MIN_TIME


@pytest.mark.spark
def test_a_run_that_dropped_rows_says_so_in_its_last_line(tmp_path: Path) -> None:
    rows = [f'{{"k": "a", "t": {t}}}' for t in (5, 9, 3, 4, 10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    script = tmp_path / "script.sql"
    script.write_text(
        f"""
        CREATE STREAM s (k STRING, t BIGINT)
          USING replay OPTIONS (path '{tmp_path}/rows.jsonl') TIMESTAMP BY t;
        CREATE SINK out USING jsonl OPTIONS (path '{tmp_path}/out');
        CREATE QUERY q INTO out AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k;
        """
    )
    program = Path(sys.executable).parent / "penstock"
    done = subprocess.run(
        [program, "run", script], capture_output=True, text=True, check=True, timeout=280
    )
    *_, state, last = done.stderr.strip().splitlines()
    assert last == (
        "2 rows of stream s came too late and were dropped: SLACK 0; "
        "declare a larger SLACK, SLACK AUTO or LATE INTO a sink"
    )
    assert state.endswith("late s=2")
