"""Rows in ladder order (`penstock.kernels.nearest`): the state of an ASOF join, one per side.

An `AsofSide` is a spine whose pieces are sorted by key, value and columns.  Their columns are
``c0..``, ``_high``, ``_low``, ``_value``, ``_start``, ``_end``, ``_holder``, ``_number`` (unique in
the side) and those that the owner adds.

Rows go away in three ways: their end passes; their holder ends (`AsofSide.hear`); or the owner
takes them out (`AsofSide.take_out`).  The last two leave the table as it is: the numbers of such
rows are stored beside the pieces, and a piece is rewritten when they are its majority.  Whenever
rows are written, the owner may leave out those that are of no use any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.keys import Keys
from penstock.kernels.nearest import Ladder, ladder_order
from penstock.model import I64, INF, MIN_TIME, Batch, Ends, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of, taken
from penstock.runs.state import State


class AsofPiece(Piece):
    """Sorted rows, which of them are gone, and the ends of the others as far as they are known."""

    gone: Mask | None = None
    _end: I64 | None = None

    @property
    def keys(self) -> Keys:
        return Keys(self.numbers("_high"), self.numbers("_low"))

    @property
    def end(self) -> I64:
        """The ends as far as known: ``MIN_TIME`` for a row that is gone."""
        if self._end is None:
            end: I64 = self.numbers("_end")
            self._end = end if self.gone is None else np.where(self.gone, MIN_TIME, end)
        return self._end

    @cached_property
    def ladder(self) -> Ladder:
        """The piece as it can be searched in this slice."""
        value, start = self.numbers("_value"), self.numbers("_start")
        return Ladder(self.keys.high, self.keys.low, value, start, self.end)

    def take(self, at: I64, width: int) -> list[pa.Array]:
        """Return the values of some rows."""
        index = pa.array(at)
        columns = (one_array(self.table.column(f"c{i}")) for i in range(width))
        return [pc.take(column, index, boundscheck=False) for column in columns]

    def ends_at(self, end: I64) -> None:
        """Let rows end earlier."""
        self._end = np.minimum(self.end, end)
        self.__dict__.pop("ladder", None)

    def remove(self, which: Mask) -> None:
        """Let rows be gone from now on."""
        self.gone = which.copy() if self.gone is None else self.gone | which
        self.stats["dead"] = int(self.gone.sum())
        self._end = None
        self.__dict__.pop("ladder", None)


class AsofSide(Spine[AsofPiece]):
    """The rows of one side. The first ``ties`` columns order rows of equal key and value."""

    kind = AsofPiece
    bounded = True

    def __init__(self, state: State, name: str, ties: int, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._gone_name = f"{name}.gone"
        self._ties = ties
        self._ended: list[tuple[AsofPiece, Mask]] = []
        self._useful: Callable[[AsofPiece], Mask] | None = None
        runs = state.runs(self._gone_name)
        parts = [to_numpy(run.table().column("number")) for run in runs]
        self._gone: I64 = np.concatenate([np.empty(0, np.int64), *parts])
        for piece in self.pieces:
            if piece.stats["dead"]:
                piece.gone = np.isin(piece.numbers("_number"), self._gone)

    def __len__(self) -> int:
        return sum(piece.live for piece in self.pieces)

    @property
    def least(self) -> int:
        """No value is below this."""
        return min((piece.stats["least"] for piece in self.pieces), default=INF)

    @property
    def greatest(self) -> int:
        """No value is above this."""
        return max((piece.stats["greatest"] for piece in self.pieces), default=MIN_TIME)

    def sort(
        self, rows: Batch, keys: Keys, value: I64, extra: Mapping[str, I64] | None = None
    ) -> AsofPiece | None:
        """Make a piece of new rows; nothing is kept yet. No rows make no piece."""
        if len(rows) == 0:
            return None
        numbers = self._state.numbers
        used = numbers.get(f"{self._name}.number", 0)
        numbers[f"{self._name}.number"] = used + len(rows)
        named: dict[str, Any] = {f"c{i}": column for i, column in enumerate(rows.columns)}
        named |= {"_high": keys.high, "_low": keys.low, "_value": value, "_start": rows.start}
        named |= {"_end": rows.end, "_holder": rows.holder}
        named |= {"_number": np.arange(used, used + len(rows))}
        table = pa.table(named | dict(extra or {}))
        table = taken(table, self._order(table, None, False))
        return AsofPiece(self._stats(table), table)

    def hear(self, ends: Ends) -> None:
        """Let rows end with their holders; `advance` will let them go."""
        if len(ends) == 0:
            return
        for piece in self.pieces:
            if piece.stats["open"]:
                told = ends.lookup(piece.numbers("_holder"))
                known = told < INF
                if known.any():
                    piece.ends_at(told)
                    self._ended.append((piece, known))

    def take_out(self, piece: AsofPiece, at: I64) -> None:
        """Let rows be gone, because they are of no use or will be put in anew."""
        which = np.zeros(len(piece), bool)
        which[at] = True
        piece.remove(which)

    def advance(
        self,
        new: AsofPiece | None,
        until: int,
        useful: Callable[[AsofPiece], Mask] | None = None,
    ) -> None:
        """End a slice: take the new rows in, let go of all that is dead at ``until``.

        ``useful`` says which of the living rows of a piece are worth keeping.
        """
        self._useful = useful
        for piece, known in self._ended:
            piece.remove(known)
        self._ended = []
        self.pieces = [p for p in self.pieces if p.stats["last"] > until and p.live]
        for piece in self.pieces:
            if 2 * piece.stats["dead"] > len(piece):
                self.rewrite([piece], until)
        if new is not None:
            self.add(self._merged([new], until))
        self.merge(until)
        self._useful = None

    def clear(self) -> None:
        """Throw everything away."""
        super().clear()
        self._ended = []

    def save(self) -> None:
        """Store the pieces that are not stored yet, and which rows of them all are gone."""
        super().save()
        parts = [p.numbers("_number")[p.gone] for p in self.pieces if p.gone is not None]
        gone = np.concatenate([np.empty(0, np.int64), *parts])
        if not np.array_equal(gone, self._gone):
            self._gone = gone
            self._state.drop(self._gone_name)
            self._state.append(self._gone_name, pa.table({"number": gone}))

    def _alive(self, piece: AsofPiece, until: int) -> Mask:
        alive: Mask = piece.end > until
        return alive

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        high, low, value = (
            some_of(to_numpy(table.column(name)), rows) for name in ("_high", "_low", "_value")
        )
        columns = [one_array(table.column(f"c{i}")) for i in range(self._ties)]
        if rows is not None:
            columns = [column.take(pa.array(rows)) for column in columns]
        return chosen_rows(rows, ladder_order(Keys(high, low), value, columns))

    def _finish(self, table: pa.Table) -> pa.Table:
        if self._useful is None or table.num_rows == 0:
            return table
        keep = self._useful(AsofPiece({}, table))
        return table if keep.all() else taken(table, np.flatnonzero(keep))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        value, end = to_numpy(table.column("_value")), to_numpy(table.column("_end"))
        holders = [n for n in table.column_names if n.endswith("_holder")]
        ends = [n for n in table.column_names if n.endswith("_end")]
        stats = {"dead": 0, "last": int(end.max())}
        stats |= {"least": int(value.min()), "greatest": int(value.max())}
        stats["open"] = int(any(to_numpy(table.column(n)).any() for n in holders))
        stats["alarm"] = min(int(to_numpy(table.column(n)).min()) for n in ends)
        return stats
