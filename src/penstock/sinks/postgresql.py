"""Tables of a PostgreSQL database, through psycopg (``pip install 'penstock[postgresql]'``).

Rows are sent by COPY, as CSV that Arrow writes.  Rows that leave a view go into a temporary table
and are deleted by one statement: an index over a hash of the whole row finds the copies, a
null-safe comparison makes sure.  So the table has the query's columns and no others.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.catalog import SinkDef
from penstock.decimals import is_decimal
from penstock.errors import ConfigError
from penstock.expr import types
from penstock.masking import shown_option, without_passwords
from penstock.model import I64, TIMESTAMP, Field, one_array
from penstock.nested.shapes import is_nested
from penstock.options import Secret
from penstock.sinks.base import Sink, SinkFormat, SinkRequest
from penstock.sinks.database import (
    DELIVERIES,
    NOTES,
    Database,
    DatabaseSink,
    Line,
    TableColumn,
)
from penstock.sinks.text import iso_text, json_text

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError:  # the package is optional
    _ERRORS: tuple[type[Exception], ...] = ()
else:
    _ERRORS = (psycopg.Error,)

_OLDEST = 140000
"""The first version that has hashes of records."""

_CHUNK = 1 << 16
"""Rows that are turned into text at a time."""

_NAME_BYTES = 63
"""PostgreSQL cuts longer names."""

_FITTING = {
    "boolean": ("boolean",),
    "smallint": ("smallint", "integer", "bigint", "numeric"),
    "integer": ("integer", "bigint", "numeric"),
    "bigint": ("bigint", "numeric"),
    "real": ("real", "double precision"),
    "double precision": ("double precision",),
    "text": ("text", "character varying"),
    "bytea": ("bytea",),
    "timestamp with time zone": ("timestamp with time zone", "timestamp without time zone"),
    "date": ("date",),
    "jsonb": ("jsonb", "text", "character varying"),
}
"""The types of columns that hold every value of a column of ours."""


class PostgresqlFormat(SinkFormat):
    """A table of a PostgreSQL database."""

    name = "postgresql"
    options = ("url", "user", "password", "table", "changes", "overwrite", "pruned")
    view = "delta"

    def check(self, definition: SinkDef) -> None:
        database_of(definition)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return DatabaseSink(database_of(definition), definition, request)


class PostgresqlDatabase(Database):
    """A table of a PostgreSQL database."""

    kind = "PostgreSQL"
    errors = _ERRORS
    types: ClassVar[dict[pa.DataType, str]] = {
        types.BOOLEAN: "boolean",
        types.TINYINT: "smallint",
        types.SMALLINT: "smallint",
        types.INT: "integer",
        types.BIGINT: "bigint",
        types.FLOAT: "real",
        types.DOUBLE: "double precision",
        types.STRING: "text",
        types.BINARY: "bytea",
        TIMESTAMP: "timestamp with time zone",
        types.DATE: "date",
        types.NULL: "text",
    }

    def __init__(
        self, url: str, schema: str | None, table: str, login: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self._login = dict(login or {})
        self._schema = schema
        self.table = table
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._columns: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        place = self.table if self._schema is None else f"{self._schema}.{self.table}"
        where = "a secret url" if isinstance(self._url, Secret) else without_passwords(self._url)
        return f"the table '{place}' of {where}"

    # -- the connection --------------------------------------------------------------------------

    def connect(self) -> None:
        if self._connection is not None:
            return
        given = conninfo_to_dict(self._url)
        defaults: dict[str, Any] = {"connect_timeout": 10, "application_name": "penstock"}
        options: dict[str, Any] = {k: v for k, v in defaults.items() if k not in given}
        options |= self._login
        connection = psycopg.connect(self._url, autocommit=True, **options)
        self._connection = connection
        if connection.info.server_version < _OLDEST:
            raise ConfigError(
                f"the server of {self.shown} must be PostgreSQL 14 or newer, got version "
                f"{connection.info.server_version // 10000}"
            )
        connection.execute("SET TIME ZONE 'UTC'")
        if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
            connection.execute("SET synchronous_commit = on")  # what is delivered stays delivered
        if self._schema is None:
            self._schema = self._found_schema()

    def _found_schema(self) -> str:
        """Return the schema of a table without one: where it is, or where it would be made."""
        found = self._row(
            "SELECT coalesce((SELECT relnamespace::regnamespace::text FROM pg_class WHERE "
            "oid = to_regclass(%s)), quote_ident(current_schema()))",
            (sql.Identifier(self.table).as_string(self._open),),
        )
        if found is None or found[0] is None:
            raise ConfigError(
                f"{self.shown} must be in a schema, but the search path names none that exists; "
                f"write the table as schema.table"
            )
        text = str(found[0])
        return text[1:-1].replace('""', '"') if text.startswith('"') else text

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def is_lost(self, error: Exception) -> bool:
        if self._connection is None or self._connection.closed:
            return not isinstance(error, psycopg.ProgrammingError)
        retried = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
        return isinstance(error, retried)

    def transaction(self) -> AbstractContextManager[object]:
        return self._open.transaction()

    @property
    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise psycopg.InterfaceError("the connection is closed")
        return self._connection

    def run(
        self, statement: str, values: Sequence[Any] = (), **names: sql.Composable
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        own = {
            "table": self._qualified(self.table),
            "notes": self._qualified(NOTES),
            "lines": self._qualified(DELIVERIES),
            "locking": sql.SQL(" FOR UPDATE"),
        }
        text = sql.SQL(statement).format(**own, **names)
        return self._open.execute(text, values or None)

    def _row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return self._open.execute(statement, values).fetchone()

    def _qualified(self, name: str) -> sql.Identifier:
        return sql.Identifier(name) if self._schema is None else sql.Identifier(self._schema, name)

    def _listed(self, prefix: str | None = None) -> sql.Composed:
        parts = () if prefix is None else (prefix,)
        return sql.SQL(", ").join(sql.Identifier(*parts, name) for name in self._columns)

    # -- tables ----------------------------------------------------------------------------------

    def columns(self) -> list[TableColumn] | None:
        place = self._qualified(self.table).as_string(self._open)
        kind = self._row("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (place,))
        if kind is None:
            return None
        if kind[0] not in ("r", b"r"):
            raise ConfigError(
                f"{self.shown} must be a plain table, but it is a view, a partitioned or another "
                f"kind of table; choose another name"
            )
        found = self._open.execute(
            "SELECT attname, format_type(atttypid, NULL), attnotnull AND NOT atthasdef AND "
            "attidentity = '' FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            (place,),
        )
        return [TableColumn(*column) for column in found.fetchall()]

    def make_notes(self) -> None:
        # two sinks that make their tables at once would fail: one waits for the other
        self.run("SELECT pg_advisory_xact_lock(hashtext('penstock'))")
        super().make_notes()

    def has_notes(self) -> bool:
        place = self._qualified(NOTES).as_string(self._open)
        return self._row("SELECT to_regclass(%s)::text", (place,)) != (None,)

    def create(self, columns: Sequence[Field]) -> None:
        for column in columns:
            if len(column.name.encode()) > _NAME_BYTES or "\0" in column.name:
                raise ConfigError(
                    f"a column of {self.shown} must have a name of at most {_NAME_BYTES} bytes, "
                    f"got '{column.name}'; name it with AS in the query"
                )
        declared = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(self.type_of(c.type)))
            for c in columns
        )
        self.run("CREATE TABLE {table} ({declared})", declared=declared)

    def fits(self, type: pa.DataType, column: TableColumn) -> bool:
        if is_decimal(type):
            return column.type == "numeric"
        return column.type in _FITTING[self.type_of(type)]

    def type_of(self, type: pa.DataType) -> str:
        if is_decimal(type):
            return f"numeric({type.precision}, {type.scale})"
        return "jsonb" if is_nested(type) else self.types[type]

    def make_ready(self, columns: Sequence[str], indexed: bool) -> None:
        self._columns = tuple(columns)
        if indexed:
            digest = sha256(repr((self._schema, self.table, columns)).encode()).hexdigest()
            self.run(
                "CREATE INDEX IF NOT EXISTS {index} ON {table} "
                "(hash_record_extended(ROW({columns}), 0))",
                index=sql.Identifier(f"penstock_{digest[:16]}"),
                columns=self._listed(),
            )

    def mark(self) -> int:
        """Return the number of the transaction, which PostgreSQL keeps with each row."""
        found = self._row("SELECT pg_current_xact_id()::text")
        assert found is not None
        return int(found[0])

    def remove_delivery(self, line: Line) -> int:
        return self.run(
            "DELETE FROM {table} WHERE xmin::text::bigint = %s", (line.last % 2**32,)
        ).rowcount

    def add(self, rows: pa.Table) -> None:
        self._copy("COPY {table} ({columns}) FROM STDIN (FORMAT csv)", rows, self._listed())

    def remove(self, rows: pa.Table, copies: I64) -> int:
        place, number = sql.Identifier("pg_temp", "penstock_gone"), self._free_name("copies")
        self.run(
            "CREATE TEMPORARY TABLE IF NOT EXISTS penstock_gone ON COMMIT DELETE ROWS AS "
            "SELECT {columns}, 0::bigint AS {number} FROM {table} WITH NO DATA",
            columns=self._listed(),
            number=sql.Identifier(number),
        )
        counted = pa.table(
            [*rows.columns, pa.array(copies)], names=[str(i) for i in range(rows.num_columns + 1)]
        )
        self._copy(
            "COPY {gone} ({columns}) FROM STDIN (FORMAT csv)",
            counted,
            sql.SQL(", ").join([self._listed(), sql.Identifier(number)]),
            gone=place,
        )
        return self.run(
            self._removal(),
            gone=place,
            number=sql.Identifier("g", number),
            here=self._listed("h"),
            there=self._listed("g"),
        ).rowcount

    def _removal(self) -> str:
        """Return the statement that deletes some copies of each row, found by the index."""
        return (
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT f.ctid FROM {gone} g CROSS JOIN "
            "LATERAL (SELECT h.ctid FROM {table} h WHERE hash_record_extended(ROW({here}), 0) = "
            "hash_record_extended(ROW({there}), 0) AND ROW({here}) IS NOT DISTINCT FROM "
            "ROW({there}) LIMIT {number}) f))"
        )

    def _free_name(self, name: str) -> str:
        while name in self._columns:
            name += "_"
        return name

    def _copy(
        self, statement: str, rows: pa.Table, columns: sql.Composed, **names: sql.Composable
    ) -> None:
        parts = {"table": self._qualified(self.table), "columns": columns, **names}
        text = sql.SQL(statement).format(**parts)
        with self._open.cursor() as cursor, cursor.copy(text) as copy:
            for first in range(0, rows.num_rows, _CHUNK):
                copy.write(csv_of(rows.slice(first, _CHUNK)))


def database_of(definition: SinkDef) -> PostgresqlDatabase:
    """Return the database of a sink; its options are checked, nothing is opened."""
    given = {
        name.lower(): value if isinstance(value, Secret) else str(value)
        for name, value in definition.options.items()
    }
    url, table = given.get("url"), given.get("table")
    login = {name: str(given[name]) for name in ("user", "password") if given.get(name)}
    if not url or not table:
        raise ConfigError(
            f"the sink {definition.name} must have a url and a table; add OPTIONS (url "
            f"'postgresql://user@host/database', table '{definition.name}') to it"
        )
    if not _ERRORS:
        raise ConfigError(
            f"the sink {definition.name} must have psycopg for the format postgresql; install it "
            f"with: pip install 'penstock[postgresql]'"
        )
    try:
        valid = url.startswith(("postgresql://", "postgres://")) and conninfo_to_dict(url) != {}
    except psycopg.Error:
        valid = False  # what the driver says may hold parts of the password
    if not valid:
        raise ConfigError(
            f"the url of sink {definition.name} must look like "
            f"postgresql://user@host:port/database (special characters as %XX), got "
            f"'{shown_option(definition.format, 'url', url)}'"
        )
    part = r'("(?:[^"]|"")+"|[^".]+)'
    match = re.fullmatch(rf"(?:{part}\.)?{part}", table)
    if match is None or "\0" in table:
        raise ConfigError(
            f"the table of sink {definition.name} must be a name or schema.name, with names that "
            f'hold a dot in double quotes, got "{table}"'
        )
    schema, name = (
        p and (p[1:-1].replace('""', '"') if p[0] == '"' else p) for p in match.groups()
    )
    for given_name in (schema, name):
        if given_name and len(given_name.encode()) > _NAME_BYTES:
            raise ConfigError(
                f"the table of sink {definition.name} must have names of at most {_NAME_BYTES} "
                f"bytes, got '{given_name}'"
            )
    if name == NOTES:
        raise ConfigError(
            f"the table of sink {definition.name} must not be {NOTES}, which Penstock keeps"
        )
    return PostgresqlDatabase(url, schema, name, login)


def csv_of(rows: pa.Table) -> bytes:
    """Return rows as CSV: null is nothing at all, an empty text is in quotes."""
    columns = []
    for column in rows.columns:
        array = one_array(column)
        if array.type == TIMESTAMP:
            text = iso_text(array)
            array = pc.binary_join_element_wise(text, pa.scalar("Z"), pa.scalar(""))
        elif pa.types.is_null(array.type):
            array = array.cast(pa.string())
        elif is_nested(array.type):
            array = json_text(array)
        elif pa.types.is_binary(array.type):
            found = array.to_pylist()
            array = pa.array([v if v is None else f"\\x{v.hex()}" for v in found], pa.string())
        columns.append(array)
    out = io.BytesIO()
    pyarrow.csv.write_csv(
        pa.table(columns, names=[str(i) for i in range(len(columns))]),
        out,
        pyarrow.csv.WriteOptions(include_header=False),
    )
    return out.getvalue()
