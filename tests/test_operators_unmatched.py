"""Numbers for rows, and the rows without a partner, against plain Python at every instant."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import covers
from penstock.model import INF, Batch, Ends, Heartbeat, Message
from penstock.operators.base import Context
from penstock.operators.row_numbers import RowNumbersSpec
from penstock.operators.unmatched import UnmatchedOperator, UnmatchedSpec
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples
from tests.slices import LAST, Row, Script, check, run

TYPES = (pa.string(), pa.int64())


class Narrow(UnmatchedOperator):
    """Takes rows of the same width on both ports; of a pair only the number counts."""

    def __init__(self) -> None:
        super().__init__(UnmatchedSpec(TYPES[:1]))

    def receive(self, port: int, message: Message) -> Any:
        if port == 1 and isinstance(message, Batch):
            message = message.with_columns(message.columns[1:])
        return super().receive(port, message)


def script_of(chance: random.Random, rows: int) -> Script:
    """Rows with their numbers, and pairs inside the validity of their rows.

    A pair has the holder of its row, one that is told earlier, or an end that comes first.
    """
    script = Script([[], []], {}, chance.randrange(2**32))
    holders = iter(range(1, 10 * rows + 10))
    for number in chance.sample(range(1000, 1000 + 3 * rows), rows):
        start = chance.randrange(LAST)
        row = Row((chance.choice(["a", "b", None]), number), start, INF)
        if chance.random() < 0.8:
            row.end = start + chance.randint(0, 12)
        if chance.random() < 0.5:
            row.holder = next(holders)
            if chance.random() < 0.8:
                script.told[row.holder] = chance.randint(start, LAST)
        script.ports[0].append(row)
        over = min(row.end, script.told.get(row.holder, INF))
        for _ in range(chance.choice([0, 0, 1, 2, 5])):
            first = chance.randint(start, min(over, LAST - 1)) if start < LAST else start
            pair = Row(("", number), first, row.end, row.holder)
            match chance.randrange(3):
                case 0:  # the partner ends at a known time
                    pair.end = min(pair.end, first + chance.randint(0, 6))
                case 1:  # the partner's end is told
                    pair.holder = next(holders)
                    script.told[pair.holder] = min(over, chance.randint(first, LAST))
            if pair.start < min(pair.end, script.told.get(pair.holder, INF)):
                script.ports[1].append(pair)
    return script


def lonely(script: Script, time: int) -> list[tuple]:
    taken = {number for _, number in script.snapshot(1, time)}
    return [(value,) for value, number in script.snapshot(0, time) if number not in taken]


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_rows_without_partner(seed: int, rows: int) -> None:
    script = script_of(random.Random(seed), rows)
    check(Narrow, TYPES, script, lambda time: lonely(script, time))


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_without_partner(seed: int) -> None:
    script = script_of(random.Random(seed), 300)
    check(Narrow, TYPES, script, lambda time: lonely(script, time))


def test_numbers_that_are_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covers, "_WIDEST", 0)
    script = script_of(random.Random(1), 100)
    check(Narrow, TYPES, script, lambda time: lonely(script, time))


def test_nothing_is_left_of_dead_rows() -> None:
    """Rows and pairs that are over leave no state behind once runs are merged."""
    storage = MemoryStorage()
    state = State(storage)
    for beat in (*range(0, 40, 2), 60, 61, INF):
        operator = UnmatchedSpec(TYPES[:1]).build()
        operator.open(Context(state, node=1))
        if beat < 40:
            rows = Batch.of([pa.array(["a"]), pa.array([1000 + beat])], [beat - 1], [beat + 9])
            pairs = Batch.of([pa.array([1000 + beat])], [beat - 1], [beat + 5])
            list(operator.receive(0, rows))
            list(operator.receive(1, pairs))
        for port in (0, 1):
            list(operator.receive(port, Heartbeat(beat)))
        operator.close()
        state = State(storage, state.describe())
    assert all(len(state.runs(f"{n}.by_end")) == 0 for n in ("rows", "pairs"))
    for name in ("counts", "values"):
        alive = [a for r in state.runs(name) for a in r.table().column("alive").to_pylist()]
        assert len(alive) < 40


def test_an_output_row_is_told_only_of_pairs() -> None:
    """The known end of a row is its bound: telling it again would cost every reader."""
    row = Row(("a", 1), 2, 9)
    listener = run(Narrow, TYPES, Script([[row], []], {}, 3))
    assert not listener.told
    pair = Row(("", 1), 4, 6)
    listener = run(Narrow, TYPES, Script([[row], [pair]], {}, 3))
    assert all(end == 4 for end in listener.told.values())


def test_numbers_are_never_given_twice() -> None:
    storage = MemoryStorage()
    state = State(storage)
    given_: list[int] = []
    for shard in (0, 0, 1):
        operator = RowNumbersSpec().build()
        if shard:
            state = State(storage)
        operator.open(Context(state, node=5, shard=shard, shards=1024))
        (out,) = operator.receive(0, Batch.of([pa.array(["a", "b"])], [1, 2], holder=[0, 7]))
        assert isinstance(out, Batch)
        assert out.columns[0].to_pylist() == ["a", "b"]
        assert out.holder.tolist() == [0, 7]
        given_ += out.columns[1].to_pylist()
        told = Ends(np.array([7]), np.array([3]))
        assert list(operator.receive(0, told)) == [told]
        assert list(operator.receive(0, Heartbeat(9))) == [Heartbeat(9)]
        operator.close()
    assert len(set(given_)) == len(given_) == 6
