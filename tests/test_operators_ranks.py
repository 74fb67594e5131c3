"""Ranks and the first rows of groups against plain Python at every instant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expr.frames import Extent, RankCall
from penstock.expr.nodes import Column
from penstock.kernels.group_ranks import keepers
from penstock.kernels.keys import hash_columns
from penstock.model import INF, Batch, Heartbeat
from penstock.operators.base import Context
from penstock.operators.group_top import GroupTopSpec
from penstock.operators.rank import RankSpec
from penstock.runs.grouped import GroupedRows
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples
from tests.slices import STRATEGIES, Script, check, crowd, scripts
from tests.test_operators_sets import place

TYPES = (pa.string(), pa.int64(), pa.float64())
ORDINALS = ("row_number", "rank", "dense_rank")
X, Y = Column(1, pa.int64()), Column(2, pa.float64())
ORDERS: list[tuple] = [
    ((X, True, False),),
    ((X, False, True), (Y, True, True)),
    ((Y, False, False),),
    (),
]
values = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, 0.0, 1.5]),
)


def groups_of(rows: Sequence[tuple], partition: tuple, order: tuple) -> list[tuple[list, list]]:
    """Return the groups of a snapshot in order, and the keys by which peers are equal."""
    groups: dict[tuple, list[tuple]] = {}
    for row in rows:
        groups.setdefault(tuple(row[i] for i in partition), []).append(row)

    def asked(row: tuple) -> tuple:
        return tuple(place(row[c.index], down, nulls) for c, down, nulls in order)

    def whole(row: tuple) -> tuple:
        return asked(row) + tuple(place(v, False, True) for v in row)

    found = [sorted(group, key=whole) for group in groups.values()]
    return [(group, [asked(row) for row in group]) for group in found]


def number(by: str, keys: list, at: int) -> int:
    if by == "row_number":
        return at + 1
    return keys.index(keys[at]) + 1 if by == "rank" else len(set(keys[: at + 1]))


def first_of_groups(
    rows: Sequence[tuple], partition: tuple, order: tuple, by: str, limit: int, shown: bool
) -> list[tuple]:
    return [
        (*row, number(by, keys, at)) if shown else row
        for group, keys in groups_of(rows, partition, order)
        for at, row in enumerate(group)
        if number(by, keys, at) <= limit
    ]


@settings(deadline=None, max_examples=examples(200))
@given(
    scripts(values),
    st.sampled_from(ORDERS),
    st.sampled_from(ORDINALS),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([(), (0,), (0, 2)]),
)
def test_the_first_rows_of_groups(
    script: Script, order: tuple, by: str, limit: int, shown: bool, partition: tuple
) -> None:
    check(
        lambda: GroupTopSpec(TYPES, partition, order, by, limit, shown).build(),
        TYPES,
        script,
        lambda time: first_of_groups(script.snapshot(0, time), partition, order, by, limit, shown),
    )


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("by", ORDINALS)
@pytest.mark.parametrize("seed", range(4))
def test_the_first_of_crowds(seed: int, by: str, shown: bool) -> None:
    script = crowd(lambda c: (c.choice("abc"), c.randrange(10), float(c.randrange(3))), 1, seed)
    order, limit = ORDERS[seed % len(ORDERS)], 1 + 3 * seed
    check(
        lambda: GroupTopSpec(TYPES, (0,), order, by, limit, shown).build(),
        TYPES,
        script,
        lambda time: first_of_groups(script.snapshot(0, time), (0,), order, by, limit, shown),
    )


CALLS = (
    RankCall("row_number", (), Extent("range", None, 0), pa.int64()),
    RankCall("dense_rank", (), Extent("range", None, 0), pa.int64()),
    RankCall("sum", (X,), Extent("rows", -1, 1), pa.int64()),
    RankCall("count", (), Extent("range", 0, None), pa.int64()),
    RankCall("max", (X,), Extent("rows", 1, 2), pa.int64()),
    RankCall("lead", (X, Column(1, pa.int64())), Extent("range", None, 0), pa.int64(), 2),
)


def ranked(rows: Sequence[tuple], partition: tuple, order: tuple) -> list[tuple]:
    found = []
    for group, keys in groups_of(rows, partition, order):
        xs = [row[1] for row in group]
        for at, row in enumerate(group):
            near = [x for x in xs[max(at - 1, 0) : at + 2] if x is not None]
            behind = [x for x in xs[at + 1 : at + 3] if x is not None]
            more: tuple[Any, ...] = (
                at + 1,
                number("dense_rank", keys, at),
                sum(near) if near else None,
                len(group) - keys.index(keys[at]),
                max(behind, default=None),
                xs[at + 2] if at + 2 < len(xs) else row[1],
            )
            found.append(row + more)
    return found


@settings(deadline=None, max_examples=examples(150))
@given(scripts(values), st.sampled_from(ORDERS), st.sampled_from([(), (0,), (0, 2)]))
def test_functions_over_snapshots(script: Script, order: tuple, partition: tuple) -> None:
    check(
        lambda: RankSpec(TYPES, partition, order, CALLS).build(),
        TYPES,
        script,
        lambda time: ranked(script.snapshot(0, time), partition, order),
    )


EXTENTS = [(-2, 1), (0, 2), (None, -1), (1, None), (1, 3), (-4, -2), (-(2**61), 2**61), (None, 2)]


def within(rows: Sequence[tuple], order: tuple, extent: tuple[int | None, int | None]) -> list:
    """Count values and rows whose key is so near; a null has its peers, and what has no bound."""
    ((_, down, _),) = order
    low, high = extent
    found = []
    for group, _ in groups_of(rows, (0,), order):
        for at, row in enumerate(group):
            near = []
            for i, other in enumerate(group):
                if row[1] is None or other[1] is None:
                    inside = row[1] is other[1] or (low if i < at else high) is None
                else:
                    apart = (row[1] - other[1]) * (1 if down else -1)
                    inside = (low is None or apart >= low) and (high is None or apart <= high)
                near += [other] * inside
            values = sum(other[1] is not None for other in near)
            found.append((*row, values, len(near)))
    return found


NEAR = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, 1, 2, 3, 5, 9, -(2**63), 2**63 - 1]),
    st.sampled_from([0.0, 1.5]),
)


@settings(deadline=None, max_examples=examples(150))
@given(
    scripts(NEAR),
    st.sampled_from(EXTENTS),
    st.booleans(),
    st.booleans(),
)
def test_ranges_with_a_distance(
    script: Script, extent: tuple[int | None, int | None], down: bool, nulls: bool
) -> None:
    order, shape = ((X, down, nulls),), Extent("range", *extent)
    calls = (RankCall("count", (X,), shape, pa.int64()), RankCall("count", (), shape, pa.int64()))

    check(
        lambda: RankSpec(TYPES, (0,), order, calls).build(),
        TYPES,
        script,
        lambda time: within(script.snapshot(0, time), order, extent),
    )


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32), st.sampled_from(ORDINALS), st.integers(1, 4))
def test_only_rows_that_cannot_come_in_are_forgotten(seed: int, by: str, limit: int) -> None:
    chance = np.random.default_rng(seed)
    rows = int(chance.integers(1, 40))
    code = np.sort(chance.integers(0, 3, rows))
    new = np.append(True, (code[1:] != code[:-1]) | chance.choice([True, False], rows - 1))
    rank, peers = np.arange(rows), np.cumsum(new) - 1
    end, sure = chance.integers(0, 9, rows), chance.choice([True, True, False], rows)
    keep = keepers(code, end, sure, rank, peers, by, limit, 1 << 20)
    for row in range(rows):
        better = sure & (code == code[row]) & (end >= end[row])
        better &= rank < rank[row] if by == "row_number" else peers < peers[row]
        count = len(set(peers[better].tolist())) if by == "dense_rank" else int(better.sum())
        assert keep[row] == (count < limit)


def test_of_rows_that_never_leave_only_the_first_are_kept() -> None:
    state = State(MemoryStorage())
    operator = GroupTopSpec(TYPES, (0,), ORDERS[0], "row_number", 3, True).build()
    operator.open(Context(state))
    for time in range(20):
        columns = [pa.array(["a"] * 50), pa.array(range(50)), pa.array([0.5] * 50)]
        rows = Batch.of(columns, np.full(50, time))
        list(operator.receive(0, rows))
        list(operator.receive(0, Heartbeat(time + 1)))
    operator.close()
    kept = state.runs("groups")
    assert sum(len(run) for run in kept) <= 3 * len(kept)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=3), min_size=1),
        max_size=8,
    ),
    st.sampled_from(STRATEGIES),
)
def test_rows_by_key(writes: list[dict[int, list[int]]], merging: Merging) -> None:
    """What was written last of a key is there, in its order, also after a restart."""
    state, known = State(MemoryStorage()), dict[int, list[int]]()
    for write in writes:
        rows = GroupedRows(state, "g", [pa.int64()], merging)
        hashed = hash_columns([pa.array(sorted(write), pa.int64())], len(write))
        order = np.lexsort((hashed.low, hashed.high))
        numbers = [sorted(write)[i] for i in order]
        some = [(at, v) for at, key in enumerate(numbers) for v in write[key]]
        owner = np.array([at for at, _ in some], np.int64)
        column = pa.array([v for _, v in some], pa.int64())
        rows.put(hashed.take(order), owner, Batch.of([column], np.zeros(len(some))))
        rows.save()
        known |= write
        again = GroupedRows(state, "g", [pa.int64()], merging)
        owner, found = again.get(hash_columns([pa.array(range(6), pa.int64())], 6))
        listed = found.columns[0].to_pylist()
        for key in range(6):
            mine = [v for at, v in zip(owner.tolist(), listed, strict=True) if at == key]
            assert mine == known.get(key, [])


def test_the_largest_time_is_no_end() -> None:
    """Rows for ever stay when time is over."""
    operator = GroupTopSpec(TYPES, (), ORDERS[0], "rank", 1, False).build()
    operator.open(Context(State(MemoryStorage())))
    rows = Batch.of([pa.array(["a"]), pa.array([1]), pa.array([0.5])], [5])
    found = [*operator.receive(0, rows), *operator.receive(0, Heartbeat(INF))]
    assert [type(message).__name__ for message in found] == ["Batch", "Heartbeat"]
