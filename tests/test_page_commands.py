"""Every command of the documentation is run as it is printed, where it draws in a terminal.

The commands are taken from the pages: shell blocks, lines after ``$``, and what stands between
backticks.  Listed here are only what a placeholder such as ``FILE.sql`` stands for, and commands
that a test cannot run, with the reason; of these the names of options are looked at.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from penstock.cli.app import app
from penstock.cql.grammar.parse import parse_script
from penstock.spark import engine
from tests.pages import PAGES, ROOT, Command, blocks_of, commands_of, on_screen, options_of
from tests.terminal import Program, here, seen_by_user

PENSTOCK = str(Path(sys.executable).parent / "penstock")
COMMANDS = [command for page in PAGES for command in commands_of(page)]
LANGUAGE = blocks_of(ROOT / "docs/language.md")
QUESTION = "SELECT city, MAX(celsius) AS top FROM recent GROUP BY city"

STANDS_FOR = {
    "FILE.sql": "script.sql",
    "[FILE.sql]": "script.sql",
    "FOLDER": "checkpoint",
    "SELECT …": QUESTION,
    "SELECT ...": QUESTION,
    ".venv/bin/penstock": "penstock",
}
"""What the words that are not meant literally stand for."""

LONG = {
    "penstock bench": "minutes; `test_bench_papers` runs them with fewer rows",
    "python -m benchmarks.endurance": "hours",
    "python -m benchmarks packing": "minutes, with a Spark of its own",
    "python -m benchmarks.time_moves": "minutes, with a Spark of its own",
    "python -m benchmarks.trains": "minutes, and much memory",
    "python -m benchmarks eddies": "minutes",
    "python -m benchmarks.shared_joins": "minutes; `test_benchmarks` runs it with fewer rows",
    "python -m benchmarks.policies": "a minute",
    "python -m benchmarks.outer_joins": "a minute; `test_benchmarks` runs it with fewer rows",
    "python -m benchmarks.functions": "a minute; `test_own_functions` calls such functions",
    "python -m benchmarks.alarms": "half an hour; `test_lane_life` and others have alarms",
    "python -m benchmarks.service": "a minute; `test_schedule` runs the policies",
}
"""Commands that are not run, but asked for help: their options must be there."""

ELSEWHERE = {
    "pip install .": "needs the network; `make setup` has done it before any test",
    "pip install 'penstock[postgresql]'": "needs the network; so has `make setup`",
}
"""Commands that would change the environment of the tests."""

SHOWN = {
    "run": (r"half_hour +ended", r"warm +ended +291", r"│ ATHENS +│ 9\.71667 │"),
    "run examples/own_functions": (r"mildest +ended", r"trend +ended"),
    "run examples/nexmark": (r"q5 +ended",),
    "run examples/linear_road": (r"toll_notices +ended", r"accident_alerts +ended"),
    "run examples/cities": (r"average_of_every_city +ended +566", r"│ THESSALONIKI │ +7\.05 │"),
    "check": (r"script\.sql: 1 stream, 1 sink, 2 views, 4 queries; all can be planned",),
    "explain": (r"query half_hour\nlogical plan", r"optimized plan", r"physical plan"),
    "cat": (r'{"city": "ATHENS", "celsius": 9\.42, "_time": "2004-02-01T01:59:27"}\s*\Z',),
    "query": (r"│ recent +│ 2004-02-01 01:49:27 │ ever │ sensor, city, celsius, t │",),
    f"query --checkpoint checkpoint '{QUESTION}": (r"│ ATHENS +│ +9\.92 │", r"valid at 2004"),
    "checkpoint rewind-sink": (r"sink files, warm: is where the checkpoint is",),
}
"""What must stand on the screen in the end, by how the command begins; the longest counts."""


def words(command: Command) -> list[str]:
    """Return the words of a command, with what placeholders stand for."""
    given = shlex.split(re.sub(r" \[sink \.\.\]", "", command.text))
    folder = "out" if "cat" in given else "checkpoint"
    return [folder if word == "DIR" else STANDS_FOR.get(word, word) for word in given]


def rule_of(command: Command) -> str:
    """Return how a command is run; nothing: nobody does."""
    given, text = words(command), shlex.join(words(command))
    if command.text in ELSEWHERE:
        return "elsewhere"
    if any(text.startswith(long) for long in LONG):
        return "long"
    match given:
        case ["make", *_] | ["pytest"] | ["python", "-m", _]:
            return given[0]
        case ["python", script, *_] if script.startswith("examples/"):
            return "script"
        case ["penstock", "sql", *_]:
            return "shell"
        case ["penstock", _]:
            return "named"
        case ["penstock", *_]:
            return "whole" if command.printed else "penstock"
    return ""


def distinct(rule: str) -> list[Any]:
    """Return the commands with a rule, each once, whichever pages print it."""
    found = {shlex.join(words(c)): c for c in reversed(COMMANDS) if rule_of(c) == rule}
    return [pytest.param(c, id=text) for text, c in sorted(found.items())]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_somebody_runs_this_command(command: Command) -> None:
    assert rule_of(command), f"nobody runs this command: {command}"


# The program itself


def parser_of(given: list[str]) -> click.Command:
    """Return the part of the command line that takes these words."""
    parser: Any = typer.main.get_command(app)
    for word in given:
        if word in getattr(parser, "commands", ()):
            parser = parser.commands[word]
    assert not hasattr(parser, "commands"), f"there is no command {given}"
    return parser


def options(parser: click.Command) -> set[str]:
    return {name for parameter in parser.params for name in parameter.opts}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_options_of_a_page_are_there(page: Path) -> None:
    commands: Any = typer.main.get_command(app)
    known: set[str] = set()
    parsers = list(commands.commands.values())
    while parsers:
        parser = parsers.pop()
        known |= options(parser)
        parsers += getattr(parser, "commands", {}).values()
    assert options_of(page) <= known


@pytest.mark.parametrize("command", distinct("named"))
def test_a_command_that_is_only_named_is_there(command: Command) -> None:
    assert parser_of(words(command)[1:]).help


def new_folder(place: Path) -> Path:
    """Make a folder with the examples and the script of the page about the language."""
    shutil.copytree(ROOT / "examples", place / "examples")
    declared = [b for b in LANGUAGE if b.heading in ("A script", "Views and queries")]
    script = "\n".join(block.text for block in declared if block.language == "sql")
    script += (
        "CREATE SINK files USING jsonl OPTIONS (path 'out');\n"
        "CREATE QUERY warm INTO files AS ISTREAM (SELECT city, celsius FROM temperature [NOW]);\n"
    )
    for name in ("script.sql", "queries.sql"):
        (place / name).write_text(script)
    return place


FEW = {
    "examples/nexmark/generate.py": ["--events", "3000"],
    "examples/linear_road/generate.py": ["--minutes", "1", "--last", "20", "--days", "2"],
}
"""What keeps the generators of events short."""
MADE = {
    "examples/nexmark/generate.py": {"person.csv", "auction.csv", "bid.csv"},
    "examples/linear_road/generate.py": {"traffic.csv", "history.csv"},
}


def make_events(given: list[str], folder: Path) -> str:
    """Run a generator of events, for few of them."""
    making = [sys.executable, *given[1:], *FEW[given[1]]]
    return subprocess.run(making, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("command", distinct("script"))
def test_a_script_makes_what_it_says(command: Command, tmp_path: Path) -> None:
    given, folder = words(command), new_folder(tmp_path)
    make_events(given, folder)
    (data,) = folder.glob("*-data")
    made = {path.name for path in data.iterdir()}
    assert MADE[given[1]] <= made
    assert ("bid.parquet" in made) == ("parquet" in " ".join(given))


@pytest.fixture(scope="module")
def call(spark: Any) -> Callable[[list[str], Path], str]:
    """Runs the installed command in this process, in a terminal, on the Spark of all tests."""
    (program,) = entry_points(group="console_scripts", name="penstock")

    def run(given: list[str], folder: Path) -> str:
        with pytest.MonkeyPatch.context() as patch, here() as terminal:
            patch.setattr(engine, "own_session", lambda *_: spark)
            patch.setattr(sys, "argv", given)
            patch.setenv("TERM", "xterm-256color")
            patch.chdir(folder)
            with pytest.raises(SystemExit) as ended:
                program.load()()
        assert not ended.value.code, terminal.text
        return terminal.text

    return run


@pytest.fixture(scope="module")
def stopped(call: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the script was run to its end, with a checkpoint."""
    folder = new_folder(tmp_path_factory.mktemp("stopped"))
    shown = call([PENSTOCK, "run", "script.sql", "--checkpoint", "checkpoint"], folder)
    assert re.search(r"half_hour +ended", shown)
    return folder


@pytest.mark.spark
@pytest.mark.parametrize("command", distinct("penstock"))
def test_a_command_does_as_printed(
    command: Command, call: Any, stopped: Path, tmp_path: Path
) -> None:
    given = words(command)
    folder = new_folder(tmp_path) if given[1] == "run" else stopped
    assert {word for word in given if word.startswith("--")} <= options(parser_of(given[1:]))
    generator = Path(given[-1]).with_name("generate.py").as_posix()
    if generator in FEW:  # its data lie where the process runs
        make_events(["python", generator], folder)
        screen = seen_by_user([PENSTOCK, *given[1:]], folder)
    else:
        screen = call(given, folder)
    begins = [begin for begin in SHOWN if shlex.join(given[1:]).startswith(begin)]
    for pattern in SHOWN[max(begins, key=len)]:
        assert re.search(pattern, screen), screen


@pytest.mark.spark
@pytest.mark.parametrize("command", distinct("whole"))
def test_a_command_shows_what_is_printed(command: Command, tmp_path: Path) -> None:
    """In a process of its own, with the data that `make demo` makes."""
    folder = new_folder(tmp_path)
    maker = ROOT / "examples/control_room/generate.py"
    making = [sys.executable, maker, "demo-output/data"]
    assert (
        b"status.csv" in subprocess.run(making, cwd=folder, check=True, capture_output=True).stdout
    )
    screen = seen_by_user([PENSTOCK, *words(command)[1:]], folder)
    assert on_screen(command.printed, screen), screen
    assert "starting Spark" in screen
    assert re.search(r"alarms +ended +10 +[1-9]", screen)  # rows/s of a run of one batch
    assert len(re.findall(r"│ +\d+ │ \w+ +│ +[\d.]+ │ 2024-03-11", screen)) == 10


@pytest.mark.spark
def test_the_drawing_of_the_checkpoint_folder(stopped: Path) -> None:
    (drawing,) = [
        b for b in blocks_of(ROOT / "ARCHITECTURE.md") if b.heading == "The checkpoint folder"
    ]
    entries = re.findall(r"^  (\S+)(?:, (\S+))? {2,}", drawing.text, re.MULTILINE)
    drawn = {name.split("/")[0] for entry in entries for name in entry if name}
    there = {path.name for path in (stopped / "checkpoint").iterdir()}
    assert there <= drawn
    assert {"epoch", "manifest", "segments", "spark"} <= there


# The shell


class Typist:
    """A user of the shell."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.program.until(r"penstock>\s*$")

    def __call__(self, text: str) -> str:
        """Type something; return what it shows, when the shell asks for more."""
        before = self.program.terminal.text.count("penstock>")
        self.program.type(text)
        prompts = rf"(?s)(penstock>.*){{{before}}}penstock>\s*$"
        return self.program.until(prompts)


def one_time_queries() -> list[str]:
    found = [b for b in LANGUAGE if b.language == "sql" and b.heading == "One-time queries"]
    return [f"{parsed.sql};" for block in found for parsed in parse_script(block.text)]


@pytest.mark.spark
@pytest.mark.parametrize("command", distinct("shell"))
def test_one_time_queries_are_typed_into_the_shell(command: Command, tmp_path: Path) -> None:
    """In a terminal of 120x40: each is answered at once, the first as the page shows it."""
    given = words(command)
    with Program([PENSTOCK, *given[1:]], new_folder(tmp_path)) as program:
        typed = Typist(program)
        assert "Statements end with ';'" in program.terminal.text
        assert "DESCRIBE" in typed("help")
        if len(given) > 2:
            assert re.search(r"(?s)means: ended.*│ ATHENS +│ 9\.71667 │", typed("\\watch means"))
            (printed,) = [b for b in LANGUAGE if b.language == "text" and "valid at" in b.text]
            first, *others = one_time_queries()
            assert on_screen(printed.text.splitlines(), typed(first)), program.terminal.text
            for other in others:
                shown = typed(other).rpartition("AS OF")[2]
                assert "valid at 2004-02-01 01:55:00" in shown, shown
                assert "│ PATRA" in shown
        program.type("quit")
        program.to_end()


# Other programs


@pytest.mark.parametrize("command", distinct("make"))
def test_a_target_of_make_is_there(command: Command) -> None:
    """And makes use of the variables; without a target all of them are listed."""
    target = words(command)[1:]
    done = subprocess.run(
        ["make", *(["-n", *target] if target else [])],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for word in target:
        assert word.partition("=")[2] in done.stdout
    if not target:
        named = {words(c)[1] for c in COMMANDS if c.text.startswith("make ")}
        assert named <= set(re.findall(r"make ([a-z-]+)", done.stdout))


@pytest.mark.parametrize("command", distinct("pytest"))
def test_the_tests_of_the_page_run_with_pytest(command: Command, tmp_path: Path) -> None:
    first = next(b for b in blocks_of(ROOT / command.page) if b.language == "python")
    (tmp_path / "test_clicks.py").write_text(first.text)
    program = Path(sys.executable).parent / "pytest"
    done = subprocess.run([program], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "2 passed" in done.stdout


def run_module(given: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run ``python -m module ..`` in this process; return what it shows."""
    monkeypatch.setattr(sys, "argv", given[2:])
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    code: Any = 0
    with here() as terminal:
        try:
            runpy.run_module(given[2], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
    assert not code, terminal.text
    return terminal.text


@pytest.mark.parametrize("command", distinct("python"))
def test_a_measurement_runs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "million rows/s" in run_module(words(command), monkeypatch)


@pytest.mark.parametrize("command", distinct("long"))
def test_a_long_command_can_be_asked_for_help(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = words(command)
    named = {word for word in given if word.startswith("--")}
    if given[0] == "penstock":
        assert named <= options(parser_of(given[1:]))
        return
    shown = run_module([*given[:3], "--help"], monkeypatch)
    assert all(word in shown for word in (*named, *given[3:4]))


@pytest.mark.parametrize("command", distinct("elsewhere"))
def test_what_would_be_installed_is_declared(command: Command) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = words(command)[-1]
    extra = re.fullmatch(r"penstock\[(\w+)\]", given)
    assert given == "." or (extra and extra[1] in declared["optional-dependencies"])
    assert declared["requires-python"] == ">=3.11,<3.14"
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "Python 3.11 to 3.13" in (ROOT / page).read_text()
