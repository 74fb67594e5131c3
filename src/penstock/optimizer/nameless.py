"""Plans without names: two plans that differ only in names are the same plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from penstock import algebra
from penstock.algebra import Node, SortKey
from penstock.expr import nodes as expr
from penstock.expr.frames import OverCall, RankCall
from penstock.expr.nodes import AggregateCall, Expr
from penstock.model import Field, Schema

_BELOW = frozenset(("input", "left", "right", "members"))


def canonical(node: Node) -> Node:
    """Take all names away, so that plans that differ only in names are equal."""
    below = tuple(canonical(n) for n in algebra.inputs(node))
    own = [f.name for f in fields(node) if f.name not in _BELOW]
    changes = {name: _nameless(getattr(node, name)) for name in own}
    if "names" in changes:
        changes["names"] = tuple(f"c{i}" for i in range(len(changes["names"])))
    return replace(algebra.with_inputs(node, below), **changes)


def _nameless(value: Any) -> Any:
    """Return a field of a node, or a part of one, without the names of columns."""
    match value:
        case tuple():
            return tuple(_nameless(part) for part in value)
        case expr.Column() | expr.Literal() | expr.Cast() | expr.Call() | expr.Case():
            return expr.rewrite(value, _without_name)
        case AggregateCall() | OverCall() | RankCall() | SortKey():
            parts = {f.name: _nameless(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **parts)
        case Schema():
            return Schema(tuple(Field(f"c{i}", f.type) for i, f in enumerate(value)))
    return value


def _without_name(e: Expr) -> Expr | None:
    return replace(e, name="") if isinstance(e, expr.Column) and e.name else None
