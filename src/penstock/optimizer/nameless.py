"""Plans without names: two plans that differ only in names are the same plan."""

from __future__ import annotations

from dataclasses import replace

from penstock import algebra
from penstock.algebra import Node
from penstock.expr import nodes as expr
from penstock.expr.frames import OverCall
from penstock.expr.nodes import Expr
from penstock.model import Field, Schema


def canonical(node: Node) -> Node:
    """Take all names away, so that plans that differ only in names are equal."""
    below = tuple(canonical(n) for n in algebra.inputs(node))
    node = algebra.with_inputs(node, below)
    match node:
        case algebra.Scan():
            predicate = None if node.predicate is None else _nameless(node.predicate)
            return replace(node, schema=_numbered(node.schema), predicate=predicate)
        case algebra.TableScan():
            return replace(node, schema=_numbered(node.schema))
        case algebra.Filter():
            return replace(node, predicate=_nameless(node.predicate))
        case algebra.Project():
            exprs = tuple(_nameless(e) for e in node.exprs)
            return replace(node, exprs=exprs, names=tuple(f"c{i}" for i in range(len(exprs))))
        case algebra.Join():
            return replace(
                node,
                left_keys=tuple(_nameless(e) for e in node.left_keys),
                right_keys=tuple(_nameless(e) for e in node.right_keys),
                residual=None if node.residual is None else _nameless(node.residual),
            )
        case algebra.AsofJoin():
            return replace(
                node,
                left_keys=tuple(_nameless(e) for e in node.left_keys),
                right_keys=tuple(_nameless(e) for e in node.right_keys),
                left_at=_nameless(node.left_at),
                right_at=_nameless(node.right_at),
            )
        case algebra.Aggregate():
            calls = tuple(
                replace(a, arg=None if a.arg is None else _nameless(a.arg)) for a in node.aggregates
            )
            return replace(
                node,
                keys=tuple(_nameless(e) for e in node.keys),
                aggregates=calls,
                names=tuple(f"c{i}" for i in range(len(node.names))),
            )
        case algebra.Over():
            return replace(
                node,
                calls=tuple(_nameless_call(c) for c in node.calls),
                predicate=None if node.predicate is None else _nameless(node.predicate),
                exprs=tuple(_nameless(e) for e in node.exprs),
                names=tuple(f"c{i}" for i in range(len(node.names))),
            )
        case algebra.TopK():
            return replace(
                node, order=tuple(replace(k, expr=_nameless(k.expr)) for k in node.order)
            )
    return node


def _nameless_call(call: OverCall) -> OverCall:
    args, keys = (tuple(_nameless(e) for e in part) for part in (call.args, call.partition))
    return replace(call, args=args, partition=keys)


def _nameless(expression: Expr) -> Expr:
    def change(e: Expr) -> Expr | None:
        return replace(e, name="") if isinstance(e, expr.Column) and e.name else None

    return expr.rewrite(expression, change)


def _numbered(schema: Schema) -> Schema:
    return Schema(tuple(Field(f"c{i}", f.type) for i, f in enumerate(schema)))
