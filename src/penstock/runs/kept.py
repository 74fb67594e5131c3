"""The rows of a relation that can be read at any instant between ``low`` and the heartbeat.

`Lifetimes` holds what is alive.  A row that dies goes, with both its ends, into pieces of ``ended``
rows sorted by end, and is thrown away when its end is at or below ``low``: the first instant that
can still be asked for.  So with ``low`` close to the heartbeat next to nothing is written twice,
and the cost of a turn follows the rows that come and go.

The snapshot at ``t``, for ``low <= t < until``, is exact:

* a live row starts below ``until`` and ends at or above it, so it counts if its start is ``<= t``;
* an ended row that ``t`` lies in has an end above ``t >= low``, so it is still there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model import I64, MIN_TIME, Batch, Ends, to_numpy
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class _Ended(Spine[Piece]):
    """Rows that have ended, in order of their ends."""

    kind = Piece

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        end = some_of(to_numpy(table.column("_end")), rows)
        return chosen_rows(rows, np.argsort(end, kind="stable"))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        end = to_numpy(table.column("_end"))
        return {"min_end": int(end[0]), "max_end": int(end[-1])}


class Kept:
    """The rows of one relation in one shard. Reading changes nothing and needs no lock."""

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        self._state = state
        self._lives = Lifetimes(state, name, types, merging)
        self._ended = _Ended(state, f"{name}.ended", merging)
        self._low_name = f"{name}.low"
        self.low = state.numbers.get(self._low_name, MIN_TIME)

    def advance(self, new: Batch, ends: Ends, until: int, low: int) -> None:
        """Add new rows, move time to ``until``, and forget what ended at or before ``low``."""
        died = self._lives.advance(new, ends, until)
        if low > self.low:
            self.low = self._state.numbers[self._low_name] = low
            self._forget()
        rows = died.take(died.end > self.low)
        if (rows.end[1:] < rows.end[:-1]).any():
            rows = rows.take(np.argsort(rows.end, kind="stable"))
        self._ended.add(rows.to_table())

    def snapshot(self, time: int) -> Batch:
        """Return the rows that are valid at an instant between ``low`` and the heartbeat."""
        live = self._lives.live()
        parts = [live.take(live.start <= time)]
        for piece in self._ended.pieces:
            if piece.stats["max_end"] > time:
                rows = Batch.from_table(piece.table)
                parts.append(rows.take((rows.start <= time) & (rows.end > time)))
        return Batch.concat(parts)

    def save(self) -> None:
        """Merge pieces as the strategy says, and store them."""
        self._lives.save()
        self._ended.merge()
        self._ended.save()

    def _forget(self) -> None:
        for piece in self._ended.pieces:
            if piece.stats["max_end"] <= self.low:
                self._ended.drop([piece])
            elif piece.stats["min_end"] <= self.low:
                passed = int(np.searchsorted(piece.numbers("_end"), self.low, "right"))
                self._ended.skip(piece, passed)
