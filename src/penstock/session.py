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
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import algebra, cql
from penstock.algebra import Node
from penstock.builder import Relation
from penstock.catalog import Catalog, QueryDef, SinkDef, StreamDef, TableDef, ViewDef
from penstock.checkpoints import CheckpointView
from penstock.config import Config
from penstock.cql import statements
from penstock.cql.render import duration_text, in_timestamps
from penstock.cql.syntax import Parsed
from penstock.cql.syntax import Query as QuerySyntax
from penstock.encoding import SECRET, Declared
from penstock.errors import PenstockError, QueryError, StateError, without_passwords
from penstock.expr import functions
from penstock.expr.types import type_name
from penstock.model import MIN_TIME, TIMESTAMP, Field, Schema
from penstock.onetime import Snapshot, can_answer
from penstock.optimizer import optimize
from penstock.physical import explain as physical_explain
from penstock.physical.multiway import probe_orders
from penstock.physical.packing import Progress
from penstock.physical.planner import Query, plan
from penstock.spark.delivery import Delivery, Outlet
from penstock.spark.engine import own_session
from penstock.spark.failures import root_cause
from penstock.spark.metrics import state_bytes, state_rows
from penstock.spark.pipeline import Pipeline
from penstock.spark.sinks import MemorySink, Sink, check_sink, delivery_mode, open_sink
from penstock.spark.sources import check_stream, check_table, is_finite
from penstock.spark.spool import Spool
from penstock.spark.tables import whole_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Session:
    """Declares streams and runs continuous queries.

    ``spark`` is a session of yours; without it an embedded Spark is started when it is first
    needed. ``checkpoint`` is the folder that lets a later session go on where this one stopped;
    without it a temporary one is used.  With ``autostart`` a query runs as soon as it is created.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        autostart: bool = True,
    ) -> None:
        self.config = Config(settings)
        self.catalog = Catalog()
        self.autostart = autostart
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
        return whole_table(definition, lambda: self.spark)

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
        if definition.format.lower() != "memory":
            raise QueryError(
                f"rows can be pushed to a stream USING memory, but stream '{stream}' is USING "
                f"{definition.format}"
            )
        return Spool(self._spool_folder(definition.name), definition.schema, self.config["fsync"])

    def _spool_folder(self, stream: str) -> str:
        folder = Path(self._folder, "spool", stream)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    @property
    def _folder(self) -> str:
        """The checkpoint folder; a temporary one is made when it is first needed."""
        if self._checkpoint is None:
            self._checkpoint = tempfile.mkdtemp(prefix="penstock-")
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
            self._delivery = Delivery(str(Path(self._folder).absolute() / "segments"))
            self._pipeline = Pipeline(
                self.spark,
                self.config,
                self._folder,
                {},
                {},
                self._delivery,
                self._spool_folder,
                catalog=self.catalog,
            )
        return self._pipeline

    def start(self) -> None:
        """Run every query that was created; one that cannot be run is dropped."""
        self._check_open()
        if not self.catalog.queries:
            return
        pipeline = self.pipeline
        pipeline.streams.update({d.name: d for d in self.catalog.streams.values()})
        pipeline.tables.update({d.name: d for d in self.catalog.tables.values()})
        for name, definition in list(self.catalog.queries.items()):
            if definition.name not in pipeline.queries:
                handle = self._handles[name]
                try:
                    keep = definition.keep or 0
                    pipeline.check(definition.name, definition.plan, handle.mode, keep)
                    self._open_outlets(definition, handle)
                    pipeline.add(definition.name, definition.plan, handle.mode, keep)
                    if handle.paused:
                        pipeline.pause(definition.name)
                except PenstockError:
                    self._drop("query", name, if_exists=True)
                    raise
        pipeline.start()

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
            raise root_cause(failure) from failure

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

    def _open_outlets(self, definition: QueryDef, handle: QueryHandle) -> None:
        _ = self.pipeline
        assert self._delivery is not None
        schema, mode = definition.plan.schema, handle.mode
        if mode != "kept":
            sink = self._open(definition.sink, definition.name, mode, schema, handle.timestamps)
            handle.sink = sink
            self._delivery.outlets[definition.name] = Outlet(schema, mode, handle.timestamps, sink)
        for name in algebra.streams_of(definition.plan):
            stream: StreamDef = self.catalog.get("stream", name)
            timestamps = bool(stream.schema[stream.time].type == TIMESTAMP)
            for why, target, fields in (
                ("late", stream.late, stream.schema),
                ("rejected", stream.deadletter, REJECTED_SCHEMA),
            ):
                if target is not None and (name, why) not in self._delivery.rejects:
                    opened = self._open(target, f"{name}-{why}", "rows", fields, timestamps)
                    outlet = Outlet(fields, "rows", timestamps, opened)
                    self._delivery.rejects[name, why] = outlet

    def _open(
        self, name: str | None, query: str, mode: str, schema: Schema, timestamps: bool
    ) -> Sink:
        definition = None if name is None else self.catalog.get("sink", name)
        return open_sink(
            definition,
            query,
            mode,
            schema,
            spark=self.spark,
            ledger=Path(self._folder) / "delivered",
            callback=self._callbacks.get((name or "").lower()),
            fsync=self.config["fsync"],
            timestamps=timestamps,
        )

    def _drop(self, kind: str, name: str, if_exists: bool) -> None:
        if if_exists and name.lower() not in self.catalog.of_kind(kind):
            return
        kept = kind == "view" and self.catalog.get("view", name).keep is not None
        self.catalog.remove(kind, name)
        if kind == "query" or kept:
            handle = self._handles.pop(name.lower())
            if self._pipeline is not None and handle.name in self._pipeline.queries:
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
                    "sql": [d.sql for d in found],
                }
            )
        return pa.table({singular: [d.name for d in found], "format": [d.format for d in found]})

    def _describe(self, name: str, kind: str) -> pa.Table:
        definition = self.catalog.get(kind, name)
        if kind == "sink":
            options = {
                k: "***" if SECRET.search(k) else without_passwords(str(v))
                for k, v in definition.options.items()
            }
            return pa.table({"option": list(options), "value": [str(v) for v in options.values()]})
        schema = definition.schema if kind in ("stream", "table") else definition.plan.schema
        return pa.table(
            {"column": list(schema.names), "type": [type_name(t) for t in schema.types]}
        )

    def _explain(self, level: str, node: Node, name: str | None) -> str:
        return "\n".join(_explanation(self, level, node, name or "the query"))


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


def _explanation(session: Session, level: str, node: Node, name: str) -> list[str]:
    levels = ("logical", "optimized", "physical", "all")
    if level not in levels:
        raise QueryError(f"the level of EXPLAIN must be one of {', '.join(levels)}, got '{level}'")
    lines = []
    plans = {d.name: d.plan for d in session.catalog.queries.values()} | {name: node}
    if session.config["rules"]:
        plans = optimize(plans)
    handles = session._handles
    whole = None if session._pipeline is None else session._pipeline.last_plan
    if whole is not None and name in {a.query for a in whole.answers}:
        plans[name] = session.pipeline.optimized(name)
    else:
        whole = None  # not running: what it would be beside the others
    if level in ("logical", "all"):
        lines += ["logical plan", cql.render_plan(node), ""]
    if level in ("optimized", "all"):
        lines += ["optimized plan", cql.render_plan(plans[name]), ""]
    if level in ("physical", "all"):
        if whole is None:
            queries = [
                Query(
                    n,
                    p,
                    handles[n.lower()].mode if n.lower() in handles else "view",
                    keep=_keep_of(session, n),
                )
                for n, p in plans.items()
            ]
            known = {} if session._pipeline is None else session._pipeline.measured()
            whole = plan(queries, session.config, {}, known)
        shards = session.config["shards"] or _cores(session)
        automatic = session.config["join.split"] == 0
        lines += ["physical plan", physical_explain.explain(whole, name, shards, automatic)]
        if session._pipeline is not None:
            digests = _digests(session._pipeline, name)
            lines += [str(h) for h in session._pipeline.hot_shards() if h.digest in digests]
            lines += [str(s) for s in session._pipeline.split_keys() if s.digest in digests]
            lines += probe_orders(whole, session._pipeline.manifest.states, digests)
        lines.append("")
    return lines


def _keep_of(session: Session, name: str) -> int:
    found = session.catalog.queries.get(name.lower())
    return 0 if found is None else found.keep or 0


def _cores(session: Session) -> int:
    if session._pipeline is not None:
        return session._pipeline.shards
    return os.cpu_count() or 1


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
        return "\n".join(_explanation(self.session, level, self.definition.plan, self.name))

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
        if pipeline is None or self.name not in pipeline.queries:
            return answer
        running = pipeline.queries[self.name]
        active = "running" if pipeline.active else "ended" if pipeline.ended else "stopped"
        if pipeline.failure() is not None:
            active = "failed"
        digests = _digests(pipeline, self.name)
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
        return pipeline is not None and self.name in pipeline.queries


def _digests(pipeline: Pipeline, query: str) -> set[str]:
    """Return the digests of the operators that a query uses; a running batch is not waited for."""
    whole = pipeline.last_plan
    found: set[str] = set()
    if whole is None:
        return found
    todo = [a.node for a in whole.answers if a.query == query]
    while todo:
        node = whole.nodes[todo.pop()]
        if node.digest not in found:
            found.add(node.digest)
            todo.extend(i.producer for i in node.inputs)
    return found


__all__ = ["PenstockError", "QueryHandle", "Session"]
