"""Writes the measured tables of docs/papers.md, between their marks, from the raw numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER / "papers.md"
RAW = FOLDER / "papers-lifetimes.json"
KINDS = ("rows", "time")
GAIN = 1.4
SMALLEST = 100


def ratios(found: Mapping[str, Any]) -> Iterator[str]:
    """By how much the direct method is faster, for every query, window and size."""
    points = {(p["query"], p["kind"], p["size"]): p["ratio"] for p in found["points"]}
    sizes = sorted({size for _, _, size in points})
    yield f"| query | window | {' | '.join(f'{size:,}' for size in sizes)} |"
    yield f"|---|---|{'---:|' * len(sizes)}"
    for query in dict.fromkeys(query for query, _, _ in points):
        for kind in KINDS:
            told = " | ".join(f"{points[query, kind, size]:.2f}" for size in sizes)
            yield f"| {query} | {kind} | {told} |"


def misses(found: Mapping[str, Any]) -> Iterator[str]:
    """The worst point of every query and kind of window that misses the bar, with its profile."""
    asked = [p for p in found["points"] if p["size"] >= SMALLEST]
    reached = sum(p["ratio"] >= GAIN for p in asked)
    yield f"{reached} of {len(asked)} points from {SMALLEST} elements on reach {GAIN}."
    yield "The worst of the others, and where their time goes:"
    yield ""
    yield "| query | window | size | ratio | direct, ns per element | negative, ns per element |"
    yield "|---|---|---:|---:|---|---|"
    worst: dict[tuple[str, str], Mapping[str, Any]] = {}
    for point in asked:
        at = point["query"], point["kind"]
        if point["ratio"] < GAIN and point["ratio"] < worst.get(at, point)["ratio"] + 1e-9:
            worst[at] = point
    for point in worst.values():
        parts = " | ".join(profile(point["profile"][method]) for method in ("direct", "negative"))
        size, ratio = f"{point['size']:,}", f"{point['ratio']:.2f}"
        yield f"| {point['query']} | {point['kind']} | {size} | {ratio} | {parts} |"


def profile(spent: Mapping[str, float]) -> str:
    """The operators with the most time."""
    most = sorted(spent.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{short(label)} {1000 * time:.0f}" for label, time in most)


def short(label: str) -> str:
    """An operator's label without its details."""
    return re.sub(r"(Window|Output).*", r"\1", label).lower()


def memory(found: Mapping[str, Any]) -> Iterator[str]:
    """Bytes of state per element."""
    yield "| state | rows | time | rows / time |"
    yield "|---|---:|---:|---:|"
    for name, kept in found["bytes_kept"].items():
        rows, time = (kept[kind] for kind in KINDS)
        yield f"| {name} | {rows:.0f} | {time:.0f} | {rows / time:.2f} |"


TABLES = {"ratios": ratios, "misses": misses, "memory": memory}


def page() -> str:
    """The whole page, with its tables made anew."""
    text = PAGE.read_text()
    found = json.loads(RAW.read_text())
    for name, make in TABLES.items():
        begins, ends = f"<!-- lifetimes {name}: begin -->", f"<!-- lifetimes {name}: end -->"
        before, rest = text.split(begins)
        _, after = rest.split(ends)
        made = "\n".join(make(found))
        text = f"{before}{begins}\n\n{made}\n\n{ends}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.name)
