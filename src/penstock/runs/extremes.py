"""The least value per key among rows that are alive: what MIN and MAX keep of the past.

Two lists of runs, both sorted by key, hold `ordered` values (see `kernels.sweep`):

* ``known``: rows whose end is known, sorted by it inside a key.  Only the staircase is kept: a row
  that is no better than one which ends no earlier can never be the extreme again.  So inside a run
  and a key values get worse with the end, and the first row that ends at or after ``until`` is the
  run's extreme at that time: one binary search per key and run.
* ``open``: values of rows with holders, sorted inside a key, with a net count per value and run:
  +1 for a row that came, -1 for one that went.  The extreme is the first value whose counts add up
  to more than zero.  The runs are read from the front, a few values first, then more, only for
  keys still without one.

For MAX the order of values is turned round; "best" and "first" always mean the extreme.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.counts import key_codes
from penstock.kernels.keys import Keys
from penstock.kernels.order import key_ranges, search_within
from penstock.kernels.steps import group_starts, ranges
from penstock.kernels.sweep import ranks, staircase
from penstock.model import I64, U64, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State

_FIRST_LOOK = 4


class Extremes:
    """The extremes of one argument in one direction."""

    def __init__(
        self, state: State, name: str, kind: pa.DataType, largest: bool, merging: Merging
    ) -> None:
        self._state = state
        self._known = f"{name}.known"
        self._open = f"{name}.open"
        self._kind = kind
        self._largest = largest
        self._merging = merging

    def best(self, keys: Keys, until: int) -> tuple[I64, pa.Array]:
        """Return ``(owner, value)`` pairs: for each key the best that lives at ``until`` or longer.

        A key may have several pairs, of which the best counts, or none.
        """
        owners: list[I64] = []
        values = [pa.array([], self._kind)]
        for run in self._state.runs(self._known):
            if run.stats["max_end"] < until:
                self._state.replace(self._known, [run], None)
                continue
            table = run.table()
            first, last = key_ranges(*_lanes(table), keys)
            end = to_numpy(table.column("end"))
            at = search_within(end, first, last, np.full(len(first), until, np.int64))
            owner = np.flatnonzero(at < last)
            owners.append(owner)
            values.append(one_array(table.column("value")).take(pa.array(at[owner])))
        runs = self._state.runs(self._open)
        if runs:
            owner, value = self._best_open(runs, keys)
            owners.append(owner)
            values.append(value)
        return np.concatenate(owners or [np.empty(0, np.int64)]), pa.concat_arrays(values)

    def add_known(self, keys: Keys, end: I64, values: pa.Array) -> None:
        """Add rows that are alive and end at ``end``."""
        if len(keys):
            table = _table(keys, values, end=end)
            self._state.append(self._known, *self._stairs(table))

    def change_open(self, keys: Keys, values: pa.Array, change: int) -> None:
        """Add (+1) or take away (-1) rows whose end is not known."""
        if len(keys):
            count = np.full(len(keys), change, np.int64)
            self._state.append(self._open, self._netted(_table(keys, values, count=count)))

    def save(self, until: int) -> None:
        """Merge runs as the strategy says."""
        runs = self._state.runs(self._known)
        chosen = self._merging.choose([len(r) for r in runs])
        if chosen:
            some = runs[chosen[0] : chosen[1]]
            table = pa.concat_tables([r.table() for r in some]).combine_chunks()
            table = table.filter(pa.array(to_numpy(table.column("end")) >= until))
            self._state.replace(self._known, some, *self._stairs(table))
        runs = self._state.runs(self._open)
        chosen = self._merging.choose([len(r) for r in runs])
        if chosen:
            some = runs[chosen[0] : chosen[1]]
            table = pa.concat_tables([r.table() for r in some]).combine_chunks()
            self._state.replace(self._open, some, self._netted(table))

    def _best_open(self, runs: tuple[Run, ...], keys: Keys) -> tuple[I64, pa.Array]:
        spans = [key_ranges(*_lanes(run.table()), keys) for run in runs]
        pending = np.arange(len(keys))
        owners: list[I64] = []
        found = [pa.array([], self._kind)]
        look = _FIRST_LOOK
        while len(pending):
            parts, values, counts, last_of_run = [], [], [], []
            for run, (first, last) in zip(runs, spans, strict=True):
                upto = np.minimum(first[pending] + look, last[pending])
                owner, at = ranges(first[pending], upto)
                table = run.table()
                parts.append(owner)
                values.append(one_array(table.column("value")).take(pa.array(at)))
                counts.append(to_numpy(table.column("count"))[at])
                cut = upto < last[pending]
                last_of_run.append(cut[owner] & (at == upto[owner] - 1))
            owner, value = np.concatenate(parts), pa.concat_arrays(values)
            rank = ranks(value, self._largest)
            cut = np.concatenate(last_of_run)
            bound = np.full(len(pending), np.iinfo(np.int64).max)
            np.minimum.at(bound, owner[cut], rank[cut])  # beyond it, runs were not read completely
            order = np.lexsort((rank, owner))
            starts = group_starts(owner[order], rank[order])
            if len(starts) == 0:
                break
            net = np.add.reduceat(np.concatenate(counts)[order], starts)
            head = order[starts]
            head = head[(net > 0) & (rank[head] <= bound[owner[head]])]
            head = head[group_starts(owner[head])]
            owners.append(pending[owner[head]])
            found.append(value.take(pa.array(head)))
            more = np.zeros(len(pending), bool)
            more[owner[cut]] = True
            more[owner[head]] = False
            pending = pending[more]
            look *= 8
        return np.concatenate(owners or [np.empty(0, np.int64)]), pa.concat_arrays(found)

    def _stairs(self, table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
        high, low = _lanes(table)
        end = to_numpy(table.column("end"))
        code, distinct = key_codes(Keys(high, low))
        order = np.lexsort((distinct.low, distinct.high))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        kept = staircase(place[code], end, ranks(one_array(table.column("value")), self._largest))
        stats = {"max_end": int(end[kept].max())} if len(kept) else {}
        return table.take(pa.array(kept)).combine_chunks(), stats

    def _netted(self, table: pa.Table) -> pa.Table:
        high, low = _lanes(table)
        rank = ranks(one_array(table.column("value")), self._largest)
        order = np.lexsort((rank, low, high))
        high, low, rank = high[order], low[order], rank[order]
        starts = np.flatnonzero(_new(high) | _new(low) | _new(rank))
        if len(starts) == 0:
            return table
        net = np.add.reduceat(to_numpy(table.column("count"))[order], starts)
        kept = net != 0
        result = table.take(pa.array(order[starts[kept]]))
        return result.set_column(3, "count", pa.array(net[kept])).combine_chunks()


def _new(values: npt.NDArray[Any]) -> Mask:
    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def _lanes(table: pa.Table) -> tuple[U64, U64]:
    return to_numpy(table.column("high")), to_numpy(table.column("low"))


def _table(keys: Keys, values: pa.Array, **more: I64) -> pa.Table:
    columns = {"high": keys.high, "low": keys.low, "value": values, **more}
    return pa.table({name: pa.array(column) for name, column in columns.items()})
