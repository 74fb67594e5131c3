"""The book of queries: since when each sees its streams, what it shares, and EXPLAIN's trial."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock import Session, cql
from penstock.catalog import Catalog
from penstock.cql import bind_query
from penstock.errors import StateError
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.settings import Settings
from penstock.testing import Rig

STREAM = "CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t"
TEXT = "SELECT k, COUNT(*) AS n FROM s [ROWS 3] WHERE x > 1 GROUP BY k"


def catalog() -> Catalog:
    known = Catalog()
    for parsed in cql.parse_script(STREAM):
        statement: Any = cql.bind(parsed, known)
        known.add(statement.definition)
    return known


def booked(name: str, text: str = TEXT, mode: str = "view") -> BookedQuery:
    return BookedQuery(name, bind_query(text, catalog()), mode)


def book_of(*names: str) -> QueryBook:
    book = QueryBook(Settings())
    for name in names:
        book.add(booked(name))
    return book


def digests(book: QueryBook, moment: Moment) -> set[str]:
    return {node.digest for node in book.plan(moment).nodes}


def test_queries_that_begin_together_share() -> None:
    book = book_of("a", "b")
    users = book.plan(Moment()).users()
    assert [using for using in users.values() if len(using) == 1] == [{"a"}, {"b"}]  # outputs
    assert book.queries["a"].since is book.queries["b"].since is None
    assert book.queries["a"].batch == 0


def test_a_query_that_begins_later_has_state_of_its_own() -> None:
    book = book_of("a")
    before = book.plan(Moment())
    book.add(booked("b"))
    later = Moment(3, {"s": 10}, before.numbers)
    after = book.plan(later)
    assert (book.queries["b"].since, book.queries["b"].batch) == (11, 3)
    assert {n.digest for n in before.nodes} < {n.digest for n in after.nodes}
    assert all(len(using) == 1 for using in after.users().values())


def test_what_was_settled_for_a_batch_that_did_not_run_is_settled_again() -> None:
    book = book_of("a")
    book.plan(Moment(2, {"s": 10}))
    book.add(booked("b"))
    made = book.plan(Moment(2, {"s": 15}))
    assert book.queries["a"].since == book.queries["b"].since == 16
    book.add(booked("c"))
    book.plan(Moment(3, {"s": 20}, made.numbers))
    assert [q.since for q in book.queries.values()] == [16, 16, 21]


def test_a_trial_shows_what_will_run_and_changes_nothing() -> None:
    book = book_of("a")
    before = book.plan(Moment())
    later = Moment(1, {"s": 10}, before.numbers)
    trial = book.copy()
    trial.add(booked("b"))
    tried = digests(trial, later)
    assert set(book.queries) == {"a"}
    assert digests(book, later) == {n.digest for n in before.nodes}
    book.add(booked("b"))
    assert digests(book, later) == tried


def test_a_paused_query_begins_anew() -> None:
    book = book_of("a", "b")
    made = book.plan(Moment())
    book.pause("b")
    later = Moment(4, {"s": 10}, made.numbers)
    assert {a.query for a in book.plan(later).answers} == {"a"}
    book.resume("b")
    book.resume("a")  # it is not paused: it goes on
    book.plan(later)
    assert (book.queries["a"].since, book.queries["b"].since) == (None, 11)


def test_a_query_goes_on_as_the_manifest_knows_it() -> None:
    book = book_of("a")
    made = book.plan(Moment(7, {"s": 10}))
    told = {name: query.describe(None) for name, query in book.queries.items()}
    again = QueryBook(Settings(), told, "here")
    assert again.missing() == ["a"]
    with pytest.raises(StateError, match="must be the one that the checkpoint here was made with"):
        again.add(booked("a", mode="log"))
    again.add(booked("a"))
    assert again.missing() == []
    assert digests(again, Moment(9, {"s": 30}, made.numbers)) == {n.digest for n in made.nodes}
    again.drop("a")
    again.add(booked("a", mode="log"))
    assert again.queries["a"].batch is None


def test_a_plan_that_would_lose_state_is_refused() -> None:
    book = book_of("a")
    made = book.plan(Moment())
    told = {"a": book.queries["a"].describe(None)}
    other = QueryBook(Settings({"rules": False}), told, "here")
    other.add(booked("a"))
    with pytest.raises(StateError, match="query 'a' must be planned as the checkpoint here was"):
        other.plan(Moment(1, {"s": 10}, made.numbers))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.spark
def test_explain_of_a_later_query_shows_what_runs(spark: Any) -> None:
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(f"{STREAM}; CREATE QUERY a AS {TEXT}")
        session.push("s", [("k", 2, 1), ("k", 3, 2)])
        session.await_idle()
        announced = session.sql(f"EXPLAIN {TEXT}")
        assert "shared with a" not in announced
        later = session.sql(f"CREATE QUERY b AS {TEXT}")
        created = later.explain()
        session.push("s", [("k", 2, 3)])
        session.await_idle()
        wait_for(lambda: later.status()["since"] is not None)
        assert later.explain() == created == announced.replace("the query", "b")
        count = len(session.pipeline.plan().nodes)
        assert f"2 queries, {count} operators in the whole plan" in announced


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("kind", ["LEFT", "ANTI", ""])
def test_negative_tuples_of_a_query_do_not_depend_on_the_others(kind: str, rules: bool) -> None:
    streams = "".join(
        f"CREATE STREAM {name} (k STRING, x INT, t BIGINT) USING memory TIMESTAMP BY t;"
        for name in "ab"
    )
    join = f"SELECT a.k FROM a [RANGE 3] a {kind} JOIN b [RANGE 6] b ON a.k = b.k"
    other = "SELECT k FROM b [RANGE 6]"
    for first, second, dropped in ((join, other, "p"), (other, join, "q"), (join, other, "q")):
        rig = Rig(
            f"{streams} CREATE QUERY p AS {first}; CREATE QUERY q AS {second};",
            settings={"lifetime": "negative", "rules": rules, "join.windows": "apart"},
        )
        rig.feed({"a": [("u", 1, 1)], "b": [("u", 1, 2)]})
        rig.sql(f"DROP QUERY {dropped}")
        rig.feed("b", [("u", 1, 4)])
        rig.sql(f"CREATE QUERY r AS {join}; CREATE QUERY s AS {other}")
        rig.feed({"a": [("u", 1, 5)], "b": [("u", 2, 6)]})
        rig.end()
        rig.assert_oracle()
