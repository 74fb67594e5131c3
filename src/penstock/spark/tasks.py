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
from penstock.expr.own import allow, declared_places
from penstock.model import Mask, one_array, to_mask
from penstock.physical.efforts import Experience
from penstock.physical.overflow import Overflow
from penstock.physical.packing import Packer
from penstock.physical.parcels import Parcel, from_batches, to_batches
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Timeline
from penstock.physical.reports import report
from penstock.physical.shared_files import receive, send, states_of
from penstock.physical.split_routes import Route
from penstock.physical.stage import run_stage
from penstock.runs import failpoints
from penstock.runs.mappings import release_beyond
from penstock.runs.segments import SegmentStorage, forget_deleted
from penstock.settings import Settings
from penstock.sources.formats import file_kind, is_pushed, read_slice
from penstock.sources.readers import DESCRIPTOR, TYPED, Slice, arrival_order, read_native
from penstock.sources.readers.base import no_rows, shortened
from penstock.sources.readers.lines import place_in
from penstock.sources.tables import Contents
from penstock.spark import native_rows
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

_SMALL_ROWS = 1 << 14
"""Slices of up to so many rows are packed together with their neighbours."""


@dataclass(frozen=True)
class Job:
    """One micro-batch as its tasks see it.

    ``states`` names the file that has the states of all shards.  ``one_machine``: all tasks run on
    one, so rows need not travel through Spark.  ``routes``: where rows of hot keys go, by channel.
    ``experience``: what schedulers know of operators.  ``functions``: which of the
    user's own may be imported (`penstock.expr.own`).
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
    experience: Experience = field(default_factory=Experience)
    functions: dict[str, str] = field(default_factory=declared_places)

    def begin(self) -> None:
        """Let a task fail if a test says so, and allow the functions that its driver declared."""
        failpoints.obey(self.failures)
        allow(self.functions, self.one_machine)


def pack_task(job: Job) -> Callable[[Batches], Batches]:
    """Return the function that packs the rows of a stream."""

    def pack(batches: Batches) -> Batches:
        job.begin()
        return to_batches(_sent(job, _pack(job, batches), "pack"))

    return pack


def fingerprint_task(
    streams: dict[str, StreamDef], columns: dict[str, list[int]], memory: int
) -> Callable[[Batches], Batches]:
    """Return the function that reads the rows of a batch again, only to take fingerprints."""

    def run(batches: Batches) -> Batches:
        return to_batches(_fingerprints(streams, columns, memory, batches))

    return run


def _fingerprints(
    streams: dict[str, StreamDef], columns: dict[str, list[int]], memory: int, batches: Batches
) -> Iterator[Parcel]:
    for name, rows in _by_stream(batches, memory).items():
        if name not in columns:
            continue
        found = Contents(columns[name])
        native = _is_native(name, rows)
        for _, part, _ in _slices(streams[name], rows, frozenset(found.columns)):
            _count(found, part, native)
        yield report({"kind": "fingerprint", "stream": name, "input": found.describe()})


def _count(contents: Contents, part: Slice, native: bool) -> None:
    """Add the rows of a slice, rejected ones too."""
    contents.add(part.table)
    if part.rejected.num_rows:
        contents.add(part.rejected, () if native else ("raw",))


def stage_task(job: Job, stage: int) -> Callable[[Batches], Batches]:
    """Return the function that runs one stage in the shard of its partition."""

    def run(batches: Batches) -> Batches:
        job.begin()
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
                job.experience,
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


def _by_stream(batches: Batches, memory: int) -> dict[str, pa.Table]:
    """Return what came of each stream; beyond some memory it lies in temporary files."""
    overflow = Overflow(memory)
    described: dict[str, list[pa.RecordBatch]] = {}
    for batch in batches:
        names = pc.unique(batch.column("stream")).to_pylist()
        for name in names:
            part = batch
            if len(names) > 1:
                part = batch.filter(pc.equal(batch.column("stream"), name))
            if _is_native(name, part):
                part = part.select([*native_rows.COLUMNS, native_column(name)])
            described.setdefault(name, []).append(overflow.keep_rows(part))
    overflow.close()
    return {name: pa.Table.from_batches(parts) for name, parts in described.items()}


def _pack(job: Job, batches: Batches) -> Iterator[Parcel]:
    for name, rows in _by_stream(batches, job.settings.stage_memory).items():
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
        job.timeline.answered,
    )
    rejects: list[dict[str, Any]] = []
    rejected = 0
    native = _is_native(stream.name, rows)
    read = frozenset[int]() if native else needs_of(job.plan, stream)[0]
    contents = Contents(sorted(read | {stream.time}))  # of rows that Spark parses the time alone
    for origin, part, wanted in _together(_slices(stream, rows, needs_of(job.plan, stream)[0])):
        if origin.floor is not None and not origin.partition:  # a promise of the whole stream
            packer.promise(origin.floor)
            continue
        packer.appear(origin.partition, origin.number)
        _count(contents, part, native)
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
            "input": contents.describe(),
        }
    )


def _together(parts: Iterator[Part]) -> Iterator[Part]:
    """Put small slices that follow one another in their partition together.

    Ten pushes of one row are then packed, sent and joined as one of ten rows.
    """
    held: list[Part] = []
    rows = 0
    for each in parts:
        origin, part, _ = each
        fits = _is_small(each) and (not held or _is_next(held[-1][0], origin))
        if held and (not fits or rows + part.table.num_rows > _SMALL_ROWS):
            yield _joined(held)
            held, rows = [], 0
        if not _is_small(each):
            yield each
            continue
        held.append(each)
        rows += part.table.num_rows
    if held:
        yield _joined(held)


def _is_small(part: Part) -> bool:
    """Whether a slice may be put together with others: few rows, and nothing else to be told."""
    origin, rows, wanted = part
    return (
        0 < rows.table.num_rows <= _SMALL_ROWS
        and rows.rejected.num_rows == 0
        and wanted is None
        and origin.ordinal >= 0
        and origin.floor is None
        and not origin.ends
    )


def _is_next(before: Origin, origin: Origin) -> bool:
    return (before.partition, before.number) == (origin.partition, origin.number)


def _joined(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    origin, first, _ = parts[0]
    table = pa.concat_tables([part.table for _, part, _ in parts]).combine_chunks()
    positions = np.concatenate([part.positions + own.ordinal for own, part, _ in parts])
    return replace(origin, ordinal=0), replace(first, table=table, positions=positions), None


def _is_native(stream: str, rows: pa.Table | pa.RecordBatch) -> bool:
    """Whether the rows of a stream come parsed by Spark, and not as descriptors."""
    native = native_column(stream)
    return native in rows.column_names and rows.column(native).null_count < rows.num_rows


def _slices(stream: StreamDef, rows: pa.Table, needed: frozenset[int]) -> Iterator[Part]:
    if _is_native(stream.name, rows):
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
    ended = bool(pc.any(rows.column("ends")).as_py())
    for piece in native_rows.pieces(rows):
        struct = one_array(piece.rows.column(native))
        part = read_native(stream, struct, position=piece.first)
        if part.rejected.num_rows:
            part = replace(part, place=_places_in(piece.rows.column("path"), piece.first))
        at = struct.type.get_field_index(WANTED)
        wanted = None if at < 0 else to_mask(struct.field(at))[part.positions - piece.first]
        yield Origin(-1, piece.partition, ends=ended), part, wanted


def _places_in(paths: pa.ChunkedArray, first: int) -> Callable[[int], str]:
    """Return what tells where a native row came from; ``first`` is the position of the first."""
    return lambda at: _native_place(paths[at - first].as_py(), at)


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
