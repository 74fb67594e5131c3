"""Where a replay stands in its files, and how it goes on from there.

A `Position` is written to Spark's offset log as JSON and holds everything needed to go on:
file, place in it (a byte at a line start, or a row), arrival number, round and shift of a loop.
`ReplayFiles.advance` depends only on the position, the number of rows and the files, so a batch
that Spark replays is cut exactly as before.

A replay reads the files that were there when it began, as they were then.  ``listed`` is a digest
of their names, sizes and modification times; the list itself is kept beside the checkpoint, so that
a file that has changed can be named.  Only files that still have rows to give must be unchanged.

A looped source is shifted by its *period* each round: the span of its times plus the mean gap
between two rows (at least one chronon), so time goes on at the border of two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.catalog import StreamDef
from penstock.errors import DataError, StateError
from penstock.model import I64, MIN_TIME, TIMESTAMP
from penstock.sources.cuts import LOOK_AHEAD, Cuts
from penstock.sources.offsets import START, Place, bad_position
from penstock.sources.readers.base import (
    EXTENSIONS,
    Descriptor,
    file_format,
    local_path,
    option,
)
from penstock.sources.signatures import FileList, Signature, check_unchanged, digest, signature


@dataclass(frozen=True)
class Position(Place):
    """A place in a replayed source; ``at`` is -1 before the first row of a file."""

    file: int = 0
    at: int = -1
    ordinal: int = 0
    round: int = 0
    shift: int = 0
    period: int = 0
    done: bool = False
    listed: str = START

    @classmethod
    def lowest(cls, name: str) -> int:
        return -1 if name == "at" else 0

    @property
    def begins(self) -> bool:
        """Whether nothing has been read yet."""
        return not (self.file or self.round or self.ordinal or self.done) and self.at < 0


def loop_rounds(definition: StreamDef) -> int | None:
    """Return how many times a replay reads its files; None means for ever."""
    given = (option(definition, "loop") or "false").strip().lower()
    if given in ("true", "false"):
        return None if given == "true" else 1
    if not given.isdecimal() or int(given) < 1:
        raise DataError(
            f"the option loop of stream {definition.name} must be 'true', 'false' or a number of "
            f"rounds from 1, got '{given}'"
        )
    return int(given)


def positive(definition: StreamDef, name: str) -> float | None:
    """Return an option that must be a number above 0; None if it is not given."""
    given = option(definition, name)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise DataError(
            f"the option {name} of stream {definition.name} must be a number above 0, got '{given}'"
        )
    return number


def list_files(definition: StreamDef) -> list[Path]:
    """Return the files of a replayed stream: the one given, or those of a folder in name order."""
    given = option(definition, "path")
    if not given:
        raise DataError(
            f"the stream {definition.name} must have a path; "
            f"add OPTIONS (path 'file or folder') to it"
        )
    local = local_path(given)
    if local is None:
        raise DataError(
            f"the path of stream {definition.name} must be a local file or folder for the format "
            f"replay, got '{given}'; use a Spark format such as parquet for other storage"
        )
    root = Path(local).absolute()
    if not root.exists():
        raise DataError(
            f"the path of stream {definition.name} must exist, got '{given}'; "
            f"it was looked for at {root}"
        )
    if root.is_file():
        return [root]
    any_name = option(definition, "format") is not None
    return sorted(
        path
        for path in root.iterdir()
        if path.is_file()
        and path.name[0] not in "._"
        and (any_name or path.suffix.lower() in EXTENSIONS)
    )


class Listed(Protocol):
    """A position that tells the digest of the files that it counts on."""

    @property
    def listed(self) -> str: ...


class ReplayFiles:
    """The files of a replayed stream, fixed when it begins; ``kept_in`` is where their list is.

    They are in the order of their names until `sort` puts them in another one.
    """

    def __init__(self, definition: StreamDef, kept_in: str | Path | None = None) -> None:
        self.definition = definition
        self.stream = definition.name
        self.rounds = loop_rounds(definition)
        self.cuts = Cuts(definition, lambda path: file_format(definition, path))
        self._list = None if kept_in is None else FileList(kept_in)
        self._kept = False
        self._present = [str(path) for path in list_files(definition)]
        self._use(self._present, [signature(definition.name, path) for path in self._present])

    def sort(self, time_of: Callable[[str], int | None]) -> None:
        """Put the files in the order of a time of each; those that have none come first."""
        times = {path: time_of(path) for path in self.paths}
        known = {path: MIN_TIME if time is None else time for path, time in times.items()}
        seen = dict(zip(self.paths, self._seen, strict=True))
        self._present = sorted(self.paths, key=lambda path: (known[path], path))
        self._use(self._present, [seen[path] for path in self._present])

    def _use(self, paths: Sequence[str], seen: Sequence[Signature]) -> None:
        """Replay these files, which had these signatures when they were first seen."""
        self.paths = list(paths)
        self._seen = list(seen)
        self.digest = digest(seen)
        self._ahead: tuple[Position, Position, I64] | None = None
        self._period: int | None = None

    def check(self) -> None:
        """Open every file's head: its header, schema line or schema must fit the declaration."""
        for path in self.paths:
            self.cuts.bounds(path)

    def start(self) -> Position:
        """Return the position before the first row."""
        return Position(listed=self.digest, period=self.period)

    def position(self, offset: Any) -> Position:
        """Return the position that an offset holds."""
        return Position.from_json(offset, self.stream)

    @property
    def period(self) -> int:
        """By how much times are shifted from one round to the next."""
        if self._period is None:
            self._period = 0 if self.rounds == 1 else self._found_period()
        return self._period

    def keep(self) -> None:
        """Keep the list of the files, for the time when one of them will have changed."""
        if self._list is not None and not self._kept:
            self._list.replace(self._seen)
        self._kept = True

    def advance(
        self, position: Position, rows: int, size: int | None = None, until: int | None = None
    ) -> tuple[Position, list[Descriptor]]:
        """Return where the source stands ``rows`` rows later, and the slices between.

        ``size`` stops it earlier, at so many bytes: of text as it is in the file, of columns as
        they are in memory; but it takes at least one row where there is one.  ``until`` stops it
        at the first row that is later.  When the source ends there, the position is done and the
        last slice is final; a source that ends without a slice has one of no rows.
        """
        self.check_same(position)
        self._check_place(position)
        if until is not None:
            rows = self.rows_until(position, until, rows)
        slices: list[Descriptor] = []
        name = self.definition.name
        seen_in_round = position.at >= 0 or position.file > 0
        while not position.done:
            if position.file >= len(self.paths):
                endless = self.rounds is None or position.round + 1 < self.rounds
                if not endless or not seen_in_round:
                    position = replace(position, done=True)
                    break
                seen_in_round = False
                position = replace(
                    position,
                    file=0,
                    at=-1,
                    round=position.round + 1,
                    shift=position.shift + position.period,
                )
            self.check_file(position.file)
            path = self.paths[position.file]
            first, last = self.cuts.bounds(path)
            at = max(first, position.at)
            if at >= last:
                position = replace(position, file=position.file + 1, at=-1)
                continue
            if rows <= 0 or (size is not None and size <= 0):
                break
            end, taken, spent = self.cuts.within(path, at, rows, size)
            size = None if size is None else size - spent
            slices.append(Descriptor(name, path, at, end, position.ordinal, position.shift))
            seen_in_round = True
            rows -= taken
            position = replace(position, at=end, ordinal=position.ordinal + taken)
        if position.done and not slices:
            path = self.paths[-1] if self.paths else ""
            slices = [Descriptor(name, path, 0, 0, position.ordinal, position.shift, final=True)]
        elif position.done:
            slices[-1] = slices[-1]._replace(final=True)
        return position, slices

    def between(self, first: Position, last: Position) -> list[Descriptor]:
        """Return the slices between two positions that were reached before."""
        self.check_same(last)
        if first.begins:
            first = self.start()
        if last.ordinal < first.ordinal or first.done:
            raise bad_position(self.stream, f"it goes from {first} back to {last}")
        reached, slices = self.advance(first, last.ordinal - first.ordinal)
        if reached != last:
            raise bad_position(self.stream, f"the batch that ended at {last} ends at {reached}")
        return slices

    def rows_until(self, position: Position, time: int, limit: int) -> int:
        """Return how many rows, at most ``limit``, come before the first later than ``time``."""
        self.check_same(position)
        count = 0
        while count < limit and not position.done:
            begin, end, times = self._look_ahead(position)
            skipped = position.ordinal - begin.ordinal
            ready = int(np.searchsorted(times, time, side="right")) - skipped
            if ready < len(times) - skipped:
                return min(count + max(ready, 0), limit)
            count += ready
            position = end
        return min(count, limit)

    def time_at(self, position: Position) -> int | None:
        """Return the time that pacing starts from: that of the next row that has one nearby."""
        begin, _, times = self._look_ahead(position)
        known = times[position.ordinal - begin.ordinal :]
        known = known[known > MIN_TIME]
        return int(known[0]) if len(known) else None

    @property
    def chronons_per_second(self) -> int:
        """How many chronons of event time pass per second: 1 for integer times."""
        time = self.definition.schema[self.definition.time]
        return 1_000_000 if time.type == TIMESTAMP else 1

    def _look_ahead(self, position: Position) -> tuple[Position, Position, I64]:
        """Return a range of positions around ``position`` and its rows' running largest times."""
        if self._ahead is not None:
            begin, end, times = self._ahead
            if begin.ordinal <= position.ordinal < end.ordinal:
                return self._ahead
        end, slices = self.advance(position, LOOK_AHEAD)
        largest = MIN_TIME
        if self._ahead is not None and self._ahead[1].ordinal == position.ordinal:
            largest = int(self._ahead[2][-1]) if len(self._ahead[2]) else MIN_TIME
        times = np.full(end.ordinal - position.ordinal, MIN_TIME, np.int64)
        for part in slices:
            into = times[part.ordinal - position.ordinal :]
            for read in self.cuts.read(part.path, part.first, part.last, part.shift):
                into[read.positions] = self.cuts.times_of(read)
        times = np.maximum.accumulate(np.maximum(times, largest))
        self._ahead = (position, end, times)
        return self._ahead

    def _found_period(self) -> int:
        lowest, highest, rows = 2**63 - 1, MIN_TIME, 0
        for path in self.paths:
            for part in self.cuts.read(path, 0, -1):
                times = self.cuts.times_of(part)
                if len(times):
                    lowest = min(lowest, int(times.min()))
                    highest = max(highest, int(times.max()))
                    rows += len(times)
        span = highest - lowest if rows else 0
        return span + max(1, span // max(rows - 1, 1))

    def check_same(self, position: Listed) -> None:
        """Take the files among which a position was taken; they must be known, and no others."""
        if not self.restore(position):
            name = self.definition.name
            list_path = "" if self._list is None else f" {self._list.path}"
            folder = option(self.definition, "path")
            raise DataError(
                f"the files of stream {name} in '{folder}' must stay as they were when its "
                f"checkpoint was made, but their names, sizes or modification times have changed; "
                f"which of them cannot be said, because their list{list_path} is gone, damaged or "
                f"of another time; bring the old files back (cp -p keeps times), or start with a "
                f"new checkpoint"
            )

    def restore(self, position: Listed) -> bool:
        """Take the files among which a position was taken, if they are known, and no others."""
        if position.listed == self.digest:
            return True
        name, kept = self.definition.name, self._kept_list()
        if kept is None or digest(kept) != position.listed:
            return False
        names = {file.name for file in kept}
        for path in self._present:
            if Path(path).name not in names:
                raise DataError(
                    f"the replay of stream {name} must have the files that it began with, but "
                    f"'{path}' was added since; move it away, or start with a new checkpoint (a "
                    f"stream USING parquet reads files as they arrive)"
                )
        root = Path(local_path(str(option(self.definition, "path"))) or "").absolute()
        paths = [str(root / file.name) for file in kept]
        self._use([str(root)] if root.is_file() else paths, kept)
        return True

    def _kept_list(self) -> list[Signature] | None:
        """Return the list that was kept, None if there is none or it is damaged."""
        if self._list is None:
            return None
        try:
            self._list.refresh()
        except StateError:
            return None
        return list(self._list.files)

    def check_file(self, file: int) -> None:
        """Check that a file is as it was when it was first seen."""
        check_unchanged(self.definition.name, self.paths[file], self._seen[file])

    def _check_place(self, position: Position) -> None:
        """Check that a position can be one of these files; it must be a line start, or a row."""
        problem, name = None, self.definition.name
        if (position.file == len(self.paths)) != position.done and self.paths:
            problem = f"file {position.file} of {len(self.paths)} is not the end"
        elif position.file > len(self.paths):
            problem = f"there are {len(self.paths)} files, but it is in number {position.file}"
        elif self.rounds is not None and position.round >= self.rounds:
            problem = f"it is in round {position.round + 1} of {self.rounds}"
        elif position.shift != position.round * position.period:
            problem = f"{position.round} rounds of {position.period} do not make {position.shift}"
        elif position.at >= 0 and not position.done:
            self.check_file(position.file)
            if not self.cuts.is_row(self.paths[position.file], position.at):
                problem = f"no row begins at {position.at} of '{self.paths[position.file]}'"
        if problem is not None:
            raise bad_position(name, problem)
