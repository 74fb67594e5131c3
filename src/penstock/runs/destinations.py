"""Where the rows of open holders were sent: so a told end follows them, and goes nowhere else.

For each channel the sender keeps the pairs of a holder and a shard that got rows of it, with the
latest end that these rows have by themselves, in runs sorted by holder: 18 bytes for a pair.  A
holder whose rows went to several shards has several pairs; one whose rows went nowhere, because a
selection dropped them, has none.

A pair may be forgotten once the end of its holder was sent to its shard, or once the rows are over
by themselves.  Told pairs at the front of a run are cut off.  Others stay, and their holders are
remembered until they are the majority: then all are thrown out at once, so the cost of a batch
follows what comes and goes.  A pair that stays too long does no harm, an end may be told twice.
A holder that is told may get rows again, which come another way through the plan and have their
end told again: then what was remembered is thrown out first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.steps import ranges
from penstock.model import I64, MIN_TIME, Batch, Ends, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.state import Run, State

_PAIRS = ("holder", "shard", "end")


class Destinations:
    """The shards that rows of each holder went to through one channel."""

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        self._state = state
        self._merging = merging
        self._pairs = name
        self._told = f"{name}.told"
        self._new: list[tuple[I64, I64, I64]] = []

    def sent(self, shard: int, rows: Batch) -> None:
        """Take note of rows that go to a shard."""
        held = np.flatnonzero(rows.holder)
        if len(held):
            where = np.full(len(held), shard, np.int64)
            self._new.append((rows.holder[held], where, rows.end[held]))

    def tell(self, ends: Ends, until: int) -> Iterator[tuple[int, Ends]]:
        """Yield the ends that each shard must be told, after all rows of a batch were sent.

        ``until`` is the heartbeat of the channel: rows that end below it need not be told of.
        """
        self._take_in()
        told, shards = [], []
        dead: list[I64] = []
        for run in self._state.runs(self._pairs):
            if not _meet(run, ends.holder):
                continue
            holder = _holders(run)
            owner, place = ranges(
                np.searchsorted(holder, ends.holder, "left"),
                np.searchsorted(holder, ends.holder, "right"),
            )
            if len(place) == 0:
                continue
            told.append(owner)
            shards.append(to_numpy(run.table().column("shard"))[place])
            if place[-1] == len(place) - 1:
                run.skipped += len(place)
                if len(run) == 0:
                    self._state.replace(self._pairs, [run], None)
            else:
                dead.append(holder[place])
        self._forget(dead, until)
        if told:
            yield from _by_shard(ends, np.concatenate(told), np.concatenate(shards))

    def _take_in(self) -> None:
        """Add a run of the new pairs, each once."""
        if not self._new:
            return
        holder, shard, end = map(np.concatenate, zip(*self._new, strict=True))
        self._new = []
        known = [run for run in self._state.runs(self._told) if _meet(run, holder)]
        if any(np.isin(holder, _holders(run)).any() for run in known):
            self._clean(self._state.runs(self._pairs), MIN_TIME)
            self._state.drop(self._told)
        order = np.lexsort((shard, holder))
        holder, shard, end = holder[order], shard[order], end[order]
        new = np.ones(len(holder), bool)
        new[1:] = (holder[1:] != holder[:-1]) | (shard[1:] != shard[:-1])
        first = np.flatnonzero(new)
        self._append(holder[first], shard[first], np.maximum.reduceat(end, first))

    def _append(self, holder: I64, shard: I64, end: I64) -> None:
        if len(holder):
            columns = (holder, shard.astype(np.uint16), end)
            stats = {"low": int(holder[0]), "high": int(holder[-1]), "end": int(end.max())}
            table = pa.table(dict(zip(_PAIRS, columns, strict=True)))
            self._state.append(self._pairs, table, stats)

    def _forget(self, dead: Sequence[I64], until: int) -> None:
        """Remember holders that are told; throw out what is dead if it is the majority."""
        if dead:
            self._remember(np.concatenate(dead))
        for run in self._state.runs(self._pairs):
            if run.stats["end"] <= until:  # its rows are over by themselves
                self._state.replace(self._pairs, [run], None)
        runs, told = self._state.runs(self._pairs), self._state.runs(self._told)
        if sum(map(len, told)) * 2 > sum(map(len, runs)):
            self._clean(runs, until)
            self._state.drop(self._told)
            return
        if chosen := self._merging.alike([len(run) for run in runs]):
            self._clean([runs[i] for i in chosen], until)
        if chosen := self._merging.alike([len(run) for run in told]):
            some = [told[i] for i in chosen]
            self._state.replace(self._told, some, None)
            self._remember(np.concatenate([_holders(run) for run in some]))

    def _remember(self, holder: I64) -> None:
        holder = np.unique(holder)
        stats = {"low": int(holder[0]), "high": int(holder[-1])}
        self._state.append(self._told, pa.table({"holder": holder}), stats)

    def _clean(self, runs: Sequence[Run], until: int) -> None:
        """Make one run of some, without the pairs that are dead."""
        if not runs:
            return
        table = pa.concat_tables([run.table() for run in runs]).combine_chunks()
        holder, shard, end = (to_numpy(table.column(c)) for c in _PAIRS)
        alive: Mask = end > until
        for run in self._state.runs(self._told):
            alive &= ~np.isin(holder, _holders(run))
        kept = np.flatnonzero(alive)
        kept = kept[np.argsort(holder[kept], kind="stable")]
        self._state.replace(self._pairs, runs, None)
        self._append(holder[kept], shard[kept], end[kept])


def _holders(run: Run) -> I64:
    holder: I64 = to_numpy(run.table().column("holder"))
    return holder


def _meet(run: Run, holder: I64) -> bool:
    """Whether a run may have some of the holders."""
    if len(holder) == 0:
        return False
    return bool(holder.min() <= run.stats["high"] and holder.max() >= run.stats["low"])


def _by_shard(ends: Ends, told: I64, shards: I64) -> Iterator[tuple[int, Ends]]:
    """Cut ends by the shards that must be told of them."""
    order = np.lexsort((told, shards))
    told, shards = told[order], shards[order]
    first = np.flatnonzero(np.concatenate(([True], shards[1:] != shards[:-1])))
    for begin, finish in zip(first, (*first[1:], len(shards)), strict=True):
        mine = np.unique(told[begin:finish])
        yield int(shards[begin]), Ends(ends.holder[mine], ends.end[mine])
