"""A map from the numbers of rows to what is known of them, until the rows end.

A spine of pieces sorted by number, whose columns are ``number``, ``alive``, ``c0``, which is the
end of the row, and what is known besides.  What was put last counts.  The entries of a row go when
its end has passed, those of a whole piece at once, so nobody need say that a row is over.  Rows may
be removed before; as in `penstock.runs.keyed` that leaves a tombstone until a merge reaches the
oldest piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import I64, INF, Mask, one_array, to_mask, to_numpy
from penstock.runs.keyed import Places
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class NumberedRows(Spine[Piece]):
    """The map of one name in a state; ``types`` are those of the columns behind the end."""

    kind = Piece

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        super().__init__(state, name, merging)
        self._types = (pa.int64(), *types)

    def put(self, numbers: I64, end: I64, columns: Sequence[pa.Array]) -> None:
        """Set what is known of rows with distinct, ascending numbers."""
        self._put(numbers, True, [pa.array(end), *columns])

    def remove(self, numbers: I64) -> None:
        """Forget rows with distinct, ascending numbers; their ends need not be known."""
        count = len(numbers)
        zeros = pa.array(np.zeros(count, np.int64))
        nothing = [zeros if t == pa.int64() else pa.nulls(count, t) for t in self._types[1:]]
        self._put(numbers, False, [pa.array(np.full(count, INF)), *nothing])

    def _put(self, numbers: I64, alive: bool, columns: Sequence[pa.Array]) -> None:
        names = ["number", "alive", *(f"c{i}" for i in range(len(self._types)))]
        flags = pa.array(np.full(len(numbers), alive))
        self.add(pa.table([pa.array(numbers), flags, *columns], names))

    def find(self, numbers: I64) -> Places:
        """Look up distinct, ascending numbers; columns are fetched when they are asked for."""
        where = np.full(len(numbers), -1, np.int64)
        which = np.full(len(numbers), -1, np.int64)
        tables: list[pa.Table] = []
        open_ = np.arange(len(numbers))
        for piece in reversed(self.pieces):
            if len(open_) == 0:
                break
            begin = np.searchsorted(numbers[open_], piece.stats["least"])
            finish = np.searchsorted(numbers[open_], piece.stats["most"], "right")
            trying = open_[begin:finish]
            mine = piece.numbers("number")
            at = np.searchsorted(mine, numbers[trying])
            hit = mine[np.minimum(at, len(mine) - 1)] == numbers[trying]
            found = trying[hit]
            if len(found) == 0:
                continue
            where[found], which[found] = at[hit], len(tables)
            if piece.stats["removed"]:
                alive = to_mask(one_array(piece.table.column("alive")).take(pa.array(at[hit])))
                which[found[~alive]] = -1
            tables.append(piece.table)
            open_ = np.concatenate((open_[:begin], trying[~hit], open_[finish:]))
        return Places(which, where, tables, self._types)

    def expire(self, until: int) -> None:
        """Let go of the pieces all of whose rows end at ``until`` or before."""
        self.pieces = [piece for piece in self.pieces if piece.stats["last"] > until]

    def save_alive(self, until: int) -> None:
        """Merge pieces as the strategy says, without the rows that have ended, and store them."""
        self.expire(until)
        self.merge(until)
        while self.pieces and self.pieces[0].stats["removed"] == len(self.pieces[0]):
            self.drop(self.pieces[:1])
        self.save()

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("c0") > until
        return alive

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        """Of equal numbers the youngest stays, and is gone too if it is a tombstone of no use."""
        number = some_of(to_numpy(table.column("number")), rows)
        order = np.argsort(number, kind="stable")  # which merges pieces that are sorted already
        last = np.ones(len(order), bool)
        last[:-1] = number[order[1:]] != number[order[:-1]]
        order = chosen_rows(rows, order[last])
        return order[to_mask(one_array(table.column("alive")))[order]] if oldest else order

    def _stats(self, table: pa.Table) -> dict[str, int]:
        number = to_numpy(table.column("number"))
        last = int(to_numpy(table.column("c0")).max())
        removed = table.num_rows - (pc.sum(table.column("alive")).as_py() or 0)
        return {"least": int(number[0]), "most": int(number[-1]), "last": last, "removed": removed}
