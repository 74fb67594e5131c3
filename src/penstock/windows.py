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
      ``range=INF, slide=D``.  ``rows`` and ``range`` together: both hold, the earlier end wins;
      with ``slide`` as well, what both hold at a pulse stays until the next one.
    * ``hop``: ``HOP T SLIDE D`` with ``slide``, ``TUMBLE T`` if both are T.  Their pulses are moved
      by ``offset``, which ignores no element.
    * ``now``: ``NOW``; ``fixed``: ``FIXED M``; ``session``: ``SESSION G``.
    * ``after``, ``before``: landmarks, may be combined.
    * ``partition_by``: positions of input columns, only with ``rows`` or ``session``.
    * ``origin``: ``START x``: elements with ``t < x`` are ignored, pulses count from ``x``.
    * ``shift``: ``SHIFT d``: everything happens ``d`` later, births, deaths and pulses.
    * ``until``: position of the column that holds the end of a row, of a stream declared with
      ``TIMESTAMP BY s UNTIL e``; such a window has no other part.
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
    shift: int | None = None
    until: int | None = None

    def __repr__(self) -> str:
        """Return all fields, the newer ones where they are set: plans are known by this text."""
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name not in ("hop", "offset", "bounds", "shift", "until")
            or getattr(self, f.name) is not None
        ]
        return f"WindowSpec({', '.join(shown)})"

    @property
    def pulses_from(self) -> int:
        """Where pulses are counted from, without SHIFT."""
        return (self.origin or 0) + (self.offset or 0)

    @property
    def is_late(self) -> bool:
        """Whether elements may come into the window later than at their own time."""
        return any(m is not None for m in (self.slide, self.rows_slide, self.shift))

    @property
    def pattern(self) -> str:
        """The update pattern of what is in the window, see `penstock.algebra.update_pattern`."""
        if not self.by_time:
            return "strict"
        if self.until is not None:
            return "weak"
        return "monotonic" if self.unbounded else "weakest"

    @property
    def by_time(self) -> bool:
        """Whether the end is known from the element's time alone (no row count, no session)."""
        return self.rows is None and self.session is None

    @property
    def drops_rows(self) -> bool:
        """Whether some elements are in no snapshot, by their time or by what follows them."""
        bounds = (self.origin, self.after, self.before, self.slide, self.shift, self.until)
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
            and self.until is None
        )


def plus(time: I64, duration: int) -> I64:
    """Return ``time + duration``, ``INF`` where that would overflow."""
    if duration == INF:
        return np.full(len(time), INF, np.int64)
    return np.where(time > INF - duration, INF, time + duration)


def since_pulse(time: I64, slide: int, origin: int) -> I64:
    """Return how long ago the last pulse at or before each time was; nothing overflows."""
    past = time - time // slide * slide  # faster than the remainder
    offset = origin % slide
    if offset:
        past -= offset
        past = np.where(past < 0, past + slide, past)
    return past


def later(time: I64, wait: I64) -> I64:
    """Return ``time + wait`` (waits are not negative), ``INF`` where that would overflow."""
    result = time + wait
    if len(time) and int(time.max()) + int(wait.max()) > INF:
        result[result < time] = INF
    return result


def up(time: I64, slide: int, origin: int) -> I64:
    """Return the first pulse at or after each time, ``INF`` where there is none below it."""
    past = since_pulse(time, slide, origin)
    return later(time, np.where(past == 0, 0, slide - past))
