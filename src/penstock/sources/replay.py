"""The format ``replay``: files are read as if they came in now, at a chosen pace.

All that must survive is in the offsets.  Only pacing lives in the process: it is measured from the
first call after a start, so a restart goes on smoothly instead of catching up the time that the
program was down.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.model import MIN_TIME
from penstock.sources.base import Backlog, Limits, SourceFormat, StreamReader, Waiting
from penstock.sources.offsets import bad_position
from penstock.sources.positions import Position, ReplayFiles, list_files, loop_rounds, positive
from penstock.sources.readers.base import Descriptor, file_format, option, refuses_missing
from penstock.sources.tables import check_path_given


class ReplayFormat(SourceFormat):
    """A file, or the files of a folder, replayed."""

    name = "replay"
    options = ("path", "format", "rate", "speed", "loop", "delimiter", "null", "missing")
    names_files = True

    def check_values(self, definition: StreamDef) -> None:
        check_path_given(f"stream {definition.name}", option(definition, "path"))
        loop_rounds(definition)
        refuses_missing(definition)
        if positive(definition, "rate") and positive(definition, "speed"):
            raise ConfigError(
                f"the stream {definition.name} must have a rate or a speed, not both; "
                f"rate counts rows per second, speed is a multiple of event time"
            )

    def check(self, definition: StreamDef) -> None:
        self.check_values(definition)
        ReplayFiles(definition).check()

    def is_finite(self, definition: StreamDef) -> bool:
        return loop_rounds(definition) is not None

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        rate, speed = positive(definition, "rate"), positive(definition, "speed")
        return ReplayReader(ReplayFiles(definition, folder), limits, rate, speed)

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        paced = loop_rounds(definition) != 1 or any(
            positive(definition, name) for name in ("rate", "speed")
        )
        return Backlog() if paced else ReplayBacklog(definition)


class ReplayReader:
    """Plans the batches of a replay; ``rate`` in rows, ``speed`` in event seconds per second."""

    def __init__(
        self,
        files: ReplayFiles,
        limits: Limits,
        rate: float | None,
        speed: float | None,
    ) -> None:
        self._limits = limits
        self._files = files
        self._rate = rate
        self._speed = speed
        self._anchor: tuple[float, int] | None = None
        self._first_ordinal: int | None = None
        self._planned: dict[tuple[Position, Position], list[Descriptor]] = {}
        self._frozen = False
        self._target: Position | None = None

    def position(self, offset: Mapping[str, Any] | None) -> Position:
        if offset is None:
            return self._files.start()
        return Position.from_json(offset, self._files.definition.name)

    def freeze(self) -> None:
        self._frozen = True

    def advance(self, position: Position, everything: bool) -> Position:
        if position.done or position == self._target:
            self._files.restore(position)  # refuses files that were added
            return position
        endless = self._files.rounds is None
        rows = self._limits.rows if endless and everything else self._limits.now(everything)
        if not self._frozen:
            rows = min(rows, self._due(position, rows))
        end, slices = self._files.advance(position, rows, self._limits.bytes)
        if end.ordinal == position.ordinal and not end.done:
            return position
        self._files.keep()
        self._planned = {(position, end): slices}
        if self._frozen and endless:
            self._target = end
        return end

    def slices(self, first: Position, last: Position) -> list[Descriptor]:
        slices = self._planned.get((first, last))
        if slices is not None:
            return slices
        name = self._files.definition.name
        self._files.check_same(last)
        if first.begins:
            first = self._files.start()
        if last.ordinal < first.ordinal or first.done:
            raise bad_position(name, f"it goes from {first} back to {last}")
        reached, slices = self._files.advance(first, last.ordinal - first.ordinal)
        if reached != last:
            raise bad_position(name, f"the batch that ended at {last} ends at {reached}")
        return slices

    def _due(self, position: Position, limit: int) -> int:
        """Return how many rows may leave by now.

        The clock starts when the first batch is done: that one takes as long as Spark needs to
        start its workers, and brings only the first row or instant.
        """
        starting = self._first_ordinal in (None, position.ordinal)
        self._first_ordinal = position.ordinal if starting else self._first_ordinal
        if self._rate is not None:
            if starting:
                return min(1, limit)
            if self._anchor is None:
                self._anchor = (time.monotonic(), position.ordinal)
            since, ordinal = self._anchor
            due = ordinal + int((time.monotonic() - since) * self._rate)
            return max(0, min(limit, due - position.ordinal))
        if self._speed is not None:
            if self._anchor is None:
                event = self._files.time_at(position)
                if event is None:
                    return self._files.rows_until(position, MIN_TIME, limit)
                if starting:
                    return self._files.rows_until(position, event, limit)
                self._anchor = (time.monotonic(), event)
            since, event = self._anchor
            passed = (time.monotonic() - since) * self._speed * self._files.chronons_per_second
            return self._files.rows_until(position, event + int(passed), limit)
        return limit


class ReplayBacklog(Backlog):
    """The bytes of files behind the place that the last batch reached."""

    def __init__(self, definition: StreamDef) -> None:
        self._definition = definition
        self._sizes = {str(path): path.stat().st_size for path in list_files(definition)}

    def measured(self, taken: int, reached: Mapping[str, int] | None) -> Waiting | None:
        if reached is None and taken:
            return None
        left = sum(self._sizes.values())
        if reached:
            path, place = max(reached.items())
            for name, size in self._sizes.items():
                if name == path:
                    left -= self._bytes_before(path, place)
                    break
                left -= size
        return Waiting(max(0, left), "bytes")

    def _bytes_before(self, path: str, place: int) -> int:
        """Return how many bytes are before a place; of columnar files in proportion to the rows."""
        if file_format(self._definition, path) != "parquet":
            return place
        rows = int(pyarrow.parquet.read_metadata(Path(path)).num_rows)
        return self._sizes[path] * place // max(rows, 1)
