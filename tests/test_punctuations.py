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
from penstock.physical.explain_closing import closing_texts
from penstock.physical.progress import ClosedRun, Partition, Progress
from penstock.runs.manifest import Manifest
from penstock.runs.state import MemoryStorage
from penstock.sources.stream_forms import described
from penstock.testing import Rig
from tests.random_times import snapshots

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


def test_the_longest_of_several_promises_counts() -> None:
    rig = bids(more="TIME price ", lasts=" FOR 10")
    rig.feed("bids", [("closed", 1, 20, 5), ("closed", 1, 8, 6)])
    rig.feed("bids", [bid(1, 29), bid(1, 30)])
    assert rig.late("bids") == [("closed", 1, 8, 6), bid(1, 29)]
    rig.assert_oracle()


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
    assert len(closed) < 16
    assert sum(run.rows for run in closed) == 100
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


# ---- what a closed part frees and releases

AUCTIONS = (
    "CREATE STREAM auctions (id INT, kind STRING, t BIGINT) USING memory TIMESTAMP BY t "
    "PUNCTUATION WHEN kind = 'closed' ON (id); "
    "CREATE STREAM bids (auction INT, kind STRING, price INT, t BIGINT) USING memory "
    "TIMESTAMP BY t PUNCTUATION WHEN kind = 'closed' ON (auction); "
    "CREATE SINK rows USING memory OPTIONS (changes 'intervals'); "
)


def two(query: str, **options: object) -> Rig:
    return Rig(AUCTIONS + query, **options)  # type: ignore[arg-type]


def state_rows(rig: Rig, *names: str) -> int:
    """Count the rows of states with these names in all shards."""
    return sum(
        run["rows"] - run["skipped"]
        for shard in rig._engine._states
        for state in shard.values()
        for name, runs in state["runs"].items()
        for run in runs
        if name in names
    )


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("buffer", ["input", "output"])
def test_a_closed_part_frees_the_partners_of_a_join(shards: int, buffer: str) -> None:
    rig = two(
        "CREATE QUERY pairs INTO rows AS SELECT b.auction, b.price, a.kind FROM bids b "
        "JOIN auctions a ON a.id = b.auction",
        shards=shards,
        settings={"join.buffer": buffer},
    )
    rig.feed({"auctions": [(n, "open", n) for n in range(10)]})
    rig.feed({"bids": [(n % 10, "bid", n, n) for n in range(40)]})
    rig.advance(50)
    full = state_rows(rig, "left", "right")
    assert full == 50
    rig.feed({"auctions": [(n, "closed", 50 + n) for n in range(8)]})
    rig.advance(60)
    assert state_rows(rig, "left", "right") < 10 + 8 + 2 * 4 + 8  # the bids of two auctions
    rig.feed({"bids": [(3, "bid", 7, 61), (9, "bid", 7, 62)]})
    rig.feed({"bids": [(n, "closed", 0, 63) for n in range(10)]})
    rig.advance(70)
    assert state_rows(rig, "left", "right") < 30
    rig.assert_oracle()
    rig.end()
    if shards == 1 and buffer == "input":  # replays have shards and buffers of their own
        rig.under_all_settings({"join.buffer": "output", "lifetime": "direct"})


def test_groups_of_closed_parts_leave_before_the_stream_ends() -> None:
    rig = two(
        "CREATE QUERY totals INTO rows AS SELECT auction, COUNT(*) AS n, MAX(price) AS best "
        "FROM bids GROUP BY auction HAVING COUNT(*) > 1"
    )
    rig.feed("bids", [(n % 3, "bid", n, n) for n in range(9)])
    rig.feed("bids", [(1, "closed", 0, 10), (2, "bid", 50, 11), (0, "bid", 2, 12)])
    final = [row for row in rig.rows("totals") if row[-1] is None]
    assert final == [(1, 4, 7, 10, None)]
    rig.feed("bids", [(1, "bid", 99, 20), (2, "closed", 0, 21), (5, "bid", 0, 22)])
    assert [row[0] for row in rig.rows("totals") if row[-1] is None] == [1, 2]
    rig.assert_oracle()
    rig.end()
    rig.assert_oracle()
    assert len(rig.rows("totals")) == len(set(rig.rows("totals")))
    rig.under_all_settings()


def test_groups_of_closed_parts_are_forgotten() -> None:
    query = "CREATE QUERY totals INTO rows AS SELECT auction, SUM(price) AS s FROM bids GROUP BY 1"
    closing, other = two(query), two(query)
    for n in range(100):
        closing.feed("bids", [(n, "bid", n, 2 * n), (n, "closed", 0, 2 * n + 1)])
        other.feed("bids", [(n, "bid", n, 2 * n), (n, "last", 0, 2 * n + 1)])
    closing.advance(300)
    other.advance(300)
    assert state_rows(other, "groups") >= 100
    assert state_rows(closing, "groups") < 30
    assert len([row for row in closing.rows("totals") if row[-1] is None]) == 100
    closing.assert_oracle()


@pytest.mark.parametrize("window", ["", "[RANGE 1000]"])
@pytest.mark.parametrize("buffer", ["input", "output"])
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_without_partner_leave_before_their_window_ends(
    window: str, buffer: str, shards: int
) -> None:
    met = "ON a.id = b.auction AND a.kind = 'open'"
    rig = two(
        f"CREATE QUERY lonely INTO rows AS SELECT b.auction, b.price FROM bids b {window} "
        f"LEFT ANTI JOIN auctions a {window} {met}; "
        f"CREATE QUERY all_bids INTO rows AS "
        f"SELECT b.auction, b.price, a.id FROM bids b {window} "
        f"LEFT JOIN auctions a {window} {met}; "
        f"CREATE QUERY everything INTO rows AS "
        f"SELECT b.auction, b.price, a.id FROM bids b {window} FULL JOIN auctions a {window} {met}",
        settings={"join.buffer": buffer},
        shards=shards,
    )

    def lives(auction: int, price: int, start: int) -> tuple[int | None, ...]:
        return auction, price, start, start + 1000 if window else None

    rig.feed({"auctions": [(1, "open", 1)], "bids": [(1, "bid", 10, 2), (2, "bid", 20, 3)]})
    rig.advance(5)
    assert rig.rows("lonely") == []
    rig.feed("auctions", [(2, "closed", 6), (3, "closed", 6)])
    rig.advance(8)
    assert rig.rows("lonely") == [lives(2, 20, 3)]  # no auction 2 can come for it any more
    rig.feed("bids", [(3, "bid", 30, 9), (4, "bid", 40, 9)])
    rig.advance(10)
    assert rig.rows("lonely") == [lives(2, 20, 3), lives(3, 30, 9)]
    outer = [(*row[:2], *row[3:]) for row in rig.rows("all_bids") if row[2] is None]
    assert outer == rig.rows("lonely")
    rig.feed("bids", [(2, "closed", 0, 11), (5, "bid", 50, 11)])
    rig.feed("auctions", [(4, "open", 12), (2, "open", 12), (5, "open", 13)])
    assert [row[0] for row in rig.late("auctions")] == [2]
    rig.assert_oracle()
    rig.feed("auctions", [(7, "closed", 14)])
    rig.end()
    rig.assert_oracle()
    for query in ("lonely", "all_bids", "everything"):
        whole = rig._engine.answers[f"{query} intervals"]
        assert snapshots(whole) == rig._steps(rig._query(query))
    if shards == 1 and buffer == "input":  # replays have shards and buffers of their own
        rig.under_all_settings({"join.buffer": "output", "lifetime": "direct"})


def test_a_promise_that_ends_frees_only_what_ends_before() -> None:
    script = AUCTIONS.replace("ON (id)", "ON (id) FOR 20")
    rig = Rig(
        script + "CREATE QUERY pairs INTO rows AS SELECT b.price, a.kind FROM bids b [RANGE 10] "
        "JOIN auctions a [RANGE 3] ON a.id = b.auction; "
        "CREATE QUERY longer INTO rows AS SELECT b.price, a.kind FROM bids b [RANGE 40] "
        "JOIN auctions a [RANGE 3] ON a.id = b.auction"
    )
    rig.feed("bids", [(1, "bid", n, n) for n in range(8)])
    rig.feed("auctions", [(1, "closed", 8)])
    rig.advance(9)
    rig.feed("auctions", [(1, "early", 27), (1, "again", 28)])
    assert [row[1] for row in rig.late("auctions")] == ["early"]
    rig.end()
    assert {row[1] for row in rig.rows("longer")} == {"closed", "again"}
    rig.assert_oracle()
    rig.under_all_settings()


def test_parts_go_on_through_a_join_into_the_groups_above_it() -> None:
    rig = two(
        "CREATE QUERY best INTO rows AS SELECT b.auction, MAX(b.price) AS best, COUNT(*) AS n "
        "FROM bids b JOIN auctions a ON a.id = b.auction GROUP BY b.auction",
        shards=2,
    )
    rig.feed({"auctions": [(1, "open", 1), (2, "open", 1)], "bids": [(1, "bid", 5, 2)]})
    rig.feed({"bids": [(1, "bid", 9, 3), (1, "closed", 0, 4), (2, "bid", 1, 5)]})
    rig.feed({"auctions": [(1, "closed", 5)]})
    rig.advance(8)
    assert [row for row in rig.rows("best") if row[-1] is None] == [(1, 9, 6, 5, None)]
    rig.assert_oracle()
    rig.end()
    rig.under_all_settings()


@pytest.mark.parametrize("kind", ["SEMI", "ANTI"])
@pytest.mark.parametrize("shards", [1, 3])
def test_parts_go_on_through_a_semi_join_and_free_its_rows(kind: str, shards: int) -> None:
    rig = two(
        "CREATE QUERY best INTO rows AS SELECT auction, MAX(price) AS best FROM "
        f"(SELECT b.auction, b.price FROM bids b LEFT {kind} JOIN auctions a [RANGE 4] "
        "ON a.id = b.auction AND a.kind <> b.kind) GROUP BY auction",
        shards=shards,
    )
    rig.feed({"auctions": [(1, "open", 1), (2, "open", 3)]})
    rig.feed({"bids": [(1, "bid", 5, 2), (2, "bid", 6, 2), (3, "bid", 7, 2)]})
    rig.feed({"bids": [(n, "closed", 0, 4) for n in (1, 2, 3)]})
    rig.feed({"auctions": [(n, "closed", 5) for n in (1, 2, 3)]})
    rig.advance(30)
    rig.feed({"bids": [(4, "bid", 1, 31)], "auctions": [(4, "open", 31)]})
    rig.advance(32)
    if kind == "SEMI":
        assert rig.rows("best") == [(1, 5, 2, 9), (2, 6, 3, 9), (3, 7, 5, 9)]
    if kind == "SEMI" and shards == 1:  # those of several shards are merged away later
        assert state_rows(rig, "groups") == 1
    assert state_rows(rig, "status", "values", "due.by_end", "parting.by_end") == 3
    rig.assert_oracle()
    rig.end()
    rig.assert_oracle()
    rig.under_all_settings()


# ---- what EXPLAIN says


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT auction, COUNT(*) FROM bids GROUP BY 1", "Aggregate ends groups whose rows"),
        ("SELECT price, COUNT(*) FROM bids GROUP BY 1", "no operator can make use of it"),
        ("SELECT b.price FROM bids b JOIN auctions a ON a.id = b.auction", "Join lets go of"),
        (
            "SELECT b.auction, COUNT(*) FROM bids b JOIN auctions a ON a.id = b.auction GROUP BY 1",
            "Join lets go of partners",
        ),
        (
            "SELECT b.price FROM bids b LEFT ANTI JOIN auctions a ON a.id = b.auction",
            "Rows without partner leave before their time",
        ),
    ],
)
def test_explain_says_what_is_closed_where(query: str, said: str) -> None:
    rig = two(f"CREATE QUERY q INTO rows AS {query}")
    rig.advance(0)
    plan, streams = rig._engine.plan, rig.catalog.streams
    lines = closing_texts(plan, "q intervals", streams)
    assert any(said in line for line in lines), lines
    assert all(line.startswith("closed parts of ") for line in lines)
    assert closing_texts(plan, "another", streams) == []


def test_explain_says_that_negative_tuples_make_no_use_of_it() -> None:
    query = "CREATE QUERY q INTO rows AS SELECT auction, COUNT(*) FROM bids GROUP BY 1"
    rig = two(query, settings={"lifetime": "negative"})
    rig.advance(0)
    (line,) = closing_texts(rig._engine.plan, "q intervals", rig.catalog.streams)
    assert line.endswith("later rows are late; with negative tuples nobody makes use of it")
