"""Chain [D 3.1], shared Chain [D 3.3, 4] and merged Chain: segments of progress charts by slope.

Chain minimises what waits: operators that take much away in little time go first, and those before
them that lead there.  It knows nothing of shared outputs, which stay until their last reader has
passed.  *Shared Chain* makes one segment of the readers of a shared output.  *Merged Chain* takes
the lower envelope of one chart for all that is made of an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from penstock.schedule.board import Board
from penstock.schedule.paths import Line, chain_lines, merged_lines, shared_lines, shrinks
from penstock.schedule.ranked import Rank, Ranked


class Chain(Ranked):
    """The segment with the steepest slope; in it the oldest train, at the operator that is next."""

    lines: Callable[[Board], Iterator[Line]] = staticmethod(chain_lines)

    def open(self, board: Board) -> None:
        super().open(board)
        self._place: dict[int, tuple[float, int]] = {}
        for line in self.lines(board):
            for segment in line.segments:
                for number in range(segment.first, segment.last):
                    at = line.operators[number]
                    place = (-segment.slope, number)
                    self._place[at] = min(place, self._place.get(at, place))
        for at in board.positions:
            self._place.setdefault(at, (-shrinks(board, at), at))

    def rank(self, at: int) -> Rank:
        slope, number = self._place[at]
        return (slope, self.board.oldest(at), number)


class MergedChain(Chain):
    """Segments of the chart of all queries together."""

    lines = staticmethod(merged_lines)


class SharedChain(Chain):
    """The segments of shared Chain, if it is asked for with the bound of the paper's section 5.

    While as many trains are under way as queries share an output, no other is begun: so there is
    never more in memory than with Chain where nothing is shared.
    """

    lines = staticmethod(shared_lines)

    def open(self, board: Board) -> None:
        super().open(board)
        shared = max((len(readers) for readers in board.consumers.values()), default=1)
        self._most = max(1, shared) if board.bound else math.inf
        self._leaves = frozenset(board.leaves)

    def rank(self, at: int) -> Rank:
        held_back = at in self._leaves and len(self.board.under_way) >= self._most
        return (float(held_back), *super().rank(at))

    def next(self) -> int | None:
        if self.board.bound:  # those that were held back may go on
            for at in self.board.leaves:
                self._noted.pop(at, None)
                self.ready(at)
        return super().next()
