"""How the rows of a window should be distributed, seen from the operator that will ask for it.

With negative tuples the rows of a window by time get their signs right above it, and their signs
are state: they should be made in the shard that needs them, not be exchanged afterwards.  An
operator with keys is looked for above the window; its keys are followed down through selections
and projections.  A window that nothing is said about is spread.
"""

from __future__ import annotations

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import Column, Expr
from penstock.physical.exchange import ByKey, Exchange


def wanted(plan: Node) -> dict[Node, Exchange]:
    """Return the distribution of each window by time for which one is known; the first counts."""
    found: dict[Node, Exchange] = {}
    for node in algebra.walk(plan):
        for below, keys in algebra.keyed_inputs(node):
            place = _followed(below, keys)
            if place is not None:
                found.setdefault(place[0], ByKey(place[1]))
    return found


def _followed(node: Node, keys: tuple[Expr, ...]) -> tuple[Node, tuple[int, ...]] | None:
    """Return the window that keys come from, and its columns that they are."""
    columns = [key.index for key in keys if isinstance(key, Column)]
    if not columns or len(columns) < len(keys):
        return None
    match node:
        case algebra.Window(below, spec) if spec.by_time:
            own = tuple(c for c in columns if c < len(below.schema))
            return (node, own) if own else None
        case algebra.Filter():
            return _followed(node.input, keys)
        case algebra.Project():
            return _followed(node.input, tuple(node.exprs[c] for c in columns))
    return None
