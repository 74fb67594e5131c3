"""The format ``memory``: rows that the program pushes, kept in a spool beside the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.sources.base import Backlog, Limits, SourceFormat, StreamReader, Waiting
from penstock.sources.readers.base import Descriptor
from penstock.sources.spool import SpoolFiles, SpoolPosition


class MemoryFormat(SourceFormat):
    """Rows that the program pushes."""

    name = "memory"
    options = ()
    pushed = True

    def is_finite(self, definition: StreamDef) -> bool:
        return True

    def is_planned(self, definition: StreamDef, folder: str | None) -> bool:
        if not folder:
            raise ConfigError(
                f"a memory stream must have a spool folder, but stream {definition.name} has none"
            )
        return True

    def reader(
        self, definition: StreamDef, limits: Limits, folder: str | None
    ) -> StreamReader[Any]:
        return SpoolReader(definition.name, SpoolFiles(folder or ""), limits)

    def why_no_tap(self, definition: StreamDef) -> str:
        return ""

    def backlog(self, definition: StreamDef, folder: str) -> Backlog:
        return SpoolBacklog(folder)

    def file_kind(self, definition: StreamDef, path: str) -> str:
        return "spool"


class SpoolReader:
    """Plans the batches of a spool: whole files, at least one, until the limit is reached."""

    def __init__(self, stream: str, files: SpoolFiles, limits: Limits) -> None:
        self._limits = limits
        self._stream = stream
        self._files = files
        self._target: SpoolPosition | None = None

    def position(self, offset: Mapping[str, Any] | None) -> SpoolPosition:
        return SpoolPosition() if offset is None else SpoolPosition.from_json(offset, self._stream)

    def freeze(self) -> None:
        self._target = self._files.end()

    def advance(self, position: SpoolPosition, everything: bool) -> SpoolPosition:
        return self._files.advance(position, self._limits.now(everything), self._target)

    def slices(self, first: SpoolPosition, last: SpoolPosition) -> list[Descriptor]:
        return self._files.slices(self._stream, first, last)


class SpoolBacklog(Backlog):
    """The pushed rows that no batch has taken."""

    def __init__(self, folder: str) -> None:
        self._files = SpoolFiles(folder)

    def measured(self, taken: int, position: Mapping[str, Any] | None) -> Waiting | None:
        return Waiting(max(0, self._files.rows() - taken), "rows")
