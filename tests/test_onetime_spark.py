"""One-time queries on a stream that Spark runs: in the session, beside it, after it, by hand."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock import Snapshot, cql, open_checkpoint
from penstock.cli.shell import Shell
from penstock.errors import QueryError, StateError
from penstock.reference import Inputs, relation, snapshot_at
from penstock.session import QueryHandle, Session
from tests.comparison import same_bag
from tests.test_onetime import bag_of
from tests.test_onetime_checkpoint import in_another_process

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE STREAM m (k STRING, x BIGINT, t BIGINT) USING memory TIMESTAMP BY t SLACK 2;
CREATE STREAM n (k STRING, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE TABLE d (k STRING, label STRING) USING json OPTIONS (path '{table}');
CREATE MATERIALIZED VIEW recent KEEP 15 AS SELECT * FROM m [RANGE 10];
CREATE MATERIALIZED VIEW last AS SELECT * FROM n [PARTITION BY k ROWS 2];
CREATE MATERIALIZED VIEW labelled AS SELECT m.k, x, label FROM m [ROWS 5] m JOIN d ON m.k = d.k;
CREATE QUERY sums AS SELECT k, SUM(x) AS total FROM recent GROUP BY k;
"""
TABLE = [("a", "alpha"), ("b", "beta")]
QUESTIONS = [
    "SELECT * FROM recent",
    "SELECT k, COUNT(*) AS c FROM m [RANGE 10] GROUP BY k",
    "SELECT * FROM labelled",
    "SELECT * FROM sums",
    "SELECT r.k, r.x, l.y FROM recent r JOIN last l ON r.k = l.k AND r.x <= l.y",
    "SELECT k FROM recent EXCEPT SELECT k FROM last",
    "SELECT r.x, d.label FROM recent r LEFT JOIN d ON d.k = r.k",
]


class Pushed:
    """Pushes rows to both streams, remembers them, and compares answers with the oracle."""

    def __init__(self, folder: Path) -> None:
        self.rows: dict[str, list[Any]] = {"m": [], "n": []}
        self.dice = random.Random("onetime")
        self.time = 0
        table = folder / "d.json"
        table.write_text("".join(f'{{"k": "{k}", "label": "{v}"}}\n' for k, v in TABLE))
        self.script = SCRIPT.format(table=table)

    def push(self, session: Session, count: int = 12) -> None:
        for name in ("m", "n"):
            rows = [
                (self.dice.choice("abc"), self.dice.randint(0, 3), t)
                for t in range(self.time, self.time + count)
            ]
            self.rows[name] += [(row, row[-1]) for row in rows]
            session.push(name, rows)
        self.time += count
        session.await_idle()

    def check(self, session: Session, found: Snapshot, text: str) -> None:
        plans = {q.name: q.plan for q in session.catalog.queries.values()}
        node = cql.bind_question(cql.parse_question(text), session.catalog, plans).plan
        time = found.valid_at
        assert isinstance(time, int)
        inputs = Inputs({n: list(r) for n, r in self.rows.items()}, {"d": TABLE})
        same_bag(bag_of(found.to_arrow()), snapshot_at(relation(node, inputs), time), time)


def test_questions_while_it_runs_beside_it_and_after_a_restart(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    folder = tmp_path / "checkpoint"
    options: dict[str, Any] = {"checkpoint": folder, "settings": {"shards": 2}}
    with Session(spark, **options) as session:
        session.sql(pushed.script)
        with pytest.raises(StateError, match="must have a committed batch to be read"):
            session.query("SELECT * FROM recent")
        for number in range(3):
            pushed.push(session)
            for text in QUESTIONS[:-1] if number else QUESTIONS:
                found = session.query(text)
                assert found.batch == session.pipeline.manifest.batch
                pushed.check(session, found, text)
            past = f"SELECT k, x FROM recent AS OF {pushed.time - 12}"
            pushed.check(session, session.query(past), past)
            beside = open_checkpoint(folder).query(QUESTIONS[4])
            assert bag_of(beside.rows) == bag_of(session.query(QUESTIONS[4]).rows)
        other = in_another_process(folder, "SELECT k, total FROM sums ORDER BY k")
        assert other["rows"] == session.query("SELECT * FROM sums ORDER BY k").rows.to_pylist()
        assert isinstance(session.sql(past), Snapshot)
        assert isinstance(session.query("recent"), QueryHandle)
        assert session.query("recent").rows().num_rows == 10
        shown = session.sql("SHOW VIEWS").to_pydict()
        assert shown["kept"] == ["15", "the last instant", "the last instant"]
        assert "(kept)" in session.query("recent").explain("physical")
        assert session.sql("DESCRIBE recent").column("name").to_pylist()[:3] == ["k", "x", "t"]

        session.sql("PAUSE QUERY last")
        pushed.push(session)
        with pytest.raises(StateError, match=r"nothing of 'last' can be read yet.* paused"):
            session.query("SELECT * FROM last")
        session.sql("RESUME QUERY last")
        session.sql("DROP MATERIALIZED VIEW labelled")
        with pytest.raises(QueryError, match="there is no stream, table or view 'labelled'"):
            session.query("SELECT * FROM labelled")
        pushed.push(session)
        with pytest.raises(QueryError, match="there is no stream, table or view 'labelled'"):
            open_checkpoint(folder).query("SELECT * FROM labelled")
        before = session.query("SELECT * FROM recent ORDER BY t")
        pushed.check(session, before, "SELECT * FROM recent")

    stopped = open_checkpoint(folder).query("SELECT * FROM recent ORDER BY t")
    assert stopped.rows == before.rows
    with Session(spark, **options) as session:
        session.sql(pushed.script)
        assert session.query("SELECT * FROM recent ORDER BY t").rows == before.rows
        pushed.push(session)
        for text in (QUESTIONS[0], QUESTIONS[1], QUESTIONS[3]):
            pushed.check(session, session.query(text), text)
        session.finish("m")
        session.finish("n")
        session.await_end()
        ended = session.query("SELECT * FROM recent ORDER BY t")
        assert ended.valid_at == pushed.time - 1
        pushed.check(session, ended, "SELECT * FROM recent")
        later = session.query(f"SELECT * FROM recent AS OF {pushed.time + 4}")
        assert len(later) == 5
        sums = session.query("SELECT * FROM sums")
        pushed.check(session, sums, "SELECT * FROM sums")


def test_asking_all_the_time_holds_nothing_up(spark: Any, tmp_path: Path) -> None:
    """Questions from another thread, while batches run: all answered, each from a whole batch."""
    pushed = Pushed(tmp_path)
    with Session(spark, checkpoint=tmp_path / "checkpoint", settings={"shards": 2}) as session:
        session.sql(pushed.script)
        pushed.push(session)
        found: list[tuple[str, Snapshot]] = []
        failures: list[BaseException] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                text = QUESTIONS[len(found) % 5]
                try:
                    found.append((text, session.query(text)))
                except BaseException as error:
                    failures.append(error)
                    return

        asking = threading.Thread(target=ask)
        asking.start()
        for _ in range(6):
            pushed.push(session)
        over.set()
        asking.join()
        assert not failures
        assert session.pipeline.manifest.batch >= 6
        batches = [snapshot.batch for _, snapshot in found]
        assert batches == sorted(batches)
        assert len(set(batches)) > 3
        for text, snapshot in found[:: max(1, len(found) // 25)]:
            pushed.check(session, snapshot, text)


def test_the_shell_answers_at_once_what_is_kept(spark: Any, tmp_path: Path) -> None:
    pushed = Pushed(tmp_path)
    console = Console(record=True, width=110, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    with Session(spark, settings={"shards": 1}) as session:
        shell = Shell(session, console)
        assert shell.run(pushed.script.rpartition("CREATE QUERY")[0])
        assert "materialized view labelled runs; a SELECT from it" in console.export_text()
        assert not shell.run("SELECT * FROM recent;")
        assert "must have a committed batch to be read" in console.export_text()
        pushed.push(session)
        assert shell.run("SELECT k, COUNT(*) AS c FROM recent GROUP BY k ORDER BY c DESC;")
        text = console.export_text()
        assert "valid at 8, batch " in text
        assert shell.run("SELECT x FROM recent AS OF 4;")
        assert "valid at 4, batch " in console.export_text()
        assert shell.run("SELECT * FROM d ORDER BY label;")
        text = console.export_text()
        assert text.index("alpha") < text.index("beta")
        assert "from tables only" in text
        assert not shell.run("SELECT * FROM m [ROWS 2] AS OF 4;")
        assert "is not kept" in console.export_text()
        session.finish("m")
        session.finish("n")
        session.await_end()
        assert shell.run("SELECT x FROM m [ROWS 2];")  # not kept: it runs, and has ended
        assert "rowsdelivered" in "".join(console.export_text().split())
