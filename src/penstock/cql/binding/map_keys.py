"""What must be compared cannot be a MAP: keys, partitions, orders, rows of sets."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.algebra import Aggregate, GroupTop, Node, Over, Rank, TopK, Window, keyed_inputs, walk
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Span
from penstock.expr.nested_types import has_map
from penstock.expr.nodes import Column, Expr
from penstock.expr.types import type_name


def refuse_map_keys(source: Script, plan: Node, span: Span) -> None:
    """Refuse a plan that compares a MAP."""
    for node in walk(plan):
        for expr in _compared(node):
            if has_map(expr.type):
                shown = f" for '{expr.name}'" if isinstance(expr, Column) and expr.name else ""
                source.fail(
                    f"a key of GROUP BY, DISTINCT, PARTITION BY, ORDER BY, a set operation or a "
                    f"join must be comparable, which a MAP is not, got {type_name(expr.type)}"
                    f"{shown}; take map_keys(x), map_values(x) or one value, x['key']",
                    span,
                )


def _compared(node: Node) -> Iterator[Expr]:
    """Yield the values that a node compares."""
    for _, keys in keyed_inputs(node):
        yield from keys
    match node:
        case TopK(_, order):
            yield from (key.expr for key in order)
        case Rank() | GroupTop():
            yield from (key.expr for key in node.order)
        case Over():
            yield from (part for call in node.calls for part in call.partition)
        case Window(below, spec):
            for at in spec.partition_by:
                yield Column(at, below.schema.types[at], below.schema.names[at])
        case Aggregate():
            distinct = (c for c in node.aggregates if c.distinct or c.name == "count_distinct")
            yield from (arg for call in distinct for arg in call.args)
