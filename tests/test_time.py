"""Time: source partitions, heartbeats of every kind, SLACK AUTO, streams in step."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import cql
from penstock.catalog import Catalog
from penstock.errors import DataError, QueryError
from penstock.kernels.disorder import Disorder
from penstock.model import INF, MIN_TIME
from penstock.physical.progress import (
    Decision,
    Partition,
    Progress,
    Timeline,
    ahead,
    reported,
)
from penstock.physical.timekeeper import TimeKeeper
from penstock.reference.late import Source
from penstock.session import Session
from penstock.testing import Rig
from penstock.timing import TimeRules
from tests import random_times

ONE = "CREATE STREAM s (k INT, t BIGINT) USING memory TIMESTAMP BY t {}; "
COUNTS = "CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k"


# ---- source partitions


def test_partitions_with_skewed_clocks_lose_nothing() -> None:
    rig = Rig(ONE.format("PARTITIONS 8") + COUNTS)
    dice = random.Random(7)
    skews = [0, 3, 50, 400, 1, 9, 77, 12]
    for now in range(0, 300, 10):
        for partition in dice.sample(range(8), 8):
            rows = [(partition, now + n - skews[partition]) for n in range(10)]
            rig.feed("s", rows, partition)
    assert rig.late("s") == []
    assert rig._engine.heartbeat("s") == 299 - 400
    rig.assert_oracle()
    rig.end()
    rig.assert_oracle()


def test_a_row_is_late_in_its_own_partition_only() -> None:
    rig = Rig(ONE.format("SLACK 2") + COUNTS)
    rig.feed("s", [(0, 10)], 0)
    rig.feed("s", [(1, 9)], 1)
    rig.feed("s", [(0, 100)], 0)
    rig.feed("s", [(1, 10), (1, 8), (1, 7)], 1)  # 8 is within the slack of 10
    assert rig.late("s") == [(1, 7)]
    rig.feed("s", [(0, 97)], 0)
    assert rig.late("s") == [(1, 7), (0, 97)]


def test_a_partition_that_appears_begins_with_what_was_promised() -> None:
    rig = Rig(ONE.format("") + COUNTS)
    rig.feed("s", [(0, 10), (0, 20)], 0)
    rig.feed("s", [(1, 19), (1, 20), (1, 15)], 1)
    assert rig.late("s") == [(1, 19), (1, 15)]
    rig.assert_oracle()


def test_partitions_that_are_declared_are_waited_for() -> None:
    rig = Rig(ONE.format("PARTITIONS 3 IDLE AFTER 1 SECOND") + COUNTS)
    rig.feed("s", [(0, 10), (0, 20)], 0)
    rig.feed("s", [(1, 5)], 1)
    assert rig._engine.heartbeat("s") == MIN_TIME
    rig.idle("s")  # all three of them
    assert rig._engine.heartbeat("s") == 21
    rig.feed("s", [(2, 20), (2, 22)], 2)
    assert rig.late("s") == [(2, 20)]
    rig.assert_oracle()


def test_a_partition_that_ends_holds_nobody_back() -> None:
    rules = TimeRules()
    parts = {"0": Partition(0, max_time=10), "1": Partition(1, max_time=50)}
    timeline = Timeline({"s": Progress(parts, max_time=50, floor=10)}, {"s": rules})
    after = timeline.after([reported("s", {"0": parts["0"]}, ended={"0"})])["s"]
    assert (after.heartbeat, set(after.partitions)) == (50, {"1"})
    gone = Timeline({"s": after}, {"s": rules}).after([reported("s", {}, ended={"1"})])["s"]
    assert (gone.heartbeat, gone.partitions, gone.final) == (50, {}, False)


def test_partitions_that_appear_get_numbers_that_none_had() -> None:
    progress, numbers = Progress(), []
    for name in "abcd":
        appeared = progress.partition(name)
        numbers.append(appeared.number)
        told = reported("s", {name: appeared}, ended={"b"} if name == "b" else ())
        progress = Timeline({"s": progress}, {"s": TimeRules()}).after([told])["s"]
    assert numbers == [0, 1, 2, 3]
    assert set(progress.partitions) == {"a", "c", "d"}


def test_partitions_have_arrival_numbers_of_their_own() -> None:
    rig = Rig(ONE.format("") + "CREATE QUERY q AS SELECT k FROM s [ROWS 2]")
    for partition in (1, 0):  # ties are broken by partition, then by position
        rig.feed("s", [(10 * partition, 5), (10 * partition + 1, 5)], partition)
    rig.feed("s", [(99, 6)], 0)
    rig.feed("s", [(98, 7)], 1)
    rig.end()
    rig.assert_view("q", [(11,), (10,)], at=5)


@pytest.mark.parametrize("wrong", [-1, (1 << 20) - 1, "a", True, 1.0])
def test_a_partition_is_a_small_number(wrong: Any) -> None:
    rig = Rig(ONE.format("") + COUNTS)
    with pytest.raises(DataError, match="must be a whole number from 0 to 1048574"):
        rig.feed("s", [(1, 1)], wrong)


# ---- heartbeats


def test_the_clock_moves_time_without_rows() -> None:
    rig = Rig(
        "CREATE STREAM s (k INT, t TIMESTAMP) USING memory TIMESTAMP BY t "
        "HEARTBEAT FROM CLOCK LAG 2 SECONDS; "
        "CREATE QUERY q AS ISTREAM (SELECT COUNT(*) AS n FROM s [RANGE 10 SECONDS])"
    )
    rig.feed("s", [(1, "10:00:00")])
    rig.clock("10:00:01")
    assert rig.rows("q") == []
    rig.clock("10:00:02.000001")
    assert [n for n, _ in rig.rows("q")] == [1]
    rig.clock("10:00:30")
    assert [n for n, _ in rig.rows("q")] == [1, 0]
    rig.feed("s", [(2, "10:00:27.9"), (3, "10:00:28")])
    assert [k for k, _ in rig.late("s")] == [2]
    rig.assert_oracle()


def test_a_silence_closes_the_last_instant() -> None:
    rig = Rig(ONE.format("SLACK 4 IDLE AFTER 1 SECOND") + COUNTS)
    rig.feed("s", [(1, 10)])
    assert rig.intervals("q") == []
    rig.idle("s")
    assert rig.intervals("q") == [(1, 1, 10, None)]
    rig.feed("s", [(1, 10), (2, 11)])
    assert rig.late("s") == [(1, 10)]
    rig.assert_oracle()


def test_punctuations_promise_what_they_say() -> None:
    rig = Rig(ONE.format("SLACK 100 PUNCTUATION WHEN k = 0 TIME t - 3") + COUNTS)
    rig.feed("s", [(1, 10), (0, 20), (1, 16), (1, 17), (0, 21), (1, 17), (1, 18)])
    assert rig.late("s") == [(1, 16), (1, 17)]
    assert rig._engine.heartbeat("s") == 18
    rig.assert_oracle()
    rig.under_all_settings()


def test_a_punctuation_without_a_time_means_its_own() -> None:
    rig = Rig(ONE.format("SLACK 100 PUNCTUATION WHEN k = 0") + COUNTS)
    rig.feed("s", [(1, 10), (0, 20), (1, 19)])
    assert rig.late("s") == [(1, 19)]


def test_the_program_promises_for_one_partition_or_all() -> None:
    rig = Rig(ONE.format("SLACK 100") + COUNTS)
    for partition in (0, 1):
        rig.feed("s", [(partition, 10)], partition)
    rig.heartbeat("s", 50, partition=0)
    assert rig._engine.heartbeat("s") == 10 - 100
    rig.heartbeat("s", 40)
    assert rig._engine.heartbeat("s") == 40
    rig.feed("s", [(0, 45)], 0)
    rig.feed("s", [(1, 45)], 1)
    assert rig.late("s") == [(0, 45)]


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ("HEARTBEAT FROM CLOCK", "HEARTBEAT FROM CLOCK needs a time column of type TIMESTAMP"),
        ("HEARTBEAT CLOCK", "HEARTBEAT must be followed by FROM"),
        ("PUNCTUATION WHEN k", "must be followed by a condition, got INT"),
        ("PUNCTUATION WHEN k = 0 TIME 'x'", "must be of the type of the time column, BIGINT"),
        ("SLACK AUTO KEEPING 99.9", "KEEPING 99.9 must be followed by %"),
        ("SLACK AUTO KEEPING x %", "must be followed by a share such as 99.9 %"),
        ("SLACK AUTO KEEPING 100 %", "must be a share from 50 % to 99.999 %"),
        ("PARTITIONS many", "PARTITIONS must be followed by a whole number"),
        ("PARTITIONS 0", "PARTITIONS must be from 1"),
        ("STEP 2 SECONDS", "counts time in integers"),
        ("STEPS 2", "is not a clause of CREATE STREAM"),
    ],
)
def test_wrong_clauses_get_a_sentence(clauses: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Rig(ONE.format(clauses))


def test_every_clause_is_bound() -> None:
    (parsed,) = cql.parse_script(
        "CREATE STREAM s (k INT, t TIMESTAMP) USING memory TIMESTAMP BY t SLACK AUTO "
        "HEARTBEAT FROM CLOCK LAG 5 SECONDS STEP 1 MINUTE PUNCTUATION WHEN k = 0 TIME t "
        "IDLE AFTER 3 SECONDS"
    )
    statement: Any = cql.bind(parsed, Catalog())
    timing = statement.definition.timing
    assert (timing.keeping, timing.clock_lag, timing.step) == (0.999, 5_000_000, 60_000_000)
    assert (timing.idle_after, len(timing.punctuations)) == (3.0, 1)


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.long
def test_random_time_against_the_oracle(first: int) -> None:
    seen = Counter[str]()
    for seed in range(first, first + 50):
        seen += random_times.run(random_times.make(seed))
    assert seen["late"] > 100
    assert seen["rows"] > 500


# ---- the slack that follows


def test_the_slack_does_not_depend_on_batches() -> None:
    dice = np.random.default_rng(3)
    times = np.arange(5000) - (dice.pareto(1.5, 5000) * 3).astype(np.int64)
    rules = TimeRules(keeping=0.99)
    whole, found = Partition().judged(times, rules)
    for size in (1, 7, 500, 1023, 1024, 1025):
        part, late = Partition(), []
        for first in range(0, len(times), size):
            some, part = part.judged(times[first : first + size], rules)
            part = Partition.of(part.describe())
            late.append(some)
        assert (np.concatenate(late) == whole).all(), size
        assert part.heartbeat(rules) == found.heartbeat(rules)
    source = Source()
    late_by_definition = []
    for t in times.tolist():
        late_by_definition.append(t < source.heartbeat())
        source.measure(t, 0.99)
        source.newest = max(source.newest, t)
    assert late_by_definition == whole.tolist()
    assert source.heartbeat() == found.heartbeat(rules)


@pytest.mark.parametrize("share", [0.9, 0.99, 0.999])
def test_the_slack_keeps_its_share_whatever_the_delays(share: float) -> None:
    dice = np.random.default_rng(5)
    rows = 200_000
    for delays in (dice.pareto(2.0, rows), dice.exponential(1, rows), dice.integers(0, 9, rows)):
        sent = np.arange(rows) * 1000
        times = sent[np.argsort(sent + (delays * 5000).astype(np.int64), kind="stable")]
        late, _ = Partition().judged(times, TimeRules(keeping=share))
        assert late.mean() <= 1.4 * (1 - share)


def month(dice: np.random.Generator) -> Any:
    """Times of a month, one every four seconds, with heavy-tailed delays, longer by day."""
    rows = 648_000
    sent = np.arange(rows) * 4_000_000
    by_day = 1 + 20 * (np.sin(np.arange(rows) / rows * 2 * np.pi * 30) > 0.9)
    delay = (dice.pareto(2.2, rows) * 2_000_000 * by_day).astype(np.int64)
    return sent[np.argsort(sent + delay, kind="stable")]


def test_a_month_of_disorder() -> None:
    """SLACK AUTO keeps its share and answers sooner than the fixed slack that keeps as much."""
    times = month(np.random.default_rng(11))
    rules = TimeRules(keeping=0.999)
    late, slacks, part = 0, [], Partition()
    for first in range(0, len(times), 100):
        some, part = part.judged(times[first : first + 100], rules)
        late += int(some.sum())
        slacks.append(part.max_time - part.heartbeat(rules))
    kept = 1 - late / len(times)
    assert kept >= 0.9985
    newest = np.maximum.accumulate(times)
    fixed = int(np.quantile(newest - times, kept))
    assert np.mean(slacks[10:]) < 0.9 * fixed


def test_a_delay_beyond_64_bits_is_a_long_one() -> None:
    times = [8, 1, 11, 12, 11, -(2**63) + 1, 15, 16, 20, 19, 12, 14, 25, 23, 30, 35, 26]
    rig = Rig(ONE.format("SLACK AUTO KEEPING 90 %") + COUNTS)
    rig.feed("s", [(n, t) for n, t in enumerate(times)])
    rig.feed("s", [(99, 2**62), (98, -(2**62))])
    rig.assert_oracle()
    assert Counter(rig.late("s")) == Counter(rig._judge().late["s"])


def test_unnamed_and_numbered_partitions_have_one_order() -> None:
    rig = Rig(ONE.format("") + "CREATE QUERY q AS SELECT k, LAG(k) OVER (ORDER BY t) AS l FROM s")
    for k, partition in ((9, 2), (1, None), (2, 1), (5, 0)):
        rig.feed("s", [(k, 7)], partition)
    rig.feed("s", [(99, 8)], 0)
    rig.end()
    rig.assert_oracle()


@pytest.mark.parametrize("time", [2**63, 2**70])
def test_times_that_no_row_can_have_are_refused(time: int) -> None:
    rig = Rig(ONE.format("") + COUNTS)
    with pytest.raises(DataError):
        rig.heartbeat("s", time)
    with pytest.raises(DataError):
        rig.feed("s", [(1, time)])


@pytest.mark.parametrize("keeping", [0.5, 0.95, 0.99])
def test_the_slack_of_a_row_is_the_one_known_before_it(keeping: float) -> None:
    """So the row at which enough rows are known is the same, wherever they are cut."""
    delay = np.random.default_rng(3).integers(1, 1000, 250)
    slack, _ = Disorder().follow(delay, keeping)
    for row in range(len(delay)):
        _, found = Disorder().follow(delay[:row], keeping)
        known = found.slack(keeping)
        assert slack[row] == (-1 if known is None else known)


def test_disorder_survives_a_manifest() -> None:
    _, found = Disorder().follow(np.array([0, 5, 900, 2**40]), 0.9)
    assert Disorder.of(found.describe()) == found


# ---- streams in step


def test_a_stream_that_is_ahead_waits_for_the_slowest() -> None:
    def at(time: int, **more: Any) -> Progress:
        return Progress({"": Partition(max_time=time)}, max_time=time, floor=time, **more)

    both = (frozenset({"fast", "slow"}),)
    rules = {"fast": TimeRules(step=10), "slow": TimeRules()}
    assert ahead({"fast": at(100), "slow": at(90)}, rules, both) == {}
    assert ahead({"fast": at(101), "slow": at(90)}, rules, both) == {"fast": "slow"}
    assert ahead({"fast": at(101)}, rules, both) == {"fast": "slow"}, "it was never heard"
    assert ahead({"fast": at(101), "slow": at(90, final=True)}, rules, both) == {}
    assert ahead({"fast": at(101), "slow": at(90, idle=True)}, rules, both) == {}
    assert ahead({"fast": at(101), "slow": at(0)}, rules, (frozenset({"fast"}),)) == {}
    assert ahead({"slow": at(0)}, rules, both) == {}


def test_a_stream_whose_files_have_all_ended_closes_its_last_instant() -> None:
    part = Partition(0, max_time=9)
    rules = {"s": TimeRules(slack=4, idle_after=1.0)}
    ended = Timeline(rules=rules).after([reported("s", {"a": part}, ended={"a"})])
    assert (ended["s"].heartbeat, ended["s"].idle) == (5, False)
    silent = Timeline(ended, rules, {"s": Decision(idle=frozenset({None}))}).after([])
    assert (silent["s"].heartbeat, silent["s"].idle) == (10, True)
    woken = Timeline(silent, rules).after([reported("s", {"b": Partition(1, max_time=30)})])
    assert (woken["s"].heartbeat, woken["s"].idle) == (26, False)


def test_silence_is_measured_by_partition_and_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    keeper = TimeKeeper(1.0)
    keeper.open({"s": TimeRules(idle_after=5.0, partitions=3)})
    two = Progress({"0": Partition(0, 7), "1": Partition(1, 8)}, appeared=2)
    now[0] = 104.0
    keeper.heard("s", "0")
    assert keeper.decide({"s": two}, {}) == {}
    now[0] = 106.0  # partition 1 and the one that never came were silent since 100
    assert keeper.decide({"s": two}, {})["s"].idle == {None}
    keeper.heard("s", "1", 100.5)
    assert keeper.decide({"s": two}, {})["s"].idle == {"1", None}
    files = Progress(max_time=9, appeared=2)  # all have ended
    keeper.open({"s": TimeRules(idle_after=5.0)})
    keeper.heard("s", "a")
    now[0] = 110.0
    assert not keeper.due({"s": files})
    now[0] = 111.5
    assert keeper.due({"s": files})
    assert not keeper.due({"s": Progress(max_time=9, appeared=2, idle=True)})


@pytest.mark.parametrize("wrong", [None, 2, -1])
def test_partitions_are_those_that_are_declared(wrong: int | None) -> None:
    rig = Rig(ONE.format("PARTITIONS 2") + COUNTS)
    with pytest.raises(DataError, match="from 0 to 1, because the stream declares PARTITIONS 2"):
        rig.feed("s", [(1, 1)], wrong)


# ---- on Spark


def answered(got: dict[int, float], key: int, seconds: float = 30.0) -> float:
    """Wait until an answer has come; return when."""
    until = time.monotonic() + seconds
    while key not in got and time.monotonic() < until:
        time.sleep(0.005)
    return got[key]


@pytest.mark.spark
@pytest.mark.parametrize("clause", ["HEARTBEAT FROM CLOCK", "IDLE AFTER 100 MILLISECONDS"])
def test_the_newest_row_is_answered(spark: Any, clause: str) -> None:
    got: dict[int, float] = {}
    with Session(spark, settings={"shards": 1}) as session:
        session.callback(
            "seen",
            lambda _, rows: (
                [got.setdefault(k, time.monotonic()) for k in rows["k"].to_pylist()] and None
            ),
        )
        session.sql(
            f"""CREATE SINK seen USING callback;
            CREATE STREAM s (k INT, t TIMESTAMP) USING memory TIMESTAMP BY t {clause};
            CREATE QUERY q INTO seen AS ISTREAM (
              SELECT k, COUNT(*) AS n FROM s [RANGE 10 SECONDS] GROUP BY k)"""
        )
        for key in range(4):
            session.push("s", [(key, datetime.now(UTC))])
            answered(got, key)
        assert session.pipeline.observation.stream("s").late == 0


@pytest.mark.spark
def test_promises_of_the_program_and_partitions(spark: Any) -> None:
    with Session(spark, settings={"shards": 2}) as session:
        query = session.sql(
            """CREATE STREAM s (k INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 100;
            CREATE SINK kept USING memory OPTIONS (changes 'intervals');
            CREATE QUERY q INTO kept AS SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k"""
        )
        session.push("s", [(0, 10)], partition=0)
        session.push("s", [(1, 3)], partition=1)
        session.await_idle()
        assert query.status()["heartbeat"] == 3 - 100
        session.heartbeat("s", 50, partition=0)
        session.heartbeat("s", 40, partition=1)
        session.push("s", [(0, 45), (0, 55)], partition=0)  # the first of them is late
        session.push("s", [(1, 45)], partition=1)
        session.await_idle()
        assert query.status()["heartbeat"] == 40
        progress = session.pipeline.manifest.progress["s"]
        assert (progress["accepted"], progress["late"]) == (4, 1)
        assert {p: told["late"] for p, told in progress["partitions"].items()} == {"0": 1, "1": 0}
        assert sorted(query.rows()["k"].to_pylist()) == [0, 1]
        session.finish("s")
        assert session.await_end(timeout=100)


@pytest.mark.spark
def test_a_promise_without_a_partition_is_of_all_of_them(spark: Any) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        query = session.sql(
            """CREATE STREAM a (k INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE SINK kept USING memory OPTIONS (changes 'intervals');
            CREATE QUERY q INTO kept AS SELECT COUNT(*) AS n FROM a [RANGE 100]"""
        )
        for partition in (0, 1):
            session.push("a", [(partition, 10)], partition)
        session.heartbeat("a", 12)
        session.push("a", [(3, 11), (3, 20)], partition=0)  # the first of them is late
        session.push("a", [(4, 20)], partition=1)
        session.await_idle()
        progress = session.pipeline.manifest.progress["a"]
        assert (progress["late"], sorted(progress["partitions"])) == (1, ["0", "1"])
        assert query.status()["heartbeat"] == 20
        session.finish("a")
        assert session.await_end(timeout=100)
        assert query.rows()["n"].to_pylist()[:2] == [2, 4]


@pytest.mark.spark
def test_time_moves_a_stream_that_spark_reads(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"k": 1, "t": 1}\n{"k": 2, "t": 9}\n')
    (folder / "b.json").write_text('{"k": 3, "t": 2}\n{"k": 4, "t": 8}\n')
    with Session(spark, settings={"shards": 1}) as session:
        query = session.sql(
            f"""CREATE STREAM s (k INT, t BIGINT) USING json OPTIONS (path '{folder}')
              TIMESTAMP BY t IDLE AFTER 200 MILLISECONDS;
            CREATE QUERY q AS ISTREAM (SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k)"""
        )
        until = time.monotonic() + 60
        while len(query.rows()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert sorted(query.rows()["k"].to_pylist()) == [1, 2, 3, 4]
        session.heartbeat("s", 1000)
        while query.status()["heartbeat"] < 1000 and time.monotonic() < until:
            time.sleep(0.05)
        assert query.status()["heartbeat"] == 1000
        assert session.pipeline.observation.stream("s").late == 0


@pytest.mark.spark
def test_a_fast_stream_is_held(spark: Any) -> None:
    with Session(spark, settings={"shards": 1, "batch.rows": 100}) as session:
        session.sql(
            """CREATE STREAM fast (k INT, t BIGINT) USING memory TIMESTAMP BY t STEP 50;
            CREATE STREAM slow (k INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE QUERY q AS SELECT fast.k FROM fast [RANGE 5] JOIN slow [RANGE 5]
              ON fast.k = slow.k"""
        )
        session.push("slow", [(0, 0)])
        for first in range(0, 1000, 100):
            session.push("fast", [(n % 3, n) for n in range(first, first + 100)])
        until = time.monotonic() + 60
        while not session.pipeline.held and time.monotonic() < until:
            time.sleep(0.02)
        assert session.pipeline.held == {"fast": "slow"}
        time.sleep(0.5)
        assert session.pipeline.observation.stream("fast").rows <= 200
        session.push("slow", [(0, 2000)])
        while session.pipeline.observation.stream("fast").rows < 1000 and time.monotonic() < until:
            time.sleep(0.02)
        assert session.pipeline.observation.stream("fast").rows == 1000
        for name in ("fast", "slow"):
            session.finish(name)
        assert session.await_end(timeout=100)


def test_decisions_of_nothing_change_nothing() -> None:
    before = {"s": Progress({"": Partition(max_time=5)}, max_time=5, floor=5)}
    after = Timeline(before, {"s": TimeRules()}, {"s": Decision()}).after([])
    assert after == before
    assert Progress().heartbeat == MIN_TIME
    assert Progress(final=True).heartbeat == INF


# ---- tables alone

TARIFFS = (
    "CREATE TABLE tariffs (name STRING, price BIGINT, since TIMESTAMP, until TIMESTAMP) USING csv "
    "OPTIONS (path 'tariffs.csv') VALID FROM since TO until;"
)
VALID = [
    ("night", 1, "05:00:00", "10:00:00"),
    ("all", 2, None, "20:00:00"),
    ("late", 3, "07:00:00", None),
]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("SELECT name, price FROM tariffs", [2, 3, 4, 5]),
        ("SELECT COUNT(*) AS n FROM tariffs", [3, 5, 7, 9]),
        ("SELECT DISTINCT a.name FROM tariffs a JOIN tariffs b ON a.price < b.price", [1, 2, 3, 4]),
        ("SELECT name FROM tariffs ORDER BY price DESC LIMIT 1", [1, 3, 3, 3]),
        ("ISTREAM (SELECT name FROM tariffs WHERE price > 1)", [1, 2, 2, 2]),
    ],
)
def test_a_query_over_tables_alone_follows_the_clock(text: str, changes: list[int]) -> None:
    for lifetime in ("direct", "negative"):
        rig = Rig(
            f"{TARIFFS} CREATE QUERY q AS {text}",
            tables={"tariffs": VALID},
            settings={"lifetime": lifetime},
        )
        for hour, count in zip((6, 8, 12, 21), changes, strict=True):
            rig.clock(f"{hour:02}:00:00")
            answers = rig._engine.answers
            assert len(answers.get("q log", answers.get("q stream"))) == count
            rig.assert_oracle()
        rig.end()
        rig.assert_oracle()


def test_a_view_of_tables_alone_shows_what_is_valid_now() -> None:
    rig = Rig(
        f"{TARIFFS} CREATE QUERY q AS SELECT name FROM tariffs; "
        f"CREATE QUERY n AS SELECT COUNT(*) AS n FROM tariffs",
        tables={"tariffs": VALID},
    )
    for hour, names in ((6, "night all"), (8, "night all late"), (12, "all late"), (21, "late")):
        rig.clock(f"{hour:02}:00:00")
        found = rig._engine.views["q view"]
        assert sorted(name for (name,) in found) == sorted(names.split())
        assert rig._engine.views["n view"] == [(len(names.split()),)]
        rig.assert_oracle()


def test_tables_whose_time_nothing_moves_are_refused() -> None:
    whole = TARIFFS.replace("TIMESTAMP", "BIGINT")
    with pytest.raises(QueryError, match="reads only tables that are valid by integers"):
        Rig(f"{whole} CREATE QUERY q AS SELECT name FROM tariffs", tables={"tariffs": []})
    with pytest.raises(QueryError, match="'_clock' is the stream that follows the clock"):
        Rig("CREATE STREAM _clock (t TIMESTAMP) USING memory TIMESTAMP BY t")


@pytest.mark.spark
def test_a_query_over_tables_alone_on_spark(spark: Any, tmp_path: Path) -> None:
    soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=15)
    file = tmp_path / "tariffs.csv"
    file.write_text(f"name,price,since,until\nold,1,,{soon}\nnew,2,{soon},\nover,3,,2001-01-01\n")
    script = f"""
        CREATE SINK out USING callback;
        {TARIFFS.replace("tariffs.csv", str(file))}
        CREATE QUERY q INTO out AS ISTREAM (SELECT name FROM tariffs)
    """
    for expected in (["new", "old", "over"], []):  # a restart goes on
        with Session(spark, checkpoint=tmp_path / "c", settings={"shards": 1}) as session:
            seen: list[str] = []
            session.callback("out", lambda _, rows, to=seen: to.extend(rows["name"].to_pylist()))
            session.sql(script)
            deadline = time.monotonic() + (60 if expected else 3)
            while (len(seen) < 3 or not expected) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert sorted(seen) == expected


def test_one_column_of_a_punctuation_needs_no_parentheses() -> None:
    for on in ("ON k", "ON (k)"):
        rig = Rig(
            f"CREATE STREAM s (k INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 9 "
            f"PUNCTUATION WHEN t = 5 {on} ON ERROR FAIL;"
            f"CREATE QUERY q AS SELECT k FROM s [RANGE 2]"
        )
        rig.feed("s", [(1, 4), (1, 5), (1, 6), (2, 6)])
        assert rig.late("s") == [(1, 6)]
        rig.end()
        rig.assert_oracle()


@pytest.mark.spark
def test_waiting_for_a_stream_that_never_stops_ends(spark: Any) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        session.sql(
            "CREATE STREAM s (t TIMESTAMP, value BIGINT) USING rate OPTIONS (rowsPerSecond '5') "
            "TIMESTAMP BY t; CREATE QUERY q AS SELECT value FROM s [RANGE 1 SECOND]"
        )
        with pytest.raises(TimeoutError, match=r"within 0\.001 s"):
            session.await_idle(timeout=0.001)
        assert session.await_idle(timeout=60) is not None
