"""Any sink format of Spark, written batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.catalog import SinkDef
from penstock.errors import ConfigError, DataError, first_sentence
from penstock.model import one_array
from penstock.runs.deliveries import Held
from penstock.sinks.base import (
    Result,
    SharedLock,
    Sink,
    SinkFormat,
    SinkRequest,
    options_of,
    unique_names,
)
from penstock.sinks.file_encodings import in_utc
from penstock.sinks.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFormat(SinkFormat):
    """A format that Spark writes; its options are Spark's."""

    options = None

    def open(self, definition: SinkDef, request: SinkRequest) -> Sink:
        if request.spark is None:
            raise ConfigError(
                f"the sink {definition.name} must be opened with a Spark session, because its "
                f"format '{definition.format}' is Spark's"
            )
        return SparkSink(definition, request.spark, Ledger(request.ledger, request.query))


class SparkSink(Sink):
    """Writes batches with ``DataFrame.write``; views replace what was written before.

    Rows get a column ``_batch``, which is negative for turns of the lane.  Spark's batch writers
    are not transactional, so a crash in the middle of a write can leave rows of a batch that is
    then written again: readers that must not see them twice keep one copy of each batch.
    """

    def __init__(self, definition: SinkDef, spark: SparkSession, ledger: Ledger) -> None:
        self._name = definition.name
        self._format = definition.format
        self._options = {k: v for k, v in options_of(definition).items() if k != "changes"}
        self._spark = spark
        self._ledger = ledger
        self._lock = SharedLock.of("spark", definition.name.lower())

    def held(self) -> Held | None:
        """Return what the ledger says."""
        return self._ledger.held()

    def publish(self, result: Result) -> None:
        """Write a batch that the ledger does not have."""
        if self._ledger.has(result.batch):
            return
        is_view = result.mode == "view"
        if result.table.num_rows or is_view:
            try:
                frame = self._spark.createDataFrame(_for_spark(result))
                writer = frame.write.format(self._format).options(**self._options)
                with self._lock:  # two writers of one folder would take away each other's files
                    writer.mode("overwrite" if is_view else "append").save()
            except Exception as error:
                raise DataError(
                    f"{result.shown} must be written by Spark as format '{self._format}' (sink "
                    f"{self._name}), but: {first_sentence(error)}"
                ) from None  # Spark's own text is long, and may tell secrets
        self._ledger.add(result.batch, result.lineage)


def _for_spark(result: Result) -> pa.Table:
    """Return the rows with their batch number and with timestamps that Spark takes as UTC."""
    table = unique_names(result.table)
    batch = pa.array([result.number] * table.num_rows, pa.int64())
    table = table.append_column("_batch", batch)
    columns = [in_utc(one_array(column)) for column in table.columns]
    return pa.table(columns, names=table.column_names)
