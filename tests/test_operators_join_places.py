"""The join operator with every place, against all pairs at every instant."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal
from penstock.kernels.join_orders import Anywhere, Band, Boxes, EqualBand, Near, Overlap, Place
from penstock.operators.join import JoinOperator, JoinSpec
from tests.examples import examples
from tests.slices import Script, check, crowd, scripts

TYPES = (pa.float64(), pa.int64(), pa.int64(), pa.int64())
WIDTH = len(TYPES)
FAST = settings(max_examples=examples(60), deadline=None)


def left(i: int) -> Expr:
    return Column(i, TYPES[i])


def right(i: int) -> Expr:
    return Column(WIDTH + i, TYPES[i])


def call(name: str, *args: Expr) -> Expr:
    return resolve_call(name, args)


def within(i: int, most: float) -> Expr:
    difference = call("abs", call("subtract", left(i), right(i)))
    return call("le", difference, Literal(most, pa.float64()))


def meets(i: int, j: int) -> Expr:
    return call("and", call("lt", left(i), right(j)), call("lt", right(i), left(j)))


CLASSES: dict[str, tuple[Place, list[int], Expr]] = {
    "band": (Band(-2.0, 2.0), [0], within(0, 2.0)),
    "keyed band": (EqualBand(Band(-2.0, 2.0)), [3, 0], within(0, 2.0)),
    "inequality": (Band(0.0, float("inf")), [1], call("lt", left(1), right(1))),
    "overlap": (Overlap(), [1, 2], meets(1, 2)),
    "near": (Near((1.0, 2.0)), [0, 1], call("and", within(0, 1.0), within(1, 2.0))),
    "boxes": (Boxes(2), [0, 1, 2, 3], call("and", meets(0, 1), meets(2, 3))),
    "theta": (Anywhere(), [], call("ne", left(1), right(1))),
}


def holds(name: str, a: tuple, b: tuple) -> bool:
    used = {"band": [0], "keyed band": [3, 0], "inequality": [1], "overlap": [1, 2], "near": [0, 1],
            "boxes": [0, 1, 2, 3], "theta": [1]}[name]  # fmt: skip
    if any(a[i] is None or b[i] is None for i in used):
        return False
    match name:
        case "band":
            return abs(a[0] - b[0]) <= 2
        case "keyed band":
            return a[3] == b[3] and abs(a[0] - b[0]) <= 2
        case "inequality":
            return a[1] < b[1]
        case "overlap":
            return a[1] < b[2] and b[1] < a[2]
        case "near":
            return abs(a[0] - b[0]) <= 1 and abs(a[1] - b[1]) <= 2
        case "boxes":
            return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
    return a[1] != b[1]


def check_class(name: str, script: Script) -> None:
    place, at, residual = CLASSES[name]
    coordinates = [left(i) for i in at]

    def make() -> JoinOperator:
        return JoinSpec(TYPES, TYPES, coordinates, coordinates, residual, place).build()

    def expected(time: int) -> list[tuple]:
        return [
            a + b
            for a in script.snapshot(0, time)
            for b in script.snapshot(1, time)
            if holds(name, a, b)
        ]

    check(make, TYPES, script, expected)


VALUES = st.tuples(
    st.sampled_from([None, 0.0, -1.5, 2.25, 4.0, 100.0]),
    *[st.one_of(st.none(), st.integers(-3, 6)) for _ in range(3)],
)


@pytest.mark.parametrize("name", CLASSES)
@FAST
@given(st.data())
def test_random(name, source):
    check_class(name, source.draw(scripts(VALUES, ports=2, most=9)))


def row(chance: random.Random) -> tuple:
    low = chance.randint(0, 300)
    return (chance.random() * 300, low, low + chance.choice([0, 1, 5, 40]), chance.randint(0, 9))


@pytest.mark.parametrize("name", ["band", "keyed band", "overlap", "near", "boxes"])
def test_crowd(name):
    check_class(name, crowd(row, 2, seed=len(name)))
