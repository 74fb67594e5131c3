"""Rows in ladder order (`penstock.kernels.nearest`): the state of an ASOF join, one stock per side.

A stock is a list of slabs.  A slab is an immutable table sorted by key, value and columns: a stored
run, or one made in this micro-batch, which `save` will store.  Its columns are ``c0..``, ``_high``,
``_low``, ``_value``, ``_start``, ``_end``, ``_holder``, ``_number`` (unique in the stock) and those
that the owner of the stock adds.

Rows go away in three ways: their end passes; their holder is told (`Stock.hear`); or the owner
takes them out (`Stock.take_out`).  The last two leave the table as it is: the numbers of such rows
are stored beside the slabs, and a slab is rewritten when they are its majority.  Slabs are merged
as the strategy says, and whenever rows are written the owner may throw out those that are of no use
any more.  So the cost of a turn follows what comes and goes, not what stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.keys import Keys
from penstock.kernels.nearest import Ladder, ladder_order
from penstock.model import I64, INF, MIN_TIME, Batch, Ends, Mask, one_array, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State


class Slab:
    """A sorted table that never changes; only what is gone of it does."""

    def __init__(self, stats: dict[str, int], table: pa.Table | None, run: Run | None = None):
        self.stats = stats
        self.run = run
        self.gone: Mask | None = None
        self._table = table
        self._numbers: dict[str, Any] = {}
        self._end: I64 | None = None

    def __len__(self) -> int:
        return len(self.run) if self.run is not None else int(self.table.num_rows)

    @property
    def table(self) -> pa.Table:
        if self._table is None:
            assert self.run is not None
            self._table = self.run.table()
        return self._table

    def numbers(self, name: str) -> Any:
        """Return a numeric column without copying it."""
        if name not in self._numbers:
            self._numbers[name] = to_numpy(self.table.column(name))
        return self._numbers[name]

    @property
    def keys(self) -> Keys:
        return Keys(self.numbers("_high"), self.numbers("_low"))

    @property
    def end(self) -> I64:
        """The ends as far as known: ``MIN_TIME`` for a row that is gone."""
        if self._end is None:
            end: I64 = self.numbers("_end")
            self._end = end if self.gone is None else np.where(self.gone, MIN_TIME, end)
        return self._end

    @cached_property
    def ladder(self) -> Ladder:
        """The slab as it can be searched in this turn."""
        value, start = self.numbers("_value"), self.numbers("_start")
        return Ladder(self.keys.high, self.keys.low, value, start, self.end)

    def take(self, at: I64, width: int) -> list[pa.Array]:
        """Return the values of some rows."""
        index = pa.array(at)
        columns = (one_array(self.table.column(f"c{i}")) for i in range(width))
        return [pc.take(column, index, boundscheck=False) for column in columns]

    def ends_at(self, told: I64) -> None:
        """Let rows end earlier."""
        self._end = np.minimum(self.end, told)
        self.__dict__.pop("ladder", None)

    def remove(self, which: Mask) -> None:
        """Let rows be gone from now on."""
        self.gone = which.copy() if self.gone is None else self.gone | which
        self.stats["dead"] = int(self.gone.sum())
        self._end = None
        self.__dict__.pop("ladder", None)


class Stock:
    """The slabs of one side. The first ``ties`` columns order rows of equal key and value."""

    def __init__(self, state: State, name: str, ties: int, merging: Merging) -> None:
        self.slabs = [Slab(run.stats, None, run) for run in state.runs(name)]
        self._state = state
        self._name = name
        self._gone_name = f"{name}.gone"
        self._ties = ties
        self._merging = merging
        self._told: list[tuple[Slab, Mask]] = []
        parts = [to_numpy(run.table().column("number")) for run in state.runs(self._gone_name)]
        if parts:
            gone = np.concatenate(parts)
            for slab in self.slabs:
                if slab.stats["dead"]:
                    slab.gone = np.isin(slab.numbers("_number"), gone)
        self._changed = False

    def __len__(self) -> int:
        return sum(len(slab) - slab.stats["dead"] for slab in self.slabs)

    @property
    def least(self) -> int:
        """No value is below this."""
        return min((slab.stats["least"] for slab in self.slabs), default=INF)

    @property
    def greatest(self) -> int:
        """No value is above this."""
        return max((slab.stats["greatest"] for slab in self.slabs), default=MIN_TIME)

    def sort(
        self, rows: Batch, keys: Keys, value: I64, extra: Mapping[str, I64] | None = None
    ) -> Slab | None:
        """Make a slab of new rows; nothing is kept yet. No rows make no slab."""
        if len(rows) == 0:
            return None
        numbers = self._state.numbers
        used = numbers.get(f"{self._name}.number", 0)
        numbers[f"{self._name}.number"] = used + len(rows)
        named: dict[str, Any] = {f"c{i}": column for i, column in enumerate(rows.columns)}
        named |= {"_high": keys.high, "_low": keys.low, "_value": value, "_start": rows.start}
        named |= {"_end": rows.end, "_holder": rows.holder}
        named |= {"_number": np.arange(used, used + len(rows))}
        return self._slab(pa.table(named | dict(extra or {})))

    def hear(self, ends: Ends) -> None:
        """Apply what was told to the rows that are there; `turn` will let them go."""
        if len(ends) == 0:
            return
        for slab in self.slabs:
            if slab.stats["open"]:
                told = ends.lookup(slab.numbers("_holder"))
                known = told < INF
                if known.any():
                    slab.ends_at(told)
                    self._told.append((slab, known))

    def take_out(self, slab: Slab, at: I64) -> None:
        """Let rows be gone, because they are of no use or will be put in anew."""
        which = np.zeros(len(slab), bool)
        which[at] = True
        slab.remove(which)
        self._changed = True

    def turn(
        self, new: Slab | None, until: int, useful: Callable[[Slab], Mask] | None = None
    ) -> None:
        """End a slice: take the new rows in, let go of all that is dead at ``until``.

        ``useful`` says which of the living rows of a slab are worth keeping.
        """
        for slab, known in self._told:
            slab.remove(known)
            self._changed = True
        self._told = []
        kept = []
        for slab in self.slabs:
            if slab.stats["last"] <= until or slab.stats["dead"] == len(slab):
                self._changed = True
            elif 2 * slab.stats["dead"] > len(slab):
                kept += self._rewritten([slab], until, useful)
            else:
                kept.append(slab)
        self.slabs = kept
        if new is not None:
            self.slabs += self._rewritten([new], until, useful)
        chosen = self._merging.choose([len(s) - s.stats["dead"] for s in self.slabs])
        if chosen:
            first, last = chosen
            while sum(slab.table.nbytes for slab in self.slabs[first:last]) > self._merging.most:
                first += 1
            if last - first > 1:
                self.slabs[first:last] = self._rewritten(self.slabs[first:last], until, useful)

    def clear(self) -> None:
        """Throw everything away."""
        self._changed = self._changed or bool(self.slabs)
        self.slabs = []
        self._told = []

    def save(self) -> None:
        """Store the slabs made since the state was opened, and what is gone of them all."""
        kept = {id(slab.run) for slab in self.slabs if slab.run is not None}
        old = [run for run in self._state.runs(self._name) if id(run) not in kept]
        if old:
            self._state.replace(self._name, old, None)
        for slab in self.slabs:
            if slab.run is None:
                self._state.append(self._name, slab.table, slab.stats)
        if self._changed:
            parts = [s.numbers("_number")[s.gone] for s in self.slabs if s.gone is not None]
            self._state.drop(self._gone_name)
            gone = np.concatenate(parts) if parts else np.empty(0, np.int64)
            self._state.append(self._gone_name, pa.table({"number": gone}))

    def _rewritten(
        self, slabs: Sequence[Slab], until: int, useful: Callable[[Slab], Mask] | None
    ) -> list[Slab]:
        """Return one slab, or none, of the rows that live on."""
        tables = []
        for slab in slabs:
            alive = slab.end > until
            tables.append(slab.table if alive.all() else slab.table.filter(pa.array(alive)))
        merged = slabs[0]
        if len(tables) > 1 or tables[0] is not slabs[0].table:
            self._changed = True
            whole = pa.concat_tables(tables).combine_chunks()
            if whole.num_rows == 0:
                return []
            merged = self._slab(whole, in_order=len(tables) == 1)
        if useful is not None:
            keep = useful(merged)
            if not keep.all():
                self._changed = True
                rest = merged.table.filter(pa.array(keep)).combine_chunks()
                return [self._slab(rest, in_order=True)] if rest.num_rows else []
        return [merged]

    def _slab(self, table: pa.Table, in_order: bool = False) -> Slab:
        if not in_order:
            keys = Keys(to_numpy(table.column("_high")), to_numpy(table.column("_low")))
            columns = [one_array(table.column(f"c{i}")) for i in range(self._ties)]
            order = ladder_order(keys, to_numpy(table.column("_value")), columns)
            table = table.take(pa.array(order)).combine_chunks()
        value, end = to_numpy(table.column("_value")), to_numpy(table.column("_end"))
        holders = [n for n in table.column_names if n.endswith("_holder")]
        ends = [n for n in table.column_names if n.endswith("_end")]
        stats = {"dead": 0, "last": int(end.max())}
        stats |= {"least": int(value.min()), "greatest": int(value.max())}
        stats["open"] = int(any(to_numpy(table.column(n)).any() for n in holders))
        stats["alarm"] = min(int(to_numpy(table.column(n)).min()) for n in ends)
        return Slab(stats, table)
