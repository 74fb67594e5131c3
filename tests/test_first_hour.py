"""What a new user meets in the first hour: on the terminal, in the shell, in Python."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from penstock.asking.onetime import Snapshot
from penstock.cli.app import app, stopped_text
from penstock.cli.live import in_place
from penstock.cli.shell import Shell, is_complete
from penstock.errors import DataError, NotSupportedError, PenstockError, QueryError
from penstock.expr.types import type_name
from penstock.masking import hide
from penstock.model import INF, MIN_TIME, Field, Schema
from penstock.physical.once import in_order
from penstock.session import QueryHandle, Session
from penstock.showing import SCREEN, number_text, terminal_table, time_text
from penstock.sinks import ConsoleSink, Result
from penstock.spark import engine
from tests.terminal import Terminal, seen_by_user

ROOT = Path(__file__).parent.parent
PENSTOCK = Path(sys.executable).parent / "penstock"
REPLAY = """
CREATE STREAM s (k STRING, x DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path '{path}') TIMESTAMP BY t;
"""


@pytest.fixture
def readings(tmp_path: Path) -> Path:
    path = tmp_path / "readings.csv"
    rows = [f"{'ab'[n % 2]},{n / 3},2024-03-01 12:00:{n:02}" for n in range(12)]
    path.write_text("k,x,t\n" + "\n".join(rows) + "\n")
    return path


# What is seen


def test_rows_stand_above_what_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    console = Console(file=terminal, force_terminal=True, width=120, height=40)  # type: ignore[arg-type]
    sink = ConsoleSink()
    schema = Schema((Field("n", pa.int64()),))
    with ExitStack() as drawing:
        live = in_place(console, Text("status 0\nsecond line"), drawing)
        for batch in range(3):
            rows = pa.table({"n": [batch * 10 + n for n in range(4)]})
            sink.publish(Result("q", batch, "stream", schema, False, rows))
            live.update(Text(f"status {batch + 1}\nsecond line"), refresh=True)
    numbers = [int(n) for n in re.findall(r"│ +(\d+) │", terminal.text)]
    assert numbers == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    assert terminal.text.rstrip().endswith("status 3\nsecond line")
    assert SCREEN.console is None


def test_numbers_and_titles_are_readable() -> None:
    shown = [number_text(n) for n in (1 / 3, 21.428571428571427, 12.0, 123456789.123, 0.0, -0.25)]
    assert shown == ["0.333333", "21.4286", "12.0", "123456789.1", "0.0", "-0.25"]
    assert [number_text(n) for n in (1e300, 1.5e-7, float("nan"), float("-inf"))] == [
        "1e+300",
        "1.5e-07",
        "NaN",
        "-Infinity",
    ]
    terminal = Terminal()
    title = "a_query_with_a_long_name: running, 1,234 rows delivered"
    Console(file=terminal, width=120).print(terminal_table(pa.table({"n": [1]}), 5, title))  # type: ignore[arg-type]
    assert terminal.text.splitlines()[0] == title


def test_times_of_a_status_are_shown_as_numbers_are() -> None:
    moment = datetime(2004, 1, 31, 22, 0, 18, tzinfo=UTC)
    for given in (moment, round(moment.timestamp() * 1_000_000)):
        assert time_text(given, stamps=True) == "2004-01-31 22:00:18"
    assert [time_text(t, stamps=True) for t in (None, MIN_TIME, INF)] == ["-", "-", "end"]
    assert time_text(18, stamps=False) == "18"


@pytest.mark.spark
def test_a_query_without_a_sink_shows_its_answers(tmp_path: Path, readings: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        REPLAY.format(path=readings)
        + "CREATE QUERY means AS SELECT k, AVG(x) AS mean FROM s GROUP BY k;"
        "CREATE QUERY large AS ISTREAM (SELECT k, x FROM s [NOW] WHERE x > 3);"
    )
    text = seen_by_user([PENSTOCK, "run", script], tmp_path)
    assert re.findall(r"│ ([ab]) │ +([\d.]+) │\n", text) == [("a", "1.66667"), ("b", "2.0")]
    assert re.findall(r"│ b │ +([\d.]+) │ 2024", text) == ["3.66667"]
    assert "large, batch 0" in text


# The shell


class Typed:
    """A shell whose output is kept."""

    def __init__(self, session: Session) -> None:
        self.terminal = Terminal()
        console = Console(file=self.terminal, force_terminal=True, width=120, height=40)  # type: ignore[arg-type]
        self.shell = Shell(session, console)

    def __call__(self, text: str) -> str:
        """Type something; return what it shows."""
        before = len(self.terminal.lines)
        assert not self.shell.take(text)
        return "\n".join("".join(line).rstrip() for line in self.terminal.lines[before - 1 :])


def test_words_for_the_shell_need_no_semicolon() -> None:
    with Session(autostart=False) as session:
        typed = Typed(session)
        for text in ("help", "HELP ;", "\\help", "\\?"):
            assert is_complete(text)
            assert "Statements end with ';'" in typed(text)
        for text in ("quit", "exit;", "\\q", " Quit "):
            assert is_complete(text)
            assert typed.shell.take(text)
        assert not is_complete("SELECT *\nFROM s")
        assert is_complete("SELECT *\nFROM s;  \n")
        assert is_complete("  ")
        completer = typed.shell._completer()
        asked, unasked = CompleteEvent(completion_requested=True), CompleteEvent(True)
        assert not list(completer.get_completions(Document("SELECT "), unasked))
        assert list(completer.get_completions(Document("SELECT "), asked))


def test_pause_says_paused(readings: Path) -> None:
    with Session(autostart=False) as session:
        typed = Typed(session)
        typed(REPLAY.format(path=readings))
        assert "query q is created" in typed("CREATE QUERY q AS SELECT k FROM s;")
        assert "query q is paused; RESUME QUERY q" in typed("PAUSE QUERY q;")


@pytest.fixture
def slow_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A Spark whose start lasts until the event is set."""
    ready = threading.Event()

    def start(*_: Any) -> Any:
        ready.wait(60)
        return spark

    monkeypatch.setattr(engine, "own_session", start)
    yield ready
    ready.set()


def interrupt_soon() -> None:
    def send() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()


def test_ctrl_c_while_spark_starts_keeps_everything(
    readings: Path, slow_spark: threading.Event
) -> None:
    starts: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Session() as session:
        session.on_spark_start.append(lambda: starts.append("start"))
        typed = Typed(session)
        typed(REPLAY.format(path=readings))
        interrupt_soon()
        text = typed("CREATE QUERY q AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;")
        assert "interrupted; all that was declared is kept, and Spark goes on starting" in text
        assert "RESUME QUERY q starts q" in text
        interrupt_soon()
        assert "interrupted" in typed("SELECT k FROM s [NOW];")
        assert [h.name for h in session.handles()] == ["q"]
        slow_spark.set()
        assert "query q runs" in typed("RESUME QUERY q;")
        assert session.await_end(100)
        assert session.query("q").rows().num_rows == 2
        # a second question about a replay that has ended: it is read again, and Spark not started
        assert "ended, 2 rows delivered" in typed("SELECT k, MAX(x) AS m FROM s GROUP BY k;")
        assert "3.66667" in typed("SELECT k, MAX(x) AS m FROM s GROUP BY k ORDER BY m LIMIT 9;")
        assert starts == ["start"]
    assert signal.getsignal(signal.SIGINT) is before


# A query that begins when its stream has ended


def test_a_second_query_reads_a_finished_replay_again(spark: Any, readings: Path) -> None:
    with Session(spark) as session:
        session.sql(REPLAY.format(path=readings))
        first = session.sql("CREATE QUERY first AS SELECT COUNT(*) AS n FROM s")
        assert session.await_end(100)
        both = session.sql(
            "CREATE QUERY second AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;"
            "CREATE QUERY third AS SELECT COUNT(*) AS n FROM s"
        )
        assert first.status()["state"] == "ended"
        assert session.await_end(100)
        assert both.rows()["n"].to_pylist() == first.rows()["n"].to_pylist() == [12]
        assert sorted(session.query("second").rows()["n"].to_pylist()) == [6, 6]
        assert set(session.catalog.streams) == {"s", "s (2)"}  # the two share what is read again
        assert both.status()["note"] == ""


def test_a_view_of_a_finished_replay_is_asked_by_its_name(spark: Any, readings: Path) -> None:
    with Session(spark) as session:
        session.sql(REPLAY.format(path=readings))
        session.sql("CREATE QUERY first AS SELECT COUNT(*) AS n FROM s")
        assert session.await_end(100)
        session.sql("CREATE MATERIALIZED VIEW kept AS SELECT k, x FROM s [ROWS 4]")
        assert session.await_end(100)
        answer = session.query("SELECT k, COUNT(*) AS n FROM kept GROUP BY k ORDER BY k")
        assert answer.to_arrow().to_pylist() == [{"k": "a", "n": 2}, {"k": "b", "n": 2}]


def test_on_a_kept_checkpoint_a_late_query_says_that_it_sees_nothing(
    spark: Any, readings: Path, tmp_path: Path
) -> None:
    with Session(spark, checkpoint=tmp_path / "checkpoint") as session:
        session.sql(REPLAY.format(path=readings))
        session.sql("CREATE QUERY first AS SELECT COUNT(*) AS n FROM s")
        assert session.await_end(100)
        typed = Typed(session)
        text = typed("CREATE QUERY second AS SELECT COUNT(*) AS n FROM s;")
        assert "query second has ended" in text
        assert "stream s had ended before query second began" in text
        assert session.query("first").status()["note"] == ""


# Handles


def test_handles_are_short(spark: Any, readings: Path) -> None:
    with Session(spark) as session:
        session.sql(REPLAY.format(path=readings))
        handle: QueryHandle = session.sql(
            'CREATE QUERY q AS SELECT k AS "a<b", AVG(x) AS mean FROM s GROUP BY k'
        )
        session.await_end(100)
        assert repr(handle) == "<query q: ended, 2 rows delivered, into memory>"
        html = handle._repr_html_()
        assert "query q: ended, 2 rows delivered" in html
        assert "<th>a&lt;b</th>" in html
        assert ">1.66667</td>" in html


def test_since_is_a_time(spark: Any) -> None:
    with Session(spark) as session:
        session.sql(
            "CREATE STREAM m (x INT, t TIMESTAMP) USING memory TIMESTAMP BY t;"
            "CREATE QUERY q AS SELECT x FROM m [ROWS 1]"
        )
        session.push("m", [(1, datetime(2024, 3, 1, 12, 0, 0, 250_000))])
        session.await_idle()
        later = session.sql("CREATE QUERY later AS SELECT x FROM m [ROWS 1]")
        session.push("m", [(2, datetime(2024, 3, 1, 12, 0, 9))])
        session.await_idle()
        assert later.status()["since"] == datetime(2024, 3, 1, 12, 0, 0, 250_001, tzinfo=UTC)
        shown = session.sql("SHOW QUERIES").to_pylist()
        assert [row["since"] for row in shown] == ["", "2024-03-01 12:00:00.250001"]


def test_a_run_without_a_checkpoint_does_not_promise_to_go_on() -> None:
    assert "goes on from here" in stopped_text(Path("checkpoint"))
    assert "the next run begins anew" in stopped_text(None)


# Notebooks


def test_a_notebook_shows_the_sentence_of_an_error() -> None:
    with Session(autostart=False) as session:
        with pytest.raises(QueryError) as told:
            session.sql("SELEC 1")
        (text,) = told.value._render_traceback_()
        assert text.startswith("QueryError: a statement cannot begin with 'SELEC'")
        assert "^^^^^" in text
    secret = "kanari-4711"
    hide(secret)
    assert secret not in DataError(f"password={secret}")._render_traceback_()[0]


def test_a_notebook_shows_the_answer_of_a_one_time_query() -> None:
    answer = Snapshot(pa.table({"n": list(range(1000))}), None, None)
    html = answer._repr_html_()
    assert "<th>n</th>" in html
    assert "more rows" in html
    assert "valid at any time" in html


# What was declared


def test_describe_and_show_create_tell_what_was_declared(readings: Path) -> None:
    with Session(autostart=False) as session:
        text = (
            "CREATE STREAM s (k STRING, x DOUBLE, t TIMESTAMP)\n"
            f"  USING replay OPTIONS (path '{readings}', rate 5)\n"
            "  TIMESTAMP BY t SLACK 90 SECONDS IDLE AFTER 2 SECONDS LATE INTO lost"
        )
        session.sql("CREATE SINK lost USING memory;" + text)
        shown = [tuple(row.values()) for row in session.sql("DESCRIBE s").to_pylist()]
        assert shown == [
            ("column", "k", "STRING"),
            ("column", "x", "DOUBLE"),
            ("column", "t", "TIMESTAMP"),
            ("format", "USING", "replay"),
            ("option", "path", str(readings)),
            ("option", "rate", "5"),
            ("clause", "TIMESTAMP BY", "t"),
            ("clause", "SLACK", "90 SECONDS"),
            ("clause", "IDLE AFTER", "2 SECONDS"),
            ("clause", "ON ERROR", "FAIL"),
            ("clause", "LATE INTO", "lost"),
        ]
        assert session.sql("SHOW CREATE STREAM S") == f"{text};"
        session.sql("CREATE TABLE names (k STRING, a BIGINT, b BIGINT) USING parquet "
                    f"OPTIONS (path '{readings.parent}') VALID FROM a TO b;"
                    "CREATE MATERIALIZED VIEW v KEEP 5 MINUTES AS SELECT k FROM s [ROWS 1];"
                    "CREATE QUERY q INTO lost AS SELECT k FROM s [NOW]")  # fmt: skip
        clauses = {
            name: [tuple(r.values())[1:] for r in session.sql(f"DESCRIBE {name}").to_pylist()
                   if r["what"] == "clause"]
            for name in ("names", "v", "q", "lost")
        }  # fmt: skip
        assert clauses == {
            "names": [("VALID FROM", "a"), ("TO", "b")],
            "v": [("KEEP", "5 MINUTES")],
            "q": [("INTO", "lost")],
            "lost": [],
        }
        assert session.sql("SHOW CREATE MATERIALIZED VIEW v").startswith("CREATE MATERIALIZED VIEW")
        session.stream("s").where("x > 1").start("built")
        assert "made in Python; its plan:" in session.sql("SHOW CREATE QUERY built")
        with pytest.raises(QueryError, match="there is no sink 'los'; did you mean 'lost'"):
            session.sql("SHOW CREATE SINK los")
        with pytest.raises(QueryError, match="or CREATE, got 'x'"):
            session.sql("SHOW x")


# penstock check

WRONG = """\
CREATE STREAM a (k STRING, t TIMESTAMP) USING kafak OPTIONS (subscribe 'x') TIMESTAMP BY t;
CREATE STREAM b (k STRING, t TIMESTAMP) USING kafka
  OPTIONS (kafka.bootstrap.server 'h:1', topik 'x', maxOffsetsPerTriger 5) TIMESTAMP BY t;
CREATE STREAM c (k STRING, t TIMESTAMP USING memory TIMESTAMP BY t;
CREATE STREAM d (k STRING, t TIMESTAMP) USING replay OPTIONS (path 'gone', sped 2) TIMESTAMP BY t;
CREATE TABLE e (k STRING) USING csv OPTIONS (path 'gone.csv', hedaer 'true');
CREATE SINK f USING jsonl OPTIONS (pth 'x');
CREATE SINK g USING sqlight OPTIONS (path 'x');
CREATE QUERY h AS SELECT k FROM c [NOW];
CREATE QUERY i AS SELECT kk FROM d [NOW];
CREATE QUERY j AS SELECT k FROM d [NOW];
"""


def test_check_tells_all_mistakes(tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(WRONG)
    result = CliRunner().invoke(app, ["check", "--no-data", str(script)])
    assert result.exit_code == 1
    told = [line for line in result.stderr.splitlines() if " error: " in line]
    wanted = [
        "the format of stream a must be one that there is, got 'kafak'; did you mean 'kafka'?",
        "no option 'kafka.bootstrap.server' of kafka (stream b); did you mean 'kafka.bootstrap.se",
        "no option 'topik' of kafka (stream b); did you mean 'topic'?",
        "no option 'maxoffsetspertriger' of kafka (stream b); did you mean 'maxoffsetspertrigger'?",
        "the stream b must have the option kafka.bootstrap.servers",
        "the stream b must have the option subscribe or subscribepattern or assign",
        "query error:",
        "no option 'sped' of replay (stream d); did you mean 'speed'?",
        "no option 'hedaer' of csv (table e); did you mean 'header'?",
        "no option 'pth' of jsonl (sink f); did you mean 'path'?",
        "the sink f must have a path",
        "the format of sink g must be one that there is, got 'sqlight'; did you mean 'sqlite'?",
        "there is no column 'kk'",
    ]
    assert len(told) == len(wanted)  # h reads c, whose own mistake is told
    for line, part in zip(told, wanted, strict=True):
        assert part in line
    assert "   5 | " in result.stderr  # every mistake has its line
    assert "| " + " " * 75 + "^" * 6 in result.stderr
    assert "13 mistakes in" in " ".join(result.stderr.split())


def test_check_looks_at_files_only_if_they_are_there(tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE STREAM d (k STRING, t TIMESTAMP) USING replay OPTIONS (path 'gone.csv') "
        "TIMESTAMP BY t;\nCREATE TABLE e (k STRING) USING csv OPTIONS (path 'gone.csv');\n"
        "CREATE STREAM p (k STRING, t BIGINT) USING parquet OPTIONS (path 'gone') TIMESTAMP BY t;\n"
        "CREATE STREAM x (k STRING, t BIGINT) USING com.example.Own OPTIONS (a 1) TIMESTAMP BY t;\n"
        "CREATE QUERY q AS SELECT d.k FROM d [NOW] JOIN e ON d.k = e.k;"
    )
    result = CliRunner().invoke(app, ["check", "--no-data", str(script)])
    assert result.exit_code == 0, result.stderr
    assert "format 'com.example.own' is not known here" in result.stderr
    result = CliRunner().invoke(app, ["check", str(script)])
    assert result.exit_code == 1
    assert result.stderr.count("data error:") == 3


def test_options_without_a_path_are_told_without_data(tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "CREATE STREAM d (k STRING, t BIGINT) USING replay TIMESTAMP BY t;"
        "CREATE STREAM b (k STRING, t BIGINT) USING json OPTIONS (mode 'x') TIMESTAMP BY t;"
        "CREATE STREAM r (k STRING, t BIGINT) USING replay OPTIONS (path 'x', rate 1, speed 2) "
        "TIMESTAMP BY t; CREATE TABLE e (k STRING) USING csv;"
        "CREATE STREAM c (k STRING, t BIGINT) USING console TIMESTAMP BY t;"
    )
    result = CliRunner().invoke(app, ["check", "--no-data", str(script)])
    assert result.stderr.count("must have a path") == 3
    assert "must have a rate or a speed, not both" in result.stderr
    assert "'console', which is a format of sinks" in result.stderr
    assert "5 mistakes" in result.stderr


# Frames


def test_frames_are_tables_and_streams(spark: Any) -> None:
    readings = pd.DataFrame(
        {
            "k": pd.Categorical(["b", "a", "b"]),
            "x": [3.0, float("nan"), 1.0],
            "t": pd.to_datetime(
                ["2024-03-01 12:00:02", "2024-03-01 12:00:01", "2024-03-01 12:00:00"]
            ),
        }
    )
    names = spark.createDataFrame([("a", "Anna"), ("b", "Bert")], "k STRING, name STRING")
    with Session(spark) as session:
        stream = session.stream(readings, time="t", name="readings")
        table = session.table(names)
        assert table.schema.names == ("k", "name")
        more = session.table(pa.table({"k": ["a"], "n": pa.array([2**31], pa.uint32())}))
        assert [type_name(t) for t in more.schema.types] == ["STRING", "BIGINT"]
        assert list(session.catalog.tables) == ["frame_1", "frame_2"]
        query = stream.window(rows=3).join(table, on="k").select("name", "x", "t").start("q")
        same = session.sql("CREATE QUERY r AS SELECT COUNT(*) AS n FROM readings")
        assert session.await_end(100)
        assert sorted(query.rows()["name"].to_pylist()) == ["Anna", "Bert", "Bert"]
        assert query.rows()["x"].null_count == 1
        assert same.rows().to_pylist() == [{"n": 3}]
        assert query.session.pipeline.observation.stream("readings").late == 0
        with pytest.raises(NotSupportedError, match="declare the source itself: CREATE STREAM"):
            session.stream(spark.readStream.format("rate").name("r").load(), time="timestamp")


def test_frames_that_cannot_be_taken_are_told() -> None:
    times = pa.table({"t": [1, None], "k": ["a", "b"]})
    with Session(autostart=False) as session:
        for call, sentence in (
            (lambda: session.stream(times), "must name its time column, time='..'.* got none"),
            (lambda: session.stream(times, time="k"), "got 'k'"),
            (lambda: session.stream(times, time="t"), "'t' of a stream must not be null"),
            (lambda: session.table([1, 2]), "as a pandas, Arrow or Spark frame.*got list"),
            (lambda: session.table(pa.table({})), "got no columns"),
            (
                lambda: session.table(pa.table({"x": pa.array([1], pa.time64("us"))})),
                "type that Penstock has, got time64",
            ),
            (lambda: session.table(pa.table({"x": pa.array([2**63], pa.uint64())})), "its row 1"),
        ):
            with pytest.raises(PenstockError, match=sentence):
                call()
        session.table(pa.table({"x": [1]}), name="kept")
        with pytest.raises(QueryError, match="must be free, but table 'kept' exists"):
            session.table(pa.table({"x": [1]}), name="kept")


def test_a_program_with_the_same_frames_goes_on(tmp_path: Path) -> None:
    paths = set()
    for _ in range(2):
        with Session(autostart=False, checkpoint=tmp_path / "checkpoint") as session:
            session.stream(pa.table({"x": [1, 2], "t": [5, 3]}), time="t", name="s")
            paths.add(session.catalog.streams["s"].options["path"])
    (path,) = paths
    assert pyarrow.parquet.read_table(path)["t"].to_pylist() == [3, 5]


# Queries over tables alone


def test_a_query_over_tables_alone_says_what_to_do(tmp_path: Path) -> None:
    prices = pa.table({"cents": [5, 7], "a": [1, 10], "b": pa.array([10, None], pa.int64())})
    pyarrow.parquet.write_table(prices, tmp_path / "prices.parquet")
    with Session(autostart=False) as session:
        declared = (
            "CREATE TABLE {} (cents BIGINT, a BIGINT, b BIGINT) USING parquet "
            f"OPTIONS (path '{tmp_path / 'prices.parquet'}')"
        )
        session.sql(f"{declared.format('price')} VALID FROM a TO b; {declared.format('plain')}")
        with pytest.raises(QueryError, match=r"ask for an instant with SELECT \.\. AS OF time"):
            session.sql("CREATE QUERY q AS SELECT cents FROM price")
        answer = session.query("SELECT cents FROM price AS OF 4")  # as the sentence says
        assert answer.to_arrow().to_pylist() == [{"cents": 5}]
        with pytest.raises(QueryError, match="ask for it once, with a SELECT that stands alone"):
            session.sql("CREATE QUERY q AS SELECT cents FROM plain")
        assert len(session.query("SELECT cents FROM plain")) == 2


# Order


def test_a_snapshot_is_shown_in_an_order_that_stays(readings: Path) -> None:
    rows = pa.table({"k": ["b", "a", "c", None], "n": [1, 2, 2, 3]})
    with Session(autostart=False) as session:
        session.sql(REPLAY.format(path=readings))
        plain = session.sql("CREATE QUERY p AS SELECT k, COUNT(*) AS n FROM s GROUP BY k")
        top = session.sql(
            "CREATE QUERY o AS SELECT k, COUNT(*) AS n FROM s GROUP BY k ORDER BY n DESC LIMIT 9"
        )
        hidden = session.sql(
            "CREATE QUERY h AS SELECT k FROM s GROUP BY k ORDER BY COUNT(*) DESC LIMIT 9"
        )
        for shuffled in (rows, rows.take([3, 1, 0, 2]), rows.take([2, 3, 1, 0])):
            shown = in_order(plain.definition.plan, shuffled)
            assert shown["k"].to_pylist() == [None, "a", "b", "c"]
            shown = in_order(top.definition.plan, shuffled)
            assert shown["k"].to_pylist() == [None, "a", "c", "b"]
            shown = in_order(hidden.definition.plan, shuffled.select(["k"]))
            assert shown["k"].to_pylist() == [None, "a", "b", "c"]
