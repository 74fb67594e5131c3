"""Tables of a database: every batch is one transaction, in which its number is written down.

A note in the table ``penstock_batches`` beside the answers says which run of which query fills a
table, up to which batch and of which lineage, how many rows there are, and which instant a view
shows.  ``penstock_deliveries`` has a line for each of the last batches, by which its rows are found
when the sink is taken back.  Rows, note and line are committed together, so:

* a batch that comes again finds its number and changes nothing, also when the connection was lost
  while it was committed and nobody knows what became of it;
* a view goes from one snapshot to the next in one transaction: a reader sees one or the other;
* a delta is applied only to the snapshot that it was made from.  A table that was changed or
  brought back from a copy is noticed, never patched;
* a table that was dropped, emptied or cut is noticed at the next start, by its number of rows.

A view costs what changes in it, not what it holds: rows that leave are found by an index.  Equal
rows are counted: when one of three copies leaves, one is deleted.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, StateError
from penstock.expr.types import type_name
from penstock.kernels.keys import codes, hash_columns
from penstock.model import I64, Field, one_array, to_numpy
from penstock.runs.deliveries import Delivered, Held, partner, shown_delivery
from penstock.runs.failpoints import passing
from penstock.sinks.base import Result, Sink, SinkRequest, distinct_names, options_of, time_fields

NOTES = "penstock_batches"
"""The table that says which batches the other tables hold."""

DELIVERIES = "penstock_deliveries"
"""The table that says which rows came with which batch."""

REMEMBERED = 100_000
"""So many deliveries of a query are remembered: further it cannot be taken back."""

_UNREPAIRABLE = -1
"""Stands for the batches of rows of which nobody knows with which batch they came."""


@dataclass(frozen=True)
class Note:
    """What a table holds of a query: the run that fills it, its last batch, a view's instant.

    ``rows`` are those that were added, of a view those that it shows.
    """

    query: str
    run: str
    mode: str
    batch: int = -1
    as_of: int | None = None
    lineage: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Line:
    """A delivery: ``first`` and ``last`` are marks of the database by which its rows are found."""

    batch: int
    lineage: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class TableColumn:
    """A column that a table has. ``needed``: it takes no null and has no default."""

    name: str
    type: str
    needed: bool


class Database(ABC):
    """A connection to a database, and one table of it. Errors of the driver pass through."""

    table: str
    """The name of the table, as the notes have it."""

    place: Path | None = None
    """The file that holds the database, where it is one of this machine."""

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

    def looking(self) -> AbstractContextManager[object]:
        """Return a context in which nothing is written."""
        return self.transaction()

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = (), **names: Any) -> Any:
        """Execute a statement, in which ``%s`` stands for a value, and return its cursor.

        ``{table}``, ``{notes}``, ``{lines}`` and ``names`` in curly brackets stand for names;
        with ``{locking}`` at its end nobody else changes what it reads in this transaction.
        """

    @abstractmethod
    def columns(self) -> list[TableColumn] | None:
        """Return the columns of the table, None when there is no table. Changes nothing."""

    def make_place(self) -> None:
        """Make what must be there before a transaction can begin."""
        return None

    def make_notes(self) -> None:
        """Make the tables of notes and deliveries, where they are missing."""
        self.run(
            "CREATE TABLE IF NOT EXISTS {notes} (table_name text NOT NULL, query text NOT NULL, "
            "run text NOT NULL, changes text NOT NULL, batch bigint NOT NULL, as_of bigint, "
            "lineage text NOT NULL, rows bigint NOT NULL, PRIMARY KEY (table_name, query))"
        )
        self.run(
            "CREATE TABLE IF NOT EXISTS {lines} (table_name text NOT NULL, query text NOT NULL, "
            "batch bigint NOT NULL, lineage text NOT NULL, rows bigint NOT NULL, "
            "first bigint NOT NULL, last bigint NOT NULL, PRIMARY KEY (table_name, query, batch))"
        )

    @abstractmethod
    def create(self, columns: Sequence[Field]) -> None:
        """Make the table."""

    def type_of(self, type: pa.DataType) -> str:
        """Return the type of a column for values of a type."""
        return self.types[type]

    @abstractmethod
    def fits(self, type: pa.DataType, column: TableColumn) -> bool:
        """Whether a column of the table holds every value of a type."""

    @abstractmethod
    def make_ready(self, columns: Sequence[str], indexed: bool) -> None:
        """Take the names of the columns to fill; make the index by which rows are found again."""

    @abstractmethod
    def has_notes(self) -> bool:
        """Whether the table of notes is there."""

    def notes(self, query: str | None = None) -> list[Note]:
        """Return the notes about the table, or that of one query.

        Nobody else changes them in this transaction; those of other queries may be written
        meanwhile.  There are none where the table of notes is missing.
        """
        if not self.has_notes():
            return []
        found = self.run(
            "SELECT query, run, changes, batch, as_of, lineage, rows FROM {notes} "
            "WHERE table_name = %s AND query = COALESCE(%s, query){locking}",
            (self.table, query),
        )
        return [Note(*row) for row in found.fetchall()]

    def write_note(self, note: Note) -> None:
        """Write a note in place of the query's last one."""
        self.run(
            "INSERT INTO {notes} (table_name, query, run, changes, batch, as_of, lineage, rows) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (table_name, query) DO UPDATE "
            "SET run = excluded.run, changes = excluded.changes, batch = excluded.batch, "
            "as_of = excluded.as_of, lineage = excluded.lineage, rows = excluded.rows",
            (self.table, *astuple(note)),
        )

    def forget(self, query: str) -> None:
        """Remove the note of a query."""
        for statement in (
            "DELETE FROM {notes} WHERE table_name = %s AND query = %s",
            "DELETE FROM {lines} WHERE table_name = %s AND query = %s",
        ):
            self.run(statement, (self.table, query))

    def count(self) -> int:
        """Return how many rows the table holds."""
        return int(self.run("SELECT count(*) FROM {table}").fetchone()[0])

    @abstractmethod
    def mark(self) -> int:
        """Return a number by which rows that are added now are told from those added before."""

    def write_line(self, query: str, line: Line) -> None:
        """Write down a delivery; all but the last `REMEMBERED` are forgotten."""
        self.run(
            "INSERT INTO {lines} VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (table_name, query, batch) DO UPDATE SET lineage = excluded.lineage, "
            "rows = excluded.rows, first = excluded.first, last = excluded.last",
            (self.table, query, *astuple(line)),
        )
        if line.batch % 1000 == 0:
            self.run(
                "DELETE FROM {lines} WHERE table_name = %s AND query = %s AND batch < %s",
                (self.table, query, line.batch - REMEMBERED),
            )

    def lines(self, query: str, batch: int) -> list[Line]:
        """Return the deliveries of a query from a batch on, in order."""
        found = self.run(
            "SELECT batch, lineage, rows, first, last FROM {lines} WHERE table_name = %s "
            "AND query = %s AND batch >= %s ORDER BY batch",
            (self.table, query, batch),
        )
        return [Line(*row) for row in found.fetchall()]

    def take_back(self, query: str, line: Line) -> int:
        """Delete the rows of a delivery, and its line; return how many rows were found."""
        gone = self.remove_delivery(line)
        self.run(
            "DELETE FROM {lines} WHERE table_name = %s AND query = %s AND batch = %s",
            (self.table, query, line.batch),
        )
        return gone

    @abstractmethod
    def remove_delivery(self, line: Line) -> int:
        """Delete the rows of a delivery; return how many were found."""

    def clear(self) -> None:
        """Delete all rows; readers that have begun still see them."""
        self.run("DELETE FROM {table}")

    @abstractmethod
    def add(self, rows: pa.Table) -> None:
        """Insert rows."""

    @abstractmethod
    def remove(self, rows: pa.Table, copies: I64) -> int:
        """Delete so many copies of each row; nulls are equal. Return how many were found."""


class DatabaseSink(Sink):
    """One query's answers in one table.

    ``pauses`` are the seconds to wait before each try to reach a database again that was lost.
    """

    pauses: ClassVar[tuple[float, ...]] = (0.0, 0.2, 1.0, 3.0)

    def __init__(self, database: Database, definition: SinkDef, request: SinkRequest) -> None:
        mode = request.mode
        self._database = database
        self.place = database.place
        self._name = definition.name
        self._note = Note(request.query, request.run or "", mode)
        self._lock = threading.Lock()
        times = () if mode == "delta" else time_fields(mode, request.timestamps)
        columns = (*request.schema, *times)
        names = distinct_names([column.name for column in columns], str.lower)
        self._fields = [Field(name, c.type) for name, c in zip(names, columns, strict=True)]
        given = options_of(definition)
        self._overwrite = given.get("overwrite", "false").lower() == "true"
        self._pruned = given.get("pruned", "false").lower() == "true"
        self._begun = self._lost = False
        self._last = (-1, "")
        with self._said(self._no_opening, ConfigError):
            database.connect()
            with database.looking():
                found = database.columns()
                if found is not None:
                    self._names(found)
                self._known()

    # -- opening ---------------------------------------------------------------------------------

    def held(self) -> Held:
        """Compare the table with its note; nothing is changed."""
        database = self._database
        with self._said(self._no_opening, ConfigError), database.looking():
            known = self._known()
            there = database.columns() is not None
            rows = database.count() if there else 0
            if known is None or known.batch < 0:
                others = sum(note.rows for note in database.notes())
                replaced = known is None and self._overwrite
                return Held(database.shown, unknown=0 if replaced else max(0, rows - others))
            if known.rows and not rows and not (there and self._pruned):
                self._lost = True
                return Held(database.shown)
            least = known.rows
            if known.mode != "delta":
                least = sum(note.rows for note in database.notes())
            lost = {}
            if (rows != least if known.mode == "delta" else rows < least) and not self._pruned:
                lost[_UNREPAIRABLE] = (
                    f"it must hold {least} rows that were delivered, got {rows} (where others "
                    f"delete old rows on purpose, say pruned 'true' in the sink's OPTIONS)"
                )
            return Held(database.shown, known.batch, known.lineage, lost)

    def begin(self, again: Collection[int] = (), given_up: Collection[int] = ()) -> None:
        """Make the table, or take over the one that is there; write down whose it is.

        What is to be overwritten stays until the first batch is there.
        """
        with self._said(self._no_opening, ConfigError), self._database.looking():
            replaced = self._overwrite and self._known() is None
        if not replaced:
            self._take_over(given_up)

    def _take_over(self, given_up: Collection[int] = ()) -> None:
        database = self._database
        with self._said(self._no_opening, ConfigError):
            database.make_place()
            with database.transaction():
                self._begin(given_up)
        self._begun = True

    def _begin(self, given_up: Collection[int]) -> None:
        database = self._database
        database.make_notes()
        found, known = database.columns(), self._known()
        if found is None:
            self._lost = known is not None and known.rows > 0
            database.create(self._fields)
            names = [field.name for field in self._fields]
            for note in database.notes():  # what they speak of is gone
                if note.run == self._note.run:
                    database.write_note(replace(note, rows=0))
                else:
                    database.forget(note.query)
            known = self._known()
        else:
            names = self._names(found)
        database.make_ready(names, indexed=self._note.mode == "delta")
        mine = replace(self._note, batch=-1, as_of=None, lineage="", rows=0)
        notes = {note.query: note for note in database.notes()}
        old = self._is_old(notes.get(partner(mine.query)))
        if known is None and (mine.query in notes or old):
            database.clear()  # of another run: it may be overwritten
            for query in (mine.query, partner(mine.query)):
                database.forget(query)
        elif known is None and mine.mode == "delta" and database.count():
            database.clear()
        if known is not None and not self._lost:
            rows = database.count() if known.mode == "delta" and given_up else known.rows
            mine = replace(known, rows=0 if given_up and known.mode != "delta" else rows)
        self._note = mine
        self._last = mine.batch, mine.lineage
        database.write_note(mine)

    def rewind(self, told: Delivered) -> str:
        """Delete the rows of later batches."""
        database, mine = self._database, self._note
        if mine.mode == "delta":
            raise ConfigError(
                f"{database.shown} holds a view, of which earlier states are gone, so it cannot be "
                f"taken back; bring it back by the means of the database, or DROP the query and "
                f"create it again with another table"
            )
        with self._said(self._no_opening, ConfigError), database.transaction():
            known = self._known()
            lines = [] if known is None else database.lines(mine.query, told.batch)
            kept = [line for line in lines if line.batch == told.batch]
            later = [line for line in reversed(lines) if line.batch > told.batch]
            last = (kept[0].batch, kept[0].lineage) if kept else (-1, "")
            if known is None or last != told.last:
                raise StateError(
                    f"{database.shown} must have got batch {told.batch} of this checkpoint to be "
                    f"taken back to it, but it holds other answers, or too many later ones; give "
                    f"the query another table"
                )
            for line in later:
                if (found := database.take_back(mine.query, line)) != line.rows:
                    raise StateError(
                        f"{database.shown} must still hold the {line.rows} rows of batch "
                        f"{line.batch} to be taken back, but {found} were found: others have "
                        f"changed the table. Nothing was deleted"
                    )
            gone = sum(line.rows for line in later)
            database.write_note(
                replace(known, batch=told.batch, lineage=told.lineage, rows=known.rows - gone)
            )
        return f"{gone} rows of {len(later)} batches were deleted"

    def _names(self, found: Sequence[TableColumn]) -> list[str]:
        """Return the columns of the table that are filled."""
        names = [self._place(field, found).name for field in self._fields]
        for column in found:
            if column.needed and column.name not in names:
                raise ConfigError(
                    f"the columns of {self._database.shown} that are not the query's must take "
                    f"nulls or have a default, but '{column.name}' does not; give it one, or "
                    f"choose another table for sink {self._name}"
                )
        return names

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
            wanted = self._database.type_of(field.type)
            raise ConfigError(
                f"the column '{column.name}' of {self._database.shown} must hold every "
                f"{type_name(field.type)}, got {column.type}; make it {wanted}, or choose another "
                f"table for sink {self._name}"
            )
        return column

    def _known(self) -> Note | None:
        """Return our own note, None if the table is new to us; check that it is ours to fill."""
        database, mine = self._database, self._note
        notes = {note.query: note for note in database.notes()}
        there = database.columns() is not None
        if not there:  # notes of others are of a table that is gone
            notes = {name: note for name, note in notes.items() if name == mine.query}
        known = notes.pop(mine.query, None)
        old = self._is_old(notes.get(partner(mine.query)))
        if old:
            del notes[partner(mine.query)]
        views = [note.query for note in notes.values() if "delta" in (note.mode, mine.mode)]
        if views:
            raise ConfigError(
                f"a table that holds a view must hold nothing else, but {database.shown} is filled "
                f"by query '{views[0]}' too; drop the table, or choose another one for sink "
                f"{self._name}"
            )
        if known is not None and known.mode == mine.mode and mine.run in ("", known.run):
            return known
        is_new = (
            known is None
            and not old
            and (mine.mode != "delta" or not there or not database.count())
        )
        if there and not is_new and not (self._overwrite and not notes):
            raise ConfigError(
                f"{database.shown} must be new or empty, or hold answers of the same query, "
                f"changes and checkpoint, but it holds others; drop the table, choose another one "
                f"for sink {self._name}, or set OPTIONS (overwrite 'true')"
            )
        return None

    def _is_old(self, note: Note | None) -> bool:
        """Whether the query's other outlet has filled the table otherwise: for another run."""
        mine = self._note
        return note is not None and (note.mode != mine.mode or mine.run not in ("", note.run))

    # -- publishing ------------------------------------------------------------------------------

    def publish(self, result: Result) -> None:
        """Write a batch that the table does not have; a lost connection is opened again."""
        if not result.table.num_rows and result.mode != "delta":
            return
        if not self._begun:
            self._take_over()
        with self._lock, self._said(lambda: self._not_written(result), DataError):
            for pause in (*self.pauses, None):
                try:
                    self._database.connect()
                    with self._database.transaction():
                        written = self._write(result)
                        passing("sink-transaction")
                    if written:
                        self._last = result.batch, result.lineage
                    passing("sink-committed")
                    return
                except self._database.errors as error:
                    lost = self._database.is_lost(error)
                    self._database.disconnect()
                    if pause is None or not lost:
                        raise
                    time.sleep(pause)

    def _write(self, result: Result) -> bool:
        """Write a batch; return whether the table has it now, and had not a later one."""
        database, mine = self._database, self._note
        known = next(iter(database.notes(mine.query)), None)
        if known is None or (known.run, known.mode) != (mine.run, mine.mode):
            raise StateError(
                f"{database.shown} must be filled by query '{mine.query}' of this checkpoint, but "
                f"another run has taken it over; stop one of them, or choose another table"
            )
        last = known.batch, known.lineage
        if last not in (self._last, (result.batch, result.lineage)):
            raise StateError(
                f"{database.shown} must be filled by this run alone, but "
                f"{shown_delivery(mine.query, known.batch)} came from a copy of its checkpoint; "
                f"stop one of them, and take the sink back by penstock checkpoint rewind-sink"
            )
        if result.batch <= known.batch:
            return result.batch == known.batch
        first = database.mark()
        if result.mode == "delta":
            rows = self._apply(result, known)
        else:
            database.add(result.table)
            rows = known.rows + result.table.num_rows
        if result.mode != "delta":
            came = Line(result.batch, result.lineage, result.table.num_rows, first, database.mark())
            database.write_line(mine.query, came)
        database.write_note(
            replace(
                known,
                run=mine.run,
                batch=result.batch,
                as_of=result.as_of,
                lineage=result.lineage,
                rows=rows,
            )
        )
        return True

    def _apply(self, result: Result, known: Note) -> int:
        """Apply a delta; return how many rows the view has then."""
        database, rows = self._database, known.rows
        if result.since is None:
            database.clear()
            rows = 0
        elif result.since != known.as_of:
            raise StateError(
                f"{database.shown} must show the instant {result.since}, which batch "
                f"{result.batch} goes on from, but it shows {known.as_of}: it was brought back "
                f"from a copy, or written by others; DROP the query, drop the table, and create "
                f"the query again"
            )
        added, removed, copies = net_rows(result.table)
        gone = int(copies.sum()) if len(copies) else 0
        if gone and database.remove(removed, copies) != gone:
            raise StateError(
                f"{database.shown} must hold the rows that leave the view in batch "
                f"{result.batch}, but some are gone: others have changed the table; DROP the "
                f"query, drop the table, and create the query again"
            )
        if added.num_rows:
            database.add(added)
        return rows + int(added.num_rows) - gone

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
            message = str(error).partition("\nLINE ")[0]  # the rest shows our own statement
            told = " ".join(message.split()) or type(error).__name__
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
            f"{result.shown} must be written to {self._database.shown}, but "
            f"{self._database.kind} says: {{told}}; nothing of it was committed unless it was "
            f"committed whole, and it will be delivered again when the run is started again"
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
