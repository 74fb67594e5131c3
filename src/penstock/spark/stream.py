"""The streaming query of Spark that carries a pipeline: opened, opened anew, stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.runs.spark_log import SparkLog
from penstock.spark.engine import pipeline_session
from penstock.spark.failures import root_cause
from penstock.spark.sources import SPARK_ERRORS


class SparkStream:
    """One streaming query of Spark at a time, which calls ``work`` with each micro-batch.

    ``log`` is the folder of Spark's own offsets and commits, ``trigger`` the shortest time, in
    seconds, between the starts of two micro-batches.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: str,
        log: str,
        trigger: float,
        work: Callable[[DataFrame, int], None],
    ) -> None:
        self.session = pipeline_session(spark, folder)
        self._log = log
        self._trigger = f"{int(trigger * 1000)} milliseconds"
        self._work = work
        self._query: StreamingQuery | None = None

    def start(self, frame: DataFrame) -> None:
        """Begin to read a frame, where the query before it has stopped."""
        SparkLog(self._log).drop_unfinished()
        writer = frame.writeStream.foreachBatch(self._work)
        writer = writer.option("checkpointLocation", self._log)
        try:
            self._query = writer.trigger(processingTime=self._trigger).start()
        except SPARK_ERRORS as error:
            raise root_cause(error) from error

    def stop(self) -> None:
        """Stop; a batch under way is interrupted."""
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self._query = None

    @property
    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def waits(self) -> bool:
        """Whether Spark has taken all that there is; also if it does not run."""
        query = self._query
        if query is None or not query.isActive:
            return True
        status = query.status
        if status["isDataAvailable"] or status["isTriggerActive"]:
            return False
        return str(status["message"]).startswith("Waiting")

    def take_all(self, deadline: float | None = None) -> None:
        """Wait until Spark has taken all that is there now; no longer than until a moment."""
        if self._query is None:
            return
        if deadline is None:
            self._query.processAllAvailable()
            return
        waiting = Thread(target=self._query.processAllAvailable, daemon=True)
        waiting.start()
        waiting.join(max(0.0, deadline - time.monotonic()))

    def failure(self) -> BaseException | None:
        """Return what ended the query, if it failed."""
        return None if self._query is None else self._query.exception()

    def queries(self) -> list[StreamingQuery]:
        """Return what Spark runs here: one streaming query while it is active."""
        return list(self.session.streams.active)
