"""Random cases for the lane: one seed is one case, rows are answered in any order, some never.

``python -m tests.random_lanes --cases 1000`` runs many and prints the seeds that fail; ``--seed N``
runs one.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog, StreamDef
from penstock.cql.binding import statements
from penstock.lane.answering import Answerer, Asked
from penstock.lane.memory import Memory
from penstock.model import Batch, one_array
from penstock.physical.answered import Answered, AnsweredRows
from penstock.physical.book import BookedQuery
from penstock.physical.judging import Judge
from penstock.physical.progress import Progress
from penstock.reference import Inputs, accept
from penstock.testing.local import LocalEngine, to_table
from tests.comparison import check_answer

STREAMS = ("a", "b", "c")
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"lifetime": "negative"},
    {"join.multiway": "never"},
    {"join.multiway": "always"},
    {"join.buffer": "output"},
    {"join.index": False},
    {"merge.strategy": "always", "rules": False},
    {"block.rows": 2, "train.rows": 3},
)


@dataclass
class Case:
    """One case: what is declared and asked, rows in order of arrival, and the settings."""

    seed: int
    declared: list[str]
    queries: dict[str, str]
    arrivals: list[tuple[str, tuple[int, int, int, int]]]
    slack: int
    shards: int
    settings: dict[str, Any]
    table: list[tuple[int, int]]
    answering: float
    dice: random.Random = field(repr=False, default_factory=random.Random)


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    dice = random.Random(seed)
    important = [name for name in STREAMS if dice.random() < 0.6] or [dice.choice(STREAMS)]
    declared = [
        f"CREATE STREAM {name} (k BIGINT, v BIGINT, p BIGINT, t BIGINT) USING memory "
        f"TIMESTAMP BY t{' PRIORITY p' if name in important else ''}"
        for name in STREAMS
    ]
    declared.append("CREATE TABLE d (k BIGINT, w BIGINT) USING csv OPTIONS (path 'none')")
    rates = [dice.choice([1, 1, 6]) for _ in STREAMS]
    now, arrivals = 0, []
    for _ in range(dice.randrange(5, 70)):
        now += dice.choice([0, 1, 1, 2])
        name = dice.choices(STREAMS, rates)[0]
        time = now - dice.choice([0, 0, 0, 1, 3])
        priority = dice.choice([0, 0, 1, 7])
        arrivals.append((name, (dice.randrange(2), dice.randrange(4), priority, time)))
    queries = {f"q{i}": _query(dice) for i in range(dice.choice([1, 1, 2]))}
    return Case(
        seed,
        declared,
        queries,
        arrivals,
        dice.choice([0, 2, 5]),
        dice.choice([1, 1, 3]),
        dice.choice(SETTINGS),
        [(dice.randrange(2), dice.randrange(3)) for _ in range(dice.randrange(3))],
        dice.choice([0.0, 0.4, 0.8, 1.0]),
        dice,
    )


def _window(dice: random.Random) -> str:
    length, slide = dice.choice([1, 3, 8, 20]), dice.choice([2, 4])
    return dice.choice(
        [
            f"[RANGE {length}]",
            f"[RANGE {length}]",
            f"[RANGE {length}]",
            "[RANGE UNBOUNDED]",
            "",
            "[NOW]",
            f"[FIXED {length + 2}]",
            f"[AFTER {length}]",
            f"[RANGE {length} SLIDE {slide}]",
            f"[TUMBLE {slide}]",
        ]
    )


def _query(dice: random.Random) -> str:
    kind = dice.choice(["one", "union", "two", "two", "two", "three", "three", "table", "branches"])
    names = [dice.choice(STREAMS) for _ in range(3)]
    if dice.random() < 0.7:
        names = dice.sample(STREAMS, 3)
    x, y, z = (f"{name} {_window(dice)}" for name in names)
    compare = dice.choice(["", " AND x.v < y.v", " AND x.v + y.v > 2"])
    on = dice.choice(
        ["x.k = y.k", "x.k = y.k", "abs(x.v - y.v) <= 1", "x.v < y.v", "x.k + 0 = y.k"]
    )
    shown = dice.choice(["x.v AS v", "x.v AS v, x.t AS t", "x.k AS k, x.v + 1 AS v, x.t AS t"])
    if kind == "one":
        where = dice.choice(["", " WHERE x.v > 1"])
        return _streamed(dice, f"SELECT {shown} FROM {x} AS x{where}")
    if kind == "union":
        return f"SELECT x.v, x.t FROM {x} AS x UNION ALL SELECT y.v, y.t FROM {y} AS y"
    both = dice.choice(["x.v AS v, y.v AS w", "x.v AS v, x.t AS t, y.t AS u"])
    two = f"SELECT {both} FROM {x} AS x JOIN {y} AS y ON {on}{compare}"
    if kind == "two":
        return _streamed(dice, two)
    if kind == "table":
        some = f"{x} AS x JOIN {y} AS y ON {on}" if dice.random() < 0.5 else f"{x} AS x"
        return f"SELECT {shown}, d.w FROM {some} JOIN d ON d.k = x.k"
    if kind == "branches":
        other = f"SELECT x.k AS v, y.v AS w FROM {y} AS x JOIN {z} AS y ON x.k = y.k"
        return f"SELECT x.v AS v, y.v AS w FROM {x} AS x JOIN {y} AS y ON {on} UNION ALL {other}"
    third = dice.choice(["z.k = x.k", "z.k = y.k", "z.v = y.v", "z.v <= x.v"])
    shown = dice.choice(["x.v AS v, z.v AS w", "x.t AS t, y.t AS u, z.t AS w"])
    join = f"{x} AS x JOIN {y} AS y ON {on}"
    three = f"SELECT {shown} FROM {join} JOIN {z} AS z ON {third}"
    if dice.random() < 0.4:
        inner = f"SELECT x.k AS k, x.v AS v, y.v AS w FROM {join}"
        three = f"SELECT z.v AS v, s.w AS w FROM {z} AS z JOIN ({inner}) AS s ON s.k = z.k"
    return _streamed(dice, three)


def _streamed(dice: random.Random, text: str) -> str:
    return f"ISTREAM ({text})" if dice.random() < 0.3 else text


def declared(case: Case) -> Catalog:
    """Return the streams and tables of a case."""
    catalog = Catalog()
    for text in case.declared:
        for parsed in cql.parse_script(text):
            statement = cql.bind(parsed, catalog)
            assert isinstance(statement, statements.Create)
            catalog.add(statement.definition)
    return catalog


class Side:
    """The lane of a case: it judges what arrives, answers what it likes, and keeps the turns."""

    def __init__(self, case: Case, engine: LocalEngine, streams: dict[str, StreamDef]) -> None:
        self.case, self.engine = case, engine
        self.judges = {
            name: Judge(name, d.time, engine.rules(name), Progress()) for name, d in streams.items()
        }
        self.waiting: dict[str, list[tuple[int, tuple, int]]] = {name: [] for name in streams}
        self.turns: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in streams}
        self.beats: dict[int, dict[str, int]] = {}
        self.memory, self.turn, self.answered = Memory(), 0, 0
        self.answers: dict[str, list[tuple]] = {}
        self.renew()

    def renew(self) -> None:
        """Go on from the newest batch."""
        self.committed = self.engine.committed()
        self.beats[self.committed.batch] = dict(self.committed.beats)
        self.memory.prune(self.engine.plan, self.committed.beats)
        self.answerer = Answerer(self.engine.plan, self.engine.config)
        self.answerer.renew(self.committed, self.memory.rows)
        self.answerer.warm()

    def arrive(self, stream: str, row: tuple) -> None:
        """Judge a row that has arrived."""
        table = to_table(self.engine.streams[stream].schema, [row])
        judged = self.judges[stream].judge(table)
        if not judged.late[0] and row[2] > 0 and stream in self.answerer.streams:
            self.waiting[stream].append((int(judged.seq[0]), row, row[-1]))

    def some(self) -> None:
        """Answer some rows, in one turn, in any order."""
        if self.committed.batch < 0:
            return
        dice, chosen = self.case.dice, {}
        for name, rows in self.waiting.items():
            picked = [row for row in rows if dice.random() < self.case.answering]
            dice.shuffle(picked)
            if picked:
                chosen[name] = picked
                self.waiting[name] = [row for row in rows if row not in picked]
        if not chosen:
            return
        self.turn += 1
        asked = {}
        for name, picked in chosen.items():
            table = to_table(self.engine.streams[name].schema, [row for _, row, _ in picked])
            columns = [one_array(column) for column in table.columns]
            asked[name] = Asked(columns, np.array([time for _, _, time in picked], np.int64))
            made = [(seq, self.turn, self.committed.batch, time) for seq, _, time in picked]
            self.turns[name] += made
            self.answered += len(picked)
        for query, batch in self.answerer.answer(asked, self.turn).items():
            self.answers.setdefault(query, []).extend(rows_of(batch))
        for name, some in asked.items():
            batch, beats = self.committed.batch, self.committed.beats
            self.memory.note(name, some, self.turn, batch, beats)

    def hand_over(self, taken: dict[str, int]) -> None:
        """Tell the next batch, which takes so many rows of each stream, what was answered."""
        rows, ceilings = {}, {}
        for name, turns in self.turns.items():
            mine = sorted(turn for turn in turns if turn[0] < taken[name])
            later = [turn for turn in turns if turn[0] >= taken[name]]
            self.waiting[name] = [row for row in self.waiting[name] if row[0] >= taken[name]]
            self.turns[name] = later
            columns = np.array([turn[:3] for turn in mine], np.int64).reshape(-1, 3).T
            rows[name] = AnsweredRows(*columns)
            if later:
                ceilings[name] = min(turn[3] for turn in later)
        self.engine.answered = Answered(rows, self.beats)
        self.engine.ceilings = ceilings


def rows_of(batch: Batch) -> list[tuple]:
    """Return rows as the engine keeps its answers."""
    values = list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
    return list(zip(values, batch.start.tolist(), batch.end.tolist(), strict=True))


def run(case: Case) -> Counter:
    """Run a case and compare; return how many rows were answered, and how many results made."""
    case = replace(case, dice=random.Random(case.seed + 1))
    dice, catalog = case.dice, declared(case)
    plans: dict[str, Node] = {
        name: cql.bind_query(text, catalog) for name, text in case.queries.items()
    }
    added_later = "q1" if "q1" in plans and case.seed % 3 == 0 else None
    begin = {name: plan for name, plan in plans.items() if name != added_later}
    engine = LocalEngine(
        begin, {"d": case.table}, shards=case.shards, settings=case.settings, slack=case.slack
    )
    for plan in plans.values():
        engine.announce(plan)
    streams = {name: d for name, d in catalog.streams.items() if name in engine.streams}
    lane = Side(case, engine, {n: d for n, d in streams.items() if d.priority is not None})
    arrived: dict[str, list[tuple]] = {name: [] for name in streams}
    taken = dict.fromkeys(streams, 0)
    arrivals = [(name, row) for name, row in case.arrivals if name in streams]
    at = 0
    while True:
        if at < len(arrivals) and dice.random() < 0.6:
            name, row = arrivals[at]
            arrived[name].append(row)
            if name in lane.judges:
                lane.arrive(name, row)
            at += 1
        if dice.random() < 0.5:
            lane.some()
        over = at == len(arrivals)
        if dice.random() < 0.3 or over:
            rows = {}
            for name, some in arrived.items():
                end = len(some) if over else dice.choice([len(some), len(some), taken[name]])
                rows[name] = some[taken[name] : end]
                taken[name] = end
            lane.hand_over(taken)
            engine.batch(rows)
            lane.renew()
            due = over or dice.random() < 0.3
            if due and added_later is not None and added_later not in engine.book.queries:
                engine.book.add(BookedQuery(added_later, plans[added_later], "intervals"))
                engine.replan()
            if over:
                break
    lane.hand_over(taken)
    engine.batch({}, final=True)
    kept = {
        name: accept([(row, row[-1]) for row in some], case.slack)[0]
        for name, some in arrived.items()
    }
    count = Counter(answered=lane.answered)
    for name, plan in plans.items():
        since = engine.book.queries[name].since
        seen = {
            stream: [(row, t) for row, t in rows if since is None or t >= since]
            for stream, rows in kept.items()
        }
        given = Inputs(seen, {"d": case.table})
        early = lane.answers.get(name, [])
        check_answer(plan, engine.answers[name] + early, given)
        count["main"] += len(engine.answers[name])
        count["lane"] += len(early)
    return count


def main() -> int:
    """Run many cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    if options.seed is not None:
        case = case_of(options.seed)
        print(case)
        print(run(case))
        return 0
    total: Counter = Counter()
    failed = []
    for seed in range(options.first, options.first + options.cases):
        try:
            total += run(case_of(seed))
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
            if len(failed) > 9:
                break
    print(f"{dict(total)}, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
