"""The public rig: scripts fed by hand, times in every spelling, assertions that hold or fail."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import DataError, NotSupportedError, QueryError
from penstock.testing import LocalEngine, Rig, check
from tests.random_plans import case_of, plans_of

COUNTS = """
CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k;
"""
STAMPED = """
CREATE SINK aside USING memory;
CREATE STREAM s (k STRING, x DOUBLE, t TIMESTAMP)
  USING kafka OPTIONS (topic 's') TIMESTAMP BY t SLACK 5 SECONDS
  LATE INTO aside ON ERROR DEADLETTER aside;
CREATE QUERY latest AS SELECT k, x, t FROM s [PARTITION BY k ROWS 1];
"""
ANSWER = [("a", 1, 1, 3), ("a", 2, 3, 6), ("a", 1, 6, 8)]


def counted(**options: Any) -> Rig:
    rig = Rig(COUNTS, **options)
    rig.feed("s", [("a", 1), ("a", 3)])
    return rig


# What is asserted


def test_a_relation_is_compared_whatever_its_cuts() -> None:
    rig = counted()
    rig.end()
    rig.assert_intervals("q", ANSWER)
    cut = [("a", 1, 1, 2), ("a", 1, 2, 3), ("a", 2, 3, 6), ("a", 1, 6, 8)]
    rig.assert_intervals("q", cut)
    rig.assert_intervals("q", ANSWER, exact=True)
    with pytest.raises(AssertionError, match="1 row is missing"):
        rig.assert_intervals("q", [*ANSWER[:2], ("a", 1, 6, 9)])
    with pytest.raises(AssertionError, match="2 rows are missing and 1 row is unexpected"):
        rig.assert_intervals("q", cut, exact=True)


def test_a_difference_is_a_sentence_with_two_columns() -> None:
    rig = counted()
    rig.end()
    with pytest.raises(AssertionError) as failure:
        rig.assert_intervals("q", [("a", 1, 1, 3), ("a", 2, 3, 7), ("b", None, 6, None)])
    assert str(failure.value).splitlines() == [
        "the answer of 'q' is not as expected: 2 rows are missing and 2 rows are unexpected",
        "  missing                 | unexpected",
        "  [3, 7) 'a', 2           | [3, 6) 'a', 2",
        "  [6, for ever) 'b', null | [6, 8) 'a', 1",
    ]


def test_long_differences_are_cut() -> None:
    rig = Rig(COUNTS)
    rig.feed("s", [(str(i), i) for i in range(30)])
    rig.end()
    with pytest.raises(AssertionError, match="… and 10 more"):
        rig.assert_intervals("q", [])


def test_copies_count() -> None:
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT k FROM s [RANGE 5]"
    )
    rig.feed("s", [("a", 1), ("a", 1), ("b", 1)])
    rig.advance(3)
    rig.assert_view("q", [("b",), ("a",), ("a",)], at=2)
    with pytest.raises(AssertionError, match=r"at 2, known below 3 .*: 1 row is unexpected"):
        rig.assert_view("q", [("b",), ("a",)], at=2)


def test_only_what_is_final_is_compared() -> None:
    rig = counted()
    rig.assert_intervals("q", [("a", 1, 1, None)])
    rig.assert_intervals("q", [("a", 1, 1, 100)])
    rig.advance(6)
    rig.assert_intervals("q", [("a", 1, 1, 3), ("a", 2, 3, None)])
    with pytest.raises(AssertionError, match="known below 6"):
        rig.assert_intervals("q", [("a", 1, 1, None)])
    rig.assert_view("q", [("a", 2)], at=5)
    with pytest.raises(QueryError, match=r"at 6 must be final, but rows from 6 on may still come"):
        rig.snapshot("q", at=6)


def test_a_view_is_that_of_the_newest_final_instant() -> None:
    rig = counted()
    rig.assert_view("q", [("a", 1)])
    assert rig.rows("q") == [("a", 1)]
    rig.advance(4)
    rig.assert_view("q", [("a", 2)])
    assert rig.rows("q") == rig.snapshot("q") == [("a", 2)]
    rig.advance(100)  # the clock of a view is its newest row
    rig.assert_view("q", [("a", 2)])
    assert rig.snapshot("q", at=99) == []


def test_log_and_sinks() -> None:
    script = COUNTS.replace("QUERY q", "QUERY q INTO out")
    for changes, rows in (
        ("log", [("a", 1, 1, 1), ("a", 1, 3, -1), ("a", 2, 3, 1), ("a", 2, 6, -1), ("a", 1, 6, 1)]),
        ("intervals", ANSWER[:2]),
        ("view", [("a", 2)]),
    ):
        options = f"(path '/nowhere', changes '{changes}')"
        rig = Rig(f"CREATE SINK out USING parquet OPTIONS {options}; {script}")
        rig.feed("s", [("a", 1), ("a", 3)])
        rig.advance(7)
        assert sorted(rig.rows("q")[: len(rows)]) == sorted(rows)
        rig.assert_log(
            "q",
            [("a", 1, 1, "+"), ("a", 1, 3, "-"), ("a", 2, 3, "+"), ("a", 2, 6, -1), ("a", 1, 6, 1)],
        )
        with pytest.raises(AssertionError, match=r"@6 - 'a', 2"):
            rig.assert_log("q", [("a", 1, 1, "+"), ("a", 1, 3, "-"), ("a", 2, 3, "+")])


def test_streams() -> None:
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY gone AS DSTREAM (SELECT k FROM s [RANGE 5]);"
        "CREATE QUERY kept AS SELECT k FROM s [RANGE 5];"
    )
    rig.feed("s", [("a", 1), ("b", 3)])
    rig.advance(7)
    rig.assert_stream("gone", [("a", 6)])
    assert rig.rows("gone") == [("a", 6)] == rig.oracle("gone")
    with pytest.raises(AssertionError, match=r"@7 'b'"):
        rig.assert_stream("gone", [("a", 6), ("b", 7)])
    with pytest.raises(QueryError, match="it is a relation; use assert_intervals"):
        rig.assert_stream("kept", [])
    with pytest.raises(QueryError, match="it is a stream; use assert_stream"):
        rig.assert_intervals("gone", [])


def test_numbers_may_be_near() -> None:
    rig = Rig(
        "CREATE STREAM s (x DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT AVG(x) AS m FROM s [ROWS 3]"
    )
    rig.feed("s", [(1, 0), (1, 0), (2, 0)])
    rig.end()
    rig.assert_intervals("q", [(1.3333, 0, None)], within=1e-3)
    with pytest.raises(AssertionError, match="missing"):
        rig.assert_intervals("q", [(1.3333, 0, None)])
    with pytest.raises(DataError, match=r"must have 1 values \(m\) and two more"):
        rig.assert_intervals("q", [(0, None)])


# Rows and times


def test_times_in_every_spelling() -> None:
    rig = Rig(STAMPED, day="2024-03-11")
    rig.feed("s", [("a", 1.0, "10:00:00"), {"K": "a", "t": "2024-03-11 10:00:01.5", "x": 2}])
    rig.feed("s", [("a", 3.0, datetime(2024, 3, 11, 10, 0, 2))])
    rig.feed("s", [("b", 4.0, 1_710_151_203_000_000)])
    rig.advance("10:00:10")
    ten = datetime(2024, 3, 11, 10)
    rig.assert_intervals(
        "latest",
        [
            ("a", 1, ten, ten, "10:00:01.5"),
            ("a", 2, "10:00:01.5", "10:00:01.5", "10:00:02"),
            ("a", 3, "10:00:02", datetime(2024, 3, 11, 10, 0, 2), None),
            ("b", 4, "10:00:03", "2024-03-11 10:00:03", None),
        ],
    )
    assert rig.intervals("latest")[0] == (
        "a",
        1.0,
        ten,
        ten,
        datetime(2024, 3, 11, 10, 0, 1, 500000),
    )
    rig.assert_oracle()
    with pytest.raises(DataError, match="a time must be a TIMESTAMP such as"):
        rig.advance("tomorrow")
    with pytest.raises(DataError, match=r"a time must be text, a datetime or microseconds"):
        rig.advance(1.5)
    with pytest.raises(DataError, match="a time must be an integer"):
        counted().advance("10:00")


def test_arrow_and_pandas() -> None:
    rig = Rig(COUNTS)
    rig.feed("s", pa.table({"t": [1], "k": ["a"]}))
    rig.feed("s", pd.DataFrame({"k": ["a"], "t": [3]}))
    rig.end()
    rig.assert_intervals("q", ANSWER)


def test_late_and_rejected_rows() -> None:
    rig = Rig(STAMPED)
    rig.feed(
        "s", [("a", 1.0, "10:00:10"), ("a", "?", "10:00:11"), ("a", 2.0, None), ("b", 3.0, "x")]
    )
    assert [row for _, row in rig.rejected("s")] == [
        ("a", "?", "10:00:11"), ("a", 2.0, None), ("b", 3.0, "x")
    ]  # fmt: skip
    assert rig.rejected("s")[1][0] == "row 0 must have a time, but the time column 't' is null"
    rig.feed("s", [("c", 1.0, "10:00:05"), ("d", 1.0, "10:00:04.999999")])
    assert [row[0] for row in rig.late("s")] == ["d"]
    rig.heartbeat("s", "10:00:20")
    rig.feed("s", [("e", 1.0, "10:00:19")])
    assert [row[0] for row in rig.late("s")] == ["d", "e"]
    rig.assert_oracle()
    with pytest.raises(DataError, match="must be STRING, got 7"):
        Rig(COUNTS).feed("s", [(7, 1)])


def test_each_stream_has_its_own_slack_and_end() -> None:
    rig = Rig(
        "CREATE STREAM a (x INT, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE STREAM b (x INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 5;"
        "CREATE QUERY q AS SELECT a.x FROM a [RANGE 10], b [RANGE 10] WHERE a.x = b.x"
    )
    rig.feed({"a": [(1, 10)], "b": [(1, 12)]})
    rig.assert_intervals("q", [])
    rig.feed("b", [(1, 8)])
    rig.end("b")
    rig.assert_intervals("q", [])
    rig.heartbeat("a", 13)
    rig.assert_intervals("q", [(1, 10, 12), (1, 12, None), (1, 12, None)])
    with pytest.raises(DataError, match="the stream 'b' must not have ended"):
        rig.feed("b", [(1, 20)])
    rig.end("a")
    rig.assert_oracle()


# The script


def test_tables_are_given_as_rows() -> None:
    script = (
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE TABLE d (k STRING, name STRING, since BIGINT) USING csv OPTIONS (path '/no.csv') "
        "VALID FROM since;"
        "CREATE QUERY q AS SELECT d.name FROM s [RANGE 5], d WHERE s.k = d.k"
    )
    with pytest.raises(QueryError, match="the rows of table 'd' must be given to the rig"):
        Rig(script)
    check(
        script,
        {"s": [("a", 1)]},
        {"q": [("one", 1, 6), ("two", 3, 6)]},
        tables={"D": [("a", "one", None), {"k": "a", "name": "two", "since": 3}]},
    )


def test_a_query_that_comes_later_sees_what_follows() -> None:
    rig = counted()
    rig.sql("CREATE QUERY late AS SELECT COUNT(*) AS n FROM s [ROWS UNBOUNDED]")
    rig.feed("s", [("a", 3), ("a", 4)])
    rig.end()
    rig.assert_intervals("late", [(1, 4, None)])
    rig.assert_oracle()
    assert rig.under_all_settings() > 12
    rig.sql("DROP QUERY late; DROP QUERY IF EXISTS late")
    with pytest.raises(QueryError, match="there is no query 'late'"):
        rig.rows("late")


def test_statements_that_change_nothing_are_passed_over() -> None:
    rig = counted()
    rig.sql("SHOW QUERIES; EXPLAIN QUERY q; DESCRIBE s")
    rig.sql("CREATE STREAM IF NOT EXISTS s (x INT, t BIGINT) USING memory TIMESTAMP BY t")
    with pytest.raises(
        NotSupportedError, match="a rig runs CREATE, DROP, SET and INSERT, but not PAUSE"
    ):
        rig.sql("PAUSE QUERY q")


def test_mistakes_are_explained() -> None:
    with pytest.raises(QueryError, match="there is no stream 'z'; known: s"):
        Rig(COUNTS).feed("z", [])
    with pytest.raises(QueryError, match="there is no query 'p'; known: q"):
        Rig(COUNTS).assert_view("p", [])
    unread = "CREATE STREAM u (t BIGINT) USING memory TIMESTAMP BY t"
    with pytest.raises(QueryError, match="a stream must be read by a query before it is fed"):
        Rig(f"{COUNTS} {unread}").feed("u", [(1,)])
    with pytest.raises(QueryError, match="must read a stream"):
        Rig("CREATE TABLE d (x INT) USING csv; CREATE QUERY q AS SELECT x FROM d")


# The oracle and the other settings


def test_batches_and_shards_change_no_answer() -> None:
    for options in ({"batch_rows": 1}, {"shards": 3}, {"settings": {"lifetime": "negative"}}):
        rig = counted(**options)
        rig.end()
        rig.assert_intervals("q", ANSWER)


def test_the_oracle_finds_a_wrong_answer() -> None:
    rig = counted()
    rig.end()
    rig.assert_oracle("q")
    assert rig.oracle("q") == rig.intervals("q") == ANSWER
    rig._engine.answers["q log"].pop()
    with pytest.raises(AssertionError, match=r"'q' \(oracle\) is not as expected"):
        rig.assert_oracle()


@pytest.mark.parametrize(
    ("broken", "label"),
    [
        (lambda engine: engine.shards == 3, "as fed, 3 shards"),
        (lambda engine: engine.config.lifetime == "negative", "lifetime=negative"),
        (lambda engine: engine.number > 2, "row by row"),
        (lambda engine: not engine.config.rules, "rules=False"),
    ],
)
def test_a_setting_that_changes_the_answer_is_found(
    broken: Any, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(COUNTS)
    rig.feed("s", [("a", 1), ("a", 2), ("a", 3)])
    rig.feed("s", [("a", 9)])
    rig.assert_oracle()
    honest = LocalEngine.batch_of

    def forgetful(engine: LocalEngine, rows: Any, *rest: Any) -> None:
        honest(engine, {} if broken(engine) else rows, *rest)

    monkeypatch.setattr(LocalEngine, "batch_of", forgetful)
    with pytest.raises(AssertionError, match=label):
        rig.under_all_settings()


@pytest.mark.parametrize("seed", [10, 12, 17, 23, 33, 57])
def test_random_scripts(seed: int) -> None:
    """A rig answers a random script as the oracle does after every batch, not only at the end."""
    case = case_of(seed)
    queries = "\n".join(f"CREATE QUERY {name} AS {text};" for name, text in case.queries.items())
    rig = Rig(
        f"{case.declarations()}\n{queries}",
        tables=case.tables,
        shards=case.shards,
        settings=case.settings,
    )
    read = frozenset(rig._engine.streams)
    assert plans_of(case).keys() == rig.catalog.queries.keys()
    for batch in case.batches:
        rig.feed({name: rows for name, rows in batch.items() if name in read})
        rig.assert_oracle()
    rig.end()
    rig.assert_oracle()


def test_nothing_of_spark_is_imported() -> None:
    code = "import sys, penstock.testing; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
