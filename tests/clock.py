"""A clock that tests move on instead of sleeping."""

from __future__ import annotations

import time


class Clock:
    """The monotonic clock of this process, which a test moves on."""

    def __init__(self) -> None:
        self._real = time.monotonic
        self._ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self._ahead

    def move_on(self, seconds: float) -> None:
        self._ahead += seconds
