"""The values of an argument in order, per group, with how often each is there: for percentiles.

A spine sorted by key and value holds the net number of copies per value and piece, as that of MIN
and MAX over rows with holders does (`runs.extremes`), and running sums of these numbers.  So the
number of copies up to a value is one binary search per piece, and the value at a place is found by
halving the range of values.

In a slice, b births and d deaths move the value at a place by b places down and d places up at
most.  So of the old values of a group only those near its places are read.  Of all others it only
matters how many lie below: the cost follows what comes and goes, not the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.keys import Keys
from penstock.kernels.order import key_ranges, search_within
from penstock.kernels.selecting import kth_smallest
from penstock.kernels.steps import group_starts, ranges, segmented_cumsum
from penstock.kernels.sweep import restored
from penstock.kernels.work import Work
from penstock.model import I64, to_numpy
from penstock.runs.extremes import Counts, table_of
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece
from penstock.runs.state import State

_BELOW, _ABOVE = np.int64(np.iinfo(np.int64).min), np.int64(np.iinfo(np.int64).max)
_READ_ALL = 256


class _Sums(Counts):
    """Numbers of copies with their running sums."""

    def _netted(self, table: pa.Table) -> pa.Table:
        netted = super()._netted(table)
        total = np.cumsum(to_numpy(netted.column("count")))
        return netted.set_column(4, "total", pa.array(total))


@dataclass(frozen=True)
class _Span:
    """The rows ``[first, last)`` of a piece that belong to each of some groups."""

    piece: Piece
    first: I64
    last: I64

    def upto(self, at: I64) -> I64:
        """Return the copies in all rows of the piece before each place."""
        total = self.piece.numbers("total")
        return np.where(at > 0, total[np.maximum(at - 1, 0)], 0)


@dataclass(frozen=True)
class _Near:
    """Old values of groups near some places, and how many lie below them.

    Values of group i are in ``[least[i], most[i]]``.
    """

    group: I64
    value: I64
    count: I64
    least: I64
    most: I64
    below: I64


class Ranked:
    """The values of one argument, which are `ordered` integers."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._spine = _Sums(state, name, False, merging)

    def save(self, until: int) -> None:
        """Merge pieces as the strategy says, and store them."""
        self._spine.merge(until)
        self._spine.save()

    def change(self, keys: Keys, values: I64, weight: I64) -> None:
        """Add copies of values, or take them away."""
        if len(keys):
            self._spine.put(table_of(keys, pa.array(values), count=weight, total=weight))

    def near(self, keys: Keys, size: I64, low: I64, high: I64) -> _Near:
        """Return the values at the places from ``low`` to ``high`` of groups of some size."""
        spans = [
            _Span(piece, *key_ranges(piece.numbers("high"), piece.numbers("low"), keys))
            for piece in self._spine.pieces
        ]
        least, most = np.full(len(keys), _BELOW), np.full(len(keys), _ABOVE)
        large = np.flatnonzero((size > 2 * (high - low) + _READ_ALL) & (low < size))
        for place, bound, open_ in ((low, least, low > 0), (high, most, high < size - 1)):
            some = large[open_[large]]
            bound[some] = _at_place(spans, some, place[some])
        below = np.zeros(len(keys), np.int64)
        groups, values, counts = ([np.empty(0, np.int64)] for _ in range(3))
        for span in spans:
            numbers = span.piece.numbers("value")
            begin = search_within(numbers, span.first, span.last, least)
            end = search_within(numbers, begin, span.last, np.where(most < _ABOVE, most + 1, most))
            below += span.upto(begin) - span.upto(span.first)
            group, at = ranges(begin, end)
            groups.append(group)
            values.append(numbers[at])
            counts.append(span.piece.numbers("count")[at])
        group, value, count = (np.concatenate(parts) for parts in (groups, values, counts))
        return _Near(group, value, count, least, most, below)


def _at_place(spans: Sequence[_Span], groups: I64, place: I64) -> I64:
    """Return the value at a place of each group, all of which are that large."""
    narrow = [(span.first[groups], span.last[groups]) for span in spans]
    base = [span.upto(first) for span, (first, _) in zip(spans, narrow, strict=True)]
    low, high = np.full(len(groups), _ABOVE), np.full(len(groups), _BELOW)
    for span, (first, last) in zip(spans, narrow, strict=True):
        numbers = span.piece.numbers("value")
        some = first < last
        low[some] = np.minimum(low[some], numbers[first[some]])
        high[some] = np.maximum(high[some], numbers[last[some] - 1])
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] & high[open_]) + ((low[open_] ^ high[open_]) >> 1)
        copies = np.zeros(len(open_), np.int64)
        found = []
        for span, (first, last), before in zip(spans, narrow, base, strict=True):
            at = search_within(span.piece.numbers("value"), first[open_], last[open_], middle + 1)
            copies += span.upto(at) - before[open_]
            found.append(at)
        enough = copies > place[open_]
        high[open_[enough]] = middle[enough]
        low[open_[~enough]] = middle[~enough] + 1
        for (first, last), at in zip(narrow, found, strict=True):
            last[open_[enough]] = at[enough]
            first[open_[~enough]] = at[~enough]
    return low


def percentiles(
    store: Ranked, work: Work, values: I64, weight: I64, count: I64, shares: Sequence[float]
) -> list[npt.NDArray[np.float64]]:
    """Return the percentiles of each share at every step, and store what the slice changed.

    ``values`` and ``weight`` are those of births and deaths; ``count`` is the number of values.
    """
    event = np.flatnonzero(weight)
    value, weight, group = values[event], weight[event], work.code[event]
    step = work.step_of_events()[event]
    found = []
    for share in shares:
        place = np.maximum(count - 1, 0) * share
        low, high = np.floor(place).astype(np.int64), np.ceil(place).astype(np.int64)
        begin, groups = work.steps.begin, len(work.keys)
        least = np.minimum.reduceat(low, begin) - np.bincount(group[weight > 0], minlength=groups)
        most = np.maximum.reduceat(high, begin) + np.bincount(group[weight < 0], minlength=groups)
        near = store.near(work.keys, count[begin], least, most)
        bag = _Bag.of(work, near, (group, step, value, weight))
        asked = np.flatnonzero(count > 0)
        first = bag.at(asked, low[asked])
        second = first.copy()
        between = np.flatnonzero(high[asked] > low[asked])
        second[between] = bag.at(asked[between], high[asked[between]])
        one, other = (_doubles(v) for v in (first, second))
        with np.errstate(invalid="ignore"):
            mixed = (high - place)[asked] * one + (place - low)[asked] * other
        result = np.zeros(len(count))
        result[asked] = np.where(first == second, one, mixed)
        found.append(np.where(np.isnan(result), np.nan, result + 0.0))
    store.change(work.keys.take(group), value, weight)
    return found


def _doubles(numbers: I64) -> npt.NDArray[np.float64]:
    """Return the doubles of `ordered` integers."""
    everywhere = np.ones(len(numbers), bool)
    doubles: npt.NDArray[np.float64] = to_numpy(restored(numbers, pa.float64(), everywhere))
    return doubles


@dataclass(frozen=True)
class _Bag:
    """The values near some places at every step: changes in the order of steps, old ones first.

    Ranks of a group are above those of the groups before it.  ``less`` says how many values of the
    group at each step are below those near, minus how many near ones the groups before it have.
    """

    rank: I64
    weight: I64
    value_of: I64
    upto: I64
    less: I64

    @staticmethod
    def of(work: Work, near: _Near, changes: tuple[I64, I64, I64, I64]) -> _Bag:
        group, step, value, weight = changes
        begin, size = work.steps.begin, len(work.steps)
        below = value < near.least[group]
        less = np.bincount(step[below], weight[below], size).astype(np.int64)
        inside = np.flatnonzero(~below & (value <= near.most[group]))
        groups = np.concatenate((near.group, group[inside]))
        values = np.concatenate((near.value, value[inside]))
        weights = np.concatenate((near.count, weight[inside]))
        steps = np.concatenate((begin[near.group], step[inside]))
        left = np.bincount(groups, weights, len(work.keys)).astype(np.int64)
        total = segmented_cumsum(less, begin) + near.below[work.steps.code]
        order = np.lexsort((values, groups))
        rank = np.empty(len(order), np.int64)
        starts = group_starts(groups[order], values[order])
        rank[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        by_step = np.argsort(steps, kind="stable")
        upto = np.cumsum(np.bincount(steps, minlength=size))
        before = (np.cumsum(left) - left)[work.steps.code]
        return _Bag(rank[by_step], weights[by_step], values[order[starts]], upto, total - before)

    def at(self, steps: I64, place: I64) -> I64:
        """Return the values at places of some steps."""
        k = place - self.less[steps]
        return self.value_of[kth_smallest(self.rank, self.weight, self.upto[steps], k)]
