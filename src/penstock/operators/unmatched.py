"""The rows of one side of a join while they have no partner: the heart of outer and anti joins.

Port 0 brings the rows of the side, each with its number (`operators.row_numbers`) in the last
column; port 1 brings, for every pair that the join made, the number of its row.  A pair is valid
only while its row is.  With ``n(t)`` the number of pairs of a row that are valid at ``t``, the
output holds the row at every ``t`` of its validity with ``n(t) = 0``.

``n`` is a step function: +1 where a pair starts, -1 where it ends.  A slice looks only at the rows
that something happened to.  Of each live row the state keeps, under its number,

* ``counts``: how many pairs it has now, and the holder of its open output row (0: none);
* ``values``: its columns and its end, for when its last partner dies.

An output row ends with its input row or with the next pair, whichever is earlier; so it carries the
end of the input row as its bound, and a holder that is told when a pair comes.  When an input row
without a holder ends, nothing needs to happen: the bound has said it, and what its pairs do at that
instant does not matter any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import Steps, integers, match_copies, order_events
from penstock.kernels.covers import dense_numbers
from penstock.kernels.keys import Keys
from penstock.model import (
    I64,
    INF,
    Batch,
    Closed,
    Ends,
    Mask,
    Message,
    Settled,
    to_mask,
    to_numpy,
)
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes

_NUMBER = pa.int64()
_COUNTS = (pa.int64(), pa.int64())
"""The columns of ``counts``: pairs, holder."""


@dataclass(frozen=True)
class UnmatchedSpec(Spec):
    """Keep numbered rows while they have no partner.

    ``types`` are those of the rows without the number; so is the output.
    """

    types: Sequence[pa.DataType]

    key = "unmatched/1"

    def build(self) -> UnmatchedOperator:
        return UnmatchedOperator(self)


class UnmatchedOperator(SlicedOperator):
    """Rows of port 0, whose last column is their number, while no number of port 1 is theirs."""

    reads_deaths = True

    def __init__(self, spec: UnmatchedSpec) -> None:
        super().__init__(((*spec.types, _NUMBER), (_NUMBER,)))

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._kept = (*self.input_types[0][:-1], pa.int64())
        row = (_NUMBER, pa.bool_())
        self._rows_alive = Lifetimes(state, "rows", row, merging, keep_forever=False)
        self._pairs_alive = Lifetimes(state, "pairs", [_NUMBER], merging, keep_forever=False)
        self._counts = KeyedState(state, "counts", _COUNTS, merging)
        self._values = KeyedState(state, "values", self._kept, merging)

    def save(self) -> None:
        for shelf in (self._rows_alive, self._pairs_alive, self._counts, self._values):
            shelf.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        ends, until = slice.ends, slice.until
        new, pairs = (without_ghosts(r, e) for r, e in zip(slice.rows, ends, strict=True))
        rows_brought, pairs_brought = slice.deaths(0), slice.deaths(1)
        if rows_brought is not None:
            gone = _followed(rows_brought.died())
        else:
            gone = self._rows_alive.advance(_followed(new), ends[0], until)
        if pairs_brought is not None:
            parted = pairs_brought.died()
        else:
            parted = self._pairs_alive.advance(pairs, ends[1], until)
        parts = (new.columns[-1], pairs.columns[0], gone.columns[0], parted.columns[0])
        numbers, code = dense_numbers(np.concatenate([to_numpy(c) for c in parts]))
        if len(numbers) == 0:
            return
        codes = np.split(code, np.cumsum([len(c) for c in parts])[:-1])
        over = np.full(len(numbers), INF, np.int64)
        over[codes[2]] = gone.end
        told = np.flatnonzero(to_mask(gone.columns[1]))
        early = np.flatnonzero(parted.end < over[codes[3]])
        events = (
            (codes[0], new.start),
            (codes[1], pairs.start),
            (codes[2][told], gone.end[told]),
            (codes[3][early], parted.end[early]),
        )
        yield from self._advance(numbers, events, new, over, until)
        self._forget(numbers, codes)

    def uses_part(self, port: int, closed: Closed) -> bool:
        return port == 1 and closed.numbered and closed.on == (0,)

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Forget the rows that have no partner and get none: they end at their own ends."""
        numbers = closed.high.view(np.int64)
        found, columns = self._counts.get(_keys(numbers))
        partners, holder = (integers(c) for c in columns)
        alone = np.flatnonzero(found & (partners == 0) & (holder != 0))
        yield Settled(np.sort(holder[alone]))
        self._drop(numbers[alone])

    def _advance(
        self,
        numbers: I64,
        events: Sequence[tuple[I64, I64]],
        new: Batch,
        over: I64,
        until: int,
    ) -> Iterator[Batch | Ends]:
        """Follow the rows that something happened to through the slice.

        ``events`` are codes and times: of new rows, new pairs, deaths of held rows, and deaths of
        pairs before that of their row.  ``over`` is the end of each row that died.
        """
        touched = np.zeros(len(numbers), bool)
        for code, _ in events:
            touched[code] = True
        rank = np.cumsum(touched) - 1
        here = np.flatnonzero(touched)
        if len(here) == 0:
            return
        numbers, over = numbers[here], over[here]
        codes = [rank[code] for code, _ in events]
        count = len(here)
        times = (np.zeros(count, np.int64), *(time for _, time in events))
        steps = order_events(
            np.concatenate((np.arange(count), *codes)), np.concatenate(times), count
        )
        fresh = np.full(count, -1, np.int64)  # where a row stands among the new ones
        fresh[codes[0]] = np.arange(len(new))
        found, partners, holder = self._known(numbers, fresh)
        sizes = [len(code) for code in codes]
        alive = _running(steps, found.astype(np.int64), (1, 0, -1, 0), sizes)
        matched = _running(steps, partners, (0, 1, 0, -1), sizes)
        copies = match_copies(steps, ((alive > 0) & (matched == 0)).astype(np.int64))
        dead = copies.dead_code
        tell = holder[dead] != 0
        if tell.any():
            yield Ends.of(holder[dead[tell]], steps.time[copies.dead_step[tell]])
        columns, bound = self._content(numbers, fresh, new, copies.born_code)
        known = copies.born_until >= 0
        end = np.where(known, steps.time[copies.born_until], bound)
        open_ = ~known & (end > until)
        made = np.zeros(len(end), np.int64)
        made[open_] = self.context.new_holders(int(open_.sum()))
        if len(end):
            yield Batch(columns, steps.time[copies.born_step], end, made)
        holder[dead] = 0
        holder[copies.born_code[open_]] = made[open_]
        kept = np.flatnonzero(over == INF)
        state = (matched[steps.finish - 1], holder)
        self._counts.put(_keys(numbers[kept]), [pa.array(c[kept]) for c in state])
        some = kept[fresh[kept] >= 0]
        at = pa.array(fresh[some])
        values = [c.take(at) for c in (*new.columns[:-1], pa.array(new.end))]
        self._values.put(_keys(numbers[some]), values)

    def _forget(self, numbers: I64, codes: Sequence[I64]) -> None:
        """Remove the rows that died, except those that were never written."""
        old = np.ones(len(numbers), bool)
        old[codes[0]] = False
        self._drop(numbers[codes[2][old[codes[2]]]])

    def _drop(self, numbers: I64) -> None:
        keys = _keys(np.sort(numbers))
        for shelf, types in ((self._counts, _COUNTS), (self._values, self._kept)):
            nothing = [pa.nulls(len(keys), t) for t in types]
            shelf.put(keys, nothing, np.zeros(len(keys), bool))

    def _known(self, numbers: I64, fresh: I64) -> tuple[Mask, I64, I64]:
        """Return which rows are old, and the number of pairs and the holder of each."""
        found = np.zeros(len(numbers), bool)
        partners, holder = (np.zeros(len(numbers), np.int64) for _ in range(2))
        old = np.flatnonzero(fresh < 0)
        found[old], columns = self._counts.get(_keys(numbers[old]))
        partners[old], holder[old] = (integers(c) for c in columns)
        return found, partners, holder

    def _content(
        self, numbers: I64, fresh: I64, new: Batch, code: I64
    ) -> tuple[tuple[pa.Array, ...], I64]:
        """Return the columns and the ends of rows, new or from the state."""
        at = fresh[code]
        old = np.flatnonzero(at < 0)
        columns = [*new.columns[:-1], pa.array(new.end)]
        if len(old):
            missing, place = np.unique(code[old], return_inverse=True)
            at[old] = len(new) + place
            _, kept = self._values.get(_keys(numbers[missing]))
            columns = [pa.concat_arrays(pair) for pair in zip(columns, kept, strict=True)]
        index = pa.array(at)
        taken = [c.take(index) for c in columns]
        return tuple(taken[:-1]), to_numpy(taken[-1])


def _followed(rows: Batch) -> Batch:
    """Return of rows what is kept until they die: their number, and whether they have a holder."""
    return rows.with_columns((rows.columns[-1], pa.array(rows.holder != 0)))


def _running(steps: Steps, before: I64, changes: Sequence[int], sizes: Sequence[int]) -> I64:
    """Return a count at every step: what it was before, and its change by each kind of event."""
    return steps.running(np.concatenate((before, np.repeat(changes, sizes)))[steps.order])


def _keys(numbers: I64) -> Keys:
    """Return numbers as keys: they are as good as hashes, and new ones sort behind old ones."""
    return Keys(numbers.view(np.uint64), np.zeros(len(numbers), np.uint64))
