"""One stage of the plan in one shard: parcels in, parcels out. This is what a Spark task runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import InternalError
from penstock.model import INF, MIN_TIME, Batch, Closed, Ends, Heartbeat, Message
from penstock.operators.base import few
from penstock.operators.output import OutputOperator
from penstock.physical.closing import newly_closed
from penstock.physical.efforts import Experience, Served
from penstock.physical.fragment import Fragment
from penstock.physical.overflow import Overflow
from penstock.physical.packing import closed_parts
from penstock.physical.parcels import BEAT, SOURCE, Parcel, decode
from penstock.physical.plan import Answer, PhysicalPlan
from penstock.physical.progress import Progress, Timeline, newest_times
from penstock.physical.reports import read_report, report
from penstock.physical.sending import Sender
from penstock.physical.trains import Trains, in_order, is_in_order
from penstock.runs.state import Storage
from penstock.settings import Settings
from penstock.timing import TimeRules


def run_stage(
    plan: PhysicalPlan,
    stage: int,
    shard: int,
    shards: int,
    parcels: Iterable[Parcel],
    states: Mapping[str, Any],
    storage: Storage,
    config: Settings,
    timeline: Timeline,
    experience: Experience | None = None,
) -> Iterator[Parcel]:
    """Run the stage's fragment on the parcels of this shard.

    ``states`` are the shard's states by digest, ``timeline`` is how far streams were before this
    batch.  Parcels for later stages pass.  Rows of static tables, which may be more than memory
    holds, go into the operators as they come; all others wait until every parcel is there, those
    beyond `stage.memory` in temporary files.
    """
    out: list[Parcel] = []
    overflow = Overflow(config.stage_memory)
    results: list[dict[str, Any]] = []
    written = Answers(storage, config.block_rows)
    views: dict[int, tuple[Batch, int]] = {}
    answers = {a.node: a for a in plan.answers}
    rows: list[tuple[int, Message]] = []
    heard: dict[int, list[int]] = {}
    told: list[dict[str, Any]] = []
    latest = newest_times(timeline.progress)
    fed: dict[str, int] = {}
    tables = {n for n, c in enumerate(plan.channels) if plan.is_table(c.producer)}
    experience = experience or Experience()
    served = Served(experience.began)

    def send(channel: int, message: Message) -> None:
        out.extend(sender.send(channel, message))

    def deliver(node: int, batch: Batch, operator: OutputOperator) -> None:
        answer = answers[node]
        if len(batch):
            served.note(answer.query, len(batch), answer.promise)
        if answer.mode == "view":
            views[node] = batch, operator.as_of  # of one batch only the newest counts
        elif answer.mode == "delta":
            instants = {"as_of": operator.as_of, "since": operator.before}
            results.append(_result(answer, batch, storage) | instants)
        elif len(batch):
            written.add(answer, batch)

    fragment = Fragment(
        plan,
        stage,
        shard,
        shards,
        dict(states),
        storage,
        config,
        latest,
        send,
        deliver,
        experience=experience,
    )
    negative = config.lifetime == "negative"
    sender = Sender(plan, stage, shard, shards, negative, fragment.destinations)
    for parcel in parcels:
        if parcel.stage != stage:
            yield parcel
        elif parcel.kind == SOURCE:
            told.append(read_report(parcel))
            if stage + 1 < plan.stages:
                yield replace(parcel, stage=stage + 1)
        elif parcel.kind == BEAT:
            message = decode(BEAT, parcel.blob)
            assert isinstance(message, Heartbeat)
            heard.setdefault(parcel.channel, []).append(message.time)
        else:
            message = decode(parcel.kind, parcel.blob)
            if parcel.channel in tables:
                fragment.feed(parcel.channel, message)
                fragment.run()
                yield from out
                out.clear()
            else:
                rows.append((parcel.channel, _kept(message, parcel, overflow)))
            by = plan.by_key(parcel.channel)
            if by is not None and isinstance(message, Batch):
                fed[by] = fed.get(by, 0) + len(message)

    overflow.close()
    progress = timeline.after(told)
    current = {name: found.heartbeat for name, found in progress.items()}
    fragment.reached(newest_times(progress))
    fragment.heard(current)
    beats = {
        number: _beat(plan, number, heard.get(number, []), shards, current)
        for number, target in enumerate(plan.channels)
        if target.stage == stage
    }
    closed = list(_closed_now(plan, stage, timeline, progress, storage, config))
    fragment.admit(Trains(rows, beats, tables, config.train_rows, config.stage_memory, closed))
    rows.clear()
    while fragment.turn():
        if out:
            yield from out
            out.clear()
    for node, (batch, as_of) in views.items():
        results.append(_result(answers[node], batch, storage) | {"as_of": as_of})
    results += written.finish()
    yield from sender.finish()
    described = fragment.close()
    yield report(
        {
            "kind": "shard",
            "stage": stage,
            "shard": shard,
            "states": described,
            "results": results,
            "fed": fed,
            "efforts": fragment.efforts(),
            "served": {query: service.told() for query, service in served.queries.items()},
            "held": fragment.held.peak,
            "beats": sender.beats(),
        }
    )


def _kept(message: Message, parcel: Parcel, overflow: Overflow) -> Message:
    """Return what a parcel brought as it is kept until all are there, in little memory.

    Rows are put in order before they are written: later that would copy them into memory.
    """
    if isinstance(message, Ends):
        return overflow.keep_ends(message)
    if not isinstance(message, Batch) or (parcel.mapped and is_in_order(message)):
        return message
    return overflow.keep(message, in_order)


def _closed_now(
    plan: PhysicalPlan,
    stage: int,
    timeline: Timeline,
    progress: Mapping[str, Progress],
    storage: Storage,
    config: Settings,
) -> Iterator[tuple[int, Closed]]:
    """Yield what this batch has closed of streams, by channel of a stage.

    With negative tuples nobody makes use of it.
    """
    if config.lifetime == "negative":
        return
    for name, after in progress.items():
        rule = timeline.rules.get(name, TimeRules()).closing
        if rule is None or not after.closed:
            continue
        new = newly_closed(timeline.of(name), after, storage)
        if new is not None:
            closed = Closed(rule.on, new.keys.high, new.keys.low, new.until)
            for channel, told in closed_parts(plan, name, closed, config):
                if plan.channels[channel].stage == stage:
                    yield channel, told


class Answers:
    """Writes rows of answers as they come, ``most`` of a query or more at a time."""

    def __init__(self, storage: Storage, most: int) -> None:
        self._storage = storage
        self._most = most
        self._waiting: dict[str, tuple[Answer, list[Batch]]] = {}
        self._results: list[dict[str, Any]] = []

    def add(self, answer: Answer, batch: Batch) -> None:
        """Take rows."""
        _, parts = self._waiting.setdefault(answer.query, (answer, []))
        parts.append(batch)
        if sum(map(len, parts)) >= self._most:
            self._write(answer, parts)
            parts.clear()

    def finish(self) -> list[dict[str, Any]]:
        """Write what is left; describe all that was written."""
        for answer, parts in self._waiting.values():
            if parts:
                self._write(answer, parts)
        return self._results

    def _write(self, answer: Answer, parts: list[Batch]) -> None:
        for batch in few(parts):
            self._results.append(_result(answer, batch, self._storage))


def _result(answer: Answer, batch: Batch, storage: Storage) -> dict[str, Any]:
    """Write rows of an answer, which are all determined, and describe them."""
    place = storage.write(batch.to_table().drop_columns("_holder"))
    return {"query": answer.query, "mode": answer.mode, "place": place, "rows": len(batch)}


def _beat(
    plan: PhysicalPlan, channel: int, heard: list[int], shards: int, beats: Mapping[str, int]
) -> int:
    """Return the heartbeat of a channel: the minimum over its writers, see `physical.sending`."""
    producer = plan.channels[channel].producer
    if plan.nodes[producer].stage >= 0:
        writers = 1 if producer in plan.in_step else shards
        if len(heard) != writers:
            raise InternalError(f"a channel must hear {writers} heartbeats, got {len(heard)}")
        return min(heard)
    while plan.nodes[producer].source is None:
        producer = plan.nodes[producer].inputs[0].producer
    source = plan.nodes[producer].source
    assert source is not None
    return INF if source.kind == "table" else beats.get(source.name, MIN_TIME)
