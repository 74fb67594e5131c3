"""Windows as Spark writes them: ``GROUP BY window(t, '5 minutes')`` and ``session_window(t, gap)``.

``window(t, size [, slide [, offset]])`` is ``[HOP size SLIDE slide]`` on the stream in FROM, and
groups by ``window_start`` and ``window_end``, which are called ``window.start`` and ``window.end``.
``session_window(t, gap)`` is the function SESSION, with a session for each value of the other keys;
as in Spark, rows that WHERE leaves out are in no session.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

from sqlglot import exp

from penstock.cql.binding.scope import Scope, ScopeColumn
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import unit_microseconds
from penstock.cql.grammar.syntax import (
    Duration,
    FromItem,
    Name,
    QuerySyntax,
    Scalar,
    SelectItem,
    SelectQuery,
    Span,
    WindowClause,
    WindowSyntax,
    span_of,
)
from penstock.windows import BOUNDS

FUNCTIONS = {
    "window": "window(t, '5 minutes')",
    "session_window": "session_window(t, '5 minutes')",
}
"""The functions, and how they are written."""

_MOST_ARGUMENTS = {"window": 4, "session_window": 2}


def spark_window(source: Script, block: SelectQuery) -> tuple[SelectQuery, str]:
    """Return a block whose window stands in FROM, and the function's name; "" if there is none."""
    keys = block.group_by or ()
    calls = [key for key in keys if _function(key)]
    if not calls:
        return block, ""
    call, name = calls[0], _function(calls[0])
    span = span_of(call)
    if block.sets is not None:
        source.refuse(
            f"{name}(..) cannot stand in GROUPING SETS, ROLLUP or CUBE; write the window on its "
            f"stream, such as [TUMBLE T], and use window_start and window_end",
            span,
        )
    if len(calls) > 1:
        source.fail("GROUP BY can have one window, got two", span_of(calls[1]))
    item = block.sources[0]
    if len(block.sources) > 1:
        source.refuse(
            f"{name}(..) must group the rows of one stream; with several items in FROM, write the "
            f"window on its stream, [TUMBLE T] or [HOP T SLIDE D], and GROUP BY window_start, "
            f"window_end",
            span,
        )
    if item.window is not None:
        source.fail(
            f"{name}(..) is the window of {source.text(item.span)}, which has one already; leave "
            f"one of them out",
            item.window.span,
        )
    others = [key for key in keys if key is not call]
    window = _window(source, call, name)
    if name == "session_window":
        window = replace(window, partition_by=tuple(_column(source, key) for key in others))
        block, item = _where_first(block, item)
    bounds = [_bound(column, span) for column in BOUNDS]
    block = replace(block, sources=(replace(item, window=window),), group_by=(*bounds, *others))
    return block, name


def called(source: Script, scope: Scope, name: str) -> Scope:
    """Return the scope in which the bounds of the window are ``name.start`` and ``name.end``."""
    added = []
    for bound in BOUNDS:
        found = scope.find(source, Name(bound, (0, 0)), None, (0, 0))
        short = bound.removeprefix("window_")
        added.append(ScopeColumn(name, short, found.index, found.type, True, own=bound))
    return scope.plus(Scope(tuple(added)))


def _function(node: Scalar) -> str:
    """Return the name of the window function that a key of GROUP BY is, "" if it is none."""
    if not isinstance(node, exp.Anonymous) or "over" in node.meta:
        return ""
    name = str(node.this).lower()
    return name if name in FUNCTIONS else ""


def _window(source: Script, call: Scalar, name: str) -> WindowSyntax:
    args, span = call.expressions, span_of(call)
    if not 2 <= len(args) <= _MOST_ARGUMENTS[name]:
        source.fail(
            f"{name} must have the time column and a duration, got {len(args)} arguments; write "
            f"{FUNCTIONS[name]}",
            span,
        )
    time = args[0]
    if not isinstance(time, exp.Column):
        source.fail(
            f"{name} must be given the time column of the stream first; write {FUNCTIONS[name]}",
            span_of(time),
        )
    given = [_duration(source, arg, name) for arg in args[1:]]
    descriptor = Name(str(time.this.this), span_of(time))
    if name == "session_window":
        clause = WindowClause("SESSION", given[0], None, span)
        return WindowSyntax((), {"SESSION": clause}, None, span, descriptor=descriptor, closed=True)
    size, slide = given[0], given[1] if len(given) > 1 else given[0]
    if _micros(source, slide) > _micros(source, size):
        source.fail(
            f"{name}(time, size, slide) must not slide further than its size, which would leave "
            f"rows out, got {source.text(span)}; write the size first",
            span,
        )
    clause = WindowClause("HOP", size, slide, span)
    offset = given[2] if len(given) > 2 else None
    return WindowSyntax((), {"HOP": clause}, None, span, offset=offset, descriptor=descriptor)


def _micros(source: Script, given: Duration) -> Decimal:
    scale = 1 if given.unit is None else unit_microseconds(source, given.unit, given.span)
    return Decimal(given.number) * scale


def _duration(source: Script, node: Scalar, name: str) -> Duration:
    span = span_of(node)
    sign = ""
    if isinstance(node, exp.Neg):
        sign, node = "-", node.this
    if isinstance(node, exp.Interval):
        return Duration(sign + str(node.meta["number"]), node.meta["unit"], span)
    text = str(node.this) if isinstance(node, exp.Literal) else ""
    found = re.fullmatch(r"\s*(?:interval\s+)?(-?\d+(?:\.\d+)?)(?:\s+([a-z]+))?\s*", text, re.I)
    if found is None:
        source.fail(
            f"{name} must be given durations of one number and unit such as '5 minutes', got "
            f"{source.text(span)}",
            span,
        )
    return Duration(sign + found[1], found[2], span)


def _column(source: Script, key: Scalar) -> Name:
    if not isinstance(key, exp.Column):
        source.refuse(
            "session_window needs columns as the other keys of GROUP BY, because each value has "
            "its own sessions; compute this one in a sub-query in FROM",
            span_of(key),
        )
    return Name(str(key.this.this), span_of(key))


def _where_first(block: SelectQuery, item: FromItem) -> tuple[SelectQuery, FromItem]:
    """Move WHERE into a sub-query of FROM, where sessions are not decided yet."""
    if block.where is None:
        return block, item
    star = SelectItem(None, None, True, None, item.span)
    inner = SelectQuery(False, (star,), (item,), block.where, None, None, block.span)
    name = item.source if isinstance(item.source, Name) else None
    query = QuerySyntax(inner, (), None, (), block.span)
    item = replace(item, source=query, alias=item.alias or name, rows_of=name)
    return replace(block, where=None), item


def _bound(name: str, span: Span) -> Scalar:
    """Return a column of the window as an expression."""
    identifier = exp.Identifier(this=name, quoted=True)
    identifier.meta["span"] = span
    column = exp.Column(this=identifier)
    column.meta["span"] = span
    return column
