"""ARRAY, STRUCT and MAP on their whole way: read, kept as keys and in state, asked, delivered."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import penstock
from penstock.asking.encoding import decode, encode
from penstock.catalog import StreamDef
from penstock.errors import ConfigError, DataError
from penstock.expr.types import parse_type
from penstock.model import Field, Schema
from penstock.nested.comparable import comparable
from penstock.sinks.file_encodings import ENCODINGS
from penstock.sinks.sqlite import values_of
from penstock.sources.formats import check_stream
from penstock.sources.pushed import as_table
from penstock.sources.readers import json_lines as json_reader
from penstock.sources.readers import read_file
from penstock.sources.readers.conversion import plain as fitted
from penstock.testing import Rig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE STREAM s (id INT, tags ARRAY<STRING>, p STRUCT<x: DOUBLE, y: STRUCT<z: INT>>,
                 m MAP<STRING, INT>, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE QUERY plain AS SELECT id, get(tags, 0) AS first, s.p.x, p.y.z, m['a'] AS a,
  tags || array('z') AS more, STRUCT(id, p.x AS w) AS short, map('k', id) AS made, m FROM s;
CREATE QUERY grouped AS SELECT tags, p.y, COUNT(*) AS n FROM s [RANGE 10 SECONDS]
  GROUP BY tags, p.y;
CREATE QUERY several AS SELECT DISTINCT p FROM s [RANGE 3 SECONDS];
CREATE QUERY joined AS SELECT a.id, b.id AS other, b.m FROM s [RANGE 10 SECONDS] a
  JOIN s [RANGE 5 SECONDS] b ON a.tags = b.tags AND a.id < b.id;
CREATE QUERY outer_joined AS SELECT a.id, b.m FROM s [RANGE 10 SECONDS] a
  LEFT JOIN s [RANGE 5 SECONDS] b ON a.p = b.p AND b.id > 1;
CREATE QUERY born AS ISTREAM (SELECT m, tags FROM s [ROWS 2]);
CREATE QUERY top AS SELECT p, m FROM s [RANGE 10 SECONDS] ORDER BY p DESC, tags LIMIT 2;
CREATE QUERY without AS SELECT tags, p FROM s [RANGE 10 SECONDS]
  EXCEPT SELECT tags, p FROM s [RANGE 1 SECONDS];
CREATE QUERY numbered AS SELECT id, COUNT(*) OVER (PARTITION BY tags ORDER BY t) AS n FROM s;
CREATE QUERY both AS SELECT tags FROM s [ROWS 3] UNION ALL SELECT array('x') FROM s [ROWS 1];
CREATE QUERY counted AS SELECT COUNT(DISTINCT tags) AS n, COUNT(p) AS c FROM s [RANGE 10 SECONDS];
CREATE QUERY sessions AS SELECT p, COUNT(*) AS n FROM s [PARTITION BY p SESSION 1 SECOND]
  GROUP BY p;
"""
ROWS: list[tuple[Any, ...]] = [
    (1, ["b", "a"], {"x": 0.0, "y": {"z": 2}}, {"a": 1}, "10:00:00"),
    (2, ["b", "a"], {"x": -0.0, "y": {"z": 2}}, {"b": 1, "a": None}, "10:00:01"),
    (3, ["b", None], {"x": float("nan"), "y": None}, None, "10:00:01"),
    (4, ["b", None], None, {}, "10:00:02"),
    (5, [], {"x": float("nan"), "y": None}, {"a": 1}, "10:00:02"),
    (6, ["a"], {"x": 1.0, "y": {"z": None}}, {"a": 1}, "10:00:07"),
    (7, ["b", "a"], {"x": 1.0, "y": None}, {"a": 1}, "10:00:07"),
]


def test_nested_values_go_through_every_operator_under_every_setting() -> None:
    rig = Rig(SCRIPT)
    rig.feed("s", ROWS)
    rig.end()
    rig.assert_oracle()
    assert rig.rows("grouped")[0] == (["b", "a"], {"z": 2}, 2)
    rig.under_all_settings({"lifetime": "negative"})


def test_the_table_that_qualifies_a_column_goes_before_a_struct_of_its_name() -> None:
    rig = Rig(
        "CREATE STREAM s (s STRUCT<x: INT, s: INT>, x INT, t BIGINT) USING memory TIMESTAMP BY t; "
        "CREATE QUERY q AS SELECT s.x, s.s, s.s.x AS inner_x, s.s.s AS inner_s FROM s"
    )
    rig.feed("s", [((1, 2), 3, 4)])
    rig.end()
    rig.assert_view("q", [(3, (1, 2), 1, 2)])


NESTED = Schema(
    (
        Field("id", pa.int32()),
        Field("a", parse_type("ARRAY<INT>")),
        Field("s", parse_type("STRUCT<x: DOUBLE, at: TIMESTAMP, w: ARRAY<STRING>>")),
        Field("t", pa.int64()),
    )
)
LINES = [
    '{"id": 1, "a": [1, null], "s": {"x": 1.5, "at": "2024-01-02T03:04:05Z", "w": ["k"]}, "t": 1}',
    '{"id": 2, "a": [], "s": {}, "t": 2}',
    '{"id": 3, "a": null, "s": null, "t": 3}',
    '{"id": 4, "t": 4}',
    '{"id": 5, "a": [7], "s": {"x": 2, "extra": {"id": 1}, "w": []}, "t": 5}',
]
BAD = [
    '{"id": 6, "a": [1.5], "t": 6}',
    '{"id": 7, "a": 1, "t": 7}',
    '{"id": 8, "a": {"0": 1}, "t": 8}',
    '{"id": 9, "s": {"at": "yesterday"}, "t": 9}',
    '{"id": 10, "s": {"x": 1, "x": 2}, "t": 10}',
    '{"id": 11, "s": {"x": true}, "t": 11}',
]


def read(lines: list[str], schema: Schema, path: Path) -> tuple[list[dict[str, Any]], int]:
    path.write_text("\n".join(lines) + "\n")
    definition = StreamDef("s", schema, "replay", {"path": str(path)}, len(schema) - 1)
    rows, rejected = [], 0
    for part in read_file(definition, "json", str(path), 0, path.stat().st_size, None):
        rows += part.table.to_pylist()
        rejected += part.rejected.num_rows
    return rows, rejected


def test_json_is_read_alike_in_blocks_and_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, rejected = read(LINES, NESTED, tmp_path / "f.jsonl")
    assert (rejected, len(fast)) == (0, 5)
    first = list(fast[0].values())
    assert first[1] == [1, None]
    assert first[2] == {"x": 1.5, "at": datetime(2024, 1, 2, 3, 4, 5), "w": ["k"]}
    mixed, rejected = read(LINES + BAD, NESTED, tmp_path / "g.jsonl")
    assert (mixed, rejected) == (fast, len(BAD))
    monkeypatch.setattr(json_reader, "_attempt", lambda *_: None)
    assert read(LINES + BAD, NESTED, tmp_path / "h.jsonl") == (fast, len(BAD))


def test_a_map_is_a_json_object(tmp_path: Path) -> None:
    schema = Schema((Field("m", parse_type("MAP<STRING, ARRAY<INT>>")), Field("t", pa.int64())))
    lines = ['{"m": {"k": [1], "l": null}, "t": 1}', '{"m": {"k": 1}, "t": 2}', '{"m": [], "t": 3}']
    rows, rejected = read(lines, schema, tmp_path / "m.jsonl")
    assert [next(iter(row.values())) for row in rows] == [[("k", [1]), ("l", None)]]
    assert rejected == 2


def test_columns_of_files_become_the_declared_types_or_mark_their_rows() -> None:
    given = pa.array(
        [{"Y": [300], "x": 1, "more": 0}, {"Y": [1], "x": None, "more": 1}, None],
        pa.struct([("Y", pa.large_list(pa.int64())), ("x", pa.int64()), ("more", pa.int8())]),
    )
    found = fitted(given, parse_type("STRUCT<x: INT, y: ARRAY<TINYINT>, z: STRING>"))
    assert found is not None
    assert found[0].to_pylist() == [None, {"x": None, "y": [1], "z": None}, None]
    assert found[1].tolist() == [True, False, False]
    assert fitted(given, parse_type("ARRAY<INT>")) is None
    assert fitted(given, parse_type("STRUCT<x: ARRAY<INT>>")) is None


def test_csv_has_no_nested_columns(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "x.csv")}
    with pytest.raises(ConfigError, match=r"read JSON text with from_json\(a, 'ARRAY<INT>'\)"):
        check_stream(StreamDef("s", NESTED, "replay", options, 3), data=False)


@pytest.mark.parametrize(
    "row",
    [
        (1, ["x"], None, 1),
        (1, "12", None, 1),
        (1, [1.5], None, 1),
        (1, [], {"unknown": 1}, 1),
        (1, [], (1.0,), 1),
        (1, [], {"at": "yesterday"}, 1),
        (1, {1: 2}, None, 1),
    ],
)
def test_pushed_values_that_do_not_fit_are_named(row: tuple[Any, ...]) -> None:
    with pytest.raises(DataError, match=r"of row 1 must be (ARRAY|STRUCT)"):
        as_table([(1, [], None, 1), row], NESTED)


def test_pushed_values_are_dicts_lists_and_tuples() -> None:
    at = datetime(2024, 1, 2)
    rows = [(1, (1, None), {"X": 2, "AT": "2024-01-02"}, 1), (2, None, (None, at, ["k"]), 2)]
    assert [list(row.values())[1:3] for row in as_table(rows, NESTED).to_pylist()] == [
        [[1, None], {"x": 2.0, "at": at, "w": None}],
        [None, {"x": None, "at": at, "w": ["k"]}],
    ]


def deliverable() -> pa.Table:
    kind = parse_type("STRUCT<n: INT, w: ARRAY<STRING>>")
    return pa.table(
        {
            "s": pa.array([{"n": 1, "w": ['a"b', None]}, None, {"n": None, "w": None}], kind),
            "m": pa.array([[("k\n", 1.5)], [], None], parse_type("MAP<STRING, DOUBLE>")),
            "t": pa.array([[0], [None], None], parse_type("ARRAY<TIMESTAMP>")),
            "i": pa.array([{"a b": 1}, None, {"a b": None}], parse_type("STRUCT<`a b`: BIGINT>")),
        }
    )


AS_JSON = [
    {"s": {"n": 1, "w": ['a"b', None]}, "m": {"k\n": 1.5}, "t": ["1970-01-01T00:00:00"]},
    {"s": None, "m": {}, "t": [None]},
    {"s": {"n": None, "w": None}, "m": None, "t": None},
]
for _row, _inner in zip(AS_JSON, ({"a b": 1}, None, {"a b": None}), strict=True):
    _row["i"] = _inner


@pytest.mark.parametrize("format", sorted(ENCODINGS))
def test_files_hold_what_was_delivered(format: str, tmp_path: Path) -> None:
    table, path = deliverable(), tmp_path / "part"
    path.write_bytes(ENCODINGS[format].encode(table))
    types = {f.name: f.type for f in table.schema}
    assert list(ENCODINGS[format].read(path, types)) == AS_JSON
    if format == "parquet":
        kinds = pyarrow.parquet.read_table(path).schema
        assert kinds.field("m").type == parse_type("MAP<STRING, DOUBLE>")
        assert kinds.field("t").type.value_type == pa.timestamp("us", "UTC")


def test_databases_get_json() -> None:
    columns = values_of(deliverable())
    assert [None if v is None else json.loads(v) for v in columns[1]] == [{"k\n": 1.5}, {}, None]


def test_types_of_plans_are_written_into_checkpoints() -> None:
    for text in ("ARRAY<MAP<STRING, STRUCT<a: INT, `b c`: DATE>>>", "ARRAY<VOID>"):
        assert decode(json.loads(json.dumps(encode(parse_type(text))))) == parse_type(text)


def test_bytes_of_values_compare_as_the_values_do() -> None:
    kind = parse_type("ARRAY<STRUCT<a: DOUBLE, b: STRING>>")
    nan = float("nan")
    ascending: list[Any] = [
        [],
        [None],
        [None, None],
        [(None, None)],
        [(None, "")],
        [(-1.0, "z")],
        [(0.0, None)],
        [(0.0, "")],
        [(0.0, "\0")],
        [(0.0, "\0\0")],
        [(0.0, "\0a")],
        [(0.0, "a")],
        [(0.0, "a"), None],
        [(float("inf"), "a")],
        [(nan, "a")],
    ]
    found = comparable(pa.array(ascending, kind)).to_pylist()
    assert found == sorted(set(found))
    same = comparable(pa.array([[(-0.0, "a")], [(-nan, "a")]], kind)).to_pylist()
    assert same == [found[11], found[14]]
    assert comparable(pa.array([None, *ascending], kind)[3:]).to_pylist() == found[2:]


@pytest.mark.spark
def test_spark_carries_nested_values_and_a_checkpoint_keeps_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    lines = [
        {"id": i, "p": {"x": i % 2, "w": ["a", None]}, "m": {"k": i}, "t": i} for i in range(6)
    ]
    (source / "1.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = f"""
        CREATE STREAM s (id INT, p STRUCT<x: INT, w: ARRAY<STRING>>, m MAP<STRING, INT>, t BIGINT)
          USING replay OPTIONS (path '{source}/1.json') TIMESTAMP BY t;
        CREATE SINK out USING parquet OPTIONS (path '{tmp_path}/out', changes 'view');
        CREATE QUERY q INTO out AS SELECT p, COUNT(*) AS n FROM s GROUP BY p;
        CREATE MATERIALIZED VIEW v AS SELECT id, m, p.w[0] AS first FROM s [ROWS 2];
    """
    for _ in range(2):  # the second time from the checkpoint
        with penstock.Session(spark, checkpoint=tmp_path / "checkpoint") as session:
            session.sql(script)
            assert session.await_end(timeout=120)
            asked = session.sql("SELECT m['k'] AS k, first FROM v", one_time=True)
            asked = asked.to_arrow().to_pylist()
        assert sorted(asked, key=lambda row: row["k"]) == [
            {"k": 4, "first": "a"},
            {"k": 5, "first": "a"},
        ]
    found = pyarrow.parquet.read_table(tmp_path / "out" / "q-view.parquet").to_pylist()
    assert sorted(found, key=str) == [
        {"p": {"x": 0, "w": ["a", None]}, "n": 3},
        {"p": {"x": 1, "w": ["a", None]}, "n": 3},
    ]
