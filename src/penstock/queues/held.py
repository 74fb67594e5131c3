"""How many bytes wait between operators, over time."""

from __future__ import annotations

import time


class Held:
    """Bytes that wait in memory: now, at most, and the area under their curve (bytes x seconds).

    Those that lie in files are counted for `restart` only.
    """

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.area = 0.0
        self._all = self._most = 0
        self._last = time.perf_counter()

    def add(self, size: int, filed: bool = False) -> None:
        """Note that so many bytes more, or fewer, wait; ``filed``: in a file."""
        self._all += size
        if self._all > self._most:
            self._most = self._all
        if filed:
            return
        now = time.perf_counter()
        self.area += self.now * (now - self._last)
        self._last = now
        self.now += size
        if self.now > self.peak:
            self.peak = self.now

    def restart(self) -> int:
        """Return the most that waited since the last call, in memory and in files."""
        most, self._most = self._most, self._all
        return most
