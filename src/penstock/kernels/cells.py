"""Cells of a grid: which shards may hold the partners of a row.

Space is cut into cells of a fixed width in each dimension, and a cell belongs to the shard that its
number hashes to.  A row of the side that is *owned* is in the shard of the one cell it lies in.  A
row of the other side goes to the shards of every cell that its reach touches, each shard once.  Two
rows whose coordinates are within the reach therefore meet in exactly one shard.  Cells are fine and
their shards are random, so a hot range is spread over the shards as soon as it is wider than a few
cells.

Cell numbers ascend with the coordinate, also where they are rounded, so the cells between the two
ends of a reach hold everything in it.  The ends of a reach of floating numbers are moved outwards
by a few units in the last place.  NaN is greater than every number, as in every comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.keys import hash_columns
from penstock.model import I64, Mask, to_mask, to_numpy

_FARTHEST = 2.0**62
"""Cells are numbered up to here; what lies beyond shares the outermost one."""

_ROUNDING = 2.0**-48
"""A few units in the last place, as a part of a number."""


def owners(columns: Sequence[pa.Array], widths: Sequence[float], rows: int, shards: int) -> I64:
    """Return the shard of the cell that each row lies in; rows with a null have one too."""
    cells = []
    for column, width in zip(columns, widths, strict=True):
        numbers, null = _numbers(column)
        cell = _cell(numbers, width)
        cells.append(pa.array(cell if null is None else np.where(null, 0, cell)))
    return hash_columns(cells, rows).shard(shards)


def reached(
    columns: Sequence[pa.Array],
    widths: Sequence[float],
    below: Sequence[float],
    above: Sequence[float],
    rows: int,
    shards: int,
) -> npt.NDArray[np.bool_]:
    """Return, for each row and shard, whether the row's reach touches a cell of the shard.

    The reach of a coordinate x is from ``x - below`` to ``x + above``.  A null reaches nothing.
    """
    firsts, lasts, spans = [], [], []
    usable: Mask = np.ones(rows, bool)
    for column, width, down, up in zip(columns, widths, below, above, strict=True):
        numbers, null = _numbers(column)
        if null is not None:
            usable &= ~null
        first, last = (_cell(end, width) for end in _reach(numbers, down, up))
        firsts.append(first)
        lasts.append(last)
        spans.append(int((last - first)[usable].max(initial=0)) + 1)
    touched = np.zeros((rows, shards), bool)
    for steps in product(*(range(span) for span in spans)):
        corner = [
            pa.array(np.minimum(first + step, last))
            for first, last, step in zip(firsts, lasts, steps, strict=True)
        ]
        touched[np.arange(rows), hash_columns(corner, rows).shard(shards)] = True
    touched[~usable] = False
    return touched


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    """Return a column as int64 or float64, and where it is null."""
    null = None
    if column.null_count:
        null = to_mask(pc.is_null(column))
        column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(column.type))
    numbers = to_numpy(column)
    return numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64), null


def _reach(
    numbers: npt.NDArray[Any], below: float, above: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the ends of the reach as floating numbers, never too near."""
    middle = numbers.astype(np.float64)
    low, high = middle - below, middle + above
    low -= (np.abs(middle) + abs(below)) * _ROUNDING
    high += (np.abs(middle) + abs(above)) * _ROUNDING
    if numbers.dtype.kind == "f":
        far = ~np.isfinite(middle)
        low[far], high[far] = middle[far], middle[far]
    return low, high


def _cell(numbers: npt.NDArray[Any], width: float) -> I64:
    """Return the number of the cell of each coordinate."""
    with np.errstate(all="ignore"):
        cell = np.floor(numbers / width)
    cell = np.where(np.isnan(cell), _FARTHEST, np.clip(cell, -_FARTHEST, _FARTHEST))
    return cell.astype(np.int64)
