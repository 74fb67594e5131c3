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
    figure, (axes, below) = plt.subplots(2, 1, figsize=(8, 9), layout="constrained")
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
    axes.set_title("computed: 1,000 elements, 1 ms each")
    _draw_engine(content["engine"], below)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_engine(engine: dict[str, Any], axes: Any) -> None:
    """Draw what `penstock.bench.chain_engine.Report.as_json` says."""
    for name, curve in engine["curves"].items():
        share = engine["areas"][name] / engine["areas"]["FIFO"]
        axes.plot(
            [seconds for seconds, _ in curve],
            [held / 1e6 for _, held in curve],
            color=COLOURS[name],
            linestyle=_TOGETHER.get(name, "-"),
            label=f"{name}, area {share:.2f} of FIFO's",
        )
    axes.set_xlabel("seconds of the processor")
    axes.set_ylabel("MB between operators")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.set_title("measured: the same queries on the engine")
