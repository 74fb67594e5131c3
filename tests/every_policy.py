"""``python -m tests.every_policy``: all golden files and random plans under every scheduler.

In `make test` the schedulers take turns, so that each golden file meets some of them.  Here each
meets all, with trains of 1, 7 and 1,000 rows, a quantum of one row, `stage.memory` of 1 MB, and
both methods of keeping lifetimes.  ``--cases`` says how many random plans each scheduler gets, with
seeds of its own.
"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.settings import SCHEDULERS
from tests.configs import Hostile
from tests.golden_runner import FILES, known
from tests.golden_runner import run as run_golden
from tests.random_plans import case_of, plans_of, truths_of
from tests.random_plans import run as run_plans

WAYS = ((1, "direct"), (1, "negative"), (7, "direct"), (1000, "negative"))
"""Rows of a train, and the method of keeping lifetimes."""

FIRST_SEED = 500_000


def settings_of(policy: str, train: int, lifetime: str) -> dict[str, object]:
    return {
        "scheduler": policy,
        "scheduler.quantum": 1,
        "train.rows": train,
        "stage.memory": 1 << 20,
        "lifetime": lifetime,
    }


def wrong_goldens(policy: str) -> list[str]:
    """Run all golden files under a policy; return what is wrong."""
    wrong = []
    for path in FILES:
        golden = known(path)
        for number, (train, lifetime) in enumerate(WAYS):
            settings = settings_of(policy, train, lifetime)
            config = Hostile("", cuts=1 + number % 2, shards=1 + number // 2, settings=settings)
            try:
                found = run_golden(golden, config)
            except Exception as error:
                wrong.append(f"{path.stem}, {train} rows, {lifetime}: {error}")
                continue
            wrong += [
                f"{path.stem}, {query.name}, {train} rows, {lifetime}"
                for query in golden.queries
                if found[query.name] != query.expected
            ]
    return wrong


def wrong_plans(policy: str, seeds: range) -> list[str]:
    """Run random plans under a policy; return what is wrong."""
    wrong = []
    for seed in seeds:
        case = case_of(seed)
        plans = plans_of(case)
        train, lifetime = WAYS[seed % len(WAYS)]
        try:
            run_plans(case, plans, truths_of(case, plans), settings_of(policy, train, lifetime))
        except Exception as error:
            wrong.append(f"seed {seed}, {train} rows, {lifetime}: {error}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.every_policy", description=__doc__)
    parser.add_argument("policies", nargs="*", default=SCHEDULERS, metavar="policy")
    parser.add_argument("--cases", type=int, default=40, help="random plans for each policy")
    options = parser.parse_args()
    console = Console()
    table = Table("scheduler", "golden files", "random plans", "seconds", "wrong")
    failed = []
    for number, policy in enumerate(track(options.policies, "schedulers", console=console)):
        began = time.monotonic()
        first = FIRST_SEED + number * options.cases
        wrong = wrong_goldens(policy) + wrong_plans(policy, range(first, first + options.cases))
        failed += [f"{policy}: {text}" for text in wrong]
        runs = f"{len(FILES)} x {len(WAYS)}"
        seconds = f"{time.monotonic() - began:.0f}"
        table.add_row(policy, runs, str(options.cases), seconds, str(len(wrong)))
    console.print(table)
    for text in failed:
        console.print(text, markup=False)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
