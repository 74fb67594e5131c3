"""Sub-queries in expressions: what is asked of them, and which become semi and anti joins.

A conjunct of WHERE that is an IN or EXISTS restricts the rows of the block by a join.  WHERE is
split at its ANDs; what is left of NOT moves inwards (NOT NOT, and NOT over OR), so that

| condition | becomes |
|---|---|
| ``EXISTS (SELECT ..)``, ``x IN (SELECT y ..)`` | a semi join, the latter on ``x = y`` |
| ``NOT EXISTS (SELECT ..)`` | an anti join |
| ``x NOT IN (SELECT y ..)`` | anti joins, below |

A row is kept by NOT IN when no row of the sub-query makes ``x = y`` true or unknown.  Unknown it is
when either is null; so three anti joins, one after the other, drop the rows with a partner ``x =
y``, the rows for which the sub-query has a null ``y``, and the rows with a null ``x`` for which it
has any row at all.  The second and the third are left out where a null is impossible.

Everywhere else a sub-query is a value (`cql.binding.asked`), computed in one of the ways of
`cql.binding.ways`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from penstock.algebra import Aggregate, Filter, Node, Project
from penstock.cql.binding.asked import Asked, Place, Way, asked_in
from penstock.cql.binding.chains import attach
from penstock.cql.binding.inner import (
    OUTSIDE,
    Inner,
    by_columns,
    gives_one,
    known,
    link,
)
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.ways import (
    EXTREMES,
    FALSE,
    TRUE,
    Exists,
    Extreme,
    Member,
    Single,
    Whole,
    either,
)
from penstock.cql.grammar.syntax import QuerySyntax, Scalar, Span, span_of
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal, columns_of, shift
from penstock.expr.own import is_own
from penstock.expr.types import BOOLEAN

NOT_OUTSIDE = (
    "a column of the query around can be named only in the WHERE of a sub-query that is no part "
    "of a UNION, INTERSECT, EXCEPT or WITH, and not in a query further inside; join with the "
    "sub-query in FROM instead"
)

MANY_ROWS = (
    "a sub-query that stands for a value must have at most one row at each instant, and this one "
    "may have more; write an aggregate such as MAX(x), or ORDER BY .. LIMIT 1, or x IN (SELECT ..)"
)

_TRUE = Literal(True, BOOLEAN)
_INVERSE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


@dataclass(frozen=True)
class Condition:
    """``[NOT] EXISTS (query)``, or ``values [NOT] IN (query)``; ``written`` as a plain conjunct."""

    query: QuerySyntax
    negated: bool
    values: tuple[Scalar, ...]
    span: Span
    written: Scalar


@dataclass(frozen=True)
class Conjuncts:
    """A WHERE: conjuncts without sub-queries, those that are one, and those that contain some."""

    plain: list[Scalar]
    asking: list[Condition]
    mixed: list[Scalar]


def asks(node: Scalar) -> bool:
    """Whether there is a sub-query in an expression."""
    return any("query" in part.meta for part in node.walk())


def split(node: Scalar) -> Conjuncts:
    """Split a WHERE."""
    found = Conjuncts([], [], [])
    for part, negated in _conjuncts(node, False):
        written = part
        if negated:
            written = exp.Not(this=part)
            written.meta["span"] = span_of(part)
        among = member_of(part)
        if isinstance(part, exp.Exists):
            query = part.meta["query"]
            found.asking.append(Condition(query, negated, (), span_of(part), written))
        elif among is not None:
            row, query, outer = among
            values = tuple(row.expressions) if isinstance(row, exp.Tuple) else (row,)
            swapped = negated != outer
            if any(map(asks, values)):
                found.mixed.append(written)
            else:
                found.asking.append(Condition(query, swapped, values, span_of(part), written))
        elif asks(part):
            found.mixed.append(written)
        else:
            found.plain.append(written)
    return found


def member_of(node: Scalar) -> tuple[Scalar, QuerySyntax, bool] | None:
    """Return what stands before IN, ``= ANY`` or ``<> ALL``, the sub-query, and if it is NOT IN."""
    if isinstance(node, exp.In) and "query" in node.meta:
        return node.this, node.meta["query"], False
    if isinstance(node, exp.EQ) and isinstance(node.expression, exp.Any):
        return node.this, node.expression.meta["query"], False
    if isinstance(node, exp.NEQ) and isinstance(node.expression, exp.All):
        return node.this, node.expression.meta["query"], True
    return None


def _conjuncts(node: Scalar, negated: bool) -> Iterable[tuple[Scalar, bool]]:
    """Yield the conjuncts of a condition, each as it is or to be negated.

    A condition without sub-queries is left whole.
    """
    if not asks(node):
        yield node, negated
    elif isinstance(node, exp.Paren):
        yield from _conjuncts(node.this, negated)
    elif isinstance(node, exp.Not):
        yield from _conjuncts(node.this, not negated)
    elif isinstance(node, exp.Or if negated else exp.And):
        yield from _conjuncts(node.this, negated)
        yield from _conjuncts(node.expression, negated)
    else:
        yield node, negated


# ---- values


class Queries(Protocol):
    """What binds the sub-queries of a block. ``is_once``: the answer is that of one instant."""

    is_once: bool

    def inner(self, query: QuerySyntax, around: Scope) -> Inner:
        """Bind a sub-query in an expression of the query around."""


class Asking:
    """The sub-queries of one place, such as SELECT, as values."""

    def __init__(self, source: Script, queries: Queries, scope: Scope) -> None:
        self._source = source
        self._queries = queries
        self._scope = scope

    def value(self, node: Scalar) -> Expr:
        """Return what ``(SELECT x ..)`` stands for."""
        query, inner = self._bound(node)
        if len(inner.values) != 1:
            self._source.fail(
                f"a sub-query that stands for a value must have 1 column, got {len(inner.values)}",
                query.span,
            )
        linked, args = link(inner)
        if inner.whole:
            assert inner.grouping is not None
            value = inner.values[0]
            template = either(inner.grouping.having, value, Literal(None, value.type))
            return self._asked(Whole(linked, template), args, value, node)
        if not gives_one(linked):
            self._source.fail(MANY_ROWS, query.span)
        return self._asked(Single(linked), args, inner.values[0], node)

    def exists(self, node: Scalar) -> Expr:
        """Return whether ``EXISTS (SELECT ..)``."""
        _, inner = self._bound(node)
        linked, args = link(inner)
        if inner.whole:
            assert inner.grouping is not None
            if inner.grouping.having is None:
                return TRUE
            template = either(inner.grouping.having, TRUE, FALSE)
            return self._asked(Whole(linked, template), args, TRUE, node)
        return self._asked(Exists(linked), args, TRUE, node)

    def member(self, values: Sequence[Expr], holder: Scalar, node: Scalar) -> Expr:
        """Return whether the values are in a sub-query, which ``holder`` has."""
        query, inner = self._bound(holder)
        check_width(self._source, query, values, inner)
        is_known = bool(node.meta.get("known"))
        if len(values) == 1 and inner.whole:
            return self._compared("eq", values[0], inner, node)
        if len(values) == 1:
            return self._single_member(values[0], inner, is_known, node)
        if inner.whole:
            self._source.refuse(
                "the sub-query of (a, b) IN (SELECT ..) must have a GROUP BY if it has aggregates",
                query.span,
            )
        return self._tuple_member(values, inner, is_known, node)

    def compared(self, operator: str, value: Expr, node: Scalar) -> Expr:
        """Return what ``x > ANY (SELECT ..)`` or ``x > ALL (SELECT ..)`` says."""
        holder = node.expression
        query, inner = self._bound(holder)
        check_width(self._source, query, [value], inner, "ANY, SOME and ALL")
        if operator not in _INVERSE:
            self._source.refuse(
                "ANY, SOME and ALL must stand behind one of =, <>, <, <=, > and >=", span_of(node)
            )
        is_all = isinstance(holder, exp.All)
        operator = _INVERSE[operator] if is_all else operator
        if inner.whole:
            made = self._compared(operator, value, inner, node)
        elif operator == "eq":
            made = self._single_member(value, inner, False, node)
        else:
            assert operator in EXTREMES
            mine, inner = self._alike(operator, value, inner, node)
            linked, args = link(inner)
            made = self._asked(Extreme(linked, operator), (*args, mine), TRUE, node)
        return resolve_call("not", [made]) if is_all else made

    def _bound(self, holder: Scalar) -> tuple[QuerySyntax, Inner]:
        query = holder.meta["query"]
        inner = self._queries.inner(query, self._scope)
        if _has_own(inner):
            self._source.refuse(
                "an aggregate of your own must stand beside GROUP BY in a sub-query that is a "
                "value, because what it is of no rows is not known; or put the sub-query into FROM",
                query.span,
            )
        return query, inner

    def _asked(self, way: Way, args: Sequence[Expr], value: Expr, node: Scalar) -> Expr:
        place = Place(self._source, span_of(node), self._queries.is_once)
        return Asked("sub-query", tuple(args), value.type, way=way, place=place)

    def _alike(self, operator: str, value: Expr, inner: Inner, node: Scalar) -> tuple[Expr, Inner]:
        """Return a value and a sub-query of one type that can be compared."""
        theirs = inner.values[0]
        far = shift(theirs, {c: c + OUTSIDE for c in columns_of(theirs)})
        with self._source.at(span_of(node)):
            call = resolve_call(operator, [value, far])
        mine, other = call.args  # type: ignore[union-attr]
        back = shift(other, {c: c - OUTSIDE for c in columns_of(other)})
        return mine, replace(inner, values=(back, *inner.values[1:]))

    def _compared(self, operator: str, value: Expr, inner: Inner, node: Scalar) -> Expr:
        """Return what a comparison with the one row of a sub-query says; without it, FALSE."""
        assert inner.grouping is not None
        linked, args = link(inner)
        behind = value if isinstance(value, Literal) else Column(OUTSIDE + len(args), value.type)
        with self._source.at(span_of(node)):
            found = resolve_call(operator, [behind, inner.values[0]])
        template = either(inner.grouping.having, found, FALSE)
        return self._asked(Whole(linked, template), (*args, value), TRUE, node)

    def _single_member(self, value: Expr, inner: Inner, is_known: bool, node: Scalar) -> Expr:
        mine, inner = self._alike("eq", value, inner, node)
        linked, args = link(inner)
        return self._asked(Member(linked, is_known), (*args, mine), TRUE, node)

    def _tuple_member(
        self, values: Sequence[Expr], inner: Inner, is_known: bool, node: Scalar
    ) -> Expr:
        """Return whether a row is in a sub-query: some row equals it, or may equal it, or none."""
        if asked_in(values):
            self._source.refuse(
                "the values of (a, b) IN (SELECT ..) must have no sub-queries in them",
                span_of(node),
            )
        if not inner.plain:
            node_, found, _ = by_columns(inner, inner.node, ())
            if inner.conditions:
                self._source.refuse(
                    "the sub-query of (a, b) IN (SELECT ..) must have no GROUP BY, DISTINCT or "
                    "LIMIT if it names columns of the query around and is no conjunct of WHERE",
                    span_of(node),
                )
            inner = Inner(node_, found)
        equal: list[Expr] = []
        for value, theirs in zip(values, inner.values, strict=True):
            far = shift(value, {c: c + OUTSIDE for c in columns_of(value)})
            with self._source.at(span_of(node)):
                equal.append(resolve_call("eq", [far, theirs]))
        there = self._whether(inner, equal, node)
        if is_known:
            return there
        perhaps = self._whether(inner, [resolve_call("coalesce", [e, _TRUE]) for e in equal], node)
        unknown = Literal(None, BOOLEAN)
        return resolve_call("or", [there, resolve_call("if", [perhaps, unknown, FALSE])])

    def _whether(self, inner: Inner, more: Sequence[Expr], node: Scalar) -> Expr:
        linked, args = link(replace(inner, conditions=(*inner.conditions, *more)))
        return self._asked(Exists(linked), args, TRUE, node)


def _has_own(inner: Inner) -> bool:
    """Whether aggregates of the user's own make the one row of a sub-query."""
    calls = () if inner.grouping is None or not inner.whole else inner.grouping.calls
    return any(is_own(call.name) for call in calls)


def check_width(
    source: Script, query: QuerySyntax, values: Sequence[Expr], inner: Inner, word: str = "IN"
) -> None:
    """Refuse a sub-query that has not as many columns as are compared."""
    if len(values) != len(inner.values):
        source.fail(
            f"the sub-query of {word} must have {len(values)} column"
            f"{'s' if len(values) > 1 else ''}, as many as stand before {word}, got "
            f"{len(inner.values)}",
            query.span,
        )


# ---- joins


def partners(inner: Inner, condition: Condition) -> Inner | None:
    """Return a sub-query of which a row outside wants partners; None: it must be a value."""
    if inner.plain:
        return inner
    if inner.whole:
        assert inner.grouping is not None
        nullable = all(isinstance(value, Column) for value in inner.values)
        counts = any(call.name.startswith("count") for call in inner.grouping.calls)
        if inner.conditions or condition.negated or not condition.values:
            return None
        if counts or not nullable or _has_own(inner):  # it may have a value of no rows
            return None
    linked, args = link(inner)
    if linked.rest:
        return None
    node, values, by = by_columns(inner, inner.node, linked.keys)
    outer = [shift(arg, {c: c + OUTSIDE for c in columns_of(arg)}) for arg in args]
    pairs = zip(by, outer, strict=True)
    return Inner(node, values, tuple(resolve_call("eq", [a, b]) for a, b in pairs))


def restrict(
    source: Script,
    plan: Node,
    condition: Condition,
    values: Sequence[Expr],
    inner: Inner,
    facts: Sequence[Expr],
) -> Node:
    """Return the rows of ``plan`` that fulfil a condition; ``values`` are what stands before IN.

    ``facts`` are conditions that hold for every row of ``plan``.
    """
    width, count = len(plan.schema), len(inner.node.schema)
    places = {i: width + i for i in range(count)} | {OUTSIDE + i: i for i in range(width)}
    linked = [shift(c, places) for c in inner.conditions]
    if values:
        check_width(source, condition.query, values, inner)
    equal: list[Expr] = []
    for mine, theirs in zip(values, inner.values, strict=bool(values)):
        with source.at(condition.span):
            equal.append(resolve_call("eq", [mine, shift(theirs, places)]))
    if not condition.negated:
        return attach("semi", plan, inner.node, linked + equal)
    if not values:
        return attach("anti", plan, inner.node, linked)
    if len(values) > 1:  # unknown unless some column differs
        perhaps = [resolve_call("coalesce", [e, _TRUE]) for e in equal]
        return attach("anti", plan, inner.node, linked + perhaps)
    plan = attach("anti", plan, inner.node, linked + equal)
    theirs = inner.values[0]
    if _may_be_null(theirs, known(inner.facts)) and not _counts(inner.node, theirs):
        nulls = Filter(inner.node, resolve_call("is_null", [theirs]))
        plan = attach("anti", plan, nulls, linked)
    if _may_be_null(values[0], known(facts)):
        missing = resolve_call("is_null", [values[0]])
        plan = attach("anti", plan, inner.node, [*linked, missing])
    return plan


def _may_be_null(expr: Expr, present: set[Expr]) -> bool:
    if isinstance(expr, Literal):
        return expr.value is None
    return expr not in present


def _counts(node: Node, expr: Expr) -> bool:
    """Whether an expression is the COUNT of an aggregation."""
    while isinstance(node, Project) and isinstance(expr, Column):
        expr = node.exprs[expr.index]
        node = node.input
    if not isinstance(node, Aggregate) or not isinstance(expr, Column):
        return False
    at = expr.index - len(node.keys)
    return at >= 0 and node.aggregates[at].name in ("count", "count_distinct")
