"""Change logs, deltas and views of random plans, as sinks get them, against the oracle.

Logs: every row that leaves has come before, in the very order of delivery; replayed up to an
instant they give the snapshot.  Deltas: applied batch by batch they give every view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.algebra import Distinct, Node, Project, UnionAll, Window, is_stream
from penstock.model import INF, MIN_TIME
from penstock.reference import relation, snapshot_at
from penstock.reference.expressions import canonical
from penstock.sinks import Result
from tests import strategies as make
from tests.comparison import same_bag
from tests.deliveries import DeliveringEngine
from tests.strategies import SCANS, Data
from tests.test_oracle import EXAMPLES, ORACLE, feed_by_batch, truth

CHANGES = settings(ORACLE, max_examples=2 * EXAMPLES)


def delivered(
    plan: Node, data: Data, draw: Callable, mode: str, shards: int
) -> tuple[list[Result], list[int]]:
    """Run a plan in random batches; return its results, and the heartbeat after each batch."""
    turn = draw(st.integers(0, 3))
    lifetime = {"lifetime": draw(st.sampled_from(["direct", "negative"]))}
    engine = DeliveringEngine(
        plan, data.tables, mode=mode, turn=turn, shards=shards, slack=data.slack, settings=lifetime
    )
    beats = []
    for _ in feed_by_batch(engine, data, draw):
        beats.append(min((p.heartbeat for p in engine.progress.values()), default=INF))
    return engine.results, beats


def rows_of(result: Result) -> list[tuple]:
    columns = [column.to_pylist() for column in result.table.columns]
    return [tuple(map(canonical, row)) for row in zip(*columns, strict=True)]


def of_relations(depth: int) -> st.SearchStrategy:
    return make.plans(depth).map(lambda plan: Distinct(plan) if is_stream(plan) else plan)


@CHANGES
@given(of_relations(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_whatever_leaves_a_log_has_come_before(plan, data, source, shards):
    results, beats = delivered(plan, data, source.draw, "log", shards)
    steps = relation(plan, truth(data))
    counts: Counter = Counter()
    reached, last = MIN_TIME, beats[-1]
    for result in results:
        before = reached
        for *values, time, sign in rows_of(result):
            time = MIN_TIME if time is None else time
            if time > reached:  # everything below this row's time has been told
                same_bag(+counts, snapshot_at(steps, time - 1), time - 1)
            assert time >= reached, "rows are in order of time, also over batches"
            reached = time
            counts[tuple(values)] += sign
            assert counts[tuple(values)] >= 0, f"{values} left at {time} and had not come"
        told = beats[result.batch]
        assert reached < told
        same_bag(+counts, snapshot_at(steps, told - 1), told - 1)
        assert before < reached or before == MIN_TIME, "no instant is told in two batches"
    same_bag(+counts, snapshot_at(steps, last - 1), last - 1)


@CHANGES
@given(of_relations(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_deltas_add_up_to_every_view(plan, data, source, shards):
    results, _ = delivered(plan, data, source.draw, "delta", shards)
    steps = relation(plan, truth(data))
    shown, as_of = Counter(), None
    for result in results:
        assert result.since == as_of
        as_of = result.as_of
        rows = rows_of(result)
        for *values, sign in rows:
            shown[tuple(values)] += sign
        assert min(shown.values(), default=0) >= 0
        same_bag(+shown, snapshot_at(steps, as_of), as_of)
    views, _ = delivered(plan, data, lambda strategy: source.draw(strategy), "view", shards)
    if views:
        assert as_of == views[-1].as_of
        same_bag(+shown, Counter(rows_of(views[-1])), as_of)


@CHANGES
@given(of_relations(2), make.data(), st.data(), st.sampled_from([1, 3]))
def test_every_view_is_the_snapshot_of_its_instant(plan, data, source, shards):
    results, _ = delivered(plan, data, source.draw, "view", shards)
    steps = relation(plan, truth(data))
    for result in results:
        same_bag(Counter(rows_of(result)), snapshot_at(steps, result.as_of), result.as_of)
    assert all(a.as_of < b.as_of for a, b in pairwise(results))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_row_that_takes_anothers_place_comes_after_it(shards):
    """At one instant rows leave first: whoever keeps one row per key never sees two."""
    plan = make.Aggregate(
        Window(SCANS["r"], make.WindowSpec(range=10)),
        (make.Column(0, make.STRING),),
        (make.AggregateCall("count", None, make.LONG),),
        ("k", "n"),
    )
    engine = DeliveringEngine(plan, mode="log", shards=shards)
    engine.batch({"r": [(k, 1, t) for t in range(5) for k in "abc"]})
    engine.batch({}, final=True)
    held: dict[str, int] = {}
    for result in engine.results:
        for key, count, _, sign in rows_of(result):
            if sign < 0:
                assert held.pop(key) == count
            else:
                assert key not in held
                held[key] = count
    assert held == {}


def test_changes_that_are_not_shown_yet_wait():
    """A sliding window's answer is known up to its next pulse, beyond the newest element."""
    spec = make.WindowSpec(range=10, slide=10)
    sliding = Project(Window(SCANS["r"], spec), (make.Column(1, make.LONG),), ("x",))
    plain = Project(
        Window(SCANS["r"], make.WindowSpec(range=3)), (make.Column(1, make.LONG),), ("x",)
    )
    engine = DeliveringEngine(UnionAll((sliding, plain)), mode="delta")
    shown: Counter = Counter()
    seen = []
    for rows in ([("a", 1, 4)], [("a", 2, 6)], [("a", 3, 11)], [("a", 4, 12), ("a", 5, 13)]):
        engine.batch({"r": rows})
        for result in engine.results:
            for value, sign in rows_of(result):
                shown[value] += sign
            seen.append((result.as_of, sorted((+shown).elements())))
        engine.results.clear()
    engine.batch({}, final=True)
    (last,) = engine.results
    assert last.as_of == 13
    assert seen == [(3, []), (5, [1]), (10, [1, 2]), (12, [1, 2, 3, 4])]
