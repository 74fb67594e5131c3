"""Punctuations on columns: parts of a stream are closed, rows that come all the same are late."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from penstock import cql
from penstock.catalog import Catalog
from penstock.errors import QueryError
from penstock.kernels.closed_keys import ClosedKeys, closed_before
from penstock.kernels.keys import hash_columns
from penstock.model import INF, MIN_TIME
from penstock.physical.closing import read_run, settled
from penstock.physical.progress import ClosedRun, Partition, Progress
from penstock.runs.manifest import Manifest
from penstock.runs.state import MemoryStorage
from penstock.sources.stream_forms import described
from penstock.testing import Rig

BIDS = (
    "CREATE STREAM bids (kind STRING, auction INT, price INT, t BIGINT) USING memory "
    "TIMESTAMP BY t SLACK 5 PUNCTUATION WHEN kind = 'closed' {more}ON (auction){lasts}; "
)
COUNTS = "CREATE QUERY counts AS SELECT auction, COUNT(*) AS n FROM bids [RANGE 9] GROUP BY auction"


def bids(more: str = "", lasts: str = "", query: str = COUNTS, **options: object) -> Rig:
    script = BIDS.format(more=more, lasts=lasts) + query
    return Rig(script, **options)  # type: ignore[arg-type]


def bid(auction: int | None, t: int, kind: str = "bid") -> tuple[str, int | None, int, int]:
    return kind, auction, 10, t


@pytest.mark.parametrize("batch_rows", [None, 1, 2])
def test_rows_of_a_closed_part_are_late(batch_rows: int | None) -> None:
    rig = bids(batch_rows=batch_rows)
    rig.feed("bids", [bid(1, 1), bid(2, 2), bid(1, 3, "closed"), bid(1, 4), bid(2, 5), bid(1, 3)])
    rig.feed("bids", [bid(1, 6), bid(2, 7), bid(1, 100), bid(1, 101, "closed")])
    assert [row[3] for row in rig.late("bids")] == [4, 3, 6, 100, 101]
    assert rig._engine.progress["bids"].late == 5
    rig.assert_oracle()
    rig.end()
    rig.under_all_settings()


def test_the_heartbeat_is_not_moved_by_a_part() -> None:
    rig = bids()
    rig.feed("bids", [bid(1, 9, "closed"), bid(2, 4)])
    assert rig._engine.heartbeat("bids") == 4
    assert rig.late("bids") == []


def test_null_is_a_value_and_two_columns_are_both_compared() -> None:
    rig = bids()
    rig.feed("bids", [bid(None, 1, "closed"), bid(None, 2), bid(1, 2)])
    assert [row[1] for row in rig.late("bids")] == [None]
    script = BIDS.format(more="", lasts="").replace("(auction)", "(auction, price)")
    other = Rig(script + COUNTS)
    other.feed("bids", [bid(1, 1, "closed"), ("bid", 1, 11, 2), bid(1, 3)])
    assert other.late("bids") == [bid(1, 3)]


def test_a_promise_may_end() -> None:
    rig = bids(lasts=" FOR 10")
    rig.feed("bids", [bid(1, 5, "closed"), bid(1, 14), bid(1, 15), bid(1, 14)])
    assert rig.late("bids") == [bid(1, 14), bid(1, 14)]
    rig.feed("bids", [bid(2, 30)])
    assert rig._engine.progress["bids"].closed == ()  # the heartbeat has passed the promise
    rig.assert_oracle()


def test_the_time_of_a_promise_is_told() -> None:
    rig = bids(more="TIME price ", lasts=" FOR 3")
    rig.feed("bids", [bid(1, 5, "closed"), bid(1, 12), bid(1, 13)])
    assert rig.late("bids") == [bid(1, 12)]


def test_a_part_is_closed_partition_by_partition() -> None:
    rig = bids()
    rig.feed("bids", [bid(1, 1), bid(1, 2, "closed"), bid(1, 3)], partition=0)
    assert [row[3] for row in rig.late("bids")] == [3]
    rig.feed("bids", [bid(1, 3)], partition=1)  # it appears, and finds the part closed
    assert len(rig.late("bids")) == 2
    rig.feed("bids", [bid(2, 4, "closed"), bid(2, 5)], partition=0)
    rig.feed("bids", [bid(2, 6), bid(2, 7, "closed")], partition=1)
    rig.feed("bids", [bid(2, 8)], partition=1)
    assert [row[3] for row in rig.late("bids")] == [3, 3, 5, 8]
    rig.feed("bids", [bid(2, 9)], partition=2)
    assert [row[3] for row in rig.late("bids")] == [3, 3, 5, 8, 9]
    rig.assert_oracle()


def test_an_idle_partition_need_not_close_a_part() -> None:
    script = BIDS.format(more="", lasts="").replace("SLACK 5", "SLACK 5 IDLE AFTER 1 SECOND")
    rig = Rig(script + COUNTS)
    rig.feed("bids", [bid(1, 1)], partition=0)
    rig.feed("bids", [bid(1, 1)], partition=1)
    rig.feed("bids", [bid(1, 2, "closed")], partition=0)
    rig.idle("bids", partition=1)
    rig.feed("bids", [bid(1, 3)], partition=1)
    assert rig.late("bids") == [bid(1, 3)]
    rig.assert_oracle()


def test_what_is_closed_survives_as_json_and_is_kept_by_the_manifest() -> None:
    rig = bids()
    rig.feed("bids", [bid(n, n, "closed") for n in range(1, 4)])
    found = rig._engine.progress["bids"]
    assert [run.partition for run in found.closed] == [None]
    again = Progress.of(json.loads(json.dumps(found.describe())))
    assert again == found
    place = {"file": "a.seg", "offset": 0, "length": 8, "crc": 0}
    run = {"partition": None, "place": place, "rows": 1, "until": 5}
    assert Manifest(progress={"bids": {"closed": [run]}}).files() == {"a.seg"}


def test_small_runs_are_merged_and_old_ones_forgotten() -> None:
    rig = bids(lasts=" FOR 1000")
    for n in range(100):
        rig.feed("bids", [bid(n, n, "closed"), bid(n - 1, n)])
    closed = rig._engine.progress["bids"].closed
    assert len(closed) < 16 and sum(run.rows for run in closed) == 100
    assert len(rig.late("bids")) == 99
    rig.feed("bids", [bid(5, 50), bid(5, 1099)])
    rig.feed("bids", [bid(7, 1006), bid(7, 1007), bid(101, 5000)])
    assert rig._engine.progress["bids"].closed == ()


def test_a_partition_that_ends_no_longer_counts() -> None:
    storage = MemoryStorage()
    keys = hash_columns([pa.array([1, 2])], 2)
    closed = ClosedKeys.of(keys, np.array([INF, INF]))
    run = ClosedRun("0", storage.write(closed.to_table()), 2, INF)
    before = Progress({"0": Partition(0), "1": Partition(1)}, closed=(run,))
    assert settled(before, before, storage) == before
    after = settled(before, Progress({"0": Partition(0)}, closed=(run,)), storage)
    assert [r.partition for r in after.closed] == [None]
    assert len(read_run(after.closed[0], storage)) == 2


def test_rows_before_close_a_key() -> None:
    keys = hash_columns([pa.array([1, 2, 1, 1, 2, 1])], 6)
    until = np.array([MIN_TIME, 7, 5, 3, MIN_TIME, MIN_TIME])
    found = closed_before(keys, until).tolist()
    assert found == [MIN_TIME, MIN_TIME, MIN_TIME, 5, 7, 5]


def test_the_clause_is_shown_as_typed() -> None:
    catalog = Catalog()
    (parsed,) = cql.parse_script(
        "CREATE STREAM s (k STRING, a INT, t TIMESTAMP) USING memory TIMESTAMP BY t "
        "PUNCTUATION WHEN k = 'x' TIME t ON (a, K) FOR 1 HOUR ON ERROR FAIL"
    )
    definition = cql.bind(parsed, catalog).definition  # type: ignore[union-attr]
    found = described(definition)["PUNCTUATION WHEN"]  # type: ignore[arg-type]
    assert found == "k = 'x' TIME t ON (k, a) FOR 1 HOUR"


@pytest.mark.parametrize(
    ("clause", "message"),
    [
        ("ON (nobody)", "has no column 'nobody'"),
        ("ON (d)", "must be an integer, a text, a date, a timestamp or a boolean, but 'd' is"),
        ("ON ()", "the name of one"),
        ("ON (k FOR 3", "must be closed|\\)"),
        ("ON (k) FOR ever", "FOR"),
    ],
)
def test_mistakes_in_the_clause(clause: str, message: str) -> None:
    script = (
        "CREATE STREAM s (k INT, d DOUBLE, t BIGINT) USING memory TIMESTAMP BY t "
        f"PUNCTUATION WHEN k = 0 {clause}"
    )
    with pytest.raises(QueryError, match=message):
        Rig(script)
