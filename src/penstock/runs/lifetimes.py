"""The live rows of a relation, and when they die.

A row is valid ``[start, min(end, told(holder)))``.  Three lists of runs hold what is alive:

* ``by_end``: rows with a finite end.  A run stays as it came, unsorted, until the earliest end in
  it is passed; then it is sorted by end, if it is not by itself, and its front dies first [C 3.2];
* ``by_holder``: rows with a holder, sorted by it; a told end finds its rows by binary search.
  Where rows die in the order of their holders, as those of a row window do, they are simply the
  front of the oldest run; rows whose holders come from different operators are in different runs;
* ``forever``: rows that never die, kept only for `live`.

A row with a finite end *and* a holder stands in the first two; whichever end is earlier takes it.
``told`` remembers the holders that were told while rows of theirs are still in a run, so that none
dies twice.  Rows of told holders are thrown out when a run is merged, or when they are the
majority: the cost of a turn follows the rows that come and go, not those that stay [C 3.1].  Runs
are merged only to keep their number low, many at once: most rows die at the front of old runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.steps import ranges
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.runs.holder_numbers import BLOCK
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

    def _pop_ended(self, ends: Ends) -> list[Batch]:
        gone, until = [], self._until
        for run in self._state.runs(self._by_end):
            if run.stats["min_end"] >= until:
                continue
            rows = self._take_front(run, until)
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

    def _take_front(self, run: Run, until: int) -> Batch:
        """Take the rows that end below ``until`` out of a run of ``by_end``."""
        table = run.table()
        end = to_numpy(table.column("_end"))
        if run.stats["max_end"] < until:
            self._state.replace(self._by_end, [run], None)
            return Batch.from_table(table)
        if run.stats.get("in_order", 1):
            count = int(np.searchsorted(end, until))
            self._state.skip(self._by_end, run, count)
            return Batch.from_table(table.slice(0, count))
        order = np.argsort(end, kind="stable")
        count = int(np.searchsorted(end[order], until))
        rows = Batch.from_table(table)
        rest = rows.take(order[count:])
        self._state.replace(self._by_end, [run], rest.to_table(), _ends_of(rest.end))
        return rows.take(order[:count])

    def _pop_told(self, ends: Ends) -> list[Batch]:
        gone: list[Batch] = []
        if len(self._told) and len(ends):
            fresh = self._alive(ends.holder, None)
            ends = Ends(ends.holder[fresh], ends.end[fresh])
        runs = self._state.runs(self._by_holder)
        begin = 0
        while begin < len(ends) and runs:
            origin = int(ends.holder[begin]) >> BLOCK
            finish = int(np.searchsorted(ends.holder, (origin + 1) << BLOCK))
            mine = Ends(ends.holder[begin:finish], ends.end[begin:finish])
            begin = finish
            low, high = int(mine.holder[0]), int(mine.holder[-1])
            scattered = [
                run
                for run in runs
                if low <= run.stats["max_holder"]
                and high >= run.stats["min_holder"]
                and not self._pop_front(run, mine, gone)
            ]
            if scattered:
                self._pop_scattered(scattered, mine, gone)
        return gone

    def _pop_front(self, run: Run, ends: Ends, gone: list[Batch]) -> bool:
        """Add the told rows at the front of a run to ``gone``; return whether that is all of them.

        Where the holders of the run are neighbouring numbers, and the told ones too, the ends of
        these rows are a slice of the told ends.
        """
        if run.stats["mortal"]:
            return False
        table = run.table()
        holder = to_numpy(table.column("_holder"))
        count = int(np.searchsorted(holder, ends.holder[-1], "right"))
        if count == 0:
            return True
        if holder[0] < ends.holder[0]:
            return False
        holder = holder[:count]
        if len(ends) == ends.holder[-1] - ends.holder[0] + 1:  # all numbers between
            at = int(holder[0] - ends.holder[0])
            dense = run.stats["dense"]
            told = ends.end[at : at + count] if dense else ends.end[holder - ends.holder[0]]
        else:
            place = np.searchsorted(ends.holder, holder)
            other = np.flatnonzero(ends.holder[place] != holder)
            told = ends.end[place[: other[0]] if len(other) else place]
        if len(told):
            rows = Batch.from_table(table.slice(0, len(told)))
            gone.append(Batch(rows.columns, rows.start, told, np.zeros(len(told), np.int64)))
            self._state.skip(self._by_holder, run, len(told))
        return len(told) == count

    def _pop_scattered(self, runs: Sequence[Run], ends: Ends, gone: list[Batch]) -> None:
        """Add the told rows of some runs to ``gone``; they stay where they are, dead.

        What is remembered of their holders is the largest end of their own that the rows have.
        """
        last_end = np.full(len(ends), -INF, np.int64)
        hits = 0
        for run in runs:
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
            told = ends.end[owner]
            earlier = told < rows.end
            zeros = np.zeros(len(rows), np.int64)
            gone.append(Batch(rows.columns, rows.start, told, zeros).take(earlier))
            np.maximum.at(last_end, owner, -INF + 1)
            hits += len(owner)
        if hits:
            known = last_end > -INF
            self._told = Ends.concat([self._told, Ends(ends.holder[known], last_end[known])])
            self._told_changed = True
            numbers = self._state.numbers
            numbers[self._dead_name] = numbers.get(self._dead_name, 0) + hits

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
            for rows in by_origin(new.take(held)):
                self._append(self._by_holder, rows, by_holder=True)
        if self._keep_forever:
            forever = ~finite & ~held
            if forever.any():
                self._append(self._forever, new.take(forever), by_holder=False)

    def _append(self, name: str, rows: Batch, by_holder: bool) -> None:
        table, stats = _sorted(rows, by_holder)
        self._state.append(name, table, stats)

    def _merge(self, name: str, by_holder: bool) -> None:
        together: dict[int, list[Run]] = {}
        for run in self._state.runs(name):
            origin = run.stats["min_holder"] >> BLOCK if by_holder else 0
            together.setdefault(origin, []).append(run)
        for runs in together.values():
            chosen = self._merging.alike([len(r) for r in runs])
            if chosen:
                self._rewrite(name, [runs[i] for i in chosen], by_holder)

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


def by_origin(rows: Batch) -> list[Batch]:
    """Return rows with holders apart, by the operator and shard that made their holders."""
    if int(rows.holder.min()) >> BLOCK == int(rows.holder.max()) >> BLOCK:
        return [rows]
    origin = rows.holder >> BLOCK
    return [rows.take(origin == one) for one in np.unique(origin)]


def _sorted(rows: Batch, by_holder: bool) -> tuple[pa.Table, dict[str, int]]:
    """Return rows as a run, sorted only by holder, and what is known about it."""
    if len(rows) == 0:
        return rows.to_table(), {}
    if not by_holder:
        return rows.to_table(), _ends_of(rows.end)
    step = rows.holder[1:] - rows.holder[:-1]
    if len(step) and step.min() < 0:
        rows = rows.take(np.argsort(rows.holder, kind="stable"))
        step = rows.holder[1:] - rows.holder[:-1]
    stats = {"min_holder": int(rows.holder[0]), "max_holder": int(rows.holder[-1])}
    stats["mortal"] = int(rows.end.min() < INF)
    stats["dense"] = int(bool((step == 1).all()))  # neighbouring numbers, one row each
    return rows.to_table(), stats


def _ends_of(end: I64) -> dict[str, int]:
    in_order = int(not (end[1:] < end[:-1]).any())
    return {"min_end": int(end.min()), "max_end": int(end.max()), "in_order": in_order}
