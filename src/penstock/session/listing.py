"""SHOW STREAMS: what is declared, and how far each stream is that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.catalog import StreamDef
from penstock.cql.render import duration_text, time_text
from penstock.model import INF, MIN_TIME
from penstock.physical.observation import StreamState
from penstock.physical.waits import is_timed

if TYPE_CHECKING:
    from penstock.session.session import Session


def shown_streams(session: Session) -> pa.Table:
    """Return all streams; of those that no query reads, only what is declared."""
    found = list(session.catalog.streams.values())
    pipeline = session._pipeline
    running = frozenset() if pipeline is None else pipeline.book.streams
    states: list[StreamState | None] = [
        pipeline.observation.stream(d.name) if pipeline and d.name in running else None
        for d in found
    ]
    pairs = list(zip(found, states, strict=True))
    count, text = pa.int64(), pa.string()
    return pa.table(
        {
            "stream": [d.name for d in found],
            "format": [d.format for d in found],
            "rows": pa.array([s and s.rows for s in states], count),
            "late": pa.array([s and s.late for s in states], count),
            "rejected": pa.array([s and s.rejected for s in states], count),
            "heartbeat": pa.array([s and _time(d, s.heartbeat) for d, s in pairs], text),
            "newest": pa.array([s and _time(d, s.newest) for d, s in pairs], text),
            "partitions": pa.array([s and len(s.partitions) for s in states], count),
            "slack": pa.array([_slack(d, s) for d, s in pairs], text),
        }
    )


def _time(stream: StreamDef, time: int) -> str | None:
    """Return a time as text; None if there was none yet."""
    if time == INF:
        return "end"
    return None if time == MIN_TIME else time_text(time, is_timed(stream))


def _slack(stream: StreamDef, state: StreamState | None) -> str | None:
    """Return the slack that is in force; None while SLACK AUTO knows too little."""
    slack: int | None = stream.timing.slack
    if stream.timing.keeping is not None:
        slack = None if state is None else state.slack
    return None if slack is None else duration_text(slack, is_timed(stream))
