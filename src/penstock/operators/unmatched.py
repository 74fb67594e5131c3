"""The rows of one side of a join while they have no partner: the heart of outer and anti joins.

Port 0 brings the rows of the side, each with its number (`penstock.operators.tag`) in the last
column; port 1 brings, for every pair that the join made, the number of its row.  A pair is valid
only while its row is.  With ``n(t)`` the number of pairs of a row that are valid at ``t``, the
output holds the row at every ``t`` of its validity with ``n(t) = 0``.

``n`` is a step function: +1 where a pair starts, -1 where it ends.  A slice looks only at the rows
that something happened to.  Of each live row the state keeps, under its number,

* ``counts``: how many pairs it has now, the holder of its open output row (0: none), and whether
  the row itself has a holder;
* ``values``: its columns and its end, for when its last partner dies.

An output row ends with its input row or with the next pair, whichever is earlier; so it carries the
end of the input row as its bound, and a holder that is told when a pair comes.  When an input row
without a holder ends, nothing is told: the bound has said it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import Steps, integers, match_copies, order_events
from penstock.kernels.keys import Keys
from penstock.model import I64, Batch, Ends, Mask, to_mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.tag import NUMBER
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes


_COUNTS = (pa.int64(), pa.int64(), pa.bool_())
"""The columns of ``counts``: pairs, holder, whether the row is held."""

_WIDEST = 16
"""Up to this span per number, a table of the whole span is cheaper than sorting the numbers."""


class UnmatchedOperator(SlicedOperator):
    """Rows of port 0, whose last column is their number, while no number of port 1 is theirs.

    ``types`` are those of the rows without the number; so is the output.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__(((*types, NUMBER), (NUMBER,)))

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        types = self.input_types[0][:-1]
        self._rows_alive = Lifetimes(state, "rows", [NUMBER], merging, keep_forever=False)
        self._pairs_alive = Lifetimes(state, "pairs", [NUMBER], merging, keep_forever=False)
        self._counts = KeyedState(state, "counts", _COUNTS, merging)
        self._values = KeyedState(state, "values", [*types, pa.int64()], merging)

    def save(self) -> None:
        for shelf in (self._rows_alive, self._pairs_alive, self._counts, self._values):
            shelf.save()

    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        new, pairs = (without_ghosts(r, e) for r, e in zip(rows, ends, strict=True))
        gone = self._rows_alive.turn(new.with_columns(new.columns[-1:]), ends[0], until)
        parted = self._pairs_alive.turn(pairs, ends[1], until)
        events = (new, pairs, gone, parted)
        numbers = np.concatenate([to_numpy(b.columns[-1]) for b in events])
        touched, code = _dense(numbers)
        count = len(touched)
        if count == 0:
            return
        times = (np.zeros(count, np.int64), new.start, pairs.start, gone.end, parted.end)
        steps = order_events(np.concatenate((np.arange(count), code)), np.concatenate(times), count)
        fresh = np.full(count, -1, np.int64)  # where a touched row stands among the new ones
        fresh[code[: len(new)]] = np.arange(len(new))
        found, partners, holder, held = self._known(touched, fresh, new)
        sizes = [len(b) for b in events]
        alive = _running(steps, found.astype(np.int64), (1, 0, -1, 0), sizes)
        matched = _running(steps, partners, (0, 1, 0, -1), sizes)
        copies = match_copies(steps, ((alive > 0) & (matched == 0)).astype(np.int64))
        dead = copies.dead_code
        tell = (holder[dead] != 0) & (held[dead] | (alive[copies.dead_step] > 0))
        if tell.any():
            yield Ends.of(holder[dead[tell]], steps.time[copies.dead_step[tell]])
        columns, bound = self._content(touched, fresh, new, copies.born_code)
        known = copies.born_until >= 0
        end = np.where(known, steps.time[copies.born_until], bound)
        open_ = ~known & (end > until)
        made = np.zeros(len(end), np.int64)
        made[open_] = self.context.new_holders(int(open_.sum()))
        if len(end):
            yield Batch(columns, steps.time[copies.born_step], end, made)
        holder[dead] = 0
        holder[copies.born_code[open_]] = made[open_]
        last = steps.finish - 1
        kept = alive[last] > 0
        changed = np.flatnonzero(kept | found)
        state = [pa.array(c[changed]) for c in (matched[last], holder, held)]
        self._counts.put(_keys(touched[changed]), state, kept[changed])
        self._keep_values(touched, fresh, new, found, kept)

    def _known(self, touched: I64, fresh: I64, new: Batch) -> tuple[Mask, I64, I64, Mask]:
        """Return which rows are old, and what is known of each touched row before the slice."""
        found = np.zeros(len(touched), bool)
        partners, holder = (np.zeros(len(touched), np.int64) for _ in range(2))
        held = new.holder[fresh] != 0 if len(new) else np.zeros(len(touched), bool)
        old = np.flatnonzero(fresh < 0)
        found[old], columns = self._counts.get(_keys(touched[old]))
        partners[old], holder[old] = integers(columns[0]), integers(columns[1])
        held[old] = to_mask(columns[2])
        return found, partners, holder, held

    def _content(
        self, touched: I64, fresh: I64, new: Batch, code: I64
    ) -> tuple[tuple[pa.Array, ...], I64]:
        """Return the columns and the ends of touched rows, new or from the state."""
        at = fresh[code]
        old = np.flatnonzero(at < 0)
        columns = [*new.columns[:-1], pa.array(new.end)]
        if len(old):
            missing, place = np.unique(code[old], return_inverse=True)
            at[old] = len(new) + place
            _, kept = self._values.get(_keys(touched[missing]))
            columns = [pa.concat_arrays(pair) for pair in zip(columns, kept, strict=True)]
        index = pa.array(at)
        taken = [c.take(index) for c in columns]
        return tuple(taken[:-1]), to_numpy(taken[-1])

    def _keep_values(
        self, touched: I64, fresh: I64, new: Batch, found: Mask, kept: Mask
    ) -> None:
        """Write the rows that are new, and remove those that are gone."""
        some = np.flatnonzero(kept & (fresh >= 0))
        rows = pa.array(fresh[some])
        columns = [*new.columns[:-1], pa.array(new.end)]
        self._values.put(_keys(touched[some]), [c.take(rows) for c in columns])
        gone = np.flatnonzero(found & ~kept)
        nothing = [pa.nulls(len(gone), c.type) for c in columns]
        self._values.put(_keys(touched[gone]), nothing, np.zeros(len(gone), bool))


def _running(steps: Steps, before: I64, changes: Sequence[int], sizes: Sequence[int]) -> I64:
    """Return a count at every step, from what it was before and its change in each kind of event."""
    return steps.running(np.concatenate((before, np.repeat(changes, sizes)))[steps.order])


def _dense(numbers: I64) -> tuple[I64, I64]:
    """Return the distinct numbers, ascending, and the place of each number among them.

    Numbers that were given at about the same time are close together: then nothing is sorted.
    """
    least = int(numbers.min()) if len(numbers) else 0
    span = int(numbers.max()) - least + 1 if len(numbers) else 0
    if span > _WIDEST * len(numbers):
        distinct, place = np.unique(numbers, return_inverse=True)
        return distinct, place
    offset = numbers - least
    there = np.zeros(span, bool)
    there[offset] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[offset]


def _keys(numbers: I64) -> Keys:
    """Return numbers as keys: they are as good as hashes, and new ones sort behind old ones."""
    return Keys(numbers.view(np.uint64), np.zeros(len(numbers), np.uint64))
