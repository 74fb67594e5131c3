"""Window functions: random streams, partitions, frames and cuts against the oracle."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import strategies as make
from tests.strategies import SCANS
from tests.test_oracle import EXAMPLES, ORACLE, check, exact, run


@settings(ORACLE, max_examples=10 * EXAMPLES)
@given(st.data())
def test_over_streams(source):
    """Ties, nulls, strange numbers; any cuts, shards and merges."""
    scan = SCANS[source.draw(st.sampled_from(["s", "s", "r", "q"]))]
    plan = source.draw(make.overs(st.just(scan), inexact=True))
    data = source.draw(make.data(most=14, strange=source.draw(st.booleans())))
    options = source.draw(make.hostile_settings())
    shards = source.draw(st.sampled_from([1, 3]))
    check(plan, data, cuts=source.draw(make.cuts()), shards=shards, **options)


@settings(ORACLE, max_examples=2 * EXAMPLES)
@given(st.data())
def test_over_derived_streams(source):
    """Elements of a derived stream are ordered by all their columns, also in front of a window."""
    plan = source.draw(make.overs(make.plans(2), inexact=True))
    if source.draw(st.booleans()):
        exact = source.draw(make.overs(make.plans(1)))
        plan = source.draw(make.nested_windows(st.just(exact)))
    data = source.draw(make.data(most=8))
    shards = source.draw(st.sampled_from([1, 3]))
    check(plan, data, cuts=source.draw(make.cuts()), shards=shards)


@settings(ORACLE, max_examples=max(3, EXAMPLES // 4))
@given(st.data())
def test_over_many_rows(source):
    """Frames over dozens of rows at once, which batches cut anywhere."""
    plan = make.stretched(source.draw(make.overs(st.just(SCANS["s"]), inexact=True)), 5)
    dice = random.Random(source.draw(st.integers(0, 2**32)))
    data = make.many_rows(dice, 60)
    options = source.draw(make.hostile_settings())
    check(plan, data, cuts=dice.randint(1, 30), shards=dice.randint(1, 3), **options)


@settings(ORACLE, max_examples=2 * EXAMPLES)
@given(st.data())
def test_cuts_change_not_one_bit(source):
    plan = source.draw(make.overs(st.just(SCANS["s"]), inexact=True))
    data = source.draw(make.data(most=14, strange=True))
    first, second = (source.draw(make.cuts(9)) for _ in range(2))
    options = source.draw(make.hostile_settings())
    mine = run(plan, data, cuts=first)
    assert exact(mine, plan) == exact(run(plan, data, cuts=second, shards=3, **options), plan)
