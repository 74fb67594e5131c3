"""The benchmarks run: at a size that measures nothing, so that they cannot rot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import (
    against_before,
    against_flink,
    harness,
    outer_joins,
    ranks,
    shared_joins,
)
from benchmarks.__main__ import BENCHMARKS
from benchmarks.beyond_memory import Resident
from benchmarks.harness import TABLE_BEGINS, TABLE_ENDS, Measure

from penstock.model import INF

LINES = {"join": 2, "band": 2, "beyond": 3, "packing": 3}
"""How many lines a benchmark adds to the table, where it is not one."""

MEASURES = [
    Measure("fast", 9.0, 8.0, "above", {"rows/s": 1_234_567.0}),
    Measure("slow", 3.0, 2.0, "below", {"rows": 7}),
    Measure("only told", 1.5, None, "above", {}),
]


@pytest.fixture(scope="module")
def plain(spark: Any) -> Any:
    """A session in which Spark's own streams need no names."""
    own = spark.newSession()
    own.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "false")
    own.conf.set("spark.sql.streaming.offsetLog.formatVersion", "1")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    own.conf.set("spark.sql.session.timeZone", "UTC")
    return own


@pytest.mark.spark
@pytest.mark.parametrize("name", ["band", "beyond", "join", "memory", "packing"])
def test_a_benchmark_runs(plain: Any, name: str) -> None:
    rows = int(600 * min(BENCHMARKS[name].rows, 1))
    measures = BENCHMARKS[name].run(plain, rows, 0)
    assert len(measures) == LINES.get(name, 1)
    assert all(m.ratio >= 0 for m in measures)
    assert all(m.parts for m in measures)


def test_shared_joins_run_with_the_same_answers() -> None:
    """All sides at a size that measures nothing; the largest alone has its own answers only."""
    found = {side: shared_joins.measured(side, 1200) for side in shared_joins.SIDES}
    assert found["shared"]["answers"] == found["apart"]["answers"] > 0
    assert found["largest alone"]["answers"] < found["shared"]["answers"]
    assert found["shared"]["megabytes"] < found["apart"]["megabytes"]
    soon = {order: shared_joins.served(order, 1200) for order in shared_joins.ORDERS}
    assert len({some["answers"] for some in soon.values()}) == 1
    assert all(0 <= some["first"] <= some["last"] <= some["all"] for some in soon.values())
    shared_joins.show({side: shared_joins.medians([run]) for side, run in (found | soon).items()})


@pytest.mark.parametrize("name", list(outer_joins.CASES))
def test_outer_joins_run_with_answers_that_fit_together(name: str) -> None:
    """In all batches but the last every window is over: the answers are whole."""
    found = outer_joins.measured(name, 1200, 200)
    answers = {kind: told["answers"] for kind, told in found.items()}
    assert 0 < answers["inner"] < answers["left"] < answers["full"]
    assert answers["semi"] > 0
    assert answers["left"] == answers["inner"] + answers["anti"]
    assert outer_joins.show({name: found}) in (False, True)


def test_the_benchmark_of_ranks_has_the_right_answers() -> None:
    """Q18 and Q19 of NEXMark against plain Python, after each bid and at the end."""
    table = ranks.bids(1500)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    groups: dict[int, list[tuple]] = {}
    shown: set[tuple] = set()
    newest: dict[tuple, tuple] = {}
    best: dict[int, set[tuple]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
        groups[row[0]].sort(key=lambda r: (-r[2], *r))
        best[row[0]] = {(*r, i) for i, r in enumerate(groups[row[0]][:10], 1)}
        shown |= best[row[0]]
        newest[row[:2]] = row
    at_end: dict[str, set[tuple]] = {}
    ever: dict[str, set[tuple]] = {}
    for name, query in ranks.QUERIES.items():
        parts = [part.to_pydict() for part in ranks.run(query, table, 400)]
        found = [row for part in parts for row in zip(*part.values(), strict=True)]
        at_end[name] = {row[:-2] for row in found if row[-1] == INF}
        ever[name] = {row[:-2] for row in found}
    assert at_end["q18"] == set(newest.values())
    assert at_end["q19"] == set().union(*best.values())
    assert at_end["q19, no number"] == {row[:-1] for row in at_end["q19"]}
    assert ever["q19"] == shown
    assert ever["q19, no number"] == {row[:-1] for row in shown}


def test_the_benchmark_of_conjuncts_runs_without_spark() -> None:
    measures = BENCHMARKS["eddies"].run(None, 800, 0)  # type: ignore[arg-type]
    assert [m.bar for m in measures] == [1.15, None, None, None, 0.97, 0.97]
    assert all(m.ratio > 0 and m.parts["rows"] > 0 for m in measures)


def test_without_flink_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against_flink, "PYTHON", tmp_path / "python")
    said = []
    monkeypatch.setattr(harness.console, "print", said.append)
    assert against_flink.flink(None, 100, 1) == []  # type: ignore[arg-type]
    assert "do that with 'python -m benchmarks.against_flink'" in said[0]


def test_without_the_version_before_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_before, "BEFORE", "0" * 40)
    said: list[str] = []
    monkeypatch.setattr(harness.console, "print", said.append)
    assert against_before.before(None, 100, 1) == []  # type: ignore[arg-type]
    assert "must be in the repository" in said[0]


def test_bars(tmp_path: Path) -> None:
    assert [m.reached for m in MEASURES] == [True, False, True]


def test_numbers_are_kept_and_shown(tmp_path: Path) -> None:
    raw, page = tmp_path / "raw.json", tmp_path / "page.md"
    harness.report(MEASURES[:1], raw)
    harness.report(MEASURES[1:], raw)
    assert list(json.loads(raw.read_text())) == ["fast", "slow", "only told"]
    page.write_text(f"# Before\n\n{TABLE_BEGINS}\nold\n{TABLE_ENDS}\n\nafter\n")
    harness.write_table(raw, page)
    harness.write_table(raw, page)
    assert page.read_text().splitlines() == [
        "# Before",
        "",
        TABLE_BEGINS,
        "",
        "| measure | ratio | wanted | measured |",
        "|---|---|---|---|",
        "| fast | 9.00 x | at least 8 x | rows/s 1,234,567 |",
        "| slow | 3.00 x | at most 2 x | rows 7 |",
        "| only told | 1.50 x | no bar |  |",
        "",
        TABLE_ENDS,
        "",
        "after",
    ]


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    raw, page = tmp_path / "raw.json", tmp_path / "page.md"
    harness.report(MEASURES, raw)
    page.write_text("nothing here")
    with pytest.raises(SystemExit, match="must have the lines"):
        harness.write_table(raw, page)


def test_watching_nothing_finds_nothing() -> None:
    with Resident(every=0.01) as resident:
        pass
    assert resident.peaks == {"VmRSS": 0, "RssAnon": 0, "RssFile": 0}
