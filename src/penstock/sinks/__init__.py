"""Sinks: where the answers of queries go, each batch once; one file per format or family."""

from penstock.sinks.base import (
    CHANGES,
    Callback,
    Result,
    Sink,
    SinkFormat,
    SinkRequest,
    options_of,
)
from penstock.sinks.blackhole import BlackholeSink
from penstock.sinks.callback import CallbackSink
from penstock.sinks.console import ConsoleSink
from penstock.sinks.database import DatabaseSink
from penstock.sinks.files import FileSink, read_committed
from penstock.sinks.formats import (
    SINK_FORMATS,
    changes_of,
    check_sink,
    delivery_mode,
    open_sink,
    sink_format,
)
from penstock.sinks.ledger import Ledger
from penstock.sinks.memory import MemorySink
from penstock.sinks.spark_format import SparkSink
from penstock.sinks.text import json_lines, json_rows

__all__ = [
    "CHANGES",
    "SINK_FORMATS",
    "BlackholeSink",
    "Callback",
    "CallbackSink",
    "ConsoleSink",
    "DatabaseSink",
    "FileSink",
    "Ledger",
    "MemorySink",
    "Result",
    "Sink",
    "SinkFormat",
    "SinkRequest",
    "SparkSink",
    "changes_of",
    "check_sink",
    "delivery_mode",
    "json_lines",
    "json_rows",
    "open_sink",
    "options_of",
    "read_committed",
    "sink_format",
]
