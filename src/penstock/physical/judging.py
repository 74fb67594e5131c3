"""Which rows of a stream are late: decided in order of arrival, source partition by partition.

Packing does it for the rows of a batch, and the lane, before any batch has them, for those that it
answers.  Both judge alike (`penstock.physical.progress` has the law).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate_mask
from penstock.model import I64, MIN_TIME, Mask, one_array, to_numpy
from penstock.physical.answered import Answered
from penstock.physical.closing import Closings, punctuated
from penstock.physical.progress import Partition, Progress, arrival_numbers
from penstock.runs.state import MemoryStorage, Storage
from penstock.timing import TimeRules


@dataclass(frozen=True)
class Judged:
    """Rows of one partition: which are late, their times and arrival numbers."""

    late: Mask
    time: I64
    seq: I64


class Judge:
    """Follows the source partitions of one stream.

    ``progress`` is how far the stream was before.  ``storage`` has its parts that are closed,
    ``answered`` what the lane has answered.
    """

    def __init__(
        self,
        stream: str,
        time_column: int,
        rules: TimeRules,
        progress: Progress,
        storage: Storage | None = None,
        answered: Answered | None = None,
    ) -> None:
        self._stream = stream
        self._time = time_column
        self._rules = rules
        self._before = progress
        self._answered = answered or Answered()
        self.closings: Closings | None = None
        if rules.closing is not None:
            self.closings = Closings(rules.closing, progress, storage or MemoryStorage())
        self.partitions: dict[str, Partition] = {}
        self.floor = MIN_TIME

    def appear(self, partition: str = "", number: int | None = None) -> Partition:
        """Return a partition as it is now; one that is new begins here."""
        if partition not in self.partitions:
            if number is None and partition not in self._before.partitions:
                known = [part.number for part in self.partitions.values()]
                number = max(self._before.numbers, 1 + max(known, default=-1))
            found = self._before.partition(partition, number)
            self.partitions[partition] = replace(found, floor=max(found.floor, self.floor))
        return self.partitions[partition]

    def judge(self, table: pa.Table, position: I64 | None = None, partition: str = "") -> Judged:
        """Judge rows of one partition, in arrival order; there is at least one."""
        found = self.appear(partition)
        rows = table.num_rows
        time = to_numpy(one_array(table.column(self._time)).cast(pa.int64()))
        if position is None:
            position = np.arange(found.position, found.position + rows, dtype=np.int64)
        promised = closed = None
        if self._rules.punctuations:
            columns = [one_array(c) for c in table.columns]
            promised = self._promised(columns, time)
            if self.closings is not None:
                closed = self.closings.judge(partition, columns, time)
        seq = arrival_numbers(found, position)
        answered = self._answered.of(self._stream, seq)
        late, found = found.judged(time, self._rules, promised, closed, answered)
        self.partitions[partition] = replace(found, position=int(position[-1]) + 1)
        return Judged(late, time, seq)

    def promise(self, heartbeat: int, partition: str = "") -> None:
        """Take a heartbeat that the source gives between two rows.

        It is that of a partition; without a name that of the whole stream, of all its partitions.
        """
        if not partition:
            self.floor = max(self.floor, heartbeat)
        for name in (partition,) if partition else {*self._before.partitions, *self.partitions}:
            found = self.appear(name)
            self.partitions[name] = replace(found, floor=max(found.floor, heartbeat))

    def _promised(self, columns: Sequence[pa.Array], time: I64) -> I64 | None:
        """Return the heartbeats that punctuations among the rows give; None: there are none."""
        found = None
        for punctuation in self._rules.punctuations:
            if not punctuation.on:
                says = evaluate_mask(punctuation.condition, columns, len(time))
                said = np.where(says, punctuated(punctuation, columns, time), MIN_TIME)
                found = said if found is None else np.maximum(found, said)
        return found
