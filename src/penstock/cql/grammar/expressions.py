"""The grammar of scalar expressions.

The precedence of operators is sqlglot's.  An operand is parsed here, strictly: one that is missing
is an error where it is missing.  Every function is an ``Anonymous`` node with ``distinct``,
``star``, ``filter``, ``over`` and ``name_span`` in its ``meta``; what functions there are is the
binder's business.
"""

from __future__ import annotations

import re
from typing import Any

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.cql.grammar.call_forms import CALL_FORMS, escape_pattern, shift_here, with_unit
from penstock.cql.grammar.dialect import RESERVED, Steps
from penstock.cql.grammar.syntax import Name, Span, span_of

_OWN_PARENTHESES = (
    "a sub-query that is an argument must stand in parentheses of its own, F((SELECT ..))"
)

_AFTER_DURATION = RESERVED | frozenset(
    (
        "SLIDE",
        "SHIFT",
        "WITHIN",
        "TO",
        "WEIGHT",
        "RANGE",
        "ROWS",
        "START",
        "SLACK",
        "IDLE",
        "HEARTBEAT",
        "PUNCTUATION",
        "STEP",
        "PARTITIONS",
        "PRIORITY",
        "LATE",
        "EARLY",
        "TIMESTAMP",
        "OPTIONS",
        "PRECEDING",
        "FOLLOWING",
    )
)


class ExpressionParser(Steps):
    """Scalar expressions."""

    BITWISE = {}  # type: ignore[var-annotated]  # noqa: RUF012
    BIT_LAYERS = (  # from the loosest
        (TokenType.PIPE, exp.BitwiseOr),
        (TokenType.CARET, exp.BitwiseXor),
        (TokenType.AMP, exp.BitwiseAnd),
    )
    TERM = {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub}  # noqa: RUF012
    FACTOR = {  # noqa: RUF012
        TokenType.DIV: exp.IntDiv,
        TokenType.SLASH: exp.Div,
        TokenType.STAR: exp.Mul,
        TokenType.MOD: exp.Mod,
    }
    RANGE_PARSERS = {  # noqa: RUF012
        TokenType.BETWEEN: lambda self, this: self._between(this),
        TokenType.IN: lambda self, this: self._in(this),
        TokenType.IS: lambda self, this: self._is(this),
        TokenType.LIKE: lambda self, this: self._like(this, exp.Like),
        TokenType.ILIKE: lambda self, this: self._like(this, exp.ILike),
        TokenType.RLIKE: lambda self, this: self._like(this, exp.RegexpLike),
    }

    def scalar(self) -> Any:
        """Read one scalar expression."""
        return self._parse_disjunction()

    def query(self) -> Any:
        """Read a whole query: the grammar of queries knows how."""
        raise NotImplementedError

    def area_item(self) -> Any:
        """Read what an area moves with: the grammar of queries knows how."""
        raise NotImplementedError

    def over(self, node: Any) -> None:
        """Read what makes a function a window function: the grammar of OVER knows how."""
        raise NotImplementedError

    # ---- predicates

    def _between(self, this: Any) -> Any:
        low = self._parse_bitwise()
        self.demand("AND", "BETWEEN low")
        high = self._parse_bitwise()
        return self.expression(exp.Between(this=this, low=low, high=high))

    def _in(self, this: Any) -> Any:
        opened = self._curr.start if self._curr else 0
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"IN must be followed by a list in parentheses, got {self.got()}")
        if self.is_word("SELECT", "WITH") or self._is_values():
            node = exp.In(this=this)
            node.meta["query"] = self.query()
            self.close(TokenType.R_PAREN, ")", opened)
            return self.expression(node)
        if isinstance(this, exp.Tuple):
            self._refuse_tuple(this.meta["comma"])
        items = [self.scalar()]
        while self.sign(TokenType.COMMA):
            items.append(self.scalar())
        self.close(TokenType.R_PAREN, ")", opened)
        return self.expression(exp.In(this=this, expressions=items))

    def _is(self, this: Any) -> Any:
        negated = self.accept("NOT")
        if self.accept("DISTINCT", "FROM"):
            node = exp.NullSafeEQ(this=this, expression=self._parse_bitwise())
            negated = not negated
        elif self.accept("NULL"):
            node = exp.Is(this=this, expression=exp.Null())
        elif self.is_word("TRUE", "FALSE"):
            value = exp.Boolean(this=self._curr.text.upper() == "TRUE")
            self._advance()
            node = exp.NullSafeEQ(this=this, expression=value)
        else:
            self.fail(
                f"IS must be followed by [NOT] NULL, TRUE, FALSE or DISTINCT FROM, got {self.got()}"
            )
        node = self.expression(node)
        return self.expression(exp.Not(this=node)) if negated else node

    def _like(self, this: Any, kind: Any) -> Any:
        pattern = self._parse_bitwise()
        if self.is_word("ESCAPE"):
            escape_pattern(self, pattern)
        return self.expression(kind(this=this, expression=pattern))

    def _negate_range(self, this: Any = None) -> Any:
        return self.expression(exp.Not(this=this))

    # ---- bits

    def _parse_bitwise(self) -> Any:
        return self._bit_layer(0)

    def _bit_layer(self, layer: int) -> Any:
        """Read ``|``, ``^`` and ``&``, each binding tighter than the one before it."""
        if layer == len(self.BIT_LAYERS):
            return self._shifts()
        kind, node = self.BIT_LAYERS[layer]
        this = self._bit_layer(layer + 1)
        while self.sign(kind):
            this = self.expression(node(this=this, expression=self._bit_layer(layer + 1)))
        return this

    def _shifts(self) -> Any:
        """Read ``<<``, ``>>`` and ``>>>`` behind sums and ``||``."""
        this = self._joined_texts()
        while True:
            found = shift_here(self)
            if not found:
                return this
            start = span_of(this)[0]
            node = exp.Anonymous(this=found, expressions=[this, self._joined_texts()])
            span = self.since(start)
            node.meta.update(name_span=span, distinct=False, star=False, span=span)
            this = node

    def _joined_texts(self) -> Any:
        this = self._parse_term()
        while self.sign(TokenType.DPIPE):
            this = self.expression(exp.DPipe(this=this, expression=self._parse_term()))
        return this

    # ---- operands

    def _parse_unary(self) -> Any:
        token = self._curr
        start = token.start if token else 0
        if self.sign(TokenType.NOT):
            node = exp.Not(this=self._parse_equality())
        elif self.sign(TokenType.DASH):
            node = exp.Neg(this=self._parse_unary())
        elif self.sign(TokenType.TILDE):
            node = exp.BitwiseNot(this=self._parse_unary())
        elif self.sign(TokenType.PLUS):
            return self._parse_unary()
        else:
            node = self._behind(self._operand(), start)
        node.meta.setdefault("span", self.since(start))
        return node

    def _behind(self, node: Any, start: int) -> Any:
        """Read what may stand behind an operand: ``::type``, ``[place]`` and ``.field``."""
        while self._curr:
            opened = self.here()[0]
            if self.sign(TokenType.DCOLON):
                node = exp.Cast(this=node, to=self.type_node())
            elif self._curr.token_type == TokenType.L_BRACKET:
                if self._next and self._next.text.upper() in _WINDOW_WORDS:
                    self.fail(
                        "a window in square brackets must follow an item of FROM, not an expression"
                    )
                node.meta.setdefault("span", self.since(start))
                self._advance()
                node = exp.Bracket(this=node, expressions=[self.scalar()])
                self.close(TokenType.R_BRACKET, "]", opened)
            elif self._curr.token_type == TokenType.DOT and self._prev.token_type in _CLOSING:
                node.meta.setdefault("span", self.since(start))
                self._advance()
                node = exp.Dot(this=node, expression=self._field())
            else:
                break
            node.meta["span"] = self.since(start)
        return node

    def _field(self) -> Any:
        """Read the name of a field."""
        return _identifier(self.name("the name of a field"))

    def _operand(self) -> Any:
        token = self._curr
        if not token:
            self.fail("an expression must come here, got the end of the statement")
        kind = token.token_type
        if kind == TokenType.NUMBER:
            self._advance()
            return exp.Literal.number(token.text)
        if kind == TokenType.DOT and self._next and self._next.token_type == TokenType.NUMBER:
            self._advance(2)
            return exp.Literal.number(f"0.{self._prev.text}")
        if kind == TokenType.STRING:
            self._advance()
            return exp.Literal.string(token.text)
        if kind in (TokenType.TRUE, TokenType.FALSE):
            self._advance()
            return exp.Boolean(this=kind == TokenType.TRUE)
        if kind == TokenType.NULL:
            self._advance()
            return exp.Null()
        if kind == TokenType.L_PAREN:
            return self._parenthesis()
        if kind == TokenType.STAR:
            self.fail("'*' can stand only in SELECT * and COUNT(*)")
        special = None if kind == TokenType.IDENTIFIER else _SPECIAL.get(token.text.upper())
        if special is not None:
            found = special(self)
            if found is not None:
                return found
        if kind != TokenType.IDENTIFIER and self._is_plain_word() and self._opens(self._next):
            return self._call()
        return self._column()

    def _opens(self, token: Any) -> bool:
        return bool(token) and token.token_type == TokenType.L_PAREN

    def _column(self) -> Any:
        first = self.maybe_name()
        if first is None:
            text = self._curr.text
            named = self._is_plain_word() and text.upper() not in _CLAUSE_WORDS
            hint = f'; write "{text}" to use that word as a name' if named else ""
            if self.is_word("SELECT", "WITH"):
                hint = "; a sub-query stands in parentheses, (SELECT ..)"
            self.fail(f"an expression must come here, got {self.got()}{hint}")
        parts = [first]
        while self.sign(TokenType.DOT):
            if self._curr and self._curr.token_type == TokenType.STAR:
                self.fail("'*' can stand only in SELECT * and COUNT(*)")
            if self.is_word("END"):  # window.end
                parts.append(Name(self._curr.text, self.here()))
                self._advance()
            else:
                parts.append(self.name("the name of a column"))
        nodes = [_identifier(part) for part in parts]
        found = exp.Column(this=nodes[:2][-1], table=nodes[0] if len(nodes) > 1 else None)
        found.meta["span"] = (parts[0].span[0], parts[:2][-1].span[1])
        for part, node in zip(parts[2:], nodes[2:], strict=True):  # fields of it
            found = exp.Dot(this=found, expression=node)
            found.meta["span"] = (parts[0].span[0], part.span[1])
        return found

    def _parenthesis(self) -> Any:
        opened = self._curr.start
        self._advance()
        if self.is_word("SELECT", "WITH"):
            return self._query_in(exp.Subquery(), opened, opened)
        inner = self.scalar()
        comma = self.here()
        items = [inner]
        while self.sign(TokenType.COMMA):
            items.append(self.scalar())
        self.close(TokenType.R_PAREN, ")", opened)
        if self.is_word("OVERLAPS"):
            return self._overlaps(items, opened)
        if len(items) == 1:
            return exp.Paren(this=inner)
        following = self._next if self.is_word("NOT") else self._curr
        if not following or following.token_type != TokenType.IN:
            self._refuse_tuple(comma)
        row = exp.Tuple(expressions=items)
        row.meta["comma"] = comma
        return row

    def _overlaps(self, first: list[Any], opened: int) -> Any:
        """Read ``OVERLAPS (start, end)`` after the first pair."""
        if len(first) == 1:
            self.fail(_PAIRS + ", got one value", self.since(opened))
        name_span = self.here()
        self._advance()
        again = self.here()[0]
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"{_PAIRS}, got {self.got()}")
        second = [self.scalar()]
        while self.sign(TokenType.COMMA):
            second.append(self.scalar())
        self.close(TokenType.R_PAREN, ")", again)
        if len(first) != 2 or len(second) != 2:
            self.fail(f"{_PAIRS}, got {len(first)} and {len(second)} values", self.since(opened))
        node = exp.Anonymous(this="overlaps", expressions=[*first, *second])
        node.meta.update(name_span=name_span, distinct=False, star=False, span=self.since(opened))
        return node

    def _refuse_tuple(self, span: Span) -> None:
        self.refuse(
            "tuples are not values here, but for (a, b) IN (SELECT ..); compare column by column "
            "and join with AND",
            span,
        )

    def _query_in(self, node: Any, start: int, opened: int) -> Any:
        """Read the sub-query of a node, behind its parenthesis."""
        node.meta["query"] = self.query()
        self.close(TokenType.R_PAREN, ")", opened)
        node.meta["span"] = self.since(start)
        return node

    def _quantified(self) -> Any:
        """Read ``ANY (SELECT ..)``, ``SOME (SELECT ..)`` or ``ALL (SELECT ..)``."""
        start, is_all = self._curr.start, self.is_word("ALL")
        if not self._opens(self._next):
            return None
        then = self._tokens[self._index + 2 : self._index + 3]
        if not then or then[0].text.upper() not in ("SELECT", "WITH"):
            return None
        self._advance()
        opened = self._curr.start
        self._advance()
        return self._query_in(exp.All() if is_all else exp.Any(), start, opened)

    def _refuse_query(self, start: int) -> None:
        if self.is_word("SELECT", "WITH"):
            self._advance()
            self.fail(_OWN_PARENTHESES, (start, self._prev.end + 1))

    def _call(self) -> Any:
        token = self._curr
        self._advance()
        opened = self._curr.start
        self._advance()
        distinct = False
        args: list[Any] = []
        names: dict[int, Name] = {}
        star = False
        if not self.sign(TokenType.R_PAREN):
            if self.is_word("DISTINCT"):
                self._advance()
                distinct = True
            elif self.is_word("ALL"):
                self._advance()
            self._refuse_query(token.start)
            if self._curr and self._curr.token_type == TokenType.STAR:
                self._advance()
                star = True
            else:
                args.append(self.scalar())
                self._named_as(token, names, args)
                while self.sign(TokenType.COMMA):
                    args.append(self.scalar())
                    self._named_as(token, names, args)
            self.close(TokenType.R_PAREN, ")", opened)
        node = exp.Anonymous(this=with_unit(token.text, args), expressions=args)
        node.meta["name_span"] = (token.start, token.end + 1)
        node.meta["distinct"] = distinct
        node.meta["star"] = star
        if names:
            node.meta["names"] = names
        node.meta["span"] = self.since(token.start)
        if self.is_word("FILTER") and self._opens(self._next):
            self._advance(2)
            self.demand("WHERE", "FILTER (")
            node.meta["filter"] = self.scalar()
            node.meta["span"] = self.since(token.start)
            self.close(TokenType.R_PAREN, ")", opened)
        self.over(node)
        return node

    def _named_as(self, call: Any, names: dict[int, Name], args: list[Any]) -> None:
        """Read ``AS name`` behind an argument of STRUCT."""
        if call.text.upper() == "STRUCT" and self.accept("AS"):
            names[len(args) - 1] = self.name("the name of a field")

    def _case(self) -> Any:
        start = self._curr.start
        self._advance()
        subject = None if self.is_word("WHEN") else self.scalar()
        branches = []
        while self.accept("WHEN"):
            condition = self.scalar()
            self.demand("THEN", "WHEN condition")
            branches.append(exp.If(this=condition, true=self.scalar()))
        if not branches:
            self.fail(f"CASE must have at least one WHEN, got {self.got()}")
        default = self.scalar() if self.accept("ELSE") else None
        if not self.accept("END"):
            self.fail(f"CASE must be closed by END, got {self.got()}")
        node = exp.Case(this=subject, ifs=branches, default=default)
        node.meta["span"] = self.since(start)
        return node

    def _interval(self) -> Any:
        if not self._next or self._next.token_type not in (
            TokenType.STRING,
            TokenType.NUMBER,
            TokenType.DASH,
        ):
            return None
        start = self._curr.start
        self._advance()
        number, unit, _ = self.duration_parts("INTERVAL")
        node = exp.Interval()
        node.meta.update(number=number, unit=unit, span=self.since(start))
        return node

    def _time_literal(self) -> Any:
        if not self._next or self._next.token_type != TokenType.STRING:
            return None
        word = self._curr.text.upper()
        self._advance()
        value = exp.Literal.string(self._curr.text)
        value.meta["span"] = self.here()
        self._advance()
        node = exp.Cast(this=value, to=exp.Var(this=word))
        node.meta["literal"] = word
        return node

    def _bytes_literal(self) -> Any:
        """Read ``X'1F'``, whose two parts stand without a blank between them."""
        following = self._next
        if not following or following.token_type != TokenType.STRING:
            return None
        if following.start != self._curr.end + 1:
            return None
        start = self._curr.start
        self._advance(2)
        node = exp.HexString(this=following.text)
        node.meta["span"] = self.since(start)
        return node

    def _exists(self) -> Any:
        start = self._curr.start
        self._advance()
        opened = self.here()[0]
        if not self.sign(TokenType.L_PAREN) or not self.is_word("SELECT", "WITH"):
            self.fail(f"EXISTS must be followed by (SELECT ..), got {self.got()}")
        return self._query_in(exp.Exists(), start, opened)

    def duration_parts(self, word: str) -> tuple[str, str | None, Span]:
        """Read ``5 SECONDS``, ``'5' SECONDS``, ``'5 SECONDS'`` or a bare number, after ``word``."""
        start = self._curr.start if self._curr else self._prev.start
        minus = "-" if self.sign(TokenType.DASH) else ""
        token = self._curr
        if not token or token.token_type not in (TokenType.NUMBER, TokenType.STRING):
            what = "a number" if word == "ROWS" else "a duration such as 5 SECONDS or 100"
            self.fail(f"{word} must be followed by {what}, got {self.got()}")
        self._advance()
        number, unit = token.text.strip(), None
        if token.token_type == TokenType.STRING:
            match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?:\s+(\w+))?", number)
            if not match:
                self.fail(
                    f"a duration must be a number and a unit, such as INTERVAL '5' SECONDS, got "
                    f"'{token.text}'",
                    (token.start, token.end + 1),
                )
            number, unit = match[1], match[2]
        if unit is None and self._is_plain_word() and not self.is_word(*_AFTER_DURATION):
            unit = self._curr.text
            self._advance()
        return minus + number, unit, self.since(start)

    def type_text(self) -> Name:
        """Read the name of a type, with what follows it in parentheses or angle brackets."""
        if not self._is_plain_word():
            self.fail(f"the name of a type must come here, got {self.got()}")
        start = self._curr.start
        word = self._curr.text.upper()
        self._advance()
        if word == "DOUBLE":
            self.accept("PRECISION")
        opened = self.here()[0]
        if word in ("ARRAY", "MAP", "STRUCT") and self.sign(TokenType.LT):
            self._inner_types()
            self.close(TokenType.GT, ">", opened)
        elif self.sign(TokenType.L_PAREN):
            while self._curr and self._curr.token_type != TokenType.R_PAREN:
                self._advance()
            self.close(TokenType.R_PAREN, ")", opened)
        span = self.since(start)
        return Name(self.sql[span[0] : span[1]], span)

    def _inner_types(self) -> None:
        """Read what a nested type holds; what it means is read by `parse_type`."""
        depth = 0
        while self._curr and not (depth == 0 and self._curr.token_type == TokenType.GT):
            depth += self._curr.token_type == TokenType.LT
            depth -= self._curr.token_type == TokenType.GT
            self._advance()

    def type_node(self) -> Any:
        """Read the name of a type as a node."""
        found = self.type_text()
        node = exp.Var(this=found.text)
        node.meta["span"] = found.span
        return node


def _identifier(name: Name) -> Any:
    node = exp.Identifier(this=name.text, quoted=True)
    node.meta["span"] = name.span
    return node


_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)

_WINDOW_WORDS = frozenset(
    "ROWS RANGE NOW PARTITION UNBOUNDED AFTER BEFORE FIXED SESSION TUMBLE HOP".split(" ")  # noqa: SIM905
)

_PAIRS = "OVERLAPS must stand between two pairs, (start, end) OVERLAPS (start, end)"

_CLAUSE_WORDS = frozenset(
    "AND AS BY ELSE FROM GROUP HAVING LIMIT ON OR ORDER THEN UNION WHEN WHERE".split(" ")  # noqa: SIM905
)
"""Words that begin a part of a statement: where they come too early, an operand is missing."""

_SPECIAL: dict[str, Any] = {
    "CASE": ExpressionParser._case,
    **CALL_FORMS,
    "INTERVAL": ExpressionParser._interval,
    "TIMESTAMP": ExpressionParser._time_literal,
    "X": ExpressionParser._bytes_literal,
    "DATE": ExpressionParser._time_literal,
    "EXISTS": ExpressionParser._exists,
    "ALL": ExpressionParser._quantified,
    "ANY": ExpressionParser._quantified,
    "SOME": ExpressionParser._quantified,
}
