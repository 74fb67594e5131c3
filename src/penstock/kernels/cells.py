"""Cells of a grid: which shards may hold the partners of a row.

Space is cut into cells of a fixed width in each dimension, and a cell belongs to the shard that its
number hashes to.  A row of the side that is *owned* is in the shard of the one cell it lies in.  A
row of the other side goes to the shards of every cell that its reach touches, each shard once.  Two
rows whose coordinates are within the reach therefore meet in exactly one shard.  Cells are fine and
their shards are random, so a hot range is spread over the shards as soon as it is wider than a few
cells.

Cell numbers ascend with the coordinate, also where they are rounded, so the cells between the two
ends of a reach hold everything in it.  Integers and times are exact; the ends of a reach of
floating numbers are moved outwards by a few units in the last place.  NaN is greater than every
number, as in every comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.keys import Keys, hash_columns
from penstock.model import I64, Mask, to_mask, to_numpy

_FARTHEST = 2.0**62
"""Cells are numbered up to here; what lies beyond shares the outermost one."""

_MOST_CELLS = 3
"""Cells in one dimension; a row that reaches more is sent to every shard.

That happens to floating numbers so large that their rounding is wider than a cell.
"""

_ROUNDING = 2.0**-50
"""A few units in the last place, as a part of a number."""


def owners(columns: Sequence[pa.Array], widths: Sequence[float], rows: int, shards: int) -> I64:
    """Return the shard of the cell that each row lies in; rows with a null have one too."""
    return cells_of(columns, widths, rows).shard(shards)


def cells_of(columns: Sequence[pa.Array], widths: Sequence[float], rows: int) -> Keys:
    """Return the hash of the cell that each row lies in."""
    cells = []
    for column, width in zip(columns, widths, strict=True):
        numbers, null = _numbers(column)
        cell = _cell(numbers, width)
        cells.append(pa.array(cell if null is None else np.where(null, 0, cell)))
    return hash_columns(cells, rows)


def reached(
    columns: Sequence[pa.Array],
    widths: Sequence[float],
    below: Sequence[float],
    above: Sequence[float],
    rows: int,
    shards: int,
    ways: Callable[[Keys], I64] | None = None,
) -> npt.NDArray[np.bool_]:
    """Return, for each row and shard, whether the row's reach touches a cell of the shard.

    The reach of a coordinate x is from ``x - below`` to ``x + above``.  A null reaches nothing.
    ``ways`` says how many shards share the cell of each row, its own one and those behind it.
    """
    firsts, lasts, spans = [], [], []
    usable: Mask = np.ones(rows, bool)
    vague: Mask = np.zeros(rows, bool)
    for column, width, down, up in zip(columns, widths, below, above, strict=True):
        numbers, null = _numbers(column)
        if null is not None:
            usable &= ~null
        first, last = (_cell(end, width) for end in _reach(numbers, down, up))
        vague |= last - first >= _MOST_CELLS
        firsts.append(first)
        lasts.append(last)
        spans.append(min(int((last - first).max(initial=0)) + 1, _MOST_CELLS))
    touched = np.zeros((rows, shards), bool)
    for steps in product(*(range(span) for span in spans)):
        corner = [
            pa.array(np.minimum(first + step, last))
            for first, last, step in zip(firsts, lasts, steps, strict=True)
        ]
        cells = hash_columns(corner, rows)
        home = cells.shard(shards)
        touched[np.arange(rows), home] = True
        if ways is not None:
            sharing = ways(cells)
            for way in range(1, int(sharing.max(initial=1))):
                at = np.flatnonzero(sharing > way)
                touched[at, (home[at] + way) % shards] = True
    touched[vague] = True
    touched[~usable] = False
    return touched


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    """Return a column as int64 or float64, and where it is null."""
    null = None
    if column.null_count:
        null = to_mask(pc.is_null(column))
        values = [None, column.buffers()[1]]  # whatever stands where it is null
        column = pa.Array.from_buffers(column.type, len(column), values, 0, column.offset)
    numbers = to_numpy(column)
    return numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64), null


def _reach(
    numbers: npt.NDArray[Any], below: float, above: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the ends of the reach, never too near."""
    if numbers.dtype.kind == "i":
        return _moved(numbers, -math.ceil(below)), _moved(numbers, math.ceil(above))
    with np.errstate(all="ignore"):
        low = numbers - below - (np.abs(numbers) + abs(below)) * _ROUNDING
        high = numbers + above + (np.abs(numbers) + abs(above)) * _ROUNDING
    far = ~np.isfinite(numbers)
    low[far], high[far] = numbers[far], numbers[far]
    return low, high


def _moved(numbers: I64, by: int) -> I64:
    """Return integers moved by a number; what would be too large stays the largest."""
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    by = max(least, min(by, most))
    kept = np.minimum(numbers, most - by) if by > 0 else np.maximum(numbers, least - by)
    return kept + np.int64(by)


def _cell(numbers: npt.NDArray[Any], width: float) -> I64:
    """Return the number of the cell of each coordinate."""
    if numbers.dtype.kind == "i":
        whole: I64 = np.floor_divide(numbers, np.int64(min(max(math.ceil(width), 1), 2**62)))
        return whole
    with np.errstate(all="ignore"):
        cell = np.floor(numbers / width)
    cell = np.where(np.isnan(cell), _FARTHEST, np.clip(cell, -_FARTHEST, _FARTHEST))
    return cell.astype(np.int64)
