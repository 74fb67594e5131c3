"""A CQL script that runs without Spark: fed by hand, its answers measured at every instant.

The script goes through the same parser, binder, optimizer, planner and fragments as on Spark; only
the sources and sinks are taken away.  Nothing waits: a `feed` is a micro-batch, and when it returns
it has happened.

A relation is measured by its change log, which tells everything about the instants below the
query's heartbeat ``W`` and nothing about those after it.  So two answers are compared as relations,
by their snapshots at every instant below ``W``; how intervals were cut on the way is free.  An
answer whose rows leave at once is compared with all that came, also with rows at or after ``W``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock import algebra, cql
from penstock.algebra import Node
from penstock.catalog import Catalog, QueryDef, StreamDef, TableDef
from penstock.cql.binding import statements
from penstock.errors import DataError, NotSupportedError, QueryError, suggest
from penstock.model import INF, MIN_TIME, TIMESTAMP
from penstock.operators.output import OutputSpec
from penstock.optimizer.nameless import canonical
from penstock.physical.book import BookedQuery
from penstock.physical.early_plan import early_plan
from penstock.physical.planner import Query
from penstock.physical.progress import Decision, newest_times
from penstock.reference import (
    Inputs,
    Judge,
    Steps,
    relation,
    snapshot_at,
    stream,
    to_intervals,
)
from penstock.settings import Settings
from penstock.sinks import changes_of
from penstock.sources.found_schemas import found_schema
from penstock.sources.links import check_partition
from penstock.sources.pushed import as_table, check_times
from penstock.testing.eras import elements_since, with_eras
from penstock.testing.local import LocalEngine
from penstock.testing.times import (
    instant,
    plain,
    plain_rows,
    readable,
    shown_time,
    shown_values,
    time_text,
)
from penstock.timing import TimeRules

Row = tuple[Any, ...]
Tables = dict[str, pa.Table]
Fed = tuple[str, Tables]
"""A source partition, and the rows that it brings, by stream."""


@dataclass
class RigQuery(BookedQuery):
    """A query of a rig; ``stamps``: its time is in timestamps, not in integers."""

    stamps: bool = False
    seen: Mapping[str, int] = field(default_factory=dict)
    """Of a text that answers rows as they come: how many rows the text before had answered."""

    @property
    def modes(self) -> tuple[str, ...]:
        """All ways in which it is delivered here: its own, and those that are measured."""
        if self.mode == "stream":
            return ("stream",)
        return ("log", "intervals", "view") if self.mode == "view" else ("log", "intervals")

    def outputs(self, node: Node, rules: bool) -> list[Query]:
        """Return one output for each mode, all of one plan."""
        (one,) = super().outputs(node, rules)
        return [replace(one, name=f"{self.name} {mode}", mode=mode) for mode in self.modes]


class Machine:
    """A script with its streams fed by hand; see `penstock.testing.Rig`."""

    def __init__(
        self,
        script: str = "",
        *,
        tables: Mapping[str, Any] | None = None,
        shards: int | None = None,
        settings: Mapping[str, Any] | None = None,
        batch_rows: int | None = None,
        day: str = "1970-01-01",
    ) -> None:
        self.catalog = Catalog(schemas=found_schema)
        self._given = {name.lower(): rows for name, rows in (tables or {}).items()}
        self._settings = dict(settings or {})
        self._shards = shards or Settings(settings).shards or 1
        self._batch_rows = batch_rows
        self._day = day
        self._rules: dict[str, TimeRules] = {}
        self._tables: Tables = {}
        self._events: list[tuple[str, Any]] = []
        self._rejected: dict[str, list[Row]] = {}
        self._changed = False
        self._engine = LocalEngine(
            {}, self._tables, shards=self._shards, settings=settings, rules=self._rules
        )
        self.sql(script)

    # -- the script --------------------------------------------------------------------------------

    def sql(self, text: str) -> None:
        """Run statements, also later ones: a query sees what is fed after it was created.

        SHOW, DESCRIBE and EXPLAIN are passed over.
        """
        for parsed in cql.parse_script(text) if text.strip() else ():
            self._execute(cql.bind(parsed, self.catalog))
        self._events.append(("sql", text))

    def _execute(self, statement: statements.Statement) -> None:
        match statement:
            case statements.Create(definition, replaces=True):
                self._create(definition, replaces=True)
            case statements.Create(definition, if_not_exists):
                kind = type(definition).__name__.removesuffix("Def").lower()
                if not (if_not_exists and definition.name.lower() in self.catalog.of_kind(kind)):
                    self._create(definition)
            case statements.Drop(kind, name, if_exists):
                if if_exists and name.lower() not in self.catalog.of_kind(kind):
                    return
                self.catalog.remove(kind, name)
                if kind == "query":
                    self._engine.book.drop(self._named(name).name)
                    self._changed = True
            case statements.Change(setting, value):
                config = self._engine.config
                running = bool(self._engine.book.queries)
                given = config.changed(setting, value) if running else config.but({setting: value})
                self._engine.config = self._engine.book.config = given
            case statements.Insert(stream, rows):
                self.feed(stream, rows)
            case statements.Show() | statements.Describe() | statements.Explain():
                return
            case _:
                raise NotSupportedError(
                    f"a rig runs CREATE, DROP, SET and INSERT, but not "
                    f"{type(statement).__name__.upper()}; give a query a name with CREATE QUERY"
                )

    def _create(self, definition: Any, replaces: bool = False) -> None:
        if isinstance(definition, QueryDef):
            before = self.catalog.queries.get(definition.name.lower()) if replaces else None
            definition = replace(definition, name=before.name) if before else definition
            self._create_query(definition)
        if replaces:
            self.catalog.replace(definition)
        else:
            self.catalog.add(definition)
        if isinstance(definition, StreamDef):
            self._rules[definition.name] = definition.timing
        elif isinstance(definition, TableDef) and definition.name.lower() in self._given:
            rows = readable(self._given[definition.name.lower()], definition.schema, self._day)
            self._tables[definition.name] = as_table(rows, definition.schema)

    def _create_query(self, definition: QueryDef) -> None:
        sink = None
        if definition.sink is not None:
            sink = self.catalog.get("sink", definition.sink)
        if definition.early is not None:
            early_plan(definition.plan)  # says why it cannot be
        streams = algebra.streams_of(definition.plan)
        for node in algebra.walk(definition.plan):
            if not isinstance(node, algebra.TableScan) or node.rows is not None:
                continue
            if node.table not in self._tables:
                raise QueryError(
                    f"the rows of table '{node.table}' must be given to the rig: "
                    f"tables={{'{node.table}': [...]}}"
                )
        mode = "view" if sink is None else changes_of(sink)
        mode = "stream" if algebra.is_stream(definition.plan) else mode
        one: StreamDef = self.catalog.get("stream", min(streams))
        stamps = bool(one.schema[one.time].type == TIMESTAMP)
        query = RigQuery(definition.name, definition.plan, mode, stamps=stamps)
        query.parts_close = any(
            self.catalog.get("stream", name).timing.closing is not None for name in streams
        )
        self._engine.book.add(query)
        if query.before is not None:
            self._begin_measuring(query)
        self._engine.announce(definition.plan)
        self._changed = True

    def _begin_measuring(self, query: RigQuery) -> None:
        """Measure a text that takes the place of another from now on."""
        for mode in ("log", "intervals", "view", "stream"):
            self._engine.answers.pop(f"{query.name} {mode}", None)
            self._engine.views.pop(f"{query.name} {mode}", None)
        if query.is_row_by_row:
            kept = self._judge().kept
            query.seen = {name: len(kept.get(name, ())) for name in query.streams}

    def _replan(self) -> None:
        self._changed = False
        self._engine.replan()

    # -- rows and time -----------------------------------------------------------------------------

    def feed(
        self, stream: str | Mapping[str, Any], rows: Any = None, partition: int | None = None
    ) -> None:
        """Feed rows of a stream, or of several (a dict), as one micro-batch.

        Rows are tuples or dicts in a list, an Arrow table or a pandas frame.  ``partition`` is the
        source partition that brings them, a number; None: there is only one.
        """
        given = {stream: rows} if isinstance(stream, str) else stream
        fed: Tables = {}
        for name, some in given.items():
            definition = self._stream(name)
            check_partition(partition, definition.timing.partitions)
            fed[definition.name] = self._accepted_types(definition, some)
        self._feed([("" if partition is None else str(partition), fed)])

    def _feed(self, given: Sequence[Fed]) -> None:
        """Feed rows of source partitions, in order, as one micro-batch."""
        self._events.append(("feed", list(given)))
        most = max((t.num_rows for _, fed in given for t in fed.values()), default=0)
        size = self._batch_rows or max(1, most)
        for first in range(0, max(1, most), size):
            parts: dict[str, list[tuple[str, pa.Table]]] = {}
            for partition, fed in given:
                for name, table in fed.items():
                    parts.setdefault(name, []).append((partition, table.slice(first, size)))
            self._batch(parts)

    def heartbeat(self, stream: str, time: Any, partition: int | None = None) -> None:
        """Promise that nothing of a stream before ``time`` comes any more; such rows are late.

        With ``partition`` it is a promise of that source partition alone.
        """
        part = None if partition is None else str(partition)
        self._decide({self._stream(stream).name: Decision({part: self._instant(stream, time)})})

    def advance(self, time: Any) -> None:
        """Move time on: nothing of any stream before ``time`` comes any more."""
        streams = sorted(self._engine.streams)
        self._decide({name: Decision({None: self._instant(name, time)}) for name in streams})

    def clock(self, time: Any) -> None:
        """Move the clock on the wall: streams with HEARTBEAT FROM CLOCK follow it at their lag."""
        found = {}
        for name in sorted(self._engine.streams):
            lag = self.catalog.get("stream", name).timing.clock_lag
            if lag is not None:
                found[name] = Decision({None: self._instant(name, time) - lag})
        if not found:
            raise QueryError(
                "some stream must be declared HEARTBEAT FROM CLOCK to follow the clock, but none "
                "of those that are read is; use heartbeat() or advance()"
            )
        self._decide(found)

    def idle(self, stream: str, partition: int | None = None) -> None:
        """Let a stream with IDLE AFTER, or one of its partitions, be silent for that long."""
        definition = self._stream(stream)
        if definition.timing.idle_after is None:
            raise QueryError(
                f"a stream must be declared IDLE AFTER to be passed over, but '{stream}' is not"
            )
        known = self._engine.progress[definition.name]
        parts: set[str | None] = {*known.partitions} if partition is None else {str(partition)}
        if partition is None and (not parts or known.is_absent(definition.timing)):
            parts.add(None)
        self._decide({definition.name: Decision(idle=frozenset(parts))})

    def end(self, *streams: str) -> None:
        """End streams, all if none is named: everything becomes final."""
        names = {self._stream(s).name for s in streams} or set(self._engine.streams)
        self._events.append(("end", names))
        self._batch({}, final=names)

    def _instant(self, stream: str, time: Any) -> int:
        definition: StreamDef = self.catalog.get("stream", stream)
        found = instant(time, definition.schema[definition.time].type == TIMESTAMP, self._day)
        if not MIN_TIME < found <= INF:
            raise DataError(f"a time must fit 64 bits, got {time!r}")
        return found

    def _decide(self, decisions: Mapping[str, Decision]) -> None:
        self._events.append(("decide", decisions))
        self._batch({}, decisions=decisions)

    def _batch(
        self,
        rows: Mapping[str, Sequence[tuple[str, pa.Table]]],
        final: Iterable[str] = (),
        decisions: Mapping[str, Decision] | None = None,
    ) -> None:
        if self._changed:
            self._replan()
        self._engine.batch_of(rows, frozenset(final), decisions)

    def _stream(self, name: str) -> StreamDef:
        definition: StreamDef = self.catalog.get("stream", name)
        if definition.name not in self._engine.streams:
            raise QueryError(
                f"a stream must be read by a query before it is fed, but no query reads '{name}'; "
                f"{suggest(name, self._engine.streams)}"
            )
        if self._engine.progress[definition.name].final:
            raise DataError(f"the stream '{name}' must not have ended to go on, but it has")
        return definition

    def _accepted_types(self, definition: StreamDef, rows: Any) -> pa.Table:
        """Return rows of the declared types; others are an error or go to the dead letters."""
        schema = definition.schema
        try:
            table = as_table(readable(rows, schema, self._day), schema)
            check_times(table, definition)
            return table
        except DataError:
            if definition.deadletter is None or not isinstance(rows, list):
                raise
        good = []
        for row in rows:
            try:
                table = as_table(readable([row], schema, self._day), schema)
                check_times(table, definition)
                good.append(table)
            except DataError as error:
                self._rejected.setdefault(definition.name, []).append((str(error), row))
        return pa.concat_tables(good) if good else as_table([], schema)

    # -- what came out -----------------------------------------------------------------------------

    def rows(self, query: str) -> list[Row]:
        """Return what the query's sink holds, in order of time.

        The values, then for intervals start and end, for a log time and sign, for a stream its
        time; a view is the newest whole snapshot.  Times are datetimes, or integers as the streams
        count them; None is "for ever".
        """
        found = self._query(query)
        key = f"{found.name} {found.mode}"
        if found.mode == "view":
            return list(self._engine.views.get(key, []))
        answers = sorted(self._engine.answers.get(key, []), key=lambda row: row[1:])
        if found.mode == "log":
            return [(*v[:-1], shown_time(t, found.stamps), v[-1]) for v, t, _ in answers]
        if found.mode == "stream":
            return [(*v, shown_time(t, found.stamps)) for v, t, _ in answers]
        return [
            (*v, shown_time(s, found.stamps), shown_time(e, found.stamps)) for v, s, e in answers
        ]

    def intervals(self, query: str) -> list[Row]:
        """Return what is known of a relation so far, as the longest intervals.

        The end of a row that has not left is None.
        """
        found = self._relation(query)
        return _shown_intervals(found, self._steps(found))

    def snapshot(self, query: str, at: Any = None) -> list[Row]:
        """Return the rows that a relation holds at an instant, by default the newest known one."""
        found = self._relation(query)
        kinds = found.node.schema.types
        return [shown_values(v, kinds) for v in self._snapshot(found, at).elements()]

    def late(self, stream: str) -> list[Row]:
        """Return the rows of a stream that came too late."""
        definition: StreamDef = self.catalog.get("stream", stream)
        return list(self._engine.late.get(definition.name, []))

    def rejected(self, stream: str) -> list[tuple[str, Any]]:
        """Return the rows that did not fit ``ON ERROR DEADLETTER``: why, and the row as given."""
        definition: StreamDef = self.catalog.get("stream", stream)
        return [(str(why), row) for why, row in self._rejected.get(definition.name, [])]

    def oracle(self, query: str) -> list[Row]:
        """Return what the reference says: intervals of a relation, or the rows of a stream.

        It evaluates the query by its definition, slowly, and shares no code with the engine.
        """
        found = self._query(query)
        if found.mode == "stream":
            elements = self._oracle_stream(found)
            ordered = sorted(elements.elements(), key=lambda element: element[0])
            kinds = found.node.schema.types
            return [(*shown_values(v, kinds), shown_time(t, found.stamps)) for t, v in ordered]
        steps = self._known(found, relation(*self._meaning(found)))
        return _shown_intervals(found, steps)

    # -- measuring ---------------------------------------------------------------------------------

    def _queries(self) -> list[RigQuery]:
        return [q for q in self._engine.book.queries.values() if isinstance(q, RigQuery)]

    def _query(self, name: str) -> RigQuery:
        self.catalog.get("query", name)
        if self._changed:
            self._replan()
        return self._named(name)

    def _named(self, name: str) -> RigQuery:
        return next(q for q in self._queries() if q.name.lower() == name.lower())

    def _relation(self, name: str) -> RigQuery:
        found = self._query(name)
        if found.mode == "stream":
            raise QueryError(
                f"'{name}' must be a relation to be asserted as one, but it is a stream; use "
                f"assert_stream"
            )
        return found

    def _heartbeat(self, query: RigQuery) -> int:
        return min(self._engine.heartbeat(s) for s in query.streams)

    def _leaves_at_once(self, query: RigQuery) -> bool:
        """Whether the answer by which a query is measured waits for nothing."""
        measured = f"{query.name} {'stream' if query.mode == 'stream' else 'log'}"
        plan = self._engine.plan
        node = plan.answer(measured).node
        output = plan.nodes[node].spec
        return isinstance(output, OutputSpec) and output.at_once

    def _until(self, query: RigQuery) -> int:
        """Return the instant below which an answer can be measured.

        That is the heartbeat.  Of an answer whose rows leave at once it is the end of time: all
        rows that came have been answered.
        """
        return INF if self._leaves_at_once(query) else self._heartbeat(query)

    def _known(self, query: RigQuery, steps: Steps) -> Steps:
        """Return the part of a relation that is final."""
        until = self._until(query)
        return steps if until == INF else [step for step in steps if step[0] < until]

    def _steps(self, query: RigQuery) -> Steps:
        """Return the relation that the change log describes."""
        log = sorted(self._engine.answers.get(f"{query.name} log", []), key=lambda row: row[1])
        state: Counter[Row] = Counter()
        steps: Steps = []
        for values, time, _ in log:
            state[tuple(map(plain, values[:-1]))] += values[-1]
            if steps and steps[-1][0] == time:
                steps.pop()
            steps.append((time, +state))
        return steps

    def _stream_rows(self, query: RigQuery) -> list[tuple[Row, int, int]]:
        return self._engine.answers.get(f"{query.name} stream", [])

    def _as_of(self, query: RigQuery, at: Any) -> int:
        until = self._heartbeat(query)
        if at is None:
            times = newest_times(self._engine.progress)
            newest = max(times[s] for s in query.streams)
            return max(MIN_TIME, min(until - 1, newest)) if until > MIN_TIME else MIN_TIME
        time = instant(at, query.stamps, self._day)
        if time >= until:
            raise QueryError(
                f"the snapshot of '{query.name}' at {time_text(time, query.stamps)} must be final, "
                f"but rows from {time_text(until, query.stamps)} on may still come; use advance() "
                f"or end() first"
            )
        return time

    def _snapshot(self, query: RigQuery, at: Any) -> Counter[Row]:
        return snapshot_at(self._steps(query), self._as_of(query, at))

    def _meaning(self, query: RigQuery) -> tuple[Node, Inputs]:
        """Return what the oracle is asked: the plan of a query, and what it sees.

        Parts of texts before that go on are tables, of what they are from its beginning on.
        """
        streams = {
            name: self._in_time(self.catalog.get("stream", name))[query.seen.get(name, 0) :]
            for name in query.streams
        }
        tables = {name: plain_rows(table) for name, table in self._tables.items()}
        if not query.eras:
            since = MIN_TIME if query.since is None else query.since
            return query.node, Inputs(elements_since(streams, since), tables)
        plan = canonical(self._engine.book.optimized(query.name))
        return with_eras(plan, query.eras, streams, tables)

    def _in_time(self, definition: StreamDef) -> list[tuple[Row, int]]:
        """Return the rows of a stream that are not late, by the definition of that."""
        judge = self._judge()
        return judge.kept.get(definition.name, [])

    def _judge(self) -> Judge:
        """Return the oracle's judgement of all that has happened."""
        judge = Judge()
        met = [query.streams for query in self._queries()]
        for name in self._engine.streams:
            definition: StreamDef = self.catalog.get("stream", name)
            judge.declare(name, definition.timing, definition.time)
        for kind, what in self._events:
            if kind == "decide":
                judge.decide({name: (told.floors, told.idle) for name, told in what.items()}, met)
            elif kind == "feed":
                for partition, fed in what:
                    for name, table in fed.items():
                        judge.feed(name, partition, plain_rows(table))
                judge.settle(met)
            elif kind == "end":
                judge.end(what)
        return judge

    def _oracle_stream(self, query: RigQuery) -> Counter[tuple[int, Row]]:
        until = self._until(query)
        true = stream(*self._meaning(query))
        return Counter({e: n for e, n in true.items() if e[0] < until or until == INF})


def _shown_intervals(query: RigQuery, steps: Steps) -> list[Row]:
    kinds, stamps = query.node.schema.types, query.stamps
    return [
        (*shown_values(v, kinds), shown_time(start, stamps), shown_time(end, stamps))
        for v, start, end in to_intervals(steps)
    ]
