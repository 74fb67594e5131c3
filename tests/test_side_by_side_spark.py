"""Files and writers side by side, on Spark: nothing is lost, one stream is packed by many tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.reference import Inputs
from penstock.reference.late import Judge
from penstock.runs import failpoints
from penstock.session import Session
from penstock.timing import TimeRules
from tests.comparison import check_answer, interval_rows

pytestmark = pytest.mark.spark

Row = tuple[int, int]


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def write(folder: Path, files: dict[str, list[Row]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        lines = (json.dumps({"x": x, "t": t}) + "\n" for x, t in rows)
        (folder / f"{name}.json").write_text("".join(lines))


def run(spark: Any, checkpoint: Path, script: str, settings: dict[str, Any]) -> None:
    """Run a script until all its streams have ended."""
    with Session(spark, checkpoint=checkpoint, settings=settings) as session:
        session.sql(script)
        session.await_end(timeout=200)


def interleaved() -> dict[str, list[Row]]:
    return {name: [(at, 2 * at + odd) for at in range(100)] for odd, name in enumerate("ba")}


@pytest.mark.parametrize("options", ["", ", multiLine 'false'"])  # by Penstock, by Spark
def test_two_json_files_with_interleaved_times_lose_nothing(
    spark: Any, tmp_path: Path, options: str
) -> None:
    files = interleaved()
    write(tmp_path / "in", files)
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings={"batch.rows": 30}) as session:
        query = session.sql(
            f"CREATE STREAM s (x BIGINT, t BIGINT) USING json "
            f"OPTIONS (path '{tmp_path / 'in'}'{options}) TIMESTAMP BY t;"
            f"CREATE QUERY q AS SELECT x, t FROM s"
        )
        session.await_idle()
        seen = session.pipeline.observation.stream("s")
        assert (seen.rows, seen.late) == (200, 0)
        assert query is not None


@pytest.mark.parametrize("rows", [7, 100])
def test_answers_of_files_are_those_of_the_oracle_after_a_crash(
    spark: Any, tmp_path: Path, rows: int
) -> None:
    chosen = random.Random(rows)
    files = {
        name: [(n % 5, 3 * n + chosen.randrange(-20, 20)) for n in range(first, first + 60)]
        for first, name in zip((0, 5, 60, 120), "dcba", strict=True)
    }
    write(tmp_path / "in", files)
    judge = Judge()
    judge.declare("s", TimeRules(9), 1)
    for name, some in files.items():
        judge.feed("s", name, some)
    script = (
        f"CREATE SINK kept USING jsonl OPTIONS (path '{tmp_path / 'out'}', changes 'intervals');"
        f"CREATE STREAM s (x BIGINT, t BIGINT) USING replay "
        f"OPTIONS (path '{tmp_path / 'in'}') TIMESTAMP BY t SLACK 9;"
        f"CREATE QUERY q INTO kept AS SELECT x, COUNT(*) AS n FROM s [RANGE 30] GROUP BY x"
    )
    settings = {"batch.rows": rows, "shards": 2, "pack.tasks": 3, "pack.rows": 1}
    failpoints.arm("before-return=raise@2")  # the batch is done, and Spark will bring it again
    with pytest.raises(Exception, match="before-return"):
        run(spark, tmp_path / "checkpoint", script, settings)
    failpoints.arm("")
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings=settings) as session:
        query = session.sql(script)
        assert session.await_end(timeout=200)
        assert session.pipeline.observation.stream("s").late == len(judge.late["s"]) > 0
        plan = query.definition.plan
    found = []
    for path in sorted((tmp_path / "out").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found.append((told["x"], told["n"], told["_start"], told["_end"]))
    check_answer(plan, _intervals(found), Inputs({"s": judge.kept["s"]}))


def _intervals(rows: list[tuple[int, int, int, int | None]]) -> list[tuple[Any, ...]]:
    names = ["x", "n", "_start", "_end"]
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(4)]
    return interval_rows(pa.table(columns, names))


def test_eight_writers_with_skewed_clocks(spark: Any, tmp_path: Path) -> None:
    chosen = random.Random(8)
    writers: dict[int, list[Row]] = {}
    for writer in range(8):
        skew = chosen.randrange(-50_000, 50_000)
        writers[writer] = [(writer, skew + 2 * at + chosen.randrange(12)) for at in range(3_000)]
    judge = Judge()
    judge.declare("s", TimeRules(6), 1)
    for writer, rows in writers.items():
        judge.feed("s", str(writer), rows)
    tasks: list[int] = []
    checkpoint, settings = tmp_path / "checkpoint", {"pack.rows": 1}
    with Session(spark, checkpoint=checkpoint, settings=settings, autostart=False) as session:
        query = session.sql(
            "CREATE STREAM s (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 6;"
            "CREATE SINK kept USING memory OPTIONS (changes 'intervals');"
            "CREATE QUERY q INTO kept AS SELECT x, COUNT(*) AS n FROM s [RANGE 100] GROUP BY x"
        )
        for half in (slice(0, 1_500), slice(1_500, None)):
            for writer, rows in writers.items():
                session.push("s", rows[half], partition=writer)
        session.finish("s")
        runner = session.pipeline.runner
        as_it_was = runner.run

        def counted(frame: Any, *given: Any) -> Any:
            tasks.append(frame.rdd.getNumPartitions())
            return as_it_was(frame, *given)

        runner.run = counted  # type: ignore[method-assign]
        session.start()
        assert session.await_end(timeout=200)
        seen = session.pipeline.observation.stream("s")
        assert (seen.rows, seen.late) == (24_000, len(judge.late["s"]))
        assert seen.late > 0
        answer = query.rows()
        assert max(tasks) == spark.sparkContext.defaultParallelism > 1
    assert set(answer["x"].to_pylist()) == set(range(8))


def test_a_bad_row_is_told_with_its_file(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "in", interleaved())
    with open(tmp_path / "in" / "b.json", "a") as file:
        file.write('{"x": "no number", "t": 500}\n')
    script = (
        f"CREATE STREAM s (x BIGINT, t BIGINT) USING replay "
        f"OPTIONS (path '{tmp_path / 'in'}') TIMESTAMP BY t;"
        f"CREATE QUERY q AS SELECT x, t FROM s"
    )
    with pytest.raises(Exception, match=r"b\.json, line 101: .*no number"):
        run(spark, tmp_path / "checkpoint", script, {})
