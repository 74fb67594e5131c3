"""Distances of points and texts, OVERLAPS: against plain Python, and what a user can get wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog import Catalog
from penstock.cql import bind, parse_script
from penstock.errors import QueryError
from penstock.expr.arrow import cannot_fail, evaluate
from penstock.expr.edit import edit_distances
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal
from penstock.expr.types import BIGINT, DOUBLE, INT, STRING
from penstock.physical.predicates import sharpened
from penstock.reference.expressions import evaluate as in_python
from tests.examples import examples

FAST = settings(max_examples=examples(20), deadline=None)
NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1.5, 3.0, -4.0, 1e-200, 1e200])
TEXTS = st.none() | st.text("abé日😀", max_size=9) | st.text(max_size=5)


def agree(expr: Expr, rows: list[tuple], types: list[pa.DataType], close: bool = False) -> None:
    """Compare the columns' values with those of the reference, row by row."""
    columns = [pa.array([r[i] for r in rows], t) for i, t in enumerate(types)]
    found = evaluate(expr, columns, len(rows)).to_pylist()
    for value, row in zip(found, rows, strict=True):
        expected = in_python(expr, row)
        if isinstance(expected, float) and isinstance(value, float):
            same = value == expected or (math.isnan(value) and math.isnan(expected))
            assert same or (close and math.isclose(value, expected, rel_tol=1e-12)), row
        else:
            assert value == expected, row


@pytest.mark.parametrize("name", ["distance", "distance_l1", "distance_max", "distance_lp"])
@pytest.mark.parametrize("dimensions", [1, 2, 3, 5])
@FAST
@given(st.data())
def test_distances_of_points(name: str, dimensions: int, source: Any) -> None:
    width = 2 * dimensions
    rows = source.draw(st.lists(st.tuples(*[NUMBERS] * width), max_size=8))
    args: list[Expr] = [Column(i, DOUBLE) for i in range(width)]
    if name == "distance_lp":
        order = source.draw(st.sampled_from([1, 2, 3, 2.5, 100]))
        args = [Literal(order, DOUBLE), *args]
    agree(resolve_call(name, args), rows, [DOUBLE] * width, close=name == "distance_lp")


def test_distances_of_some_points() -> None:
    def one(name: str, *values: Any) -> Any:
        args = [Literal(v, DOUBLE) for v in values]
        return evaluate(resolve_call(name, args), [], 1)[0].as_py()

    assert one("distance", 0.0, 0.0, 3.0, 4.0) == 5.0
    assert one("distance_l1", 0.0, 0.0, 3.0, -4.0) == 7.0
    assert one("distance_max", 0.0, 0.0, 3.0, -4.0) == 4.0
    assert one("distance_lp", 1.0, 0.0, 0.0, 3.0, -4.0) == 7.0
    assert one("distance_lp", 2.0, 0.0, 0.0, 3.0, -4.0) == 5.0
    assert one("distance_lp", 100.0, 1e-5, 0.0, 0.0, 0.0) == pytest.approx(1e-5)
    assert one("distance_lp", math.inf, 0.0, 0.0, 3.0, -4.0) == 4.0
    assert one("distance", 1.0, 4.0) == 3.0
    assert one("distance", None, 4.0) is None
    assert math.isnan(one("distance_max", math.nan, 0.0, 1.0, 5.0))
    assert one("distance", math.inf, 0.0) == math.inf


def test_distances_take_any_numbers_and_cannot_fail() -> None:
    args: list[Expr] = [Column(0, INT), Column(1, BIGINT)]
    call = resolve_call("distance", args)
    assert call.type == DOUBLE
    assert cannot_fail(call)
    assert evaluate(call, [pa.array([7], INT), pa.array([4])], 1).to_pylist() == [3.0]


@FAST
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12), st.none() | st.integers(0, 6))
def test_levenshtein(rows: list[tuple], most: int | None) -> None:
    args: list[Expr] = [Column(0, STRING), Column(1, STRING)]
    if most is not None:
        args.append(Literal(most, INT))
    agree(resolve_call("levenshtein", args), rows, [STRING, STRING])


def test_edit_distances_of_many_pairs() -> None:
    """Lengths from 0 to 200, sliced arrays, and pairs that are far apart and near."""
    dice = np.random.default_rng(3)
    texts = ["".join(dice.choice(list("abc"), n)) for n in dice.integers(0, 200, 60)]
    near = [t[:7] + "x" + t[8:-1] for t in texts]
    one = pa.array(["skipped", *texts, *texts]).slice(1)
    other = pa.array(["skipped", "too", *near, *texts[::-1]]).slice(2)
    call = resolve_call("levenshtein", [Column(0, STRING), Column(1, STRING)])
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    expected = [in_python(call, pair) for pair in pairs]
    assert edit_distances(one, other).tolist() == expected
    for bound in (0, 1, 2, 5, 30, 500):
        found = edit_distances(one, other, bound).tolist()
        assert found == [min(n, bound + 1) for n in expected]
    assert edit_distances(one.slice(0, 0), other.slice(0, 0)).tolist() == []


@pytest.mark.parametrize(
    ("name", "bound", "most"), [("le", 2, 2), ("lt", 2, 1), ("le", 1.5, 1), ("lt", 0.5, 0)]
)
@FAST
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12))
def test_edit_distances_stop_at_the_bound(
    name: str, bound: float, most: int, rows: list[tuple]
) -> None:
    distance = resolve_call("levenshtein", [Column(0, STRING), Column(1, STRING)])
    limit = Literal(bound, INT if isinstance(bound, int) else DOUBLE)
    mirrored = {"le": "ge", "lt": "gt"}[name]
    columns = [pa.array([r[i] for r in rows], STRING) for i in range(2)]
    for condition in (
        resolve_call(name, [distance, limit]),
        resolve_call("not", [resolve_call(mirrored, [limit, distance])]),
    ):
        sharper = sharpened(condition)
        assert sharper != condition
        assert f"Literal(value={most}," in repr(sharper)
        expected = [in_python(condition, row) for row in rows]
        assert evaluate(sharper, columns, len(rows)).to_pylist() == expected


@FAST
@given(st.lists(st.tuples(*[st.none() | st.integers(-3, 3)] * 4), max_size=20))
def test_overlaps_of_integers(rows: list[tuple]) -> None:
    call = resolve_call("overlaps", [Column(i, INT) for i in range(4)])
    agree(call, rows, [INT] * 4)


@FAST
@given(st.lists(st.tuples(*[NUMBERS] * 4), max_size=20))
def test_overlaps_of_numbers(rows: list[tuple]) -> None:
    call = resolve_call("overlaps", [Column(i, DOUBLE) for i in range(4)])
    agree(call, rows, [DOUBLE] * 4)


# mistakes

SCRIPT = """
CREATE STREAM a (k STRING, x DOUBLE, n INT, t BIGINT) USING replay TIMESTAMP BY t;
CREATE STREAM b (k STRING, y DOUBLE, m INT, t BIGINT) USING replay TIMESTAMP BY t;
"""
QUERY = "SELECT x, y FROM a [RANGE 5], b [RANGE 5] WHERE "


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = Catalog()
    for parsed in parse_script(SCRIPT):
        found.add(bind(parsed, found).definition)
    return found


def bound(text: str, catalog: Catalog) -> None:
    for parsed in parse_script(text):
        bind(parsed, catalog)


NEGATIVE = "must be at least 0, got -"
PAIRS = "OVERLAPS must stand between two pairs, (start, end) OVERLAPS (start, end), got "

MISTAKES = [
    ("DISTANCE(x, y) <= -1", NEGATIVE + "1", "DISTANCE(x, y) <= -1"),
    ("DISTANCE_L1(x, n, y, m) < -0.5", "a distance " + NEGATIVE + "0.5", None),
    ("-1 >= DISTANCE_MAX(x, y)", NEGATIVE + "1", "-1 >= DISTANCE_MAX(x, y)"),
    ("DISTANCE_LP(3, x, y) = -2", NEGATIVE + "2", None),
    ("DISTANCE_LP(0.5, x, y) <= 2", "must be at least 1, got 0.5", "DISTANCE_LP(0.5, x, y)"),
    ("DISTANCE_LP(n, x, y) <= 2", "must get a constant as argument 1", None),
    ("ABS(n - m) <= -5", "the distance of two values " + NEGATIVE + "5", "ABS(n - m) <= -5"),
    ("ABS(x - y) BETWEEN 0 AND -5", NEGATIVE + "5", "ABS(x - y) BETWEEN 0 AND -5"),
    ("LEVENSHTEIN(a.k, b.k) <= -1", "an edit distance " + NEGATIVE + "1", None),
    ("LEVENSHTEIN(a.k, b.k, -1) >= 0", "largest distance must be at least 0, got -1", None),
    ("LEVENSHTEIN(a.k, m) <= 1", "must get a STRING as argument 2, got STRING, INT", None),
    ("DISTANCE(x, n, y) <= 1", "an even number of coordinates", "DISTANCE(x, n, y)"),
    ("DISTANCE() <= 1", "an even number of coordinates", "DISTANCE()"),
    ("DISTANCE_LP(2, x) <= 1", "the order and an even number of coordinates", None),
    ("DISTANCE(x, a.k, y, b.k) <= 1", "a number as argument 2, got DOUBLE, STRING", None),
    ("(x, n) OVERLAPS (y, m, 1)", PAIRS + "2 and 3 values", "(x, n) OVERLAPS (y, m, 1)"),
    ("(x) OVERLAPS (y, m)", PAIRS + "one value", "(x)"),
    ("(x, n) OVERLAPS y", PAIRS + "'y'", "y"),
    ("(x, n) OVERLAPS (y)", PAIRS + "2 and 1 values", None),
    ("(x, n) OVERLAPS (a.k, m)", "must get four values of one type, got DOUBLE, INT", None),
    ("(x, n) = (y, m)", "tuples are not values here", ","),
    ("a.k < m", "two values of one type (use CAST), got STRING, INT", "a.k < m"),
    ("a.k BETWEEN m - 5 AND m + 5", "got STRING, INT", "a.k BETWEEN m - 5 AND m + 5"),
    ("ABS(a.k - m) <= 5", "must get two numbers, got STRING, INT", "a.k - m"),
]


@pytest.mark.parametrize(("condition", "sentence", "marked"), MISTAKES)
def test_mistakes(condition: str, sentence: str, marked: str | None, catalog: Catalog) -> None:
    text = QUERY + condition
    with pytest.raises(QueryError) as caught:
        bound(text, catalog)
    error = caught.value
    assert sentence in error.message
    assert error.sql == text
    if marked is not None:
        assert text[error.start : error.end] == marked


def test_what_looks_like_a_mistake_but_is_none(catalog: Catalog) -> None:
    for condition in (
        "LEVENSHTEIN(a.k, b.k, 2) = -1",
        "ABS(n) >= -5",
        "DISTANCE(x, y) >= -1",
        "DISTANCE(x, y) <= 0",
        "NOT (x, n) OVERLAPS (y, m) OR x > 1",
    ):
        bound(QUERY + condition, catalog)
