"""Penstock's own Spark source: files replayed at a pace, folders watched, spools of pushed rows.

It yields descriptors, never data (see `sources.readers.base`).  Spark runs the planning side
in a Python process of its own, and starts these one after another, so all streams of a pipeline are
one source.  Its offset is that of each stream under the stream's name: a stream that is added later
begins at its own beginning, one that is not read for a while goes on where it was.

All that must survive is in the offsets.  Only pacing lives in the process: it is measured from the
first call after a start, so a restart goes on smoothly instead of catching up the time that the
program was down.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.catalog import StreamDef
from penstock.errors import InternalError, StateError
from penstock.model import MIN_TIME
from penstock.sources.admission import admitted
from penstock.sources.folders import FolderFiles, FolderPosition
from penstock.sources.offsets import bad_position
from penstock.sources.positions import Descriptor, Position, ReplayFiles, positive
from penstock.sources.readers.base import from_json, local_path, option
from penstock.sources.spool import SpoolFiles, SpoolPosition

FORMAT = "penstock"
"""The name under which the source is registered with Spark."""

DESCRIPTOR_DDL = (
    "stream STRING, path STRING, first BIGINT, last BIGINT, ordinal BIGINT, shift BIGINT, "
    "final BOOLEAN"
)

_ALL = 2**62

Offset: TypeAlias = dict[str, dict[str, Any]]
"""The positions of streams that have left their beginning, by name."""

Place = TypeVar("Place", Position, SpoolPosition, FolderPosition)


class DescriptorSource(DataSource):
    """``format("penstock")``: the option ``streams`` is a JSON list of streams, each an object.

    Its ``definition`` is that of the stream, ``rows`` and ``bytes`` are the most of a batch.
    ``folder`` is where a spool is, or the list of the files of a replay or of a watched folder,
    of which a batch takes at most ``files``.  ``admission`` is the file that tells how many rows a
    batch may take by now, at most ``rows``.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DESCRIPTOR_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        readers = {}
        for described in json.loads(self.options["streams"]):
            definition = from_json(described["definition"])
            readers[definition.name] = _reader_of(definition, described)
        return StreamsReader(readers)


def _reader_of(definition: StreamDef, options: Mapping[str, Any]) -> StreamReader[Any]:
    limits = Limits(
        options["rows"],
        options.get("bytes", _ALL),
        options.get("files", _ALL),
        options.get("admission"),
    )
    if "files" in options:
        watched = local_path(str(option(definition, "path"))) or ""
        found = FolderFiles(definition.name, Path(watched).absolute(), options["folder"])
        return FolderReader(definition.name, found, limits)
    if definition.format.lower() == "memory":
        return SpoolReader(definition.name, SpoolFiles(options["folder"]), limits)
    rate, speed = positive(definition, "rate"), positive(definition, "speed")
    return ReplayReader(ReplayFiles(definition, options.get("folder")), limits, rate, speed)


class Slices(InputPartition):
    """The descriptors of a stream in one batch, in one partition."""

    def __init__(self, descriptors: Sequence[Descriptor]) -> None:
        super().__init__(None)
        self.descriptors = list(descriptors)


@dataclass(frozen=True)
class Limits:
    """What one source may put into a batch; ``admission`` names the file that adapts the rows."""

    rows: int
    bytes: int = _ALL
    files: int = _ALL
    admission: str | None = None

    def now(self, everything: bool) -> int:
        """Return the rows that a batch may take by now."""
        return _ALL if everything else admitted(self.admission, self.rows)


class StreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of all streams; those that bring something get a partition each."""

    def __init__(self, readers: Mapping[str, StreamReader[Any]]) -> None:
        self._readers = readers

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(_ALL)  # each stream has its own

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        for reader in self._readers.values():
            reader.freeze()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        everything = isinstance(limit, ReadAllAvailable)
        end = dict(_checked(start))
        for name, reader in self._readers.items():
            begin = reader.position(start.get(name))
            reached = reader.advance(begin, everything)
            if reached != begin:
                end[name] = reached.to_json()
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        planned = []
        lost = set(_checked(start)) - set(_checked(end))
        if lost:
            raise bad_position(min(lost), "a later batch has none")
        for name, reader in self._readers.items():
            first, last = reader.position(start.get(name)), reader.position(end.get(name))
            if first != last:
                planned.append(Slices(reader.slices(first, last)))
        return planned

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Slices):
            raise InternalError(f"a partition must be Slices, got {type(partition).__name__}")
        return iter(partition.descriptors)


def _checked(offset: Any) -> Offset:
    """Check that an offset has a position for each of some streams."""
    if not isinstance(offset, dict) or not all(isinstance(p, dict) for p in offset.values()):
        raise StateError(
            f"Spark's offsets must have a position for each stream, got {str(offset)[:80]!r}; the "
            f"checkpoint is damaged, or was made by another version of Penstock: use another "
            f"--checkpoint"
        )
    return offset


class StreamReader(Protocol[Place]):
    """Plans the batches of one stream."""

    def position(self, offset: Mapping[str, Any] | None) -> Place:
        """Return a position that an offset holds, or the beginning of the stream."""

    def freeze(self) -> None:
        """Take what is there now as all there is."""

    def advance(self, position: Place, everything: bool) -> Place:
        """Return where the next batch ends; it has all that is there, or what the limits allow."""

    def slices(self, first: Place, last: Place) -> list[Descriptor]:
        """Return what lies between two positions."""


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


class SpoolReader:
    """Plans the batches of a spool: whole files, at least one, until the limit is reached."""

    def __init__(self, stream: str, files: SpoolFiles, limits: Limits) -> None:
        self._limits = limits
        self._stream = stream
        self._files = files
        self._target: SpoolPosition | None = None

    def position(self, offset: Mapping[str, Any] | None) -> SpoolPosition:
        return SpoolPosition() if offset is None else SpoolPosition.from_json(offset, self._stream)

    def freeze(self) -> None:
        self._target = self._files.end()

    def advance(self, position: SpoolPosition, everything: bool) -> SpoolPosition:
        return self._files.advance(position, self._limits.now(everything), self._target)

    def slices(self, first: SpoolPosition, last: SpoolPosition) -> list[Descriptor]:
        return self._files.slices(self._stream, first, last)


class FolderReader:
    """Plans the batches of a watched folder: parts of files, in the order in which they came."""

    def __init__(self, stream: str, files: FolderFiles, limits: Limits) -> None:
        self._limits = limits
        self._stream = stream
        self._files = files
        self._frozen = False

    def position(self, offset: Mapping[str, Any] | None) -> FolderPosition:
        if offset is None:
            return FolderPosition()
        return FolderPosition.from_json(offset, self._stream)

    def freeze(self) -> None:
        self._files.look()
        self._frozen = True

    def advance(self, position: FolderPosition, everything: bool) -> FolderPosition:
        self._files.check(position)
        if not self._frozen:
            self._files.look()
        limits = self._limits
        rows = limits.now(everything)
        return self._files.advance(position, rows, limits.files, limits.bytes)[0]

    def slices(self, first: FolderPosition, last: FolderPosition) -> list[Descriptor]:
        return self._files.between(first, last)
