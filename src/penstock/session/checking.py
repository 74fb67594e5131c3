"""Checking a script without running it: all its mistakes, each with its place.

What Spark would pass over in silence is said too: an option that its format does not know, a format
whose name is nearly that of another.  A definition with such a mistake still counts as declared, so
that what follows can be checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock import cql
from penstock.catalog import QueryDef, SinkDef, StreamDef, TableDef, ViewDef
from penstock.cql.binding import statements
from penstock.cql.grammar.parse import parse_each
from penstock.cql.grammar.syntax import CreateSyntax, Parsed, Span
from penstock.errors import (
    ConfigError,
    DataError,
    PenstockError,
    QueryError,
    QueryWarning,
    suggest,
    underline,
    unread_text,
)
from penstock.expr.own import FunctionDef
from penstock.extensions import SINKS, SOURCES, extension
from penstock.options import option_mistake
from penstock.session.scripts import Follow
from penstock.session.statements import declare, execute
from penstock.sinks import SINK_FORMATS, check_sink, sink_format
from penstock.sources.formats import SOURCE_FORMATS, check_stream, source_format
from penstock.sources.table_formats import TABLE_FORMATS, check_table

if TYPE_CHECKING:
    from penstock.session.session import Session

_LAKES = ("delta", "iceberg", "hudi")
_FORMATS: Mapping[str, frozenset[str]] = {
    "stream": frozenset([*SOURCE_FORMATS, "rate", "rate-micro-batch", "socket", *_LAKES]),
    "table": frozenset([*TABLE_FORMATS, "jdbc", *_LAKES]),
    "sink": frozenset([*SINK_FORMATS, "orc", "json", "text", "avro", "xml", "kafka", "jdbc", "noop",
                       *_LAKES]),
}  # fmt: skip
"""The formats that are known by name; any other may be one that a package brings to Spark."""

_REQUIRED = {
    "kafka": (("kafka.bootstrap.servers",), ("subscribe", "subscribepattern", "assign")),
    "socket": (("host",), ("port",)),
}
"""Of each group of options a stream must have one."""


@dataclass
class ScriptCheck:
    """The mistakes of a script, in the order of its text, and what may not be meant.

    ``notes`` are remarks without a place.

    Without ``data`` nobody looks whether files are there and fit.
    """

    session: Session
    data: bool = True
    mistakes: list[tuple[PenstockError, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[QueryWarning] = field(default_factory=list)
    _follow: Follow = field(default_factory=Follow)

    def check(self, text: str) -> None:
        """Look at every statement; each mistake comes with the line that it is in."""
        try:
            found = list(parse_each(text))
        except QueryError as error:  # not even words
            self.mistakes.append((error, ""))
            return
        for parsed in found:
            if isinstance(parsed, QueryError):
                self._follow.note_unread(parsed)
                self.mistakes.append((parsed, ""))
            else:
                self._statement(parsed)
        if self._follow.unread:
            self.notes.append(unread_text(self._follow.unread))
        for name in list(self.session.catalog.queries):
            try:
                self.session.query(name).explain()
            except PenstockError as error:
                self.mistakes.append((error, ""))

    def _statement(self, parsed: Parsed) -> None:
        try:
            statement = cql.bind(parsed, self.session.catalog)
        except PenstockError as error:
            if self._follow.is_news(error, parsed):
                self.mistakes.append((error, ""))
            return
        if isinstance(statement, statements.Create | statements.Select):
            self.warnings += statement.warnings
        try:
            if isinstance(statement, statements.Create):
                self._create(statement, parsed)
            elif not isinstance(statement, statements.Ask):
                execute(self.session, statement)
        except PenstockError as error:
            self._add(error, parsed, parsed.span)

    def _create(self, statement: statements.Create, parsed: Parsed) -> None:
        definition = statement.definition
        kind = type(definition).__name__.removesuffix("Def").lower()
        known = self.session.catalog.of_kind(kind)
        if statement.if_not_exists and definition.name.lower() in known:
            return
        if isinstance(definition, StreamDef | TableDef | SinkDef):
            for error, name in self._doubts(definition, kind):
                self._add(error, parsed, _place(parsed, name))
        if isinstance(definition, QueryDef | ViewDef | FunctionDef):
            execute(self.session, statement)
        elif statement.replaces:
            self.session.catalog.replace(definition)
        else:
            declare(self.session, definition)

    def _doubts(
        self, definition: StreamDef | TableDef | SinkDef, kind: str
    ) -> Iterator[tuple[PenstockError, str]]:
        """Yield what is wrong with a format and its options, and which of them it is."""
        owner, format = f"{kind} {definition.name}", definition.format.lower()
        wrong = self._wrong_format(format, kind)
        if wrong is not None:
            yield ConfigError(f"the format of {owner} must be one that there is, got {wrong}"), ""
            return
        own = _own_options(definition)
        bad: set[str] = set()
        for name in definition.options:
            if own is not None and name.lower() not in own:
                told: str | None = suggest(name, own)
            else:
                told = option_mistake(format, name) if own is None else None
            if told is not None:
                bad.add(name)
                yield (
                    ConfigError(f"there is no option '{name}' of {format} ({owner}); {told}"),
                    name,
                )
        given = {name.lower() for name in definition.options}
        for group in _REQUIRED.get(format, ()) if kind == "stream" else ():
            if not given & set(group):
                yield (
                    ConfigError(f"the {owner} must have the option {' or '.join(group)}"),
                    "",
                )
        good = {k: v for k, v in definition.options.items() if k not in bad}
        yield from self._refused(replace(definition, options=good))

    def _wrong_format(self, format: str, kind: str) -> str | None:
        known = _FORMATS[kind]
        if format in known or extension(SINKS if kind == "sink" else SOURCES, format) is not None:
            return None
        told = suggest(format, known)
        if told.startswith("did you mean"):
            return f"'{format}'; {told}"
        others = [other for other, names in _FORMATS.items() if format in names]
        if others:
            return f"'{format}', which is a format of {others[0]}s; {told}"
        self.notes.append(f"the format '{format}' is not known here; a package must bring it")
        return None

    def _refused(
        self, definition: StreamDef | TableDef | SinkDef
    ) -> Iterator[tuple[PenstockError, str]]:
        """Yield what is refused when it is declared; files only if they are looked at."""
        try:
            match definition:
                case StreamDef():
                    check_stream(definition, self.data)
                case TableDef():
                    check_table(definition, self.data)
                case SinkDef():
                    check_sink(definition)
        except (ConfigError, DataError) as error:
            yield error, "path" if isinstance(error, DataError) else ""

    def _add(self, error: PenstockError, parsed: Parsed, span: Span) -> None:
        has_place = isinstance(error, QueryError) and error.sql is not None
        self.mistakes.append((error, "" if has_place else underline(parsed.script, *span)))


def _own_options(definition: StreamDef | TableDef | SinkDef) -> frozenset[str] | None:
    """Return the options of one of Penstock's own formats; None: those of Spark."""
    if isinstance(definition, TableDef):
        return None
    if isinstance(definition, StreamDef):
        own = source_format(definition.format).options
        return None if own is None else frozenset(name.lower() for name in own)
    own = sink_format(definition.format).options
    return None if own is None else frozenset([*own, "changes"])


def _place(parsed: Parsed, name: str) -> Span:
    """Return where an option stands, or the format, or the name of what is declared."""
    syntax = parsed.syntax
    assert isinstance(syntax, CreateSyntax)
    given = syntax.clauses.get("OPTIONS", {})
    if name.lower() in given:
        value: Span = given[name.lower()].span
        before = parsed.script.lower().rfind(name.lower(), 0, value[0])
        return (before, value[1]) if before >= parsed.span[0] else value
    using = syntax.clauses.get("USING")
    return syntax.name.span if using is None else using.span
