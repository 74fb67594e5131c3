"""The backlog of a stream: what is known to be waiting, found without reading any data.

Of a memory stream these are the pushed rows that no batch has taken; of a watched folder and of a
replay that is read as fast as possible, the bytes of files behind the place that the last batch
reached.  A paced or endless replay has no backlog, and of other formats only their system knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet

from penstock.catalog import StreamDef
from penstock.errors import PenstockError
from penstock.sources.folders import LIST, FolderFiles
from penstock.sources.positions import list_files, loop_rounds, positive
from penstock.sources.readers.base import file_format, local_path, option
from penstock.sources.spool import SpoolFiles


@dataclass(frozen=True)
class Waiting:
    """An amount of input that has not been taken yet; ``unit`` is rows or bytes."""

    amount: int
    unit: str


class Backlog:
    """Measures what is waiting of one stream."""

    def __init__(self, definition: StreamDef, spool_folder: str) -> None:
        self._definition = definition
        self._spool: SpoolFiles | None = None
        self._sizes: dict[str, int] | None = None
        self._list = spool_folder
        self._watched: FolderFiles | None = None
        kind = definition.format.lower()
        if kind == "memory":
            self._spool = SpoolFiles(spool_folder)
        elif kind == "replay" and loop_rounds(definition) == 1:
            paced = positive(definition, "rate") or positive(definition, "speed")
            if not paced:
                found = list_files(definition)
                self._sizes = {str(path): path.stat().st_size for path in found}

    def waiting(self, taken: int, reached: tuple[str, int] | None) -> Waiting | None:
        """Return what is waiting after ``taken`` rows; None where it is not known.

        ``reached`` is the file of a replay and the place in it at which the last batch ended.
        """
        try:
            return self._measured(taken, reached)
        except (PenstockError, OSError, pyarrow.ArrowInvalid):
            return None  # what is wrong is said by the batch that needs the files

    def _measured(self, taken: int, reached: tuple[str, int] | None) -> Waiting | None:
        if self._spool is not None:
            return Waiting(max(0, self._spool.rows() - taken), "rows")
        if self._definition.format.lower() == "parquet":
            return self._in_folder(reached)
        if self._sizes is None or (reached is None and taken):
            return None
        left = sum(self._sizes.values())
        if reached is not None:
            path, place = reached
            for name, size in self._sizes.items():
                if name == path:
                    left -= self._bytes_before(path, place)
                    break
                left -= size
        return Waiting(max(0, left), "bytes")

    def _in_folder(self, reached: tuple[str, int] | None) -> Waiting | None:
        """Return what is waiting in a watched folder; it is known by the list of its files."""
        if not (Path(self._list) / LIST).exists():
            return None
        if self._watched is None:
            folder = Path(local_path(str(option(self._definition, "path"))) or "").absolute()
            self._watched = FolderFiles(self._definition.name, folder, self._list)
        self._watched.refresh()
        path, place = reached or ("", 0)
        return Waiting(self._watched.waiting(path, place), "bytes")

    def _bytes_before(self, path: str, place: int) -> int:
        """Return how many bytes are before a place; of columnar files in proportion to the rows."""
        assert self._sizes is not None
        if file_format(self._definition, path) != "parquet":
            return place
        rows = int(pyarrow.parquet.read_metadata(Path(path)).num_rows)
        return self._sizes[path] * place // max(rows, 1)
