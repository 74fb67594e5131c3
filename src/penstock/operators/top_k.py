"""ORDER BY .. LIMIT k: the first k rows of each snapshot.

Ties are broken by all columns, so the answer is one; identical rows are interchangeable.  The
slice is cut at every start and end into elementary intervals; `kernels.sweep.k_best` finds the k
best rows of each; a row enters where it is in a list but not in the one before, and leaves where
it is the other way round.  Between the two it is one row of the output.  A row that is among the k
best when the slice ends is open and carries a holder.

The state holds the candidates: the live rows, except those for which k better rows with known ends
live at least as long (`kernels.sweep.skyband`).  One more column has the holder of the row in the
output, or 0 if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.kernels.order import dense_ranks, sort_indices
from penstock.kernels.steps import group_starts
from penstock.kernels.sweep import NONE, k_best, skyband
from penstock.model import I64, INF, Batch, Ends, Mask, to_numpy
from penstock.operators.base import SlicedOperator
from penstock.operators.inbox import Slice
from penstock.operators.spec import Spec

_NAME = "candidates"


@dataclass(frozen=True)
class TopKSpec(Spec):
    """``order`` lists (expression, descending, nulls first); ``limit`` is k."""

    types: Sequence[pa.DataType]
    order: tuple[tuple[Expr, bool, bool], ...]
    limit: int

    key = "top/1"

    def build(self) -> TopKOperator:
        return TopKOperator(self)


class TopKOperator(SlicedOperator):
    """The first rows of each snapshot."""

    def __init__(self, spec: TopKSpec) -> None:
        super().__init__([spec.types])
        self._order = spec.order
        self._limit = spec.limit

    def load(self) -> None:
        kept = [Batch.from_table(r.table()) for r in self.context.state.runs(_NAME)]
        self._candidates = Batch.concat(
            kept or [self._with_holder(Batch.empty(self.input_types[0]))]
        )
        self._touched = False

    def save(self) -> None:
        if self._touched:
            self.context.state.drop(_NAME)
            self.context.state.append(_NAME, self._candidates.to_table())

    def slice(self, slice: Slice) -> Iterator[Batch | Ends]:
        if self._limit == 0:
            return
        told, until = slice.ends[0], slice.until
        batch = Batch.concat([self._candidates, self._with_holder(slice.rows[0])])
        old = len(self._candidates)
        end = np.minimum(batch.end, told.lookup(batch.holder)) if len(told) else batch.end
        real = batch.start < end
        if not real.all():
            batch, end = batch.take(real), end[real]
        dying = end < until
        times = np.sort(np.concatenate((batch.start[old:], end[dying])))
        times = times[group_starts(times)]
        if len(times) == 0:
            return
        limit = min(self._limit, len(batch))
        rank, by_rank = self._ranks(batch)
        first = np.zeros(len(batch), np.int64)
        first[old:] = np.searchsorted(times, batch.start[old:])
        last = np.where(dying, np.searchsorted(times, end), len(times))
        shown = to_numpy(batch.columns[-1]).copy()
        row, position, enters = self._crossings(
            first, last, rank, by_rank, shown, len(times), limit
        )
        time = times[position]
        same = row[1:] == row[:-1]
        ended = np.append(same, False) & enters
        finish = np.full(len(row), INF, np.int64)
        finish[:-1][ended[:-1]] = time[1:][ended[:-1]]
        open_ = enters & ~ended
        told_now = ~enters & ~np.append(False, same & enters[:-1])
        if told_now.any():
            yield Ends.of(shown[row[told_now]], time[told_now])
            shown[row[told_now]] = 0
        holder = np.zeros(len(row), np.int64)
        holder[open_] = self.context.new_holders(int(open_.sum()))
        shown[row[open_]] = holder[open_]
        if enters.any():
            taken = pa.array(row[enters])
            yield Batch(
                tuple(c.take(taken) for c in batch.columns[:-1]),
                time[enters],
                finish[enters],
                holder[enters],
            )
        live = ~dying
        live[live] = skyband(batch.end[live], rank[live], batch.holder[live] == 0, limit)
        columns = (*batch.columns[:-1], pa.array(shown))
        self._candidates = Batch(columns, batch.start, batch.end, batch.holder).take(live)
        self._touched = True

    def _with_holder(self, batch: Batch) -> Batch:
        columns = (*batch.columns, pa.array(np.zeros(len(batch), np.int64)))
        return Batch(columns, batch.start, batch.end, batch.holder)

    def _ranks(self, batch: Batch) -> tuple[I64, I64]:
        """Return the place of each row in the order, and the row at each place."""
        values = batch.columns[:-1]
        columns = [evaluate(e, values, len(batch)) for e, _, _ in self._order] + list(values)
        descending = [d for _, d, _ in self._order] + [False] * len(values)
        nulls_first = [n for _, _, n in self._order] + [True] * len(values)
        major = dense_ranks(columns[:1], descending[:1], nulls_first[:1])
        by_rank = np.argsort(major)
        in_order = major[by_rank]
        equal = in_order[1:] == in_order[:-1]
        if equal.any():  # only ties need the other columns
            tied = np.append(equal, False) | np.append(False, equal)
            rows = by_rank[tied]
            some = [c.take(pa.array(rows)) for c in columns]
            by_rank[tied] = rows[sort_indices(some, descending, nulls_first)]
        rank = np.empty(len(by_rank), np.int64)
        rank[by_rank] = np.arange(len(by_rank))
        return rank, by_rank

    def _crossings(
        self, first: I64, last: I64, rank: I64, by_rank: I64, shown: I64, size: int, k: int
    ) -> tuple[I64, I64, Mask]:
        """Return where rows enter and leave the first k: ``(row, position, enters)``, sorted."""
        before = np.full((1, k), NONE, np.int64)
        present = np.sort(rank[shown != 0])
        before[0, : len(present)] = present
        ranks, positions, entering = [], [], []
        at = 0
        memory = max(self.context.block * 16, k)
        for lists in k_best(first, last, rank, size, k, memory):
            both = np.concatenate((before, lists))
            changed = np.flatnonzero((both[1:] != both[:-1]).any(axis=1))
            tagged = np.concatenate(
                (
                    np.where(both[changed] == NONE, NONE, both[changed] * 2),
                    np.where(both[changed + 1] == NONE, NONE, both[changed + 1] * 2 + 1),
                ),
                axis=1,
            )
            tagged.sort(axis=1)
            single = tagged != NONE
            twin = (tagged[:, 1:] >> 1) == (tagged[:, :-1] >> 1)
            single[:, 1:] &= ~twin
            single[:, :-1] &= ~twin
            where, _ = np.nonzero(single)
            found = tagged[single]
            ranks.append(found >> 1)
            entering.append((found & 1).astype(bool))
            positions.append(changed[where] + at)
            at += len(lists)
            before = lists[-1:].copy()
        row = by_rank[np.concatenate(ranks)]
        position, enters = np.concatenate(positions), np.concatenate(entering)
        order = np.lexsort((position, row))
        return row[order], position[order], enters[order]
