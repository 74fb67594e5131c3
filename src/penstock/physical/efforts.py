"""What operators did: in one batch, and what is known of them from all batches before.

Older batches count less, so that what is known follows the load.  It is kept with the manifest, and
policies that order operators by their cost begin a restarted pipeline with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TypeAlias

from penstock.schedule.board import Known, Promise

_FORGETTING = 0.9
"""What remains of what was measured from one batch in which an operator worked to the next."""


@dataclass(frozen=True)
class Effort:
    """What an operator did: seconds, rows and bytes that came and left.

    ``queued`` is how many messages waited for it at once, at most, in one shard.
    """

    seconds: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    queued: int = 0
    bytes_in: int = 0

    def __add__(self, other: Effort) -> Effort:
        return Effort(
            self.seconds + other.seconds,
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.bytes_out + other.bytes_out,
            max(self.queued, other.queued),
            self.bytes_in + other.bytes_in,
        )

    def told(self) -> tuple[float | int, ...]:
        """Return its fields, for a report."""
        return (
            self.seconds,
            self.rows_in,
            self.rows_out,
            self.bytes_out,
            self.queued,
            self.bytes_in,
        )


@dataclass(frozen=True)
class Service:
    """How soon a query got its answers: rows, what they were worth, the first and last of a batch.

    ``utility`` is the sum over all rows (`penstock.schedule.board.Promise`); times are in seconds
    since the batch began.
    """

    rows: int = 0
    utility: float = 0.0
    first: float = math.inf
    last: float = 0.0

    def __add__(self, other: Service) -> Service:
        return Service(
            self.rows + other.rows,
            self.utility + other.utility,
            min(self.first, other.first),
            max(self.last, other.last),
        )

    def told(self) -> tuple[float | int, ...]:
        """Return its fields, for a report."""
        return astuple(self)


class Served:
    """Notes when answers are made, since a batch ``began``."""

    def __init__(self, began: float) -> None:
        self._began = began or time.time()
        self.queries: dict[str, Service] = {}

    def note(self, query: str, rows: int, promise: Promise) -> None:
        """Note that rows of an answer are there."""
        latency = max(0.0, time.time() - self._began)
        new = Service(rows, rows * promise.utility(latency), latency, latency)
        self.queries[query] = self.queries.get(query, Service()) + new


Measured: TypeAlias = Mapping[str, Sequence[float]]
"""Seconds, rows in and out, bytes in and out by digest; of many batches, older ones less."""


def measured_after(before: Measured, efforts: Mapping[str, Effort]) -> dict[str, Sequence[float]]:
    """Return what is known of operators after a batch in which they did something."""
    found: dict[str, Sequence[float]] = dict(before)
    for digest, done in efforts.items():
        if done.rows_in:
            new = (done.seconds, done.rows_in, done.rows_out, done.bytes_in, done.bytes_out)
            known = before.get(digest, ())
            known = known if _is_sound(known) else (0.0,) * len(new)
            sums = (_FORGETTING * a + b for a, b in zip(known, new, strict=True))
            found[digest] = tuple(float(f"{value:.4g}") for value in sums)
    return found


def _is_sound(measured: Sequence[float]) -> bool:
    """Whether numbers can have been measured of an operator that worked."""
    return (
        len(measured) == 5
        and all(0 <= number < math.inf for number in measured)
        and measured[1] > 0
    )


def known_of(measured: Sequence[float]) -> Known:
    """Return what policies need to know of an operator."""
    seconds, rows_in, rows_out, bytes_in, bytes_out = measured
    return Known(
        max(seconds / rows_in, 1e-12),
        rows_out / rows_in,
        bytes_in / rows_in,
        bytes_out / rows_out if rows_out else 0.0,
    )


@dataclass(frozen=True)
class Experience:
    """What the tasks of a batch are told for their schedulers.

    ``measured`` is what is known of operators, ``began`` when the batch began, in seconds of the
    wall's clock; 0: when the task does.
    """

    measured: Measured = field(default_factory=dict)
    began: float = 0.0

    def known(self, digest: str) -> Known | None:
        """Return what is known of an operator; None: it has not run yet."""
        found = self.measured.get(digest, ())
        return known_of(found) if _is_sound(found) else None
