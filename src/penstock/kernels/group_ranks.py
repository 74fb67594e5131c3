"""The first rows of groups at every step: which rows have a number up to k, and since when.

The steps of a group stand one behind the other (`kernels.counts.Steps`), and the groups too.  A row
is there at the steps ``[first, last)`` of its group.  `k_best` gives the k best of every step, a
list with k *slots*.  A *run* is a row, or a class of peers, with one number over steps without a
gap; a slot whose contents do not change is one run.

* row_number: the contents of slot j have number j + 1.
* rank: the number of a slot is that of the first slot with a peer.  The last slot says which peers
  are the last to be in; all of them are, also those for which there was no slot.
* dense_rank: the slots hold classes of peers; a class is there while any of its rows is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.kernels.sorting import order_of_codes
from penstock.kernels.steps import group_starts, ranges
from penstock.kernels.sweep import NONE, k_best
from penstock.model import I64, Mask

_BITS = 31
_LOW = np.int64((1 << _BITS) - 1)


@dataclass(frozen=True)
class Places:
    """Where rows stand in time; they are in the order of groups and, inside a group, of ORDER BY.

    ``peers`` is the class of rows that are equal in ORDER BY, ascending.  A row is there at the
    steps ``[first, last)``.  ``begin`` are the first steps of the groups, of ``size`` steps.
    """

    peers: I64
    first: I64
    last: I64
    begin: I64
    size: int


@dataclass(frozen=True)
class Runs:
    """Rows with a number at the steps ``[first, last)``."""

    row: I64
    number: I64
    first: I64
    last: I64


def numbered(places: Places, by: str, limit: int, shown: bool, memory: int) -> Runs:
    """Return the rows whose number is at most ``limit``; if it is not shown, it is 0."""
    if by == "row_number":
        own = places.first, places.last, np.arange(len(places.peers))
        slot, row, first, last = _slots(places, *own, limit, memory)
        runs = Runs(row, slot + 1, first, last)
        return runs if shown else _joined(runs, shown)
    if by == "dense_rank":
        peers, begins, ends = _classes(places)
        slot, peer, first, last = _slots(places, begins, ends, peers, limit, memory)
        return _joined(_members(places, peer, slot + 1, first, last), shown)
    return _joined(_ranked(places, limit, memory), shown)


def keepers(
    code: I64, end: I64, sure: Mask, rank: I64, peers: I64, by: str, limit: int, memory: int
) -> Mask:
    """Return which rows, all alive, may still have a number of at most ``limit``.

    A row is dropped when enough better rows that are ``sure`` (their end is exact) end no earlier.
    ``code`` is the group of each row; ``end`` of other rows is an upper bound.
    """
    keep = np.ones(len(code), bool)
    count = np.bincount(code)
    some = np.flatnonzero(count[code] > limit)
    if len(some) == 0:
        return keep
    code, end, sure, rank, peers = code[some], end[some], sure[some], rank[some], peers[some]
    order = np.lexsort((~end, code))  # latest end first
    starts = group_starts(code[order], end[order])
    position = np.empty(len(order), np.int64)
    position[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    head = code[order[starts]]
    finish = np.searchsorted(head, code, "right")
    judge = np.flatnonzero(sure)
    value = rank if by == "row_number" else peers
    if by == "dense_rank":  # of each class, the row that ends last
        latest = judge[np.lexsort((position[judge], peers[judge]))]
        judge = latest[group_starts(peers[latest])]
    # positions are ends, the latest first: at each, those are alive that end there or later
    rated = (peers if by == "dense_rank" else rank)[judge]
    matrices = k_best(position[judge], finish[judge], rated, len(starts), limit, memory)
    worst = np.concatenate([lists[:, limit - 1] for lists in matrices])
    if by == "rank":  # the class of the row with that rank
        class_of = np.zeros(int(rank.max()) + 1, np.int64)
        class_of[rank] = peers
        full = worst != NONE
        worst[full] = class_of[worst[full]]
    keep[some] = value <= worst[position]
    return keep


def _slots(
    places: Places, first: I64, last: I64, rank: I64, limit: int, memory: int
) -> tuple[I64, I64, I64, I64]:
    """Return slots, what they hold, and the steps at which they hold it."""
    fresh = _mask_of(places)
    before = np.full((1, limit), NONE, np.int64)
    changes = _Changes()
    for lists in k_best(first, last, rank, places.size, limit, memory):
        changes.add(before, lists, fresh)
        before = lists[-1:].copy()
    return changes.runs(places.size)


def _ranked(places: Places, limit: int, memory: int) -> Runs:
    """Return the runs of rank: those of slots above the last class, and those of that class."""
    fresh = _mask_of(places)
    class_of = np.append(places.peers, NONE)
    rank = np.arange(len(places.peers))
    inner, edge = _Changes(), _Changes()
    before, before_edge = np.full((1, limit), NONE), np.full((1, 1), NONE)
    for lists in k_best(places.first, places.last, rank, places.size, limit, memory):
        peers = class_of[np.where(lists == NONE, len(class_of) - 1, lists)]
        number = np.ones(lists.shape, np.int64)
        for slot in range(1, limit):
            same = peers[:, slot] == peers[:, slot - 1]
            number[:, slot] = np.where(same, number[:, slot - 1], slot + 1)
        worst = peers[:, -1:]
        cells = np.where(peers < worst, (lists << _BITS) | number, NONE)
        last = np.where(worst == NONE, NONE, (worst << _BITS) | number[:, -1:])
        inner.add(before, cells, fresh)
        edge.add(before_edge, last, fresh)
        before, before_edge = cells[-1:].copy(), last[-1:].copy()
    _, cell, first, last = inner.runs(places.size)
    strict = Runs(cell >> _BITS, cell & _LOW, first, last)
    _, cell, first, last = edge.runs(places.size)
    tied = _members(places, cell >> _BITS, cell & _LOW, first, last)
    return Runs(*(np.concatenate((getattr(strict, f), getattr(tied, f)))
                  for f in ("row", "number", "first", "last")))  # fmt: skip


class _Changes:
    """The places at which slots change, collected from matrices of neighbouring steps."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self._parts: list[tuple[I64, I64, I64]] = [(none, none, none)]
        self._at = 0

    def add(self, before: I64, lists: I64, fresh: Mask) -> None:
        """Add a matrix; ``before`` is the row before it, ``fresh`` says where groups begin."""
        changed = np.empty(lists.shape, bool)
        np.not_equal(lists[:1], before, out=changed[:1])
        np.not_equal(lists[1:], lists[:-1], out=changed[1:])
        begins = np.flatnonzero(fresh[self._at : self._at + len(lists)])
        changed[begins] = True
        slot, position = np.nonzero(changed.T)
        self._parts.append((slot, position + self._at, lists[position, slot]))
        self._at += len(lists)

    def runs(self, size: int) -> tuple[I64, I64, I64, I64]:
        """Return slots, contents, and the first and last step, wherever there are contents."""
        slot, position, value = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if len(self._parts) > 2:
            order = np.argsort(slot, kind="stable")
            slot, position, value = slot[order], position[order], value[order]
        finish = np.full(len(slot), size, np.int64)
        same = slot[1:] == slot[:-1]
        finish[:-1][same] = position[1:][same]
        there = value != NONE
        return slot[there], value[there], position[there], finish[there]


def _mask_of(places: Places) -> Mask:
    fresh = np.zeros(places.size, bool)
    fresh[places.begin] = True
    return fresh


def _classes(places: Places) -> tuple[I64, I64, I64]:
    """Return classes of peers and the steps ``[first, last)`` at which any row of one is there."""
    rows = len(places.peers)
    peers = np.concatenate((places.peers, places.peers))
    step = np.concatenate((places.first, places.last))
    change = np.repeat(np.array([1, -1]), rows)
    order = np.lexsort((-change, step, peers))  # births first, so that what touches is one
    count = np.cumsum(change[order])
    born = (count == 1) & (change[order] == 1)
    died = count == 0
    return peers[order][born], step[order][born], step[order][died]


def _members(places: Places, peer: I64, number: I64, first: I64, last: I64) -> Runs:
    """Return the rows of runs of classes."""
    low, high = (np.searchsorted(places.peers, peer, side) for side in ("left", "right"))
    run, row = ranges(low, high)
    begin = np.maximum(first[run], places.first[row])
    end = np.minimum(last[run], places.last[row])
    real = begin < end
    return Runs(row[real], number[run[real]], begin[real], end[real])


def _joined(runs: Runs, shown: bool) -> Runs:
    """Put runs of one row and number that touch together."""
    if len(runs.row) == 0:
        return runs
    number = runs.number if shown else np.zeros(len(runs.row), np.int64)
    order = np.argsort(runs.first, kind="stable")
    order = order[order_of_codes(runs.row[order], int(runs.row.max()) + 1)]
    row, number = runs.row[order], number[order]
    first, last = runs.first[order], runs.last[order]
    new = np.ones(len(row), bool)
    new[1:] = (row[1:] != row[:-1]) | (number[1:] != number[:-1]) | (first[1:] != last[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(row)) - 1
    return Runs(row[starts], number[starts], first[starts], last[ends])
