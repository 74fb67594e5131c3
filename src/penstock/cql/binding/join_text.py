"""Joining two plans with a condition given as text: the way in of the Python builder."""

from __future__ import annotations

import re
from typing import TypeAlias

from penstock.algebra import JOIN_KINDS, Node, Project, streams_of
from penstock.cql.binding.asof import AsofBinder
from penstock.cql.binding.chains import attach, is_bounded
from penstock.cql.binding.joining import JoinBuilder
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Priority, Scope
from penstock.cql.binding.script import Script
from penstock.cql.grammar.parse import parse_scalar
from penstock.cql.grammar.syntax import FromItem, Name
from penstock.errors import QueryError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, conjuncts, shift
from penstock.model import Schema

_NAME = re.compile(r"\s*\w+\s*")
_NAMES = re.compile(r"\s*\w+\s*(,\s*\w+\s*)*")


Ranks: TypeAlias = tuple[Expr | None, Expr | None]
"""What `_priority` means on the two sides of a join; None: nothing."""


def bind_join(
    left: Node, right: Node, on: str | None, how: str = "inner", ranks: Ranks = (None, None)
) -> Node:
    """Return the join of two plans; ``how`` is its kind.

    ``on`` is a list of common columns, which then appear once, a condition over ``l.x`` and
    ``r.y``, or None for every pair.  A column of the right side whose name is taken is called
    ``name_right``.  Of a semi or anti join only the left columns are there.
    """
    if how not in JOIN_KINDS:
        raise QueryError(f"how must be one of {', '.join(JOIN_KINDS)}, got {how!r}")
    condition, shared = _condition(on)
    parts: list[Expr] = []
    if condition is not None:
        syntax, _ = parse_scalar(condition)
        scope = _scope(left, ranks[0]).plus(_scope(right, ranks[1], len(left.schema)))
        binder = ScalarBinder(Script(condition), scope, "a join condition")
        parts = conjuncts(binder.condition(syntax))
    plan, place = _joined(left, right, parts, how)
    return plan if how in ("semi", "anti") else _named(plan, left, right, shared, place, how)


def bind_asof_join(
    left: Node, right: Node, on: str | None, at: str, kind: str, ranks: Ranks = (None, None)
) -> Node:
    """Return the ASOF join of two plans.

    ``on`` is as in `bind_join`, equalities only; ``at`` is the one comparison, or a common column
    for ``l.x >= r.x``.  Columns are named as in `bind_join`.
    """
    nearest = f"l.{at.strip()} >= r.{at.strip()}" if _NAME.fullmatch(at) else at
    equal, shared = _condition(on)
    condition = nearest if equal is None else f"({equal}) AND ({nearest})"
    syntax, _ = parse_scalar(condition)
    span = (0, len(condition))
    join = "asof left" if kind == "left" else "asof"
    item = FromItem(Name("r", span), None, None, join, syntax, (), span)
    width = len(left.schema)
    sides = _scope(left, ranks[0]), _scope(right, ranks[1], width)
    binder = AsofBinder(Script(condition), item, *sides, width)
    plan = binder.bind(left, right)
    return _named(plan, left, right, shared, {i: i for i in range(len(plan.schema))}, kind)


def _condition(on: str | None) -> tuple[str | None, set[str]]:
    """Return a condition as text, and the names of the columns that appear once."""
    if on is None or not _NAMES.fullmatch(on):
        return on, set()
    names = [name.strip() for name in on.split(",")]
    return " AND ".join(f"l.{n} = r.{n}" for n in names), {n.lower() for n in names}


def joined_rank(left: Node, right: Node, on: str | None, ranks: Ranks) -> Expr | None:
    """Return the priority of an inner join's rows, over its columns: the greater of both sides."""
    mine, theirs = ranks
    if theirs is None and not streams_of(right):
        return mine
    if mine is None and streams_of(left):
        return None
    if theirs is None:
        return None
    _, shared = _condition(on)
    width = len(left.schema)
    names = [name.lower() for name in left.schema.names]
    places: dict[int, int] = {}
    for index, name in enumerate(n.lower() for n in right.schema.names):
        once = name in shared
        places[index] = names.index(name) if once else width
        width += not once
    theirs = shift(theirs, places)
    return theirs if mine is None else resolve_call("greatest", [mine, theirs])


def _scope(node: Node, rank: Expr | None, offset: int = 0) -> Scope:
    qualifier = "r" if offset else "l"
    value = None if rank is None else shift(rank, {i: offset + i for i in range(len(node.schema))})
    priority = Priority(qualifier, value, offset, not streams_of(node))
    return Scope.of(qualifier, node.schema, offset).ranked(priority)


def _named(
    plan: Node, left: Node, right: Node, shared: set[str], place: dict[int, int], how: str
) -> Project:
    """Return the columns of a join under names that are one each."""
    width = len(left.schema)
    taken = {name.lower() for name in left.schema.names}
    exprs: list[Expr] = []
    names: list[str] = []
    for index, field in enumerate([*left.schema, *right.schema]):
        name = field.name.lower()
        if index >= width and name in shared:
            continue
        clash = index >= width and name in taken
        own: Expr = Column(place[index], field.type, field.name)
        if name in shared and how in ("right", "full"):
            own = _shown(how, own, place, width, right.schema, name)
        exprs.append(own)
        names.append(f"{field.name}_right" if clash else field.name)
    return Project(plan, tuple(exprs), tuple(names))


def _joined(left: Node, right: Node, parts: list[Expr], how: str) -> tuple[Node, dict[int, int]]:
    """Return the join, and where the columns of both sides stand in it."""
    if how == "inner":
        builder = JoinBuilder([left, right])
        plan, place = builder.build(parts)
        linked = not builder.unlinked
    else:
        plan = joined = attach(how, left, right, parts)
        place = {i: i for i in range(len(left.schema) + len(right.schema))}
        linked = bool(joined.left_keys) or joined.residual is not None
    if not linked and how not in ("semi", "anti"):
        _check_bounds(left, right)
    return plan, place


def _shown(
    how: str, left: Expr, place: dict[int, int], width: int, schema: Schema, name: str
) -> Expr:
    """Return a common column of a RIGHT or FULL join: the right one, or the one that is there."""
    at = [n.lower() for n in schema.names].index(name)
    right = Column(place[width + at], schema[at].type, schema[at].name)
    return right if how == "right" else resolve_call("coalesce", [left, right])


def _check_bounds(left: Node, right: Node) -> None:
    """Two streams of which every pair is kept must have windows that bound them."""
    if not streams_of(left) or not streams_of(right) or (is_bounded(left) and is_bounded(right)):
        return
    side = "this relation" if not is_bounded(left) else "the relation that is joined"
    raise QueryError(
        f'{side} must have a window that bounds it, such as window("ROWS 100"), because the join '
        f"has no condition: its rows would be paired with every row that ever comes; add a window "
        f"or a condition"
    )
