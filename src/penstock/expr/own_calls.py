"""Calls of the user's own scalar functions: arrays in, checked arrays out, and whose row failed.

Functions that take Arrow arrays see nulls.  Those that take pandas or NumPy get only the rows in
which no argument is null; the others have a null result, as with the functions of the table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.own import loaded, place_and_form
from penstock.expr.text_sizes import check_total
from penstock.expr.types import type_name
from penstock.model import one_array, to_mask, to_numpy

_LONGEST = 60


def call_own(name: str, kind: pa.DataType, args: Sequence[pa.Array]) -> pa.Array:
    """Return what a function gives for columns, which have at least one row, as ``kind``."""
    place, form = place_and_form(name)
    made = loaded(place)
    if form == "arrow":
        return _called(made, place, form, kind, args)
    missing = np.zeros(len(args[0]), bool)
    for arg in args:
        if arg.null_count:
            missing |= to_mask(arg.is_null())
    if not missing.any():
        return _called(made, place, form, kind, args)
    there = np.flatnonzero(~missing)
    if len(there) == 0:
        return pa.nulls(len(missing), kind)
    some = [arg.take(pa.array(there)) for arg in args]
    index = np.cumsum(~missing) - 1
    return _called(made, place, form, kind, some).take(pa.array(index, mask=missing))


def _called(
    made: Any, place: str, form: str, kind: pa.DataType, args: Sequence[pa.Array]
) -> pa.Array:
    try:
        found = made(*given(args, form))
    except Exception as error:  # whatever the user's function raises
        raise _failure(made, place, form, args, error) from error
    return checked(found, kind, len(args[0]), f"the function {place}")


def given(args: Sequence[pa.Array], form: str) -> list[Any]:
    """Return columns as a function takes them; without nulls unless they are Arrow's."""
    if form == "arrow":
        return list(args)
    plain = [as_numpy(arg) for arg in args]
    if form == "numpy":
        return plain
    import pandas  # which takes long, and few need it

    return [pandas.Series(array) for array in plain]


def as_numpy(column: pa.Array) -> Any:
    """Return a column without nulls as NumPy: texts as objects, times as datetime64."""
    if pa.types.is_boolean(column.type):
        return to_mask(column)
    if pa.types.is_string(column.type) or pa.types.is_temporal(column.type):
        return column.to_numpy(zero_copy_only=False)
    return to_numpy(column)


def checked(found: Any, kind: pa.DataType, rows: int, whose: str) -> pa.Array:
    """Return what Python gave as an Arrow array of a type and length, or say what is wrong."""
    try:
        array = _as_arrow(found)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"{whose} must give an array of {type_name(kind)}, got {type(found).__name__}: {error}"
        ) from None
    if array is None:
        raise DataError(
            f"{whose} must give an array (of Arrow, NumPy or pandas), got {type(found).__name__}"
        )
    if len(array) != rows:
        raise DataError(
            f"{whose} must give as many values as it gets, but it got {rows} rows and gave "
            f"{len(array)}"
        )
    array = _of_type(array, kind)
    if array.type != kind:
        raise DataError(
            f"{whose} must give {type_name(kind)}, as declared, got {type_name(array.type)}; "
            f"convert its result, or declare RETURNS {type_name(array.type)}"
        )
    if pa.types.is_string(kind):
        check_total(int(array.nbytes), whose)
    return array


def _as_arrow(found: Any) -> pa.Array | None:
    pandas = sys.modules.get("pandas")  # where nobody has imported it, there is no series
    if pandas is not None and isinstance(found, pandas.Series):
        if isinstance(found.dtype, np.dtype) and found.dtype.kind in "biuf":
            found = found.to_numpy()
        else:
            found = pa.Array.from_pandas(found)
    if isinstance(found, pa.ChunkedArray):
        return one_array(found)
    if isinstance(found, np.ndarray):
        return pa.array(np.ascontiguousarray(found)) if found.ndim == 1 else None
    return found if isinstance(found, pa.Array) else None


def _of_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bring an array that holds the same values in another form to a type."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    same = (
        pa.types.is_null(array.type)
        or (pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type))
        or (pa.types.is_date32(kind) and pa.types.is_date(array.type))
        or (pa.types.is_date32(kind) and pa.types.is_timestamp(array.type))
        or (pa.types.is_string(kind) and _is_text(array.type))
    )
    if same and array.type != kind:
        try:
            return pc.cast(array, kind)
        except pa.ArrowInvalid:
            return array
    return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _failure(
    made: Any, place: str, form: str, args: Sequence[pa.Array], error: Exception
) -> DataError:
    """Say which function failed, and on which row, found by halving."""
    first, last = 0, len(args[0])
    while last - first > 1:
        middle = (first + last) // 2
        for low, high in ((first, middle), (middle, last)):
            found = _error_of(made, form, [arg.slice(low, high - low) for arg in args])
            if found is not None:
                first, last, error = low, high, found
                break
        else:
            return DataError(
                f"the function {place} must give a value for each row by itself, but it fails for "
                f"{last - first} rows together, and for no half of them: {told(error)}"
            )
    row = shown_row([arg.slice(first, 1) for arg in args])
    return DataError(
        f"the function {place} must give a value for every row, but for ({row}) it raised "
        f"{told(error)}; let it give null there, or use CASE to leave such rows out"
    )


def _error_of(made: Any, form: str, args: Sequence[pa.Array]) -> Exception | None:
    try:
        made(*given(args, form))
    except Exception as error:
        return error
    return None


def told(error: Exception) -> str:
    """Return an error of the user's code on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown_row(columns: Sequence[pa.Array]) -> str:
    """Return the arguments of one row as an error shows them."""
    return ", ".join(_shown(column[0].as_py()) for column in columns)


def _shown(value: Any) -> str:
    text = "NULL" if value is None else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
