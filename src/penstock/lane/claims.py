"""Which rows the lane may answer, while batches take rows and move time on.

A row is not the lane's any more when a batch has been given it, or when it is late by now.  While a
batch is under way the heartbeat of its stream moves, nobody knows yet how far: never past what the
row's own source partition has brought before it, if that partition counts.  One that is idle, or
that no batch has heard yet, does not count: its rows wait until the batch is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.lane.tap import Block
from penstock.model import MIN_TIME
from penstock.physical.progress import NUMBER_BITS, POSITION_BITS, Decision, Progress, Timeline


class Claims:
    """How far batches have taken rows, by stream, and how far time is."""

    def __init__(self) -> None:
        self._fences: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        self._counting: dict[str, frozenset[int]] | None = None
        """While a batch is under way, by stream: the partitions that hold its heartbeat back."""
        self._unheard: frozenset[str] = frozenset()
        """Streams of which no batch has heard anything."""

    def hand_over(self, ends: Mapping[str, int], timeline: Timeline) -> None:
        """Note that a batch takes the rows before ``ends``, and what was decided about time."""
        for name, end in ends.items():
            self._fences[name] = max(self._fences.get(name, 0), end)
        self._counting, unheard = {}, set()
        for name in ends:
            progress, decision = timeline.of(name), timeline.decisions.get(name, Decision())
            self._counting[name] = _counting(progress, decision)
            rests = progress.idle or None in decision.idle or bool(decision.quiet)
            if not progress.partitions and not rests:
                unheard.add(name)
            self._raise(name, decision.floors.values())
        self._unheard = frozenset(unheard)

    def committed(self, progress: Mapping[str, Progress]) -> None:
        """Note that a batch is committed: so far streams are."""
        self._counting = None
        for name, found in progress.items():
            self._raise(name, [found.floor])

    def mine(self, block: Block) -> Block:
        """Return the rows of a block that no batch has been given, and that are not late by now."""
        fence, floor = self._fences.get(block.stream, 0), self._floors.get(block.stream, MIN_TIME)
        return block.take((block.positions() >= fence) & (block.time >= floor))

    def must_wait(self, block: Block) -> bool:
        """Whether the batch under way may move time past the rows of a block."""
        if self._counting is None or not len(block):
            return False
        if block.stream in self._unheard and not block.named:
            return False  # it has one partition only, which the lane has read from its beginning
        return int(block.seq[0] >> POSITION_BITS) not in self._counting.get(block.stream, ())

    def _raise(self, stream: str, floors: Iterable[int]) -> None:
        self._floors[stream] = max(self._floors.get(stream, MIN_TIME), *floors, MIN_TIME)


def _counting(progress: Progress, decision: Decision) -> frozenset[int]:
    resting = decision.idle | decision.quiet
    return frozenset(
        part.number % (1 << NUMBER_BITS)
        for name, part in progress.partitions.items()
        if not part.idle and name not in resting
    )
