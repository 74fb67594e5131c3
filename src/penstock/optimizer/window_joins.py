"""Joins of two windows that can be made together with others of the same streams [E 4.6.1].

A *window join* is an inner join of two streams, each with a window ``RANGE`` (or ``NOW``), which no
other join reads.  Of two that differ in their windows and in conditions on their rows, the larger
windows and the conditions that both have make one join, the *core*, of which each is a part.  So a
window join is told in three parts:

* ``base``: a digest of streams, keys and columns, without windows and conditions;
* ``windows``: how long the rows of its left and of its right input live;
* ``conditions``: selections of an input, and what is tested beside equal keys.  They may stand in
  the core or be tested behind it.  Without equal keys the condition of the join belongs to the
  base.

A condition that can fail must meet no rows that others keep from it: where one can, all stay where
they are and belong to the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.expr.arrow import cannot_fail
from penstock.expr.nodes import Expr, conjuncts, shift
from penstock.optimizer.nameless import canonical
from penstock.optimizer.push_filters import conjunction
from penstock.windows import LONGEST, WindowSpec

Windows = tuple[int, int]

_ANY = WindowSpec(range=1)
"""Stands for every window in a digest."""
_LEFT, _RIGHT, _BOTH = range(3)


@dataclass(frozen=True)
class WindowJoin:
    """A window join of a plan; ``conditions`` are by digest, each with the side that it is on."""

    node: algebra.Join
    windows: Windows
    conditions: Mapping[str, tuple[int, Expr]]
    bare: algebra.Join

    @property
    def name(self) -> str:
        """A digest of the whole join."""
        return digest(canonical(self.node))

    @property
    def base(self) -> str:
        """A digest of all that windows and conditions do not say."""
        return shape_of(self.bare)

    def core(self, kept: Collection[str]) -> algebra.Join:
        """Return the join with some of its conditions, and its own windows."""
        sides = [self.bare.left, self.bare.right]
        for side in (_LEFT, _RIGHT):
            own = self._some(side, kept, True)
            if own:
                sides[side] = algebra.Filter(sides[side], conjunction(own))
        both = self._some(_BOTH, kept, True)
        residual = conjunction(both) if both else self.bare.residual
        return replace(self.bare, left=sides[0], right=sides[1], residual=residual)

    def rest(self, kept: Collection[str]) -> list[Expr]:
        """Return the other conditions, over the columns of the join."""
        to_right = dict(enumerate(range(len(self.bare.left.schema), len(self.bare.schema))))
        right = [shift(e, to_right) for e in self._some(_RIGHT, kept, False)]
        return [*self._some(_LEFT, kept, False), *right, *self._some(_BOTH, kept, False)]

    def _some(self, side: int, kept: Collection[str], inside: bool) -> list[Expr]:
        found = self.conditions.items()
        return [e for name, (own, e) in found if own == side and (name in kept) == inside]


@dataclass(frozen=True)
class Part:
    """How a window join takes part in a group of joins that are made as one.

    ``since`` is from when on the group sees its streams, ``kept`` are the conditions in the core,
    ``columns`` those of the core that its queries may need.
    """

    since: int | None
    kept: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return its entry in a manifest."""
        return {"since": self.since, "kept": list(self.kept), "columns": list(self.columns)}

    @staticmethod
    def of(told: Mapping[str, Any]) -> Part:
        """Return what a manifest describes."""
        return Part(told["since"], tuple(told["kept"]), tuple(told["columns"]))


def window_joins(plan: Node) -> list[WindowJoin]:
    """Return the window joins of a plan."""
    return [join for node in _outermost(plan) if (join := _window_join(node))]


def digest(node: object) -> str:
    """Return a short name of a plan or an expression without names."""
    return hashlib.sha256(repr(node).encode()).hexdigest()[:24]


def shape_of(node: algebra.Join) -> str:
    """Return a digest of a window join that is the same for all windows."""
    wide = replace(node, left=_with_window(node.left), right=_with_window(node.right), hint="")
    return digest(canonical(wide))


def windows_of(node: Node) -> Windows | None:
    """Return the windows of a window join, None if a node is something else."""
    if not isinstance(node, algebra.Join) or node.kind != "inner":
        return None
    left, right = _length(node.left), _length(node.right)
    return None if left is None or right is None else (left, right)


def _outermost(node: Node) -> Iterator[algebra.Join]:
    """Yield the joins that no other join reads, directly or not."""
    if isinstance(node, algebra.Join):
        yield node
    elif not isinstance(node, algebra.TwoSided):
        for below in algebra.inputs(node):
            yield from _outermost(below)


def _window_join(node: algebra.Join) -> WindowJoin | None:
    windows = windows_of(node)
    if windows is None:
        return None
    left, on_left = _without_filters(node.left)
    right, on_right = _without_filters(node.right)
    both = [] if node.residual is None or not node.left_keys else conjuncts(node.residual)
    parts = [(_LEFT, e) for e in on_left] + [(_RIGHT, e) for e in on_right]
    parts += [(_BOTH, e) for e in both]
    residual = None if both else node.residual
    tested = [*node.left_keys, *node.right_keys, *(e for _, e in parts)]
    if not all(map(cannot_fail, tested if residual is None else [*tested, residual])):
        return WindowJoin(node, windows, {}, replace(node, hint=""))
    bare = replace(node, left=left, right=right, residual=residual, hint="")
    named = {digest((side, _nameless(e, node, side))): (side, e) for side, e in parts}
    return WindowJoin(node, windows, named, bare)


def _nameless(e: Expr, node: algebra.Join, side: int) -> Expr:
    """Return a condition without the names of columns."""
    over: Node = (node.left, node.right, node)[side]
    stripped = canonical(algebra.Filter(over, e))
    assert isinstance(stripped, algebra.Filter)
    return stripped.predicate


def _without_filters(node: Node) -> tuple[Node, list[Expr]]:
    """Return an input without the selections on top of it, and these, the innermost first."""
    if not isinstance(node, algebra.Filter):
        return node, []
    below, parts = _without_filters(node.input)
    return below, parts + conjuncts(node.predicate)


def _length(node: Node) -> int | None:
    """Return for how long the rows of an input live; None if it is no plain window of a stream."""
    match node:
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _length(below)
        case algebra.Window(algebra.Scan(), spec):
            length = 1 if spec.now else spec.range
            plain = length is not None and 0 < length <= LONGEST
            return length if plain and spec in (WindowSpec(now=True), range_of(length)) else None
    return None


def range_of(length: int | None) -> WindowSpec:
    """Return the window in which rows live for some time."""
    return WindowSpec(range=length)


def _with_window(node: Node) -> Node:
    """Return an input with a window that stands for all."""
    if isinstance(node, algebra.Window):
        return replace(node, spec=_ANY)
    (below,) = algebra.inputs(node)
    return algebra.with_inputs(node, (_with_window(below),))
