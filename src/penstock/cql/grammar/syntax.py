"""The syntax tree of CQL: what the grammar found, nothing looked up yet.

Every node carries its span ``(start, end)`` in the script, so that whatever is wrong later can be
underlined.  Scalar expressions stay sqlglot nodes, with their span in ``meta["span"]``; everything
above them (queries, windows, statements) is one of the classes below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlglot import exp

Span: TypeAlias = tuple[int, int]

Scalar: TypeAlias = Any
"""A sqlglot expression node."""


def span_of(node: Scalar) -> Span:
    """Return the span of a sqlglot node, from its own note or from what it consists of."""
    own = node.meta.get("span")
    if own is not None:
        return (own[0], own[1])
    spans = [span_of(child) for child in node.iter_expressions()]
    spans = [s for s in spans if s != (0, 0)]
    if not spans:
        return (0, 0)
    return (min(s[0] for s in spans), max(s[1] for s in spans))


def conjuncts_of(condition: Scalar) -> list[Scalar]:
    """Split what was typed at AND, so that each part has its own span."""
    if isinstance(condition, exp.Paren):
        return conjuncts_of(condition.this)
    if isinstance(condition, exp.And):
        return conjuncts_of(condition.this) + conjuncts_of(condition.expression)
    return [condition]


@dataclass(frozen=True)
class Name:
    """A name, or another piece of text, as it was typed."""

    text: str
    span: Span


@dataclass(frozen=True)
class OptionValue(Name):
    """The value of an option; ``secret`` if the word SECRET stands before it."""

    secret: bool = False


@dataclass(frozen=True)
class Duration:
    """``5 SECONDS``, ``INTERVAL '5' SECONDS`` or a bare number (``unit`` is None)."""

    number: str
    unit: str | None
    span: Span


@dataclass(frozen=True)
class KeepingSyntax:
    """``AUTO KEEPING 99.9 %`` behind SLACK; None: the share is left out."""

    percent: str | None
    span: Span


@dataclass(frozen=True)
class PunctuationSyntax:
    """``PUNCTUATION WHEN condition TIME expr ON (columns) FOR duration``."""

    condition: Scalar
    time: Scalar | None
    on: tuple[Name, ...] = ()
    lasts: Duration | None = None


@dataclass(frozen=True)
class TimePoint:
    """A point in time: text such as ``'2024-01-01 00:00:00'`` or an integer."""

    value: str | int
    span: Span


@dataclass(frozen=True)
class WindowClause:
    """One part of a window, such as ``RANGE 10 SECONDS SLIDE 2 SECONDS``.

    ``value`` is None after ``UNBOUNDED`` and ``NOW``.
    """

    word: str
    value: Duration | TimePoint | None
    slide: Duration | None
    span: Span


@dataclass(frozen=True)
class PastSyntax:
    """``FROM NOW - start TO NOW - end``; no start is UNBOUNDED, no end is NOW."""

    start: Duration | None
    end: Duration | None
    span: Span


@dataclass(frozen=True)
class AreaSyntax:
    """``WITHIN (x, y) INSIDE shape(numbers) OF item``; a polygon's numbers are its corners'.

    Without an item the area stands still.
    """

    point: tuple[Scalar, Scalar]
    shape: Name
    numbers: tuple[Scalar, ...]
    span: Span
    item: FromItem | None = None


@dataclass(frozen=True)
class WindowSyntax:
    """What stands in square brackets; clauses by their upper-case word, in the order typed.

    A window made by a function also has the column of its ``descriptor``.  ``closed``: rows are
    there when their session is over.  ``in_order``: slide and size were told apart by their places.
    """

    partition_by: tuple[Name, ...]
    clauses: dict[str, WindowClause]
    origin: TimePoint | None
    span: Span
    offset: Duration | None = None
    descriptor: Name | None = None
    closed: bool = False
    in_order: bool = False
    shift: Duration | None = None
    past: PastSyntax | None = None
    area: AreaSyntax | None = None


@dataclass(frozen=True)
class StreamOf:
    """``ISTREAM (query)``, ``DSTREAM (query)`` or ``RSTREAM (query)``.

    It was ``written`` around the query, "before" it without parentheses, or "inside", behind
    SELECT.
    """

    kind: str
    query: QuerySyntax
    span: Span
    written: str = "around"


@dataclass(frozen=True)
class FromItem:
    """A name, a sub-query or a relation-to-stream operator, with its alias and window.

    ``join`` says how it was attached: ``first``, ``comma``, ``cross``, a kind of join, ``asof`` or
    ``asof left``; ``match`` is the ``MATCH_CONDITION`` of an ASOF JOIN.  ``rows_of`` is the name of
    which a sub-query that nobody wrote only selects rows.  ``columns`` are the names that the alias
    gives to its columns, none if it gives none.
    """

    source: Name | QuerySyntax
    alias: Name | None
    window: WindowSyntax | None
    join: str
    on: Scalar | None
    using: tuple[Name, ...]
    span: Span
    match: Scalar | None = None
    rows_of: Name | None = None
    columns: tuple[Name, ...] = ()


@dataclass(frozen=True)
class SelectItem:
    """An expression with or without alias, or a star (``star``) of all or of one FROM item.

    ``without`` are the columns of ``* EXCEPT (..)``, as expressions.
    """

    expr: Scalar | None
    alias: Name | None
    star: bool
    qualifier: Name | None
    span: Span
    without: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class OrderItem:
    """One ``ORDER BY`` item."""

    expr: Scalar
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class FrameBound:
    """One end of a frame: ``kind`` is current, preceding or following; no value is UNBOUNDED."""

    kind: str
    value: Duration | None
    span: Span


@dataclass(frozen=True)
class FrameSyntax:
    """``ROWS`` or ``RANGE BETWEEN start AND end``; ``unit`` in lower case."""

    unit: str
    start: FrameBound
    end: FrameBound
    span: Span


@dataclass(frozen=True)
class OverSyntax:
    """What stands behind OVER, or a named window; ``base`` is the named window it begins with."""

    base: Name | None
    partition: tuple[Scalar, ...]
    order: tuple[OrderItem, ...]
    frame: FrameSyntax | None
    span: Span


@dataclass(frozen=True)
class SelectQuery:
    """One SELECT block. ``sets`` are those of GROUPING SETS, ROLLUP and CUBE, if it has any.

    ``group_all``: it has GROUP BY ALL, and ``group_by`` is empty.
    """

    distinct: bool
    items: tuple[SelectItem, ...]
    sources: tuple[FromItem, ...]
    where: Scalar | None
    group_by: tuple[Scalar, ...] | None
    having: Scalar | None
    span: Span
    hint: str = ""
    qualify: Scalar | None = None
    windows: tuple[tuple[Name, OverSyntax], ...] = ()
    sets: tuple[tuple[Scalar, ...], ...] | None = None
    group_all: bool = False


@dataclass(frozen=True)
class SetQuery:
    """``left UNION|INTERSECT|EXCEPT [ALL] right``; ``kind`` in lower case."""

    kind: str
    all: bool
    left: Body
    right: Body
    span: Span


@dataclass(frozen=True)
class QuerySyntax:
    """A whole query: named sub-queries, a body, ORDER BY, LIMIT and OFFSET.

    ``as_of`` is the instant that a query which is a statement asks about.
    """

    body: Body
    order: tuple[OrderItem, ...]
    limit: int | None
    names: tuple[tuple[Name, QuerySyntax], ...]
    span: Span
    order_span: Span = (0, 0)
    as_of: TimePoint | None = None
    offset: int = 0
    limit_span: Span = (0, 0)

    @property
    def cuts(self) -> bool:
        """Whether it keeps some rows of an order only."""
        return self.limit is not None or self.offset > 0


@dataclass(frozen=True)
class ValuesSyntax:
    """``VALUES (a, b), (c, d)``: rows of constant expressions."""

    rows: tuple[tuple[Scalar, ...], ...]
    span: Span


Body: TypeAlias = SelectQuery | SetQuery | StreamOf | QuerySyntax | ValuesSyntax


@dataclass(frozen=True)
class ColumnSyntax:
    """A declared column: name and the text of its type."""

    name: Name
    type: Name


@dataclass(frozen=True)
class CreateSyntax:
    """Any ``CREATE [OR REPLACE]``. ``clauses`` is what was typed after the columns, by its name."""

    kind: str
    name: Name
    if_not_exists: bool
    columns: tuple[ColumnSyntax, ...]
    clauses: dict[str, Any]
    query: QuerySyntax | None
    span: Span
    or_replace: bool = False


@dataclass(frozen=True)
class AlterSyntax:
    """``ALTER QUERY name SET clauses`` or ``ALTER QUERY name AS query``."""

    name: Name
    clauses: dict[str, Any]
    query: QuerySyntax | None
    span: Span


@dataclass(frozen=True)
class DropSyntax:
    """``DROP kind [IF EXISTS] name``."""

    kind: str
    name: Name
    if_exists: bool
    span: Span


@dataclass(frozen=True)
class CommandSyntax:
    """``PAUSE``, ``RESUME`` and ``DESCRIBE`` (``name``), ``SHOW`` (``what``), ``SHOW CREATE``."""

    verb: str
    name: Name | None
    what: str
    span: Span


@dataclass(frozen=True)
class SetSyntax:
    """``SET setting = value``."""

    setting: Name
    value: str
    span: Span


@dataclass(frozen=True)
class InsertSyntax:
    """``INSERT INTO stream [(columns)] VALUES ..``."""

    name: Name
    columns: tuple[Name, ...]
    values: ValuesSyntax
    span: Span


@dataclass(frozen=True)
class ExplainSyntax:
    """``EXPLAIN [LOGICAL|OPTIMIZED|PHYSICAL|ANALYZE]`` of a declared query or of a query text.

    With ``change`` it is about a statement that would replace a query.
    """

    level: str
    name: Name | None
    query: QuerySyntax | None
    span: Span
    change: CreateSyntax | AlterSyntax | None = None


StatementSyntax: TypeAlias = (
    CreateSyntax
    | AlterSyntax
    | DropSyntax
    | CommandSyntax
    | SetSyntax
    | InsertSyntax
    | ExplainSyntax
    | QuerySyntax
)


@dataclass(frozen=True)
class Parsed:
    """One statement of a script: its syntax, the whole script and where it stands in it."""

    syntax: StatementSyntax
    script: str
    span: Span

    @property
    def sql(self) -> str:
        """The text of this statement alone."""
        return self.script[self.span[0] : self.span[1]]
