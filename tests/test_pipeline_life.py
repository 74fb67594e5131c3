"""Queries that come and go while the stream runs, and sessions that stop and go on."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DataError, StateError
from penstock.model import INF
from penstock.reference import Inputs, accept, stream
from penstock.session import QueryHandle, Session
from penstock.sinks import read_committed
from penstock.spark.sources import _register
from tests.comparison import check_answer, interval_rows
from tests.world import make_world

pytestmark = pytest.mark.spark

PUSHED = """
CREATE STREAM m (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 2;
CREATE STREAM n (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE TABLE d (k STRING, label STRING) USING csv OPTIONS (path '{table}');
CREATE SINK kept USING memory OPTIONS (changes 'intervals');
"""
TABLE = [("a", "alpha"), ("b", "beta")]


class Pushed:
    """Pushes rows to memory streams and remembers them."""

    def __init__(self, folder: Path) -> None:
        self.rows: dict[str, list[Any]] = {"m": [], "n": []}
        self.dice = random.Random("pushed")
        table = folder / "d.csv"
        table.write_text("k,label\n" + "".join(f"{k},{v}\n" for k, v in TABLE))
        self.script = PUSHED.format(table=table)

    def push(self, session: Session, name: str, first: int, last: int) -> None:
        """Push rows with times from first to last, a little out of order, and wait for them."""
        slack = 2 if name == "m" else 0
        rows = []
        for t in range(first, last):
            t = max(first, t - self.dice.randint(0, slack))
            rows.append((self.dice.choice("abc"), self.dice.randint(0, 3), t))
        self.rows[name] += [(row, row[-1]) for row in rows]
        session.push(name, rows)
        session.await_idle()

    def inputs(self, since: int | None = None) -> Inputs:
        """What the oracle sees, from a time on."""
        kept = {}
        for name, slack in (("m", 2), ("n", 0)):
            elements = accept(self.rows[name], slack)[0]
            kept[name] = [e for e in elements if since is None or e[1] >= since]
        return Inputs(kept, {"d": TABLE})

    def check(self, handle: QueryHandle, since: int | None = None) -> None:
        check_answer(handle.definition.plan, interval_rows(handle.rows()), self.inputs(since))


def test_queries_come_and_go(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(
            pushed.script
            + """
            CREATE QUERY totals INTO kept AS SELECT k, SUM(x) AS s FROM m [RANGE 6] GROUP BY k;
            CREATE QUERY labels INTO kept AS SELECT x, label FROM m [ROWS 3] JOIN d ON m.k = d.k;
            CREATE QUERY births INTO kept AS ISTREAM (SELECT k, COUNT(*) AS c FROM m [RANGE 4]
              GROUP BY k);
            CREATE VIEW sums AS SELECT k, x, SUM(x) AS s FROM m [RANGE 9] GROUP BY k, x;
            CREATE QUERY of_a INTO kept AS SELECT x, s FROM sums WHERE k = 'a';
            """
        )
        pushed.push(session, "m", 0, 12)
        totals, labels, births, of_a = session.handles()
        assert totals.status()["since"] is None
        assert totals.status()["state"] == "running"

        # added: on the same stream, and on a stream and table that are read already or not at all
        added = session.sql(
            "CREATE QUERY added INTO kept AS SELECT k, SUM(x) AS s FROM m [RANGE 6] GROUP BY k"
        )
        fresh = session.sql(
            "CREATE QUERY fresh INTO kept AS SELECT x, label FROM n [ROWS 2] JOIN d ON n.k = d.k"
        )
        # alone, the condition of of_a goes below the aggregate; the plan stays so beside of_b
        of_b = session.sql("CREATE QUERY of_b INTO kept AS SELECT x, s FROM sums WHERE k = 'b'")
        assert len(session.pipeline.spark_queries()) == 1
        pushed.push(session, "n", 0, 8)
        pushed.push(session, "m", 12, 20)
        since = added.status()["since"]
        assert since == max(t for _, t in pushed.rows["m"] if t < 12) + 1
        assert fresh.status()["since"] is None

        # paused: nothing is delivered, and what was open is forgotten
        session.sql("PAUSE QUERY births")
        seen = births.status()["heartbeat"]
        assert births.status()["state"] == "paused"
        delivered = births.rows().num_rows
        pushed.push(session, "m", 20, 26)
        assert births.rows().num_rows == delivered
        session.sql("RESUME QUERY births")
        pushed.push(session, "m", 26, 34)
        again = births.status()["since"]
        assert 20 < again <= 26 + 2

        # dropped, and made again under the same name with another text
        session.sql("DROP QUERY labels")
        labels = session.sql("CREATE QUERY labels INTO kept AS SELECT k FROM m [ROWS 1]")
        pushed.push(session, "m", 34, 40)

        for name in ("m", "n"):
            session.finish(name)
        assert session.await_end(timeout=200)
        pushed.check(totals)
        pushed.check(added, since)
        pushed.check(fresh)
        pushed.check(of_a)
        pushed.check(of_b, since)
        pushed.check(labels, labels.status()["since"])
        plan = births.definition.plan
        before = {k: c for k, c in stream(plan, pushed.inputs()).items() if k[0] < seen}
        expected = Counter(before) + stream(plan, pushed.inputs(again))
        found = Counter((t, values) for values, t, _ in interval_rows(births.rows()))
        assert found == expected


def test_streams_are_added_in_the_middle_of_a_batch(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    elements: dict[str, list[Any]] = {}
    with Session(spark, settings={"shards": 2}) as session:
        session.sql(pushed.script)
        for number in range(4):
            session.sql(
                f"CREATE STREAM more{number} (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;"
                f"CREATE QUERY sum{number} INTO kept AS "
                f"SELECT SUM(x) AS s FROM more{number} [ROWS 3]"
            )
            for name in [f"more{i}" for i in range(number + 1)]:
                before = elements.setdefault(name, [])
                rows = [(len(before) + i, len(before) + i) for i in range(5)]
                session.push(name, rows)
                before += [(row, row[-1]) for row in rows]
            time.sleep(0.3 * number)  # not await_idle: a batch may be under way
        session.query("sum0").resume()  # not paused: nothing happens
        for name in elements:
            session.finish(name)
        assert session.await_end(timeout=200)
        for handle in session.handles():
            assert handle.status()["since"] is None
            check_answer(handle.definition.plan, interval_rows(handle.rows()), Inputs(elements))


def test_what_spark_was_writing_when_it_was_stopped_is_no_used_folder(
    spark: Any, tmp_path: Path
) -> None:
    """Stopped in the middle of its first offsets, for a stream that was added, or killed."""
    with Session(spark, checkpoint=tmp_path / "cp", autostart=False) as session:
        session.sql(
            "CREATE STREAM m (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;"
            "CREATE SINK kept USING memory; CREATE QUERY q INTO kept AS SELECT x FROM m [NOW]"
        )
        offsets = tmp_path / "cp/spark/offsets"
        offsets.mkdir(parents=True)
        for name in (".0.1c0b9f2e.tmp", "..0.1c0b9f2e.tmp.crc"):
            (offsets / name).write_bytes(b"v2")
        session.push("m", [(7, 1)])
        session.start()
        session.finish("m")
        assert session.await_end(timeout=60)
        assert interval_rows(session.query("q").rows()) == [((7,), 1, 2)]


def test_pushed_rows_stay_until_spark_cannot_ask_for_them_again(spark: Any, tmp_path: Path) -> None:
    """Spark may replay its first batch, even when that has its manifest."""
    settings = {"shards": 1}
    with Session(spark, checkpoint=tmp_path / "cp", settings=settings, autostart=False) as session:
        session.sql(
            "CREATE STREAM m (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q AS SELECT SUM(x) AS s FROM m [ROWS 3]"
        )
        for t in range(3):
            session.push("m", [(t, t)])
        session.start()
        session.await_idle()
        kept = {file.name[:10] for file in (tmp_path / "cp/spool/m").glob("*.arrow")}
        assert kept == {"0000000000", "0000000001", "0000000002"}


def test_all_queries_may_be_paused_or_dropped(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    with Session(spark, settings={"shards": 1}) as session:
        only = session.sql(pushed.script + "CREATE QUERY only INTO kept AS SELECT * FROM m [NOW]")
        pushed.push(session, "m", 0, 5)
        only.pause()
        pushed.push(session, "m", 5, 10)
        only.stop()
        pushed.push(session, "m", 10, 15)
        other = session.sql("CREATE QUERY other INTO kept AS SELECT k, x FROM m [RANGE 2]")
        pushed.push(session, "m", 15, 20)
        session.finish("m")
        assert session.await_end(timeout=100)
        pushed.check(other, other.status()["since"])
        assert session.pipeline.manifest.progress["m"]["accepted"] == len(
            pushed.inputs().streams["m"]
        )


def test_late_rows_of_a_stream_that_was_created_again(spark: Any, tmp_path: Path) -> None:
    """They go where the stream that there is now says, not where the dropped one said."""
    stream = "CREATE STREAM M (x BIGINT, t BIGINT) USING memory TIMESTAMP BY t LATE INTO {};"
    query = "CREATE QUERY q AS SELECT x FROM m [NOW];"
    with Session(spark, settings={"shards": 1}) as session:
        for sink in ("before", "after"):
            path = tmp_path / sink
            session.sql(f"CREATE SINK {sink} USING jsonl OPTIONS (path '{path}');")
            session.sql(stream.format(sink) + query)
            session.push("m", [(1, 10 if sink == "before" else 30), (2, 3)])
            session.await_idle()
            session.sql("DROP QUERY q; DROP STREAM m;")
    for sink in ("before", "after"):
        lines = [path.read_text() for path in sorted((tmp_path / sink).glob("*.jsonl"))]
        assert [json.loads(line) for line in lines] == [{"x": 2, "t": 3}], sink


def test_pushed_rows_and_queries_survive_a_restart(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    folder = tmp_path / "checkpoint"
    sink = f"CREATE SINK files USING jsonl OPTIONS (path '{tmp_path / 'out'}');"
    totals = "CREATE QUERY totals INTO files AS SELECT k, SUM(x) AS s FROM m [RANGE 6] GROUP BY k;"
    pairs = """CREATE QUERY pairs INTO kept AS
               SELECT m.k, n.x FROM m [RANGE 5] JOIN n [RANGE 5] ON m.k = n.k;"""
    with Session(spark, checkpoint=folder, settings={"shards": 2}) as session:
        session.sql(pushed.script + sink + totals + pairs)
        pushed.push(session, "m", 0, 10)
        pushed.push(session, "n", 0, 10)
    with Session(spark, checkpoint=folder, settings={"panes": False}) as session:
        session.sql(pushed.script + sink + totals + pairs)
        session.push("m", [("a", 1, 10)])
        pushed.rows["m"].append((("a", 1, 10), 10))
        session.await_idle()
    # the plan of a query is the same when others are gone, and must be: it finds its state by it
    with Session(spark, checkpoint=folder, settings={"rules": False}) as session:
        with pytest.raises(StateError, match="runs query 'pairs', which is not declared any more"):
            session.sql(pushed.script + sink + totals)
        session.sql("DROP QUERY pairs")
        with pytest.raises(StateError, match="query 'totals' must be planned as the checkpoint"):
            session.start()
    # a stream that nobody reads any more does no harm
    with Session(spark, checkpoint=folder, allow_change=True) as session:
        session.sql(pushed.script + sink + totals)
        pushed.push(session, "m", 10, 20)
        assert session.query("totals").status()["since"] is None
    with Session(spark, checkpoint=folder) as session:
        session.sql(pushed.script + sink + totals)
        pushed.push(session, "m", 20, 25)
        session.finish("m")
        assert session.await_end(timeout=100)
        plan = session.query("totals").definition.plan
        assert session.query("totals").status()["state"] == "ended"
    check_answer(plan, committed(tmp_path / "out"), pushed.inputs())


FILES = """
CREATE SINK files USING jsonl OPTIONS (path '{out}');
CREATE SINK calls USING callback;
CREATE QUERY rows INTO files AS SELECT * FROM s [ROWS 3];
CREATE QUERY pairs INTO files AS SELECT s.x, r.x AS z FROM s [RANGE 5] JOIN r [ROWS 4] ON s.k = r.k;
CREATE QUERY births INTO calls AS ISTREAM (SELECT k, COUNT(*) AS n FROM s [RANGE 5] GROUP BY k);
"""


def test_a_stopped_session_goes_on_exactly(spark: Any, tmp_path: Path) -> None:
    world = make_world(tmp_path, rows=60)
    script = world.declarations() + FILES.format(out=tmp_path / "out")
    folder = tmp_path / "checkpoint"
    settings = {"batch.rows": 10, "shards": 2}
    calls: list[tuple[int, Any]] = []

    def open_session(**more: Any) -> Session:
        session = Session(spark, checkpoint=folder, settings=settings | more)
        session.callback("calls", lambda batch, rows: calls.append((batch, rows)))
        return session

    with open_session() as session:
        session.sql(script)
        wait_for(lambda: session.pipeline.manifest.batch >= 1)
        with pytest.raises(StateError, match=r"used by one process at a time.* held by process"):
            open_session().sql(script)
        session.stop()
        reached = session.pipeline.manifest.batch
        session.start()  # the same session goes on
        wait_for(lambda: session.pipeline.manifest.batch > reached)
    last = session.pipeline.manifest.batch
    assert last < 6, "the session must have been stopped in the middle"

    with (
        open_session() as session,
        pytest.raises(StateError, match="query 'rows' must be the one that the checkpoint"),
    ):
        session.sql(script.replace("[ROWS 3]", "[ROWS 4]"))
    with (
        open_session(shards=3) as session,
        pytest.raises(StateError, match=r"keeps the number of shards it was made with.* has 2"),
    ):
        session.sql(script)

    # a sink that fails after the commit gets its batch again, the others do not
    with Session(spark, checkpoint=folder, settings=settings) as session:
        session.callback("calls", fail)
        session.sql(script)
        with pytest.raises(DataError, match=r"query 'births' it raised ValueError: the post is"):
            session.await_end(timeout=100)
    with open_session() as session:
        session.sql(script)
        assert session.await_end(timeout=200)
        plans = {h.name: h.definition.plan for h in session.handles()}
    inputs = world.inputs()
    for name in ("rows", "pairs"):
        check_answer(plans[name], committed(tmp_path / "out", name), inputs)
    assert len({batch for batch, _ in calls}) == len(calls)
    found = [row for _, table in calls for row in interval_rows(table)]
    check_answer(plans["births"], found, inputs)


def fail(*_: Any) -> None:
    raise ValueError("the post is closed")


def wait_for(condition: Any, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def committed(folder: Path, query: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a sink as ``(values, start, end)``, those of one query if it is named."""
    if query:  # read_committed reads a whole folder: look at one query's files only
        other = folder.parent / f"only-{query}"
        other.mkdir(exist_ok=True)
        for path in [folder / "_penstock.json", *folder.glob(f"{query}-*")]:
            (other / path.name).write_bytes(path.read_bytes())
        folder = other
    rows = []
    for row in read_committed(folder):
        *values, start, end = row.values()
        rows.append((tuple(values), start, INF if end is None else end))
    return rows


def test_a_session_opens_while_another_one_is_active(spark: Any, tmp_path: Path) -> None:
    """Spark looks for a source's name in the active session, whichever that is."""
    other = spark.newSession()
    _register(other)
    other.createDataFrame([], "x int")  # makes the other one active
    pushed = Pushed(tmp_path)
    with Session(spark, checkpoint=tmp_path / "state", settings={"trigger": "10ms"}) as session:
        session.sql(pushed.script)
        session.sql("CREATE QUERY q INTO kept AS SELECT * FROM m [RANGE 5]")
        session.start()
        pushed.push(session, "m", 0, 10)


def test_what_is_closed_is_closed_after_a_restart(spark: Any, tmp_path: Path) -> None:
    folder, aside = tmp_path / "checkpoint", tmp_path / "late"
    script = f"""
        CREATE SINK aside USING jsonl OPTIONS (path '{aside}');
        CREATE SINK results USING memory OPTIONS (changes 'intervals');
        CREATE STREAM bids (auction INT, kind STRING, price INT, t BIGINT) USING memory
          TIMESTAMP BY t PUNCTUATION WHEN kind = 'closed' ON (auction) LATE INTO aside;
        CREATE QUERY best INTO results AS
          SELECT auction, MAX(price) AS price, COUNT(*) AS n FROM bids GROUP BY auction;
    """
    settings = {"shards": 2}
    with Session(spark, checkpoint=folder, settings=settings) as session:
        session.sql(script)
        session.push("bids", [(1, "bid", 5, 1), (2, "bid", 6, 2), (1, "closed", 0, 3)])
        session.await_idle()
        for n in range(10):  # small runs are merged
            session.push("bids", [(10 + n, "closed", 0, 4 + n)])
            session.await_idle()
        explained = session.query("best").explain("physical")
        assert "closed parts of bids ON (auction): later rows are late; Aggregate ends" in explained
        answers = session.query("best").rows().to_pylist()
        final = {row["auction"] for row in answers if list(row.values())[-1] is None}
        assert final == {1, *range(10, 19)}
    with Session(spark, checkpoint=folder, settings=settings) as session:
        session.sql(script)
        session.push("bids", [(1, "bid", 9, 20), (2, "bid", 9, 21), (15, "bid", 9, 22)])
        session.await_idle()
        runs = session.pipeline.manifest.progress["bids"]["closed"]
        assert sum(run["rows"] for run in runs) == 11
        assert len(runs) < 11
    late = [row["auction"] for row in read_committed(aside)]
    assert late == [1, 15]
