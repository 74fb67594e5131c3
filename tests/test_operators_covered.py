"""Rows with and without a partner where all ends are known, against plain Python."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import covers as kernel
from penstock.model import INF, MIN_TIME, Batch, Closed, Heartbeat, Message, Settled
from penstock.operators.base import Context
from penstock.operators.covered import CoveredOperator, CoveredSpec
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples
from tests.slices import (
    LAST,
    STRATEGIES,
    Listener,
    Row,
    Script,
    bag,
    batch_of,
    check,
    run,
)

TYPES = (pa.string(), pa.int64())


class Lonely(CoveredOperator):
    """Takes rows of the same width on both ports; of a pair only the number counts."""

    partners = False

    def __init__(self) -> None:
        super().__init__(CoveredSpec(TYPES[:1], self.partners))

    def receive(self, port: int, message: Message) -> Any:
        if port == 1 and isinstance(message, Batch):
            message = message.with_columns(message.columns[1:])
        return super().receive(port, message)


class Partnered(Lonely):
    partners = True


def script_of(chance: random.Random, rows: int, most: int = 8) -> Script:
    """Rows with their numbers, and pairs inside the validity of their rows, in stretches."""
    script = Script([[], []], {}, chance.randrange(2**32))
    for number in chance.sample(range(1000, 1000 + 3 * rows), rows):
        start = chance.randrange(LAST)
        end = start + chance.randint(0, 14) if chance.random() < 0.85 else INF
        script.ports[0].append(Row((chance.choice(["a", "b", None]), number), start, end))
        for _ in range(chance.choice([0, 0, 1, 2, most])):
            first = chance.randint(start, min(end, LAST - 1)) if start < LAST else start
            over = min(end, first + chance.randint(0, 5)) if chance.random() < 0.8 else end
            script.ports[1].append(Row(("", number), first, over))
    return script


def expected(script: Script, time: int, partners: bool) -> list[tuple]:
    taken = {number for _, number in script.snapshot(1, time)}
    rows = script.snapshot(0, time)
    return [(value,) for value, number in rows if (number in taken) == partners]


@pytest.mark.parametrize("make", [Lonely, Partnered])
@settings(deadline=None, max_examples=examples(150))
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_rows_by_their_partners(make: type[Lonely], seed: int, rows: int) -> None:
    script = script_of(random.Random(seed), rows)
    check(make, TYPES, script, lambda time: expected(script, time, make.partners))


@pytest.mark.parametrize("make", [Lonely, Partnered])
@pytest.mark.parametrize("seed", range(4))
def test_a_crowd(make: type[Lonely], seed: int) -> None:
    script = script_of(random.Random(seed), 300, 30)
    check(make, TYPES, script, lambda time: expected(script, time, make.partners))


def test_intervals_are_sorted_if_they_do_not_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no round before, everything is found by sorting."""
    monkeypatch.setattr(kernel, "_ROUNDS", 0)
    script = script_of(random.Random(7), 200, 30)
    for make in (Lonely, Partnered):
        check(make, TYPES, script, lambda time, own=make: expected(script, time, own.partners))


@settings(deadline=None, max_examples=examples(200))
@given(
    st.integers(0, 2**32),
    st.integers(0, 60),
    st.integers(1, 5),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([0.95, 1]),
)
def test_covers(seed: int, count: int, codes: int, rounds: int, mortal: float) -> None:
    """Every instant is covered, by what was covered or by a stretch, or it is not."""
    chance = random.Random(seed)
    until = np.array([chance.choice([0, 3, INF]) for _ in range(codes)])
    code = np.array([chance.randrange(codes) for _ in range(count)], np.int64)
    start = np.array([chance.randrange(30) for _ in range(count)], np.int64)
    end = np.array([s + chance.randint(1, 6) if chance.random() < mortal else INF for s in start])
    end = end.astype(np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_ROUNDS", rounds)
        found = kernel.covers(until, code, start, end)
    for own in range(codes):
        given_ = [(-INF, until[own]), *zip(start[code == own], end[code == own], strict=True)]
        mine = found.code == own
        made = [(-INF, found.until[own]), *zip(found.start[mine], found.end[mine], strict=True)]
        for time in range(-1, 40):
            inside = [any(a <= time < b for a, b in some) for some in (given_, made)]
            assert inside[0] == inside[1]
        flat = [t for stretch in made for t in stretch]
        assert all(a < b for a, b in pairwise(flat))
    assert (np.diff(found.code) >= 0).all()


def test_nothing_is_left_of_dead_rows() -> None:
    """What is over leaves no state behind, and nothing is kept of a row that stays covered."""
    storage = MemoryStorage()
    state = State(storage)
    for beat in (*range(0, 40, 2), 60, 61):
        operator = CoveredSpec(TYPES[:1], False).build()
        operator.open(Context(state, node=1))
        if beat < 40:
            names = pa.array(["short", "whole"])
            numbers = pa.array([1000 + beat, 1001 + beat])
            rows = Batch.of([names, numbers], [beat - 1] * 2, [beat + 9] * 2)
            pairs = Batch.of([numbers], [beat - 1] * 2, [beat + 5, beat + 9])
            list(operator.receive(0, rows))
            list(operator.receive(1, pairs))
        for port in (0, 1):
            list(operator.receive(port, Heartbeat(beat)))
        operator.close()
        state = State(storage, state.describe())
        names = [n for r in state.runs("values") for n in r.table().column("c1").to_pylist()]
        assert "whole" not in names
    for name in ("status", "values", "due.by_end"):
        assert sum(len(run) for run in state.runs(name)) == 0


@pytest.mark.parametrize("make", [Lonely, Partnered])
def test_only_what_is_not_known_is_told(make: type[Lonely]) -> None:
    """The known end of a row is its bound; a stretch that is over when it is found has its end."""
    row = Row(("a", 1), 2, 9)
    for pairs in ([], [Row(("", 1), 4, 6)], [Row(("", 1), 2, 9)]):
        listener = run(make, TYPES, Script([[row], pairs], {}, 3))
        times = {4, 6} if len(pairs) and pairs[0].end == 6 else set()
        assert set(listener.told.values()) <= times


def closed_numbers(numbers: list[int]) -> Closed:
    high = np.array(sorted(numbers), np.uint64)
    return Closed((0,), high, np.zeros_like(high), np.full(len(high), INF), numbered=True)


def test_rows_of_a_closed_part_leave_before_their_time() -> None:
    operator = CoveredSpec(TYPES[:1], False).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    rows = Batch.of([pa.array(["a", "b"]), pa.array([7, 8])], [1, 1], [50, 50])
    list(operator.receive(0, rows))
    list(operator.receive(1, Batch.of([pa.array([8])], [1], [9])))
    list(operator.receive(0, Heartbeat(5)))
    made = [m for m in operator.receive(1, Heartbeat(5)) if isinstance(m, Batch)]
    holder = made[0].holder.tolist()
    closed = closed_numbers([7, 8])
    assert operator.uses_part(1, closed)
    said = list(operator.receive(1, closed))
    for port in (0, 1):
        said += operator.receive(port, Heartbeat(6))
    (settled,) = [m for m in said if isinstance(m, Settled)]
    assert settled.holder.tolist() == holder
    list(operator.receive(0, Heartbeat(12)))
    later = [m for m in operator.receive(1, Heartbeat(12)) if isinstance(m, Batch)]
    assert [b.columns[0].to_pylist() for b in later] == [["b"]]


class Hearing(Listener):
    """Also checks that the rows of settled holders are told nothing any more."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: set[int] = set()

    def take(self, message: Message) -> None:
        if isinstance(message, Settled):
            mine = set(message.holder.tolist())
            assert len(mine) == len(message)
            assert not mine & self.told.keys()
            self.settled |= mine
            return
        super().take(message)
        assert not self.settled & self.told.keys()


@pytest.mark.parametrize("make", [Lonely, Partnered])
@settings(deadline=None, max_examples=examples(150))
@given(st.integers(0, 2**32), st.integers(1, 10))
def test_rows_that_get_no_more_partners(make: type[Lonely], seed: int, rows: int) -> None:
    """Numbers are closed some time behind their last pair; in the end nothing is left of them."""
    chance = random.Random(seed)
    script = script_of(chance, rows)
    last = {row.values[1]: max(row.start, 0) for row in script.ports[0]}
    for pair in script.ports[1]:
        last[pair.values[1]] = max(last[pair.values[1]], pair.start)
    beats = [*sorted(chance.sample(range(1, LAST + 1), chance.randint(0, 6))), 40, 41]
    storage, listener, sent = MemoryStorage(), Hearing(), MIN_TIME
    state, merging = State(storage), chance.choice(STRATEGIES)
    operator = make()
    operator.open(Context(state, node=1, merging=merging))
    for beat in beats:
        for port in (0, 1):
            some = [row for row in script.ports[port] if sent <= row.start < beat]
            if some:
                list(map(listener.take, operator.receive(port, batch_of(some, TYPES))))
        over = [n for n, t in last.items() if t < beat and (beat >= 40 or chance.random() < 0.4)]
        last = {n: t for n, t in last.items() if n not in over}
        if over:
            assert not list(operator.receive(1, closed_numbers(over)))
        for port in (0, 1):
            list(map(listener.take, operator.receive(port, Heartbeat(beat))))
        sent = beat
        if chance.random() < 0.5 or beat >= 40:
            operator.close()
            state = State(storage, json.loads(json.dumps(state.describe())))
            operator = make()
            merging = Merging("always") if beat >= 40 else merging
            operator.open(Context(state, node=1, merging=merging))
    for time in (*range(-1, 41), INF - 1):
        assert listener.snapshot(time) == bag(expected(script, time, make.partners)), f"at {time}"
    for name in ("status", "values", "due.by_end", "parting.by_end"):
        assert sum(len(run) for run in state.runs(name)) == 0, name


def test_a_row_without_end_is_forgotten_when_it_is_covered_for_ever() -> None:
    storage = MemoryStorage()
    state = State(storage)
    for beat in (5, 8, 11):
        operator = CoveredSpec(TYPES[:1], True).build()
        operator.open(Context(state, node=1, merging=Merging("always")))
        if beat == 5:
            list(operator.receive(0, Batch.of([pa.array(["a"]), pa.array([7])], [1], [INF])))
        if beat == 8:
            list(operator.receive(1, Batch.of([pa.array([7])], [6], [INF])))
        for port in (0, 1):
            list(operator.receive(port, Heartbeat(beat)))
        operator.close()
        state = State(storage, state.describe())
        kept = [sum(len(run) for run in state.runs(name)) for name in ("status", "values")]
        assert kept == ([1, 1] if beat == 5 else [0, 0])


def test_closed_columns_of_pairs_are_closed_columns_of_rows_with_partners() -> None:
    types = (pa.string(), pa.int64(), pa.int64())
    operator = CoveredSpec(types, True, shown=(0, 2)).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    none, ever = np.zeros(1, np.uint64), np.full(1, INF)
    closed = Closed((1, 0), none, none, ever)
    assert operator.uses_part(1, closed)
    assert not operator.uses_part(0, closed)
    assert not operator.uses_part(1, Closed((2,), none, none, ever))
    assert operator.parts_after([(1, (1, 0))]) == [(2, 0)]
    operator.receive(1, closed)
    (said,) = operator.close_part(1, closed)
    assert isinstance(said, Closed)
    assert said.on == (2, 0)
    lonely = CoveredSpec(types, False).build()
    assert not lonely.uses_part(1, Closed((), none, none, ever))
