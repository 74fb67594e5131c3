"""SQL types and Arrow types: names, families, and the type that two types have in common.

The types of Penstock are the keys of `NAMES`, the types with parameters (DECIMAL(p, s), ARRAY<T>,
STRUCT<a: T, ..>, MAP<K, V>), and the type of a bare ``NULL``; `is_type` says whether a type is one.
Widening follows Spark's ANSI rules: integers widen to the larger integer; an integer with FLOAT or
DOUBLE gives DOUBLE (a FLOAT cannot hold every INT); a DECIMAL with an integer or another DECIMAL
gives the DECIMAL that holds both, with FLOAT or DOUBLE it gives DOUBLE; DATE widens to TIMESTAMP;
NULL widens to anything; nested types widen inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from penstock.errors import QueryError, suggest
from penstock.expr.nested_types import NESTED, common_nested, nested_name, parse_nested
from penstock.model import TIMESTAMP
from penstock.nested.shapes import inner_types, is_nested, plain_type

BOOLEAN = pa.bool_()
TINYINT = pa.int8()
SMALLINT = pa.int16()
INT = pa.int32()
BIGINT = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
STRING = pa.string()
BINARY = pa.binary()
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
    BINARY: "BINARY",
    TIMESTAMP: "TIMESTAMP",
    DATE: "DATE",
}
"""Every type without parameters that a column can have, with its name in SQL."""

TYPES: tuple[pa.DataType, ...] = tuple(NAMES)

MOST_DIGITS = 38
"""The digits that a DECIMAL can have."""

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
    "NUMBER": "DECIMAL(p, s)",
    "DATETIME": "TIMESTAMP, which is in UTC",
    "TIMESTAMP_NTZ": "TIMESTAMP, which is in UTC",
    "TIMESTAMP_LTZ": "TIMESTAMP, which is in UTC",
    "TIMESTAMPTZ": "TIMESTAMP, which is in UTC",
    "TIME": "TIMESTAMP, or BIGINT counting microseconds",
    "INTERVAL": "BIGINT counting microseconds",
    "VARBINARY": "BINARY",
    "BYTEA": "BINARY",
    "BLOB": "BINARY",
    "UUID": "STRING",
    "JSON": "STRING, and from_json or get_json_object to read it",
    "VARIANT": "STRING, and from_json or get_json_object to read it",
    "ROW": "STRUCT<name: type, ..>",
    "LIST": "ARRAY<type>",
}


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type that a SQL type name stands for."""
    words = " ".join(text.split())
    if NESTED.match(words):
        return parse_nested(words, parse_type)
    match = _FORM.fullmatch(words)
    name = match["name"].upper() if match else words.upper()
    bracket = match["round"] if match else None
    if name in _PARAMETERISED and (match is None or match["angle"] is None):
        return _PARAMETERISED[name](name, bracket)
    if name in _PARSED and (bracket is None or _is_length(name, bracket)):
        return _PARSED[name]
    if name in _INSTEAD:
        raise QueryError(
            f"a type must be one that Penstock has, got {words.upper()}; use {_INSTEAD[name]}"
        )
    if name in _PARSED:
        raise QueryError(
            f"the type {name} must stand without '({bracket})', got {words.upper()}; use {name}"
        )
    known = (*NAMES.values(), "DECIMAL", "ARRAY", "STRUCT", "MAP")
    raise QueryError(
        f"a type must be one that Penstock has, got {words.upper()}; {suggest(name, known)}"
    )


_FORM = re.compile(r"(?P<name>[A-Za-z_][A-Za-z_ ]*?)\s*(?:\((?P<round>[^()]*)\)|<(?P<angle>.*)>)?")
"""A name, and what stands behind it in round or in angle brackets."""


def _is_length(name: str, length: str) -> bool:
    return name in _WITH_LENGTH and length.strip().isdigit()


def _parse_decimal(name: str, inside: str | None) -> pa.DataType:
    """DECIMAL, DECIMAL(p) and DECIMAL(p, s)."""
    numbers = ["10"] if inside is None else [part.strip() for part in inside.split(",")]
    whole = len(numbers) <= 2 and all(re.fullmatch("[0-9]{1,9}", n) for n in numbers)
    digits, scale = (int(n) for n in (*numbers, "0")[:2]) if whole else (0, 0)
    if not (1 <= digits <= MOST_DIGITS and scale <= digits):
        raise QueryError(
            f"{name}(p, s) must have 1 to {MOST_DIGITS} digits, of which 0 to p stand behind the "
            f"point, got {name}({inside}); write for instance {name}(12, 2)"
        )
    return decimal_type(digits, scale)


_PARAMETERISED: dict[str, Callable[[str, str | None], pa.DataType]] = {
    "DECIMAL": _parse_decimal,
    "DEC": _parse_decimal,
    "NUMERIC": _parse_decimal,
}
"""What reads a type with parameters: it gets the name and what stands in its round brackets."""


def type_name(type_: pa.DataType) -> str:
    """Return the name of a type in SQL, which `parse_type` reads."""
    if type_ == NULL:
        return "NULL"
    if is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if is_nested(type_):
        return nested_name(type_, type_name)
    return NAMES.get(type_) or str(type_)


def is_type(type_: pa.DataType) -> bool:
    """Whether a column can have the type."""
    if is_nested(type_):
        return plain_type(type_) == type_ and all(map(is_type, inner_types(type_)))
    return type_ in NAMES or is_decimal(type_)


def decimal_type(digits: int, scale: int) -> pa.DataType:
    """Return DECIMAL(digits, scale)."""
    return pa.decimal128(digits, scale)


def is_decimal(type_: pa.DataType) -> bool:
    """Whether the type is DECIMAL(p, s), for any p and s."""
    return isinstance(type_, pa.Decimal128Type) and 0 <= type_.scale <= type_.precision


def is_integer(type_: pa.DataType) -> bool:
    """Whether the type is TINYINT, SMALLINT, INT or BIGINT."""
    return type_ in _INTEGERS


def is_floating(type_: pa.DataType) -> bool:
    """Whether the type is FLOAT or DOUBLE."""
    return type_ in (FLOAT, DOUBLE)


def is_numeric(type_: pa.DataType) -> bool:
    """Whether the type is an integer, floating or DECIMAL type."""
    return is_integer(type_) or is_floating(type_) or is_decimal(type_)


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
        if is_floating(a) or is_floating(b):
            return DOUBLE
        return _common_decimal(as_decimal_type(a), as_decimal_type(b))
    if is_temporal(a) and is_temporal(b):
        return TIMESTAMP
    return common_nested(a, b, common_type)


_DIGITS_OF = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}


def as_decimal_type(type_: pa.DataType) -> pa.DataType:
    """Return the DECIMAL that holds every value of an integer type; a DECIMAL is itself."""
    return type_ if is_decimal(type_) else decimal_type(_DIGITS_OF[type_], 0)


def _common_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the DECIMAL that holds both; of more than 38 digits those behind the point go."""
    scale = max(a.scale, b.scale)
    whole = max(a.precision - a.scale, b.precision - b.scale)
    beyond = max(0, whole + scale - MOST_DIGITS)
    return decimal_type(min(whole + scale, MOST_DIGITS), max(0, scale - beyond))
