"""FROM items in the order of the text: joins of every kind, associated from left to right.

Inner joins are only gathered, because the order in which they are made is free
(`cql.binding.joining`).  Any other kind is made at once: its left side is everything since the
last comma.  The conjuncts of its ON belong to the join, they are no selection: an equality between
the sides becomes a key, one that reads only the side whose lonely rows are dropped or filled with
nulls becomes a selection of that side, and the rest is the join's residual.

Columns are numbered one item after another, in the order of the text.  Of a SEMI or ANTI join only
those of the left side stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.algebra import (
    Aggregate,
    Distinct,
    Filter,
    GroupTop,
    Join,
    Node,
    Over,
    Project,
    Scan,
    SetOp,
    TableScan,
    TopK,
    ToStream,
    Window,
    inputs,
    is_mortal,
    streams_of,
)
from penstock.cql.binding.joining import JoinBuilder, all_of
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Span
from penstock.expr.arrow import cannot_fail
from penstock.expr.nodes import Call, Column, Expr, columns_of, shift


@dataclass(frozen=True)
class _Unit:
    """A plan that waits to be joined with others, and where its first item stands in the text."""

    node: Node
    span: Span


class Chain:
    """The items that are joined so far. ``once``: they are joined at one instant only."""

    def __init__(self, source: Script, once: bool = False) -> None:
        self._source = source
        self._once = once
        self._units: list[_Unit] = []
        self._tree = 0  # the first unit since the last comma
        self._parts: list[Expr] = []
        self._own: list[Expr] = []  # the conditions of inner joins since the last comma

    @property
    def nodes(self) -> list[Node]:
        """The plans that wait to be joined."""
        return [unit.node for unit in self._units]

    @property
    def width(self) -> int:
        """The number of columns so far."""
        return sum(len(node.schema) for node in self.nodes)

    @property
    def tree(self) -> int:
        """The position of the first column since the last comma."""
        return sum(len(node.schema) for node in self.nodes[: self._tree])

    def comma(self, node: Node, span: Span) -> None:
        """Begin a new tree of joins."""
        self._parts += self._own
        self._own = []
        self._tree = len(self._units)
        self._units.append(_Unit(node, span))

    def inner(self, node: Node, parts: Sequence[Expr], span: Span) -> None:
        """Gather an item and the conditions of its join."""
        self._units.append(_Unit(node, span))
        self._own += parts

    def other(self, kind: str, node: Node, parts: Sequence[Expr], span: Span) -> None:
        """Join an item with everything since the last comma."""
        first, units = self.tree, self._units[self._tree :]
        moved = {i: i - first for i in range(first, self.width + len(node.schema))}

        def make(left: Node) -> Node:
            joined = attach(kind, left, node, [shift(p, moved) for p in parts])
            if not joined.left_keys and joined.residual is None:
                self._check_bounds([*units, _Unit(node, span)])
            return joined

        self.put(make)

    def put(self, make: Callable[[Node], Node]) -> None:
        """Put what is made of everything since the last comma in its place."""
        first, units = self.tree, self._units[self._tree :]
        moved = {i: i - first for i in range(first, self.width)}
        left = in_order(*self._joined(units, [shift(p, moved) for p in self._own]))
        self._units[self._tree :] = [_Unit(make(left), units[0].span)]
        self._own = []

    def append(self, expr: Expr, name: str) -> Column:
        """Compute a column behind those of the last join; return it as a column of the chain."""
        last = self._units[-1]
        first = self.width - len(last.node.schema)
        columns = [Column(i, f.type, f.name) for i, f in enumerate(last.node.schema)]
        local = shift(expr, {first + i: i for i in range(len(columns))})
        names = (*last.node.schema.names, name)
        node = Project(last.node, (*columns, local), names)
        self._units[-1] = replace(last, node=node)
        return Column(self.width - 1, expr.type, name)

    def build(self, parts: Sequence[Expr]) -> tuple[Node, dict[int, int]]:
        """Return the plan of all items, restricted by ``parts`` too, and where columns stand."""
        return self._joined(self._units, [*self._parts, *self._own, *parts])

    def _joined(self, units: list[_Unit], parts: list[Expr]) -> tuple[Node, dict[int, int]]:
        builder = JoinBuilder([unit.node for unit in units])
        found = builder.build(parts)
        for items in builder.unlinked:
            self._check_bounds([units[i] for i in sorted(items)])
        return found

    def _check_bounds(self, units: list[_Unit]) -> None:
        """Every pair of two streams is too much, unless windows bound what is there at a time."""
        if self._once or sum(bool(streams_of(unit.node)) for unit in units) < 2:
            return
        for unit in units:
            if not is_bounded(unit.node):
                self._source.fail(
                    f"{self._source.text(unit.span)} must have a window that bounds it, such as "
                    f"[ROWS 100] or [RANGE ..], because no condition links it to the rest of FROM: "
                    f"its rows would be paired with every row that ever comes; add a window or a "
                    f"condition",
                    unit.span,
                )


def in_order(plan: Node, place: dict[int, int]) -> Node:
    """Return a plan with its columns in the order of the text."""
    order = [place[i] for i in range(len(place))]
    if order == list(range(len(order))):
        return plan
    fields = [plan.schema[i] for i in order]
    exprs = tuple(Column(at, f.type, f.name) for at, f in zip(order, fields, strict=True))
    return Project(plan, exprs, tuple(f.name for f in fields))


def attach(kind: str, left: Node, right: Node, parts: Sequence[Expr]) -> Join:
    """Return a join on conditions over both sides."""
    width = len(left.schema)
    to_right = {width + i: i for i in range(len(right.schema))}
    filters: dict[str, list[Expr]] = {"left": [], "right": []}
    pairs: list[tuple[Expr, Expr]] = []
    residual: list[Expr] = []
    for part in parts:
        sides = _sides(part, width)
        side = next((s for s in _RESTRICTED[kind] if sides <= {s}), None)
        others = [f for s, found in filters.items() if s != side for f in found]
        waits = bool(pairs or residual or others)
        key = _key(part, width)
        if key is not None:
            pairs.append((key[0], shift(key[1], to_right)))
        elif side is not None and (cannot_fail(part) or not waits):
            filters[side].append(part if side == "left" else shift(part, to_right))
        else:
            residual.append(part)
    if filters["left"]:
        left = Filter(left, all_of(filters["left"]))
    if filters["right"]:
        right = Filter(right, all_of(filters["right"]))
    return Join(
        left,
        right,
        tuple(a for a, _ in pairs),
        tuple(b for _, b in pairs),
        all_of(residual) if residual else None,
        kind,
    )


_RESTRICTED = {
    "inner": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
    "full": (),
    "semi": ("right", "left"),
    "anti": ("right",),
}
"""The sides whose rows without a partner are not in the result, by kind of join."""


def _sides(expr: Expr, width: int) -> set[str]:
    return {"left" if c < width else "right" for c in columns_of(expr)}


def _key(expr: Expr, width: int) -> tuple[Expr, Expr] | None:
    """Return the two sides of an equality between the two sides of a join."""
    if isinstance(expr, Call) and expr.name == "eq":
        for left, right in (expr.args, expr.args[::-1]):
            if _sides(left, width) == {"left"} and _sides(right, width) == {"right"}:
                return left, right
    return None


def is_bounded(node: Node) -> bool:
    """Whether the rows of a relation that are there at one time do not pile up for ever."""
    match node:
        case Window(_, spec):
            return is_mortal(node) or spec.rows is not None or spec.before is not None
        case Scan() | ToStream() | Over():
            return False
        case TableScan() | Aggregate() | TopK() | GroupTop():
            return True
        case Join(left, right, kind="inner" | "semi") | SetOp("intersect", _, left, right):
            return is_mortal(node) or (is_bounded(left) and is_bounded(right))
        case Join(left, kind="anti") | SetOp(left=left):
            return is_bounded(left)
        case Distinct(below):
            return is_bounded(below)
    return all(is_bounded(below) for below in inputs(node))
