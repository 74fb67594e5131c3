"""Bags of values that change over time, and what follows when their counts are combined.

For every value the number of copies in each input is a step function of time; an arithmetic on
these numbers gives the number of copies in the output.  `Bags` keeps, per value that is alive in
an input,

* ``counts``: the numbers of copies per input, and a mark: the holder of the open copy where there
  is at most one (``single``), else how many copies were born so far;
* ``open``: the holder of each open copy, under the key of the value and the number of the copy;
* ``values``: the value itself, only where a copy may be born when nothing of its value is
  (``reborn``): in EXCEPT, by a death on the right;
* the live rows of the inputs, of which only the value's hash is kept, so that their ends are
  known.  Negative tuples bring a row back when it dies; then nothing of it is kept.

Copies are born and die first in, first out (`kernels.counts`).  Only values touched in a slice are
looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import (
    Copies,
    Steps,
    copy_keys,
    group_codes,
    integers,
    key_codes,
    match_copies,
    order_events,
)
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.steps import group_starts
from penstock.model import I64, INF, Batch, Deaths, Ends, Mask, to_numpy
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.state import State


class Bags:
    """The inputs of DISTINCT and of the set operations, and the copies of their output."""

    def __init__(
        self,
        state: State,
        types: Sequence[pa.DataType],
        inputs: int,
        single: bool,
        reborn: bool,
        merging: Merging,
    ) -> None:
        self._types = tuple(types)
        self._single = single
        self._reborn = reborn
        lanes = [pa.uint64(), pa.uint64()]
        self._live = [
            Lifetimes(state, f"rows.{i}", lanes, merging, keep_forever=False) for i in range(inputs)
        ]
        self._counts = KeyedState(state, "counts", [pa.int64()] * (inputs + 1), merging)
        self._open = KeyedState(state, "open", [pa.int64()], merging)
        self._values = KeyedState(state, "values", self._types, merging)

    def save(self) -> None:
        """Merge runs as the strategy says."""
        for live in self._live:
            live.save()
        for values in (self._counts, self._open, self._values):
            values.save()

    def turn(
        self,
        rows: Sequence[Batch],
        ends: Sequence[Ends],
        until: int,
        arithmetic: Callable[[list[I64]], I64],
        new_holders: Callable[[int], I64],
    ) -> Iterator[Batch | Ends]:
        """Work off a slice: yield the copies that were born, and the ends of older ones."""
        births = [without_ghosts(batch, told) for batch, told in zip(rows, ends, strict=True)]
        together = Batch.concat(births)
        code, keys, values = group_codes(together.columns, len(together))
        lanes = keys.take(code)
        deaths: list[Batch] = []
        first = 0
        for live, batch, told in zip(self._live, births, ends, strict=True):
            last = first + len(batch)
            if isinstance(told, Deaths):
                died = told.died()
                deaths.append(died.with_columns(_lanes(hash_columns(died.columns, len(died)))))
            else:
                hashes = _lanes(lanes.slice(first, last))
                deaths.append(live.turn(batch.with_columns(hashes), told, until))
            first = last
        dead = [Keys(to_numpy(d.columns[0]), to_numpy(d.columns[1])) for d in deaths]
        codes, touched = key_codes(Keys.concat([keys, *dead]))
        if len(touched) == 0:
            return
        new_code, death_code = codes[: len(keys)], codes[len(keys) :]
        count = len(touched)
        steps = order_events(
            np.concatenate((np.arange(count), new_code[code], death_code)),
            np.concatenate((np.zeros(count, np.int64), together.start, *(d.end for d in deaths))),
            count,
        )
        found, old = self._counts.get(touched)
        numbers = self._running(steps, births, deaths, [integers(c) for c in old[:-1]])
        copies_there = arithmetic(numbers)
        copies = match_copies(steps, copies_there)
        mark = integers(old[-1])
        yield from self._tell(steps, copies, copies_there, touched, mark)
        holder = np.zeros(len(copies.born_step), np.int64)
        open_ = copies.born_until < 0
        holder[open_] = new_holders(int(open_.sum()))
        if len(holder):
            value_of = np.full(count, -1, np.int64)
            value_of[new_code] = np.arange(len(keys))
            columns = self._columns(touched, value_of, values, copies.born_code)
            end = np.where(open_, INF, steps.time[copies.born_until])
            yield Batch(columns, steps.time[copies.born_step], end, holder)
        self._keep(steps, copies, touched, numbers, mark, holder)
        if self._reborn:
            self._keep_values(touched, new_code, found, numbers, steps, values)

    def _running(
        self, steps: Steps, births: list[Batch], deaths: list[Batch], old: list[I64]
    ) -> list[I64]:
        """Return the number of copies in each input at every step."""
        numbers = []
        for i, before in enumerate(old):
            parts = [before]
            parts += [np.full(len(b), int(j == i), np.int64) for j, b in enumerate(births)]
            parts += [np.full(len(d), -int(j == i), np.int64) for j, d in enumerate(deaths)]
            numbers.append(steps.running(np.concatenate(parts)[steps.order]))
        return numbers

    def _tell(
        self, steps: Steps, copies: Copies, there: I64, touched: Keys, mark: I64
    ) -> Iterator[Ends]:
        """Yield the ends of copies that were open before the slice."""
        code = copies.dead_code
        if len(code) == 0:
            return
        if self._single:
            holder = mark[code]
        else:
            oldest = mark[code] - there[steps.begin][code]
            keys = copy_keys(touched.take(code), oldest + copies.dead_number)
            _, columns = self._open.get(keys)
            holder = integers(columns[0])
            self._open.put(keys, columns, np.zeros(len(keys), bool))
        yield Ends.of(holder, steps.time[copies.dead_step])

    def _columns(
        self, touched: Keys, value_of: I64, values: tuple[pa.Array, ...], code: I64
    ) -> tuple[pa.Array, ...]:
        """Return the values of copies; those with no birth in the slice come from the state."""
        needed = code[group_starts(code)]
        missing = needed[value_of[needed] < 0]
        if len(missing):
            _, kept = self._values.get(touched.take(missing))
            value_of = value_of.copy()
            value_of[missing] = len(values[0]) + np.arange(len(missing))
            values = tuple(pa.concat_arrays(pair) for pair in zip(values, kept, strict=True))
        at = pa.array(value_of[code])
        return tuple(v.take(at) for v in values)

    def _keep(
        self,
        steps: Steps,
        copies: Copies,
        touched: Keys,
        numbers: list[I64],
        mark: I64,
        holder: I64,
    ) -> None:
        """Write the counts after the last step of each value, and the holders of open copies."""
        last = steps.finish - 1
        open_ = holder != 0
        if self._single:
            mark = mark.copy()
            mark[copies.dead_code] = 0
            mark[copies.born_code[open_]] = holder[open_]
        else:
            code = copies.born_code[open_]
            number = mark[code] + copies.born_number[open_]
            self._open.put(copy_keys(touched.take(code), number), [pa.array(holder[open_])])
            mark = mark + np.bincount(copies.born_code, minlength=len(mark))
        at_end = [n[last] for n in numbers]
        alive = np.any(np.stack(at_end) > 0, axis=0)
        self._counts.put(touched, [pa.array(c) for c in (*at_end, mark)], alive)

    def _keep_values(
        self,
        touched: Keys,
        new_code: I64,
        found: Mask,
        numbers: list[I64],
        steps: Steps,
        values: tuple[pa.Array, ...],
    ) -> None:
        """Write the values that are new, and remove those of which no copy is left."""
        alive = np.any(np.stack([n[steps.finish - 1] for n in numbers]) > 0, axis=0)
        fresh = np.flatnonzero(~found[new_code] & alive[new_code])
        self._values.put(touched.take(new_code[fresh]), [v.take(pa.array(fresh)) for v in values])
        gone = np.flatnonzero(found & ~alive)
        nothing = [pa.nulls(len(gone), t) for t in self._types]
        self._values.put(touched.take(gone), nothing, np.zeros(len(gone), bool))


def _lanes(keys: Keys) -> tuple[pa.Array, pa.Array]:
    return pa.array(keys.high), pa.array(keys.low)
