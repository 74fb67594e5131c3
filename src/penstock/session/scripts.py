"""A script as a whole: its statements are bound before any is run, and all mistakes are told.

A statement that only reads what a wrong one would have declared is not looked at: its mistake would
be that of the other once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog, QueryDef
from penstock.cql.binding import statements
from penstock.cql.binding.statements import Statement
from penstock.cql.grammar.parse import parse_each
from penstock.cql.grammar.syntax import CreateSyntax, Parsed, QuerySyntax
from penstock.errors import PenstockError, QueryError, ScriptError

UNNAMED = "select_"
"""How the name of a SELECT begins that was given none."""

_DECLARED = re.compile(
    r"\bCREATE\s+(?:(?:OR|REPLACE|GLOBAL|TEMP|TEMPORARY|MATERIALIZED|STREAMING|CONTINUOUS|LIVE)\s+)*"
    r"\w+\s+(?:IF\s+NOT\s+EXISTS\s+)?([\w\"`]+)",
    re.IGNORECASE,
)
"""Where a statement says what it declares, though the rest of it cannot be read."""

Planned: TypeAlias = tuple[Parsed, Statement | None]
"""A statement and what it asks for; None: a question, which is bound when it is asked."""


@dataclass
class Follow:
    """Which statements of a script only follow from the mistakes of others.

    ``unread`` is how many of them there were.
    """

    broken: set[str] = field(default_factory=set)
    unread: int = 0

    def note_unread(self, error: QueryError) -> None:
        """Remember what a statement that cannot be read would have declared."""
        text = error.sql or ""
        before, after = text[: error.start], text[error.start :]
        statement = before.rpartition(";")[2] + after.partition(";")[0]
        named = _DECLARED.search(statement)
        if named:
            self.broken.add(named[1].strip('"`').lower())

    def is_news(self, error: PenstockError, parsed: Parsed) -> bool:
        """Whether an error is more than that something is missing whose own mistake was told."""
        if isinstance(parsed.syntax, CreateSyntax):
            self.broken.add(parsed.syntax.name.text.lower())
        named = re.match(r"there is no [\w, ]+ '([^']+)'", str(error))
        follows = named is not None and named[1].lower() in self.broken
        self.unread += follows
        return not follows


@dataclass
class _Shadow:
    """What would be declared if the statements before had been run; ``unnamed`` are SELECTs."""

    catalog: Catalog
    unnamed: int

    def run(self, statement: Statement) -> None:
        match statement:
            case statements.Create(definition, replaces=True):
                self.catalog.replace(definition)
            case statements.Create(definition, if_not_exists):
                kind = type(definition).__name__.removesuffix("Def").lower()
                known = definition.name.lower() in self.catalog.of_kind(kind)
                if not (if_not_exists and known):
                    self.catalog.add(definition)
            case statements.Drop(kind, name, _):
                if name.lower() in self.catalog.of_kind(kind):
                    self.catalog.remove(kind, name)
            case statements.Select(plan, sql):
                self.unnamed += 1
                self.catalog.add(QueryDef(f"{UNNAMED}{self.unnamed}", plan, None, sql))


def bound_script(
    text: str,
    catalog: Catalog,
    unnamed: int = 0,
    readable: Mapping[str, Node] | None = None,
) -> list[Planned]:
    """Return the statements of a script, each bound to what is declared before it.

    ``unnamed`` is how many SELECTs without a name there were so far.  With ``readable``, the plans
    of queries that can be read by name, a SELECT may be one that is asked once, and stays unbound.
    Raises what is wrong; if several statements are, a `ScriptError`.
    """
    shadow = _Shadow(catalog.copy(), unnamed)
    follow, mistakes, planned = Follow(), list[QueryError](), list[Planned]()
    for parsed in parse_each(text):
        if isinstance(parsed, QueryError):
            follow.note_unread(parsed)
            mistakes.append(parsed)
            continue
        try:
            planned.append((parsed, _bound(parsed, shadow, readable)))
        except QueryError as error:
            if follow.is_news(error, parsed):
                mistakes.append(error)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes:
        raise ScriptError(mistakes, follow.unread)
    return planned


def _bound(
    parsed: Parsed, shadow: _Shadow, readable: Mapping[str, Node] | None
) -> Statement | None:
    if readable is not None and isinstance(parsed.syntax, QuerySyntax):
        declared = {query.name: query.plan for query in shadow.catalog.queries.values()}
        cql.bind_question(parsed, shadow.catalog, {**declared, **readable})
        return None
    statement = cql.bind(parsed, shadow.catalog)
    shadow.run(statement)
    return statement
