"""Biggest queue: where most waits [A]."""

from __future__ import annotations

from penstock.schedule.ranked import Rank, Ranked


class Biggest(Ranked):
    """The operator for which most bytes wait."""

    moving = True

    def rank(self, at: int) -> Rank:
        return (-self.board.bytes(at), self.board.oldest(at), -at)
