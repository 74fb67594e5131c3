"""``python -m benchmarks.service``: what queries get of the time that they ask for, by the policy.

* ``within``: twenty aggregates that want their answers sooner or later and count more or less, in
  batches that take twice as long as the most patient one waits.  The weighted utility of all rows
  that were answered, of what it would be if all were in time, in the engine without Spark.
* ``classes``: the public scenario of Odysseus.  25 queries ``SELECT * FROM person WHERE id > k`` in
  three service classes, with limits of 50, 20 and 10 for 15, 7 and 3 of them.  A query pays by the
  share of its rows that came in time.  A batch takes 60 in the units of the limits.  Seeds choose
  ``k`` and which query is in which class.

Time is that of the processor, so other work on the machine does not show.  ``--raw`` keeps the
numbers.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from benchmarks.harness import console
from penstock.bench.scripts import plans_of
from penstock.model import Batch, Message
from penstock.physical.efforts import Experience, Measured, measured_after
from penstock.physical.fragment import Fragment
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query, plan
from penstock.runs.state import MemoryStorage
from penstock.schedule.board import Promise
from penstock.settings import Settings

POLICIES = ("qos", "roundrobin", "fifo")
LEAST_GAIN = 1.5
"""Of `qos`, over the better of the others."""

PENALTIES = ((0.8, 0), (0.5, 300), (0.4, 3_000), (0.0, 10_000))
"""From which share of rows in time on, and what a query pays."""

CLASSES = {50: 15, 20: 7, 10: 3}
"""Limits, and how many queries have them."""

TRAINS = 20
"""Of a batch."""

BATCH = 60
"""How long a batch takes, in the units of the limits."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Service by the policy of the scheduler")
    parser.add_argument("names", nargs="*", default=["within", "classes"])
    parser.add_argument("--rows", type=int, default=500_000, help="of a batch")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--raw", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if "within" in options.names:
        found["within"] = within(options.rows)
    if "classes" in options.names:
        found["classes"] = [classes(options.rows, seed) for seed in range(options.seeds)]
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    raise SystemExit(1 if show(found) else 0)


Answered = Callable[[str, int, float], None]
"""Is told of rows of a query, and how long after the beginning of the batch they were there."""


def run(
    whole: PhysicalPlan,
    stage: int,
    rows: Batch,
    settings: Mapping[str, Any],
    known: Experience,
    answered: Answered,
) -> tuple[float, Fragment]:
    """Let one stage work on rows of all its inputs; return how long it took."""
    users = whole.users()
    began = 0.0

    def note(at: int, message: Message) -> None:
        if isinstance(message, Batch) and len(message):
            for query in users[at]:
                answered(query, len(message), time.thread_time() - began)

    fragment = Fragment(
        whole,
        stage,
        0,
        1,
        {},
        MemoryStorage(),
        Settings(settings),
        {},
        lambda channel, message: note(whole.channels[channel].producer, message),
        lambda node, batch, operator: note(node, batch),
        whole.packed(whole.sources("stream")) if stage < 0 else None,
        known,
    )
    began = time.thread_time()
    fragment.board.clock, fragment.board.began = time.thread_time, began
    for source in whole.sources("stream"):
        fragment.bring(source, rows)
    fragment.run()
    return time.thread_time() - began, fragment


def planned(script: str, promises: Mapping[str, Promise]) -> PhysicalPlan:
    """Plan queries as they are written."""
    queries = [
        Query(name, node, promise=promises.get(name, Promise()))
        for name, node in plans_of(script).items()
    ]
    return plan(queries, Settings({"rules": False}), {})


def learnt(
    whole: PhysicalPlan, rows: Batch, settings: Mapping[str, Any]
) -> tuple[float, Experience]:
    """Run a batch four times; return how long one takes, and what is known of operators then."""
    known: Measured = {}
    took = []
    for _ in range(4):
        seconds, fragment = run(whole, -1, rows, settings, Experience(), lambda *_: None)
        known = measured_after(known, fragment.done())
        took.append(seconds)
    return min(took), Experience(known)


# Twenty queries that want their answers within some time


def within(rows: int) -> dict[str, Any]:
    """Return the weighted utility of each policy, as a share of what there is."""
    selections = {
        f"q{n}": " + ".join(["sin(x)"] * (2 + n % 5)) + f" < {100 - n}" for n in range(20)
    }
    script = "CREATE STREAM s (x DOUBLE, y BIGINT, t BIGINT) USING memory TIMESTAMP BY t;\n"
    for name, condition in selections.items():
        script += f"CREATE QUERY {name} AS SELECT * FROM s WHERE {condition};\n"
    when = np.arange(rows)
    batch = Batch.of([pa.array(when / rows), pa.array(when), pa.array(when)], when)
    settings = {"train.rows": max(1, rows // TRAINS)}
    whole_seconds, _ = learnt(planned(script, {}), batch, settings)
    dice = random.Random(1)
    shares = [0.05 + 0.45 * n / 19 for n in range(20)]
    dice.shuffle(shares)
    promises = {
        f"q{n}": Promise(whole_seconds * share, dice.choice((1, 2, 5, 10)))
        for n, share in enumerate(shares)
    }
    whole = planned(script, promises)
    _, known = learnt(whole, batch, settings)
    most = sum(promise.weight * rows for promise in promises.values())
    found = {}
    for policy in POLICIES:
        worth = 0.0

        def answered(query: str, some: int, latency: float) -> None:
            nonlocal worth
            worth += some * promises[query].utility(latency)

        run(whole, -1, batch, settings | {"scheduler": policy}, known, answered)
        found[policy] = worth / most
    return found


# Odysseus


def classes(rows: int, seed: int) -> dict[str, float]:
    """Return the penalty of each policy for a seed."""
    dice = random.Random(seed)
    limits = [limit for limit, count in CLASSES.items() for _ in range(count)]
    dice.shuffle(limits)
    script = (
        "CREATE STREAM person (id BIGINT, name STRING, t BIGINT) USING memory TIMESTAMP BY t;\n"
    )
    for n in range(len(limits)):
        least = dice.randrange(rows // 2)
        script += f"CREATE QUERY q{n} AS SELECT * FROM person WHERE id > {least};\n"
    ids = np.random.default_rng(seed).permutation(rows)
    names = pa.array([f"person {n % 100}" for n in range(rows)])
    batch = Batch.of([pa.array(ids), names, pa.array(np.arange(rows))], np.arange(rows))
    settings = {"train.rows": max(1, rows // TRAINS)}
    unit, _ = learnt(planned(script, {}), batch, settings)
    unit /= BATCH
    promises = {f"q{n}": Promise(limit * unit) for n, limit in enumerate(limits)}
    whole = planned(script, promises)
    _, known = learnt(whole, batch, settings)
    return {
        policy: _penalty(whole, batch, settings | {"scheduler": policy}, known, promises)
        for policy in POLICIES
    }


def _penalty(
    whole: PhysicalPlan,
    batch: Batch,
    settings: Mapping[str, Any],
    known: Experience,
    promises: Mapping[str, Promise],
) -> float:
    came = dict.fromkeys(promises, 0)
    in_time = dict.fromkeys(promises, 0)

    def answered(query: str, some: int, latency: float) -> None:
        limit = promises[query].within
        assert limit is not None
        came[query] += some
        in_time[query] += some if latency <= limit else 0

    run(whole, -1, batch, settings, known, answered)
    return sum(penalty_of(in_time[query] / max(1, came[query])) for query in promises)


def penalty_of(share: float) -> int:
    """Return what a query pays of whose rows such a share came in time."""
    return next(pays for least, pays in PENALTIES if share >= least)


def show(found: Mapping[str, Any]) -> bool:
    """Print tables; return whether a bar was missed."""
    missed = False
    if "within" in found:
        shares = found["within"]
        best = max(share for policy, share in shares.items() if policy != "qos")
        gain = shares["qos"] / best
        missed |= gain < LEAST_GAIN
        table = Table(
            "policy",
            "weighted utility",
            title="twenty queries, twice as much work as time (more is better)",
        )
        for policy, share in shares.items():
            table.add_row(policy, f"{share:.2f}")
        console.print(table)
        console.print(f"qos over the better of the others: {gain:.2f} (≥ {LEAST_GAIN})")
    if "classes" in found:
        table = Table("seed", *POLICIES, title="Odysseus: penalties of 25 queries (less is better)")
        for seed, pays in enumerate(found["classes"]):
            table.add_row(str(seed), *(f"{pays[policy]:,.0f}" for policy in POLICIES))
            missed |= pays["qos"] > pays["roundrobin"]
        console.print(table)
    console.print("missed" if missed else "reached")
    return missed


if __name__ == "__main__":
    main()
