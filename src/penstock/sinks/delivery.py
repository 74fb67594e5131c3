"""Delivery: the result runs of a committed batch become rows in sinks, in order, once per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import StateError
from penstock.model import INF, MIN_TIME, TIMESTAMP, Schema, to_numpy
from penstock.runs.deliveries import Delivered, Held, missing, reject_outlet, rows_of
from penstock.runs.failpoints import passing
from penstock.runs.files import room_for
from penstock.runs.manifest import Manifest
from penstock.runs.segments import read_segment
from penstock.sinks.base import Result, Sink


@dataclass
class Outlet:
    """Where one query's answers go, and how they look. ``timestamps``: times are TIMESTAMPs."""

    schema: Schema
    mode: str
    timestamps: bool
    sink: Sink


class Delivery:
    """The sinks of a pipeline, by query; rows set aside have outlets of their own.

    ``find`` gives the folder of a result run: those of older batches may be in the trash.
    """

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find
        self.outlets: dict[str, Outlet] = {}
        self.rejects: dict[tuple[str, str], Outlet] = {}
        self._due: dict[str, _Due] = {}

    # -- starting --------------------------------------------------------------------------------

    def check(
        self,
        names: Iterable[str],
        book: Mapping[str, Delivered],
        retained: Sequence[Manifest],
        allow_change: bool,
    ) -> dict[str, Delivered]:
        """Ask the sinks of some outlets how far they are; return where those stand that begin anew.

        Nothing is changed: what is to be delivered again waits for `begin`.
        """
        anew: dict[str, Delivered] = {}
        for name in names:
            sink = self._sink(name)
            with usable(name):
                held = sink.held()
            told = book.get(name, Delivered())
            due = _Due()
            if held is None:  # it begins with the newest answer, which went with its process
                if retained and told.last == (retained[-1].batch, retained[-1].lineage):
                    due = _Due([told.batch], retained)
            elif told.ended and held.batch < 0:
                anew[name] = Delivered()
            else:
                try:
                    due = _Due(missing(name, held, told, retained), retained)
                except StateError:
                    foreign = held.batch >= told.batch and held.last != told.last
                    if not allow_change or foreign:
                        raise
                    due = self._without(name, held, told, retained)
                    if told.batch not in due.batches:
                        anew[name] = Delivered(held.batch, held.lineage)
            self._due[name] = due
        return anew

    def _without(
        self, name: str, held: Held, told: Delivered, retained: Sequence[Manifest]
    ) -> _Due:
        """Return what an outlet is given that goes on without what is lost: all that is kept."""
        if name in self.outlets and self.outlets[name].mode == "delta" and held.last != told.last:
            raise StateError(
                f"{held.shown} must hold its view to go on, and it is lost; drop the table, and "
                f"write DROP QUERY IF EXISTS {name} before the query, for one run: it begins anew"
            )
        kept = [m.batch for m in retained if name in rows_of(m) and m.batch > held.batch]
        again = kept if held.repeatable and not held.unknown else []
        return _Due(again, retained, list(held.lost))

    def begin(self, names: Iterable[str]) -> None:
        """Make sinks ready that were checked, and deliver what they miss."""
        for name in names:
            due = self._due.pop(name, None)
            if due is None:
                continue
            with usable(name):
                self._sink(name).begin(due.batches, due.given_up)
            for manifest in due.retained:
                if manifest.batch in due.batches:
                    self._deliver(manifest, name)

    def rewind(self, name: str, book: Mapping[str, Delivered]) -> str:
        """Take a sink back to where the book is; return a sentence that says what was done."""
        return self._sink(name).rewind(book.get(name, Delivered()))

    def forget(self, names: Iterable[str]) -> None:
        """Close outlets that were opened and not begun."""
        for name in names:
            if self.has(name):
                self._sink(name).close()
            self._due.pop(name, None)
            self.outlets.pop(name, None)
            for key in [key for key in self.rejects if reject_outlet(*key) == name]:
                del self.rejects[key]

    def has(self, name: str) -> bool:
        """Whether an outlet is open."""
        return name in self.outlets or any(reject_outlet(*key) == name for key in self.rejects)

    def _sink(self, name: str) -> Sink:
        if name in self.outlets:
            return self.outlets[name].sink
        return next(o.sink for key, o in self.rejects.items() if reject_outlet(*key) == name)

    # -- a batch ---------------------------------------------------------------------------------

    def publish(self, manifest: Manifest) -> None:
        """Publish all results of a batch. Sinks ignore a batch that they have already."""
        for name in rows_of(manifest):
            self._deliver(manifest, name)

    def _deliver(self, manifest: Manifest, name: str) -> None:
        """Give an outlet what a batch has for it."""
        results = [r for r in manifest.results if r["query"] == name]
        outlet = self.outlets.get(name)
        if outlet is not None and results:
            rows = sum(r["rows"] for r in results)
            if not outlet.sink.count(manifest.batch, rows):
                tables = [self._read(r) for r in results]
                hand_over(outlet.sink, outlet_result(name, manifest, outlet, results, tables))
        for (stream, why), aside in list(self.rejects.items()):
            if reject_outlet(stream, why) != name:
                continue
            tables = [
                self._read(r) for r in manifest.rejects if (r["stream"], r["why"]) == (stream, why)
            ]
            if tables:
                table = pa.concat_tables(tables).rename_columns(list(aside.schema.names))
                batch, stamps = manifest.batch, aside.timestamps
                lineage = manifest.lineage
                hand_over(
                    aside.sink,
                    Result(name, batch, "rows", aside.schema, stamps, table, lineage=lineage),
                )

    def _read(self, described: Mapping[str, Any]) -> pa.Table:
        place = described["place"]
        return read_segment(self._find(place["file"]), place)

    def close(self) -> None:
        """Close every sink."""
        for outlet in [*self.outlets.values(), *self.rejects.values()]:
            outlet.sink.close()


@dataclass(frozen=True)
class _Due:
    """What an outlet must be given when it begins: batches of some manifests."""

    batches: Sequence[int] = ()
    retained: Sequence[Manifest] = ()
    given_up: Sequence[int] = ()


@contextmanager
def usable(outlet: str) -> Iterator[None]:
    """Turn what files do not allow into a sentence."""
    try:
        with room_for(f"the sink of {outlet}"):
            yield
    except OSError as error:
        raise StateError(
            f"the sink of {outlet} must be one that can be written, but: {error}; nothing is lost: "
            f"correct it and run the same command again"
        ) from None


def hand_over(sink: Sink, result: Result) -> None:
    """Give a batch to a sink."""
    with usable(result.query):
        passing("sink-before")
        sink.publish(result)
        passing("sink-after")


def outlet_result(
    query: str,
    manifest: Manifest,
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
    return Result(
        query,
        manifest.batch,
        outlet.mode,
        outlet.schema,
        outlet.timestamps,
        shaped,
        as_of,
        since,
        manifest.lineage,
    )


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
