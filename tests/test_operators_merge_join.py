"""Joins by merging against all combinations at every instant, with tiny memory and hostile cuts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr
from penstock.kernels.join_orders import Anywhere, Band, Edit, Equal, Near, Overlap, Place
from penstock.model import INF, Batch, Ends, Heartbeat
from penstock.operators.base import Context
from penstock.operators.merge_join import (
    Budget,
    MergeJoin,
    MergeJoinSpec,
    ProgressiveMergeJoinSpec,
    TemporalMergeJoinSpec,
)
from penstock.runs.merging import Merging
from penstock.runs.segments import SegmentStorage
from penstock.runs.state import MemoryStorage, State
from penstock.session import Session
from penstock.settings import Settings
from tests import strategies as make
from tests.examples import examples
from tests.slices import LAST, Row, Script, bag, check, run
from tests.test_oracle import ORACLE
from tests.test_oracle import check as check_plan

LONG, TEXT = pa.int64(), pa.string()
TYPES = (LONG, LONG, TEXT)
X, Y, K = Column(0, LONG), Column(1, LONG), Column(2, TEXT)


def _both(a: int, b: int) -> tuple[Column, Column]:
    """A column of the left and one of the right of two inputs."""
    return Column(a, TYPES[a]), Column(3 + b, TYPES[b])


def _le(a: Expr, b: Expr) -> Expr:
    return resolve_call("le", [a, b])


OVERLAP = resolve_call("and", [_le(*_both(0, 1)), _le(_both(1, 0)[1], _both(1, 0)[0])])
LESS = resolve_call("lt", list(_both(0, 0)))
DIFFERENT = resolve_call("ne", list(_both(1, 1)))

CASES: dict[str, tuple[Place, tuple[Expr, ...], Expr | None, Callable[[tuple, tuple], bool]]] = {
    "equal": (
        Equal(),
        (K,),
        DIFFERENT,
        lambda a, b: a[2] is not None and a[2] == b[2] and a[1] != b[1],
    ),
    "two keys": (Equal(), (K, X), None, lambda a, b: None not in (a[2], a[0]) and a[::2] == b[::2]),
    "band": (Band(-1, 2), (X,), None, lambda a, b: _known(a, b, 0) and -1 <= b[0] - a[0] <= 2),
    "inequality": (
        Band(0, float("inf")),
        (X,),
        LESS,
        lambda a, b: _known(a, b, 0) and a[0] < b[0],
    ),
    "overlap": (
        Overlap(),
        (X, Y),
        OVERLAP,
        lambda a, b: _known(a, b, 0) and a[0] <= b[1] and b[0] <= a[1],
    ),
    "near": (Near((1.0,)), (X,), None, lambda a, b: _known(a, b, 0) and abs(a[0] - b[0]) <= 1),
    "anything": (Anywhere(), (), LESS, lambda a, b: _known(a, b, 0) and a[0] < b[0]),
}


def _known(a: tuple, b: tuple, column: int) -> bool:
    return a[column] is not None and b[column] is not None


VALUES = st.tuples(
    st.one_of(st.none(), st.integers(-3, 6)),
    st.integers(-3, 8),
    st.sampled_from([None, "a", "b", "ab"]),
)


@st.composite
def scripts(draw: Any, ports: int, most: int) -> Script:
    """Rows whose ends are known."""
    row = st.tuples(
        VALUES, st.integers(0, LAST - 1), st.one_of(st.integers(0, 12), st.just(INF))
    ).map(lambda r: Row(r[0], r[1], INF if r[2] == INF else r[1] + r[2]))
    rows = draw(st.lists(st.lists(row, max_size=most), min_size=ports, max_size=ports))
    return Script(rows, {}, draw(st.integers(0, 2**32)))


BUDGETS = st.sampled_from([Budget(1, 1, 1), Budget(150, 1, 100), Budget(400, 4000, 400)])
STRATEGIES = ("greedy", "maxfanin", "load", "always", "never")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [TemporalMergeJoinSpec, ProgressiveMergeJoinSpec])
@given(script=scripts(2, 14), budget=BUDGETS, strategy=st.sampled_from(STRATEGIES))
@settings(max_examples=examples(25), deadline=None)
def test_every_place_gives_all_pairs(
    case: str, kind: type[MergeJoinSpec], script: Script, budget: Budget, strategy: str
) -> None:
    place, coordinates, residual, holds = CASES[case]

    def expected(time: int) -> Iterator[tuple]:
        left, right = script.snapshot(0, time), script.snapshot(1, time)
        return (a + b for a, b in itertools.product(left, right) if holds(a, b))

    listener = run(
        lambda: kind((TYPES, TYPES), (coordinates, coordinates), place, residual, budget).build(),
        TYPES,
        script,
        Merging(strategy, 2),
    )
    for time in (*range(-1, LAST + 14), INF - 1):
        assert listener.snapshot(time) == bag(expected(time)), f"at {time}"
    assert listener.heartbeat == INF


@pytest.mark.parametrize("order", ["post", "late", "level"])
@given(script=scripts(3, 7), budget=BUDGETS, fan_in=st.integers(2, 4))
@settings(max_examples=examples(25), deadline=None)
def test_the_order_of_merging_changes_no_answer(
    order: str, script: Script, budget: Budget, fan_in: int
) -> None:
    def expected(time: int) -> Iterator[tuple]:
        rows = itertools.product(*(script.snapshot(p, time) for p in range(3)))
        return (a + b + c for a, b, c in rows if a[2] is not None and a[2] == b[2] == c[2])

    listener = run(
        lambda: ProgressiveMergeJoinSpec(
            (TYPES,) * 3, ((K,),) * 3, Equal(), None, budget, order
        ).build(),
        TYPES,
        script,
        Merging("greedy", fan_in),
    )
    for time in (*range(-1, LAST + 14), INF - 1):
        assert listener.snapshot(time) == bag(expected(time)), f"at {time}"


@given(script=scripts(4, 6), budget=BUDGETS, strategy=st.sampled_from(STRATEGIES))
@settings(max_examples=examples(40), deadline=None)
def test_four_inputs_meet_in_one_operator(script: Script, budget: Budget, strategy: str) -> None:
    def meet(rows: tuple[tuple, ...]) -> bool:
        return all(
            a[0] is not None and b[0] is not None and a[0] <= b[1] and b[0] <= a[1]
            for a, b in itertools.combinations(rows, 2)
        )

    def expected(time: int) -> Iterator[tuple]:
        rows = itertools.product(*(script.snapshot(p, time) for p in range(4)))
        return (sum(some, ()) for some in rows if meet(some))

    listener = run(
        lambda: TemporalMergeJoinSpec((TYPES,) * 4, ((X, Y),) * 4, Overlap(), None, budget).build(),
        TYPES,
        script,
        Merging(strategy, 3),
    )
    for time in (*range(-1, LAST + 14), INF - 1):
        assert listener.snapshot(time) == bag(expected(time)), f"at {time}"


@given(script=scripts(2, 12), budget=BUDGETS)
@settings(max_examples=examples(25), deadline=None)
def test_edit_distance_stands_in_the_order_of_lengths(script: Script, budget: Budget) -> None:
    far = resolve_call("ne", list(_both(2, 2)))

    def expected(time: int) -> Iterator[tuple]:
        left, right = script.snapshot(0, time), script.snapshot(1, time)
        texts = itertools.product(left, right)
        return (
            a + b
            for a, b in texts
            if _known(a, b, 2) and a[2] != b[2] and abs(len(a[2]) - len(b[2])) <= 1
        )

    check(
        lambda: TemporalMergeJoinSpec((TYPES, TYPES), ((K,), (K,)), Edit(1), far, budget).build(),
        TYPES,
        script,
        expected,
    )


def _stream(seed: int, rows: int, window: int) -> tuple[Batch, Batch]:
    chance = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        start = np.arange(rows)
        x = chance.permutation(rows)
        columns = [pa.array(x), pa.array(x + 3), pa.array(["x" * 40] * rows)]
        sides.append(Batch.of(columns, start, start + window))
    return sides[0], sides[1]


def _drive(
    operator: MergeJoin, sides: tuple[Batch, Batch], step: int, every: Callable[[], None] | None
) -> tuple[int, list[Batch]]:
    rows, parts = len(sides[0]), []
    for first in range(0, rows, step):
        last = min(first + step, rows)
        for port, side in enumerate(sides):
            messages = [side.slice(first, last), Heartbeat(last if last < rows else INF)]
            for message in messages:
                parts += [m for m in operator.receive(port, message) if isinstance(m, Batch)]
        if every is not None:
            every()
    return sum(len(p) for p in parts), parts


@pytest.mark.parametrize("strategy", ["greedy", "maxfanin", "load"])
@pytest.mark.parametrize("kind", [TemporalMergeJoinSpec, ProgressiveMergeJoinSpec])
@pytest.mark.parametrize("step", [pytest.param(500, marks=pytest.mark.long), 20_000])
def test_a_window_larger_than_the_memory_stays_within_it(
    step: int, kind: type[MergeJoinSpec], strategy: str, tmp_path: Path
) -> None:
    rows, window, memory = 20_000, 8_000, 1 << 19
    sides = _stream(3, rows, window)
    state_bytes = 2 * window * (40 + 4 + 32)
    assert state_bytes > memory
    operator = kind((TYPES, TYPES), ((X, X), (X, X)), Overlap()).build()
    with SegmentStorage(str(tmp_path), "run", fsync=False) as storage:
        state = State(storage)
        given = Settings({"join.memory": memory})
        operator.open(
            Context(state, node=1, merging=Merging(strategy, 4), block=4096, settings=given)
        )
        count, parts = _drive(operator, sides, step, None)
        operator.close()
    assert operator.work.most_bytes <= memory, operator.work
    assert operator.work.pages_written > 0
    partner = np.argsort(to_x(sides[1]))[to_x(sides[0])]
    expected = int((np.abs(partner - sides[0].start) < window).sum())
    assert count == expected
    if kind is TemporalMergeJoinSpec:
        start = np.concatenate([p.start for p in parts])
        end = np.concatenate([p.end for p in parts])
        assert (np.lexsort((end, start)) == np.arange(len(start))).all(), "sorted by (start, end)"


def to_x(side: Batch) -> np.ndarray:
    return side.columns[0].to_numpy()


@pytest.mark.parametrize("kind", [TemporalMergeJoinSpec, ProgressiveMergeJoinSpec])
def test_state_survives_in_manifests(kind: type[MergeJoinSpec], tmp_path: Path) -> None:
    rows = 3000
    sides = _stream(5, rows, 500)
    described: dict[str, Any] = {}
    found = 0
    for batch, first in enumerate(range(0, rows, 250)):
        operator = kind((TYPES, TYPES), ((X, Y), (X, Y)), Overlap(), None).build()
        with SegmentStorage(str(tmp_path), f"{batch}", fsync=False) as storage:
            state = State(storage, json.loads(json.dumps(described)))
            given = Settings({"join.memory": 1 << 16})
            operator.open(Context(state, node=1, merging=Merging("load", 3), settings=given))
            last = first + 250
            for port, side in enumerate(sides):
                for message in (side.slice(first, last), Heartbeat(last if last < rows else INF)):
                    answers = operator.receive(port, message)
                    found += sum(len(m) for m in answers if isinstance(m, Batch))
            operator.close()
        described = state.describe()
    whole = kind((TYPES, TYPES), ((X, Y), (X, Y)), Overlap(), None).build()
    whole.open(Context(State(MemoryStorage()), node=1))
    assert found == _drive(whole, sides, rows, None)[0] > 0
    assert not described["runs"], "at the end of time nothing is kept"


def test_rows_with_holders_are_refused() -> None:
    operator = TemporalMergeJoinSpec((TYPES, TYPES), ((K,), (K,)), Equal()).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    row = Batch.of([pa.array([1]), pa.array([1]), pa.array(["a"])], [1], [5], [7])
    with pytest.raises(InternalError, match="without holders"):
        list(operator.receive(0, row))
    with pytest.raises(InternalError, match="known at birth"):
        list(operator.receive(0, Ends(np.array([7]), np.array([3]))))


def test_a_band_joins_two_inputs() -> None:
    with pytest.raises(InternalError, match="two inputs"):
        TemporalMergeJoinSpec((TYPES,) * 3, ((X,),) * 3, Band(0, 1)).build()


def test_expired_rows_are_thrown_away_while_writing(tmp_path: Path) -> None:
    sides = _stream(9, 20_000, 1000)
    sizes = []
    operator = TemporalMergeJoinSpec(
        (TYPES, TYPES), ((X, Y), (X, Y)), Overlap(), None, Budget(1 << 16, 1 << 16, 1 << 20)
    ).build()
    with SegmentStorage(str(tmp_path), "run", fsync=False) as storage:
        state = State(storage)
        operator.open(Context(state, node=1, merging=Merging("maxfanin", 4)))
        _drive(
            operator,
            sides,
            200,
            lambda: sizes.append(sum(len(r) for p in (0, 1) for r in state.runs(f"run.{p}"))),
        )
    assert 0 < max(sizes) < 8 * 2 * 1000, "as long as a few windows, not as the stream"
    assert operator.work.plain_merges > 0 or operator.work.steps > 3


def _plan(folder: Path, text: str, **options: Any) -> str:
    """Return what EXPLAIN says about a query over two streams."""
    session = Session(settings=options, autostart=False)
    for name in "ab":
        columns = "(k INT, x INT, t INT)"
        source = f"USING csv OPTIONS (path '{folder}') TIMESTAMP BY t"
        session.sql(f"CREATE STREAM {name} {columns} {source}")
    session.sql("CREATE SINK nowhere USING blackhole")
    session.sql(f"CREATE QUERY q {text}")
    return session.query("q").explain("physical")


@pytest.mark.parametrize(("method", "name"), [("tpmj", "(TPMJ)"), ("pmj", "(PMJ)")])
def test_explain_names_the_method(method: str, name: str, tmp_path: Path) -> None:
    select = "SELECT a.x FROM a [RANGE 10], b [RANGE 5] WHERE a.k = b.k"
    known = f"INTO nowhere AS {select}"
    unknown = known.replace("RANGE 10", "ROWS 10")
    assert name in _plan(tmp_path, known, **{"join.method": method})
    assert name not in _plan(tmp_path, unknown, **{"join.method": method}), "ends are not known"
    view = _plan(tmp_path, f"AS {select}", **{"join.method": method})
    assert name not in view, "the parts of a view show one instant"
    assert "merging" not in _plan(tmp_path, known)


@pytest.mark.parametrize("method", ["tpmj", "pmj"])
@settings(ORACLE, max_examples=examples(40))
@given(st.data())
def test_plans_give_what_the_oracle_gives(method: str, source: Any) -> None:
    plan = source.draw(make.joins(make.sources()))
    data = source.draw(make.data())
    options = source.draw(make.hostile_settings()) | {"join.method": method}
    shards = source.draw(st.sampled_from([1, 3]))
    check_plan(plan, data, cuts=source.draw(make.cuts()), shards=shards, **options)
