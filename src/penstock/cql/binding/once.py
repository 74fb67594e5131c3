"""Questions: queries that are answered once, about one instant, from what is kept.

They are bound as continuous queries are, so that expressions, functions and mistakes are the same;
besides, they may read queries by name, be ordered without a limit, and say ``AS OF``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.algebra import Node, walk
from penstock.catalog import Catalog
from penstock.cql.binding.binder import QueryBinder
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import INTEGERS, STAMPS, instant, time_kinds
from penstock.cql.grammar.foreign import led_home
from penstock.cql.grammar.parse import parse_script
from penstock.cql.grammar.syntax import Parsed, QuerySyntax, Span, TimePoint
from penstock.errors import QueryError


@dataclass(frozen=True)
class Question:
    """A bound question; ``places`` are the plans of the items of FROM, and where they stand."""

    source: Script
    span: Span
    plan: Node
    as_of: int | None
    as_of_span: Span
    places: tuple[tuple[Node, Span], ...]

    def span_of(self, part: Node) -> Span:
        """Return where a part of the plan stands: the smallest item of FROM that holds it."""
        holding = [span for node, span in self.places if any(n == part for n in walk(node))]
        return min(holding, key=lambda span: span[1] - span[0], default=self.span)


def parse_question(text: str) -> Parsed:
    """Return the syntax of a text that must be one SELECT."""
    parsed = parse_script(text)
    if len(parsed) != 1 or not isinstance(parsed[0].syntax, QuerySyntax):
        raise QueryError("one query must be given, such as SELECT .. FROM a view", text)
    return parsed[0]


def bind_question(
    parsed: Parsed, catalog: Catalog, queries: Mapping[str, Node] | None = None
) -> Question:
    """Bind a statement that is a query; ``queries`` are those that can be read by name."""
    syntax = parsed.syntax
    assert isinstance(syntax, QuerySyntax)
    source = Script(parsed.script, functions=catalog.functions)
    taken = {*catalog.streams, *catalog.tables, *catalog.views}
    names = {n.lower(): p for n, p in (queries or {}).items() if n.lower() not in taken}
    binder = QueryBinder(source, catalog, names)
    try:
        with source.at(syntax.span):
            plan = binder.once(syntax)
            point = syntax.as_of
            as_of = None if point is None else _as_of(source, point, plan)
    except QueryError as error:
        raise led_home(error) from None
    except RecursionError:
        source.fail("the query is nested too deeply; split it with CREATE VIEW", syntax.span)
    span = (0, 0) if point is None else point.span
    return Question(source, syntax.span, plan, as_of, span, tuple(binder.places))


def _as_of(source: Script, point: TimePoint, plan: Node) -> int:
    kinds = time_kinds(plan)
    found = STAMPS if isinstance(point.value, str) else INTEGERS
    return instant(source, point, next(iter(kinds), found), "the query")
