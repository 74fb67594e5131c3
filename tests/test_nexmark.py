"""The queries of NEXMark, as they stand in the examples, against plain Python."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.bench import nexmark, nexmark_events
from penstock.bench.nexmark import Line, Ran, Report, Request
from penstock.bench.nexmark_events import Events
from penstock.bench.nexmark_picture import draw
from penstock.cli import app
from penstock.errors import ConfigError
from penstock.session import Session
from penstock.testing import Rig
from tests import nexmark_answers as answers
from tests.nexmark_answers import RELATIONS, STREAMS, Market
from tests.test_examples import with_times

SCRIPTS = Path(__file__).parent.parent / "examples/nexmark"
NEW_YEAR = Events(3000, 5, 100, "2015-12-31 23:59:45.003")
"""Half a minute in which the day and the year change; auctions end in it."""
CROWDED = Events(2500, 6)
"""A quarter of a second: ten events in each millisecond."""
COLUMNS = {"person": answers.PERSON, "auction": answers.AUCTION, "bid": answers.BID}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nexmark")


@cache
def market(folder: Path, events: Events) -> Market:
    return answers.read(nexmark_events.prepared(place_of(folder, events), events))


def place_of(folder: Path, events: Events) -> Path:
    return folder / f"{events.count}-events"


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.sql").read_text()


def fed(name: str, given: Market, **how: Any) -> Rig:
    """Run a query to its end."""
    text = script(name)
    side = [(row["key"], row["value"]) for row in given.side_input]
    rig = Rig(text, tables={"side_input": side} if "TABLE side_input" in text else None, **how)
    rig.feed(
        {
            stream: [tuple(event[c] for c in columns) for event in getattr(given, stream)]
            for stream, columns in COLUMNS.items()
            if f"CREATE STREAM {stream} " in text
        }
    )
    rig.end()
    return rig


def test_all_queries_are_there() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.sql")} == {f"q{n}" for n in range(23)}
    assert STREAMS.keys() | RELATIONS.keys() == {f"q{n}" for n in range(23)}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str, folder: Path) -> None:
    given = market(folder, NEW_YEAR)
    expected = STREAMS[name](given)
    assert expected
    fed(name, given, shards=2, batch_rows=700).assert_stream(name, expected)


@pytest.mark.parametrize("events", [NEW_YEAR, CROWDED], ids=["new year", "crowded"])
@pytest.mark.parametrize("name", RELATIONS)
def test_relations(name: str, events: Events, folder: Path) -> None:
    given = market(folder, events)
    rig = fed(name, given, shards=2, batch_rows=700)
    first, last = (given.bid[at]["dateTime"] for at in (0, -1))
    for instant in (first + (last - first) // 3, last):
        expected = RELATIONS[name](given.until(instant))
        assert expected or instant < last
        rig.assert_view(name, expected, at=instant, within=1e-6)


@pytest.mark.parametrize("name", ["q7", "q13"])
def test_from_files_on_spark(name: str, spark: Any, folder: Path, tmp_path: Path) -> None:
    given = market(folder, NEW_YEAR)
    text = script(name).replace("nexmark-data", str(place_of(folder, NEW_YEAR)))
    text = text.replace(f"jsonl OPTIONS (path 'nexmark-answers/{name}')", "memory")
    with Session(spark, checkpoint=tmp_path, autostart=False) as session:
        session.sql(text)
        session.start()
        assert session.await_end(timeout=200)
        found = with_times(session.query(name).rows())
    if name in STREAMS:
        expected = Counter(STREAMS[name](given))
        assert Counter((*values, time) for values, time, _ in found) == expected
    else:
        assert Counter(values for values, _, _ in found) == Counter(RELATIONS[name](given))


# -- the events ------------------------------------------------------------------------------------


def test_events_are_as_many_and_as_hot_as_they_should_be(folder: Path) -> None:
    given = market(folder, Events(50_000, 3))
    sizes = {name: len(getattr(given, name)) for name in COLUMNS}
    assert sizes == {"person": 1000, "auction": 3000, "bid": 46_000}
    assert sizes == nexmark_events.counts(50_000)
    assert nexmark_events.counts(52) == {"person": 2, "auction": 4, "bid": 46}
    bids, auctions = given.bid, given.auction
    known = sum(b["channel"] in nexmark_events.HOT_CHANNELS for b in bids)
    assert known / len(bids) == pytest.approx(0.5, abs=0.02)
    assert share(b["auction"] % 100 == 0 for b in bids) == pytest.approx(0.505, abs=0.02)
    assert share(b["bidder"] % 100 == 1 for b in bids) == pytest.approx(0.7525, abs=0.02)
    assert share(a["seller"] % 100 == 0 for a in auctions) == pytest.approx(0.7525, abs=0.03)
    assert {a["category"] for a in auctions} == set(range(10, 15))
    assert [a["id"] for a in auctions] == list(range(1000, 4000))
    assert all(a["expires"] > a["dateTime"] and a["reserve"] >= a["initialBid"] for a in auctions)
    for events in (bids, auctions, given.person):
        times = [event["dateTime"] for event in events]
        assert times == sorted(times)
    assert bids[-1]["dateTime"] - bids[0]["dateTime"] == 4_999_000


def share(some: Any) -> float:
    told = list(some)
    return sum(told) / len(told)


def test_the_same_numbers_give_the_same_files(tmp_path: Path) -> None:
    one, same, other = (
        nexmark_events.prepared(tmp_path / name, Events(500, seed), ("csv", "parquet"))
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    for name in (*COLUMNS, "side_input"):
        text = (one / f"{name}.csv").read_bytes()
        assert text == (same / f"{name}.csv").read_bytes()
        assert (text == (other / f"{name}.csv").read_bytes()) == (name == "side_input")
        rows = pq.read_table(one / f"{name}.parquet")
        assert rows.num_rows == text.count(b"\n") - 1
        assert ",".join(rows.column_names).encode() == text.split(b"\n")[0]


def test_events_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nexmark_events, "PART", 100)
    parts = list(nexmark_events.parts(Events(260)))
    assert [part["bid"].num_rows for part in parts] == [92, 92, 46 + 6]
    numbers = [n for part in parts for n in part["auction"]["id"].to_pylist()]
    assert numbers == list(range(1000, 1000 + len(numbers)))


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    held = nexmark_events.prepared(tmp_path / "events", Events(100))
    before = (held / "bid.csv").stat().st_mtime_ns
    assert nexmark_events.prepared(held, Events(100)) == held
    assert (held / "bid.csv").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="must hold the events that are asked for"):
        nexmark_events.prepared(held, Events(150))
    with pytest.raises(ConfigError, match="must hold the events that are asked for"):
        nexmark_events.prepared(held, Events(100), ("parquet",))
    with pytest.raises(ConfigError, match="it is something else"):
        nexmark_events.prepared(tmp_path, Events(100))
    with pytest.raises(ConfigError, match="csv or parquet, got xml"):
        nexmark_events.prepared(tmp_path / "new", Events(100), ("xml",))
    with pytest.raises(ConfigError, match="50 events or more, got 7"):
        Events(7)


# -- the measurement -------------------------------------------------------------------------------


def test_queries_are_measured(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nexmark, "own_session", lambda master, config: spark)
    told = []
    asked = Request(Events(500), ("q0", "q13"), data=tmp_path, warm_up=50)
    report = nexmark.measure(asked, told=lambda r: told.append(len(r.lines)))
    assert told == [1, 2]
    assert [(line.query, line.title, line.rows) for line in report.lines] == [
        ("q0", "pass through", 460),
        ("q13", "bounded side input join", 460),
    ]
    assert [line.penstock.answers for line in report.lines] == [460, 460]
    assert all(line.rate("penstock") > 0 for line in report.lines)  # type: ignore[operator]
    late = Request(Events(500), ("q0",), data=tmp_path, warm_up=50, limit=1e-9)
    assert nexmark.measure(late).lines[0].penstock == Ran(why="not done after 1e-09 s")


def test_what_was_measured_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = Request(Events(500), ("q0", "q6"))
    report = Report(asked, [
        Line("q0", "pass through", 460, Ran(2.0, 460), Ran(4.0)),
        Line("q6", "average", 490, Ran(why="not done after 600 s"), Ran(why="cannot run it")),
    ])  # fmt: skip
    content = json.loads(json.dumps(report.as_json()))
    assert [q["penstock events/s"] for q in content["queries"]] == [230.0, None]
    assert [q["flink events/s"] for q in content["queries"]] == [115.0, None]
    (table,) = nexmark.tables(Report(Request(Events(500)), report.lines))
    assert list(table.columns[5].cells) == ["230 events/s", "not done after 600 s"]
    draw(content, tmp_path / "nexmark.png")
    assert (tmp_path / "nexmark.png").stat().st_size > 10_000


def test_flink_gets_the_same_rows(tmp_path: Path) -> None:
    held = nexmark_events.prepared(tmp_path / "events", Events(100))
    plain = nexmark.without_headers(held, ("bid", "side_input"))
    for name in ("bid", "side_input"):
        lines = (held / f"{name}.csv").read_text().splitlines(keepends=True)
        assert (plain / f"{name}.csv").read_text() == "".join(lines[1:])


def test_a_wrong_request_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["bench", "nexmark", "--queries", "q0,q99"])
    assert answer.exit_code == 1
    assert "queries must be some of q0 to q22, got q99" in " ".join(answer.output.split())
    answer = CliRunner().invoke(app, ["bench", "nexmark", "--against", "storm"])
    assert answer.exit_code == 1
    assert "--against must be 'flink' or left out, got 'storm'" in answer.output
    monkeypatch.setattr(nexmark, "FLINK_PYTHON", tmp_path / "none/bin/python")
    with pytest.raises(ConfigError, match="make bench-flink"):
        Request(Events(100), flink=True)
    with pytest.raises(ConfigError, match="above 0, got 0 seconds"):
        Request(Events(100), limit=0)
