"""The picture of NEXMark: events a second of each query, on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bench.pictures import pyplot

SIDES = {"penstock": ("Penstock", "#1f6fb2"), "flink": ("Flink SQL", "#f2a65a")}


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw what `penstock.bench.nexmark.Report.as_json` says."""
    plt = pyplot()
    lines = content["queries"]
    sides = [side for side in SIDES if any(line[side] is not None for line in lines)]
    height = 0.8 / len(sides)
    figure, axes = plt.subplots(figsize=(10, 1.6 + 0.36 * len(lines)), layout="constrained")
    least = min([line[f"{s} events/s"] for line in lines for s in sides
                 if line[f"{s} events/s"]], default=1.0)  # fmt: skip
    for number, side in enumerate(sides):
        label, colour = SIDES[side]
        places = [at + (number - (len(sides) - 1) / 2) * height for at in range(len(lines))]
        rates = [line[f"{side} events/s"] or 0 for line in lines]
        axes.barh(places, rates, height, color=colour, label=label)
        for place, rate, line in zip(places, rates, lines, strict=True):
            told = f" {rate:,.0f}" if rate else f" {(line[side] or {}).get('why', '')[:60]}"
            axes.text(rate or least / 2, place, told, va="center", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlim(left=least / 2)
    axes.margins(x=0.12)
    axes.set_yticks(range(len(lines)), [f"{line['query']}, {line['title']}" for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("events a second")
    axes.set_title(f"NEXMark, {content['events']['count']:,} events, {content['cores']} cores")
    if len(sides) > 1:
        axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)
