"""The observation of a batch: what each operator did, how far streams are, what adds up."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import cql
from penstock.catalog import Catalog
from penstock.cql import bind_query
from penstock.model import INF, MIN_TIME
from penstock.physical.batch import Arrivals, Outcome, run_batch
from penstock.physical.observation import Observation, Observer, PartitionState, StreamState
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Progress, Timeline
from penstock.runs.manifest import Manifest
from penstock.runs.state import MemoryStorage
from penstock.settings import Settings
from penstock.testing import to_table
from penstock.timing import TimeRules

SLACK = 2


def planned(text: str) -> tuple[PhysicalPlan, Any]:
    catalog = Catalog()
    script = "CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t"
    for parsed in cql.parse_script(script):
        statement: Any = cql.bind(parsed, catalog)
        catalog.add(statement.definition)
    return plan([Query("q", bind_query(text, catalog))], Settings(), {}), catalog.streams["s"]


class Pipe:
    """Batches of one stream, each observed as a pipeline does it."""

    def __init__(self, text: str, shards: int = 2) -> None:
        self.plan, self.stream = planned(text)
        self.shards = shards
        self.manifest = Manifest(shards=shards, states=[{} for _ in range(shards)])
        self.observer = Observer(self.manifest, lambda _: TimeRules(SLACK))
        self.storage = MemoryStorage()

    def batch(self, *rows: tuple[str, int, int], final: bool = False) -> Observation:
        progress = Progress.of(self.manifest.progress.get("s"))
        table = to_table(self.stream.schema, rows)
        arrivals = {"s": Arrivals([("", table)], 2, final=final)}
        timeline = Timeline({"s": progress}, {"s": TimeRules(SLACK)})
        outcome, _ = run_batch(
            self.plan, arrivals, timeline, self.manifest.states, self.storage, Settings()
        )
        after = timeline.after(outcome.told)
        self.manifest = Manifest(
            batch=self.manifest.batch + 1,
            shards=self.shards,
            progress={name: found.describe() for name, found in after.items()},
            states=outcome.states,
            results=outcome.results,
        )
        return self.observer.observe(self.manifest, self.plan, outcome, 0.25)


def test_what_is_seen_before_the_first_batch() -> None:
    seen = Observer(Manifest()).newest
    assert (seen.batch, seen.batches, seen.rows_in, seen.arrived) == (-1, 0, 0, 0)
    assert seen.stream("s") == StreamState()
    assert seen.stream("s").lag is None
    assert seen.digests("q") == set()
    assert (seen.state_rows("q"), seen.state_bytes("q")) == (0, 0)


def test_streams_and_rows_are_counted() -> None:
    pipe = Pipe("SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k")
    first = pipe.batch(("a", 1, 1), ("b", 2, 10), ("a", 3, 3))
    only = PartitionState(3, 1, 10, 8, SLACK)
    assert first.streams["s"] == StreamState(3, 3, 1, 0, 10, 8, 1, False, {"": only})
    assert first.streams["s"].slack == SLACK
    assert first.streams["s"].lag == SLACK
    second = pipe.batch(("a", 4, 11), ("a", 5, 12))
    stream = second.streams["s"]
    assert (stream.rows, stream.came, stream.late, stream.heartbeat) == (5, 2, 1, 10)
    assert (second.batch, second.batches, second.batch_seconds) == (1, 2, 0.25)
    assert (second.rows_in, second.arrived, second.batch_rows) == (5, 5, {"s": 2})
    last = pipe.batch(final=True)
    assert last.streams["s"].heartbeat == INF
    assert last.streams["s"].lag is None
    results = sum(r["rows"] for r in pipe.manifest.results)
    assert last.rows_out["q"] == second.rows_out.get("q", 0) + results > 0
    assert last.rate_in > 0
    assert first.batches == 1, "an observation never changes"


def test_what_operators_did_is_seen_also_in_packing() -> None:
    pipe = Pipe("SELECT k, COUNT(*) AS n FROM s [RANGE 5] WHERE x > 1 GROUP BY k", shards=3)
    seen = pipe.batch(*((f"{i % 4}", i, i) for i in range(20)))
    stages = {node.digest: node.stage for node in pipe.plan.nodes}
    assert {stages[digest] for digest in seen.efforts} >= {-1, 0}
    for node in pipe.plan.nodes:
        if node.spec is None or node.stage < 0:
            continue
        effort = seen.efforts[node.digest]
        assert effort.seconds > 0
        assert effort.queued > 0
        below = [seen.efforts.get(pipe.plan.nodes[i.producer].digest) for i in node.inputs]
        if all(b is not None for b in below):
            assert effort.rows_in == sum(b.rows_out for b in below if b is not None)
    aggregate = next(n for n in pipe.plan.nodes if n.label.startswith("Aggregate"))
    assert seen.efforts[aggregate.digest].rows_out > 0
    assert seen.efforts[aggregate.digest].bytes_out > 0
    again = pipe.batch(*((f"{i % 4}", i, i) for i in range(20, 30)))
    total, now = again.totals[aggregate.digest], again.efforts[aggregate.digest]
    assert total.rows_in == seen.efforts[aggregate.digest].rows_in + now.rows_in
    assert again.digests("q") == set(stages)
    assert again.state_rows("q") > 0


@pytest.mark.parametrize("order", [1, -1])
def test_reports_come_in_any_order(order: int) -> None:
    shard = {"kind": "shard", "states": {}, "results": [], "fed": {"x": 2}, "served": {}, "held": 0}
    efforts = [{"a": (0.5, 1, 2, 3, 4)}, {"a": (0.25, 1, 0, 1, 9), "b": (0.0, 0, 0, 0, 0)}]
    reports = [shard | {"shard": i, "efforts": e} for i, e in enumerate(efforts)]
    outcome = Outcome.of(reports[::order], 2)
    found = outcome.efforts["a"]
    assert (found.seconds, found.rows_in, found.rows_out) == (0.75, 2, 2)
    assert (found.bytes_out, found.queued) == (4, 9)
    assert outcome.fed == {"x": {0: 2, 1: 2}}
    assert outcome.told == []


def test_a_stream_that_has_brought_nothing_has_no_time() -> None:
    seen = Pipe("SELECT k FROM s [NOW]").batch()
    assert seen.stream("s").newest == MIN_TIME
    assert seen.stream("s").heartbeat == MIN_TIME
