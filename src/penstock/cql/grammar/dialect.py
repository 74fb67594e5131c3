"""CQL as a sqlglot dialect: its words, and the small steps that its grammar is made of.

sqlglot brings the tokens, the precedence of operators and the expression nodes.  Our own is what a
user's mistake needs, told in a sentence with the right place underlined: only the words that
expressions need are keywords, all others are names unless `RESERVED` says so, and every node notes
its span in ``meta["span"]``.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from sqlglot.dialects.dialect import Dialect
from sqlglot.parser import Parser
from sqlglot.tokens import Token, Tokenizer, TokenType

from penstock.cql.grammar.syntax import Name, Span, span_of
from penstock.errors import NotSupportedError, QueryError
from penstock.masking import masked_script

# fmt: off
RESERVED = frozenset(
    {
        "ALL", "AND", "ANTI", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "CAST", "CROSS",
        "DESC", "DISTINCT", "DIV", "ELSE", "END", "EXCEPT", "EXISTS", "FALSE", "FROM",
        "FULL", "GROUP", "HAVING", "IN", "INNER", "INTERSECT", "INTERVAL", "INTO", "IS",
        "JOIN", "LATERAL", "LEFT", "LIKE", "LIMIT", "MINUS", "NATURAL", "NOT", "NULL",
        "OFFSET", "ON", "OR", "ORDER", "OUTER", "OVER", "QUALIFY", "RIGHT", "SELECT",
        "SEMI", "THEN", "TRUE", "UNION", "USING", "WHEN", "WHERE", "WITH",
    }
)
"""Words that cannot be a name unless quoted."""
# fmt: on

_TEXT = (TokenType.STRING, TokenType.IDENTIFIER)


class _Tokenizer(Tokenizer):  # type: ignore[misc]
    IDENTIFIERS = ['"', "`"]  # noqa: RUF012
    NESTED_COMMENTS = False
    COMMANDS = set()  # type: ignore[var-annotated]  # noqa: RUF012
    KEYWORDS = {  # noqa: RUF012
        "==": TokenType.EQ,
        "::": TokenType.DCOLON,
        "||": TokenType.DPIPE,
        ">=": TokenType.GTE,
        "<=": TokenType.LTE,
        "<>": TokenType.NEQ,
        "!=": TokenType.NEQ,
        "<=>": TokenType.NULLSAFE_EQ,
        "AND": TokenType.AND,
        "BETWEEN": TokenType.BETWEEN,
        "DIV": TokenType.DIV,
        "FALSE": TokenType.FALSE,
        "ILIKE": TokenType.ILIKE,
        "IN": TokenType.IN,
        "IS": TokenType.IS,
        "LIKE": TokenType.LIKE,
        "NOT": TokenType.NOT,
        "NULL": TokenType.NULL,
        "OR": TokenType.OR,
        "RLIKE": TokenType.RLIKE,
        "TRUE": TokenType.TRUE,
    }


class Steps(Parser):  # type: ignore[misc]
    """The next token, and what to do with it; errors that underline it."""

    # ---- errors and spans

    def here(self) -> Span:
        """Return the span of the next token, or of the last one at the end of the statement."""
        token = self._curr or self._prev
        return (token.start, token.end + 1) if token else (0, max(1, len(self.sql)))

    def got(self) -> str:
        """Return the next token as a user would name it."""
        if not self._curr:
            return "the end of the statement"
        return f"'{self.shown((self._curr.start, self._curr.end + 1))}'"

    def shown(self, span: Span) -> str:
        """Return what was typed at a span, without secrets."""
        return masked_script(self.sql)[slice(*span)]

    def fail(self, message: str, span: Span | None = None) -> NoReturn:
        """Raise a `QueryError` that underlines ``span`` or the next token."""
        raise QueryError(message, self.sql, *(span or self.here()))

    def refuse(self, message: str, span: Span | None = None) -> NoReturn:
        """Raise a `NotSupportedError`."""
        raise NotSupportedError(message, self.sql, *(span or self.here()))

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        """Turn what sqlglot complains about into our sentence."""
        span = (token.start, token.end + 1) if token else None
        self.fail(f"{self.got()} was not expected here; check the expression before it", span)

    def since(self, start: int) -> Span:
        """Return the span from ``start`` to the last token that was read."""
        return (start, self._prev.end + 1)

    def expression(self, instance: Any, token: Any = None, comments: Any = None) -> Any:
        """Note the span of every node: from its first part to the last token read."""
        if token is not None:
            instance.meta["span"] = (token.start, token.end + 1)
        elif "span" not in instance.meta and self._prev:
            starts = [span_of(c)[0] for c in instance.iter_expressions()]
            start = min(starts) if starts else self._prev.start
            instance.meta["span"] = (start, self._prev.end + 1)
        return instance

    # ---- small steps

    def is_word(self, *words: str) -> bool:
        """Whether the next token is one of the words."""
        token = self._curr
        return bool(token) and token.token_type not in _TEXT and token.text.upper() in words

    def accept(self, *words: str) -> bool:
        """Read the words if all of them come next, in this order."""
        index = self._index
        for word in words:
            if not self.is_word(word):
                self._retreat(index)
                return False
            self._advance()
        return True

    def demand(self, word: str, why: str) -> None:
        """Read a word that must come here."""
        if not self.accept(word):
            self.fail(f"{why} must be followed by {word}, got {self.got()}")

    def sign(self, kind: TokenType) -> bool:
        """Read a token such as a parenthesis if it comes next."""
        return bool(self._match(kind))

    def close(self, kind: TokenType, sign: str, opened: int) -> None:
        """Read a closing bracket, or say which one stays open."""
        if not self.sign(kind):
            opening = self.sql[opened]
            self.fail(f"'{opening}' must be closed by '{sign}', got {self.got()}")

    def name(self, what: str) -> Name:
        """Read a name: a word that is not reserved, or anything quoted."""
        found = self.maybe_name()
        if found is None:
            text = self._curr.text if self._curr else ""
            hint = f'; write "{text}" to use that word as a name' if self._is_plain_word() else ""
            self.fail(f"{what} must come here, got {self.got()}{hint}")
        return found

    def maybe_name(self) -> Name | None:
        """Read a name if one comes next."""
        token = self._curr
        if not token:
            return None
        quoted = token.token_type == TokenType.IDENTIFIER
        if not quoted and (not self._is_plain_word() or token.text.upper() in RESERVED):
            return None
        self._advance()
        return Name(token.text, (token.start, token.end + 1))

    def _is_plain_word(self) -> bool:
        token = self._curr
        return (
            bool(token)
            and token.token_type not in _TEXT
            and re.fullmatch(r"[^\W\d]\w*", token.text) is not None
        )


class Cql(Dialect):  # type: ignore[misc]
    """The dialect under which sqlglot knows CQL."""

    Tokenizer = _Tokenizer
    Parser = Steps


_LEXICAL = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(?P<open>/\*|['"`])""",
    re.DOTALL,
)


def tokenize(script: str) -> list[Token]:
    """Return the tokens of a script; a quote or comment that stays open is an error."""
    for match in _LEXICAL.finditer(script):
        opening = match["open"]
        if opening:
            what = {"'": "a string", "/*": "a comment"}.get(opening, "a quoted name")
            closing = "*/" if opening == "/*" else opening
            line_end = script.find("\n", match.start())
            end = len(script) if line_end < 0 else line_end
            raise QueryError(
                f"{what} that is opened by {opening} must be closed by {closing}",
                script,
                match.start(),
                end,
            )
    tokens: list[Token] = Cql().tokenize(script)
    return tokens
