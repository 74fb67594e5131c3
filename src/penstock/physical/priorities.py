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
from penstock.model import to_numpy

Priorities: TypeAlias = npt.NDArray[np.uint8]


def priorities(definition: StreamDef, columns: Sequence[pa.Array], rows: int) -> Priorities:
    """Return the priority of each row, from 0 (normal) to 255; null counts as 0, true as 1.

    ``columns`` are those of the stream's declaration; one that PRIORITY does not read may be None.
    """
    if definition.priority is None:
        return np.zeros(rows, np.uint8)
    text = expr_text(definition.priority, definition.schema.names)
    try:
        values = evaluate(definition.priority, columns, rows)
    except DataError as error:
        raise DataError(
            f"PRIORITY {text} of stream {definition.name} must have a value on every row, but: "
            f"{error}; correct the rows, or leave such rows out by CASE WHEN .. THEN .. ELSE 0 END"
        ) from None
    numbers = to_numpy(pc.fill_null(values.cast(pa.int64()), 0))
    outside = np.flatnonzero((numbers < 0) | (numbers > HIGHEST))
    if len(outside):
        raise DataError(
            f"PRIORITY {text} of stream {definition.name} must be from 0 (normal) to {HIGHEST} on "
            f"every row, got {numbers[outside[0]]}; correct the rows, or keep it within by "
            f"LEAST(GREATEST(.., 0), {HIGHEST})"
        )
    found: Priorities = numbers.astype(np.uint8)
    return found
