"""How often each value is in some inputs over time, and what follows when counts are combined.

For every value the number of copies in each input is a step function of time; an arithmetic on
these numbers gives the number of copies in the output.  `ValueCounts` keeps, per value that is
alive in an input,

* ``counts``: the numbers of copies per input, and a mark: the holder of the open copy where there
  is at most one (``single``), else how many copies were born so far; then the value itself, only
  where a copy may be born when nothing of its value is (``reborn``): in EXCEPT, by a death on the
  right;
* ``open``: the holder of each open copy, under the key of the value and the number of the copy;
* the live rows of the inputs, of which only the value's hash is kept, so that their ends are
  known.  Negative tuples bring a row back when it dies; then nothing of it is kept.

Copies are born and die first in, first out (`kernels.counts`).  Only values touched in a slice are
looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import (
    Copies,
    Steps,
    canonical,
    copy_keys,
    integers,
    key_codes,
    match_copies,
    match_single,
    order_events,
    row_keys,
)
from penstock.kernels.keys import Keys
from penstock.kernels.steps import group_starts
from penstock.model import I64, INF, Batch, Deaths, Ends, Mask, to_numpy
from penstock.runs.keyed import KeyedState, Places
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.state import State


@dataclass(frozen=True)
class _Deaths:
    """The rows of an input that die in a slice: keys and ends of those of earlier slices.

    Of those that were born in it, ``own`` are the positions among all births.
    """

    keys: Keys
    end: I64
    own: I64
    own_end: I64


class ValueCounts:
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
        self._inputs = inputs
        numbers = [pa.int64()] * (inputs + 1)
        kept = (*numbers, *self._types) if reborn else numbers
        self._counts = KeyedState(state, "counts", kept, merging)
        self._open = KeyedState(state, "open", [pa.int64()], merging)

    def save(self) -> None:
        """Merge runs as the strategy says."""
        for live in self._live:
            live.save()
        self._counts.save()
        self._open.save()

    def advance(
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
        values = tuple(canonical(column) for column in together.columns)
        keys = row_keys(values, len(together))
        deaths: list[_Deaths] = []
        first = 0
        for live, batch, told in zip(self._live, births, ends, strict=True):
            last = first + len(batch)
            if isinstance(told, Deaths):
                died = told.died()
                deaths.append(_Deaths(row_keys(died.columns, len(died)), died.end, _NONE, _NONE))
            else:
                hashes = batch.with_columns(_lanes(keys.slice(first, last)))
                gone, own, end = live.turn_apart(hashes, told, until)
                lanes = Keys(to_numpy(gone.columns[0]), to_numpy(gone.columns[1]))
                deaths.append(_Deaths(lanes, gone.end, first + np.flatnonzero(own), end))
            first = last
        codes, touched = key_codes(Keys.concat([keys, *(d.keys for d in deaths)]))
        if len(touched) == 0:
            return
        count = len(touched)
        birth_code = codes[:first]
        event_code = [np.arange(count), birth_code]
        for some in deaths:
            last = first + len(some.keys)
            event_code += [codes[first:last], birth_code[some.own]]
            first = last
        steps = order_events(
            np.concatenate(event_code),
            np.concatenate(
                [np.zeros(count, np.int64), together.start]
                + [end for some in deaths for end in (some.end, some.own_end)]
            ),
            count,
        )
        before = self._counts.find(touched)
        sizes = [len(some.keys) + len(some.own) for some in deaths]
        old = [before.numbers(i) for i in range(self._inputs)]
        numbers = self._running(steps, births, sizes, old)
        copies_there = arithmetic(numbers)
        match = match_single if self._single else match_copies
        copies = match(steps, copies_there)
        mark = before.numbers(self._inputs)
        yield from self._tell(steps, copies, copies_there, touched, mark)
        holder = np.zeros(len(copies.born_step), np.int64)
        open_ = copies.born_until < 0
        holder[open_] = new_holders(int(open_.sum()))
        value_of = np.full(count, -1, np.int64)  # a row that brings the value, if one does
        value_of[birth_code] = np.arange(len(birth_code))
        if len(holder):
            columns = self._columns(before, value_of, values, copies.born_code)
            end = np.where(open_, INF, steps.time[copies.born_until])
            yield Batch(columns, steps.time[copies.born_step], end, holder)
        at_end = [n[steps.finish - 1] for n in numbers]
        mark = self._marked(copies, touched, mark, holder)
        alive: Mask = np.any(np.stack(at_end) > 0, axis=0)
        kept = [pa.array(n) for n in (*at_end, mark)]
        if self._reborn:
            code = np.arange(count)
            nothing = np.where(alive, value_of, -2)  # of what is gone nothing is fetched
            kept += self._columns(before, nothing, values, code)
        self._counts.put(touched, kept, alive)

    def _running(
        self, steps: Steps, births: list[Batch], deaths: list[int], old: list[I64]
    ) -> list[I64]:
        """Return the number of copies in each input at every step."""
        numbers = []
        for i, before in enumerate(old):
            parts = [before]
            parts += [np.full(len(b), int(j == i), np.int64) for j, b in enumerate(births)]
            parts += [np.full(d, -int(j == i), np.int64) for j, d in enumerate(deaths)]
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
        self, before: Places, value_of: I64, values: tuple[pa.Array, ...], code: I64
    ) -> tuple[pa.Array, ...]:
        """Return the values of codes, that of a row which brings it or the one that is kept.

        -1 stands for the second, any number below for no value at all.
        """
        needed = code[group_starts(code)]
        missing = needed[value_of[needed] == -1]
        if len(missing):
            value_of = value_of.copy()
            value_of[missing] = len(values[0]) + np.arange(len(missing))
            values = tuple(
                pa.concat_arrays([new, before.column(self._inputs + 1 + i, missing)])
                for i, new in enumerate(values)
            )
        at = value_of[code]
        index = pa.array(at, mask=at < 0)
        return tuple(v.take(index) for v in values)

    def _marked(self, copies: Copies, touched: Keys, mark: I64, holder: I64) -> I64:
        """Return the marks after the slice; where there are many copies, write their holders."""
        open_ = holder != 0
        if self._single:
            mark = mark.copy()
            mark[copies.dead_code] = 0
            mark[copies.born_code[open_]] = holder[open_]
            return mark
        code = copies.born_code[open_]
        number = mark[code] + copies.born_number[open_]
        self._open.put(copy_keys(touched.take(code), number), [pa.array(holder[open_])])
        return mark + np.bincount(copies.born_code, minlength=len(mark))


_NONE: I64 = np.empty(0, np.int64)


def _lanes(keys: Keys) -> tuple[pa.Array, pa.Array]:
    return pa.array(keys.high), pa.array(keys.low)
