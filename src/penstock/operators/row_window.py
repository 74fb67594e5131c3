"""Windows by rows: the last N elements, of all or of each group, as a time-varying relation.

The elements of a group are numbered in their order, ``(time, arrival)``; M is the slide, 1 if
there is none.  M elements make a block, and a block is complete at the time of its last element.
With ``N = q*M + e``, element i (from 0) of block ``b = i div M`` is visible from the completion
of block b until that of block ``b + q + k``, where ``k = 1`` if ``i mod M + e >= M``, else 0.
For M = 1 that is: from its own time until that of the N-th later element.

All elements of one block with the same k end together: they are a *unit* and share a holder.
Units are numbered ``x = w*b + k`` with ``w = 2`` if e > 0, else 1, so that the completion of
block c tells the units ``w*(c-q) - (w-1) .. w*(c-q)``: a contiguous range, and what waits in a
group is always a contiguous range, too.

So the state is small.  Holders are drawn in the order of units, and one *stretch* (group, first
unit, its holder, count) stands for all units of a group that a slice left open, whatever their
number:

* ``count``: how many elements each group has seen (a number, or a map when there are groups);
* ``stretches``: runs sorted by (group, first unit). A group finds the units that it has to tell by
  binary search; a run is dropped when all its units were told and thinned when it is merged;
* ``pending``: with M > 1 the elements of incomplete blocks, whose start is not known yet, with
  their values: runs sorted by (group, number).

The cost of a slice follows its rows and their groups; N does not matter.

Without groups, and with M = 1 and no RANGE, not even stretches are needed: every element draws a
holder, whether it uses it or not, so the holder of element i follows from i.

With ``RANGE T`` as well, an element's own bound ``s + T`` is the end of its row, and the holder
can only make it earlier; a row whose bound is not above the heartbeat is determined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.errors import NotSupportedError
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.order import group_order, key_ranges, search_within, time_order
from penstock.kernels.steps import ranges
from penstock.model import I64, INF, Batch, Ends, Mask, one_array, to_numpy
from penstock.operators.base import SlicedOperator, few
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.keyed import KeyedState
from penstock.runs.state import Run
from penstock.windows import WindowSpec, plus

_MOST_ROWS = 1 << 60
_STRETCHES = "stretches"
_PENDING = "pending"


@dataclass(frozen=True)
class _Groups:
    """The groups of one slice, in order of their keys.

    ``order`` lists the rows by group and time, ``first`` where each group begins in it.  ``seen``
    counts the elements before the slice; the group completes the blocks ``[old, new)``, whose
    times stand in ``completed`` from ``offset`` on.
    """

    keys: Keys
    order: I64
    first: I64
    size: I64
    seen: I64
    old: I64
    new: I64
    offset: I64
    completed: I64

    def completion(self, group: I64, block: I64) -> I64:
        """Return when a group completed a block, ``INF`` where it did not do so in this slice."""
        result = np.full(len(group), INF, np.int64)
        known = np.flatnonzero(block < self.new[group])
        at = (self.offset - self.old)[group[known]] + block[known]
        result[known] = self.completed[at]
        return result


@dataclass(frozen=True)
class _Elements:
    """Elements with their time, their group in the slice and their number in the group, from 0.

    Element i is row ``order[i]`` of ``rows``, or row i without an order: values need not move.
    """

    rows: Batch
    time: I64
    group: I64
    number: I64
    order: I64 | None = None


@dataclass(frozen=True)
class RowWindowSpec(Spec):
    """Give elements their validity in a ``window`` by rows."""

    types: Sequence[pa.DataType]
    window: WindowSpec

    key = "row window/1"
    needs_arrival = True

    def build(self) -> RowWindowOperator:
        return RowWindowOperator(self)


class RowWindowOperator(SlicedOperator):
    """``[PARTITION BY ..] ROWS N [SLIDE M] [RANGE T] [START x]``."""

    def __init__(self, given: RowWindowSpec) -> None:
        super().__init__([given.types])
        spec = given.window
        assert spec.rows is not None
        if spec.slide is not None:
            raise NotSupportedError(
                "a window must slide by rows or by time, got ROWS together with RANGE .. SLIDE; "
                "use ROWS N SLIDE M, or leave the SLIDE of the RANGE out"
            )
        self.spec = spec
        self._types = tuple(given.types)
        self._block = spec.rows_slide or 1
        self._blocks, extra = divmod(min(spec.rows, _MOST_ROWS), self._block)
        self._extra = extra
        self._kinds = 2 if extra else 1

    def load(self) -> None:
        state = self.context.state
        self._counts = KeyedState(state, "count", [pa.int64()], self.context.merging)

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        if self._in_a_line():
            parts = [self._after_origin(rows) for rows in few(slice.parts[0])]
            yield from self._line(parts, slice.until)
            return
        batch = self._after_origin(slice.rows[0])
        if len(batch) == 0:
            return
        groups = self._arrange(batch)
        told = self._tell(groups, slice.since)
        if len(told):
            yield told
        visible = self._visible(batch, groups)
        if len(visible.rows):
            stamped = self._stamp(visible, groups, slice.until)
            if len(stamped):
                yield stamped

    def save(self) -> None:
        for name in (_STRETCHES, _PENDING):
            runs = self.context.state.runs(name)
            chosen = self.context.merging.choose([len(r) for r in runs])
            if chosen:
                self._merge(name, runs[chosen[0] : chosen[1]])
        self._counts.save()

    def _after_origin(self, rows: Batch) -> Batch:
        origin = self.spec.origin
        return rows if origin is None else rows.take(rows.start >= origin)

    def _in_a_line(self) -> bool:
        """Whether element i has the i-th holder of this operator."""
        spec, numbers = self.spec, self.context.state.numbers
        plain = not spec.partition_by and self._block == 1 and spec.range is None
        return plain and numbers.get("holders", 0) == numbers.get("count", 0)

    def _line(self, parts: list[Batch], until: int) -> Iterator[Batch | Ends]:
        """Work off a slice of the plain window: the last N elements of all.

        Parts that follow one another in time, as the rows that had to wait and those that came
        later do, are not copied together: only their times are looked at as one.
        """
        parts = [rows for rows in parts if len(rows)]
        if not parts:
            return
        if not _in_order(parts):
            parts = [Batch.concat(parts)]
        first = parts[0]
        order = time_order(first.start, first.seq, first.columns) if len(parts) == 1 else None
        time = np.concatenate([rows.start for rows in parts]) if len(parts) > 1 else first.start
        time = time if order is None else time[order]
        state, size = self.context.state, len(time)
        seen = state.numbers.get("count", 0)
        holder = self.context.new_holders(size)
        state.numbers["count"] = seen + size
        for run in state.runs(_STRETCHES):
            state.replace(_STRETCHES, [run], None)
        old = min(self._blocks, seen)  # elements of earlier slices that are in the window
        ended = min(size - (self._blocks - old), old)
        if ended > 0:
            begin = int(holder[0]) - old
            at = self._blocks - old
            yield Ends(np.arange(begin, begin + ended), time[at : at + ended])
        end = np.full(size, INF, np.int64)
        closed = max(size - self._blocks, 0)
        end[:closed] = time[size - closed :]
        holder[:closed] = 0
        if until == INF:  # nothing can come that would end them
            holder[:] = 0
        if order is not None:
            end, holder = _put_back(end, order), _put_back(holder, order)
        at = 0
        for rows in parts:
            mine = slice(at, at + len(rows))
            at += len(rows)
            stamped = Batch(rows.columns, rows.start, end[mine], holder[mine]).drop_ghosts()
            if len(stamped):
                yield stamped

    # The slice, step by step

    def _arrange(self, batch: Batch) -> _Groups:
        """Sort the rows by group and time, and count on."""
        order = time_order(batch.start, batch.seq, batch.columns)
        if self.spec.partition_by:
            keys = hash_columns([batch.columns[i] for i in self.spec.partition_by], len(batch))
            order, first = group_order(keys, order)
            keys = keys.take(order[first])
        else:
            order = np.arange(len(batch)) if order is None else order
            first = np.zeros(1, np.int64)
            keys = hash_columns([], 1)
        size = np.diff(np.append(first, len(order)))
        seen = self._seen(keys)
        self._remember(keys, seen + size)
        old, new = seen // self._block, (seen + size) // self._block
        done = new - old
        completed = batch.start[order]
        if self._block > 1:
            group, block = ranges(old, new)
            completed = completed[first[group] + (block + 1) * self._block - 1 - seen[group]]
        return _Groups(keys, order, first, size, seen, old, new, np.cumsum(done) - done, completed)

    def _seen(self, keys: Keys) -> I64:
        if not self.spec.partition_by:
            return np.full(len(keys), self.context.state.numbers.get("count", 0), np.int64)
        _, (count,) = self._counts.get(keys)
        seen: I64 = to_numpy(count.fill_null(0))
        return seen

    def _remember(self, keys: Keys, seen: I64) -> None:
        if not self.spec.partition_by:
            self.context.state.numbers["count"] = int(seen[0])
        else:
            self._counts.put(keys, [pa.array(seen)])

    def _tell(self, groups: _Groups, since: int) -> Ends:
        """Tell the units of earlier slices that the blocks completed now have ended."""
        active = np.flatnonzero(groups.new > groups.old)
        keys, old, new = groups.keys.take(active), groups.old[active], groups.new[active]
        low = np.maximum(self._kinds * (old - self._blocks) - (self._kinds - 1), 0)
        high = np.minimum(self._kinds * (new - 1 - self._blocks), self._kinds * old - 1)
        some = np.flatnonzero(low <= high)
        active, keys, low, high = active[some], keys.take(some), low[some], high[some]
        holders, times = [], []
        for run in self.context.state.runs(_STRETCHES) if len(active) else ():
            if run.stats["bound"] <= since:
                self.context.state.replace(_STRETCHES, [run], None)
                continue
            stretches = _Stretches.of(run)
            owner, at = stretches.overlapping(keys, low, high)
            begin = np.maximum(low[owner], stretches.unit[at])
            end = np.minimum(high[owner] + 1, stretches.unit[at] + stretches.count[at])
            self._use(_STRETCHES, run, int((end - begin).sum()))
            needed = stretches.bound[at] > since
            owner, at, begin, end = owner[needed], at[needed], begin[needed], end[needed]
            which, unit = ranges(begin, end)
            group = active[owner[which]]
            block = (unit + self._kinds - 1) // self._kinds + self._blocks
            holders.append(stretches.holder[at[which]] + unit - stretches.unit[at[which]])
            times.append(groups.completion(group, block))
        if not holders:
            return Ends()
        holder, end = np.concatenate(holders), np.concatenate(times)
        order = np.argsort(holder)
        return Ends(holder[order], end[order])

    def _visible(self, batch: Batch, groups: _Groups) -> _Elements:
        """Return the elements of all blocks that are complete now; the others wait."""
        group = np.repeat(np.arange(len(groups.first)), groups.size)
        number = np.arange(len(group)) - np.repeat(groups.first - groups.seen, groups.size)
        if self._block == 1:
            return _Elements(batch, groups.completed, group, number, groups.order)
        ready = number < (groups.new * self._block)[group]
        now, later = np.flatnonzero(ready), np.flatnonzero(~ready)
        parts = self._take_pending(groups)
        rows = batch.take(groups.order[now])
        parts.append(_Elements(rows, rows.start, group[now], number[now]))
        self._put_pending(
            batch.take(groups.order[later]), groups.keys.take(group[later]), number[later]
        )
        return _Elements(
            Batch.concat([p.rows for p in parts]),
            np.concatenate([p.time for p in parts]),
            np.concatenate([p.group for p in parts]),
            np.concatenate([p.number for p in parts]),
        )

    def _stamp(self, elements: _Elements, groups: _Groups, until: int) -> Batch:
        """Give visible elements their validity, and keep the units that stay open."""
        group = elements.group
        block = elements.number // self._block if self._block > 1 else elements.number
        start, unit, end_block = elements.time, block, block + self._blocks
        if self._block > 1:
            start = groups.completion(group, block)
        if self._kinds == 2:
            kind = elements.number - block * self._block >= self._block - self._extra
            unit, end_block = 2 * block + kind, end_block + kind
        end = groups.completion(group, end_block)
        bound = plus(elements.time, INF if self.spec.range is None else self.spec.range)
        # what stays open is a range of units in each group; RANGE may have ended its front
        open_ = np.flatnonzero((end == INF) & (bound > until))
        mine, unit = group[open_], unit[open_]
        first = np.maximum(
            self._kinds * groups.old, self._kinds * (groups.new - 1 - self._blocks) + 1
        )
        last_bound = np.full(len(first), INF, np.int64)
        if self.spec.range is not None:
            first, last_bound[:] = self._kinds * groups.new, until
            np.minimum.at(first, mine, unit)
            np.maximum.at(last_bound, mine, bound[open_])
        count = np.maximum(self._kinds * groups.new - first, 0)
        if until == INF:  # nothing can come that would end them
            count[:] = 0
        holders = self.context.new_holders(int(count.sum()))
        offset = np.cumsum(count) - count
        holder = np.zeros(len(group), np.int64)
        holder[open_] = holders[offset[mine] + unit - first[mine]]
        some = np.flatnonzero(count)
        if len(some):
            stretches = _Stretches(
                groups.keys.take(some),
                first[some],
                holders[offset[some]],
                count[some],
                last_bound[some],
            )
            self.context.state.append(_STRETCHES, stretches.to_table(), stretches.stats())
        end = np.minimum(end, bound)
        if elements.order is not None:
            start, end, holder = (_put_back(a, elements.order) for a in (start, end, holder))
        return Batch(elements.rows.columns, start, end, holder).drop_ghosts()

    # Elements of incomplete blocks

    def _take_pending(self, groups: _Groups) -> list[_Elements]:
        """Return the waiting elements of groups whose block becomes complete."""
        active = np.flatnonzero((groups.new > groups.old) & (groups.seen % self._block > 0))
        found = []
        for run in self.context.state.runs(_PENDING) if len(active) else ():
            table = run.table()
            high, low = to_numpy(table.column("high")), to_numpy(table.column("low"))
            number = to_numpy(table.column("number"))
            first, last = key_ranges(high, low, groups.keys.take(active))
            # what a run has of a group waits as a whole or was taken as a whole
            fresh = first < last
            fresh[fresh] = number[last[fresh] - 1] >= (groups.old * self._block)[active[fresh]]
            owner, at = ranges(first[fresh], last[fresh])
            if len(at) == 0:
                continue
            chosen = table.take(pa.array(at))
            columns = tuple(one_array(chosen.column(f"c{i}")) for i in range(len(self._types)))
            rows = Batch.of(columns, to_numpy(chosen.column("start")))
            found.append(_Elements(rows, rows.start, active[fresh][owner], number[at]))
            self._use(_PENDING, run, len(at))
        return found

    def _put_pending(self, rows: Batch, keys: Keys, number: I64) -> None:
        """Keep elements whose block is not complete, sorted by group and number."""
        names = [*(f"c{i}" for i in range(len(self._types))), "start", "number", "high", "low"]
        arrays = [*rows.columns, *map(pa.array, (rows.start, number, keys.high, keys.low))]
        self.context.state.append(_PENDING, pa.table(arrays, names=names), {"left": len(rows)})

    # Runs

    def _use(self, name: str, run: Run, count: int) -> None:
        """Count what was used of a run; drop it when nothing is left."""
        run.stats["left"] -= count
        if run.stats["left"] <= 0:
            self.context.state.replace(name, [run], None)

    def _merge(self, name: str, runs: Sequence[Run]) -> None:
        """Put one run in the place of several, without what was used."""
        table = pa.concat_tables([r.table() for r in runs]).combine_chunks()
        keys = Keys(to_numpy(table.column("high")), to_numpy(table.column("low")))
        order, first = group_order(keys, None)  # stable: inside a group, older runs come first
        table = table.take(pa.array(order)).combine_chunks()
        seen = self._seen(keys.take(order[first]))
        seen = np.repeat(seen, np.diff(np.append(first, len(order))))
        complete = seen // self._block
        if name == _PENDING:
            waits = to_numpy(table.column("number")) >= complete * self._block
            table = table.filter(pa.array(waits)).combine_chunks()
            self.context.state.replace(name, runs, table, {"left": table.num_rows})
            return
        stretches = _Stretches.from_table(table)
        told = self._kinds * (complete - 1 - self._blocks)
        left = np.minimum(stretches.count, stretches.unit + stretches.count - 1 - told)
        waiting = (left > 0) & (stretches.bound > self.since)
        stretches = stretches.take(waiting)
        left = left[waiting]
        if self.spec.range is None:
            stretches = stretches.joined()
        stats = stretches.stats() | {"left": int(left.sum())}
        self.context.state.replace(name, runs, stretches.to_table(), stats)


def _in_order(parts: list[Batch]) -> bool:
    """Whether the elements of parts are in order, and each part is before the next."""
    return all(a.start[-1] < b.start[0] for a, b in pairwise(parts)) and (
        len(parts) == 1
        or all(time_order(rows.start, rows.seq, rows.columns) is None for rows in parts)
    )


def _put_back(values: I64, order: I64) -> I64:
    """Undo a permutation."""
    result = np.empty_like(values)
    result[order] = values
    return result


@dataclass(frozen=True)
class _Stretches:
    """Waiting units of groups: ``count`` of them from ``unit`` on, with holders from ``holder`` on.

    From the time ``bound`` on, none of their rows is valid, whether they are told or not.
    """

    keys: Keys
    unit: I64
    holder: I64
    count: I64
    bound: I64

    def __len__(self) -> int:
        return len(self.unit)

    @staticmethod
    def of(run: Run) -> _Stretches:
        return _Stretches.from_table(run.table())

    @staticmethod
    def from_table(table: pa.Table) -> _Stretches:
        keys = Keys(to_numpy(table.column("high")), to_numpy(table.column("low")))
        names = ("unit", "holder", "count", "bound")
        return _Stretches(keys, *(to_numpy(table.column(n)) for n in names))

    def to_table(self) -> pa.Table:
        arrays = (self.keys.high, self.keys.low, self.unit, self.holder, self.count, self.bound)
        names = ("high", "low", "unit", "holder", "count", "bound")
        return pa.table(dict(zip(names, arrays, strict=True)))

    def stats(self) -> dict[str, int]:
        """Return how many units there are, and until when any of them is needed."""
        return {"left": int(self.count.sum()), "bound": int(self.bound.max(initial=-INF))}

    def take(self, mask: Mask) -> _Stretches:
        index = np.flatnonzero(mask)
        return _Stretches(
            self.keys.take(index),
            self.unit[index],
            self.holder[index],
            self.count[index],
            self.bound[index],
        )

    def joined(self) -> _Stretches:
        """Make one of neighbours whose units and holders go on."""
        if len(self) == 0:
            return self
        next_unit, next_holder = self.unit + self.count, self.holder + self.count
        new = np.ones(len(self), bool)
        new[1:] = (
            (self.keys.high[1:] != self.keys.high[:-1])
            | (self.keys.low[1:] != self.keys.low[:-1])
            | (self.unit[1:] != next_unit[:-1])
            | (self.holder[1:] != next_holder[:-1])
        )
        if new.all():
            return self
        heads = self.take(new)
        first = np.flatnonzero(new)
        count = np.add.reduceat(self.count, first)
        bound = np.maximum.reduceat(self.bound, first)
        return _Stretches(heads.keys, heads.unit, heads.holder, count, bound)

    def overlapping(self, keys: Keys, low: I64, high: I64) -> tuple[I64, I64]:
        """Return pairs (i, position): a stretch of ``keys[i]`` that meets ``low[i] .. high[i]``."""
        first, last = key_ranges(self.keys.high, self.keys.low, keys)
        begin = np.maximum(search_within(self.unit, first, last, low + 1) - 1, first)
        some = np.flatnonzero(begin < last)
        at = begin[some]
        begin[some] += self.unit[at] + self.count[at] <= low[some]
        end = search_within(self.unit, begin, last, high + 1)
        return ranges(begin, end)
