"""UNION ALL: the rows of all inputs. Its heartbeat is the least of theirs (semantics, section 5).

Rows and told ends pass at once; they may run ahead of the heartbeat.  Only the heartbeats are
state. Each heartbeat that comes is answered, though the least may not have grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.model import MIN_TIME, Batch, Heartbeat, Message
from penstock.operators.base import Context, Operator


class UnionOperator(Operator):
    """Puts ``ports`` inputs into one output."""

    holders = "passes"
    ends_rows = False

    def __init__(self, ports: int) -> None:
        self.ports = ports

    def open(self, context: Context) -> None:
        super().open(context)
        numbers = context.state.numbers
        self._beats = [numbers.get(f"heartbeat.{p}", MIN_TIME) for p in range(self.ports)]

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        if isinstance(message, Batch):
            if len(message):
                yield message if message.seq is None else _without_arrival(message)
        elif isinstance(message, Heartbeat):
            self._beats[port] = max(self._beats[port], message.time)
            yield Heartbeat(min(self._beats))
        else:
            yield message

    def close(self) -> None:
        numbers = self.context.state.numbers
        for port, time in enumerate(self._beats):
            numbers[f"heartbeat.{port}"] = time


def _without_arrival(rows: Batch) -> Batch:
    """Arrival numbers of different streams cannot be compared."""
    return replace(rows, seq=None)
