"""The plan of the priority experiment [A 5]: operators that only cost time and let elements pass.

Sixty operators, nine deep, over two sources.  As in the paper they are simulated: each has a cost
and a selectivity, binary ones pass elements of both inputs on.  What becomes of an element at an
operator is drawn once, before any run: all queues and schedulers do the same work, in another
order.

Buffers stand where a `Placement` says.  Between two buffers an element is pushed through without a
break.  So all that can happen to it from one buffer on is computed beforehand (`Fates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

import numpy as np

PRIORITIES = (0, 8, 9, 10)
SHARE = 0.1
"""Of each priority above 0."""
RATE = 10_000
"""Elements per second of each source."""
BURST = 10
"""Elements that a source hands over together, once a millisecond: its timer's step."""

SINK, END = -1, -2
"""Where an element goes if not to a buffer: it is an answer; nothing is left to be done."""

Fate: TypeAlias = tuple[tuple[float, int], ...]
"""Steps of (microseconds of work, where the element is then)."""


@dataclass(frozen=True)
class Operator:
    """An operator; ``inputs`` are the operators whose output it reads, -1 - n is source n."""

    name: str
    inputs: tuple[int, ...]
    cost: float
    selectivity: float = 1.0

    @property
    def is_binary(self) -> bool:
        return len(self.inputs) > 1

    @property
    def is_priority(self) -> bool:
        return self.name.startswith("priority")


def operators() -> list[Operator]:
    """Return the plan, sources first.

    A priority operator, two selections that three queries share each, a selection and a projection
    for each, six joins of both sources, three joins of these, and twelve answers.
    """
    found: list[Operator] = []

    def add(name: str, inputs: Sequence[int], cost: float, selectivity: float = 1.0) -> int:
        found.append(Operator(name, tuple(inputs), cost, selectivity))
        return len(found) - 1

    sides: list[list[int]] = []
    first = [add(f"priority {source}", (-1 - source,), 1.0) for source in (0, 1)]
    shared = [[add("select", (p,), 6.0, part) for part in (0.45, 0.3)] for p in first]
    for selections in shared:
        own = [
            add("select", (s,), cost, part)
            for s in selections
            for cost, part in ((4.0, 0.1), (5.0, 0.2), (6.0, 0.3))
        ]
        sides.append([add("project", (at,), 4.0) for at in own])
    joins = [add("join", pair, 20.0, 0.5) for pair in zip(*sides, strict=True)]
    for at in joins:
        add("answer", (at,), 8.0)
    passed = [add("select", (at,), 8.0, 0.8) for at in joins]
    for pair in zip(passed[:3], passed[3:], strict=True):
        upper = add("join", pair, 20.0, 0.5)
        add("answer", (upper,), 8.0)
        add("answer", (add("select", (upper,), 8.0, 0.5),), 8.0)
    return found


@dataclass(frozen=True)
class Placement:
    """Where buffers stand besides those above the sources, without which nothing can wait.

    ``early``: the priority operator works where the source is read, in front of the first buffer,
    so that there is no place in which an alarm looks like any other element.
    """

    binary: bool = True
    priority: bool = True
    early: bool = False


PLACEMENTS = {
    "after sources": Placement(binary=False, priority=False),
    "and before joins": Placement(priority=False),
    "and behind the priority operator": Placement(binary=False),
    "all three (paper)": Placement(),
    "priority in front of the first buffer": Placement(binary=False, priority=False, early=True),
    "the same, and before joins": Placement(priority=False, early=True),
}


@dataclass(frozen=True)
class Data:
    """What the sources bring, and what becomes of each element at each operator.

    Elements of all sources are numbered together in the order in which they come.  ``passes`` has a
    row for each operator and port.
    """

    arrival: np.ndarray
    source: np.ndarray
    priority: np.ndarray
    passes: dict[tuple[int, int], np.ndarray]

    @staticmethod
    def make(
        plan: Sequence[Operator], elements: int, seed: int, sources: int = 2, burst: int = BURST
    ) -> Data:
        """Return so many elements of each source; times are in microseconds."""
        chance = np.random.default_rng(seed)
        tick = 1e6 / RATE * burst
        total = elements * sources
        number = np.arange(total)
        source = number // burst % sources
        arrival = (number // (burst * sources)) * tick + source * tick / sources
        share = len(PRIORITIES) - 1
        classes = np.minimum(chance.random(total) / SHARE, share).astype(int)
        priority = np.array([*PRIORITIES[1:], 0])[classes]
        passes = {
            (at, port): chance.random(total) < operator.selectivity
            for at, operator in enumerate(plan)
            for port in range(len(operator.inputs))
        }
        return Data(arrival, source, priority, passes)


@dataclass
class Buffer:
    """A buffer: the operators that it feeds, each with its port, and the source below it."""

    feeds: list[tuple[int, int]]
    source: int | None = None


@dataclass
class Buffers:
    """The buffers of a plan, numbered from the sources up, or from the answers down."""

    plan: Sequence[Operator]
    placement: Placement
    downwards: bool = False
    buffers: list[Buffer] = field(default_factory=list)
    _behind: dict[int, int] = field(default_factory=dict)
    _before: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers: dict[int, list[tuple[int, int]]] = {}
        for at, operator in enumerate(self.plan):
            for port, below in enumerate(operator.inputs):
                self.readers.setdefault(below, []).append((at, port))
        made: list[tuple[Buffer, str, tuple[int, int]]] = []
        for below in sorted((b for b in self.readers if b < 0), reverse=True):
            made.append((Buffer(self.readers[below], -1 - below), "source", (0, 0)))
        for at, operator in enumerate(self.plan):
            if operator.is_priority and self.placement.priority:
                made.append((Buffer(self.readers[at]), "behind", (at, 0)))
            if operator.is_binary and self.placement.binary:
                for port in range(len(operator.inputs)):
                    made.append((Buffer([(at, port)]), "before", (at, port)))
        if self.downwards:
            made.reverse()
        for number, (buffer, where, key) in enumerate(made):
            self.buffers.append(buffer)
            if where == "behind":
                self._behind[key[0]] = number
            elif where == "before":
                self._before[key] = number

    def goes_to(self, at: int) -> Iterator[tuple[int, tuple[int, int] | None]]:
        """Yield where an operator's output goes: (buffer or `SINK`, None) or (-, operator)."""
        if at in self._behind:
            yield self._behind[at], None
            return
        readers = self.readers.get(at, [])
        if not readers:
            yield SINK, None
        for reader in readers:
            if reader in self._before:
                yield self._before[reader], None
            else:
                yield END, reader

    def consumers(self) -> dict[int, list[int]]:
        """Return the buffers that each one leads to."""
        return {
            number: sorted({to for _, to in self._steps(number, None, 0) if to >= 0})
            for number in range(len(self.buffers))
        }

    def fates(self, data: Data) -> list[list[Fate]]:
        """Return, for each buffer, what becomes of each element from there on."""
        return [self._fates_of(number, data) for number in range(len(self.buffers))]

    def _fates_of(self, number: int, data: Data) -> list[Fate]:
        """Elements that pass the same operators have the same fate, computed once."""
        code = np.zeros(len(data.arrival), np.int64)
        passed: list[np.ndarray] = []
        for bit, (visit, before) in enumerate(self._visits(number)):
            here = data.passes[visit]
            passed.append(here if before is None else here & passed[before])
            code |= passed[-1].astype(np.int64) << bit
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        made = np.empty(len(first), object)
        for n, element in enumerate(first.tolist()):
            made[n] = tuple(self._steps(number, data, element))
        fates: list[Fate] = made[place].tolist()
        return fates

    def _visits(self, number: int) -> Iterator[tuple[tuple[int, int], int | None]]:
        """Yield what an element may pass before a buffer: (operator, port), after which other."""
        waiting: list[tuple[tuple[int, int], int | None]] = [
            (feed, None) for feed in self.buffers[number].feeds
        ]
        for place in count():
            if not waiting:
                return
            visit, before = waiting.pop()
            yield visit, before
            after = (reader for _, reader in self.goes_to(visit[0]) if reader is not None)
            waiting += [(reader, place) for reader in after]

    def _steps(self, number: int, data: Data | None, element: int) -> Iterator[tuple[float, int]]:
        """Yield the steps of an element from a buffer on; without data it passes everywhere."""
        spent = 0.0
        waiting: list[tuple[int, tuple[int, int] | None]] = [
            (END, feed) for feed in reversed(self.buffers[number].feeds)
        ]
        while waiting:
            to, visit = waiting.pop()
            if visit is None:
                yield spent, to
                spent = 0.0
                continue
            operator = self.plan[visit[0]]
            if not (self.placement.early and operator.is_priority):
                spent += operator.cost
            if data is None or data.passes[visit][element]:
                waiting += reversed(list(self.goes_to(visit[0])))
        if spent:
            yield spent, END
