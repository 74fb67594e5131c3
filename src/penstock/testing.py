"""Running queries without Spark: the same fragments, in this process, batch by batch.

`run_local` feeds rows, cuts them into batches as told, and returns exact answers without waiting
for anything; it is how Penstock tests itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.config import Config
from penstock.model import MIN_TIME, Batch, Schema
from penstock.optimizer import optimize
from penstock.physical.packing import Packer, Progress, TablePacker
from penstock.physical.parcels import REPORT_STAGE, Parcel, read_report
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.physical.stage import run_stage
from penstock.runs.state import MemoryStorage

Row = tuple[Any, ...]
Interval = tuple[Row, int, int]


class LocalEngine:
    """The plan of some queries, run in this process. State lives in memory between batches.

    Tables are packed in chunks of ``table_rows`` rows.
    """

    def __init__(
        self,
        plans: Mapping[str, Node],
        tables: Mapping[str, Sequence[Row]] | None = None,
        *,
        shards: int = 1,
        settings: Mapping[str, Any] | None = None,
        slack: int = 0,
        mode: str = "intervals",
        table_rows: int = 1 << 18,
    ) -> None:
        self.config = Config(settings)
        self._chunk = table_rows
        self.shards = shards
        self.slack = slack
        chosen = optimize(plans) if self.config["rules"] else dict(plans)
        queries = [Query(name, node, mode) for name, node in chosen.items()]
        self.plan: PhysicalPlan = plan(queries, self.config, {})
        scans = [n for node in plans.values() for n in algebra.walk(node)]
        self.streams = {n.stream: n for n in scans if isinstance(n, algebra.Scan)}
        self._tables = {n.table: n for n in scans if isinstance(n, algebra.TableScan)}
        self._table_rows = tables or {}
        self._loaded = False
        self._storage = MemoryStorage()
        self._states: list[dict[str, Any]] = [{} for _ in range(shards)]
        self.progress: dict[str, Progress] = {name: Progress() for name in self.streams}
        self.answers: dict[str, list[Interval]] = {name: [] for name in plans}
        self.views: dict[str, list[Row]] = {name: [] for name in plans}
        self.late: dict[str, list[Row]] = {name: [] for name in self.streams}

    def batch(self, rows: Mapping[str, Sequence[Row]], final: bool = False) -> None:
        """Run one micro-batch; a row is a tuple of the stream's columns."""
        parcels: list[Parcel] = []
        if not self._loaded:
            parcels += self._pack_tables()
            self._loaded = True
        for name, scan in self.streams.items():
            packer = Packer(
                self.plan,
                name,
                scan.time,
                self.slack,
                self.progress[name],
                self.config,
                self.shards,
            )
            late = packer.add(to_table(scan.schema, rows.get(name, ())))
            self.late[name] += [tuple(r.values()) for r in late.to_pylist()]
            self.progress[name] = packer.finish(final)
            parcels += packer.parcels()
        beats = {n: p.heartbeat(self.slack) for n, p in self.progress.items()}
        times = {name: p.max_time for name, p in self.progress.items()}
        for stage in range(self.plan.stages):
            passed: list[Parcel] = []
            for shard in range(self.shards):
                mine = [p for p in parcels if p.shard == shard]
                passed += run_stage(
                    self.plan,
                    stage,
                    shard,
                    self.shards,
                    mine,
                    self._states[shard],
                    self._storage,
                    self.config,
                    beats,
                    frozenset(),
                    times,
                )
            parcels = passed
        self._take_reports(parcels)

    def _pack_tables(self) -> list[Parcel]:
        parcels = []
        for at in self.plan.sources("table"):
            source = self.plan.nodes[at].source
            assert source is not None
            node = self._tables[source.name]
            table = to_table(node.schema, self._table_rows[source.name])
            valid = (node.valid_from, node.valid_to)
            packer = TablePacker(self.plan, [at], valid, self.config, self.shards)
            for first in range(0, table.num_rows, self._chunk):
                parcels += packer.pack(table.slice(first, self._chunk))
        return parcels

    def _take_reports(self, parcels: Iterable[Parcel]) -> None:
        fresh_views: dict[str, list[Row]] = {}
        for parcel in parcels:
            assert parcel.stage == REPORT_STAGE
            content = read_report(parcel)
            self._states[content["shard"]] |= content["states"]
            for result in content["results"]:
                batch = Batch.from_table(self._storage.read(result["place"]))
                rows = list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
                rows = rows or [()] * len(batch)
                if result["mode"] == "view":
                    fresh_views.setdefault(result["query"], []).extend(rows)
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


def to_table(schema: Schema, rows: Sequence[Row]) -> pa.Table:
    """Return rows as an Arrow table of a schema (times may be plain integers)."""
    arrays = []
    for i, field in enumerate(schema):
        values = [row[i] for row in rows]
        if pa.types.is_timestamp(field.type) and all(isinstance(v, int | None) for v in values):
            arrays.append(pa.array(values, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.table(arrays, names=[f"c{i}" for i in range(len(schema))])


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
