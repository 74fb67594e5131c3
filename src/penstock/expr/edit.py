"""The edit distance of many pairs of texts at once.

The distance of two texts is the least number of insertions, deletions and replacements of
characters (code points) that turn one into the other.  Let ``d[i][j]`` be the distance of the first
i characters of one and the first j of the other.  Only cells with ``|j - i| <= k`` can hold a
distance of at most k, so a row of the table has ``2k + 1`` cells, numbered by ``j - i``.  One row
of *all* pairs is made at a time:

* from the row above by a replacement (the same ``j - i``) or a deletion (the next one);
* inside the row an insertion costs 1 per cell: a running minimum of ``d - (j - i)``.

So the only loop is over the characters of the longest text.  Pairs whose whole row is above k leave
early.  Without a bound, k grows until every pair is within it: the cost follows the distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model import I64

_FIRST_BOUND = 3
_CELLS = 1 << 20
"""Cells of the table that are worked on at once."""


@dataclass(frozen=True)
class Characters:
    """Texts as code points, one after the other: text i has ``length[i]`` from ``first[i]`` on."""

    points: npt.NDArray[np.uint32]
    first: I64
    length: I64

    def take(self, index: Any) -> Characters:
        return Characters(self.points, self.first[index], self.length[index])


def characters(texts: pa.Array) -> Characters:
    """Return the code points of texts; null counts as empty."""
    rows = len(texts)
    if texts.null_count:
        texts = texts.fill_null("")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, rows + 1, texts.offset * 4).astype(np.int64)
    size = int(ends[-1] - ends[0])
    if size == 0:
        return Characters(np.zeros(1, np.uint32), ends[:-1] * 0, ends[:-1] * 0)
    octets = np.frombuffer(data, np.uint8, size, int(ends[0]))
    ends = ends - ends[0]
    if (octets < 0x80).all():
        return Characters(octets.astype(np.uint32), ends[:-1], np.diff(ends))
    heads = (octets & 0xC0) != 0x80
    before = np.concatenate([[0], np.cumsum(heads)])
    firsts = before[ends]
    return Characters(_decoded(octets, np.flatnonzero(heads)), firsts[:-1], np.diff(firsts))


def _decoded(octets: npt.NDArray[np.uint8], heads: I64) -> npt.NDArray[np.uint32]:
    """Return the code points of UTF-8 whose characters begin at ``heads``."""
    lead = octets[heads].astype(np.uint32)
    points = lead.copy()
    for size, bits in ((2, 0x1F), (3, 0x0F), (4, 0x07)):
        starts = {2: 0xC0, 3: 0xE0, 4: 0xF0}[size]
        some = np.flatnonzero((lead >= starts) & (lead < (0xE0, 0xF0, 0x100)[size - 2]))
        found = lead[some] & bits
        for step in range(1, size):
            found = (found << 6) | (octets[heads[some] + step].astype(np.uint32) & 0x3F)
        points[some] = found
    return points


def edit_distances(one: pa.Array, other: pa.Array, bound: int | None = None) -> I64:
    """Return the distance of each pair; one above ``bound`` is given as ``bound + 1``."""
    a, b = characters(one), characters(other)
    longest = int(max(a.length.max(initial=0), b.length.max(initial=0)))
    if bound is not None and bound < longest:
        return _all_within(a, b, bound)
    result = np.empty(len(one), np.int64)
    waiting = np.arange(len(one))
    reach = _FIRST_BOUND
    while len(waiting):
        reach = min(reach, longest)
        found = _all_within(a.take(waiting), b.take(waiting), reach)
        result[waiting] = found
        if reach == longest:
            break
        waiting = waiting[found > reach]
        reach *= 4
    return result


def _all_within(a: Characters, b: Characters, bound: int) -> I64:
    """Work off the pairs in blocks, texts of like length together."""
    rows = len(a.length)
    result = np.full(rows, bound + 1, np.int64)
    order = np.argsort(-a.length, kind="stable")
    order = order[np.abs(a.length - b.length)[order] <= bound]
    size = max(1, _CELLS // (2 * bound + 1))
    for first in range(0, len(order), size):
        part = order[first : first + size]
        result[part] = _within(a.take(part), b.take(part), bound)
    return result


def _within(a: Characters, b: Characters, bound: int) -> I64:
    """Return distances capped at ``bound + 1``; ``a`` is sorted, its longest text first."""
    shift = np.arange(-bound, bound + 1)
    cap = bound + 1
    result = np.full(len(a.length), cap, np.int64)
    where = np.arange(len(a.length))
    row = np.broadcast_to(np.where(shift >= 0, shift, cap), (len(where), len(shift)))
    empty = a.length == 0
    result[empty] = b.length[empty]
    for i in range(1, int(a.length.max(initial=0)) + 1):
        active = int(np.searchsorted(-a.length, -i, "right"))
        if active < len(where):
            a, b, where, row = (
                a.take(slice(active)),
                b.take(slice(active)),
                where[:active],
                row[:active],
            )
        j = i + shift
        position = b.first[:, None] + (np.clip(j, 1, None) - 1)
        np.minimum(position, len(b.points) - 1, out=position)
        other = a.points[a.first + i - 1][:, None] != b.points[position]
        new = row + other
        np.minimum(new[:, :-1], row[:, 1:] + 1, out=new[:, :-1])
        new[:, j < 0] = cap
        new[:, j == 0] = min(i, cap)
        new -= shift
        np.minimum.accumulate(new, axis=1, out=new)
        new += shift
        np.minimum(new, cap, out=new)
        done = np.flatnonzero(a.length == i)
        result[where[done]] = new[done, (b.length - a.length)[done] + bound]
        hopeful = new.min(axis=1) <= bound
        if 2 * int(hopeful.sum()) < len(hopeful):
            keep = np.flatnonzero(hopeful)
            a, b, where, new = a.take(keep), b.take(keep), where[keep], new[keep]
            if not len(keep):
                break
        row = new
    return result
