"""How long texts may become: one value, and a column of them.

Arrow's columns of text hold less than 2 GiB.  Some of its functions fail beyond that, some go on
with a broken column, so whatever makes text longer asks here before it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.model import I64

LONGEST_TEXT = 1 << 26
"""Most bytes of a text that a function makes."""

_MOST = (1 << 31) - 2
"""Most bytes of a column of text."""


def bytes_of(text: Any, rows: int) -> I64:
    """Return the length in bytes of each text of a column, or of a scalar on ``rows`` rows."""
    if not isinstance(text, pa.Array):
        value = text.as_py() if isinstance(text, pa.Scalar) else text
        size = len(value) if isinstance(value, bytes) else len((value or "").encode())
        return np.full(rows, size, np.int64)
    sizes = pc.binary_length(text).fill_null(0)
    return np.asarray(sizes, np.int64)


def at_most(text: Any, rows: int) -> int:
    """Return about how many bytes the texts of a column or scalar have, and no less."""
    if isinstance(text, pa.Array):
        return int(text.nbytes)
    return int(bytes_of(text, 1)[0]) * rows


def check_sizes(sizes: I64, usage: str) -> None:
    """Refuse texts of some sizes, in bytes, before they are made."""
    longest, total = int(sizes.max(initial=0)), int(sizes.sum())
    if longest > LONGEST_TEXT:
        raise DataError(
            f"{usage} must give texts of at most {LONGEST_TEXT:,} bytes, got one of {longest:,}; "
            f"use CASE to leave such rows out"
        )
    check_total(total, usage)


def check_total(total: int, usage: str) -> None:
    """Refuse a column of so many bytes of text before it is made."""
    if total > _MOST:
        raise DataError(
            f"{usage} must give less than 2 GiB of text for the rows that are computed at once, "
            f"got {total:,} bytes; make batches smaller with --set batch.rows, or the texts shorter"
        )


def repeated(value: pa.Scalar, rows: int) -> pa.Array:
    """Return a column of equal values."""
    texts = pa.types.is_string(value.type) or pa.types.is_binary(value.type)
    if texts and value.is_valid:
        check_total(at_most(value, rows), "a constant text")
    return pa.repeat(value, rows)
