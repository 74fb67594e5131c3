"""The engine without Spark: the same plans and fragments, in this process, batch by batch.

`LocalEngine` runs plans over rows given as Python objects or Arrow tables; its state lives in
memory between batches.  `run_local` feeds finite streams to their end, cut as told, and returns the
exact answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.lane.answering import Committed
from penstock.model import MIN_TIME, Batch, Schema
from penstock.physical.answered import Answered
from penstock.physical.batch import Arrivals, Outcome, run_batch
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.closing import settle_all
from penstock.physical.efforts import Experience, Measured, measured_after
from penstock.physical.key_loads import Heat, Reached
from penstock.physical.key_splits import routes
from penstock.physical.packing import TablePacker
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Decision, Progress, Timeline
from penstock.runs.state import MemoryStorage
from penstock.schedule.board import Promise
from penstock.settings import Settings
from penstock.timing import TimeRules

Row = tuple[Any, ...]
Interval = tuple[Row, int, int]


class LocalEngine:
    """The plan of some queries, run in this process. State lives in memory between batches.

    ``slack`` is that of all streams; ``rules`` are what streams say about time, by name.  Tables
    are packed in chunks of ``table_rows`` rows.  ``heat`` decides which keys of joins are split;
    `hot` are those that are.
    `answers` are rows ``(values, start, end)`` as they left, `views` whole snapshots, and ``as_of``
    says of which instant; `late` are rows that came too late.  `measured` is what is known of
    operators, `outcome` that of the last batch.  ``promises`` say how soon queries want answers.
    """

    def __init__(
        self,
        plans: Mapping[str, Node],
        tables: Mapping[str, Sequence[Row] | pa.Table] | None = None,
        *,
        shards: int = 1,
        settings: Mapping[str, Any] | None = None,
        slack: int = 0,
        rules: Mapping[str, TimeRules] | None = None,
        mode: str = "intervals",
        table_rows: int = 1 << 18,
        heat: Heat | None = None,
        promises: Mapping[str, Promise] | None = None,
    ) -> None:
        self.config = Settings(settings)
        self.heat = heat or Heat()
        self.hot: dict[str, dict[str, Any]] = {}
        self._chunk = table_rows
        self.shards = shards
        self._slack = slack
        self._rules = {} if rules is None else rules
        self._table_rows = {} if tables is None else tables
        self._storage = MemoryStorage()
        self._states: list[dict[str, Any]] = [{} for _ in range(shards)]
        self._number = 0
        self._numbers: dict[str, int] = {}
        self.streams: dict[str, algebra.Scan] = {}
        self._tables: dict[str, algebra.TableScan] = {}
        self.progress: dict[str, Progress] = {}
        self.answers: dict[str, list[Interval]] = {}
        self.views: dict[str, list[Row]] = {}
        self.as_of: dict[str, int] = {}
        self.late: dict[str, list[Row]] = {}
        self.measured: Measured = {}
        self.outcome = Outcome([])
        self.answered = Answered()
        self.ceilings: dict[str, int] = {}
        self.book = QueryBook(self.config)
        for name, node in plans.items():
            self.announce(node)
            promise = (promises or {}).get(name, Promise())
            self.book.add(BookedQuery(name, node, mode, promise=promise))
        self.replan()

    def announce(self, node: Node) -> None:
        """Make the streams and tables of a plan, as it was before the rules, known."""
        for part in algebra.walk(node):
            if isinstance(part, algebra.Scan):
                self.streams[part.stream] = part
                self.progress.setdefault(part.stream, Progress())
                self.late.setdefault(part.stream, [])
            elif isinstance(part, algebra.TableScan):
                self._tables[part.table] = part

    def replan(self) -> None:
        """Run the queries of the book from the next batch on; what is kept goes on."""
        times = {name: progress.max_time for name, progress in self.progress.items()}
        beats = {name: progress.heartbeat for name, progress in self.progress.items()}
        moment = Moment(self._number, times, self._numbers, beats=beats)
        self.plan: PhysicalPlan = self.book.plan(moment)
        self._numbers = dict(self.plan.numbers)
        for answer in self.plan.answers:
            self.answers.setdefault(answer.query, [])
            self.views.setdefault(answer.query, [])

    @property
    def number(self) -> int:
        """The number of the next batch."""
        return self._number

    def heartbeat(self, stream: str) -> int:
        """Return the time below which nothing of a stream comes any more."""
        return self.progress[stream].heartbeat

    def batch(
        self,
        rows: Mapping[str, Sequence[Row] | pa.Table],
        final: bool | Collection[str] = False,
        decisions: Mapping[str, Decision] | None = None,
    ) -> None:
        """Run one micro-batch; a row is a tuple of the stream's columns.

        ``final`` ends all streams, or those named; ``decisions`` are about time, and hold after it.
        """
        self.batch_of({name: [("", some)] for name, some in rows.items()}, final, decisions)

    def batch_of(
        self,
        parts: Mapping[str, Sequence[tuple[str, Sequence[Row] | pa.Table]]],
        final: bool | Collection[str] = False,
        decisions: Mapping[str, Decision] | None = None,
    ) -> None:
        """Run one micro-batch of rows of source partitions, each with the partition's name."""
        arrivals = {}
        for name, scan in self.streams.items():
            came = ((part, to_table(scan.schema, some)) for part, some in parts.get(name, ()))
            ends = final if isinstance(final, bool) else name in final
            some = [(part, table) for part, table in came if table.num_rows]
            arrivals[name] = Arrivals(some, scan.time, final=ends)
        timeline = Timeline(
            self.progress,
            {name: self.rules(name) for name in self.streams},
            decisions or {},
            self.plan.stream_groups,
            self.answered,
            self.ceilings,
        )
        searching = self._searching
        outcome, late = run_batch(
            self.plan,
            arrivals,
            timeline,
            self._states,
            self._storage,
            self.config,
            self._pack_tables(),
            routes(self.plan, self.hot, searching),
            Experience(self.measured),
        )
        self.measured = measured_after(self.measured, outcome.efforts)
        self.outcome = outcome
        for name, table in late.items():
            self.late[name] += [tuple(r.values()) for r in table.to_pylist()]
        after = timeline.after(outcome.told)
        self.progress = settle_all(self.progress, after, self._storage)
        self._take(outcome)
        reached = {n: Reached(p.max_time, p.heartbeat) for n, p in self.progress.items()}
        told = outcome.counted
        self.hot = self.heat.decide(self.plan, self.hot, told, reached, self.shards, searching)
        self._number += 1

    @property
    def _searching(self) -> bool:
        return self.config.join_split == 0 and self.shards > 1

    def committed(self) -> Committed:
        """Return what is true after the last batch, for who answers rows beside the batches."""
        beats = {name: found.heartbeat for name, found in self.progress.items()}
        split = routes(self.plan, self.hot, self._searching)
        states = [dict(states) for states in self._states]
        return Committed(self._number - 1, states, beats, self._storage, split)

    def rules(self, stream: str) -> TimeRules:
        """Return what a stream says about time."""
        return self._rules.get(stream) or TimeRules(self._slack)

    def _pack_tables(self) -> list[Parcel]:
        """Pack the tables of the queries for which this is the first batch."""
        parcels = []
        for at in self.plan.sources("table"):
            source = self.plan.nodes[at].source
            assert source is not None
            if source.since != self._number:
                continue
            node = self._tables[source.name]
            given = self._table_rows[source.name] if node.rows is None else node.rows
            table = to_table(node.schema, given)
            valid = (node.valid_from, node.valid_to)
            packer = TablePacker(self.plan, [at], valid, self.config, self.shards)
            for first in range(0, table.num_rows, self._chunk):
                parcels += packer.pack(table.slice(first, self._chunk))
        return parcels

    def _take(self, outcome: Outcome) -> None:
        """Keep what a batch has made."""
        for states, new in zip(self._states, outcome.states, strict=True):
            states |= new
        fresh_views: dict[str, list[Row]] = {}
        for result in outcome.results:
            batch = Batch.from_table(self._storage.read(result["place"]))
            rows = list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
            rows = rows or [()] * len(batch)
            if result["mode"] == "view":
                fresh_views.setdefault(result["query"], []).extend(rows)
                self.as_of[result["query"]] = result["as_of"]
                continue
            times = zip(rows, batch.start.tolist(), batch.end.tolist(), strict=True)
            self.answers[result["query"]] += list(times)
        self.views |= fresh_views


def run_local(
    plans: Mapping[str, Node],
    streams: Mapping[str, Sequence[tuple[Row, int]]],
    tables: Mapping[str, Sequence[Row]] | None = None,
    *,
    cuts: Sequence[int] | int = 1,
    shards: int = 1,
    settings: Mapping[str, Any] | None = None,
    slack: int = 0,
    mode: str = "intervals",
    table_rows: int = 1 << 18,
) -> dict[str, list[Interval]]:
    """Run plans over finite streams to their end and return each query's rows.

    ``streams`` are ``(values, t)`` in arrival order; ``t`` must equal the time column.  ``cuts`` is
    a number of batches of equal size, or the positions (in the arrival order of all streams by
    time) at which batches end.  Rows are ``(values, start, end)``; of a stream
    ``(values, time, INF)``.
    """
    engine = LocalEngine(
        plans,
        tables,
        shards=shards,
        settings=settings,
        slack=slack,
        mode=mode,
        table_rows=table_rows,
    )
    arrivals = _interleave({n: r for n, r in streams.items() if n in engine.streams})
    if isinstance(cuts, int):
        size = max(1, -(-len(arrivals) // max(1, cuts)))
        cuts = list(range(size, len(arrivals), size))
    edges = [0, *sorted(c for c in cuts if 0 < c < len(arrivals)), len(arrivals)]
    for first, last in pairwise(edges):
        rows: dict[str, list[Row]] = {name: [] for name in engine.streams}
        for name, values in arrivals[first:last]:
            rows[name].append(values)
        engine.batch(rows)
    engine.batch({}, final=True)
    return engine.answers


def to_table(schema: Schema, rows: Sequence[Row] | pa.Table) -> pa.Table:
    """Return rows as an Arrow table of a schema (times may be plain integers)."""
    names = [f"c{i}" for i in range(len(schema))]
    if isinstance(rows, pa.Table):
        return rows.rename_columns(names)
    arrays = []
    for i, field in enumerate(schema):
        values = [row[i] for row in rows]
        if pa.types.is_timestamp(field.type) and all(isinstance(v, int | None) for v in values):
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, names=names)


def _interleave(
    streams: Mapping[str, Sequence[tuple[Row, int]]],
) -> list[tuple[str, Row]]:
    """Merge streams so that each keeps its own order and times advance together."""
    keyed = []
    for name, rows in streams.items():
        reached = MIN_TIME
        for i, (values, t) in enumerate(rows):
            reached = max(reached, t)
            keyed.append(((reached, name, i), (name, tuple(values))))
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]
