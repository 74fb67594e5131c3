"""IN (SELECT ..) and EXISTS (SELECT ..) in WHERE: semi and anti joins with the sub-query.

WHERE is split at its ANDs.  What is left of NOT moves inwards (NOT NOT, and NOT over OR), so that

| condition | becomes |
|---|---|
| ``EXISTS (SELECT ..)``, ``x IN (SELECT y ..)`` | a semi join, the latter on ``x = y`` |
| ``NOT EXISTS (SELECT ..)`` | an anti join |
| ``x NOT IN (SELECT y ..)`` | anti joins, below |

A row is kept by NOT IN when no row of the sub-query makes ``x = y`` true or unknown.  Unknown it is
when either is null; so three anti joins, one after the other, drop the rows with a partner ``x =
y``, the rows for which the sub-query has a null ``y``, and the rows with a null ``x`` for which it
has any row at all.  The second and the third are left out where a null is impossible.

Conjuncts of the sub-query's own WHERE that name columns of the query around it are conditions of
these joins as well; all others stay inside.  What a sub-query with GROUP BY, aggregates, LIMIT or a
set operation gives is a relation like any other, and cannot depend on the row outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.algebra import Aggregate, Filter, Node, Project
from penstock.cql.binding.chains import attach
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import QuerySyntax, Scalar, Span, span_of
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Call, Column, Expr, Literal, shift
from penstock.expr.types import BOOLEAN

NOT_OUTSIDE = (
    "a column of the query around can be named only in the WHERE of a sub-query that has no GROUP "
    "BY, aggregates, LIMIT or set operation; join with the sub-query in FROM instead"
)

_TRUE = Literal(True, BOOLEAN)
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "like", "is_not_null"))


@dataclass(frozen=True)
class Condition:
    """``[NOT] EXISTS (query)``, or ``values [NOT] IN (query)``."""

    query: QuerySyntax
    negated: bool
    values: tuple[Scalar, ...]
    span: Span


@dataclass(frozen=True)
class Partners:
    """A bound sub-query: its rows, the values it selects, and conditions that read the outside.

    ``values`` are over the columns of ``node``; ``conditions`` have the columns of the query around
    behind them.  ``facts`` are conditions that hold for every row.
    """

    node: Node
    values: tuple[Expr, ...]
    conditions: tuple[Expr, ...] = ()
    facts: tuple[Expr, ...] = ()


def split(node: Scalar) -> tuple[list[Scalar], list[Condition]]:
    """Split a WHERE into plain conjuncts and those that ask a sub-query."""
    plain: list[Scalar] = []
    asking: list[Condition] = []
    for part, negated in _conjuncts(node, False):
        if "query" in part.meta:
            values = ()
            if isinstance(part, exp.In):
                row = part.this
                values = tuple(row.expressions) if isinstance(row, exp.Tuple) else (row,)
            asking.append(Condition(part.meta["query"], negated, values, span_of(part)))
        elif negated:
            inverse = exp.Not(this=part)
            inverse.meta["span"] = span_of(part)
            plain.append(inverse)
        else:
            plain.append(part)
    return plain, asking


def _conjuncts(node: Scalar, negated: bool) -> Iterable[tuple[Scalar, bool]]:
    """Yield the conjuncts of a condition, each as it is or to be negated.

    A condition without sub-queries is left whole.
    """
    if not any("query" in part.meta for part in node.walk()):
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


def restrict(
    source: Script,
    plan: Node,
    condition: Condition,
    values: Sequence[Expr],
    partners: Partners,
    facts: Sequence[Expr],
) -> Node:
    """Return the rows of ``plan`` that fulfil a condition; ``values`` are what stands before IN.

    ``facts`` are conditions that hold for every row of ``plan``.
    """
    width, inner = len(plan.schema), len(partners.node.schema)
    places = {i: width + i for i in range(inner)} | {inner + i: i for i in range(width)}
    linked = [shift(c, places) for c in partners.conditions]
    if values and len(values) != len(partners.values):
        source.fail(
            f"the sub-query of IN must have {len(values)} column{'s' if len(values) > 1 else ''}, "
            f"as many as stand before IN, got {len(partners.values)}",
            condition.query.span,
        )
    equal: list[Expr] = []
    for mine, theirs in zip(values, partners.values, strict=bool(values)):
        with source.at(condition.span):
            equal.append(resolve_call("eq", [mine, shift(theirs, places)]))
    if not condition.negated:
        return attach("semi", plan, partners.node, linked + equal)
    if not values:
        return attach("anti", plan, partners.node, linked)
    if len(values) > 1:  # unknown unless some column differs
        perhaps = [resolve_call("coalesce", [e, _TRUE]) for e in equal]
        return attach("anti", plan, partners.node, linked + perhaps)
    known = _known(partners.facts)
    plan = attach("anti", plan, partners.node, linked + equal)
    theirs = partners.values[0]
    if _may_be_null(theirs, known) and not _counts(partners.node, theirs):
        nulls = Filter(partners.node, resolve_call("is_null", [theirs]))
        plan = attach("anti", plan, nulls, linked)
    if _may_be_null(values[0], _known(facts)):
        missing = resolve_call("is_null", [values[0]])
        plan = attach("anti", plan, partners.node, [*linked, missing])
    return plan


def _known(facts: Iterable[Expr]) -> set[Expr]:
    """Return expressions that are not null where all of the facts are true."""
    return {
        arg
        for fact in facts
        if isinstance(fact, Call) and fact.name in _COMPARISONS
        for arg in fact.args
    }


def _may_be_null(expr: Expr, known: set[Expr]) -> bool:
    if isinstance(expr, Literal):
        return expr.value is None
    return expr not in known


def _counts(node: Node, expr: Expr) -> bool:
    """Whether an expression is the COUNT of an aggregation."""
    while isinstance(node, Project) and isinstance(expr, Column):
        expr = node.exprs[expr.index]
        node = node.input
    if not isinstance(node, Aggregate) or not isinstance(expr, Column):
        return False
    at = expr.index - len(node.keys)
    return at >= 0 and node.aggregates[at].name in ("count", "count_distinct")
