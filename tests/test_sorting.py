"""Orders by counting are those of comparing; single copies match as any number of copies do."""

import numpy as np
import pytest

from penstock.kernels.counts import match_copies, match_single, order_events
from penstock.kernels.sorting import (
    order_of_codes,
    order_of_hashes,
    order_of_numbers,
    sorted_numbers,
)
from penstock.runs.merging import Merging

SIZES = (0, 1, 7, 5_000)


def some(size: int) -> list[np.ndarray]:
    draw = np.random.default_rng(size)
    holders = draw.integers(10**15, 10**15 + 3 * size + 1, size)
    return [
        draw.integers(0, size + 1, size),
        np.where(draw.random(size) < 0.2, 0, holders),
        draw.permutation(size) + 10**16,
        draw.integers(0, 2**62, size),
        draw.integers(-5, size + 1, size),
        np.arange(size),
        np.zeros(size, np.int64),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_ordered_as_by_comparing(size):
    for numbers in some(size):
        assert (order_of_numbers(numbers) == np.argsort(numbers, kind="stable")).all()
        assert (sorted_numbers(numbers) == np.sort(numbers)).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("distinct", [3, 2**40, 2**64 - 1])
def test_hashes_are_ordered_as_by_comparing(size, distinct):
    hashes = np.random.default_rng(size).integers(0, distinct, size, np.uint64)
    assert (order_of_hashes(hashes) == np.argsort(hashes, kind="stable")).all()


@pytest.mark.parametrize("codes", [1, 70, 70_000, 2**33])
def test_codes_are_ordered_as_by_comparing(codes):
    code = np.random.default_rng(codes).integers(0, codes, 5_000)
    assert (order_of_codes(code, codes) == np.argsort(code, kind="stable")).all()


@pytest.mark.parametrize("in_order", [True, False])
def test_events_are_sorted_by_code_and_time(in_order):
    draw = np.random.default_rng(7)
    code, time = draw.integers(0, 50, 4_000), draw.integers(100, 900, 4_000)
    time = np.sort(time) if in_order else time
    steps = order_events(
        np.concatenate((np.arange(50), code)), np.concatenate((np.zeros(50, np.int64), time)), 50
    )
    events = sorted({(c, t) for c, t in zip(code.tolist(), time.tolist(), strict=True)})
    new = ~steps.old
    assert list(zip(steps.code[new].tolist(), steps.time[new].tolist(), strict=True)) == events
    assert (steps.code[steps.begin] == np.arange(50)).all()


def test_single_copies_match_as_many_do():
    draw = np.random.default_rng(3)
    code, time = draw.integers(0, 40, 1_000), np.sort(draw.integers(0, 10**6, 1_000))
    steps = order_events(
        np.concatenate((np.arange(40), code)), np.concatenate((np.zeros(40, np.int64), time)), 40
    )
    there = draw.integers(0, 2, len(steps))
    single, many = match_single(steps, there), match_copies(steps, there)
    for name in ("born_code", "born_step", "born_until", "dead_code", "dead_step"):
        assert (getattr(single, name) == getattr(many, name)).all(), name


def test_small_runs_do_not_drag_large_ones_along():
    merging = Merging()
    sizes = [100_000, 1] * 10
    assert merging.alike(sizes) == []
    assert merging.alike([100_000, 1] * 16) == list(range(0, 32, 2))
    assert merging.choose([250_000, 100_000, 1, 50_000]) is None
    assert merging.choose([250_000, 1, 1, 1, 1]) == (1, 5)
