"""Every kind of join over every mixture of windows, against the oracle.

One small input, made from the names of the mixture, goes through each: the same every time.
"""

from __future__ import annotations

import random
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algebra import JOIN_KINDS, Filter, Join, Node, Window
from penstock.expr.nodes import Call, Column
from penstock.windows import WindowSpec
from tests import strategies as make
from tests.strategies import LONG, SCANS, STRING
from tests.test_oracle import ORACLE, check

WINDOWS = {
    "none": None,
    "rows": WindowSpec(rows=3),
    "partitioned": WindowSpec(rows=1, partition_by=(0,)),
    "rows_slide": WindowSpec(rows=4, rows_slide=2),
    "rows_range": WindowSpec(rows=3, range=5),
    "range": WindowSpec(range=4),
    "range_slide": WindowSpec(range=6, slide=2),
    "hop": WindowSpec(hop=6, slide=2),
    "now": WindowSpec(now=True),
    "unbounded": WindowSpec(),
    "landmark": WindowSpec(after=2, before=9),
    "fixed": WindowSpec(fixed=5),
    "session": WindowSpec(session=2),
    "sessions": WindowSpec(session=3, partition_by=(0,)),
}


def side(scan: str, window: str) -> Node:
    spec = WINDOWS[window]
    return SCANS[scan] if spec is None else Window(SCANS[scan], spec)


def joined(kind: str, left: Node, right: Node, equal: bool, less: bool) -> Join:
    """A join by ``k``, with or without the residual ``left.x < right.x``."""
    key = (Column(0, STRING),) if equal else ()
    residual = None
    if less:
        columns = (Column(1, LONG), Column(len(left.schema) + 1, LONG))
        residual = Call("lt", columns, pa.bool_())
    return Join(left, right, key, key, residual, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", JOIN_KINDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_every_mixture_of_windows(kind: str, window: str) -> None:
    for other in WINDOWS:
        dice = random.Random(f"{kind} {window} {other}")
        equal, less = dice.choice([(True, False), (True, True), (False, True), (False, False)])
        plan = joined(kind, side("s", window), side("r", other), equal, less)
        check(plan, make.many_rows(dice, 9), cuts=dice.randint(1, 9), shards=dice.choice([1, 3]))


@pytest.mark.parametrize("kind", JOIN_KINDS)
@pytest.mark.parametrize("table", ["d", "v"])
def test_with_tables(kind: str, table: str) -> None:
    static = next(t for t in make.TABLES if t.table == table)
    for window, first in product(("rows", "range", "session", "none"), (True, False)):
        dice = random.Random(f"{kind} {table} {window} {first}")
        sides = (static, side("s", window)) if first else (side("s", window), static)
        plan = joined(kind, *sides, equal=dice.random() < 0.7, less=dice.random() < 0.5)
        check(plan, make.many_rows(dice, 12), cuts=dice.randint(1, 9), shards=dice.choice([1, 3]))


@pytest.mark.parametrize("kind", JOIN_KINDS)
@settings(ORACLE)
@given(st.data())
def test_conditions_above_a_join(kind: str, source: st.DataObject) -> None:
    """What the rules move below a join, or make of it, changes nothing."""
    left, right = (source.draw(make.sources(("s", "r"))) for _ in range(2))
    equal, less = source.draw(st.sampled_from([(True, False), (True, True), (False, True)]))
    plan: Node = joined(kind, left, right, equal, less)
    plan = Filter(plan, source.draw(make.predicates(plan.schema)))
    data = source.draw(make.data())
    for rules in (True, False):
        check(plan, data, cuts=source.draw(make.cuts()), shards=2, rules=rules)
