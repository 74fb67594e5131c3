"""The ways in: a parsed statement, a query text or an expression text, bound against a catalog."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.algebra import Node, TableScan, streams_of, walk
from penstock.catalog import Catalog, Definition, QueryDef, ViewDef
from penstock.cql.binding.binder import QueryBinder
from penstock.cql.binding.definitions import DefinitionBinder
from penstock.cql.binding.scalars import Aggregates, ScalarBinder, label
from penstock.cql.binding.scope import Priority, Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.statements import (
    Ask,
    Change,
    Create,
    Describe,
    Drop,
    Explain,
    Insert,
    Pause,
    Resume,
    Select,
    Show,
    ShowCreate,
    Statement,
)
from penstock.cql.binding.times import WindowBinder, chronons, time_kinds
from penstock.cql.binding.values import bind_insert
from penstock.cql.grammar.foreign import led_home
from penstock.cql.grammar.parse import (
    MATERIALIZED,
    parse_duration,
    parse_query,
    parse_scalar,
    parse_window,
)
from penstock.cql.grammar.syntax import (
    AlterSyntax,
    CommandSyntax,
    CreateSyntax,
    DropSyntax,
    ExplainSyntax,
    InsertSyntax,
    Name,
    Parsed,
    QuerySyntax,
    SetSyntax,
    Span,
)
from penstock.errors import ConfigError, QueryError, QueryWarning, suggest
from penstock.expr.nodes import AggregateCall, Column, Expr
from penstock.expr.own import FunctionDef
from penstock.model import Schema
from penstock.settings import Settings
from penstock.windows import WindowSpec

_KINDS = ("stream", "table", "view", "sink", "query", "function")


def bind(parsed: Parsed, catalog: Catalog) -> Statement:
    """Return what the statement asks for; every name is looked up and every type checked."""
    source = Script(parsed.script, functions=catalog.functions)
    with _guarded(source, parsed.span):
        statement = _BINDERS[type(parsed.syntax)](source, catalog, parsed)
    if source.warnings and isinstance(statement, Create | Explain | Select):
        return replace(statement, warnings=_about(source, statement))
    return statement


def _about(source: Script, statement: Create | Explain | Select) -> tuple[QueryWarning, ...]:
    """Return the warnings of a statement, which know what it declares."""
    name = statement.definition.name if isinstance(statement, Create) else ""
    for warning in source.warnings:
        warning.about = name
    return tuple(sorted(source.warnings, key=lambda warning: warning.start))


def bind_query(text: str, catalog: Catalog) -> Node:
    """Return the plan of a query text."""
    source, syntax = Script(text, functions=catalog.functions), parse_query(text)
    with _guarded(source, syntax.span):
        return QueryBinder(source, catalog).top(syntax)


def bind_scalar(
    text: str,
    schema: Schema,
    qualifier: str = "",
    priority: Expr | None = None,
    functions: Mapping[str, FunctionDef] | None = None,
) -> tuple[Expr, str]:
    """Return an expression over the columns of a schema, and its name (alias or text).

    ``priority`` is what `_priority` means in it, if it means anything; ``functions`` are those of
    the user's own.
    """
    source = Script(text, functions=functions or {})
    syntax, alias = parse_scalar(text)
    scope = Scope.of(qualifier, schema).ranked(Priority(qualifier, priority, 0))
    with _guarded(source, (0, len(text))):
        bound = ScalarBinder(source, scope, "an expression").bind(syntax)
    return bound, alias.text if alias else label(source, syntax)


def bind_aggregate(
    text: str,
    schema: Schema,
    priority: Expr | None = None,
    functions: Mapping[str, FunctionDef] | None = None,
) -> tuple[AggregateCall, str]:
    """Return an aggregate such as ``AVG(celsius) AS mean`` over a schema, and its name.

    ``priority`` and ``functions`` are as in `bind_scalar`.
    """
    source = Script(text, functions=functions or {})
    syntax, alias = parse_scalar(text)
    found = Aggregates(len(schema))
    scope = Scope.of("", schema).ranked(Priority("", priority, 0))
    with _guarded(source, (0, len(text))):
        bound = ScalarBinder(source, scope, "an aggregate", found).bind(syntax)
    if not isinstance(bound, Column) or bound.index < len(schema):
        source.fail("an aggregate must be given, such as AVG(x) AS mean", (0, len(text)))
    return found.calls[0], alias.text if alias else label(source, syntax)


def bind_window(text: str, node: Node) -> WindowSpec:
    """Return a window such as ``[RANGE 5 SECONDS]`` over a plan."""
    source = Script(text)
    syntax = parse_window(text)
    if syntax.area is not None:
        source.fail("an area is a condition here: use where(..)", syntax.area.span)
    kinds = time_kinds(node)
    if len(kinds) != 1:
        source.fail("a window must be over a stream", syntax.span)
    found = WindowBinder(source, node.schema, next(iter(kinds)), "the input").bind(syntax)
    for doubt in source.warnings:
        warnings.warn(doubt, stacklevel=3)
    return found


def bind_duration(text: str, node: Node) -> int:
    """Return a duration such as ``5 MINUTES`` in the units of time of a plan."""
    kind = next(iter(time_kinds(node)))
    return chronons(Script(text), parse_duration(text), kind, "the relation", least=0)


@contextmanager
def _guarded(source: Script, span: Span) -> Iterator[None]:
    """Give every error a place; a tree so deep that the stack ends is the user's mistake too."""
    try:
        with source.at(span):
            yield
    except QueryError as error:
        raise led_home(error) from None
    except RecursionError:
        source.fail("the statement is nested too deeply; split it with CREATE VIEW", span)


def _create(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, CreateSyntax)
    definition = DefinitionBinder(source, catalog, syntax, parsed.sql).bind()
    if syntax.or_replace:
        _check_users(source, catalog, syntax, definition)
    return Create(definition, syntax.if_not_exists, replaces=syntax.or_replace)


def _check_users(
    source: Script, catalog: Catalog, syntax: CreateSyntax, definition: Definition
) -> None:
    """Refuse to replace what others count on; who reads a view goes on with its old text."""
    kind, name = syntax.kind, syntax.name
    before = catalog.of_kind("view" if kind == MATERIALIZED else kind).get(name.text.lower())
    if before is None or replace(definition, name=before.name, sql=before.sql) == before:
        return
    if isinstance(before, ViewDef):
        readers = [q.name for q in catalog.queries.values() if q.name != before.name and any(
            part == before.plan for part in walk(q.plan))]  # fmt: skip
        if readers:
            source.warn(
                f"query {', '.join(sorted(readers))} reads the view '{before.name}', and goes on "
                f"with its old text; CREATE OR REPLACE the query too, behind this statement",
                name.span,
            )
        return
    users = [f"query {q.name}" for q in catalog.queries.values() if _uses(q, kind, before.name)]
    users += [
        f"view {view.name}" for view in catalog.views.values() if _reads(view.plan, kind, before)
    ]
    users += [
        f"stream {stream.name}" for stream in catalog.streams.values()
        if kind == "sink" and before.name in (stream.late, stream.deadletter)
    ]  # fmt: skip
    if users and kind != "query":
        source.fail(
            f"a {kind} can be replaced when nothing uses it, because what was read or delivered "
            f"by its old declaration would have to be so once more, but '{before.name}' is used "
            f"by {', '.join(sorted(users))}; DROP that first, and create it again behind this "
            f"statement",
            name.span,
        )


def _reads(plan: Node, kind: str, found: Any) -> bool:
    if kind == "stream":
        return found.name in streams_of(plan)
    return any(isinstance(n, TableScan) and n.table == found.name for n in walk(plan))


def _alter(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, AlterSyntax)
    return Create(_altered(source, catalog, syntax, parsed.sql), replaces=True)


def _altered(source: Script, catalog: Catalog, syntax: AlterSyntax, sql: str) -> QueryDef:
    found: QueryDef = _found(source, catalog, "query", syntax.name)
    if found.keep is not None:
        source.fail(
            f"'{found.name}' is a {MATERIALIZED}; CREATE OR REPLACE MATERIALIZED VIEW {found.name}",
            syntax.name.span,
        )
    created = CreateSyntax(
        "query", syntax.name, False, (), dict(syntax.clauses), syntax.query, syntax.span, True
    )
    return DefinitionBinder(source, catalog, created, sql).altered(found)


def _found(source: Script, catalog: Catalog, kind: str, name: Name) -> Any:
    known = catalog.of_kind(kind)
    found = known.get(name.text.lower())
    if found is None:
        names = [d.name for d in known.values()]
        source.fail(f"there is no {kind} '{name.text}'; {suggest(name.text, names)}", name.span)
    return found


def _drop(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, DropSyntax)
    kind = "view" if syntax.kind == MATERIALIZED else syntax.kind
    name = syntax.name.text.lower()
    runs = kind == "query" or syntax.kind == MATERIALIZED
    if name not in catalog.of_kind(kind) and (
        syntax.if_exists or (runs and name in catalog.remembered)
    ):
        return Drop(kind, syntax.name.text, True)
    found = _found(source, catalog, kind, syntax.name)
    kept = kind in ("view", "query") and found.keep is not None
    if kept != (syntax.kind == MATERIALIZED):
        source.fail(
            f"'{found.name}' is a {MATERIALIZED if kept else 'plain view'}; DROP "
            f"{'MATERIALIZED ' if kept else ''}VIEW {found.name}",
            syntax.name.span,
        )
    users = [q.name for q in catalog.queries.values() if _uses(q, syntax.kind, found.name)]
    if users:
        source.fail(
            f"{syntax.kind} '{found.name}' is used by query {', '.join(sorted(users))}; DROP the "
            f"query first",
            syntax.name.span,
        )
    return Drop(kind, found.name, syntax.if_exists)


def _uses(query: Any, kind: str, name: str) -> bool:
    if kind == "sink":
        return name.lower() in {sink.lower() for sink in (query.sink, query.early) if sink}
    if kind == "stream":
        return name in streams_of(query.plan)
    if kind == "table":
        return any(isinstance(n, TableScan) and n.table == name for n in walk(query.plan))
    return False


def _command(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, CommandSyntax)
    if syntax.name is None:
        return Show(syntax.what)
    if syntax.verb == "describe":
        for kind in _KINDS:
            found = catalog.of_kind(kind).get(syntax.name.text.lower())
            if found is not None:
                return Describe(found.name, kind)
        known = [d.name for kind in _KINDS for d in catalog.of_kind(kind).values()]
        source.fail(
            f"there is nothing called '{syntax.name.text}'; {suggest(syntax.name.text, known)}",
            syntax.name.span,
        )
    if syntax.verb == "show create":
        return ShowCreate(_found(source, catalog, syntax.what, syntax.name).name, syntax.what)
    name = _found(source, catalog, "query", syntax.name).name
    return Pause(name) if syntax.verb == "pause" else Resume(name)


def _set(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, SetSyntax)
    try:
        Settings().but({syntax.setting.text: syntax.value})
    except ConfigError as error:
        source.fail(str(error), syntax.span)
    return Change(syntax.setting.text, syntax.value)


def _insert(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, InsertSyntax)
    stream = _found(source, catalog, "stream", syntax.name)
    return Insert(stream.name, bind_insert(source, stream, syntax))


def _explain(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    syntax = parsed.syntax
    assert isinstance(syntax, ExplainSyntax)
    if syntax.change is not None:
        change, name = syntax.change, syntax.change.name
        if name.text.lower() not in catalog.remembered:
            _found(source, catalog, "query", name)
        if isinstance(change, AlterSyntax):
            made = _altered(source, catalog, change, "")
        else:
            bound = DefinitionBinder(source, catalog, change, "").bind()
            assert isinstance(bound, QueryDef)
            made = bound
        known = catalog.queries.get(name.text.lower())
        made = made if known is None else replace(made, name=known.name)
        return Explain(syntax.level, made.plan, made.name, change=made)
    if syntax.name is not None:
        query = _found(source, catalog, "query", syntax.name)
        return Explain(syntax.level, query.plan, query.name)
    assert syntax.query is not None
    return Explain(syntax.level, QueryBinder(source, catalog).top(syntax.query))


def _select(source: Script, catalog: Catalog, parsed: Parsed) -> Statement:
    assert isinstance(parsed.syntax, QuerySyntax)
    if parsed.syntax.as_of is not None:
        return Ask(parsed)
    return Select(QueryBinder(source, catalog).top(parsed.syntax), parsed.sql)


_BINDERS: dict[type, Callable[[Script, Catalog, Parsed], Statement]] = {
    CreateSyntax: _create,
    AlterSyntax: _alter,
    DropSyntax: _drop,
    CommandSyntax: _command,
    SetSyntax: _set,
    InsertSyntax: _insert,
    ExplainSyntax: _explain,
    QuerySyntax: _select,
}

__all__ = ["bind", "bind_aggregate", "bind_duration", "bind_query", "bind_scalar", "bind_window"]
