"""The writing end of a memory stream: rows and promises are checked and go into its spool."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.errors import DataError, QueryError
from penstock.model import Schema, one_array
from penstock.physical.priorities import priorities
from penstock.sources.formats import is_pushed
from penstock.sources.links import check_partition
from penstock.sources.pushed import as_table, check_times
from penstock.sources.spool import Spool


class StreamWriter:
    """Pushes rows into a memory stream; ``folder`` is its spool.

    Threads and processes may push at the same time.
    """

    def __init__(self, definition: StreamDef, folder: str, fsync: bool = True) -> None:
        self.definition = definition
        self._spool = Spool(folder, definition.schema, fsync)

    def push(self, rows: Any, partition: int | None = None) -> None:
        """Add rows: tuples, dicts, an Arrow table or a pandas frame."""
        definition = self.definition
        check_partition(partition, definition.timing.partitions)
        table = as_table(rows, definition.schema)
        if definition.deadletter is None:
            check_times(table, definition)
            priorities(definition, [one_array(c) for c in table.columns], table.num_rows)
        self._spool.push(table, partition)

    def heartbeat(self, time: Any, partition: int | None = None) -> None:
        """Promise that no row below a time follows: a datetime or text, or an integer."""
        self._spool.heartbeat(promised(self.definition, time, partition), partition)

    def finish(self) -> None:
        """End the stream: no more rows will come."""
        self._spool.finish()


def promised(definition: StreamDef, time: Any, partition: int | None) -> int:
    """Return the time of a promise as the stream counts, or say what does not fit."""
    if time is None:
        raise DataError(
            f"a heartbeat must be a time, got None; to end stream '{definition.name}', call "
            f"finish()"
        )
    if partition is not None or definition.timing.partitions is None:
        check_partition(partition, definition.timing.partitions)
    column = definition.schema[definition.time]
    told = as_table([(time,)], Schema((column,))).column(0)
    return int(one_array(told).cast(pa.int64())[0].as_py())


def check_pushed(definition: StreamDef) -> None:
    """Check that the rows of a stream are pushed."""
    if not is_pushed(definition):
        raise QueryError(
            f"rows can be pushed to a stream USING memory, but stream '{definition.name}' is USING "
            f"{definition.format}"
        )
