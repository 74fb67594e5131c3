"""Rows that a program pushes into a memory stream, as a table of the declared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.catalog import StreamDef
from penstock.decimals import is_decimal
from penstock.errors import DataError, suggest
from penstock.expr.types import type_name
from penstock.model import INF, Schema, one_array
from penstock.nested.shapes import is_nested
from penstock.sources.pushed_values import nested_value
from penstock.sources.readers.conversion import convert, plain


def as_table(rows: Any, schema: Schema) -> pa.Table:
    """Return pushed rows as a table of the declared columns, or say what does not fit."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return _from_table(rows, schema)
    if hasattr(rows, "to_records") and hasattr(rows, "columns"):
        return _from_table(pa.Table.from_pandas(rows, preserve_index=False), schema)
    if isinstance(rows, dict | str | bytes) or not hasattr(rows, "__iter__"):
        raise DataError(
            f"pushed rows must be a list of dicts or tuples, an Arrow table or a pandas "
            f"DataFrame, got {type(rows).__name__}"
        )
    listed = list(rows)
    columns = _columns_of(listed, schema)
    arrays = [
        _typed(values, field.name, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=_arrow_schema(schema))


def _arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _columns_of(rows: Sequence[Any], schema: Schema) -> list[list[Any]]:
    names = [name.lower() for name in schema.names]
    known = set(names)
    tuples: list[Sequence[Any]] = []
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            lowered = {str(k).lower(): v for k, v in row.items()}
            for name in lowered:
                if name not in known:
                    raise DataError(
                        f"row {number} must have only declared columns, got '{name}'; "
                        f"{suggest(name, schema.names)}"
                    )
            tuples.append([lowered.get(name) for name in names])
        elif isinstance(row, Sequence) and not isinstance(row, str | bytes):
            if len(row) != len(names):
                raise DataError(
                    f"row {number} must have {len(names)} values ({', '.join(schema.names)}), "
                    f"got {len(row)}"
                )
            tuples.append(row)
        else:
            raise DataError(
                f"row {number} must be a dict or a tuple, got {type(row).__name__}: {row!r}"
            )
    return [[row[at] for row in tuples] for at in range(len(names))]


def _typed(values: list[Any], name: str, type: pa.DataType) -> pa.Array:
    try:
        if _has_calendar(type) and any(isinstance(value, str) for value in values):
            return _from_texts(values, name, type)
        if is_decimal(type):
            return _decimals(values, type)
        if pa.types.is_timestamp(type):
            inferred = pa.array(values)
            fitted = plain(inferred, type)
            if fitted is not None and not fitted[1].any():
                return fitted[0]
        return _array(values, type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        for number, value in enumerate(values):
            try:
                _array([value], type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
                raise DataError(
                    f"the column '{name}' of row {number} must be {type_name(type)}, got {value!r}"
                    f"{_advice(value, type)}"
                ) from None
        raise


def _decimals(values: list[Any], type: pa.DataType) -> pa.Array:
    """Return Decimals, integers and texts of numbers as a DECIMAL; a float is none of them."""
    known = Decimal | int | str
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, known)):
            raise TypeError(f"{value!r} is no exact number")
    texts = pa.array([None if v is None else str(v) for v in values], pa.string())
    found, bad = convert(texts, type)
    if bad.any():
        raise ValueError(f"{values[int(bad.argmax())]!r} does not fit")
    return found


def _array(values: list[Any], type: pa.DataType) -> pa.Array:
    """Return an array of values, none of which loses a fraction."""
    if is_nested(type):
        try:
            return pa.array([nested_value(value, type) for value in values], type)
        except DataError as error:
            raise ValueError(str(error)) from None
    if is_decimal(type):
        return _decimals(values, type)
    if pa.types.is_binary(type) and any(isinstance(value, str) for value in values):
        raise TypeError("text is not bytes")
    if pa.types.is_integer(type) and any(
        isinstance(value, float) and not value.is_integer() for value in values
    ):
        raise ValueError("fractions are no integers")
    return pa.array(values, type)


def _advice(value: Any, type: pa.DataType) -> str:
    """Say what to push instead, where that is not plain."""
    if is_decimal(type) and isinstance(value, float):
        return "; push a Decimal, an integer or text, which are exact"
    return "; push bytes" if pa.types.is_binary(type) and isinstance(value, str) else ""


def _has_calendar(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_date(type))


def _from_texts(values: list[Any], name: str, type: pa.DataType) -> pa.Array:
    """Return times of which some are texts: as in files, UTC unless they say a zone."""
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    others = _typed([None if isinstance(v, str) else v for v in values], name, type)
    found, bad = convert(texts, type)
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"the column '{name}' of row {row} must be {type_name(type)}, got {values[row]!r}; "
            f"write {_EXAMPLES[pa.types.is_date(type)]}"
        )
    return pc.coalesce(found, others)


_EXAMPLES = {False: "'2024-03-01 12:00:05' or '2024-03-01T12:00:05+02:00'", True: "'2024-03-01'"}


def _from_table(table: pa.Table, schema: Schema) -> pa.Table:
    places = {name.lower(): at for at, name in enumerate(table.column_names)}
    extra = set(places) - {name.lower() for name in schema.names}
    if extra:
        name = sorted(extra)[0]
        raise DataError(
            f"pushed rows must have only declared columns, got '{name}'; "
            f"{suggest(name, schema.names)}"
        )
    arrays = []
    for field in schema:
        if field.name.lower() not in places:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column = one_array(table.column(places[field.name.lower()]))
        fitted = plain(column, field.type)
        if fitted is None and _has_calendar(field.type) and pa.types.is_string(column.type):
            fitted = convert(column, field.type)
        if fitted is None:
            raise DataError(
                f"the column '{field.name}' of pushed rows must be {type_name(field.type)}, "
                f"got {column.type}; cast it first"
            )
        array, bad = fitted
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"the column '{field.name}' of row {row} must be {type_name(field.type)}, "
                f"got {_shown(column[row])}"
            )
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=_arrow_schema(schema))


def _shown(value: pa.Scalar) -> str:
    """Return a value as a message shows it; text that is not UTF-8 as its bytes."""
    try:
        return repr(value.as_py())
    except UnicodeDecodeError:
        return repr(bytes(value.as_buffer()))


def check_times(table: pa.Table, definition: StreamDef) -> None:
    """Check that every row has a time."""
    column = one_array(table.column(definition.time)).cast(pa.int64())
    if column.null_count:
        number = pc.index(column.is_null(), value=True).as_py()
        name = definition.schema[definition.time].name
        raise DataError(f"row {number} must have a time, but the time column '{name}' is null")
    if pc.index(column, value=INF).as_py() >= 0:
        raise DataError(f"the time of a row must be below 2**63 - 1, got {INF}")
