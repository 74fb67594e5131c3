"""Window functions of a SELECT block to the algebra: f(..) OVER (..) and QUALIFY.

Over an input of n columns the j-th distinct window function of a block is written as column
``n + j``, as aggregates are (`cql.binding.scalars`).  A block with window functions is a stream:
each element of what FROM and WHERE give, with what the functions say of it.

FROM gives a stream here, and its time orders all functions; what reads snapshots of a relation is
bound by `cql.binding.ranks`.  What only selects from a declared stream and computes columns
is that stream itself, with its order of arrival: conditions go into the `Scan`, columns into the
functions.
Anything else whose rows never leave is read as its ISTREAM.

``ROW_NUMBER() OVER (PARTITION BY k ORDER BY t DESC) <= n``, in QUALIFY or in the WHERE around a
sub-query, is the window ``[PARTITION BY k ROWS n]`` (`penstock.cql.binding.newest`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from sqlglot import exp

from penstock.algebra import (
    Aggregate,
    Filter,
    Join,
    Node,
    Over,
    Project,
    Scan,
    TableScan,
    ToStream,
    Window,
    inputs,
    is_stream,
    walk,
    with_inputs,
    without_ends,
)
from penstock.cql.binding.joining import all_of
from penstock.cql.binding.scalars import ScalarBinder, label
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import chronons, time_kinds
from penstock.cql.grammar.syntax import (
    Duration,
    FrameBound,
    FrameSyntax,
    OrderItem,
    OverSyntax,
    Scalar,
    Span,
    span_of,
)
from penstock.errors import suggest
from penstock.expr.aggregates import is_aggregate, resolve_aggregate
from penstock.expr.arrow import cannot_fail
from penstock.expr.frames import EVERYTHING, ORDINALS, PICKS, Frame, OverCall
from penstock.expr.functions import coerce
from penstock.expr.library import aggregates
from penstock.expr.nodes import Call, Case, Column, Expr, Literal, conjuncts, substitute
from penstock.expr.types import BIGINT, BOOLEAN, NULL, common_type, type_name
from penstock.windows import WindowSpec

TIME = "_time"
"""The name by which ORDER BY can mean the time of a stream's elements, as sinks call it."""

_MOST_ROWS = 1 << 60
_IN_FRAMES = ("count", "sum", "avg", "min", "max", *aggregates.VARIANCES)
_ALIASES = {"first": "first_value", "last": "last_value"}
_NO_END = (
    "needs all rows of a partition, and a stream has no end; put a window behind it, s [RANGE ..]"
)
_FUTURE = {
    "lead": "LEAD needs rows that have not come yet; use LAG, which looks back: LEAD(x) of a row "
    "is x of the next one, whose LAG is this row; over a window, s [RANGE ..], LEAD is known",
    "ntile": f"NTILE {_NO_END}",
    "percent_rank": f"PERCENT_RANK {_NO_END}",
    "cume_dist": f"CUME_DIST {_NO_END}",
}
_FOLLOWING = (
    "a frame with FOLLOWING needs rows that have not come yet, and a stream answers each row when "
    "it comes; let the frame end at CURRENT ROW, or put a window behind the stream, s [RANGE ..]"
)


@dataclass(frozen=True)
class Newest:
    """The ``most`` newest rows of each partition: a relation with all columns and functions.

    ``number`` is the column that numbers them, ``rest`` are the conditions that are left.
    """

    node: Node
    number: int
    most: int
    rest: list[Expr]


@dataclass(frozen=True)
class _Found:
    """A window function, how it was written, and whether it numbers from the newest row back."""

    call: OverCall
    name: str
    span: Span
    newest: bool = False


@dataclass
class Overs:
    """The window functions of one SELECT block, each once; they are columns from the width on.

    ``node`` is what FROM and WHERE give, ``windows`` are the named windows of the block.
    """

    source: Script
    node: Node
    scope: Scope
    windows: Mapping[str, OverSyntax]
    found: list[_Found] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.node.schema)

    @property
    def spans(self) -> list[Span]:
        """Where the window functions stand."""
        return [f.span for f in self.found]

    def column(self, node: Scalar) -> Expr:
        """Return the column that stands for a window function."""
        made = self._bind(node)
        calls = [f.call for f in self.found if f.newest == made.newest]
        if made.call not in calls:
            self.found.append(made)
        at = next(i for i, f in enumerate(self.found)
                  if f.call == made.call and f.newest == made.newest)  # fmt: skip
        return Column(self.width + at, made.call.type, made.name)

    # ---- one function

    def _bind(self, node: Scalar) -> _Found:
        name = str(node.this).lower()
        name = _ALIASES.get(name, name)
        span = span_of(node)
        if name in _FUTURE:
            self.source.refuse(_FUTURE[name], node.meta["name_span"])
        if name not in (*ORDINALS, *PICKS, "lag") and not is_aggregate(name):
            framed = [n for n, canonical in aggregates.NAMES.items() if canonical in _IN_FRAMES]
            known = [*framed, *PICKS, "lag", *ORDINALS]
            self.source.fail(
                f"'{name}' is not a window function; {suggest(name, known)}",
                node.meta["name_span"],
            )
        window = self._resolved(node.meta["over"], ())
        partition = self._partition(window)
        newest = self._ordered(window)
        frame = self._frame(window, name)
        ignore = bool(node.meta.get("ignore_nulls"))
        binder = ScalarBinder(self.source, self.scope, "a window function")
        counts = is_aggregate(name) and name not in PICKS
        if counts:
            call = self._aggregate(binder, name, node, partition, frame)
        elif name in PICKS:
            call = self._pick(binder, name, node, partition, frame)
        else:
            ahead = node.expressions[1:2]
            if name == "lag" and ahead and isinstance(ahead[0], exp.Neg):
                self.source.refuse(_FUTURE["lead"], span_of(ahead[0]))
            call = self._place(binder, name, node, partition)
        if ignore and call.name not in PICKS:
            self.source.refuse(
                f"IGNORE NULLS is known for LAST_VALUE and FIRST_VALUE, got {name.upper()}"
                + ("; aggregates skip nulls as they are" if counts else ""),
                span,
            )
        if ignore or call.ignore_nulls:
            call = replace(call, ignore_nulls=True)
            self._check_nulls(call, span)
        written = f"{label(self.source, node)} over {self.source.text(node.meta['over'].span)}"
        return _Found(call, written, span, newest)

    def _check_nulls(self, call: OverCall, span: Span) -> None:
        bounded = call.name == "first_value" and call.frame.start is not None
        if call.name == "nth_value" or bounded:
            self.source.refuse(
                "IGNORE NULLS is known for LAST_VALUE over any frame and for FIRST_VALUE over "
                "UNBOUNDED PRECEDING; filter the nulls away in a sub-query in FROM",
                span,
            )

    def _aggregate(
        self, binder: ScalarBinder, name: str, node: Scalar, keys: tuple[Expr, ...], frame: Frame
    ) -> OverCall:
        span = span_of(node)
        args, where = binder.arguments(name, node)
        distinct = bool(node.meta["distinct"])
        with self.source.at(span):
            found = resolve_aggregate(name, args, distinct, where)
        if distinct and found.name not in ("min", "max"):
            self.source.refuse(
                "there is no DISTINCT in window functions; put a window such as [PARTITION BY c "
                "ROWS 10] after the stream and use COUNT(DISTINCT ..) with GROUP BY",
                span,
            )
        if found.name not in _IN_FRAMES:
            self.source.refuse(
                f"{name.upper()} is not known with OVER; put a window such as [PARTITION BY c ROWS "
                f"10] after the stream and use it with GROUP BY",
                span,
            )
        ranged = frame.unit == "range" and frame.start is not None and frame.end > 0
        if found.name in ("min", "max") and ranged:
            self.source.refuse(
                f"{name.upper()} over RANGE BETWEEN must end at CURRENT ROW, unless it begins at "
                f"UNBOUNDED PRECEDING; use ROWS BETWEEN",
                span,
            )
        return OverCall(found.name, found.args, keys, frame, found.type)

    def _pick(
        self, binder: ScalarBinder, name: str, node: Scalar, keys: tuple[Expr, ...], frame: Frame
    ) -> OverCall:
        args = self._plain_arguments(name, node, 2)
        value = self._typed(binder.bind(args[0]), args[0])
        offset, ignore = 1, False
        if name == "nth_value":
            if len(args) != 2:
                self.source.fail("NTH_VALUE must have two arguments: NTH_VALUE(x, n)",
                                 span_of(node))  # fmt: skip
            offset = self._count(args[1], "the second argument of NTH_VALUE", 1)
        elif len(args) == 2:
            flag = binder.bind(args[1])
            if not isinstance(flag, Literal) or flag.type != BOOLEAN or flag.value is None:
                self.source.fail(
                    f"the second argument of {name.upper()} must be TRUE (ignore nulls) or FALSE",
                    span_of(args[1]),
                )
            ignore = bool(flag.value)
        return OverCall(name, (value,), keys, frame, value.type, offset, ignore)

    def _place(
        self, binder: ScalarBinder, name: str, node: Scalar, keys: tuple[Expr, ...]
    ) -> OverCall:
        if name in ORDINALS:
            if node.expressions or node.meta["star"]:
                self.source.fail(f"{name.upper()}() must have no arguments", span_of(node))
            return OverCall(name, (), keys, EVERYTHING, BIGINT)
        args = self._plain_arguments(name, node, 3)
        value = self._typed(binder.bind(args[0]), args[0])
        offset = 1
        if len(args) > 1:
            offset = self._count(args[1], f"the second argument of {name.upper()}", 0)
        default: Expr = Literal(None, value.type)
        if len(args) > 2:
            default = binder.bind(args[2])
            shared = common_type(value.type, default.type)
            if shared is None:
                self.source.fail(
                    f"the default of {name.upper()} must have the type of its first argument, "
                    f"{type_name(value.type)}, got {type_name(default.type)}; CAST it",
                    span_of(args[2]),
                )
            value, default = coerce(value, shared), coerce(default, shared)
        return OverCall(name, (value, default), keys, EVERYTHING, value.type, offset)

    def _plain_arguments(self, name: str, node: Scalar, most: int) -> list[Scalar]:
        if node.meta["distinct"] or node.meta["star"] or "filter" in node.meta:
            self.source.fail(
                f"DISTINCT, '*' and FILTER belong to aggregates, and {name} is not one",
                span_of(node),
            )
        args = list(node.expressions)
        if not 1 <= len(args) <= most:
            self.source.fail(
                f"{name.upper()} must have 1 to {most} arguments, got {len(args)}", span_of(node)
            )
        return args

    def _typed(self, value: Expr, node: Scalar) -> Expr:
        if value.type == NULL:
            self.source.fail("NULL needs a type here, such as CAST(NULL AS INT)", span_of(node))
        return value

    def _count(self, node: Scalar, what: str, least: int) -> int:
        text = str(node.this) if isinstance(node, exp.Literal) and not node.is_string else ""
        if not text.isdigit() or not least <= int(text) <= _MOST_ROWS:
            self.source.fail(
                f"{what} must be a whole number of at least {least}, got "
                f"{self.source.text(span_of(node))}",
                span_of(node),
            )
        return int(text)

    # ---- the window

    def _resolved(self, window: OverSyntax, seen: tuple[str, ...]) -> OverSyntax:
        """Return a window with the named one that it begins with put in."""
        if window.base is None:
            return window
        name = window.base.text.lower()
        if name not in self.windows or name in seen:
            known = [n for n in self.windows if n not in seen]
            advice = suggest(window.base.text, known) if known else "define it: WINDOW w AS (..)"
            self.source.fail(f"there is no window '{window.base.text}'; {advice}", window.base.span)
        base = self._resolved(self.windows[name], (*seen, name))
        for mine, theirs, word in (
            (window.partition, base.partition, "PARTITION BY"),
            (window.order, base.order, "ORDER BY"),
            (window.frame, base.frame, "a frame"),
        ):
            if mine and theirs:
                self.source.fail(
                    f"window '{window.base.text}' has {word} already; it can be said once",
                    window.span,
                )
        return OverSyntax(
            None,
            window.partition or base.partition,
            window.order or base.order,
            window.frame or base.frame,
            window.span,
        )

    def _binder(self, place: str) -> ScalarBinder:
        return ScalarBinder(self.source, self.scope, place)

    def _partition(self, window: OverSyntax) -> tuple[Expr, ...]:
        binder = self._binder("PARTITION BY")
        keys = [self._typed(binder.bind(node), node) for node in window.partition]
        return tuple(dict.fromkeys(keys))

    def _ordered(self, window: OverSyntax) -> bool:
        """Check that there is ORDER BY; return whether it is counted from the newest row."""
        if not window.order:
            self.source.fail(
                f"OVER must say ORDER BY {self._time_names()}, the time of the stream: the rows of "
                f"a stream have no end, and a window function looks back from each",
                window.span,
            )
        return window.order[0].descending

    def orders_otherwise(self, node: Scalar) -> bool:
        """Whether a function is ordered by more or other than the stream's time, from the first on.

        ROW_NUMBER may count from the newest row back.
        """
        order = self._resolved(node.meta["over"], ()).order
        if not order:
            return False
        back = order[0].descending and str(node.this).lower() != "row_number"
        return len(order) > 1 or back or not self._is_time(order[0])

    def _is_time(self, item: OrderItem) -> bool:
        node = item.expr
        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column):
            return False
        if str(node.this.this).lower() == TIME and not self.scope.has(TIME):
            return True
        bound = ScalarBinder(self.source, self.scope, "ORDER BY").bind(node)
        return isinstance(bound, Column) and bound.index in time_columns(self.node)

    def _time_names(self) -> str:
        times = time_columns(self.node)
        names = [c.name for c in self.scope.columns if c.index in times]
        return names[0] if names else TIME

    def _frame(self, window: OverSyntax, name: str) -> Frame:
        written = window.frame
        if written is None:
            return EVERYTHING
        if name in (*ORDINALS, "lag"):
            self._refuse_frame(written, name)
        start, end = self._bound(written, written.start), self._bound(written, written.end)
        if end is None:
            self.source.fail(
                "a frame must end at CURRENT ROW or n PRECEDING, got UNBOUNDED PRECEDING",
                written.end.span,
            )
        if start is not None and start < end:
            self.source.fail("a frame must not begin after its end", written.span)
        return Frame(written.unit, start, end)

    def _refuse_frame(self, written: FrameSyntax, name: str) -> NoReturn:
        self.source.fail(
            f"{name.upper()} has no frame; leave {self.source.text(written.span)} out",
            written.span,
        )

    def _bound(self, frame: FrameSyntax, bound: FrameBound) -> int | None:
        if bound.kind == "following":
            self.source.refuse(_FOLLOWING, bound.span)
        if bound.kind == "current":
            return 0
        value = bound.value
        if value is None:
            return None
        if frame.unit == "range":
            kind = next(iter(time_kinds(self.node)))
            return chronons(self.source, value, kind, "the stream", 0)
        return self._rows(value)

    def _rows(self, value: Duration) -> int:
        """Return a number of rows."""
        if value.unit is not None:
            self.source.fail(
                f"ROWS counts rows and has no unit, got {self.source.text(value.span)}; use RANGE "
                f"for a time",
                value.span,
            )
        if not value.number.isdigit() or int(value.number) > _MOST_ROWS:
            self.source.fail(
                f"a number of rows must be a whole number from 0 to 2**60, got {value.number}",
                value.span,
            )
        return int(value.number)

    # ---- the plan

    def plan(self, exprs: Sequence[Expr], names: Sequence[str], condition: Expr | None) -> Node:
        """Return the block as a stream; ``condition`` is that of QUALIFY."""
        stream, given = stream_of(self.node)
        columns = self._places(len(stream.schema), given)
        calls = tuple(_over(f.call, given) for f in self.found)
        made = tuple(substitute(e, columns) for e in exprs)
        predicate = None if condition is None else substitute(condition, columns)
        return Over(stream, calls, predicate, made, tuple(names))

    def everything(self) -> Node:
        """Return all columns of the input and all functions, as a stream."""
        names = [*self.node.schema.names, *(f.name for f in self.found)]
        types = [*self.node.schema.types, *(f.call.type for f in self.found)]
        columns = [Column(i, t, n) for i, (t, n) in enumerate(zip(types, names, strict=True))]
        return self.plan(columns, names, None)

    def _places(self, width: int, given: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return what the columns of the block's expressions are over the stream."""
        mine = [Column(width + j, f.call.type, f.name) for j, f in enumerate(self.found)]
        return (*given, *mine)

    @property
    def counts_back(self) -> bool:
        """Whether a function numbers from the newest row back."""
        return any(f.newest for f in self.found)

    def newest(self, condition: Expr | None) -> Newest | None:
        """Return the newest rows of each partition, if one number, counted back, is bounded."""
        at = next((i for i, f in enumerate(self.found) if f.newest), None)
        if at is None:
            return None
        mine = self.found[at]
        number = Column(self.width + at, mine.call.type, mine.name)
        most, rest = _upper_bound(number, [] if condition is None else conjuncts(condition))
        if most is None or any(f.newest for f in self.found[at + 1 :]):
            return None
        others = replace(self, found=[f for f in self.found if not f.newest])
        stream, given = stream_of(self.node)
        if others.found:
            stream = others.everything()
            given = tuple(Column(i, f.type, f.name) for i, f in enumerate(stream.schema))
        keys = [substitute(k, given) for k in mine.call.partition]
        positions = tuple(k.index for k in keys if isinstance(k, Column))
        if len(positions) < len(keys):
            return None
        window = Window(stream, WindowSpec(rows=most, partition_by=positions))
        functions = iter(given[self.width :])
        wide = [*given[: self.width]]
        wide += [Literal(1, BIGINT) if f.newest else next(functions) for f in self.found]
        names = [*self.node.schema.names, *(f.name for f in self.found)]
        return Newest(Project(window, tuple(wide), tuple(names)), number.index, most, rest)


def _over(call: OverCall, given: tuple[Expr, ...]) -> OverCall:
    return replace(
        call,
        args=tuple(substitute(a, given) for a in call.args),
        partition=tuple(dict.fromkeys(substitute(k, given) for k in call.partition)),
    )


def _upper_bound(number: Column, parts: list[Expr]) -> tuple[int | None, list[Expr]]:
    """Return the bound that conditions set to a number, and the conditions that are left."""
    for part in parts:
        if not isinstance(part, Call) or len(part.args) != 2:
            continue
        name, args = part.name, part.args
        if isinstance(args[0], Literal):
            name, args = {"ge": "le", "gt": "lt", "eq": "eq"}.get(name, ""), args[::-1]
        if args[0] != number or not isinstance(args[1], Literal) or args[1].value is None:
            continue
        value = args[1].value
        most = {"le": value, "lt": value - 1, "eq": value if value == 1 else 0}.get(name, 0)
        if isinstance(most, int) and most >= 1:
            return most, [p for p in parts if p is not part]
    return None, parts


def stream_of(node: Node) -> tuple[Node, tuple[Expr, ...]]:
    """Return the stream that a relation whose rows never leave is made of, and its columns."""
    own: tuple[Expr, ...] = tuple(Column(i, f.type, f.name) for i, f in enumerate(node.schema))
    node = without_ends(node)
    if is_stream(node):
        return node, own
    match node:
        case Project(below, exprs, _):
            stream, given = stream_of(below)
            if isinstance(stream, Scan):
                return stream, tuple(substitute(e, given) for e in exprs)
        case Filter(below, predicate):
            stream, given = stream_of(below)
            if isinstance(stream, Scan):
                wanted = substitute(predicate, given)
                if stream.predicate is not None:
                    wanted = _both(stream.predicate, wanted)
                return replace(stream, predicate=wanted), given
    return ToStream("istream", node), own


def elements(node: Node) -> Node:
    """Return a plan over the elements of streams, whatever ends their rows have."""
    match node:
        case Filter() | Project() | Join(kind="inner"):
            return with_inputs(node, tuple(elements(below) for below in inputs(node)))
    return without_ends(node)


def _both(first: Expr, second: Expr) -> Expr:
    """Return that both hold; the second is not evaluated where the first does not hold."""
    if cannot_fail(second):
        return all_of([first, second])
    return Case(((first, second),), Literal(False, BOOLEAN), BOOLEAN)


def time_columns(node: Node) -> frozenset[int]:
    """Return the columns that hold the time at which a row enters the relation."""
    match node:
        case Scan():
            return frozenset((node.time,))
        case Window(below, spec):
            return window_ends(node) | (frozenset() if spec.is_late else time_columns(below))
        case Filter(below, _) | ToStream("istream", below, _):
            return time_columns(below)
        case Aggregate():
            return window_ends(node)
        case Project(below, exprs, _) | Over(below, _, _, exprs, _):
            times = time_columns(below)
            return frozenset(
                i for i, e in enumerate(exprs) if isinstance(e, Column) and e.index in times
            )
        case Join(left, right, kind="inner") if _since_ever(right):
            return time_columns(left)
        case Join(left, right, kind="inner") if _since_ever(left):
            return frozenset(len(left.schema) + i for i in time_columns(right))
    return frozenset()


def window_ends(node: Node) -> frozenset[int]:
    """Return the columns that are ``window_end``, the time at which a window's rows come."""
    match node:
        case Window(below, spec) if spec.bounds is not None and spec.shift is None:
            names = enumerate(spec.bounds.names, len(below.schema))
            return frozenset(i for i, name in names if name == "window_end")
        case Filter(below, _) | ToStream("istream", below, _):
            return window_ends(below)
        case Aggregate(below, exprs) | Project(below, exprs):
            # a group of one window is there as long as the window
            ends = window_ends(below)
            found = enumerate(exprs)
            return frozenset(i for i, e in found if isinstance(e, Column) and e.index in ends)
    return frozenset()


def _since_ever(node: Node) -> bool:
    """Whether all rows of a relation are there from the beginning."""
    sources = [n for n in walk(node) if isinstance(n, Scan | TableScan)]
    return all(isinstance(n, TableScan) and n.valid_from is None for n in sources)


def has_over(nodes: Sequence[Scalar | None]) -> bool:
    """Whether any of some expressions holds a window function."""
    return any("over" in part.meta for node in nodes if node is not None for part in node.walk())
