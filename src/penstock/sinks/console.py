"""The format ``console``: each batch is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO

from rich.console import Console

from penstock.catalog import SinkDef
from penstock.runs.deliveries import LANE
from penstock.showing import SCREEN, terminal_table
from penstock.sinks.base import Result, SharedLock, Sink, SinkFormat, SinkRequest, row_limit
from penstock.sinks.text import json_lines, shown_time


class ConsoleFormat(SinkFormat):
    """Batches are printed on the terminal."""

    name = "console"
    options = ("rows", "changes")

    def check(self, definition: SinkDef) -> None:
        row_limit(definition, None)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return ConsoleSink(row_limit(definition, 20))


class ConsoleSink(Sink):
    """Prints each batch: a table on a terminal, lines of JSON elsewhere.

    A table has at most ``rows`` rows, and stands above what is drawn in place.
    """

    def __init__(self, rows: int | None = 20, out: IO[str] | None = None) -> None:
        self._rows = rows
        self._out = out
        self._last = -1
        self._lock = SharedLock.of("console")

    def for_turns(self, opened: Callable[[], Sink]) -> Sink:
        """Turns are printed to the same place, between batches."""
        return ConsoleSink(self._rows, self._out)

    def publish(self, result: Result) -> None:
        """Print a batch that was not printed before; batches without rows only for views."""
        if result.batch <= self._last or (not result.table.num_rows and result.mode != "view"):
            return
        self._last = result.batch
        with self._lock:
            self._print(result)

    def _print(self, result: Result) -> None:
        out = self._out or sys.stdout
        if not out.isatty():
            out.write(json_lines(result.table).decode())
            out.flush()
            return
        instant = "" if result.mode != "view" else f", as of {shown_time(result)}"
        limit = result.table.num_rows if self._rows is None else self._rows
        number = f"{'lane' if result.is_turn else 'batch'} {result.batch}"
        title = f"{result.query.removesuffix(LANE)}, {number}{instant}"
        console = SCREEN.console or Console(file=out)
        console.print(terminal_table(result.table, limit, title))
