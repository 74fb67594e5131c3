"""The format ``console``: each batch is printed."""

from __future__ import annotations

import sys
from typing import IO

from rich.console import Console

from penstock.catalog import SinkDef
from penstock.showing import SCREEN, terminal_table
from penstock.sinks.base import Result, Sink, SinkFormat, SinkRequest, row_limit
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

    def publish(self, result: Result) -> None:
        """Print a batch that was not printed before; batches without rows only for views."""
        if result.batch <= self._last or (not result.table.num_rows and result.mode != "view"):
            return
        self._last = result.batch
        out = self._out or sys.stdout
        if not out.isatty():
            out.write(json_lines(result.table).decode())
            out.flush()
            return
        instant = "" if result.mode != "view" else f", as of {shown_time(result)}"
        limit = result.table.num_rows if self._rows is None else self._rows
        title = f"{result.query}, batch {result.batch}{instant}"
        console = SCREEN.console or Console(file=out)
        console.print(terminal_table(result.table, limit, title))
