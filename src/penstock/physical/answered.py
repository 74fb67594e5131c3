"""Which rows the lane has answered, as packing is told: what their hidden columns hold.

See `penstock.physical.lane_plan` for what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.algebra import Mark
from penstock.model import I64, INF, MIN_TIME, Mask


def _none() -> I64:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class AnsweredRows:
    """Rows of one stream: their arrival numbers, ascending, the turns, and the batches then."""

    seq: I64 = field(default_factory=_none)
    turn: I64 = field(default_factory=_none)
    batch: I64 = field(default_factory=_none)

    def find(self, seq: I64) -> tuple[I64, I64]:
        """Return turn and batch of rows by arrival number; turn 0: it was not answered."""
        if len(self.seq) == 0:
            zero = np.zeros(len(seq), np.int64)
            return zero, zero
        at = np.minimum(np.searchsorted(self.seq, seq), len(self.seq) - 1)
        hit = self.seq[at] == seq
        return np.where(hit, self.turn[at], 0), np.where(hit, self.batch[at], -1)


@dataclass(frozen=True)
class Answered:
    """What the lane has answered of the rows of a batch, by stream.

    ``beats`` are the heartbeats of all streams after the batches at which it did.
    """

    rows: Mapping[str, AnsweredRows] = field(default_factory=dict)
    beats: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def of(self, stream: str, seq: I64) -> Mask | None:
        """Return which rows of a stream were answered; None if none was."""
        found = self.rows.get(stream)
        if found is None or len(found.seq) == 0:
            return None
        answered = found.find(seq)[0] > 0
        return answered if answered.any() else None

    def columns(self, mark: Mark, stream: str, seq: I64, time: I64) -> list[pa.Array]:
        """Return the hidden columns of rows of a stream."""
        if not mark.prioritised:
            return [pa.array(time)]
        turn, batch = self.rows.get(stream, AnsweredRows()).find(seq)
        mine = (turn > 0) & (batch >= mark.first)
        return hidden_columns(mark, time, np.where(mine, turn, 0), batch, self.beats)


def hidden_columns(
    mark: Mark, time: I64, turn: I64, batch: I64, beats: Mapping[int, Mapping[str, int]]
) -> list[pa.Array]:
    """Return the hidden columns of rows with priorities: ``turn`` 0 is one not answered."""
    answered = turn > 0
    number = np.where(answered, turn * mark.leaves + mark.leaf + 1, 0)
    columns = [pa.array(time), pa.array(number)]
    some = {int(n): beats.get(int(n), {}) for n in np.unique(batch[answered])}
    for other, streams in enumerate(mark.siblings):
        if other == mark.leaf:
            continue
        seen = np.full(len(time), MIN_TIME, np.int64)
        for number_of, known in some.items():
            seen[answered & (batch == number_of)] = heard(known, streams)
        columns.append(pa.array(seen))
    return columns


def heard(beats: Mapping[str, int], streams: tuple[str, ...]) -> int:
    """Return the least heartbeat of some streams."""
    return min((beats.get(name, MIN_TIME) for name in streams), default=INF)
