"""Draws docs/heartbeats.png: where heartbeats come from, one panel for each kind.

To the right is the order in which things happen, upwards is the time of the rows.  The line is the
heartbeat, computed by the oracle (`penstock.reference.Judge`), so that the picture cannot differ
from the definition; a row below it when it comes is late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from penstock.expr.nodes import Column
from penstock.expr.types import BOOLEAN
from penstock.reference import Judge
from penstock.timing import Punctuation, TimeRules

FILE = Path(__file__).parent / "heartbeats.png"
INK, GREY, BLUE, ORANGE, RED = "#22313F", "#7B8A97", "#2176AE", "#E07A1F", "#C0392B"
COLOURS = {"": BLUE, "0": BLUE, "1": ORANGE}
LOWEST = 0


@dataclass(frozen=True)
class Happening:
    """A row of a partition with a time, or a heartbeat that clock or program give, or a silence."""

    time: int = 0
    partition: str = ""
    kind: str = "row"


@dataclass(frozen=True)
class Panel:
    """One kind of heartbeat: its clause, one sentence, and what happens."""

    clause: str
    says: str
    rules: TimeRules
    happens: tuple[Happening, ...]


def rows(*times: int, partition: str = "") -> tuple[Happening, ...]:
    """Return rows that come one after another."""
    return tuple(Happening(time, partition) for time in times)


def clock(*times: int) -> tuple[Happening, ...]:
    """Return looks at the clock."""
    return tuple(Happening(time, kind="clock") for time in times)


PANELS = (
    Panel("SLACK 3", "largest time - 3", TimeRules(3), rows(4, 6, 5, 9, 7, 5, 12, 10, 14)),
    Panel(
        "SLACK AUTO",
        "the slack grows with each row that it did not keep",
        TimeRules(keeping=0.5),
        rows(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9, 11, 12, 11, 13, 14, 13, 15, 12, 16, 14, 17, 15, 18),
    ),
    Panel(
        "HEARTBEAT FROM CLOCK LAG 2",
        "clock - 2, whether rows come or not",
        TimeRules(100, clock_lag=2),
        (*rows(3), *clock(4), *rows(5), *clock(6, 8, 10), *rows(7, 9), *clock(13), *rows(12)),
    ),
    Panel(
        "PUNCTUATION WHEN last",
        "what the row, a triangle, says: its own time",
        TimeRules(100, punctuations=(Punctuation(Column(1, BOOLEAN)),)),
        (
            *rows(2, 4, 3),
            Happening(6, kind="punctuation"),
            *rows(7, 5, 9, 8),
            Happening(11, kind="punctuation"),
            *rows(12, 10),
        ),
    ),
    Panel(
        "IDLE AFTER 1 MINUTE",
        "a silence closes the last instant",
        TimeRules(3, idle_after=60.0),
        (*rows(3, 6, 8), Happening(kind="silence"), *rows(8, 11, 13)),
    ),
    Panel(
        "two partitions, SLACK 1",
        "the least of both; a row is late in its own partition only",
        TimeRules(1, partitions=2),
        (
            *rows(8, partition="0"),
            *rows(2, partition="1"),
            *rows(10, 9, partition="0"),
            *rows(5, 7, 5, partition="1"),
            *rows(13, 10, partition="0"),
            *rows(9, 12, partition="1"),
        ),
    ),
)


def happened(panel: Panel) -> list[tuple[Happening, bool, int]]:
    """Return what happened: whether it was late, and the heartbeat after it."""
    judge = Judge()
    judge.declare("s", panel.rules, 0)
    found = []
    for what in panel.happens:
        before = len(judge.late["s"])
        if what.kind in ("row", "punctuation"):
            judge.feed("s", what.partition, [(what.time, what.kind == "punctuation")])
            judge.settle([["s"]])
        elif what.kind == "clock":
            lag = panel.rules.clock_lag or 0
            judge.decide({"s": ({None: what.time - lag}, ())}, [["s"]])
        else:
            judge.decide({"s": ({}, list(judge.streams["s"].sources))}, [["s"]])
        late = len(judge.late["s"]) > before
        found.append((what, late, max(judge.streams["s"].given, LOWEST)))
    return found


def draw(axes: Axes, panel: Panel) -> None:
    """Draw one panel."""
    line = [LOWEST]
    for at, (what, late, heartbeat) in enumerate(happened(panel), start=1):
        line.append(heartbeat)
        if what.kind == "silence":
            axes.axvspan(at - 0.45, at + 0.45, color=GREY, alpha=0.2, lw=0)
            continue
        if what.kind == "clock":
            axes.plot(at, what.time, marker="_", color=GREY, ms=9)
            continue
        colour = RED if late else COLOURS[what.partition]
        marker = "x" if late else "^" if what.kind == "punctuation" else "o"
        axes.plot(at, what.time, marker=marker, color=colour, ms=7, mew=2 if late else 1)
    axes.step(range(len(line)), line, where="post", color=INK, lw=1.4)
    axes.fill_between(range(len(line)), line, LOWEST, step="post", color=INK, alpha=0.06, lw=0)
    axes.set_title(panel.clause, loc="left", fontsize=10, color=INK, fontweight="bold", pad=16)
    axes.text(0, 1.03, panel.says, transform=axes.transAxes, fontsize=8.5, color=GREY)
    axes.set_ylim(LOWEST, max(what.time for what in panel.happens) + 1.5)
    axes.set_xlim(0, len(line))
    axes.tick_params(labelsize=8, colors=GREY, length=2)
    axes.set_xticks([])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Draw all panels into one picture."""
    figure, grid = plt.subplots(2, 3, figsize=(12, 6.4))
    for axes, panel in zip(grid.flat, PANELS, strict=True):
        draw(axes, panel)
    for axes in grid[:, 0]:
        axes.set_ylabel("time of the row", fontsize=9, color=GREY)
    for axes in grid[1]:
        axes.set_xlabel("order of arrival", fontsize=9, color=GREY)
    figure.text(
        0.008,
        0.008,
        "line: heartbeat    dot: a row in time    red cross: a late row    "
        "dash: the clock    grey band: a silence",
        fontsize=9,
        color=INK,
    )
    figure.tight_layout(rect=(0, 0.035, 1, 1), h_pad=2.0)
    figure.savefig(FILE, dpi=110)


if __name__ == "__main__":
    main()
