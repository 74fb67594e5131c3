"""Select early: conditions move towards the sources, as far as the meaning allows.

A condition commutes with everything that treats rows one by one, with bag operations, with a join's
side, with group keys, and with a window by time.  Below a window by rows only a condition on its
partition columns may go: others would change which rows are counted; the same with window
functions and ranks.  A condition on the bounds of a window stays above it.  Of an outer join, only
the side whose rows are all kept may be restricted: the other one decides where nulls stand.

A condition that can fail, such as a division, must not meet rows that would not have reached it: it
stays above what drops rows, and behind a condition that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.arrow import cannot_fail
from penstock.expr.nodes import Call, Column, Expr, columns_of, conjuncts, shift, substitute
from penstock.optimizer.nameless import canonical
from penstock.windows import WindowSpec


def push_filters(plan: Node, shared: frozenset[Node]) -> Node:
    """Move every selection of a plan down; a plan that was a relation stays one."""
    pushed = _push_all(plan, shared)
    if isinstance(pushed, algebra.Over) and not algebra.is_stream(plan):
        return algebra.Window(pushed, WindowSpec())
    return plan if algebra.is_stream(pushed) and not algebra.is_stream(plan) else pushed


def _push_all(plan: Node, shared: frozenset[Node]) -> Node:
    below = algebra.inputs(plan)
    new = tuple(_push_all(n, shared) for n in below)
    if any(a is not b for a, b in zip(new, below, strict=True)):
        plan = algebra.with_inputs(plan, new)
    if isinstance(plan, algebra.Filter):
        return _push(plan.input, conjuncts(plan.predicate), shared)
    return plan


def conjunction(parts: list[Expr]) -> Expr:
    """Join conditions with AND."""
    whole = parts[0]
    for part in parts[1:]:
        whole = Call("and", (whole, part), pa.bool_())
    return whole


def _keep(node: Node, parts: list[Expr]) -> Node:
    return algebra.Filter(node, conjunction(parts)) if parts else node


def _push(node: Node, parts: list[Expr], shared: frozenset[Node]) -> Node:
    """Return ``node`` restricted by all of ``parts``, each as deep as it may go."""
    if not parts:
        return node
    if shared and canonical(node) in shared:
        return _keep(node, parts)
    if not _passes_all(node):
        safe = [p for p in parts if cannot_fail(p)]
        if len(safe) < len(parts):
            return _keep(_push(node, safe, shared), [p for p in parts if p not in safe])
    match node:
        case algebra.Filter(below, predicate):
            return _push(below, conjuncts(predicate) + parts, shared)
        case algebra.Project(below, exprs, _):
            moved = [substitute(p, exprs) for p in parts]
            return replace(node, input=_push(below, moved, shared))
        case algebra.Window():
            return _below_window(node, parts, shared)
        case algebra.Scan():
            return _into_scan(node, parts)
        case algebra.TwoSided():
            return _below_join(node, parts, shared)
        case algebra.Aggregate(below, keys, _, _) if keys:
            mine, rest = _guarded(parts, lambda p: all(c < len(keys) for c in columns_of(p)))
            moved = [substitute(p, keys) for p in mine]
            return _keep(replace(node, input=_push(below, moved, shared)), rest)
        case algebra.UnionAll(members):
            return algebra.UnionAll(tuple(_push(m, parts, shared) for m in members))
        case algebra.Distinct(below):
            return replace(node, input=_push(below, parts, shared))
        case algebra.SetOp(_, _, left, right):
            return replace(node, left=_push(left, parts, shared), right=_push(right, parts, shared))
        case algebra.Over():
            return _below_over(node, parts, shared)
        case algebra.InGroups():
            return _below_groups(node, parts, shared)
        case algebra.ToStream(kind, below, _) if kind != "rstream":
            return replace(node, input=_push(below, parts, shared))
    return _keep(node, parts)


def _passes_all(node: Node) -> bool:
    """Whether every row of the inputs is in the result, so that a condition meets no others."""
    match node:
        case algebra.TwoSided() | algebra.SetOp() | algebra.ToStream() | algebra.GroupTop():
            return False
        case algebra.Window(_, spec):
            return not spec.drops_rows
        case algebra.Over():
            return node.predicate is None
    return True


def _guarded(parts: list[Expr], movable: Callable[[Expr], bool]) -> tuple[list[Expr], list[Expr]]:
    """Split into parts that move and parts that stay; behind one that stays, none that can fail."""
    mine: list[Expr] = []
    rest: list[Expr] = []
    for part in parts:
        moves = movable(part) and (not rest or cannot_fail(part))
        (mine if moves else rest).append(part)
    return mine, rest


def _below_window(node: algebra.Window, parts: list[Expr], shared: frozenset[Node]) -> Node:
    rest: list[Expr] = []
    width = len(node.input.schema)
    if node.spec.by_time and node.spec.bounds is None:
        mine = parts
    elif node.spec.by_time:
        mine, rest = _guarded(parts, lambda p: all(c < width for c in columns_of(p)))
    else:
        allowed = set(node.spec.partition_by)
        mine, rest = _guarded(parts, lambda p: bool(columns_of(p)) and columns_of(p) <= allowed)
    stream = node.input
    match stream:
        case algebra.Scan():
            below: Node = _into_scan(stream, mine) if mine else stream
        case algebra.ToStream("rstream", _, _):
            return _keep(node, parts)
        case _:
            below = _push(stream, mine, shared)
            if algebra.is_stream(stream) and not algebra.is_stream(below):
                return _keep(node, parts)
    return _keep(replace(node, input=below), rest)


def _below_over(node: algebra.Over, parts: list[Expr], shared: frozenset[Node]) -> Node:
    """Only a condition on columns that all functions partition by leaves partitions whole."""
    width = len(node.input.schema)
    keys = [{k.index for k in c.partition if isinstance(k, Column)} for c in node.calls]
    allowed = set(range(width)).intersection(*keys)
    moved = {p: substitute(p, node.exprs) for p in parts}
    mine, rest = _guarded(parts, lambda p: bool(columns_of(p)) and columns_of(moved[p]) <= allowed)
    below = _push(node.input, [moved[p] for p in mine], shared)
    if not mine or not algebra.is_stream(below):
        return _keep(node, parts)
    return _keep(replace(node, input=below), rest)


def _below_groups(
    node: algebra.Rank | algebra.GroupTop, parts: list[Expr], shared: frozenset[Node]
) -> Node:
    """Only a condition on columns that groups are made of leaves groups whole."""
    allowed = {k.index for k in node.partition if isinstance(k, Column)}
    mine, rest = _guarded(parts, lambda p: bool(columns_of(p)) and columns_of(p) <= allowed)
    if not mine:
        return _keep(node, parts)
    return _keep(replace(node, input=_push(node.input, mine, shared)), rest)


def _into_scan(node: algebra.Scan, parts: list[Expr]) -> Node:
    if node.columns is not None:
        parts = [shift(p, dict(enumerate(node.columns))) for p in parts]
    before = [] if node.predicate is None else conjuncts(node.predicate)
    return replace(node, predicate=conjunction(before + parts))


def _below_join(node: algebra.Joining, parts: list[Expr], shared: frozenset[Node]) -> Node:
    width = len(node.left.schema)
    left, right = [], []
    if node.restrictable[0]:
        left = [p for p in parts if all(c < width for c in columns_of(p))]
    if node.restrictable[1]:
        right = [p for p in parts if p not in left and all(c >= width for c in columns_of(p))]
    both = [p for p in parts if p not in left and p not in right]
    to_right = {width + i: i for i in range(len(node.right.schema))}
    joined = replace(
        node,
        left=_push(node.left, left, shared),
        right=_push(node.right, [shift(p, to_right) for p in right], shared),
    )
    if both and isinstance(joined, algebra.Join) and joined.kind == "inner":
        known = [] if joined.residual is None else conjuncts(joined.residual)
        return replace(joined, residual=conjunction(known + both))
    return _keep(joined, both)
