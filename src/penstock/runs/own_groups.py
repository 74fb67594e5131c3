"""What aggregates of the user's own keep of groups, and their results at every step of a slice.

The meaning: a result is that of all rows of the group at the step, sorted by their values and added
to a state of no rows.  So it cannot depend on batches, shards or the order in which rows came.

* Where states do not add up exactly (`own`), the rows themselves are kept, with how often each is
  there (`Listed`), and the rows of every step are added anew.  So a step costs what is in it.
* Where they do, a group keeps one state.  What comes and goes at each step becomes a state of its
  own; those before it in the slice are merged to it, by doubling, and the sums are put on top of
  what was kept.  So a slice costs what it brings and ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.expr.own_aggregates import OwnAggregate, States
from penstock.kernels.counts import canonical
from penstock.kernels.order import sort_indices
from penstock.kernels.steps import ranges
from penstock.kernels.work import Work
from penstock.model import I64, Mask, to_mask
from penstock.runs.listed import Listed, netted

_MOST = 1 << 20
"""Rows that are added at once, unless a single step has more."""


def arguments(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return the arguments of rows as one column, null where one of them is null."""
    missing = np.logical_or.reduce([to_mask(a.is_null()) for a in arrays])
    names = [kind.field(i).name for i in range(kind.num_fields)]
    mask = pa.array(missing) if missing.any() else None
    return pa.StructArray.from_arrays([canonical(a) for a in arrays], names, mask=mask)


def argument_type(kinds: list[pa.DataType]) -> pa.DataType:
    """Return the type of that column."""
    return pa.struct([(f"x{i}", kind) for i, kind in enumerate(kinds)])


def partial_states(own: OwnAggregate, values: pa.Array, order: I64, starts: I64) -> pa.Array:
    """Return the states of pieces: ``order`` sorts rows by piece, each begins at ``starts``."""
    piece = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    used = order
    if values.null_count:
        valid = to_mask(values.is_valid())[order]
        used, piece = used[valid], piece[valid]
    states = own.fresh(len(starts))
    own.add(states, piece, values.take(pa.array(used)))
    return own.packed(states)


def recomputed(
    own: OwnAggregate, store: Listed, work: Work, place: int, lasting: Mask, count: I64
) -> pa.Array:
    """Return the results at every step of a slice, and store the rows that outlive it.

    ``lasting`` births do; all others are among the deaths as well.  ``count`` is how many rows
    there are at each step.
    """
    births, deaths = work.column(place)
    steps, groups = work.steps, len(work.keys)
    stay = np.flatnonzero(lasting & to_mask(births.is_valid()))
    leave = np.flatnonzero(to_mask(deaths.is_valid()))
    births, deaths = births.take(pa.array(stay)), deaths.take(pa.array(leave))
    birth_code, death_code = work.birth_code[stay], work.death_code[leave]
    started = work.deaths.start[leave]
    fresh = started >= work.since
    went = np.flatnonzero(~fresh)
    gone = deaths.take(pa.array(went))
    store.change(work.keys.take(death_code[went]), gone, np.full(len(went), -1, np.int64))
    owner, old, copies = store.of(work.keys)
    old, owner, copies = netted(old, owner, copies)
    store.change(work.keys.take(birth_code), births, np.ones(len(stay), np.int64))
    event = steps.step_of_events()
    first_of_death = steps.begin[death_code]
    first_of_death[fresh] = steps.find(death_code[fresh], started[fresh])
    last_of_death = event[groups + len(work.births) + leave]
    rows = pa.concat_arrays([births, deaths, old])
    counts = np.ones(len(rows), np.int64)
    counts[len(rows) - len(old) :] = copies
    first = np.concatenate((event[groups + stay], first_of_death, steps.begin[owner]))
    last = np.concatenate((steps.finish[birth_code], last_of_death, steps.finish[owner]))
    order = sort_indices(rows.flatten())
    spread = _Spread(rows.take(pa.array(order)), counts[order], first[order], last[order])
    found = list(_within(own, spread, 0, len(steps), count))
    return pa.concat_arrays(found)


class _Spread:
    """Rows in order, each there with some copies from the step ``first`` to before ``last``."""

    def __init__(self, rows: pa.Array, count: I64, first: I64, last: I64) -> None:
        self.rows, self.count, self.first, self.last = rows, count, first, last

    def between(self, low: int, high: int) -> _Spread:
        """Return what is there at some of the steps."""
        first, last = np.maximum(self.first, low), np.minimum(self.last, high)
        some = np.flatnonzero(last > first)
        return _Spread(self.rows.take(pa.array(some)), self.count[some], first[some], last[some])

    @property
    def size(self) -> int:
        return int(((self.last - self.first) * self.count).sum())


def _within(
    own: OwnAggregate, spread: _Spread, low: int, high: int, count: I64
) -> Iterator[pa.Array]:
    """Yield the results of steps, so many at once as fit into memory."""
    if high - low > 1 and spread.size > _MOST:
        middle = (low + high) // 2
        yield from _within(own, spread.between(low, middle), low, middle, count)
        yield from _within(own, spread.between(middle, high), middle, high, count)
        return
    owner, step = ranges(spread.first, spread.last)
    copies = spread.count[owner]
    if (copies != 1).any():
        owner, step = np.repeat(owner, copies), np.repeat(step, copies)
    order = np.argsort(step, kind="stable")  # rows of one step stay in their order
    asked = np.flatnonzero(count[low:high] > 0)
    group = np.searchsorted(asked, step[order] - low)
    states = own.fresh(len(asked))
    if len(order):
        own.add(states, group, spread.rows.take(pa.array(owner[order])))
    yield _placed(own, states, asked, high - low)


def _placed(own: OwnAggregate, states: States, asked: I64, size: int) -> pa.Array:
    """Return the results of some steps at their places, null at all others."""
    found = own.results(states, len(asked))
    if len(asked) == size:
        return found
    place = np.full(size, -1, np.int64)
    place[asked] = np.arange(len(asked))
    return found.take(pa.array(place, mask=place < 0))


def running_states(own: OwnAggregate, work: Work, place: int, panes: bool, old: pa.Array) -> States:
    """Return the states at every step of a slice; ``old`` are those of the groups before it.

    With ``panes``, births and deaths are states already.
    """
    steps = work.steps
    events = work.step_of_events()
    births, deaths = work.column(place)
    cut = len(births)
    sums = []
    for column, step in ((births, events[:cut]), (deaths, events[cut:])):
        states = own.fresh(len(steps))
        some = np.flatnonzero(to_mask(column.is_valid()))
        if len(some):
            if panes:
                own.merge(states, step[some], own.unpacked(column.take(pa.array(some))))
            else:
                order = some[np.argsort(step[some], kind="stable")]
                own.add(states, step[order], column.take(pa.array(order)))
            _add_earlier(own, states, work)
        sums.append((states, len(some)))
    kept = own.unpacked(old)
    total = {name: array[steps.code] for name, array in kept.items()}
    everywhere = np.arange(len(steps))
    (came, births_), (went, deaths_) = sums
    if births_:
        own.merge(total, everywhere, came)
    if deaths_:
        own.remove(total, everywhere, went)
    return total


def _add_earlier(own: OwnAggregate, states: States, work: Work) -> None:
    """Merge to the state of each step those of all steps of its group before it, by doubling."""
    begin = work.steps.begin[work.steps.code]
    number = np.arange(len(begin)) - begin
    distance, longest = 1, int(number.max(initial=0))
    while distance <= longest:
        at = np.flatnonzero(number >= distance)
        others = {name: array[at - distance] for name, array in states.items()}
        own.merge(states, at, others)
        distance *= 2


def results_of(own: OwnAggregate, states: States, count: I64) -> pa.Array:
    """Return the results of the states at every step, null where there are no rows."""
    asked = np.flatnonzero(count > 0)
    some = {name: array[asked] for name, array in states.items()}
    return _placed(own, some, asked, len(count))
