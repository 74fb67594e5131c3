"""The formats of streams that Spark reads itself: folders of files, Kafka, and any other name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.catalog import StreamDef
from penstock.errors import ConfigError
from penstock.settings import Settings
from penstock.sources.base import SourceFormat, SparkReading
from penstock.sources.readers.base import CORRUPT, local_path, option
from penstock.sources.tables import check_path, check_path_given

_PARSED = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
"""What makes Spark give a row that it cannot parse as its text, and read times as we do."""


@dataclass(frozen=True)
class SparkFormat(SourceFormat):
    """A format of Spark.

    ``limit`` is the option that bounds a batch, and the setting that tells its value; ``partition``
    and ``order`` are as in `SparkReading`.
    """

    name: str = ""
    limit: tuple[str, str] | None = None
    names_files: bool = False
    marks_bad_rows: bool = False
    partition: tuple[str, ...] = ()
    order: str | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)

    def check_values(self, definition: StreamDef) -> None:
        if self.names_files:
            check_folder_values(definition)

    def check(self, definition: StreamDef) -> None:
        if self.names_files:
            check_files(definition)

    def is_planned(self, definition: StreamDef, folder: str | None) -> bool:
        return False

    def spark_reading(self, definition: StreamDef, config: Settings) -> SparkReading:
        given = {name.lower() for name in definition.options}
        options = dict(self.defaults)
        if self.limit is not None:
            options[self.limit[0]] = str(getattr(config, self.limit[1]))
        options = {name: value for name, value in options.items() if name.lower() not in given}
        options |= {name: str(value) for name, value in definition.options.items()}
        return SparkReading(
            options,
            from_files=self.names_files,
            marks_bad_rows=self.marks_bad_rows,
            partition=self.partition,
            order=self.order,
        )


def files_of_spark(name: str, marks_bad_rows: bool = False, **defaults: str) -> SparkFormat:
    """Return a format of files in a folder."""
    limit = ("maxFilesPerTrigger", "batch_files")
    given = (_PARSED if marks_bad_rows else {}) | defaults
    return SparkFormat(name, limit, True, marks_bad_rows, defaults=given)


SPARK_FORMATS = (
    files_of_spark("orc"),
    files_of_spark("text"),
    files_of_spark("avro"),
    files_of_spark("xml"),
    files_of_spark("binaryfile"),
    SparkFormat("kafka", ("maxOffsetsPerTrigger", "batch_rows"), partition=("topic", "partition")),
    SparkFormat("rate", order="value"),
    SparkFormat("rate-micro-batch", order="value"),
)
"""The formats of Spark of which something is known here."""


def check_files(definition: StreamDef) -> None:
    """Check a stream of files: they must be there, and none of their rows may be dropped."""
    path = option(definition, "path")
    check_path(f"stream {definition.name}", path)
    check_folder_values(definition)
    local = None if path is None else local_path(path)
    if local is not None and Path(local).is_file():
        raise ConfigError(
            f"the path of stream {definition.name}, USING {definition.format}, must be a folder, "
            f"which is watched for new files, but {path} is a file; give its folder, or read the "
            f"file with USING replay"
        )


def check_folder_values(definition: StreamDef) -> None:
    """Check the options of a stream of files, without the files."""
    check_path_given(f"stream {definition.name}", option(definition, "path"))
    if option(definition, "missing") is not None:
        raise ConfigError(
            f"the option missing of stream {definition.name} is one of replayed files; of a folder "
            f"that Spark reads nobody knows whether a key was missing or null; say USING replay, "
            f"or WHERE column IS NOT NULL in the query"
        )
    if (option(definition, "mode") or "").upper() == "DROPMALFORMED":
        raise ConfigError(
            f"the option mode of stream {definition.name} must not be DROPMALFORMED, because "
            f"rows are never dropped in silence; declare ON ERROR DEADLETTER <sink> instead"
        )
