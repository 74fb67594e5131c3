"""Columns as NumPy arrays and back: what the functions of several files are made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.text_sizes import bytes_of, check_sizes, repeated
from penstock.expr.types import STRING


def spread(*values: Any) -> tuple[int, list[pa.Array]]:
    """Return the number of rows and all values as arrays, repeating scalars."""
    rows = next(len(v) for v in values if isinstance(v, pa.Array))
    return rows, [v if isinstance(v, pa.Array) else repeated(v, rows) for v in values]


def numpy_of(value: pa.Array) -> Any:
    """Return the values as NumPy, zero where they are null."""
    if value.null_count:
        value = pc.fill_null(value, pa.scalar(0, value.type))
    return value.to_numpy(zero_copy_only=False)


def null_mask(*values: pa.Array) -> Any:
    """Return where any of the values is null."""
    mask = np.zeros(len(values[0]), bool)
    for value in values:
        if value.null_count:
            mask |= pc.is_null(value).to_numpy(zero_copy_only=False)
    return mask


def numbers(result: Any, type_: pa.DataType, null: Any) -> pa.Array:
    """Return NumPy values as a column, null where the mask says so; NaN stays NaN."""
    return pa.array(result, type_, mask=null, from_pandas=False)


def made_null(column: Any, where: Any) -> Any:
    """Return the column with nulls in some rows."""
    return pc.if_else(where, pa.scalar(None, column.type), column)


def each_distinct(
    usage: str, change: Callable[..., Any], type_: pa.DataType, *values: Any
) -> pa.Array:
    """Apply a Python function once to each distinct row of values: for what Arrow cannot do.

    A row with a null gives null.  Constants are handed on as they are.  ``usage`` names the
    function where its texts become too long.
    """
    rows = next(len(v) for v in values if isinstance(v, pa.Array))
    columns = [v for v in values if isinstance(v, pa.Array)]
    plain = [v.as_py() if isinstance(v, pa.Scalar) else v for v in values]
    if any(v is None for v in plain):
        return pa.nulls(rows, type_)
    if len(values) == 1:
        return _each_word(usage, change, type_, columns[0])
    valid = np.flatnonzero(~null_mask(*columns))
    codes = np.zeros(len(valid), np.int64)
    for column in columns:
        found = column.dictionary_encode().indices
        codes = codes * rows + numpy_of(found)[valid].astype(np.int64)
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    lists = [
        column.take(pa.array(valid[first])).to_pylist() if isinstance(column, pa.Array) else None
        for column in plain
    ]
    changed = [
        change(*(v if given is None else given[i] for v, given in zip(plain, lists, strict=True)))
        for i in range(len(first))
    ]
    found = pa.array(changed, type_)
    if type_ == STRING:
        check_sizes(bytes_of(found, 0)[codes], usage)
    place = np.zeros(rows, np.int64)
    place[valid] = codes
    missing = np.ones(rows, bool)
    missing[valid] = False
    return found.take(pa.array(place, mask=missing))


def _each_word(usage: str, change: Callable[[Any], Any], type_: pa.DataType, column: Any) -> Any:
    """Apply a Python function once to each distinct value of one column."""
    encoded = column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    found = pa.array([None if word is None else change(word) for word in words], type_)
    return put_back(usage, found, encoded.indices)


def put_back(usage: str, found: pa.Array, indices: pa.Array) -> pa.Array:
    """Return what was found for distinct values at the rows that have them."""
    if found.type == STRING and len(found):
        sizes = bytes_of(found, 0)
        check_sizes(sizes[numpy_of(indices)], usage)
    return found.take(indices)


_SAMPLE = 1024


def on_distinct(usage: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Lift a kernel of a text and constants: of texts that repeat, each is worked on once.

    Whether they do is guessed from the first rows; the answer is the same either way.
    """

    def apply(text: Any, *constants: Any) -> Any:
        few = text.slice(0, _SAMPLE)
        if len(text) <= _SAMPLE or 2 * len(few.unique()) > len(few):
            return kernel(text, *constants)
        encoded = text.dictionary_encode()
        return put_back(usage, kernel(encoded.dictionary, *constants), encoded.indices)

    return apply
