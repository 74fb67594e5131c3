"""Where the rows of open holders were sent: so a told end follows them, and goes nowhere else.

For each channel the sender keeps the pairs of a holder and a shard that got rows of it, with the
latest end that these rows have by themselves, on a spine sorted by holder: 18 bytes for a pair.  A
holder whose rows went to several shards has several pairs; one whose rows went nowhere, because a
selection dropped them, has none.

A pair may be forgotten once the end of its holder was sent to its shard, or once the rows are over
by themselves.  Told pairs at the front of a piece are skipped.  Others stay, and their holders are
remembered until they are the majority: then all are thrown out at once, so the cost of a batch
follows what comes and goes.  A pair that stays too long does no harm, an end may be told twice.
A holder that is told may get rows again, which come another way through the plan and have their
end told again: then what was remembered is thrown out first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.kernels.steps import group_starts
from penstock.model import I64, MIN_TIME, Batch, Ends, Mask, to_numpy
from penstock.runs.merging import Merging
from penstock.runs.side import EndedHolders, told_rows
from penstock.runs.spine import Piece, Spine, chosen_rows, some_of
from penstock.runs.state import State


class Destinations(Spine[Piece]):
    """The shards that rows of each holder went to through one channel."""

    kind = Piece

    def __init__(self, state: State, name: str, merging: Merging) -> None:
        super().__init__(state, name, merging)
        self._told = EndedHolders(state, f"{name}.told", merging)
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
        told, shards, dead = [], [], []
        for piece in self.pieces:
            low, high = piece.stats["low"], piece.stats["high"]
            if len(ends) == 0 or ends.holder[0] > high or ends.holder[-1] < low:
                continue
            rows, owner = told_rows(piece.numbers("holder"), ends)
            if len(rows) == 0:
                continue
            told.append(owner)
            shards.append(piece.numbers("shard")[rows])
            if rows[-1] == len(rows) - 1:
                self.skip(piece, len(rows))
            else:
                dead.append(ends.holder[owner])
        if dead:
            self._told.put(np.unique(np.concatenate(dead)), 0)
        self.drop([piece for piece in self.pieces if piece.stats["end"] <= until])
        if 2 * len(self._told) > len(self):
            self._clean(until)
        self.merge(until)
        self.save()
        if told:
            yield from _by_shard(ends, np.concatenate(told), np.concatenate(shards))

    def save(self) -> None:
        """Store the pieces that are not stored yet, and the holders that were told."""
        super().save()
        self._told.save()

    def _take_in(self) -> None:
        """Add a piece of the new pairs, each once."""
        if not self._new:
            return
        holder, shard, end = map(np.concatenate, zip(*self._new, strict=True))
        self._new = []
        if self._told.has(holder).any():
            self._clean(MIN_TIME)
        order = np.lexsort((shard, holder))
        holder, shard, end = holder[order], shard[order], end[order]
        first = group_starts(holder, shard)
        last = np.maximum.reduceat(end, first)
        pairs = {"holder": holder[first], "shard": shard[first].astype(np.uint16), "end": last}
        self.add(pa.table(pairs))

    def _clean(self, until: int) -> None:
        """Throw out all that is dead."""
        if self.pieces:
            self.rewrite(self.pieces, until)
        self._told.clear()

    def _choose(self) -> list[list[Piece]]:
        chosen = self._merging.alike([len(piece) for piece in self.pieces])
        return [[self.pieces[i] for i in chosen]] if chosen else []

    def _alive(self, piece: Piece, until: int) -> Mask:
        alive: Mask = piece.numbers("end") > until
        return alive & ~self._told.has(piece.numbers("holder"))

    def _order(self, table: pa.Table, rows: I64 | None, oldest: bool) -> I64:
        holder = some_of(to_numpy(table.column("holder")), rows)
        return chosen_rows(rows, np.argsort(holder, kind="stable"))

    def _stats(self, table: pa.Table) -> dict[str, int]:
        holder, end = to_numpy(table.column("holder")), to_numpy(table.column("end"))
        return {"low": int(holder[0]), "high": int(holder[-1]), "end": int(end.max())}


def _by_shard(ends: Ends, told: I64, shards: I64) -> Iterator[tuple[int, Ends]]:
    """Cut ends by the shards that must be told of them."""
    order = np.lexsort((told, shards))
    told, shards = told[order], shards[order]
    first = group_starts(shards)
    for begin, finish in zip(first, (*first[1:], len(shards)), strict=True):
        mine = np.unique(told[begin:finish])
        yield int(shards[begin]), Ends(ends.holder[mine], ends.end[mine])
