"""Parcels: what goes through the exchange between two stages, as rows of one fixed schema.

Every source and every fragment, whatever its columns, writes the same five columns, so one Spark
shuffle carries rows, told ends, heartbeats and reports alike.  Rows travel as Arrow IPC blobs, one
per shard and batch: shuffling a blob costs the JVM nothing per row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.kernels.cells import cells_of, owners, reached
from penstock.kernels.keys import hash_columns
from penstock.model import I64, INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.physical.key_splits import Route
from penstock.physical.plan import Cells, Exchange, PhysicalPlan, Shared

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


@dataclass(frozen=True)
class Parcel:
    """One row of the exchange."""

    stage: int
    shard: int
    channel: int
    kind: int
    blob: bytes | pa.Buffer


def encode(message: Message, with_seq: bool = True) -> tuple[int, Any]:
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
    if "_end" not in table.column_names:
        table = table.append_column("_end", pa.array(np.full(rows, INF)))
    if "_start" not in table.column_names:
        table = table.append_column("_start", pa.array(np.full(rows, MIN_TIME)))
    batch = Batch.from_table(table)
    return replace(batch, minus=True) if kind == MINUS else batch


def address(
    message: Message,
    channel: int,
    exchange: Exchange,
    stage: int,
    shards: int,
    with_seq: bool,
    route: Route | None = None,
) -> Iterator[Parcel]:
    """Yield the parcels that bring a message to the shards that need it.

    ``route`` is where keys are split that are hot at present.
    """
    if not isinstance(message, Batch):
        kind, blob = encode(message)
        for shard in range(shards):
            yield Parcel(stage, shard, channel, kind, blob)
        return
    for shard, part in split(message, exchange, shards, route):
        kind, blob = encode(part, with_seq)
        yield Parcel(stage, shard, channel, kind, blob)


def split(
    batch: Batch, exchange: Exchange, shards: int, route: Route | None = None
) -> Iterator[tuple[int, Batch]]:
    """Cut a batch into the parts of the shards; empty parts are left out."""
    if len(batch) == 0:
        return
    if shards == 1 or exchange.kind == "single":
        yield 0, batch
        return
    if exchange.kind == "spread" and not batch.holder.any():
        size = -(-len(batch) // shards)
        for shard in range(shards):
            part = batch.slice(min(shard * size, len(batch)), min((shard + 1) * size, len(batch)))
            if len(part):
                yield shard, part
        return
    if exchange.kind == "copies":
        for shard in range(shards):
            yield shard, batch
        return
    keys = [batch.columns[k] for k in exchange.keys]
    splits = route if route is not None and route.layers else None
    if isinstance(exchange, Cells) and exchange.below:
        touched = reached(
            keys,
            exchange.widths,
            exchange.below,
            exchange.above,
            len(batch),
            shards,
            None if splits is None else lambda cells: splits.copies(cells.high, batch.start),
        )
        for shard in range(shards):
            index = np.flatnonzero(touched[:, shard])
            if len(index):
                yield shard, batch.take(index)
        return
    if splits is not None:
        yield from _routed(batch, keys, exchange, shards, splits)
        return
    if isinstance(exchange, Shared):
        yield from _shared(batch, keys, exchange, shards)
        return
    if isinstance(exchange, Cells):
        shard_of = owners(keys, exchange.widths, len(batch), shards)
    elif exchange.kind == "owned":
        shard_of = _of_rows(batch, shards)
    elif exchange.kind == "spread":  # a negative tuple goes where its row went
        shard_of = np.where(batch.holder == 0, np.arange(len(batch)), batch.holder) % shards
    else:
        shard_of = hash_columns(keys, len(batch)).shard(shards)
    for shard in range(shards):
        index = np.flatnonzero(shard_of == shard)
        if len(index):
            yield shard, batch.take(index)


def _of_rows(batch: Batch, ways: int) -> I64:
    """Return one of some ways for each row, by all that it is."""
    return hash_columns([*batch.columns, pa.array(batch.start)], len(batch)).shard(ways)


def _shared(
    batch: Batch, keys: list[pa.Array], exchange: Shared, shards: int
) -> Iterator[tuple[int, Batch]]:
    """Cut a batch where several shards share a key."""
    ways = min(exchange.ways, shards)
    home = hash_columns(keys, len(batch)).shard(shards)
    way = None if exchange.copied else _of_rows(batch, ways)
    for shard in range(shards):
        distance = (shard - home) % shards
        index = np.flatnonzero(distance < ways if way is None else distance == way)
        if len(index):
            yield shard, batch.take(index)


def _routed(
    batch: Batch, keys: list[pa.Array], exchange: Exchange, shards: int, route: Route
) -> Iterator[tuple[int, Batch]]:
    """Cut a batch where keys, or cells, are split while they are hot: see `physical.hot`."""
    rows = len(batch)
    if isinstance(exchange, Cells):
        found = cells_of(keys, exchange.widths, rows)
    else:
        found = hash_columns(keys, rows)
    home = found.shard(shards)
    shared, ways, copied = route.shared(found.high, batch.start)
    apart = shared[~copied]
    if len(apart):  # in one of the ways, by the number of arrival
        arrival = np.arange(rows) if batch.seq is None else batch.seq
        mixed = hash_columns([pa.array(arrival[apart])], len(apart)).low
        way = (mixed % ways[~copied].astype(np.uint64)).astype(np.int64)
        home[apart] = (home[apart] + way) % shards  # of a row that is there twice the last counts
    shared, ways = shared[copied], ways[copied]
    first = home[shared]
    for shard in range(shards):
        here = home == shard
        here[shared[(shard - first) % shards < ways]] = True
        index = np.flatnonzero(here)
        if len(index):
            yield shard, batch.take(index)


def announce(plan: PhysicalPlan, stream: str, beat: int, now: int, shards: int) -> list[Parcel]:
    """Return the parcels that tell every shard of every stage how far a stream has come."""
    blob = json.dumps({"stream": stream, "beat": beat, "now": now}).encode()
    return [
        Parcel(stage, shard, -1, SOURCE, blob)
        for stage in range(plan.stages)
        for shard in range(shards)
    ]


def report(content: dict[str, Any]) -> Parcel:
    """Return a parcel for the driver."""
    return Parcel(REPORT_STAGE, 0, -1, REPORT, json.dumps(content).encode())


def read_report(parcel: Parcel) -> dict[str, Any]:
    """Return the content of a report or of a source's announcement."""
    content: dict[str, Any] = json.loads(bytes(parcel.blob))
    return content


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


def _ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
