"""Queries built by calls are the same plans as their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.algebra import Node
from penstock.cql import bind_query
from penstock.errors import QueryError
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.nameless import canonical
from penstock.session import Session
from penstock.session.builder import Relation

DECLARED = """
CREATE STREAM s (k STRING, x BIGINT, y DOUBLE, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM r (k STRING, z BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM m (k STRING, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE TABLE d (k STRING, label STRING) USING rate;
CREATE VIEW recent AS SELECT * FROM s [PARTITION BY k ROWS 2];
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(autostart=False) as made:
        made.sql(DECLARED)
        yield made


def same(node: Node) -> Node:
    return canonical(drop_identities(node, frozenset()))


PAIRS: list[tuple[Callable[[Session], Relation], str]] = [
    (lambda s: s.stream("s").window("RANGE 5"), "SELECT * FROM s [RANGE 5]"),
    (lambda s: s.stream("s").window(range=5, slide=2), "SELECT * FROM s [RANGE 5 SLIDE 2]"),
    (
        lambda s: s.stream("s").window(rows=20, partition_by="k"),
        "SELECT * FROM s [PARTITION BY k ROWS 20]",
    ),
    (
        lambda s: s.stream("s").window(rows=4, slide=2, partition_by=["k", "x"]),
        "SELECT * FROM s [PARTITION BY k, x ROWS 4 SLIDE 2]",
    ),
    (lambda s: s.stream("s").window(tumble=5), "SELECT * FROM s [TUMBLE 5]"),
    (
        lambda s: s.stream("s").window(hop=6, slide=2, offset=1, start=3),
        "SELECT * FROM s [HOP 6 SLIDE 2 OFFSET 1 START 3]",
    ),
    (
        lambda s: (
            s.stream("m").window(tumble="5 MINUTES").group_by("window_start").agg("COUNT(*) AS n")
        ),
        "SELECT window_start, COUNT(*) AS n FROM m [TUMBLE 5 MINUTES] GROUP BY window_start",
    ),
    (lambda s: s.stream("s").window(now=True), "SELECT * FROM s [NOW]"),
    (lambda s: s.stream("s").window(fixed=6), "SELECT * FROM s [FIXED 6]"),
    (lambda s: s.stream("s").window(session=6), "SELECT * FROM s [SESSION 6]"),
    (
        lambda s: s.stream("s").window(after=3, before=9),
        "SELECT * FROM s [AFTER 3 AND BEFORE 9]",
    ),
    (
        lambda s: s.stream("s").window(range=6, slide=2, start=1),
        "SELECT * FROM s [RANGE 6 SLIDE 2 START 1]",
    ),
    (
        lambda s: s.stream("m").window(range="5 MINUTES", slide="1 MINUTE"),
        "SELECT * FROM m [RANGE 5 MINUTES SLIDE 1 MINUTE]",
    ),
    (
        lambda s: s.stream("m").window(after="2024-03-01 12:00:00"),
        "SELECT * FROM m [AFTER '2024-03-01 12:00:00']",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").where("x > 1 AND k = 'a'"),
        "SELECT * FROM s [RANGE 5] WHERE x > 1 AND k = 'a'",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").select("k", "y * 1.8 + 32 AS f"),
        "SELECT k, y * 1.8 + 32 AS f FROM s [RANGE 5]",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").group_by("k").agg("AVG(y) AS m", "COUNT(*) AS n"),
        "SELECT k, AVG(y) AS m, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k",
    ),
    (
        lambda s: s.stream("s").window("ROWS 9").agg("COUNT(DISTINCT k) AS n"),
        "SELECT COUNT(DISTINCT k) AS n FROM s [ROWS 9]",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").group_by("k").count().where("count > 2"),
        "SELECT * FROM (SELECT k, COUNT(*) AS count FROM s [RANGE 5] GROUP BY k) c WHERE count > 2",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").join(s.stream("r").window("ROWS 2"), on="k"),
        "SELECT a.k, a.x, a.y, a.t, b.z, b.t AS u FROM s [RANGE 5] a JOIN r [ROWS 2] b "
        "ON a.k = b.k",
    ),
    (
        lambda s: s.stream("s").window("NOW").join(s.table("d"), on="l.k = r.k AND l.x > 0"),
        "SELECT s.k, s.x, s.y, s.t, d.k AS l, d.label FROM s [NOW] JOIN d ON s.k = d.k AND s.x > 0",
    ),
    (
        lambda s: s.stream("s").window("NOW").asof_join(s.stream("r"), on="k"),
        "SELECT a.k, a.x, a.y, a.t, b.z, b.t AS u FROM s [NOW] a ASOF JOIN r b "
        "ON a.k = b.k AND a.t >= b.t",
    ),
    (
        lambda s: s.stream("s").window("RANGE 3").asof_join(
            s.stream("r").window("ROWS 2"), on="l.k = r.k", at="r.t > l.t + 1", how="left"
        ),
        "SELECT * FROM (SELECT a.k, a.x, a.y, a.t, b.k AS j, b.z, b.t AS u FROM s [RANGE 3] a "
        "ASOF LEFT JOIN r [ROWS 2] b ON a.k = b.k AND a.t + 1 < b.t) q",
    ),
    (
        lambda s: s.stream("s").window("NOW").asof_join(s.stream("r").window("ROWS 2")),
        "SELECT a.k, a.x, a.y, a.t, b.k AS j, b.z, b.t AS u FROM s [NOW] a "
        "ASOF JOIN r [ROWS 2] b ON a.t >= b.t",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").join(
            s.stream("r").window("ROWS 2"), on="k", how="left"
        ),
        "SELECT a.k, a.x, a.y, a.t, b.z, b.t AS u FROM s [RANGE 5] a LEFT JOIN r [ROWS 2] b "
        "USING (k)",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").join(
            s.stream("r").window("ROWS 2"), on="k", how="right"
        ),
        "SELECT b.k, a.x, a.y, a.t, b.z, b.t AS u FROM s [RANGE 5] a RIGHT JOIN r [ROWS 2] b "
        "ON a.k = b.k",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").join(
            s.stream("r").window("ROWS 2"), on="k", how="full"
        ),
        "SELECT coalesce(a.k, b.k) AS k, a.x, a.y, a.t, b.z, b.t AS u FROM s [RANGE 5] a "
        "FULL JOIN r [ROWS 2] b ON a.k = b.k",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").join(
            s.table("d"), on="l.k = r.k AND l.x > 1", how="anti"
        ),
        "SELECT * FROM s [RANGE 5] ANTI JOIN d ON s.k = d.k AND s.x > 1",
    ),
    (
        lambda s: s.view("recent").select("k").distinct(),
        "SELECT DISTINCT k FROM recent",
    ),
    (
        lambda s: s.stream("s").window("NOW").select("k").union_all(
            s.stream("r").window("NOW").select("k")
        ),
        "SELECT k FROM s [NOW] UNION ALL SELECT k FROM r [NOW]",
    ),
    (
        lambda s: s.stream("s").window("NOW").select("k").union(
            s.stream("r").window("NOW").select("k")
        ),
        "SELECT k FROM s [NOW] UNION SELECT k FROM r [NOW]",
    ),
    (
        lambda s: s.stream("s").window("ROWS 3").select("k").except_(
            s.stream("r").window("ROWS 3").select("k"), all=True
        ),
        "SELECT k FROM s [ROWS 3] EXCEPT ALL SELECT k FROM r [ROWS 3]",
    ),
    (
        lambda s: s.stream("s").window("ROWS 3").select("k").intersect(
            s.stream("r").window("ROWS 3").select("k")
        ),
        "SELECT k FROM s [ROWS 3] INTERSECT SELECT k FROM r [ROWS 3]",
    ),
    (
        lambda s: s.stream("s").window("RANGE 9").top(3, "y DESC", "k"),
        "SELECT * FROM s [RANGE 9] ORDER BY y DESC, k LIMIT 3",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").select("k").istream(),
        "ISTREAM (SELECT k FROM s [RANGE 5])",
    ),
    (lambda s: s.stream("s").window("ROWS 2").dstream(), "DSTREAM (SELECT * FROM s [ROWS 2])"),
    (
        lambda s: s.stream("s").window("RANGE 5 SLIDE 3").select("x").rstream(),
        "RSTREAM (SELECT x FROM s [RANGE 5 SLIDE 3])",
    ),
    (
        lambda s: s.stream("s").window("RANGE 5").select("k").istream().window("ROWS 2"),
        "SELECT * FROM ISTREAM (SELECT k FROM s [RANGE 5]) [ROWS 2]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("build", "text"), PAIRS, ids=[text for _, text in PAIRS])
def test_calls_and_text_make_one_plan(session: Session, build: Any, text: str) -> None:
    assert same(build(session).node) == same(bind_query(text, session.catalog))


def test_columns_and_plans_can_be_looked_at(session: Session) -> None:
    built = session.stream("s").window("RANGE 5").group_by("k").avg("y")
    assert built.schema.names[0] == "k"
    assert "Aggregate" in built.explain()


def test_short_aggregates(session: Session) -> None:
    for name in ("avg", "sum", "min", "max"):
        built = getattr(session.stream("s").window("RANGE 5").group_by("k"), name)("x")
        text = f"SELECT k, {name}(x) AS a FROM s [RANGE 5] GROUP BY k"
        assert same(built.node) == same(bind_query(text, session.catalog))


def test_a_joined_column_whose_name_is_taken_gets_another(session: Session) -> None:
    built = session.stream("s").window("NOW").join(session.stream("r").window("NOW"), on="k")
    assert built.schema.names == ("k", "x", "y", "t", "z", "t_right")


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda s: s.stream("nothing"), "there is no stream, table or view 'nothing'"),
        (lambda s: s.stream("s").window(), "a window must be given either as text or by keywords"),
        (lambda s: s.stream("s").window("NOW", now=True), "either as text or by keywords"),
        (lambda s: s.stream("s").window(size=3), "a window has no part 'size'; known: partition"),
        (lambda s: s.stream("s").window(rows=0), "ROWS"),
        (lambda s: s.table("d").window("ROWS 2"), "a window must be over a stream"),
        (lambda s: s.stream("s").where("x + 1"), "a condition must be BOOLEAN"),
        (lambda s: s.stream("s").where("w > 1"), "there is no column 'w'"),
        (lambda s: s.stream("s").group_by("k").agg("x + 1"), "an aggregate must be given"),
        (lambda s: s.stream("s").join(s.stream("r"), on="w"), "there is no column 'w'"),
        (lambda s: s.stream("s").asof_join(s.stream("r"), at="w"), "there is no column 'w'"),
        (lambda s: s.stream("s").asof_join(s.stream("r"), at="l.k = r.k"), "got only equalities"),
        (lambda s: s.stream("s").asof_join(s.stream("r"), how="right"), "inner, left in asof_join"),
        (lambda s: s.stream("s").union_all(s.stream("r")), "must have the same column types"),
        (lambda s: s.stream("s").except_(s.stream("r")), "must have the same column types"),
        (lambda s: s.stream("s").top(0, "x"), "must be at least 1, got 0"),
        (lambda s: s.stream("s").select("k", "x AS K").start("q"), "two columns 'K'"),
        (lambda s: s.stream("s").join(s.stream("m"), on="k").start("q"), "time in one way"),
        (lambda s: s.table("d").start("q"), "must read at least one stream"),
        (lambda s: s.stream("s").start("q", into="nowhere"), "there is no sink 'nowhere'"),
    ],
)  # fmt: skip
def test_mistakes(session: Session, build: Any, sentence: str) -> None:
    with pytest.raises(QueryError) as caught:
        build(session)
    assert sentence in str(caught.value)
