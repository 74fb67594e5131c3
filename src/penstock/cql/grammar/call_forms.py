"""Calls with words between their arguments, such as ``EXTRACT(year FROM t)``, and signs for bits.

Each becomes a plain call: an ``Anonymous`` node with the function's name.  Where the words do not
come, the reader goes back and returns None, and the call is read as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.cql.grammar.syntax import span_of

_ENDS = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}
_WITH_UNIT = {
    **dict.fromkeys(("timestampadd", "dateadd", "date_add"), "timestampadd"),
    **dict.fromkeys(("timestampdiff", "datediff", "date_diff"), "timestampdiff"),
}
_UNITS = frozenset(
    [
        "microsecond",
        "millisecond",
        "second",
        "minute",
        "hour",
        "day",
        "dayofyear",
        "week",
        "month",
        "quarter",
        "year",
    ]
)


def _opened(parser: Any) -> int | None:
    """Read the name of a function and its bracket; return where that is, None if none comes."""
    if not parser._opens(parser._next):
        return None
    parser._advance()
    opened: int = parser._curr.start
    parser._advance()
    return opened


def _node(parser: Any, name: str, args: list[Any], start: int) -> Any:
    node = exp.Anonymous(this=name, expressions=args)
    span = parser.since(start)
    node.meta.update(name_span=span, distinct=False, star=False, span=span)
    return node


def _text(value: str, span: tuple[int, int]) -> Any:
    node = exp.Literal.string(value)
    node.meta["span"] = span
    return node


def _between(read: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Lift what reads the inside of the brackets; it is given where the call starts."""

    def form(parser: Any) -> Any:
        start, index = parser._curr.start, parser._index
        opened = _opened(parser)
        if opened is None:
            return None
        found = read(parser, start)
        if found is None:
            parser._retreat(index)
            return None
        parser.close(TokenType.R_PAREN, ")", opened)
        found.meta["span"] = parser.since(start)
        return found

    return form


def _cast(parser: Any, start: int) -> Any:
    value = parser.scalar()
    parser.demand("AS", "CAST (value")
    return exp.Cast(this=value, to=parser.type_node())


def _try_cast(parser: Any, start: int) -> Any:
    value = parser.scalar()
    parser.demand("AS", "TRY_CAST (value")
    target = parser.type_node()
    return _node(parser, "try_cast", [value, _text(str(target.this), span_of(target))], start)


def _extract(parser: Any, start: int) -> Any:
    field = parser.maybe_name()
    if field is None or not parser.accept("FROM"):
        return None
    args = [_text(field.text, field.span), parser.scalar()]
    return _node(parser, "date_part", args, start)


def _position(parser: Any, start: int) -> Any:
    part = parser._parse_bitwise()
    if not parser.accept("IN"):
        return None
    return _node(parser, "locate", [part, parser._parse_bitwise()], start)


def _trim(parser: Any, start: int) -> Any:
    side = next((word for word in _ENDS if parser.accept(word)), None)
    characters = None if side and parser.accept("FROM") else parser.scalar()
    if characters is None:
        return _node(parser, _ENDS[side or "BOTH"], [parser.scalar()], start)
    if not parser.accept("FROM"):
        if side:
            parser.demand("FROM", f"TRIM ({side} characters")
        return None
    args = [characters, parser.scalar()]
    name = _ENDS[side or "BOTH"]
    return _node(parser, name, args[::-1] if name == "trim" else args, start)


def _substring(parser: Any, start: int) -> Any:
    args = [parser.scalar()]
    if not parser.accept("FROM"):
        return None
    args.append(parser.scalar())
    if parser.accept("FOR"):
        args.append(parser.scalar())
    return _node(parser, "substring", args, start)


def _overlay(parser: Any, start: int) -> Any:
    args = [parser.scalar()]
    if not parser.accept("PLACING"):
        return None
    args.append(parser.scalar())
    parser.demand("FROM", "OVERLAY (text PLACING replacement")
    args.append(parser.scalar())
    if parser.accept("FOR"):
        args.append(parser.scalar())
    return _node(parser, "overlay", args, start)


CALL_FORMS: dict[str, Callable[[Any], Any]] = {
    "CAST": _between(_cast),
    "TRY_CAST": _between(_try_cast),
    "EXTRACT": _between(_extract),
    "POSITION": _between(_position),
    "TRIM": _between(_trim),
    "SUBSTRING": _between(_substring),
    "SUBSTR": _between(_substring),
    "OVERLAY": _between(_overlay),
}
"""What reads a call with words in it, by its first word."""


def with_unit(name: str, args: list[Any]) -> str:
    """Return the function that is meant.

    A bare unit of time, such as MONTH, before two more arguments becomes the text that it is.
    """
    if len(args) != 3 or name.lower() not in _WITH_UNIT or not isinstance(args[0], exp.Column):
        return name
    word = str(args[0].this.this)
    if args[0].args.get("table") is not None or word.lower() not in _UNITS:
        return name
    args[0] = _text(word, span_of(args[0]))
    return _WITH_UNIT[name.lower()]


def shift_here(parser: Any) -> str | None:
    """Read ``<<``, ``>>`` or ``>>>``, without blanks in it, and return its function."""
    for signs, name in ((">>>", "shiftrightunsigned"), (">>", "shiftright"), ("<<", "shiftleft")):
        index = parser._index
        end = None
        for sign in signs:
            token = parser._curr
            if not token or token.text != sign or (end is not None and token.start != end + 1):
                break
            end = token.end
            parser._advance()
        else:
            return name
        parser._retreat(index)
    return None


def escape_pattern(parser: Any, pattern: Any) -> None:
    """Read ``ESCAPE 'c'`` and write the pattern before it with backslashes instead."""
    parser._advance()
    token = parser._curr
    if not token or token.token_type != TokenType.STRING or len(token.text) != 1:
        parser.fail(f"ESCAPE must be followed by one character in quotes, got {parser.got()}")
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        parser.refuse("a pattern with ESCAPE must be a text in quotes", span_of(pattern))
    parser._advance()
    done, rest = "", str(pattern.this)
    while rest:
        character, rest = rest[0], rest[1:]
        if character == token.text:
            if rest[:1] not in ("%", "_", token.text) or not rest:
                parser.fail(
                    f"a pattern must have %, _ or {token.text} after {token.text}, got "
                    f"'{pattern.this}'",
                    span_of(pattern),
                )
            character, rest = rest[0], rest[1:]
            done += f"\\{character}" if character in "%_\\" else character
        else:
            done += "\\\\" if character == "\\" else character
    pattern.set("this", done)
