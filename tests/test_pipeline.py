"""The whole road on Spark: files in, one shared plan, answers out; compared with the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.session import Session
from tests.comparison import check_answer, interval_rows
from tests.world import corpus, make_world

pytestmark = pytest.mark.spark

KEPT = "CREATE SINK kept USING memory OPTIONS (changes 'intervals');"


@pytest.mark.parametrize(
    "settings",
    [{"batch.rows": 25, "shards": 2}, {"shards": 1}],
    ids=["several batches, two shards", "one batch, one shard"],
)
def test_every_query_in_one_pipeline(spark: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    world = make_world(tmp_path)
    queries = corpus()
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings=settings) as session:
        session.sql(world.declarations() + KEPT)
        session.sql("\n".join(f"CREATE QUERY {n} INTO kept AS {q};" for n, q in queries.items()))
        assert session.await_end(timeout=280)
        inputs = world.inputs()
        wrong = {}
        for handle in session.handles():
            try:
                check_answer(handle.definition.plan, interval_rows(handle.rows()), inputs)
            except AssertionError as difference:
                wrong[handle.name] = str(difference)[:500]
        assert wrong == {}
        progress = session.pipeline.manifest.progress
        for name, rows in world.rows.items():
            assert progress[name]["late"] == len(world.late(name)) > 0 or name == "r"
            assert progress[name]["accepted"] + progress[name]["late"] == len(rows)
