"""The last operator of a plan: turns a relation or stream into what its sink asked for.

* ``stream``: the elements, once their time is final;
* ``intervals``: the rows with both ends known. A determined row leaves at once, an open one when
  it is told, or when it is known that it never will be; when the input is over, what is still
  open is valid for ever;
* ``log``: births and deaths with their sign, +1 or -1, as one more column; equal values that are
  born and die at one instant cancel.  A row that is valid for ever has no death;
* ``view``: the snapshot at ``as_of = min(until - 1, now)``, whole, whenever that instant moves on.
  All shards have the same heartbeat, so together their parts are the whole view;
* ``delta``: the same views as differences: the rows that came and went, with their sign, from the
  instant ``before`` to ``as_of``.  The first one is a whole view, ``before`` is None;
* ``kept``: nothing leaves.  The rows stay in the state, for questions about any instant from
  ``low`` on, which is ``keep`` behind the last final instant of the slowest kept relation.  So all
  of them can be asked about one instant together.

Where nothing that comes later can change a row (`penstock.physical.at_once` says when), the first
three let it go ``at_once``, when it comes: nothing waits, and there is no state.

The first two cost what they emit; the log and the delta keep the mortal rows by their ends, the
view and the kept relation all rows (`penstock.runs.kept`).  With negative tuples every row comes
back when it dies, so only the view and the kept relation keep any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.kernels.changes import lasting, net_changes, without_ghosts
from penstock.model import I64, INF, MIN_TIME, Batch, Closed, Ends, Message, Settled
from penstock.operators.base import SlicedOperator, few
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.kept import Kept
from penstock.runs.lifetimes import Lifetimes

MODES = ("stream", "intervals", "log", "view", "delta", "kept")
HELD = "live"
"""The name under which a view or a kept relation holds its rows."""


@dataclass(frozen=True)
class OutputSpec(Spec):
    """Deliver in one of `MODES`.

    ``keep`` is for how long a kept relation can be asked about the past, ``timestamps`` whether
    its time is counted in timestamps.  ``at_once``: rows, which are all determined, wait for
    nothing.  ``final``: they are made by an operator that waits, so intervals leave as they come.
    """

    types: Sequence[pa.DataType]
    mode: str
    keep: int = 0
    timestamps: bool = False
    at_once: bool = False
    final: bool = False

    key = "output/1"
    tuned = frozenset(("final",))
    holders = "none"

    def build(self) -> OutputOperator:
        return OutputOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False


class OutputOperator(SlicedOperator):
    """Delivers in one of `MODES`.

    ``as_of`` is the instant that the last view shows, ``before`` the one that was shown before it.
    """

    reads_deaths = True

    def __init__(self, spec: OutputSpec) -> None:
        super().__init__([spec.types])
        if spec.mode not in MODES:
            raise InternalError(f"an output's mode is one of {', '.join(MODES)}, got {spec.mode!r}")
        self.mode = spec.mode
        self._at_once = spec.at_once
        self._final = spec.final and spec.mode == "intervals"
        self._leaving: list[Batch] = []
        self.as_of = MIN_TIME
        self.before: int | None = None
        self.timestamps = spec.timestamps
        self._keep = spec.keep
        self._types = tuple(spec.types)

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        if self._final:
            return (rows,)
        if not self._at_once:
            return super().on_rows(port, rows)
        self._leaving.append(rows)
        return ()

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        # every batch ends with a heartbeat, though it may not have grown
        parts, self._leaving = self._leaving, []
        yield from map(self._as_they_are, few(parts))
        yield from super().on_progress(port, time)

    def _as_they_are(self, rows: Batch) -> Batch:
        """Return rows that leave although more may come of their time."""
        if self.mode == "intervals":
            return rows
        leaving = _timed(rows, rows.start)
        if self.mode == "stream":
            return leaving
        return leaving.with_columns((*rows.columns, pa.array(np.ones(len(rows), np.int8))))

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self.as_of = state.numbers.get("as_of", MIN_TIME)
        if self.mode in ("view", "kept"):
            self._kept = Kept(state, HELD, self._types, merging)
        else:
            self._lives = Lifetimes(state, HELD, self._types, merging, keep_forever=False)

    def save(self) -> None:
        if self._leaving:
            raise InternalError("rows that leave at once must have left before their batch ends")
        if self.mode in ("view", "kept"):
            self._kept.save()
        elif self.mode != "stream":
            self._lives.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        if self.mode == "intervals":
            yield from self._intervals(slice)
            return
        rows = slice.rows[0]
        if self.mode == "stream":
            if len(rows):
                yield _timed(rows, rows.start)
            return
        born = without_ghosts(rows, slice.ends[0])
        if self.mode == "log":
            changes = self._changes(born, slice)
            if len(changes):
                yield changes
        elif self.mode == "view":
            yield from self._view(born, slice)
        elif self.mode == "delta":
            yield from self._delta(born, slice)
        else:
            self._hold(born, slice)

    def on_settled(self, port: int, settled: Settled) -> Iterable[Message]:
        if self.mode == "intervals":
            holder = settled.holder.view(np.uint64)
            ever = np.full(len(holder), INF)
            waiting = Closed((), holder, np.zeros_like(holder), ever, numbered=True)
            self.waiting_parts.add(port, waiting, self.inbox.newest)
        return ()

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Deliver the rows whose holders, which is what waited, are never told."""
        if self.since < INF:  # otherwise all have left
            rows = self._lives.release(closed.high.view(np.int64))
            if len(rows):
                yield rows

    def _intervals(self, slice: Slice) -> Iterator[Batch]:
        """Yield the rows whose ends are known now, those that came in this slice and older ones."""
        ready, waiting = [], []
        for rows in slice.parts[0]:
            held = rows.holder != 0
            if held.all():
                waiting.append(rows)
                continue
            if held.any():
                waiting.append(rows.take(held))
                rows = rows.take(~held)
            ready.append(rows.drop_ghosts())
        brought = slice.deaths(0)
        if brought is not None:
            ready += brought.parts
        else:
            ready += self._lives.turn_parts(few(waiting), slice.ends[0], slice.until)
            if slice.until == INF:
                ready.append(self._lives.live())
        for rows in few([some for some in ready if len(some)]):
            yield Batch(rows.columns, rows.start, rows.end, np.zeros(len(rows), np.int64))

    def _changes(self, born: Batch, slice: Slice) -> Batch:
        """Return births and deaths at their times, with their sign as the last column."""
        brought = slice.deaths(0)
        if brought is not None:
            died = brought.died()
        else:
            died = self._lives.advance(born, slice.ends[0], slice.until)
        birth, death = net_changes(born, died)
        born, died = born.take(birth), died.take(death)
        changes = Batch.concat([_timed(born, born.start), _timed(died, died.end)])
        sign = np.repeat(np.array([1, -1], np.int8), (len(born), len(died)))
        return changes.with_columns((*changes.columns, pa.array(sign)))

    def _view(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        """Yield the snapshot at the instant that the view shows now, if that has moved on."""
        moves = self._moves(slice)
        self.context.state.numbers["newest"] = self.context.now
        self._kept.advance(born, slice.ends[0], slice.until, self.as_of)
        if moves:
            shown = self._kept.snapshot(self.as_of)
            yield _timed(shown, shown.start)

    def _hold(self, born: Batch, slice: Slice) -> None:
        """Keep the rows, and let go of those that no question can be about any more."""
        now, slowest = self.context.now, self.context.slowest
        self.context.state.numbers["newest"] = now
        last = min(slice.until, slowest) - 1
        low = min(last, now) - self._keep if self._keep < INF else MIN_TIME
        self._kept.advance(born, slice.ends[0], slice.until, max(low, MIN_TIME))

    def _delta(self, born: Batch, slice: Slice) -> Iterator[Batch]:
        """Yield the changes up to the instant that is shown now; later ones wait in the state."""
        state = self.context.state
        waiting = [Batch.from_table(run.table()) for run in state.runs("unshown")]
        changes = Batch.concat([self._changes(born, slice), *waiting])
        moves = self._moves(slice)
        due = changes.start <= self.as_of if moves else np.zeros(len(changes), bool)
        state.drop("unshown")
        if slice.until < INF:  # nothing is shown after the end
            state.append("unshown", changes.take(~due).to_table())
        if moves:
            yield lasting(changes.take(due))

    def _moves(self, slice: Slice) -> bool:
        """Move on to the instant that a view shows; False when it was shown already."""
        numbers = self.context.state.numbers
        as_of = min(slice.until - 1, self.context.now)
        if as_of <= self.as_of and "as_of" in numbers:
            return False  # that instant was final when it was shown
        self.before = numbers.get("as_of")
        self.as_of = numbers["as_of"] = max(as_of, slice.since - 1, MIN_TIME)
        return True


def _timed(rows: Batch, time: I64) -> Batch:
    """Return the values of ``rows`` at ``time``."""
    return Batch(
        rows.columns, time, np.full(len(rows), INF, np.int64), np.zeros(len(rows), np.int64)
    )
