"""The demo: runs the control room's queries and shows their answers while they come.

The queries run in a process of their own, ``penstock run``, as anyone would start them.  This
program reads the folders that the sinks fill: everything on the screen is a final answer.  It also
raises some alarms, and more when the key ``a`` is pressed, and shows how soon each was answered by
the lane, and when its batch came.
"""

from __future__ import annotations

import os
import select
import shutil
import statistics
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as dates
import matplotlib.pyplot as plt
from desk import (
    ANSWERS,
    CHECKPOINT,
    LENGTH_OF_DATA,
    OUTPUT,
    ROOT,
    TURBINES,
    Answers,
    Desk,
    Row,
    clock,
)
from desk import reached as time_reached
from generate import LENGTH, START, generate
from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SCRIPT = Path("examples/control_room/control_room.sql")
LOG = OUTPUT / "run.log"
PLOT = OUTPUT / "bearings.png"
FILES = ("telemetry", "frequency", "status", "plants", "machines")

QUERIES = {
    "plant_output": ("latest row of each turbine, with a table", "view"),
    "grid": ("the last 40 readings of the frequency", "change log"),
    "bearings": ("hottest bearing, 5 minutes, every 30 s", "intervals"),
    "energy": ("energy of each region, every 10 minutes", "RSTREAM"),
    "day_shift": ("messages since a landmark", "view"),
    "alarms": ("alarms joined with the bearing before", "ISTREAM"),
    "unnoticed": ("hot turbines EXCEPT those that warned", "intervals"),
    "dips": ("frequency falls below 49.9 Hz", "ISTREAM"),
    "hottest": ("the five hottest turbines, every minute", "RSTREAM"),
    "trips": ("alarms, before any batch has them", "the lane"),
    "desk": ("alarms raised by hand, with readings", "the lane"),
    "desk_heat": ("the same with the hottest of 10 minutes", "ISTREAM"),
    "late": ("rows that came after the answer", "late rows"),
}
REGION_COLOURS = {"north": "#2176AE", "east": "#3A9D6E", "south": "#E07A1F", "west": "#8E5EA2"}
ALL = {name: Answers(name) for name in QUERIES}

DRILLS = [
    # minute of the control room, turbine, what has happened; raised by this program
    (15, 17, "drill: oil on the floor"),
    (40, 3, "drill: smoke in the hall"),
    (65, 44, "drill: gallery open"),
    (90, 29, "drill: water in the shaft"),
]
KEY = "a"


# Alarms, and when they were seen


@dataclass
class Alarm:
    """An alarm on the screen; times are of the clock on the wall."""

    turbine: int
    plant: str
    text: str
    time: datetime
    bearing: float | None
    raised: float | None
    seen: float
    batch: float | None = None
    hottest: float | None = None

    @property
    def at_once(self) -> float | None:
        """Seconds until it was on the screen; nobody knows when a replayed row was due."""
        return None if self.raised is None else self.seen - self.raised

    @property
    def came_with_its_batch(self) -> bool:
        """Whether a batch took it before the lane did."""
        return self.batch == self.seen

    @property
    def by_batch(self) -> str:
        """When its batch came: after it was raised, or after it was on the screen."""
        if self.batch is None:
            return "…"
        if self.came_with_its_batch:
            return "first"
        if self.raised is None:
            return f"+{self.batch - self.seen:.1f} s"
        return f"{self.batch - self.raised:.1f} s"


class Alarms:
    """All alarms in the order in which they were seen."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, datetime, float | None], Alarm] = {}

    def look(self) -> bool:
        """Look whether the lane or a batch has brought something new; say if so."""
        now, news = time.time(), False
        for row in ALL["trips"].rows()[self._count(False) :]:
            self._add(
                Alarm(row["turbine"], row["plant"], row["code"], clock(row["t"]), None, None, now),
                row,
            )
            news = True
        for row in ALL["desk"].rows():
            key = self._key(row)
            if key not in self.found:
                news = True
                self._add(
                    Alarm(
                        row["turbine"],
                        row["plant"],
                        row["text"],
                        clock(row["t"]),
                        row["bearing"],
                        row["raised"],
                        now,
                    ),
                    row,
                )
            else:
                alarm = self.found[key]
                alarm.bearing = max(alarm.bearing or 0.0, row["bearing"])
        return self._batches(now) or news

    def _batches(self, now: float) -> bool:
        news = False
        for name, time_of in (("alarms", "_time"), ("desk_heat", "t")):
            for row in ALL[name].rows():
                alarm = self.found.get((row["turbine"], clock(row[time_of]), row.get("raised")))
                if alarm is not None and alarm.batch is None:
                    alarm.batch, alarm.hottest, news = now, row["hottest"], True
        return news

    @staticmethod
    def _key(row: Row) -> tuple[int, datetime, float | None]:
        return row["turbine"], clock(row["t"]), row.get("raised")

    def _add(self, alarm: Alarm, row: Row) -> None:
        self.found[self._key(row)] = alarm

    def _count(self, by_hand: bool) -> int:
        return sum((alarm.raised is not None) == by_hand for alarm in self.found.values())

    @property
    def by_hand(self) -> list[Alarm]:
        return [alarm for alarm in self.found.values() if alarm.raised is not None]


ALARMS = Alarms()


# The screen


def plants() -> Table:
    table = Table(title="plants now (view)", title_justify="left", expand=True)
    table.add_column("plant")
    table.add_column("region", style="dim")
    table.add_column("MW", justify="right")
    table.add_column("of rated power", min_width=14)
    for row in sorted(ALL["plant_output"].rows(), key=lambda r: r["name"]):
        bar = ProgressBar(total=100, completed=row["percent"], width=14)
        table.add_row(row["name"], row["region"], f"{row['megawatts']:.0f}", bar)
    return table


def alarms() -> Table:
    title = "alarms: on the screen by the lane, and when their batch came"
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("time", width=5)
    table.add_column("turbine", width=14, no_wrap=True)
    table.add_column("alarm", ratio=1, no_wrap=True)
    table.add_column("lane", width=7, justify="right")
    table.add_column("batch", width=8, justify="right")
    for alarm in list(ALARMS.found.values())[-10:]:
        soon = "at once" if alarm.at_once is None else f"{1000 * alarm.at_once:.0f} ms"
        table.add_row(
            f"{alarm.time:%H:%M}",
            f"{alarm.turbine:>2} {alarm.plant}",
            Text(alarm.text, "bold red"),
            Text("" if alarm.came_with_its_batch else soon, "bold green"),
            alarm.by_batch,
        )
    return table


def hottest() -> Table:
    table = Table(title="hottest bearings (every minute)", title_justify="left", expand=True)
    table.add_column("turbine")
    table.add_column("°C", justify="right")
    found = ALL["hottest"].rows()
    newest = [r for r in found if r["_time"] == found[-1]["_time"]]
    for row in sorted(newest, key=lambda r: -r["bearing"]):
        style = "bold red" if row["bearing"] > 75 else "yellow" if row["bearing"] > 68 else ""
        table.add_row(str(row["turbine"]), Text(f"{row['bearing']:.1f}", style))
    return table


def grid() -> Table:
    table = Table(title="grid", title_justify="left", expand=True, show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    newest = next((r for r in reversed(ALL["grid"].rows()) if r["_sign"] > 0), None)
    if newest:
        table.add_row("mean of 40", f"{newest['mean']:.3f} Hz")
        table.add_row("lowest of 40", f"{newest['lowest']:.3f} Hz")
    table.add_row("below 49.9 Hz", f"{len(ALL['dips'].rows())} times")
    table.add_row("late rows", f"{len(ALL['late'].rows())}")
    return table


def reached() -> float:
    """Seconds of event time for which answers are final."""
    found = time_reached(ALL["hottest"])
    return 0.0 if found is None else (found - START.to_pydatetime()).total_seconds()


def screen(started: float) -> RenderableType:
    seconds = reached()
    line = Table.grid(padding=(0, 2))
    now = f"{START.to_pydatetime() + (LENGTH_OF_DATA * (seconds / LENGTH)):%H:%M}"
    line.add_row(
        Text(f"event time {now}" if seconds else "starting Spark …", "bold"),
        ProgressBar(total=LENGTH, completed=seconds, width=40),
        Text(f"{time.monotonic() - started:.0f} s", "dim"),
        Text(f"press {KEY} to raise an alarm" if seconds else "", "dim"),
    )
    layout = Layout()
    layout.split_column(Layout(Panel(line, title="Penstock"), size=3), Layout(name="body"))
    layout["body"].split_row(Layout(name="left", ratio=2), Layout(name="right", ratio=3))
    layout["left"].split_column(Layout(plants(), size=14), Layout(grid()))
    layout["right"].split_column(Layout(alarms(), size=16), Layout(hottest()))
    return layout


# The run


class Run:
    """What is done while the queries run: alarms are raised and looked for, the screen is drawn."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first = 0.0
        self._desk = Desk()
        self._drills = list(DRILLS)
        self._pressed = 0
        self._moved = (0.0, time.monotonic())

    def step(self, keys: str) -> bool:
        """Do what is due; say whether the screen has changed."""
        news = ALARMS.look()
        seconds = reached()
        self.first = self.first or (time.monotonic() - self.started if seconds else 0.0)
        if not self._desk.opens():
            return news
        while self._drills and seconds >= 60 * self._drills[0][0]:
            _, turbine, text = self._drills.pop(0)
            self._desk.call(turbine, text)
        for _ in range(keys.count(KEY)):
            self._pressed += 1
            self._desk.call(1 + 7 * self._pressed % TURBINES, f"button, no. {self._pressed}")
        self._desk.follow()
        if seconds != self._moved[0]:
            self._moved = seconds, time.monotonic()
        if seconds >= LENGTH - 60 or (seconds and time.monotonic() - self._moved[1] > 20):
            self._desk.finish()
        return news


def run(console: Console) -> float:
    """Run the script to its end; return the seconds from the start to the first answer."""
    shutil.rmtree(ANSWERS, ignore_errors=True)
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    penstock = Path(sys.executable).with_name("penstock")
    place = str(CHECKPOINT.relative_to(ROOT))
    command = [str(penstock), "run", str(SCRIPT), "--checkpoint", place]
    console.print(f"$ penstock {' '.join(command[1:])}", style="bold", highlight=False)
    work = Run()
    with LOG.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if console.is_terminal:
                draw(console, process, work)
            else:
                tell(process, work)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        console.print(LOG.read_text()[-4000:], markup=False, highlight=False)
        place = LOG.relative_to(ROOT)
        sys.exit(f"penstock ended with code {process.returncode}; its output is in {place}")
    ALARMS.look()
    return work.first


def draw(console: Console, process: subprocess.Popen[bytes], work: Run) -> None:
    """Draw the screen, at once when there is an alarm, until the queries have ended."""
    drawn = 0.0
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while process.poll() is None:
            if work.step(next(keys)) or time.monotonic() - drawn > 0.3:
                live.update(screen(work.started), refresh=True)
                drawn = time.monotonic()
            time.sleep(0.02)


def tell(process: subprocess.Popen[bytes], work: Run) -> None:
    """Print a line now and then, and one for each alarm, until the queries have ended."""
    told, next_line = 0, 0.0
    while process.poll() is None:
        work.step("")
        for alarm in list(ALARMS.found.values())[told:]:
            told += 1
            soon = "" if alarm.at_once is None else f", on the screen after {alarm.at_once:.3f} s"
            print(f"{alarm.time:%H:%M:%S} {alarm.text}, turbine {alarm.turbine}{soon}")
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + 5
            print(f"event time reached: {reached() / 60:.0f} of {LENGTH / 60:.0f} minutes")
        time.sleep(0.02)


@contextmanager
def keyboard() -> Iterator[Iterator[str]]:
    """Give what was typed since the last time, without waiting; nothing if there is no keyboard."""
    if not sys.stdin.isatty():
        yield iter(lambda: "", None)
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield iter(_typed, None)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _typed() -> str:
    found = ""
    while select.select([sys.stdin], [], [], 0)[0]:
        found += os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
    return found


# Afterwards


def summary(console: Console) -> None:
    table = Table(title="answers", title_justify="left")
    table.add_column("query")
    table.add_column("what it is")
    table.add_column("as")
    table.add_column("rows", justify="right")
    table.add_column("for example")
    for name, (what, kind) in QUERIES.items():
        found = ALL[name].rows()
        table.add_row(name, what, kind, f"{len(found)}", example(found[-1]) if found else "")
    console.print(table)


def times(console: Console) -> None:
    """Both times of each alarm that was raised by hand."""
    raised = ALARMS.by_hand
    if not raised:
        return
    table = Table(title="alarms raised by hand", title_justify="left")
    for name in ("time", "turbine", "alarm", "bearing", "on the screen after", "its batch after"):
        table.add_column(name, justify="left" if name in ("time", "alarm") else "right")
    for alarm in raised:
        table.add_row(
            f"{alarm.time:%H:%M:%S}",
            f"{alarm.turbine}",
            alarm.text,
            f"{alarm.bearing:.1f} °C",
            f"{1000 * (alarm.at_once or 0):.0f} ms",
            alarm.by_batch,
        )
    console.print(table)
    batches = [a.batch - a.raised for a in raised if a.batch is not None and a.raised is not None]
    middle = statistics.median(alarm.at_once or 0 for alarm in raised)
    late = f", its batch after {statistics.median(batches):.1f} s" if batches else ""
    console.print(f"median: on the screen after {1000 * middle:.0f} ms{late}", highlight=False)


def example(row: Row) -> str:
    values = [
        v for k, v in row.items() if k not in ("_time", "_start", "_end", "_sign", "text", "t")
    ]
    return ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in values)


def plot() -> None:
    """The hottest bearing of each plant over time, and the alarms."""
    plt.rcParams["font.size"] = 10
    figure, axes = plt.subplots(figsize=(11, 5), dpi=140)
    colours = {row["name"]: REGION_COLOURS[row["region"]] for row in ALL["plant_output"].rows()}
    by_plant: dict[str, list[Row]] = {}
    for row in ALL["bearings"].rows():
        by_plant.setdefault(row["name"], []).append(row)
    for name, found in sorted(by_plant.items()):
        found.sort(key=lambda r: r["_start"])
        times = [t for r in found for t in (clock(r["_start"]), clock(r["_end"]))]
        values = [r["hottest"] for r in found for _ in range(2)]
        axes.plot(times, values, lw=1.4, color=colours.get(name), alpha=0.85)
    for row in ALL["alarms"].rows():
        hot = row["hottest"] > 75
        axes.plot(
            clock(row["_time"]), row["hottest"], "v", ms=9, color="#C0392B" if hot else "#555"
        )
        axes.annotate(
            f"{row['turbine']} {row['code'].lower().replace('_', ' ')}",
            (clock(row["_time"]), row["hottest"]),
            xytext=(0, 9 if hot else -16),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    for region, colour in REGION_COLOURS.items():
        axes.plot([], [], color=colour, lw=2, label=region)
    axes.set_title(
        "Hottest bearing of each plant over 5 minutes, in steps of 30 s, and the alarms", loc="left"
    )
    axes.set_ylabel("°C")
    axes.set_xlim(START, START.to_pydatetime() + LENGTH_OF_DATA)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(title="region", frameon=False, ncols=4, loc="upper left", fontsize=9)
    axes.set_ylim(top=axes.get_ylim()[1] + 7)
    figure.tight_layout()
    figure.savefig(PLOT)
    plt.close(figure)


def main() -> None:
    os.chdir(ROOT)
    console = Console()
    data = Path("demo-output/data")
    if not all((data / f"{name}.csv").exists() for name in FILES):
        counts = generate(data)
        made = ", ".join(f"{rows} rows of {name}" for name, rows in counts.items())
        console.print(f"made {made} in {data}", highlight=False)
    started = time.monotonic()
    first = run(console)
    summary(console)
    times(console)
    plot()
    console.print(
        f"{time.monotonic() - started:.0f} s in all, first answers after {first:.0f} s. "
        f"Answers: {ANSWERS.relative_to(ROOT)}  Plot: {PLOT.relative_to(ROOT)}",
        highlight=False,
    )
    console.print(f"The queries: {SCRIPT}   Try your own: .venv/bin/penstock sql", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
