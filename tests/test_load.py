"""What a user is told about the load: what is waiting, and which shard gets too much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.catalog import Catalog, StreamDef
from penstock.cli.live import format_waiting
from penstock.cql import bind_query
from penstock.model import Field, Schema
from penstock.physical.batch import Outcome
from penstock.physical.observation import Observer
from penstock.physical.planner import Query
from penstock.physical.planner import plan as plan_queries
from penstock.reference import Inputs
from penstock.runs.manifest import Manifest
from penstock.session import Session
from penstock.settings import Settings
from penstock.sources.base import Limits, Waiting
from penstock.sources.formats import backlog_of, source_format
from penstock.sources.spool import Spool
from tests.comparison import check_answer, interval_rows

SCHEMA = Schema((Field("x", pa.int32()), Field("t", pa.int64())))


def stream(format: str, **options: str) -> StreamDef:
    return StreamDef("s", SCHEMA, format, options, 1)


def test_pushed_rows_are_waiting_until_they_are_taken(tmp_path: Path) -> None:
    backlog = backlog_of(stream("memory"), str(tmp_path))
    assert backlog.waiting(0, None) == Waiting(0, "rows")
    spool = Spool(tmp_path, SCHEMA)
    spool.push([(1, 1), (2, 2)])
    spool.push([(3, 3)])
    assert backlog.waiting(0, None) == Waiting(3, "rows")
    assert backlog.waiting(2, None) == Waiting(1, "rows")
    assert backlog.waiting(3, None) == Waiting(0, "rows")


@pytest.mark.parametrize(
    ("order", "waiting"),
    [("name", [16, 12, 4, 0]), ("parallel", [16, 8, 4, 0])],  # of a file that is begun its header
)
def test_of_a_replay_the_rest_of_its_files_is_waiting(
    tmp_path: Path, order: str, waiting: list[int]
) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,t\n1,1\n2,2\n")
    definition = stream("replay", path=str(tmp_path), order=order)
    backlog = backlog_of(definition, "")
    assert backlog.waiting(0, None) == Waiting(24, "bytes")
    limits = Limits(1, width=1)
    reader = source_format("replay").reader(definition, limits, None)
    position, left = reader.position(None), []
    while not position.done:
        position = reader.advance(position, False)
        left.append(backlog.waiting(1, json.loads(json.dumps(position.to_json()))))
    assert left == [Waiting(bytes, "bytes") for bytes in waiting]
    assert backlog.waiting(4, None) is None  # nothing says where it stands


def test_of_columnar_files_in_proportion(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"x": pa.array(range(100), pa.int32()), "t": pa.array(range(100))})
    pyarrow.parquet.write_table(rows, path)
    size = path.stat().st_size
    backlog = backlog_of(stream("replay", path=str(path)), "")
    at: dict[str, object] = {"begun": 1, "open": [[0, 25, 25]]}
    assert backlog.waiting(25, at) == Waiting(size - size // 4, "bytes")


@pytest.mark.parametrize("options", [{"rate": "5"}, {"speed": "2"}, {"loop": "true"}])
def test_paced_and_endless_replays_have_no_backlog(tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "a.csv").write_text("x,t\n1,1\n")
    assert backlog_of(stream("replay", path=str(tmp_path), **options), "").waiting(0, None) is None
    assert backlog_of(stream("kafka"), "").waiting(0, None) is None


def test_what_is_waiting_as_people_read_it() -> None:
    assert format_waiting(None) == "-"
    assert format_waiting(Waiting(12345, "rows")) == "12,345 rows"
    assert format_waiting(Waiting(2048, "bytes")) == "2.0 KB"


@pytest.mark.spark
def test_half_of_all_rows_on_one_key(spark: Any, tmp_path: Path) -> None:
    rows = [(0 if i % 2 else i, i) for i in range(300)]
    lines = "".join(f"{x},{t}\n" for x, t in rows)
    (tmp_path / "s.csv").write_text("x,t\n" + lines)
    settings = {"shards": 5, "batch.rows": 200}
    with Session(spark, settings=settings) as session:
        query = session.sql(
            f"CREATE SINK kept USING memory OPTIONS (changes 'intervals');"
            f"CREATE STREAM s (x INT, t BIGINT) USING replay "
            f"OPTIONS (path '{tmp_path / 's.csv'}') TIMESTAMP BY t;"
            f"CREATE QUERY even AS SELECT t, COUNT(*) AS n FROM s [RANGE 10] GROUP BY t;"
            f"CREATE QUERY q INTO kept AS SELECT x, COUNT(*) AS n FROM s [RANGE 10] GROUP BY x"
        )
        assert query.status()["state"] in ("created", "running")
        assert session.await_end(timeout=200)
        elements = {"s": [(row, row[-1]) for row in rows]}
        check_answer(query.definition.plan, interval_rows(query.rows()), Inputs(elements))
        status = query.status()
        assert status["waiting"] == {"s": {"amount": 0, "unit": "bytes"}}
        (hot,) = status["hot_shards"]
        assert hot["share"] > 0.5
        assert 0 <= hot["shard"] < 5
        assert f"hot: shard {hot['shard']} gets {hot['share']:.0%} of the rows" in query.explain()
        assert session.query("even").status()["hot_shards"] == []
        assert "hot:" not in session.query("even").explain()


@pytest.mark.parametrize(
    ("shards", "shares", "hot"),
    [
        (2, [75, 25], True),  # half of all rows on one key
        (2, [55, 45], False),
        (5, [50, 15, 15, 10, 10], True),
        (5, [28, 18, 18, 18, 18], False),
        (20, [12, *[4.6] * 19], True),
    ],
)
def test_when_a_shard_is_hot(shards: int, shares: list[float], hot: bool) -> None:
    catalog = Catalog()
    catalog.add(stream("memory"))
    counted = bind_query("SELECT x, COUNT(*) AS n FROM s [RANGE 5] GROUP BY x", catalog)
    plan = plan_queries([Query("q", counted)], Settings(), {})
    what = next(plan.by_key(i) for i in range(len(plan.channels)) if plan.by_key(i))
    fed = {what: {shard: int(share * 1_000) for shard, share in enumerate(shares)}}
    outcome = Outcome([{} for _ in shares], fed=fed)
    seen = Observer(Manifest()).observe(Manifest(batch=0, shards=shards), plan, outcome, 0.1)
    assert [h.shard for h in seen.hot_shards] == ([0] if hot else [])
