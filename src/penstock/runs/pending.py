"""Rows that wait until their start is final: the output buffer of a join that works on arrival.

Rows are kept sorted by start; what is released is skipped at the front of each piece, so nothing is
written twice.  A row whose holder ends before the row may leave has never lived: a ghost.  Ended
holders are remembered while any row waits, so that ghosts are known when they are released.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.model import I64, Batch, Ends, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.side import EndedHolders
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class ByStart(Spine[Piece]):
    """Rows in order of start. Only pieces that are not stored yet are merged."""

    kind = Piece

    def sort(self, rows: Batch) -> Piece:
        """Make a piece of some rows; nothing is kept yet."""
        table = rows.take(np.argsort(rows.start, kind="stable")).to_table()
        return Piece(self._stats(table), table)

    def _choose(self) -> list[list[Piece]]:
        fresh = [piece for piece in self.pieces if piece.run is None]
        return [fresh] if len(fresh) > 1 else []

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        start = some_of(to_numpy(table.column("_start")), rows)
        return chosen_rows(rows, np.argsort(start, kind="stable"))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        return {"start": int(to_numpy(table.column("_start"))[0])}


class Pending:
    """Waiting rows; `release` lets go of those that start below ``until``."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._state = state
        self._waiting = ByStart(state, name, merging)
        self._ended = EndedHolders(state, f"{name}.told", merging)
        self._slices_name = f"{name}.turn"
        self._slices = state.numbers.get(self._slices_name, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, rows: Batch) -> None:
        """Keep rows."""
        if len(rows):
            self._waiting.pieces.append(self._waiting.sort(rows))

    def release(self, ends: Ends, until: int, block: int) -> Iterator[Batch]:
        """Yield the rows that start below ``until``, with their ends, in blocks."""
        for piece in self._waiting.pieces:
            ready = int(np.searchsorted(piece.numbers("_start"), until))
            for first in range(0, ready, block):
                table = piece.table.slice(first, min(block, ready - first))
                yield from self._ready(Batch.from_table(table), ends)
            self._waiting.skip(piece, ready)
        self._slices += 1
        if not self._waiting.pieces:
            self._ended.clear()
        elif len(ends):
            self._ended.put(ends.holder, self._slices)

    def save(self) -> None:
        """Store the rows that are not stored yet, as one piece."""
        self._waiting.merge()
        self._waiting.save()
        self._ended.save()
        self._state.numbers[self._slices_name] = self._slices

    def _ready(self, rows: Batch, ends: Ends) -> Iterator[Batch]:
        if rows.holder.any():
            ghosts = self._ended.has(rows.holder)
            if ghosts.any():
                rows = rows.take(~ghosts)
            rows = ends.applied(rows)
        if len(rows):
            yield rows
