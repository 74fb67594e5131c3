"""The rows of a part that goes on, as a query sees them that took the place of another.

A part of a plan that was there before keeps its state, and gives rows that began before its new
reader did.  The reader sees those that start at ``since`` or later; what is told of the others
concerns nobody.  There is no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.model import Batch, Closed, Message
from penstock.operators.base import Operator
from penstock.operators.spec import Spec


@dataclass(frozen=True)
class SinceSpec(Spec):
    """Keep the rows that start at an instant or later."""

    since: int

    key = "since/1"
    rowwise = True
    sliced = False
    holders = "passes"

    def build(self) -> SinceOperator:
        return SinceOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False

    def cannot_fail(self) -> bool:
        return True

    def reads(self, wanted: frozenset[int]) -> frozenset[int]:
        return wanted


class SinceOperator(Operator):
    """Keeps the rows, and the negative tuples of rows, that start at an instant or later."""

    def __init__(self, spec: SinceSpec) -> None:
        self._since = spec.since

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        later = rows.start >= self._since
        if later.all():
            return (rows,)
        return (rows.take(later),) if later.any() else ()

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)
