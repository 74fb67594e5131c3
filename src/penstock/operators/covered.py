"""The rows of one side of a join while they have a partner, or none, where all ends are known.

It does what `penstock.operators.unmatched` does, for rows and pairs whose ends are known when they
are born, as those of time windows; then little of them has to be kept.  Port 0 brings the rows of
the side, each with its number in the last column; port 1 brings the number of its row for every
pair, also in the last column, behind columns of the row.  A pair is valid only while its row is.

At the end ``until`` of a slice all pairs that have come have started.  So what is still ahead of
the time that they cover is one stretch, up to the largest of their ends, and one instant says all
about the pairs of a row: up to when it is *covered*.  Of each live row the state keeps, under its
number,

* ``status``: its end, up to when it is covered, and the holder of its open output row (0: none);
* ``values``: its end and its columns, for output rows that are born later.

A row that is covered up to its end is *finished*.  Where that is so at once, nothing is kept of it,
and a row without end is forgotten when it finishes: so a number that is not found is that of a
finished row.  A row whose cover ends before is looked at again when that has passed: ``due`` holds
such rows, each once.

Where a punctuation has closed the part of a row's partners, no more pairs come for it.  If it is
not covered it is forgotten, else when its cover has passed: ``parting`` holds such rows.

An output row that is open carries the end of its row as its bound, and a holder that is told when
the row's partner comes, or when its last partner goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.covers import Covers, covers, dense_numbers
from penstock.model import (
    I64,
    INF,
    MIN_TIME,
    Batch,
    Closed,
    Ends,
    Mask,
    Message,
    Settled,
    to_numpy,
)
from penstock.operators.base import Columns, SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.numbered import NumberedRows

_NUMBER = pa.int64()


@dataclass(frozen=True)
class CoveredSpec(Spec):
    """Keep numbered rows while they have a partner, or while they have none.

    ``types`` are those of the rows without the number; so is the output.  ``shown`` are the columns
    of the rows that pairs have in front of the number.
    """

    types: Sequence[pa.DataType]
    partners: bool
    shown: tuple[int, ...] = ()

    key = "covered/1"

    def build(self) -> CoveredOperator:
        return CoveredOperator(self)


@dataclass(frozen=True)
class _Rows:
    """The rows that a slice is about, by code.

    ``fresh`` is where a row stands among the new ones, -1 for older rows.  ``was`` is up to when a
    row was covered before the slice; a new row was up to its start, a finished one for ever.
    """

    numbers: I64
    fresh: I64
    end: I64
    was: I64
    holder: I64

    @property
    def old(self) -> Mask:
        mask: Mask = self.fresh < 0
        return mask


@dataclass(frozen=True)
class _Stretches:
    """When rows are in the output, as far as the slice can say: sorted by code, then time.

    ``ended`` are over before their row is, ``known`` have a known end, and ``going_on`` were there
    before the slice.
    """

    code: I64
    start: I64
    end: I64
    ended: Mask
    known: Mask
    going_on: Mask


class CoveredOperator(SlicedOperator):
    """Rows of port 0, whose last column is their number, by whether a pair of port 1 has it."""

    def __init__(self, spec: CoveredSpec) -> None:
        shown = [spec.types[c] for c in spec.shown]
        super().__init__(((*spec.types, _NUMBER), (*shown, _NUMBER)))
        self._partners = spec.partners
        self._shown = dict(enumerate(spec.shown))

    def load(self) -> None:
        state, merging = self.context.state, self.context.merging
        self._status = NumberedRows(state, "status", (pa.int64(), pa.int64()), merging)
        self._values = NumberedRows(state, "values", self.input_types[0][:-1], merging)
        self._due = Lifetimes(state, "due", [_NUMBER], merging, keep_forever=False)
        self._parting = Lifetimes(state, "parting", [_NUMBER], merging, keep_forever=False)

    def save(self) -> None:
        self._status.save_alive(self.since)
        self._values.save_alive(self.since)
        self._due.save()
        self._parting.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends | Settled]:
        until = slice.until
        new, pairs = (rows.drop_ghosts() for rows in slice.rows)
        due, parting = (
            shelf.advance(Batch.empty([_NUMBER]), Ends(), until)
            for shelf in (self._due, self._parting)
        )
        parts = [to_numpy(c) for c in (new.columns[-1], pairs.columns[-1], due.columns[0])]
        numbers, code = dense_numbers(np.concatenate(parts))
        if len(numbers) == 0:
            return
        codes = np.split(code, np.cumsum([len(part) for part in parts])[:-1])
        rows = self._rows(numbers, new, codes[0])
        found = covers(rows.was, codes[1], pairs.start, pairs.end)
        last = found.until.copy()
        last[found.code] = found.end  # the last of a code stands last
        ahead = (last >= until) & (last < rows.end)
        some = self._stretches(rows, found, ahead, until)
        over = some.going_on & some.ended
        if over.any():
            yield Ends.of(rows.holder[some.code[over]], some.end[over])
        holder = np.zeros(len(numbers), np.int64)
        staying = some.code[some.going_on & ~some.known]
        holder[staying] = rows.holder[staying]
        born = np.flatnonzero(~some.going_on)
        if len(born):
            code = some.code[born]
            made = np.zeros(len(born), np.int64)
            open_ = np.flatnonzero(~some.known[born])
            made[open_] = self.context.new_holders(len(open_))
            holder[code[open_]] = made[open_]
            columns = self._content(rows, new, code)
            yield Batch(columns, some.start[born], some.end[born], made)
        self._keep(rows, new, last, holder, until)
        again = ahead & (~rows.old | (rows.was < slice.since))
        again[codes[2]] |= ahead[codes[2]]
        _watch(self._due, numbers[again], last[again], until)
        if len(parting):
            yield from self._part(np.unique(to_numpy(parting.columns[0])), until)

    def uses_part(self, port: int, closed: Closed) -> bool:
        """It passes closed columns of pairs on: rows have partners only where pairs are born."""
        if port == 0:
            return False
        if closed.numbered:
            return closed.on == (len(self._shown),)
        return self._partners and closed.moved(self._shown) is not None

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        return [tuple(self._shown[c] for c in on) for _, on in known if set(on) <= set(self._shown)]

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Forget rows that get no more partners, or pass it on that a part gets no more pairs."""
        if closed.numbered:
            yield from self._part(np.unique(closed.high.view(np.int64)), self.since)
            return
        moved = closed.moved(self._shown)
        assert moved is not None
        yield moved

    def _part(self, numbers: I64, until: int) -> Iterator[Settled]:
        """Forget rows that get no more partners: now those that have none, others later."""
        places = self._status.find(numbers)
        alive = places.found & (places.numbers(0) > until)
        last, holder = places.numbers(1), places.numbers(2)
        alone = (holder == 0) if self._partners else (holder != 0)
        if not self._partners and (alive & alone).any():
            yield Settled(np.sort(holder[alive & alone]))
        self._forget(numbers[alive & alone])
        later = np.flatnonzero(alive & ~alone)
        _watch(self._parting, numbers[later], last[later], until)

    def _forget(self, numbers: I64) -> None:
        self._status.remove(numbers)
        self._values.remove(numbers)

    def _rows(self, numbers: I64, new: Batch, code: I64) -> _Rows:
        """Return what is known of the rows before the slice; ``code`` is that of the new ones."""
        fresh = np.full(len(numbers), -1, np.int64)
        fresh[code] = np.arange(len(new))
        end, holder = (np.zeros(len(numbers), np.int64) for _ in range(2))
        was = np.full(len(numbers), INF)
        end[code], was[code] = new.end, new.start
        old = np.flatnonzero(fresh < 0)
        places = self._status.find(numbers[old])
        end[old], holder[old] = places.numbers(0), places.numbers(2)
        was[old] = np.where(places.found, places.numbers(1), INF)
        return _Rows(numbers, fresh, end, was, holder)

    def _stretches(self, rows: _Rows, found: Covers, ahead: Mask, until: int) -> _Stretches:
        """Return when rows are covered, or the time between: of each row first the older cover.

        A cover that goes on behind the slice (``ahead``) has no known end.
        """
        count = len(rows.numbers)
        more = np.bincount(found.code, minlength=count)
        first = np.arange(count) + np.cumsum(more) - more
        at = np.arange(len(found.code)) + found.code + 1
        code = np.repeat(np.arange(count), more + 1)
        begin, finish = np.empty(len(code), np.int64), np.empty(len(code), np.int64)
        begin[first], finish[first] = rows.was, found.until
        begin[at], finish[at] = found.start, found.end
        over = rows.end[code]
        older, known = np.zeros(len(code), bool), np.ones(len(code), bool)
        older[first] = rows.old
        if self._partners:
            known[first + more] = ~ahead
            finish = np.where(known, np.minimum(finish, over), over)
            there = finish > begin
            there[first] = np.where(rows.old, rows.holder != 0, there[first])
        else:
            known[first + more] = rows.end <= until
            begin, following = finish, np.append(begin[1:], INF)
            finish = np.minimum(over, following)
            finish[first + more] = rows.end
            there = begin < np.minimum(finish, until)
            there[first] &= ~rows.old | (rows.holder != 0) | (rows.was >= self.since)
        some = np.flatnonzero(there)
        code, finish = code[some], finish[some]
        going_on = older[some] & (rows.holder[code] != 0)
        return _Stretches(code, begin[some], finish, finish < over[some], known[some], going_on)

    def _content(self, rows: _Rows, new: Batch, code: I64) -> tuple[pa.Array, ...]:
        """Return the columns of rows, new or from the state."""
        at = rows.fresh[code]
        older = np.flatnonzero(at < 0)
        columns = new.columns[:-1]
        if len(older):
            missing, place = np.unique(code[older], return_inverse=True)
            at[older] = len(new) + place
            kept = self._values.find(rows.numbers[missing])
            pairs = ((c, kept.column(i + 1)) for i, c in enumerate(columns))
            columns = tuple(pa.concat_arrays(pair) for pair in pairs)
        index = pa.array(at)
        return tuple(c.take(index) for c in columns)

    def _keep(self, rows: _Rows, new: Batch, last: I64, holder: I64, until: int) -> None:
        """Put into the state what is new of rows: ``last`` is up to when each is covered."""
        old, alive, finished = rows.old, rows.end > until, last >= rows.end
        changed = (last != rows.was) | (holder != rows.holder)
        forgotten = old & changed & finished & (rows.end == INF)
        self._forget(rows.numbers[forgotten])
        some = np.flatnonzero(alive & ~forgotten & np.where(old, changed, ~finished))
        status = [pa.array(last[some]), pa.array(holder[some])]
        self._status.put(rows.numbers[some], rows.end[some], status)
        some = np.flatnonzero(alive & ~old & ~finished)
        index = pa.array(rows.fresh[some])
        values = [column.take(index) for column in new.columns[:-1]]
        self._values.put(rows.numbers[some], rows.end[some], values)


def _watch(shelf: Lifetimes, numbers: I64, time: I64, until: int) -> None:
    """Let a shelf give numbers back when a time has passed, each at its own."""
    never, none = np.full(len(time), MIN_TIME), np.zeros(len(time), np.int64)
    shelf.advance(Batch((pa.array(numbers),), never, time, none), Ends(), until)
