"""The pipeline: one Spark streaming query that runs every continuous query of a session.

Its ``foreachBatch`` runs one Spark job per micro-batch: pack, exchange, stage, exchange, stage ...
The order of a batch is: tasks write run files under new names, the driver commits one manifest,
sinks publish, Spark commits.  A batch that Spark replays finds its manifest and goes straight to
the sinks.

The plan lives here, in the driver, so queries are added, paused, resumed and dropped between two
batches.  Only a new *stream* needs the Spark query to be opened again, on the same checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.asking.encoding import Declared
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.errors import StateError
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.key_loads import Heat, Reached
from penstock.physical.key_splits import SplitKeys, routes, split_keys
from penstock.physical.multiway import measured
from penstock.physical.packing import Progress
from penstock.physical.parcels import SPARK_SCHEMA, Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.reports import read_report
from penstock.physical.stage import source_beats
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import book_of, entered
from penstock.runs.holder_numbers import check_shards
from penstock.runs.manifest import Manifest
from penstock.runs.reading import file_name
from penstock.settings import Config
from penstock.sinks.delivery import Delivery
from penstock.sources.admission import Admission
from penstock.sources.base import Backlog, Waiting
from penstock.sources.formats import backlog_of, ends_by_itself, is_finite, is_pushed
from penstock.sources.spool import SpoolFiles
from penstock.sources.stream_forms import described, difference
from penstock.spark.engine import pipeline_session
from penstock.spark.exchange import share_states
from penstock.spark.failures import root_cause
from penstock.spark.metrics import Hot, Metrics, arrived, arrived_by_stream
from penstock.spark.pushdown import push_down
from penstock.spark.sources import SPARK_ERRORS, open_streams
from penstock.spark.tables import (
    check_contents,
    contents_frame,
    contents_of,
    new_tables,
    packed_table,
)
from penstock.spark.tasks import Job, fingerprint_task, pack_task, stage_task


@dataclass
class Pipeline:
    """All queries of one session on one checkpoint, which is locked and opened.

    ``retained`` are its manifests.  ``catalog`` is what readers of the checkpoint are told.
    """

    spark: SparkSession
    config: Config
    checkpoint: Checkpoint
    retained: Sequence[Manifest]
    streams: dict[str, StreamDef]
    tables: dict[str, TableDef]
    delivery: Delivery
    spool: Callable[[str], str]
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.folder = str(self.checkpoint.folder)
        self._session = pipeline_session(self.spark, self.folder)
        self._lock = threading.RLock()
        self.manifest = self.retained[-1] if self.retained else self._empty()
        self.shards = self.manifest.shards
        self.book = QueryBook(self.config)
        self._delivered = book_of(self.manifest)
        self._settled = False
        self._undelivered = False
        retained = [arrived_by_stream(manifest) for manifest in self.retained] or [{}]
        kept = max(self.config["retain.manifests"], 1) + 1
        self._reached: deque[dict[str, int]] = deque(retained, maxlen=kept)
        self._spools: dict[str, SpoolFiles] = {}
        self._plan: PhysicalPlan | None = None
        self.last_plan: PhysicalPlan | None = None
        self._opened: frozenset[str] = frozenset()
        self._stream_query: StreamingQuery | None = None
        self._heard_at: dict[str, float] = {}
        self._backlogs: dict[str, Backlog] = {}
        self.metrics = Metrics()
        self._heat = Heat()
        self.admission = Admission(
            self.folder, self.config["batch.seconds"], self.config["batch.rows"]
        )
        self.error: BaseException | None = None
        self._stopping = False
        self._told: tuple[list[object], dict[str, Any]] = ([], {})

    def _empty(self) -> Manifest:
        """Return what is true before the first batch."""
        shards = self.config["shards"] or self.spark.sparkContext.defaultParallelism
        check_shards(shards)
        states: list[dict[str, Any]] = [{} for _ in range(shards)]
        run, lifetime = self.checkpoint.run, self.config["lifetime"]
        return Manifest(run=run, shards=shards, lifetime=lifetime, states=states)

    # -- sinks -----------------------------------------------------------------------------------

    def check_sinks(self, names: Iterable[str], allow_change: bool) -> None:
        """Ask sinks how far they are, before anything is written; see `runs.deliveries`."""
        with self._lock:
            told = self.delivery.check(names, self._delivered, self.retained, allow_change)
            self._delivered |= told

    # -- queries ---------------------------------------------------------------------------------

    def check(self, query: BookedQuery) -> None:
        """Check that a query which the checkpoint knows is still the same."""
        known = self._known(query.name)
        if known is not None and known["plan"] != query.signature:
            raise StateError(
                f"query '{query.name}' must be the one that the checkpoint {self.folder} was made "
                f"with, but its text or sink mode has changed; to begin it anew, write DROP QUERY "
                f"IF EXISTS before it, for one run, or use another --checkpoint"
            )

    def _known(self, name: str) -> dict[str, Any] | None:
        return None if name in self.book.dropped else self.manifest.queries.get(name)

    def add(self, query: BookedQuery) -> None:
        """Add a query; it takes part from the next batch on."""
        with self._lock:
            self.check(query)
            self.book.add(query, self._known(query.name))
            self._plan = None
            failpoints.passing("query-added")

    def drop(self, name: str) -> None:
        """Remove a query; its state goes with the next batch."""
        with self._lock:
            self.book.drop(name)
            self.end_outlets([name])
            self._plan = None
            failpoints.passing("query-dropped")

    def end_outlets(self, names: Iterable[str]) -> None:
        """Note that what was delivered to outlets is complete: who has their names next is new."""
        with self._lock:
            for name in names:
                if name in self._delivered:
                    self._delivered[name] = replace(self._delivered[name], ended=True)

    def missing_queries(self) -> list[str]:
        """Return the queries that the checkpoint knows and that nobody has added or dropped."""
        known = self.manifest.queries
        return [n for n in known if n not in self.book.queries and n not in self.book.dropped]

    def changed_stream(self, definition: StreamDef) -> str | None:
        """Say how a stream is read otherwise than the checkpoint knows it; None if it is not."""
        known = self.manifest.streams.get(definition.name)
        return None if known is None else difference(known, described(definition))

    def pause(self, name: str) -> None:
        """Stop working on a query; nothing of it is kept but its name."""
        with self._lock:
            self.book.pause(name)
            self._plan = None

    def resume(self, name: str) -> None:
        """Work on a paused query again: it begins anew with the elements that come from now on."""
        with self._lock:
            self.book.resume(name)
            self._plan = None

    def plan(self) -> PhysicalPlan:
        """Return the plan of all active queries, made when it is first needed after a change."""
        with self._lock:
            if self._plan is None:
                moment = self.moment()
                made = self.book.plan(moment)
                self._check_plan(made, self.book.beginning(moment.batch))
                self._plan = self.last_plan = made
            return self._plan

    def moment(self) -> Moment:
        """Return how things stand after the last batch."""
        whole = self.last_plan
        found = {} if whole is None else measured(whole, self.metrics.node_rows)
        return moment_after(self.manifest, found)

    def _check_plan(self, made: PhysicalPlan, fresh: set[str]) -> None:
        """Check that queries which run already find the state of all their operators."""
        for at, users in made.users().items():
            if users - fresh and made.nodes[at].digest not in self.manifest.numbers:
                raise StateError(
                    f"query '{sorted(users - fresh)[0]}' must be planned as the checkpoint "
                    f"{self.folder} was made with, but it would get another plan; use the same "
                    f"settings (rules, panes) and version of Penstock, or another --checkpoint"
                )

    # -- the stream ------------------------------------------------------------------------------

    @property
    def wanted_streams(self) -> frozenset[str]:
        return self.book.streams

    def start(self) -> None:
        """Open the Spark query, or open it again if queries need streams that it does not read."""
        wanted = self.wanted_streams
        if not wanted or (self.active and wanted <= self._opened):
            return
        self.stop()
        self.error = None
        if not self._settled:
            self.checkpoint.settle(self.manifest if self.retained else None)
            self._settled = True
        self.admission.start()
        self._heard_at.clear()  # while nothing was read, nothing could be heard
        definitions = [self.streams[name] for name in sorted(wanted | self._opened)]
        frame = open_streams(
            self._session, definitions, self.config, self.spool, self.admission.path
        )
        self._opened = wanted | self._opened
        writer = frame.writeStream.foreachBatch(self._batch).option(
            "checkpointLocation", self.checkpoint.spark
        )
        writer = writer.trigger(processingTime=f"{int(self.config['trigger'] * 1000)} milliseconds")
        try:
            self._stream_query = writer.start()
        except SPARK_ERRORS as error:
            raise root_cause(error) from error

    def stop(self) -> None:
        """Stop after the batch under way."""
        query = self._stream_query
        if query is not None and query.isActive:
            with self._lock:  # a batch holds the lock: it is never interrupted
                self._stopping = True
            query.stop()
        self._stream_query = None
        self._stopping = False

    def close(self) -> None:
        """Stop, and give the checkpoint back."""
        self.stop()
        self.checkpoint.unlock()

    def spark_queries(self) -> list[StreamingQuery]:
        """Return what Spark runs for this pipeline: one streaming query while it is active."""
        return list(self._session.streams.active)

    @property
    def active(self) -> bool:
        return self._stream_query is not None and self._stream_query.isActive

    @property
    def ended(self) -> bool:
        """Whether every stream is finite and has been read to its end."""
        names = self.wanted_streams
        return bool(names) and all(
            is_finite(self.streams[n]) and Progress.of(self.manifest.progress.get(n)).final
            for n in names
        )

    def waiting(self, stream: str) -> Waiting | None:
        """Return how much of a stream is known to be waiting; None where nobody knows."""
        if stream not in self._backlogs:
            self._backlogs[stream] = backlog_of(self.streams[stream], self.spool(stream))
        taken = arrived(self.manifest, stream)
        return self._backlogs[stream].waiting(taken, self.metrics.reached.get(stream))

    def hot_shards(self) -> list[Hot]:
        """Return the shards that get far more rows than others in the plan that runs."""
        whole = self.last_plan
        return [] if whole is None else self.metrics.hot_shards(whole, self.shards)

    def split_keys(self) -> list[SplitKeys]:
        """Return how many keys, or cells, of which joins are split now."""
        whole = self.last_plan
        return [] if whole is None else split_keys(whole, self.manifest.hot)

    def failure(self) -> BaseException | None:
        """Return what ended the Spark query, if it failed."""
        if self.error is not None:
            return self.error
        query = self._stream_query
        return None if query is None else query.exception()

    @property
    def caught_up(self) -> bool:
        """Whether Spark has nothing left to read and finite replays are at their end."""
        query = self._stream_query
        if query is None or not query.isActive:
            return True
        status = query.status
        if status["isDataAvailable"] or status["isTriggerActive"]:
            return False
        if not str(status["message"]).startswith("Waiting"):
            return False
        return all(
            Progress.of(self.manifest.progress.get(n)).final
            for n in self.wanted_streams
            if ends_by_itself(self.streams[n])
        )

    def await_idle(self) -> None:
        """Wait until everything that is there now has been taken, finite replays to their end."""
        while self.active and not self.ended:
            assert self._stream_query is not None
            self._stream_query.processAllAvailable()
            if self.caught_up:
                return
            time.sleep(0.05)

    # -- a batch ---------------------------------------------------------------------------------

    def _batch(self, frame: DataFrame, batch: int) -> None:
        """Run one micro-batch. An error fails the batch: it is never caught and passed over."""
        with self._lock:
            if self._stopping:
                raise InterruptedError("the pipeline is stopping; this batch comes again")
            began = time.perf_counter()
            try:
                offsets = self.checkpoint.log.offsets_digest(batch)
                failpoints.passing("offsets-read")
                known = self.checkpoint.read(batch)
                if known is not None and batch == self.manifest.batch:
                    self._check_replay(frame, known)
                    if self._undelivered:  # at the start of a run sinks got what they missed
                        self._publish(known)
                    failpoints.passing("before-return")
                    return
                if batch != self.manifest.batch + 1:
                    raise StateError(
                        f"the next batch of {self.folder} must be {self.manifest.batch + 1}, but "
                        f"Spark's own log says {batch}; the checkpoint is damaged"
                    )
                manifest = self._run(frame, batch)
                manifest.offsets = offsets
                manifest.logs = self.checkpoint.log.digests()
                manifest.catalog = self._catalog_file()
                manifest.follow(self.manifest, self.checkpoint.turn)
                delivered = entered(self._delivered, manifest)
                manifest.outlets = {name: told.describe() for name, told in delivered.items()}
                self.checkpoint.commit(manifest)
                before, self.manifest, self._delivered = self.manifest, manifest, delivered
                self._publish(manifest)
                self.checkpoint.sweep(manifest.files() | before.files(), batch)
                self._prune()
                self.metrics.batch(before, manifest, time.perf_counter() - began)
                self.admission.note(self.metrics.batch_rows, self.metrics.batch_seconds)
                failpoints.passing("before-return")
            except BaseException as error:
                self.error = error
                raise

    def _publish(self, manifest: Manifest) -> None:
        """Give a batch to the sinks; if one fails, it is given to them again."""
        self._undelivered = True
        self.delivery.publish(manifest)
        self._undelivered = False

    def _prune(self) -> None:
        """Remove pushed rows that no batch will read again: all kept manifests have them."""
        self._reached.append(arrived_by_stream(self.manifest))
        oldest = self._reached[0]
        for name in self._opened:
            if is_pushed(self.streams[name]) and oldest.get(name):
                if name not in self._spools:
                    self._spools[name] = SpoolFiles(self.spool(name))
                self._spools[name].prune(oldest[name])

    def _catalog_file(self) -> dict[str, Any]:
        """Write down what is declared, if that has changed; return the place of the file."""
        running = {name: (q.node, q.mode) for name, q in self.book.queries.items()}
        kinds = (self.catalog.streams, self.catalog.tables, self.catalog.views)
        told: list[object] = [d for kind in kinds for d in list(kind.values())]
        told += [part for name, found in running.items() for part in (name, *found)]
        before, place = self._told
        if len(before) != len(told) or any(a is not b for a, b in zip(before, told, strict=True)):
            data = Declared(self.catalog, running).to_bytes()
            place = self.checkpoint.store(file_name(data), data)
            self._told = (told, place)
        return place

    def _check_replay(self, frame: DataFrame, known: Manifest) -> None:
        """Check that a batch which Spark replays brings what it brought before.

        Its answers are in the manifest, so the rows are read only to be compared.
        """
        self.checkpoint.log.check_offsets(known)
        streams = self.streams_of_plan()
        expected = {name: found for name, found in known.inputs.items() if name in streams}
        columns = {name: found["columns"] for name, found in expected.items()}
        read = frame.mapInArrow(fingerprint_task(streams, columns), SPARK_SCHEMA)
        held = {name: found for name, found in known.contents.items() if name in self.tables}
        for name, found in held.items():
            definition = self.tables[name]
            read = read.union(contents_frame(self._session, definition, found["columns"]))
        reports = self._reports(read)
        check_contents(known.batch, held, contents_of(reports))
        came = {r["stream"]: r["input"] for r in reports if r["kind"] == "fingerprint"}
        for name, before in expected.items():
            now = came.get(name, {"rows": 0, "sum": 0, "columns": columns[name]})
            if now != before:
                raise StateError(
                    f"the rows that stream {name} brought in batch {known.batch} must be the same "
                    f"when the batch is read again after a crash, but there were {before['rows']} "
                    f"and are {now['rows']}, or some have changed; bring the stream's files back "
                    f"as they were, or use another --checkpoint"
                )

    def _run(self, frame: DataFrame, batch: int) -> Manifest:
        plan = self.plan()
        before = self.manifest
        idle = self._idle_streams()
        self.last_plan = plan
        digests = frozenset(node.digest for node in plan.nodes)
        job = Job(
            batch,
            plan,
            self._settings_now(),
            self.checkpoint.segments,
            self.shards,
            self.streams_of_plan(),
            before.progress,
            share_states(
                self.checkpoint.segments, batch, (_only(shard, digests) for shard in before.states)
            ),
            idle,
            failpoints.orders(),
            str(self.spark.sparkContext.master).startswith("local"),
            routes(plan, before.hot, self._searching),
        )
        frame = push_down(frame, plan, job.streams)
        packed = frame.mapInArrow(pack_task(job), SPARK_SCHEMA)
        for name, sources in new_tables(plan, before.tables).items():
            definition = self.tables[name]
            packed = packed.union(packed_table(self._session, definition, sources, job))
        for stage in range(plan.stages):
            packed = packed.repartitionById(self.shards, F.col("shard"))
            packed = packed.mapInArrow(stage_task(job, stage), SPARK_SCHEMA)
        return self._manifest_of(batch, plan, self._reports(packed), idle)

    @property
    def _searching(self) -> bool:
        """Whether hot keys of joins are looked for, to split them."""
        return bool(self.config["join.split"] == 0) and self.shards > 1

    def _settings_now(self) -> dict[str, Any]:
        """Return the settings of a batch: strategies that follow the load are decided here.

        There is load while batches take more than half of the time that they should.
        """
        settings = dict(self.config)
        if settings["merge.strategy"] == "load":
            wanted = settings["batch.seconds"] or 1.0
            busy = self.metrics.batch_seconds > wanted / 2
            settings["merge.strategy"] = "maxfanin" if busy else "greedy"
        return settings

    def _reports(self, frame: DataFrame) -> list[dict[str, Any]]:
        """Run a job and return what its tasks report."""
        rows = frame.collect()
        return [read_report(Parcel(r[0], r[1], r[2], r[3], bytes(r[4]))) for r in rows]

    def streams_of_plan(self) -> dict[str, StreamDef]:
        """Return the definitions of the streams that Spark reads."""
        return {name: self.streams[name] for name in self._opened}

    def _idle_streams(self) -> frozenset[str]:
        """Return the streams that have been silent for longer than they declared."""
        now = time.monotonic()
        idle = set()
        for name in self._opened:
            limit = self.streams[name].idle_after
            since = self._heard_at.setdefault(name, now)
            if limit is not None and now - since > limit:
                idle.add(name)
        return frozenset(idle)

    def _manifest_of(
        self,
        batch: int,
        plan: PhysicalPlan,
        reports: list[dict[str, Any]],
        idle: frozenset[str],
    ) -> Manifest:
        before = self.manifest
        progress = dict(before.progress)
        outputs = {a.query: plan.nodes[a.node].digest for a in plan.answers}
        manifest = Manifest(
            batch=batch,
            shards=self.shards,
            lifetime=self.config["lifetime"],
            numbers=plan.numbers,
            queries={n: q.describe(outputs.get(n)) for n, q in self.book.queries.items()},
            streams=before.streams | {n: described(self.streams[n]) for n in self._opened},
            progress=progress,
            tables=[plan.nodes[at].digest for at in plan.sources("table")],
            contents=contents_of(reports),
            states=[{} for _ in range(self.shards)],
        )
        fresh: dict[str, int] = {}
        counted: dict[int, dict[str, Any]] = {}
        for content in reports:
            if content["kind"] == "table":
                continue
            self.metrics.report(content)
            if content["kind"] == "source":
                name = content["stream"]
                progress[name] = content["progress"]
                slack = self.streams[name].slack
                fresh[name] = Progress.of(content["progress"]).heartbeat(slack)
                manifest.rejects += content["rejects"]
                manifest.inputs[name] = content["input"]
                counted |= {int(channel): told for channel, told in content["counted"].items()}
                self._heard_at[name] = time.monotonic()
            else:
                manifest.states[content["shard"]] |= content["states"]
                manifest.results += content["results"]
        old = {
            n: Progress.of(before.progress.get(n)).heartbeat(self.streams[n].slack)
            for n in self._opened
        }
        for name, beat in source_beats(old, fresh, idle).items():
            if name in idle and name not in fresh:
                passed = replace(Progress.of(progress.get(name)), floor=beat)
                progress[name] = passed.describe()
        reached = {}
        for name in self._opened:
            come = Progress.of(progress.get(name))
            reached[name] = Reached(come.max_time, come.heartbeat(self.streams[name].slack))
        manifest.hot = self._heat.turn(
            plan, before.hot, counted, reached, self.shards, self._searching
        )
        return manifest


def moment_after(manifest: Manifest | None, measured: Mapping[str, float]) -> Moment:
    """Return how things stand for planning after the batch of a manifest; None: before all."""
    if manifest is None:
        return Moment(measured=measured)
    times = {n: Progress.of(told).max_time for n, told in manifest.progress.items()}
    return Moment(manifest.batch + 1, times, manifest.numbers, measured)


def _only(states: Mapping[str, Any], digests: frozenset[str]) -> dict[str, Any]:
    """Keep the states of nodes that are in the plan: those of dropped queries are forgotten."""
    return {digest: state for digest, state in states.items() if digest in digests}
