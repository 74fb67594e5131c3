"""Linear Road: how many expressways are held, the answer to a report coming in time.

The script is that of ``examples/linear_road``, with the cars of `linear_road_traffic`, each
expressway at the reports a second that the published traffic has in its last minute.  First the
cars of some minutes come at once, so that roads, statistics and accounts are full; then seconds
come as the clock goes, each with all of its reports, and the time from when a second came to when
the sink has its answers is the response.  A number of expressways is held if the longest response
of all is within the limit; the next one is tried as long as that is so.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from penstock import cql
from penstock.bench.linear_road_traffic import (
    EVERY,
    Simulation,
    Traffic,
    histories,
    table_of,
    write,
)
from penstock.catalog import SinkDef, StreamDef, TableDef
from penstock.cql.binding.statements import Create
from penstock.errors import ConfigError
from penstock.session import Session
from penstock.settings import Settings
from penstock.spark.engine import own_session

SCRIPT = Path(__file__).parents[3] / "examples/linear_road/linear_road.sql"
NOTICES = ("tolls", "alerts", "balances", "spendings")
"""Sinks whose answers must come in time: those to single cars."""
AT_ONCE = 60
"""Seconds of traffic that are pushed together before the clock goes."""
FILL_SECONDS = 1800
"""So long the traffic before may take at most."""


@dataclass(frozen=True)
class Request:
    """What is to be measured: ``fill`` seconds come at once, ``seconds`` by the clock.

    A response must be within ``limit`` seconds; ``rate`` is the reports a second of an expressway.
    """

    expressways: tuple[int, ...] = (1, 2, 4, 8, 16)
    fill: int = 420
    seconds: int = 120
    limit: float = 5.0
    rate: float = 1_700.0
    cores: int = 2
    seed: int = 1
    days: int = 10
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.expressways))
        if not self.expressways or min(self.expressways) < 1 or not rising:
            raise ConfigError(
                f"numbers of expressways must rise from 1 on, such as 1,2,4, got "
                f"{','.join(map(str, self.expressways)) or 'none'}"
            )
        if self.seconds < 1 or self.fill < 0 or self.limit <= 0 or self.cores < 1:
            raise ConfigError(
                f"seconds, the limit and the cores must be above 0, got {self.seconds}, "
                f"{self.limit:g} and {self.cores}"
            )
        if not SCRIPT.is_file():
            raise ConfigError(
                "the queries of Linear Road stand in examples/linear_road of a clone, and this "
                "Penstock was installed without it; install the clone with 'pip install -e .'"
            )

    def traffic(self, expressways: int) -> Traffic:
        """Return the traffic of so many expressways."""
        whole = self.fill + self.seconds
        return Traffic(expressways, whole, self.seed, self.rate, self.rate, accident_every=300,
                       accident_lasts=240, days=self.days)  # fmt: skip


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of expressways that a user has written."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"expressways must be numbers, such as 1,2,4, got '{text}'")
    return tuple(map(int, parts))


@dataclass
class Line:
    """How one number of expressways did; responses are in seconds."""

    expressways: int
    rows: int = 0
    answers: int = 0
    unanswered: int = 0
    median: float = 0.0
    high: float = 0.0
    longest: float | None = None
    """None if a second was not answered in time at all."""
    behind: float = 0.0
    """How far the measurement itself was behind its clock at most."""
    held: bool = False


@dataclass
class Report:
    """All that was measured, so far."""

    request: Request
    lines: list[Line] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Return the most expressways that were held, 0 if none was."""
        return max((line.expressways for line in self.lines if line.held), default=0)

    def as_json(self) -> dict[str, Any]:
        request = {**asdict(self.request), "settings": dict(self.request.settings)}
        return {**request, "held": self.held, "runs": [asdict(line) for line in self.lines]}


class Watch:
    """Takes answers: when the last one of each second came, and how many."""

    def __init__(self) -> None:
        self.came: dict[int, float] = {}
        self.counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, batch: int, rows: pa.Table) -> None:
        now = time.monotonic()
        seconds, counts = np.unique(rows.column("time").to_numpy(), return_counts=True)
        with self._lock:
            for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
                self.came[second] = now
                self.counts[second] = self.counts.get(second, 0) + count


def measure(
    request: Request,
    progress: Callable[[str, float], None] = lambda text, share: None,
    told: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Try more and more expressways; ``told`` gets what is known after each number."""
    report = Report(request)
    spark = own_session(f"local[{request.cores}]", Settings(request.settings))
    for number, expressways in enumerate(request.expressways):

        def passed(share: float, at: int = number, ways: int = expressways) -> None:
            progress(f"{ways} expressways", (at + share) / len(request.expressways))

        report.lines.append(one_run(spark, request, expressways, passed))
        told(report)
        if not report.lines[-1].held:
            break
    progress("done", 1.0)
    return report


def one_run(
    spark: Any, request: Request, expressways: int, progress: Callable[[float], None]
) -> Line:
    """Run so many expressways."""
    traffic = request.traffic(expressways)
    cars, watch, line = Simulation(traffic), Watch(), Line(expressways)
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder) / "history.csv"
        on_road = round(request.rate * EVERY * expressways)  # of others no history is known
        write(history, histories(traffic, on_road))
        with Session(spark, settings=request.settings, autostart=False) as session:
            session.on_warning.append(lambda _: None)
            declare(session, history)
            for name in NOTICES:
                session.callback(name, watch)
            session.start()
            for first in range(0, request.fill, AT_ONCE):
                seconds = range(first, min(first + AT_ONCE, request.fill))
                session.push("traffic", table_of([cars.second(now) for now in seconds]))
            session.heartbeat("traffic", request.fill)
            paced = [table_of([cars.second(t)]) for t in range(request.fill, traffic.seconds)]
            line.rows = sum(table.num_rows for table in paced)
            _until(session, request.fill, timeout=FILL_SECONDS)
            pushed = _push(session, request, paced, line, progress)
            _until(session, traffic.seconds, timeout=request.limit * 4)
    _judge(line, request, watch, pushed)
    return line


def declare(session: Session, history: Path) -> None:
    """Declare what the script does, with rows that are pushed and sinks that are measured."""
    for parsed in cql.parse_script(SCRIPT.read_text()):
        statement = cql.bind(parsed, session.catalog)
        if isinstance(statement, Create):
            statement = replace(statement, definition=_elsewhere(statement.definition, history))
        session.execute(statement)


def _elsewhere(definition: Any, history: Path) -> Any:
    if isinstance(definition, StreamDef):
        return replace(definition, format="memory", options={})
    if isinstance(definition, TableDef):
        return replace(definition, options={"path": str(history)})
    if isinstance(definition, SinkDef):
        kind = "callback" if definition.name in NOTICES else "blackhole"
        return replace(definition, format=kind, options={})
    return definition


def _push(
    session: Session,
    request: Request,
    paced: list[pa.Table],
    line: Line,
    progress: Callable[[float], None],
) -> dict[int, float]:
    """Push each second when it is due; return when each was."""
    due: dict[int, float] = {}
    begin = time.monotonic()
    for number, table in enumerate(paced):
        second = request.fill + number
        due[second] = begin + number
        time.sleep(max(0.0, due[second] - time.monotonic()))
        session.push("traffic", table)
        session.heartbeat("traffic", second + 1)
        line.behind = max(line.behind, time.monotonic() - due[second])
        progress(number / len(paced))
    return due


def _until(session: Session, second: int, timeout: float) -> None:
    """Wait until all before a second is answered, or for so long."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        session.check()
        reached = session.handles()[0].status()["heartbeat"]
        if reached is not None and reached >= second:
            return
        time.sleep(0.1)
    session.check()


def _judge(line: Line, request: Request, watch: Watch, pushed: Mapping[int, float]) -> None:
    """Say how long answers took; a second of which no answer came has the longest response."""
    responses, counts = [], []
    for second, due in pushed.items():
        if second in watch.came:
            responses.append(watch.came[second] - due)
            counts.append(watch.counts[second])
        else:
            line.unanswered += 1
    line.answers = sum(counts)
    if not responses:
        return
    each = np.repeat(responses, counts)
    line.median, line.high = (float(np.percentile(each, part)) for part in (50, 99))
    if not line.unanswered:
        line.longest = max(responses)
        line.held = line.longest <= request.limit


def tables(report: Report) -> Iterator[Table]:
    """Yield what was measured as a table for a terminal."""
    request = report.request
    title = (
        f"Linear Road, {request.rate:g} reports a second of each expressway, "
        f"{request.seconds} s by the clock, {request.cores} cores"
    )
    table = Table("expressways", "rows a second", "answers", "median", "99 %", "longest", "",
                  title=title)  # fmt: skip
    for line in report.lines:
        late = f"{line.unanswered} seconds were not answered"
        verdict = "held" if line.held else late if line.unanswered else "too late"
        longest = "" if line.longest is None else f"{line.longest:.2f} s"
        table.add_row(
            str(line.expressways),
            f"{line.rows / request.seconds:,.0f}",
            f"{line.answers:,}",
            *(f"{value:.2f} s" for value in (line.median, line.high)),
            longest,
            verdict,
        )
    yield table
