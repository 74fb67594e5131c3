"""The grammar of window functions: what stands behind OVER, and the WINDOW clause.

over   := OVER name | OVER (spec)
spec   := [name] [PARTITION BY expression, ..] [ORDER BY item, ..] [frame]
frame  := (ROWS | RANGE) (bound | BETWEEN bound AND bound)
bound  := UNBOUNDED (PRECEDING | FOLLOWING) | CURRENT ROW | distance (PRECEDING | FOLLOWING)
"""

from __future__ import annotations

from typing import Any

from sqlglot.tokens import TokenType

from penstock.cql.grammar.expressions import ExpressionParser
from penstock.cql.grammar.syntax import (
    Duration,
    FrameBound,
    FrameSyntax,
    Name,
    OrderItem,
    OverSyntax,
    Scalar,
)

_BOUNDS = "UNBOUNDED PRECEDING, n PRECEDING, INTERVAL '5' MINUTES PRECEDING or CURRENT ROW"


class OverParser(ExpressionParser):
    """Window functions."""

    def over(self, node: Any) -> None:
        """Read ``[IGNORE NULLS] OVER ..`` behind a function and note it there."""
        start = self.here()[0]
        if self.is_word("IGNORE", "RESPECT") and self._next and self._next.text.upper() == "NULLS":
            node.meta["ignore_nulls"] = self.is_word("IGNORE")
            self._advance(2)
            if not self.is_word("OVER"):
                self.fail(f"NULLS must be followed by OVER, got {self.got()}")
        if not self.accept("OVER"):
            return
        if self._opens(self._curr):
            node.meta["over"] = self.over_spec()
        else:
            name = self.name("OVER must be followed by (..) or the name of a window; the name")
            node.meta["over"] = OverSyntax(name, (), (), None, name.span)
        node.meta["over_span"] = self.since(start)
        node.meta["span"] = self.since(node.meta["span"][0])

    def over_spec(self) -> OverSyntax:
        """Read the specification of a window in parentheses."""
        opened = self._curr.start
        self._advance()
        base: Name | None = None
        if not self.is_word("PARTITION", "ORDER", "ROWS", "RANGE", "GROUPS"):
            base = self.maybe_name()
        partition: list[Scalar] = []
        if self.accept("PARTITION"):
            self.demand("BY", "PARTITION")
            partition.append(self.scalar())
            while self.sign(TokenType.COMMA):
                partition.append(self.scalar())
        order: list[OrderItem] = []
        if self.accept("ORDER"):
            self.demand("BY", "ORDER")
            order.append(self.order_item())
            while self.sign(TokenType.COMMA):
                order.append(self.order_item())
        frame = self._frame()
        if self._curr and self._curr.token_type != TokenType.R_PAREN:
            self.fail(
                f"{self.got()} was not expected here; a window is (PARTITION BY .. ORDER BY t "
                f"ROWS n PRECEDING)"
            )
        self.close(TokenType.R_PAREN, ")", opened)
        return OverSyntax(base, tuple(partition), tuple(order), frame, self.since(opened))

    def order_item(self) -> OrderItem:
        """Read one item of ORDER BY."""
        expr = self.scalar()
        descending = self.accept("DESC")
        if not descending:
            self.accept("ASC")
        nulls_first = not descending
        if self.accept("NULLS"):
            if not self.is_word("FIRST", "LAST"):
                self.fail(f"NULLS must be followed by FIRST or LAST, got {self.got()}")
            nulls_first = self.accept("FIRST")
            if not nulls_first:
                self.accept("LAST")
        return OrderItem(expr, descending, nulls_first)

    def named_windows(self) -> tuple[tuple[Name, OverSyntax], ...]:
        """Read ``name AS (spec), ..`` behind WINDOW."""
        found = []
        while True:
            name = self.name("WINDOW must be followed by names; the name of a window")
            self.demand("AS", f"WINDOW {name.text}")
            if not self._opens(self._curr):
                self.fail(
                    f"WINDOW {name.text} AS must be followed by a window in parentheses, got "
                    f"{self.got()}"
                )
            found.append((name, self.over_spec()))
            if not self.sign(TokenType.COMMA):
                return tuple(found)

    def is_window_clause(self) -> bool:
        """Whether the next word begins a WINDOW clause rather than being a name."""
        if not self.is_word("WINDOW") or self._index + 2 >= len(self._tokens):
            return False
        return bool(self._tokens[self._index + 2].text.upper() == "AS")

    def _frame(self) -> FrameSyntax | None:
        if self.is_word("GROUPS"):
            self.refuse("there is no frame of GROUPS; use ROWS or RANGE")
        if not self.is_word("ROWS", "RANGE"):
            return None
        start = self._curr.start
        unit = self._curr.text.lower()
        self._advance()
        if self.accept("BETWEEN"):
            first = self._bound(unit)
            self.demand("AND", "BETWEEN bound")
            last = self._bound(unit)
        else:
            first = self._bound(unit)
            last = FrameBound("current", None, first.span)
        span = self.since(start)
        if self.is_word("EXCLUDE"):
            self.refuse("a frame has no EXCLUDE; leave it out")
        return FrameSyntax(unit, first, last, span)

    def _bound(self, unit: str) -> FrameBound:
        start = self.here()[0]
        if self.accept("CURRENT"):
            self.demand("ROW", "CURRENT")
            return FrameBound("current", None, self.since(start))
        value: Duration | None = None
        if not self.accept("UNBOUNDED"):
            self.accept("INTERVAL")
            if not self._curr or self._curr.token_type not in (
                TokenType.NUMBER,
                TokenType.STRING,
                TokenType.DASH,
            ):
                self.fail(f"a frame must begin and end at {_BOUNDS}, got {self.got()}")
            number, unit_of_time, span = self.duration_parts(unit.upper())
            value = Duration(number, unit_of_time, (start, span[1]))
        if not self.is_word("PRECEDING", "FOLLOWING"):
            self.fail(f"a frame must begin and end at {_BOUNDS}, got {self.got()}")
        kind = self._curr.text.lower()
        self._advance()
        return FrameBound(kind, value, self.since(start))
