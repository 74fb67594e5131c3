"""A local folder in which files arrive, cut into batches by rows, files and bytes.

The files that have been seen are kept in a list of their own beside the checkpoint, in the order in
which they were found: those found together in the order that the stream asks for.  The list is only
ever appended to and forced to disk before an offset counts on it, so a position is a number of
files and places in some, and a batch that Spark replays is cut as before.  A position also holds a
digest of the list up to it, and the list holds each file's size and time when it was found: a list
or a file that is not as it was is refused.

A file counts as whole when it appears: writers put it in place by a rename.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import DataError, StateError
from penstock.model import MIN_TIME
from penstock.sources.cuts import Cuts
from penstock.sources.offsets import bad_position
from penstock.sources.readers.base import COMPRESSED
from penstock.sources.side_by_side import NAME, TIME, Places, order_of
from penstock.sources.signatures import LIST, FileList, Signature, check_unchanged

__all__ = ["LIST", "FolderFiles"]

_PARQUET = (".parquet", ".pq")

_ENDINGS = (b"PAR1", b"PARE")
"""The last bytes of a Parquet file that is whole."""


class FolderFiles:
    """The files of a folder, in order of arrival; `look` finds new ones.

    ``kind`` is how they are read.  Of Parquet only names that say so count.
    """

    rounds = 0

    def __init__(
        self, definition: StreamDef, folder: str | Path, kept_in: str | Path, kind: str = "parquet"
    ) -> None:
        self.stream = definition.name
        self.cuts = Cuts(definition, lambda _: kind)
        self._kind = kind
        self._sort_key = _sort_key(definition, self.cuts)
        self._folder = Path(folder)
        self._list = FileList(kept_in)
        self.paths: list[str] = []
        self._known: dict[str, int] = {}
        self._unfinished: str | None = None
        self._held: frozenset[str] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Take note of files that were added to the list."""
        self._list.refresh()
        self._take_note()

    def hold(self) -> None:
        """Take the files that are there now as all there are."""
        self._held = frozenset(name for _, name, _ in self._new())

    def look(self) -> None:
        """Append the files that are new to the list, up to the first that is not whole yet."""
        self._unfinished = None
        found = []
        for time, name, size in sorted(self._new()):
            if self._held is not None and name not in self._held:
                continue
            try:
                whole = self._is_whole(self._folder / name)
            except FileNotFoundError:
                continue  # it was taken away before anything counted on it
            if not whole:
                self._unfinished = str(self._folder / name)
                break
            found.append(Signature(name, size, time))
        if found:
            key = self._sort_key
            found.sort(key=lambda file: (key(str(self._folder / file.name)), file.name))
            self._list.append(found)
            self._take_note()

    def _new(self) -> Iterator[tuple[int, str, int]]:
        """Find files that are not in the list: modification time, name and size."""
        self.check_folder()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name[0] in "._" or not self._counts(entry.name.lower()):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if entry.path not in self._known and entry.is_file():
                        at = entry.stat()
                        yield at.st_mtime_ns, entry.name, at.st_size

    def check_folder(self) -> None:
        """Check that the folder is there."""
        if not self._folder.is_dir():
            raise DataError(
                f"the folder of stream {self.stream} must stay while the stream runs, but "
                f"'{self._folder}' is gone; bring it back"
            )

    def _counts(self, name: str) -> bool:
        if self._kind == "parquet":
            return name.endswith(_PARQUET)
        if name.endswith(COMPRESSED):
            raise DataError(
                f"the file '{self._folder / name}' of stream {self.stream} must not be compressed, "
                f"because it is read in slices; unpack it, or let Spark read the folder: add "
                f"OPTIONS (pathGlobFilter '*') and use another --checkpoint"
            )
        return True

    def _is_whole(self, path: Path) -> bool:
        return self._kind != "parquet" or _is_whole(path)

    # -- what positions count on -------------------------------------------------------------------

    def refuse_unfinished(self) -> None:
        """Say what is wrong with the file that `look` did not take, if there is one."""
        if self._unfinished is None:
            return
        try:
            pyarrow.parquet.read_metadata(self._unfinished)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"the file '{self._unfinished}' of stream {self.stream} must be a whole Parquet "
                f"file from when it appears (write it elsewhere and rename it): {error}"
            ) from None

    def digest(self, count: int) -> str:
        """Return the digest of the first files of the list."""
        found = self._list.digest(count)
        assert found is not None
        return found

    def waiting(self, left: int, places: list[tuple[int, int]]) -> int:
        """Return the bytes of files from one on, and behind places in some of those before it.

        Files that were not found yet are counted as well.
        """
        files = self._list.files
        total = sum(file.size for file in files[left:]) + sum(size for _, _, size in self._new())
        for file, at in places:
            if file >= len(files):  # all that was found has been read
                continue
            size, path = files[file].size, self.paths[file]
            if at and os.path.exists(path):
                before = self.cuts.bytes_before(path, at, size)
                total += -before if file >= left else size - before
        return total

    def _take_note(self) -> None:
        if len(self.paths) > len(self._list.files):
            self.paths, self._known = [], {}
        for file in self._list.files[len(self.paths) :]:
            path = str(self._folder / file.name)
            self._known[path] = len(self.paths)
            self.paths.append(path)

    def check_file(self, file: int) -> None:
        """Check that a file is as it was when it was found."""
        check_unchanged(self.stream, self.paths[file], self._list.files[file])

    def check(self, position: Places) -> None:
        """Check that the list is the one that a position counts on."""
        count, found = position.known, self._list.digest(position.known)
        if found != position.listed:
            how = "it tells others" if found is not None else f"it tells {len(self.paths)}"
            how = how if self._list.path.exists() else "it is gone"
            raise StateError(
                f"the list of files {self._list.path} must tell the {count} files that stream "
                f"{self.stream} counts on, but {how}; bring it back from a copy, or use another "
                f"--checkpoint"
            )
        if not position.begun and position.ordinal:
            raise bad_position(self.stream, f"no file is read, but {position.ordinal} rows are")


def _sort_key(definition: StreamDef, cuts: Cuts) -> Callable[[str], int]:
    """Return what puts files that are found together in order, before their names do."""
    order = order_of(definition)
    if order == NAME:
        return lambda path: 0
    measured = order == TIME or definition.timing.keeping is not None
    time_of = cuts.least_time if measured else cuts.first_time

    def key(path: str) -> int:
        time = time_of(path)
        return MIN_TIME if time is None else time

    return key


def _is_whole(path: Path) -> bool:
    """Whether a file ends as a Parquet file does."""
    with open(path, "rb") as file:
        file.seek(-min(4, os.fstat(file.fileno()).st_size), os.SEEK_END)
        return file.read() in _ENDINGS
