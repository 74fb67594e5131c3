"""The format ``blackhole``: rows are counted and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from penstock.catalog import SinkDef
from penstock.sinks.base import Result, Sink, SinkFormat, SinkRequest


class BlackholeFormat(SinkFormat):
    """Rows are counted and go nowhere, for measuring."""

    name = "blackhole"
    options = ("changes",)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return BlackholeSink()


class BlackholeSink(Sink):
    """Takes note of how many rows there were, and nothing else: for measuring."""

    def __init__(self) -> None:
        self._own = 0
        self._last = -1
        self._turns: BlackholeSink | None = None

    @property
    def rows(self) -> int:
        """So many rows came, with batches and turns."""
        return self._own + (0 if self._turns is None else self._turns.rows)

    def for_turns(self, opened: Callable[[], Sink]) -> Sink:
        """Turns have numbers of their own; their rows are counted too."""
        self._turns = BlackholeSink()
        return self._turns

    def publish(self, result: Result) -> None:
        """Nothing is read, so nothing is published; see `count`."""

    def count(self, batch: int, rows: int) -> bool:
        """Count the rows of a batch that was not counted before."""
        if batch > self._last:
            self._last = batch
            self._own += rows
        return True
