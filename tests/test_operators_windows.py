"""Window operators against brute-force definitions, under random cuts into micro-batches."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import NotSupportedError
from penstock.kernels.keys import Keys
from penstock.kernels.order import (
    dense_ranks,
    group_order,
    key_ranges,
    search_within,
    sort_indices,
    time_order,
)
from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat
from penstock.operators.base import Context, Operator
from penstock.operators.row_window import RowWindowSpec
from penstock.operators.session_window import SessionWindowSpec
from penstock.operators.time_window import TimeWindowSpec, stamp
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from penstock.windows import Bounds, WindowSpec
from tests.examples import examples

TYPES = (pa.string(), pa.int64())
MERGINGS = (Merging("greedy", 2), Merging("always"), Merging("never"), Merging("maxfanin", 3))

Element = tuple[int, str | None, int]  # time, group, value
Row = tuple[tuple[Any, ...], int, int]


def batch_of(elements: list[Element], seq: list[int] | None) -> Batch:
    columns = (
        pa.array([e[1] for e in elements], TYPES[0]),
        pa.array([e[2] for e in elements], TYPES[1]),
    )
    return Batch.of(columns, [e[0] for e in elements], seq=seq)


def run(
    make: Callable[[], Operator],
    cuts: list[list[Batch]],
    beats: list[int],
    merging: Merging,
) -> list[Row]:
    """Feed each cut to a fresh operator on the same state; return rows with their final ends."""
    storage = MemoryStorage()
    description: dict[str, Any] = {}
    rows: list[tuple[tuple[Any, ...], int, int, int]] = []
    told: dict[int, int] = {}
    passed = MIN_TIME
    for batches, beat in zip(cuts, beats, strict=True):
        state = State(storage, json.loads(json.dumps(description)))
        operator = make()
        operator.open(Context(state, node=3, shard=1, shards=2, merging=merging))
        for message in [*batches, Heartbeat(beat)]:
            for out in operator.receive(0, message):
                if isinstance(out, Batch):
                    assert out.seq is None
                    assert (out.start >= passed).all()
                    assert (out.start < out.end).all()
                    values = zip(*(c.to_pylist() for c in out.columns), strict=True)
                    times = zip(
                        out.start.tolist(), out.end.tolist(), out.holder.tolist(), strict=True
                    )
                    rows += [(v, *t) for v, t in zip(values, times, strict=True)]
                elif isinstance(out, Ends):
                    assert len(out)
                    known = {r[3] for r in rows}
                    for holder, end in zip(out.holder.tolist(), out.end.tolist(), strict=True):
                        assert passed <= end < beat
                        assert holder in known
                        assert holder not in told
                        told[holder] = end
                else:
                    assert passed <= out.time <= beat
                    passed = out.time
        operator.close()
        description = state.describe()
    final = [(v, s, min(e, told.get(h, INF))) for v, s, e, h in rows]
    return [r for r in final if r[1] < r[2]]


@st.composite
def streams(draw: Any, gap: int = 4) -> tuple[list[list[Element]], list[int]]:
    """Draw micro-batches of elements, and heartbeats that keep their promise."""
    element = st.tuples(
        st.integers(0, 8), st.sampled_from(["a", "b", "c", None]), st.integers(0, 2)
    )
    sizes = draw(st.lists(st.lists(element, max_size=10), min_size=1, max_size=6))
    cuts, base = [], draw(st.integers(-10, 0))
    for cut in sizes:
        cuts.append([(base + t, g, v) for t, g, v in cut])
        base += draw(st.integers(0, gap))
    beats = []
    for i in range(len(cuts)):
        later = [e[0] for c in cuts[i + 1 :] for e in c]
        beat = min(later) - draw(st.integers(0, 2)) if later else INF
        beats.append(max([beat, *beats]))
    return cuts, beats


def feed(cuts: list[list[Element]], raw: bool) -> list[list[Batch]]:
    """Make one batch per cut; raw streams carry arrival numbers."""
    fed, seq = [], 0
    for cut in cuts:
        numbers = list(range(seq, seq + len(cut)))
        seq += len(cut)
        fed.append([batch_of(cut, numbers if raw else None)])
    return fed


def in_order(cuts: list[list[Element]], raw: bool, origin: int | None) -> list[Element]:
    elements = [e for cut in cuts for e in cut if origin is None or e[0] >= origin]
    if raw:
        return sorted(elements, key=lambda e: e[0])
    return sorted(elements, key=lambda e: (e[0], e[1] is not None, e[1] or "", e[2]))


def by_group(elements: list[Element], partitioned: bool) -> list[list[Element]]:
    groups: dict[Any, list[Element]] = defaultdict(list)
    for e in elements:
        groups[e[1] if partitioned else None].append(e)
    return list(groups.values())


def expect_rows(elements: list[list[Element]], n: int, m: int, bound: int | None) -> list[Row]:
    """Return the validity of each element as the semantics' table says it, element by element."""
    result = []
    for group in elements:
        ticks = [(i, group[i - 1][0]) for i in range(1, len(group) + 1) if i % m == 0]
        for i, (t, g, v) in enumerate(group, 1):
            start = next((time for j, time in ticks if j >= i), INF)
            end = next((time for j, time in ticks if j >= i + n), INF)
            if bound is not None:
                end = min(end, t + bound)
            if start < end:
                result.append(((g, v), start, end))
    return result


def expect_sessions(elements: list[list[Element]], gap: int) -> list[Row]:
    result = []
    for group in elements:
        for i, (t, g, v) in enumerate(group):
            last = t
            for later, _, _ in group[i + 1 :]:
                if later - last >= gap:
                    break
                last = later
            result.append(((g, v), t, last + gap))
    return result


@settings(max_examples=examples(120), deadline=None)
@given(
    stream=streams(),
    n=st.integers(1, 6),
    m=st.integers(1, 4),
    bound=st.none() | st.integers(1, 8),
    partitioned=st.booleans(),
    raw=st.booleans(),
    origin=st.none() | st.integers(-8, 8),
    merging=st.sampled_from(MERGINGS),
)
def test_row_window(
    stream: tuple[list[list[Element]], list[int]],
    n: int,
    m: int,
    bound: int | None,
    partitioned: bool,
    raw: bool,
    origin: int | None,
    merging: Merging,
) -> None:
    cuts, beats = stream
    spec = WindowSpec(
        rows=n,
        rows_slide=m if m > 1 else None,
        range=bound,
        partition_by=(0,) if partitioned else (),
        origin=origin,
    )
    got = run(lambda: RowWindowSpec(TYPES, spec).build(), feed(cuts, raw), beats, merging)
    groups = by_group(in_order(cuts, raw, origin), partitioned)
    assert Counter(got) == Counter(expect_rows(groups, n, m, bound))


def test_row_window_keeps_little() -> None:
    """The state of a large window over one group is a handful of numbers."""
    storage = MemoryStorage()
    state = State(storage)
    spec = WindowSpec(rows=100_000)
    told = 0
    first = Context(State(MemoryStorage()), node=1).new_holders(1)[0]
    for i in range(300):
        operator = RowWindowSpec((pa.int64(),), spec).build()
        operator.open(Context(state, node=1))
        time = np.arange(i * 1000, (i + 1) * 1000)
        list(operator.receive(0, Batch.of((pa.array(time),), time, seq=time)))
        for out in operator.receive(0, Heartbeat((i + 1) * 1000)):
            if isinstance(out, Ends):
                told += len(out)
                assert (out.end == out.holder - first + 100_000).all()
        operator.close()
    assert told == 200_000
    kept = sum(len(r) for name in ("stretches", "pending", "waiting.0") for r in state.runs(name))
    assert kept < 200


def test_row_window_of_many_groups() -> None:
    """Groups that appear in different batches find their waiting rows."""
    random = np.random.default_rng(7)
    spec = WindowSpec(rows=3, partition_by=(0,))
    group = random.integers(0, 500, 20_000)
    time = np.sort(random.integers(0, 5_000, 20_000))
    names = pa.array([f"g{i}" for i in range(500)]).take(pa.array(group))
    rows = Batch.of((names, pa.array(np.arange(20_000))), time, seq=np.arange(20_000))
    cuts, beats, at = [], [], 0
    while at < 20_000:
        to = min(20_000, at + int(random.integers(1, 1500)))
        cuts.append([rows.slice(at, to)])
        beats.append(int(time[to]) if to < 20_000 else INF)
        at = to
    got = {
        v[1]: (s, e)
        for v, s, e in run(lambda: RowWindowSpec(TYPES, spec).build(), cuts, beats, Merging())
    }
    for g in range(500):
        mine = np.flatnonzero(group == g)
        for i, row in enumerate(mine):
            end = int(time[mine[i + 3]]) if i + 3 < len(mine) else INF
            if end > time[row]:
                assert got.pop(int(row)) == (int(time[row]), end)
    assert not got


def test_row_window_refuses_two_slides() -> None:
    with pytest.raises(NotSupportedError, match="slide by rows or by time"):
        RowWindowSpec(TYPES, WindowSpec(rows=3, range=4, slide=2)).build()


@settings(max_examples=examples(120), deadline=None)
@given(
    stream=streams(gap=8),
    gap=st.integers(1, 6),
    partitioned=st.booleans(),
    raw=st.booleans(),
    origin=st.none() | st.integers(-8, 8),
    merging=st.sampled_from(MERGINGS),
)
def test_session_window(
    stream: tuple[list[list[Element]], list[int]],
    gap: int,
    partitioned: bool,
    raw: bool,
    origin: int | None,
    merging: Merging,
) -> None:
    cuts, beats = stream
    spec = WindowSpec(session=gap, partition_by=(0,) if partitioned else (), origin=origin)
    got = run(lambda: SessionWindowSpec(TYPES, spec).build(), feed(cuts, raw), beats, merging)
    groups = by_group(in_order(cuts, raw, origin), partitioned)
    assert Counter(got) == Counter(expect_sessions(groups, gap))


def test_session_ends_without_new_rows() -> None:
    """A silent group's session is told when the heartbeat passes its end, not before."""
    spec = WindowSpec(session=5, partition_by=(0,))
    operator = SessionWindowSpec(TYPES, spec).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    list(operator.receive(0, batch_of([(1, "a", 0), (3, "a", 1)], [0, 1])))
    rows, beat = list(operator.receive(0, Heartbeat(5)))
    assert isinstance(rows, Batch)
    assert len(set(rows.holder.tolist())) == 1
    assert beat == Heartbeat(5)
    assert list(operator.receive(0, Heartbeat(8))) == [Heartbeat(8)]
    ends, _ = list(operator.receive(0, Heartbeat(9)))
    assert isinstance(ends, Ends)
    assert ends.end.tolist() == [8]


def brute_time(t: int, spec: WindowSpec) -> tuple[int, int] | None:
    """Return the validity of an element at ``t`` by trying pulses one by one."""
    origin = (spec.origin or 0) + (spec.offset or 0)
    if spec.origin is not None and t < spec.origin:
        return None
    if spec.after is not None and t < spec.after:
        return None
    if spec.before is not None and t > spec.before:
        return None
    if spec.now:
        return t, t + 1
    if spec.fixed is not None:
        return t, next(x for x in range(t + 1, t + 200) if (x - origin) % spec.fixed == 0)
    if spec.slide is None:
        return t, INF if spec.range in (None, INF) else t + spec.range

    def pulse(x: int) -> int:
        return next(p for p in range(x, x + 200) if (p - origin) % spec.slide == 0)

    if spec.hop is not None:
        start, end = pulse(t + 1), pulse(t + spec.hop + 1)
        return (start, end) if start < end else None
    end = INF if spec.range in (None, INF) else pulse(t + spec.range)
    return (pulse(t), end) if pulse(t) < end else None


@st.composite
def time_specs(draw: Any) -> WindowSpec:
    origin = draw(st.none() | st.integers(-20, 20))
    kinds = ["range", "slide", "growing", "hop", "now", "fixed", "land", "all"]
    kind = draw(st.sampled_from(kinds))
    size, slide = draw(st.integers(1, 25)), draw(st.integers(1, 12))
    match kind:
        case "range":
            return WindowSpec(range=size, origin=origin)
        case "slide":
            return WindowSpec(range=size, slide=slide, origin=origin)
        case "hop":
            offset = draw(st.none() | st.integers(0, slide - 1))
            return WindowSpec(hop=size, slide=slide, offset=offset, origin=origin)
        case "growing":
            return WindowSpec(range=INF, slide=slide, origin=origin)
        case "now":
            return WindowSpec(now=True, origin=origin)
        case "fixed":
            return WindowSpec(fixed=slide, origin=origin)
        case "land":
            return WindowSpec(
                after=draw(st.none() | st.integers(-20, 10)),
                before=draw(st.none() | st.integers(-10, 20)),
            )
    return WindowSpec(origin=origin)


@settings(max_examples=examples(120), deadline=None)
@given(spec=time_specs(), times=st.lists(st.integers(-40, 40), max_size=30))
def test_time_window(spec: WindowSpec, times: list[int]) -> None:
    cut = [(t, "a", i) for i, t in enumerate(times)]
    got = run(lambda: TimeWindowSpec(spec).build(), feed([cut], True), [INF], Merging())
    wanted = [((g, v), brute_time(t, spec)) for t, g, v in cut]
    assert Counter(got) == Counter((v, *when) for v, when in wanted if when is not None)


@pytest.mark.parametrize("origin", [None, -3, 0, 5])
def test_sliding_time_window_exhaustively(origin: int | None) -> None:
    times = list(range(-9, 10))
    for slide in range(1, 6):
        for size in range(1, 12):
            spec = WindowSpec(range=size, slide=slide, origin=origin)
            rows = stamp(batch_of([(t, "a", t) for t in times], None), spec)
            got = zip(
                rows.columns[1].to_pylist(), rows.start.tolist(), rows.end.tolist(), strict=True
            )
            wanted = [(t, brute_time(t, spec)) for t in times]
            assert list(got) == [(t, *when) for t, when in wanted if when is not None]


@pytest.mark.parametrize("origin", [None, -3, 0, 5])
@pytest.mark.parametrize("offset", [None, 2])
def test_hopping_time_window_exhaustively(origin: int | None, offset: int | None) -> None:
    """A window [w - T, w) that ends at a pulse w holds exactly the elements in it."""
    times = list(range(-9, 10))
    for slide in range(1, 6):
        for size in range(1, 12):
            spec = WindowSpec(hop=size, slide=slide, offset=offset, origin=origin)
            batch = batch_of([(t, "a", t) for t in times], None)
            rows = stamp(batch, spec)
            got = zip(
                rows.columns[1].to_pylist(), rows.start.tolist(), rows.end.tolist(), strict=True
            )
            wanted = [(t, brute_time(t, spec)) for t in times]
            assert list(got) == [(t, *when) for t, when in wanted if when is not None]
            shown = stamp(batch, replace(spec, bounds=Bounds(pa.int64(), size)))
            _, value, began, ended = (c.to_pylist() for c in shown.columns)
            got = zip(value, began, ended, shown.start.tolist(), shown.end.tolist(), strict=True)
            first = (origin or 0) + (offset or 0)
            assert sorted(got) == sorted(
                (t, pulse - size, pulse, pulse, pulse + slide)
                for t in times
                if origin is None or t >= origin
                for pulse in range(-40, 60)
                if (pulse - first) % slide == 0 and pulse - size <= t < pulse
            )


def test_a_window_starts_no_earlier_than_time() -> None:
    spec = WindowSpec(hop=100, slide=100, bounds=Bounds(pa.int64(), 100))
    rows = stamp(batch_of([(MIN_TIME + 1, "a", 0)], None), spec)
    (began,), (ended,) = (c.to_pylist() for c in rows.columns[2:])
    assert began == MIN_TIME
    assert ended % 100 == 0
    assert MIN_TIME < ended <= MIN_TIME + 101


def test_time_window_worked_example_and_passing_on() -> None:
    operator = TimeWindowSpec(WindowSpec(range=10, slide=4)).build()
    (rows,) = operator.receive(0, batch_of([(5, "a", 0)], [0]))
    assert isinstance(rows, Batch)
    assert (rows.start.tolist(), rows.end.tolist(), rows.seq) == ([8], [16], None)
    ends = Ends(np.array([1]), np.array([2]))
    assert list(operator.receive(0, ends)) == [ends]
    assert list(operator.receive(0, Heartbeat(3))) == [Heartbeat(3)]


@pytest.mark.parametrize(
    "spec",
    [
        WindowSpec(range=100),
        WindowSpec(range=100, slide=7),
        WindowSpec(fixed=1000),
        WindowSpec(now=True),
        WindowSpec(range=INF - 3, slide=5),
        WindowSpec(hop=100, slide=7, bounds=Bounds(pa.int64(), 100)),
        WindowSpec(hop=2**61 - 1, slide=2**61 - 1, bounds=Bounds(pa.int64(), 2**61 - 1)),
        WindowSpec(hop=7, slide=2**60, bounds=Bounds(pa.int64(), 7)),
    ],
)
def test_time_window_near_the_end_of_time(spec: WindowSpec) -> None:
    operator = TimeWindowSpec(spec).build()
    for out in operator.receive(0, batch_of([(INF - 1, "a", 0), (INF - 50, "a", 1)], [0, 1])):
        assert isinstance(out, Batch)
        assert (out.start < out.end).all()
        assert (out.start >= INF - 50).all()


CELLS: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int64(), st.integers(-3, 3)),
    "big": (pa.int64(), st.sampled_from([-(2**63), 2**63 - 1, 0])),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf")])),
    "string": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "z"])),
    "bool": (pa.bool_(), st.booleans()),
    "time": (pa.timestamp("us"), st.integers(-3, 3)),
    "date": (pa.date32(), st.integers(0, 3)),
}


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_sort_indices_and_ranks(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=3))
    rows = data.draw(st.integers(0, 12))
    lists = [
        data.draw(st.lists(st.none() | CELLS[k][1], min_size=rows, max_size=rows)) for k in kinds
    ]
    columns = [pa.array(x, CELLS[k][0]) for x, k in zip(lists, kinds, strict=True)]
    down = data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    first = data.draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    order = list(range(rows))
    for values, is_down, is_first in reversed(list(zip(lists, down, first, strict=True))):
        some = [i for i in order if values[i] is not None]
        some.sort(key=lambda i: _place(values[i], is_down))
        nulls = [i for i in order if values[i] is None]
        order = nulls + some if is_first else some + nulls
    assert sort_indices(columns, down, first).tolist() == order
    ranks = dense_ranks(columns, down, first)
    cells = [tuple(x[i] for x in lists) for i in range(rows)]
    distinct = list(dict.fromkeys(cells[i] for i in order))
    assert ranks.tolist() == [distinct.index(c) for c in cells]


def _place(value: Any, down: bool) -> Any:
    """Return a key that sorts stably in either direction."""
    if isinstance(value, str):
        data = value.encode()
        return [256 - b for b in data] + [257] if down else list(data)
    return -value if down else value


def test_nan_sorts_last() -> None:
    column = pa.array([float("nan"), 1.0, None, float("inf")])
    assert sort_indices([column]).tolist() == [2, 1, 3, 0]
    assert sort_indices([column], [True], [False]).tolist() == [0, 3, 1, 2]


def test_keys_that_share_a_lane() -> None:
    high = np.array([5, 5, 5, 9, 5], np.uint64)
    low = np.array([2, 1, 2, 7, 1], np.uint64)
    order, first = group_order(Keys(high, low), None)
    assert order.tolist() == [1, 4, 0, 2, 3]
    assert first.tolist() == [0, 2, 4]
    wanted = Keys(np.array([5, 5, 5, 9], np.uint64), np.array([0, 1, 2, 7], np.uint64))
    begin, end = key_ranges(high[order], low[order], wanted)
    assert (end - begin).tolist() == [0, 2, 2, 1]
    assert begin[1:].tolist() == [0, 2, 4]


def test_search_within_and_time_order() -> None:
    values = np.array([1, 3, 5, 0, 4])
    first, last = np.array([0, 3, 0, 2]), np.array([3, 5, 3, 2])
    found = search_within(values, first, last, np.array([3, 9, 0, 1]))
    assert found.tolist() == [1, 5, 0, 2]
    assert time_order(np.array([1, 2, 2]), np.array([0, 1, 2]), ()) is None
    order = time_order(np.array([2, 1, 2]), None, (pa.array(["b", "c", None]),))
    assert order is not None
    assert order.tolist() == [1, 2, 0]
