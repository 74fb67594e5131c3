"""The pipeline: one Spark streaming query that runs every continuous query of a session.

Its ``foreachBatch`` runs one Spark job per micro-batch: pack, exchange, stage, exchange, stage ...
The order of a batch is: tasks write run files under new names, the driver commits one manifest,
sinks publish, Spark commits.  A batch that Spark replays finds its manifest and goes straight to
the sinks.

The plan lives in the driver, in the book of queries, so queries are added, paused, resumed and
dropped between two batches.  Only a new *stream* needs the Spark query to be opened again, on the
same checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.asking.encoding import Declared
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.errors import StateError
from penstock.lane.early import early_queries
from penstock.lane.journal import Journal, Mark
from penstock.lane.keeper import Lane, Offsets
from penstock.lane.telling import LaneState
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.early_plan import early_outlet
from penstock.physical.key_splits import routes
from penstock.physical.multiway import measured
from penstock.physical.observation import Observation, Observer
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Decision, Progress, Timeline, ahead
from penstock.physical.timekeeper import LONGEST_WAIT, TimeKeeper
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered, book_of, entered, is_lane, lane_outlet
from penstock.runs.holder_numbers import check_shards
from penstock.runs.manifest import Manifest
from penstock.runs.reading import file_name
from penstock.settings import Settings
from penstock.sinks.delivery import Delivery
from penstock.sources.admission import Admission
from penstock.sources.base import Backlog, Waiting
from penstock.sources.formats import backlog_of, ends_by_itself, is_finite, is_pushed
from penstock.sources.spool import SpoolFiles
from penstock.sources.stream_forms import described, difference
from penstock.sources.ticks import Ticker, hold
from penstock.spark.batch import BatchRunner
from penstock.spark.sources import open_streams
from penstock.spark.stream import SparkStream
from penstock.timing import TimeRules


@dataclass
class Pipeline:
    """All queries of one session on one checkpoint, which is locked and opened.

    ``retained`` are its manifests.  ``catalog`` is what readers of the checkpoint are told.
    """

    spark: SparkSession
    config: Settings
    checkpoint: Checkpoint
    retained: Sequence[Manifest]
    streams: dict[str, StreamDef]
    tables: dict[str, TableDef]
    delivery: Delivery
    spool: Callable[[str], str]
    catalog: Catalog = field(default_factory=Catalog)

    def __post_init__(self) -> None:
        self.folder = str(self.checkpoint.folder)
        self.manifest = self.retained[-1] if self.retained else self._empty()
        self._delivered = {n: d for n, d in book_of(self.manifest).items() if not is_lane(n)}
        self.lane = self._lane()
        self.shards = self.manifest.shards
        self.book = QueryBook(self.config, self.manifest.queries, self.folder)
        self._lock = self.book.lock
        self._stream = SparkStream(
            self.spark, self.folder, self.checkpoint.spark, self.config.trigger, self._batch
        )
        self.runner = BatchRunner(
            self._stream.session, self.config, self.checkpoint, self.shards, self.tables
        )
        self._observer = Observer(self.manifest, self._rules)
        self._settled = False
        self._undelivered = False
        retained = [_arrived(manifest) for manifest in self.retained] or [{}]
        kept = max(self.config.retain_manifests, 1) + 1
        self._reached: deque[dict[str, int]] = deque(retained, maxlen=kept)
        self._taken: deque[dict[str, int]] = deque(maxlen=kept)
        self._spools: dict[str, SpoolFiles] = {}
        self._opened: frozenset[str] = frozenset()
        self.held: dict[str, str] = {}
        self.keeper = TimeKeeper(self.config.heartbeat_every)
        self._due_after: tuple[Manifest | None, dict[str, Progress]] = (None, {})
        self._ticker = Ticker(self.folder, self._is_due, lambda: self.manifest.batch)
        self._backlogs: dict[str, Backlog] = {}
        self.admission = Admission(self.folder, self.config.batch_seconds, self.config.batch_rows)
        self.error: BaseException | None = None
        self._stopping = False
        self._told: tuple[list[object], dict[str, Any]] = ([], {})

    def _empty(self) -> Manifest:
        """Return what is true before the first batch."""
        shards = self.config.shards or self.spark.sparkContext.defaultParallelism
        check_shards(shards)
        states: list[dict[str, Any]] = [{} for _ in range(shards)]
        run, lifetime = self.checkpoint.run, self.config.lifetime
        return Manifest(run=run, shards=shards, lifetime=lifetime, states=states)

    def _lane(self) -> Lane:
        """Return the lane, which goes on from what the newest manifest knows of its journal."""
        newest = self.manifest
        told = {n: d for n, d in book_of(newest).items() if is_lane(n)}
        mark = Mark.of(newest.lane, self.checkpoint.run)
        journal = Journal.open(
            self.folder, mark, newest.batch, told, self.config.fsync, self.checkpoint.check_ours
        )
        return Lane(
            self.folder, self.config, journal, self.delivery.deliver_turn, self._fail, self.spool
        )

    def _fail(self, error: BaseException) -> None:
        """End the run because the lane cannot go on: what it has answered must be delivered."""
        self.error = error
        threading.Thread(target=self._stream.stop, daemon=True).start()

    @property
    def observation(self) -> Observation:
        """What can be seen after the last batch."""
        return self._observer.newest

    # -- queries and sinks -----------------------------------------------------------------------

    def check_sinks(self, names: Iterable[str], allow_change: bool) -> None:
        """Ask sinks how far they are, before anything is written; see `runs.deliveries`."""
        with self._lock:
            listed = list(names)
            turns = [name for name in listed if is_lane(name)]
            batches = [name for name in listed if not is_lane(name)]
            told = self.delivery.check(batches, self._delivered, self.retained, allow_change)
            self._delivered |= told
            if turns:
                journal = self.lane.journal
                journal.tell(self.delivery.check_turns(turns, journal, allow_change))

    def add(self, query: BookedQuery) -> None:
        """Add a query; it takes part from the next batch on."""
        self.book.add(query)
        self._begin_after_turns(query)
        failpoints.passing("query-added")

    def replace(self, query: BookedQuery) -> None:
        """Let a query take the place of the one of its name, in one batch."""
        with self._lock:
            failpoints.passing("query-replaced")
            self.book.add(query)

    def resume(self, name: str) -> None:
        """Take a paused query in again."""
        self.book.resume(name)
        self._begin_after_turns(self.book.queries[name])

    def _begin_after_turns(self, query: BookedQuery) -> None:
        """Let a query not see again what the lane answered for another one of its name."""
        query.answered = self.lane.delivered_to(query.name)

    def drop(self, name: str) -> None:
        """Remove a query; its state goes with the next batch."""
        with self._lock:
            self.book.drop(name)
            self.lane.mute(name)
            self.end_outlets([name, lane_outlet(name), lane_outlet(early_outlet(name))])
            failpoints.passing("query-dropped")

    def pause(self, name: str) -> None:
        """Leave a query out from now on."""
        with self._lock:
            self.book.pause(name)
            self.lane.mute(name)

    def delivered(self, name: str) -> Delivered | None:
        """Return what an outlet was given; None if nothing is known of it."""
        return self._delivered.get(name)

    def deliver_from(self, name: str, told: Delivered | None) -> None:
        """Let an outlet go on from where it was."""
        if told is not None:
            self._delivered[name] = told

    def end_outlets(self, names: Iterable[str]) -> None:
        """Note that what was delivered to outlets is complete: who has their names next is new."""
        with self._lock:
            by_lane = self.lane.journal.told
            for name in names:
                if name in self._delivered:
                    self._delivered[name] = replace(self._delivered[name], ended=True)
                elif name in by_lane:
                    self.lane.journal.tell({name: replace(by_lane[name], ended=True)})

    def changed_stream(self, definition: StreamDef, replaces: bool = False) -> str | None:
        """Say how a stream is read otherwise than the checkpoint knows it; None if it is not.

        ``replaces``: what may be another from the next batch on does not count.
        """
        known = self.manifest.streams.get(definition.name)
        return None if known is None else difference(known, described(definition), replaces)

    def plan(self) -> PhysicalPlan:
        """Return the plan of the next batch."""
        return self.book.plan(self.moment())

    def moment(self) -> Moment:
        """Return how things stand after the last batch."""
        return moment_after(self.manifest, self.observation)

    # -- the stream ------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the Spark query, or open it again if queries need streams that it does not read."""
        wanted = self.book.streams
        if not wanted or (self.active and wanted <= self._opened):
            return
        self.stop()
        self.error = None
        if not self._settled:  # everything is compared before anything is swept
            if self.manifest.queries:
                self.plan()
            self.lane.check_spools({name: self.streams[name] for name in wanted})
        definitions = [self.streams[name] for name in sorted(wanted | self._opened)]
        frame = open_streams(
            self._stream.session, definitions, self.config, self.spool, Path(self.folder)
        )
        if not self._settled:
            self.checkpoint.settle(self.manifest if self.retained else None)
            self._settled = True
        self.admission.start()
        self._opened = wanted | self._opened
        self.keeper.open({name: self.streams[name].timing for name in self._opened})
        self.held = {}
        if any(self.streams[name].timing.step is not None for name in self._opened):
            hold(self.folder, ())
        self._start_lane()
        self._stream.start(frame)
        self._ticker.start()

    def _start_lane(self) -> None:
        """Let the lane answer important rows, from the newest batch on."""
        self.lane.begin(self._definitions())
        if self.manifest.batch >= 0 and self.manifest.queries:
            offsets = self._offsets(self.manifest.batch)
            if offsets:
                self._tell_lane(self.plan(), offsets)

    def lane_state(self) -> LaneState | None:
        """Return how the lane does; None if no stream that is read has priorities."""
        streams = [self.streams[name] for name in sorted(self.book.streams)]
        return LaneState.of(self.lane.status(), streams, self.config)

    def _tell_lane(self, plan: PhysicalPlan, offsets: Offsets) -> None:
        if not offsets:
            return  # no stream has priorities
        split = routes(plan, self.manifest.hot, self.runner.searching)
        early = early_queries(plan, self.book.queries.values())
        self.lane.committed(self.manifest, plan, split, offsets, early)

    def _offsets(self, batch: int) -> dict[str, dict[str, Any]]:
        """Return where a batch ends in the streams whose rows the lane may answer, or has."""
        known = self.lane.answered
        names = [n for n in self._opened if self.streams[n].priority is not None or n in known]
        return {name: self.checkpoint.log.planned(batch, name) for name in names}

    def stop(self) -> None:
        """Stop after the batch under way."""
        self._ticker.stop()
        self.lane.stop()
        if self._stream.active:
            with self._lock:  # a batch holds the lock: it is never interrupted
                self._stopping = True
        self._stream.stop()
        self._stopping = False

    def close(self) -> None:
        """Stop, and give the checkpoint back."""
        self.stop()
        self.lane.close()
        self.checkpoint.unlock()

    def spark_queries(self) -> list[Any]:
        """Return what Spark runs for this pipeline: one streaming query while it is active."""
        return self._stream.queries()

    @property
    def active(self) -> bool:
        return self._stream.active

    @property
    def ended(self) -> bool:
        """Whether every stream is finite and has been read to its end."""
        return self.have_ended(self.book.streams)

    def have_ended(self, names: Iterable[str]) -> bool:
        """Whether some streams are finite, were read to their end, and their answers delivered."""
        listed = list(names)
        ended = bool(listed) and all(is_finite(self.streams[n]) and self._final(n) for n in listed)
        return ended and not self._undelivered and self.lane.is_quiet

    def _final(self, stream: str) -> bool:
        return Progress.of(self.manifest.progress.get(stream)).final

    def waiting(self, stream: str) -> Waiting | None:
        """Return how much of a stream is known to be waiting; None where nobody knows."""
        if stream not in self._backlogs:
            self._backlogs[stream] = backlog_of(self.streams[stream], self.spool(stream))
        seen = self.observation
        position = None
        with contextlib.suppress(OSError, ValueError):  # not there yet, or not there any more
            position = self.checkpoint.log.planned(seen.batch, stream) or None
        return self._backlogs[stream].waiting(seen.stream(stream).rows, position)

    def failure(self) -> BaseException | None:
        """Return what ended the Spark query, if it failed."""
        return self._stream.failure() if self.error is None else self.error

    @property
    def caught_up(self) -> bool:
        """Whether Spark has nothing left to read and finite replays are at their end."""
        if not self.active:
            return True
        return self._stream.waits and all(
            self._final(n) or n in self.held
            for n in self.book.streams
            if ends_by_itself(self.streams[n])
        )

    def await_batch(self) -> None:
        """Wait until the batch under way, if there is one, has been delivered."""
        with self._lock:
            return

    def await_idle(self, timeout: float | None = None) -> None:
        """Wait until everything that is there now has been taken, finite replays to their end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.active and not self.ended:
            self._stream.take_all(deadline)
            if self.caught_up and not self.lane.is_starting:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"not all rows that are there were taken within {timeout} s")
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
                    self.runner.check_replay(frame, known, self._definitions())
                    if self._undelivered:  # at the start of a run sinks got what they missed
                        self._publish(known)
                elif batch != self.manifest.batch + 1:
                    raise StateError(
                        f"the next batch of {self.folder} must be {self.manifest.batch + 1}, but "
                        f"Spark's own log says {batch}; the checkpoint is damaged"
                    )
                else:
                    self._next_batch(frame, offsets, began)
                failpoints.passing("before-return")
            except BaseException as error:
                self.error = self.error or error  # what made the lane fail comes first
                raise

    def _next_batch(self, frame: DataFrame, offsets: str, began: float) -> None:
        """Run, commit and deliver a batch that has not been run."""
        plan, before = self.plan(), self.manifest
        streams, heard_at = self._definitions(), time.monotonic()
        timeline, ends = self._timeline(plan, before), self._offsets(before.batch + 1)
        answered, ceilings = self.lane.hand_over(ends, timeline)
        timeline = replace(timeline, answered=answered, ceilings=ceilings)
        wanted = self.config.batch_seconds or 1.0
        busy = self.observation.batch_seconds > wanted / 2  # of the time that it should take
        outcome = self.runner.run(frame, plan, before, streams, timeline, busy)
        for told in outcome.told:
            for partition in told["partitions"]:
                if not is_pushed(self.streams[told["stream"]]):
                    self.keeper.heard(told["stream"], partition, heard_at)
        queries = self.book.queries.values()
        manifest = self.runner.manifest(plan, before, outcome, queries, streams, timeline)
        manifest.offsets = offsets
        manifest.logs = self.checkpoint.log.digests()
        manifest.catalog = self._catalog_file()
        if self.lane.journal.last:
            manifest.lane = self.lane.mark(ends).describe()
        manifest.follow(before, self.checkpoint.word)
        delivered = entered(self._delivered, manifest)
        book = delivered | self.lane.journal.told
        manifest.outlets = {name: told.describe() for name, told in book.items()}
        self.checkpoint.commit(manifest)
        self.keeper.decided(timeline.decisions)
        self._undelivered = True  # before anybody can see that a stream has ended
        self.manifest, self._delivered = manifest, delivered
        self._tell_lane(plan, ends)
        self._keep_in_step(plan, timeline.after(outcome.told))
        self._publish(manifest)
        self.checkpoint.sweep(manifest.files() | before.files(), manifest.batch)
        self._prune()
        if ends:
            self.lane.tidy()
        seen = self._observer.observe(manifest, plan, outcome, time.perf_counter() - began)
        self.admission.note(seen.batch_rows, seen.batch_seconds)

    def _definitions(self) -> dict[str, StreamDef]:
        """Return the definitions of the streams that Spark reads."""
        return {name: self.streams[name] for name in self._opened}

    def _publish(self, manifest: Manifest) -> None:
        """Give a batch to the sinks; if one fails, it is given to them again."""
        self._undelivered = True
        self.delivery.publish(manifest)
        self._undelivered = False

    def _prune(self) -> None:
        """Remove pushed rows that no batch will read again: all kept manifests have them."""
        if not self._taken:
            self._taken.extend([self._files_taken(m.batch) for m in self.retained] or [{}])
        self._reached.append(_arrived(self.manifest))
        self._taken.append(self._files_taken(self.manifest.batch))
        oldest, files = self._reached[0], self._taken[0]
        for name in self._opened:
            if is_pushed(self.streams[name]) and oldest.get(name):
                if name not in self._spools:
                    self._spools[name] = SpoolFiles(self.spool(name))
                self._spools[name].prune(oldest[name], files.get(name, 0))

    def _files_taken(self, batch: int) -> dict[str, int]:
        """Return how many files of pushed rows were taken up to a batch; files may have no rows."""
        names = [name for name in self._opened if is_pushed(self.streams[name])]
        try:
            return {n: int(self.checkpoint.log.planned(batch, n).get("taken", 0)) for n in names}
        except FileNotFoundError:  # Spark keeps its offsets for some batches only
            return {}

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

    # -- time ------------------------------------------------------------------------------------

    def _timeline(self, plan: PhysicalPlan, before: Manifest) -> Timeline:
        """Return how far streams are before a batch, and what clock and silence say about it."""
        progress = {name: Progress.of(told) for name, told in before.progress.items()}
        rules = {name: self.streams[name].timing for name in self._opened}
        quiet = {name: self._quiet(name) for name in self._opened}
        decisions: dict[str, Decision] = self.keeper.decide(progress, quiet)
        return Timeline(progress, rules, decisions, plan.stream_groups)

    def _keep_in_step(self, plan: PhysicalPlan, progress: Mapping[str, Progress]) -> None:
        """Hold the streams that are further ahead of others than they declare."""
        rules = {name: self.streams[name].timing for name in self._opened}
        before, self.held = self.held, ahead(progress, rules, plan.stream_groups)
        if before.keys() != self.held.keys():
            hold(self.folder, self.held)

    def _rules(self, stream: str) -> TimeRules:
        """Return what a stream declares about its time."""
        found = self.streams.get(stream)
        return TimeRules() if found is None else found.timing

    def _quiet(self, stream: str) -> frozenset[str]:
        """Return the partitions whose newest pushed rows this batch takes, if a silence follows.

        A short silence is waited for: otherwise its rows would be answered a batch later.
        """
        definition = self.streams[stream]
        limit = definition.timing.idle_after
        if limit is None or not is_pushed(definition):
            return frozenset()
        taken = self.checkpoint.log.planned(self.manifest.batch + 1, stream).get("ordinal")
        spool = SpoolFiles(self.spool(stream))
        found = set()
        for partition in self.keeper.partitions(stream):
            left = limit - self.keeper.silence(stream, partition)
            while 0 < left <= LONGEST_WAIT and spool.rows() == taken:
                time.sleep(min(left, 0.01))
                left = limit - self.keeper.silence(stream, partition)
            if left <= 0 and spool.rows() == taken:
                found.add(partition)
        return frozenset(found)

    def _is_due(self) -> bool:
        """Whether a batch must come although no rows have."""
        if not self.keeper.needed or not self._stream.active:
            return False
        newest = self.manifest
        if newest is not self._due_after[0]:
            progress = {name: Progress.of(told) for name, told in newest.progress.items()}
            self._due_after = newest, progress
        return self.keeper.due(self._due_after[1])


def _arrived(manifest: Manifest) -> dict[str, int]:
    """Return how many rows of each stream came; late and rejected ones included."""
    return {
        name: told["accepted"] + told["late"] + told["rejected"]
        for name, told in manifest.progress.items()
    }


def moment_after(manifest: Manifest | None, seen: Observation | None = None) -> Moment:
    """Return how things stand for planning after a batch, if there was one."""
    if manifest is None:
        return Moment()
    joins: Mapping[str, float] = {}
    if seen is not None and seen.plan is not None:
        stages = {node.digest for node in seen.plan.nodes if node.stage >= 0}
        done = {d: effort.rows_out for d, effort in seen.totals.items() if d in stages}
        joins = measured(seen.plan, done)
    times = {n: Progress.of(told).max_time for n, told in manifest.progress.items()}
    beats = {n: Progress.of(told).heartbeat for n, told in manifest.progress.items()}
    late = {name: told["late"] for name, told in manifest.progress.items()}
    return Moment(manifest.batch + 1, times, manifest.numbers, joins, late, beats)
