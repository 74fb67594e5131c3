"""Stable orders of integers by counting, which costs the same whatever the processor compares.

NumPy counts 16 bits at a time; wider numbers take several rounds, the least digit first.  Numbers
that consist of a few ascending stretches are merged instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.model import I64, U64

_DIGIT = 16
_FEW = 2048
"""Below so many numbers rounds do not pay."""
_NEAR = 8
"""Numbers are near one another if their range is at most so many times their count."""
_STRETCHES = 64
"""Of up to so many ascending stretches a merge is the cheapest order."""


def order_of_codes(code: I64, codes: int) -> I64:
    """Return the stable order of codes in ``[0, codes)``."""
    if len(code) < _FEW or codes > 1 << (2 * _DIGIT):
        return np.argsort(code, kind="stable")
    order = np.argsort(code.astype(np.uint16), kind="stable")
    if codes > 1 << _DIGIT:
        order = order[np.argsort((code >> _DIGIT).astype(np.uint16)[order], kind="stable")]
    return order


def order_of_hashes(hashes: U64) -> I64:
    """Return the stable order of numbers that are spread over all their bits.

    Their upper halves order nearly all; where they do not, merging what is nearly in order does.
    """
    if len(hashes) < _FEW or in_stretches(hashes):
        return np.argsort(hashes, kind="stable")
    upper = (hashes >> np.uint64(32)).astype(np.uint32)
    order = np.argsort(upper.astype(np.uint16), kind="stable")
    order = order[np.argsort((upper >> np.uint32(_DIGIT)).astype(np.uint16)[order], kind="stable")]
    ordered = hashes[order]
    if (ordered[1:] < ordered[:-1]).any():
        order = order[np.argsort(ordered, kind="stable")]
    return order


def order_of_numbers(numbers: I64) -> I64:
    """Return the stable order of numbers that are 0 or, most likely, near one another."""
    if len(numbers) < _FEW or in_stretches(numbers):
        return np.argsort(numbers, kind="stable")
    high = int(numbers.max())
    low = int(np.min(numbers, where=numbers > 0, initial=high))
    if numbers.min() < 0 or high - low > 1 << (2 * _DIGIT - 1):
        return np.argsort(numbers, kind="stable")
    return order_of_codes(np.maximum(numbers - (low - 1), 0), high - low + 2)


def sorted_numbers(numbers: I64) -> I64:
    """Return numbers that are 0 or, most likely, near one another, in order.

    Where they are near, each is counted at its place.
    """
    if len(numbers) < _FEW or in_stretches(numbers):
        return np.sort(numbers, kind="stable")
    high = int(numbers.max())
    low = int(np.min(numbers, where=numbers > 0, initial=high))
    if numbers.min() < 0 or high - low > _NEAR * len(numbers):
        return np.sort(numbers)
    counts = np.bincount(np.maximum(numbers - (low - 1), 0))
    values = np.arange(low - 1, high + 1)
    values[0] = 0
    return np.repeat(values, counts)


def in_stretches(numbers: npt.NDArray[Any]) -> bool:
    """Whether numbers are a few ascending stretches, which a stable sort merges."""
    return int(np.count_nonzero(numbers[1:] < numbers[:-1])) < _STRETCHES
