"""What a user has declared: streams, tables, sinks, views and queries, by lower-case name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.algebra import Node, Scan, TableScan, Window, walk
from penstock.errors import ConfigError, QueryError, suggest
from penstock.expr.nodes import Expr
from penstock.expr.own import FunctionDef
from penstock.extensions import extension
from penstock.masking import hide, hide_options
from penstock.model import TIMESTAMP, Field, Schema
from penstock.options import Secret, refers
from penstock.timing import TimeRules
from penstock.windows import WindowSpec


@dataclass(frozen=True)
class StreamDef:
    """``CREATE STREAM``: ``time`` is the position of the TIMESTAMP BY column, ``until`` of UNTIL.

    ``timing`` is what it says about time.  ``deadletter`` names the sink of rows that do not parse
    (``ON ERROR DEADLETTER sink``; None: fail), ``late`` that of late rows (``LATE INTO sink``;
    None: counted only).
    """

    name: str
    schema: Schema
    format: str
    options: Mapping[str, str] = field(repr=False)
    time: int
    timing: TimeRules = field(default_factory=TimeRules)
    priority: Expr | None = None
    deadletter: str | None = None
    late: str | None = None
    sql: str = field(default="", repr=False)
    until: int | None = None

    def __post_init__(self) -> None:
        hide_options(self.format, self.options)

    @property
    def scan(self) -> Scan:
        """The stream in a plan."""
        prioritised = self.priority is not None
        return Scan(self.name, self.schema, self.time, prioritised=prioritised)

    @property
    def relation(self) -> Node:
        """What its name means in FROM: the stream, or the relation that its rows' ends make."""
        if self.until is None:
            return self.scan
        return Window(self.scan, WindowSpec(until=self.until))


CLOCK = StreamDef(
    "_clock",
    Schema((Field("t", TIMESTAMP),)),
    "memory",
    {},
    time=0,
    timing=TimeRules(clock_lag=0),
)
"""The stream that queries over tables alone read: it has no rows and follows the clock."""


@dataclass(frozen=True)
class TableDef:
    """``CREATE TABLE``: a static table, read once; optional validity columns by position."""

    name: str
    schema: Schema
    format: str
    options: Mapping[str, str] = field(repr=False)
    valid_from: int | None = None
    valid_to: int | None = None
    sql: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        hide_options(self.format, self.options)


WRITTEN = "_values"
"""The format of tables whose rows stand in a query: VALUES."""


def written_name(schema: Schema, rows: Sequence[Sequence[Any]]) -> str:
    """Return the name of a table whose rows stand in a query: the same for the same rows."""
    kinds = [str(kind) for kind in schema.types]
    digest = hashlib.sha256(json.dumps([kinds, rows]).encode()).hexdigest()[:16]
    return f"{WRITTEN}_{digest}"


def written_tables(plan: Node) -> dict[str, TableDef]:
    """Return the tables of a plan whose rows stand in it, by name."""
    return {
        node.table: TableDef(node.table, node.schema, WRITTEN, {"rows": json.dumps(node.rows)})
        for node in walk(plan)
        if isinstance(node, TableScan) and node.rows is not None
    }


@dataclass(frozen=True)
class SinkDef:
    """``CREATE SINK``: where answers go. ``options['changes']`` is intervals, log or view."""

    name: str
    format: str
    options: Mapping[str, str] = field(repr=False)
    sql: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        hide_options(self.format, self.options)


@dataclass(frozen=True)
class ViewDef:
    """``CREATE VIEW``: a named plan that queries can read.

    A materialized one runs, and its answer is kept: ``keep`` is for how long in the past.
    """

    name: str
    plan: Node
    sql: str = ""
    keep: int | None = None


@dataclass(frozen=True)
class QueryDef:
    """``CREATE QUERY``: a continuous query and the sink it goes into (None: memory).

    A materialized view is a query too, whose answer goes nowhere: ``keep`` is not None.  ``within``
    are the seconds in which it wants its answers, ``weight`` is how much they count.  ``early``
    names the sink of EARLY INTO.
    """

    name: str
    plan: Node
    sink: str | None = None
    sql: str = ""
    keep: int | None = None
    within: float | None = None
    weight: float = 1.0
    early: str | None = None


Opened = TypeVar("Opened", StreamDef, TableDef, SinkDef)
Definition = StreamDef | TableDef | SinkDef | ViewDef | QueryDef | FunctionDef

_KINDS: dict[type, str] = {
    StreamDef: "stream",
    TableDef: "table",
    SinkDef: "sink",
    ViewDef: "view",
    QueryDef: "query",
    FunctionDef: "function",
}


@dataclass
class Catalog:
    """All definitions. Streams, tables and views share one name space; the others have their own.

    ``remembered`` are the queries that a checkpoint runs, declared here or not, in lower case.
    ``schemas`` finds the columns of a stream or table that lists none, by its kind, name, format
    and options.
    """

    streams: dict[str, StreamDef] = field(default_factory=dict)
    tables: dict[str, TableDef] = field(default_factory=dict)
    views: dict[str, ViewDef] = field(default_factory=dict)
    sinks: dict[str, SinkDef] = field(default_factory=dict)
    queries: dict[str, QueryDef] = field(default_factory=dict)
    remembered: frozenset[str] = frozenset()
    functions: dict[str, FunctionDef] = field(default_factory=dict)
    schemas: Callable[[str, str, str, Mapping[str, str]], Schema] | None = None

    def copy(self) -> Catalog:
        """Return a catalog with the same definitions, to which others can be added."""
        return Catalog(
            dict(self.streams),
            dict(self.tables),
            dict(self.views),
            dict(self.sinks),
            dict(self.queries),
            self.remembered,
            dict(self.functions),
            self.schemas,
        )

    def of_kind(self, kind: str) -> dict[str, Any]:
        """Return the dictionary of 'stream', 'table', 'view', 'sink', 'query' or 'function'."""
        found: dict[str, Any] = getattr(self, "queries" if kind == "query" else f"{kind}s")
        return found

    def add(self, definition: Definition) -> None:
        """Add a definition; its name must be free."""
        kind = _KINDS[type(definition)]
        check_name(kind, definition.name)
        rivals = ("stream", "table", "view") if kind in ("stream", "table", "view") else (kind,)
        if definition.name.lower() == CLOCK.name:
            raise QueryError(
                f"the name of a {kind} must be free, but '{CLOCK.name}' is the stream that follows "
                f"the clock; choose another name"
            )
        keep = definition.keep if isinstance(definition, ViewDef) else None
        for other in (*rivals, "query") if keep is not None else rivals:
            if definition.name.lower() in self.of_kind(other):
                raise QueryError(
                    f"the name of a {kind} must be free, but {other} '{definition.name}' exists; "
                    f"DROP it first or choose another name"
                )
        self.of_kind(kind)[definition.name.lower()] = definition
        if isinstance(definition, ViewDef) and keep is not None:
            query = QueryDef(definition.name, definition.plan, None, definition.sql, keep)
            self.queries[definition.name.lower()] = query

    def replace(self, definition: Definition) -> None:
        """Put a definition in the place of the one of its name and kind; add it if there is none.

        Names are compared without case, and the one that there is stays.
        """
        before = self.of_kind(_KINDS[type(definition)]).get(definition.name.lower())
        if before is None:
            self.add(definition)
            return
        places = {kind: list(self.of_kind(kind)) for kind in ("view", "query")}
        self.remove(_KINDS[type(definition)], definition.name)
        try:
            self.add(replace(definition, name=before.name))
        except QueryError:
            self.add(before)
            raise
        for kind, names in places.items():  # at the place where it was
            found = self.of_kind(kind)
            order = [n for n in names if n in found] + [n for n in found if n not in names]
            sorted_ = {name: found[name] for name in order}
            found.clear()
            found.update(sorted_)

    def get(self, kind: str, name: str) -> Any:
        """Return a definition, or say which ones exist."""
        found = self.of_kind(kind)
        if kind == "stream" and name == CLOCK.name:
            return CLOCK
        if not isinstance(name, str):
            raise QueryError(f"the name of a {kind} must be text, got {name!r}")
        if name.lower() not in found:
            raise QueryError(f"there is no {kind} '{name}'; {suggest(name, found)}")
        return found[name.lower()]

    def relation(self, name: str) -> Node:
        """Return what a name in FROM stands for: a stream, a table or the plan of a view."""
        known = [*self.streams, *self.tables, *self.views]
        found = self.streams.get(name.lower()) or self.tables.get(name.lower())
        match found or self.views.get(name.lower()):
            case StreamDef() as stream:
                return stream.relation
            case TableDef() as table:
                return TableScan(table.name, table.schema, table.valid_from, table.valid_to)
            case ViewDef() as view:
                return view.plan
        raise QueryError(f"there is no stream, table or view '{name}'; {suggest(name, known)}")

    def remove(self, kind: str, name: str) -> None:
        """Remove a definition that exists."""
        found = self.get(kind, name)
        del self.of_kind(kind)[name.lower()]
        if isinstance(found, ViewDef | QueryDef) and found.keep is not None:
            self.views.pop(name.lower(), None)
            self.queries.pop(name.lower(), None)


# Names

_LONGEST, _LONGEST_FILE = 100, 200

_LANE_WORDS = ("~lane", "~early")
"""How the outlet of a query's answers by the lane ends (`penstock.runs.deliveries`)."""


def check_name(kind: str, name: str) -> None:
    """Check the name of a definition: names become parts of the names of files and folders."""
    told = None
    if not 1 <= len(name) <= _LONGEST:
        told = f"got {len(name)}" + (f": '{name[:20]}…'" if name else "")
    elif not name.isprintable():
        told = f"got {name!r}, with characters that cannot be printed"
    elif not name.strip(". "):
        told = f"got '{name}', which is only dots or spaces"
    elif len(quote(name, safe=" ")) > _LONGEST_FILE:
        told = (
            f"got '{name[:20]}…', which would be too long in the name of a file, where each byte "
            f"of characters other than a-z, A-Z, 0-9 and _ takes three"
        )
    if told is not None:
        raise QueryError(
            f"the name of a {kind} must have 1 to {_LONGEST} characters that can be printed and "
            f"are not all dots or spaces, {told}"
        )
    taken = next((word for word in _LANE_WORDS if word in name.lower()), None)
    if kind in ("query", "view") and taken is not None:
        raise QueryError(
            f"the name of a query must not have '{taken}' in it, under which answers by the lane "
            f"are kept apart, got '{name}'; choose another name"
        )


def folder_name(name: str) -> str:
    """Return a name as that of a folder: what would lead elsewhere is written as %XX."""
    return re.sub(r"^\.|[/\\%\x00-\x1f]", lambda match: f"%{ord(match[0]):02X}", name)


# Secrets that a script only refers to


def packaged_format(group: str, what: str, kind: str, wanted: type[Any]) -> Any:
    """Return the format that an installed package brings under a name; None if none does."""
    try:
        found = extension(group, kind)
    except Exception as error:
        raise ConfigError(
            f"the package that brings the {what} format {kind} must be one that can be imported, "
            f"but: {type(error).__name__}: {error}"
        ) from error
    if found is not None and not isinstance(found, wanted):
        raise ConfigError(
            f"the entry point {kind} of {group} must name a {wanted.__name__}, got "
            f"{type(found).__name__}"
        )
    return found


def has_references(definition: StreamDef | TableDef | SinkDef) -> bool:
    """Whether some option of a definition only says where its value is."""
    return any(_refers(definition, k, v) for k, v in definition.options.items())


def opened(definition: Opened) -> Opened:
    """Return a definition with the secrets that its options refer to; they are written nowhere."""
    if not has_references(definition):
        return definition
    options: dict[str, str] = {}
    for name, value in definition.options.items():
        options[name] = value
        if _refers(definition, name, value):
            kind = _KINDS[type(definition)]
            owner = f"the option {name} of {kind} {definition.name}"
            options[name] = Secret(_resolved(owner, str(value)))
            hide(options[name])
    return replace(definition, options=options)


def _refers(definition: StreamDef | TableDef | SinkDef, name: str, value: str) -> bool:
    return refers(definition.format, name, str(value), isinstance(value, Secret))


def _resolved(owner: str, reference: str) -> str:
    kind, _, place = reference.partition(":")
    if kind == "env":
        found = os.environ.get(place)
        if found is None:
            raise ConfigError(
                f"{owner} must be in the environment variable {place}, but there is no such "
                f"variable; set it before the start"
            )
        return found
    try:
        text = Path(place).read_text()
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"{owner} must be in the file '{place}', but it cannot be read: {told}; write it there "
            f"or correct the path"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
