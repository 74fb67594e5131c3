"""The format ``blackhole``: rows are counted and nothing else."""

from __future__ import annotations

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
        self.rows = 0
        self._last = -1

    def publish(self, result: Result) -> None:
        """Nothing is read, so nothing is published; see `count`."""

    def count(self, batch: int, rows: int) -> bool:
        """Count the rows of a batch that was not counted before."""
        if batch > self._last:
            self._last = batch
            self.rows += rows
        return True
