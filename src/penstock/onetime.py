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

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node, Scan, TableScan, ToStream, Window
from penstock.catalog import Catalog, TableDef
from penstock.config import Config
from penstock.cql.once import Question, bind_question, parse_question
from penstock.cql.render import duration_text, in_timestamps, time_text
from penstock.cql.syntax import Parsed
from penstock.cql.times import MICROSECONDS
from penstock.encoding import Declared, declared_in
from penstock.errors import StateError
from penstock.model import INF, MIN_TIME, Batch, one_array, to_numpy
from penstock.operators.output import HELD
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.nameless import canonical
from penstock.physical.once import answer_once, rows_at
from penstock.runs.kept import Kept
from penstock.runs.manifest import Manifest
from penstock.runs.merging import Merging
from penstock.runs.reading import CheckpointReader
from penstock.runs.state import State, Storage
from penstock.spark.tables import whole_table
from penstock.windows import WindowSpec

if TYPE_CHECKING:
    import pandas as pd

READABLE = ("kept", "view")
"""The modes of queries whose state holds their whole answer."""

_SHOWN = 20

TableReader = Callable[[TableDef], pa.Table]
Columns = tuple[pa.Array, ...]


@dataclass(frozen=True)
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


# What can be read


@dataclass(frozen=True)
class Held:
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
    if isinstance(node, Scan | Window | ToStream):
        return False
    return all(only_kept(below, kept) for below in algebra.inputs(node))


# The answer


@dataclass
class _Parts:
    """The plan of a question in which kept relations and tables stand for themselves."""

    held: dict[str, Held] = field(default_factory=dict)
    tables: dict[str, TableScan] = field(default_factory=dict)

    def put(self, node: Node, found: Held | TableScan) -> TableScan:
        """Return a scan of something that will be a table."""
        known: dict[str, Any] = self.held if isinstance(found, Held) else self.tables
        kind = "kept" if isinstance(found, Held) else "table"
        name = next((n for n, f in known.items() if f is found or f == found), None)
        if name is None:
            name = f"{kind} {len(known)}"
            known[name] = found
        return TableScan(name, node.schema)


def answer(
    question: Question,
    declared: Declared,
    held: Iterable[Held],
    storage: Callable[[set[str]], Storage],
    tables: TableReader,
    config: Config,
    batch: int | None,
) -> Snapshot:
    """Answer a question; ``storage`` opens all files that are needed before any is read."""
    kept = {key_of(h.plan): h for h in held}
    parts = _Parts()
    plan = _replaced(question.plan, kept, parts, question, declared)
    time = _instant(question, parts)
    runs = storage(set().union(*(h.files() for h in parts.held.values())))
    columns: dict[str, Columns] = {}
    for name, found in parts.held.items():
        assert time is not None
        columns[name] = found.snapshot(runs, time)
    for name, scan in parts.tables.items():
        columns[name] = _table_columns(question, declared.catalog, scan, tables, time)
    rows = answer_once(plan, columns, config)
    shown = None if time is None else shown_time(time, in_timestamps(question.plan))
    return Snapshot(rows, shown, batch)


def _replaced(
    node: Node, kept: Mapping[Node, Held], parts: _Parts, question: Question, declared: Declared
) -> Node:
    """Return the plan with kept relations and tables as scans, the largest that there are."""
    found = kept_as(node, kept)
    if found is not None:
        return parts.put(node, found)
    if isinstance(node, TableScan):
        return parts.put(node, node)
    name = kept_as(node, _announced(declared))
    if name is not None:
        raise StateError(
            f"'{name}' must have a committed batch to be read, and it has none yet; ask again "
            f"after its first batch"
        )
    if isinstance(node, Scan | Window | ToStream):
        _refuse(node, question, declared)
    below = tuple(_replaced(n, kept, parts, question, declared) for n in algebra.inputs(node))
    return algebra.with_inputs(node, below)


def _refuse(node: Node, question: Question, declared: Declared) -> None:
    """Say that a part of the plan is not kept, and how it would be."""
    span = question.span_of(node)
    text = question.source.text(span)
    delivering = {n.lower(): mode for n, (_, mode) in declared.queries.items()}
    mode = delivering.get(text.split(" ", 1)[0].lower())
    if mode is not None and mode not in READABLE:
        goes = "is a stream" if mode == "stream" else f"hands its answer on as {mode}"
        question.source.fail(
            f"query '{text}' {goes} and keeps nothing that could be read; CREATE MATERIALIZED VIEW "
            f"name AS with its text keeps its answer",
            span,
        )
    keep = f"CREATE MATERIALIZED VIEW name AS SELECT * FROM {text}"  # noqa: S608 (a sentence)
    question.source.fail(
        f"{text} is not kept, and a one-time query reads only what is; keep it with {keep}, or run "
        f"the whole query continuously with CREATE QUERY name AS",
        span,
    )


def _instant(question: Question, parts: _Parts) -> int | None:
    """Return the instant that the answer is about; None if time does not matter."""
    held = list(parts.held.values())
    timed = any(t.valid_from is not None or t.valid_to is not None for t in parts.tables.values())
    if not held:
        if timed and question.as_of is None:
            question.source.fail(
                "a table with VALID FROM .. TO has other rows at other times; say when with AS OF",
                question.span,
            )
        return question.as_of
    stamps = in_timestamps(question.plan)
    for relation in held:
        if relation.paused or relation.until == MIN_TIME or not relation.states:
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


def _outside(time: int, low: int, high: int, held: Sequence[Held], stamps: bool) -> str:
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


def _readable(held: Held, stamps: bool) -> tuple[str, str]:
    """Return from when to when a relation can be read, as text."""
    if held.paused or held.until == MIN_TIME:
        return "paused" if held.paused else "nothing yet", ""
    first = "the beginning" if held.low == MIN_TIME else time_text(held.low, stamps)
    return first, "ever" if held.until == INF else time_text(held.until - 1, stamps)


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
    definition = catalog.tables.get(scan.table.lower())
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


# A checkpoint


class CheckpointView:
    """A checkpoint that is only read, while whoever owns it runs or when nobody does.

    It takes no lock, writes nothing, and starts neither Spark nor Java.  Each question is answered
    from the newest batch that is committed when it is asked.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        tables: TableReader = whole_table,
        config: Config | None = None,
    ) -> None:
        self._reader = CheckpointReader(folder)
        self._tables = tables
        self._config = config or Config()
        self._known: tuple[str, Declared] | None = None

    def query(self, text: str) -> Snapshot:
        """Answer a SELECT, which may say AS OF a time."""
        return self.ask(parse_question(text))

    def ask(self, parsed: Parsed, declared: Declared | None = None) -> Snapshot:
        """Answer a parsed SELECT, by what is ``declared`` now or was when the batch ended."""

        def work(manifest: Manifest) -> Snapshot:
            then = self._declared(manifest)
            now = declared or then
            question = bind_question(parsed, now.catalog, now.plans)
            return answer(
                question,
                now,
                _held(manifest, then),
                self._reader.runs,
                self._tables,
                self._config,
                manifest.batch,
            )

        found = self._reader.read(work)
        if found is not None:
            return found
        if declared is None:
            raise self._empty()
        question = bind_question(parsed, declared.catalog, declared.plans)
        nothing: list[Held] = []
        return answer(
            question, declared, nothing, self._reader.runs, self._tables, self._config, None
        )

    def relations(self) -> pa.Table:
        """Return what can be read: names, and from when to when."""

        def work(manifest: Manifest) -> list[Held]:
            return _held(manifest, self._declared(manifest))

        held = self._reader.read(work)
        if held is None:
            raise self._empty()
        spans = [_readable(h, in_timestamps(h.plan)) for h in held]
        return pa.table(
            [
                pa.array(column, pa.string())
                for column in (
                    [h.name for h in held],
                    [first for first, _ in spans],
                    [last for _, last in spans],
                    [", ".join(h.plan.schema.names) for h in held],
                )
            ],
            names=["relation", "from", "to", "columns"],
        )

    def _declared(self, manifest: Manifest) -> Declared:
        """Return what was declared when a batch was committed."""
        place = manifest.catalog
        if not place:
            raise StateError(
                f"the checkpoint {self._reader.folder} must say what is declared, but it was made "
                f"by an earlier version of Penstock; run one more batch on it"
            )
        known = self._known
        if known is None or known[0] != place["file"]:
            data = self._reader.runs([place["file"]]).bytes(place)
            known = self._known = (place["file"], declared_in(data))
        return known[1]

    def _empty(self) -> StateError:
        return StateError(
            f"a checkpoint must have a committed batch to be read, but {self._reader.folder} has "
            f"none; is it the folder that was given as --checkpoint?"
        )


def open_checkpoint(folder: str | os.PathLike[str]) -> CheckpointView:
    """Open the checkpoint of a session, here or in another process, for one-time queries."""
    return CheckpointView(folder)


def _held(manifest: Manifest, declared: Declared) -> list[Held]:
    """Return the relations that a manifest keeps."""
    found = []
    for name, (plan, mode) in declared.queries.items():
        known = manifest.queries.get(name)
        if mode in READABLE and known is not None:
            digest = known.get("node")
            states = [shard[digest] for shard in manifest.states if digest in shard]
            found.append(Held(name, plan, states, known["since"], known["paused"]))
    return found
