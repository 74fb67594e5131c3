"""Places of join predicates: no partner is missed, none comes twice, whatever the numbers are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.codes import inverse, monotone
from penstock.kernels.edit_marks import marks_of, may_be_near
from penstock.kernels.join_orders import Anywhere, Band, Boxes, Edit, Near, Overlap, Place
from penstock.kernels.layouts import layout_of
from tests.examples import examples

INF = float("inf")
NAN = float("nan")
FAST = settings(max_examples=examples(150), deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


@dataclass
class Sorted:
    """Rows of one side in the order of a layout, all alive at once."""

    table: dict[str, Any]
    stats: dict[str, int]
    coordinates: tuple[Any, ...] = ()
    order: Any = field(default=None)

    def numbers(self, name: str) -> Any:
        return self.table[name]

    def __len__(self) -> int:
        return len(self.order)


def side(place: Place, columns: list[pa.Array], start=None, end=None) -> Sorted:
    layout = layout_of(place)
    rows = len(columns[0])
    numbers, coordinates = layout.place(columns, rows)
    start = np.zeros(rows, np.int64) if start is None else start
    end = np.ones(rows, np.int64) if end is None else end
    order = layout.order(numbers, start)
    table = {name: values[order] for name, values in numbers.items()}
    table |= {"_start": start[order], "_end": end[order]}
    stats = layout.stats(table, table["_end"])
    stats |= {"max_start": int(start.max()), "min_end": int(end.min())}
    return Sorted(table, stats, tuple(c[order] for c in coordinates), order)


def candidates(place: Place, left: list[pa.Array], right: list[pa.Array], block=7) -> Counter:
    """Candidates as positions of the rows given; both ways of probing must agree on partners."""
    a, b = side(place, left), side(place, right)
    found: list[Counter] = []
    for probe, run, is_left in ((a, b, True), (b, a, False)):
        pairs: Counter = Counter()
        for mine, theirs in layout_of(place).match(probe, run, is_left, block):
            assert len(mine) == len(theirs) <= block
            for i, j in zip(probe.order[mine], run.order[theirs], strict=True):
                pairs[(i, j) if is_left else (j, i)] += 1
        found.append(pairs)
    for pairs in found:
        assert all(count == 1 for count in pairs.values()), "a candidate came twice"
    return found[0] & found[1]


def column(values: list[Any]) -> pa.Array:
    whole = all(isinstance(v, int) for v in values)
    return pa.array(values, pa.int64() if whole else pa.float64())


def less(a: float, b: float) -> bool:
    """Spark's order: NaN is the greatest and equal to itself."""
    return False if np.isnan(a) else bool(np.isnan(b)) or a < b


def at_most(a: float, b: float) -> bool:
    return not less(b, a)


STRANGE = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-300, 5e15, 2.0**62, -(2.0**62), INF, -INF, NAN, 7.5, 1e308]
NUMBERS = st.one_of(
    st.sampled_from(STRANGE),
    st.integers(-20, 20).map(float),
    st.floats(-100, 100),
    st.floats(allow_nan=True),
)
WHOLE = st.one_of(st.integers(-30, 30), st.sampled_from([2**53 + 1, 2**62, -(2**63), 2**63 - 1]))
COLUMNS = st.one_of(
    st.lists(NUMBERS, min_size=1, max_size=12), st.lists(WHOLE, min_size=1, max_size=12)
)


@FAST
@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_codes_of_numbers_are_in_their_order(values):
    numbers = np.array(values) + 0.0
    code = monotone(numbers)
    for i in range(len(values)):
        for j in range(len(values)):
            assert (code[i] < code[j]) == less(numbers[i], numbers[j])
    plain = ~np.isnan(numbers)
    assert (inverse(code[plain]) == numbers[plain]).all()


def check(place: Place, left, right, partners) -> None:
    found = candidates(place, [column(list(c)) for c in left], [column(list(c)) for c in right])
    for i, a in enumerate(zip(*left, strict=True)):
        for j, b in enumerate(zip(*right, strict=True)):
            if partners(tuple(map(float, a)), tuple(map(float, b))):
                assert found[i, j] == 1, f"{a} and {b} are partners"


@FAST
@given(COLUMNS, COLUMNS, st.sampled_from([0.0, 0.5, 5.0, 1e-9, 1e12]), st.booleans())
def test_band(left, right, width, closed):
    def near(a, b):
        """Spelled both ways: with a difference, and with bounds."""
        with np.errstate(all="ignore"):
            difference = np.float64(b[0]) - np.float64(a[0])
            bounds = np.float64(a[0]) - width, np.float64(a[0]) + width
        by_difference = at_most(abs(difference), width)
        return by_difference or (at_most(bounds[0], b[0]) and at_most(b[0], bounds[1]))

    check(Band(-width, width), [left], [right], near)


@FAST
@given(COLUMNS, COLUMNS, st.sampled_from([0.0, 3.0, -3.0]))
def test_inequality(left, right, gap):
    check(Band(gap, INF), [left], [right], lambda a, b: at_most(a[0] + gap, b[0]))
    check(Band(-INF, gap), [left], [right], lambda a, b: at_most(b[0], a[0] + gap))


@st.composite
def shapes(draw, columns: int, most=12):
    rows = draw(st.integers(1, most))
    if draw(st.booleans()):
        return [draw(st.lists(NUMBERS, min_size=rows, max_size=rows)) for _ in range(columns)]
    lows = [
        draw(st.lists(st.integers(-50, 50), min_size=rows, max_size=rows)) for _ in range(columns)
    ]
    lengths = st.sampled_from([0, 1, 2, 3, 8, 100, 10**6, -2])
    made: list[list[int]] = []
    for at in range(columns):
        if at % 2 == 0:
            made.append(lows[at])
        else:
            made.append([low + draw(lengths) for low in made[-1]])
    return made


def meet(a, b) -> bool:
    return at_most(a[0], b[1]) and at_most(b[0], a[1])


@FAST
@given(shapes(2), shapes(2))
def test_overlap(left, right):
    check(Overlap(), left, right, meet)


@FAST
@given(st.sampled_from([2, 3]), st.data())
def test_boxes(dimensions, source):
    left, right = (source.draw(shapes(2 * dimensions)) for _ in range(2))
    check(
        Boxes(dimensions),
        left,
        right,
        lambda a, b: all(meet(a[d : d + 2], b[d : d + 2]) for d in range(0, 2 * dimensions, 2)),
    )


@FAST
@given(st.sampled_from([1, 2, 3, 5]), st.sampled_from([0.0, 0.3, 2.0, 1e6]), st.data())
def test_near(dimensions, width, source):
    sizes = [source.draw(st.integers(1, 12)) for _ in range(2)]
    left, right = (
        [source.draw(st.lists(NUMBERS, min_size=n, max_size=n)) for _ in range(dimensions)]
        for n in sizes
    )

    def near(a, b):
        with np.errstate(all="ignore"):
            return all(
                at_most(abs(np.float64(x) - np.float64(y)), width)
                for x, y in zip(a, b, strict=True)
            )

    check(Near((width,) * dimensions), left, right, near)


@settings(max_examples=examples(30), deadline=None)
@given(SEEDS, st.sampled_from([Near((0.01, 0.01)), Near((0.1, 0.1, 0.1)), Near((0.02,))]))
def test_near_finds_few_that_are_not(seed, place):
    chance = np.random.default_rng(seed)
    dimensions = len(place.widths)
    left, right = ([pa.array(chance.random(300)) for _ in place.widths] for _ in range(2))
    found = candidates(place, left, right)
    share = (3 * place.widths[0]) ** dimensions
    assert len(found) < 300 * 300 * share * 1.5 + 100
    for i in range(300):
        for j in range(0, 300, 17):
            near = all(abs(a[i].as_py() - b[j].as_py()) <= place.widths[0]
                       for a, b in zip(left, right, strict=True))  # fmt: skip
            assert not near or found[i, j]


def distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


TEXTS = st.lists(st.text("abäß漢🙂", max_size=6), min_size=1, max_size=10)


@FAST
@given(TEXTS, TEXTS, st.integers(0, 3))
def test_edit(left, right, most):
    found = candidates(Edit(most), [pa.array(left)], [pa.array(right)])
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            if distance(a, b) <= most:
                assert found[i, j] == 1


@FAST
@given(TEXTS)
def test_marks_are_of_characters(texts):
    sliced = pa.array(["x", *texts, "y"]).slice(1, len(texts))
    marks = marks_of(sliced)
    assert (marks == marks_of(pa.array([t[::-1] for t in texts]))).all()
    assert (marks_of(pa.array([t + t for t in texts])) == 0).all()
    assert may_be_near(marks, marks, 0).all()


@FAST
@given(COLUMNS, COLUMNS)
def test_anywhere(left, right):
    sides = []
    for values in (left, right):
        made = side(Anywhere(), [pa.nulls(len(values))])
        sides.append(made)
    found = sum(len(m) for m, _ in layout_of(Anywhere()).match(*sides, True, 5))
    assert found == len(left) * len(right)


@FAST
@given(SEEDS, st.sampled_from([Band(-3, 3), Overlap(), Near((2.0, 2.0)), Boxes(2)]))
def test_only_pairs_that_are_alive_together(seed, place):
    chance = np.random.default_rng(seed)
    width = {Band: 1, Overlap: 2, Near: 2, Boxes: 4}[type(place)]

    def make(rows: int) -> tuple[Sorted, Any, Any]:
        columns = [pa.array(chance.integers(0, 8, rows)) for _ in range(width)]
        start = chance.integers(0, 10, rows)
        end = start + chance.integers(1, 5, rows)
        return side(place, columns, start, end), start, end

    (probe, start, end), (run, old_start, old_end) = make(30), make(40)
    for mine, theirs in layout_of(place).match(probe, run, True, 16):
        i, j = probe.order[mine], run.order[theirs]
        assert ((start[i] < old_end[j]) & (old_start[j] < end[i])).all()


@pytest.mark.parametrize("place", [Overlap(), Band(-1, 1), Near((1.0, 1.0))])
def test_candidates_follow_the_partners_not_the_run(place):
    """Far more rows in the run, equally dense: a probe looks at no more of them."""
    chance = np.random.default_rng(5)
    counts = []

    def columns(rows: int) -> list[pa.Array]:
        if isinstance(place, Near):
            return [pa.array(chance.random(rows) * rows**0.5) for _ in range(2)]
        low = chance.random(rows) * rows
        return [pa.array(low), pa.array(low + 1)][: 2 if isinstance(place, Overlap) else 1]

    for rows in (1000, 8000):
        run, probe = side(place, columns(rows)), side(place, columns(rows))
        found = sum(len(m) for m, _ in layout_of(place).match(probe, run, True, 1 << 20))
        counts.append(found / rows)
    assert counts[1] < 1.5 * counts[0]
