"""Another text for a query: what goes on, what begins anew, and that nothing else notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Session
from penstock.errors import ConfigError, QueryError, StateError
from penstock.operators.aggregate import AggregateSpec
from penstock.physical.book import Moment, QueryBook
from penstock.physical.explain_change import change_texts
from penstock.physical.plan import PhysicalPlan
from penstock.runs import failpoints
from penstock.settings import Settings
from penstock.sinks import read_committed
from penstock.testing import Rig
from tests.test_book import booked

DECLARED = """
CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 3;
CREATE STREAM r (k STRING, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
"""
READ = f"""{DECLARED}
CREATE QUERY left_over AS SELECT x FROM s [NOW];
CREATE QUERY right_over AS SELECT y FROM r [NOW];
"""
GROUPS = "SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s [RANGE 9] GROUP BY k"
PAIRS = "SELECT s.k, x, y FROM s [RANGE 7] JOIN r [RANGE 5] ON s.k = r.k"


def eras(rig: Rig, query: str) -> list[int]:
    """Return how many parts go on into each era of a query."""
    return [len(era.kept) for era in rig._query(query).eras]


def fed(rig: Rig, first: int, last: int, seed: int = 1) -> None:
    """Feed rows of all streams, one of each per instant, some out of order."""
    chance = random.Random(seed + first)
    for t in range(first, last, 2):
        rows = [(chance.choice("ab"), chance.randrange(4), t + d) for d in (1, 0)]
        rig.feed({"s": rows, "r": [(chance.choice("ab"), chance.randrange(4), t)]})


def test_groups_go_on_and_are_seen_whole() -> None:
    rig = Rig(f"{READ} CREATE QUERY q AS SELECT * FROM ({GROUPS}) WHERE n > 3")
    fed(rig, 0, 20)
    rig.sql(f"CREATE OR REPLACE QUERY q AS SELECT * FROM ({GROUPS}) WHERE n > 0")
    assert eras(rig, "q") == [1, 0]
    fed(rig, 20, 40)
    rig.end()
    rig.assert_oracle()
    since = rig._query("q").since
    assert since == 20
    first = [row for row in rig.intervals("q") if row[-2] == since]
    assert {row[0] for row in first} == {"a", "b"}
    assert sum(row[1] for row in first) == 9  # one row at each of the last nine instants
    rig.under_all_settings()


def test_a_join_goes_on_with_its_old_partners() -> None:
    rig = Rig(f"{READ} CREATE QUERY q AS {PAIRS}")
    fed(rig, 0, 20)
    rig.sql(f"CREATE OR REPLACE QUERY q AS SELECT k, SUM(x + y) AS z FROM ({PAIRS}) GROUP BY k")
    assert eras(rig, "q") == [1, 0]
    fed(rig, 20, 40)
    rig.end()
    rig.assert_oracle()
    rig.under_all_settings()


def test_rows_are_answered_once_by_the_text_that_is_there() -> None:
    rig = Rig(f"{READ} CREATE QUERY q AS ISTREAM (SELECT x FROM s WHERE k = 'a')")
    rig.feed("s", [("a", 1, 5), ("b", 2, 6)])
    assert rig.rows("q") == [(1, 5)]
    rig.sql("CREATE OR REPLACE QUERY q AS ISTREAM (SELECT x FROM s WHERE k = 'b')")
    rig.feed("s", [("b", 3, 4), ("a", 4, 7), ("b", 5, 8)])  # the first is out of order
    assert rig.rows("q") == [(3, 4), (5, 8)]
    rig.assert_oracle()


def test_what_begins_anew_is_a_query_that_is_added_there() -> None:
    text = "SELECT DISTINCT k FROM s [ROWS 3]"
    rig = Rig(f"{READ} CREATE QUERY q AS SELECT DISTINCT x FROM s [ROWS 3]")
    fed(rig, 0, 20)
    rig.sql(f"CREATE OR REPLACE QUERY q AS {text}; CREATE QUERY added AS {text}")
    fed(rig, 20, 40)
    rig.end()
    assert eras(rig, "q") == []
    assert rig.intervals("q") == rig.intervals("added")
    rig.assert_oracle()


def test_the_same_text_changes_nothing() -> None:
    rig = Rig(f"{READ} CREATE QUERY q AS {GROUPS}")
    fed(rig, 0, 20)
    before = rig.intervals("q")
    rig.sql(f"CREATE OR REPLACE QUERY Q WEIGHT 5 AS {GROUPS}; ALTER QUERY q SET WITHIN 1 SECOND")
    assert rig._query("q").since is None
    assert rig.intervals("q") == before
    rig.end()
    rig.assert_oracle()


CALLS = (
    "COUNT(*)",
    "COUNT(x)",
    "SUM(x)",
    "AVG(x)",
    "MIN(x)",
    "MAX(x)",
    "STDDEV(x)",
    "COUNT(DISTINCT x)",
    "SUM(DISTINCT x)",
    "MODE(x)",
    "MEDIAN(x)",
    "STRING_AGG(CAST(x AS STRING), ',')",
    "MIN_BY(x, t)",
    "BIT_XOR(x)",
    "BOOL_OR(x > 1)",
    "CORR(x, t)",
)


def test_every_aggregate_begins_equal_rows() -> None:
    names = [f"{call} AS c{i}" for i, call in enumerate(CALLS)]
    for by in ("k, ", ""):
        text = f"SELECT {by}{', '.join(names)} FROM s [RANGE 9]" + (" GROUP BY k" if by else "")
        rig = Rig(f"{READ} CREATE QUERY q AS SELECT * FROM ({text}) WHERE c0 > 2")
        fed(rig, 0, 20)
        rig.sql(f"ALTER QUERY q AS SELECT * FROM ({text}) WHERE c0 > -1")
        assert eras(rig, "q") == [1, 0]
        fed(rig, 20, 30)
        rig.end()
        rig.assert_oracle()


TEXTS = (
    f"SELECT * FROM ({GROUPS}) WHERE n > 2",
    f"SELECT * FROM ({GROUPS}) WHERE total > 4",
    f"SELECT n, COUNT(*) AS groups FROM ({GROUPS}) GROUP BY n",
    f"SELECT a.k, a.n, b.y FROM ({GROUPS}) AS a JOIN r [ROWS 2] AS b ON a.k = b.k",
    "SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > 3",
    "SELECT k, COUNT(*) AS n FROM s GROUP BY k",
    PAIRS,
    f"SELECT k, SUM(x + y) AS z FROM ({PAIRS}) GROUP BY k",
    f"SELECT DISTINCT k, x, y FROM ({PAIRS})",
    f"DSTREAM (SELECT k, MAX(x + y) AS z FROM ({PAIRS}) GROUP BY k)",
    f"ISTREAM (SELECT k, n FROM ({GROUPS}))",
    f"RSTREAM (SELECT k, n FROM ({GROUPS}))",
    "SELECT k, x FROM s [RANGE 4]",
    "ISTREAM (SELECT k, x FROM s)",
)


@pytest.mark.parametrize("seed", range(8))
def test_texts_at_random_batches(seed: int) -> None:
    chance = random.Random(seed)
    first, *later = chance.sample(TEXTS, 4)
    settings = {"lifetime": chance.choice(("direct", "negative"))}
    shards = chance.choice((1, 3))
    script = f"{READ} CREATE QUERY other AS {TEXTS[0]}; CREATE QUERY said AS {TEXTS[11]}"
    rig = Rig(f"{script}; CREATE QUERY q AS {first}", shards=shards, settings=settings)
    alone = Rig(script, shards=shards, settings=settings)
    now = 0
    for text in later:
        then = now + chance.randrange(2, 16, 2)
        for each in (rig, alone):
            fed(each, now, then, seed)
        rig.assert_oracle()
        rig.sql(f"CREATE OR REPLACE QUERY q AS {text}")
        now = then
    for each in (rig, alone):
        fed(each, now, now + 16, seed)
        each.end()
    rig.assert_oracle()
    assert rig.intervals("other") == alone.intervals("other")
    assert sorted(rig.rows("said")) == sorted(alone.rows("said"))


# The book


def described(book: QueryBook) -> dict[str, Any]:
    return {name: query.describe(None) for name, query in book.queries.items()}


def counted(least: int, replaces: bool = True) -> Any:
    text = f"SELECT k, COUNT(*) AS n FROM s [RANGE 9] GROUP BY k HAVING COUNT(*) > {least}"
    made = booked("q", text)
    made.replaces = replaces
    return made


def groups(made: PhysicalPlan) -> set[str]:
    return {node.digest for node in made.nodes if isinstance(node.spec, AggregateSpec)}


def test_a_manifest_knows_what_goes_on() -> None:
    book = QueryBook(Settings())
    book.add(counted(1))
    made = book.plan(Moment())
    book.add(counted(2))
    after = book.plan(Moment(3, {"s": 10}, made.numbers, beats={"s": 8}))
    assert book.queries["q"].since == 11
    assert groups(after) == groups(made)
    assert after.nodes[-1].digest != made.nodes[-1].digest  # the output
    again = QueryBook(Settings(), described(book), "here")
    again.add(counted(2))
    later = Moment(5, {"s": 30}, after.numbers, beats={"s": 29})
    assert {n.digest for n in again.plan(later).nodes} == {n.digest for n in after.nodes}
    again.add(counted(3))
    again.add(counted(4))  # no batch has seen the text between
    assert groups(again.plan(later)) == groups(made)
    assert again.queries["q"].since == 31
    assert [era.since for era in again.queries["q"].eras] == [31, None]


def test_a_changed_text_must_be_said_to_be_wanted() -> None:
    book = QueryBook(Settings())
    book.add(counted(1))
    made = book.plan(Moment())
    again = QueryBook(Settings(), described(book), "here")
    with pytest.raises(StateError, match="if that is wanted, write CREATE OR REPLACE QUERY"):
        again.add(counted(2, replaces=False))
    again.add(counted(2))
    assert again.missing() == []
    now = Moment(5, {"s": 30}, made.numbers, beats={"s": 29})
    assert groups(again.plan(now)) == groups(made)


def test_nothing_goes_on_of_a_stream_that_has_ended() -> None:
    book = QueryBook(Settings())
    book.add(counted(1))
    made = book.plan(Moment())
    book.add(counted(2))
    book.plan(Moment(3, {"s": 10}, made.numbers, beats={"s": 2**63 - 1}))
    assert book.queries["q"].eras == ()


def test_explain_says_what_goes_on_and_since_when() -> None:
    book = QueryBook(Settings())
    book.add(counted(1))
    made = book.plan(Moment())
    trial, now = book.copy(), Moment(3, {"s": 10}, made.numbers, beats={"s": 8})
    trial.add(counted(2))
    whole = trial.plan(now)
    query = trial.queries["q"]
    lines = list(change_texts(whole, query, trial.optimized("q"), now))
    assert lines[0].startswith("goes on: ")
    assert "Aggregate" in lines[0]
    assert lines[1:] == ["begins anew: Output q (view)", "answers hold from 11 on"]
    trial = book.copy()
    trial.add(booked("q", "SELECT k, x FROM s [RANGE 20] UNION ALL SELECT k, x FROM s [ROWS 3]"))
    whole = trial.plan(now)
    lines = list(change_texts(whole, trial.queries["q"], trial.optimized("q"), now))
    assert lines[0] == "goes on: nothing"
    assert lines[3].startswith("they are whole from 31 on, when the largest window")
    assert lines[4] == "windows by rows are full when 3 rows came"
    assert book.queries["q"].eras == ()


# Statements


@pytest.fixture
def session(tmp_path: Path) -> Any:
    with Session(checkpoint=tmp_path / "c", autostart=False) as made:
        made.sql(DECLARED)
        yield made


def test_a_query_is_declared_in_the_place_of_another(session: Session) -> None:
    first = session.sql(f"CREATE OR REPLACE QUERY q AS {GROUPS}")
    again = session.sql(f"CREATE OR REPLACE QUERY Q WITHIN 2 SECONDS AS {PAIRS}")
    assert again is session.query("q")
    assert again is not first
    assert again.name == "q"
    session.sql("ALTER QUERY q SET WEIGHT 3; ALTER QUERY q AS SELECT k FROM s")
    made = session.query("q").definition
    assert (made.within, made.weight, list(made.plan.schema.names)) == (2, 3, ["k"])
    shown = session.sql("SHOW CREATE QUERY q")
    assert shown.endswith("ALTER QUERY q SET WEIGHT 3;\nALTER QUERY q AS SELECT k FROM s;")
    assert "no query of this name has begun" in session.sql(f"EXPLAIN REPLACE QUERY q AS {GROUPS}")
    assert session.query("q").definition is made
    session.view("s").start("q", replace=True)
    assert list(session.query("q").definition.plan.schema.names) == ["k", "x", "t"]


def test_what_is_used_is_not_replaced(session: Session, tmp_path: Path) -> None:
    sink = f"SINK out USING jsonl OPTIONS (path '{tmp_path}/out')"
    session.sql(f"CREATE {sink}; CREATE QUERY q INTO out AS SELECT k FROM s")
    session.sql(f"CREATE OR REPLACE {sink}")  # the same again changes nothing
    with pytest.raises(QueryError, match="a sink can be replaced when nothing uses it"):
        session.sql("CREATE OR REPLACE SINK out USING memory")
    with pytest.raises(QueryError, match="'s' is used by query q"):
        session.sql("CREATE OR REPLACE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t")
    stream = "(k STRING, z BIGINT, t BIGINT) USING memory TIMESTAMP BY t"
    session.sql(f"CREATE OR REPLACE STREAM r {stream}; CREATE OR REPLACE STREAM more {stream}")
    assert list(session.catalog.streams["r"].schema.names) == ["k", "z", "t"]


def test_readers_of_a_view_go_on(session: Session) -> None:
    session.sql("CREATE VIEW v AS SELECT k FROM s [ROWS 3]; CREATE QUERY q AS SELECT * FROM v")
    plan = session.query("q").definition.plan
    with pytest.warns(UserWarning, match="query q reads the view 'v', and goes on with its old"):
        session.sql("CREATE OR REPLACE VIEW v AS SELECT k FROM s [ROWS 4]")
    assert session.query("q").definition.plan is plan
    with pytest.raises(QueryError, match="must be free, but view 'v' exists"):
        session.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT k FROM s [ROWS 4]")


# On Spark


def row_files(folder: Path) -> list[dict[str, Any]]:
    return list(read_committed(folder))


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@contextmanager
def running(made: Session, text: str) -> Iterator[Session]:
    """Run a script in a session, which is closed whatever happens."""
    with made:
        made.sql(text)
        yield made


def script(folder: Path, text: str, verb: str = "CREATE") -> str:
    sink = f"CREATE SINK out USING parquet OPTIONS (path '{folder}/out', changes 'log')"
    return f"{DECLARED} {sink}; {verb} QUERY q INTO out AS {text}"


@pytest.mark.spark
def test_a_query_is_replaced_while_it_runs_and_behind_a_crash(spark: Any, tmp_path: Path) -> None:
    old, new = (f"SELECT * FROM ({GROUPS}) WHERE n > {least}" for least in (1, 0))
    settings = {"shards": 2, "trigger": "10ms"}

    def run(text: str, verb: str = "CREATE") -> Any:
        made = Session(spark, checkpoint=tmp_path / "c", settings=settings)
        return running(made, script(tmp_path, text, verb))

    with run(old) as session:
        session.push("s", [("a", 1, t) for t in range(10)])
        session.await_idle(60)
        before = row_files(tmp_path / "out")
        assert before
        with pytest.raises(ConfigError, match="must be new, or hold answers of the same query"):
            session.sql("CREATE OR REPLACE QUERY q INTO out AS SELECT k FROM s [RANGE 9]")
        assert "HAVING" not in session.query("q").definition.sql
        told = session.sql(f"EXPLAIN REPLACE QUERY q INTO out AS {new}")
        assert "Aggregate" in told.splitlines()[1]
        failpoints.arm("manifest-temp=raise")
        session.sql(f"CREATE OR REPLACE QUERY q INTO out AS {new}")
        session.push("s", [("b", 1, 12)])
        with pytest.raises(StateError, match="failure point manifest-temp"):
            session.await_idle(60)
    failpoints.arm("")
    with pytest.raises(StateError, match="if that is wanted, write CREATE OR REPLACE"), run(new):
        pass
    failpoints.arm("manifest-renamed=raise")
    with (
        pytest.raises(StateError, match="failure point manifest-renamed"),
        run(new, "CREATE OR REPLACE") as session,
    ):
        session.await_idle(60)
    failpoints.arm("")
    with run(new) as session:  # the manifest has the new text
        assert session.query("q").status()["since"] == 10
        session.push("s", [("b", 1, 30)])
        session.finish("s")
        session.await_end(60)
    rows = row_files(tmp_path / "out")
    assert rows[: len(before)] == before
    first = [row for row in rows if row["_time"] == 10 and row["_sign"] == 1]
    assert [(row["k"], row["n"]) for row in first if row["k"] == "a"] == [("a", 8)]
    assert [(r["k"], r["n"]) for r in rows if r["_time"] == 12 and r["_sign"] == 1] == [
        ("a", 6),
        ("b", 1),
    ]


@pytest.mark.spark
def test_a_stream_gets_another_slack_behind_a_restart(spark: Any, tmp_path: Path) -> None:
    """Rows are judged by the new one from then on; no heartbeat that was given is taken back."""
    columns = "s (k STRING, t BIGINT) USING memory TIMESTAMP BY t SLACK"
    sink = f"CREATE SINK out USING jsonl OPTIONS (path '{tmp_path}/out')"
    query = "CREATE QUERY q INTO out AS ISTREAM (SELECT k, COUNT(*) AS n FROM s [NOW] GROUP BY k)"
    settings = {"shards": 2, "trigger": "10ms"}

    def run(stream: str) -> Any:
        made = Session(spark, checkpoint=tmp_path / "c", settings=settings)
        return running(made, f"{stream}; {sink}; {query}")

    def late(session: Session) -> int:
        session.await_idle(60)
        return int(session.query("q").status()["late"])

    with run(f"CREATE STREAM {columns} 2") as session:
        session.push("s", [("a", t) for t in range(0, 21, 2)])  # the heartbeat is 18
        assert late(session) == 0
    with (
        pytest.raises(StateError, match="write CREATE OR REPLACE STREAM if it is to be another"),
        run(f"CREATE STREAM {columns} 10"),
    ):
        pass
    with (
        pytest.raises(StateError, match="columns was"),
        run("CREATE OR REPLACE STREAM s (k STRING, x INT, t BIGINT) USING memory TIMESTAMP BY t"),
    ):
        pass
    with run(f"CREATE OR REPLACE STREAM {columns} 10") as session:
        session.push("s", [("b", 17), ("b", 18), ("b", 19), ("b", 30), ("b", 21), ("b", 19)])
        assert late(session) == 2  # 17 is below what was given, the second 19 below 30 - 10
        assert all(row["_time"] < 20 for row in row_files(tmp_path / "out"))
    with run(f"CREATE STREAM {columns} 10") as session:  # the checkpoint knows the new one
        session.push("s", [("c", 40)])
        session.push("s", [("c", 31)])
        assert late(session) == 2
    with run(f"CREATE OR REPLACE STREAM {columns} 0") as session:
        session.push("s", [("d", 39), ("d", 41)])
        assert late(session) == 3  # 39 is below the newest row so far
        session.finish("s")
        session.await_end(60)
    found = sorted((r["_time"], r["k"], r["n"]) for r in row_files(tmp_path / "out"))
    # at 19 the answer is that of 18, so nothing is new
    kept = [(18, "b"), (21, "b"), (30, "b"), (31, "c"), (40, "c"), (41, "d")]
    assert found == sorted([*((t, "a", 1) for t in range(0, 21, 2)), *((t, k, 1) for t, k in kept)])


@pytest.mark.spark
def test_a_text_over_priorities_stays(spark: Any, tmp_path: Path) -> None:
    stream = "CREATE STREAM p (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t PRIORITY x"
    sinks = " ".join(
        f"CREATE SINK {name} USING jsonl OPTIONS (path '{tmp_path}/{name}');"
        for name in ("out", "other")
    )
    settings = {"shards": 1, "trigger": "10ms"}

    def run(text: str, verb: str = "CREATE") -> Any:
        made = Session(spark, checkpoint=tmp_path / "c", settings=settings)
        return running(made, f"{stream}; {sinks} {verb} QUERY q INTO out AS {text}")

    old, new = (f"ISTREAM (SELECT x FROM p WHERE x > {least})" for least in (1, 0))
    with run(old) as session:
        session.sql(DECLARED)
        session.push("p", [(x, x) for x in range(10)])
        session.await_idle(60)
        for refused in (
            f"CREATE OR REPLACE QUERY q INTO out AS {new}",
            f"CREATE OR REPLACE QUERY q INTO out AS {GROUPS}",
            "ALTER QUERY q SET INTO other",
            f"EXPLAIN REPLACE QUERY q INTO out AS {new}",
        ):
            with pytest.raises(StateError, match="PRIORITY must keep its text, its sink"):
                session.sql(refused)
        session.autostart = False  # what runs is changed at once, or refused, all the same
        with pytest.raises(StateError, match="PRIORITY must keep its text, its sink"):
            session.sql("ALTER QUERY q SET INTO other")
        assert session.query("q").definition.sink == "out"
        session.sql("ALTER QUERY q SET WEIGHT 3")
        assert session.pipeline.book.queries["q"].promise.weight == 3
        session.push("p", [(x, x) for x in range(10, 20)])
        session.await_idle(60)
        assert session.query("q").definition.weight == 3
    with pytest.raises(StateError, match="must keep its text"), run(new, "CREATE OR REPLACE"):
        pass
    with run(old, "CREATE OR REPLACE") as session:
        session.finish("p")
        session.await_end(60)
    assert sorted(row["x"] for row in row_files(tmp_path / "out")) == list(range(2, 20))
