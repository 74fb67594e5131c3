"""Windows by time: the validity of an element follows from its own time, by arithmetic.

With ``s`` the element's time, ``o`` the origin and ``up(x)`` the first pulse ``o + k*D >= x``
(semantics, section 2):

* ``RANGE T``: ``[s, s+T)``; ``NOW``: ``[s, s+1)``; unbounded and landmarks: ``[s, INF)``;
* ``RANGE T SLIDE D``: ``[up(s), up(s+T))``, nothing if that is empty;
* ``TUMBLE D`` and ``HOP T SLIDE D``: ``[up(s+1), up(s+T+1))``, nothing if that is empty;
* ``FIXED M``: ``[s, first o + k*M above s)``;
* ``SHIFT d``: ``d`` later than without it;
* the ends of the rows themselves: ``[s, e)``, for ever where ``e`` is null.

One remainder per row is enough for both pulses.  With ``p = (s - o) mod D``, ``s - p`` is a
pulse; and with ``T = w*D + e``, ``0 <= e < D``, ``up(s+T) = s - p + w*D + up'(p + e)``, where
``up'`` counts from 0: it is 0, D or 2*D. Times that would pass ``INF`` stay there.  The operator
has no state; told ends and heartbeats pass.

The bounds of a window are columns that change from pulse to pulse, so a row of ``HOP`` that shows
them is cut at the pulses: one row for each window it is in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.model import I64, INF, MIN_TIME, Batch, Closed, Message, to_numpy
from penstock.operators.base import Operator
from penstock.operators.spec import Spec
from penstock.windows import Bounds, WindowSpec, later, plus, since_pulse


@dataclass(frozen=True)
class TimeWindowSpec(Spec):
    """Give elements their validity in a ``window`` by time."""

    window: WindowSpec

    key = "time window/1"
    sliced = False
    holders = "none"

    def build(self) -> TimeWindowOperator:
        return TimeWindowOperator(self)

    @property
    def ends_rows(self) -> bool:
        return not self.window.unbounded


@dataclass(frozen=True)
class SharedWindowSpec(TimeWindowSpec):
    """The largest of some windows, for an input of a join that queries with all of them share.

    ``input`` names the input.  Queries come and go, so the window may change while it runs.
    """

    input: str = ""

    key = "shared window/1"
    tuned = frozenset(("window",))


class TimeWindowOperator(Operator):
    """Stamps stream elements with their validity in a window by time."""

    def __init__(self, spec: TimeWindowSpec) -> None:
        self.spec = spec.window

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        stamped = stamp(rows, self.spec)
        return (stamped,) if len(stamped) else ()

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        return (closed,)  # a row starts at its own time or later


def stamp(rows: Batch, spec: WindowSpec) -> Batch:
    """Return the elements inside the window, with their validity; ghosts are dropped."""
    low = max((b for b in (spec.origin, spec.after) if b is not None), default=None)
    if low is not None or spec.before is not None:
        inside = np.ones(len(rows), bool)
        if low is not None:
            inside &= rows.start >= low
        if spec.before is not None:
            inside &= rows.start <= spec.before
        rows = rows.take(inside)
    start, end = validity(rows.start, spec)
    if spec.until is not None:
        end = to_numpy(rows.columns[spec.until].cast(pa.int64()).fill_null(INF))
    stamped = Batch(rows.columns, start, end, np.zeros(len(start), np.int64))
    if spec.slide is not None or spec.range == 0 or spec.until is not None:
        stamped = stamped.drop_ghosts()
    if spec.bounds is not None:
        if spec.hop is not None and spec.slide is not None:
            stamped = _cut(stamped, spec.slide)
        stamped = _bounded(stamped, spec.bounds)
    if spec.shift is None:
        return stamped
    start, end = plus(stamped.start, spec.shift), plus(stamped.end, spec.shift)
    return Batch(stamped.columns, start, end, stamped.holder).drop_ghosts()


def _cut(rows: Batch, slide: int) -> Batch:
    """Cut rows, which start at pulses, at every pulse."""
    length = rows.end.view(np.uint64) - rows.start.view(np.uint64)  # may need all 64 bits
    pieces = ((length - np.uint64(1)) // np.uint64(slide)).astype(np.int64) + 1
    if not (pieces > 1).any():
        return rows
    before = np.cumsum(pieces) - pieces
    owner = np.repeat(np.arange(len(rows)), pieces)
    number = np.arange(len(owner)) - before[owner]
    start = rows.start[owner] + number * slide
    end = np.where(number + 1 < pieces[owner], start + slide, rows.end[owner])
    columns = tuple(c.take(pa.array(owner)) for c in rows.columns)
    return Batch(columns, start, end, np.zeros(len(owner), np.int64))


def _bounded(rows: Batch, bounds: Bounds) -> Batch:
    """Return rows with the columns that say in which window they are."""
    least = MIN_TIME + bounds.length
    made = {
        "window_start": np.where(rows.start < least, MIN_TIME, rows.start - bounds.length),
        "window_end": rows.start,
    }
    added = tuple(pa.array(made[name]).view(bounds.type) for name in bounds.names)
    return rows.with_columns((*rows.columns, *added))


def validity(time: I64, spec: WindowSpec) -> tuple[I64, I64]:
    """Return start and end of elements at ``time``."""
    origin = spec.pulses_from
    if spec.now:
        return time, plus(time, 1)
    if spec.fixed is not None:
        return time, later(time, spec.fixed - since_pulse(time, spec.fixed, origin))
    if spec.slide is None:
        return time, plus(time, INF if spec.range is None else spec.range)
    slide = spec.slide
    past = since_pulse(time, slide, origin)
    if spec.hop is not None:
        whole, part = divmod(spec.hop, slide)
        wait = slide - past
        start = later(time, wait)
        return start, later(time, wait + whole * slide + np.where(past >= slide - part, slide, 0))
    wait = np.where(past == 0, 0, slide - past)
    start = later(time, wait)
    if spec.range is None or spec.range > INF - 2 * slide:
        return start, plus(time, INF)
    whole, part = divmod(spec.range, slide)
    past += part
    length = np.where(past > slide, (whole + 2) * slide, (whole + 1) * slide)
    length[past == 0] -= slide
    length -= past - part
    return start, later(time, length)
