"""INTERSECT and EXCEPT, with and without ALL: arithmetic on the counts of equal values [E 4.2.5].

With ``k1`` and ``k2`` copies on the two sides, the snapshot of the output holds

    INTERSECT ALL   min(k1, k2)          EXCEPT ALL   max(k1 - k2, 0)
    INTERSECT       1 if both are > 0    EXCEPT       1 if k1 > 0 and k2 = 0

copies.  Values are compared by the hash of all columns; nulls are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import NotSupportedError
from penstock.model import I64, Batch, Ends, Mask
from penstock.operators.base import SlicedOperator
from penstock.runs.value_counts import ValueCounts


class SetOperator(SlicedOperator):
    """``kind`` is 'intersect' or 'except'; ``all`` keeps copies."""

    reads_deaths = True

    def __init__(self, types: Sequence[pa.DataType], kind: str, all: bool) -> None:
        super().__init__([types, types])
        if (kind, all) not in _ARITHMETIC:
            raise NotSupportedError(f"a set operation is 'intersect' or 'except', got '{kind}'")
        self._kind = kind
        self._all = all

    def load(self) -> None:
        self._bags = ValueCounts(
            self.context.state,
            self.input_types[0],
            inputs=2,
            single=not self._all,
            reborn=self._kind == "except",
            merging=self.context.merging,
        )

    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        arithmetic = _ARITHMETIC[self._kind, self._all]
        yield from self._bags.turn(rows, ends, until, arithmetic, self.context.new_holders)

    def save(self) -> None:
        self._bags.save()


def _intersect_all(counts: list[I64]) -> I64:
    both: I64 = np.minimum(counts[0], counts[1])
    return both


def _intersect(counts: list[I64]) -> I64:
    there: Mask = (counts[0] > 0) & (counts[1] > 0)
    return there.astype(np.int64)


def _except_all(counts: list[I64]) -> I64:
    more: I64 = np.maximum(counts[0] - counts[1], 0)
    return more


def _except(counts: list[I64]) -> I64:
    there: Mask = (counts[0] > 0) & (counts[1] == 0)
    return there.astype(np.int64)


_ARITHMETIC: dict[tuple[str, bool], Callable[[list[I64]], I64]] = {
    ("intersect", True): _intersect_all,
    ("intersect", False): _intersect,
    ("except", True): _except_all,
    ("except", False): _except,
}
