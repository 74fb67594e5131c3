"""The experiments of the papers at a fiftieth of their size: exact counts, order, and picture."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.bench.tpmj import Report, best_possible, measure
from penstock.bench.tpmj_picture import draw
from penstock.bench.virtual import LENGTH, Streams
from penstock.cli import app

ROWS = 2000

pytestmark = pytest.mark.xdist_group("test_bench_papers")  # what they look at is made once


@pytest.fixture(scope="module")
def report() -> Report:
    return measure(ROWS, seed=3)


def test_brute_force_counts_what_all_combinations_give() -> None:
    streams = Streams.make(24, 4, 5)
    begins = [b.tolist() for b in streams.begins]
    counts = np.zeros(25, int)
    for some in itertools.product(*(list(enumerate(b, 1)) for b in begins)):
        times, values = zip(*some, strict=True)
        if max(times) - min(times) < streams.window and max(values) < min(values) + LENGTH:
            counts[max(times)] += 1
    assert counts.sum() > 0
    assert (best_possible(streams) == np.cumsum(counts)).all()


@pytest.mark.long
def test_every_variant_gives_every_result_once_and_in_order(report: Report) -> None:
    assert report.expected > 1000
    for run in [*report.runs, *report.spilled]:
        assert run.results == report.expected, run.name
        assert run.in_order, run.name
    assert report.changing.results == report.expected
    assert {early.results for early in report.early} == {report.expected_pairs}


@pytest.mark.long
def test_the_strategy_follows_the_load(report: Report) -> None:
    strategies = set(report.changing.strategy)
    assert strategies == {"maxfanin", "greedy"}
    fast = [s for s, rate in zip(report.changing.strategy, report.changing.arriving, strict=True)
            if rate > max(report.changing.arriving) / 2]  # fmt: skip
    assert set(fast) == {"maxfanin"}


@pytest.mark.long
def test_results_sorted_in_files_are_counted(report: Report) -> None:
    assert all(run.result_pages > 0 for run in report.spilled)
    assert all(run.pages_written > 0 for run in report.runs)


@pytest.mark.long
def test_a_bar_that_is_missed_is_said(report: Report) -> None:
    found = next(bar for bar in report.bars() if bar.text.startswith("results of four-way"))
    assert found.met
    found.value = 1
    assert not found.met


@pytest.mark.long
def test_the_picture_is_drawn_from_the_json(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    content = json.loads(json.dumps(report.as_json()))
    draw(content, tmp_path / "joins.png")
    assert (tmp_path / "joins.png").stat().st_size > 20_000


def test_the_command_knows_its_experiment() -> None:
    answer = CliRunner().invoke(app, ["bench", "--help"])
    assert answer.exit_code == 0
    assert "tpmj" in answer.output
