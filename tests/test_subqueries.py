"""IN and EXISTS with sub-queries, as text, against SQL's three-valued logic on every snapshot.

The oracle gives only the snapshots of the windows; the condition itself is computed here, row by
row, from its definition and not from joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algebra import Node, walk
from penstock.catalog import Catalog, StreamDef
from penstock.cql import bind_query
from penstock.errors import QueryError
from penstock.model import Field, Schema
from penstock.optimizer import optimize
from penstock.reference import from_intervals, relation, snapshot_at
from tests import strategies as make
from tests.strategies import SCANS
from tests.test_oracle import ORACLE, run, truth

K, X = 0, 1


def equal(a: object, b: object) -> bool | None:
    return None if a is None or b is None else a == b


def less(a, b) -> bool | None:
    return None if a is None or b is None else a < b


def both(*values: bool | None) -> bool | None:
    return False if False in values else None if None in values else True


def any_of(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def is_in(value, values: list) -> bool | None:
    return any_of([equal(value, v) for v in values])


CASES: dict[str, Callable[[tuple, list[tuple]], bool | None]] = {
    "x IN (SELECT x FROM {r})": lambda row, r: is_in(row[X], [o[X] for o in r]),
    "x NOT IN (SELECT x FROM {r})": lambda row, r: negated(is_in(row[X], [o[X] for o in r])),
    "x NOT IN (SELECT x FROM {r} WHERE x IS NOT NULL)": lambda row, r: negated(
        is_in(row[X], [o[X] for o in r if o[X] is not None])
    ),
    "x > 0 AND x NOT IN (SELECT x FROM {r})": lambda row, r: both(
        less(0, row[X]), negated(is_in(row[X], [o[X] for o in r]))
    ),
    "x + 1 NOT IN (SELECT x FROM {r} WHERE r.k = s.k)": lambda row, r: negated(
        is_in(
            None if row[X] is None else row[X] + 1,
            [o[X] for o in r if equal(o[K], row[K])],
        )
    ),
    "x NOT IN (SELECT x FROM {r} WHERE r.k < s.k)": lambda row, r: negated(
        is_in(row[X], [o[X] for o in r if less(o[K], row[K])])
    ),
    "(k, x) IN (SELECT k, x FROM {r})": lambda row, r: any_of(
        [both(equal(row[K], o[K]), equal(row[X], o[X])) for o in r]
    ),
    "(k, x) NOT IN (SELECT k, x FROM {r})": lambda row, r: negated(
        any_of([both(equal(row[K], o[K]), equal(row[X], o[X])) for o in r])
    ),
    "EXISTS (SELECT 1 FROM {r} WHERE r.k = s.k AND r.x > s.x)": lambda row, r: any(
        both(equal(o[K], row[K]), less(row[X], o[X])) for o in r
    ),
    "NOT EXISTS (SELECT 1 FROM {r} WHERE r.k = s.k)": lambda row, r: (
        not any(equal(o[K], row[K]) for o in r)
    ),
    "NOT EXISTS (SELECT 1 FROM {r} WHERE r.k = s.k AND s.x > 1)": lambda row, r: (
        not any(both(equal(o[K], row[K]), less(1, row[X])) for o in r)
    ),
    "EXISTS (SELECT 1 FROM {r})": lambda row, r: bool(r),
    "NOT EXISTS (SELECT 1 FROM {r} WHERE r.x = 1)": lambda row, r: not any(o[X] == 1 for o in r),
    "NOT (x IN (SELECT x FROM {r}) OR k = 'a')": lambda row, r: both(
        negated(is_in(row[X], [o[X] for o in r])), negated(equal(row[K], "a"))
    ),
    "NOT NOT x IN (SELECT x FROM {r} WHERE NOT EXISTS (SELECT 1 FROM {r} u WHERE u.x > r.x))": (
        lambda row, r: is_in(row[X], [o[X] for o in r if not any(less(o[X], u[X]) for u in r)])
    ),
    "x IN (SELECT max(x) FROM {r} GROUP BY k)": lambda row, r: is_in(
        row[X],
        [
            max((o[X] for o in r if o[K] == k and o[X] is not None), default=None)
            for k in {o[K] for o in r}
        ],
    ),
    "x NOT IN (SELECT count(*) FROM {r} GROUP BY k)": lambda row, r: negated(
        is_in(row[X], list(Counter(o[K] for o in r).values()))
    ),
}

WINDOWS = ("[RANGE 4]", "[ROWS 2]", "[PARTITION BY k ROWS 1]", "[SESSION 3]", "[RANGE 6 SLIDE 2]",
           "[NOW]", "")  # fmt: skip


def catalog() -> Catalog:
    found = Catalog()
    for name in ("s", "r"):
        scan = SCANS[name]
        found.streams[name] = StreamDef(name, scan.schema, "replay", {}, scan.time)
    return found


@pytest.mark.parametrize("condition", CASES)
@ORACLE
@given(st.data())
def test_condition(condition: str, source: st.DataObject) -> None:
    own, other = (source.draw(st.sampled_from(WINDOWS)) for _ in range(2))
    text = condition.format(r=f"r {other}")
    plan = bind_query(f"SELECT s.* FROM s {own} WHERE {text}", catalog())
    data = source.draw(make.data())
    inputs = truth(data)
    rows = relation(bind_query(f"SELECT * FROM s {own}", catalog()), inputs)
    others = relation(bind_query(f"SELECT * FROM r {other}", catalog()), inputs)
    cuts, shards = source.draw(make.cuts()), source.draw(st.sampled_from([1, 3]))
    found = from_intervals(
        run(plan, data, cuts=cuts, shards=shards, rules=source.draw(st.booleans()))
    )
    for time in sorted({t for steps in (rows, others, found) for t, _ in steps}):
        partners = list(snapshot_at(others, time).elements())
        expected = Counter(
            row
            for row in snapshot_at(rows, time).elements()
            if CASES[condition](row, partners) is True
        )
        assert snapshot_at(found, time) == expected, f"at {time}"


def compare(a, b, operator: str) -> bool | None:
    if a is None or b is None:
        return None
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "=": a == b, "<>": a != b}[operator]


def quantified(value, operator: str, word: str, values: list) -> bool | None:
    found = [compare(value, v, operator) for v in values]
    return both(*found) if word == "ALL" else any_of(found)


def numbers(rows: list[tuple]) -> list:
    return [o[X] for o in rows if o[X] is not None]


def linked(row: tuple, rows: list[tuple]) -> list[tuple]:
    return [o for o in rows if equal(o[K], row[K])]


def below(row: tuple, rows: list[tuple]) -> list[tuple]:
    return [o for o in rows if less(o[X], row[X])]


def least(values: list):
    return min(values, default=None)


def most(values: list):
    return max(values, default=None)


def plus(a, b):
    return None if a is None or b is None else a + b


VALUES: dict[str, Callable[[tuple, list[tuple]], object]] = {
    "(SELECT max(x) FROM {r})": lambda row, r: most(numbers(r)),
    "(SELECT count(*) FROM {r})": lambda row, r: len(r),
    "(SELECT max(x) FROM {r} HAVING count(*) > 1)": lambda row, r: (
        most(numbers(r)) if len(r) > 1 else None
    ),
    "(SELECT coalesce(min(x), -1) FROM {r} WHERE r.k = s.k)": lambda row, r: (
        -1 if (found := least(numbers(linked(row, r)))) is None else found
    ),
    "(SELECT count(*) FROM {r} WHERE r.k = s.k)": lambda row, r: len(linked(row, r)),
    "(SELECT count(x) FROM {r} WHERE r.k = s.k AND r.x < s.x)": lambda row, r: len(
        below(row, linked(row, r))
    ),
    "(SELECT count(*) FROM {r} WHERE r.x < s.x)": lambda row, r: len(below(row, r)),
    "(SELECT count(*) FROM {r} WHERE r.x < s.x OR s.x IS NULL)": lambda row, r: (
        len(r) if row[X] is None else len(below(row, r))
    ),
    "(SELECT count(*) FROM {r} WHERE r.k = s.k GROUP BY r.k)": lambda row, r: (
        len(linked(row, r)) or None
    ),
    "(SELECT x FROM {r} WHERE r.k = s.k AND x IS NOT NULL ORDER BY x DESC LIMIT 1)": (
        lambda row, r: most(numbers(linked(row, r)))
    ),
    "(SELECT x FROM {r} WHERE r.x < s.x ORDER BY x LIMIT 1)": lambda row, r: least(
        numbers(below(row, r))
    ),
    "(SELECT x FROM {r} WHERE x IS NOT NULL ORDER BY x LIMIT 1)": lambda row, r: least(numbers(r)),
    "s.x + (SELECT max(x) - (SELECT min(x) FROM {r}) FROM {r})": lambda row, r: plus(
        row[X], None if not numbers(r) else most(numbers(r)) - least(numbers(r))
    ),
    "EXISTS (SELECT 1 FROM {r} WHERE r.k = s.k)": lambda row, r: bool(linked(row, r)),
    "EXISTS (SELECT 1 FROM {r} WHERE r.x < s.x)": lambda row, r: bool(below(row, r)),
    "EXISTS (SELECT 1 FROM {r} WHERE r.k = s.k HAVING count(*) > 1)": lambda row, r: (
        len(linked(row, r)) > 1
    ),
    "NOT EXISTS (SELECT k FROM {r} WHERE r.k = s.k GROUP BY k, x HAVING count(*) > 1)": (
        lambda row, r: (
            not any(n > 1 for n in Counter((o[K], o[X]) for o in linked(row, r)).values())
        )
    ),
    "x IN (SELECT x FROM {r})": lambda row, r: is_in(row[X], [o[X] for o in r]),
    "x NOT IN (SELECT x FROM {r} WHERE r.k = s.k)": lambda row, r: negated(
        is_in(row[X], [o[X] for o in linked(row, r)])
    ),
    "x IN (SELECT x FROM {r} WHERE r.k < s.k)": lambda row, r: is_in(
        row[X], [o[X] for o in r if less(o[K], row[K])]
    ),
    "x IN (SELECT max(x) FROM {r} WHERE r.k = s.k)": lambda row, r: equal(
        row[X], most(numbers(linked(row, r)))
    ),
    "(k, x) IN (SELECT k, x FROM {r})": lambda row, r: any_of(
        [both(equal(row[K], o[K]), equal(row[X], o[X])) for o in r]
    ),
    "CASE WHEN x IN (SELECT x FROM {r}) OR k = 'a' THEN 1 ELSE 0 END": lambda row, r: int(
        any_of([is_in(row[X], [o[X] for o in r]), equal(row[K], "a")]) is True
    ),
}
VALUES |= {
    f"x {operator} {word} (SELECT x FROM {{r}}{where})": (
        lambda row, r, operator=operator, word=word, chosen=chosen: quantified(
            row[X], operator, word, [o[X] for o in chosen(row, r)]
        )
    )
    for operator in ("<", "<=", ">", ">=", "=", "<>")
    for word in ("ANY", "ALL")
    for where, chosen in (
        ("", lambda row, r: r),
        (" WHERE r.k = s.k", linked),
    )
}


@pytest.mark.parametrize("value", VALUES)
@ORACLE
@given(st.data())
def test_value(value: str, source: st.DataObject) -> None:
    own = source.draw(st.sampled_from(WINDOWS[:-1]))
    other = source.draw(st.sampled_from(WINDOWS))
    text = value.format(r=f"r {other}")
    plan = bind_query(f"SELECT s.k, s.x, {text} AS v FROM s {own}", catalog())
    data = source.draw(make.data())
    inputs = truth(data)
    rows = relation(bind_query(f"SELECT k, x FROM s {own}", catalog()), inputs)
    others = relation(bind_query(f"SELECT k, x FROM r {other}", catalog()), inputs)
    cuts, shards = source.draw(make.cuts()), source.draw(st.sampled_from([1, 3]))
    found = from_intervals(
        run(plan, data, cuts=cuts, shards=shards, rules=source.draw(st.booleans()))
    )
    for time in sorted({t for steps in (rows, others, found) for t, _ in steps}):
        partners = list(snapshot_at(others, time).elements())
        expected = Counter(
            (*row, VALUES[value](row, partners)) for row in snapshot_at(rows, time).elements()
        )
        assert snapshot_at(found, time) == expected, f"at {time}"


def test_a_value_where_nothing_bounds_the_rows_is_refused() -> None:
    with pytest.raises(QueryError, match="must have a window that bounds its rows"):
        bind_query("SELECT x FROM s WHERE x > (SELECT max(x) FROM r)", catalog())
    bind_query("SELECT x FROM s WHERE x > (SELECT max(x) FROM r WHERE r.k = s.k)", catalog())


def kinds(text: str) -> list[str]:
    """The kinds of the joins of a statement as it is bound, top first."""
    return [n.kind for n in walk(bind_query(text, catalog())) if hasattr(n, "kind")]


def test_not_in_asks_for_nulls_only_where_there_may_be_some() -> None:
    text = "SELECT k FROM s [NOW] WHERE x NOT IN (SELECT x FROM r [NOW]{inner}){outer}"
    assert kinds(text.format(inner="", outer="")) == ["anti"] * 3
    assert kinds(text.format(inner=" WHERE x IS NOT NULL", outer="")) == ["anti"] * 2
    assert kinds(text.format(inner=" WHERE x > 1", outer=" AND x < 5")) == ["anti"]
    text = "SELECT k FROM s [NOW] WHERE 1 NOT IN (SELECT count(*) FROM r [NOW] GROUP BY k)"
    assert kinds(text) == ["anti"]


def optimized(text: str) -> Node:
    return optimize({"q": bind_query(text, catalog())})["q"]


def test_a_condition_that_rejects_nulls_reduces_an_outer_join() -> None:
    text = "SELECT s.k FROM s [NOW] {} JOIN r [NOW] ON s.k = r.k WHERE {}"
    expected = {
        ("LEFT", "r.x > 1"): "inner",
        ("LEFT", "r.x IS NOT NULL"): "inner",
        ("LEFT", "NOT r.x = 1 OR r.x + 1 < 5"): "inner",
        ("LEFT", "r.x > 1 OR s.x > 1"): "left",
        ("LEFT", "r.x IS NULL"): "left",
        ("LEFT", "s.x = 1"): "left",
        ("LEFT", "coalesce(r.x, 1) = 1"): "left",
        ("RIGHT", "s.x = 1"): "inner",
        ("FULL", "s.x = 1"): "left",
        ("FULL", "r.x = 1"): "right",
        ("FULL", "s.x = r.x"): "inner",
        ("FULL", "s.x = 1 AND r.x = 2"): "inner",
    }
    for (kind, condition), left in expected.items():
        plan = optimized(text.format(kind, condition))
        assert [n.kind for n in walk(plan) if hasattr(n, "kind")] == [left], (kind, condition)


def test_semi_and_anti_joins_meet_each_key_once() -> None:
    text = "SELECT s.k FROM s [NOW] {} JOIN r [NOW] ON s.k = r.k{}"
    for kind, extra, names in (
        ("SEMI", "", ["Join", "Distinct"]),
        ("ANTI", "", ["Join", "Distinct"]),
        ("ANTI", " AND s.x < 3", ["Join", "Distinct"]),
        ("SEMI", " AND s.x < r.x", ["Join"]),
        ("ANTI", " AND s.x < r.x", ["Join"]),
    ):
        plan = optimized(text.format(kind, extra))
        found = [type(n).__name__ for n in walk(plan)]
        assert [n for n in found if n in ("Join", "Distinct")] == names
    plan = optimized("SELECT k FROM s [NOW] WHERE NOT EXISTS (SELECT 1 FROM r [RANGE 5])")
    assert sum(type(n).__name__ == "Distinct" for n in walk(plan)) == 1


def test_unknown_types_meet() -> None:
    """An INT before IN meets a BIGINT of the sub-query."""
    found = Catalog()
    for name, kind in (("s", pa.int32()), ("r", pa.int64())):
        fields = (Field("x", kind), Field("t", pa.int64()))
        found.streams[name] = StreamDef(name, Schema(fields), "replay", {}, 1)
    plan = bind_query("SELECT x FROM s [NOW] WHERE x IN (SELECT x FROM r [NOW])", found)
    assert plan.schema.types == (pa.int32(),)
