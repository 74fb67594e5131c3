"""Candidates of a join in the order of their lags' segments (`penstock.kernels.lags`).

Stored pieces follow one another in time, so a segment needs only those that are young enough: a
piece is probed once, when the first segment comes that it may have rows of.  Of its candidates,
those of other segments wait, as positions; when too many wait, all of them go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.kernels.lags import Segments
from penstock.kernels.layouts import Layout
from penstock.model import I64, INF
from penstock.runs.side import Side
from penstock.runs.spine import Piece

_MOST_WAITING = 4
"""How many blocks of candidates may wait."""


@dataclass(frozen=True)
class Pairs:
    """Candidates of two pieces: positions in both."""

    left: Piece
    in_left: I64
    right: Piece
    in_right: I64

    def __len__(self) -> int:
        return len(self.in_left)

    def lags(self) -> I64:
        """Return how much later the left rows started."""
        left: I64 = self.left.numbers("_start")[self.in_left]
        right: I64 = self.right.numbers("_start")[self.in_right]
        return left - right

    def take(self, at: I64) -> Pairs:
        """Return some of them."""
        return Pairs(self.left, self.in_left[at], self.right, self.in_right[at])


@dataclass(frozen=True)
class Probe:
    """Two pieces that may meet, and how old the left and the right rows of pairs are at least."""

    left: Piece
    right: Piece
    probes_left: bool
    ages: tuple[int, int]

    def matched(self, layout: Layout, block: int) -> Iterator[Pairs]:
        """Yield the candidates, in blocks."""
        if self.probes_left:
            for mine, theirs in layout.match(self.left, self.right, True, block):
                yield Pairs(self.left, mine, self.right, theirs)
        else:
            for mine, theirs in layout.match(self.right, self.left, False, block):
                yield Pairs(self.left, theirs, self.right, mine)


def probes(sides: tuple[Side, Side], left: Piece | None, right: Piece | None) -> Iterator[Probe]:
    """Yield what new rows may meet: stored rows, oldest first, and one another."""
    if left is not None:
        first = int(left.numbers("_start").min())
        younger = 0 if sides[1].mixed else INF  # stored rows are older than new ones
        for run in sides[1].alive(first):
            yield Probe(left, run, True, (younger, first - run.stats["max_start"]))
    if right is not None:
        first = int(right.numbers("_start").min())
        younger = 0 if sides[0].mixed else INF
        for run in sides[0].alive(first):
            yield Probe(run, right, False, (first - run.stats["max_start"], younger))
    if left is not None and right is not None:
        yield Probe(left, right, True, (0, 0))


def by_segment(
    todo: Sequence[Probe], segments: Segments, order: Sequence[int], layout: Layout, block: int
) -> Iterator[Pairs | None]:
    """Yield candidates, the segments in ``order``; pairs that no window has are left out.

    None follows the last candidates of a segment.
    """
    waiting: list[list[Pairs]] = [[] for _ in order]
    count = 0
    for place in order:
        segment = segments.all[place]
        ready = [p for p in todo if p.ages[segment.side] < segment.farthest]
        todo = [p for p in todo if p.ages[segment.side] >= segment.farthest]
        yield from waiting[place]
        count -= sum(map(len, waiting[place]))
        waiting[place] = []
        for probe in sorted(ready, key=lambda p: p.ages[segment.side]):
            for pairs in probe.matched(layout, block):
                for i, part in _cut(pairs, segments):
                    if i == place:
                        yield part
                        continue
                    waiting[i].append(part)
                    count += len(part)
                if count > _MOST_WAITING * block:
                    yield from (part for parts in waiting for part in parts)
                    waiting, count = [[] for _ in order], 0
        yield None


def _cut(pairs: Pairs, segments: Segments) -> Iterator[tuple[int, Pairs]]:
    """Yield the candidates of each segment."""
    number = segments.of(pairs.lags())
    order = np.argsort(number, kind="stable")
    last = np.cumsum(np.bincount(number, minlength=len(segments)))
    first = 0
    for i, end in enumerate(last.tolist()):
        if first < end:
            yield i, pairs.take(order[first:end])
        first = end
