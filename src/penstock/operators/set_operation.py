"""INTERSECT and EXCEPT, with and without ALL: arithmetic on the counts of equal values [E 4.2.5].

With ``k1`` and ``k2`` copies on the two sides, the snapshot of the output holds

    INTERSECT ALL   min(k1, k2)          EXCEPT ALL   max(k1 - k2, 0)
    INTERSECT       1 if both are > 0    EXCEPT       1 if k1 > 0 and k2 = 0

copies.  Values are compared by the hash of all columns; nulls are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import NotSupportedError
from penstock.model import I64, Batch, Ends, Mask
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.value_counts import ValueCounts


@dataclass(frozen=True)
class SetSpec(Spec):
    """``kind`` is 'intersect' or 'except'; ``all`` keeps copies."""

    types: Sequence[pa.DataType]
    kind: str
    all: bool

    key = "set operation/1"

    def build(self) -> SetOperator:
        return SetOperator(self)


class SetOperator(SlicedOperator):
    """INTERSECT or EXCEPT of two inputs."""

    reads_deaths = True

    def __init__(self, spec: SetSpec) -> None:
        super().__init__([spec.types, spec.types])
        if (spec.kind, spec.all) not in _ARITHMETIC:
            raise NotSupportedError(
                f"a set operation is 'intersect' or 'except', got '{spec.kind}'"
            )
        self._kind = spec.kind
        self._all = spec.all

    def load(self) -> None:
        self._bags = ValueCounts(
            self.context.state,
            self.input_types[0],
            inputs=2,
            single=not self._all,
            reborn=self._kind == "except",
            merging=self.context.merging,
        )

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        arithmetic = _ARITHMETIC[self._kind, self._all]
        holders = self.context.new_holders
        yield from self._bags.advance(slice.rows, slice.ends, slice.until, arithmetic, holders)

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
