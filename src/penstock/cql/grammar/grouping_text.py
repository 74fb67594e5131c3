"""The grammar of GROUP BY.

group  := GROUP BY element, .. [GROUPING SETS (set, ..) | WITH ROLLUP | WITH CUBE]
element := expression | ROLLUP (part, ..) | CUBE (part, ..) | GROUPING SETS (set, ..)
part   := expression | (expression, ..)
set    := (expression, ..) | () | element

Each element stands for a list of sets of keys; ``a, ROLLUP (b, c)`` for ``(a, b, c), (a, b), (a)``:
the sets of several elements are put together in all ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, TypeAlias

from sqlglot.tokens import TokenType

from penstock.cql.grammar.syntax import Scalar
from penstock.cql.grammar.window_text import WindowParser

_MOST_SETS = 64

Sets: TypeAlias = list[tuple[Scalar, ...]]


class GroupingParser(WindowParser):
    """GROUP BY with its sets of keys; ``_grouped`` are the keys that were read so far."""

    _grouped: list[Scalar] = []  # noqa: RUF012 -- never changed, each GROUP BY has its own

    def group_by(self) -> tuple[tuple[Scalar, ...], tuple[tuple[Scalar, ...], ...] | None]:
        """Read what stands behind GROUP: the keys, and their sets if it has several.

        No keys and no sets are those of GROUP BY ALL.
        """
        start = self._prev.start
        self.demand("BY", "GROUP")
        if self.accept("ALL"):
            return (), None
        around, self._grouped = self._grouped, []
        several = self._starts_sets()
        elements = [self._element()]
        while self.sign(TokenType.COMMA):
            several |= self._starts_sets()
            elements.append(self._element())
        keys = tuple(self._grouped)
        if self.is_word("GROUPING"):
            elements, several = [self._element()], True
        elif self.is_word("WITH") and self._next and self._next.text.upper() in ("ROLLUP", "CUBE"):
            word = self._next.text.upper()
            self._advance(2)
            elements, several = [_sets_of(word, [(key,) for key in keys])], True
        sets = [_together(chosen) for chosen in product(*elements)]
        if len(sets) > _MOST_SETS:
            self.fail(
                f"GROUP BY must have at most {_MOST_SETS} sets of keys, got {len(sets)}; list "
                f"those that you need in GROUPING SETS",
                self.since(start),
            )
        self._grouped = around
        return keys, tuple(sets) if several else None

    def _starts_sets(self) -> bool:
        if self.is_word("GROUPING"):
            return bool(self._next) and self._next.text.upper() == "SETS"
        return self.is_word("ROLLUP", "CUBE") and self._opens(self._next)

    def _element(self) -> Sets:
        """Read an element: the sets of keys that it stands for."""
        if not self._starts_sets():
            return [(self._key(),)]
        word = self._curr.text.upper()
        self._advance(2 if word == "GROUPING" else 1)
        opened = self._curr.start if self._curr else 0
        if not self.sign(TokenType.L_PAREN):
            self.fail(f"GROUPING SETS must be followed by sets of keys in parentheses, got "
                      f"{self.got()}")  # fmt: skip
        found: Sets = []
        while not found or self.sign(TokenType.COMMA):
            found += self._element() if self._starts_sets() else [self._part()]
        self.close(TokenType.R_PAREN, ")", opened)
        return found if word == "GROUPING" else _sets_of(word, found)

    def _part(self) -> tuple[Scalar, ...]:
        """Read one key, or several in parentheses."""
        if not self._opens(self._curr):
            return (self._key(),)
        opened, index = self._curr.start, self._index
        self._advance()
        keys: list[Any] = []
        if not self._curr or self._curr.token_type != TokenType.R_PAREN:
            keys.append(self._key())
            while self.sign(TokenType.COMMA):
                keys.append(self._key())
        self.close(TokenType.R_PAREN, ")", opened)
        if self._curr and self._curr.token_type not in (TokenType.COMMA, TokenType.R_PAREN):
            self._retreat(index)  # an expression that begins with a parenthesis
            del self._grouped[len(self._grouped) - len(keys) :]
            return (self._key(),)
        return tuple(keys)

    def _key(self) -> Scalar:
        key = self.scalar()
        self._grouped.append(key)
        return key


def _sets_of(word: str, parts: Sets) -> Sets:
    """Return the sets of ROLLUP or CUBE, the largest first."""
    if word == "ROLLUP":
        return [_together(parts[:count]) for count in range(len(parts), -1, -1)]
    empty: tuple[Scalar, ...] = ()
    return [_together(some) for some in product(*([part, empty] for part in parts))]


def _together(parts: Iterable[tuple[Scalar, ...]]) -> tuple[Scalar, ...]:
    return tuple(key for part in parts for key in part)
