"""Functions of ARRAY, STRUCT, MAP and JSON: the engine, the oracle and Spark give the same."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.cql import bind_scalar
from penstock.errors import DataError, QueryError
from penstock.expr.arrow import evaluate
from penstock.expr.library import array_functions, json_texts, nested_values
from penstock.expr.nodes import Call, walk
from penstock.expr.types import parse_type, type_name
from penstock.model import Field, Schema
from penstock.reference.expressions import evaluate as in_oracle
from penstock.spark.types import arrow_type, spark_type
from penstock.testing.times import meant, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INFINITY = math.nan, math.inf
TEXTS = [
    '{"a": 1, "b": ["x", null], "c": {"d": 1.50}}',
    '{"a": "1", "b": "x", "extra": [1]}',
    '{"a": 1.0, "b": [1, {"k": 2}], "c": {"d": 1e2, "f": 10000000}}',
    '{"a": 99999999999, "b": null, "c": null}',
    '{"a": 5, "b": []}',
    '{"a": 7, "b": ["ä\\n\\u0001/\\"\\\\"], "c": {"d": true}}',
    '[1, "two", [3], {"a": 4}]',
    '{"a": ',
    "",
    "null",
    '"text"',
    '{"A": 3}',
]
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "a": ("ARRAY<INT>", [[3, 1, None, 2, 1], [], None, [None], [1], [2, 2], [7, 8, 9]]),
    "b": ("ARRAY<INT>", [[1, None], [1], [2], [None, None], None, [], [9, 7]]),
    "w": ("ARRAY<STRING>", [["b", "a"], [""], None, [None, "ä"], [], ["a", "a b"], ["x", None]]),
    "x": ("ARRAY<DOUBLE>", [[1.5, NAN], [-INFINITY], [NAN, NAN, None], [0.1], None, [], [2.0]]),
    "aa": ("ARRAY<ARRAY<INT>>", [[[1], [2, 3]], [None, [1]], None, [], [[]], [[1], [1]], [[None]]]),
    "s": (
        "STRUCT<p: INT, q: STRUCT<r: STRING>>",
        [(1, ("x",)), (None, None), None, (2, (None,)), (1, ("x",)), (3, ("ü",)), (0, ("",))],
    ),
    "ss": (
        "ARRAY<STRUCT<k: STRING, v: INT>>",
        [[("a", 1), ("b", None)], [], None, [("z", 0)], [("a", 2)], [("c", 1)], [(" ", 5)]],
    ),
    "m": (
        "MAP<STRING, INT>",
        [{"a": 1, "b": None}, {}, None, {"c": 3}, {"a": 2}, {"": 0}, {"a": 5, "b": 1}],
    ),
    "i": ("INT", [1, 2, None, -1, 3, 1, -2]),
    "k": ("STRING", ["a", "b", "a", None, "c", "", "a"]),
    "t": (
        "ARRAY<TIMESTAMP>",
        [
            [datetime(2024, 2, 29, 1, 2, 3, 456789)],
            [],
            None,
            [None],
            [datetime(1970, 1, 1)],
            [],
            [],
        ],
    ),
    "d": (
        "STRUCT<day: DATE, flag: BOOLEAN>",
        [(date(2024, 2, 29), True), None, *[(None, False)] * 5],
    ),
}
SAMPLES = """
s.p | s.q | s.q.r | s['p'] | get(ss, 0).v | m['a'] | m[k] | get(a, i) | get(a, 0) | get(w, 1)
try_element_at(a, -1) | try_element_at(a, 2) | try_element_at(m, k) | element_at(m, 'a')
named_struct('x', i, 'y', k) | struct(i, k AS z, s.p) | struct(i + 1, a) | array(i, 2)
concat(a, array()) | size(array())
array(k, NULL) | map(coalesce(i, 0) + 10, k, 1, 'x') | map('x', a)
map_from_arrays(array('p', 'q'), array(i, 1))
map_from_entries(array(struct('u', i))) | map_keys(m) | map_values(m) | map_entries(m)
map_contains_key(m, k) | map_contains_key(m, 'a') | size(a) | size(m) | cardinality(w)
array_size(a) | array_contains(a, 1) | array_contains(a, i) | array_contains(w, k)
array_contains(aa, array(1)) | array_position(a, 1) | array_position(a, i) | array_position(w, 'a')
array_remove(a, 1) | array_remove(a, i) | array_append(a, i) | array_prepend(a, i)
array_append(w, 'new') | sort_array(a) | sort_array(a, FALSE) | sort_array(w) | sort_array(x)
sort_array(x, false) | sort_array(aa) | sort_array(ss) | array_sort(a) | array_sort(w)
array_sort(x)
array_distinct(a) | array_distinct(x) | array_distinct(aa) | array_min(a) | array_max(a)
array_min(x) | array_max(x) | array_min(w) | array_max(aa) | array_join(w, '-')
array_join(w, ', ', '?') | array_join(w, k) | slice(a, 2, 2) | slice(a, -2, 1) | slice(a, -9, 3)
slice(a, 1, 0) | flatten(aa) | concat(a, b) | concat(a, array(0), b) | a || b | reverse(a)
reverse(w) | array_repeat(k, 2) | array_repeat(a, 1) | array_repeat(i, i) | array_compact(a)
array_compact(w) | array_union(a, b) | array_intersect(a, b) | array_except(a, b)
arrays_overlap(a, b) | sequence(1, 4) | sequence(3, 1) | sequence(1, 9, 4) | sequence(5, -5, -5)
a = b | a <> b | a < b | a >= b | a <=> b | s = named_struct('p', 1, 'q', named_struct('r', 'x'))
x < array(CAST(2 AS DOUBLE)) | s IS NULL | CASE WHEN i = 1 THEN a ELSE b END
coalesce(a, b) | nullif(a, b)
if(i > 0, m, NULL) | a IN (array(1), b) | CAST(a AS ARRAY<STRING>) | CAST(a AS STRING)
CAST(m AS STRING) | CAST(s AS STRING) | CAST(aa AS STRING) | CAST(m AS MAP<STRING, BIGINT>)
CAST(s AS STRUCT<u: BIGINT, v: STRUCT<w: STRING>>) | TRY_CAST(w AS ARRAY<INT>)
to_json(s) | to_json(m) | to_json(a) | to_json(ss) | to_json(t) | to_json(d) | to_json(x)
to_json(struct(w, m)) | split(k, '') | split('a,b,,c,', ',') | split('a1b22c', '[0-9]+')
split('a1b22c', '[0-9]+', 2) | split(k, 'a') | split('a,b,c', ',', 2) | split('abc', '', 2)
"""
JSON_SAMPLES = """
from_json(j, 'a INT, b ARRAY<STRING>') | from_json(j, 'a BIGINT') | from_json(j, 'a DOUBLE')
from_json(j, 'a STRING, b STRING, c STRING') | from_json(j, 'c STRUCT<d: DOUBLE, f: INT>')
from_json(j, 'STRUCT<c: MAP<STRING, STRING>>') | from_json(j, 'MAP<STRING, STRING>')
from_json(j, 'ARRAY<STRING>') | from_json(j, 'a BOOLEAN, c STRUCT<d: BOOLEAN>')
from_json('{"t": "2024-01-02 03:04:05.6", "d": "2024-02-29"}', 't TIMESTAMP, d DATE')
get_json_object(j, '$.a') | get_json_object(j, '$.b[0]') | get_json_object(j, '$.b')
get_json_object(j, '$.c.d') | get_json_object(j, '$[1]') | get_json_object(j, '$')
get_json_object(j, 'a')
get_json_object(j, '$[''a'']') | get_json_object(j, '$.b[1].k') | get_json_object(j, '$.c')
json_array_length(j) | json_object_keys(j) | from_json('{"a": "AQID", "b": 1}', 'a BINARY')
to_json(struct(X'0102' AS b)) | to_json(array(X'FF22', NULL))
"""


def listed(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]


def bound(texts: list[str], columns: dict[str, tuple[str, list[Any]]]) -> list[Any]:
    schema = Schema(tuple(Field(n, parse_type(kind)) for n, (kind, _) in columns.items()))
    return [bind_scalar(text, schema)[0] for text in texts]


def table_of(columns: dict[str, tuple[str, list[Any]]]) -> pa.Table:
    arrays = []
    for kind, values in columns.values():
        type_ = parse_type(kind)
        given = [list(v.items()) if isinstance(v, dict) else v for v in values]
        arrays.append(pa.array(given, type_))
    return pa.table(arrays, names=list(columns))


def plain_rows(columns: dict[str, tuple[str, list[Any]]]) -> list[tuple[Any, ...]]:
    found = [[meant(v, parse_type(kind), "", "") for v in vs] for kind, vs in columns.values()]
    return list(zip(*found, strict=True))


def both(text: str, columns: dict[str, tuple[str, list[Any]]]) -> tuple[Any, list[Any], list[Any]]:
    """Return an expression, what the engine gives, and what the oracle gives."""
    (expr,) = bound([text], columns)
    table = table_of(columns)
    arrays = [column.combine_chunks() for column in table.columns]
    arrays = [a.chunk(0) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    found = [plain(v) for v in evaluate(expr, arrays, table.num_rows).to_pylist()]
    return expr, found, [in_oracle(expr, row) for row in plain_rows(columns)]


JSON = {"j": ("STRING", [*TEXTS, None])}
HALVES = {
    "j": (
        "STRING",
        [
            '{"a": "x\\ud83d!", "b": ["\\ude00", "\\ud83d\\ude00", "\\\\ud83d"], "\\ud83dk": 1}',
        ],
    )
}
"""Half characters, which are '?'; Spark writes some as escapes again, and reads some as null."""
ALL = [
    *((text, COLUMNS) for text in listed(SAMPLES)),
    *((text, JSON) for text in listed(JSON_SAMPLES)),
    *((text, HALVES) for text in listed(JSON_SAMPLES) if "(j" in text),
]


@pytest.mark.parametrize(("text", "columns"), ALL, ids=[f"{text}, {len(c)}" for text, c in ALL])
def test_engine_and_oracle_agree(text: str, columns: dict[str, tuple[str, list[Any]]]) -> None:
    _, found, wanted = both(text, columns)
    assert found == wanted


def test_every_function_of_nested_values_has_a_sample() -> None:
    named = {
        part.name
        for text, columns in ALL
        for expr in bound([text], columns)
        for part in walk(expr)
        if isinstance(part, Call)
    }
    own = (*nested_values.FUNCTIONS, *array_functions.FUNCTIONS, *json_texts.FUNCTIONS)
    missing = {f.name for f in own} - named - {"get_element"}
    assert missing == set()


REFUSED = """
a[9] | a[-1] | element_at(a, 0) | element_at(a, 7) | try_element_at(a, 0) | slice(a, 0, 1)
slice(a, 1, -1) | sequence(1, 5, -1) | map(1, 2, 1, 3) | map(k, 1) | map_from_arrays(a, array(1))
"""


@pytest.mark.parametrize("text", listed(REFUSED))
def test_what_has_no_value_is_an_error(text: str) -> None:
    (expr,) = bound([text], COLUMNS)
    arrays = [c.chunk(0) for c in table_of(COLUMNS).columns]
    with pytest.raises(DataError):
        evaluate(expr, arrays, 7)
    with pytest.raises(DataError):
        [in_oracle(expr, row) for row in plain_rows(COLUMNS)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hash(a)", "must get a value that is no ARRAY, STRUCT or MAP as argument 1"),
        ("xxhash64(k, s)", "must get a value that is no ARRAY, STRUCT or MAP as argument 2"),
        ("concat_ws(',', w)", "of an ARRAY, array_join"),
    ],
)
def test_what_takes_plain_values_says_so(text: str, told: str) -> None:
    with pytest.raises(QueryError, match=told):
        bound([text], COLUMNS)


@pytest.mark.spark
def test_spark_agrees_on_every_sample(spark: SparkSession) -> None:
    wrong = []
    for columns, texts in ((COLUMNS, listed(SAMPLES)), (JSON, listed(JSON_SAMPLES))):
        table = table_of(columns).append_column(
            "_row", pa.array(range(len(next(iter(columns.values()))[1])))
        )
        schema = spark_type(pa.struct([pa.field(f.name, f.type) for f in table.schema]))
        rows = [tuple(r.values()) for r in table.to_pylist(maps_as_pydicts="strict")]
        spark.createDataFrame(rows, schema).coalesce(1).createOrReplaceTempView("nested_rows")
        named = ", ".join(f"{text} AS c{at}" for at, text in enumerate(texts))
        frame = spark.sql(f"SELECT _row, {named} FROM nested_rows ORDER BY _row")
        theirs = frame.toArrow()
        for at, text in enumerate(texts):
            expr, found, _ = both(text, columns)
            has = [plain(v) for v in theirs.column(at + 1).to_pylist()]
            kind = arrow_type(frame.schema[at + 1].dataType)
            if has != found or (kind != expr.type and "INT" not in type_name(kind)):
                wrong.append((text, type_name(expr.type), type_name(kind), found, has))
    assert wrong == []
