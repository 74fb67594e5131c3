"""128-bit hashes of composite keys, and dense codes for them, without a loop over rows.

Two rows have the same key when both 64-bit lanes are equal.  Numbers hash by value after widening
(integers, dates, timestamps and booleans as ``int64``; floats as ``float64`` with one zero and one
NaN; DECIMALs by their two words), so equal keys of one declared type always meet.  Strings and
bytes hash by multilinear hashing: every byte is multiplied by a fixed random weight of its
position.  Nulls hash to a constant of their own.
The hash is part of the checkpoint format: never change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.decimals import is_decimal, words
from penstock.errors import NotSupportedError
from penstock.kernels.sorting import order_of_hashes
from penstock.model import I64, U64, to_mask
from penstock.nested.comparable import comparable
from penstock.nested.shapes import is_nested

_SEED = 0x70656E73746F636B
_NULL = np.uint64(0x9E3779B97F4A7C15)
_LANES = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_weights: list[U64] = [np.random.PCG64(_SEED + i).random_raw(64) for i in range(2)]


@dataclass(frozen=True)
class Keys:
    """The hash lanes of n keys."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, index: I64) -> Keys:
        return Keys(self.high[index], self.low[index])

    def slice(self, first: int, last: int) -> Keys:
        return Keys(self.high[first:last], self.low[first:last])

    def shard(self, shards: int) -> I64:
        """Return the shard of each key."""
        return (self.low % np.uint64(shards)).astype(np.int64)

    @staticmethod
    def concat(parts: Sequence[Keys]) -> Keys:
        return Keys(np.concatenate([p.high for p in parts]), np.concatenate([p.low for p in parts]))


def hash_columns(columns: Sequence[pa.Array], rows: int) -> Keys:
    """Hash ``rows`` composite keys; no columns at all give one constant key."""
    columns = [comparable(c) if is_nested(c.type) else c for c in columns]
    lanes = []
    for lane in range(2):
        total = np.full(rows, _LANES[lane], np.uint64)
        for column in columns:
            total = _mix(total * np.uint64(31) + _hash(column, lane))
        lanes.append(total)
    return Keys(lanes[0], lanes[1])


_BLOCK = 1 << 14
"""Rows that are summed at once: what is in between stays in the processor's cache."""


def sum_of_rows(columns: Sequence[pa.Array], rows: int) -> int:
    """Return the sum modulo 2**64 of the rows' hashes: the same in whatever order they come."""
    columns = [comparable(c) if is_nested(c.type) else c for c in columns]
    result = 0
    for first in range(0, rows, _BLOCK):
        total = np.full(min(_BLOCK, rows - first), _LANES[0], np.uint64)
        for column in columns:
            total = _mix(total * np.uint64(31) + _hash(column.slice(first, _BLOCK), 0))
        result += int(total.sum(dtype=np.uint64))
    return result % 2**64


def codes(keys: Keys) -> tuple[I64, I64]:
    """Return a dense code per row, and for each code the position of its first row.

    Codes are in order of the high lane.
    """
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = order_of_hashes(keys.high)
    high, low = keys.high[order], keys.low[order]
    new = np.ones(len(order), bool)
    new[1:] = high[1:] != high[:-1]
    if (low[1:][~new[1:]] != low[:-1][~new[1:]]).any():  # two keys share one lane: sort by both
        order = np.lexsort((keys.low, keys.high))
        high, low = keys.high[order], keys.low[order]
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    code = np.empty(len(order), np.int64)
    code[order] = np.cumsum(new) - 1
    return code, order[new]


def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(column: pa.Array, lane: int) -> U64:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    nulls = None
    if column.null_count:
        nulls = to_mask(column.is_null())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = _hash_bytes(column, lane)
    elif pa.types.is_large_string(kind):
        values = _hash_bytes(column.cast(pa.string()), lane)
    elif pa.types.is_large_binary(kind):
        values = _hash_bytes(column, lane, np.int64)
    elif is_decimal(kind):
        found = words(column)
        low = _mix(found["low"] + _LANES[lane])
        values = _mix(low * np.uint64(31) + found["high"].view(np.uint64))
    else:
        values = _mix(_integers(column) + _LANES[lane])  # one to one: no two numbers collide
    if nulls is not None:
        values = np.where(nulls, _NULL, values)
    return values


def _integers(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_boolean(kind):
        return to_mask(column).astype(np.uint64)
    if pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    if column.null_count:
        column = column.fill_null(0)
    if pa.types.is_floating(kind):
        numbers = column.to_numpy(zero_copy_only=True).astype(np.float64)
        numbers = numbers + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits: U64 = numbers.view(np.uint64)
        return bits
    if pa.types.is_integer(column.type):
        wide: U64 = column.to_numpy(zero_copy_only=True).astype(np.int64).view(np.uint64)
        return wide
    raise NotSupportedError(f"a value of type {kind} cannot be a key; cast it to STRING first")


def _hash_bytes(column: pa.Array, lane: int, place: Any = np.int32) -> U64:
    rows = len(column)
    if rows == 0:
        return np.empty(0, np.uint64)
    buffers = column.buffers()
    before = column.offset * np.dtype(place).itemsize
    offsets = np.frombuffer(buffers[1], place, rows + 1, before).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    result = np.zeros(rows, np.uint64)
    if last > first:
        data = np.frombuffer(buffers[2], np.uint8, last - first, first)
        longest = int(lengths.max())
        weights = _weight(lane, longest)
        if last - first == rows * longest and longest <= rows:  # all of one length
            for place in range(longest):
                result += (data[place::longest].astype(np.uint64) + np.uint64(1)) * weights[place]
        else:
            at = np.arange(last - first) - np.repeat(offsets[:-1] - first, lengths)
            weighted = (data.astype(np.uint64) + np.uint64(1)) * weights[at]
            filled = lengths > 0
            result[filled] = np.add.reduceat(weighted, (offsets[:-1] - first)[filled])
    return _mix(result + lengths.astype(np.uint64) * _LANES[lane])


def _weight(lane: int, length: int) -> U64:
    """Return at least ``length`` weights; a longer table starts with the shorter one."""
    if len(_weights[lane]) < length:
        size = 1 << (length - 1).bit_length()
        _weights[lane] = np.random.PCG64(_SEED + lane).random_raw(size)
    return _weights[lane]
