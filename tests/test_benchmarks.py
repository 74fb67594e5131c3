"""The benchmarks run: at a size that measures nothing, so that they cannot rot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import against_before, against_flink, harness
from benchmarks.__main__ import BENCHMARKS
from benchmarks.beyond_memory import Resident
from benchmarks.harness import TABLE_BEGINS, TABLE_ENDS, Measure

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
