"""Where rows go while keys are split: the splits of one batch, ready to be asked for many rows.

What a split is, and why every pair of a join is still made once, stands in `physical.key_splits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from penstock.model import I64, INF, U64, Mask

_FEW = 8
"""So many keys are compared with all rows one by one, faster than by searching."""


@dataclass(frozen=True)
class Split:
    """A key, by one lane of its hash, that several shards share; ``side`` (0 left) is spread."""

    key: int
    ways: int
    side: int
    copied_from: int
    spread_from: int
    spread_until: int = INF
    copied_until: int = INF

    @property
    def cooling(self) -> bool:
        """Whether it has been decided when the split ends."""
        return self.spread_until < INF


@dataclass(frozen=True)
class _Layer:
    """At most one split of each key, as one side of the join sees them, in order of the keys."""

    keys: U64
    ways: I64
    copied: Mask
    first: I64
    until: I64

    @staticmethod
    def of(splits: Sequence[Split], side: int) -> _Layer:
        spread = [split.side == side for split in splits]
        own = list(zip(splits, spread, strict=True))
        return _Layer(
            np.array([s.key for s in splits], np.uint64),
            np.array([s.ways for s in splits], np.int64),
            ~np.array(spread, bool),
            np.array([s.spread_from if mine else s.copied_from for s, mine in own], np.int64),
            np.array([s.spread_until if mine else s.copied_until for s, mine in own], np.int64),
        )

    def rows(self, keys: U64, time: I64) -> tuple[I64, I64]:
        """Return the rows whose keys are split at their time, and the splits."""
        if len(self.keys) <= _FEW:
            found = [np.flatnonzero(keys == key) for key in self.keys]
            rows = np.concatenate(found)
            split = np.repeat(np.arange(len(found)), [len(some) for some in found])
        else:
            split = np.searchsorted(self.keys, keys)
            split[split == len(self.keys)] = 0
            rows = np.flatnonzero(self.keys[split] == keys)
            split = split[rows]
        now = (time[rows] >= self.first[split]) & (time[rows] < self.until[split])
        return rows[now], split[now]


@dataclass(frozen=True)
class Route:
    """What one batch knows of the split keys of a channel; ``counted``: its keys are counted.

    A key that is split again, over more shards, has the same side spread: the most ways count.
    """

    counted: bool = False
    layers: tuple[_Layer, ...] = ()

    @staticmethod
    def of(splits: Iterable[Split], side: int, counted: bool) -> Route:
        """Return the route of one side of a join."""
        layers: list[list[Split]] = []
        ordered = sorted(splits, key=lambda s: (s.key, s.ways))
        for _, same in groupby(ordered, lambda s: s.key):
            for depth, split in enumerate(same):
                layers += [[]] if depth == len(layers) else []
                layers[depth].append(split)
        return Route(counted, tuple(_Layer.of(layer, side) for layer in layers))

    def shared(self, keys: U64, time: I64) -> tuple[I64, I64, Mask]:
        """Return the rows whose keys several shards share, how many, and which are copied.

        A row may be there several times, with fewer ways at first.
        """
        rows, ways, copied = [], [], []
        for layer in self.layers:
            found, split = layer.rows(keys, time)
            rows.append(found)
            ways.append(layer.ways[split])
            copied.append(layer.copied[split])
        return np.concatenate(rows), np.concatenate(ways), np.concatenate(copied)

    def copies(self, keys: U64, time: I64) -> I64:
        """Return to how many shards each row goes, home included, on the side that is copied."""
        rows, ways, copied = self.shared(keys, time)
        result = np.ones(len(keys), np.int64)
        result[rows[copied]] = ways[copied]
        return result
