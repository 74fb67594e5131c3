"""Semi and anti joins on keys alone meet each key once, however many partners have it.

Whether a row has a partner depends only on the set of the other side's keys, as long as no other
condition reads that side.  With that side reduced to its distinct keys, no row has more than one
partner at a time: the cost follows the rows, not the pairs, and a semi join is an inner join.
Without keys all that counts is whether the other side has any row: one constant stands for them.
Into how many rows the time of a key is cut does not matter: where the ends of its rows are known at
birth, so are those of all answers.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import Column, Literal, columns_of
from penstock.optimizer.nameless import canonical


def distinct_partners(plan: Node, shared: frozenset[Node]) -> Node:
    """Reduce the right side of semi and anti joins to its distinct keys."""
    below = algebra.inputs(plan)
    new = tuple(distinct_partners(n, shared) for n in below)
    if any(a is not b for a, b in zip(new, below, strict=True)):
        plan = algebra.with_inputs(plan, new)
    if not isinstance(plan, algebra.Join) or plan.kind not in ("semi", "anti"):
        return plan
    width = len(plan.left.schema)
    if plan.residual is not None and any(c >= width for c in columns_of(plan.residual)):
        return plan
    if canonical(plan) in shared:
        return plan
    keys = _distinct_keys(plan)
    columns = tuple(Column(i, k.type) for i, k in enumerate(plan.right_keys))
    reduced = replace(plan, right=keys, right_keys=columns)
    if plan.kind == "anti":
        return reduced if plan.right != keys else plan
    fields = plan.left.schema
    exprs = tuple(Column(i, f.type, f.name) for i, f in enumerate(fields))
    return algebra.Project(replace(reduced, kind="inner"), exprs, fields.names)


def _distinct_keys(join: algebra.Join) -> algebra.Distinct:
    """Return the keys of the right side, each once."""
    right = join.right
    own = [k.index if isinstance(k, Column) else -1 for k in join.right_keys]
    if isinstance(right, algebra.Distinct) and own and own == list(range(len(right.schema))):
        return right
    names = tuple(
        k.name if isinstance(k, Column) else f"key {i}" for i, k in enumerate(join.right_keys)
    )
    if not names:
        return algebra.Distinct(
            algebra.Project(right, (Literal(True, pa.bool_()),), ("any",)), cut=True
        )
    return algebra.Distinct(algebra.Project(right, join.right_keys, names), cut=True)
