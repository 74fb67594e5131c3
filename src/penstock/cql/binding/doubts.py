"""Doubts: what can be run, but is rarely meant.  Each is a warning at its place in the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from penstock.algebra import (
    Aggregate,
    Node,
    Over,
    Scan,
    TableScan,
    TopK,
    ToStream,
    Window,
    inputs,
    walk,
)
from penstock.cql.binding.chains import is_bounded
from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import Duration, OrderItem, Scalar, Span, span_of
from penstock.expr import nodes as expressions
from penstock.expr.nodes import Expr
from penstock.expr.types import is_integer
from penstock.model import TIMESTAMP

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def doubt_unit(source: Script, duration: Duration, owner: str) -> None:
    """A duration without a unit, where time is counted in timestamps."""
    text = source.text(duration.span)
    unit = "microsecond" if duration.number == "1" else "microseconds"
    source.warn(
        f"{text} without a unit is {duration.number} {unit}, because {owner} counts time in "
        f"timestamps; write {duration.number} SECONDS, or {duration.number} {unit.upper()}",
        duration.span,
    )


def doubt_groups(source: Script, node: Node, spans: Sequence[Span], closes: bool) -> None:
    """Groups of a stream that has no end; ``closes``: a punctuation of a stream ends some."""
    if not spans or closes or not _piles_up(node):
        return
    scans = [part for part in walk(node) if isinstance(part, Scan)]
    names = ", ".join(dict.fromkeys(scan.stream for scan in scans))
    window = "[RANGE 1 HOUR]" if scans[0].time_type == TIMESTAMP else "[RANGE 1000]"
    span = (spans[0][0], spans[-1][1])
    source.warn(
        f"every value of {source.text(span)} that ever came keeps its group, because no window "
        f"bounds {names}: the state grows for ever where new values keep coming; write a window, "
        f"such as {window}, or [RANGE UNBOUNDED] where this is meant",
        span,
    )


def doubt_quotient_key(source: Script, key: Expr, span: Span) -> None:
    """A key of GROUP BY that divides integers: 25 / 10 is 2.5."""
    if _divides_integers(source, key):
        source.warn(
            "a / b of integers gives a DOUBLE (25 / 10 is 2.5), so nearly every value is a group "
            "of its own; write a DIV b for whole numbers",
            span,
        )


def doubt_operator(source: Script, name: str, args: Sequence[Expr], node: Scalar) -> None:
    """A comparison with NULL, or of a quotient of integers with an integer."""
    if name in _COMPARISONS and any(isinstance(s, exp.Null) for s in (node.this, node.expression)):
        other = node.this if isinstance(node.expression, exp.Null) else node.expression
        told = "IS NOT NULL" if name == "ne" else "IS NULL"
        source.warn(
            f"a comparison with NULL is never true; write {source.text(span_of(other))} {told}",
            span_of(node),
        )
    if name != "eq":
        return
    for one, another in (args, tuple(args)[::-1]):
        if one in source.quotients and is_integer(another.type):
            source.warn(
                "a / b of integers gives a DOUBLE (25 / 10 is 2.5), which equals a whole number "
                "only where nothing is left over; write a DIV b for whole numbers",
                span_of(node),
            )


def note_quotient(source: Script, made: Expr, args: Iterable[Expr]) -> None:
    """Remember a quotient of integers, for those that use it as a key."""
    if all(is_integer(arg.type) for arg in args):
        source.quotients.append(made)


def doubt_limit(source: Script, limit: int | None, order: tuple[OrderItem, ...], at: Span) -> None:
    """The first rows of something without an order."""
    if limit is not None and not order:
        source.warn(
            f"LIMIT {limit} without ORDER BY keeps the first {limit} in the order of all columns, "
            f"not the newest; write ORDER BY, or FROM s [ROWS {limit}] for the last {limit} rows",
            at,
        )


def _piles_up(node: Node) -> bool:
    """Whether the rows of a relation pile up for ever, and nobody has said so by a window."""
    match node:
        case Window() | TableScan() | Aggregate() | TopK():
            return False
        case Scan() | ToStream() | Over():
            return True
    return not is_bounded(node) and any(_piles_up(below) for below in inputs(node))


def _divides_integers(source: Script, key: Expr) -> bool:
    return any(part in source.quotients for part in expressions.walk(key))
