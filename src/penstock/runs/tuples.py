"""Tuples under construction: rows of several sides that may become one result of a join.

`Rows` numbers the rows of one side in a slice: those of the stored pieces, oldest first, then those
of the new piece.  `Tuples` are columns of such numbers, one for each side joined so far, with the
validity that is left of all of them.  Values are fetched only when a condition or a result needs
them, so a tuple costs a few integers however wide its rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.codes import F64
from penstock.model import I64, U64, one_array
from penstock.runs.side import holders_of
from penstock.runs.spine import Piece

_DENSE = 8
"""Of so many rows one must be wanted for pieces to be put together."""
_TOGETHER = 64 << 20
"""Most bytes of pieces that are put together."""


class Rows:
    """The rows of one side in a slice, under one numbering."""

    def __init__(self, stored: Sequence[Piece], new: Piece | None) -> None:
        self.pieces = [*stored] if new is None else [*stored, new]
        self.stored = len(stored)
        self.first: I64 = np.cumsum([0, *(len(piece) for piece in self.pieces)])
        self.open = any(piece.stats["open"] for piece in self.pieces)
        self.dead = any(piece.stats["dead"] for piece in self.pieces)
        self._numbers: dict[str, Any] = {}
        self._columns: dict[int, pa.Array] = {}

    @cached_property
    def _small(self) -> bool:
        """Whether the pieces fit together in memory, and in one array each."""
        size = sum(int(piece.table.nbytes) for piece in self.pieces)
        return size <= _TOGETHER

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def old(self) -> int:
        """The number of stored rows, which come first."""
        return int(self.first[self.stored])

    def count(self, with_new: bool) -> int:
        """Return the number of pieces to look at."""
        return len(self.pieces) if with_new else self.stored

    def numbers(self, name: str, at: I64) -> Any:
        """Return a numeric column of some rows; 0 in pieces that have no such column."""
        if self._dense(at):
            if name not in self._numbers:
                self._numbers[name] = np.concatenate(
                    [self._of(piece, name) for piece in self.pieces]
                )
            return self._numbers[name][at]
        parts = list(self._parts(at))
        if len(parts) == 1:
            piece, _, there = parts[0]
            return self._of(piece, name)[there]
        columns = [self._of(piece, name) for piece, _, _ in parts]
        values = np.empty(len(at), columns[0].dtype)
        for column, (_, where, there) in zip(columns, parts, strict=True):
            values[where] = column[there]
        return values

    def columns(self, chosen: Sequence[int], at: I64) -> list[pa.Array]:
        """Return value columns of some rows."""
        if self._dense(at):
            index = pa.array(at)
            return [pc.take(self._whole(c), index, boundscheck=False) for c in chosen]
        parts = list(self._parts(at))
        indices = [pa.array(there) for _, _, there in parts]
        back: pa.Array | None = None
        if len(parts) > 1:
            order = np.concatenate([where for _, where, _ in parts])
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            back = pa.array(place)
        found = []
        for c in chosen:
            taken = [
                pc.take(one_array(piece.table.column(f"c{c}")), index, boundscheck=False)
                for (piece, _, _), index in zip(parts, indices, strict=True)
            ]
            column = taken[0] if len(taken) == 1 else pa.concat_arrays(taken)
            found.append(column if back is None else pc.take(column, back, boundscheck=False))
        return found

    def _dense(self, at: I64) -> bool:
        """Whether so many rows are wanted that putting the pieces together costs little."""
        return len(self.pieces) > 1 and _DENSE * len(at) >= len(self) and self._small

    def _whole(self, c: int) -> pa.Array:
        if c not in self._columns:
            parts = [one_array(piece.table.column(f"c{c}")) for piece in self.pieces]
            self._columns[c] = pa.concat_arrays(parts)
        return self._columns[c]

    def _of(self, piece: Piece, name: str) -> Any:
        return holders_of(piece) if name == "_holder" else piece.numbers(name)

    def _parts(self, at: I64) -> Iterator[tuple[Piece, Any, I64]]:
        """Yield the pieces that hold some of the rows: which of them, and where in the piece."""
        if len(self.pieces) == 1:
            yield self.pieces[0], slice(None), at
            return
        which = np.searchsorted(self.first, at, "right") - 1
        there = np.flatnonzero(np.bincount(which, minlength=len(self.pieces)))
        if len(there) <= 1:
            number = int(there[0]) if len(there) else 0
            yield self.pieces[number], slice(None), at - self.first[number]
            return
        for number in there.tolist():
            where = np.flatnonzero(which == number)
            yield self.pieces[number], where, at[where] - self.first[number]


@dataclass(frozen=True)
class Tuples:
    """Tuples of rows of some sides.

    ``at`` holds, by side, the number of the row.  ``spans`` holds, by input, the interval of values
    of its row, where an interval place needs it; ``keys`` the hash lanes, where all keys are equal.
    """

    at: dict[int, I64]
    start: I64
    end: I64
    spans: dict[int, tuple[F64, F64]] = field(default_factory=dict)
    keys: tuple[U64, U64] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def take(self, index: Any) -> Tuples:
        """Return some of the tuples."""
        return Tuples(
            {side: at[index] for side, at in self.at.items()},
            self.start[index],
            self.end[index],
            {i: (low[index], high[index]) for i, (low, high) in self.spans.items()},
            None if self.keys is None else (self.keys[0][index], self.keys[1][index]),
        )

    @staticmethod
    def concat(parts: Sequence[Tuples]) -> Tuples:
        """Join tuples of the same sides; at least one part is needed."""
        first = parts[0]
        if len(parts) == 1:
            return first

        def joined(columns: list[Any]) -> Any:
            return np.concatenate(columns)

        return Tuples(
            {side: joined([p.at[side] for p in parts]) for side in first.at},
            joined([p.start for p in parts]),
            joined([p.end for p in parts]),
            {
                i: (joined([p.spans[i][0] for p in parts]), joined([p.spans[i][1] for p in parts]))
                for i in first.spans
                if all(i in p.spans for p in parts)
            },
            None
            if first.keys is None
            else (
                joined([p.keys[0] for p in parts if p.keys is not None]),
                joined([p.keys[1] for p in parts if p.keys is not None]),
            ),
        )


class Probe:
    """Tuples as the rows that look for partners in a sorted piece (`SortedRows`)."""

    def __init__(self, tuples: Tuples, coordinates: tuple[Any, ...] = ()) -> None:
        self.coordinates = coordinates
        self._numbers: dict[str, Any] = {"_start": tuples.start, "_end": tuples.end}
        self.stats = {"min_bucket": 0, "max_bucket": 1 << 40, "pure": 0, "stairs": 0}
        self.stats |= {"max_start": 0, "min_end": 0}
        if tuples.keys is not None:
            self._numbers |= {"_high": tuples.keys[0], "_low": tuples.keys[1]}
        self._rows = len(tuples)

    def numbers(self, name: str) -> Any:
        """Return a numeric column."""
        return self._numbers[name]

    def __len__(self) -> int:
        return self._rows
