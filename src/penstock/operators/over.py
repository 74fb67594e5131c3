"""Window functions, ``f(..) OVER (PARTITION BY .. ORDER BY t frame)``: stream to stream.

The rows of a partition are numbered in their order; a slice brings the next numbers, and every row
of a slice gets its answer in it.  What a row carries on, in the state as in the slice, is what is
known of its partition *before* it: the number of values, their exact sum and the sum of their
squares.  So the sum over the frame ``[lo, hi]`` is what row ``hi + 1`` carries, minus what row
``lo`` carries, whatever lies between.  The other functions are one row each, too: LAG and
FIRST_VALUE are the argument at a number; the best of a frame is the best from ``lo`` to the end of
the history, which row ``lo`` holds (`runs.histories`), or that of a range of the slice; and of a
frame without a beginning, the last row of the history carries the answer so far.

The cost of a slice follows its rows, not the length of the frames.  No answer depends on the cuts:
sums are exact, and a number is the same whichever slice brings it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import NotSupportedError
from penstock.expr.arrow import evaluate
from penstock.expr.frames import ORDINALS, PICKS, Frame, OverCall
from penstock.expr.nodes import Cast, Expr
from penstock.kernels import exact
from penstock.kernels.counts import integers
from penstock.kernels.exact import PACKED, Digits
from penstock.kernels.frames import (
    added,
    least_in,
    picked,
    running_digits,
)
from penstock.kernels.keys import hash_columns
from penstock.kernels.measures import Extreme, Measure, numbers, result
from penstock.kernels.order import group_order, search_within, time_order
from penstock.kernels.partitions import (
    PartitionedRows,
    best_so_far,
    first_there,
    last_there,
    minus,
    nth_row,
    ranked,
    valid_count,
)
from penstock.kernels.steps import segmented_cumsum
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.histories import Histories, Pool, Reach

_VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")


@dataclass(frozen=True)
class _Bounds:
    """The numbers ``[lo, hi]`` of each row's frame; ``hi >= lo - 1``."""

    frame: Frame
    lo: I64
    hi: I64


@dataclass
class _Argument:
    """One distinct argument, and which columns of the history it needs.

    ``places`` are positions of columns, by what they hold: the value itself; of the rows before it
    how many values there were, their sum and the sum of their squares; of all rows up to it the
    smallest and largest value, the n-th one (``nth n``), the first and the last that is not null,
    with its number.
    """

    expr: Expr
    measure: Measure
    places: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OverSpec(Spec):
    """Append one column per call to the rows of a stream.

    ``keys`` are positions of the partition's columns.  Rows with equal times are ordered by their
    arrival: column ``arrival``, else the batches' own numbers, and without any by the first
    ``width`` columns.  With ``keep`` the batches' numbers become the last column.
    """

    types: Sequence[pa.DataType]
    keys: tuple[int, ...]
    calls: tuple[OverCall, ...]
    width: int
    arrival: int | None = None
    keep: bool = False

    key = "over/1"
    holders = "none"
    needs_arrival = True

    def build(self) -> OverOperator:
        return OverOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False


class OverOperator(SlicedOperator):
    """Appends one column per call to the rows of a stream."""

    def __init__(self, spec: OverSpec) -> None:
        super().__init__([spec.types])
        calls = spec.calls
        self._keys = spec.keys
        self._calls = calls
        self._width = spec.width
        self._arrival = spec.arrival
        self._keep = spec.keep
        self._arguments: list[_Argument] = []
        self._types: list[pa.DataType] = []
        self._extremes: list[tuple[int, bool]] = []
        self._dense: int | None = None
        self._argument_of = [self._require(call) for call in calls]
        self._frames = tuple(dict.fromkeys(_inner(c) for c in calls if _framed(c)))
        self._reach = _reach(calls)

    # ---- what the state holds

    def _require(self, call: OverCall) -> _Argument | None:
        """Note what a function needs of its argument."""
        if call.name == "dense_rank" and self._dense is None:
            self._dense = self._column(pa.int64())
        if not call.args:
            return None
        expr = call.args[0]
        if call.name in _VARIANCES and not pa.types.is_floating(expr.type):
            expr = Cast(expr, pa.float64())
        argument = next((a for a in self._arguments if a.expr == expr), None)
        if argument is None:
            argument = _Argument(expr, Measure(expr.type))
            self._arguments.append(argument)
        measure, endless = argument.measure, call.frame.start is None
        if call.name == "lag":
            self._hold(argument, "value", expr.type)
        elif call.name in PICKS:
            self._require_pick(call, argument)
        else:
            self._hold(argument, "value", expr.type)
            self._hold(argument, "count", pa.int64())
            if call.name in ("sum", "avg", *_VARIANCES):
                measure.sums = True
                self._hold(argument, "sum", PACKED)
            if call.name in _VARIANCES:
                measure.squares = True
                self._hold(argument, "square", PACKED)
            if call.name in ("min", "max"):
                _check_extreme(call)
                measure.smallest |= call.name == "min"
                measure.largest |= call.name == "max"
                if endless:
                    self._hold(argument, call.name, expr.type)
                else:
                    if call.frame.end > 0:
                        self._hold(argument, _part(call), expr.type)
                    place = (argument.places["value"], call.name == "max")
                    if place not in self._extremes:
                        self._extremes.append(place)
        return argument

    def _require_pick(self, call: OverCall, argument: _Argument) -> None:
        kind, endless = argument.expr.type, call.frame.start is None
        if call.ignore_nulls:
            if call.name == "nth_value" or (call.name == "first_value" and not endless):
                raise NotSupportedError(
                    "IGNORE NULLS is known for LAST_VALUE, and for FIRST_VALUE over UNBOUNDED "
                    "PRECEDING"
                )
            word = call.name.removesuffix("_value")
            self._hold(argument, word, kind)
            self._hold(argument, f"{word} number", pa.int64())
        elif call.name == "last_value" or not endless:
            self._hold(argument, "value", kind)
        else:
            self._hold(argument, f"nth {_nth(call)}", kind)

    def _hold(self, argument: _Argument, part: str, kind: pa.DataType) -> None:
        if part not in argument.places:
            argument.places[part] = self._column(kind)

    def _column(self, kind: pa.DataType) -> int:
        self._types.append(kind)
        return len(self._types) - 1

    def load(self) -> None:
        context = self.context
        self._history = Histories(
            context.state, "rows", self._types, self._reach, self._extremes, context.merging
        )

    def save(self) -> None:
        self._history.save(self.since)

    # ---- one slice

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        batch, until = slice.rows[0], slice.until
        if len(batch) == 0:
            return
        mine, newest = self._arrange(batch)
        bounds = {f: self._bounds(f, mine) for f in self._frames}
        arrays = {
            a.expr: evaluate(a.expr, batch.columns, len(batch)).take(pa.array(mine.order))
            for a in self._arguments
        }
        fresh: list[pa.Array | Digits | None] = [None] * len(self._types)
        pool = Pool(mine)
        for call in self._calls:
            self._want(call, bounds, mine, pool)
        pool.load(self._history)
        after: dict[Expr, dict[str, Any]] = {a.expr: {} for a in self._arguments}
        self._carry(mine, arrays, newest, fresh, after)
        work = _Work(mine, pool, bounds, arrays, fresh, after, self._history, self._extremes)
        for call, argument in zip(self._calls, self._argument_of, strict=True):
            if argument is not None and _inner(call) != call.frame:
                fresh[argument.places[_part(call)]] = self._over_frame(call, argument, work)
        results = []
        for call, argument in zip(self._calls, self._argument_of, strict=True):
            made = self._answer(call, argument, work)
            if call.name == "lag":
                made = _with_default(call, made, mine, batch)
            results.append(made if made.type == call.type else made.cast(call.type))
        if until < INF and (self._reach.rows or self._reach.time is not None):
            self._remember(mine, fresh, until)
        back = np.empty(len(mine), np.int64)
        back[mine.order] = np.arange(len(mine))
        index = pa.array(back)
        columns = [*batch.columns, *(r.take(index) for r in results)]
        if self._keep:
            assert batch.seq is not None
            columns.append(pa.array(batch.seq))
        endless = np.full(len(batch), INF, np.int64)
        yield Batch(tuple(columns), batch.start, endless, np.zeros(len(batch), np.int64))

    def _arrange(self, batch: Batch) -> tuple[PartitionedRows, tuple[pa.Array, ...]]:
        """Sort and number the rows; return them and the last rows of their histories."""
        seq = batch.seq
        if self._arrival is not None:
            seq = to_numpy(batch.columns[self._arrival])
        order = time_order(batch.start, seq, batch.columns[: self._width])
        if self._keys:
            keys = hash_columns([batch.columns[i] for i in self._keys], len(batch))
            order, starts = group_order(keys, order)
            keys = keys.take(order[starts])
        else:
            order = np.arange(len(batch)) if order is None else order
            starts = np.zeros(1, np.int64)
            keys = hash_columns([], 1)
        group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        self._history.look(keys)
        base, newest = self._history.newest()
        number = np.arange(len(order)) + (base - starts)[group]
        return PartitionedRows(order, starts, group, keys, batch.start[order], base, number), newest

    def _bounds(self, frame: Frame, mine: PartitionedRows) -> _Bounds:
        """Return the numbers of the rows in each row's frame."""
        if frame.unit == "rows":
            hi = mine.number - frame.end
            lo = hi if frame.start is None else np.maximum(mine.number - frame.start, 0)
        else:
            hi = self._first_at(mine, minus(mine.time, frame.end - 1)) - 1
            lo = hi if frame.start is None else self._first_at(mine, minus(mine.time, frame.start))
        if frame.start is None:
            lo = np.zeros(len(mine), np.int64)
        hi = np.maximum(hi, -1)
        return _Bounds(frame, np.minimum(lo, hi + 1), hi)

    def _first_at(self, mine: PartitionedRows, time: I64) -> I64:
        """Return the number of the first row of the partition at or after a time."""
        stops = np.append(mine.starts[1:], len(mine))
        at = search_within(mine.time, mine.starts[mine.group], stops[mine.group], time)
        number = at - (mine.starts - mine.base)[mine.group]
        past = np.flatnonzero(at == mine.starts[mine.group])
        if len(past):
            found = self._history.since(mine.group[past], time[past])
            number[past] = np.minimum(number[past], found)
        return number

    def _want(
        self, call: OverCall, bounds: dict[Frame, _Bounds], mine: PartitionedRows, pool: Pool
    ) -> None:
        """Ask for the rows of the history that a function needs."""
        if call.name == "lag":
            pool.want(mine.number - call.offset)
        if not _framed(call):
            return
        frame, lo, hi = _inner(call), bounds[_inner(call)].lo, bounds[_inner(call)].hi
        if frame != call.frame:
            pool.want(mine.number - call.frame.end)
        if call.name in PICKS:
            if call.name == "last_value":
                pool.want(np.where(lo <= hi, hi, -1))
            elif frame.start is not None:
                pool.want(np.where(lo + _nth(call) - 1 <= hi, lo + _nth(call) - 1, -1))
        elif call.args:
            if frame.start is not None:
                pool.want(lo)
            if frame.end > 0:
                pool.want(np.where(hi >= 0, hi + 1, -1))
                if call.name in ("min", "max"):
                    pool.want(hi)

    # ---- what rows carry

    def _carry(
        self,
        mine: PartitionedRows,
        arrays: dict[Expr, pa.Array],
        newest: tuple[pa.Array, ...],
        fresh: list[Any],
        after: dict[Expr, dict[str, Any]],
    ) -> None:
        """Fill in the columns of the slice's rows, on top of the last rows of the histories.

        ``after`` is what is known after each row: what it carries, and itself.
        """
        if self._dense is not None:
            new = np.zeros(len(mine), np.int64)
            new[1:] = mine.time[1:] != mine.time[:-1]
            new[mine.starts] = 1
            before = integers(newest[self._dense])
            fresh[self._dense] = segmented_cumsum(new, mine.starts) + before[mine.group]
        for argument in self._arguments:
            places, values = argument.places, arrays[argument.expr]
            if "value" in places:
                fresh[places["value"]] = values
            if "count" in places:
                last = newest[places["value"]]
                there = valid_count(values)
                before = integers(newest[places["count"]]) + valid_count(last)
                total = segmented_cumsum(there, mine.starts) + before[mine.group]
                fresh[places["count"]] = total - there
                after[argument.expr]["count"] = total
            if argument.measure.sums:
                after[argument.expr] |= self._carry_sums(argument, mine, newest, fresh)
            for part in ("min", "max"):
                if part in places:
                    fresh[places[part]] = best_so_far(
                        mine, values, newest[places[part]], part == "max"
                    )
            for part, place in places.items():
                if part.startswith("nth "):
                    number = int(part[4:]) - 1
                    fresh[place] = mine.spread(nth_row(mine, values, newest[place], number))
            for part, carry in (("last", last_there), ("first", first_there)):
                if part in places:
                    value, number_at = places[part], places[f"{part} number"]
                    fresh[value], fresh[number_at] = carry(
                        mine, values, newest[value], newest[number_at]
                    )

    def _carry_sums(
        self,
        argument: _Argument,
        mine: PartitionedRows,
        newest: tuple[pa.Array, ...],
        fresh: list[Any],
    ) -> dict[str, Digits]:
        """Fill in the exact sums before each row, and return those after it."""
        places, measure = argument.places, argument.measure
        after = {}
        values = numbers(*measure.store([fresh[places["value"]]]))
        last = numbers(*measure.store([newest[places["value"]]]))
        for part, split in measure.splits:
            base = added(exact.unpack(newest[places[part]]), split([last], None))
            own = split([values], None)
            total = running_digits(own, mine.starts, mine.group, base)
            fresh[places[part]] = added(total, own, -1)
            after[part] = total
        return after

    def _remember(self, mine: PartitionedRows, fresh: list[Any], until: int) -> None:
        """Keep the rows that later ones may look back at."""
        keep = self._history.needed(mine.starts, mine.number, mine.time, until)
        at = np.flatnonzero(keep)
        index = pa.array(at)
        columns = []
        for column in fresh:
            if isinstance(column, dict):
                columns.append(exact.pack(exact.normalise(picked(column, at)), len(at)))
            elif isinstance(column, np.ndarray):
                columns.append(pa.array(column[at]))
            else:
                columns.append(column.take(index))
        keys = mine.keys.take(mine.group[at])
        self._history.append(keys, mine.number[at], mine.time[at], columns)

    # ---- answers

    def _answer(self, call: OverCall, argument: _Argument | None, work: _Work) -> pa.Array:
        mine = work.rows
        match call.name:
            case "row_number":
                return pa.array(mine.number + 1)
            case "rank":
                new = np.ones(len(mine), bool)
                new[1:] = mine.time[1:] != mine.time[:-1]
                new[mine.starts] = True
                first = np.maximum.accumulate(np.where(new, np.arange(len(mine)), 0))
                return pa.array(mine.number[first] + 1)
            case "dense_rank":
                assert self._dense is not None
                return pa.array(work.fresh[self._dense])
        if call.name == "lag":
            assert argument is not None
            number = mine.number - call.offset
            return work.value(argument, "value", number, number >= 0)
        if argument is not None and _inner(call) != call.frame:
            number = mine.number - call.frame.end
            return work.value(argument, _part(call), number, number >= 0)
        if argument is not None and call.name in PICKS:
            return self._pick(call, argument, work.bounds[call.frame], work)
        return self._over_frame(call, argument, work)

    def _over_frame(self, call: OverCall, argument: _Argument | None, work: _Work) -> pa.Array:
        """Return an aggregate over the frames."""
        bounds = work.bounds[_inner(call)]
        rows = bounds.hi - bounds.lo + 1
        if argument is None:
            return pa.array(rows)
        parts = work.parts(argument, bounds, call.name)
        made = result(call.name, call.type, argument.measure, parts, rows)
        return made.make(np.arange(len(rows)))

    def _pick(self, call: OverCall, argument: _Argument, bounds: _Bounds, work: _Work) -> pa.Array:
        lo, hi = bounds.lo, bounds.hi
        if call.name == "last_value":
            if not call.ignore_nulls:
                return work.value(argument, "value", hi, hi >= lo)
            found = work.value(argument, "last", hi, hi >= lo)
            number = integers(work.value(argument, "last number", hi, hi >= lo))
            return pc.if_else(pa.array(number >= lo), found, pa.scalar(None, found.type))
        if call.ignore_nulls:
            found = work.fresh[argument.places["first"]]
            number = work.fresh[argument.places["first number"]]
            return pc.if_else(pa.array(number <= hi), found, pa.scalar(None, found.type))
        place = lo + _nth(call) - 1
        if bounds.frame.start is None:
            found = work.fresh[argument.places[f"nth {_nth(call)}"]]
            return pc.if_else(pa.array(place <= hi), found, pa.scalar(None, found.type))
        return work.value(argument, "value", place, place <= hi)


@dataclass
class _Work:
    """A slice with everything that answers are made of."""

    rows: PartitionedRows
    pool: Pool
    bounds: dict[Frame, _Bounds]
    arrays: dict[Expr, pa.Array]
    fresh: list[Any]
    after: dict[Expr, dict[str, Any]]
    history: Histories
    extremes: list[tuple[int, bool]]
    _known: dict[tuple[Expr, Frame], dict[str, Any]] = field(default_factory=dict)

    def value(self, argument: _Argument, part: str, number: I64, there: Mask) -> pa.Array:
        """Return a column at the rows with these numbers, null where they are not there."""
        place = argument.places[part]
        fresh = self.fresh[place]
        column = self.pool.column(place, fresh if isinstance(fresh, pa.Array) else pa.array(fresh))
        at = np.where(there, self.pool.at(np.where(there, number, self.rows.number)), 0)
        return column.take(pa.array(at, mask=None if there.all() else ~there))

    def parts(self, argument: _Argument, bounds: _Bounds, name: str) -> dict[str, Any]:
        """Return the parts of an argument (`kernels.measures`) over the frames."""
        known = self._known.setdefault((argument.expr, bounds.frame), {})
        wanted = ["count"]
        if name in ("sum", "avg", *_VARIANCES):
            wanted.append("sum")
        if name in _VARIANCES:
            wanted.append("square")
        for part in wanted:
            if part not in known:
                known[part] = self._between(argument, bounds, part)
        if name in ("min", "max") and name not in known:
            known[name] = self._extreme(argument, bounds, name)
        return known

    def _between(self, argument: _Argument, bounds: _Bounds, part: str) -> Any:
        """Return what lies between the two ends of each frame: a count, or exact numbers."""
        place, frame = argument.places[part], bounds.frame
        after = self.after[argument.expr][part]
        if part == "count":
            after = {0: after}
            before = {0: integers(self.pool.column(place, pa.array(self.fresh[place])))}
        else:
            before = self.pool.digits(place, self.fresh[place])
        none = bounds.hi < 0  # then there is no row behind the frame, nor is one asked for
        if frame.end > 0:
            found = picked(before, self.pool.at(np.where(none, self.rows.number, bounds.hi + 1)))
        elif frame.unit == "rows":
            found = after
        else:
            found = picked(after, self.rows.place(bounds.hi))
        if frame.start is not None:
            lo = self.pool.at(np.where(none, self.rows.number, bounds.lo))
            found = added(found, picked(before, lo), -1)
        elif none.any():
            found = {b: np.where(none, 0, d) for b, d in found.items()}
        return found[0] if part == "count" else found

    def _extreme(self, argument: _Argument, bounds: _Bounds, name: str) -> Extreme:
        largest = name == "max"
        mine, frame = self.rows, bounds.frame
        if frame.start is None:
            values = self.value(argument, name, bounds.hi, bounds.hi >= 0)
            least, rank, plain = ranked(values, largest)
            return Extreme(least, plain, rank, largest)
        values = self.arrays[argument.expr]
        base = mine.base[mine.group]
        past = np.flatnonzero(bounds.lo < base)
        owner, old = np.empty(0, np.int64), values.slice(0, 0)
        codes = owner
        if len(past):
            span = int((base - bounds.lo)[past].max()) + 1
            codes, owner_of = np.unique(
                mine.group[past] * span + (base - bounds.lo)[past], return_inverse=True
            )
            group = codes // span
            which = self.extremes.index((argument.places["value"], largest))
            owner, old = self.history.best(group, mine.base[group] - codes % span, which)
        rank, plain_rank, plain = ranked(pa.concat_arrays([values, old]), largest)
        fresh = rank[: len(values)]
        first = mine.place(np.maximum(bounds.lo, base))
        least = least_in(fresh, first, mine.place(bounds.hi))
        if len(past):
            best = np.full(len(codes), INF, np.int64)
            np.minimum.at(best, owner, rank[len(values) :])
            least[past] = np.minimum(least[past], best[owner_of])
        return Extreme(least, plain, plain_rank, largest)


def _with_default(call: OverCall, made: pa.Array, mine: PartitionedRows, batch: Batch) -> pa.Array:
    """Put the default of LAG, which is evaluated nowhere else, where there is no such row."""
    at = np.flatnonzero(mine.number < call.offset)
    if len(at) == 0:
        return made
    default = evaluate(call.args[1], batch.take(mine.order[at]).columns, len(at))
    index = np.arange(len(mine))
    index[at] = len(mine) + np.arange(len(at))
    return pa.concat_arrays([made, default]).take(pa.array(index))


def _framed(call: OverCall) -> bool:
    return call.name not in (*ORDINALS, "lag")


def _nth(call: OverCall) -> int:
    return call.offset if call.name == "nth_value" else 1


def _inner(call: OverCall) -> Frame:
    """Return the frame that a function is computed over.

    The best of the rows ``[i - start, i - end]`` is what row ``i - end`` has over its own frame.
    """
    frame = call.frame
    if call.name in ("min", "max") and frame.start is not None and frame.end > 0:
        return Frame(frame.unit, frame.start - frame.end)
    return frame


def _part(call: OverCall) -> str:
    """Return the name under which rows carry the best of their own frame."""
    return f"{call.name} over {_inner(call).start}"


def _check_extreme(call: OverCall) -> None:
    frame = call.frame
    if frame.unit == "range" and frame.start is not None and frame.end > 0:
        raise NotSupportedError(
            f"{call.name.upper()} over RANGE BETWEEN must end at CURRENT ROW, unless it begins at "
            f"UNBOUNDED PRECEDING"
        )


def _reach(calls: Sequence[OverCall]) -> Reach:
    """Return how far back the functions look."""
    rows, time, before = 0, None, False
    for call in calls:
        frame = call.frame
        if call.name in ORDINALS:
            rows = max(rows, 1)
        elif call.name == "lag":
            rows = max(rows, call.offset, 1)
        elif frame.unit == "rows":
            rows = max(rows, frame.end, 1 if frame.start is None else frame.start)
        elif frame.start is not None:
            time = max(time or 0, frame.start)
        else:
            rows = max(rows, 1)
            if frame.end > 0:
                time, before = max(time or 0, frame.end), True
    return Reach(rows, time, before)
