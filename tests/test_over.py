"""Window functions as text: what a user can get wrong, what is planned, and the same as Spark's."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.algebra import Over, Rank, Scan, ToStream, Window, is_stream, walk
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql import bind_query, render_plan
from penstock.errors import NotSupportedError, QueryError
from penstock.expr.types import parse_type
from penstock.model import Field, Schema
from penstock.optimizer import optimize
from penstock.session import Session
from penstock.testing import LocalEngine, run_local
from penstock.windows import WindowSpec


def schema(text: str) -> Schema:
    columns = [column.split() for column in text.split(", ")]
    return Schema(tuple(Field(name, parse_type(kind)) for name, kind in columns))


EVENTS = "k STRING, x BIGINT, y DOUBLE, at TIMESTAMP"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = Catalog()
    found.add(StreamDef("a", schema("k STRING, x DOUBLE, n INT, t BIGINT"), "memory", {}, 3))
    found.add(StreamDef("b", schema("k STRING, y BIGINT, u BIGINT"), "memory", {}, 2))
    found.add(StreamDef("e", schema(EVENTS), "memory", {}, 3))
    found.add(TableDef("city", schema("name STRING, lat DOUBLE"), "memory", {}))
    return found


# Mistakes

DESC = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY t DESC)"

WRONG = [
    ("SELECT sum(x) OVER (PARTITION BY k) FROM a", "OVER must say ORDER BY t", "(PARTITION BY k)"),
    ("SELECT sum(x) OVER (ORDER BY tt) FROM a", "there is no column 'tt'; did you mean", "tt"),
    ("SELECT LAG(x, n) OVER (ORDER BY t) FROM a", "must be a whole number of at least 0", "n"),
    ("SELECT LAG(x, 1, k) OVER (ORDER BY t) FROM a", "must have the type of its first", "k"),
    ("SELECT LAG(x) FROM a", "LAG is a window function and must be followed by OVER", "LAG(x)"),
    ("SELECT upper(k) OVER (ORDER BY t) FROM a", "'upper' is not a window function", "upper"),
    ("SELECT medan(x) OVER (ORDER BY t) FROM a", "did you mean 'mean'?", "medan"),
    (
        "SELECT sum(x) OVER (ORDER BY t ROWS BETWEEN 1 PRECEDING AND 3 PRECEDING) FROM a",
        "a frame must not begin after its end",
        "ROWS BETWEEN 1 PRECEDING AND 3 PRECEDING",
    ),
    ("SELECT sum(x) OVER (ORDER BY t ROWS 5 SECONDS PRECEDING) FROM a", "use RANGE", "5 SECONDS"),
    ("SELECT sum(x) OVER (ORDER BY t ROWS -1 PRECEDING) FROM a", "from 0 to 2**60, got -1", "-1"),
    ("SELECT sum(x) OVER (ORDER BY t RANGE 5 DAYS PRECEDING) FROM a", "a bare number", "5 DAYS"),
    ("SELECT sum(x) OVER (ORDER BY t ROWS n PRECEDING) FROM a", "must begin and end at", "n"),
    ("SELECT sum(x) OVER (ORDER BY t ROWS 5) FROM a", "must begin and end at UNBOUNDED", ")"),
    ("SELECT sum(x) OVER w FROM a", "there is no window 'w'; define it", "w"),
    (
        "SELECT sum(x) OVER v FROM a WINDOW w AS (ORDER BY t)",
        "there is no window 'v'; known: w",
        "v",
    ),
    ("SELECT sum(x) OVER w FROM a WINDOW w AS (w ORDER BY t)", "there is no window 'w'", "w"),
    (
        "SELECT sum(x) OVER (w ORDER BY t) FROM a WINDOW w AS (ORDER BY t)",
        "window 'w' has ORDER BY already",
        "(w ORDER BY t)",
    ),
    ("SELECT sum(k) OVER (ORDER BY t) FROM a", "must get a number, got STRING", None),
    ("SELECT NTH_VALUE(x) OVER (ORDER BY t) FROM a", "must have two arguments", None),
    ("SELECT NTH_VALUE(x, 0) OVER (ORDER BY t) FROM a", "of at least 1, got 0", "0"),
    ("SELECT FIRST_VALUE(x, n) OVER (ORDER BY t) FROM a", "must be TRUE (ignore nulls)", "n"),
    (
        "SELECT RANK() OVER (ORDER BY t ROWS 3 PRECEDING) FROM a",
        "RANK has no frame; leave ROWS 3 PRECEDING out",
        "ROWS 3 PRECEDING",
    ),
    (
        "SELECT k FROM a WHERE RANK() OVER (ORDER BY t) < 3",
        "cannot stand in WHERE; use QUALIFY",
        None,
    ),
    ("SELECT k FROM a GROUP BY RANK() OVER (ORDER BY t)", "cannot stand in GROUP BY", None),
    ("SELECT sum(sum(x) OVER (ORDER BY t)) FROM a", "cannot stand inside an aggregate", None),
    ("SELECT sum(RANK() OVER (ORDER BY t)) OVER (ORDER BY t) FROM a", "cannot stand in a wi", None),
    (
        "SELECT k, sum(x), sum(x) OVER (ORDER BY t) FROM a GROUP BY k",
        "must be in GROUP BY or inside an aggregate",
        "sum(x) OVER (ORDER BY t)",
    ),
    ("SELECT k FROM a QUALIFY x > 1", "QUALIFY must use a window function", "x > 1"),
    ("SELECT k FROM a QUALIFY RANK() OVER (ORDER BY t)", "must be a condition", None),
]

REFUSED = [
    ("SELECT LEAD(x) OVER (ORDER BY t) FROM a", "rows that have not come yet; use LAG", "LEAD"),
    ("SELECT LAG(x, -1) OVER (ORDER BY t) FROM a", "LEAD needs rows that have not come", "-1"),
    ("SELECT NTILE(4) OVER (ORDER BY t) FROM a", "a stream has no end", "NTILE"),
    (
        "SELECT sum(x) OVER (ORDER BY t ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM a",
        "a frame with FOLLOWING needs rows that have not come yet",
        "1 FOLLOWING",
    ),
    ("SELECT sum(x) OVER (ORDER BY t GROUPS 5 PRECEDING) FROM a", "use ROWS or RANGE", "GROUPS"),
    ("SELECT count(DISTINCT x) OVER (ORDER BY t) FROM a", "there is no DISTINCT in window", None),
    (
        "SELECT max(x) OVER (ORDER BY t RANGE BETWEEN 3 PRECEDING AND 1 PRECEDING) FROM a",
        "MAX over RANGE BETWEEN must end at CURRENT ROW",
        None,
    ),
    (
        "SELECT FIRST_VALUE(x) IGNORE NULLS OVER (ORDER BY t ROWS 3 PRECEDING) FROM a",
        "IGNORE NULLS is known for LAST_VALUE over any frame",
        None,
    ),
    ("SELECT LAG(x) IGNORE NULLS OVER (ORDER BY t) FROM a", "IGNORE NULLS is known for", None),
    (
        "SELECT sum(x), sum(x) OVER (ORDER BY t) FROM a",
        "put the aggregates into a sub-query in FROM",
        "sum(x) OVER (ORDER BY t)",
    ),
]

SNAPSHOTS = [
    "SELECT sum(x) OVER (ORDER BY x) FROM a",
    "SELECT sum(x) OVER (ORDER BY t, k) FROM a",
    "SELECT sum(x) OVER (ORDER BY t DESC) FROM a",
    "SELECT sum(x) OVER (ORDER BY t) FROM a [RANGE 5]",
    "SELECT LEAD(x) OVER (ORDER BY t) FROM a [RANGE 5]",
    "SELECT count(*) OVER (ORDER BY lat) FROM city",
    "SELECT LAG(n) OVER (ORDER BY n) FROM ISTREAM (SELECT count(*) n FROM a [ROWS 5])",
    f"SELECT k, {DESC} AS r FROM a",
    f"SELECT k FROM a QUALIFY {DESC} = 3",
    f"SELECT k, {DESC} AS r FROM a QUALIFY r <= 3",
    f"SELECT * FROM (SELECT k, {DESC} AS r FROM a) q WHERE r <= 3",
    f"SELECT k FROM (SELECT k, {DESC} AS r FROM a) q WHERE r <= 3 AND r > 1",
    f"WITH w AS (SELECT k, {DESC} AS r FROM a) SELECT k FROM w",
    "SELECT k FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY upper(k) ORDER BY t DESC) < 3",
]
"""Not a stream: rows come and go, or they are ordered by something else than the time."""


@pytest.mark.parametrize("text", SNAPSHOTS)
def test_what_is_no_stream_is_over_snapshots(text: str, catalog: Catalog) -> None:
    plan = bind_query(text, catalog)
    assert any(isinstance(node, Rank) for node in walk(plan))
    assert not any(isinstance(node, Over) for node in walk(plan))
    assert not is_stream(plan)


@pytest.mark.parametrize(
    ("text", "sentence", "marked"), WRONG + REFUSED, ids=[q[0] for q in WRONG + REFUSED]
)
def test_mistakes(text: str, sentence: str, marked: str | None, catalog: Catalog) -> None:
    with pytest.raises(QueryError) as found:
        bind_query(text, catalog)
    error = found.value
    assert isinstance(error, NotSupportedError) == ((text, sentence, marked) in REFUSED)
    assert sentence in error.message
    assert error.start is not None
    underlined = text[error.start : error.end]
    assert underlined == marked if marked is not None else "(" in underlined


# Plans


def test_a_block_with_window_functions_is_a_stream(catalog: Catalog) -> None:
    text = "SELECT k, sum(x) OVER (PARTITION BY k ORDER BY t ROWS 2 PRECEDING) AS s FROM a"
    plan = bind_query(text, catalog)
    assert isinstance(plan, Over)
    assert is_stream(plan)
    assert bind_query(f"ISTREAM ({text})", catalog) == plan
    around = bind_query(f"SELECT * FROM ({text}) q", catalog)
    assert around == Window(plan, WindowSpec())
    windowed = bind_query(f"SELECT * FROM ({text}) q [RANGE 5]", catalog)
    assert windowed == Window(plan, WindowSpec(range=5))


def test_conditions_before_a_function_keep_the_order_of_arrival(catalog: Catalog) -> None:
    text = "SELECT z, RANK() OVER (ORDER BY time) AS r FROM (SELECT x * 2 AS z, t AS time FROM a "
    plan = bind_query(text + "WHERE n > 0) q WHERE z < 5", catalog)
    assert isinstance(plan, Over)
    assert isinstance(plan.input, Scan)
    assert plan.input.predicate is not None
    assert not any(isinstance(n, ToStream) for n in walk(plan))


def test_a_condition_that_can_fail_meets_only_rows_that_reach_it(catalog: Catalog) -> None:
    text = (
        "SELECT n, RANK() OVER (ORDER BY t) AS r FROM (SELECT * FROM a WHERE n <> 0) q "
        "WHERE 10 DIV n > 2"
    )
    rows = [(("k", 1.0, n, t), t) for t, n in enumerate((0, 3, 0, 9, 1))]
    answer = run_local({"q": bind_query(text, catalog)}, {"a": rows})["q"]
    assert sorted((v, t) for v, t, _ in answer) == [((1, 2), 4), ((3, 1), 1)]


def test_a_default_is_evaluated_only_where_it_is_needed(catalog: Catalog) -> None:
    text = "SELECT n, LAG(n, 1, 10 DIV n) OVER (ORDER BY t) AS before FROM a"
    rows = [(("k", 1.0, n, t), t) for t, n in enumerate((5, 0, 3))]
    answer = run_local({"q": bind_query(text, catalog)}, {"a": rows}, cuts=2)["q"]
    assert sorted(v for v, _, _ in answer) == [(0, 5), (3, 0), (5, 2)]


def test_a_view_of_window_functions_is_a_stream_to_its_readers() -> None:
    with Session(autostart=False) as session:
        session.sql(
            """
            CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE VIEW sums AS SELECT k, SUM(x) OVER (PARTITION BY k ORDER BY t) AS total FROM s;
            CREATE QUERY late AS SELECT k, MAX(total) AS top FROM sums [RANGE 5] GROUP BY k;
            CREATE QUERY all_of_them AS SELECT * FROM sums;
            """
        )
        plans = {h.name: h.definition.plan for h in session.handles()}
    over = next(n for n in walk(plans["late"]) if isinstance(n, Over))
    assert Window(over, WindowSpec(range=5)) in walk(plans["late"])
    assert plans["all_of_them"] == Window(over, WindowSpec())


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k, y FROM b QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY u DESC) <= 3",
        "SELECT k, y FROM b QUALIFY 4 > ROW_NUMBER() OVER (PARTITION BY k ORDER BY u DESC)",
        "SELECT k, y FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY u DESC) AS n "
        "FROM b) AS q WHERE 3 >= q.n",
        "WITH q AS (SELECT k, y, ROW_NUMBER() OVER w AS n FROM b WINDOW w AS (PARTITION BY k "
        "ORDER BY u DESC)) SELECT k, y FROM q WHERE n < 4",
    ],
)
def test_the_newest_rows_are_a_window(text: str, catalog: Catalog) -> None:
    plan = bind_query(text, catalog)
    windows = [n for n in walk(plan) if isinstance(n, Window)]
    assert [w.spec for w in windows] == [WindowSpec(rows=3, partition_by=(0,))]
    assert isinstance(windows[0].input, Scan)
    rows = [((k, y, u), u) for u, (k, y) in enumerate(zip("aabaabbbc", range(9), strict=True))]
    same = bind_query("SELECT k, y FROM b [PARTITION BY k ROWS 3]", catalog)
    answers = run_local({"q": plan, "same": same}, {"b": rows}, cuts=4)
    assert sorted(answers["q"]) == sorted(answers["same"])


def test_a_condition_on_the_partition_goes_into_the_source(catalog: Catalog) -> None:
    for keys, moves in (("k", True), ("k, n", True), ("n", False), ("upper(k)", False)):
        inner = f"SELECT k, sum(x) OVER (PARTITION BY {keys} ORDER BY t) AS s FROM a"
        for window, passes in (("", True), ("[RANGE 5]", True), ("[ROWS 5]", False)):
            text = f"SELECT * FROM ({inner}) q {window} WHERE k = 'a'"
            plan = optimize({"q": bind_query(text, catalog)})["q"]
            scan = next(n for n in walk(plan) if isinstance(n, Scan))
            assert (scan.predicate is not None) == (moves and passes), text


def test_explain_shows_the_functions(catalog: Catalog) -> None:
    plan = bind_query(
        "SELECT k, AVG(y) OVER (PARTITION BY k ORDER BY at RANGE INTERVAL '5' MINUTES PRECEDING) "
        "AS m, LAG(x, 2, 0) OVER (ORDER BY at) AS before FROM e QUALIFY m > 1",
        catalog,
    )
    mean = "avg(y) OVER (PARTITION BY k RANGE 5 MINUTES PRECEDING)"
    assert render_plan(plan, patterns=True).splitlines() == [
        f"Over k, {mean} AS m, lag(x, 2, 0) OVER () AS before where {mean} > 1.0  -- monotonic",
        "  Scan e (k, x, y, at) time at  -- monotonic",
    ]
    with Session(autostart=False) as session:
        session.sql(
            """
            CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE QUERY q AS SELECT k, SUM(x) OVER (PARTITION BY k ORDER BY t) AS s FROM s;
            """
        )
        text = session.query("q").explain("physical")
        assert "Over sum(#1) OVER (PARTITION BY #0)" in text
        assert "by hash" in text or "hash" in text


def test_state_follows_the_frames(catalog: Catalog) -> None:
    """Of a long stream only the rows that frames can reach are kept, whatever came before."""
    queries = {
        "SELECT SUM(y) OVER (PARTITION BY k ORDER BY u ROWS 3 PRECEDING) AS s FROM b": 4,
        "SELECT SUM(y) OVER (PARTITION BY k ORDER BY u RANGE 10 PRECEDING) AS s FROM b": 12,
        "SELECT MAX(y) OVER (PARTITION BY k ORDER BY u) AS s FROM b": 4,
        "SELECT LAG(y) OVER (PARTITION BY k ORDER BY u) AS s FROM b": 4,
    }
    for text, most in queries.items():
        settings = {"merge.strategy": "always"}
        engine = LocalEngine({"q": bind_query(text, catalog)}, settings=settings)
        for first in range(0, 2000, 100):
            engine.batch({"b": [("ab"[i % 2], i, i) for i in range(first, first + 100)]})
        (state,) = (s for s in engine._states[0].values() if "rows" in s["runs"])
        kept = sum(run["rows"] for run in state["runs"]["rows"])
        assert kept <= 2 * most, text


# The same as Spark's window functions

W = "PARTITION BY k ORDER BY at"
QUERIES = [
    f"SELECT k, at, AVG(y) OVER ({W} ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS m FROM e",
    f"SELECT k, at, SUM(x) OVER ({W} ROWS 3 PRECEDING) AS s, COUNT(x) OVER ({W}) AS n FROM e",
    f"SELECT at, SUM(y) OVER ({W} RANGE BETWEEN INTERVAL '5' MINUTES PRECEDING AND CURRENT ROW) "
    "AS s FROM e",
    "SELECT at, MIN(x) OVER (ORDER BY at ROWS 7 PRECEDING) AS lo, MAX(k) OVER (ORDER BY at ROWS "
    "2 PRECEDING) AS hi FROM e",
    f"SELECT at, MAX(y) OVER ({W} RANGE BETWEEN INTERVAL 90 SECONDS PRECEDING AND CURRENT ROW) "
    "AS top FROM e WHERE x > -3",
    f"SELECT at, ROW_NUMBER() OVER ({W}) AS n, RANK() OVER ({W}) AS r, DENSE_RANK() OVER ({W}) "
    "AS d FROM e",
    f"SELECT at, x - LAG(x) OVER ({W}) AS d, LAG(k, 3, 'none') OVER (ORDER BY at) AS l FROM e",
    f"SELECT at, FIRST_VALUE(x) OVER ({W} ROWS 4 PRECEDING) AS f, LAST_VALUE(x) OVER ({W}) AS l, "
    f"NTH_VALUE(x, 2) OVER ({W} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS n FROM e",
    f"SELECT at, LAST_VALUE(x) IGNORE NULLS OVER ({W}) AS l, FIRST_VALUE(x, TRUE) OVER ({W}) AS f "
    "FROM e",
    f"SELECT at, STDDEV(y) OVER ({W} ROWS 5 PRECEDING) AS s, VAR_POP(x) OVER ({W}) AS v FROM e",
    f"SELECT at, MIN(x) OVER ({W} ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING) AS s, MAX(x) OVER "
    f"({W} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS m FROM e",
    f"SELECT at, COUNT(*) OVER ({W} RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING AND INTERVAL 1 "
    "MINUTE PRECEDING) AS n, SUM(x) OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 5 PRECEDING AND "
    "2 PRECEDING) AS s FROM e",
    "SELECT at, SUM(x) OVER w AS s, SUM(x) OVER v AS t, COUNT(*) FILTER (WHERE x > 0) OVER w AS n "
    "FROM e WINDOW w AS (PARTITION BY x % 3 ORDER BY at ROWS 4 PRECEDING), v AS (ORDER BY at)",
    f"SELECT k, n, at FROM (SELECT k, at, ROW_NUMBER() OVER ({W}) AS n FROM e) q WHERE n <= 3",
    f"SELECT k, x, at FROM (SELECT *, ROW_NUMBER() OVER ({W} DESC) AS n FROM e) q WHERE n <= 2",
    f"SELECT k, x, n FROM (SELECT *, ROW_NUMBER() OVER ({W} DESC) AS n FROM e) q WHERE n = 1",
    f"SELECT at, s - LAG(s) OVER ({W}) AS d FROM (SELECT k, at, SUM(x) OVER ({W} ROWS 2 PRECEDING)"
    " AS s FROM e) q",
]


@pytest.mark.spark
def test_the_same_as_spark(spark: Any, tmp_path: Path) -> None:
    """Spark's batch SQL and Penstock's streaming, over the same rows and with the same text."""
    dice = random.Random("over")
    start = datetime(2024, 3, 1, tzinfo=UTC)
    rows, at = [], start
    for _ in range(400):
        at += timedelta(seconds=dice.choice([1, 5, 20, 60]), microseconds=dice.randint(0, 5))
        number = dice.choice([None, *range(-5, 9)])
        rows.append((dice.choice("abcde"), number, dice.choice([None, 0.1, 2.5, -7.0, 1e6]), at))
    file = tmp_path / "e.csv"
    lines = [
        ",".join("" if v is None else str(v) for v in (*row[:3], row[3].replace(tzinfo=None)))
        for row in rows
    ]
    file.write_text("\n".join(["k,x,y,at", *lines]) + "\n")
    spark.createDataFrame(rows, EVENTS.replace("BIGINT", "LONG")).createOrReplaceTempView("e")
    create = "".join(f"CREATE QUERY q{i} INTO kept AS {text};\n" for i, text in enumerate(QUERIES))
    with Session(spark, settings={"batch.rows": 150, "shards": 2}) as session:
        session.sql(
            f"CREATE STREAM e ({EVENTS}) USING replay OPTIONS (path '{file}') TIMESTAMP BY at;"
            f"CREATE SINK kept USING memory OPTIONS (changes 'intervals');{create}"
        )
        assert session.await_end(timeout=200)
        for i, text in enumerate(QUERIES):
            expected = [tuple(row) for row in spark.sql(text).collect()]
            assert len(expected) >= 5
            compare(at_the_end(session.query(f"q{i}").rows()), expected, text)


def at_the_end(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return all elements of a stream, or what a relation holds in the end."""
    names = [n for n in table.column_names if not n.startswith("_")]
    if "_end" in table.column_names:
        table = table.filter(table.column("_end").is_null())
    return list(zip(*(table.column(n).to_pylist() for n in names), strict=True))


def compare(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], text: str) -> None:
    assert len(found) == len(expected), text
    for mine, theirs in zip(sorted(found, key=_order), sorted(expected, key=_order), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6), (text, mine, theirs)
            else:
                assert _plain(a) == _plain(b), (text, mine, theirs)


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _order(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Order rows by what is exact in them: every row has a time or a key of its own."""
    return tuple(str(_plain(v)) for v in row if not isinstance(v, float))
