"""One run of the priority experiment [A 5]: a plan, its buffers and a scheduler in virtual time.

One worker takes elements from buffers and pushes each through operators until the next buffer; the
sources have a thread of their own.  Queues and policies are those of the engine.  Only time is
computed: operators cost what the plan says, and so do these, in microseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.bench.priority_plan import PRIORITIES, SINK, Buffers, Data, Fate
from penstock.queues.prioritised import PriorityQueue, priority_queue
from penstock.schedule.board import Board, Known
from penstock.schedule.policy import Policy, policy

TURN = 0.5
"""Calling a scheduler, and handing a buffer to the worker."""
LOOK = 0.15
"""Looking at a buffer: its lock, its length or first element."""
PUT = 0.2
"""Putting an element into a list."""
WALK = 0.01
"""Passing an element while a place in a sorted list is looked for."""


@dataclass(frozen=True)
class Scheduler:
    """A policy of the engine, and how many buffers it looks at to decide."""

    name: str
    policy: str
    looks: Callable[[int], float] = lambda buffers: 1.0
    downwards: bool = False
    """Whether it counts buffers from the answers down."""
    blind: bool = False
    """Whether elements without a priority yet count as normal ones."""
    sorts: bool = False
    """Whether it lets all of those that wait have their priority in one turn."""


def _all(buffers: int) -> float:
    return float(buffers)


def _heap(buffers: int) -> float:
    return 1.0 + math.log2(buffers)


SCHEDULERS = {
    one.name: one
    for one in (
        Scheduler("round robin", "roundrobin", downwards=True),
        Scheduler("min-cost", "roundrobin"),
        Scheduler("min-latency", "minlatency"),
        Scheduler("biggest queue", "biggest", _all),
        Scheduler("highest priority", "highestpriority", _all),
        Scheduler("both joined", "minlatencypriority", _heap, sorts=True),
    )
}
BLIND = Scheduler("highest priority, unknown last", "highestpriority", _all, blind=True)
KEPT = Scheduler("highest priority, order kept", "highestpriority", _heap)
ALIKE = Scheduler("highest priority, as both joined", "highestpriority", _heap, sorts=True)
SINGLE = Scheduler("both joined, one by one", "minlatencypriority", _heap)
LOOKING = Scheduler("both joined, all looked at", "minlatencypriority", _all, sorts=True)
VARIANTS = {one.name: one for one in (BLIND, KEPT, ALIKE, SINGLE, LOOKING)}
"""What the named schedulers owe to what: one thing is different in each."""


class BufferBoard(Board):
    """What policies see of the buffers."""

    buffers: Sequence[PriorityQueue[object]]

    def is_ready(self, at: int) -> bool:
        return len(self.buffers[at]) > 0

    def bytes(self, at: int) -> int:
        return len(self.buffers[at])

    def oldest(self, at: int) -> int:
        return 0


@dataclass
class Outcome:
    """What a run gave: the latency of every answer, in ms, by the priority of its element."""

    latency: dict[int, np.ndarray]
    seconds: float
    """When all was done."""
    decisions: int
    longest: int
    """Most elements that ever waited."""

    def mean(self, priority: int) -> float:
        return float(self.latency[priority].mean())

    @property
    def prioritised(self) -> float:
        """The mean latency of all answers to prioritised elements."""
        return float(np.concatenate([self.latency[p] for p in PRIORITIES if p]).mean())

    @property
    def overall(self) -> float:
        return float(np.concatenate(list(self.latency.values())).mean())


@dataclass
class Run:
    """A plan at work."""

    data: Data
    buffers: Buffers
    scheduler: Scheduler
    kind: str
    whole: bool
    """Whether a turn empties the buffer."""
    fates: list[list[Fate]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fates = self.fates or self.buffers.fates(self.data)
        early = self.buffers.placement.early
        self.queues: list[PriorityQueue[object]] = []
        for buffer in self.buffers.buffers:
            kind = "levels" if early and self.kind == "direct" else self.kind
            above = buffer.source is not None
            self.queues.append(priority_queue(kind if above else self.kind, above_source=above))
        self._arrival: list[float] = self.data.arrival.tolist()
        self._priority: list[int] = self.data.priority.tolist()
        first = {b.source: n for n, b in enumerate(self.buffers.buffers)}
        self._above = [first[source] for source in self.data.source.tolist()]
        self._policy, self._turn_cost = self._open()
        self._answers: list[int] = []
        self._answered: list[float] = []
        self._walks = self.kind in ("strong", "strong2")

    def _open(self) -> tuple[Policy, float]:
        count = len(self.queues)
        below = [buffer.source is not None for buffer in self.buffers.buffers]
        unknown = not self.buffers.placement.early and not self.scheduler.blind
        queues = self.queues

        def priority(at: int) -> float:
            return math.inf if unknown and below[at] else queues[at].head()

        consumers = self.buffers.consumers()
        leaves = [at for at in range(count) if below[at]]
        work = [mean_of(fates[:10_000]) for fates in self.fates]
        known = {at: Known(*numbers) for at, numbers in enumerate(work)}
        board = BufferBoard(range(count), consumers, leaves, {}, known.get, priority=priority)
        board.buffers = queues
        chosen = policy(self.scheduler.policy)
        chosen.open(board)
        return chosen, TURN + LOOK * self.scheduler.looks(count)

    def run(self) -> Outcome:
        """Work until nothing is left."""
        now, came, decisions, longest = 0.0, 0, 0, 0
        arrival, total = self._arrival, len(self._arrival)
        queues, next_turn, push = self.queues, self._policy.next, self._push
        sorts = self.scheduler.sorts and not self.buffers.placement.early
        most = [
            0 if self.whole or (sorts and buffer.source is not None) else 1
            for buffer in self.buffers.buffers
        ]
        while True:
            if came < total and arrival[came] <= now:
                came = self._admit(came, now)
                longest = max(longest, sum(map(len, queues)))
            at = next_turn()
            if at is None:
                if came == total:
                    break
                now = arrival[came]
                continue
            decisions += 1
            now += self._turn_cost
            for element in queues[at].take(most[at]):
                now = push(at, element, now)  # type: ignore[arg-type]
            if len(queues[at]):
                self._policy.ready(at)
        return self._outcome(now, decisions, longest)

    def _admit(self, came: int, now: float) -> int:
        """Let the sources put what has come into their buffers."""
        arrival, known = self._arrival, self.buffers.placement.early
        last = bisect_right(arrival, now, came)
        for element in range(came, last):
            at = self._above[element]
            priority = self._priority[element] if known else 0
            self.queues[at].put(element, priority, arrival[element])
            self._policy.ready(at)
        return last

    def _push(self, at: int, element: int, now: float) -> float:
        """Push an element from a buffer through operators; return when that is done."""
        priority = self._priority[element]
        for spent, to in self.fates[at][element]:
            now += spent
            if to >= 0:
                queue = self.queues[to]
                if self._walks and (priority or self.kind == "strong"):
                    now += WALK * queue.ahead(priority)
                if queue.put(element, priority, self._arrival[element]):
                    now += PUT
                    self._policy.ready(to)
                else:
                    now = self._push(to, element, now)
            elif to == SINK:
                self._answers.append(element)
                self._answered.append(now)
        return now

    def _outcome(self, now: float, decisions: int, longest: int) -> Outcome:
        elements = np.array(self._answers)
        latency = (np.array(self._answered) - self.data.arrival[elements]) / 1000
        classes = self.data.priority[elements]
        by_class = {p: latency[classes == p] for p in PRIORITIES}
        return Outcome(by_class, now / 1e6, decisions, longest)


def mean_of(fates: Sequence[Fate]) -> tuple[float, float]:
    """Return the mean work for an element, and how many elements go on for one that comes."""
    work = sum(spent for fate in fates for spent, _ in fate) / len(fates)
    left = sum(to >= SINK for fate in fates for _, to in fate) / len(fates)
    return work, left
