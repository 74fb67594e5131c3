"""Net changes of a bag: births and deaths of equal values at one instant cancel.

With ``b`` births and ``d`` deaths of a value at an instant, its count changes by ``b - d``; so
``min(b, d)`` of each are struck out, and what remains are only births or only deaths.  Values are
compared by their 128-bit hashes.  Most births and deaths have no counterpart; a table of bits, one
per hash of time (and value), tells that without sorting, and only the others are looked at closely.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys, codes, hash_columns
from penstock.model import I64, U64, Batch, Ends, Mask, to_numpy

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads small differences over the upper bits of a product."""


def without_ghosts(rows: Batch, ends: Ends) -> Batch:
    """Drop the rows that end, or are told to end, when they start."""
    known = ends.told(rows.holder)
    if known is None:
        return rows.drop_ghosts()
    ghost = rows.start >= np.minimum(rows.end, known)
    return rows.take(~ghost) if ghost.any() else rows


def net_changes(born: Batch, died: Batch) -> tuple[Mask, Mask]:
    """Return which rows of ``born``, at their starts, and of ``died``, at their ends, remain."""
    stay_born, stay_dead = np.ones(len(born), bool), np.ones(len(died), bool)
    some_born, some_died = shared_times(born.start, died.end)
    if some_born.any():
        births, deaths = born.take(some_born), died.take(some_died)
        stay_born[some_born], stay_dead[some_died] = cancel(
            hash_columns(births.columns, len(births)),
            births.start,
            hash_columns(deaths.columns, len(deaths)),
            deaths.end,
        )
    return stay_born, stay_dead


def lasting(changes: Batch) -> Batch:
    """Strike out the births and deaths of equal values whatever their times.

    The last column is the sign.  What remains is the difference between the first and the last
    bag.
    """
    sign = to_numpy(changes.columns[-1])
    born, died = np.flatnonzero(sign > 0), np.flatnonzero(sign < 0)
    keys = hash_columns(changes.columns[:-1], len(changes))
    zeros = np.zeros(len(changes), np.int64)
    birth, death = cancel(keys.take(born), zeros[born], keys.take(died), zeros[died])
    return changes.take(np.concatenate([born[birth], died[death]]))


def shared_times(birth: I64, death: I64) -> tuple[Mask, Mask]:
    """Return which births and deaths may happen at an instant that has both.

    The others cannot cancel; some of those returned may not either.
    """
    return _may_meet(birth.view(np.uint64), death.view(np.uint64))


def cancel(births: Keys, birth: I64, deaths: Keys, death: I64) -> tuple[Mask, Mask]:
    """Return which births (of values ``births`` at times ``birth``) and which deaths remain."""
    stay_born, stay_dead = np.ones(len(birth), bool), np.ones(len(death), bool)
    if len(birth) == 0 or len(death) == 0:
        return stay_born, stay_dead
    some, others = (
        np.flatnonzero(mask)
        for mask in _may_meet(
            births.high ^ (birth.view(np.uint64) * _SPREAD),
            deaths.high ^ (death.view(np.uint64) * _SPREAD),
        )
    )
    if len(some) == 0:
        return stay_born, stay_dead
    stay_born[some], stay_dead[others] = _strike(
        births.take(some), birth[some], deaths.take(others), death[others]
    )
    return stay_born, stay_dead


def _strike(births: Keys, birth: I64, deaths: Keys, death: I64) -> tuple[Mask, Mask]:
    stay_born, stay_dead = np.ones(len(birth), bool), np.ones(len(death), bool)
    both = Keys.concat([births, deaths])
    time = np.concatenate([birth, death])
    lanes = (pa.array(both.high), pa.array(both.low), pa.array(time))
    code, first = codes(hash_columns(lanes, len(time)))
    born, dead = code[: len(birth)], code[len(birth) :]
    strike = np.minimum(
        np.bincount(born, minlength=len(first)), np.bincount(dead, minlength=len(first))
    )
    for code_of, stay in ((born, stay_born), (dead, stay_dead)):
        candidates = np.flatnonzero(strike[code_of])
        if len(candidates):
            mine = code_of[candidates]
            stay[candidates] = _occurrence(mine) >= strike[mine]
    return stay_born, stay_dead


def _may_meet(a: U64, b: U64) -> tuple[Mask, Mask]:
    """Return which of ``a`` are perhaps in ``b``, and the reverse; equal numbers always are."""
    if len(a) == 0 or len(b) == 0:
        return np.zeros(len(a), bool), np.zeros(len(b), bool)
    bits = min(max((8 * max(len(a), len(b))).bit_length(), 8), 24)
    shift = np.uint64(64 - bits)
    at_a = ((a * _SPREAD) >> shift).astype(np.int64)
    at_b = ((b * _SPREAD) >> shift).astype(np.int64)
    in_a, in_b = np.zeros(1 << bits, bool), np.zeros(1 << bits, bool)
    in_a[at_a] = True
    in_b[at_b] = True
    return in_b[at_a], in_a[at_b]


def _occurrence(code: I64) -> I64:
    """Return how many equal codes stand before each."""
    order = np.argsort(code, kind="stable")
    in_order = code[order]
    place = np.arange(len(code))
    new = np.ones(len(code), bool)
    new[1:] = in_order[1:] != in_order[:-1]
    result = np.empty(len(code), np.int64)
    result[order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return result
