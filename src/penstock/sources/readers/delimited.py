"""Lines of delimited values: CSV with a header, and the text format with a schema line [E 5.3.2].

The text format's first line names types instead of columns (``int, charn 15, timestamp``), so its
columns are matched by place; values may have spaces around them and single quotes.

A block is first given to Arrow whole: with timestamps that have no zone, then with timestamps that
all have one.  When both fail, its bad lines are taken out (see `penstock.sources.readers.quoting`)
and the others are tried again; when that fails, too, their columns are read as bytes and converted
one by one.  All ways accept the same lines with the same values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.catalog import StreamDef
from penstock.errors import DataError, InternalError
from penstock.expr.types import type_name
from penstock.model import I64, TIMESTAMP, Mask, one_array
from penstock.sources.readers.base import Asked, Slice, match_columns, option, shortened
from penstock.sources.readers.conversion import FALSE, TRUE, convert, naive_utc
from penstock.sources.readers.lines import (
    Block,
    Rows,
    blocks,
    first_line,
    is_clean,
    pieces,
    unreadable,
)
from penstock.sources.readers.quoting import Dialect, for_arrow, malformed, well_formed

_TEXT_TYPES: Mapping[str, tuple[pa.DataType, ...]] = {
    "int": (pa.int32(), pa.int64()),
    "timestamp": (pa.int32(), pa.int64()),
    "double": (pa.float64(), pa.float32()),
    "char": (pa.string(),),
    "charn": (pa.string(),),
}
"""What each type of a schema line may be declared as."""


_PIECE = 1 << 20
"""Bytes that Arrow parses at once; no line may be longer."""

_FEW = 8
"""Lines that are parsed at once, however long they are."""


def read_delimited(asked: Asked) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a CSV file."""
    return _read(asked, *csv_dialect(asked))


def read_text(asked: Asked) -> Iterator[Slice]:
    """Read the lines in bytes ``[first, last)`` of a file in the text format."""
    return _read(asked, *text_dialect(asked))


def csv_dialect(asked: Asked) -> tuple[Dialect, int]:
    """Read a CSV file's header; return how its lines are read, and where they start."""
    definition, path = asked.definition, asked.path
    header, start = first_line(asked)
    delimiter = delimiter_of(definition)
    try:
        found = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    except csv.Error as error:
        raise DataError(
            f"the first line of '{path}' of stream {definition.name} must name its columns, but "
            f"it cannot be read: {error}"
        ) from None
    if not header.strip():
        if start < asked.source.size():
            raise DataError(
                f"the first line of '{path}' of stream {definition.name} must name its columns, "
                f"got a blank line; write a header"
            )
        return Dialect(definition.schema, {}, 0, delimiter, '"', False, ("",)), start
    places = match_columns(asked, found)
    nulls = _null_values(definition)
    return Dialect(definition.schema, places, len(found), delimiter, '"', False, nulls), start


def text_dialect(asked: Asked) -> tuple[Dialect, int]:
    """Check a text file's schema line; return how its lines are read, and where they start."""
    definition, path = asked.definition, asked.path
    line, start = first_line(asked)
    delimiter = delimiter_of(definition)
    schema = definition.schema
    if line.strip():
        given = [part.strip() for part in line.split(delimiter)]
        shown = shortened(line.strip())
        if len(given) != len(schema):
            raise DataError(
                f"the schema line of '{path}' must name the {len(schema)} columns of stream "
                f"{definition.name}, got {len(given)}: {shown}; declare the same columns"
            )
        for field, text in zip(schema, given, strict=True):
            name = (text.lower().split() or [""])[0]
            if name not in _TEXT_TYPES:
                raise DataError(
                    f"the schema line of '{path}' must name types among "
                    f"{', '.join(_TEXT_TYPES)}, got '{shortened(text)}'; the line is: {shown}"
                )
            if field.type not in _TEXT_TYPES[name]:
                allowed = " or ".join(type_name(t) for t in _TEXT_TYPES[name])
                raise DataError(
                    f"the column '{field.name}' of stream {definition.name} must be declared "
                    f"{allowed}, because '{path}' says '{text}', got {type_name(field.type)}"
                )
    places = {at: at for at in asked.wanted}
    nulls = _null_values(definition)
    return Dialect(schema, places, len(schema), delimiter, "'", True, nulls), start


def delimiter_of(definition: StreamDef) -> str:
    """Return the one character that separates values."""
    given = option(definition, "delimiter") or option(definition, "sep") or ","
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


def _read(asked: Asked, dialect: Dialect, start: int) -> Iterator[Slice]:
    if not dialect.places:
        return
    zoned = False
    for block in blocks(asked.source, max(asked.first, start), asked.last):
        found = None
        tried = is_clean(block) and well_formed(block, dialect)
        if tried:
            arrays, zoned = _fast(block, dialect, zoned)
            # A blank line may be a row of nulls to Arrow, but then its time is null.
            if arrays is not None and not arrays[asked.definition.time].null_count:
                found = Rows(arrays, np.arange(block.count))
        if found is None:
            found, zoned = _carefully(block, dialect, zoned, tried)
        yield found.slice(asked, block)


def _carefully(block: Block, dialect: Dialect, zoned: bool, tried: bool) -> tuple[Rows, bool]:
    """Read a block in which some lines are bad, or blank, or hold bad values.

    ``tried``: Arrow has failed to read it whole.
    """
    faults = {**malformed(block, dialect), **unreadable(block)}
    faults = {place: reason for place, reason in faults.items() if not block.blank[place]}
    good = ~block.blank
    good[list(faults)] = False
    places = np.flatnonzero(good)
    part = block.only(places)
    if part is not block or not tried:
        arrays, zoned = _fast(part, dialect, zoned)
        if arrays is not None:
            return Rows(arrays, places, faults), zoned
    found = _slow(part, dialect).moved(places)
    return replace(found, broken={**faults, **found.broken}), zoned


def _fast(block: Block, dialect: Dialect, zoned: bool) -> tuple[dict[int, pa.Array] | None, bool]:
    """Let Arrow read a whole block; return it (None: it failed), and whether it has zones."""
    has_timestamps = any(dialect.schema[at].type == TIMESTAMP for at in dialect.places)
    for with_zone in (zoned, not zoned) if has_timestamps else (zoned,):
        types = {
            at: pa.timestamp("us", "UTC")
            if with_zone and dialect.schema[at].type == TIMESTAMP
            else _read_as(dialect.schema[at].type)
            for at in dialect.places
        }
        try:
            table = _parse(block, dialect, types, None)
        except pa.ArrowInvalid:
            continue
        if table.num_rows != block.count or _too_lenient(block, table):
            break
        arrays = {}
        for at in dialect.places:
            array = one_array(table.column(str(at)))
            if pa.types.is_binary(dialect.schema[at].type):
                array, bad = convert(array, dialect.schema[at].type)
                if bad.any():
                    return None, with_zone
            elif pa.types.is_timestamp(array.type):
                array = naive_utc(array)
            elif dialect.trim and pa.types.is_string(array.type):
                array = _trimmed(array)
            arrays[at] = array
        return arrays, with_zone
    return None, zoned


def _read_as(type: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow reads a column: BINARY is text at first."""
    return pa.string() if pa.types.is_binary(type) else type


def _too_lenient(block: Block, table: pa.Table) -> bool:
    """Whether Arrow may have taken for a number what is none: ``0x1f``, ``nan(x)`` or ``1e999``."""
    for column in table.columns:
        if pa.types.is_floating(column.type):
            if pc.any(pc.is_inf(column)).as_py():
                return True
            if pc.any(pc.is_nan(column)).as_py() and block.holds(ord("(")):
                return True
    if not any(map(pa.types.is_integer, table.schema.types)):
        return False
    return any(
        ((part[:-1] == ord("0")) & (part[1:] | 0x20 == ord("x"))).any()
        for _, part in pieces(block.data_bytes, 1)
    )


def _parse(
    block: Block,
    dialect: Dialect,
    types: Mapping[int, pa.DataType],
    on_invalid: Any,
) -> pa.Table:
    """Parse lines; the result's columns are named by the declared columns' positions."""
    names = [f"?{place}" for place in range(dialect.width)]
    for at, place in dialect.places.items():
        names[place] = str(at)
    data = for_arrow(block, dialect)
    if not block.count:
        return pa.table({str(at): pa.array([], t) for at, t in types.items()})
    width = _PIECE if block.count > _FEW else len(data) + 1
    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        pyarrow.csv.ReadOptions(
            column_names=names, use_threads=on_invalid is None, block_size=width
        ),
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


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.utf8_trim_whitespace(array)


def _slow(block: Block, dialect: Dialect) -> Rows:
    """Read a block as bytes and convert it column by column; rows that do not fit are broken."""
    table, places, broken = _as_bytes(block, dialect)
    bad: Mask = np.zeros(len(places), bool)
    arrays = {}
    for at in dialect.places:
        column = dialect.schema[at]
        array, wrong = convert(one_array(table.column(str(at))), column.type)
        if dialect.trim and pa.types.is_string(column.type):
            array = _trimmed(array)
        arrays[at] = array
        reason = f"the column '{column.name}' must be {type_name(column.type)}"
        broken |= dict.fromkeys(places[wrong & ~bad].tolist(), reason)
        bad |= wrong
    rows = Rows(arrays, places, broken)
    return rows.kept(~bad) if bad.any() else rows


def _as_bytes(block: Block, dialect: Dialect) -> tuple[pa.Table, I64, dict[int, str]]:
    """Read a block's columns as bytes; return them, the rows' places, and the broken lines.

    Lines with too few or too many values are left out by Arrow and told by their number.
    """
    broken: dict[int, str] = {}

    def note(row: Any) -> str:
        reason = f"a line must have {row.expected_columns} values, got {row.actual_columns}"
        broken[row.number - 1] = reason
        return "skip"

    if block.longest >= _PIECE and block.count > _FEW:
        return _halved(block, dialect)
    table = _parse(block, dialect, {at: pa.binary() for at in dialect.places}, note)
    places = np.delete(np.arange(block.count), list(broken))
    if table.num_rows != len(places):
        raise InternalError(
            f"{block.count} lines must be as many rows, got {table.num_rows} and {len(broken)} "
            f"that do not fit"
        )
    return table, places, broken


def _halved(block: Block, dialect: Dialect) -> tuple[pa.Table, I64, dict[int, str]]:
    """Read the two halves of a block that has very long lines."""
    middle = block.count // 2
    left, left_places, left_broken = _as_bytes(block.part(0, middle), dialect)
    right, right_places, right_broken = _as_bytes(block.part(middle, block.count), dialect)
    return (
        pa.concat_tables([left, right]),
        np.concatenate([left_places, right_places + middle]),
        left_broken | {at + middle: reason for at, reason in right_broken.items()},
    )
