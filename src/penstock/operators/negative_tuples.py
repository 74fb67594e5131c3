"""Negative tuples: every row comes once when it is born and once more, whole, when it dies.

Port 0 brings a relation by the direct method: rows with ends, or with holders that are told later.
No row that leaves tells its end beforehand: a row that lives for ever passes as it is; any other is
born with ``end == INF`` and a holder that no other row of the plan has, and dies as a row of a
``minus`` batch with the same values, start and holder, and its end.  So the rows that are alive
must be kept here until they die, with all their values, and every operator above works twice for
each of them [C 1, E 4.6.4].

When the input is over, rows that are still alive are sent again with the end ``INF``, so that an
output that waits for the ends of rows (`penstock.operators.output`) knows that they have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.changes import without_ghosts
from penstock.model import INF, Batch, Ends, to_numpy
from penstock.operators.base import SlicedOperator, few
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.lifetimes import Lifetimes


@dataclass(frozen=True)
class NegativeTuplesSpec(Spec):
    """Give the rows of a relation signs: once when they are born, once when they die."""

    types: Sequence[pa.DataType]

    key = "signs/1"
    holders = "none"

    def build(self) -> SignsOperator:
        return SignsOperator(self)

    @property
    def ends_rows(self) -> bool:
        return False


class SignsOperator(SlicedOperator):
    """Turns rows with lifetimes into positive and negative rows."""

    def __init__(self, spec: NegativeTuplesSpec) -> None:
        super().__init__([spec.types])

    def load(self) -> None:
        kept = (*self.input_types[0], pa.int64())
        state, merging = self.context.state, self.context.merging
        self._lives = Lifetimes(state, "live", kept, merging, keep_forever=False)

    def save(self) -> None:
        self._lives.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        numbered = []
        for rows in few(slice.parts[0]):
            born = without_ghosts(rows, slice.ends[0])
            if len(born) == 0:
                continue
            mortal = (born.end < INF) | (born.holder != 0)
            if mortal.all():
                number = self.context.new_holders(len(born))
            else:
                number = np.zeros(len(born), np.int64)
                number[mortal] = self.context.new_holders(int(mortal.sum()))
            yield Batch(born.columns, born.start, np.full(len(born), INF, np.int64), number)
            kept = Batch((*born.columns, pa.array(number)), born.start, born.end, born.holder)
            numbered.append(kept.take(mortal))
        for rows in self._lives.turn_parts(numbered, slice.ends[0], slice.until):
            yield _negative(rows)
        if slice.until == INF:
            alive = self._lives.live()
            if len(alive):
                yield _negative(alive)


def _negative(rows: Batch) -> Batch:
    holder = to_numpy(rows.columns[-1])
    return Batch(rows.columns[:-1], rows.start, rows.end, holder, minus=True)
