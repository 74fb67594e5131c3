"""The queries of NEXMark, as they stand in the examples, against plain Python."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock.bench import nexmark_events
from penstock.bench.nexmark_events import Events
from penstock.testing import Rig
from tests import nexmark_answers as answers
from tests.nexmark_answers import RELATIONS, STREAMS, Market

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
    place = folder / f"{events.count}-{events.begin}"
    return answers.read(nexmark_events.prepared(place, events))


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
