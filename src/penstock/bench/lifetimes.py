"""The experiment of [C 4]: six queries, windows by rows and by time, direct against negative.

Figure 3 of the paper gives the queries and the data: one element per millisecond; the two streams
of the binary queries have equal elements half a millisecond apart, and half of the window each.  A
join makes one result of two elements, a difference one that lives for half a millisecond, whatever
the window.

Every case runs a plan through packing and the stages of the fragment engine, in this process, with
the rules off, so that the operators stand as the query says.  The window is filled first; then the
clock runs over some micro-batches.  Both methods take turns, and must give the same relation.

The clock runs while operators work: in the stages, and in packing for those that have moved there.
What packing does for both alike (late rows, hashes, encoding) is not on it.  It counts seconds of
the processor, so that other work on the machine does not matter much.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from penstock import cql
from penstock.algebra import Node
from penstock.bench.bars import Bar
from penstock.bench.virtual import Tick
from penstock.catalog import Catalog
from penstock.cql.binding.statements import Create, Select
from penstock.errors import InternalError
from penstock.kernels.keys import hash_columns
from penstock.model import INF, Batch
from penstock.operators import aggregate
from penstock.physical.batch import Arrivals, Outcome, pack_streams, run_stages
from penstock.physical.efforts import Effort
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Progress, Timeline
from penstock.runs import value_counts
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.state import MemoryStorage
from penstock.settings import Settings

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
GAIN = 1.4
"""By how much the direct method shall be faster, from this number of elements in a window on:"""
SMALLEST = 100
INSERTING = {("average", "time"), ("except", "time")}
"""Cases in which rows with known ends are kept, so that their order matters."""
WINDOWS_KEPT = ("average", "except", "join, its windows")
"""State that is the contents of windows, whatever their kind."""
JOINED = "join, with its results"
"""Results of two row windows are kept until their ends are known, those of time windows are not."""


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
        self.config = Settings(settings)
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
        arrivals = {
            name: Arrivals([("", elements(name, first, last))], 0, final=final)
            for name in self.streams
        }
        timeline = Timeline(self._progress, groups=self.plan.stream_groups)
        packed = pack_streams(self.plan, arrivals, timeline, self.config, 1)
        began = time.process_time()
        reports = run_stages(
            self.plan, packed.parcels, timeline, [self._states], self._storage, self.config
        )
        seconds = time.process_time() - began
        # selections that go below a window by time have moved into packing
        moved = Outcome.of(packed.reports, 1).efforts.values()
        outcome = Outcome.of([*packed.reports, *reports], 1)
        self._progress = timeline.after(outcome.told)
        self._take(outcome)
        self._forget()
        return seconds + sum(effort.seconds for effort in moved)

    def bytes_kept(self, *names: str) -> int:
        """Return the bytes of the state, or of the runs of some names, without what was skipped."""
        return sum(
            self._storage.tables[run["place"]["index"]].slice(run["skipped"]).nbytes
            for described in self._states.values()
            for name, runs in described["runs"].items()
            for run in runs
            if not names or name in names
        )

    def _take(self, outcome: Outcome) -> None:
        self._states |= outcome.states[0]
        labels = {n.digest: n.label for n in self.plan.nodes if n.stage >= 0}
        for digest, label in labels.items():
            effort = outcome.efforts.get(digest, Effort())
            self.seconds[label] = self.seconds.get(label, 0.0) + effort.seconds
        for result in outcome.results:
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


class InsertionSort(Lifetimes):
    """Lifetimes whose rows with known ends are kept in one run that is always sorted [C 3.2]."""

    def _add(self, new: Batch) -> None:
        mortal = new.end < INF
        super()._add(new.take(~mortal))
        rows = new.take(mortal & (new.holder == 0))
        super()._add(new.take(mortal & (new.holder != 0)))
        if len(rows) == 0:
            return
        pieces = self._by_end.pieces
        together = Batch.concat([*(Batch.from_table(p.table) for p in pieces), rows])
        together = together.take(np.argsort(together.end, kind="stable"))
        self._by_end.clear()
        self._by_end.add(together.to_table())


@contextmanager
def sorted_insertion() -> Iterator[None]:
    """Let operators keep what is alive by `InsertionSort`."""
    rooms: tuple[Any, ...] = (aggregate, value_counts)
    for room in rooms:
        room.Lifetimes = InsertionSort
    try:
        yield
    finally:
        for room in rooms:
            room.Lifetimes = Lifetimes


@dataclass
class Point:
    """One case: elements per second of each method, and where the time of each went.

    ``profile`` is in microseconds per element, by operator.
    """

    query: str
    kind: str
    size: int
    rates: dict[str, float]
    profile: dict[str, dict[str, float]]
    results: int

    @property
    def ratio(self) -> float:
        return self.rates["direct"] / self.rates["negative"]

    @property
    def needed(self) -> bool:
        return self.size >= SMALLEST

    def why(self) -> str:
        """Return the operators that take most of both methods' time."""
        parts = []
        for method in METHODS:
            most = sorted(self.profile[method].items(), key=lambda item: -item[1])[:3]
            parts.append(f"{method} " + ", ".join(f"{name} {spent:.2f}" for name, spent in most))
        return "; ".join(parts) + " µs per element"


def compare(query: str, kind: str, size: int, repeats: int, batch: int = BATCH) -> Point:
    """Run one case by both methods in turn; the rates are those over ``repeats`` batches.

    Not the median: that runs of state are merged in some batches is part of what windows cost.
    """
    methods = list(METHODS)
    if (query, kind) in INSERTING:
        methods.append("insertion")
    text = text_of(query, kind, size)
    engines = {
        m: Engine(text, {"lifetime": m if m in METHODS else "direct", "rules": False})
        for m in methods
    }
    streams = len(engines["direct"].streams)
    step = batch // streams
    at = dict.fromkeys(methods, 0)

    def one(method: str) -> float:
        with sorted_insertion() if method == "insertion" else nullcontext():
            spent = engines[method].batch(at[method], at[method] + step)
        at[method] += step
        return spent

    for method in methods:
        while at[method] < size // streams + 2 * step:
            one(method)
        engines[method].seconds.clear()
    spent: dict[str, list[float]] = {m: [] for m in methods}
    for _ in range(repeats):
        for method in methods:
            spent[method].append(one(method))
    profile = {m: _profile(engines[m].seconds, step * streams * repeats) for m in methods}
    for method in METHODS:
        engines[method].batch(at[method], at[method] + 1, final=True)
    if engines["direct"].sum != engines["negative"].sum:
        raise InternalError(f"both methods must give one relation: {query}, {kind} {size}")
    count = step * streams
    return Point(
        query,
        kind,
        size,
        {m: count * repeats / sum(s) for m, s in spent.items()},
        profile,
        engines["direct"].rows,
    )


def _profile(seconds: Mapping[str, float], elements: int) -> dict[str, float]:
    """Return microseconds per element that each operator took."""
    return {label: 1e6 * spent / elements for label, spent in seconds.items()}


def filled(query: str, kind: str, size: int, batch: int = BATCH) -> Engine:
    """Return an engine, by the direct method, whose windows are full."""
    engine = Engine(text_of(query, kind, size), {"rules": False})
    step = batch // len(engine.streams)
    for first in range(0, size // len(engine.streams) + 2 * step, step):
        engine.batch(first, first + step)
    return engine


def kept(size: int, batch: int = BATCH) -> dict[str, dict[str, float]]:
    """Return the bytes of state per element of full windows, by what is kept and kind."""
    found: dict[str, dict[str, float]] = {name: {} for name in (*WINDOWS_KEPT, JOINED)}
    for kind in KINDS:
        for query in ("average", "except"):
            found[query][kind] = filled(query, kind, size, batch).bytes_kept() / size
        join = filled("join", kind, size, batch)
        found["join, its windows"][kind] = join.bytes_kept("left", "right") / size
        found[JOINED][kind] = join.bytes_kept() / size
    return found


@dataclass
class Report:
    """All points, and the bytes kept per element, by query and kind of window."""

    points: list[Point]
    kept: dict[str, dict[str, float]]
    largest: int

    def base(self, query: str) -> float:
        """Return the rate that all rates of a query are relative to."""
        smallest = min(p.size for p in self.points)
        return next(
            p.rates["negative"]
            for p in self.points
            if (p.query, p.kind, p.size) == (query, "rows", smallest)
        )

    def bars(self) -> list[Bar]:
        bars = [
            Bar(
                f"{p.query}, {p.kind}, {p.size:,}: direct to negative", p.ratio, GAIN, True, p.why()
            )
            for p in self.points
            if p.needed
        ]
        for name in WINDOWS_KEPT:
            text = f"bytes per element of {name}, rows to time, {self.largest:,}"
            bars.append(Bar(text, self.kept[name]["rows"] / self.kept[name]["time"], 1.5, False))
        return bars

    def as_json(self) -> dict[str, Any]:
        points = [asdict(p) | {"ratio": p.ratio, "base": self.base(p.query)} for p in self.points]
        bars = [asdict(bar) | {"met": bar.met} for bar in self.bars()]
        return {"points": points, "bytes_kept": self.kept, "largest": self.largest, "bars": bars}


def measure(
    largest: int = SIZES[-1], repeats: int = 16, batch: int = BATCH, tick: Tick | None = None
) -> Report:
    """Run all cases up to a size of window; ``tick`` is told the share that is done."""
    sizes = [size for size in SIZES if size <= largest]
    cases = [(q, k, s) for q in QUERIES for k in KINDS for s in sizes]
    work = [size + 20 * batch for _, _, size in cases]
    done, points = 0, []
    for case, cost in zip(cases, work, strict=True):
        points.append(compare(*case, repeats, batch))
        done += cost
        if tick is not None:
            tick(done / sum(work))
    return Report(points, kept(sizes[-1], batch), sizes[-1])


def tables(report: Report) -> list[Table]:
    """Return what was measured as tables for the terminal."""
    rates = Table(
        title="Throughput, relative to negative tuples with 10 rows", title_justify="left"
    )
    for column in ("query", "window", "elements"):
        rates.add_column(column, justify="right" if column == "elements" else "left")
    for column in ("negative", "direct", "insertion", "direct / negative"):
        rates.add_column(column, justify="right")
    for p in report.points:
        base = report.base(p.query)
        insertion = f"{p.rates['insertion'] / base:.2f}" if "insertion" in p.rates else ""
        colour = "" if p.ratio >= GAIN else "yellow" if p.ratio >= 1 else "red"
        ratio = f"{p.ratio:.2f}"
        rates.add_row(
            p.query,
            p.kind,
            f"{p.size:,}",
            f"{p.rates['negative'] / base:.2f}",
            f"{p.rates['direct'] / base:.2f}",
            insertion,
            f"[{colour}]{ratio}[/]" if colour and p.needed else ratio,
        )
    bytes_ = Table(
        title=f"Bytes kept per element, {report.largest:,} elements", title_justify="left"
    )
    for column in ("state", "rows", "time", "rows / time"):
        bytes_.add_column(column, justify="left" if column == "state" else "right")
    for query, of in report.kept.items():
        bytes_.add_row(
            query, f"{of['rows']:.0f}", f"{of['time']:.0f}", f"{of['rows'] / of['time']:.2f}"
        )
    bars = report.bars()
    missed = Table(
        title=f"{sum(b.met for b in bars)} of {len(bars)} bars met; missed, and why",
        title_justify="left",
    )
    for column in ("figure", "measured", "needed", "where the time goes"):
        missed.add_column(column, justify="right" if column == "measured" else "left")
    for bar in bars:
        if not bar.met:
            missed.add_row(bar.text, f"{bar.value:.2f}", bar.wanted, bar.why)
    return [rates, bytes_, missed]
