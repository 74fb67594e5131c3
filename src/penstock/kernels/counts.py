"""Events of keys over time: dense codes, their order, running sums, and counts turned into rows.

An operator that keeps something per key sees a slice as events ``(key, time, change)``: +1 where a
row starts, -1 where it ends.  `order_events` sorts them and finds the *steps*, the distinct
``(key, time)``. The first event of every key is an *old* one without a time: it stands before all
others of its key and brings what the state knew, so that running sums need no second look at the
state.

`match_copies` turns the count of a value, a step function, into rows: where it rises by d, d
copies are born; where it falls by d, the d oldest copies die (first in, first out).  So the j-th
copy ever born dies in the j-th death: with ``c`` old copies alive, birth j of the slice is ended
by its death ``c + j``, and the first ``c`` deaths end old copies.  Cost follows the events, not
the copies alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.keys import Keys, codes, hash_columns
from penstock.kernels.sorting import in_stretches, order_of_codes
from penstock.kernels.steps import ranges
from penstock.model import I64, Mask
from penstock.nested.comparable import comparable
from penstock.nested.shapes import changed, holds, is_nested


def canonical(column: pa.Array) -> pa.Array:
    """Return a column in which equal floats have equal bits: one zero, one NaN."""
    if is_nested(column.type):
        if not holds(column.type, pa.types.is_floating):
            return column
        return changed(column, column.type, lambda inner, _: canonical(inner))
    if not pa.types.is_floating(column.type):
        return column
    column = pc.add(column, pa.scalar(0.0, column.type))
    strange = pc.is_nan(column)
    if pc.any(strange).as_py():
        column = pc.if_else(strange, pa.scalar(float("nan"), column.type), column)
    return column


def group_codes(columns: Sequence[pa.Array], rows: int) -> tuple[I64, Keys, tuple[pa.Array, ...]]:
    """Return a dense code per row, and for each code its key and its values.

    Only distinct values are hashed.  Nulls are equal to one another.
    """
    if not columns:
        seen = min(rows, 1)
        return np.zeros(rows, np.int64), hash_columns([], seen), ()
    combined, dictionaries, sizes = None, [], []
    for column in columns:
        index, dictionary = _encoded(canonical(column))
        size = len(dictionary)
        dictionaries.append(dictionary)
        sizes.append(size)
        if combined is None:
            combined, total = index, size
        elif total * size < 2**62:
            combined, total = combined * size + index, total * size
        else:  # too many combinations to be numbered: hash the rows themselves
            plain = [canonical(c) for c in columns]
            keys = hash_columns(plain, rows)
            code, first = codes(keys)
            values = tuple(c.take(pa.array(first)) for c in plain)
            return code, keys.take(first), values
    assert combined is not None
    if len(columns) > 1:
        combined, rest = _dense(combined, total)
        parts: list[I64] = []
        for size in reversed(sizes):
            parts.append(rest % max(size, 1))
            rest = rest // max(size, 1)
        values = tuple(
            d.take(pa.array(p)) for d, p in zip(dictionaries, reversed(parts), strict=True)
        )
    else:
        values = tuple(dictionaries)
    return combined, hash_columns(values, len(values[0])), values


def _encoded(column: pa.Array) -> tuple[I64, pa.Array]:
    """Return a code per row and the value of each code."""
    plain = comparable(column) if is_nested(column.type) else column
    encoded = plain.dictionary_encode(null_encoding="encode")
    index = encoded.indices.to_numpy().astype(np.int64)
    if plain is column:
        return index, encoded.dictionary
    first = np.empty(len(encoded.dictionary), np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return index, column.take(pa.array(first))


def _dense(numbers: I64, total: int) -> tuple[I64, I64]:
    """Return dense codes of numbers in ``[0, total)``, and the number of each code."""
    if total > len(numbers):
        packed = pa.array(numbers).dictionary_encode()
        return packed.indices.to_numpy().astype(np.int64), packed.dictionary.to_numpy()
    present = np.zeros(total, bool)
    present[numbers] = True
    there = np.flatnonzero(present)
    code = np.empty(total, np.int64)
    code[there] = np.arange(len(there))
    return code[numbers], there


_SAMPLE = 1024


def mostly_distinct(numbers: npt.NDArray[Any]) -> bool:
    """Whether a sample has few equal numbers: then sorting is cheaper than a dictionary."""
    sample = numbers[:: max(len(numbers) // _SAMPLE, 1)]
    return 2 * len(np.unique(sample)) > len(sample)


def row_keys(columns: Sequence[pa.Array], rows: int) -> Keys:
    """Return the key of each row; where many rows are equal, only distinct values are hashed."""
    sample = pa.array(np.arange(0, rows, max(rows // _SAMPLE, 1)))
    some = hash_columns([c.take(sample) for c in columns], len(sample))
    if mostly_distinct(some.high):
        return hash_columns(columns, rows)
    code, keys, _ = group_codes(columns, rows)
    return keys.take(code)


def key_codes(keys: Keys) -> tuple[I64, Keys]:
    """Return a dense code per key, and the distinct keys sorted by their high lane."""
    if len(keys) == 0:
        return np.empty(0, np.int64), keys
    if mostly_distinct(keys.high):
        code, first = codes(keys)
        return code, keys.take(first)
    encoded = pa.array(keys.high).dictionary_encode()
    code = encoded.indices.to_numpy().astype(np.int64)
    high = encoded.dictionary.to_numpy()
    low = np.empty(len(high), np.uint64)
    low[code] = keys.low
    if (low[code] == keys.low).all():
        order = np.argsort(high)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank[code], Keys(high[order], low[order])
    code, first = codes(keys)  # two keys share one lane
    return code, keys.take(first)


@dataclass(frozen=True)
class Steps:
    """Sorted events. A step is a distinct ``(code, time)``; the first of each code is the old one.

    ``order`` sorts the events; ``first`` is where each step begins in that order; ``code`` and
    ``time`` describe the steps; ``begin`` holds the first step of each code.  Codes are dense, so
    code i has the steps ``[begin[i], begin[i+1])``."""

    order: I64
    first: I64
    code: I64
    time: I64
    begin: I64
    _key: I64
    _base: int
    _bits: int
    _times: I64 | None

    def __len__(self) -> int:
        return len(self.code)

    @property
    def old(self) -> Mask:
        """Whether each step is the old one of its code."""
        mask = np.zeros(len(self), bool)
        mask[self.begin] = True
        return mask

    @cached_property
    def last(self) -> I64:
        """Where the last event of each step is in the order."""
        return np.append(self.first[1:], len(self.order)) - 1

    @property
    def finish(self) -> I64:
        """Where the steps of each code end."""
        return np.append(self.begin[1:], len(self)) if len(self) else self.begin

    def running(self, ordered: I64) -> I64:
        """Return the running sum, per code, at the end of each step of changes in event order.

        The changes are overwritten.
        """
        if len(self) == 0:
            return np.empty(0, np.int64)
        heads = self.first[self.begin]
        sums = np.add.reduceat(ordered, heads)
        ordered[heads[1:]] -= sums[:-1]  # so that each code begins where nothing has been added
        total: I64 = np.cumsum(ordered, out=ordered)
        if len(self) < len(ordered):
            total = total[self.last]
        return total

    def step_of_events(self) -> I64:
        """Return the step of each event, in the order in which the events were given."""
        lengths = np.diff(np.append(self.first, len(self.order)))
        result = np.empty(len(self.order), np.int64)
        result[self.order] = np.repeat(np.arange(len(self)), lengths)
        return result

    def find(self, code: I64, time: I64) -> I64:
        """Return the step of each ``(code, time)``, which must exist."""
        place = time - self._base if self._times is None else np.searchsorted(self._times, time)
        return np.searchsorted(self._key, (code << self._bits) | (place + 1))


def order_events(code: I64, time: I64, codes_: int) -> Steps:
    """Sort events by code and time; the first ``codes_`` events are the old ones of code 0, 1, ..

    Code, time and position are packed into one integer where they fit, which is then sorted as is,
    unless times are nearly in order.
    """
    count = len(code)
    real = time[codes_:]
    base, span, times = 0, 0, None
    if len(real):
        base, span = int(real.min()), int(real.max()) - int(real.min()) + 1
    code_bits, index_bits = max(codes_ - 1, 0).bit_length(), max(count - 1, 0).bit_length()
    bits = span.bit_length()
    key = code.copy()
    if code_bits + bits > 62:
        times = np.unique(real)
        bits, base = len(times).bit_length(), 0
        real = np.searchsorted(times, real)
    key <<= bits
    key[codes_:] += real - base
    key[codes_:] += 1
    if in_stretches(real):  # as those of rows that come and go in order: merge, then count
        order = np.argsort(key & ((1 << bits) - 1), kind="stable")
        order = order[order_of_codes(code[order], codes_)]
        key = key[order]
    elif code_bits + bits + index_bits <= 63:
        key <<= index_bits
        key |= np.arange(count)
        key.sort()
        order = key & ((1 << index_bits) - 1)
        key >>= index_bits
    else:
        order = np.argsort(key)
        key = key[order]
    new = np.ones(count, bool)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    first = np.flatnonzero(new)
    if len(first) < count:
        key = key[first]
    step_code = key >> bits
    step_time = key & ((1 << bits) - 1)
    begin = np.flatnonzero(step_time == 0)  # the old ones
    step_time += base
    step_time -= 1
    if times is not None:
        step_time = np.append(times, 0)[step_time]
    return Steps(order, first, step_code, step_time, begin, key, base, bits, times)


@dataclass(frozen=True)
class Copies:
    """What the steps of counts mean for copies of values; all sorted by code, then step.

    Births: ``born_step``; ``born_until``, the step of the death or -1 where alive at the end; and
    ``born_number``, which counts births per code from 0.  Deaths of old copies: ``dead_step`` and
    ``dead_number``, which counts them per code from 0, the oldest first.
    """

    born_code: I64
    born_step: I64
    born_until: I64
    born_number: I64
    dead_code: I64
    dead_step: I64
    dead_number: I64


def match_copies(steps: Steps, count: I64) -> Copies:
    """Match births and deaths, first in, first out; ``count`` is the number of copies per step."""
    change = np.zeros(len(count), np.int64)
    change[1:] = count[1:] - count[:-1]
    change[steps.begin] = 0
    born_step = np.repeat(np.arange(len(count)), np.maximum(change, 0))
    dead_step = np.repeat(np.arange(len(count)), np.maximum(-change, 0))
    born_code, dead_code = steps.code[born_step], steps.code[dead_step]
    codes_ = len(steps.begin)
    born_number, _, _ = _numbers(born_code, codes_)
    dead_number, dead_first, deaths = _numbers(dead_code, codes_)
    old = count[steps.begin]
    death = old[born_code] + born_number
    known = death < deaths[born_code]
    born_until = np.full(len(born_code), -1, np.int64)
    born_until[known] = dead_step[(dead_first[born_code] + death)[known]]
    was_old = dead_number < old[dead_code]
    return Copies(
        born_code,
        born_step,
        born_until,
        born_number,
        dead_code[was_old],
        dead_step[was_old],
        dead_number[was_old],
    )


def match_single(steps: Steps, there: I64) -> Copies:
    """Do the same where there is at most one copy of a value: births and deaths take turns."""
    change = np.zeros(len(there), np.int64)
    change[1:] = there[1:] - there[:-1]
    change[steps.begin] = 0
    turn = np.flatnonzero(change)
    code, birth = steps.code[turn], change[turn] > 0
    same = code[1:] == code[:-1]
    born, dead = np.flatnonzero(birth), np.flatnonzero(~birth)
    until = np.append(np.where(same, turn[1:], -1), -1)
    old = dead[~np.append(False, same)[dead]]
    return Copies(
        code[born],
        turn[born],
        until[born],
        np.zeros(len(born), np.int64),
        code[old],
        turn[old],
        np.zeros(len(old), np.int64),
    )


def copy_keys(keys: Keys, number: I64) -> Keys:
    """Return the key of a numbered copy of a value."""
    lanes = (pa.array(keys.high), pa.array(keys.low), pa.array(number))
    return hash_columns(lanes, len(number))


def integers(column: pa.Array) -> I64:
    """Return an integer column as ``int64``; null is 0."""
    if column.null_count:
        column = column.fill_null(0)
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values.astype(np.int64, copy=False)


def _numbers(code: I64, codes_: int) -> tuple[I64, I64, I64]:
    """Return the place of each row within its code (rows sorted by code), and firsts and counts."""
    counts = np.bincount(code, minlength=codes_).astype(np.int64)
    firsts = np.cumsum(counts) - counts
    _, place = ranges(np.zeros(codes_, np.int64), counts)
    return place, firsts, counts
