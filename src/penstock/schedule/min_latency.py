"""Least latency: the whole path to the answer that costs least per row of the answer [A]."""

from __future__ import annotations

from penstock.schedule.board import Board
from penstock.schedule.paths import seconds_to_answer
from penstock.schedule.ranked import Rank, Ranked


class MinLatency(Ranked):
    """The operator from which a row of an answer is made soonest.

    The operators behind it on that path are nearer to the answer still: so a path is run to its
    end.
    """

    def open(self, board: Board) -> None:
        super().open(board)
        self._seconds = seconds_to_answer(board)

    def rank(self, at: int) -> Rank:
        return (self._seconds[at], self.board.oldest(at), -at)
