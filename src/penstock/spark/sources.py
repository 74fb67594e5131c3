"""Opening any stream as a Spark streaming DataFrame with the same columns.

* ``replay`` and ``memory`` are Penstock's own source of descriptors (`penstock.spark.replay`), one
  for all of them.
* ``parquet`` is a folder whose files arrive. A local one is watched by the same source; of other
  storage Spark's ``binaryFile`` stream, without the content, gives each file once.
* Every other format is read by Spark: its rows travel in a struct column ``native_<stream>``.

All have the descriptor columns; a batch of a stream is in one partition, so that one task sees it
whole.
`penstock.sources.readers.arrival_order` puts descriptors and native rows of files in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyspark.sql.functions as F  # noqa: N812
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.catalog import StreamDef, has_references, opened
from penstock.errors import ConfigError, DataError, first_sentence, shown_cause, suggest
from penstock.expr.types import type_name
from penstock.model import Schema
from penstock.options import Secret, is_public
from penstock.settings import Settings
from penstock.sources.positions import ReplayFiles, loop_rounds, positive
from penstock.sources.readers import CORRUPT, DESCRIPTOR, FOLDER_ORDINAL
from penstock.sources.readers.base import FILE_FORMATS, local_path, option, to_json
from penstock.sources.tables import check_path
from penstock.spark.replay import FORMAT, DescriptorSource
from penstock.spark.types import spark_type

_OWN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "replay": ("path", "format", "rate", "speed", "loop", "delimiter", "null"),
    "memory": (),
    "parquet": (
        "path",
        "pathGlobFilter",
        "recursiveFileLookup",
        "maxFilesPerTrigger",
        "latestFirst",
        "maxFileAge",
    ),
}
OWN_SOURCE = "streams"
SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What a call into Spark raises: the second kind when pyspark does not know the exception."""

_LONGEST_SOURCE = 200
"""Spark makes a folder with the name of a source."""

_PARSED_FORMATS = ("csv", "json")
_BINARY_FILE = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)


def native_column(stream: str) -> str:
    """Return the name of the struct column that carries rows which Spark has parsed."""
    return f"native_{stream}"


def is_finite(definition: StreamDef) -> bool:
    """Whether a stream ends by itself: a replay that does not loop for ever, or a memory stream."""
    kind = definition.format.lower()
    return kind == "memory" or (kind == "replay" and loop_rounds(definition) is not None)


def open_streams(
    spark: SparkSession,
    definitions: Iterable[StreamDef],
    config: Settings,
    spool: Callable[[str], str | None],
    admission: str | None = None,
) -> DataFrame:
    """Open streams as one frame of descriptors, with a native struct for each that Spark parses.

    Paths and options are checked first.  ``spool`` tells by the name where a memory stream's rows
    are, or the list of the files of a replay or of a watched folder, ``admission`` is the file
    that limits batches of Penstock's own sources.
    """
    frames: list[DataFrame] = []
    own: list[dict[str, Any]] = []
    for definition in map(opened, definitions):
        check_stream(definition)
        kind, folder = definition.format.lower(), spool(definition.name)
        if kind == "memory" and not folder:
            raise ConfigError(
                f"a memory stream must have a spool folder, but stream {definition.name} has none"
            )
        watched = kind == "parquet" and folder is not None and _is_watched(definition)
        if kind in ("replay", "memory") or watched:
            own.append(_own_options(definition, config, folder, admission))
        elif kind == "parquet":
            frames.append(_open_folder(spark, definition, config).coalesce(1))
        else:
            frames.append(_open_native(spark, definition, config).coalesce(1))
    if own:
        _register(spark)
        frames.append(_load(spark, OWN_SOURCE, FORMAT, {"streams": json.dumps(own)}))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _own_options(
    definition: StreamDef, config: Settings, folder: str | None, admission: str | None
) -> dict[str, Any]:
    """Return what `DescriptorSource` must know of a stream."""
    options: dict[str, Any] = {
        "definition": to_json(definition),
        "rows": config.batch_rows,
        "bytes": config.batch_bytes,
    }
    if admission is not None:
        options["admission"] = admission
    if folder is not None:
        options["folder"] = str(Path(folder).absolute())
    if definition.format.lower() == "parquet":
        files = option(definition, "maxFilesPerTrigger") or config.batch_files
        options["files"] = int(files)
    return options


def _register(spark: SparkSession) -> None:
    """Make Penstock's own source known to a session.

    Spark looks for the name in the *active* session, which may be another one that knows it, and
    then refuses to register it here.  Making a frame makes the given one active.
    """
    spark.createDataFrame([], "nothing int")
    try:
        spark.dataSource.register(DescriptorSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _is_watched(definition: StreamDef) -> bool:
    """Whether a folder is local and needs nothing of Spark's own file source."""
    path = option(definition, "path")
    local = None if path is None else local_path(path)
    plain_options = {name.lower() for name in definition.options} <= {"path", "maxfilespertrigger"}
    return plain_options and local is not None and Path(local).is_dir()


def check_stream(definition: StreamDef) -> None:
    """Check the options and the path of a stream before anything is started."""
    kind = definition.format.lower()
    if kind in _OWN_OPTIONS:
        known = _OWN_OPTIONS[kind]
        for name in definition.options:
            if name.lower() not in {k.lower() for k in known}:
                raise ConfigError(
                    f"there is no option '{name}' of the stream format {kind} "
                    f"(stream {definition.name}); {suggest(name, known)}"
                )
    if kind in _OWN_OPTIONS or kind in FILE_FORMATS:
        for name, value in definition.options.items():
            if isinstance(value, Secret) and is_public(kind, name):
                raise ConfigError(
                    f"the option {name} of stream {definition.name} must not be SECRET, because "
                    f"the checkpoint names the files of the format {kind}"
                )
    if has_references(definition):
        return  # the values are looked up, and checked, when the stream is opened
    if kind == "replay":
        if positive(definition, "rate") and positive(definition, "speed"):
            raise ConfigError(
                f"the stream {definition.name} must have a rate or a speed, not both; "
                f"rate counts rows per second, speed is a multiple of event time"
            )
        ReplayFiles(definition).check()
    elif kind == "parquet" or kind in FILE_FORMATS:
        check_path(f"stream {definition.name}", option(definition, "path"))
        if (option(definition, "mode") or "").upper() == "DROPMALFORMED":
            raise ConfigError(
                f"the option mode of stream {definition.name} must not be DROPMALFORMED, because "
                f"rows are never dropped in silence; declare ON ERROR DEADLETTER <sink> instead"
            )


def _load(
    spark: SparkSession,
    name: str,
    format: str,
    options: Mapping[str, str],
    schema: StructType | None = None,
) -> DataFrame:
    """Load a source. Spark keeps its offsets under the name."""
    reader = spark.readStream.format(format).options(**options)
    if spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution", "") == "true":
        reader = reader.name(name)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load()


def _source_name(definition: StreamDef) -> str:
    """Return the name of the source of one stream; no two streams have the same."""
    name = "stream_" + re.sub(r"[^a-z0-9_]", _hexadecimal, definition.name.lower())
    if len(name) <= _LONGEST_SOURCE:
        return name
    return f"{name[: _LONGEST_SOURCE - 41]}_{sha256(name.encode()).hexdigest()[:40]}"


def _hexadecimal(match: re.Match[str]) -> str:
    return f"_x{ord(match[0]):x}_"


def _open_folder(spark: SparkSession, definition: StreamDef, config: Settings) -> DataFrame:
    """Open a folder of Parquet files as descriptors of whole files."""
    options = {
        "pathGlobFilter": "*.{parquet,pq}",
        "maxFilesPerTrigger": str(config.batch_files),
        **_spelled(definition.options, _OWN_OPTIONS["parquet"]),
    }
    found = _load(spark, _source_name(definition), "binaryFile", options, _BINARY_FILE).select(
        "path", "modificationTime", "length"
    )
    return found.select(
        F.lit(definition.name).alias("stream"),
        F.col("path"),
        F.lit(0).cast("bigint").alias("first"),
        F.lit(-1).cast("bigint").alias("last"),
        (F.unix_micros("modificationTime") - F.lit(FOLDER_ORDINAL)).alias("ordinal"),
        F.lit(0).cast("bigint").alias("shift"),
        F.lit(False).alias("final"),
    )


def _spelled(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in known}
    return {by_lower[name.lower()]: str(value) for name, value in options.items()}


def _open_native(spark: SparkSession, definition: StreamDef, config: Settings) -> DataFrame:
    """Open a stream that Spark parses itself."""
    kind = definition.format.lower()
    given = {name.lower() for name in definition.options}
    options: dict[str, str] = {}
    if kind in FILE_FORMATS:
        options["maxFilesPerTrigger"] = str(config.batch_files)
    if kind == "kafka":
        options["maxOffsetsPerTrigger"] = str(config.batch_rows)
    if kind in _PARSED_FORMATS:
        options |= {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": CORRUPT,
            "timeZone": "UTC",
        }
    if kind == "csv":
        options |= {"header": "true", "enforceSchema": "false"}
    options = {name: value for name, value in options.items() if name.lower() not in given}
    options |= {name: str(value) for name, value in definition.options.items()}
    declared = spark_schema(definition.schema)
    if kind in _PARSED_FORMATS:
        declared = declared.add(StructField(CORRUPT, StringType()))
    try:
        if kind in FILE_FORMATS:
            loaded = _load(spark, _source_name(definition), kind, options, declared)
        else:
            loaded = _load_own_schema(spark, definition, options, declared)
        return _uniform(definition, loaded, kind in FILE_FORMATS)
    except SPARK_ERRORS as error:
        raise DataError(
            f"the stream {definition.name} must be readable by Spark as format "
            f"'{definition.format}', but: {first_sentence(error)}"
        ) from shown_cause(error)


def _load_own_schema(
    spark: SparkSession, definition: StreamDef, options: Mapping[str, str], declared: StructType
) -> DataFrame:
    """Load a format that knows its own columns; one that does not is told the declared ones."""
    try:
        return _load(spark, _source_name(definition), definition.format, options)
    except SPARK_ERRORS as error:
        if "schema" not in str(error).lower():
            raise
        return _load(spark, _source_name(definition), definition.format, options, declared)


def _uniform(definition: StreamDef, loaded: DataFrame, from_files: bool) -> DataFrame:
    """Return native rows with the descriptor columns; for files these tell the order of arrival."""
    columns = _by_name_or_place(definition, loaded)
    values: list[Column] = []
    unfit: Column = F.lit(False)
    cast_any = False
    for field, found in zip(definition.schema, columns, strict=True):
        source, wanted = F.col(quoted(found.name)), spark_type(field.type)
        same = found.dataType == wanted or (
            isinstance(wanted, TimestampType) and isinstance(found.dataType, TimestampNTZType)
        )
        value = source if same else source.try_cast(wanted)
        if not same:
            cast_any = True
            unfit = unfit | (source.isNotNull() & value.isNull())
        values.append(value.alias(field.name))
    if CORRUPT in loaded.columns:
        corrupt = F.col(CORRUPT)
    elif cast_any:
        texts = [F.col(quoted(c.name)).cast("string").alias(c.name) for c in columns]
        corrupt = F.when(unfit, F.to_json(F.struct(*texts)))
    else:
        corrupt = F.lit(None).cast("string")
    if from_files:
        micros = F.unix_micros(F.col("_metadata.file_modification_time"))
        place: dict[str, Column] = {
            "path": F.col("_metadata.file_path"),
            "first": F.col("_metadata.file_block_start"),
            "ordinal": micros - F.lit(FOLDER_ORDINAL),
        }
    else:
        place = {}
    descriptors = [
        F.lit(definition.name).alias("stream"),
        *(
            place.get(name, F.lit(None)).cast(spark_type(DESCRIPTOR.field(name).type)).alias(name)
            for name in DESCRIPTOR.names[1:]
        ),
    ]
    rows = F.struct(*values, corrupt.alias(CORRUPT)).alias(native_column(definition.name))
    return loaded.select(*descriptors, rows)


def _by_name_or_place(definition: StreamDef, loaded: DataFrame) -> list[StructField]:
    """Find the declared columns among those that Spark gives: by name, or all by place."""
    found = [f for f in loaded.schema.fields if f.name != CORRUPT]
    by_name = {f.name.lower(): f for f in found}
    names = [name.lower() for name in definition.schema.names]
    if all(name in by_name for name in names):
        return [by_name[name] for name in names]
    if len(found) == len(names):
        for field, given in zip(definition.schema, found, strict=True):
            if spark_type(field.type) != given.dataType:
                raise DataError(
                    f"the column '{field.name}' of stream {definition.name} must be "
                    f"{given.dataType.simpleString().upper()} as the format "
                    f"{definition.format} gives it, got {type_name(field.type)}; "
                    f"{_columns_given(definition, found)}"
                )
        return found
    raise DataError(
        f"the columns of stream {definition.name} must be those of the format "
        f"{definition.format}, got {', '.join(definition.schema.names)}; "
        f"{_columns_given(definition, found)}"
    )


def _columns_given(definition: StreamDef, found: Sequence[StructField]) -> str:
    listed = ", ".join(f"{f.name} {f.dataType.simpleString().upper()}" for f in found)
    return f"declare ({listed})"


def quoted(name: str) -> str:
    """Return a column name as Spark's expressions spell it."""
    return "`" + name.replace("`", "``") + "`"


def spark_schema(schema: Schema) -> StructType:
    """Return declared columns as a Spark schema."""
    return StructType([StructField(f.name, spark_type(f.type)) for f in schema])
