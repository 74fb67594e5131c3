"""How the rows of one side of a join are kept sorted, and how a sorted side is probed.

A *layout* is chosen by the place of the predicate (`layout_of`).  It names the numbers that are
kept beside each row, the order by them, what a run tells about them, and which rows of a run may be
partners of the rows of a probe:

* `Hashed`, for `Equal` and `Anywhere`: hash lanes of the keys, by bucket, then start
  (`penstock.kernels.pairs`);
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
from penstock.kernels.keys import hash_columns
from penstock.kernels.pairs import (
    Ordered,
    blocks,
    bucket_of,
    match,
    merge_order,
    shape,
    sort_order,
)
from penstock.kernels.places import Anywhere, Edit, Equal, Place
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

    names = ("_high", "_low")

    def place(self, columns: Sequence[pa.Array], rows: int) -> tuple[Numbers, tuple[Any, ...]]:
        """Return the numbers of rows, and their coordinates for probing."""
        keys = hash_columns(columns, rows)
        return {"_high": keys.high, "_low": keys.low}, ()

    def order(self, numbers: Numbers, start: I64) -> I64:
        """Return the order that sorts rows."""
        return sort_order(numbers["_high"], start)

    def merged(self, first: U64, start: I64 | None) -> I64:
        """Return the order that merges sorted pieces standing one after another, oldest first.

        ``start`` is given when pieces do not follow one another in time.
        """
        if start is not None:
            return sort_order(first, start)
        return merge_order(first)

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
        if (
            run.stats["max_bucket"] >= probe.stats["min_bucket"]
            and run.stats["min_bucket"] <= probe.stats["max_bucket"]
        ):
            yield from match(_ordered(probe), _ordered(run), block)


class Coded:
    """By the code of a place."""

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

    def merged(self, first: U64, start: I64 | None) -> I64:
        """Return the order that merges sorted pieces standing one after another, oldest first."""
        return np.argsort(first, kind="stable")

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
            yield from self._alive(probe, run, found, first[some], last[some], block)

    def _alive(
        self, probe: SortedRows, run: SortedRows, rows: I64, first: I64, last: I64, block: int
    ) -> Iterator[tuple[I64, I64]]:
        """Expand ranges of candidates and keep the pairs whose validity overlaps."""
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
            if isinstance(self._place, Edit):
                marks = probe.numbers("_mark")[row], run.numbers("_mark")[position]
                near = may_be_near(*marks, self._place.distance)
                keep = near if keep is None else keep & near
            if keep is not None:
                kept = np.flatnonzero(keep)
                if len(kept) < len(row):
                    row, position = row[kept], position[kept]
            if len(row):
                yield row, position


Layout: TypeAlias = Hashed | Coded


def layout_of(place: Place) -> Layout:
    """Return the layout that serves a place."""
    return Hashed() if isinstance(place, Equal | Anywhere) else Coded(place)


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
