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
from penstock.cql.binding.joining import all_of, hinted
from penstock.cql.binding.newest import push_bound
from penstock.cql.binding.over import Overs, elements, has_over
from penstock.cql.binding.priorities import item_scope
from penstock.cql.binding.ranks import Ranks, reads_snapshots
from penstock.cql.binding.scalars import Aggregates, ScalarBinder, label
from penstock.cql.binding.scope import PRIORITY, Scope, ScopeColumn
from penstock.cql.binding.script import Script
from penstock.cql.binding.spark_windows import called, spark_window
from penstock.cql.binding.subqueries import NOT_OUTSIDE, Condition, Partners, restrict, split
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

    def partners(self, query: QuerySyntax, around: Scope) -> Partners:
        """Bind a sub-query of WHERE."""

    def closes(self, node: Node) -> bool:
        """Whether a stream of a plan closes parts of itself, by punctuations."""


class SelectBinder:
    """Binds one SELECT block.

    ``around`` is the scope of the query around a sub-query.  If it is ``open``, conjuncts of WHERE
    may name its columns; they become ``conditions``, in which those columns stand behind the
    block's own.  ``facts`` are conditions that hold for every row of the block.
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

    def partners(self) -> Partners | None:
        """Return the block as a sub-query of WHERE; None if it aggregates."""
        outputs = [bound for item in self.block.items for bound in self._outputs(item)]
        if self.aggregates.calls or self.overs.spans or self.block.qualify is not None:
            return None
        values = tuple(o.expr for o in outputs)
        return Partners(self.node, values, tuple(self.conditions), tuple(self.facts))

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
        node, over = self.node, bool(self.overs.spans) or qualify is not None
        grouped = block.group_by is not None or having is not None or bool(self.aggregates.calls)
        if grouped and (not over or isinstance(self.overs, Ranks)):
            node = self._aggregate(keys)
            outputs = [self._carried(bound, keys) for bound in outputs]
            ordered = [self._carried(bound, keys) for bound in ordered]
            qualify = None if qualify is None else self._carried(qualify, keys)
            if having is not None:
                node = Filter(node, self._carried(having, keys).expr)
        if not over:
            return self._select(node, outputs, ordered, query)
        if isinstance(self.overs, Ranks) and grouped:
            self.overs.regroup(
                node, len(keys), lambda e, span: self._carried(_Bound(e, span, []), keys).expr
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
            return self._select(node, outputs, ordered, query)
        if not block.distinct and not (query is not None and query.cuts):
            exprs, names = [o.expr for o in outputs], [o.name for o in outputs]
            return overs.plan(exprs, names, condition)
        node = overs.everything()
        if condition is not None:
            node = Filter(node, condition)
        return self._select(node, outputs, ordered, query)

    def _over_ranks(
        self,
        ranks: Ranks,
        outputs: list[_Bound],
        qualify: _Bound | None,
        ordered: list[_Bound],
        query: QuerySyntax | None,
    ) -> Node:
        """Return a block whose window functions are over snapshots: a relation."""
        node = ranks.everything()
        if qualify is not None:
            node = Filter(node, ranks.placed(qualify.expr))
        outputs = [replace(bound, expr=ranks.placed(bound.expr)) for bound in outputs]
        ordered = [replace(bound, expr=ranks.placed(bound.expr)) for bound in ordered]
        return self._select(node, outputs, ordered, query)

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
        facts, asking = self._where(chain, scope)
        plan, place = chain.build(facts)
        scope = scope.moved(place)
        self.conditions = [self._placed(c, place, len(plan.schema)) for c in self.conditions]
        self.facts = [shift(f, place) for f in facts]
        for condition in asking:
            binder = ScalarBinder(self.source, scope, "WHERE")
            values = [binder.bind(value) for value in condition.values]
            partners = self.queries.partners(condition.query, scope)
            check_one_kind(self.source, [plan, partners.node], condition.span)
            plan = restrict(self.source, plan, condition, values, partners, self.facts)
        return plan, scope

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

    def _where(self, chain: Chain, scope: Scope) -> tuple[list[Expr], list[Condition]]:
        """Return the conjuncts of WHERE that belong here, and those that ask a sub-query.

        Conjuncts that name columns of the query around are put aside.
        """
        if self.block.where is None:
            return [], []
        plain, asking = split(self.block.where)
        width = chain.width
        if self.open and self.around is not None:
            outside = {c.index: width + c.index for c in self.around.columns}
            scope = scope.inside(self.around.moved(outside))
        parts: list[Expr] = []
        for node in plain:
            parts += conjuncts(ScalarBinder(self.source, scope, "WHERE").condition(node))
        outer = [p for p in parts if any(c >= width for c in columns_of(p))]
        self.conditions = outer
        self._width = width
        return [p for p in parts if p not in outer], asking

    def _placed(self, condition: Expr, place: dict[int, int], width: int) -> Expr:
        """Return a condition over the columns of the plan and, behind them, those around it."""
        moved = {
            c: place[c] if c < self._width else c - self._width + width
            for c in columns_of(condition)
        }
        return shift(condition, moved)

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

    def _aggregate(self, keys: list[_Bound]) -> Node:
        calls = tuple(self.aggregates.calls)
        names = [k.name for k in keys] + self.aggregates.names
        exprs = tuple(k.expr for k in keys)
        if self.block.sets is not None:
            return grouping_sets(self.node, exprs[:-1], self.sets, calls, names)
        return Aggregate(self.node, exprs, calls, tuple(names))

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
        node: Node,
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
        plan = project(node, [*exprs, *hidden], [*names, *extra])
        if self.block.distinct:
            plan = Distinct(plan)
        if query is None or not query.cuts:
            return plan
        sort = tuple(
            SortKey(key, item.descending, item.nulls_first)
            for key, item in zip(keys, query.order, strict=True)
        )
        plan = top_k(plan, sort, query)
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
