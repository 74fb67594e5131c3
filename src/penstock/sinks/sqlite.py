"""Tables of an SQLite file, through the ``sqlite3`` of the standard library.

Timestamps and dates are ISO 8601 texts in UTC, which sort in order of time and which SQLite's own
functions read; booleans are 0 and 1; NaN is NULL, because SQLite has no NaN.  A DECIMAL is text
with all digits of its scale, because SQLite's numbers would round it; ``CAST(x AS REAL)`` orders
it.  A file that is made here is in WAL mode: readers and the writer do not wait for one another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.decimals import is_decimal
from penstock.errors import ConfigError
from penstock.expr import types
from penstock.expr.decimal_casts import decimal_text
from penstock.model import I64, TIMESTAMP, Field, one_array
from penstock.nested.shapes import is_nested
from penstock.sinks.base import SharedLock, Sink, SinkFormat, SinkRequest, options_of
from penstock.sinks.database import (
    DELIVERIES,
    NOTES,
    Database,
    DatabaseSink,
    Line,
    TableColumn,
)
from penstock.sinks.text import iso_text, json_text
from penstock.sources.readers.base import local_path

_PATIENCE = 30.0
"""Seconds to wait for another writer."""

_CACHE_KIB = 65536
"""Pages to keep in memory: rows that leave are looked up all over the index."""

_AFFINITIES = {
    "INTEGER": ("INTEGER", "NUMERIC"),
    "REAL": ("REAL", "NUMERIC"),
    "TEXT": ("TEXT", "BLOB"),
    "BLOB": ("BLOB",),
}
"""The affinities of columns that keep the values of a column of ours as they are."""


class SqliteFormat(SinkFormat):
    """A table of an SQLite file."""

    name = "sqlite"
    options = ("path", "table", "changes", "overwrite", "pruned")
    view = "delta"

    def check(self, definition: SinkDef) -> None:
        database_of(definition, fsync=True)

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        return DatabaseSink(database_of(definition, request.fsync), definition, request)


class SqliteDatabase(Database):
    """A table of an SQLite file. ``fsync``: a commit survives a power cut."""

    kind = "SQLite"
    errors = (sqlite3.Error,)
    types: ClassVar[dict[pa.DataType, str]] = {
        types.BOOLEAN: "INTEGER",
        types.TINYINT: "INTEGER",
        types.SMALLINT: "INTEGER",
        types.INT: "INTEGER",
        types.BIGINT: "INTEGER",
        types.FLOAT: "REAL",
        types.DOUBLE: "REAL",
        types.STRING: "TEXT",
        types.BINARY: "BLOB",
        TIMESTAMP: "TEXT",
        types.DATE: "TEXT",
        types.NULL: "TEXT",
    }

    def __init__(self, path: Path, table: str, fsync: bool = True) -> None:
        self._path = self.place = path
        self.table = table
        self._fsync = fsync
        self._connection: sqlite3.Connection | None = None
        self._columns: tuple[str, ...] = ()
        self._row = "rowid"
        self._lock = SharedLock.of("sqlite", str(path))
        self._is_new = False

    @property
    def shown(self) -> str:
        return f"the table '{self.table}' of '{self._path}'"

    # -- the connection --------------------------------------------------------------------------

    def connect(self) -> None:
        if self._connection is not None:
            return
        self._is_new = not self._path.exists() or self._path.stat().st_size == 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from None
        self._connection = sqlite3.connect(
            self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        self.run(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self.run(f"PRAGMA synchronous = {'FULL' if self._fsync else 'OFF'}")

    def make_place(self) -> None:
        if self._is_new:
            self.run("PRAGMA journal_mode = WAL")
            self._is_new = False

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def is_lost(self, error: Exception) -> bool:
        return False

    def transaction(self) -> AbstractContextManager[None]:
        return self._alone()

    def looking(self) -> AbstractContextManager[None]:
        return self._within("BEGIN")  # beginning to write would make a file of nothing

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for other writers of this process, which SQLite would only look for now and then."""
        with self._lock, self._within("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def _within(self, begin: str) -> Iterator[None]:
        self.run(begin)
        try:
            yield
        except BaseException:
            if self._open.in_transaction:
                self.run("ROLLBACK")
            raise
        self.run("COMMIT")

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def run(self, statement: str, values: Sequence[Any] = (), **names: str) -> sqlite3.Cursor:
        return self._open.execute(self._named(statement, **names), values)

    def _named(self, statement: str, **names: str) -> str:
        """Return a statement as SQLite reads it, with its names in their places."""
        own = {"notes": NOTES, "lines": DELIVERIES, "locking": "", "row": self._row}
        marked = statement.replace("%s", "?")
        return marked.format(table=quoted(self.table), **own, **names)

    # -- tables ----------------------------------------------------------------------------------

    def columns(self) -> list[TableColumn] | None:
        found = self.run(
            'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_xinfo(%s)',
            (self.table,),
        ).fetchall()
        return [TableColumn(*column) for column in found] or None

    def has_notes(self) -> bool:
        found = self.run("SELECT name FROM pragma_table_info(%s)", (NOTES,))
        return found.fetchone() is not None

    def create(self, columns: Sequence[Field]) -> None:
        declared = ", ".join(f"{quoted(c.name)} {self.type_of(c.type)}" for c in columns)
        self.run("CREATE TABLE {table} ({declared})", declared=declared)

    def fits(self, type: pa.DataType, column: TableColumn) -> bool:
        has = affinity(column.type)
        if type in (TIMESTAMP, types.DATE) and has == "NUMERIC":
            return True  # DATE and DATETIME are words for it; texts that are no numbers stay
        return has in _AFFINITIES[self.type_of(type)]

    def type_of(self, type: pa.DataType) -> str:
        return "TEXT" if is_decimal(type) or is_nested(type) else self.types[type]

    def make_ready(self, columns: Sequence[str], indexed: bool) -> None:
        self._columns = tuple(columns)
        if not indexed:
            return
        self._row_name()
        self.run("SELECT {row} FROM {table} LIMIT 0")
        self.run(
            "CREATE INDEX IF NOT EXISTS {index} ON {table} ({listed})",
            index=quoted(f"penstock_{self.table}"),
            listed=", ".join(map(quoted, columns)),
        )

    def _row_name(self) -> None:
        """Find the name under which SQLite gives the number of a row."""
        taken = {column.name.lower() for column in self.columns() or ()}
        free = [name for name in ("rowid", "_rowid_", "oid") if name not in taken]
        if not free:
            raise ConfigError(
                f"{self.shown} must not have columns of all the names rowid, oid and _rowid_; "
                f"rename one"
            )
        self._row = free[0]

    def mark(self) -> int:
        try:
            self._row_name()
            row = self.run("SELECT max({row}) FROM {table}")
        except (sqlite3.OperationalError, ConfigError):
            return -1  # a table without numbers of rows
        return int(row.fetchone()[0] or 0)

    def remove_delivery(self, line: Line) -> int:
        if min(line.first, line.last) < 0:
            return -1
        self._row_name()
        return self.run(
            "DELETE FROM {table} WHERE {row} > %s AND {row} <= %s", (line.first, line.last)
        ).rowcount

    def add(self, rows: pa.Table) -> None:
        statement = self._named(
            "INSERT INTO {table} ({listed}) VALUES ({marks})",
            listed=", ".join(map(quoted, self._columns)),
            marks=", ".join("?" * len(self._columns)),
        )
        self._open.executemany(statement, zip(*values_of(rows), strict=True))

    def remove(self, rows: pa.Table, copies: I64) -> int:
        cursor = self._open.executemany(
            self.removal(), zip(*values_of(rows), copies.tolist(), strict=True)
        )
        return cursor.rowcount

    def removal(self) -> str:
        """Return the statement that deletes some copies of a row, found by the index."""
        return self._named(
            "DELETE FROM {table} WHERE {row} IN (SELECT {row} FROM {table} WHERE {same} LIMIT %s)",
            same=" AND ".join(f"{quoted(name)} IS ?" for name in self._columns),
        )


def database_of(definition: SinkDef, fsync: bool) -> SqliteDatabase:
    """Return the database of a sink; its options are checked, nothing is opened."""
    given = options_of(definition)
    path, table = given.get("path"), given.get("table")
    if not path or not table:
        raise ConfigError(
            f"the sink {definition.name} must have a path and a table; add OPTIONS (path "
            f"'answers.db', table '{definition.name}') to it"
        )
    local = local_path(path)
    if local is None or path == ":memory:":
        raise ConfigError(
            f"the path of sink {definition.name} must be a local file for the format sqlite, got "
            f"'{path}'"
        )
    if table.lower() == NOTES or table.lower().startswith("sqlite_") or "\0" in table:
        raise ConfigError(
            f"the table of sink {definition.name} must not be one that SQLite or Penstock keeps "
            f"for itself, got '{table}'"
        )
    return SqliteDatabase(Path(local).absolute(), table, fsync)


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def affinity(declared: str) -> str:
    """Return the affinity of a column, by the rules of SQLite."""
    words = declared.upper()
    if "INT" in words:
        return "INTEGER"
    if any(part in words for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in words or not words:
        return "BLOB"
    return "REAL" if any(part in words for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def values_of(rows: pa.Table) -> list[list[Any]]:
    """Return columns as lists of what SQLite can hold."""
    columns = []
    for column in rows.columns:
        array = one_array(column)
        if array.type == TIMESTAMP:
            array = iso_text(array)
        elif is_decimal(array.type):
            array = decimal_text(array)
        elif pa.types.is_date(array.type):
            array = array.cast(pa.string())
        elif is_nested(array.type):
            array = json_text(array)
        columns.append(array.to_pylist())
    return columns
