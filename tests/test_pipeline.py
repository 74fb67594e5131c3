"""The whole road on Spark: files in, one shared plan, answers out; compared with the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.session import Session
from tests.comparison import check_answer, interval_rows
from tests.world import NESTED, OPERATORS, World, corpus, make_world

KEPT = "CREATE SINK kept USING memory OPTIONS (changes 'intervals');"


def create(queries: dict[str, str]) -> str:
    return "\n".join(f"CREATE QUERY {name} INTO kept AS {q};" for name, q in queries.items())


def check_all(session: Session, world: World) -> None:
    """Compare the answers of all queries, and count the rows that came."""
    inputs = world.inputs()
    wrong = {}
    for handle in session.handles():
        try:
            check_answer(handle.definition.plan, interval_rows(handle.rows()), inputs)
        except AssertionError as difference:
            wrong[handle.name] = str(difference)[:500]
    assert wrong == {}
    for name, progress in session.pipeline.manifest.progress.items():
        assert progress["late"] == len(world.late(name))
        assert progress["accepted"] + progress["late"] == len(world.rows[name])


@pytest.mark.spark
@pytest.mark.parametrize(
    "settings",
    [{"batch.rows": 18, "shards": 2}, {"shards": 1}],
    ids=["several-batches-two-shards", "one-batch-one-shard"],
)
def test_every_query_in_one_pipeline(spark: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    world = make_world(tmp_path, rows=50)
    assert world.late("s")
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings=settings) as session:
        session.sql(world.declarations() + KEPT + create(corpus()))
        assert session.await_end(timeout=280)
        check_all(session, world)


THIRTY = {
    f"q{i}": text
    for i, text in enumerate(t for t in (OPERATORS | NESTED).values() if " d" not in t)
} | {"more": "SELECT b, COUNT(*) AS n FROM q [RANGE 7] GROUP BY b", "last": "SELECT * FROM q [NOW]"}


@pytest.mark.spark
def test_many_queries_are_one_streaming_query_and_one_job_per_batch(
    spark: Any, tmp_path: Path
) -> None:
    world = make_world(tmp_path, rows=30)
    with Session(spark, settings={"batch.rows": 15}) as session:
        session.sql(world.declarations() + KEPT + create(THIRTY))
        assert len(session.handles()) >= 30
        active = session.pipeline.spark_queries()
        assert len(active) == 1
        group = str(active[0].runId)
        assert session.await_end(timeout=200)
        batches = session.pipeline.manifest.batch + 1
        assert batches >= 2
        jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
        assert len(jobs) == batches
        check_all(session, world)
        text = session.query("q0").explain("physical")
        assert "one Spark job per batch" in text
        assert f"{len(THIRTY)} queries" in text


def test_a_common_part_is_planned_once() -> None:
    with Session(autostart=False) as session:
        session.sql(
            """
            CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE VIEW sums AS SELECT k, SUM(x) AS total FROM s [RANGE 10] GROUP BY k;
            CREATE QUERY high AS SELECT k FROM sums WHERE total > 10;
            CREATE QUERY low AS SELECT k AS key, total FROM sums WHERE total < 3;
            CREATE QUERY other AS SELECT x, SUM(x) AS total FROM s [RANGE 10] GROUP BY x;
            """
        )
        text = session.query("high").explain("physical")
        shared = next(line for line in text.splitlines() if "Aggregate  [" in line)
        assert "shared with low" in shared
        assert "other" not in shared
        source = next(line for line in text.splitlines() if "stream s" in line)
        assert "shared with low, other" in source or "shared with low" in source
        # two aggregates in all: the shared one and that of the other query
        assert sum("Aggregate" in line for line in _whole(session)) == 2


def _whole(session: Session) -> list[str]:
    """Every operator of the common plan, once."""
    from penstock.optimizer import optimize
    from penstock.physical.planner import Query, plan

    plans = optimize({h.name: h.definition.plan for h in session.handles()})
    made = plan([Query(n, p) for n, p in plans.items()], session.config, {})
    return [node.label for node in made.nodes]
