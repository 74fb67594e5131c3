"""How often each value of an argument is in each group: what DISTINCT and MODE go by.

Only values that come or go in a slice are looked up.  The number of copies of each is a step
function; where it leaves or reaches zero, the value comes or goes for aggregates of distinct values
(`Copied.weight`).  The value that is most frequent is the extreme of pairs of a number of copies
and a value (`kernels.sweep`): values that the slice touches enter the sweep with each of their
numbers of copies, and of the others only the most frequent one of a group, from the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.kernels.counts import Steps, integers, key_codes, order_events
from penstock.kernels.keys import Keys
from penstock.kernels.measures import Extreme
from penstock.kernels.sweep import pairs, range_minimum, ranks
from penstock.kernels.work import Work
from penstock.model import I64, to_mask, to_numpy
from penstock.runs.extremes import Extremes
from penstock.runs.keyed import KeyedState
from penstock.runs.merging import Merging
from penstock.runs.state import State


@dataclass(frozen=True)
class Copied:
    """The values that a slice touches, and how often each is there at its own steps.

    ``weight`` is 1 for the events of all groups, in order, with which a value comes, -1 for those
    with which it goes.  ``events`` are the births and deaths that count, and ``code`` their values.
    """

    work: Work
    steps: Steps
    copies: I64
    weight: I64
    events: I64
    code: I64

    @cached_property
    def event(self) -> I64:
        """A birth or death of each value."""
        event = np.zeros(len(self.steps.begin), np.int64)
        event[self.code] = self.events
        return event

    @cached_property
    def group(self) -> I64:
        """The group of each value."""
        group: I64 = self.work.code[self.event]
        return group

    @cached_property
    def step(self) -> I64:
        """The step of its group at which each step of a value is."""
        old = self.steps.old
        step = np.empty(len(self.steps), np.int64)
        step[old] = self.work.steps.begin[self.group]
        first = self.steps.order[self.steps.first[~old]] - len(self.steps.begin)
        step[~old] = self.work.step_of_events()[self.events[first]]
        return step

    @cached_property
    def until(self) -> I64:
        """The step of its group at which each step of a value ends."""
        until = np.append(self.step[1:], 0)
        until[self.steps.finish - 1] = self.work.steps.finish[self.group]
        return until


class Copies:
    """The number of copies of each value that is in a group."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._counts = KeyedState(state, name, [pa.int64()], merging)

    def save(self) -> None:
        """Merge runs as the strategy says."""
        self._counts.save()

    def advance(self, work: Work, high: pa.Array, low: pa.Array) -> Copied:
        """Count the values of a slice; the lanes of births and deaths are null where they are."""
        valid = np.flatnonzero(to_mask(high.is_valid()))
        lanes = (to_numpy(lane.take(pa.array(valid))) for lane in (high, low))
        code, keys = key_codes(Keys(*lanes))
        count = len(keys)
        _, old = self._counts.get(keys)
        time = np.concatenate((np.zeros(count, np.int64), work.time[valid]))
        change = np.where(valid < len(work.births), 1, -1)
        steps = order_events(np.concatenate((np.arange(count), code)), time, count)
        copies = steps.running(np.concatenate((integers(old[0]), change))[steps.order])
        at_end = copies[steps.finish - 1]
        self._counts.put(keys, [pa.array(at_end)], at_end > 0)
        crossing = np.zeros(len(steps), np.int64)
        crossing[1:] = (copies[1:] > 0).astype(np.int64) - (copies[:-1] > 0)
        crossing[steps.begin] = 0
        crossed = np.flatnonzero(crossing)
        weight = np.zeros(len(work.steps.order), np.int64)
        head = steps.order[steps.first[crossed]] - count
        weight[len(work.keys) + valid[head]] = crossing[crossed]
        return Copied(work, steps, copies, weight[work.steps.order], valid, code)


def most_frequent(store: Extremes, work: Work, copied: Copied, values: pa.Array) -> Extreme:
    """Return the most frequent value at every step; ``values`` are those of births and deaths."""
    own, steps = values.take(pa.array(copied.event)), copied.steps
    before, after = copied.copies[steps.begin], copied.copies[steps.finish - 1]

    def entries(count: I64, value: I64) -> pa.Array:
        return pairs(pa.array(count), own.take(pa.array(value)))

    def change(count: I64, sign: int) -> None:
        some = np.flatnonzero(count)
        store.change_open(work.keys.take(copied.group[some]), entries(count[some], some), sign)

    change(before, -1)
    owner, best = store.best(work.keys, work.until)
    there = np.flatnonzero(copied.copies)
    candidates = pa.concat_arrays([entries(copied.copies[there], steps.code[there]), best])
    first = np.concatenate((copied.step[there], work.steps.begin[owner]))
    last = np.concatenate((copied.until[there], work.steps.finish[owner]))
    rank = ranks(candidates, True)
    least = range_minimum(first, last, rank, len(work.steps))
    change(after, 1)
    return Extreme(least, candidates, rank, True)
