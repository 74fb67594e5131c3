"""The format ``replay``: files are read as if they came in now, at a chosen pace.

All that must survive is in the offsets.  Only pacing lives in the process: it is measured from the
first call after a start, so a restart goes on smoothly instead of catching up the time that the
program was down.

The files of a folder are read side by side, unless the option ``order`` says that they are one
sequence of rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.model import MIN_TIME
from penstock.sources.base import (
    Backlog,
    Limits,
    SourceFormat,
    StreamReader,
    Waiting,
)
from penstock.sources.cuts import Cuts
from penstock.sources.readers.base import (
    Descriptor,
    file_format,
    local_path,
    option,
    refuses_missing,
)
from penstock.sources.replayed_files import ReplayFiles, list_files, loop_rounds, positive
from penstock.sources.side_by_side import PARALLEL, TIME, Places, SideBySide, Take, order_of
from penstock.sources.signatures import FileList
from penstock.sources.tables import check_path_given


class ReplayFormat(SourceFormat):
    """A file, or the files of a folder, replayed."""

    name = "replay"
    options = ("path", "format", "order", "rate", "speed", "loop", "delimiter", "null", "missing")
    names_files = True

    def check_values(self, definition: StreamDef) -> None:
        check_path_given(f"stream {definition.name}", option(definition, "path"))
        loop_rounds(definition)
        refuses_missing(definition)
        if positive(definition, "rate") and positive(definition, "speed"):
            raise ConfigError(
                f"the stream {definition.name} must have a rate or a speed, not both; "
                f"rate counts rows per second, speed is a multiple of event time"
            )
        order_of(definition)

    def check(self, definition: StreamDef) -> None:
        self.check_values(definition)
        ReplayFiles(definition).check()

    def is_finite(self, definition: StreamDef) -> bool:
        return loop_rounds(definition) is not None

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        files, parallel = ReplayFiles(definition, folder), _is_parallel(definition)
        timing = definition.timing
        slack = timing.slack if timing.keeping is None else None
        if order_of(definition) == TIME or (parallel and slack is None):
            files.sort(files.cuts.least_time)
        elif parallel:
            files.sort(files.cuts.first_time)
        plan = SideBySide(files, limits.width, slack, in_order=not parallel)
        return ReplayReader(files, plan, limits)

    def why_no_tap(self, definition: StreamDef) -> str:
        side_by_side = _is_parallel(definition)
        return "files that are read side by side come batch by batch" if side_by_side else ""

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        paced = loop_rounds(definition) != 1 or any(
            positive(definition, name) for name in ("rate", "speed")
        )
        return Backlog() if paced else ReplayBacklog(definition, folder)


def _is_parallel(definition: StreamDef) -> bool:
    """Whether the files of a stream are read side by side; one that is named is read alone."""
    given = local_path(option(definition, "path") or "")
    return order_of(definition) == PARALLEL and given is not None and Path(given).is_dir()


class ReplayReader:
    """Plans the batches of a replay: its rate is in rows, its speed in event time, per second."""

    def __init__(self, files: ReplayFiles, plan: SideBySide, limits: Limits) -> None:
        self._limits = limits
        self._files = files
        self._plan = plan
        self._rate = positive(files.definition, "rate")
        self._speed = positive(files.definition, "speed")
        self._anchor: tuple[float, int] | None = None
        self._first_ordinal: int | None = None
        self._planned: dict[tuple[Places, Places], list[Descriptor]] = {}
        self._frozen = False
        self._target: Places | None = None

    def position(self, offset: Mapping[str, Any] | None) -> Places:
        files = self._files
        return files.start() if offset is None else Places.from_json(offset, files.stream)

    def freeze(self) -> None:
        self._frozen = True

    def advance(self, position: Places, everything: bool) -> Places:
        if position.done or position == self._target:
            self._files.restore(position)  # refuses files that were added
            return position
        endless = self._files.rounds is None
        rows = self._limits.rows if endless and everything else self._limits.now(everything)
        until = None
        if not self._frozen:
            rows, until = self._due(position, rows)
        self._files.check_same(position)
        end, slices = self._plan.advance(position, Take(rows, self._limits.bytes, until=until))
        if end.ordinal == position.ordinal and not end.done:
            return position
        self._files.keep()
        end = replace(end, due=self._due_at(end))
        self._planned = {(position, end): slices}
        if self._frozen and endless:
            self._target = end
        return end

    def slices(self, first: Places, last: Places) -> list[Descriptor]:
        slices = self._planned.get((first, last))
        if slices is not None:
            return slices
        self._files.check_same(last)
        return self._plan.between(self._files.start() if first.begins else first, last)

    def follow_since(self, position: Places, time: float) -> None:
        """Let the clock go as if another reader had been at a position at a monotonic time."""
        self._first_ordinal = -1  # the other one has begun
        if self._rate is not None:
            self._anchor = (time, position.ordinal)
        elif self._speed is not None:
            event = self._plan.time_at(position)
            self._anchor = None if event is None else (time, event)

    def _due_at(self, position: Places) -> int:
        """Return when the clock reaches a position, so that others can follow it."""
        if self._anchor is None:
            return 0
        since, first = self._anchor
        if self._rate is not None:
            return int(1e9 * (since + (position.ordinal - first) / self._rate))
        event = None if self._speed is None else self._plan.time_at(position)
        if self._speed is None or event is None:
            return 0
        passed = (event - first) / (self._speed * self._files.chronons_per_second)
        return int(1e9 * (since + passed))

    def _due(self, position: Places, limit: int) -> tuple[int, int | None]:
        """Return how many rows may leave by now, and up to which time they may be.

        The clock starts when the first batch is done: that one takes as long as Spark needs to
        start its workers, and brings only the first row or instant.
        """
        starting = self._first_ordinal in (None, position.ordinal)
        self._first_ordinal = position.ordinal if starting else self._first_ordinal
        if self._rate is not None:
            if starting:
                return min(1, limit), None
            if self._anchor is None:
                self._anchor = (time.monotonic(), position.ordinal)
            since, ordinal = self._anchor
            due = ordinal + int((time.monotonic() - since) * self._rate)
            return max(0, min(limit, due - position.ordinal)), None
        if self._speed is not None:
            if self._anchor is None:
                self._files.check_same(position)
                event = self._plan.time_at(position)
                if event is None or starting:
                    return limit, MIN_TIME if event is None else event
                self._anchor = (time.monotonic(), event)
            since, event = self._anchor
            passed = (time.monotonic() - since) * self._speed * self._files.chronons_per_second
            return limit, event + int(passed)
        return limit, None


class ReplayBacklog(Backlog):
    """The bytes of files behind the places that the last batch reached."""

    def __init__(self, definition: StreamDef, kept_in: str) -> None:
        self._definition = definition
        self._list = FileList(kept_in) if kept_in else None
        self._cuts = Cuts(definition, lambda path: file_format(definition, path))
        self._paths = [str(path) for path in list_files(definition)]

    def measured(self, taken: int, position: Mapping[str, Any] | None) -> Waiting | None:
        paths = {Path(path).name: path for path in self._paths}
        sizes = {name: Path(path).stat().st_size for name, path in paths.items()}
        if position is None:
            return None if taken else Waiting(sum(sizes.values()), "bytes")
        names = list(paths)
        if self._list is not None:
            self._list.refresh()
            names = [file.name for file in self._list.files] or names
        left = names[position["begun"] :]
        places = [(names[file], at) for file, at, _ in position["open"]]
        waiting = sum(sizes.get(name, 0) for name in left)
        for name, at in places:
            before = self._cuts.bytes_before(paths[name], at, sizes[name])
            waiting += sizes[name] - before if name not in left else -before
        return Waiting(max(0, waiting), "bytes")
