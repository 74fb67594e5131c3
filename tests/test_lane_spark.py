"""Important rows answered beside the batches: both lanes together are exactly the oracle's bag."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lane_runs import ALARMS, COLUMNS, PAIRS, STREAMS, LaneRun, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TABLE = [(0, 10), (1, 11), (2, 12)]
BY_LANE = {
    "pairs": PAIRS,
    "three": "SELECT a.x, r.x AS z, s.x AS w FROM a [RANGE 9], r [RANGE 9], s [RANGE 9] "
    "WHERE a.k = r.k AND r.k = s.k",
    "chain": "SELECT a.x, r.x AS z, s.x AS w FROM a [RANGE 9], r [RANGE 20], s [RANGE 20] "
    "WHERE a.k = r.k AND r.x < s.x AND s.k = a.k",
    "some": "SELECT k, x FROM a [RANGE 4] WHERE k > 0",
    "united": "SELECT k, x FROM a [RANGE 4] UNION ALL SELECT k, x FROM r [RANGE 5]",
    "itself": "SELECT o.x, n.x AS z FROM a [RANGE 9] AS o JOIN a [RANGE 5] AS n ON o.k = n.k",
    "named": "SELECT a.x, d.label FROM a [RANGE 4] JOIN d ON a.k = d.k",
    "births": "ISTREAM (SELECT a.x, a.t, r.t AS u FROM a [RANGE 9] JOIN r [RANGE 9] ON a.k = r.k)",
    "every": "ISTREAM (SELECT * FROM b [NOW])",
    "alarms": ALARMS,
}
BY_BATCH = {"counts": "SELECT k, COUNT(*) AS n FROM a [RANGE 9] GROUP BY k"}


def declared(folder: Path) -> str:
    (folder / "d.csv").write_text("k,label\n" + "".join(f"{k},{v}\n" for k, v in TABLE))
    return (
        f"{STREAMS} CREATE TABLE d (k BIGINT, label BIGINT) USING csv "
        f"OPTIONS (path '{folder}/d.csv');"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"shards": 1, "join.multiway": "always"},
        {"shards": 3, "join.multiway": "never", "lane.rows": 2},
        {"shards": 2, "lifetime": "negative"},
        {"shards": 1, "lane": False},
    ],
    ids=["multiway", "cascade", "negative", "off"],
)
def test_both_lanes_together_are_exact(
    spark: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    queries = BY_LANE | BY_BATCH
    with LaneRun(spark, queries, declared(tmp_path), tables={"d": TABLE}, **settings) as run:
        now = run.play("before", 3)
        run.start() if run.session.config.lane else run.session.start()
        for round in range(3):
            now = run.play(f"round {round}", 5, now)
            if run.session.config.lane:
                run.ready()
                # what the partners have brought is committed: these meet it
                for name in ("a", "b"):
                    run.alarm(name, [run.row(k, now, 1 + k) for k in range(3)])
        run.end()
        run.check()
        lanes = {name: run.by_lane(name) for name in queries}
        if run.session.config.lane:
            assert all(lanes[name] > 0 for name in BY_LANE), lanes
            assert all(lanes[name] == 0 for name in BY_BATCH)
            assert run.lane.status().answered > 0
        else:
            assert not any(lanes.values())
            assert run.lane.journal.last == 0


def test_partitions_that_wake_or_are_new_wait_for_the_batch(spark: Any) -> None:
    """Rows of several partitions, with heartbeats by the program; some partitions fall silent."""
    streams = STREAMS.replace(
        "SLACK 2 PRIORITY p", "SLACK 2 IDLE AFTER 300 MILLISECONDS PRIORITY p"
    )
    with LaneRun(spark, {"pairs": PAIRS, "itself": BY_LANE["itself"]}, streams, shards=2) as run:
        dice = random.Random("partitions")
        run.push("r", [run.row(k, 5) for k in range(4)])
        run.push("a", [run.row(1, 5)], partition=0)
        run.start()
        now = 10
        for step in range(25):
            run.push("r", [run.row(dice.randint(0, 3), now) for _ in range(3)])
            for partition in dice.sample(range(4), 2):
                time_of = now - partition
                row = run.row(dice.randint(0, 3), time_of, dice.choice([0, 1, 5]))
                run.push("a", [row], partition=partition)
            if step % 5 == 3:
                run.session.heartbeat("a", now - 2)
                run.session.heartbeat("r", now + 1)
            now += dice.choice([1, 2, 2])
            time.sleep(dice.choice([0, 0.02, 0.1, 0.4]))
        run.end()
        run.check()
        assert run.by_lane("pairs") > 0


def test_a_clock_goes_on_beside_the_lane(spark: Any) -> None:
    columns = "(k BIGINT, x BIGINT, p BIGINT, t TIMESTAMP)"
    streams = f"""
        CREATE SINK late USING callback;
        CREATE STREAM a {columns} USING memory TIMESTAMP BY t HEARTBEAT FROM CLOCK
          LAG 150 MILLISECONDS PRIORITY p LATE INTO late;
        CREATE STREAM r {columns} USING memory TIMESTAMP BY t HEARTBEAT FROM CLOCK
          LAG 50 MILLISECONDS LATE INTO late;
    """
    text = "SELECT a.x, r.x AS z FROM a [RANGE 1 SECOND] JOIN r [RANGE 1 SECOND] ON a.k = r.k"
    with LaneRun(spark, {"pairs": text, "itself": SELF_BY_CLOCK}, streams, shards=1) as run:
        dice = random.Random("clock")

        def stamped(stream: str, level: int, ago: float) -> None:
            at = int((time.time() - ago) * 1e6)
            run.ids += 1
            row = dice.randint(0, 2), run.ids, level
            run.rows.setdefault(stream, []).append(((*row, at), at))
            stamp = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)
            run.session.push(stream, [(*row, stamp)])

        stamped("r", 0, 0)
        stamped("a", 0, 0)
        run.start()
        for step in range(600):
            if step > 30 and run.by_lane("pairs"):
                break
            stamped("r", 0, dice.choice([0, 0.02]))
            stamped("a", dice.choice([0, 1, 2]), dice.choice([0, 0.1, 0.2, 0.4]))
            time.sleep(dice.choice([0.01, 0.05, 0.2]))
        run.end()
        run.late = [(*row[:3], int(row[3].timestamp() * 1e6 + 0.5)) for row in run.late]
        run.check()
        assert run.by_lane("pairs") > 0


SELF_BY_CLOCK = (
    "SELECT o.x, n.x AS z FROM a [RANGE 1 SECOND] AS o JOIN a [RANGE 2 SECONDS] AS n ON o.k = n.k"
)


def test_a_paced_file_is_followed(spark: Any, tmp_path: Path) -> None:
    """The lane reads the same file by the same clock: it answers what no batch has taken."""
    dice = random.Random("file")
    rows = [(dice.randint(0, 3), i, dice.choice([0, 2]), 10 + i // 4) for i in range(1000)]
    text = "k,x,p,t\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    (tmp_path / "a.csv").write_text(text)
    lines = [line for line in STREAMS.splitlines() if not line.startswith("CREATE STREAM a ")]

    def paced(rate: int) -> str:
        paced = (
            f"CREATE STREAM a {COLUMNS} USING replay OPTIONS (path '{tmp_path}/a.csv', "
            f"rate '{rate}') TIMESTAMP BY t PRIORITY p LATE INTO late;"
        )
        return "\n".join([*lines, paced])

    with LaneRun(spark, {"pairs": PAIRS}, paced(8), tmp_path / "c", shards=1) as run:
        run.rows["a"] = [(row, row[-1]) for row in rows]
        run.push("r", [run.row(k, t) for t in range(10, 261, 10) for k in range(4)])
        run.session.start()
        wait_for(lambda: run.by_lane("pairs") > 0)
    with LaneRun(spark, {"pairs": PAIRS}, paced(10_000), tmp_path / "c", run, shards=1) as run:
        run.session.start()
        run.end()
        run.check()


def test_queries_come_and_go_while_alarms_come(spark: Any) -> None:
    queries = {"pairs": PAIRS, "going": BY_LANE["itself"], "resting": ALARMS}
    with LaneRun(spark, queries, shards=2) as run:
        now = run.play("before", 3)
        run.start()
        now = run.play("first", 4, now)
        run.session.sql("DROP QUERY going")
        given = len(run.answers("going"))
        run.session.query("resting").pause()
        rested = len(run.answers("resting"))
        run.create("later", PAIRS)
        run.session.start()
        now = run.play("second", 4, now)
        assert len(run.answers("going")) == given
        assert len(run.answers("resting")) == rested
        run.got["resting"].clear()
        run.got["going"].clear()
        run.session.query("resting").resume()
        run.create("going", BY_LANE["itself"])
        run.session.start()
        now = run.play("third", 4, now)
        run.session.sql("DROP QUERY later")
        run.create("later", BY_LANE["some"])  # another one under the same name, at once
        run.got["later"].clear()
        run.session.start()
        now = run.play("fourth", 4, now)
        run.session.await_idle(100)
        run.ready()
        run.push("a", [run.row(k, now, 3) for k in range(4)])
        run.end()
        run.check("pairs")
        for name in ("going", "resting", "later"):
            since = run.session.query(name).status()["since"]
            assert since is not None
            run.check(name, since=since)
