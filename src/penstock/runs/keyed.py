"""A map from 128-bit keys to rows, in sorted runs: the newest run that has a key wins.

A batch writes only the keys it touched.  Looking up n keys in a run of m rows is n binary searches
in a memory-mapped column.  Removed keys leave a tombstone until a merge reaches the oldest run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys
from penstock.model import I64, Mask, one_array, to_mask, to_numpy
from penstock.runs.merging import Merging
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


class KeyedState:
    """The map of one name in a state."""

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        self._state = state
        self._name = name
        self._types = tuple(types)
        self._merging = merging

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
        for run in reversed(self._state.runs(self._name)):
            table = run.table()
            at = _find(table, keys if open_ is None else keys.take(open_))
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

    def put(self, keys: Keys, columns: Sequence[pa.Array], alive: Mask | None = None) -> None:
        """Set the rows of distinct keys; those with ``alive`` false are removed."""
        if len(keys) == 0:
            return
        alive = np.ones(len(keys), bool) if alive is None else alive
        self._state.append(self._name, _sorted_table(keys, columns, alive))

    def scan(self) -> tuple[Keys, tuple[pa.Array, ...]]:
        """Return every key that is alive, with its columns."""
        runs = self._state.runs(self._name)
        if not runs:
            none = np.empty(0, np.uint64)
            return Keys(none, none), tuple(pa.array([], t) for t in self._types)
        table = _merge([r.table() for r in runs], drop_dead=True)
        keys = Keys(to_numpy(table.column("high")), to_numpy(table.column("low")))
        return keys, tuple(one_array(table.column(f"c{i}")) for i in range(len(self._types)))

    def __len__(self) -> int:
        return sum(len(r) for r in self._state.runs(self._name))

    def save(self) -> None:
        """Merge runs as the strategy says."""
        runs = self._state.runs(self._name)
        chosen = self._merging.choose([len(r) for r in runs])
        if chosen:
            some = runs[chosen[0] : chosen[1]]
            merged = _merge([r.table() for r in some], drop_dead=chosen[0] == 0)
            self._state.replace(self._name, some, merged)


def _find(table: pa.Table, keys: Keys) -> I64:
    """Return the position of each key in a run, -1 where it is not."""
    high, low = to_numpy(table.column("high")), to_numpy(table.column("low"))
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


def _merge(tables: Sequence[pa.Table], drop_dead: bool) -> pa.Table:
    """Merge runs, oldest first; of equal keys the youngest stays."""
    table = pa.concat_tables(reversed(tables)).combine_chunks()
    high, low = to_numpy(table.column("high")), to_numpy(table.column("low"))
    order = np.argsort(high, kind="stable")  # which merges runs that are sorted already
    new = np.ones(len(order), bool)
    new[1:] = high[order[1:]] != high[order[:-1]]
    same = np.flatnonzero(~new)
    if (low[order[same]] != low[order[same - 1]]).any():  # two keys share one lane: sort by both
        order = np.lexsort((low, high))
        new[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    order = order[new]
    if drop_dead:
        order = order[to_mask(one_array(table.column("alive")))[order]]
    return table.take(pa.array(order)).combine_chunks()
