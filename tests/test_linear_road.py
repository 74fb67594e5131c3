"""Linear Road, as it stands in the examples, against plain Python."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.bench import linear_road, linear_road_traffic
from penstock.bench.linear_road import Line, Report, Request
from penstock.bench.linear_road_traffic import Traffic
from penstock.cli import app
from penstock.errors import ConfigError
from penstock.session import Session
from penstock.testing import Rig
from tests import linear_road_answers as plain
from tests.linear_road_answers import Answers, Given
from tests.test_examples import with_times

SCRIPT = Path(__file__).parent.parent / "examples/linear_road/linear_road.sql"
SHORT = Traffic(3, 480, 4, 4, 28, busy=2, accident_every=160, accident_lasts=180, days=3, asked=0.1)
"""Ten minutes of three expressways, with jams and accidents that clear."""
STREAMS = ("toll_notices", "accident_alerts", "balance_answers", "spending_answers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linear_road_traffic.prepared(tmp_path_factory.mktemp("linear") / "short", SHORT)


@cache
def expected(folder: Path) -> tuple[Given, Answers]:
    given = plain.read(folder)
    return given, plain.answers(given)


def fed(given: Given, **how: Any) -> Rig:
    """Run the script to its end."""
    history = [(*key[:2], key[2], toll) for key, toll in given.history.items()]
    rig = Rig(SCRIPT.read_text(), tables={"history": history}, **how)
    rig.feed("traffic", [tuple(row.values()) for row in given.traffic])
    rig.end()
    return rig


def test_it_answers_what_plain_python_does(folder: Path) -> None:
    given, answers = expected(folder)
    rig = fed(given, shards=2, batch_rows=7_000)
    for name in STREAMS:
        rig.assert_stream(name, getattr(answers, name), within=1e-9)
    rig.assert_intervals("segment_statistics", answers.segment_statistics, within=1e-9)


def test_there_is_something_to_answer(folder: Path) -> None:
    given, answers = expected(folder)
    tolls = [row for row in answers.toll_notices if row[3]]
    warned = {row[2] for row in answers.accident_alerts}
    assert {row["xway"] for row in given.reports} == {0, 1, 2}
    assert len(tolls) > 100
    assert len(warned) > 2
    assert len([row for row in answers.balance_answers if row[3]]) > 10
    assert len(answers.spending_answers) > 10


def test_from_files_on_spark(spark: Any, folder: Path, tmp_path: Path) -> None:
    _, answers = expected(folder)
    text = SCRIPT.read_text().replace("linear-road-data", str(folder))
    for name in ("accident_alerts", *STREAMS, "segment_statistics"):
        text = text.replace(f"jsonl OPTIONS (path 'linear-road-answers/{name}')", "memory")
    with Session(spark, checkpoint=tmp_path, autostart=False) as session:
        session.sql(text)
        session.start()
        assert session.await_end(timeout=200)
        for name in ("toll_notices", "accident_alerts", "balance_answers"):
            found = [(*values, time) for values, time, _ in with_times(session.query(name).rows())]
            wanted = [tuple(map(rounded, row)) for row in getattr(answers, name)]
            assert sorted([tuple(map(rounded, row)) for row in found], key=str) == sorted(
                wanted, key=str
            )


def rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


# -- the traffic -----------------------------------------------------------------------------------


def test_cars_do_as_they_should(folder: Path) -> None:
    given, _ = expected(folder)
    trips: dict[int, list[dict[str, int]]] = {}
    for row in given.reports:
        trips.setdefault(row["vid"], []).append(row)
    again = 0
    for rows in trips.values():
        for one, other in pairwise(rows):
            apart = other["time"] - one["time"]
            same = all(one[name] == other[name] for name in ("xway", "dir"))
            again += apart > 30
            assert apart >= 90 if one["lane"] == 4 else apart == 30 and same
            assert (other["lane"] == 0) == (one["lane"] == 4)
            moved = abs(other["pos"] - one["pos"])
            assert apart > 30 or moved == other["spd"] * 44 or moved < 5280  # the last: a crash
    assert again > 50
    assert all(row["seg"] == row["pos"] // 5280 for row in given.reports)
    assert {row["lane"] for row in given.reports} == {0, 1, 2, 3, 4}
    times = [row["time"] for row in given.traffic]
    assert times == sorted(times)
    asked = [row["qid"] for row in given.traffic if row["type"] != 0]
    assert asked == list(range(1, len(asked) + 1))
    assert given.history.keys() >= {(vid, 1, x) for vid, d, x in given.history if d == 1}


def test_reports_grow_as_asked() -> None:
    simulation = linear_road_traffic.Simulation(Traffic(2, 200, first=10, last=50))
    counts = [len(simulation.second(second)["vid"]) for second in range(200)]
    assert counts[0] == pytest.approx(20, abs=4)
    assert sum(counts[-30:]) / 30 == pytest.approx(2 * 47, rel=0.1)


def test_the_same_numbers_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    again = linear_road_traffic.prepared(tmp_path / "again", SHORT)
    for name in ("traffic.csv", "history.csv"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    assert linear_road_traffic.prepared(again, SHORT) == again
    with pytest.raises(ConfigError, match="must hold the events that are asked for"):
        linear_road_traffic.prepared(again, Traffic(3))
    with pytest.raises(ConfigError, match="must be a folder of Linear Road's traffic"):
        linear_road_traffic.prepared(tmp_path, SHORT)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"expressways": 0}, "must be above 0"),
        ({"first": 9.0, "last": 3.0}, "must not become fewer"),
        ({"busy": 101}, "1 to 100 busy segments"),
        ({"asked": 1.5}, "from 0 to 1, got 1.5"),
    ],
)
def test_wrong_traffic_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Traffic(**given)


# -- the measurement -------------------------------------------------------------------------------


def test_expressways_are_measured(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_road, "own_session", lambda master, config: spark)
    told = []
    asked = Request((1,), fill=4, seconds=2, limit=500, rate=40, days=2)
    report = linear_road.measure(asked, told=lambda report: told.append(report.held))
    assert told == [1]
    assert all(line.answers > 30 and line.rows >= 80 for line in report.lines)
    assert report.as_json()["runs"][0]["held"]


def test_what_was_measured_is_judged_and_shown() -> None:
    asked = Request((1, 2, 4), limit=5)
    watch = linear_road.Watch()
    watch.came, watch.counts = {7: 12.0, 8: 16.5}, {7: 99, 8: 1}
    held, late, lost = Line(1), Line(2), Line(4)
    linear_road._judge(held, asked, watch, {7: 11.0, 8: 12.0})
    linear_road._judge(late, asked, watch, {7: 11.0, 8: 11.0})
    linear_road._judge(lost, asked, watch, {7: 11.0, 9: 13.0})
    assert (held.median, held.longest, held.held) == (1.0, 4.5, True)
    assert (late.longest, late.held, late.answers) == (5.5, False, 100)
    assert (lost.longest, lost.held, lost.unanswered) == (None, False, 1)
    report = Report(asked, [held, late, lost])
    assert report.held == 1
    (table,) = linear_road.tables(report)
    assert list(table.columns[-1].cells) == ["held", "too late", "1 seconds were not answered"]


def test_a_wrong_request_is_refused() -> None:
    for given, message in (("2,x", "numbers, such as 1,2,4"), ("2,1", "must rise from 1")):
        answer = CliRunner().invoke(app, ["bench", "linear", "--expressways", given])
        assert answer.exit_code == 1
        assert message in " ".join(answer.output.split())
    with pytest.raises(ConfigError, match="seconds, the limit and the cores"):
        Request(limit=0)
