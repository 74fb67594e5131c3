"""Draws docs/pictures: for every kind of window, which element is valid when.

Each dot is an element of the stream, the bar behind it is its validity, and the boxes below are the
contents of the window at some instants.  The validity is computed here from the definitions, in
plain Python, so that a picture cannot differ from its window; a test compares it with the oracle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyBboxPatch

FOLDER = Path(__file__).parent / "pictures"
INF = 2**63 - 1
LAST = 20
"""The right end of every time axis."""

INK, GREY, PALE = "#22313F", "#7B8A97", "#E3E8EC"
BLUE, ORANGE, GREEN = "#2176AE", "#E07A1F", "#3A9D6E"
GROUP_COLOURS = {"": BLUE, "Athens": BLUE, "Volos": ORANGE}


@dataclass(frozen=True)
class Element:
    """One element of the stream in the picture."""

    name: str
    time: int
    group: str = ""


Validity = Callable[[list[Element]], dict[str, tuple[int, int]]]


@dataclass(frozen=True)
class Picture:
    """One window: its text, one sentence, its validity, and the instants at which to look."""

    file: str
    text: str
    says: str
    elements: tuple[Element, ...]
    validity: Validity
    instants: tuple[int, ...]
    pulses: tuple[int, ...] = ()
    marks: tuple[tuple[int, str], ...] = ()
    length: int = 0
    """Of a window that has a start and an end, which are then written below its contents."""


def by_time(end: Callable[[int], int], start: Callable[[int], int] = lambda s: s) -> Validity:
    """A window in which start and end follow from the element's own time."""
    return lambda elements: {e.name: (start(e.time), end(e.time)) for e in elements}


def up(time: int, slide: int, origin: int = 0) -> int:
    """The first pulse at or after ``time``."""
    return time + (origin - time) % slide


def sliding(length: int, slide: int, origin: int = 0) -> Validity:
    """``RANGE length SLIDE slide``: in at the next pulse, out at the first pulse after length."""
    return by_time(lambda s: up(s + length, slide, origin), lambda s: up(s, slide, origin))


def hopping(length: int, slide: int) -> Validity:
    """``HOP length SLIDE slide``: in each window [pulse - length, pulse), shown from its end on."""
    return by_time(lambda s: up(s + length + 1, slide), lambda s: up(s + 1, slide))


def landmark(after: int = -INF, before: int = INF) -> Validity:
    """``AFTER`` and ``BEFORE``: elements outside are never in."""
    return lambda elements: {
        e.name: (e.time, INF if after <= e.time <= before else e.time) for e in elements
    }


def rows(count: int, slide: int = 1, length: int = INF) -> Validity:
    """``ROWS count SLIDE slide RANGE length``, counted inside each group."""

    def validity(elements: list[Element]) -> dict[str, tuple[int, int]]:
        found = {}
        for group in {e.group for e in elements}:
            members = [e for e in elements if e.group == group]
            times = [e.time for e in members]
            for i, e in enumerate(members, 1):
                first, last = up(i, slide), up(i + count, slide)
                start = times[first - 1] if first <= len(times) else INF
                end = times[last - 1] if last <= len(times) else INF
                found[e.name] = (start, min(end, e.time + length if length < INF else INF))
        return found

    return validity


def session(gap: int) -> Validity:
    """``SESSION gap``: until ``gap`` after the last element of the session."""

    def validity(elements: list[Element]) -> dict[str, tuple[int, int]]:
        found = {}
        for i, e in enumerate(elements):
            last = e.time
            for other in elements[i + 1 :]:
                if other.time - last >= gap:
                    break
                last = other.time
            found[e.name] = (e.time, last + gap)
        return found

    return validity


def stream(*times: int, groups: str = "") -> tuple[Element, ...]:
    """Elements a, b, c.. at these times; ``groups`` holds one letter A or V for each."""
    city = {"A": "Athens", "V": "Volos"}
    return tuple(
        Element("abcdefghijkl"[i], t, city[groups[i]] if groups else "")
        for i, t in enumerate(times)
    )


USUAL = stream(1, 3, 5, 6, 9, 11, 14, 17)
ON_PULSES = stream(1, 4, 5, 7, 8, 11, 12, 14)
"""Elements some of which lie on the boundary of two windows."""

PICTURES: tuple[Picture, ...] = (
    Picture(
        "rows", "[ROWS 3]", "the last 3 elements, whenever they came", USUAL, rows(3), (4, 10, 16)
    ),
    Picture(
        "partition_rows",
        "[PARTITION BY city ROWS 2]",
        "the last 2 elements of each city",
        stream(1, 3, 5, 6, 9, 11, 14, 17, groups="AAVAVVAV"),
        rows(2),
        (4, 10, 16),
    ),
    Picture(
        "range",
        "[RANGE 5]",
        "the last 5 time units, at every instant",
        USUAL,
        by_time(lambda s: s + 5),
        (4, 7, 12),
    ),
    Picture(
        "range_slide",
        "[RANGE 10 SLIDE 4]",
        "the last 10 time units, as they were at the last pulse",
        USUAL,
        sliding(10, 4),
        (5, 9, 14, 18),
        pulses=tuple(range(0, LAST + 1, 4)),
    ),
    Picture(
        "tumbling",
        "[RANGE 4 SLIDE 4]",
        "the last full period of 4 time units; each element is in exactly one",
        USUAL,
        sliding(4, 4),
        (6, 10, 14, 18),
        pulses=tuple(range(0, LAST + 1, 4)),
    ),
    Picture(
        "tumble",
        "[TUMBLE 4]",
        "4, 8 and 12 are in the windows that begin there",
        ON_PULSES,
        hopping(4, 4),
        (6, 10, 14, 18),
        pulses=tuple(range(0, LAST + 1, 4)),
        length=4,
    ),
    Picture(
        "hop",
        "[HOP 8 SLIDE 4]",
        "each element is in two windows, one after the other",
        ON_PULSES,
        hopping(8, 4),
        (6, 10, 14, 18),
        pulses=tuple(range(0, LAST + 1, 4)),
        length=8,
    ),
    Picture(
        "now",
        "[NOW]",
        "only what has the current time",
        stream(1, 3, 6, 6, 9, 11, 14, 17),
        by_time(lambda s: s + 1),
        (3, 6, 12),
    ),
    Picture(
        "unbounded",
        "[RANGE UNBOUNDED]",
        "everything so far; also what a stream without a window means",
        USUAL,
        by_time(lambda s: INF),
        (4, 10, 16),
    ),
    Picture(
        "after",
        "[AFTER 6]",
        "everything since the landmark",
        USUAL,
        landmark(after=6),
        (5, 10, 16),
        marks=((6, "landmark"),),
    ),
    Picture(
        "before",
        "[BEFORE 9]",
        "everything up to the landmark",
        USUAL,
        landmark(before=9),
        (4, 8, 16),
        marks=((9, "landmark"),),
    ),
    Picture(
        "after_before",
        "[AFTER 4 AND BEFORE 11]",
        "everything inside a fixed band",
        USUAL,
        landmark(after=4, before=11),
        (3, 8, 16),
        marks=((4, "after"), (11, "before")),
    ),
    Picture(
        "fixed",
        "[FIXED 6]",
        "everything since the last multiple of 6",
        USUAL,
        by_time(lambda s: (s // 6 + 1) * 6),
        (4, 10, 16),
        pulses=tuple(range(0, LAST + 1, 6)),
    ),
    Picture(
        "past",
        "[FROM NOW - 8 TO NOW - 3]",
        "the elements of a stretch of time that ended 3 ago",
        USUAL,
        by_time(lambda s: s + 8, lambda s: s + 3),
        (4, 10, 16),
    ),
    Picture(
        "rows_range",
        "[ROWS 3 RANGE 5]",
        "of the last 3 elements, those not older than 5",
        USUAL,
        rows(3, length=5),
        (7, 13, 18),
    ),
    Picture(
        "rows_slide",
        "[ROWS 4 SLIDE 2]",
        "the last 4 elements, refreshed at every 2nd element",
        USUAL,
        rows(4, slide=2),
        (4, 10, 15, 18),
        pulses=(3, 6, 11, 17),
    ),
    Picture(
        "session",
        "[SESSION 4]",
        "the current session: a silence of 4 ends it",
        stream(1, 3, 5, 10, 12, 18),
        session(4),
        (4, 7, 13, 17),
    ),
)


def contents(picture: Picture, instant: int) -> list[str]:
    """The names of the elements in the window at one instant."""
    valid = picture.validity(list(picture.elements))
    return [e.name for e in picture.elements if valid[e.name][0] <= instant < valid[e.name][1]]


def draw(picture: Picture) -> Path:
    """Draw one window and return the file."""
    elements = list(picture.elements)
    valid = picture.validity(elements)
    count = len(elements)
    figure, axes = plt.subplots(figsize=(9, 1.62 + 0.245 * count), dpi=160)
    top = count + 0.35
    _frame(axes, picture, top)
    for row, element in enumerate(elements):
        y = count - row - 0.5
        start, end = valid[element.name]
        colour = GROUP_COLOURS[element.group]
        if start < end and start <= LAST:
            _bar(axes, y, start, end, colour)
            if start > element.time:
                axes.plot([element.time, start], [y, y], color=colour, lw=1, ls=(0, (1, 2)))
        ignored = start >= end
        axes.plot(
            element.time, y, "o", ms=8.5, color="white" if ignored else colour, mec=colour, zorder=4
        )
        label = f"{element.name}  {element.group}" if element.group else element.name
        axes.text(
            element.time - 0.32,
            y,
            label,
            ha="right",
            va="center",
            color=INK,
            fontsize=9.5,
            zorder=5,
            bbox={"fc": "white", "ec": "none", "pad": 0.8},
        )
    for instant in picture.instants:
        _look(axes, instant, contents(picture, instant), elements, top)
        if picture.length:
            end = max(pulse for pulse in picture.pulses if pulse <= instant)
            name = f"of [{end - picture.length}, {end})"
            axes.text(instant, -2.62, name, ha="center", va="center", size=8.5, color=GREEN)
    return _save(figure, picture.file)


def _frame(axes: Axes, picture: Picture, top: float) -> None:
    """Title, time axis, pulses and landmarks."""
    axes.set_xlim(-1.2, LAST + 0.9)
    axes.set_ylim(-2.95 if picture.length else -2.35, top + 0.1)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(picture.text, loc="left", family="monospace", weight="bold", size=12, color=INK)
    axes.set_title(picture.says, loc="right", size=10, color=GREY)
    for time in range(0, LAST + 1, 2):
        axes.plot([time, time], [0, top], color=PALE, lw=0.7, zorder=0)
        axes.text(
            time, -0.22, time, ha="center", va="top", color=GREY, size=8.5, zorder=6
        ).set_bbox({"fc": "white", "ec": "none", "pad": 0.6})
    axes.plot([-0.4, LAST + 0.6], [0, 0], color=GREY, lw=0.9, zorder=1)
    for pulse in picture.pulses:
        axes.plot([pulse, pulse], [0, top], color=GREEN, lw=1.1, ls=(0, (4, 3)), zorder=1)
        axes.plot(pulse, 0, "^", ms=5.5, color=GREEN, zorder=5)
    for time, name in picture.marks:
        axes.plot([time, time], [0, top], color=GREEN, lw=1.6, zorder=1)
        axes.text(time + 0.15, top - 0.1, name, size=8.5, color=GREEN, va="top")
    axes.text(-1.15, -1.75, "contents", size=8.5, color=GREY, va="center")


def _bar(axes: Axes, y: float, start: int, end: int, colour: str) -> None:
    """The validity ``[start, end)``; one that goes on beyond the picture fades out."""
    height = 0.56
    right = min(end, LAST + 0.75)
    if end <= LAST:
        axes.barh(y, right - start, height, start, color=colour, alpha=0.28, lw=0, zorder=2)
        axes.plot([right, right], [y - height / 2, y + height / 2], color=colour, lw=1.4, zorder=3)
        return
    solid = max(start, LAST - 1.5)
    if solid > start:
        axes.barh(y, solid - start, height, start, color=colour, alpha=0.28, lw=0, zorder=2)
    fade = LinearSegmentedColormap.from_list(
        "fade", [(*mpl.colors.to_rgb(colour), 0.28), (*mpl.colors.to_rgb(colour), 0.0)]
    )
    box = (solid, right, y - height / 2, y + height / 2)
    limits = axes.axis()
    axes.imshow([[i / 255 for i in range(256)]], cmap=fade, extent=box, aspect="auto", zorder=2)
    axes.axis(limits)


def _look(
    axes: Axes, instant: int, names: list[str], elements: Iterable[Element], top: float
) -> None:
    """A vertical line at an instant, and below it what the window holds there."""
    colour_of = {e.name: GROUP_COLOURS[e.group] for e in elements}
    axes.plot([instant, instant], [-1.15, top], color=INK, lw=0.9, alpha=0.75, zorder=3)
    width, gap = 0.42, 0.06
    total = max(len(names), 1) * (width + gap) - gap
    left = instant - total / 2
    if not names:
        axes.text(instant, -1.75, "empty", ha="center", va="center", size=9, color=GREY)
        return
    for name in names:
        axes.add_patch(
            FancyBboxPatch(
                (left + 0.05, -2.10),
                width - 0.1,
                0.7,
                boxstyle="round,pad=0.05,rounding_size=0.1",
                fc=colour_of[name],
                ec="none",
            )
        )
        axes.text(
            left + width / 2,
            -1.76,
            name,
            ha="center",
            va="center",
            size=9,
            color="white",
            weight="bold",
        )
        left += width + gap


def draw_streams() -> Path:
    """ISTREAM, DSTREAM and RSTREAM of one relation."""
    elements = list(stream(2, 5, 9, 13))
    valid = {e.name: (e.time, e.time + 6) for e in elements}
    figure, axes = plt.subplots(figsize=(9, 3.3), dpi=160)
    axes.set_xlim(-3.2, LAST + 0.9)
    axes.set_ylim(-4.0, 4.3)
    axes.set_yticks([])
    axes.set_xticks(range(0, LAST + 1, 2))
    axes.tick_params(axis="x", length=0, colors=GREY, labelsize=8.5, pad=1)
    axes.spines[:].set_visible(False)
    axes.set_title("[RANGE 6]", loc="left", family="monospace", weight="bold", size=12, color=INK)
    axes.set_title(
        "a relation that changes over time, and the three streams made of it",
        loc="right",
        size=10,
        color=GREY,
    )
    for time in range(0, LAST + 1, 2):
        axes.plot([time, time], [-3.9, 4.2], color=PALE, lw=0.7, zorder=0)
    axes.plot([-0.4, LAST + 0.6], [0, 0], color=GREY, lw=0.9)
    for row, element in enumerate(elements):
        y = len(elements) - row - 0.5
        _bar(axes, y, *valid[element.name], BLUE)
        axes.plot(element.time, y, "o", ms=8.5, color=BLUE, zorder=4)
        axes.text(
            element.time - 0.32, y, element.name, ha="right", va="center", size=9.5, color=INK
        )
    changes = sorted({t for pair in valid.values() for t in pair})
    for y, name, colour, rows_at in (
        (-0.9, "ISTREAM", GREEN, {e.time: [e.name] for e in elements}),
        (-2.0, "DSTREAM", ORANGE, {valid[e.name][1]: [e.name] for e in elements}),
        (
            -3.1,
            "RSTREAM",
            BLUE,
            {t: [n for n, (s, e) in valid.items() if s <= t < e] for t in changes},
        ),
    ):
        axes.text(-3.1, y, name, va="center", size=9, weight="bold", color=colour)
        axes.plot([-0.4, LAST + 0.6], [y, y], color=PALE, lw=0.9, zorder=0)
        for time, names in rows_at.items():
            if names:
                axes.text(
                    time,
                    y,
                    " ".join(names),
                    ha="center",
                    va="center",
                    size=9,
                    color="white",
                    weight="bold",
                    bbox={"boxstyle": "round,pad=0.25", "fc": colour, "ec": "none"},
                )
    return _save(figure, "relation_to_stream")


def _save(figure: plt.Figure, name: str) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure.tight_layout(pad=0.6)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
    return path


def main() -> None:
    """Draw the pictures named on the command line, or all."""
    wanted = set(sys.argv[1:])
    for picture in PICTURES:
        if not wanted or picture.file in wanted:
            print(draw(picture).name)
    if not wanted or "relation_to_stream" in wanted:
        print(draw_streams().name)


if __name__ == "__main__":
    main()
