"""What an operator has been sent and may not work on yet: rows, ends, deaths and heartbeats.

Messages may run ahead of the heartbeat.  An `Inbox` keeps them, port by port, until the heartbeats
of *all* ports have passed an instant ``until``.  Then `Inbox.take` hands out a `Slice`: everything
that happens in ``[since, until)``.  What happens later waits, in the state from one micro-batch to
the next: rows under ``waiting.p``, told ends under ``ends.p`` and negative tuples under
``minus.p``, where p is the number of the port.  The number ``latest.p`` is the largest start of the
rows that wait, for who asks what they wait for (`penstock.physical.waits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from penstock.model import INF, MIN_TIME, Batch, Deaths, Ends, told_by
from penstock.runs.state import State

RUN_ROWS = 1 << 17
"""Rows that wait are written in runs of at least so many, but for the last."""


@dataclass(frozen=True)
class Slice:
    """Everything that happens in ``[since, until)``, port by port and in no order.

    ``parts[p]`` are the rows of port p that start in it, as they came; no part is empty.
    ``ends[p]`` are the ends told in it.  ``types[p]`` are those of the port's columns.
    """

    parts: list[list[Batch]]
    ends: list[Ends]
    since: int
    until: int
    types: Sequence[Sequence[pa.DataType]]

    @cached_property
    def rows(self) -> list[Batch]:
        """The rows of each port in one batch.  Parts are copied when this is first read."""
        return [
            Batch.concat(parts or [Batch.empty(types)])
            for parts, types in zip(self.parts, self.types, strict=True)
        ]

    def deaths(self, port: int) -> Deaths | None:
        """Return the negative tuples of a port; None if its ends are told by holder alone."""
        told = self.ends[port]
        return told if isinstance(told, Deaths) else None


class Heartbeats:
    """How far each port has come: nothing below its heartbeat can still arrive on it."""

    def __init__(self, state: State, ports: int) -> None:
        self._state = state
        self._times = [state.numbers.get(f"heartbeat.{p}", MIN_TIME) for p in range(ports)]

    @property
    def least(self) -> int:
        """The heartbeat of the slowest port, which is that of the operator."""
        return min(self._times)

    def hear(self, port: int, time: int) -> int:
        """Note the heartbeat of a port, and return the least of all."""
        if time > self._times[port]:
            self._times[port] = time
        return min(self._times)

    def over(self, port: int) -> bool:
        """Whether nothing more can arrive on a port."""
        return self._times[port] == INF

    def save(self) -> None:
        for port, time in enumerate(self._times):
            self._state.numbers[f"heartbeat.{port}"] = time


class _Port:
    """What waits on one port."""

    def __init__(self, state: State, number: int, types: Sequence[pa.DataType]) -> None:
        self._state = state
        self._names = tuple(f"{what}.{number}" for what in ("waiting", "ends", "minus"))
        waiting, ends, minus = self._names
        self._latest = f"latest.{number}"
        self._types = types
        self.rows = [Batch.from_table(run.table()) for run in state.runs(waiting)]
        self.ends = [
            Ends(table.column("holder").to_numpy(), table.column("end").to_numpy())
            for table in (run.table() for run in state.runs(ends))
        ]
        self.minus = [
            replace(Batch.from_table(run.table()), minus=True) for run in state.runs(minus)
        ]
        self.changed = False

    def told_below(self, until: int) -> Ends:
        """Take the ends below ``until``."""
        cut = [some.split(until) for some in self.ends]
        self.ends = [later for _, later in cut if len(later)]
        return Ends.concat([below for below, _ in cut])

    def died_below(self, until: int) -> Deaths:
        """Take the negative tuples of deaths below ``until``; at the end of time, all of them."""
        below, later = [Batch.empty(self._types)], []
        for rows in self.minus:
            now = rows.end < until
            if until == INF or now.all():
                below.append(rows)
                continue
            below.append(rows.take(now))
            later.append(rows.take(~now))
        self.minus = [rows for rows in later if len(rows)]
        return Deaths.brought(below)

    def started_below(self, until: int, told: Ends) -> list[Batch]:
        """Take the rows that start below ``until``, given what was told below it."""
        below, later = [], []
        for rows in self.rows:
            now = rows.start < until
            if now.all():
                below.append(rows)
                continue
            below.append(rows.take(now))
            rest = rows.take(~now)
            known = told.told(rest.holder)  # told before it starts: a ghost
            later.append(rest if known is None else rest.take(known == INF))
        self.rows = [rows for rows in later if len(rows)]
        return [rows for rows in below if len(rows)]

    def save(self) -> None:
        if not self.changed:
            return
        for name in self._names:
            self._state.drop(name)
        waiting, ends, minus = self._names
        self._state.numbers.pop(self._latest, None)
        if self.rows:
            latest = max(int(rows.start.max()) for rows in self.rows)
            self._state.numbers[self._latest] = latest
            for rows in _runs_of(self.rows):
                self._state.append(waiting, rows.to_table())
        if self.ends:
            told = Ends.concat(self.ends)
            self._state.append(ends, pa.table({"holder": told.holder, "end": told.end}))
        for rows in _runs_of(self.minus):
            self._state.append(minus, rows.to_table())


def _runs_of(parts: Sequence[Batch]) -> Iterator[Batch]:
    """Put parts together into runs of a good size, so that never all rows are copied at once."""
    some: list[Batch] = []
    for part in parts:
        some.append(part)
        if sum(map(len, some)) >= RUN_ROWS:
            yield Batch.concat(some)
            some = []
    if some:
        yield Batch.concat(some)


class Inbox:
    """What waits on all ports of an operator.

    Everything below ``since`` has been worked off.  ``whole``: negative tuples are kept whole and
    handed out as `Deaths`; otherwise only the ends that they tell are.
    """

    def __init__(self, state: State, types: Sequence[Sequence[pa.DataType]], whole: bool) -> None:
        self._state = state
        self._types = types
        self._whole = whole
        self._ports = [_Port(state, number, some) for number, some in enumerate(types)]
        self._heartbeats = Heartbeats(state, len(types))
        self.since = state.numbers.get("since", MIN_TIME)

    def put_rows(self, port: int, rows: Batch) -> None:
        """Add rows, or the negative tuples of rows that die."""
        box = self._ports[port]
        box.changed = True
        if rows.minus and not self._whole:
            box.ends.append(told_by(rows))
        elif len(rows):
            (box.minus if rows.minus else box.rows).append(rows)

    def put_ends(self, port: int, ends: Ends) -> None:
        """Add told ends."""
        if len(ends):
            box = self._ports[port]
            box.changed = True
            box.ends.append(ends)

    def progress(self, port: int, time: int) -> int:
        """Note the heartbeat of a port, and return how far all ports have come."""
        return max(self.since, self._heartbeats.hear(port, time))

    def take(self, until: int, ahead: bool = False) -> Slice:
        """Take what happens in ``[since, until)``; ``ahead``: and all rows that start later."""
        parts, ends = [], []
        for box in self._ports:
            box.changed = True
            told = box.told_below(until)
            if ahead:
                parts.append(box.rows)
                box.rows = []
            else:
                parts.append(box.started_below(until, told))
            ends.append(box.died_below(until) if self._whole else told)
        return Slice(parts, ends, self.since, until, self._types)

    @property
    def newest(self) -> int:
        """The largest start of the rows that wait, ``MIN_TIME`` if there are none."""
        starts = [int(rows.start.max()) for box in self._ports for rows in box.rows if len(rows)]
        return max(starts, default=MIN_TIME)

    def waiting(self, port: int) -> Sequence[Batch]:
        """Return the rows that wait on a port."""
        return self._ports[port].rows

    def exhausted(self, port: int) -> bool:
        """Whether no more rows will be taken from a port."""
        return self._heartbeats.over(port) and not self._ports[port].rows

    def save(self) -> None:
        """Write what waits to the state."""
        self._heartbeats.save()
        for box in self._ports:
            box.save()
        self._state.numbers["since"] = self.since
