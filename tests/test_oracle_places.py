"""Joins without equality against the oracle: every class, random rows and windows, 1 and 3 shards.

Also the law of their distribution: every pair of partners meets in exactly one shard, and every row
of the owned side is in exactly one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.algebra import Join, Project, Scan, Window, streams_of, walk
from penstock.cql.binding.join_text import bind_join
from penstock.expr.nodes import Column
from penstock.kernels.join_orders import Anywhere, Band, Boxes, Edit, Near, Overlap
from penstock.model import TIMESTAMP, Batch
from penstock.physical.exchange import COPIES, OWNED, Cells
from penstock.physical.predicates import recognise
from penstock.reference import Inputs, accept
from penstock.testing import LocalEngine, run_local
from tests import strategies as make
from tests.comparison import check_answer
from tests.test_oracle import ORACLE

LONG, DOUBLE, FLOAT, STRING = pa.int64(), pa.float64(), pa.float32(), pa.string()
COLUMNS = make.schema_of(
    i=pa.int32(), n=LONG, m=LONG, x=DOUBLE, y=DOUBLE, f=FLOAT, s=STRING, at=TIMESTAMP, t=LONG
)
SCANS = {name: Scan(name, COLUMNS, len(COLUMNS) - 1) for name in ("p", "q")}
NAN, INF = math.nan, math.inf
POOLS: list[list] = [
    [None, -3, 0, 1, 2, 2, 5, 9, 1000],
    [None, -4, 0, 1, 3, 6, 40, 2**53, 2**53 + 1],
    [None, -1, 2, 4, 7, 41, 2**53],
    [None, -2.0, 0.0, 0.1, 0.2, 0.30000000000000004, 1.5, 100.1, 1e16, NAN, INF, -INF, -0.0],
    [None, -1.0, 0.0, 0.1, 0.7, 2.5, 99.9, NAN, INF],
    [None, 0.0, 0.5, 1.5, 1.25, 16777216.0, -2.0, NAN],
    [None, "", "a", "ab", "abc", "abd", "bacd", "é", "日本", "日本語"],
    [None, 0, 1_000_000, 2_500_000, 3_000_000, 60_000_000, 1_700_000_000_000_000],
]

CONDITIONS: dict[str, tuple[str, type]] = {
    "band of integers": ("l.i BETWEEN r.i - 2 AND r.i + 2", Band),
    "band, one way": ("l.n >= r.n AND l.n < r.n + 4", Band),
    "band of long integers": ("ABS(l.n - r.m) <= 1 AND l.n > -100", Band),
    "band of numbers": ("l.x BETWEEN r.x - 0.1 AND r.x + 0.1", Band),
    "band of differences": ("ABS(l.x - r.y) <= 0.1", Band),
    "band of differences apart": ("l.x - r.x <= 0.2 AND l.x - r.x >= -0.1", Band),
    "band far away": ("l.x - r.x BETWEEN 99.9 AND 100.1", Band),
    "band of scaled numbers": ("3 * l.x <= 3 * r.x + 0.3 AND 3 * r.x <= 3 * l.x + 0.3", Band),
    "band of kinds": ("ABS(l.i - r.x) <= 1.5", Band),
    "band of FLOAT": ("ABS(l.f - r.f) <= 0.25", Band),
    "band of sums": ("l.n + l.m BETWEEN r.n AND r.n + 10", Band),
    "band of times": ("l.at BETWEEN r.at - INTERVAL 1 SECOND AND r.at + INTERVAL 2 SECONDS", Band),
    "inequality": ("l.i < r.i", Band),
    "inequality of numbers": ("l.x <= r.y + 0.1", Band),
    "inequality downwards": ("-l.x < r.x", Band),
    "inequality of times": ("l.at < r.at - INTERVAL 1 SECOND", Band),
    "overlap": ("l.n < r.m AND r.n < l.m", Overlap),
    "overlap of numbers": ("l.x <= r.y AND r.x <= l.y", Overlap),
    "overlaps": ("(l.n, l.m) OVERLAPS (r.n, r.m)", Overlap),
    "overlaps with numbers": ("(l.x, l.y) OVERLAPS (r.y, r.x)", Overlap),
    "a point in an interval": ("l.i BETWEEN r.n AND r.m", Overlap),
    "near": ("DISTANCE(l.x, l.y, r.x, r.y) <= 1.5", Near),
    "near by squares": ("(l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) <= 0.01", Near),
    "near by roots": ("SQRT(POWER(l.x - r.x, 2) + POWER(l.y - r.y, 2)) < 0.8", Near),
    "near in two bands": (
        "l.x BETWEEN r.x - 0.1 AND r.x + 0.1 AND r.y BETWEEN l.y - 1 AND l.y + 1",
        Near,
    ),
    "near in four dimensions": (
        "DISTANCE_L1(l.x, l.y, l.n, l.m, r.x, r.y, r.n, r.m) <= 6", Near),
    "near by the largest": ("DISTANCE_MAX(l.i, l.n, r.i, r.n) <= 2", Near),
    "near, order 3": ("DISTANCE_LP(3, l.i, l.n, r.i, r.n) <= 3.5", Near),
    "boxes": ("l.n < r.m AND r.n < l.m AND l.x <= r.y AND r.x <= l.y", Boxes),
    "edits": ("LEVENSHTEIN(l.s, r.s) <= 1", Edit),
    "edits below": ("LEVENSHTEIN(l.s, r.s) < 3 AND l.i <> r.i", Edit),
    "anything": ("l.i <> r.i", Anywhere),
    "anything with NaN": ("l.x - r.x >= -5 AND r.x - l.x >= -5", Anywhere),
}  # fmt: skip


@st.composite
def rows_of(draw, most: int = 9) -> list:
    row = st.tuples(*(st.sampled_from(pool) for pool in POOLS), st.integers(0, 3))
    rows, time = [], 0
    for *values, step in draw(st.lists(row, min_size=most // 2, max_size=most)):
        time += step
        rows.append(((*values, time), time))
    return rows


@st.composite
def sides(draw):
    specs = [draw(make.windows(COLUMNS)) for _ in range(2)]
    names = draw(st.sampled_from([("p", "q"), ("p", "p")]))
    return [Window(SCANS[name], spec) for name, spec in zip(names, specs, strict=True)]


KINDS = ["inner", "inner", "inner", "left", "right", "full", "semi", "anti"]


@pytest.mark.parametrize("name", CONDITIONS)
@ORACLE
@given(st.data())
def test_join(name, source):
    condition, place = CONDITIONS[name]
    left, right = source.draw(sides())
    joins = walk(bind_join(left, right, condition))
    join = replace(
        next(n for n in joins if isinstance(n, Join)), kind=source.draw(st.sampled_from(KINDS))
    )
    assert isinstance(recognise(join.residual, len(COLUMNS)).place, place)
    kept = [i for i, field in enumerate(join.schema) if field.name in ("i", "x", "s")]
    columns = tuple(Column(i, join.schema[i].type) for i in kept)
    plan = Project(join, columns, ("c",) * len(kept))
    streams = {n: source.draw(rows_of()) for n in sorted(streams_of(plan))}
    answers = run_local(
        {"q": plan},
        streams,
        cuts=source.draw(make.cuts()),
        shards=source.draw(st.sampled_from([1, 3])),
        settings=source.draw(make.hostile_settings()),
    )
    inputs = Inputs({n: accept(r, 0)[0] for n, r in streams.items()}, {})
    check_answer(plan, answers["q"], inputs)


@pytest.mark.parametrize("name", ["band of numbers", "near", "overlap", "edits", "anything"])
def test_joins_without_keys_run_in_all_shards(name):
    plan = bind_join(SCANS["p"], SCANS["q"], CONDITIONS[name][0])
    engine = LocalEngine({"q": plan}, shards=3)
    join = next(n for n in engine.plan.nodes if n.label.startswith("Join "))
    kinds = [engine.plan.channels[i.channel].exchange.kind for i in join.inputs]
    assert kinds in (["cells", "cells"], ["owned", "copies"])
    assert join.partitioning is None


# The law of the distribution


def batch(columns: list[pa.Array]) -> Batch:
    return Batch.of(columns, np.arange(len(columns[0])))


def shards_of(rows: Batch, exchange, shards: int) -> list[set[int]]:
    """Return the shards of each row, known by its start."""
    found: list[set[int]] = [set() for _ in range(len(rows))]
    for shard, part in exchange.route(rows, shards):
        assert Counter(part.start.tolist()).most_common(1)[0][1] == 1
        for row in part.start.tolist():
            found[row].add(shard)
    return found


NUMBERS = {
    "integers": (st.none() | st.integers(-60, 60) | st.integers(-(2**62), 2**62), LONG),
    "numbers": (
        st.none()
        | st.floats(-50, 50)
        | st.floats(allow_nan=True, allow_infinity=True)
        | st.sampled_from([0.1, 0.2, 0.3, 0.1 + 0.2, 100.1, 1e16, 1e16 + 2]),
        DOUBLE,
    ),
    "times": (st.none() | st.integers(0, 2_000_000_000_000_000), TIMESTAMP),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@ORACLE
@given(st.data())
def test_each_pair_meets_in_one_shard(kind, dimensions, source):
    values, type_ = NUMBERS[kind]
    points = st.lists(st.tuples(*[values] * dimensions), min_size=1, max_size=30)
    left, right = source.draw(points), source.draw(points)
    right += left  # and some that are surely near
    ends = st.sampled_from([0.0, 0.1, 1.0, 5.0, 7.5, 1e6])
    below = tuple(source.draw(ends) for _ in range(dimensions))
    above = tuple(source.draw(ends) for _ in range(dimensions))
    width = tuple((b + a) * source.draw(st.sampled_from([1, 16])) or 1.0
                  for b, a in zip(below, above, strict=True))  # fmt: skip
    shards = source.draw(st.sampled_from([1, 2, 3, 7]))
    keys = tuple(range(dimensions))
    columns = [
        [pa.array([p[d] for p in some], LONG if type_ == TIMESTAMP else type_).cast(type_)
         for d in keys] for some in (left, right)
    ]  # fmt: skip
    own = shards_of(batch(columns[0]), Cells(keys, width), shards)
    copies = shards_of(batch(columns[1]), Cells(keys, width, below, above), shards)
    assert all(len(where) == 1 for where in own)
    for a, at in zip(left, own, strict=True):
        for b, places in zip(right, copies, strict=True):
            if None in a or None in b:
                continue
            if all(_within(a[d], b[d], below[d], above[d]) for d in keys):
                assert at <= places, (a, b)


def _within(a: float, b: float, below: float, above: float) -> bool:
    """Whether a comparison in floating numbers could say that a lies in the reach of b."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return (math.isnan(a) and math.isnan(b)) or a == b
    return a >= b - below and a <= b + above


@ORACLE
@given(st.lists(st.tuples(st.sampled_from(POOLS[3]), st.sampled_from(POOLS[6])), min_size=1),
       st.sampled_from([1, 2, 5]))  # fmt: skip
def test_owned_rows_are_in_one_shard_and_copies_in_all(rows, shards):
    columns = [pa.array([r[0] for r in rows], DOUBLE), pa.array([r[1] for r in rows], STRING)]
    assert all(len(where) == 1 for where in shards_of(batch(columns), OWNED, shards))
    everywhere = set(range(shards))
    assert all(where == everywhere for where in shards_of(batch(columns), COPIES, shards))


def test_cells_spread_rows_and_copy_few():
    """Rows over many cells use all shards about evenly; one in sixteen is copied."""
    dice = np.random.default_rng(5)
    rows = batch([pa.array(dice.uniform(0, 100_000, 20_000))])
    own = shards_of(rows, Cells((0,), (160.0,)), 4)
    counts = Counter(shard for where in own for shard in where)
    assert max(counts.values()) < 1.2 * min(counts.values())
    copies = shards_of(rows, Cells((0,), (160.0,), (5.0,), (5.0,)), 4)
    assert 1.03 < sum(map(len, copies)) / len(copies) < 1.08
