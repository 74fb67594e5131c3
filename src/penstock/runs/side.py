"""The state of a join: the live rows of one side, on a spine.

* `Side`: rows in the order of a layout, which the join predicate asks for.  Slices come in order of
  time, so every start in a piece is below all starts in younger pieces, and merging keeps the order
  of equal rows without comparing starts.  A side that takes rows as they arrive is *mixed*: there
  starts are compared.
* `penstock.runs.children.Children`: the holders of results that have two parents.

Rows die by time (``end <= until``), or because their holder has ended; nothing is rewritten for
that.  A piece in which everything is dead is dropped whole, others lose their dead rows when they
are merged.  `EndedHolders` remembers the holders that have ended while rows of theirs are still in
a piece.  Slices are numbered; the statistic ``turn`` of a piece, and of a list of ended holders, is
the number of the slice in which it was made.  A list matters only to older pieces that have dead
rows, because younger ones were made without them.  When dead rows are the majority, the pieces that
have some are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kernels.closed_keys import ClosedKeys
from penstock.kernels.keys import Keys
from penstock.kernels.layouts import Layout, Numbers
from penstock.kernels.sorting import sorted_numbers
from penstock.kernels.steps import ranges
from penstock.model import I64, MIN_TIME, Batch, Ends, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State

_WIDE_GAP = 1 << 20
_SPARSE = 16
_MOST_TABLES = 8
"""Ended holders get tables of flags: cut at wide gaps, neither too sparse nor too many."""


class _Holders(Piece):
    """Sorted holders. They are numbered in order of birth, so a list has few gaps: where it is
    dense, a table of flags answers faster than binary search.
    """

    _flags: list[tuple[int, Mask]] | None = None

    def has(self, holder: I64) -> Mask:
        found: Mask
        mine: I64 = self.numbers("holder")
        if self._flags is None and len(holder) > len(mine):
            self._flags = _flags(mine)
        if not self._flags:
            at = np.searchsorted(mine, holder)
            found = mine[np.minimum(at, len(mine) - 1)] == holder
            return found
        found = np.zeros(len(holder), bool)
        for base, flags in self._flags:
            found |= flags[np.clip(holder - base, -1, len(flags) - 1)]
        return found


def _flags(holder: I64) -> list[tuple[int, Mask]]:
    """Return tables (first number, a flag per number, false at the end), none if too sparse."""
    cuts = np.flatnonzero(np.diff(holder) > _WIDE_GAP) + 1
    if len(cuts) >= _MOST_TABLES:
        return []
    tables = []
    for part in np.split(holder, cuts):
        base = int(part[0])
        span = int(part[-1]) - base + 1
        if span > _SPARSE * len(part) + _WIDE_GAP:
            return []
        flags = np.zeros(span + 1, bool)
        flags[part - base] = True
        tables.append((base, flags))
    return tables


class EndedHolders(Spine[_Holders]):
    """The holders that have ended while rows of theirs are still in a piece: sorted lists."""

    kind = _Holders

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._turn = 0

    def put(self, holder: I64, turn: int) -> None:
        """Add sorted holders that have ended in the slice with the number ``turn``."""
        self._turn = turn
        self.add(pa.table({"holder": holder}))
        if len(holder):
            self.merge()

    def has(self, holder: I64) -> Mask:
        """Return which holders have ended."""
        found = np.zeros(len(holder), bool)
        for piece in self.pieces:
            found |= piece.has(holder)
        return found

    def forget(self, oldest: int | None) -> None:
        """Drop the lists that no piece needs; ``oldest`` is the slice of the oldest that may."""
        self.pieces = [p for p in self.pieces if oldest is not None and oldest < p.stats["turn"]]

    def _merged(self, pieces: Sequence[_Holders], until: int) -> pa.Table:
        merged = np.concatenate([piece.numbers("holder") for piece in pieces])
        merged.sort(kind="stable")
        return pa.table({"holder": merged})

    def _stats(self, table: pa.Table) -> dict[str, int]:
        return {"turn": self._turn}


class MortalSpine(Spine[Piece]):
    """A spine whose rows end at their time, or when one of their holders ends.

    ``parents`` is how many holders a row may have.
    """

    kind = Piece
    bounded = True
    parents = 1

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self.told = EndedHolders(state, f"{name}.told", merging)
        self._turn = state.numbers.get(f"{name}.turn", 0)

    def clear(self) -> None:
        """Throw everything away."""
        super().clear()
        self.told.clear()

    def save(self) -> None:
        """Store the pieces that are not stored yet, and the holders that have ended."""
        super().save()
        self.told.save()
        self._state.numbers[f"{self._name}.turn"] = self._turn

    def _tidy(self, until: int) -> None:
        """Drop, merge and rewrite pieces; forget the holders that no piece needs."""
        self.pieces = [piece for piece in self.pieces if not ended(piece, until)]
        self.merge(until)
        self._forget()
        dead = sum(piece.stats["dead"] for piece in self.pieces)
        if dead and 2 * max(dead, len(self.told) // self.parents) > len(self):
            for piece in self.pieces:
                if piece.stats["dead"]:
                    self.rewrite([piece], until)
            self._forget()

    def _forget(self) -> None:
        needing = [piece.stats["turn"] for piece in self.pieces if piece.stats["dead"]]
        self.told.forget(min(needing, default=None))


def ended(piece: Piece, until: int) -> bool:
    """Whether no row is alive at ``until`` or later."""
    stats = piece.stats
    open_ended = stats["dead"] == stats["open"] or stats["open_end"] <= until
    return stats["closed_end"] <= until and open_ended


class Side(MortalSpine):
    """The live rows of one side of a join.

    Columns of a piece: ``c0..``, the numbers of the layout, ``_start``, ``_end``; where some row is
    open also ``_holder``, and ``_holders``, the same numbers sorted, which counts the rows of a
    holder.
    """

    def __init__(
        self,
        state: State,
        name: str,
        types: Sequence[pa.DataType],
        merging: Merging,
        layout: Layout,
    ) -> None:
        super().__init__(state, name, merging)
        self._width = len(types)
        self._layout = layout
        self.useless: Callable[[Keys, I64], Mask] | None = None
        """Which rows, by key and end, can meet nothing any more: the other side closed them."""
        self.mixed = bool(state.numbers.get(f"{name}.mixed", 0))

    def sort(
        self, batch: Batch, numbers: Numbers, coordinates: tuple[Any, ...] = ()
    ) -> Piece | None:
        """Make a piece of rows; nothing is kept yet. No rows make no piece."""
        if len(batch) == 0:
            return None
        order = self._layout.order(numbers, batch.start)
        holders = np.sort(batch.holder, kind="stable")  # before: in order of birth they are sorted
        batch = batch.take(order)
        named: dict[str, Any] = {f"c{i}": column for i, column in enumerate(batch.columns)}
        named |= {name: numbers[name][order] for name in self._layout.names}
        named |= {"_start": batch.start, "_end": batch.end}
        if holders[-1]:
            named |= {"_holder": batch.holder, "_holders": holders}
        table = pa.table(named)
        sorted_coordinates = tuple(c[order] for c in coordinates)
        return Piece(self._stats(table), table, coordinates=sorted_coordinates)

    def probe(
        self, piece: Piece, probe_is_left: bool, block: int
    ) -> Iterator[tuple[Piece, I64, I64]]:
        """Yield (run, positions in the given piece, positions in the run) of all that may meet.

        An open row counts as alive until its own end: ended holders are not looked at here.
        """
        for run in self.alive(int(piece.numbers("_start").min())):
            for mine, theirs in self._layout.match(piece, run, probe_is_left, block):
                yield run, mine, theirs

    def alive(self, start: int) -> Iterator[Piece]:
        """Yield the pieces in which rows are alive at ``start`` or later, oldest first."""
        return (run for run in self.pieces if not ended(run, start))

    def mix(self) -> None:
        """From now on rows come in any order of time."""
        self.mixed = True
        self._state.numbers[f"{self._name}.mixed"] = 1

    def advance(self, new: Piece | None, ends: Ends, until: int) -> None:
        """End a slice: take the new rows in, let go of all that is dead at ``until``."""
        self._turn += 1
        if len(ends):
            self._hear(ends)
        kept = None if new is None else self._fresh(new, until)
        if kept is not None:
            self.pieces.append(kept)
        self._tidy(until)

    def store(self, new: Piece, until: int) -> None:
        """Take new rows in and write them at once, so that nothing of them stays in memory."""
        kept = self._fresh(new, until)
        if kept is not None:
            self.write(kept)

    def _fresh(self, new: Piece, until: int) -> Piece | None:
        """Return the part of a new piece that is alive at ``until``, None if there is none."""
        alive = new.numbers("_end") > until
        if self.useless is not None:
            shut = self._shut(new)
            new.stats["shut"] = int(shut.sum())
            alive &= ~shut
        if alive.all():
            new.stats["turn"] = self._turn
            return new
        if not alive.any():
            return None
        table = self._merged([new], until)
        return Piece(self._stats(table), table)

    def _hear(self, ends: Ends) -> None:
        known = np.zeros(len(ends), bool)
        for piece in self.pieces:
            if piece.stats["open"] == piece.stats["dead"]:
                continue
            _, told = told_rows(piece.numbers("_holders"), ends)
            known[told] = True
            piece.stats["dead"] += len(told)
        self.told.put(ends.holder[known], self._turn)

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("_end") > until
        if piece.stats["dead"]:
            alive &= ~self.told.has(piece.numbers("_holder"))
        if piece.stats.get("shut"):
            alive &= ~self._shut(piece)
        return alive

    def _shut(self, piece: Piece) -> Mask:
        assert self.useless is not None
        keys = Keys(piece.numbers("_high"), piece.numbers("_low"))
        return self.useless(keys, piece.numbers("_end"))

    def close(self, closed: ClosedKeys, until: int) -> Iterator[tuple[Piece, I64]]:
        """Let go of rows that can meet nothing any more; yield them, piece by piece.

        Only the rows of ``closed`` are looked at.  A piece is written again when half of it is
        of no use.
        """
        for piece in list(self.pieces):
            high, low, end = (piece.numbers(name) for name in ("_high", "_low", "_end"))
            first = np.searchsorted(high, closed.keys.high, "left")
            last = np.searchsorted(high, closed.keys.high, "right")
            owner, position = ranges(first, last)
            mine = (low[position] == closed.keys.low[owner]) & (
                end[position] <= closed.until[owner]
            )
            position = position[mine]
            if len(position):
                yield piece, position
                piece.stats["shut"] = piece.stats.get("shut", 0) + len(position)
                if 2 * piece.stats["shut"] >= len(piece):
                    self.rewrite([piece], until)

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        names = (*self._layout.sorted_by, "_start") if self.mixed else self._layout.sorted_by
        numbers = {name: some_of(to_numpy(table.column(name)), rows) for name in names}
        start = numbers.pop("_start") if self.mixed else None
        return chosen_rows(rows, self._layout.merged(numbers, start))

    def _tables(self, pieces: Sequence[Piece]) -> list[pa.Table]:
        names = [f"c{i}" for i in range(self._width)]
        names += [*self._layout.names, "_start", "_end"]
        some_open = any("_holder" in piece.table.column_names for piece in pieces)
        tables = []
        for piece in pieces:
            table = piece.table.select(names)
            if some_open:
                table = table.append_column("_holder", pa.array(holders_of(piece)))
            tables.append(table)
        return tables

    def _finish(self, table: pa.Table) -> pa.Table:
        if "_holder" not in table.column_names:
            return table
        holders = sorted_numbers(to_numpy(table.column("_holder")))
        if len(holders) and holders[-1] == 0:
            return table.drop_columns("_holder")
        return table.append_column("_holders", pa.array(holders))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        numbers = {name: to_numpy(table.column(name)) for name in self._layout.names}
        start, end = to_numpy(table.column("_start")), to_numpy(table.column("_end"))
        stats = {"turn": self._turn, "dead": 0, "open": 0, "open_end": MIN_TIME}
        stats |= {"max_start": int(start.max()), "min_end": int(end.min())}
        stats |= self._layout.stats(numbers, end)
        if "_holder" in table.column_names:
            is_open = to_numpy(table.column("_holder")) != 0
            holders = to_numpy(table.column("_holders"))
            stats["open"] = int(is_open.sum())
            stats["open_end"] = int(end[is_open].max())
            held = holders[len(holders) - stats["open"] :]
            stats["min_holder"] = int(held[0])
            stats["shared"] = int((held[1:] == held[:-1]).any())
            end = end[~is_open]
        return stats | {"closed_end": int(end.max()) if len(end) else MIN_TIME}


def holders_of(piece: Piece) -> I64:
    """Return the holders of the rows of a piece; it has no such column where all are 0."""
    if "_holder" in piece.table.column_names:
        holder: I64 = piece.numbers("_holder")
        return holder
    return np.zeros(len(piece), np.int64)


def told_rows(holder: I64, ends: Ends) -> tuple[I64, I64]:
    """Return where in sorted holders those are that are told, and which of the ends tells each.

    Where the told holders are neighbouring numbers, as those of a row window are, the rows are a
    slice, and nothing has to be searched.
    """
    begin, finish = np.searchsorted(ends.holder, (max(int(holder[0]), 1), int(holder[-1]) + 1))
    told = ends.holder[begin:finish]
    if len(told) == 0:
        return told, told
    if len(told) == told[-1] - told[0] + 1:
        first, last = np.searchsorted(holder, (told[0], told[-1] + 1))
        return np.arange(first, last), holder[first:last] + (begin - told[0])
    owner, position = ranges(
        np.searchsorted(holder, told, "left"), np.searchsorted(holder, told, "right")
    )
    return position, owner + begin
