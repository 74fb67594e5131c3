"""What aggregates need to know of an argument, added up over rows and turned into results.

An argument has *parts*: how many of its values are not null, the exact sum of them and of their
squares, their extremes, how many differ.  Parts of rows add up to parts of panes, and these to
parts of groups.  At the steps of a slice every part is a column; `result` makes an aggregate of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels import exact
from penstock.kernels.exact import Digits
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import ordered, ordered_type, ranks, restored
from penstock.model import I64, Mask, to_mask, to_numpy


@dataclass
class Measure:
    """One distinct argument and what is asked of it.

    ``place`` says at which columns of a live row its parts are, ``held`` the same for a group.
    """

    type: pa.DataType
    sums: bool = False
    squares: bool = False
    smallest: bool = False
    largest: bool = False
    distinct: bool = False
    place: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    @property
    def is_float(self) -> bool:
        return bool(pa.types.is_floating(self.type))

    @property
    def valued(self) -> bool:
        """Whether live rows keep the value itself."""
        return self.sums or self.smallest or self.largest

    @property
    def directions(self) -> list[bool]:
        """The extremes wanted; true is the largest."""
        return [d for d, wanted in ((False, self.smallest), (True, self.largest)) if wanted]

    @property
    def stored_type(self) -> pa.DataType:
        return pa.float64() if self.is_float else ordered_type(self.type)

    @property
    def presence(self) -> str:
        """The part of a live row that is null, or false, where the argument is null."""
        return next(part for part in ("value", "valid", "high") if part in self.place)

    @property
    def splits(self) -> list[tuple[str, Callable[[Any, I64 | None], Digits]]]:
        """How a value becomes the digits of its sum and, if wanted, of its square."""
        if not self.sums:
            return []
        first = exact.split_doubles if self.is_float else exact.split_integers
        parts: list[tuple[str, Callable[[Any, I64 | None], Digits]]] = [("sum", first)]
        return [*parts, ("square", exact.split_squares)] if self.squares else parts

    def store(self, array: pa.Array) -> pa.Array:
        """Return the argument as live rows keep it."""
        if not self.valued:
            return array
        return array.cast(pa.float64()) if self.is_float else ordered(array)

    def partial(self, stored: pa.Array, order: I64, starts: I64) -> list[pa.Array]:
        """Return the parts of pieces: ``order`` sorts rows by piece, each begins at ``starts``."""
        if stored.null_count:
            counts = _sum_of(to_mask(stored.is_valid()).astype(np.int64)[order], starts)
        else:
            counts = np.diff(np.append(starts, len(order)))
        columns = [pa.array(counts)]
        if self.sums:
            values = numbers(stored)[order]
            for _, split in self.splits:
                digits = {b: _sum_of(d, starts) for b, d in split(values, None).items()}
                columns.append(exact.pack(exact.normalise(digits), len(starts)))
        for largest in self.directions:
            columns.append(_extreme_of(ordered(stored), largest, order, starts))
        return columns


@dataclass(frozen=True)
class Extreme:
    """The rank of the extreme at every step, and the ordered values that were ranked."""

    least: I64
    values: pa.Array
    rank: I64
    largest: bool


@dataclass(frozen=True)
class Result:
    """A result column at every step: comparable values, where not null, and how to make it."""

    values: npt.NDArray[Any]
    valid: Mask | None
    make: Callable[[I64], pa.Array]

    def changes(self) -> Mask:
        """Return for each step but the first whether it differs from the one before."""
        differs: Mask = self.values[1:] != self.values[:-1]
        if self.valid is not None:
            differs &= self.valid[1:]
            differs |= self.valid[1:] != self.valid[:-1]
        return differs


def result(
    name: str, kind: pa.DataType, measure: Measure | None, parts: dict[str, Any], rows: I64
) -> Result:
    """Return the column of one aggregate at every step; without a measure it counts rows."""
    if measure is None:
        return _plain(rows, kind)
    count = parts["count"]
    valid = count > 0
    some = np.maximum(count, 1)
    match name:
        case "count":
            return _plain(count, kind)
        case "count_distinct":
            return _plain(parts["distinct"], kind)
        case "min" | "max":
            return _extreme_result(parts[name], measure.type, valid)
        case "sum" if not measure.is_float:
            return _plain(exact.checked_integer(parts["sum"], len(rows)), kind, valid)
        case "sum" | "avg":
            if "total" not in parts:
                parts["total"] = exact.to_double(parts["sum"], len(rows))
            total = parts["total"]
            return _plain(total if name == "sum" else total / some, kind, valid)
    if "variance" not in parts:
        parts["variance"] = exact.variance_parts(some, parts["sum"], parts["square"])
    sample = name.endswith("samp")
    compute = exact.variance if name.startswith("var") else exact.deviation
    return _plain(compute(some, parts["variance"], sample), kind, count > int(sample))


def validity(array: pa.Array) -> Mask | None:
    """Return where a presence column says that there is a value; None for everywhere."""
    if pa.types.is_boolean(array.type):
        mask = to_mask(array)
        return None if mask.all() else mask
    return to_mask(array.is_valid()) if array.null_count else None


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return a numeric column as NumPy, 0 for null."""
    if array.null_count:
        array = array.fill_null(0)
    values: npt.NDArray[Any] = to_numpy(array)
    return values


def _plain(values: npt.NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> Result:
    """Return a column of numbers; floats are compared by their bits."""
    if valid is not None and valid.all():
        valid = None

    def make(at: I64) -> pa.Array:
        array = pa.array(values[at], mask=None if valid is None else ~valid[at])
        return array if array.type == kind else array.cast(kind)

    bits = values.view(np.int64) if values.dtype == np.float64 else values
    return Result(bits, valid, make)


def _extreme_result(extreme: Extreme, kind: pa.DataType, valid: Mask) -> Result:
    def make(at: I64) -> pa.Array:
        least, there = extreme.least[at], valid[at]
        if not pa.types.is_string(kind):
            return restored(~least if extreme.largest else least, kind, there)
        position = np.zeros(len(extreme.rank) + 1, np.int64)
        position[extreme.rank] = np.arange(len(extreme.rank))
        return extreme.values.take(pa.array(position[np.where(there, least, 0)], mask=~there))

    return Result(extreme.least, valid, make)


def _sum_of(values: I64, starts: I64) -> I64:
    """Return the sums of consecutive pieces."""
    if len(starts) == 0:
        return np.empty(0, np.int64)
    sums: I64 = np.add.reduceat(values, starts)
    return sums


def _extreme_of(values: pa.Array, largest: bool, order: I64, starts: I64) -> pa.Array:
    """Return the extreme of consecutive pieces of ordered values, null where all are null."""
    used = order
    piece = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    if values.null_count:
        valid = to_mask(values.is_valid())[order]
        used, piece = used[valid], piece[valid]
    rank = ranks(values.take(pa.array(used)), largest)
    begin = group_starts(piece)
    found = np.full(len(starts), -1, np.int64)
    if len(begin):
        least = np.minimum.reduceat(rank, begin)
        hit = np.flatnonzero(rank == np.repeat(least, np.diff(np.append(begin, len(piece)))))
        found[piece[hit]] = used[hit]
    return values.take(pa.array(found, mask=found < 0))
