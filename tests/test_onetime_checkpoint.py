"""One-time queries on the folder of a checkpoint: beside its writer, after it, without a trace."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from penstock import cql, open_checkpoint
from penstock.asking.encoding import Declared
from penstock.catalog import Catalog
from penstock.cli import app
from penstock.errors import PenstockError, QueryError, StateError
from penstock.optimizer import optimize
from penstock.physical.planner import Query, plan
from penstock.reference import Inputs, relation, snapshot_at
from penstock.runs import segments
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import Manifest
from penstock.runs.reading import file_name
from penstock.runs.segments import SegmentStorage
from penstock.settings import Settings
from penstock.testing import LocalEngine
from tests.comparison import same_bag
from tests.test_onetime import bag_of

SCRIPT = """
CREATE STREAM s (k STRING, x INT, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE STREAM n (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
CREATE TABLE names (k STRING, name STRING) USING csv OPTIONS (path '{folder}/names.csv');
CREATE TABLE sizes (k STRING, size INT) USING parquet OPTIONS (path '{folder}/sizes.parquet');
CREATE TABLE far (k STRING) USING jdbc OPTIONS (url 'jdbc:x', password 'hunter2');
CREATE VIEW plain AS SELECT k, COUNT(*) AS c FROM s [RANGE 20 SECONDS] GROUP BY k;
CREATE MATERIALIZED VIEW recent KEEP 1 MINUTE AS SELECT * FROM s [RANGE 20 SECONDS];
CREATE MATERIALIZED VIEW sums AS SELECT k, COUNT(*) AS c, SUM(x) AS x FROM s [ROWS 9] GROUP BY k;
CREATE MATERIALIZED VIEW ticks AS SELECT * FROM n [ROWS 2];
CREATE QUERY watched AS SELECT k, MAX(x) AS top FROM s [PARTITION BY k ROWS 3] GROUP BY k;
CREATE QUERY away INTO nothing AS SELECT k FROM s [ROWS 4];
"""
MODES = {"watched": "view", "away": "intervals"}


def declared(folder: Path) -> Catalog:
    catalog = Catalog()
    sink = "CREATE SINK nothing USING blackhole;"
    for parsed in cql.parse_script(sink + SCRIPT.replace("{folder}", str(folder))):
        statement: Any = cql.bind(parsed, catalog)
        catalog.add(statement.definition)
    return catalog


class Writer(LocalEngine):
    """What a pipeline leaves in its checkpoint, without Spark."""

    def __init__(self, folder: Path, shards: int = 2) -> None:
        catalog = declared(folder)
        plans = {q.name: q.plan for q in catalog.queries.values()}
        super().__init__(plans, {"names": [], "sizes": [], "far": []}, shards=shards)
        self.checkpoint = Checkpoint(str(folder / "checkpoint"), fsync=False)
        self.checkpoint.lock()
        queries = [
            Query(n, p, MODES.get(n, "kept"), keep=catalog.queries[n].keep or 0)
            for n, p in optimize(plans).items()
        ]
        self.plan = plan(queries, Settings(), {})
        running = {n: (p, MODES.get(n, "kept")) for n, p in plans.items()}
        self._declared = Declared(catalog, running)
        self._manifest = self.checkpoint.latest() or Manifest()
        if self._manifest.batch < 0:
            self.checkpoint.open()
        if self._manifest.batch >= 0:
            self._states = list(self._manifest.states)
        self.time = 0

    def turn(self, rows: int = 30, crash: bool = False) -> None:
        """Run a batch of rows, each a second later than the one before, and commit it."""
        dice = random.Random(self._manifest.batch)
        new = [(dice.choice("abc"), dice.randrange(9)) for _ in range(rows)]
        at = [(self.time + i) * 1_000_000 for i in range(rows)]
        self._storage: Any = SegmentStorage(self.checkpoint.segments, "t", False)
        self.batch(
            {
                "s": [(k, x, t) for (k, x), t in zip(new, at, strict=True)],
                "n": [(k, t // 1_000_000) for (k, _), t in zip(new, at, strict=True)],
            }
        )
        self._storage.close()
        if crash:
            return
        self.time += rows
        self.written = [((k, x, t), t) for (k, x), t in zip(new, at, strict=True)]
        data = self._declared.to_bytes()
        before = self._manifest
        outputs = {a.query: self.plan.nodes[a.node].digest for a in self.plan.answers}
        self._manifest = Manifest(
            batch=before.batch + 1,
            shards=self.shards,
            states=[dict(s) for s in self._states],
            queries={n: {"node": d, "since": None, "paused": False} for n, d in outputs.items()},
            catalog=self.checkpoint.store(file_name(data), data),
        )
        self.checkpoint.commit(self._manifest)
        self.checkpoint.sweep(self._manifest.files() | before.files(), self._manifest.batch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "names.csv").write_text('k,name\na,Athens\nb,"Bonn, old"\nz,\n')
    table = pa.table({"k": ["a", "b", "c"], "size": pa.array([1, 2, None], pa.int32())})
    pyarrow.parquet.write_table(table, tmp_path / "sizes.parquet")
    return tmp_path


QUESTIONS = [
    "SELECT * FROM recent",
    "SELECT * FROM sums",
    "SELECT * FROM plain",
    "SELECT * FROM watched",
    "SELECT k, COUNT(*) AS c FROM s [RANGE 20 SECONDS] GROUP BY k",
    "SELECT r.k, r.x, w.top FROM recent r JOIN sums z ON r.k = z.k JOIN watched w ON w.k = r.k",
]


def test_a_reader_sees_what_the_oracle_sees(folder: Path) -> None:
    """After every batch, in time, and for the past that is kept."""
    writer, view = Writer(folder), open_checkpoint(folder / "checkpoint")
    rows: list[Any] = []
    for number in range(4):
        writer.turn()
        rows += writer.written
        everything = Inputs({"s": rows})
        for text in QUESTIONS:
            found = view.query(text)
            assert found.batch == number
            last = (writer.time - 2) * 1_000_000 + 999_999  # the last instant before the heartbeat
            assert str(found.valid_at) == f"1970-01-01 00:{last // 60_000_000:02}:" + (
                f"{last // 1_000_000 % 60:02}.999999"
            )
            check(folder, found, text, everything, last)
        for back in (5, 33, 60):
            time = last - back * 1_000_000
            if time >= 0:
                text = f"SELECT k, x FROM recent AS OF '{moment(time)}'"
                check(folder, view.query(text), text, everything, time)


def moment(time: int) -> str:
    return f"1970-01-01 00:{time // 60_000_000:02}:{time % 60_000_000 / 1_000_000:09.6f}"


def check(folder: Path, found: Any, text: str, everything: Inputs, time: int) -> None:
    catalog = declared(folder)
    names = {q.name: q.plan for q in catalog.queries.values()}
    node = cql.bind_question(cql.parse_question(text), catalog, names).plan
    rows = found.to_arrow()
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    bag = bag_of(pa.Table.from_arrays(columns, names=rows.column_names))
    same_bag(bag, snapshot_at(relation(node, everything), time), time)
    assert len(found) > 0


def test_tables_are_read_without_spark(folder: Path) -> None:
    writer, view = Writer(folder), open_checkpoint(folder / "checkpoint")
    writer.turn()
    joined = view.query(
        "SELECT DISTINCT r.k, name, size FROM recent r LEFT JOIN names USING (k) "
        "JOIN sizes USING (k) ORDER BY k"
    )
    assert joined.to_arrow().to_pylist() == [
        {"k": "a", "name": "Athens", "size": 1},
        {"k": "b", "name": "Bonn, old", "size": 2},
        {"k": "c", "name": None, "size": None},
    ]
    alone = view.query("SELECT * FROM names ORDER BY k DESC LIMIT 1")
    assert alone.to_arrow().to_pylist() == [{"k": "z", "name": None}]
    assert alone.valid_at is None
    assert "from tables only" in str(alone)
    with pytest.raises(QueryError, match="must be local Parquet or CSV to be read without Spark"):
        view.query("SELECT * FROM far")
    stored = b"".join(p.read_bytes() for p in (folder / "checkpoint").rglob("*") if p.is_file())
    assert b"hunter2" not in stored


def test_a_folder_that_cannot_be_written_is_read_without_a_trace(folder: Path) -> None:
    writer = Writer(folder)
    writer.turn()
    checkpoint = folder / "checkpoint"
    before = tree(checkpoint)
    paths = [checkpoint, *checkpoint.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = in_another_process(checkpoint, "SELECT k, COUNT(*) AS c FROM recent GROUP BY k")
        assert found["rows"]
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert tree(checkpoint) == before


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    found = [folder, *folder.rglob("*")]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in found}


PROGRAM = """
import json, sys
import penstock
found = penstock.open_checkpoint(sys.argv[1]).query(sys.argv[2])
from pyspark import SparkContext
assert SparkContext._active_spark_context is None and SparkContext._gateway is None
print(json.dumps({"rows": found.to_arrow().to_pylist(), "batch": found.batch}))
"""


def in_another_process(checkpoint: Path, text: str) -> dict[str, Any]:
    """Ask in a process that has no Java: whoever would start one fails."""
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint), text],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_readers_never_meet_a_swept_file(folder: Path) -> None:
    """A writer that commits as fast as it can, and readers that ask as fast as they can."""
    writer = Writer(folder)
    writer.turn(5)
    failures: list[BaseException] = []
    batches: list[list[int]] = [[], []]
    over = threading.Event()

    def ask(number: int) -> None:
        view = open_checkpoint(folder / "checkpoint")
        texts = ("SELECT COUNT(*) AS n FROM recent", "SELECT k FROM sums JOIN plain USING (k)")
        while not over.is_set():
            try:
                found = view.query(texts[len(batches[number]) % 2])
            except PenstockError as error:
                failures.append(error)
                return
            batches[number].append(found.batch or 0)

    readers = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(12):
        writer.turn(20)
    over.set()
    for reader in readers:
        reader.join()
    assert not failures
    for seen in batches:
        assert seen == sorted(seen)
        assert len(set(seen)) > 3


def test_a_swept_file_makes_a_reader_begin_again(folder: Path, monkeypatch: Any) -> None:
    """The writer is so many batches further that nothing is left of the reader's files."""
    writer, view = Writer(folder), open_checkpoint(folder / "checkpoint")
    writer.turn()
    view.query("SELECT * FROM ticks")
    reader = view._reader
    opened = reader.runs
    waiting = [8]

    def late(files: Any) -> Any:
        while waiting[0]:
            waiting[0] -= 1
            writer.turn()
        return opened(files)

    monkeypatch.setattr(reader, "runs", late)
    found = view.query("SELECT * FROM ticks ORDER BY t")
    assert found.batch == 8
    assert found.to_arrow().column("t").to_pylist() == [267, 268]


def test_what_a_crash_left_is_not_seen_and_the_next_process_goes_on(folder: Path) -> None:
    writer, view = Writer(folder), open_checkpoint(folder / "checkpoint")
    writer.turn()
    writer.turn()
    before = view.query("SELECT k, x FROM recent ORDER BY x, k")
    writer.turn(crash=True)
    assert view.query("SELECT k, x FROM recent ORDER BY x, k").rows == before.rows
    reached = writer.time
    writer.checkpoint.unlock()
    assert view.query("SELECT k, x FROM recent ORDER BY x, k").rows == before.rows
    again = Writer(folder)
    again.progress, again.time = {**writer.progress}, reached
    again.turn(40)
    found = view.query("SELECT * FROM recent")
    assert found.batch == 2
    assert found.valid_at > before.valid_at


def test_damage_is_told(folder: Path) -> None:
    with pytest.raises(StateError, match="must have a committed batch to be read"):
        open_checkpoint(folder / "checkpoint").query("SELECT * FROM recent")
    writer, view = Writer(folder), open_checkpoint(folder / "checkpoint")
    writer.turn()
    held = view._reader.newest()
    assert held is not None
    files = sorted(held.files() - {held.catalog["file"]})
    path = folder / "checkpoint" / "segments" / files[0]
    whole = path.read_bytes()
    segments._checked.clear()
    path.write_bytes(whole[:200] + bytes(255 - b for b in whole[200:]))
    with pytest.raises(StateError, match=r"the file was altered|must be an Arrow stream"):
        view.query("SELECT k, r.x FROM recent r JOIN sums z USING (k)")
    path.unlink()
    with pytest.raises(StateError, match="is gone; the checkpoint is damaged"):
        view.query("SELECT k, r.x FROM recent r JOIN sums z USING (k)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT * FROM away", "hands its answer on as intervals"),
        ("SELECT * FROM s [ROWS 4]", r"s \[ROWS 4\] is not kept"),
        ("SELECT * FROM recnt", "did you mean 'recent'"),
        ("SELECT * FROM recent AS OF 7", "counts time in timestamps"),
        ("SELECT * FROM recent AS OF '1970-01-01 00:00:01'", "KEEP 3 MINUTES AS would have kept"),
        ("SELECT * FROM recent AS OF '2030-01-01'", "which is not final yet"),
        ("SELECT * FROM recent r JOIN ticks t USING (k)", "must count time in one way"),
        ("SELECT * FROM watched AS OF '1970-01-01 00:02:00'", "MATERIALIZED VIEW watched KEEP"),
    ],
)
def test_mistakes(folder: Path, text: str, says: str) -> None:
    writer = Writer(folder)
    for _ in range(5):
        writer.turn()
    with pytest.raises(QueryError, match=says):
        open_checkpoint(folder / "checkpoint").query(text)


def test_the_command_line_asks_a_checkpoint(folder: Path) -> None:
    writer = Writer(folder)
    writer.turn()
    run = CliRunner()
    where = ["--checkpoint", str(folder / "checkpoint")]
    listed = run.invoke(app, ["query", *where])
    assert listed.exit_code == 0, listed.output
    for word in ("recent", "sums", "watched", "1970-01-01 00:00:28.999999"):
        assert word in listed.output
    assert "away" not in listed.output
    found = run.invoke(app, ["query", *where, "SELECT k, c FROM sums ORDER BY c DESC, k LIMIT 2"])
    assert found.exit_code == 0, found.output
    assert "valid at 1970-01-01 00:00:28.999999, batch 0" in found.output
    lines = run.invoke(app, ["query", *where, "--json", "SELECT k, c FROM sums ORDER BY c, k"])
    rows = [json.loads(line) for line in lines.stdout.splitlines() if line.startswith("{")]
    assert sum(row["c"] for row in rows) == 9
    wrong = run.invoke(app, ["query", *where, "SELECT * FROM s [ROWS 4]"])
    assert wrong.exit_code == 1
    assert "is not kept" in wrong.output
    for missing in ([], ["--checkpoint", str(folder / "nowhere")]):
        assert "--checkpoint must be the folder" in run.invoke(app, ["query", *missing]).output


@pytest.mark.parametrize("kept", [0, 200])
def test_the_command_line_says_which_file_was_cut(folder: Path, kept: int) -> None:
    writer = Writer(folder)
    writer.turn()
    held = open_checkpoint(folder / "checkpoint")._reader.newest()
    assert held is not None
    for name in sorted(held.files()):
        path = folder / "checkpoint" / "segments" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:kept])
        segments._checked.clear()
        where = ["--checkpoint", str(folder / "checkpoint")]
        found = CliRunner().invoke(app, ["query", *where, "SELECT c, top FROM sums, watched"])
        path.write_bytes(whole)
        assert found.exit_code == 1, found.output
        assert isinstance(found.exception, SystemExit)
        assert "state error" in found.stderr
        assert name in found.stderr.replace("\n", "")
