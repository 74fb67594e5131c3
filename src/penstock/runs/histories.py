"""The last rows of every group, numbered: what window functions may still look back at.

Pieces are sorted by group and number.  The rows that a piece has of one group follow one another
without a gap, and all pieces together hold the end of the group's rows.  So a row is found by its
number with one binary search per piece, for the group; by its time with a second one.

A row may be needed when it is among the last ``rows`` of its group, or when its time is at most
``time`` below the heartbeat; with ``before`` the row in front of those as well.  Others are dropped
when pieces are merged, and a piece without rows that may be needed at once.

For each of ``extremes``, a column and whether its largest value is wanted, a row also holds where
in its piece the best value stands among itself and the later rows of its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.kernels import exact
from penstock.kernels.exact import Digits
from penstock.kernels.frames import joined, least_from_here
from penstock.kernels.keys import Keys
from penstock.kernels.order import group_order, key_ranges, search_within
from penstock.kernels.partitions import PartitionedRows, ranked
from penstock.kernels.steps import group_starts
from penstock.model import I64, INF, MIN_TIME, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.spine import Piece, Spine
from penstock.runs.state import State

_NAMES = ["high", "low", "number", "time"]


@dataclass(frozen=True)
class Reach:
    """How far back rows may be needed: so many rows, so much time (None: not by time)."""

    rows: int = 0
    time: int | None = None
    before: bool = False


@dataclass(frozen=True)
class _Part:
    """The rows that one piece has of the groups asked for: ``[first, last)`` and their numbers."""

    table: pa.Table
    first: I64
    last: I64
    least: I64
    most: I64


class Histories(Spine[Piece]):
    """The histories of one name in a state. `look` chooses the groups that are asked about."""

    kind = Piece

    def __init__(
        self,
        state: State,
        name: str,
        types: Sequence[pa.DataType],
        reach: Reach,
        extremes: Sequence[tuple[int, bool]],
        merging: Merging,
    ) -> None:
        super().__init__(state, name, merging)
        self._types = tuple(types)
        self._reach = reach
        self._extremes = tuple(extremes)
        self._parts: list[_Part] = []
        self._groups = 0
        self._heartbeat = MIN_TIME

    def look(self, keys: Keys) -> None:
        """Choose distinct groups; what is asked from now on is about their positions."""
        self._groups = len(keys)
        self._parts = []
        for piece in self.pieces:
            number = piece.numbers("number")
            first, last = key_ranges(piece.numbers("high"), piece.numbers("low"), keys)
            some = first < last
            if not some.any():
                continue
            least, most = np.zeros(len(keys), np.int64), np.full(len(keys), -1, np.int64)
            least[some], most[some] = number[first[some]], number[last[some] - 1]
            self._parts.append(_Part(piece.table, first, last, least, most))

    def newest(self) -> tuple[I64, tuple[pa.Array, ...]]:
        """Return how many rows each group has had, and the columns of its last one, else null."""
        count = np.zeros(self._groups, np.int64)
        which = np.zeros(self._groups, np.int64)
        at = np.zeros(self._groups, np.int64)
        for i, part in enumerate(self._parts):  # a later piece has later rows
            some = part.first < part.last
            count[some] = part.most[some] + 1
            which[some] = i
            at[some] = part.last[some] - 1
        return count, self._take(which, at, count > 0)

    def fetch(self, group: I64, number: I64) -> tuple[pa.Array, ...]:
        """Return the columns of rows by number; they must be there."""
        which = np.full(len(group), -1, np.int64)
        at = np.zeros(len(group), np.int64)
        for i, part in enumerate(self._parts):
            mine = (number >= part.least[group]) & (number <= part.most[group])
            which[mine] = i
            at[mine] = (part.first[group] + number - part.least[group])[mine]
        assert (which >= 0).all(), "a row that may be needed was dropped"
        return self._take(which, at, None)

    def since(self, group: I64, time: I64) -> I64:
        """Return the number of the first row of a group at or after a time, ``INF`` without one."""
        found = np.full(len(group), INF, np.int64)
        for part in self._parts:
            times = to_numpy(part.table.column("time"))
            first, last = part.first[group], part.last[group]
            at = search_within(times, first, last, time)
            number = np.where(at < last, part.least[group] + at - first, INF)
            found = np.minimum(found, number)
        return found

    def best(self, group: I64, number: I64, extreme: int) -> tuple[I64, pa.Array]:
        """Return candidates for the best value from a number on: (position asked about, value).

        The best of them is the best of all rows of the group from that number on.
        """
        column, _ = self._extremes[extreme]
        owners = [np.empty(0, np.int64)]
        values = [pa.array([], self._types[column])]
        for part in self._parts:
            first, last = part.first[group], part.last[group]
            at = np.maximum(first + number - part.least[group], first)
            some = np.flatnonzero(at < last)
            if len(some) == 0:
                continue
            best = to_numpy(part.table.column(f"e{extreme}"))[at[some]]
            owners.append(some)
            values.append(one_array(part.table.column(f"c{column}")).take(pa.array(best)))
        return np.concatenate(owners), pa.concat_arrays(values)

    def append(self, keys: Keys, number: I64, time: I64, columns: Sequence[pa.Array]) -> None:
        """Add rows behind those that are there, sorted by group and number: the `needed` ones."""
        arrays = map(pa.array, (keys.high, keys.low, number, time))
        names = [*_NAMES, *(f"c{i}" for i in range(len(columns)))]
        self.add(self._finish(pa.table([*arrays, *columns], names=names)))

    def save(self, heartbeat: int = MIN_TIME) -> None:
        """Drop what is no longer needed, merge pieces as the strategy says, and store them."""
        reach = self._reach
        self._heartbeat = heartbeat
        if reach.rows == 0 and not reach.before:
            bound = _minus(heartbeat, reach.time or 0)
            self.drop([piece for piece in self.pieces if piece.stats["time"] < bound])
        self.merge()
        super().save()

    def _tables(self, pieces: Sequence[Piece]) -> list[pa.Table]:
        names = [*_NAMES, *(f"c{i}" for i in range(len(self._types)))]
        return [piece.table.select(names) for piece in pieces]

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        keys = Keys(to_numpy(table.column("high")), to_numpy(table.column("low")))
        order, starts = group_order(keys, None)  # stable: inside a group, older pieces come first
        number, time = to_numpy(table.column("number")), to_numpy(table.column("time"))
        return order[self.needed(starts, number[order], time[order], self._heartbeat)]

    def _stats(self, table: pa.Table) -> dict[str, int]:
        return {"time": int(to_numpy(table.column("time")).max())}

    def needed(self, starts: I64, number: I64, time: I64, heartbeat: int) -> Mask:
        """Which rows, sorted by group and number, may be needed from the heartbeat on."""
        reach = self._reach
        lengths = np.diff(np.append(starts, len(number)))
        newest = np.repeat(number[starts + lengths - 1], lengths)
        needed: Mask = number > newest - reach.rows
        if reach.time is not None:
            bound = _minus(heartbeat, reach.time)
            needed |= time >= bound
            if reach.before:
                follows = np.append(time[1:] >= bound, True)
                follows[starts + lengths - 1] = True
                needed |= follows
        return needed

    def _finish(self, table: pa.Table) -> pa.Table:
        if not self._extremes or table.num_rows == 0:
            return table
        keys = Keys(to_numpy(table.column("high")), to_numpy(table.column("low")))
        starts = group_starts(keys.high, keys.low)
        group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(keys))))
        for i, (column, largest) in enumerate(self._extremes):
            rank = ranked(one_array(table.column(f"c{column}")), largest)[0]
            table = table.append_column(f"e{i}", pa.array(least_from_here(rank, group)))
        return table

    def _take(self, which: I64, at: I64, there: Mask | None) -> tuple[pa.Array, ...]:
        """Return rows by piece and position, null where there is none; only these are read."""
        pools: list[list[pa.Array]] = [[] for _ in self._types]
        index = np.zeros(len(which), np.int64)
        total = 0
        for i, part in enumerate(self._parts):
            mine = np.flatnonzero(which == i if there is None else (which == i) & there)
            if len(mine) == 0:
                continue
            index[mine] = np.arange(total, total + len(mine))
            rows = pa.array(at[mine])
            for c, pool in enumerate(pools):
                pool.append(one_array(part.table.column(f"c{c}")).take(rows))
            total += len(mine)
        whole = [
            pa.concat_arrays(pool) if pool else pa.array([], kind)
            for pool, kind in zip(pools, self._types, strict=True)
        ]
        if total == len(which) and (index[1:] > index[:-1]).all():
            return tuple(whole)
        chosen = pa.array(index, mask=None if there is None else ~there)
        return tuple(column.take(chosen) for column in whole)


@dataclass
class Pool:
    """Rows by number: those of the slice, and before them the rows of the history asked for."""

    rows: PartitionedRows
    wanted: list[tuple[I64, I64]] = field(default_factory=list)
    old: int = 0
    columns: tuple[pa.Array, ...] = ()
    _codes: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    _span: int = 1

    def want(self, number: I64) -> None:
        """Ask for the row with a number in the partition of each row; below 0 for none."""
        past = np.flatnonzero((number >= 0) & (number < self.rows.base[self.rows.group]))
        if len(past):
            self.wanted.append((self.rows.group[past], number[past]))

    def load(self, history: Histories) -> None:
        """Read what was asked for, each row once."""
        if not self.wanted:
            return
        group = np.concatenate([g for g, _ in self.wanted])
        number = np.concatenate([n for _, n in self.wanted])
        self._span = int((self.rows.base[group] - number).max()) + 1
        codes = self._code(group, number)
        if not (codes[1:] > codes[:-1]).all():
            codes.sort()
            new = np.append(True, codes[1:] != codes[:-1])
            codes, group = codes[new], codes[new] // self._span
            number = codes - group * self._span + self.rows.base[group] - self._span
        self._codes = codes
        self.columns = history.fetch(group, number)
        self.old = len(group)

    def _code(self, group: I64, number: I64) -> I64:
        """Return integers in the order of groups and numbers, of rows below the base."""
        code: I64 = group * self._span + number - self.rows.base[group] + self._span
        return code

    def at(self, number: I64) -> I64:
        """Return where rows that were asked for stand: in front those of the history."""
        rows = self.rows
        found = self.old + rows.place(number)
        base = rows.base[rows.group]
        past = np.flatnonzero((number >= 0) & (number < base))
        if len(past):
            code = self._code(rows.group[past], number[past])
            found[past] = np.searchsorted(self._codes, code)
        return found

    def column(self, place: int, fresh: pa.Array) -> pa.Array:
        """Return a column of the history in front of the slice's."""
        return pa.concat_arrays([self.columns[place], fresh]) if self.old else fresh

    def digits(self, place: int, fresh: Digits) -> Digits:
        """Return a column of exact numbers of the history in front of the slice's."""
        if not self.old:
            return fresh
        return joined(exact.unpack(self.columns[place]), self.old, fresh, len(self.rows))


def _minus(time: int, duration: int) -> int:
    return max(time - duration, MIN_TIME)
