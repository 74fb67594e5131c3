"""What a user can get wrong outside the language: files, options, settings, sinks, sessions.

Every mistake gets a sentence that says what must hold, what was found and what to do. Mistakes in
the text of statements are in test_mistakes_cql.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import (
    ConfigError,
    DataError,
    PenstockError,
    QueryError,
    StateError,
    underline,
)
from penstock.session import Session
from penstock.testing import Rig

DECLARED = """
CREATE STREAM s (k STRING, x INT, t TIMESTAMP) USING memory TIMESTAMP BY t;
CREATE STREAM file (k STRING, x INT, t BIGINT) USING replay OPTIONS (path '{folder}/s.csv')
  TIMESTAMP BY t;
CREATE TABLE d (k STRING) USING csv OPTIONS (path '{folder}/s.csv');
CREATE SINK out USING jsonl OPTIONS (path '{folder}/out');
CREATE SINK called USING callback;
CREATE VIEW recent AS SELECT * FROM s [ROWS 3];
CREATE QUERY used INTO out AS SELECT s.k FROM s [NOW] JOIN d ON s.k = d.k;
"""


ONE_QUERY = """
CREATE STREAM s (x INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY q AS SELECT x FROM s [NOW]
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "s.csv").write_text("k,x,t\na,1,1\n")
    (tmp_path / "bad.parquet").write_text("this is not parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary.txt").write_text("dear diary")
    with Session(autostart=False) as made:
        made.sql(DECLARED.format(folder=tmp_path))
        yield made


STREAM = "CREATE STREAM n (k STRING, x INT, t BIGINT) USING {} TIMESTAMP BY t"

STATEMENTS: list[tuple[str, type[PenstockError], str]] = [
    # names, through a session
    ("CREATE QUERY n AS SELECT * FROM t [NOW]", QueryError, "no stream, table or view 't'"),
    ("CREATE QUERY n AS SELECT y FROM s [NOW]", QueryError, "there is no column 'y'"),
    ("CREATE QUERY n AS SELECT uper(k) u FROM s [NOW]", QueryError, "did you mean 'upper'?"),
    ("CREATE QUERY n AS SELECT k + 1 u FROM s [NOW]", QueryError, "got STRING, INT"),
    ("CREATE QUERY used AS SELECT k FROM s [NOW]", QueryError, "query 'used' exists; DROP it"),
    ("CREATE SINK out USING console", QueryError, "sink 'out' exists"),
    ("CREATE VIEW d AS SELECT k FROM s [NOW]", QueryError, "table 'd' exists"),
    ("CREATE QUERY n INTO nowhere AS SELECT k FROM s [NOW]", QueryError, "no sink 'nowhere'"),
    ("CREATE QUERY n AS SELECT k FROM d", QueryError, "must read a stream"),
    ("SELECT k FROM d", QueryError, "must read at least one stream"),
    ("DROP STREAM s", QueryError, "stream 's' is used by query used; DROP the query first"),
    ("DROP TABLE d", QueryError, "table 'd' is used by query used"),
    ("DROP SINK out", QueryError, "sink 'out' is used by query used"),
    ("DROP QUERY usd", QueryError, "there is no query 'usd'; did you mean 'used'?"),
    ("PAUSE QUERY nothing", QueryError, "there is no query 'nothing'"),
    ("DESCRIBE nothing", QueryError, "there is nothing called 'nothing'"),
    # times
    (
        "CREATE STREAM n (k STRING, t BIGINT) USING memory",
        QueryError,
        "a stream must say TIMESTAMP BY <column>; columns that can be one: t",
    ),
    ("CREATE QUERY n AS SELECT k FROM s [RANGE 5 PARSECS]", QueryError, "no unit 'PARSECS'"),
    ("CREATE QUERY n AS SELECT k FROM s [RANGE 0]", QueryError, "RANGE"),
    ("CREATE QUERY n AS SELECT k FROM file [RANGE 5 SECONDS]", QueryError, "SECONDS"),
    # files
    (
        STREAM.format("replay OPTIONS (path '{folder}/gone.csv')"),
        DataError,
        "the path of stream n must exist, got '{folder}/gone.csv'",
    ),
    (STREAM.format("replay"), DataError, "the stream n must have a path; add OPTIONS (path"),
    (STREAM.format("json"), DataError, "the stream n must have a path"),
    (
        STREAM.format("json OPTIONS (path '{folder}', missing 'error')"),
        ConfigError,
        "the option missing of stream n is one of replayed files",
    ),
    (
        STREAM.format("csv OPTIONS (path '{folder}/gone')"),
        DataError,
        "the path of stream n must exist",
    ),
    (
        STREAM.format("replay OPTIONS (path '{folder}/bad.parquet')"),
        DataError,
        "must be a whole Parquet file",
    ),
    (
        "CREATE STREAM n (k STRING, y INT, t BIGINT) USING replay OPTIONS (path '{folder}/s.csv') "
        "TIMESTAMP BY t",
        DataError,
        "'y'",
    ),
    (
        "CREATE TABLE n (k STRING) USING csv OPTIONS (path '{folder}/gone.csv')",
        DataError,
        "the path of table n must exist, got '{folder}/gone.csv'",
    ),
    ("CREATE TABLE n (k STRING) USING parquet", DataError, "the table n must have a path"),
    # options
    (
        STREAM.format("replay OPTIONS (path '{folder}/s.csv', rat '5')"),
        ConfigError,
        "there is no option 'rat' of the stream format replay (stream n); did you mean 'rate'?",
    ),
    (
        STREAM.format("replay OPTIONS (path '{folder}/s.csv', rate 'fast')"),
        DataError,
        "the option rate of stream n must be a number above 0, got 'fast'",
    ),
    (
        STREAM.format("replay OPTIONS (path '{folder}/s.csv', rate '1', speed '1')"),
        ConfigError,
        "must have a rate or a speed, not both",
    ),
    (
        STREAM.format("replay OPTIONS (path '{folder}/s.csv', loop 'maybe')"),
        DataError,
        "the option loop of stream n must be 'true', 'false' or a number",
    ),
    (STREAM.format("memory OPTIONS (path 'x')"), ConfigError, "no option 'path'"),
    (
        STREAM.format("csv OPTIONS (path '{folder}', mode 'dropMalformed')"),
        ConfigError,
        "the option mode of stream n must not be DROPMALFORMED, because rows are never dropped",
    ),
    ("CREATE SINK n USING jsonl", ConfigError, "the sink n must have a path"),
    (
        "CREATE SINK n USING csv OPTIONS (path 'p', chnges 'log')",
        ConfigError,
        "there is no option 'chnges' of the sink format csv (sink n); did you mean 'changes'?",
    ),
    (
        "CREATE SINK n USING memory OPTIONS (changes 'diff')",
        QueryError,
        "must be one of intervals, log, view, got 'diff'",
    ),
    (
        "CREATE SINK n USING console OPTIONS (rows 'many')",
        ConfigError,
        "must be a number of rows from 1, got 'many'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "sentence"), STATEMENTS, ids=[text for text, _, _ in STATEMENTS]
)
def test_statements(
    session: Session, tmp_path: Path, text: str, kind: type[PenstockError], sentence: str
) -> None:
    before = {h.name for h in session.handles()}
    with pytest.raises(kind) as caught:
        session.sql(text.replace("{folder}", str(tmp_path)))
    assert sentence.replace("{folder}", str(tmp_path)) in str(caught.value)
    assert {h.name for h in session.handles()} == before


PUSHES: list[tuple[str, Any, type[PenstockError], str]] = [
    ("file", [("a", 1, 1)], QueryError, "rows can be pushed to a stream USING memory, but stream"),
    ("nothing", [], QueryError, "there is no stream 'nothing'"),
    ("s", [("a", "one", 1)], DataError, "the column 'x' of row 0 must be INT, got 'one'"),
    ("s", [("a", 1, "noon")], DataError, "the column 't' of row 0 must be TIMESTAMP, got 'noon'"),
    ("s", [("a", 1)], DataError, "row 0 must have 3 values (k, x, t), got 2"),
    ("s", [{"k": "a", "y": 1}], DataError, "row 0 must have only declared columns, got 'y'"),
    ("s", ["a"], DataError, "row 0 must be a dict or a tuple, got str"),
    ("s", 5, DataError, "must be a list of dicts or tuples, an Arrow table"),
    ("s", pa.table({"z": [1]}), DataError, "must have only declared columns, got 'z'"),
    ("s", pa.table({"x": ["one"]}), DataError, "the column 'x'"),
]


@pytest.mark.parametrize(("stream", "rows", "kind", "sentence"), PUSHES)
def test_pushes(session: Session, stream: str, rows: Any, kind: Any, sentence: str) -> None:
    with pytest.raises(kind) as caught:
        session.push(stream, rows)
    assert sentence in str(caught.value)


def test_rows_after_the_end(session: Session) -> None:
    session.finish("s")
    with pytest.raises(DataError, match=r"rows must be pushed before finish\(\)"):
        session.push("s", [("a", 1, 0)])


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"shard": 2}, "there is no setting 'shard'; did you mean 'shards'? known: batch.bytes"),
    ({"shards": "two"}, "the setting 'shards' must be a whole number, got 'two'; its default is 0"),
    ({"shards": -1}, "the setting 'shards' must be at least 0, got -1"),
    ({"batch.rows": 0}, "the setting 'batch.rows' must be at least 1, got 0"),
    (
        {"trigger": "soon"},
        "the setting 'trigger' must be a time such as 100ms, 5s or 2m, got 'soon'",
    ),
    ({"scheduler": "random"}, "must be one of fifo, fifo+, roundrobin, roundrobin+, topological"),
    ({"lane": "no"}, "the setting 'lane' must be true or false, on or off, got 'no'"),
    ({"lane.queue": "stong"}, "strong2, levels, got 'stong'; did you mean 'strong'?"),
    ({"lane.que": "weak"}, "there is no setting 'lane.que'; did you mean 'lane.queue'?"),
    ({"lane.rows": "0"}, "the setting 'lane.rows' must be at least 1, got '0'"),
    ({"lane.scheduler": "chain"}, "the setting 'lane.scheduler' must be one of highestpriority"),
    ({"rules": "perhaps"}, "the setting 'rules' must be true or false, on or off, got 'perhaps'"),
]


@pytest.mark.parametrize(("settings", "sentence"), SETTINGS)
def test_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Session(settings=settings)
    assert sentence in str(caught.value)


def test_a_closed_session(session: Session) -> None:
    session.close()
    session.close()  # twice does no harm
    calls: list[Any] = [
        lambda: session.sql("SHOW QUERIES"),
        lambda: session.push("s", []),
        lambda: session.start(),
        lambda: session.stream("s").start("late"),
        lambda: session.pipeline,
    ]
    for call in calls:
        with pytest.raises(StateError, match="a session must be open to be used, but it is closed"):
            call()


def test_rows_of_a_query_that_goes_elsewhere(session: Session) -> None:
    with pytest.raises(QueryError, match="rows are kept only by a memory sink, but query 'used'"):
        session.query("used").rows()
    with pytest.raises(QueryError, match="there is no query 'usd'; did you mean 'used'"):
        session.query("usd")
    with pytest.raises(QueryError, match=r"EXPLAIN must be one of logical, .*, got 'deep'"):
        session.query("used").explain("deep")


def test_secrets_are_not_shown(session: Session) -> None:
    session.sql("CREATE SINK db USING jdbc OPTIONS (url 'jdbc:x', password 'hunter2')")
    shown = session.sql("DESCRIBE db").to_pylist()
    options = {row["name"]: row["value"] for row in shown if row["what"] == "option"}
    assert options == {"url": "jdbc:x", "password": "***"}
    text = session.sql("SHOW CREATE SINK db")
    assert "CREATE SINK db USING jdbc" in text
    assert "hunter2" not in text


# The command line


CALLS: list[tuple[list[str], str]] = [
    (["run", "{folder}/gone.sql"], "data error: the script must be a text file that can be read"),
    (["run", "{folder}"], "data error: the script must be a text file"),
    (["run", "{folder}/empty.sql"], "config error: a script to run must create at least one query"),
    (["run", "{folder}/wrong.sql"], "query error: there is no stream, table or view 's'"),
    (["run", "{folder}/empty.sql", "--set", "shards"], "--set must be key=value, got 'shards'"),
    (["run", "{folder}/empty.sql", "--set", "x=1"], "config error: there is no setting 'x'"),
    (["check", "{folder}/wrong.sql"], "SELECT * FROM s [NOW]"),
    (["check", "{folder}/gone.sql"], "the script must be a text file"),
    (["explain", "{folder}/good.sql", "--query", "w"], "query error: there is no query 'w'"),
    (["explain", "{folder}/good.sql", "--level", "deep"], "must be one of logical, optimized"),
    (["cat", "{folder}/gone"], "data error: a sink's folder must exist, got"),
    (["cat", "{folder}"], "must be one of a sink of Penstock, but it has no _penstock.json"),
]


@pytest.mark.parametrize(("words", "sentence"), CALLS, ids=[" ".join(w) for w, _ in CALLS])
def test_commands(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "empty.sql").write_text("-- nothing here yet\n")
    (tmp_path / "wrong.sql").write_text("CREATE QUERY q AS SELECT * FROM s [NOW];")
    (tmp_path / "good.sql").write_text(
        "CREATE STREAM s (x INT, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT * FROM s [NOW];"
    )
    result = CliRunner().invoke(app, [word.format(folder=tmp_path) for word in words])
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.output


# What is found when Spark runs


STARTS: list[tuple[str, type[PenstockError], str]] = [
    (
        "CREATE SINK n USING csv OPTIONS (path '{folder}/full'); "
        "CREATE QUERY n INTO n AS SELECT k FROM s [NOW]",
        ConfigError,
        "must be new, empty or made by Penstock, but '{folder}/full' holds 'diary.txt'",
    ),
    (
        "CREATE QUERY n INTO called AS SELECT k FROM s [NOW]",
        ConfigError,
        "the sink called must have a function, because its format is callback",
    ),
    (
        STREAM.format("nonsense") + "; CREATE QUERY n AS SELECT k FROM n [NOW]",
        DataError,
        "the stream n must be readable by Spark as format 'nonsense'",
    ),
]  # fmt: skip


@pytest.mark.spark
def test_starts(spark: Any, tmp_path: Path, session: Session) -> None:
    session._spark = spark
    for text, kind, sentence in STARTS:
        session.sql(text.replace("{folder}", str(tmp_path)))
        with pytest.raises(kind) as caught:
            session.start()
        assert sentence.replace("{folder}", str(tmp_path)) in str(caught.value)
        session.sql("DROP QUERY IF EXISTS n; DROP SINK IF EXISTS n")
    assert not session.pipeline.active


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ("folder", "files must be readable and writable, but: [Errno 21] Is a directory"),
        ("loop", "files must be readable and writable, but: [Errno 40] Too many levels of"),
        ("nowhere", "files must be readable and writable, but: [Errno 2] No such file"),
    ],
)
def test_files_of_a_checkpoint_that_are_none(tmp_path: Path, found: str, sentence: str) -> None:
    """What the system does not allow at the start is a sentence, with the path in it."""
    lock = tmp_path / "checkpoint" / "lock"
    lock.parent.mkdir()
    if found == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(lock if found == "loop" else tmp_path / "gone" / "lock")
    with Session(checkpoint=lock.parent, autostart=False) as session:
        session.sql(ONE_QUERY)
        with pytest.raises(StateError) as caught:
            session.start()
    assert sentence in str(caught.value)
    assert str(lock) in str(caught.value)


@pytest.mark.spark
def test_damaged_checkpoints(spark: Any, tmp_path: Path) -> None:
    manifests = tmp_path / "checkpoint" / "manifest"
    manifests.mkdir(parents=True)
    for text, sentence in (
        ("{", "must be JSON"),
        ('{"format": 99}', "must have format 6, got 99; it was made by another version"),
    ):
        (manifests / "0000000003.json").write_text(text)
        for _ in range(2):  # the lock is given back
            with (
                Session(spark, checkpoint=tmp_path / "checkpoint") as session,
                pytest.raises(StateError, match=sentence),
            ):
                session.sql(ONE_QUERY)
    (tmp_path / "file").write_text("")
    with (
        Session(spark, checkpoint=tmp_path / "file") as session,
        pytest.raises(StateError, match="the checkpoint must be a folder that can be written"),
    ):
        session.sql(ONE_QUERY)


def test_long_lines_are_cut() -> None:
    """Of a script in one line only the part around the mistake is shown."""
    text = "SELECT 1; " * 50 + "SELECT wrong" + "; SELECT 2" * 50
    shown, marks = underline(text, 507, 512).splitlines()
    assert len(shown) < 140
    assert shown[marks.index("^") : marks.rindex("^") + 1] == text[507:512]


def test_a_watched_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"x": 1, "t": 1}\n')
    script = (
        f"CREATE STREAM s (x BIGINT, t BIGINT) USING json OPTIONS (path '{file}') TIMESTAMP BY t"
    )
    with (
        Session(autostart=False) as session,
        pytest.raises(ConfigError, match=r"must be a folder, .* but .*a\.json is a file"),
    ):
        session.sql(script)


def test_bounds_of_a_window_function_are_named_by_its_name() -> None:
    with pytest.raises(QueryError, match=r"window\.start and window\.end"):
        Rig(
            "CREATE STREAM s (x BIGINT, t TIMESTAMP) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q AS SELECT window(t, '5 minutes').start FROM s "
            "GROUP BY window(t, '5 minutes')"
        )


RUNNING = """
CREATE STREAM s (k INT, t BIGINT) USING memory TIMESTAMP BY t;
CREATE QUERY q AS SELECT k FROM s [RANGE 5];
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (RUNNING + "SET join.windows = apart", "'join.windows' must be given when the session is"),
        (RUNNING + "SET filter.order = written", "'filter.order' must be given when the session"),
        ("SET scheduler = chian", "got 'chian'; did you mean 'chain'?"),
        ("SET = 3", "SET must be followed by the name of a setting such as scheduler, got '='"),
        ("SET stage. = 3", "SET must be followed by the name of a setting such as scheduler"),
        ("SET stage.memory = lots", "'stage.memory' must be a size such as 64m or 2g, got 'lots'"),
        ("SET scheduler", "SET scheduler must be followed by = and a value, got the end"),
    ],
)
def test_mistakes_in_set(text: str, sentence: str) -> None:
    with pytest.raises(PenstockError) as caught:
        Rig(text)
    assert sentence in str(caught.value)


def test_names_and_values_of_settings_in_any_case() -> None:
    rig = Rig("SET SCHEDULER = MergedChain+; SET stage.memory = 32m")
    assert rig._engine.config.scheduler == "mergedchain+"
    assert rig._engine.config.stage_memory == 32 << 20
