"""Highest priority: the most important element, then what the most important query waits for [A].

Where elements have no priority of their own, what waits for an operator is as important as the
largest WEIGHT of the queries that need it.
"""

from __future__ import annotations

from penstock.schedule.board import Board
from penstock.schedule.paths import weights
from penstock.schedule.ranked import Rank, Ranked


class HighestPriority(Ranked):
    """The operator for which the highest priority waits, or that the heaviest query needs.

    Then the oldest train.
    """

    def open(self, board: Board) -> None:
        super().open(board)
        self.moving = board.priority is not None  # a new element may be the most important
        self._weight = weights(board)

    def rank(self, at: int) -> Rank:
        own = self.board.priority(at) if self.board.priority else 0.0
        return (-own, -self._weight[at], self.board.oldest(at), -at)
