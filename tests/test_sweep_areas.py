"""Sweep areas: the removal conditions of [B 3.1] as properties, and the sweep against all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.join_orders import Anywhere, Band, Boxes, Edit, Equal, Near, Overlap, Place
from penstock.kernels.sweep_areas import Elements, Sweep, removable, view_of
from penstock.model import Batch
from tests.examples import examples

NUMBERS = st.one_of(
    st.integers(-20, 20).map(float),
    st.floats(-1e18, 1e18),
    st.sampled_from([0.1, 0.2, 0.30000000000000004, float("inf"), float("-inf"), 2.0**53 + 2]),
)
WHOLE = st.one_of(st.integers(-30, 30), st.integers(-(2**62), 2**62))
TEXTS = st.text("abc", max_size=6)


def _distance(a: str, b: str) -> int:
    """The edit distance, as in a textbook."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def _columns(values: list[tuple]) -> list[pa.Array]:
    return [pa.array(column) for column in zip(*values, strict=True)]


def _ordered_pair(values: tuple) -> tuple:
    return (min(values), max(values))


Case = tuple[Place, st.SearchStrategy[tuple], Callable[[tuple, tuple], bool]]
CASES: dict[str, Case] = {
    "equal text": (Equal(), st.tuples(TEXTS), lambda a, b: a == b),
    "equal keys": (Equal(), st.tuples(WHOLE, TEXTS), lambda a, b: a == b),
    "band of whole numbers": (
        Band(-2, 5),
        st.tuples(WHOLE),
        lambda a, b: -2 <= b[0] - a[0] <= 5,
    ),
    "band above": (Band(3, 7), st.tuples(WHOLE), lambda a, b: 3 <= b[0] - a[0] <= 7),
    "band of floats": (
        Band(-0.1, 0.2),
        st.tuples(NUMBERS),
        lambda a, b: b[0] - 0.2 <= a[0] <= b[0] + 0.1,
    ),
    "left at most right": (
        Band(0, float("inf")),
        st.tuples(NUMBERS),
        lambda a, b: a[0] <= b[0],
    ),
    "left at least right": (
        Band(float("-inf"), 0),
        st.tuples(NUMBERS),
        lambda a, b: a[0] >= b[0],
    ),
    "intervals": (
        Overlap(),
        st.tuples(NUMBERS, NUMBERS).map(_ordered_pair),
        lambda a, b: a[0] <= b[1] and b[0] <= a[1],
    ),
    "intervals, some backwards": (
        Overlap(),
        st.tuples(WHOLE, WHOLE),
        lambda a, b: a[0] <= b[1] and b[0] <= a[1],
    ),
    "points": (
        Near((1.5, 2.0)),
        st.tuples(NUMBERS, NUMBERS),
        lambda a, b: abs(a[0] - b[0]) <= 1.5 and abs(a[1] - b[1]) <= 2.0,
    ),
    "boxes": (
        Boxes(2),
        st.tuples(*[st.integers(0, 9).map(float)] * 4),
        lambda a, b: a[0] <= b[1] and b[0] <= a[1] and a[2] <= b[3] and b[2] <= a[3],
    ),
    "texts": (Edit(2), st.tuples(TEXTS), lambda a, b: _distance(a[0], b[0]) <= 2),
    "anything": (Anywhere(), st.tuples(WHOLE), lambda a, b: (a[0] ^ b[0]) % 3 == 0),
}


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=examples(120), deadline=None)
def test_what_may_be_removed_has_no_partner_any_more(name: str, data: Any) -> None:
    place, values, partners = CASES[name]
    few = st.lists(values, min_size=1, max_size=8)
    left, right = data.draw(few), data.draw(few)
    views = [view_of(place, port, _columns(v), len(v)) for port, v in enumerate((left, right))]
    everything = sorted(np.concatenate([view.at for view in views]))
    for (i, a), (j, b) in itertools.product(enumerate(left), enumerate(right)):
        if not partners(a, b):
            continue
        assert views[1].at[j] <= views[0].reach[i], "the law"
        assert views[0].at[i] <= views[1].reach[j], "the law"
        for v in everything:
            if views[1].at[j] >= v:  # condition (1): u = a of the left, w = b
                assert not removable(views[0].reach[i], v)
            if views[0].at[i] >= v:  # condition (2): u = b of the right, w = a
                assert not removable(views[1].reach[j], v)


@pytest.mark.parametrize("name", ["equal text", "band of whole numbers", "intervals", "texts"])
def test_something_is_removed(name: str) -> None:
    place, _, _ = CASES[name]
    values: dict[str, list[tuple]] = {
        "equal text": [("a",), ("b",), ("c",)],
        "band of whole numbers": [(1,), (20,), (40,)],
        "intervals": [(1.0, 2.0), (5.0, 6.0), (9.0, 9.5)],
        "texts": [("a",), ("abcabc",), ("abcabcabcabc",)],
    }
    for port in (0, 1):
        view = view_of(place, port, _columns(values[name]), 3)
        order = np.argsort(view.at)
        assert removable(view.reach[order[0]], view.at[order[2]])


def _elements(place: Place, port: int, values: list[tuple], times: list[tuple]) -> Elements:
    start, end = ([t[i] for t in times] for i in (0, 1))
    rows = Batch.of([*_columns(values), pa.array(range(len(values)))], start, end)
    view = view_of(place, port, rows.columns[:-1], len(values))
    return Elements(rows, view, np.zeros(len(values), np.int64)).sort()


TIMES = st.tuples(st.integers(0, 20), st.integers(1, 10)).map(lambda t: (t[0], t[0] + t[1]))


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_sweep_in_any_rounds_gives_every_candidate_once(name: str, data: Any) -> None:
    place, values, partners = CASES[name]
    some = st.lists(st.tuples(values, TIMES), min_size=1, max_size=10)
    ports = [data.draw(some), data.draw(some)]
    since = data.draw(st.one_of(st.none(), st.integers(-1, 22)))
    rounds = data.draw(st.integers(1, 4))
    inputs = [
        _elements(place, p, [v for v, _ in rows], [t for _, t in rows])
        for p, rows in enumerate(ports)
    ]
    sweep = Sweep(2, data.draw(st.sampled_from([1, 3, 100])), since)
    everything = np.sort(np.concatenate([e.view.at for e in inputs]))
    bounds = [*everything[:: max(1, len(everything) // rounds)], np.inf]
    found = []
    for bound in bounds:
        blocks = []
        for i, rows in enumerate(inputs):
            block, inputs[i] = rows.split(int(np.searchsorted(rows.view.at, bound, "right")))
            blocks.append(block)
        for tuples in sweep.advance(blocks, bound):
            ids = []
            for port in (0, 1):
                area = sweep.areas[port].elements
                assert area is not None
                ids.append(area.rows.columns[-1].take(pa.array(tuples.members[port])).to_pylist())
            found += list(zip(*ids, strict=True))
    assert len(found) == len(set(found)), "each once"
    for (i, (a, (s1, e1))), (j, (b, (s2, e2))) in itertools.product(*map(enumerate, ports)):
        meets = max(s1, s2) < min(e1, e2)
        inside = since is None or max(s1, s2) >= since
        if (i, j) in found:
            assert meets
            assert inside
        elif partners(a, b):
            assert not (meets and inside)


def test_probes_go_first_where_partners_are_few() -> None:
    chance = np.random.default_rng(1)
    sweep = Sweep(3, 1000)
    rows = []
    for port, width in enumerate((1.0, 50.0, 0.1)):
        lo = np.sort(chance.uniform(0, 100, 200))
        values = list(zip(lo.tolist(), (lo + width).tolist(), strict=True))
        rows.append(_elements(Overlap(), port, values, [(0, 9)] * 200))
    list(sweep.advance(rows, np.inf))
    assert sweep.learned.order(2, [0, 1]) == [0, 1]
    assert sweep.learned.order(2, [1, 0]) == [0, 1]
    learned = sweep.learned.faded()
    assert learned.order(2, [1, 0]) == [0, 1]
