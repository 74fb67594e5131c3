"""The demo: runs the control room's queries and shows their answers while they come.

The queries run in a process of their own, ``penstock run``, as anyone would start them.  This program
only reads the folders that the sinks fill: everything on the screen is a final answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.dates as dates
import matplotlib.pyplot as plt
from generate import generate
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path("examples/control_room/control_room.sql")
OUTPUT = Path("demo-output")
ANSWERS = OUTPUT / "answers"
LOG = OUTPUT / "run.log"
PLOT = OUTPUT / "bearings.png"

QUERIES = {
    "plant_output": "what each plant gives now",
    "grid": "grid frequency, last 40 readings",
    "bearings": "hottest bearing per plant, 5 minutes",
    "energy": "energy per region, every 10 minutes",
    "day_shift": "messages since 06:30 by severity",
    "alarms": "alarms with the bearing before",
    "unnoticed": "hot, but no warning",
    "dips": "frequency below 49.9 Hz",
    "hottest": "five hottest turbines, every minute",
    "late": "rows that came too late",
}

Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    """Everything that a sink has received so far, in order."""
    found: list[Row] = []
    for file in sorted((ANSWERS / name).glob("*.jsonl")):
        found += [json.loads(line) for line in file.read_text().splitlines()]
    return found


def clock(value: Any) -> datetime:
    """The time of an answer."""
    return datetime.fromisoformat(str(value))


def plants_table() -> Table:
    """The view: one row per plant, always the current one."""
    table = Table(title="plants now", title_justify="left", expand=True)
    table.add_column("plant")
    table.add_column("region")
    table.add_column("MW", justify="right")
    table.add_column("of rated power", min_width=16)
    for row in sorted(rows("plant_output"), key=lambda r: r["name"]):
        bar = ProgressBar(total=100, completed=row["percent"], width=16)
        table.add_row(row["name"], row["region"], f"{row['megawatts']:.0f}", bar)
    return table


def stream_table(title: str, found: Iterable[Row], columns: dict[str, str], last: int) -> Table:
    """The last rows of a stream; ``columns`` gives each column's heading and format."""
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("time")
    for heading in columns:
        table.add_column(heading)
    for row in list(found)[-last:]:
        values = [format(row[name], form) for name, form in columns.items()]
        table.add_row(f"{clock(row[TIME]):%H:%M:%S}", *values)
    return table
