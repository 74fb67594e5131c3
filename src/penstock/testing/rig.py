"""The rig: a CQL script under test. Rows in, time moved, exact answers asserted.

Two relations are compared by their snapshots at every instant below the heartbeat, so how intervals
were cut on the way is free; bags are compared as bags, copies counted.  A difference is told as a
sentence, with what is missing and what is unexpected side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, QueryError
from penstock.model import INF, MIN_TIME, Schema
from penstock.reference import Steps, from_intervals, relation, to_intervals
from penstock.settings import SETTINGS
from penstock.testing.differences import alike, apart, sentence
from penstock.testing.machine import Fed, Machine, RigQuery, Row
from penstock.testing.times import instant, meant, plain, time_text, value_text

CUTS = ("as fed", "in one batch", "row by row")
"""How a replay cuts rows into micro-batches."""

MOST_BATCHES = 200
"""Most micro-batches of a replay row by row; with more rows than that, several rows are one."""

HOSTILE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as fed", {"rules": False}),
    ("row by row", {"merge.strategy": "always"}),
    ("row by row", {"merge.strategy": "never", "panes": False}),
    ("in one batch", {"block.rows": 2, "join.buffer": "output"}),
    ("row by row", {"join.method": "tpmj", "join.memory": 1}),
    ("as fed", {"join.index": False, "join.multiway": "never"}),
)
"""Settings that may change how the engine works, never what it answers.

Each is tried with the batches under which it has most to do: many runs, or many rows at once.
"""


class Rig(Machine):
    """A script under test. Feed rows, move time, assert exact answers.

    Streams are fed by hand, whatever ``USING`` says.  ``tables`` are the rows of the tables by
    name.  ``settings`` are those of a session; ``shards`` and ``batch_rows``, the most rows of a
    micro-batch, change no answer.  A time of day such as ``'10:00:05'`` is meant on ``day``.

        rig = Rig("CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t; "
                  "CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k")
        rig.feed("s", [("a", 1), ("a", 3)])
        rig.end()
        rig.assert_intervals("q", [("a", 1, 1, 3), ("a", 2, 3, 6), ("a", 1, 6, 8)])
    """

    # -- assertions --------------------------------------------------------------------------------

    def assert_intervals(
        self, query: str, expected: Iterable[Any], *, exact: bool = False, within: float = 0.0
    ) -> None:
        """Assert what a relation holds and when: rows ``(*values, start, end)``.

        Relations are compared at every instant below the heartbeat (after `end`: at every instant),
        however their intervals are cut; with ``exact`` the rows that were delivered are compared,
        cuts and all.  ``within`` is how far floating-point numbers may be from those expected.
        """
        __tracebackhide__ = True
        found = self._relation(query)
        wanted = [
            (
                self._values(found, row, 2),
                instant(row[-2], found.stamps, self._day, MIN_TIME),
                instant(row[-1], found.stamps, self._day),
            )
            for row in map(tuple, expected)
        ]
        if exact:
            delivered = self._engine.answers.get(f"{found.name} intervals", [])
            has = [(tuple(map(plain, v)), s, e) for v, s, e in delivered]
            self._compare(found, has, wanted, within, self._interval_text(found))
        else:
            true = self._known(found, from_intervals(wanted))
            self._compare_relations(found, self._steps(found), true, within)

    def assert_view(
        self, query: str, expected: Iterable[Any], *, at: Any = None, within: float = 0.0
    ) -> None:
        """Assert the rows that a relation holds at an instant, by default the newest known one."""
        __tracebackhide__ = True
        found = self._relation(query)
        wanted = [self._values(found, tuple(row), 0) for row in expected]
        has = self._snapshot(found, at).elements()
        when = f" at {time_text(self._as_of(found, at), found.stamps)}"
        kinds = found.node.schema.types
        self._compare(found, has, wanted, within, lambda row: _values_text(row, kinds), when)

    def assert_log(self, query: str, expected: Iterable[Any], *, within: float = 0.0) -> None:
        """Assert the change log so far: rows ``(*values, time, sign)``, +1 in, -1 out."""
        __tracebackhide__ = True
        found = self._relation(query)
        wanted = []
        for row in map(tuple, expected):
            time = instant(row[-2], found.stamps, self._day, MIN_TIME)
            wanted.append(
                (self._values(found, row, 2), time, {"+": 1, "-": -1}.get(row[-1], row[-1]))
            )
        log = self._engine.answers.get(f"{found.name} log", [])
        has = [(tuple(map(plain, v[:-1])), t, v[-1]) for v, t, _ in log]
        kinds = found.node.schema.types

        def text(row: Row) -> str:
            sign = "+" if row[2] == 1 else "-" if row[2] == -1 else f"{row[2]!r}"
            return f"@{time_text(row[1], found.stamps)} {sign} {_values_text(row[0], kinds)}"

        self._compare(found, has, wanted, within, text)

    def assert_stream(self, query: str, expected: Iterable[Any], *, within: float = 0.0) -> None:
        """Assert the rows of a stream so far: rows ``(*values, time)``."""
        __tracebackhide__ = True
        found = self._query(query)
        if found.mode != "stream":
            raise QueryError(
                f"'{query}' must be a stream, such as ISTREAM (..), to be asserted as one, but it "
                f"is a relation; use assert_intervals, assert_view or assert_log"
            )
        wanted = [
            (self._values(found, row, 1), instant(row[-1], found.stamps, self._day))
            for row in map(tuple, expected)
        ]
        has = [(tuple(map(plain, v)), t) for v, t, _ in self._stream_rows(found)]
        self._compare(found, has, wanted, within, self._element_text(found))

    def assert_oracle(self, *queries: str, within: float = 1e-9) -> None:
        """Assert that queries, all if none is named, answer as the reference does."""
        __tracebackhide__ = True
        for name in queries or [q.name for q in self._queries()]:
            found = self._query(name)
            if found.mode == "stream":
                has = [(tuple(map(plain, v)), t) for v, t, _ in self._stream_rows(found)]
                wanted = [(v, t) for t, v in self._oracle_stream(found).elements()]
                self._compare(found, has, wanted, within, self._element_text(found), " (oracle)")
                continue
            true = self._known(found, relation(*self._meaning(found)))
            self._compare_relations(found, self._steps(found), true, within, " (oracle)")

    # -- the same under other settings -------------------------------------------------------------

    def under_all_settings(self, *more: Mapping[str, Any], within: float = 0.0) -> int:
        """Replay everything so far under hostile settings and assert the same answers.

        Every way to cut the rows into batches, 1 and 3 shards, every method of keeping lifetimes,
        and settings that change how the engine works.  ``more`` are settings of your own to try.
        Returns how many replays there were.
        """
        __tracebackhide__ = True
        count = 0
        for cuts, shards, settings in _variants(more):
            other = self._replayed(cuts, shards, self._settings | settings)
            named = [f"{k}={v}" for k, v in settings.items()]
            label = ", ".join([cuts, f"{shards} shard{'s' if shards > 1 else ''}", *named])
            for query in self._queries():
                twin = other._query(query.name)
                same = self._leaves_at_once(query) == other._leaves_at_once(twin)
                until = INF if same else self._heartbeat(query)
                if query.mode != "stream":
                    has, mine = (
                        [step for step in rig._steps(q) if step[0] < until]
                        for rig, q in ((other, twin), (self, query))
                    )
                    self._compare_relations(query, has, mine, within, f" ({label})")
                    continue
                rows, own = (
                    [(tuple(map(plain, v)), t) for v, t, _ in rig._stream_rows(q) if t < until]
                    for rig, q in ((other, twin), (self, query))
                )
                self._compare(query, rows, own, within, self._element_text(query), f" ({label})")
            count += 1
        return count

    def _replayed(self, cuts: str, shards: int, settings: Mapping[str, Any]) -> Rig:
        """Return a new rig to which all that happened here has happened, cut in another way."""
        rig = Rig(tables=self._tables, shards=shards, settings=settings, day=self._day)
        for kind, what in _recut(self._events, cuts):
            if kind == "sql":
                rig.sql(what)
            elif kind == "feed":
                rig._feed(what)
            elif kind == "decide":
                rig._decide(what)
            else:
                rig.end(*sorted(what))
        return rig

    # -- comparing ---------------------------------------------------------------------------------

    def _values(self, query: RigQuery, row: Row, times: int) -> Row:
        schema: Schema = query.node.schema
        if len(row) != len(schema) + times:
            more = ("", " and its time", " and two more, as the assertion says")[times]
            raise DataError(
                f"an expected row of '{query.name}' must have {len(schema)} values "
                f"({', '.join(schema.names)}){more}, got {row!r}"
            )
        pairs = zip(row, schema, strict=False)
        return tuple(meant(v, f.type, self._day, f"the column '{f.name}'") for v, f in pairs)

    def _interval_text(self, query: RigQuery) -> Any:
        kinds, stamps = query.node.schema.types, query.stamps

        def text(row: Row) -> str:
            times = f"[{time_text(row[1], stamps)}, {time_text(row[2], stamps)})"
            return f"{times} {_values_text(row[0], kinds)}"

        return text

    def _element_text(self, query: RigQuery) -> Any:
        kinds, stamps = query.node.schema.types, query.stamps
        return lambda row: f"@{time_text(row[1], stamps)} {_values_text(row[0], kinds)}"

    def _compare_relations(
        self, query: RigQuery, found: Steps, expected: Steps, within: float, when: str = ""
    ) -> None:
        """Compare at every instant; what differs is told as the longest intervals."""
        __tracebackhide__ = True
        if within > 0 and alike(found, expected, within):
            return
        text = self._interval_text(query)
        self._compare(query, to_intervals(found), to_intervals(expected), 0.0, text, when)

    def _compare(
        self,
        query: RigQuery,
        found: Iterable[Row],
        expected: Iterable[Row],
        within: float,
        text: Any,
        when: str = "",
    ) -> None:
        __tracebackhide__ = True
        missing, unexpected = apart(found, expected, within)
        if missing or unexpected:
            until = self._until(query)
            known = "" if until == INF else f", known below {time_text(until, query.stamps)}"
            what = f"the answer of '{query.name}'{when}{known} is not as expected"
            raise AssertionError(sentence(what, missing, unexpected, text))


def _values_text(row: Row, kinds: Iterable[pa.DataType]) -> str:
    return ", ".join(value_text(v, kind) for v, kind in zip(row, kinds, strict=True))


def _variants(more: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    methods = next((s.choices for s in SETTINGS if s.name == "lifetime"), ())
    lifetimes: list[dict[str, Any]] = [{"lifetime": m} for m in methods] or [{}]
    for cuts in CUTS:
        for shards in (1, 3):
            for lifetime in lifetimes:
                yield cuts, shards, dict(lifetime)
    for cuts, settings in (*HOSTILE, *(("row by row", own) for own in more)):
        yield cuts, 1, dict(settings)


def _recut(events: Iterable[tuple[str, Any]], cuts: str) -> Iterator[tuple[str, Any]]:
    """Cut the rows between two other events anew.

    That a source partition appears, or wakes from a silence, is an event: its rows are then judged
    by what its stream has promised before.
    """
    waiting: list[Fed] = []
    awake: set[tuple[str, str]] = set()

    def release() -> Iterator[tuple[str, Any]]:
        if cuts == "as fed":
            yield from (("feed", [fed]) for fed in waiting)
        elif cuts == "in one batch" and waiting:
            yield "feed", list(waiting)
        elif waiting:
            rows = sum(table.num_rows for _, fed in waiting for table in fed.values())
            size = -(-rows // MOST_BATCHES) or 1
            for partition, fed in waiting:
                for name, table in fed.items():
                    for first in range(0, table.num_rows, size):
                        yield "feed", [(partition, {name: table.slice(first, size)})]
        waiting.clear()

    for kind, what in events:
        if kind != "feed":
            yield from release()
            if kind == "decide":
                silent = {name for name, decision in what.items() if decision.idle}
                awake = {known for known in awake if known[0] not in silent}
            yield kind, what
            continue
        for partition, fed in what:
            known = {(name, partition) for name in fed}
            if not known <= awake:
                yield from release()
            awake |= known
            waiting.append((partition, fed))
    yield from release()


def check(
    script: str,
    feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    expected: Mapping[str, Iterable[Any]] | None = None,
    *,
    tables: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    day: str = "1970-01-01",
    within: float = 0.0,
) -> Rig:
    """Run a script to its end and assert everything about its answers.

    ``feeds`` are rows by stream, or a list of such batches.  ``expected`` are, by query, rows
    ``(*values, start, end)`` of a relation and ``(*values, time)`` of a stream.  The answers must
    also be those of the oracle, and the same under all settings.
    """
    __tracebackhide__ = True
    rig = Rig(script, tables=tables, settings=settings, day=day)
    for batch in [feeds] if isinstance(feeds, Mapping) else feeds:
        rig.feed(batch)
    rig.end()
    for query, rows in (expected or {}).items():
        if rig._query(query).mode == "stream":
            rig.assert_stream(query, rows, within=within)
        else:
            rig.assert_intervals(query, rows, within=within)
    rig.assert_oracle(within=max(within, 1e-9))
    rig.under_all_settings()
    return rig
