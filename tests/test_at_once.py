"""Answers that leave at once: which they are, that they are there, and that they are right."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from penstock import cql
from penstock.catalog import Catalog
from penstock.cql.binding.statements import Create
from penstock.optimizer.nameless import canonical
from penstock.physical.at_once import at_once
from penstock.testing import Rig
from tests.plan_runner import PLANS, read

STREAMS = """
CREATE STREAM s (k STRING, v INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 4;
CREATE STREAM r (k STRING, v INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 4;
CREATE TABLE d (name STRING, w INT) USING csv OPTIONS (path 'none.csv');
CREATE TABLE f (name STRING, since BIGINT) USING csv OPTIONS (path 'none.csv') VALID FROM since;
"""
TABLES = {"d": [("a", 1), ("a", 2), ("b", 1), ("c", 7), (None, 3)], "f": [("a", 3)]}

# a query, and the ways of delivery in which it leaves at once
CASES = {
    # nothing dies
    "SELECT k FROM s": {"log", "intervals"},
    "SELECT k, v + 1 FROM s WHERE v > 1": {"log", "intervals"},
    "SELECT k FROM s [RANGE UNBOUNDED]": {"log", "intervals"},
    "SELECT k FROM s [AFTER 3 AND BEFORE 7]": {"log", "intervals"},
    "SELECT k FROM s [RANGE UNBOUNDED SLIDE 5]": {"log", "intervals"},
    "ISTREAM (SELECT k FROM s)": {"stream"},
    "ISTREAM (SELECT k FROM s UNION ALL SELECT k FROM r)": {"stream"},
    "SELECT k FROM (ISTREAM (SELECT k, v FROM s)) AS i WHERE v > 1": {"log", "intervals"},
    # rows die: births may meet deaths unless the time is in the answer
    "SELECT k FROM s [RANGE 5]": {"intervals"},
    "SELECT k, t FROM s [NOW]": {"intervals"},
    "ISTREAM (SELECT k FROM s [RANGE 5])": set(),
    "ISTREAM (SELECT k FROM s [NOW])": set(),
    "ISTREAM (SELECT k, t + 0 AS t FROM s [NOW])": set(),
    "ISTREAM (SELECT k, t FROM s [NOW])": {"stream"},
    "ISTREAM (SELECT t FROM s [RANGE 5] WHERE v > 1)": {"stream"},
    "ISTREAM (SELECT k, t FROM s [RANGE 5 SLIDE 3])": {"stream"},
    "ISTREAM (SELECT k, t FROM s [RANGE 2 SLIDE 5])": {"stream"},
    "ISTREAM (SELECT k, t FROM s [FIXED 5])": {"stream"},
    "ISTREAM (SELECT k FROM s [FIXED 5])": set(),
    "ISTREAM (SELECT k, t FROM s [TUMBLE 5])": {"stream"},
    "ISTREAM (SELECT k, t, window_end FROM s [TUMBLE 5])": {"stream"},
    "ISTREAM (SELECT k, t FROM s [HOP 10 SLIDE 5])": {"stream"},
    "ISTREAM (SELECT k, t FROM s [HOP 10 SLIDE 5] WHERE window_end > 7)": set(),  # cut rows
    "SELECT k, t FROM s [HOP 10 SLIDE 5] WHERE window_end > 7": {"intervals"},
    # unions: all branches together
    "SELECT k FROM s [RANGE 5] UNION ALL SELECT k FROM r": {"intervals"},
    "ISTREAM (SELECT k FROM s [RANGE 5] UNION ALL SELECT k FROM r)": set(),
    "ISTREAM (SELECT k, t FROM s [RANGE 5] UNION ALL SELECT k, t FROM r)": {"stream"},
    "ISTREAM (SELECT k, t FROM s [RANGE 5] UNION ALL SELECT k, t FROM s [NOW])": {"stream"},
    "ISTREAM (SELECT v, t FROM s [RANGE 5] UNION ALL SELECT t, CAST(v AS BIGINT) FROM r [NOW])": (
        set()
    ),
    "ISTREAM (SELECT k, t FROM s [RANGE 5] UNION ALL SELECT k, t FROM s [RANGE 8 SLIDE 4])": set(),
    # tables whose rows hold for all time
    "SELECT s.k, w FROM s JOIN d ON s.k = d.name": {"log", "intervals"},
    "SELECT s.k, w FROM d JOIN s [RANGE 5] ON s.k = d.name WHERE w > 1": {"intervals"},
    "ISTREAM (SELECT s.k, w FROM s [NOW] JOIN d ON s.k = d.name)": set(),
    "ISTREAM (SELECT s.k, w, t FROM s [NOW] JOIN d ON s.k = d.name)": {"stream"},
    "ISTREAM (SELECT w, t FROM d JOIN s [RANGE 9 SLIDE 4] ON s.v < d.w)": {"stream"},
    "ISTREAM (SELECT s.k, w FROM s JOIN d ON s.k = d.name UNION ALL SELECT k, v FROM r)": {
        "stream"
    },
    "SELECT s.k FROM s JOIN f ON s.k = f.name": set(),
    "SELECT s.k, w FROM s LEFT JOIN d ON s.k = d.name": set(),
    "SELECT a.k FROM s AS a JOIN d ON a.k = d.name JOIN d AS e ON a.v = e.w": set(),
    # others are not row-wise
    "DSTREAM (SELECT k, t FROM s [RANGE 5])": set(),
    "RSTREAM (SELECT k, t FROM s [RANGE 5 SLIDE 5])": set(),
    "ISTREAM (SELECT k, t FROM s [ROWS 2])": set(),
    "ISTREAM (SELECT k, t FROM s [SESSION 2])": set(),
    "SELECT DISTINCT k FROM s": set(),
    "SELECT k, COUNT(*) AS n FROM s GROUP BY k": set(),
    "SELECT s.k FROM s [RANGE 5] JOIN r [RANGE 5] ON s.k = r.k": set(),
    "ISTREAM (SELECT k, t FROM (ISTREAM (SELECT k, t FROM s [RANGE 3])) AS i [RANGE 2])": set(),
    "ISTREAM (SELECT k, t FROM (ISTREAM (SELECT k, t FROM s)) AS i [RANGE 2])": {"stream"},
}


@pytest.fixture(scope="module")
def declared() -> Catalog:
    catalog = Catalog()
    for parsed in cql.parse_script(STREAMS):
        statement = cql.bind(parsed, catalog)
        assert isinstance(statement, Create)
        catalog.add(statement.definition)
    return catalog


@pytest.mark.parametrize("text", CASES)
def test_which_answers_leave_at_once(declared: Catalog, text: str) -> None:
    plan = canonical(cql.bind_query(text, declared))
    stream = text.startswith(("ISTREAM", "DSTREAM", "RSTREAM"))
    modes = ("stream",) if stream else ("log", "intervals", "view", "delta", "kept")
    assert {mode for mode in modes if at_once(plan, mode) is not None} == CASES[text]


def rig_of(text: str, changes: str = "", **more: Any) -> Rig:
    """Return a rig with one query, ``q``, into a sink that asks for some changes."""
    sink = f"CREATE SINK out USING memory OPTIONS (changes '{changes}');" if changes else ""
    into = "INTO out" if changes else ""
    return Rig(f"{STREAMS} {sink} CREATE QUERY q {into} AS {text};", tables=TABLES, **more)


METHODS = ("direct", "negative")


@pytest.mark.parametrize("lifetime", METHODS)
def test_the_newest_row_is_there_before_the_heartbeat_passes_it(lifetime: str) -> None:
    rig = rig_of(
        "ISTREAM (SELECT k, t FROM s [RANGE 5] WHERE v > 1)", settings={"lifetime": lifetime}
    )
    rig.feed("s", [("a", 2, 10)])
    rig.assert_stream("q", [("a", 10, 10)])
    rig.feed("s", [("b", 1, 9), ("b", 2, 9), ("b", 2, 9)])  # not late, and two are equal
    rig.assert_stream("q", [("a", 10, 10), ("b", 9, 9), ("b", 9, 9)])
    rig.assert_oracle()
    assert rig.under_all_settings() > 10
    rig.end()
    rig.assert_stream("q", [("a", 10, 10), ("b", 9, 9), ("b", 9, 9)])


@pytest.mark.parametrize("lifetime", METHODS)
def test_intervals_leave_when_they_come(lifetime: str) -> None:
    rig = rig_of("SELECT k FROM s [RANGE 6 SLIDE 4]", "intervals", settings={"lifetime": lifetime})
    rig.feed("s", [("a", 1, 5), ("b", 1, 4)])
    assert rig.rows("q") == [("b", 4, 12), ("a", 8, 12)]
    rig.feed("s", [("a", 1, 5)])
    rig.end()
    rig.assert_intervals("q", [("b", 4, 12), ("a", 8, 12), ("a", 8, 12)], exact=True)
    rig.assert_oracle()
    rig.under_all_settings()


@pytest.mark.parametrize("lifetime", METHODS)
def test_a_log_without_deaths_leaves_when_its_rows_come(lifetime: str) -> None:
    rig = rig_of("SELECT k FROM s", "log", settings={"lifetime": lifetime})
    rig.feed("s", [("a", 1, 5), ("b", 1, 4)])
    rig.assert_log("q", [("a", 5, "+"), ("b", 4, "+")])
    rig.assert_oracle()
    rig.assert_view("q", [])  # what holds at an instant waits: more may come of it


@pytest.mark.parametrize("lifetime", METHODS)
def test_a_birth_that_meets_a_death_still_cancels(lifetime: str) -> None:
    rig = rig_of("ISTREAM (SELECT k FROM s [NOW])", settings={"lifetime": lifetime})
    rig.feed("s", [("a", 1, 5), ("a", 1, 6), ("a", 1, 9)])
    rig.end()
    rig.assert_stream("q", [("a", 5), ("a", 9)])


def test_late_rows_and_rows_before_a_query_began_are_not_answered() -> None:
    rig = rig_of("ISTREAM (SELECT k FROM s)")
    rig.feed("s", [("a", 1, 10), ("late", 1, 5), ("b", 1, 6)])
    rig.sql("CREATE QUERY later AS ISTREAM (SELECT k FROM s)")
    rig.feed("s", [("c", 1, 10), ("d", 1, 11)])
    rig.assert_stream("q", [("a", 10), ("b", 6), ("c", 10), ("d", 11)])
    rig.assert_stream("later", [("d", 11)])
    rig.assert_oracle()


def test_unions_leave_at_once_whichever_stream_is_behind() -> None:
    rig = rig_of("ISTREAM (SELECT k, t FROM s [RANGE 5] UNION ALL SELECT k, t FROM r)")
    rig.feed("s", [("a", 1, 100)])
    rig.assert_stream("q", [("a", 100, 100)])
    rig.feed("r", [("b", 1, 3)])
    rig.assert_stream("q", [("a", 100, 100), ("b", 3, 3)])
    rig.under_all_settings()


@pytest.mark.parametrize("text", [text for text, modes in CASES.items() if modes])
def test_random_rows_are_answered_as_the_oracle_says_at_every_moment(text: str) -> None:
    chance = random.Random(text)
    changes = "" if text.startswith("ISTREAM") else chance.choice(("log", "intervals"))
    settings = {"lifetime": chance.choice(METHODS)}
    rig = rig_of(text, changes, shards=chance.choice((1, 3)), settings=settings)
    read_by = [name for name in ("s", "r") if re.search(rf"(FROM|JOIN) {name}\b", text)]
    now = 0
    for _ in range(6):
        now += chance.randint(0, 4)
        rows = [
            (chance.choice("ab"), chance.randint(0, 2), max(0, now - chance.randint(0, 6)))
            for _ in range(chance.randint(1, 5))
        ]
        rig.feed(chance.choice(read_by), rows)
        rig.assert_oracle()
    rig.under_all_settings()
    rig.end()
    rig.assert_oracle()


def test_plans_say_whether_an_answer_leaves_at_once() -> None:
    texts = [line for path in PLANS for q in read(path).queries for line in q.expected]
    outputs = [line for line in texts if line.startswith("Output ")]
    assert any("leaves at once" in line for line in outputs)
    assert any("waits for the heartbeat" in line for line in outputs)
