"""Joining two plans with a condition given as text: the way in of the Python builder."""

from __future__ import annotations

import re

from penstock.algebra import JOIN_KINDS, Node, Project, streams_of
from penstock.cql.chains import attach, is_bounded
from penstock.cql.joining import JoinBuilder, conjuncts
from penstock.cql.parse import parse_scalar
from penstock.cql.scalars import ScalarBinder
from penstock.cql.scope import Scope
from penstock.cql.source import Source
from penstock.errors import QueryError
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr
from penstock.model import Schema

_NAMES = re.compile(r"\s*\w+\s*(,\s*\w+\s*)*")


def bind_join(left: Node, right: Node, on: str | None, how: str = "inner") -> Node:
    """Return the join of two plans; ``how`` is its kind.

    ``on`` is a list of common columns, which then appear once, a condition over ``l.x`` and
    ``r.y``, or None for every pair.  A column of the right side whose name is taken is called
    ``name_right``.  Of a semi or anti join only the left columns are there.
    """
    if how not in JOIN_KINDS:
        raise QueryError(f"how must be one of {', '.join(JOIN_KINDS)}, got {how!r}")
    width = len(left.schema)
    scope = Scope.of("l", left.schema).plus(Scope.of("r", right.schema, width))
    shared: dict[str, str] = {}
    condition = on
    if on is not None and _NAMES.fullmatch(on):
        names = [name.strip() for name in on.split(",")]
        shared = {name.lower(): name for name in names}
        condition = " AND ".join(f"l.{name} = r.{name}" for name in names)
    parts: list[Expr] = []
    if condition is not None:
        syntax, _ = parse_scalar(condition)
        binder = ScalarBinder(Source(condition), scope, "a join condition")
        parts = conjuncts(binder.condition(syntax))
    plan, place = _joined(left, right, parts, how)
    if how in ("semi", "anti"):
        return plan
    taken = {name.lower() for name in left.schema.names}
    exprs: list[Expr] = []
    names_out: list[str] = []
    for index, field in enumerate([*left.schema, *right.schema]):
        name = field.name.lower()
        if index >= width and name in shared:
            continue
        clash = index >= width and name in taken
        own: Expr = Column(place[index], field.type, field.name)
        if name in shared and how in ("right", "full"):
            own = _shown(how, own, place, width, right.schema, name)
        exprs.append(own)
        names_out.append(f"{field.name}_right" if clash else field.name)
    return Project(plan, tuple(exprs), tuple(names_out))


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
