"""FROM items and conditions to a left-deep tree of inner joins.

The conjuncts of every ON, USING and WHERE have one meaning here.  Each goes as deep as it can:

* one that reads a single item becomes a `Filter` of that item, above its window;
* an equality between expressions of what is joined so far and of the next item becomes a join key;
* any other becomes part of the residual of the join that completes it.

A conjunct that can fail, such as a division, is not evaluated on rows that those before it sort
out: it waits for the join that completes them all.  Keys are evaluated on every row.

Items are joined in the order of the text, but an item that has an equality with what is joined so
far comes before one that has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from penstock.algebra import Filter, Join, Node, inputs, with_inputs
from penstock.expr.arrow import cannot_fail
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Call, Expr, columns_of, shift


def all_of(parts: Sequence[Expr]) -> Expr:
    """Join with AND; at least one is needed."""
    return reduce(lambda a, b: resolve_call("and", [a, b]), parts)


def hinted(node: Node, hint: str) -> Node:
    """Return a tree of joins with a hint on all inner joins that have none."""
    match node:
        case Join(kind="inner", hint="") if hint:
            left, right = hinted(node.left, hint), hinted(node.right, hint)
            return replace(node, left=left, right=right, hint=hint)
        case Join() | Filter() if hint:
            return with_inputs(node, tuple(hinted(below, hint) for below in inputs(node)))
    return node


@dataclass(frozen=True)
class _Condition:
    """A conjunct and the items that it reads or waits for."""

    expr: Expr
    items: frozenset[int]


class JoinBuilder:
    """Joins items whose columns are numbered one item after the other, in the order of the text."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.offsets = [0]
        for node in self.nodes:
            self.offsets.append(self.offsets[-1] + len(node.schema))
        self.unlinked: list[frozenset[int]] = []
        """The items that meet in a join without a condition."""
        self.item_of = [
            item for item, node in enumerate(self.nodes) for _ in range(len(node.schema))
        ]

    def build(self, parts: Sequence[Expr]) -> tuple[Node, dict[int, int]]:
        """Return the plan and where each column of the text's order stands in it."""
        conditions: list[_Condition] = []
        before: frozenset[int] = frozenset()
        for part in parts:
            items = frozenset(self.item_of[c] for c in columns_of(part))
            is_key = isinstance(part, Call) and part.name == "eq" and len(items) > 1
            if items and not is_key and not cannot_fail(part):
                items |= before
            conditions.append(_Condition(part, items))
            before |= items
        for item in range(len(self.nodes)):
            own = [c.expr for c in conditions if c.items == {item}]
            if own:
                local = [shift(e, self._local(item)) for e in own]
                self.nodes[item] = Filter(self.nodes[item], all_of(local))
        open_ = [c for c in conditions if len(c.items) > 1]
        plan, place = self._join_all(open_)
        constant = [c.expr for c in conditions if not c.items]
        if constant:
            plan = Filter(plan, all_of(constant))
        return plan, place

    def _local(self, item: int) -> dict[int, int]:
        first, last = self.offsets[item], self.offsets[item + 1]
        return {index: index - first for index in range(first, last)}

    def _join_all(self, open_: list[_Condition]) -> tuple[Node, dict[int, int]]:
        plan, joined = self.nodes[0], {0}
        place = self._local(0)
        waiting = list(range(1, len(self.nodes)))
        while waiting:
            linked = (i for i in waiting if any(self._sides(c, joined, i) for c in open_))
            item = next(linked, waiting[0])
            waiting.remove(item)
            width = len(plan.schema)
            moved = place | {i: at + width for i, at in self._local(item).items()}
            left_keys: list[Expr] = []
            right_keys: list[Expr] = []
            residual: list[Expr] = []
            done = joined | {item}
            for condition in [c for c in open_ if c.items <= done]:
                open_.remove(condition)
                sides = self._sides(condition, joined, item)
                if sides is None:
                    residual.append(shift(condition.expr, moved))
                else:
                    left_keys.append(shift(sides[0], place))
                    right_keys.append(shift(sides[1], self._local(item)))
            if not left_keys and not residual:
                self.unlinked.append(frozenset(done))
            plan = Join(
                plan,
                self.nodes[item],
                tuple(left_keys),
                tuple(right_keys),
                all_of(residual) if residual else None,
            )
            joined, place = done, moved
        return plan, place

    def _sides(
        self, condition: _Condition, joined: set[int], item: int
    ) -> tuple[Expr, Expr] | None:
        """Return an equality's side of what is joined and its side of the item, if it has both."""
        expr = condition.expr
        if (
            not isinstance(expr, Call)
            or expr.name != "eq"
            or not condition.items <= joined | {item}
        ):
            return None
        for left, right in (expr.args, expr.args[::-1]):
            ours = {self.item_of[c] for c in columns_of(left)}
            theirs = {self.item_of[c] for c in columns_of(right)}
            if ours and ours <= joined and theirs == {item}:
                return left, right
        return None
