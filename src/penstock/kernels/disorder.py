"""How far rows come behind the newest row before them: a histogram, and the slack that follows it.

``SLACK AUTO`` needs the slack that would have kept a share of the recent rows.  Delays are counted
in buckets that are an eighth of a power of two wide.  The slack changes only behind certain rows,
counted from the beginning of a partition: behind the 16th, the 32nd, .. the 1024th, and from then
on behind every 1024th.  So it depends on the rows alone, not on how they were cut into batches.

Older rows count less: what was counted is multiplied by `decay` before the next 1024 rows are
added, so that about `_TAIL` rows of those that are kept in mind lie beyond the slack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.model import I64

FIRST = 16
"""Before so many rows nothing is known of their disorder."""

EVERY = 1024
"""Rows after which the slack follows anew."""

BUCKETS = 1 + 8 * 61
_TAIL = 50.0


def bucket_of(delay: I64) -> I64:
    """Return the bucket of each delay; those beyond 2**61 share the last one."""
    exponent = np.frexp(np.maximum(delay, 1).astype(np.float64))[1].astype(np.int64) - 1
    exponent -= (delay >> exponent) == 0  # a double rounds 2**60 - 1 up to 2**60
    part = np.where(
        exponent >= 3, delay >> np.maximum(exponent - 3, 0), delay << np.maximum(3 - exponent, 0)
    )
    found: I64 = np.where(delay <= 0, 0, np.minimum(1 + 8 * exponent + (part & 7), BUCKETS - 1))
    return found


def edge(bucket: int) -> int:
    """Return the largest delay of a bucket."""
    if bucket == 0:
        return 0
    exponent, part = divmod(bucket - 1, 8)
    return max(1, ((9 + part) << exponent) // 8 - (exponent >= 3))


@dataclass(frozen=True)
class Disorder:
    """What is known of the disorder of a partition after ``rows`` rows.

    ``counts`` are the delays up to the last change of the slack, by bucket, ``fresh`` those since.
    ``slack`` is None until enough is known.
    """

    rows: int = 0
    slack: int | None = None
    counts: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(BUCKETS))
    fresh: I64 = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))

    @property
    def until_change(self) -> int:
        """How many rows come before the slack changes again."""
        rows = self.rows
        if rows < FIRST:
            return FIRST - rows
        if rows < EVERY:
            return (1 << rows.bit_length()) - rows
        return EVERY - rows % EVERY

    def after(self, delay: I64, keeping: float) -> Disorder:
        """Return what is known after some rows, at most up to the next change."""
        fresh = self.fresh + np.bincount(bucket_of(delay), minlength=BUCKETS)
        if len(delay) < self.until_change:
            return Disorder(self.rows + len(delay), self.slack, self.counts, fresh)
        counts = self.counts * decay(keeping) + fresh
        slack = slack_of(counts, keeping)
        return Disorder(self.rows + len(delay), slack, counts, np.zeros(BUCKETS, np.int64))

    def describe(self) -> dict[str, Any]:
        """Return it as JSON can hold it: only buckets that are not empty."""
        used = np.flatnonzero((self.counts > 0) | (self.fresh > 0))
        listed = zip(
            used.tolist(), self.counts[used].tolist(), self.fresh[used].tolist(), strict=True
        )
        return {"rows": self.rows, "slack": self.slack, "delays": [list(one) for one in listed]}

    @staticmethod
    def of(described: dict[str, Any]) -> Disorder:
        """The inverse of `describe`."""
        counts, fresh = np.zeros(BUCKETS), np.zeros(BUCKETS, np.int64)
        for bucket, old, new in described["delays"]:
            counts[bucket], fresh[bucket] = old, new
        return Disorder(described["rows"], described["slack"], counts, fresh)


def decay(keeping: float) -> float:
    """Return what remains of a count from one change of the slack to the next."""
    return min(max(1.0 - EVERY * (1.0 - keeping) / _TAIL, 0.5), 0.999)


def slack_of(counts: npt.NDArray[np.float64], keeping: float) -> int:
    """Return the smallest slack that keeps the share of the rows.

    Where too few are known for that share, it is twice the largest delay.
    """
    beyond = (1.0 - keeping) * float(counts.sum())
    highest = int(np.flatnonzero(counts > 0)[-1])
    if beyond < 1.0:
        return 2 * edge(highest)
    above = np.cumsum(counts[::-1])[::-1] - counts
    return edge(int(np.argmax(above <= beyond)))
