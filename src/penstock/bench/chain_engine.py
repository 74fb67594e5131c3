"""Chain and shared plans on the engine [D]: bytes between operators over time, by the policy.

The two queries of `penstock.bench.chain` as CQL, with real selections that leave as much as in the
paper.  A selection sums the more terms for a row the fewer rows come to it, so that a train takes
each about as long.  What operators cost and leave is measured in a run before.  Time is that of
the processor: other work on the machine does not show.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from rich.table import Table

from penstock.bench.bars import Bar, bars_table
from penstock.bench.chain import CHARTS
from penstock.bench.scripts import plans_of
from penstock.model import Batch
from penstock.physical.efforts import Effort, Experience, measured_after
from penstock.physical.fragment import Fragment
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.runs.state import MemoryStorage
from penstock.settings import Settings

TRAINS, ROWS, REPEATS = 400, 1_000, 5
"""Trains that wait, the rows of one, and how often a policy runs: the fastest run counts."""

TERMS = 6
"""Of the sum that the first selection makes for a row."""

TENTHS = range(1, 10)

POLICIES = {
    "FIFO": ("fifo", True, False),
    "round robin": ("roundrobin", True, False),
    "greedy": ("greedy", True, False),
    "Chain, unshared": ("chain", False, False),
    "shared Chain": ("sharedchain", True, False),
    "shared Chain, bounded": ("sharedchain", True, True),
    "merged Chain": ("mergedchain", True, False),
}
"""The engine's policy, whether the queries share their stream, whether admission is bounded."""


def _select(below: str, size: float, before: float) -> str:
    """Return a selection that leaves so much of what came, which was ``before``."""
    terms = " + ".join(["sin(x)"] * round(TERMS / before))
    return f"SELECT * FROM {below} WHERE x < {size} AND {terms} < 1000"  # noqa: S608 (our own)


def script(shared: bool) -> str:
    """Return the queries, over one stream or over one each."""
    lines = []
    for number, (name, points) in enumerate(CHARTS.items()):
        stream = "s" if shared else f"s{number}"
        if number == 0 or not shared:
            lines.append(
                f"CREATE STREAM {stream} (x DOUBLE, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t"
            )
        text = stream
        sizes = [size for _, size in points]
        for step, (before, size) in enumerate(pairwise(sizes)):
            text = _select(text, size, before)
            if step + 2 < len(sizes):
                text = f"({text}) AS part{step}"
        lines.append(f"CREATE QUERY {name} AS {text}")
    return ";\n".join(lines)


def plan_of(shared: bool) -> PhysicalPlan:
    """Plan the queries as they are written: no rule puts selections together."""
    queries = [Query(name, node) for name, node in plans_of(script(shared)).items()]
    return plan(queries, Settings({"rules": False}), {})


def rows_of(trains: int) -> Batch:
    """Return the rows that wait: each train has all values alike."""
    dice = np.random.default_rng(1)
    values = np.concatenate([dice.permutation(ROWS) / ROWS for _ in range(trains)])
    when = np.arange(len(values))
    return Batch.of([pa.array(values), pa.array(when), pa.array(when)], when)


Curve = list[tuple[float, int]]
"""Seconds and bytes, at the start and after every turn."""


def run(
    whole: PhysicalPlan, rows: Batch, settings: Mapping[str, object], measured: Experience
) -> tuple[Curve, Mapping[str, Effort]]:
    """Bring rows to all streams, work until nothing waits; return the curve and what was done."""
    positions = whole.packed(whole.sources("stream"))
    config = Settings({"train.rows": ROWS, **settings})
    fragment = Fragment(
        whole,
        -1,
        0,
        1,
        {},
        MemoryStorage(),
        config,
        {},
        lambda channel, message: None,
        lambda node, batch, operator: None,
        positions,
        measured,
    )
    for source in whole.sources("stream"):
        fragment.bring(source, rows)
    began = time.thread_time()
    curve = [(0.0, fragment.held.now)]
    while fragment.turn():
        curve.append((time.thread_time() - began, fragment.held.now))
    return curve, fragment.done()


@dataclass
class Report:
    """The curves of all policies."""

    curves: dict[str, Curve]

    @property
    def seconds(self) -> float:
        """How long FIFO takes."""
        return self.curves["FIFO"][-1][0]

    def at(self, policy: str, tenth: float) -> float:
        """Return the bytes that wait after so many tenths of FIFO's time."""
        curve = self.curves[policy]
        now = tenth * self.seconds / 10
        return next((held for when, held in reversed(curve) if when <= now), curve[0][1])

    def area(self, policy: str) -> float:
        """Return the area under a curve, in bytes times seconds."""
        return sum(a[1] * (b[0] - a[0]) for a, b in pairwise(self.curves[policy]))

    def bars(self) -> Iterator[Bar]:
        """What must hold: the order of the computed curves."""
        merged, ours = self.area("merged Chain"), self.area("shared Chain")
        yield Bar("engine: area of merged Chain, of shared Chain", merged / ours, 1.0, False)
        for other in ("FIFO", "Chain, unshared"):
            ratio = ours / self.area(other)
            yield Bar(f"engine: area of shared Chain, of {other}", ratio, 1.0, False)
        whole = self.at("FIFO", 0)
        others = [name for name in self.curves if name != "merged Chain"]
        worst = max(
            self.at("merged Chain", t) - min(self.at(name, t) for name in others) for t in TENTHS
        )
        yield Bar(
            "engine: merged Chain above the lowest other at a tenth, of all that came",
            worst / whole,
            0.02,
            False,
        )

    def as_json(self) -> dict[str, object]:
        """Return the numbers; of each curve about two hundred points."""
        return {
            "curves": {name: _thinned(curve) for name, curve in self.curves.items()},
            "areas": {name: self.area(name) for name in self.curves},
            "bars": [vars(bar) | {"met": bar.met} for bar in self.bars()],
        }


def _thinned(curve: Curve, points: int = 200) -> Curve:
    step = max(1, len(curve) // points)
    return [*curve[::step], curve[-1]]


def measure(trains: int = TRAINS, repeats: int = REPEATS) -> Report:
    """Run all policies in turn, each with what an earlier run has measured."""
    rows = rows_of(trains)
    plans = {shared: plan_of(shared) for shared in (True, False)}
    known = {}
    for shared, whole in plans.items():
        run(whole, rows.slice(0, 10 * ROWS), {}, Experience())  # so that all is loaded
        _, efforts = run(whole, rows, {}, Experience())
        known[shared] = Experience(measured_after({}, efforts))
    found: dict[str, list[Curve]] = {name: [] for name in POLICIES}
    for _ in range(repeats):
        for name, (policy, shared, bound) in POLICIES.items():
            settings = {"scheduler": policy, "scheduler.bound": bound}
            found[name].append(run(plans[shared], rows, settings, known[shared])[0])
    return Report({name: min(some, key=lambda c: c[-1][0]) for name, some in found.items()})


def tables(report: Report) -> Iterator[Table]:
    """Yield what is shown: what waits at tenths of FIFO's time, and the bars."""
    found = Table(
        title="the engine: percent of the bytes of the stream that wait between operators after "
        "tenths of FIFO's time; area of FIFO's"
    )
    found.add_column("policy", no_wrap=True)
    for tenth in TENTHS:
        found.add_column(f"{tenth}", justify="right")
    found.add_column("area", justify="right")
    whole = report.at("FIFO", 0)
    for policy in report.curves:
        values = [f"{report.at(policy, tenth) / whole:.0%}"[:-1] for tenth in TENTHS]
        found.add_row(policy, *values, f"{report.area(policy) / report.area('FIFO'):.2f}")
    yield found
    yield bars_table(f"FIFO takes {report.seconds:.2f} s of the processor", report.bars())
