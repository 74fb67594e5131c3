"""Outlets of the lane in a session: opened beside those of batches, closed with their query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.lane.journal import Journal, Mark, Turn
from penstock.session import Session
from penstock.session.outlets import open_lane_outlet
from penstock.sinks import read_committed
from tests.lanes import answered, result

SCRIPT = """
CREATE STREAM s (n BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE SINK files USING jsonl OPTIONS (path '{folder}/out');
CREATE SINK function USING callback;
CREATE SINK printed USING orc OPTIONS (path '{folder}/orc');
CREATE QUERY kept AS ISTREAM (SELECT n FROM s [NOW]);
CREATE QUERY filed INTO files AS SELECT n FROM s [NOW];
CREATE QUERY called INTO function AS SELECT n FROM s [NOW];
CREATE QUERY sparked INTO printed AS SELECT n FROM s [NOW];
"""
QUERIES = ("kept", "filed", "called", "sparked")


@pytest.mark.spark
def test_answers_come_by_both_ways_into_the_sinks_of_a_session(spark: Any, tmp_path: Path) -> None:
    called: list[tuple[int, list[int]]] = []

    def function(number: int, rows: pa.Table) -> None:
        called.append((number, rows.column("n").to_pylist()))

    checkpoint = tmp_path / "checkpoint"
    with Session(spark, checkpoint=checkpoint, autostart=False) as session:
        session.callback("function", function)
        session.sql(SCRIPT.format(folder=tmp_path))
        session.start()
        assert not list(tmp_path.rglob("*lane*"))
        delivery = session.pipeline.delivery
        names = [open_lane_outlet(session, session.query(query)) for query in QUERIES]
        assert names == [f"{query}~lane" for query in QUERIES]
        journal = Journal.open(checkpoint, Mark.start(session.pipeline.checkpoint.run), 9)
        assert delivery.check_turns(names, journal, allow_change=False) == {}
        delivery.begin(names)
        for value in (1, 2):
            answers = {query: result(value) for query in QUERIES}
            delivery.deliver_turn(journal.append(Turn(0, 0, {"s": answered(value)}, answers)))
        session.push("s", [(100, 5)])
        session.finish("s")
        assert session.await_end(timeout=120)
        assert sorted(session.query("kept").rows().column("n").to_pylist()) == [1, 2, 100]
        assert sorted(row["n"] for row in read_committed(tmp_path / "out")) == [1, 2, 100]
        assert sorted(number for number, _ in called)[:2] == [-2, -1]
        assert sorted(value for _, values in called for value in values) == [1, 2, 100]
        rows = spark.read.orc(str(tmp_path / "orc")).collect()
        assert sorted(row["n"] for row in rows) == [1, 2, 100]
        assert {row["_batch"] for row in rows if row["n"] < 100} == {-1, -2}
        ledgers = {path.name for path in (checkpoint / "delivered").iterdir()}
        assert ledgers == {f"{q}{e}.json" for q in ("called", "sparked") for e in ("", "~lane")}
        session.sql("DROP QUERY filed")
        assert not delivery.has("filed~lane")
        assert delivery.has("called~lane")
        journal.close()
