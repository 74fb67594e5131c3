"""The live rows of a relation, and when they die.

A row is valid from its start to its end, or to the end of its holder if that is earlier.  Three
spines hold what is alive:

* ``by_end``: rows with a finite end.  A piece stays as it came, unsorted, until the earliest end in
  it is passed; then it is sorted by end, if it is not by itself, and its front dies first [C 3.2];
* ``by_holder``: rows with a holder, sorted by it; the end of a holder finds its rows by binary
  search.  Where rows die in the order of their holders, as those of a row window do, they are
  simply the front of the oldest piece; rows whose holders come from different operators are in
  different pieces;
* ``forever``: rows that never die, kept only for `live`.

A row with a finite end *and* a holder stands in the first two; whichever end is earlier takes it.
``told`` remembers the holders that have ended while rows of theirs are still in a piece, so that
none dies twice.  Rows of ended holders are left out when a piece is merged, or when they are the
majority: the cost of a slice follows the rows that come and go, not those that stay [C 3.1].
Pieces are merged only to keep their number low, many at once: most rows die at the front of old
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.steps import ranges
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.runs.holder_numbers import BLOCK
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class _Told:
    """The holders that have ended while rows of theirs are still in a piece.

    With each goes the last of the ends that such rows have of their own.  The spines ask this and
    not `Lifetimes`: objects that know one another would keep their tables until Python looks for
    such rings.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        tables = [run.table() for run in state.runs(name)]
        self._ends = Ends.concat(
            Ends(to_numpy(t.column("holder")), to_numpy(t.column("last"))) for t in tables
        )
        self._changed = False

    def __len__(self) -> int:
        return len(self._ends)

    def lack(self, holder: I64) -> Mask:
        """Return which holders are not among them."""
        lacking: Mask = self._ends.lookup(holder) == INF
        return lacking

    def add(self, holder: I64, last: I64) -> None:
        self._ends = Ends.concat([self._ends, Ends(holder, last)])
        self._changed = True

    def forget(self, until: int) -> None:
        """Drop the holders of which no row can be there at ``until``."""
        needed = self._ends.end >= until
        if not needed.all():
            self._ends = Ends(self._ends.holder[needed], self._ends.end[needed])
            self._changed = True

    def save(self) -> None:
        if self._changed:
            self._state.drop(self._name)
            table = pa.table({"holder": self._ends.holder, "last": self._ends.end})
            self._state.append(self._name, table)
            self._changed = False


class _Rows(Spine[Piece]):
    """Rows that have ends, or holders, or neither.

    The order of such pieces does not matter, so those of one size are merged, wherever they stand.
    """

    kind = Piece

    def __init__(self, state: State, name: str, merging: Merging, told: _Told) -> None:
        super().__init__(state, name, merging)
        self._told = told

    def _alive(self, piece: Piece, until: int) -> Mask | None:
        holder = piece.numbers("_holder")
        if not holder.any():
            return None
        alive: Mask = (holder == 0) | (self._told.lack(holder) & (piece.numbers("_end") >= until))
        return alive

    def _choose(self) -> list[list[Piece]]:
        together: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            together.setdefault(self._family(piece), []).append(piece)
        return [
            [pieces[i] for i in chosen]
            for pieces in together.values()
            if (chosen := self._merging.alike([len(piece) for piece in pieces]))
        ]

    def _family(self, piece: Piece) -> int:
        """Only pieces of one family are merged."""
        return 0

    def _stats(self, table: pa.Table) -> dict[str, int]:
        end = to_numpy(table.column("_end"))
        in_order = int(not (end[1:] < end[:-1]).any())
        return {"min_end": int(end.min()), "max_end": int(end.max()), "in_order": in_order}


class _ByHolder(_Rows):
    """Rows in order of their holders."""

    def _family(self, piece: Piece) -> int:
        return piece.stats["min_holder"] >> BLOCK

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64 | None:
        holder = some_of(to_numpy(table.column("_holder")), rows)
        if not (holder[1:] < holder[:-1]).any():
            return rows
        return chosen_rows(rows, np.argsort(holder, kind="stable"))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        holder = to_numpy(table.column("_holder"))
        stats = {"min_holder": int(holder[0]), "max_holder": int(holder[-1])}
        stats["mortal"] = int(to_numpy(table.column("_end")).min() < INF)
        # neighbouring numbers, one row each
        stats["dense"] = int(bool((holder[1:] - holder[:-1] == 1).all()))
        return stats


class Lifetimes:
    """The live rows of one relation; `advance` moves time on."""

    def __init__(
        self,
        state: State,
        name: str,
        types: Sequence[pa.DataType],
        merging: Merging,
        keep_forever: bool = True,
    ) -> None:
        self._state = state
        self._types = tuple(types)
        self._keep_forever = keep_forever
        self._told = _Told(state, f"{name}.told")
        self._by_end = _Rows(state, f"{name}.by_end", merging, self._told)
        self._by_holder = _ByHolder(state, f"{name}.by_holder", merging, self._told)
        self._forever = _Rows(state, f"{name}.forever", merging, self._told)
        self._dead_name = f"{name}.dead"
        self._until = state.numbers.get(f"{name}.until", -INF)
        self._until_name = f"{name}.until"

    def advance(self, new: Batch, ends: Ends, until: int) -> Batch:
        """Add new rows and move time to ``until``; return every row whose end is below it, once.

        The rows come back with their final end and holder 0; ghosts are dropped.
        """
        return Batch.concat(self.turn_parts([new], ends, until) or [Batch.empty(self._types)])

    def turn_parts(self, new: Sequence[Batch], ends: Ends, until: int) -> list[Batch]:
        """Do the same with rows in parts, and give back parts: nothing is copied to join them."""
        gone = self._pop(ends, until)
        for rows in new:
            over, end = self._take_in(rows, ends, until)
            if len(end):
                died, none = rows.take(over), np.zeros(len(end), np.int64)
                gone.append(Batch(died.columns, died.start, end, none).drop_ghosts())
        return [rows for rows in gone if len(rows)]

    def turn_apart(self, new: Batch, ends: Ends, until: int) -> tuple[Batch, Mask, I64]:
        """Do the same, but tell which of the new rows die apart, and their ends.

        None of the new rows may be a ghost.
        """
        gone = self._pop(ends, until) or [Batch.empty(self._types)]
        return Batch.concat(gone), *self._take_in(new, ends, until)

    def _pop(self, ends: Ends, until: int) -> list[Batch]:
        """Return the rows of earlier turns that end below ``until``."""
        self._until = until
        return [rows.drop_ghosts() for rows in self._pop_ended(ends) + self._pop_told(ends)]

    def _take_in(self, new: Batch, ends: Ends, until: int) -> tuple[Mask, I64]:
        """Keep the new rows that live on; return which do not, and the ends of those."""
        known = ends.told(new.holder)
        end = new.end if known is None else np.minimum(new.end, known)
        over: Mask = end < until
        if not over.all():
            self._add(new.take(~over) if over.any() else new)
            end = end[over]
        return over, end

    def release(self, holder: I64) -> Batch:
        """Give away the rows of holders, sorted, that are never told: with their own ends."""
        gone = [Batch.empty(self._types)]
        last_end = np.full(len(holder), -INF, np.int64)
        hits = 0
        for piece in self._by_holder.pieces:
            owner, rows = _rows_of(piece, holder)
            known = self._told.lack(rows.holder)
            owner, rows = owner[known], rows.take(known)
            finite = rows.end < INF
            np.maximum.at(last_end, owner[finite], rows.end[finite])
            np.maximum.at(last_end, owner, -INF + 1)
            hits += len(owner)
            alive = rows.take(rows.end >= self._until)
            none = np.zeros(len(alive), np.int64)
            gone.append(Batch(alive.columns, alive.start, alive.end, none))
        if hits:
            known = last_end > -INF
            self._told.add(holder[known], last_end[known])
            self._add_dead(hits)
        return Batch.concat(gone)

    def live(self) -> Batch:
        """Return every row that is alive after the last turn, in no order."""
        parts = [Batch.empty(self._types)]
        for piece in self._by_end.pieces:
            rows = Batch.from_table(piece.table)
            parts.append(rows.take(rows.holder == 0))
        for piece in self._by_holder.pieces:
            rows = Batch.from_table(piece.table)
            parts.append(rows.take(self._told.lack(rows.holder) & (rows.end >= self._until)))
        parts += [Batch.from_table(piece.table) for piece in self._forever.pieces]
        return Batch.concat(parts)

    def __len__(self) -> int:
        return len(self._by_end) + len(self._by_holder) + len(self._forever)

    def save(self) -> None:
        """Merge pieces as the strategy says, and store them and the holders that have ended."""
        self._by_end.merge(self._until)
        self._compact()
        rows = len(self._by_holder)
        self._by_holder.merge(self._until)
        self._add_dead(len(self._by_holder) - rows)
        self._forever.merge(self._until)
        for spine in (self._by_end, self._by_holder, self._forever):
            spine.save()
        self._state.numbers[self._until_name] = self._until
        self._told.save()

    def _pop_ended(self, ends: Ends) -> list[Batch]:
        gone, until = [], self._until
        for piece in self._by_end.pieces:
            if piece.stats["min_end"] >= until:
                continue
            rows = self._take_front(piece, until)
            if rows.holder.any():
                self._add_dead(int((rows.holder != 0).sum()))
                alive = (rows.holder == 0) | (
                    self._told.lack(rows.holder) & (ends.lookup(rows.holder) >= rows.end)
                )
                rows = rows.take(alive)
            gone.append(Batch(rows.columns, rows.start, rows.end, np.zeros(len(rows), np.int64)))
        return gone

    def _take_front(self, piece: Piece, until: int) -> Batch:
        """Take the rows that end below ``until`` out of a piece of ``by_end``."""
        table = piece.table
        end = piece.numbers("_end")
        if piece.stats["max_end"] < until:
            self._by_end.drop([piece])
            return Batch.from_table(table)
        if piece.stats.get("in_order", 1):
            count = int(np.searchsorted(end, until))
            self._by_end.skip(piece, count)
            return Batch.from_table(table.slice(0, count))
        order = np.argsort(end, kind="stable")
        count = int(np.searchsorted(end[order], until))
        rows = Batch.from_table(table)
        self._by_end.replace([piece], rows.take(order[count:]).to_table())
        return rows.take(order[:count])

    def _add_dead(self, rows: int) -> None:
        """Count rows that are dead in ``by_holder``: more of them, or fewer."""
        numbers = self._state.numbers
        if rows:
            numbers[self._dead_name] = max(0, numbers.get(self._dead_name, 0) + rows)

    def _pop_told(self, ends: Ends) -> list[Batch]:
        gone: list[Batch] = []
        if len(self._told) and len(ends):
            fresh = self._told.lack(ends.holder)
            ends = Ends(ends.holder[fresh], ends.end[fresh])
        begin = 0
        while begin < len(ends) and self._by_holder.pieces:
            origin = int(ends.holder[begin]) >> BLOCK
            finish = int(np.searchsorted(ends.holder, (origin + 1) << BLOCK))
            mine = Ends(ends.holder[begin:finish], ends.end[begin:finish])
            begin = finish
            low, high = int(mine.holder[0]), int(mine.holder[-1])
            scattered = [
                piece
                for piece in self._by_holder.pieces
                if low <= piece.stats["max_holder"]
                and high >= piece.stats["min_holder"]
                and not self._pop_front(piece, mine, gone)
            ]
            if scattered:
                self._pop_scattered(scattered, mine, gone)
        return gone

    def _pop_front(self, piece: Piece, ends: Ends, gone: list[Batch]) -> bool:
        """Add the rows at the front of a piece whose holders end to ``gone``.

        Return whether these are all such rows of the piece.  Where its holders are neighbouring
        numbers, and those that end too, the ends of the rows are a slice of theirs.
        """
        if piece.stats["mortal"]:
            return False
        holder = piece.numbers("_holder")
        count = int(np.searchsorted(holder, ends.holder[-1], "right"))
        if count == 0:
            return True
        if holder[0] < ends.holder[0]:
            return False
        holder = holder[:count]
        if len(ends) == ends.holder[-1] - ends.holder[0] + 1:  # all numbers between
            at = int(holder[0] - ends.holder[0])
            dense = piece.stats["dense"]
            told = ends.end[at : at + count] if dense else ends.end[holder - ends.holder[0]]
        else:
            place = np.searchsorted(ends.holder, holder)
            other = np.flatnonzero(ends.holder[place] != holder)
            told = ends.end[place[: other[0]] if len(other) else place]
        if len(told):
            rows = Batch.from_table(piece.table.slice(0, len(told)))
            gone.append(Batch(rows.columns, rows.start, told, np.zeros(len(told), np.int64)))
            self._by_holder.skip(piece, len(told))
        return len(told) == count

    def _pop_scattered(self, pieces: Sequence[Piece], ends: Ends, gone: list[Batch]) -> None:
        """Add the rows of some pieces whose holders end to ``gone``; they stay in place, dead.

        What is remembered of their holders is the largest end of their own that the rows have.
        """
        last_end = np.full(len(ends), -INF, np.int64)
        hits = 0
        for piece in pieces:
            owner, rows = _rows_of(piece, ends.holder)
            if len(owner) == 0:
                continue
            finite = rows.end < INF
            np.maximum.at(last_end, owner[finite], rows.end[finite])
            told = ends.end[owner]
            earlier = told < rows.end
            zeros = np.zeros(len(rows), np.int64)
            gone.append(Batch(rows.columns, rows.start, told, zeros).take(earlier))
            np.maximum.at(last_end, owner, -INF + 1)
            hits += len(owner)
        if hits:
            known = last_end > -INF
            self._told.add(ends.holder[known], last_end[known])
            self._add_dead(hits)

    def _add(self, new: Batch) -> None:
        if len(new) == 0:
            return
        new = Batch(new.columns, new.start, new.end, new.holder)
        finite = new.end < INF
        if finite.any():
            self._by_end.add(new.take(finite).to_table())
        held = new.holder != 0
        if held.any():
            for rows in by_origin(new.take(held)):
                if (rows.holder[1:] < rows.holder[:-1]).any():
                    rows = rows.take(np.argsort(rows.holder, kind="stable"))
                self._by_holder.add(rows.to_table())
        if self._keep_forever:
            forever = ~finite & ~held
            if forever.any():
                self._forever.add(new.take(forever).to_table())

    def _compact(self) -> None:
        """Leave rows of ended holders out when they are the majority, and forget those holders."""
        pieces = self._by_holder.pieces
        dead = self._state.numbers.get(self._dead_name, 0)
        if dead * 2 <= len(self._by_holder) and pieces:
            return
        if pieces:
            self._by_holder.rewrite(pieces, self._until)
        self._state.numbers[self._dead_name] = 0
        self._told.forget(self._until)  # rows with a finite end may still be in by_end


def _rows_of(piece: Piece, holder: I64) -> tuple[I64, Batch]:
    """Return the rows of holders in a piece that is sorted by them, and which holder each has."""
    own = piece.numbers("_holder")
    first, last = (np.searchsorted(own, holder, side) for side in ("left", "right"))
    owner, position = ranges(first, last)
    return owner, Batch.from_table(piece.table).take(position)


def by_origin(rows: Batch) -> list[Batch]:
    """Return rows with holders apart, by the operator and shard that made their holders."""
    if int(rows.holder.min()) >> BLOCK == int(rows.holder.max()) >> BLOCK:
        return [rows]
    origin = rows.holder >> BLOCK
    return [rows.take(origin == one) for one in np.unique(origin)]
