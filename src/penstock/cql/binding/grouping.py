"""Expressions before and after a GROUP BY.

Before: columns ``0 .. n-1`` are the input's, ``n + j`` stands for the j-th aggregate.  After:
columns ``0 .. k-1`` are the keys and ``k + j`` the aggregates.  An expression can be carried over
when everything in it is a key, an aggregate or a constant.

GROUPING SETS, ROLLUP and CUBE are the union of one aggregation for each set of keys.  Keys that are
not in the set are null there, and behind the keys stands a number that says which these are: the
bit of the last key is the lowest.  GROUPING(key) and GROUPING_ID(..) are read off that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.algebra import Aggregate, Node, Project, UnionAll
from penstock.errors import QueryError
from penstock.expr.functions import resolve_call, resolve_cast
from penstock.expr.nodes import AggregateCall, Call, Column, Expr, Literal, rebuilt
from penstock.expr.types import BIGINT, INT, TINYINT

GROUPING_ID = Call("grouping_id", (), BIGINT)
"""The key that says which keys are missing; `Aggregate` does not know it."""

MARKERS = ("grouping", "grouping_id")
"""Calls that stand for a part of that number until the keys are known."""


class Stray(Exception):  # noqa: N818 -- caught where the place in the text is known
    """A column that cannot be carried over."""

    def __init__(self, column: Column) -> None:
        super().__init__(column.name)
        self.column = column


def replace_from_top(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild top-down: where ``change`` returns a replacement, what is below is not visited."""
    return change(expr) or rebuilt(expr, lambda child: replace_from_top(child, change))


def after_grouping(expr: Expr, keys: Sequence[Expr], names: Sequence[str], inputs: int) -> Expr:
    """Return the expression over the keys and aggregates; `Stray` when a column is neither."""

    def change(part: Expr) -> Expr | None:
        if isinstance(part, Call) and part.name in MARKERS and part != GROUPING_ID:
            return replace_from_top(_missing(part, keys), change)
        if part in keys:
            at = keys.index(part)
            return Column(at, part.type, names[at])
        if isinstance(part, Column):
            if part.index < inputs:
                raise Stray(part)
            return replace(part, index=len(keys) + part.index - inputs)
        return None

    return replace_from_top(expr, change)


def over_outputs(expr: Expr, outputs: Sequence[Expr], names: Sequence[str]) -> Expr:
    """Return the expression over the columns of a SELECT list; `Stray` when one is not in it."""

    def change(part: Expr) -> Expr | None:
        if part in outputs:
            at = outputs.index(part)
            return Column(at, part.type, names[at])
        if isinstance(part, Column):
            raise Stray(part)
        return None

    return replace_from_top(expr, change)


def _missing(marker: Call, keys: Sequence[Expr]) -> Expr:
    """Return GROUPING(key) or GROUPING_ID(key, ..) as a part of the number behind the keys."""
    own = [key for key in keys if key != GROUPING_ID]
    if marker.name == "grouping_id":
        if list(marker.args) != own:
            raise QueryError("GROUPING_ID must have no arguments, or all keys of GROUP BY in order")
        return GROUPING_ID
    if marker.args[0] not in own:
        raise QueryError("the argument of GROUPING must be a key of GROUP BY")
    bit = 1 << (len(own) - 1 - own.index(marker.args[0]))
    shifted = resolve_call("div", [GROUPING_ID, Literal(bit, BIGINT)])
    return resolve_cast(resolve_call("mod", [shifted, Literal(2, BIGINT)]), TINYINT)


def grouping_sets(
    node: Node,
    keys: Sequence[Expr],
    sets: Sequence[frozenset[int]],
    calls: tuple[AggregateCall, ...],
    names: Sequence[str],
) -> Node:
    """Return the aggregations by sets of keys, as one relation.

    Its columns are the keys, the number of those that are missing, and the aggregates.
    """
    members = tuple(_by_set(node, keys, chosen, calls, names) for chosen in sets)
    return members[0] if len(members) == 1 else UnionAll(members)


def _by_set(
    node: Node,
    keys: Sequence[Expr],
    chosen: frozenset[int],
    calls: tuple[AggregateCall, ...],
    names: Sequence[str],
) -> Node:
    """Return the aggregation by some of the keys; by none of them, it has no row of nothing."""
    own = sorted(chosen)
    by = tuple(keys[at] for at in own) or (Literal(0, INT),)
    aggregated = [*(names[at] for at in own or (0,)), *names[len(keys) + 1 :]]
    below = Aggregate(node, by, calls, tuple(aggregated))
    missing = sum(1 << (len(keys) - 1 - at) for at in range(len(keys)) if at not in chosen)
    exprs: list[Expr] = [
        Column(own.index(at), key.type, names[at]) if at in chosen else Literal(None, key.type)
        for at, key in enumerate(keys)
    ]
    exprs.append(Literal(missing, BIGINT))
    exprs += [Column(len(by) + i, call.type, "") for i, call in enumerate(calls)]
    return Project(below, tuple(exprs), tuple(names))
