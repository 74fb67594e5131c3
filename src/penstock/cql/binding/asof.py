"""``ASOF JOIN``: its conditions to the keys and the one comparison that finds the nearest partner.

The conditions of ON, USING and MATCH_CONDITION are taken together, split at AND.  Each must compare
an expression of what stands on the left with one of the joined item: any number of equalities, and
exactly one of ``>=``, ``>``, ``<=``, ``<``.  In USING without a MATCH_CONDITION the last column is
the one compared, by ``>=``.  Which right row is nearest depends on all right rows, so nothing else
can be said here: WHERE is applied to the pairs, afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.algebra import AsofJoin, Node
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import FromItem, Span, conjuncts_of, span_of
from penstock.decimals import is_wide
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Call, Expr, columns_of, conjuncts, shift
from penstock.expr.types import is_numeric, is_temporal, type_name

_FLIPPED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt", "eq": "eq"}


class AsofBinder:
    """Binds the conditions of one ASOF JOIN: ``before`` is the scope of the left, ``own`` of it.

    The left side has ``width`` columns; those of the item stand behind them.
    """

    def __init__(
        self, source: Script, item: FromItem, before: Scope, own: Scope, width: int
    ) -> None:
        self.source = source
        self.item = item
        self.before = before
        self.own = own
        self.width = width

    def bind(self, left: Node, right: Node) -> AsofJoin:
        """Return the join of two plans."""
        keys: list[tuple[Expr, Expr]] = []
        nearest: list[tuple[str, Expr, Expr, Span]] = []
        for condition, span in self._conditions():
            name, mine, theirs = self._sides(condition, span)
            if name == "eq":
                keys.append((mine, theirs))
            else:
                nearest.append((name, mine, theirs, span))
        if not nearest:
            self.source.fail(
                "ASOF JOIN must compare the two sides once by >=, >, <= or <, such as a.t >= b.t "
                "(the last partner at or before), got "
                + ("only equalities" if keys else "no condition"),
                self._span(),
            )
        if len(nearest) > 1:
            self.source.fail(
                "ASOF JOIN must compare the two sides once by >=, >, <= or <, got two such "
                "comparisons; bound the right side by its window, or sort out pairs in WHERE",
                nearest[1][3],
            )
        name, mine, theirs, span = nearest[0]
        if not is_numeric(mine.type) and not is_temporal(mine.type):
            self.source.refuse(
                f"ASOF JOIN compares times, dates or numbers, got {type_name(mine.type)}; cast "
                f"both sides to one of them",
                span,
            )
        if is_wide(mine.type):
            self.source.refuse(
                f"ASOF JOIN compares DECIMALs of at most 18 digits, got {type_name(mine.type)}; "
                f"cast both sides, for instance to DECIMAL(18, {min(mine.type.scale, 6)})",
                span,
            )
        kind = "left" if self.item.join == "asof left" else "inner"
        return AsofJoin(
            left,
            right,
            tuple(a for a, _ in keys),
            tuple(b for _, b in keys),
            mine,
            theirs,
            name,
            kind,
        )

    def _span(self) -> Span:
        for condition in (self.item.match, self.item.on):
            if condition is not None:
                return span_of(condition)
        using = self.item.using
        return (using[0].span[0], using[-1].span[1]) if using else self.item.span

    def _conditions(self) -> Iterator[tuple[Expr, Span]]:
        scope = self.before.plus(self.own)
        for place, written in (("MATCH_CONDITION", self.item.match), ("ON", self.item.on)):
            for part in conjuncts_of(written) if written is not None else ():
                bound = ScalarBinder(self.source, scope, place).condition(part)
                yield from ((condition, span_of(part)) for condition in conjuncts(bound))
        for at, name in enumerate(self.item.using):
            last = self.item.match is None and at == len(self.item.using) - 1
            sides = [s.find(self.source, name, None, name.span) for s in (self.before, self.own)]
            with self.source.at(name.span):
                yield resolve_call("ge" if last else "eq", [s.expr for s in sides]), name.span

    def _sides(self, condition: Expr, span: Span) -> tuple[str, Expr, Expr]:
        """Return how a condition compares an expression of the left with one of the item."""
        if isinstance(condition, Call) and condition.name in _FLIPPED:
            first, second = condition.args
            places = [self._places(first), self._places(second)]
            local = {self.width + i: i for i in range(len(self.own.columns))}
            if places == [{"left"}, {"right"}]:
                return condition.name, first, shift(second, local)
            if places == [{"right"}, {"left"}]:
                return _FLIPPED[condition.name], second, shift(first, local)
        reads = self._places(condition)
        if len(reads) == 2:
            self.source.refuse(
                "a condition of ASOF JOIN must be an equality, or one >=, >, <= or <, between an "
                "expression of the left side and one of the right side; put others in WHERE, "
                "which is applied to the pairs",
                span,
            )
        where = "a sub-query on the right side" if reads == {"right"} else "WHERE"
        self.source.refuse(
            f"a condition of ASOF JOIN must compare the left side with the right side; put one "
            f"that does not into {where}",
            span,
        )

    def _places(self, expr: Expr) -> set[str]:
        return {"left" if c < self.width else "right" for c in columns_of(expr)}
