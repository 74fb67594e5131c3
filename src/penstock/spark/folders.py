"""A local folder in which Parquet files arrive, cut into batches by rows, files and bytes.

The files that have been seen are kept in a list of their own beside the checkpoint, one JSON line
each, in the order in which they were found: those found together by modification time, then name.
The list is only ever appended to and forced to disk before an offset counts on it, so a position
is a number of files and a row in the next one, and a batch that Spark replays is cut as before.
A file counts as whole when it appears: writers put it in place by a rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from penstock.errors import DataError

LIST = "files.jsonl"
SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class FolderPosition:
    """So many files are done, and so many rows of the next; ``ordinal`` numbers the next row."""

    file: int = 0
    row: int = 0
    ordinal: int = 0

    def to_json(self) -> dict[str, Any]:
        """As Spark's offset log keeps it."""
        return asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> FolderPosition:
        """The inverse of `to_json`."""
        return FolderPosition(**found)


@dataclass(frozen=True)
class _Size:
    rows: int
    bytes_per_row: float


class FolderFiles:
    """The files of a folder, in order of arrival; `look` finds new ones."""

    def __init__(self, stream: str, folder: str | Path, kept_in: str | Path) -> None:
        self._stream = stream
        self._folder = Path(folder)
        self._list = Path(kept_in) / LIST
        self.paths = [entry["path"] for entry in self._listed()]
        self._known = set(self.paths)
        self._sizes: dict[str, _Size] = {}

    def look(self) -> None:
        """Append the files that are new to the list."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name[0] in "._" or not entry.name.lower().endswith(SUFFIXES):
                    continue
                if entry.path not in self._known and entry.is_file():
                    found.append((entry.stat().st_mtime_ns, entry.path))
        if not found:
            return
        found.sort()
        self._list.parent.mkdir(parents=True, exist_ok=True)
        with open(self._list, "ab") as kept:
            for _, path in found:
                kept.write(json.dumps({"path": path}).encode() + b"\n")
            kept.flush()
            os.fsync(kept.fileno())
        self.paths += [path for _, path in found]
        self._known.update(path for _, path in found)

    def advance(
        self, position: FolderPosition, rows: int, files: int, size: int
    ) -> tuple[FolderPosition, list[tuple[str, str, int, int, int, int, bool]]]:
        """Return where a batch ends that takes so many rows, files and bytes, and its slices.

        It takes at least one row where there is one.
        """
        slices: list[tuple[str, str, int, int, int, int, bool]] = []
        while position.file < len(self.paths) and rows > 0 and len(slices) < files:
            path = self.paths[position.file]
            whole = self._size(path)
            fitting = int(size / whole.bytes_per_row)
            if fitting < 1 and slices:
                break
            end = min(whole.rows, position.row + min(rows, max(fitting, 1)))
            taken = end - position.row
            if taken:
                first = position.row
                slices.append((self._stream, path, first, end, position.ordinal, 0, False))
            rows -= taken
            size -= int(taken * whole.bytes_per_row)
            position = replace(position, row=end, ordinal=position.ordinal + taken)
            if end < whole.rows:
                break
            position = replace(position, file=position.file + 1, row=0)
        return position, slices

    def waiting(self, path: str, row: int) -> int:
        """Return the bytes of files behind a row of a file that has been reached."""
        at = self.paths.index(path) if path in self._known else -1
        left = sum(os.path.getsize(p) for p in self.paths[at + 1 :] if os.path.exists(p))
        if at >= 0 and os.path.exists(path):
            size = os.path.getsize(path)
            left += size - size * row // max(self._size(path).rows, 1)
        return left

    def _size(self, path: str) -> _Size:
        if path not in self._sizes:
            try:
                found = pyarrow.parquet.read_metadata(path)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(
                    f"the file '{path}' of stream {self._stream} must be a whole Parquet file "
                    f"from when it appears (write it elsewhere and rename it): {error}"
                ) from None
            groups = (found.row_group(i).total_byte_size for i in range(found.num_row_groups))
            rows = int(found.num_rows)
            self._sizes[path] = _Size(rows, max(1.0, sum(groups) / max(rows, 1)))
        return self._sizes[path]

    def _listed(self) -> Iterator[dict[str, Any]]:
        """Read the list; a last line cut short by a crash was never counted on, and is cut off."""
        if not self._list.exists():
            return
        text = self._list.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(self._list, whole)
        for line in text[:whole].splitlines():
            try:
                entry = json.loads(line)
                entry["path"]
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"the list of files {self._list} must hold one JSON object with a path per "
                    f"line, got {line[:80]!r}; it is damaged: use another --checkpoint"
                ) from None
            yield entry
