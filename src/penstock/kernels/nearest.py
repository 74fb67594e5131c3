"""The nearest partner of every row at every instant, without a loop over rows.

A *ladder* holds rows sorted by key, then value, then whatever breaks ties, so that of two rows of a
key the later one is the better.  A row with key k and bound b may be paired with the rows of k
whose value is at most b: a range ``[first, top]`` of the ladder.  At an instant its partner is the
last row of that range which is alive.

`nearest` finds the partners over a whole interval by cutting it.  Of the rows that overlap the
interval at all, the last one is the partner while it lives; what is left of the interval before and
after it is looked at again, further down.  So each look finds one result, and the cost follows the
results, whatever else is stored.  All intervals are looked at together, in rounds; after some
rounds they are also halved in time, so that one row with very many partners needs only a
logarithmic number of further rounds.

`Ladder.last_overlap` mostly finds its row at the first or second try.  Who is still searching then
climbs a tree over the ladder, in which a node knows the least start and the greatest end of the
rows below it, and so passes over all that is dead or not born yet.

Times are compared, never subtracted: they may be ``MIN_TIME`` or ``INF``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.kernels.counts import key_codes
from penstock.kernels.keys import Keys
from penstock.kernels.order import group_order, key_ranges, search_within, sort_indices
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import staircase
from penstock.model import I64, INF, MIN_TIME, U64, Mask

_TRIES = 4
_BITS = 3
"""A node of the tree has ``2**_BITS`` children."""
_PATIENCE = 16
"""Rounds after which intervals are halved as well."""

Prefer: TypeAlias = Callable[[I64, Mask], I64]
"""Given positions (ladder, case) and which of them are equally good, says which ladder wins."""


def ladder_order(keys: Keys, value: I64, columns: Sequence[pa.Array]) -> I64:
    """Return the order of rows by key, then value, then all columns ascending, nulls first."""
    by_value = None
    if (value[1:] < value[:-1]).any():
        by_value = np.argsort(value, kind="stable")
    order, heads = group_order(keys, by_value)
    values = value[order]
    equal = values[1:] == values[:-1]
    equal[heads[1:] - 1] = False
    if columns and equal.any():
        tied = np.append(equal, False) | np.append(False, equal)
        rows = order[tied]
        group = np.cumsum(np.append(True, ~equal))[tied]
        some = [c.take(pa.array(rows)) for c in columns]
        order[tied] = rows[sort_indices([pa.array(group), *some])]
    return order


def useful(keys: Keys, value: I64, end: I64, sure: Mask, least: int, greatest: int) -> Mask:
    """Return which living rows, in ladder order, can still be a partner.

    ``least`` and ``greatest`` enclose all bounds that are or will be there.  A row above them all
    is nobody's partner; nor is one below them all that has a better one below them all, with a
    ``sure`` end, which ends no earlier.
    """
    keep: Mask = value <= greatest
    judged = np.flatnonzero(keep & sure & (value <= least))
    if len(judged):
        new = np.zeros(len(value), bool)
        new[1:] = (keys.high[1:] != keys.high[:-1]) | (keys.low[1:] != keys.low[:-1])
        code = np.cumsum(new)[judged]
        group = np.cumsum(np.append(False, code[1:] != code[:-1]))
        best = judged[staircase(group, end[judged], -judged)]
        keep[judged] = False
        keep[best] = True
    return keep


class Ladder:
    """Rows in ladder order; the end of one that is gone is ``MIN_TIME``."""

    def __init__(self, high: U64, low: U64, value: I64, start: I64, end: I64) -> None:
        self.high = high
        self.low = low
        self.value = value
        self.start = start
        self.end = end
        self._tree: tuple[I64, I64, I64] | None = None

    def reach(self, keys: Keys, code: I64, bound: I64) -> tuple[I64, I64]:
        """Return for each bound of the key ``keys[code]`` its candidates ``[first, top]``."""
        first, last = (edge[code] for edge in key_ranges(self.high, self.low, keys))
        top = search_within(self.value, first, last, bound + (bound < INF))
        return first, np.where(bound == INF, last, top) - 1

    def last_overlap(self, first: I64, top: I64, start: I64, end: I64) -> I64:
        """Return the last position in each range whose row overlaps ``[start, end)``, else -1."""
        at = np.where(top < first, -1, top)
        active = np.flatnonzero(at >= 0)
        for _ in range(_TRIES):
            if len(active) == 0:
                return at
            here = at[active]
            missed = (self.end[here] <= start[active]) | (self.start[here] >= end[active])
            active = active[missed]
            at[active] -= 1
            below = at[active] < first[active]
            at[active[below]] = -1
            active = active[~below]
        if len(active):
            at[active] = self._climb(first[active], at[active], start[active], end[active])
        return at

    def _climb(self, first: I64, at: I64, start: I64, end: I64) -> I64:
        """The same, by the tree; every range has at least one row."""
        earliest, latest, base = self._nodes()
        result = np.full(len(at), -1, np.int64)
        active = np.arange(len(at))
        level = np.zeros(len(at), np.int64)
        while len(active):
            node = at >> (level * _BITS)
            place = base[level] + node
            fits = (latest[place] > start) & (earliest[place] < end)
            found = fits & (level == 0)
            result[active[found]] = at[found]
            at = np.where(fits, at, (node << (level * _BITS)) - 1)
            width = np.int64(1) << ((level + 1) * _BITS)
            higher = ~fits & (level + 1 < len(base)) & ((at + 1) % width == 0)
            level = level + higher - (fits & (level > 0))
            going = ~found & (at >= first)
            active, at, level = active[going], at[going], level[going]
            first, start, end = first[going], start[going], end[going]
        return result

    def _nodes(self) -> tuple[I64, I64, I64]:
        """Return the least start and greatest end of all nodes, and where each level begins."""
        if self._tree is None:
            earliest, latest = [self.start], [self.end]
            while len(earliest[-1]) > 1 << _BITS:
                cuts = np.arange(0, len(earliest[-1]), 1 << _BITS)
                earliest.append(np.minimum.reduceat(earliest[-1], cuts))
                latest.append(np.maximum.reduceat(latest[-1], cuts))
            base = np.cumsum([0] + [len(level) for level in earliest[:-1]])
            self._tree = np.concatenate(earliest), np.concatenate(latest), base
        return self._tree


@dataclass(frozen=True)
class Nearest:
    """Who is the partner when: sorted by row, then start; a row's intervals leave no gap.

    ``ladder`` is -1 where there is no partner.
    """

    row: I64
    ladder: I64
    position: I64
    start: I64
    end: I64


def nearest(
    ladders: Sequence[Ladder], keys: Keys, bound: I64, start: I64, end: I64, prefer: Prefer
) -> Nearest:
    """Return the partners of rows over their intervals ``[start, end)``."""
    row = np.flatnonzero(start < end)
    start, end = start[row], end[row]
    code, distinct = key_codes(keys.take(row))
    reach = [ladder.reach(distinct, code, bound[row]) for ladder in ladders]
    shape = len(ladders), len(row)
    first = np.array([f for f, _ in reach], np.int64).reshape(shape)
    top = np.array([t for _, t in reach], np.int64).reshape(shape)
    parts: list[tuple[I64, ...]] = []
    rounds = 0
    while len(row):
        at = np.empty_like(top)
        for i, ladder in enumerate(ladders):
            at[i] = ladder.last_overlap(first[i], top[i], start, end)
        which = _best(ladders, at, prefer)
        place = np.where(which < 0, -1, 0)
        begin, finish = start.copy(), end.copy()
        for i, ladder in enumerate(ladders):
            mine = np.flatnonzero(which == i)
            position = at[i][mine]
            place[mine] = position
            begin[mine] = np.maximum(start[mine], ladder.start[position])
            finish[mine] = np.minimum(end[mine], ladder.end[position])
        parts.append((row, which, place, begin, finish))
        before, after = np.flatnonzero(start < begin), np.flatnonzero(finish < end)
        left = np.concatenate((before, after))
        row, first, top = row[left], first[:, left], at[:, left]
        start, end = (
            np.concatenate((start[before], finish[after])),
            np.concatenate((begin[before], end[after])),
        )
        rounds += 1
        if rounds >= _PATIENCE:
            middle = (start >> 1) + (end >> 1) + (start & end & 1)
            wide = np.flatnonzero((start < middle) & (middle < end))
            row = np.concatenate((row, row[wide]))
            first = np.concatenate((first, first[:, wide]), axis=1)
            top = np.concatenate((top, top[:, wide]), axis=1)
            start = np.concatenate((start, middle[wide]))
            end = np.concatenate((end, end[wide]))
            end[wide] = middle[wide]
    return _in_order(parts)


def _best(ladders: Sequence[Ladder], at: I64, prefer: Prefer) -> I64:
    """Return which ladder's row is the best in each case, -1 where none has one."""
    there = at >= 0
    if len(ladders) < 2:
        return np.where(there[0], 0, -1) if len(ladders) else np.full(at.shape[1], -1, np.int64)
    value = np.full(at.shape, MIN_TIME, np.int64)
    for i, ladder in enumerate(ladders):
        value[i][there[i]] = ladder.value[at[i][there[i]]]
    equal = there & (value == value.max(axis=0))
    which = np.where(there.any(axis=0), equal.argmax(axis=0), -1)
    tied = np.flatnonzero(equal.sum(axis=0) > 1)
    if len(tied):
        which[tied] = prefer(at[:, tied], equal[:, tied])
    return which


def _in_order(parts: list[tuple[I64, ...]]) -> Nearest:
    """Sort what was found, and join the neighbours that halving has cut."""
    none = np.empty(0, np.int64)
    if not parts:
        return Nearest(none, none, none, none, none)
    row, which, place, start, end = map(np.concatenate, zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.lexsort((start, row))
        row, which, place = row[order], which[order], place[order]
        start, end = start[order], end[order]
        first = group_starts(row, which, place)
        if len(first) < len(row):
            last = np.append(first[1:], len(row)) - 1
            row, which, place, start, end = (
                row[first],
                which[first],
                place[first],
                start[first],
                end[last],
            )
    return Nearest(row, which, place, start, end)
