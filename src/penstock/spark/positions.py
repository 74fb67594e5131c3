"""Where a replay stands in its files, and how it goes on from there.

A `Position` is written to Spark's offset log as JSON and holds everything needed to go on:
file, place in it (a byte at a line start, or a row), arrival number, round and shift of a loop.
`ReplayFiles.advance` depends only on the position, the number of rows and the files, so a batch
that Spark replays is cut exactly as before.  ``files`` is a digest of the files' names and sizes:
a replay whose files have changed stops instead of reading something else.

A looped source is shifted by its *period* each round: the span of its times plus the mean gap
between two rows (at least one chronon), so time goes on at the border of two rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import DataError
from penstock.model import I64, MIN_TIME, TIMESTAMP, to_numpy
from penstock.spark.readers import read_slice
from penstock.spark.readers.base import (
    EXTENSIONS,
    file_format,
    local_path,
    open_input,
    option,
    wanted_columns,
)
from penstock.spark.readers.delimited import csv_dialect, text_dialect
from penstock.spark.readers.json_lines import check_json
from penstock.spark.readers.lines import advance as advance_lines

Descriptor = tuple[str, str, int, int, int, int, bool]
"""stream, path, first, last, ordinal, shift, final."""

_LOOK_AHEAD = 65_536
"""Rows whose times are read at once when a stream is paced by event time."""


@dataclass(frozen=True)
class Position:
    """A place in a replayed source; ``at`` is -1 before the first row of a file."""

    file: int = 0
    at: int = -1
    ordinal: int = 0
    round: int = 0
    shift: int = 0
    period: int = 0
    done: bool = False
    files: str = ""

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset log keeps it."""
        return asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Position:
        """The inverse of `to_json`."""
        return Position(**found)


def loop_rounds(definition: StreamDef) -> int | None:
    """Return how many times a replay reads its files; None means for ever."""
    given = (option(definition, "loop") or "false").strip().lower()
    if given in ("true", "false"):
        return None if given == "true" else 1
    if not given.isdecimal() or int(given) < 1:
        raise DataError(
            f"the option loop of stream {definition.name} must be 'true', 'false' or a number of "
            f"rounds from 1, got '{given}'"
        )
    return int(given)


def positive(definition: StreamDef, name: str) -> float | None:
    """Return an option that must be a number above 0; None if it is not given."""
    given = option(definition, name)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise DataError(
            f"the option {name} of stream {definition.name} must be a number above 0, got '{given}'"
        )
    return number


def list_files(definition: StreamDef) -> list[Path]:
    """Return the files of a replayed stream: the one given, or those of a folder in name order."""
    given = option(definition, "path")
    if not given:
        raise DataError(
            f"the stream {definition.name} must have a path; "
            f"add OPTIONS (path 'file or folder') to it"
        )
    local = local_path(given)
    if local is None:
        raise DataError(
            f"the path of stream {definition.name} must be a local file or folder for the format "
            f"replay, got '{given}'; use a Spark format such as parquet for other storage"
        )
    root = Path(local).absolute()
    if not root.exists():
        raise DataError(
            f"the path of stream {definition.name} must exist, got '{given}'; "
            f"it was looked for at {root}"
        )
    if root.is_file():
        return [root]
    any_name = option(definition, "format") is not None
    return sorted(
        path
        for path in root.iterdir()
        if path.is_file()
        and path.name[0] not in "._"
        and (any_name or path.suffix.lower() in EXTENSIONS)
    )


class ReplayFiles:
    """The files of a replayed stream, fixed when it is made."""

    def __init__(self, definition: StreamDef) -> None:
        self.definition = definition
        self.paths = [str(path) for path in list_files(definition)]
        self.rounds = loop_rounds(definition)
        known = hashlib.blake2b(digest_size=8)
        for path in self.paths:
            known.update(f"{Path(path).name}\0{Path(path).stat().st_size}\0".encode())
        self.digest = known.hexdigest()
        self._bounds: dict[int, tuple[int, int]] = {}
        self._row_bytes: dict[int, float] = {}
        self._ahead: tuple[Position, Position, I64] | None = None

    def check(self) -> None:
        """Open every file's head: its header, schema line or schema must fit the declaration."""
        for file in range(len(self.paths)):
            self._bounds_of(file)

    def start(self) -> Position:
        """Return the position before the first row."""
        period = 0 if self.rounds == 1 else self._period()
        return Position(files=self.digest, period=period)

    def advance(
        self, position: Position, rows: int, size: int | None = None
    ) -> tuple[Position, list[Descriptor]]:
        """Return where the source stands ``rows`` rows later, and the slices between.

        ``size`` stops it earlier, at so many bytes: of text as it is in the file, of columns as
        they are in memory; but it takes at least one row where there is one.  When the source
        ends there, the position is done and the last slice is final; a source that ends without
        a slice has one of no rows.
        """
        self.check_same(position)
        slices: list[Descriptor] = []
        name = self.definition.name
        seen_in_round = position.at >= 0 or position.file > 0
        while not position.done:
            if position.file >= len(self.paths):
                endless = self.rounds is None or position.round + 1 < self.rounds
                if not endless or not seen_in_round:
                    position = replace(position, done=True)
                    break
                seen_in_round = False
                position = replace(
                    position,
                    file=0,
                    at=-1,
                    round=position.round + 1,
                    shift=position.shift + position.period,
                )
            first, last = self._bounds_of(position.file)
            at = max(first, position.at)
            if at >= last:
                position = replace(position, file=position.file + 1, at=-1)
                continue
            if rows <= 0 or (size is not None and size <= 0):
                break
            end, taken = self._advance_in(position.file, at, rows)
            if size is not None:
                end, taken, size = self._within(position.file, at, (end, taken), size)
            path = self.paths[position.file]
            slices.append((name, path, at, end, position.ordinal, position.shift, False))
            seen_in_round = True
            rows -= taken
            position = replace(position, at=end, ordinal=position.ordinal + taken)
        if position.done and not slices:
            path = self.paths[-1] if self.paths else ""
            slices = [(name, path, 0, 0, position.ordinal, position.shift, True)]
        elif position.done:
            slices[-1] = (*slices[-1][:-1], True)
        return position, slices

    def rows_until(self, position: Position, time: int, limit: int) -> int:
        """Return how many rows, at most ``limit``, come before the first later than ``time``."""
        self.check_same(position)
        count = 0
        while count < limit and not position.done:
            begin, end, times = self._look_ahead(position)
            skipped = position.ordinal - begin.ordinal
            ready = int(np.searchsorted(times, time, side="right")) - skipped
            if ready < len(times) - skipped:
                return min(count + max(ready, 0), limit)
            count += ready
            position = end
        return min(count, limit)

    def time_at(self, position: Position) -> int | None:
        """Return the time that pacing starts from: that of the next row that has one nearby."""
        begin, _, times = self._look_ahead(position)
        known = times[position.ordinal - begin.ordinal :]
        known = known[known > MIN_TIME]
        return int(known[0]) if len(known) else None

    @property
    def chronons_per_second(self) -> int:
        """How many chronons of event time pass per second: 1 for integer times."""
        time = self.definition.schema[self.definition.time]
        return 1_000_000 if time.type == TIMESTAMP else 1

    def _look_ahead(self, position: Position) -> tuple[Position, Position, I64]:
        """Return a range of positions around ``position`` and its rows' running largest times."""
        if self._ahead is not None:
            begin, end, times = self._ahead
            if begin.ordinal <= position.ordinal < end.ordinal:
                return self._ahead
        end, slices = self.advance(position, _LOOK_AHEAD)
        largest = MIN_TIME
        if self._ahead is not None and self._ahead[1].ordinal == position.ordinal:
            largest = int(self._ahead[2][-1]) if len(self._ahead[2]) else MIN_TIME
        times = np.full(end.ordinal - position.ordinal, MIN_TIME, np.int64)
        for _, path, first, last, ordinal, shift, _ in slices:
            self._fill_times(times[ordinal - position.ordinal :], path, first, last, shift)
        times = np.maximum.accumulate(np.maximum(times, largest))
        self._ahead = (position, end, times)
        return self._ahead

    def _fill_times(self, into: I64, path: str, first: int, last: int, shift: int) -> None:
        for part in read_slice(self.definition, path, first, last, (), shift):
            into[part.positions] = to_numpy(part.table.column(self.definition.time))

    def _period(self) -> int:
        lowest, highest, rows = 2**63 - 1, MIN_TIME, 0
        for path in self.paths:
            for part in read_slice(self.definition, path, 0, -1, ()):
                times = to_numpy(part.table.column(self.definition.time))
                if len(times):
                    lowest = min(lowest, int(times.min()))
                    highest = max(highest, int(times.max()))
                    rows += len(times)
        span = highest - lowest if rows else 0
        return span + max(1, span // max(rows - 1, 1))

    def check_same(self, position: Position) -> None:
        """Check that the files are those among which a position was taken."""
        if position.files and position.files != self.digest:
            raise DataError(
                f"the files of stream {self.definition.name} must stay as they were when its "
                f"checkpoint was made, but their names or sizes have changed; bring the old files "
                f"back or start with a new checkpoint"
            )

    def _bounds_of(self, file: int) -> tuple[int, int]:
        """Return where the rows of a file start and end; its head is checked the first time."""
        if file not in self._bounds:
            path = self.paths[file]
            kind = file_format(self.definition, path)
            wanted = wanted_columns(self.definition, None)
            with open_input(path) as source:
                if kind == "csv":
                    bounds = csv_dialect(self.definition, source, path, wanted)[1], source.size()
                elif kind == "text":
                    bounds = text_dialect(self.definition, source, path, wanted)[1], source.size()
                elif kind == "json":
                    check_json(self.definition, source, path)
                    bounds = 0, source.size()
                else:
                    bounds = 0, self._parquet_rows(source, path, file)
            self._bounds[file] = bounds
        return self._bounds[file]

    def _within(
        self, file: int, at: int, reached: tuple[int, int], size: int
    ) -> tuple[int, int, int]:
        """Return a place in a file at most ``size`` bytes on, the rows to it, and the bytes left.

        Rows are taken to be of one size, on the average of the slice.
        """
        end, taken = reached
        per_row = self._row_bytes.get(file) or (end - at) / max(taken, 1)
        if taken * per_row > size:
            end, taken = self._advance_in(file, at, max(1, int(size / per_row)))
        return end, taken, size - int(taken * per_row)

    def _parquet_rows(self, source: Any, path: str, file: int) -> int:
        try:
            found = pyarrow.parquet.ParquetFile(source).metadata
            groups = (found.row_group(i).total_byte_size for i in range(found.num_row_groups))
            self._row_bytes[file] = max(1.0, sum(groups) / max(int(found.num_rows), 1))
            return int(found.num_rows)
        except pyarrow.ArrowInvalid as error:
            raise DataError(
                f"the file '{path}' of stream {self.definition.name} must be a Parquet file: "
                f"{error}"
            ) from None

    def _advance_in(self, file: int, at: int, rows: int) -> tuple[int, int]:
        path = self.paths[file]
        if file_format(self.definition, path) == "parquet":
            end = min(at + rows, self._bounds_of(file)[1])
            return end, end - at
        with open_input(path) as source:
            return advance_lines(source, at, rows)
