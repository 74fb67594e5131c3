"""First in, first out: a train passes the whole fragment before the next one is begun."""

from __future__ import annotations

from bisect import insort

from penstock.schedule.board import Board
from penstock.schedule.ranked import Rank, Ranked


class Fifo(Ranked):
    """The oldest train first, and of that what is nearest to the answers."""

    def rank(self, at: int) -> Rank:
        return (self.board.oldest(at), -at)


class Nearest:
    """What is nearest to the answers: the same, where there is one train only."""

    def open(self, board: Board) -> None:
        self.board = board
        self._ready: list[int] = []
        self._noted: set[int] = set()

    def ready(self, at: int) -> None:
        if at not in self._noted:
            self._noted.add(at)
            insort(self._ready, at)

    def next(self) -> int | None:
        while self._ready:
            at = self._ready.pop()
            self._noted.discard(at)
            if self.board.is_ready(at):
                return at
        return None
