"""Exchanges: how the rows between two stages find their shard, one class for each way.

`Exchange.route` cuts a batch into the parts of the shards.  The rows of a part keep their order,
and empty parts are left out.  The work follows the rows and the parts, whatever the number of
shards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.kernels.cells import cells_of, reached
from penstock.kernels.keys import Keys, hash_columns
from penstock.model import I64, Batch, Ends
from penstock.physical.split_routes import Route

_FEW_SHARDS = 8
"""So many shards pick their rows one by one, faster than all rows are sorted by shard."""

Parts = Iterator[tuple[int, Batch]]


@dataclass(frozen=True)
class Exchange(ABC):
    """How rows find their shard; ``keys`` are the columns that decide, if any do."""

    keys: tuple[int, ...] = ()
    kind: ClassVar[str]
    ends_follow_rows: ClassVar[bool] = True
    """Whether only their rows say in which shards a holder must be told; else `ends` knows."""

    def route(self, batch: Batch, shards: int, splits: Route | None = None) -> Parts:
        """Yield the parts of a batch with their shards.

        ``splits`` are the keys that several shards share at present; only joins have such.
        """
        if len(batch) == 0:
            return
        if shards == 1:
            yield 0, batch
            return
        split = splits if splits is not None and splits.layers else None
        yield from self._parts(batch, shards, split)

    @abstractmethod
    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        """Do the same for at least one row and several shards."""

    def ends(self, told: Ends, shards: int) -> Iterator[tuple[int, Ends]]:
        """Yield the shards that may have rows of told holders, with the ends of these."""
        yield from ((shard, told) for shard in range(shards))

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Single(Exchange):
    """Everything to shard 0."""

    kind = "single"
    ends_follow_rows = False

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        yield 0, batch

    def ends(self, told: Ends, shards: int) -> Iterator[tuple[int, Ends]]:
        yield 0, told


@dataclass(frozen=True)
class Spread(Exchange):
    """To any shard.  Rows with a holder go where it says: so does a negative tuple."""

    kind = "spread"
    ends_follow_rows = False

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        if batch.holder.any():
            place = np.where(batch.holder == 0, np.arange(len(batch)), batch.holder)
            yield from _cut(batch, place % shards, shards)
            return
        size = -(-len(batch) // shards)
        for shard, first in enumerate(range(0, len(batch), size)):
            yield shard, batch.slice(first, min(first + size, len(batch)))

    def ends(self, told: Ends, shards: int) -> Iterator[tuple[int, Ends]]:
        order, edges = _sorted(told.holder % shards)
        holder, end = told.holder[order], told.end[order]
        for shard, first, last in edges:
            yield shard, Ends(holder[first:last], end[first:last])


@dataclass(frozen=True)
class Owned(Exchange):
    """To one shard, by all that a row is: of a join without keys."""

    kind = "owned"

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        yield from _cut(batch, _by_row(batch, shards), shards)


@dataclass(frozen=True)
class Copies(Exchange):
    """To every shard: the other side of a join without keys."""

    kind = "copies"
    ends_follow_rows = False

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        for shard in range(shards):
            yield shard, batch


@dataclass(frozen=True)
class ByKey(Exchange):
    """By the hash of the key columns."""

    kind = "hash"

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        keys = hash_columns([batch.columns[k] for k in self.keys], len(batch))
        if splits is None:
            yield from _cut(batch, keys.shard(shards), shards)
        else:
            yield from _split(batch, keys, shards, splits)

    def __str__(self) -> str:
        return f"hash({', '.join(f'#{k}' for k in self.keys)})"


@dataclass(frozen=True)
class Cells(Exchange):
    """By the cells of a grid over the key columns: see `penstock.kernels.cells`.

    A row goes to the cells between ``below`` and ``above`` its coordinates.  Empty ends: to the one
    cell that it lies in.
    """

    kind = "cells"
    widths: tuple[float, ...] = ()
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        columns = [batch.columns[k] for k in self.keys]
        if not self.below:
            cells = cells_of(columns, self.widths, len(batch))
            if splits is None:
                yield from _cut(batch, cells.shard(shards), shards)
            else:
                yield from _split(batch, cells, shards, splits)
            return
        touched = reached(
            columns,
            self.widths,
            self.below,
            self.above,
            len(batch),
            shards,
            None if splits is None else lambda cells: splits.copies(cells.high, batch.start),
        )
        row, shard_of = np.nonzero(touched)
        yield from _cut(batch, shard_of, shards, row)

    def __str__(self) -> str:
        pairs = zip(self.keys, self.widths, strict=True)
        sides = ", ".join(f"#{key} by {width:.6g}" for key, width in pairs)
        return f"cells({sides}{', with neighbours' if self.below else ''})"


@dataclass(frozen=True)
class Shared(Exchange):
    """By key, but a key has ``ways`` shards: rows of one side stand in one of them, by the whole
    row, and rows of the other side are ``copied`` to all of them.
    """

    kind = "shared"
    ways: int = 1
    copied: bool = False

    def _parts(self, batch: Batch, shards: int, splits: Route | None) -> Parts:
        ways = min(self.ways, shards)
        home = hash_columns([batch.columns[k] for k in self.keys], len(batch)).shard(shards)
        if self.copied:
            yield from _copied(batch, home, np.full(len(batch), ways), shards)
        else:
            yield from _cut(batch, (home + _by_row(batch, ways)) % shards, shards)

    def __str__(self) -> str:
        keys = ", ".join(f"#{k}" for k in self.keys)
        return f"hash({keys}, {'copies in' if self.copied else 'one of'} {self.ways} shards)"


SINGLE = Single()
SPREAD = Spread()
OWNED = Owned()
COPIES = Copies()


def _by_row(batch: Batch, ways: int) -> I64:
    """Return one of some ways for each row, by all that it is."""
    return hash_columns([*batch.columns, pa.array(batch.start)], len(batch)).shard(ways)


def _split(batch: Batch, keys: Keys, shards: int, splits: Route) -> Parts:
    """Cut a batch where keys, or cells, are split while they are hot: see `physical.key_splits`."""
    home = keys.shard(shards)
    shared, ways, copied = splits.shared(keys.high, batch.start)
    apart = shared[~copied]
    if len(apart):  # in one of the ways, by the number of arrival
        arrival = np.arange(len(batch)) if batch.seq is None else batch.seq
        mixed = hash_columns([pa.array(arrival[apart])], len(apart)).low
        way = (mixed % ways[~copied].astype(np.uint64)).astype(np.int64)
        home[apart] = (home[apart] + way) % shards  # of a row that is there twice the last counts
    if not copied.any():
        yield from _cut(batch, home, shards)
        return
    times = np.ones(len(batch), np.int64)
    times[shared[copied]] = ways[copied]
    yield from _copied(batch, home, times, shards)


def _copied(batch: Batch, home: I64, times: I64, shards: int) -> Parts:
    """Cut a batch whose rows go to several shards: their home and those behind it."""
    row = np.repeat(np.arange(len(batch)), times)
    behind = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    yield from _cut(batch, (home[row] + behind) % shards, shards, row)


def _cut(batch: Batch, shard_of: I64, shards: int, row: I64 | None = None) -> Parts:
    """Cut a batch by the shards of its rows; ``row``, ascending, says which rows those are."""
    if shards <= _FEW_SHARDS:
        for shard in range(shards):
            index = np.flatnonzero(shard_of == shard)
            if len(index):
                yield shard, batch.take(index if row is None else row[index])
        return
    order, edges = _sorted(shard_of)
    ordered = batch.take(order if row is None else row[order])
    for shard, first, last in edges:
        yield shard, ordered.slice(first, last)


def _sorted(shard_of: I64) -> tuple[I64, list[tuple[int, int, int]]]:
    """Return the order by shard, and where in it the shards that have something begin and end."""
    order = np.argsort(shard_of.astype(np.uint16), kind="stable")
    count = np.bincount(shard_of)
    shard, last = np.flatnonzero(count), np.cumsum(count)
    edges = np.stack((shard, (last - count)[shard], last[shard]), axis=1)
    return order, edges.tolist()
