"""The script that is being bound: raises errors that underline a span of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.cql.grammar.syntax import Span
from penstock.errors import NotSupportedError, QueryError, QueryWarning
from penstock.expr.nodes import Expr
from penstock.expr.own import FunctionDef


@dataclass(frozen=True)
class Script:
    """The text of the whole script.

    ``warnings`` are doubts that were found on the way, ``quotients`` the divisions of integers,
    ``functions`` those of the user's own, by lower-case name.
    """

    script: str
    warnings: list[QueryWarning] = field(default_factory=list, compare=False)
    quotients: list[Expr] = field(default_factory=list, compare=False)
    functions: Mapping[str, FunctionDef] = field(default_factory=dict, compare=False)

    def fail(self, message: str, span: Span) -> NoReturn:
        """Raise a `QueryError` at a span."""
        raise QueryError(message, self.script, *span)

    def refuse(self, message: str, span: Span) -> NoReturn:
        """Raise a `NotSupportedError` at a span."""
        raise NotSupportedError(message, self.script, *span)

    def warn(self, message: str, span: Span) -> None:
        """Note a doubt at a span, once."""
        if (message, span) not in [(w.message, (w.start, w.end)) for w in self.warnings]:
            self.warnings.append(QueryWarning(message, self.script, *span))

    def text(self, span: Span) -> str:
        """Return what was typed at a span, on one line."""
        return " ".join(self.script[span[0] : span[1]].split())

    @contextmanager
    def at(self, span: Span) -> Iterator[None]:
        """Give errors that are raised inside, and know no place, this place."""
        try:
            yield
        except QueryError as error:
            if error.sql is not None:
                raise
            raise type(error)(error.message, self.script, *span) from None
