"""The state of a join: the live rows of one side, on a shelf.

A `Shelf` is a list of pieces, oldest first, each an immutable sorted table.  A piece is a
stored run, or one made in this micro-batch which `save` will store, so that however many slices a
micro-batch has, a piece that is merged at once is never written.

* `Side`: rows in the order of a layout, which the join predicate asks for.  Slices come in order of
  time, so every start in a piece is below all starts in younger pieces, and merging keeps the order
  of equal rows without comparing starts.  A side that takes rows as they arrive is *mixed*: there
  starts are compared.
* `penstock.runs.children.Children`: the holders of results that have two parents.

Rows die by time (``end <= until``) or because their holder was told; nothing is rewritten for that.
A piece in which everything is dead is dropped whole, the others are thinned when they are merged.
`Told` remembers the holders that were told while rows of theirs are still in a piece.  Every piece
and every list of told holders carries the number of the turn in which it was made: a list matters
only to older pieces that have dead rows, because younger ones were made without them.  When dead
rows are the majority, the pieces that have some are rewritten.  So each row is rewritten a
logarithmic number of times, and the cost of a turn follows what comes and goes, not what stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.layouts import Layout, Numbers
from penstock.kernels.sorting import sorted_numbers
from penstock.kernels.steps import ranges
from penstock.model import I64, MIN_TIME, Batch, Ends, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State

_WIDE_GAP = 1 << 20
_SPARSE = 16
_MOST_TABLES = 8
"""Told holders get tables of flags: cut at wide gaps, neither too sparse nor too many."""


class Piece:
    """A sorted table that never changes; only the number of its dead rows does."""

    def __init__(
        self,
        stats: dict[str, int],
        table: pa.Table | None = None,
        run: Run | None = None,
        replaces: Sequence[Run] = (),
        coordinates: tuple[Any, ...] = (),
    ) -> None:
        self.stats = stats
        self.run = run
        self.coordinates = coordinates
        self.replaces = tuple(replaces)
        self._table = table
        self._numbers: dict[str, Any] = {}

    def __len__(self) -> int:
        if self.run is not None:
            return len(self.run)
        assert self._table is not None
        return int(self._table.num_rows)

    @property
    def table(self) -> pa.Table:
        if self._table is None:
            assert self.run is not None
            self._table = self.run.table()
        return self._table

    @property
    def stored(self) -> tuple[Run, ...]:
        """The runs in the state whose rows are now here."""
        return self.replaces if self.run is None else (self.run,)

    @property
    def bytes(self) -> int:
        """The size of the table; that of a file's run is known without opening it."""
        if self._table is None and self.run is not None and "length" in self.run.place:
            return int(self.run.place["length"])
        return int(self.table.nbytes)

    @property
    def live(self) -> int:
        """At most so many rows are alive."""
        return len(self) - self.stats["dead"]

    def numbers(self, name: str) -> Any:
        """Return a numeric column without copying it."""
        if name not in self._numbers:
            self._numbers[name] = to_numpy(self.table.column(name))
        return self._numbers[name]

    def ended(self, until: int) -> bool:
        """Whether no row is alive at ``until`` or later."""
        stats = self.stats
        open_ended = stats["dead"] == stats["open"] or stats["open_end"] <= until
        return stats["closed_end"] <= until and open_ended


class _ToldList:
    """Sorted holders. They are numbered in order of birth, so a list has few gaps: where it is
    dense, a table of flags answers faster than binary search.
    """

    def __init__(self, holder: I64, turn: int, run: Run | None = None) -> None:
        self.holder = holder
        self.turn = turn
        self.run = run
        self._flags: list[tuple[int, Mask]] | None = None

    def has(self, holder: I64) -> Mask:
        found: Mask
        if self._flags is None and len(holder) > len(self.holder):
            self._flags = _flags(self.holder)
        if not self._flags:
            at = np.searchsorted(self.holder, holder)
            found = self.holder[np.minimum(at, len(self.holder) - 1)] == holder
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


class Told:
    """The holders told while rows of theirs are still in a piece: sorted lists."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._state = state
        self._name = name
        self._merging = merging
        self._lists = [
            _ToldList(to_numpy(run.table().column("holder")), run.stats["turn"], run)
            for run in state.runs(name)
        ]

    def __len__(self) -> int:
        return sum(len(told.holder) for told in self._lists)

    def add(self, holder: I64, turn: int) -> None:
        """Add sorted holders."""
        if len(holder) == 0:
            return
        self._lists.append(_ToldList(holder, turn))
        chosen = self._merging.choose([len(told.holder) for told in self._lists])
        if chosen:
            merged = np.concatenate([t.holder for t in self._lists[chosen[0] : chosen[1]]])
            merged.sort(kind="stable")
            self._lists[chosen[0] : chosen[1]] = [_ToldList(merged, turn)]

    def has(self, holder: I64) -> Mask:
        """Return which holders were told."""
        found = np.zeros(len(holder), bool)
        for told in self._lists:
            found |= told.has(holder)
        return found

    def forget(self, oldest: int | None) -> None:
        """Drop the lists that no piece needs; ``oldest`` is the oldest turn of one that may."""
        self._lists = [t for t in self._lists if oldest is not None and oldest < t.turn]

    def save(self) -> None:
        kept = {id(told.run) for told in self._lists}
        gone = [run for run in self._state.runs(self._name) if id(run) not in kept]
        self._state.replace(self._name, gone, None)
        for told in self._lists:
            if told.run is None:
                self._state.append(
                    self._name, pa.table({"holder": told.holder}), {"turn": told.turn}
                )


class Shelf(ABC):
    """Pieces, oldest first, and what was told about them.

    ``parents`` is how many holders a row may have that are told.
    """

    parents = 1

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self.pieces = [Piece(run.stats, run=run) for run in state.runs(name)]
        self.told = Told(state, f"{name}.told", merging)
        self._state = state
        self._name = name
        self._merging = merging
        self._turn = state.numbers.get(f"{name}.turn", 0)

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def clear(self) -> None:
        """Throw everything away."""
        self.pieces = []
        self.told.forget(None)

    def save(self) -> None:
        """Store the pieces made since the state was opened, in the places of those they replace."""
        kept = {id(run) for piece in self.pieces for run in piece.stored}
        gone = [run for run in self._state.runs(self._name) if id(run) not in kept]
        self._state.replace(self._name, gone, None)
        for piece in self.pieces:
            if piece.run is not None:
                continue
            if piece.replaces:
                self._state.replace(self._name, piece.replaces, piece.table, piece.stats)
            else:
                self._state.append(self._name, piece.table, piece.stats)
        self.told.save()
        self._state.numbers[f"{self._name}.turn"] = self._turn

    def _next_turn(self) -> None:
        self._turn += 1

    def _tidy(self, until: int) -> None:
        """Drop, merge and rewrite pieces; forget what no piece needs."""
        self.pieces = [piece for piece in self.pieces if not piece.ended(until)]
        chosen = self._chosen()
        if chosen is not None:
            first, last = chosen
            plan: list[Piece | list[Piece]] = [*self.pieces[:first], self.pieces[first:last]]
            self._rewrite([*plan, *self.pieces[last:]], until)
        self._forget()
        dead = sum(piece.stats["dead"] for piece in self.pieces)
        if dead and 2 * max(dead, len(self.told) // self.parents) > len(self):
            self._rewrite([[p] if p.stats["dead"] else p for p in self.pieces], until)
            self._forget()

    def _forget(self) -> None:
        needing = [piece.stats["turn"] for piece in self.pieces if piece.stats["dead"]]
        self.told.forget(min(needing, default=None))

    def _chosen(self) -> tuple[int, int] | None:
        """Return the range of pieces to merge now; those that would make it too large stay apart.

        Whether the others are worth merging is asked again without them.
        """
        settled = 0
        while True:
            chosen = self._merging.choose([piece.live for piece in self.pieces[settled:]])
            if chosen is None:
                return None
            first, last = settled + chosen[0], settled + chosen[1]
            if sum(piece.bytes for piece in self.pieces[first:last]) <= self._merging.most:
                return first, last
            settled = first + 1

    def _rewrite(self, plan: Sequence[Piece | list[Piece]], until: int) -> None:
        """Put one new piece in the place of each list of neighbours."""
        self.pieces = []
        for step in plan:
            if isinstance(step, Piece):
                self.pieces.append(step)
                continue
            table = self._merge(step, until)
            if table.num_rows:
                stored = [run for piece in step for run in piece.stored]
                self.pieces.append(Piece(self._stats(table), table, replaces=stored))

    def _merge(self, pieces: Sequence[Piece], until: int) -> pa.Table:
        """Return the live rows of pieces as one sorted table."""
        index, offset = [], 0
        for piece in pieces:
            index.append(np.flatnonzero(self._alive(piece, until)) + offset)
            offset += len(piece)
        rows = np.concatenate(index)
        if len(pieces) > 1:
            rows = rows[self._order(pieces, rows)]
        taken = pa.array(rows)
        names = self._kept([piece.table for piece in pieces])
        columns = []
        for name in names:
            parts = [self._column(piece.table, name) for piece in pieces]
            columns.append(pc.take(pa.concat_arrays(parts), taken, boundscheck=False))
        return self._finish(pa.table(columns, names=names))

    @abstractmethod
    def _alive(self, piece: Piece, until: int) -> Mask: ...

    @abstractmethod
    def _order(self, pieces: Sequence[Piece], rows: I64) -> I64: ...

    @abstractmethod
    def _stats(self, table: pa.Table) -> dict[str, int]: ...

    def _kept(self, tables: Sequence[pa.Table]) -> list[str]:
        return list(tables[0].column_names)

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        return one_array(table.column(name))

    def _finish(self, table: pa.Table) -> pa.Table:
        return table


class Side(Shelf):
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

        An open row counts as alive until its own end: what was told is not looked at here.
        """
        start = int(piece.numbers("_start").min())
        for run in self.pieces:
            if run.ended(start):
                continue
            for mine, theirs in self._layout.match(piece, run, probe_is_left, block):
                yield run, mine, theirs

    def mix(self) -> None:
        """From now on rows come in any order of time."""
        self.mixed = True
        self._state.numbers[f"{self._name}.mixed"] = 1

    def turn(self, new: Piece | None, ends: Ends, until: int) -> None:
        """End a slice: take the new rows in, let go of all that is dead at ``until``."""
        self._next_turn()
        if len(ends):
            self._hear(ends)
        kept = None if new is None else self._living(new, until)
        if kept is not None:
            self.pieces.append(kept)
        self._tidy(until)

    def store(self, new: Piece, until: int) -> None:
        """Take new rows in and write them at once, so that nothing of them stays in memory."""
        kept = self._living(new, until)
        if kept is not None:
            run = self._state.append(self._name, kept.table, kept.stats)
            assert run is not None
            self.pieces.append(Piece(run.stats, run=run))

    def _living(self, new: Piece, until: int) -> Piece | None:
        """Return the part of a new piece that is alive at ``until``, None if there is none."""
        alive = new.numbers("_end") > until
        if alive.all():
            new.stats["turn"] = self._turn
            return new
        if not alive.any():
            return None
        table = new.table.select(self._kept([new.table])).filter(pa.array(alive))
        table = self._finish(table.combine_chunks())
        return Piece(self._stats(table), table)

    def _hear(self, ends: Ends) -> None:
        known = np.zeros(len(ends), bool)
        for piece in self.pieces:
            if piece.stats["open"] == piece.stats["dead"]:
                continue
            _, told = told_rows(piece.numbers("_holders"), ends)
            known[told] = True
            piece.stats["dead"] += len(told)
        self.told.add(ends.holder[known], self._turn)

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("_end") > until
        if piece.stats["dead"]:
            alive &= ~self.told.has(piece.numbers("_holder"))
        return alive

    def _order(self, pieces: Sequence[Piece], rows: I64) -> I64:
        numbers = {name: joined(pieces, name)[rows] for name in self._layout.sorted_by}
        start = joined(pieces, "_start")[rows] if self.mixed else None
        return self._layout.merged(numbers, start)

    def _kept(self, tables: Sequence[pa.Table]) -> list[str]:
        names = [f"c{i}" for i in range(self._width)]
        names += [*self._layout.names, "_start", "_end"]
        return [*names, "_holder"] if any("_holder" in t.column_names for t in tables) else names

    def _column(self, table: pa.Table, name: str) -> pa.Array:
        if name == "_holder" and name not in table.column_names:
            return pa.array(np.zeros(table.num_rows, np.int64))
        return one_array(table.column(name))

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


def joined(pieces: Sequence[Piece], name: str) -> Any:
    """Return a numeric column of pieces as one."""
    return np.concatenate([piece.numbers(name) for piece in pieces])
