"""UNION ALL: the rows of all inputs. Its heartbeat is the least of theirs (semantics, section 5).

Rows and told ends pass at once; they may run ahead of the heartbeat.  Only the heartbeats are
state. Each heartbeat that comes is answered, though the least may not have grown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.model import Batch, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.inbox import Heartbeats
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
