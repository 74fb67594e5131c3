"""The oracle against answers worked out by hand from the semantics; no operator runs here."""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa
import pytest

from penstock.algebra import (
    NODES,
    Aggregate,
    Distinct,
    Filter,
    Join,
    Project,
    Scan,
    SetOp,
    SortKey,
    TableScan,
    TopK,
    ToStream,
    UnionAll,
    Window,
)
from penstock.errors import DataError
from penstock.expr.nodes import AggregateCall, Call, Case, Cast, Column, Literal
from penstock.model import INF, MIN_TIME, Field, Schema
from penstock.reference import (
    MEANINGS,
    Inputs,
    accept,
    from_intervals,
    relation,
    snapshot_at,
    stream,
    to_intervals,
    window,
)
from penstock.reference.expressions import evaluate
from penstock.windows import WindowSpec

LONG, DOUBLE, STRING, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
SCHEMA = Schema((Field("k", STRING), Field("x", LONG), Field("t", LONG)))
S = Scan("s", SCHEMA, 2)
R = Scan("r", SCHEMA, 2)
K, X, T = Column(0, STRING, "k"), Column(1, LONG, "x"), Column(2, LONG, "t")


def given(s=(), r=(), **tables):
    """Rows ``(k, x, t)`` of the streams s and r, and tables by name."""
    streams = {"s": [(row, row[-1]) for row in s], "r": [(row, row[-1]) for row in r]}
    return Inputs(streams, {name: list(rows) for name, rows in tables.items()})


def lives(times, spec, keys=None):
    """Return the validity of the elements at the given times, in their order."""
    keys = keys or ["a"] * len(times)
    elements = [((key, number), t) for number, (key, t) in enumerate(zip(keys, times, strict=True))]
    found = {v[1]: (start, end) for v, start, end in window(elements, spec)}
    return [found.get(number) for number in range(len(times))]


WINDOWS = [
    # ROWS N: in at s, out at the N-th later element.
    ([1, 4, 6], WindowSpec(rows=1), [(1, 4), (4, 6), (6, INF)]),
    ([1, 4, 6], WindowSpec(rows=2), [(1, 6), (4, INF), (6, INF)]),
    # Ties: the element that is pushed out in its own instant is a ghost.
    ([3, 3, 5], WindowSpec(rows=1), [None, (3, 5), (5, INF)]),
    ([3, 3, 3, 9], WindowSpec(rows=2), [None, (3, 9), (3, INF), (9, INF)]),
    # RANGE T.
    ([5], WindowSpec(range=10), [(5, 15)]),
    ([0, 5], WindowSpec(range=1), [(0, 1), (5, 6)]),
    ([-3], WindowSpec(range=2), [(-3, -1)]),
    ([INF - 3], WindowSpec(range=10), [(INF - 3, INF)]),
    # RANGE T SLIDE D: the worked example, and its neighbours.
    ([5], WindowSpec(range=10, slide=4), [(8, 16)]),
    ([4, 8], WindowSpec(range=10, slide=4), [(4, 16), (8, 20)]),
    ([9], WindowSpec(range=4, slide=4), [(12, 16)]),
    # Sampling: T < D skips elements that no pulse sees.
    ([1, 6, 8], WindowSpec(range=3, slide=4), [None, (8, 12), (8, 12)]),
    ([-5], WindowSpec(range=4, slide=4), [(-4, 0)]),
    # RANGE UNBOUNDED SLIDE D.
    ([5], WindowSpec(range=INF, slide=4), [(8, INF)]),
    # half-open: 4 and 7 are in [4, 8), 8 is not
    ([4, 7, 8], WindowSpec(hop=4, slide=4), [(8, 12), (8, 12), (12, 16)]),
    ([-4, -1], WindowSpec(hop=4, slide=4), [(0, 4), (0, 4)]),
    ([3, 4], WindowSpec(hop=8, slide=4), [(4, 12), (8, 16)]),
    ([1, 3, 4], WindowSpec(hop=1, slide=4), [None, (4, 8), None]),
    ([2, 3], WindowSpec(hop=4, slide=4, origin=3), [None, (7, 11)]),
    ([2, 3], WindowSpec(hop=4, slide=4, offset=3), [(3, 7), (7, 11)]),
    # START moves the pulses and drops what is older.
    ([2, 3, 5], WindowSpec(range=10, slide=4, origin=3), [None, (3, 15), (7, 15)]),
    ([2, 3], WindowSpec(range=10, origin=3), [None, (3, 13)]),
    ([1, 3, 5, 8], WindowSpec(rows=1, origin=3), [None, (3, 5), (5, 8), (8, INF)]),
    # NOW.
    ([7], WindowSpec(now=True), [(7, 8)]),
    # Unbounded.
    ([7], WindowSpec(), [(7, INF)]),
    ([7], WindowSpec(range=INF), [(7, INF)]),
    # Landmarks.
    ([4, 5, 6], WindowSpec(after=5), [None, (5, INF), (6, INF)]),
    ([4, 5, 6], WindowSpec(before=5), [(4, INF), (5, INF), None]),
    ([4, 5, 6, 7], WindowSpec(after=5, before=6), [None, (5, INF), (6, INF), None]),
    # FIXED M: until the first multiple of M above s.
    ([0, 3, 4, 5], WindowSpec(fixed=4), [(0, 4), (3, 4), (4, 8), (5, 8)]),
    ([-1], WindowSpec(fixed=4), [(-1, 0)]),
    ([3, 4, 5], WindowSpec(fixed=4, origin=1), [(3, 5), (4, 5), (5, 9)]),
    # ROWS and RANGE: the earlier end.
    ([1, 4, 20], WindowSpec(rows=1, range=10), [(1, 4), (4, 14), (20, 30)]),
    # ROWS N SLIDE M: numbers 1..5 at times 1, 3, 6, 7, 9; refreshed at the 2nd and 4th.
    (
        [1, 3, 6, 7, 9],
        WindowSpec(rows=3, rows_slide=2),
        [(3, 7), (3, INF), (7, INF), (7, INF), None],
    ),
    (
        [1, 3, 6, 7],
        WindowSpec(rows=1, rows_slide=2),
        [None, (3, 7), None, (7, INF)],
    ),
    # The same with a bound in time: visible from the refresh, out at the earlier end.
    ([1, 3, 6, 7], WindowSpec(rows=9, rows_slide=2, range=3), [(3, 4), (3, 6), (7, 9), (7, 10)]),
    # SESSION G: less than G apart; out G after the session's last element.
    ([1, 3, 8, 9], WindowSpec(session=5), [(1, 8), (3, 8), (8, 14), (9, 14)]),
    ([1, 5, 9], WindowSpec(session=5), [(1, 14), (5, 14), (9, 14)]),
    ([2, 2], WindowSpec(session=1), [(2, 3), (2, 3)]),
    ([1, 2, 6], WindowSpec(session=4, origin=2), [None, (2, 6), (6, 10)]),
]


@pytest.mark.parametrize(("times", "spec", "expected"), WINDOWS)
def test_window(times, spec, expected):
    assert lives(times, spec) == expected


GROUPED = [
    (
        [1, 2, 3, 4],
        "abab",
        WindowSpec(rows=1, partition_by=(0,)),
        [(1, 3), (2, 4), (3, INF), (4, INF)],
    ),
    (
        [1, 2, 4],
        ["a", None, None],
        WindowSpec(rows=1, partition_by=(0,)),
        [(1, INF), (2, 4), (4, INF)],
    ),
    ([1, 2, 3], "aab", WindowSpec(rows=1, rows_slide=2, partition_by=(0,)), [None, (2, INF), None]),
    ([1, 2, 5], "aba", WindowSpec(session=4, partition_by=(0,)), [(1, 5), (2, 6), (5, 9)]),
    ([1, 2, 4], "aba", WindowSpec(session=4, partition_by=(0,)), [(1, 8), (2, 6), (4, 8)]),
    (
        [1, 2, 8],
        "aba",
        WindowSpec(rows=1, range=5, partition_by=(0,)),
        [(1, 6), (2, 7), (8, 13)],
    ),
]


@pytest.mark.parametrize(("times", "keys", "spec", "expected"), GROUPED)
def test_window_by_group(times, keys, spec, expected):
    assert lives(times, spec, list(keys)) == expected


def test_arrival_breaks_ties():
    inputs = given([("late", 1, 5), ("b", 2, 3), ("a", 3, 3), ("c", 4, 4)])
    rows = to_intervals(relation(Window(S, WindowSpec(rows=1)), inputs))
    assert rows == [(("a", 3, 3), 3, 4), (("c", 4, 4), 4, 5), (("late", 1, 5), 5, INF)]


def test_derived_streams_order_ties_by_columns():
    """The projected values 2, 1 and null come at one time: null, 1, 2; the last one stays."""
    inputs = given([("a", 2, 3), ("a", 1, 3), ("a", None, 3), ("a", 9, 7)])
    derived = ToStream("istream", Project(Window(S, WindowSpec(range=9)), (X,), ("x",)))
    rows = to_intervals(relation(Window(derived, WindowSpec(rows=1)), inputs))
    assert rows == [((2,), 3, 7), ((9,), 7, INF)]


def test_a_window_over_a_relation_reads_its_istream():
    inputs = given([("a", 1, 1), ("a", 1, 3), ("a", 2, 4)])
    distinct = Distinct(Project(Window(S, WindowSpec(range=3)), (X,), ("x",)))
    # distinct: 1 in [1, 6), 2 in [4, 7); its ISTREAM: 1 at 1, 2 at 4.
    assert to_intervals(relation(distinct, inputs)) == [((1,), 1, 6), ((2,), 4, 7)]
    assert to_intervals(relation(Window(distinct, WindowSpec(range=2)), inputs)) == [
        ((1,), 1, 3),
        ((2,), 4, 6),
    ]


# Operators


def rows_of(plan, inputs):
    return to_intervals(relation(plan, inputs))


def number(value):
    return Literal(value, LONG)


def call(name, *args, result=BOOL):
    return Call(name, args, result)


def test_a_stream_without_a_window_keeps_everything():
    assert rows_of(S, given([("a", 1, 2)])) == [(("a", 1, 2), 2, INF)]


def test_table_rows_are_valid_for_all_time():
    plan = TableScan("d", SCHEMA)
    assert rows_of(plan, given(d=[("a", 1, 2)])) == [(("a", 1, 2), MIN_TIME, INF)]


def test_table_rows_with_validity_columns():
    plan = TableScan("d", SCHEMA, valid_from=1, valid_to=2)
    inputs = given(d=[("a", 1, 5), ("b", None, 5), ("c", 1, None), ("ghost", 5, 5)])
    assert rows_of(plan, inputs) == [
        (("b", None, 5), MIN_TIME, 5),
        (("a", 1, 5), 1, 5),
        (("c", 1, None), 1, INF),
    ]


def test_filter_drops_false_and_null():
    inputs = given([("a", 1, 1), ("b", None, 2), ("c", 5, 3)])
    plan = Filter(Window(S, WindowSpec(range=2)), call("gt", X, number(2)))
    assert rows_of(plan, inputs) == [(("c", 5, 3), 3, 5)]


def test_project_keeps_copies():
    inputs = given([("a", 1, 1), ("b", 1, 2)])
    plan = Project(Window(S, WindowSpec(range=5)), (call("add", X, X, result=LONG),), ("y",))
    assert rows_of(plan, inputs) == [((2,), 1, 7), ((2,), 2, 6)]
    assert snapshot_at(relation(plan, inputs), 3) == Counter({(2,): 2})


def test_join_meets_in_the_intersection_and_never_on_null():
    inputs = given([("a", 1, 1), (None, 1, 1)], [("a", 2, 4), (None, 2, 4), ("b", 2, 4)])
    plan = Join(Window(S, WindowSpec(range=5)), Window(R, WindowSpec(range=5)), (K,), (K,))
    assert rows_of(plan, inputs) == [(("a", 1, 1, "a", 2, 4), 4, 6)]


def test_join_touching_intervals_do_not_meet():
    inputs = given([("a", 1, 1)], [("a", 2, 6)])
    plan = Join(Window(S, WindowSpec(range=5)), Window(R, WindowSpec(range=5)), (K,), (K,))
    assert rows_of(plan, inputs) == []


def test_theta_join():
    inputs = given([("a", 1, 1), ("b", 3, 1)], [("c", 2, 1)])
    less = call("lt", X, Column(4, LONG))
    plan = Join(Window(S, WindowSpec(range=2)), Window(R, WindowSpec(range=3)), (), (), less)
    assert rows_of(plan, inputs) == [(("a", 1, 1, "c", 2, 1), 1, 3)]


def test_join_multiplies_copies():
    inputs = given([("a", 1, 1), ("a", 1, 1)], [("a", 2, 1), ("a", 2, 1), ("a", 2, 1)])
    plan = Join(Window(S, WindowSpec(now=True)), Window(R, WindowSpec(now=True)), (K,), (K,))
    assert relation(plan, inputs) == [(1, Counter({("a", 1, 1, "a", 2, 1): 6})), (2, Counter())]


def test_join_with_a_table():
    names = Schema((Field("k", STRING), Field("label", STRING)))
    plan = Join(Window(S, WindowSpec(range=3)), TableScan("d", names), (K,), (Column(0, STRING),))
    inputs = given([("a", 1, 1), ("c", 1, 1)], d=[("a", "one"), ("b", "two")])
    assert rows_of(plan, inputs) == [(("a", 1, 1, "a", "one"), 1, 4)]


def aggregates(*calls):
    kinds = {"count": LONG, "count_distinct": LONG, "sum": LONG, "min": LONG, "max": LONG}
    return tuple(
        AggregateCall(name, None if name == "count" else X, kinds.get(name, DOUBLE))
        for name in calls
    )


def test_aggregate_per_group_and_constant_interval():
    inputs = given([("a", 1, 1), ("b", 5, 2), ("a", 3, 4)])
    plan = Aggregate(
        Window(S, WindowSpec(range=5)),
        (K,),
        aggregates("count", "sum", "avg"),
        ("k", "n", "s", "m"),
    )
    assert rows_of(plan, inputs) == [
        (("a", 1, 1, 1.0), 1, 4),
        (("b", 1, 5, 5.0), 2, 7),
        (("a", 2, 4, 2.0), 4, 6),
        (("a", 1, 3, 3.0), 6, 9),
    ]


def test_aggregate_joins_equal_neighbours():
    """One element takes the place of an equal one in the same instant: nothing changes."""
    inputs = given([("a", 1, 1), ("a", 1, 6)])
    plan = Aggregate(Window(S, WindowSpec(range=5)), (K,), aggregates("sum"), ("k", "s"))
    assert rows_of(plan, inputs) == [(("a", 1), 1, 11)]


def test_null_keys_group_together_and_null_values_are_skipped():
    inputs = given([(None, None, 1), (None, 4, 1)])
    calls = (*aggregates("count", "sum", "min", "max"), AggregateCall("count", X, LONG))
    plan = Aggregate(Window(S, WindowSpec(now=True)), (K,), calls, ("k", "n", "s", "a", "b", "c"))
    assert rows_of(plan, inputs) == [((None, 2, 4, 4, 4, 1), 1, 2)]


def test_a_group_of_nulls_exists():
    inputs = given([("a", None, 1)])
    plan = Aggregate(
        Window(S, WindowSpec(now=True)),
        (K,),
        aggregates("count", "sum", "avg", "max", "count_distinct"),
        ("k", "n", "s", "m", "b", "d"),
    )
    assert rows_of(plan, inputs) == [(("a", 1, None, None, None, 0), 1, 2)]


def test_the_global_aggregate_lives_for_ever_from_the_first_row_on():
    inputs = given([("a", 7, 3)])
    plan = Aggregate(Window(S, WindowSpec(range=2)), (), aggregates("count", "sum"), ("n", "s"))
    assert rows_of(plan, inputs) == [((1, 7), 3, 5), ((0, None), 5, INF)]
    assert rows_of(plan, given([])) == []


def test_the_global_aggregate_of_a_filter_that_never_holds_is_empty():
    inputs = given([("a", 7, 3)])
    never = Filter(Window(S, WindowSpec(range=2)), call("lt", X, number(0)))
    assert rows_of(Aggregate(never, (), aggregates("count"), ("n",)), inputs) == []


def test_variance_and_standard_deviation():
    inputs = given([("a", 1, 1), ("a", 4, 1), ("b", 9, 1)])
    names = ("var_samp", "var_pop", "stddev_samp", "stddev_pop")
    plan = Aggregate(Window(S, WindowSpec(now=True)), (K,), aggregates(*names), ("k", *names))
    assert rows_of(plan, inputs) == [
        (("a", 4.5, 2.25, math.sqrt(4.5), 1.5), 1, 2),
        (("b", None, 0.0, None, 0.0), 1, 2),
    ]


def test_count_distinct():
    inputs = given([("a", 1, 1), ("a", 1, 2), ("a", 2, 3)])
    plan = Aggregate(Window(S, WindowSpec(range=3)), (K,), aggregates("count_distinct"), ("k", "d"))
    assert rows_of(plan, inputs) == [(("a", 1), 1, 3), (("a", 2), 3, 5), (("a", 1), 5, 6)]


def test_sums_of_floats_are_exact():
    schema = Schema((Field("x", DOUBLE), Field("t", LONG)))
    x = Column(0, DOUBLE)
    calls = (AggregateCall("sum", x, DOUBLE), AggregateCall("avg", x, DOUBLE))
    plan = Aggregate(Window(Scan("s", schema, 1), WindowSpec(now=True)), (), calls, ("s", "a"))
    inputs = given([(1e17, 1), (1.0, 1), (-1e17, 1)])
    assert snapshot_at(relation(plan, inputs), 1) == Counter([(1.0, 1 / 3)])


def test_nan_is_greatest_and_equal_to_itself():
    schema = Schema((Field("x", DOUBLE), Field("t", LONG)))
    x = Column(0, DOUBLE)
    source = Project(Window(Scan("s", schema, 1), WindowSpec(now=True)), (x,), ("x",))
    inputs = given([(float("nan"), 1), (math.inf, 1), (float("nan"), 1)])
    calls = (AggregateCall("min", x, DOUBLE), AggregateCall("max", x, DOUBLE))
    (row,) = snapshot_at(relation(Aggregate(source, (), calls, ("a", "b")), inputs), 1)
    assert row[0] == math.inf
    assert math.isnan(row[1])
    assert sorted(snapshot_at(relation(Distinct(source), inputs), 1).values()) == [1, 1]
    assert sorted(snapshot_at(relation(source, inputs), 1).values()) == [1, 2]


def x_of(scan, spec):
    return Project(Window(scan, spec), (X,), ("x",))


def test_distinct():
    inputs = given([("a", 1, 1), ("b", 1, 3)])
    assert rows_of(Distinct(x_of(S, WindowSpec(range=4))), inputs) == [((1,), 1, 7)]


def test_union_all_adds():
    inputs = given([("a", 1, 1)], [("a", 1, 2)])
    plan = UnionAll((x_of(S, WindowSpec(range=4)), x_of(R, WindowSpec(range=4))))
    assert rows_of(plan, inputs) == [((1,), 1, 6), ((1,), 2, 5)]


SET_OPERATIONS = [
    # left: 1 twice in [1, 6), 2 once; right: 1 once in [3, 8), 2 twice
    ("intersect", True, [((1,), 3, 6), ((2,), 3, 6)]),
    ("intersect", False, [((1,), 3, 6), ((2,), 3, 6)]),
    ("except", True, [((1,), 1, 3), ((2,), 1, 3), ((1,), 1, 6)]),
    ("except", False, [((1,), 1, 3), ((2,), 1, 3)]),
]


@pytest.mark.parametrize(("kind", "every", "expected"), SET_OPERATIONS)
def test_set_operations(kind, every, expected):
    inputs = given([("a", 1, 1), ("b", 1, 1), ("c", 2, 1)], [("a", 1, 3), ("b", 2, 3), ("c", 2, 3)])
    left, right = x_of(S, WindowSpec(range=5)), x_of(R, WindowSpec(range=5))
    assert rows_of(SetOp(kind, every, left, right), inputs) == expected


def test_top_k_breaks_ties_by_all_columns():
    inputs = given([("b", 1, 1), ("a", 1, 1), (None, 1, 1), ("c", 0, 2)])
    plan = TopK(Window(S, WindowSpec(range=4)), (SortKey(X),), 2)
    assert rows_of(plan, inputs) == [
        (("a", 1, 1), 1, 2),
        ((None, 1, 1), 1, 5),
        (("c", 0, 2), 2, 6),
    ]


def test_top_k_descending_puts_nulls_where_it_says():
    inputs = given([("a", None, 1), ("b", 3, 1), ("c", 5, 1)])
    source = Window(S, WindowSpec(now=True))
    last = TopK(source, (SortKey(X, True, False),), 1)
    first = TopK(source, (SortKey(X, True, True),), 1)
    assert rows_of(last, inputs) == [(("c", 5, 1), 1, 2)]
    assert rows_of(first, inputs) == [(("a", None, 1), 1, 2)]


def test_top_k_counts_copies():
    inputs = given([("a", 1, 1), ("a", 1, 1), ("a", 1, 1)])
    plan = TopK(Window(S, WindowSpec(now=True)), (SortKey(X),), 2)
    assert relation(plan, inputs) == [(1, Counter({("a", 1, 1): 2})), (2, Counter())]


# Relation to stream


def test_istream_and_dstream():
    inputs = given([("a", 1, 1), ("b", 1, 2), ("c", 2, 6)])
    source = x_of(S, WindowSpec(range=4))
    # 1: [1, 5) and [2, 6); 2: [6, 10)
    assert stream(ToStream("istream", source), inputs) == Counter([(1, (1,)), (2, (1,)), (6, (2,))])
    assert stream(ToStream("dstream", source), inputs) == Counter(
        [(5, (1,)), (6, (1,)), (10, (2,))]
    )


def test_a_copy_that_takes_the_place_of_another_is_no_change():
    inputs = given([("a", 1, 1), ("a", 1, 5)])
    source = x_of(S, WindowSpec(range=4))
    assert stream(ToStream("istream", source), inputs) == Counter([(1, (1,))])
    assert stream(ToStream("dstream", source), inputs) == Counter([(9, (1,))])
    assert stream(ToStream("rstream", source), inputs) == Counter([(1, (1,))])


def test_rstream_without_pulses_speaks_at_each_change():
    inputs = given([("a", 1, 1), ("b", 2, 3)])
    plan = ToStream("rstream", x_of(S, WindowSpec(range=4)))
    assert stream(plan, inputs) == Counter([(1, (1,)), (3, (1,)), (3, (2,)), (5, (2,))])


def test_rstream_with_pulses_speaks_at_each_pulse():
    inputs = given([("a", 1, 1), ("b", 2, 3)])
    plan = ToStream("rstream", x_of(S, WindowSpec(range=4, slide=2)), ((2, 0),))
    # 1: [2, 6); 2: [4, 8)
    assert stream(plan, inputs) == Counter([(2, (1,)), (4, (1,)), (4, (2,)), (6, (2,))])


def test_rstream_repeats_what_did_not_change():
    inputs = given([("a", 1, 1), ("b", 1, 9)])
    plan = ToStream("rstream", x_of(S, WindowSpec(range=20, slide=2)), ((2, 0),))
    # 1: [2, 22), again [10, 30)
    expected = Counter({(t, (1,)): 1 for t in range(2, 30, 2)})
    expected.update((t, (1,)) for t in range(10, 22, 2))
    assert stream(plan, inputs) == expected


def test_rstream_with_two_slides_speaks_at_both():
    inputs = given([("a", 1, 0)])
    plan = ToStream("rstream", x_of(S, WindowSpec(range=6)), ((2, 0), (3, 0)))
    assert stream(plan, inputs) == Counter([(t, (1,)) for t in (0, 2, 3, 4)])


def test_rstream_repeats_what_lasts_for_ever_up_to_the_largest_time():
    inputs = given([("a", 1, 1), ("b", 2, 9)], [("c", 3, 50)])
    lasting = x_of(S, WindowSpec(range=INF, slide=2))
    chosen = Filter(lasting, call("eq", Column(0, LONG), number(1)))
    # 1: [2, INF); the streams that are read end at 9
    expected = Counter((t, (1,)) for t in (2, 4, 6, 8))
    assert stream(ToStream("rstream", chosen, ((2, 0),)), inputs) == expected


def test_rstream_repeats_everything_up_to_the_last_change():
    inputs = given([("a", 1, 1), ("a", 1, 4)], [("c", 7, 5)])
    both = UnionAll((x_of(S, WindowSpec(range=9, slide=4)), x_of(R, WindowSpec(range=INF))))
    # 1: [4, 12), [4, 16); 7: [5, INF); the streams end at 5, the last change is at 16
    expected = Counter({(4, (1,)): 2, (8, (1,)): 2, (12, (1,)): 1})
    expected.update([(8, (7,)), (12, (7,)), (16, (7,))])
    assert stream(ToStream("rstream", both, ((4, 0),)), inputs) == expected


def test_a_derived_stream_without_a_window_keeps_everything():
    inputs = given([("a", 1, 1)])
    plan = ToStream("dstream", x_of(S, WindowSpec(range=4)))
    assert rows_of(plan, inputs) == [((1,), 5, INF)]


# Late elements, intervals


def test_late_is_decided_in_arrival_order():
    elements = [((n,), t) for n, t in enumerate([5, 3, 2, 9, 7, 6, 9])]
    accepted, late = accept(elements, 2)
    assert [t for _, t in accepted] == [5, 3, 9, 7, 9]
    assert [t for _, t in late] == [2, 6]
    assert accept([], 0) == ([], [])


def test_intervals_are_cut_in_one_way():
    cut = [(("v",), 1, 3), (("v",), 3, 5), (("v",), 2, 4), (("ghost",), 2, 2)]
    whole = [(("v",), 1, 5), (("v",), 2, 4)]
    assert from_intervals(cut) == from_intervals(whole)
    assert to_intervals(from_intervals(cut)) == whole


# Expressions


EXPRESSIONS = [
    (call("divide", Literal(1.0, DOUBLE), Literal(4.0, DOUBLE), result=DOUBLE), 0.25),
    (call("div", number(-7), number(2), result=LONG), -3),
    (call("mod", number(-7), number(2), result=LONG), -1),
    (call("and", Literal(False, BOOL), Literal(None, BOOL)), False),
    (call("and", Literal(True, BOOL), Literal(None, BOOL)), None),
    (call("or", Literal(None, BOOL), Literal(True, BOOL)), True),
    (call("or", Literal(None, BOOL), Literal(False, BOOL)), None),
    (call("not", Literal(None, BOOL)), None),
    (call("eq", Literal(math.nan, DOUBLE), Literal(math.nan, DOUBLE)), True),
    (call("gt", Literal(math.nan, DOUBLE), Literal(math.inf, DOUBLE)), True),
    (call("coalesce", Literal(None, LONG), number(3), result=LONG), 3),
    (call("is_null", Literal(None, LONG)), True),
    (Cast(Literal("12", STRING), LONG), 12),
    (Cast(Literal(-1.7, DOUBLE), LONG), -1),
    (Cast(Literal(True, BOOL), STRING), "true"),
    (
        Case(((call("eq", X, number(2)), Literal("two", STRING)),), Literal("?", STRING), STRING),
        "two",
    ),
]


@pytest.mark.parametrize(("expr", "expected"), EXPRESSIONS)
def test_expression(expr, expected):
    assert evaluate(expr, ("a", 2, 3)) == expected


FAULTS = [
    call("divide", Literal(1.0, DOUBLE), Literal(0.0, DOUBLE), result=DOUBLE),
    call("mod", number(1), number(0), result=LONG),
    call("add", number(INF), number(1), result=LONG),
    Cast(number(300), pa.int8()),
    Cast(Literal("x", STRING), LONG),
]


@pytest.mark.parametrize("expr", FAULTS)
def test_faults_are_errors(expr):
    with pytest.raises(DataError):
        evaluate(expr, ())


def test_every_node_of_the_algebra_has_a_meaning():
    assert frozenset(NODES) == MEANINGS
