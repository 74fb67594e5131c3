"""The live rows of a relation, and when they die.

A row is valid ``[start, min(end, told(holder)))``.  Three lists of runs hold what is alive:

* ``by_end``: rows with a finite end, sorted by it; the front of each run dies first;
* ``by_holder``: rows with a holder, sorted by it; a told end finds its rows by binary search;
* ``forever``: rows that never die, kept only for `live`.

A row with a finite end *and* a holder stands in the first two; whichever end is earlier takes it.
``told`` remembers the holders that were told while rows of theirs are still in a run, so that none
dies twice.  Rows of told holders are thrown out when a run is merged, or when they are the
majority: the cost of a turn follows the rows that come and go, not those that stay [C 3.1, 3.2].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.steps import ranges
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State


class Lifetimes:
    """The live rows of one relation; `turn` moves time on."""

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
        self._merging = merging
        self._keep_forever = keep_forever
        self._by_end = f"{name}.by_end"
        self._by_holder = f"{name}.by_holder"
        self._forever = f"{name}.forever"
        self._told_name = f"{name}.told"
        self._dead_name = f"{name}.dead"
        self._until = state.numbers.get(f"{name}.until", -INF)
        self._until_name = f"{name}.until"
        told = [run.table() for run in state.runs(self._told_name)]
        self._told = Ends.concat(
            Ends(to_numpy(t.column("holder")), to_numpy(t.column("last"))) for t in told
        )
        self._told_changed = False

    def turn(self, new: Batch, ends: Ends, until: int) -> Batch:
        """Add new rows and move time to ``until``; return every row whose end is below it, once.

        The rows come back with their final end and holder 0; ghosts are dropped.
        """
        gone = self._pop_ended(ends, until)
        gone += self._pop_told(ends)
        end = np.minimum(new.end, ends.lookup(new.holder)) if len(ends) else new.end
        over = end < until
        if over.any():
            died = new.take(over)
            gone.append(Batch(died.columns, died.start, end[over], np.zeros(len(died), np.int64)))
            new = new.take(~over)
        self._add(new)
        self._until = until
        return Batch.concat(gone or [Batch.empty(self._types)]).drop_ghosts()

    def live(self) -> Batch:
        """Return every row that is alive after the last turn, in no order."""
        parts = [Batch.empty(self._types)]
        for run in self._state.runs(self._by_end):
            rows = Batch.from_table(run.table())
            parts.append(rows.take(rows.holder == 0))
        for run in self._state.runs(self._by_holder):
            rows = Batch.from_table(run.table())
            parts.append(rows.take(self._alive(rows.holder, rows.end)))
        for run in self._state.runs(self._forever):
            parts.append(Batch.from_table(run.table()))
        return Batch.concat(parts)

    def __len__(self) -> int:
        names = (self._by_end, self._by_holder, self._forever)
        return sum(len(run) for name in names for run in self._state.runs(name))

    def save(self) -> None:
        """Merge runs as the strategy says and write down what was told."""
        self._merge(self._by_end, by_holder=False)
        self._compact()
        self._merge(self._by_holder, by_holder=True)
        self._merge(self._forever, by_holder=False)
        self._state.numbers[self._until_name] = self._until
        if self._told_changed:
            self._state.drop(self._told_name)
            table = pa.table({"holder": self._told.holder, "last": self._told.end})
            self._state.append(self._told_name, table)
            self._told_changed = False

    def _pop_ended(self, ends: Ends, until: int) -> list[Batch]:
        gone = []
        for run in self._state.runs(self._by_end):
            if run.stats["min_end"] >= until:
                continue
            table = run.table()
            count = int(np.searchsorted(to_numpy(table.column("_end")), until))
            if count == 0:
                continue
            rows = Batch.from_table(table.slice(0, count))
            self._state.skip(self._by_end, run, count)
            if rows.holder.any():
                numbers = self._state.numbers
                held = int((rows.holder != 0).sum())
                numbers[self._dead_name] = numbers.get(self._dead_name, 0) + held
                alive = (rows.holder == 0) | (
                    self._alive(rows.holder, None) & (ends.lookup(rows.holder) >= rows.end)
                )
                rows = rows.take(alive)
            gone.append(Batch(rows.columns, rows.start, rows.end, np.zeros(len(rows), np.int64)))
        return gone

    def _pop_told(self, ends: Ends) -> list[Batch]:
        gone: list[Batch] = []
        if len(ends) == 0:
            return gone
        if len(self._told):
            fresh = self._alive(ends.holder, None)
            ends = Ends(ends.holder[fresh], ends.end[fresh])
        last_end = np.full(len(ends), -INF, np.int64)
        hits = 0
        for run in self._state.runs(self._by_holder):
            low, high = run.stats["min_holder"], run.stats["max_holder"]
            if len(ends) == 0 or ends.holder[-1] < low or ends.holder[0] > high:
                continue
            table = run.table()
            holder = to_numpy(table.column("_holder"))
            first = np.searchsorted(holder, ends.holder, "left")
            last = np.searchsorted(holder, ends.holder, "right")
            owner, position = ranges(first, last)
            if len(owner) == 0:
                continue
            rows = Batch.from_table(table).take(position)
            finite = rows.end < INF
            np.maximum.at(last_end, owner[finite], rows.end[finite])
            hits += len(owner)
            told = ends.end[owner]
            earlier = told < rows.end
            zeros = np.zeros(len(rows), np.int64)
            gone.append(Batch(rows.columns, rows.start, told, zeros).take(earlier))
            np.maximum.at(last_end, owner, -INF + 1)
        known = last_end > -INF
        if known.any():
            self._told = Ends.concat([self._told, Ends(ends.holder[known], last_end[known])])
            self._told_changed = True
            numbers = self._state.numbers
            numbers[self._dead_name] = numbers.get(self._dead_name, 0) + hits
        return gone

    def _alive(self, holder: I64, end: I64 | None) -> Mask:
        """Whether a holder is not told yet (and the row's own end, if given, not passed)."""
        alive: Mask = self._told.lookup(holder) == INF
        if end is not None:
            alive &= end >= self._until
        return alive

    def _add(self, new: Batch) -> None:
        if len(new) == 0:
            return
        new = Batch(new.columns, new.start, new.end, new.holder)
        finite = new.end < INF
        if finite.any():
            self._append(self._by_end, new.take(finite), by_holder=False)
        held = new.holder != 0
        if held.any():
            self._append(self._by_holder, new.take(held), by_holder=True)
        if self._keep_forever:
            forever = ~finite & ~held
            if forever.any():
                self._append(self._forever, new.take(forever), by_holder=False)

    def _append(self, name: str, rows: Batch, by_holder: bool) -> None:
        table, stats = _sorted(rows, by_holder)
        self._state.append(name, table, stats)

    def _merge(self, name: str, by_holder: bool) -> None:
        runs = self._state.runs(name)
        chosen = self._merging.choose([len(r) for r in runs])
        if chosen:
            self._rewrite(name, runs[chosen[0] : chosen[1]], by_holder)

    def _compact(self) -> None:
        """Throw out rows of told holders when they are the majority, and forget those holders."""
        runs = self._state.runs(self._by_holder)
        dead = self._state.numbers.get(self._dead_name, 0)
        if dead * 2 <= sum(len(r) for r in runs) and runs:
            return
        if runs:
            self._rewrite(self._by_holder, runs, by_holder=True)
        self._state.numbers[self._dead_name] = 0
        needed = self._told.end >= self._until  # rows with a finite end may still be in by_end
        if len(self._told) and not needed.all():
            self._told = Ends(self._told.holder[needed], self._told.end[needed])
            self._told_changed = True

    def _rewrite(self, name: str, runs: Sequence[Run], by_holder: bool) -> None:
        rows = Batch.concat([Batch.from_table(r.table()) for r in runs])
        if rows.holder.any():
            alive = (rows.holder == 0) | self._alive(rows.holder, rows.end)
            if by_holder and not alive.all():
                numbers = self._state.numbers
                numbers[self._dead_name] = max(
                    0, numbers.get(self._dead_name, 0) - int((~alive).sum())
                )
            rows = rows.take(alive)
        table, stats = _sorted(rows, by_holder)
        self._state.replace(name, runs, table, stats)


def _sorted(rows: Batch, by_holder: bool) -> tuple[pa.Table, dict[str, int]]:
    key = rows.holder if by_holder else rows.end
    if len(rows) and (key[1:] < key[:-1]).any():
        rows = rows.take(np.argsort(key, kind="stable"))
        key = rows.holder if by_holder else rows.end
    if len(rows) == 0:
        return rows.to_table(), {}
    if by_holder:
        return rows.to_table(), {"min_holder": int(key[0]), "max_holder": int(key[-1])}
    return rows.to_table(), {"min_end": int(key[0]), "max_end": int(key[-1])}
