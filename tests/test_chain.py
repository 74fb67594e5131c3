"""Progress charts, their segments, and the experiment on shared plans."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench import chain, chain_engine, chain_picture
from penstock.physical.efforts import Experience, measured_after
from penstock.schedule.chart import Segment, chart, segments

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"


def test_a_chart_is_made_of_costs_and_selectivities() -> None:
    assert chart([1, 2], [0.5, 0.1], size=4) == [(0, 4), (1, 2), (3, pytest.approx(0.2))]


def test_segments_are_the_steepest_ways_down() -> None:
    first, second = chain.CHARTS.values()
    assert segments(first) == [
        Segment(0, 2, pytest.approx(0.3)),
        Segment(2, 4, pytest.approx(0.2)),
    ]
    assert segments(second) == [
        Segment(0, 2, pytest.approx(0.35)),
        Segment(2, 4, pytest.approx(0.15)),
    ]
    up_and_down = [(0.0, 1.0), (1.0, 0.7), (3.0, 0.7), (5.0, 0.3), (7.0, 0.0)]
    assert [(s.first, s.last) for s in segments(up_and_down)] == [(0, 1), (1, 4)]
    assert segments([(0.0, 1.0)]) == []


@pytest.fixture(scope="module")
def report() -> chain.Report:
    return chain.measure()


def test_the_curves_are_those_computed_by_hand(report: chain.Report) -> None:
    by_hand = {
        "FIFO": (857, 571, 286, 143, 3.50),
        "shared Chain": (700, 500, 300, 150, 3.15),
        "merged Chain": (700, 467, 233, 117, 2.95),
    }
    for policy, (*values, area) in by_hand.items():
        found = [report.at(policy, time) for time in (1000, 3000, 5000, 6000)]
        assert found == pytest.approx(values, abs=1)
        assert report.area(policy) / 1e6 == pytest.approx(area, abs=0.005)
    assert report.at("Chain, unshared", 0) == 2 * report.at("FIFO", 0) == 2 * chain.ELEMENTS
    assert report.crossing() == pytest.approx(4667, abs=30)
    assert all(bar.met for bar in report.bars())


def test_every_element_passes_every_operator(report: chain.Report) -> None:
    for policy, curve in report.curves.items():
        work = 8 if policy == "Chain, unshared" else 7
        assert len(curve) == work * chain.ELEMENTS + 1
        assert curve[-1] == pytest.approx(0, abs=1e-6)


def test_a_bar_that_is_missed_is_seen(report: chain.Report) -> None:
    worse = chain.Report(report.curves | {"merged Chain": report.curves["greedy"]})
    assert [bar.met for bar in worse.bars()].count(False) == 2


def test_the_page_has_these_numbers(report: chain.Report) -> None:
    chapter = PAGE.read_text().partition("## Scheduling of shared plans")[2].partition("\n### ")[0]
    for policy in report.curves:
        (line,) = re.findall(rf"^\| {re.escape(policy)} \|(.*)\|$", chapter, re.MULTILINE)
        *values, area = (float(cell.replace(",", "")) for cell in line.split("|"))
        assert values == [round(report.at(policy, time)) for time in (1000, 3000, 5000, 6000)]
        assert area == round(report.area(policy) / 1e6, 2)


def test_the_picture_is_drawn(report: chain.Report, tmp_path: Path) -> None:
    engine = chain_engine.measure(trains=20, repeats=1)
    content = json.loads(json.dumps(report.as_json() | {"engine": engine.as_json()}))
    chain_picture.draw(content, tmp_path / "chain.png")
    assert (tmp_path / "chain.png").stat().st_size > 20_000


def engine_by_turns(trains: int) -> chain_engine.Report:
    """The engine's curves where every turn takes as long and policies know it."""
    rows, curves = chain_engine.rows_of(trains), {}
    for name, (policy, shared, bound) in chain_engine.POLICIES.items():
        whole = chain_engine.plan_of(shared)
        _, done = chain_engine.run(whole, rows, {}, Experience())
        alike = {digest: replace(effort, seconds=1.0) for digest, effort in done.items()}
        settings = {"scheduler": policy, "scheduler.bound": bound}
        known = Experience(measured_after({}, alike))
        curve, _ = chain_engine.run(whole, rows, settings, known)
        curves[name] = [(float(turn), held) for turn, (_, held) in enumerate(curve)]
    return chain_engine.Report(curves)


def test_the_engine_orders_its_work_as_computed(report: chain.Report) -> None:
    found = engine_by_turns(trains=100)
    for name in report.curves:
        share = found.area(name) / found.area("FIFO")
        assert share == pytest.approx(report.area(name) / report.area("FIFO"), abs=0.06), name
    assert all(bar.met for bar in found.bars())
    first = [found.curves[name][0][1] for name in ("FIFO", "Chain, unshared")]
    assert first[1] == 2 * first[0] > 0
    assert all(curve[-1][1] == 0 for curve in found.curves.values())
    worse = chain_engine.Report(found.curves | {"merged Chain": found.curves["greedy"]})
    assert [bar.met for bar in worse.bars()].count(False) == 2
