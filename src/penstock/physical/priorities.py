"""The priorities of a stream's rows as numbers, computed by its PRIORITY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.catalog import StreamDef
from penstock.cql.binding.priorities import HIGHEST
from penstock.cql.render import expr_text
from penstock.errors import DataError
from penstock.expr.arrow import evaluate
from penstock.model import I64, Mask, to_numpy

Priorities: TypeAlias = npt.NDArray[np.uint8]

_MOST_TRIES = 512
"""So often rows are halved to find those whose PRIORITY fails; after that a part counts whole."""


def priorities(definition: StreamDef, columns: Sequence[pa.Array], rows: int) -> Priorities:
    """Return the priority of each row, from 0 (normal) to 255; null counts as 0, true as 1.

    ``columns`` are those of the stream's declaration; one that PRIORITY does not read may be None.
    """
    numbers = _numbers(definition, columns, rows)
    outside = np.flatnonzero(_outside(numbers))
    if len(outside):
        raise DataError(_range(definition, int(numbers[outside[0]])))
    return numbers.astype(np.uint8)


def fit_priorities(
    definition: StreamDef, columns: Sequence[pa.Array], rows: int
) -> tuple[Priorities, int, str]:
    """Return the priorities, how many rows have none and count as normal, and why the last has not.

    Where PRIORITY fails on some of many rows, they are found by halving.
    """
    found = np.zeros(rows, np.uint8)
    unfit, why, tries = 0, "", _MOST_TRIES
    todo = [(0, rows)]
    while todo:
        first, last = todo.pop()
        part = [c if c is None else c.slice(first, last - first) for c in columns]
        tries -= 1
        try:
            numbers = _numbers(definition, part, last - first)
        except DataError as error:
            middle = (first + last) // 2
            if last - first == 1 or tries < 0:
                unfit, why = unfit + last - first, str(error)
            else:
                todo += [(middle, last), (first, middle)]
            continue
        outside = _outside(numbers)
        if outside.any():
            unfit += int(outside.sum())
            why = _range(definition, int(numbers[outside][-1]))
        found[first:last] = np.where(outside, 0, numbers)
    return found, unfit, why


def _numbers(definition: StreamDef, columns: Sequence[pa.Array], rows: int) -> I64:
    """Return what PRIORITY gives for each row, whatever it is."""
    if definition.priority is None:
        return np.zeros(rows, np.int64)
    try:
        values = evaluate(definition.priority, columns, rows)
    except DataError as error:
        raise DataError(
            f"PRIORITY {_text(definition)} of stream {definition.name} must have a value on every "
            f"row, but: {error}; correct the rows, or leave such rows out by CASE WHEN .. THEN .. "
            f"ELSE 0 END"
        ) from None
    numbers: I64 = to_numpy(pc.fill_null(values.cast(pa.int64()), 0))
    return numbers


def _outside(numbers: I64) -> Mask:
    mask: Mask = (numbers < 0) | (numbers > HIGHEST)
    return mask


def _range(definition: StreamDef, got: int) -> str:
    return (
        f"PRIORITY {_text(definition)} of stream {definition.name} must be from 0 (normal) to "
        f"{HIGHEST} on every row, got {got}; correct the rows, or keep it within by "
        f"LEAST(GREATEST(.., 0), {HIGHEST})"
    )


def _text(definition: StreamDef) -> str:
    assert definition.priority is not None
    return expr_text(definition.priority, definition.schema.names)
