"""One SELECT block to algebra.

FROM items and WHERE -> joins (`penstock.cql.binding.joining`)
GROUP BY, HAVING     -> Aggregate, Filter (`penstock.cql.binding.grouping`)
SELECT               -> Project; none when it would change nothing
f(..) OVER, QUALIFY  -> Over (`penstock.cql.binding.over`) or Rank (`cql.binding.ranks`)
DISTINCT             -> Distinct
ORDER BY .. LIMIT    -> TopK
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from sqlglot import exp

from penstock.algebra import (
    EVERY,
    Aggregate,
    Distinct,
    Filter,
    Node,
    Project,
    SortKey,
    TopK,
    Window,
)
from penstock.catalog import StreamDef, TableDef
from penstock.cql.binding.asked import Placing, asked_in
from penstock.cql.binding.asof import AsofBinder
from penstock.cql.binding.chains import Chain
from penstock.cql.binding.doubts import doubt_groups, doubt_quotient_key
from penstock.cql.binding.grouping import (
    GROUPING_ID,
    Stray,
    after_grouping,
    grouping_sets,
    over_outputs,
)
from penstock.cql.binding.inner import OUTSIDE, Cut, Grouping, Inner, reads_outside
from penstock.cql.binding.joining import all_of, hinted
from penstock.cql.binding.newest import push_bound
from penstock.cql.binding.over import Overs, elements, has_over
from penstock.cql.binding.priorities import item_scope
from penstock.cql.binding.ranks import Ranks, reads_snapshots
from penstock.cql.binding.scalars import Aggregates, ScalarBinder, label
from penstock.cql.binding.scope import PRIORITY, Scope, ScopeColumn
from penstock.cql.binding.script import Script
from penstock.cql.binding.spark_windows import called, spark_window
from penstock.cql.binding.subqueries import (
    NOT_OUTSIDE,
    Asking,
    Conjuncts,
    partners,
    restrict,
    split,
)
from penstock.cql.binding.times import check_one_kind, element_time
from penstock.cql.grammar.syntax import (
    FromItem,
    Name,
    OrderItem,
    QuerySyntax,
    Scalar,
    SelectItem,
    SelectQuery,
    Span,
    span_of,
)
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, columns_of, conjuncts, shift
from penstock.expr.types import NULL

_FREE = ("first", "comma", "cross", "inner")
"""Ways to join that can be made in any order."""

_FILLING = ("left", "right", "full", "asof left")
"""Ways to join that fill the columns of an item with nulls."""

_BEFORE_COMMA = (
    "ON can name only what is joined since the last comma of FROM, because JOIN binds tighter than "
    "a comma; write CROSS JOIN in place of the comma"
)

Uses: TypeAlias = list[tuple[int, Scalar]]
"""Positions of the columns that an expression reads outside of aggregates, and where."""


@dataclass(frozen=True)
class _Bound:
    """A bound expression, where it stands, and the columns that it names.

    ``numbered``: nobody chose its name, so it may get a number where it is repeated.
    """

    expr: Expr
    span: Span
    uses: Uses
    name: str = ""
    numbered: bool = False


class Queries(Protocol):
    """What a SELECT block needs of the binder of whole queries.

    ``is_once``: the query is answered for one instant.
    """

    is_once: bool
    delivered: SelectQuery | None
    """The block whose columns a sink or a program gets."""

    deferred: dict[str, QuerySyntax]
    """Named queries that number rows from the newest back: bound where they are read."""

    def item(self, item: FromItem) -> tuple[str, Node]:
        """Bind an item of FROM: return its qualifier and its plan."""

    def owner(self, item: FromItem) -> StreamDef | TableDef | None:
        """Return the stream or table whose rows an item of FROM has; None: those of a query."""

    def inner(self, query: QuerySyntax, around: Scope) -> Inner:
        """Bind a sub-query in an expression."""

    def closes(self, node: Node) -> bool:
        """Whether a stream of a plan closes parts of itself, by punctuations."""


class SelectBinder:
    """Binds one SELECT block.

    ``around`` is the scope of the query around a sub-query.  If it is ``open``, conjuncts of WHERE
    may name its columns; they become ``conditions``, in which those columns have places from
    `OUTSIDE` on.  ``facts`` are conditions that hold for every row of the block.
    """

    def __init__(
        self,
        source: Script,
        block: SelectQuery,
        queries: Queries,
        around: Scope | None = None,
        open: bool = False,
    ) -> None:
        self.delivered = block is queries.delivered
        self.source = source
        block, window = spark_window(source, push_bound(block, queries.deferred))
        self.block = block
        self.shows_bounds = bool(window) or _may_show_bounds(source, block)
        self.queries = queries
        self.around = around
        self.open = open
        self.conditions: list[Expr] = []
        self.facts: list[Expr] = []
        self.node, self.scope = self._from()
        if window:
            self.scope = called(source, self.scope, window)
        self.node = hinted(self.node, block.hint)
        self.inputs = len(self.node.schema)
        self.aggregates = Aggregates(self.inputs, element_time(self.node))
        windows = {name.text.lower(): window for name, window in block.windows}
        self.overs = Overs(source, elements(self.node), self.scope, windows)
        functions = [*(i.expr for i in block.items), block.qualify]
        grouped = block.group_by is not None and has_over(functions)
        if grouped or reads_snapshots(self.overs, functions):
            self.overs = self._ranks()
        self.aliases: dict[str, Expr] = {}
        self.sets: list[frozenset[int]] = []

    def inner(self, cut: QuerySyntax | None) -> Inner:
        """Return the block as a sub-query in an expression, with the LIMIT of the query around."""
        block = self.block
        functions = [*(i.expr for i in block.items), block.qualify]
        if block.sets is not None or block.qualify is not None or has_over(functions):
            if self.conditions:
                self.source.refuse(
                    "a sub-query with window functions or GROUPING SETS cannot name columns of the "
                    "query around; join with it in FROM instead",
                    block.span,
                )
            return Inner.of(self.bind(cut))
        outputs = [bound for item in block.items for bound in self._outputs(item)]
        having = block.having
        found = None if having is None else self._bound(having, "HAVING", condition=True)
        grouped = block.group_by is not None or having is not None or bool(self.aggregates.calls)
        if not grouped and not block.distinct and cut is None:
            placing = Placing(self.node)
            values = tuple(placing.put([o.expr for o in outputs]))
            return Inner(placing.node, values, tuple(self.conditions), tuple(self.facts))
        whole = grouped and block.group_by is None
        if whole and cut is not None and cut.limit != 0 and not cut.offset:
            cut = None
        if not self.conditions and not (whole and cut is None):
            return Inner.of(self.bind(cut))
        return self._grouped_inner(outputs, found, cut, grouped)

    def _grouped_inner(
        self, outputs: list[_Bound], having: _Bound | None, cut: QuerySyntax | None, grouped: bool
    ) -> Inner:
        """Return a sub-query that is more than selected rows, and what it is outside of them."""
        block = self.block
        keys = self._keys(outputs)
        ordered = [] if cut is None else [self._order_key(i, outputs) for i in cut.order]
        if block.distinct and cut is not None:
            self.source.refuse(
                "a sub-query with DISTINCT and LIMIT cannot name columns of the query around; use "
                "GROUP BY in place of DISTINCT",
                block.span,
            )
        placing = Placing(self.node)
        grouping = None
        if grouped:
            outputs = [self._carried(bound, keys) for bound in outputs]
            ordered = [self._carried(bound, keys) for bound in ordered]
            names = (*(k.name for k in keys), *self.aggregates.names)
            exprs = tuple(placing.put([k.expr for k in keys]))
            calls = tuple(map(placing.call, self.aggregates.calls))
            kept = None if having is None else self._carried(having, keys).expr
            grouping = Grouping(exprs, calls, names, kept, block.group_by is None)
        values = tuple(o.expr for o in outputs)
        order = () if cut is None else sort_keys([o.expr for o in ordered], cut)
        limits = None if cut is None else Cut(order, cut.limit, cut.offset)
        conditions, facts = tuple(self.conditions), tuple(self.facts)
        return Inner(placing.node, values, conditions, facts, grouping, block.distinct, limits)

    def bind(self, query: QuerySyntax | None = None) -> Node:
        """Return the plan of the block, with the ORDER BY and LIMIT of the query around it."""
        block = self.block
        order = () if query is None else query.order
        outputs = [bound for item in block.items for bound in self._outputs(item)]
        outputs = self._told_apart(outputs)
        keys = self._keys(outputs)
        having = None
        if block.having is not None:
            having = self._bound(block.having, "HAVING", condition=True)
        qualify = None
        if block.qualify is not None:
            qualify = self._bound(block.qualify, "QUALIFY", condition=True)
        ordered = [self._order_key(item, outputs) for item in order]
        if self.aggregates.marked and block.sets is None:
            self.source.fail(
                "GROUPING and GROUPING_ID must stand beside GROUP BY GROUPING SETS, ROLLUP or CUBE",
                block.span,
            )
        placing, over = Placing(self.node), bool(self.overs.spans) or qualify is not None
        grouped = block.group_by is not None or having is not None or bool(self.aggregates.calls)
        if grouped and (not over or isinstance(self.overs, Ranks)):
            placing = self._aggregate(keys)
            outputs = [self._carried(bound, keys) for bound in outputs]
            ordered = [self._carried(bound, keys) for bound in ordered]
            qualify = None if qualify is None else self._carried(qualify, keys)
            if having is not None:
                kept = placing.one(self._carried(having, keys).expr)
                placing.node = Filter(placing.node, kept)
        if not over:
            return self._select(placing, outputs, ordered, query)
        if isinstance(self.overs, Ranks) and grouped:
            self.overs.regroup(
                placing.node,
                len(keys),
                lambda e, span: self._carried(_Bound(e, span, []), keys).expr,
            )
        return self._over(outputs, qualify, ordered, query)

    def _over(
        self,
        outputs: list[_Bound],
        qualify: _Bound | None,
        ordered: list[_Bound],
        query: QuerySyntax | None,
    ) -> Node:
        """Return a block with window functions: a stream, unless it says what makes a relation."""
        block, overs = self.block, self.overs
        if not overs.spans:
            assert block.qualify is not None
            self.source.fail(
                "QUALIFY must use a window function, f(..) OVER (..); use WHERE or HAVING",
                span_of(block.qualify),
            )
        if isinstance(overs, Ranks):
            return self._over_ranks(overs, outputs, qualify, ordered, query)
        if block.having is not None or self.aggregates.calls:
            self.source.refuse(
                "window functions over a stream and aggregates cannot stand in one SELECT; put the "
                "aggregates into a sub-query in FROM: (SELECT .. GROUP BY ..)",
                overs.spans[0],
            )
        bounds = [*outputs, *ordered, *([qualify] if qualify is not None else [])]
        for asked in asked_in(bound.expr for bound in bounds):
            self.source.refuse(
                "window functions over a stream and sub-queries cannot stand in one SELECT; put "
                "the window functions into a sub-query in FROM: (SELECT .. OVER ..)",
                asked.place.span,
            )
        condition = None if qualify is None else qualify.expr
        if overs.counts_back:
            newest = overs.newest(condition)
            if newest is None or (newest.most > 1 and any(
                newest.number in columns_of(bound.expr) for bound in [*outputs, *ordered]
            )):  # fmt: skip
                return self._over_snapshots(query)
            node = newest.node
            if newest.rest:
                node = Filter(node, all_of(newest.rest))
            return self._select(Placing(node), outputs, ordered, query)
        if not block.distinct and not (query is not None and query.cuts):
            exprs, names = [o.expr for o in outputs], [o.name for o in outputs]
            return overs.plan(exprs, names, condition)
        node = overs.everything()
        if condition is not None:
            node = Filter(node, condition)
        return self._select(Placing(node), outputs, ordered, query)

    def _over_ranks(
        self,
        ranks: Ranks,
        outputs: list[_Bound],
        qualify: _Bound | None,
        ordered: list[_Bound],
        query: QuerySyntax | None,
    ) -> Node:
        """Return a block whose window functions are over snapshots: a relation."""
        placing = Placing(ranks.everything())
        if qualify is not None:
            kept = placing.one(ranks.placed(qualify.expr))
            placing.node = Filter(placing.node, kept)
        outputs = [replace(bound, expr=ranks.placed(bound.expr)) for bound in outputs]
        ordered = [replace(bound, expr=ranks.placed(bound.expr)) for bound in ordered]
        return self._select(placing, outputs, ordered, query)

    def _over_snapshots(self, query: QuerySyntax | None) -> Node:
        """Bind the block again, with its window functions over snapshots."""
        self.aggregates, self.aliases = Aggregates(self.inputs, element_time(self.node)), {}
        self.overs = self._ranks()
        return self.bind(query)

    def _ranks(self) -> Ranks:
        windows = self.overs.windows
        return Ranks(self.source, self.node, self.scope, windows, aggregates=self.aggregates)

    def _bound(
        self, node: Scalar, place: str, condition: bool = False, aliases_first: bool = False
    ) -> _Bound:
        binder = ScalarBinder(
            self.source,
            self.scope,
            place,
            self.aggregates,
            self.aliases,
            aliases_first,
            None if place == "HAVING" else self.overs,
        )
        binder.asks = Asking(self.source, self.queries, self.scope)
        expr = binder.condition(node) if condition else binder.bind(node)
        return _Bound(expr, span_of(node), binder.uses)

    # ---- FROM and WHERE

    def _from(self) -> tuple[Node, Scope]:
        chain = Chain(self.source, self.queries.is_once)
        scope = Scope((), self.around, NOT_OUTSIDE)
        seen: set[str] = set()
        all_free = all(item.join in _FREE for item in self.block.sources)
        filled = any(item.join in _FILLING for item in self.block.sources)
        for item in self.block.sources:
            qualifier, node = self.queries.item(item)
            if isinstance(node, Window) and node.spec.hop is not None and not self.shows_bounds:
                node = replace(node, spec=replace(node.spec, bounds=None))
            if qualifier and qualifier.lower() in seen:
                self.source.fail(
                    f"the name '{qualifier}' is used twice in FROM; give one of them an alias "
                    f"with AS",
                    item.alias.span if item.alias else item.span,
                )
            seen.add(qualifier.lower())
            check_one_kind(self.source, [*chain.nodes, node], item.span)
            owner = self.queries.owner(item)
            own = item_scope(qualifier, node.schema, chain.width, owner, filled)
            own = own.renamed(self.source, item.columns)
            before = scope
            if item.join in ("first", "comma"):
                chain.comma(node, item.span)
                scope = scope.plus(own)
                continue
            if not all_free:
                before = scope.since(chain.tree).inside(scope, _BEFORE_COMMA)
            if item.join.startswith("asof"):
                self._asof(chain, item, node, before, own)
                twice = [own.find(self.source, n, None, n.span).index for n in item.using]
                scope = scope.plus(own).hide(twice)
                continue
            parts: list[Expr] = []
            if item.on is not None:
                binder = ScalarBinder(self.source, before.plus(own), "ON")
                parts += conjuncts(binder.condition(item.on))
            shared = [self._shared(name, before, own) for name in item.using]
            parts += [equal for _, _, equal in shared]
            scope = self._joined(chain, item, node, parts, shared, scope, own)
        where = split(self.block.where) if self.block.where is not None else Conjuncts([], [], [])
        facts = self._where(where.plain, scope)
        plan, place = chain.build(facts)
        scope = scope.moved(place)
        self.conditions = [shift(c, _outside(c) | place) for c in self.conditions]
        self.facts = [shift(f, place) for f in facts]
        for condition in where.asking:
            inner = self.queries.inner(condition.query, scope)
            wanted = partners(inner, condition)
            if wanted is None:
                where.mixed.append(condition.written)
                continue
            binder = ScalarBinder(self.source, scope, "WHERE")
            values = [binder.bind(value) for value in condition.values]
            check_one_kind(self.source, [plan, wanted.node], condition.span)
            plan = restrict(self.source, plan, condition, values, wanted, self.facts)
        return self._mixed(plan, where.mixed, scope), scope

    def _mixed(self, plan: Node, conditions: list[Scalar], scope: Scope) -> Node:
        """Return the rows that fulfil conditions that compute with sub-queries."""
        if not conditions:
            return plan
        placing = Placing(plan)
        inside: list[Expr] = []
        before = len(self.conditions)
        for node in conditions:
            binder = ScalarBinder(self.source, self._opened(scope), "WHERE")
            binder.asks = Asking(self.source, self.queries, scope)
            for part in conjuncts(binder.condition(node)):
                for asked in asked_in([part]):
                    if any(map(reads_outside, asked.args)):
                        self.source.fail(NOT_OUTSIDE, asked.place.span)
                to = self.conditions if reads_outside(part) else inside
                to.append(placing.one(part))
        found = Filter(placing.node, all_of(inside)) if inside else placing.node
        if len(self.conditions) > before or found.schema == plan.schema:
            return found
        own = [Column(at, f.type, f.name) for at, f in enumerate(plan.schema.fields)]
        return Project(found, tuple(own), plan.schema.names)

    def _asof(self, chain: Chain, item: FromItem, node: Node, before: Scope, own: Scope) -> None:
        """Join an item with everything since the last comma, each row with its nearest partner."""
        first = chain.tree
        local = {i: i - first for i in range(first, chain.width + len(node.schema))}
        width = chain.width - first
        binder = AsofBinder(self.source, item, before.moved(local), own.moved(local), width)
        chain.put(lambda left: binder.bind(left, node))

    def _shared(
        self, name: Name, before: Scope, own: Scope
    ) -> tuple[ScopeColumn, ScopeColumn, Expr]:
        """Return the two columns of USING, and that they are equal."""
        left = before.find(self.source, name, None, name.span)
        right = own.find(self.source, name, None, name.span)
        with self.source.at(name.span):
            return left, right, resolve_call("eq", [left.expr, right.expr])

    def _joined(
        self,
        chain: Chain,
        item: FromItem,
        node: Node,
        parts: list[Expr],
        shared: list[tuple[ScopeColumn, ScopeColumn, Expr]],
        before: Scope,
        own: Scope,
    ) -> Scope:
        """Join an item; return what can be named then. A column of USING is shown once."""
        if item.join in _FREE:
            chain.inner(node, parts, item.span)
        else:
            chain.other(item.join, node, parts, item.span)
        if item.join in ("semi", "anti"):
            return before
        scope = before.plus(own)
        for left, right, _ in shared:
            if item.join == "right":
                scope = scope.merged(left, right, right.expr)
            elif item.join == "full":
                both = resolve_call("coalesce", [left.expr, right.expr])
                scope = scope.merged(left, right, chain.append(both, left.name))
            else:
                scope = scope.hide([right.index])
        return scope

    def _where(self, plain: list[Scalar], scope: Scope) -> list[Expr]:
        """Return the conjuncts of WHERE that belong here.

        Conjuncts that name columns of the query around are put aside.
        """
        opened = self._opened(scope)
        parts: list[Expr] = []
        for node in plain:
            parts += conjuncts(ScalarBinder(self.source, opened, "WHERE").condition(node))
        self.conditions = [p for p in parts if reads_outside(p)]
        return [p for p in parts if not reads_outside(p)]

    def _opened(self, scope: Scope) -> Scope:
        """Return a scope in which columns of the query around can be named, if they can here."""
        if not self.open or self.around is None:
            return scope
        places = {c.index: OUTSIDE + c.index for c in self.around.columns}
        return scope.inside(self.around.moved(places))

    # ---- SELECT and GROUP BY

    def _outputs(self, item: SelectItem) -> list[_Bound]:
        if item.star:
            columns = (
                tuple(c for c in self.scope.columns if not c.hidden)
                if item.qualifier is None
                else self.scope.of_item(self.source, item.qualifier)
            )
            gone = self._left_out(item, columns)
            return [
                _Bound(c.expr, item.span, [], c.name, numbered=True)
                for c in columns
                if c.index not in gone
            ]
        bound = self._bound(item.expr, "SELECT")
        if bound.expr.type == NULL:
            self.source.fail("NULL needs a type here, such as CAST(NULL AS INT)", item.span)
        if item.alias is not None:
            self.aliases.setdefault(item.alias.text.lower(), bound.expr)
        name = item.alias.text if item.alias else self._label(item.expr, bound.expr)
        chosen = item.alias is not None or not self.delivered
        return [replace(bound, name=name, span=item.span, numbered=not chosen)]

    def _left_out(self, item: SelectItem, columns: tuple[ScopeColumn, ...]) -> frozenset[int]:
        """Return the positions of the columns of ``* EXCEPT (..)``."""
        binder = ScalarBinder(
            self.source, replace(self.scope, columns=columns, outer=None), "EXCEPT"
        )
        found = [binder.bind(node) for node in item.without]
        gone = frozenset(e.index for e in found if isinstance(e, Column))
        if len(gone) == len(columns):
            self.source.fail("* EXCEPT (..) must leave a column", item.span)
        return gone

    def _told_apart(self, outputs: list[_Bound]) -> list[_Bound]:
        """Give repeated names that nobody chose a number: id, id_2."""
        names = {o.name.lower() for o in outputs}
        seen: set[str] = set()
        found = []
        for bound in outputs:
            if bound.numbered and bound.name.lower() in seen:
                number = 2
                while f"{bound.name}_{number}".lower() in names:
                    number += 1
                bound = replace(bound, name=f"{bound.name}_{number}")
                names.add(bound.name.lower())
                self.aliases.setdefault(bound.name.lower(), bound.expr)
            seen.add(bound.name.lower())
            found.append(bound)
        return found

    def _label(self, node: Scalar, expr: Expr) -> str:
        """Return the name of an unnamed output: a column keeps the spelling of its declaration."""
        typed = label(self.source, node)
        same = isinstance(expr, Column) and expr.name.lower() == typed.lower()
        if typed.lower() == PRIORITY and not same:
            return PRIORITY
        return expr.name if isinstance(expr, Column) and same else typed

    def _keys(self, outputs: list[_Bound]) -> list[_Bound]:
        keys: list[_Bound] = []
        if self.block.group_all:  # whatever has no aggregate in it
            for bound in outputs:
                aggregates = any(c >= self.inputs for c in columns_of(bound.expr))
                if not aggregates and bound.expr not in [k.expr for k in keys]:
                    keys.append(bound)
        for node in self.block.group_by or ():
            key = self._key(node, outputs)
            if key.expr not in [k.expr for k in keys]:
                keys.append(key)
        closes = self.queries.closes(self.node)
        doubt_groups(self.source, self.node, [key.span for key in keys], closes)
        if self.block.sets is None:
            return keys
        found = [k.expr for k in keys]
        for members in self.block.sets:
            chosen = [self._key(node, outputs) for node in members]
            for key in chosen:
                if key.expr not in found:
                    self.source.fail("GROUPING SETS must name keys of GROUP BY", key.span)
            self.sets.append(frozenset(found.index(key.expr) for key in chosen))
        return [*keys, _Bound(GROUPING_ID, self.block.span, [], "grouping id")]

    def _key(self, node: Scalar, outputs: list[_Bound]) -> _Bound:
        at = position(self.source, node, len(outputs), "GROUP BY")
        if at is None:
            binder = ScalarBinder(self.source, self.scope, "GROUP BY", None, self.aliases)
            binder.asks = Asking(self.source, self.queries, self.scope)
            expr = binder.bind(node)
            key = _Bound(expr, span_of(node), binder.uses, self._label(node, expr))
        else:
            key = replace(outputs[at], span=span_of(node))
        if any(c >= self.inputs for c in columns_of(key.expr)):
            self.source.fail(
                "GROUP BY cannot use an aggregate; compute it in a sub-query in FROM", key.span
            )
        if key.expr.type == NULL:
            self.source.fail("GROUP BY must not be NULL", key.span)
        doubt_quotient_key(self.source, key.expr, key.span)
        return key

    def _aggregate(self, keys: list[_Bound]) -> Placing:
        placing = Placing(self.node)
        names = [k.name for k in keys] + self.aggregates.names
        exprs = tuple(placing.put([k.expr for k in keys]))
        calls = tuple(map(placing.call, self.aggregates.calls))
        if self.block.sets is not None:
            sets = grouping_sets(placing.node, exprs[:-1], self.sets, calls, names)
            return Placing(sets)
        return Placing(Aggregate(placing.node, exprs, calls, tuple(names)))

    def _carried(self, bound: _Bound, keys: list[_Bound]) -> _Bound:
        """Return an expression as it is after the GROUP BY."""
        try:
            with self.source.at(bound.span):
                expr = after_grouping(
                    bound.expr, [k.expr for k in keys], [k.name for k in keys], self.inputs
                )
        except Stray as stray:
            places = [node for index, node in bound.uses if index == stray.column.index]
            name = stray.column.name
            if places and label(self.source, places[0]).lower() == PRIORITY:
                name = PRIORITY
            self.source.fail(
                f"column {name} must be in GROUP BY or inside an aggregate",
                span_of(places[0]) if places else bound.span,
            )
        return replace(bound, expr=expr)

    # ---- SELECT list, DISTINCT, ORDER BY, LIMIT

    def _order_key(self, item: OrderItem, outputs: list[_Bound]) -> _Bound:
        at = position(self.source, item.expr, len(outputs), "ORDER BY")
        if at is not None:
            return replace(outputs[at], span=span_of(item.expr))
        return self._bound(item.expr, "ORDER BY", aliases_first=True)

    def _select(
        self,
        placing: Placing,
        outputs: list[_Bound],
        ordered: list[_Bound],
        query: QuerySyntax | None,
    ) -> Node:
        exprs, names = [o.expr for o in outputs], [o.name for o in outputs]
        keys: list[Expr] = []
        hidden: list[Expr] = []
        for bound in ordered:
            try:
                keys.append(over_outputs(bound.expr, exprs, names))
                if asked_in(keys[-1:]):
                    raise Stray(Column(0, keys.pop().type))
            except Stray:
                if self.block.distinct:
                    self.source.fail(
                        "after SELECT DISTINCT, ORDER BY must use columns of the SELECT list",
                        bound.span,
                    )
                at = len(exprs) + len(hidden)
                keys.append(Column(at, bound.expr.type, self.source.text(bound.span)))
                hidden.append(bound.expr)
        extra = [f"order {at + 1}" for at in range(len(hidden))]
        placed = placing.put([*exprs, *hidden])
        plan = project(placing.node, placed, [*names, *extra])
        if self.block.distinct:
            plan = Distinct(plan)
        if query is None or not query.cuts:
            return plan
        plan = top_k(plan, sort_keys(keys, query), query)
        if not hidden:
            return plan
        kept = [Column(at, e.type, n) for at, (e, n) in enumerate(zip(exprs, names, strict=True))]
        return Project(plan, tuple(kept), tuple(names))


def _may_show_bounds(source: Script, block: SelectQuery) -> bool:
    """Whether a block, or the ORDER BY behind it, may name the bounds of a window."""
    named = "window_" in source.script[block.span[0] :].lower()  # or a slip of the pen
    return named or any(item.star for item in block.items)


def position(source: Script, node: Scalar, count: int, place: str) -> int | None:
    """Return the column that an integer in GROUP BY or ORDER BY means, None for anything else."""
    if not isinstance(node, exp.Literal) or node.is_string or not str(node.this).isdigit():
        return None
    number = int(str(node.this))
    if not 1 <= number <= count:
        source.fail(
            f"a position in {place} must be from 1 to {count}, the number of columns, got {number}",
            span_of(node),
        )
    return number - 1


def sort_keys(keys: Sequence[Expr], query: QuerySyntax) -> tuple[SortKey, ...]:
    """Return the items of an ORDER BY with their expressions."""
    return tuple(
        SortKey(key, item.descending, item.nulls_first)
        for key, item in zip(keys, query.order, strict=True)
    )


def _outside(expr: Expr) -> dict[int, int]:
    """Return the places of columns of the query around, which stay."""
    return {c: c for c in columns_of(expr) if c >= OUTSIDE}


def top_k(plan: Node, order: tuple[SortKey, ...], query: QuerySyntax) -> Node:
    """Return the rows that LIMIT and OFFSET keep; without an order, by all columns."""
    if not query.cuts:
        return plan
    everything = tuple(
        SortKey(Column(at, f.type, f.name)) for at, f in enumerate(plan.schema.fields)
    )
    limit = EVERY if query.limit is None else query.limit
    return TopK(plan, order or everything, limit, query.offset)


def project(node: Node, exprs: Sequence[Expr], names: Sequence[str]) -> Node:
    """Return the columns; no `Project` when they are the input's own, or an Aggregate's renamed."""
    own = [Column(at, f.type, f.name) for at, f in enumerate(node.schema.fields)]
    same = len(exprs) == len(own) and all(
        isinstance(e, Column) and e.index == at for at, e in enumerate(exprs)
    )
    if same and tuple(names) == node.schema.names:
        return node
    renamed = _renamed(node, tuple(names)) if same else None
    return renamed or Project(node, tuple(exprs), tuple(names))


def _renamed(node: Node, names: tuple[str, ...]) -> Node | None:
    match node:
        case Aggregate():
            return replace(node, names=names)
        case Filter(Aggregate() as below, _):
            return replace(node, input=replace(below, names=names))
    return None
