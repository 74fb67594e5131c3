"""DISTINCT: each value of a snapshot once.

A value is there while its count is above zero: it is born when the count leaves zero and dies when
the count returns to it.  Values are compared by the hash of all columns; nulls are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.model import I64, Batch, Closed, Ends, Message
from penstock.operators.base import Columns, SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.value_counts import ValueCounts


@dataclass(frozen=True)
class DistinctSpec(Spec):
    """Take each value of a snapshot once."""

    types: Sequence[pa.DataType]

    key = "distinct/1"

    def build(self) -> DistinctOperator:
        return DistinctOperator(self)


class DistinctOperator(SlicedOperator):
    """The values of the input without their copies."""

    reads_deaths = True

    def __init__(self, spec: DistinctSpec) -> None:
        super().__init__([spec.types])

    def uses_part(self, port: int, closed: Closed) -> bool:
        return not closed.numbered

    def close_part(self, port: int, closed: Closed) -> Iterable[Message]:
        """Pass it on: a value that does not come again is not born again."""
        return (closed,)

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        return [columns for _, columns in known]

    def load(self) -> None:
        self._bags = ValueCounts(
            self.context.state, self.input_types[0], 1, True, False, self.context.merging
        )

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        holders = self.context.new_holders
        yield from self._bags.advance(slice.rows, slice.ends, slice.until, _once, holders)

    def save(self) -> None:
        self._bags.save()


def _once(counts: list[I64]) -> I64:
    return np.minimum(counts[0], 1)
