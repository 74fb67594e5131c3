"""The picture of the join experiments: the paper's figures 2 and 3, pages, and early results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.pictures import pyplot

COLOURS = {
    ("cascade", "maxfanin"): "#b0b7c3",
    ("four-way", "maxfanin"): "#5b6b82",
    ("cascade", "greedy"): "#f2a65a",
    ("four-way", "greedy"): "#1f6fb2",
}
NAMES = {"maxfanin": "MaxFanIn", "greedy": "Greedy"}
ORDERS = {
    "post": ("post-order, while runs are made", "#1f6fb2"),
    "late": ("post-order, after the last run", "#7fb2dd"),
    "level": ("level-order, after the last run", "#f2a65a"),
}


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw what `penstock.bench.tpmj.Report.as_json` says."""
    plt = pyplot()
    figure = plt.figure(figsize=(13, 9.5), layout="constrained")
    grid = figure.add_gridspec(4, 3, height_ratios=[1.15, 1.15, 1, 1])
    _results(figure.add_subplot(grid[:2, :2]), content)
    _pages(figure.add_subplot(grid[:2, 2]), content)
    rates = figure.add_subplot(grid[2, :2])
    memory = figure.add_subplot(grid[3, :2], sharex=rates)
    _changing(rates, memory, content)
    _early(figure.add_subplot(grid[2:, 2]), content)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _results(axes: Any, content: dict[str, Any]) -> None:
    rows = content["rows"]
    best = [0, *content["best"]]
    axes.plot(
        np.linspace(0, rows / 1000, len(best)),
        np.array(best) / 1000,
        color="black",
        marker="o",
        markersize=4,
        linewidth=0,
        label="best possible, at every tenth",
        zorder=5,
    )
    for run in content["runs"]:
        curve = np.array([[0, 0], *run["curve"]], float)
        label = f"{run['plan']}, {NAMES[run['strategy']]}"
        width = 5 if (run["plan"], run["strategy"]) == ("cascade", "greedy") else 1.8
        axes.step(curve[:, 0] / 1000, curve[:, 1] / 1000, where="post", linewidth=width,
                  color=COLOURS[run["plan"], run["strategy"]], label=label)  # fmt: skip
    axes.axvline(rows / 1000, color="black", linewidth=0.6, linestyle=":")
    axes.text(rows / 1000, 0, " sources end", rotation=90, va="bottom", ha="right", fontsize=8)
    axes.set(
        xlabel="seconds (virtual)", ylabel="results, thousands", xlim=(0, None), ylim=(0, None)
    )
    axes.set_title(
        f"Four-way interval overlap: {content['expected']:,} results over time", loc="left"
    )
    axes.legend(frameon=False, loc="upper left")


def _pages(axes: Any, content: dict[str, Any]) -> None:
    runs = content["runs"]
    at = [0, 1, 2.6, 3.6]
    counts = [run["pages"] for run in runs]
    colours = [COLOURS[run["plan"], run["strategy"]] for run in runs]
    axes.bar(at, [c / 1000 for c in counts], color=colours, width=0.85)
    for x, count in zip(at, counts, strict=True):
        axes.text(x, count / 1000, f"{count:,}", ha="center", va="bottom", fontsize=8)
    for x, pair in ((0.5, counts[:2]), (3.1, counts[2:])):
        axes.text(x, max(pair) / 1000 + 0.07 * max(counts) / 1000, f"{pair[0] / pair[1]:.1f} ×",
                  ha="center", fontsize=11, weight="bold")  # fmt: skip
    labels = [f"{run['plan']}\n{NAMES[run['strategy']]}" for run in runs]
    axes.set_xticks(at, labels, fontsize=8)
    axes.set(ylabel="pages read and written, thousands", ylim=(0, 1.18 * max(counts) / 1000))
    axes.set_title("Page accesses (4 KiB)", loc="left")


def _changing(rates: Any, memory: Any, content: dict[str, Any]) -> None:
    changing = content["changing"]
    seconds = np.array(changing["seconds"])
    step = seconds[0]
    rates.step(seconds, np.array(changing["arriving"]) / 1000, where="pre", color="#5b6b82",
               label="elements in, thousands/s")  # fmt: skip
    leaving = np.array(changing["leaving"])
    second = (seconds / 2).astype(int)
    smooth = np.bincount(second, leaving * step) / 2
    rates.step(np.arange(len(smooth)) * 2, smooth / 1000, where="post", color="#1f6fb2",
               label="results out, thousands/s, per 2 s")  # fmt: skip
    rates.set_yscale("symlog", linthresh=1)
    rates.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    rates.set_ylim(0, None)
    rates.set_title("Sources switching between 1 ms and 10 ms: the strategy follows the load "
                    "(shaded: MaxFanIn)", loc="left")  # fmt: skip
    rates.legend(loc="upper right", ncols=2, edgecolor="none", framealpha=0.9)
    rates.tick_params(labelbottom=False)
    mib = 1e6
    memory.plot(seconds, np.array(changing["most"]) / mib, color="#f2a65a", linewidth=1,
                label="with sweep areas, blocks and results")  # fmt: skip
    memory.plot(seconds, np.array(changing["gathered"]) / mib, color="#1f6fb2", linewidth=1.4,
                label="rows gathered")  # fmt: skip
    memory.axhline(content["memory"] / mib, color="black", linewidth=0.6, linestyle=":")
    memory.set(xlabel="seconds (virtual)", ylabel="memory, MB", xlim=(0, seconds[-1]))
    memory.set_yscale("symlog", linthresh=1)
    memory.set_yticks([0, 0.5, 1, 10], ["0", "0.5", "1", "10"])
    memory.set_ylim(0, None)
    memory.legend(loc="upper right", ncols=2, edgecolor="none", framealpha=0.9)
    conservative = np.array([s == "maxfanin" for s in changing["strategy"]])
    for axes in (rates, memory):
        axes.fill_between(seconds, 0, 1, where=conservative, step="pre", color="#5b6b82",
                          alpha=0.12, linewidth=0,
                          transform=axes.get_xaxis_transform())  # fmt: skip


def _early(axes: Any, content: dict[str, Any]) -> None:
    for early in content["early"]:
        curve = np.array([[0, 0], *early["curve"]], float)
        label, colour = ORDERS[early["order"]]
        style = "--" if early["order"] == "late" else "-"
        axes.plot(curve[:, 0] / 1000, 100 * curve[:, 1] / early["results"], style, color=colour,
                  linewidth=1.8, label=label)  # fmt: skip
    axes.set(xlabel="seconds of work (virtual)", ylabel="results, %", xlim=(0, None),
             ylim=(0, 100))  # fmt: skip
    axes.set_title("PMJ: early results of a finite join", loc="left")
    axes.legend(frameon=False, loc="upper left")
