"""Exact sums against fractions, and over ten million values that come and go."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DataError
from penstock.kernels import exact
from penstock.kernels.exact import Digits
from tests.examples import examples

finite = st.floats(allow_nan=False, allow_infinity=False)
mixed = st.lists(
    st.one_of(
        finite,
        st.floats(-1e3, 1e3),
        st.sampled_from([0.1, -0.1, 1e16, -1e16, 5e-324, 2.0**-1022, 1.7e308, -1.7e308, 2.0**53]),
    ),
    min_size=1,
    max_size=30,
)


def summed(digits: Digits) -> Digits:
    return {b: np.array([d.sum()]) for b, d in digits.items()}


def value(digits: Digits) -> Fraction:
    return sum(
        (Fraction(int(d[0])) * Fraction(2) ** (32 * b) for b, d in digits.items()), Fraction(0)
    )


def nearest(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


@settings(deadline=None, max_examples=examples(300))
@given(mixed)
def test_a_sum_is_the_nearest_double(numbers: list[float]) -> None:
    digits = summed(exact.split_doubles(np.array(numbers)))
    true = sum(map(Fraction, numbers), Fraction(0))
    assert value(digits) == true
    normal = exact.normalise(digits)
    assert value(normal) == true
    assert all(-(2**31) <= d[0] < 2**31 and d[0] for d in normal.values())
    assert exact.to_double(digits, 1)[0] == nearest(true)
    assert exact.to_double(normal, 1)[0] == nearest(true)


@settings(deadline=None, max_examples=examples(200))
@given(st.dictionaries(st.integers(-3, 4), st.integers(-(2**61), 2**61), min_size=1, max_size=6))
def test_any_digits_are_rounded_once(drawn: dict[int, int]) -> None:
    digits = {b: np.array([d, -d]) for b, d in drawn.items()}
    true = value(digits)
    assert exact.to_double(digits, 2).tolist() == [nearest(true), nearest(-true)]


@pytest.mark.parametrize("low", [0, 1, -1, 2**20, -(2**31)])
@pytest.mark.parametrize("bits", [53, 54, 62, 63, 64, 90, 94])
@pytest.mark.parametrize("far", [0, 1, -1])
def test_ties(low: int, bits: int, far: int) -> None:
    """Numbers at and next to the middle between two doubles, with a grain far below."""
    for half in (2**bits + 2 ** (bits - 53), 2**bits + 3 * 2 ** (bits - 53), 2**bits):
        number = half + low
        digits = {i: np.array([(number >> (32 * i)) & 0xFFFFFFFF]) for i in range(4)}
        digits[-9] = np.array([far])
        true = Fraction(number) + far * Fraction(2) ** (-9 * 32)
        assert exact.to_double(digits, 1)[0] == float(true)


@settings(deadline=None, max_examples=examples(200))
@given(mixed)
def test_variances(numbers: list[float]) -> None:
    values, count = np.array(numbers), np.array([len(numbers)])
    sums, squares = summed(exact.split_doubles(values)), summed(exact.split_squares(values))
    fractions = [Fraction(x) for x in numbers]
    assert value(squares) == sum(x * x for x in fractions)
    parts = exact.variance_parts(count, sums, squares)
    true = len(numbers) * sum(x * x for x in fractions) - sum(fractions) ** 2
    got = Fraction(parts[0][0]) * Fraction(2) ** int(parts[1][0])
    assert abs(got - true) <= true * Fraction(1, 2**53)
    variance = true / len(numbers) ** 2
    if Fraction(2) ** -1000 < variance < Fraction(2) ** 1000:
        assert math.isclose(exact.variance(count, parts, False)[0], variance, rel_tol=3e-16)
        root = exact.deviation(count, parts, False)[0]
        assert math.isclose(Fraction(root) ** 2, variance, rel_tol=1e-15)


def test_equal_values_have_no_variance() -> None:
    values = np.full(1000, 1e9 + 0.1)
    parts = exact.variance_parts(
        np.array([1000]), summed(exact.split_doubles(values)), summed(exact.split_squares(values))
    )
    assert exact.variance(np.array([1000]), parts, True)[0] == 0.0


def test_what_is_not_finite_is_counted() -> None:
    values = np.array([1.0, math.nan, math.inf, -math.inf])
    cases = [
        ([1, 0, 0, 0], 1.0),
        ([1, 1, 0, 0], math.nan),
        ([1, 0, 1, 0], math.inf),
        ([1, 0, 0, 1], -math.inf),
        ([1, 0, 1, 1], math.nan),
    ]
    for weights, want in cases:
        there = np.repeat(values, weights)
        both = np.concatenate((there, values, values))
        sign = np.repeat([1, 1, -1], [len(there), 4, 4])  # what came and went leaves no trace
        digits = summed(exact.split_doubles(both, sign))
        got = exact.to_double(exact.normalise(digits), 1)[0]
        assert got == want or (math.isnan(got) and math.isnan(want))


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_sums_of_integers(numbers: list[int]) -> None:
    digits = summed(exact.split_integers(np.array(numbers, np.int64)))
    true = sum(numbers)
    for some in (digits, exact.normalise(digits)):
        values, beyond = exact.to_integer(some, 1)
        assert beyond[0] == (not -(2**63) <= true < 2**63)
        if beyond[0]:
            with pytest.raises(DataError, match="SUM exceeded BIGINT"):
                exact.checked_integer(some, 1)
        else:
            assert values[0] == true
        assert exact.to_double(some, 1)[0] == float(true)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.one_of(mixed, st.just([])), min_size=1, max_size=6))
def test_packing(groups: list[list[float]]) -> None:
    digits: Digits = {}
    for row, numbers in enumerate(groups):
        for bin_, digit in exact.split_doubles(np.array(numbers, float)).items():
            digits.setdefault(bin_, np.zeros(len(groups), np.int64))[row] = digit.sum()
    normal = exact.normalise(digits)
    column = exact.pack(normal, len(groups))
    assert column.type == exact.PACKED
    longer = pa.concat_arrays([column, pa.nulls(1, exact.PACKED), column]).slice(1)
    again = exact.unpack(longer)
    want = exact.to_double(normal, len(groups)).tolist()
    assert exact.to_double(again, 2 * len(groups)).tolist() == [*want[1:], 0.0, *want]


def test_ten_million_values_do_not_drift() -> None:
    """A window slides over values of both signs and all sizes; emptied, it holds nothing."""
    chance = np.random.default_rng(7)
    size, batch = 10_000_000, 500_000
    values = chance.random(size) - 0.5
    values *= (10.0 ** np.arange(-12, 13))[chance.integers(0, 25, size)]
    window = 1_000_000
    state: Digits = {}
    for first in range(0, size + window, batch):
        came = values[first : first + batch]
        went = values[first - window : first - window + batch] if first >= window else values[:0]
        both = np.concatenate((came, went))
        sign = np.repeat([1, -1], [len(came), len(went)])
        change = summed(exact.split_doubles(both, sign))
        zero = np.zeros(1, np.int64)
        state = exact.normalise(
            {b: state.get(b, zero) + change.get(b, zero) for b in {*state, *change}}
        )
        if first % (8 * batch) == 0:
            alive = values[max(0, first + batch - window) : first + batch]
            assert exact.to_double(state, 1)[0] == math.fsum(alive.tolist())
    assert state == {}


def test_near_and_far_powers_of_two_in_one_column() -> None:
    """The sum of one group may need another way to be scaled than that of its neighbour."""
    for powers in ([0, 1500], [1500, 0], [0, -1500], [-900, 900], [-901, 901, 3], [1020, -1070]):
        found = exact.scale(np.full(len(powers), 3.0), np.array(powers, np.int64))
        expected = [math.inf if power > 1022 else math.ldexp(3.0, power) for power in powers]
        assert found.tolist() == expected
