"""The demo: runs the control room's queries and shows their answers while they come.

The queries run in a process of their own, ``penstock run``, as anyone would start them.  This
program only reads the folders that the sinks fill: everything on the screen is a final answer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as dates
import matplotlib.pyplot as plt
from generate import LENGTH, START, generate
from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path("examples/control_room/control_room.sql")
OUTPUT = Path("demo-output")
ANSWERS = OUTPUT / "answers"
CHECKPOINT = OUTPUT / "checkpoint"
LOG = OUTPUT / "run.log"
PLOT = OUTPUT / "bearings.png"

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
    "late": ("rows that came after the answer", "late rows"),
}
REGION_COLOURS = {"north": "#2176AE", "east": "#3A9D6E", "south": "#E07A1F", "west": "#8E5EA2"}

Row = dict[str, Any]


class Answers:
    """The rows of one sink. Files never change, so each is read once; a view's is read again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows: list[Row] = []
        self._read: set[str] = set()

    def rows(self) -> list[Row]:
        """Everything that has come so far; of a view, what it holds now."""
        for path in sorted((ANSWERS / self.name).glob("*.jsonl")):
            if path.stem.endswith("-view"):
                return parsed(path)
            if path.name not in self._read:
                self._read.add(path.name)
                self._rows += parsed(path)
        return self._rows


def parsed(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def clock(text: str | None) -> datetime:
    """The time of an answer; an answer without an end holds until the end of the data."""
    return datetime.fromisoformat(text) if text else START.to_pydatetime() + LENGTH_OF_DATA


LENGTH_OF_DATA = datetime.fromtimestamp(LENGTH) - datetime.fromtimestamp(0)
ALL = {name: Answers(name) for name in QUERIES}


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
    table = Table(title="alarms (join of two streams)", title_justify="left", expand=True)
    for name in ("time", "turbine", "alarm", "hottest before"):
        table.add_column(name, justify="right" if name == "hottest before" else "left")
    for row in ALL["alarms"].rows()[-6:]:
        style = "bold red" if row["hottest"] > 75 else ""
        table.add_row(
            f"{clock(row['_time']):%H:%M:%S}",
            f"{row['turbine']}",
            row["code"],
            Text(f"{row['hottest']:.1f} °C", style),
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
    found = ALL["hottest"].rows()
    first = START.to_pydatetime()
    return min((clock(found[-1]["_time"]) - first).total_seconds(), LENGTH) if found else 0.0


def screen(started: float) -> RenderableType:
    seconds = reached()
    line = Table.grid(padding=(0, 2))
    now = f"{START.to_pydatetime() + (LENGTH_OF_DATA * (seconds / LENGTH)):%H:%M}"
    line.add_row(
        Text(f"event time {now}" if seconds else "starting Spark …", "bold"),
        ProgressBar(total=LENGTH, completed=seconds, width=40),
        Text(f"{time.monotonic() - started:.0f} s", "dim"),
    )
    layout = Layout()
    layout.split_column(Layout(Panel(line, title="Penstock"), size=3), Layout(name="body"))
    layout["body"].split_row(Layout(name="left", ratio=5), Layout(name="right", ratio=6))
    layout["left"].split_column(Layout(plants(), size=14), Layout(grid()))
    layout["right"].split_column(Layout(alarms(), size=12), Layout(hottest()))
    return layout


# The run


def run(console: Console) -> float:
    """Run the script to its end; return the seconds from the start to the first answer."""
    shutil.rmtree(ANSWERS, ignore_errors=True)
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    penstock = Path(sys.executable).with_name("penstock")
    command = [str(penstock), "run", str(SCRIPT), "--checkpoint", str(CHECKPOINT)]
    console.print(f"$ penstock {' '.join(command[1:])}", style="bold", highlight=False)
    started = time.monotonic()
    first = 0.0
    with LOG.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if console.is_terminal:
                with Live(console=console, screen=True, auto_refresh=False) as live:
                    while process.poll() is None:
                        first = first or (time.monotonic() - started if reached() else 0.0)
                        live.update(screen(started), refresh=True)
                        time.sleep(0.3)
            else:
                while process.poll() is None:
                    first = first or (time.monotonic() - started if reached() else 0.0)
                    print(f"event time reached: {reached() / 60:.0f} of {LENGTH / 60:.0f} minutes")
                    time.sleep(5)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        console.print(LOG.read_text()[-4000:], markup=False, highlight=False)
        sys.exit(f"penstock ended with code {process.returncode}; its output is in {LOG}")
    return first


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
    data = OUTPUT / "data"
    if not all(
        (data / f"{n}.csv").exists() for n in ("telemetry", "frequency", "status", "plants")
    ):
        counts = generate(data)
        made = ", ".join(f"{rows} rows of {name}" for name, rows in counts.items())
        console.print(f"made {made} in {data}", highlight=False)
    started = time.monotonic()
    first = run(console)
    summary(console)
    plot()
    console.print(
        f"{time.monotonic() - started:.0f} s in all, first answers after {first:.0f} s. "
        f"Answers: {ANSWERS}  Plot: {PLOT}",
        highlight=False,
    )
    console.print(f"The queries: {SCRIPT}   Try your own: .venv/bin/penstock sql", highlight=False)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
