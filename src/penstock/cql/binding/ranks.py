"""Window functions over a relation to the algebra: at each instant, over the snapshot.

A block reads snapshots where rows of its FROM come and go, or where a function is not ordered by
the time of the stream alone; otherwise it is a stream (`penstock.cql.binding.over`).  Then it is a
relation: the rows that FROM, WHERE and GROUP BY give, with what the functions say of each at each
instant.
Functions with one PARTITION BY and ORDER BY are one `Rank`; several stand above one another.  A
bound on a number, ``WHERE r <= 10`` or QUALIFY, is found by the rule `optimizer.bound_ranks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.algebra import (
    Node,
    Project,
    Rank,
    SortKey,
    is_stream,
    streams_of,
    update_pattern,
)
from penstock.cql.binding.over import Overs
from penstock.cql.binding.scalars import Aggregates, ScalarBinder, label
from penstock.cql.binding.times import INTEGERS, STAMPS, chronons
from penstock.cql.grammar.syntax import (
    Duration,
    FrameBound,
    OverSyntax,
    Scalar,
    Span,
    span_of,
)
from penstock.errors import suggest
from penstock.expr.aggregates import is_aggregate
from penstock.expr.frames import (
    EVERYTHING,
    NUMBERS,
    ORDINALS,
    PICKS,
    SHIFTS,
    UP_TO_PEERS,
    Extent,
    RankCall,
)
from penstock.expr.library.aggregates import NAMES as AGGREGATES
from penstock.expr.nodes import Column, Expr, columns_of, shift
from penstock.expr.types import BIGINT, DATE, DOUBLE, is_integer, is_temporal

_DAY = 86_400_000_000
_FAR = 1 << 20
"""More columns than any block has aggregates."""

_ALIASES = {"first": "first_value", "last": "last_value"}


@dataclass(frozen=True)
class _Ranked:
    """A window function, its groups and their order, and how it was written."""

    call: RankCall
    partition: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    name: str
    span: Span

    @property
    def groups(self) -> tuple[tuple[Expr, ...], tuple[SortKey, ...]]:
        return self.partition, self.order


@dataclass
class Ranks(Overs):
    """The window functions of a block that reads snapshots, each once.

    Aggregates of the block may stand in them.  Until `placed` they are columns far behind the
    others, because nobody knows yet how many aggregates there are.
    """

    ranked: list[_Ranked] = field(default_factory=list)
    aggregates: Aggregates | None = None
    base: int = -1
    """How many columns were there when functions were numbered; -1: those of the input."""

    @property
    def spans(self) -> list[Span]:
        return [f.span for f in self.ranked]

    def column(self, node: Scalar) -> Expr:
        made = self._bind_ranked(node)
        known = [(f.call, f.groups) for f in self.ranked]
        if (made.call, made.groups) not in known:
            self.ranked.append(made)
            known.append((made.call, made.groups))
        at = known.index((made.call, made.groups))
        return Column(self.width + _FAR + at, made.call.type, made.name)

    def _binder(self, place: str) -> ScalarBinder:
        return ScalarBinder(self.source, self.scope, place, self.aggregates)

    def regroup(self, node: Node, keys: int, carried: Callable[[Expr, Span], Expr]) -> None:
        """Let the functions be over what a GROUP BY by so many keys has made of the input."""
        self.node, self.base = node, keys
        self.ranked = [
            replace(
                f,
                call=replace(f.call, args=tuple(carried(e, f.span) for e in f.call.args)),
                partition=tuple(carried(e, f.span) for e in f.partition),
                order=tuple(replace(k, expr=carried(k.expr, f.span)) for k in f.order),
            )
            for f in self.ranked
        ]

    def placed(self, expr: Expr) -> Expr:
        """Return an expression in which functions are the columns that `everything` gives them."""
        base = self.width if self.base < 0 else self.base
        places = {c: c for c in columns_of(expr) if c < base + _FAR}
        places |= {base + _FAR + j: self.width + j for j in range(len(self.ranked))}
        return shift(expr, places)

    # ---- one function

    def _bind_ranked(self, node: Scalar) -> _Ranked:
        name = str(node.this).lower()
        name = _ALIASES.get(name, name)
        if name not in (*NUMBERS, *PICKS, *SHIFTS) and not is_aggregate(name):
            known = [*AGGREGATES, *PICKS, *SHIFTS, *NUMBERS]
            self.source.fail(
                f"'{name}' is not a window function; {suggest(name, known)}",
                node.meta["name_span"],
            )
        if "ignore_nulls" in node.meta:
            self.source.refuse(
                "IGNORE NULLS and RESPECT NULLS are known over a stream ordered by its time; "
                "filter the nulls away in a sub-query in FROM",
                span_of(node),
            )
        window = self._resolved(node.meta["over"], ())
        partition, order = self._partition(window), self._order(window)
        if not order and name in (*NUMBERS, *SHIFTS):
            self.source.fail(
                f"{name.upper()} must say in which order: OVER (.. ORDER BY x DESC)", window.span
            )
        call = self._call(name, node, window)
        written = f"{label(self.source, node)} over {self.source.text(node.meta['over'].span)}"
        return _Ranked(call, partition, order, written, span_of(node))

    def _call(self, name: str, node: Scalar, window: OverSyntax) -> RankCall:
        binder = self._binder("a window function")
        extent = self._extent(window, name)
        if is_aggregate(name) and name not in PICKS:
            made = self._aggregate(binder, name, node, (), EVERYTHING)
        elif name in PICKS:
            made = self._pick(binder, name, node, (), EVERYTHING)
            if made.ignore_nulls:
                self.source.refuse(
                    f"{name.upper()} over a relation takes nulls as they are; filter them away in "
                    f"a sub-query in FROM",
                    span_of(node),
                )
        elif name == "ntile":
            args = self._plain_arguments(name, node, 1)
            buckets = self._count(args[0], "the argument of NTILE", 1)
            return RankCall(name, (), extent, BIGINT, buckets)
        elif name in NUMBERS and name not in ORDINALS:
            if node.expressions or node.meta["star"]:
                self.source.fail(f"{name.upper()}() must have no arguments", span_of(node))
            return RankCall(name, (), extent, DOUBLE)
        else:
            made = self._place(binder, name, node, ())
        return RankCall(made.name, made.args, extent, made.type, made.offset)

    # ---- the window

    def _order(self, window: OverSyntax) -> tuple[SortKey, ...]:
        binder = self._binder("ORDER BY")
        return tuple(
            SortKey(
                self._typed(binder.bind(item.expr), item.expr), item.descending, item.nulls_first
            )
            for item in window.order
        )

    def _extent(self, window: OverSyntax, name: str) -> Extent:
        written = window.frame
        if written is None:
            return UP_TO_PEERS
        if name in (*NUMBERS, *SHIFTS):
            self._refuse_frame(written, name)
        start = self._offset(window, written.start)
        end = self._offset(window, written.end)
        if start is None and written.start.kind == "following":
            self.source.fail("a frame must not begin at UNBOUNDED FOLLOWING", written.start.span)
        if end is None and written.end.kind == "preceding":
            self.source.fail("a frame must not end at UNBOUNDED PRECEDING", written.end.span)
        if start is not None and end is not None and start > end:
            self.source.fail("a frame must not begin after its end", written.span)
        return Extent(written.unit, start, end)

    def _offset(self, window: OverSyntax, bound: FrameBound) -> int | None:
        if bound.kind == "current":
            return 0
        if bound.value is None:
            return None
        assert window.frame is not None
        if window.frame.unit == "range":
            size = self._distance(self._order(window), bound, bound.value)
        else:
            size = self._rows(bound.value)
        return size if bound.kind == "following" else -size

    def _distance(self, order: tuple[SortKey, ...], bound: FrameBound, value: Duration) -> int:
        """Return a distance in units of the key that the rows are ordered by."""
        kind = order[0].expr.type if len(order) == 1 else None
        if kind is None or not (is_integer(kind) or is_temporal(kind)):
            self.source.fail(
                "RANGE with a distance must be over rows that are ordered by one column, which is "
                "a whole number, a DATE or a TIMESTAMP; use ROWS, or RANGE with UNBOUNDED and "
                "CURRENT ROW",
                bound.span,
            )
        if is_integer(kind) or (kind == DATE and value.unit is None):
            return chronons(self.source, value, INTEGERS, "ORDER BY", 0)
        size = chronons(self.source, value, STAMPS, "ORDER BY", 0)
        if kind != DATE:
            return size
        if size % _DAY:
            self.source.fail(
                f"a distance between dates must be whole days, got {self.source.text(value.span)}",
                value.span,
            )
        return size // _DAY

    # ---- the plan

    def everything(self) -> Node:
        """Return all columns of the input and all functions, as a relation."""
        node = self.node
        place: dict[int, int] = {}
        for partition, order in self._groups():
            mine = [i for i, f in enumerate(self.ranked) if f.groups == (partition, order)]
            place |= {i: len(node.schema) + at for at, i in enumerate(mine)}
            calls = tuple(self.ranked[i].call for i in mine)
            names = tuple(self.ranked[i].name for i in mine)
            node = Rank(node, partition, order, calls, names)
        order_of = [*range(self.width), *(place[i] for i in range(len(self.ranked)))]
        if order_of == list(range(len(node.schema))):
            return node
        fields = [node.schema[at] for at in order_of]
        exprs = tuple(Column(at, f.type, f.name) for at, f in zip(order_of, fields, strict=True))
        return Project(node, exprs, tuple(f.name for f in fields))

    def _groups(self) -> list[tuple[tuple[Expr, ...], tuple[SortKey, ...]]]:
        """Return the different windows; those that number rows last, where a bound meets them."""
        found = dict.fromkeys(f.groups for f in self.ranked)
        numbering = {f.groups for f in self.ranked if f.call.name in ORDINALS}
        return sorted(found, key=lambda groups: groups in numbering)


def reads_snapshots(overs: Overs, nodes: Sequence[Scalar | None]) -> bool:
    """Whether the window functions in some expressions are over snapshots, not over a stream."""
    found = list(_functions(nodes))
    if not found:
        return False
    node = overs.node
    if not streams_of(node) or (not is_stream(node) and update_pattern(node) != "monotonic"):
        return True
    return any(overs.orders_otherwise(function) for function in found)


def _functions(nodes: Sequence[Scalar | None]) -> Iterator[Scalar]:
    for node in nodes:
        if node is not None:
            yield from (part for part in node.walk() if "over" in part.meta)
