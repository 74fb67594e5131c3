"""DISTINCT: each value of a snapshot once.

A value is there while its count is above zero: it is born when the count leaves zero and dies when
the count returns to it.  Values are compared by the hash of all columns; nulls are equal.

Where the ends of all rows are known when they are born, and it does not matter into how many rows
the time of a value is cut, `CutDistinctSpec` gives rows whose ends are known, too.  All rows below
the end ``until`` of a slice have come, so the time that they cover beyond it is one stretch, up to
the largest end: up to when the value is *covered*.  A row is given away up to there.  What prolongs
it later is only remembered, until the row that was given away is over: then the rest becomes the
next row.  So of each value at most one row is valid at a time, and no holder is needed.  Kept are

* ``covers``: of each value up to when a row was given away, and up to when it is covered;
* ``given``: the values themselves, until the time up to which a row was given away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.closed_keys import ClosedKeys
from penstock.kernels.counts import canonical, key_codes, row_keys
from penstock.kernels.covers import covers
from penstock.kernels.keys import Keys, hash_columns
from penstock.model import I64, MIN_TIME, Batch, Closed, Ends, Message
from penstock.operators.base import Columns, SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.keyed import KeyedState
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.value_counts import ValueCounts


@dataclass(frozen=True)
class DistinctSpec(Spec):
    """Take each value of a snapshot once."""

    types: Sequence[pa.DataType]

    key = "distinct/1"

    def build(self) -> SlicedOperator:
        return DistinctOperator(self)


@dataclass(frozen=True)
class CutDistinctSpec(DistinctSpec):
    """The same, of rows whose ends are known, in rows whose ends are known."""

    key = "distinct cut/1"
    holders = "none"

    def build(self) -> SlicedOperator:
        return CutDistinctOperator(self)


class _OnceOperator(SlicedOperator):
    """Each value of the input once: what all ways have in common."""

    def __init__(self, spec: DistinctSpec) -> None:
        super().__init__([spec.types])

    def uses_part(self, port: int, closed: Closed) -> bool:
        return not closed.numbered

    def close_part(self, port: int, closed: Closed) -> Iterable[Message]:
        """Pass it on: a value that does not come again is not born again."""
        return (closed,)

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        return [columns for _, columns in known]


class DistinctOperator(_OnceOperator):
    """The values of the input without their copies."""

    reads_deaths = True

    def load(self) -> None:
        self._bags = ValueCounts(
            self.context.state, self.input_types[0], 1, True, False, self.context.merging
        )

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        holders = self.context.new_holders
        yield from self._bags.advance(slice.rows, slice.ends, slice.until, _once, holders)

    def save(self) -> None:
        self._bags.save()


class CutDistinctOperator(_OnceOperator):
    """The values of the input, each in rows that follow one another."""

    def load(self) -> None:
        state, merging, types = self.context.state, self.context.merging, self.input_types[0]
        self._covers = KeyedState(state, "covers", (pa.int64(), pa.int64()), merging)
        self._given = Lifetimes(state, "given", types, merging, keep_forever=False)

    def save(self) -> None:
        self._covers.save()
        self._given.save()

    def close_part(self, port: int, closed: Closed) -> Iterator[Message]:
        """Give away all that its values cover, and then pass it on: no row of them follows."""
        part = ClosedKeys(Keys(closed.high, closed.low), closed.until)
        rows = self._given.live()
        hashed = hash_columns([rows.columns[c] for c in closed.on], len(rows))
        rows = rows.take(part.closed_until(hashed) > MIN_TIME)
        code, keys = key_codes(row_keys(rows.columns, len(rows)))
        index = np.empty(len(keys), np.int64)
        index[code] = np.arange(len(rows))
        there = self._covers.find(keys)
        rest = np.flatnonzero(there.found & (there.numbers(0) < there.numbers(1)))
        if len(rest):
            given, last = (there.numbers(i)[rest].astype(np.int64) for i in range(2))
            yield _rows(rows, index[rest], given, last)
            covered = pa.array(last)
            self._covers.put(keys.take(rest), [covered, covered], np.ones(len(rest), bool))
            watched = _rows(rows, index[rest], np.full(len(rest), MIN_TIME), last)
            self._given.advance(watched, Ends(), self.since)
        yield closed

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        until = slice.until
        new = slice.rows[0].drop_ghosts()
        new = new.with_columns(tuple(canonical(column) for column in new.columns))
        due = self._given.advance(Batch.empty(self.input_types[0]), Ends(), until)
        rows = Batch.concat([new, due])
        if len(rows) == 0:
            return
        code, keys = key_codes(row_keys(rows.columns, len(rows)))
        index = np.empty(len(keys), np.int64)  # of each value a row that has it
        index[code] = np.arange(len(rows))
        there = self._covers.find(keys)
        given, last = (
            np.where(there.found, there.numbers(i), MIN_TIME).astype(np.int64) for i in range(2)
        )
        found = covers(last, code[: len(new)], new.start, new.end)
        # rows that were always valid are no stretch of their own: nothing is before them
        rest = np.flatnonzero((given < until) & (given < found.until))
        born = np.concatenate((rest, found.code))
        start = np.concatenate((given[rest], found.start))
        end = np.concatenate((found.until[rest], found.end))
        if len(born):
            yield _rows(rows, index[born], start, end)
        at, until_given = found.until.copy(), given.copy()
        until_given[born], at[found.code] = end, found.end  # the last of a value stands last
        alive = until_given >= until
        changed = (until_given != given) | (at != last)
        some = np.flatnonzero(np.where(alive, changed, there.found))
        kept = [pa.array(numbers[some]) for numbers in (until_given, at)]
        self._covers.put(keys.take(some), kept, alive[some])
        some = np.flatnonzero(alive & (until_given != given))
        watched = _rows(rows, index[some], np.full(len(some), MIN_TIME), until_given[some])
        self._given.advance(watched, Ends(), until)


def _rows(rows: Batch, at: I64, start: I64, end: I64) -> Batch:
    """Return rows with other times, which are known."""
    index = pa.array(at)
    columns = tuple(column.take(index) for column in rows.columns)
    return Batch(columns, start, end, np.zeros(len(at), np.int64))


def _once(counts: list[I64]) -> I64:
    return np.minimum(counts[0], 1)
