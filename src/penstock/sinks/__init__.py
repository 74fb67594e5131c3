"""Sinks: where the answers of queries go, each batch once.

``jsonl``, ``csv`` and ``parquet`` are folders of committed files; ``sqlite`` and ``postgresql`` are
tables of databases; ``console``, ``memory`` and ``callback`` live in the process; ``blackhole``
only counts; any other name is a format of Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.catalog import SinkDef, has_references, opened
from penstock.errors import ConfigError
from penstock.model import Schema
from penstock.sinks.base import CHANGES, Result, Sink, check_options, options_of, row_limit
from penstock.sinks.database import DatabaseSink
from penstock.sinks.files import FILE_FORMATS, FileSink, read_committed, sink_folder
from penstock.sinks.ledger import Ledger
from penstock.sinks.live import (
    BlackholeSink,
    Callback,
    CallbackSink,
    ConsoleSink,
    MemorySink,
)
from penstock.sinks.postgresql import open_postgresql
from penstock.sinks.spark_format import SparkSink
from penstock.sinks.sqlite import open_sqlite
from penstock.sinks.text import json_lines, json_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CHANGES",
    "BlackholeSink",
    "Callback",
    "CallbackSink",
    "ConsoleSink",
    "DatabaseSink",
    "FileSink",
    "MemorySink",
    "Result",
    "Sink",
    "SparkSink",
    "changes_of",
    "check_sink",
    "delivery_mode",
    "json_lines",
    "json_rows",
    "open_sink",
    "read_committed",
]

_OPTIONS = {
    **dict.fromkeys(FILE_FORMATS, ("path", "changes", "overwrite")),
    "sqlite": ("path", "table", "changes", "overwrite", "pruned"),
    "postgresql": ("url", "user", "password", "table", "changes", "overwrite", "pruned"),
    "console": ("rows", "changes"),
    "memory": ("rows", "changes"),
    "callback": ("changes",),
    "blackhole": ("changes",),
}


def check_sink(definition: SinkDef) -> None:
    """Check a sink's options without opening it."""
    check_options(definition, _OPTIONS)
    if has_references(definition):
        return  # the values are looked up, and checked, when the sink is opened
    kind = definition.format.lower()
    if kind in FILE_FORMATS:
        sink_folder(definition)
    elif kind in ("console", "memory"):
        row_limit(definition, None)
    elif kind == "sqlite":
        open_sqlite(definition, fsync=True)
    elif kind == "postgresql":
        open_postgresql(definition)


def changes_of(definition: SinkDef | None) -> str:
    """Return how a sink wants the answers of a relation: intervals, log or view."""
    given = {} if definition is None else options_of(definition)
    return given.get("changes", "intervals").lower()


def delivery_mode(definition: SinkDef) -> str:
    """Return what a sink is given of a relation: databases get a view as differences."""
    changes = changes_of(definition)
    is_table = definition.format.lower() in ("sqlite", "postgresql")
    return "delta" if is_table and changes == "view" else changes


def open_sink(
    definition: SinkDef | None,
    query: str,
    mode: str,
    schema: Schema,
    spark: SparkSession | None = None,
    ledger: Path | None = None,
    callback: Callback | None = None,
    fsync: bool = True,
    timestamps: bool = False,
    run: str | None = None,
) -> Sink:
    """Open a sink for one query's answers; without a definition they are kept in memory.

    ``ledger`` is a folder beside the checkpoint, where sinks that cannot tell what they hold
    keep the number of the last delivered batch, and ``run`` the name of that checkpoint.
    ``timestamps`` says whether times are TIMESTAMPs.
    """
    if definition is None:
        return MemorySink(mode, schema, None, timestamps)
    definition = opened(definition)
    check_sink(definition)
    kind = definition.format.lower()
    if kind in FILE_FORMATS:
        return FileSink(definition, query, mode, schema, run, fsync)
    if kind in ("sqlite", "postgresql"):
        database = (
            open_sqlite(definition, fsync) if kind == "sqlite" else open_postgresql(definition)
        )
        return DatabaseSink(database, definition, query, mode, schema, run, timestamps)
    if kind == "memory":
        return MemorySink(mode, schema, row_limit(definition, None), timestamps)
    if kind == "blackhole":
        return BlackholeSink()
    if kind == "console":
        return ConsoleSink(row_limit(definition, 20))
    if kind == "callback":
        if callback is None:
            raise ConfigError(
                f"the sink {definition.name} must have a function, because its format is callback; "
                f"give it with session.callback('{definition.name}', function)"
            )
        return CallbackSink(callback, Ledger(ledger, query))
    if spark is None:
        raise ConfigError(
            f"the sink {definition.name} must be opened with a Spark session, because its format "
            f"'{definition.format}' is Spark's"
        )
    return SparkSink(definition, spark, Ledger(ledger, query))
