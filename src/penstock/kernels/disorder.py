"""How far rows come behind the newest row before them, and the slack that follows it.

``SLACK AUTO KEEPING p`` takes as slack the largest delay among the last ``n = p / (1 - p)`` rows of
a partition.  The next row is as likely as any of these to have the largest delay, so it is late
with the probability ``1 / (n + 1) = 1 - p``, however delays are distributed.  Where disorder grows,
each late row raises the slack at once; where it falls, the slack follows after ``n`` rows.

The last rows are remembered in `BLOCKS` blocks, counted from the beginning of the partition, of
which only the largest delays are kept: between ``n`` and a block more than ``n`` rows count.  So
the slack depends on the rows alone, not on how they were cut into batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.model import I64

FIRST = 16
"""Before so many rows nothing is known of their disorder, and no slack can be given."""

BLOCKS = 16
LONGEST = 2**60
"""A row that is further behind counts as if it were as much."""


def remembered(keeping: float) -> int:
    """Return how many rows must be known to keep a share."""
    return max(FIRST, math.ceil(keeping / (1.0 - keeping) - 1e-6))


@dataclass(frozen=True)
class Disorder:
    """What is known of the disorder of a partition after ``rows`` rows.

    ``peaks`` are the largest delays of the last whole blocks, the newest last, ``peak`` that of the
    block under way.
    """

    rows: int = 0
    peaks: tuple[int, ...] = ()
    peak: int = 0

    def slack(self, keeping: float) -> int | None:
        """Return the slack that the next row is judged by; None: too few rows are known."""
        if self.rows < FIRST:
            return None
        largest = max(self.peak, *self.peaks, 0)
        return largest if self.rows >= remembered(keeping) else 2 * largest

    def follow(self, delay: I64, keeping: float) -> tuple[I64, Disorder]:
        """Return the slack before each of some rows, -1: there is none, and what is known then.

        While too few rows are known for the share, the slack is twice the largest delay.
        """
        wanted = remembered(keeping)
        size = max(1, wanted // BLOCKS)
        begun = self.rows % size
        count = -(-(begun + len(delay)) // size)
        blocks = np.zeros(count * size, np.int64)
        blocks[:begun] = self.peak
        blocks[begun : begun + len(delay)] = np.minimum(delay, LONGEST)
        reached = np.maximum.accumulate(blocks.reshape(count, size), axis=1)
        before = np.zeros_like(reached)
        before[:, 1:] = reached[:, :-1]
        known = (0,) * (BLOCKS - len(self.peaks)) + self.peaks
        peaks = np.concatenate((np.array(known, np.int64), reached[:, -1]))
        recent = np.lib.stride_tricks.sliding_window_view(peaks, BLOCKS)[:count].max(axis=1)
        slack = np.maximum(before, recent[:, None]).ravel()[begun : begun + len(delay)]
        number = np.arange(self.rows, self.rows + len(delay))
        slack = np.where(number < wanted, 2 * slack, slack)
        slack = np.where(number < FIRST, -1, slack)
        whole, rest = divmod(begun + len(delay), size)
        last = tuple(peaks[whole : whole + BLOCKS].tolist())
        return slack, Disorder(
            self.rows + len(delay), last, int(reached[whole, rest - 1]) if rest else 0
        )

    def describe(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**vars(self), "peaks": list(self.peaks)}

    @staticmethod
    def of(described: dict[str, Any]) -> Disorder:
        """The inverse of `describe`."""
        return Disorder(**{**described, "peaks": tuple(described["peaks"])})
