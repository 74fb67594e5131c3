"""The ways in which a sub-query inside an expression becomes joins and aggregates.

| written | columns that are joined, LEFT, by what links the sub-query with the row outside |
|---|---|
| ``(SELECT MAX(y) ..)`` | the aggregates, by group (`Whole`); counts are 0 without a group |
| ``(SELECT y ..)`` of at most one row | the row (`Single`) |
| ``EXISTS (..)`` | TRUE, once for each combination of what is compared (`Exists`) |
| ``x IN (SELECT y ..)`` | TRUE for each ``y``, and whether some ``y`` is null (`Member`) |
| ``x > ANY (SELECT y ..)`` | the smallest ``y``, and whether some ``y`` is null (`Extreme`) |

``x > ALL`` is ``NOT x <= ANY``, ``= ANY`` is IN and ``<> ALL`` is NOT IN.  A comparison is unknown
where one side is null; so ``x > ANY (..)`` is true if it is so for the smallest ``y``, else unknown
if x or some y is null and there is any row, else false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.algebra import Aggregate, Distinct, Filter, Node, Project, streams_of
from penstock.cql.binding.asked import Asked, Placing
from penstock.cql.binding.chains import attach, is_bounded
from penstock.cql.binding.inner import OUTSIDE, Answer, Grouping, Inner, Linked, answer, columns
from penstock.cql.binding.times import check_one_kind
from penstock.expr.aggregates import resolve_aggregate
from penstock.expr.functions import resolve_call, resolve_case
from penstock.expr.nodes import AggregateCall, Column, Expr, Literal, columns_of, rebuilt, shift
from penstock.expr.types import BIGINT, BOOLEAN

TRUE, FALSE, UNKNOWN = (Literal(value, BOOLEAN) for value in (True, False, None))

EXTREMES = {"gt": ("min",), "ge": ("min",), "lt": ("max",), "le": ("max",), "ne": ("min", "max")}
"""Which values decide whether a comparison is true for any of them."""


@dataclass(frozen=True)
class Whole:
    """Aggregates without GROUP BY. ``value`` is over the aggregates and, behind, the arguments."""

    linked: Linked
    value: Expr

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with the aggregates behind its columns, and the value."""
        grouping = self.linked.inner.grouping
        assert grouping is not None
        there = _without_having(self.linked, grouping)
        found = answer(there, plan, asked.args)
        width = len(plan.schema)
        joined = _joined(plan, found, found.values, asked, changes=True)
        first = width + len(found.by)
        made: list[Expr] = []
        for at, call in enumerate(grouping.calls):
            column: Expr = Column(first + at, call.type, grouping.names[at])
            if call.name in ("count", "count_distinct"):
                column = resolve_call("coalesce", [column, Literal(0, BIGINT)])
            made.append(column)
        placing = Placing(joined)
        value = placing.one(filled(self.value, made, asked.args))
        return placing.node, value


def _without_having(linked: Linked, grouping: Grouping) -> Linked:
    """Return a sub-query that selects its aggregates."""
    values = tuple(
        Column(at, call.type, name)
        for at, (call, name) in enumerate(zip(grouping.calls, grouping.names, strict=True))
    )
    plain = Grouping((), grouping.calls, grouping.names, None, True)
    inner = Inner(linked.inner.node, values, linked.inner.conditions, (), plain)
    return Linked(inner, linked.count, linked.keys, linked.rest)


@dataclass(frozen=True)
class Single:
    """A sub-query with one column and at most one row."""

    linked: Linked

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with the row behind its columns, and its value."""
        found = answer(self.linked, plan, asked.args, direct=True)
        joined = _joined(plan, found, found.values, asked, changes=True)
        return joined, columns(joined)[-1]


@dataclass(frozen=True)
class Exists:
    """Whether a sub-query has a row."""

    linked: Linked

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with a mark behind its columns, and whether it is there."""
        found = answer(self.linked, plan, asked.args)
        joined = _joined(plan, found, (TRUE,), asked, once=True)
        return joined, resolve_call("is_not_null", [columns(joined)[-1]])


@dataclass(frozen=True)
class Member:
    """Whether a value is among those of a sub-query. The last argument is the value.

    ``known``: it makes no difference whether the answer is unknown or false.
    """

    linked: Linked
    known: bool

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with marks behind its columns, and what they say."""
        found = answer(self.linked, plan, asked.args)
        count = len(found.by)
        (mine,), value = found.values, asked.args[-1]
        same = resolve_call(
            "eq", [Column(count, mine.type), Column(OUTSIDE + len(asked.args) - 1, value.type)]
        )
        node = Filter(found.node, resolve_call("is_not_null", [mine]))
        there = Answer(node, (), (*found.by, mine), (*found.matches, same))
        joined = _joined(plan, there, (TRUE,), asked, once=True)
        member = resolve_call("is_not_null", [columns(joined)[-1]])
        if self.known:
            return joined, member
        joined = _aggregated(joined, found, [_some_null(count, mine)], asked)
        some_null = columns(joined)[-1]
        return joined, _unless_known(member, value, some_null)


@dataclass(frozen=True)
class Extreme:
    """Whether a comparison is true for any value of a sub-query. The last argument is compared."""

    linked: Linked
    operator: str

    def put(self, plan: Node, asked: Asked) -> tuple[Node, Expr]:
        """Return the plan with the smallest or largest value behind its columns, and the answer."""
        found = answer(self.linked, plan, asked.args)
        count = len(found.by)
        (mine,), value = found.values, asked.args[-1]
        names = EXTREMES[self.operator]
        calls = [resolve_aggregate(name, [Column(count, mine.type)]) for name in names]
        joined = _aggregated(plan, found, [*calls, _some_null(count, mine)], asked, changes=True)
        *ends, some_null = columns(joined)[-len(calls) - 1 :]
        beyond = [resolve_call(self.operator, [value, end]) for end in ends]
        true = beyond[0] if len(beyond) == 1 else resolve_call("or", beyond)
        return joined, _unless_known(true, value, some_null)


def _some_null(at: int, value: Expr) -> AggregateCall:
    """Return whether a value is null in some row: null where there is no row."""
    return resolve_aggregate("bool_or", [resolve_call("is_null", [Column(at, value.type)])])


def _unless_known(true: Expr, value: Expr, some_null: Expr) -> Expr:
    """Return true if it is so, else unknown if something is null and there is a row, else false."""
    nothing = resolve_call("is_null", [some_null])
    unsure = resolve_call("or", [some_null, resolve_call("is_null", [value])])
    return resolve_case([(true, TRUE), (nothing, FALSE), (unsure, UNKNOWN)], FALSE)


def filled(template: Expr, made: Sequence[Expr], args: Sequence[Expr]) -> Expr:
    """Return an expression with ``made`` and ``args`` in place of its columns."""
    if isinstance(template, Column):
        at = template.index
        return args[at - OUTSIDE] if at >= OUTSIDE else made[at]
    return rebuilt(template, lambda part: filled(part, made, args))


def _aggregated(
    plan: Node, found: Answer, calls: Sequence[AggregateCall], asked: Asked, changes: bool = False
) -> Node:
    """Return the plan with aggregates of an answer behind its columns; each is over its values."""
    exprs = (*found.by, *found.values)
    below = Project(found.node, exprs, _names(len(exprs)))
    keys = tuple(columns(below)[: len(found.by)])
    made = Aggregate(below, keys, tuple(calls), _names(len(keys) + len(calls)))
    by = tuple(columns(made)[: len(keys)])
    values = tuple(columns(made)[len(keys) :])
    return _joined(plan, Answer(made, values, by, found.matches), values, asked, changes=changes)


def _joined(
    plan: Node,
    found: Answer,
    values: Sequence[Expr],
    asked: Asked,
    once: bool = False,
    changes: bool = False,
) -> Node:
    """Return the plan with what is compared and some values of an answer behind its columns.

    ``once``: equal rows of the answer are one.  ``changes``: the values change as rows come and go.
    """
    exprs = (*found.by, *values)
    right: Node = Project(found.node, exprs, _names(len(exprs)))
    right = Distinct(right) if once else right
    width = len(plan.schema)
    parts = []
    for match in found.matches:
        places = {c: c if c >= OUTSIDE else c + width for c in columns_of(match)}
        made = [*columns(plan), *(Column(width + at, e.type) for at, e in enumerate(exprs))]
        parts.append(filled(shift(match, places), made, asked.args))
    place = asked.place
    check_one_kind(place.source, [plan, right], place.span)
    if changes and not parts and not place.once:
        _check_bounds(plan, right, asked)
    return attach("left", plan, right, parts)


def _check_bounds(plan: Node, right: Node, asked: Asked) -> None:
    """Refuse to compare all rows that ever came again and again."""
    if not streams_of(plan) or not streams_of(right) or is_bounded(plan):
        return
    asked.place.source.fail(
        "FROM must have a window that bounds its rows, such as [NOW], to look at the sub-query "
        "when a row comes, or [RANGE ..], because every row that ever came would get a new answer "
        "whenever the value of this sub-query changes; add a window",
        asked.place.span,
    )


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"sub-query {at + 1}" for at in range(count))


def either(having: Expr | None, value: Expr, otherwise: Expr) -> Expr:
    """Return a value where HAVING keeps the row, and something else where it does not."""
    return value if having is None else resolve_case([(having, value)], otherwise)
