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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import algebra, cql
from penstock.algebra import Node
from penstock.asking.checkpoints import CheckpointView
from penstock.asking.encoding import Declared
from penstock.asking.onetime import Snapshot, can_answer
from penstock.catalog import (
    Catalog,
    QueryDef,
    SinkDef,
    StreamDef,
    TableDef,
    ViewDef,
    folder_name,
)
from penstock.cql.binding import statements
from penstock.cql.grammar.syntax import Parsed
from penstock.cql.grammar.syntax import Query as QuerySyntax
from penstock.cql.render import duration_text, in_timestamps
from penstock.errors import ConfigError, PenstockError, QueryError, StateError, shown_cause
from penstock.expr import functions
from penstock.expr.types import type_name
from penstock.masking import masked, shown_option
from penstock.model import MIN_TIME, TIMESTAMP, Field, Schema
from penstock.physical.book import BookedQuery
from penstock.physical.packing import Progress
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import reject_outlet
from penstock.runs.files import make_folder
from penstock.runs.manifest import Manifest
from penstock.runs.reading import CheckpointReader
from penstock.session.builder import Relation
from penstock.session.explaining import digests_of, explanation
from penstock.settings import Config
from penstock.sinks import MemorySink, Sink, SinkRequest, check_sink, delivery_mode, open_sink
from penstock.sinks.delivery import Delivery, Outlet
from penstock.sources.formats import check_stream, is_finite, is_pushed
from penstock.sources.spool import Spool
from penstock.sources.table_formats import check_table, whole_table
from penstock.spark.engine import own_session
from penstock.spark.failures import root_cause
from penstock.spark.metrics import state_bytes, state_rows
from penstock.spark.pipeline import Pipeline
from penstock.spark.tables import read_whole
from penstock.temporary import new_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Session:
    """Declares streams and runs continuous queries.

    ``spark`` is a session of yours; without it an embedded Spark is started when it is first
    needed. ``checkpoint`` is the folder that lets a later session go on where this one stopped;
    without it a temporary one is used.  With ``autostart`` a query runs as soon as it is created.
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
        self.config = Config(settings)
        self.catalog = Catalog(remembered=_remembered(checkpoint))
        self.autostart = autostart
        self.allow_change = allow_change
        self._forgotten: set[str] = set()
        self._spark = spark
        self._master = master
        self._temporary = checkpoint is None
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        self._closed = False
        self._pipeline: Pipeline | None = None
        self._delivery: Delivery | None = None
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
        """
        result: Any = None
        runs = False
        for parsed in cql.parse_script(text):
            if one_time and self._can_answer(parsed):
                result = self.ask(parsed)
                continue
            statement = cql.bind(parsed, self.catalog)
            result = self.execute(statement)
            runs |= isinstance(result, QueryHandle) and not isinstance(statement, statements.Pause)
        if self.autostart and runs:
            self.start()
        return result

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
        match statement:
            case statements.Create(definition, if_not_exists):
                return self._create(definition, if_not_exists)
            case statements.Drop(kind, name, if_exists):
                return self._drop(kind, name, if_exists)
            case statements.Pause(name):
                return self.query(name).pause()
            case statements.Resume(name):
                return self.query(name).resume()
            case statements.Show(kind):
                return self._show(kind)
            case statements.Describe(name, kind):
                return self._describe(name, kind)
            case statements.Explain(level, node, name):
                return self._explain(level, node, name)
            case statements.Ask(parsed):
                return self.ask(parsed)
            case statements.Select(node, sql):
                self._unnamed += 1
                return self._create(QueryDef(f"select_{self._unnamed}", node, None, sql), False)

    def stream(self, name: str) -> Relation:
        """Begin a query in Python: a declared stream, table or view."""
        return Relation(self.catalog.relation(name), self)

    table = view = stream

    def register(
        self, name: str, node: Node, into: str | None = None, keep: int | None = None
    ) -> QueryHandle:
        """Add a query, or with ``keep`` a view that is kept, built in Python, and start it."""
        self._check_open()
        kept = keep is not None
        made = ViewDef(name, node, keep=keep) if kept else QueryDef(name, node, into)
        handle: QueryHandle = self._create(made, False)
        if self.autostart:
            self.start()
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
        self._callbacks[sink.lower()] = function

    # -- memory streams --------------------------------------------------------------------------

    def push(self, stream: str, rows: Any) -> None:
        """Add rows (tuples, dicts, an Arrow table or a pandas frame) to a memory stream."""
        self._spool(stream).push(rows)

    def finish(self, stream: str) -> None:
        """End a memory stream: no more rows will come."""
        self._spool(stream).finish()

    def _spool(self, stream: str) -> Spool:
        self._check_open()
        definition: StreamDef = self.catalog.get("stream", stream)
        if not is_pushed(definition):
            raise QueryError(
                f"rows can be pushed to a stream USING memory, but stream '{stream}' is USING "
                f"{definition.format}"
            )
        return Spool(self._spool_folder(definition.name), definition.schema, self.config["fsync"])

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
            self._spark = own_session(self._master, self.config)
        return self._spark

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline; made when it is first needed."""
        if self._pipeline is None:
            self._check_open()
            checkpoint = Checkpoint(
                self._folder, self.config["fsync"], self.config["retain.manifests"]
            )
            checkpoint.lock()  # before Spark is started, which takes long
            try:
                failpoints.passing("lock-taken")
                retained = checkpoint.open()
                if retained:
                    _check_settings(checkpoint, retained[-1], self.config)
                self._delivery = Delivery(checkpoint.found)
                self._pipeline = Pipeline(
                    self.spark,
                    self.config,
                    checkpoint,
                    retained,
                    {},
                    {},
                    self._delivery,
                    self._spool_folder,
                    catalog=self.catalog,
                )
            except BaseException:
                checkpoint.unlock()
                raise
        return self._pipeline

    def newest_manifest(self) -> Manifest | None:
        """Return what is true after the last batch, of this session or the one before it."""
        return _newest(self._checkpoint) if self._pipeline is None else self._pipeline.manifest

    def start(self) -> None:
        """Run every query that was created; one that cannot be run is dropped.

        Everything is compared with the checkpoint before anything is written.
        """
        try:
            self._start()
        except OSError as error:  # a folder where a file should be, a link that leads nowhere ..
            raise root_cause(error) from error

    def _start(self) -> None:
        self._check_open()
        if not self.catalog.queries:
            return
        pipeline = self.pipeline
        pipeline.streams.update({d.name: d for d in self.catalog.streams.values()})
        pipeline.tables.update({d.name: d for d in self.catalog.tables.values()})
        fresh = {
            name: definition
            for name, definition in self.catalog.queries.items()
            if definition.name not in pipeline.book.queries
        }
        for name in pipeline.missing_queries():
            if name.lower() in self._forgotten:
                pipeline.drop(name)
        self._forgotten.clear()
        waiting: dict[str, list[str]] = {}
        try:
            for name, definition in fresh.items():
                waiting[name] = self._checked(name, definition)
            self._check_missing({definition.name for definition in fresh.values()})
            for name, definition in fresh.items():
                handle = self._handles[name]
                with self._undone(name, waiting[name]):
                    pipeline.delivery.begin(waiting[name])
                del waiting[name]
                pipeline.add(handle.booked())
                if handle.paused:
                    pipeline.pause(definition.name)
        except BaseException:  # the others are opened again at the next start
            pipeline.delivery.forget(outlet for outlets in waiting.values() for outlet in outlets)
            raise
        pipeline.start()

    def _checked(self, name: str, definition: QueryDef) -> list[str]:
        """Compare a query, its streams and its sinks with the checkpoint; return its outlets."""
        handle = self._handles[name]
        opened: list[str] = []
        with self._undone(name, opened):
            self._check_streams(definition)
            self.pipeline.check(handle.booked())
            for outlet in self._open_outlets(definition, handle):
                opened.append(outlet)
            self.pipeline.check_sinks(opened, self.allow_change)
        return opened

    @contextmanager
    def _undone(self, name: str, opened: Iterable[str]) -> Iterator[None]:
        """Drop a query, and close its outlets, when something is refused."""
        try:
            yield
        except (PenstockError, OSError):
            assert self._delivery is not None
            self._delivery.forget(opened)
            self._drop("query", name, if_exists=True)
            raise

    def _check_streams(self, query: QueryDef) -> None:
        """Check that the streams of a query are read as the checkpoint knows them."""
        for name in sorted(algebra.streams_of(query.plan)):
            changed = self.pipeline.changed_stream(self.catalog.get("stream", name))
            if changed is not None and not self.allow_change:
                raise StateError(
                    f"the stream {name} must be read as the checkpoint {self._folder} was made "
                    f"with, but {changed}: answers would be of two kinds. Nothing was changed: put "
                    f"it back, use another --checkpoint, or go on by --allow-change"
                )

    def _check_missing(self, fresh: set[str]) -> None:
        """Check that no query of the checkpoint is gone without a word."""
        for name in self.pipeline.missing_queries():
            if name in fresh:
                continue
            if self.allow_change:
                self.pipeline.drop(name)
                continue
            quoted = name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
            raise StateError(
                f"the checkpoint {self._folder} runs query '{name}', which is not declared any "
                f"more: without a word its answers would have a gap when it comes back. Nothing "
                f"was changed: declare it, write DROP QUERY IF EXISTS {quoted} (or DROP "
                f"MATERIALIZED VIEW IF EXISTS {quoted}), or go on by --allow-change (in Python, "
                f"Session(allow_change=True); or "
                f"declare all queries before the first one starts, with Session(autostart=False))"
            )

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

    def await_idle(self) -> None:
        """Wait until everything that is there now has been taken (Spark's availableNow)."""
        if self._pipeline is not None:
            try:
                self._pipeline.await_idle()
            finally:
                self.check()

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
        if self._delivery is not None:
            self._delivery.close()
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

    # -- the statements one by one ---------------------------------------------------------------

    def _create(self, definition: Any, if_not_exists: bool) -> Any:
        kind = type(definition).__name__.removesuffix("Def").lower()
        if if_not_exists and definition.name.lower() in self.catalog.of_kind(kind):
            return self._handles.get(definition.name.lower()) if kind in ("query", "view") else None
        if isinstance(definition, StreamDef):
            check_stream(definition)
        if isinstance(definition, TableDef):
            check_table(definition)
        if isinstance(definition, SinkDef):
            check_sink(definition)
        if isinstance(definition, QueryDef):
            return self._create_query(definition)
        self.catalog.add(definition)
        if isinstance(definition, ViewDef) and definition.keep is not None:
            return self._handle(self.catalog.get("query", definition.name), "kept")
        return None

    def _create_query(self, definition: QueryDef) -> QueryHandle:
        sink = None
        if definition.sink is not None:
            sink = self.catalog.get("sink", definition.sink)
        streams = algebra.streams_of(definition.plan)
        if not streams:
            raise QueryError(
                f"a continuous query must read at least one stream, but '{definition.name}' reads "
                f"none"
            )
        self.catalog.add(definition)
        return self._handle(definition, self._mode(definition, sink))

    def _handle(self, definition: QueryDef, mode: str) -> QueryHandle:
        handle = QueryHandle(self, definition, mode, self._has_timestamps(definition.plan))
        self._handles[definition.name.lower()] = handle
        return handle

    def _mode(self, definition: QueryDef, sink: SinkDef | None) -> str:
        if algebra.is_stream(definition.plan):
            return "stream"
        if sink is None:
            return "view"
        return delivery_mode(sink)

    def _has_timestamps(self, node: Node) -> bool:
        name = next(iter(algebra.streams_of(node)))
        definition: StreamDef = self.catalog.get("stream", name)
        return bool(definition.schema[definition.time].type == TIMESTAMP)

    def _open_outlets(self, definition: QueryDef, handle: QueryHandle) -> Iterator[str]:
        """Open the sinks that a query needs and nobody has opened; yield their outlets."""
        run, ledger = self.pipeline.checkpoint.run, Path(self._folder) / "delivered"
        delivery = self.pipeline.delivery
        for way in self.ways(definition, handle.mode):
            if way.key in delivery.rejects:
                continue
            if delivery.has(way.outlet):
                raise ConfigError(
                    f"the name of a query must differ from '{way.outlet}', under which rows that a "
                    f"stream sets aside are delivered; choose another name"
                )
            request = SinkRequest(
                way.outlet,
                way.mode,
                way.schema,
                spark=self.spark,
                ledger=ledger,
                callback=self._callbacks.get((way.sink or "").lower()),
                fsync=self.config["fsync"],
                timestamps=way.timestamps,
                run=run,
            )
            target = None if way.sink is None else self.catalog.get("sink", way.sink)
            sink = open_sink(target, request)
            if sink.place is not None and _within(sink.place, Path(self._folder)):
                sink.close()
                raise ConfigError(
                    f"the sink {way.sink} must not be inside the checkpoint {self._folder}, whose "
                    f"folders are swept; choose another path"
                )
            outlet = Outlet(way.schema, way.mode, way.timestamps, sink)
            if way.key is None:
                handle.sink = sink
                delivery.outlets[way.outlet] = outlet
            else:
                delivery.rejects[way.key] = outlet
            yield way.outlet

    def ways(self, definition: QueryDef, mode: str) -> Iterator[Way]:
        """Yield where the answers of a query go, and the rows that its streams set aside."""
        if mode != "kept":
            stamps = self._has_timestamps(definition.plan)
            yield Way(definition.name, definition.sink, mode, definition.plan.schema, stamps)
        for name in sorted(algebra.streams_of(definition.plan)):
            stream: StreamDef = self.catalog.get("stream", name)
            stamps = bool(stream.schema[stream.time].type == TIMESTAMP)
            for why, target, schema in (
                ("late", stream.late, stream.schema),
                ("rejected", stream.deadletter, REJECTED_SCHEMA),
            ):
                if target is not None:
                    outlet = reject_outlet(name, why)
                    yield Way(outlet, target, "rows", schema, stamps, (name, why))

    def _drop(self, kind: str, name: str, if_exists: bool) -> None:
        unknown = name.lower() not in self.catalog.of_kind(kind)
        if unknown and kind in ("query", "view") and name.lower() in self.catalog.remembered:
            self._forgotten.add(name.lower())
            return
        if if_exists and unknown:
            return
        kept = kind == "view" and self.catalog.get("view", name).keep is not None
        self.catalog.remove(kind, name)
        if kind == "stream" and self._delivery is not None:
            aside = [reject_outlet(*key) for key in self._delivery.rejects]
            mine = {reject_outlet(name, why).lower() for why in ("late", "rejected")}
            dropped = [outlet for outlet in aside if outlet.lower() in mine]
            self._delivery.forget(dropped)
            if self._pipeline is not None:
                self._pipeline.end_outlets(dropped)
        if kind == "query" or kept:
            handle = self._handles.pop(name.lower())
            if self._pipeline is not None and handle.name in self._pipeline.book.queries:
                self._pipeline.drop(handle.name)
            outlets = {} if self._delivery is None else self._delivery.outlets
            if handle.name in outlets:
                outlets.pop(handle.name).sink.close()

    def _show(self, kind: str) -> pa.Table:
        if kind == "functions":
            names = sorted(functions.FUNCTIONS)
            return pa.table({"function": names})
        if kind == "queries":
            rows = [h.status() for h in self._handles.values()]
            columns = ("query", "state", "since", "rows", "sink")
            return pa.table({c: [str(r[c]) for r in rows] for c in columns})
        singular = kind.removesuffix("s")
        found = self.catalog.of_kind(singular).values()
        if singular == "view":
            kept = [None if d.keep is None else _keep_text(d) for d in found]
            return pa.table(
                {
                    "view": [d.name for d in found],
                    "kept": pa.array(kept, pa.string()),
                    "sql": [masked(d.sql) for d in found],
                }
            )
        return pa.table({singular: [d.name for d in found], "format": [d.format for d in found]})

    def _describe(self, name: str, kind: str) -> pa.Table:
        definition = self.catalog.get(kind, name)
        if kind == "sink":
            options = definition.options
            shown = [shown_option(definition.format, k, v) for k, v in options.items()]
            return pa.table({"option": list(options), "value": pa.array(shown, pa.string())})
        schema = definition.schema if kind in ("stream", "table") else definition.plan.schema
        return pa.table(
            {"column": list(schema.names), "type": [type_name(t) for t in schema.types]}
        )

    def _explain(self, level: str, node: Node, name: str | None) -> str:
        return masked("\n".join(explanation(self, level, node, name or "the query")))


def _within(place: Path, folder: Path) -> bool:
    """Whether a file or folder is the other one, or lies in it, wherever links lead."""
    return place.resolve().is_relative_to(folder.resolve())


def _newest(checkpoint: str | os.PathLike[str] | None) -> Manifest | None:
    """Return the newest manifest of a checkpoint; what is damaged is said later."""
    with suppress(StateError):
        return None if checkpoint is None else CheckpointReader(checkpoint).newest()
    return None


def _remembered(checkpoint: str | os.PathLike[str] | None) -> frozenset[str]:
    """Return the names of the queries that a checkpoint runs."""
    newest = _newest(checkpoint)
    return frozenset() if newest is None else frozenset(n.lower() for n in newest.queries)


def _check_settings(checkpoint: Checkpoint, manifest: Manifest, config: Config) -> None:
    """Check the settings that a checkpoint keeps for ever."""
    if config["lifetime"] != manifest.lifetime:
        raise StateError(
            f"a checkpoint keeps the lifetime method that it was made with: {checkpoint.folder} "
            f"has {manifest.lifetime}, got --set lifetime={config['lifetime']}; give it that "
            f"or use another --checkpoint"
        )
    if config["shards"] not in (0, manifest.shards):
        raise StateError(
            f"a checkpoint keeps the number of shards it was made with: {checkpoint.folder} has "
            f"{manifest.shards}, got --set shards={config['shards']}; leave it out or use "
            f"another --checkpoint"
        )


@dataclass(frozen=True)
class Way:
    """The way of rows out: an outlet, its sink (None: memory) and what the sink is given.

    ``key`` are stream and reason of rows that are set aside, None for answers.
    """

    outlet: str
    sink: str | None
    mode: str
    schema: Schema
    timestamps: bool
    key: tuple[str, str] | None = None


_QUESTION = re.compile(r"\s*(\(|(select|with)\b)", re.IGNORECASE)

REJECTED_SCHEMA = Schema(
    (
        Field("position", pa.int64()),
        Field("reason", pa.string()),
        Field("raw", pa.string()),
    )
)
"""What a dead-letter sink gets: the row's place in the source, what is wrong, its text."""


def _keep_text(view: ViewDef) -> str:
    """Return for how long the past of a materialized view stays."""
    if not view.keep:
        return "the last instant"
    return duration_text(view.keep, in_timestamps(view.plan))


@dataclass
class QueryHandle:
    """A continuous query of a session."""

    session: Session
    definition: QueryDef
    mode: str
    timestamps: bool
    sink: Sink | None = None
    paused: bool = False

    @property
    def name(self) -> str:
        return self.definition.name

    def booked(self) -> BookedQuery:
        """Return the query as the book takes it."""
        made = self.definition
        return BookedQuery(made.name, made.plan, self.mode, made.keep or 0, paused=self.paused)

    def start(self) -> QueryHandle:
        """Run the session's queries, this one among them."""
        self.session.start()
        return self

    def pause(self) -> QueryHandle:
        """Stop working on the query from the next batch on; the others go on."""
        self.paused = True
        if self._running():
            self.session.pipeline.pause(self.name)
        return self

    def resume(self) -> QueryHandle:
        """Work on it again: it begins anew; `status` says from which time its answers hold."""
        self.paused = False
        if self._running():
            self.session.pipeline.resume(self.name)
        return self

    def stop(self) -> None:
        """Drop the query; the others go on."""
        self.session._drop("query", self.name, if_exists=True)

    def explain(self, level: str = "all") -> str:
        """Return the logical, the optimized and the physical plan as text."""
        lines = explanation(self.session, level, self.definition.plan, self.name)
        return masked("\n".join(lines))

    def rows(self) -> pa.Table:
        """Return what a memory sink holds: the current snapshot of a view, else all rows so far.

        Of a materialized view it is the newest snapshot.
        """
        if self.mode == "kept":
            name = self.name.replace('"', '""')
            answer: Snapshot = self.session.query(f'SELECT * FROM "{name}"')  # noqa: S608 (quoted)
            return answer.to_arrow()
        if not isinstance(self.sink, MemorySink):
            raise QueryError(
                f"rows are kept only by a memory sink, but query '{self.name}' goes into "
                f"'{self.definition.sink}'"
            )
        return self.sink.table()

    def latest(self) -> DataFrame:
        """Return the newest answer as a Spark DataFrame."""
        return self.session.spark.createDataFrame(self.rows())

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the session's finite streams have ended; False if the time-out passed."""
        return self.session.await_end(timeout)

    def status(self) -> dict[str, Any]:
        """Return state, since when answers hold, rows, state size, heartbeat, load."""
        pipeline = self.session._pipeline
        answer: dict[str, Any] = {
            "query": self.name,
            "state": "paused" if self.paused else "created",
            "since": None,
            "rows": 0,
            "sink": "kept" if self.mode == "kept" else self.definition.sink or "memory",
        }
        if pipeline is None or self.name not in pipeline.book.queries:
            return answer
        running = pipeline.book.queries[self.name]
        active = "running" if pipeline.active else "ended" if pipeline.ended else "stopped"
        if pipeline.failure() is not None:
            active = "failed"
        digests = digests_of(pipeline, self.name)
        beats = {
            s: Progress.of(pipeline.manifest.progress.get(s)).heartbeat(pipeline.streams[s].slack)
            for s in running.streams
        }
        answer |= {
            "state": "paused" if running.paused else active,
            "since": running.since,
            "rows": pipeline.metrics.rows_out.get(self.name, 0),
            "rows_per_second": pipeline.metrics.rate_out(self.name),
            "state_rows": state_rows(pipeline.manifest, digests),
            "state_bytes": state_bytes(pipeline.manifest, digests),
            "heartbeat": min(beats.values(), default=MIN_TIME),
            "finite": all(is_finite(pipeline.streams[s]) for s in running.streams),
            "waiting": {
                s: None if (found := pipeline.waiting(s)) is None else asdict(found)
                for s in sorted(running.streams)
            },
            "hot_shards": [asdict(h) for h in pipeline.hot_shards() if h.digest in digests],
            "split_keys": [asdict(s) for s in pipeline.split_keys() if s.digest in digests],
        }
        return answer

    def _running(self) -> bool:
        pipeline = self.session._pipeline
        return pipeline is not None and self.name in pipeline.book.queries


__all__ = ["PenstockError", "QueryHandle", "Session"]
