"""The k-th smallest of a bag that changes, at every step, without a loop over rows.

Changes ``(rank, weight)`` stand in the order of time: a weight says how many copies of a value come
or, if it is negative, go.  A question asks for the k-th smallest after some of the changes.

All questions walk down a tree over the bits of ranks at once, as in a wavelet matrix.  On each
level the changes are split by one bit, those with 0 before those with 1, and otherwise stay in
order; so the changes of a node that were there at a question's time are always one range, whose
ends follow from counts of zeros.  A question goes to the right where the copies on the left are not
more than k.  The cost is O((changes + questions) * log(values)).
"""

from __future__ import annotations

import numpy as np

from penstock.model import I64, Mask


def kth_smallest(rank: I64, weight: I64, after: I64, k: I64) -> I64:
    """Return for each question the rank of the k-th smallest (from 0) of ``after`` changes.

    There must be more than k copies then, and never fewer than none of any rank.
    """
    found = np.zeros(len(k), np.int64)
    first, last = np.zeros(len(k), np.int64), after.copy()
    packed = int(np.abs(weight).sum()) < 1 << 31
    top = int(rank.max(initial=0)).bit_length()
    for level in range(top - 1, -1, -1):
        zero = (rank >> level) & 1 == 0
        zeros_first, zeros_last, left, zeros = _left(zero, weight, first, last, packed)
        right = k >= left
        k = np.where(right, k - left, k)
        first = np.where(right, first - zeros_first + zeros, zeros_first)
        last = np.where(right, last - zeros_last + zeros, zeros_last)
        found |= right.astype(np.int64) << level
        order = np.concatenate((np.flatnonzero(zero), np.flatnonzero(~zero)))
        rank, weight = rank[order], weight[order]
    return found


def _left(
    zero: Mask, weight: I64, first: I64, last: I64, packed: bool
) -> tuple[I64, I64, I64, int]:
    """Return the zeros before each end of ranges, the copies of zeros between, and all zeros.

    Where the copies fit into 32 bits, zeros and copies are summed up as one number.
    """
    sums = np.zeros(len(zero) + 1, np.int64)
    if packed:
        np.cumsum(np.where(zero, weight + (1 << 32), 0), out=sums[1:])
        low, high = sums[first], sums[last]
        return low >> 32, high >> 32, (high - low) & 0xFFFF_FFFF, int(sums[-1] >> 32)
    np.cumsum(zero, out=sums[1:])
    copies = np.zeros(len(zero) + 1, np.int64)
    np.cumsum(np.where(zero, weight, 0), out=copies[1:])
    return sums[first], sums[last], copies[last] - copies[first], int(sums[-1])
