"""Runs with important rows: pushed while batches go on, answered by two lanes, compared as one."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.reference import Inputs
from penstock.session import Session
from tests.comparison import check_answer, interval_rows

COLUMNS = "(k BIGINT, x BIGINT, p BIGINT, t BIGINT)"
STREAMS = f"""
CREATE SINK late USING callback;
CREATE STREAM a {COLUMNS} USING memory TIMESTAMP BY t SLACK 2 PRIORITY p LATE INTO late;
CREATE STREAM b {COLUMNS} USING memory TIMESTAMP BY t PRIORITY p LATE INTO late;
CREATE STREAM r {COLUMNS} USING memory TIMESTAMP BY t SLACK 1 LATE INTO late;
CREATE STREAM s {COLUMNS} USING memory TIMESTAMP BY t LATE INTO late;
"""
PAIRS = "SELECT a.k, a.x, r.x AS z FROM a [RANGE 9] JOIN r [RANGE 12] ON a.k = r.k"
ALARMS = "SELECT a.x, b.x AS z FROM a [RANGE 9] JOIN b [RANGE 9] ON a.k = b.k"


def wait_for(condition: Callable[[], bool], seconds: float = 100) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it must hold after a while"
        time.sleep(0.005)


class LaneRun:
    """A session, the rows that were pushed, and what came of each query, by delivery.

    Each query has a callback of its own; ``checkpoint`` lets another run go on from it.
    """

    def __init__(
        self,
        spark: Any,
        queries: dict[str, str],
        declared: str = STREAMS,
        checkpoint: Path | None = None,
        before: LaneRun | None = None,
        tables: dict[str, list[Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.rows: dict[str, list[tuple[Any, int]]] = {} if before is None else before.rows
        self.got: dict[str, list[tuple[int, pa.Table]]] = {} if before is None else before.got
        self.late: list[tuple[Any, ...]] = [] if before is None else before.late
        self.tables = tables or {}
        self.ids = 0 if before is None else before.ids
        self.session = Session(
            spark,
            autostart=False,
            checkpoint=checkpoint,
            settings={"trigger": "10ms", "lane.wait": 0.2, "fsync": False} | settings,
        )
        self.session.callback("late", self._late)
        self.session.sql(declared)
        for name, text in queries.items():
            self.create(name, text)

    def __enter__(self) -> LaneRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()

    def _late(self, batch: int, rows: pa.Table) -> None:
        self.late += [tuple(row.values()) for row in rows.to_pylist()]

    def create(self, name: str, text: str) -> None:
        """Create a query with a callback of its own."""
        found = self.got.setdefault(name, [])
        if f"{name}_out" not in self.session.catalog.sinks:
            self.session.sql(f"CREATE SINK {name}_out USING callback")
            self.session.callback(f"{name}_out", lambda number, rows: found.append((number, rows)))
        self.session.sql(f"CREATE QUERY {name} INTO {name}_out AS {text}")

    @property
    def lane(self) -> Any:
        return self.session.pipeline.lane

    def push(self, stream: str, rows: Iterable[tuple[Any, ...]], partition: Any = None) -> None:
        """Push rows whose last column is their time, and remember them."""
        listed = list(rows)
        self.rows.setdefault(stream, []).extend((row, row[-1]) for row in listed)
        if partition is None:
            self.session.push(stream, listed)
        else:
            self.session.push(stream, listed, partition=partition)

    def alarm(self, stream: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Push important rows that the lane must answer: their batch waits for it."""
        turns, wait = self.lane.journal.last, self.session.config.lane_wait
        self.session.set("lane.wait", 100)
        self.push(stream, rows)
        wait_for(lambda: self.lane.journal.last > turns)
        self.session.set("lane.wait", wait)

    def row(self, key: int, time: int, priority: int = 0) -> tuple[int, int, int, int]:
        """Return a row that is like no other."""
        self.ids += 1
        return key, self.ids, priority, time

    def start(self) -> None:
        """Start, let a first batch go, and wait until the lane is there."""
        self.session.start()
        self.session.await_idle(100)
        self.ready()

    def ready(self) -> None:
        """Wait until the lane goes on from the newest batch."""
        manifest = lambda: self.session.pipeline.manifest.batch  # noqa: E731
        told = lambda: self.lane._told  # noqa: E731
        wait_for(
            lambda: self.session.check() is None and told() is not None
            and told().batch == manifest()
        )  # fmt: skip

    def play(self, seed: str, steps: int, first: int = 10) -> int:
        """Push random rows while batches go on; return a time behind all of them."""
        dice = random.Random(seed)
        now = first
        for _ in range(steps):
            for name in ("r", "s"):
                times = [now + dice.randint(0, 2) for _ in range(dice.randint(1, 4))]
                self.push(name, [self.row(dice.randint(0, 3), t) for t in sorted(times)])
            for name in ("a", "b"):
                for _ in range(dice.randint(0, 2)):
                    level = dice.choice([0, 1, 2, 9])
                    time_of = now + dice.randint(-1 if name == "a" else 0, 1)
                    self.push(name, [self.row(dice.randint(0, 3), time_of, level)])
                    time.sleep(dice.choice([0, 0, 0.02]))
            now += dice.randint(1, 3)
            time.sleep(dice.choice([0, 0, 0.05, 0.3]))
        return now + 3

    def end(self) -> None:
        """Finish all memory streams, and wait for the last answer."""
        for name, stream in self.session.catalog.streams.items():
            if isinstance(stream, StreamDef) and stream.format == "memory":
                self.session.finish(name)
        assert self.session.await_end(timeout=200)

    def inputs(self, since: int | None = None) -> Inputs:
        """What the oracle sees: all rows that were not late, from a time on."""
        late = Counter(self.late)
        kept = {}
        for name in self.session.catalog.streams:
            kept[name] = [
                (row, at)
                for row, at in self.rows.get(name, [])
                if row not in late and (since is None or at >= since)
            ]
        return Inputs(kept, self.tables)

    def answers(self, query: str) -> list[tuple[Any, ...]]:
        """Return what came of a query by both lanes."""
        return [row for _, table in self.got[query] for row in interval_rows(table)]

    def by_lane(self, query: str) -> int:
        """Return how many rows came by the lane."""
        return sum(len(table) for number, table in self.got[query] if number < 0)

    def check(self, *names: str, since: int | None = None) -> None:
        """Compare queries, or all, with the oracle; each delivery came once."""
        wrong = {}
        for handle in self.session.handles():
            if names and handle.name not in names:
                continue
            numbers = [number for number, _ in self.got[handle.name]]
            assert len(set(numbers)) == len(numbers), handle.name
            try:
                check_answer(handle.definition.plan, self.answers(handle.name), self.inputs(since))
            except AssertionError as difference:
                wrong[handle.name] = str(difference)[:300]
        assert wrong == {}
