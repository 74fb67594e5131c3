"""One stage of the plan in one shard: parcels in, parcels out. This is what a Spark task runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.config import Config
from penstock.errors import InternalError
from penstock.model import MIN_TIME, Batch, Heartbeat, Message
from penstock.operators.output import OutputOperator
from penstock.physical.fragment import Fragment
from penstock.physical.parcels import BEAT, Parcel, address, decode, report
from penstock.physical.plan import PhysicalPlan
from penstock.runs.state import Storage


def run_stage(
    plan: PhysicalPlan,
    stage: int,
    shard: int,
    shards: int,
    parcels: Iterable[Parcel],
    states: Mapping[str, Any],
    storage: Storage,
    config: Config,
    beats: Mapping[str, int],
    now: int,
) -> Iterator[Parcel]:
    """Run the stage's fragment on the parcels of this shard.

    ``states`` are the shard's states by digest.  ``beats`` are the heartbeats of sources that sent
    none with this batch: ``stream:name`` and ``table:name``.  Parcels for later stages pass.
    """
    out: list[Parcel] = []
    last_beat: dict[int, int] = {}
    results: list[dict[str, Any]] = []
    answers = {a.node: a for a in plan.answers}
    rows: list[tuple[int, Message]] = []
    heard: dict[int, list[int]] = {}
    for parcel in parcels:
        if parcel.stage != stage:
            yield parcel
        elif parcel.kind == BEAT:
            message = decode(BEAT, parcel.blob)
            assert isinstance(message, Heartbeat)
            heard.setdefault(parcel.channel, []).append(message.time)
        else:
            rows.append((parcel.channel, decode(parcel.kind, parcel.blob)))

    def send(channel: int, message: Message) -> None:
        if isinstance(message, Heartbeat):
            last_beat[channel] = message.time  # one for each writer: sent when all is done
            return
        target = plan.channels[channel]
        out.extend(address(message, channel, target.exchange, target.stage, shards, False))

    def deliver(node: int, batch: Batch, operator: OutputOperator) -> None:
        answer = answers[node]
        if len(batch) == 0 and answer.mode != "view":
            return
        place = storage.write(batch.to_table())
        result = {"query": answer.query, "mode": answer.mode, "place": place, "rows": len(batch)}
        if answer.mode == "view":
            result["as_of"] = operator.as_of
        results.append(result)

    fragment = Fragment(plan, stage, shard, dict(states), storage, config, now, send, deliver)
    for channel, message in rows:
        fragment.feed(channel, message)
    rows.clear()
    for number, target in enumerate(plan.channels):
        if target.stage == stage:
            beat = _beat(plan, number, heard.get(number, []), shards, beats)
            fragment.feed(number, Heartbeat(beat))
    fragment.run()
    described = fragment.close()
    for number, target in enumerate(plan.channels):
        if plan.nodes[target.producer].stage == stage:
            beat = Heartbeat(last_beat.get(number, MIN_TIME))
            out.extend(address(beat, number, target.exchange, target.stage, shards, False))
    yield from out
    yield report(
        {
            "kind": "shard",
            "stage": stage,
            "shard": shard,
            "states": described,
            "results": results,
            "seconds": {plan.nodes[a].digest: s for a, s in fragment.seconds.items()},
            "rows": {plan.nodes[a].digest: r for a, r in fragment.rows_out.items()},
        }
    )


def _beat(
    plan: PhysicalPlan, channel: int, heard: list[int], shards: int, beats: Mapping[str, int]
) -> int:
    """Return the heartbeat of a channel: the minimum over its writers."""
    producer = plan.channels[channel].producer
    if plan.nodes[producer].stage >= 0:
        if len(heard) != shards:
            raise InternalError(f"a channel must hear {shards} heartbeats, got {len(heard)}")
        return min(heard)
    while plan.nodes[producer].source is None:
        producer = plan.nodes[producer].inputs[0].producer
    source = plan.nodes[producer].source
    assert source is not None
    return min(heard) if heard else beats.get(f"{source.kind}:{source.name}", MIN_TIME)
