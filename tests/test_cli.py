"""The command line: what it prints, what it leaves behind, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock import __version__
from penstock.cli import app
from penstock.cli.live import LiveTable
from penstock.cli.shell import Shell
from penstock.model import INF, MIN_TIME
from penstock.session import Session
from penstock.showing import size_text, terminal_table, time_text
from penstock.sinks import read_committed
from tests.comparison import check_answer
from tests.world import World, make_world

SCRIPT = """
CREATE SINK rows USING jsonl OPTIONS (path '{out}/rows');
CREATE SINK sums USING parquet OPTIONS (path '{out}/sums');
CREATE QUERY rows INTO rows AS SELECT * FROM s [ROWS 3];
CREATE QUERY sums INTO sums AS
  SELECT s.k, SUM(r.x) AS total FROM s [RANGE 5] JOIN r [ROWS 4] ON s.k = r.k GROUP BY s.k;
"""


def write_script(folder: Path, world: World, **options: str) -> Path:
    """Write a script over the world's streams, with more options for these."""
    more = "".join(f", {name} '{value}'" for name, value in options.items())
    text = world.declarations().replace("null 'NULL'", f"null 'NULL'{more}")
    path = folder / "script.sql"
    path.write_text(text + SCRIPT.format(out=folder / "out"))
    return path


def penstock(*words: Any, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [Path(sys.executable).parent / "penstock", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def check_outputs(folder: Path, world: World, script: Path) -> None:
    """Compare what the sinks hold with the oracle."""
    with Session(autostart=False) as session:
        session.sql(script.read_text())
        for handle in session.handles():
            rows = []
            for row in read_committed(folder / "out" / handle.name):
                *values, start, end = row.values()
                rows.append((tuple(values), start, INF if end is None else end))
            check_answer(handle.definition.plan, rows, world.inputs())


# Without Spark


def test_check_counts_what_is_declared(tmp_path: Path) -> None:
    script = write_script(tmp_path, make_world(tmp_path, rows=3))
    result = CliRunner().invoke(app, ["check", str(script)])
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "3 streams, 1 table, 2 sinks, 2 queries; all can be planned" in text
    assert not (tmp_path / "out").exists()


def test_explain_shows_all_levels_or_one(tmp_path: Path) -> None:
    script = write_script(tmp_path, make_world(tmp_path, rows=3))
    whole = CliRunner().invoke(app, ["explain", str(script), "--set", "shards=3"]).stdout
    for part in ("query rows", "query sums", "logical plan", "optimized plan", "physical plan"):
        assert part in whole
    assert "one Spark job per batch" in whole
    assert "3 shards" in whole
    one = (
        CliRunner()
        .invoke(app, ["explain", str(script), "--query", "rows", "--level", "logical"])
        .stdout
    )
    assert "query sums" not in one
    assert "physical plan" not in one
    assert "[ROWS 3]" in one


def test_cat_prints_committed_rows(tmp_path: Path) -> None:
    folder = tmp_path / "sink"
    folder.mkdir()
    marker = {"penstock": 1, "format": "jsonl", "queries": {}}
    (folder / "_penstock.json").write_text(json.dumps(marker))
    (folder / "q-0000000001.jsonl").write_text('{"k": "é", "_time": 3}\n')
    (folder / "q-0000000000.jsonl").write_text('{"k": "b", "_time": 5}\n')
    (folder / ".q-0000000002.jsonl.tmp").write_text('{"k": "c", "_ti')
    result = CliRunner().invoke(app, ["cat", str(folder)])
    assert result.exit_code == 0
    assert result.stdout == '{"k": "é", "_time": 3}\n{"k": "b", "_time": 5}\n'


def test_version_and_help() -> None:
    assert CliRunner().invoke(app, ["version"]).stdout.strip() == __version__
    text = CliRunner().invoke(app, ["--help"]).stdout
    for command in ("run", "check", "explain", "cat", "sql"):
        assert command in text


def test_planning_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write_script(tmp_path, make_world(tmp_path, rows=3))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for command in ("check", "explain"):
        assert CliRunner().invoke(app, [command, str(script)]).exit_code == 0
    assert list(temporary.iterdir()) == []


def test_a_machine_without_java_is_told_so(tmp_path: Path) -> None:
    script = write_script(tmp_path, make_world(tmp_path, rows=3))
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "env", "ps", "sh", "cat", "basename", "readlink", "uname"):
        found = next((p for p in (f"/bin/{tool}", f"/usr/bin/{tool}") if Path(p).exists()), None)
        if found is not None:
            (tools / tool).symlink_to(found)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAVA", "SPARK"))}
    process = penstock("run", script, env=env | {"PATH": str(tools)})
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out
    assert "config error: Spark needs Java 17 or newer, but there is none on the PATH" in err
    assert "Java 17 or newer" in err
    assert "Traceback" not in err


# Pieces of the terminal


def test_times_and_sizes_as_people_read_them() -> None:
    assert time_text(None, True) == time_text(MIN_TIME, True) == "-"
    assert time_text(INF, True) == "end"
    assert time_text(42, False) == "42"
    assert time_text(1_709_294_400_000_000, True) == "2024-03-01 12:00:00"
    assert time_text(2**62, True) == str(2**62)
    assert [size_text(n) for n in (5, 2048, 3 << 20, 5 << 30)] == [
        "5 B",
        "2.0 KB",
        "3.0 MB",
        "5.0 GB",
    ]


def printed(call: Any) -> str:
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    call(console)
    return console.export_text()


def test_the_shell_shows_answers_and_goes_on_after_mistakes(tmp_path: Path) -> None:
    with Session(autostart=False) as session:

        def play(console: Console) -> None:
            shell = Shell(session, console)
            assert shell.run("CREATE STREAM s (x INT, t BIGINT) USING memory TIMESTAMP BY t;")
            assert shell.run("SHOW STREAMS;")
            assert shell.run("DESCRIBE s;")
            assert not shell.run("SELECT y FROM s;")
            assert not shell.run("SELEC;")
            assert shell.run("EXPLAIN SELECT x FROM s [NOW];")
            assert shell._command("\\help") is False
            assert shell._command("\\watch nothing") is False
            assert shell._command("\\q") is True
            words = shell._completer().words
            assert {"SELECT", "PRIORITY", "_priority", "s", "x", "UPPER"} <= set(words)

        text = printed(play)
    assert "memory" in text
    assert "BIGINT" in text
    assert "there is no column 'y'" in text
    assert "error:" in text
    assert "one Spark job per batch" in text
    assert "there is no query 'nothing'" in text
    assert "\\watch q shows" in text


def test_long_answers_are_cut() -> None:
    rows = __import__("pyarrow").table({"name": ["a", None, "c"], "n": [1, 2, 3]})
    text = printed(lambda console: console.print(terminal_table(rows, 2, "title")))
    assert "title" in text
    assert "1 more" in text
    assert "None" not in text


# With Spark


@pytest.mark.spark
def test_the_live_table(spark: Any) -> None:
    with Session(spark, settings={"shards": 1}) as session:
        session.sql(
            "CREATE STREAM s (x INT, t BIGINT) USING memory TIMESTAMP BY t SLACK 2;"
            "CREATE QUERY last_two AS SELECT x FROM s [ROWS 2];"
            "CREATE QUERY paused AS SELECT x FROM s [ROWS 3]; PAUSE QUERY paused"
        )
        session.push("s", [(1, 5), (2, 10), (3, 4)])
        session.await_idle()

        def play(console: Console) -> None:
            table = LiveTable(session, console, "title")
            console.print(table.render())
            console.print(table.line())
            with table:
                table.tick()

        text = printed(play)
        shown = session.sql("SHOW QUERIES").to_pylist()
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    # rows, late, rejected, heartbeat, lag, waiting
    assert lines["s"][1:] == ["3", "1", "0", "8", "2", "0", "rows"]
    assert lines["last_two"][1] == "running"
    assert lines["paused"][1] == "paused"
    assert "in 3 rows" in text
    assert [row["state"] for row in shown] == ["running", "paused"]


@pytest.mark.spark
def test_run_to_the_end_and_again(tmp_path: Path) -> None:
    """Ends with 0; the same command on the same checkpoint adds nothing; a new one is refused."""
    world = make_world(tmp_path, rows=40)
    script = write_script(tmp_path, world)
    words = ("run", script, "--checkpoint", tmp_path / "checkpoint", "--set", "batch.rows=20")
    process = penstock(*words)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert out == ""
    assert "rows" in err
    check_outputs(tmp_path, world, script)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*-*")}
    process = penstock(*words, "--once")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*-*")} == before


@pytest.mark.spark
def test_stopped_by_a_signal_it_goes_on(tmp_path: Path) -> None:
    world = make_world(tmp_path, rows=60)
    script = write_script(tmp_path, world, rate="12")
    words = ("run", script, "--checkpoint", tmp_path / "checkpoint")
    process = penstock(*words)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "out").glob("rows/rows-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "the same command with the same --checkpoint goes on from here" in err
    reached = max(int(p.stem) for p in (tmp_path / "checkpoint" / "manifest").glob("0*.json"))
    process = penstock(*words)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    last = max(int(p.stem) for p in (tmp_path / "checkpoint" / "manifest").glob("0*.json"))
    assert last > reached
    check_outputs(tmp_path, world, script)
