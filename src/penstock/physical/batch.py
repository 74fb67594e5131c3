"""One micro-batch: rows of streams in, new states, progress and results out.

`run_batch` does in one process what a Spark job does in tasks: it packs the rows, runs the stages
one after the other, shard by shard, and puts together what they report.  `Outcome.of` reads the
reports of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.physical.efforts import Effort, Experience, Service
from penstock.physical.key_loads import added
from penstock.physical.packing import Packer
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Timeline
from penstock.physical.reports import read_report
from penstock.physical.sending import check_step
from penstock.physical.split_routes import Route
from penstock.physical.stage import run_stage
from penstock.runs.state import Storage
from penstock.settings import Settings
from penstock.timing import TimeRules

Report = Mapping[str, Any]
"""What one task tells the driver."""


@dataclass(frozen=True)
class Arrivals:
    """What one stream brings in a batch, and which column is the time of its rows.

    ``parts`` are rows of source partitions, in order of arrival; a partition is named by its
    number, or is the only one, "".  ``ended`` are those of which nothing follows, ``final``:
    nothing follows at all.
    """

    parts: Sequence[tuple[str, pa.Table]]
    time: int
    ended: frozenset[str] = frozenset()
    final: bool = False


@dataclass
class Outcome:
    """What the tasks of a batch report, put together.

    ``states`` are those of each shard, by digest; ``results`` describe rows of answers, and
    ``rejects`` rows that were set aside.  ``told`` is what packing reports of the streams'
    partitions.  By stream there are ``inputs`` (the fingerprint of what came); by table
    ``contents`` (the fingerprint of each part).
    ``counted`` are samples of keys by channel, ``efforts`` what each operator did, by digest,
    ``fed`` rows that keys spread, by shard.  ``served`` says how soon queries got their answers,
    ``held`` how many bytes waited between operators in one task, at most.
    ``selections`` is what packing learnt about conjuncts, by digest.
    """

    states: list[dict[str, Any]]
    results: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    told: list[Report] = field(default_factory=list)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    contents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counted: dict[int, dict[str, Any]] = field(default_factory=dict)
    efforts: dict[str, Effort] = field(default_factory=dict)
    fed: dict[str, dict[int, int]] = field(default_factory=dict)
    served: dict[str, Service] = field(default_factory=dict)
    held: int = 0
    selections: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(reports: Iterable[Report], shards: int) -> Outcome:
        """Read the reports of all tasks, which come in any order."""
        reports = list(reports)
        check_step(reports)
        outcome = Outcome([{} for _ in range(shards)])
        for content in reports:
            match content["kind"]:
                case "source":
                    outcome._take_source(content)
                case "shard":
                    outcome._take_shard(content)
                case "fingerprint":
                    outcome._take_input(content["stream"], content["input"])
                case "table":
                    outcome.contents.setdefault(content["table"], []).append(content["input"])
            outcome.selections |= content.get("selections", {})
            for digest, told in content.get("efforts", {}).items():
                done = outcome.efforts.get(digest)
                outcome.efforts[digest] = Effort(*told) if done is None else done + Effort(*told)
        return outcome

    def _take_source(self, content: Report) -> None:
        name = content["stream"]
        self.told.append(content)
        for channel, found in content["counted"].items():
            known = self.counted.get(int(channel))
            self.counted[int(channel)] = found if known is None else added(known, found)
        self.rejects += content.get("rejects", ())
        if "input" in content:
            self._take_input(name, content["input"])

    def _take_input(self, stream: str, found: Mapping[str, Any]) -> None:
        """Add the fingerprint that one task took of a stream's rows."""
        known = self.inputs.get(stream)
        self.inputs[stream] = dict(found)
        if known is not None:
            rows, total = known["rows"] + found["rows"], known["sum"] + found["sum"]
            self.inputs[stream] |= {"rows": rows, "sum": total % 2**64}

    def _take_shard(self, content: Report) -> None:
        self.states[content["shard"]] |= content["states"]
        self.results += content["results"]
        self.held = max(self.held, content["held"])
        for query, told in content["served"].items():
            self.served[query] = self.served.get(query, Service()) + Service(*told)
        for what, count in content["fed"].items():
            shards = self.fed.setdefault(what, {})
            shards[content["shard"]] = shards.get(content["shard"], 0) + count


@dataclass
class Packed:
    """The streams of a batch after packing: parcels, a report and the late rows of each."""

    parcels: list[Parcel] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    late: dict[str, pa.Table] = field(default_factory=dict)


def pack_streams(
    plan: PhysicalPlan,
    arrivals: Mapping[str, Arrivals],
    timeline: Timeline,
    config: Settings,
    shards: int,
    routes: Mapping[int, Route] | None = None,
    storage: Storage | None = None,
) -> Packed:
    """Pack the rows of streams; ``routes`` say where keys are split that are hot."""
    packed = Packed()
    for name, came in arrivals.items():
        rules, before = timeline.rules.get(name, TimeRules()), timeline.of(name)
        packer = Packer(
            plan,
            name,
            came.time,
            rules,
            before,
            config,
            shards,
            routes,
            storage,
            timeline.answered,
        )
        late = []
        for partition, rows in came.parts:
            packer.appear(partition, int(partition) + 1 if partition.isdecimal() else 0)
            late.append(packer.add(rows, partition=partition))
        for partition in came.ended:
            packer.end(partition)
        if late:
            packed.late[name] = pa.concat_tables(late)
        packer.finish(came.final)
        packed.parcels += packer.parcels()
        packed.reports.append(packer.report())
    return packed


def run_stages(
    plan: PhysicalPlan,
    parcels: Sequence[Parcel],
    timeline: Timeline,
    states: Sequence[Mapping[str, Any]],
    storage: Storage,
    config: Settings,
    experience: Experience | None = None,
) -> Iterator[Report]:
    """Run all stages in every shard, of which there are as many as states; yield the reports."""
    shards = len(states)
    for stage in range(plan.stages):
        mine: list[list[Parcel]] = [[] for _ in range(shards)]
        for parcel in parcels:
            mine[parcel.shard].append(parcel)
        parcels = [
            sent
            for shard in range(shards)
            for sent in run_stage(
                plan,
                stage,
                shard,
                shards,
                mine[shard],
                states[shard],
                storage,
                config,
                timeline,
                experience,
            )
        ]
    return map(read_report, parcels)


def run_batch(
    plan: PhysicalPlan,
    arrivals: Mapping[str, Arrivals],
    timeline: Timeline,
    states: Sequence[Mapping[str, Any]],
    storage: Storage,
    config: Settings,
    tables: Iterable[Parcel] = (),
    routes: Mapping[int, Route] | None = None,
    experience: Experience | None = None,
) -> tuple[Outcome, dict[str, pa.Table]]:
    """Run one micro-batch in this process; return its outcome and the late rows of each stream.

    ``tables`` are the packed rows of static tables that queries need which begin with it.
    """
    experience = experience or Experience()
    experience = replace(experience, began=experience.began or time.time())
    packed = pack_streams(plan, arrivals, timeline, config, len(states), routes, storage)
    parcels = [*tables, *packed.parcels]
    reports = run_stages(plan, parcels, timeline, states, storage, config, experience)
    return Outcome.of([*packed.reports, *reports], len(states)), packed.late
