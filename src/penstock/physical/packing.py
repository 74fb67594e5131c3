"""Packing: raw rows of a stream become elements, late ones are set aside, the rest finds its shard.

Late is decided here, in arrival order inside a source partition, before anything is filtered
(`penstock.physical.progress`).  One task packs all rows that a partition has in a batch, so the
answer cannot depend on batches; several tasks may pack the partitions of one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
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
from penstock.physical.answered import Answered
from penstock.physical.fragment import Fragment
from penstock.physical.judging import Judge
from penstock.physical.key_loads import Sample
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Partition, Progress, reported
from penstock.physical.reports import announce
from penstock.physical.selections import learn, learnt, selection_of
from penstock.physical.sending import rows_sent
from penstock.physical.split_routes import Route
from penstock.runs.state import MemoryStorage, Storage
from penstock.settings import Settings
from penstock.timing import TimeRules


class Packer:
    """Packs rows of one stream in one batch, those of one or more of its source partitions.

    ``progress`` is how far the stream was before the batch.  ``routes`` say where keys of joins
    that are hot are split, by channel.  ``storage`` has the parts of the stream that are closed,
    ``answered`` what the lane has answered.
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
        answered: Answered | None = None,
    ) -> None:
        self.plan = plan
        self._answered = answered or Answered()
        self._judge = Judge(name, time_column, rules, progress, storage, self._answered)
        self._closed: list[dict[str, Any]] = []
        self._ended: set[str] = set()
        self._final = False
        self._routes = routes or {}
        self._samples: dict[int, Sample] = {}
        self._name = name
        self._shards = shards
        self._sources = plan.sources("stream", name)
        adaptive = config.filter_order == "adaptive"
        self._selections = {at: selection_of(plan.nodes[at], adaptive) for at in self._sources}
        self._learnt: Mapping[str, Any] = {}
        self._parcels: list[Parcel] = []
        self._with_seq = _channels_with_seq(plan)
        self._fragment = _stage_minus_one(plan, self._sources, config, self._send)

    def appear(self, partition: str = "", number: int | None = None) -> Partition:
        """Return a partition as it is now; one that is new begins here."""
        return self._judge.appear(partition, number)

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
        self.appear(partition)
        if table.num_rows == 0:
            return table
        judged = self._judge.judge(table, position, partition)
        late, time, seq = judged.late, judged.time, judged.seq
        late_table = table.filter(pa.array(late)) if late.any() else table.slice(0, 0)
        keep = ~late if wanted is None else ~late & wanted
        if not keep.all():
            table = table.filter(pa.array(keep))
            time, seq = time[keep], seq[keep]
        self._emit(table, time, seq)
        return late_table

    def promise(self, heartbeat: int, partition: str = "") -> None:
        """Take a heartbeat that the source gives between two rows (`Judge.promise`)."""
        self._judge.promise(heartbeat, partition)

    def end(self, partition: str) -> None:
        """Note that nothing more comes of a partition."""
        self._ended.add(partition)

    def finish(self, final: bool) -> None:
        """End the batch: tell every shard how far it came; ``final``: nothing follows."""
        self._final = final
        found = {self.plan.nodes[at].digest: s for at, s in self._selections.items()}
        self._learnt = learn(self._fragment.close(), found)
        if self._judge.closings is not None:
            self._closed = [vars(run) for run in self._judge.closings.write().values()]
        if self.plan.stages:  # otherwise nobody is there to be told
            self._parcels += announce(self._reported(), self._shards)

    def _reported(self) -> dict[str, Any]:
        told = reported(self._name, self._judge.partitions, self._ended, self._final)
        if self._judge.floor > MIN_TIME:
            told["floor"] = self._judge.floor
        return told | {"closed": self._closed} if self._closed else told

    def parcels(self) -> Iterator[Parcel]:
        """Yield, and forget, what has been packed so far."""
        packed, self._parcels = self._parcels, []
        yield from packed

    def report(self) -> dict[str, Any]:
        """Return what is told about the stream after its batch.

        ``counted`` are keys that are frequent, of the channels whose hot keys can be split;
        ``efforts`` are those of the operators that run while packing, ``selections`` is what was
        learnt about their conjuncts.
        """
        return {
            "kind": "source",
            **self._reported(),
            "counted": {channel: s.describe() for channel, s in self._samples.items()},
            "efforts": self._fragment.efforts(),
            "selections": self._learnt,
        }

    def _emit(self, table: pa.Table, time: I64, position: I64) -> None:
        columns = [one_array(c) for c in table.columns]
        for at in self._sources:
            source = _source(self.plan, at)
            keep = None
            selection = self._selections[at]
            if selection is not None:
                try:
                    keep = selection.mask(columns, table.num_rows)
                except DataError as error:
                    raise self.plan.blamed(error, at) from None
            if source.since is not None:
                young = time >= source.since
                keep = young if keep is None else keep & young
            values = [columns[c] for c in source.columns]
            if source.mark is not None:
                values += self._answered.columns(source.mark, self._name, position, time)
            batch = Batch.of(values, time, seq=position)
            self._fragment.bring(at, batch if keep is None else batch.take(keep))
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
    return frozenset(columns[c] for c in _read_of(plan, source) if c < len(columns))


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

    storage, positions, states = MemoryStorage(), plan.packed(sources), learnt()
    return Fragment(plan, -1, 0, 1, states, storage, config, {}, send, deliver, positions)
