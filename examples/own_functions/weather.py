"""Functions about weather that the scripts of this folder call: a scalar and an aggregate."""

from __future__ import annotations

import numpy as np

HALF_LIFE = 1800.0
"""After so many seconds a reading counts half as much as a new one."""


def feels_like(celsius, percent):
    """Return how warm moist air feels (the humidex), of a temperature and a relative humidity."""
    pressure = percent / 100 * 6.105 * np.exp(17.27 * celsius / (237.7 + celsius))
    return celsius + (pressure - 10) * 5 / 9


class Decayed:
    """An average in which old readings count less: of values, and the seconds when they were read.

    Weights are those at the newest reading of each group, so they neither vanish nor overflow.
    """

    state = {  # noqa: RUF012
        "newest": ("DOUBLE", -np.inf),
        "weight": "DOUBLE",
        "total": "DOUBLE",
    }

    def add(self, states, groups, values, seconds):
        """Take in rows: ``groups`` says which entry of the states each belongs to."""
        newest = states["newest"].copy()
        np.maximum.at(newest, groups, seconds)
        self._age(states, newest)
        weight = 0.5 ** ((newest[groups] - seconds) / HALF_LIFE)
        np.add.at(states["weight"], groups, weight)
        np.add.at(states["total"], groups, weight * values)

    def merge(self, states, groups, others):
        """Take in states of other rows."""
        newest = states["newest"].copy()
        np.maximum.at(newest, groups, others["newest"])
        self._age(states, newest)
        weight = self._left(others["newest"], newest[groups])
        for name in ("weight", "total"):
            np.add.at(states[name], groups, weight * others[name])

    def result(self, states):
        """Return the average of each group."""
        return states["total"] / states["weight"]

    def _age(self, states, newest):
        left = self._left(states["newest"], newest)
        states["weight"] *= left
        states["total"] *= left
        states["newest"] = newest

    def _left(self, then, now):
        """Return what is left at one time of a weight at another; where there was none, nothing."""
        there = np.isfinite(then)
        return np.where(there, 0.5 ** ((now - np.where(there, then, now)) / HALF_LIFE), 0.0)
