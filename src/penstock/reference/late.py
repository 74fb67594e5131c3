"""Which rows are late, by definition: the oracle of section 5 of the semantics, row by row.

Each source partition has a heartbeat.  A row below the heartbeat that its partition had before it
is late, and so is one of a part that was closed before it.  The heartbeat of a stream is the least
of its partitions that are not idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.reference.expressions import evaluate
from penstock.timing import Punctuation, TimeRules

BEGINNING = -(2**63)
"""Before all time: nothing is promised."""

Row = tuple[Any, ...]


@dataclass
class Source:
    """A source partition: the largest time, what else is promised, and the delays of all rows."""

    newest: int = BEGINNING
    promised: int = BEGINNING
    idle: bool = False
    delays: list[int] = field(default_factory=list)
    slack: int | None = None
    closed: dict[Row, int] = field(default_factory=dict)
    kept: list[tuple[Row, int]] = field(default_factory=list)

    def heartbeat(self) -> int:
        """Return the time below which its rows are late."""
        if self.slack is None or self.newest - self.slack < BEGINNING:
            return self.promised
        return max(self.promised, self.newest - self.slack)

    def measure(self, time: int, keeping: float) -> None:
        """Follow the disorder: the slack is the largest delay of the last p / (1 - p) rows.

        These are the block under way and the 16 before it, counted from the first row.
        """
        self.promised = self.heartbeat()  # a slack that grows takes nothing back
        behind = 0 if self.newest == BEGINNING else max(self.newest - time, 0)
        self.delays.append(min(behind, 2**60))
        rows = len(self.delays)
        wanted = max(16, math.ceil(keeping / (1.0 - keeping) - 1e-6))
        block = max(1, wanted // 16)
        recent = self.delays[max(0, rows // block - 16) * block :]
        if rows >= 16:
            self.slack = max(recent) * (1 if rows >= wanted else 2)


@dataclass
class Stream:
    """A stream: its partitions, what it declares, and the heartbeat that it has given."""

    rules: TimeRules
    time: int
    sources: dict[str, Source] = field(default_factory=dict)
    given: int = BEGINNING
    ended: bool = False
    silent: bool = False
    closed: dict[Row, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        if self.sources:
            return all(source.idle for source in self.sources.values())
        return self.silent

    def settle(self) -> None:
        """Give the heartbeat that its partitions have now."""
        busy = [s.heartbeat() for s in self.sources.values() if not s.idle]
        idle = [s.heartbeat() for s in self.sources.values() if s.idle]
        found = min(busy) if busy else max(idle, default=BEGINNING)
        if len(self.sources) >= (self.rules.partitions or 0) or self.silent:
            self.given = max(self.given, found)
            self._close()

    def _close(self) -> None:
        """Close the parts that all partitions which are not idle have closed."""
        saying = [s.closed for s in self.sources.values() if not s.idle]
        for part in set.intersection(*map(set, saying)) if saying else ():
            until = min(closed[part] for closed in saying)
            self.closed[part] = max(self.closed.get(part, BEGINNING), until)

    def broken(self, source: Source, row: Row, time: int) -> bool:
        """Whether a row is of a part that its partition, or the stream before, has closed."""
        part = self.part(row)
        return any(time < closed.get(part, BEGINNING) for closed in (source.closed, self.closed))

    def part(self, row: Row) -> Row:
        """Return the values of a row in the columns of the punctuation that closes parts."""
        return tuple(row[c] for each in self.rules.punctuations for c in each.on)


class Judge:
    """Judges rows as they come; ``kept`` are those in time, ``late`` the others, by stream."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.late: dict[str, list[Row]] = {}

    def declare(self, name: str, rules: TimeRules, time: int) -> None:
        """Make a stream known; ``time`` is its time column."""
        self.streams[name] = Stream(rules, time)
        self.late[name] = []

    @property
    def kept(self) -> dict[str, list[tuple[Row, int]]]:
        """The rows in time in order of their arrival numbers: partition, then place in it."""
        return {
            name: [
                kept
                for _, source in sorted(stream.sources.items(), key=lambda s: _number(s[0]))
                for kept in source.kept
            ]
            for name, stream in self.streams.items()
        }

    def feed(self, name: str, partition: str, rows: Iterable[Row]) -> None:
        """Let rows of a partition come, one after another."""
        stream = self.streams[name]
        rules = stream.rules
        for row in rows:
            source = stream.sources.setdefault(partition, Source())
            if rules.keeping is None:
                source.slack = rules.slack
            source.idle = False
            source.promised = max(source.promised, stream.given)
            time = row[stream.time]
            if time < source.heartbeat() or stream.broken(source, row, time):
                self.late[name].append(row)
            else:
                source.kept.append((row, time))
            if rules.keeping is not None:
                source.measure(time, rules.keeping)
            source.newest = max(source.newest, time)
            for punctuation in rules.punctuations:
                if evaluate(punctuation.condition, row):
                    self._promise(stream, source, punctuation, row)

    def _promise(self, stream: Stream, source: Source, said: Punctuation, row: Row) -> None:
        """Take what a row promises."""
        time = row[stream.time] if said.time is None else evaluate(said.time, row)
        if time is None:
            return
        time = min(time, 2**63 - 2)
        if not said.on:
            source.promised = max(source.promised, time)
            return
        until = 2**63 - 1 if said.lasts is None else min(time + said.lasts, 2**63 - 1)
        part = stream.part(row)
        source.closed[part] = max(source.closed.get(part, BEGINNING), until)

    def decide(
        self,
        told: Mapping[str, tuple[Mapping[str | None, int], Iterable[str | None]]],
        met: Iterable[Iterable[str]],
    ) -> None:
        """Take what clock, program and silence say of streams: heartbeats, idle partitions."""
        for name, (floors, idle) in told.items():
            stream = self.streams[name]
            for partition, floor in floors.items():
                if partition is None:
                    stream.given = max(stream.given, floor)
                for key, source in stream.sources.items():
                    if partition in (None, key):
                        source.promised = max(source.promised, floor)
            for partition in idle:
                if partition is None:
                    stream.silent = True
                elif partition in stream.sources:
                    source = stream.sources[partition]
                    source.idle = True
                    if source.newest > BEGINNING:
                        source.promised = max(source.promised, source.newest + 1)
        self.settle(met)

    def end(self, names: Iterable[str]) -> None:
        """Let streams end."""
        for name in names:
            self.streams[name].ended = True

    def settle(self, met: Iterable[Iterable[str]]) -> None:
        """Give heartbeats; idle streams are passed over by those that they meet in queries."""
        for stream in self.streams.values():
            stream.settle()
        for group in _together([set(names) for names in met]):
            members = [self.streams[n] for n in group if not self.streams[n].ended]
            idle = [stream for stream in members if stream.idle]
            busy = [stream.given for stream in members if not stream.idle]
            heard = [given for given in busy if given > BEGINNING]
            if busy and not heard:
                continue
            reached = min(heard) if heard else max((s.given for s in idle), default=BEGINNING)
            for stream in idle:
                stream.given = max(stream.given, reached)


def _number(partition: str) -> tuple[int, str]:
    """Return the place of a partition: the one without a name, numbers, other names."""
    return (int(partition) + 1 if partition.isdecimal() else 0, partition)


def _together(groups: list[set[str]]) -> list[set[str]]:
    """Join groups that share a stream, until none do."""
    for one in range(len(groups)):
        for other in range(one + 1, len(groups)):
            if groups[one] & groups[other]:
                rest = [g for n, g in enumerate(groups) if n not in (one, other)]
                return _together([*rest, groups[one] | groups[other]])
    return groups
