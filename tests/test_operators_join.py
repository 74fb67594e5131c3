"""The join operator against all pairs at every instant, under hostile cuts, merges and hashes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr
from penstock.kernels import layouts, pairs
from penstock.kernels.keys import Keys, hash_columns
from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.operators.base import Context
from penstock.operators.join import JoinOperator, JoinSpec
from penstock.runs import side as side_module
from penstock.runs.merging import Merging
from penstock.runs.segments import SegmentStorage
from penstock.runs.state import MemoryStorage, State
from penstock.settings import Settings
from tests.examples import examples

TYPES = (pa.string(), pa.int64())
KEY = Column(0, pa.string(), "k")
LESS = resolve_call("lt", [Column(1, pa.int64(), "x"), Column(3, pa.int64(), "y")])
LAST = 20
"""No row starts after this instant."""
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Row:
    """One input row."""

    key: str | None
    value: int
    start: int
    end: int
    holder: int = 0


@dataclass
class Script:
    """Two sides, when their holders are told, and how it all arrives."""

    rows: tuple[list[Row], list[Row]]
    told: dict[int, int]
    keys: tuple[Expr, ...] = (KEY,)
    residual: Expr | None = None
    merging: str = "greedy"
    block: int = 4
    cuts: list[tuple[int, int, bool]] = field(default_factory=list)
    """(port, heartbeat, whether the operator is closed and opened anew after it)."""
    early: int = 0
    """Rows come before the heartbeat passes their start minus this."""
    buffers: list[str] = field(default_factory=lambda: ["input"])
    """What waits while one side runs ahead, in turn; cut by cut another one."""


def batch_of(rows: list[Row]) -> Batch:
    columns = (
        pa.array([r.key for r in rows], TYPES[0]),
        pa.array([r.value for r in rows], TYPES[1]),
    )
    return Batch.of(
        columns, [r.start for r in rows], [r.end for r in rows], [r.holder for r in rows]
    )


def operator(script: Script) -> JoinOperator:
    return JoinSpec(TYPES, TYPES, script.keys, script.keys, script.residual).build()


def expected(script: Script, time: int) -> Counter[tuple]:
    """All pairs alive at an instant."""

    def alive(rows: list[Row]) -> list[Row]:
        return [r for r in rows if r.start <= time < min(r.end, script.told.get(r.holder, INF))]

    result: Counter[tuple] = Counter()
    for left in alive(script.rows[0]):
        for right in alive(script.rows[1]):
            if script.keys and (left.key is None or left.key != right.key):
                continue
            if script.residual is None or left.value < right.value:
                result[left.key, left.value, right.key, right.value] += 1
    return result


class Listener:
    """Collects what an operator says and checks that it keeps the promises of messages."""

    def __init__(self) -> None:
        self.rows: list[tuple[tuple, int, int, int]] = []
        self.told: dict[int, int] = {}
        self.heartbeat = MIN_TIME
        self.largest = 0

    def take(self, message: Message) -> None:
        if isinstance(message, Heartbeat):
            assert message.time >= self.heartbeat
            self.heartbeat = message.time
        elif isinstance(message, Ends):
            assert (np.diff(message.holder) > 0).all()
            for holder, end in zip(message.holder.tolist(), message.end.tolist(), strict=True):
                assert holder not in self.told, "a holder must be told once"
                assert end >= self.heartbeat
                self.told[holder] = end
        else:
            assert len(message)
            assert message.seq is None
            assert (message.start < message.end).all()
            assert (message.start >= self.heartbeat).all()
            self.largest = max(self.largest, len(message))
            values = list(zip(*(c.to_pylist() for c in message.columns), strict=True))
            times = (message.start.tolist(), message.end.tolist(), message.holder.tolist())
            for row in zip(values, *times, strict=True):
                assert row[3] not in self.told
                self.rows.append(row)

    def at(self, time: int) -> Counter[tuple]:
        return Counter(
            values
            for values, start, end, holder in self.rows
            if start <= time < min(end, self.told.get(holder, INF))
        )


def messages(script: Script) -> Iterator[tuple[int, Message, bool]]:
    """Yield (port, message, whether to reopen after it) in the order of arrival."""
    waiting = [list(side) for side in script.rows]
    untold = [dict(script.told), dict(script.told)]
    for port, heartbeat, reopen in [*script.cuts, (0, INF, True), (1, INF, True)]:
        horizon = heartbeat if heartbeat == INF else heartbeat + script.early
        now = [r for r in waiting[port] if r.start < horizon]
        waiting[port] = [r for r in waiting[port] if r.start >= horizon]
        half = len(now) // 2
        if now:
            yield port, batch_of(now[half:]), False
            yield port, batch_of(now[:half]), False
        ends = {h: e for h, e in untold[port].items() if e < horizon}
        for holder in ends:
            del untold[port][holder]
        yield (
            port,
            Ends.of(np.array(list(ends), np.int64), np.array(list(ends.values()), np.int64)),
            False,
        )
        yield port, Heartbeat(heartbeat), reopen


def play(script: Script) -> tuple[Listener, State]:
    """Run a script, checking every snapshot below each heartbeat."""
    storage = MemoryStorage()
    state = State(storage)
    listener = Listener()
    buffers = itertools.cycle(script.buffers)

    def opened(state: State) -> JoinOperator:
        made = operator(script)
        merging = Merging(script.merging, 3)
        buffer = Settings({"join.buffer": next(buffers)})
        made.open(Context(state, node=1, merging=merging, block=script.block, settings=buffer))
        return made

    joined = opened(state)
    checked = -1
    for port, message, reopen in messages(script):
        for answer in joined.receive(port, message):
            listener.take(answer)
        top = min(listener.heartbeat, 2 * LAST)
        for time in range(checked + 1, top):
            assert listener.at(time) == expected(script, time), time
        checked = max(checked, top - 1)
        if reopen:
            joined.close()
            state = State(storage, json.loads(json.dumps(state.describe())))
            joined = opened(state)
    joined.close()
    for time in range(2 * LAST):
        assert listener.at(time) == expected(script, time), time
    assert listener.largest <= script.block
    return listener, state


def scripted(seed: int, shared_holders: bool = False, self_join: bool = False) -> Script:
    """Make a dense random script: few keys, many cuts, holders told at all times.

    Numbers come from a seed, not from hypothesis piece by piece: shrunk scripts are too sparse for
    the meetings of cuts, holders and merges that matter here.
    """
    random = Random(seed)
    told: dict[int, int] = {}
    sides: list[list[Row]] = []
    keys = random.choice([["a"], ["a", "b"], [None, "a", "b", "", "a longer key"]])
    open_share = random.choice([0.0, 0.3, 1.0]), random.choice([0.0, 0.3, 1.0])
    lengths = random.choice([[6], [1, 2, 9, 20], [5, 12, INF], [INF]])
    holders = random.choice([3, 30])
    for port in range(1 if self_join else 2):
        base = 1 if shared_holders else 1 + 100 * port
        rows = []
        for _ in range(random.randint(0, 20)):
            start = random.randrange(LAST)
            length = random.choice(lengths)
            end = INF if length == INF else start + length
            is_open = random.random() < open_share[port]
            holder = base + random.randrange(holders) if is_open else 0
            rows.append(Row(random.choice(keys), random.randrange(4), start, end, holder))
        sides.append(rows)
    both = (sides[0], sides[-1])
    for holder in {r.holder for side in both for r in side} - {0}:
        latest = max(r.start for side in both for r in side if r.holder == holder)
        if random.random() < 0.8:
            told[holder] = min(latest + random.randint(1, 12), LAST + 5)
    step = random.choice([1, 3, 8, LAST])
    cuts = []
    for time in range(step, LAST + 8, step):
        for port in random.sample([0, 1], 2):
            if random.random() < 0.8:
                cuts.append((port, time, random.random() < 0.3))
    return Script(
        both,
        told,
        random.choice([(KEY,), (KEY,), (KEY, KEY), ()]),
        random.choice([None, LESS]),
        random.choice(["greedy", "always", "never", "maxfanin"]),
        random.choice([1, 3, 1 << 18]),
        cuts,
        random.choice([0, 5]),
        random.choice([["input"], ["output"], ["input", "output"]]),
    )


def colliding(columns: list[pa.Array], rows: int) -> Keys:
    """Hash like the real thing, but put all keys into two buckets."""
    keys = hash_columns(columns, rows)
    return Keys((keys.high & np.uint64(0x8000000000000003)), keys.low)


@settings(max_examples=examples(120), deadline=None)
@given(SEEDS, st.sampled_from([0, 4]), st.booleans(), st.booleans())
def test_all_pairs_at_every_instant(seed: int, worth: int, collide: bool, sparse: bool) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.object(pairs, "WORTH_BISECTING", worth))
        if collide:
            stack.enter_context(patch.object(layouts, "hash_columns", colliding))
        if sparse:
            stack.enter_context(patch.object(side_module, "_MOST_TABLES", 0))
        _, state = play(scripted(seed))
    names = ("left", "right", "children", "left.told", "right.told", "children.told")
    names += ("pending", "pending.told")
    assert all(not state.runs(name) for name in names), "the end of time leaves no state"


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_both_sides_share_holders(seed: int) -> None:
    play(scripted(seed, shared_holders=True))


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS)
def test_self_join(seed: int) -> None:
    play(scripted(seed, self_join=True))


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS, st.lists(st.sampled_from([None, "a", "b"]), max_size=6))
def test_static_table(seed: int, keys: list[str | None]) -> None:
    script = scripted(seed)
    table = [Row(key, i % 4, MIN_TIME, INF) for i, key in enumerate(keys)]
    script.rows = (script.rows[0], table)
    script.cuts = [(1, INF, True), *(c for c in script.cuts if c[0] == 0)]
    script.told = {h: e for h, e in script.told.items() if h <= 100}
    play(script)


def slide(
    rows: int, batches: int, context: dict, held: bool, window: int = 3, storage: object = None
) -> Iterator[tuple[State, list[Message]]]:
    """Play two streams with a window of some batches; yield the state after each batch."""
    storage = storage or MemoryStorage()
    description = None
    random = np.random.default_rng(7)
    for number in range(batches):
        state = State(storage, description)
        joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
        joined.open(Context(state, node=1, **context))
        said: list[Message] = []
        start = np.arange(number * rows, (number + 1) * rows)
        for port in (0, 1):
            keys = pa.array([f"key {k}" for k in random.integers(0, rows, rows)])
            columns = (keys, pa.array(start))
            if held:
                base = 1 + port * 10**9
                batch = Batch.of(columns, start, None, start + base)
                gone = start - window * rows
                gone = gone[gone >= 0]
                ends = Ends(gone + base, gone + window * rows)
            else:
                batch, ends = Batch.of(columns, start, start + window * rows), Ends()
            for message in (batch, ends, Heartbeat((number + 1) * rows)):
                said += joined.receive(port, message)
        joined.close()
        description = json.loads(json.dumps(state.describe()))
        yield State(storage, description), said


def stored_rows(state: State) -> int:
    names = ("left", "right", "left.told", "right.told")
    return sum(len(run) for name in names for run in state.runs(name))


@pytest.mark.parametrize("held", [False, True], ids=["time window", "row window"])
@pytest.mark.parametrize("merging", ["greedy", "never", "always", "maxfanin"])
def test_state_follows_the_window(held: bool, merging: str) -> None:
    sizes = [
        stored_rows(state)
        for state, _ in slide(50, 40, {"merging": Merging(merging, 4)}, held=held)
    ]
    live = 2 * 3 * 50
    bound = {"always": 2, "never": 3}.get(merging, 5)
    assert max(sizes) <= bound * live


def test_dead_runs_are_dropped_whole_without_a_merge() -> None:
    for held in (False, True):
        for state, _ in slide(50, 12, {"merging": Merging("never")}, held=held):
            assert all(len(state.runs(side)) <= 4 for side in ("left", "right"))


def test_children_are_forgotten() -> None:
    last = None
    counts = []
    for state, _ in slide(40, 40, {}, held=True):
        last = state
        counts.append(sum(len(r) for n in ("children", "children.told") for r in state.runs(n)))
    assert max(counts[20:]) <= 2 * max(counts[:20])
    assert last is not None


def test_state_files_shrink(tmp_path) -> None:
    storage = SegmentStorage(str(tmp_path), "join", fsync=False)
    state = State(storage)
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(state, node=1))
    columns = (pa.array([f"k{i}" for i in range(1000)]), pa.array(range(1000)))
    list(joined.receive(0, Batch.of(columns, np.arange(1000), np.arange(1000) + 10)))
    list(joined.receive(0, Heartbeat(500)))
    list(joined.receive(1, Heartbeat(500)))
    joined.close()
    storage.close()
    before = state.describe()
    assert sum(r["rows"] for r in before["runs"]["left"]) == 9
    again = SegmentStorage(str(tmp_path), "join", fsync=False)
    state = State(again, json.loads(json.dumps(before)))
    joined.open(Context(state, node=1))
    list(joined.receive(0, Heartbeat(2000)))
    list(joined.receive(1, Heartbeat(2000)))
    joined.close()
    again.close()
    assert "left" not in state.describe()["runs"]


def test_rows_that_no_partner_can_reach_are_not_stored() -> None:
    state = State(MemoryStorage())
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(state, node=1))
    table = Batch.of((pa.array(["a", "b"]), pa.array([1, 2])), [MIN_TIME, MIN_TIME])
    list(joined.receive(1, table))
    list(joined.receive(1, Heartbeat(INF)))
    stream = Batch.of((pa.array(["a", "c"]), pa.array([5, 6])), [3, 4])
    list(joined.receive(0, stream))
    said = list(joined.receive(0, Heartbeat(10)))
    joined.close()
    rows = [m for m in said if isinstance(m, Batch)]
    assert [r.columns[3].to_pylist() for r in rows] == [[1]]
    assert rows[0].start.tolist() == [3]
    assert not state.runs("left")
    assert len(state.runs("right")) == 1


def test_table_rows_that_start_later_still_find_the_stream() -> None:
    state = State(MemoryStorage())
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(state, node=1))
    list(joined.receive(1, Batch.of((pa.array(["a"]), pa.array([1])), [20])))
    list(joined.receive(1, Heartbeat(INF)))
    list(joined.receive(0, Batch.of((pa.array(["a"]), pa.array([5])), [3])))
    assert not [m for m in joined.receive(0, Heartbeat(10)) if isinstance(m, Batch)]
    said = [m for m in joined.receive(0, Heartbeat(30)) if isinstance(m, Batch)]
    assert [m.start.tolist() for m in said] == [[20]]


def test_results_of_one_pair_of_holders_share_a_child() -> None:
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(State(MemoryStorage()), node=1))
    for port in (0, 1):
        columns = (pa.array(["a"] * 3), pa.array([1, 2, 3]))
        list(joined.receive(port, Batch.of(columns, [0, 1, 2], None, [7 + port] * 3)))
    list(joined.receive(0, Heartbeat(5)))
    rows = [m for m in joined.receive(1, Heartbeat(5)) if isinstance(m, Batch)]
    assert sum(len(r) for r in rows) == 9
    (child,) = {h for r in rows for h in r.holder.tolist()}
    list(joined.receive(0, Ends(np.array([7]), np.array([8]))))
    list(joined.receive(0, Heartbeat(9)))
    told = [m for m in joined.receive(1, Heartbeat(9)) if isinstance(m, Ends)]
    assert told[0].holder.tolist() == [7, child]
    assert told[0].end.tolist() == [8, 8]
    list(joined.receive(1, Ends(np.array([8]), np.array([10]))))
    list(joined.receive(0, Heartbeat(12)))
    told = [m for m in joined.receive(1, Heartbeat(12)) if isinstance(m, Ends)]
    assert told[0].holder.tolist() == [8]


def test_a_run_is_dropped_when_the_holder_of_all_its_rows_is_told() -> None:
    state = State(MemoryStorage())
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(state, node=1, merging=Merging("never")))
    columns = (pa.array(["a"] * 3), pa.array([1, 2, 3]))
    list(joined.receive(0, Batch.of(columns, [0, 1, 2], None, [7, 7, 7])))
    for time in (5, 9):
        if time == 9:
            list(joined.receive(0, Ends(np.array([7]), np.array([8]))))
        list(joined.receive(0, Heartbeat(time)))
        list(joined.receive(1, Heartbeat(time)))
        joined.close()
        assert [len(run) for run in state.runs("left")] == ([3] if time == 5 else [])
        joined.open(Context(state, node=1, merging=Merging("never")))
    assert not state.runs("left.told")


def test_a_result_that_is_over_needs_no_holder() -> None:
    joined = JoinSpec(TYPES, TYPES, (KEY,), (KEY,), None).build()
    joined.open(Context(State(MemoryStorage()), node=1))
    for port in (0, 1):
        rows = Batch.of((pa.array(["a"]), pa.array([1])), [0], [4], [7 + port])
        list(joined.receive(port, rows))
    list(joined.receive(0, Heartbeat(5)))
    (rows,) = [m for m in joined.receive(1, Heartbeat(5)) if isinstance(m, Batch)]
    assert rows.holder.tolist() == [0]
    assert rows.end.tolist() == [4]


def test_a_merge_takes_in_no_more_than_the_limit() -> None:
    most = 0
    merging = Merging("always", most=10_000)
    for state, _ in slide(50, 12, {"merging": merging}, held=False, window=20):
        sizes = [run.table().nbytes for run in state.runs("left")]
        assert all(size <= 10_000 for size in sizes)
        most = max(most, len(sizes))
    assert most >= 2


def test_keys_must_have_the_same_types() -> None:
    with pytest.raises(InternalError, match="same types"):
        JoinSpec(TYPES, TYPES, (KEY,), (Column(1, pa.int64()),), None).build()
    with pytest.raises(InternalError, match="same types"):
        JoinSpec(TYPES, TYPES, (KEY,), (), None).build()


@pytest.mark.parametrize("block", [1, 2, 5, 100])
def test_blocks_expand_every_range_once(block: int) -> None:
    first, last = np.array([3, 0, 10, 4]), np.array([5, 7, 11, 8])
    got = [
        (int(i), int(p))
        for o, q in pairs.blocks(first, last, block)
        for i, p in zip(o, q, strict=True)
    ]
    wanted = [(i, p) for i in range(4) for p in range(first[i], last[i])]
    assert got == wanted
    assert all(len(o) <= block for o, _ in pairs.blocks(first, last, block))
    assert list(pairs.blocks(first[:0], last[:0], block)) == []


@pytest.mark.parametrize("stairs", [True, False])
def test_match_on_many_rows(stairs: bool) -> None:
    random = np.random.default_rng(3)

    def side(rows: int) -> tuple[pairs.Ordered, np.ndarray]:
        code = random.integers(0, 40, rows)
        keys = hash_columns([pa.array(code)], rows)
        start = random.integers(0, 1000, rows)
        end = start + (50 if stairs else random.integers(1, 100, rows))
        order = pairs.sort_order(keys.high, start)
        high, low, start, end = keys.high[order], keys.low[order], start[order], end[order]
        pure, stepped = pairs.shape(high, low, end)
        assert pure
        assert stepped == stairs
        made = pairs.Ordered(high, low, start, end, int(start.max()), int(end.min()), pure, stepped)
        return made, code[order]

    (left, left_code), (right, right_code) = side(1500), side(2000)
    got = [np.stack(p, 1) for p in pairs.match(left, right, 1000)]
    found = np.zeros((1500, 2000), int)
    np.add.at(found, tuple(np.concatenate(got).T), 1)
    wanted = (left_code[:, None] == right_code) & (left.start[:, None] < right.end)
    wanted &= right.start < left.end[:, None]
    assert (found == wanted).all()
