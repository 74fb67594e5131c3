"""GROUP BY: one row per group and maximal interval with constant results.

Every row of the input is two events of its group, one at its start and one at its end.  Sorted by
group and time they make the *steps* at which results may change (`kernels.counts`).  Counts and
sums are running sums of exact digits (`kernels.exact`), on top of what the group had before the
slice; MIN and MAX come from a sweep over the steps (`kernels.sweep`), into which old rows that
outlive the slice enter as one extreme per group (`runs.extremes`); with DISTINCT only those events
count with which the number of copies of a value leaves or reaches zero (`runs.copies`), and MODE is
the extreme of these numbers; percentiles read the values near their places (`runs.ranked`).  So a
batch costs what it brings and ends, not what lives.

Neighbouring steps with equal results are joined, also across slices: the first step of a group is
the one before the slice, whose results follow from the state.  The last row of a group is open:
its holder is told in the slice in which the result changes.

Of a live row only its key's hash and its arguments are kept (`Lifetimes`).  With negative tuples
nothing of it is, because the row comes back whole when it dies.  With ``panes``, rows of one group,
start and end, as windows with SLIDE make them, are first added up to one partial row, which has
exact digits, counts and extremes instead of values.  The results have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decimals import is_decimal
from penstock.errors import NotSupportedError
from penstock.expr.arrow import evaluate
from penstock.expr.library.aggregates import CANONICAL, PAIRS, PICKED, SHAPES, VARIANCES
from penstock.expr.nodes import AggregateCall, Cast, Column, Expr, Literal
from penstock.expr.own import is_own
from penstock.expr.own_aggregates import OwnAggregate
from penstock.kernels import exact
from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import group_codes, integers, key_codes, order_events
from penstock.kernels.exact import Digits
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.measures import Extreme, Measure, Result, numbers, result, validity
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import NONE, ordered, ordered_type, pair_type, range_minimum, ranks
from penstock.kernels.work import Work
from penstock.model import (
    I64,
    INF,
    Batch,
    Closed,
    Ends,
    Mask,
    Message,
    Settled,
    to_mask,
    to_numpy,
)
from penstock.operators.base import Columns, SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.copies import Copied, Copies, most_frequent
from penstock.runs.extremes import Extremes
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.listed import Listed, list_texts
from penstock.runs.own_groups import (
    argument_type,
    arguments,
    partial_states,
    recomputed,
    results_of,
    running_states,
)
from penstock.runs.ranked import Ranked, percentiles

_DOUBLES = (*VARIANCES, *PAIRS, *SHAPES)
"""Aggregates of DOUBLE only."""


@dataclass(frozen=True)
class AggregateSpec(Spec):
    """Aggregate per group of equal ``keys``; with ``panes``, rows of equal validity together.

    At the instants in ``renewed`` every row ends, and an equal one begins: no snapshot changes by
    that, and who reads the groups from such an instant on sees all of them.
    """

    types: Sequence[pa.DataType]
    keys: tuple[Expr, ...]
    aggregates: tuple[AggregateCall, ...]
    panes: bool
    renewed: tuple[int, ...] = ()

    key = "aggregate/1"
    tuned = frozenset(("renewed",))

    def build(self) -> AggregateOperator:
        return AggregateOperator(self)


class AggregateOperator(SlicedOperator):
    """Aggregates per group; with no keys, the global aggregate, which must run in one shard."""

    reads_deaths = True

    def __init__(self, spec: AggregateSpec) -> None:
        super().__init__([spec.types])
        self._keys = spec.keys
        self._aggregates = spec.aggregates
        self._renewed = spec.renewed
        self._forms: list[tuple[tuple[Expr, ...], pa.DataType | None, bool, bool]] = []
        self._measures: list[Measure] = []
        self._own: dict[int, OwnAggregate] = {}
        self._measure_of = [None if a.arg is None else self._require(a) for a in spec.aggregates]
        self._panes = spec.panes and all(m.adds_up for m in self._measures)
        self._extreme = any(m.directions for m in self._measures)
        self._outliving = self._extreme or any(not own.kept for own in self._own.values())
        self._row_types = self._layout_rows()
        self._group_types = self._layout_groups()

    def _require(self, call: AggregateCall) -> int:
        """Return the number of an argument, and note what an aggregate needs of it."""
        name, args = call.name, call.args
        kind = args[0].type
        if is_own(name):
            return self._require_own(call)
        if name not in CANONICAL:
            raise NotSupportedError(f"an aggregate is one of {', '.join(CANONICAL)}, got '{name}'")
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_decimal(kind)
        if name in ("sum", "avg", "percentile", *_DOUBLES) and not number:
            raise NotSupportedError(f"the argument of {name.upper()} must be a number, got {kind}")
        if name in ("percentile", "string_agg"):
            args = args[:1]
        if name in ("percentile", *_DOUBLES):
            args = tuple(a if pa.types.is_floating(a.type) else Cast(a, pa.float64()) for a in args)
        chosen = args[1].type if name in PICKED else None
        form = (args, chosen, name in PAIRS, call.distinct)
        known = [None if i in self._own else f for i, f in enumerate(self._forms)]
        if form not in known:
            self._forms.append(form)
            known.append(form)
            self._measures.append(Measure(args[0].type, *form[1:]))
        index = known.index(form)
        measure = self._measures[index]
        measure.require(name, _option(call))
        if measure.directions or measure.frequent:
            ordered_type(kind)
        return index

    def _require_own(self, call: AggregateCall) -> int:
        """Return the number of the arguments of an aggregate of the user's own."""
        own = OwnAggregate(call)
        kind = argument_type([arg.type for arg in call.args])
        self._forms.append((call.args, None, False, False))
        self._own[len(self._measures)] = own
        self._measures.append(
            Measure(kind, own=kind, own_state=own.state_type if own.kept else None)
        )
        return len(self._measures) - 1

    def _layout_rows(self) -> list[pa.DataType]:
        """Return the columns of a live row; a key's hash is first, whether it is open last."""
        types: list[pa.DataType] = [pa.uint64(), pa.uint64()] if self._keys else []
        if self._panes:
            types.append(pa.int64())
        for measure in self._measures:
            parts = measure.pane_parts if self._panes else measure.row_parts
            _lay_out(types, measure.place, parts)
        return [*types, pa.bool_()] if self._extreme else types

    def _layout_groups(self) -> list[pa.DataType]:
        """Return the columns of a group: key, holder, rows, then the parts of each argument."""
        types = [k.type for k in self._keys] + [pa.int64(), pa.int64()]
        for measure in self._measures:
            _lay_out(types, measure.held, measure.group_parts)
        return types

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._groups = KeyedState(state, "groups", self._group_types, merging)
        self._live = Lifetimes(state, "rows", self._row_types, merging, keep_forever=False)
        self._extremes: dict[tuple[int, bool], Extremes] = {}
        self._copies: dict[int, Copies] = {}
        self._modes: dict[int, Extremes] = {}
        self._ranked: dict[int, Ranked] = {}
        self._listed: dict[int, Listed] = {}
        for i, measure in enumerate(self._measures):
            for largest in measure.directions:
                name, kind = f"extremes.{i}.{_direction(largest)}", measure.extreme_type
                self._extremes[i, largest] = Extremes(state, name, kind, largest, merging)
            if measure.compared:
                self._copies[i] = Copies(state, f"values.{i}", merging)
            if measure.frequent:
                kind = pair_type(pa.int64(), ordered_type(measure.type))
                self._modes[i] = Extremes(state, f"modes.{i}", kind, True, merging)
            if measure.shares:
                self._ranked[i] = Ranked(state, f"ranked.{i}", merging)
            if measure.delimiters:
                self._listed[i] = Listed(state, f"listed.{i}", merging)
            if measure.own is not None and measure.own_state is None:
                self._listed[i] = Listed(state, f"listed.{i}", merging, measure.own)

    def save(self) -> None:
        self._groups.save()
        self._live.save()
        for extremes in (*self._extremes.values(), *self._modes.values()):
            extremes.save(self.since)
        for ranked in self._ranked.values():
            ranked.save(self.since)
        for listed in self._listed.values():
            listed.save(self.since)
        for copies in self._copies.values():
            copies.save()

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        until = self.inbox.progress(port, time)
        for at in self._renewed:
            if not self.since <= at < until:
                continue
            if self.since < at:
                yield from self.slice(self.inbox.take(at))
                self.inbox.since = at
            yield from self._renew(at)
        yield from super().on_progress(port, time)

    def _renew(self, at: int) -> Iterator[Batch | Ends]:
        """End all rows at an instant, and begin equal ones."""
        groups = self._groups.keys() if self._keys else hash_columns([], 1)
        found, before = self._groups.get(groups)
        count, width = len(groups), len(self._keys)
        if not found.any():
            return
        none, nothing = np.empty(0, np.int64), Batch.empty(self._row_types)
        work = Work(
            nothing, nothing, none, none, groups, found, before,
            order_events(np.arange(count), np.zeros(count, np.int64), count),
            np.zeros(count, np.int64), at, at,
        )  # fmt: skip
        rows = integers(before[width + 1])
        parts = [
            self._parts(i, work, np.empty(0, bool), rows, rows) for i in range(len(self._measures))
        ]
        there = np.flatnonzero((rows > 0) | (not self._keys))
        results = self._results_of(parts, rows)
        holder = integers(before[width]).copy()
        yield Ends.of(holder[there], np.full(len(there), at, np.int64))
        holder[there] = self.context.new_holders(len(there))
        index = pa.array(there)
        columns = [c.take(index) for c in before[:width]] + [r.make(there) for r in results]
        start, end = np.full(len(there), at, np.int64), np.full(len(there), INF, np.int64)
        yield Batch(tuple(columns), start, end, holder[there])
        self._groups.put(groups, [*before[:width], pa.array(holder), *before[width + 1 :]])

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        batch, told, brought = slice.rows[0], slice.ends[0], slice.deaths(0)
        if brought is not None:
            batch, new = Batch.concat([batch, brought.died()]), len(batch)
        else:
            batch = without_ghosts(batch, told)
        columns = [evaluate(k, batch.columns, len(batch)) for k in self._keys]
        code, keys, values = group_codes(columns, len(batch))
        births, code = self._stored(batch, code, keys)
        if brought is not None:
            births, deaths = births.slice(0, new), births.slice(new, len(births))
            death_group, code = code[new:], code[:new]
            old = deaths.slice(0, 0)
        else:
            old, own, end = self._live.turn_apart(births, told, slice.until)
            died, death_group = births.take(own), code[own]
            deaths = Batch.concat([old, Batch(died.columns, died.start, end, died.holder)])
        if len(births) + len(deaths) == 0:
            return
        if self._keys:
            lanes = Keys(to_numpy(old.columns[0]), to_numpy(old.columns[1]))
            codes, groups = key_codes(Keys.concat([keys, lanes]))
        else:
            groups = hash_columns([], 1)
            codes = np.zeros(len(keys) + len(old), np.int64)
        count, new_code = len(groups), codes[: len(keys)]
        birth_code = new_code[code]
        death_code = np.concatenate((codes[len(keys) :], new_code[death_group]))
        steps = order_events(
            np.concatenate((np.arange(count), birth_code, death_code)),
            np.concatenate((np.zeros(count, np.int64), births.start, deaths.end)),
            count,
        )
        sign = np.where(steps.order < count + len(births), 1, -1)
        sign[steps.first[steps.begin]] = 0
        found, before = self._groups.get(groups)
        work = Work(
            births, deaths, birth_code, death_code, groups, found, before, steps, sign,
            slice.since, slice.until,
        )  # fmt: skip
        source = np.arange(count)
        source[new_code] = count + np.arange(len(keys))
        source[found] = np.flatnonzero(found)
        key_values = [
            pa.concat_arrays([kept, new]).take(pa.array(source))
            for kept, new in zip(before, values, strict=False)
        ]
        yield from self._results(work, told, key_values)

    def uses_part(self, port: int, closed: Closed) -> bool:
        columns = [key.index for key in self._keys if isinstance(key, Column)]
        return not closed.numbered and closed.on == tuple(columns) and bool(columns)

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Forget groups of which nothing more comes and whose rows live for ever.

        Their results are final.  Groups whose rows still die are forgotten when they are empty.
        """
        width = len(self._keys)
        (on,) = self.parts_after(())
        ever = np.flatnonzero(closed.until == INF)
        if len(ever) == 0 or len(self._live):
            return
        keys = Keys(closed.high[ever], closed.low[ever])
        found, columns = self._groups.get(keys)
        there = np.flatnonzero(found)
        holder = integers(columns[width])[there]
        yield Settled(np.sort(holder[holder != 0]))
        nothing = [pa.nulls(len(there), t) for t in self._group_types]
        self._groups.put(keys.take(there), nothing, np.zeros(len(there), bool))
        yield Closed(on, keys.high, keys.low, closed.until[ever])

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        return [tuple(range(len(self._keys)))]

    def _stored(self, batch: Batch, code: I64, keys: Keys) -> tuple[Batch, I64]:
        """Return the rows as they are kept, and their codes."""
        count = len(batch)
        plain = [[evaluate(a, batch.columns, count) for a in args] for args, *_ in self._forms]
        if self._panes:
            return self._partials(batch, code, keys, plain)
        columns: list[pa.Array] = []
        if self._keys:
            columns += [pa.array(keys.high[code]), pa.array(keys.low[code])]
        for measure, arrays in zip(self._measures, plain, strict=True):
            if measure.own is not None:
                columns.append(arguments(arrays, measure.own))
            elif measure.valued:
                columns += measure.store(arrays)
            elif not measure.compared:
                columns.append(arrays[0].is_valid())
            if measure.compared:
                pair, _, (of, *values) = group_codes([pa.array(code), *arrays], count)
                group = to_numpy(of)
                lanes = (pa.array(keys.high[group]), pa.array(keys.low[group]), *values)
                found = hash_columns(lanes, len(group)).take(pair)
                missing = np.logical_or.reduce([to_mask(a.is_null()) for a in arrays])
                columns += [pa.array(found.high, mask=missing), pa.array(found.low, mask=missing)]
        if self._extreme:
            columns.append(pa.array(batch.holder != 0))
        return Batch(tuple(columns), batch.start, batch.end, batch.holder), code

    def _partials(
        self, batch: Batch, code: I64, keys: Keys, plain: list[list[pa.Array]]
    ) -> tuple[Batch, I64]:
        """Add up the rows that share group, start, end and holder."""
        pane, total = code, max(len(keys), 1)
        for times in (batch.start, batch.end, batch.holder):
            if len(times) and (times != times[0]).any():
                encoded = pa.array(times).dictionary_encode()
                pane = pane * len(encoded.dictionary) + encoded.indices.to_numpy()
                total *= len(encoded.dictionary)
                if total > 1 << 16:
                    packed = pa.array(pane).dictionary_encode()
                    pane, total = packed.indices.to_numpy().astype(np.int64), len(packed.dictionary)
        order = np.argsort(pane.astype(np.uint16) if total <= 1 << 16 else pane, kind="stable")
        starts = group_starts(pane[order])
        head = order[starts]
        columns: list[pa.Array] = []
        if self._keys:
            columns += [pa.array(keys.high[code[head]]), pa.array(keys.low[code[head]])]
        columns.append(pa.array(np.diff(np.append(starts, len(order)))))
        for i, (measure, arrays) in enumerate(zip(self._measures, plain, strict=True)):
            if measure.own is not None:
                values = arguments(arrays, measure.own)
                columns += measure.partial([values], order, starts)
                columns.append(partial_states(self._own[i], values, order, starts))
            else:
                columns += measure.partial(measure.store(arrays), order, starts)
        if self._extreme:
            columns.append(pa.array(batch.holder[head] != 0))
        stored = Batch(tuple(columns), batch.start[head], batch.end[head], batch.holder[head])
        return stored, code[head]

    def _results(
        self, work: Work, told: Ends, key_values: list[pa.Array]
    ) -> Iterator[Batch | Ends]:
        """Yield what the slice changed, and write the groups it touched."""
        steps, width = work.steps, len(self._keys)
        old_holder, old_rows = integers(work.old[width]), integers(work.old[width + 1])
        change = work.sign.copy()
        if self._panes:
            place = 2 if self._keys else 0
            change *= work.in_order(*(integers(c) for c in work.column(place)))
        rows = work.running(change, old_rows)
        lasting = np.ones(len(work.births), bool)
        if self._outliving:
            lasting = np.minimum(work.births.end, told.lookup(work.births.holder)) >= work.until
        parts = [self._parts(i, work, lasting, old_rows, rows) for i in range(len(self._measures))]
        results = self._results_of(parts, rows)
        there = rows > 0
        if not self._keys:  # from its first row on, the global aggregate is always there
            there[:] = True
            there[steps.begin] = work.found
        differs = there[1:] != there[:-1]
        for column in results:
            differs |= column.changes()
        if not there.all():
            differs &= there[1:] | there[:-1]
        changed = np.append(True, differs)
        changed[steps.begin] = True
        kept = np.flatnonzero(changed)
        first = np.searchsorted(kept, steps.begin)  # the old step of each group, among those kept
        last = np.append(first[1:], len(kept)) - 1
        time, is_there = steps.time[kept], there[kept]
        finished = is_there[first] & (first < last)
        if finished.any():
            yield Ends.of(old_holder[finished], time[first[finished] + 1])
        open_ = is_there[last] & (first < last)
        holder = np.where(first < last, 0, old_holder)
        holder[open_] = self.context.new_holders(int(open_.sum()))
        is_there[first] = False
        is_there[last[open_]] = False
        closed = np.flatnonzero(is_there)
        if len(closed) or open_.any():  # the open rows behind the others, so that both are slices
            at = kept[np.concatenate((closed, last[open_]))]
            start = np.concatenate((time[closed], time[last[open_]]))
            end = np.full(len(at), INF, np.int64)
            end[: len(closed)] = time[closed + 1]
            holders = np.zeros(len(at), np.int64)
            holders[len(closed) :] = holder[open_]
            group = pa.array(steps.code[at])
            columns = [c.take(group) for c in key_values] + [r.make(at) for r in results]
            yield Batch(tuple(columns), start, end, holders)
        self._keep(work, key_values, holder, rows, parts)

    def _results_of(self, parts: list[dict[str, Any]], rows: I64) -> list[Result]:
        """Return the results at every step."""
        found = []
        for call, index in zip(self._aggregates, self._measure_of, strict=True):
            if index is None:
                found.append(result(call.name, call.type, None, {}, rows))
            else:
                made = self._measures[index], parts[index], rows, _option(call)
                found.append(result(call.name, call.type, *made))
        return found

    def _keep(
        self,
        work: Work,
        key_values: list[pa.Array],
        holder: I64,
        rows: I64,
        parts: list[dict[str, Any]],
    ) -> None:
        """Write the groups as they are after the last step of each."""
        at = work.steps.finish - 1
        columns = [*key_values, pa.array(holder), pa.array(rows[at])]
        for index, (measure, part) in enumerate(zip(self._measures, parts, strict=True)):
            for name in measure.held:
                if name == "state":
                    own, states = self._own[index], part[name]
                    columns.append(own.packed({n: a[at] for n, a in states.items()}))
                elif name not in ("count", "distinct"):
                    digits = exact.normalise({b: d[at] for b, d in part[name].items()})
                    columns.append(exact.pack(digits, len(at)))
                else:
                    columns.append(pa.array(part[name][at]))
        self._groups.put(work.keys, columns, rows[at] > 0 if self._keys else None)

    def _parts(
        self, index: int, work: Work, lasting: Mask, old_rows: I64, rows: I64
    ) -> dict[str, Any]:
        """Return the parts of an argument at every step."""
        measure = self._measures[index]
        place, held = measure.place, measure.held
        old_count = integers(work.old[held["count"]])
        parts: dict[str, Any] = {}
        changes: dict[str, Digits] = {}
        copied = self._copied(index, work) if measure.compared else None
        if self._panes:
            counts = work.in_order(*(integers(c) for c in work.column(place["count"])))
            parts["count"] = work.running(counts * work.sign, old_count)
            for part, _ in measure.splits:
                none = exact.pack({}, len(work.keys))
                digits = exact.unpack(pa.concat_arrays([none, *work.column(place[part])]))
                changes[part] = {b: d[work.steps.order] * work.sign for b, d in digits.items()}
        else:
            weight = work.sign
            if copied is not None and measure.once:
                weight = copied.weight
                parts["count"] = work.running(weight.copy(), old_count)
            else:
                parts["count"] = self._counted(measure, work, old_count, old_rows, rows)
            if measure.splits:
                names = [name for name in ("value", "other") if name in place]
                values = [
                    work.in_order(*(numbers(a) for a in work.column(place[name]))) for name in names
                ]
                for part, split in measure.splits:
                    changes[part] = split(values, weight)
        for part, change in changes.items():
            parts[part] = work.running_digits(change, exact.unpack(work.old[held[part]]))
        if copied is not None and measure.distinct:
            old = integers(work.old[held["distinct"]])
            parts["distinct"] = work.running(copied.weight.copy(), old)
        if copied is not None and measure.frequent:
            values_ = ordered(pa.concat_arrays(work.column(place["value"])))
            parts["mode"] = most_frequent(self._modes[index], work, copied, values_)
        if copied is not None and measure.delimiters:
            given = pa.concat_arrays(work.column(place["value"]))
            texts = list_texts(self._listed[index], work, copied, given, measure.once)
            parts |= {f"texts {d}": texts.joined(d) for d in measure.delimiters}
        if measure.shares:
            found = self._percentiles(index, work, copied, parts["count"])
            parts |= {f"percentile {p}": v for p, v in zip(measure.shares, found, strict=True)}
        for largest in measure.directions:
            parts[_direction(largest)] = self._sweep(index, largest, work, lasting)
        if measure.own is not None:
            parts |= self._own_parts(index, work, lasting, parts["count"])
        return parts

    def _own_parts(self, index: int, work: Work, lasting: Mask, count: I64) -> dict[str, Any]:
        """Return the results of an aggregate of the user's own at every step, and its states."""
        measure, own = self._measures[index], self._own[index]
        if not own.kept:
            place = measure.place["value"]
            store = self._listed[index]
            return {"own": recomputed(own, store, work, place, lasting, count)}
        place = measure.place["state" if self._panes else "value"]
        old = work.old[measure.held["state"]]
        states = running_states(own, work, place, self._panes, old)
        return {"own": results_of(own, states, count), "state": states}

    def _percentiles(
        self, index: int, work: Work, copied: Copied | None, count: I64
    ) -> list[npt.NDArray[np.float64]]:
        """Return the percentiles of an argument at every step."""
        measure = self._measures[index]
        values = ordered(pa.concat_arrays(work.column(measure.place["value"])))
        weight = np.where(np.arange(len(values)) < len(work.births), 1, -1)
        if copied is not None and measure.once:
            given = np.empty(len(work.sign), np.int64)
            given[work.steps.order] = copied.weight
            weight = given[len(work.keys) :]
        weight = np.where(to_mask(values.is_valid()), weight, 0)
        bag = integers(values), weight, count, measure.shares
        return percentiles(self._ranked[index], work, *bag)

    def _counted(
        self, measure: Measure, work: Work, old_count: I64, old_rows: I64, rows: I64
    ) -> I64:
        """Return at every step in how many rows an argument is not null."""
        arrays = work.column(measure.place[measure.presence])
        valid = [validity(a) for a in arrays]
        if all(v is None for v in valid) and (old_count == old_rows).all():
            return rows
        masks = [
            np.ones(len(a), bool) if v is None else v for a, v in zip(arrays, valid, strict=True)
        ]
        return work.running(work.in_order(*masks) * work.sign, old_count)

    def _copied(self, index: int, work: Work) -> Copied:
        """Count the copies of the values of an argument."""
        place = self._measures[index].place
        lanes = (pa.concat_arrays(work.column(place[part])) for part in ("high", "low"))
        return self._copies[index].advance(work, *lanes)

    def _sweep(self, index: int, largest: bool, work: Work, lasting: Mask) -> Extreme:
        """Return the extreme at every step, and store the values that may become extremes later.

        ``lasting`` births outlive the slice; all other births are among the deaths as well.
        """
        measure, steps, groups = self._measures[index], work.steps, len(work.keys)
        store = self._extremes[index, largest]
        part = _direction(largest) if self._panes else "value"
        births, deaths = work.column(measure.place[part])
        if not self._panes:
            births, deaths = ordered(births), ordered(deaths)
        stay = np.flatnonzero(lasting & to_mask(births.is_valid()))
        leave = np.flatnonzero(to_mask(deaths.is_valid()))
        births, deaths = births.take(pa.array(stay)), deaths.take(pa.array(leave))
        birth_code, death_code = work.birth_code[stay], work.death_code[leave]
        started = work.deaths.start[leave]
        fresh = started >= work.since
        went = np.flatnonzero(to_mask(work.deaths.columns[-1])[leave] & ~fresh)
        store.change_open(work.keys.take(death_code[went]), deaths.take(pa.array(went)), -1)
        owner, best = store.best(work.keys, work.until)
        values = pa.concat_arrays([births, deaths, best])
        rank = ranks(values, largest)
        event = steps.step_of_events()
        first_of_death = steps.begin[death_code]
        first_of_death[fresh] = steps.find(death_code[fresh], started[fresh])
        first = np.concatenate((event[groups + stay], first_of_death, steps.begin[owner]))
        last_of_death = event[groups + len(work.births) + leave]
        last = np.concatenate((steps.finish[birth_code], last_of_death, steps.finish[owner]))
        bound = np.full(groups, NONE, np.int64)  # set by old rows that last for the whole slice
        np.minimum.at(bound, owner, rank[len(rank) - len(owner) :])
        useful = rank <= bound[np.concatenate((birth_code, death_code, owner))]
        least = range_minimum(first[useful], last[useful], rank[useful], len(steps))
        held = work.births.holder[stay] != 0
        came = np.flatnonzero(held)
        store.change_open(work.keys.take(birth_code[came]), births.take(pa.array(came)), 1)
        known = np.flatnonzero(~held)
        end = work.births.end[stay][known]
        store.add_known(work.keys.take(birth_code[known]), end, births.take(pa.array(known)))
        return Extreme(least, values, rank, largest)


def _lay_out(
    types: list[pa.DataType], places: dict[str, int], parts: list[tuple[str, pa.DataType, bool]]
) -> None:
    """Append the wanted parts to ``types`` and note their places."""
    for part, kind, wanted in parts:
        if wanted:
            places[part] = len(types)
            types.append(kind)


def _option(call: AggregateCall) -> Any:
    """Return the share of a percentile or the delimiter of texts."""
    if call.name not in ("percentile", "string_agg"):
        return None
    last = call.more[0]
    assert isinstance(last, Literal)
    return last.value


def _direction(largest: bool) -> str:
    return "max" if largest else "min"
