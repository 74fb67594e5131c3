"""The rows of a static table on their way into the state of a join, in bounded memory.

They come in chunks, all in one micro-batch, before the join's first slice.  Rows that were always
valid are handed on as soon as enough of them have gathered to make a run.  Rows that start at some
instant must not be seen before: they wait in runs sorted by start, of which `starting` takes the
front.  It hands them on in order of start, as every other port does.  Nothing stays in memory but
what has gathered last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from penstock.model import MIN_TIME, Batch, to_numpy
from penstock.runs.state import Run, State


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
    """Takes the rows of a table; ``store`` is given those that were always valid, run by run.

    ``size`` is the size in bytes of what is handed on at once.
    """

    def __init__(self, state: State, name: str, size: int, store: Callable[[Batch], None]) -> None:
        self._state = state
        self._name = name
        self._size = size
        self._store = store
        self._always = _Gathered(size)
        self._later = _Gathered(size)

    def __len__(self) -> int:
        """How many rows have not been handed on, of those that are stored."""
        return sum(len(run) for run in self._state.runs(self._name))

    def add(self, batch: Batch) -> None:
        """Take one chunk of the table."""
        always = batch.start == MIN_TIME
        self._hand_on(self._always.add(batch.take(always)))
        if not always.all():
            self._put_off(self._later.add(batch.take(~always)))

    def flush(self) -> None:
        """Write what has gathered."""
        self._hand_on(self._always.take())
        self._put_off(self._later.take())

    def starting(self, until: int) -> Iterator[Batch]:
        """Yield the rows that start below ``until``, each once, in order of start."""
        while True:
            runs = [run for run in self._state.runs(self._name) if run.stats["start"] < until]
            if not runs:
                return
            yield self._front(runs, until)

    def _front(self, runs: list[Run], until: int) -> Batch:
        """Take the first rows of runs: all that start below some instant, and some of those at it.

        The instant is the first at which one of the runs has given its share, so the batch is
        neither larger than the shares of all nor smaller than one of them.
        """
        starts = [to_numpy(run.table().column("_start")) for run in runs]
        rows = sum(len(run) for run in runs)
        row_bytes = sum(run.table().nbytes for run in runs) / rows
        share = max(1, int(self._size / row_bytes / len(runs)))
        fronts = [int(np.searchsorted(start, until)) for start in starts]
        ends = [min(share, front) for front in fronts]
        cut = min(int(s[e - 1]) for s, e, f in zip(starts, ends, fronts, strict=True) if e)
        parts = []
        for run, start, end in zip(runs, starts, ends, strict=True):
            taken = min(int(np.searchsorted(start, cut, "right")), end)
            if taken == 0:
                continue
            parts.append(Batch.from_table(run.table().slice(0, taken)))
            run.stats["start"] = int(start[taken]) if taken < len(start) else cut
            self._state.skip(self._name, run, taken)
        return Batch.concat(parts)

    def _hand_on(self, batch: Batch | None) -> None:
        if batch is not None:
            self._store(batch)

    def _put_off(self, batch: Batch | None) -> None:
        if batch is None:
            return
        batch = batch.take(np.argsort(batch.start, kind="stable"))
        self._state.append(self._name, batch.to_table(), {"start": int(batch.start[0])})


def byte_size(batch: Batch) -> int:
    """Return the size of a batch in memory."""
    values = sum(column.nbytes for column in batch.columns)
    return int(values + batch.start.nbytes + batch.end.nbytes + batch.holder.nbytes)
