"""The join of many inputs against all tuples at every instant: any probe order, any kept pair."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal
from penstock.operators.multi_join import MultiJoinOperator
from tests.slices import Script, check, crowd, scripts

TYPES = (pa.string(), pa.int64(), pa.int64())
WIDTH = len(TYPES)
FAST = settings(max_examples=60, deadline=None)


class Restless(MultiJoinOperator):
    """Takes any order of probes and keeps any pair, another one in every slice."""

    dice = random.Random(0)

    def _choose_order(self, joined: int) -> tuple[int, ...]:
        units = [i for i in range(self.ports) if not joined >> i & 1]
        if self._pair is not None and set(self._pair) <= set(units) and self.dice.random() < 0.8:
            units = [u for u in units if u not in self._pair] + [self.ports]
        return tuple(self.dice.sample(units, len(units)))

    def _think(self, new):
        super()._think(new)
        wanted = self._any_pair()
        if self._pair is not None and wanted != self._pair:
            self._drop_pair()
        if wanted is not None and self._pair is None:
            self._build_pair(wanted)

    def _any_pair(self) -> tuple[int, int] | None:
        if self.dice.random() < 0.5:
            return self._pair if self._pair in self._possible_pairs() else None
        return self.dice.choice([None, *self._possible_pairs()])


def column(port: int, i: int) -> Expr:
    return Column(port * WIDTH + i, TYPES[i])


def own(i: int) -> Expr:
    return Column(i, TYPES[i])


def call(name: str, *args: Expr) -> Expr:
    return resolve_call(name, args)


def meets(a: int, b: int) -> Expr:
    low_a, high_a, low_b, high_b = (column(p, i) for p in (a, b) for i in (1, 2))
    return call("and", call("lt", low_a, high_b), call("lt", low_b, high_a))


def within(a: int, b: int, low: int, high: int) -> Expr:
    """``low <= b.x - a.x <= high``."""
    difference = call("subtract", column(b, 1), column(a, 1))
    return call(
        "and",
        call("ge", difference, Literal(low, pa.int64())),
        call("le", difference, Literal(high, pa.int64())),
    )


class Case:
    """Arguments of an operator for some inputs, and the same said in plain Python."""

    def __init__(
        self,
        ports: int,
        coordinates: Sequence[Expr],
        conditions: list[tuple[Expr, tuple[int, ...]]],
        holds: Callable[[tuple], bool],
        reaches: list | None = None,
    ) -> None:
        self.ports = ports
        self.holds = holds
        self.output = list(range(ports * WIDTH))
        self.arguments = (
            [TYPES] * ports,
            [coordinates] * ports,
            conditions,
            self.output,
            reaches,
        )

    def check(self, script: Script, kind: type[MultiJoinOperator] = Restless) -> None:
        Restless.dice = random.Random(script.seed)

        def expected(time: int) -> list[tuple]:
            rows = (script.snapshot(port, time) for port in range(self.ports))
            return [sum(t, ()) for t in itertools.product(*rows) if self.holds(t)]

        check(lambda: kind(*self.arguments), TYPES, script, expected)


def equal(ports: int) -> Case:
    def holds(t: tuple) -> bool:
        return t[0][0] is not None and all(r[0] == t[0][0] for r in t)

    return Case(ports, [own(0)], [], holds)


def equal_with_rest(ports: int) -> Case:
    last = ports - 1
    conditions = [
        (call("le", column(0, 1), column(1, 2)), (0, 1)),
        (call("ne", column(0, 1), column(last, 1)), (0, last)),
        (call("eq", call("div", column(1, 2), column(last, 1)), Literal(0, pa.int64())),
         tuple(range(ports))),
    ]  # fmt: skip

    def holds(t: tuple) -> bool:
        if t[0][0] is None or any(r[0] != t[0][0] for r in t):
            return False
        values = (t[0][1], t[1][2], t[last][1])
        if None in values or not (t[0][1] <= t[1][2] and t[0][1] != t[last][1]):
            return False
        return t[last][1] != 0 and int(t[1][2] / t[last][1]) == 0

    return Case(ports, [own(0)], conditions, holds)


def overlap(ports: int, pairs: list[tuple[int, int]] | None = None) -> Case:
    pairs = pairs or list(itertools.combinations(range(ports), 2))
    conditions = [(meets(a, b), (a, b)) for a, b in pairs]
    reaches = [(a, b, 0.0, 0.0) for a, b in pairs]

    def holds(t: tuple) -> bool:
        if any(None in r[1:] for r in t):
            return False
        return all(t[a][1] < t[b][2] and t[b][1] < t[a][2] for a, b in pairs)

    return Case(ports, [own(1), own(2)], conditions, holds, reaches)


def band(edges: list[tuple[int, int, int, int]], ports: int) -> Case:
    conditions = [(within(*edge), edge[:2]) for edge in edges]
    reaches = [(a, b, float(low), float(high)) for a, b, low, high in edges]

    def holds(t: tuple) -> bool:
        if any(r[1] is None for r in t):
            return False
        return all(low <= t[b][1] - t[a][1] <= high for a, b, low, high in edges)

    return Case(ports, [own(1), own(1)], conditions, holds, reaches)


CASES = {
    "equal 3": equal(3),
    "equal 4": equal(4),
    "rest 3": equal_with_rest(3),
    "overlap 3": overlap(3),
    "overlap 4": overlap(4),
    "overlap in a row": overlap(4, [(0, 1), (1, 2), (2, 3)]),
    "overlap star": overlap(4, [(1, 0), (2, 1), (1, 3)]),
    "band 3": band([(0, 1, -1, 1), (1, 2, 0, 3)], 3),
    "band ring": band([(0, 1, -1, 1), (1, 2, -2, 1), (2, 3, 0, 0), (0, 3, -2, 5)], 4),
}

VALUES = st.tuples(
    st.sampled_from([None, "a", "a", "b"]),
    *[st.one_of(st.none(), st.integers(-2, 4)) for _ in range(2)],
)


def clean(name: str, script: Script) -> Script:
    """Division is tested on rows that may be divided by."""
    if name == "rest 3":
        for row in script.ports[2]:
            if row.values[1] == 0:
                row.values = (row.values[0], 1, row.values[2])
    return script


@pytest.mark.parametrize("name", CASES)
@FAST
@given(st.data())
def test_random(name, source):
    case = CASES[name]
    most = 8 if case.ports == 3 else 6
    case.check(clean(name, source.draw(scripts(VALUES, ports=case.ports, most=most))))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_orders_by_measurement(name, source):
    """The operator as it is, choosing by itself."""
    case = CASES[name]
    script = clean(name, source.draw(scripts(VALUES, ports=case.ports, most=6)))
    case.check(script, MultiJoinOperator)


def row(chance: random.Random) -> tuple:
    low = chance.randint(0, 150)
    return (f"key {chance.randrange(60)}", low, low + chance.choice([0, 1, 5, 12]))


def closed(script: Script, ports: set[int]) -> Script:
    """Only some ports have holders, so that pairs may be kept."""
    for port, some in enumerate(script.ports):
        if port not in ports:
            for r in some:
                r.holder = 0
    return script


@pytest.mark.parametrize("open_ports", [set(), {1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("name", ["equal 3", "overlap 3", "band 3"])
def test_crowd(name, open_ports):
    for seed in range(3):
        script = closed(crowd(row, 3, seed=seed), open_ports)
        script.ports = [some[:70] for some in script.ports]
        CASES[name].check(script)
