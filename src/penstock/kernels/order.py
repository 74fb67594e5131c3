"""Sorting of rows by columns of any type, and searching in sorted runs, without a loop over rows.

Every column becomes one or two integer keys whose order is the order of the values: integers, dates
and timestamps as they are; floats by their bits (one zero; NaN above everything, as in Spark SQL);
DECIMALs by their words; strings, and nested values as bytes, by their rank among the distinct
values.  Descending order is the complement of the key, and the place of nulls is a key of its own,
so any mixture of directions is one `lexsort`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decimals import is_decimal, words
from penstock.errors import NotSupportedError
from penstock.kernels.keys import Keys
from penstock.model import I64, U64, Mask, to_mask, to_numpy
from penstock.nested.comparable import comparable
from penstock.nested.shapes import is_nested

_POSITIVE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def sort_indices(
    columns: Sequence[pa.Array],
    descending: Sequence[bool] | None = None,
    nulls_first: Sequence[bool] | None = None,
) -> I64:
    """Return the stable order of rows by ``columns``, the first counting most.

    Ascending with nulls first unless said otherwise per column.
    """
    return _lexsort(_all_keys(columns, descending, nulls_first), _rows(columns))


def dense_ranks(
    columns: Sequence[pa.Array],
    descending: Sequence[bool] | None = None,
    nulls_first: Sequence[bool] | None = None,
) -> I64:
    """Return the place of each row among the distinct rows, in the order of `sort_indices`."""
    rows = _rows(columns)
    keys = _all_keys(columns, descending, nulls_first)
    order = _lexsort(keys, rows)
    new = np.zeros(rows, bool)
    for key in keys:
        in_order = key[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    ranks = np.empty(rows, np.int64)
    ranks[order] = np.cumsum(new)
    return ranks


def time_order(start: I64, seq: I64 | None, columns: Sequence[pa.Array]) -> I64 | None:
    """Return the order of stream elements; None when they are in order already.

    Raw elements are ordered by ``(start, seq)``; elements of derived streams, which have no
    ``seq``, by start and then by all columns ascending, nulls first.
    """
    if seq is not None:
        later = start[1:] > start[:-1]
        if (later | ((start[1:] == start[:-1]) & (seq[1:] >= seq[:-1]))).all():
            return None
        return np.lexsort((seq, start))
    if (start[1:] > start[:-1]).all():
        return None
    order = np.argsort(start, kind="stable")
    in_order = start[order]
    equal = in_order[1:] == in_order[:-1]
    if columns and equal.any():
        tied = np.zeros(len(order), bool)
        tied[1:] = equal
        tied[:-1] |= equal
        rows = order[tied]
        ranks = dense_ranks([c.take(pa.array(rows)) for c in columns])
        order[tied] = rows[np.lexsort((ranks, start[rows]))]
    return order


def group_order(keys: Keys, order: I64 | None) -> tuple[I64, I64]:
    """Return the order by key and, inside a key, by ``order``; and where each key begins in it.

    Keys are in order of both lanes, so that they can be looked up in runs sorted the same way.
    """
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if order is not None:
        keys = keys.take(order)
    by_key = hash_order(keys.high)
    high, low = keys.high[by_key], keys.low[by_key]
    new = _changes(high)
    if (low[1:] != low[:-1])[~new[1:]].any():  # two keys share one lane: sort by both
        by_key = np.lexsort((keys.low, keys.high))
        high, low = keys.high[by_key], keys.low[by_key]
        new = _changes(high) | _changes(low)
    return (by_key if order is None else order[by_key]), np.flatnonzero(new)


def hash_order(hashes: U64) -> I64:
    """Return the stable order of hashes; many times faster than sorting positions.

    The upper bits of each hash and its position make one integer, which is sorted as it is.  Two
    hashes with equal upper bits whose rows are mixed show as a descent; then positions are sorted.
    """
    bits = np.uint64(max(1, (len(hashes) - 1).bit_length()))
    packed = (hashes >> bits << bits) | np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    in_order = hashes[order]
    if (in_order[1:] < in_order[:-1]).any():
        return np.argsort(hashes, kind="stable")
    return order


def key_ranges(high: U64, low: U64, keys: Keys) -> tuple[I64, I64]:
    """Return for each key the range ``[first, last)`` of its rows in lanes sorted by both."""
    first = np.searchsorted(high, keys.high, "left")
    last = np.searchsorted(high, keys.high, "right")
    some = np.flatnonzero(first < last)
    other = (low[first[some]] != keys.low[some]) | (low[last[some] - 1] != keys.low[some])
    for i in some[other]:  # two keys share one lane: next to never
        among = low[first[i] : last[i]]
        begin = first[i]
        first[i] = begin + np.searchsorted(among, keys.low[i], "left")
        last[i] = begin + np.searchsorted(among, keys.low[i], "right")
    return first, last


def search_within(values: I64, first: I64, last: I64, target: I64) -> I64:
    """Return for each i the first position of ``[first[i], last[i])`` not below ``target[i]``.

    ``values`` ascend inside each range; ``last[i]`` is returned where there is none.
    """
    low, high = first.copy(), last.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) >> 1
        less = values[middle] < target[open_]
        low[open_] = np.where(less, middle + 1, low[open_])
        high[open_] = np.where(less, high[open_], middle)
    return low


def _changes(values: npt.NDArray[Any]) -> Mask:
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def _rows(columns: Sequence[pa.Array]) -> int:
    return len(columns[0]) if columns else 0


def _lexsort(keys: list[I64], rows: int) -> I64:
    if not keys:
        return np.arange(rows)
    if len(keys) == 1:
        return np.argsort(keys[0], kind="stable")
    return np.lexsort(tuple(reversed(keys)))


def _all_keys(
    columns: Sequence[pa.Array],
    descending: Sequence[bool] | None,
    nulls_first: Sequence[bool] | None,
) -> list[I64]:
    down = descending or [False] * len(columns)
    first = nulls_first or [True] * len(columns)
    keys: list[I64] = []
    for column, is_down, is_first in zip(columns, down, first, strict=True):
        if column.null_count:
            null = to_mask(column.is_null())
            keys.append((null != is_first).astype(np.int64))
        found = _words(column) if is_decimal(column.type) else [_integers(column)]
        keys += [~values if is_down else values for values in found]
    return keys


def _words(column: pa.Array) -> list[I64]:
    """Return one or two integers per DECIMAL in the order of the values."""
    found = words(column)
    high, low = np.ascontiguousarray(found["high"]), np.ascontiguousarray(found["low"])
    if (high == low.view(np.int64) >> 63).all():
        return [low.view(np.int64)]
    return [high, (low ^ np.uint64(1 << 63)).view(np.int64)]


def _integers(column: pa.Array) -> I64:
    """Return integers in the order of the values; any constant in the place of nulls."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if pa.types.is_boolean(kind):
        return to_mask(column).astype(np.int64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _string_ranks(column)
    if is_nested(kind):
        return _string_ranks(comparable(column))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        column = column.view(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
        kind = column.type
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        column = column.fill_null(0)
    if pa.types.is_floating(kind):
        numbers = to_numpy(column).astype(np.float64) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        bits = numbers.view(np.int64)
        ordered: I64 = bits ^ ((bits >> 63) & _POSITIVE)
        return ordered
    if pa.types.is_integer(kind):
        integers: I64 = to_numpy(column).astype(np.int64)
        return integers
    raise NotSupportedError(f"a value of type {kind} has no order; cast it to STRING first")


def _string_ranks(column: pa.Array) -> I64:
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.zeros(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    codes = encoded.indices.fill_null(len(order)).to_numpy()
    ranks: I64 = rank[codes]
    return ranks
