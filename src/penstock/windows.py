"""What a window is: one frozen specification for every window of the semantics, section 2."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from penstock.model import I64, INF

BOUNDS = ("window_start", "window_end")
"""The columns that say in which window a row is."""

LONGEST = 2**61 - 1
"""The longest duration, in chronons: sums of three durations, or of two and a time, fit 64 bits."""


@dataclass(frozen=True)
class Bounds:
    """Columns that a window adds behind those of its input: ``names``, of ``BOUNDS``.

    ``window_end`` is the instant at which the row enters, ``window_start`` the ``length`` of the
    window before it; of a session, its first time.  ``type`` is TIMESTAMP or BIGINT.
    """

    type: pa.DataType
    length: int = 0
    names: tuple[str, ...] = BOUNDS


@dataclass(frozen=True, repr=False)
class WindowSpec:
    """A window over a stream.

    Exactly the fields of the CQL text; ``None`` where the text is silent.  ``WindowSpec()`` with no
    field set is the unbounded window.  All times and durations are chronons.

    * ``rows``: ``ROWS N``; with ``rows_slide``: ``ROWS N SLIDE M``.
    * ``range``: ``RANGE T``; with ``slide``: ``RANGE T SLIDE D``; ``RANGE UNBOUNDED SLIDE D`` is
      ``range=INF, slide=D``.  ``rows`` and ``range`` together: both hold, the earlier end wins.
    * ``hop``: ``HOP T SLIDE D`` with ``slide``, ``TUMBLE T`` if both are T.  Their pulses are moved
      by ``offset``, which ignores no element.
    * ``now``: ``NOW``; ``fixed``: ``FIXED M``; ``session``: ``SESSION G``.
    * ``after``, ``before``: landmarks, may be combined.
    * ``partition_by``: positions of input columns, only with ``rows`` or ``session``.
    * ``origin``: ``START x``: elements with ``t < x`` are ignored, pulses count from ``x``.
    * ``bounds``: columns that say in which window a row is.  A row of HOP is then one row for each
      window, which lasts from one pulse to the next.
    """

    rows: int | None = None
    rows_slide: int | None = None
    range: int | None = None
    slide: int | None = None
    now: bool = False
    fixed: int | None = None
    session: int | None = None
    after: int | None = None
    before: int | None = None
    partition_by: tuple[int, ...] = ()
    origin: int | None = None
    hop: int | None = None
    offset: int | None = None
    bounds: Bounds | None = None

    def __repr__(self) -> str:
        """Return all fields, the newer ones where they are set: plans are known by this text."""
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in ("hop", "offset", "bounds") or getattr(self, f.name) is not None
        ]
        return f"WindowSpec({', '.join(shown)})"

    @property
    def pulses_from(self) -> int:
        """Where pulses are counted from."""
        return (self.origin or 0) + (self.offset or 0)

    @property
    def by_time(self) -> bool:
        """Whether the end is known from the element's time alone (no row count, no session)."""
        return self.rows is None and self.session is None

    @property
    def drops_rows(self) -> bool:
        """Whether some elements are in no snapshot, by their time or by what follows them."""
        bounds = (self.origin, self.after, self.before, self.slide)
        return not self.by_time or any(b is not None for b in bounds)

    @property
    def unbounded(self) -> bool:
        """Whether elements never leave this window."""
        return (
            self.by_time
            and (self.range is None or self.range == INF)
            and not self.now
            and self.fixed is None
            and self.hop is None
        )


def plus(time: I64, duration: int) -> I64:
    """Return ``time + duration``, ``INF`` where that would overflow."""
    if duration == INF:
        return np.full(len(time), INF, np.int64)
    return np.where(time > INF - duration, INF, time + duration)
