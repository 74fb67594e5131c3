"""When the intervals of a code, such as the number of a row, cover time, and when they do not.

Each code is covered up to an instant.  Intervals that begin there or before prolong that; those
beyond make covered stretches of their own.  Most codes have no stretch of their own, so what
prolongs is found without sorting, in a few rounds, and only the rest is put in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.kernels.sorting import order_of_codes
from penstock.model import I64, INF, MIN_TIME

_ROUNDS = 4
"""So often intervals may be looked for that prolong what is covered; then they are sorted."""
_WIDEST = 16
"""Up to this span per number, a table of the whole span is cheaper than sorting the numbers."""


@dataclass(frozen=True)
class Covers:
    """Up to when each code is covered without a break, and the stretches beyond.

    The stretches are those of ``code``, sorted by it and by time; none touches another one.
    """

    until: I64
    code: I64
    start: I64
    end: I64


def covers(until: I64, code: I64, start: I64, end: I64) -> Covers:
    """Add intervals, none of them empty, to what is covered: each code ``until`` an instant."""
    until = until.copy()
    rest = np.flatnonzero(end > until[code])
    code, start, end = code[rest], start[rest], end[rest]
    for _ in range(_ROUNDS):
        near = start <= until[code]
        if not near.any():
            break
        np.maximum.at(until, code[near], end[near])
        beyond = ~near
        beyond[beyond] = end[beyond] > until[code[beyond]]
        code, start, end = code[beyond], start[beyond], end[beyond]
    if len(code) == 0:
        return Covers(until, code, start, end)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        order = order[order_of_codes(code[order], len(until))]
    else:
        order = order_of_codes(code, len(until))
    return _stretches(until, code[order], start[order], end[order])


def _stretches(until: I64, code: I64, start: I64, end: I64) -> Covers:
    """Do the same with intervals sorted by code and start; ``until`` is overwritten.

    Times are compared as numbers that fit into one with the code: how long after the first start
    they are, or, where that is too much, how many starts they reach.
    """
    base, last = int(start.min()) - 1, int(end.max())  # not in NumPy: base may be out of its range
    span = last - base + 1
    if base > MIN_TIME and span * len(until) < INF:

        def reaching(time: I64) -> I64:
            reached: I64 = code * span + (np.clip(time, base, last) - base)
            return reached
    else:
        instants = np.unique(start)
        bits = len(instants).bit_length()

        def reaching(time: I64) -> I64:
            reached: I64 = (code << bits) | np.searchsorted(instants, time, "right")
            return reached

    reached = np.maximum.accumulate(reaching(end))
    before = reaching(until[code])
    np.maximum(before[1:], reached[:-1], out=before[1:])
    apart = reaching(start) > before
    begins = apart.copy()
    begins[0] = True
    begins[1:] |= code[1:] != code[:-1]
    first = np.flatnonzero(begins)
    apart = apart[first]
    code, start, end = code[first], start[first], np.maximum.reduceat(end, first)
    longer = ~apart
    until[code[longer]] = np.maximum(until[code[longer]], end[longer])
    return Covers(until, code[apart], start[apart], end[apart])


def dense_numbers(numbers: I64) -> tuple[I64, I64]:
    """Return the distinct numbers, ascending, and the place of each number among them.

    Numbers that were given at about the same time are close together: then nothing is sorted.
    """
    least = int(numbers.min()) if len(numbers) else 0
    span = int(numbers.max()) - least + 1 if len(numbers) else 0
    if span > _WIDEST * len(numbers):
        distinct, place = np.unique(numbers, return_inverse=True)
        return distinct, place
    offset = numbers - least
    there = np.zeros(span, bool)
    there[offset] = True
    return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[offset]
