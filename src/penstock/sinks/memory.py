"""The format ``memory``: rows are kept in the process, for ``query.rows()``."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.model import Schema
from penstock.sinks.base import Result, Sink, SinkFormat, SinkRequest, row_limit, time_fields


class MemoryFormat(SinkFormat):
    """Rows are kept in the process."""

    name = "memory"
    options = ("rows", "changes")

    def check(self, definition: SinkDef) -> None:
        row_limit(definition, None)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        limit = row_limit(definition, None)
        return MemorySink(request.mode, request.schema, limit, request.timestamps)


class MemorySink(Sink):
    """Keeps the rows of all batches, or the newest ``rows`` of them; of a view the latest.

    Turns of the lane are kept among them, in the order in which they came.
    """

    def __init__(
        self, mode: str, schema: Schema, rows: int | None = None, timestamps: bool = False
    ) -> None:
        self._timestamps = timestamps
        self._mode = mode
        self._schema = schema
        self._rows = rows
        self._lock = threading.Lock()
        self._batches: dict[int, pa.Table] = {}
        self._last = {"batch": -1, "turn": -1}
        self.as_of: int | None = None

    def for_turns(self, opened: Callable[[], Sink]) -> Sink:
        """Turns and batches are kept together, so that `table` shows both."""
        return _Turns(self)

    def publish(self, result: Result) -> None:
        """Keep a batch, or a turn, that was not kept before."""
        kind = "turn" if result.is_turn else "batch"
        with self._lock:
            if result.batch <= self._last[kind]:
                return
            self._last[kind] = result.batch
            if self._mode == "view":
                self._batches.clear()
                self.as_of = result.as_of
            if result.table.num_rows or self._mode == "view":
                self._batches[result.number] = result.table
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
        """Return the kept rows in the order in which they came, or a view's latest snapshot."""
        with self._lock:
            tables = list(self._batches.values())
        if not tables:
            return _empty(self._mode, self._schema, self._timestamps)
        table = pa.concat_tables(tables)
        return table if self._rows is None else table.slice(max(0, table.num_rows - self._rows))


class _Turns(Sink):
    """Gives the turns of the lane to the sink of a query."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink

    def publish(self, result: Result) -> None:
        self._sink.publish(result)


def _empty(mode: str, schema: Schema, timestamps: bool) -> pa.Table:
    """Return no rows with the columns of a mode."""
    fields = (*schema, *time_fields(mode, timestamps))
    return pa.schema([(f.name, f.type) for f in fields]).empty_table()
