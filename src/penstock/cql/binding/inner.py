"""A sub-query inside an expression, as data, and its rows for every row outside.

Columns of the query around have places from `OUTSIDE` on in what is bound inside.  `link` splits
the conditions that name them: an equality with an expression of the sub-query becomes a *key*, all
others are the *rest*.  What is compared of the row outside is an *argument*; in keys and rest the
arguments have places from `OUTSIDE` on, in their order.

`answer` makes the relation.  Its rows carry what the arguments must be equal to:

* with keys alone, the keys themselves, by which groups are made and rows are cut off
  (``GROUP BY``, ``LIMIT``) in addition to what the text says;
* with a rest, the arguments: all different combinations of them that there are outside are joined
  with the rows of the sub-query first, and keys and rest are the condition of that join.

So ``(SELECT AVG(y) FROM t WHERE t.k = s.k)`` is the mean by ``k``, and with ``t.k < s.k`` it is the
mean by the values that ``s.k`` has.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.algebra import (
    EVERY,
    Aggregate,
    Distinct,
    Filter,
    GroupTop,
    Join,
    Node,
    Project,
    Rank,
    SetOp,
    SortKey,
    TableScan,
    TopK,
    Window,
)
from penstock.cql.binding.asked import Placing
from penstock.cql.binding.chains import attach
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import (
    AggregateCall,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    columns_of,
    conjuncts,
    rewrite,
    shift,
)
from penstock.expr.types import BIGINT

OUTSIDE = 1 << 30
"""The place of the first column that is not the sub-query's own: more than any block has."""

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "like", "is_not_null"))


@dataclass(frozen=True)
class Grouping:
    """GROUP BY and the aggregates of a block; its columns are the keys, then the aggregates.

    ``whole``: there is no GROUP BY, so that there is one row whatever there is to aggregate.
    """

    keys: tuple[Expr, ...]
    calls: tuple[AggregateCall, ...]
    names: tuple[str, ...]
    having: Expr | None = None
    whole: bool = False


@dataclass(frozen=True)
class Cut:
    """ORDER BY .. LIMIT .. OFFSET of a sub-query; no order is that of all values."""

    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0


@dataclass(frozen=True)
class Inner:
    """A bound sub-query.

    ``conditions`` are over the columns of ``node`` and those outside.  ``values`` and the order of
    the ``cut`` are over the columns of ``node``, or of the ``grouping`` if there is one.  ``facts``
    are conditions that hold for every row of ``node``.
    """

    node: Node
    values: tuple[Expr, ...]
    conditions: tuple[Expr, ...] = ()
    facts: tuple[Expr, ...] = ()
    grouping: Grouping | None = None
    distinct: bool = False
    cut: Cut | None = None

    @staticmethod
    def of(plan: Node) -> Inner:
        """Return a plan as a sub-query that depends on nothing outside."""
        return Inner(plan, tuple(columns(plan)))

    @property
    def whole(self) -> bool:
        """Whether it has one row, whatever there is to aggregate, but for its HAVING."""
        return self.grouping is not None and self.grouping.whole

    @property
    def plain(self) -> bool:
        """Whether a row outside has nothing to do with it but by the conditions."""
        return self.grouping is None and self.cut is None and not self.distinct


@dataclass(frozen=True)
class Linked:
    """A sub-query whose conditions are split; ``keys`` equal the first of ``count`` arguments."""

    inner: Inner
    count: int = 0
    keys: tuple[Expr, ...] = ()
    rest: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Rows that carry in the columns ``by`` what a row outside is compared with by ``matches``.

    ``values`` are over the columns of ``node``; ``matches`` are over the columns ``by``, counted
    from 0, and the arguments.
    """

    node: Node
    values: tuple[Expr, ...]
    by: tuple[Expr, ...]
    matches: tuple[Expr, ...]


def columns(node: Node) -> list[Expr]:
    """Return the columns of a node, each as an expression."""
    return [Column(at, f.type, f.name) for at, f in enumerate(node.schema.fields)]


def outside(index: int) -> bool:
    """Whether a place is one of the query around."""
    return index >= OUTSIDE


def reads_outside(expr: Expr) -> bool:
    """Whether an expression names a column of the query around."""
    return any(map(outside, columns_of(expr)))


def link(inner: Inner) -> tuple[Linked, tuple[Expr, ...]]:
    """Split the conditions of a sub-query; return the arguments, over the columns outside, too."""
    keys: list[Expr] = []
    args: list[Expr] = []
    rest: list[Expr] = []
    for condition in inner.conditions:
        sides = _equality(condition)
        if sides is None:
            rest.append(condition)
        else:
            keys.append(sides[0])
            args.append(_moved(sides[1], -OUTSIDE))
    named = {
        part.index: part for condition in rest for part in _leaves(condition) if outside(part.index)
    }
    places = {index: OUTSIDE + len(args) + at for at, index in enumerate(sorted(named))}
    args += [replace(named[index], index=index - OUTSIDE) for index in sorted(named)]
    given = tuple(_renumbered(condition, places) for condition in rest)
    return Linked(inner, len(args), tuple(keys), given), tuple(args)


def _leaves(expr: Expr) -> list[Column]:
    found: list[Column] = []

    def note(part: Expr) -> None:
        if isinstance(part, Column):
            found.append(part)

    rewrite(expr, note)
    return found


def _renumbered(expr: Expr, places: dict[int, int]) -> Expr:
    return shift(expr, {c: places.get(c, c) for c in columns_of(expr)})


def _moved(expr: Expr, by: int) -> Expr:
    return shift(expr, {c: c + by for c in columns_of(expr)})


def _equality(condition: Expr) -> tuple[Expr, Expr] | None:
    """Return the inner and the outer side of an equality between the two."""
    if isinstance(condition, Call) and condition.name == "eq":
        for mine, theirs in (condition.args, condition.args[::-1]):
            within, without = columns_of(mine), columns_of(theirs)
            if within and without and not any(map(outside, within)) and all(map(outside, without)):
                return mine, theirs
    return None


def answer(linked: Linked, plan: Node, args: Sequence[Expr], direct: bool = False) -> Answer:
    """Return the rows of a sub-query for the rows of ``plan``, over which the arguments are.

    ``direct``: a plain sub-query may stay as it is, and its rest be tested with each row.
    """
    inner, keys, args = linked.inner, linked.keys, args[: linked.count]
    if not linked.rest:
        node, values, by = by_columns(inner, inner.node, keys)
        return Answer(node, values, by, tuple(_equal(keys, range(len(keys)))))
    if direct and inner.plain:
        used = sorted({c for r in linked.rest for c in columns_of(r) if not outside(c)})
        read = {p.index: p for r in linked.rest for p in _leaves(r)}
        places = {c: len(keys) + at for at, c in enumerate(used)}
        rest = [_renumbered(r, places) for r in linked.rest]
        by = (*keys, *(read[c] for c in used))
        return Answer(inner.node, inner.values, by, (*_equal(keys, range(len(keys))), *rest))
    width = len(inner.node.schema)
    names = tuple(f"outer {at + 1}" for at in range(len(args)))
    given = Distinct(Project(plan, tuple(args), names))
    places = {OUTSIDE + at: width + at for at in range(len(args))}
    parts = [
        resolve_call("eq", [key, Column(width + at, args[at].type)]) for at, key in enumerate(keys)
    ]
    parts += [_renumbered(r, places) for r in linked.rest]
    joined = attach("inner", inner.node, given, parts)
    by = tuple(Column(width + at, arg.type, names[at]) for at, arg in enumerate(args))
    node, values, by = by_columns(inner, joined, by)
    sure = {*range(len(keys)), *_never_null(linked.rest)}
    return Answer(node, values, by, tuple(_equal(by, sure)))


def _never_null(conditions: Iterable[Expr]) -> set[int]:
    """Return which arguments are not null where all of the conditions are true."""
    found = set()
    for part in known(conditions):
        while isinstance(part, Cast):
            part = part.arg
        if isinstance(part, Column) and outside(part.index):
            found.add(part.index - OUTSIDE)
    return found


def known(facts: Iterable[Expr]) -> set[Expr]:
    """Return expressions that are not null where all of the facts are true."""
    return {
        arg
        for fact in facts
        if isinstance(fact, Call) and fact.name in _COMPARISONS
        for arg in fact.args
    }


def _equal(by: Sequence[Expr], sure: Container[int]) -> list[Expr]:
    """Return that each column equals its argument; nulls are equal where they are not ``sure``."""
    return [
        resolve_call(
            "eq" if at in sure else "eq_null_safe",
            [Column(at, part.type), Column(OUTSIDE + at, part.type)],
        )
        for at, part in enumerate(by)
    ]


def by_columns(
    inner: Inner, node: Node, by: Sequence[Expr]
) -> tuple[Node, tuple[Expr, ...], tuple[Expr, ...]]:
    """Return the rows of a sub-query over ``node``, its values and the columns ``by`` in them."""
    values, order = inner.values, () if inner.cut is None else inner.cut.order
    found = tuple(by)
    if inner.grouping is not None:
        node, found, move = _grouped(inner.grouping, node, by)
        values = tuple(map(move, values))
        order = tuple(replace(key, expr=move(key.expr)) for key in order)
    placing = Placing(node)
    values = tuple(placing.put(values))
    order = tuple(replace(key, expr=placing.one(key.expr)) for key in order)
    node = placing.node
    if inner.distinct:
        node, values, found, _ = _projected(node, values, found, ())
        node = Distinct(node)
    if inner.cut is not None:
        node, values, found, order = _projected(node, values, found, order)
        node = _cut(inner.cut, node, found, order or tuple(SortKey(v) for v in values))
    return node, values, found


def _grouped(
    grouping: Grouping, node: Node, by: Sequence[Expr]
) -> tuple[Node, tuple[Expr, ...], Callable[[Expr], Expr]]:
    """Return the groups by the keys of the text and by ``by``, and how expressions move."""
    keys = list(grouping.keys)
    keys += [part for at, part in enumerate(by) if part not in (*keys, *by[:at])]
    first = len(grouping.keys)
    added = len(keys) - first
    own, names = grouping.names[:first], grouping.names[first:]
    names = (*own, *(f"key {at + 1}" for at in range(added)), *names)

    def move(expr: Expr) -> Expr:
        return shift(expr, {c: c if c < first else c + added for c in columns_of(expr)})

    found = tuple(Column(keys.index(part), part.type, names[keys.index(part)]) for part in by)
    placing = Placing(Aggregate(node, tuple(keys), grouping.calls, names))
    if grouping.having is None:
        return placing.node, found, move
    having = placing.one(move(grouping.having))
    return Filter(placing.node, having), found, move


def _projected(
    node: Node, values: Sequence[Expr], by: Sequence[Expr], order: Sequence[SortKey]
) -> tuple[Node, tuple[Expr, ...], tuple[Expr, ...], tuple[SortKey, ...]]:
    """Return a node of just these columns, and them in it."""
    exprs = (*values, *by, *(key.expr for key in order))
    names = [f"value {at + 1}" for at in range(len(values))]
    names += [f"key {at + 1}" for at in range(len(by))]
    names += [f"order {at + 1}" for at in range(len(order))]
    made = Project(node, exprs, tuple(names))
    found = tuple(columns(made))
    first, last = len(values), len(values) + len(by)
    sort = tuple(replace(key, expr=e) for key, e in zip(order, found[last:], strict=True))
    return made, found[:first], found[first:last], sort


def _cut(cut: Cut, node: Node, by: tuple[Expr, ...], order: tuple[SortKey, ...]) -> Node:
    """Return the first rows of each of ``by``."""
    limit = EVERY if cut.limit is None else cut.limit
    if not by:
        return TopK(node, order, limit, cut.offset)
    if not cut.offset:
        return GroupTop(node, by, order, "row_number", limit)
    made = GroupTop(node, by, order, "row_number", limit + cut.offset, ("number",))
    number = Column(len(node.schema), BIGINT, "number")
    return Filter(made, resolve_call("gt", [number, Literal(cut.offset, BIGINT)]))


# ---- at most one row


def gives_one(linked: Linked) -> bool:
    """Whether there is at most one row at each instant for each row outside."""
    if linked.inner.cut is not None and linked.inner.cut.limit in (0, 1):
        return True
    node, values, by = by_columns(linked.inner, linked.inner.node, linked.keys)
    node, _, by, _ = _projected(node, values, by, ())
    return single(node, frozenset(p.index for p in by if isinstance(p, Column)))


def single(node: Node, given: frozenset[int] = frozenset()) -> bool:
    """Whether a relation surely has at most one row with given values in some columns."""
    match node:
        case Aggregate(_, keys):
            fixed = _constant(node.input)
            return all(
                at in given
                or isinstance(key, Literal)
                or (isinstance(key, Column) and key.index in fixed)
                for at, key in enumerate(keys)
            )
        case Project(below, exprs):
            named = (exprs[at] for at in given)
            return single(below, frozenset(e.index for e in named if isinstance(e, Column)))
        case Filter(below):
            return single(below, given | _constant(node))
        case TopK(below, limit=limit):
            return limit <= 1 or single(below, given)
        case GroupTop(below, partition, limit=limit, by=number):
            numbered = {p.index if isinstance(p, Column) else -1 for p in partition}
            first = limit <= 1 and number == "row_number" and numbered <= given
            return first or single(below, given)
        case Window(spec=spec):
            return spec.rows == 1 and spec.hop is None and frozenset(spec.partition_by) <= given
        case TableScan(rows=rows):
            return rows is not None and len(rows) <= 1
        case Distinct(below):
            return given >= frozenset(range(len(node.schema))) or single(below, given)
        case SetOp(kind, _, left, right):
            return single(left, given) or (kind == "intersect" and single(right, given))
        case Rank(below):
            return single(below, given)
        case Join(kind="semi" | "anti"):
            return single(node.left, given)
        case Join(kind="inner" | "left"):
            return _single_join(node, given)
    return False


def _single_join(join: Join, given: frozenset[int]) -> bool:
    width = len(join.left.schema)
    left = frozenset(c for c in given if c < width)
    right = frozenset(c - width for c in given if c >= width)
    linked = frozenset(k.index for k in join.right_keys if isinstance(k, Column))
    return single(join.left, left) and single(join.right, right | linked)


def _constant(node: Node) -> frozenset[int]:
    """Return columns that have one value in all rows of a snapshot."""
    match node:
        case Filter(below, predicate):
            found = set(_constant(below))
            for part in conjuncts(predicate):
                if isinstance(part, Call) and part.name == "eq":
                    for one, other in (part.args, part.args[::-1]):
                        if isinstance(one, Column) and isinstance(other, Literal):
                            found.add(one.index)
            return frozenset(found)
        case Project(below, exprs):
            fixed = _constant(below)
            return frozenset(
                at
                for at, e in enumerate(exprs)
                if isinstance(e, Literal) or (isinstance(e, Column) and e.index in fixed)
            )
    return frozenset()
