"""Where the rows of files begin and end, how files are cut between them, and what times they have.

A place is a byte at a line start, or a row of a columnar file.  What was found of a file is
remembered: files stay as they are while they are read (`penstock.sources.signatures`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import PenstockError
from penstock.model import I64, MIN_TIME, to_numpy
from penstock.sources.readers import TYPED, Slice, read_file
from penstock.sources.readers.base import Asked, open_input, wanted_columns
from penstock.sources.readers.columnar import damage_told, sound_metadata
from penstock.sources.readers.delimited import csv_dialect, text_dialect
from penstock.sources.readers.lines import advance as advance_lines
from penstock.sources.readers.lines import check_text, count_lines

LOOK_AHEAD = 65_536
"""Rows whose times are read at once when a stream is paced by event time."""

_FEW = 64
"""Rows that are looked at to find the time at which a file stands."""


class Cuts:
    """Cuts the files of a stream; ``kind`` tells which reader a path has."""

    def __init__(self, definition: StreamDef, kind: Callable[[str], str]) -> None:
        self.definition = definition
        self.kind = kind
        self._bounds: dict[str, tuple[int, int]] = {}
        self._row_bytes: dict[str, float] = {}
        self._times: dict[tuple[str, int], int | None] = {}
        self._first: dict[str, int | None] = {}
        self._least: dict[str, int | None] = {}
        self._ahead: dict[str, _Ahead] = {}

    def bounds(self, path: str) -> tuple[int, int]:
        """Return where the rows of a file start and end; its head is checked the first time."""
        if path not in self._bounds:
            kind = self.kind(path)
            with open_input(path) as source:
                asked = Asked(self.definition, source, path, wanted_columns(self.definition, None))
                if kind == "csv":
                    bounds = csv_dialect(asked)[1], source.size()
                elif kind == "text":
                    bounds = text_dialect(asked)[1], source.size()
                elif kind == "json":
                    check_text(asked)
                    bounds = 0, source.size()
                else:
                    bounds = 0, self._parquet_rows(source, path)
            self._bounds[path] = bounds
        return self._bounds[path]

    def after(self, path: str, at: int, rows: int) -> tuple[int, int]:
        """Return the place that is so many rows on, or the end, and the rows up to it."""
        if self.kind(path) == "parquet":
            end = min(at + rows, self.bounds(path)[1])
            return end, end - at
        with open_input(path) as source:
            return advance_lines(source, at, rows)

    def within(self, path: str, at: int, rows: int, size: int | None) -> tuple[int, int, int]:
        """Return the place that is so many rows and bytes on, the rows to it, and their bytes.

        It is one row on at least.  Rows are taken to be of one size, on the average of the slice:
        of text as it is in the file, of columns as they are in memory.
        """
        end, taken = self.after(path, at, rows)
        per_row = self._row_bytes.get(path) or (end - at) / max(taken, 1)
        if size is not None and taken * per_row > size:
            end, taken = self.after(path, at, max(1, int(size / per_row)))
        return end, taken, int(taken * per_row)

    def is_row(self, path: str, at: int) -> bool:
        """Whether a row begins, or the last one ends, at a place of a file."""
        first, last = self.bounds(path)
        if not first <= at <= last:
            return False
        if at in (first, last) or self.kind(path) == "parquet":
            return True
        with open_input(path) as source:
            source.seek(at - 1)
            return bytes(source.read(1)) == b"\n"

    def bytes_before(self, path: str, at: int, size: int) -> int:
        """Return how many of a file's bytes lie before a place; of columns in proportion."""
        if self.kind(path) != "parquet":
            return at
        return size * at // max(self.bounds(path)[1], 1)

    def read(self, path: str, first: int, last: int, shift: int = 0) -> Iterator[Slice]:
        """Read the times of some rows."""
        if first != last:
            kind = self.kind(path)
            yield from read_file(self.definition, kind, path, first, last, (), shift)

    def times_of(self, part: Slice) -> I64:
        """Return the times of rows that were read."""
        times: I64 = to_numpy(part.table.column(self.definition.time))
        return times

    def time_at(self, path: str, at: int) -> int | None:
        """Return the time of the next row, or of one close behind; None: nothing is known.

        A file that cannot be read has no time here: who reads it says what is wrong.
        """
        if (path, at) not in self._times:
            if len(self._times) > 100_000:
                self._times.clear()
            self._times[path, at] = self._looked_up(path, at)
        return self._times[path, at]

    def _looked_up(self, path: str, at: int) -> int | None:
        try:
            at = max(at, self.bounds(path)[0])
            for part in self.read(path, at, self.after(path, at, _FEW)[0]):
                times = self.times_of(part)
                if len(times):
                    return int(times[0])
        except (PenstockError, OSError, pa.ArrowInvalid):
            pass
        return None

    def first_time(self, path: str) -> int | None:
        """Return a time that holds nobody back and lets nothing of a file be late; None: no such.

        It is the least of its first rows, one of which at least will be accepted, so that the
        newest time behind them is not below it.
        """
        if path not in self._first:
            self._first[path] = self._first_of(path)
        return self._first[path]

    def _first_of(self, path: str) -> int | None:
        try:
            at = self.bounds(path)[0]
            end, kind = self.after(path, at, _FEW)[0], self.kind(path)
            if at == end:
                return None
            whole = list(read_file(self.definition, kind, path, at, end))
            some = list(self.read(path, at, end)) if kind in TYPED else whole
        except (PenstockError, OSError, pa.ArrowInvalid):
            return None
        if not any(part.table.num_rows for part in whole):
            return None
        return min(int(self.times_of(part).min()) for part in some if part.table.num_rows)

    def least_time(self, path: str) -> int | None:
        """Return the least time of a file, all of which is read for it; None: it has none."""
        if path not in self._least:
            found = None
            try:
                for part in self.read(path, self.bounds(path)[0], -1):
                    times = self.times_of(part)
                    if len(times):
                        least = int(times.min())
                        found = least if found is None else min(found, least)
            except (PenstockError, OSError, pa.ArrowInvalid):
                found = None
            self._least[path] = found
        return self._least[path]

    def rows_until(self, path: str, at: int, time: int, limit: int) -> int:
        """Return how many rows, at most ``limit``, come before the first later than ``time``."""
        count, last = 0, self.bounds(path)[1]
        while count < limit and at < last:
            ahead = self._look_ahead(path, at)
            skipped = ahead.places[at]
            ready = int(np.searchsorted(ahead.times, time, side="right")) - skipped
            if ready < len(ahead.times) - skipped:
                return min(count + max(ready, 0), limit)
            count += ready
            at = ahead.end
        return min(count, limit)

    def _look_ahead(self, path: str, at: int) -> _Ahead:
        """Return the running largest times of rows from a place on.

        A place inside what is known is one that was cut there: it is told by its rows.
        """
        known = self._ahead.get(path)
        if known is not None:
            if at in known.places:
                return known
            if known.begin < at < known.end:
                known.places[at] = self.rows_between(path, known.begin, at)
                return known
        end, rows = self.after(path, at, LOOK_AHEAD)
        largest = known.largest if known is not None and known.end == at else MIN_TIME
        times = np.full(rows, MIN_TIME, np.int64)
        for part in self.read(path, at, end):
            times[part.positions] = self.times_of(part)
        self._ahead[path] = found = _Ahead(
            at, end, np.maximum.accumulate(np.maximum(times, largest))
        )
        return found

    def rows_between(self, path: str, first: int, last: int) -> int:
        """Return how many rows lie between two places."""
        if self.kind(path) == "parquet":
            return last - first
        with open_input(path) as source:
            return count_lines(source, first, last)

    def forget(self, path: str) -> None:
        """Forget what was read ahead of a file that is done."""
        self._ahead.pop(path, None)

    def _parquet_rows(self, source: Any, path: str) -> int:
        with damage_told(self.definition, path, "Parquet"):
            found = sound_metadata(pyarrow.parquet.ParquetFile(source))
            groups = (found.row_group(i).total_byte_size for i in range(found.num_row_groups))
            self._row_bytes[path] = max(1.0, sum(groups) / max(int(found.num_rows), 1))
            return int(found.num_rows)


class _Ahead:
    """The running largest times of the rows between two places, and at which row places are."""

    def __init__(self, begin: int, end: int, times: I64) -> None:
        self.begin, self.end, self.times = begin, end, times
        self.places = {begin: 0}

    @property
    def largest(self) -> int:
        return int(self.times[-1]) if len(self.times) else MIN_TIME
