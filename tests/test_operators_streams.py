"""Stateless, relation-to-stream and output operators against the definitions, under random cuts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InternalError
from penstock.expr.nodes import Column
from penstock.kernels.changes import cancel, shared_times
from penstock.kernels.keys import hash_columns
from penstock.model import INF, MIN_TIME, Batch, Ends, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.filter import FilterSpec
from penstock.operators.output import OutputOperator, OutputSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.to_stream import ToStreamSpec
from penstock.operators.union import UnionSpec
from penstock.runs.merging import Merging
from penstock.runs.state import MemoryStorage, State
from tests.examples import examples

TYPES = (pa.string(), pa.float64())
MERGINGS = (Merging("greedy", 2), Merging("always"), Merging("never"), Merging("maxfanin", 3))
VALUES = [("a", 1.0), ("a", None), (None, 0.0), ("b", 2.0)]

Value = tuple[Any, ...]
Life = tuple[Value, int, int]  # value, start, end
Cut = tuple[list[Message], int]  # messages, then the heartbeat


@st.composite
def relations(draw: Any) -> tuple[list[Life], list[Cut]]:
    """Draw a relation and a stream of messages that describes it.

    A row's end is known at once, or bounded and told later through a holder that rows may share.
    """
    lives: list[Life] = []
    rows: list[tuple[Value, int, int, int]] = []
    told: dict[int, int] = {}
    holders: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 14))):
        value = draw(st.sampled_from(VALUES))
        start = draw(st.integers(0, 12))
        end = draw(st.sampled_from([INF, *range(start, start + 7)]))
        how = draw(st.sampled_from(["known", "told", "bounded", "shared"]))
        lives.append((value, start, end))
        if how == "known" or (how == "bounded" and end == INF):
            rows.append((value, start, end, 0))
            continue
        holder = len(told) + 1
        if how == "shared":
            holder = holders.setdefault(end, holder)
        told[holder] = end
        bound = INF if how != "bounded" else end + draw(st.integers(0, 3))
        rows.append((value, start, bound, holder))
    beats = sorted(draw(st.lists(st.integers(0, 20), max_size=5)))
    beats += [INF] * draw(st.integers(1, 2))
    cuts: list[Cut] = []
    passed = MIN_TIME
    for beat in beats:
        early = draw(st.integers(0, 3)) if beat < INF else 0
        mine = [r for r in rows if r[1] < beat + early]
        rows = [r for r in rows if r[1] >= beat + early]
        waiting = {r[3] for r in rows}
        now = {h: e for h, e in told.items() if passed <= e < beat or (e < passed and h in told)}
        told = {h: e for h, e in told.items() if h not in now}
        assert not (set(now) & waiting) or beat < INF
        messages: list[Message] = [batch_of(mine)] if mine else []
        if now:
            items = sorted(now.items())
            messages.append(Ends(np.array([h for h, _ in items]), np.array([e for _, e in items])))
        cuts.append((messages, beat))
        passed = beat
    return [(v, s, e) for v, s, e in lives if s < e], cuts


def batch_of(rows: list[tuple[Value, int, int, int]]) -> Batch:
    return Batch.of(
        [pa.array([r[0][i] for r in rows], t) for i, t in enumerate(TYPES)],
        [r[1] for r in rows],
        [r[2] for r in rows],
        [r[3] for r in rows],
    )


def run(
    make: Any, cuts: list[Cut], merging: Merging, now: int = MIN_TIME
) -> Iterator[tuple[Operator, Batch, int]]:
    """Feed each cut to a fresh operator on the same state; yield (operator, batch, heartbeat)."""
    storage = MemoryStorage()
    description: dict[str, Any] = {}
    passed = MIN_TIME
    for messages, beat in cuts:
        state = State(storage, json.loads(json.dumps(description)))
        operator = make()
        operator.open(Context(state, node=1, merging=merging, block=7, now=min(now, beat)))
        for message in [*messages, Heartbeat(beat)]:
            for out in operator.receive(0, message):
                if isinstance(out, Batch):
                    assert not out.holder.any()
                    yield operator, out, beat
                else:
                    assert isinstance(out, Heartbeat)
                    assert passed <= out.time <= beat
                    passed = out.time
        operator.close()
        description = state.describe()


def values_of(batch: Batch) -> list[Value]:
    return list(zip(*(c.to_pylist() for c in batch.columns), strict=True))


def elements(make: Any, cuts: list[Cut], merging: Merging) -> Counter[tuple[Value, int]]:
    """Run an operator that makes a stream; check that its elements are final when they leave."""
    got: Counter[tuple[Value, int]] = Counter()
    passed, before = MIN_TIME, MIN_TIME
    for _, out, beat in run(make, cuts, merging):
        if beat != passed:
            before, passed = passed, beat
        assert len(out)
        assert (out.end == INF).all()
        assert out.seq is None
        assert (out.start < beat).all()
        assert (out.start >= before).all() or before == INF
        got.update(zip(values_of(out), out.start.tolist(), strict=True))
    return got


def snapshot(lives: list[Life], t: int) -> Counter[Value]:
    return Counter(v for v, s, e in lives if s <= t < e)


def instants(lives: list[Life]) -> range:
    """Return all finite instants at which something may happen."""
    times = [t for _, s, e in lives for t in (s, e) if t < INF]
    return range(min(times, default=0), max(times, default=-1) + 1)


@settings(max_examples=examples(100), deadline=None)
@given(relation=relations(), merging=st.sampled_from(MERGINGS))
def test_istream_and_dstream(relation: tuple[list[Life], list[Cut]], merging: Merging) -> None:
    lives, cuts = relation
    born: Counter[tuple[Value, int]] = Counter()
    died: Counter[tuple[Value, int]] = Counter()
    for t in instants(lives):
        now, before = snapshot(lives, t), snapshot(lives, t - 1)
        born.update({(v, t): n for v, n in (now - before).items()})
        died.update({(v, t): n for v, n in (before - now).items()})
    assert elements(lambda: ToStreamSpec(TYPES, "istream", ()).build(), cuts, merging) == born
    assert elements(lambda: ToStreamSpec(TYPES, "dstream", ()).build(), cuts, merging) == died


def last_change(lives: list[Life]) -> int:
    times = {t for _, s, e in lives for t in (s, e) if t < INF}
    return max((t for t in times if snapshot(lives, t) != snapshot(lives, t - 1)), default=-1)


@settings(max_examples=examples(100), deadline=None)
@given(
    relation=relations(),
    pulses=st.lists(st.tuples(st.integers(1, 6), st.integers(-4, 4)), max_size=2),
    merging=st.sampled_from(MERGINGS),
)
def test_rstream(
    relation: tuple[list[Life], list[Cut]], pulses: list[tuple[int, int]], merging: Merging
) -> None:
    lives, cuts = relation
    last = last_change(lives)
    passed = max([w for _, w in cuts if w < INF], default=0)
    wanted: Counter[tuple[Value, int]] = Counter()
    for t in range(0, max(last + 1, passed)):
        now = snapshot(lives, t)
        if pulses:
            shown = any((t - origin) % slide == 0 for slide, origin in pulses)
        else:
            shown = now != snapshot(lives, t - 1)
        if shown:
            wanted.update({(v, t): n for v, n in now.items()})
    got = elements(lambda: ToStreamSpec(TYPES, "rstream", tuple(pulses)).build(), cuts, merging)
    assert got == wanted


def test_rstream_blocks_and_long_gaps() -> None:
    """Pulses at which nothing is alive cost nothing, and no output batch exceeds a block."""
    operator = ToStreamSpec(TYPES, "rstream", ((1, 0),)).build()
    operator.open(Context(State(MemoryStorage()), block=4))
    rows = [(VALUES[0], 0, 10, 0), (VALUES[3], 10**15, 10**15 + 5, 0)]
    assert list(operator.receive(0, batch_of(rows))) == []
    out = [m for m in operator.receive(0, Heartbeat(INF)) if isinstance(m, Batch)]
    assert [len(b) for b in out] == [4, 4, 4, 3]
    assert max(int(b.start.max()) for b in out) == 10**15 + 4


def test_rstream_of_rows_that_are_valid_since_ever() -> None:
    """Pulses begin with the first finite start."""
    operator = ToStreamSpec(TYPES, "rstream", ((2, 0),)).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    list(operator.receive(0, batch_of([(VALUES[0], MIN_TIME, INF, 0)])))
    assert list(operator.receive(0, Heartbeat(-5))) == [Heartbeat(-5)]
    list(operator.receive(0, batch_of([(VALUES[3], 3, INF, 0)])))
    out, _ = operator.receive(0, Heartbeat(6))
    assert isinstance(out, Batch)
    assert Counter(zip(values_of(out), out.start.tolist(), strict=True)) == Counter(
        [(VALUES[0], 4), (VALUES[3], 4)]
    )


@settings(max_examples=examples(100), deadline=None)
@given(relation=relations(), merging=st.sampled_from(MERGINGS))
def test_output_intervals(relation: tuple[list[Life], list[Cut]], merging: Merging) -> None:
    lives, cuts = relation
    got: Counter[Life] = Counter()
    for _, out, beat in run(lambda: OutputSpec(TYPES, "intervals").build(), cuts, merging):
        assert (out.start < beat).all()
        got.update(zip(values_of(out), out.start.tolist(), out.end.tolist(), strict=True))
    assert got == Counter(lives)


@settings(max_examples=examples(100), deadline=None)
@given(relation=relations(), merging=st.sampled_from(MERGINGS))
def test_output_log(relation: tuple[list[Life], list[Cut]], merging: Merging) -> None:
    lives, cuts = relation
    got: Counter[tuple[Value, int]] = Counter()
    for _, out, beat in run(lambda: OutputSpec(TYPES, "log").build(), cuts, merging):
        assert (out.start < beat).all()
        assert out.columns[-1].type == pa.int8()
        assert len(out)
        got.update(zip(values_of(out), out.start.tolist(), strict=True))
    wanted: Counter[tuple[Value, int]] = Counter()
    for t in instants(lives):
        now, before = snapshot(lives, t), snapshot(lives, t - 1)
        wanted.update({((*v, 1), t): n for v, n in (now - before).items()})
        wanted.update({((*v, -1), t): n for v, n in (before - now).items()})
    assert got == wanted


@settings(max_examples=examples(100), deadline=None)
@given(relation=relations(), now=st.integers(0, 20), merging=st.sampled_from(MERGINGS))
def test_output_view(relation: tuple[list[Life], list[Cut]], now: int, merging: Merging) -> None:
    """The last view shown is the snapshot at ``as_of``, after every micro-batch."""
    lives, cuts = relation
    shown: Counter[Value] = Counter()
    views = 0
    for upto in range(1, len(cuts) + 1):
        operator, before = None, views
        views, shown = 0, Counter()
        for operator, out, beat in run(
            lambda: OutputSpec(TYPES, "view").build(), cuts[:upto], merging, now
        ):
            shown = Counter(values_of(out))
            views += 1
            assert isinstance(operator, OutputOperator)
            assert operator.as_of == min(beat - 1, now)
            assert shown == snapshot(lives, operator.as_of)
        assert before <= views <= upto
        assert shown == snapshot(lives, min(cuts[upto - 1][1] - 1, now))


def test_view_is_shown_whenever_its_instant_moves() -> None:
    state = State(MemoryStorage())
    seen = []
    for now, beat in ((4, 5), (7, 8), (7, 9), (9, 20), (25, 26)):
        operator = OutputSpec(TYPES, "view").build()
        operator.open(Context(state, now=now))
        if beat == 5:
            list(operator.receive(0, batch_of([(VALUES[0], 1, 12, 0)])))
        out = [m for m in operator.receive(0, Heartbeat(beat)) if isinstance(m, Batch)]
        seen.append((operator.as_of, [values_of(b) for b in out]))
        operator.close()
    one = [[VALUES[0]]]
    assert seen == [(4, one), (7, one), (7, []), (9, one), (25, [[]])]


@settings(max_examples=examples(60), deadline=None)
@given(times=st.lists(st.integers(0, 20), max_size=10), beats=st.lists(st.integers(0, 20)))
def test_output_stream(times: list[int], beats: list[int]) -> None:
    rows: list[Message] = [batch_of([(VALUES[0], t, INF, 0)]) for t in times]
    cuts: list[Cut] = [([], b) for b in sorted(beats)] + [([], INF)]
    cuts[0] = (rows, cuts[0][1])
    got = elements(lambda: OutputSpec(TYPES, "stream").build(), cuts, Merging())
    assert got == Counter((VALUES[0], t) for t in times)


def test_unknown_modes_are_our_fault() -> None:
    with pytest.raises(InternalError, match="one of stream"):
        OutputSpec(TYPES, "file").build()
    with pytest.raises(InternalError, match="istream, dstream or rstream"):
        ToStreamSpec(TYPES, "xstream", ()).build()


def test_union_remembers_heartbeats() -> None:
    state = State(MemoryStorage())
    rows = Batch.of((pa.array([1]),), [5], seq=[0])
    ends = Ends(np.array([1]), np.array([9]))

    def feed(*messages: tuple[int, Message]) -> list[Message]:
        operator = UnionSpec(2).build()
        operator.open(Context(state, node=1))
        out = [o for port, message in messages for o in operator.receive(port, message)]
        operator.close()
        return out

    first, *rest = feed((0, rows), (0, Heartbeat(5)), (1, ends))
    assert isinstance(first, Batch)
    assert (first.start.tolist(), first.seq) == ([5], None)
    assert rest == [Heartbeat(MIN_TIME), ends]
    assert feed((1, Heartbeat(3))) == [Heartbeat(3)]
    assert feed((1, Heartbeat(8))) == [Heartbeat(5)]
    assert feed((0, Heartbeat(7)), (0, Heartbeat(6))) == [Heartbeat(7), Heartbeat(7)]


def test_filter_and_project_pass_everything_else() -> None:
    keep = pa.array([True, None, False, True])
    rows = Batch.of(
        (pa.array([1, 2, 3, 4]), keep), [5, 6, 7, 8], [9, 9, 9, 10], [0, 1, 2, 3], seq=[3, 2, 1, 0]
    )
    operator: Operator = FilterSpec(Column(1, pa.bool_())).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    (out,) = operator.receive(0, rows)
    assert isinstance(out, Batch)
    assert out.columns[0].to_pylist() == [1, 4]
    assert out.holder.tolist() == [0, 3]
    assert out.seq is not None
    assert out.seq.tolist() == [3, 0]
    others: list[Message] = [Ends(np.array([1]), np.array([9])), Heartbeat(4)]
    for message in others:
        assert list(operator.receive(0, message)) == [message]
    operator = ProjectSpec(
        (Column(1, pa.bool_()), Column(0, pa.int64()), Column(0, pa.int64()))
    ).build()
    operator.open(Context(State(MemoryStorage()), node=1))
    (out,) = operator.receive(0, rows)
    assert isinstance(out, Batch)
    assert [c.to_pylist()[3] for c in out.columns] == [True, 4, 4]
    assert (out.seq, out.end.tolist()) == (None, [9, 9, 9, 10])
    for message in others:
        assert list(operator.receive(0, message)) == [message]


@settings(max_examples=examples(100), deadline=None)
@given(
    births=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12),
    deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12),
)
def test_cancel(births: list[tuple[int, int]], deaths: list[tuple[int, int]]) -> None:
    def split(events: list[tuple[int, int]]) -> Any:
        values = pa.array([v for v, _ in events], pa.int64())
        return hash_columns([values], len(events)), np.array([t for _, t in events], np.int64)

    stay_born, stay_dead = cancel(*split(births), *split(deaths))
    born = Counter(b for b, stay in zip(births, stay_born, strict=True) if stay)
    dead = Counter(d for d, stay in zip(deaths, stay_dead, strict=True) if stay)
    assert born == Counter(births) - Counter(deaths)
    assert dead == Counter(deaths) - Counter(births)
    some, others = shared_times(split(births)[1], split(deaths)[1])
    assert all(some[i] for i, b in enumerate(births) if b[1] in {d[1] for d in deaths})
    assert all(others[i] for i, d in enumerate(deaths) if d[1] in {b[1] for b in births})
