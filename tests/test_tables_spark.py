"""Static tables on Spark: read by tasks, part by part, and compared when a batch comes again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.catalog import TableDef
from penstock.errors import DataError, StateError
from penstock.expr.types import parse_type
from penstock.model import Field, Schema
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.session import Session
from tests.crashes import Scenario
from tests.test_crash import stopped_before_return

ROWS, KEYS, ARRIVALS = 400_000, 60_000, 30_000
FILES = (90_000, 0, 160_000, 1, 149_999)


@pytest.fixture(autouse=True)
def _no_failures() -> Any:
    yield
    failpoints.arm("")


def schema(text: str) -> Schema:
    columns = [column.split() for column in text.split(", ")]
    return Schema(tuple(Field(name, parse_type(kind)) for name, kind in columns))


# Parts, without Spark


def test_parquet_files_are_cut_into_parts_of_row_groups(tmp_path: Path) -> None:
    from penstock.sources import tables
    from penstock.sources.table_formats import table_format
    from penstock.spark.tables import _dealt

    table = pa.table({"X": np.arange(3_000_000), "y": np.arange(3_000_000) % 7})
    for number, rows in enumerate((3_000_000, 0, 10)):
        pq.write_table(table.slice(0, rows), tmp_path / f"{number}.parquet", row_group_size=400_000)
    (tmp_path / "_SUCCESS").touch()
    definition = TableDef("t", schema("x BIGINT, y INT"), "parquet", {"PATH": str(tmp_path)})
    files = tables.local_files(str(tmp_path))
    assert files == [str(tmp_path / f"{n}.parquet") for n in range(3)]
    parts = tables.parts_of(definition, files)
    assert table_format(definition).parts(definition) == parts
    assert [(Path(p.path).name, len(p.groups), p.first) for p in parts] == [
        ("0.parquet", 3, 0),
        ("0.parquet", 3, 1_200_000),
        ("0.parquet", 2, 2_400_000),
        ("2.parquet", 1, 0),
    ]
    chunks = list(tables.read_part(definition, parts[1], [0]))
    assert max(c.num_rows for c in chunks) <= tables.CHUNK_ROWS
    read = pa.concat_tables(chunks)
    assert read["x"].equals(pa.chunked_array([np.arange(1_200_000, 2_400_000)]))
    assert read["y"].null_count == 1_200_000  # nobody needs it
    assert _dealt(parts, 2) == [parts[:2], parts[2:]]
    assert _dealt([], 2) == []
    narrow = TableDef("t", schema("x TINYINT"), "parquet", {"path": str(tmp_path)})
    with pytest.raises(DataError, match=r"'x' of table t must be TINYINT, got 128 in row 129 of"):
        list(tables.read_part(narrow, parts[0], [0]))
    (tmp_path / "inner").mkdir()
    assert table_format(definition).parts(definition) is None  # folders in it are Spark's
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(DataError, match=r"bad.parquet' of table t must be a Parquet file"):
        tables.parts_of(definition, [str(tmp_path / "bad.parquet")])


# A stream and a table


def write_world(folder: Path) -> tuple[pa.Table, pa.Table]:
    """Write a table, as Parquet in several files and as csv, and a stream; return both."""
    dice = np.random.default_rng(11)
    since = dice.integers(-1000, 8000, ROWS)
    until = since + dice.integers(1, 3000, ROWS)
    table = pa.table(
        {
            "k": dice.integers(0, KEYS, ROWS),
            "label": pa.array([f"label {i % 977}" for i in range(ROWS)]),
            "since": pa.array(since, mask=dice.random(ROWS) < 0.3),
            "until": pa.array(until, mask=dice.random(ROWS) < 0.3),
        }
    )
    (folder / "parts").mkdir()
    first = 0
    for number, rows in enumerate(FILES):
        path = folder / "parts" / f"{number}.parquet"
        pq.write_table(table.slice(first, rows), path, row_group_size=30_000)
        first += rows
    assert first == ROWS
    table.to_pandas().astype({"since": "Int64", "until": "Int64"}).to_csv(
        folder / "d.csv", index=False
    )
    times = np.sort(dice.integers(0, 8000, ARRIVALS))
    stream = pa.table({"k": dice.integers(0, KEYS, ARRIVALS), "t": times})
    pq.write_table(stream, folder / "s.parquet")
    return table, stream


def expected(table: pa.Table, stream: pa.Table, window: int, valid: bool) -> list[tuple[Any, ...]]:
    """The join, by pandas: every pair of equal keys, valid while both are."""
    left, right = stream.to_pandas(), table.to_pandas()
    pairs = left.merge(right, on="k")
    start, end = pairs["t"].to_numpy(), (pairs["t"] + window).to_numpy()
    if valid:
        start = np.maximum(start, pairs["since"].fillna(-(10**9)).to_numpy().astype(np.int64))
        end = np.minimum(end, pairs["until"].fillna(10**9).to_numpy().astype(np.int64))
    keep = start < end
    columns = pairs["k"].to_numpy(), pairs["label"].to_numpy(), pairs["t"].to_numpy(), start, end
    return sorted(zip(*(c[keep].tolist() for c in columns), strict=True))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_and_a_table_of_many_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is forbidden to read a row of the tables, and no row comes to it."""
    from pyspark.sql import DataFrame

    from penstock.physical.batch import Outcome
    from penstock.spark.batch import BatchRunner

    table, stream = write_world(tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the driver must not read the rows of a table")

    for name in ("toArrow", "toPandas", "toLocalIterator", "take"):
        monkeypatch.setattr(DataFrame, name, refuse, raising=False)
    for name in ("iter_batches", "read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, refuse)
    monkeypatch.setattr(pq, "read_table", refuse)
    collected: list[int] = []
    collect = BatchRunner._collect

    def counted(self: BatchRunner, frame: DataFrame) -> Outcome:
        found = collect(self, frame)
        collected.append(len(repr(found)))
        return found

    monkeypatch.setattr(BatchRunner, "_collect", counted)
    columns = "k BIGINT, label STRING, since BIGINT, until BIGINT"
    script = f"""
        CREATE STREAM s (k BIGINT, t BIGINT) USING replay OPTIONS (path '{tmp_path}/s.parquet')
          TIMESTAMP BY t;
        CREATE TABLE p ({columns}) USING parquet OPTIONS (path '{tmp_path}/parts')
          VALID FROM since TO until;
        CREATE TABLE c ({columns}) USING csv OPTIONS (path '{tmp_path}/d.csv')
          VALID FROM since TO until;
        CREATE TABLE a ({columns}) USING parquet OPTIONS (path '{tmp_path}/parts');
        CREATE SINK kept USING memory OPTIONS (changes 'intervals');
    """
    settings = {"shards": 2, "batch.rows": 9000, "batch.seconds": 0, "join.memory": "4mb"}
    with Session(spark, settings=settings, autostart=False) as session:
        session.sql(script)
        for name in "pca":
            session.sql(
                f"CREATE QUERY q{name} INTO kept AS SELECT s.k, {name}.label, s.t "
                f"FROM s [RANGE 500] JOIN {name} ON s.k = {name}.k"
            )
        session.start()
        assert session.await_end(timeout=400)
        answers = {handle.name: handle.rows() for handle in session.handles()}
        manifest = session.pipeline.checkpoint.read(0)
    assert manifest is not None
    assert {n: c["rows"] for n, c in manifest.contents.items()} == dict.fromkeys("pca", ROWS)
    assert manifest.contents["p"]["sum"] == manifest.contents["c"]["sum"]
    assert manifest.contents["a"]["columns"] == [0, 1]
    assert max(collected) < 200_000
    for name in "pca":
        found = [c.to_pylist() for c in answers[f"q{name}"].columns]
        rows = sorted(zip(*found, strict=True))
        assert rows == expected(table, stream, 500, valid=name != "a"), name
    assert len(answers["qa"]) > 150_000


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_that_changed_since_the_crash_is_refused(spark: Any, tmp_path: Path) -> None:
    scenario = Scenario.make(tmp_path, 30)
    assert stopped_before_return(spark, scenario, passage=1) == 0
    manifest = Checkpoint(str(scenario.checkpoint)).read(0)
    assert manifest is not None
    assert manifest.contents["d"]["rows"] == len(scenario.world.table)

    def go_on() -> None:
        with Session(spark, checkpoint=scenario.checkpoint, settings=scenario.settings) as session:
            session.sql(scenario.script)
            assert session.await_end(timeout=200)

    source = tmp_path / "d.csv"
    text, times = source.read_text(), source.stat()
    lines = text.splitlines(keepends=True)
    rows = len(lines) - 1
    for changed in (
        "".join([*lines[:-1], ("9" if lines[-1][0] != "9" else "8") + lines[-1][1:]]),
        "".join(lines[:-1]),
    ):
        source.write_text(changed)
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        told = rf"the rows of table d, which batch 0 read, must be .* there were {rows} and are"
        with pytest.raises(StateError, match=told):
            go_on()
    source.write_text("".join([lines[0], *reversed(lines[1:])]))  # the order means nothing
    go_on()
    scenario.check()
