"""How rows are written into the files of a sink folder, and read back: JSON lines, CSV, Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from penstock.decimals import is_decimal
from penstock.expr.decimal_casts import decimal_text
from penstock.model import TIMESTAMP, one_array
from penstock.nested.shapes import changed, holds, is_nested, with_inner
from penstock.sinks.text import json_lines, json_rows, json_text
from penstock.sources.readers.conversion import as_base64, convert

Types = Mapping[str, pa.DataType]
"""The types of a query's columns by name."""


@dataclass(frozen=True)
class Encoding:
    """How a table becomes the bytes of a file, and a file becomes rows again."""

    encode: Callable[[pa.Table], bytes]
    read: Callable[[Path, Types], Iterator[dict[str, Any]]]


def _csv(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.csv.write_csv(_plain(_short_times(_as_json(table))), out)
    return out.getvalue()


def _plain(table: pa.Table) -> pa.Table:
    """Return a table whose bytes are text in base 64, and whose DECIMALs are written plainly.

    Arrow writes small numbers with an exponent, which there are only from a scale of 7 on.
    """
    for at, field in enumerate(table.schema):
        column = one_array(table.column(at))
        if pa.types.is_binary(field.type):
            table = table.set_column(at, field.name, as_base64(column))
        elif is_decimal(field.type) and field.type.scale > _PLAIN_SCALE:
            table = table.set_column(at, field.name, decimal_text(column))
    return table


_PLAIN_SCALE = 6


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(_in_utc(table), out)
    return out.getvalue()


def _in_utc(table: pa.Table) -> pa.Table:
    """Return a table whose timestamps say that they are UTC: readers take others for local time."""
    for at, field in enumerate(table.schema):
        if holds(field.type, pa.types.is_timestamp):
            table = table.set_column(at, field.name, in_utc(one_array(table.column(at))))
    return table


def in_utc(column: pa.Array) -> pa.Array:
    """Return a column whose timestamps say that they are UTC."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    if not holds(column.type, pa.types.is_timestamp):
        return column
    return changed(column, _utc_type(column.type), lambda inner, _: in_utc(inner))


def _utc_type(type: pa.DataType) -> pa.DataType:
    if is_nested(type):
        return with_inner(type, _utc_type)
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type) else type


def _as_json(table: pa.Table) -> pa.Table:
    """Return a table whose nested columns are JSON text."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_text(one_array(table.column(at))))
    return table


def _short_times(table: pa.Table) -> pa.Table:
    """Return a table whose timestamp columns of whole seconds are printed without fractions."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(at)
            whole = pc.all(pc.equal(pc.floor_temporal(column, unit="second"), column)).as_py()
            if whole is not False:
                table = table.set_column(at, field.name, column.cast(pa.timestamp("s")))
    return table


def _read_jsonl(path: Path, types: Types) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def _read_parquet(path: Path, types: Types) -> Iterator[dict[str, Any]]:
    return json_rows(pyarrow.parquet.ParquetFile(path).read())


def _read_csv(path: Path, types: Types) -> Iterator[dict[str, Any]]:
    names = pyarrow.csv.open_csv(path).schema.names
    table = pyarrow.csv.read_csv(
        path,
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
    )
    columns = [_typed(one_array(table.column(name)), types.get(name)) for name in names]
    return json_rows(pa.table(columns, names=names))


def _typed(text: pa.Array, type: pa.DataType | None) -> pa.Array:
    """Return a column of a CSV file as its type; times are integers or timestamps, as they look."""
    for candidate in (pa.int64(), TIMESTAMP) if type is None else (type,):
        array, bad = convert(text, candidate)
        if not bad.any():
            return array
    return text


ENCODINGS: Mapping[str, Encoding] = {
    "jsonl": Encoding(json_lines, _read_jsonl),
    "csv": Encoding(_csv, _read_csv),
    "parquet": Encoding(_parquet, _read_parquet),
}
"""By the name of the format, which is also the end of the names of its files."""
