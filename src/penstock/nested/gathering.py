"""Positions of elements: what functions of arrays are made of, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model import I64, Mask
from penstock.nested.comparable import ranks
from penstock.nested.shapes import as_arrays, owners, valid_mask


def runs(starts: I64, sizes: I64) -> I64:
    """Return the numbers ``starts[i] .. starts[i] + sizes[i] - 1`` of each i, one after another."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


def places_of(sizes: I64) -> I64:
    """Return where the elements of each row begin, and where the last ones end."""
    places = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=places[1:])
    return places


def kept(places: I64, values: pa.Array, keep: Mask, valid: Mask) -> pa.Array:
    """Return arrays without some of their elements."""
    counted = np.concatenate([[0], np.cumsum(keep)])
    return as_arrays(counted[places], values.filter(pa.array(keep)), valid)


def joined(columns: Sequence[tuple[I64, pa.Array]], valid: Mask) -> pa.Array:
    """Return the elements of several arrays of each row as one array."""
    sizes = [np.diff(places) for places, _ in columns]
    total: I64 = np.add.reduce(sizes)
    starts = places_of(total)[:-1]
    index = np.empty(int(total.sum()), np.int64)
    first = 0
    for (_, values), own in zip(columns, sizes, strict=True):
        index[runs(starts, own)] = np.arange(len(values)) + first
        starts = starts + own
        first += len(values)
    together = pa.concat_arrays([values for _, values in columns])
    return as_arrays(places_of(total), together.take(pa.array(index)), valid)


def in_order(places: I64, values: pa.Array, descending: Any = None) -> I64:
    """Return the order of the elements inside of each row, nulls first.

    ``descending`` says of each row whether the largest comes first, and nulls last.
    """
    row = owners(places)
    there, rank = valid_mask(values), ranks(values)
    if descending is not None:
        down = np.asarray(descending)[row]
        rank, there = np.where(down, ~rank, rank), there ^ down
    order: I64 = np.lexsort((rank, there, row))
    return order


def codes(*columns: pa.Array) -> list[I64]:
    """Return numbers that are equal where the values are, null being one of them."""
    together = pa.concat_arrays(columns)
    number = ranks(together)
    number[~valid_mask(together)] = -1
    _, number = np.unique(number, return_inverse=True)
    edges = np.cumsum([len(column) for column in columns])[:-1]
    return list(np.split(number.astype(np.int64), edges))


def first_of_each(row: I64, code: I64) -> Mask:
    """Return which elements are the first of their value in their row."""
    order = np.lexsort((code, row))
    new = np.ones(len(order), bool)
    new[1:] = (row[order][1:] != row[order][:-1]) | (code[order][1:] != code[order][:-1])
    found = np.zeros(len(order), bool)
    found[order] = new
    return found
