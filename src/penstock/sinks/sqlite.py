"""Tables of an SQLite file, through the ``sqlite3`` of the standard library.

Timestamps and dates are ISO 8601 texts in UTC, which sort in order of time and which SQLite's own
functions read; booleans are 0 and 1; NaN is NULL, because SQLite has no NaN.  A file that is made
here is in WAL mode: readers and the writer do not wait for one another.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError
from penstock.expr import types
from penstock.model import I64, TIMESTAMP, Field, one_array
from penstock.sinks.base import Sink, SinkFormat, SinkRequest, options_of
from penstock.sinks.database import (
    DELIVERIES,
    NOTES,
    REMEMBERED,
    Database,
    DatabaseSink,
    Line,
    Note,
    TableColumn,
)
from penstock.sinks.text import iso_text
from penstock.sources.readers.base import local_path

_PATIENCE = 30.0
"""Seconds to wait for another writer."""

_CACHE_KIB = 65536
"""Pages to keep in memory: rows that leave are looked up all over the index."""

_AFFINITIES = {
    "INTEGER": ("INTEGER", "NUMERIC"),
    "REAL": ("REAL", "NUMERIC"),
    "TEXT": ("TEXT", "BLOB"),
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
        TIMESTAMP: "TEXT",
        types.DATE: "TEXT",
        types.NULL: "TEXT",
    }

    def __init__(self, path: Path, table: str, fsync: bool = True) -> None:
        self._path = self.place = path
        self._table = table
        self._fsync = fsync
        self._connection: sqlite3.Connection | None = None
        self._columns: tuple[str, ...] = ()
        self._row = "rowid"
        self._is_new = False

    @property
    def shown(self) -> str:
        return f"the table '{self._table}' of '{self._path}'"

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
        self._execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'OFF'}")

    def make_place(self) -> None:
        if self._is_new:
            self._execute("PRAGMA journal_mode = WAL")
            self._is_new = False

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def is_lost(self, error: Exception) -> bool:
        return False

    def transaction(self) -> AbstractContextManager[None]:
        return self._within("BEGIN IMMEDIATE")

    def looking(self) -> AbstractContextManager[None]:
        return self._within("BEGIN")  # beginning to write would make a file of nothing

    @contextmanager
    def _within(self, begin: str) -> Iterator[None]:
        self._execute(begin)
        try:
            yield
        except BaseException:
            if self._open.in_transaction:
                self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._open.execute(statement, values)

    # -- tables ----------------------------------------------------------------------------------

    def columns(self) -> list[TableColumn] | None:
        found = self._execute(
            'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_xinfo(?)',
            (self._table,),
        ).fetchall()
        return [TableColumn(*column) for column in found] or None

    def make_notes(self) -> None:
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {NOTES} (table_name TEXT NOT NULL, query TEXT NOT NULL, "
            "run TEXT NOT NULL, changes TEXT NOT NULL, batch INTEGER NOT NULL, as_of INTEGER, "
            "lineage TEXT NOT NULL DEFAULT '', rows INTEGER NOT NULL DEFAULT 0, "
            "PRIMARY KEY (table_name, query))"
        )
        names = self._noted()
        for name, kind in (("lineage", "TEXT NOT NULL DEFAULT ''"), ("rows", "INTEGER DEFAULT 0")):
            if name not in names:
                self._execute(f"ALTER TABLE {NOTES} ADD COLUMN {name} {kind}")
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {DELIVERIES} (table_name TEXT NOT NULL, "
            "query TEXT NOT NULL, batch INTEGER NOT NULL, lineage TEXT NOT NULL, "
            "rows INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, "
            "PRIMARY KEY (table_name, query, batch))"
        )

    def _noted(self) -> set[str]:
        """Return the columns of the table of notes."""
        found = self._execute("SELECT name FROM pragma_table_info(?)", (NOTES,))
        return {name for (name,) in found.fetchall()}

    def create(self, columns: Sequence[Field]) -> None:
        declared = ", ".join(f"{quoted(c.name)} {self.types[c.type]}" for c in columns)
        self._execute(f"CREATE TABLE {quoted(self._table)} ({declared})")

    def fits(self, type: pa.DataType, column: TableColumn) -> bool:
        has = affinity(column.type)
        if type in (TIMESTAMP, types.DATE) and has == "NUMERIC":
            return True  # DATE and DATETIME are words for it; texts that are no numbers stay
        return has in _AFFINITIES[self.types[type]]

    def make_ready(self, columns: Sequence[str], indexed: bool) -> None:
        self._columns = tuple(columns)
        if not indexed:
            return
        table, row = quoted(self._table), self._row_name()
        self._execute(f"SELECT {row} FROM {table} LIMIT 0")  # noqa: S608
        index = quoted(f"penstock_{self._table}")
        listed = ", ".join(map(quoted, columns))
        self._execute(f"CREATE INDEX IF NOT EXISTS {index} ON {table} ({listed})")

    def _row_name(self) -> str:
        """Return the name under which SQLite gives the number of a row."""
        taken = {column.name.lower() for column in self.columns() or ()}
        free = [name for name in ("rowid", "_rowid_", "oid") if name not in taken]
        if not free:
            raise ConfigError(
                f"{self.shown} must not have columns of all the names rowid, oid and _rowid_; "
                f"rename one"
            )
        self._row = free[0]
        return self._row

    # -- notes -----------------------------------------------------------------------------------

    def notes(self) -> list[Note]:
        names = self._noted()
        if not names:
            return []
        more = ", lineage, rows" if "lineage" in names else ""
        found = self._execute(
            f"SELECT query, run, changes, batch, as_of{more} FROM {NOTES} WHERE table_name = ?",  # noqa: S608
            (self._table,),
        )
        return [Note(*row) for row in found.fetchall()]

    def write_note(self, note: Note) -> None:
        self._execute(
            f"INSERT OR REPLACE INTO {NOTES} (table_name, query, run, changes, batch, as_of, "  # noqa: S608
            "lineage, rows) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._table,
                note.query,
                note.run,
                note.mode,
                note.batch,
                note.as_of,
                note.lineage,
                note.rows,
            ),
        )

    def forget(self, query: str) -> None:
        for notes in (NOTES, DELIVERIES):
            self._execute(
                f"DELETE FROM {notes} WHERE table_name = ? AND query = ?",  # noqa: S608
                (self._table, query),
            )

    def mark(self) -> int:
        try:
            row = self._execute(f"SELECT max({self._row_name()}) FROM {quoted(self._table)}")  # noqa: S608
        except (sqlite3.OperationalError, ConfigError):
            return -1  # a table without numbers of rows
        return int(row.fetchone()[0] or 0)

    def write_line(self, query: str, line: Line) -> None:
        self._execute(
            f"INSERT OR REPLACE INTO {DELIVERIES} VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (self._table, query, line.batch, line.lineage, line.rows, line.first, line.last),
        )
        if line.batch % 1000 == 0:
            self._execute(
                f"DELETE FROM {DELIVERIES} WHERE table_name = ? AND query = ? AND batch < ?",  # noqa: S608
                (self._table, query, line.batch - REMEMBERED),
            )

    def lines(self, query: str, batch: int) -> list[Line]:
        found = self._execute(
            f"SELECT batch, lineage, rows, first, last FROM {DELIVERIES} WHERE table_name = ? "  # noqa: S608
            "AND query = ? AND batch >= ? ORDER BY batch",
            (self._table, query, batch),
        )
        return [Line(*row) for row in found.fetchall()]

    def take_back(self, query: str, line: Line) -> int:
        if min(line.first, line.last) < 0:
            return -1
        cursor = self._execute(
            f"DELETE FROM {quoted(self._table)} WHERE {self._row_name()} > ? "  # noqa: S608
            f"AND {self._row} <= ?",
            (line.first, line.last),
        )
        self._execute(
            f"DELETE FROM {DELIVERIES} WHERE table_name = ? AND query = ? AND batch = ?",  # noqa: S608
            (self._table, query, line.batch),
        )
        return cursor.rowcount

    # -- rows ------------------------------------------------------------------------------------

    def count(self) -> int:
        found = self._execute(f"SELECT count(*) FROM {quoted(self._table)}")  # noqa: S608
        return int(found.fetchone()[0])

    def clear(self) -> None:
        self._execute(f"DELETE FROM {quoted(self._table)}")  # noqa: S608

    def add(self, rows: pa.Table) -> None:
        listed = ", ".join(map(quoted, self._columns))
        marks = ", ".join("?" * len(self._columns))
        self._open.executemany(
            f"INSERT INTO {quoted(self._table)} ({listed}) VALUES ({marks})",  # noqa: S608
            zip(*values_of(rows), strict=True),
        )

    def remove(self, rows: pa.Table, copies: I64) -> int:
        cursor = self._open.executemany(
            self.removal(), zip(*values_of(rows), copies.tolist(), strict=True)
        )
        return cursor.rowcount

    def removal(self) -> str:
        """Return the statement that deletes some copies of a row, found by the index."""
        table, row = quoted(self._table), self._row
        same = " AND ".join(f"{quoted(name)} IS ?" for name in self._columns)
        return (
            f"DELETE FROM {table} WHERE {row} IN "  # noqa: S608
            f"(SELECT {row} FROM {table} WHERE {same} LIMIT ?)"
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
        elif pa.types.is_date(array.type):
            array = array.cast(pa.string())
        columns.append(array.to_pylist())
    return columns
