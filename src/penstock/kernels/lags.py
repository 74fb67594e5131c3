"""Lags of join results: how much later the left row started than the right one, and segments.

With windows ``w1`` and ``w2``, two rows that start at ``s1`` and ``s2`` are valid together exactly
if ``-w1 < lag < w2`` with ``lag = s1 - s2``.  The lags at which one of several windows ends cut all
lags into *segments*: a query with windows of its own has some neighbouring segments, and all of
them.  In which order segments are looked at decides which query is served first [E 4.6.1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.model import I64

Windows: TypeAlias = tuple[int, int]
"""How long the rows of the left and of the right side live."""


@dataclass(frozen=True)
class Segment:
    """Lags in ``[low, high)``; ``side`` (0 left) is the one whose rows are older."""

    low: int
    high: int
    side: int

    @property
    def farthest(self) -> int:
        """The age, of the older row, at which its windows end."""
        return self.high if self.side else 1 - self.low


class Segments:
    """The segments of the windows of some queries, by lag; ``windows`` has copies.

    Rows that start together count as if the right one was older.
    """

    def __init__(self, windows: Sequence[Windows]) -> None:
        left = sorted({1 - w for w, _ in windows} | {0})
        right = sorted({w for _, w in windows} | {0})
        cuts = [Segment(low, high, 0) for low, high in pairwise(left)]
        self.all = (*cuts, *(Segment(low, high, 1) for low, high in pairwise(right)))
        self.smallest_first = sorted(range(len(self.all)), key=self._age)
        self._lows = np.array([segment.low for segment in self.all[1:]], np.int64)
        self._kind: Any = np.uint8 if len(self.all) <= 256 else np.uint16
        self._rates = self._served(windows)

    def __len__(self) -> int:
        return len(self.all)

    def of(self, lag: I64) -> npt.NDArray[Any]:
        """Return the segment of each lag, in a type that is sorted in one pass."""
        return np.searchsorted(self._lows, lag, "right").astype(self._kind)

    def order(self, lag: I64) -> I64:
        """Return the order that sorts lags by their segments."""
        return np.argsort(self.of(lag), kind="stable")

    def most_queries_first(self, work: tuple[float, float]) -> list[int]:
        """Return the order that serves most queries per unit of work.

        ``work`` is that of a unit of age, by the side that is older.
        """
        rates = [
            rate / max(work[segment.side], 1e-9)
            for rate, segment in zip(self._rates, self.all, strict=True)
        ]
        return sorted(self.smallest_first, key=lambda i: -rates[i])

    def _age(self, at: int) -> tuple[int, int]:
        return self.all[at].farthest, self.all[at].side

    def _served(self, windows: Sequence[Windows]) -> list[float]:
        """Return for each segment how many queries are served per unit of age.

        With ``C(i)`` queries whose windows end at the age ``A(i)`` of segment ``i`` or before, the
        segments up to the ``j`` with the greatest ``(C(j) - C(i)) / (A(j) - A(i))`` are best looked
        at together: they have that rate.
        """
        rates = [0.0] * len(self.all)
        for side in (0, 1):
            own = [i for i in self.smallest_first if self.all[i].side == side]
            ages = [0, *(self.all[i].farthest for i in own)]
            served = [sum(pair[side] <= age for pair in windows) for age in ages]
            done = 0
            while done < len(own):
                rate, best = max(
                    ((served[j] - served[done]) / (ages[j] - ages[done]), j)
                    for j in range(done + 1, len(ages))
                )
                for i in own[done:best]:
                    rates[i] = rate
                done = best
        return rates
