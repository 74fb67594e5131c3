"""Which operator runs next, and that finding it costs the same however many operators there are."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import cql
from penstock.bench.scripts import plans_of
from penstock.catalog import Catalog, StreamDef
from penstock.cql import bind_query
from penstock.model import Batch, Field, Schema
from penstock.physical import fragment
from penstock.physical.efforts import Effort, Experience, Service, known_of, measured_after
from penstock.physical.explain_work import charts_of, service_of, work_of
from penstock.physical.plan import PhysicalPlan
from penstock.queues.held import Held
from penstock.queues.stored import Queue, Stored
from penstock.schedule.board import Board, Known, Promise
from penstock.schedule.paths import chain_lines, merged_lines, shared_lines
from penstock.schedule.policy import policy
from penstock.settings import SCHEDULERS, Settings
from penstock.testing import Rig
from penstock.testing.local import LocalEngine

SCHEMA = Schema((Field("k", pa.string()), Field("x", pa.int64()), Field("t", pa.int64())))


def engine_of(queries: int, **settings: object) -> LocalEngine:
    catalog = Catalog()
    for name in ("a", "b"):
        catalog.add(StreamDef(name, SCHEMA, "memory", {}, 2))
    texts = [
        f"SELECT a.k, COUNT(*) AS n FROM a [RANGE {i + 1}], b [RANGE 3] "
        f"WHERE a.k = b.k AND a.x > {i} GROUP BY a.k"
        for i in range(queries)
    ]
    plans = {f"q{i}": bind_query(text, catalog) for i, text in enumerate(texts)}
    return LocalEngine(plans, settings=settings)


ROWS = {name: [("k", 100 + i, i) for i in range(10)] for name in ("a", "b")}


class Watched:
    """A policy that checks what it is told, and what it chooses, against the queues."""

    def __init__(self, name: str) -> None:
        self.inner = policy(name)
        self.told: set[int] = set()
        self.turns = 0

    def open(self, board: Board) -> None:
        self.board = board
        self.inner.open(board)

    def ready(self, at: int) -> None:
        self.told.add(at)
        self.inner.ready(at)

    def next(self) -> int | None:
        ready = {at for at in self.board.positions if self.board.is_ready(at)}
        assert ready <= self.told
        at = self.inner.next()
        assert (at in ready) if ready else at is None
        self.told = ready - {at}
        self.turns += 1
        return at


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_policy_is_told_of_all_work_and_chooses_some(name, monkeypatch):
    watched: list[Watched] = []

    def watching(chosen: str) -> Watched:
        watched.append(Watched(chosen))
        return watched[-1]

    monkeypatch.setattr(fragment, "policy", watching)
    settings = {"scheduler": name, "scheduler.quantum": 1, "train.rows": 3}
    engine, expected = engine_of(5, **settings), engine_of(5)
    for some in (engine, expected):
        for _ in range(2):
            some.batch(ROWS)
        some.batch({}, final=True)
    assert sum(w.turns for w in watched) > 50
    assert {q: sorted(a) for q, a in engine.answers.items()} == {
        q: sorted(a) for q, a in expected.answers.items()
    }
    assert any(engine.answers.values())


def board_of(
    consumers: dict[int, list[int]], known: dict[int, Known], leaves: Sequence[int] = (0,), **more
) -> Board:
    count = 1 + max([*consumers, *(c for some in consumers.values() for c in some), *leaves])
    return Board(
        range(count), consumers, leaves, {at: [Queue()] for at in range(count)}, known.get, **more
    )


def put(board: Board, at: int, rows: int = 1, train: int = 0) -> None:
    board.queues[at][0].put(Stored(Batch.of([pa.array([0] * rows)], [0] * rows), train))
    board.waiting[at] = len(board.queues[at][0])


def take(board: Board, at: int) -> None:
    board.queues[at][0].take()
    board.waiting[at] = len(board.queues[at][0])


@given(st.lists(st.sets(st.integers(0, 12), min_size=1), max_size=12))
def test_round_robin_takes_the_next_one_and_begins_again(rounds):
    board = board_of({}, {}, leaves=range(13))
    chooser, last = policy("roundrobin"), -1
    chooser.open(board)
    for ready in map(sorted, rounds):
        for at in ready:
            put(board, at)
            chooser.ready(at)
        expected = next((r for r in ready if r > last), ready[0])
        last = chooser.next()
        assert last == expected
        for at in ready:
            while len(board.queues[at][0]):
                take(board, at)


def order_of(name: str, board: Board, waiting: dict[int, int], train: int = 0) -> list[int]:
    """The order in which a policy empties queues whose operators make nothing."""
    chooser = policy(name)
    chooser.open(board)
    for at, rows in waiting.items():
        put(board, at, rows, train)
        chooser.ready(at)
    found = []
    while (at := chooser.next()) is not None:
        found.append(at)
        take(board, at)
    return found


CHART = {  # the operators of the two queries of [D]: 0 is shared, 1 to 3 and 4 to 6 follow
    0: Known(1.0, 0.7),
    1: Known(1.0 / 0.7, 0.4 / 0.7),
    2: Known(1.0 / 0.4, 0.3 / 0.4),
    3: Known(1.0 / 0.3, 0.0),
    4: Known(1.0 / 0.7, 0.3 / 0.7),
    5: Known(1.0 / 0.3, 0.2 / 0.3),
    6: Known(1.0 / 0.2, 0.0),
}
SHARED = {0: [1, 4], 1: [2], 2: [3], 4: [5], 5: [6]}


def test_the_charts_are_those_of_the_paper():
    board = board_of(SHARED, CHART)
    one, two = chain_lines(board)
    assert [p for _, p in one.points] == pytest.approx([1, 0.7, 0.4, 0.3, 0])
    assert [t for t, _ in two.points] == pytest.approx([0, 1, 2, 3, 4])
    assert [(s.first, s.last, round(s.slope, 4)) for s in one.segments] == [
        (0, 2, 0.3),
        (2, 4, 0.2),
    ]
    prefix, serial, *rests = shared_lines(board)
    assert prefix.operators == (0,)
    assert serial.operators == (1, 4)
    assert serial.segments[0].slope == pytest.approx(0.175)
    assert sorted(rest.operators for rest in rests) == [(2, 3), (5, 6)]
    (merged,) = merged_lines(board)
    assert merged.operators == (0, 1, 4, 2, 3, 5, 6)
    assert [p for _, p in merged.points] == pytest.approx([1, 0.7, 1.1, 0.7, 0.6, 0.3, 0.2, 0.0])
    assert [(s.first, s.last) for s in merged.segments] == [(0, 1), (1, 7)]


def test_policies_order_operators_by_what_they_are_about():
    everything = dict.fromkeys(range(7), 1)
    assert order_of("topological", board_of(SHARED, CHART), everything) == [0, 1, 2, 3, 4, 5, 6]
    assert order_of("fifo", board_of(SHARED, CHART), everything) == [6, 5, 4, 3, 2, 1, 0]
    assert order_of("biggest", board_of(SHARED, CHART), {1: 2, 4: 9, 2: 5}) == [4, 2, 1]
    # what leaves is gone: the last operators take away most, then those before them
    assert order_of("greedy", board_of(SHARED, CHART), everything)[-1] == 5
    assert order_of("chain", board_of(SHARED, CHART), everything)[:3] == [0, 4, 1]
    assert order_of("sharedchain", board_of(SHARED, CHART), everything)[0] == 0
    assert order_of("mergedchain", board_of(SHARED, CHART), everything) == [0, 1, 4, 2, 3, 5, 6]
    cheap = CHART | {3: Known(0.1, 1.0), 2: Known(0.1, 1.0), 1: Known(0.1, 1.0)}
    assert order_of("minlatency", board_of(SHARED, cheap), {1: 1, 4: 1, 0: 1}) == [1, 0, 4]
    promises = {3: Promise(weight=1.0), 6: Promise(weight=5.0)}
    board = board_of(SHARED, CHART, promised=promises.get)
    assert order_of("highestpriority", board, {1: 1, 4: 1, 5: 1, 2: 1}) == [5, 4, 2, 1]


def test_priority_joined_with_latency_takes_the_shortest_path_among_equals():
    cheap = CHART | {at: Known(0.1, 1.0) for at in (1, 2, 3)}
    waiting = dict.fromkeys((0, 1, 4, 5), 1)
    board = board_of(SHARED, cheap)  # all queries weigh the same
    assert order_of("minlatencypriority", board, waiting) == [1, 0, 5, 4]
    assert order_of("minlatencypriority", board_of(SHARED, cheap), waiting) == order_of(
        "minlatency", board_of(SHARED, cheap), waiting
    )
    promises = {3: Promise(weight=1.0), 6: Promise(weight=5.0)}
    board = board_of(SHARED, cheap, promised=promises.get)
    assert order_of("minlatencypriority", board, waiting) == [0, 5, 4, 1]
    assert order_of("highestpriority", board, waiting) == [5, 4, 0, 1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("highestpriority", [4, 2, 6, 5, 1]), ("minlatencypriority", [4, 2, 1, 6, 5])],
)
def test_elements_with_a_priority_go_before_heavy_queries(name, expected):
    cheap = CHART | {at: Known(0.1, 1.0) for at in (1, 2, 3)}
    waits = {4: 9.0, 2: 8.0}
    board = board_of(SHARED, cheap, priority=lambda at: waits.get(at, 0.0))
    assert order_of(name, board, dict.fromkeys((1, 2, 4, 5, 6), 1)) == expected


def test_an_element_that_comes_later_may_be_the_most_important():
    waits = {1: 0.0, 4: 0.0}
    board = board_of(SHARED, CHART, priority=lambda at: waits[at])
    chooser = policy("highestpriority")
    chooser.open(board)
    for at in (1, 4):
        put(board, at)
        chooser.ready(at)
    waits[1] = 7.0
    put(board, 1)
    chooser.ready(1)
    assert chooser.next() == 1


def test_what_was_noted_before_costs_nothing_later(monkeypatch):
    board = board_of(SHARED, CHART)
    chooser = policy("biggest")
    chooser.open(board)

    def put_one():
        put(board, 1)
        chooser.ready(1)

    def take_one():
        assert chooser.next() == 1
        take(board, 1)
        if board.is_ready(1):
            chooser.ready(1)

    for _ in range(10):
        put_one()
    for _ in range(300):
        put_one()
        take_one()
    ranked = 0
    original = chooser.rank

    def counted(at):
        nonlocal ranked
        ranked += 1
        return original(at)

    monkeypatch.setattr(chooser, "rank", counted)
    for _ in range(10):
        take_one()
    assert ranked < 50  # it was 2,755: each of 300 old notes was put right after every turn


def test_qos_serves_who_loses_most_and_not_who_has_lost_already():
    promises = {3: Promise(within=10.0), 6: Promise(within=2.0)}
    board = board_of(SHARED, {}, promised=promises.get, began=time.time())
    assert order_of("qos", board, {3: 1, 6: 1}) == [6, 3]
    board = board_of(SHARED, {}, promised=promises.get, began=time.time() - 4.5)  # 6 is too late
    assert order_of("qos", board, {3: 1, 6: 1}) == [3, 6]
    heavy = {3: Promise(within=1.0, weight=100.0), 6: Promise(within=0.9)}
    work = {3: Known(1.0), 6: Known(1.0)}
    assert order_of("qos", board_of(SHARED, work, promised=heavy.get), {3: 1, 6: 1}) == [3, 6]


def test_choosing_costs_the_same_however_many_operators_there_are(monkeypatch):
    looked = 0
    original = Queue.__len__

    def counted(self: Queue) -> int:
        nonlocal looked
        looked += 1
        return original(self)

    monkeypatch.setattr(Queue, "__len__", counted)
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


SCRIPT = """
    CREATE STREAM a (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE STREAM b (k INT, v INT, t BIGINT) USING memory TIMESTAMP BY t;
    CREATE QUERY soon WITHIN 500 MILLISECONDS WEIGHT 2.5 AS
      SELECT a.k, COUNT(*) AS n FROM a [RANGE 20] JOIN b [RANGE 20] ON a.k = b.k GROUP BY a.k;
    CREATE QUERY best AS SELECT k, v FROM a [ROWS 30] WHERE v > 1 ORDER BY v DESC LIMIT 2;
"""


def test_answers_are_noted_with_what_they_are_worth():
    engine = LocalEngine(
        plans_of(SCRIPT), promises={"soon": Promise(60.0, 2.5)}, settings={"train.rows": 10}
    )
    rows = {name: [(i % 3, i, i) for i in range(100)] for name in ("a", "b")}
    engine.batch(rows)
    engine.batch({}, final=True)
    served = engine.outcome.served["soon"]
    assert served.rows > 0
    assert served.utility == pytest.approx(2.5 * served.rows)
    assert 0 <= served.first <= served.last < 60
    assert engine.outcome.held > 0
    measured = {d: known_of(numbers) for d, numbers in engine.measured.items()}
    joins = [measured[n.digest] for n in engine.plan.nodes if n.label.startswith("Join")]
    assert joins[0].rows > 1
    assert joins[0].cost > 0
    assert joins[0].made > 0


def test_what_was_measured_follows_the_load():
    effort = Effort(1.0, 100, 50, 400, 1, 800)
    known = measured_after({}, {"x": effort})
    for _ in range(60):
        known = measured_after(known, {"x": Effort(3.0, 100, 10, 80, 1, 800), "idle": Effort()})
    assert set(known) == {"x"}
    assert known_of(known["x"]) == Known(
        *(pytest.approx(value, rel=0.01) for value in (0.03, 0.1, 8.0, 8.0))
    )


@pytest.mark.parametrize(
    ("latency", "worth"), [(0.0, 3.0), (2.0, 3.0), (3.0, 1.5), (4.0, 0.0), (99.0, 0.0)]
)
def test_utility_falls_after_the_time_that_is_asked_for(latency, worth):
    assert Promise(2.0, 3.0).utility(latency) == pytest.approx(worth)
    assert Promise(weight=3.0).utility(latency) == 3.0


def test_explain_analyze_draws_the_charts():
    engine = LocalEngine(plans_of(SCRIPT), settings={"train.rows": 10})
    rows = {name: [(i % 3, i % 7, i) for i in range(100)] for name in ("a", "b")}
    engine.batch(rows)
    for scheduler, segments in (("fifo", 1), ("sharedchain", 1), ("mergedchain+", 1)):
        text = "\n".join(charts_of(engine.plan, "soon", engine.measured, scheduler))
        assert text.count("progress chart, stage 0") >= segments
        assert re.search(r"µs +[\d.]+ B █+ +Join  \(segment \d, [-\d.e]+ B/µs\)", text), text
    work = "\n".join(work_of(engine.plan, "soon", engine.measured, engine.outcome.efforts))
    assert re.search(r"Join +0 +200 +[\d,]+ ", work)
    assert list(charts_of(engine.plan, "soon", {}, "fifo")) == [
        "no progress chart: no path has been measured from its input to an answer yet"
    ]
    assert "utility 1.00" in "".join(service_of(Promise(9, 2), Service(4, 8.0, 0.1, 0.2)))


def test_the_progress_chart_of_the_page():
    engine = LocalEngine(plans_of(SCRIPT), mode="view")
    engine.batch({name: [(i % 3, i % 7, i) for i in range(100)] for name in ("a", "b")})
    page = (Path(__file__).parent.parent / "docs/scheduling.md").read_text()
    (printed,) = re.findall(r"```text\n(progress chart.*?)```", page, re.DOTALL)
    made = list(charts_of(engine.plan, "soon", engine.measured, "chain"))

    def shape(line: str) -> str:
        line = re.sub(r"Output \w+", "Output", line)
        return re.sub(r"[\d.e-]+|█", "0", line.replace(" ", ""))

    plain = [re.sub("0+", "0", shape(line)) for line in printed.splitlines()]
    assert plain == [re.sub("0+", "0", shape(line)) for line in made[: len(plain)]]


@pytest.mark.parametrize(
    "text", ["SET scheduler = chain+", "SET train.rows TO 7", "set Scheduler = 'qos'"]
)
def test_a_setting_is_changed_by_a_statement(text):
    rig = Rig(SCRIPT)
    (parsed,) = cql.parse_script(text)
    found = cql.bind(parsed, rig.catalog)
    assert found.setting in ("scheduler", "train.rows")
    assert Settings().changed(found.setting, found.value)


@pytest.mark.parametrize(
    "numbers",
    [
        (),
        (1.0, 2.0),
        (0.0,) * 5,
        (1.0, -1.0, 1.0, 1.0, 1.0),
        (float("nan"),) * 5,
        (1.0, 1e300, float("inf"), 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("name", ["chain", "mergedchain", "minlatency", "greedy", "qos"])
def test_numbers_that_nobody_can_have_measured_are_passed_over(name, numbers):
    engine = engine_of(2, scheduler=name, **{"train.rows": 3})
    engine.measured = {node.digest: numbers for node in engine.plan.nodes}
    engine.batch(ROWS)
    assert all(Experience(engine.measured).known(n.digest) for n in engine.plan.nodes if n.spec)


def test_rows_in_files_make_trains_smaller_too():
    held = Held()
    held.add(10)
    held.add(500, filed=True)
    held.add(-500, filed=True)
    assert (held.now, held.peak, held.restart(), held.restart()) == (10, 10, 510, 10)
