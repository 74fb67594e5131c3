"""The least value per key among rows that are alive: what MIN and MAX keep of the past.

Two spines, both sorted by key, hold `ordered` values (see `kernels.sweep`):

* ``known``: rows whose end is known, sorted by it inside a key.  Only the staircase is kept: a row
  that is no better than one which ends no earlier can never be the extreme again.  So inside a
  piece and a key values get worse with the end, and the first row that ends at or after ``until``
  is the piece's extreme at that time: one binary search per key and piece.
* ``open``: values of rows with holders, sorted inside a key, with a net count per value and piece:
  +1 for a row that came, -1 for one that went.  The extreme is the first value whose counts add up
  to more than zero.  The pieces are read from the front, a few values first, then more, only for
  keys still without one.

For MAX the order of values is turned round; "best" and "first" always mean the extreme.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.counts import key_codes
from penstock.kernels.keys import Keys
from penstock.kernels.order import key_ranges, search_within
from penstock.kernels.steps import group_starts, ranges
from penstock.kernels.sweep import ranks, staircase
from penstock.model import I64, U64, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of, taken
from penstock.runs.state import State

_FIRST_LOOK = 4


class _Known(Spine[Piece]):
    """Rows whose end is known: the staircase of each key."""

    kind = Piece

    def __init__(self, state: State, name: str, largest: bool, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._largest = largest

    def put(self, table: pa.Table) -> None:
        """Add rows in any order."""
        self.add(taken(table, self._order(table, None, False)))

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("end") >= until
        return alive

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        high, low, end = (
            some_of(to_numpy(table.column(name)), rows) for name in ("high", "low", "end")
        )
        value = one_array(table.column("value"))
        value = value if rows is None else value.take(pa.array(rows))
        code, distinct = key_codes(Keys(high, low))
        by_key = np.lexsort((distinct.low, distinct.high))
        position = np.empty(len(by_key), np.int64)
        position[by_key] = np.arange(len(by_key))
        return chosen_rows(rows, staircase(position[code], end, ranks(value, self._largest)))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        return {"max_end": int(to_numpy(table.column("end")).max())}


class Counts(Spine[Piece]):
    """Values, sorted inside a key, and how many more copies came than went of each."""

    kind = Piece

    def __init__(self, state: State, name: str, largest: bool, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._largest = largest

    def put(self, table: pa.Table) -> None:
        """Add changes in any order."""
        self.add(self._netted(table))

    def _merged(self, pieces: Sequence[Piece], until: int) -> pa.Table:
        return self._netted(super()._merged(pieces, until))

    def _netted(self, table: pa.Table) -> pa.Table:
        high, low = _lanes(table)
        rank = ranks(one_array(table.column("value")), self._largest)
        order = np.lexsort((rank, low, high))
        high, low, rank = high[order], low[order], rank[order]
        starts = group_starts(high, low, rank)
        if len(starts) == 0:
            return table
        net = np.add.reduceat(to_numpy(table.column("count"))[order], starts)
        kept = net != 0
        result = taken(table, order[starts[kept]])
        return result.set_column(3, "count", pa.array(net[kept]))


class Extremes:
    """The extremes of one argument in one direction."""

    def __init__(
        self, state: State, name: str, kind: pa.DataType, largest: bool, merging: Merging
    ) -> None:
        self._known = _Known(state, f"{name}.known", largest, merging)
        self._open = Counts(state, f"{name}.open", largest, merging)
        self._kind = kind
        self._largest = largest

    def best(self, keys: Keys, until: int) -> tuple[I64, pa.Array]:
        """Return ``(owner, value)`` pairs: for each key the best that lives at ``until`` or longer.

        A key may have several pairs, of which the best counts, or none.
        """
        owners: list[I64] = []
        values = [pa.array([], self._kind)]
        for piece in self._known.pieces:
            if piece.stats["max_end"] < until:
                self._known.drop([piece])
                continue
            first, last = key_ranges(piece.numbers("high"), piece.numbers("low"), keys)
            end = piece.numbers("end")
            at = search_within(end, first, last, np.full(len(first), until, np.int64))
            owner = np.flatnonzero(at < last)
            owners.append(owner)
            values.append(one_array(piece.table.column("value")).take(pa.array(at[owner])))
        if self._open.pieces:
            owner, value = self._best_open(self._open.pieces, keys)
            owners.append(owner)
            values.append(value)
        return np.concatenate(owners or [np.empty(0, np.int64)]), pa.concat_arrays(values)

    def add_known(self, keys: Keys, end: I64, values: pa.Array) -> None:
        """Add rows that are alive and end at ``end``."""
        if len(keys):
            self._known.put(table_of(keys, values, end=end))

    def change_open(self, keys: Keys, values: pa.Array, change: int) -> None:
        """Add (+1) or take away (-1) rows whose end is not known."""
        if len(keys):
            count = np.full(len(keys), change, np.int64)
            self._open.put(table_of(keys, values, count=count))

    def save(self, until: int) -> None:
        """Merge pieces as the strategy says, and store them."""
        for spine in (self._known, self._open):
            spine.merge(until)
            spine.save()

    def _best_open(self, pieces: Sequence[Piece], keys: Keys) -> tuple[I64, pa.Array]:
        spans = [key_ranges(p.numbers("high"), p.numbers("low"), keys) for p in pieces]
        pending = np.arange(len(keys))
        owners: list[I64] = []
        found = [pa.array([], self._kind)]
        look = _FIRST_LOOK
        while len(pending):
            parts, values, counts, last_of_piece = [], [], [], []
            for piece, (first, last) in zip(pieces, spans, strict=True):
                upto = np.minimum(first[pending] + look, last[pending])
                owner, at = ranges(first[pending], upto)
                parts.append(owner)
                values.append(one_array(piece.table.column("value")).take(pa.array(at)))
                counts.append(piece.numbers("count")[at])
                cut = upto < last[pending]
                last_of_piece.append(cut[owner] & (at == upto[owner] - 1))
            owner, value = np.concatenate(parts), pa.concat_arrays(values)
            rank = ranks(value, self._largest)
            cut = np.concatenate(last_of_piece)
            bound = np.full(len(pending), np.iinfo(np.int64).max)
            np.minimum.at(
                bound, owner[cut], rank[cut]
            )  # beyond it, pieces were not read completely
            order = np.lexsort((rank, owner))
            starts = group_starts(owner[order], rank[order])
            if len(starts) == 0:
                break
            net = np.add.reduceat(np.concatenate(counts)[order], starts)
            head = order[starts]
            head = head[(net > 0) & (rank[head] <= bound[owner[head]])]
            head = head[group_starts(owner[head])]
            owners.append(pending[owner[head]])
            found.append(value.take(pa.array(head)))
            more = np.zeros(len(pending), bool)
            more[owner[cut]] = True
            more[owner[head]] = False
            pending = pending[more]
            look *= 8
        return np.concatenate(owners or [np.empty(0, np.int64)]), pa.concat_arrays(found)


def _lanes(table: pa.Table) -> tuple[U64, U64]:
    return to_numpy(table.column("high")), to_numpy(table.column("low"))


def table_of(keys: Keys, values: pa.Array, **more: I64) -> pa.Table:
    """Return the rows of a spine of values: key, value, and ``more``."""
    columns = {"high": keys.high, "low": keys.low, "value": values, **more}
    return pa.table({name: pa.array(column) for name, column in columns.items()})
