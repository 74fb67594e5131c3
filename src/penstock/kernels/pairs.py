"""Which rows of two sorted sides meet: equal keys, overlapping validity, in blocks of bounded size.

A side is sorted by the *bucket* of its key, the top 40 bits of the high hash lane, then by start.
Leaving 24 bits out lets the position travel inside the number that is sorted, so one sort of plain
integers replaces an indirect one; both lanes are always compared before two rows count as equal.

A probe never looks at the whole run.  Each distinct key of the probe is found by binary search, and
its bucket is the range of candidates ``[first, last)``.  Inside a bucket

* starts ascend, so ``run.start < probe.end`` cuts the range at its back;
* if ends ascend too (*stairs*: every window of one width), ``probe.start < run.end`` cuts it at its
  front;
* if no two keys share a bucket (*pure*: nearly always), looking at its first row verifies them all.

A pure run with stairs therefore yields exact ranges, and a hot key costs what it yields.  What the
ranges leave open is tested pair by pair.  Times are compared, never subtracted: they may be
``MIN_TIME`` or ``INF``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.model import I64, U64, Mask

_INDEX_BITS = 24
_INDEX = np.uint64((1 << _INDEX_BITS) - 1)
_BUCKET = ~_INDEX
WORTH_BISECTING = 4
"""Candidates per probe row from which cutting ranges is cheaper than testing every pair."""


@dataclass(frozen=True)
class Ordered:
    """The keys and validities of rows sorted by bucket, then start.

    ``max_start`` and ``min_end`` are bounds over all rows; they save tests, so they must be true.
    """

    high: U64
    low: U64
    start: I64
    end: I64
    max_start: int
    min_end: int
    pure: bool
    stairs: bool

    def __len__(self) -> int:
        return len(self.high)


def bucket_of(high: np.uint64) -> int:
    """Return the bucket of a high lane as a plain number."""
    return int(high) >> _INDEX_BITS


def sort_order(high: U64, start: I64 | U64) -> I64:
    """Return the order that sorts rows by bucket, then start (or another number)."""
    rows = len(high)
    if rows > 1 << _INDEX_BITS:
        return np.lexsort((start, high & _BUCKET))
    by_start = None
    if rows and (start[1:] < start[:-1]).any():
        by_start = np.argsort(start, kind="stable")
        high = high[by_start]
    packed = (high & _BUCKET) | np.arange(rows, dtype=np.uint64)
    packed.sort()
    order = (packed & _INDEX).astype(np.int64)
    return order if by_start is None else by_start[order]


def merge_order(high: U64) -> I64:
    """Return the order that merges sorted sides standing one after another.

    Every start of one side must be at or above all starts of the sides before it: then keeping rows
    of one bucket in their order keeps them sorted.  A stable sort takes sorted pieces as they are.
    """
    return np.argsort(high & _BUCKET, kind="stable")


def shape(high: U64, low: U64, end: I64) -> tuple[bool, bool]:
    """Return whether a sorted side is pure, and whether it has stairs."""
    gap = high[1:] ^ high[:-1]
    same = np.flatnonzero(gap <= _INDEX)
    following = same + 1
    pure = not gap[same].any() and bool((low[following] == low[same]).all())
    return pure, bool((end[following] >= end[same]).all())


def match(probe: Ordered, run: Ordered, block: int) -> Iterator[tuple[I64, I64]]:
    """Yield every pair of equal keys and overlapping validity once: positions in both sides.

    At most ``block`` candidates are looked at, and so at most ``block`` pairs yielded, at a time.
    """
    if len(probe) == 0 or len(run) == 0:
        return
    rows, first, last = candidates(probe, run)
    if len(rows) == 0:
        return
    test_start = int(probe.end.min()) <= run.max_start
    test_end = int(probe.start.max()) >= run.min_end
    if (test_start or test_end) and int((last - first).sum()) > WORTH_BISECTING * len(rows):
        if test_start:
            last = bisect(run.start, probe.end[rows], first, last, inclusive=False)
            test_start = False
        if test_end and run.stairs:
            first = bisect(run.end, probe.start[rows], first, last, inclusive=True)
            test_end = False
        some = np.flatnonzero(first < last)
        if len(some) < len(rows):
            rows, first, last = rows[some], first[some], last[some]
    for owner, position in blocks(first, last, block):
        row = owner if len(rows) == len(probe) else rows[owner]
        keep: Mask | None = None
        if not run.pure:
            keep = run.low[position] == probe.low[row]
            keep &= run.high[position] == probe.high[row]
        if test_start:
            overlap = run.start[position] < probe.end[row]
            keep = overlap if keep is None else keep & overlap
        if test_end:
            overlap = probe.start[row] < run.end[position]
            keep = overlap if keep is None else keep & overlap
        if keep is not None:
            kept = np.flatnonzero(keep)
            if len(kept) < len(row):
                row, position = row[kept], position[kept]
        if len(row):
            yield row, position


def blocks(first: I64, last: I64, size: int) -> Iterator[tuple[I64, I64]]:
    """Expand ranges ``[first[i], last[i])``, none empty, into (i, position), ``size`` at a time."""
    if len(first) == 0:
        return
    counts = last - first
    after = np.cumsum(counts)
    total = int(after[-1])
    if total <= size:
        yield _expand(0, first, counts)
        return
    for low in range(0, total, size):
        high = min(low + size, total)
        begin = int(np.searchsorted(after, low, "right"))
        stop = int(np.searchsorted(after, high, "left")) + 1
        part_first, part_last = first[begin:stop].copy(), last[begin:stop].copy()
        part_first[0] += low - int(after[begin] - counts[begin])
        part_last[-1] -= int(after[stop - 1]) - high
        yield _expand(begin, part_first, part_last - part_first)


def _expand(offset: int, first: I64, counts: I64) -> tuple[I64, I64]:
    """Expand non-empty ranges by running sums: cheaper than repeating."""
    after = np.cumsum(counts)
    total = int(after[-1])
    if total == len(first):
        return np.arange(offset, offset + total), first
    owner = np.zeros(total, np.int64)
    position = np.ones(total, np.int64)
    owner[0], position[0] = offset, first[0]
    turns = after[:-1]
    owner[turns] = 1
    position[turns] = first[1:] - (first[:-1] + counts[:-1] - 1)
    return np.cumsum(owner, out=owner), np.cumsum(position, out=position)


def candidates(probe: Ordered, run: Ordered) -> tuple[I64, I64, I64]:
    """Return the probe rows that have candidates, and the range of each in the run."""
    new = np.ones(len(probe), bool)
    new[1:] = (probe.high[1:] != probe.high[:-1]) | (probe.low[1:] != probe.low[:-1])
    heads = np.flatnonzero(new)
    high = probe.high[heads]
    first = np.searchsorted(run.high, high & _BUCKET)
    there = run.high[np.minimum(first, len(run) - 1)]
    if run.pure:
        hit = np.flatnonzero(there == high)
        hit = hit[run.low[first[hit]] == probe.low[heads[hit]]]
    else:
        hit = np.flatnonzero((there ^ high) <= _INDEX)
    sizes = np.diff(heads, append=len(probe))[hit]
    first = first[hit]
    last = first + 1  # most buckets have one row: only where the next row is alike, search
    more = np.flatnonzero((run.high[np.minimum(last, len(run) - 1)] ^ high[hit]) <= _INDEX)
    if len(more):
        last[more] = np.searchsorted(run.high, high[hit[more]] | _INDEX, "right")
    if len(hit) == len(probe):
        return heads, first, last
    owner, rows = _expand(0, heads[hit], sizes) if len(hit) else (hit, hit)
    return rows, first[owner], last[owner]


def bisect(column: I64 | U64, key: I64 | U64, first: I64, last: I64, inclusive: bool) -> I64:
    """Return, for each range, the first position whose value is not below the key.

    ``inclusive``: not at or below it.  The column ascends inside every range.
    """
    low, high = first.copy(), last.copy()
    active: npt.NDArray[Any] = np.flatnonzero(low < high)
    while len(active):
        bottom, top = low[active], high[active]
        middle = (bottom + top) >> 1
        value, wanted = column[middle], key[active]
        below = value <= wanted if inclusive else value < wanted
        bottom = np.where(below, middle + 1, bottom)
        top = np.where(below, top, middle)
        low[active], high[active] = bottom, top
        active = active[bottom < top]
    return low
