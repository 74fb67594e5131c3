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
