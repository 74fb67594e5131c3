"""What the live table shows: measured after each batch, read by anyone at any time."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from penstock.physical.plan import PhysicalPlan
from penstock.runs.manifest import Manifest

_FORGETTING = 0.9
"""What remains of the rows of a shard from one batch to the next."""

_FEW_ROWS = 100
"""So few rows say nothing about how keys are spread."""


@dataclass(frozen=True)
class Hot:
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
            f"so), the setting join.split lets several shards share every key"
        )


@dataclass
class Metrics:
    """Counters of a pipeline since it was started, and rates over the last batches."""

    batches: int = 0
    batch_seconds: float = 0.0
    batch_rows: dict[str, int] = field(default_factory=dict)
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    node_seconds: dict[str, float] = field(default_factory=dict)
    node_rows: dict[str, int] = field(default_factory=dict)

    reached: dict[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fed: dict[str, dict[int, float]] = {}
        self._recent: deque[tuple[float, int, dict[str, int]]] = deque(maxlen=50)

    def report(self, content: dict[str, Any]) -> None:
        """Add what a task reports: how far a source has come, or what a shard did."""
        if content["kind"] == "source":
            if content["reached"] is not None:
                path, place = content["reached"]
                self.reached[content["stream"]] = path, place
            return
        for digest, spent in content["seconds"].items():
            self.node_seconds[digest] = self.node_seconds.get(digest, 0.0) + spent
        for digest, count in content["rows"].items():
            self.node_rows[digest] = self.node_rows.get(digest, 0) + count
        for what, count in content["fed"].items():
            shards = self._fed.setdefault(what, {})
            shards[content["shard"]] = shards.get(content["shard"], 0.0) + count

    def hot_shards(self, plan: PhysicalPlan, shards: int) -> list[Hot]:
        """Return where one shard gets far more of the rows that keys spread than its part.

        That is twice its part, or a fifth of all rows above it: with two shards nothing is twice.
        """
        found = []
        bound = min(2 / shards, 1 / shards + 0.2)
        names = {plan.by_key(number): c.producer for number, c in enumerate(plan.channels)}
        for what, shares in list(self._fed.items()):
            counts = dict(shares)  # a batch may be adding to it
            shard, most = max(counts.items(), key=lambda item: item[1])
            total = sum(counts.values())
            if what in names and total >= _FEW_ROWS and most > bound * total:
                node = plan.nodes[names[what]]
                found.append(
                    Hot(node.digest, node.label, what.split(" ", 1)[1], shard, most / total)
                )
        return found

    def batch(self, before: Manifest, after: Manifest, seconds: float) -> None:
        """Take note of a committed batch."""
        self.batches += 1
        self._fed = {
            what: {shard: rows * _FORGETTING for shard, rows in shards.items()}
            for what, shards in self._fed.items()
            if max(shards.values()) >= 1
        }
        self.batch_seconds = seconds
        self.batch_rows = {
            name: rows - arrived(before, name)
            for name in after.progress
            if (rows := arrived(after, name))
        }
        came = sum(self.batch_rows.values())
        self.rows_in += came
        left: dict[str, int] = {}
        for result in after.results:
            left[result["query"]] = left.get(result["query"], 0) + result["rows"]
        for query, rows in left.items():
            self.rows_out[query] = self.rows_out.get(query, 0) + rows
        self._recent.append((time.monotonic(), came, left))

    @property
    def ended_at(self) -> list[float]:
        """When the last batches ended, by the monotonic clock."""
        return [ended for ended, _, _ in self._recent]

    def rate_in(self) -> float:
        """Return rows per second over the last batches."""
        return self._rate([came for _, came, _ in self._recent])

    def rate_out(self, query: str) -> float:
        """Return a query's rows per second over the last batches."""
        return self._rate([left.get(query, 0) for _, _, left in self._recent])

    def _rate(self, counts: list[int]) -> float:
        if len(counts) < 2:
            return 0.0
        span = self._recent[-1][0] - self._recent[0][0]
        return sum(counts[1:]) / span if span > 0 else 0.0


def arrived(manifest: Manifest, stream: str | None = None) -> int:
    """Return how many rows of all streams, or of one, came; late and rejected ones included."""
    return sum(
        p["accepted"] + p["late"] + p["rejected"]
        for name, p in manifest.progress.items()
        if stream in (None, name)
    )


def arrived_by_stream(manifest: Manifest) -> dict[str, int]:
    """Return how many rows of each stream came."""
    return {name: arrived(manifest, name) for name in manifest.progress}


def state_rows(manifest: Manifest, digests: set[str]) -> int:
    """Return how many rows the runs of some operators hold."""
    return sum(
        run["rows"] - run["skipped"]
        for shard in manifest.states
        for digest, state in shard.items()
        if digest in digests
        for runs in state["runs"].values()
        for run in runs
    )


def state_bytes(manifest: Manifest, digests: set[str]) -> int:
    """Return how many bytes the runs of some operators take."""

    def size(run: dict[str, Any]) -> int:
        length: int = run["place"].get("length", 0)
        return length

    return sum(
        size(run)
        for shard in manifest.states
        for digest, state in shard.items()
        if digest in digests
        for runs in state["runs"].values()
        for run in runs
    )
