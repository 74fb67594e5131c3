"""Lifetimes: both methods in EXPLAIN, lazy sorting, holders told in order, and the experiment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock import cql
from penstock.bench.lifetimes import METHODS, Engine, InsertionSort, Report, measure, text_of
from penstock.bench.lifetimes_picture import draw
from penstock.catalog import Catalog
from penstock.cli import app
from penstock.cql.binding.statements import Create, Select
from penstock.model import INF, Batch, Deaths, Ends
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.optimizer import optimize
from penstock.physical.explain import explain
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.runs.holder_numbers import BLOCK
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from penstock.settings import Settings
from tests.examples import examples

STREAMS = """
CREATE STREAM a (ts BIGINT, k BIGINT, x DOUBLE) TIMESTAMP BY ts USING memory;
CREATE STREAM b (ts BIGINT, k BIGINT, y DOUBLE) TIMESTAMP BY ts USING memory;
"""


def planned(text: str, lifetime: str) -> PhysicalPlan:
    catalog, nodes = Catalog(), {}
    for parsed in cql.parse_script(STREAMS + text):
        match cql.bind(parsed, catalog):
            case Create(definition):
                catalog.add(definition)
            case Select(node):
                nodes["q"] = node
    query = Query("q", optimize(nodes)["q"])
    return plan([query], Settings({"lifetime": lifetime}), {})


def lines(text: str, lifetime: str) -> dict[str, str]:
    """Return what EXPLAIN says in brackets, by the first word of each line."""
    found = {}
    for line in explain(planned(text, lifetime), "q", 2).splitlines()[:-1]:
        head, _, facts = line.strip().rpartition("  [")
        found[head.split(" <- ")[-1]] = facts
    return found


def test_explain_says_who_makes_holders_and_who_waits() -> None:
    said = lines("SELECT k, AVG(x) AS m FROM a [ROWS 5] WHERE x > 3 GROUP BY k", "direct")
    assert "strict, direct, makes holders" in said["Window [ROWS 5]"]
    assert "direct, passes holders on" in said["Filter"]
    assert "waits for the holders of Window [ROWS 5]" in said["Aggregate"]
    assert "makes holders" in said["Aggregate"]
    assert "waits for the holders of Aggregate" in said["Output q (intervals)"]


def test_explain_shows_no_holders_where_ends_are_known() -> None:
    text = "SELECT a.k, a.x, b.y FROM a [RANGE 5], b [RANGE 9] WHERE a.k = b.k"
    said = lines(text, "direct")
    assert "weak, direct" in said["Join"]
    assert "weakest, direct" in said["Window [RANGE 5]"]
    assert not any("holders" in facts for facts in said.values())


def test_explain_says_where_rows_get_signs() -> None:
    said = lines("SELECT k FROM a [RANGE 9] EXCEPT SELECT k FROM b [RANGE 9]", "negative")
    assert "sends them again" in said["Signs"]
    assert "negative tuples" in said["Except"]


@pytest.mark.parametrize("kind", ["RANGE 5", "ROWS 5", "SESSION 3", "NOW"])
def test_every_mortal_window_has_signs_and_no_other_row_is_counted_twice(kind: str) -> None:
    whole = planned(f"SELECT DISTINCT k, x FROM a [{kind}] WHERE x > 1", "negative")
    signs = [n for n in whole.nodes if isinstance(n.spec, NegativeTuplesSpec)]
    assert len(signs) == 2  # of the window, and of DISTINCT
    assert not any(
        isinstance(n.spec, NegativeTuplesSpec)
        for n in planned("SELECT k, x FROM a [RANGE UNBOUNDED]", "negative").nodes
    )


def test_signs_are_made_where_the_keys_are_needed() -> None:
    text = "SELECT k, COUNT(*) AS n FROM a [RANGE 5] WHERE x > 1 GROUP BY k"
    assert planned(text, "negative").stages == planned(text, "direct").stages == 1


rows_of_a_turn = st.lists(
    st.tuples(
        st.integers(0, 30),  # length of life; 30 stands for ever
        st.booleans(),  # whether it has a holder
        st.integers(0, 1),  # of which operator
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(rows_of_a_turn, st.integers(1, 8)), max_size=10),
    st.sampled_from(["greedy", "always", "never"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_die_once_and_in_time(turns, strategy, insertion, chance) -> None:
    """Against a plain list, whatever the order of ends and of tellings."""
    kind = InsertionSort if insertion else Lifetimes
    state = State(MemoryStorage())
    alive: dict[int, tuple[int, int, int]] = {}  # number: start, end, holder
    number, now, used = 0, 0, [0, 0]
    for births, step in turns:
        lives = kind(state, "x", [pa.int64()], Merging(strategy))
        until, fresh = now + step, []
        for length, held, origin in births:
            start = chance.randrange(now, until)
            end = INF if length == 30 else start + length
            holder = 0
            if held:
                used[origin] += 1
                holder = (origin + 1 << BLOCK) + used[origin]
            fresh.append((number, start, end, holder))
            number += 1
        alive |= {n: (s, e, h) for n, s, e, h in fresh if s < e}
        told = {}
        for start, _, holder in alive.values():
            if holder and start < until and chance.random() < 0.4:
                told[holder] = max(start, chance.randrange(now, until))
        columns = list(zip(*fresh, strict=True)) or [(), (), (), ()]
        batch = Batch.of((pa.array(columns[0], pa.int64()),), *columns[1:])
        ends = Ends.of(np.array(list(told), np.int64), np.array(list(told.values()), np.int64))
        died = lives.advance(batch.drop_ghosts(), ends, until)
        expected = {}
        for n, (start, end, holder) in list(alive.items()):
            final = min(end, told.get(holder, INF) if holder else INF)
            if final < until:
                del alive[n]
                if start < final:
                    expected[n] = (start, final)
        times = zip(died.start.tolist(), died.end.tolist(), strict=True)
        assert dict(zip(died.columns[0].to_pylist(), times, strict=True)) == expected
        assert sorted(lives.live().columns[0].to_pylist()) == sorted(alive)
        lives.save()
        state = State(state.storage, state.describe())
        now = until


def test_rows_stay_unsorted_until_the_first_of_them_ends() -> None:
    state = State(MemoryStorage())
    lives = Lifetimes(state, "x", [pa.int64()], Merging("never"))
    rows = Batch.of((pa.array([1, 2, 3]),), [0, 0, 0], [30, 10, 20])
    lives.advance(rows, Ends(), 5)
    lives.save()
    (run,) = state.runs("x.by_end")
    assert run.table().column("_end").to_pylist() == [30, 10, 20]
    assert lives.advance(rows.take(np.empty(0, np.int64)), Ends(), 11).end.tolist() == [10]
    lives.save()
    (run,) = state.runs("x.by_end")
    assert run.table().column("_end").to_pylist() == [20, 30]


def test_rows_told_in_order_are_the_front_of_a_run() -> None:
    state = State(MemoryStorage())
    lives = Lifetimes(state, "x", [pa.int64()], Merging("never"))
    base = 1 << BLOCK
    rows = Batch.of((pa.array([1, 2, 3]),), [0, 1, 2], holder=[base + 1, base + 2, base + 3])
    lives.advance(rows, Ends(), 5)
    lives.save()
    died = lives.advance(Batch.empty([pa.int64()]), Ends.of(np.array([base + 1]), np.array([6])), 9)
    assert died.columns[0].to_pylist() == [1]
    lives.save()
    (run,) = state.runs("x.by_holder")
    assert run.skipped == 1
    assert len(state.runs("x.told")) == 0


def test_negative_tuples_tell_ends_sorted_by_holder() -> None:
    rows = Batch.of((pa.array([1, 2, 3]),), [0, 0, 0], [5, 4, INF], [9, 7, 8])
    told = Deaths.brought([rows])
    assert told.holder.tolist() == [7, 9]
    assert told.end.tolist() == [4, 5]
    assert told.died().columns[0].to_pylist() == [1, 2]


@pytest.fixture(scope="module")
def report() -> Report:
    return measure(100, 1, 400)


def test_the_experiment_runs_all_cases_and_both_methods_agree(report: Report) -> None:
    assert len(report.points) == 6 * 2 * 2
    assert all(p.results > 0 for p in report.points)
    assert all(set(METHODS) <= set(p.rates) for p in report.points)
    assert sum("insertion" in p.rates for p in report.points) == 4
    assert report.kept["average"]["rows"] <= 1.5 * report.kept["average"]["time"]


def test_half_a_millisecond_of_difference() -> None:
    engine = Engine(text_of("except", "time", 100), {"rules": False})
    engine.batch(0, 50)
    engine.batch(50, 51, final=True)
    assert engine.rows == 51


def test_the_picture_and_the_command(report: Report, tmp_path: Path) -> None:
    draw(report.as_json(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    command = ["bench", "lifetimes", "--largest", "10", "--repeats", "1", "--batch", "100"]
    result = CliRunner().invoke(app, [*command, "--raw", str(tmp_path / "raw.json")])
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "raw.json").read_text())["points"]) == 12
