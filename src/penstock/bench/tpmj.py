"""The experiments of [B 7] on sort-based joins: multi-way against cascade, load, early results.

Experiment 1: four streams, one element per ms and stream, windows of a tenth of the run, the common
overlap of four value intervals, 1 MB for initial runs.  One four-way TPMJ against a left-deep
cascade of three binary ones, with both strategies: pages, and results over time.

Experiment 2: the sources switch every 20 s between gaps of 1 ms and 10 ms; the strategy follows.

Experiment 3: PMJ on two finite streams without windows: how early results come, by the order in
which the merge tree is worked off.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from rich.table import Table

from penstock.bench.bars import Bar
from penstock.bench.virtual import (
    BATCH_MS,
    F64,
    FAN_IN,
    INTERVAL,
    LENGTH,
    MEMORY,
    PAGE_MS,
    RESULT_MS,
    ROOM_FOR_RESULTS,
    ROW_MS,
    Plan,
    Streams,
    Tick,
    VirtualMachine,
    cascade,
    four_way,
    opened,
)
from penstock.expr.nodes import Column
from penstock.kernels.join_orders import Overlap
from penstock.model import INF, Batch, Heartbeat
from penstock.operators.merge_join import Budget, ProgressiveMergeJoinSpec, TemporalMergeJoin

PERIOD_MS = 20_000
GAPS_MS = (1, 10)
PMJ_FAMILIES = 64
PMJ_FAN_IN = 2
VARIANTS = (
    ("cascade", "maxfanin"),
    ("four-way", "maxfanin"),
    ("cascade", "greedy"),
    ("four-way", "greedy"),
)


def best_possible(streams: Streams) -> np.ndarray:
    """Return the number of results that start at or before each time 0..n, by brute force.

    Four intervals of length 7.5 that begin at whole numbers have a common point if no two begin
    more than 7 apart.  So all 1695 ways in which four beginnings can lie are tried for every first
    one; nothing of the engine is used.
    """
    rows, window = streams.rows, streams.window
    reach = int(LENGTH)
    times = []
    for begins in streams.begins:
        time = np.full(rows + 2 * reach + 1, -4 * rows, np.int64)
        time[begins + reach] = np.arange(1, rows + 1)
        times.append(time)
    first = times[0][reach + 1 : reach + 1 + rows]
    counts = np.zeros(rows + 1, np.int64)
    away = range(-reach, reach + 1)

    def shifted(stream: int, by: int) -> np.ndarray:
        return times[stream][reach + 1 + by : reach + 1 + by + rows]

    for b in away:
        late_b, early_b = _both(first, first, shifted(1, b))
        at_b = np.flatnonzero(late_b - early_b < window)
        late_b, early_b = late_b[at_b], early_b[at_b]
        for c in away:
            if max(0, b, c) - min(0, b, c) > reach:
                continue
            late_c, early_c = _both(late_b, early_b, shifted(2, c)[at_b])
            kept = np.flatnonzero(late_c - early_c < window)
            late_c, early_c, at_c = late_c[kept], early_c[kept], at_b[kept]
            for d in away:
                if max(0, b, c, d) - min(0, b, c, d) > reach:
                    continue
                late, early = _both(late_c, early_c, shifted(3, d)[at_c])
                counts += np.bincount(late[late - early < window], minlength=rows + 1)
    return np.cumsum(counts)


def _both(late: np.ndarray, early: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(late, other), np.minimum(early, other)


@dataclass
class Run:
    """One variant of experiment 1. ``curve`` are points (ms, results so far)."""

    plan: str
    strategy: str
    memory_for_results: int
    results: int = 0
    pages_read: int = 0
    pages_written: int = 0
    result_pages: int = 0
    steps: int = 0
    plain_merges: int = 0
    finished_ms: float = 0.0
    in_order: bool = True
    curve: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.plan}, {self.strategy}"

    @property
    def pages(self) -> int:
        return self.pages_read + self.pages_written + self.result_pages

    def at(self, time: float) -> int:
        """Return the number of results that were there at a time."""
        return max((count for ms, count in self.curve if ms <= time), default=0)


def compare(streams: Streams, plan: str, strategy: str, results: int, tick: Tick) -> Run:
    """Run one variant of experiment 1."""
    memory = MEMORY * streams.rows // 100_000
    make = four_way if plan == "four-way" else cascade
    run = Run(plan, strategy, results)
    machine, seen, last_key = VirtualMachine(), _Seen(), (-1, -1)
    with opened(make(memory, results), strategy) as opened_plan:
        edges = [*range(0, streams.rows, _step(streams)), streams.rows]
        for first, last in [*pairwise(edges), (edges[-1], edges[-1])]:
            opened_plan.feed(streams, first, last)
            done = seen.spend(machine, float(last), opened_plan)
            for part in opened_plan.taken:
                run.results += len(part)
                key = (int(part.start[0]), int(part.end[0]))
                run.in_order &= _sorted(part) and key >= last_key
                last_key = (int(part.start[-1]), int(part.end[-1]))
            opened_plan.taken.clear()
            run.curve.append((done, run.results))
            tick(last / streams.rows)
        work = opened_plan.work
    run.pages_read, run.pages_written = work.pages_read, work.pages_written
    run.result_pages, run.steps = work.result_pages, work.steps
    run.plain_merges, run.finished_ms = work.plain_merges, machine.free
    return run


def _step(streams: Streams) -> int:
    return max(40, BATCH_MS * streams.rows // 100_000)


def _sorted(rows: Batch) -> bool:
    later = rows.start[1:] > rows.start[:-1]
    return bool((later | ((rows.start[1:] == rows.start[:-1]) & (rows.end[1:] >= rows.end[:-1])))
                .all())  # fmt: skip


@dataclass
class _Seen:
    """The work that was accounted for."""

    pages: int = 0
    rows: int = 0
    results: int = 0

    def spend(self, machine: VirtualMachine, at: float, plan: Plan) -> float:
        """Let the machine do what a plan did since the last time."""
        pages, rows, results = plan.work.pages, plan.work.rows_merged, plan.made
        done = machine.spend(at, pages - self.pages, rows - self.rows, results - self.results)
        self.pages, self.rows, self.results = pages, rows, results
        return done


@dataclass
class Changing:
    """Experiment 2, one value per heartbeat: input in elements/s, output in results/s."""

    seconds: list[float] = field(default_factory=list)
    arriving: list[float] = field(default_factory=list)
    leaving: list[float] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)
    strategy: list[str] = field(default_factory=list)
    results: int = 0
    pages: int = 0
    steps: int = 0


def changing_rates(streams: Streams, tick: Tick) -> Changing:
    """Run experiment 2: the four-way join with the strategy *load*."""
    scale = streams.rows / 100_000
    found = Changing()
    with opened(four_way(int(MEMORY * scale), ROOM_FOR_RESULTS), "load") as plan:
        (operator,) = plan.operators
        assert isinstance(operator, TemporalMergeJoin)
        machine, seen, now, first = VirtualMachine(), _Seen(), 0.0, 0
        while True:
            gap = GAPS_MS[int(now // PERIOD_MS) % 2]
            last = min(streams.rows, first + max(1, int(BATCH_MS * scale) // gap))
            operator.work.most_bytes = 0
            chosen: list[str] = []
            for stream, (at, port) in enumerate(plan.inputs()):
                if last > first:
                    plan.push(at, port, streams.batch(stream, first, last))
            chosen.append(operator.strategy)
            for at, port in plan.inputs():
                plan.push(at, port, Heartbeat(last if last > first else INF))
            now += BATCH_MS
            seen.spend(machine, now, plan)
            made = sum(len(part) for part in plan.taken)
            plan.taken.clear()
            found.results += made
            found.seconds.append(now / 1000)
            found.arriving.append(4 * (last - first) * 1000 / BATCH_MS)
            found.leaving.append(made * 1000 / BATCH_MS)
            found.gathered.append(operator.held)
            found.most.append(operator.work.most_bytes)
            found.strategy.append(chosen[0])
            tick(last / streams.rows)
            if last == first:
                break
            first = last
        found.pages, found.steps = plan.work.pages, plan.work.steps
    return found


@dataclass
class Early:
    """Experiment 3: one order of merging. ``curve`` are points (ms of work, results so far)."""

    order: str
    results: int = 0
    pages: int = 0
    merges: int = 0
    half_ms: float = 0.0
    finished_ms: float = 0.0
    mean_share: float = 0.0
    curve: list[tuple[float, int]] = field(default_factory=list)


def early_results(streams: Streams, order: str, tick: Tick) -> Early:
    """Run PMJ on two streams that are there at once: time is work alone."""
    memory = 2 * streams.rows * 32 // PMJ_FAMILIES
    ends = (Column(0, F64), Column(1, F64))
    budget = Budget(memory, memory, memory)
    operator = ProgressiveMergeJoinSpec(
        (INTERVAL, INTERVAL), (ends, ends), Overlap(), None, budget, order
    ).build()
    found = Early(order)
    rows = streams.rows
    step = max(1, rows // (8 * PMJ_FAMILIES))
    with opened([operator], "greedy", PMJ_FAN_IN) as plan:

        def spent() -> float:
            work = plan.work
            return PAGE_MS * work.pages + ROW_MS * work.rows_merged + RESULT_MS * found.results

        def send(port: int, message: Batch | Heartbeat) -> None:
            for answer in operator.receive(port, message):
                if isinstance(answer, Batch):
                    found.results += len(answer)
                    found.curve.append((spent(), found.results))

        for first in range(0, rows, step):
            last = min(first + step, rows)
            for port in (0, 1):
                send(port, streams.batch(port, first, last, INF - 2 * rows))
            tick(last / rows)
        for port in (0, 1):
            send(port, Heartbeat(INF))
        found.pages, found.merges = plan.work.pages, plan.work.steps
        found.finished_ms = spent()
    found.half_ms = next(ms for ms, count in found.curve if 2 * count >= found.results)
    times = np.array([0.0, *(ms for ms, _ in found.curve), found.finished_ms])
    counts = np.array([0, *(count for _, count in found.curve)])
    found.mean_share = float((np.diff(times) * counts).sum() / found.finished_ms / found.results)
    return found


def pairs(streams: Streams) -> int:
    """Return the number of pairs of the first two streams that overlap, by brute force."""
    rows, reach = streams.rows, int(LENGTH)
    return sum(rows - abs(away) for away in range(-reach, reach + 1))


def _exact(text: str, found: int, expected: int) -> Bar:
    return Bar(f"{text}, missing or too many", abs(found - expected), 0, False)


@dataclass
class Report:
    """All that was measured."""

    rows: int
    seed: int
    expected: int
    best: list[int]
    runs: list[Run]
    spilled: list[Run]
    changing: Changing
    early: list[Early]
    expected_pairs: int

    def find(self, plan: str, strategy: str) -> Run:
        return next(r for r in self.runs if (r.plan, r.strategy) == (plan, strategy))

    def bars(self) -> list[Bar]:
        bars = []
        for run in [*self.runs, *self.spilled]:
            bars.append(_exact(f"results of {run.name}", run.results, self.expected))
            bars.append(Bar(f"{run.name}, out of order", float(not run.in_order), 0, False))
        changing = self.changing.results
        bars.append(_exact("results with changing rates", changing, self.expected))
        for early in self.early:
            name = f"results of PMJ in {early.order} order"
            bars.append(_exact(name, early.results, self.expected_pairs))
        for strategy in ("maxfanin", "greedy"):
            ratio = self.find("cascade", strategy).pages / self.find("four-way", strategy).pages
            bars.append(
                Bar(f"pages of the cascade to the four-way join, {strategy}", ratio, 4, True)
            )
        for plan in ("cascade", "four-way"):
            run = self.find(plan, "greedy")
            shares = [run.at(t) / self.best[i] for i, t in enumerate(self.tenths()) if self.best[i]]
            bars.append(Bar(f"least share of the best output at every tenth, {run.name}",
                            min(shares), 0.9, True))  # fmt: skip
        return bars

    def tenths(self) -> list[int]:
        return [i * self.rows // 10 for i in range(1, 11)]

    def as_json(self) -> dict[str, Any]:
        """Return what was measured; curves are thinned to at most 500 points."""
        content = asdict(self)
        for kind in ("runs", "spilled", "early"):
            for item, run in zip(content[kind], getattr(self, kind), strict=True):
                every = max(1, len(run.curve) // 500)
                thinned = [*run.curve[::every], run.curve[-1]]
                item["curve"] = [[round(ms, 1), count] for ms, count in thinned]
        for run, item in zip(self.runs + self.spilled, content["runs"] + content["spilled"],
                             strict=True):  # fmt: skip
            item["pages"] = run.pages
        content["cost_ms"] = {"page": PAGE_MS, "row": ROW_MS, "result": RESULT_MS}
        content["memory"] = MEMORY * self.rows // 100_000
        content["fan_in"] = FAN_IN
        content["bars"] = [asdict(bar) | {"met": bar.met} for bar in self.bars()]
        return content


PARTS = 2 + len(VARIANTS) + 2 + 3
"""Parts of a whole run, for progress bars."""


def measure(rows: int = 100_000, seed: int = 7, tick: Tick | None = None) -> Report:
    """Run all experiments; ``tick`` is told the share that is done."""
    streams = Streams.make(rows, 4, seed)
    done = 0

    def part(share: float) -> None:
        if tick is not None:
            tick((done + share) / PARTS)

    best = best_possible(streams)
    done += 1
    runs, spilled, early = [], [], []
    for plan, strategy in VARIANTS:
        runs.append(compare(streams, plan, strategy, ROOM_FOR_RESULTS, part))
        done += 1
    for plan, operators in (("cascade", 3), ("four-way", 1)):
        small = MEMORY * rows // 100_000 // operators
        spilled.append(compare(streams, plan, "maxfanin", small, part))
        done += 1
    changing = changing_rates(streams, part)
    done += 1
    for order in ("post", "late", "level"):
        early.append(early_results(streams, order, part))
        done += 1
    tenths = [int(best[i * rows // 10]) for i in range(1, 11)]
    return Report(rows, seed, int(best[-1]), tenths, runs, spilled, changing, early, pairs(streams))


def tables(report: Report) -> list[Table]:
    """Return what was measured as tables for the terminal."""
    pages = Table(title=f"Four-way overlap join: {report.expected:,} results", title_justify="left")
    for column in ("plan", "strategy", "for results"):
        pages.add_column(column)
    for column in ("results", "pages", "read", "written", "of results", "steps", "end, s"):
        pages.add_column(column, justify="right")
    for run in [*report.runs, *report.spilled]:
        pages.add_row(
            run.plan,
            run.strategy,
            f"{run.memory_for_results / 1e6:.1f} MB",
            f"{run.results:,}",
            f"{run.pages:,}",
            f"{run.pages_read:,}",
            f"{run.pages_written:,}",
            f"{run.result_pages:,}",
            f"{run.steps:,}",
            f"{run.finished_ms / 1000:.1f}",
        )
    early = Table(title=f"PMJ: {report.expected_pairs:,} results", title_justify="left")
    early.add_column("order")
    for column in ("results", "pages", "merges", "half after, s", "all after, s", "mean share"):
        early.add_column(column, justify="right")
    for item in report.early:
        early.add_row(
            item.order,
            f"{item.results:,}",
            f"{item.pages:,}",
            str(item.merges),
            f"{item.half_ms / 1000:.2f}",
            f"{item.finished_ms / 1000:.2f}",
            f"{item.mean_share:.1%}",
        )
    bars = Table(title="What must hold", title_justify="left")
    bars.add_column("figure")
    bars.add_column("measured", justify="right")
    bars.add_column("needed")
    bars.add_column("")
    for bar in report.bars():
        bars.add_row(
            bar.text, f"{bar.value:.3g}", bar.wanted, "yes" if bar.met else "[bold red]no[/]"
        )
    return [pages, early, bars]
