"""The aggregate operator against plain Python at every instant, under hostile cuts and merges."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError, NotSupportedError
from penstock.expr.nodes import AggregateCall, Column, Expr
from penstock.model import INF, Batch, Heartbeat
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.base import Context
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples
from tests.slices import STRATEGIES, Row, Script, bag, check, crowd, run, scripts

TYPES = (pa.string(), pa.int32(), pa.float64(), pa.string())
KEY, WHOLE, REAL, TEXT = (Column(i, t) for i, t in enumerate(TYPES))
COUNT = AggregateCall("count", None, pa.int64())
VARIANCES = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")

values = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, 0, 1, 2, -7]),
    st.sampled_from([None, 0.0, -0.0, 0.1, 0.2, 1e16, -1e16, 3.5]),
    st.sampled_from([None, "", "x", "y", "ü"]),
)
strange = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, 2**31 - 1, -(2**31)]),
    st.sampled_from([0.5, math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0]),
    st.just("x"),
)


def calls(*names: str, arg: Expr) -> tuple[AggregateCall, ...]:
    def kind(name: str) -> pa.DataType:
        if name.startswith("count"):
            return pa.int64()
        if name in ("min", "max"):
            return arg.type
        return pa.int64() if name == "sum" and pa.types.is_integer(arg.type) else pa.float64()

    return tuple(AggregateCall(n, arg, kind(n)) for n in names)


def total(numbers: list[float]) -> float:
    special = [x for x in numbers if not math.isfinite(x)]
    if special:
        return sum(special)
    exact = sum(map(Fraction, numbers), Fraction(0))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def spread(name: str, numbers: list[float]) -> float | None:
    count = len(numbers)
    if count == 0 or (count == 1 and name.endswith("samp")):
        return None
    if not all(map(math.isfinite, numbers)):
        return math.nan
    exact = [Fraction(x) for x in numbers]
    numerator = count * sum(x * x for x in exact) - sum(exact) ** 2
    variance = numerator / (count * (count - name.endswith("samp")))
    if name.startswith("var"):
        return float(variance) if variance < 2**1023 else math.inf
    if variance == 0:
        return 0.0
    shift = (math.frexp(float(variance))[1] // 2) if variance < 2**1000 else 512
    return math.ldexp(math.sqrt(variance / Fraction(4) ** shift), shift)


def order(value: Any) -> Any:
    return (math.isnan(value), value) if isinstance(value, float) else value


def aggregate(call: AggregateCall, rows: list[tuple]) -> Any:
    """The obvious answer."""
    if call.arg is None:
        return len(rows)
    assert isinstance(call.arg, Column)
    seen = [r[call.arg.index] for r in rows if r[call.arg.index] is not None]
    match call.name:
        case "count":
            return len(seen)
        case "count_distinct":
            return len({str(v + 0.0 if isinstance(v, float) else v) for v in seen})
        case "sum" if pa.types.is_integer(call.arg.type):
            return sum(seen) if seen else None
        case "sum":
            return total(seen) if seen else None
        case "avg":
            return total(seen) / len(seen) if seen else None
        case "min":
            return min(seen, key=order) if seen else None
        case "max":
            return max(seen, key=order) if seen else None
    return spread(call.name, [float(v) for v in seen])


def expected(
    script: Script, keys: tuple[Column, ...], wanted: tuple[AggregateCall, ...], time: int
) -> list[tuple]:
    groups = defaultdict(list)
    for row in script.snapshot(0, time):
        groups[tuple(row[k.index] for k in keys)].append(row)
    if not keys and not groups and any(script.snapshot(0, t) for t in range(min(time, 60))):
        groups[()] = []
    return [(*key, *(aggregate(c, rows) for c in wanted)) for key, rows in groups.items()]


def verify(
    script: Script, keys: tuple[Column, ...], wanted: tuple[AggregateCall, ...], panes: bool
) -> None:
    check(
        lambda: AggregateSpec(TYPES, keys, wanted, panes).build(),
        TYPES,
        script,
        lambda time: expected(script, keys, wanted, time),
    )


@settings(deadline=None, max_examples=examples(100))
@given(scripts(values), st.sampled_from([(KEY,), (), (KEY, WHOLE)]), st.booleans())
def test_counts_sums_and_averages(script: Script, keys: tuple, panes: bool) -> None:
    wanted = (COUNT, *calls("count", "sum", "avg", arg=WHOLE), *calls("sum", "avg", arg=REAL))
    verify(script, keys, (*wanted, *calls("count", arg=TEXT)), panes)


@settings(deadline=None, max_examples=examples(100))
@given(scripts(values), st.sampled_from([(KEY,), ()]), st.booleans())
def test_extremes(script: Script, keys: tuple, panes: bool) -> None:
    wanted = [c for arg in (WHOLE, REAL, TEXT) for c in calls("min", "max", arg=arg)]
    verify(script, keys, tuple(wanted), panes)


@settings(deadline=None, max_examples=examples(100))
@given(scripts(values), st.sampled_from([(KEY,), ()]), st.booleans())
def test_distinct_counts(script: Script, keys: tuple, panes: bool) -> None:
    wanted = [c for arg in (WHOLE, REAL, TEXT) for c in calls("count_distinct", arg=arg)]
    verify(script, keys, (*wanted, *calls("sum", "max", arg=WHOLE)), panes)


@settings(deadline=None, max_examples=examples(100))
@given(scripts(values), st.booleans())
def test_variances_are_close_to_exact(script: Script, panes: bool) -> None:
    wanted = (*calls(*VARIANCES, arg=REAL), *calls(*VARIANCES, "sum", "max", arg=WHOLE))
    listener = run(lambda: AggregateSpec(TYPES, (KEY,), wanted, panes).build(), TYPES, script)
    for time in range(40):
        answer = {row[0]: row[1:] for row in listener.snapshot(time)}
        right = {row[0]: row[1:] for row in expected(script, (KEY,), wanted, time)}
        assert answer.keys() == right.keys()
        for key, row in answer.items():
            for got, want in zip(row, right[key], strict=True):
                assert got == want or math.isclose(got, want, rel_tol=1e-15)


@settings(deadline=None, max_examples=examples(100))
@given(scripts(strange), st.booleans())
def test_strange_numbers(script: Script, panes: bool) -> None:
    wanted = (*calls("sum", "avg", "min", "max", "var_pop", arg=REAL), *calls("sum", arg=WHOLE))
    if any(math.isfinite(r.values[2]) for r in script.ports[0]):
        wanted = wanted[:4] + wanted[5:]
    verify(script, (KEY,), wanted, panes)


@settings(deadline=None, max_examples=examples(30))
@given(scripts(values), st.integers(0, 100))
def test_the_same_bits_however_it_is_cut(script: Script, seed: int) -> None:
    wanted = (*calls("sum", "avg", *VARIANCES, "min", arg=REAL), *calls("max", arg=TEXT))
    answers = []
    for panes, chosen, merging in ((False, 1, 0), (True, seed, 1), (False, seed, 2), (True, 2, 3)):
        script.seed = chosen
        answers.append(
            run(
                lambda panes=panes: AggregateSpec(TYPES, (KEY,), wanted, panes).build(),
                TYPES,
                script,
                STRATEGIES[merging],
            )
        )
    for time in range(40):
        first, *others = (
            bag(
                tuple(v.hex() if isinstance(v, float) else v for v in row)
                for row in answer.snapshot(time)
            )
            for answer in answers
        )
        assert all(other == first for other in others)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("panes", [False, True])
def test_crowds(seed: int, panes: bool) -> None:
    script = crowd(
        lambda c: (c.choice("ab"), c.randrange(40), c.random(), f"{c.randrange(60):02}"), 1, seed
    )
    wanted = [c for arg in (WHOLE, REAL, TEXT) for c in calls("min", "max", arg=arg)]
    wanted += [*calls("sum", "avg", arg=REAL), *calls("count_distinct", arg=WHOLE)]
    verify(script, (KEY,), tuple(wanted if not panes else wanted[:-1]), panes)


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.bool_(), [True, False]),
        (pa.date32(), [datetime.date(2020, 1, 2), datetime.date(1960, 1, 2)]),
        (pa.timestamp("us"), [datetime.datetime(2020, 1, 2), datetime.datetime(1960, 1, 2)]),
        (pa.float32(), [1.5, -2.5]),
        (pa.int8(), [-128, 127]),
        (pa.int64(), [2**63 - 1, -(2**63)]),
    ],
)
@pytest.mark.parametrize("panes", [False, True])
def test_extremes_of_every_type(kind: pa.DataType, items: list, panes: bool) -> None:
    script = Script([[Row((items[0],), 1, 5), Row((items[1],), 3, 9), Row((None,), 0, 20)]])
    wanted = calls("min", "max", "count_distinct", arg=Column(0, kind))
    low, high = sorted(items)
    for seed in range(5):
        script.seed = seed
        listener = run(lambda: AggregateSpec((kind,), (), wanted, panes).build(), (kind,), script)
        answers = [next(iter(listener.snapshot(t)), None) for t in (-1, 0, 2, 4, 7, 12, 30)]
        assert answers == [
            None,
            (None, None, 0),
            (items[0], items[0], 1),
            (low, high, 2),
            (items[1], items[1], 1),
            (None, None, 0),
            (None, None, 0),
        ]


def test_equal_neighbours_are_joined_across_slices() -> None:
    rows = [Row(("a", 1, 0.0, ""), t, t + 2) for t in range(0, 20, 2)]
    wanted = (COUNT, *calls("max", arg=WHOLE))
    listener = run(
        lambda: AggregateSpec(TYPES, (KEY,), wanted, False).build(), TYPES, Script([rows])
    )
    assert [(r.values, r.start) for r in listener.rows] == [(("a", 1, 1), 0)]
    assert list(listener.told.values()) == [20]


def test_a_sum_that_exceeds_bigint_is_an_error() -> None:
    big = Column(0, pa.int64())
    rows = [Row((2**62,), t, t + 4) for t in (0, 1, 6)]
    ok = Script([[Row((2**62,), 0, 3), Row((-(2**62),), 1, 5), Row((2**62,), 2, 3)]])
    make = lambda: AggregateSpec((pa.int64(),), (), calls("sum", arg=big), False).build()  # noqa: E731
    assert run(make, (pa.int64(),), ok).snapshot(2) == bag([(2**62,)])
    with pytest.raises(DataError, match="cast the argument to DOUBLE"):
        run(make, (pa.int64(),), Script([rows]))
    average = lambda: AggregateSpec((pa.int64(),), (), calls("avg", arg=big), True).build()  # noqa: E731
    assert run(average, (pa.int64(),), Script([rows])).snapshot(2) == bag([(2.0**62,)])


def test_arguments_must_fit() -> None:
    with pytest.raises(NotSupportedError, match="must be a number"):
        AggregateSpec(TYPES, (), calls("sum", arg=TEXT), False).build()
    with pytest.raises(NotSupportedError, match="an aggregate is one of"):
        AggregateSpec(TYPES, (), calls("product", arg=REAL), False).build()


def test_state_of_a_time_window_stays_small() -> None:
    """MIN keeps a staircase, not the window."""
    state = State(MemoryStorage())
    chance = np.random.default_rng(1)
    wanted = calls("min", arg=REAL)
    for start in range(0, 50_000, 5_000):
        operator = AggregateSpec(TYPES, (KEY,), wanted, False).build()
        operator.open(Context(state, node=1))
        time = np.arange(start, start + 5_000)
        columns = (
            pa.array(["k"] * 5_000),
            pa.array([1] * 5_000, pa.int32()),
            pa.array(chance.random(5_000)),
            pa.array([""] * 5_000),
        )
        for message in (Batch.of(columns, time, time + 20_000), Heartbeat(start + 5_000)):
            for _ in operator.receive(0, message):
                pass
        operator.close()
    kept = sum(len(run_) for run_ in state.runs("extremes.0.min.known"))
    assert 0 < kept < 200
    assert INF not in [r.stats["max_end"] for r in state.runs("extremes.0.min.known")]
