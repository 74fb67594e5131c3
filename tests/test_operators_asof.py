"""The ASOF join operator against the nearest row at every instant, under hostile cuts."""

from __future__ import annotations

import json
import math
import os
import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.expr.nodes import Column
from penstock.kernels import nearest as nearest_module
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.nearest import Ladder, ladder_order, nearest, useful
from penstock.model import INF, MIN_TIME, Batch, Heartbeat
from penstock.operators.asof_join import AsofJoinOperator, AsofJoinSpec
from penstock.operators.base import Context
from penstock.runs.state import MemoryStorage, State
from tests import slices
from tests.examples import examples
from tests.slices import LAST, Row, Script, scripts

TYPES = (pa.string(), pa.float64(), pa.int64())
KEY = Column(0, pa.string(), "k")
AT = Column(1, pa.float64(), "v")
TIME = Column(2, pa.int64(), "t")
MANY = max(examples(100), int(os.environ.get("PENSTOCK_EXAMPLES", "0")))
OPERATORS = st.sampled_from(["ge", "gt", "le", "lt"])
KINDS = st.sampled_from(["inner", "left"])
NUMBERS = [None, 0.0, -0.0, 1.5, 2.0, -3.0, float("nan"), float("inf"), float("-inf")]
VALUES = st.tuples(
    st.sampled_from([None, "a", "b"]), st.sampled_from(NUMBERS), st.sampled_from([None, 1, 2])
)


def rank(value: Any) -> tuple:
    """Null below everything, NaN above."""
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)


def answer(
    lefts: list[tuple], rights: list[tuple], at: int, operator: str, kind: str, keyed: bool = True
) -> list[tuple]:
    """What an ASOF join gives of one snapshot."""

    def is_candidate(left: tuple, right: tuple) -> bool:
        if None in (left[at], right[at]) or (keyed and (left[0] is None or left[0] != right[0])):
            return False
        a, b = rank(left[at]), rank(right[at])
        return {"ge": a >= b, "gt": a > b, "le": a <= b, "lt": a < b}[operator]

    def nearness(right: tuple) -> tuple:
        kind, value = rank(right[at])
        near = (kind, value) if operator in ("ge", "gt") else (-kind, -value)
        return near, tuple(map(rank, right))

    result = []
    for left in lefts:
        candidates = [right for right in rights if is_candidate(left, right)]
        if candidates:
            result.append(left + max(candidates, key=nearness))
        elif kind == "left":
            result.append(left + (None,) * len(TYPES))
    return result


def check(script: Script, operator: str, kind: str, keyed: bool = True) -> None:
    keys = (KEY,) if keyed else ()

    def make() -> AsofJoinOperator:
        return AsofJoinSpec(TYPES, TYPES, keys, keys, AT, AT, operator, kind).build()

    def expected(time: int) -> list[tuple]:
        left, right = script.snapshot(0, time), script.snapshot(1, time)
        return answer(left, right, 1, operator, kind, keyed)

    slices.check(make, TYPES, script, expected)


@settings(max_examples=MANY, deadline=None)
@given(scripts(VALUES, ports=2), OPERATORS, KINDS, st.booleans())
def test_every_snapshot_has_the_nearest_partner(script, operator, kind, keyed):
    check(script, operator, kind, keyed)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("operator", ["ge", "lt"])
def test_a_crowd(operator, seed):
    def values(chance: random.Random) -> tuple:
        return chance.choice("abc"), float(chance.randrange(20)), chance.randrange(3)

    script = slices.crowd(values, 2, seed)
    check(script, operator, ("inner", "left")[seed % 2])


@settings(max_examples=examples(60), deadline=None)
@given(scripts(VALUES, ports=2), OPERATORS, KINDS)
def test_impatient_and_climbing(script, operator, kind):
    """Intervals are halved from the first round on, and the tree is used at once."""
    with patch.multiple(nearest_module, _PATIENCE=0, _TRIES=0, _BITS=1):
        check(script, operator, kind)


@settings(max_examples=examples(60), deadline=None)
@given(scripts(VALUES, ports=2), OPERATORS, KINDS)
def test_keys_that_collide(script, operator, kind):
    """All keys share one lane of their hash."""

    def crowded(columns: list, rows: int) -> Keys:
        keys = hash_columns(columns, rows)
        return Keys(np.zeros(rows, np.uint64), keys.low)

    with patch("penstock.kernels.counts.hash_columns", crowded):
        check(script, operator, kind)


@st.composite
def timed(draw: Any) -> Script:
    """Rows whose third column is their own start, minus a lag of 2 at most."""
    values = st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0]), st.integers(0, 2))
    script = draw(scripts(values, 2, 18))
    for rows in script.ports:
        for row in rows:
            row.values = (*row.values[:2], row.start - row.values[2])
    return script


def check_timed(script: Script, operator: str, kind: str, lags: tuple) -> None:
    def make() -> AsofJoinOperator:
        return AsofJoinSpec(TYPES, TYPES, (KEY,), (KEY,), TIME, TIME, operator, kind, *lags).build()

    def expected(time: int) -> list[tuple]:
        return answer(script.snapshot(0, time), script.snapshot(1, time), 2, operator, kind)

    slices.check(make, TYPES, script, expected)


LAGS = st.sampled_from([None, 2, 3])


@settings(max_examples=MANY, deadline=None)
@given(timed(), OPERATORS, KINDS, LAGS, LAGS)
def test_promises_change_nothing(script, operator, kind, left, right):
    check_timed(script, operator, kind, (left, right))


@pytest.mark.long
@pytest.mark.parametrize("lags", [(None, 2), (2, None), (2, 2)])
@pytest.mark.parametrize("operator", ["ge", "gt", "le", "lt"])
def test_a_crowd_with_promises(operator, lags):
    """Half the rows of both sides have holders of their own, told when a partner needs them."""

    def values(chance: random.Random) -> tuple:
        return chance.choice("abcdef"), chance.choice((0.0, 1.0)), chance.randrange(3)

    script = slices.crowd(values, 2, len(operator) * 7 + sum(lag or 5 for lag in lags))
    for row in (row for rows in script.ports for row in rows):
        row.values = (*row.values[:2], row.start - row.values[2])
    for seed in range(3):
        check_timed(Script(script.ports, script.told, seed), operator, "inner", lags)


def beat(
    operator: str, kind: str, lag: int | None, left: list[Row], right: list[Row]
) -> slices.Listener:
    """Send everything at once, then a heartbeat at 5, then the end."""
    lags = (lag, lag)
    operation = AsofJoinSpec(
        TYPES, TYPES, (KEY,), (KEY,), TIME, TIME, operator, kind, *lags
    ).build()
    operation.open(Context(State(MemoryStorage()), node=1))
    listener = slices.Listener()
    for port, rows in enumerate((left, right)):
        list(operation.receive(port, slices.batch_of(rows, TYPES)))
    for time in (5, INF):
        for port in (0, 1):
            for message in operation.receive(port, Heartbeat(time)):
                listener.take(message)
    return listener


def test_a_partner_that_comes_as_late_as_the_lag_allows():
    left = [Row(("a", 0.0, 3), 3, 9)]
    found = beat("ge", "inner", 2, left, [Row(("a", 1.0, 3), 5, INF)])
    assert list(found.snapshot(4)) == []
    assert list(found.snapshot(5)) == [("a", 0.0, 3, "a", 1.0, 3)]


def test_a_tie_that_comes_as_late_as_the_lag_allows():
    right = [Row(("a", 1.0, 3), 3, INF), Row(("a", 2.0, 3), 5, INF)]
    found = beat("le", "inner", 2, [Row(("a", 0.0, 0), 1, 9)], right)
    assert list(found.snapshot(4)) == [("a", 0.0, 0, "a", 1.0, 3)]
    assert list(found.snapshot(5)) == [("a", 0.0, 0, "a", 2.0, 3)]


def test_a_row_strictly_before_is_not_let_go_for_one_at_the_same_time():
    right = [Row(("a", 1.0, 4), 4, INF), Row(("a", 1.0, 5), 4, INF)]
    found = beat("gt", "inner", 0, [Row(("a", 0.0, 5), 5, 9)], right)
    assert list(found.snapshot(5)) == [("a", 0.0, 5, "a", 1.0, 4)]


@pytest.mark.parametrize("seed", range(8))
def test_a_row_is_not_let_go_for_one_that_may_die_any_time(seed):
    right = [Row(("a", 0.0, 1), 1, INF), Row(("a", 0.0, 2), 2, INF, 7)]
    script = Script([[Row(("a", 0.0, 8), 8, 12)], right], {7: 6}, seed)
    check_timed(script, "ge", "inner", (0, 0))


def test_the_least_number_is_greater_than_none():
    row = Row(("a", 0.0, -(2**63)), 1, 9)
    alone = (*row.values, None, None, None)
    assert list(beat("gt", "left", None, [row], [row]).snapshot(3)) == [alone]
    assert list(beat("ge", "left", None, [row], [row]).snapshot(3)) == [row.values * 2]


# How much is stored


def stored(lags: tuple, life: int, operator: str = "ge", partner_life: int = INF) -> list[tuple]:
    """Send both sides slice by slice; return the rows of both stocks after each."""
    state = State(MemoryStorage())
    sizes = []
    for batch in range(40):
        operation = AsofJoinSpec(
            TYPES, TYPES, (KEY,), (KEY,), TIME, TIME, operator, "inner", *lags
        ).build()
        operation.open(Context(state, node=1))
        times = np.repeat(np.arange(batch * 100, batch * 100 + 100), 2)
        for port, length in ((1, partner_life), (0, life)):
            columns = (pa.array(["a", "b"] * 100), pa.array(np.zeros(200)), pa.array(times))
            ends = np.full(200, INF) if length == INF else times + length
            list(operation.receive(port, Batch.of(columns, times, ends)))
        for port in (0, 1):
            list(operation.receive(port, Heartbeat(batch * 100 + 100)))
        sizes.append((len(operation._left), len(operation._right)))
        operation.close()
        state = State(state.storage, json.loads(json.dumps(state.describe())))
    return sizes


def test_only_the_newest_partner_of_each_key_is_kept():
    assert max(right for _, right in stored((0, 0), 1)) <= 4 * 2
    assert max(left for left, _ in stored((0, 0), 1)) == 0


def test_a_left_row_with_a_partner_that_outlives_it_is_not_kept():
    for life in (50, INF):
        sizes = stored((0, 0), life)
        assert max(left for left, _ in sizes) == 0
        assert max(right for _, right in sizes) <= 4 * 2


def test_a_lag_keeps_as_many_partners_as_it_is_long():
    sizes = stored((150, 0), 1)
    assert 300 <= max(right for _, right in sizes) <= 4 * 300


def test_left_rows_are_let_go_as_soon_as_the_lag_of_the_right_side_is_over():
    sizes = stored((0, 150), INF)
    assert 200 <= max(left for left, _ in sizes) <= 2 * 300


def test_the_first_partner_after_needs_no_older_rows():
    sizes = stored((0, 0), 50, "le")
    assert max(right for _, right in sizes) <= 2 * 50
    assert max(left for left, _ in sizes) == 0


def test_without_promises_everything_that_lives_is_kept():
    sizes = stored((None, None), 1, partner_life=500)
    assert 1000 <= max(right for _, right in sizes[20:]) <= 3 * 1000
    assert max(left for left, _ in sizes) == 0


def test_partners_that_die_first_leave_nothing_behind():
    sizes = stored((0, 0), 300, partner_life=5)
    assert max(left for left, _ in sizes) <= 2 * 10


# The kernel


def test_the_tree_finds_what_a_loop_finds():
    dice = np.random.default_rng(5)
    for size in (1, 8, 9, 70, 1000):
        start = dice.integers(0, 50, size)
        end = start + dice.integers(0, 6, size)
        zeros = np.zeros(size, np.uint64)
        ladder = Ladder(zeros, zeros, np.arange(size), start, end)
        first = dice.integers(0, size, 200)
        top = dice.integers(-1, size, 200)
        since = dice.integers(0, 50, 200)
        until = since + dice.integers(1, 4, 200)
        found = ladder.last_overlap(first, top, since, until)
        for i in range(200):
            among = [
                p for p in range(first[i], top[i] + 1) if start[p] < until[i] and end[p] > since[i]
            ]
            assert found[i] == (among[-1] if among else -1)


def test_one_row_with_very_many_partners_needs_few_rounds():
    size = 50_000
    times = np.arange(size)
    keys = hash_columns([], size)
    ladder = Ladder(keys.high, keys.low, times, times, times + 1)
    one = hash_columns([], 1)
    ever = np.array([MIN_TIME]), np.array([INF])
    look = patch.object(Ladder, "last_overlap", autospec=True, side_effect=Ladder.last_overlap)
    with look as looked:
        found = nearest([ladder], one, np.array([INF]), *ever, lambda at, equal: at[0])
    assert len(found.row) == size + 2
    assert (found.position[1:-1] == times).all()
    assert (found.ladder[[0, -1]] == -1).all()
    assert looked.call_count < 100


def test_a_ladder_is_sorted_by_key_value_and_columns():
    columns = [pa.array([3, None, 2, 2, 1]), pa.array(["x", "y", "b", "a", "z"])]
    keys = hash_columns([pa.array(["k"] * 5)], 5)
    order = ladder_order(keys, np.array([1, 1, 1, 1, 0]), columns)
    assert order.tolist() == [4, 1, 3, 2, 0]


def test_useful_rows():
    keys = hash_columns([pa.array(["k"] * 5)], 5)
    value = np.array([1, 2, 3, 4, 9])
    end = np.array([10, 20, 5, 20, 20])
    sure = np.array([True, True, True, False, True])
    assert useful(keys, value, end, sure, 4, 8).tolist() == [False, True, True, True, False]
    assert useful(keys, value, end, sure, 2, INF).tolist() == [False, True, True, True, True]
    assert useful(keys, value, end, sure, MIN_TIME, INF).all()


def test_text_cannot_be_compared():
    with pytest.raises(InternalError, match="must compare numbers or times, got string"):
        AsofJoinSpec(TYPES, TYPES, (), (), KEY, KEY).build()


def test_copies_on_the_left_each_have_a_partner_and_on_the_right_are_one():
    rows = [Row(("a", 1.0, 1), 0, LAST), Row(("a", 1.0, 1), 0, 5)]
    check(Script([rows, rows]), "ge", "inner")
