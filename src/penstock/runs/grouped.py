"""A map from 128-bit keys to any number of rows each, on a spine: the newest piece wins.

A slice writes the groups that it touched, each with all its rows, in the order in which they come
back.  A group without rows leaves a tombstone until a merge reaches the oldest piece.  Every piece
has a version; where pieces are merged, of each key the rows of the newest version stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys
from penstock.kernels.order import key_ranges
from penstock.kernels.steps import group_starts, ranges
from penstock.model import I64, Batch, to_mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State

_OWN = ("high", "low", "alive", "version")


class GroupedRows(Spine[Piece]):
    """The rows of each key, of one name in a state."""

    kind = Piece

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        super().__init__(state, name, merging)
        self._types = tuple(types)
        self._version = f"{name}.version"

    def get(self, keys: Keys) -> tuple[I64, Batch]:
        """Look up distinct keys: return rows sorted by key, and which key each belongs to."""
        owners: list[I64] = [np.empty(0, np.int64)]
        parts = [Batch.empty(self._types)]
        open_ = np.arange(len(keys))
        for piece in reversed(self.pieces):
            if len(open_) == 0:
                break
            first, last = key_ranges(piece.numbers("high"), piece.numbers("low"), keys.take(open_))
            hit = first < last
            if not hit.any():
                continue
            owner, at = ranges(first[hit], last[hit])
            alive = to_mask(piece.table.column("alive").take(pa.array(at)).combine_chunks())
            owners.append(open_[hit][owner][alive])
            table = piece.table.drop_columns(list(_OWN))
            parts.append(Batch.from_table(table).take(at[alive]))
            open_ = open_[~hit]
        owner, rows = np.concatenate(owners), Batch.concat(parts)
        order = np.argsort(owner, kind="stable")
        return owner[order], rows.take(order)

    def put(self, keys: Keys, owner: I64, rows: Batch) -> None:
        """Set the rows of distinct keys, sorted by high lane; ``owner`` ascends."""
        if len(keys) == 0:
            return
        filled = np.zeros(len(keys), bool)
        filled[owner] = True
        empty = np.flatnonzero(~filled)
        everyone = np.concatenate((owner, empty))
        table = rows.to_table()
        if len(empty):
            nothing = {f.name: pa.nulls(len(empty), f.type) for f in table.schema}
            for name in ("_start", "_end", "_holder"):
                nothing[name] = pa.array(np.zeros(len(empty), np.int64))
            table = pa.concat_tables([table, pa.table(nothing)]).combine_chunks()
        numbers = self._state.numbers
        version = numbers.get(self._version, 0) + 1
        numbers[self._version] = version
        own = {
            "high": pa.array(keys.high[everyone]),
            "low": pa.array(keys.low[everyone]),
            "alive": pa.array(np.arange(len(everyone)) < len(owner)),
            "version": pa.array(np.full(len(everyone), version, np.int64)),
        }
        for name, column in own.items():
            table = table.append_column(name, column)
        order = np.lexsort((keys.low[everyone], keys.high[everyone]))
        if (order[1:] < order[:-1]).any():
            table = table.take(pa.array(order))
        self.add(table)

    def save(self) -> None:
        """Merge pieces as the strategy says, and store them."""
        self.merge()
        super().save()

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        high, low, version = (
            some_of(to_numpy(table.column(name)), rows) for name in ("high", "low", "version")
        )
        order = np.lexsort((low, high))  # which is stable: the newest version of a key is last
        starts = group_starts(high[order], low[order])
        ends = np.append(starts[1:], len(order))
        newest = np.repeat(version[order[ends - 1]], ends - starts)
        order = order[version[order] == newest]
        if oldest:
            alive = to_mask(table.column("alive").combine_chunks())
            order = order[some_of(alive, rows)[order]]
        return chosen_rows(rows, order)
