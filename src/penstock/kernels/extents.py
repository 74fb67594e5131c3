"""Window functions over many ordered lists of rows at once.

The lists stand one behind the other in one column of positions; ``begin`` and ``finish`` are where
the list of each position begins and ends, and peers of a row stand beside it.  An extent is a range
of positions, so a sum over it is a difference of running sums of exact digits, a minimum comes from
a sparse table, and everything else is a look at another position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kernels.exact import Digits
from penstock.kernels.frames import added, least_in, picked
from penstock.kernels.measures import Extreme, Measure, numbers, result
from penstock.kernels.order import search_within
from penstock.kernels.partitions import ranked, valid_count
from penstock.kernels.steps import group_starts
from penstock.model import I64, Mask

Extent = tuple[str, int | None, int | None]
"""ROWS or RANGE, from and to so many rows behind the row; None: as far as there are any."""

VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")


@dataclass(frozen=True)
class Lists:
    """Positions of many lists: ``list`` is the list of each, ``peers`` its class of peers in it.

    ``key`` is what a list is ordered by, where a RANGE has a distance: it ascends, but for the rows
    where it is ``null``, which stand together at one end.
    """

    list: I64
    peers: I64
    key: I64 | None = None
    null: Mask | None = None

    def __len__(self) -> int:
        return len(self.list)

    @cached_property
    def _starts(self) -> I64:
        return group_starts(self.list)

    @cached_property
    def begin(self) -> I64:
        """Where the list of each position begins."""
        return _spread(self._starts, self._starts, len(self))

    @cached_property
    def finish(self) -> I64:
        """Where the list of each position ends."""
        return _spread(np.append(self._starts[1:], len(self)), self._starts, len(self))

    @cached_property
    def _classes(self) -> I64:
        return group_starts(self.list, self.peers)

    @cached_property
    def first_peer(self) -> I64:
        """Where the peers of each position begin."""
        return _spread(self._classes, self._classes, len(self))

    @cached_property
    def after_peers(self) -> I64:
        """Where the peers of each position end."""
        return _spread(np.append(self._classes[1:], len(self)), self._classes, len(self))

    @cached_property
    def place(self) -> I64:
        """The place of each position in its list, from 0."""
        return np.arange(len(self)) - self.begin

    def range(self, extent: Extent) -> tuple[I64, I64]:
        """Return the positions ``[low, high)`` of an extent; ``low <= high``."""
        here = np.arange(len(self))
        unit, start, end = extent
        if unit == "range" and self.key is not None and has_distance(extent):
            return self._near(self.key, start, end)
        if unit == "range":
            low = self.begin if start is None else self.first_peer
            return low, self.finish if end is None else self.after_peers
        low = self.begin if start is None else np.maximum(here + start, self.begin)
        high = self.finish if end is None else np.minimum(here + end + 1, self.finish)
        low = np.minimum(low, self.finish)
        return low, np.maximum(low, high)

    def _near(self, key: I64, start: int | None, end: int | None) -> tuple[I64, I64]:
        """Return the positions whose keys are so near; a null is near its peers only."""
        null = np.zeros(len(self), bool) if self.null is None else self.null
        nulls = np.concatenate(([0], np.cumsum(null)))
        count = nulls[self.finish] - nulls[self.begin]
        first = null[self.begin] if len(self) else null
        begin = self.begin + np.where(first, count, 0)
        finish = self.finish - np.where(first, 0, count)

        def behind(distance: int) -> I64:
            """Return where the keys begin that are so much above that of each position."""
            target = key + distance
            found = search_within(key, begin, finish, target)
            if distance > 0:
                return np.where(target < key, finish, found)
            return np.where(target > key, begin, found)

        low = self.begin if start is None else np.where(null, self.first_peer, behind(start))
        high = self.finish if end is None else np.where(null, self.after_peers, behind(end + 1))
        return low, high


def has_distance(extent: Extent) -> bool:
    """Whether an extent reaches to rows whose keys are so much smaller or larger."""
    return extent[0] == "range" and any(bound not in (None, 0) for bound in extent[1:])


def number(name: str, lists: Lists, buckets: int) -> pa.Array:
    """Return a function of the place of each position."""
    size = lists.finish - lists.begin
    match name:
        case "row_number":
            return pa.array(lists.place + 1)
        case "rank":
            return pa.array(lists.first_peer - lists.begin + 1)
        case "dense_rank":
            new = np.zeros(len(lists), np.int64)
            new[lists.first_peer[lists.first_peer == np.arange(len(lists))]] = 1
            total = np.cumsum(new)
            return pa.array(total - total[lists.begin] + 1)
        case "ntile":
            # the first size % buckets of them have one row more
            small, more = size // buckets, size % buckets
            in_large = more * (small + 1)
            large = lists.place // (small + 1)
            rest = more + (lists.place - in_large) // np.maximum(small, 1)
            return pa.array(np.where(lists.place < in_large, large, rest) + 1)
        case "percent_rank":
            behind = lists.first_peer - lists.begin
            return pa.array(behind / np.maximum(size - 1, 1))
    return pa.array((lists.after_peers - lists.begin) / np.maximum(size, 1))


def shifted(
    lists: Lists, values: pa.Array, distance: int, default: Callable[[I64], pa.Array]
) -> pa.Array:
    """Return the value so many positions later (earlier, if negative).

    Where there is no such position, it is the default, which is asked for there only.
    """
    at = np.arange(len(lists)) + distance
    outside = np.flatnonzero((at < lists.begin) | (at >= lists.finish))
    if len(outside) == 0:
        return values.take(pa.array(at))
    at[outside] = len(lists) + np.arange(len(outside))
    return pa.concat_arrays([values, default(outside)]).take(pa.array(at))


def picked_value(lists: Lists, values: pa.Array, name: str, nth: int, extent: Extent) -> pa.Array:
    """Return the first, last or n-th value of each extent, null if it has none."""
    low, high = lists.range(extent)
    at = high - 1 if name == "last_value" else low + (nth - 1 if name == "nth_value" else 0)
    there = (at >= low) & (at < high)
    return values.take(pa.array(np.where(there, at, 0), mask=~there))


def aggregated(
    lists: Lists, name: str, kind: pa.DataType, values: pa.Array | None, extent: Extent
) -> pa.Array:
    """Return an aggregate over each extent; without values it counts rows."""
    low, high = lists.range(extent)
    everything = np.arange(len(lists))
    if values is None:
        return result(name, kind, None, {}, high - low).make(everything)
    measure = Measure(values.type, sums=name in ("sum", "avg", *VARIANCES))
    measure.squares = name in VARIANCES
    parts: dict[str, Any] = {"count": _between({0: valid_count(values)}, low, high)[0]}
    if measure.sums:
        plain = numbers(*measure.store([values]))
        for part, split in measure.splits:
            parts[part] = _between(split([plain], None), low, high)
    if name in ("min", "max"):
        largest = name == "max"
        rank, plain_rank, ordered = ranked(values, largest)
        parts[name] = Extreme(least_in(rank, low, high - 1), ordered, plain_rank, largest)
    return result(name, kind, measure, parts, high - low).make(everything)


def _between(digits: Digits, low: I64, high: I64) -> Digits:
    """Return the sums of ranges."""
    total = {b: np.concatenate(([0], np.cumsum(d))) for b, d in digits.items()}
    return added(picked(total, high), picked(total, low), -1)


def _spread(values: I64, starts: I64, count: int) -> I64:
    return np.repeat(values, np.diff(np.append(starts, count)))
