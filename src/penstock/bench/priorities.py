"""Prioritised elements [A 5]: every buffer with every scheduler, in virtual time.

Two sources of 10,000 elements a second, 100,000 each, a plan of 60 operators that processes 1.4
million elements, priorities 0, 8, 9 and 10 with 10 % each above 0.  What is told is the mean
latency of the answers, relative to that with normal buffers.  Beside it: the same with more work
than time, other places for buffers, and the estimate of section 3.1.3.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from rich.table import Table

from penstock.bench import priority_join
from penstock.bench.bars import Bar, bars_table
from penstock.bench.priority_plan import (
    BURST,
    PLACEMENTS,
    PRIORITIES,
    RATE,
    Buffers,
    Data,
    Operator,
    operators,
)
from penstock.bench.priority_run import SCHEDULERS, VARIANTS, Outcome, Run
from penstock.bench.virtual import Tick
from penstock.queues.prioritised import QUEUES

PAPER = "all three (paper)"
OURS = "priority in front of the first buffer"
KINDS = tuple(QUEUES)
OVERLOAD = 1.1
"""Seconds of work that come in a second, for the second part."""
PLACED = (("min-latency", False), ("highest priority", True), ("both joined", False))
"""The schedulers with which places are compared."""
CHOSEN = ((100, 0.0), (500, 0.0), (BURST, 0.7), (BURST, 0.8), (BURST, 0.95))
"""Other (bursts, loads), to see how much hangs on those that we chose."""
DYNAMIC = ("biggest queue", "highest priority")
SOURCES = 2
SEEDS = 12


@dataclass(frozen=True)
class Case:
    """What is run; ``load`` 0 is the plan as it is."""

    scheduler: str
    kind: str
    whole: bool
    placement: str = PAPER
    load: float = 0.0
    burst: int = BURST

    @property
    def label(self) -> str:
        return self.scheduler + "+" * self.whole


@dataclass(frozen=True)
class Numbers:
    """What a run gave; latencies are means in ms, by priority."""

    latency: dict[int, float]
    prioritised: float
    overall: float
    worst: float
    """Of 99 in 100 prioritised answers."""
    seconds: float
    decisions: int
    longest: int
    answers: int

    @staticmethod
    def of(outcome: Outcome) -> Numbers:
        important = np.concatenate([outcome.latency[p] for p in PRIORITIES if p])
        return Numbers(
            {p: outcome.mean(p) for p in PRIORITIES},
            outcome.prioritised,
            outcome.overall,
            float(np.quantile(important, 0.99)),
            outcome.seconds,
            outcome.decisions,
            outcome.longest,
            sum(map(len, outcome.latency.values())),
        )


def work_of(plan: Sequence[Operator]) -> tuple[float, float]:
    """Return the operators that an element of a source passes, and the microseconds of that."""
    rates = {-1 - source: 1.0 / SOURCES for source in range(SOURCES)}
    passed = spent = 0.0
    for at, operator in enumerate(plan):
        come = sum(rates[below] for below in operator.inputs)
        passed, spent = passed + come, spent + come * operator.cost
        rates[at] = come * operator.selectivity
    return passed, spent


def plan_of(load: float) -> list[Operator]:
    """Return the plan, with so many seconds of work a second; 0: as it is."""
    plan = operators()
    factor = load * 1e6 / (RATE * SOURCES) / work_of(plan)[1] if load else 1.0
    return [replace(operator, cost=operator.cost * factor) for operator in plan]


def cases() -> list[Case]:
    """Return everything that is run."""
    both = (False, True)
    found = [Case(name, k, whole) for name in SCHEDULERS for whole in both for k in KINDS]
    some = ("normal", "direct", "weak", "levels")
    for name, whole in product(SCHEDULERS, both):
        found += [Case(name, k, whole, load=OVERLOAD) for k in some]
        found += [Case(name, k, whole, OURS, OVERLOAD) for k in ("normal", "levels")]
    for placement in PLACEMENTS:
        if placement != PAPER:
            found += [Case(name, "direct", whole, placement) for name, whole in PLACED]
    pair = ("normal", "direct")
    found += [Case(name, k, False) for name in VARIANTS for k in pair]
    chosen = product(CHOSEN, ("highest priority", "both joined"))
    return found + [
        Case(name, k, False, load=load, burst=burst) for (burst, load), name in chosen for k in pair
    ]


def run_group(group: Sequence[Case], elements: int, seed: int) -> list[Numbers]:
    """Run cases that differ only in their queues and turns."""
    first = group[0]
    scheduler = (SCHEDULERS | VARIANTS)[first.scheduler]
    plan = plan_of(first.load)
    data = Data.make(plan, elements, seed, burst=first.burst)
    buffers = Buffers(plan, PLACEMENTS[first.placement], scheduler.downwards)
    fates = buffers.fates(data)
    return [
        Numbers.of(Run(data, buffers, scheduler, one.kind, one.whole, fates).run()) for one in group
    ]


@dataclass
class Report:
    """All runs, and the estimate beside what was measured."""

    elements: int
    runs: dict[Case, Numbers]
    estimates: list[dict[str, Any]] = field(default_factory=list)

    def ratio(self, case: Case, priority: int | None) -> float:
        """Return a latency relative to that with normal buffers; None: all above 0."""
        one, base = self.runs[case], self.runs[replace(case, kind="normal")]
        if priority is None:
            return one.prioritised / base.prioritised
        return one.latency[priority] / base.latency[priority]

    def gain(self, scheduler: str, kind: str) -> float:
        """Return how many times less prioritised elements wait, with or without `+`."""
        return max(1 / self.ratio(Case(scheduler, kind, w), None) for w in (False, True))

    def bars(self) -> Iterator[Bar]:
        """What the paper reports, and what our own parts must reach."""
        runs = self.runs
        all_of = [(name, whole) for name in SCHEDULERS for whole in (False, True)]
        yield Bar("highest priority, direct: gain", self.gain("highest priority", "direct"),
                  50, True)  # fmt: skip
        gains = sum(self.ratio(Case(s, "direct", w), None) < 0.95 for s, w in all_of)
        yield Bar("of 12 schedulers with direct buffers, those that gain", gains, 11, True)
        better = sum(
            runs[Case(s, "direct", w)].prioritised < runs[Case(s, "weak", w)].prioritised
            for s, w in all_of
        )
        yield Bar("of 12 schedulers, those where direct beats weak", better, 11, True)
        steady = [(s, w) for s, w in all_of if w or s not in DYNAMIC]
        slower = max(
            runs[Case(s, k, w)].seconds / runs[Case(s, "normal", w)].seconds
            for s, w in steady
            for k in KINDS
        )
        yield Bar("run time, of that with normal buffers, without the dynamic ones", slower, 1.02,
                  False)  # fmt: skip
        longer = min(runs[Case(s, "normal", False)].seconds for s in DYNAMIC)
        usual = runs[Case("round robin", "normal", False)].seconds
        yield Bar("run time of dynamic schedulers, of round robin's", longer / usual, 1.03, True)
        yield from self._ours()
        answers: dict[int, set[int]] = {}  # with other bursts the sources bring other elements
        for case, found in runs.items():
            answers.setdefault(case.burst, set()).add(found.answers)
        differ = max(map(len, answers.values()))
        yield Bar("different numbers of answers to the same elements", differ, 1, False)

    def _ours(self) -> Iterator[Bar]:
        joined = self.runs[Case("both joined", "direct", False)]
        least = self.runs[Case("min-latency", "normal", False)]
        highest = self.runs[Case("highest priority", "direct", False)]
        yield Bar("both joined: mean latency of all, of min-latency's", joined.overall
                  / least.overall, 1.1, False)  # fmt: skip
        yield Bar("both joined: latency of prioritised, of highest priority's",
                  joined.prioritised / highest.prioritised, 1.0, False)  # fmt: skip
        name, whole = PLACED[0]
        ours = self.runs[Case(name, "direct", whole, OURS)]
        theirs = self.runs[Case(name, "direct", whole)]
        yield Bar("our place for priorities: latency of all, of the paper's", ours.overall
                  / theirs.overall, 1.0, False)  # fmt: skip
        yield Bar("and of prioritised", ours.prioritised / theirs.prioritised, 0.5, False)
        least_gain = min(
            1 / self.ratio(Case(name, "levels", False, OURS, OVERLOAD), None) for name in SCHEDULERS
        )
        yield Bar("our place, overload: least gain of a scheduler without +", least_gain, 50, True)
        off = max(
            abs(e[f"measured, {how}"] / e[f"refined, {how}"] - 1)
            for e in self.estimates
            for how in ("paced", "waiting")
        )
        yield Bar("measured gain of a join off our estimate, at most", off, 0.15, False)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers."""
        passed, spent = work_of(operators())
        return {
            "elements": self.elements,
            "processed": round(passed * self.elements * SOURCES),
            "load": spent * RATE * SOURCES / 1e6,
            "runs": [
                asdict(case)
                | asdict(found)
                | {"latency": {str(p): mean for p, mean in found.latency.items()}}
                for case, found in self.runs.items()
            ],
            "estimates": self.estimates,
            "bars": [vars(bar) | {"met": bar.met} for bar in self.bars()],
        }


def measure(elements: int, seed: int, processes: int, tick: Tick = lambda share: None) -> Report:
    """Run everything, in as many processes as told."""
    todo = cases()
    groups: dict[Case, list[Case]] = {}
    for case in todo:
        groups.setdefault(replace(case, kind="", whole=False), []).append(case)
    order = sorted(groups.values(), key=len, reverse=True)
    found: dict[Case, Numbers] = {}
    for group, numbers in zip(order, _runs_of(order, elements, seed, processes), strict=True):
        found |= zip(group, numbers, strict=True)
        tick(len(found) / (len(todo) + 1))
    return Report(elements, {case: found[case] for case in todo}, estimates())


def _runs_of(
    groups: Sequence[Sequence[Case]], elements: int, seed: int, processes: int
) -> Iterable[list[Numbers]]:
    if processes <= 1:
        for group in groups:
            yield run_group(group, elements, seed)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        yield from pool.map(
            run_group, groups, [elements] * len(groups), [seed] * len(groups), chunksize=1
        )


def estimates() -> list[dict[str, Any]]:
    """Return what section 3.1.3 estimates for one join, and what is measured."""
    asked = [
        priority_join.Case(),
        priority_join.Case(overtaken=50),
        priority_join.Case(windows=(2.0, 1.0)),
        priority_join.Case(windows=(1.0, 2.0)),
        priority_join.Case(plan_cost=0.0008),
        priority_join.Case(plan_cost=0.002),
    ]
    found = []
    for case in asked:
        numbers: dict[str, Any] = asdict(case) | {"load": case.load, "estimate": case.estimate()}
        for how, paced in (("paced", True), ("waiting", False)):
            numbers[f"measured, {how}"] = priority_join.measured(case, paced, range(SEEDS))
            numbers[f"refined, {how}"] = case.refined(paced)
        found.append(numbers)
    return found


# What is shown


def tables(report: Report) -> Iterator[Table]:
    """Yield the tables for a terminal."""
    yield _grid(report)
    yield _overload(report)
    yield _chosen(report)
    yield _places(report)
    yield _estimates(report)
    yield bars_table("what must hold", report.bars())


def _grid(report: Report) -> Table:
    classes = [f"p {p}" for p in PRIORITIES]
    table = Table(title="mean latency, relative to normal buffers, by priority", pad_edge=False)
    table.add_column("scheduler", no_wrap=True)
    table.add_column("buffers", no_wrap=True)
    for name in (*classes, "all, ms", "p > 0, ms", "run, s"):
        table.add_column(name, justify="right")
    for case, found in report.runs.items():
        if case.placement != PAPER or case.load or case.burst != BURST:
            continue
        ratios = [f"{report.ratio(case, p):.3f}" for p in PRIORITIES]
        told = [f"{found.overall:.2f}", f"{found.prioritised:.3f}", f"{found.seconds:.2f}"]
        end = case.kind == KINDS[-1] or (case.scheduler not in SCHEDULERS and case.kind != "normal")
        table.add_row(case.label, case.kind, *ratios, *told, end_section=end)
    return table


def _overload(report: Report) -> Table:
    table = Table(
        title=f"the same with {OVERLOAD} s of work a second: prioritised / normal elements",
        caption="ours: priorities in front of the first buffer, a list for each",
        pad_edge=False,
    )
    table.add_column("scheduler", no_wrap=True)
    for name in ("direct", "weak", "levels", "all, ms", "ours", "all, ms"):
        table.add_column(name, justify="right")
    for name, whole in product(SCHEDULERS, (False, True)):
        cells = []
        for place, kinds in ((PAPER, ("direct", "weak", "levels")), (OURS, ("levels",))):
            for kind in kinds:
                case = Case(name, kind, whole, place, OVERLOAD)
                cells.append(f"{report.ratio(case, None):.4f} / {report.ratio(case, 0):.2f}")
            cells.append(f"{report.runs[replace(case, kind='normal')].overall:,.0f}")
        table.add_row(name + "+" * whole, *cells)
    return table


def _chosen(report: Report) -> Table:
    table = Table(title="other bursts and loads, without +: gain of direct buffers / of all, ms")
    for name in ("burst", "load", "highest priority", "both joined"):
        table.add_column(name, justify="right")
    own = work_of(operators())[1] * RATE * SOURCES / 1e6
    for burst, load in ((BURST, 0.0), *CHOSEN):
        cells = []
        for name in ("highest priority", "both joined"):
            case = Case(name, "direct", False, load=load, burst=burst)
            gained = 1 / report.ratio(case, None)
            cells.append(f"{gained:,.1f} / {report.runs[case].overall:,.2f}")
        table.add_row(str(burst), f"{load or own:.2f}", *cells)
    return table


def _places(report: Report) -> Table:
    table = Table(title="where buffers stand: ms, of prioritised / of all; direct buffers")
    table.add_column("place", no_wrap=True)
    for name, whole in PLACED:
        table.add_column(name + "+" * whole, justify="right")
    for placement in PLACEMENTS:
        cells = [report.runs[Case(s, "direct", w, placement)] for s, w in PLACED]
        table.add_row(placement, *(f"{c.prioritised:.2f}/{c.overall:.2f}" for c in cells))
    return table


def _estimates(report: Report) -> Table:
    table = Table(title="gain of a join's prioritised results, ms: estimate and measurement")
    names = ("windows", "overtaken", "load", "t_win", "measured", "ours", "waiting", "ours")
    for name in names:
        table.add_column(name, justify="right")
    for e in report.estimates:
        told = [
            f"{1000 * e[name]:.0f}"
            for name in ("estimate", "measured, paced", "refined, paced",
                         "measured, waiting", "refined, waiting")
        ]  # fmt: skip
        windows = " ".join(f"{w:g}" for w in e["windows"])
        table.add_row(windows, str(e["overtaken"]), f"{e['load']:.2f}", *told)
    return table
