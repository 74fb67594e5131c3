"""How long important rows waited for their answers, by priority."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

_KEPT = 2048
_LATELY = 10.0
"""Seconds over which rows are counted for the rate."""


class Meter:
    """Counts rows, all of them and those of the last seconds."""

    def __init__(self) -> None:
        self.rows = 0
        self._lately: deque[tuple[float, int]] = deque(maxlen=_KEPT)

    def add(self, rows: int) -> None:
        """Note rows that came together."""
        self.rows += rows
        self._lately.append((time.monotonic(), rows))

    def rate(self) -> float:
        """Return how many rows came in a second, lately."""
        since = time.monotonic() - _LATELY
        return sum(rows for at, rows in list(self._lately) if at >= since) / _LATELY


class Latencies:
    """The seconds from arrival to delivery of the newest rows of each priority."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._counts: dict[int, int] = {}
        self._meter = Meter()

    def add(self, priority: int, seconds: float, rows: int) -> None:
        """Note rows that were answered together."""
        kept = self._seconds.setdefault(priority, deque(maxlen=_KEPT))
        kept.extend([seconds] * min(rows, _KEPT))
        self._counts[priority] = self._counts.get(priority, 0) + rows
        self._meter.add(rows)

    def summary(self) -> dict[int, tuple[int, float, float]]:
        """Return by priority, the highest first, how many there were, the median and the 99th."""
        found = {}
        for priority in sorted(self._seconds, reverse=True):
            middle, high = np.percentile(list(self._seconds[priority]), (50, 99))
            found[priority] = self._counts[priority], float(middle), float(high)
        return found

    def rate(self) -> float:
        """Return how many rows were answered in a second, lately."""
        return self._meter.rate()
