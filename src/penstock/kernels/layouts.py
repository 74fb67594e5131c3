"""How the rows of one side of a join are kept sorted, and how a sorted side is probed.

A *layout* is chosen by the place of the predicate (`layout_of`).  It names the numbers that are
kept beside each row, the order by them, what a run tells about them, and which rows of a run may be
partners of the rows of a probe:

* `Hashed`, for `Equal` and `Anywhere`: hash lanes of the keys, by bucket, then start
  (`penstock.kernels.pairs`);
* `HashedBand`, for `EqualBand`: by bucket, then the code of the band, so that few keys with many
  rows each cost no more than many with few;
* `Coded`, for everything else: codes (`penstock.kernels.codes`), by code, then arrival.

What `match` yields are candidates whose validity overlaps, each pair once, in blocks of bounded
size.  `Equal` keys are equal for sure; every other place leaves the condition itself to be tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.kernels.codes import codes_of, coordinates_of, stats_of, strips_of
from penstock.kernels.edit_marks import marks_of, may_be_near
from penstock.kernels.join_orders import Anywhere, Band, Edit, Equal, EqualBand, Place
from penstock.kernels.keys import hash_columns
from penstock.kernels.pairs import (
    WORTH_BISECTING,
    Ordered,
    bisect,
    blocks,
    bucket_of,
    candidates,
    match,
    merge_order,
    shape,
    sort_order,
)
from penstock.model import I64, U64, Mask


class SortedRows(Protocol):
    """Rows in the order of a layout: its numbers and ``_start``, ``_end``; what a run tells.

    ``coordinates`` are there only for rows that probe.
    """

    stats: dict[str, int]
    coordinates: tuple[Any, ...]

    def numbers(self, name: str) -> Any:
        """Return a numeric column."""

    def __len__(self) -> int: ...


Numbers: TypeAlias = dict[str, U64]


class Hashed:
    """By bucket of the key's hash, then start."""

    names: tuple[str, ...] = ("_high", "_low")
    sorted_by: tuple[str, ...] = ("_high",)

    def place(self, columns: Sequence[pa.Array], rows: int) -> tuple[Numbers, tuple[Any, ...]]:
        """Return the numbers of rows, and their coordinates for probing."""
        keys = hash_columns(columns, rows)
        return {"_high": keys.high, "_low": keys.low}, ()

    def order(self, numbers: Numbers, start: I64) -> I64:
        """Return the order that sorts rows."""
        return sort_order(numbers["_high"], start)

    def merged(self, numbers: Numbers, start: I64 | None) -> I64:
        """Return the order that merges sorted pieces standing one after another, oldest first.

        ``start`` is given when pieces do not follow one another in time.
        """
        if start is not None:
            return sort_order(numbers["_high"], start)
        return merge_order(numbers["_high"])

    def stats(self, numbers: Mapping[str, U64], end: I64) -> dict[str, int]:
        """Return what a run tells about its order."""
        high, low = numbers["_high"], numbers["_low"]
        pure, stairs = shape(high, low, end)
        ends = {"min_bucket": bucket_of(high[0]), "max_bucket": bucket_of(high[-1])}
        return ends | {"pure": int(pure), "stairs": int(stairs)}

    def match(
        self, probe: SortedRows, run: SortedRows, probe_is_left: bool, block: int
    ) -> Iterator[tuple[I64, I64]]:
        """Yield positions of candidates in the probe and in the run."""
        if self._same_buckets(probe, run):
            yield from match(_ordered(probe), _ordered(run), block)

    def _same_buckets(self, probe: SortedRows, run: SortedRows) -> bool:
        return (
            run.stats["max_bucket"] >= probe.stats["min_bucket"]
            and run.stats["min_bucket"] <= probe.stats["max_bucket"]
        )


class HashedBand(Hashed):
    """By bucket of the key's hash, then the code of a band."""

    names = ("_high", "_low", "_code")
    sorted_by = ("_high", "_code")

    def __init__(self, band: Band) -> None:
        self._band = band

    def place(self, columns: Sequence[pa.Array], rows: int) -> tuple[Numbers, tuple[Any, ...]]:
        """Return the numbers of rows, and their coordinates for probing."""
        numbers, _ = super().place(columns[:-1], rows)
        coordinates = coordinates_of(self._band, columns[-1:])
        return numbers | {"_code": codes_of(self._band, coordinates)}, coordinates

    def order(self, numbers: Numbers, start: I64) -> I64:
        """Return the order that sorts rows."""
        return sort_order(numbers["_high"], numbers["_code"])

    def merged(self, numbers: Numbers, start: I64 | None) -> I64:
        """Return the order that merges sorted pieces standing one after another."""
        return self.order(numbers, np.empty(0, np.int64))

    def match(
        self, probe: SortedRows, run: SortedRows, probe_is_left: bool, block: int
    ) -> Iterator[tuple[I64, I64]]:
        """Yield positions of candidates in the probe and in the run."""
        if not self._same_buckets(probe, run):
            return
        mine, theirs = _ordered(probe), _ordered(run)
        rows, first, last = candidates(mine, theirs)
        if int((last - first).sum()) > WORTH_BISECTING * len(rows):
            code = run.numbers("_code")
            ((_, low, high),) = strips_of(self._band, probe_is_left, probe.coordinates, run.stats)
            first = bisect(code, low[rows], first, last, inclusive=False)
            last = bisect(code, high[rows], first, last, inclusive=True)
            some = np.flatnonzero(first < last)
            rows, first, last = rows[some], first[some], last[some]
        if len(rows) == 0:
            return
        for row, position in alive(probe, run, rows, first, last, block):
            if not theirs.pure:
                same = theirs.low[position] == mine.low[row]
                same &= theirs.high[position] == mine.high[row]
                row, position = row[same], position[same]
            if len(row):
                yield row, position


class Coded:
    """By the code of a place."""

    sorted_by = ("_code",)

    def __init__(self, place: Place) -> None:
        self._place = place
        self._marked = isinstance(place, Edit)
        self.names = ("_code", "_mark") if self._marked else ("_code",)

    def place(self, columns: Sequence[pa.Array], rows: int) -> tuple[Numbers, tuple[Any, ...]]:
        """Return the numbers of rows, and their coordinates for probing."""
        coordinates = coordinates_of(self._place, columns)
        numbers = {"_code": codes_of(self._place, coordinates)}
        if self._marked:
            numbers["_mark"] = marks_of(columns[0])
        return numbers, coordinates

    def order(self, numbers: Numbers, start: I64) -> I64:
        """Return the order that sorts rows."""
        return np.argsort(numbers["_code"], kind="stable")

    def merged(self, numbers: Numbers, start: I64 | None) -> I64:
        """Return the order that merges sorted pieces standing one after another, oldest first."""
        return np.argsort(numbers["_code"], kind="stable")

    def stats(self, numbers: Mapping[str, U64], end: I64) -> dict[str, int]:
        """Return what a run tells about its order."""
        return stats_of(self._place, numbers["_code"])

    def match(
        self, probe: SortedRows, run: SortedRows, probe_is_left: bool, block: int
    ) -> Iterator[tuple[I64, I64]]:
        """Yield positions of candidates in the probe and in the run."""
        code = run.numbers("_code")
        strips = strips_of(self._place, probe_is_left, probe.coordinates, run.stats)
        for rows, low, high in strips:
            if int(low.min(initial=2**64 - 1)) > run.stats["max_code"]:
                continue
            first = np.searchsorted(code, low, "left")
            last = np.searchsorted(code, high, "right")
            some = np.flatnonzero(first < last)
            if len(some) == 0:
                continue
            found = some if rows is None else rows[some]
            pairs = alive(probe, run, found, first[some], last[some], block)
            yield from self._unlike(probe, run, pairs) if self._marked else pairs

    def _unlike(
        self, probe: SortedRows, run: SortedRows, pairs: Iterator[tuple[I64, I64]]
    ) -> Iterator[tuple[I64, I64]]:
        """Leave out pairs of texts whose marks say that they are far apart."""
        assert isinstance(self._place, Edit)
        mine, theirs = probe.numbers("_mark"), run.numbers("_mark")
        for row, position in pairs:
            near = may_be_near(mine[row], theirs[position], self._place.distance)
            if near.any():
                yield row[near], position[near]


def alive(
    probe: SortedRows, run: SortedRows, rows: I64, first: I64, last: I64, block: int
) -> Iterator[tuple[I64, I64]]:
    """Expand ranges of candidates, none empty, and keep the pairs whose validity overlaps."""
    start, end = probe.numbers("_start"), probe.numbers("_end")
    test_start = int(end[rows].min()) <= run.stats["max_start"]
    test_end = int(start[rows].max()) >= run.stats["min_end"]
    for owner, position in blocks(first, last, block):
        row = rows[owner]
        keep: Mask | None = None
        if test_start:
            keep = run.numbers("_start")[position] < end[row]
        if test_end:
            overlap = start[row] < run.numbers("_end")[position]
            keep = overlap if keep is None else keep & overlap
        if keep is not None:
            kept = np.flatnonzero(keep)
            if len(kept) < len(row):
                row, position = row[kept], position[kept]
        if len(row):
            yield row, position


Layout: TypeAlias = Hashed | Coded


def layout_of(place: Place) -> Layout:
    """Return the layout that serves a place."""
    match place:
        case Equal() | Anywhere():
            return Hashed()
        case EqualBand(band):
            return HashedBand(band)
    return Coded(place)


def _ordered(piece: SortedRows) -> Ordered:
    return Ordered(
        piece.numbers("_high"),
        piece.numbers("_low"),
        piece.numbers("_start"),
        piece.numbers("_end"),
        piece.stats["max_start"],
        piece.stats["min_end"],
        bool(piece.stats["pure"]),
        bool(piece.stats["stairs"]),
    )
