"""What an aggregation has to do in a slice: rows that come and go, per group, as ordered events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.counts import Steps
from penstock.kernels.exact import Digits
from penstock.kernels.keys import Keys
from penstock.model import I64, Batch, Mask


@dataclass(frozen=True)
class Work:
    """One slice: births and deaths as stored, the groups they touch, and the events in order.

    Events are one old event per group, then the births, then the deaths.  ``found`` says which
    groups there were, and ``old`` is what the state holds of them.
    """

    births: Batch
    deaths: Batch
    birth_code: I64
    death_code: I64
    keys: Keys
    found: Mask
    old: tuple[pa.Array, ...]
    steps: Steps
    sign: I64
    since: int
    until: int

    def column(self, place: int) -> tuple[pa.Array, pa.Array]:
        """Return a column of the births and of the deaths."""
        return self.births.columns[place], self.deaths.columns[place]

    def in_order(self, births: npt.NDArray[Any], deaths: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of births and deaths in the order of events, 0 at the old ones."""
        none = np.zeros(len(self.keys), births.dtype)
        values: npt.NDArray[Any] = np.concatenate((none, births, deaths))[self.steps.order]
        return values

    def running(self, changes: I64, old: I64) -> I64:
        """Return running sums at each step of signed changes in order, which are overwritten."""
        changes[self.steps.first[self.steps.begin]] = old
        return self.steps.running(changes)

    def running_digits(self, changes: Digits, old: Digits) -> Digits:
        """Return running sums of exact numbers at each step."""
        none = np.zeros(len(self.keys), np.int64)
        sums = {b: self.running(change, old.get(b, none)) for b, change in changes.items()}
        for bin_ in old.keys() - changes.keys():
            sums[bin_] = old[bin_][self.steps.code]
        return sums

    @property
    def code(self) -> I64:
        """The group of each birth and death."""
        return np.concatenate((self.birth_code, self.death_code))

    @property
    def time(self) -> I64:
        """When each birth and death happens."""
        return np.concatenate((self.births.start, self.deaths.end))

    def step_of_events(self) -> I64:
        """Return the step of each birth and death."""
        return self.steps.step_of_events()[len(self.keys) :]
