"""Read only what is needed: unused columns are dropped where a stream is scanned.

Columns count for equality in sets, DISTINCT, relation-to-stream operators and ties of ORDER BY,
ranks and the right side of ASOF JOIN, so everything below those is kept; so is the output of a part
that several queries share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.nodes import AggregateCall, Column, Expr, columns_of, shift
from penstock.model import Schema
from penstock.optimizer.nameless import canonical

Places = dict[int, int]
"""Where each old column that is needed stands in the new node."""


class _Parts:
    """Sub-plans without names of which some columns stay, whatever is needed; None: all of them.

    ``asked`` are the columns of each that are needed.
    """

    def __init__(self, columns: Mapping[Node, frozenset[int] | None]) -> None:
        self._columns = columns
        self.asked: dict[Node, frozenset[int]] = {}

    def kept(self, node: Node, needed: frozenset[int]) -> frozenset[int]:
        """Return the columns of a node that stay."""
        part = canonical(node) if self._columns else node
        if part not in self._columns:
            return needed
        self.asked[part] = self.asked.get(part, frozenset()) | needed
        columns = self._columns[part]
        return _all(node) if columns is None else columns


def narrow_scans(plan: Node, shared: frozenset[Node]) -> Node:
    """Drop unused columns at the scans of a plan."""
    return narrow_parts(plan, dict.fromkeys(shared))


def narrow_parts(plan: Node, parts: Mapping[Node, frozenset[int] | None]) -> Node:
    """Drop unused columns; of some parts, without names, the given ones stay (None: all)."""
    new, _ = _narrow(plan, _all(plan), _Parts(parts))
    return new


def narrow_to(node: Node, columns: frozenset[int]) -> Node:
    """Drop all columns of a node but some, as far as it does not need them itself."""
    new, _ = _narrow(node, columns, _Parts({}))
    return new


def asked_of(plan: Node, part: Node) -> frozenset[int]:
    """Return the columns of a part, without names, that the rest of a plan needs."""
    parts = _Parts({part: None})
    _narrow(plan, _all(plan), parts)
    return parts.asked[part]


def _all(node: Node) -> frozenset[int]:
    return frozenset(range(len(node.schema)))


def _narrow(node: Node, needed: frozenset[int], shared: _Parts) -> tuple[Node, Places]:
    needed = shared.kept(node, needed)
    match node:
        case algebra.Scan():
            return _scan(node, needed)
        case algebra.Window():
            return _window(node, needed, shared)
        case algebra.Filter(below, predicate):
            new, places = _narrow(below, needed | columns_of(predicate), shared)
            return algebra.Filter(new, shift(predicate, places)), places
        case algebra.Project(below, exprs, names):
            kept = sorted(needed)
            used = frozenset(c for i in kept for c in columns_of(exprs[i]))
            new, places = _narrow(below, used, shared)
            narrow = algebra.Project(
                new,
                tuple(shift(exprs[i], places) for i in kept),
                tuple(names[i] for i in kept),
            )
            return narrow, {old: at for at, old in enumerate(kept)}
        case algebra.TwoSided():
            return _join(node, needed, shared)
        case algebra.Aggregate(below, keys, calls, _):
            used = frozenset().union(*(columns_of(k) for k in keys), *(_used(c) for c in calls))
            new, places = _exactly(below, used, shared)
            narrow_calls = tuple(c.changed(lambda e: shift(e, places)) for c in calls)
            narrow_keys = tuple(shift(k, places) for k in keys)
            group = replace(node, input=new, keys=narrow_keys, aggregates=narrow_calls)
            return group, {i: i for i in range(len(node.schema))}
        case algebra.Over():
            return _over(node, needed, shared)
        case algebra.Rank() | algebra.GroupTop():
            return _ranked(node, needed, shared)
        case algebra.UnionAll(members):
            kept = sorted(needed)
            parts = tuple(_exactly(m, needed, shared)[0] for m in members)
            return algebra.UnionAll(parts), {old: at for at, old in enumerate(kept)}
    below_all = tuple(_narrow(n, _all(n), shared)[0] for n in algebra.inputs(node))
    same = all(a is b for a, b in zip(below_all, algebra.inputs(node), strict=True))
    whole = node if same else algebra.with_inputs(node, below_all)
    return whole, {i: i for i in range(len(node.schema))}


def _window(node: algebra.Window, needed: frozenset[int], shared: _Parts) -> tuple[Node, Places]:
    """Keep the bounds that are needed: without them, rows need not be cut."""
    stream, spec = node.input, node.spec
    width = len(stream.schema)
    own = frozenset(c for c in needed if c < width) | frozenset(spec.partition_by)
    if spec.until is not None:
        own |= {spec.until}
    raw = isinstance(stream, algebra.Scan)
    below, places = _narrow(stream, own if raw else _all(stream), shared)
    bounds = spec.bounds
    if bounds is not None:
        kept = [i for i in range(len(bounds.names)) if width + i in needed]
        places = places | {width + i: len(below.schema) + at for at, i in enumerate(kept)}
        names = tuple(bounds.names[i] for i in kept)
        bounds = replace(bounds, names=names) if names else None
    keys = tuple(places[k] for k in spec.partition_by)
    until = None if spec.until is None else places[spec.until]
    narrow = replace(spec, partition_by=keys, bounds=bounds, until=until)
    return algebra.Window(below, narrow), places


def _scan(node: algebra.Scan, needed: frozenset[int]) -> tuple[Node, Places]:
    kept = sorted(needed)
    if len(kept) == len(node.schema):
        return node, {i: i for i in kept}
    columns = node.columns if node.columns is not None else tuple(range(len(node.schema)))
    schema = Schema(tuple(node.schema[i] for i in kept))
    narrow = replace(
        node,
        schema=schema,
        columns=tuple(columns[i] for i in kept),
        narrowed_time=node.time_type,
    )
    return narrow, {old: at for at, old in enumerate(kept)}


def _join(node: algebra.Joining, needed: frozenset[int], shared: _Parts) -> tuple[Node, Places]:
    width = len(node.left.schema)
    residual = node.residual if isinstance(node, algebra.Join) else None
    if residual is not None:
        needed = needed | columns_of(residual)
    wanted = {"left": frozenset(c for c in needed if c < width)}
    wanted["right"] = frozenset(c - width for c in needed if c >= width)
    below, moved = {}, {}
    for side, whole in zip(wanted, node.compares_whole_rows, strict=True):
        own = node.left if side == "left" else node.right
        read = [e for exprs in algebra.exprs_over(node, side).values() for e in exprs]
        used = _all(own) if whole else wanted[side].union(*map(columns_of, read))
        below[side], moved[side] = _exactly(own, used, shared)
    new_width = len(below["left"].schema)
    places = moved["left"] | {width + old: new_width + at for old, at in moved["right"].items()}
    changes: dict[str, Any] = dict(below)
    for side in below:
        changes |= algebra.shifted(node, side, moved[side])
    if residual is not None:
        changes["residual"] = shift(residual, places)
    narrow = replace(node, **changes)
    return narrow, moved["left"] if len(node.schema) == width else places


def _over(node: algebra.Over, needed: frozenset[int], shared: _Parts) -> tuple[Node, Places]:
    """Keep the outputs that are needed, and only the functions that these read."""
    kept = sorted(needed)
    width = len(node.input.schema)
    read = [node.exprs[i] for i in kept]
    if node.predicate is not None:
        read.append(node.predicate)
    asked = frozenset().union(*(columns_of(e) for e in read))
    asked |= frozenset() if any(c >= width for c in asked) else {width}  # at least one function
    calls = [j for j in range(len(node.calls)) if width + j in asked]
    parts = [e for j in calls for e in (*node.calls[j].args, *node.calls[j].partition)]
    used = frozenset().union(*(columns_of(e) for e in parts), (c for c in asked if c < width))
    raw = isinstance(node.input, algebra.Scan)  # rows of others are ordered by all their columns
    below, places = _narrow(node.input, used if raw else _all(node.input), shared)
    moved = places | {width + j: len(below.schema) + i for i, j in enumerate(calls)}
    narrow = replace(
        node,
        input=below,
        calls=tuple(
            replace(
                node.calls[j],
                args=tuple(shift(e, places) for e in node.calls[j].args),
                partition=tuple(shift(e, places) for e in node.calls[j].partition),
            )
            for j in calls
        ),
        predicate=None if node.predicate is None else shift(node.predicate, moved),
        exprs=tuple(shift(node.exprs[i], moved) for i in kept),
        names=tuple(node.names[i] for i in kept),
    )
    return narrow, {old: at for at, old in enumerate(kept)}


def _ranked(
    node: algebra.Rank | algebra.GroupTop, needed: frozenset[int], shared: _Parts
) -> tuple[Node, Places]:
    """Keep the numbers that are needed; all columns of the input count in ties."""
    width = len(node.input.schema)
    kept = [i for i in range(len(node.names)) if width + i in needed]
    if isinstance(node, algebra.Rank) and not kept:
        return _narrow(node.input, needed, shared)
    below, _ = _narrow(node.input, _all(node.input), shared)
    names = tuple(node.names[i] for i in kept)
    places = {i: i for i in range(width)} | {width + i: width + at for at, i in enumerate(kept)}
    if isinstance(node, algebra.Rank):
        calls = tuple(node.calls[i] for i in kept)
        return replace(node, input=below, calls=calls, names=names), places
    return replace(node, input=below, names=names), places


def _exactly(node: Node, needed: frozenset[int], shared: _Parts) -> tuple[Node, Places]:
    """Narrow a node to exactly the needed columns, in order: what is not needed is not stored."""
    new, places = _narrow(node, needed, shared)
    kept = sorted(needed)
    order = [places[old] for old in kept]
    if order == list(range(len(new.schema))):
        return new, {old: at for at, old in enumerate(kept)}
    fields = new.schema
    exprs: tuple[Expr, ...] = tuple(Column(i, fields[i].type, fields[i].name) for i in order)
    project = algebra.Project(new, exprs, tuple(fields[i].name for i in order))
    return project, {old: at for at, old in enumerate(kept)}


def _used(call: AggregateCall) -> frozenset[int]:
    return frozenset().union(*(columns_of(arg) for arg in call.args))
