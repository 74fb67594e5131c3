"""The session: a catalog, a pipeline on Spark, and handles of the queries that run on it.

import penstock as ps
s = ps.Session()
s.sql("CREATE STREAM ...; CREATE QUERY ...")
s.query("athens").await_end()
"""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import cql
from penstock.algebra import Node
from penstock.asking.checkpoints import CheckpointView
from penstock.asking.encoding import Declared
from penstock.asking.onetime import Snapshot, can_answer
from penstock.catalog import Catalog, QueryDef, StreamDef, TableDef, ViewDef, folder_name
from penstock.cql.binding import statements
from penstock.cql.binding.priorities import declared_priority
from penstock.cql.grammar.syntax import Parsed, QuerySyntax
from penstock.errors import PenstockError, QueryError, QueryWarning, StateError, shown_cause
from penstock.runs.files import make_folder
from penstock.session.builder import Relation
from penstock.session.frames import declare_stream, declare_table
from penstock.session.handle import QueryHandle
from penstock.session.own import own_definition
from penstock.session.schemas import KnownSchemas
from penstock.session.scripts import Planned, bound_script
from penstock.session.starting import (
    change_running,
    opened_pipeline,
    remembered,
    start_queries,
)
from penstock.session.statements import create, create_or_replace, drop, execute
from penstock.settings import Settings
from penstock.sources.formats import is_pushed
from penstock.sources.table_formats import whole_table
from penstock.sources.writer import StreamWriter, check_pushed, promised
from penstock.spark.engine import SparkStart
from penstock.spark.failures import root_cause
from penstock.spark.pipeline import Pipeline
from penstock.spark.tables import read_whole
from penstock.temporary import new_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Session:
    """Declares streams and runs continuous queries.

    ``spark`` is a session of yours; without it an embedded Spark is started when it is first
    needed. ``checkpoint`` is the folder that lets a later session go on where this one stopped;
    without it a temporary one is used.  With ``autostart`` a query runs as soon as it is created.
    ``on_spark_start`` are called before an embedded Spark is started, which takes seconds.
    ``warnings`` are doubts about what was declared; those of ``on_warning`` are called with each,
    and without any they are warnings of Python.  With
    ``prints_streams`` the rows of a stream that goes into no sink are printed as they come.
    With ``allow_change`` a checkpoint is continued although its queries are gone, its streams are
    read otherwise, or a sink has lost what it had: answers may then have gaps.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        autostart: bool = True,
        allow_change: bool = False,
    ) -> None:
        self.config = Settings(settings)
        self.catalog = Catalog(remembered=remembered(checkpoint), schemas=KnownSchemas(checkpoint))
        self.autostart = autostart
        self.allow_change = allow_change
        self._forgotten: set[str] = set()
        self._replacing: set[str] = set()  # streams whose declaration replaces an older one
        self._spark = spark
        self._starting: SparkStart | None = None
        self.on_spark_start: list[Callable[[], None]] = []
        self.warnings: list[QueryWarning] = []
        self.on_warning: list[Callable[[QueryWarning], None]] = []
        self.prints_streams = False
        self._master = master
        self._temporary = checkpoint is None
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        self._closed = False
        self._pipeline: Pipeline | None = None
        self._handles: dict[str, QueryHandle] = {}
        self._callbacks: dict[str, Callable[[int, pa.Table], None]] = {}
        self._unnamed = 0
        self._view: CheckpointView | None = None

    # -- statements ------------------------------------------------------------------------------

    def sql(self, text: str, *, one_time: bool = False) -> Any:
        """Run a script and return the result of its last statement.

        CREATE QUERY, CREATE MATERIALIZED VIEW and SELECT give a `QueryHandle`, SHOW and DESCRIBE an
        Arrow table, EXPLAIN text.  A SELECT runs continuously, unless it says AS OF; with
        ``one_time`` one that reads only tables and what is kept gives a `Snapshot` instead.
        A script with mistakes is not run: all of them are told, several as a `ScriptError`.
        """
        result: Any = None
        runs = False
        for parsed, bound in self._planned(text, one_time):
            if bound is None and self._can_answer(parsed):
                result = self.ask(parsed)
                continue
            statement = bound or cql.bind(parsed, self.catalog)
            result = self.execute(statement)
            runs |= isinstance(result, QueryHandle) and not isinstance(statement, statements.Pause)
        if runs:
            self._go_on()
        return result

    def bound(self, text: str) -> list[statements.Statement]:
        """Return the statements of a script, checked but not run; raise all its mistakes."""
        return [bound for _, bound in self._planned(text, False) if bound is not None]

    def _planned(self, text: str, one_time: bool) -> list[Planned]:
        readable = self._declared().plans if one_time else None
        return bound_script(text, self.catalog, self._unnamed, readable)

    def ask(self, parsed: Parsed) -> Snapshot:
        """Answer a parsed SELECT once, from the last committed batch."""
        self._check_open()
        if self._view is None:
            self._view = CheckpointView(self._folder, self._rows_of_table, self.config)
        return self._view.ask(parsed, self._declared())

    def _can_answer(self, parsed: Parsed) -> bool:
        """Whether a statement is a SELECT that can be answered once, or only so."""
        if not isinstance(parsed.syntax, QuerySyntax):
            return False
        declared = self._declared()
        question = cql.bind_question(parsed, self.catalog, declared.plans)
        return question.as_of is not None or can_answer(question, declared)

    def _declared(self) -> Declared:
        modes = {name: handle.mode for name, handle in self._handles.items()}
        queries = {
            d.name: (d.plan, modes[name])
            for name, d in list(self.catalog.queries.items())
            if name in modes
        }
        return Declared(self.catalog, queries)

    def _rows_of_table(self, definition: TableDef) -> pa.Table:
        return whole_table(definition, lambda table: read_whole(self.spark, table))

    def execute(self, statement: statements.Statement) -> Any:
        """Carry out one bound statement, without starting the pipeline."""
        self._check_open()
        self._warn(statement)
        return execute(self, statement)

    def create_function(
        self,
        function: Any,
        parameters: str = "",
        returns: str = "",
        *,
        using: str = "",
        takes: str = "",
        replace: bool = False,
    ) -> None:
        """Declare a function of your own: CREATE FUNCTION.

        ``create_function("above", "x DOUBLE", "BOOLEAN", using="plant:above")``, or the function
        itself if it stands behind the decorator `penstock.function`.
        """
        self._check_open()
        made = own_definition(function, parameters, returns, using, takes)
        self.execute(statements.Create(made, replaces=replace))

    def _warn(self, statement: statements.Statement) -> None:
        """Tell the doubts about a statement; those about an earlier one of its name are gone."""
        if not isinstance(statement, statements.Create | statements.Select):
            return
        if isinstance(statement, statements.Create):
            name = statement.definition.name
            self.warnings = [w for w in self.warnings if w.about.lower() != name.lower()]
        self.warnings += statement.warnings
        for warning in statement.warnings:
            for told in self.on_warning:
                told(warning)
            if not self.on_warning:
                warnings.warn(warning, stacklevel=4)

    def set(self, name: str, value: Any) -> None:
        """Change a setting: any before something runs, then some, from the next batch on."""
        self._check_open()
        fresh = self._pipeline is None and self._starting is None and self._view is None
        self.config = self.config.but({name: value}) if fresh else self.config.changed(name, value)
        if self._pipeline is not None:
            self._pipeline.runner.config = self._pipeline.lane.config = self.config

    def _drop(self, kind: str, name: str, if_exists: bool) -> None:
        drop(self, kind, name, if_exists)

    def stream(self, source: Any, *, time: str | None = None, name: str | None = None) -> Relation:
        """Begin a query in Python: a declared stream, or a frame as a stream that ends.

        A frame is of pandas, Arrow or Spark (batch); ``time`` is its time column, in whose order
        the rows come.  It gets the ``name``, or one like ``frame_1``.
        """
        if isinstance(source, str):
            return self.view(source)
        self._check_open()
        return self.view(declare_stream(self, source, time, name))

    def table(self, source: Any, *, name: str | None = None) -> Relation:
        """Begin a query in Python: a declared table, or a frame as a static table."""
        if isinstance(source, str):
            return self.view(source)
        self._check_open()
        return self.view(declare_table(self, source, name))

    def view(self, name: str) -> Relation:
        """Begin a query in Python: a declared view, stream or table."""
        priority = declared_priority(self.catalog, name)
        return Relation(self.catalog.relation(name), self, priority=priority)

    def register(
        self,
        name: str,
        node: Node,
        into: str | None = None,
        keep: int | None = None,
        *,
        replace: bool = False,
    ) -> QueryHandle:
        """Add a query, or with ``keep`` a view that is kept, built in Python, and start it.

        With ``replace`` it takes the place of the one of its name, as CREATE OR REPLACE does.
        """
        self._check_open()
        kept = keep is not None
        made = ViewDef(name, node, keep=keep) if kept else QueryDef(name, node, into)
        handle: QueryHandle = create_or_replace(self, made) if replace else create(self, made)
        self._go_on()
        return handle

    def query(self, name: str) -> Any:
        """Return the handle of a query, or the `Snapshot` that answers a SELECT once.

        A text that begins with SELECT, WITH or a parenthesis is a one-time query.
        """
        if name.lower() not in self.catalog.queries and _QUESTION.match(name):
            return self.ask(cql.parse_question(name))
        self.catalog.get("query", name)
        return self._handles[name.lower()]

    def handles(self) -> tuple[QueryHandle, ...]:
        """Return the handles of all queries."""
        return tuple(self._handles.values())

    def callback(self, sink: str, function: Callable[[int, pa.Table], None]) -> None:
        """Name the function that a ``CREATE SINK .. USING callback`` calls with (batch, rows)."""
        if not callable(function):
            raise QueryError(
                f"a callback must be a function of (batch, rows), got {type(function).__name__}"
            )
        self._callbacks[sink.lower()] = function

    # -- memory streams --------------------------------------------------------------------------

    def push(self, stream: str, rows: Any, partition: int | None = None) -> None:
        """Add rows (tuples, dicts, an Arrow table or a pandas frame) to a memory stream.

        Several writers, each in its own order, have a ``partition`` each: a number from 0.
        """
        self._writer(stream).push(rows, partition)
        self._pushed(stream, partition)

    def heartbeat(self, stream: str, time: Any, partition: int | None = None) -> None:
        """Promise that no row of a stream below a time follows; such a row is late.

        The time is a datetime or text, or an integer as the stream counts.  Of a memory stream it
        holds for what is pushed from now on, of any other for what the next batches bring.
        """
        self._check_open()
        definition: StreamDef = self.catalog.get("stream", stream)
        if is_pushed(definition):
            self._writer(stream).heartbeat(time, partition)
            self._pushed(stream, partition)
            return
        reached = promised(definition, time, partition)
        if partition is not None:
            raise QueryError(
                f"a heartbeat of one partition can be given of a stream USING memory, but stream "
                f"'{stream}' is USING {definition.format}; leave the partition out"
            )
        if self._pipeline is None:
            raise StateError(
                f"a stream must run before its time is moved on, but no query reads '{stream}'; "
                f"start a query first"
            )
        self._pipeline.keeper.promise(definition.name, reached)

    def _pushed(self, stream: str, partition: int | None) -> None:
        """Let the pipeline know when rows came."""
        if self._pipeline is not None:
            name = self.catalog.get("stream", stream).name
            self._pipeline.keeper.heard(name, "" if partition is None else str(partition))
            self._pipeline.lane.notify(name)

    def finish(self, stream: str) -> None:
        """End a memory stream: no more rows will come."""
        self._writer(stream).finish()

    def _writer(self, stream: str) -> StreamWriter:
        self._check_open()
        definition: StreamDef = self.catalog.get("stream", stream)
        check_pushed(definition)
        return StreamWriter(definition, self._spool_folder(definition.name), self.config.fsync)

    def _spool_folder(self, stream: str) -> str:
        root = Path(self._folder)
        folder = root / "spool" / folder_name(stream)
        if not folder.is_dir():
            for part in (folder.parent, folder) if root.is_dir() else (root, folder.parent, folder):
                make_folder(part)
        return str(folder)

    @property
    def _folder(self) -> str:
        """The checkpoint folder; a temporary one is made when it is first needed."""
        if self._checkpoint is None:
            self._checkpoint = str(new_folder("checkpoint"))
        return self._checkpoint

    # -- running ---------------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The Spark session; started when it is first needed."""
        if self._spark is None:
            if self._starting is None:
                for told in self.on_spark_start:
                    told()
                self._starting = SparkStart(self._master, self.config)
            try:
                self._spark = self._starting.wait()
            except Exception:
                self._starting = None  # it may be tried again
                raise
        return self._spark

    @property
    def is_starting_spark(self) -> bool:
        """Whether Spark was asked for, and is not there yet; who waits may be interrupted."""
        return self._spark is None and self._starting is not None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline; made when it is first needed."""
        if self._pipeline is None:
            self._check_open()
            self._pipeline = opened_pipeline(self)
        return self._pipeline

    def start(self) -> None:
        """Run every query that was created; one that cannot be run is dropped.

        Everything is compared with the checkpoint before anything is written.
        """
        try:
            self._check_open()
            if self.catalog.queries:
                start_queries(self)
        except OSError as error:  # a folder where a file should be, a link that leads nowhere ..
            raise root_cause(error) from error

    def _go_on(self) -> None:
        """Start what was created, or wait for `start`; what runs is changed at once."""
        if self.autostart:
            self.start()
        elif self._pipeline is not None and self._pipeline.active:
            change_running(self)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until all finite streams are read to their end; raise what went wrong.

        Returns False when the time-out passed first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.check()
            if self._pipeline is None or self._pipeline.ended:
                self.stop()
                self.check()  # the last batch may have failed to reach its sinks
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(0.02)

    def await_idle(self, timeout: float | None = None) -> list[str]:
        """Wait until everything that is there now has been taken (Spark's availableNow).

        Returns a sentence for each query whose rows wait for time, which says what they wait for.
        When the time-out, in seconds, passes first, a `TimeoutError` is raised.
        """
        if self._pipeline is not None:
            try:
                self._pipeline.await_idle(timeout)
            finally:
                self.check()
        return self.waits()

    def waits(self) -> list[str]:
        """Say of each query that runs which rows wait for time, and what would release them."""
        told = ((handle.name, handle.status().get("waits")) for handle in self.handles())
        return [f"query {name}: {text}" for name, text in told if text is not None]

    def status(self) -> dict[str, Any]:
        """Return how the session does: batches, rows that came, each query, and the lane.

        ``lane`` is how many important rows were answered beside the batches and how soon (seconds,
        by priority), how many wait, whether the lane runs and if not why; None: no stream that is
        read has priorities.
        """
        pipeline = self._pipeline
        answer: dict[str, Any] = {"batch": -1, "batches": 0, "batch_seconds": 0.0, "rows": 0}
        answer |= {"rows_per_second": 0.0, "lane": None}
        if pipeline is not None:
            seen, lane = pipeline.observation, pipeline.lane_state()
            answer |= {
                "batch": seen.batch,
                "batches": seen.batches,
                "batch_seconds": seen.batch_seconds,
                "rows": seen.arrived,
                "rows_per_second": seen.rate_in,
                "lane": None if lane is None else lane.described(),
            }
        return answer | {"queries": {handle.name: handle.status() for handle in self.handles()}}

    def check(self) -> None:
        """Raise what ended the pipeline, if it failed."""
        failure = None if self._pipeline is None else self._pipeline.failure()
        if failure is not None:
            raise root_cause(failure) from shown_cause(failure)

    def stop(self) -> None:
        """Finish the batch under way and stop; `start` goes on."""
        if self._pipeline is not None:
            self._pipeline.stop()

    def close(self) -> None:
        """Stop, close sinks, and remove a temporary checkpoint. A given Spark is left alone."""
        if self._closed:
            return
        self._closed = True
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline.delivery.close()
        if self._temporary and self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("a session must be open to be used, but it is closed; make a new one")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_QUESTION = re.compile(r"\s*(\(|(select|with)\b)", re.IGNORECASE)

__all__ = ["PenstockError", "QueryHandle", "Session"]
