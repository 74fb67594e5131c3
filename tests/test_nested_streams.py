"""ISTREAM, DSTREAM and RSTREAM of every kind of plan, read again through every kind of window.

All combinations of a plan run together in one engine, in several batches and on two shards, and
are compared with the oracle at every instant.
"""

from __future__ import annotations

import pytest

from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql import bind_query
from penstock.expr.types import BIGINT, STRING
from penstock.model import Field, Schema
from penstock.reference import Inputs
from penstock.testing import run_local
from tests.comparison import check_answer

ROWS = [
    ("a", 1, 1),
    ("b", 4, 2),
    ("a", 1, 4),
    ("a", 9, 4),
    ("a", 1, 4),
    (None, 3, 6),
    ("b", None, 7),
    ("c", 5, 8),
    ("a", 2, 13),
    ("b", 4, 13),
    ("b", 4, 22),
]
OTHERS = [("a", 2, 2), ("a", 9, 3), ("b", 4, 9), ("c", 5, 9), (None, 7, 12), ("a", 1, 20)]
NAMES = [("a", 1), ("b", 2)]

BELOW = {
    "selection": "SELECT k, x FROM s [RANGE 4] WHERE x > 1",
    "everything": "SELECT k, x FROM s",
    "rows": "SELECT k, x FROM s [ROWS 3]",
    "partitioned rows": "SELECT k, x FROM s [PARTITION BY k ROWS 2]",
    "rows in steps": "SELECT k, x FROM s [ROWS 3 SLIDE 2]",
    "pulses": "SELECT k, x FROM s [RANGE 6 SLIDE 3]",
    "sessions": "SELECT k, x FROM s [PARTITION BY k SESSION 4]",
    "aggregate": "SELECT k, SUM(x) AS x FROM s [RANGE 5] GROUP BY k",
    "aggregate of rows": "SELECT k, COUNT(*) AS x FROM s [ROWS 3] GROUP BY k",
    "aggregate at pulses": "SELECT k, MAX(x) AS x FROM s [RANGE 4 SLIDE 2] GROUP BY k",
    "join": "SELECT a.k, b.x FROM s [RANGE 5] a JOIN r [ROWS 2] b ON a.k = b.k",
    "join with a table": "SELECT s.k, x + n AS x FROM s [RANGE 3], d WHERE s.k = d.k",
    "outer join": "SELECT a.k, b.x FROM s [RANGE 4] a LEFT JOIN r [RANGE 3] b ON a.x = b.x",
    "anti join": "SELECT a.k, a.x FROM s [ROWS 4] a ANTI JOIN r [RANGE 6] b ON a.k = b.k",
    "except": "SELECT k, x FROM s [RANGE 6] EXCEPT ALL SELECT k, x FROM r [RANGE 9]",
    "intersect": "SELECT k, x FROM s [ROWS 5] INTERSECT SELECT k, x FROM r [RANGE 9]",
    "distinct": "SELECT DISTINCT k, x FROM s [ROWS 4]",
    "first rows": "SELECT k, x FROM s [RANGE 9] ORDER BY x DESC LIMIT 2",
    "stream again": "SELECT k, x FROM DSTREAM (SELECT k, x FROM s [ROWS 2]) [RANGE 3]",
    "window functions": (
        "SELECT k, SUM(x) OVER (PARTITION BY k ORDER BY t ROWS 1 PRECEDING) AS x FROM s"
    ),
}
KINDS = ("ISTREAM", "DSTREAM", "RSTREAM")
WINDOWS = (
    "",
    "[RANGE 4]",
    "[RANGE 6 SLIDE 3]",
    "[RANGE UNBOUNDED SLIDE 5]",
    "[NOW]",
    "[FIXED 5]",
    "[ROWS 3]",
    "[ROWS 3 SLIDE 2]",
    "[ROWS 3 RANGE 4]",
    "[PARTITION BY k ROWS 2]",
    "[PARTITION BY k ROWS 2 SLIDE 2 RANGE 7]",
    "[SESSION 3]",
    "[PARTITION BY k SESSION 4]",
    "[AFTER 5]",
    "[BEFORE 9]",
    "[AFTER 3 AND BEFORE 12]",
    "[ROWS 2 START 4]",
)
WAYS = ((4, 2),)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = Catalog()
    elements = Schema((Field("k", STRING), Field("x", BIGINT), Field("t", BIGINT)))
    for name in ("s", "r"):
        found.add(StreamDef(name, elements, "memory", {}, 2))
    found.add(TableDef("d", Schema((Field("k", STRING), Field("n", BIGINT))), "memory", {}))
    return found


@pytest.mark.parametrize("below", BELOW)
def test_streams_inside_windows(below: str, catalog: Catalog) -> None:
    plans = {}
    for kind in KINDS:
        plans[kind] = bind_query(f"{kind} ({BELOW[below]})", catalog)
        for window in WINDOWS:
            text = f"SELECT k, x FROM {kind} ({BELOW[below]}) {window}"
            plans[text] = bind_query(text, catalog)
    streams = {"s": [(row, row[-1]) for row in ROWS], "r": [(row, row[-1]) for row in OTHERS]}
    tables = {"d": NAMES}
    for cuts, shards in WAYS:
        answers = run_local(plans, streams, tables, cuts=cuts, shards=shards)
        for text, plan in plans.items():
            try:
                check_answer(plan, answers[text], Inputs(streams, tables))
            except AssertionError as error:
                raise AssertionError(f"{text}, {cuts} cuts, {shards} shards: {error}") from None


AROUND = {
    "an aggregate": "SELECT k, COUNT(*) AS n, MAX(x) AS top FROM {} [RANGE 5] GROUP BY k",
    "a join": "SELECT a.k, a.x, b.x AS y FROM {} [ROWS 2] a, r [RANGE 4] b WHERE a.k = b.k",
    "an outer join": "SELECT a.x, b.k FROM {} [RANGE 3] a LEFT JOIN r [ROWS 1] b ON a.x = b.x",
    "a stream": "DSTREAM (SELECT k, COUNT(*) AS n FROM {} [PARTITION BY k ROWS 2] GROUP BY k)",
    "pulses": "RSTREAM (SELECT COUNT(*) AS n FROM {} [RANGE 4 SLIDE 2])",
    "window functions": "SELECT k, LAG(x) OVER (PARTITION BY k ORDER BY _time) AS x FROM {}",
}


@pytest.mark.parametrize("around", AROUND)
def test_what_stands_around(around: str, catalog: Catalog) -> None:
    """Streams of three kinds of plans, with something above their window."""
    plans = {}
    for kind in KINDS:
        for below in ("aggregate", "outer join", "partitioned rows"):
            text = AROUND[around].format(f"{kind} ({BELOW[below]})")
            plans[text] = bind_query(text, catalog)
    streams = {"s": [(row, row[-1]) for row in ROWS], "r": [(row, row[-1]) for row in OTHERS]}
    for cuts, shards in WAYS:
        answers = run_local(plans, streams, {}, cuts=cuts, shards=shards)
        for text, plan in plans.items():
            try:
                check_answer(plan, answers[text], Inputs(streams, {}))
            except AssertionError as error:
                raise AssertionError(f"{text}, {cuts} cuts, {shards} shards: {error}") from None
