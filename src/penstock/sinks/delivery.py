"""Delivery: the result runs of a committed batch become rows in sinks, in order, once per batch.

The same is done with the turns of the lane, which have outlets and numbers of their own: a query's
answers come into one sink by two ways, each in its own order, each delivery once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import StateError
from penstock.model import INF, MIN_TIME, TIMESTAMP, Schema, to_numpy
from penstock.runs.deliveries import (
    Delivered,
    Held,
    deliveries,
    is_lane,
    lane_outlet,
    missing,
    partner,
    reject_outlet,
    rows_of,
)
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


class Turn(Protocol):
    """What a delivery must know of a turn of the lane; `penstock.lane.journal` has them.

    ``results`` are result runs by query, ``told`` is what each outlet has got with this turn.
    """

    @property
    def number(self) -> int: ...
    @property
    def chain(self) -> str: ...
    @property
    def results(self) -> Mapping[str, pa.Table]: ...
    @property
    def told(self) -> Mapping[str, Delivered]: ...


class Turns(Protocol):
    """The turns that are kept: a journal.

    ``told`` is what each outlet was given; the rows of turns up to ``settled`` are in batches.
    """

    @property
    def settled(self) -> int: ...
    @property
    def told(self) -> Mapping[str, Delivered]: ...
    def turns(self, since: int = 0) -> Iterator[Turn]: ...


class Delivery:
    """The sinks of a pipeline, by query; rows set aside have outlets of their own.

    So have answers by the lane (``lanes``, by outlet), which come turn by turn from a thread of
    their own.  ``find`` gives the folder of a result run: those of older batches may be in the
    trash.
    """

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find
        self.outlets: dict[str, Outlet] = {}
        self.rejects: dict[tuple[str, str], Outlet] = {}
        self.lanes: dict[str, Outlet] = {}
        self._lane = threading.RLock()
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
        manifests = {manifest.batch: manifest for manifest in retained}
        for name in names:
            told = book.get(name, Delivered())
            kept = deliveries(name, retained)
            newest = retained and told.last == (retained[-1].batch, retained[-1].lineage)
            lost = [told.batch] if newest else []  # with its process; it begins with this answer
            give = partial(self._deliver_again, manifests, name)
            anew |= self._ask(name, _Given(told, kept, lost, give), allow_change)
        return anew

    def check_turns(
        self, names: Iterable[str], journal: Turns, allow_change: bool
    ) -> dict[str, Delivered]:
        """Ask the sinks of outlets of the lane how far they are, as `check` does.

        A sink that has turns which the journal does not know is refused, one that is behind gets
        turns of the journal again.
        """
        anew: dict[str, Delivered] = {}
        turns = {turn.number: turn for turn in journal.turns()}
        book = journal.told
        for name in names:
            told = book.get(name, Delivered())
            kept = _led_to(
                told, {n: turn.told[name] for n, turn in turns.items() if name in turn.told}
            )
            lost = [number for number in kept if number > journal.settled]
            give = partial(self._turn_again, turns, name)
            anew |= self._ask(name, _Given(told, kept, lost, give), allow_change)
        return anew

    def _ask(self, name: str, given: _Given, allow_change: bool) -> dict[str, Delivered]:
        """Ask a sink how far it is; return where its outlet stands if that begins anew."""
        with usable(name):
            held = self._sink(name).held()
        told, again, given_up = given.told, given.lost, list[int]()
        anew: dict[str, Delivered] = {}
        if held is not None and told.ended and held.batch < 0:
            again, anew = [], {name: Delivered()}
        elif held is not None:
            try:
                again = missing(name, held, told, given.kept)
            except StateError:
                foreign = held.batch >= told.batch and held.last != told.last
                if not allow_change or foreign:
                    raise
                again, given_up = self._without(name, held, given), list(held.lost)
                if told.batch not in again:
                    anew = {name: Delivered(held.batch, held.lineage)}
        self._due[name] = _Due(again, given_up, given.give)
        return anew

    def _without(self, name: str, held: Held, given: _Given) -> list[int]:
        """Return what an outlet is given that goes on without what is lost: all that is kept."""
        is_view = name in self.outlets and self.outlets[name].mode == "delta"
        if is_view and held.last != given.told.last:
            raise StateError(
                f"{held.shown} must hold its view to go on, and it is lost; drop the table, and "
                f"write DROP QUERY IF EXISTS {name} before the query, for one run: it begins anew"
            )
        later = [batch for batch in given.kept if batch > held.batch]
        return later if held.repeatable and not held.unknown else []

    def begin(self, names: Iterable[str]) -> None:
        """Make sinks ready that were checked, and deliver what they miss."""
        for name in names:
            due = self._due.pop(name, None)
            if due is None:
                continue
            with usable(name):
                self._sink(name).begin(due.batches, due.given_up)
            for batch in sorted(due.batches):
                due.give(batch)

    def let_go(self, name: str) -> None:
        """Check that a sink that was checked misses nothing of a text with other columns.

        What went with its process does not come again.
        """
        due = self._due[name]
        if due.batches and self._sink(name).held() is not None:
            batches = ", ".join(map(str, sorted(due.batches)))
            raise StateError(
                f"what query '{name}' delivered before its text is replaced must have reached the "
                f"sink, but batch {batches} has not, and has other columns than the new text; "
                f"start once with the old text, and replace it then"
            )
        self._due[name] = _Due((), (), due.give)

    def _deliver_again(self, manifests: Mapping[int, Manifest], name: str, batch: int) -> None:
        self._deliver(manifests[batch], name)

    def _turn_again(self, turns: Mapping[int, Turn], name: str, number: int) -> None:
        self._deliver_turn(turns[number], name)

    def rewind(self, name: str, book: Mapping[str, Delivered]) -> str:
        """Take a sink back to where the book is; return a sentence that says what was done."""
        return self._sink(name).rewind(book.get(name, Delivered()))

    def forget(self, names: Iterable[str]) -> None:
        """Close outlets that were opened and not begun."""
        for name in names:
            with self._lane if is_lane(name) else nullcontext():  # a turn may be on its way
                if self.has(name):
                    self._sink(name).close()
                self.lanes.pop(name, None)
            self._due.pop(name, None)
            self.outlets.pop(name, None)
            for key in [key for key in self.rejects if reject_outlet(*key) == name]:
                del self.rejects[key]

    def has(self, name: str) -> bool:
        """Whether an outlet is open."""
        aside = any(reject_outlet(*key) == name for key in self.rejects)
        return aside or name in self.outlets or name in self.lanes

    def _sink(self, name: str) -> Sink:
        if name in self.outlets or name in self.lanes:
            return (self.outlets.get(name) or self.lanes[name]).sink
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

    # -- a turn of the lane ----------------------------------------------------------------------

    def deliver_turn(self, turn: Turn, queries: Iterable[str] | None = None) -> None:
        """Give a turn, which is in the journal, to the sinks of some queries, or of all.

        Turns must come in order, each before the next is put into the journal: so a sink misses
        one at most.  Queries without an outlet of the lane are passed over.
        """
        for query in turn.results if queries is None else queries:
            self._deliver_turn(turn, lane_outlet(query))

    def _deliver_turn(self, turn: Turn, name: str) -> None:
        """Give an outlet of the lane what a turn has for it."""
        with self._lane:
            outlet = self.lanes.get(name)
            if outlet is None or name not in turn.told:
                return
            table = turn.results[partner(name)]
            if outlet.sink.count(turn.number, table.num_rows):
                return
            shaped = shape(table, outlet.schema, outlet.mode, outlet.timestamps)
            hand_over(
                outlet.sink,
                Result(
                    name,
                    turn.number,
                    outlet.mode,
                    outlet.schema,
                    outlet.timestamps,
                    shaped,
                    lineage=turn.chain,
                ),
            )

    def _read(self, described: Mapping[str, Any]) -> pa.Table:
        place = described["place"]
        return read_segment(self._find(place["file"]), place)

    def close(self) -> None:
        """Close every sink."""
        for outlet in [*self.outlets.values(), *self.rejects.values(), *self.lanes.values()]:
            outlet.sink.close()


@dataclass(frozen=True)
class _Given:
    """What an outlet was given, what of it is kept, and how that is given again, by its number.

    ``lost`` is what must be given again where all that it got went with its process.
    """

    told: Delivered
    kept: Mapping[int, Delivered]
    lost: list[int]
    give: Callable[[int], None]


@dataclass(frozen=True)
class _Due:
    """What an outlet must be given when it begins, and what it goes on without, by numbers."""

    batches: Sequence[int]
    given_up: Sequence[int]
    give: Callable[[int], None]


def _led_to(told: Delivered, found: Mapping[int, Delivered]) -> dict[int, Delivered]:
    """Return the deliveries that led to one: others are of an earlier query of that name."""
    kept: dict[int, Delivered] = {}
    at = found.get(told.batch)
    while at is not None:
        kept[at.batch] = at
        at = found.get(at.before[0])
    return kept


@contextmanager
def usable(outlet: str) -> Iterator[None]:
    """Turn what files do not allow into a sentence."""
    query = outlet.partition("~")[0]
    try:
        with room_for(f"the sink of {query}"):
            yield
    except OSError as error:
        raise StateError(
            f"the sink of {query} must be one that can be written, but: {error}; nothing is lost: "
            f"correct it and run the same command again"
        ) from None


def hand_over(sink: Sink, result: Result) -> None:
    """Give a batch, or a turn, to a sink."""
    what = "lane-deliver" if result.is_turn else "sink"
    with usable(result.query):
        passing(f"{what}-before")
        sink.publish(result)
        passing(f"{what}-after")


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
