"""UNION ALL: the rows of all inputs. Its heartbeat is the least of theirs (semantics, section 5).

Rows and told ends pass at once; they may run ahead of the heartbeat.  Only the heartbeats are
state. Each heartbeat that comes is answered, though the least may not have grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.model import MIN_TIME, Batch, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class UnionSpec(Spec):
    """Put the rows of ``ports`` inputs together."""

    ports: int

    key = "union/1"
    sliced = False
    holders = "passes"

    def build(self) -> UnionOperator:
        return UnionOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False


class UnionOperator(Operator):
    """Puts its inputs into one output."""

    def __init__(self, spec: UnionSpec) -> None:
        self.ports = spec.ports

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
