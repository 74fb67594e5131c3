"""Whole queries to algebra: set operations, relation-to-stream operators, names in FROM.

One SELECT block is bound by `cql.binding.select`.  A query that reads a stream without a window
and changes nothing, such as ``SELECT * FROM s``, is bound to the bare `Scan`, so that a window put
on a view or sub-query of it is a window on the stream itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.algebra import (
    EVERY,
    Distinct,
    Node,
    Over,
    Project,
    SetOp,
    SortKey,
    TableScan,
    ToStream,
    UnionAll,
    Window,
    is_stream,
    pulses_of,
    streams_of,
    without_ends,
)
from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql.binding.areas import inside, inside_of
from penstock.cql.binding.clock import beside_clock
from penstock.cql.binding.doubts import doubt_limit
from penstock.cql.binding.inner import Inner
from penstock.cql.binding.map_keys import refuse_map_keys
from penstock.cql.binding.newest import newest_item
from penstock.cql.binding.over import has_over, time_columns, window_ends
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.select import SelectBinder, position, top_k
from penstock.cql.binding.times import WindowBinder, check_one_kind, find_column, time_kinds
from penstock.cql.binding.values import bind_values
from penstock.cql.grammar.syntax import (
    AreaSyntax,
    Body,
    FromItem,
    Name,
    OrderItem,
    QuerySyntax,
    SelectQuery,
    SetQuery,
    Span,
    StreamOf,
    ValuesSyntax,
    WindowSyntax,
)
from penstock.errors import suggest
from penstock.expr.functions import coerce
from penstock.expr.nodes import Column, Expr
from penstock.expr.types import common_type, type_name
from penstock.windows import Bounds, WindowSpec


class QueryBinder:
    """Binds queries against a catalog; ``names`` are those of WITH.

    ``around`` is the scope of the query around a sub-query.  ``places`` notes the plan of every
    item of FROM, and where it stands.
    """

    def __init__(
        self,
        source: Script,
        catalog: Catalog,
        names: Mapping[str, Node] | None = None,
        around: Scope | None = None,
    ) -> None:
        self.source = source
        self.catalog = catalog
        self.names = dict(names or {})
        self.around = around
        self.deferred: dict[str, QuerySyntax] = {}
        self.places: list[tuple[Node, Span]] = []
        self.is_once = False
        self.delivered: SelectQuery | None = None

    def top(self, query: QuerySyntax) -> Node:
        """Return the plan of a query that is delivered: a relation unless it says ISTREAM or so."""
        self.delivered = _outermost(query)
        plan = self.query(query)
        self._check_names(plan, query)
        if is_stream(plan) and not _says_stream(query):
            return Window(plan, WindowSpec())
        return plan

    def once(self, query: QuerySyntax) -> Node:
        """Return the plan of a query that is answered once: it may be ordered without a limit."""
        self.is_once = True
        inner = query
        while isinstance(inner.body, QuerySyntax) and not (
            inner.order or inner.names or inner.cuts
        ):
            inner = inner.body
        return self.top(replace(inner, limit=EVERY) if inner.order and not inner.cuts else query)

    def view(self, query: QuerySyntax) -> Node:
        """Return the plan of a query that others read."""
        plan = self.query(query)
        self._check_names(plan, query)
        return plan

    def _check_names(self, plan: Node, query: QuerySyntax) -> None:
        refuse_map_keys(self.source, plan, query.span)
        seen: set[str] = set()
        for name in plan.schema.names:
            if name.lower() in seen:
                self.source.fail(
                    f"the output has two columns '{name}'; give it another name with AS",
                    _output_span(query, name),
                )
            seen.add(name.lower())

    def query(self, query: QuerySyntax) -> Node:
        """Return the plan of any query."""
        if query.names:
            inner = self._within(self.around)
            for name, part in query.names:
                if name.text.lower() in {n.text.lower() for n, _ in query.names if n is not name}:
                    self.source.fail(f"WITH names '{name.text}' twice", name.span)
                if newest_item(part) is not None:
                    inner.deferred[name.text.lower()] = part
                else:
                    inner.names[name.text.lower()] = inner.view(part)
            return inner.query(replace(query, names=()))
        if query.order and not query.cuts:
            self.source.refuse(
                "a relation that changes over time has no order; add LIMIT k", query.order_span
            )
        if not self.is_once:
            doubt_limit(self.source, query.limit, query.order, query.limit_span)
        if isinstance(query.body, SelectQuery):
            return self._block(query.body).bind(query)
        plan = self.body(query.body)
        return top_k(plan, self._order_by_output(query.order, plan), query)

    def _order_by_output(self, order: tuple[OrderItem, ...], plan: Node) -> tuple[SortKey, ...]:
        binder = ScalarBinder(self.source, Scope.of("", plan.schema), "ORDER BY")
        keys = []
        for item in order:
            at = position(self.source, item.expr, len(plan.schema), "ORDER BY")
            if at is None:
                expr = binder.bind(item.expr)
            else:
                expr = Column(at, plan.schema[at].type, plan.schema[at].name)
            keys.append(SortKey(expr, item.descending, item.nulls_first))
        return tuple(keys)

    def body(self, body: Body) -> Node:
        """Return the plan of a query without its ORDER BY and LIMIT."""
        match body:
            case SelectQuery():
                return self._block(body).bind()
            case SetQuery():
                return self._set_query(body)
            case ValuesSyntax():
                return bind_values(self.source, body)
            case StreamOf(kind, query, _):
                plan = self.query(query)
                if kind == "istream" and isinstance(plan, Over):
                    return plan
                if not self.is_once:
                    plan = beside_clock(plan)
                if not streams_of(plan):
                    self.source.fail(
                        f"{kind.upper()} must be of something that changes; this reads no stream",
                        body.span,
                    )
                return ToStream(kind, plan, pulses_of(plan) if kind == "rstream" else ())
        return self.query(body)

    def _set_query(self, body: SetQuery) -> Node:
        left, right = self.body(body.left), self.body(body.right)
        check_one_kind(self.source, (left, right), body.span)
        left, right = self._aligned(body, left, right)
        if body.kind != "union":
            return SetOp(body.kind, body.all, left, right)
        chained = isinstance(body.left, SetQuery) and body.left.kind == "union" and body.left.all
        members = left.members if chained and isinstance(left, UnionAll) else (left,)
        union = UnionAll((*members, right))
        return union if body.all else Distinct(union)

    def _aligned(self, body: SetQuery, left: Node, right: Node) -> tuple[Node, Node]:
        word = body.kind.upper()
        if len(left.schema) != len(right.schema):
            self.source.fail(
                f"both sides of {word} must have the same number of columns, got "
                f"{len(left.schema)} and {len(right.schema)}",
                body.span,
            )
        types = []
        for at, (a, b) in enumerate(zip(left.schema.fields, right.schema.fields, strict=True), 1):
            shared = common_type(a.type, b.type)
            if shared is None:
                self.source.fail(
                    f"column {at} of {word} must have one type, got {type_name(a.type)} "
                    f"('{a.name}') and {type_name(b.type)} ('{b.name}'); CAST one of them",
                    body.span,
                )
            types.append(shared)
        return converted(left, types), converted(right, types)

    def _within(self, around: Scope | None) -> QueryBinder:
        """Return the binder of a query inside this one."""
        inner = QueryBinder(self.source, self.catalog, self.names, around)
        inner.places, inner.is_once, inner.delivered = self.places, self.is_once, self.delivered
        inner.deferred = dict(self.deferred)
        return inner

    def _block(self, block: SelectQuery) -> SelectBinder:
        return SelectBinder(self.source, block, self, self.around)

    def inner(self, query: QuerySyntax, around: Scope) -> Inner:
        """Return a sub-query in an expression; just a SELECT block may depend on what is around."""
        binder = self._within(around)
        body: Body = query
        cut = None
        while isinstance(body, QuerySyntax) and not body.names and cut is None:
            if body.cuts and not isinstance(body.body, SelectQuery):
                break
            if body.order and not body.cuts:
                binder.query(body)
            cut = body if body.cuts else None
            body = body.body
        if not isinstance(body, SelectQuery):
            return Inner.of(binder.query(query))
        if cut is not None and not self.is_once:
            doubt_limit(self.source, cut.limit, cut.order, cut.limit_span)
        return SelectBinder(self.source, body, binder, around, open=True).inner(cut)

    # ---- FROM items

    def item(self, item: FromItem) -> tuple[str, Node]:
        """Return the name by which an item's columns are qualified, and its plan."""
        if isinstance(item.source, Name):
            kind, node = self._named(item.source)
            qualifier, owner = item.source.text, f"{kind} {item.source.text}"
        else:
            node, qualifier, owner = self.query(item.source), "", "the sub-query"
        if item.alias is not None:
            qualifier = item.alias.text
        if item.window is not None:
            if not streams_of(node):
                self.source.fail(
                    f"a window must be over a stream, and {owner} is static; leave the window out",
                    item.window.span,
                )
            node = self._windowed(node, item.window, owner)
        read = item.window or item.source if isinstance(item.source, Name) else item
        self.places.append((node, (item.span[0], read.span[1])))
        return qualifier, node

    def closes(self, node: Node) -> bool:
        """Whether a stream of a plan closes parts of itself, by punctuations."""
        found = (self.catalog.streams.get(name.lower()) for name in streams_of(node))
        return any(stream.timing.closing for stream in found if stream is not None)

    def owner(self, item: FromItem) -> StreamDef | TableDef | None:
        """Return the stream or table whose rows an item of FROM has; None: those of a query."""
        name = item.rows_of or item.source
        if not isinstance(name, Name) or name.text.lower() in self.names:
            return None
        key = name.text.lower()
        return self.catalog.streams.get(key) or self.catalog.tables.get(key)

    def _windowed(self, node: Node, window: WindowSyntax, owner: str) -> Node:
        """Return a relation through a window."""
        node = without_ends(node)
        if window.descriptor is not None:
            self._check_descriptor(node, window.descriptor, owner)
        binder = WindowBinder(self.source, node.schema, next(iter(time_kinds(node))), owner)
        spec = binder.bind(window)
        if not window.closed:
            held = Window(node, spec)
            return held if window.area is None else self._inside(held, window.area)
        start = Bounds(binder.time_type, names=("window_start",))
        end = Bounds(binder.time_type, names=("window_end",))
        over = ToStream("dstream", Window(node, replace(spec, bounds=start)))
        return Window(over, WindowSpec(now=True, bounds=end))

    def _inside(self, held: Node, area: AreaSyntax) -> Node:
        """Return what a window holds inside an area."""
        if area.item is None:
            return inside(self.source, held, area)
        name, other = self.item(area.item)
        if isinstance(area.item.source, Name) and is_stream(other):
            owner = area.item.source.text
            self.source.fail(
                f"an area moves with the rows of a window, and {owner} without one is all that "
                f"ever came; write OF {owner} [ROWS 1] for its newest row, or [PARTITION BY k ROWS "
                f"1] for that of each k",
                area.item.span,
            )
        return inside_of(self.source, held, area, name, other)

    def _check_descriptor(self, node: Node, name: Name, owner: str) -> None:
        """Refuse a column other than the one that a relation counts time by."""
        times = time_columns(node)
        found = find_column(self.source, node.schema, name, owner)
        if found in window_ends(node):
            self.source.refuse(
                f"the rows of a window come at its end, so a window that ends where the next one "
                f"begins would be counted to that one; write (..) [RANGE T SLIDE T], whose windows "
                f"include their end, in place of DESCRIPTOR({name.text})",
                name.span,
            )
        if found in times:
            return
        known = [node.schema[i].name for i in sorted(times)]
        if not known:
            self.source.fail(
                f"DESCRIPTOR must name a column that holds the time at which a row comes, and "
                f"{owner} has none; write it with a window in square brackets, such as [TUMBLE T]",
                name.span,
            )
        self.source.fail(
            f"DESCRIPTOR must name the time column of {owner}, {known[0]}, got {name.text}; write "
            f"DESCRIPTOR({known[0]})",
            name.span,
        )

    def _named(self, name: Name) -> tuple[str, Node]:
        key = name.text.lower()
        if key in self.names:
            return "query", self.names[key]
        if (stream := self.catalog.streams.get(key)) is not None:
            return "stream", stream.relation
        if (table := self.catalog.tables.get(key)) is not None:
            scan = TableScan(table.name, table.schema, table.valid_from, table.valid_to)
            return "table", scan
        if (view := self.catalog.views.get(key)) is not None:
            return "view", view.plan
        if key in self.catalog.queries:
            self.source.fail(
                f"'{name.text}' is a query, and FROM reads streams, tables and views; CREATE VIEW "
                f"with its text to read it here",
                name.span,
            )
        known = [
            d.name
            for found in (self.catalog.streams, self.catalog.tables, self.catalog.views)
            for d in found.values()
        ]
        self.source.fail(
            f"there is no stream, table or view '{name.text}'; "
            f"{suggest(name.text, [*known, *self.names])}",
            name.span,
        )


def converted(node: Node, types: Sequence[pa.DataType]) -> Node:
    """Return the relation with its columns converted to ``types``."""
    if node.schema.types == tuple(types):
        return node
    if isinstance(node, Project):
        given: tuple[Expr, ...] = node.exprs
        below = node.input
    else:
        given = tuple(Column(at, f.type, f.name) for at, f in enumerate(node.schema.fields))
        below = node
    exprs = tuple(coerce(e, to) for e, to in zip(given, types, strict=True))
    return Project(below, exprs, node.schema.names)


def _says_stream(query: QuerySyntax) -> bool:
    """Whether the outermost operator is ISTREAM, DSTREAM or RSTREAM, or a window function."""
    if query.cuts:
        return False
    if isinstance(query.body, QuerySyntax):
        return _says_stream(query.body)
    if isinstance(query.body, SelectQuery):
        block = query.body
        return has_over([*(item.expr for item in block.items), block.qualify])
    return isinstance(query.body, StreamOf)


def _outermost(query: QuerySyntax) -> SelectQuery | None:
    """Return the block that names the columns of a query; VALUES name themselves."""
    body: Body = query
    while not isinstance(body, SelectQuery):
        match body:
            case ValuesSyntax():
                return None
            case QuerySyntax():
                body = body.body
            case StreamOf():
                body = body.query
            case SetQuery():
                body = body.left
    return body


def _output_span(query: QuerySyntax, name: str) -> Span:
    """Return where the last output column of a name was written, else the whole query."""
    body = _outermost(query)
    if body is None:
        return query.span
    for item in reversed(body.items):
        if item.star:
            return item.span
        if item.alias is not None and item.alias.text.lower() == name.lower():
            return item.alias.span
        if item.alias is None and item.expr is not None and item.expr.name.lower() == name.lower():
            return item.span
    return body.items[-1].span
