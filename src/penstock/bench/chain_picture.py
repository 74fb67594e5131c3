"""The picture of the scheduling experiment: elements in memory over time, the paper's figure 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.pictures import pyplot

COLOURS = {
    "FIFO": "#b0b7c3",
    "round robin": "#5b6b82",
    "greedy": "#f2a65a",
    "Chain, unshared": "#c44e52",
    "shared Chain": "#7fb2dd",
    "shared Chain, bounded": "#55a868",
    "merged Chain": "#1f6fb2",
}
_TOGETHER = {"round robin": (0, (5, 3)), "shared Chain, bounded": (0, (1, 2))}
"""Curves that lie on that of FIFO are drawn in pieces."""


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw what `penstock.bench.chain.Report.as_json` says."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for name, curve in content["curves"].items():
        seconds = [n / 100 for n in range(len(curve))]
        axes.plot(
            seconds,
            curve,
            color=COLOURS[name],
            linestyle=_TOGETHER.get(name, "-"),
            label=f"{name}, area {content['areas'][name] / 1e6:.2f} million",
        )
    axes.axvline(content["crossing"] / 1000, color="black", linewidth=0.6, linestyle=":")
    axes.set_xlabel("seconds")
    axes.set_ylabel("elements in memory")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
