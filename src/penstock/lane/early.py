"""Answering rows early, with kept relations as they were at the last final instant.

See `penstock.physical.early_plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.lane.answering import Asked, Committed
from penstock.model import INF, MIN_TIME, TIMESTAMP, Batch, one_array
from penstock.operators.output import HELD
from penstock.optimizer import optimize
from penstock.physical.batch import Arrivals, run_batch
from penstock.physical.book import BookedQuery
from penstock.physical.early_plan import EarlyPlan, early_outlet, early_plan, kept_name
from penstock.physical.packing import TablePacker
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query
from penstock.physical.planner import plan as planned
from penstock.physical.progress import Timeline
from penstock.runs.kept import Kept
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from penstock.settings import Settings
from penstock.timing import TimeRules


@dataclass(frozen=True)
class EarlyQuery:
    """A query with early answers: its parts, and where its kept relations are in the state.

    ``first`` is its first batch, ``streams`` are those of each kept relation.
    """

    name: str
    parts: EarlyPlan
    digests: tuple[str, ...]
    streams: tuple[frozenset[str], ...]
    first: int


class EarlyAnswerer:
    """Answers rows of one query early, from the state of one batch."""

    def __init__(self, query: EarlyQuery, committed: Committed, config: Settings) -> None:
        self.query = query
        self._config = config
        self._storage = MemoryStorage()
        self._timeline = Timeline(rules={query.parts.scan.stream: TimeRules()})
        node = query.parts.node
        if config.rules:
            node = optimize({"": node})[""]
        self._types = node.schema.types
        self._plan = planned([Query("", node)], config, {})
        self.as_of = _last_final(query, committed)
        self._states = self._load(committed)
        self._loaded = len(self._storage.tables)

    def _load(self, committed: Committed) -> Sequence[Mapping[str, Any]]:
        """Put the kept relations into the joins of the plan."""
        parcels = []
        for at in self._plan.sources("table"):
            source = self._plan.nodes[at].source
            assert source is not None
            number = int(source.name.rpartition(" ")[2])
            rows = _snapshot(self.query, number, committed, self.as_of)
            names = [f"c{i}" for i in range(len(rows))]
            packer = TablePacker(self._plan, [at], (None, None), self._config, 1)
            parcels += packer.pack(pa.Table.from_arrays(list(rows), names=names))
        outcome, _ = run_batch(
            self._plan, {}, self._timeline, [{}], self._storage, self._config, parcels
        )
        return outcome.states

    def answer(self, asked: Asked) -> Batch:
        """Return the early answers to rows, each with the instant as of which they hold."""
        table = pa.table(list(asked.columns), names=[f"c{i}" for i in range(len(asked.columns))])
        scan = self.query.parts.scan
        in_order = table.take(pa.array(np.argsort(asked.time, kind="stable")))  # none is late
        arrivals = {scan.stream: Arrivals([("", in_order)], scan.time, final=True)}
        outcome, _ = run_batch(
            self._plan, arrivals, self._timeline, self._states, self._storage, self._config
        )
        parts = [Batch.from_table(self._storage.read(r["place"])) for r in outcome.results]
        del self._storage.tables[self._loaded :]
        rows = Batch.concat(parts or [Batch.empty(self._types)])
        kind = TIMESTAMP if pa.types.is_timestamp(scan.time_type) else pa.int64()
        known = None if self.as_of == MIN_TIME else self.as_of
        as_of = pa.array([known] * len(rows), pa.int64()).cast(kind)
        time = pa.array(rows.start).cast(kind)
        return rows.with_columns((*rows.columns, time, as_of))


def _last_final(query: EarlyQuery, committed: Committed) -> int:
    """Return the last instant that is final for all kept relations of a query."""
    beats = [committed.beats.get(s, MIN_TIME) for streams in query.streams for s in streams]
    until = min(beats, default=INF)
    if until == MIN_TIME:
        return MIN_TIME
    newest = [
        state.get("numbers", {}).get("newest", MIN_TIME)
        for digest in query.digests
        for shard in committed.states
        if (state := shard.get(digest)) is not None
    ]
    return min(until - 1, max(newest, default=MIN_TIME)) if until == INF else until - 1


def _snapshot(
    query: EarlyQuery, number: int, committed: Committed, time: int
) -> Sequence[pa.Array]:
    """Return the columns of a kept relation at an instant, from all shards."""
    types = query.parts.kept[number].schema.types
    parts = [Batch.empty(types)]
    for shard in committed.states:
        state = shard.get(query.digests[number])
        if state is not None:
            kept = Kept(State(committed.storage, state), HELD, types, Merging())
            parts.append(kept.snapshot(max(time, kept.low)))
    return [one_array(column) for column in Batch.concat(parts).columns]


def answered(
    early: Sequence[EarlyAnswerer], rows: Mapping[str, Asked], batch: int
) -> dict[str, Batch]:
    """Return the early answers to the rows of a turn, by outlet."""
    found = {}
    for one in early:
        query = one.query
        asked = rows.get(query.parts.scan.stream)
        if asked is not None and len(asked) and batch >= query.first:
            made = one.answer(asked)
            if len(made):
                found[early_outlet(query.name)] = made
    return found


def early_queries(plan: PhysicalPlan, queries: Iterable[BookedQuery]) -> list[EarlyQuery]:
    """Return the queries of a plan that have early answers."""
    found = []
    nodes = {answer.query: plan.nodes[answer.node] for answer in plan.answers}
    below = {answer.query: plan.streams_below(answer.node) for answer in plan.answers}
    for query in queries:
        if query.early is None or query.name not in nodes:
            continue
        parts = early_plan(query.node)
        names = [kept_name(query.name, number) for number in range(len(parts.kept))]
        digests = tuple(nodes[name].digest for name in names)
        streams = tuple(below[name] for name in names)
        found.append(EarlyQuery(query.name, parts, digests, streams, query.batch or 0))
    return found
