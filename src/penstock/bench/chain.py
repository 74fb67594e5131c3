"""Chain and shared plans [D]: elements in memory over time, by the policy that chooses operators.

The paper's experiment: two queries that share their stream and their first operator, 1,000 elements
that wait, every operator takes 1 ms for an element.  What an operator makes is stored once and kept
until all its readers have taken it.  Without sharing, each query has the elements for itself.

Beside the paper's policies there is *merged Chain*: the segments of the chart of both queries
together, in which the readers of the shared output and what follows them are one path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.table import Table

from penstock.bench.bars import Bar, bars_table
from penstock.schedule.chart import Point, segments

ELEMENTS = 1000
CHARTS: dict[str, list[Point]] = {
    "Q1": [(0, 1.0), (1, 0.7), (2, 0.4), (3, 0.3), (4, 0.0)],
    "Q2": [(0, 1.0), (1, 0.7), (2, 0.3), (3, 0.2), (4, 0.0)],
}
SHOWN = (1000, 2000, 3000, 4000, 5000, 6000, 7000)
"""Milliseconds of the table."""


@dataclass(frozen=True)
class Operator:
    """An operator of a plan: whose output it reads (-1: the stream's), and the size it leaves."""

    reads: int
    size: float
    stream: int = 0


@dataclass(frozen=True)
class Unit:
    """Operators that an element passes without a break, and their priority."""

    operators: tuple[int, ...]
    priority: float = 0.0


@dataclass
class Plan:
    """Operators of queries over streams; each stream has as many elements waiting."""

    operators: list[Operator]
    streams: int = 1
    done: list[int] = field(init=False)
    _readers: dict[tuple[int, int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.done = [0] * len(self.operators)
        self._readers = {}
        for number, operator in enumerate(self.operators):
            at = (-1, operator.stream) if operator.reads < 0 else (operator.reads, 0)
            self._readers.setdefault(at, []).append(number)

    def made(self, operator: Operator) -> int:
        """Return how many elements there ever were for an operator."""
        return ELEMENTS if operator.reads < 0 else self.done[operator.reads]

    def is_ready(self, number: int) -> bool:
        """Whether an element waits for an operator."""
        operator = self.operators[number]
        return self.done[number] < self.made(operator)

    def memory(self) -> float:
        """Return the size of all elements that some operator must still read."""
        total = 0.0
        for (producer, _), readers in self._readers.items():
            made = ELEMENTS if producer < 0 else self.done[producer]
            size = 1.0 if producer < 0 else self.operators[producer].size
            total += size * (made - min(self.done[reader] for reader in readers))
        return total

    def under_way(self) -> int:
        """Return how many elements have passed the first operator and not all of them."""
        return self.done[0] - min(self.done)


def shared() -> Plan:
    """The first operator, 0, then those of the first query, 1 to 3, and of the second, 4 to 6."""
    one, two = CHARTS["Q1"], CHARTS["Q2"]
    first = [Operator(-1, one[1][1])]
    rest = [Operator(0 if n == 2 else n - 2, one[n][1]) for n in (2, 3, 4)]
    other = [Operator(0 if n == 2 else n + 1, two[n][1]) for n in (2, 3, 4)]
    return Plan(first + rest + other)


def unshared() -> Plan:
    """Each query alone, with a copy of the stream."""
    found: list[Operator] = []
    for stream, points in enumerate(CHARTS.values()):
        base = len(found)
        for n, (_, size) in enumerate(points[1:]):
            found.append(Operator(-1 if n == 0 else base + n - 1, size, stream))
    return Plan(found, len(CHARTS))


# The policies, as units of work and their priorities


def of_path(operators: Sequence[int], points: Sequence[Point]) -> list[Unit]:
    """Return the segments of a path by Chain."""
    return [Unit(tuple(operators[s.first : s.last]), s.slope) for s in segments(points)]


def chain() -> list[Unit]:
    """Chain without sharing: the segments of each query."""
    units = []
    for number, points in enumerate(CHARTS.values()):
        units += of_path(range(4 * number, 4 * number + 4), points)
    return units


def shared_chain() -> list[Unit]:
    """Shared Chain: the prefix, the readers of its output as one segment, and each rest."""
    one, two = CHARTS["Q1"], CHARTS["Q2"]
    size = one[1][1]
    kept = (one[2][1] + two[2][1]) / (2 * size)  # the mean selectivity of the readers
    serial = Unit((1, 4), size * (1 - kept) / 2)
    return [
        *of_path((0,), one[:2]),
        serial,
        *of_path((2, 3), one[2:]),
        *of_path((5, 6), two[2:]),
    ]


def merged_chain() -> list[Unit]:
    """Merged Chain: the segments of one chart in which all operators follow one another."""
    one, two = CHARTS["Q1"], CHARTS["Q2"]
    order = (0, 1, 4, 2, 3, 5, 6)
    sizes = [
        one[1][1],
        one[1][1] + one[2][1],  # the shared element waits for its second reader
        one[2][1] + two[2][1],
        one[3][1] + two[2][1],
        one[4][1] + two[2][1],
        two[3][1],
        two[4][1],
    ]
    points = [(0.0, 1.0), *((float(n + 1), size) for n, size in enumerate(sizes))]
    return of_path(order, points)


def greedy() -> list[Unit]:
    """Greedy: each operator by what it takes away per unit of time, as if nobody shared."""
    plan = shared()
    units = []
    for number, operator in enumerate(plan.operators):
        before = 1.0 if operator.reads < 0 else plan.operators[operator.reads].size
        units.append(Unit((number,), before - operator.size))
    return units


def fifo() -> list[Unit]:
    """First in, first out: an element passes the first query, then the second."""
    return [Unit((0, 1, 2, 3, 4, 5, 6))]


Chooser = Callable[[Plan, Sequence[Unit]], Unit]


def by_priority(plan: Plan, units: Sequence[Unit]) -> Unit:
    """Return the unit with the highest priority for which an element waits."""
    ready = [unit for unit in units if plan.is_ready(unit.operators[0])]
    return max(ready, key=lambda unit: unit.priority)


class InTurn:
    """Gives every unit for which an element waits one turn after the other."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, plan: Plan, units: Sequence[Unit]) -> Unit:
        for step in range(1, len(units) + 1):
            at = (self._last + step) % len(units)
            if plan.is_ready(units[at].operators[0]):
                self._last = at
                return units[at]
        raise AssertionError("something must be ready")


def bounded(most: int) -> Chooser:
    """Choose by priority, but admit nothing while so many elements are under way."""

    def choose(plan: Plan, units: Sequence[Unit]) -> Unit:
        ready = [unit for unit in units if plan.is_ready(unit.operators[0])]
        if plan.under_way() >= most:
            ready = [unit for unit in ready if unit.operators[0] != 0] or ready
        return max(ready, key=lambda unit: unit.priority)

    return choose


def run(plan: Plan, units: Sequence[Unit], choose: Chooser) -> list[float]:
    """Return the memory at the start and after every millisecond, until nothing waits."""
    found = [plan.memory()]
    while any(plan.is_ready(unit.operators[0]) for unit in units):
        for number in choose(plan, units).operators:
            plan.done[number] += 1
            found.append(plan.memory())
    return found


POLICIES: dict[str, Callable[[], list[float]]] = {
    "FIFO": lambda: run(shared(), fifo(), by_priority),
    "round robin": lambda: run(shared(), [Unit((n,)) for n in range(7)], InTurn()),
    "greedy": lambda: run(shared(), greedy(), by_priority),
    "Chain, unshared": lambda: run(unshared(), chain(), by_priority),
    "shared Chain": lambda: run(shared(), shared_chain(), by_priority),
    "shared Chain, bounded": lambda: run(shared(), shared_chain(), bounded(len(CHARTS))),
    "merged Chain": lambda: run(shared(), merged_chain(), by_priority),
}


@dataclass
class Report:
    """The curves of all policies: what is in memory after each millisecond, in elements."""

    curves: dict[str, list[float]]

    def at(self, policy: str, time: int) -> float:
        """Return the memory of a policy at an instant; nothing is left after its end."""
        curve = self.curves[policy]
        return curve[time] if time < len(curve) else 0.0

    def area(self, policy: str) -> float:
        """Return the area under a curve, in elements times milliseconds."""
        curve = self.curves[policy]
        return sum((a + b) / 2 for a, b in pairwise(curve))

    def crossing(self) -> int:
        """Return the instant from which on shared Chain is no longer below FIFO.

        While an element passes, a curve goes up and down by less than its size.
        """
        last = len(self.curves["FIFO"])
        above = [t for t in range(last) if self.at("shared Chain", t) < self.at("FIFO", t) - 1]
        return max(above) + 1

    def bars(self) -> Iterator[Bar]:
        """What must hold."""
        half = range(1, 3501)
        ours, merged = "shared Chain", "merged Chain"
        for other in ("FIFO", "Chain, unshared"):
            yield Bar(
                f"area of shared Chain, of that of {other}",
                self.area(ours) / self.area(other),
                1.0,
                False,
            )
            above = max(self.at(ours, t) - self.at(other, t) for t in half)
            yield Bar(f"shared Chain above {other} in the first half, at most", above, 1.0, False)
        tenths = [round(7000 * n / 10) for n in range(1, 10)]
        lowest = max(
            self.at(merged, t) - min(self.at(p, t) for p in self.curves if p != merged)
            for t in tenths
        )
        yield Bar("merged Chain above the lowest other at a tenth, at most", lowest, 1.0, False)
        least = min(self.area(p) for p in self.curves if p != merged)
        yield Bar("area of merged Chain, of the least other", self.area(merged) / least, 1.0, False)
        bound = max(
            self.at("shared Chain, bounded", t) - self.at("Chain, unshared", t)
            for t in range(len(self.curves["Chain, unshared"]))
        )
        yield Bar("bounded shared Chain above unshared Chain, at any step", bound, 0.0, False)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers; of the curves every tenth millisecond."""
        return {
            "elements": ELEMENTS,
            "curves": {name: curve[::10] for name, curve in self.curves.items()},
            "areas": {name: self.area(name) for name in self.curves},
            "crossing": self.crossing(),
            "bars": [vars(bar) | {"met": bar.met} for bar in self.bars()],
        }


def measure() -> Report:
    """Run all policies."""
    return Report({name: make() for name, make in POLICIES.items()})


def tables(report: Report) -> Iterator[Table]:
    """Yield what is shown: memory at some instants, and the bars."""
    found = Table(title="elements in memory after so many seconds, and the area in millions")
    found.add_column("policy", no_wrap=True)
    for time in SHOWN:
        found.add_column(f"{time // 1000}", justify="right")
    found.add_column("area", justify="right")
    for policy in report.curves:
        values = [f"{report.at(policy, time):,.0f}" for time in SHOWN]
        found.add_row(policy, *values, f"{report.area(policy) / 1e6:.2f}")
    yield found
    yield bars_table(f"from {report.crossing():,} ms on FIFO is below shared Chain", report.bars())
