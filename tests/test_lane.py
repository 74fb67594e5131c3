"""The lane without Spark: which plans take it, and that both lanes together are the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import cql
from penstock.algebra import Scan, walk
from penstock.errors import QueryError, StateError
from penstock.lane.answering import Asked
from penstock.lane.buffers import SCHEDULERS, Buffers
from penstock.lane.early import EarlyAnswerer, early_queries
from penstock.lane.latencies import Latencies
from penstock.lane.tap import Block
from penstock.model import INF, one_array
from penstock.physical.answered import Answered, AnsweredRows
from penstock.physical.book import BookedQuery
from penstock.physical.early_plan import early_plan
from penstock.physical.lane_plan import lane_of
from penstock.physical.planner import Query, plan
from penstock.physical.progress import Decision, Partition
from penstock.queues.prioritised import QUEUES
from penstock.settings import Settings
from penstock.testing.local import LocalEngine, to_table
from penstock.timing import TimeRules
from tests import lane_machine, random_lanes
from tests.examples import examples
from tests.random_lanes import Case, declared, rows_of

DECLARED = [
    "CREATE STREAM a (k BIGINT, v BIGINT, p BIGINT, t BIGINT) USING memory TIMESTAMP BY t "
    "PRIORITY p",
    "CREATE STREAM b (k BIGINT, v BIGINT, p BIGINT, t BIGINT) USING memory TIMESTAMP BY t",
    "CREATE TABLE d (k BIGINT, w BIGINT) USING csv OPTIONS (path 'none')",
    "CREATE TABLE e (k BIGINT, f BIGINT, g BIGINT) USING csv OPTIONS (path 'none') "
    "VALID FROM f TO g",
]


def bound(text: str):
    case = Case(0, DECLARED, {}, [], 0, 1, {}, [], 0.0)
    return cql.bind_query(text, declared(case))


# Both lanes together


@pytest.mark.parametrize("part", range(4))
def test_random_cases(part):
    """Rows are answered in any order, some never: the bag is that of the oracle."""
    count = examples(160) // 4
    made = sum((random_lanes.run(random_lanes.case_of(100_000 + part * count + i))
                for i in range(count)), start=random_lanes.Counter())  # fmt: skip
    assert made["lane"] > 10
    assert made["main"] > 100


@pytest.mark.parametrize("part", range(4))
def test_random_lives(part):
    """With files, kills, restarts, a clock, silences, and batches that fail."""
    count = examples(120) // 4
    made = sum((lane_machine.run(200_000 + part * count + i)
                for i in range(count)), start=lane_machine.Counter())  # fmt: skip
    assert made["lane"] > 5
    assert made["killed"] > 5


@pytest.mark.parametrize("seed", [51, 304])
def test_lives_that_failed(seed):
    """51: a new process must know what was answered since; 304: and forget what was given up."""
    lane_machine.run(seed)


@pytest.mark.parametrize("seed", [1012, 1162, 1184, 1213])
def test_cases_that_failed(seed):
    random_lanes.run(random_lanes.case_of(seed))


# Which plans take it


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("SELECT k FROM a", "intervals"),
        ("SELECT k, t FROM a [RANGE 5] WHERE v > 1", "intervals"),
        ("SELECT x.k FROM a [RANGE 5] x, b [RANGE 5] y WHERE x.k = y.k", "intervals"),
        ("SELECT x.k FROM a [RANGE 5 SLIDE 2] x, b [TUMBLE 3] y WHERE x.v < y.v", "intervals"),
        ("SELECT x.k, d.w FROM a x JOIN d ON d.k = x.k", "intervals"),
        ("SELECT k FROM a UNION ALL SELECT k FROM b", "intervals"),
        ("ISTREAM (SELECT k, t FROM a [RANGE 5])", "stream"),
        ("ISTREAM (SELECT x.t AS t, y.t AS u FROM a [NOW] x, b [RANGE 5] y)", "stream"),
        ("ISTREAM (SELECT x.t AS t FROM a [NOW] x, b y WHERE x.k = y.k)", "stream"),
    ],
)
def test_plans_that_take_the_lane(text, mode):
    found = lane_of(bound(text), mode, 0)
    assert found.why == ""
    assert found.node is not None
    assert any(isinstance(n, Scan) and n.mark is not None for n in walk(found.node))


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("SELECT COUNT(*) AS n FROM a [RANGE 5]", "intervals", "aggregates need"),
        ("SELECT k FROM a [ROWS 3]", "intervals", "windows by rows and sessions"),
        ("SELECT DISTINCT k FROM a [RANGE 5]", "intervals", "DISTINCT, UNION"),
        ("SELECT k FROM a [RANGE 5] EXCEPT SELECT k FROM b [RANGE 5]", "intervals", "DISTINCT"),
        ("SELECT k FROM a [RANGE 5] ORDER BY k LIMIT 2", "intervals", "ORDER BY .. LIMIT"),
        ("SELECT x.k FROM a [RANGE 5] x LEFT JOIN b [RANGE 5] y ON x.k = y.k", "intervals",
         "a left join needs"),
        ("SELECT k FROM a [RANGE 5]", "log", "a change log needs deaths"),
        ("SELECT k FROM a [RANGE 5]", "view", "a view needs deaths"),
        ("DSTREAM (SELECT k FROM a [RANGE 5])", "stream", "DSTREAM needs"),
        ("ISTREAM (SELECT k FROM a [RANGE 5])", "stream", "add the time of a to the answer"),
        ("ISTREAM (SELECT x.t AS t FROM a [NOW] x, b [RANGE 5] y)", "stream", "the time of b"),
        ("SELECT x.k FROM a x JOIN e ON e.k = x.k", "intervals", "table e begin at times"),
        ("SELECT z.k FROM a [RANGE 5] z JOIN (SELECT x.k AS k FROM b [RANGE 5 SLIDE 2] x JOIN "
         "b [RANGE 5] y ON x.k = y.k) s ON s.k = z.k", "intervals", "sliding window below"),
    ],
)  # fmt: skip
def test_plans_that_take_the_main_lane(text, mode, why):
    found = lane_of(bound(text), mode, 0)
    assert found.node is None
    assert why in found.why


def test_joins_by_merging_take_the_main_lane():
    node = bound("SELECT x.k FROM a [RANGE 5] x, b [RANGE 5] y WHERE x.k = y.k")
    merged = plan([Query("q", node)], Settings({"join.method": "tpmj"}), {})
    assert not merged.answers[0].lane
    assert "joins by merging" in merged.answers[0].why_main


def test_plans_without_priorities_carry_nothing():
    """What nobody uses costs nothing: the same nodes, with the same digests."""
    node = bound("SELECT x.k FROM b [RANGE 5] x, b [RANGE 7] y WHERE x.k = y.k")
    made = plan([Query("q", node)], Settings(), {})
    assert all(n.source is None or n.source.mark is None for n in made.nodes)
    assert not made.answers[0].lane
    assert made.answers[0].why_main == ""


# Early answers


def early_engine(text: str) -> LocalEngine:
    engine = LocalEngine({}, {"d": [(1, 100)]}, shards=2)
    node = bound(text)
    engine.announce(node)
    engine.book.add(BookedQuery("q", node, "intervals", early="soon"))
    engine.replan()
    return engine


def asked(engine: LocalEngine, rows: list[tuple]) -> Asked:
    table = to_table(engine.streams["a"].schema, rows)
    times = np.array([row[-1] for row in rows], np.int64)
    return Asked([one_array(column) for column in table.columns], times)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SELECT x.k, r.m FROM a [NOW] x JOIN (SELECT k, AVG(v) AS m FROM b [RANGE 100] "
            "GROUP BY k) r ON x.k = r.k",
            [((1, 11.0, 11, 4), 11)],
        ),
        (
            "SELECT x.k, r.m FROM a [RANGE 5] x LEFT JOIN (SELECT k, SUM(v) AS m FROM "
            "b [RANGE 100] GROUP BY k) r ON x.k = r.k",
            [((1, 11, 11, 4), 11), ((7, None, 12, 4), 12)],
        ),
        (
            "SELECT x.k, d.w FROM a [NOW] x JOIN d ON d.k = x.k WHERE x.v < 9",
            [((1, 100, 11, None), 11)],
        ),
        (
            "ISTREAM (SELECT x.k, r.v FROM a [NOW] x JOIN b [ROWS 2] r ON x.k = r.k)",
            [((3, 13, 13, 4), 13)],
        ),
    ],
)
def test_early_answers(text, expected):
    engine = early_engine(text)
    first = [(k, 10 + k, 0, 1) for k in range(4)]
    engine.batch({"a": [(5, 0, 0, 1)], "b": first})
    engine.batch({"b": [(k, 20 + k, 0, 5) for k in range(4)]})
    (query,) = early_queries(engine.plan, engine.book.queries.values())
    answerer = EarlyAnswerer(query, engine.committed(), engine.config)
    for _ in range(2):  # a turn leaves nothing behind
        found = answerer.answer(asked(engine, [(7, 0, 3, 12), (1, 0, 3, 11), (3, 0, 3, 13)]))
        rows = sorted((values, start) for values, start, _ in rows_of(found))
        wanted = [row for row in rows if row[0][0] in {e[0][0] for e in expected}]
        assert wanted == expected
    engine.batch({}, final=True)  # the main lane answers as ever


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT COUNT(*) AS n FROM a [RANGE 5]", "aggregates need"),
        ("SELECT x.k FROM a x, a y WHERE x.k = y.k", "one stream with PRIORITY, once"),
        ("DSTREAM (SELECT k FROM a [RANGE 5])", "DSTREAM says"),
        ("SELECT y.k FROM b [RANGE 5] y LEFT JOIN a [RANGE 5] x ON x.k = y.k", "a left join"),
    ],
)
def test_rows_that_cannot_be_answered_early(text, why):
    with pytest.raises(QueryError, match="EARLY INTO answers each important row alone") as told:
        early_plan(bound(text))
    assert why in str(told.value)


# What waits


def block(stream: str, priority: int, since: float, rows: int = 1) -> Block:
    table = to_table(bound("SELECT * FROM a").schema, [(0, 0, priority, 0)] * rows)
    zeros = np.zeros(rows, np.int64)
    return Block(stream, table, zeros, zeros, priority, since)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kind", QUEUES)
def test_buffers_give_everything_once(kind, scheduler):
    buffers = Buffers(kind, scheduler)
    blocks = [block("ab"[i % 2], i % 5 + 1, float(i), 1 + i % 3) for i in range(40)]
    for one in blocks:
        buffers.put(one)
    taken: list[Block] = []
    while len(buffers):
        some = buffers.take(4)
        assert some
        buffers.learn(some, 0.001)
        taken += some
    assert sorted(map(id, taken)) == sorted(map(id, blocks))
    if scheduler == "highestpriority" and kind in ("strong", "strong2", "levels"):
        levels = [one.priority for one in taken]
        assert levels == sorted(levels, reverse=True)


def test_latencies_are_told_by_priority():
    latencies = Latencies()
    latencies.add(3, 0.5, 2)
    latencies.add(9, 0.1, 1)
    assert list(latencies.summary()) == [9, 3]
    assert latencies.summary()[3] == (2, 0.5, 0.5)
    assert latencies.rate() == pytest.approx(0.3)


def test_heartbeats_wait_for_rows_that_were_answered():
    """A clock would pass a row that the lane has answered and that no batch has yet."""
    engine = LocalEngine({"q": bound("SELECT k FROM a")})
    engine.batch({"a": [(0, 0, 0, 10)]})
    engine.ceilings = {"a": 20}
    engine.batch({}, decisions={"a": Decision({None: 50})})
    assert engine.heartbeat("a") == 20
    engine.ceilings = {}
    engine.batch({"a": [(0, 0, 1, 20)]}, decisions={"a": Decision({None: 50})})
    assert engine.heartbeat("a") == 50
    assert engine.late["a"] == []
    engine.batch({}, final=True)
    assert engine.heartbeat("a") == INF


def test_what_was_answered_before_a_query_began_was_not_for_it():
    """The lane knows the first query only when it answers; the second begins with the next batch.

    What it answered is left out of the first answer, and is in the second.
    """
    first, second = bound("SELECT k FROM a"), bound("SELECT v FROM a")
    engine = LocalEngine({"q": first})
    engine.batch({"a": [(1, 2, 0, 10)]})
    engine.book.add(BookedQuery("r", second, "intervals"))
    engine.replan()
    seq, turn, batch = (np.array([number], np.int64) for number in (1, 1, 0))
    engine.answered = Answered({"a": AnsweredRows(seq, turn, batch)}, {0: {"a": 10}})
    engine.batch({"a": [(3, 4, 1, 11)]})
    engine.answered = Answered()
    engine.batch({}, final=True)
    assert engine.answers == {"q": [((1,), 10, INF)], "r": [((4,), 11, INF)]}


def test_a_row_that_was_answered_is_not_late():
    """Whatever its partition has promised since: the lane has judged it before."""
    known, time = Partition(max_time=50, floor=40), np.array([45, 30, 30], np.int64)
    late, _ = known.judged(time, TimeRules(20))
    assert late.tolist() == [False, True, True]
    late, after = known.judged(time, TimeRules(20), answered=np.array([False, True, False]))
    assert late.tolist() == [False, False, True]
    assert (after.accepted, after.late) == (2, 1)


def test_a_query_created_anew_goes_on_behind_its_predecessor():
    """The lane has answered a row of time 20 for a query of the same name, and no batch has it."""
    engine = LocalEngine({"q": bound("SELECT k FROM a")})
    engine.batch({"a": [(1, 0, 0, 10)]})
    engine.book.add(BookedQuery("r", bound("SELECT v FROM a"), "intervals", answered=20))
    engine.replan()
    engine.batch({"a": [(2, 5, 1, 20), (3, 6, 1, 21)]})
    engine.batch({}, final=True)
    assert engine.answers["r"] == [((6,), 21, INF)]
    assert len(engine.answers["q"]) == 3


def test_a_spool_that_is_older_than_the_journal_is_refused(tmp_path):
    seed = next(s for s in range(300_000, 300_200) if _answers_ahead(s, tmp_path / str(s)))
    assert seed


def _answers_ahead(seed: int, folder: Path) -> bool:
    """Run a case until the lane is ahead of the batches; then take the spool back."""
    folder.mkdir()
    with lane_machine.running(seed, folder) as machine:
        machine.killing = machine.stumbling = machine.failing = machine.losing = 0.0
        for name, row in machine.case.arrivals:
            if name in machine.streams:
                machine.push(name, row)
                if machine.manifest.batch < 0:
                    machine.batch()
                machine.turns()
                if machine.lane.answered:
                    break
        ahead = sorted(machine.lane.answered)
        if not ahead or machine.planned is not None:
            return False
        newest = max((folder / ahead[0]).glob("*.arrow"), key=lambda path: path.name)
        newest.unlink()
        (folder / ahead[0] / "head").unlink()
        machine.lane.journal.close()
        with pytest.raises(StateError, match="must have the rows that were answered"):
            machine.lane = machine._lane()
        return True


def test_rows_that_a_new_tap_finds_again_do_not_wait_twice(tmp_path):
    """A tap fails while rows wait that it has brought; the next one reads them again."""
    for seed in range(400_000, 400_050):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with lane_machine.running(seed, folder) as machine:
            machine.killing = machine.stumbling = machine.failing = machine.losing = 0.0
            machine.deciding = 0.0
            machine.batch(final=False)
            asked = sorted(machine.lane.asked)
            if not asked:
                continue
            for time in (50, 51):
                machine.push(asked[0], (0, 0, 7, time))
            machine.lane._look()
            assert machine.lane.status().waiting == 2
            machine.failing = 1.0
            machine.push(asked[0], (0, 0, 7, 52))
            machine.lane._look()
            assert "too many open files" in machine.lane.status().why
            machine.failing = 0.0
            described = machine._described(machine.offsets)
            machine.lane.committed(machine.manifest, machine.engine.plan, {}, described)
            machine.lane._look()
            assert machine.lane.status().waiting == 3
            return
    raise AssertionError("no case takes the lane")
