"""The grammar of queries: SELECT blocks, set operations, FROM items, joins and windows.

query  := [WITH name AS (query), ..] body [ORDER BY ..] [LIMIT k] [OFFSET n] [instant]
body   := term ((UNION | EXCEPT | MINUS) [ALL | DISTINCT] term)*
term   := block (INTERSECT [ALL | DISTINCT] block)*
block  := SELECT [/*+ hint */] .. [QUALIFY ..] | (query) | to (query) | to query
          | SELECT to ([DISTINCT] ..) FROM .. | values
values := VALUES (scalar, ..), .. | VALUES scalar, ..
to     := ISTREAM | DSTREAM | RSTREAM
item   := source [instant] [[AS] alias [(column, ..)]] [window] [instant]
source := (name | (query) | ISTREAM (query)) [window] | function of a window
join   := , item | CROSS JOIN item | [INNER | LEFT | RIGHT | FULL | SEMI | ANTI] JOIN item ON ..
asof   := ASOF [INNER | LEFT] JOIN item [MATCH_CONDITION (condition)] [ON .. | USING (..)]
instant := [FOR SYSTEM_TIME | TIMESTAMP] AS OF point

One statement asks about one instant, wherever it says so.  ``SELECT ISTREAM (a, b) FROM ..`` and
``ISTREAM SELECT a, b FROM ..`` are ``ISTREAM (SELECT a, b FROM ..)``, with its ORDER BY and LIMIT.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.cql.grammar.grouping_text import GroupingParser
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
    ValuesSyntax,
)

HINTS = ("MULTIWAY", "CASCADE")
_HINT = re.compile(r"\s*/\*\+\s*(.*?)\s*\*/", re.DOTALL)

STREAM_WORDS = ("ISTREAM", "DSTREAM", "RSTREAM")

_OUTER = {
    "NATURAL": "NATURAL JOIN; name the columns with USING (..)",
    "LATERAL": "LATERAL; write a sub-query that does not read its neighbours and join with it",
}


class QueryParser(GroupingParser):
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
        limit, limit_start = None, self.here()[0]
        if self.accept("LIMIT") and not self.accept("ALL"):
            limit = self._count("LIMIT", 1)
        limit_span = self.since(limit_start)
        offset = self._count("OFFSET", 0) if self.accept("OFFSET") else 0
        if self.is_word("FETCH"):
            self.refuse("there is no FETCH; ORDER BY .. LIMIT k keeps the first k rows")
        self._instant()
        span = self.since(start)
        if isinstance(body, StreamOf) and body.written == "inside":
            inner = replace(body.query, order=order, limit=limit, order_span=order_span)
            inner = replace(inner, offset=offset, limit_span=limit_span)
            return QuerySyntax(replace(body, query=inner), (), None, tuple(names), span)
        return QuerySyntax(
            body,
            order,
            limit,
            tuple(names),
            span,
            order_span=order_span,
            offset=offset,
            limit_span=limit_span,
        )

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
        first = ("SELECT", "WITH")
        bare = self.is_word(*STREAM_WORDS) and self._next and self._next.text.upper() in first
        word = self.is_word(*first) or self._is_stream_word() or self._is_values()
        return bool(bare) or word or self._is_open()

    def _is_values(self) -> bool:
        """Whether VALUES comes next, with rows behind it."""
        return self.is_word("VALUES") and bool(self._next) and _starts_value(self._next)

    def values(self) -> ValuesSyntax:
        """Read VALUES and its rows."""
        start = self._curr.start
        self._advance()
        rows = [self._value_row()]
        while self._another_row():
            self._advance()
            rows.append(self._value_row())
        return ValuesSyntax(tuple(rows), self.since(start))

    def _another_row(self) -> bool:
        """Whether a comma and another row come next, not another item of FROM."""
        if not self._curr or self._curr.token_type != TokenType.COMMA or not self._next:
            return False
        after = self._tokens[self._index + 2 : self._index + 3]
        if self._opens(self._next):
            return not after or after[0].text.upper() not in ("SELECT", "WITH", "VALUES")
        return _starts_value(self._next)

    def _value_row(self) -> tuple[object, ...]:
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            return (self.scalar(),)
        row = [self.scalar()]
        while self.sign(TokenType.COMMA):
            row.append(self.scalar())
        self.close(TokenType.R_PAREN, ")", opened)
        return tuple(row)

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
            right = self._clear(self._intersections())
            left = SetQuery(kind, keep, left, right, self.since(start))
        return left

    def _intersections(self) -> Body:
        start = self.here()[0]
        left = self._block()
        while self.accept("INTERSECT"):
            keep = self._keep_all()
            right = self._clear(self._block())
            left = SetQuery("intersect", keep, left, right, self.since(start))
        return left

    def _clear(self, body: Body) -> Body:
        """Refuse ISTREAM without parentheses behind a set operation: of what is it?"""
        if isinstance(body, StreamOf) and body.written == "before":
            self._fail_unclear(body.kind, body.span[0])
        return body

    def _fail_unclear(self, kind: str, start: int) -> NoReturn:
        word = kind.upper()
        self.fail(
            f"{word} beside UNION, INTERSECT or EXCEPT must say by parentheses what it is of; "
            f"write {word} (SELECT ..)",
            (start, start + len(word)),
        )

    def _keep_all(self) -> bool:
        if self.accept("ALL"):
            return True
        self.accept("DISTINCT")
        return False

    def _block(self) -> Body:
        start = self.here()[0]
        if self._is_stream_word():
            return self._stream_of()
        if self._is_values():
            return self.values()
        if self._is_open():
            self._advance()
            inner = self.query()
            self.close(TokenType.R_PAREN, ")", start)
            return inner
        if self.is_word(*STREAM_WORDS):
            return self._stream_before()
        return self._select_block(start)

    def _select_block(self, start: int) -> Body:
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
        kind = ""
        if self._is_stream_word():
            kind, some, items = self._select_stream()
            distinct = distinct or some
        else:
            items = self._select_items()
        if not self.accept("FROM"):
            self._fail_before_from(start)
        sources = self._sources()
        where = self.scalar() if self.accept("WHERE") else None
        group_by, sets = self.group_by() if self.accept("GROUP") else (None, None)
        group_all = group_by == () and sets is None
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
        span = self.since(start)
        block = SelectQuery(
            distinct,
            tuple(items),
            sources,
            where,
            group_by,
            having,
            span,
            hint,
            qualify,
            windows,
            sets,
            group_all,
        )
        if not kind:
            return block
        return StreamOf(kind, QuerySyntax(block, (), None, (), span), span, "inside")

    def _select_items(self) -> list[SelectItem]:
        items = [self._select_item()]
        while self.sign(TokenType.COMMA):
            items.append(self._select_item())
        return items

    def _select_stream(self) -> tuple[str, bool, list[SelectItem]]:
        """Read ``ISTREAM ([DISTINCT] a, b)`` behind SELECT: its kind, whether distinct, columns."""
        start = self._curr.start
        kind = self._curr.text.lower()
        self._advance()
        opened = self.here()[0]
        self._advance()
        if self.is_word("SELECT"):
            self.fail(
                f"{kind.upper()} behind SELECT holds columns; around a query it stands alone, "
                f"{kind.upper()} (SELECT ..)",
                self.since(start),
            )
        distinct = self.accept("DISTINCT")
        items = self._select_items()
        self.close(TokenType.R_PAREN, ")", opened)
        if self._curr and not self.is_word("FROM"):
            self.fail(
                f"{kind.upper()} behind SELECT must hold all columns with their names, as in "
                f"{kind.upper()}(a, b AS c), got {self.got()} after it",
            )
        return kind, distinct, items

    def _fail_before_from(self, start: int) -> NoReturn:
        if self._curr and not self.is_word(*_AFTER_SELECT) and not self._closes():
            hint = ""
            if self._curr.token_type == TokenType.DOT:
                hint = "; the bounds of window(..) in GROUP BY are window.start and window.end"
            self.fail(f"{self.got()} was not expected here; ',' or FROM must follow a column{hint}")
        self.fail(
            "a query must read something: SELECT .. FROM a stream, table, view or sub-query",
            self.since(start),
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

    def _stream_before(self) -> StreamOf:
        """Read ``ISTREAM SELECT ..``: of all that follows, which is no set operation."""
        if not self._next or self._next.text.upper() not in ("SELECT", "WITH"):
            self._demand_parentheses()
        start = self._curr.start
        kind = self._curr.text.lower()
        self._advance()
        query = self.query()
        if isinstance(query.body, SetQuery):
            self._fail_unclear(kind, start)
        return StreamOf(kind, query, self.since(start), "before")

    # ---- SELECT, GROUP BY, ORDER BY, LIMIT

    def _select_item(self) -> SelectItem:
        start = self.here()[0]
        if self.sign(TokenType.STAR):
            return SelectItem(None, None, True, None, self.since(start), self._left_out())
        index = self._index
        qualifier = self.maybe_name()
        if qualifier and self.sign(TokenType.DOT) and self.sign(TokenType.STAR):
            return SelectItem(None, None, True, qualifier, self.since(start), self._left_out())
        self._retreat(index)
        expr = self.scalar()
        end = self.since(start)
        alias = self.name("a name after AS") if self.accept("AS") else self.maybe_name()
        return SelectItem(expr, alias, False, None, end)

    def _left_out(self) -> tuple[object, ...]:
        """Read ``EXCEPT (column, ..)`` behind a star, if it comes next."""
        if not self.is_word("EXCEPT"):
            return ()
        self._advance()
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"* EXCEPT must be followed by columns in parentheses, got {self.got()}")
        found = [self._left_out_column()]
        while self.sign(TokenType.COMMA):
            found.append(self._left_out_column())
        self.close(TokenType.R_PAREN, ")", opened)
        return tuple(found)

    def _left_out_column(self) -> object:
        start = self.here()
        column = self.scalar()
        if not isinstance(column, exp.Column):
            self.fail("* EXCEPT takes names of columns", (start[0], self._prev.end + 1))
        return column

    def _count(self, word: str, least: int) -> int:
        """Read the number of rows behind LIMIT or OFFSET."""
        token = self._curr
        if not token or token.token_type != TokenType.NUMBER or not token.text.isdigit():
            self.fail(f"{word} must be followed by a whole number, got {self.got()}")
        if not least <= int(token.text) < 2**31:
            self.fail(f"{word} must be from {least} to {2**31 - 1}, got {token.text}")
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
        columns = self._named_columns() if alias and self._opens(self._curr) else ()
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
        found = FromItem(source, alias, window or second, join, on, using, span, match)
        return replace(found, columns=columns)

    def area_item(self) -> FromItem:
        """Read what an area moves with: an item of FROM, whose name is not START."""
        start = self.here()[0]
        source, window = self.window_function() or (self._source(), self.maybe_window())
        alias = None if self.is_word("START") else self._alias("first")
        return FromItem(source, alias, window, "first", None, (), self.since(start))

    def _named_columns(self) -> tuple[Name, ...]:
        """Read the names that an alias gives to the columns, in parentheses."""
        opened = self.here()[0]
        self._advance()
        names = [self.name("the name of a column")]
        while self.sign(TokenType.COMMA):
            names.append(self.name("the name of a column"))
        self.close(TokenType.R_PAREN, ")", opened)
        return tuple(names)

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
        if self._is_values():
            return QuerySyntax(self.values(), (), None, (), self.since(start))
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
            if not self.sign(TokenType.L_PAREN):
                self.fail(f"USING must be followed by columns in parentheses, got {self.got()}")
            self._retreat(self._index - 1)
            return None, self._named_columns()
        self.fail(
            f"JOIN must say ON condition or USING (columns), got {self.got()}; "
            f"CROSS JOIN is without a condition"
        )


def _starts_value(token: Token) -> bool:
    """Whether a token begins a row of VALUES: a parenthesis or a constant."""
    first = (TokenType.L_PAREN, TokenType.NUMBER, TokenType.STRING, TokenType.DASH)
    constants = (TokenType.NULL, TokenType.TRUE, TokenType.FALSE)
    typed = token.text.upper() in ("TIMESTAMP", "DATE", "CAST")
    return token.token_type in (*first, *constants) or typed


_AFTER_SELECT = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT")
