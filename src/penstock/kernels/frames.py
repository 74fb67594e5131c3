"""Frames of window functions over rows that are sorted by partition and numbered in it.

Sums over frames are differences of running sums of exact digits (`kernels.exact`).  Minima come
from a sparse table, of which only one level is there at a time: a frame is the union of two blocks
whose length is the same power of two.  A minimum that begins anew in every group is one
`minimum.accumulate`: with ``m`` above all ranks, ``rank - group * m`` drops at every new group
below everything before it.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.exact import Digits
from penstock.kernels.steps import segmented_cumsum
from penstock.kernels.sweep import NONE
from penstock.model import I64


def least_in(rank: I64, first: I64, last: I64) -> I64:
    """Return the least rank of each range ``[first, last]``, `NONE` where it is empty."""
    found = np.full(len(first), NONE, np.int64)
    length = last - first + 1
    some = np.flatnonzero(length > 0)
    if len(some) == 0:
        return found
    level = np.frexp(length[some].astype(np.float64))[1] - 1
    order = np.argsort(level.astype(np.uint8), kind="stable")
    highest = int(level.max())
    bounds = np.searchsorted(level[order], np.arange(highest + 2))
    table = rank
    for height in range(highest + 1):
        mine = some[order[bounds[height] : bounds[height + 1]]]
        if len(mine):
            found[mine] = np.minimum(table[first[mine]], table[last[mine] - (1 << height) + 1])
        if height < highest:
            table = np.minimum(table[: -(1 << height)], table[1 << height :])
    return found


def least_so_far(rank: I64, group: I64, size: int) -> I64:
    """Return the least of each row's rank and those before it in its group.

    Ranks are from 0 to below ``size``; groups ascend.
    """
    shift = group * size
    result: I64 = np.minimum.accumulate(rank - shift) + shift
    return result


def least_from_here(rank: I64, group: I64) -> I64:
    """Return where the least rank stands among each row and those behind it in its group."""
    count = len(rank)
    order = np.argsort(rank, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    shift = group * (count + 1)
    best = np.minimum.accumulate((place + shift)[::-1])[::-1] - shift
    result: I64 = order[best]
    return result


def running_digits(digits: Digits, starts: I64, group: I64, base: Digits) -> Digits:
    """Return running sums in each group, on top of what the groups had before.

    ``starts`` is where groups begin, ``group`` the group of each row.
    """
    found = {b: segmented_cumsum(d, starts) for b, d in digits.items()}
    for bin_, before in base.items():
        if before.any():
            spread = before[group]
            found[bin_] = found[bin_] + spread if bin_ in found else spread
    return found


def added(a: Digits, b: Digits, sign: int = 1) -> Digits:
    """Return ``a + sign * b``."""
    result = dict(a)
    for bin_, digit in b.items():
        term = digit * sign
        result[bin_] = result[bin_] + term if bin_ in result else term
    return result


def picked(digits: Digits, at: I64) -> Digits:
    """Return the numbers at some places."""
    return {b: d[at] for b, d in digits.items()}


def joined(first: Digits, rows: int, second: Digits, others: int) -> Digits:
    """Return two columns of numbers, of so many rows each, as one."""
    none, no_others = np.zeros(rows, np.int64), np.zeros(others, np.int64)
    return {
        b: np.concatenate((first.get(b, none), second.get(b, no_others)))
        for b in first.keys() | second.keys()
    }
