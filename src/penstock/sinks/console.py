"""The format ``console``: each batch is printed."""

from __future__ import annotations

import sys
from typing import IO

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.catalog import SinkDef
from penstock.sinks.base import Result, Sink, SinkFormat, SinkRequest, row_limit
from penstock.sinks.text import json_lines, json_rows, shown_time


class ConsoleFormat(SinkFormat):
    """Batches are printed on the terminal."""

    name = "console"
    options = ("rows", "changes")

    def check(self, definition: SinkDef) -> None:
        row_limit(definition, None)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return ConsoleSink(row_limit(definition, 20))


class ConsoleSink(Sink):
    """Prints each batch: a table on a terminal, lines of JSON elsewhere; at most ``rows`` rows."""

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
        shown = result.table if self._rows is None else result.table.slice(0, self._rows)
        instant = "" if result.mode != "view" else f", as of {shown_time(result)}"
        printed = Table(title=f"{escape(result.query)}, batch {result.batch}{instant}")
        for name, type in zip(shown.schema.names, shown.schema.types, strict=True):
            number = pa.types.is_integer(type) or pa.types.is_floating(type)
            printed.add_column(escape(name), justify="right" if number else "left")
        for row in json_rows(shown):
            printed.add_row(*("" if v is None else escape(str(v)) for v in row.values()))
        hidden = result.table.num_rows - shown.num_rows
        if hidden:
            printed.caption = f"{hidden} more rows"
        Console(file=out).print(printed)
