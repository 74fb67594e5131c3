"""Rows that wait until their start is final: the output buffer of a join that works on arrival.

Rows are kept in runs sorted by start; what is released is skipped at the front of each, so nothing
is written twice.  A row whose holder is told before the row may leave has never lived: a ghost.
Told holders are remembered while any row waits, so that ghosts are known when their turn comes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.model import I64, Batch, Ends
from penstock.runs.merging import Merging
from penstock.runs.side import Told
from penstock.runs.state import Run, State


class Pending:
    """Waiting rows; `release` lets go of those that start below ``until``."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._state = state
        self._name = name
        self._parts: list[tuple[Batch, Run | None]] = [
            (Batch.from_table(run.table()), run) for run in state.runs(name)
        ]
        self._told = Told(state, f"{name}.told", merging)
        self._turn = state.numbers.get(f"{name}.turn", 0)

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._parts)

    def add(self, rows: Batch) -> None:
        """Keep rows."""
        if len(rows):
            self._parts.append((rows.take(np.argsort(rows.start, kind="stable")), None))

    def release(self, told: Ends, until: int, block: int) -> Iterator[Batch]:
        """Yield the rows that start below ``until``, with what was told applied, in blocks."""
        kept: list[tuple[Batch, Run | None]] = []
        for rows, run in self._parts:
            ready = int(np.searchsorted(rows.start, until))
            for first in range(0, ready, block):
                yield from self._ready(rows.slice(first, min(first + block, ready)), told)
            if ready and run is not None:
                self._state.skip(self._name, run, ready)
            if ready < len(rows):
                kept.append((rows.slice(ready, len(rows)), run))
        self._parts = kept
        self._turn += 1
        if not kept:
            self._told.forget(None)
        elif len(told):
            self._told.add(told.holder, self._turn)

    def save(self) -> None:
        """Store the rows that are not stored yet, as one run."""
        fresh = [rows for rows, run in self._parts if run is None]
        if fresh:
            together = Batch.concat(fresh)
            order: I64 = np.argsort(together.start, kind="stable")
            self._state.append(self._name, together.take(order).to_table())
        self._told.save()
        self._state.numbers[f"{self._name}.turn"] = self._turn

    def _ready(self, rows: Batch, told: Ends) -> Iterator[Batch]:
        if rows.holder.any():
            ghosts = self._told.has(rows.holder)
            if ghosts.any():
                rows = rows.take(~ghosts)
            rows = told.applied(rows)
        if len(rows):
            yield rows
