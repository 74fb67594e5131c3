"""The join for prioritised streams [A algorithms 1, 2], and what it gains [A 3.1.3].

It is the paper's, element by element, with three corrections.  Intervals are half-open, so a
stored element goes when the new start is *at or after* its end.  Only normal elements move the time
up to which an input has come.  A normal result may leave when its *start* is below that time.

A prioritised result leaves when it is made.  Normal ones leave by start, so what leaves is weakly
ordered; why no pair is lost or made twice: a pair is made when the later of the two comes, and only
a normal element, before which all with less time have come, lets others be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np


class Element(NamedTuple):
    """A value, valid in ``[start, end)``, with its priority; 0 is normal."""

    value: Any
    start: float
    end: float
    priority: int = 0


class SweepArea:
    """The elements of one input that may still find partners, by their ends."""

    def __init__(self) -> None:
        self._stored: list[tuple[float, int, Element]] = []
        self._came = count()

    def __len__(self) -> int:
        return len(self._stored)

    def insert(self, element: Element) -> None:
        heappush(self._stored, (element.end, next(self._came), element))

    def purge(self, by: Element) -> None:
        """Forget what cannot overlap any element that follows a normal one."""
        if by.priority == 0:
            while self._stored and by.start >= self._stored[0][0]:
                heappop(self._stored)

    def query(self, element: Element) -> Iterator[Element]:
        """Yield the elements that are valid together with one."""
        for _, _, stored in self._stored:
            if stored.start < element.end and element.start < stored.end:
                yield stored


class PriorityJoin:
    """Joins two weakly ordered streams; what it returns is one too."""

    def __init__(
        self,
        theta: Callable[[Any, Any], bool],
        new_priority: Callable[[int, int], int] = max,
    ) -> None:
        self._theta = theta
        self._new_priority = new_priority
        self.areas = (SweepArea(), SweepArea())
        self._come = [-math.inf, -math.inf]
        """The start of the last normal element of each input."""
        self._results: list[tuple[int, float, int, Element]] = []
        self._made = count()

    def receive(self, port: int, element: Element) -> list[Element]:
        """Take an element; return the results that may leave [algorithm 1]."""
        other = self.areas[1 - port]
        other.purge(element)
        self.areas[port].insert(element)
        for partner in other.query(element):
            first, second = (element, partner) if port == 0 else (partner, element)
            if self._theta(first.value, second.value):
                self._add(first, second)
        if element.priority == 0:
            self._come[port] = element.start
        return self._transfer(min(self._come))

    def finish(self) -> list[Element]:
        """Return what is left when both inputs have ended."""
        return self._transfer(math.inf)

    def _add(self, first: Element, second: Element) -> None:
        priority = self._new_priority(first.priority, second.priority)
        start, end = max(first.start, second.start), min(first.end, second.end)
        result = Element((first.value, second.value), start, end, priority)
        heappush(self._results, (-priority, start, next(self._made), result))

    def _transfer(self, until: float) -> list[Element]:
        """Return prioritised results, then normal ones that start before ``until`` [2]."""
        found = []
        while self._results and (self._results[0][0] < 0 or self._results[0][1] < until):
            found.append(heappop(self._results)[-1])
        return found


@dataclass(frozen=True)
class Case:
    """A plan with one join [A 3.1.3]; times in seconds.

    ``windows`` and ``rates`` of both inputs, the join's ``selectivity``, how many elements the
    prioritised one has ``overtaken``, and what an element costs in the join and a result behind it.
    """

    windows: tuple[float, float] = (1.0, 1.0)
    rates: tuple[float, float] = (100.0, 100.0)
    selectivity: float = 0.05
    overtaken: int = 0
    join_cost: float = 0.00002
    plan_cost: float = 0.0001

    @property
    def results(self) -> float:
        """Results per second."""
        (w0, w1), (f0, f1) = self.windows, self.rates
        return self.selectivity * f0 * f1 * (w0 + w1)

    @property
    def load(self) -> float:
        """The share of the time in which the worker is busy, once elements come evenly."""
        return sum(self.rates) * self.join_cost + self.results * self.plan_cost

    def estimate(self) -> float:
        """Return the paper's `t_win`: what results of a prioritised element gain."""
        (w0, w1), (f0, f1) = self.windows, self.rates
        share = w0 / (w0 + w1)
        later = sum((w1 + n / f0) * share for n in range(1, round(w0 * f0) + 1))
        wait = w0**2 / (2 * (w0 + w1))
        work = self.selectivity * (later + w0) * f1 * self.plan_cost
        return self.overtaken * self.join_cost + wait + work

    def refined(self, paced: bool) -> float:
        """Return our estimate: the mean over the results of what each waits for.

        A result whose partner started `u` later waits until its own input has come that far, and
        `results * u` others leave before it.  Where elements are still to come, that work, and that
        for the elements that are overtaken, fits into the waiting, unless it takes longer.
        """
        (w0, w1), (f0, _) = self.windows, self.rates
        later = (np.arange(1000) + 0.5) / 1000 * w0
        each = self.join_cost + self.results / f0 * self.plan_cost
        work = self.overtaken * each + later * f0 * each
        took = np.maximum(later, work) if paced else work
        return float(took.mean() * w0 + self.overtaken * each * w1) / (w0 + w1)


def measured(case: Case, paced: bool, seeds: Sequence[int]) -> float:
    """Return by how much results come earlier if the element overtakes, over some drawn streams."""
    gained = []
    for seed in seeds:
        late, early = (_mean_latency(case, paced, seed, first) for first in (False, True))
        if late is not None and early is not None:
            gained.append(late - early)
    return float(np.mean(gained))


def _mean_latency(case: Case, paced: bool, seed: int, overtakes: bool) -> float | None:
    """Run one worker: the join, and the plan behind it; None: the element has no partner.

    The element is there at time 0, behind those that it may overtake; all its partners are there.
    Those that follow on its input come evenly if ``paced``, otherwise they wait already.
    """
    (w0, w1), (f0, f1) = case.windows, case.rates
    chance = np.random.default_rng(seed)
    before, behind = round(w0 * f0) + case.overtaken, round(w0 * f0) + 2
    lefts = [Element(("l", n), n / f0, n / f0 + w0) for n in range(-before, behind + 1)]
    phase = chance.random()
    rights = [
        Element(("r", n), (n + phase) / f1, (n + phase) / f1 + w1)
        for n in range(-round((before / f0 + w1) * f1), round((behind / f0 + w0) * f1))
    ]
    fits = chance.random((len(lefts), len(rights))) < case.selectivity

    def theta(left: tuple[str, int], right: tuple[str, int]) -> bool:
        return bool(fits[left[1] + before, right[1] - rights[0].value[1]])

    join = PriorityJoin(theta)
    for element in rights:
        join.receive(1, element)
    here = before - case.overtaken
    for element in lefts[:here]:
        join.receive(0, element)
    waiting, later = lefts[here : before + 1], lefts[before + 1 :]
    chosen = waiting[-1]
    if overtakes:
        waiting = [chosen._replace(priority=10), *waiting[:-1]]
    now, done = 0.0, []
    for element in [*waiting, *later]:
        come = max(0.0, element.start) if paced else 0.0
        now = max(now, come) + case.join_cost
        for result in join.receive(0, element):
            now += case.plan_cost
            if result.value[0] == chosen.value:
                done.append(now)
    return float(np.mean(done)) if done else None
