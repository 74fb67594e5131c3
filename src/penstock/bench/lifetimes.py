"""The experiment of [C 4]: six queries, windows by rows and by time, direct against negative.

Figure 3 of the paper gives the queries and the data: one element per millisecond; the two streams
of the binary queries have equal elements half a millisecond apart, and half of the window each.  A
join makes one result of two elements, a difference one that lives for half a millisecond, whatever
the window.

Every case runs a plan through packing and the stages of the fragment engine, in this process, with
the rules off, so that the operators stand as the query says.  The window is filled first; then the
clock runs over some micro-batches.  Both methods take turns, and must give the same relation.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog
from penstock.config import Config
from penstock.cql.statements import Create, Select
from penstock.kernels.keys import hash_columns
from penstock.model import Batch
from penstock.physical.packing import Packer, Progress
from penstock.physical.parcels import Parcel, read_report
from penstock.physical.planner import Query, plan
from penstock.physical.stage import run_stage
from penstock.runs.state import MemoryStorage

STREAMS = """
CREATE STREAM STRu (ts BIGINT, ca STRING, cb BIGINT, cc STRING) TIMESTAMP BY ts USING memory;
CREATE STREAM STRb0 (ts BIGINT, ca BIGINT, cb STRING, cc BIGINT) TIMESTAMP BY ts USING memory;
CREATE STREAM STRb1 (ts BIGINT, ca BIGINT, cb STRING, cc BIGINT) TIMESTAMP BY ts USING memory;
"""
QUERIES = {
    "selection": "SELECT ca, cb, cc FROM STRu [{u}] WHERE cb > 3",
    "projection": "SELECT ca, cb FROM STRu [{u}]",
    "union all": "SELECT ca, cb, cc FROM STRb0 [{b}] UNION ALL SELECT ca, cb, cc FROM STRb1 [{b}]",
    "join": "SELECT x.ca, x.cb, x.cc, y.cb AS yb, y.cc AS yc FROM STRb0 [{b}] x, STRb1 [{b}] y "
    "WHERE x.ca = y.ca",
    "except": "SELECT ca, cb, cc FROM STRb0 [{b}] EXCEPT SELECT ca, cb, cc FROM STRb1 [{b}]",
    "average": "SELECT ca, cc, AVG(cb) FROM STRu [{u}] GROUP BY ca, cc",
}
SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
KINDS = ("rows", "time")
METHODS = ("direct", "negative")
MS = 1000
BATCH = 100_000
"""Elements of one micro-batch, over all streams."""


def text_of(query: str, kind: str, size: int) -> str:
    """Return a query with a window that holds ``size`` elements."""
    if kind == "rows":
        return QUERIES[query].format(u=f"ROWS {size}", b=f"ROWS {size // 2}")
    return QUERIES[query].format(u=f"RANGE {size * MS}", b=f"RANGE {size // 2 * MS}")


def elements(stream: str, first: int, last: int) -> pa.Table:
    """Return the elements ``[first, last)`` of a stream of figure 3."""
    i = np.arange(first, last, dtype=np.int64)
    if stream == "STRu":
        letters = pa.array(["a", "a", "b", "b"]).take(pa.array(i % 4))
        others = pa.array(["v", "u", "w", "v", "v", "u"]).take(pa.array(i % 6))
        return pa.table([pa.array(i * MS), letters, pa.array(i % 10), others], names="0123")
    when = i * MS + (MS // 2 if stream == "STRb1" else 0)
    letters = pa.array(["a", "b", "c", "d", "e"]).take(pa.array(i % 5))
    return pa.table([pa.array(when), pa.array(535 + i), letters, pa.array(i)], names="0123")


class Engine:
    """One query by one method, in one shard. Results are counted and summed, not kept."""

    def __init__(self, text: str, settings: Mapping[str, Any]) -> None:
        catalog = Catalog()
        nodes: dict[str, Node] = {}
        for parsed in cql.parse_script(f"{STREAMS} {text}"):
            match cql.bind(parsed, catalog):
                case Create(definition):
                    catalog.add(definition)
                case Select(node):
                    nodes["q"] = node
        self.config = Config(settings)
        self.plan = plan([Query("q", nodes["q"])], self.config, {})
        self.streams = {
            source.name: 0
            for at in self.plan.sources("stream")
            if (source := self.plan.nodes[at].source) is not None
        }
        self._progress = dict.fromkeys(self.streams, Progress())
        self._storage = MemoryStorage()
        self._states: dict[str, Any] = {}
        self.rows = 0
        self.sum = 0
        self.seconds: dict[str, float] = {}

    def batch(self, first: int, last: int, final: bool = False) -> float:
        """Run one micro-batch of elements; return its seconds."""
        brought = {name: elements(name, first, last) for name in self.streams}
        began = time.process_time()
        parcels: list[Parcel] = []
        for name, table in brought.items():
            packer = Packer(self.plan, name, 0, 0, self._progress[name], self.config, 1)
            packer.add(table)
            self._progress[name] = packer.finish(final)
            parcels += packer.parcels()
        beats = {n: p.heartbeat(0) for n, p in self._progress.items()}
        times = {n: p.max_time for n, p in self._progress.items()}
        for stage in range(self.plan.stages):
            parcels = list(
                run_stage(
                    self.plan, stage, 0, 1, parcels, self._states, self._storage, self.config,
                    beats, frozenset(), times,
                )
            )  # fmt: skip
        seconds = time.process_time() - began
        for parcel in parcels:
            self._take(read_report(parcel))
        self._forget()
        return seconds

    def state(self) -> Iterator[pa.Table]:
        """Yield the runs of the state, without what was skipped."""
        for described in self._states.values():
            for runs in described["runs"].values():
                for run in runs:
                    yield self._storage.tables[run["place"]["index"]].slice(run["skipped"])

    def _take(self, report: Mapping[str, Any]) -> None:
        self._states |= report["states"]
        labels = {n.digest: n.label for n in self.plan.nodes}
        for digest, spent in report["seconds"].items():
            label = labels[digest]
            self.seconds[label] = self.seconds.get(label, 0.0) + spent
        for result in report["results"]:
            batch = Batch.from_table(self._storage.read(result["place"]))
            self.rows += len(batch)
            self.sum = (self.sum + _weight(batch)) % 2**64

    def _forget(self) -> None:
        """Let go of runs that no state needs any more."""
        needed = {
            run["place"]["index"]
            for described in self._states.values()
            for runs in described["runs"].values()
            for run in runs
        }
        for index in range(len(self._storage.tables)):
            if index not in needed:
                self._storage.tables[index] = pa.table({})


def _weight(batch: Batch) -> int:
    """Return the sum of (hash of the values) x (length of life): the same however lives are cut."""
    lives = batch.end.view(np.uint64) - batch.start.view(np.uint64)
    keys = hash_columns(batch.columns, len(batch))
    return int((keys.high * lives).sum(dtype=np.uint64))


@dataclass
class Point:
    """One case: elements per second of both methods, and where the time of each went."""

    query: str
    kind: str
    size: int
    rates: dict[str, float]
    profile: dict[str, dict[str, float]]
    results: int

    @property
    def ratio(self) -> float:
        return self.rates["direct"] / self.rates["negative"]


def compare(query: str, kind: str, size: int, repeats: int, batches: int) -> Point:
    """Run one case by both methods in turn; the rates are medians of ``repeats``."""
    text = text_of(query, kind, size)
    engines = {m: Engine(text, {"lifetime": m}) for m in METHODS}
    streams = len(next(iter(engines.values())).streams)
    step = BATCH // streams
    at = dict.fromkeys(METHODS, 0)
    spent: dict[str, list[float]] = {m: [] for m in METHODS}
    for method, engine in engines.items():
        while at[method] < size // streams + 2 * step:
            engine.batch(at[method], at[method] + step)
            at[method] += step
        engine.seconds.clear()
    for _ in range(repeats):
        for method, engine in engines.items():
            gc.collect()
            total = 0.0
            for _ in range(batches):
                total += engine.batch(at[method], at[method] + step)
                at[method] += step
            spent[method].append(total)
    for method, engine in engines.items():
        engine.batch(at[method], at[method] + 1, final=True)
    sums = {engine.sum for engine in engines.values()}
    if len(sums) > 1:
        raise AssertionError(f"both methods must give one relation: {query}, {kind} {size}")
    count = batches * step * streams
    return Point(
        query,
        kind,
        size,
        {m: count / statistics.median(s) for m, s in spent.items()},
        {m: _profile(e.seconds, count * repeats) for m, e in engines.items()},
        engines["direct"].rows,
    )


def _profile(seconds: Mapping[str, float], elements: int) -> dict[str, float]:
    """Return microseconds per element that each operator took."""
    return {label: 1e6 * spent / elements for label, spent in seconds.items()}
