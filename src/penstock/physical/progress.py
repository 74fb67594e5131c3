"""How far streams have come: source partitions, their heartbeats, and which of their rows are late.

The law is section *When is an answer final* of docs/semantics.md.

* Each source partition has a heartbeat of its own: the largest that its rows (largest time less the
  slack), the clock, punctuations, the program or its silence give.  A row is late when its time is
  below the heartbeat that its partition had before it; other partitions never make it late.
* The heartbeat of a stream is the least of its partitions.  A partition that has ended no longer
  counts, nor does one that is idle: silent for as long as its stream declares.
* Where a stream declares how many partitions it has, those that were not heard yet count, with no
  heartbeat at all, until they are idle.
* A heartbeat that was given is never taken back.  A partition that appears, or wakes, begins with
  the heartbeat of its stream.
* An idle stream is passed over by the streams that meet it in some query: it has their heartbeat.

Rows are judged while they are packed, perhaps in several tasks.  What all of them report, and what
the driver decided for the batch (`Decision`), makes the progress after it (`Timeline.after`); the
driver and every shard compute it alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock.catalog import CLOCK
from penstock.kernels.disorder import LONGEST, Disorder
from penstock.model import I64, INF, MIN_TIME, Mask
from penstock.physical.answered import Answered
from penstock.timing import TimeRules

NUMBER_BITS, POSITION_BITS = 20, 43
"""An arrival number is that of the partition and the position of the row in it."""

Report = Mapping[str, Any]


def arrival_numbers(partition: Partition, position: I64) -> I64:
    """Return the arrival numbers of rows by their positions in a partition."""
    return position + (partition.number % (1 << NUMBER_BITS) << POSITION_BITS)


@dataclass(frozen=True)
class Partition:
    """How far one source partition has come.

    ``floor`` is the heartbeat that holds whatever its rows say, ``position`` counts all rows that
    ever arrived.  ``disorder`` is there under SLACK AUTO.
    """

    number: int = 0
    max_time: int = MIN_TIME
    floor: int = MIN_TIME
    position: int = 0
    accepted: int = 0
    late: int = 0
    idle: bool = False
    disorder: Disorder | None = None

    def slack(self, rules: TimeRules) -> int | None:
        """Return the slack that holds now; None: nothing is known of the disorder yet."""
        if rules.keeping is None:
            return rules.slack
        return None if self.disorder is None else self.disorder.slack(rules.keeping)

    def heartbeat(self, rules: TimeRules) -> int:
        """Return the time below which nothing of the partition comes any more."""
        return max(self.floor, _less(self.max_time, self.slack(rules)))

    def judged(
        self,
        time: I64,
        rules: TimeRules,
        promised: I64 | None = None,
        closed: Mask | None = None,
        answered: Mask | None = None,
    ) -> tuple[Mask, Partition]:
        """Say which of some rows, in order of arrival, are late; return the partition after them.

        ``promised`` are heartbeats that hold after each row: what punctuations say.  ``closed`` are
        rows of parts that were closed before them: late as well.  ``answered`` are rows that the
        lane has judged, and answered: they are not late.
        """
        before = np.empty(len(time), np.int64)
        before[0] = self.max_time
        before[1:] = np.maximum(np.maximum.accumulate(time[:-1]), self.max_time)
        floor, disorder = self.floor, self.disorder
        if rules.keeping is None:
            known = before > MIN_TIME + rules.slack
            bound = np.where(known, before - rules.slack, MIN_TIME)
        else:
            behind_by = np.maximum(before, time).view(np.uint64) - time.view(np.uint64)
            delay = np.minimum(behind_by, LONGEST).astype(np.int64)
            delay = np.where(before == MIN_TIME, 0, delay)
            slack, disorder = (disorder or Disorder()).follow(delay, rules.keeping)
            known = (slack >= 0) & (before > MIN_TIME + slack)
            bound = np.maximum.accumulate(np.where(known, before - slack, MIN_TIME))
            floor = max(floor, int(bound[-1]))  # a slack that grows takes nothing back
        bound = np.maximum(bound, self.floor)
        if promised is not None:
            said = np.maximum.accumulate(promised)
            bound[1:] = np.maximum(bound[1:], said[:-1])
            floor = max(floor, int(said[-1]))
        late = time < bound
        if closed is not None:
            late |= closed
        if answered is not None:
            late &= ~answered
        behind = int(late.sum())
        return late, replace(
            self,
            max_time=int(max(before[-1], time[-1])),
            floor=floor,
            accepted=self.accepted + len(time) - behind,
            late=self.late + behind,
            disorder=disorder,
        )

    def silent(self) -> Partition:
        """Return the partition after a silence: its last instant is closed, and it is idle."""
        closed = self.max_time + 1 if MIN_TIME < self.max_time < INF else MIN_TIME
        return replace(self, floor=max(self.floor, closed), idle=True)

    def describe(self) -> dict[str, Any]:
        disorder = None if self.disorder is None else self.disorder.describe()
        return {**vars(self), "disorder": disorder}

    @staticmethod
    def of(described: Mapping[str, Any]) -> Partition:
        disorder = described["disorder"]
        found = None if disorder is None else Disorder.of(disorder)
        return Partition(**{**described, "disorder": found})


def _less(time: int, slack: int | None) -> int:
    if slack is None or time <= MIN_TIME + slack:
        return MIN_TIME
    return time - slack


@dataclass(frozen=True)
class ClosedRun:
    """Parts that a source partition has closed, or, None, the whole stream: where they lie.

    ``until`` is when the last of their promises ends (`penstock.physical.closing`).
    """

    partition: str | None
    place: Mapping[str, Any]
    rows: int
    until: int


@dataclass(frozen=True)
class Progress:
    """How far a stream has come: kept in the manifest.

    ``partitions`` are those that have not ended, of the ``appeared`` that ever were.  ``floor`` is
    the heartbeat that was given, ``numbers`` the next number of a partition.  Counts and
    ``max_time`` are those of all partitions, also of those that have ended.  ``absent``: some that
    are declared were never heard; ``absent_idle``: these are passed over.  ``closed`` are parts of
    which nothing more comes.  ``ended`` is the heartbeat of the ended partition that came furthest.
    """

    partitions: Mapping[str, Partition] = field(default_factory=dict)
    max_time: int = MIN_TIME
    floor: int = MIN_TIME
    final: bool = False
    idle: bool = False
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    numbers: int = 0
    appeared: int = 0
    absent: bool = False
    absent_idle: bool = False
    closed: tuple[ClosedRun, ...] = ()
    ended: int = MIN_TIME

    @property
    def heartbeat(self) -> int:
        """The time below which nothing of the stream comes any more."""
        return INF if self.final else self.floor

    @property
    def busy(self) -> frozenset[str]:
        """The partitions that have neither ended nor are idle."""
        return frozenset(name for name, part in self.partitions.items() if not part.idle)

    @property
    def rows(self) -> int:
        """All rows that ever came."""
        return self.accepted + self.late + self.rejected

    def is_absent(self, rules: TimeRules) -> bool:
        """Whether some partition that is declared was never heard."""
        return self.appeared < (rules.partitions or 0)

    def partition(self, name: str, number: int | None = None) -> Partition:
        """Return a partition as rows of it find it: one that appears or wakes begins at the floor.

        ``number`` is that of one that appears; None: the next that is free.
        """
        found = self.partitions.get(name)
        if found is None:
            found = Partition(self.numbers if number is None else number)
        return replace(found, floor=max(found.floor, self.floor), idle=False)

    def describe(self) -> dict[str, Any]:
        parts = {name: part.describe() for name, part in self.partitions.items()}
        return {**vars(self), "partitions": parts, "closed": [vars(run) for run in self.closed]}

    @staticmethod
    def of(described: Mapping[str, Any] | None) -> Progress:
        if described is None:
            return Progress()
        parts = {name: Partition.of(told) for name, told in described["partitions"].items()}
        closed = tuple(ClosedRun(**run) for run in described.get("closed", ()))
        return Progress(**{**described, "partitions": parts, "closed": closed})


@dataclass(frozen=True)
class Decision:
    """What the driver decided about the time of a stream before a batch; it holds after its rows.

    ``floors`` are heartbeats of partitions, under None that of all.  ``idle`` are the partitions
    that are passed over unless they bring rows in this batch, None: a stream without partitions.
    ``quiet`` are those that are so even if they do: nothing came behind these rows for long enough.
    """

    floors: Mapping[str | None, int] = field(default_factory=dict)
    idle: frozenset[str | None] = frozenset()
    quiet: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Timeline:
    """Time before a batch: how far streams are, what they declare, and what was decided for it.

    ``groups`` are the streams that meet in queries.  ``answered`` are rows of this batch that the
    lane has answered.  ``ceilings`` are the times of the oldest rows that it has answered and that
    come in later batches: the heartbeats of their streams do not pass them before.
    """

    progress: Mapping[str, Progress] = field(default_factory=dict)
    rules: Mapping[str, TimeRules] = field(default_factory=dict)
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    groups: Iterable[frozenset[str]] = ()
    answered: Answered = field(default_factory=Answered)
    ceilings: Mapping[str, int] = field(default_factory=dict)

    def of(self, stream: str) -> Progress:
        """Return how far a stream was before the batch."""
        return self.progress.get(stream, Progress())

    def after(self, reports: Iterable[Report]) -> dict[str, Progress]:
        """Return how far every stream is after the batch, given what its packing reported."""
        told: dict[str, list[Report]] = {}
        for report in reports:
            told.setdefault(report["stream"], []).append(report)
        names = {*self.rules, *self.progress}
        found = {
            name: _advanced(
                self.of(name),
                told.get(name, []),
                self.decisions.get(name, Decision()),
                self.rules.get(name, TimeRules()),
            )
            for name in sorted(names)
        }
        for group in self.groups:
            _pass_over(found, group)
        for name, ceiling in self.ceilings.items():
            if name in found:
                found[name] = _lowered(found[name], self.of(name), ceiling)
        return found


def _lowered(after: Progress, before: Progress, ceiling: int) -> Progress:
    """Return the progress of a stream whose heartbeats pass no row that the lane has answered.

    What a clock or a silence says holds as soon as these rows are in a batch: it is said again.
    """
    parts = {
        name: replace(part, floor=min(part.floor, max(ceiling, before.floor, _floor(before, name))))
        for name, part in after.partitions.items()
    }
    floor = min(after.floor, max(ceiling, before.floor))
    return replace(after, partitions=parts, floor=floor)


def _floor(progress: Progress, partition: str) -> int:
    known = progress.partitions.get(partition)
    return MIN_TIME if known is None else known.floor


def reported(
    stream: str,
    partitions: Mapping[str, Partition],
    ended: Iterable[str] = (),
    final: bool = False,
) -> dict[str, Any]:
    """Return what packing reports of a stream's partitions that brought something."""
    return {
        "stream": stream,
        "partitions": {name: part.describe() for name, part in partitions.items()},
        "ended": sorted(ended),
        "final": final,
    }


def _advanced(
    before: Progress, reports: list[Report], decision: Decision, rules: TimeRules
) -> Progress:
    """Return the progress of a stream after a batch, whatever other streams do."""
    fresh = {
        name: Partition.of(told)
        for report in reports
        for name, told in report["partitions"].items()
    }
    live = {**before.partitions, **fresh}
    said_of_all = (report.get("floor", MIN_TIME) for report in reports)
    of_all = max(decision.floors.get(None, MIN_TIME), *said_of_all, MIN_TIME)
    for name, part in live.items():
        part = replace(part, floor=max(part.floor, of_all, decision.floors.get(name, MIN_TIME)))
        if name in decision.quiet or (name in decision.idle and name not in fresh):
            part = part.silent()
        live[name] = part
    ended = {name for report in reports for name in report["ended"]}
    gone = [live.pop(name).heartbeat(rules) for name in ended if name in live]
    furthest = max(before.ended, *gone, MIN_TIME)
    largest = [before.max_time, *(part.max_time for part in fresh.values())]
    accepted = late = 0
    for name, part in fresh.items():
        was = before.partitions.get(name, Partition())
        accepted += part.accepted - was.accepted
        late += part.late - was.late
    floor = max(before.floor, of_all)
    appeared = before.appeared + sum(name not in before.partitions for name in fresh)
    absent_idle = before.absent_idle or None in decision.idle
    absent = appeared < (rules.partitions or 0) and not absent_idle
    if not absent:
        floor = max(floor, _heartbeat(live, furthest, rules))
    idle = _is_idle(before, live, bool(fresh), decision)
    if idle and not live and MIN_TIME < max(largest) < INF:
        floor = max(floor, max(largest) + 1)  # all have ended: the last instant is closed
    said = (ClosedRun(**run) for report in reports for run in report.get("closed", ()))
    return Progress(
        live,
        max(largest),
        floor,
        before.final or any(report["final"] for report in reports),
        idle,
        before.accepted + accepted,
        before.late + late,
        before.rejected + sum(report.get("rejected", 0) for report in reports),
        max(before.numbers, 1 + max((part.number for part in fresh.values()), default=-1)),
        appeared,
        absent,
        absent_idle,
        tuple(run for run in (*before.closed, *said) if run.partition not in ended),
        furthest,
    )


def _heartbeat(live: Mapping[str, Partition], ended: int, rules: TimeRules) -> int:
    """Return the heartbeat that partitions give a stream.

    Where all that are left are idle, or have ended, it is that of the one that came furthest.
    """
    busy = [part.heartbeat(rules) for part in live.values() if not part.idle]
    if busy:
        return min(busy)
    return max(ended, *(part.heartbeat(rules) for part in live.values()), MIN_TIME)


def _is_idle(
    before: Progress, live: Mapping[str, Partition], heard: bool, decision: Decision
) -> bool:
    if live:
        return all(part.idle for part in live.values())
    return not heard and (None in decision.idle or before.idle)


def _pass_over(progress: dict[str, Progress], group: frozenset[str]) -> None:
    """Let the idle streams of a group go on with the others.

    One that was never heard, or has ended, says nothing about the time that has been reached.
    Where all are idle, the one that came furthest does.
    """
    members = {name: progress[name] for name in group if name in progress}
    open_ = {name: found for name, found in members.items() if not found.final}
    idle = [name for name, found in open_.items() if found.idle]
    others = [found.floor for found in open_.values() if not found.idle]
    heard = [floor for floor in others if floor > MIN_TIME]
    if heard:
        target = min(heard)
    elif not others:
        target = max((open_[name].floor for name in idle), default=MIN_TIME)
    else:
        return
    for name in idle:
        progress[name] = replace(open_[name], floor=max(open_[name].floor, target))


def ahead(
    progress: Mapping[str, Progress],
    rules: Mapping[str, TimeRules],
    groups: Iterable[frozenset[str]],
) -> dict[str, str]:
    """Return the streams that are further ahead of another than their STEP, and of which one.

    A stream that has ended or is idle holds nobody; one that was never heard holds everybody who
    was.
    """
    found = {}
    for group in groups:
        for name in sorted(group):
            step, mine = rules.get(name, TimeRules()).step, progress.get(name, Progress())
            if step is None or mine.max_time == MIN_TIME:
                continue
            others = {
                other: known.floor
                for other in sorted(group - {name})
                if not (known := progress.get(other, Progress())).final and not known.idle
            }
            slowest = min(others, key=lambda other: others[other], default=None)
            if slowest is not None and mine.max_time - step > others[slowest]:
                found[name] = slowest
    return found


def newest_times(progress: Mapping[str, Progress]) -> dict[str, int]:
    """Return the newest time that each stream has seen; the clock has no rows, it is what it says.

    A view shows no later instant: what nothing has reached yet is not shown as if it had been.
    """
    return {
        name: found.heartbeat if name == CLOCK.name else found.max_time
        for name, found in progress.items()
    }
