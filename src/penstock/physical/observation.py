"""What can be seen of a pipeline after a batch: one `Observation`, which never changes.

Everything that shows something reads it: `status`, EXPLAIN, the live table.  A reader takes the
newest one and waits for nothing, while the next batch is under way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.model import INF, MIN_TIME
from penstock.physical.batch import Outcome
from penstock.physical.efforts import Effort, Service
from penstock.physical.key_splits import SplitKeys, split_keys
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Partition, Progress
from penstock.runs.manifest import Manifest
from penstock.timing import TimeRules

_FORGETTING = 0.9
"""What remains of the rows of a shard from one batch to the next."""

_FEW_ROWS = 100
"""So few rows say nothing about how keys are spread."""

_RECENT = 50
"""Batches over which rates are taken."""


@dataclass(frozen=True)
class HotShard:
    """A shard that gets more than its share of what an operator sends: some keys are frequent."""

    digest: str
    operator: str
    by: str
    shard: int
    share: float

    def __str__(self) -> str:
        return (
            f"hot: shard {self.shard} gets {self.share:.0%} of the rows of {self.operator} "
            f"by {self.by}; for a join whose hot keys are not split while running (EXPLAIN says "
            f"so), the setting join.split lets several shards share every key; joins that several "
            f"windows share are not split, join.windows=apart keeps them apart"
        )


@dataclass(frozen=True)
class PartitionState:
    """How far a source partition is after a batch; ``slack`` is what is in force, if it is known.

    ``idle``: it has been silent for so long that nobody waits for it.
    """

    rows: int = 0
    late: int = 0
    newest: int = MIN_TIME
    heartbeat: int = MIN_TIME
    slack: int | None = 0
    idle: bool = False


@dataclass(frozen=True)
class StreamState:
    """How far a stream is after a batch.

    ``rows`` are all that ever came, late and rejected ones too, ``came`` those of the batch;
    ``newest`` is the largest time.  ``late_here`` are the late rows since the pipeline was opened.
    ``partitions`` are those that have not ended, by name.
    """

    rows: int = 0
    came: int = 0
    late: int = 0
    rejected: int = 0
    newest: int = MIN_TIME
    heartbeat: int = MIN_TIME
    late_here: int = 0
    idle: bool = False
    partitions: Mapping[str, PartitionState] = field(default_factory=dict)

    @property
    def slack(self) -> int | None:
        """The largest slack in force; None where nothing is known of the disorder yet."""
        known = [p.slack for p in self.partitions.values() if p.slack is not None]
        return max(known, default=None)

    @property
    def lag(self) -> int | None:
        """How far the heartbeat is behind the newest row: what is not final yet."""
        if self.heartbeat == INF or self.newest == MIN_TIME:
            return None
        return self.newest - self.heartbeat


@dataclass(frozen=True)
class Observation:
    """How things stand after a batch, which was run by ``plan`` and left ``manifest``.

    ``efforts`` are what each operator did in it, by digest, and ``totals`` what it did since the
    pipeline was opened, as are ``batches``, ``rows_in`` and, by query, ``rows_out``.  Rates are
    rows per second over the last batches, which ended at ``ended_at`` of the monotonic clock.
    ``last_served`` is how soon each query got its answers in the last batch that had some,
    ``services`` since the pipeline was opened; ``held`` are the bytes that waited between
    operators of a task, at most.
    ``selections`` is what was learnt about conjuncts while packing, by digest.
    """

    manifest: Manifest
    plan: PhysicalPlan | None = None
    streams: Mapping[str, StreamState] = field(default_factory=dict)
    batches: int = 0
    batch_seconds: float = 0.0
    efforts: Mapping[str, Effort] = field(default_factory=dict)
    totals: Mapping[str, Effort] = field(default_factory=dict)
    rows_in: int = 0
    rows_out: Mapping[str, int] = field(default_factory=dict)
    rate_in: float = 0.0
    rates_out: Mapping[str, float] = field(default_factory=dict)
    hot_shards: tuple[HotShard, ...] = ()
    split_keys: tuple[SplitKeys, ...] = ()
    ended_at: tuple[float, ...] = ()
    last_served: Mapping[str, Service] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    held: int = 0
    selections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """The number of the batch; -1 before the first."""
        return self.manifest.batch

    def stream(self, name: str) -> StreamState:
        """Return how far a stream is, also one that has brought nothing."""
        return self.streams.get(name, StreamState())

    @property
    def batch_rows(self) -> dict[str, int]:
        """Rows that each stream has brought in the batch."""
        return {name: stream.came for name, stream in self.streams.items() if stream.rows}

    @property
    def arrived(self) -> int:
        """Rows of all streams that ever came."""
        return sum(stream.rows for stream in self.streams.values())

    def digests(self, query: str) -> set[str]:
        """Return the digests of the operators that a query uses."""
        if self.plan is None:
            return set()
        return {self.plan.nodes[at].digest for at in self.plan.below(query)}

    def state_rows(self, query: str) -> int:
        """Return how many rows the operators of a query keep."""
        runs = (runs for state in self._states(query) for runs in state["runs"].values())
        return sum(run["rows"] - run["skipped"] for some in runs for run in some)

    def state_bytes(self, query: str) -> int:
        """Return how many bytes the operators of a query keep."""
        return bytes_of(self._states(query))

    def streams_of(self, query: str) -> set[str]:
        """Return the streams that a query reads."""
        if self.plan is None:
            return set()
        sources = (self.plan.nodes[at].source for at in self.plan.below(query))
        return {found.name for found in sources if found is not None and found.kind == "stream"}

    def waiting_rows(self, query: str) -> tuple[int, int]:
        """Return how many rows wait for time in the operators of a query, and the largest time.

        A row may wait in several operators: the one in which most do counts.
        """
        rows, latest = dict[str, int](), MIN_TIME
        digests = self.digests(query)
        for shard in self.manifest.states:
            for digest in digests & shard.keys():
                state = shard[digest]
                for name, runs in state["runs"].items():
                    if name.startswith("waiting.") or name == "pending":
                        some = sum(run["rows"] - run["skipped"] for run in runs)
                        rows[digest] = rows.get(digest, 0) + some
                times = (t for name, t in state["numbers"].items() if name.startswith("latest."))
                latest = max(latest, *times, MIN_TIME)
        return max(rows.values(), default=0), latest

    def _states(self, query: str) -> Iterator[Mapping[str, Any]]:
        digests = self.digests(query)
        for shard in self.manifest.states:
            yield from (shard[digest] for digest in digests & shard.keys())


def bytes_of(states: Iterable[Mapping[str, Any]]) -> int:
    """Return how many bytes the runs of some states take."""
    runs = (runs for state in states for runs in state["runs"].values())
    return sum(run["place"].get("length", 0) for some in runs for run in some)


@dataclass(frozen=True)
class _Recent:
    """A batch of which rates are taken: when it ended, how long it took, rows in and out."""

    ended_at: float
    seconds: float
    came: int
    left: Mapping[str, int]


def _partition(found: Partition, rules: TimeRules) -> PartitionState:
    return PartitionState(
        found.accepted + found.late,
        found.late,
        found.max_time,
        found.heartbeat(rules),
        found.slack(rules),
        found.idle,
    )


class Observer:
    """Makes the `Observation` of each batch, and adds up what is since the pipeline was opened.

    ``rules`` tells what a stream declares about its time.
    """

    def __init__(
        self, manifest: Manifest, rules: Callable[[str], TimeRules] = lambda _: TimeRules()
    ) -> None:
        self._rules = rules
        self._late = {name: told["late"] for name, told in manifest.progress.items()}
        self._fed: dict[str, dict[int, float]] = {}
        self._recent: deque[_Recent] = deque(maxlen=_RECENT)
        self.newest = Observation(manifest, streams=self._streams(manifest, {}))

    def observe(
        self, manifest: Manifest, plan: PhysicalPlan, outcome: Outcome, seconds: float
    ) -> Observation:
        """Take note of a committed batch."""
        before = self.newest
        streams = self._streams(manifest, before.streams)
        came = sum(stream.came for stream in streams.values())
        left: dict[str, int] = {}
        for result in manifest.results:
            left[result["query"]] = left.get(result["query"], 0) + result["rows"]
        self._recent.append(_Recent(time.monotonic(), seconds, came, left))
        queries = before.rows_out.keys() | left.keys()
        totals = dict(before.totals)
        for digest, effort in outcome.efforts.items():
            totals[digest] = totals.get(digest, Effort()) + effort
        self._feed(outcome)
        self.newest = Observation(
            manifest,
            plan,
            streams,
            before.batches + 1,
            seconds,
            dict(outcome.efforts),
            totals,
            before.rows_in + came,
            {q: before.rows_out.get(q, 0) + left.get(q, 0) for q in queries},
            self._rate(sum(recent.came for recent in self._recent)),
            {q: self._rate(sum(r.left.get(q, 0) for r in self._recent)) for q in queries},
            tuple(self._hot_shards(plan, manifest.shards)),
            tuple(split_keys(plan, manifest.hot)),
            tuple(recent.ended_at for recent in self._recent),
            {**before.last_served, **outcome.served},
            {
                query: before.services.get(query, Service()) + outcome.served.get(query, Service())
                for query in before.services.keys() | outcome.served.keys()
            },
            outcome.held,
            {**before.selections, **outcome.selections},
        )
        return self.newest

    def _streams(
        self, manifest: Manifest, before: Mapping[str, StreamState]
    ) -> dict[str, StreamState]:
        found = {}
        for name, described in manifest.progress.items():
            progress = Progress.of(described)
            rows, rules = progress.rows, self._rules(name)
            found[name] = StreamState(
                rows,
                rows - before[name].rows if name in before else rows,
                progress.late,
                progress.rejected,
                progress.max_time,
                progress.heartbeat,
                progress.late - self._late.get(name, 0),
                progress.idle,
                {key: _partition(part, rules) for key, part in progress.partitions.items()},
            )
        return found

    def _feed(self, outcome: Outcome) -> None:
        """Count the rows that keys have spread, by shard; older ones count less and less."""
        for what, shards in outcome.fed.items():
            counts = self._fed.setdefault(what, {})
            for shard, count in shards.items():
                counts[shard] = counts.get(shard, 0.0) + count
        self._fed = {
            what: {shard: rows * _FORGETTING for shard, rows in shards.items()}
            for what, shards in self._fed.items()
            if max(shards.values()) >= 1
        }

    def _hot_shards(self, plan: PhysicalPlan, shards: int) -> Iterator[HotShard]:
        """Yield where one shard gets far more of the rows that keys spread than its part.

        That is twice its part, or a fifth of all rows above it: with two shards nothing is twice.
        """
        bound = min(2 / shards, 1 / shards + 0.2)
        names = {plan.by_key(number): c.producer for number, c in enumerate(plan.channels)}
        for what, counts in self._fed.items():
            shard, most = max(counts.items(), key=lambda item: item[1])
            total = sum(counts.values())
            if what in names and total >= _FEW_ROWS and most > bound * total:
                node = plan.nodes[names[what]]
                by = what.split(" ", 1)[1]
                yield HotShard(node.digest, node.label, by, shard, most / total)

    def _rate(self, rows: int) -> float:
        """Return rows per second from the beginning of the first recent batch to now."""
        first, last = self._recent[0], self._recent[-1]
        span = last.ended_at - first.ended_at + first.seconds
        return rows / span if span > 0 else 0.0
