"""The keeper of time: what clock, silence and program say of streams, decided before each batch.

What it decides for a batch goes into that batch's manifest, as the progress of the streams.  A
batch that is run again before its manifest is there is decided anew, and nothing has left yet.

It also says when a batch is due only because time has passed: a silence has lasted long enough, the
clock has passed rows that wait, or the program has promised something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

from penstock.model import MIN_TIME
from penstock.physical.progress import Decision, Partition, Progress
from penstock.timing import TimeRules

LONGEST_WAIT = 0.25
"""Seconds for which a batch is held back at most, to see whether a silence lasts long enough."""


class TimeKeeper:
    """Watches the streams of a pipeline; ``every`` are the seconds between two looks at the clock
    while nothing is known to wait for it.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._rules: Mapping[str, TimeRules] = {}
        self._heard: dict[tuple[str, str | None], float] = {}
        self._promised: dict[str, dict[str | None, int]] = {}
        self._looked_at = 0.0
        self._opened_at = 0.0
        self._lock = threading.Lock()

    def open(self, rules: Mapping[str, TimeRules]) -> None:
        """Watch streams from now on; while nothing was read, nothing could be heard."""
        with self._lock:
            self._rules = dict(rules)
            self._heard.clear()
            self._opened_at = time.monotonic()

    @property
    def needed(self) -> bool:
        """Whether time alone can make a batch due."""
        timed = (r.clock_lag is not None or r.idle_after is not None for r in self._rules.values())
        return bool(self._promised) or any(timed)

    def heard(self, stream: str, partition: str | None, at: float | None = None) -> None:
        """Note that rows came, at a time of the monotonic clock, or now."""
        with self._lock:
            now = time.monotonic() if at is None else at
            self._heard[stream, partition] = self._heard[stream, None] = now

    def promise(self, stream: str, heartbeat: int, partition: str | None = None) -> None:
        """Take what the program promises: nothing below a time comes any more."""
        with self._lock:
            mine = self._promised.setdefault(stream, {})
            mine[partition] = max(mine.get(partition, MIN_TIME), heartbeat)

    def silence(self, stream: str, partition: str | None) -> float:
        """Return for how many seconds nothing has come of a partition, None: of the stream."""
        now = time.monotonic()
        with self._lock:
            known = self._heard.get((stream, partition))
            if known is None:
                known = self._heard.setdefault((stream, None), now)
            return now - known

    def partitions(self, stream: str) -> list[str]:
        """Return the partitions of a stream of which something was heard."""
        with self._lock:
            return [part for name, part in self._heard if name == stream and part is not None]

    def decide(
        self, progress: Mapping[str, Progress], quiet: Mapping[str, frozenset[str]]
    ) -> dict[str, Decision]:
        """Decide for the next batch; ``quiet`` are partitions whose newest rows it takes."""
        found = {}
        clock = time.time_ns() // 1000
        for name, rules in self._rules.items():
            with self._lock:
                floors = dict(self._promised.get(name, {}))
            if rules.clock_lag is not None:
                floors[None] = max(floors.get(None, MIN_TIME), clock - rules.clock_lag)
            idle = frozenset(self._silent(name, rules, progress.get(name, Progress())))
            made = Decision(floors, idle, quiet.get(name, frozenset()))
            if made != Decision():
                found[name] = made
        self._looked_at = time.monotonic()
        return found

    def decided(self, decisions: Mapping[str, Decision]) -> None:
        """Forget what was promised and is in a manifest now."""
        with self._lock:
            for name, decision in decisions.items():
                mine = self._promised.get(name, {})
                for partition, heartbeat in decision.floors.items():
                    if mine.get(partition, heartbeat + 1) <= heartbeat:
                        del mine[partition]
                if not mine:
                    self._promised.pop(name, None)

    def _silent(self, stream: str, rules: TimeRules, progress: Progress) -> Iterator[str | None]:
        """Yield the partitions that have been silent for longer than their stream declares."""
        if rules.idle_after is None or progress.final:
            return
        for name in progress.partitions or (None,):
            if self.silence(stream, name) >= rules.idle_after:
                yield name
        silent = time.monotonic() - self._opened_at >= rules.idle_after
        if progress.partitions and silent and progress.is_absent(rules):
            yield None  # of partitions that were never heard, nothing has come all the time

    def due(self, progress: Mapping[str, Progress]) -> bool:
        """Whether a batch would move time on although nothing has come."""
        if self._promised:
            return True
        for name, rules in self._rules.items():
            known = progress.get(name, Progress())
            if known.final:
                continue
            if any(not _is_idle(known, part) for part in self._silent(name, rules, known)):
                return True
            if rules.clock_lag is not None and self._passed(known, rules.clock_lag):
                return True
        return False

    def _passed(self, progress: Progress, lag: int) -> bool:
        """Whether the clock has passed what waits, or was not looked at for long."""
        reached = time.time_ns() // 1000 - lag
        if progress.floor <= progress.max_time < reached:
            return True
        return reached > progress.floor and time.monotonic() - self._looked_at >= self._every


def _is_idle(progress: Progress, partition: str | None) -> bool:
    if partition is None:
        return progress.absent_idle if progress.partitions else progress.idle
    return progress.partitions.get(partition, Partition()).idle
