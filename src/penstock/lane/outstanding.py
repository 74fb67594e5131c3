"""Rows that the lane has answered and that are in no committed batch yet.

The batch that takes such a row is told in which turn it was answered, and what was true then
(`penstock.physical.answered`).  Once that batch is committed its rows are forgotten here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.lane.journal import Turn
from penstock.model import I64, INF
from penstock.physical.answered import Answered, AnsweredRows
from penstock.physical.progress import POSITION_BITS


def positions(seq: I64) -> I64:
    """Return where rows stand in their stream, from their arrival numbers."""
    return seq & ((1 << POSITION_BITS) - 1)


@dataclass(frozen=True)
class _Known:
    """Rows of one stream and turn, which was answered after a batch."""

    seq: I64
    time: I64
    turn: int
    batch: int

    def since(self, end: int) -> _Known | None:
        """Return the rows from a position of the stream on, if there are any."""
        later = positions(self.seq) >= end
        if later.all():
            return self
        return (
            _Known(self.seq[later], self.time[later], self.turn, self.batch)
            if later.any()
            else None
        )


class Outstanding:
    """What was answered, by stream, and the heartbeats after the batches at which it was."""

    def __init__(self) -> None:
        self._known: dict[str, list[_Known]] = {}
        self._beats: dict[int, Mapping[str, int]] = {}

    def note(self, turn: Turn) -> None:
        """Note the rows of a turn that is in the journal."""
        self._beats[turn.batch] = turn.beats
        for stream, rows in turn.rows.items():
            known = _Known(rows.seq, rows.time, turn.number, turn.batch)
            self._known.setdefault(stream, []).append(known)

    def settle(self, ends: Mapping[str, int]) -> None:
        """Forget the rows before ``ends``: they are in committed batches."""
        for stream, known in self._known.items():
            left = (own.since(ends.get(stream, 0)) for own in known)
            self._known[stream] = [own for own in left if own is not None]
        used = {own.batch for known in self._known.values() for own in known}
        self._beats = {batch: beats for batch, beats in self._beats.items() if batch in used}

    def below(self, ends: Mapping[str, int]) -> Answered:
        """Return what was answered of the rows before ``ends``."""
        rows: dict[str, AnsweredRows] = {}
        beats: dict[int, Mapping[str, int]] = {}
        for stream, known in self._known.items():
            mine = []
            for own in known:
                below = positions(own.seq) < ends.get(stream, 0)
                if below.any():
                    count = int(below.sum())
                    mine.append(
                        (own.seq[below], np.full(count, own.turn), np.full(count, own.batch))
                    )
                    beats[own.batch] = self._beats[own.batch]
            if mine:
                seq, turn, batch = (np.concatenate(part) for part in zip(*mine, strict=True))
                order = np.argsort(seq)
                rows[stream] = AnsweredRows(seq[order], turn[order], batch[order])
        return Answered(rows, beats)

    def ceilings(self, ends: Mapping[str, int]) -> dict[str, int]:
        """Return the oldest time of the rows from ``ends`` on, by stream."""
        found = {
            stream: min((int(own.time.min()) for own in self._since(stream, ends)), default=INF)
            for stream in self._known
        }
        return {stream: oldest for stream, oldest in found.items() if oldest < INF}

    def first_turn(self, ends: Mapping[str, int]) -> int | None:
        """Return the first turn with a row from ``ends`` on; None: there is none."""
        turns = (own.turn for stream in self._known for own in self._since(stream, ends))
        return min(turns, default=None)

    def _since(self, stream: str, ends: Mapping[str, int]) -> list[_Known]:
        left = (own.since(ends.get(stream, 0)) for own in self._known[stream])
        return [own for own in left if own is not None]

    def times(self, stream: str) -> dict[int, int]:
        """Return the times of the rows of a stream, by arrival number."""
        return {
            number: time
            for own in self._known.get(stream, ())
            for number, time in zip(own.seq.tolist(), own.time.tolist(), strict=True)
        }

    def last_position(self, stream: str) -> int:
        """Return where the last of the rows of a stream stands; -1: there is none."""
        known = self._known.get(stream, ())
        return max((int(positions(own.seq).max()) for own in known), default=-1)

    @property
    def streams(self) -> frozenset[str]:
        """The streams of which there are rows."""
        return frozenset(stream for stream, known in self._known.items() if known)
