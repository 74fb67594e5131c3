"""Penstock's own Spark source, for all streams whose batches Penstock plans itself.

It yields descriptors, never data (see `sources.readers.base`).  Spark runs the planning side
in a Python process of its own, and starts these one after another, so all streams of a pipeline are
one source.  Its offset is that of each stream under the stream's name: a stream that is added later
begins at its own beginning, one that is not read for a while goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

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
from penstock.sources.base import UNLIMITED, Limits, StreamReader
from penstock.sources.formats import source_format
from penstock.sources.offsets import bad_position
from penstock.sources.readers.base import Descriptor, from_json
from penstock.sources.ticks import STREAM, held, last_tick

FORMAT = "penstock"
"""The name under which the source is registered with Spark."""

DESCRIPTOR_DDL = (
    "stream STRING, path STRING, first BIGINT, last BIGINT, ordinal BIGINT, shift BIGINT, "
    "final BOOLEAN, partition STRING, number BIGINT, floor BIGINT, ends BOOLEAN"
)

UNKNOWN_LOAD = 4_000
"""So many rows has a slice of which nothing is known."""

FEW_ROWS = 2_000
"""So few rows of a stream are packed in a task of another one."""

ROW_BYTES = 64
"""About so many bytes of text are a row."""

_COLUMNAR = (".parquet", ".pq", ".arrow")

Offset: TypeAlias = dict[str, dict[str, Any]]
"""The positions of streams that have left their beginning, by name."""


class DescriptorSource(DataSource):
    """``format("penstock")``: the option ``streams`` is a JSON list of streams, each an object.

    Its ``definition`` is that of the stream, ``rows`` and ``bytes`` are the most of a batch.
    ``folder`` is where a spool is, or the list of the files of a replay or of a watched folder,
    of which a batch takes at most ``files``.  ``admission`` is the file that tells how many rows a
    batch may take by now, at most ``rows``.  The option ``checkpoint`` names the folder in
    which it is told that a batch is due although nothing has come, or that a stream is held,
    ``tasks`` is how many tasks may pack one stream, ``least`` how many rows each must have.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DESCRIPTOR_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        readers, tasks = {}, int(self.options.get("tasks", "1"))
        for described in json.loads(self.options["streams"]):
            definition = from_json(described["definition"])
            readers[definition.name] = _reader_of(definition, described, tasks)
        least = int(self.options.get("least", "1"))
        return StreamsReader(readers, self.options.get("checkpoint"), tasks, least)


def _reader_of(definition: StreamDef, options: Mapping[str, Any], width: int) -> StreamReader[Any]:
    limits = Limits(
        options["rows"],
        options.get("bytes", UNLIMITED),
        options.get("files", UNLIMITED),
        options.get("admission"),
        width,
    )
    return source_format(definition.format).reader(definition, limits, options.get("folder"))


class Slices(InputPartition):
    """Descriptors of streams in one batch, those of whole source partitions: one task's work."""

    def __init__(self, descriptors: Sequence[Descriptor]) -> None:
        super().__init__(None)
        self.descriptors = list(descriptors)


class StreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of all streams; what each brings is packed by at most ``tasks`` tasks.

    Each of these has at least about ``least`` rows.
    """

    def __init__(
        self,
        readers: Mapping[str, StreamReader[Any]],
        checkpoint: str | None = None,
        tasks: int = 1,
        least: int = 1,
    ) -> None:
        self._readers = readers
        self._checkpoint = checkpoint
        self._tasks = tasks
        self._least = least

    def initialOffset(self) -> Offset:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(UNLIMITED)  # each stream has its own

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        for reader in self._readers.values():
            reader.freeze()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        everything = isinstance(limit, ReadAllAvailable)
        end = dict(_checked(start))
        waiting = held(self._checkpoint)
        for name, reader in self._readers.items():
            begin = reader.position(start.get(name))
            if name in waiting:
                continue
            reached = reader.advance(begin, everything)
            if reached != begin:
                end[name] = reached.to_json()
        tick = last_tick(self._checkpoint)
        if tick > start.get(STREAM, {}).get("tick", 0):
            end[STREAM] = {"tick": tick}
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        planned: list[list[Descriptor]] = []
        lost = set(_checked(start)) - set(_checked(end))
        if lost:
            raise bad_position(min(lost), "a later batch has none")
        for name, reader in self._readers.items():
            first, last = reader.position(start.get(name)), reader.position(end.get(name))
            if first != last:
                slices = reader.slices(first, last)
                planned += grouped(slices, self._tasks, self._least)
        return list(map(Slices, folded(planned)))

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, Slices):
            raise InternalError(f"a partition must be Slices, got {type(partition).__name__}")
        return iter(partition.descriptors)


def grouped(slices: Sequence[Descriptor], most: int, least: int) -> list[list[Descriptor]]:
    """Divide the slices of a stream among tasks: about equally, and not below what is worth one.

    All slices of a source partition go to one task, in their order.
    """
    loads: dict[str, int] = {}
    for each in slices:
        loads[each.partition] = loads.get(each.partition, 0) + _load(each)
    count = max(1, min(most, len(loads), sum(loads.values()) // least))
    if any(each.floor is not None and not each.partition for each in slices):
        return [list(slices)]  # a promise of all partitions stands between their rows
    groups: list[list[Descriptor]] = [[] for _ in range(count)]
    if count == 1:
        return [list(slices)] if slices else []
    total = [0] * count
    place = {}
    for name in sorted(loads, key=lambda name: -loads[name]):
        place[name] = total.index(min(total))
        total[place[name]] += loads[name]
    for each in slices:
        groups[place[each.partition]].append(each)
    return [group for group in groups if group]


def folded(groups: Sequence[list[Descriptor]]) -> list[list[Descriptor]]:
    """Let the few rows of a stream go along with a task of another: one of their own costs more.

    With two cores and two busy streams, a third task would keep one of them waiting.
    """
    loads = [sum(map(_load, group)) for group in groups]
    tasks = [(group, load) for group, load in zip(groups, loads, strict=True) if load > FEW_ROWS]
    found, total = [list(group) for group, _ in tasks], [load for _, load in tasks]
    for group, load in zip(groups, loads, strict=True):
        if load <= FEW_ROWS:
            if not found:
                found, total = [[]], [0]
            at = total.index(min(total))
            found[at] += group
            total[at] += load
    return found


def _load(slice: Descriptor) -> int:
    """Return about how many rows a slice has."""
    if slice.last < 0:
        return UNKNOWN_LOAD
    length = slice.last - slice.first
    return length // ROW_BYTES if Path(slice.path).suffix.lower() not in _COLUMNAR else length


def _checked(offset: Any) -> Offset:
    """Check that an offset has a position for each of some streams."""
    if not isinstance(offset, dict) or not all(isinstance(p, dict) for p in offset.values()):
        raise StateError(
            f"Spark's offsets must have a position for each stream, got {str(offset)[:80]!r}; the "
            f"checkpoint is damaged, or was made by another version of Penstock: use another "
            f"--checkpoint"
        )
    return offset
