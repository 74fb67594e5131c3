"""``WHERE n <= 3`` around a sub-query that numbers rows from the newest back.

``SELECT k, x FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY t DESC) AS n FROM s) q
WHERE n <= 3`` is how SQL says "the last three rows of each k".  The condition is moved into the
QUALIFY of the sub-query, where it makes a window of it (`cql.binding.over`).  With a bound of 1
the number is 1; with others it changes with every row: where anything else reads it, the condition
stays, and the rows of each snapshot are numbered (`cql.binding.ranks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from sqlglot import exp

from penstock.cql.grammar.syntax import (
    FromItem,
    Name,
    OverSyntax,
    QuerySyntax,
    Scalar,
    SelectItem,
    SelectQuery,
    conjuncts_of,
    span_of,
)

_COMPARISONS = (exp.LT, exp.LTE, exp.EQ, exp.GT, exp.GTE)


def newest_item(query: QuerySyntax) -> SelectItem | None:
    """Return the item of a query that numbers rows from the newest back and is not bounded yet."""
    block = _block(query)
    if block is None or block.qualify is not None:
        return None
    named = {name.text.lower(): window for name, window in block.windows}
    for item in block.items:
        if item.alias is not None and _counts_back(item.expr, named):
            return item
    return None


def push_bound(block: SelectQuery, deferred: Mapping[str, QuerySyntax]) -> SelectQuery:
    """Return a block whose bounds of such numbers stand in the sub-queries."""
    sources = []
    for item in block.sources:
        query = item.source
        if isinstance(query, Name) and query.text.lower() in deferred:
            item = replace(
                item,
                source=deferred[query.text.lower()],
                alias=item.alias or Name(query.text, query.span),
            )
            query = item.source
        number = newest_item(query) if isinstance(query, QuerySyntax) else None
        if number is not None:
            block, item = _moved(block, item, number)
        sources.append(item)
    return replace(block, sources=tuple(sources))


def _moved(block: SelectQuery, item: FromItem, number: SelectItem) -> tuple[SelectQuery, FromItem]:
    assert number.alias is not None
    assert isinstance(item.source, QuerySyntax)
    name, qualifier = number.alias.text, item.alias.text if item.alias else ""
    parts = conjuncts_of(block.where) if block.where is not None else []
    bound = next((p for p in parts if _compares(p, name, qualifier)), None)
    inner = _block(item.source)
    if bound is None or inner is None:
        return block, item
    one = _is_one(bound)
    rest = [p for p in parts if p is not bound]
    where = reduce(lambda a, b: exp.And(this=a, expression=b), rest) if rest else None
    unbounded, block = block, replace(block, where=where)
    if not one and _is_read(block, name, qualifier):
        return unbounded, item
    inner = replace(
        inner,
        qualify=_unqualified(bound),
        items=inner.items if one else tuple(i for i in inner.items if i is not number),
    )
    if not one:  # the number itself is not shown: the bound names the function
        inner = replace(inner, qualify=_with(bound, number.expr))
    return block, replace(item, source=_with_block(item.source, inner))


def _is_read(block: SelectQuery, name: str, qualifier: str) -> bool:
    """Whether anything reads the number beside its bound."""
    for item in block.items:
        theirs = item.qualifier is None or item.qualifier.text.lower() == qualifier.lower()
        if item.star and theirs:
            return True
    others = [i.expr for i in block.items] + [block.where, block.having, block.qualify]
    others += [*(block.group_by or ()), *(i.on for i in block.sources)]
    parts = (part for node in others if node is not None for part in node.find_all(exp.Column))
    return any(_names(part, name, qualifier) for part in parts)


def _block(query: QuerySyntax) -> SelectQuery | None:
    """Return the SELECT block that a query consists of, if it is nothing but one."""
    if query.names or query.cuts or query.order:
        return None
    if isinstance(query.body, QuerySyntax):
        return _block(query.body)
    return query.body if isinstance(query.body, SelectQuery) else None


def _with_block(query: QuerySyntax, block: SelectQuery) -> QuerySyntax:
    if isinstance(query.body, QuerySyntax):
        return replace(query, body=_with_block(query.body, block))
    return replace(query, body=block)


def _counts_back(node: Scalar | None, named: Mapping[str, OverSyntax]) -> bool:
    if not isinstance(node, exp.Anonymous) or "over" not in node.meta:
        return False
    window: OverSyntax | None = node.meta["over"]
    while window is not None and not window.order and window.base is not None:
        window = named.get(window.base.text.lower())
    descends = window is not None and bool(window.order) and window.order[0].descending
    return str(node.this).lower() == "row_number" and descends


def _names(node: Scalar, name: str, qualifier: str) -> bool:
    """Whether a column is the one of this name in the item of this name."""
    if not isinstance(node, exp.Column) or str(node.this.this).lower() != name.lower():
        return False
    table = node.args.get("table")
    return table is None or str(table.this).lower() == qualifier.lower()


def _compares(node: Scalar, name: str, qualifier: str) -> bool:
    """Whether a condition sets an upper bound to the number."""
    if not isinstance(node, _COMPARISONS):
        return False
    left, right = node.this, node.expression
    if isinstance(node, exp.LT | exp.LTE | exp.EQ) and _names(left, name, qualifier):
        return isinstance(right, exp.Literal) and not right.is_string
    if isinstance(node, exp.GT | exp.GTE | exp.EQ) and _names(right, name, qualifier):
        return isinstance(left, exp.Literal) and not left.is_string
    return False


def _is_one(node: Scalar) -> bool:
    """Whether the bound lets only the number 1 through."""
    literal = node.expression if isinstance(node.expression, exp.Literal) else node.this
    strict = isinstance(node, exp.LT | exp.GT)
    return str(literal.this) == ("2" if strict else "1")


def _with(node: Scalar, number: Scalar) -> Scalar:
    """Return a comparison with something else in the place of the column."""
    sides = [number if isinstance(side, exp.Column) else side.copy()
             for side in (node.this, node.expression)]  # fmt: skip
    made = type(node)(this=sides[0], expression=sides[1])
    made.meta["span"] = span_of(node)
    return made


def _unqualified(node: Scalar) -> Scalar:
    """Return a comparison whose column names no item."""
    column = node.this if isinstance(node.this, exp.Column) else node.expression
    plain = exp.Column(this=column.this.copy())
    plain.meta["span"] = span_of(column)
    plain.this.meta["span"] = span_of(column.this)
    return _with(node, plain)
