"""One micro-batch: rows of streams in, new states, progress and results out.

`run_batch` does in one process what a Spark job does in tasks: it packs the rows, runs the stages
one after the other, shard by shard, and puts together what they report.  `Outcome.of` reads the
reports of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.model import MIN_TIME
from penstock.physical.fragment import Effort
from penstock.physical.packing import Packer, Progress
from penstock.physical.parcels import Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.reports import read_report
from penstock.physical.sending import check_step
from penstock.physical.split_routes import Route
from penstock.physical.stage import run_stage
from penstock.runs.state import Storage
from penstock.settings import Settings

Report = Mapping[str, Any]
"""What one task tells the driver."""


@dataclass(frozen=True)
class Arrivals:
    """What one stream brings in a batch: rows, in order of arrival, and which column is their time.

    ``progress`` is how far it had come.  ``floor`` is a heartbeat that holds after the batch,
    ``final``: nothing comes any more.
    """

    rows: pa.Table
    time: int
    slack: int = 0
    progress: Progress = field(default_factory=Progress)
    floor: int = MIN_TIME
    final: bool = False


@dataclass
class Outcome:
    """What the tasks of a batch report, put together.

    ``states`` are those of each shard, by digest; ``results`` describe rows of answers, and
    ``rejects`` rows that were set aside.  By stream there are ``progress``, ``inputs`` (the
    fingerprint of what came), ``reached`` (file and place of the last row); by table ``contents``
    (the fingerprint of each part).  ``counted`` are samples of keys by channel, ``efforts`` what
    each operator did, by digest, ``fed`` rows that keys spread, by shard.
    """

    states: list[dict[str, Any]]
    results: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    reached: dict[str, tuple[str, int]] = field(default_factory=dict)
    contents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counted: dict[int, dict[str, Any]] = field(default_factory=dict)
    efforts: dict[str, Effort] = field(default_factory=dict)
    fed: dict[str, dict[int, int]] = field(default_factory=dict)

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
                    outcome.inputs[content["stream"]] = content["input"]
                case "table":
                    outcome.contents.setdefault(content["table"], []).append(content["input"])
            for digest, told in content.get("efforts", {}).items():
                done = outcome.efforts.get(digest)
                outcome.efforts[digest] = Effort(*told) if done is None else done + Effort(*told)
        return outcome

    def _take_source(self, content: Report) -> None:
        name = content["stream"]
        self.progress[name] = content["progress"]
        self.counted |= {int(channel): found for channel, found in content["counted"].items()}
        self.rejects += content.get("rejects", ())
        if "input" in content:
            self.inputs[name] = content["input"]
        if content.get("reached") is not None:
            path, place = content["reached"]
            self.reached[name] = path, place

    def _take_shard(self, content: Report) -> None:
        self.states[content["shard"]] |= content["states"]
        self.results += content["results"]
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
    config: Settings,
    shards: int,
    routes: Mapping[int, Route] | None = None,
) -> Packed:
    """Pack the rows of streams; ``routes`` say where keys are split that are hot."""
    packed = Packed()
    for name, came in arrivals.items():
        packer = Packer(plan, name, came.time, came.slack, came.progress, config, shards, routes)
        packed.late[name] = packer.add(came.rows)
        floor = max(packer.progress.floor, came.floor)
        packer.progress = replace(packer.progress, floor=floor)
        packer.finish(came.final or packer.progress.final)
        packed.parcels += packer.parcels()
        packed.reports.append(packer.report())
    return packed


def run_stages(
    plan: PhysicalPlan,
    parcels: Sequence[Parcel],
    arrivals: Mapping[str, Arrivals],
    states: Sequence[Mapping[str, Any]],
    storage: Storage,
    config: Settings,
) -> Iterator[Report]:
    """Run all stages in every shard, of which there are as many as states; yield the reports."""
    beats = {name: came.progress.heartbeat(came.slack) for name, came in arrivals.items()}
    times = {name: came.progress.max_time for name, came in arrivals.items()}
    shards = len(states)
    for stage in range(plan.stages):
        mine: list[list[Parcel]] = [[] for _ in range(shards)]
        for parcel in parcels:
            mine[parcel.shard].append(parcel)
        parcels = [
            sent
            for shard in range(shards)
            for sent in run_stage(
                plan, stage, shard, shards, mine[shard], states[shard], storage, config, beats,
                frozenset(), times,
            )
        ]  # fmt: skip
    return map(read_report, parcels)


def run_batch(
    plan: PhysicalPlan,
    arrivals: Mapping[str, Arrivals],
    states: Sequence[Mapping[str, Any]],
    storage: Storage,
    config: Settings,
    tables: Iterable[Parcel] = (),
    routes: Mapping[int, Route] | None = None,
) -> tuple[Outcome, dict[str, pa.Table]]:
    """Run one micro-batch in this process; return its outcome and the late rows of each stream.

    ``tables`` are the packed rows of static tables that queries need which begin with it.
    """
    packed = pack_streams(plan, arrivals, config, len(states), routes)
    parcels = [*tables, *packed.parcels]
    reports = run_stages(plan, parcels, arrivals, states, storage, config)
    return Outcome.of([*packed.reports, *reports], len(states)), packed.late
