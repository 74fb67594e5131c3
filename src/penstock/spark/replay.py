"""Penstock's own Spark source: files replayed at a chosen pace, and spools of pushed rows.

It yields descriptors, never data (see `penstock.spark.readers.base`).  Spark runs the planning side
in a Python process of its own; all that must survive is in the offsets.  Only pacing lives in the
process: it is measured from the first call after a start, so a restart goes on smoothly instead of
catching up the time that the program was down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from penstock.spark.positions import Descriptor, Position, ReplayFiles, positive
from penstock.spark.readers.base import from_json
from penstock.spark.spool import SpoolFiles, SpoolPosition

FORMAT = "penstock"
"""The name under which the source is registered with Spark."""

DESCRIPTOR_DDL = (
    "stream STRING, path STRING, first BIGINT, last BIGINT, ordinal BIGINT, shift BIGINT, "
    "final BOOLEAN"
)

_ALL = 2**62


class DescriptorSource(DataSource):
    """``format("penstock")`` with the options definition (JSON), rows, and for spools folder.

    ``admission`` is the file that tells how many rows a batch may take by now, at most ``rows``.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DESCRIPTOR_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        definition = from_json(self.options["definition"])
        rows = int(self.options["rows"])
        if "folder" in self.options:
            files = SpoolFiles(self.options["folder"])
            return SpoolReader(definition.name, files, rows, self.options.get("admission"))
        rate, speed = positive(definition, "rate"), positive(definition, "speed")
        admission = self.options.get("admission")
        return ReplayReader(ReplayFiles(definition), rows, rate, speed, admission)


class Slices(InputPartition):
    """The descriptors of one batch, in one partition."""

    def __init__(self, descriptors: Sequence[Descriptor]) -> None:
        super().__init__(None)
        self.descriptors = list(descriptors)


class _DescriptorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both readers share: the limit of a batch, and descriptors as rows."""

    def __init__(self, rows: int, admission: str | None) -> None:
        self._rows = rows
        self._admission = admission

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Slices):
            raise InternalError(f"a partition must be Slices, got {type(partition).__name__}")
        return iter(partition.descriptors)

    def _limit(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadMaxRows):
            return admitted(self._admission, int(limit.max_rows))
        return _ALL if isinstance(limit, ReadAllAvailable | ReadMaxFiles) else self._rows


class ReplayReader(_DescriptorReader):
    """Plans the batches of a replay; ``rate`` in rows, ``speed`` in event seconds per second."""

    def __init__(
        self,
        files: ReplayFiles,
        rows: int,
        rate: float | None,
        speed: float | None,
        admission: str | None = None,
    ) -> None:
        super().__init__(rows, admission)
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
            rows = self._rows
        if not self._available_now:
            rows = min(rows, self._due(position, rows))
        end, slices = self._files.advance(position, rows)
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

    def __init__(
        self, stream: str, files: SpoolFiles, rows: int, admission: str | None = None
    ) -> None:
        super().__init__(rows, admission)
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
