"""The files of a replay: which they are, whether they are as they were, and the period of a loop.

A replay reads the files that were there when it began, as they were then.  The digest that a
position holds is one of their names, sizes and modification times; the list itself is kept beside
the checkpoint, so that a file that has changed can be named.  Only files that still have rows to
give must be unchanged.

A looped source is shifted by its *period* each round: the span of its times plus the mean gap
between two rows (at least one chronon), so time goes on at the border of two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.catalog import StreamDef
from penstock.errors import DataError, StateError
from penstock.model import MIN_TIME, TIMESTAMP
from penstock.sources.cuts import Cuts
from penstock.sources.readers.base import (
    EXTENSIONS,
    file_format,
    local_path,
    option,
)
from penstock.sources.side_by_side import Places
from penstock.sources.signatures import FileList, Signature, check_unchanged, digest, signature


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
        self._period: int | None = None

    def check(self) -> None:
        """Open every file's head: its header, schema line or schema must fit the declaration."""
        for path in self.paths:
            self.cuts.bounds(path)

    def start(self) -> Places:
        """Return the position before the first row."""
        return Places(len(self.paths), period=self.period, listed=self.digest)

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

    @property
    def chronons_per_second(self) -> int:
        """How many chronons of event time pass per second: 1 for integer times."""
        time = self.definition.schema[self.definition.time]
        return 1_000_000 if time.type == TIMESTAMP else 1

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

    def check_same(self, position: Places) -> None:
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

    def restore(self, position: Places) -> bool:
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
