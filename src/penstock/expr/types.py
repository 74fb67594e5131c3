"""SQL types and Arrow types: names, families, and the type that two types have in common.

The types of Penstock are exactly the keys of `NAMES`, plus the type of a bare ``NULL``.  Widening
follows Spark's ANSI rules: integers widen to the larger integer; an integer with FLOAT or DOUBLE
gives DOUBLE (a FLOAT cannot hold every INT); DATE widens to TIMESTAMP; NULL widens to anything.
"""

from __future__ import annotations

import re

import pyarrow as pa

from penstock.errors import QueryError, suggest
from penstock.model import TIMESTAMP

BOOLEAN = pa.bool_()
TINYINT = pa.int8()
SMALLINT = pa.int16()
INT = pa.int32()
BIGINT = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
STRING = pa.string()
DATE = pa.date32()
NULL = pa.null()

NAMES: dict[pa.DataType, str] = {
    BOOLEAN: "BOOLEAN",
    TINYINT: "TINYINT",
    SMALLINT: "SMALLINT",
    INT: "INT",
    BIGINT: "BIGINT",
    FLOAT: "FLOAT",
    DOUBLE: "DOUBLE",
    STRING: "STRING",
    TIMESTAMP: "TIMESTAMP",
    DATE: "DATE",
}
"""Every type a column can have, with its name in SQL."""

TYPES: tuple[pa.DataType, ...] = tuple(NAMES)

_INTEGERS = (TINYINT, SMALLINT, INT, BIGINT)
_PARSED: dict[str, pa.DataType] = {
    **{name: type_ for type_, name in NAMES.items()},
    "BOOL": BOOLEAN,
    "BYTE": TINYINT,
    "SHORT": SMALLINT,
    "INTEGER": INT,
    "LONG": BIGINT,
    "REAL": FLOAT,
    "DOUBLE PRECISION": DOUBLE,
    "VARCHAR": STRING,
    "CHAR": STRING,
    "CHARACTER": STRING,
    "TEXT": STRING,
}
_WITH_LENGTH = ("VARCHAR", "CHAR", "CHARACTER", "STRING", "TEXT")
_INSTEAD = {
    "DECIMAL": "DOUBLE, or BIGINT counting the smallest unit",
    "DEC": "DOUBLE, or BIGINT counting the smallest unit",
    "NUMERIC": "DOUBLE, or BIGINT counting the smallest unit",
    "NUMBER": "DOUBLE, or BIGINT counting the smallest unit",
    "DATETIME": "TIMESTAMP, which is in UTC",
    "TIMESTAMP_NTZ": "TIMESTAMP, which is in UTC",
    "TIMESTAMP_LTZ": "TIMESTAMP, which is in UTC",
    "TIMESTAMPTZ": "TIMESTAMP, which is in UTC",
    "TIME": "TIMESTAMP, or BIGINT counting microseconds",
    "INTERVAL": "BIGINT counting microseconds",
    "BINARY": "STRING",
    "VARBINARY": "STRING",
    "BLOB": "STRING",
    "UUID": "STRING",
    "ARRAY": "one column for each element",
    "MAP": "one column for each entry",
    "STRUCT": "one column for each field",
    "JSON": "STRING, or one column for each field",
    "VARIANT": "STRING, or one column for each field",
}


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type that a SQL type name stands for."""
    words = " ".join(text.upper().split())
    match = re.fullmatch(r"([A-Z_ ]+?)\s*(?:\(([^()]*)\)|<.*>)?", words)
    name = match[1] if match else words
    length = match[2] if match else None
    if name in _PARSED and (length is None or _is_length(name, length)):
        return _PARSED[name]
    if name in _INSTEAD:
        raise QueryError(f"a type must be one that Penstock has, got {words}; use {_INSTEAD[name]}")
    if name in _PARSED:
        raise QueryError(
            f"the type {name} must stand without '({length})', got {words}; use {name}"
        )
    raise QueryError(
        f"a type must be one that Penstock has, got {words}; {suggest(name, NAMES.values())}"
    )


def _is_length(name: str, length: str) -> bool:
    return name in _WITH_LENGTH and length.strip().isdigit()


def type_name(type_: pa.DataType) -> str:
    """Return the name of a type in SQL."""
    if type_ == NULL:
        return "NULL"
    return NAMES.get(type_) or str(type_)


def is_integer(type_: pa.DataType) -> bool:
    """Whether the type is TINYINT, SMALLINT, INT or BIGINT."""
    return type_ in _INTEGERS


def is_floating(type_: pa.DataType) -> bool:
    """Whether the type is FLOAT or DOUBLE."""
    return type_ in (FLOAT, DOUBLE)


def is_numeric(type_: pa.DataType) -> bool:
    """Whether the type is an integer or floating type."""
    return is_integer(type_) or is_floating(type_)


def is_temporal(type_: pa.DataType) -> bool:
    """Whether the type is TIMESTAMP or DATE."""
    return type_ in (TIMESTAMP, DATE)


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that holds the values of both, None when there is none."""
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if is_integer(a) and is_integer(b):
        return max(a, b, key=_INTEGERS.index)
    if is_numeric(a) and is_numeric(b):
        return DOUBLE
    if is_temporal(a) and is_temporal(b):
        return TIMESTAMP
    return None
