"""Net changes of a bag: births and deaths of equal values at one instant cancel.

With ``b`` births and ``d`` deaths of a value at an instant, its count changes by ``b - d``; so
``min(b, d)`` of each are struck out, and what remains are only births or only deaths.  Values are
compared by their 128-bit hashes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys, codes, hash_columns
from penstock.model import I64, Batch, Ends, Mask


def without_ghosts(rows: Batch, ends: Ends) -> Batch:
    """Drop the rows that end, or are told to end, when they start."""
    if len(ends) == 0:
        return rows.drop_ghosts()
    ghost = rows.start >= np.minimum(rows.end, ends.lookup(rows.holder))
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


def shared_times(birth: I64, death: I64) -> tuple[Mask, Mask]:
    """Return which births and deaths happen at an instant that has both; only these can cancel."""
    if len(birth) == 0 or len(death) == 0:
        return np.zeros(len(birth), bool), np.zeros(len(death), bool)
    low, high = max(birth.min(), death.min()), min(birth.max(), death.max())
    if low > high:
        return np.zeros(len(birth), bool), np.zeros(len(death), bool)
    return _among(birth, np.unique(death)), _among(death, np.unique(birth))


def cancel(births: Keys, birth: I64, deaths: Keys, death: I64) -> tuple[Mask, Mask]:
    """Return which births (of values ``births`` at times ``birth``) and which deaths remain."""
    stay_born, stay_dead = np.ones(len(birth), bool), np.ones(len(death), bool)
    if len(birth) == 0 or len(death) == 0:
        return stay_born, stay_dead
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


def _among(times: I64, known: I64) -> Mask:
    at = np.searchsorted(known, times)
    at[at == len(known)] = 0
    found: Mask = known[at] == times
    return found


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
