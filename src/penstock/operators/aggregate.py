"""GROUP BY: one row per group and maximal interval with constant results.

Every row of the input is two events of its group, one at its start and one at its end.  Sorted by
group and time they make the *steps* at which results may change (`kernels.counts`).  Counts and
sums are running sums of exact digits (`kernels.exact`), on top of what the group had before the slice;
MIN and MAX come from a sweep over the steps (`kernels.sweep`), into which old rows that outlive the
slice enter as one extreme per group (`runs.extremes`); COUNT DISTINCT counts how often the count of a
value in its group leaves or reaches zero.  So a batch costs what it brings and ends, not what lives.

Neighbouring steps with equal results are joined, also across slices: the first step of a group is the
one before the slice, whose results follow from the state.  The last row of a group is open: its
holder is told in the slice in which the result changes.

Of a live row only its key's hash and its arguments are kept (`Lifetimes`).  With ``panes``, rows of one
group, start and end, as windows with SLIDE make them, are first added up to one partial row, whose
exact digits, counts and extremes stand in the place of values.  Results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import NotSupportedError
from penstock.expr.arrow import evaluate
from penstock.expr.nodes import AggregateCall, Expr
from penstock.kernels import exact
from penstock.kernels.counts import (
    Steps,
    group_codes,
    integers,
    key_codes,
    order_events,
)
from penstock.kernels.exact import PACKED, Digits
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import ordered, ordered_type, range_minimum, ranks, restored
from penstock.model import I64, INF, Batch, Ends, Mask, to_mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.runs.extremes import Extremes
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes

_LANES = (pa.uint64(), pa.uint64())
_VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")


@dataclass(frozen=True)
class _Work:
    """One slice: births and deaths as stored, the groups they touch, and the events in order."""

    births: Batch
    deaths: Batch
    keys: Keys
    found: Mask
    old: tuple[pa.Array, ...]
    birth_code: I64
    death_code: I64
    steps: Steps
    sign: I64
    lasting: Mask
    since: int
    until: int

    @property
    def groups(self) -> int:
        return len(self.keys)

    @property
    def virtual(self) -> I64:
        """Where the old event of each group stands in the order of events."""
        return self.steps.first[self.steps.begin]

    def in_order(self, births: npt.NDArray[Any], deaths: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of births and deaths in the order of events, 0 at the old ones."""
        none = np.zeros(self.groups, births.dtype)
        result: npt.NDArray[Any] = np.concatenate((none, births, deaths))[self.steps.order]
        return result

    def running(self, changes: I64, old: I64) -> I64:
        """Return running sums at each step; ``changes`` are signed and in the order of events."""
        changes[self.virtual] = old
        return self.steps.running(changes)

    def running_digits(self, changes: Digits, old: Digits) -> Digits:
        result: Digits = {}
        none, nothing = np.zeros(self.groups, np.int64), np.zeros(len(self.sign), np.int64)
        for bin_ in sorted(set(changes) | set(old)):
            change = changes[bin_] if bin_ in changes else nothing.copy()
            result[bin_] = self.running(change, old.get(bin_, none))
        return result


class AggregateOperator(SlicedOperator):
    """Aggregates per group; with no keys, the global aggregate, which must run in one shard."""

    def __init__(
        self,
        types: Sequence[pa.DataType],
        keys: tuple[Expr, ...],
        aggregates: tuple[AggregateCall, ...],
        panes: bool,
    ) -> None:
        super().__init__([types])
        self._keys = keys
        self._aggregates = aggregates
        self._measures: list[Measure] = []
        self._argument_of: list[int | None] = []
        for call in aggregates:
            self._argument_of.append(None if call.arg is None else self._require(call))
        self._panes = panes and not any(a.distinct for a in self._measures)
        self._extreme = any(a.smallest or a.largest for a in self._measures)
        self._row_types = self._layout_rows()
        self._group_types = self._layout_groups()

    def _require(self, call: AggregateCall) -> int:
        assert call.arg is not None
        found = next((i for i, a in enumerate(self._measures) if a.expr == call.arg), None)
        if found is None:
            found = len(self._measures)
            self._measures.append(Measure(call.arg))
        argument = self._measures[found]
        match call.name:
            case "sum" | "avg":
                argument.sums = True
            case name if name in _VARIANCES:
                argument.sums = argument.squares = True
            case "min":
                argument.smallest = True
            case "max":
                argument.largest = True
            case "count_distinct":
                argument.distinct = True
            case "count":
                pass
            case name:
                raise NotSupportedError(f"there is no aggregate '{name}'")
        kind = call.arg.type
        if argument.sums and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise NotSupportedError(
                f"the argument of {call.name.upper()} must be a number, got {kind}; cast it"
            )
        if argument.smallest or argument.largest:
            ordered_type(kind)
        return found

    def _layout_rows(self) -> list[pa.DataType]:
        """Return the columns of a live row, and note where each argument's parts are."""
        types: list[pa.DataType] = list(_LANES) if self._keys else []

        def add(argument: Measure, part: str, kind: pa.DataType) -> None:
            argument.place[part] = len(types)
            types.append(kind)

        if self._panes:
            types.append(pa.int64())
        for argument in self._measures:
            if self._panes:
                add(argument, "count", pa.int64())
                if argument.sums:
                    add(argument, "sum", PACKED)
                if argument.squares:
                    add(argument, "square", PACKED)
                if argument.smallest:
                    add(argument, "min", ordered_type(argument.expr.type))
                if argument.largest:
                    add(argument, "max", ordered_type(argument.expr.type))
                continue
            if argument.valued:
                add(argument, "value", argument.stored_type())
            elif not argument.distinct:
                add(argument, "valid", pa.bool_())
            if argument.distinct:
                add(argument, "high", pa.uint64())
                add(argument, "low", pa.uint64())
        if self._extreme:
            types.append(pa.bool_())
        return types

    def _layout_groups(self) -> list[pa.DataType]:
        """Return the columns of a group: key, holder, rows, then the parts of each argument."""
        types = [k.type for k in self._keys] + [pa.int64(), pa.int64()]
        for argument in self._measures:
            parts = [("count", pa.int64(), True), ("sum", PACKED, argument.sums)]
            parts += [
                ("square", PACKED, argument.squares),
                ("distinct", pa.int64(), argument.distinct),
            ]
            for part, kind, wanted in parts:
                if wanted:
                    argument.held[part] = len(types)
                    types.append(kind)
        return types

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._groups = KeyedState(state, "groups", self._group_types, merging)
        self._live = Lifetimes(state, "rows", self._row_types, merging, keep_forever=False)
        self._extremes: dict[tuple[int, bool], Extremes] = {}
        self._values: dict[int, KeyedState] = {}
        for i, argument in enumerate(self._measures):
            for largest in (False, True):
                if argument.largest if largest else argument.smallest:
                    self._extremes[i, largest] = Extremes(
                        state,
                        f"extremes.{i}.{'max' if largest else 'min'}",
                        ordered_type(argument.expr.type),
                        largest,
                        merging,
                    )
            if argument.distinct:
                self._values[i] = KeyedState(state, f"values.{i}", [pa.int64()], merging)

    def save(self) -> None:
        self._groups.save()
        self._live.save()
        for extremes in self._extremes.values():
            extremes.save(self.since)
        for values in self._values.values():
            values.save()

    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        told = ends[0]
        batch = rows[0]
        if len(batch):
            end = np.minimum(batch.end, told.lookup(batch.holder)) if len(told) else batch.end
            real = batch.start < end
            batch = batch if real.all() else batch.take(real)
        arrays = [evaluate(k, batch.columns, len(batch)) for k in self._keys]
        code, keys, values = group_codes(arrays, len(batch))
        births, code = self._stored(batch, code, keys)
        deaths = self._live.turn(births, told, until)
        if len(births) + len(deaths) == 0:
            return
        lasting = np.minimum(births.end, told.lookup(births.holder)) >= until
        work, new_of_group = self._work(births, deaths, code, keys, lasting, since, until)
        key_values = [
            pa.concat_arrays([old, new]).take(
                pa.array(np.where(work.found, np.arange(work.groups), work.groups + new_of_group))
            )
            for old, new in zip(work.old, values, strict=False)
        ]
        yield from self._results(work, key_values)

    def _work(
        self,
        births: Batch,
        deaths: Batch,
        code: I64,
        keys: Keys,
        lasting: Mask,
        since: int,
        until: int,
    ) -> tuple[_Work, I64]:
        """Find the groups of all events and sort the events; also say which new key is a group's."""
        if self._keys:
            lanes = Keys(to_numpy(deaths.columns[0]), to_numpy(deaths.columns[1]))
            codes, groups = key_codes(Keys.concat([keys, lanes]))
        else:
            groups = hash_columns([], 1)
            codes = np.zeros(len(keys) + len(deaths), np.int64)
        birth_code, death_code = codes[: len(keys)][code], codes[len(keys) :]
        new_of_group = np.zeros(len(groups), np.int64)
        new_of_group[codes[: len(keys)]] = np.arange(len(keys))
        found, old = self._groups.get(groups)
        count = len(groups)
        none = np.zeros(count, np.int64)
        steps = order_events(
            np.concatenate((np.arange(count), birth_code, death_code)),
            np.concatenate((none, births.start, deaths.end)),
            count,
        )
        sign = np.where(steps.order < count + len(births), 1, -1)
        sign[steps.first[steps.begin]] = 0
        work = _Work(
            births,
            deaths,
            groups,
            found,
            old,
            birth_code,
            death_code,
            steps,
            sign,
            lasting,
            since,
            until,
        )
        return work, new_of_group

    # -- what is kept of a row --------------------------------------------------------------

    def _stored(self, batch: Batch, code: I64, keys: Keys) -> tuple[Batch, I64]:
        """Return the rows as they are kept, and their codes."""
        count = len(batch)
        arrays = [self._argument(a, batch) for a in self._measures]
        if self._panes:
            return self._partials(batch, code, keys, arrays)
        columns: list[pa.Array] = []
        if self._keys:
            columns += [pa.array(keys.high[code]), pa.array(keys.low[code])]
        for argument, array in zip(self._measures, arrays, strict=True):
            if argument.valued:
                columns.append(array)
            elif not argument.distinct:
                columns.append(array.is_valid())
            if argument.distinct:
                plain = evaluate(argument.expr, batch.columns, count)
                pair, _, parts = group_codes([pa.array(code), plain], count)
                of = parts[0].to_numpy()
                lanes = [pa.array(keys.high[of]), pa.array(keys.low[of]), parts[1]]
                pairs = hash_columns(lanes, len(of)).take(pair)
                missing = to_mask(plain.is_null())
                columns += [pa.array(pairs.high, mask=missing), pa.array(pairs.low, mask=missing)]
        if self._extreme:
            columns.append(pa.array(batch.holder != 0))
        return Batch(tuple(columns), batch.start, batch.end, batch.holder), code

    def _argument(self, argument: Measure, batch: Batch) -> pa.Array:
        array = evaluate(argument.expr, batch.columns, len(batch))
        if argument.valued:
            kind = argument.stored_type()
            return array.cast(kind) if argument.is_float or argument.sums else ordered(array)
        return array

    def _partials(
        self, batch: Batch, code: I64, keys: Keys, arrays: list[pa.Array]
    ) -> tuple[Batch, I64]:
        """Add up the rows that share group, start, end and holder."""
        pane, total = code, max(len(keys), 1)
        for times in (batch.start, batch.end, batch.holder):
            if len(times) and (times[0] != times).any():
                encoded = pa.array(times).dictionary_encode()
                size = len(encoded.dictionary)
                pane = pane * size + encoded.indices.to_numpy()
                total *= size
                if total > 4 * len(pane):
                    packed = pa.array(pane).dictionary_encode()
                    pane, total = packed.indices.to_numpy().astype(np.int64), len(packed.dictionary)
        small = pane.astype(np.uint16) if total <= 1 << 16 else pane
        order = np.argsort(small, kind="stable")
        starts = group_starts(pane[order])
        head = order[starts]
        sizes = np.diff(np.append(starts, len(order)))
        columns: list[pa.Array] = []
        if self._keys:
            columns += [pa.array(keys.high[code[head]]), pa.array(keys.low[code[head]])]
        columns.append(pa.array(sizes))
        for argument, array in zip(self._measures, arrays, strict=True):
            columns += self._partial(argument, array, order, starts, sizes)
        if self._extreme:
            columns.append(pa.array(batch.holder[head] != 0))
        stored = Batch(tuple(columns), batch.start[head], batch.end[head], batch.holder[head])
        return stored, code[head]

    # -- results ----------------------------------------------------------------------------

    def _results(self, work: _Work, key_values: list[pa.Array]) -> Iterator[Batch | Ends]:
        steps, width = work.steps, len(self._keys)
        old_holder = integers(work.old[width])
        old_rows = integers(work.old[width + 1])
        if self._panes:
            place = 2 if self._keys else 0
            weight = work.in_order(
                integers(work.births.columns[place]), integers(work.deaths.columns[place])
            )
            rows = work.running(weight * work.sign, old_rows)
        else:
            rows = work.running(work.sign.copy(), old_rows)
        parts = [self._accumulate(i, work, old_rows, rows) for i in range(len(self._measures))]
        results = [
            self._result(
                call, *((None, {}) if at is None else (self._measures[at], parts[at])), rows
            )
            for call, at in zip(self._aggregates, self._argument_of, strict=True)
        ]
        old = steps.old
        there = rows > 0
        if not self._keys:
            there = ~old
            there[steps.begin] = work.found
        differs = there[1:] != there[:-1]
        for result in results:
            differs |= result.valid[1:] != result.valid[:-1]
            differs |= (result.values[1:] != result.values[:-1]) & result.valid[1:]
        kept_mask = old.copy()
        kept_mask[1:] |= differs & (there[1:] | there[:-1])
        kept = np.flatnonzero(kept_mask)
        last = np.ones(len(kept), bool)
        last[:-1] = old[kept[1:]]
        following = np.append(steps.time[kept[1:]], INF)
        was_old, is_there = old[kept], there[kept]
        finished = was_old & is_there & ~last
        if finished.any():
            yield Ends.of(old_holder[steps.code[kept[finished]]], following[finished])
        emitted = is_there & ~was_old
        open_ = emitted & last
        holder = np.zeros(len(kept), np.int64)
        holder[open_] = self.context.new_holders(int(open_.sum()))
        at = kept[emitted]
        if len(at):
            group = pa.array(steps.code[at])
            columns = [c.take(group) for c in key_values] + [r.make(at) for r in results]
            yield Batch(
                tuple(columns),
                steps.time[at],
                np.where(open_, INF, following)[emitted],
                holder[emitted],
            )
        holder[was_old] = old_holder[steps.code[kept[was_old]]]
        holder[~is_there] = 0
        self._keep(work, key_values, holder[last], rows, parts)

    def _keep(
        self,
        work: _Work,
        key_values: list[pa.Array],
        holder: I64,
        rows: I64,
        parts: list[dict[str, Any]],
    ) -> None:
        """Write the groups as they are after the last step of each."""
        at = work.steps.finish - 1
        columns = [*key_values, pa.array(holder), pa.array(rows[at])]
        for argument, part in zip(self._measures, parts, strict=True):
            for name in argument.held:
                value = part[name]
                if isinstance(value, dict):
                    digits = exact.normalise({b: d[at] for b, d in value.items()})
                    columns.append(exact.pack(digits, len(at)))
                else:
                    columns.append(pa.array(value[at]))
        self._groups.put(work.keys, columns, rows[at] > 0 if self._keys else None)

    def _accumulate(self, index: int, work: _Work, old_rows: I64, rows: I64) -> dict[str, Any]:
        """Return the parts of an argument at every step: count, sum, square, distinct, min, max."""
        argument = self._measures[index]
        place, held = argument.place, argument.held
        old_count = integers(work.old[held["count"]])
        parts: dict[str, Any] = {}
        if self._panes:
            counts = work.in_order(*(integers(b.columns[place["count"]]) for b in _both(work)))
            parts["count"] = work.running(counts * work.sign, old_count)
            for part in ("sum", "square"):
                if part in place:
                    columns = [b.columns[place[part]] for b in _both(work)]
                    none = pa.ListArray.from_arrays(
                        pa.array(np.zeros(work.groups + 1, np.int32)), pa.array([], pa.int64())
                    )
                    digits = exact.unpack(pa.concat_arrays([none, *columns]))
                    changes = {b: d[work.steps.order] * work.sign for b, d in digits.items()}
                    parts[part] = work.running_digits(changes, exact.unpack(work.old[held[part]]))
        else:
            arrays = [b.columns[place[_presence(argument)]] for b in _both(work)]
            valids = [_valid(a) for a in arrays]
            if all(v is None for v in valids) and (old_count == old_rows).all():
                parts["count"] = rows
            else:
                masks = [
                    np.ones(len(a), bool) if v is None else v
                    for a, v in zip(arrays, valids, strict=True)
                ]
                parts["count"] = work.running(work.in_order(*masks) * work.sign, old_count)
            if argument.sums:
                values = work.in_order(*(_numbers(a) for a in arrays))
                for part, split in zip(("sum", "square"), _splits(argument), strict=False):
                    changes = split(values, work.sign)
                    parts[part] = work.running_digits(changes, exact.unpack(work.old[held[part]]))
        if argument.distinct:
            parts["distinct"] = self._count_distinct(index, work)
        for largest, wanted in ((False, argument.smallest), (True, argument.largest)):
            if wanted:
                parts["max" if largest else "min"] = self._sweep(index, largest, work)
        return parts

    def _count_distinct(self, index: int, work: _Work) -> I64:
        """Return the number of distinct values at every step."""
        argument = self._measures[index]
        lanes = [
            pa.concat_arrays([b.columns[argument.place[part]] for b in _both(work)])
            for part in ("high", "low")
        ]
        valid = np.flatnonzero(to_mask(lanes[0].is_valid()))
        high, low = (to_numpy(lane.take(pa.array(valid))) for lane in lanes)
        code, pairs = key_codes(Keys(high, low))
        count = len(pairs)
        _, old = self._values[index].get(pairs)
        time = np.concatenate((work.births.start, work.deaths.end))[valid]
        change = np.concatenate((np.ones(len(work.births), np.int64), -np.ones(len(work.deaths))))
        steps = order_events(
            np.concatenate((np.arange(count), code)),
            np.concatenate((np.zeros(count, np.int64), time)),
            count,
        )
        changes = np.concatenate((integers(old[0]), change[valid])).astype(np.int64)
        copies = steps.running(changes[steps.order])
        there = (copies > 0).astype(np.int64)
        crossing = np.zeros(len(there), np.int64)
        crossing[1:] = there[1:] - there[:-1]
        crossing[steps.begin] = 0
        crossed = np.flatnonzero(crossing)
        event = valid[steps.order[steps.first[crossed]] - count]
        delta = np.zeros(work.groups + len(work.births) + len(work.deaths), np.int64)
        delta[work.groups + event] = crossing[crossed]
        at_end = copies[steps.finish - 1] if count else copies
        self._values[index].put(pairs, [pa.array(at_end)], at_end > 0)
        old_distinct = integers(work.old[argument.held["distinct"]])
        return work.running(delta[work.steps.order], old_distinct)

    def _sweep(self, index: int, largest: bool, work: _Work) -> _Extreme:
        """Return the extreme at every step, and write down what can be one later."""
        argument, steps = self._measures[index], work.steps
        store = self._extremes[index, largest]
        part = ("max" if largest else "min") if self._panes else "value"
        births, deaths = (
            c if self._panes else ordered(c)
            for c in (b.columns[argument.place[part]] for b in _both(work))
        )
        stay = np.flatnonzero(work.lasting & to_mask(births.is_valid()))
        leave = np.flatnonzero(to_mask(deaths.is_valid()))
        births, deaths = births.take(pa.array(stay)), deaths.take(pa.array(leave))
        owner, best = store.best(work.keys, work.until)
        values = pa.concat_arrays([births, deaths, best])
        rank = ranks(values, largest)
        event = steps.step_of_events()
        birth_code, death_code = work.birth_code[stay], work.death_code[leave]
        started = work.deaths.start[leave]
        fresh = started >= work.since
        first_of_death = steps.begin[death_code]
        first_of_death[fresh] = steps.find(death_code[fresh], started[fresh])
        first = (event[work.groups + stay], first_of_death, steps.begin[owner])
        last_of_death = event[work.groups + len(work.births) + leave]
        last = (steps.finish[birth_code], last_of_death, steps.finish[owner])
        least = range_minimum(np.concatenate(first), np.concatenate(last), rank, len(steps))

        held = work.births.holder[stay] != 0
        known = np.flatnonzero(~held)
        store.add_known(
            work.keys.take(birth_code[known]),
            work.births.end[stay][known],
            births.take(pa.array(known)),
        )
        came = np.flatnonzero(held)
        went = np.flatnonzero(to_mask(work.deaths.columns[-1])[leave] & ~fresh)
        store.change_open(
            work.keys.take(np.concatenate((birth_code[came], death_code[went]))),
            pa.concat_arrays([births.take(pa.array(came)), deaths.take(pa.array(went))]),
            np.concatenate((np.ones(len(came), np.int64), np.full(len(went), -1))),
        )
        return _Extreme(least, values, rank, largest)


def _both(work: _Work) -> tuple[Batch, Batch]:
    return work.births, work.deaths
