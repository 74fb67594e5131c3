"""Batches that last as long as asked: the arithmetic, the file between processes, and on Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.session import Session
from penstock.sources.admission import FILE, FIRST_ROWS, LEAST_ROWS, Admission, admitted, fit


def play(
    admission: Admission, cost: Callable[[int], float], batches: int, waiting: int = 10**12
) -> list[int]:
    """Run batches of a source that always has rows; return how many each took."""
    admission.start()
    taken = []
    for _ in range(batches):
        taken.append(min(waiting, admitted(admission.path, admission._most)))
        admission.note({"s": taken[-1]}, cost(taken[-1]))
    return taken


@pytest.mark.parametrize("fixed", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("each", [1e-6, 1e-5, 4e-4])
def test_batches_come_to_last_as_long_as_asked(tmp_path: Path, fixed: float, each: float) -> None:
    def cost(rows: int) -> float:
        return fixed + each * rows

    admission = Admission(tmp_path, 1.0, 10**9)
    taken = play(admission, cost, 40)
    assert taken[0] == FIRST_ROWS
    assert cost(admission.rows) == pytest.approx(1.0, rel=0.05)
    assert all(cost(rows) < 1.1 for rows in taken[20:])


def test_a_large_fixed_cost_does_not_starve_the_batches(tmp_path: Path) -> None:
    admission = Admission(tmp_path, 0.1, 10**9)
    play(admission, lambda rows: 0.5 + 1e-6 * rows, 40)
    assert 0.9 < 0.5 + 1e-6 * admission.rows < 1.1  # half of the time is work


@pytest.mark.parametrize("start", [1000, 1_000_000])
def test_noise_does_not_keep_it_at_the_bottom(tmp_path: Path, start: int) -> None:
    (tmp_path / FILE).write_text(json.dumps({"total": start, "rows": start}))
    dice = random.Random(start)

    def cost(rows: int) -> float:
        return (1.2 + 2e-6 * rows) * dice.uniform(0.7, 1.3)

    taken = play(Admission(tmp_path, 0.5, 1_000_000), cost, 60)
    assert sum(taken[30:]) / 30 > 200_000


def test_bounds_and_steps(tmp_path: Path) -> None:
    slow = play(Admission(tmp_path, 1.0, 10**6), lambda rows: 0.01 * rows, 10)
    assert sorted(slow[-5:])[2] == LEAST_ROWS
    assert all(a <= 4.01 * b for a, b in pairwise(slow))
    Path(tmp_path, FILE).unlink()
    fast = play(Admission(tmp_path, 1.0, 300_000), lambda rows: 1e-8 * rows, 10)
    assert (fast[0], max(fast)) == (FIRST_ROWS, 300_000)
    Path(tmp_path, FILE).unlink()
    small = play(Admission(tmp_path, 1.0, 20), lambda rows: 5.0, 5)
    assert small == [20] * 5


def test_it_follows_a_change_of_the_load(tmp_path: Path) -> None:
    admission = Admission(tmp_path, 1.0, 10**9)
    play(admission, lambda rows: 0.1 + 1e-6 * rows, 30)
    assert admission.rows == pytest.approx(900_000, rel=0.05)
    play(admission, lambda rows: 0.1 + 1e-5 * rows, 40)
    assert admission.rows == pytest.approx(90_000, rel=0.05)


def test_a_source_with_little_to_say_does_not_lower_the_limit(tmp_path: Path) -> None:
    admission = Admission(tmp_path, 1.0, 10**6)
    play(admission, lambda rows: 0.4, 20, waiting=3)
    assert admission.rows == FIRST_ROWS


def test_sources_that_have_rows_share_a_batch(tmp_path: Path) -> None:
    admission = Admission(tmp_path, 1.0, 10**6)
    admission.start()
    for _ in range(14):
        each = admitted(admission.path, 10**6)
        admission.note({"a": each, "b": each, "silent": 0}, 2 * each * 1e-5)
    assert admitted(admission.path, 10**6) == pytest.approx(50_000, rel=0.02)


def test_the_file_between_the_processes(tmp_path: Path) -> None:
    path = str(tmp_path / FILE)
    assert admitted(path, 77) == admitted(None, 77) == 77
    for damaged in ("", "{", "[]", '{"rows": "x"}', '{"rows": null}', "{}"):
        Path(path).write_text(damaged)
        assert admitted(path, 77) == 77
    Path(path).write_text('{"rows": 1000, "total": 2000}')
    assert admitted(path, 77) == 77
    assert admitted(path, 5000) == 1000
    assert Admission(tmp_path, 1.0, 10**6).rows == 2000  # goes on where it was
    Admission(tmp_path, 0.0, 10**6).start()  # switched off
    assert not Path(path).exists()
    assert admitted(path, 77) == 77


def test_fixed_and_growing_cost_are_told_apart() -> None:
    assert fit([(100, 1.1), (200, 1.2)]) == pytest.approx((1.0, 0.001))
    assert fit([(100, 1.0), (101, 1.0)]) == pytest.approx((0.0, 0.01), rel=0.01)
    assert fit([(100, 2.0), (200, 1.0)]) == pytest.approx((1.5, 0.0), abs=1e-6)
    assert fit([(100, 1.0), (200, 3.0)]) == pytest.approx((0.0, 2.0 / 150))


@pytest.mark.spark
def test_batches_of_a_replay_change_their_size(spark: Any, tmp_path: Path) -> None:
    """From 2000 rows, told by an earlier run, to many more: there is plenty of time."""
    rows = 60_000
    lines = [f"{i % 100},{i}" for i in range(rows)]
    (tmp_path / "s.csv").write_text("\n".join(["x,t", *lines]) + "\n")
    checkpoint = tmp_path / "state"
    checkpoint.mkdir()
    (checkpoint / FILE).write_text(json.dumps({"total": 2000, "rows": 2000}))
    settings = {"shards": 1, "batch.seconds": 30, "retain.manifests": 100}
    with Session(spark, checkpoint=checkpoint, settings=settings) as session:
        session.sql(
            f"CREATE SINK kept USING memory OPTIONS (changes 'intervals');"
            f"CREATE STREAM s (x INT, t BIGINT) USING replay OPTIONS (path "
            f"'{tmp_path / 's.csv'}') TIMESTAMP BY t;"
            f"CREATE QUERY q INTO kept AS SELECT SUM(x) AS n FROM s [RANGE 100]"
        )
        assert session.await_end(timeout=200)
        assert session.pipeline.observation.rows_in == rows
    positions = [0]
    for path in sorted((checkpoint / "manifest").glob("0*.json")):
        progress = json.loads(path.read_text())["progress"]["s"]
        positions.append(progress["accepted"] + progress["late"] + progress["rejected"])
    sizes = [b - a for a, b in pairwise(positions)]
    assert sum(sizes) == rows
    assert sizes[:2] == [2000, 2000]
    assert sizes[2] == 4000
    assert json.loads((checkpoint / FILE).read_text())["total"] > 4000
