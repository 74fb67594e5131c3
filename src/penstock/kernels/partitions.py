"""Rows of a slice that are sorted by partition and numbered in it, and what they carry on.

What a partition knows when a slice begins comes from its last row before it; what it knows at each
row of the slice follows without a loop over rows or partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa

from penstock.kernels.counts import integers
from penstock.kernels.frames import least_so_far
from penstock.kernels.keys import Keys
from penstock.kernels.sweep import NONE, ordered, ranks
from penstock.model import I64, INF, MIN_TIME, to_mask


@dataclass(frozen=True)
class PartitionedRows:
    """The rows of one slice, sorted by partition and number.

    ``order`` says where they stood.  ``starts`` is where partitions begin, ``group`` the partition
    of each row; ``base`` is the number of the first row that a partition has in the slice.
    """

    order: I64
    starts: I64
    group: I64
    keys: Keys
    time: I64
    base: I64
    number: I64

    def __len__(self) -> int:
        return len(self.order)

    def place(self, number: I64) -> I64:
        """Return where rows of the slice stand, by their numbers in the partition of each row."""
        at: I64 = (self.starts - self.base)[self.group] + number
        return at

    def spread(self, values: pa.Array) -> pa.Array:
        """Return a value of each partition for each of its rows."""
        return values.take(pa.array(self.group))


def ranked(values: pa.Array, largest: bool) -> tuple[I64, I64, pa.Array]:
    """Return ranks, the smallest being the best and `NONE` for null.

    Also the ranks with any number in the place of null, and the values that they are ranks of.
    """
    plain = ordered(values)
    missing = to_mask(plain.is_null()) if plain.null_count else None
    if missing is None:
        rank = ranks(plain, largest)
        return rank, rank, plain
    filled = plain.fill_null(_nothing(plain.type))
    rank = ranks(filled, largest)
    return np.where(missing, NONE, rank), rank, filled


def _nothing(kind: pa.DataType) -> pa.Scalar:
    """Return a value of a type that stands where there is none."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.scalar(b"", pa.binary()).cast(kind)
    return pa.scalar(0, pa.int64()) if pa.types.is_integer(kind) else pa.scalar(Decimal(0), kind)


def minus(time: I64, duration: int) -> I64:
    """Return ``time - duration``, the least time where that would be below it."""
    if duration <= 0:
        return time - duration
    return np.where(time < MIN_TIME + duration, MIN_TIME, time - duration)


def valid_count(array: pa.Array) -> I64:
    """Return 1 where there is a value, else 0."""
    return to_mask(array.is_valid()).astype(np.int64)


def best_so_far(mine: PartitionedRows, values: pa.Array, old: pa.Array, largest: bool) -> pa.Array:
    """Return the best value of each partition up to each row; ``old`` is that before the slice."""
    every = pa.concat_arrays([values, old])
    rank, _, _ = ranked(every, largest)
    count = len(mine)
    order = np.argsort(rank, kind="stable")
    place = np.empty(len(every), np.int64)
    place[order] = np.arange(len(every))
    fresh = least_so_far(place[:count], mine.group, len(every))
    best = np.minimum(fresh, place[count:][mine.group])
    return every.take(pa.array(order[best]))


def nth_row(mine: PartitionedRows, values: pa.Array, old: pa.Array, number: int) -> pa.Array:
    """Return the value of the row with a number in each partition, null while there is none."""
    count = len(values)
    stops = np.append(mine.starts[1:], len(mine))
    at = mine.starts + number - mine.base
    here = (mine.base <= number) & (at < stops)
    known = mine.base > number
    index = np.where(here, at, count + np.arange(len(mine.starts)))
    return pa.concat_arrays([values, old]).take(pa.array(index, mask=~(here | known)))


def last_there(
    mine: PartitionedRows, values: pa.Array, old: pa.Array, old_number: pa.Array
) -> tuple[pa.Array, I64]:
    """Return the last value that is not null up to each row, and its number (-1: none)."""
    count = len(values)
    here = np.arange(count)
    at = np.maximum.accumulate(np.where(to_mask(values.is_valid()), here, -1))
    inside = at >= mine.starts[mine.group]
    before = integers(old_number.fill_null(-1))[mine.group]
    number = np.where(inside, mine.number[np.where(inside, at, 0)], before)
    index = np.where(inside, at, count + mine.group)
    return pa.concat_arrays([values, old]).take(pa.array(index)), number


def first_there(
    mine: PartitionedRows, values: pa.Array, old: pa.Array, old_number: pa.Array
) -> tuple[pa.Array, I64]:
    """Return the first value of a partition that is not null, and its number (INF: none)."""
    count = len(values)
    valid = np.flatnonzero(to_mask(values.is_valid()))
    first = np.full(len(mine.starts), count, np.int64)
    np.minimum.at(first, mine.group[valid], valid)
    before = integers(old_number.fill_null(INF))
    known, here = before < INF, first < count
    number = np.where(known, before, np.where(here, mine.number[np.minimum(first, count - 1)], INF))
    index = np.where(known | ~here, count + np.arange(len(first)), first)
    value = pa.concat_arrays([values, old]).take(pa.array(index))
    return mine.spread(value), number[mine.group]
