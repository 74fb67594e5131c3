"""Step functions over time: events per code and instant, accumulated, cut into intervals."""

from __future__ import annotations

import numpy as np

from penstock.model import I64, U64


def group_starts(*columns: I64 | U64) -> I64:
    """Return the positions at which any of the sorted columns changes, beginning with 0."""
    rows = len(columns[0])
    if rows == 0:
        return np.empty(0, np.int64)
    new = np.zeros(rows, bool)
    new[0] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


def segmented_cumsum(values: I64, starts: I64) -> I64:
    """Return running sums that begin anew at each position of ``starts`` (the first is 0)."""
    if len(values) == 0:
        return values.copy()
    total = np.cumsum(values)
    lengths = np.diff(np.append(starts, len(values)))
    before = np.concatenate(([0], total[starts[1:] - 1])).astype(total.dtype)
    result: I64 = total - np.repeat(before, lengths)
    return result


def ranges(first: I64, last: I64) -> tuple[I64, I64]:
    """Expand ``[first[i], last[i])``: return (i repeated, every position) for all i."""
    counts = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(first)), counts)
    offsets = np.cumsum(counts) - counts
    position = np.arange(int(counts.sum())) - np.repeat(offsets, counts) + np.repeat(first, counts)
    return owner, position
