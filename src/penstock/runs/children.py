"""Holders with two open parents, each ending when the first of its parents is told [C 3.1].

A result whose two rows both have open holders gets a holder of its own, the child.  A child is one
row ``(left, right, child, end)`` of a piece sorted by its left parent; ``rights`` are the right
parents sorted, and ``by_right`` says in which row each of them is.  So a told parent finds its
children from either side, and parents that are told in order find them as slices.  At ``end`` all
rows of the child are over anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.sorting import order_of_numbers
from penstock.model import I64, INF, MIN_TIME, Ends, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.side import MortalSpine, told_rows
from penstock.runs.spine import Piece, chosen_rows, some_of, taken
from penstock.runs.state import State

_ROWS = ["left", "right", "child", "end"]
_SPREAD = 8
"""Told children among so many times their number of rows are gathered without sorting."""


class Children(MortalSpine):
    """The children that are alive."""

    parents = 2

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._added: list[tuple[I64, I64, I64, I64]] = []

    def adopt(self, left: I64, right: I64, child: I64, end: I64) -> None:
        """Remember children of this slice."""
        self._added.append((left, right, child, end))

    def hear(self, ends: Ends) -> Ends:
        """Return the ends of the children whose first parent is told now."""
        self._turn += 1
        if len(ends) == 0:
            return Ends()
        known = np.zeros(len(ends), bool)
        parts = []
        for piece in self.pieces:
            told = self._heard(piece, ends, known)
            piece.stats["dead"] += len(told)
            parts.append(told)
        self.told.put(ends.holder[known], self._turn)
        return Ends.concat(parts)

    def _heard(self, piece: Piece, ends: Ends, known: Mask) -> Ends:
        """Return what is told to the children of a piece; mark the ends that tell something."""
        rows, by_left = told_rows(piece.numbers("left"), ends)
        places, by_right = told_rows(piece.numbers("rights"), ends)
        others = piece.numbers("by_right")[places]
        known[by_left] = True
        known[by_right] = True
        if piece.stats["dead"]:
            fresh = ~self.told.has(piece.numbers("right")[rows])
            rows, by_left = rows[fresh], by_left[fresh]
            fresh = ~self.told.has(piece.numbers("left")[others])
            others, by_right = others[fresh], by_right[fresh]
        child = piece.numbers("child")
        both = len(rows) + len(others)
        if both == 0:
            return Ends()
        low = min(int(some.min()) for some in (rows, others) if len(some))
        high = max(int(some.max()) for some in (rows, others) if len(some))
        if high - low >= _SPREAD * both:
            return Ends.of(
                child[np.concatenate((rows, others))], ends.end[np.concatenate((by_left, by_right))]
            )
        first = np.full(high - low + 1, INF, np.int64)
        first[rows - low] = ends.end[by_left]
        others = others - low
        first[others] = np.minimum(first[others], ends.end[by_right])
        told = np.flatnonzero(first < INF)
        return Ends.of(child[told + low], first[told])

    def advance(self, until: int) -> None:
        """End a slice: take the new children in, let go of those that are over at ``until``."""
        if self._added:
            columns = map(np.concatenate, zip(*self._added, strict=True))
            self._added = []
            table = pa.table(dict(zip(_ROWS, columns, strict=True)))
            order = order_of_numbers(to_numpy(table.column("left")))
            self.add(self._finish(taken(table, order)))
        self._tidy(until)

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("end") > until
        if piece.stats["dead"]:
            alive &= ~self.told.has(piece.numbers("left"))
            alive &= ~self.told.has(piece.numbers("right"))
        return alive

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        left = some_of(to_numpy(table.column("left")), rows)
        return chosen_rows(rows, np.argsort(left, kind="stable"))

    def _tables(self, pieces: Sequence[Piece]) -> list[pa.Table]:
        return [piece.table.select(_ROWS) for piece in pieces]

    def _finish(self, table: pa.Table) -> pa.Table:
        right = to_numpy(table.column("right"))
        order = order_of_numbers(right)
        table = table.append_column("rights", pa.array(right[order]))
        return table.append_column("by_right", pa.array(order))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        end = int(to_numpy(table.column("end")).max())
        rows = int(table.num_rows)
        stats = {"turn": self._turn, "dead": 0, "open": rows, "open_end": end}
        return stats | {"closed_end": MIN_TIME}
