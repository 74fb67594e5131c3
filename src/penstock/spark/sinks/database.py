"""Tables of a database: every batch is one transaction, in which its number is written down.

A note in the table ``penstock_batches`` beside the answers says which run of which query fills a
table, up to which batch, and which instant a view shows.  Rows and note are committed together, so:

* a batch that comes again finds its number and changes nothing, also when the connection was lost
  while it was committed and nobody knows what became of it;
* a view goes from one snapshot to the next in one transaction: a reader sees one or the other;
* a delta is applied only to the snapshot that it was made from.  A table that was changed or
  brought back from a copy is noticed, never patched.

A view costs what changes in it, not what it holds: rows that leave are found by an index.  Equal
rows are counted: when one of three copies leaves, one is deleted.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, StateError
from penstock.expr.types import type_name
from penstock.kernels.keys import codes, hash_columns
from penstock.model import I64, Field, Schema, one_array, to_numpy
from penstock.runs.failpoints import passing
from penstock.spark.sinks.base import Result, Sink, options_of, time_fields

NOTES = "penstock_batches"
"""The table that says which batches the other tables hold."""


@dataclass(frozen=True)
class Note:
    """What a table holds of a query: the run that fills it, its last batch, a view's instant."""

    query: str
    run: str
    mode: str
    batch: int = -1
    as_of: int | None = None


@dataclass(frozen=True)
class TableColumn:
    """A column that a table has. ``needed``: it takes no null and has no default."""

    name: str
    type: str
    needed: bool


class Database(ABC):
    """A connection to a database, and one table of it. Errors of the driver pass through."""

    kind: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]
    types: ClassVar[dict[pa.DataType, str]]
    """The type of a column that is made for each type of Penstock."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """What errors call the table; no passwords."""

    @abstractmethod
    def connect(self) -> None:
        """Open the connection if there is none."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection if there is one."""

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """Whether it may help to connect and try again."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Return a context that is committed as a whole, or not at all when an error leaves it."""

    @abstractmethod
    def columns(self) -> list[TableColumn] | None:
        """Return the columns of the table, None when there is no table. Makes the notes' table."""

    @abstractmethod
    def create(self, columns: Sequence[Field]) -> None:
        """Make the table."""

    @abstractmethod
    def fits(self, type: pa.DataType, column: TableColumn) -> bool:
        """Whether a column of the table holds every value of a type."""

    @abstractmethod
    def make_ready(self, columns: Sequence[str], indexed: bool) -> None:
        """Take the names of the columns to fill; make the index by which rows are found again."""

    @abstractmethod
    def notes(self) -> list[Note]:
        """Return the notes about the table; nobody else changes them in this transaction."""

    @abstractmethod
    def write_note(self, note: Note) -> None:
        """Write a note in place of the query's last one."""

    @abstractmethod
    def forget(self, query: str) -> None:
        """Remove the note of a query."""

    @abstractmethod
    def has_rows(self) -> bool:
        """Whether the table holds anything."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all rows; readers that have begun still see them."""

    @abstractmethod
    def add(self, rows: pa.Table) -> None:
        """Insert rows."""

    @abstractmethod
    def remove(self, rows: pa.Table, copies: I64) -> int:
        """Delete so many copies of each row; nulls are equal. Return how many were found."""


class DatabaseSink(Sink):
    """One query's answers in one table.

    ``run`` is the identity of the checkpoint; ``pauses`` are the seconds to wait before each try to
    reach a database again that was lost.
    """

    pauses: ClassVar[tuple[float, ...]] = (0.0, 0.2, 1.0, 3.0)

    def __init__(
        self,
        database: Database,
        definition: SinkDef,
        query: str,
        mode: str,
        schema: Schema,
        run: str | None = None,
        timestamps: bool = False,
    ) -> None:
        self._database = database
        self._name = definition.name
        self._note = Note(query, run or "", mode)
        self._lock = threading.Lock()
        times = () if mode == "delta" else time_fields(mode, timestamps)
        fields = distinct_names((*schema, *times))
        overwrite = options_of(definition).get("overwrite", "false").lower() == "true"
        with self._said(self._no_opening, ConfigError):
            database.connect()
            with database.transaction():
                self._prepare(fields)
                self._begin(overwrite)

    # -- opening ---------------------------------------------------------------------------------

    def _prepare(self, fields: Sequence[Field]) -> None:
        """Make the table, which holds no batches then, or find its columns."""
        database = self._database
        found = database.columns()
        if found is None:
            database.create(fields)
            for note in database.notes():  # of a table that is gone
                database.forget(note.query)
            names = [field.name for field in fields]
        else:
            names = [self._place(field, found).name for field in fields]
            for column in found:
                if column.needed and column.name not in names:
                    raise ConfigError(
                        f"the columns of {database.shown} that are not the query's must take nulls "
                        f"or have a default, but '{column.name}' does not; give it one, or choose "
                        f"another table for sink {self._name}"
                    )
        database.make_ready(names, indexed=self._note.mode == "delta")

    def _place(self, field: Field, found: Sequence[TableColumn]) -> TableColumn:
        exact = [column for column in found if column.name == field.name]
        alike = [column for column in found if column.name.lower() == field.name.lower()]
        listed = ", ".join(f"{column.name} {column.type}" for column in found)
        if len(exact or alike) != 1:
            raise ConfigError(
                f"{self._database.shown} must have the column '{field.name}' of query "
                f"'{self._note.query}', but its columns are {listed}; add it, or choose another "
                f"table for sink {self._name}"
            )
        column = (exact or alike)[0]
        if not self._database.fits(field.type, column):
            wanted = self._database.types.get(field.type, "TEXT")
            raise ConfigError(
                f"the column '{column.name}' of {self._database.shown} must hold every "
                f"{type_name(field.type)}, got {column.type}; make it {wanted}, or choose another "
                f"table for sink {self._name}"
            )
        return column

    def _begin(self, overwrite: bool) -> None:
        """Check that the table is ours to fill, and write that down."""
        database, mine = self._database, self._note
        notes = {note.query: note for note in database.notes()}
        known = notes.pop(mine.query, None)
        views = [note.query for note in notes.values() if "delta" in (note.mode, mine.mode)]
        if views:
            raise ConfigError(
                f"a table that holds a view must hold nothing else, but {database.shown} is filled "
                f"by query '{views[0]}' too; drop the table, or choose another one for sink "
                f"{self._name}"
            )
        if known is not None and known.mode == mine.mode and mine.run in ("", known.run):
            self._note = known
            return
        is_new = known is None and (mine.mode != "delta" or not database.has_rows())
        if not is_new and not (overwrite and not notes):
            raise ConfigError(
                f"{database.shown} must be new or empty, or hold answers of the same query, "
                f"changes and checkpoint, but it holds others; drop the table, choose another one "
                f"for sink {self._name}, or set OPTIONS (overwrite 'true')"
            )
        if not is_new:
            database.clear()
            database.forget(mine.query)
        database.write_note(mine)

    # -- publishing ------------------------------------------------------------------------------

    def publish(self, result: Result) -> None:
        """Write a batch that the table does not have; a lost connection is opened again."""
        if not result.table.num_rows and result.mode != "delta":
            return
        with self._lock, self._said(lambda: self._not_written(result), DataError):
            for pause in (*self.pauses, None):
                try:
                    self._database.connect()
                    with self._database.transaction():
                        self._write(result)
                        passing("sink-transaction")
                    passing("sink-committed")
                    return
                except self._database.errors as error:
                    lost = self._database.is_lost(error)
                    self._database.disconnect()
                    if pause is None or not lost:
                        raise
                    time.sleep(pause)

    def _write(self, result: Result) -> None:
        database, mine = self._database, self._note
        known = {note.query: note for note in database.notes()}.get(mine.query)
        if known is None or (known.run, known.mode) != (mine.run, mine.mode):
            raise StateError(
                f"{database.shown} must be filled by query '{mine.query}' of this checkpoint, but "
                f"another run has taken it over; stop one of them, or choose another table"
            )
        if result.batch <= known.batch:
            return
        if result.mode == "delta":
            self._apply(result, known)
        else:
            database.add(result.table)
        database.write_note(Note(mine.query, mine.run, mine.mode, result.batch, result.as_of))

    def _apply(self, result: Result, known: Note) -> None:
        database = self._database
        if result.since is None:
            database.clear()
        elif result.since != known.as_of:
            raise StateError(
                f"{database.shown} must show the instant {result.since}, which batch "
                f"{result.batch} goes on from, but it shows {known.as_of}: it was brought back "
                f"from a copy, or written by others; drop the table and begin with another "
                f"checkpoint"
            )
        added, removed, copies = net_rows(result.table)
        if len(copies) and database.remove(removed, copies) != copies.sum():
            raise StateError(
                f"{database.shown} must hold the rows that leave the view in batch "
                f"{result.batch}, but some are gone: others have changed the table; drop it and "
                f"begin with another checkpoint"
            )
        if added.num_rows:
            database.add(added)

    def close(self) -> None:
        """Close the connection."""
        self._database.disconnect()

    # -- errors ----------------------------------------------------------------------------------

    @contextmanager
    def _said(
        self, sentence: Callable[[], str], kind: type[ConfigError] | type[DataError]
    ) -> Iterator[None]:
        """Turn errors of the driver into sentences; a connection with an error is closed."""
        try:
            yield
        except self._database.errors as error:
            self._database.disconnect()
            told = " ".join(str(error).split()) or type(error).__name__
            raise kind(sentence().replace("{told}", told)) from None
        except Exception:
            self._database.disconnect()
            raise

    def _no_opening(self) -> str:
        return (
            f"the sink {self._name} must be able to use {self._database.shown}, but "
            f"{self._database.kind} says: {{told}}"
        )

    def _not_written(self, result: Result) -> str:
        return (
            f"batch {result.batch} of query '{result.query}' must be written to "
            f"{self._database.shown}, but {self._database.kind} says: {{told}}; nothing of it was "
            f"committed unless it was committed whole, and it will be delivered again when the run "
            f"is started again"
        )


def net_rows(table: pa.Table) -> tuple[pa.Table, pa.Table, I64]:
    """Return the rows that a delta adds, those that it removes, and how many copies of each.

    The last column is the sign.  Equal rows are counted against one another.
    """
    values = table.select(range(table.num_columns - 1)).combine_chunks()
    sign = to_numpy(table.column(table.num_columns - 1))
    rows = table.num_rows
    code, first = codes(hash_columns([one_array(c) for c in values.columns], rows))
    net = np.bincount(code[sign > 0], minlength=len(first))
    net -= np.bincount(code[sign < 0], minlength=len(first))
    more, fewer = net > 0, net < 0
    added = values.take(pa.array(np.repeat(first[more], net[more])))
    return added, values.take(pa.array(first[fewer])), -net[fewer]


def distinct_names(fields: Sequence[Field]) -> list[Field]:
    """Return columns whose names differ also without case: a repeated one gets ``_2``, ``_3``, …"""
    taken: set[str] = set()
    result = []
    for field in fields:
        chosen, number = field.name, 1
        while chosen.lower() in taken:
            number += 1
            chosen = f"{field.name}_{number}"
        taken.add(chosen.lower())
        result.append(Field(chosen, field.type))
    return result
