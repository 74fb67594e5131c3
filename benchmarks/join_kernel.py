"""How many rows per second the join operator takes on one core, without Spark.

Two streams of equal rate are joined on an integer key; each micro-batch opens the operator on its
state and closes it, as a Spark task does.  Times are CPU seconds, the first batches (in which the
window fills) are left out.  ``python benchmarks/join_kernel.py [--batches N] [--profile]``.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.expr.nodes import Column
from penstock.model import INF, Batch, Ends, Heartbeat
from penstock.operators.base import Context
from penstock.operators.join import JoinSpec
from penstock.runs.segments import SegmentStorage
from penstock.runs.state import State

ROWS = 250_000
"""Rows per side and batch; a row is one chronon later than the one before it."""
KEY, VALUE = Column(0, pa.int64(), "key"), Column(1, pa.float64(), "value")
TYPES = (KEY.type, VALUE.type)


@dataclass(frozen=True)
class Scenario:
    """One setting; ``window`` is in batches."""

    name: str
    keys: int
    window: float
    held: str = "no"
    text: bool = False
    zipf: bool = False


SCENARIOS = (
    Scenario("window 0.6 batches, 100 k keys", 100_000, 0.6),
    Scenario("window 10 batches, 1.6 M keys", 1_600_000, 10),
    Scenario("the same, text keys", 1_600_000, 10, text=True),
    Scenario("the same, left side row window", 1_600_000, 10, held="left"),
    Scenario("the same, both sides row windows", 1_600_000, 10, held="both"),
    Scenario("window 10 batches, 100 k keys", 100_000, 10),
    Scenario("window 0.001 batches, few hot keys", 100, 0.001),
)


def batches(scenario: Scenario, port: int, count: int) -> Iterator[tuple[Batch, Ends, Heartbeat]]:
    """Make the messages of one side; a held row is told when the window has passed it by."""
    random = np.random.default_rng(port + 1)
    width = int(scenario.window * ROWS)
    held = scenario.held == "both" or (scenario.held == "left" and port == 0)
    names = np.array([f"customer-{i}" for i in range(scenario.keys)]) if scenario.text else None
    for number in range(count):
        start = np.arange(number * ROWS, (number + 1) * ROWS)
        keys = random.integers(0, scenario.keys, ROWS)
        columns = (pa.array(keys if names is None else names[keys]), pa.array(random.random(ROWS)))
        ends = Ends()
        if held:
            holder = start + 1 + (port << 40)
            told = start - width
            told = told[told >= 0]
            ends = Ends(told + 1 + (port << 40), told + width)
            batch = Batch.of(columns, start, np.full(ROWS, INF), holder)
        else:
            batch = Batch.of(columns, start, start + width)
        yield batch, ends, Heartbeat((number + 1) * ROWS)


def run(scenario: Scenario, count: int, folder: str) -> tuple[float, float, float, int]:
    """Return rows/s, rows/s in the fastest batch, results per row, and rows in the state."""
    types = (pa.string(), VALUE.type) if scenario.text else TYPES
    key = Column(0, types[0], "key")
    join = JoinSpec(types, types, (key,), (key,), None).build()
    description = None
    warm = min(count // 2, int(scenario.window) + 2)
    seconds, results = [], 0
    inputs = (batches(scenario, 0, count), batches(scenario, 1, count))
    for number, sides in enumerate(zip(*inputs, strict=True)):
        begin = time.process_time()
        storage = SegmentStorage(folder, f"{number}", fsync=False)
        state = State(storage, description)
        join.open(Context(state))
        produced = 0
        for port, messages in enumerate(sides):
            for message in messages:
                for result in join.receive(port, message):
                    produced += len(result) if isinstance(result, Batch) else 0
        join.close()
        storage.close()
        description = state.describe()
        if number >= warm:
            seconds.append(time.process_time() - begin)
            results += produced
    total = 2 * ROWS * len(seconds)
    runs = [r for name in ("left", "right") for r in description["runs"].get(name, ())]
    stored = sum(r["rows"] for r in runs)
    return total / sum(seconds), 2 * ROWS / min(seconds), results / total, stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--only", type=int, help="number of one scenario, counted from 0")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    chosen = SCENARIOS if given.only is None else SCENARIOS[given.only : given.only + 1]
    pa.set_cpu_count(1)
    print(f"{'scenario':38} {'rows/s':>12} {'best rows/s':>12} {'results/row':>12} {'stored':>12}")
    for scenario in chosen:
        with tempfile.TemporaryDirectory() as folder:
            profile = cProfile.Profile() if given.profile else None
            if profile:
                profile.enable()
            rate, best, results, stored = run(scenario, given.batches, folder)
            if profile:
                profile.disable()
            print(
                f"{scenario.name:38} {rate:12,.0f} {best:12,.0f} {results:12.2f} {stored:12,}",
                flush=True,
            )
            if profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
