"""Trains: what a stage was sent, in pieces by time, so that results need not all exist at once.

A stage has all rows of its batch, and the heartbeat that holds after them.  So any smaller
heartbeat is true as soon as the rows below it are fed.  A *train* is the rows between two such
instants, of all channels, with that heartbeat behind them.  Operators are exact for any cut
(`penstock.operators.base`), so no answer depends on trains; but what a join makes of one of them
goes through the whole stage before the next one is begun.

Rows of which ends are told, and negative tuples, are fed with the first train: they wait in the
operators' inboxes for the heartbeats that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.model import I64, Batch, Message

FIRST_ROWS, SMALL_ROWS = 8_192, 131_072
"""The first train has so many rows, if their number is not given; so many rows are one train."""

_FINEST = 1 << 18
"""About how many instants are looked at, at most: of more rows every second, third .. one is."""


@dataclass(frozen=True)
class Train:
    """Messages by channel, in order, and the heartbeat of every channel behind them."""

    messages: Sequence[tuple[int, Message]]
    beats: Mapping[int, int]
    last: bool


class Trains:
    """Cuts messages into trains.

    ``beats`` are the heartbeats of all channels after the batch, ``tables`` those channels whose
    rows came before.  ``rows`` is how many rows a train has, 0: twice as many as the one before
    while that held at most half of ``memory`` bytes between operators, fewer if it held more than
    all of it.  ``closing`` goes with the last train.
    """

    def __init__(
        self,
        messages: Sequence[tuple[int, Message]],
        beats: Mapping[int, int],
        tables: Collection[int],
        rows: int,
        memory: int,
        closing: Sequence[tuple[int, Message]] = (),
    ) -> None:
        self._beats, self._tables = beats, tables
        self._closing = closing
        self._whole: list[tuple[int, Message]] = []
        self._rows: list[tuple[int, Batch]] = []
        told = {channel for channel, message in messages if not _is_cut(message)}
        for channel, message in messages:
            if channel in told or not isinstance(message, Batch):
                self._whole.append((channel, message))
            else:
                self._rows.append((channel, message))
        self._first = [0] * len(self._rows)
        self._memory = memory
        self._chosen = rows > 0
        self._cuts = self._instants(rows)
        if len(self._cuts):
            self._rows = [(channel, in_order(batch)) for channel, batch in self._rows]
        self._done = 0
        self._width = 1
        self._over = False

    @property
    def is_one(self) -> bool:
        """Whether there is one train only."""
        return len(self._cuts) == 0

    def next(self) -> Train | None:
        """Return the next train; None when there is no other."""
        if self._over:
            return None
        self._done += self._width
        self._over = self._done > len(self._cuts)
        until = None if self._over else int(self._cuts[self._done - 1])
        messages, self._whole = self._whole, []
        for at, (channel, batch) in enumerate(self._rows):
            first, last = self._first[at], len(batch)
            if until is not None:
                last = int(np.searchsorted(batch.start, until, side="left"))
            if first == 0 and last == len(batch):
                messages.append((channel, batch))
            elif first < last:
                messages.append((channel, batch.slice(first, last)))
            self._first[at] = last
        if self._over:
            self._rows = []
            messages += self._closing
        return Train(messages, self._reached(until), self._over)

    def used(self, held: int) -> None:
        """Say how many bytes a train held between operators at once: the next one follows it."""
        if self._chosen or not self._done:
            return
        if held > self._memory:
            self._width = max(1, self._width * self._memory // held)
        elif held <= self._memory // 2:
            self._width *= 2

    def _reached(self, until: int | None) -> Mapping[int, int]:
        if until is None:
            return self._beats
        return {
            channel: beat if channel in self._tables else min(beat, until)
            for channel, beat in self._beats.items()
        }

    def _instants(self, rows: int) -> I64:
        """Return the instants at which trains may end: about as many rows lie between any two."""
        bounds = [beat for channel, beat in self._beats.items() if channel not in self._tables]
        stride = max(1, -(-sum(len(batch) for _, batch in self._rows) // _FINEST))
        starts = [batch.start[::stride] for _, batch in self._rows]
        every = np.concatenate(starts) if starts else np.empty(0, np.int64)
        if bounds:
            every = every[every < max(bounds)]
        if len(every) * stride <= (rows or SMALL_ROWS):
            return np.empty(0, np.int64)
        at = np.arange(0, len(every), max(1, (rows or FIRST_ROWS) // stride))
        return np.unique(np.partition(every, at)[at])[1:]


def _is_cut(message: Message) -> bool:
    """Whether a message is of rows whose ends are all known."""
    return isinstance(message, Batch) and not message.minus and not message.holder.any()


def in_order(batch: Batch) -> Batch:
    """Return rows in the order in which they are needed, those of one instant as they came."""
    if is_in_order(batch):
        return batch
    return batch.take(np.argsort(_needed(batch), kind="stable"))


def is_in_order(batch: Batch) -> bool:
    """Whether rows come in the order in which they are needed: so they are cut without copying."""
    time = _needed(batch)
    return bool((time[1:] >= time[:-1]).all())


def _needed(batch: Batch) -> I64:
    """Return when each row is needed: where it starts, a negative tuple where it ends."""
    return batch.end if batch.minus else batch.start
