"""What the lane remembers: rows that it answered and that the state does not show to all yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.lane.answering import Asked, Remembered, oldest_remembered
from penstock.model import INF
from penstock.physical.plan import PhysicalPlan


class Memory:
    """Rows that were answered, turn by turn."""

    def __init__(self) -> None:
        self.rows: list[Remembered] = []

    def __len__(self) -> int:
        return sum(len(known.rows) for known in self.rows)

    def note(
        self, stream: str, rows: Asked, turn: int, batch: int, beats: Mapping[str, int]
    ) -> None:
        """Remember rows of a turn that was answered after a batch."""
        self.rows.append(Remembered(stream, rows, turn, batch, {batch: beats}))

    def prune(self, plan: PhysicalPlan, beats: Mapping[str, int]) -> None:
        """Forget the rows that are below the heartbeats of all streams that they may meet."""
        oldest = oldest_remembered(plan, beats)
        kept = []
        for known in self.rows:
            mask = known.rows.time >= oldest.get(known.stream, INF)
            if mask.all():
                kept.append(known)
            elif mask.any():
                columns = [column.filter(pa.array(mask)) for column in known.rows.columns]
                rows = Asked(columns, known.rows.time[mask])
                kept.append(replace(known, rows=rows))
        self.rows = kept
