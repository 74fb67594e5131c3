"""Window functions over relations: how they are written, what is refused, what they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.algebra import Filter, GroupTop, Project, Rank, walk
from penstock.catalog import Catalog
from penstock.cql import bind_query
from penstock.errors import NotSupportedError, QueryError
from penstock.optimizer import optimize
from penstock.session import Session
from tests.test_over import catalog  # noqa: F401 (a fixture)
from tests.test_pipeline import KEPT, check_all, create
from tests.world import make_world

WRONG = [
    ("SELECT RANK() OVER (PARTITION BY k) FROM a [RANGE 5]", "RANK must say in which order", "(P"),
    ("SELECT LEAD(x) OVER () FROM a [RANGE 5]", "LEAD must say in which order", "()"),
    ("SELECT NTILE(0) OVER (ORDER BY x) FROM a [RANGE 5]", "at least 1, got 0", "0"),
    ("SELECT NTILE() OVER (ORDER BY x) FROM a [RANGE 5]", "must have 1 to 1 arguments", "NTILE"),
    ("SELECT CUME_DIST(x) OVER (ORDER BY x) FROM a [RANGE 5]", "must have no arguments", "CUME"),
    ("SELECT LEAD(x, -1) OVER (ORDER BY x) FROM a [RANGE 5]", "of at least 0, got -1", "-1"),
    ("SELECT upper(k) OVER (ORDER BY x) FROM a [RANGE 5]", "is not a window function", "upper"),
    (
        "SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING) FROM a [RANGE 5]",
        "must not begin after its end",
        "ROWS",
    ),
    (
        "SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN UNBOUNDED FOLLOWING AND UNBOUNDED FOLLOWING) "
        "FROM a [RANGE 5]",
        "must not begin at UNBOUNDED FOLLOWING",
        "UNBOUNDED",
    ),
    (
        "SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED PRECEDING) "
        "FROM a [RANGE 5]",
        "must not end at UNBOUNDED PRECEDING",
        "UNBOUNDED",
    ),
    (
        "SELECT RANK() OVER (ORDER BY x ROWS 1 PRECEDING) FROM a [RANGE 5]",
        "RANK has no frame",
        "ROWS",
    ),
    ("SELECT sum(x) OVER (ORDER BY NULL) FROM a [RANGE 5]", "NULL needs a type", "NULL"),
    (
        "SELECT sum(x) OVER (ORDER BY x, k RANGE 5 PRECEDING) FROM a [RANGE 5]",
        "ordered by one column, which is a whole number, a DATE or a TIMESTAMP; use ROWS",
        "5 PRECEDING",
    ),
    (
        "SELECT sum(x) OVER (ORDER BY t RANGE 5 MINUTES FOLLOWING) FROM a [RANGE 5]",
        "counts time in integers",
        "5 MINUTES",
    ),
]

REFUSED = [
    (
        "SELECT LAG(x) IGNORE NULLS OVER (ORDER BY x) FROM a [RANGE 5]",
        "filter the nulls away",
        "LAG",
    ),
    ("SELECT FIRST_VALUE(x, TRUE) OVER (ORDER BY x) FROM a [RANGE 5]", "filter them away", "FIRST"),
    ("SELECT count(DISTINCT x) OVER () FROM a [RANGE 5]", "no DISTINCT in window", "count"),
]


@pytest.mark.parametrize(
    ("text", "sentence", "marked"), WRONG + REFUSED, ids=[q[0] for q in WRONG + REFUSED]
)
def test_mistakes(text: str, sentence: str, marked: str, catalog: Catalog) -> None:  # noqa: F811
    with pytest.raises(QueryError) as found:
        bind_query(text, catalog)
    error = found.value
    assert isinstance(error, NotSupportedError) == ((text, sentence, marked) in REFUSED)
    assert sentence in error.message
    assert error.start is not None
    assert text[error.start : error.end].startswith(marked)


def optimized(text: str, catalog: Catalog) -> list:  # noqa: F811
    return list(walk(optimize({"q": bind_query(text, catalog)})["q"]))


NUMBER = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY x DESC, t)"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        (f"SELECT * FROM (SELECT *, {NUMBER} AS r FROM a) WHERE r <= 10", 10, True),
        (f"SELECT k, x FROM (SELECT *, {NUMBER} AS r FROM a) WHERE r < 10", 9, False),
        (f"SELECT k, x FROM (SELECT *, {NUMBER} AS r FROM a [RANGE 9]) q WHERE q.r = 1", 1, False),
        (f"SELECT k, x FROM a QUALIFY {NUMBER} <= 2 AND x > 1", 2, False),
        (f"SELECT k FROM a [RANGE 9] QUALIFY {NUMBER} = 2", 2, True),
        (f"SELECT k FROM a [RANGE 9] QUALIFY {NUMBER} BETWEEN 1 AND 2", 2, True),
        (f"WITH w AS (SELECT k, {NUMBER} AS r FROM a) SELECT k FROM w WHERE 3 >= r", 3, False),
    ],
)
def test_a_bound_makes_a_top_of_groups(
    text: str,
    limit: int,
    shown: bool,
    catalog: Catalog,  # noqa: F811
) -> None:
    nodes = optimized(text, catalog)
    (top,) = [node for node in nodes if isinstance(node, GroupTop)]
    assert (top.limit, bool(top.names)) == (limit, shown)
    assert not any(isinstance(node, Rank) for node in nodes)


def test_a_condition_on_the_group_goes_below(catalog: Catalog) -> None:  # noqa: F811
    text = f"SELECT k, x, r FROM (SELECT *, {NUMBER} AS r FROM a) WHERE r <= 3 AND k = 'a'"
    nodes = optimized(text, catalog)
    assert not any(isinstance(node, Filter) for node in nodes)
    assert any(isinstance(node, GroupTop) for node in nodes)


def test_a_rank_that_nobody_reads_is_not_computed(catalog: Catalog) -> None:  # noqa: F811
    text = f"SELECT k FROM (SELECT k, {NUMBER} AS r FROM a [RANGE 5])"
    assert not any(isinstance(node, Rank) for node in optimized(text, catalog))


def test_functions_of_one_window_are_one_operator(catalog: Catalog) -> None:  # noqa: F811
    text = (
        "SELECT sum(x) OVER w AS s, RANK() OVER w AS r, RANK() OVER w AS again, "
        "ROW_NUMBER() OVER (ORDER BY k) AS n FROM a [RANGE 5] "
        "WINDOW w AS (PARTITION BY k ORDER BY x)"
    )
    ranks = [n for n in walk(bind_query(text, catalog)) if isinstance(n, Rank)]
    assert [[call.name for call in n.calls] for n in ranks] == [["row_number"], ["sum", "rank"]]
    assert any(isinstance(n, Project) for n in walk(bind_query(text, catalog)))


@pytest.mark.spark
def test_ranks_on_spark(spark: Any, tmp_path: Path) -> None:
    """The first rows of groups and functions over snapshots, in two shards and several batches."""
    world = make_world(tmp_path, rows=50)
    number = "ROW_NUMBER() OVER (PARTITION BY k ORDER BY x DESC)"
    queries = {
        "top": f"SELECT * FROM (SELECT *, {number} AS n FROM s) WHERE n <= 3",
        "hidden": f"SELECT k, x FROM (SELECT *, {number} AS n FROM s [RANGE 5]) WHERE n <= 2",
        "ranked": "SELECT k, x, RANK() OVER (PARTITION BY k ORDER BY x) AS r FROM s [RANGE 4]",
        "groups": "SELECT k, SUM(x) AS a, RANK() OVER (ORDER BY SUM(x)) AS r FROM s [ROWS 9] "
        "GROUP BY k",
    }
    settings = {"batch.rows": 18, "shards": 2}
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings=settings) as session:
        session.sql(world.declarations() + KEPT + create(queries))
        assert session.await_end(timeout=280)
        check_all(session, world)
