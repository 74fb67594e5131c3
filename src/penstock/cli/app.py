"""The command line: run, check and explain scripts, read sinks, and an interactive shell."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from penstock import __version__
from penstock.asking.checkpoints import open_checkpoint
from penstock.bench import chain as bench_chain
from penstock.bench import (
    chain_engine,
    chain_picture,
    lifetimes_picture,
    nexmark_picture,
    priorities_picture,
    tpmj_picture,
)
from penstock.bench import lifetimes as bench_lifetimes
from penstock.bench import linear_road as bench_linear
from penstock.bench import nexmark as bench_nexmark
from penstock.bench import priorities as bench_priorities
from penstock.bench import tpmj as bench_tpmj
from penstock.bench.nexmark_events import Events
from penstock.cli.live import LiveTable
from penstock.cli.shell import Shell, show
from penstock.cli.stopping import Stop
from penstock.errors import (
    ConfigError,
    DataError,
    PenstockError,
    QueryWarning,
    ScriptError,
)
from penstock.physical.waits import lost
from penstock.session import Session
from penstock.session.checking import ScriptCheck
from penstock.session.rewinding import rewind
from penstock.showing import terminal_table
from penstock.sinks import json_lines, read_committed

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Continuous queries on Apache Spark.",
    pretty_exceptions_enable=False,
)
bench = typer.Typer(
    no_args_is_help=True, help="Run the experiments of the papers that Penstock follows."
)
app.add_typer(bench, name="bench")
checkpoints = typer.Typer(no_args_is_help=True, help="Look after checkpoints.")
app.add_typer(checkpoints, name="checkpoint")
out = Console()
err = Console(stderr=True)

Script = Annotated[Path, typer.Argument(help="A CQL script.", show_default=False)]
Master = Annotated[
    str | None, typer.Option(help="Spark master, such as spark://host:7077; default: local.")
]
SettingsGiven = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, key=value; may be repeated.")
]
CheckpointFolder = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Folder to go on from later; default: a temporary one."),
]
AllowChange = Annotated[
    bool,
    typer.Option(
        "--allow-change",
        help="Go on although queries of the checkpoint are gone, streams are read otherwise or "
        "sinks have lost rows: answers may have gaps.",
    ),
]


@app.command()
def run(
    script: Script,
    master: Master = None,
    checkpoint: CheckpointFolder = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is there, then end.")] = False,
    allow_change: AllowChange = False,
    settings: SettingsGiven = None,
) -> None:
    """Run a script: finite sources to their end, others until stopped by Ctrl-C."""
    with _errors():
        text = _read(script)
        session = Session(
            master=master,
            checkpoint=checkpoint,
            settings=_settings(settings),
            autostart=False,
            allow_change=allow_change,
        )
        session.prints_streams = True
        session.on_spark_start.append(_say_start)
        session.on_warning.append(_print_warning)
        try:
            for statement in session.bound(text):
                show(session.execute(statement), out)
            if not session.catalog.queries:
                raise ConfigError(
                    f"a script to run must create at least one query, but {script} creates none; "
                    f"add CREATE QUERY name AS SELECT …"
                )
            with Stop(session) as stop:
                session.start()
                _watch(session, script.name, once, stop)
                if stop.wanted and not session.pipeline.ended:
                    err.print(stopped_text(checkpoint), highlight=False, soft_wrap=True)
            _show_answers(session)
            _say(lost(session.pipeline.observation, session.pipeline.streams))
        except KeyboardInterrupt:
            err.print("stopped before Spark had started; nothing was run")
            raise typer.Exit(130) from None
        finally:
            session.close()


def _say_start() -> None:
    err.print("starting Spark …", style="dim" if err.is_terminal else "")


def stopped_text(checkpoint: Path | None) -> str:
    """Return what is true after Ctrl-C."""
    if checkpoint is None:
        return "stopped; the next run begins anew: only one with --checkpoint can go on from there"
    return "stopped; the same command with the same --checkpoint goes on from here"


def _show_answers(session: Session) -> None:
    """Print the last answer of each query that goes into no sink."""
    for handle in session.handles():
        if handle.mode != "view" or handle.definition.sink is not None:
            continue
        rows = handle.shown_rows()
        if out.is_terminal:
            out.print()
            out.print(terminal_table(rows, 200, handle.name))
        else:
            sys.stdout.write(json_lines(rows).decode())
            sys.stdout.flush()


def _watch(session: Session, title: str, once: bool, stop: Stop) -> None:
    pipeline = session.pipeline
    with LiveTable(session, err, title) as table:
        while not stop.wanted:
            session.check()
            if pipeline.ended or (once and pipeline.caught_up):
                break
            table.tick()
            time.sleep(0.05)
        session.stop()
        session.check()
    if not err.is_terminal:  # there the live table has said it
        _say(session.waits())


def _say(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        err.print(sentence, markup=False, highlight=False, soft_wrap=True)


@app.command()
def check(
    script: Script,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Do not look whether files are there and fit.")
    ] = False,
    settings: SettingsGiven = None,
) -> None:
    """Parse and plan a script without running it; all mistakes are told."""
    with _errors(), Session(settings=_settings(settings), autostart=False) as session:
        checked = ScriptCheck(session, data=not no_data)
        checked.check(_read(script))
        for warning in checked.warnings:
            _print_warning(warning)
        _say(f"note: {note}" for note in checked.notes)
        for error, place in checked.mistakes:
            _print_error(error)
            if place:
                err.print(place, markup=False, highlight=False, soft_wrap=True)
        if checked.mistakes:
            count = len(checked.mistakes)
            err.print(f"{count} mistake{'s' if count > 1 else ''} in {script}", highlight=False)
            raise typer.Exit(1)
        counts = [
            f"{len(found)} {kind if len(found) == 1 else plural}"
            for kind, plural in (
                ("stream", "streams"),
                ("table", "tables"),
                ("sink", "sinks"),
                ("view", "views"),
                ("query", "queries"),
            )
            if (found := session.catalog.of_kind(kind))
        ]
        out.print(f"{script}: {', '.join(counts) or 'nothing declared'}; all can be planned")


@app.command()
def explain(
    script: Script,
    query: Annotated[str | None, typer.Option(help="Only this query.")] = None,
    level: Annotated[
        str, typer.Option(help="logical, optimized, physical, analyze or all.")
    ] = "all",
    settings: SettingsGiven = None,
) -> None:
    """Show the plans of a script's queries."""
    with _errors(), _planned(script, settings) as session:
        handles = [session.query(query)] if query else list(session.handles())
        for handle in handles:
            out.print(f"[bold]query {handle.name}[/]")
            out.print(handle.explain(level), markup=False, highlight=False, soft_wrap=True)


@app.command()
def cat(
    folder: Annotated[Path, typer.Argument(help="A sink's folder.", show_default=False)],
) -> None:
    """Print the committed rows of a sink as JSON lines, in order of time."""
    with _errors():
        if not folder.is_dir():
            raise DataError(f"a sink's folder must exist, got '{folder}'")
        try:
            for row in read_committed(folder):
                sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stderr.close()


@app.command()
def query(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A SELECT; without it, what can be read is listed.", show_default=False
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="The checkpoint of a session, running or not."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON lines.")] = False,
    function: Annotated[
        list[str] | None,
        typer.Option(help="A function of your own, 'module:name', that may be imported."),
    ] = None,
) -> None:
    """Ask the kept state of a checkpoint once; whoever runs on it is not disturbed."""
    with _errors():
        view = open_checkpoint(_existing(checkpoint), function or ())
        if text is None:
            show(view.relations(), out)
            return
        answer = view.query(text)
        if not as_json:
            show(answer, out)
            return
        try:
            sys.stdout.write(json_lines(answer.to_arrow()).decode())
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stderr.close()
        err.print(answer.note, markup=False, highlight=False)


@app.command()
def push(
    stream: Annotated[str, typer.Argument(help="A stream USING memory.", show_default=False)],
    rows: Annotated[
        list[str] | None,
        typer.Argument(help="Rows as JSON objects; default: lines from the input."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="The checkpoint of a session that runs.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="End the stream after that.")] = False,
) -> None:
    """Push rows into a memory stream of a session that runs in another process."""
    with _errors():
        writer = open_checkpoint(_existing(checkpoint)).writer(stream)
        lines = rows or ([] if finish and sys.stdin.isatty() else sys.stdin)
        found = [_json_row(text) for text in lines if text.strip()]
        writer.push(found)
        if finish:
            writer.finish()
        count = "1 row" if len(found) == 1 else f"{len(found):,} rows"
        ended = ", which has ended" if finish else ""
        out.print(f"{count} pushed into {writer.definition.name}{ended}", highlight=False)


def _json_row(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"a row must be a JSON object, got {text.strip()!r}: {error}; in a shell, put it into "
            f"single quotes"
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f'a row must be a JSON object such as {{"k": 1, "t": 5}}, got {text.strip()!r}'
        )
    return row


def _existing(checkpoint: Path | None) -> Path:
    if checkpoint is None or not checkpoint.is_dir():
        raise ConfigError(
            f"--checkpoint must be the folder of a checkpoint, got "
            f"{'nothing' if checkpoint is None else repr(str(checkpoint))}"
        )
    return checkpoint


@app.command()
def sql(
    script: Annotated[Path | None, typer.Argument(help="A script to run first.")] = None,
    master: Master = None,
    checkpoint: CheckpointFolder = None,
    allow_change: AllowChange = False,
    settings: SettingsGiven = None,
) -> None:
    """Open the interactive shell."""
    with _errors():
        session = Session(
            master=master,
            checkpoint=checkpoint,
            settings=_settings(settings),
            allow_change=allow_change,
        )
        try:
            session.on_spark_start.append(_say_start)
            session.on_warning.append(_print_warning)
            shell = Shell(session, out)
            if script is not None:
                shell.run(_read(script))
            shell.loop()
        finally:
            session.close()


def _show_report(
    tables: Iterable[Table],
    content: dict[str, Any],
    raw: Path | None,
    plot: Path | None,
    draw: Callable[[dict[str, Any], Path], None],
) -> None:
    """Print the tables of an experiment, and keep its numbers and its picture if asked to."""
    for table in tables:
        out.print(table)
    if raw is not None:
        raw.write_text(json.dumps(content, indent=1) + "\n")
    if plot is not None:
        draw(content, plot)


@bench.command()
def tpmj(
    rows: Annotated[
        int, typer.Option(help="Elements of each stream.", min=1000, max=1_000_000)
    ] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 7,
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the picture.")] = None,
) -> None:
    """Sort-based joins: four-way against cascade, changing load, early results."""
    with _errors():
        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("joins by merging", total=1.0)
            report = bench_tpmj.measure(
                rows, seed, lambda share: progress.update(task, completed=share)
            )
        _show_report(bench_tpmj.tables(report), report.as_json(), raw, plot, tpmj_picture.draw)
        if not all(bar.met for bar in report.bars()):
            raise typer.Exit(1)


@bench.command()
def lifetimes(
    largest: Annotated[
        int, typer.Option(help="Elements of the largest window.", min=10, max=1_000_000)
    ] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="Batches measured of each case.", min=1)] = 16,
    batch: Annotated[int, typer.Option(help="Elements of one batch.", min=10)] = 100_000,
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the picture.")] = None,
) -> None:
    """Lifetimes: the direct method against negative tuples, six queries, all sizes of windows.

    Where the direct method gains less than it should, the table says where the time goes.
    """
    with _errors():
        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("lifetimes", total=1.0)
            report = bench_lifetimes.measure(
                largest, repeats, batch, lambda share: progress.update(task, completed=share)
            )
        _show_report(
            bench_lifetimes.tables(report), report.as_json(), raw, plot, lifetimes_picture.draw
        )


@bench.command()
def chain(
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the picture.")] = None,
) -> None:
    """Scheduling of shared plans: FIFO, round robin, greedy, Chain, shared Chain, merged Chain.

    Computed as in the paper, then measured on the engine.
    """
    with _errors():
        computed = bench_chain.measure()
        with err.status("the engine, every policy five times"):
            engine = chain_engine.measure()
        shown = [*bench_chain.tables(computed), *chain_engine.tables(engine)]
        content = computed.as_json() | {"engine": engine.as_json()}
        _show_report(shown, content, raw, plot, chain_picture.draw)
        if not all(bar.met for bar in (*computed.bars(), *engine.bars())):
            raise typer.Exit(1)


@bench.command()
def priorities(
    elements: Annotated[
        int, typer.Option(help="Elements of each source.", min=1000, max=1_000_000)
    ] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 7,
    processes: Annotated[
        int, typer.Option(help="Processes that share the runs; 0: one per core.", min=0)
    ] = 0,
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the picture.")] = None,
) -> None:
    """Prioritised elements: every buffer with every scheduler, latency by priority.

    In virtual time, so the numbers are the same on every machine.
    """
    with _errors():
        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("priorities", total=1.0)
            report = bench_priorities.measure(
                elements,
                seed,
                processes or os.cpu_count() or 1,
                lambda share: progress.update(task, completed=share),
            )
        _show_report(
            bench_priorities.tables(report), report.as_json(), raw, plot, priorities_picture.draw
        )
        if not all(bar.met for bar in report.bars()):
            raise typer.Exit(1)


@bench.command()
def nexmark(
    events: Annotated[int, typer.Option(help="People, auctions and bids.", min=50)] = 1_000_000,
    queries: Annotated[
        str, typer.Option(help="Which queries, such as q0,q5; default: all.")
    ] = ",".join(bench_nexmark.QUERIES),
    against: Annotated[str, typer.Option(help="'flink': beside Flink SQL.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the events.", min=0)] = 1,
    cores: Annotated[int, typer.Option(help="Cores of each side.", min=1)] = 2,
    limit: Annotated[float, typer.Option(help="Most seconds of a query on one side.")] = 600.0,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the events; default: a temporary one, kept.")
    ] = None,
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the picture.")] = None,
    settings: SettingsGiven = None,
) -> None:
    """NEXMark: events a second of each of its queries, from files, beside Flink if asked for.

    What is measured is kept in --raw after every query.
    """
    with _errors():
        if against not in ("", "flink"):
            raise ConfigError(f"--against must be 'flink' or left out, got '{against}'")
        names = tuple(name.strip().lower() for name in queries.split(",") if name.strip())
        request = bench_nexmark.Request(
            Events(events, seed), names, against == "flink", cores, limit, data, _settings(settings)
        )

        def keep(report: bench_nexmark.Report) -> None:
            if raw is not None:
                raw.write_text(json.dumps(report.as_json(), indent=1) + "\n")

        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("nexmark", total=1.0)
            report = bench_nexmark.measure(
                request,
                lambda text, share: progress.update(task, completed=share, description=text),
                keep,
            )
        _show_report(
            bench_nexmark.tables(report), report.as_json(), raw, plot, nexmark_picture.draw
        )
        if any(line.penstock.seconds is None for line in report.lines):
            raise typer.Exit(1)


@bench.command()
def linear(
    expressways: Annotated[
        str,
        typer.Option(help="Numbers of expressways to try, rising; stops where one is too many."),
    ] = "1,2,4,8,16",
    seconds: Annotated[int, typer.Option(help="Seconds by the clock, of each try.", min=1)] = 120,
    fill: Annotated[int, typer.Option(help="Seconds of traffic that come before.", min=0)] = 420,
    limit: Annotated[float, typer.Option(help="Seconds in which all must be answered.")] = 5.0,
    rate: Annotated[float, typer.Option(help="Reports a second of an expressway.")] = 1_700.0,
    seed: Annotated[int, typer.Option(help="Seed of the traffic.", min=0)] = 1,
    cores: Annotated[int, typer.Option(help="Cores of Spark.", min=1)] = 2,
    raw: Annotated[Path | None, typer.Option(help="JSON file for the numbers.")] = None,
    settings: SettingsGiven = None,
) -> None:
    """Linear Road: how many expressways are held, every report being answered in time.

    What is measured is kept in --raw after every try.
    """
    with _errors():
        request = bench_linear.Request(
            bench_linear.numbers(expressways), fill, seconds, limit, rate, cores, seed,
            settings=_settings(settings),
        )  # fmt: skip

        def keep(report: bench_linear.Report) -> None:
            if raw is not None:
                raw.write_text(json.dumps(report.as_json(), indent=1) + "\n")

        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("linear road", total=1.0)
            report = bench_linear.measure(
                request,
                lambda text, share: progress.update(task, completed=share, description=text),
                keep,
            )
        for table in bench_linear.tables(report):
            out.print(table)
        if not report.held:
            raise typer.Exit(1)


@checkpoints.command("rewind-sink")
def rewind_sink(
    script: Script,
    sinks: Annotated[
        list[str] | None, typer.Argument(help="Sinks of the script; default: all.")
    ] = None,
    checkpoint: CheckpointFolder = None,
) -> None:
    """Take sinks back to where a checkpoint is that was brought back from an older copy.

    Files of later batches are set aside, rows of later batches are deleted from tables.
    """
    with _errors():
        if checkpoint is None or not checkpoint.is_dir():
            raise ConfigError("--checkpoint must be the folder of a checkpoint that exists")
        with _planned(script, None) as session:
            for done in rewind(session, checkpoint, sinks or ()):
                out.print(done, markup=False, highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    out.print(__version__)


def _planned(script: Path, settings: list[str] | None) -> Session:
    session = Session(settings=_settings(settings), autostart=False)
    session.on_warning.append(lambda _: None)  # EXPLAIN shows them
    for statement in session.bound(_read(script)):
        session.execute(statement)
    return session


def _read(script: Path) -> str:
    try:
        text = script.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"the script must be a text file that can be read, got: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"the script must be UTF-8 text, but byte {error.start + 1} of {script} is not; save "
            f"it as UTF-8"
        ) from None
    if "\0" in text:
        raise DataError(
            f"the script must be text, but character {text.index(chr(0)) + 1} of {script} is NUL; "
            f"is it a script?"
        )
    folder = str(script.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # where modules of functions are looked for as well
    return text


def _settings(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--set must be key=value, got '{item}'")
        pairs[key.strip()] = value.strip()
    return pairs


@contextmanager
def _errors() -> Iterator[None]:
    """Print what went wrong, without a stack trace, and end with exit code 1."""
    try:
        yield
    except PenstockError as error:
        _print_error(error)
        raise typer.Exit(1) from None


def _print_warning(warning: QueryWarning) -> None:
    err.print("[bold yellow]warning:[/] ", end="")
    _say([str(warning)])


def _print_error(error: PenstockError) -> None:
    if isinstance(error, ScriptError):
        for one in error.errors:
            _print_error(one)
        _say([error.summary])
        return
    kind = type(error).__name__.removesuffix("Error").lower()
    err.print(f"[bold red]{kind} error:[/] ", end="")
    err.print(str(error), markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """The entry point of the command ``penstock``."""
    app()
