"""The last operator of a plan: turns a relation or stream into what its sink asked for.

* ``stream``: the elements, once their time is final;
* ``intervals``: the rows with both ends known. A determined row leaves at once, an open one when
  it is told; when the input is over, what is still open is valid for ever;
* ``log``: births and deaths with their sign, +1 or -1, as one more column; equal values that are
  born and die at one instant cancel.  A row that is valid for ever has no death;
* ``view``: the snapshot at ``as_of = min(until - 1, now)``, whole, whenever that instant moves on.
  All shards have the same heartbeat, so together their parts are the whole view.

The first two cost what they emit, the log keeps the mortal rows by their ends, the view all rows.
Negative tuples bring every row back when it dies: then only the view keeps any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.kernels.changes import net_changes, without_ghosts
from penstock.model import I64, INF, MIN_TIME, Batch, Deaths, Ends
from penstock.operators.base import SlicedOperator
from penstock.runs.lifetimes import Lifetimes

MODES = ("stream", "intervals", "log", "view")


class OutputOperator(SlicedOperator):
    """Delivers in one of `MODES`. ``as_of`` is the instant that the last view shows."""

    reads_deaths = True
    holders = "none"
    ends_rows = False

    def __init__(self, types: Sequence[pa.DataType], mode: str) -> None:
        super().__init__([types])
        if mode not in MODES:
            raise InternalError(f"an output's mode is one of {', '.join(MODES)}, got {mode!r}")
        self.mode = mode
        self.as_of = MIN_TIME
        self._types = tuple(types)

    def load(self) -> None:
        state = self.context.state
        self.as_of = state.numbers.get("as_of", MIN_TIME)
        self._lives = Lifetimes(
            state, "live", self._types, self.context.merging, keep_forever=self.mode == "view"
        )

    def save(self) -> None:
        if self.mode != "stream":
            self._lives.save()

    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        if self.mode == "stream":
            if len(rows[0]):
                yield _timed(rows[0], rows[0].start)
            return
        born = without_ghosts(rows[0], ends[0])
        if self.mode == "intervals":
            yield from self._intervals(born, ends[0], until)
        elif self.mode == "log":
            yield from self._log(born, ends[0], until)
        else:
            yield from self._view(born, ends[0], since, until)

    def _intervals(self, born: Batch, ends: Ends, until: int) -> Iterator[Batch]:
        held = born.holder != 0
        parts = [born.take(~held)] if not held.all() else []
        if isinstance(ends, Deaths):
            parts.append(ends.rows)
        else:
            parts.append(self._lives.turn(born.take(held), ends, until))
            if until == INF:
                parts.append(self._lives.live())
        rows = Batch.concat(parts)
        if len(rows):
            yield Batch(rows.columns, rows.start, rows.end, np.zeros(len(rows), np.int64))

    def _log(self, born: Batch, ends: Ends, until: int) -> Iterator[Batch]:
        died = self._died(born, ends, until)
        birth, death = net_changes(born, died)
        born, died = born.take(birth), died.take(death)
        if len(born) + len(died) == 0:
            return
        changes = Batch.concat([_timed(born, born.start), _timed(died, died.end)])
        sign = np.repeat(np.array([1, -1], np.int8), (len(born), len(died)))
        yield changes.with_columns((*changes.columns, pa.array(sign)))

    def _died(self, born: Batch, ends: Ends, until: int) -> Batch:
        return ends.died() if isinstance(ends, Deaths) else self._lives.turn(born, ends, until)

    def _view(self, born: Batch, ends: Ends, since: int, until: int) -> Iterator[Batch]:
        died = self._lives.turn(born, ends, until)
        numbers = self.context.state.numbers
        as_of = min(until - 1, self.context.now)
        if as_of <= self.as_of and "as_of" in numbers:
            return  # that instant was final when it was shown
        self.as_of = numbers["as_of"] = max(as_of, since - 1, MIN_TIME)
        rows = Batch.concat([died, self._lives.live()])
        shown = rows.take((rows.start <= self.as_of) & (rows.end > self.as_of))
        yield _timed(shown, shown.start)


def _timed(rows: Batch, time: I64) -> Batch:
    """Return the values of ``rows`` at ``time``."""
    return Batch(
        rows.columns, time, np.full(len(rows), INF, np.int64), np.zeros(len(rows), np.int64)
    )
