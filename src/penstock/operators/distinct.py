"""DISTINCT: each value of a snapshot once.

A value is there while its count is above zero: it is born when the count leaves zero and dies when
the count returns to it.  Values are compared by the hash of all columns; nulls are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.model import I64, Batch, Ends
from penstock.operators.base import SlicedOperator
from penstock.runs.value_counts import ValueCounts


class DistinctOperator(SlicedOperator):
    """The values of the input without their copies."""

    reads_deaths = True

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__([types])

    def load(self) -> None:
        self._bags = ValueCounts(
            self.context.state, self.input_types[0], 1, True, False, self.context.merging
        )

    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        yield from self._bags.turn(rows, ends, until, _once, self.context.new_holders)

    def save(self) -> None:
        self._bags.save()


def _once(counts: list[I64]) -> I64:
    return np.minimum(counts[0], 1)
