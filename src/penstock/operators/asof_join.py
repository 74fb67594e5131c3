"""ASOF JOIN: each left row with its nearest right row, in every snapshot.

Every left row has a *bound* and every right row a *value*, integers made of the two compared
expressions so that ``left OPERATOR right`` is ``value <= bound`` and the nearest row is the one
with the greatest value; ties go to the greatest row by all columns.

A slice examines only the left rows that it *touches*: the new ones, and stored ones that die, whose
partner dies, that may get a newly born partner, or that can get no other partner from now on.
`kernels.nearest.nearest` gives their partners from instant to instant.  A result whose
end is not known when the slice ends gets a holder, and its left row is stored with it until the
next time it is touched.

What need not be stored, given bounds on what is still to come (`_future`):

* A left row is let go, and its result takes over its end and its holder, when nothing can change
  its partner any more: no right row to come is as near as the present one, which outlives it.  With
  ``a.t >= b.t`` on the time columns of two streams that is so at once: a right row to come is later
  than the left row.  So a left row is stored only when its partner may die before it does.
* A right row is let go when no left row, stored or to come, can have it as its partner: its value
  is above all bounds, or there is a nearer one, below all bounds, that outlives it.  With
  ``a.t >= b.t``, of the rows older than every left row only the newest of each key stays.

The bounds come from the planner: a ``lag`` promises that the compared value of a row is at least
its start minus the lag, and the heartbeat says which starts are still to come.  Without such a
promise both sides are kept as long as they live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.kernels.counts import group_codes
from penstock.kernels.keys import Keys
from penstock.kernels.nearest import Nearest, nearest, useful
from penstock.kernels.order import key_ranges, search_within, sort_indices
from penstock.kernels.steps import group_starts, ranges
from penstock.kernels.sweep import ordered, ordered_type
from penstock.model import I64, INF, MIN_TIME, Batch, Ends, Mask, one_array, to_mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.asof_side import AsofPiece, AsofSide
from penstock.runs.holders import applied

_NOBODY = -1
"""The partner of a row that has none."""
_OVER = -2
"""Stands for a partner whose time is over when the slice ends."""


@dataclass(frozen=True)
class _Left:
    """Left rows under examination; ``end`` and ``holder`` are what is known about their ends.

    The others describe the result that is in the output, if ``shown`` is not 0: its holder, its
    partner's number, end and holder, and the end that it was given.
    """

    columns: tuple[pa.Array, ...]
    start: I64
    end: I64
    holder: I64
    high: I64
    low: I64
    bound: I64
    partner: I64
    partner_end: I64
    partner_holder: I64
    shown: I64
    shown_until: I64

    def __len__(self) -> int:
        return len(self.start)

    @property
    def keys(self) -> Keys:
        return Keys(self.high.view(np.uint64), self.low.view(np.uint64))

    def slice(self, first: int, last: int) -> _Left:
        columns = tuple(c.slice(first, last - first) for c in self.columns)
        return _Left(columns, *(getattr(self, f.name)[first:last] for f in fields(self)[1:]))

    def take(self, at: I64) -> _Left:
        taken = pa.array(at)
        columns = tuple(c.take(taken) for c in self.columns)
        return _Left(columns, *(getattr(self, f.name)[at] for f in fields(self)[1:]))

    @staticmethod
    def new(rows: Batch, keys: Keys, bound: I64) -> _Left:
        none = np.zeros(len(rows), np.int64)
        over = np.full(len(rows), _OVER, np.int64)
        high, low = keys.high.view(np.int64), keys.low.view(np.int64)
        times = rows.start, rows.end, rows.holder
        return _Left(rows.columns, *times, high, low, bound, over, none, none, none, none)

    @staticmethod
    def concat(parts: Sequence[_Left]) -> _Left:
        if len(parts) == 1:
            return parts[0]
        columns = tuple(
            pa.concat_arrays([p.columns[i] for p in parts]) for i in range(len(parts[0].columns))
        )
        numbers = (np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(_Left)[1:])
        return _Left(columns, *numbers)


_STORED = ("partner", "partner_end", "partner_holder", "shown", "shown_until")


@dataclass(frozen=True)
class AsofJoinSpec(Spec):
    """Join each left row with the nearest right row.

    Keys and compared expressions are over the columns of their side.  ``operator`` is ge, gt, le or
    lt, ``kind`` inner or left.  ``left_lag`` and ``right_lag``: the compared value of a row is at
    least its start minus the lag; None promises nothing.
    """

    left_types: Sequence[pa.DataType]
    right_types: Sequence[pa.DataType]
    left_keys: Sequence[Expr]
    right_keys: Sequence[Expr]
    left_at: Expr
    right_at: Expr
    operator: str = "ge"
    kind: str = "inner"
    left_lag: int | None = None
    right_lag: int | None = None

    key = "asof join/1"

    def build(self) -> AsofJoinOperator:
        return AsofJoinOperator(self)


class AsofJoinOperator(SlicedOperator):
    """Joins port 0 (left) with the nearest row of port 1 (right)."""

    def __init__(self, spec: AsofJoinSpec) -> None:
        super().__init__((spec.left_types, spec.right_types))
        for side in (spec.left_at, spec.right_at):
            if ordered_type(side.type) != pa.int64():
                raise InternalError(f"an ASOF join must compare numbers or times, got {side.type}")
        self._keys = (tuple(spec.left_keys), tuple(spec.right_keys))
        self._at = (spec.left_at, spec.right_at)
        self._latest = spec.operator in ("ge", "gt")
        self._strict = spec.operator in ("gt", "lt")
        self._keeps_all = spec.kind == "left"
        self._lags = (spec.left_lag, spec.right_lag)

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._left = AsofSide(state, "left", 0, merging)
        self._right = AsofSide(state, "right", len(self.input_types[1]), merging)

    def save(self) -> None:
        self._left.save()
        self._right.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        since, until = slice.since, slice.until
        if len(slice.ends[0]):
            yield slice.ends[0]  # of the results that share the holder of their left row
        told = Ends.concat(slice.ends)
        self._right.hear(told)
        born, keys, value, _ = self._compared(1, slice.rows[1], told)
        new = self._right.sort(born, keys, value)
        fresh, keys, bound, alone = self._compared(0, slice.rows[0], told)
        if self._keeps_all and len(alone):
            nothing = [pa.nulls(len(alone), t) for t in self.input_types[1]]
            yield alone.with_columns((*alone.columns, *nothing))
        left = _Left.concat(
            [*self._touched(new, told, since, until), _Left.new(fresh, keys, bound)]
        )
        slabs = [slab for slab in self._right.pieces if slab.stats["last"] > since]
        slabs += [new] if new is not None else []
        kept: list[_Left] = []
        block = max(self.context.block, 1)
        for first in range(0, len(left), block):
            part = left.slice(first, first + block) if len(left) > block else left
            yield from self._work(part, slabs, since, until, kept)
        self._advance(_Left.concat(kept) if kept else None, new, until)

    # ---- what comes in

    def _compared(self, port: int, rows: Batch, told: Ends) -> tuple[Batch, Keys, I64, Batch]:
        """Return new rows that can have a partner, their keys and values; and the other rows."""
        rows = Batch(rows.columns, rows.start, *applied(told, rows.end, rows.holder)).drop_ghosts()
        columns = [one_array(evaluate(e, rows.columns, len(rows))) for e in self._keys[port]]
        value = ordered(one_array(evaluate(self._at[port], rows.columns, len(rows))))
        usable: Mask = np.ones(len(rows), bool)
        for column in (*columns, value):
            if column.null_count:
                usable &= to_mask(column.is_valid())
        number = to_numpy(value.fill_null(0) if value.null_count else value)
        number = number if self._latest else ~number
        if port == 0 and self._strict:
            usable &= number > MIN_TIME
            number = number - (number > MIN_TIME)
        others = rows.take(~usable)
        if len(others):
            rows, number = rows.take(usable), number[usable]
            columns = [column.filter(pa.array(usable)) for column in columns]
        code, keys, _ = group_codes(columns, len(rows))
        return rows, keys.take(code), number, others

    def _touched(
        self, new: AsofPiece | None, told: Ends, since: int, until: int
    ) -> Iterator[_Left]:
        """Take out the stored left rows whose partner may change now, or never again."""
        before, after = self._future(1, since)[0], self._future(1, until)[0]
        for slab in self._left.pieces:
            touched = np.zeros(len(slab), bool)
            if slab.stats["greatest"] >= before and slab.stats["least"] < after:
                bound = slab.numbers("_value")
                touched = (bound >= before) & (bound < after)
            if slab.stats["alarm"] < until:
                touched |= slab.numbers("_end") < until
                touched |= slab.numbers("partner_end") < until
            if slab.stats["open"] and len(told):
                touched |= told.lookup(slab.numbers("_holder")) < INF
                touched |= told.lookup(slab.numbers("partner_holder")) < INF
            if new is not None and slab.stats["greatest"] >= new.stats["least"]:
                keys, value = new.keys, new.numbers("_value")
                head = group_starts(keys.high.view(np.int64), keys.low.view(np.int64))
                first, last = key_ranges(
                    slab.numbers("_high"), slab.numbers("_low"), keys.take(head)
                )
                first = search_within(slab.numbers("_value"), first, last, value[head])
                touched[ranges(first, last)[1]] = True
            if slab.gone is not None:
                touched &= ~slab.gone
            at = np.flatnonzero(touched)
            if len(at):
                yield self._taken(slab, at, told)
                self._left.take_out(slab, at)

    def _taken(self, slab: AsofPiece, at: I64, told: Ends) -> _Left:
        columns = tuple(slab.take(at, len(self.input_types[0])))
        end, holder = applied(told, slab.numbers("_end")[at], slab.numbers("_holder")[at])
        high, low = (slab.numbers(n)[at].view(np.int64) for n in ("_high", "_low"))
        start, bound = slab.numbers("_start")[at], slab.numbers("_value")[at]
        stored = (slab.numbers(name)[at] for name in _STORED)
        return _Left(columns, start, end, holder, high, low, bound, *stored)

    # ---- partners and results

    def _work(
        self, left: _Left, slabs: list[AsofPiece], since: int, until: int, kept: list[_Left]
    ) -> Iterator[Batch | Ends]:
        """Find the partners of left rows in this slice; yield what changes in the output."""
        width = len(self.input_types[1])

        def prefer(at: I64, equal: Mask) -> I64:
            case, which, parts = [], [], []
            for i, slab in enumerate(slabs):
                some = np.flatnonzero(equal[i])
                case.append(some)
                which.append(np.full(len(some), i))
                parts.append(slab.take(at[i][some], width))
            columns = [pa.concat_arrays(list(c)) for c in zip(*parts, strict=True)]
            cases, choice = np.concatenate(case), np.concatenate(which)
            order = sort_indices([pa.array(cases), *columns])
            winner = np.empty(at.shape[1], np.int64)
            winner[cases[order]] = choice[order]  # the last of each case, the greatest, stays
            return winner

        start, end = np.maximum(left.start, since), np.minimum(left.end, until)
        ladders = [slab.ladder for slab in slabs]
        found = nearest(ladders, left.keys, left.bound, start, end, prefer)
        row = found.row
        partner, partner_end, partner_holder, value = self._partners(slabs, found)
        opening = np.zeros(len(row), bool)
        opening[group_starts(row)] = True
        goes_on = opening & (partner == left.partner[row])
        lasts = (found.end == until) & (left.end[row] > until)
        is_open = lasts & (partner_end > until)
        least, greatest = self._future(1, until)
        safe = left.bound[row] < least
        outlives = (partner_holder == 0) & (partner_end >= left.end[row])
        closed = is_open & np.where(
            partner == _NOBODY, safe, outlives & (safe | (value > greatest))
        )
        closed &= ~goes_on | (left.shown[row] == 0) | (left.holder[row] == 0)
        yield from self._told(left, found, goes_on & ~is_open, goes_on, since)
        visible = ~goes_on & (self._keeps_all | (partner != _NOBODY))
        carried = visible & is_open & ~closed
        holder = np.where(closed, left.holder[row], 0)
        holder[carried] = self.context.new_holders(int(carried.sum()))
        finish = np.where(closed, left.end[row], found.end)
        finish[carried] = np.minimum(left.end[row], partner_end)[carried]
        if visible.any():
            yield self._results(left, slabs, found, visible, finish, holder)
        stays = np.flatnonzero(lasts & ~closed)
        if len(stays):
            at = row[stays]
            same, over = goes_on[stays], ~is_open[stays]
            kept.append(
                replace(
                    left.take(at),
                    partner=np.where(over, _OVER, partner[stays]),
                    partner_end=partner_end[stays],
                    partner_holder=partner_holder[stays],
                    shown=np.where(over, 0, np.where(same, left.shown[at], holder[stays])),
                    shown_until=np.where(same, left.shown_until[at], finish[stays]),
                )
            )

    def _partners(self, slabs: list[AsofPiece], found: Nearest) -> tuple[I64, I64, I64, I64]:
        """Return number, end, holder and value of each partner; having none does not end."""
        size = len(found.row)
        number = np.full(size, _NOBODY, np.int64)
        end = np.full(size, INF, np.int64)
        holder = np.zeros(size, np.int64)
        value = np.full(size, MIN_TIME, np.int64)
        for i, slab in enumerate(slabs):
            mine = np.flatnonzero(found.ladder == i)
            at = found.position[mine]
            number[mine] = slab.numbers("_number")[at]
            end[mine] = slab.end[at]
            holder[mine] = slab.numbers("_holder")[at]
            value[mine] = slab.numbers("_value")[at]
        return number, end, holder, value

    def _told(
        self, left: _Left, found: Nearest, ending: Mask, goes_on: Mask, since: int
    ) -> Iterator[Ends]:
        """Yield the ends of results of earlier slices, unless they were known beforehand."""
        end = np.where(left.shown != 0, since, INF)
        end[found.row[goes_on]] = INF
        end[found.row[ending]] = found.end[ending]
        told = (left.shown != 0) & (end < left.shown_until)
        if told.any():
            yield Ends.of(left.shown[told], end[told])

    def _results(
        self,
        left: _Left,
        slabs: list[AsofPiece],
        found: Nearest,
        visible: Mask,
        end: I64,
        holder: I64,
    ) -> Batch:
        at = np.flatnonzero(visible)
        ladder, position = found.ladder[at], found.position[at]
        groups, parts = [], []
        for i, slab in enumerate(slabs):
            mine = np.flatnonzero(ladder == i)
            if len(mine):
                groups.append(mine)
                parts.append(slab.take(position[mine], len(self.input_types[1])))
        mine = np.flatnonzero(ladder < 0)
        if len(mine):
            groups.append(mine)
            parts.append([pa.nulls(len(mine), t) for t in self.input_types[1]])
        right = parts[0]
        if len(parts) > 1:
            back = np.empty(len(at), np.int64)
            back[np.concatenate(groups)] = np.arange(len(at))
            order = pa.array(back)
            right = [pa.concat_arrays(list(c)).take(order) for c in zip(*parts, strict=True)]
        taken = pa.array(found.row[at])
        columns = (*(c.take(taken) for c in left.columns), *right)
        return Batch(columns, found.start[at], end[at], holder[at])

    # ---- what stays

    def _advance(self, left: _Left | None, new: AsofPiece | None, until: int) -> None:
        """End the slice: store what may be needed, let go of the rest."""
        slab = None
        if left is not None:
            batch = Batch(left.columns, left.start, left.end, left.holder)
            stored = {name: getattr(left, name) for name in _STORED}
            slab = self._left.sort(batch, left.keys, left.bound, stored)
        self._left.advance(slab, until)
        least, greatest = self._future(0, until)
        least, greatest = min(least, self._left.least), max(greatest, self._left.greatest)

        def wanted(slab: AsofPiece) -> Mask:
            sure = slab.numbers("_holder") == 0
            return useful(slab.keys, slab.numbers("_value"), slab.end, sure, least, greatest)

        self._right.advance(new, until, wanted)
        if self.inbox.exhausted(0) and len(self._left) == 0:
            self._right.clear()

    def _future(self, port: int, until: int) -> tuple[int, int]:
        """Return bounds of what is compared in the rows that are still to come."""
        if self.inbox.exhausted(port):
            return INF, MIN_TIME
        lag = self._lags[port]
        if lag is None:
            return MIN_TIME, INF
        least = min(max(until - lag, MIN_TIME + 1), INF)
        if not self._latest:
            return MIN_TIME, ~least
        return least - (1 if port == 0 and self._strict else 0), INF
