"""Joining two plans with a condition given as text: the way in of the Python builder."""

from __future__ import annotations

import re

from penstock.algebra import Node, Project
from penstock.cql.asof import AsofBinder
from penstock.cql.joining import JoinBuilder, conjuncts
from penstock.cql.parse import parse_scalar
from penstock.cql.scalars import ScalarBinder
from penstock.cql.scope import Scope
from penstock.cql.source import Source
from penstock.cql.syntax import FromItem, Name
from penstock.expr.nodes import Column, Expr

_NAME = re.compile(r"\s*\w+\s*")
_NAMES = re.compile(r"\s*\w+\s*(,\s*\w+\s*)*")


def bind_join(left: Node, right: Node, on: str | None) -> Node:
    """Return the join of two plans.

    ``on`` is a list of common columns, which then appear once, a condition over ``l.x`` and
    ``r.y``, or None for every pair.  A column of the right side whose name is taken is called
    ``name_right``.
    """
    condition, hidden = _condition(on)
    parts: list[Expr] = []
    if condition is not None:
        source = Source(condition)
        syntax, _ = parse_scalar(condition)
        scope = _scope(left).plus(_scope(right, len(left.schema)))
        parts = conjuncts(ScalarBinder(source, scope, "a join condition").bind(syntax))
    plan, place = JoinBuilder([left, right]).build(parts)
    return _named(plan, left, right, hidden, place)


def bind_asof_join(left: Node, right: Node, on: str | None, at: str, kind: str) -> Node:
    """Return the ASOF join of two plans.

    ``on`` is as in `bind_join`, equalities only; ``at`` is the one comparison, or a common column
    for ``l.x >= r.x``.  Columns are named as in `bind_join`.
    """
    nearest = f"l.{at.strip()} >= r.{at.strip()}" if _NAME.fullmatch(at) else at
    equal, hidden = _condition(on)
    condition = nearest if equal is None else f"({equal}) AND ({nearest})"
    syntax, _ = parse_scalar(condition)
    span = (0, len(condition))
    join = "asof left" if kind == "left" else "asof"
    item = FromItem(Name("r", span), None, None, join, syntax, (), span)
    width = len(left.schema)
    binder = AsofBinder(Source(condition), item, _scope(left), _scope(right, width), width)
    plan = binder.bind(left, right)
    return _named(plan, left, right, hidden, {i: i for i in range(len(plan.schema))})


def _condition(on: str | None) -> tuple[str | None, set[str]]:
    """Return a condition as text, and the names of the columns that appear once."""
    if on is None or not _NAMES.fullmatch(on):
        return on, set()
    names = [name.strip() for name in on.split(",")]
    return " AND ".join(f"l.{n} = r.{n}" for n in names), {n.lower() for n in names}


def _scope(node: Node, offset: int = 0) -> Scope:
    return Scope.of("r" if offset else "l", node.schema, offset)


def _named(plan: Node, left: Node, right: Node, hidden: set[str], place: dict[int, int]) -> Project:
    width = len(left.schema)
    taken = {name.lower() for name in left.schema.names}
    exprs: list[Expr] = []
    names_out: list[str] = []
    for index, field in enumerate([*left.schema, *right.schema]):
        if index >= width and field.name.lower() in hidden:
            continue
        clash = index >= width and field.name.lower() in taken
        exprs.append(Column(place[index], field.type, field.name))
        names_out.append(f"{field.name}_right" if clash else field.name)
    return Project(plan, tuple(exprs), tuple(names_out))
