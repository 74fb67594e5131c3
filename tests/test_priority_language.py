"""PRIORITY in the language: what plans know of it, what `_priority` means, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import cql
from penstock.algebra import Node, Scan, walk
from penstock.asking.encoding import Declared, declared_in, decode, encode
from penstock.catalog import Catalog, StreamDef
from penstock.cql.binding.priorities import priority_of
from penstock.errors import DataError, QueryError
from penstock.expr.arrow import evaluate
from penstock.optimizer import optimize_alone
from penstock.optimizer.window_joins import digest
from penstock.physical.book import BookedQuery
from penstock.physical.priorities import priorities
from penstock.reference import Inputs, relation, to_intervals
from penstock.session import Session
from penstock.session.builder import Relation
from penstock.testing import Rig

STREAMS = """
CREATE STREAM a (k INT, x INT, t INT) USING memory TIMESTAMP BY t
  PRIORITY CASE WHEN x > 10 THEN x ELSE 0 END;
CREATE STREAM b (k INT, y INT, u INT) USING memory TIMESTAMP BY u;
"""


def catalog_of(script: str = STREAMS) -> Catalog:
    catalog = Catalog()
    for parsed in cql.parse_script(script):
        catalog.add(cql.bind(parsed, catalog).definition)
    return catalog


def scans(plan: Node) -> dict[str, bool]:
    return {n.stream: n.prioritised for n in walk(plan) if isinstance(n, Scan)}


# Scans


JOINED = "SELECT a.k FROM a [RANGE 5], b [NOW] WHERE a.k = b.k AND b.y > 3 AND a.x > 2"


def test_scans_know_whether_their_stream_has_priorities() -> None:
    catalog = catalog_of()
    plan = cql.bind_query(JOINED, catalog)
    assert scans(plan) == {"a": True, "b": False}
    assert scans(catalog.relation("a")) == {"a": True}
    narrowed = optimize_alone(plan, (), None, True)
    assert scans(narrowed) == {"a": True, "b": False}
    assert {n.columns for n in walk(narrowed) if isinstance(n, Scan)} != {None}


def test_priorities_change_no_digest() -> None:
    plain = catalog_of(STREAMS.replace("PRIORITY CASE WHEN x > 10 THEN x ELSE 0 END", ""))
    one, other = cql.bind_query(JOINED, catalog_of()), cql.bind_query(JOINED, plain)
    assert one != other
    assert digest(one) == digest(other)
    assert BookedQuery("q", one, "log").signature == BookedQuery("q", other, "log").signature


def test_plans_of_older_checkpoints_are_read() -> None:
    catalog = catalog_of(STREAMS + "CREATE VIEW v AS SELECT k FROM a [RANGE 5];")
    plan = cql.bind_query(JOINED, catalog)
    assert decode(json.loads(json.dumps(encode(plan)))) == plan
    data = Declared(catalog, {"q": (plan, "kept")}).to_bytes()
    old = data.replace(b'"prioritised":true,', b"").replace(b'"prioritised":false,', b"")
    assert len(old) < len(data)
    for written in (data, old):
        found = declared_in(written)
        assert found.queries == {"q": (plan, "kept")}
        assert found.catalog.views["v"].plan == catalog.views["v"].plan
        assert found.catalog.streams["a"].scan == catalog.streams["a"].scan


# The numbers


def stream_of(priority: str, columns: str = "k INT, x INT, t INT") -> StreamDef:
    text = f"CREATE STREAM s ({columns}) USING memory TIMESTAMP BY t PRIORITY {priority}"
    found = catalog_of(text).streams["s"]
    assert isinstance(found, StreamDef)
    return found


def numbers(definition: StreamDef, rows: list[tuple[Any, ...]]) -> list[int]:
    columns = [
        pa.array(column, f.type)
        for f, column in zip(definition.schema, zip(*rows, strict=True), strict=True)
    ]
    found = priorities(definition, columns, len(rows))
    assert found.dtype == np.uint8
    return found.tolist()


ROWS = [(1, 0, 1), (2, 255, 2), (3, None, 3), (4, 7, 4)]


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        ("x", [0, 255, 0, 7]),
        ("x > 5", [0, 1, 0, 1]),
        ("CAST(x AS BIGINT)", [0, 255, 0, 7]),
        ("CASE WHEN x > 5 THEN 10 END", [0, 10, 0, 10]),
        ("NULL", [0, 0, 0, 0]),
        ("TRUE", [1, 1, 1, 1]),
        ("255", [255, 255, 255, 255]),
        ("LEAST(GREATEST(x * 100, 0), 255)", [0, 255, 0, 255]),
    ],
)
def test_priorities_are_numbers_from_0_to_255(priority: str, expected: list[int]) -> None:
    definition = stream_of(priority)
    assert numbers(definition, ROWS) == expected
    assert priorities(definition, [pa.array([], pa.int32())] * 3, 0).tolist() == []


def test_a_stream_without_priority_is_normal() -> None:
    definition = catalog_of().streams["b"]
    assert numbers(definition, [(1, 300, 1), (2, None, 2)]) == [0, 0]


@pytest.mark.parametrize(
    ("priority", "rows", "says"),
    [
        ("x", [(1, 1, 1), (1, 300, 2)], "got 300; correct the rows, or keep it within by LEAST("),
        (
            "-x",
            [(1, 0, 1), (1, 3, 2), (1, 4, 3)],
            "PRIORITY -x of stream s must be from 0 .* got -3",
        ),
        ("10 DIV x", [(1, 0, 1)], "PRIORITY .* of stream s must have a value on every row, but: "),
        ("k + x", [(2**31 - 1, 1, 1)], "of stream s must have a value on every row, but: "),
    ],
)
def test_values_that_are_no_priority(priority: str, rows: list[Any], says: str) -> None:
    with pytest.raises(DataError, match=says.replace("(", r"\(")):
        numbers(stream_of(priority), rows)


def test_what_a_query_reads_is_what_counts() -> None:
    """The pseudo-column and the numbers are computed in two ways, which agree."""
    for priority in ("x", "x > 5", "CASE WHEN x > 5 THEN 10 END", "CAST(x AS SMALLINT)", "7"):
        definition = stream_of(priority)
        value = priority_of(definition)
        columns = [pa.array(c, pa.int32()) for c in zip(*ROWS, strict=True)]
        assert value.type == pa.int32()
        assert evaluate(value, columns, len(ROWS)).to_pylist() == numbers(definition, ROWS)


# `_priority`, what cannot be seen in answers (tests/golden/priority.test has those)


def plan(text: str, script: str = STREAMS) -> str:
    return cql.render_plan(cql.bind_query(text, catalog_of(script)))


def test_a_query_without_it_has_the_plan_it_had() -> None:
    assert plan("SELECT * FROM a") == "Window [RANGE UNBOUNDED]\n  Scan a (k, x, t) time t"


def test_its_name_is_spelled_in_one_way() -> None:
    text = "SELECT k, p._PRIORITY FROM a [RANGE 5] p GROUP BY k, _Priority"
    assert cql.bind_query(text, catalog_of()).schema.names == ("k", "_priority")


def test_an_alias_of_that_name_comes_first() -> None:
    text = "SELECT x AS _priority, COUNT(*) AS n FROM a [RANGE 5] GROUP BY _priority"
    assert plan(text).startswith("Aggregate count(*) AS n by x AS _priority\n")


def test_it_reaches_into_sessions_of_spark() -> None:
    text = """
    SELECT session_window.start, MAX(_priority) AS most FROM a WHERE x > 3
    GROUP BY session_window(t, '5')
    """
    kept = "least(greatest(CASE WHEN x > 10 THEN x ELSE 0 END, 0), 255)"
    assert f"max(coalesce({kept}, 0))" in plan(text)


def test_what_is_in_range_is_not_kept_there() -> None:
    for priority in ("x > 5", "CASE WHEN x > 5 THEN 10 END", "CASE WHEN x > 5 THEN x > 7 END", "7"):
        assert "greatest" not in cql.expr_text(priority_of(stream_of(priority)))


def test_on_sees_what_is_joined_so_far() -> None:
    text = "SELECT a.k FROM a [RANGE 5] JOIN b [RANGE 5] ON a.k = b.k AND _priority > y"
    assert "ELSE 0 END, 0), 255), 0), 0) > right y" in plan(text)


def test_conditions_on_it_move_below_joins() -> None:
    """It cannot fail, so a selection of important rows is done before they meet others."""
    for kind, priority in (("INT", "x"), ("BIGINT", "CASE WHEN x > 9 THEN x ELSE 0 END")):
        catalog = catalog_of(
            f"CREATE STREAM urgent (k INT, x {kind}, t INT) USING memory TIMESTAMP BY t "
            f"PRIORITY {priority};"
            "CREATE STREAM b (k INT, y INT, u INT) USING memory TIMESTAMP BY u;"
        )
        text = (
            "SELECT u.x FROM urgent [RANGE 5] u JOIN b [RANGE 5] ON u.k = b.k WHERE u._priority > 3"
        )
        planned = optimize_alone(cql.bind_query(text, catalog), (), None, True)
        lines = cql.render_plan(planned).splitlines()
        assert not [line for line in lines if "Join" in line and "255" in line], kind


def test_a_sub_query_sees_its_own_streams_first() -> None:
    inside = "SELECT k FROM a [NOW] WHERE k IN (SELECT k FROM b [NOW] WHERE _priority = 0)"
    assert "Filter 0 = 0" in plan(inside)


VIEWS = (
    STREAMS
    + """
CREATE TABLE d (k INT, name STRING) USING rate;
CREATE VIEW v AS SELECT k FROM a [RANGE 5];
CREATE VIEW w AS SELECT k, _priority FROM a [RANGE 5];
"""
)

NOWHERE = "those of a sub-query or view only if it selects one: write SELECT .., _priority"


@pytest.mark.parametrize(
    ("text", "says", "marked"),
    [
        ("SELECT _priority FROM v", NOWHERE, "_priority"),
        ("SELECT q._priority FROM (SELECT * FROM a) q", NOWHERE, "q._priority"),
        ("WITH q AS (SELECT k FROM a) SELECT _priority FROM q", NOWHERE, "_priority"),
        (
            "SELECT _priority FROM v, b [NOW] WHERE v.k = b.k",
            "is the greatest of all items of FROM, and 'v' has none; write b._priority, or select "
            "_priority in 'v' as well",
            "_priority",
        ),
        (
            "SELECT _priority FROM (SELECT k FROM a [NOW]), b [NOW] WHERE y = 1",
            "and a sub-query has none",
            "_priority",
        ),
        ("SELECT d._priority FROM d, a WHERE a.k = d.k", "a table have no priority", "d._priority"),
        ("SELECT z._priority FROM a", "there is no 'z' in FROM", "z"),
        (
            "SELECT k, _priority FROM a [RANGE 5] GROUP BY k",
            "column _priority must be in GROUP BY or inside an aggregate",
            "_priority",
        ),
        (
            "SELECT k FROM a [NOW] UNION ALL SELECT k FROM b [NOW] ORDER BY _priority LIMIT 1",
            NOWHERE,
            "_priority",
        ),
        ("SELECT _priorty FROM a", "there is no column '_priorty'", "_priorty"),
    ],
)
def test_where_it_means_nothing(text: str, says: str, marked: str) -> None:
    with pytest.raises(QueryError) as error:
        cql.bind_query(text, catalog_of(VIEWS))
    assert says in error.value.message
    assert text[error.value.start : error.value.end] == marked


def test_a_view_that_selects_it_has_it() -> None:
    catalog = catalog_of(VIEWS)
    assert cql.bind_query("SELECT * FROM w", catalog).schema.names == ("k", "_priority")
    both = cql.render_plan(cql.bind_query("SELECT _priority FROM w, w z WHERE w.k = z.k", catalog))
    assert "greatest(_priority, _priority)" in both


# In Python


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(autostart=False) as made:
        made.sql(
            VIEWS
            + "CREATE SINK hot USING memory; CREATE SINK soon USING memory;"
            + "CREATE STREAM o (_priority INT, k INT, t INT) USING memory TIMESTAMP BY t PRIORITY 9"
        )
        yield made


PAIRS: list[tuple[Callable[[Session], Relation], str]] = [
    (
        lambda s: s.stream("a").window("RANGE 5").where("_priority > 3").select("k", "_priority"),
        "SELECT k, _priority FROM a [RANGE 5] WHERE _priority > 3",
    ),
    (
        lambda s: s.stream("a").window("RANGE 5").group_by("_priority").agg("MAX(_priority) AS m"),
        "SELECT _priority, MAX(_priority) AS m FROM a [RANGE 5] GROUP BY _priority",
    ),
    (
        lambda s: s.stream("a").window("RANGE 5").top(2, "_priority DESC"),
        "SELECT * FROM a [RANGE 5] ORDER BY _priority DESC LIMIT 2",
    ),
    (lambda s: s.stream("b").select("_priority"), "SELECT _priority FROM b"),
    (lambda s: s.stream("o").select("_priority"), "SELECT _priority FROM o"),
    (lambda s: s.view("w").select("_priority"), "SELECT _priority FROM w"),
    (
        lambda s: (
            s.stream("a")
            .window("RANGE 5")
            .join(s.stream("b").window("RANGE 5"), "l.k = r.k AND l._priority > r._priority")
            .select("k", "y", "_priority")
        ),
        "SELECT a.k, y, _priority FROM a [RANGE 5], b [RANGE 5] WHERE a.k = b.k AND "
        "a._priority > b._priority",
    ),
    (
        lambda s: (
            s.stream("a").window("RANGE 5").join(s.table("d"), "k").select("name", "_priority")
        ),
        "SELECT name, _priority FROM a [RANGE 5] JOIN d USING (k)",
    ),
    (
        lambda s: (
            (s.stream("b").window("RANGE 5").join(s.stream("a").window("RANGE 5"), "k"))
            .where("_priority > 9")
            .select("y")
        ),
        "SELECT y FROM b [RANGE 5] JOIN a [RANGE 5] USING (k) WHERE _priority > 9",
    ),
    (
        lambda s: (
            s.stream("a")
            .window("RANGE 5")
            .join(s.stream("b").window("RANGE 5"), "k", how="semi")
            .select("_priority")
        ),
        "SELECT _priority FROM a [RANGE 5] WHERE k IN (SELECT k FROM b [RANGE 5])",
    ),
    (
        lambda s: (
            s.stream("a")
            .window("RANGE 5")
            .asof_join(s.stream("b").window("RANGE 5"), "k", "l.t >= r.u")
            .select("_priority")
        ),
        "SELECT _priority FROM a [RANGE 5] ASOF JOIN b [RANGE 5] ON a.k = b.k AND t >= u",
    ),
]


def answers(node: Node) -> Any:
    rows = {
        "a": [((k, x, t), t) for k, x, t in ((1, 12, 1), (2, 5, 2), (1, None, 4), (2, 40, 4))],
        "b": [((k, y, t), t) for k, y, t in ((1, 1, 1), (2, 9, 3), (1, 30, 5))],
        "o": [((4, 1, 1), 1)],
    }
    return to_intervals(relation(node, Inputs(rows, {"d": [(1, "Ann"), (2, "Bob")]})))


@pytest.mark.parametrize(("built", "text"), PAIRS, ids=[text for _, text in PAIRS])
def test_built_queries_mean_what_their_texts_mean(
    session: Session, built: Callable[[Session], Relation], text: str
) -> None:
    mine = built(session)._delivered()
    theirs = cql.bind_query(text, session.catalog)
    assert mine.schema.names == theirs.schema.names
    assert answers(mine) == answers(theirs)
    assert answers(mine)


def test_what_python_cannot_name(session: Session) -> None:
    filled = session.stream("a").window("NOW").join(session.stream("b").window("NOW"), "k", "left")
    for made in (
        session.view("v"),
        session.stream("a").select("k"),
        session.stream("a").window("NOW").istream(),
        filled,
        session.stream("a").window("NOW").join(session.view("v"), "k"),
    ):
        with pytest.raises(QueryError, match="only if it selects one"):
            made.where("_priority > 1")


# What is shown, and EARLY INTO


def test_priority_is_shown(session: Session) -> None:
    told = {row["name"]: row["value"] for row in session.sql("DESCRIBE a").to_pylist()}
    assert told["PRIORITY"] == "CASE WHEN x > 10 THEN x ELSE 0 END"
    assert "PRIORITY" not in {row["name"] for row in session.sql("DESCRIBE b").to_pylist()}


def test_early_into_is_part_of_a_query(session: Session) -> None:
    handle = session.sql(
        "CREATE QUERY q WITHIN 2 SECONDS EARLY INTO Soon INTO hot AS "
        "SELECT a.k FROM a [RANGE 5], b [RANGE 5] WHERE a.k = b.k"
    )
    assert (handle.definition.sink, handle.definition.early) == ("hot", "soon")
    told = {row["name"]: row["value"] for row in session.sql("DESCRIBE q").to_pylist()}
    assert (told["INTO"], told["EARLY INTO"]) == ("hot", "soon")
    assert "EARLY INTO Soon INTO hot" in session.sql("SHOW CREATE QUERY q")
    assert handle.booked().describe(None)["early"] == "soon"
    with pytest.raises(QueryError, match="sink 'soon' is used by query q"):
        session.sql("DROP SINK soon")


def test_a_query_without_early_into(session: Session) -> None:
    handle = session.sql("CREATE QUERY p INTO hot AS SELECT k FROM a")
    assert handle.definition.early is None
    assert handle.booked().describe(None)["early"] is None
    assert "EARLY INTO" not in {row["name"] for row in session.sql("DESCRIBE p").to_pylist()}


COUNTED = """CREATE QUERY n INTO hot EARLY INTO soon AS
  SELECT k, COUNT(*) AS n FROM a [RANGE 5] GROUP BY k"""


def test_early_into_of_what_cannot_be_early_is_refused_when_it_is_declared(
    session: Session,
) -> None:
    with pytest.raises(QueryError, match="EARLY INTO answers each important row alone"):
        session.sql(COUNTED)
    assert "n" not in session.catalog.queries
    sinks = "".join(f"CREATE SINK {n} USING jsonl OPTIONS (path '{n}');" for n in ("hot", "soon"))
    with pytest.raises(QueryError, match="EARLY INTO answers each important row alone"):
        Rig(STREAMS + sinks + COUNTED)
