"""A map from the numbers of rows to what is known of them, until the rows end.

A spine of pieces sorted by number, whose columns are ``number``, ``c0``, which is the end of the
row, and what is known besides.  What was put last counts.  Nothing is removed: the entries of a
row go when its end has passed, those of a whole piece at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model import I64, Mask, to_numpy
from penstock.runs.keyed import Places
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class NumberedRows(Spine[Piece]):
    """The map of one name in a state; ``types`` are those of the columns behind the end."""

    kind = Piece
    bounded = True

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        super().__init__(state, name, merging)
        self._types = (pa.int64(), *types)

    def put(self, numbers: I64, end: I64, columns: Sequence[pa.Array]) -> None:
        """Set what is known of rows with distinct numbers."""
        names = ["number", *(f"c{i}" for i in range(len(self._types)))]
        table = pa.table([pa.array(numbers), pa.array(end), *columns], names)
        if (numbers[1:] < numbers[:-1]).any():
            table = table.take(pa.array(np.argsort(numbers)))
        self.add(table)

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
        self.save()

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("c0") > until
        return alive

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        """Of equal numbers the youngest stays."""
        number = some_of(to_numpy(table.column("number")), rows)
        order = np.argsort(number, kind="stable")  # which merges pieces that are sorted already
        last = np.ones(len(order), bool)
        last[:-1] = number[order[1:]] != number[order[:-1]]
        return chosen_rows(rows, order[last])

    def _stats(self, table: pa.Table) -> dict[str, int]:
        number = to_numpy(table.column("number"))
        last = int(to_numpy(table.column("c0")).max())
        return {"least": int(number[0]), "most": int(number[-1]), "last": last}
