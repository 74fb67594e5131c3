"""When runs are merged: strategies of [B 5.3], reduced to one question about sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Merging:
    """A merge strategy.

    * ``greedy``: merge neighbours of similar size (an older run is at least twice its younger
      neighbour afterwards), so the number of runs stays logarithmic.
    * ``maxfanin``: merge only when ``fan_in`` runs of a level have gathered.
    * ``load``: ``maxfanin`` under load, else ``greedy``.  The pipeline decides, batch by batch;
      where nobody does, it is ``greedy``.
    * ``always``, ``never``: for tests.

    A merge takes in at most ``most`` bytes.  That bounds memory, and text within what one array can
    hold.
    """

    strategy: str = "greedy"
    fan_in: int = 8
    most: int = 32 << 20

    @staticmethod
    def within(strategy: str, fan_in: int, memory: int) -> Merging:
        """Return a strategy whose merges need a part of a memory budget only."""
        return Merging(strategy, fan_in, min(max(memory // 8, 1 << 20), 32 << 20))

    def choose(self, sizes: Sequence[int]) -> tuple[int, int] | None:
        """Return the range ``[first, last)`` of runs (oldest first) to merge now, or None."""
        count = len(sizes)
        if count < 2 or self.strategy == "never":
            return None
        if self.strategy == "always":
            return 0, count
        if self.strategy == "maxfanin":
            return (max(0, count - self.fan_in), count) if count % self.fan_in == 0 else None
        first = count - 1
        younger = sizes[-1]
        for i in range(count - 2, -1, -1):  # the oldest run that is not twice all younger ones
            if sizes[i] < 2 * younger:
                first = i
            younger += sizes[i]
        few = min(self.fan_in, 4)
        while count - first >= few:  # tiny runs do not count beside large ones, only by themselves
            large = max(sizes[first:])
            if sum(_TINY * size >= large for size in sizes[first:]) >= few:
                return first, count
            first = sizes.index(large, first) + 1
        return None

    def alike(self, sizes: Sequence[int]) -> list[int]:
        """Return the runs to merge now where their order does not matter and they are short-lived.

        Only runs of one power of 16 are merged, when many have gathered.  So a row is merged once
        for each power between the sizes of a batch and of all, and small runs never drag large ones
        along.
        """
        if self.strategy in ("always", "never"):
            chosen = self.choose(sizes)
            return list(range(*chosen)) if chosen else []
        tiers: dict[int, list[int]] = {}
        for i, size in enumerate(sizes):
            tiers.setdefault(_tier(size), []).append(i)
        return next((runs for runs in tiers.values() if len(runs) >= _MANY), [])


_MANY = 16
_TINY = 256
"""A run is tiny beside one of so many times its size."""


def _tier(size: int) -> int:
    """Return the power of 16 below a size."""
    return size.bit_length() // 4
