"""The lane as the driver sees it: what waits, whose turn it is, and which lane has which row.

Important rows are tapped as they arrive and wait in buffers.  A *turn* takes some of them, lets the
process of the lane answer them (`penstock.lane.worker`), writes rows and answers into the journal,
and delivers.  A row is the lane's when its turn is in the journal, and the main lane's when a batch
has been handed over that takes it.  Both are decided under one lock, so which comes first is
decided once; the journal makes it last.

    tap ──► buffers ──► process of the lane ──► journal ──► sinks
                                                   │
    batch: hand over ◄─────────────────────────────┘  which of its rows were answered, and how

When the process is lost, rows wait for a new one until a batch takes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.catalog import StreamDef, opened
from penstock.errors import StateError
from penstock.lane.answering import Answerer, Asked
from penstock.lane.buffers import Buffers
from penstock.lane.claims import Claims
from penstock.lane.early import EarlyQuery
from penstock.lane.journal import Journal, Mark, Rows, Turn
from penstock.lane.latencies import Latencies, Meter
from penstock.lane.memory import Memory
from penstock.lane.outstanding import Outstanding
from penstock.lane.tap import CHUNK_ROWS, Block, OtherRowsError, Tap
from penstock.lane.worker import (
    Question,
    Renewal,
    Worker,
    WorkerFailedError,
    WorkerLostError,
)
from penstock.model import I64, one_array
from penstock.physical.answered import Answered
from penstock.physical.early_plan import early_outlet
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Progress, Timeline
from penstock.physical.split_routes import Route
from penstock.runs import failpoints
from penstock.runs.manifest import Manifest
from penstock.settings import Settings
from penstock.sources.formats import is_pushed, why_no_tap
from penstock.sources.spool import SpoolFiles

_LOOK_EVERY = 0.01
"""Seconds between two looks at streams that nobody tells about."""
_LONGEST_PAUSE = 10.0
"""Most seconds between two attempts to start the process again."""
_UNTIL_NEWER = 1.0
"""Seconds that a newer batch may need to be told of, where the files of the one before are gone."""
_MOST_STALE = 5
"""So many batches after one another may be gone when the process is told of them."""
_MOST_WAITING = 1 << 16
"""Rows that may wait: as many as that are not read ahead of the batches, which take them too."""
_TO_STOP = 1.0
"""Seconds that a turn under way may need to end when the lane is stopped."""


Offsets = Mapping[str, Mapping[str, Any]]
"""Where a batch ends in each stream, as Spark's log keeps it."""


@dataclass(frozen=True)
class LaneStatus:
    """How the lane does: for people, and for who watches."""

    running: bool
    why: str
    turns: int
    answered: int
    waiting: int
    latencies: Mapping[int, tuple[int, float, float]]
    """By priority: how many, and the median and 99th percentile of their seconds."""
    rate: float
    """Rows answered in a second, lately."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of answers that were delivered, by query."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """The same in a second, lately."""
    losses: int = 0
    """How often the process was lost."""
    last_loss: str = ""
    """How, the last time."""
    unfit: int = 0
    """Rows whose PRIORITY has no value from 0 to 255: they count as normal here."""
    last_unfit: str = ""
    """What is wrong with the last one."""


class Lane:
    """The lane of one pipeline.

    ``deliver`` gives a turn to the sinks, ``lost`` is called with what must end the run.
    ``spool`` tells where the rows of a pushed stream are.
    """

    def __init__(
        self,
        folder: str,
        config: Settings,
        journal: Journal,
        deliver: Callable[[Turn], None],
        lost: Callable[[BaseException], None],
        spool: Callable[[str], str],
    ) -> None:
        self._segments = str(Path(folder) / "segments")
        self.config = config
        self.journal = journal
        self._deliver = deliver
        self._lost = lost
        self._spool = spool
        self._lock = threading.Condition()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._worker: Worker | None = None
        self._retry_at, self._pause = 0.0, 0.25
        self._why = "it has not begun"
        self._streams: dict[str, StreamDef] = {}
        self._answerer: Answerer | None = None
        self.asked: frozenset[str] = frozenset()
        """The streams whose important rows some query wants answered."""
        self._taps: dict[str, Tap] = {}
        self._troubles: dict[str, str] = {}
        self._claims = Claims()
        self._buffers = Buffers(config.lane_queue, config.lane_scheduler)
        self._open: dict[int, Block] = {}
        self._resting: list[Block] = []
        self._under_way: list[Block] = []
        self._outstanding = Outstanding()
        self._memory = Memory()
        self._news: Renewal | None = None
        self._told: Renewal | None = None
        self._muted: dict[str, int] = {}
        self._delivered_to: dict[str, int] = {}
        self._newest = -1
        self._began, self._handed_at = 0.0, 0.0
        self._latencies = Latencies()
        self._count = 0
        self._rows: dict[str, Meter] = {}
        self._losses, self._last_loss = 0, ""
        self._stale = 0
        self._unfit, self._last_unfit = 0, ""
        self.delivered = journal.last
        self._recall()

    # -- beginning -------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Take over from the journal what was answered before."""
        for turn in self.journal.turns():
            self._note(turn)

    def begin(self, streams: Mapping[str, StreamDef]) -> None:
        """Begin to answer rows of streams, as soon as it is told what is committed.

        What could not be delivered before is delivered first.
        """
        self._streams = dict(streams)
        self._began = time.monotonic()
        self.check_spools(streams)
        for turn in self.journal.turns(self.delivered):
            self._deliver(turn)
            self.delivered = turn.number
        if not self.config.lane:
            self._why = "the setting lane is off"
        important = [s for s in streams.values() if s.priority is not None and not why_no_tap(s)]
        if important and self.config.lane and self._thread is None:
            self._stopping, self._why = False, "it is starting"
            self._thread = threading.Thread(target=self._run, name="penstock-lane", daemon=True)
            self._thread.start()

    def check_spools(self, streams: Mapping[str, StreamDef]) -> None:
        """Check that pushed rows which were answered are still there."""
        for name in self._outstanding.streams & streams.keys():
            if not is_pushed(streams[name]):
                continue
            last = self._outstanding.last_position(name)
            rows = SpoolFiles(self._spool(name)).rows()
            if rows <= last:
                raise StateError(
                    f"the spool {self._spool(name)} must have the rows that were answered, up to "
                    f"row {last + 1}, but it has {rows}: it is an older copy than the journal of "
                    f"turns, or files were lost; bring it back from a copy of the same time, or "
                    f"use another --checkpoint"
                )

    def _open_taps(self, manifest: Manifest, offsets: Offsets) -> None:
        """Tap the streams that are not tapped, from where the batches are."""
        if self._thread is None:
            return
        ends = _ends(offsets)
        for name in [name for name, tap in self._taps.items() if tap.read < ends.get(name, 0)]:
            del self._taps[name]  # batches are further
        for name, stream in self._streams.items():
            if name in self._taps or name not in self.asked or why_no_tap(stream):
                continue
            progress = Progress.of(manifest.progress.get(name))
            if not progress.final:
                folder = self._spool(name) if is_pushed(stream) else None
                rows, offset = self.config.lane_rows, offsets.get(name) or None
                self._forget_waiting(name)
                answered = self._answered_times(name)
                tap = Tap(opened(stream), folder, offset, progress, rows, answered)
                self._taps[name] = tap
        for name, tap in self._taps.items():
            offset = offsets.get(name)
            if self._handed_at and offset:
                tap.follow(offset, self._began, self._handed_at)

    def _forget_waiting(self, stream: str) -> None:
        """Let rows of a stream not wait any more: a tap is opened that finds them again."""
        self._resting = [block for block in self._resting if block.stream != stream]
        left = self._buffers.sift(lambda block: block if block.stream != stream else block.none())
        self._open = {id(b): b for b in (*left, *self._resting, *self._under_way)}

    def _answered_times(self, stream: str) -> dict[int, int]:
        """Return the rows of a stream that were answered, or are being so, with their times."""
        asked = {
            number: time_of
            for block in self._under_way
            if block.stream == stream
            for number, time_of in zip(block.seq.tolist(), block.time.tolist(), strict=True)
        }
        return self._outstanding.times(stream) | asked

    def stop(self) -> None:
        """End after the turn under way; a process that hangs is not waited for."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._wake.set()
        if self._thread is threading.current_thread():  # a callback says so: it is in a turn
            self._thread = None
            return
        if self._thread is not None:
            self._thread.join(_TO_STOP)
            worker = self._worker
            if self._thread.is_alive() and worker is not None:
                worker.kill()
            self._thread.join()
            self._thread = None
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        with self._lock:
            self._taps, self._open, self._news, self._told = {}, {}, None, None
            self._resting, self._troubles = [], {}
            self._buffers = Buffers(self.config.lane_queue, self.config.lane_scheduler)
        self._why = "it was stopped"

    def close(self) -> None:
        """Stop, and let go of the journal."""
        self.stop()
        self.journal.close()

    def notify(self, stream: str) -> None:
        """Say that rows have come."""
        if stream in self._taps:
            self._wake.set()

    def mute(self, query: str) -> None:
        """Answer no more for a query that was dropped or paused, as the batches up to now know it.

        Who has its name in the next batch is another one.
        """
        with self._lock:
            for name in (query, early_outlet(query)):
                self._muted[name] = self._newest + 1

    # -- between two batches ---------------------------------------------------------------------

    def hand_over(self, offsets: Offsets, timeline: Timeline) -> tuple[Answered, dict[str, int]]:
        """Give the rows of a batch, those before ``offsets``, to the main lane.

        Waits a moment for those that are about to be answered.  Returns what was answered of them,
        and the oldest times of answered rows that come later.
        """
        ends = _ends(offsets)
        deadline = time.monotonic() + self.config.lane_wait
        self._wake.set()
        with self._lock:
            while self._is_busy_below(ends) and time.monotonic() < deadline:
                self._lock.wait(max(0.0, deadline - time.monotonic()))
            self._claims.hand_over(ends, timeline)
            self._handed_at = time.monotonic()
            failpoints.passing("lane-handed-over")
            return self._outstanding.below(ends), self._outstanding.ceilings(ends)

    def _is_busy_below(self, ends: Mapping[str, int]) -> bool:
        """Whether rows that a batch takes may soon be answered: they wait, or were just pushed."""
        if self._worker is None or not self._worker.started or self._stopping:
            return False
        return any(
            int(block.positions()[0]) < ends.get(block.stream, 0) for block in self._open.values()
        ) or any(
            0 < ends.get(name, 0) - tap.given <= CHUNK_ROWS and is_pushed(self._streams[name])
            for name, tap in self._taps.items()
        )

    def mark(self, offsets: Offsets) -> Mark:
        """Return how far the journal is known to a manifest whose batches end there."""
        ends = _ends(offsets)
        with self._lock:
            first = self._outstanding.first_turn(ends)
            least = self.journal.last if first is None else first - 1
            return self.journal.settle(max(least, self.journal.settled))

    def committed(
        self,
        manifest: Manifest,
        plan: PhysicalPlan,
        routes: Mapping[int, Route],
        offsets: Offsets,
        early: Sequence[EarlyQuery] = (),
    ) -> None:
        """Go on from a batch that was committed, which ends at ``offsets``."""
        if self._answerer is None or self._answerer.plan is not plan:
            self._answerer = Answerer(plan, self.config)
        needed = self._answerer.digests | {digest for one in early for digest in one.digests}
        self.asked = self._answerer.streams | {one.parts.scan.stream for one in early}
        progress = {name: Progress.of(told) for name, told in manifest.progress.items()}
        beats = {name: found.heartbeat for name, found in progress.items()}
        states = [
            {digest: state for digest, state in shard.items() if digest in needed}
            for shard in manifest.states
        ]
        with self._lock:
            self._outstanding.settle(_ends(offsets))
            if not self._outstanding.streams:
                self._delivered_to.clear()
            if self._answerer.remembers:
                self._memory.prune(plan, beats)
            else:
                self._memory.rows.clear()
            self._newest = manifest.batch
            self._claims.committed(progress)
            self._sift()
            for name, tap in self._taps.items():
                if name in progress:
                    tap.adopt(progress[name])
            self._open_taps(manifest, offsets)
            if self.asked:
                self._news = Renewal(
                    plan,
                    self.config,
                    self._segments,
                    manifest.batch,
                    states,
                    beats,
                    dict(routes),
                    early=early,
                )
            else:
                self._news = self._told = None
                self._why = "no query takes it"
        self._wake.set()

    def _sift(self) -> None:
        """Let only rows wait that no batch was given: those that had to wait for it as well."""
        for block in self._resting:
            self._buffers.put(block)
        self._resting = []
        waiting = [*self._buffers.sift(self._claims.mine), *self._under_way]
        self._open = {id(block): block for block in waiting}
        self._lock.notify_all()

    def tidy(self) -> None:
        """Let go of turns that nobody asks for any more: after what a batch had is delivered."""
        with self._lock:
            kept = [known.number for known in self._memory.rows]
            through = min([self.journal.settled, self.delivered, *(turn - 1 for turn in kept)])
        self.journal.rotate()
        self.journal.prune(through)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.wait(_LOOK_EVERY)
                self._wake.clear()
                self._look()
                while not self._stopping and self._is_ready() and self._turn():
                    self._look()
        except BaseException as error:
            self._why = f"{type(error).__name__}: {error}"
            self._lost(error)

    def _look(self) -> None:
        """Let what has come wait in the buffers."""
        for name, tap in list(self._taps.items()):
            if len(self._buffers) + sum(map(len, self._resting)) >= _MOST_WAITING:
                return
            before = tap.read
            try:
                blocks = list(tap.poll())
            except OtherRowsError:
                raise
            except Exception as error:  # the batch that takes the rows says what is wrong
                self._troubles[name] = f"rows of stream {name} come by their batch: {error}"
                with self._lock:
                    if self._taps.get(name) is tap:
                        del self._taps[name]
                    self._lock.notify_all()
                continue
            with self._lock:
                if self._taps.get(name) is tap:  # another one reads these rows again
                    for block in blocks:
                        self._keep_waiting(block)
                    tap.given = tap.read
                    self._lock.notify_all()
            if tap.read > before:
                self._troubles.pop(name, None)
            if tap.unfit:
                self._unfit, self._last_unfit = self._unfit + tap.unfit, tap.last_unfit
                tap.unfit = 0

    def _is_ready(self) -> bool:
        """Whether rows can be answered now; starts the process, and tells it what is new."""
        if self._news is None and (self._told is None or not len(self._buffers)):
            return False
        try:
            if self._worker is None:
                if time.monotonic() < self._retry_at:
                    return False
                self._worker = Worker(self.config.lane_patience)
                with self._lock:
                    self._news, self._told = self._news or self._told, None
            self._worker.await_start()  # batches go on meanwhile
            with self._lock:
                news, self._news = self._news, None
                if news is not None:  # with all turns so far: what they answered is remembered
                    news, self._told = replace(news, memory=list(self._memory.rows)), None
            if news is not None and not self._renew(news):
                return False
            self._why, self._pause = "", 0.25
        except WorkerLostError as why:
            self._give_up(why)
            return False
        return bool(len(self._buffers))

    def _renew(self, news: Renewal) -> bool:
        """Let the process go on from another batch; False: there is a newer one meanwhile."""
        assert self._worker is not None
        try:
            self._worker.renew(news)
        except WorkerLostError as why:
            with self._lock:
                if isinstance(why, WorkerFailedError) and self._stale < _MOST_STALE:
                    # files of a batch are swept when the next one is committed
                    self._lock.wait_for(
                        lambda: self._news is not None or self._stopping, _UNTIL_NEWER
                    )
                    self._stale += 1
                    if self._news is not None:
                        self._wake.set()
                        return False
                self._news = self._news or news
            raise
        self._stale = 0
        with self._lock:
            self._told = news
            self._muted = {q: since for q, since in self._muted.items() if since > news.batch}
        return True

    def _give_up(self, why: WorkerLostError) -> None:
        """Go on without the process for a while: the main lane has its rows."""
        if not self._stopping:  # otherwise it was ended, not lost
            self._why = f"its process was lost: {why}; it is started again"
            self._losses, self._last_loss = self._losses + 1, str(why)
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        with self._lock:
            self._news = self._news or self._told
            self._lock.notify_all()

    def _turn(self) -> bool:
        """Answer the rows that are next; False: nobody can now."""
        told = self._told
        assert told is not None
        assert self._worker is not None
        with self._lock:
            blocks = self._buffers.take(self.config.lane_rows)
            for block in blocks:
                self._open.pop(id(block), None)
            left = [block for block in map(self._claims.mine, blocks) if len(block)]
            self._resting += [block for block in left if self._claims.must_wait(block)]
            chosen = [block for block in left if not self._claims.must_wait(block)]
            number = self.journal.last + 1
            self._under_way = chosen
            self._open |= {id(block): block for block in chosen}
            self._lock.notify_all()
        if not chosen:
            return bool(blocks)
        began = time.monotonic()
        try:
            asked = {
                name: (table, times) for name, (table, times, _, _) in _by_stream(chosen).items()
            }
            answers = self._worker.answer(Question(number, asked))
        except WorkerLostError as why:
            with self._lock:
                self._under_way = []
                for block in chosen:
                    self._keep_waiting(block)
            self._give_up(why)
            return False
        failpoints.passing("lane-answered")
        turn = self._write_down(chosen, answers, told)
        if turn is not None:
            self._deliver(turn)
            self.delivered = turn.number
            for query, result in turn.results.items():
                self._rows.setdefault(query, Meter()).add(result.num_rows)
            self._buffers.learn(chosen, time.monotonic() - began)
            now = time.monotonic()
            for block in chosen:
                self._latencies.add(block.priority, now - block.since, len(block))
        return True

    def _keep_waiting(self, block: Block) -> None:
        self._open[id(block)] = block
        self._buffers.put(block)

    def _write_down(
        self, chosen: list[Block], answers: Mapping[str, pa.Table], told: Renewal
    ) -> Turn | None:
        """Write a turn into the journal, unless a batch has been given some of its rows."""
        with self._lock:
            self._under_way = []
            for block in chosen:
                self._open.pop(id(block), None)
            left = [self._claims.mine(block) for block in chosen]
            whole = all(mine is block for mine, block in zip(left, chosen, strict=True))
            if not whole or any(map(self._claims.must_wait, left)):
                for block in left:
                    if len(block):
                        self._keep_waiting(block)
                self._news = self._news or told  # the process must forget what it has answered
                self._lock.notify_all()
                return None
            rows = {
                name: Rows(seq, times, level, table)
                for name, (table, times, seq, level) in _by_stream(chosen).items()
            }
            results = {q: t for q, t in answers.items() if told.batch >= self._muted.get(q, 0)}
            turn = self.journal.append(Turn(0, told.batch, rows, results, beats=dict(told.beats)))
            self._note(turn)
            self._count += sum(map(len, rows.values()))
            self._lock.notify_all()
            return turn

    def _note(self, turn: Turn) -> None:
        """Note what a turn has answered, and which queries got answers to how new rows."""
        self._outstanding.note(turn)
        for stream, rows in turn.rows.items():
            assert rows.table is not None
            asked = Asked([one_array(column) for column in rows.table.columns], rows.time)
            self._memory.note(stream, asked, turn.number, turn.batch, turn.beats)
        newest = max(int(rows.time.max()) for rows in turn.rows.values())
        for query in turn.results:
            self._delivered_to[query] = max(self._delivered_to.get(query, newest), newest)

    # -- what is seen ----------------------------------------------------------------------------

    @property
    def answered(self) -> frozenset[str]:
        """The streams with answered rows that are in no committed batch yet."""
        with self._lock:
            return self._outstanding.streams

    @property
    def is_starting(self) -> bool:
        """Whether it will soon be able to answer: its process is on its way."""
        with self._lock:
            waits = self._thread is not None and self._news is not None and not self._losses
        return waits and self._worker is None

    def delivered_to(self, query: str) -> int | None:
        """Return the newest time of rows whose answers a query got, and that no batch has yet."""
        with self._lock:
            return self._delivered_to.get(query)

    @property
    def is_quiet(self) -> bool:
        """Whether every turn that is in the journal is delivered."""
        return self.delivered == self.journal.last

    @property
    def pid(self) -> int | None:
        """The number of the lane's process."""
        return None if self._worker is None else self._worker.pid

    def status(self) -> LaneStatus:
        """Return how the lane does."""
        with self._lock:
            waiting = len(self._buffers) + sum(map(len, self._resting))
            why = "; ".join(filter(None, [self._why, *self._troubles.values()]))
        latencies, rate = self._latencies.summary(), self._latencies.rate()
        running = self._worker is not None and not self._why
        meters = dict(self._rows)
        return LaneStatus(
            running,
            why,
            self.journal.last,
            self._count,
            waiting,
            latencies,
            rate,
            {query: meter.rows for query, meter in meters.items()},
            {query: meter.rate() for query, meter in meters.items()},
            self._losses,
            self._last_loss,
            self._unfit,
            self._last_unfit,
        )


def _ends(offsets: Offsets) -> dict[str, int]:
    """Return how many rows of each stream are before some offsets."""
    return {name: int(found.get("ordinal", 0)) for name, found in offsets.items()}


def _by_stream(blocks: list[Block]) -> dict[str, tuple[pa.Table, I64, I64, Any]]:
    """Put blocks of the same stream together: values, times, arrival numbers, priorities."""
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.stream, []).append(block)
    return {
        name: (
            pa.concat_tables([block.table for block in some]).combine_chunks(),
            np.concatenate([block.time for block in some]),
            np.concatenate([block.seq for block in some]),
            np.concatenate([np.full(len(block), block.priority, np.uint8) for block in some]),
        )
        for name, some in found.items()
    }
