"""Statements as users of Spark type them: INSERT, SET, VALUES, OFFSET; names that are repeated."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock import Snapshot
from penstock.cql import bind_query, render_plan
from penstock.errors import ConfigError, QueryError
from penstock.session import Session
from penstock.testing import Rig

DECLARED = """
CREATE STREAM s (k STRING, x SMALLINT, y DOUBLE, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE STREAM r (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
"""


def test_insert_adds_rows_to_a_stream() -> None:
    rig = Rig(DECLARED + "CREATE QUERY q AS SELECT k, x, y FROM s [RANGE 5 SECONDS];")
    rig.sql("INSERT INTO s VALUES ('a', 1, 2, '2024-01-01 10:00:00'), ('b', -3, NULL, "
            "TIMESTAMP '2024-01-01 10:00:01')")  # fmt: skip
    rig.sql("INSERT INTO s (t, k) VALUES ('2024-01-01 10:00:02', upper('c'))")
    rig.end()
    rig.assert_intervals(
        "q",
        [
            ("a", 1, 2.0, "2024-01-01 10:00:00", "2024-01-01 10:00:05"),
            ("b", -3, None, "2024-01-01 10:00:01", "2024-01-01 10:00:06"),
            ("C", None, None, "2024-01-01 10:00:02", "2024-01-01 10:00:07"),
        ],
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("INSERT INTO z VALUES (1)", "there is no stream 'z'"),
        ("INSERT INTO r VALUES (1)", "a row must have 2 values, one for each of k, t, got 1"),
        ("INSERT INTO r VALUES ('a', 1), ('b')", "the same number of values, got 2 and 1"),
        ("INSERT INTO r VALUES (1, 1)", "column k must be STRING, got INT; CAST it"),
        ("INSERT INTO r (k, k) VALUES ('a', 'b')", "column 'k' can be given once"),
        ("INSERT INTO r (q) VALUES ('a')", "stream r has no column 'q'"),
        ("INSERT INTO r VALUES (k, 1)", "there is no column 'k'"),
        ("INSERT INTO s (x, t) VALUES (70000, '2024-01-01')", "SMALLINT"),
        ("INSERT INTO s (t) VALUES ('soon')", "TIMESTAMP"),
        ("INSERT INTO r SELECT * FROM s", "must be followed by VALUES (..), got 'SELECT'"),
    ],
)
def test_mistakes_in_insert(text: str, sentence: str) -> None:
    rig = Rig(DECLARED)
    with pytest.raises(QueryError) as caught:
        rig.sql(text)
    assert sentence in str(caught.value)


def test_any_setting_before_something_runs() -> None:
    with Session(autostart=False) as session:
        session.sql("SET shards = 3; SET join.windows = apart; SET stage.memory = '32m'")
        assert session.config.shards == 3
        assert session.config.join_windows == "apart"
        assert session.config.stage_memory == 32 << 20
        with pytest.raises(QueryError, match="shards"):
            session.sql("SET shards = many")


def test_names_that_nobody_chose_get_numbers() -> None:
    with Session(autostart=False) as session:
        session.sql(DECLARED)

        def names(text: str) -> tuple[str, ...]:
            return bind_query(text, session.catalog).schema.names

        two = "s [RANGE 5] a JOIN s [RANGE 5] b ON a.k = b.k"
        assert names(f"SELECT * FROM {two}") == ("k", "x", "y", "t", "k_2", "x_2", "y_2", "t_2")
        assert names(f"SELECT a.k, b.k FROM {two}") == ("k", "k_2")
        assert names(f"SELECT a.k, b.K, b.x AS k_2 FROM {two}") == ("k", "k_3", "k_2")
        assert names(f"ISTREAM (SELECT a.k, b.k FROM {two})") == ("k", "k_2")
        with pytest.raises(QueryError, match="ambiguous"):
            names(f"SELECT k FROM (SELECT a.k, b.k FROM {two}) q")
        with pytest.raises(QueryError, match="two columns 'k'"):
            session.sql(f"CREATE VIEW v AS SELECT a.k, b.k FROM {two}")


def test_offset_and_values_in_plans() -> None:
    with Session(autostart=False) as session:
        session.sql(DECLARED)
        plan = bind_query(
            "SELECT x FROM s JOIN VALUES ('a'), ('b') v(k) USING (k) ORDER BY x OFFSET 2",
            session.catalog,
        )
        assert render_plan(plan).splitlines()[0] == "TopK all offset 2 by x"
        assert "Values (col1), 2 rows" in render_plan(plan)


@pytest.mark.parametrize(
    ("clause", "sentence"),
    [
        ("UNTIL q", "stream u has no column 'q'"),
        ("UNTIL k", "UNTIL must name a second column that counts time as t does, BIGINT, got k"),
        ("UNTIL t", "UNTIL must name a second column"),
        ("UNTIL", "UNTIL must be followed by a column"),
        ("UNTIL e UNTIL e", "UNTIL can be said once"),
    ],
)
def test_mistakes_in_until(clause: str, sentence: str) -> None:
    columns = "k STRING, e INT, t BIGINT"
    with pytest.raises(QueryError) as caught:
        Rig(f"CREATE STREAM u ({columns}) USING memory TIMESTAMP BY t {clause}")
    assert sentence in str(caught.value)


def test_until_is_shown_and_used_in_python() -> None:
    with Session(autostart=False) as session:
        session.sql(
            "CREATE STREAM u (k STRING, e INT, t BIGINT) USING memory TIMESTAMP BY t UNTIL e"
        )
        shown = session.sql("DESCRIBE u").to_pylist()
        assert {"what": "clause", "name": "UNTIL", "value": "e"} in shown
        assert "Window [UNTIL e]" in session.stream("u").select("k").explain()
        past = session.stream("u").window(range=5, shift=2).explain()
        assert past.splitlines()[0] == "Window [RANGE 5 SHIFT 2]"


@pytest.mark.spark
def test_values_and_insert_in_a_session(spark) -> None:
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(
            DECLARED
            + """
            INSERT INTO r VALUES ('a', 1), ('b', 2);
            CREATE QUERY named AS
              SELECT v.name, r.t FROM r [ROWS 2 RANGE 9 SLIDE 4]
              JOIN VALUES ('a', 'Athens'), ('c', 'Chania') AS v(k, name) ON r.k = v.k;
            """
        )
        session.sql("INSERT INTO r VALUES ('c', 6)")
        session.sql("INSERT INTO r VALUES ('z', 11)")
        session.finish("r")
        session.await_end()
        rows = session.query("named").rows()
        assert rows.to_pylist() == [{"name": "Chania", "t": 6}]
        found = session.sql(
            "SELECT col1 + 1 AS n, col2 FROM VALUES (1, 'x'), (2, 'y'), (3, 'z') "
            "ORDER BY n OFFSET 1",
            one_time=True,
        )
        assert isinstance(found, Snapshot)
        assert found.to_arrow() == pa.table({"n": pa.array([3, 4], pa.int32()), "col2": ["y", "z"]})
        with pytest.raises(ConfigError, match="when the session is opened"):
            session.sql("SET shards = 4")
