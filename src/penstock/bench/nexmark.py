"""NEXMark: how many events a second each query takes from files, beside Flink if it is there.

The queries are the scripts of ``examples/nexmark``, with the files of `nexmark_events` as streams
and a sink that counts rows.  Each is run once on few events, so that all code is warm, and then on
all.  Flink reads the same rows, each side with the same number of cores; a query counts the events
of the streams that it reads.  One that fails, or takes longer than it may, is told as such, and the
others go on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock import cql
from penstock.bench.jobs import Job, running
from penstock.bench.nexmark_events import STREAMS, Events, counts, prepared
from penstock.catalog import SinkDef, StreamDef, TableDef
from penstock.cql.binding.statements import Create
from penstock.errors import ConfigError, PenstockError
from penstock.session import Session
from penstock.settings import Settings
from penstock.spark.engine import own_session

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "examples/nexmark"
QUERIES = tuple(f"q{number}" for number in range(23))
FLINK_JOB = ROOT / "benchmarks/nexmark_job.py"
FLINK_PYTHON = ROOT / ".venv-flink/bin/python"
WARM_UP = 100_000
"""Events of the run that nobody counts."""


@dataclass(frozen=True)
class Request:
    """What is to be measured; ``limit`` is how many seconds a query may take."""

    events: Events
    queries: tuple[str, ...] = QUERIES
    flink: bool = False
    cores: int = 2
    limit: float = 600.0
    data: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    warm_up: int = WARM_UP

    def __post_init__(self) -> None:
        unknown = [name for name in self.queries if name not in QUERIES]
        if unknown or not self.queries:
            raise ConfigError(
                f"queries must be some of q0 to q22, got {', '.join(unknown) or 'none'}"
            )
        if self.limit <= 0 or self.cores < 1:
            raise ConfigError(
                f"the limit and the cores must be above 0, got {self.limit:g} seconds and "
                f"{self.cores} cores"
            )
        if not SCRIPTS.is_dir():
            raise ConfigError(
                "the queries of NEXMark stand in examples/nexmark of a clone, and this Penstock "
                "was installed without it; install the clone with 'pip install -e .'"
            )
        if self.flink and not (FLINK_PYTHON.exists() and FLINK_JOB.exists()):
            raise ConfigError(
                f"Flink must be installed in {FLINK_PYTHON.parents[1].name} of the clone; do that "
                "with 'make bench-flink', or leave --against out"
            )

    def folder(self, events: Events) -> Path:
        """Return where the files of so many events are."""
        base = self.data or Path(tempfile.gettempdir()) / "penstock-nexmark"
        return base / f"{events.count}-events-seed-{events.seed}"


@dataclass
class Ran:
    """How one side did with one query; ``seconds`` is None where it did not end, ``why`` says."""

    seconds: float | None = None
    answers: int | None = None
    why: str = ""


@dataclass
class Line:
    """A query: the events of its streams, and how the sides did."""

    query: str
    title: str
    rows: int
    penstock: Ran = field(default_factory=Ran)
    flink: Ran | None = None

    def rate(self, side: str) -> float | None:
        """Return the events a second of a side, None where it has not ended."""
        ran: Ran | None = getattr(self, side)
        return None if ran is None or not ran.seconds else self.rows / ran.seconds


@dataclass
class Report:
    """All that was measured, so far."""

    request: Request
    lines: list[Line] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        events = self.request.events
        lines = [
            asdict(line) | {f"{side} events/s": line.rate(side) for side in ("penstock", "flink")}
            for line in self.lines
        ]
        return {"events": asdict(events), "cores": self.request.cores,
                "limit": self.request.limit, "queries": lines}  # fmt: skip


def measure(
    request: Request,
    progress: Callable[[str, float], None] = lambda text, share: None,
    told: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run the queries; ``told`` gets what is known after each of them."""
    report = Report(request)
    few = replace(request.events, count=min(request.warm_up, request.events.count))
    for events in (few, request.events):
        made = partial(progress, f"making {events.count:,} events")
        prepared(request.folder(events), events, progress=made)
    config = Settings(request.settings)
    spark = own_session(f"local[{request.cores}]", config)
    with ExitStack() as stack:
        flink = _started_flink(request, few, stack) if request.flink else None
        for number, query in enumerate(request.queries):
            title, streams = described(query)
            known = counts(request.events.count)
            line = Line(query, title, sum(known[name] for name in streams))
            report.lines.append(line)
            for step, events in enumerate((few, request.events)):
                share = (number + step / 2) / len(request.queries)
                progress(f"{query}, {events.count:,} events, Penstock", share)
                line.penstock = _penstock(spark, query, request, events)
                if flink is not None:
                    progress(f"{query}, {events.count:,} events, Flink", share)
                    line.flink = flink.run(query, request.folder(events), streams)
            told(report)
        progress("done", 1.0)
    return report


def described(query: str) -> tuple[str, tuple[str, ...]]:
    """Return the title of a query's script, and the streams that it reads."""
    text = (SCRIPTS / f"{query}.sql").read_text()
    title = text.partition(", ")[2].partition(":")[0]
    return title, tuple(name for name in STREAMS if f"CREATE STREAM {name} " in text)


def declare(session: Session, query: str, folder: Path) -> None:
    """Declare what a query's script does, with the files of a folder and a sink that counts."""
    for parsed in cql.parse_script((SCRIPTS / f"{query}.sql").read_text()):
        statement = cql.bind(parsed, session.catalog)
        if isinstance(statement, Create):
            statement = replace(statement, definition=_elsewhere(statement.definition, folder))
        session.execute(statement)


def _elsewhere(definition: Any, folder: Path) -> Any:
    if isinstance(definition, (StreamDef, TableDef)):
        path = str(folder / f"{definition.name}.csv")
        return replace(definition, options={**definition.options, "path": path})
    if isinstance(definition, SinkDef):
        return replace(definition, format="blackhole", options={})
    return definition


def _penstock(spark: Any, query: str, request: Request, events: Events) -> Ran:
    """Run a query to its end, or as long as it may take."""
    try:
        with Session(spark, settings=request.settings, autostart=False) as session:
            session.on_warning.append(lambda _: None)
            declare(session, query, request.folder(events))
            began = time.perf_counter()
            session.start()
            ended = session.await_end(timeout=request.limit)
            seconds = time.perf_counter() - began
            rows = sum(int(getattr(handle.sink, "rows", 0)) for handle in session.handles())
    except PenstockError as error:
        return Ran(why=_first_line(error))
    return Ran(seconds, rows) if ended else Ran(why=_too_long(request))


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _too_long(request: Request) -> str:
    return f"not done after {request.limit:g} s"


class Flink:
    """Flink in a process of its own; see ``benchmarks/nexmark_job.py``."""

    def __init__(self, job: Job) -> None:
        self._job: Job | None = job

    def run(self, query: str, folder: Path, streams: Sequence[str]) -> Ran:
        """Run a query over the files of a folder."""
        if self._job is None:
            return Ran(why="Flink has ended")
        plain = without_headers(folder, (*streams, "side_input"))
        try:
            seconds = self._job.ask(f"{query} {plain}")
        except (SystemExit, OSError) as error:  # the process is gone
            self._job = None
            return Ran(why=_first_line(error))
        why = str(self._job.last.get("error", ""))
        return Ran(why=why) if why else Ran(seconds)


def _started_flink(request: Request, few: Events, stack: ExitStack) -> Flink:
    log = request.folder(few).parent / "flink.log"
    command = [FLINK_PYTHON, FLINK_JOB, request.cores, request.limit]
    return Flink(stack.enter_context(running(command, log)))


def without_headers(folder: Path, names: Sequence[str]) -> Path:
    """Return a folder with the same files without headers, which Flink cannot pass over."""
    place = folder / "without-headers"
    place.mkdir(exist_ok=True)
    for name in names:
        path = place / f"{name}.csv"
        if not path.exists():
            making = path.with_suffix(".part")
            with open(folder / f"{name}.csv", "rb") as lines, open(making, "wb") as copy:
                lines.readline()
                shutil.copyfileobj(lines, copy, 1 << 22)
            os.rename(making, path)
    return place


def tables(report: Report) -> Iterator[Table]:
    """Yield what was measured as a table for a terminal."""
    has_flink = report.request.flink
    events = report.request.events.count
    title = f"NEXMark, {events:,} events from files, {report.request.cores} cores"
    table = Table("query", "", "events read", "answers", "seconds", "Penstock", title=title)
    for name in ("Flink", "ratio") if has_flink else ():
        table.add_column(name)
    for line in report.lines:
        ours, theirs = line.rate("penstock"), line.rate("flink")
        answers, seconds = line.penstock.answers, line.penstock.seconds
        cells = [
            line.query,
            line.title,
            f"{line.rows:,}",
            "" if answers is None else f"{answers:,}",
            "" if seconds is None else f"{seconds:.1f}",
            _rate(ours, line.penstock),
        ]
        if has_flink:
            ratio = f"{ours / theirs:.2f}" if ours and theirs else ""
            cells += [_rate(theirs, line.flink), ratio]
        table.add_row(*cells)
    yield table


def _rate(rate: float | None, ran: Ran | None) -> str:
    if rate is not None:
        return f"{rate:,.0f} events/s"
    return "" if ran is None else ran.why
