"""Packing: raw rows of a stream become elements, late ones are set aside, the rest finds its shard.

Late is decided here, in arrival order inside a source partition, before anything is filtered
(`penstock.physical.progress`).  One task packs all rows that a partition has in a batch, so the
answer cannot depend on batches; several tasks may pack the partitions of one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.arrow import evaluate_mask
from penstock.model import (
    I64,
    INF,
    MIN_TIME,
    Batch,
    Closed,
    Mask,
    Message,
    one_array,
    to_numpy,
)
from penstock.physical.closing import Closings, punctuated
from penstock.physical.fragment import Fragment
from penstock.physical.key_loads import Sample
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import (
    NUMBER_BITS,
    POSITION_BITS,
    Partition,
    Progress,
    reported,
)
from penstock.physical.reports import announce
from penstock.physical.sending import rows_sent
from penstock.physical.split_routes import Route
from penstock.runs.state import MemoryStorage, Storage
from penstock.settings import Settings
from penstock.timing import TimeRules


class Packer:
    """Packs rows of one stream in one batch, those of one or more of its source partitions.

    ``progress`` is how far the stream was before the batch.  ``routes`` say where keys of joins
    that are hot are split, by channel.  ``storage`` has the parts of the stream that are closed.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        name: str,
        time_column: int,
        rules: TimeRules,
        progress: Progress,
        config: Settings,
        shards: int,
        routes: Mapping[int, Route] | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.plan = plan
        closing = rules.closing
        self._closings = None
        if closing is not None:
            self._closings = Closings(closing, progress, storage or MemoryStorage())
        self._closed: list[dict[str, Any]] = []
        self.partitions: dict[str, Partition] = {}
        self._before = progress
        self._floor = MIN_TIME
        self._ended: set[str] = set()
        self._final = False
        self._routes = routes or {}
        self._samples: dict[int, Sample] = {}
        self._name = name
        self._time = time_column
        self._rules = rules
        self._shards = shards
        self._sources = plan.sources("stream", name)
        self._parcels: list[Parcel] = []
        self._with_seq = _channels_with_seq(plan)
        self._fragment = _stage_minus_one(plan, self._sources, config, self._send)

    def appear(self, partition: str = "", number: int | None = None) -> Partition:
        """Return a partition as it is now; one that is new begins here."""
        if partition not in self.partitions:
            if number is None and partition not in self._before.partitions:
                known = [part.number for part in self.partitions.values()]
                number = max(self._before.numbers, 1 + max(known, default=-1))
            found = self._before.partition(partition, number)
            self.partitions[partition] = replace(found, floor=max(found.floor, self._floor))
        return self.partitions[partition]

    def add(
        self,
        table: pa.Table,
        position: I64 | None = None,
        wanted: Mask | None = None,
        partition: str = "",
    ) -> pa.Table:
        """Pack rows of one partition in arrival order; return the late ones.

        Rows that are not ``wanted`` only move the heartbeat: their values are not there.
        """
        found = self.appear(partition)
        rows = table.num_rows
        if rows == 0:
            return table
        time = to_numpy(one_array(table.column(self._time)).cast(pa.int64()))
        if position is None:
            position = np.arange(found.position, found.position + rows, dtype=np.int64)
        promised = closed = None
        if self._rules.punctuations:
            columns = [one_array(c) for c in table.columns]
            promised = self._promised(columns, time)
            if self._closings is not None:
                closed = self._closings.judge(partition, columns, time)
        late, found = found.judged(time, self._rules, promised, closed)
        self.partitions[partition] = replace(found, position=int(position[-1]) + 1)
        seq = position + (found.number % (1 << NUMBER_BITS) << POSITION_BITS)
        late_table = table.filter(pa.array(late)) if late.any() else table.slice(0, 0)
        keep = ~late if wanted is None else ~late & wanted
        if not keep.all():
            table = table.filter(pa.array(keep))
            time, seq = time[keep], seq[keep]
        self._emit(table, time, seq)
        return late_table

    def promise(self, heartbeat: int, partition: str = "") -> None:
        """Take a heartbeat that the source gives between two rows.

        It is that of a partition; without a name that of the whole stream, of all its partitions.
        """
        if not partition:
            self._floor = max(self._floor, heartbeat)
        for name in (partition,) if partition else {*self._before.partitions, *self.partitions}:
            found = self.appear(name)
            self.partitions[name] = replace(found, floor=max(found.floor, heartbeat))

    def end(self, partition: str) -> None:
        """Note that nothing more comes of a partition."""
        self._ended.add(partition)

    def finish(self, final: bool) -> None:
        """End the batch: tell every shard how far it came; ``final``: nothing follows."""
        self._final = final
        if self._closings is not None:
            self._closed = [vars(run) for run in self._closings.write().values()]
        if self.plan.stages:  # otherwise nobody is there to be told
            self._parcels += announce(self._reported(), self._shards)

    def _reported(self) -> dict[str, Any]:
        told = reported(self._name, self.partitions, self._ended, self._final)
        if self._floor > MIN_TIME:
            told["floor"] = self._floor
        return told | {"closed": self._closed} if self._closed else told

    def _promised(self, columns: Sequence[pa.Array], time: I64) -> I64 | None:
        """Return the heartbeats that punctuations among the rows give; None: there are none."""
        found = None
        for punctuation in self._rules.punctuations:
            if not punctuation.on:
                says = evaluate_mask(punctuation.condition, columns, len(time))
                said = np.where(says, punctuated(punctuation, columns, time), MIN_TIME)
                found = said if found is None else np.maximum(found, said)
        return found

    def parcels(self) -> Iterator[Parcel]:
        """Yield, and forget, what has been packed so far."""
        packed, self._parcels = self._parcels, []
        yield from packed

    def report(self) -> dict[str, Any]:
        """Return what is told about the stream after its batch.

        ``counted`` are keys that are frequent, of the channels whose hot keys can be split;
        ``efforts`` are those of the operators that run while packing.
        """
        return {
            "kind": "source",
            **self._reported(),
            "counted": {channel: s.describe() for channel, s in self._samples.items()},
            "efforts": self._fragment.efforts(),
        }

    def _emit(self, table: pa.Table, time: I64, position: I64) -> None:
        columns = [one_array(c) for c in table.columns]
        for at in self._sources:
            source = _source(self.plan, at)
            keep = None
            if source.predicate is not None:
                try:
                    keep = evaluate_mask(source.predicate, columns, table.num_rows)
                except DataError as error:
                    raise self.plan.blamed(error, at) from None
            if source.since is not None:
                young = time >= source.since
                keep = young if keep is None else keep & young
            batch = Batch.of([columns[c] for c in source.columns], time, seq=position)
            self._fragment.emit(at, batch if keep is None else batch.take(keep))
        self._fragment.run()

    def _send(self, channel: int, message: Message) -> None:
        assert isinstance(message, Batch)
        route = self._routes.get(channel)
        if route is not None and route.counted:
            sample = self._samples.setdefault(channel, Sample())
            sample.add(message, self.plan.channels[channel].exchange)
        numbered = channel in self._with_seq
        self._parcels.extend(rows_sent(self.plan, channel, message, self._shards, numbered, route))


class TablePacker:
    """Packs a static table, chunk by chunk; several tasks may each pack a part of it.

    Its rows are valid for all time, or from/to the given columns.  ``sources`` are the nodes of the
    plan that read it.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        sources: Sequence[int],
        valid: tuple[int | None, int | None],
        config: Settings,
        shards: int,
    ) -> None:
        self.plan = plan
        self._sources = sources
        self._valid = valid
        self._shards = shards
        self._parcels: list[Parcel] = []
        self._with_seq = _channels_with_seq(plan)
        self._fragment = _stage_minus_one(plan, self._sources, config, self._send)

    def pack(self, table: pa.Table) -> list[Parcel]:
        """Return the parcels of some rows; columns that no source reads may hold anything."""
        columns = [one_array(c) for c in table.columns]
        start = _times(columns, self._valid[0], MIN_TIME, table.num_rows)
        end = _times(columns, self._valid[1], INF, table.num_rows)
        for at in self._sources:
            picked = [columns[c] for c in _source(self.plan, at).columns]
            self._fragment.emit(at, Batch.of(picked, start, end).drop_ghosts())
        self._fragment.run()
        parcels, self._parcels = self._parcels, []
        return parcels

    def report(self) -> dict[str, Any]:
        """Return what is told about the work; of the rows nothing is known here."""
        return {"kind": "table", "efforts": self._fragment.efforts()}

    def _send(self, channel: int, message: Message) -> None:
        assert isinstance(message, Batch)
        numbered = channel in self._with_seq
        self._parcels.extend(rows_sent(self.plan, channel, message, self._shards, numbered))


def closed_parts(
    plan: PhysicalPlan, stream: str, closed: Closed, config: Settings
) -> list[tuple[int, Closed]]:
    """Return by channel what is known of closed parts of a stream behind the packing stage."""
    found: list[tuple[int, Closed]] = []

    def send(channel: int, message: Message) -> None:
        if isinstance(message, Closed):
            found.append((channel, message))

    sources = plan.sources("stream", stream)
    fragment = _stage_minus_one(plan, sources, config, send)
    for at in sources:
        moved = closed.moved({c: i for i, c in enumerate(_source(plan, at).columns)})
        if moved is not None:
            fragment.emit(at, moved)
    fragment.run()
    return found


def columns_read(plan: PhysicalPlan, source: int) -> frozenset[int]:
    """Return the columns of a stream or table that are needed to pack what one source sends."""
    columns = _source(plan, source).columns
    return frozenset(columns[c] for c in _read_of(plan, source))


def _read_of(plan: PhysicalPlan, at: int) -> frozenset[int]:
    """Return the columns of a node that leave the packing stage or decide what leaves it."""
    read: set[int] = set()
    every = range(len(plan.nodes[at].types))
    for consumer, source in plan.readers.get(at, ()):
        node = plan.nodes[consumer]
        if source.channel is not None or node.spec is None:
            return frozenset(every)
        wanted = node.spec.reads(_read_of(plan, consumer))
        if wanted is None:
            return frozenset(every)
        picked = source.columns or every
        read |= {picked[c] for c in wanted}
    return frozenset(read)


def _times(columns: list[pa.Array], column: int | None, default: int, rows: int) -> I64:
    if column is None:
        return np.full(rows, default, np.int64)
    times: I64 = to_numpy(columns[column].cast(pa.int64()).fill_null(default))
    return times


def _source(plan: PhysicalPlan, at: int) -> Any:
    return plan.nodes[at].source


def _channels_with_seq(plan: PhysicalPlan) -> frozenset[int]:
    """Return the channels whose consumers need arrival numbers."""
    return frozenset(
        i.channel
        for n in plan.nodes
        if n.spec is not None and n.spec.needs_arrival
        for i in n.inputs
        if i.channel is not None
    )


def _stage_minus_one(
    plan: PhysicalPlan, sources: Sequence[int], config: Settings, send: Any
) -> Fragment:
    def deliver(*_: Any) -> None:
        raise AssertionError("answers do not leave from the packing stage")

    storage, positions = MemoryStorage(), plan.packed(sources)
    return Fragment(plan, -1, 0, 1, {}, storage, config, {}, send, deliver, positions)
