"""Join conditions and their places: many spellings, and what each must be recognised as."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from penstock.algebra import Join, Scan, walk
from penstock.cql.binding.join_text import bind_join
from penstock.cql.render import expr_text
from penstock.kernels.join_orders import Anywhere, Band, Boxes, Edit, Near, Overlap, Place
from penstock.model import TIMESTAMP
from penstock.physical.predicates import Recognised, recognise
from tests.strategies import schema_of

INF = math.inf
SECOND = 1_000_000
SIDE = schema_of(
    x=pa.int32(), y=pa.int32(), z=pa.int64(), u=pa.float64(), v=pa.float64(), f=pa.float32(),
    s=pa.string(), t=TIMESTAMP, d=pa.date32(), lo=pa.int64(), hi=pa.int64(), lo2=pa.float64(),
    hi2=pa.float64(), w=pa.float64(),
)  # fmt: skip
NAMES = SIDE.names


def found(condition: str) -> Recognised:
    """Recognise a condition over ``l`` and ``r``, which have the same columns."""
    plan = bind_join(Scan("l", SIDE, 7), Scan("r", SIDE, 7), condition)
    join = next(n for n in walk(plan) if isinstance(n, Join))
    assert not join.left_keys
    return recognise(join.residual, len(SIDE))


def texts(recognised: Recognised) -> tuple[list[str], list[str]]:
    sides = (recognised.left, recognised.right)
    left, right = ([expr_text(e, NAMES) for e in side] for side in sides)
    return left, right


BANDS = [
    ("l.x BETWEEN r.x - 5 AND r.x + 5", -5, 5),
    ("r.x BETWEEN l.x - 5 AND l.x + 5", -5, 5),
    ("ABS(l.x - r.x) <= 5", -5, 5),
    ("abs(r.x - l.x) <= 5", -5, 5),
    ("5 >= ABS(r.x - l.x)", -5, 5),
    ("ABS(l.x - r.x) < 6", -6, 6),
    ("NOT ABS(l.x - r.x) > 5", -5, 5),
    ("NOT (5 < ABS(l.x - r.x))", -5, 5),
    ("ABS(l.x - r.x) - 5 <= 0", -5, 5),
    ("2 * ABS(l.x - r.x) <= 10", -5, 5),
    ("l.x - r.x < 5 AND r.x - l.x < 5", -4, 4),
    ("l.x - r.x <= 5 AND l.x - r.x >= -5", -5, 5),
    ("NOT (l.x - r.x > 5 OR r.x - l.x > 5)", -5, 5),
    ("l.x >= r.x AND l.x < r.x + 10", -9, 0),
    ("r.x <= l.x AND r.x + 10 > l.x", -9, 0),
    ("NOT (l.x < r.x) AND l.x - 10 < r.x", -9, 0),
    ("l.x - 5 <= r.x AND r.x <= l.x + 5", -5, 5),
    ("l.x <= r.x + (2 + 3) AND l.x >= r.x - 10 / 2", -5, 5),
    ("2 * l.x BETWEEN 2 * r.x - 10 AND 2 * r.x + 10", -5, 5),
    ("l.x * 2 - r.x * 2 <= 9 AND r.x * 2 - l.x * 2 <= 9", -4.5, 4.5),
    ("-l.x <= -r.x + 5 AND -r.x <= 5 - l.x", -5, 5),
    ("l.x + 7 BETWEEN r.x AND r.x + 10", -3, 7),
    ("l.x - r.x = 3 AND l.y <> r.y", -3, -3),
    ("(l.x - r.x) * (l.x - r.x) <= 25", -5, 5),
    ("POWER(l.x - r.x, 2) <= 25", -5, 5),
    ("SQRT(POWER(l.x - r.x, 2)) <= 5", -5, 5),
    ("DISTANCE(l.x, r.x) <= 5", -5, 5),
    ("DISTANCE_MAX(r.x, l.x) <= 5", -5, 5),
    ("ABS(l.x - r.x) <= 5 AND ABS(l.x - r.x) <= 3 AND l.s <> r.s", -3, 3),
    ("ABS(l.x - r.x) <= 5.5", -5.5, 5.5),
]


@pytest.mark.parametrize(("condition", "low", "high"), BANDS)
def test_band(condition: str, low: float, high: float) -> None:
    recognised = found(condition)
    place = recognised.place
    assert isinstance(place, Band)
    sides = [expr_text(e, NAMES).replace("CAST(x AS DOUBLE)", "x")
             for e in (*recognised.left, *recognised.right)]  # fmt: skip
    assert sides == ["x", "x"]
    assert place.low <= low + 1e-12
    assert place.high >= high - 1e-12
    assert (place.low, place.high) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        ("l.t BETWEEN r.t - INTERVAL 5 SECONDS AND r.t + INTERVAL 5 SECONDS", -5, 5),
        ("l.t >= r.t AND l.t < r.t + INTERVAL 10 SECONDS", -10 + 1e-6, 0),
        ("ABS(TIME_DIFF(l.t, r.t)) <= 5000000", -5, 5),
        ("r.t - INTERVAL '2' SECONDS <= l.t AND NOT l.t > r.t", 0, 2),
    ],
)
def test_band_of_times(condition: str, low: float, high: float) -> None:
    recognised = found(condition)
    assert recognised.place == Band(low * SECOND, high * SECOND)
    assert texts(recognised) == (["t"], ["t"])


@pytest.mark.parametrize(
    ("condition", "place", "left", "right"),
    [
        ("ABS(l.u - r.u) <= 5", Band(-5, 5), ["u"], ["u"]),
        ("l.u BETWEEN r.u - 5 AND r.u + 5", Band(-5, 5), ["u"], ["u"]),
        ("ABS(l.f - r.f) <= 5", Band(-5, 5), ["CAST(f AS DOUBLE)"], ["CAST(f AS DOUBLE)"]),
        ("ABS(l.z - r.z) <= 5", Band(-5, 5), ["z"], ["z"]),
        ("ABS(l.x - r.u) <= 5", Band(-5, 5), ["CAST(x AS DOUBLE)"], ["u"]),
        ("ABS(l.d - r.d) <= 5", None, [], []),
        ("ABS(DATE_DIFF(l.d, r.d)) <= 5", Band(-5, 5), ["d"], ["d"]),
        ("l.x + l.y BETWEEN r.z - 1 AND r.z + 1", Band(-1, 1), ["x + y"], ["z"]),
        ("ABS(l.x - r.x + l.y) <= 5", Band(-5, 5),
         ["CAST(x AS BIGINT) + CAST(y AS BIGINT)"], ["x"]),
        ("ABS(LENGTH(l.s) - LENGTH(r.s)) <= 2", Band(-2, 2), ["length(s)"], ["length(s)"]),
        ("ABS(2 * l.x - 3 * r.x) <= 5", Band(-5, 5),
         ["CAST(x AS BIGINT) * 2"], ["CAST(x AS BIGINT) * 3"]),
        # inequalities
        ("l.x < r.x", Band(1, INF), ["x"], ["x"]),
        ("l.x <= r.x", Band(0, INF), ["x"], ["x"]),
        ("r.x > l.x", Band(1, INF), ["x"], ["x"]),
        ("l.x > r.x", Band(-INF, -1), ["x"], ["x"]),
        ("l.u < r.v", Band(0, INF), ["u"], ["v"]),
        ("l.x + 3 <= r.y", Band(3, INF), ["x"], ["y"]),
        ("NOT (l.x + 3 > r.y)", Band(3, INF), ["x"], ["y"]),
        ("l.t < r.t - INTERVAL 1 SECOND", Band(SECOND + 1, INF), ["t"], ["t"]),
        ("l.d < r.d", Band(1, INF), ["d"], ["d"]),
        ("l.x - r.x < 5", Band(-4, INF), ["x"], ["x"]),
        # NaN makes these true, so that an order cannot serve them alone
        ("l.u - r.u >= -5", Anywhere(), [], []),
        ("l.u - r.u >= -5 AND r.u - l.u >= -5", Anywhere(), [], []),
        ("l.u - r.u >= -5 AND l.u - r.u <= 5", Band(-5, 5), ["u"], ["u"]),
        # a sign is kept, because NaN stays the greatest
        ("-l.u <= r.u", Band(0, INF), ["u * -1.0"], ["u"]),
    ],
)  # fmt: skip
def test_coordinates(
    condition: str, place: Place | None, left: list[str], right: list[str]
) -> None:
    if place is None:
        with pytest.raises(Exception, match="must get two numbers"):
            found(condition)
        return
    recognised = found(condition)
    assert type(recognised.place) is type(place)
    if isinstance(place, Band):
        assert isinstance(recognised.place, Band)
        assert (recognised.place.low, recognised.place.high) == pytest.approx(
            (place.low, place.high)
        )
        assert recognised.place.low <= place.low
        assert recognised.place.high >= place.high
    assert texts(recognised) == (left, right)


@pytest.mark.parametrize(
    ("condition", "widths"),
    [
        ("DISTANCE(l.u, l.v, r.u, r.v) <= 5", (5, 5)),
        ("5 > DISTANCE(r.u, r.v, l.u, l.v)", (5, 5)),
        ("DISTANCE(l.u, r.v, r.u, l.v) <= 5", (5, 5)),
        ("NOT DISTANCE(l.u, l.v, r.u, r.v) > 5", (5, 5)),
        ("DISTANCE(l.u, l.v, l.w, r.u, r.v, r.w) <= 0.5", (0.5, 0.5, 0.5)),
        ("DISTANCE_L1(l.u, l.v, r.u, r.v) <= 2", (2, 2)),
        ("DISTANCE_MAX(l.u, l.v, r.u, r.v) < 2", (2, 2)),
        ("DISTANCE_LP(3, l.u, l.v, r.u, r.v) <= 2", (2, 2)),
        ("(l.u - r.u) * (l.u - r.u) + (l.v - r.v) * (l.v - r.v) <= 9", (3, 3)),
        ("(l.u - r.u) * (l.u - r.u) + (l.v - r.v) * (l.v - r.v) < 3 * 3", (3, 3)),
        ("(r.u - l.u) * (r.u - l.u) + POWER(l.v - r.v, 2) <= POW(3, 2)", (3, 3)),
        ("SQRT(POWER(l.u - r.u, 2) + POWER(l.v - r.v, 2)) <= 3", (3, 3)),
        ("3 >= SQRT((l.u - r.u) * (l.u - r.u) + (l.v - r.v) * (l.v - r.v))", (3, 3)),
        ("POWER(l.u - r.u, 2) + POWER(l.v - r.v, 2) + POWER(l.w - r.w, 2) <= 9", (3, 3, 3)),
        ("4 * POWER(l.u - r.u, 2) + POWER(l.v - r.v, 2) <= 16", (2, 4)),
        ("(l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) <= 9", (3, 3)),
        ("ABS(l.u - r.u) <= 5 AND ABS(l.v - r.v) <= 7", (5, 7)),
        ("l.u BETWEEN r.u - 5 AND r.u + 5 AND r.v BETWEEN l.v - 7 AND l.v + 7", (5, 7)),
        ("l.x >= r.x AND l.x < r.x + 10 AND ABS(l.y - r.y) <= 1", (9, 1)),
    ],
)
def test_near(condition: str, widths: tuple[float, ...]) -> None:
    recognised = found(condition)
    assert isinstance(recognised.place, Near)
    assert recognised.place.widths == pytest.approx(widths)
    assert all(a >= b for a, b in zip(recognised.place.widths, widths, strict=True))
    left, right = texts(recognised)
    assert left == right
    names = ["x", "y"] if ".x" in condition else ["u", "v", "w"][: len(widths)]
    assert left == names


@pytest.mark.parametrize(
    ("condition", "left", "right"),
    [
        ("l.lo < r.hi AND r.lo < l.hi", ["lo", "hi"], ["lo", "hi"]),
        ("l.lo <= r.hi AND l.hi >= r.lo", ["lo", "hi"], ["lo", "hi"]),
        ("NOT (l.hi <= r.lo) AND NOT (r.hi <= l.lo)", ["lo", "hi"], ["lo", "hi"]),
        ("NOT (l.hi < r.lo OR r.hi < l.lo)", ["lo", "hi"], ["lo", "hi"]),
        ("l.x BETWEEN r.lo AND r.hi", ["CAST(x AS BIGINT)"] * 2, ["lo", "hi"]),
        ("r.x BETWEEN l.x AND l.y", ["x", "y"], ["x", "x"]),
        ("l.t < r.t + INTERVAL 5 SECONDS AND time_add(r.t, r.z) < time_add(l.t, l.z)",
         ["t", "time_add(t, z)"], ["time_add(t, z)", "time_add(t, 5000000)"]),
        ("(l.lo, l.hi) OVERLAPS (r.lo, r.hi)", ["least(lo, hi)", "greatest(lo, hi)"],
         ["least(lo, hi)", "greatest(lo, hi)"]),
        ("(r.lo, r.hi) OVERLAPS (l.lo, l.hi)", ["least(lo, hi)", "greatest(lo, hi)"],
         ["least(lo, hi)", "greatest(lo, hi)"]),
    ],
)  # fmt: skip
def test_overlap(condition: str, left: list[str], right: list[str]) -> None:
    recognised = found(condition)
    assert recognised.place == Overlap()
    assert texts(recognised) == (left, right)


@pytest.mark.parametrize(
    "condition",
    [
        "l.lo < r.hi AND r.lo < l.hi AND l.lo2 < r.hi2 AND r.lo2 < l.hi2",
        "l.lo < r.hi AND l.lo2 < r.hi2 AND r.lo < l.hi AND r.lo2 < l.hi2",
        "r.lo2 <= l.hi2 AND l.lo <= r.hi AND l.lo2 <= r.hi2 AND r.lo <= l.hi",
        "NOT (l.hi < r.lo OR r.hi < l.lo OR l.hi2 < r.lo2 OR r.hi2 < l.lo2)",
    ],
)
def test_boxes(condition: str) -> None:
    recognised = found(condition)
    assert recognised.place == Boxes(2)
    assert sorted(map(tuple, _pairs(recognised))) == [
        (("lo", "hi"), ("lo", "hi")),
        (("lo2", "hi2"), ("lo2", "hi2")),
    ]


def _pairs(recognised: Recognised) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    left, right = texts(recognised)
    return [((left[i], left[i + 1]), (right[i], right[i + 1])) for i in range(0, len(left), 2)]


def test_boxes_in_three_dimensions_and_of_points() -> None:
    three = found(
        "l.lo < r.hi AND r.lo < l.hi AND l.lo2 < r.hi2 AND r.lo2 < l.hi2 "
        "AND l.u < r.v AND r.u < l.v"
    )
    assert three.place == Boxes(3)
    points = found("l.z BETWEEN r.lo AND r.hi AND l.u BETWEEN r.lo2 AND r.hi2")
    assert points.place == Boxes(2)
    assert _pairs(points) == [(("z", "z"), ("lo", "hi")), (("u", "u"), ("lo2", "hi2"))]


@pytest.mark.parametrize(
    ("condition", "distance"),
    [
        ("LEVENSHTEIN(l.s, r.s) <= 2", 2),
        ("LEVENSHTEIN(r.s, l.s) < 2", 1),
        ("2 >= LEVENSHTEIN(l.s, r.s)", 2),
        ("LEVENSHTEIN(l.s, r.s) < 2.5", 2),
        ("NOT LEVENSHTEIN(l.s, r.s) > 3", 3),
        ("LEVENSHTEIN(l.s, r.s) = 1", 1),
        ("LEVENSHTEIN(l.s, r.s) <= 2 AND ABS(l.x - r.x) <= 5", 2),
        ("LEVENSHTEIN(lower(l.s), lower(r.s)) <= 2", 2),
    ],
)
def test_edit(condition: str, distance: int) -> None:
    recognised = found(condition)
    assert recognised.place == Edit(distance)
    left, right = texts(recognised)
    assert left == right == (["lower(s)"] if "lower" in condition else ["s"])


@pytest.mark.parametrize(
    "condition",
    [
        "l.x <> r.x",
        "l.x * r.x <= 5",
        "l.x % r.x = 1",
        "l.s < r.s",
        "ABS(l.x - r.x) >= 5",
        "ABS(l.x + r.x - l.u) <= r.v",
        "DISTANCE(l.u, l.v, r.u, r.v) >= 5",
        "DISTANCE(l.u, l.v, r.u, r.v) <= r.w",
        "l.x < r.x OR l.y < r.y",
        "LEVENSHTEIN(l.s, r.s) > 2",
        "l.x < CASE WHEN r.x > l.y THEN 1 ELSE 2 END",
        "l.u / l.v <= r.u",  # a coordinate that can fail is not evaluated on every row
        "ABS(l.u - r.u) <= 1e400",
        "CAST(l.s AS INT) < r.x",
    ],
)
def test_anything_else(condition: str) -> None:
    recognised = found(condition)
    assert recognised.place == Anywhere()
    assert "every pair" in recognised.label


def test_no_condition() -> None:
    assert recognise(None, 3).place == Anywhere()


def test_labels() -> None:
    assert found("ABS(l.x - r.y) <= 5").label == (
        "Join in a band: right above left by -5 to 5 (left #0 and right #1)"
    )
    assert found("l.x < r.x").label.startswith("Join in a band: right above left by at least 1")
    assert "within 5, 5" in found("DISTANCE(l.u, l.v, r.u, r.v) <= 5").label
