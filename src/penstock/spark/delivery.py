"""Delivery: the result runs of a committed batch become rows in sinks, in order, once per batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import INF, MIN_TIME, TIMESTAMP, Schema, to_numpy
from penstock.runs.failpoints import passing
from penstock.runs.files import room_for
from penstock.runs.manifest import Manifest
from penstock.runs.segments import read_segment
from penstock.spark.sinks import BlackholeSink, Result, Sink


@dataclass
class Outlet:
    """Where one query's answers go, and how they look. ``timestamps``: times are TIMESTAMPs."""

    schema: Schema
    mode: str
    timestamps: bool
    sink: Sink


class Delivery:
    """The sinks of a pipeline, by query; rows set aside have outlets of their own."""

    def __init__(self, segments: str) -> None:
        self.segments = segments
        self.outlets: dict[str, Outlet] = {}
        self.rejects: dict[tuple[str, str], Outlet] = {}

    def replay(self, manifest: Manifest) -> None:
        """After a restart: publish the newest batch again, in case the last process did not."""
        if manifest.batch >= 0:
            self.publish(manifest)

    def publish(self, manifest: Manifest) -> None:
        """Publish all results of a batch. Sinks ignore a batch that they have already."""
        by_query: dict[str, list[dict[str, Any]]] = {}
        for result in manifest.results:
            by_query.setdefault(result["query"], []).append(result)
        for query, results in by_query.items():
            outlet = self.outlets.get(query)
            if outlet is None:
                continue
            if isinstance(outlet.sink, BlackholeSink):
                outlet.sink.count(manifest.batch, sum(r["rows"] for r in results))
            else:
                tables = [read_segment(self.segments, r["place"]) for r in results]
                hand_over(
                    outlet.sink, outlet_result(query, manifest.batch, outlet, results, tables)
                )
        by_reject: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for reject in manifest.rejects:
            by_reject.setdefault((reject["stream"], reject["why"]), []).append(reject)
        for key, rejects in by_reject.items():
            aside = self.rejects.get(key)
            if aside is not None:
                tables = [read_segment(self.segments, r["place"]) for r in rejects]
                table = pa.concat_tables(tables).rename_columns(list(aside.schema.names))
                name = f"{key[0]}-{key[1]}"
                hand_over(
                    aside.sink,
                    Result(name, manifest.batch, "rows", aside.schema, aside.timestamps, table),
                )

    def close(self) -> None:
        """Close every sink."""
        for outlet in [*self.outlets.values(), *self.rejects.values()]:
            outlet.sink.close()


def hand_over(sink: Sink, result: Result) -> None:
    """Give a batch to a sink."""
    with room_for(f"the sink of {result.query}"):
        passing("sink-before")
        sink.publish(result)
        passing("sink-after")


def outlet_result(
    query: str,
    batch: int,
    outlet: Outlet,
    described: list[dict[str, Any]],
    tables: list[pa.Table],
) -> Result:
    """Return the result of a batch, made of the parts that its tasks wrote."""
    table = pa.concat_tables(tables).combine_chunks()
    as_of = max((part["as_of"] for part in described if "as_of" in part), default=None)
    before = [part["since"] for part in described if "since" in part]
    since = None if None in before else min(before, default=None)
    shaped = shape(table, outlet.schema, outlet.mode, outlet.timestamps)
    return Result(query, batch, outlet.mode, outlet.schema, outlet.timestamps, shaped, as_of, since)


def shape(table: pa.Table, schema: Schema, mode: str, timestamps: bool) -> pa.Table:
    """Turn a result run into the rows that users see, in order of time.

    At one instant a log has deaths before births: a row that takes another's place comes after it.
    No value has both at one instant, so what dies was always born before.
    """
    width = len(schema)
    second = to_numpy(table.column(f"c{width}" if mode == "log" else "_end"))
    order = np.lexsort((second, to_numpy(table.column("_start"))))
    if (np.diff(order) != 1).any():
        table = table.take(pa.array(order))
    columns = [table.column(f"c{i}") for i in range(width)]
    names = list(schema.names)
    if mode == "intervals":
        names += ["_start", "_end"]
        columns += [_times(table.column("_start"), timestamps)]
        columns += [_times(table.column("_end"), timestamps)]
    elif mode == "log":
        names += ["_time", "_sign"]
        columns += [_times(table.column("_start"), timestamps), table.column(f"c{width}")]
    elif mode == "delta":
        names.append("_sign")
        columns.append(table.column(f"c{width}"))
    elif mode == "stream":
        names.append("_time")
        columns.append(_times(table.column("_start"), timestamps))
    return pa.table(columns, names=names)


def _times(column: pa.ChunkedArray, timestamps: bool) -> pa.ChunkedArray:
    """Return times as users see them: null for "for ever"."""
    endless = pc.or_(pc.equal(column, INF), pc.equal(column, MIN_TIME))
    column = pc.if_else(endless, pa.scalar(None, pa.int64()), column)
    return column.cast(TIMESTAMP) if timestamps else column
