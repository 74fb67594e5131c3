"""The ways out of a session: where the answers of queries go, and rows that are set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.catalog import Catalog, QueryDef, SinkDef, StreamDef
from penstock.errors import ConfigError
from penstock.model import TIMESTAMP, Field, Schema
from penstock.physical.early_plan import early_outlet, early_plan
from penstock.runs.deliveries import lane_outlet, reject_outlet
from penstock.sinks import Sink, SinkRequest, delivery_mode, open_sink
from penstock.sinks.delivery import Outlet
from penstock.sinks.files import FileSink

if TYPE_CHECKING:
    from penstock.session.handle import QueryHandle
    from penstock.session.session import Session

REJECTED_SCHEMA = Schema(
    (
        Field("position", pa.int64()),
        Field("reason", pa.string()),
        Field("raw", pa.string()),
        Field("partition", pa.string()),
    )
)
"""What a dead-letter sink gets: the row's place in its source partition, what is wrong, its text.

The partition is null where a stream has only one.
"""


PRINTED = SinkDef("screen", "console", {"rows": "200"})
"""Where the rows of streams without a sink go if they are printed."""


LANE_MODES = ("intervals", "stream")
"""How answers may come by the lane: logs and views need to know of deaths, which it does not."""


@dataclass(frozen=True)
class Way:
    """The way of rows out: an outlet, its sink (None: memory) and what the sink is given.

    ``key`` are stream and reason of rows that are set aside, None for answers.
    """

    outlet: str
    sink: str | None
    mode: str
    schema: Schema
    timestamps: bool
    key: tuple[str, str] | None = None


def ways(catalog: Catalog, definition: QueryDef, mode: str) -> Iterator[Way]:
    """Yield where the answers of a query go, and the rows that its streams set aside."""
    if mode != "kept":
        stamps = has_timestamps(catalog, definition.plan)
        yield Way(definition.name, definition.sink, mode, definition.plan.schema, stamps)
    for name in sorted(algebra.streams_of(definition.plan)):
        stream: StreamDef = catalog.get("stream", name)
        stamps = bool(stream.schema[stream.time].type == TIMESTAMP)
        for why, target, schema in (
            ("late", stream.late, stream.schema),
            ("rejected", stream.deadletter, REJECTED_SCHEMA),
        ):
            if target is not None:
                outlet = reject_outlet(name, why)
                yield Way(outlet, target, "rows", schema, stamps, (name, why))


def open_outlets(session: Session, handle: QueryHandle) -> Iterator[str]:
    """Open the sinks that a query needs and nobody has opened; yield their outlets."""
    delivery = session.pipeline.delivery
    for way in ways(session.catalog, handle.definition, handle.mode):
        if way.key in delivery.rejects or (way.key is None and handle.sink is not None):
            continue
        if delivery.has(way.outlet):
            raise ConfigError(
                f"the name of a query must differ from '{way.outlet}', under which rows that a "
                f"stream sets aside are delivered; choose another name"
            )
        sink = _opened_outside(session, way)
        outlet = Outlet(way.schema, way.mode, way.timestamps, sink)
        if way.key is None:
            handle.sink = sink
            delivery.outlets[way.outlet] = outlet
        else:
            delivery.rejects[way.key] = outlet
        yield way.outlet


def open_lane_outlet(session: Session, handle: QueryHandle) -> str:
    """Open the outlet of a query's answers by the lane, into the same sink; return its name.

    It is for queries that take the lane, after `open_outlets`; others have none.
    """
    delivery = session.pipeline.delivery
    answers = delivery.outlets[handle.name]
    way = lane_way(next(ways(session.catalog, handle.definition, handle.mode)))
    assert way is not None, f"answers of the mode {handle.mode} never come by the lane"
    sink = answers.sink.for_turns(lambda: _opened(session, way))
    delivery.lanes[way.outlet] = Outlet(way.schema, way.mode, way.timestamps, sink)
    return way.outlet


def open_early_outlet(session: Session, handle: QueryHandle) -> str:
    """Open the outlet of a query's early answers; return its name."""
    way = early_way(session.catalog, handle.definition)
    sink = _opened_outside(session, way)
    files = [some.place.resolve() for some in (sink, handle.sink) if isinstance(some, FileSink)]
    if len(files) == 2 and files[0] == files[1]:
        sink.close()
        raise ConfigError(
            f"the sink {way.sink} of EARLY INTO must have another folder than that of INTO, "
            f"because early rows are no part of the answer, but both have {files[0]}; choose "
            f"another path for one of them"
        )
    session.pipeline.delivery.lanes[way.outlet] = Outlet(way.schema, way.mode, way.timestamps, sink)
    return way.outlet


def early_way(catalog: Catalog, made: QueryDef) -> Way:
    """Return the way of a query's early answers.

    They have its columns, the time of the important row, and as of when they hold.
    """
    stamps = has_timestamps(catalog, made.plan)
    kind = TIMESTAMP if stamps else pa.int64()
    added = Field("_time", kind), Field("_as_of", kind)
    schema = Schema((*early_plan(made.plan).node.schema.fields, *added))
    return Way(lane_outlet(early_outlet(made.name)), made.early, "rows", schema, stamps)


def lane_way(way: Way) -> Way | None:
    """Return the way of the same answers by the lane; None where they never come by it."""
    if way.key is not None or way.mode not in LANE_MODES:
        return None
    return replace(way, outlet=lane_outlet(way.outlet))


def _opened_outside(session: Session, way: Way) -> Sink:
    """Open the sink of a way, which must not lie in the checkpoint."""
    sink = _opened(session, way)
    if sink.place is not None and _within(sink.place, Path(session._folder)):
        sink.close()
        raise ConfigError(
            f"the sink {way.sink} must not be inside the checkpoint {session._folder}, whose "
            f"folders are swept; choose another path"
        )
    return sink


def _opened(session: Session, way: Way) -> Sink:
    """Open the sink of a way."""
    request = SinkRequest(
        way.outlet,
        way.mode,
        way.schema,
        spark=session.spark,
        ledger=Path(session._folder) / "delivered",
        callback=session._callbacks.get((way.sink or "").lower()),
        fsync=session.config.fsync,
        timestamps=way.timestamps,
        run=session.pipeline.checkpoint.run,
    )
    target = None if way.sink is None else session.catalog.get("sink", way.sink)
    if target is None and way.mode == "stream" and session.prints_streams:
        target = PRINTED
    return open_sink(target, request)


def _within(place: Path, folder: Path) -> bool:
    """Whether a file or folder is the other one, or lies in it, wherever links lead."""
    return place.resolve().is_relative_to(folder.resolve())


def mode_of(definition: QueryDef, sink: SinkDef | None) -> str:
    """Return how the answer of a query is delivered."""
    if algebra.is_stream(definition.plan):
        return "stream"
    if sink is None:
        return "view"
    return delivery_mode(sink)


def has_timestamps(catalog: Catalog, node: Node) -> bool:
    """Whether the time of a plan's streams is in timestamps, not in integers."""
    name = next(iter(algebra.streams_of(node)))
    definition: StreamDef = catalog.get("stream", name)
    return bool(definition.schema[definition.time].type == TIMESTAMP)
