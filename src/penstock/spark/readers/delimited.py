"""Lines of delimited values: CSV with a header, and the text format with a schema line [E 5.3.2].

The text format's first line names types instead of columns (``int, charn 15, timestamp``), so its
columns are matched by place; values may have spaces around them and single quotes.

A block is first given to Arrow whole: with timestamps that have no zone, then with timestamps that
all have one.  Only when both fail are its columns read as bytes and converted one by one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.expr.types import type_name
from penstock.model import I64, TIMESTAMP, Mask, Schema, one_array
from penstock.spark.readers.base import (
    Slice,
    make_slice,
    match_columns,
    no_rejected,
    option,
    rejected_rows,
)
from penstock.spark.readers.conversion import FALSE, TRUE, convert, naive_utc
from penstock.spark.readers.lines import Block, blocks, first_line, holds_text

_TEXT_TYPES: Mapping[str, tuple[pa.DataType, ...]] = {
    "int": (pa.int32(), pa.int64()),
    "timestamp": (pa.int32(), pa.int64()),
    "double": (pa.float64(), pa.float32()),
    "char": (pa.string(),),
    "charn": (pa.string(),),
}
"""What each type of a schema line may be declared as."""


@dataclass(frozen=True)
class Dialect:
    """How the lines of one file are read: ``places`` maps declared columns to the file's."""

    schema: Schema
    places: Mapping[int, int]
    width: int
    delimiter: str
    quote: str
    trim: bool
    null_values: tuple[str, ...]


def read_delimited(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a CSV file."""
    dialect, start = csv_dialect(definition, source, path, wanted)
    yield from _read(definition, source, max(first, start), last, dialect, shift)


def read_text(
    definition: StreamDef,
    source: Any,
    path: str,
    first: int,
    last: int,
    wanted: Sequence[int],
    shift: int,
) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a file in the text format."""
    dialect, start = text_dialect(definition, source, path, wanted)
    yield from _read(definition, source, max(first, start), last, dialect, shift)


def csv_dialect(
    definition: StreamDef, source: Any, path: str, wanted: Sequence[int]
) -> tuple[Dialect, int]:
    """Read a CSV file's header; return how its lines are read, and where they start."""
    header, start = first_line(source)
    delimiter = delimiter_of(definition)
    found = [n.strip() for n in next(csv.reader([header], delimiter=delimiter))] if header else []
    if not found:
        return Dialect(definition.schema, {}, 0, delimiter, '"', False, ("",)), start
    places = match_columns(definition, wanted, found, path)
    nulls = _null_values(definition)
    return Dialect(definition.schema, places, len(found), delimiter, '"', False, nulls), start


def text_dialect(
    definition: StreamDef, source: Any, path: str, wanted: Sequence[int]
) -> tuple[Dialect, int]:
    """Check a text file's schema line; return how its lines are read, and where they start."""
    line, start = first_line(source)
    delimiter = delimiter_of(definition)
    schema = definition.schema
    if line.strip():
        given = [part.strip() for part in line.split(delimiter)]
        if len(given) != len(schema):
            raise DataError(
                f"the schema line of '{path}' must name the {len(schema)} columns of stream "
                f"{definition.name}, got {len(given)}: {line.strip()}; declare the same columns"
            )
        for field, text in zip(schema, given, strict=True):
            name = (text.lower().split() or [""])[0]
            if name not in _TEXT_TYPES:
                raise DataError(
                    f"the schema line of '{path}' must name types among "
                    f"{', '.join(_TEXT_TYPES)}, got '{text}'; the line is: {line.strip()}"
                )
            if field.type not in _TEXT_TYPES[name]:
                allowed = " or ".join(type_name(t) for t in _TEXT_TYPES[name])
                raise DataError(
                    f"the column '{field.name}' of stream {definition.name} must be declared "
                    f"{allowed}, because '{path}' says '{text}', got {type_name(field.type)}"
                )
    places = {at: at for at in wanted}
    nulls = _null_values(definition)
    return Dialect(schema, places, len(schema), delimiter, "'", True, nulls), start


def delimiter_of(definition: StreamDef) -> str:
    """Return the one character that separates values."""
    given = option(definition, "delimiter", ",") or ","
    given = "\t" if given == r"\t" else given
    if len(given.encode()) != 1:
        raise DataError(
            f"the option delimiter of stream {definition.name} must be one ASCII character, "
            f"got '{given}'"
        )
    return given


def _null_values(definition: StreamDef) -> tuple[str, ...]:
    given = option(definition, "null")
    return ("",) if given is None else ("", given)


def _read(
    definition: StreamDef, source: Any, first: int, last: int, dialect: Dialect, shift: int
) -> Iterator[Slice]:
    zoned = False
    for block in blocks(source, first, last):
        parsed, zoned = _fast(block, dialect, zoned)
        if parsed is None:
            yield _slow(definition, block, dialect, shift)
            continue
        places = np.arange(block.count) if parsed.rows == block.count else _filled(block)
        if parsed.rows != len(places):
            yield _slow(definition, block, dialect, shift)
            continue
        yield make_slice(
            definition,
            parsed.arrays,
            block.positions(places),
            no_rejected(),
            lambda at, block=block, places=places: block.text(places[at]),  # type: ignore[misc]
            shift,
        )


def _filled(block: Block) -> I64:
    return np.flatnonzero(~block.blank)


@dataclass(frozen=True)
class _Parsed:
    arrays: Mapping[int, pa.Array]
    rows: int


def _fast(block: Block, dialect: Dialect, zoned: bool) -> tuple[_Parsed | None, bool]:
    """Let Arrow read a whole block; return it (None: it failed), and whether it has zones."""
    has_timestamps = any(dialect.schema[at].type == TIMESTAMP for at in dialect.places)
    for with_zone in (zoned, not zoned) if has_timestamps else (zoned,):
        types = {
            at: pa.timestamp("us", "UTC")
            if with_zone and dialect.schema[at].type == TIMESTAMP
            else dialect.schema[at].type
            for at in dialect.places
        }
        try:
            table = _parse(block.data, dialect, types, None)
        except pa.ArrowInvalid:
            continue
        arrays = {}
        for at in dialect.places:
            array = one_array(table.column(str(at)))
            if pa.types.is_timestamp(array.type):
                array = naive_utc(array)
            elif dialect.trim and pa.types.is_string(array.type):
                array = _trimmed(array)
            arrays[at] = array
        return _Parsed(arrays, table.num_rows), with_zone
    return None, zoned


def _parse(
    data: pa.Buffer,
    dialect: Dialect,
    types: Mapping[int, pa.DataType],
    on_invalid: Any,
) -> pa.Table:
    """Parse lines; the result's columns are named by the declared columns' positions."""
    names = [f"?{place}" for place in range(dialect.width)]
    for at, place in dialect.places.items():
        names[place] = str(at)
    if dialect.trim:
        data = _quotes_after_delimiters(data, dialect)
    if not holds_text(data):
        return pa.table({str(at): pa.array([], t) for at, t in types.items()})
    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        pyarrow.csv.ReadOptions(column_names=names, use_threads=on_invalid is None),
        pyarrow.csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote,
            invalid_row_handler=on_invalid,
        ),
        pyarrow.csv.ConvertOptions(
            column_types={str(at): type for at, type in types.items()},
            include_columns=[str(at) for at in types],
            null_values=list(dialect.null_values),
            true_values=list(TRUE),
            false_values=list(FALSE),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _quotes_after_delimiters(data: pa.Buffer, dialect: Dialect) -> pa.Buffer:
    """Remove the spaces between a delimiter and an opening quote, so that Arrow sees the quote."""
    raw: bytes = data.to_pybytes()
    if b"'" not in raw:
        return data
    before = dialect.delimiter.encode()
    if before + b"  " in raw or before + b"\t" in raw:
        raw = re.sub(re.escape(before) + rb"[ \t]+'", lambda _: before + b"'", raw)
    else:
        raw = raw.replace(before + b" '", before + b"'")
    return pa.py_buffer(raw.replace(b"\n '", b"\n'"))


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(array)


def _slow(definition: StreamDef, block: Block, dialect: Dialect, shift: int) -> Slice:
    """Read a block as bytes and convert it column by column; rows that do not fit are rejected."""
    table, places, broken = _as_bytes(block, dialect)
    bad: Mask = np.zeros(len(places), bool)
    reasons = pa.nulls(len(places), pa.string())
    arrays = {}
    for at in dialect.places:
        field = dialect.schema[at]
        text = one_array(table.column(str(at)))
        array, wrong = convert(text, field.type)
        if dialect.trim and pa.types.is_string(field.type):
            array = _trimmed(array)
        arrays[at] = array
        if wrong.any():
            reason = f"the column '{field.name}' must be {type_name(field.type)}"
            reasons = pc.if_else(pa.array(wrong & ~bad), pa.scalar(reason), reasons)
            bad |= wrong
    rejected = no_rejected()
    if broken:
        lost = np.array([place for place, _ in broken], np.int64)
        told = pa.array([reason for _, reason in broken], pa.string())
        rejected = rejected_rows(block.positions(lost), told, block.text(lost))
    if bad.any():
        lost = places[bad]
        more = rejected_rows(block.positions(lost), reasons.filter(pa.array(bad)), block.text(lost))
        rejected = pa.concat_tables([rejected, more])
        kept = pa.array(~bad)
        arrays = {at: array.filter(kept) for at, array in arrays.items()}
        places = places[~bad]
    return make_slice(
        definition,
        arrays,
        block.positions(places),
        rejected,
        lambda at: block.text(places[at]),
        shift,
    )


def _as_bytes(block: Block, dialect: Dialect) -> tuple[pa.Table, I64, list[tuple[int, str]]]:
    """Read a block's columns as bytes; return them, the rows' places, and the broken lines.

    Lines with too few or too many values are left out by Arrow and told by their number among the
    lines that are not blank.
    """
    types = {at: pa.binary() for at in dialect.places}
    filled = _filled(block)
    broken: list[tuple[int, str]] = []

    def note(row: Any) -> str:
        reason = f"a line must have {row.expected_columns} values, got {row.actual_columns}"
        broken.append((row.number - 1, reason))
        return "skip"

    data = block.data
    if len(filled) != block.count:
        lines = [block.part(at, at + 1).data.to_pybytes() for at in filled.tolist()]
        data = pa.py_buffer(b"".join(lines))
    try:
        table = _parse(data, dialect, types, note)
        if table.num_rows + len(broken) != len(filled):
            raise pa.ArrowInvalid("a quoted value must end on its line")
    except pa.ArrowInvalid as error:
        return _halved(block, dialect, types, filled, str(error))
    lost = np.array([at for at, _ in broken], np.int64)
    kept = np.delete(filled, lost) if broken else filled
    return table, kept, [(int(filled[at]), reason) for at, reason in broken]


def _halved(
    block: Block,
    dialect: Dialect,
    types: Mapping[int, pa.DataType],
    filled: I64,
    problem: str,
) -> tuple[pa.Table, I64, list[tuple[int, str]]]:
    """Read the two halves of a block that cannot be split into values as a whole."""
    if block.count <= 1:
        empty = pa.table({str(at): pa.array([], t) for at, t in types.items()})
        return empty, filled[:0], [(int(at), problem) for at in filled]
    middle = block.count // 2
    left, left_places, left_broken = _as_bytes(block.part(0, middle), dialect)
    right, right_places, right_broken = _as_bytes(block.part(middle, block.count), dialect)
    return (
        pa.concat_tables([left, right]),
        np.concatenate([left_places, right_places + middle]),
        left_broken + [(at + middle, reason) for at, reason in right_broken],
    )
