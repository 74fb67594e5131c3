"""A relation whose births and deaths happen later: at the next pulse, or after a fixed while.

A row of the input that is valid in ``[s, e)`` is valid in ``[f(s), f(e))``, where ``f(x)`` is the
first pulse at or after x, or x itself where there are no pulses, plus the shift.  ``f`` is never
less than x and keeps the order of times.  This is ``SLIDE`` by time and ``SHIFT`` behind a window
whose ends are told: ``[ROWS N RANGE T SLIDE D]``, ``[SESSION G SHIFT d]``.

Rows wait until their new start is below the heartbeat, told ends until their new end is.  As
``f(e) >= f(s)``, the end of a row is never due in a slice before the row; where both are the same
pulse, the row was between two pulses only, and is dropped as a ghost.  Two states hold what waits:
``rows`` by the new start, with the new end and the holder as columns, and ``ends`` by the new end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.model import I64, INF, MIN_TIME, Batch, Ends, to_numpy
from penstock.operators.base import SlicedOperator, few
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.lifetimes import Lifetimes
from penstock.windows import plus, up


@dataclass(frozen=True)
class LaterSpec(Spec):
    """Move births and deaths to the pulses every ``slide`` from ``origin`` on, and by ``shift``."""

    types: Sequence[pa.DataType]
    slide: int | None = None
    origin: int = 0
    shift: int = 0

    key = "later/1"
    holders = "passes"

    def build(self) -> LaterOperator:
        return LaterOperator(self)


class LaterOperator(SlicedOperator):
    """``SLIDE D`` and ``SHIFT d`` of a window whose ends are told."""

    def __init__(self, spec: LaterSpec) -> None:
        super().__init__([spec.types])
        self._spec = spec

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        kept = (*self.input_types[0], pa.int64(), pa.int64())
        self._rows = Lifetimes(state, "rows", kept, merging, keep_forever=False)
        self._ends = Lifetimes(state, "ends", (pa.int64(),), merging, keep_forever=False)

    def save(self) -> None:
        self._rows.save()
        self._ends.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        told = self._told(slice.ends[0], slice.until)
        waiting = [self._waiting(rows) for rows in few(slice.parts[0])]
        for due in _due(self._rows, waiting, slice.until):
            *columns, end, holder = due.columns
            held = to_numpy(holder)
            if slice.until == INF:  # nothing can come that would end them
                held = np.where(told.lookup(held) < INF, held, 0)
            rows = told.applied(Batch(tuple(columns), due.end, to_numpy(end), held)).drop_ghosts()
            if len(rows):
                yield rows
        if len(told):
            yield told

    def _moved(self, time: I64) -> I64:
        spec = self._spec
        at = time if spec.slide is None else up(time, spec.slide, spec.origin)
        return plus(at, spec.shift) if spec.shift else at

    def _waiting(self, rows: Batch) -> Batch:
        """Return rows as they wait: each dies, in this state, when it is due."""
        columns = (*rows.columns, pa.array(self._moved(rows.end)), pa.array(rows.holder))
        return _until(columns, self._moved(rows.start))

    def _told(self, ends: Ends, until: int) -> Ends:
        """Return the told ends that are due; the others wait."""
        new = [_until((pa.array(ends.holder),), self._moved(ends.end))] if len(ends) else []
        due = _due(self._ends, new, until)
        return Ends.concat(Ends.of(to_numpy(some.columns[0]), some.end) for some in due)


def _until(columns: Sequence[pa.Array], due: I64) -> Batch:
    """Return rows that stay in a state until an instant."""
    since = np.full(len(due), MIN_TIME, np.int64)
    return Batch(tuple(columns), since, due, np.zeros(len(due), np.int64))


def _due(state: Lifetimes, new: Sequence[Batch], until: int) -> Iterator[Batch]:
    """Yield what is due below ``until``, of new rows and of those that waited."""
    yield from state.turn_parts([rows.take(rows.end >= until) for rows in new], Ends(), until)
    for rows in new:
        now = rows.take(rows.end < until)
        if len(now):
            yield now
