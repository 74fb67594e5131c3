"""DISTINCT, INTERSECT, EXCEPT and ORDER BY LIMIT against plain Python at every instant."""

from __future__ import annotations

import json
import math
from collections import Counter
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NotSupportedError
from penstock.expr.nodes import Column
from penstock.kernels import counts, sweep
from penstock.kernels.counts import group_codes, key_codes, order_events
from penstock.kernels.keys import Keys
from penstock.model import INF, MIN_TIME, Batch, Heartbeat
from penstock.operators.base import Context
from penstock.operators.distinct import CutDistinctSpec, DistinctSpec
from penstock.operators.set_operation import SetSpec
from penstock.operators.top_k import TopKSpec
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples
from tests.slices import Row, Script, bag, check, crowd, run, scripts

TYPES = (pa.string(), pa.float64())
few = st.tuples(st.sampled_from([None, "a"]), st.sampled_from([None, 0.0, -0.0, math.nan]))
several = st.tuples(
    st.sampled_from([None, "a", "b", ""]), st.sampled_from([None, 0.0, 1.5, -2.0, math.nan])
)


@settings(deadline=None, max_examples=examples(100))
@given(scripts(few))
def test_distinct(script: Script) -> None:
    check(
        lambda: DistinctSpec(TYPES).build(),
        TYPES,
        script,
        lambda time: bag(script.snapshot(0, time)).keys(),
    )


def known(script: Script) -> Script:
    """The same rows, none of which has a holder."""
    ports = [[Row(r.values, r.start, r.end) for r in some] for some in script.ports]
    return Script(ports, seed=script.seed)


def check_cut(script: Script) -> None:
    """At every instant each value once, and never two rows of one value at a time."""
    check(
        lambda: CutDistinctSpec(TYPES).build(),
        TYPES,
        script,
        lambda time: bag(script.snapshot(0, time)).keys(),
    )


@settings(deadline=None, max_examples=examples(100))
@given(scripts(few))
def test_distinct_in_rows_with_ends(script: Script) -> None:
    check_cut(known(script))


@pytest.mark.parametrize("seed", range(4))
def test_distinct_of_a_crowd_in_rows_with_ends(seed: int) -> None:
    check_cut(known(crowd(lambda c: (c.choice("abc"), float(c.randrange(9))), 1, seed)))


def test_values_that_were_always_there() -> None:
    rows = [Row(("a", 0.0), MIN_TIME, 7), Row(("a", 0.0), 3, 9), Row(("b", 0.0), MIN_TIME, INF)]
    for seed in range(8):
        check_cut(Script([rows], seed=seed))


def test_a_value_that_goes_on_is_cut_rarely_and_leaves_nothing() -> None:
    """A value that comes again and again is one row as long as a window, not one row each."""
    storage = MemoryStorage()
    state = State(storage)
    given: list[tuple[int, int]] = []
    for beat in range(1, 100):
        operator = CutDistinctSpec((pa.int64(),)).build()
        operator.open(Context(state, node=1))
        if beat < 60:
            rows = Batch.of([pa.array([7])], [beat - 1], [beat + 9])
            assert not list(operator.receive(0, rows))
        for message in operator.receive(0, Heartbeat(beat)):
            if isinstance(message, Batch):
                assert not message.holder.any()
                given += zip(message.start.tolist(), message.end.tolist(), strict=True)
        operator.close()
        state = State(storage, json.loads(json.dumps(state.describe())))
    assert [start for start, _ in given[1:]] == [end for _, end in given[:-1]]
    assert (given[0][0], given[-1][1]) == (0, 68)
    assert len(given) <= 8
    assert not any(len(run) for name in ("covers", "given.by_end") for run in state.runs(name))


def combined(kind: str, keep: bool, left: Counter, right: Counter) -> Counter:
    if keep:
        return left & right if kind == "intersect" else left - right
    both = left.keys() & right.keys() if kind == "intersect" else left.keys() - right.keys()
    return Counter(both)


@settings(deadline=None, max_examples=examples(150))
@given(scripts(few, ports=2), st.sampled_from(["intersect", "except"]), st.booleans())
def test_set_operations(script: Script, kind: str, keep: bool) -> None:
    check(
        lambda: SetSpec(TYPES, kind, keep).build(),
        TYPES,
        script,
        lambda time: combined(
            kind, keep, bag(script.snapshot(0, time)), bag(script.snapshot(1, time))
        ).elements(),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["intersect", "except"])
def test_crowds_of_copies(seed: int, kind: str) -> None:
    script = crowd(lambda c: (c.choice("abc"), float(c.randrange(2))), 2, seed)
    for keep in (False, True):
        check(
            lambda keep=keep: SetSpec(TYPES, kind, keep).build(),
            TYPES,
            script,
            lambda time, keep=keep: combined(
                kind, keep, bag(script.snapshot(0, time)), bag(script.snapshot(1, time))
            ).elements(),
        )


@pytest.mark.parametrize("seed", range(6))
def test_the_first_of_a_crowd(seed: int) -> None:
    script = crowd(lambda c: (c.choice("abc"), float(c.randrange(50))), 1, seed)
    order, limit = ORDERS[seed % len(ORDERS)], 1 + 4 * seed
    check(
        lambda: TopKSpec(TYPES, order, limit).build(),
        TYPES,
        script,
        lambda time: first_rows(script.snapshot(0, time), order, limit),
    )


def test_copies_die_in_the_order_of_birth() -> None:
    rows = [Row(("a", 0.0), t, INF) for t in range(6)]
    right = [Row(("a", 0.0), t, t + 3) for t in (10, 11, 12)]
    for seed in range(8):
        script = Script([rows, right], seed=seed)
        listener = run(lambda: SetSpec(TYPES, "except", True).build(), TYPES, script)
        lives = sorted(
            (r.start, min(r.end, listener.told.get(r.holder, INF))) for r in listener.rows
        )
        assert lives[:3] == [(0, 10), (1, 11), (2, 12)]
        assert [start for start, _ in lives[6:]] == [13, 14, 15]


def test_a_set_operation_is_known() -> None:
    with pytest.raises(NotSupportedError, match="'intersect' or 'except'"):
        SetSpec(TYPES, "union", True).build()


ORDERS = [
    ((Column(0, TYPES[0]), False, True),),
    ((Column(1, TYPES[1]), True, False),),
    ((Column(1, TYPES[1]), False, False), (Column(0, TYPES[0]), True, True)),
    (),
]


def place(value: object, descending: bool, nulls_first: bool) -> tuple:
    """A key by which Python sorts as SQL does."""
    if value is None:
        return (0 if nulls_first else 2,)
    if isinstance(value, float):
        number = (1, 0.0) if math.isnan(value) else (0, value)
        return (1, tuple(-x for x in number) if descending else number)
    text = tuple(str(value).encode())
    return (1, (*(-x for x in text), 1) if descending else text)


def first_rows(rows: list[tuple], order: tuple, limit: int) -> list[tuple]:
    def key(row: tuple) -> tuple:
        asked = tuple(place(row[c.index], down, nulls) for c, down, nulls in order)
        return asked + tuple(place(v, False, True) for v in row)

    return sorted(rows, key=key)[:limit]


@settings(deadline=None, max_examples=examples(150))
@given(scripts(several), st.sampled_from(ORDERS), st.integers(0, 4))
def test_top_k(script: Script, order: tuple, limit: int) -> None:
    check(
        lambda: TopKSpec(TYPES, order, limit).build(),
        TYPES,
        script,
        lambda time: first_rows(script.snapshot(0, time), order, limit),
    )


def test_top_k_keeps_only_candidates() -> None:
    """Of many rows with known ends, only those that can still be among the first stay."""
    chance = np.random.default_rng(0)
    end = chance.integers(0, 1000, 20_000)
    rank = chance.permutation(20_000)
    kept = sweep.skyband(end, rank, np.ones(20_000, bool), 3)
    assert kept.sum() < 1200
    for row in np.flatnonzero(~kept)[:50]:
        assert ((rank < rank[row]) & (end >= end[row])).sum() >= 3


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 40))
def test_the_k_best_of_every_position(seed: int, k: int, size: int) -> None:
    chance = np.random.default_rng(seed)
    rows = int(chance.integers(0, 60))
    first, last = chance.integers(0, size, rows), chance.integers(0, size + 1, rows)
    rank = chance.permutation(rows)
    for memory in (1, 16, 1 << 20):
        lists = np.concatenate(list(sweep.k_best(first, last, rank, size, k, memory)))
        assert len(lists) == size
        for at in range(size):
            inside = np.sort(rank[(first <= at) & (at < last)])[:k]
            assert lists[at].tolist() == [*inside, *[sweep.NONE] * (k - len(inside))]
    least = sweep.range_minimum(first, last, rank, size)
    assert least.tolist() == [
        min(rank[(first <= at) & (at < last)], default=sweep.NONE) for at in range(size)
    ]


@settings(deadline=None, max_examples=examples(50))
@given(st.integers(0, 2**32))
def test_the_staircase_holds_every_later_extreme(seed: int) -> None:
    chance = np.random.default_rng(seed)
    group, end, rank = (
        chance.integers(0, 3, 30),
        chance.integers(0, 8, 30),
        chance.integers(0, 6, 30),
    )
    kept = sweep.staircase(group, end, rank)
    assert (np.diff(group[kept] * 100 + end[kept]) >= 0).all()
    for g in range(3):
        for time in range(8):
            alive = rank[(group == g) & (end >= time)]
            ahead = kept[(group[kept] == g) & (end[kept] >= time)]
            assert (rank[ahead[0]] == alive.min()) if len(alive) else len(ahead) == 0


@pytest.mark.parametrize(
    ("early", "late"), [(-9, 9), (MIN_TIME, INF - 1), (MIN_TIME, MIN_TIME + 1), (INF - 2, INF - 1)]
)
def test_events_are_ordered_for_any_span_of_time(early: int, late: int) -> None:
    code = np.array([0, 1, 1, 0, 1, 0])
    time = np.array([0, 0, late, early, early, early])
    steps = order_events(code, time, 2)
    assert steps.code.tolist() == [0, 0, 1, 1, 1]
    assert steps.time[~steps.old].tolist() == [early, early, late]
    change = np.array([5, 7, -1, 1, 1, 1])
    assert steps.running(change[steps.order]).tolist() == [5, 7, 7, 8, 7]
    assert steps.find(np.array([1, 0]), np.array([late, early])).tolist() == [4, 1]
    assert steps.step_of_events().tolist() == [0, 2, 4, 1, 3, 1]


def test_keys_that_share_a_lane_stay_apart() -> None:
    keys = Keys(np.array([1, 1, 2, 1], np.uint64), np.array([5, 6, 5, 5], np.uint64))
    code, distinct = key_codes(keys)
    assert len(distinct) == 3
    assert (distinct.take(code).low == keys.low).all()
    assert (distinct.take(code).high == keys.high).all()


def test_codes_of_several_columns() -> None:
    columns = [
        pa.array(["a", None, "a", None, "b"]),
        pa.array([0.0, math.nan, -0.0, math.nan, None]),
        pa.array([True, None, True, None, False]),
    ]
    code, keys, values = group_codes(columns, 5)
    assert code.tolist() == [0, 1, 0, 1, 2]
    assert len(keys) == 3
    assert values[0].to_pylist() == ["a", None, "b"]
    assert values[2].to_pylist() == [True, None, False]
    assert counts.canonical(pa.array([-0.0]))[0].as_py().hex() == "0x0.0p+0"


def test_operators_survive_keys_that_share_a_lane() -> None:
    """With one bit of hash left in a lane, the other lane must tell values apart."""
    narrow = counts.hash_columns

    def weak(columns: list, rows: int) -> Keys:
        keys = narrow(columns, rows)
        return Keys(keys.high & np.uint64(1), keys.low)

    rows = [Row((c, float(i % 4)), i, i + 5) for i, c in enumerate("abcdefgh")]
    script = Script([rows], seed=3)
    with patch.object(counts, "hash_columns", weak):
        check(
            lambda: DistinctSpec(TYPES).build(),
            TYPES,
            script,
            lambda time: bag(script.snapshot(0, time)).keys(),
        )
