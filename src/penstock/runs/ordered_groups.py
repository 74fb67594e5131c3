"""The rows of a relation in groups, each in an order: what a slice touches, and what it changes.

A slice touches the groups in which a row starts or ends.  `OrderedGroups.turn` fetches their rows,
adds those of the slice, and orders them.  The times at which anything happens in a group are its
*steps* (`kernels.counts.Steps`); the first one stands for what was before the slice.  An operator
says which rows, with which further columns, are in its output at which steps: *runs*.  One that
begins at the first step of its group is there already; one that reaches the last is open and
carries a holder.

The state holds the rows of groups (`runs.grouped`), in their order, with one more column: the
holder of the row in the output, 0 if it is not there.  When rows die is kept apart (`Lifetimes`),
with the key of their group only; with negative tuples nothing of it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.kernels.changes import without_ghosts
from penstock.kernels.counts import Steps, group_codes, key_codes, order_events
from penstock.kernels.keys import Keys, hash_columns
from penstock.kernels.order import dense_ranks, sort_indices
from penstock.kernels.sorting import order_of_codes
from penstock.model import I64, INF, Batch, Deaths, Ends, Mask, to_numpy
from penstock.runs.grouped import GroupedRows
from penstock.runs.lifetimes import Lifetimes
from penstock.runs.merging import Merging
from penstock.runs.state import State

OrderBy = tuple[tuple[Expr, bool, bool], ...]
"""ORDER BY: (expression, descending, nulls first)."""


@dataclass(frozen=True)
class Runs:
    """Rows at the steps ``[first, last)``, each with further columns."""

    row: I64
    first: I64
    last: I64
    columns: Sequence[pa.Array]


@dataclass(frozen=True)
class Groups:
    """The groups that a slice touches: all their rows, in order, and their steps.

    Rows are numbered by group, order, and all columns; ``rows`` has them as they came, row i at
    ``order[i]``.  ``code`` is the group of each, ``peers`` the class of those that are equal in
    ORDER BY.  A row lives on if it is ``alive``; it is there at the steps ``[first, last)``.
    ``shown`` are the holders of rows in the output.
    """

    keys: Keys
    rows: Batch
    order: I64
    code: I64
    peers: I64
    alive: Mask
    first: I64
    last: I64
    steps: Steps
    shown: I64

    def emit(self, runs: Runs, new_holders: Callable[[int], I64]) -> Iterator[Batch | Ends]:
        """Yield rows, and the ends of those that were there before; note who is there now."""
        steps, row, shown = self.steps, runs.row, self.shown
        time = np.append(steps.time, 0)
        before = runs.first == steps.begin[self.code[row]]
        over = runs.last < steps.finish[self.code[row]]
        told = before & over
        if told.any():
            yield Ends.of(shown[row[told]], time[runs.last[told]])
            shown[row[told]] = 0
        new = np.flatnonzero(~before)
        if len(new) == 0:
            return
        row, over = row[new], over[new]
        holder = np.zeros(len(new), np.int64)
        holder[~over] = new_holders(int((~over).sum()))
        shown[row[~over]] = holder[~over]
        at, chosen = pa.array(self.order[row]), pa.array(new)
        yield Batch(
            (*(c.take(at) for c in self.rows.columns), *(c.take(chosen) for c in runs.columns)),
            time[runs.first[new]],
            np.where(over, time[runs.last[new]], INF),
            holder,
        )


class Numbering(Protocol):
    """What an operator makes of groups."""

    def runs(self, groups: Groups) -> Iterator[Runs]:
        """Yield which rows are in the output at which steps."""

    def needed(self, groups: Groups) -> Mask:
        """Return which rows must be kept, if they live on."""


class OrderedGroups:
    """The rows of groups of equal ``partition``, positions of columns, in an order."""

    def __init__(
        self,
        state: State,
        types: Sequence[pa.DataType],
        partition: tuple[int, ...],
        order: OrderBy,
        merging: Merging,
    ) -> None:
        lanes = [pa.uint64(), pa.uint64()]
        self._partition = partition
        self._order = order
        self._rows = GroupedRows(state, "groups", [*types, pa.int64()], merging)
        self._deaths = Lifetimes(state, "deaths", lanes, merging, keep_forever=False)

    def turn(
        self,
        births: Batch,
        told: Ends,
        until: int,
        numbering: Numbering,
        new_holders: Callable[[int], I64],
    ) -> Iterator[Batch | Ends]:
        """Work off what happens below ``until``: yield rows of the output, and their ends.

        ``told`` are the ends of holders, and perhaps the rows that die.
        """
        groups = self._touched(births, told, until)
        if groups is not None:
            for runs in numbering.runs(groups):
                yield from groups.emit(runs, new_holders)
            self._keep(groups, numbering.needed(groups))

    def _touched(self, births: Batch, told: Ends, until: int) -> Groups | None:
        """Return the groups in which rows start or end below ``until``; None if there are none."""
        births = without_ghosts(births, told)
        code, keys = self._keys(births)
        if isinstance(told, Deaths):
            own, theirs = self._keys(told.died())
            gone = theirs if len(theirs) < len(own) else theirs.take(own)
        else:
            lanes = (pa.array(keys.high[code]), pa.array(keys.low[code]))
            dead = self._deaths.advance(births.with_columns(lanes), told, until)
            gone = Keys(to_numpy(dead.columns[0]), to_numpy(dead.columns[1]))
        codes, touched = key_codes(Keys.concat([keys, gone]))
        if len(touched) == 0:
            return None
        return self._groups(births, codes[code], touched, told, until)

    def _keep(self, groups: Groups, needed: Mask) -> None:
        """Keep those rows of the groups that live on and are needed."""
        rest = np.flatnonzero(groups.alive & needed)
        rows = groups.rows.take(groups.order[rest])
        columns = (*rows.columns, pa.array(groups.shown[rest]))
        self._rows.put(groups.keys, groups.code[rest], rows.with_columns(columns))

    def save(self) -> None:
        """Merge pieces as the strategy says, and store them."""
        self._rows.save()
        self._deaths.save()

    def _keys(self, rows: Batch) -> tuple[I64, Keys]:
        """Return a code per row, and the key of each code."""
        if not self._partition:
            return np.zeros(len(rows), np.int64), hash_columns([], min(len(rows), 1))
        code, keys, _ = group_codes([rows.columns[i] for i in self._partition], len(rows))
        return code, keys

    def _groups(self, births: Batch, code: I64, touched: Keys, told: Ends, until: int) -> Groups:
        """Return the groups with all their rows."""
        owner, old = self._rows.get(touched)
        shown = np.concatenate((to_numpy(old.columns[-1]), np.zeros(len(births), np.int64)))
        births = Batch(births.columns, births.start, births.end, births.holder)
        rows = Batch.concat([old.with_columns(old.columns[:-1]), births])
        code = np.concatenate((owner, code))
        order, peers = self._arranged(rows, code)
        code = code[order]
        known = told.told(rows.holder)
        end = (rows.end if known is None else np.minimum(rows.end, known))[order]
        fresh, dying = order >= len(old), end < until
        count = len(touched)
        times = (np.zeros(count, np.int64), rows.start[order[fresh]], end[dying])
        of = (np.arange(count), code[fresh], code[dying])
        steps = order_events(np.concatenate(of), np.concatenate(times), count)
        step = steps.step_of_events()
        first, last = steps.begin[code], steps.finish[code]
        first[fresh] = step[count : count + int(fresh.sum())]
        last[dying] = step[len(step) - int(dying.sum()) :]
        return Groups(touched, rows, order, code, peers, ~dying, first, last, steps, shown[order])

    def _arranged(self, rows: Batch, code: I64) -> tuple[I64, I64]:
        """Return the order of rows by group, ORDER BY and all columns; and the classes of peers.

        Equal rows stay in the order in which they stood before: old ones first, as they were kept.
        """
        keys = [evaluate(e, rows.columns, len(rows)) for e, _, _ in self._order]
        down = [False, *(d for _, d, _ in self._order)]
        nulls = [True, *(n for _, _, n in self._order)]
        peers = dense_ranks([pa.array(code), *keys], down, nulls)
        order = order_of_codes(peers, len(peers))
        in_order = peers[order]
        equal = in_order[1:] == in_order[:-1]
        if equal.any():  # only ties need all columns
            tied = np.append(equal, False) | np.append(False, equal)
            some = order[tied]
            at = pa.array(some)
            columns = [pa.array(peers[some]), *(c.take(at) for c in rows.columns)]
            order[tied] = some[sort_indices(columns)]
        return order, in_order
