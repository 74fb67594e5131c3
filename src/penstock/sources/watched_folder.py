"""The format ``parquet``: a folder in which files arrive.

A local folder is watched by Penstock itself.  Of other storage, and where options ask for something
that only Spark's file source can do, Spark lists the files, each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.settings import Settings
from penstock.sources.base import (
    Backlog,
    Limits,
    SourceFormat,
    SparkReading,
    StreamReader,
    Waiting,
)
from penstock.sources.folders import LIST, FolderFiles, FolderPosition
from penstock.sources.readers.base import Descriptor, local_path, option
from penstock.sources.spark_formats import check_files, check_folder_values


class ParquetFormat(SourceFormat):
    """Parquet files that arrive in a folder."""

    name = "parquet"
    options = (
        "path",
        "pathGlobFilter",
        "recursiveFileLookup",
        "maxFilesPerTrigger",
        "latestFirst",
        "maxFileAge",
    )
    names_files = True

    def check_values(self, definition: StreamDef) -> None:
        check_folder_values(definition)
        _most_files(definition)

    def check(self, definition: StreamDef) -> None:
        check_files(definition)
        _most_files(definition)

    def is_planned(self, definition: StreamDef, folder: str | None) -> bool:
        """Whether the folder is local and needs nothing of Spark's own file source."""
        path = option(definition, "path")
        local = None if path is None else local_path(path)
        plain = {name.lower() for name in definition.options} <= {"path", "maxfilespertrigger"}
        return folder is not None and plain and local is not None and Path(local).is_dir()

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        most = replace(limits, files=_most_files(definition) or limits.files)
        return FolderReader(definition.name, _files(definition, folder or ""), most)

    def spark_reading(self, definition: StreamDef, config: Settings) -> SparkReading:
        by_lower = {name.lower(): name for name in self.options}
        given = {by_lower[name.lower()]: str(value) for name, value in definition.options.items()}
        options = {
            "pathGlobFilter": "*.{parquet,pq}",
            "maxFilesPerTrigger": str(config.batch_files),
            **given,
        }
        return SparkReading(options, listed=True)

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        return FolderBacklog(definition, folder)

    def file_kind(self, definition: StreamDef, path: str) -> str:
        return "parquet"


def _most_files(definition: StreamDef) -> int | None:
    """Return the option that says how many files a batch may have; None if it is not given."""
    given = option(definition, "maxfilespertrigger")
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise ConfigError(
            f"the option maxFilesPerTrigger of stream {definition.name} must be a number of files "
            f"from 1, got '{given}'"
        )
    return None if given is None else int(given)


def _files(definition: StreamDef, kept_in: str) -> FolderFiles:
    """Return the files of a watched folder; their list is in another one."""
    folder = Path(local_path(str(option(definition, "path"))) or "").absolute()
    return FolderFiles(definition.name, folder, kept_in)


class FolderReader:
    """Plans the batches of a watched folder: parts of files, in the order in which they came."""

    def __init__(self, stream: str, files: FolderFiles, limits: Limits) -> None:
        self._limits = limits
        self._stream = stream
        self._files = files
        self._frozen = False

    def position(self, offset: Mapping[str, Any] | None) -> FolderPosition:
        if offset is None:
            return FolderPosition()
        return FolderPosition.from_json(offset, self._stream)

    def freeze(self) -> None:
        self._files.look()
        self._frozen = True

    def advance(self, position: FolderPosition, everything: bool) -> FolderPosition:
        self._files.check(position)
        if not self._frozen:
            self._files.look()
        limits = self._limits
        rows = limits.now(everything)
        return self._files.advance(position, rows, limits.files, limits.bytes)[0]

    def slices(self, first: FolderPosition, last: FolderPosition) -> list[Descriptor]:
        return self._files.between(first, last)


class FolderBacklog(Backlog):
    """The bytes of a watched folder's files behind the row that the last batch reached.

    It is known by the list of the files, which a folder that Spark lists does not have.
    """

    def __init__(self, definition: StreamDef, kept_in: str) -> None:
        self._definition = definition
        self._list = kept_in
        self._files: FolderFiles | None = None

    def measured(self, taken: int, reached: Mapping[str, int] | None) -> Waiting | None:
        if not (Path(self._list) / LIST).exists():
            return None
        if self._files is None:
            self._files = _files(self._definition, self._list)
        self._files.refresh()
        path, place = max((reached or {"": 0}).items())
        return Waiting(self._files.waiting(path, place), "bytes")
