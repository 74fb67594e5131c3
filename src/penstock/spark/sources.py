"""Opening any stream as a Spark streaming DataFrame with the same columns.

* Where Penstock plans the batches, streams are its own source of descriptors, one for all of them
  (`penstock.spark.descriptor_source`).
* Where Spark only lists files, its ``binaryFile`` stream, without the content, gives each once.
* Every other format is read by Spark: its rows travel in a struct column ``native_<stream>``.

All have the descriptor columns.  What a source partition brings in a batch is in one partition of
the frame, so that one task sees it whole; native rows of a stream are all in one.
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

from penstock.catalog import StreamDef, opened
from penstock.errors import ConfigError, DataError, first_sentence, shown_cause
from penstock.expr.types import type_name
from penstock.model import Schema
from penstock.runs.spark_log import OWN_SOURCE
from penstock.settings import Settings
from penstock.sources import admission
from penstock.sources.base import SparkReading
from penstock.sources.formats import check_stream, source_format
from penstock.sources.readers import CORRUPT, DESCRIPTOR, FOLDER_ORDINAL
from penstock.sources.readers.base import to_json
from penstock.spark.descriptor_source import FORMAT, DescriptorSource
from penstock.spark.types import spark_type

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What a call into Spark raises: the second kind when pyspark does not know the exception."""

_LONGEST_SOURCE = 200
"""Spark makes a folder with the name of a source."""

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


def open_streams(
    spark: SparkSession,
    definitions: Iterable[StreamDef],
    config: Settings,
    spool: Callable[[str], str | None],
    checkpoint: Path | None = None,
) -> DataFrame:
    """Open streams as one frame of descriptors, with a native struct for each that Spark parses.

    Paths and options are checked first.  ``spool`` tells by the name where a memory stream's rows
    are, or the list of the files of a replay or of a watched folder.  In the ``checkpoint`` are the
    files that limit the batches of Penstock's own sources, and that tell when one is due.
    """
    frames: list[DataFrame] = []
    own: list[dict[str, Any]] = []
    for definition in map(opened, definitions):
        check_stream(definition)
        found, folder = source_format(definition.format), spool(definition.name)
        if found.is_planned(definition, folder):
            own.append(_own_options(definition, config, folder, checkpoint))
        else:
            _check_step(definition)
            how = found.spark_reading(definition, config)
            opening = _open_folder if how.listed else _open_native
            frames.append(opening(spark, definition, how).coalesce(1))
    timed = any(definition.timing.follows_the_clock for definition in definitions)
    if own or timed:
        tasks = config.pack_tasks or spark.sparkContext.defaultParallelism
        least = str(config.pack_rows)
        options = {"streams": json.dumps(own), "tasks": str(tasks), "least": least}
        if checkpoint is not None:
            options["checkpoint"] = str(checkpoint.absolute())
        _register(spark)
        frames.append(_load(spark, OWN_SOURCE, FORMAT, options))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _check_step(definition: StreamDef) -> None:
    if definition.timing.step is not None:
        raise ConfigError(
            f"STEP must be declared of a stream whose batches Penstock plans, but Spark plans "
            f"those of stream {definition.name}, USING {definition.format}; leave STEP out, or "
            f"bound its batches by the format's own options"
        )


def _own_options(
    definition: StreamDef, config: Settings, folder: str | None, checkpoint: Path | None
) -> dict[str, Any]:
    """Return what `DescriptorSource` must know of a stream."""
    options: dict[str, Any] = {
        "definition": to_json(definition),
        "rows": config.batch_rows,
        "bytes": config.batch_bytes,
        "files": config.batch_files,
    }
    if checkpoint is not None:
        options["admission"] = str(checkpoint.absolute() / admission.FILE)
    if folder is not None:
        options["folder"] = str(Path(folder).absolute())
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


def _open_folder(spark: SparkSession, definition: StreamDef, how: SparkReading) -> DataFrame:
    """Open a folder as descriptors of whole files."""
    source = _source_name(definition)
    found = _load(spark, source, "binaryFile", how.options, _BINARY_FILE).select(
        "path", "modificationTime", "length"
    )
    place = {
        "path": F.col("path"),
        "first": F.lit(0),
        "last": F.lit(-1),
        "ordinal": F.unix_micros("modificationTime") - F.lit(FOLDER_ORDINAL),
        "shift": F.lit(0),
        "final": F.lit(False),
        "partition": F.col("path"),
        "ends": F.lit(True),
    }
    return found.select(*_descriptor(definition, place))


def _open_native(spark: SparkSession, definition: StreamDef, how: SparkReading) -> DataFrame:
    """Open a stream that Spark parses itself."""
    declared = spark_schema(definition.schema)
    if how.marks_bad_rows:
        declared = declared.add(StructField(CORRUPT, StringType()))
    try:
        if how.from_files:
            kind = definition.format.lower()
            loaded = _load(spark, _source_name(definition), kind, how.options, declared)
        else:
            loaded = _load_own_schema(spark, definition, how.options, declared)
        return _uniform(definition, loaded, how)
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


def _uniform(definition: StreamDef, loaded: DataFrame, how: SparkReading) -> DataFrame:
    """Return native rows with the descriptor columns: order of arrival and source partition."""
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
    rows = F.struct(*values, corrupt.alias(CORRUPT)).alias(native_column(definition.name))
    return loaded.select(*_descriptor(definition, _place(how)), rows)


def _descriptor(definition: StreamDef, place: Mapping[str, Column]) -> list[Column]:
    """Return the columns of a descriptor; what is not told of its place is null."""
    told = {"stream": F.lit(definition.name), **place}
    return [
        told.get(field.name, F.lit(None)).cast(spark_type(field.type)).alias(field.name)
        for field in DESCRIPTOR
    ]


def _place(how: SparkReading) -> dict[str, Column]:
    """Return what tells the order of arrival of native rows, and their source partition.

    A file is a partition of its own, which is read whole in one batch.
    """
    if how.from_files:
        micros = F.unix_micros(F.col("_metadata.file_modification_time"))
        return {
            "path": F.col("_metadata.file_path"),
            "first": F.col("_metadata.file_block_start"),
            "ordinal": micros - F.lit(FOLDER_ORDINAL),
            "partition": F.col("_metadata.file_path"),
            "ends": F.lit(True),
        }
    place = {}
    if how.partition:
        place["partition"] = F.concat_ws("-", *(F.col(name) for name in how.partition))
    if how.order is not None:
        place["ordinal"] = F.col(how.order)
    return place


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
