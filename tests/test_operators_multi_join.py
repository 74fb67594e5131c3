"""The join of many inputs against all tuples at every instant: any probe order, any kept pair."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal
from penstock.kernels.probe_orders import Orders, Step
from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.operators import multi_join
from penstock.operators.base import Context
from penstock.operators.multi_join import MultiJoinOperator, MultiJoinSpec
from penstock.runs import tuples
from penstock.runs.state import MemoryStorage, State
from tests import slices
from tests.examples import examples
from tests.slices import Row, Script, batch_of, check, crowd, scripts

TYPES = (pa.string(), pa.int64(), pa.int64())
WIDTH = len(TYPES)
FAST = settings(max_examples=examples(60), deadline=None)


class Restless(MultiJoinOperator):
    """Takes any order of probes and keeps any pair, another one in every slice."""

    dice = random.Random(0)

    def _choose_order(self, joined: int) -> tuple[int, ...]:
        units = [i for i in range(self.ports) if not joined >> i & 1]
        if self._pair is not None and set(self._pair) <= set(units) and self.dice.random() < 0.8:
            units = [u for u in units if u not in self._pair] + [self.ports]
        return tuple(self.dice.sample(units, len(units)))

    def _choose_pair(self) -> tuple[int, int] | None:
        return self._pair

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


class Strict(slices.Listener):
    """Hears no row whose holder was told before."""

    def take(self, message: Message) -> None:
        if isinstance(message, Batch):
            assert not set(message.holder.tolist()) & set(self.told)
        super().take(message)


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
        """Compare all instants; pieces are put together for reading, or not."""
        Restless.dice = random.Random(script.seed)
        with (
            patch.object(tuples, "_DENSE", script.seed % 2 * 8),
            patch.object(slices, "Listener", Strict),
        ):
            self._check(script, kind)

    def _check(self, script: Script, kind: type[MultiJoinOperator]) -> None:

        def expected(time: int) -> list[tuple]:
            rows = (script.snapshot(port, time) for port in range(self.ports))
            return [sum(t, ()) for t in itertools.product(*rows) if self.holds(t)]

        check(lambda: kind(MultiJoinSpec(*self.arguments)), TYPES, script, expected)


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
@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_orders_by_measurement(name, source):
    """The operator as it is, choosing by itself."""
    case = CASES[name]
    script = clean(name, source.draw(scripts(VALUES, ports=case.ports, most=6)))
    case.check(script, MultiJoinOperator)


def row(chance: random.Random) -> tuple:
    low = chance.randint(0, 60)
    return (f"key {chance.randrange(10)}", low, low + chance.choice([0, 1, 5, 12]))


def closed(script: Script, ports: set[int]) -> Script:
    """Only some ports have holders, so that pairs may be kept."""
    for port, some in enumerate(script.ports):
        if port not in ports:
            for r in some:
                r.holder = 0
    return script


@pytest.mark.long
@pytest.mark.parametrize("open_ports", [set(), {1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("name", ["equal 3", "overlap 3", "band 3"])
def test_crowd(name, open_ports):
    for seed in range(5):
        script = closed(crowd(row, 3, seed=seed), open_ports)
        script.ports = [some[:60] for some in script.ports]
        CASES[name].check(script)


# What it decides by itself


@pytest.fixture
def uncounted_time(monkeypatch):
    """No step takes any time, so that decisions follow the counted rows alone, on any machine."""
    monkeypatch.setattr(multi_join, "time", SimpleNamespace(thread_time=lambda: 0.0))


def stream(
    make: Callable[[], MultiJoinOperator], batches: int, rows: Callable[[int, int], list[tuple]]
) -> Iterator[tuple[State, list[Batch]]]:
    """Play batches of 100 chronons; rows live 1000. Yield the state and the results of each."""
    storage, description = MemoryStorage(), None
    for number in range(batches):
        state = State(storage, description)
        joined = make()
        joined.open(Context(state, node=1))
        said: list[Batch] = []
        for port in range(joined.ports):
            values = rows(number, port)
            columns = [pa.array([v[i] for v in values], t) for i, t in enumerate(TYPES)]
            start = np.linspace(100 * number, 100 * number + 99, len(values)).astype(np.int64)
            said += joined.receive(port, Batch.of(columns, start, start + 1000))
            said += joined.receive(port, Heartbeat(100 * (number + 1)))
        joined.close()
        description = json.loads(json.dumps(state.describe()))
        yield State(storage, description), [m for m in said if isinstance(m, Batch)]


def linked(kind: type[MultiJoinOperator]) -> MultiJoinOperator:
    """Equal keys of three inputs; the second and third are linked by a number too."""
    conditions = [(call("eq", column(1, 1), column(2, 1)), (1, 2))]
    return kind(MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, conditions, range(3 * WIDTH)))


class Plain(MultiJoinOperator):
    """Never keeps a pair."""

    def _choose_pair(self) -> None:
        return None


def test_a_pair_is_kept_while_it_pays(uncounted_time):
    """First few rows of b and c belong together, then all of them do."""

    def rows(number: int, port: int) -> list[tuple]:
        dice = random.Random(97 * number + port)
        numbers = 500 if number < 20 else 1
        count = 120 if port == 0 else 20
        return [(f"{dice.randrange(3)}", dice.randrange(numbers), i) for i in range(count)]

    kept, results = [], []
    plain = stream(lambda: linked(Plain), 36, rows)
    for (state, said), (_, expected) in zip(
        stream(lambda: linked(MultiJoinOperator), 36, rows), plain, strict=True
    ):
        kept.append("pair.first" in state.numbers)
        if kept[-1]:
            assert (state.numbers["pair.first"], state.numbers["pair.second"]) == (1, 2)
        else:
            assert not state.runs("pair")
        results.append(sum(len(batch) for batch in said))
        assert results[-1] == sum(len(batch) for batch in expected)
    assert all(kept[10:20])
    assert not any(kept[-6:])
    assert min(results[1:]) > 0


def test_the_order_follows_the_selectivities(uncounted_time):
    """The input with few partners is probed first; when that changes, so does the order."""
    orders = []

    class Told(MultiJoinOperator):
        def _choose_order(self, joined: int) -> tuple[int, ...]:
            order = super()._choose_order(joined)
            if joined == 1:
                orders.append(order)
            return order

    def rows(number: int, port: int) -> list[tuple]:
        dice = random.Random(31 * number + port)
        rare = 2 if number < 15 else 1
        keys = 400 if port == rare else 20
        return [(f"{dice.randrange(keys)}", 0, 0) for _ in range(60)]

    spec = MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, [], range(9))
    for _ in stream(lambda: Told(spec), 40, rows):
        pass
    assert orders[10:15] == [(2, 1)] * 5
    assert orders[-5:] == [(1, 2)] * 5


def test_the_order_follows_the_seconds_too():
    """Two inputs have as many partners; the one whose conditions are slow to test is put off."""
    links = [frozenset(j for j in range(3) if j != i) for i in range(3)]

    def slice_of(orders: Orders, slow: int) -> tuple[int, ...]:
        orders.came([5000] * 3)
        for unit in (1, 2):
            for joined in (1, 7 & ~(1 << unit)):
                seconds = 0.09 if unit == slow else 0.01
                orders.record(joined, unit, Step(5000, 10_000, 5000, seconds))
        return orders.order(1).order

    orders = Orders(links, {})
    seen = [slice_of(orders, slow=1) for _ in range(4)]
    assert seen[1:] == [(2, 1)] * 3
    numbers: dict[str, int] = {}
    orders.store(numbers)
    again = Orders(links, json.loads(json.dumps(numbers)))
    assert again.order(1).order == (2, 1)
    seen = [slice_of(again, slow=2) for _ in range(20)]
    assert seen[-1] == (1, 2)
    old = {name: value for name, value in numbers.items() if "micro" not in name}
    assert Orders(links, old).order(1).order == (1, 2)  # as before there were seconds
    few = Orders(links, {})
    few.record(1, 1, Step(50, 100, 50, 9.0))
    few.record(1, 2, Step(50, 100, 50, 0.1))
    few.came([50] * 3)
    assert few.order(1).order == (1, 2)


def test_results_stay_the_same_while_the_order_changes(uncounted_time):
    """The order follows measurements in the middle of the run; another operator never changes."""
    orders = set()

    class Told(Plain):
        def _choose_order(self, joined: int) -> tuple[int, ...]:
            order = super()._choose_order(joined)
            if joined == 1:
                orders.add(order)
            return order

    class Fixed(Plain):
        def _choose_order(self, joined: int) -> tuple[int, ...]:
            return tuple(i for i in range(self.ports) if not joined >> i & 1)

    def rows(number: int, port: int) -> list[tuple]:
        dice = random.Random(53 * number + port)
        keys = 300 if port == (1 if number % 20 < 10 else 2) else 15
        return [(f"{dice.randrange(keys)}", i % 5, i) for i in range(50)]

    def bag(said: list[Batch]) -> Counter:
        found: Counter = Counter()
        for batch in said:
            columns = [c.to_pylist() for c in batch.columns]
            found.update(zip(*columns, batch.start.tolist(), batch.end.tolist(), strict=True))
        return found

    results = 0
    for (_, told), (_, fixed) in zip(
        stream(lambda: linked(Told), 40, rows), stream(lambda: linked(Fixed), 40, rows), strict=True
    ):
        assert bag(told) == bag(fixed)
        results += sum(map(len, told))
    assert orders == {(1, 2), (2, 1)}
    assert results > 1000


def test_measurements_survive_in_plain_numbers():
    def rows(number: int, port: int) -> list[tuple]:
        return [(f"{i % 7}", i, i) for i in range(20)]

    for state, _ in stream(
        lambda: MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, [], [0]).build(), 3, rows
    ):
        assert all(isinstance(v, int) for v in state.numbers.values())
        assert any(name.startswith("fan.1.1.") for name in state.numbers)


def test_rows_that_no_partner_can_reach_are_not_stored():
    """Two tables and a stream: the stream leaves no state."""
    state = State(MemoryStorage())
    joined = MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, [], [1, 4, 7]).build()
    joined.open(Context(state, node=1))
    for port in (1, 2):
        columns = [pa.array(["a", "b"]), pa.array([1, 2]), pa.array([3, 4])]
        list(joined.receive(port, Batch.of(columns, [MIN_TIME, MIN_TIME])))
        list(joined.receive(port, Heartbeat(INF)))
    columns = [pa.array(["a", "c"]), pa.array([5, 6]), pa.array([0, 0])]
    list(joined.receive(0, Batch.of(columns, [3, 4])))
    (rows,) = (m for m in joined.receive(0, Heartbeat(10)) if isinstance(m, Batch))
    joined.close()
    assert [c.to_pylist() for c in rows.columns] == [[5], [1], [1]]
    assert rows.start.tolist() == [3]
    assert not state.runs("side.0")
    assert len(state.runs("side.1")) == len(state.runs("side.2")) == 1


def test_the_end_of_time_leaves_no_state():
    script = crowd(row, 3, seed=5)
    state = State(MemoryStorage())
    joined = Restless(MultiJoinSpec(*equal(3).arguments))
    joined.open(Context(state, node=1))
    for beat in (10, 20, INF):
        for port, some in enumerate(script.ports):
            due = [Row(r.values, r.start, INF) for r in some if beat - 10 <= r.start < beat]
            list(joined.receive(port, batch_of(due, TYPES)))
            list(joined.receive(port, Heartbeat(beat)))
        assert beat == INF or len(joined._sides[0])
    joined.close()
    kept = {name for name in state.describe()["runs"] if not name.startswith(("waiting", "ends"))}
    assert not kept


class Keeper(MultiJoinOperator):
    """Always keeps the pair of the first two, and uses it."""

    def _choose_pair(self) -> tuple[int, int]:
        return (0, 1)

    def _choose_order(self, joined: int) -> tuple[int, ...]:
        return (self.ports,) if joined == 4 else (2,)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_pair_dies_with_its_holder(reopened):
    """Rows with key a die when holder 7 is told; those with key b live on."""
    state = State(MemoryStorage())
    joined = Keeper(MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, [], [0, 1, 4, 7]))
    joined.open(Context(state, node=1))

    def batch(holders: list[int], start: int) -> Batch:
        columns = [pa.array(["a", "b"]), pa.array([1, 2]), pa.array([0, 0])]
        return Batch.of(columns, [start, start], [100, 100], holders)

    def beat(time: int) -> list[Message]:
        return [m for port in range(3) for m in joined.receive(port, Heartbeat(time))]

    list(joined.receive(0, batch([0, 0], 1)))
    list(joined.receive(1, batch([7, 8], 2)))
    assert not [m for m in beat(5) if isinstance(m, Batch)]
    list(joined.receive(1, Ends(np.array([7]), np.array([6]))))
    beat(10)
    assert len(joined._pair_side) == 2
    if reopened:
        joined.close()
        state = State(state.storage, json.loads(json.dumps(state.describe())))
        joined = Keeper(MultiJoinSpec([TYPES] * 3, [[own(0)]] * 3, [], [0, 1, 4, 7]))
        joined.open(Context(state, node=1))
    list(joined.receive(2, batch([0, 9], 12)))
    (rows,) = (m for m in beat(20) if isinstance(m, Batch))
    assert rows.columns[0].to_pylist() == ["b"]
    (child,) = rows.holder.tolist()
    list(joined.receive(1, Ends(np.array([8]), np.array([21]))))
    (told,) = (m for m in beat(30) if isinstance(m, Ends))
    assert dict(zip(told.holder.tolist(), told.end.tolist(), strict=True)) == {8: 21, child: 21}


def test_inputs_must_have_the_same_number_of_coordinates():
    with pytest.raises(InternalError, match="same number of coordinates"):
        MultiJoinSpec([TYPES] * 3, [[own(0)], [own(0)], []], [], [0]).build()
