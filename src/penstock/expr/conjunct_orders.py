"""In which order the conjuncts of a selection are evaluated, from what they were like lately.

A conjunct costs time for every row that it sees, and drops some of them.  The one whose *rank*,
``(share that passes - 1) / cost``, is least goes first [E 4.4.3].  The share is that of the rows
which the conjuncts before it have left, so of two that drop the same rows only one goes first.

Shares come from *samples*: now and then a few rows are tried on all conjuncts, also on those that
see few rows otherwise, and are counted by the set of conjuncts that drop them.  Costs are those of
samples and of all other work.  A sample halves what was measured before, and is taken again when
the work since then took many times as long as it did: so exploring has a bounded price.  It comes
sooner when other shares of the rows are left than before.

Evaluating a conjunct on the rows that are left means to pick them out of its columns first.  That
costs too, so it is done where it pays; a cheap conjunct is evaluated on more rows than needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.model import I64, INF

PAYBACK, _SOONER = 50, 8
"""Work between two samples, as a multiple of what a sample costs; less where things change."""
_SURE = 8
"""Samples after which what is measured is relied on; before that they are taken more often."""
_CHANGED = 0.15
"""Part of the rows by which those that are left may differ from those expected."""
_FIXED = 8e-6
"""Seconds that a conjunct takes however few rows it has, as long as nobody has measured it."""
REFRESH = 16
"""Samples between two measurements of that."""
_FIND = 1.5e-9
"""Seconds, for each row of a column, to find the places of the rows that are left."""
_STEP = 15e-6
"""Seconds that a conjunct costs more when it is evaluated by itself."""
_WORTH = 10e-9
"""Seconds that evaluating conjuncts one by one must save for each row."""
_UNKNOWN = 20e-9
"""Seconds that a conjunct takes for a row, as long as nobody has measured it."""
_LEAST = 1e-9
"""Seconds that a conjunct takes for a row at least."""
_SHORT = 10
"""What took less than so many times as long as hardly any rows is easily disturbed."""
_BEYOND = 1.25
"""What took less than so many times as long as hardly any rows says nothing about a row."""
_WEIGHED = 256
"""Rows that are enough to measure what a conjunct costs."""
_SETS = 48
"""Sets of conjuncts, those of most rows, that are remembered."""
_SCALE = 64


@dataclass
class _Cost:
    """Rows, and the seconds that they took."""

    rows: float = 0.0
    seconds: float = 0.0

    def add(self, rows: float, seconds: float) -> None:
        self.rows, self.seconds = self.rows + rows, self.seconds + seconds

    def of_one(self, otherwise: float) -> float:
        """Return the seconds for one row."""
        return self.seconds / self.rows if self.rows >= 1 else otherwise


class Ranking:
    """What the conjuncts of one selection cost and drop, and the order that follows.

    ``groups`` are the conjuncts, by number, that may change places with one another.  ``picking``
    are, for each conjunct, about the seconds to pick one row out of its columns; ``numbers``
    are those that `store` wrote.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        picking: Sequence[float],
        numbers: Mapping[str, int],
    ) -> None:
        self._groups = groups
        self._picking = picking
        self._costs = [_read(numbers, f"conjunct.{i}") for i in range(len(picking))]
        self._fixed = [
            numbers.get(f"fixed.{i}", round(_FIXED * 1e9)) * 1e-9 for i in range(len(picking))
        ]
        self._dropped = {
            int(name.split(".")[1]): value / _SCALE
            for name, value in numbers.items()
            if name.startswith("dropped.")
        }
        self.samples = numbers.get("samples", 0)
        self._sampling = numbers.get("sampling", 0) * 1e-9
        self.work = numbers.get("work", 0) * 1e-9
        """Seconds of work since the last sample; the next one is due after ``enough`` of it."""
        self.enough = self._payback()
        self._expect()
        self.order = tuple(which for group in groups for which in group)
        self.many: float = numbers.get("many", INF)
        """Rows from which on conjuncts are evaluated one by one: for fewer it does not pay."""
        self._left = [numbers.get(f"left.{place}", 0) / _SCALE for place in range(len(picking))]
        """The share of rows that is expected to be left behind each place of the order."""
        known = tuple(numbers.get(f"order.{place}", -1) for place in range(len(picking)))
        if sorted(known) == sorted(self.order):
            self.order = known

    def store(self, numbers: dict[str, int]) -> None:
        """Write everything as plain numbers."""
        for name in [n for n in numbers if n.startswith("dropped.")]:
            del numbers[name]
        for i, cost in enumerate(self._costs):
            numbers[f"conjunct.{i}.rows"] = round(cost.rows)
            numbers[f"conjunct.{i}.nanoseconds"] = round(cost.seconds * 1e9)
        for i, seconds in enumerate(self._fixed):
            numbers[f"fixed.{i}"] = round(seconds * 1e9)
        for some, weight in self._dropped.items():
            numbers[f"dropped.{some}"] = round(weight * _SCALE)
        for place, which in enumerate(self.order):
            numbers[f"order.{place}"] = which
            numbers[f"left.{place}"] = round(self._left[place] * _SCALE)
        numbers["samples"] = self.samples
        numbers["sampling"] = round(self._sampling * 1e9)
        numbers["work"] = round(self.work * 1e9)
        numbers["many"] = int(min(self.many, INF))

    # ---- measuring

    def evaluated(self, which: int, rows: int, seconds: float) -> None:
        """Take note of what a conjunct has cost, if there are rows enough to tell."""
        self.work += seconds
        if rows >= _WEIGHED:
            self._costs[which].add(rows, max(seconds - _BEYOND * self._fixed[which], rows * _LEAST))

    def is_short(self, which: int, seconds: float) -> bool:
        """Whether a conjunct took so little time that it is to be measured again."""
        return seconds < _SHORT * self._fixed[which]

    def started(self, which: int, seconds: float) -> None:
        """Take note of what a conjunct has cost on hardly any rows."""
        self._fixed[which] = seconds

    def evaluated_at_once(self, rows: int) -> None:
        """Take note that all conjuncts were evaluated on some rows; nobody looked at the clock."""
        self.work += self._start + rows * self._whole

    def passed(self, place: int, share: float) -> None:
        """Take note of the share of rows that is left behind a place of the order.

        If that is a surprise, the next sample is taken sooner.
        """
        if self.samples and abs(share - self._left[place]) > _CHANGED:
            self.enough = min(self.enough, self._payback() / _SOONER)

    def _payback(self) -> float:
        """Return the work before the next sample: less before the first ones."""
        return PAYBACK * self._sampling * min(self.samples, _SURE) / _SURE

    def fade(self) -> None:
        """Begin a sample: what was measured before counts half."""
        for cost in self._costs:
            cost.rows, cost.seconds = cost.rows / 2, cost.seconds / 2
        self._dropped = {some: weight / 2 for some, weight in self._dropped.items()}

    def sampled(self, sets: I64, seconds: float) -> None:
        """End a sample, which took so long: the sets of conjuncts, as bits, that drop each row."""
        found, counts = np.unique(sets, return_counts=True)
        dropped = dict(self._dropped)
        for some, count in zip(found.tolist(), counts.tolist(), strict=True):
            dropped[some] = dropped.get(some, 0.0) + count
        most = sorted(dropped.items(), key=lambda item: -item[1])[:_SETS]
        self._dropped = {some: weight for some, weight in most if weight >= 1 / _SCALE}
        self.samples += 1
        self._expect()
        self._sampling, self.work = seconds, 0.0
        self.enough = self._payback()
        self._choose()

    # ---- choosing

    def cost(self, which: int) -> float:
        """Return the seconds that a conjunct takes for one row."""
        return self._costs[which].of_one(_UNKNOWN)

    def is_timed(self, which: int) -> bool:
        """Whether it was measured what a conjunct takes; few rows are not worth it."""
        return self._costs[which].rows >= 1

    def passing(self, which: int) -> float | None:
        """Return the share of all rows that a conjunct lets pass; None: not known."""
        total = sum(self._dropped.values())
        if not total:
            return None
        return sum(w for some, w in self._dropped.items() if not some >> which & 1) / total

    def pays(self, which: int, left: float, rows: float, at_hand: bool) -> bool:
        """Whether to pick out the rows that are ``left`` of ``rows`` for a conjunct.

        ``at_hand``: its columns have all of these rows already.
        """
        cost, pick = self.cost(which), self._picking[which]
        whole = rows * (cost if at_hand else cost + pick)
        return rows * _FIND + left * (cost + pick) < whole

    def _expect(self) -> None:
        """Find what all conjuncts cost together, for a row and besides."""
        self._start = sum(self._fixed)
        self._whole = sum(self.cost(which) for which in range(len(self._costs)))

    def _choose(self) -> None:
        """Choose the order by what was measured."""
        sets = np.array(list(self._dropped), np.int64)
        weights = np.array(list(self._dropped.values()))
        weights /= max(weights.sum(), 1.0)
        left = np.ones(len(sets), bool)
        rows = alive = 1.0
        order: list[int] = []
        self._left = []
        total = 0.0
        for group in self._groups:
            waiting = list(group)
            while waiting:
                steps = []
                for which in waiting:
                    drops = float(weights[left & (sets >> which & 1 == 1)].sum())
                    at_hand = rows == 1.0
                    cost = self.cost(which)
                    picks = self.pays(which, alive, rows, at_hand)
                    pick = self._picking[which]
                    spent = rows * _FIND + alive * (cost + pick) if picks else rows * cost
                    steps.append((-drops / max(spent, 1e-12), which, drops, picks, cost - spent))
                _, which, drops, picks, saved = min(steps, key=lambda step: step[0])
                left &= sets >> which & 1 == 0
                rows = alive if picks else rows
                alive = max(alive - drops, 0.0)
                self._left.append(alive)
                total += saved
                order.append(which)
                waiting.remove(which)
        self.order = tuple(order)
        self.many = _STEP * len(order) / total if total >= _WORTH else INF


def _read(numbers: Mapping[str, int], name: str) -> _Cost:
    return _Cost(numbers.get(f"{name}.rows", 0), numbers.get(f"{name}.nanoseconds", 0) * 1e-9)
