"""Closed parts that an operator has heard of and may not use yet.

A promise about a part comes when its last row has been sent, but such rows may still wait in the
inbox.  So it waits, in the state from one micro-batch to the next, until time has passed every row
that was there when it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.kernels.closed_keys import ClosedKeys
from penstock.kernels.keys import Keys, hash_columns
from penstock.model import I64, MIN_TIME, Batch, Closed, Mask, to_numpy
from penstock.runs.state import State

_NAME = "closing"
_FAN_IN = 8


@dataclass(frozen=True)
class _Waiting:
    port: int
    after: int
    closed: Closed

    def to_table(self) -> pa.Table:
        told = self.closed
        on = ",".join(map(str, told.on))
        named = {"port": self.port, "after": self.after, "on": on, "numbered": told.numbered}
        columns = {name: pa.array([value] * len(told)) for name, value in named.items()}
        return pa.table({**columns, "high": told.high, "low": told.low, "until": told.until})


class WaitingParts:
    """The closed parts that wait, each with its port and the last instant that must pass."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waiting = [_read(run.table()) for run in state.runs(_NAME)]
        self._changed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, port: int, closed: Closed, after: int) -> None:
        """Let a part wait until ``after`` has passed."""
        self._waiting.append(_Waiting(port, after, closed))
        self._changed = True

    def ready(self, until: int) -> Iterator[tuple[int, Closed]]:
        """Take the parts all of whose rows are below ``until``."""
        found = [one for one in self._waiting if one.after < until]
        if found:
            self._changed = True
            self._waiting = [one for one in self._waiting if one.after >= until]
        for one in found:
            yield one.port, one.closed

    def save(self) -> None:
        if self._changed:
            self._state.drop(_NAME)
            for one in self._waiting:
                self._state.append(_NAME, one.to_table())
            self._changed = False


def _read(table: pa.Table) -> _Waiting:
    first = table.slice(0, 1).to_pylist()[0]
    on = tuple(int(c) for c in first["on"].split(",") if c)
    high, low, until = (to_numpy(table.column(name)) for name in ("high", "low", "until"))
    closed = Closed(on, high, low, until, first["numbered"])
    return _Waiting(first["port"], first["after"], closed)


def newest_of(rows: Iterable[Batch], closed: Closed) -> int:
    """Return the largest start of the rows of a part, ``MIN_TIME`` if there are none."""
    found = MIN_TIME
    part = ClosedKeys(Keys(closed.high, closed.low), closed.until)
    for some in rows:
        keys = hash_columns([some.columns[c] for c in closed.on], len(some))
        mine = part.closed_until(keys) > MIN_TIME
        if mine.any():
            found = max(found, int(some.start[mine].max()))
    return found


class ClosedParts:
    """The parts that one port of an operator has closed, kept in its state."""

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        self._runs = [ClosedKeys.from_table(run.table()) for run in state.runs(name)]

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, closed: ClosedKeys, since: int) -> None:
        """Add some; those of which nothing is promised from ``since`` on are forgotten."""
        self._runs.append(closed)
        self._state.append(self._name, closed.to_table())
        if len(self._runs) > _FAN_IN:
            merged = ClosedKeys.concat(self._runs)
            merged = merged.take(merged.until > since)
            self._runs = [merged] if len(merged) else []
            self._state.drop(self._name)
            self._state.append(self._name, merged.to_table())

    def until(self, keys: Keys) -> I64:
        """Return until when each key is closed; ``MIN_TIME`` where it is not."""
        found = np.full(len(keys), MIN_TIME, np.int64)
        for run in self._runs:
            found = np.maximum(found, run.closed_until(keys))
        return found

    def useless(self, keys: Keys, end: I64) -> Mask:
        """Return which rows with these keys and ends can meet nothing of the port any more."""
        useless: Mask = self.until(keys) >= end
        return useless
