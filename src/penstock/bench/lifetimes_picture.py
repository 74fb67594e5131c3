"""The picture of the lifetimes experiment: throughput over window size, as the paper's figure 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.pictures import pyplot

LINES = {
    ("direct", "rows"): ("direct, rows", "#1f6fb2", "-", "o"),
    ("negative", "rows"): ("negative, rows", "#f2a65a", "-", "o"),
    ("direct", "time"): ("direct, time", "#1f6fb2", "--", "s"),
    ("negative", "time"): ("negative, time", "#f2a65a", "--", "s"),
    ("insertion", "time"): ("direct with sorted insertion, time", "#8a8f99", ":", "^"),
}


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw what `penstock.bench.lifetimes.Report.as_json` says."""
    plt = pyplot()
    queries = list(dict.fromkeys(p["query"] for p in content["points"]))
    figure, grid = plt.subplots(2, 3, figsize=(12, 6.8), layout="constrained", sharex=True)
    for axes, query in zip(grid.flat, queries, strict=True):
        for (method, kind), (label, colour, dashes, marker) in LINES.items():
            points = [
                (p["size"], p["rates"][method] / p["base"])
                for p in content["points"]
                if p["query"] == query and p["kind"] == kind and method in p["rates"]
            ]
            if points:
                axes.plot(*zip(*points, strict=True), dashes, color=colour, marker=marker,
                          markersize=4, label=label)  # fmt: skip
        axes.set_title(query)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#e4e6ea")
    for axes in grid[1]:
        axes.set_xlabel("elements in the window")
    for axes in grid[:, 0]:
        axes.set_ylabel("throughput, 1 = negative, 10 rows")
    lines, labels = [], []
    for axes in grid.flat:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in labels:
                lines.append(line)
                labels.append(label)
    figure.legend(lines, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
