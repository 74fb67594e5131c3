"""What waits for the lane: one queue for each stream, and which of them goes next.

The queue says in which order the rows of a stream are taken (`penstock.queues.prioritised`), the
scheduler which stream is next:

* ``highestpriority``: the one whose next rows are the most important;
* ``fifo``: there is one queue for all, so nobody chooses;
* ``roundrobin``: one after another;
* ``biggest``: the one of which most waits;
* ``minlatency``: the one whose rows cost least, as measured;
* ``minlatencypriority``: the most important, of several the one whose rows cost least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.lane.tap import Block
from penstock.queues.prioritised import PriorityQueue, priority_queue

_ALL = ""


@dataclass
class _Waiting:
    """The blocks of one stream that wait; ``cost`` is how many seconds a row took lately."""

    queue: PriorityQueue[object]
    rows: int = 0
    cost: float = 0.0


class Buffers:
    """All blocks that wait, in queues of a ``kind``, under a ``scheduler``."""

    def __init__(self, kind: str, scheduler: str) -> None:
        self._kind = kind
        self._apart = scheduler != "fifo"
        self._choose = _CHOICES[scheduler]
        self._streams: dict[str, _Waiting] = {}
        self._turn = 0

    def __len__(self) -> int:
        return sum(waiting.rows for waiting in self._streams.values())

    def put(self, block: Block) -> None:
        """Let a block wait."""
        waiting = self._of(block.stream)
        waiting.queue.put(block, block.priority, block.since)
        waiting.rows += len(block)

    def take(self, rows: int) -> list[Block]:
        """Return the blocks of the next turn: those that come first, of so many rows about."""
        found: list[Block] = []
        taken = 0
        while taken < rows:
            ready = {name: waiting for name, waiting in self._streams.items() if waiting.rows}
            if not ready:
                break
            chosen = ready[self._choose(ready, self._turn)]
            self._turn += 1
            for entry in chosen.queue.take(1):
                assert isinstance(entry, Block)
                chosen.rows -= len(entry)
                taken += len(entry)
                found.append(entry)
        return found

    def sift(self, sifted: Callable[[Block], Block]) -> list[Block]:
        """Let of each block only what ``sifted`` returns wait on; return the blocks that do."""
        found: list[Block] = []
        for waiting in self._streams.values():
            entries = waiting.queue.take()
            waiting.rows = 0
            for entry in reversed(entries) if self._kind == "weak" else entries:
                assert isinstance(entry, Block)
                left = sifted(entry)
                if len(left):
                    waiting.queue.put(left, left.priority, left.since)
                    waiting.rows += len(left)
                    found.append(left)
        return found

    def learn(self, blocks: list[Block], seconds: float) -> None:
        """Remember what a turn has cost."""
        rows = sum(map(len, blocks))
        for stream in {block.stream for block in blocks}:
            waiting = self._of(stream)
            own = seconds / max(1, rows)
            waiting.cost = own if not waiting.cost else 0.8 * waiting.cost + 0.2 * own

    def _of(self, stream: str) -> _Waiting:
        name = stream if self._apart else _ALL
        if name not in self._streams:
            self._streams[name] = _Waiting(priority_queue(self._kind, above_source=True))
        return self._streams[name]


_Ready = dict[str, _Waiting]

_CHOICES: dict[str, Callable[[_Ready, int], str]] = {
    "highestpriority": lambda ready, _: max(ready, key=lambda n: ready[n].queue.head()),
    "fifo": lambda ready, _: _ALL,
    "roundrobin": lambda ready, turn: sorted(ready)[turn % len(ready)],
    "biggest": lambda ready, _: max(ready, key=lambda n: ready[n].rows),
    "minlatency": lambda ready, _: min(ready, key=lambda n: ready[n].cost),
    "minlatencypriority": lambda ready, _: min(
        ready, key=lambda n: (-ready[n].queue.head(), ready[n].cost)
    ),
}

SCHEDULERS = tuple(_CHOICES)
