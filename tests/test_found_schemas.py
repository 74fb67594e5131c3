"""Streams and tables that list no columns have those of their files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock.errors import QueryError
from penstock.expr.types import type_name
from penstock.sources.found_schemas import found_schema
from penstock.testing import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE = {"id": 1, "x": 1.5, "who": {"name": "a", "tags": ["b"]}, "none": None, "t": 1}


def named(format: str, path: Path, **options: str) -> dict[str, str]:
    found = found_schema("stream", "s", format, {"path": str(path), **options})
    return {f.name: type_name(f.type) for f in found}


def test_json_tells_types_and_what_is_inside(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps(LINE) + "\n")
    (tmp_path / "_hidden.jsonl").write_text("{}\n")
    wanted = {
        "id": "BIGINT",
        "x": "DOUBLE",
        "who": "STRUCT<name: STRING, tags: ARRAY<STRING>>",
        "none": "STRING",
        "t": "BIGINT",
    }
    assert named("json", tmp_path) == wanted
    assert named("replay", tmp_path / "b.jsonl") == wanted


def test_fields_that_differ_in_case_only_are_told_by_file_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"st": {"x": 1, "X": 2}, "t": 1}\n')
    told = "of 'st' of '.*a.jsonl': the field 'X' of a STRUCT must be there once"
    with pytest.raises(QueryError, match=told):
        named("json", tmp_path)


def test_csv_tells_types_by_its_first_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;at;day;name;flag;empty\n1;2024-01-01 00:00:01;2024-01-02;x;true;\n")
    assert named("csv", path, delimiter=";") == {
        "id": "BIGINT",
        "at": "TIMESTAMP",
        "day": "DATE",
        "name": "STRING",
        "flag": "BOOLEAN",
        "empty": "STRING",
    }


def test_parquet_tells_what_it_has(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1], pa.int16()),
            "m": pa.array([[("k", 1.0)]], pa.map_(pa.string(), pa.float64())),
            "at": pa.array([datetime(2024, 1, 1)], pa.timestamp("ns", "UTC")),
            "l": pa.array([["x"]], pa.large_list(pa.large_string())),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    assert named("parquet", tmp_path) == {
        "a": "SMALLINT",
        "m": "MAP<STRING, DOUBLE>",
        "at": "TIMESTAMP",
        "l": "ARRAY<STRING>",
    }


@pytest.mark.parametrize(
    ("format", "text", "sentence"),
    [
        ("json", None, "has none yet; list the columns in parentheses"),
        ("csv", "a,b\n", "has none yet"),
        ("csv", "a,A\n1,2\n", "has 'A' twice"),
        ("json", '{"a": 1\n', "cannot be read"),
        ("kafka", "x", "USING parquet, csv, json or replay"),
    ],
)
def test_what_cannot_be_told_is_said(
    format: str, text: str | None, sentence: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / f"a.{format}").write_text(text)
    with pytest.raises(QueryError, match=sentence):
        named(format, tmp_path)


def test_a_script_uses_the_columns_that_were_found(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    rig = Rig(
        f"CREATE STREAM s USING replay OPTIONS (path '{path}') TIMESTAMP BY t; "
        "CREATE QUERY q AS SELECT who.tags[0] AS tag FROM s"
    )
    rig.feed("s", [LINE])
    rig.end()
    rig.assert_view("q", [("b",)])
    with pytest.raises(QueryError, match="TIMESTAMP BY"):
        Rig(f"CREATE STREAM s USING replay OPTIONS (path '{path}') TIMESTAMP BY when_")


@pytest.mark.spark
def test_a_restart_keeps_the_columns_that_the_checkpoint_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.json").write_text('{"k": 1, "t": 1}\n')
    script = f"""
        CREATE STREAM s USING json OPTIONS (path '{folder}') TIMESTAMP BY t;
        CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;
    """
    for turn in range(2):
        with penstock.Session(spark, checkpoint=tmp_path / "checkpoint") as session:
            session.sql(script)
            session.await_idle(timeout=120)
            found = session.catalog.streams["s"].schema
            assert [(f.name, type_name(f.type)) for f in found] == [
                ("k", "BIGINT"),
                ("t", "BIGINT"),
            ]
            shown = session.sql("DESCRIBE s").to_pylist()
            assert "BIGINT" in str(shown)
        if turn == 0:  # a file that comes first and would tell something else
            (folder / "a.json").write_text('{"other": "x", "k": 2, "t": 2}\n')
