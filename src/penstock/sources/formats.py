"""The formats of streams: one table, and what everybody else asks of it.

A name that the table does not have is looked for among the entry points of other packages; one that
nobody brings is a format of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.catalog import StreamDef, has_references, packaged_format
from penstock.errors import ConfigError, DataError, suggest
from penstock.expr.types import type_name
from penstock.extensions import SOURCES
from penstock.nested.shapes import is_nested
from penstock.options import Secret, is_public
from penstock.sources.base import Backlog, Limits, SourceFormat, StreamReader
from penstock.sources.memory import MemoryFormat
from penstock.sources.readers import Slice, read_file
from penstock.sources.readers.base import option
from penstock.sources.replay import ReplayFormat
from penstock.sources.spark_formats import SPARK_FORMATS, SparkFormat
from penstock.sources.watched_folder import FOLDER_FORMATS

SOURCE_FORMATS: Mapping[str, SourceFormat] = {
    found.name: found for found in (ReplayFormat(), MemoryFormat(), *FOLDER_FORMATS, *SPARK_FORMATS)
}
"""The formats of streams of which something is known here."""

_SPARK = SparkFormat()


def source_format(name: str) -> SourceFormat:
    """Return the format that ``USING`` names."""
    kind = name.lower()
    if kind in SOURCE_FORMATS:
        return SOURCE_FORMATS[kind]
    found: SourceFormat | None = packaged_format(SOURCES, "stream", kind, SourceFormat)
    return found or _SPARK


def check_stream(definition: StreamDef, data: bool = True) -> None:
    """Check the options of a stream, and with ``data`` its files, before anything is started."""
    kind, found = definition.format.lower(), source_format(definition.format)
    if found.options is not None:
        for name in definition.options:
            if name.lower() not in {known.lower() for known in found.options}:
                raise ConfigError(
                    f"there is no option '{name}' of the stream format {kind} "
                    f"(stream {definition.name}); {suggest(name, found.options)}"
                )
    if found.names_files:
        for name, value in definition.options.items():
            if isinstance(value, Secret) and is_public(kind, name):
                raise ConfigError(
                    f"the option {name} of stream {definition.name} must not be SECRET, because "
                    f"the checkpoint names the files of the format {kind}"
                )
    _check_types(definition, found)
    if not has_references(definition):  # else values are looked up, and checked, when it is opened
        if data:
            found.check(definition)
        else:
            found.check_values(definition)


def _check_types(definition: StreamDef, found: SourceFormat) -> None:
    """Refuse nested columns of csv files, whose values have no form there."""
    nested = next((f for f in definition.schema if is_nested(f.type)), None)
    if nested is None:
        return
    try:
        kind = found.file_kind(definition, str(option(definition, "path") or ""))
    except DataError:  # no file, or one that is refused elsewhere
        return
    if kind == "csv":
        name = type_name(nested.type)
        raise ConfigError(
            f"a column of csv must have a type without others inside, got {name} for "
            f"'{nested.name}' of stream {definition.name}; declare it STRING and read JSON text "
            f"with from_json({nested.name}, '{name}')"
        )


def is_finite(definition: StreamDef) -> bool:
    """Whether a stream may end: a replay that does not loop for ever, or a memory stream."""
    return source_format(definition.format).is_finite(definition)


def ends_by_itself(definition: StreamDef) -> bool:
    """Whether a stream ends although nobody says so."""
    found = source_format(definition.format)
    return found.is_finite(definition) and not found.pushed


def is_pushed(definition: StreamDef) -> bool:
    """Whether the program pushes the rows of a stream."""
    return source_format(definition.format).pushed


def backlog_of(definition: StreamDef, folder: str) -> Backlog:
    """Return what measures how much of a stream is waiting; ``folder`` is that of its spool."""
    return source_format(definition.format).backlog(definition, folder)


def file_kind(definition: StreamDef, path: str) -> str:
    """Return which of `penstock.sources.readers` reads a file of a stream."""
    return source_format(definition.format).file_kind(definition, path)


def read_slice(
    definition: StreamDef,
    path: str,
    first: int,
    last: int,
    columns: Sequence[int] | None = None,
    shift: int = 0,
) -> Iterator[Slice]:
    """Read a part of a stream's file; see `readers.read_file`."""
    if first != last:
        kind = file_kind(definition, path)
        yield from read_file(definition, kind, path, first, last, columns, shift)


def why_no_tap(definition: StreamDef) -> str:
    """Say why rows of a stream are not found before a batch has them; empty: they are."""
    if definition.timing.closing is not None:
        return "its punctuations close parts of it"
    return source_format(definition.format).why_no_tap(definition)


def tap_of(definition: StreamDef, limits: Limits, folder: str | None) -> StreamReader[Any]:
    """Return what finds the rows of a stream beside its batches; it leaves no files behind."""
    found = source_format(definition.format)
    return found.reader(definition, limits, folder if found.pushed else None)
