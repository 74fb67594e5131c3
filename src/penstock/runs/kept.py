"""The rows of a relation that can be read at any instant between ``low`` and the heartbeat.

`Lifetimes` holds what is alive.  A row that dies goes, with both its ends, into runs of ``ended``
rows sorted by end, and is thrown away when its end is at or below ``low``: the first instant that
can still be asked for.  So with ``low`` close to the heartbeat next to nothing is written twice,
and the cost of a turn follows the rows that come and go.

The snapshot at ``t``, for ``low <= t < until``, is exact:

* a live row starts below ``until`` and ends at or above it, so it counts if its start is ``<= t``;
* an ended row that ``t`` lies in has an end above ``t >= low``, so it is still there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model import MIN_TIME, Batch, Ends, to_numpy
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.state import State


class Kept:
    """The rows of one relation in one shard. Reading changes nothing and needs no lock."""

    def __init__(
        self, state: State, name: str, types: Sequence[pa.DataType], merging: Merging
    ) -> None:
        self._state = state
        self._types = tuple(types)
        self._merging = merging
        self._lives = Lifetimes(state, name, types, merging)
        self._ended = f"{name}.ended"
        self._low_name = f"{name}.low"
        self.low = state.numbers.get(self._low_name, MIN_TIME)

    def turn(self, new: Batch, ends: Ends, until: int, low: int) -> None:
        """Add new rows, move time to ``until``, and forget what ended at or before ``low``."""
        died = self._lives.turn(new, ends, until)
        if low > self.low:
            self.low = self._state.numbers[self._low_name] = low
            self._forget()
        self._append(died.take(died.end > self.low))

    def snapshot(self, time: int) -> Batch:
        """Return the rows that are valid at an instant between ``low`` and the heartbeat."""
        live = self._lives.live()
        parts = [live.take(live.start <= time)]
        for run in self._state.runs(self._ended):
            if run.stats["max_end"] > time:
                rows = Batch.from_table(run.table())
                parts.append(rows.take((rows.start <= time) & (rows.end > time)))
        return Batch.concat(parts)

    def save(self) -> None:
        """Merge runs as the strategy says."""
        self._lives.save()
        runs = self._state.runs(self._ended)
        chosen = self._merging.choose([len(run) for run in runs])
        if chosen:
            old = runs[chosen[0] : chosen[1]]
            rows = Batch.concat([Batch.from_table(run.table()) for run in old])
            self._state.replace(self._ended, old, *_by_end(rows))

    def _forget(self) -> None:
        for run in self._state.runs(self._ended):
            if run.stats["max_end"] <= self.low:
                self._state.skip(self._ended, run, len(run))
            elif run.stats["min_end"] <= self.low:
                ends = to_numpy(run.table().column("_end"))
                passed = int(np.searchsorted(ends, self.low, "right"))
                self._state.skip(self._ended, run, passed)

    def _append(self, rows: Batch) -> None:
        if len(rows):
            self._state.append(self._ended, *_by_end(rows))


def _by_end(rows: Batch) -> tuple[pa.Table, dict[str, int]]:
    """Return rows, of which there are some, in order of their ends, and the first and last end."""
    if (rows.end[1:] < rows.end[:-1]).any():
        rows = rows.take(np.argsort(rows.end, kind="stable"))
    return rows.to_table(), {"min_end": int(rows.end[0]), "max_end": int(rows.end[-1])}
