"""Taking sinks back to where a checkpoint is, after it was brought back from an older copy.

Neither Spark nor Java is needed.  The checkpoint is locked meanwhile, and only read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from penstock.errors import QueryError, suggest
from penstock.lane.journal import Journal, Mark
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.deliveries import Delivered, book_of, is_lane
from penstock.runs.manifest import Manifest
from penstock.session.outlets import Way, early_way, lane_way, ways
from penstock.session.session import Session
from penstock.sinks import SinkRequest, open_sink, sink_format

_THERE = "is where the checkpoint is"


def rewind(session: Session, folder: str | Path, sinks: Collection[str]) -> Iterator[str]:
    """Take some sinks of a session's script, or all, back to a checkpoint; yield what was done."""
    known = session.catalog.sinks
    for name in sinks:
        if name.lower() not in known:
            raise QueryError(f"there is no sink '{name}' in the script; {suggest(name, known)}")
    checkpoint = Checkpoint(str(folder))
    checkpoint.lock()
    try:
        retained = checkpoint.open()
        book = book_of(retained[-1]) if retained else {}
        turns = _turns(checkpoint, retained)
        wanted = {name.lower() for name in sinks or known}
        for way in _early_ways(session):
            if (way.sink or "").lower() in wanted:
                told = turns.get(way.outlet, Delivered())
                done = _rewound(session, checkpoint, way, told)
                yield f"sink {way.sink}, {way.outlet}: {done}"
        for way in _ways(session):
            if (way.sink or "").lower() in wanted:
                told = book.get(way.outlet, Delivered())
                kept = any(manifest.batch == told.batch for manifest in retained)
                if way.mode == "view" and told.batch >= 0 and not kept:
                    done = (
                        f"cannot be taken back: no manifest has its view of batch {told.batch} any "
                        f"more; bring the folder back from a copy, or DROP the query and create it "
                        f"again with a new sink"
                    )
                else:
                    done = _rewound(session, checkpoint, way, told)
                yield f"sink {way.sink}, {way.outlet}: {done}"
                by_lane = lane_way(way)
                if by_lane is not None:
                    told = turns.get(by_lane.outlet, Delivered())
                    done = _rewound(session, checkpoint, by_lane, told)
                    if told.batch >= 0 or done not in (_THERE, _not_rewound(session, way)):
                        yield f"sink {way.sink}, {by_lane.outlet}: {done}"
    finally:
        checkpoint.unlock()


def _ways(session: Session) -> list[Way]:
    found: dict[str, Way] = {}
    for handle in session.handles():
        for way in ways(session.catalog, handle.definition, handle.mode):
            found.setdefault(way.outlet, way)
    return list(found.values())


def _early_ways(session: Session) -> list[Way]:
    made = [handle.definition for handle in session.handles()]
    return [early_way(session.catalog, query) for query in made if query.early is not None]


def _turns(checkpoint: Checkpoint, retained: Sequence[Manifest]) -> dict[str, Delivered]:
    """Return what the outlets of the lane were given: the manifest and the journal know it."""
    newest = retained[-1] if retained else Manifest()
    told = {name: known for name, known in book_of(newest).items() if is_lane(name)}
    mark = Mark.of(newest.lane, checkpoint.run)
    return Journal.open(checkpoint.folder, mark, newest.batch, told).told


def _not_rewound(session: Session, way: Way) -> str:
    """Return why a sink cannot be taken back; nothing if it can."""
    return sink_format(session.catalog.get("sink", way.sink or "").format).not_rewound


def _rewound(session: Session, checkpoint: Checkpoint, way: Way, told: Delivered) -> str:
    definition = session.catalog.get("sink", way.sink or "")
    if why := _not_rewound(session, way):
        return why
    request = SinkRequest(
        way.outlet,
        way.mode,
        way.schema,
        ledger=checkpoint.folder / "delivered",
        timestamps=way.timestamps,
        run=checkpoint.run,
    )
    sink = open_sink(definition, request)
    try:
        held = sink.held()
        if held is None or held.last == told.last:
            return _THERE
        if held.batch < told.batch:
            units = "turns" if is_lane(way.outlet) else "batches"
            return f"is behind: it holds {units} up to {held.batch}, of {told.batch}"
        return sink.rewind(told)
    finally:
        sink.close()
