"""The oracle calls functions of the user's own by itself, on one row at a time.

So it says the same as the engine only if a function looks at each row alone.  An aggregate gets the
rows of one group at one instant, sorted, and begins anew for each result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.own import loaded, place_and_form, state_columns
from penstock.reference.values import compare

Row = Sequence[Any]


def call(name: str, kinds: Sequence[pa.DataType], values: Row, result: pa.DataType) -> Any:
    """Return a scalar function of one row."""
    place, form = place_and_form(name)
    if form != "arrow" and None in values:
        return None
    columns = [_column([v], k) for v, k in zip(values, kinds, strict=True)]
    made = loaded(place)
    if form == "arrow":
        found = made(*columns)
    else:
        plain = [c.to_numpy(zero_copy_only=False) for c in columns]
        found = made(*(pd.Series(p) for p in plain)) if form == "pandas" else made(*plain)
    return _one(found, result, place)


def aggregate(
    name: str, kinds: Sequence[pa.DataType], rows: Sequence[Row], result: pa.DataType
) -> Any:
    """Return an aggregate of rows without nulls; there is none of no rows."""
    if not rows:
        return None
    place, _ = place_and_form(name)
    kind = loaded(place)
    made = kind()
    ordered = sorted((tuple(map(_plain, row)) for row in rows), key=cmp_to_key(_compare_rows))
    states = {
        c.name: np.full(1, c.start, object if c.type == pa.string() else c.type.to_pandas_dtype())
        for c in state_columns(kind, place)
    }
    columns = [
        _column(list(values), k).to_numpy(zero_copy_only=False)
        for values, k in zip(zip(*ordered, strict=True), kinds, strict=True)
    ]
    made.add(states, np.zeros(len(ordered), np.int64), *columns)
    return _one(made.result(states), result, place)


def _plain(value: Any) -> Any:
    """There is one zero."""
    return value + 0.0 if isinstance(value, float) else value


def _compare_rows(a: Row, b: Row) -> int:
    return next((c for c in map(compare, a, b) if c), 0)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, kind)


def _one(found: Any, kind: pa.DataType, place: str) -> Any:
    """Return the one value that a function gave."""
    if len(found) != 1:
        raise DataError(f"the function {place} must give one value for one row, got {len(found)}")
    if isinstance(found, pd.Series) and found.isna()[0] and not _is_number(found):
        return None
    array = pa.array(found) if not isinstance(found, pa.Array | pa.ChunkedArray) else found
    value = array[0] if array.type == kind else array[0].cast(kind)
    if pa.types.is_temporal(kind):
        return value.value
    return value.as_py()


def _is_number(found: pd.Series) -> bool:
    return isinstance(found.dtype, np.dtype) and found.dtype.kind in "fiu"
