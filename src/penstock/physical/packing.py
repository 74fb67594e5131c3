"""Packing: raw rows of a stream become elements, late ones are set aside, the rest finds its shard.

Late is decided here, in arrival order inside a source partition, before anything is filtered: a row
is late when its time is below the largest time before it minus the slack (semantics, section 5).
One task packs all rows that a stream has in a batch, so the answer cannot depend on batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.arrow import evaluate_mask
from penstock.model import I64, INF, MIN_TIME, Batch, Mask, Message, one_array, to_numpy
from penstock.physical.fragment import Fragment
from penstock.physical.key_loads import Sample
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.reports import announce
from penstock.physical.sending import rows_sent
from penstock.physical.split_routes import Route
from penstock.runs.state import MemoryStorage
from penstock.settings import Settings


@dataclass(frozen=True)
class Progress:
    """How far a stream has come: kept in the manifest.

    ``floor`` is the heartbeat that was already used (an idle source is passed over); rows below it
    are late.  ``position`` counts all rows that ever arrived.
    """

    max_time: int = MIN_TIME
    position: int = 0
    floor: int = MIN_TIME
    final: bool = False
    accepted: int = 0
    late: int = 0
    rejected: int = 0

    def heartbeat(self, slack: int) -> int:
        """Return the heartbeat of the stream."""
        if self.final:
            return INF
        own = self.max_time - slack if self.max_time > MIN_TIME + slack else MIN_TIME
        return max(own, self.floor)

    def describe(self) -> dict[str, Any]:
        return dict(vars(self))

    @staticmethod
    def of(description: Mapping[str, Any] | None) -> Progress:
        return Progress(**(description or {}))


class Packer:
    """Packs the rows of one stream (or one table) of one batch.

    ``routes`` say where keys of joins that are hot are split, by channel.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        name: str,
        time_column: int,
        slack: int,
        progress: Progress,
        config: Settings,
        shards: int,
        routes: Mapping[int, Route] | None = None,
    ) -> None:
        self.plan = plan
        self.progress = progress
        self._routes = routes or {}
        self._samples: dict[int, Sample] = {}
        self._name = name
        self._time = time_column
        self._slack = slack
        self._shards = shards
        self._sources = plan.sources("stream", name)
        self._parcels: list[Parcel] = []
        self._with_seq = _channels_with_seq(plan)
        self._fragment = _stage_minus_one(plan, self._sources, config, self._send)

    def add(
        self, table: pa.Table, position: I64 | None = None, wanted: Mask | None = None
    ) -> pa.Table:
        """Pack rows in arrival order; return the late ones.

        Rows that are not ``wanted`` only move the heartbeat: their values are not there.
        """
        rows = table.num_rows
        if rows == 0:
            return table
        progress = self.progress
        time = to_numpy(one_array(table.column(self._time)).cast(pa.int64()))
        if position is None:
            position = np.arange(progress.position, progress.position + rows, dtype=np.int64)
        before = np.empty(rows, np.int64)
        before[0] = progress.max_time
        if rows > 1:
            before[1:] = np.maximum(np.maximum.accumulate(time[:-1]), progress.max_time)
        bound = np.where(before > MIN_TIME + self._slack, before - self._slack, MIN_TIME)
        late = time < np.maximum(bound, progress.floor)
        late_rows = int(late.sum())
        self.progress = replace(
            progress,
            max_time=int(max(before[-1], time[-1])),
            position=int(position[-1]) + 1,
            accepted=progress.accepted + rows - late_rows,
            late=progress.late + late_rows,
        )
        late_table = table.filter(pa.array(late)) if late_rows else table.slice(0, 0)
        keep = ~late if wanted is None else ~late & wanted
        if not keep.all():
            table = table.filter(pa.array(keep))
            time, position = time[keep], position[keep]
        self._emit(table, time, position)
        return late_table

    def finish(self, final: bool) -> Progress:
        """End the stream's batch: tell every shard how far the stream has come."""
        if final:
            self.progress = replace(self.progress, final=True)
        beat = self.progress.heartbeat(self._slack)
        if self.plan.stages:  # otherwise nobody is there to be told
            self._parcels += announce(self._name, beat, self.progress.max_time, self._shards)
        return self.progress

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
            "stream": self._name,
            "progress": self.progress.describe(),
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
