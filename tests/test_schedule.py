"""Which operator runs next, and that finding it costs the same however many operators there are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog import Catalog, StreamDef
from penstock.cql import bind_query
from penstock.model import Field, Schema
from penstock.physical.fragment import Fragment
from penstock.physical.plan import PhysicalPlan
from penstock.queues.fifo import Fifo
from penstock.schedule.policy import POLICIES, policy
from penstock.testing.local import LocalEngine

SCHEMA = Schema((Field("k", pa.string()), Field("x", pa.int64()), Field("t", pa.int64())))


def engine_of(queries: int, **settings: object) -> LocalEngine:
    catalog = Catalog()
    for name in ("a", "b"):
        catalog.add(StreamDef(name, SCHEMA, "memory", {}, 2, 0))
    texts = [
        f"SELECT a.k, COUNT(*) AS n FROM a [RANGE {i + 1}], b [RANGE 3] "
        f"WHERE a.k = b.k AND a.x > {i} GROUP BY a.k"
        for i in range(queries)
    ]
    plans = {f"q{i}": bind_query(text, catalog) for i, text in enumerate(texts)}
    return LocalEngine(plans, settings=settings)


ROWS = {name: [("k", 100 + i, i) for i in range(10)] for name in ("a", "b")}


class Watched:
    """A policy that notes what it chooses from, and checks it against the queues."""

    def __init__(self, name: str) -> None:
        self.inner = policy(name)
        self.last = -1
        self.name = name
        self.turns = 0
        self.fragment: Fragment | None = None

    def next(self, ready: Sequence[int]) -> int:
        assert self.fragment is not None
        queues = self.fragment._queues
        assert list(ready) == [at for at in self.fragment.positions if any(map(len, queues[at]))]
        later = [at for at in ready if at > self.last] if self.name == "roundrobin" else []
        expected = (later or list(ready))[0]
        self.last = self.inner.next(ready)
        assert self.last == expected
        self.turns += 1
        return self.last


@pytest.mark.parametrize("name", POLICIES)
def test_the_ready_list_is_what_the_queues_say(name, monkeypatch):
    watched: list[Watched] = []
    original = Fragment.__init__

    def init(self: Fragment, *args: object, **named: object) -> None:
        original(self, *args, **named)
        watched.append(Watched(name))
        watched[-1].fragment = self
        self._policy = watched[-1]

    monkeypatch.setattr(Fragment, "__init__", init)
    engine = engine_of(5, scheduler=name)
    for _ in range(2):
        engine.batch(ROWS)
    engine.batch({}, final=True)
    assert sum(w.turns for w in watched) > 50
    assert any(engine.answers.values())


@given(st.lists(st.sets(st.integers(0, 12), min_size=1), max_size=12))
def test_round_robin_takes_the_next_one_and_begins_again(rounds):
    chooser, last = policy("roundrobin"), -1
    for ready in map(sorted, rounds):
        expected = next((r for r in ready if r > last), ready[0])
        last = chooser.next(ready)
        assert last == expected


def test_choosing_costs_the_same_however_many_operators_there_are(monkeypatch):
    looked = 0
    original = Fifo.__len__

    def counted(self: Fifo) -> int:
        nonlocal looked
        looked += 1
        return original(self)

    monkeypatch.setattr(Fifo, "__len__", counted)
    costs = []
    for queries in (10, 100):
        engine = engine_of(queries)
        looked = 0
        engine.batch(ROWS)
        costs.append(looked)
    assert costs[1] < 20 * costs[0]  # ten times the messages; it was ninety times the looks


def naive_streams(plan: PhysicalPlan, at: int) -> set[str]:
    node = plan.nodes[at]
    if node.source is not None:
        return {node.source.name} if node.source.kind == "stream" else set()
    return set().union(*(naive_streams(plan, i.producer) for i in node.inputs))


def test_what_a_plan_knows_of_itself_does_not_travel():
    plan = engine_of(4).plan
    before = pickle.dumps(plan)
    for at in range(len(plan.nodes)):
        assert plan.streams_below(at) == naive_streams(plan, at)
        assert not plan.is_table(at)
    assert plan.users()[plan.sources("stream", "a")[0]]
    assert set(plan.packed(plan.sources("stream", "a"))).issubset(plan.of_stage(-1))
    assert all(plan.by_key(channel) for channel in range(len(plan.channels)))
    assert pickle.dumps(plan) == before
    assert pickle.loads(before) == plan
