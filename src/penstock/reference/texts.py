"""The oracle's functions of text: characters are code points, positions count from 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import DataError
from penstock.reference.logic import Thunk
from penstock.reference.patterns import extracted, is_found, matches, replaced

_LONGEST = 64 * 1024 * 1024
"""Most bytes of a text that a function may make."""


def _checked(size: int) -> int:
    """Refuse a text of so many bytes before it is made."""
    if size > _LONGEST:
        raise DataError(f"a text must have at most {_LONGEST} bytes, got {size}")
    return size


def checked(text: str) -> str:
    """Return a text that a function has made; one that is too long is an error."""
    _checked(_size(text))
    return text


def _size(text: str) -> int:
    return len(text.encode())


def _concat(*parts: Any) -> Any:
    if parts and isinstance(parts[0], bytes):
        return b"".join(parts)
    _checked(sum(map(_size, parts)))
    return "".join(parts)


def _concat_ws(separator: Thunk, *args: Thunk) -> Any:
    between = separator()
    if between is None:
        return None
    parts = [part for arg in args if (part := arg()) is not None]
    return _concat(*[text for part in parts for text in (between, part)][1:])


def _initcap(text: str) -> str:
    """Words are parted by blanks; the rest of a word is in the lower case of the whole word."""
    words = [(word[:1], word) for word in text.split(" ")]
    return " ".join(first.title() + word.lower()[len(first.lower()) :] for first, word in words)


def _substring(text: str, position: int, length: int = 2**31 - 1) -> str:
    """Positions count from 1; negative ones from the end; 0 is as 1."""
    start = position - 1 if position > 0 else 0 if position == 0 else len(text) + position
    end = start + max(length, 0)
    return text[max(start, 0) : max(end, 0)]


def _replace(text: str, old: str, new: str = "") -> str:
    if not old:
        return text
    _checked(_size(text) + text.count(old) * (_size(new) - _size(old)))
    return text.replace(old, new)


def _like(text: str, pattern: str) -> bool:
    """Compare from the left; ``reached`` are the lengths of text that match the pattern so far."""
    reached, escaped = {0}, False
    for char in pattern:
        if escaped or char not in "\\%_":
            reached = {n + 1 for n in reached if text[n : n + 1] == char}
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "_":
            reached = {n + 1 for n in reached if n < len(text)}
        else:
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
    return len(text) in reached


def _padding(text: str, length: int, pad: str) -> str:
    """Return what is missing to a length."""
    missing = max(length - len(text), 0) if pad else 0
    rounds, rest = divmod(missing, max(len(pad), 1))
    _checked(_size(text) + rounds * _size(pad) + _size(pad[:rest]))
    return pad * rounds + pad[:rest]


def _lpad(text: str, length: int, pad: str = " ") -> str:
    kept = text[: max(length, 0)]
    return _padding(kept, length, pad) + kept


def _rpad(text: str, length: int, pad: str = " ") -> str:
    kept = text[: max(length, 0)]
    return kept + _padding(kept, length, pad)


def _repeat(text: str, times: int) -> str:
    _checked(_size(text) * max(times, 0))
    return text * times


def _split_part(text: str, separator: str, number: int) -> str:
    if number == 0:
        raise DataError("parts are counted from 1, or from -1 at the end, got 0")
    parts = text.split(separator) if separator else [text]
    place = number - 1 if number > 0 else len(parts) + number
    return parts[place] if 0 <= place < len(parts) else ""


def _levenshtein(a: str, b: str, most: int | None = None) -> int:
    above = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (char != other)))
        above = row
    return -1 if most is not None and above[-1] > most else above[-1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": _concat,
    "length": len,
    "upper": str.upper,
    "lower": str.lower,
    "initcap": _initcap,
    "trim": lambda s, characters=" ": s.strip(characters) if characters else s,
    "ltrim": lambda *args: args[-1].lstrip(args[0]) if args[1:] else args[0].lstrip(" "),
    "rtrim": lambda *args: args[-1].rstrip(args[0]) if args[1:] else args[0].rstrip(" "),
    "substring": _substring,
    "left": lambda s, length: s[: max(length, 0)],
    "right": lambda s, length: s[max(len(s) - max(length, 0), 0) :],
    "replace": _replace,
    "startswith": lambda s, prefix: s.startswith(prefix),
    "endswith": lambda s, suffix: s.endswith(suffix),
    "contains": lambda s, part: part in s,
    "like": _like,
    "ilike": lambda s, pattern: _like(s.lower(), pattern.lower()),
    "rlike": is_found,
    "regexp_extract": extracted,
    "regexp_substr": lambda s, expression: extracted(s, expression, 0) or None,
    "regexp_replace": lambda *args: checked(replaced(*args)),
    "regexp_count": lambda s, expression: len(matches(s, expression)),
    "regexp_instr": lambda s, expression: next(
        (match.start() + 1 for match in matches(s, expression)), 0
    ),
    "lpad": _lpad,
    "rpad": _rpad,
    "reverse": lambda s: s[::-1],
    "repeat": _repeat,
    "instr": lambda s, part: s.find(part) + 1,
    "split_part": _split_part,
    "levenshtein": _levenshtein,
}
"""Functions of text, which are null where an argument is."""

LAZY: dict[str, Callable[..., Any]] = {"concat_ws": _concat_ws}
"""Functions of text that see null arguments."""
