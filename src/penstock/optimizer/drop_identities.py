"""A projection that gives every column of its input, in order, does nothing."""

from __future__ import annotations

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import Column


def drop_identities(plan: Node, shared: frozenset[Node]) -> Node:
    """Remove projections that change nothing but names."""
    below = algebra.inputs(plan)
    new = tuple(drop_identities(n, shared) for n in below)
    if new != below:
        plan = algebra.with_inputs(plan, new)
    if isinstance(plan, algebra.Project) and not algebra.is_stream(plan.input):
        same = [isinstance(e, Column) and e.index == i for i, e in enumerate(plan.exprs)]
        if all(same) and len(same) == len(plan.input.schema):
            return plan.input
    return plan
