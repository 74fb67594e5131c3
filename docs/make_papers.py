"""Writes the measured tables of docs/papers.md, between their marks, from the raw numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER / "papers.md"
KINDS = ("rows", "time")
BURST, OVERLOAD = 10, 1.1
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


PAPER, EARLY = "all three (paper)", "priority in front of the first buffer"


def grid(found: Mapping[str, Any]) -> Iterator[str]:
    """Latency relative to normal buffers, of prioritised and of normal elements."""
    kinds = ("direct", "weak", "strong", "strong2", "levels")
    runs = {
        (run["scheduler"] + "+" * run["whole"], run["kind"]): run
        for run in found["runs"]
        if run["placement"] == PAPER
        and not run["load"]
        and run["burst"] == BURST
        and "," not in run["scheduler"]
    }
    yield f"| scheduler | {' | '.join(kinds)} | normal buffers: all, ms | run, s |"
    yield f"|---|{'---:|' * (len(kinds) + 2)}"
    for name in dict.fromkeys(name for name, _ in runs):
        base = runs[name, "normal"]
        cells = []
        for kind in kinds:
            run = runs.get((name, kind))
            if run is None:
                cells.append("")
                continue
            both = [
                (run["prioritised"], base["prioritised"]),
                (run["latency"]["0"], base["latency"]["0"]),
            ]
            cells.append(" / ".join(ratio(one / other) for one, other in both))
        told = " | ".join([*cells, f"{base['overall']:,.2f}", f"{base['seconds']:.2f}"])
        yield f"| {name} | {told} |"


def ratio(value: float) -> str:
    """A ratio with as many digits as tell something."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def classes(found: Mapping[str, Any]) -> Iterator[str]:
    """Latency by priority, in ms, where they differ most."""
    yield "| scheduler | buffers | 0 | 8 | 9 | 10 |"
    yield "|---|---|---:|---:|---:|---:|"
    for run in found["runs"]:
        shown = (run["scheduler"], run["whole"]) in (
            ("both joined", False),
            ("biggest queue", False),
        )
        kinds = ("direct", "weak", "strong2", "levels")
        usual = run["placement"] == PAPER and not run["load"] and run["burst"] == BURST
        if shown and usual and run["kind"] in kinds:
            told = " | ".join(f"{mean:,.2f}" for mean in run["latency"].values())
            yield f"| {run['scheduler']} | {run['kind']} | {told} |"


def overload(found: Mapping[str, Any]) -> Iterator[str]:
    """The same where more work comes than there is time."""
    runs = {
        (run["scheduler"] + "+" * run["whole"], run["placement"], run["kind"]): run
        for run in found["runs"]
        if run["load"] == OVERLOAD
    }
    yield "| scheduler | direct | weak | levels | normal: all, ms | ours | normal: all, ms |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name in dict.fromkeys(name for name, _, _ in runs):
        cells = []
        for place, kinds in ((PAPER, ("direct", "weak", "levels")), (EARLY, ("levels",))):
            base = runs[name, place, "normal"]
            for kind in kinds:
                run = runs[name, place, kind]
                gained = ratio(run["prioritised"] / base["prioritised"])
                cells.append(f"{gained} / {ratio(run['latency']['0'] / base['latency']['0'])}")
            cells.append(f"{base['overall']:,.0f}")
        yield f"| {name} | {' | '.join(cells)} |"


def places(found: Mapping[str, Any]) -> Iterator[str]:
    """Latencies by where buffers stand."""
    shown = (("min-latency", False), ("highest priority", True), ("both joined", False))
    runs = {
        (run["placement"], run["scheduler"], run["whole"]): run
        for run in found["runs"]
        if run["kind"] == "direct"
        and not run["load"]
        and run["burst"] == BURST
        and "," not in run["scheduler"]
    }
    yield f"| buffers | {' | '.join(name + '+' * whole for name, whole in shown)} |"
    yield f"|---|{'---:|' * len(shown)}"
    for place in sorted({place for place, _, _ in runs}, key=ORDER.index):
        cells = [runs[place, *one] for one in shown]
        told = " | ".join(f"{c['prioritised']:.2f} / {c['overall']:.2f}" for c in cells)
        yield f"| {place} | {told} |"


def variants(found: Mapping[str, Any]) -> Iterator[str]:
    """What schedulers owe to what, with direct buffers."""
    yield "| scheduler, without `+` | prioritised, ms | all, ms | gain over normal buffers |"
    yield "|---|---:|---:|---:|"
    named = ("min-latency", "highest priority", "both joined")
    runs = {
        (run["scheduler"], run["kind"]): run
        for run in found["runs"]
        if run["placement"] == PAPER
        and not run["load"]
        and run["burst"] == BURST
        and not run["whole"]
        and (run["scheduler"] in named or "," in run["scheduler"])
    }
    for name in sorted({name for name, _ in runs}):
        one, base = runs[name, "direct"], runs[name, "normal"]
        gained = base["prioritised"] / one["prioritised"]
        yield f"| {name} | {one['prioritised']:,.2f} | {one['overall']:,.2f} | {gained:,.1f} |"


def chosen(found: Mapping[str, Any]) -> Iterator[str]:
    """Gains with other bursts and loads."""
    yield "| burst | load | highest priority: gain | all, ms | both joined: gain | all, ms |"
    yield "|---:|---:|---:|---:|---:|---:|"
    runs = {
        (run["burst"], run["load"], run["scheduler"], run["kind"]): run
        for run in found["runs"]
        if run["placement"] == PAPER and not run["whole"] and run["load"] != OVERLOAD
    }
    for burst, load in dict.fromkeys((burst, load) for burst, load, _, _ in runs):
        cells = []
        for name in ("highest priority", "both joined"):
            one, base = (runs[burst, load, name, kind] for kind in ("direct", "normal"))
            gained = base["prioritised"] / one["prioritised"]
            cells += [f"{gained:,.1f}", f"{one['overall']:,.2f}"]
        yield f"| {burst} | {load or found['load']:.2f} | {' | '.join(cells)} |"


ORDER = (
    "after sources",
    "and before joins",
    "and behind the priority operator",
    PAPER,
    EARLY,
    "the same, and before joins",
)


def gains(found: Mapping[str, Any]) -> Iterator[str]:
    """The estimate of section 3.1.3 beside what was measured, in ms."""
    yield "| windows, s | overtaken | load | t_win | measured | ours | measured, waiting | ours |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    names = (
        "estimate",
        "measured, paced",
        "refined, paced",
        "measured, waiting",
        "refined, waiting",
    )
    for case in found["estimates"]:
        windows = ", ".join(f"{w:g}" for w in case["windows"])
        told = " | ".join(f"{1000 * case[name]:.0f}" for name in names)
        yield f"| {windows} | {case['overtaken']} | {case['load']:.2f} | {told} |"


TABLES = {
    "lifetimes": {"ratios": ratios, "misses": misses, "memory": memory},
    "priorities": {
        "grid": grid,
        "classes": classes,
        "variants": variants,
        "chosen": chosen,
        "overload": overload,
        "places": places,
        "gains": gains,
    },
}


def page() -> str:
    """The whole page, with its tables made anew."""
    text = PAGE.read_text()
    for experiment, tables in TABLES.items():
        found = json.loads((FOLDER / f"papers-{experiment}.json").read_text())
        for name, make in tables.items():
            begins, ends = (f"<!-- {experiment} {name}: {which} -->" for which in ("begin", "end"))
            before, rest = text.split(begins)
            _, after = rest.split(ends)
            made = "\n".join(make(found))
            text = f"{before}{begins}\n\n{made}\n\n{ends}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.name)
