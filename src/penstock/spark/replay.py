"""Penstock's own Spark source: files replayed at a pace, folders watched, spools of pushed rows.

It yields descriptors, never data (see `penstock.spark.readers.base`).  Spark runs the planning side
in a Python process of its own; all that must survive is in the offsets.  Only pacing lives in the
process: it is measured from the first call after a start, so a restart goes on smoothly instead of
catching up the time that the program was down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import InternalError
from penstock.model import MIN_TIME
from penstock.spark.admission import admitted
from penstock.spark.folders import FolderFiles, FolderPosition
from penstock.spark.positions import Descriptor, Position, ReplayFiles, positive
from penstock.spark.readers.base import from_json, local_path, option
from penstock.spark.spool import SpoolFiles, SpoolPosition

FORMAT = "penstock"
"""The name under which the source is registered with Spark."""

DESCRIPTOR_DDL = (
    "stream STRING, path STRING, first BIGINT, last BIGINT, ordinal BIGINT, shift BIGINT, "
    "final BOOLEAN"
)

_ALL = 2**62


class DescriptorSource(DataSource):
    """``format("penstock")`` with the options definition (JSON), rows and bytes of a batch.

    ``folder`` is where a spool is, or with ``files`` (most files of a batch) the list of a watched
    folder.  ``admission`` is the file that tells how many rows a batch may take by now, at most
    ``rows``.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DESCRIPTOR_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        definition = from_json(self.options["definition"])
        limits = Limits(
            int(self.options["rows"]),
            int(self.options.get("bytes", _ALL)),
            int(self.options.get("files", _ALL)),
            self.options.get("admission"),
        )
        if "files" in self.options:
            watched = local_path(str(option(definition, "path"))) or ""
            kept_in = self.options["folder"]
            found = FolderFiles(definition.name, Path(watched).absolute(), kept_in)
            return FolderReader(found, limits)
        if "folder" in self.options:
            return SpoolReader(definition.name, SpoolFiles(self.options["folder"]), limits)
        rate, speed = positive(definition, "rate"), positive(definition, "speed")
        return ReplayReader(ReplayFiles(definition), limits, rate, speed)


class Slices(InputPartition):
    """The descriptors of one batch, in one partition."""

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


class _DescriptorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What all readers share: the limit of a batch, and descriptors as rows."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._limits.rows)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Slices):
            raise InternalError(f"a partition must be Slices, got {type(partition).__name__}")
        return iter(partition.descriptors)

    def _limit(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadMaxRows):
            return admitted(self._limits.admission, int(limit.max_rows))
        everything = isinstance(limit, ReadAllAvailable | ReadMaxFiles)
        return _ALL if everything else self._limits.rows


class ReplayReader(_DescriptorReader):
    """Plans the batches of a replay; ``rate`` in rows, ``speed`` in event seconds per second."""

    def __init__(
        self,
        files: ReplayFiles,
        limits: Limits,
        rate: float | None,
        speed: float | None,
    ) -> None:
        super().__init__(limits)
        self._files = files
        self._rate = rate
        self._speed = speed
        self._anchor: tuple[float, int] | None = None
        self._first_ordinal: int | None = None
        self._planned: dict[tuple[Position, Position], list[Descriptor]] = {}
        self._available_now = False
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._files.start().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = Position.from_json(start)
        if position.done or position == self._target:
            return start
        rows = self._limit(limit)
        endless = self._files.rounds is None
        if rows == _ALL and endless:
            rows = self._limits.rows
        if not self._available_now:
            rows = min(rows, self._due(position, rows))
        end, slices = self._files.advance(position, rows, self._limits.bytes)
        if end.ordinal == position.ordinal and not end.done:
            return start
        self._planned = {(position, end): slices}
        if self._available_now and endless:
            self._target = end
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        if first == last:
            return []
        slices = self._planned.get((first, last))
        if slices is None:
            reached, slices = self._files.advance(first, last.ordinal - first.ordinal)
            if replace(reached, files="") != replace(last, files=""):
                raise InternalError(
                    f"a replayed batch must end where it ended before, at {last}, got {reached}"
                )
        return [Slices(slices)]

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


class SpoolReader(_DescriptorReader):
    """Plans the batches of a spool: whole files, at least one, until the limit is reached."""

    def __init__(self, stream: str, files: SpoolFiles, limits: Limits) -> None:
        super().__init__(limits)
        self._stream = stream
        self._files = files
        self._target: SpoolPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return SpoolPosition().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._files.advance(SpoolPosition(), _ALL)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = SpoolPosition.from_json(start)
        end = self._files.advance(position, self._limit(limit), self._target)
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = SpoolPosition.from_json(start), SpoolPosition.from_json(end)
        if first == last:
            return []
        return [Slices(self._files.slices(self._stream, first, last))]


class FolderReader(_DescriptorReader):
    """Plans the batches of a watched folder: parts of files, in the order in which they came."""

    def __init__(self, files: FolderFiles, limits: Limits) -> None:
        super().__init__(limits)
        self._files = files
        self._frozen = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return FolderPosition().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._files.look()
        self._frozen = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if not self._frozen:
            self._files.look()
        position = FolderPosition.from_json(start)
        limits = self._limits
        end, _ = self._files.advance(position, self._limit(limit), limits.files, limits.bytes)
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = FolderPosition.from_json(start), FolderPosition.from_json(end)
        if first == last:
            return []
        reached, slices = self._files.advance(first, last.ordinal - first.ordinal, _ALL, _ALL)
        if reached.ordinal != last.ordinal:
            raise InternalError(
                f"a batch must end where it was planned to end, at {last}, got {reached}"
            )
        return [Slices(slices)]
