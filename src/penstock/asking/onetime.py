"""One-time queries: a question about one instant, answered from what the last batch committed.

Some relations are *kept*: materialized views, and queries that show their whole answer.  Their rows
lie in the runs of the newest manifest, each with both its ends, so their snapshot at any instant
``low <= t <= high`` is exact.  A question is bound as every query is; then every part of its plan
that is the plan of a kept relation is replaced by that relation's snapshot, and what is left, a
relational query over tables, runs here, with the same operators (`penstock.physical.once`).

All parts show the same instant: the one that was asked for, or the last one that is final in all of
them, at the latest the newest time that was seen.  By the snapshot law the answer is what a
continuous query of the same text would hold at that instant.

Nothing is locked and nothing written, so it may happen in any thread or process, whoever runs the
stream (`penstock.runs.reading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node, TableScan, Window
from penstock.asking.encoding import Declared
from penstock.catalog import Catalog, TableDef, written_tables
from penstock.cql.binding.once import Question
from penstock.cql.binding.times import MICROSECONDS, STAMPS, time_kinds
from penstock.cql.render import duration_text, time_text
from penstock.errors import StateError
from penstock.model import INF, MIN_TIME, Batch, one_array, to_numpy
from penstock.operators.output import HELD
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.nameless import canonical
from penstock.physical.once import answer_once, rows_at
from penstock.runs.kept import Kept
from penstock.runs.merging import Merging
from penstock.runs.state import State, Storage
from penstock.settings import Settings
from penstock.showing import html_table
from penstock.windows import WindowSpec

if TYPE_CHECKING:
    import pandas as pd

READABLE = ("kept", "view")
"""The modes of queries whose state holds their whole answer."""

_GOES = {"stream": "is a stream", "delta": "keeps its answer in a table of a database"}
"""What queries of other modes do; the rest hand their answers on in the words of their mode."""

_SHOWN = 20

TableReader = Callable[[TableDef], pa.Table]
Columns = tuple[pa.Array, ...]


@dataclass(frozen=True, repr=False)
class Snapshot:
    """The answer of a one-time query: rows, the instant they are valid at, and the batch.

    ``valid_at`` is a time in UTC, or an integer where the streams count time in integers; None if
    only tables were read.  ``batch`` is the number of the batch that the answer was taken from.
    """

    rows: pa.Table
    valid_at: datetime | int | None
    batch: int | None

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.rows

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        return self.rows.to_pandas()

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def note(self) -> str:
        """When the answer is valid, as a line for people."""
        if self.valid_at is None:
            return "from tables only: valid at any time"
        return f"valid at {self.valid_at}, batch {self.batch}"

    def __str__(self) -> str:
        shown = self.rows.slice(0, _SHOWN)
        columns = [
            [name, *("" if v is None else str(v) for v in column.to_pylist())]
            for name, column in zip(shown.column_names, shown.columns, strict=True)
        ]
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in zip(*columns, strict=True)
        ]
        if len(self) > _SHOWN:
            lines.append(f"… {len(self) - _SHOWN} more")
        return "\n".join([*lines, self.note])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows, _SHOWN, "", [self.note])


# What can be read


@dataclass(frozen=True)
class HeldRelation:
    """A relation that is kept: where its rows lie, and about which instants it can be asked.

    ``states`` are those of its output in every shard.  ``until`` is its heartbeat: everything below
    is final.
    """

    name: str
    plan: Node
    states: Sequence[Mapping[str, Any]]
    since: int | None = None
    paused: bool = False

    def _number(self, name: str) -> list[int]:
        return [s.get("numbers", {}).get(name, MIN_TIME) for s in self.states] or [MIN_TIME]

    @property
    def until(self) -> int:
        return min(self._number("since"))

    @property
    def low(self) -> int:
        began = MIN_TIME if self.since is None else self.since
        return max(*self._number(f"{HELD}.low"), began)

    @property
    def newest(self) -> int:
        return max(self._number("newest"))

    @property
    def readable(self) -> bool:
        return bool(self.states) and not self.paused and self.until > MIN_TIME

    def worth(self) -> tuple[bool, int]:
        """Return a key by which, of equal relations, the one that can tell most comes last."""
        return self.readable, -self.low

    def files(self) -> set[str]:
        """Return the segment files that hold its rows."""
        runs = (run for s in self.states for found in s["runs"].values() for run in found)
        return {run["place"]["file"] for run in runs if "file" in run["place"]}

    def snapshot(self, storage: Storage, time: int) -> Columns:
        """Return the columns of the rows that are valid at an instant, from all shards."""
        types = self.plan.schema.types
        parts = [
            Kept(State(storage, state), HELD, types, Merging()).snapshot(time)
            for state in self.states
        ]
        whole = Batch.concat(parts or [Batch.empty(types)])
        return tuple(one_array(column) for column in whole.columns)


def key_of(node: Node) -> Node:
    """Return what two plans have in common if they mean the same, whatever their names."""
    return canonical(drop_identities(node, frozenset()))


def kept_as(node: Node, kept: Mapping[Node, Any]) -> Any:
    """Return the entry of the relation that a plan is; a bare stream is everything so far."""
    found = kept.get(key_of(node))
    if found is None and algebra.is_stream(node):
        found = kept.get(key_of(Window(node, WindowSpec())))
    return found


def _announced(declared: Declared) -> dict[Node, str]:
    """Return the plans that are kept, or will be after the next batch, without names."""
    return {key_of(p): n for n, (p, mode) in declared.queries.items() if mode in READABLE}


def can_answer(question: Question, declared: Declared) -> bool:
    """Whether a question reads nothing but tables and what is kept, or will be."""
    return only_kept(question.plan, _announced(declared))


def only_kept(node: Node, kept: Mapping[Node, Any]) -> bool:
    """Whether a plan reads nothing but kept relations and tables."""
    if kept_as(node, kept) is not None or isinstance(node, TableScan):
        return True
    if isinstance(node, Window) or algebra.is_stream(node):
        return False
    return all(only_kept(below, kept) for below in algebra.inputs(node))


# The answer


@dataclass
class _Parts:
    """The plan of a question in which kept relations and tables stand for themselves."""

    held: dict[str, HeldRelation] = field(default_factory=dict)
    tables: dict[str, TableScan] = field(default_factory=dict)

    def put(self, node: Node, found: HeldRelation | TableScan) -> TableScan:
        """Return a scan of something that will be a table."""
        known: dict[str, Any] = self.held if isinstance(found, HeldRelation) else self.tables
        kind = "kept" if isinstance(found, HeldRelation) else "table"
        name = next((n for n, f in known.items() if f is found or f == found), None)
        if name is None:
            name = f"{kind} {len(known)}"
            known[name] = found
        return TableScan(name, node.schema)


def answer(
    question: Question,
    declared: Declared,
    held: Iterable[HeldRelation],
    storage: Callable[[set[str]], Storage],
    tables: TableReader,
    config: Settings,
    batch: int | None,
) -> Snapshot:
    """Answer a question; ``storage`` opens all files that are needed before any is read."""
    kept = {key_of(h.plan): h for h in sorted(held, key=HeldRelation.worth)}  # the best of equals
    parts = _Parts()
    plan = _Replacing(question, declared, kept, parts).of(question.plan)
    stamps = STAMPS in time_kinds(question.plan)
    time = _instant(question, parts, stamps)
    runs = storage(set().union(*(h.files() for h in parts.held.values())))
    columns: dict[str, Columns] = {}
    for name, found in parts.held.items():
        assert time is not None
        columns[name] = found.snapshot(runs, time)
    for name, scan in parts.tables.items():
        columns[name] = _table_columns(question, declared.catalog, scan, tables, time)
    rows = answer_once(plan, columns, config)
    shown = None if time is None else shown_time(time, stamps)
    return Snapshot(rows, shown, batch)


class _Replacing:
    """Puts scans in the place of kept relations and tables, the largest that there are."""

    def __init__(
        self,
        question: Question,
        declared: Declared,
        kept: Mapping[Node, HeldRelation],
        parts: _Parts,
    ) -> None:
        self._question = question
        self._declared = declared
        self._kept = kept
        self._parts = parts
        self._announced = _announced(declared)

    def of(self, node: Node, waiting: str | None = None) -> Node:
        """Return a plan over scans; ``waiting`` is the relation around it that will be kept."""
        found = kept_as(node, self._kept)
        if found is not None:
            return self._parts.put(node, found)
        if isinstance(node, TableScan):
            return self._parts.put(node, node)
        waiting = waiting or kept_as(node, self._announced)
        if isinstance(node, Window) or algebra.is_stream(node):
            if waiting is not None:
                raise StateError(
                    f"'{waiting}' must have a committed batch to be read, and it has none yet; ask "
                    f"again after its first batch"
                )
            self._refuse(node)
        below = tuple(self.of(n, waiting) for n in algebra.inputs(node))
        return algebra.with_inputs(node, below)

    def _refuse(self, node: Node) -> NoReturn:
        """Say that a part of the plan is not kept, and how it would be."""
        source, span = self._question.source, self._question.span_of(node)
        text = source.text(span)
        delivering = {n.lower(): mode for n, (_, mode) in self._declared.queries.items()}
        mode = delivering.get(text.lower())
        if mode is not None and mode not in READABLE:
            goes = _GOES.get(mode, f"hands its answer on as {mode}")
            source.fail(
                f"query '{text}' {goes} and keeps nothing that could be read here; CREATE "
                f"MATERIALIZED VIEW name AS with its text keeps its answer",
                span,
            )
        if span == self._question.span:
            source.fail(
                "this makes a stream, and a one-time query reads what is there at an instant; keep "
                "it in a window with CREATE MATERIALIZED VIEW name AS SELECT * FROM (..) [RANGE "
                "..], or run it continuously with CREATE QUERY name AS",
                span,
            )
        keep = f"CREATE MATERIALIZED VIEW name AS SELECT * FROM {text}"  # noqa: S608 (a sentence)
        source.fail(
            f"{text} is not kept, and a one-time query reads only what is; keep it with {keep}, or "
            f"run the whole query continuously with CREATE QUERY name AS",
            span,
        )


def _instant(question: Question, parts: _Parts, stamps: bool) -> int | None:
    """Return the instant that the answer is about; None if time does not matter."""
    held = list(parts.held.values())
    timed = any(t.valid_from is not None or t.valid_to is not None for t in parts.tables.values())
    if not held:
        if timed and question.as_of is None:
            question.source.fail(
                "a table with VALID FROM .. TO has other rows at other times; say when with AS OF",
                question.span,
            )
        return question.as_of if timed else None
    for relation in held:
        if not relation.readable:
            why = "it is paused" if relation.paused else "its streams have brought too little"
            raise StateError(
                f"nothing of '{relation.name}' can be read yet, because {why}; ask again later"
            )
    high = min(h.until for h in held) - 1
    low = max(h.low for h in held)
    if question.as_of is not None:
        if not low <= question.as_of <= high:
            outside = _outside(question.as_of, low, high, held, stamps)
            question.source.fail(outside, question.as_of_span)
        return question.as_of
    newest = max(h.newest for h in held)
    time = max(min(high, newest), low)
    if time > high:
        ranges = ", ".join(f"'{h.name}' {_range(h.low, h.until - 1, stamps)}" for h in held)
        raise StateError(
            f"all that a query reads must be kept for one instant, but there is {ranges}; KEEP "
            f"more of the faster one in CREATE MATERIALIZED VIEW name KEEP 1 MINUTE AS, or ask "
            f"again later"
        )
    return time


def _outside(time: int, low: int, high: int, held: Sequence[HeldRelation], stamps: bool) -> str:
    given = time_text(time, stamps)
    short = max(held, key=lambda h: h.low).name
    if time > high:
        return (
            f"AS OF must lie inside what is kept, {_range(low, high, stamps)}, got {given}, which "
            f"is not final yet; ask again later"
        )
    back = min(high, max(h.newest for h in held)) - time
    return (
        f"AS OF must lie inside what is kept, {_range(low, high, stamps)}, got {given}; CREATE "
        f"MATERIALIZED VIEW {short} KEEP {_at_least(back, stamps)} AS would have kept it"
    )


def _range(low: int, high: int, stamps: bool) -> str:
    first = "the beginning" if low == MIN_TIME else time_text(low, stamps)
    return f"from {first} on" if high >= INF - 1 else f"from {first} to {time_text(high, stamps)}"


def _at_least(duration: int, stamps: bool) -> str:
    """Return a duration that is at least as long, in a unit that people use."""
    unit = 1
    if stamps:
        known = [MICROSECONDS[u] for u in ("SECOND", "MINUTE", "HOUR", "DAY")]
        unit = next((u for u in known if duration <= 60 * u), known[-1])
    return duration_text(-(-duration // unit) * unit, stamps)


def shown_time(time: int, stamps: bool) -> datetime | int:
    """Return an instant as users see it."""
    if not stamps:
        return time
    try:
        return datetime(1970, 1, 1) + timedelta(microseconds=time)
    except OverflowError:
        return time


def _table_columns(
    question: Question, catalog: Catalog, scan: TableScan, tables: TableReader, time: int | None
) -> Columns:
    """Return the rows of a table, at an instant if they have one."""
    definition = catalog.tables.get(scan.table.lower()) or written_tables(scan).get(scan.table)
    if definition is None:
        question.source.fail(
            f"table '{scan.table}' is not declared any more, so its rows cannot be read",
            question.span_of(scan),
        )
    table = tables(definition)
    columns = tuple(one_array(column) for column in table.columns)
    for bound, at in (("from", scan.valid_from), ("to", scan.valid_to)):
        if at is not None:
            assert time is not None
            column = columns[at].cast(pa.int64())
            if bound == "from":
                valid = to_numpy(column.fill_null(MIN_TIME)) <= time
            else:
                valid = to_numpy(column.fill_null(INF)) > time
            columns = rows_at(columns, np.asarray(valid))
    return columns
