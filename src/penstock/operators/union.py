"""UNION ALL: the rows of all inputs. Its heartbeat is the least of theirs (semantics, section 5).

Rows and told ends pass at once; they may run ahead of the heartbeat.  Only the heartbeats are
state. Each heartbeat that comes is answered, though the least may not have grown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.model import Batch, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.inbox import Heartbeats


class UnionOperator(Operator):
    """Puts ``ports`` inputs into one output."""

    holders = "passes"
    ends_rows = False

    def __init__(self, ports: int) -> None:
        self.ports = ports

    def open(self, context: Context) -> None:
        super().open(context)
        self._heartbeats = Heartbeats(context.state, self.ports)

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        if len(rows) == 0:
            return ()
        # arrival numbers of different streams cannot be compared
        return (rows if rows.seq is None else replace(rows, seq=None),)

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        return (Heartbeat(self._heartbeats.hear(port, time)),)

    def close(self) -> None:
        self._heartbeats.save()
