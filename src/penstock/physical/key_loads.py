"""Which keys of a join are hot, and since when: counted while packing, decided between batches.

A key with the part ``p`` of all rows of a side makes its home in ``n`` shards busier than the mean
by ``p * (n - 1)`` of the mean.  From `Heat.hot` on it is split, over so many shards that what each
of them gets of it is about half of the mean.  When its part has fallen to half of that bound the
split ends.  Packing looks only at some rows, taken at random from equal stretches, and tells the
most frequent keys; the driver adds up and forgets.

Only the splits (`physical.key_splits.Split`) are kept in the manifest: a batch is routed by what
the manifest before it says, also when it is run again.  The counts may be lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.cells import cells_of
from penstock.kernels.keys import hash_columns
from penstock.model import INF, MIN_TIME, U64, Batch
from penstock.physical.exchange import Cells, Exchange
from penstock.physical.key_splits import Pair, Told, pairs, splits_of
from penstock.physical.plan import PhysicalPlan
from penstock.physical.split_routes import Split

_LOOKED_AT = 1024
"""Rows of a message that are looked at."""

_TOLD = 32
"""Keys that are told to the driver, of each channel and batch."""


class Sample:
    """The keys of some rows that a channel carried in a batch."""

    def __init__(self) -> None:
        self._rows = 0
        self._keys: list[U64] = []
        self._weights: list[npt.NDArray[np.float64]] = []

    def add(self, batch: Batch, exchange: Exchange) -> None:
        """Look at some rows of a message."""
        rows = len(batch)
        if rows == 0:
            return
        seen = min(rows, _LOOKED_AT)
        if seen < rows:  # one at random from each of equal stretches: no rhythm of the rows matters
            edges = np.linspace(0, rows, seen + 1)
            at = edges[:-1] + np.random.default_rng(self._rows).random(seen) * np.diff(edges)
            some = np.minimum(at.astype(np.int64), rows - 1)
            columns = [batch.columns[k].take(some) for k in exchange.keys]
        else:
            columns = [batch.columns[k] for k in exchange.keys]
        if isinstance(exchange, Cells):
            keys = cells_of(columns, exchange.widths, seen)
        else:
            keys = hash_columns(columns, seen)
        self._rows += rows
        self._keys.append(keys.high)
        self._weights.append(np.full(seen, rows / seen))

    def describe(self) -> dict[str, Any]:
        """Return how many rows there were, and the rows of the most frequent keys."""
        if not self._rows:
            return {"rows": 0, "keys": []}
        keys, place = np.unique(np.concatenate(self._keys), return_inverse=True)
        rows = np.bincount(place, np.concatenate(self._weights))
        most = np.argsort(-rows, kind="stable")[:_TOLD]
        told = zip(keys[most].tolist(), rows[most].tolist(), strict=True)
        return {"rows": self._rows, "keys": [[key, round(count, 1)] for key, count in told]}


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two tasks tell of a channel as if one had told it."""
    counts: dict[int, float] = {}
    for key, count in (*one["keys"], *other["keys"]):
        counts[key] = counts.get(key, 0.0) + count
    most = sorted(counts.items(), key=lambda item: -item[1])[:_TOLD]
    return {"rows": one["rows"] + other["rows"], "keys": [list(told) for told in most]}


@dataclass
class _Counts:
    """Rows of one side of a pair, and of its frequent keys; the past counts less and less."""

    rows: float = 0.0
    keys: dict[int, float] = field(default_factory=dict)

    def add(self, told: Mapping[str, Any], kept: float) -> None:
        if not told["rows"]:
            return
        self.rows = self.rows * kept + told["rows"]
        self.keys = {key: count * kept for key, count in self.keys.items()}
        for key, count in told["keys"]:
            self.keys[key] = self.keys.get(key, 0.0) + count
        if len(self.keys) > 8 * _TOLD:
            most = sorted(self.keys.items(), key=lambda item: -item[1])[: 4 * _TOLD]
            self.keys = dict(most)

    def part(self, key: int) -> float:
        return self.keys.get(key, 0.0) / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class Reached:
    """How far a stream has come: the largest time that was sent, and the heartbeat."""

    time: int = MIN_TIME
    beat: int = MIN_TIME


@dataclass
class Heat:
    """The counts of all pairs, and the decisions.

    ``hot`` is by how much of the mean a key must make its home busier to be split, ``few`` the rows
    that must have been seen before anything is decided, ``kept`` what remains of a count from one
    batch to the next, ``most`` how many keys of a join are split at one time.
    """

    hot: float = 0.2
    few: int = 4000
    kept: float = 0.9
    most: int = 256

    def __post_init__(self) -> None:
        self._counts: dict[tuple[str, int], _Counts] = {}

    def decide(
        self,
        plan: PhysicalPlan,
        told: Told,
        counted: Mapping[int, Mapping[str, Any]],
        reached: Mapping[str, Reached],
        shards: int,
        searching: bool,
    ) -> dict[str, dict[str, Any]]:
        """Return the splits that hold from the next batch on.

        ``told`` are those of the batch that was run, ``counted`` the descriptions of its samples by
        channel, ``reached`` how far all streams are after it.  Without ``searching`` no key becomes
        hot, and those that are cool down.
        """
        known = pairs(plan) if shards > 1 else []
        counts = {(pair.name, side): _Counts() for pair in known for side in (0, 1)}
        self._counts = {at: self._counts.get(at, empty) for at, empty in counts.items()}
        result = {}
        for pair in known:
            sides = [self._counts[pair.name, side] for side in (0, 1)]
            for side, channel in zip(sides, pair.channels, strict=True):
                if channel in counted:
                    side.add(counted[channel], self.kept)
            there = [reached.get(stream, Reached()) for stream in pair.streams]
            splits = self._cooled(pair, splits_of(told, pair), sides, there, shards, searching)
            if searching and _seen(pair, there):
                splits += self._heated(pair, splits, sides, there, shards)
            if splits:
                joins = sorted(plan.nodes[join].digest for join in pair.joins)
                result[pair.name] = {"joins": joins, "splits": [asdict(s) for s in splits]}
        return result

    def _cooled(
        self,
        pair: Pair,
        splits: Sequence[Split],
        sides: Sequence[_Counts],
        there: Sequence[Reached],
        shards: int,
        searching: bool,
    ) -> list[Split]:
        """End the splits of keys that are hot no more, and forget those that are over."""
        kept = []
        for split in splits:
            side = split.side
            excess = sides[side].part(split.key) * (shards - 1)
            known = sides[side].rows >= self.few
            if split.cooling and searching and known and excess >= self.hot:
                if there[1 - side].time < split.copied_until:  # all rows so far have been copied
                    split = replace(split, spread_until=INF, copied_until=INF)
            elif not split.cooling and ((known and excess < self.hot / 2) or not searching):
                split = _ending(split, pair.reaches[side], there)
            if not _over(split, pair.reaches[1 - side], there):
                kept.append(split)
        return kept

    def _heated(
        self,
        pair: Pair,
        splits: Sequence[Split],
        sides: Sequence[_Counts],
        there: Sequence[Reached],
        shards: int,
    ) -> list[Split]:
        """Return the splits of keys that have become hot; of two sides the larger is spread.

        A key that has grown hotter is split again, over twice as many shards or all.
        """
        found: dict[int, tuple[float, int]] = {}
        had: dict[int, list[Split]] = {}
        for split in splits:
            had.setdefault(split.key, []).append(split)
        for side, counts in enumerate(sides):
            if pair.roles[side] and counts.rows >= self.few:
                for key, rows in counts.keys.items():
                    if counts.part(key) * (shards - 1) < self.hot:
                        continue
                    if any(s.side != side or s.cooling for s in had.get(key, ())):
                        continue  # its sides change their roles only when the splits are over
                    if rows > found.get(key, (0.0, 0))[0]:
                        found[key] = rows, side
        fresh: list[Split] = []
        for key, (_, side) in sorted(found.items(), key=lambda item: -item[1][0]):
            ways = min(max(2, math.ceil(2 * sides[side].part(key) * shards)), shards)
            most = max((s.ways for s in had.get(key, ())), default=1)
            reach = pair.reaches[1 - side]
            assert reach is not None
            first = there[1 - side].time + 1
            room = len(splits) + len(fresh) < self.most
            if room and first + reach < INF and (ways >= 2 * most or most < ways == shards):
                fresh.append(Split(key, ways, side, first, first + reach))
        return fresh


def _ending(split: Split, reach: int | None, there: Sequence[Reached]) -> Split:
    """Return a split that ends as soon as it can; ``reach`` is that of the side that is spread."""
    own, other = there[split.side].time, there[1 - split.side].time
    if own < split.spread_from:  # no row has been spread
        copied_until = max(other + 1, split.copied_from)
        return replace(split, spread_until=split.spread_from, copied_until=copied_until)
    copied_until = INF if reach is None else min(own + 1 + reach, INF)
    return replace(split, spread_until=own + 1, copied_until=copied_until)


def _over(split: Split, reach: int | None, there: Sequence[Reached]) -> bool:
    """Whether a split may be forgotten; ``reach`` is that of the side that is copied.

    Nothing to be copied comes any more, and no row to come can meet a copy.
    """
    if split.copied_until == INF or reach is None:
        return False
    beyond = split.copied_until + reach
    return there[1 - split.side].beat >= split.copied_until and there[split.side].time >= beyond


def _seen(pair: Pair, there: Sequence[Reached]) -> bool:
    """Whether both streams have brought rows that the join sees: no later query can share them."""
    return all(
        place.time > MIN_TIME and (since is None or place.time >= since)
        for place, since in zip(there, pair.since, strict=True)
    )
