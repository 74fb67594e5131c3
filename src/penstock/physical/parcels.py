"""Parcels: the wire format of what goes through the exchange between two stages.

Every source and every fragment, whatever its columns, writes the same five columns, so one Spark
shuffle carries rows, told ends, heartbeats and reports alike.  Rows travel as Arrow IPC blobs, one
per shard and batch: shuffling a blob costs the JVM nothing per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message

ROWS, ENDS, BEAT, REPORT, SOURCE, MINUS = 0, 1, 2, 3, 4, 5
REPORT_STAGE = 1 << 20
"""The stage of parcels that are meant for the driver."""

SCHEMA = pa.schema(
    [
        ("stage", pa.int32()),
        ("shard", pa.int32()),
        ("channel", pa.int32()),
        ("kind", pa.int32()),
        ("blob", pa.binary()),
    ]
)
SPARK_SCHEMA = "stage int, shard int, channel int, kind int, blob binary"

_SHARED_ROWS = 1 << 20
_same: dict[int, pa.Array] = {}
"""Columns of one value, as long as the longest parcel so far that has no more rows than that."""


@dataclass(frozen=True)
class Parcel:
    """One row of the exchange.

    ``mapped``: its blob lies in a file that is mapped, and takes no memory.
    """

    stage: int
    shard: int
    channel: int
    kind: int
    blob: bytes | pa.Buffer
    mapped: bool = False


def encode(message: Batch | Ends | Heartbeat, with_seq: bool = True) -> tuple[int, Any]:
    """Return the kind and the blob of a message."""
    if isinstance(message, Heartbeat):
        return BEAT, int(message.time).to_bytes(8, "little", signed=True)
    if isinstance(message, Ends):
        return ENDS, _ipc(pa.table({"holder": message.holder, "end": message.end}))
    table = message.to_table()
    names = [n for n in table.column_names if n.startswith("_")]
    drop = []
    if "_seq" in names and not with_seq:
        drop.append("_seq")
    if not message.holder.any():
        drop.append("_holder")
    if len(message) and (message.end == INF).all():
        drop.append("_end")
    if len(message) and (message.start == MIN_TIME).all():
        drop.append("_start")
    kind = MINUS if message.minus else ROWS
    return kind, _ipc(table.drop_columns(drop) if drop else table)


def decode(kind: int, blob: Any) -> Message:
    """The inverse of `encode`."""
    if kind == BEAT:
        return Heartbeat(int.from_bytes(bytes(blob), "little", signed=True))
    table = pa.ipc.open_stream(pa.py_buffer(blob)).read_all().combine_chunks()
    if kind == ENDS:
        return Ends(table.column("holder").to_numpy(), table.column("end").to_numpy())
    rows = table.num_rows
    for name, value in (("_end", INF), ("_start", MIN_TIME), ("_holder", 0)):
        if name not in table.column_names:
            table = table.append_column(name, _all(value, rows))
    batch = Batch.from_table(table)
    return replace(batch, minus=True) if kind == MINUS else batch


def to_batches(parcels: Iterable[Parcel], size: int = 32 << 20) -> Iterator[pa.RecordBatch]:
    """Pack parcels into Arrow batches of bounded size for Spark."""
    waiting: list[Parcel] = []
    total = 0
    for parcel in parcels:
        waiting.append(parcel)
        total += len(parcel.blob)
        if total >= size:
            yield _record_batch(waiting)
            waiting, total = [], 0
    if waiting:
        yield _record_batch(waiting)


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
    """The inverse of `to_batches`; blobs are views of the batch's memory."""
    for batch in batches:
        columns: Sequence[list[int]] = [batch.column(i).to_pylist() for i in range(4)]
        blobs = batch.column(4)
        for i in range(batch.num_rows):
            stage, shard, channel, kind = (int(column[i]) for column in columns)
            yield Parcel(stage, shard, channel, kind, blobs[i].as_buffer())


def _record_batch(parcels: Sequence[Parcel]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([p.stage for p in parcels], pa.int32()),
            pa.array([p.shard for p in parcels], pa.int32()),
            pa.array([p.channel for p in parcels], pa.int32()),
            pa.array([p.kind for p in parcels], pa.int32()),
            _binary([p.blob for p in parcels]),
        ],
        schema=SCHEMA,
    )


def _binary(blobs: Sequence[Any]) -> pa.Array:
    """Return a binary array from bytes and buffers alike, with one copy."""
    ends = np.cumsum([0, *(len(b) for b in blobs)], dtype=np.int32)
    data = pa.py_buffer(b"".join(memoryview(b) for b in blobs))
    return pa.Array.from_buffers(pa.binary(), len(blobs), [None, pa.py_buffer(ends), data])


def _all(value: int, rows: int) -> pa.Array:
    """Return a column that has the same value everywhere; parcels share its memory."""
    known = _same.get(value)
    if known is None or len(known) < rows:
        known = pa.array(np.full(rows, value, np.int64))
        if rows <= _SHARED_ROWS:
            _same[value] = known
    return known.slice(0, rows)


def _ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
