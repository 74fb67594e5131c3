"""What a policy sees: operators as numbers, what waits for them, and what is known of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.queues.stored import Queue


@dataclass(frozen=True)
class Known:
    """What was measured of an operator: seconds per row that comes, and rows and bytes per row.

    ``rows`` are those that leave for one that comes; ``size`` and ``made`` are the bytes of a row
    that comes and of one that leaves.
    """

    cost: float = 1e-6
    rows: float = 1.0
    size: float = 1.0
    made: float = 1.0


@dataclass(frozen=True)
class Promise:
    """How soon a query wants its answers, in seconds, and how much they count."""

    within: float | None = None
    weight: float = 1.0

    def utility(self, latency: float) -> float:
        """Return what an answer is worth: all in time, nothing when it takes twice as long."""
        if self.within is None:
            return self.weight
        return self.weight * min(1.0, max(0.0, 2.0 - latency / self.within))


_UNKNOWN, _NO_PROMISE = Known(), Promise()


@dataclass
class Board:
    """The operators of a fragment and what waits.

    ``consumers`` are the operators that read what one makes, ``leaves`` those that read what comes
    from outside.  ``known`` and ``promised`` are asked by policies that need it: what was measured
    of an operator, and what the queries want that need what it lets leave.  ``began`` is when the
    batch began, by the ``clock``.
    """

    positions: Sequence[int]
    consumers: Mapping[int, Sequence[int]]
    leaves: Sequence[int]
    queues: Mapping[int, Sequence[Queue]]
    known: Callable[[int], Known | None] = lambda at: None
    promised: Callable[[int], Promise | None] = lambda at: None
    began: float = field(default_factory=time.time)
    clock: Callable[[], float] = time.time
    more: bool = False
    """Whether another train can be admitted."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Messages in the queues of each operator; who changes queues keeps it right."""
    unfinished: dict[int, int] = field(default_factory=dict)
    """Operators that stopped after a quantum and have more to make, of which train."""
    under_way: dict[int, int] = field(default_factory=dict)
    """Messages that operators made and that wait, of each train that is begun."""
    admitted: int = 0
    bound: bool = False
    """Whether only so many trains may be under way as a policy thinks fit."""
    priority: Callable[[int], float] | None = None
    """Gives the highest priority of what waits for an operator; None: elements have none."""

    def __post_init__(self) -> None:
        self._leaf_set = frozenset(self.leaves)
        self._known: dict[int, Known] = {}

    def is_ready(self, at: int) -> bool:
        """Whether there is work for an operator."""
        return self.waits(at) or (self.more and at in self._leaf_set)

    def waits(self, at: int) -> bool:
        """Whether an operator has something in its queues, or has not made all of it."""
        return bool(self.waiting.get(at)) or at in self.unfinished

    def rows(self, at: int) -> int:
        """Return how many rows wait for an operator."""
        return sum(queue.rows for queue in self.queues[at])

    def bytes(self, at: int) -> int:
        """Return how many bytes wait for an operator."""
        return sum(queue.bytes for queue in self.queues[at])

    def oldest(self, at: int) -> int:
        """Return the oldest train that waits for an operator; the next one if none does."""
        if at in self.unfinished:
            return self.unfinished[at]
        found = [queue.train for queue in self.queues[at] if len(queue)]
        return min(found, default=self.admitted)

    def of(self, at: int) -> Known:
        """Return what is known of an operator."""
        if at not in self._known:
            self._known[at] = self.known(at) or _UNKNOWN
        return self._known[at]

    def promise(self, at: int) -> Promise:
        """Return how soon what leaves at an operator is wanted."""
        return self.promised(at) or _NO_PROMISE

    def age(self) -> float:
        """Return for how many seconds the rows of the batch have waited."""
        return self.clock() - self.began
