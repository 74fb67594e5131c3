"""The base of policies that order operators by a number: a heap that is put right when it is read.

Choosing costs the logarithm of the operators that have work, not their number.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from penstock.schedule.board import Board

Rank: TypeAlias = tuple[float, ...]


class Ranked:
    """Takes the ready operator with the least `rank`.

    A rank that can become less while the operator waits is ``moving``.
    """

    moving = False

    def open(self, board: Board) -> None:
        """Begin with a fragment."""
        self.board = board
        self._heap: list[tuple[Rank, int]] = []
        self._noted: dict[int, Rank] = {}
        """The rank of the one entry of each operator in the heap that counts."""

    def rank(self, at: int) -> Rank:
        """Return the number by which operators are ordered."""
        raise NotImplementedError

    def ready(self, at: int) -> None:
        """Note that an operator has work, or more of it than before."""
        noted = self._noted.get(at)
        if noted is not None and not self.moving:
            return
        rank = self.rank(at)
        if noted is None or rank < noted:
            self._note(at, rank)

    def next(self) -> int | None:
        """Return the operator that runs next; None: nothing is to be done."""
        while self._heap:
            noted, at = heapq.heappop(self._heap)
            if self._noted.get(at) != noted:
                continue
            del self._noted[at]
            if not self.board.is_ready(at):
                continue
            rank = self.rank(at)
            if rank > noted:
                self._note(at, rank)
                continue
            return at
        return None

    def _note(self, at: int, rank: Rank) -> None:
        self._noted[at] = rank
        heapq.heappush(self._heap, (rank, at))
