"""Conjuncts in the order of what they cost and drop, against fixed orders, without Spark.

``python -m benchmarks eddies --rows N`` runs a selection of five conjuncts, of which another one is
the selective one in the second half of the rows.

* *best* and *worst fixed*: of all orders, found by trying each on some rows of both halves, kept
  for the whole run;
* *oracle*: the best order of each half, which somebody told in time;
* *as before*: all conjuncts on all rows, whatever the order.

Besides, what a selection of one or two cheap conjuncts costs against what it was before.  All times
are those of the processor, and include reading batches and writing answers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import Measure, medians
from benchmarks.trains import Counting
from penstock import algebra
from penstock.bench.scripts import plans_of
from penstock.expr.arrow import evaluate_mask
from penstock.expr.nodes import Expr
from penstock.expr.selection import Selection
from penstock.model import Mask

BATCH = 100_000
TEMPLATES = 4
"""Batches of each half that differ; they come again and again, each time later."""
LONGER = 4
"""How many times as many rows the cheap selections have: they take less time."""
TRIED, TRIALS = 20_000, 4
"""Rows of each half on which all orders are tried, and how often."""

SCHEMA = "text STRING, path STRING, kind STRING, code INT, x DOUBLE, y DOUBLE, t BIGINT"
CONJUNCTS = (
    "text LIKE '%overnight%fragile%'",
    "path RLIKE '^/shop/(cart|pay)/[0-9]+$'",
    "CASE WHEN kind = 'sale' THEN x WHEN kind = 'return' THEN y ELSE 0.5 END < 0.8",
    "code IN (3, 14, 15, 92, 65, 35, 89, 79)",
    "x * x + y * y < 1.2",
)
CHEAP = {"one cheap conjunct": "x < 0.01", "two cheap conjuncts": "x < 0.05 AND y < 0.5"}
Tables = Sequence[pa.Table]


def eddies(spark: SparkSession | None, rows: int, repeats: int) -> list[Measure]:
    """The selection whose load changes, and those that are too cheap to gain anything."""
    size = max(1, min(BATCH, rows // 8))
    halves = [[table(size, half, seed) for seed in range(TEMPLATES)] for half in (0, 1)]
    batches = [list(timed(half, rows // 2 // size)) for half in halves]
    many = list(timed(halves[0], LONGER * rows // size))
    return [*changing(halves, batches, repeats), *cheap(many, repeats)]


def table(rows: int, half: int, seed: int) -> pa.Table:
    """Make rows: in the first half few texts pass, in the second few paths."""
    dice = np.random.default_rng(10 * half + seed)

    def one_of(passing: float, good: str, bad: str) -> pa.Array:
        numbers = dice.integers(10, 100, rows).astype(str)
        some = np.where(dice.random(rows) < passing, good, bad)
        return pa.array(np.char.replace(some, "#", numbers))

    passing = [0.02, 0.9] if half == 0 else [0.9, 0.02]
    text = one_of(passing[0], "order #: overnight, fragile goods", "order #: sent by land, robust")
    code = np.where(dice.random(rows) < 0.7, 14, dice.integers(100, 1000, rows))
    return pa.table(
        {
            "text": text,
            "path": one_of(passing[1], "/shop/cart/#", "/shop/cart/list/#"),
            "kind": pa.array(np.array(["sale", "return", "repair"])[dice.integers(0, 3, rows)]),
            "code": pa.array(code, pa.int32()),
            "x": pa.array(dice.random(rows)),
            "y": pa.array(dice.random(rows)),
        }
    )


def timed(templates: Tables, count: int) -> Iterator[pa.Table]:
    """Yield so many batches, one after another in time."""
    for number in range(count):
        some = templates[number % len(templates)]
        times = pa.array(np.arange(some.num_rows) + number * some.num_rows)
        yield some.append_column("t", times)


def changing(halves: Sequence[Tables], batches: Sequence[Tables], repeats: int) -> list[Measure]:
    """Compare adaptive order with fixed ones while the load changes."""
    orders = list(itertools.permutations(range(len(CONJUNCTS))))
    costs = np.array([[tried(order, half) for order in orders] for half in halves])
    first, second = (orders[i] for i in costs.argmin(axis=1))
    best, worst = (orders[i] for i in (costs.sum(axis=0).argmin(), costs.sum(axis=0).argmax()))
    answers: dict[str, int] = {}
    whole = [*batches[0], *later(batches[1], sum(b.num_rows for b in batches[0]))]

    def side(name: str, where: str, order: str, *parts: Tables) -> Callable[[], float]:
        def run() -> float:
            found = [ran(where, part, order) for part in parts]
            answers[name] = sum(rows for _, rows in found)
            return sum(seconds for seconds, _ in found)

        return run

    def oracle() -> float:
        found = [ran(text(o), b, "written") for o, b in zip((first, second), batches, strict=True)]
        answers["oracle"] = sum(rows for _, rows in found)
        return sum(seconds for seconds, _ in found)

    def before() -> float:
        with as_before():
            return side("as before", text(worst), "written", whole)()

    sides = {
        "adaptive": side("adaptive", text(worst), "adaptive", whole),
        "best fixed": side("best fixed", text(best), "written", whole),
        "worst fixed": side("worst fixed", text(worst), "written", whole),
        "oracle": oracle,
        "as before": before,
    }
    taken = medians(sides, repeats)
    if len(set(answers.values())) != 1:
        raise SystemExit(f"all orders must give the same answers, got {answers}")
    rows = sum(b.num_rows for b in whole)
    own = taken["adaptive"]
    bars: dict[str, float | None] = {"best fixed": 1.15}
    return [
        Measure(
            f"five conjuncts, the selective one changes: time in adaptive order against {name}",
            own / taken[name],
            bars.get(name),
            "below",
            {"adaptive rows/s": rows / own, f"{name} rows/s": rows / taken[name], "rows": rows},
        )
        for name in sides
        if name != "adaptive"
    ]


def cheap(batches: Tables, repeats: int) -> list[Measure]:
    """Compare selections that adaptive order cannot make faster with what they were before."""
    measures = []
    rows = sum(b.num_rows for b in batches)
    for name, where in CHEAP.items():

        def now(where: str = where) -> float:
            return ran(where, batches, "adaptive")[0]

        def before(where: str = where) -> float:
            with as_before():
                return ran(where, batches, "written")[0]

        taken = medians({f"{name}, now": now, f"{name}, before": before}, repeats)
        after, earlier = (rows / seconds for seconds in taken.values())
        parts = {"now rows/s": after, "before rows/s": earlier, "rows": rows}
        measures.append(
            Measure(f"{name}: rate against before", after / earlier, 0.97, "above", parts)
        )
    return measures


def later(batches: Tables, by: int) -> Iterator[pa.Table]:
    """Yield batches with their times moved."""
    for some in batches:
        times = pa.array(some["t"].to_numpy() + by)
        yield some.set_column(some.num_columns - 1, "t", times)


def text(order: Sequence[int]) -> str:
    """Return a condition with the conjuncts in an order."""
    return " AND ".join(CONJUNCTS[i] for i in order)


def script(where: str) -> str:
    """Return a script with one selection."""
    return f"""
    CREATE STREAM s ({SCHEMA}) USING memory TIMESTAMP BY t;
    CREATE QUERY q AS ISTREAM(SELECT code, x FROM s [NOW] WHERE {where});
    """


def ran(where: str, batches: Tables, order: str) -> tuple[float, int]:
    """Run a selection over batches; return the seconds of the processor and the answers."""
    engine = Counting(script(where), {"filter.order": order})
    began = time.process_time()
    for some in batches:
        engine.batch({"s": some})
    return time.process_time() - began, engine.rows


def tried(order: Sequence[int], templates: Tables) -> float:
    """Return what an order costs on some rows at best, once it has measured its conjuncts."""
    selection = Selection(predicate(text(order)), {}, adaptive=False)
    parts = [[c.combine_chunks() for c in t.slice(0, TRIED).columns] for t in templates[:2]]
    seconds = []
    for _ in range(TRIALS):
        for columns in parts:
            began = time.process_time()
            selection.mask(columns, len(columns[0]))
            seconds.append(time.process_time() - began)
    return min(seconds[len(parts) :])


def predicate(where: str) -> Expr:
    """Return a condition on the rows of the stream."""
    nodes = algebra.walk(plans_of(script(where))["q"])
    return next(node.predicate for node in nodes if isinstance(node, algebra.Filter))


@contextmanager
def as_before() -> Iterator[None]:
    """Selections evaluate all conjuncts on all rows."""

    def mask(self: Selection, columns: Sequence[pa.Array | None], rows: int) -> Mask:
        return evaluate_mask(self._predicate, columns, rows)

    with patch.object(Selection, "mask", mask):
        yield
