"""Functions of the user's own: declaring, calling, failing, and who may import what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.asking.encoding import decode, encode
from penstock.catalog import Catalog
from penstock.cql import bind, bind_query, parse_script
from penstock.errors import ConfigError, DataError, NotSupportedError, QueryError, StateError
from penstock.expr import own
from penstock.expr.nodes import walk
from penstock.session import Session
from penstock.spark.columns import is_same_in_spark
from penstock.testing import Rig
from tests import own_plant

STREAM = "CREATE STREAM s (k STRING, x BIGINT, y DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;"
MEAN = "CREATE FUNCTION m (x BIGINT) RETURNS DOUBLE USING 'tests.own_plant:Mean';"


def function(name: str, signature: str = "(x DOUBLE) RETURNS DOUBLE", takes: str = "NUMPY") -> str:
    return f"CREATE FUNCTION f {signature} USING 'tests.own_plant:{name}' TAKES {takes};"


def answers(script: str, rows: list[Any]) -> list[Any]:
    """Return what query q gives, after the oracle and all settings have said the same."""
    rig = Rig(STREAM + script)
    rig.feed("s", rows)
    rig.end()
    rig.assert_oracle(within=0.0)
    rig.under_all_settings()
    return sorted(rig._engine.answers["q intervals"], key=repr)


def run(rig: Rig, rows: list[Any]) -> None:
    rig.feed("s", rows)
    rig.end()


def declared(script: str) -> Catalog:
    catalog = Catalog()
    for parsed in parse_script(STREAM + script):
        catalog.add(bind(parsed, catalog).definition)
    return catalog


# Calls


def test_nulls_reach_functions_over_arrow_only() -> None:
    rows = [("a", None, None, 1), ("b", 3, 1.5, 2)]
    found = answers(
        "CREATE FUNCTION z (x BIGINT) RETURNS BIGINT USING 'tests.own_plant:or_zero';"
        "CREATE FUNCTION d (y DOUBLE, x BIGINT) RETURNS DOUBLE USING 'tests.own_plant:scaled' "
        "TAKES NUMPY;"
        "CREATE QUERY q AS SELECT z(x) AS a, d(y, x) AS b FROM s [NOW]",
        rows,
    )
    assert found == [((0, None), 1, 2), ((3, 4.5), 2, 3)]


def test_functions_of_ones_own_stand_in_and_around_sub_queries_that_are_values() -> None:
    found = answers(
        MEAN + "CREATE FUNCTION z (x BIGINT) RETURNS BIGINT USING 'tests.own_plant:or_zero';"
        "CREATE QUERY q AS SELECT z((SELECT MAX(x) FROM s [NOW] b WHERE b.x > 3)) AS a, "
        "(SELECT m(z(b.x)) FROM s [RANGE 5] b WHERE b.k = s.k GROUP BY b.k) AS c FROM s [NOW]",
        [("a", 2, 0.0, 1), ("b", 9, 0.0, 2), ("a", 4, 0.0, 3)],
    )
    assert found == [((0, 2.0), 1, 2), ((4, 3.0), 3, 4), ((9, 9.0), 2, 3)]


@pytest.mark.parametrize("condition", ["y > (SELECT m(x) FROM s)", "y IN (SELECT m(x) FROM s)"])
def test_what_an_aggregate_of_ones_own_is_of_no_rows_is_not_guessed(condition: str) -> None:
    with pytest.raises(NotSupportedError, match="must stand beside GROUP BY in a sub-query"):
        bind_query(f"SELECT x FROM s [NOW] WHERE {condition}", declared(MEAN))


def test_series_of_pandas_may_have_nulls() -> None:
    found = answers(
        "CREATE FUNCTION p (x BIGINT) RETURNS STRING USING 'tests.own_plant:series' TAKES PANDAS;"
        "CREATE QUERY q AS SELECT p(x) AS a FROM s [NOW]",
        [("a", -1, 0.0, 1), ("a", 4, 0.0, 2)],
    )
    assert found == [(("4",), 2, 3), ((None,), 1, 2)]


def test_times_are_those_of_numpy() -> None:
    rig = Rig(
        "CREATE STREAM e (t TIMESTAMP) USING memory TIMESTAMP BY t;"
        "CREATE FUNCTION n (t TIMESTAMP) RETURNS TIMESTAMP USING 'tests.own_plant:next_day' "
        "TAKES NUMPY; CREATE QUERY q AS ISTREAM (SELECT n(t) AS u FROM e [NOW])"
    )
    rig.feed("e", [("2024-01-31 12:00:00",)])
    rig.end()
    rig.assert_stream("q", [("2024-02-01 12:00:00", "2024-01-31 12:00:00")])
    rig.assert_oracle()


def test_a_constant_is_computed_and_converted() -> None:
    catalog = declared(function("squared"))
    (call,) = bind_query("SELECT f(3) AS a FROM s [NOW]", catalog).exprs
    assert call.name == "tests.own_plant:squared/numpy"
    assert [a.type for a in call.args] == [pa.float64()]
    assert not is_same_in_spark(call)


def test_a_guard_keeps_rows_away() -> None:
    found = answers(
        function("root")
        + "CREATE QUERY q AS SELECT CASE WHEN y >= 0 THEN f(y) END AS a FROM s [NOW] "
        "WHERE x > 1 AND f(y + 1) > 0.5",
        [("a", 1, -9.0, 1), ("a", 2, 4.0, 2), ("a", 2, -0.25, 3)],
    )
    assert found == [((2.0,), 2, 3), ((None,), 3, 4)]


def test_the_oracle_finds_a_function_that_looks_at_other_rows() -> None:
    rig = Rig(STREAM + function("of_all_rows") + "CREATE QUERY q AS SELECT f(y) AS a FROM s [NOW]")
    rig.feed("s", [("a", 1, 1.0, 1), ("a", 1, 3.0, 2)])
    rig.end()
    with pytest.raises(AssertionError, match="not as expected"):
        rig.assert_oracle()


def test_a_priority_may_call() -> None:
    catalog = declared(
        function("squared", "(x BIGINT) RETURNS BIGINT")
        + "CREATE STREAM p (x INT, t BIGINT) USING memory TIMESTAMP BY t PRIORITY f(x);"
    )
    priority = catalog.streams["p"].priority
    assert priority is not None
    assert "tests.own_plant:squared/numpy" in [getattr(e, "name", "") for e in walk(priority)]


# Failing


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "root",
            r"function tests\.own_plant:root must give a value for every row, but for \(-4\.0\) "
            r"it raised ValueError: .*; let it give null there, or use CASE",
        ),
        ("too_short", r"as many values as it gets, but it got 3 rows and gave 2"),
        ("of_another_type", r"must give DOUBLE, as declared, got BIGINT; convert its result, or"),
        ("no_array", r"must give an array \(of Arrow, NumPy or pandas\), got int"),
        (
            "fails_for_many",
            r"fails for \d+ rows together, and for no half of them: ValueError: too",
        ),
    ],
)
def test_a_failure_names_the_function_and_the_row(name: str, told: str) -> None:
    rig = Rig(STREAM + function(name) + "CREATE QUERY q AS SELECT f(y) AS a FROM s [NOW]")
    with pytest.raises(DataError, match=told):
        run(rig, [("a", 1, 1.0, 1), ("a", 1, -4.0, 2), ("a", 1, 9.0, 3)])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Failing", r"must take in every row, but for \(13\) add raised ValueError: no 13, please"),
        ("Replacing", r"add of the aggregate .* must leave states\['total'\] an array of BIGINT"),
    ],
)
def test_a_failing_aggregate_names_itself_and_the_row(name: str, told: str) -> None:
    rig = Rig(
        STREAM
        + f"CREATE FUNCTION f (x BIGINT) RETURNS DOUBLE USING 'tests.own_plant:{name}';"
        + "CREATE QUERY q AS SELECT f(x) AS a FROM s [ROWS 2]"
    )
    with pytest.raises(DataError, match=told):
        run(rig, [("a", 1, 1.0, 1), ("a", 13, -4.0, 2), ("a", 1, 9.0, 3)])


# Declaring


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'no_such:f'",
            r"'no_such' cannot be: ModuleNotFoundError.* put its folder on the PYTHONPATH, and on "
            r"a cluster install it where the workers are",
        ),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:squard'",
            r"no function 'squard' in the module 'tests\.own_plant'; did you mean 'squared'",
        ),
        ("CREATE FUNCTION f (x INT) RETURNS INT USING 'squared'", "must be 'module:name'"),
        ("CREATE FUNCTION f (x INT) RETURNS INT USING '__main__:f'", "a module of its own"),
        ("CREATE FUNCTION f (x INT) RETURNS INT", "USING 'module:name'"),
        ("CREATE FUNCTION f (x INT) USING 'a:b'", "must be followed by RETURNS and a type"),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:NOT_CALLABLE'",
            "must be a function or a class, got int",
        ),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:squared' TAKES LISTS",
            "a function TAKES ARROW, PANDAS, NUMPY, got LISTS",
        ),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:Mean' TAKES ARROW",
            "an aggregate takes arrays of NumPy",
        ),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:NoState'",
            "must say what its state is",
        ),
        (
            "CREATE FUNCTION f (x INT) RETURNS INT USING 'tests.own_plant:NoMerge'",
            "has no merge",
        ),
        (
            "CREATE FUNCTION avg (x INT) RETURNS INT USING 'tests.own_plant:squared'",
            "'avg' is a function of Penstock",
        ),
        (
            "CREATE OR REPLACE FUNCTION IF NOT EXISTS f (x INT) RETURNS INT USING 'a:b'",
            "contradict one another",
        ),
    ],
)
def test_a_wrong_declaration_is_told_at_once(statement: str, told: str) -> None:
    with pytest.raises(QueryError, match=told):
        declared(statement)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (
            "SELECT f(k) AS a FROM s [NOW]",
            r"f\(x DOUBLE\) must get DOUBLE as argument 1, got STRING",
        ),
        ("SELECT f(x, y) AS a FROM s [NOW]", "must get 1 argument, got 2"),
        ("SELECT f(DISTINCT x) AS a FROM s [NOW]", "belong to aggregates"),
        ("SELECT ff(x) AS a FROM s [NOW]", "did you mean 'f'"),
        ("SELECT m(x) OVER (ORDER BY t) AS a FROM s", "OVER is not known with functions of your"),
        ("SELECT m(DISTINCT x) AS a FROM s [ROWS 2]", "DISTINCT is not known in aggregates of"),
        ("SELECT k FROM s [NOW] WHERE m(x) > 1", "cannot stand in WHERE"),
    ],
)
def test_a_wrong_call_is_told(query: str, told: str) -> None:
    catalog = declared(function("squared") + MEAN)
    with pytest.raises((QueryError, NotSupportedError), match=told):
        bind_query(query, catalog)


def test_functions_are_listed_replaced_and_dropped() -> None:
    with Session(autostart=False) as session:
        session.sql(STREAM + function("squared"))
        session.sql("CREATE QUERY q AS SELECT f(y) AS a FROM s [NOW]")
        shown = session.sql("SHOW FUNCTIONS").to_pylist()
        assert {
            "function": "f",
            "own": "f(x DOUBLE) RETURNS DOUBLE USING 'tests.own_plant:squared'",
        } in shown
        assert session.sql("DESCRIBE f").column("value").to_pylist() == [
            "DOUBLE", "DOUBLE", "tests.own_plant:squared", "NUMPY"
        ]  # fmt: skip
        assert session.sql("SHOW CREATE FUNCTION f").startswith("CREATE FUNCTION f (x DOUBLE)")
        with pytest.raises(QueryError, match="function 'f' exists"):
            session.sql(function("doubled"))
        session.sql(function("doubled").replace("CREATE", "CREATE OR REPLACE"))
        assert session.catalog.functions["f"].place == "tests.own_plant:doubled"
        assert "squared" in session.sql("EXPLAIN LOGICAL QUERY q")
        session.sql(function("squared").replace("FUNCTION", "FUNCTION IF NOT EXISTS"))
        assert session.catalog.functions["f"].place == "tests.own_plant:doubled"
        session.sql("DROP FUNCTION f; DROP FUNCTION IF EXISTS f")
        assert not session.catalog.functions
        with pytest.raises(QueryError, match="there is no function 'f'"):
            session.sql("DROP FUNCTION f")


def test_python_declares_what_stands_behind_the_decorator() -> None:
    with Session(autostart=False) as session:
        session.sql(STREAM)
        session.create_function(own_plant.scaled)
        session.create_function(own_plant.loud)
        session.create_function("mean_of", "x BIGINT", "DOUBLE", using="tests.own_plant:Mean")
        session.create_function(
            "scaled",
            "x DOUBLE",
            "DOUBLE",
            using="tests.own_plant:squared",
            takes="numpy",
            replace=True,
        )
        made = session.catalog.functions
        assert made["scaled"].usage == "scaled(x DOUBLE)"
        assert (made["shouted"].usage, made["shouted"].form) == ("shouted(text STRING)", "pandas")
        assert made["mean_of"].aggregate
        relation = session.stream("s").window("ROWS 2").where("scaled(y) > 1")
        assert relation.group_by("shouted(k) AS who").agg("mean_of(x) AS m").node.names == (
            "who",
            "m",
        )

        @ps.function("DOUBLE", returns="DOUBLE")
        def local(x: Any) -> Any:
            return x

        with pytest.raises(ConfigError, match="by its name"):
            session.create_function(local)
        with pytest.raises(ConfigError, match="must be given by name, types and place"):
            session.create_function(len)


# Plans and checkpoints


def test_a_changed_place_or_type_changes_the_plan() -> None:
    digests = {
        repr(encode(bind_query(f"SELECT {call} AS a FROM s [ROWS 2]", declared(script))))
        for script, call in (
            (function("squared"), "f(x)"),
            (function("doubled"), "f(x)"),
            (function("squared", takes="PANDAS"), "f(x)"),
            (function("squared", "(x BIGINT) RETURNS BIGINT"), "f(x)"),
        )
    }
    assert len(digests) == 4


def test_a_plan_holds_the_place_and_no_code() -> None:
    catalog = declared(function("squared") + MEAN)
    plan = bind_query("SELECT k, m(x) AS a FROM s [ROWS 2] WHERE f(y) > 3 GROUP BY k", catalog)
    assert decode(encode(plan)) == plan
    assert decode(encode(catalog.functions["m"])) == catalog.functions["m"]


def test_what_nobody_declared_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text("raise SystemExit('imported')")
    program = (
        "from penstock.expr import own\n"
        "from penstock.expr.own_calls import call_own\n"
        "import pyarrow as pa, sys\n"
        "try:\n    call_own('bomb:f', pa.int64(), [pa.array([1])])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "print('bomb' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("StateError a function of a checkpoint must be allowed before")
    assert "--function bomb:f" in run.stdout
    assert run.stdout.endswith("False\n")


def test_a_checkpoint_allows_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_declared", {})
    with pytest.raises(StateError, match=r"nobody has declared tests\.own_plant:squared"):
        own.loaded("tests.own_plant:squared")
    own.allow(["tests.own_plant:squared"])
    assert own.loaded("tests.own_plant:squared")(3) == 9


# Aggregates


def test_aggregates_are_exact_in_any_order() -> None:
    """Sums of floating numbers depend on their order: rows are added in the order of values."""
    chance = np.random.default_rng(3)
    rows = [
        ("ab"[i % 2], int(chance.integers(1, 9)), float(10.0 ** chance.integers(-9, 9)), i // 3)
        for i in range(60)
    ]
    found = answers(
        "CREATE FUNCTION w (x DOUBLE, y DOUBLE) RETURNS DOUBLE USING 'tests.own_plant:Weighted';"
        "CREATE FUNCTION m (x BIGINT) RETURNS DOUBLE USING 'tests.own_plant:Mean';"
        "CREATE QUERY q AS SELECT k, w(y, x) AS a, m(x) AS b FROM s [RANGE 5] GROUP BY k",
        rows,
    )
    assert len(found) > 30


def test_kept_states_and_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("abc"[i % 3], i * 7 % 11, 0.5, i // 2) for i in range(50)]
    script = (
        "CREATE FUNCTION m (x BIGINT) RETURNS DOUBLE USING 'tests.own_plant:Mean';"
        "CREATE QUERY q AS SELECT k, m(x) AS a, AVG(x) AS b FROM s [RANGE 6 SLIDE 2] GROUP BY k"
    )
    kept = answers(script, rows)
    monkeypatch.setattr(own_plant.Mean, "exact", False, raising=False)
    assert answers(script, rows) == kept
    assert all(a == b for (_, a, b), _, _ in kept)


def rows_of(snapshot: ps.Snapshot) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in snapshot.to_arrow().to_pylist())


@pytest.mark.spark
def test_workers_import_and_readers_do_not(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        STREAM
        + function("squared", "(x BIGINT) RETURNS BIGINT")
        + MEAN
        + "CREATE MATERIALIZED VIEW kept AS SELECT k, m(f(x)) AS x FROM s [ROWS 3] GROUP BY k;"
    )
    rows = [("a", 2, 0.0, 1), ("a", 4, 0.0, 2), ("b", 3, 0.0, 3)]
    with Session(spark, checkpoint=tmp_path) as session:
        session.sql(script)
        session.push("s", rows)
        session.finish("s")
        assert session.await_end(timeout=100)
        found = session.query("SELECT k, f(CAST(x AS BIGINT)) AS a FROM kept")
        assert rows_of(found) == [("a", 100), ("b", 81)]
    monkeypatch.setattr(own, "_declared", {})
    view = ps.open_checkpoint(tmp_path)
    assert rows_of(view.query("SELECT k, x FROM kept")) == [("a", 10.0), ("b", 9.0)]
    question = "SELECT f(CAST(x AS BIGINT)) AS a FROM kept WHERE k = 'b'"
    with pytest.raises(StateError, match=r"nobody has declared tests\.own_plant:squared"):
        view.query(question)
    told = ps.open_checkpoint(tmp_path, functions=["tests.own_plant:squared"])
    assert rows_of(told.query(question)) == [(81,)]
