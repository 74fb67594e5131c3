"""Drives one operator with rows in random cuts and compares its output at every instant."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from penstock.settings import Settings

LAST = 24
"""No row starts and nothing is told after this instant."""

STRATEGIES = (
    Merging("greedy"),
    Merging("maxfanin", 2),
    Merging("always"),
    Merging("never"),
)


@dataclass
class Row:
    """One input row."""

    values: tuple
    start: int
    end: int
    holder: int = 0


@dataclass
class Script:
    """The rows of each port, when holders are told, and the seed of how it all arrives."""

    ports: list[list[Row]]
    told: dict[int, int] = field(default_factory=dict)
    seed: int = 0

    def snapshot(self, port: int, time: int) -> list[tuple]:
        return [
            r.values
            for r in self.ports[port]
            if r.start <= time < min(r.end, self.told.get(r.holder, INF))
        ]


@st.composite
def scripts(draw: Any, values: st.SearchStrategy[tuple], ports: int = 1, most: int = 14) -> Script:
    """Rows with known ends, rows for ever, and rows with holders, some never told."""
    row = st.tuples(
        values,
        st.integers(0, LAST - 1),
        st.one_of(st.integers(0, 12), st.just(INF)),
        st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    )
    rows = [
        [Row(v, s, INF if n == INF else s + n, h) for v, s, n, h in some]
        for some in draw(st.lists(st.lists(row, max_size=most), min_size=ports, max_size=ports))
    ]
    told = {}
    for holder in draw(st.sets(st.integers(1, 4))):
        starts = [r.start for some in rows for r in some if r.holder == holder]
        told[holder] = draw(st.integers(max(starts, default=0), LAST))
    return Script(rows, told, draw(st.integers(0, 2**32)))


def crowd(values: Callable[[random.Random], tuple], ports: int, seed: int) -> Script:
    """Hundreds of rows, half of them with a holder of their own."""
    chance = random.Random(seed)
    rows: list[list[Row]] = [[] for _ in range(ports)]
    told = {}
    for number in range(1, 300 * ports):
        start = chance.randrange(LAST)
        end = start + chance.randint(1, 12) if chance.random() < 0.8 else INF
        holder = number if chance.random() < 0.5 else 0
        if holder and chance.random() < 0.9:
            told[holder] = chance.randint(start, LAST)
        chance.choice(rows).append(Row(values(chance), start, end, holder))
    return Script(rows, told, seed)


def batch_of(rows: Sequence[Row], types: Sequence[pa.DataType]) -> Batch:
    columns = [pa.array([r.values[i] for r in rows], t) for i, t in enumerate(types)]
    return Batch.of(columns, *([getattr(r, n) for r in rows] for n in ("start", "end", "holder")))


class Listener:
    """Collects the output and checks the promises that messages make."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.told: dict[int, int] = {}
        self.heartbeat = MIN_TIME

    def take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            assert message.time >= self.heartbeat
            self.heartbeat = message.time
        elif isinstance(message, Ends):
            for holder, end in zip(message.holder.tolist(), message.end.tolist(), strict=True):
                assert holder not in self.told
                assert end >= self.heartbeat
                self.told[holder] = end
        else:
            columns = [c.to_pylist() for c in message.columns]
            assert (message.start < message.end).all()
            assert (message.start >= self.heartbeat).all()
            times = (message.start.tolist(), message.end.tolist(), message.holder.tolist())
            for i, (start, end, holder) in enumerate(zip(*times, strict=True)):
                self.rows.append(Row(tuple(c[i] for c in columns), start, end, holder))

    def snapshot(self, time: int) -> Counter:
        return bag(
            r.values
            for r in self.rows
            if r.start <= time < min(r.end, self.told.get(r.holder, INF))
        )


def bag(rows: Any) -> Counter:
    """A bag in which NaN equals NaN."""
    return Counter(
        tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row) for row in rows
    )


def run(
    make: Callable[[], Operator],
    types: Sequence[pa.DataType],
    script: Script,
    merging: Merging | None = None,
) -> Listener:
    """Send a script in random cuts; the operator is closed and made anew after some of them."""
    chance = random.Random(script.seed)
    merging = merging or chance.choice(STRATEGIES)
    storage = MemoryStorage()
    state = State(storage)
    rows = [chance.sample(some, len(some)) for some in script.ports]
    told = [dict(script.told) for _ in rows]
    listener = Listener()

    def opened() -> Operator:
        operator = make()
        block = chance.choice((1, 64))
        settings = Settings({"join.buffer": chance.choice(("input", "output"))})
        operator.open(Context(state, node=1, merging=merging, block=block, settings=settings))
        return operator

    def send(port: int, message: Message) -> None:
        for answer in operator.receive(port, message):
            listener.take(answer)

    operator = opened()
    cuts = sorted(chance.sample(range(1, LAST + 2), chance.randint(0, 8)))
    for beat in [*cuts, INF]:
        for port in chance.sample(range(len(rows)), len(rows)):
            due = [r for r in rows[port] if r.start < beat or chance.random() < 0.1]
            rows[port] = [r for r in rows[port] if not any(r is d for d in due)]
            cut = chance.randint(0, len(due))
            for some in (due[:cut], due[cut:]):
                if some:
                    send(port, batch_of(some, types))
            ends = {h: e for h, e in told[port].items() if e < beat}
            told[port] = {h: e for h, e in told[port].items() if h not in ends}
            if ends:
                holders = sorted(ends)
                send(
                    port,
                    Ends(*(Batch.of([], x).start for x in (holders, [ends[h] for h in holders]))),
                )
            send(port, Heartbeat(beat))
            if chance.random() < 0.4:
                operator.close()
                state = State(storage, json.loads(json.dumps(state.describe())))
                operator = opened()
    return listener


def check(
    make: Callable[[], Operator],
    types: Sequence[pa.DataType],
    script: Script,
    expected: Callable[[int], Any],
) -> None:
    """Compare every snapshot of the output with ``expected(time)``."""
    listener = run(make, types, script)
    for time in (*range(-1, LAST + 14), INF - 1):
        assert listener.snapshot(time) == bag(expected(time)), f"at {time}"
