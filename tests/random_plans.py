"""Random plans against the oracle: one seed is one case, the same for ever.

``python -m tests.random_plans --cases 2000`` runs many new ones and prints the seeds that fail, how
to run one of them, and how often each operator and window occurred, and how deep plans were.
``--seed N`` runs one case and shows it; if it fails, the smallest part of its plan that fails, with
as few rows and settings as show it.  ``--settings lifetime=negative`` goes over those of the case.

A case agrees when the engine's answer, however it is delivered, equals the oracle's at every
instant, with every method of keeping lifetimes.  Seeds that ever failed are in
``random_plans_failed.txt``, a line for each: the version of the generator and the seed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock import cql
from penstock.algebra import (
    Aggregate,
    AsofJoin,
    Join,
    Node,
    Rank,
    Scan,
    SetOp,
    TableScan,
    ToStream,
    Window,
    inputs,
    is_stream,
    streams_of,
    walk,
)
from penstock.catalog import Catalog
from penstock.cql.binding import statements
from penstock.model import MIN_TIME
from penstock.physical.predicates import recognise
from penstock.reference import Inputs, Steps, accept, relation, snapshot_at, stream
from penstock.reference.expressions import canonical
from penstock.settings import SETTINGS
from penstock.testing import LocalEngine
from tests import random_queries, random_queries_2, random_queries_3
from tests.comparison import check_relation, check_stream, same_bag
from tests.random_queries import Case

GENERATORS = {m.VERSION: m.generate for m in (random_queries, random_queries_2, random_queries_3)}
"""By version; none of them may ever change."""

NEWEST = max(GENERATORS)
FAILED = Path(__file__).parent / "random_plans_failed.txt"

LIFETIMES: tuple[str, ...] = next((s.choices for s in SETTINGS if s.name == "lifetime"), ())
"""The methods of keeping lifetimes; every case is run with each."""


def case_of(seed: int, version: int = NEWEST) -> Case:
    """Return the case of a seed."""
    return GENERATORS[version](seed)


def failed_seeds() -> list[tuple[int, int]]:
    """Return ``(version, seed)`` of every case that ever failed."""
    lines = (line.partition("#")[0].split() for line in FAILED.read_text().splitlines())
    return [(int(words[0]), int(words[1])) for words in lines if words]


# One case


def catalog_of(case: Case) -> Catalog:
    """Return the declared streams and tables."""
    catalog = Catalog()
    for parsed in cql.parse_script(case.declarations()):
        statement = cql.bind(parsed, catalog)
        assert isinstance(statement, statements.Create)
        catalog.add(statement.definition)
    return catalog


def plans_of(case: Case) -> dict[str, Node]:
    """Return the plans of a case, bound from its text."""
    catalog = catalog_of(case)
    return {name: cql.bind_query(text, catalog) for name, text in case.queries.items()}


@dataclass(frozen=True)
class Truth:
    """What the oracle says: the steps of a relation or the bag of a stream."""

    steps: Steps = field(default_factory=list)
    elements: Counter = field(default_factory=Counter)


def truth_of(plan: Node, case: Case) -> Truth:
    kept = {
        name: accept([(row, row[-1]) for row in rows], case.slack)[0]
        for name, rows in case.streams.items()
    }
    given = Inputs(kept, case.tables)
    if is_stream(plan):
        return Truth(elements=stream(plan, given))
    return Truth(relation(plan, given))


def truths_of(case: Case, plans: dict[str, Node]) -> dict[str, Truth]:
    """Return what the oracle says to each query."""
    return {name: truth_of(plan, case) for name, plan in plans.items()}


def is_telling(case: Case, truths: dict[str, Truth]) -> bool:
    """Whether an answer changes at least twice; of the other cases one in eight is run too."""
    return case.seed % 8 == 0 or any(len(t.steps) + len(t.elements) > 1 for t in truths.values())


def run(
    case: Case,
    plans: dict[str, Node],
    truths: dict[str, Truth],
    overrides: dict[str, Any] | None = None,
) -> None:
    """Run a case with every method of keeping lifetimes and fail where an answer is wrong."""
    chosen = case.settings | (overrides or {})
    ways: list[dict[str, Any]] = [{"lifetime": way} for way in LIFETIMES]
    for way in ways if ways and "lifetime" not in chosen else [{}]:
        try:
            _run_once(case, plans, truths, chosen | way)
        except Exception as error:
            error.add_note(f"with {chosen | way}, {case.shards} shards, as {case.mode}")
            raise


def _run_once(
    case: Case, plans: dict[str, Node], truths: dict[str, Truth], settings: dict[str, Any]
) -> None:
    engine = LocalEngine(
        plans,
        case.tables,
        shards=case.shards,
        settings=settings,
        slack=case.slack,
        mode=case.mode,
    )
    for batch in case.batches:
        engine.batch(batch)
    engine.batch({}, final=True)
    for name, plan in plans.items():
        try:
            _check(plan, truths[name], engine, name, case)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def _check(plan: Node, truth: Truth, engine: LocalEngine, name: str, case: Case) -> None:
    if is_stream(plan):
        check_stream(engine.answers[name], truth.elements)
    elif case.mode == "intervals":
        check_relation(engine.answers[name], truth.steps)
    elif case.mode == "log":
        check_relation(replayed(engine.answers[name]), truth.steps)
    else:
        times = [row[-1] for s in streams_of(plan) for row in case.streams[s]]
        now = max(times, default=MIN_TIME)
        shown = Counter(tuple(map(canonical, row)) for row in engine.views[name])
        same_bag(shown, snapshot_at(truth.steps, now), now)


def replayed(log: list[tuple]) -> list[tuple]:
    """Return the intervals that a change log describes; every ``-`` needs its ``+`` before it."""
    alive: dict[tuple, list[int]] = {}
    rows = []
    for time_, births in ((t, s) for t in sorted({t for _, t, _ in log}) for s in (-1, 1)):
        for values, at, _ in log:
            if at == time_ and values[-1] == births:
                key = tuple(map(canonical, values[:-1]))
                if births > 0:
                    alive.setdefault(key, []).append(at)
                else:
                    assert alive.get(key), f"at {at}: {key} goes before it came"
                    rows.append((key, alive[key].pop(), at))
    forever = 2**63 - 1
    return rows + [(key, at, forever) for key, some in alive.items() for at in some]


# What occurred


def features(plan: Node) -> Iterator[str]:
    """Yield a word for every operator and window of a plan."""
    for node in walk(plan):
        if isinstance(node, Join) and any(isinstance(below, Join) for below in inputs(node)):
            yield "join of three or more"
        match node:
            case Window(_, spec):
                parts = [n for n in ("rows", "range", "hop", "slide", "rows_slide", "now", "fixed",
                                     "session", "after", "before", "partition_by", "origin",
                                     "offset", "bounds", "shift", "until")
                         if getattr(spec, n) not in (None, (), False)]  # fmt: skip
                yield f"window {'+'.join(parts) or 'unbounded'}"
                if not isinstance(node.input, Scan):
                    yield "window over a derived stream"
            case Join(left=left, kind=kind, residual=residual) if not node.left_keys:
                place = recognise(residual, len(left.schema)).place if residual else None
                yield f"{kind} join by {type(place).__name__.lower() if place else 'nothing'}"
            case Join(kind=kind):
                yield f"{kind} join by keys"
            case AsofJoin(operator=operator, kind=kind):
                yield f"asof {kind} {operator}"
            case Aggregate(aggregates=calls):
                yield "aggregate" if node.keys else "aggregate of all"
                yield from (f"aggregate {c.name}" for c in calls)
            case Rank(calls=calls):
                yield from (f"rank {c.name}" for c in calls)
            case SetOp(kind, all_):
                yield f"{kind}{' all' if all_ else ''}"
            case ToStream(kind):
                yield kind + (" at the top" if node is plan else " in a window")
            case TableScan():
                yield "table"
            case Scan():
                yield "stream"
            case _:
                yield type(node).__name__.lower()


def depth(node: Node) -> int:
    """Return how many operators stand above the deepest scan."""
    return max((1 + depth(below) for below in inputs(node)), default=0)


@dataclass
class Coverage:
    """How often things occurred."""

    cases: int = 0
    words: Counter = field(default_factory=Counter)
    depths: Counter = field(default_factory=Counter)
    streams: Counter = field(default_factory=Counter)
    changes: int = 0

    def add(self, case: Case, plans: dict[str, Node], truths: dict[str, Truth]) -> None:
        self.cases += 1
        for truth in truths.values():
            self.changes += len(truth.steps) + truth.elements.total()
        for plan in plans.values():
            self.words.update(set(features(plan)))
            self.depths[depth(plan)] += 1
        self.streams[len(frozenset[str]().union(*map(streams_of, plans.values())))] += 1

    def table(self) -> Table:
        table = Table(
            "what", "plans", title=f"{self.cases} cases, {self.changes} changes of answers"
        )
        for count, some in (("streams", self.streams), ("depth of the plan", self.depths)):
            for key, number in sorted(some.items()):
                table.add_row(f"{count}: {key}", str(number))
        for word, number in sorted(self.words.items()):
            table.add_row(word, str(number))
        return table


# Smaller


def smaller(case: Case, overrides: dict[str, Any]) -> tuple[Case, Node]:
    """Return the smallest part of a failing plan that fails, with few rows and settings."""

    def fails(some: Case, plan: Node) -> bool:
        try:
            run(some, {"q": plan}, truths_of(some, {"q": plan}), overrides)
        except Exception:
            return True
        return False

    parts = [n for plan in plans_of(case).values() for n in walk(plan)]
    sized = sorted(parts, key=lambda n: sum(1 for _ in walk(n)))
    plan = next((n for n in sized if fails(case, n)), parts[0])
    for name in list(case.settings):
        rest = {k: v for k, v in case.settings.items() if k != name}
        if fails(replace(case, settings=rest), plan):
            case = replace(case, settings=rest)
    for change in ({"shards": 1}, {"mode": "intervals"}):
        if fails(replace(case, **change), plan):
            case = replace(case, **change)
    if fails(replace(case, batches=[case.streams]), plan):
        case = replace(case, batches=[case.streams])
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in _fewer_rows(case):
            if fails(candidate, plan):
                case, shrunk = candidate, True
                break
    return case, plan


def _fewer_rows(case: Case) -> Iterator[Case]:
    for number, batch in enumerate(case.batches):
        for name, rows in batch.items():
            for i in range(len(rows)):
                fewer = {**batch, name: rows[:i] + rows[i + 1 :]}
                batches = [*case.batches[:number], fewer, *case.batches[number + 1 :]]
                streams = {s: [r for b in batches for r in b.get(s, [])] for s in case.streams}
                yield replace(case, batches=batches, streams=streams)
    for name, rows in case.tables.items():
        for i in range(len(rows)):
            yield replace(case, tables=case.tables | {name: rows[:i] + rows[i + 1 :]})


def show(case: Case) -> str:
    """Return a case as text: declarations, queries, rows and how it is run."""
    lines = [case.declarations(), ""]
    lines += [f"CREATE QUERY {name} AS {text};" for name, text in case.queries.items()]
    lines += ["", *(f"{name} = {rows}" for name, rows in case.tables.items())]
    lines += [f"batch {i}: {batch}" for i, batch in enumerate(case.batches)]
    lines.append(f"slack {case.slack}, {case.shards} shards, as {case.mode}, {case.settings}")
    return "\n".join(lines)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many cases, or show one."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_plans")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one case and show it")
    parser.add_argument("--version", type=int, default=NEWEST, help="of the generator")
    parser.add_argument("--settings", nargs="*", default=[], help="such as lifetime=negative")
    options = parser.parse_args(arguments)
    overrides = dict(pair.split("=", 1) for pair in options.settings)
    console = Console()
    if options.seed is not None:
        return _one(console, case_of(options.seed, options.version), overrides)
    coverage, failed, slowest = Coverage(), [], (0.0, 0)
    began = time.perf_counter()
    columns = (TextColumn("random plans"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    seed = options.first
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=options.cases)
        while coverage.cases < options.cases:
            start = time.perf_counter()
            try:
                case = case_of(seed, options.version)
                plans = plans_of(case)
                truths = truths_of(case, plans)
                if is_telling(case, truths):
                    coverage.add(case, plans, truths)
                    progress.advance(task)
                    run(case, plans, truths, overrides)
            except Exception as error:
                failed.append(seed)
                reason = str(error).split("\n")[0][:150]
                console.print(f"seed {seed}: {type(error).__name__}: {reason}", markup=False)
            slowest = max(slowest, (time.perf_counter() - start, seed))
            seed += 1
    each = (time.perf_counter() - began) / max(1, options.cases)
    console.print(coverage.table())
    console.print(f"{each:.3f} s per case; the slowest took {slowest[0]:.1f} s: seed {slowest[1]}")
    if failed:
        console.print(f"{len(failed)} failed: {failed}; look at one with --seed {failed[0]}, and "
                      f"add each to {FAILED.name} as '{options.version} SEED'")  # fmt: skip
        return 1
    console.print(f"all {options.cases} cases up to seed {seed - 1} agree with the oracle")
    return 0


def _one(console: Console, case: Case, overrides: dict[str, Any]) -> int:
    console.print(show(case), markup=False, highlight=False, soft_wrap=True)
    try:
        plans = plans_of(case)
        run(case, plans, truths_of(case, plans), overrides)
    except Exception as error:
        console.print(f"\n{type(error).__name__}: {error}", markup=False, soft_wrap=True)
        less, plan = smaller(case, overrides)
        console.print("\nThe smallest part that fails:\n", cql.render_plan(plan), markup=False)
        console.print(show(replace(less, queries={})), markup=False, soft_wrap=True)
        try:
            run(less, {"q": plan}, truths_of(less, {"q": plan}), overrides)
        except Exception as smallest:
            console.print(f"{type(smallest).__name__}: {smallest}", markup=False, soft_wrap=True)
        return 1
    console.print("agrees with the oracle")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
