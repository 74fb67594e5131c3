"""The grammar of queries: SELECT blocks, set operations, FROM items, joins and windows.

query  := [WITH name AS (query), ..] body [ORDER BY ..] [LIMIT k] [instant]
body   := term ((UNION | EXCEPT | MINUS) [ALL | DISTINCT] term)*
term   := block (INTERSECT [ALL | DISTINCT] block)*
block  := SELECT [/*+ hint */] .. [QUALIFY ..] | (query) | (ISTREAM | DSTREAM | RSTREAM) (query)
item   := source [instant] [[AS] alias] [window] [instant]
source := (name | (query) | ISTREAM (query)) [window] | function of a window
join   := , item | CROSS JOIN item | [INNER | LEFT | RIGHT | FULL | SEMI | ANTI] JOIN item ON ..
asof   := ASOF [INNER | LEFT] JOIN item [MATCH_CONDITION (condition)] [ON .. | USING (..)]
instant := [FOR SYSTEM_TIME | TIMESTAMP] AS OF point

One statement asks about one instant, wherever it says so.
"""

from __future__ import annotations

import re
from typing import NoReturn

from sqlglot.tokens import TokenType

from penstock.cql.grammar.syntax import (
    Body,
    FromItem,
    Name,
    OrderItem,
    QuerySyntax,
    SelectItem,
    SelectQuery,
    SetQuery,
    StreamOf,
    TimePoint,
)
from penstock.cql.grammar.window_text import WindowParser

HINTS = ("MULTIWAY", "CASCADE")
_HINT = re.compile(r"\s*/\*\+\s*(.*?)\s*\*/", re.DOTALL)

STREAM_WORDS = ("ISTREAM", "DSTREAM", "RSTREAM")

_OUTER = {
    "NATURAL": "NATURAL JOIN; name the columns with USING (..)",
    "LATERAL": "LATERAL; write a sub-query that does not read its neighbours and join with it",
}


class QueryParser(WindowParser):
    """Queries, down to the scalar expressions. ``instants`` are those of AS OF, as they came."""

    instants: list[TimePoint]

    def query(self) -> QuerySyntax:
        """Read a whole query."""
        start = self.here()[0]
        names: list[tuple[Name, QuerySyntax]] = []
        if self.accept("WITH"):
            names = self._named_queries()
        body = self._set_operations()
        order: tuple[OrderItem, ...] = ()
        order_span = (0, 0)
        if self.is_word("ORDER"):
            order_start = self._curr.start
            self._advance()
            self.demand("BY", "ORDER")
            order = (self.order_item(),)
            while self.sign(TokenType.COMMA):
                order = (*order, self.order_item())
            order_span = self.since(order_start)
        limit = self._limit() if self.accept("LIMIT") else None
        if self.is_word("OFFSET", "FETCH"):
            self.refuse(
                f"there is no {self._curr.text.upper()}; ORDER BY .. LIMIT k keeps the first k rows"
            )
        self._instant()
        return QuerySyntax(body, order, limit, tuple(names), self.since(start), order_span)

    def _instant(self) -> None:
        """Read ``AS OF`` and its point in time, if it comes next."""
        start = self.here()[0]
        before = ((), ("FOR", "SYSTEM_TIME"), ("TIMESTAMP",))
        if any(self.accept(*words, "AS", "OF") for words in before):
            point = self.time_point("AS OF")
            span = self.since(start)
            if self.instants and self.instants[0].value != point.value:
                self.fail("a query is answered for one instant, got two AS OF that differ", span)
            self.instants.append(TimePoint(point.value, span))

    def starts_query(self) -> bool:
        """Whether the next token can only begin a query."""
        return self.is_word("SELECT", "WITH") or self._is_stream_word() or self._is_open()

    def _is_open(self) -> bool:
        return bool(self._curr) and self._curr.token_type == TokenType.L_PAREN

    def _is_stream_word(self) -> bool:
        return self.is_word(*STREAM_WORDS) and self._opens(self._next)

    def _named_queries(self) -> list[tuple[Name, QuerySyntax]]:
        if self.is_word("RECURSIVE"):
            self.refuse("there is no WITH RECURSIVE; a named query can read only those before it")
        names = []
        while True:
            name = self.name("WITH must be followed by names; the name of a query")
            self.demand("AS", f"WITH {name.text}")
            names.append((name, self._wrapped_query(f"WITH {name.text} AS")))
            if not self.sign(TokenType.COMMA):
                return names

    def _wrapped_query(self, before: str) -> QuerySyntax:
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"{before} must be followed by a query in parentheses, got {self.got()}")
        inner = self.query()
        self.close(TokenType.R_PAREN, ")", opened)
        return inner

    def _set_operations(self) -> Body:
        start = self.here()[0]
        left = self._intersections()
        while self.is_word("UNION", "EXCEPT", "MINUS"):
            kind = self._curr.text.lower().replace("minus", "except")
            self._advance()
            keep = self._keep_all()
            left = SetQuery(kind, keep, left, self._intersections(), self.since(start))
        return left

    def _intersections(self) -> Body:
        start = self.here()[0]
        left = self._block()
        while self.accept("INTERSECT"):
            keep = self._keep_all()
            left = SetQuery("intersect", keep, left, self._block(), self.since(start))
        return left

    def _keep_all(self) -> bool:
        if self.accept("ALL"):
            return True
        self.accept("DISTINCT")
        return False

    def _block(self) -> Body:
        start = self.here()[0]
        if self._is_stream_word():
            return self._stream_of()
        if self._is_open():
            self._advance()
            inner = self.query()
            self.close(TokenType.R_PAREN, ")", start)
            return inner
        if self.is_word(*STREAM_WORDS):
            self._demand_parentheses()
        if not self.accept("SELECT"):
            self.fail(
                f"a query must begin with SELECT, ISTREAM, DSTREAM or RSTREAM, got {self.got()}"
            )
        hint = self._hint()
        distinct = self.accept("DISTINCT")
        if not distinct:
            self.accept("ALL")
        if self.is_word("FROM") or not self._curr:
            self.fail(f"SELECT must be followed by columns or '*', got {self.got()}")
        items = [self._select_item()]
        while self.sign(TokenType.COMMA):
            items.append(self._select_item())
        if not self.accept("FROM"):
            if self._curr and not self.is_word(*_AFTER_SELECT) and not self._closes():
                hint = ""
                if self._curr.token_type == TokenType.DOT:
                    hint = "; the bounds of window(..) in GROUP BY are window.start and window.end"
                self.fail(
                    f"{self.got()} was not expected here; ',' or FROM must follow a column{hint}"
                )
            self.fail(
                "a query must read something: SELECT .. FROM a stream, table, view or sub-query",
                self.since(start),
            )
        sources = self._sources()
        where = self.scalar() if self.accept("WHERE") else None
        group_by = self._group_by() if self.accept("GROUP") else None
        having = self.scalar() if self.accept("HAVING") else None
        if self.is_word("WHERE", "GROUP"):
            self.fail(
                f"{self._curr.text.upper()} stands in the wrong place; the order is SELECT, FROM, "
                f"WHERE, GROUP BY, HAVING, QUALIFY, ORDER BY, LIMIT"
            )
        windows = self.named_windows() if self.accept("WINDOW") else ()
        qualify = self.scalar() if self.accept("QUALIFY") else None
        if not windows and self.accept("WINDOW"):
            windows = self.named_windows()
        return SelectQuery(
            distinct,
            tuple(items),
            sources,
            where,
            group_by,
            having,
            self.since(start),
            hint,
            qualify,
            windows,
        )

    def _hint(self) -> str:
        """Read the hint that may stand behind SELECT; to the tokens it is a comment."""
        found = _HINT.match(self.sql, self._prev.end + 1)
        if found is None:
            return ""
        word = found[1]
        if word.upper() not in HINTS:
            self.fail(
                f"a hint must be one of {', '.join(HINTS)}, got '{word}'; a comment does not begin "
                f"with '+'",
                found.span(1),
            )
        return word.lower()

    def _demand_parentheses(self) -> NoReturn:
        self.fail(f"{self._curr.text.upper()} must be followed by a query in parentheses")

    def _closes(self) -> bool:
        return bool(self._curr) and self._curr.token_type == TokenType.R_PAREN

    def _stream_of(self) -> StreamOf:
        start = self._curr.start
        kind = self._curr.text.lower()
        self._advance()
        return StreamOf(kind, self._wrapped_query(kind.upper()), self.since(start))

    # ---- SELECT, GROUP BY, ORDER BY, LIMIT

    def _select_item(self) -> SelectItem:
        start = self.here()[0]
        if self.sign(TokenType.STAR):
            return SelectItem(None, None, True, None, self.since(start))
        index = self._index
        qualifier = self.maybe_name()
        if qualifier and self.sign(TokenType.DOT) and self.sign(TokenType.STAR):
            return SelectItem(None, None, True, qualifier, self.since(start))
        self._retreat(index)
        expr = self.scalar()
        end = self.since(start)
        alias = self.name("a name after AS") if self.accept("AS") else self.maybe_name()
        return SelectItem(expr, alias, False, None, end)

    def _group_by(self) -> tuple[object, ...]:
        self.demand("BY", "GROUP")
        if self.is_word("ROLLUP", "CUBE", "GROUPING") and (
            self._opens(self._next) or self.is_word("GROUPING")
        ):
            self.refuse(
                f"there is no GROUP BY {self._curr.text.upper()}; UNION ALL several queries with "
                f"one GROUP BY each"
            )
        keys = [self.scalar()]
        while self.sign(TokenType.COMMA):
            keys.append(self.scalar())
        return tuple(keys)

    def _limit(self) -> int:
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER or not token.text.isdigit():
            self.fail(f"LIMIT must be followed by a whole number, got {self.got()}")
        if not 1 <= int(token.text) < 2**31:
            self.fail(f"LIMIT must be from 1 to {2**31 - 1}, got {token.text}")
        self._advance()
        return int(token.text)

    # ---- FROM

    def _sources(self) -> tuple[FromItem, ...]:
        items = [self._from_item("first")]
        while True:
            if self.sign(TokenType.COMMA):
                items.append(self._from_item("comma"))
            elif self.accept("CROSS"):
                self.demand("JOIN", "CROSS")
                items.append(self._from_item("cross"))
            elif self.is_word("JOIN", "INNER"):
                inner = self.accept("INNER")
                if not self.accept("JOIN"):
                    self.demand("JOIN", "INNER" if inner else "FROM")
                items.append(self._from_item("inner"))
            elif self.accept("ASOF"):
                items.append(self._asof_item())
            elif self.is_word("LEFT", "RIGHT", "FULL", "SEMI", "ANTI"):
                items.append(self._from_item(self._join_kind()))
            elif self.is_word(*_OUTER):
                self.refuse(f"there is no {_OUTER[self._curr.text.upper()]}")
            else:
                return tuple(items)

    def _join_kind(self) -> str:
        """Read ``LEFT | RIGHT | FULL [OUTER] JOIN`` or ``[LEFT] SEMI | ANTI JOIN``."""
        kind: str = self._curr.text.upper()
        self._advance()
        if kind in ("LEFT", "RIGHT") and self.is_word("SEMI", "ANTI"):
            if kind == "RIGHT":
                self.refuse(
                    f"there is no RIGHT {self._curr.text.upper()} JOIN; exchange the two sides"
                )
            kind = self._curr.text.upper()
            self._advance()
        elif kind in ("LEFT", "RIGHT", "FULL"):
            self.accept("OUTER")
        self.demand("JOIN", kind)
        return kind.lower()

    def _from_item(self, join: str) -> FromItem:
        start = self.here()[0]
        source, window = self.window_function() or (self._source(), self.maybe_window())
        self._instant()
        alias = self._alias(join)
        if self._opens(self._curr) and alias:
            self.refuse(
                f"the columns of {alias.text} cannot be named here; name them with AS in its SELECT"
            )
        second = self.maybe_window()
        if window and second:
            self.fail("an item of FROM can have one window, got two", second.span)
        self._instant()
        span = self.since(start)
        on: object | None = None
        using: tuple[Name, ...] = ()
        match: object | None = None
        if join.startswith("asof"):
            match = self._match_condition()
            if match is None or self.is_word("ON", "USING"):
                on, using = self._condition()
        elif join not in ("first", "comma", "cross"):
            on, using = self._condition()
        elif join == "cross" and self.is_word("ON", "USING"):
            self.fail("a CROSS JOIN has no condition; use JOIN .. ON or put it in WHERE")
        return FromItem(source, alias, window or second, join, on, using, span, match)

    def _alias(self, join: str) -> Name | None:
        if self.accept("AS"):
            return self.name("a name after AS")
        if join.startswith("asof") and self.is_word("MATCH_CONDITION"):
            return None
        if self.is_window_clause():
            return None
        return self.maybe_name()

    def _asof_item(self) -> FromItem:
        if self.is_word("RIGHT", "FULL", "SEMI", "ANTI", "CROSS"):
            self.refuse(
                f"there is no ASOF {self._curr.text.upper()} JOIN; the row that looks for its "
                f"nearest partner stands on the left of ASOF JOIN or ASOF LEFT JOIN"
            )
        left = self.accept("LEFT")
        if left:
            self.accept("OUTER")
        else:
            self.accept("INNER")
        self.demand("JOIN", "ASOF LEFT" if left else "ASOF")
        return self._from_item("asof left" if left else "asof")

    def _match_condition(self) -> object | None:
        if not self.accept("MATCH_CONDITION"):
            return None
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(
                f"MATCH_CONDITION must be followed by a comparison in parentheses, got {self.got()}"
            )
        condition: object = self.scalar()
        self.close(TokenType.R_PAREN, ")", opened)
        return condition

    def _source(self) -> Name | QuerySyntax:
        start = self.here()[0]
        if self._is_stream_word():
            body = self._stream_of()
            return QuerySyntax(body, (), None, (), self.since(start))
        if self.is_word(*STREAM_WORDS) and self._next and self._next.text.upper() == "SELECT":
            self._demand_parentheses()
        if self._is_open():
            self._advance()
            if not self.starts_query():
                self.refuse(
                    "a parenthesis in FROM must hold a query: (SELECT ..); join the items one "
                    "after the other instead"
                )
            inner = self.query()
            self.close(TokenType.R_PAREN, ")", start)
            return inner
        if self.is_word("LATERAL"):
            self.refuse(f"there is no {_OUTER['LATERAL']}")
        name = self.name("the name of a stream, table or view, or a sub-query,")
        if self._opens(self._curr):
            self.refuse(
                f"there are no table functions such as {name.text}(..), only TUMBLE(..), HOP(..) "
                f"and SESSION(..); declare a stream, table or view"
            )
        if self._curr and self._curr.token_type == TokenType.DOT:
            self.fail(f"names have one part, got '{name.text}.'")
        return name

    def _condition(self) -> tuple[object | None, tuple[Name, ...]]:
        if self.accept("ON"):
            return self.scalar(), ()
        if self.accept("USING"):
            opened = self.here()[0]
            if not self.sign(TokenType.L_PAREN):
                self.fail(f"USING must be followed by columns in parentheses, got {self.got()}")
            names = [self.name("the name of a column")]
            while self.sign(TokenType.COMMA):
                names.append(self.name("the name of a column"))
            self.close(TokenType.R_PAREN, ")", opened)
            return None, tuple(names)
        self.fail(
            f"JOIN must say ON condition or USING (columns), got {self.got()}; "
            f"CROSS JOIN is without a condition"
        )


_AFTER_SELECT = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT")
