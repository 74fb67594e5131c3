"""The formats of sinks: one table, and what a ``CREATE SINK`` needs of it.

A name that the table does not have is looked for among the entry points of other packages; one that
nobody brings is a format of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.catalog import SinkDef, has_references, opened, packaged_format
from penstock.errors import ConfigError, suggest
from penstock.extensions import SINKS
from penstock.sinks.base import CHANGES, Sink, SinkFormat, SinkRequest, options_of
from penstock.sinks.blackhole import BlackholeFormat
from penstock.sinks.callback import CallbackFormat
from penstock.sinks.console import ConsoleFormat
from penstock.sinks.files import FILE_FORMATS, FileFormat
from penstock.sinks.memory import MemoryFormat, MemorySink
from penstock.sinks.postgresql import PostgresqlFormat
from penstock.sinks.spark_format import SparkFormat
from penstock.sinks.sqlite import SqliteFormat

SINK_FORMATS: Mapping[str, SinkFormat] = {
    found.name: found
    for found in (
        *map(FileFormat, FILE_FORMATS),
        SqliteFormat(),
        PostgresqlFormat(),
        ConsoleFormat(),
        MemoryFormat(),
        CallbackFormat(),
        BlackholeFormat(),
    )
}
"""Penstock's own formats of sinks."""

_SPARK = SparkFormat()


def sink_format(name: str) -> SinkFormat:
    """Return the format that ``USING`` names."""
    kind = name.lower()
    if kind in SINK_FORMATS:
        return SINK_FORMATS[kind]
    found: SinkFormat | None = packaged_format(SINKS, "sink", kind, SinkFormat)
    return found or _SPARK


def check_sink(definition: SinkDef) -> None:
    """Check a sink's options without opening it."""
    found, given = sink_format(definition.format), options_of(definition)
    if found.options is not None:
        known = found.options if "changes" in found.options else (*found.options, "changes")
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"there is no option '{name}' of the sink format {definition.format.lower()} "
                    f"(sink {definition.name}); {suggest(name, known)}"
                )
    if changes_of(definition) not in CHANGES:
        raise ConfigError(
            f"the option changes of sink {definition.name} must be one of {', '.join(CHANGES)}, "
            f"got '{given['changes']}'"
        )
    if not has_references(definition):  # else values are looked up, and checked, when it is opened
        found.check(definition)


def changes_of(definition: SinkDef | None) -> str:
    """Return how a sink wants the answers of a relation: intervals, log or view."""
    given = {} if definition is None else options_of(definition)
    return given.get("changes", "intervals").lower()


def delivery_mode(definition: SinkDef) -> str:
    """Return what a sink is given of a relation: databases get a view as differences."""
    changes = changes_of(definition)
    return sink_format(definition.format).view if changes == "view" else changes


def open_sink(definition: SinkDef | None, request: SinkRequest) -> Sink:
    """Open a sink for one query's answers; without a definition they are kept in memory."""
    if definition is None:
        return MemorySink(request.mode, request.schema, None, request.timestamps)
    definition = opened(definition)
    check_sink(definition)
    return sink_format(definition.format).open(definition, request)
