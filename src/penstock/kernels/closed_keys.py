"""Closed keys: parts of a stream of which nothing more comes, as sorted hashes.

A row whose key is closed breaks a promise if its time is below ``until``, which is ``INF`` for one
that holds for ever.  A key takes 24 bytes, and is found by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.keys import Keys, codes
from penstock.kernels.order import key_ranges
from penstock.model import I64, MIN_TIME, Mask, to_numpy


@dataclass(frozen=True)
class ClosedKeys:
    """Keys in order of both lanes, each once, and until when each is closed."""

    keys: Keys
    until: I64

    def __len__(self) -> int:
        return len(self.until)

    @staticmethod
    def of(keys: Keys, until: I64) -> ClosedKeys:
        """Sort keys; of several that are equal the longest promise counts."""
        if len(keys) == 0:
            return ClosedKeys(keys, until)
        order = np.lexsort((until, keys.low, keys.high))
        keys, until = keys.take(order), until[order]
        last = np.ones(len(until), np.bool_)
        last[:-1] = (keys.high[1:] != keys.high[:-1]) | (keys.low[1:] != keys.low[:-1])
        at = np.flatnonzero(last)
        return ClosedKeys(keys.take(at), until[at])

    @staticmethod
    def concat(parts: Sequence[ClosedKeys]) -> ClosedKeys:
        """Put some together; at least one is needed."""
        if len(parts) == 1:
            return parts[0]
        keys = Keys.concat([part.keys for part in parts])
        return ClosedKeys.of(keys, np.concatenate([part.until for part in parts]))

    def take(self, mask: Mask) -> ClosedKeys:
        """Return those where a mask is true."""
        if mask.all():
            return self
        at = np.flatnonzero(mask)
        return ClosedKeys(self.keys.take(at), self.until[at])

    def closed_until(self, keys: Keys) -> I64:
        """Return until when each key is closed; ``MIN_TIME`` where it is not."""
        found = np.full(len(keys), MIN_TIME, np.int64)
        if len(self) and len(keys):
            first, last = key_ranges(self.keys.high, self.keys.low, keys)
            there = first < last
            found[there] = self.until[first[there]]
        return found

    def to_table(self) -> pa.Table:
        return pa.table({"high": self.keys.high, "low": self.keys.low, "until": self.until})

    @staticmethod
    def from_table(table: pa.Table) -> ClosedKeys:
        high, low, until = (to_numpy(table.column(name)) for name in ("high", "low", "until"))
        return ClosedKeys(Keys(high, low), until)


def closed_before(keys: Keys, until: I64) -> I64:
    """Return until when the key of each row is closed by the rows before it.

    ``until`` is what each row promises of its own key, ``MIN_TIME``: nothing.
    """
    code, _ = codes(keys)
    order = np.argsort(code, kind="stable")
    levels, rank = np.unique(until, return_inverse=True)
    base = code[order] * len(levels)
    reached = np.maximum.accumulate(base + rank[order])  # a code's ranks lie above those before it
    before = np.full(len(until), MIN_TIME, np.int64)
    same = code[order][1:] == code[order][:-1]
    before[order[1:][same]] = levels[(reached - base)[:-1][same]]
    return before
