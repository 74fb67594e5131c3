"""In which order a join of many inputs probes them, and which intermediate result is worth keeping.

Both follow from what was measured lately.  A *unit* is what can be probed: an input, or the kept
join of two inputs (the *pair*), whose number is that of the inputs.  For every set of inputs
joined so far and every unit probed next we remember, per probing row, how many rows were *tried*
(candidates whose validity overlaps) and how many were *found* (they passed the conditions), and the
seconds that it took.  Old measurements fade.

The cost of an order for one row is what it probes and tries and carries on, times the *pace* of
each step: the seconds that it took, as a multiple of what as much work takes on average.  So a side
of many runs, or a condition that is slow to test, is put off.  Where a step was never measured, the
steps from each single input stand in for it: more inputs only narrow more.

Keeping the pair (i, j) [B 6] saves the rows of the other inputs the way over i and then j, and
costs one insertion for every new pair; the new rows of i and j must then begin with one another.
It is taken when that pays clearly and soon pays back its building, and given up when it no longer
pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

PROBE, TRY, CARRY, KEEP = 4.0, 1.0, 2.0, 16.0
"""Costs: of probing with a row, of a candidate, of a row carried on, of a pair inserted."""

_SCALE = 64
_FADING = 7 / 8
_TIMED = 16_384
"""Work of a step, in costs, from which on the seconds that it took say something."""
_SLOWEST = 16.0
"""The pace of a step is taken to be at most so much, and at least one over it."""
_ENOUGH = 4
"""Probing rows that make a measurement."""
_ALL_ORDERS = 4
"""Units up to which all orders are compared; with more, the cheapest next step is taken."""
_CLEARLY = 0.8
_PAYBACK = 16
"""Slices in which a kept pair must earn what it cost to build."""


class Fan(NamedTuple):
    """Per probing row: candidates tried, partners found; and the pace of the step."""

    tried: float
    found: float
    pace: float = 1.0

    @property
    def cost(self) -> float:
        """What one probing row costs, without what it finds."""
        return self.pace * (PROBE + TRY * self.tried)


@dataclass(frozen=True)
class _Count:
    rows: float = 0.0
    tried: float = 0.0
    found: float = 0.0
    work: float = 0.0
    """In costs, of the steps that were timed."""
    microseconds: float = 0.0


_WHAT = tuple(own.name for own in fields(_Count))


class Step(NamedTuple):
    """What a step was: probing rows, candidates tried, partners found, seconds."""

    rows: int
    tried: int
    found: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """An order of units and its expected cost for one row."""

    order: tuple[int, ...]
    cost: float


def mask_of(inputs: Iterable[int]) -> int:
    """Return a set of inputs as a number."""
    return sum(1 << i for i in inputs)


class Orders:
    """Measurements of one operator, and the choices that follow from them."""

    def __init__(self, links: Sequence[frozenset[int]], numbers: Mapping[str, int]) -> None:
        self._links = links
        self._full = (1 << len(links)) - 1
        self.sizes = [0.0] * len(links)
        self._rates = [numbers.get(f"rate.{i}", 0) / _SCALE for i in range(len(links))]
        self._counts: dict[tuple[int, int], _Count] = {}
        for name, value in numbers.items():
            if name.startswith("fan."):
                _, joined, unit, what = name.split(".")
                key = int(joined), int(unit)
                count = self._counts.get(key, _Count())
                self._counts[key] = replace(count, **{what: value / _SCALE})
        self._usual = self._mean()

    @property
    def pair(self) -> int:
        """The number of the unit that is a pair."""
        return len(self._links)

    def store(self, numbers: dict[str, int]) -> None:
        """Write the measurements as plain numbers."""
        for name in [n for n in numbers if n.startswith("fan.")]:
            del numbers[name]
        for (joined, unit), count in self._counts.items():
            for what in _WHAT:
                numbers[f"fan.{joined}.{unit}.{what}"] = round(getattr(count, what) * _SCALE)
        for i, rate in enumerate(self._rates):
            numbers[f"rate.{i}"] = round(rate * _SCALE)

    # ---- measuring

    def came(self, rows: Sequence[int]) -> None:
        """Begin a slice with so many new rows of each input: what was measured before fades."""
        fading = _FADING if any(self._rates) else 0.0
        self._rates = [
            fading * rate + (1 - fading) * new for rate, new in zip(self._rates, rows, strict=True)
        ]
        self._counts = {
            key: _Count(*(_FADING * getattr(c, what) for what in _WHAT))
            for key, c in self._counts.items()
            if c.rows > _ENOUGH / _SCALE
        }
        self._usual = self._mean()

    def record(self, joined: int, unit: int, step: Step) -> None:
        """Take note of a step: tuples of the inputs ``joined`` probed a unit."""
        c = self._counts.get((joined, unit), _Count())
        rows, tried, found, seconds = step
        work = PROBE * rows + TRY * tried + CARRY * found
        timed = (work, 1e6 * seconds) if work >= _TIMED else (0.0, 0.0)
        self._counts[joined, unit] = _Count(
            c.rows + rows,
            c.tried + tried,
            c.found + found,
            c.work + timed[0],
            c.microseconds + timed[1],
        )

    def forget_pair(self) -> None:
        """Forget how the pair answered: it is another one now, or gone."""
        self._counts = {key: c for key, c in self._counts.items() if key[1] != self.pair}

    def measured(self, joined: int, unit: int) -> Fan | None:
        """Return what a step was like, if it was measured."""
        count = self._counts.get((joined, unit))
        if count is None or count.rows < _ENOUGH:
            return None
        return Fan(count.tried / count.rows, count.found / count.rows, self._pace(count))

    def _pace(self, count: _Count) -> float:
        """Return the seconds of a step as a multiple of what its work takes on average."""
        if count.work < 1 or self._usual <= 0:
            return 1.0
        pace = count.microseconds / count.work / self._usual
        return min(max(pace, 1 / _SLOWEST), _SLOWEST)

    def _mean(self) -> float:
        """Return the microseconds that work takes on average; 0: not known."""
        work = sum(c.work for c in self._counts.values())
        return sum(c.microseconds for c in self._counts.values()) / work if work >= 1 else 0.0

    # ---- choosing

    def fan(self, joined: int, unit: int, pair: tuple[int, int] | None) -> Fan:
        """Return what a step is expected to be like."""
        known = self.measured(joined, unit)
        if known is not None:
            return known
        if unit == self.pair:
            assert pair is not None
            first = self.fan(joined, pair[0], None)
            second = self.fan(joined | 1 << pair[0], pair[1], None)
            found = first.found * second.found
            return Fan(found, found)
        single = [
            fan
            for i in self._links[unit]
            if joined >> i & 1 and (fan := self.measured(1 << i, unit)) is not None
        ]
        if single:
            return min(single, key=lambda fan: fan.found)
        return Fan(self.sizes[unit], self.sizes[unit])

    def order(self, joined: int, pair: tuple[int, int] | None = None) -> Choice:
        """Return the order in which tuples of ``joined`` should probe everything else."""
        singly = self._search(joined, None)
        if pair is None or joined & mask_of(pair):
            return singly
        paired = self._search(joined, pair)
        return paired if paired.cost < singly.cost else singly

    def _search(self, joined: int, pair: tuple[int, int] | None) -> Choice:
        """Find the cheapest order; a pair, if given, takes the place of its inputs."""
        units = {i: 1 << i for i in range(len(self._links)) if not joined >> i & 1}
        if pair is not None:
            units = {u: m for u, m in units.items() if u not in pair}
            units[self.pair] = mask_of(pair)
        best: Choice | None = None
        every = len(units) <= _ALL_ORDERS

        def go(joined: int, rows: float, done: Choice) -> None:
            nonlocal best
            if joined == self._full:
                best = done if best is None or done.cost < best.cost else best
                return
            steps = []
            for unit in self._next(joined, units, pair):
                fan = self.fan(joined, unit, pair)
                cost = rows * (fan.cost + fan.pace * CARRY * fan.found)
                steps.append((cost, rows * fan.found, unit))
            steps.sort(key=lambda step: step[:2])
            for cost, out, unit in steps if every else steps[:1]:
                after = Choice((*done.order, unit), done.cost + cost)
                if best is None or after.cost < best.cost:
                    go(joined | units[unit], out, after)

        go(joined, 1.0, Choice((), 0.0))
        assert best is not None
        return best

    def _next(
        self, joined: int, units: dict[int, int], pair: tuple[int, int] | None
    ) -> Iterable[int]:
        """Return the units that have a condition with what is joined; all if none has."""
        left = [unit for unit, mask in units.items() if not mask & joined]
        linked = []
        for unit in left:
            members = pair if unit == self.pair and pair is not None else (unit,)
            if any(joined >> i & 1 for m in members for i in self._links[m]):
                linked.append(unit)
        return linked or left

    def cost(self, pair: tuple[int, int] | None) -> float:
        """Return what a slice is expected to cost with a pair kept, or with none."""
        total = 0.0
        for i, rate in enumerate(self._rates):
            if pair is None or i not in pair:
                total += rate * self.order(1 << i, pair).cost
        if pair is None:
            return total
        first, second = pair
        new = 0.0
        for a, b in ((first, second), (second, first)):
            fan = self.fan(1 << a, b, None)
            total += self._rates[a] * fan.cost
            new += self._rates[a] * fan.found
        return total + new * (KEEP + self.order(mask_of(pair)).cost)

    def pair_size(self, pair: tuple[int, int]) -> float:
        """Return how many rows a pair is expected to have."""
        first, second = pair
        return min(
            self.sizes[a] * self.fan(1 << a, b, None).found
            for a, b in ((first, second), (second, first))
        )

    def worthwhile(
        self, kept: tuple[int, int] | None, possible: Sequence[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """Return the pair that should be kept in the next slice, if any."""
        without = self.cost(None)
        if kept is not None:
            roomy = self.pair_size(kept) <= 2 * sum(self.sizes)
            return kept if roomy and self.cost(kept) < without else None
        best: tuple[int, int] | None = None
        least = _CLEARLY * without
        for pair in possible:
            size = self.pair_size(pair)
            if size > sum(self.sizes):
                continue
            cost = self.cost(pair)
            build = PROBE * min(self.sizes[pair[0]], self.sizes[pair[1]]) + KEEP * size
            if cost < least and build < _PAYBACK * (without - cost):
                best, least = pair, cost
        return best
