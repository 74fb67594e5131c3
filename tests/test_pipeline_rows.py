"""What happens to single rows: late, bad and idle ones; every kind of sink, and Spark's formats."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.errors import DataError
from penstock.model import INF
from penstock.reference import Inputs, accept, relation, snapshot_at, to_intervals
from penstock.session import Session
from penstock.sinks import read_committed
from tests.clock import Clock
from tests.comparison import check_answer, interval_rows

pytestmark = pytest.mark.spark

KEPT = "CREATE SINK kept USING memory OPTIONS (changes 'intervals');"


@pytest.mark.parametrize("batch", [2, 100])
def test_late_and_bad_rows_are_set_aside_and_counted(
    spark: Any, tmp_path: Path, batch: int
) -> None:
    lines = ["a,1,10", "b,2,12", "a,oops,13", "c,3,9", "a,4,11", "b", "d,5,x", "d,5,20", "e,6,17"]
    (tmp_path / "s.csv").write_text("k,x,t\n" + "\n".join(lines) + "\n")
    good = [(("a", 1, 10), 10), (("b", 2, 12), 12), (("c", 3, 9), 9), (("a", 4, 11), 11)]
    good += [(("d", 5, 20), 20), (("e", 6, 17), 17)]
    accepted, late = accept(good, 2)
    assert [values for values, _ in late] == [("c", 3, 9), ("e", 6, 17)]
    with Session(spark, settings={"batch.rows": batch, "shards": 1}) as session:
        query = session.sql(
            f"""
            CREATE SINK late USING jsonl OPTIONS (path '{tmp_path / "late"}');
            CREATE SINK bad USING jsonl OPTIONS (path '{tmp_path / "bad"}');
            {KEPT}
            CREATE STREAM s (k STRING, x INT, t BIGINT) USING replay
              OPTIONS (path '{tmp_path / "s.csv"}') TIMESTAMP BY t SLACK 2 LATE INTO late
              ON ERROR DEADLETTER bad;
            CREATE QUERY sums INTO kept AS SELECT SUM(x) AS n FROM s [RANGE 5] WHERE x <> 2;
            """
        )
        assert session.await_end(timeout=100)
        check_answer(query.definition.plan, interval_rows(query.rows()), Inputs({"s": accepted}))
        progress = session.pipeline.manifest.progress["s"]
    assert progress["accepted"] + progress["late"] + progress["rejected"] == len(lines)
    assert (progress["late"], progress["rejected"]) == (2, 3)
    aside = [tuple(row.values()) for row in read_committed(tmp_path / "late")]
    assert aside == [values for values, _ in late]
    dead = list(read_committed(tmp_path / "bad"))
    assert sorted(row["raw"] for row in dead) == ["a,oops,13", "b", "d,5,x"]
    assert [row["position"] for row in dead] == [2, 5, 6]
    assert all(row["reason"] for row in dead)


def test_answers_do_not_depend_on_the_memory_of_tasks(spark: Any, tmp_path: Path) -> None:
    """Rows that Spark parses, in files of several lines, through a join and a second exchange."""
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(3):
        lines = [
            f"{n % 7},{'x' if n % 50 == 9 else n},{n + (-40 if n % 30 == 29 else n % 5)}"
            for n in range(file * 100, file * 100 + 300)
        ]
        (folder / f"{file}.csv").write_text("k,x,t\n" + "\n".join(lines) + "\n")
    found = []
    for memory in (1, 2_000, 1 << 26):
        out = tmp_path / str(memory)
        with Session(spark, settings={"stage.memory": memory, "shards": 2}) as session:
            session.sql(
                f"""
                CREATE SINK late USING jsonl OPTIONS (path '{out / "late"}');
                CREATE SINK bad USING jsonl OPTIONS (path '{out / "bad"}');
                CREATE SINK sums USING jsonl OPTIONS (path '{out / "sums"}');
                CREATE STREAM s (k INT, x INT, t BIGINT) USING csv
                  OPTIONS (path '{folder}', header 'true', encoding 'UTF-8')
                  TIMESTAMP BY t SLACK 9 LATE INTO late ON ERROR DEADLETTER bad;
                CREATE QUERY q INTO sums AS SELECT a.x % 3 AS g, COUNT(*) AS n, SUM(b.x) AS total
                  FROM s [RANGE 20] AS a JOIN s [RANGE 20] AS b ON a.k = b.k GROUP BY a.x % 3;
                """
            )
            session.await_idle()
        names = ("late", "bad", "sums")
        found.append([sorted(map(repr, read_committed(out / name))) for name in names])
    assert all(map(len, found[0]))
    assert found[0] == found[1] == found[2]


def test_a_bad_row_stops_the_run_with_one_sentence(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("k,x,t\na,1,1\nb,zwei,2\n")
    with Session(spark, settings={"shards": 1}) as session:
        session.sql(
            f"CREATE STREAM s (k STRING, x INT, t BIGINT) USING replay "
            f"OPTIONS (path '{tmp_path / 's.csv'}') TIMESTAMP BY t;"
            f"CREATE QUERY q AS SELECT * FROM s [NOW]"
        )
        with pytest.raises(DataError) as caught:
            session.await_end(timeout=100)
        text = str(caught.value)
        place = f"file {tmp_path / 's.csv'}, line 3: the column 'x' must be INT"
        assert f"a row of stream s must fit its declared columns: {place}" in text
        assert "the row is 'b,zwei,2'" in text
        assert "ON ERROR DEADLETTER" in text
        assert "Traceback" not in text
        assert "org.apache" not in text
        assert session.query("q").status()["state"] == "failed"


@pytest.mark.parametrize(
    "text", ["SELECT 1 DIV x AS y FROM s [NOW]", "SELECT x FROM s [NOW] WHERE 1 DIV x > 0"]
)
def test_an_expression_that_fails_names_the_query(spark: Any, text: str) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        session.sql(
            f"CREATE STREAM s (x INT, t BIGINT) USING memory TIMESTAMP BY t;"
            f"CREATE QUERY good AS SELECT x FROM s [NOW];"
            f"CREATE QUERY bad AS {text}"
        )
        session.push("s", [(0, 1), (1, 2)])
        session.finish("s")
        with pytest.raises(DataError, match=r"divide by zero; .*\(query bad\)$"):
            session.await_end(timeout=100)


def test_an_idle_stream_is_passed_over(spark: Any, clock: Clock) -> None:
    with Session(spark, settings={"shards": 2}) as session:
        query = session.sql(
            f"""
            CREATE STREAM busy (x INT, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE STREAM quiet (x INT, t BIGINT) USING memory TIMESTAMP BY t
              IDLE AFTER 200 SECONDS;
            CREATE STREAM mute (x INT, t BIGINT) USING memory TIMESTAMP BY t;
            {KEPT}
            CREATE QUERY other AS SELECT * FROM mute [NOW];
            CREATE QUERY both INTO kept AS SELECT x FROM busy [RANGE 2] UNION
              SELECT x FROM quiet [RANGE 2];
            """
        )
        session.push("quiet", [(100, 1)])
        session.push("busy", [(1, 1), (2, 5)])
        session.await_idle()
        assert query.status()["heartbeat"] == 1
        clock.move_on(200)
        session.push("busy", [(3, 10)])
        session.await_idle()
        assert query.status()["heartbeat"] == 10
        found = interval_rows(query.rows())
        assert sorted(found, key=str) == [((1,), 1, 3), ((100,), 1, 3), ((2,), 5, 7)]
        session.push("quiet", [(200, 9), (300, 10), (400, 12)])  # the first is late now
        session.await_idle()
        assert session.pipeline.manifest.progress["quiet"]["late"] == 1
        for name in ("busy", "quiet", "mute"):
            session.finish(name)
        assert session.await_end(timeout=100)
        elements = {
            "busy": [((1, 1), 1), ((2, 5), 5), ((3, 10), 10)],
            "quiet": [((100, 1), 1), ((300, 10), 10), ((400, 12), 12)],
        }
        check_answer(query.definition.plan, interval_rows(query.rows()), Inputs(elements))


def test_intervals_log_and_view_describe_one_relation(spark: Any, tmp_path: Path) -> None:
    calls: list[tuple[int, pa.Table]] = []
    with Session(spark, settings={"shards": 2}) as session:
        session.callback("called", lambda batch, rows: calls.append((batch, rows)))
        session.sql(
            f"""
            CREATE STREAM s (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 1;
            CREATE SINK intervals USING memory OPTIONS (changes 'intervals');
            CREATE SINK log USING memory OPTIONS (changes 'log');
            CREATE SINK view USING memory OPTIONS (changes 'view');
            CREATE SINK file USING csv OPTIONS (path '{tmp_path / "view"}', changes 'view');
            CREATE SINK orc USING orc OPTIONS (path '{tmp_path / "orc"}');
            CREATE SINK called USING callback OPTIONS (changes 'log');
            CREATE VIEW sums AS SELECT k, SUM(x) AS n FROM s [RANGE 4] GROUP BY k;
            """
        )
        sinks = ("intervals", "log", "view", "file", "orc", "called")
        for sink in sinks:
            session.sql(f"CREATE QUERY to_{sink} INTO {sink} AS SELECT * FROM sums")
        latest = session.sql("SELECT * FROM sums")
        elements: list[Any] = []
        plan = session.query("to_intervals").definition.plan
        for first in (0, 7, 14):
            rows = [("abc"[t % 3], t, t) for t in range(first, first + 7)]
            elements += [(row, row[-1]) for row in rows]
            session.push("s", rows)
            session.await_idle()
            steps = relation(plan, Inputs({"s": elements}))
            as_of = session.query("to_view").sink.as_of
            assert as_of == first + 7 - 1 - 1 - 1  # below the heartbeat
            snapshot = snapshot_at(steps, as_of)
            assert bag(session.query("to_view").rows()) == snapshot
            assert Counter(tuple(r.values()) for r in read_committed(tmp_path / "view")) == snapshot
            assert Counter(map(tuple, latest.latest().collect())) == snapshot
        session.finish("s")
        assert session.await_end(timeout=200)
        steps = relation(plan, Inputs({"s": elements}))
        check_answer(
            plan, interval_rows(session.query("to_intervals").rows()), Inputs({"s": elements})
        )
        log = session.query("to_log").rows()
        assert replayed(log) == to_intervals(steps)
        assert replayed(pa.concat_tables([rows for _, rows in calls])) == to_intervals(steps)
        assert len({batch for batch, _ in calls}) == len(calls)
        written = spark.read.orc(str(tmp_path / "orc")).drop("_batch").toArrow()
        check_answer(plan, interval_rows(written), Inputs({"s": elements}))


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def replayed(log: pa.Table) -> list[Any]:
    """Return the intervals that a change log describes."""
    state: Counter[Any] = Counter()
    steps = []
    rows = [tuple(row.values()) for row in log.to_pylist()]
    for t in sorted({row[-2] for row in rows}):
        state.update(Counter({row[:-2]: row[-1] for row in rows if row[-2] == t}))
        steps.append((t, +state))
    return to_intervals(steps)


START = datetime(2024, 3, 1)


def test_folders_of_files_until_nothing_is_left(spark: Any, tmp_path: Path) -> None:
    """Parquet, csv and json files in three folders, two files each: as ``--once`` takes them."""
    for name in ("p", "c", "j"):
        (tmp_path / name).mkdir()

    def write(part: int) -> None:
        rows = [
            (f"k{i % 3}", i, START + timedelta(seconds=i)) for i in range(part * 10, part * 10 + 10)
        ]
        columns = [list(column) for column in zip(*rows, strict=True)]
        table = pa.table(columns, names=["k", "x", "t"])
        pyarrow.parquet.write_table(table, tmp_path / "p" / f"{part}.parquet")
        text = "".join(f"{k},{x},{t:%Y-%m-%d %H:%M:%S}\n" for k, x, t in rows)
        (tmp_path / "c" / f"{part}.csv").write_text("k,x,t\n" + text)
        lines = (json.dumps({"k": k, "x": x, "t": t.isoformat()}) for k, x, t in rows)
        (tmp_path / "j" / f"{part}.json").write_text("\n".join(lines) + "\n")

    write(0)
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(KEPT)
        for name, format in (("p", "parquet"), ("c", "csv"), ("j", "json")):
            session.sql(
                f"CREATE STREAM {name} (k STRING, x BIGINT, t TIMESTAMP) USING {format} "
                f"OPTIONS (path '{tmp_path / name}') TIMESTAMP BY t"
            )
        query = session.sql(
            "CREATE QUERY joined INTO kept AS SELECT p.k, p.x, c.x AS y, j.x AS z "
            "FROM p [RANGE 3 SECONDS], c [RANGE 3 SECONDS], j [ROWS 2] "
            "WHERE p.k = c.k AND c.x = j.x"
        )
        session.await_idle()
        first = query.rows().num_rows
        assert first > 0
        time.sleep(1.1)  # files are ordered by their time of modification
        write(1)
        session.await_idle()
        assert query.rows().num_rows > first
        progress = session.pipeline.manifest.progress
        assert [progress[name]["accepted"] for name in "pcj"] == [20, 20, 20]
        shown, heartbeat = query.status()["heartbeat"], progress["p"]["floor"]
    assert shown == START.replace(tzinfo=UTC) + timedelta(seconds=19)
    origin = round((START - datetime(1970, 1, 1)).total_seconds() * 1e6)
    elements = [((f"k{i % 3}", i, origin + i * 10**6), origin + i * 10**6) for i in range(20)]
    assert heartbeat == elements[-1][1]
    plan = query.definition.plan
    expected = to_intervals(relation(plan, Inputs(dict.fromkeys("pcj", elements))))
    final = [row for row in expected if row[1] < heartbeat]
    found = interval_rows(query.rows())
    # rows that are still open have not been told yet
    assert Counter(row for row in final if row[2] < min(heartbeat, INF)) <= Counter(found)
    assert {(v, s) for v, s, _ in found} <= {(v, s) for v, s, _ in final}
