"""Greedy: the operator that takes away most per second [D 2], whatever comes behind it."""

from __future__ import annotations

from penstock.schedule.board import Board
from penstock.schedule.paths import shrinks
from penstock.schedule.ranked import Rank, Ranked


class Greedy(Ranked):
    """The operator whose rows lose most of their bytes per second of work."""

    def open(self, board: Board) -> None:
        super().open(board)
        self._slope = {at: shrinks(board, at) for at in board.positions}

    def rank(self, at: int) -> Rank:
        return (-self._slope[at], self.board.oldest(at), -at)
