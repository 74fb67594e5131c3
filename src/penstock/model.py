"""Time, half-open validity, schemas, and the batches that travel between operators.

A physical element is ``(value, [start, end))`` plus a holder number (semantics, section 1):

* ``start`` and ``end`` are ``int64`` chronons; ``INF`` as an end means "for ever".
* ``holder == 0``: the element is determined, it dies exactly at ``end``.
* ``holder > 0``: it dies at ``end`` or when its holder is told, whichever is earlier.  An `Ends`
  message tells holders [C 3.1].  Several rows may share one holder.  A holder that was not told
  below the heartbeat ``W`` ends at ``W`` or later.

Within a stream of messages, every row whose start is below ``W`` and every told end below ``W``
comes before the `Heartbeat` ``W``.

That is the direct method.  With negative tuples [C 1, E 4.6.4] nobody knows an end before it is
there: a row is born with ``end == INF`` and, unless it lives for ever, with a holder of its own;
when it dies it comes a second time, whole, in a ``minus`` batch, whose ``end`` is the death.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

INF = 2**63 - 1
MIN_TIME = -(2**63)
"""The start of rows that are valid since ever: those of static tables."""

I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

TIMESTAMP = pa.timestamp("us")
"""All timestamps are UTC and count microseconds."""


@dataclass(frozen=True)
class Field:
    """A named, typed column."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class Schema:
    """The value columns of a stream or relation, in order. Names may repeat after joins."""

    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return tuple(f.type for f in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Any:
        return iter(self.fields)

    def __getitem__(self, index: int) -> Field:
        return self.fields[index]


_FEW_STRETCHES = 4


def _no_times() -> I64:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Ends:
    """Told ends: ``holder[i]`` ends at ``end[i]``. Sorted by holder, each holder once."""

    holder: I64 = field(default_factory=_no_times)
    end: I64 = field(default_factory=_no_times)

    def __len__(self) -> int:
        return len(self.holder)

    def split(self, time: int) -> tuple[Ends, Ends]:
        """Return the ends below ``time`` and the others."""
        below = self.end < time
        count = int(np.count_nonzero(below))
        if count == len(self):
            return self, Ends()
        if below[:count].all():  # holders that end in order are cut in two
            return (
                Ends(self.holder[:count], self.end[:count]),
                Ends(self.holder[count:], self.end[count:]),
            )
        return Ends(self.holder[below], self.end[below]), Ends(
            self.holder[~below], self.end[~below]
        )

    @cached_property
    def _stretches(self) -> tuple[tuple[int, int], ...]:
        """Where neighbouring numbers begin and finish; nothing where there are many gaps."""
        if len(self) == self.holder[-1] - self.holder[0] + 1:
            return ((0, len(self)),)
        breaks = np.flatnonzero(self.holder[1:] - self.holder[:-1] != 1) + 1
        if len(breaks) >= _FEW_STRETCHES:
            return ()
        return tuple(pairwise((0, *breaks.tolist(), len(self))))

    def lookup(self, holder: I64) -> I64:
        """Return the told end of each holder, ``INF`` where it is not told (or holder is 0)."""
        known = self.told(holder)
        return np.full(len(holder), INF, np.int64) if known is None else known

    def told(self, holder: I64) -> I64 | None:
        """Return the same as `lookup`, but None when none of the holders is told."""
        if len(self) == 0 or len(holder) == 0:
            return None
        low, high = int(holder.min()), int(holder.max())
        if high < self.holder[0] or low > self.holder[-1]:
            return None
        if self._stretches:
            return self._told_by_number(holder, low, high)
        at = np.searchsorted(self.holder, holder)
        at[at == len(self.holder)] = 0
        hit = np.flatnonzero((self.holder[at] == holder) & (holder != 0))
        result = np.full(len(holder), INF, np.int64)
        result[hit] = self.end[at[hit]]
        return result

    def _told_by_number(self, holder: I64, low: int, high: int) -> I64 | None:
        """Look up holders from ``low`` to ``high`` by index: where numbers are neighbours."""
        result: I64 | None = None
        for first, last in self._stretches:
            base, above = int(self.holder[first]), int(self.holder[last - 1]) + 1
            if high < base or low >= above:
                continue
            at = holder - base
            if low >= base and high < above:
                return self.end[first:last][at]
            hit = np.flatnonzero((at >= 0) & (at < above - base))
            if len(hit):
                if result is None:
                    result = np.full(len(holder), INF, np.int64)
                result[hit] = self.end[first + at[hit]]
        return result

    def applied(self, rows: Batch) -> Batch:
        """Return rows with these ends applied: a told row is determined, ghosts are dropped."""
        known = self.told(rows.holder)
        if known is None:
            return rows
        end, holder = np.minimum(rows.end, known), np.where(known < INF, 0, rows.holder)
        return replace(rows, end=end, holder=holder).drop_ghosts()

    @staticmethod
    def of(holder: I64, end: I64) -> Ends:
        """Sort, and keep the earliest end of each holder."""
        if len(holder) == 0:
            return Ends()
        if (holder[1:] > holder[:-1]).all():
            return Ends(holder, end)
        order = np.argsort(holder, kind="stable")  # which merges parts that are sorted already
        holder, end = holder[order], end[order]
        new = np.ones(len(holder), bool)
        new[1:] = holder[1:] != holder[:-1]
        if new.all():
            return Ends(holder, end)
        first = np.flatnonzero(new)
        return Ends(holder[first], np.minimum.reduceat(end, first))

    @staticmethod
    def concat(parts: Iterable[Ends]) -> Ends:
        kept = [p for p in parts if len(p)]
        if not kept:
            return Ends()
        if len(kept) == 1:
            return kept[0]
        kept.sort(key=lambda part: int(part.holder[0]))
        holder = np.concatenate([p.holder for p in kept])
        end = np.concatenate([p.end for p in kept])
        if all(a.holder[-1] < b.holder[0] for a, b in pairwise(kept)):
            return Ends(holder, end)  # as those of different windows are
        return Ends.of(holder, end)


@dataclass(frozen=True)
class Heartbeat:
    """A promise: nothing that starts or ends below ``time`` comes after this message."""

    time: int


@dataclass(frozen=True)
class Closed:
    """A promise: no row with some values in columns ``on`` that starts below ``until`` follows.

    The values are hashed (`penstock.kernels.keys`): ``high`` and ``low`` are sorted by both.  Or
    they are ``numbered``: one column of numbers of rows, which stand in ``high`` as they are.
    Told ends may still follow.
    """

    on: tuple[int, ...]
    high: U64
    low: U64
    until: I64
    numbered: bool = False

    def __len__(self) -> int:
        return len(self.high)

    def moved(self, places: Mapping[int, int]) -> Closed | None:
        """Return it with columns in other places; None if one of them is lost."""
        if not all(column in places for column in self.on):
            return None
        return replace(self, on=tuple(places[column] for column in self.on))


@dataclass(frozen=True)
class Settled:
    """Holders that will never be told: their rows end at the ends that they have. Sorted."""

    holder: I64

    def __len__(self) -> int:
        return len(self.holder)


@dataclass(frozen=True)
class Batch:
    """Rows as columns. ``seq`` is the arrival number, kept only on raw streams.

    Value columns are plain (never chunked, never dictionary) Arrow arrays addressed by position.
    ``minus``: the rows die; the negative tuples of those that came before with the same holders.
    """

    columns: tuple[pa.Array, ...]
    start: I64
    end: I64
    holder: I64
    seq: I64 | None = None
    minus: bool = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def nbytes(self) -> int:
        """The size of its columns and times."""
        times = 32 if self.seq is not None else 24
        return int(sum(column.nbytes for column in self.columns)) + times * len(self.start)

    def take(self, index: npt.NDArray[Any]) -> Batch:
        """Return the rows at ``index`` (or where a boolean mask is true, if they can, uncopied)."""
        if index.dtype == np.bool_:
            if len(index) and index.all():
                return self
            index = np.flatnonzero(index)
            if len(index) and index[-1] - index[0] + 1 == len(index):
                return self.slice(int(index[0]), int(index[-1]) + 1)
        indices = pa.array(index)
        return Batch(
            tuple(c.take(indices) for c in self.columns),
            self.start[index],
            self.end[index],
            self.holder[index],
            None if self.seq is None else self.seq[index],
            self.minus,
        )

    def slice(self, first: int, last: int) -> Batch:
        """Return rows ``[first, last)`` without copying."""
        return Batch(
            tuple(c.slice(first, last - first) for c in self.columns),
            self.start[first:last],
            self.end[first:last],
            self.holder[first:last],
            None if self.seq is None else self.seq[first:last],
            self.minus,
        )

    def with_columns(self, columns: Sequence[pa.Array]) -> Batch:
        """Return the same elements with other values."""
        return replace(self, columns=tuple(columns))

    def drop_ghosts(self) -> Batch:
        """Drop the rows that are in no snapshot (``start >= end``)."""
        ghost = self.start >= self.end
        return self.take(~ghost) if ghost.any() else self

    @staticmethod
    def empty(types: Sequence[pa.DataType], seq: bool = False) -> Batch:
        none = np.empty(0, np.int64)
        return Batch(tuple(pa.array([], t) for t in types), none, none, none, none if seq else None)

    @staticmethod
    def concat(parts: Sequence[Batch]) -> Batch:
        """Join batches of the same types; at least one is needed."""
        kept = [p for p in parts if len(p)] or list(parts[:1])
        if len(kept) == 1:
            return kept[0]
        columns = tuple(
            pa.concat_arrays([p.columns[i] for p in kept]) for i in range(len(kept[0].columns))
        )
        seq = None
        if all(p.seq is not None for p in kept):
            seq = np.concatenate([p.seq for p in kept if p.seq is not None])
        return Batch(
            columns,
            np.concatenate([p.start for p in kept]),
            np.concatenate([p.end for p in kept]),
            np.concatenate([p.holder for p in kept]),
            seq,
            kept[0].minus,
        )

    @staticmethod
    def of(
        columns: Sequence[pa.Array],
        start: Any,
        end: Any = None,
        holder: Any = None,
        seq: Any = None,
    ) -> Batch:
        """Make a batch from anything array-like; the end defaults to ``INF``, the holder to 0."""
        start = np.asarray(start, np.int64)
        return Batch(
            tuple(columns),
            start,
            np.full(len(start), INF, np.int64) if end is None else np.asarray(end, np.int64),
            np.zeros(len(start), np.int64) if holder is None else np.asarray(holder, np.int64),
            None if seq is None else np.asarray(seq, np.int64),
        )

    def to_table(self) -> pa.Table:
        """As an Arrow table: ``c0, c1, ..``, ``_start``, ``_end``, ``_holder`` [, ``_seq``]."""
        names = [f"c{i}" for i in range(len(self.columns))]
        arrays: list[pa.Array] = list(self.columns)
        for name, column in (
            ("_start", self.start),
            ("_end", self.end),
            ("_holder", self.holder),
            ("_seq", self.seq),
        ):
            if column is not None:
                names.append(name)
                arrays.append(pa.array(column))
        return pa.table(arrays, names=names)

    @staticmethod
    def from_table(table: pa.Table) -> Batch:
        """The inverse of `to_table`; shares memory where the table has one chunk.

        Without a column of holders every row is determined.
        """
        width = sum(1 for n in table.column_names if n.startswith("c"))
        return Batch(
            tuple(one_array(table.column(f"c{i}")) for i in range(width)),
            to_numpy(table.column("_start")),
            to_numpy(table.column("_end")),
            to_numpy(table.column("_holder"))
            if "_holder" in table.column_names
            else np.zeros(table.num_rows, np.int64),
            to_numpy(table.column("_seq")) if "_seq" in table.column_names else None,
        )


@dataclass(frozen=True)
class Deaths(Ends):
    """Told ends together with the rows that end: what negative tuples say about a slice.

    ``parts`` are the rows as they came, in no order.  Some may say ``INF``: rows of a finite stream
    that never die.
    """

    parts: tuple[Batch, ...] = ()

    @staticmethod
    def brought(parts: Sequence[Batch]) -> Deaths:
        """Return what some negative tuples tell; at least one part is needed."""
        told = Ends.concat([told_by(rows) for rows in parts])
        return Deaths(told.holder, told.end, tuple(parts))

    def died(self) -> Batch:
        """Return the rows whose end is known."""
        rows = Batch.concat(self.parts)
        mortal = rows.end < INF
        return rows if mortal.all() else rows.take(mortal)


def told_by(rows: Batch) -> Ends:
    """Return the ends that negative tuples tell."""
    holder, end = rows.holder, rows.end
    mortal = end < INF
    if not mortal.all():
        holder, end = holder[mortal], end[mortal]
    if len(holder) > 1 and (holder[1:] < holder[:-1]).any():
        order = np.argsort(holder)
        holder, end = holder[order], end[order]
    return Ends(holder, end)


Message: TypeAlias = Batch | Ends | Heartbeat | Closed | Settled


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one Arrow array."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        if column.num_chunks == 0:
            return pa.array([], column.type)
        return pa.concat_arrays(column.chunks)
    return column


def to_numpy(column: pa.ChunkedArray | pa.Array) -> Any:
    """Return a fixed-width column without nulls as NumPy (timestamps and dates as integers)."""
    array = one_array(column)
    if pa.types.is_timestamp(array.type) or pa.types.is_date64(array.type):
        array = array.view(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.view(pa.int32())
    if pa.types.is_boolean(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return array.to_numpy(zero_copy_only=True)


def to_mask(array: pa.Array) -> Mask:
    """Return a boolean Arrow array as a NumPy mask; null counts as false."""
    if array.null_count:
        array = pc.fill_null(array, False)
    mask: Mask = np.asarray(array.to_numpy(zero_copy_only=False), bool)
    return mask
