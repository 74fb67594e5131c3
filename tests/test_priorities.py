"""Prioritised elements: which order queues keep, the join of the paper, and its experiment."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.bench import priorities, priorities_picture, priority_join, priority_run
from penstock.bench.priority_join import Element, PriorityJoin
from penstock.bench.priority_plan import PLACEMENTS, Buffers, Data, Operator, Placement, operators
from penstock.bench.priority_run import SCHEDULERS, Run
from penstock.cli import app
from penstock.errors import ConfigError
from penstock.queues.prioritised import HIGHEST, NOTHING, QUEUES, priority_queue

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"

# Queues

STRONG = ("normal", "direct", "strong", "strong2", "levels")
"""The kinds that keep a strong order; all keep a weak one."""

Entry = tuple[int, int, int]
"""(time, priority, number)"""


def weakly(found: Sequence[Entry]) -> bool:
    """Definition 2, pair by pair."""
    return not any(a[0] < b[0] and b[1] == 0 for n, b in enumerate(found) for a in found[n + 1 :])


def strongly(found: Sequence[Entry]) -> bool:
    """Definition 1, pair by pair."""
    return not any(
        a[0] < b[0] and a[1] >= b[1] for n, b in enumerate(found) for a in found[n + 1 :]
    )


ORDERS: dict[str, Callable[[Sequence[Entry]], bool]] = {"weak": weakly, "strong": strongly}


@st.composite
def ordered(draw: st.DrawFn, order: str) -> list[Entry]:
    """A stream of an order: entries that came by time, then overtook where the order allows it."""
    rows = draw(st.lists(st.tuples(st.integers(0, 6), st.sampled_from((0, 0, 1, 2, HIGHEST)))))
    found = [(*row, number) for number, row in enumerate(sorted(rows, key=lambda row: row[0]))]
    for place, distance in draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)))):
        if place < len(found):
            moved = [*found[:place], *found[place + 1 :]]
            moved.insert(max(0, place - distance), found[place])
            if ORDERS[order](moved):
                found = moved
    return found


class Chain:
    """Queues one behind another; what `direct` does not keep goes on at once."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.queues = [priority_queue(kind) for kind in kinds]
        self.found: list[Entry] = []

    def put(self, at: int, entry: Entry) -> None:
        if at == len(self.queues):
            self.found.append(entry)
        elif not self.queues[at].put(entry, entry[1], entry[0]):
            self.put(at + 1, entry)

    def take(self, at: int, most: int = 0) -> None:
        for entry in self.queues[at].take(most):
            self.put(at + 1, entry)

    def run(self, entries: Sequence[Entry], turns: Sequence[tuple[int, int]]) -> list[Entry]:
        """Put entries one by one; after each, the queue of a turn gives some on."""
        for number, entry in enumerate(entries):
            self.put(0, entry)
            if number < len(turns):
                at, most = turns[number]
                self.take(at % len(self.queues), most)
        for at in range(len(self.queues)):
            self.take(at)
        return self.found


TURNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40)


@pytest.mark.parametrize("kind", QUEUES)
@given(entries=ordered("weak"), turns=TURNS)
def test_every_queue_keeps_a_weak_order(kind, entries, turns):
    found = Chain([kind]).run(entries, turns)
    assert weakly(found)
    assert sorted(found) == sorted(entries)


@pytest.mark.parametrize("kind", STRONG)
@given(entries=ordered("strong"), turns=TURNS)
def test_these_queues_keep_a_strong_order(kind, entries, turns):
    assert strongly(Chain([kind]).run(entries, turns))


@given(
    kinds=st.lists(st.sampled_from(sorted(QUEUES)), min_size=2, max_size=4),
    entries=ordered("weak"),
    turns=TURNS,
)
def test_a_chain_of_queues_keeps_a_weak_order(kinds, entries, turns):
    found = Chain(kinds).run(entries, turns)
    assert weakly(found)
    assert sorted(found) == sorted(entries)


@given(
    kinds=st.lists(st.sampled_from(STRONG), min_size=2, max_size=4),
    entries=ordered("strong"),
    turns=TURNS,
)
def test_a_chain_of_strong_ones_keeps_a_strong_order(kinds, entries, turns):
    assert strongly(Chain(kinds).run(entries, turns))


@pytest.mark.parametrize("kinds", [["weak"], ["weak", "strong"], ["levels", "weak"]])
def test_weak_breaks_a_strong_order_and_nothing_behind_it_mends_that(kinds):
    entries = [(0, 5, 0), (1, 5, 1)]
    weak = kinds.index("weak")
    chain = Chain(kinds)
    for entry in entries:
        chain.put(0, entry)
    for at in range(weak):
        chain.take(at)
    for _ in entries:  # one by one, so that what is behind never holds both
        for at in range(weak, len(kinds)):
            chain.take(at, 1)
    assert strongly(entries)
    assert chain.found == entries[::-1]
    assert not strongly(chain.found)
    assert weakly(chain.found)


@pytest.mark.parametrize("kind", ["strong", "strong2"])
@given(entries=ordered("weak"))
def test_what_waits_together_is_sorted_by_priority_and_time(kind, entries):
    found = Chain([kind]).run(entries, [])
    expected = sorted(entries, key=lambda e: (-e[1], e[0]))
    assert [e[:2] for e in found] == [e[:2] for e in expected]


@pytest.mark.parametrize("kind", QUEUES)
@given(entries=ordered("weak"), turns=TURNS)
def test_a_queue_knows_what_comes_next_and_how_many_before_it(kind, entries, turns):
    queue, count = priority_queue(kind), 0
    assert queue.head() == NOTHING
    for number, entry in enumerate(entries):
        ahead = queue.ahead(entry[1])
        if not queue.put(entry, entry[1], entry[0]):
            assert kind == "direct"
            assert ahead == 0
            continue
        count += 1
        most = turns[number][1] if number < len(turns) else 1
        head = queue.head()
        taken = queue.take(most)
        assert taken[0][1] == head
        assert len(taken) == (min(most, count) if most else count)
        if entry in taken and kind in ("normal", "direct", "weak", "levels"):
            assert taken.index(entry) == ahead
        count -= len(taken)
        assert len(queue) == count
        assert queue.take(0) == [] or count
        count = len(queue)


@pytest.mark.parametrize("kind", QUEUES)
def test_an_empty_queue_gives_nothing(kind):
    queue = priority_queue(kind)
    for most in (0, 1, 5):
        assert queue.take(most) == []
    queue.put("x", 0, 1.0)
    assert queue.take(9) == ["x"]
    assert (len(queue), queue.head()) == (0, NOTHING)


def test_a_direct_queue_above_a_source_keeps_everything():
    assert not priority_queue("direct").put("alarm", 9, 0.0)
    assert priority_queue("direct", above_source=True).put("alarm", 9, 0.0)
    assert type(priority_queue("weak", above_source=True)) is type(priority_queue("weak"))
    with pytest.raises(ConfigError, match="there is no queue 'week'; did you mean 'weak'"):
        priority_queue("week")


@pytest.mark.parametrize("kind", ["normal", "direct", "weak", "strong2", "levels"])
def test_putting_costs_the_same_however_much_waits(kind):
    """Entries are compared the more often the more wait only by their logarithm."""
    compared = 0

    class Time(float):
        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float.__lt__(self, other)

    queue = priority_queue(kind)
    for number in range(4000):
        queue.put(number, 1 + number % 3, Time(number * 7919 % 4001))
    assert compared < 4000 * 20


# The join

STREAMS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=14)


@st.composite
def weak_stream(draw: st.DrawFn) -> list[Element]:
    """A weakly ordered stream of elements with validities and priorities."""
    entries = draw(ordered("weak"))
    return [
        Element((draw(st.integers(0, 2)), n), t, t + draw(st.integers(1, 5)), min(p, 10))
        for t, p, n in entries
    ]


def plain(left: Sequence[Element], right: Sequence[Element]) -> Counter[tuple[object, ...]]:
    """The join by definition, without priorities."""
    return Counter(
        (a.value, b.value, max(a.start, b.start), min(a.end, b.end))
        for a, b in product(left, right)
        if a.value[0] == b.value[0] and max(a.start, b.start) < min(a.end, b.end)
    )


def joined(
    left: Sequence[Element], right: Sequence[Element], turns: Sequence[bool]
) -> tuple[list[Element], PriorityJoin]:
    join = PriorityJoin(lambda a, b: a[0] == b[0])
    streams = [list(reversed(left)), list(reversed(right))]
    found: list[Element] = []
    for turn in [*turns, *([False, True] * (len(left) + len(right)))]:
        if streams[turn]:
            found += join.receive(int(turn), streams[turn].pop())
    return found + join.finish(), join


@given(weak_stream(), weak_stream(), st.lists(st.booleans(), max_size=40))
def test_the_join_gives_every_pair_once_and_in_a_weak_order(left, right, turns):
    found, _ = joined(left, right, turns)
    bag = Counter((*r.value, r.start, r.end) for r in found)
    assert bag == plain(left, right)
    assert weakly([(int(r.start), r.priority, n) for n, r in enumerate(found)])
    important = {e.value: e.priority for e in left}, {e.value: e.priority for e in right}
    assert all(r.priority == max(important[0][r.value[0]], important[1][r.value[1]]) for r in found)


def test_an_important_element_is_answered_at_once_and_once():
    join = PriorityJoin(lambda a, b: True)
    assert join.receive(1, Element("r1", 0, 10)) == []
    assert join.receive(1, Element("r2", 5, 15)) == []
    (one, two) = join.receive(0, Element("alarm", 4, 14, priority=9))
    assert {one.value, two.value} == {("alarm", "r1"), ("alarm", "r2")}
    assert join.receive(0, Element("l1", 1, 3)) == []  # it starts at 1, and so may others
    (left,) = join.receive(0, Element("l2", 2, 3))
    assert left.value == ("l1", "r1")
    (third,) = join.receive(1, Element("r3", 6, 16))
    assert third.value == ("alarm", "r3")


def test_an_element_is_forgotten_when_the_next_begins_where_it_ends():
    join = PriorityJoin(lambda a, b: True)
    join.receive(0, Element("l", 0, 5))
    join.receive(1, Element("early", 5, 9, priority=1))
    assert len(join.areas[0]) == 1
    join.receive(1, Element("r", 5, 9))
    assert len(join.areas[0]) == 0


@pytest.mark.parametrize("overtaken", [0, 30])
def test_what_a_join_gains_is_what_is_estimated(overtaken):
    case = priority_join.Case(rates=(40.0, 60.0), selectivity=0.1, overtaken=overtaken)
    for paced in (True, False):
        found = priority_join.measured(case, paced, range(24))
        assert found == pytest.approx(case.refined(paced), rel=0.15)
    assert case.estimate() > case.refined(False)


def test_the_estimate_of_the_paper_by_hand():
    case = priority_join.Case((2.0, 3.0), (1.0, 5.0), 0.5, 7, 0.25, 0.125)
    later = (3 + 1) * 2 / 5 + (3 + 2) * 2 / 5
    assert case.estimate() == pytest.approx(7 * 0.25 + 4 / 10 + 0.5 * (later + 2) * 5 * 0.125)


# The experiment


def test_the_plan_is_as_large_as_the_papers():
    plan = operators()
    depth: dict[int, int] = {}
    for at, operator in enumerate(plan):
        depth[at] = 1 + max((depth[below] for below in operator.inputs if below >= 0), default=0)
    assert (len(plan), max(depth.values())) == (60, 9)
    passed, spent = priorities.work_of(plan)
    assert passed * 2 * 100_000 == pytest.approx(1.4e6, rel=0.01)
    assert spent * 2 * 10_000 / 1e6 == pytest.approx(0.88, abs=0.01)
    data = Data.make(plan, 20_000, 7)
    shares = Counter(data.priority.tolist())
    assert {p: round(n / 40_000, 2) for p, n in shares.items()} == {0: 0.7, 8: 0.1, 9: 0.1, 10: 0.1}
    assert data.arrival[-1] == pytest.approx(2e6, rel=0.01)


def test_buffers_stand_where_the_paper_puts_them():
    plan = operators()
    joins = sum(operator.is_binary for operator in plan)
    counts = {name: len(Buffers(plan, place).buffers) for name, place in PLACEMENTS.items()}
    assert counts["all three (paper)"] == 2 + 2 + 2 * joins
    assert counts["after sources"] == counts["priority in front of the first buffer"] == 2
    found = Buffers(plan, Placement())
    consumers = found.consumers()
    assert all(after > at for at, some in consumers.items() for after in some)
    down = Buffers(plan, Placement(), downwards=True)
    assert [b.feeds for b in down.buffers] == [b.feeds for b in reversed(found.buffers)]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_all_buffers_do_the_same_work(name):
    """The answers are those that follow from the plan, however it is run."""
    plan = operators()
    data = Data.make(plan, 300, 5)
    arrived: dict[int, list[int]] = {at: [] for at in range(-2, len(plan))}
    for source in (0, 1):
        arrived[-1 - source] = [e for e in range(600) if data.source[e] == source]
    answers: list[int] = []
    for at, operator in enumerate(plan):
        for port, below in enumerate(operator.inputs):
            arrived[at] += [e for e in arrived[below] if data.passes[at, port][e]]
        if not any(at in other.inputs for other in plan):
            answers += arrived[at]
    expected = Counter(data.priority[answers].tolist())
    for kind, whole, placement in product(QUEUES, (False, True), PLACEMENTS.values()):
        buffers = Buffers(plan, placement, SCHEDULERS[name].downwards)
        found = Run(data, buffers, SCHEDULERS[name], kind, whole).run()
        assert {p: len(some) for p, some in found.latency.items()} == expected
        assert min(some.min() for some in found.latency.values()) > 0


def test_latency_by_hand():
    """Ten elements that came together, one after another through two buffers."""
    plan = [Operator("priority 0", (-1,), 1.0), Operator("answer", (0,), 8.0)]
    data = Data.make(plan, 10, 1, sources=1)
    run = Run(data, Buffers(plan, Placement()), SCHEDULERS["min-latency"], "normal", False)
    found = run.run()
    turn = priority_run.TURN + priority_run.LOOK
    each = turn + 1.0 + priority_run.PUT + turn + 8.0
    latencies = sorted(float(x) for some in found.latency.values() for x in some)
    assert latencies == pytest.approx([each * (n + 1) / 1000 for n in range(10)])
    assert (found.decisions, found.longest) == (20, 10)
    # an alarm passes the second buffer, which costs neither a put nor a turn
    alarms = Data(data.arrival, data.source, data.priority * 0 + 9, data.passes)
    run = Run(alarms, Buffers(plan, Placement()), SCHEDULERS["min-latency"], "direct", False)
    assert sorted(run.run().latency[9]) == pytest.approx(
        [(turn + 9.0) * (n + 1) / 1000 for n in range(10)]
    )


@pytest.mark.parametrize(
    ("kind", "walked"), [("normal", 0), ("weak", 0), ("levels", 0), ("strong", 45), ("strong2", 45)]
)
def test_finding_a_place_in_a_sorted_list_costs_time(kind, walked):
    """Ten alarms are put behind one another in one turn: each passes those before it."""
    plan = [Operator("priority 0", (-1,), 1.0), Operator("answer", (0,), 8.0)]
    data = Data.make(plan, 10, 1, sources=1)
    alarms = Data(data.arrival, data.source, data.priority * 0 + 9, data.passes)
    found = Run(alarms, Buffers(plan, Placement()), SCHEDULERS["min-cost"], kind, True).run()
    turn = priority_run.TURN + priority_run.LOOK
    spent = 2 * turn + 10 * (1.0 + priority_run.PUT + 8.0) + walked * priority_run.WALK
    assert found.seconds * 1e6 == pytest.approx(spent)


@pytest.fixture(scope="module")
def report() -> priorities.Report:
    return priorities.measure(2000, seed=7, processes=1)


@pytest.mark.long
@pytest.mark.xdist_group("test_priorities")
def test_a_small_run_shows_what_the_paper_shows(report, tmp_path):
    bars = {bar.text: bar for bar in report.bars()}
    assert bars["highest priority, direct: gain"].value > 20  # it grows with the run
    missed = {text for text, bar in bars.items() if not bar.met}
    assert missed <= {text for text in bars if "gain" in text}
    content = json.loads(json.dumps(report.as_json()))
    assert len(content["runs"]) == len(priorities.cases())
    alike, same = (
        report.runs[priorities.Case(name, "direct", False)].overall
        for name in ("highest priority, as both joined", "both joined")
    )
    assert alike == pytest.approx(same, rel=0.02)  # the page says so
    priorities_picture.draw(content, tmp_path / "priorities.png")
    assert (tmp_path / "priorities.png").stat().st_size > 20_000
    assert len(list(priorities.tables(report))) == 6


@pytest.mark.long
@pytest.mark.xdist_group("test_priorities")
def test_two_processes_give_the_same_numbers(report):
    few = [c for c in priorities.cases() if c.scheduler == "min-cost"][:3]
    groups = [few[:1], few[1:]]
    found = [n for some in priorities._runs_of(groups, 2000, 7, 2) for n in some]
    assert found == [report.runs[case] for case in few]


@pytest.mark.long
@pytest.mark.xdist_group("test_priorities")
def test_a_bar_that_is_missed_is_said(report):
    case = priorities.Case("both joined", "direct", False)
    worse = dict(report.runs)
    worse[case] = report.runs[priorities.Case("highest priority", "normal", False)]
    missed = [bar for bar in priorities.Report(2000, worse, report.estimates).bars() if not bar.met]
    assert sum("both joined" in bar.text for bar in missed) == 2


def test_the_command_knows_its_experiment():
    answer = CliRunner().invoke(app, ["bench", "priorities", "--help"])
    assert answer.exit_code == 0
    assert "--elements" in re.sub(r"\x1b\[[\d;]*m", "", answer.output)
