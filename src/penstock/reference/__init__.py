"""The oracle: what a query means, snapshot by snapshot; it shares no code with the engine."""

from penstock.reference.late import Judge
from penstock.reference.snapshots import (
    MEANINGS,
    Inputs,
    Steps,
    accept,
    from_intervals,
    relation,
    snapshot_at,
    stream,
    to_intervals,
    window,
)

__all__ = [
    "MEANINGS",
    "Inputs",
    "Judge",
    "Steps",
    "accept",
    "from_intervals",
    "relation",
    "snapshot_at",
    "stream",
    "to_intervals",
    "window",
]
