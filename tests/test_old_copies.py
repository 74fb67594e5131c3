"""Copies of checkpoints and sinks as operators make and bring them back: exact, or refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, PenstockError, StateError
from penstock.model import Field, Schema
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered, Held, missing
from penstock.runs.manifest import read_manifest
from penstock.session import Session
from penstock.session.rewinding import rewind
from penstock.sinks import Result, SinkRequest, open_sink, read_committed
from tests.copies import QUERIES, SETTINGS, Life
from tests.postgres import PostgresServer


class Lives:
    """One run, copied at an early batch, at a later one, and at its end."""

    def __init__(self, spark: Any, root: Path) -> None:
        life = Life.begin(root)
        life.run(spark, until=3)
        self.early = life.copy("early")
        life.run(spark, until=life.batch() + 4)
        self.late = life.copy("late")
        life.run(spark)
        self.end = life.copy("end")
        self.answers = self.end.answers()
        assert self.early.batch() < self.late.batch() < self.end.batch()
        assert all(self.answers.values()), self.answers


@pytest.fixture(scope="module")
def lives(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return Lives(spark, tmp_path_factory.mktemp("lives"))


def refused(spark: Any, life: Life, **options: Any) -> str:
    """Run what must be refused; return what was said. Nothing may be changed."""
    before = life.tree()
    with pytest.raises(PenstockError) as error:
        life.run(spark, **options)
    after = life.tree()
    assert {name: after.get(name) for name in before} == before
    return str(error.value)


def test_an_older_checkpoint_under_newer_sinks_is_refused(spark: Any, lives: Lives) -> None:
    life = lives.end.copy("older")
    life.bring_back(lives.early)
    told = refused(spark, life)
    assert "brought back from an older copy" in told
    assert "rewind-sink" in told
    told = refused(spark, life, allow_change=True)
    assert "brought back from an older copy" in told


def test_a_copy_that_went_on_elsewhere_is_refused(spark: Any, lives: Lives) -> None:
    """Both copies have the same batch numbers; only the lineage tells them apart."""
    other = lives.early.copy("other")
    other.run(spark, until=lives.late.batch() + 1)
    life = lives.late.copy("forked")
    life.bring_back(other)
    told = refused(spark, life)
    assert "holds" in told
    assert "copy" in told


def test_sinks_are_taken_back_and_the_answer_is_exact(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("taken")
    view = life.folder / "answers.db"
    life.bring_back(lives.early)
    for query in ("table",):  # a view in a database comes back by the means of the database
        with sqlite3.connect(lives.early.folder / "answers.db") as source:
            rows = source.execute(f'SELECT * FROM "{query}"').fetchall()
            note = source.execute(
                "SELECT * FROM penstock_batches WHERE table_name = ?", (query,)
            ).fetchall()
        with sqlite3.connect(view) as target:
            target.execute(f'DELETE FROM "{query}"')
            target.executemany(f'INSERT INTO "{query}" VALUES (?, ?)', rows)
            target.execute("DELETE FROM penstock_batches WHERE table_name = ?", (query,))
            marks = ", ".join("?" * len(note[0]))
            target.executemany(f"INSERT INTO penstock_batches VALUES ({marks})", note)
        source.close()
        target.close()
    with life.session(spark) as session:
        told = list(rewind(session, life.checkpoint, ()))
    assert len(told) == len(QUERIES) + 2
    assert any("files were set aside" in line for line in told)
    assert any("rows of" in line and "deleted" in line for line in told)
    life.called = list(lives.early.called)
    life.run(spark)
    assert life.answers() == lives.answers


def damage_sink(folder: Path, what: str) -> None:
    """Take from the folder of a sink what an operator might take."""
    files = sorted(p for p in folder.iterdir() if p.name[0] not in "._")
    match what:
        case "folder":
            shutil.rmtree(folder)
        case "files":
            for path in files:
                path.unlink()
        case "newest":
            files[-1].unlink()
        case "half":
            os.truncate(files[-1], files[-1].stat().st_size // 2)
        case "log":
            next(folder.glob("_penstock-*.log")).unlink()


FILE_SINKS = ("sums", "rows", "counts", "shown")


@pytest.mark.parametrize("what", ["newest", "half"])
def test_files_that_are_gone_and_still_in_the_manifests(
    spark: Any, lives: Lives, what: str
) -> None:
    life = lives.late.copy("gone")
    for sink in FILE_SINKS:
        damage_sink(life.folder / sink, what)
    life.run(spark)
    assert life.answers() == lives.answers


@pytest.mark.parametrize("what", ["folder", "files", "log"])
def test_files_that_are_gone_for_good(spark: Any, lives: Lives, what: str) -> None:
    """Each sink alone is refused by its name; all at once go on, if that is said."""
    together = lives.late.copy("together")
    for sink in (*FILE_SINKS, "late"):
        damage_sink(together.folder / sink, what)
        life = lives.late.copy("gone")
        damage_sink(life.folder / sink, what)
        if sink == "shown" and what == "files":  # a view is one file
            life.run(spark)
            assert life.answers() == lives.answers
            continue
        told = refused(spark, life)
        assert "what was delivered is missing" in told
        assert str(life.folder / sink) in told
    together.run(spark, allow_change=True)
    if what != "log":
        found = together.answers()
        lost = {sink for sink in found if found[sink] != lives.answers[sink]}
        assert lost == {"sums", "rows", "counts", "late"}  # the next view is whole again


@pytest.mark.parametrize("query", ["logged", "table"])
@pytest.mark.parametrize("what", ["dropped", "emptied", "cut"])
def test_rows_of_a_table_that_are_gone(spark: Any, lives: Lives, query: str, what: str) -> None:
    life = lives.late.copy("cut")
    with sqlite3.connect(life.folder / "answers.db") as connection:
        statement = {
            "dropped": f'DROP TABLE "{query}"',
            "emptied": f'DELETE FROM "{query}"',
            "cut": f'DELETE FROM "{query}" WHERE rowid = (SELECT min(rowid) FROM "{query}")',
        }[what]
        connection.execute(statement)
    connection.close()
    told = refused(spark, life)
    assert "what was delivered is missing" in told
    assert query in told


def test_a_table_may_be_pruned_if_the_sink_says_so(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("pruned")
    with sqlite3.connect(life.folder / "answers.db") as connection:
        first = "SELECT min(rowid) FROM logged"
        (gone,) = connection.execute(
            f"SELECT k, n, _time, _sign FROM logged WHERE rowid = ({first})"
        ).fetchall()
        connection.execute(f"DELETE FROM logged WHERE rowid = ({first})")
    connection.close()
    QUERIES["logged"] = ("sqlite", "log', pruned 'true", QUERIES["logged"][2])
    try:
        life.run(spark)
    finally:
        QUERIES["logged"] = ("sqlite", "log", QUERIES["logged"][2])
    assert life.answers()["logged"] == lives.answers["logged"] - Counter([gone])


def test_a_ledger_that_is_lost_or_of_a_later_batch_is_refused(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("ledger")
    path = life.checkpoint / "delivered" / "called.json"
    path.unlink()
    assert str(path) in refused(spark, life)
    shutil.copy(lives.end.checkpoint / "delivered" / "called.json", path)
    assert str(path) in refused(spark, life)
    shutil.copy(lives.early.checkpoint / "delivered" / "called.json", path)
    assert str(path) in refused(spark, life)


def test_manifests_that_are_lost_or_do_not_belong(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("manifests")
    folder = life.checkpoint / "manifest"
    newest = folder / f"{life.batch():010d}.json"
    whole = newest.read_bytes()
    for stray in ("99.json", "0000000099.json", "notes.txt"):
        (folder / stray).write_bytes(b"")
        told = refused(spark, life)
        assert stray in told or "0000000099" in told or "must follow one another" in told
        (folder / stray).unlink()
    newest.unlink()
    told = refused(spark, life)  # by Spark's log, or by a sink, whichever is further
    assert "were lost" in told or "brought back from an older copy" in told
    newest.write_bytes(whole)
    away = life.folder / "away"
    os.replace(folder, away)
    assert str(folder) in refused(spark, life)
    folder.mkdir()
    assert str(folder) in refused(spark, life)
    folder.rmdir()
    os.replace(away, folder)
    life.run(spark)
    assert life.answers() == lives.answers


def test_a_query_that_is_gone_and_comes_back(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("queries")
    kept = QUERIES.pop("rows")
    try:
        told = refused(spark, life)
        assert "runs query 'rows', which is not declared any more" in told
        life.run(spark, until=life.batch() + 1, allow_change=True)
    finally:
        QUERIES["rows"] = kept
    life.run(spark)  # it begins anew, in the same sink
    assert 0 < life.answers()["rows"].total() < lives.answers["rows"].total()


def test_a_stream_that_is_read_otherwise(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("streams")
    life.options = ", null '5'"
    told = refused(spark, life)
    assert "option null was not given and is '5'" in told
    life.run(spark, allow_change=True)


def test_a_changed_stream_is_said_before_the_queries_that_it_changes(
    spark: Any, lives: Lives
) -> None:
    """Another type of a column makes other queries; whoever reads of them looks in vain."""
    life = lives.late.copy("typed")
    columns = "(k INT, v INT, t BIGINT)"
    script = life.script.replace(f"s {columns}", "s (k INT, v BIGINT, t BIGINT)")
    with Session(spark, checkpoint=life.checkpoint, settings=SETTINGS, autostart=False) as session:
        session.callback("called", life._call)
        session.sql(script)
        with pytest.raises(StateError, match="the stream s must be read as the checkpoint"):
            session.start()


def test_a_checkpoint_and_its_copy_in_one_spark(spark: Any, lives: Lives) -> None:
    """To Spark both are one query: the second is refused, and the first is not disturbed."""
    first, second = lives.early.copy("first"), lives.early.copy("second")
    with first.session(spark) as session:
        session.start()
        with pytest.raises(StateError, match="a checkpoint and its copy must not be run by one"):
            second.run(spark)
        session.await_idle()
    assert first.answers() == lives.answers
    second.run(spark)
    assert second.answers() == lives.answers


def test_damage_while_nothing_runs_is_found_before_anything_is_swept(
    spark: Any, lives: Lives
) -> None:
    life = lives.late.copy("segments")
    manifest = read_manifest(
        life.checkpoint / "manifest" / f"{life.batch():010d}.json", life.batch()
    )
    assert manifest is not None
    for name in sorted(manifest.files())[:3]:
        path = life.checkpoint / "segments" / name
        whole = path.read_bytes()
        path.unlink()
        assert str(path) in refused(spark, life)
        path.write_bytes(whole[: len(whole) // 2])
        assert str(path) in refused(spark, life)
        path.write_bytes(whole)
    path = next((life.checkpoint / "segments").glob("catalog-*"))
    path.write_bytes(path.read_bytes().replace(b"total", b"tutal"))
    with pytest.raises(StateError, match=r"catalog-.* must be as it was"):
        life.run(spark)


def test_a_backup_made_while_a_run_goes_on(spark: Any, lives: Lives) -> None:
    """Copied file by file, first the checkpoint, then the sinks: exact, or refused."""
    life = lives.early.copy("running")
    copies = []
    with life.session(spark) as session:
        session.start()
        for number in range(3):
            reached = life.batch()
            while life.batch() == reached:
                session.check()
            copy = Life(life.folder.parent / f"backup{number}", life.inputs)
            shutil.rmtree(copy.folder, ignore_errors=True)
            copy.folder.mkdir()
            try:
                shutil.copytree(life.checkpoint, copy.checkpoint)
                for path in sorted(life.folder.iterdir()):
                    if path.is_dir() and path != life.checkpoint:
                        shutil.copytree(path, copy.folder / path.name)
                    elif path.is_file() and not path.name.endswith(("-wal", "-shm")):
                        source = sqlite3.connect(path)
                        target = sqlite3.connect(copy.folder / path.name)
                        source.backup(target)
                        source.close()
                        target.close()
            except (shutil.Error, FileNotFoundError):
                continue  # a file went meanwhile: the operator begins again
            copy.called = list(life.called)
            copies.append(copy)
    verdicts = []
    for copy in copies:
        before = copy.tree()
        try:
            copy.run(spark)
        except PenstockError:
            assert set(before) <= set(copy.tree())
            verdicts.append("refused")
        else:
            found = copy.answers()
            del found["called"]  # a function cannot be copied with its run
            assert found == {n: a for n, a in lives.answers.items() if n != "called"}
            verdicts.append("exact")
    assert verdicts or not copies


def test_a_table_of_postgresql_is_taken_back(spark: Any, tmp_path: Path, lives: Lives) -> None:
    server = PostgresServer()
    try:
        whole = Life.begin(tmp_path / "whole", server.new_database())
        whole.run(spark)
        life = Life.begin(tmp_path / "copied", server.new_database())
        life.run(spark, until=3)
        early = life.copy("early")
        life.run(spark, until=life.batch() + 3)
        life.bring_back(early)
        shutil.copy(early.folder / "answers.db", life.folder / "answers.db")
        told = refused(spark, life)
        assert "brought back from an older copy" in told
        with life.session(spark) as session:
            done = [line for line in rewind(session, life.checkpoint, ()) if "far" in line]
        assert "deleted" in done[0]
        life.called = list(early.called)
        life.run(spark)
        assert life.answers() == whole.answers()
        assert life.far() == whole.far()
        assert life.far()
        again = life.copy("again")  # the same checkpoint twice on one database
        with psycopg.connect(life.postgres or "", autocommit=True) as connection:
            connection.execute("DELETE FROM far WHERE ctid = (SELECT min(ctid) FROM far)")
        assert "must hold" in refused(spark, again)
    finally:
        server.remove()


def test_the_lock_is_looked_at_before_spark_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("penstock.session.session.SparkStart", refuse)
    holder = Checkpoint(str(tmp_path / "checkpoint"))
    holder.lock()
    with Session(checkpoint=tmp_path / "checkpoint") as session:
        session.sql("CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t")
        with pytest.raises(StateError, match="must be used by one process at a time"):
            session.sql("CREATE QUERY q AS SELECT k FROM m [NOW]")
    holder.unlock()
    (tmp_path / "checkpoint" / "epoch").write_bytes(b"\xff\xfe\x00")
    with (
        Session(checkpoint=tmp_path / "checkpoint") as session,
        pytest.raises(StateError, match="epoch must hold a number"),
    ):
        session.sql(
            "CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q AS SELECT k FROM m [NOW]"
        )


def test_what_a_checkpoint_holds_is_for_its_owner_alone(lives: Lives) -> None:
    for path in [lives.end.checkpoint, *lives.end.checkpoint.rglob("*")]:
        inside = path.relative_to(lives.end.checkpoint).parts
        if "spark" in inside:  # Spark's own, in a folder that nobody else can enter
            continue
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_sink_or_checkpoint_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "the/file")

    monkeypatch.setattr("penstock.runs.fence.os.open", refuse)
    with pytest.raises(StateError, match="nothing is lost") as error:
        Checkpoint(str(tmp_path / "checkpoint")).lock()
    assert str(tmp_path / "checkpoint") in str(error.value)


def test_a_query_may_not_be_called_like_rows_set_aside(spark: Any, tmp_path: Path) -> None:
    life = Life.begin(tmp_path)
    with life.session(spark) as session:
        session.sql('CREATE QUERY "s-late" INTO late AS ISTREAM (SELECT k FROM s [NOW])')
        with pytest.raises(ConfigError, match="must differ from 's-late'"):
            session.start()


def test_a_table_that_has_lost_its_note_is_not_filled_twice(spark: Any, lives: Lives) -> None:
    life = lives.early.copy("note")
    with sqlite3.connect(life.folder / "answers.db") as connection:
        connection.execute("DELETE FROM penstock_batches WHERE table_name = 'logged'")
    connection.close()
    assert "nothing says which batches they are of" in refused(spark, life)


def test_two_copies_that_run_at_once_do_not_mix_their_answers(tmp_path: Path) -> None:
    schema = Schema((Field("x", pa.int64()),))

    def result(batch: int, lineage: str) -> Result:
        table = pa.table({"x": [batch], "_time": pa.array([batch], pa.int64())})
        return Result("q", batch, "stream", schema, False, table, lineage=lineage)

    for definition in (
        SinkDef("o", "jsonl", {"path": str(tmp_path / "o")}),
        SinkDef("o", "sqlite", {"path": str(tmp_path / "o.db"), "table": "o"}),
    ):
        first = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
        first.publish(result(0, "a"))
        second = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
        second.begin()
        first.publish(result(1, "b"))
        with pytest.raises(StateError, match="rewind-sink"):
            second.publish(result(1, "c"))


def test_a_second_rewind_keeps_what_the_first_set_aside(tmp_path: Path) -> None:
    schema = Schema((Field("x", pa.int64()),))
    definition = SinkDef("o", "jsonl", {"path": str(tmp_path / "o")})
    for turn in range(2):
        sink = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
        for batch, lineage in ((0, "a"), (1, f"b{turn}")):
            table = pa.table({"x": [turn], "_time": pa.array([batch], pa.int64())})
            rows = Result("q", batch, "stream", schema, False, table, lineage=lineage)
            sink.publish(rows)
        assert "1 files were set aside" in sink.rewind(Delivered(0, "a", 1, 1))
    kept = sorted(tmp_path.glob("o/_penstock-rewound-0*/q-*.jsonl"))
    assert [json.loads(path.read_text())["x"] for path in kept] == [0, 1]


def test_a_view_is_taken_back_to_before_it_began(tmp_path: Path) -> None:
    schema = Schema((Field("x", pa.int64()),))
    definition = SinkDef("o", "jsonl", {"path": str(tmp_path / "o"), "changes": "view"})
    sink = open_sink(definition, SinkRequest("q", "view", schema, run="1"))
    sink.publish(Result("q", 3, "view", schema, False, pa.table({"x": [1]}), 5, lineage="a"))
    sink.rewind(Delivered())
    held = open_sink(definition, SinkRequest("q", "view", schema, run="1")).held()
    assert held is not None
    assert (held.batch, held.lost) == (-1, {})


def test_what_is_given_up_is_given_up_for_good(tmp_path: Path) -> None:
    schema = Schema((Field("x", pa.int64()),))
    definition = SinkDef("o", "jsonl", {"path": str(tmp_path / "o")})
    sink = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
    for batch in range(4):
        table = pa.table({"x": [batch], "_time": pa.array([batch], pa.int64())})
        sink.publish(Result("q", batch, "stream", schema, False, table, lineage=f"l{batch}"))
    (tmp_path / "o" / "q-0000000001.jsonl").write_text("altered\n")
    (tmp_path / "o" / "q-0000000002.jsonl").unlink()
    held = open_sink(definition, SinkRequest("q", "stream", schema, run="1")).held()
    assert held is not None
    assert sorted(held.lost) == [1, 2]
    again = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
    again.begin(given_up=[1, 2])
    held = again.held()
    assert held is not None
    assert held.lost == {}


def test_damaged_answers_are_not_read_as_if_they_were_whole(tmp_path: Path) -> None:
    schema = Schema((Field("x", pa.int64()),))
    definition = SinkDef("o", "jsonl", {"path": str(tmp_path / "o")})
    sink = open_sink(definition, SinkRequest("q", "stream", schema, run="1"))
    table = pa.table({"x": [1], "_time": pa.array([1], pa.int64())})
    sink.publish(Result("q", 0, "stream", schema, False, table, lineage="a"))
    path = tmp_path / "o" / "q-0000000000.jsonl"
    assert [row["x"] for row in read_committed(tmp_path / "o")] == [1]
    for text in ("null\n", '{"x":2,"_time":1}\n', ""):
        path.write_text(text)
        with pytest.raises(DataError, match=path.name):
            list(read_committed(tmp_path / "o"))
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        list(read_committed(tmp_path / "o"))


def test_a_sink_inside_the_checkpoint_is_refused(spark: Any, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    with Session(spark, checkpoint=checkpoint, autostart=False) as session:
        session.sql(
            f"CREATE SINK o USING jsonl OPTIONS (path '{checkpoint}/segments');"
            "CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q INTO o AS SELECT k FROM m [NOW]"
        )
        with pytest.raises(ConfigError, match="must not be inside the checkpoint"):
            session.start()


def test_a_stray_file_in_a_sink_is_to_be_taken_away() -> None:
    held = Held("the folder 'o'", 3, "a", {99: "the log does not list q-0000000099.jsonl"})
    with pytest.raises(StateError, match="batch 99 never was; nothing was changed: take it away"):
        missing("q", held, Delivered(3, "a", 1, 1), {})


EARLY = """
CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t PRIORITY k;
CREATE STREAM r (k INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE SINK exact USING jsonl OPTIONS (path '{exact}');
CREATE SINK soon USING jsonl OPTIONS (path '{soon}');
CREATE QUERY q INTO exact EARLY INTO soon AS
  ISTREAM (
    SELECT m.k, c.n FROM m [NOW]
    JOIN (SELECT k, COUNT(*) AS n FROM r [RANGE 5] GROUP BY k) c ON m.k = c.k);
"""


@pytest.mark.parametrize(
    ("soon", "says"),
    [
        ("checkpoint/lane", "must not be inside the checkpoint"),
        ("exact", "must have another folder than that of INTO"),
    ],
)
def test_early_rows_need_a_folder_of_their_own(
    spark: Any, tmp_path: Path, soon: str, says: str
) -> None:
    with Session(spark, checkpoint=tmp_path / "checkpoint", autostart=False) as session:
        session.sql(EARLY.format(exact=tmp_path / "exact", soon=tmp_path / soon))
        with pytest.raises(ConfigError, match=says):
            session.start()


def test_a_start_that_is_refused_for_another_plan_sweeps_nothing(
    spark: Any, tmp_path: Path
) -> None:
    def opened(**settings: Any) -> Session:
        session = Session(
            spark, checkpoint=tmp_path / "checkpoint", settings=settings, autostart=False
        )
        session.sql(
            "CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM m [RANGE 5] WHERE k > 1 GROUP BY k"
        )
        return session

    with opened() as session:
        session.push("m", [(2, 1)])
        session.start()
        session.await_idle(100)
    left = tmp_path / "checkpoint" / "segments" / "of-no-batch.arrow"
    left.write_bytes(b"left by a batch that was never committed")
    with opened(panes=False, rules=False) as session:
        with pytest.raises(StateError, match=r"such as rules, panes and join\.method"):
            session.start()
        assert left.exists()
    with opened() as session:
        session.start()
        assert not left.exists()


def test_a_priority_that_became_another_is_told(spark: Any, tmp_path: Path) -> None:
    def opened(priority: str, shown: str) -> Session:
        session = Session(spark, checkpoint=tmp_path / "checkpoint", autostart=False)
        session.sql(
            f"CREATE STREAM m (k INT, t BIGINT) USING memory TIMESTAMP BY t PRIORITY {priority};"
            f"CREATE QUERY q AS SELECT {shown} FROM m [RANGE 5]"
        )
        return session

    with opened("k", "k, _priority AS p") as session:
        session.push("m", [(2, 1)])
        session.start()
        session.await_idle(100)
    with opened("CASE WHEN k > 5 THEN 9 ELSE 0 END", "k, _priority AS p") as session:
        told = "PRIORITY of stream m must be as it was .* but it was k and is CASE WHEN k > 5"
        with pytest.raises(StateError, match=told):
            session.start()
    changed = "its text or sink mode has changed"
    with opened("k", "k") as session, pytest.raises(StateError, match=changed):
        session.start()


def test_a_view_in_a_table_that_is_gone_begins_anew(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("anew")
    with sqlite3.connect(life.folder / "answers.db") as connection:
        connection.execute('DROP TABLE "table"')
    connection.close()
    told = refused(spark, life, allow_change=True)
    assert "DROP QUERY IF EXISTS table" in told
    with Session(spark, checkpoint=life.checkpoint, settings=SETTINGS, autostart=False) as session:
        session.callback("called", life._call)
        session.sql('DROP QUERY IF EXISTS "table";' + life.script)
        session.start()
        session.await_idle()
    assert life.table("table")
    assert {n: a for n, a in life.answers().items() if n != "table"} == {
        n: a for n, a in lives.answers.items() if n != "table"
    }


def test_a_lost_folder_is_filled_with_what_is_kept(spark: Any, lives: Lives) -> None:
    life = lives.late.copy("kept")
    shutil.rmtree(life.folder / "sums")
    reached = life.batch()
    life.run(spark, allow_change=True)
    found = sorted(int(path.stem[-10:]) for path in (life.folder / "sums").glob("sums-*"))
    assert found[0] == reached - 3  # as many as manifests are kept
