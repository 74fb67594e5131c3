"""The columns of a stream or table that says none: those of its files, as Arrow finds them.

The first file with rows tells, in the order of names.  Of csv and JSON its first rows do: whole
numbers are BIGINT, others DOUBLE, texts that are all dates or times DATE or TIMESTAMP, objects
STRUCT and arrays ARRAY; a column in which those rows have nothing is STRING.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from penstock.catalog import StreamDef, TableDef
from penstock.errors import QueryError
from penstock.expr.types import is_type, parse_type, type_name
from penstock.model import Field, Schema
from penstock.nested.shapes import is_nested, plain_type, with_inner
from penstock.sources.readers.base import EXTENSIONS, FORMATS, local_path

_LOOKED_AT = 1 << 22
"""Most bytes of a file of lines that are looked at."""


def known_schema(known: StreamDef | TableDef | None, format: str) -> Schema | None:
    """Return the columns that were found before; None if they were of files of another format."""
    return known.schema if known is not None and known.format == format else None


def found_schema(kind: str, name: str, format: str, options: Mapping[str, str]) -> Schema:
    """Return the columns of the files of a stream or table, or say why they cannot be found."""
    given = {key.lower(): str(value) for key, value in options.items()}
    owner = f"the {kind} {name}"
    path = local_path(given["path"]) if "path" in given else None
    if path is None or format not in (*FORMATS, "replay"):
        raise QueryError(
            f"CREATE {kind.upper()} {name} must be followed by its columns in parentheses, such as "
            f"(id INT, t TIMESTAMP); they can be left out only where files in a local path have "
            f"them, USING parquet, csv, json or replay"
        )
    for file in _files(path):
        reader = _reader(format, given, file)
        if reader is None:
            continue
        try:
            found = reader(file, given)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise QueryError(
                f"the columns of {owner} must be told by its first file, but '{file}' cannot be "
                f"read: {str(error).splitlines()[0]}; list the columns in parentheses"
            ) from None
        if found is not None and len(found):
            return _typed(owner, file, found)
    raise QueryError(
        f"the columns of {owner} must be told by a file with rows, but '{given['path']}' has none "
        f"yet; list the columns in parentheses, such as (id INT, t TIMESTAMP)"
    )


def _files(path: str) -> list[Path]:
    root = Path(path)
    if not root.is_dir():
        return [root] if root.is_file() else []
    return sorted(p for p in root.rglob("*") if p.is_file() and p.name[0] not in "._")


_Reader = Callable[[Path, Mapping[str, str]], pa.Schema | None]


def _reader(format: str, options: Mapping[str, str], file: Path) -> _Reader | None:
    told = options.get("format", "").lower() if format == "replay" else format
    kind = FORMATS.get(told) or EXTENSIONS.get(file.suffix.lower())
    return _READERS.get(kind or "")


def _parquet(file: Path, options: Mapping[str, str]) -> pa.Schema | None:
    return pyarrow.parquet.read_schema(file)


def _head(file: Path) -> bytes:
    """Return the whole lines at the start of a file."""
    with open(file, "rb") as lines:
        data = lines.read(_LOOKED_AT)
        return data if len(data) < _LOOKED_AT else data[: data.rfind(b"\n") + 1]


def _csv(file: Path, options: Mapping[str, str]) -> pa.Schema | None:
    data = _head(file)
    if not data.strip() or b"\n" not in data.strip():
        return None
    delimiter = options.get("delimiter") or options.get("sep") or ","
    return pyarrow.csv.read_csv(
        io.BytesIO(data),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
        convert_options=pyarrow.csv.ConvertOptions(null_values=["", options.get("null", "")]),
    ).schema


def _json(file: Path, options: Mapping[str, str]) -> pa.Schema | None:
    data = _head(file)
    if not data.strip():
        return None
    reading = pyarrow.json.ReadOptions(block_size=len(data) + 1)
    found = pyarrow.json.read_json(io.BytesIO(data), read_options=reading)
    return found.schema


_READERS: Mapping[str, _Reader] = {"parquet": _parquet, "csv": _csv, "json": _json}


def _typed(owner: str, file: Path, found: pa.Schema) -> Schema:
    fields: list[Field] = []
    for field in found:
        type = _plain(field.type)
        if not is_type(type):
            raise QueryError(
                f"the columns of {owner} must have types that Penstock has, but '{field.name}' of "
                f"'{file}' is {field.type}; list the columns that you need in parentheses"
            )
        try:
            parse_type(type_name(type))
        except QueryError as error:
            raise QueryError(
                f"the columns of {owner} must have types that Penstock has, but of '{field.name}' "
                f"of '{file}': {error.message}; list the columns in parentheses, such a one as "
                f"STRING, or correct the file"
            ) from None
        if field.name.lower() in {known.name.lower() for known in fields}:
            raise QueryError(
                f"the columns of {owner} must have names of their own, but '{file}' has "
                f"'{field.name}' twice; list the columns in parentheses"
            )
        fields.append(Field(field.name, type))
    return Schema(tuple(fields))


def _plain(type: pa.DataType) -> pa.DataType:
    """Return the type of Penstock, STRING where nothing is known or Arrow has a time of day."""
    type = plain_type(type)
    if is_nested(type):
        return with_inner(type, _plain)
    return pa.string() if pa.types.is_null(type) or pa.types.is_time(type) else type
