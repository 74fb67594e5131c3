"""Sinks that live in the process: the console, memory, and a Python function."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import IO

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.errors import DataError
from penstock.model import Schema
from penstock.runs.deliveries import Held
from penstock.sinks.base import Result, Sink, time_fields
from penstock.sinks.files import shown_time
from penstock.sinks.ledger import Ledger
from penstock.sinks.text import json_lines, json_rows

Callback = Callable[[int, pa.Table], object]
"""A function that gets a batch number and its rows."""


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


class BlackholeSink(Sink):
    """Takes note of how many rows there were, and nothing else: for measuring."""

    def __init__(self) -> None:
        self.rows = 0
        self._last = -1

    def publish(self, result: Result) -> None:
        """Nothing is read, so nothing is published; see `count`."""

    def count(self, batch: int, rows: int) -> None:
        """Count the rows of a batch that was not counted before."""
        if batch > self._last:
            self._last = batch
            self.rows += rows


class MemorySink(Sink):
    """Keeps the rows of all batches, or the newest ``rows`` of them; of a view the latest."""

    def __init__(
        self, mode: str, schema: Schema, rows: int | None = None, timestamps: bool = False
    ) -> None:
        self._timestamps = timestamps
        self._mode = mode
        self._schema = schema
        self._rows = rows
        self._lock = threading.Lock()
        self._batches: dict[int, pa.Table] = {}
        self._last = -1
        self.as_of: int | None = None

    def publish(self, result: Result) -> None:
        """Keep a batch that was not kept before."""
        with self._lock:
            if result.batch <= self._last:
                return
            self._last = result.batch
            if self._mode == "view":
                self._batches.clear()
                self.as_of = result.as_of
            if result.table.num_rows or self._mode == "view":
                self._batches[result.batch] = result.table
            self._forget()

    def _forget(self) -> None:
        if self._rows is None or self._mode == "view":
            return
        kept = sum(t.num_rows for t in self._batches.values())
        for batch in list(self._batches):
            if kept - self._batches[batch].num_rows < self._rows:
                return
            kept -= self._batches.pop(batch).num_rows

    def table(self) -> pa.Table:
        """Return the kept rows in the order of their batches, or the latest snapshot of a view."""
        with self._lock:
            tables = list(self._batches.values())
        if not tables:
            return _empty(self._mode, self._schema, self._timestamps)
        table = pa.concat_tables(tables)
        return table if self._rows is None else table.slice(max(0, table.num_rows - self._rows))


def _empty(mode: str, schema: Schema, timestamps: bool) -> pa.Table:
    """Return no rows with the columns of a mode."""
    fields = (*schema, *time_fields(mode, timestamps))
    return pa.schema([(f.name, f.type) for f in fields]).empty_table()


class CallbackSink(Sink):
    """Calls a function with each batch; the ledger keeps it from being called twice."""

    def __init__(self, function: Callback, ledger: Ledger | None = None) -> None:
        self._function = function
        self._ledger = ledger or Ledger(None, "")

    def held(self) -> Held | None:
        """Return what the ledger says."""
        return self._ledger.held()

    def publish(self, result: Result) -> None:
        """Call the function with a batch that has rows (or is a view) and was not given before."""
        if self._ledger.has(result.batch):
            return
        if result.table.num_rows or result.mode == "view":
            try:
                self._function(result.batch, result.table)
            except Exception as error:
                raise DataError(
                    f"the function of a callback sink must take every batch, but for batch "
                    f"{result.batch} of query {result.query} it raised {type(error).__name__}: "
                    f"{error}; the batch will be given to it again"
                ) from error
        self._ledger.add(result.batch, result.lineage)
