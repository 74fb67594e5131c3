"""The oracle's window functions over a snapshot: group by group and row by row, in plain Python."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.algebra import GroupTop, Rank, SortKey
from penstock.expr.frames import Extent, RankCall
from penstock.expr.nodes import AggregateCall
from penstock.reference.aggregates import aggregate
from penstock.reference.expressions import evaluate
from penstock.reference.values import canonical, compare

Values: TypeAlias = tuple[Any, ...]
Snapshot: TypeAlias = Counter[Values]


def by_members(a: Values, b: Values) -> int:
    """Order tuples by their members: null first, NaN greatest."""
    return next((c for x, y in zip(a, b, strict=True) if (c := compare(x, y))), 0)


def in_order(keys: Sequence[SortKey]) -> Callable[[Values], Any]:
    """Order rows by the keys, then by all columns ascending, nulls first."""

    def by_keys(a: Values, b: Values) -> int:
        return _by_keys(keys, a, b) or by_members(a, b)

    return functools.cmp_to_key(by_keys)


def _by_keys(keys: Sequence[SortKey], a: Values, b: Values) -> int:
    for key in keys:
        x, y = evaluate(key.expr, a), evaluate(key.expr, b)
        if (x is None) != (y is None):
            return -1 if (x is None) == key.nulls_first else 1
        if sign := compare(x, y):
            return -sign if key.descending else sign
    return 0


def rank(node: Rank, rows: Snapshot) -> Snapshot:
    """Return the rows of a snapshot with what window functions give for them."""
    found: Snapshot = Counter()
    for group in _groups(node, rows):
        peers = _peers(node, group)
        for at, row in enumerate(group):
            near = [_nearby(node, c.extent, group, peers, at) for c in node.calls]
            made = (
                _function(c, group, peers, at, n) for c, n in zip(node.calls, near, strict=True)
            )
            found[row + tuple(map(canonical, made))] += 1
    return found


def group_top(node: GroupTop, rows: Snapshot) -> Snapshot:
    """Return the rows of a snapshot whose number in their group is at most the limit."""
    found: Snapshot = Counter()
    for group in _groups(node, rows):
        peers = _peers(node, group)
        for at, row in enumerate(group):
            number = _number(node.by, peers, at)
            if number <= node.limit:
                found[(*row, number) if node.names else row] += 1
    return found


def _groups(node: Rank | GroupTop, rows: Snapshot) -> list[list[Values]]:
    """Return the groups of a snapshot, each in order."""
    groups: dict[Values, list[Values]] = {}
    for row in rows.elements():
        key = tuple(canonical(evaluate(k, row)) for k in node.partition)
        groups.setdefault(key, []).append(row)
    return [sorted(group, key=in_order(node.order)) for group in groups.values()]


def _peers(node: Rank | GroupTop, group: list[Values]) -> list[int]:
    """Return the number of each row's class of peers, from 0."""
    classes: list[int] = []
    for at, row in enumerate(group):
        new = at > 0 and _by_keys(node.order, group[at - 1], row) != 0
        classes.append((classes[-1] if classes else 0) + new)
    return classes


def _number(name: str, peers: list[int], at: int) -> int:
    match name:
        case "row_number":
            return at + 1
        case "rank":
            return peers.index(peers[at]) + 1
    return peers[at] + 1


def _function(
    call: RankCall, group: list[Values], peers: list[int], at: int, near: list[Values]
) -> Any:
    """Return one function for the row at a place of its group."""
    size = len(group)
    match call.name:
        case "row_number" | "rank" | "dense_rank":
            return _number(call.name, peers, at)
        case "ntile":
            buckets = [b for b in range(call.offset) for _ in range(_bucket(size, call.offset, b))]
            return buckets[at] + 1
        case "percent_rank":
            return peers.index(peers[at]) / (size - 1) if size > 1 else 0.0
        case "cume_dist":
            return sum(p <= peers[at] for p in peers) / size
        case "lag" | "lead":
            there = at + (call.offset if call.name == "lead" else -call.offset)
            if 0 <= there < size:
                return evaluate(call.args[0], group[there])
            return evaluate(call.args[1], group[at])
    rows = near
    if call.name in ("first_value", "last_value", "nth_value"):
        place = {"first_value": 0, "last_value": len(rows) - 1}.get(call.name, call.offset - 1)
        return evaluate(call.args[0], rows[place]) if 0 <= place < len(rows) else None
    arg = call.args[0] if call.args else None
    return aggregate(AggregateCall(call.name, arg, call.type), rows)


def _nearby(
    node: Rank, extent: Extent, group: list[Values], peers: list[int], at: int
) -> list[Values]:
    """Return the rows of the group in the extent of a row."""
    if extent.unit == "rows" or {extent.start, extent.end} <= {None, 0}:
        return [row for i, row in enumerate(group) if _inside(extent, i, at, peers)]
    (key,) = node.order
    mine = evaluate(key.expr, group[at])
    found = []
    for i, row in enumerate(group):
        theirs = evaluate(key.expr, row)
        if mine is None or theirs is None:  # nulls stand on one side of all others
            bound = extent.start if i < at else extent.end
            low = high = peers[i] == peers[at] or bound is None
        else:
            apart = mine - theirs if key.descending else theirs - mine
            low = extent.start is None or apart >= extent.start
            high = extent.end is None or apart <= extent.end
        if low and high:
            found.append(row)
    return found


def _bucket(size: int, buckets: int, bucket: int) -> int:
    """Return how many rows a bucket has: the first ones have one more, if it does not come out."""
    return size // buckets + (bucket < size % buckets)


def _inside(extent: Extent, other: int, at: int, peers: list[int]) -> bool:
    """Whether another row of the group is in the extent of a row."""
    if extent.unit == "rows":
        low = extent.start is None or other - at >= extent.start
        return low and (extent.end is None or other - at <= extent.end)
    low = extent.start is None or peers[other] >= peers[at]
    return low and (extent.end is None or peers[other] <= peers[at])
