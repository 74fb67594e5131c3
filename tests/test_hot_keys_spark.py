"""A skewed join on Spark: its hot key is split, the shards get even loads, also after a restart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import StateError
from penstock.physical.observation import Observer
from penstock.runs import failpoints
from penstock.session import Session
from tests.test_pipeline_life import committed, wait_for

SHARDS = 4
REACH = 40
SCRIPT = """
CREATE STREAM l (k BIGINT, x BIGINT, t BIGINT) USING replay OPTIONS (path '{0}/l.csv')
  TIMESTAMP BY t SLACK 3;
CREATE STREAM r (k BIGINT, y BIGINT, t BIGINT) USING replay OPTIONS (path '{0}/r.csv')
  TIMESTAMP BY t SLACK 3;
CREATE SINK files USING jsonl OPTIONS (path '{0}/out');
CREATE QUERY q INTO files AS
  SELECT x, y FROM l [RANGE {1}], r [RANGE {1}] WHERE l.k = r.k;
"""


def write(path: Path, rows: int, per_instant: int, hot: float, seed: int) -> np.ndarray:
    """Write a stream, a little out of order; ``hot`` is the part of key 0."""
    dice = np.random.default_rng(seed)
    key = np.where(dice.random(rows) < hot, 0, dice.integers(1, 500, rows))
    time = np.arange(rows) // per_instant + dice.integers(0, 3, rows)
    table = np.stack([key, np.arange(rows), time], axis=1)
    np.savetxt(path, table, "%d", ",", header="k,x,t" if seed == 1 else "k,y,t", comments="")
    return table


def partners(left: np.ndarray, right: np.ndarray) -> set[tuple[int, int]]:
    """Return the numbers of all rows that meet."""
    found = set()
    for key in np.unique(right[:, 0]):
        some, others = left[left[:, 0] == key], right[right[:, 0] == key]
        meet = np.abs(some[:, 2][:, None] - others[:, 2][None, :]) < REACH
        found |= {(int(some[i, 1]), int(others[j, 1])) for i, j in np.argwhere(meet)}
    return found


@pytest.mark.spark
def test_a_skewed_join(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = write(tmp_path / "l.csv", 24_000, 10, 0.5, 1)
    right = write(tmp_path / "r.csv", 6_000, 3, 0.002, 2)
    fed: list[Counter] = []
    observe = Observer.observe

    def observed(observer: Observer, manifest: Any, plan: Any, outcome: Any, spent: float) -> Any:
        for what, shards in outcome.fed.items():
            fed[-1].update({(what, shard): rows for shard, rows in shards.items()})
        fed.append(Counter())
        return observe(observer, manifest, plan, outcome, spent)

    monkeypatch.setattr(Observer, "observe", observed)
    script = SCRIPT.format(tmp_path, REACH)
    settings = {"shards": SHARDS, "batch.rows": 2000, "batch.seconds": 0}
    folder = tmp_path / "checkpoint"
    fed.append(Counter())
    with Session(spark, checkpoint=folder, settings=settings, autostart=False) as session:
        query = session.sql(script)
        session.pipeline.runner.heat.few = 1000
        session.start()
        assert "hot keys are split while running" in query.explain()
        wait_for(lambda: session.pipeline.manifest.batch >= 4)
        session.stop()
        reached = session.pipeline.manifest.batch
        before = session.pipeline.manifest.hot
        assert sum(len(content["splits"]) for content in before.values()) == 1
    assert json.loads(json.dumps(before)) == before
    with Session(spark, checkpoint=folder, settings=settings) as session:
        query = session.sql(script)
        assert session.await_end(timeout=200)
        assert session.pipeline.manifest.batch > reached + 2
        assert session.pipeline.manifest.hot == before
        (split,) = query.status()["split_keys"]
        assert (split["keys"], split["ways"]) == (1, SHARDS)
        assert "split: 1 hot key is shared by up to 4 shards in Join" in query.explain()
    totals: Counter = Counter()
    for rows in fed:
        for (what, _), count in rows.items():
            totals[what] += count
    of_left = totals.most_common(1)[0][0]
    loads = [sorted(n for (what, _), n in rows.items() if what == of_left) for rows in fed]
    loads = [rows for rows in loads if sum(rows) > 1000]
    assert loads[0][-1] > 0.55 * sum(loads[0])  # half of the rows and a quarter of the others
    for rows in loads[len(loads) // 2 :]:
        assert rows[-1] < 0.3 * sum(rows), loads
    answers = [(row[0][0], row[0][1]) for row in committed(tmp_path / "out", "q")]
    assert len(answers) == len(set(answers))
    assert set(answers) == partners(left, right)


@pytest.mark.spark
def test_split_keys_through_crashes(spark: Any, tmp_path: Path) -> None:
    left = write(tmp_path / "l.csv", 12_000, 10, 0.5, 1)
    right = write(tmp_path / "r.csv", 4_000, 3, 0.002, 2)
    script = SCRIPT.format(tmp_path, REACH)
    settings = {"shards": SHARDS, "batch.rows": 700, "batch.seconds": 0, "merge.strategy": "always"}
    splits = []

    def attempt(fail: str) -> None:
        failpoints.arm(fail)
        folder = tmp_path / "checkpoint"
        try:
            with Session(spark, checkpoint=folder, settings=settings, autostart=False) as session:
                session.sql(script)
                session.pipeline.runner.heat.few = 1000
                session.start()
                assert session.await_end(timeout=200)
        finally:
            failpoints.arm("")
            splits.append(sum(len(hot["splits"]) for hot in session.pipeline.manifest.hot.values()))

    points = ["offsets-read", "manifest-temp", "manifest-renamed", "sink-before", "before-return"]
    for point in points:
        with pytest.raises(StateError, match=f"failure point {point} was told"):
            attempt(f"{point}=raise@3")
    attempt("run-written=kill@5,tasks-done=kill@9")
    assert splits[-1] == 1
    assert splits.index(1) < len(points)  # some crashes came when a key was split
    answers = [(row[0][0], row[0][1]) for row in committed(tmp_path / "out", "q")]
    assert len(answers) == len(set(answers))
    assert set(answers) == partners(left, right)
