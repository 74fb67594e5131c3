"""The rows of a static table on their way into the state of a join, in bounded memory.

They come in chunks, all in one micro-batch, before the join's first slice.  Rows that were always
valid are handed on as soon as enough of them have gathered to make a piece.  Rows that start at
some instant must not be seen before: they wait, sorted by start, in pieces of which `starting`
takes the front.  It hands them on in order of start, as every other port does.  Nothing stays in
memory but what has gathered last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from penstock.model import MIN_TIME, Batch
from penstock.runs.merging import Merging
from penstock.runs.pending import ByStart
from penstock.runs.spine import Piece
from penstock.runs.state import State


class _Gathered:
    """Batches up to a size in bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: list[Batch] = []
        self._bytes = 0

    def add(self, batch: Batch) -> Batch | None:
        """Add a batch; return all that has gathered when it is enough."""
        if len(batch):
            self._parts.append(batch)
            self._bytes += byte_size(batch)
        return self.take() if self._bytes >= self._size else None

    def take(self) -> Batch | None:
        if not self._parts:
            return None
        together = Batch.concat(self._parts)
        self._parts, self._bytes = [], 0
        return together


class TableRows:
    """Takes the rows of a table; ``store`` is given those that were always valid, piece by piece.

    ``size`` is the size in bytes of what is handed on at once.
    """

    def __init__(self, state: State, name: str, size: int, store: Callable[[Batch], None]) -> None:
        self._waiting = ByStart(state, name, Merging("never"))
        self._size = size
        self._store = store
        self._always = _Gathered(size)
        self._later = _Gathered(size)

    def __len__(self) -> int:
        """How many rows have not been handed on, of those that are stored."""
        return len(self._waiting)

    def add(self, batch: Batch) -> None:
        """Take one chunk of the table."""
        always = batch.start == MIN_TIME
        self._hand_on(self._always.add(batch.take(always)))
        if not always.all():
            self._put_off(self._later.add(batch.take(~always)))

    def flush(self) -> None:
        """Write what has gathered, and say how much of it is left."""
        self._hand_on(self._always.take())
        self._put_off(self._later.take())
        self._waiting.save()

    def starting(self, until: int) -> Iterator[Batch]:
        """Yield the rows that start below ``until``, each once, in order of start."""
        while True:
            pieces = [piece for piece in self._waiting.pieces if piece.stats["start"] < until]
            if not pieces:
                return
            yield self._front(pieces, until)

    def _front(self, pieces: list[Piece], until: int) -> Batch:
        """Take the first rows of pieces: all that start below an instant, and some of those at it.

        The instant is the first at which one of the pieces has given its share, so the batch is
        neither larger than the shares of all nor smaller than one of them.
        """
        starts = [piece.numbers("_start") for piece in pieces]
        rows = sum(len(piece) for piece in pieces)
        row_bytes = sum(piece.table.nbytes for piece in pieces) / rows
        share = max(1, int(self._size / row_bytes / len(pieces)))
        fronts = [int(np.searchsorted(start, until)) for start in starts]
        ends = [min(share, front) for front in fronts]
        cut = min(int(s[e - 1]) for s, e, f in zip(starts, ends, fronts, strict=True) if e)
        parts = []
        for piece, start, end in zip(pieces, starts, ends, strict=True):
            taken = min(int(np.searchsorted(start, cut, "right")), end)
            if taken == 0:
                continue
            parts.append(Batch.from_table(piece.table.slice(0, taken)))
            piece.stats["start"] = int(start[taken]) if taken < len(start) else cut
            self._waiting.skip(piece, taken)
        return Batch.concat(parts)

    def _hand_on(self, batch: Batch | None) -> None:
        if batch is not None:
            self._store(batch)

    def _put_off(self, batch: Batch | None) -> None:
        if batch is not None:
            self._waiting.write(self._waiting.sort(batch))


def byte_size(batch: Batch) -> int:
    """Return the size of a batch in memory."""
    values = sum(column.nbytes for column in batch.columns)
    return int(values + batch.start.nbytes + batch.end.nbytes + batch.holder.nbytes)
