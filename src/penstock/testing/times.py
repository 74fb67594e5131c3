"""Rows and times as people write them in tests, and as the engine counts them.

A *plain* row holds what the oracle knows: None, bool, int, float, str; a TIMESTAMP is microseconds
since 1970, a DATE days.  Times may be given as integers, text, or Python's datetime and date; the
text of a time of day alone is meant on the day of the rig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.casts import cast_value
from penstock.expr.types import STRING, type_name
from penstock.model import INF, MIN_TIME, TIMESTAMP, Schema
from penstock.nested.shapes import fields_of, holds, inner_types, is_map, is_nested, is_struct
from penstock.reference.expressions import canonical

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?")


def plain(value: Any) -> Any:
    """Return a value that the engine gave as the oracle knows it."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days
    if isinstance(value, Mapping):  # a struct
        return tuple(map(plain, value.values()))
    if isinstance(value, list | tuple):  # an array, or the entries of a map
        return tuple(map(plain, value))
    return canonical(value)


def meant(value: Any, kind: pa.DataType, day: str, what: str) -> Any:
    """Return a value that a person wrote for a column of a type as a plain one."""
    if is_nested(kind) and value is not None:
        return _meant_inside(value, kind, day, what)
    if isinstance(value, str) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        text = f"{day} {value.zfill(8)}" if _OF_DAY.fullmatch(value.strip()) else value
        try:
            return int(cast_value(text, STRING, kind))
        except DataError:
            raise DataError(
                f"{what} must be a {type_name(kind)} such as '2024-03-11 06:30:00' or '06:30:00', "
                f"got {value!r}"
            ) from None
    return plain(value)


def _meant_inside(value: Any, kind: pa.DataType, day: str, what: str) -> Any:
    """Return a nested value as a tuple of plain ones."""
    if is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        kinds = (kind.key_type, kind.item_type)
        return tuple(
            tuple(meant(v, k, day, what) for v, k in zip(pair, kinds, strict=True))
            for pair in pairs
        )
    if is_struct(kind):
        given = value
        if isinstance(value, Mapping):
            given = [value.get(f.name) for f in fields_of(kind)]
        pairs = zip(given, inner_types(kind), strict=True)
        return tuple(meant(v, k, day, what) for v, k in pairs)
    return tuple(meant(v, kind.value_type, day, what) for v in value)


def instant(value: Any, stamps: bool, day: str, default: int = INF) -> int:
    """Return a point in time in chronons; None is ``default``: for ever, or since ever."""
    if value is None:
        return default
    found = meant(value, TIMESTAMP if stamps else pa.int64(), day, "a time")
    if isinstance(value, date) and not isinstance(value, datetime):
        found *= 86_400_000_000
    timely = isinstance(value, date) and not stamps
    if timely or isinstance(found, bool) or not isinstance(found, int):
        wanted = "text, a datetime or microseconds" if stamps else "an integer"
        raise DataError(f"a time must be {wanted}, as the streams count it, got {value!r}")
    return found


def shown_time(time: int, stamps: bool) -> Any:
    """Return a time as a sink shows it: None for ever, a datetime or an integer."""
    if time in (INF, MIN_TIME):
        return None
    return (EPOCH + timedelta(microseconds=time)).replace(tzinfo=None) if stamps else time


def shown_values(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> tuple[Any, ...]:
    """Return a plain row as a sink shows it: with datetimes and dates."""
    return tuple(_shown(v, kind) for v, kind in zip(values, kinds, strict=True))


def _shown(value: Any, kind: pa.DataType) -> Any:
    if is_nested(kind) and value is not None:
        inner = inner_types(kind)
        if is_map(kind):
            return {_shown(k, inner[0]): _shown(v, inner[1]) for k, v in value}
        if is_struct(kind):
            pairs = zip(fields_of(kind), value, strict=True)
            return {f.name: _shown(v, f.type) for f, v in pairs}
        return [_shown(v, inner[0]) for v in value]
    if value is None or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return value
    if pa.types.is_timestamp(kind):
        return shown_time(value, True)
    return EPOCH.date() + timedelta(days=value)


def time_text(time: int, stamps: bool) -> str:
    """Return a time for a message."""
    if time in (INF, MIN_TIME):
        return "for ever" if time == INF else "since ever"
    return str(shown_time(time, stamps))


def value_text(value: Any, kind: pa.DataType) -> str:
    """Return a plain value for a message."""
    if value is None:
        return "null"
    if is_nested(kind):
        return str(_shown(value, kind))
    temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return str(_shown(value, kind)) if temporal else repr(value)


def readable(rows: Any, schema: Schema, day: str) -> Any:
    """Return rows in which times that are text, in tuples and dicts, are integers."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
        return rows
    kinds = {f.name.lower(): f.type for f in schema}

    def row(given: Any) -> Any:
        if isinstance(given, Mapping):
            return {k: _read(v, kinds.get(str(k).lower()), k, day) for k, v in given.items()}
        if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == len(schema):
            pairs = zip(given, schema, strict=True)
            return tuple(_read(v, f.type, f.name, day) for v, f in pairs)
        return given

    return [row(given) for given in rows]


def _read(value: Any, kind: pa.DataType | None, name: str, day: str) -> Any:
    temporal = kind is not None and holds(
        kind, lambda k: bool(pa.types.is_timestamp(k) or pa.types.is_date(k))
    )
    return meant(value, kind, day, f"the column '{name}'") if temporal else value


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table, plain."""
    columns = [[plain(v) for v in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))
