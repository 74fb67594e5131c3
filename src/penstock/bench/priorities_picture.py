"""The picture of the priority experiment: latency relative to normal buffers, after figure 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.pictures import pyplot
from penstock.bench.priority_plan import BURST

BARS = {
    ("direct", True): ("direct, prioritised", "#1f6fb2"),
    ("weak", True): ("weak, prioritised", "#7fb2dd"),
    ("levels", True): ("levels, prioritised", "#55a868"),
    ("direct", False): ("direct, normal", "#f2a65a"),
    ("weak", False): ("weak, normal", "#e3c9a8"),
    ("levels", False): ("levels, normal", "#b0b7c3"),
}
PAPER, EARLY = "all three (paper)", "priority in front of the first buffer"


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw what `penstock.bench.priorities.Report.as_json` says."""
    plt = pyplot()
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(11, 9.5), layout="constrained", height_ratios=(3, 2)
    )
    _draw_ratios(content, upper)
    _draw_latencies(content, lower)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _runs(content: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The runs of the experiment itself, by scheduler and kind of buffer."""
    return {
        (run["scheduler"] + "+" * run["whole"], run["kind"]): run
        for run in content["runs"]
        if run["placement"] == PAPER
        and not run["load"]
        and run["burst"] == BURST
        and "," not in run["scheduler"]
    }


def _draw_ratios(content: dict[str, Any], axes: Any) -> None:
    runs = _runs(content)
    labels = list(dict.fromkeys(label for label, _ in runs))
    width = 0.8 / len(BARS)
    for n, ((kind, important), (label, colour)) in enumerate(BARS.items()):
        heights = []
        for scheduler in labels:
            one, base = runs[scheduler, kind], runs[scheduler, "normal"]
            found = [
                run["prioritised"] if important else run["latency"]["0"] for run in (one, base)
            ]
            heights.append(found[0] / found[1])
        places = [at + (n - (len(BARS) - 1) / 2) * width for at in range(len(labels))]
        # bars begin at 1, where nothing changes
        axes.bar(places, [h - 1 for h in heights], width, bottom=1, color=colour, label=label)
        for at, height in zip(places, heights, strict=True):
            if height < 0.1:
                axes.text(at, height * 0.9, f"{1 / height:,.0f} ×", rotation=90, fontsize=7,
                          ha="center", va="top")  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    low = min(run["prioritised"] / runs[at[0], "normal"]["prioritised"] for at, run in runs.items())
    axes.set_ylim(low / 4, 3)
    axes.set_xticks(range(len(labels)), [_two_lines(label) for label in labels])
    axes.set_ylabel("mean latency, 1 = with normal buffers")
    axes.legend(frameon=False, ncols=2, loc="lower left")
    axes.set_title("change of latency against normal buffers (the paper's figure 4)")


def _draw_latencies(content: dict[str, Any], axes: Any) -> None:
    """Draw what all elements wait over what prioritised ones do: lower left is best."""
    runs = _runs(content)
    marks = {"normal": "o", "direct": "s", "levels": "^"}
    names = {
        "min-latency": "#5b6b82",
        "min-latency+": "#b0b7c3",
        "highest priority+": "#f2a65a",
        "both joined": "#1f6fb2",
        "both joined+": "#55a868",
    }
    for name, colour in names.items():
        axes.scatter([], [], color=colour, marker="o", label=name)
        for kind, mark in marks.items():
            run = runs[name, kind]
            axes.scatter(run["prioritised"], run["overall"], color=colour, marker=mark, s=40)
    for run in content["runs"]:
        if run["placement"] == EARLY and run["kind"] == "direct":
            colour = names[run["scheduler"] + "+" * run["whole"]]
            axes.scatter(run["prioritised"], run["overall"], color=colour, marker="*", s=110)
    for text, mark in (marks | {EARLY: "*"}).items():
        axes.scatter([], [], color="black", marker=mark, label=text)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mean latency of prioritised elements, ms")
    axes.set_ylabel("of all elements, ms")
    axes.legend(frameon=False, ncols=2, loc="lower right")
    axes.set_title("what the important ones gain, and what it costs: lower left is best")


def _two_lines(label: str) -> str:
    return label.replace(" ", "\n").replace("min-", "min-\n")
