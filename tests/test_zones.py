"""Tables of time zones: every zone of this machine against Python's own reading of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DataError
from penstock.expr.functions import resolve_call
from penstock.expr.library.zones import zone_of
from penstock.expr.nodes import Column
from penstock.expr.types import BIGINT, STRING
from penstock.model import TIMESTAMP
from tests.test_functions import evaluate, plain

START = datetime(1970, 1, 1)
FIRST, LAST = -62_100_000_000, 253_370_000_000  # the years 2 to 9998
CYCLE = 146_097 * 86_400


def test_every_zone_is_as_python_reads_it() -> None:
    chance = random.Random(16)
    wrong = []
    for name in sorted(name for name in available_timezones() if "/" in name):
        zone, theirs = zone_of(name), ZoneInfo(name)
        seconds = [chance.randrange(FIRST, LAST) for _ in range(8)]
        for change in chance.sample(zone.changes.tolist(), min(8, len(zone.changes))):
            seconds += [change + apart for apart in (-3600, -1, 0, 1, 1800, 3599)]
        seconds = [second for second in seconds if FIRST < second < LAST]
        found = zone.of_utc(np.array(seconds)), zone.of_clock(np.array(seconds))
        for second, of_utc, of_clock in zip(seconds, *found, strict=True):
            time = START + timedelta(seconds=second)
            there = time.replace(tzinfo=UTC).astimezone(theirs).utcoffset()
            clock = time.replace(tzinfo=theirs).utcoffset()
            assert there is not None
            assert clock is not None
            if (of_utc, of_clock) != (there.total_seconds(), clock.total_seconds()):
                wrong.append(f"{name} at {time}")
    assert wrong == []


def test_a_rule_goes_on_beyond_the_years_of_python() -> None:
    zone = zone_of("Europe/Athens")
    seconds = np.arange(zone.cycle - CYCLE, zone.cycle, 86_400 * 5 + 1001)
    for times in (1, 2, 700):
        assert (zone.of_utc(seconds + times * CYCLE) == zone.of_utc(seconds)).all()
        assert (zone.of_clock(seconds + times * CYCLE) == zone.of_clock(seconds)).all()


def test_zones_of_a_column_are_looked_up_one_by_one() -> None:
    names = ["Asia/Tokyo", None, "UTC", "Asia/Tokyo", "-03:30"]
    times = pa.array([0, 0, 0, None, 3_600_000_000], BIGINT).cast(TIMESTAMP)
    there = resolve_call("from_utc_timestamp", [Column(0, TIMESTAMP), Column(1, STRING)])
    found = plain(evaluate(there, [times, pa.array(names)], 5))
    assert found == [9 * 3_600_000_000, None, 0, None, -2.5 * 3_600_000_000]
    with pytest.raises(DataError, match=r"got 'tokyo'; did you mean 'Asia/Tokyo'\?"):
        evaluate(there, [times, pa.array(["tokyo"] * 5)], 5)


@pytest.mark.parametrize("name", ["", "EST", "posix/Europe/Berlin", "../zone.tab", "+19", "+5:60"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="the name of a region such as 'Europe/Athens'"):
        zone_of(name)
