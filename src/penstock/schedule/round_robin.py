"""In turn: every operator that has work gets one train, then the next one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from penstock.schedule.board import Board


class RoundRobin:
    """The first ready operator after the one that ran last."""

    def open(self, board: Board) -> None:
        self.board = board
        self._last = -1
        self._ready: list[int] = []

    def ready(self, at: int) -> None:
        place = bisect_left(self._ready, at)
        if place == len(self._ready) or self._ready[place] != at:
            insort(self._ready, at)

    def next(self) -> int | None:
        while self._ready:
            after = bisect_right(self._ready, self._last)
            self._last = self._ready.pop(after if after < len(self._ready) else 0)
            if self.board.is_ready(self._last):
                return self._last
        return None
