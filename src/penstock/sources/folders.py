"""A local folder in which Parquet files arrive, cut into batches by rows, files and bytes.

The files that have been seen are kept in a list of their own beside the checkpoint, in the order in
which they were found: those found together by modification time, then name.  The list is only ever
appended to and forced to disk before an offset counts on it, so a position is a number of files and
a row in the next one, and a batch that Spark replays is cut as before.  A position also holds a
digest of the list up to it, and the list holds each file's size and time when it was found: a list
or a file that is not as it was is refused.

A file counts as whole when it appears: writers put it in place by a rename.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from penstock.errors import DataError, StateError
from penstock.sources.offsets import START, Place, bad_position
from penstock.sources.readers.base import Descriptor
from penstock.sources.signatures import LIST, FileList, Signature, check_unchanged

__all__ = ["LIST", "FolderFiles", "FolderPosition"]

SUFFIXES = (".parquet", ".pq")

_ENDINGS = (b"PAR1", b"PARE")
"""The last bytes of a Parquet file that is whole."""


@dataclass(frozen=True)
class FolderPosition(Place):
    """So many files are done, and so many rows of the next; ``ordinal`` numbers the next row.

    ``listed`` is the digest of the list up to and with the file that is being read.
    """

    file: int = 0
    row: int = 0
    ordinal: int = 0
    listed: str = START

    @property
    def begun(self) -> int:
        """How many files have been read, wholly or in part."""
        return self.file + (self.row > 0)


@dataclass(frozen=True)
class _Size:
    rows: int
    bytes_per_row: float


class FolderFiles:
    """The files of a folder, in order of arrival; `look` finds new ones."""

    def __init__(self, stream: str, folder: str | Path, kept_in: str | Path) -> None:
        self._stream = stream
        self._folder = Path(folder)
        self._list = FileList(kept_in)
        self.paths: list[str] = []
        self._known: dict[str, int] = {}
        self._sizes: dict[str, _Size] = {}
        self._unfinished: str | None = None
        self.refresh()

    def refresh(self) -> None:
        """Take note of files that were added to the list."""
        self._list.refresh()
        self._take_note()

    def look(self) -> None:
        """Append the files that are new to the list, up to the first that is not whole yet."""
        self._unfinished = None
        found = []
        for time, name, size in sorted(self._new()):
            try:
                whole = _is_whole(self._folder / name)
            except FileNotFoundError:
                continue  # it was taken away before anything counted on it
            if not whole:
                self._unfinished = str(self._folder / name)
                break
            found.append(Signature(name, size, time))
        if found:
            self._list.append(found)
            self._take_note()

    def _new(self) -> Iterator[tuple[int, str, int]]:
        """Find files that are not in the list: modification time, name and size."""
        try:
            entries = os.scandir(self._folder)
        except FileNotFoundError:
            raise DataError(
                f"the folder of stream {self._stream} must stay while the stream runs, but "
                f"'{self._folder}' is gone; bring it back"
            ) from None
        with entries:
            for entry in entries:
                if entry.name[0] in "._" or not entry.name.lower().endswith(SUFFIXES):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if entry.path not in self._known and entry.is_file():
                        at = entry.stat()
                        yield at.st_mtime_ns, entry.name, at.st_size

    def advance(
        self, position: FolderPosition, rows: int, files: int, size: int
    ) -> tuple[FolderPosition, list[Descriptor]]:
        """Return where a batch ends that takes so many rows, files and bytes, and its slices.

        It takes at least one row where there is one.
        """
        self.check(position)
        slices: list[Descriptor] = []
        while position.file < len(self.paths) and rows > 0 and len(slices) < files:
            path = self.paths[position.file]
            whole = self._whole(position)
            fitting = int(size / whole.bytes_per_row)
            if fitting < 1 and slices:
                break
            end = min(whole.rows, position.row + min(rows, max(fitting, 1)))
            taken = end - position.row
            if taken:
                first = position.row
                slices.append(Descriptor(self._stream, path, first, end, position.ordinal))
            rows -= taken
            size -= int(taken * whole.bytes_per_row)
            position = replace(position, row=end, ordinal=position.ordinal + taken)
            if end < whole.rows:
                break
            position = replace(position, file=position.file + 1, row=0)
        if position.file == len(self.paths) and self._unfinished is not None and not slices:
            _read_size(self._stream, self._unfinished)  # says what is wrong with it
        listed = self._list.digest(position.begun)
        assert listed is not None
        return replace(position, listed=listed), slices

    def between(self, first: FolderPosition, last: FolderPosition) -> list[Descriptor]:
        """Return the slices between two positions that were reached before."""
        self.check(first)
        self.check(last)
        if (last.file, last.row, last.ordinal) < (first.file, first.row, first.ordinal):
            raise bad_position(self._stream, f"it goes from {first} back to {last}")
        slices: list[Descriptor] = []
        position = first
        for file in range(first.file, min(last.file + 1, len(self.paths))):
            position = replace(position, file=file, row=first.row if file == first.file else 0)
            if file == last.file and last.row == position.row:
                break
            rows = self._whole(position).rows
            end = rows if file < last.file else last.row
            if not position.row <= end <= rows:
                raise bad_position(self._stream, f"it is at row {end} of {rows}")
            if position.row < end:
                place = (self._stream, self.paths[file], position.row, end, position.ordinal)
                slices.append(Descriptor(*place))
            position = replace(position, ordinal=position.ordinal + end - position.row)
        if position.ordinal != last.ordinal:
            raise bad_position(
                self._stream, f"it is at {last} where row {position.ordinal} was reached"
            )
        return slices

    def waiting(self, path: str, row: int) -> int:
        """Return the bytes of files behind a row of a file that has been reached."""
        at = self._known.get(path, -1)
        left = sum(file.size for file in self._list.files[at + 1 :])
        if at >= 0 and os.path.exists(path):
            size = self._list.files[at].size
            left += size - size * row // max(self._size(path).rows, 1)
        return left

    def _take_note(self) -> None:
        if len(self.paths) > len(self._list.files):
            self.paths, self._known = [], {}
        for file in self._list.files[len(self.paths) :]:
            path = str(self._folder / file.name)
            self._known[path] = len(self.paths)
            self.paths.append(path)

    def check(self, position: FolderPosition) -> None:
        """Check that the list is the one that a position counts on."""
        found = self._list.digest(position.begun)
        if found != position.listed:
            how = "it tells others" if found is not None else f"it tells {len(self.paths)}"
            how = how if self._list.path.exists() else "it is gone"
            raise StateError(
                f"the list of files {self._list.path} must tell the {position.begun} files that "
                f"stream {self._stream} has begun to read, but {how}; bring it back from a copy, "
                f"or use another --checkpoint"
            )
        if not position.file and not position.row and position.ordinal:
            raise bad_position(self._stream, f"no file is read, but {position.ordinal} rows are")

    def _whole(self, position: FolderPosition) -> _Size:
        """Return the size of the file at a position; it must be as it was when it was found."""
        path = self.paths[position.file]
        check_unchanged(self._stream, path, self._list.files[position.file])
        whole = self._size(path)
        if position.row > whole.rows:
            raise bad_position(self._stream, f"'{path}' has {whole.rows} rows, not {position.row}")
        return whole

    def _size(self, path: str) -> _Size:
        if path not in self._sizes:
            self._sizes[path] = _read_size(self._stream, path)
        return self._sizes[path]


def _read_size(stream: str, path: str) -> _Size:
    try:
        found = pyarrow.parquet.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"the file '{path}' of stream {stream} must be a whole Parquet file from when it "
            f"appears (write it elsewhere and rename it): {error}"
        ) from None
    groups = (found.row_group(i).total_byte_size for i in range(found.num_row_groups))
    rows = int(found.num_rows)
    return _Size(rows, max(1.0, sum(groups) / max(rows, 1)))


def _is_whole(path: Path) -> bool:
    """Whether a file ends as a Parquet file does."""
    with open(path, "rb") as file:
        file.seek(-min(4, os.fstat(file.fileno()).st_size), os.SEEK_END)
        return file.read() in _ENDINGS
