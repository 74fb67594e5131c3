"""Hot keys of joins are split while they run: the answers are the oracle's, whatever is split.

One seed is one case: a join of random kind, condition and windows, over rows whose frequent keys
change, some in slack and some late, in random batches and shards, now and then restarted.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog
from penstock.cql.binding import statements
from penstock.model import Batch
from penstock.physical.book import BookedQuery
from penstock.physical.exchange import ByKey
from penstock.physical.explain import explain
from penstock.physical.key_loads import Heat, Reached, Sample
from penstock.physical.key_splits import pairs
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Query
from penstock.physical.planner import plan as planned
from penstock.physical.split_routes import Route, Split
from penstock.reference import Inputs, accept, relation
from penstock.runs.manifest import Manifest, read_manifest
from penstock.settings import Settings
from penstock.testing import LocalEngine
from tests.comparison import check_relation

DECLARED = """
CREATE STREAM l (k STRING, x BIGINT, t BIGINT) TIMESTAMP BY t USING memory;
CREATE STREAM r (k STRING, y BIGINT, t BIGINT) TIMESTAMP BY t USING memory;
CREATE STREAM c (k STRING, z BIGINT, t BIGINT) TIMESTAMP BY t USING memory;
CREATE TABLE d (k STRING, y BIGINT) USING memory;
"""

WINDOWS = (
    "[RANGE 3]",
    "[RANGE 9]",
    "[RANGE 8 SLIDE 3]",
    "[RANGE 2 SLIDE 5]",
    "[RANGE 6 SLIDE 6 START 1]",
    "[FIXED 7]",
    "[NOW]",
)
QUERIES = {
    "inner": "SELECT l.k, x, y FROM l {0}, r {1} WHERE l.k = r.k{2}",
    "left": "SELECT l.k, x, r.k AS o, y FROM l {0} LEFT JOIN r {1} ON l.k = r.k{2}",
    "right": "SELECT l.k, x, r.k AS o, y FROM l {0} RIGHT JOIN r {1} ON l.k = r.k{2}",
    "semi": "SELECT k, x FROM l {0} WHERE EXISTS (SELECT 1 FROM r {1} WHERE l.k = r.k{2})",
    "anti": "SELECT k, x FROM l {0} WHERE NOT EXISTS (SELECT 1 FROM r {1} WHERE l.k = r.k{2})",
    "full": "SELECT l.k, x, r.k AS o, y FROM l {0} FULL JOIN r {1} ON l.k = r.k{2}",
    "band": "SELECT l.k, x, y FROM l {0}, r {1} WHERE ABS(x - y) <= 2{2}",
    "left band": "SELECT x, y FROM l {0} LEFT JOIN r {1} ON x BETWEEN y - 3 AND y + 1{2}",
    "anti band": "SELECT x FROM l {0} WHERE NOT EXISTS (SELECT 1 FROM r {1} "
    "WHERE ABS(x - y) <= 1{2})",
    "counted": "SELECT x, COUNT(*) AS n FROM l {0}, r {1} WHERE l.k = r.k{2} GROUP BY x",
}
"""Of a full join nothing can be split."""


def bound(text: str) -> Node:
    catalog = Catalog()
    for parsed in cql.parse_script(DECLARED):
        statement = cql.bind(parsed, catalog)
        assert isinstance(statement, statements.Create)
        catalog.add(statement.definition)
    return cql.bind_query(text, catalog)


def physical(text: str, mode: str = "intervals", **settings: Any) -> PhysicalPlan:
    return planned([Query("q", bound(text), mode)], Settings(settings), {})


@dataclass
class Case:
    """A join, its rows in order of arrival, and how they are run."""

    text: str
    rows: list[tuple[str, tuple]]
    slack: int
    cuts: list[int]
    restarts: dict[int, int]  # where, and with which join.split
    crashes: bool
    shards: int
    heat: Heat
    settings: dict[str, Any]
    mode: str


def case_of(kind: str, seed: int) -> Case:
    dice = random.Random(f"{kind} {seed}")
    windows = [dice.choice(WINDOWS), dice.choice(WINDOWS)]
    if dice.random() < 0.1:
        windows[dice.randrange(2)] = "[RANGE UNBOUNDED]"
    residual = dice.choice(["", "", " AND x < y"])
    slack = dice.choice([0, 0, 2, 6])
    dense = dice.random() < 0.4  # something at every instant, so that switches are met exactly
    number = dice.randint(40, 160)
    keys = ["a", "b", "c", "d", "e", "f", None]
    hot = {"l": dice.choice(keys), "r": dice.choice(keys)}
    if dense:
        hot["r"] = hot["l"] = dice.choice("abc")
    behind = {"l": dice.choice([0, 0, 0, 25]), "r": dice.choice([0, 0, 0, 25])}
    now, rows = 0, []
    for i in range(number):
        if dense:
            now += i % 3 == 0
        else:
            now += dice.choice([0, 0, 0, 1, 1, 2]) if dice.random() < 0.97 else dice.randint(5, 30)
        if dice.random() < (0.02 if dense else 0.04):
            hot[dice.choice("lr")] = dice.choice(keys)
        name = dice.choice("lr")
        usual = 0.8 if dense else dice.choice([0.3, 0.8])
        key = hot[name] if dice.random() < usual else dice.choice(keys)
        value = dice.randint(0, 9) * dice.choice([1, 1, 40])
        if "band" in kind and dice.random() < 0.7:
            value = 33 + dice.randint(0, 2) + (ord(key) if key else 0)
        time = now - behind[name] - dice.randint(0, slack + dice.choice([0, 0, 0, 4]))
        rows.append((name, (key, value, time)))
    cuts = sorted(dice.sample(range(1, number), dice.randint(3, min(30, number - 1))))
    settings: dict[str, Any] = {}
    if dice.random() < 0.3:
        settings["join.method"] = "tpmj"
    if dice.random() < 0.3:
        settings["join.buffer"] = dice.choice(["input", "output"])
    return Case(
        QUERIES[kind].format(*windows, residual),
        rows,
        slack,
        cuts,
        {at: dice.choice([0, 0, 0, 1]) for at in dice.sample(cuts, dice.choice([0, 0, 1, 3]))},
        dice.random() < 0.5,
        dice.randint(1, 5),
        Heat(dice.choice([0.1, 0.4]), dice.choice([2, 8]), dice.choice([0.2, 0.6]), 8),
        settings,
        dice.choice(["intervals", "intervals", "view"]),
    )


def run(case: Case, folder: Path) -> tuple[LocalEngine, Counter]:
    """Run a case; return the engine, and how often each kind of decision was seen."""

    def fresh(split: int) -> LocalEngine:
        return LocalEngine(
            {"q": bound(case.text)},
            shards=case.shards,
            settings=case.settings | {"join.split": split},
            slack=case.slack,
            mode="intervals",
            heat=Heat(case.heat.hot, case.heat.few, case.heat.kept, case.heat.most),
        )

    engine = fresh(0)
    seen: Counter = Counter()
    before: dict[str, Any] = {}
    for first, last in zip([0, *case.cuts], [*case.cuts, len(case.rows)], strict=True):
        rows: dict[str, list] = {"l": [], "r": []}
        for name, row in case.rows[first:last]:
            rows[name].append(row)
        if first in case.restarts:
            if case.crashes:  # the batch is run, but never committed
                restarted(engine, fresh(0), folder).batch(rows)
            engine = restarted(engine, fresh(case.restarts[first]), folder)
        engine.batch(rows)
        seen += decisions(before, engine.hot)
        before = engine.hot
        for pair in pairs(engine.plan):
            for one in (Split(**s) for s in before.get(pair.name, {}).get("splits", ())):
                spread = engine.progress[pair.streams[one.side]].max_time
                seen["at work"] += spread >= one.spread_from and not one.cooling
    engine.batch({}, final=True)
    return engine, seen


def restarted(old: LocalEngine, new: LocalEngine, folder: Path) -> LocalEngine:
    """Take over what a checkpoint keeps; the splits go through a manifest."""
    path = folder / "manifest.json"
    path.write_bytes(Manifest(batch=7, shards=old.shards, hot=old.hot).encode())
    manifest = read_manifest(path, 7)
    assert manifest is not None
    new.hot = manifest.hot
    new.progress, new.late = dict(old.progress), deepcopy(old.late)
    new.answers = {name: list(rows) for name, rows in old.answers.items()}
    new._states, new._storage, new._number = deepcopy(old._states), old._storage, old._number
    return new


def decisions(before: dict[str, Any], after: dict[str, Any]) -> Counter:
    def all_of(told: dict[str, Any]) -> list[Split]:
        return [Split(**s) for content in told.values() for s in content["splits"]]

    seen: Counter = Counter()
    old = {(s.key, s.ways, s.side, s.copied_from): s for s in all_of(before)}
    had = {s.key: s.side for s in all_of(before)}
    for new in all_of(after):
        was = old.pop((new.key, new.ways, new.side, new.copied_from), None)
        if was is None:
            seen["grown" if new.key in had else "split"] += 1
            seen[f"side {new.side}"] += 1
        elif new.cooling and not was.cooling:
            seen["cooled"] += 1
        elif was.cooling and not new.cooling:
            seen["heated again"] += 1
    seen["over"] += len(old)
    return seen


def truth(case: Case) -> list:
    given = {
        name: accept([(row, row[-1]) for n, row in case.rows if n == name], case.slack)[0]
        for name in "lr"
    }
    return relation(bound(case.text), Inputs(given, {}))


CASES = 40


@pytest.mark.parametrize(
    "kind", [k if k == "inner" else pytest.param(k, marks=pytest.mark.long) for k in QUERIES]
)
def test_answers_are_those_of_the_oracle(kind: str, tmp_path: Path) -> None:
    seen: Counter = Counter()
    split_cases = 0
    for seed in range(4 if kind == "full" else CASES):
        case = case_of(kind, seed)
        try:
            engine, found = run(case, tmp_path)
            check_relation(engine.answers["q"], truth(case))
        except Exception as error:
            error.add_note(f"case {seed} of {kind}: {case.text}, {case.shards} shards")
            raise
        split_cases += found["at work"] > 0
        seen += found
    if kind == "full":
        assert not seen
        return
    assert split_cases > CASES / 3, seen
    for what in ("split", "grown", "cooled", "heated again", "over"):
        assert seen[what], seen
    either = kind in ("inner", "counted")
    assert (seen["side 1"] > 0) == either, seen


@pytest.mark.parametrize("kind", ["inner", "left", pytest.param("anti", marks=pytest.mark.long)])
def test_at_the_very_instants_of_the_switches(kind: str, tmp_path: Path) -> None:
    """Rows of one key at every instant, split, ended and split again at some of them."""
    for left in ("[RANGE 3]", "[RANGE 8 SLIDE 3]", "[FIXED 7]"):
        for right in ("[RANGE 3]", "[RANGE 8 SLIDE 3]", "[NOW]"):
            plan = bound(QUERIES[kind].format(left, right, ""))
            engine = LocalEngine({"q": plan}, shards=3, heat=Heat(0.2, 1))
            given: dict[str, list] = {"l": [], "r": []}
            ended = 0
            for first in range(0, 72, 3):
                if first in (24, 48):
                    split = {"join.split": int(first == 24)}
                    new = LocalEngine({"q": plan}, shards=3, heat=Heat(0.2, 1), settings=split)
                    engine = restarted(engine, new, tmp_path)
                rows: dict[str, list] = {"l": [], "r": []}
                for t in range(first, first + 3):
                    rows["l"] += [("a", i, t) for i in range(4)]
                    rows["r"] += [("a", t, t)] if t % 4 or kind == "inner" else []
                engine.batch(rows)
                ended += first == 24 and bool(engine.hot)
                for name, some in rows.items():
                    given[name] += [(row, row[-1]) for row in some]
            engine.batch({}, final=True)
            assert ended == 1
            check_relation(engine.answers["q"], relation(plan, Inputs(given, {})))


# Which joins can do it


ELIGIBLE = {
    "both sides": (
        "SELECT x, y FROM l [RANGE 5], r [RANGE 9 SLIDE 2] WHERE l.k = r.k",
        (True, True),
    ),
    "followed": ("SELECT x, y FROM l [RANGE 5] LEFT JOIN r [NOW] ON l.k = r.k", (True, False)),
    "for ever": ("SELECT x, y FROM l, r [FIXED 5] WHERE l.k = r.k", (True, False)),
    "cells": ("SELECT x, y FROM l [RANGE 5], r [RANGE 5] WHERE ABS(x - y) < 3", (True, False)),
    "grouped by another key": (
        "SELECT y, COUNT(*) AS n FROM l [RANGE 5], r [RANGE 9] WHERE l.k = r.k GROUP BY y",
        (True, True),
    ),
    "distinct partners": (
        "SELECT x FROM l [RANGE 5] WHERE k IN (SELECT k FROM r [RANGE 9])",
        (True, False),
    ),
}


@pytest.mark.parametrize("name", ELIGIBLE)
def test_joins_that_can_be_split(name: str) -> None:
    text, roles = ELIGIBLE[name]
    plan = physical(text)
    (pair,) = pairs(plan)
    assert pair.roles == roles
    assert pair.streams == ("l", "r")
    keys = "cells" if name == "cells" else "keys"
    assert f"hot {keys} are split while running" in explain(plan, "q", 2)
    assert "hot" not in explain(plan, "q", 1)
    assert "hot" not in explain(plan, "q", 2, splitting=False)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT x, y FROM l, r WHERE l.k = r.k",
        "SELECT x, y FROM l [ROWS 3], r [ROWS 3] WHERE l.k = r.k",
        "SELECT x, y FROM l [RANGE 5], d WHERE l.k = d.k",
        "SELECT x, y FROM l [RANGE 5] FULL JOIN r [RANGE 5] ON l.k = r.k",
        "SELECT a.x, b.x AS z FROM l [RANGE 5] a, l [RANGE 7] b WHERE a.k = b.k",
        "SELECT l.k, COUNT(*) AS n FROM l [RANGE 5], r [RANGE 5] WHERE l.k = r.k GROUP BY l.k",
        "SELECT DISTINCT l.k, y FROM l [RANGE 5], r [RANGE 5] WHERE l.k = r.k",
        "ISTREAM (SELECT l.k, y FROM l [RANGE 5], r [RANGE 5] WHERE l.k = r.k)",
        "SELECT /*+ CASCADE */ x, y, z FROM l [RANGE 5], r [RANGE 5], c [RANGE 5] "
        "WHERE l.k = r.k AND l.k = c.k",
        "SELECT x, y, z FROM l [RANGE 5], r [RANGE 5], c [RANGE 5] WHERE l.k = r.k AND r.k = c.k",
        "SELECT x, y FROM l [RANGE 5], r [RANGE 5] WHERE x < y",
    ],
)
def test_joins_that_cannot(text: str) -> None:
    assert pairs(physical(text)) == []


def test_what_else_forbids_it() -> None:
    text = ELIGIBLE["both sides"][0].replace("SELECT x", "SELECT l.k, x")
    assert len(pairs(physical(text))) == 1
    assert len(pairs(physical(text, "view"))) == 1
    assert pairs(physical(text, "log")) == []
    assert pairs(physical(text, lifetime="negative")) == []
    assert pairs(physical(text, **{"join.split": 3})) == []
    digests = [n.digest for n in physical(text).nodes]
    assert [n.digest for n in physical(text, **{"join.split": 1}).nodes] == digests
    other = "SELECT k, COUNT(*) AS n FROM l [RANGE 5] GROUP BY k"
    queries = [Query("q", bound(text)), Query("p", bound(other))]
    assert pairs(planned(queries, Settings(), {})) == []  # the aggregate reads the same channel
    longer = Query("p", bound(text.replace("RANGE 5", "RANGE 50")))
    (pair,) = pairs(planned([queries[0], longer], Settings(), {}))
    assert pair.reaches == (50, 11)
    assert len(pair.joins) == 2


def test_two_joins_of_the_same_inputs() -> None:
    dice = random.Random("two joins")
    texts = {
        "one": "SELECT x, y FROM l [RANGE 5], r [RANGE 4] WHERE l.k = r.k",
        "two": "SELECT x, y FROM l [RANGE 3] LEFT JOIN r [RANGE 8 SLIDE 3] ON l.k = r.k",
    }
    plans = {name: bound(text) for name, text in texts.items()}
    engine = LocalEngine(plans, shards=4, heat=Heat(0.2, 10))
    given: dict[str, list] = {"l": [], "r": []}
    for first in range(0, 100, 5):
        rows: dict[str, list] = {"l": [], "r": []}
        for t in range(first, first + 5):
            rows["l"] += [(dice.choice("aaab"), dice.randint(0, 9), t) for _ in range(3)]
            rows["r"].append((dice.choice("abc"), dice.randint(0, 9), t))
        engine.batch(rows)
        for name, some in rows.items():
            given[name] += [(row, row[-1]) for row in some]
    assert engine.hot
    engine.batch({}, final=True)
    for name, plan in plans.items():
        check_relation(engine.answers[name], relation(plan, Inputs(given, {})))


def test_queries_that_come_later_share_nothing_with_a_join_that_is_split() -> None:
    dice = random.Random("later")
    texts = {
        "q": "SELECT l.k, x, y FROM l [RANGE 5], r [RANGE 4] WHERE l.k = r.k",
        "counts": "SELECT k, COUNT(*) AS n FROM l [RANGE 6] GROUP BY k",
        "again": "SELECT l.k, x, y FROM l [RANGE 5], r [RANGE 4] WHERE l.k = r.k",
    }
    plans = {name: bound(text) for name, text in texts.items()}
    engine = LocalEngine({"q": plans["q"]}, shards=3, heat=Heat(0.2, 10))
    given: dict[str, list] = {"l": [], "r": []}
    added = {20: "counts", 40: "again", 60: None}
    split = []
    for first in range(0, 100, 5):
        if first in added:
            name = added[first]
            if name is None:
                engine.book.drop("q")  # the split join goes
            else:
                engine.book.add(BookedQuery(name, plans[name], "intervals"))
            engine.replan()
        rows: dict[str, list] = {"l": [], "r": []}
        for t in range(first, first + 5):
            rows["l"] += [(dice.choice("aaab"), dice.randint(0, 9), t) for _ in range(3)]
            rows["r"].append((dice.choice("abc"), dice.randint(0, 9), t))
        engine.batch(rows)
        split.append(len(engine.hot))
        for name, some in rows.items():
            given[name] += [(row, row[-1]) for row in some]
    engine.batch({}, final=True)
    assert (split[3], split[5], max(split[8:12]), split[-1]) == (1, 1, 2, 1)
    began = {query.name: query.since for query in engine.book.queries.values()}
    assert began == {"counts": 20, "again": 40}
    for query in engine.book.queries.values():
        since = query.since or 0
        kept = {name: [e for e in some if e[1] >= since] for name, some in given.items()}
        check_relation(engine.answers[query.name], relation(plans[query.name], Inputs(kept, {})))
    until = 60 - 1  # what the dropped one has said is right
    kept = {name: [e for e in some if e[1] < 60] for name, some in given.items()}
    true = [step for step in relation(plans["q"], Inputs(kept, {})) if step[0] < until]
    said = [(v, s, min(e, until)) for v, s, e in engine.answers["q"] if s < until]
    check_relation(said, [*true, (until, Counter())])


# Where rows go, and when


def test_rows_of_a_hot_key_are_even_and_the_others_are_at_home() -> None:
    shards, rows = 4, 40_000
    dice = np.random.default_rng(1)
    key = np.where(dice.random(rows) < 0.4, 7, dice.integers(0, 1000, rows))
    time = np.arange(rows, dtype=np.int64)
    batch = Batch.of([pa.array(key)], time, seq=time)
    exchange = ByKey((0,))
    sample = Sample()
    sample.add(batch, exchange)
    told = sample.describe()
    (hottest, count), *_ = told["keys"]
    assert told["rows"] == rows
    assert abs(count / rows - 0.4) < 0.05
    home = {k: s for s, part in exchange.route(batch, shards) for k in part.columns[0].to_pylist()}
    one = Split(hottest, 4, 0, 0, 10_000, 30_000)
    sent = dict(exchange.route(batch, shards, Route.of([one], 0, True)))
    assert sum(map(len, sent.values())) == rows
    assert sorted(np.concatenate([part.start for part in sent.values()])) == list(range(rows))
    for shard, part in sent.items():
        away = np.array([home[k] != shard for k in part.columns[0].to_pylist()])
        assert set(part.columns[0].filter(pa.array(away)).to_pylist()) <= {7}
        assert ((part.start[away] >= 10_000) & (part.start[away] < 30_000)).all()
        hot = np.array(part.columns[0]) == 7
        middle = hot & (part.start >= 10_000) & (part.start < 30_000)
        assert abs(middle.sum() - 2_000) < 200
    copies = dict(exchange.route(batch, shards, Route.of([one], 1, True)))
    for part in copies.values():
        assert (np.array(part.columns[0]) == 7).sum() >= (key == 7).sum()


def decided(heat: Heat, plan: PhysicalPlan, told: dict, part: float, time: int) -> dict[str, Any]:
    """Let a batch pass in which one key of l has some part of 1,000 rows."""
    (pair,) = pairs(plan)
    counted = {pair.channels[0]: {"rows": 1000, "keys": [[42, 1000 * part]]}}
    reached = {"l": Reached(time, time - 2), "r": Reached(time - 1, time - 3)}
    return heat.decide(plan, told, counted, reached, 8, searching=True)


def test_a_key_becomes_hot_grows_cools_and_is_forgotten() -> None:
    plan = physical("SELECT x, y FROM l [RANGE 5], r [RANGE 9 SLIDE 2] WHERE l.k = r.k")
    (pair,) = pairs(plan)
    heat = Heat(few=1500, kept=0.5)
    told = decided(heat, plan, {}, 0.1, 100)
    assert told == {}  # too few rows
    told = decided(heat, plan, told, 0.1, 200)
    first = Split(42, 2, 0, 200, 211)
    assert told == {
        pair.name: {"joins": [plan.nodes[at].digest for at in pair.joins], "splits": [vars(first)]}
    }
    for time in (300, 400, 500):
        told = decided(heat, plan, told, 0.4, time)
    splits = [Split(**s) for s in told[pair.name]["splits"]]
    assert [s.ways for s in splits] == [2, 5]  # next would be 8, all of them
    assert splits[1].spread_from == splits[1].copied_from + 11
    time = 500
    while not all(Split(**s).cooling for s in told[pair.name]["splits"]):
        time += 100
        told = decided(heat, plan, told, 0.0, time)
    ended = [Split(**s) for s in told[pair.name]["splits"]]
    assert {(s.spread_until, s.copied_until) for s in ended} == {(time + 1, time + 6)}
    told = decided(heat, plan, told, 0.0, time + 9)
    assert told[pair.name]["splits"]  # copies are still alive
    for left, right, gone in ((16, 20, False), (17, 5, False), (17, 6, True)):
        reached = {"l": Reached(time + left, time), "r": Reached(time + 20, time + right)}
        assert (heat.decide(plan, told, {}, reached, 8, searching=True) == {}) == gone


def test_keys_that_run_hot_are_bounded() -> None:
    plan = physical("SELECT x, y FROM l [RANGE 5], r [RANGE 9] WHERE l.k = r.k")
    (pair,) = pairs(plan)
    heat = Heat(hot=0.01, few=10, most=5)
    counted = {pair.channels[0]: {"rows": 1000, "keys": [[i, 30] for i in range(32)]}}
    reached = {"l": Reached(9, 9), "r": Reached(9, 9)}
    told = heat.decide(plan, {}, counted, reached, 8, searching=True)
    assert len(told[pair.name]["splits"]) == 5
    assert heat.decide(plan, {}, counted, reached, 8, searching=False) == {}
    assert heat.decide(plan, {}, counted, reached, 1, searching=True) == {}
    unseen = reached | {"r": Reached()}
    assert Heat(few=10).decide(plan, {}, counted, unseen, 8, searching=True) == {}
