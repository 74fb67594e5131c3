"""Joining two plans with a condition given as text: the way in of the Python builder."""

from __future__ import annotations

import re

from penstock.algebra import Node, Project
from penstock.cql.joining import JoinBuilder, conjuncts
from penstock.cql.parse import parse_scalar
from penstock.cql.scalars import ScalarBinder
from penstock.cql.scope import Scope
from penstock.cql.source import Source
from penstock.expr.nodes import Column, Expr

_NAMES = re.compile(r"\s*\w+\s*(,\s*\w+\s*)*")


def bind_join(left: Node, right: Node, on: str | None) -> Node:
    """Return the join of two plans.

    ``on`` is a list of common columns, which then appear once, a condition over ``l.x`` and
    ``r.y``, or None for every pair.  A column of the right side whose name is taken is called
    ``name_right``.
    """
    width = len(left.schema)
    hidden: set[str] = set()
    condition = on
    if on is not None and _NAMES.fullmatch(on):
        names = [name.strip() for name in on.split(",")]
        hidden = {name.lower() for name in names}
        condition = " AND ".join(f"l.{name} = r.{name}" for name in names)
    parts: list[Expr] = []
    if condition is not None:
        source = Source(condition)
        scope = Scope.of("l", left.schema).plus(Scope.of("r", right.schema, width))
        syntax, _ = parse_scalar(condition)
        parts = conjuncts(ScalarBinder(source, scope, "a join condition").bind(syntax))
    plan, place = JoinBuilder([left, right]).build(parts)
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
