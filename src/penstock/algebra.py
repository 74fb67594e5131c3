"""The logical operators, all of them: frozen dataclasses with a schema and a check when built.

A node is data.  It knows neither Arrow files nor Spark.  `inputs` lists the nodes it reads;
`update_pattern` gives the class of [E 2.3] that EXPLAIN shows.

A `Scan`, a `ToStream` and an `Over` are streams; everything else is a relation that changes over
time.  A stream that is read without a window is the relation of everything so far (``[s, INF)``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, get_args

import pyarrow as pa

from penstock.errors import QueryError
from penstock.expr.frames import ORDINALS, OverCall, RankCall
from penstock.expr.nodes import AggregateCall, Column, Expr, shift
from penstock.model import INF, Field, Schema
from penstock.windows import WindowSpec


@dataclass(frozen=True)
class Mark:
    """What packing adds to the rows of a scan, for plans that take the lane.

    Columns behind those of the scan: the time of the row and, of a stream with priorities, the turn
    in which the lane answered it, 0 if it did not, and for each other leaf how far the lane saw it
    then.  ``leaf`` is one of ``leaves`` leaves of the plan; ``siblings`` are the streams through
    which rows of each leaf meet those of this one, its own none.  ``first`` is the first batch of
    the query: what the lane answered before it was not for it.
    See `penstock.physical.lane_plan`.
    """

    leaf: int
    leaves: int
    siblings: tuple[tuple[str, ...], ...]
    prioritised: bool
    first: int

    @property
    def columns(self) -> int:
        """How many columns it adds."""
        return 1 + self.leaves if self.prioritised else 1


@dataclass(frozen=True)
class Scan:
    """A declared stream: raw elements in order of ``(t, seq)``. ``time`` is its time column.

    The optimizer narrows a scan: ``columns`` are the positions it reads (None: all) and
    ``predicate``, over *all* declared columns, says which elements it needs.  ``schema`` is what is
    left.  ``prioritised``: the stream says PRIORITY; that changes no answer.  ``mark`` is what a
    plan adds that takes the lane.
    """

    stream: str
    schema: Schema
    time: int
    columns: tuple[int, ...] | None = None
    predicate: Expr | None = None
    narrowed_time: pa.DataType | None = None
    prioritised: bool = field(default=False, repr=False)  # no part of digests
    mark: Mark | None = field(default=None, repr=False)

    @property
    def time_type(self) -> pa.DataType:
        """The type of the time column, also when it is not read."""
        return self.narrowed_time or self.schema[self.time].type


@dataclass(frozen=True)
class TableScan:
    """A static table; rows are valid for all time, or from/to columns. VALUES have ``rows``."""

    table: str
    schema: Schema
    valid_from: int | None = None
    valid_to: int | None = None
    rows: tuple[tuple[Any, ...], ...] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Window:
    """Stream to relation. The input is a stream; any other relation is read as its ISTREAM.

    Rows of a derived stream that share a time are ordered by all their columns (nulls first).
    The bounds of a window, if it shows them, are columns behind those of the input.
    """

    input: Node
    spec: WindowSpec

    @property
    def schema(self) -> Schema:
        bounds = self.spec.bounds
        if bounds is None:
            return self.input.schema
        added = tuple(Field(name, bounds.type) for name in bounds.names)
        return Schema(self.input.schema.fields + added)


class SameColumns:
    """A node whose columns are those of its input."""

    input: Node

    @property
    def schema(self) -> Schema:
        return self.input.schema


class NewColumns:
    """A node whose columns are computed, each by an expression."""

    exprs: tuple[Expr, ...]
    names: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        pairs = zip(self.names, self.exprs, strict=True)
        return Schema(tuple(Field(name, expr.type) for name, expr in pairs))


@dataclass(frozen=True)
class Filter(SameColumns):
    """The rows for which the predicate is true (not null).

    ``undelivered``: it leaves out what the lane has delivered.
    """

    input: Node
    predicate: Expr
    undelivered: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.predicate.type != pa.bool_():
            raise QueryError(f"a condition must be BOOLEAN, got {self.predicate.type}")


@dataclass(frozen=True)
class Project(NewColumns):
    """New columns, each an expression over the input's columns."""

    input: Node
    exprs: tuple[Expr, ...]
    names: tuple[str, ...]


JOIN_KINDS = ("inner", "left", "right", "full", "semi", "anti")
JOIN_HINTS = ("", "multiway", "cascade")


class TwoSided:
    """What joins of two inputs have in common.

    A field named ``left_..`` or ``right_..`` holds expressions over the columns of that side; a
    ``residual``, where there is one, is over both, the left columns first.
    """

    left: Node
    right: Node
    left_keys: tuple[Expr, ...]
    right_keys: tuple[Expr, ...]

    def check_keys(self) -> None:
        """Check that keys that are compared have one type."""
        for a, b in zip(self.left_keys, self.right_keys, strict=True):
            if a.type != b.type:
                raise QueryError(f"join keys must have one type, got {a.type} and {b.type}")

    @property
    def restrictable(self) -> tuple[bool, bool]:
        """Whether a condition on the columns of a side may be tested on that side's rows before."""
        raise NotImplementedError

    @property
    def compares_whole_rows(self) -> tuple[bool, bool]:
        """Whether every column of a side counts, also one that nobody reads afterwards."""
        return False, False

    @property
    def row_by_row(self) -> tuple[bool, bool]:
        """Whether what a row of a side gives follows from it and the rows of the other side."""
        return True, False


@dataclass(frozen=True)
class Join(TwoSided):
    """A join: equal keys and a residual over the concatenated columns. Null keys never match.

    Empty key lists make a theta or cross join.  Both sides of a key pair have the same type.
    ``kind`` is one of `JOIN_KINDS`.  Of each snapshot, with "partner" meaning a row of the other
    side with equal keys for which the residual is true: *inner* gives every pair of partners;
    *left*, *right* and *full* also the rows of that side (of both) without a partner, with nulls
    for the other; *semi* the left rows with a partner, *anti* those without, left columns only.
    ``hint`` says how joins of three or more inputs are to be made; it changes no answer.
    """

    left: Node
    right: Node
    left_keys: tuple[Expr, ...]
    right_keys: tuple[Expr, ...]
    residual: Expr | None = None
    kind: str = "inner"
    hint: str = ""

    def __post_init__(self) -> None:
        self.check_keys()
        if self.kind not in JOIN_KINDS:
            raise QueryError(f"a join must be one of {', '.join(JOIN_KINDS)}, got {self.kind!r}")
        if self.hint not in JOIN_HINTS:
            raise QueryError(f"a hint must be one of {', '.join(JOIN_HINTS)}, got {self.hint!r}")

    @property
    def restrictable(self) -> tuple[bool, bool]:
        return self.kind not in ("right", "full"), self.kind in ("inner", "right")

    @property
    def row_by_row(self) -> tuple[bool, bool]:
        return self.restrictable

    @property
    def schema(self) -> Schema:
        if self.kind in ("semi", "anti"):
            return self.left.schema
        return Schema(self.left.schema.fields + self.right.schema.fields)


ASOF_OPERATORS = ("ge", "gt", "le", "lt")
ASOF_KINDS = ("inner", "left")


@dataclass(frozen=True)
class AsofJoin(TwoSided):
    """The nearest partner: each left row with at most one right row of the same snapshot.

    A candidate is a right row with equal keys for which ``left_at OPERATOR right_at`` is true;
    nulls never are.  With *ge* and *gt* the partner is the candidate with the greatest ``right_at``
    (the last one at or before), with *le* and *lt* the one with the least (the first at or after).
    Of several, it is the greatest row in the order of all columns of the right side, ascending,
    nulls first, NaN greatest.  ``kind`` is one of `ASOF_KINDS`: *left* keeps the left rows without
    a partner, with nulls for the right side; *inner* drops them.
    """

    left: Node
    right: Node
    left_keys: tuple[Expr, ...]
    right_keys: tuple[Expr, ...]
    left_at: Expr
    right_at: Expr
    operator: str = "ge"
    kind: str = "inner"

    def __post_init__(self) -> None:
        self.check_keys()
        if self.left_at.type != self.right_at.type:
            raise QueryError(
                f"ASOF JOIN must compare values of one type, got {self.left_at.type} and "
                f"{self.right_at.type}"
            )
        if self.operator not in ASOF_OPERATORS:
            raise QueryError(
                f"ASOF JOIN must compare by one of {', '.join(ASOF_OPERATORS)}, got "
                f"{self.operator!r}"
            )
        if self.kind not in ASOF_KINDS:
            raise QueryError(
                f"an ASOF JOIN must be one of {', '.join(ASOF_KINDS)}, got {self.kind!r}"
            )

    @property
    def restrictable(self) -> tuple[bool, bool]:
        return True, False  # all right rows decide who is nearest

    @property
    def compares_whole_rows(self) -> tuple[bool, bool]:
        return False, True  # ties

    @property
    def schema(self) -> Schema:
        return Schema(self.left.schema.fields + self.right.schema.fields)


@dataclass(frozen=True)
class Aggregate:
    """GROUP BY. Columns: the keys, then the aggregates. No keys: the global aggregate of SQL."""

    input: Node
    keys: tuple[Expr, ...]
    aggregates: tuple[AggregateCall, ...]
    names: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        types = [k.type for k in self.keys] + [a.type for a in self.aggregates]
        return Schema(tuple(Field(n, t) for n, t in zip(self.names, types, strict=True)))


@dataclass(frozen=True)
class Distinct(SameColumns):
    """Each value of a snapshot once.

    ``cut``: into how many rows the time of a value is cut does not matter to what reads them.
    """

    input: Node
    cut: bool = False


@dataclass(frozen=True)
class UnionAll:
    """Bag union: the counts add up. Inputs have the same types; names come from the first."""

    members: tuple[Node, ...]

    def __post_init__(self) -> None:
        for other in self.members[1:]:
            if other.schema.types != self.members[0].schema.types:
                raise QueryError("the inputs of UNION ALL must have the same column types")

    @property
    def schema(self) -> Schema:
        return self.members[0].schema


@dataclass(frozen=True)
class SetOp:
    """``kind`` is 'intersect' or 'except'; ``all`` keeps counts: min(k1,k2), max(k1-k2,0).

    Without ``all`` the inputs are taken as sets. (UNION is Distinct over UnionAll.)
    """

    kind: str
    all: bool
    left: Node
    right: Node

    def __post_init__(self) -> None:
        if self.left.schema.types != self.right.schema.types:
            raise QueryError(f"both sides of {self.kind.upper()} must have the same column types")

    @property
    def schema(self) -> Schema:
        return self.left.schema


@dataclass(frozen=True)
class SortKey:
    """One ORDER BY item. As in Spark, nulls come first ascending and last descending by default."""

    expr: Expr
    descending: bool = False
    nulls_first: bool = True


EVERY = 2**62
"""The limit of an order that has none."""


@dataclass(frozen=True)
class TopK(SameColumns):
    """ORDER BY .. LIMIT k OFFSET n: the first k of each snapshot behind the first n.

    Ties are broken by all columns ascending, nulls first, so that the answer is one.
    """

    input: Node
    order: tuple[SortKey, ...]
    limit: int
    offset: int = 0


class InGroups:
    """What nodes have in common that order the rows of each group of a snapshot.

    A group are the rows with equal ``partition``; nulls are equal.  Its rows are in the order of
    ``order``; ties are broken by all columns ascending, nulls first, so that the answer is one.
    Rows that are equal in ``order`` are peers.
    """

    input: Node
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]


@dataclass(frozen=True)
class Rank(InGroups):
    """Window functions over each snapshot: the columns of the input, then one per call."""

    input: Node
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    calls: tuple[RankCall, ...]
    names: tuple[str, ...]

    @property
    def schema(self) -> Schema:
        pairs = zip(self.names, self.calls, strict=True)
        added = tuple(Field(name, call.type) for name, call in pairs)
        return Schema(self.input.schema.fields + added)


@dataclass(frozen=True)
class GroupTop(InGroups):
    """The first rows of each group of a snapshot: those whose number is at most ``limit``.

    ``by`` says which number, one of `ORDINALS`.  It is the last column if ``names`` has its name.
    """

    input: Node
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    by: str
    limit: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.by not in ORDINALS:
            raise QueryError(
                f"rows must be numbered by one of {', '.join(ORDINALS)}, got {self.by}"
            )

    @property
    def schema(self) -> Schema:
        added = tuple(Field(name, pa.int64()) for name in self.names)
        return Schema(self.input.schema.fields + added)


@dataclass(frozen=True)
class ToStream(SameColumns):
    """Relation to stream: ``kind`` is 'istream', 'dstream' or 'rstream'.

    ``pulses`` holds ``(slide, origin)`` of every SLIDE by time below an RSTREAM; when empty,
    RSTREAM gives the snapshot at each instant at which the relation changed.  ``to_the_end``: all
    rows end, if not before then with time itself, so pulses go on until then.
    """

    kind: str
    input: Node
    pulses: tuple[tuple[int, int], ...] = ()
    to_the_end: bool = field(default=False, repr=False)  # only rules set it: no part of digests


@dataclass(frozen=True)
class Over(NewColumns):
    """Window functions: stream to stream, each element with what they give for it.

    ``exprs`` and ``predicate`` are over the columns of the input, and behind them one column per
    call.  An element for which the predicate is not true is left out; the functions count it
    nevertheless.  The elements are in the order of `Window`: by time, then by arrival, those of a
    derived stream by all columns.
    """

    input: Node
    calls: tuple[OverCall, ...]
    predicate: Expr | None
    exprs: tuple[Expr, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not is_stream(self.input):
            raise QueryError("OVER must read a stream, got a relation; read its ISTREAM")


Node: TypeAlias = (
    Scan
    | TableScan
    | Window
    | Filter
    | Project
    | Join
    | AsofJoin
    | Aggregate
    | Distinct
    | UnionAll
    | SetOp
    | TopK
    | Rank
    | GroupTop
    | ToStream
    | Over
)

Joining: TypeAlias = Join | AsofJoin
"""Every `TwoSided` node."""

NODES: tuple[type, ...] = get_args(Node)


def inputs(node: Node) -> tuple[Node, ...]:
    """Return the nodes that a node reads."""
    if isinstance(node, UnionAll):
        return node.members
    found = (getattr(node, f.name) for f in fields(node) if f.name in ("input", "left", "right"))
    return tuple(found)


def with_streams(node: Node, names: Mapping[str, str]) -> Node:
    """Return a plan that reads other streams of the same columns, told by their names."""
    if isinstance(node, Scan):
        return replace(node, stream=names.get(node.stream, node.stream))
    return with_inputs(node, tuple(with_streams(n, names) for n in inputs(node)))


def streams_with_priorities(node: Node) -> frozenset[str]:
    """Return the streams with a PRIORITY that a plan reads."""
    return frozenset(n.stream for n in walk(node) if isinstance(n, Scan) and n.prioritised)


def with_priorities(node: Node, streams: Collection[str]) -> Node:
    """Return a plan in which just the scans of these streams are prioritised."""
    if isinstance(node, Scan):
        told = node.stream in streams
        return node if told == node.prioritised else replace(node, prioritised=told)
    return with_inputs(node, tuple(with_priorities(n, streams) for n in inputs(node)))


def with_inputs(node: Node, new: tuple[Node, ...]) -> Node:
    """Return the same operator over other inputs."""
    if isinstance(node, UnionAll):
        return replace(node, members=new)
    names = [f.name for f in fields(node) if f.name in ("input", "left", "right")]
    changes: dict[str, Any] = dict(zip(names, new, strict=True))
    return replace(node, **changes) if names else node


def exprs_over(node: Joining, side: str) -> dict[str, tuple[Expr, ...]]:
    """Return the expressions over one side of a join, ``left`` or ``right``, by field."""
    found = {}
    for own in fields(node):
        if own.name.startswith(f"{side}_"):
            value = getattr(node, own.name)
            found[own.name] = value if isinstance(value, tuple) else (value,)
    return found


def shifted(node: Joining, side: str, places: dict[int, int]) -> dict[str, Any]:
    """Return the fields over one side of a join for other places of that side's columns."""
    moved: dict[str, Any] = {}
    for name, exprs in exprs_over(node, side).items():
        new = tuple(shift(e, places) for e in exprs)
        moved[name] = new if isinstance(getattr(node, name), tuple) else new[0]
    return moved


def keyed_inputs(node: Node) -> list[tuple[Node, tuple[Expr, ...]]]:
    """Return the inputs of a node whose rows must meet by keys, with these keys."""
    match node:
        case Aggregate():
            return [(node.input, node.keys)]
        case Rank() | GroupTop():
            return [(node.input, node.partition)]
        case Join() | AsofJoin():
            return [(node.left, node.left_keys), (node.right, node.right_keys)]
        case Distinct() | SetOp():
            columns = tuple(Column(i, kind) for i, kind in enumerate(node.schema.types))
            return [(below, columns) for below in inputs(node)]
    return []


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything below it, top first."""
    yield node
    for child in inputs(node):
        yield from walk(child)


def is_stream(node: Node) -> bool:
    """Whether the node is a stream rather than a relation."""
    return isinstance(node, Scan | ToStream | Over)


def without_ends(node: Node) -> Node:
    """Return the stream itself in place of the relation that the ends of its rows make of it."""
    return node.input if isinstance(node, Window) and node.spec.until is not None else node


def streams_of(node: Node) -> frozenset[str]:
    """Return the names of the streams that a plan reads."""
    return frozenset(n.stream for n in walk(node) if isinstance(n, Scan))


def pulses_of(node: Node) -> tuple[tuple[int, int], ...]:
    """Return ``(slide, origin)`` of every window by time with a SLIDE in the plan."""
    found = {
        (n.spec.slide, n.spec.pulses_from + (n.spec.shift or 0))
        for n in walk(node)
        if isinstance(n, Window) and n.spec.slide is not None
    }
    return tuple(sorted(found))


def is_mortal(node: Node) -> bool:
    """Whether every row surely starts and ends at a finite time."""
    match node:
        case Window(_, spec):
            bounded = spec.range is not None and spec.range < INF
            ends = (spec.fixed, spec.session, spec.hop)
            return bounded or spec.now or any(end is not None for end in ends)
        case Join(left, right, kind="left" | "anti"):
            return is_mortal(left)
        case Join(left, right, kind="right"):
            return is_mortal(right)
        case Join(left, right, kind="full"):
            return is_mortal(left) and is_mortal(right)
        case Join(left, right) | SetOp("intersect", _, left, right):
            return is_mortal(left) or is_mortal(right)
        case AsofJoin(left, right, kind=kind):
            return is_mortal(left) or (kind == "inner" and is_mortal(right))
        case SetOp(_, _, left, _):
            return is_mortal(left)
        case Aggregate(below, keys):
            return bool(keys) and is_mortal(below)
        case Scan() | TableScan() | ToStream() | Over():
            return False
    return all(is_mortal(below) for below in inputs(node))


PATTERNS = ("monotonic", "weakest", "weak", "strict")


def why_in_order(node: Node) -> str:
    """Say why an answer needs the original order of rows, where one row alone does not do."""
    match node:
        case Join():
            return f"a {node.kind} join needs the original order"
        case AsofJoin():
            return "ASOF JOIN needs the original order"
        case Aggregate():
            return "aggregates need the original order"
        case Distinct() | SetOp():
            return "DISTINCT, UNION, INTERSECT and EXCEPT need the original order"
        case TopK():
            return "ORDER BY .. LIMIT needs the original order"
        case Rank() | GroupTop():
            return "ranks need the original order"
        case Window(_, spec):
            if not spec.by_time:
                return "windows by rows and sessions need the original order"
            return "a window over a derived stream needs the original order"
        case ToStream():
            return "a stream made of a relation needs the original order"
        case UnionAll():
            return "a union of joins below another join needs the original order"
    return "window functions need the original order"


def update_pattern(node: Node) -> str:
    """Return monotonic, weakest, weak or strict [E 2.3]."""
    below = max((PATTERNS.index(update_pattern(n)) for n in inputs(node)), default=0)
    own = 0
    match node:
        case TableScan() if node.valid_to is not None:
            own = 2
        case Window(_, spec):
            own, below = PATTERNS.index(spec.pattern), 0
        case Join(kind="inner" | "semi") | Distinct():
            own = 2 if below else 0
        case Join() | AsofJoin() | Aggregate() | TopK() | Rank() | GroupTop() | SetOp():
            own = 3
        case UnionAll():
            own = 2 if below == 1 else 0
        case ToStream() | Over():
            below = 0
    return PATTERNS[max(own, below)]
