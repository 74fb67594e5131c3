"""Places as numbers: one sortable code per row, and the ranges of codes in which partners stand.

A side of a join is kept sorted by code.  A row that probes the other side gets, for every *strip*,
one range of codes; the ranges of different strips never overlap, so no candidate comes twice.
Every partner is in one of them; the whole condition discards what else is in them.

* `Band`: the code is the number itself, as an integer in the same order; one strip.
* `Overlap`: intervals are put into classes by length, powers of two.  The code is the class, then
  the lower end.  In a class whose intervals are at most L long, those that meet ``[lo, hi]`` begin
  in ``[lo - L, hi]``: one strip per class that occurs in the run.
* `Near`: cells as wide as the predicate reaches, in up to three dimensions.  Partners stand in the
  same cell or a neighbour; the last dimension's neighbours follow one another, so there are 1, 3 or
  9 strips.
* `Boxes`: classes by the larger extent; cells of that size in the first two dimensions, found by
  the lower corner.  A box that is much larger than a class's cells takes all rows of that class
  in its reach of the first dimension as one range: a sweep.
* `Edit`: the code is the length of the text; partners differ by at most the distance in length.

All arithmetic is in floating point and rounds away from missing a partner.  NaN counts as greater
than everything else, as in comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decimals import integers, is_decimal, to_doubles
from penstock.kernels.join_orders import Band, Boxes, Edit, Near, Overlap, Place
from penstock.model import I64, U64, to_numpy

F64: TypeAlias = npt.NDArray[np.float64]
Strip: TypeAlias = tuple[I64 | None, U64, U64]
"""The rows that have a range in this strip (None: all of them), its first and its last code."""

_SIGN = np.uint64(1 << 63)
_WIDER = 1.0 + 1e-6
"""Cells are a little wider than the reach, so that rounding never skips one."""
_ULPS = 8 * np.finfo(np.float64).eps

_CLASS_SHIFT = np.uint64(58)
_LEAST, _MOST = -10, 51
"""Exponents of the smallest and largest class of lengths; 0 is "no length", 63 "no bound"."""
_ENDLESS = 63
_BOX_BITS = (34, 24)
_MOST_STRIPS = 16
"""Strips of cells per class after which a large box is probed by a sweep instead."""


def numbers(column: pa.Array) -> F64:
    """Return coordinates, without nulls, as floats; there is one zero."""
    if is_decimal(column.type):
        values = to_doubles(integers(column), column.type.scale)
    elif pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=True)
    else:
        values = to_numpy(column)
    return np.asarray(values, np.float64) + 0.0


def monotone(values: F64) -> U64:
    """Return integers in the order of the floats; NaN is the largest."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    code = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    code[np.isnan(values)] = ~np.uint64(0)
    return code


def inverse(code: U64) -> F64:
    """Return the floats that `monotone` was given."""
    bits = np.where(code & _SIGN, code ^ _SIGN, ~code)
    return bits.view(np.float64)


def coordinates_of(place: Place, columns: Sequence[pa.Array]) -> tuple[Any, ...]:
    """Return the coordinates of rows, none of them null, in the form that the place computes in."""
    if isinstance(place, Edit):
        return (to_numpy(pc.utf8_length(columns[0])).astype(np.uint64),)
    return tuple(numbers(column) for column in columns)


def codes_of(place: Place, coordinates: Sequence[Any]) -> U64:
    """Return the code of each row."""
    match place:
        case Band():
            return monotone(coordinates[0])
        case Overlap():
            low, high = coordinates
            return _classed(_class_of(_length(low, high)), low)
        case Near(widths):
            cells = _cells(coordinates, widths)
            return _packed(cells, _bits(len(cells)))
        case Boxes():
            kind = _class_of(_extent(coordinates))
            across, along = (
                _box_cells(coordinates[0], kind, 0),
                _box_cells(coordinates[2], kind, 1),
            )
            return _box_code(kind, across, along)
        case Edit():
            code: U64 = coordinates[0]
            return code
    raise TypeError(f"{place} has no codes")


def stats_of(place: Place, codes: U64) -> dict[str, int]:
    """Return what a run must tell about its codes, so that strips can be made for it."""
    stats = {"min_code": int(codes[0]), "max_code": int(codes[-1])}
    if isinstance(place, Overlap | Boxes):
        kinds = np.unique(codes >> _CLASS_SHIFT)
        stats["classes"] = sum(1 << int(kind) for kind in kinds)
    return stats


def strips_of(
    place: Place, probe_is_left: bool, coordinates: Sequence[Any], run: Mapping[str, int]
) -> Iterator[Strip]:
    """Yield the ranges of codes of a run in which the partners of the given rows stand."""
    match place:
        case Band(low, high):
            if not probe_is_left:
                low, high = -high, -low
            x = coordinates[0]
            yield None, monotone(_below(x, low)), monotone(_above(x, high))
        case Overlap():
            low, high = coordinates
            last = monotone(high) >> np.uint64(6)
            for kind, longest in _classes(run):
                base = np.uint64(kind) << _CLASS_SHIFT
                first = monotone(_below(low, -longest)) >> np.uint64(6)
                yield None, base | first, base | last
        case Near(widths):
            yield from _near_strips(_cells(coordinates, widths))
        case Boxes():
            for kind, longest in _classes(run):
                yield from _box_strips(kind, longest, coordinates)
        case Edit(distance):
            length = coordinates[0]
            reach = np.uint64(distance)
            yield None, length - np.minimum(length, reach), length + reach
        case _:
            raise TypeError(f"{place} has no strips")


# Rounding outward


def _below(values: F64, by: float) -> F64:
    """Return ``values + by``, a little less than exact; NaN stays where it is."""
    if np.isinf(by):
        return np.full(len(values), by)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = values + by - _ULPS * (np.abs(values) + abs(by))
    return np.where(np.isinf(values), values, moved)


def _above(values: F64, by: float) -> F64:
    """Return ``values + by``, a little more than exact; NaN if there is no upper bound."""
    if np.isinf(by):
        return np.full(len(values), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = values + by + _ULPS * (np.abs(values) + abs(by))
    return np.where(np.isinf(values), values, moved)


# Classes of lengths


def _length(low: F64, high: F64) -> F64:
    """Return how long intervals are; endless where an end is not a number."""
    with np.errstate(invalid="ignore", over="ignore"):
        length = high - low
    length[np.isnan(length)] = np.inf
    return length


def _extent(coordinates: Sequence[F64]) -> F64:
    extent = _length(coordinates[0], coordinates[1])
    for at in range(2, min(len(coordinates), 4), 2):
        extent = np.maximum(extent, _length(coordinates[at], coordinates[at + 1]))
    return extent


def _class_of(length: F64) -> U64:
    """Return the class of each length: in class k nothing is longer than `_longest` says."""
    mantissa, exponent = np.frexp(length)
    exponent = exponent - (mantissa == 0.5)  # a power of two is the longest of its class
    kind = np.clip(exponent, _LEAST, _MOST + 1) - _LEAST + 1
    kind[exponent > _MOST] = _ENDLESS
    kind[np.isinf(length)] = _ENDLESS
    kind[length <= 0] = 0
    return np.asarray(kind, np.uint64)


def _longest(kind: int) -> float:
    if kind == _ENDLESS:
        return np.inf
    return 0.0 if kind == 0 else 2.0 ** (kind - 1 + _LEAST)


def _classes(run: Mapping[str, int]) -> Iterator[tuple[int, float]]:
    for kind in range(_ENDLESS + 1):
        if run["classes"] >> kind & 1:
            yield kind, _longest(kind)


def _classed(kind: U64, low: F64) -> U64:
    return (kind << _CLASS_SHIFT) | (monotone(low) >> np.uint64(6))


# Cells of points


def _bits(dimensions: int) -> int:
    return 64 // max(dimensions, 1)


def _cells(coordinates: Sequence[F64], widths: Sequence[float]) -> list[U64]:
    """Return the cells of points; what is too far out shares the outermost cell."""
    used = min(len(widths), 3)
    top = float((1 << min(_bits(used), 52)) - 1)
    cells = []
    for x, width in zip(coordinates[:used], widths[:used], strict=True):
        size = width * _WIDER if width > 0 and np.isfinite(width) else 1.0
        with np.errstate(invalid="ignore", over="ignore"):
            cell = np.floor(x / size) + (top + 1) / 2
        cell[np.isnan(cell)] = top
        if np.isinf(width):
            cell[:] = 0
        cells.append(np.clip(cell, 0.0, top).astype(np.uint64))
    return cells


def _packed(cells: Sequence[U64], bits: int) -> U64:
    code = cells[0]
    for cell in cells[1:]:
        code = (code << np.uint64(bits)) | cell
    return code


def _near_strips(cells: Sequence[U64]) -> Iterator[Strip]:
    bits = _bits(len(cells))
    top = np.uint64((1 << min(bits, 52)) - 1)
    one = np.uint64(1)
    last = cells[-1]
    lowest = last - np.minimum(last, one)
    highest = np.minimum(last + one, top)
    steps: list[tuple[int, ...]] = [()]
    for _ in cells[:-1]:
        steps = [(*step, d) for step in steps for d in (-1, 0, 1)]
    for step in steps:
        rows: I64 | None = None
        inside = np.ones(len(last), bool)
        for cell, d in zip(cells, step, strict=False):
            if d:
                inside &= (cell > 0) if d < 0 else (cell < top)
        moved = [
            cell - one if d < 0 else cell + one if d > 0 else cell
            for cell, d in zip(cells, step, strict=False)
        ]
        first, final = _packed([*moved, lowest], bits), _packed([*moved, highest], bits)
        if not inside.all():
            rows = np.flatnonzero(inside)
            first, final = first[rows], final[rows]
        yield rows, first, final


# Cells of boxes


def _box_size(longest: float) -> float:
    return min(max(longest, 2.0**_LEAST), 2.0**_MOST)


def _box_cells(low: F64, kind: U64, dimension: int) -> U64:
    """Return the cell of a lower corner in the grid of each box's own class."""
    sizes = np.array([_box_size(_longest(k)) for k in range(_ENDLESS + 1)])
    return _box_cell(low, sizes[kind.astype(np.int64)], dimension)


def _box_cell(x: F64, size: Any, dimension: int) -> U64:
    top = float((1 << _BOX_BITS[dimension]) - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        cell = np.floor(x / (size * _WIDER)) + (top + 1) / 2
    cell[np.isnan(cell)] = top
    return np.asarray(np.clip(cell, 0.0, top), np.uint64)


def _box_code(kind: Any, across: U64, along: Any) -> U64:
    code: U64 = (kind << _CLASS_SHIFT) | (across << np.uint64(_BOX_BITS[1])) | along
    return code


def _box_strips(kind: int, longest: float, coordinates: Sequence[F64]) -> Iterator[Strip]:
    size = _box_size(longest)
    number = np.uint64(kind)
    reach = np.inf if np.isinf(longest) else size
    first, last = (
        _box_cell(_below(coordinates[0], -reach), size, 0),
        _box_cell(_above(coordinates[1], 0.0), size, 0),
    )
    low, high = (
        _box_cell(_below(coordinates[2], -reach), size, 1),
        _box_cell(_above(coordinates[3], 0.0), size, 1),
    )
    there = first <= last
    wide = there & (last - first >= _MOST_STRIPS)
    rows = np.flatnonzero(wide)
    if len(rows):
        none, all_ = np.uint64(0), np.uint64((1 << _BOX_BITS[1]) - 1)
        yield (
            rows,
            _box_code(number, first[rows], none),
            _box_code(number, last[rows], all_),
        )
    rows = np.flatnonzero(there & ~wide & (low <= high))
    while len(rows):
        yield (
            rows,
            _box_code(number, first[rows], low[rows]),
            _box_code(number, first[rows], high[rows]),
        )
        first = first + np.uint64(1)
        rows = rows[first[rows] <= last[rows]]
