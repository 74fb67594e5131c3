"""In turn: every operator that has work gets one train, then the next one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class RoundRobin:
    """The first ready operator after the one that ran last."""

    def __init__(self) -> None:
        self._last = -1

    def next(self, ready: Sequence[int]) -> int:
        after = bisect_right(ready, self._last)
        self._last = ready[after] if after < len(ready) else ready[0]
        return self._last
