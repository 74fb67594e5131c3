"""The engine against the oracle: random inputs through every window, every operator, whole plans.

Snapshots are compared as bags at every instant at which anything starts or ends, and one chronon
before it.  Floating-point values may differ from the exact ones by a rounding, but never between
two ways to cut the input into batches.  The examples of ``make test`` are the same every time;
``PENSTOCK_EXAMPLES`` sets the number of examples per test and makes them new ones (``make fuzz``).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.algebra import NODES, Distinct, Filter, Node, Window, is_stream, streams_of
from penstock.expr.nodes import Literal
from penstock.model import INF, MIN_TIME
from penstock.physical.at_once import at_once
from penstock.physical.planner import lower
from penstock.reference import (
    MEANINGS,
    Inputs,
    accept,
    from_intervals,
    relation,
    snapshot_at,
    to_intervals,
)
from penstock.reference.expressions import canonical
from penstock.testing import LocalEngine, Rig, run_local
from penstock.testing import check as check_script
from tests import strategies as make
from tests.comparison import check_answer, same_bag
from tests.examples import examples
from tests.golden_runner import FOLDER
from tests.strategies import SCANS, Data

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0")) or examples(20)
ORACLE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.large_base_example,
    ],
)


def run(plan: Node, data: Data, *, cuts=1, shards=1, mode="intervals", **options) -> list[tuple]:
    """Run one plan and return its rows."""
    answers = run_local(
        {"q": plan},
        data.streams,
        data.tables,
        cuts=cuts,
        shards=shards,
        slack=data.slack,
        mode=mode,
        settings=options,
    )
    return answers["q"]


def truth(data: Data) -> Inputs:
    return Inputs({n: accept(r, data.slack)[0] for n, r in data.streams.items()}, data.tables)


def check(plan: Node, data: Data, **options) -> None:
    """Compare the engine's answer to a plan with the oracle's."""
    check_answer(plan, run(plan, data, **options), truth(data))


# One window, one operator


@pytest.mark.parametrize("form", make.FORMS)
@ORACLE
@given(st.data())
def test_window(form, source):
    scan = SCANS[source.draw(st.sampled_from(sorted(SCANS)))]
    plan = Window(scan, source.draw(make.windows(scan.schema, (form,))))
    data = source.draw(make.data(most=14))
    check(plan, data, cuts=source.draw(make.cuts()), shards=source.draw(st.sampled_from([1, 3])))


@pytest.mark.parametrize("operator", make.OPERATORS, ids=lambda f: f.__name__)
@ORACLE
@given(st.data())
def test_operator(operator, source):
    plan = source.draw(operator(make.sources()))
    data = source.draw(make.data())
    check(plan, data, cuts=source.draw(make.cuts()), shards=source.draw(st.sampled_from([1, 3])))


@ORACLE
@given(st.data())
def test_aggregates_of_floats(source):
    """Infinities and NaN come and go; nothing of them may stay behind."""
    plan = source.draw(make.aggregates(make.sources(("s",)), inexact=True))
    data = source.draw(make.data(most=14, strange=True))
    panes = source.draw(st.booleans())
    check(plan, data, cuts=source.draw(make.cuts()), panes=panes)


# Whole plans


@settings(ORACLE, max_examples=4 * EXAMPLES)
@given(
    make.plans(4),
    st.booleans().flatmap(lambda strange: make.data(most=8, strange=strange)),
    make.cuts(),
    st.sampled_from([1, 4]),
    make.hostile_settings(),
)
def test_plan(plan, data, cuts, shards, options):
    check(plan, data, cuts=cuts, shards=shards, **options)


@ORACLE
@given(make.plans(3), make.data(most=8), make.cuts())
def test_rules_change_nothing(plan, data, cuts):
    check(plan, data, cuts=cuts, rules=False)
    check(plan, data, cuts=cuts, rules=True)


@ORACLE
@given(
    make.plans(2).flatmap(lambda p: st.just(p) | make.aggregates(st.just(p), inexact=True)),
    make.data(strange=True),
    st.lists(make.cuts(9), min_size=2, max_size=2),
    st.sampled_from(["greedy", "maxfanin", "always", "never"]),
)
def test_cuts_change_not_one_bit(plan, data, cuts, strategy):
    options = {"merge.strategy": strategy}
    first, second = (exact(run(plan, data, cuts=cut, **options), plan) for cut in (1, cuts[0]))
    third = exact(run(plan, data, cuts=cuts[1], shards=3), plan)
    assert first == second
    assert first == third


def exact(answer: list[tuple], plan: Node) -> list[str]:
    rows = [(tuple(map(canonical, v)), start, end) for v, start, end in answer]
    if is_stream(plan):
        return sorted(repr((start, values)) for values, start, _ in rows)
    return [repr(row).replace("-0.0", "0.0") for row in to_intervals(from_intervals(rows))]


@ORACLE
@given(make.plans(2), make.data(), make.cuts())
def test_log_and_intervals_describe_one_relation(plan, data, cuts):
    plan = Distinct(plan) if is_stream(plan) else plan
    state: Counter = Counter()
    log = [(tuple(map(canonical, v)), t, e) for v, t, e in run(plan, data, cuts=cuts, mode="log")]
    steps = []
    for time in sorted({start for _, start, _ in log}):
        changes = Counter()
        for values, start, _ in log:
            if start == time:
                changes[values[:-1]] += values[-1]
        assert sum(map(abs, changes.values())) == sum(1 for _, s, _ in log if s == time), "not net"
        state.update(changes)
        assert all(count >= 0 for count in state.values())
        steps.append((time, +state))
    assert to_intervals(steps) == to_intervals(relation(plan, truth(data)))


def feed(engine: LocalEngine, data: Data, draw: Callable) -> None:
    """Give the engine any number of rows of each stream in each batch, up to their end."""
    for _ in feed_by_batch(engine, data, draw):
        pass


def feed_by_batch(engine: LocalEngine, data: Data, draw: Callable) -> Iterator[None]:
    waiting = {name: [v for v, _ in data.streams[name]] for name in engine.streams}
    for more in reversed(range(draw(st.integers(1, 5)))):
        rows = {}
        for name, left in waiting.items():
            count = draw(st.integers(0, len(left))) if more else len(left)
            rows[name], waiting[name] = left[:count], left[count:]
        if not more and draw(st.booleans()):
            engine.batch(rows, final=True)
            yield
            return
        engine.batch(rows)
        yield
    engine.batch({}, final=True)
    yield


@ORACLE
@given(make.plans(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_streams_that_run_apart(plan, data, source, shards):
    """Each batch brings any number of rows of each stream; one may be far ahead of another."""
    engine = LocalEngine({"q": plan}, data.tables, shards=shards, slack=data.slack)
    feed(engine, data, source.draw)
    check_answer(plan, engine.answers["q"], truth(data))


@ORACLE
@given(make.plans(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_view_holds_the_current_snapshot(plan, data, source, shards):
    plan = Distinct(plan) if is_stream(plan) else plan
    engine = LocalEngine({"q": plan}, data.tables, shards=shards, slack=data.slack, mode="view")
    feed(engine, data, source.draw)
    times = [t for name in streams_of(plan) for _, t in data.streams[name]]
    now = max(times, default=MIN_TIME)
    shown = Counter(tuple(map(canonical, row)) for row in engine.views["q"])
    same_bag(shown, snapshot_at(relation(plan, truth(data)), now), now)


@ORACLE
@given(make.plans(3), make.data(most=8), st.data(), st.sampled_from([1, 3]))
def test_each_batch_is_final_and_complete(plan, data, source, shards):
    """After a batch, everything below the heartbeat has left, nothing else, in order of batches."""
    plan = Distinct(plan) if is_stream(plan) or at_once(plan, "log") is not None else plan
    engine = LocalEngine({"q": plan}, data.tables, shards=shards, slack=data.slack, mode="log")
    before: Counter = Counter()
    changes = []
    for time, snapshot in relation(plan, truth(data)):
        changes += [((*v, 1), time) for v in (snapshot - before).elements()]
        changes += [((*v, -1), time) for v in (before - snapshot).elements()]
        before = snapshot
    seen, beat = 0, MIN_TIME
    for _ in feed_by_batch(engine, data, source.draw):
        now = min((p.heartbeat for p in engine.progress.values()), default=INF)
        fresh = [(tuple(map(canonical, v)), t) for v, t, _ in engine.answers["q"][seen:]]
        expected = Counter((v, t) for v, t in changes if beat <= t < now)
        assert Counter(fresh) == expected
        seen, beat = len(engine.answers["q"]), now


@ORACLE
@given(st.lists(make.plans(2), min_size=2, max_size=4), make.data(), make.cuts())
def test_shared_plans_answer_as_each_alone(plans, data, cuts):
    named = {f"q{i}": plan for i, plan in enumerate(plans)}
    together = run_local(
        named, data.streams, data.tables, cuts=cuts, shards=2, settings={}, slack=data.slack
    )
    for name, plan in named.items():
        assert exact(together[name], plan) == exact(run(plan, data, cuts=cuts, shards=2), plan)


@ORACLE
@given(make.plans(2), make.data(), make.cuts(), st.data())
def test_late_rows_change_nothing(plan, data, cuts, source):
    """Rows far below the largest time so far are put in anywhere but at the beginning."""
    streams = {}
    for name, rows in data.streams.items():
        streams[name] = list(rows)
        if rows:
            at = source.draw(st.integers(1, len(rows)))
            time = max(t for _, t in rows[:at]) - data.slack - 1 - source.draw(st.integers(0, 9))
            streams[name].insert(at, ((*rows[0][0][:-1], time), time))
    late = Data(streams, data.tables, data.slack)
    assert truth(late) == truth(data)
    check(plan, late, cuts=cuts)
    engine = LocalEngine({"q": plan}, data.tables, slack=data.slack)
    feed(engine, late, source.draw)
    for name, progress in engine.progress.items():
        assert progress.late == len(late.streams[name]) - len(data.streams[name])
        assert progress.accepted == len(data.streams[name])


# More rows than fit one block, one fence or one merge


@pytest.mark.parametrize("operator", make.OPERATORS, ids=lambda f: f.__name__)
@settings(ORACLE, max_examples=max(2, EXAMPLES // 5))
@given(st.data())
def test_many_rows(operator, source):
    """Windows over dozens of rows at once."""
    plan = make.stretched(source.draw(operator(make.sources())), 6)
    dice = random.Random(source.draw(st.integers(0, 2**32)))
    data = make.many_rows(dice, 70)
    options = source.draw(make.hostile_settings())
    check(plan, data, cuts=dice.randint(1, 20), shards=dice.randint(1, 3), **options)


# The five files of an operator


@pytest.mark.parametrize("node", NODES, ids=lambda n: n.__name__)
def test_every_node_has_all_its_files(node):
    stem = "".join(f"_{c.lower()}" if c.isupper() else c for c in node.__name__).lstrip("_")
    assert node in lower.registry, f"{node.__name__} has no lowering in physical/planner.py"
    assert node in MEANINGS, f"{node.__name__} has no meaning in reference.py"
    golden = sorted(FOLDER.glob(f"{stem}*.test"))
    assert golden, f"{node.__name__} has no golden file tests/golden/{stem}.test"


def test_every_form_of_window_has_a_golden_file():
    assert {p.stem for p in FOLDER.glob("window_*.test")} >= {
        "window_rows",
        "window_partition",
        "window_range",
        "window_range_slide",
        "window_now",
        "window_unbounded",
        "window_landmark",
        "window_fixed",
        "window_rows_range",
        "window_rows_slide",
        "window_session",
        "window_start",
    }


DECLARED = """
CREATE STREAM r (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE STREAM q (x BIGINT, b BOOLEAN, t BIGINT) USING memory TIMESTAMP BY t;
"""


@pytest.mark.parametrize("shards", [1, 2])
def test_view_counts_only_the_newest_of_a_batch(shards):
    """The silent stream holds the heartbeat back; then both end in one batch."""
    query = """
        CREATE QUERY answer AS SELECT * FROM r [ROWS 1] UNION ALL SELECT * FROM r [NOW]
        UNION ALL SELECT CAST(NULL AS STRING), x, t FROM q [ROWS 1]"""
    rig = Rig(DECLARED + query, shards=shards)
    rig.feed("q", [(1, True, 0)])
    rig.feed("q", [(2, True, 1)])
    rig.end()
    assert rig.rows("answer") == [(None, 2, 1)]
    rig.under_all_settings()


def test_projected_copies_survive_every_cut():
    """Copies are counted, never made distinct."""
    query = "CREATE QUERY answer AS SELECT x FROM r [RANGE 2]"
    rig = check_script(DECLARED + query, {"r": [("a", 1, 1)] * 3}, {"answer": [(1, 1, 3)] * 3})
    assert rig.snapshot("answer", at=2) == [(1,)] * 3


def test_a_selection_of_a_bare_stream_stays_a_relation():
    """Its rows live for ever, whether or not the rules move the condition into the source."""
    plan = Filter(SCANS["s"], Literal(True, pa.bool_()))
    data = Data({"s": [((None, None, None, 0), 0)], "r": [], "q": []}, {"d": [], "v": []}, 0)
    for rules in (True, False):
        rows = run(plan, data, mode="log", rules=rules)
        assert [values for values, *_ in rows] == [(None, None, None, 0, 1)]
