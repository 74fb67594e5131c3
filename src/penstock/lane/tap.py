"""Taps: rows of streams with priorities as they arrive, before any batch has them.

A tap reads with the stream's own reader, from where the batches are, and judges every row in order
of arrival as packing will: late rows are never answered.  Of the others it gives those with a
priority above 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.errors import StateError
from penstock.model import I64, Mask, one_array
from penstock.physical.judging import Judge
from penstock.physical.priorities import fit_priorities
from penstock.physical.progress import POSITION_BITS, Progress
from penstock.sources.base import Limits, Paced, StreamReader
from penstock.sources.formats import read_slice, tap_of
from penstock.sources.spool import SpoolFiles

CHUNK_ROWS = 1 << 15
"""Most rows that a tap reads at a time, about."""

Levels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Block:
    """Rows of one source partition and one priority that wait to be answered.

    ``since`` is when they came, ``named`` whether the stream has partitions with names.
    """

    stream: str
    table: pa.Table
    time: I64
    seq: I64
    priority: int
    since: float
    named: bool = False

    def __len__(self) -> int:
        return len(self.time)

    def take(self, keep: Mask) -> Block:
        """Return some of the rows."""
        if keep.all():
            return self
        table = self.table.filter(pa.array(keep))
        return replace(self, table=table, time=self.time[keep], seq=self.seq[keep])

    def none(self) -> Block:
        """Return none of the rows."""
        return self.take(np.zeros(len(self), bool))

    def positions(self) -> I64:
        """Return where the rows stand in their stream."""
        return self.seq & ((1 << POSITION_BITS) - 1)


class OtherRowsError(StateError):
    """A stream brings other rows than those that were answered."""


class Tap:
    """Follows one stream from a position on; ``progress`` is how far it was there.

    ``answered`` are rows behind it that were answered before, by arrival number, with their times.
    """

    def __init__(
        self,
        stream: StreamDef,
        folder: str | None,
        offset: Mapping[str, Any] | None,
        progress: Progress,
        rows: int,
        answered: Mapping[int, int],
    ) -> None:
        self.stream = stream
        self._reader: StreamReader[Any] = tap_of(stream, Limits(CHUNK_ROWS), folder)
        self._position = self._reader.position(offset)
        self._judge = Judge(stream.name, stream.time, stream.timing, progress)
        self._rows = rows
        self._answered = answered
        self._spool = SpoolFiles(folder) if folder is not None else None
        self._stamp: tuple[int, int] | None = None
        self._named = any(progress.partitions)
        self._by_their_clock = False
        self._news: Progress | None = None
        self.unfit, self.last_unfit = 0, ""
        """Rows whose PRIORITY has no value, which count as normal; why the last one has none."""
        self.given = self.read
        """How many rows have been read and, if they are important, wait to be answered."""

    @property
    def read(self) -> int:
        """How many rows have been read."""
        return int(self._position.ordinal)

    def follow(self, offset: Mapping[str, Any], begun: float, handed_at: float) -> None:
        """Let a replay with a pace go by the clock of its batches, which have reached an offset.

        That says when it was due there.  Until their clock has begun, after ``begun``, it is taken
        to have been there when the batch was handed over.
        """
        if self._by_their_clock or not isinstance(self._reader, Paced):
            return
        due = offset.get("due", 0) / 1e9
        self._by_their_clock = begun <= due <= time.monotonic()  # not of a clock before a reboot
        self._reader.follow_since(
            self._reader.position(offset), due if self._by_their_clock else handed_at
        )

    def adopt(self, progress: Progress) -> None:
        """Let it take over, when it reads next, what a batch has decided about time."""
        self._news = progress

    def _take_over(self) -> None:
        progress, self._news = self._news, None
        if progress is None:
            return
        for name, part in progress.partitions.items():
            self._judge.appear(name)
            if name:
                self._judge.promise(part.floor, name)
        self._judge.promise(max(progress.floor, _only_floor(progress)))

    def poll(self) -> Iterator[Block]:
        """Yield what has come since the last time and is important."""
        stamp = None if self._spool is None else self._spool.stamp()
        if stamp is not None and stamp == self._stamp:
            return
        reached = self._reader.advance(self._position, False)
        if reached == self._position:
            self._stamp = stamp  # until it changes, nothing more has come
            return
        now = time.monotonic()
        slices = self._reader.slices(self._position, reached)
        self._position = reached
        self._take_over()
        for d in slices:
            self._named = self._named or bool(d.partition)
            if d.path:
                for part in read_slice(self.stream, d.path, d.first, d.last, None, d.shift):
                    self._judge.appear(d.partition, d.number if d.partition else None)
                    if part.table.num_rows:
                        position = part.positions + d.ordinal
                        yield from self._important(part.table, position, d.partition, now)
            if d.floor is not None:
                self._judge.promise(d.floor, d.partition)

    def _were_answered(self, seq: I64, times: I64) -> Mask:
        """Return which rows were answered before; they must be the same rows."""
        found = np.isin(seq, list(self._answered))
        for number, time_of in zip(seq[found].tolist(), times[found].tolist(), strict=True):
            if self._answered[number] != time_of:
                raise OtherRowsError(
                    f"the rows of stream {self.stream.name} that the lane has answered must still "
                    f"be there, but in the place of one, of time {self._answered[number]}, is "
                    f"another, of time {time_of}: the stream is an older copy than the journal of "
                    f"turns; bring it back from a copy of the same time, or use another "
                    f"--checkpoint"
                )
        return found

    def _important(
        self, table: pa.Table, position: I64, partition: str, now: float
    ) -> Iterator[Block]:
        judged = self._judge.judge(table, position, partition)
        columns = [one_array(column) for column in table.columns]
        level, unfit, told = fit_priorities(self.stream, columns, table.num_rows)
        if unfit:
            self.unfit, self.last_unfit = self.unfit + unfit, told
        wanted = (level > 0) & ~judged.late
        if len(self._answered):
            wanted &= ~self._were_answered(judged.seq, judged.time)
        for one in np.unique(level[wanted])[::-1].tolist():
            at = np.flatnonzero(wanted & (level == one))
            for first in range(0, len(at), self._rows):
                some = at[first : first + self._rows]
                yield Block(
                    self.stream.name,
                    table.take(pa.array(some)),
                    judged.time[some],
                    judged.seq[some],
                    one,
                    now,
                    self._named,
                )


def _only_floor(progress: Progress) -> int:
    """Return the floor of the partition that has no name, if that is the only one."""
    only = progress.partitions.get("")
    return progress.floor if only is None else only.floor
