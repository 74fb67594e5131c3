"""The best values of overlapping intervals at every position, without a loop over rows.

Values are compared as `ordered` integers: smaller is better.  An interval ``[first, last)`` covers
positions ``0 .. size-1``, which stand for the elementary intervals of time between two events.

* `range_minimum`, the best one per position: an interval is the union of two blocks whose length
  is the same power of two, ``[first, first + 2**l)`` and ``[last - 2**l, last)``.  Blocks hand
  their minimum down to their halves, level by level, as in a sparse table read backwards: O((n +
  m) log m).
* `k_best`, the k best per position: a segment tree is walked from the root.  An interval comes in
  at the lowest node that holds it.  One that covers a node joins the node's list, others go on to
  the children they touch, and every node
  begins with its parent's list.  A list with k entries bounds everything below it: an interval
  that is worse than the last of them is dropped on the spot.  Lists of neighbouring nodes are rows
  of one matrix; subtrees are walked one after the other when the matrix would exceed the memory
  granted.
* `staircase` and `skyband` say which rows can ever be among the best when all are alive now and
  only ends lie ahead: a row with a better one (k better ones) that end no earlier never counts
  again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decimals import in_words, integers, is_decimal, is_wide, of_words
from penstock.errors import NotSupportedError
from penstock.kernels.order import dense_ranks
from penstock.kernels.steps import group_starts
from penstock.model import I64, INF, Mask, to_mask, to_numpy

_POSITIVE = np.int64(0x7FFF_FFFF_FFFF_FFFF)
NONE = np.int64(INF)
"""Stands where a position is covered by no interval."""


def stays(kind: pa.DataType) -> bool:
    """Whether `ordered` leaves values as they are: texts, bytes, pairs, DECIMALs of many digits."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_struct(kind)
        or pa.types.is_binary(kind)
        or is_wide(kind)
    )


def ordered_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of `ordered` values: ``int64`` unless they stay as they are."""
    if stays(kind):
        return kind
    if (
        pa.types.is_integer(kind)
        or is_decimal(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
    ):
        return pa.int64()
    raise NotSupportedError(f"values of type {kind} have no order; cast the argument to STRING")


def ordered(column: pa.Array) -> pa.Array:
    """Return integers in the order of the values, unless their type `stays`."""
    kind = column.type
    if stays(kind):
        return column
    missing = to_mask(column.is_null()) if column.null_count else None
    if pa.types.is_boolean(kind):
        numbers = to_mask(column).astype(np.int64)
    elif is_decimal(kind):
        numbers = integers(column)
    else:
        if pa.types.is_date32(kind):
            column = column.view(pa.int32())
        elif pa.types.is_timestamp(kind):
            column = column.view(pa.int64())
        if missing is not None:
            column = column.fill_null(0)
        if pa.types.is_floating(kind):
            doubles = to_numpy(column).astype(np.float64) + 0.0
            doubles[np.isnan(doubles)] = np.nan
            bits = doubles.view(np.int64)
            numbers = bits ^ ((bits >> 63) & _POSITIVE)
        else:
            numbers = to_numpy(column).astype(np.int64)
    return pa.array(numbers, mask=missing)


def restored(numbers: I64, kind: pa.DataType, valid: Mask) -> pa.Array:
    """Return the values of `ordered` integers; null where not ``valid``."""
    missing = None if valid.all() else ~valid
    if pa.types.is_floating(kind):
        bits = numbers ^ ((numbers >> 63) & _POSITIVE)
        return pa.array(bits.view(np.float64), mask=missing).cast(kind)
    if missing is not None:
        numbers = np.where(missing, 0, numbers)
    if pa.types.is_boolean(kind):
        return pa.array(numbers != 0, mask=missing)
    if is_decimal(kind):
        return of_words(in_words(numbers), kind, missing)
    if pa.types.is_date32(kind):
        return pa.array(numbers.astype(np.int32), mask=missing).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(numbers, mask=missing).view(kind)
    return pa.array(numbers, mask=missing).cast(kind)


def pair_type(by: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return the type of `pairs`."""
    return pa.struct([("by", ordered_type(by)), ("value", value)])


def pairs(by: pa.Array, values: pa.Array) -> pa.Array:
    """Return what is chosen by something together with it, null where that is null.

    The best pair has the best ``by``, and of several such the smallest value, null before others.
    """
    kind = pair_type(by.type, values.type)
    missing = by.is_null() if by.null_count else None
    return pa.StructArray.from_arrays([ordered(by), values], fields=list(kind), mask=missing)


def ranks(values: pa.Array, largest: bool) -> I64:
    """Return numbers for `ordered` values without nulls; the smallest number is the best."""
    if pa.types.is_struct(values.type):
        return dense_ranks(values.flatten(), [largest, *[False] * (values.type.num_fields - 1)])
    if stays(values.type):
        return dense_ranks([values], [largest])
    numbers: I64 = to_numpy(values)
    return ~numbers if largest else numbers


def range_minimum(first: I64, last: I64, value: I64, size: int) -> I64:
    """Return the least value of the intervals over each position, `NONE` without any."""
    real = first < last
    if not real.all():
        first, last, value = first[real], last[real], value[real]
    least = np.full(size, NONE, np.int64)
    if len(first) == 0:
        return least
    level = np.frexp((last - first).astype(np.float64))[1] - 1
    order = np.argsort(level.astype(np.uint8), kind="stable")
    bounds = np.searchsorted(level[order], np.arange(int(level.max()) + 2))
    for height in range(int(level.max()), -1, -1):
        mine = order[bounds[height] : bounds[height + 1]]
        if len(mine):
            np.minimum.at(least, first[mine], value[mine])
            if height:
                np.minimum.at(least, last[mine] - (1 << height), value[mine])
        if height:
            half = 1 << (height - 1)
            lower = least.copy()
            np.minimum(lower[half:], least[:-half], out=lower[half:])
            least = lower
    return least


def staircase(group: I64, end: I64, rank: I64) -> I64:
    """Return the rows that can still be the best of their group, sorted by group and end.

    ``rank``: smaller is better.  Within a group the rows returned get worse as they end later.
    """
    likely = _not_beaten_by_later(group, end, rank)
    return likely[_stairs(group[likely], end[likely], rank[likely])]


def _not_beaten_by_later(group: I64, end: I64, rank: I64) -> I64:
    """Drop most rows of a staircase at once: those no better than one in a later chunk of ends."""
    count = len(group)
    groups = int(group.max()) + 1 if count else 0
    chunks = 64
    if count < 4096 or groups * chunks > count:
        return np.arange(count)
    first, last = float(end.min()), float(end.max())
    step = chunks / max(last - first, 1.0)
    chunk = np.minimum(((end - first) * step).astype(np.int64), chunks - 1)
    best = np.full((groups, chunks + 1), NONE, np.int64)
    np.minimum.at(best.reshape(-1), group * (chunks + 1) + chunk, rank)
    later = np.minimum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
    return np.flatnonzero(rank <= later[group, chunk + 1])


def _stairs(group: I64, end: I64, rank: I64) -> I64:
    """Return the rows of the staircase, by sorting all of them."""
    count = len(group)
    if count == 0:
        return np.empty(0, np.int64)
    order = np.lexsort((end, group))
    dense = np.empty(count, np.int64)
    by_rank = np.argsort(rank, kind="stable")
    in_order = rank[by_rank]
    dense[by_rank] = np.cumsum(np.append(0, in_order[1:] != in_order[:-1]))
    key = (group * (count + 1) + dense)[order]
    after = np.minimum.accumulate(key[::-1])[::-1]  # of this row and the later ones of its group
    keep = np.ones(count, bool)
    last = group[order][1:] != group[order][:-1]
    keep[:-1] = last | (key[:-1] < after[1:])
    return order[keep]


def skyband(end: I64, rank: I64, sure: Mask, k: int) -> Mask:
    """Return which rows may still be among the k best (a few others may be kept as well).

    A row is dropped when at least k better rows that are ``sure`` (their end is exact) end no
    earlier; ``end`` of other rows is an upper bound.  All ranks differ."""
    count = len(end)
    keep = np.ones(count, bool)
    if k == 0:
        return ~keep
    late = np.arange(count)
    while len(late) > 4 * max(1024, k):  # the later half bounds the earlier one
        ends = end[late]
        above = ends > np.partition(ends, len(ends) // 2)[len(ends) // 2]
        upper, lower = late[above], late[~above]
        judges = rank[upper[sure[upper]]]
        if len(judges) < k:
            break
        keep[lower] = rank[lower] < np.partition(judges, k - 1)[k - 1]
        late = upper
    left = np.flatnonzero(keep)
    order = left[np.lexsort((rank[left], ~end[left]))]  # latest end first
    block = max(1024, k)
    best = np.empty(0, np.int64)
    for first in range(0, len(order), block):
        rows = order[first : first + block]
        if len(best) == k:
            keep[rows] = rank[rows] < best.max()
        candidates = np.concatenate((best, rank[rows[sure[rows] & keep[rows]]]))
        best = np.partition(candidates, k - 1)[:k] if len(candidates) > k else candidates
    return keep


def k_best(
    first: I64, last: I64, rank: I64, size: int, k: int, memory: int = 1 << 22
) -> Iterator[I64]:
    """Yield matrices with k columns that hold the ranks of the k best intervals at each position.

    Rows are positions, in order; ranks ascend, `NONE` fills up.  Ranks must differ and be below
    ``2**31``. ``memory`` bounds the entries of one matrix."""
    if size == 0 or k == 0:
        return
    real = first < last
    first, last, rank = first[real], last[real], rank[real]
    width = 1 << max(size - 1, 0).bit_length()
    level = np.frexp((first ^ (last - 1)).astype(np.float64))[1]
    order = np.argsort((64 - level).astype(np.uint8), kind="stable")
    waiting = _Intervals(first[order], last[order], rank[order], level[order])
    lists = np.full((1, k), NONE, np.int64)
    yield from _descend(0, width, lists, waiting.none(), waiting, size, memory)


@dataclass(frozen=True)
class _Intervals:
    """Intervals, with the height of the lowest node of the tree that holds each."""

    first: I64
    last: I64
    rank: I64
    level: npt.NDArray[np.int32]

    def none(self) -> _Intervals:
        return self.slice(0, 0)

    def slice(self, begin: int, end: int) -> _Intervals:
        return _Intervals(
            self.first[begin:end], self.last[begin:end], self.rank[begin:end], self.level[begin:end]
        )

    def take(self, at: Mask) -> _Intervals:
        return _Intervals(self.first[at], self.last[at], self.rank[at], self.level[at])

    def joined(self, other: _Intervals) -> _Intervals:
        if len(other.first) == 0:
            return self
        return _Intervals(
            np.concatenate((self.first, other.first)),
            np.concatenate((self.last, other.last)),
            np.concatenate((self.rank, other.rank)),
            np.concatenate((self.level, other.level)),
        )


def _descend(
    base: int,
    width: int,
    lists: I64,
    here: _Intervals,
    waiting: _Intervals,
    size: int,
    memory: int,
) -> Iterator[I64]:
    """Walk the subtrees of neighbouring nodes of one width, the first of which begins at base.

    Of ``here`` each interval is cut to one of the nodes.  Those that wait, the highest first, come
    in at the lowest node that holds them: above it they could neither cover one nor be cut.
    """
    k = lists.shape[1]
    while True:
        count = int(np.searchsorted(-waiting.level, -(width.bit_length() - 1), "right"))
        here = here.joined(waiting.slice(0, count))
        waiting = waiting.slice(count, len(waiting.first))
        node = (here.first - base) // width
        begin = base + node * width
        covers = (here.first <= begin) & (here.last >= np.minimum(begin + width, size))
        lists = _join(lists, node[covers], here.rank[covers])
        if width == 1:
            yield lists
            return
        here = here.take(~covers & (here.rank < lists[:, k - 1][node]))
        width //= 2
        middle = base + ((here.first - base) // width // 2 * 2 + 1) * width
        left, right = here.first < middle, here.last > middle
        here = replace(here.take(left), last=np.minimum(here.last, middle)[left]).joined(
            replace(here.take(right), first=np.maximum(here.first, middle)[right])
        )
        lists = np.repeat(lists, 2, axis=0)[: -(-(size - base) // width)]
        if len(lists) > 1 and lists.size > memory:
            half = len(lists) // 2
            cut = base + half * width
            left, later = here.first < cut, waiting.first >= cut
            some, rest = here.take(left), waiting.take(~later)
            yield from _descend(base, width, lists[:half].copy(), some, rest, cut, memory)
            some, rest = here.take(~left), waiting.take(later)
            yield from _descend(cut, width, lists[half:].copy(), some, rest, size, memory)
            return


def _join(lists: I64, node: I64, rank: I64) -> I64:
    """Put the ranks into the lists of their nodes."""
    k = lists.shape[1]
    fits = rank < lists[:, k - 1][node]
    if not fits.any():
        return lists
    node, rank = node[fits], rank[fits]
    packed = np.sort((node << 31) | rank)
    node, rank = packed >> 31, packed & ((1 << 31) - 1)
    place = np.arange(len(node)) - np.searchsorted(node, node)
    kept = place < k
    node, rank, place = node[kept], rank[kept], place[kept]
    touched = node[group_starts(node)]
    both = np.full((len(touched), 2 * k), NONE, np.int64)
    both[:, :k] = lists[touched]
    both[np.searchsorted(touched, node), k + place] = rank
    both.sort(axis=1)
    lists[touched] = both[:, :k]
    return lists
