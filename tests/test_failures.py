"""One sentence for what goes wrong around a run: scripts, settings, Java, workers, memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import DataError, InternalError, StateError
from penstock.session import Session
from penstock.sinks import DatabaseSink
from penstock.spark.failures import root_cause
from tests.postgres import PASSWORD, PostgresServer


def dying(how: str):
    def run(batches):
        for batch in batches:
            if how == "memory":
                raise MemoryError
            os.kill(os.getpid(), getattr(signal, how))
            yield batch

    return run


@pytest.mark.spark
@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ("SIGKILL", StateError, "killed from outside (SIGKILL)"),
        ("SIGSEGV", InternalError, "Segmentation fault (SIGSEGV), in File"),
        ("SIGABRT", InternalError, "Aborted (SIGABRT), in File"),
        ("memory", StateError, "a task ran out of memory (MemoryError)"),
    ],
)
def test_workers_that_die(spark, how, kind, sentence):
    own = spark.newSession()
    own.conf.set("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
    with pytest.raises(Exception) as told:
        own.range(0, 4, 1, 1).mapInArrow(dying(how), "id long").collect()
    found = root_cause(told.value)
    assert type(found) is kind, str(found)
    assert sentence in str(found)
    assert "\n" not in str(found)
    assert "Py4J" not in str(found)
    assert "run the same command again" in str(found)


def test_other_texts():
    heap = Exception(
        "An error occurred while calling o1.x.\n: java.lang.OutOfMemoryError: Java heap space\n"
    )
    assert "Java heap space); give it more with --set driver.memory" in str(root_cause(heap))
    array = Exception("x\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 EiB\n")
    assert "Unable to allocate 8 EiB); give the machine more" in str(root_cause(array))
    other = Exception(
        "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: what"
    )
    assert str(root_cause(other)).endswith("org.apache.spark.SparkException: what")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "Is a directory"),
        (b"SELECT \0 1", "character 8 of {} is NUL"),
        (b"CREATE SINK s USING \xff\xfe", "must be UTF-8 text, but byte 21 of {} is not"),
        ("SELECT 1".encode("utf-16"), "must be UTF-8 text, but byte 1 of {} is not"),
    ],
)
def test_scripts_that_are_no_text(tmp_path, content, sentence):
    path = tmp_path / "a.sql"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for command in ("run", "check", "explain"):
        told = CliRunner().invoke(app, [command, str(path)])
        assert told.exit_code == 1
        assert sentence.format(path) in told.output.replace("\n", "")
        assert "Traceback" not in told.output


def test_a_script_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.sql"
    path.write_text("CREATE SINK s USING blackhole;", encoding="utf-8-sig")
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "shard=2"], "there is no setting 'shard'; did you mean 'shards'?"),
        (["--set", "shards=99999999999999999999"], "'shards' must be at most 65536"),
        (["--set", "batch.rows=1" + "0" * 30], "'batch.rows' must be at most"),
        (["--set", "driver.memory=banana"], "'driver.memory' must be a size such as 512m or 2g"),
        (["--set", "driver.memory=0g"], "'driver.memory' must be a size such as 512m or 2g"),
        (["--set", "shards"], "--set must be key=value"),
        (["--master", "nonsense"], "the master must be local, local[n]"),
    ],
)
def test_settings_that_cannot_be(tmp_path, words, sentence):
    path = tmp_path / "a.sql"
    path.write_text(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT k FROM s [NOW];"
    )
    told = CliRunner().invoke(app, ["run", str(path), *words])
    assert told.exit_code == 1
    assert sentence in told.output
    assert "java" not in told.output.lower()


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_java_is_missing(tmp_path, variable):
    path = tmp_path / "a.sql"
    path.write_text(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT k FROM s [NOW];"
    )
    nothing = tmp_path / "nothing"
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
    told = subprocess.run(
        [Path(sys.executable).with_name("penstock"), "run", path],
        env={**environment, variable: str(nothing)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1].startswith(
        "config error: Spark needs Java 17 or newer, but"
    )
    assert len(told.stderr.splitlines()) == 2


@pytest.fixture(scope="module")
def server():
    found = PostgresServer()
    yield found
    found.remove()


def counted(server) -> Counter:
    with psycopg.connect(server.url()) as connection:
        return Counter(connection.execute("SELECT k, n FROM counts").fetchall())


def push_more(session: Session) -> None:
    session.push("s", [("b", 4), ("c", 5)])
    session.await_idle()
    session.check()


@pytest.mark.spark
def test_a_database_that_stops_in_the_middle_of_a_run(spark, server, tmp_path, monkeypatch):
    """The run stops with a sentence; the next one delivers what is missing, once."""
    monkeypatch.setattr(DatabaseSink, "pauses", (0.0, 0.1))
    script = f"""
        CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
        CREATE SINK db USING postgresql
          OPTIONS (url '{server.url()}', table 'counts', changes 'view');
        CREATE QUERY q INTO db AS SELECT k, COUNT(*) AS n FROM s [RANGE UNBOUNDED] GROUP BY k;
    """
    with Session(spark, checkpoint=tmp_path / "c") as session:
        session.sql(script)
        session.push("s", [("a", 1), ("a", 2), ("b", 3)])
        session.await_idle()
        assert counted(server) == Counter([("a", 2)])
        server.stop()
        try:
            with pytest.raises(DataError) as told:
                push_more(session)
            assert "batch 1 of query 'q' must be written to the table" in str(told.value)
            assert "PostgreSQL says: connection" in str(told.value)
            assert PASSWORD not in str(told.value)
        finally:
            server.start()
    with Session(spark, checkpoint=tmp_path / "c") as session:
        session.sql(script)
        session.finish("s")
        session.await_end()
    assert counted(server) == Counter([("a", 2), ("b", 2), ("c", 1)])


@pytest.mark.spark
def test_a_table_that_is_dropped_in_the_middle_of_a_run(spark, server, tmp_path):
    with Session(spark, checkpoint=tmp_path / "c") as session:
        session.sql(f"""
            CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;
            CREATE SINK db USING postgresql OPTIONS (url '{server.url()}', table 'gone');
            CREATE QUERY q INTO db AS ISTREAM (SELECT k FROM s [NOW]);
        """)
        session.push("s", [("a", 1), ("a", 2)])
        session.await_idle()
        with psycopg.connect(server.url()) as connection:
            connection.execute("DROP TABLE gone")
        with pytest.raises(DataError, match=r'says: relation "public\.gone" does not exist;'):
            push_more(session)
