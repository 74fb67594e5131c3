"""Queues in which important entries overtake others [A 4, 5].

An entry is any object; it has a priority from 0 (normal) to `HIGHEST` and a time.  What a queue
delivers, if what it is given is ordered in the same way [A definitions 1, 2]:

======== ==================================================== ======== ========
queue    what comes next                                      weakly   strongly
======== ==================================================== ======== ========
normal   the first that came                                  ordered  ordered
direct   the first that came; prioritised ones do not wait    ordered  ordered
weak     the prioritised one that came last                   ordered  no
strong   the highest priority, then the least time, one list  ordered  ordered
strong2  the same, normal ones in a list of their own         ordered  ordered
levels   the highest priority, then the first that came       ordered  ordered
======== ==================================================== ======== ========

*Weakly*: a normal entry never stands before one of less time.  *Strongly*: no entry stands before
one of less time and at least its priority.  Why: whoever is to stand first has come first, and none
of these queues lets an entry pass one of the same or a higher priority; `weak` does, among those
above 0.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, Protocol, TypeVar

from penstock.errors import ConfigError, suggest

HIGHEST = 255
NOTHING = -1
"""The priority of what waits where nothing does."""

Entry = TypeVar("Entry")


class PriorityQueue(Protocol[Entry]):
    """What waits for a consumer."""

    def __len__(self) -> int:
        """Return how many entries wait."""

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        """Add an entry; False: it is not kept, hand it to the consumer at once."""

    def take(self, most: int = 0) -> list[Entry]:
        """Return the next entries, at most so many (0: all), in their order."""

    def head(self) -> int:
        """Return the priority of the entry that comes next; `NOTHING` if none waits."""

    def ahead(self, priority: int) -> int:
        """Return how many entries come before one that is put now."""


class Normal(Generic[Entry]):
    """First in, first out, whatever the priorities."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Entry]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        self._waiting.append((priority, entry))
        return True

    def take(self, most: int = 0) -> list[Entry]:
        waiting = self._waiting
        if most == 1:
            return [waiting.popleft()[1]] if waiting else []
        if not most or most >= len(waiting):
            found = [entry for _, entry in waiting]
            waiting.clear()
            return found
        return [waiting.popleft()[1] for _ in range(most)]

    def head(self) -> int:
        return self._waiting[0][0] if self._waiting else NOTHING

    def ahead(self, priority: int) -> int:
        return len(self._waiting)


class Direct(Normal[Entry]):
    """Prioritised entries do not wait: they are handed to the consumer at once."""

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        if priority:
            return False
        self._waiting.append((priority, entry))
        return True

    def ahead(self, priority: int) -> int:
        return 0 if priority else len(self._waiting)


class Weak(Normal[Entry]):
    """Prioritised entries are put at the head: the last of them comes first."""

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        if priority:
            self._waiting.appendleft((priority, entry))
        else:
            self._waiting.append((priority, entry))
        return True

    def ahead(self, priority: int) -> int:
        return 0 if priority else len(self._waiting)


class Strong(Generic[Entry]):
    """One sorted list: the highest priority first, of one priority the least time.

    Finding the place costs the logarithm of what waits, making room there its length.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[int, float, int, Entry]] = []
        self._first = 0
        """What stands before it in the list is taken."""
        self._came = 0
        self._levels: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sorted) - self._first

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        self._came += 1
        insort(self._sorted, (-priority, time, self._came, entry), lo=self._first)
        self._levels[priority] = self._levels.get(priority, 0) + 1
        return True

    def take(self, most: int = 0) -> list[Entry]:
        waits = len(self)
        last = self._first + (min(most, waits) if most else waits)
        found = []
        for less, _, _, entry in islice(self._sorted, self._first, last):
            self._levels[-less] -= 1
            found.append(entry)
        self._first = last
        if 2 * self._first >= len(self._sorted):
            del self._sorted[: self._first]
            self._first = 0
        return found

    def head(self) -> int:
        return -self._sorted[self._first][0] if len(self) else NOTHING

    def ahead(self, priority: int) -> int:
        return sum(count for level, count in self._levels.items() if level >= priority)


class Strong2(Generic[Entry]):
    """Prioritised entries in order of priority and time, normal ones as they came.

    What is sorted is a heap: adding costs the logarithm of the prioritised entries that wait.
    """

    def __init__(self) -> None:
        self._prioritised: list[tuple[int, float, int, Entry]] = []
        self._normal: deque[Entry] = deque()
        self._came = 0
        self._levels: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._prioritised) + len(self._normal)

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        if priority:
            self._came += 1
            heappush(self._prioritised, (-priority, time, self._came, entry))
            self._levels[priority] = self._levels.get(priority, 0) + 1
        else:
            self._normal.append(entry)
        return True

    def take(self, most: int = 0) -> list[Entry]:
        waits = len(self)
        wanted = min(most, waits) if most else waits
        found: list[Entry] = []
        while self._prioritised and len(found) < wanted:
            less, _, _, entry = heappop(self._prioritised)
            self._levels[-less] -= 1
            found.append(entry)
        normal = self._normal
        while len(found) < wanted:
            found.append(normal.popleft())
        return found

    def head(self) -> int:
        if self._prioritised:
            return -self._prioritised[0][0]
        return 0 if self._normal else NOTHING

    def ahead(self, priority: int) -> int:
        before = sum(count for level, count in self._levels.items() if level >= max(1, priority))
        return before if priority else before + len(self._normal)


class Levels(Generic[Entry]):
    """One list per priority, first in, first out: adding and taking cost the same however full."""

    def __init__(self) -> None:
        self._lists: dict[int, deque[Entry]] = {}
        self._filled = 0
        """One bit for each priority of which something waits."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, entry: Entry, priority: int, time: float) -> bool:
        waiting = self._lists.get(priority)
        if waiting is None:
            waiting = self._lists[priority] = deque()
        waiting.append(entry)
        self._filled |= 1 << priority
        self._count += 1
        return True

    def take(self, most: int = 0) -> list[Entry]:
        wanted = min(most, self._count) if most else self._count
        self._count -= wanted
        found: list[Entry] = []
        while len(found) < wanted:
            level = self._filled.bit_length() - 1
            waiting = self._lists[level]
            while waiting and len(found) < wanted:
                found.append(waiting.popleft())
            if not waiting:
                self._filled ^= 1 << level
        return found

    def head(self) -> int:
        return self._filled.bit_length() - 1

    def ahead(self, priority: int) -> int:
        return sum(len(some) for level, some in self._lists.items() if level >= priority)


QUEUES: dict[str, Callable[[], PriorityQueue[object]]] = {
    "normal": Normal,
    "direct": Direct,
    "weak": Weak,
    "strong": Strong,
    "strong2": Strong2,
    "levels": Levels,
}


def priority_queue(name: str, above_source: bool = False) -> PriorityQueue[object]:
    """Return an empty queue by name.

    ``above_source``: whoever puts into it reads a source and must not be kept from it.  So it does
    no work of the consumer's, and `direct` is a normal queue there [A 4].
    """
    if name not in QUEUES:
        raise ConfigError(f"there is no queue '{name}'; {suggest(name, QUEUES)}")
    return QUEUES["normal" if above_source and name == "direct" else name]()
