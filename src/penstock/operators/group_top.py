"""The first rows of each group: those whose ROW_NUMBER, RANK or DENSE_RANK is at most n.

`kernels.group_ranks` finds who is in at every step of the groups that a slice touches
(`runs.ordered_groups`).  Where the number is shown, a row is cut where its number changes.

Of a group only those rows are kept that can still be among the first: a row for which enough better
rows with known ends live at least as long is dropped.  Of rows that never leave, n stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.group_ranks import Places, keepers, numbered
from penstock.model import Batch, Ends, Mask
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec
from penstock.runs.ordered_groups import Groups, OrderBy, OrderedGroups, Runs


@dataclass(frozen=True)
class GroupTopSpec(Spec):
    """The rows of each group of equal ``partition`` whose number ``by`` is at most ``limit``.

    ``partition`` are positions of columns; ``order`` lists (expression, descending, nulls first).
    ``shown``: the number is one more column.
    """

    types: Sequence[pa.DataType]
    partition: tuple[int, ...]
    order: OrderBy
    by: str
    limit: int
    shown: bool

    key = "group top/1"

    def build(self) -> GroupTopOperator:
        return GroupTopOperator(self)


class GroupTopOperator(SlicedOperator):
    """The first rows of each group of a snapshot."""

    reads_deaths = True

    def __init__(self, spec: GroupTopSpec) -> None:
        super().__init__([spec.types])
        self._spec = spec
        self._by = spec.by
        self._shown = spec.shown

    def load(self) -> None:
        spec, context = self._spec, self.context
        self._groups = OrderedGroups(
            context.state, spec.types, spec.partition, spec.order, context.merging
        )

    def save(self) -> None:
        self._groups.save()

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        rows, ends = slice.rows[0], slice.ends[0]
        return self._groups.turn(rows, ends, slice.until, self, self.context.new_holders)

    def runs(self, groups: Groups) -> Iterator[Runs]:
        """Yield who is among the first at which steps."""
        limit = self._most(groups)
        if limit < 1:
            return
        steps = groups.steps
        places = Places(groups.peers, groups.first, groups.last, steps.begin, len(steps))
        found = numbered(places, self._by, limit, self._shown, self._memory(limit))
        columns = [pa.array(found.number)] if self._shown else []
        yield Runs(found.row, found.first, found.last, columns)

    def needed(self, groups: Groups) -> Mask:
        """Return which rows may still be among the first."""
        keep = np.zeros(len(groups.alive), bool)
        limit = self._most(groups)
        if limit < 1:
            return keep
        live = np.flatnonzero(groups.alive)
        at = groups.order[live]
        end, sure = groups.rows.end[at], groups.rows.holder[at] == 0
        keep[live] = keepers(
            groups.code[live], end, sure, live, groups.peers[live],
            self._by, limit, self._memory(limit),
        )  # fmt: skip
        return keep

    def _most(self, groups: Groups) -> int:
        """Return the limit, or the rows of the largest group if these are fewer."""
        if len(groups.code) == 0:
            return 0
        return min(self._spec.limit, int(np.bincount(groups.code).max()))

    def _memory(self, limit: int) -> int:
        """Return how many entries matrices may have."""
        return max(self.context.block * 16, limit)
