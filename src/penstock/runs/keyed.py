"""A map from 128-bit keys to rows, on a spine: the newest piece that has a key wins.

A batch writes only the keys it touched.  Looking up n keys in a piece of m rows is n binary
searches in a memory-mapped column.  Removed keys leave a tombstone until a merge reaches the oldest
piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys
from penstock.model import I64, Mask, one_array, to_mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine
from penstock.runs.state import State


@dataclass(frozen=True)
class Places:
    """Where keys stand: ``which`` table, -1 where a key is not found, and at which row."""

    which: I64
    where: I64
    tables: list[pa.Table]
    types: tuple[pa.DataType, ...]

    @property
    def found(self) -> Mask:
        found: Mask = self.which >= 0
        return found

    def numbers(self, i: int) -> I64:
        """Return a column of integers without nulls; 0 where a key is not found."""
        values = np.zeros(len(self.which), np.int64)
        for number, table in enumerate(self.tables):
            mine = np.flatnonzero(self.which == number)
            values[mine] = to_numpy(table.column(f"c{i}"))[self.where[mine]]
        return values

    def column(self, i: int, rows: I64 | None = None) -> pa.Array:
        """Return a column, of all keys or those at ``rows``; null where a key is not found."""
        which = self.which if rows is None else self.which[rows]
        where = self.where if rows is None else self.where[rows]
        index = np.full(len(which), -1, np.int64)
        pool, taken = [pa.array([], self.types[i])], 0
        for number, table in enumerate(self.tables):
            mine = np.flatnonzero(which == number)
            if len(mine):
                pool.append(one_array(table.column(f"c{i}")).take(pa.array(where[mine])))
                index[mine] = np.arange(taken, taken + len(mine))
                taken += len(mine)
        return pa.concat_arrays(pool).take(pa.array(index, mask=index < 0))


class KeyedState(Spine[Piece]):
    """The map of one name in a state."""

    kind = Piece

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        super().__init__(state, name, merging)
        self._types = tuple(types)

    def get(self, keys: Keys) -> tuple[Mask, tuple[pa.Array, ...]]:
        """Look up distinct keys: return which were found, and their columns (null if not)."""
        places = self.find(keys)
        return places.found, tuple(places.column(i) for i in range(len(self._types)))

    def find(self, keys: Keys) -> Places:
        """Look up distinct keys; columns are fetched when they are asked for."""
        where = np.full(len(keys), -1, np.int64)
        which = np.full(len(keys), -1, np.int64)
        tables: list[pa.Table] = []
        open_: I64 | None = None  # None: all keys
        for piece in reversed(self.pieces):
            table = piece.table
            at = _find(piece, keys if open_ is None else keys.take(open_))
            hit = np.flatnonzero(at >= 0)
            if len(hit) == 0:
                continue
            mine = hit if open_ is None else open_[hit]
            alive = to_mask(one_array(table.column("alive")))[at[hit]]
            where[mine], which[mine] = at[hit], np.where(alive, len(tables), -1)
            tables.append(table)
            rest = np.flatnonzero(at < 0)
            open_ = rest if open_ is None else open_[rest]
            if len(open_) == 0:
                break
        return Places(which, where, tables, self._types)

    def keys(self) -> Keys:
        """Return all keys that are there, in no order."""
        names = ["high", "low", "alive"]
        if not self.pieces:
            return Keys(np.empty(0, np.uint64), np.empty(0, np.uint64))
        table = pa.concat_tables([piece.table.select(names) for piece in self.pieces])
        there = self._order(table, None, True)
        return Keys(*(to_numpy(table.column(name))[there] for name in names[:2]))

    def put(self, keys: Keys, columns: Sequence[pa.Array], alive: Mask | None = None) -> None:
        """Set the rows of distinct keys; those with ``alive`` false are removed."""
        if len(keys) == 0:
            return
        alive = np.ones(len(keys), bool) if alive is None else alive
        self.add(_sorted_table(keys, columns, alive))

    def save(self) -> None:
        """Merge pieces as the strategy says, and store them."""
        self.merge()
        super().save()

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        """Of equal keys the youngest stays, and is gone too if it is a tombstone of no use."""
        high, low = to_numpy(table.column("high")), to_numpy(table.column("low"))
        order = np.argsort(high, kind="stable")  # which merges pieces that are sorted already
        last = np.ones(len(order), bool)
        last[:-1] = high[order[1:]] != high[order[:-1]]
        same = np.flatnonzero(~last)
        if (low[order[same]] != low[order[same + 1]]).any():  # two keys share one lane
            order = np.lexsort((low, high))
            last[:-1] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
        order = order[last]
        return order[to_mask(one_array(table.column("alive")))[order]] if oldest else order


def _find(piece: Piece, keys: Keys) -> I64:
    """Return the position of each key in a piece, -1 where it is not."""
    high, low = piece.numbers("high"), piece.numbers("low")
    rows = len(high)
    at = np.searchsorted(high, keys.high)
    result = np.full(len(keys), -1, np.int64)
    trying = np.flatnonzero(at < rows)
    while len(trying):
        trying = trying[high[at[trying]] == keys.high[trying]]
        same = low[at[trying]] == keys.low[trying]
        result[trying[same]] = at[trying[same]]
        trying = trying[~same]  # another key with the same high lane: look one further
        at[trying] += 1
        trying = trying[at[trying] < rows]
    return result


def _sorted_table(keys: Keys, columns: Sequence[pa.Array], alive: Mask) -> pa.Table:
    names = ["high", "low", "alive", *(f"c{i}" for i in range(len(columns)))]
    table = pa.table([pa.array(keys.high), pa.array(keys.low), pa.array(alive), *columns], names)
    if (keys.high[1:] < keys.high[:-1]).any():
        table = table.take(pa.array(np.argsort(keys.high, kind="stable")))
    return table
