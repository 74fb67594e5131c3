"""``python -m tests.random_times --cases N``: random heartbeats of every kind against the oracle.

A case is made from its seed: two streams with random clauses about time (slack, SLACK AUTO, clock,
silence, punctuations), source partitions with clocks of their own, disorder, promises of the
program, queries over both.  The engine must call the same rows late as `penstock.reference.Judge`,
give the same heartbeats, and answer as the oracle does.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import track

from penstock.model import INF
from penstock.reference import Steps
from penstock.testing import Rig
from penstock.testing.times import plain

QUERIES = (
    "CREATE QUERY pairs AS SELECT a.k, a.v, b.v AS w FROM a [RANGE 9] JOIN b [RANGE 4] "
    "ON a.k = b.k",
    "CREATE QUERY counts AS SELECT k, COUNT(*) AS n, MAX(v) AS m FROM a [RANGE 7] GROUP BY k",
    "CREATE QUERY rows AS SELECT k, SUM(v) AS s FROM a [PARTITION BY k ROWS 2] GROUP BY k",
    "CREATE QUERY some AS ISTREAM (SELECT k, v FROM b WHERE v > 1)",
    "CREATE QUERY unmatched AS SELECT a.k, a.v FROM a [RANGE 6] LEFT ANTI JOIN b [RANGE 6] "
    "ON a.k = b.k",
    "CREATE QUERY totals AS SELECT k, COUNT(*) AS n, MIN(v) AS m FROM a WHERE v < 4 GROUP BY k",
    "CREATE QUERY never AS SELECT a.k, a.w FROM a LEFT ANTI JOIN b ON a.k = b.k AND b.v > 2",
    "CREATE QUERY full_join AS SELECT a.k, a.v, b.v AS x FROM a [RANGE 9] FULL JOIN b [RANGE 6] "
    "ON a.k = b.k AND a.v <> b.v",
    "CREATE QUERY sums AS SELECT b.k, SUM(a.v) AS s FROM a JOIN b ON a.k = b.k WHERE b.v > 2 "
    "GROUP BY b.k",
    "CREATE QUERY both AS SELECT k FROM a [RANGE 3] UNION ALL SELECT k FROM b [ROWS 3]",
)


@dataclass
class Case:
    """A script, and what happens to it."""

    seed: int
    script: str
    steps: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    all_settings: bool = False


def clauses(dice: random.Random, stamps: bool) -> list[str]:
    """Return random clauses about time."""
    unit = " MICROSECONDS" if stamps else ""
    found = [
        dice.choice(
            [
                "",
                "",
                f"SLACK {dice.randint(1, 6)}{unit}",
                f"SLACK AUTO KEEPING {dice.choice([50, 90, 99.9])} %",
            ]
        )
    ]
    if stamps and dice.random() < 0.4:
        found.append(f"HEARTBEAT FROM CLOCK LAG {dice.randint(0, 5)} MICROSECONDS")
    if dice.random() < 0.3:
        found.append(f"PARTITIONS {dice.randint(1, 4)}")
    if dice.random() < 0.5:
        found.append("IDLE AFTER 5 SECONDS")
    if dice.random() < 0.4:
        found.append("PUNCTUATION WHEN v = 0" + dice.choice(["", " TIME w"]))
    elif dice.random() < 0.5:
        says = dice.choice(["v = 0", "v = 0 AND t % 5 = 0"]) if not stamps else "v = 0"
        lasts = dice.choice(["", f" FOR {dice.randint(0, 12)}{unit}"])
        on = dice.choice(["k", "k", "k, v", "v"])
        found.append(f"PUNCTUATION WHEN {says}{dice.choice(['', ' TIME w'])} ON ({on}){lasts}")
    return found


def make(seed: int) -> Case:
    """Return the case of a seed."""
    dice = random.Random(seed)
    stamps = dice.random() < 0.5
    kind = "TIMESTAMP" if stamps else "BIGINT"
    declared = {name: clauses(dice, stamps) for name in ("a", "b")}
    lines = [
        f"CREATE STREAM {name} (k INT, v INT, w {kind}, t {kind}) USING memory TIMESTAMP BY t "
        + " ".join(some)
        for name, some in declared.items()
    ]
    chosen = dice.sample(QUERIES, 2)
    if stamps:
        chosen = [_with_units(text) for text in chosen]
    case = Case(seed, ";\n".join([*lines, *chosen]), all_settings=seed % 50 == 0)
    read = {n for n in declared for text in chosen if re.search(f"(FROM|JOIN) {n}\\b", text)}
    partitions = {name: _partitions(dice, some) for name, some in declared.items()}
    skews = {(n, p): dice.choice([0, 0, 5, 40]) for n, some in partitions.items() for p in some}
    now = 0
    for _ in range(dice.randint(4, 25)):
        now += dice.randint(0, 6)
        name = dice.choice(sorted(read))
        part = dice.choice(partitions[name])
        what = dice.random()
        if what < 0.7:
            rows = []
            for _ in range(dice.choice([1, 2, 5, 40])):
                late = dice.choice([0, 0, 0, 1, 2, 8])
                t = now - late - skews[name, part]
                rows.append((dice.randint(0, 2), dice.randint(0, 4), t - dice.randint(-2, 6), t))
                now += dice.choice([0, 0, 1])
            case.steps.append(("feed", (name, rows, part)))
        elif what < 0.8:
            where = dice.choice([None, part])
            case.steps.append(("heartbeat", (name, now - dice.randint(0, 20), where)))
        elif what < 0.9 and any("IDLE" in clause for clause in declared[name]):
            case.steps.append(("idle", (name, dice.choice([None, part]))))
        elif any("CLOCK" in clause for n in read for clause in declared[n]):
            case.steps.append(("clock", (now + dice.randint(-3, 3),)))
    return case


def _partitions(dice: random.Random, clauses: list[str]) -> list[Any]:
    """Return the partitions that a stream is fed by: as many as it declares, or fewer."""
    said = next((clause for clause in clauses if clause.startswith("PARTITIONS")), None)
    if said is None:
        return dice.choice([[None], [None], [0, 1], [0, 1, 2, 3]])
    return list(range(dice.randint(1, int(said.split()[1]))))


def _with_units(text: str) -> str:
    for number in (9, 4, 7, 6, 3):
        text = text.replace(f"RANGE {number}]", f"RANGE {number} MICROSECONDS]")
    return text


def run(case: Case) -> Counter[str]:
    """Run a case; return how much of what happened, or raise what differs."""
    rig = Rig(case.script, shards=1 + case.seed % 3)
    for name, arguments in case.steps:
        getattr(rig, name)(*arguments)
    judge = rig._judge()
    seen: Counter[str] = Counter()
    for name, stream in judge.streams.items():
        late = [tuple(row) for row in rig.late(name)]
        mine = Counter(tuple(map(plain, row)) for row in late)
        assert mine == Counter(judge.late[name]), f"late rows of {name}: {mine} {judge.late[name]}"
        assert rig._engine.heartbeat(name) == stream.given, f"the heartbeat of {name}"
        seen["late"] += len(late)
        seen["rows"] += len(judge.kept[name])
        seen["partitions"] += len(stream.sources)
    rig.assert_oracle()
    rig.end()
    rig.assert_oracle()
    assert all(rig._engine.heartbeat(name) == INF for name in judge.streams)
    for query in rig._queries():
        if query.mode != "stream":
            whole = rig._engine.answers[f"{query.name} intervals"]
            assert snapshots(whole) == rig._steps(query), f"the intervals of {query.name}"
    if case.all_settings:
        rig.under_all_settings()
    seen["cases"] += 1
    return seen


def snapshots(intervals: list[tuple[tuple[Any, ...], int, int]]) -> Steps:
    """Return the relation that interval rows describe, wherever they are cut."""
    changes: dict[int, Counter[Any]] = {}
    for values, start, end in intervals:
        row = tuple(map(plain, values))
        changes.setdefault(start, Counter())[row] += 1
        if end < INF:
            changes.setdefault(end, Counter())[row] -= 1
    state: Counter[Any] = Counter()
    steps: Steps = []
    for time, change in sorted(changes.items()):
        if any(change.values()):
            state.update(change)
            steps.append((time, +state))
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description="Random time against the oracle")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    console, total, failed = Console(), Counter[str](), []
    for seed in track(range(options.first, options.first + options.cases), console=console):
        try:
            total += run(make(seed))
        except Exception as error:
            failed.append(seed)
            console.print(f"seed {seed}: {type(error).__name__}: {str(error)[:400]}")
    console.print(dict(total), f"failed: {failed}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
