"""One micro-batch on Spark: a job of packing and stage tasks, and the manifest of what it made.

The tasks run the same pieces as `penstock.physical.batch.run_batch`, and their reports are read by
the same `Outcome`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import StreamDef, TableDef
from penstock.errors import StateError
from penstock.physical.batch import Outcome
from penstock.physical.book import BookedQuery
from penstock.physical.closing import settle_all
from penstock.physical.efforts import Experience, measured_after
from penstock.physical.key_loads import Heat, Reached
from penstock.physical.key_splits import routes
from penstock.physical.parcels import SPARK_SCHEMA, Parcel
from penstock.physical.plan import PhysicalPlan
from penstock.physical.progress import Progress, Timeline
from penstock.physical.reports import read_report
from penstock.physical.shared_files import share_states
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import Manifest
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.sources.stream_forms import described
from penstock.spark.pushdown import push_down
from penstock.spark.tables import (
    check_contents,
    contents_frame,
    contents_of,
    new_tables,
    packed_table,
)
from penstock.spark.tasks import Job, fingerprint_task, pack_task, stage_task


@dataclass
class BatchRunner:
    """Runs the micro-batches of a pipeline, each after the manifest of the one before.

    ``tables`` are those that are declared; ``heat`` decides which keys of joins are split.
    """

    spark: SparkSession
    config: Settings
    checkpoint: Checkpoint
    shards: int
    tables: Mapping[str, TableDef]
    heat: Heat = field(default_factory=Heat)

    def run(
        self,
        frame: DataFrame,
        plan: PhysicalPlan,
        before: Manifest,
        streams: Mapping[str, StreamDef],
        timeline: Timeline,
        busy: bool,
    ) -> Outcome:
        """Run one Spark job on what the streams bring."""
        batch, segments = before.batch + 1, self.checkpoint.segments
        digests = frozenset(node.digest for node in plan.nodes)
        job = Job(
            batch,
            plan,
            self._settings(busy),
            segments,
            self.shards,
            dict(streams),
            timeline,
            share_states(segments, batch, (_only(shard, digests) for shard in before.states)),
            failpoints.orders(),
            str(self.spark.sparkContext.master).startswith("local"),
            routes(plan, before.hot, self.searching),
            Experience(_only(before.measured, digests), time.time()),
        )
        frame = push_down(frame, plan, job.streams)
        packed = frame.mapInArrow(pack_task(job), SPARK_SCHEMA)
        for name, sources in new_tables(plan, before.tables).items():
            packed = packed.union(packed_table(self.spark, self.tables[name], sources, job))
        for stage in range(plan.stages):
            packed = packed.repartitionById(self.shards, F.col("shard"))
            packed = packed.mapInArrow(stage_task(job, stage), SPARK_SCHEMA)
        return self._collect(packed)

    def _settings(self, busy: bool) -> Settings:
        """Return the settings of a batch: strategies that follow the load are decided here."""
        if self.config.merge_strategy != "load":
            return self.config
        return self.config.but({"merge.strategy": "maxfanin" if busy else "greedy"})

    @property
    def searching(self) -> bool:
        """Whether hot keys of joins are looked for, to split them."""
        return self.config.join_split == 0 and self.shards > 1

    def _collect(self, frame: DataFrame) -> Outcome:
        """Run a job and put together what its tasks report."""
        parcels = (Parcel(r[0], r[1], r[2], r[3], bytes(r[4])) for r in frame.collect())
        return Outcome.of(map(read_report, parcels), self.shards)

    def manifest(
        self,
        plan: PhysicalPlan,
        before: Manifest,
        outcome: Outcome,
        queries: Iterable[BookedQuery],
        streams: Mapping[str, StreamDef],
        timeline: Timeline,
    ) -> Manifest:
        """Return what is true after a batch; who delivers and commits it completes it."""
        digests = frozenset(node.digest for node in plan.nodes)
        outputs = {a.query: plan.nodes[a.node].digest for a in plan.answers}
        progress = self._progress(before.batch + 1, timeline, outcome)
        reached = {
            name: Reached(found.max_time, found.heartbeat) for name, found in progress.items()
        }
        return Manifest(
            batch=before.batch + 1,
            shards=self.shards,
            lifetime=self.config.lifetime,
            numbers=plan.numbers,
            queries={q.name: q.describe(outputs.get(q.name)) for q in queries},
            streams=before.streams | {n: described(stream) for n, stream in streams.items()},
            progress={name: found.describe() for name, found in progress.items()},
            tables=[plan.nodes[at].digest for at in plan.sources("table")],
            contents=contents_of(outcome),
            states=outcome.states,
            measured=measured_after(_only(before.measured, digests), outcome.efforts),
            results=outcome.results,
            rejects=outcome.rejects,
            inputs=outcome.inputs,
            hot=self.heat.decide(
                plan, before.hot, outcome.counted, reached, self.shards, self.searching
            ),
        )

    def _progress(self, batch: int, timeline: Timeline, outcome: Outcome) -> dict[str, Progress]:
        """Return how far streams are after a batch; what it has closed is put in order."""
        segments = self.checkpoint.segments
        with SegmentStorage(segments, f"{batch}-closed", self.config.fsync) as storage:
            return settle_all(timeline.progress, timeline.after(outcome.told), storage)

    def check_replay(
        self, frame: DataFrame, known: Manifest, streams: Mapping[str, StreamDef]
    ) -> None:
        """Check that a batch which Spark replays brings what it brought before.

        Its answers are in the manifest, so the rows are read only to be compared.
        """
        self.checkpoint.log.check_offsets(known)
        expected = {name: found for name, found in known.inputs.items() if name in streams}
        columns = {name: found["columns"] for name, found in expected.items()}
        task = fingerprint_task(dict(streams), columns, self.config.stage_memory)
        read = frame.mapInArrow(task, SPARK_SCHEMA)
        held = {name: found for name, found in known.contents.items() if name in self.tables}
        for name, found in held.items():
            read = read.union(contents_frame(self.spark, self.tables[name], found["columns"]))
        outcome = self._collect(read)
        check_contents(known.batch, held, contents_of(outcome))
        for name, before in expected.items():
            now = outcome.inputs.get(name, {"rows": 0, "sum": 0, "columns": columns[name]})
            if now != before:
                raise StateError(
                    f"the rows that stream {name} brought in batch {known.batch} must be the same "
                    f"when the batch is read again after a crash, but there were {before['rows']} "
                    f"and are {now['rows']}, or some have changed; bring the stream's files back "
                    f"as they were, or use another --checkpoint"
                )


def _only(states: Mapping[str, Any], digests: frozenset[str]) -> dict[str, Any]:
    """Keep the states of nodes that are in the plan: those of dropped queries are forgotten."""
    return {digest: state for digest, state in states.items() if digest in digests}
