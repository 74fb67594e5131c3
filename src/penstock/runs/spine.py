"""The spine: one part of an operator's state as a list of sorted, immutable pieces.

Everything that an operator keeps is a spine or stands on one.  The words:

* A *piece* is an Arrow table that is written once, with *statistics*: a few integers from which a
  reader knows that it need not open the piece.  It is a run of the state, or was made in this
  micro-batch; then `Spine.save` stores it.  A piece that is merged before is never written.
* Pieces stand *oldest first*.  New rows are a new piece at the end.
* A row goes away in one of three ways.  Rows at the front of a piece are *skipped*.  A piece
  without a row that is needed is dropped whole.  Any other row stays where it is, *dead*, until its
  piece is rewritten.
* A *merge* puts one piece in the place of several: choose, concatenate, leave the dead out, sort,
  replace.  `Merging` chooses by the numbers of live rows, so that the number of pieces stays
  logarithmic, and so does the number of times that a row is rewritten.

So the cost of a micro-batch follows the rows that come and go, not those that stay.

A kind of state says in which *order* rows stand, which are *alive*, and which *statistics* a piece
has; the rest is the same for all of them and stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import I64, MIN_TIME, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State


class Piece:
    """A sorted table that never changes; only what is skipped or dead of it does.

    ``coordinates`` are numbers of new rows that need not be stored.
    """

    def __init__(
        self,
        stats: dict[str, int],
        table: pa.Table | None = None,
        run: Run | None = None,
        coordinates: tuple[Any, ...] = (),
    ) -> None:
        self.stats = stats
        self.run = run
        self.coordinates = coordinates
        self._table = table
        self._numbers: dict[str, Any] = {}

    def __len__(self) -> int:
        if self.run is not None:
            return len(self.run)
        assert self._table is not None
        return int(self._table.num_rows)

    @property
    def table(self) -> pa.Table:
        """The rows that are not skipped, one chunk per column."""
        if self._table is None:
            assert self.run is not None
            self._table = self.run.table()
        return self._table

    @property
    def bytes(self) -> int:
        """The size of the table; that of a file's run is known without opening it."""
        if self._table is None and self.run is not None and "length" in self.run.place:
            return int(self.run.place["length"])
        return int(self.table.nbytes)

    @property
    def live(self) -> int:
        """At most so many rows are alive."""
        return len(self) - self.stats.get("dead", 0)

    def numbers(self, name: str) -> Any:
        """Return a numeric column without copying it."""
        if name not in self._numbers:
            self._numbers[name] = to_numpy(self.table.column(name))
        return self._numbers[name]

    def skip(self, rows: int) -> None:
        """Let rows at the front be used up."""
        self._table = self.table.slice(rows)
        self._numbers.clear()
        if self.run is not None:
            self.run.skipped += rows


P = TypeVar("P", bound=Piece)


class Spine(Generic[P]):
    """The pieces of one name in a state. A subclass says what is alive, the order and statistics.

    ``kind`` is the class of the pieces.  With ``bounded`` a merge takes in no more bytes than the
    strategy allows; without, it takes whatever the strategy chooses.
    """

    kind: type[P]
    bounded = False

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self.pieces: list[P] = [self.kind(run.stats, run=run) for run in state.runs(name)]
        self._state = state
        self._name = name
        self._merging = merging

    def __len__(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    # ---- what a kind of state says

    def _alive(self, piece: P, until: int) -> Mask | None:
        """Return which rows of a piece must be kept at ``until``; None for all."""
        return None

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64 | None:
        """Return rows of a table in order: all of them, or those at ``rows``; None: as they are.

        The table holds sorted pieces one after another, oldest first.  Rows may be left out, if
        others stand for them.  ``oldest`` says that there is no older piece.
        """
        return rows

    def _stats(self, table: pa.Table) -> dict[str, int]:
        """Return the statistics of a piece with some rows."""
        return {}

    def _tables(self, pieces: Sequence[P]) -> list[pa.Table]:
        """Return the tables of pieces, all with the same columns."""
        return [piece.table for piece in pieces]

    def _finish(self, table: pa.Table) -> pa.Table:
        """Add what a piece has beside its rows; rows may be left out."""
        return table

    def _choose(self) -> list[list[P]]:
        """Return lists of pieces to merge now.

        Pieces that would make a merge too large stay apart; whether the others are worth merging is
        asked again without them.
        """
        settled = 0
        while True:
            chosen = self._merging.choose([piece.live for piece in self.pieces[settled:]])
            if chosen is None:
                return []
            some = self.pieces[settled + chosen[0] : settled + chosen[1]]
            if not self.bounded or sum(piece.bytes for piece in some) <= self._merging.most:
                return [some]
            settled += chosen[0] + 1

    # ---- what is the same for all

    def add(self, table: pa.Table) -> None:
        """Append a piece of rows that are in order; an empty table adds nothing."""
        if table.num_rows:
            self.pieces.append(self.kind(self._stats(table), table))

    def write(self, piece: P) -> None:
        """Append a piece and write it at once, so that nothing of it stays in memory."""
        run = self._state.write(piece.table, piece.stats)
        self.pieces.append(self.kind(run.stats, run=run))

    def skip(self, piece: P, rows: int) -> None:
        """Let rows at the front of a piece be used up; a used-up piece is dropped."""
        if rows >= len(piece):
            self.drop([piece])
        elif rows:
            piece.skip(rows)

    def drop(self, pieces: Sequence[P]) -> None:
        """Drop whole pieces."""
        gone = {id(piece) for piece in pieces}
        self.pieces = [piece for piece in self.pieces if id(piece) not in gone]

    def clear(self) -> None:
        """Throw everything away."""
        self.pieces = []

    def replace(self, pieces: Sequence[P], table: pa.Table) -> None:
        """Put one piece, or none if it has no rows, where the first of some pieces stands."""
        first = next(i for i, piece in enumerate(self.pieces) if piece is pieces[0])
        self.drop(pieces)
        if table.num_rows:
            self.pieces.insert(first, self.kind(self._stats(table), table))

    def merge(self, until: int = MIN_TIME) -> None:
        """Merge the pieces that are chosen now; what is dead at ``until`` is left out."""
        if len(self.pieces) > 1:
            for chosen in self._choose():
                self.rewrite(chosen, until)

    def rewrite(self, pieces: Sequence[P], until: int) -> None:
        """Put one piece of what is alive in the place of some, which are given oldest first."""
        self.replace(pieces, self._merged(pieces, until))

    def save(self) -> None:
        """Store the pieces that are not stored yet, and say which runs make up the state now."""
        self._state.keep(self._name, [self._stored(piece) for piece in self.pieces])

    def _stored(self, piece: P) -> Run:
        """Return the run of a piece, which is written if it is not."""
        if piece.run is None:
            piece.run = self._state.write(piece.table, piece.stats)
            piece.stats = piece.run.stats
        return piece.run

    def _merged(self, pieces: Sequence[P], until: int) -> pa.Table:
        """Return what is alive in pieces as one sorted table."""
        rows = self._living(pieces, until)
        tables = self._tables(pieces)
        table = tables[0]
        if len(tables) > 1:
            table = pa.concat_tables(tables).combine_chunks()
            rows = self._order(table, rows, pieces[0] is self.pieces[0])
        return self._finish(table if rows is None else taken(table, rows))

    def _living(self, pieces: Sequence[P], until: int) -> I64 | None:
        """Return where in the rows of pieces those are that live; None if all do."""
        masks = [self._alive(piece, until) for piece in pieces]
        if all(mask is None or mask.all() for mask in masks):
            return None
        parts, offset = [], 0
        for piece, mask in zip(pieces, masks, strict=True):
            where = np.arange(len(piece)) if mask is None else np.flatnonzero(mask)
            parts.append(where + offset)
            offset += len(piece)
        return np.concatenate(parts)


def taken(table: pa.Table, rows: I64) -> pa.Table:
    """Return rows of a table; one chunk per column stays one chunk."""
    return pc.take(table, pa.array(rows), boundscheck=False)


def some_of(numbers: Any, rows: I64 | None) -> Any:
    """Return the numbers at ``rows``, or all of them."""
    return numbers if rows is None else numbers[rows]


def chosen_rows(rows: I64 | None, order: I64) -> I64:
    """Return the rows that an order of them, or of all rows, stands for."""
    return order if rows is None else rows[order]
