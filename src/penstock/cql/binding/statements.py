"""What a statement asks for, bound and checked: the input of a session.

``warnings`` say what may not be meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.algebra import Node
from penstock.catalog import Definition, QueryDef
from penstock.cql.grammar.syntax import Parsed
from penstock.errors import QueryWarning


@dataclass(frozen=True)
class Create:
    """Add a definition. With ``if_not_exists`` nothing happens when the name is taken.

    With ``replaces`` it takes the place of the one of its name, if there is one.
    """

    definition: Definition
    if_not_exists: bool = False
    warnings: tuple[QueryWarning, ...] = ()
    replaces: bool = False


@dataclass(frozen=True)
class Drop:
    """Remove a stream, table, view, sink, query or function (``kind``).

    With ``if_exists`` it may be missing.
    """

    kind: str
    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class Pause:
    """Stop a query between two batches; it keeps its state."""

    name: str


@dataclass(frozen=True)
class Resume:
    """Let a paused query go on."""

    name: str


@dataclass(frozen=True)
class Change:
    """Give a setting another value, before anything runs or, if it can be, while queries run."""

    setting: str
    value: str


@dataclass(frozen=True)
class Insert:
    """Add rows to a stream USING memory."""

    stream: str
    rows: pa.Table


@dataclass(frozen=True)
class Show:
    """List 'queries', 'streams', 'tables', 'views', 'sinks' or 'functions' (``kind``)."""

    kind: str


@dataclass(frozen=True)
class Describe:
    """Tell about one definition; ``kind`` is that of `Drop`."""

    name: str
    kind: str


@dataclass(frozen=True)
class ShowCreate:
    """Give the text of one definition; ``kind`` as in `Describe`."""

    name: str
    kind: str


@dataclass(frozen=True)
class Explain:
    """Show a plan; ``level`` is 'logical', 'optimized', 'physical' or 'all' three.

    ``name`` is the declared query, None for a text given with the statement.  ``change`` is what
    would take the place of that query.
    """

    level: str
    plan: Node
    name: str | None = None
    warnings: tuple[QueryWarning, ...] = ()
    change: QueryDef | None = None


@dataclass(frozen=True)
class Select:
    """A query that stands alone, without a name."""

    plan: Node
    sql: str = ""
    warnings: tuple[QueryWarning, ...] = ()


@dataclass(frozen=True)
class Ask:
    """A query about one instant: ``SELECT .. AS OF``. What it reads is known when it is asked."""

    parsed: Parsed


Statement: TypeAlias = (
    Create
    | Drop
    | Pause
    | Resume
    | Change
    | Insert
    | Show
    | ShowCreate
    | Describe
    | Explain
    | Select
    | Ask
)
