"""What rows wait for, what came too late, and where heartbeats come from: sentences for people.

A row waits until the heartbeat of every stream of its query has passed it.  The stream with the
least heartbeat holds it back, and in that stream the partition with the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.catalog import StreamDef
from penstock.cql.render import duration_text, time_text, timing_texts
from penstock.model import INF, MIN_TIME, TIMESTAMP
from penstock.physical.observation import Observation, PartitionState, StreamState

Streams = Mapping[str, StreamDef]


def waits(seen: Observation, query: str, streams: Streams) -> str | None:
    """Say how many rows of a query wait, until when, and what would release them; None: none."""
    rows, latest = seen.waiting_rows(query)
    states = {name: seen.stream(name) for name in seen.streams_of(query)}
    open_ = {name: state for name, state in states.items() if state.heartbeat < INF}
    if rows == 0 or not open_:
        return None
    latest = max(latest, *(state.heartbeat for state in open_.values()))
    behind = min(sorted(open_), key=lambda name: open_[name].heartbeat)
    stream, alone = streams[behind], len(states) == 1
    how_many = "1 row waits" if rows == 1 else f"{rows:,} rows wait"
    time = time_text(latest, is_timed(stream))
    reason = _reason(stream, open_[behind], latest, alone)
    remedy = _remedy(stream, open_[behind], latest, rows)
    head = f"{how_many} until {'time' if alone else f'stream {behind}'} passes {time}"
    return "; ".join([f"{head}: {reason}", remedy, *_kept_back(open_, behind, streams)])


def is_timed(stream: StreamDef) -> bool:
    """Whether the time of a stream is in timestamps, not in integers."""
    return bool(stream.schema[stream.time].type == TIMESTAMP)


def _reason(stream: StreamDef, state: StreamState, latest: int, alone: bool) -> str:
    """Say why the heartbeat of a stream has not passed a time."""
    stamps, rules = is_timed(stream), stream.timing
    if state.newest == MIN_TIME:
        return "nothing has come yet" if alone else f"nothing has come of stream {stream.name} yet"
    busy = {name: part for name, part in state.partitions.items() if not part.idle}
    if len(state.partitions) > 1 and busy:
        name, slowest = min(busy.items(), key=lambda item: item[1].heartbeat)
        where = (
            f"{f'partition {name}' if name else 'the unnamed partition'} of stream {stream.name}"
        )
        if slowest.heartbeat == MIN_TIME:
            return f"{where} has promised nothing yet"
        return f"{where} has come to {time_text(slowest.heartbeat, stamps)} only"
    slack = next((part.slack for part in busy.values()), rules.slack)
    if slack is None:
        return "too few rows have come for SLACK AUTO"
    if slack:
        far = time_text(latest + slack, stamps)
        auto = "AUTO, now " if rules.keeping is not None else ""
        return f"no row after {far} has come (SLACK {auto}{duration_text(slack, stamps)})"
    return "no later row has come"


def _remedy(stream: StreamDef, state: StreamState, latest: int, rows: int) -> str:
    """Say what releases rows that wait although nothing comes, or what would."""
    rules, stamps = stream.timing, is_timed(stream)
    them = "it" if rows == 1 else "them"
    if rules.clock_lag is not None:
        passed = time_text(latest + rules.clock_lag, stamps)
        return f"HEARTBEAT FROM CLOCK releases {them} at {passed}"
    closed = latest <= state.newest  # a silence closes the newest instant, not a later pulse
    if rules.idle_after is not None and closed and not state.idle:
        silence = timing_texts(rules, stream.schema.names, stamps)["IDLE AFTER"]
        return f"after {silence} of silence the stream is passed over"
    clock = "HEARTBEAT FROM CLOCK" if stamps else "session.heartbeat()"
    ways = f"IDLE AFTER or {clock}" if closed and rules.idle_after is None else clock
    return f"{ways} would release {them}"


def _kept_back(open_: Mapping[str, StreamState], behind: str, streams: Streams) -> Iterator[str]:
    """Say which streams are not read further because they are too far ahead."""
    for name, state in sorted(open_.items()):
        step, stamps = streams[name].timing.step, is_timed(streams[name])
        ahead = state.newest - open_[behind].heartbeat
        if name != behind and step is not None and ahead > step:
            far = duration_text(step, stamps)
            yield f"stream {name} is not read further meanwhile (STEP {far})"


def heartbeats(stream: StreamDef, state: StreamState | None = None) -> str:
    """Say where the heartbeats of a stream come from; ``state``: as it runs."""
    stamps = is_timed(stream)
    texts = timing_texts(stream.timing, stream.schema.names, stamps)
    texts["SLACK"] += _in_force(stream, state)
    told = [f"{clause} {text}" for clause, text in texts.items()]
    if state is not None and state.heartbeat == INF:
        told.append("ended")
    elif state is not None and state.partitions:
        told.append(_partitions(state.partitions.values()))
    return f"heartbeats of {stream.name}: {', '.join(told)}"


def _in_force(stream: StreamDef, state: StreamState | None) -> str:
    """Say which slack SLACK AUTO has found."""
    if stream.timing.keeping is None or state is None or not state.partitions:
        return ""
    if state.slack is None:
        return " (not known yet)"
    return f" (now {duration_text(state.slack, is_timed(stream))})"


def _partitions(found: Iterable[PartitionState]) -> str:
    idle = [part.idle for part in found]
    count = f"{len(idle)} partition{'' if len(idle) == 1 else 's'}"
    return f"{count}, {sum(idle)} idle" if any(idle) else count


def lost(seen: Observation, streams: Streams) -> Iterator[str]:
    """Say of each stream how many late rows were dropped since the pipeline was opened."""
    for name, state in sorted(seen.streams.items()):
        stream = streams.get(name)
        if stream is None or stream.late is not None or not state.late_here:
            continue
        came = "1 row" if state.late_here == 1 else f"{state.late_here:,} rows"
        were = "was" if state.late_here == 1 else "were"
        slack = timing_texts(stream.timing, stream.schema.names, is_timed(stream))["SLACK"]
        slack += _in_force(stream, state)
        auto = "" if stream.timing.keeping is not None else "a larger SLACK, SLACK AUTO or "
        yield (
            f"{came} of stream {name} came too late and {were} dropped: SLACK {slack}; "
            f"declare {auto}LATE INTO a sink"
        )
