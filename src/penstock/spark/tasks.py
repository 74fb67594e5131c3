"""What runs inside Spark's Python workers: packing a stream, and one stage of the plan.

A `Job` holds what all tasks need for one micro-batch.  It travels with the function that Spark
ships.  The states of a shard are read by its own tasks only, from a file that the driver wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from penstock.catalog import StreamDef, folder_name
from penstock.errors import DataError
from penstock.kernels.keys import sum_of_rows
from penstock.model import Mask, one_array, to_mask
from penstock.physical.packing import Packer
from penstock.physical.parcels import Parcel, from_batches, to_batches
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Timeline
from penstock.physical.reports import report
from penstock.physical.split_routes import Route
from penstock.physical.stage import run_stage
from penstock.runs import failpoints
from penstock.runs.mappings import release_beyond
from penstock.runs.segments import SegmentStorage, forget_deleted
from penstock.settings import Settings
from penstock.sources.formats import file_kind, is_pushed, read_slice
from penstock.sources.readers import DESCRIPTOR, TYPED, Slice, arrival_order, read_native
from penstock.sources.readers.base import no_rows, shortened
from penstock.sources.readers.places import place_in
from penstock.spark.exchange import receive, send, states_of
from penstock.spark.pushdown import WANTED, needs_of
from penstock.spark.sources import native_column

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Origin:
    """Where a slice comes from: its source partition, and what is told of that behind its rows.

    ``ordinal`` is the arrival number of its first row, negative: count on.  ``floor`` is a
    heartbeat, ``ends``: nothing more comes of the partition.
    """

    ordinal: int
    partition: str = ""
    number: int | None = None
    floor: int | None = None
    ends: bool = False


Part = tuple[Origin, Slice, Mask | None]
"""Where a slice comes from, the slice, and which rows are wanted."""


@dataclass(frozen=True)
class Job:
    """One micro-batch as its tasks see it.

    ``states`` names the file that has the states of all shards.  ``one_machine``: all tasks run on
    one, so rows need not travel through Spark.  ``routes``: where rows of hot keys go, by channel.
    """

    batch: int
    plan: PhysicalPlan
    settings: Settings
    segments: str
    shards: int
    streams: dict[str, StreamDef]
    timeline: Timeline
    states: str
    failures: str = ""
    one_machine: bool = False
    routes: dict[int, Route] = field(default_factory=dict)


class Fingerprint:
    """What a stream brought in a batch: rows, and the sum of their hashes in whatever order.

    Only the ``columns`` count that are read for sure, whatever is pushed down into the reading:
    of rows that Spark parses the time alone.
    """

    def __init__(self, columns: list[int]) -> None:
        self.columns = columns
        self._rows = 0
        self._sum = 0

    @staticmethod
    def of_plan(plan: PhysicalPlan, stream: StreamDef, native: bool) -> Fingerprint:
        needed = frozenset[int]() if native else needs_of(plan, stream)[0]
        return Fingerprint(sorted(needed | {stream.time}))

    def add(self, part: Slice, native: bool) -> None:
        """Add the rows of a slice, rejected ones too."""
        columns = [one_array(part.table.column(c)) for c in self.columns]
        self._rows += part.table.num_rows + part.rejected.num_rows
        self._sum += sum_of_rows(columns, part.table.num_rows)
        if part.rejected.num_rows and not native:
            self._sum += sum_of_rows([one_array(part.rejected["raw"])], part.rejected.num_rows)

    def describe(self) -> dict[str, Any]:
        return {"rows": self._rows, "sum": self._sum % 2**64, "columns": self.columns}


def pack_task(job: Job) -> Callable[[Batches], Batches]:
    """Return the function that packs the rows of a stream."""

    def pack(batches: Batches) -> Batches:
        failpoints.obey(job.failures)
        return to_batches(_sent(job, _pack(job, batches), "pack"))

    return pack


def fingerprint_task(
    streams: dict[str, StreamDef], columns: dict[str, list[int]]
) -> Callable[[Batches], Batches]:
    """Return the function that reads the rows of a batch again, only to take fingerprints."""

    def run(batches: Batches) -> Batches:
        return to_batches(_fingerprints(streams, columns, batches))

    return run


def _fingerprints(
    streams: dict[str, StreamDef], columns: dict[str, list[int]], batches: Batches
) -> Iterator[Parcel]:
    for name, rows in _by_stream(batches).items():
        if name not in columns:
            continue
        found = Fingerprint(columns[name])
        native = _is_native(streams[name], rows)
        for _, part, _ in _slices(streams[name], rows, frozenset(found.columns)):
            found.add(part, native)
        yield report({"kind": "fingerprint", "stream": name, "input": found.describe()})


def stage_task(job: Job, stage: int) -> Callable[[Batches], Batches]:
    """Return the function that runs one stage in the shard of its partition."""

    def run(batches: Batches) -> Batches:
        failpoints.obey(job.failures)
        context = TaskContext.get()
        assert context is not None
        shard = context.partitionId()
        with _storage(job, f"{stage}-{shard}") as storage:
            parcels = run_stage(
                job.plan,
                stage,
                shard,
                job.shards,
                receive(from_batches(batches), job.segments, stage),
                states_of(job.segments, job.states, shard),
                storage,
                job.settings,
                job.timeline,
            )
            yield from to_batches(_sent(job, parcels, f"{stage}-{shard}"))
        forget_deleted()
        release_beyond(job.settings.join_memory)
        failpoints.passing("tasks-done")

    return run


def _sent(job: Job, parcels: Iterator[Parcel], part: str) -> Iterator[Parcel]:
    return send(parcels, job.segments, f"{job.batch}-{part}") if job.one_machine else parcels


def _storage(job: Job, part: str) -> SegmentStorage:
    return SegmentStorage(job.segments, f"{job.batch}-{part}", job.settings.fsync)


def _by_stream(batches: Batches) -> dict[str, pa.Table]:
    described: dict[str, list[pa.Table]] = {}
    for batch in batches:
        names = pc.unique(batch.column("stream")).to_pylist()
        for name in names:
            part = pa.Table.from_batches([batch])
            if len(names) > 1:
                part = part.filter(pc.equal(part.column("stream"), name))
            described.setdefault(name, []).append(part)
    return {name: pa.concat_tables(parts) for name, parts in described.items()}


def _pack(job: Job, batches: Batches) -> Iterator[Parcel]:
    for name, rows in _by_stream(batches).items():
        with _storage(job, f"pack-{folder_name(name)}") as storage:
            yield from _pack_stream(job, job.streams[name], rows, storage)


def _pack_stream(
    job: Job, stream: StreamDef, rows: pa.Table, storage: SegmentStorage
) -> Iterator[Parcel]:
    packer = Packer(
        job.plan,
        stream.name,
        stream.time,
        stream.timing,
        job.timeline.of(stream.name),
        job.settings,
        job.shards,
        job.routes,
        storage,
    )
    rejects: list[dict[str, Any]] = []
    rejected = 0
    native = _is_native(stream, rows)
    fingerprint = Fingerprint.of_plan(job.plan, stream, native)
    for origin, part, wanted in _slices(stream, rows, needs_of(job.plan, stream)[0]):
        if origin.floor is not None and not origin.partition:  # a promise of the whole stream
            packer.promise(origin.floor)
            continue
        packer.appear(origin.partition, origin.number)
        fingerprint.add(part, native)
        position = None if origin.ordinal < 0 else part.positions + origin.ordinal
        late = packer.add(part.table, position, wanted, origin.partition)
        if late.num_rows and stream.late is not None:
            rejects.append(_set_aside(storage, stream, stream.late, "late", late))
        if part.rejected.num_rows:
            rejected += part.rejected.num_rows
            if stream.deadletter is None:
                raise _refused(stream, part, origin.ordinal)
            aside = _placed(part.rejected, origin)
            rejects.append(_set_aside(storage, stream, stream.deadletter, "rejected", aside))
        yield from packer.parcels()
        if origin.floor is not None:
            packer.promise(origin.floor, origin.partition)
        if origin.ends:
            packer.end(origin.partition)
    packer.finish(not native and bool(pc.any(rows.column("final")).as_py()))
    yield from packer.parcels()
    yield report(
        {
            **packer.report(),
            "rejected": rejected,
            "rejects": rejects,
            "input": fingerprint.describe(),
        }
    )


def _is_native(stream: StreamDef, rows: pa.Table) -> bool:
    """Whether the rows of a stream come parsed by Spark, and not as descriptors."""
    native = native_column(stream.name)
    return native in rows.column_names and rows.column(native).null_count < rows.num_rows


def _slices(stream: StreamDef, rows: pa.Table, needed: frozenset[int]) -> Iterator[Part]:
    if _is_native(stream, rows):
        return _native_slices(stream, rows, native_column(stream.name))
    return _described_slices(stream, rows, needed)


def _described_slices(stream: StreamDef, rows: pa.Table, needed: frozenset[int]) -> Iterator[Part]:
    """Read the slices of files that descriptors name, in order of arrival.

    Text is parsed whole, so that a row is bad or good whoever reads it; of columnar files, whose
    values have their types already, only the needed columns are read.  A slice of no rows is told
    by an empty part: it makes its partition known, or gives it a heartbeat.
    """
    ordered = rows.select(DESCRIPTOR.names).take(pa.array(arrival_order(rows)))
    for d in ordered.to_pylist():
        typed = bool(d["path"]) and file_kind(stream, d["path"]) in TYPED
        columns = sorted(needed) if typed and stream.late is None else None
        origin = Origin(d["ordinal"], d["partition"] or "", d["number"])
        for part in read_slice(stream, d["path"], d["first"], d["last"], columns, d["shift"] or 0):
            if part.rejected.num_rows and not is_pushed(stream):
                part = replace(
                    part, place=place_in(d["path"], file_kind(stream, d["path"]), d["first"])
                )
            yield origin, part, None
        only_the_end = d["final"] and not d["partition"]
        if d["floor"] is not None or d["ends"] or (d["first"] == d["last"] and not only_the_end):
            yield (
                replace(origin, floor=d["floor"], ends=bool(d["ends"])),
                no_rows(stream),
                None,
            )


def _native_slices(stream: StreamDef, rows: pa.Table, native: str) -> Iterator[Part]:
    """Take rows that Spark has parsed, in order of arrival, partition by partition."""
    order = arrival_order(rows)
    struct = one_array(rows.column(native))
    if (np.diff(order) != 1).any():
        struct = struct.take(pa.array(order))
    names = one_array(rows.column("partition")).fill_null("").take(pa.array(order))
    paths = rows.column("path").take(pa.array(order))
    ended = bool(pc.any(rows.column("ends")).as_py())
    for name in sorted(pc.unique(names).to_pylist()):
        mine = pc.equal(names, name)
        whole = pc.all(mine).as_py()
        some = struct if whole else struct.filter(mine)
        part = read_native(stream, some)
        if part.rejected.num_rows:
            where = paths if whole else paths.filter(mine)
            part = replace(part, place=_places_in(where))
        at = some.type.get_field_index(WANTED)
        wanted = None if at < 0 else to_mask(some.field(at))[part.positions]
        yield Origin(-1, name, ends=ended), part, wanted


def _places_in(paths: pa.ChunkedArray) -> Callable[[int], str]:
    """Return what tells where a native row came from."""
    return lambda at: _native_place(paths[at].as_py(), at)


def _set_aside(
    storage: SegmentStorage, stream: StreamDef, sink: str, why: str, rows: pa.Table
) -> dict[str, Any]:
    return {
        "stream": stream.name,
        "sink": sink,
        "why": why,
        "place": storage.write(rows),
        "rows": rows.num_rows,
    }


def _placed(rejected: pa.Table, origin: Origin) -> pa.Table:
    """Count rejected rows from the beginning of their partition, and name that."""
    if origin.ordinal > 0:
        counted = pc.add(rejected.column(0), origin.ordinal)
        rejected = rejected.set_column(0, "position", counted)
    name = pa.scalar(origin.partition or None, pa.string())
    return rejected.append_column("partition", pa.repeat(name, rejected.num_rows))


def _native_place(path: str | None, position: int) -> str:
    return f"file {path}" if path else f"row {position + 1} of its batch"


def _refused(stream: StreamDef, part: Slice, ordinal: int) -> DataError:
    """Return what is wrong with the first row of a slice that does not fit, and where it stands."""
    row = part.rejected.slice(0, 1).to_pylist()[0]
    number = f"row {max(0, ordinal) + row['position'] + 1}"
    where = number if part.place is None else part.place(row["position"])
    return DataError(
        f"a row of stream {stream.name} must fit its declared columns: {where}: {row['reason']}; "
        f"the row is {shortened(row['raw'])!r}. Correct it, or declare ON ERROR DEADLETTER <sink> "
        f"to set such rows aside"
    )
