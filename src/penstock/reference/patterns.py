"""The oracle's regular expressions: those of RE2, put into the words of Python's ``re``.

The two agree on what an expression finds but not on how it is written.  In RE2 ``$`` is the very
end of the text, classes such as ``\\d`` are those of ASCII, flags may stand anywhere, and there are
classes by name.  A class becomes a list of ranges of code points.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from typing import TypeAlias

from penstock.errors import DataError, NotSupportedError

Ranges: TypeAlias = list[tuple[int, int]]
"""The first and last code point of each stretch."""


def _ranges(text: str) -> Ranges:
    """Return the ranges that pairs of characters spell."""
    return [(ord(low), ord(high)) for low, high in zip(text[::2], text[1::2], strict=True)]


_NAMED = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\x00\x7f",
    "blank": "\t\t  ",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZ__az",
    "xdigit": "09AFaf",
}
_LETTERS = {"d": "09", "w": "09AZ__az", "s": "\t\n\f\r  "}
_CONTROLS = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_PLACES = {"A": "(?:\\A)", "z": "(?:\\Z)", "b": "(?a:\\b)", "B": "(?!(?a:\\b))"}
"""In groups, because Python repeats no bare place; its ``\\B`` is not found in an empty text."""
_COUNT = re.compile(r"\{\d+(,\d*)?\}", re.ASCII)
_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]+))?([:)])")
_CODE = re.compile(r"x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|([0-7]{1,3})")
_PROPERTY = re.compile(r"([pP])(?:\{(\^?)(\w+)\}|(\w))")


def is_found(text: str, expression: str) -> bool:
    """Whether a regular expression of RE2 matches a part of a text."""
    return _compiled(expression).search(text) is not None


def extracted(text: str, expression: str, group: int = 1) -> str:
    """Return what a group found first, empty if it found nothing."""
    pattern = _compiled(expression)
    if not 0 <= group <= pattern.groups:
        raise DataError(f"the number of a group must be from 0 to {pattern.groups}, got {group}")
    found = pattern.search(text)
    return (found[group] or "") if found else ""


def matches(text: str, expression: str) -> list[re.Match[str]]:
    """Return all matches; an empty one right behind another is none, as in RE2."""
    pattern, at, last, found = _compiled(expression), 0, -1, []
    while at <= len(text) and (match := pattern.search(text, at)):
        if match.start() == match.end() == last:
            at = last + 1
            continue
        found.append(match)
        at = last = match.end()
    return found


def replaced(text: str, expression: str, replacement: str, position: int = 1) -> str:
    """Return the text with all matches at or after a position replaced."""
    if position < 1:
        raise DataError(f"a position must be at least 1, got {position}")
    head, tail = text[: position - 1], text[position - 1 :]
    if position > 1 and not tail:
        return text
    at = 0
    done = head
    for match in matches(tail, expression):
        done += tail[at : match.start()] + _filled(replacement, match)
        at = match.end()
    return done + tail[at:]


def _filled(replacement: str, match: re.Match[str]) -> str:
    """Put the groups of a match into a replacement; \\ takes the next character as it is."""
    done, rest = "", replacement
    while rest:
        if rest[0] == "$":
            digits = next(d for d in (rest[1:3], rest[1:2]) if _is_group(d, match))
            size = len(digits)
            done += match[int(rest[1 : 1 + size])] or ""
            rest = rest[1 + size :]
        else:
            plain = rest[1] if rest[0] == "\\" else rest[0]
            done, rest = done + plain, rest[2 if rest[0] == "\\" else 1 :]
    return done


def _is_group(digits: str, match: re.Match[str]) -> bool:
    return digits.isdigit() and int(digits) <= match.re.groups


@functools.lru_cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(_Translation(expression).all())


def _others(ranges: Ranges) -> Ranges:
    """Return all code points but those."""
    found, following = [], 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return [*found, (following, sys.maxunicode)] if following <= sys.maxunicode else found


def _set(ranges: Ranges) -> str:
    """Return a class of Python; an empty one matches nothing."""
    inside = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
    return f"[{inside}]" if inside else "(?!)"


@functools.lru_cache
def _category(name: str) -> tuple[tuple[int, int], ...]:
    """Return the code points of a general category such as ``L`` or ``Lu``."""
    if name == "Any":
        return ((0, sys.maxunicode),)
    points = [c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith(name)]
    if not points or len(name) > 2:
        raise NotSupportedError(f"the reference does not know the class \\p{{{name}}}")
    starts = [p for p, before in zip(points, [-2, *points], strict=False) if p != before + 1]
    ends = [p for p, after in zip(points, [*points[1:], -2], strict=True) if p != after - 1]
    return tuple(zip(starts, ends, strict=True))


class _Translation:
    """One expression on its way; ``at`` is how far it has been read."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.at = 0
        self.done: list[str] = []
        # Of each open group: whether lines count (the flag m), and the groups that flags opened.
        self.groups = [(False, "")]

    def all(self) -> str:
        """Return the whole expression as one of Python."""
        while self.at < len(self.expression):
            self._next()
        return "".join(self.done) + self._flags_end()

    def _flags_end(self) -> str:
        return ")" * self.groups[-1][1].count("(")

    def _next(self) -> None:
        rest = self.expression[self.at :]
        char = rest[0]
        if char == "(":
            self._open(rest)
        elif char == ")":
            self._take(1, self._flags_end() + ")")
            self.groups.pop()
        elif char == "|":  # the flags hold beyond it, their groups do not
            self._take(1, f"{self._flags_end()}|{self.groups[-1][1]}")
        elif char == "[":
            self._class()
        elif char == "\\":
            self._escape(rest)
        elif char == "$":
            self._take(1, "(?:$)" if self.groups[-1][0] else "(?:\\Z)")
        elif char == "^":
            self._take(1, "(?:^)")
        elif char == "{" and (count := _COUNT.match(rest)):
            self._take(len(count[0]), count[0])
        else:
            self._take(1, char if char in ".*+?" else re.escape(char))

    def _take(self, length: int, text: str) -> None:
        self.at += length
        self.done.append(text)

    def _open(self, rest: str) -> None:
        lines, before = self.groups[-1]
        flags = _FLAGS.match(rest)
        if flags is None:
            named = rest.startswith(("(?P<", "(?<"))
            self.groups.append((lines, ""))
            self._take(rest.index(">") + 1 if named else 1, "(")
            return
        on, off = flags[1].replace("U", ""), (flags[2] or "").replace("U", "")
        lines = (lines or "m" in on) and "m" not in off
        opened = f"(?{on}{'-' if off else ''}{off}:"
        if flags[3] == ":":
            self.groups.append((lines, ""))
        else:  # the flags hold for the rest of the group: a group of their own, closed with it
            self.groups[-1] = (lines, before + opened)
        self._take(len(flags[0]), opened)

    def _escape(self, rest: str) -> None:
        letter = rest[1]
        if letter in "AzbB":
            self._take(2, _PLACES[letter])
        elif letter == "Q":
            plain = rest[2:].split("\\E")[0]
            self._take(min(len(plain) + 4, len(rest)), re.escape(plain))
        elif letter == "C":
            raise NotSupportedError("the reference does not know bytes of text, got \\C")
        else:
            ranges, length = self._escaped(rest)
            self._take(length, _set(ranges))

    def _escaped(self, rest: str) -> tuple[Ranges, int]:
        """Return the characters that an escape stands for, and its length."""
        letter = rest[1]
        if letter.lower() in _LETTERS:
            ranges = _ranges(_LETTERS[letter.lower()])
            return (_others(ranges) if letter.isupper() else ranges), 2
        if found := _PROPERTY.match(rest, 1):
            ranges = list(_category(found[3] or found[4]))
            return (_others(ranges) if (found[1] == "P") != bool(found[2]) else ranges), found.end()
        if code := _CODE.match(rest, 1):
            point = int(code[1] or code[2], 16) if code[3] is None else int(code[3], 8)
            return [(point, point)], code.end()
        point = _CONTROLS.get(letter, ord(letter))
        return [(point, point)], 2

    def _class(self) -> None:
        negated = self.expression.startswith("[^", self.at)
        self.at += 2 if negated else 1
        ranges: Ranges = []
        first = True
        while first or self.expression[self.at] != "]":
            ranges += self._member()
            first = False
        self._take(1, _set(_others(ranges) if negated else ranges))

    def _member(self) -> Ranges:
        rest = self.expression[self.at :]
        if rest.startswith("[:") and (name := rest[2:].split(":]")[0].strip("^")) in _NAMED:
            self.at += rest.index(":]") + 2
            ranges = _ranges(_NAMED[name])
            return _others(ranges) if rest[2] == "^" else ranges
        low = self._character()
        one = len(low) == 1 and low[0][0] == low[0][1]
        after = self.expression[self.at : self.at + 2]
        if not one or after[:1] != "-" or after in ("-]", "-"):
            return low
        self.at += 1
        return [(low[0][0], self._character()[0][1])]

    def _character(self) -> Ranges:
        rest = self.expression[self.at :]
        found, length = self._escaped(rest) if rest[0] == "\\" else ([(ord(rest[0]),) * 2], 1)
        self.at += length
        return [(low, high) for low, high in found]
