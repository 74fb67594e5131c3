"""Group before rows are cut: ``GROUP BY window_start, window_end, k`` groups by ``k`` alone.

At one instant all rows of a window have the same bounds, so these make no other groups than the
keys beside them.  The groups of ``HOP T SLIDE D`` without bounds change at pulses only, and rows
need not be cut into one for each window: a row is added to a group and taken away once, from panes.
The snapshot at each pulse is then shown until the next, with the bounds of the window that ends
there; conditions on the bounds alone are asked of these few rows.

An aggregate of a bound, or a condition on a bound and another column, needs the rows as they are;
so does an expression that can fail on rows that a condition on a bound would have left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.arrow import cannot_fail
from penstock.expr.nodes import (
    AggregateCall,
    Column,
    Expr,
    Literal,
    columns_of,
    conjuncts,
    shift,
    substitute,
)
from penstock.optimizer.push_filters import conjunction
from penstock.windows import WindowSpec


def group_before_bounds(plan: Node, shared: frozenset[Node]) -> Node:
    """Rewrite every aggregate of a plan that groups by bounds; what is shared is so alike."""
    below = algebra.inputs(plan)
    new = tuple(group_before_bounds(node, shared) for node in below)
    if any(a is not b for a, b in zip(new, below, strict=True)):
        plan = algebra.with_inputs(plan, new)
    if isinstance(plan, algebra.Aggregate):
        return _grouped(plan) or plan
    return plan


@dataclass(frozen=True)
class _Read:
    """What an aggregate reads of a window that shows its bounds, over the window's columns."""

    window: algebra.Window
    keys: list[Expr]
    calls: list[AggregateCall]
    conditions: list[Expr]

    def is_bound(self, expr: Expr) -> bool:
        """Whether an expression reads bounds only."""
        used = columns_of(expr)
        return bool(used) and min(used) >= len(self.window.input.schema)

    def is_own(self, expr: Expr) -> bool:
        """Whether an expression reads no bounds."""
        return all(c < len(self.window.input.schema) for c in columns_of(expr))


def _read(node: algebra.Aggregate) -> _Read | None:
    """Follow an aggregate down to a window by HOP with bounds, if there is one."""
    keys, calls = list(node.keys), list(node.aggregates)
    conditions: list[Expr] = []
    below = node.input
    while True:
        match below:
            case algebra.Filter(input, predicate):
                conditions = conjuncts(predicate) + conditions
            case algebra.Project(input, exprs, _):
                keys = [substitute(key, exprs) for key in keys]
                calls = [call.changed(partial(substitute, inputs=exprs)) for call in calls]
                conditions = [substitute(condition, exprs) for condition in conditions]
            case algebra.Window(_, spec) if spec.hop is not None and spec.bounds is not None:
                return _Read(below, keys, calls, conditions)
            case _:
                return None
        below = input


def _grouped(node: algebra.Aggregate) -> Node | None:
    found = _read(node)
    if found is None or not any(found.is_bound(key) for key in found.keys):
        return None
    late = [c for c in found.conditions if found.is_bound(c)]
    early = [c for c in found.conditions if found.is_own(c)]
    arguments = [argument for call in found.calls for argument in call.args]
    given = [*early, *arguments]
    given += [key for key in found.keys if found.is_own(key)]
    movable = not late or all(cannot_fail(part) for part in (*late, *given))
    split = len(late) + len(early) == len(found.conditions)
    plain = all(found.is_own(a) for a in arguments)
    clear = all(found.is_bound(key) or found.is_own(key) for key in found.keys)
    if not (movable and split and plain and clear):
        return None
    spec = found.window.spec
    assert spec.slide is not None
    rows: Node = replace(found.window, spec=replace(spec, bounds=None, shift=None))
    if early:
        rows = algebra.Filter(rows, conjunction(early))
    groups = _groups(rows, node, found)
    pulses = ((spec.slide, spec.pulses_from),)
    at_pulses = algebra.ToStream("rstream", groups, pulses, to_the_end=True)
    cut = WindowSpec(range=spec.slide, bounds=spec.bounds, shift=spec.shift)
    shown: Node = algebra.Window(at_pulses, cut)
    width, new_width = len(found.window.input.schema), len(groups.schema)
    places = {width + i: new_width + i for i in range(len(shown.schema) - new_width)}
    if late:
        shown = algebra.Filter(shown, conjunction([shift(c, places) for c in late]))
    kept = iter(Column(i, f.type, f.name) for i, f in enumerate(groups.schema.fields[:new_width]))
    if not any(found.is_own(key) for key in found.keys):
        next(kept)  # the key that stands for none
    exprs = [shift(k, places) if found.is_bound(k) else next(kept) for k in found.keys]
    return algebra.Project(shown, (*exprs, *kept), node.names)


def _groups(rows: Node, node: algebra.Aggregate, found: _Read) -> algebra.Aggregate:
    """Return the aggregate by the other keys; without any, by one that is always the same.

    The aggregate of all rows would have a result where there are none.
    """
    pairs = zip(found.keys, node.names, strict=False)
    own = [(key, name) for key, name in pairs if found.is_own(key)]
    own = own or [(Literal(0, pa.int32()), "all")]
    names = (*(name for _, name in own), *node.names[len(found.keys) :])
    return algebra.Aggregate(rows, tuple(key for key, _ in own), tuple(found.calls), names)
