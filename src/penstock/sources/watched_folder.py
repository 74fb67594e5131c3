"""The formats ``parquet``, ``csv`` and ``json``: a folder in which files arrive.

A local folder is watched by Penstock itself.  Of other storage, and where options ask for something
that only Spark's file source can do, Spark lists the files, each once; it reads them, too, unless
they are Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from penstock.sources.folders import LIST, FolderFiles
from penstock.sources.readers.base import Descriptor, local_path, option
from penstock.sources.side_by_side import PARALLEL, Places, SideBySide, Take, order_of
from penstock.sources.spark_formats import (
    SparkFormat,
    check_files,
    check_folder_values,
    files_of_spark,
)

_PLAIN = {"path", "maxfilespertrigger", "order"}
_TAB = (r"\t",)


@dataclass(frozen=True)
class FolderFormat(SourceFormat):
    """Files that arrive in a folder; ``plain`` are the options that Penstock's reader knows."""

    name: str = ""
    options: tuple[str, ...] | None = None
    plain: frozenset[str] = frozenset()
    by_spark: SparkFormat | None = None
    names_files: bool = True

    def check_values(self, definition: StreamDef) -> None:
        check_folder_values(definition)
        _most_files(definition)

    def check(self, definition: StreamDef) -> None:
        check_files(definition)
        _most_files(definition)
        order_of(definition)

    def is_planned(self, definition: StreamDef, folder: str | None) -> bool:
        """Whether the folder is local and needs nothing of Spark's own file source."""
        path = option(definition, "path")
        local = None if path is None else local_path(path)
        given = {name.lower() for name in definition.options}
        plain = given <= _PLAIN | self.plain and _is_plain_csv(definition)
        return folder is not None and plain and local is not None and Path(local).is_dir()

    def why_no_tap(self, definition: StreamDef) -> str:
        return "files of a folder are found batch by batch"

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        most = replace(limits, files=_most_files(definition) or limits.files)
        files = _files(definition, folder or "")
        return FolderReader(definition, files, most)

    def spark_reading(self, definition: StreamDef, config: Settings) -> SparkReading:
        if order_of(definition) != PARALLEL:
            raise ConfigError(
                f"the option order of stream {definition.name} must be 'parallel' where Spark "
                f"reads the files, each as a source partition of its own; for another order give "
                f"a local folder and no options of Spark's"
            )
        given = {n: str(v) for n, v in definition.options.items() if n.lower() != "order"}
        if self.by_spark is not None:
            return self.by_spark.spark_reading(replace(definition, options=given), config)
        by_lower = {name.lower(): name for name in self.options or ()}
        options = {
            "pathGlobFilter": "*.{parquet,pq}",
            "maxFilesPerTrigger": str(config.batch_files),
            **{by_lower[name.lower()]: value for name, value in given.items()},
        }
        return SparkReading(options, listed=True)

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        return FolderBacklog(definition, folder)

    def file_kind(self, definition: StreamDef, path: str) -> str:
        return self.name


FOLDER_FORMATS = (
    FolderFormat(
        "parquet",
        (
            "path",
            "order",
            "pathGlobFilter",
            "recursiveFileLookup",
            "maxFilesPerTrigger",
            "latestFirst",
            "maxFileAge",
        ),
    ),
    FolderFormat(
        "csv",
        plain=frozenset({"header", "sep", "delimiter"}),
        by_spark=files_of_spark("csv", True, header="true", enforceSchema="false"),
    ),
    FolderFormat("json", by_spark=files_of_spark("json", True)),
)
"""The formats of folders that Penstock can watch itself."""


def _is_plain_csv(definition: StreamDef) -> bool:
    """Whether what is said of a csv file means the same to Spark's reader and to ours."""
    header = (option(definition, "header") or "true").strip().lower() == "true"
    given = [option(definition, name) for name in ("sep", "delimiter")]
    marks = [mark for mark in given if mark is not None]
    return header and len(marks) < 2 and all(m in _TAB or len(m.encode()) == 1 for m in marks)


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
    return FolderFiles(definition, folder, kept_in, definition.format.lower())


class FolderReader:
    """Plans the batches of a watched folder.

    Files that are found together are read together; others are looked for when all of these have
    been begun.
    """

    def __init__(self, definition: StreamDef, files: FolderFiles, limits: Limits) -> None:
        timing = definition.timing
        self._limits = limits
        self._files = files
        slack = timing.slack if timing.keeping is None else None
        in_order = order_of(definition) != PARALLEL
        self._plan = SideBySide(files, limits.width, slack, in_order)
        self._planned: dict[tuple[Places, Places], list[Descriptor]] = {}

    def position(self, offset: Mapping[str, Any] | None) -> Places:
        return Places() if offset is None else Places.from_json(offset, self._files.stream)

    def freeze(self) -> None:
        self._files.hold()

    def advance(self, position: Places, everything: bool) -> Places:
        files = self._files
        files.check(position)
        files.check_folder()
        start = position
        if position.begun == position.known:
            if position.known == len(files.paths):
                files.look()
            known = len(files.paths)
            start = replace(position, known=known, listed=files.digest(known))
        limits = self._limits
        take = Take(limits.now(everything), limits.bytes, limits.files)
        end, slices = self._plan.advance(start, take)
        if end.begun == position.begun and end.ordinal == position.ordinal:
            if end.begun == len(files.paths):
                files.refuse_unfinished()
            return position
        self._planned = {(position, end): slices}
        return end

    def slices(self, first: Places, last: Places) -> list[Descriptor]:
        slices = self._planned.get((first, last))
        if slices is not None:
            return slices
        self._files.check(first)
        self._files.check(last)
        return self._plan.between(first, last)


class FolderBacklog(Backlog):
    """The bytes of a watched folder's files behind the places that the last batch reached.

    They are known by the list of the files, which a folder that Spark lists does not have.
    """

    def __init__(self, definition: StreamDef, kept_in: str) -> None:
        self._definition = definition
        self._list = kept_in
        self._files: FolderFiles | None = None

    def measured(self, taken: int, position: Mapping[str, Any] | None) -> Waiting | None:
        if not (Path(self._list) / LIST).exists():
            return None
        if self._files is None:
            self._files = _files(self._definition, self._list)
        self._files.refresh()
        told = position or {"begun": 0, "open": []}
        places = [(file, at) for file, at, _ in told["open"]]
        return Waiting(self._files.waiting(told["begun"], places), "bytes")
