"""Regular expressions, which are those of RE2: no look-around, no back references.

Expressions, and what replaces what they find, are constants.  Arrow finds and replaces in whole
columns; groups get names, because it extracts only those that have one.  An empty match counts
unless it stands right behind another match.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.library.arrays import made_null, on_distinct
from penstock.expr.library.strings import concat, grouped, in_characters
from penstock.expr.signatures import COUNT, TEXT, function, takes
from penstock.expr.text_sizes import bytes_of, check_sizes, check_total
from penstock.expr.types import BOOLEAN, INT, STRING

_STEP = re.compile(
    r"""\\Q.*?(?:\\E|\Z)          # plain text
    | \\.                        # an escape
    | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]  # a class
    | (?P<open>\((?:\?P?<(?P<name>\w+)>|(?!\?)))  # a group that captures
    | .""",
    re.DOTALL | re.VERBOSE,
)


def _named_groups(expression: str) -> tuple[str, dict[str, int]]:
    """Return the expression with all groups named ``g1``, ``g2`` .., and their numbers by name."""
    done: list[str] = []
    numbers: dict[str, int] = {}
    count = 0
    for step in _STEP.finditer(expression):
        if step["open"]:
            count += 1
            numbers[step["name"] or str(count)] = numbers[str(count)] = count
            done.append(f"(?P<g{count}>")
        else:
            if step[0] in ("\\B", "\\C"):  # RE2 finds them inside of characters
                raise DataError(f"an expression must not have {step[0]} here; it is known to RLIKE")
            done.append(step[0])
    return "".join(done), numbers


def _groups(text: Any, expression: str) -> tuple[Any, int]:
    pattern, numbers = _named_groups(expression)
    return pc.extract_regex(text, f"(?P<g0>{pattern})"), max(numbers.values(), default=0)


def _extract(text: Any, expression: str | None, group: int | None = 1) -> Any:
    if expression is None or group is None:
        return pa.nulls(len(text), STRING)
    found, groups = _groups(text, expression)
    if not 0 <= group <= groups:
        raise DataError(f"the number of a group must be from 0 to {groups}, got {group}")
    values = pc.fill_null(pc.struct_field(found, f"g{group}"), "")
    return made_null(values, pc.is_null(text))


def _substr(text: Any, expression: str | None) -> Any:
    if expression is None:
        return pa.nulls(len(text), STRING)
    found = pc.struct_field(_groups(text, expression)[0], "g0")
    return made_null(found, pc.fill_null(pc.equal(found, ""), True))


def _count(text: Any, expression: str | None) -> pa.Array:
    """Each match becomes one byte longer, so that the growth of the text is their number."""
    if expression is None:
        return pa.nulls(len(text), INT)
    before = bytes_of(text, 0)
    check_total(2 * int(before.sum()) + len(before), "regexp_count(s, expression)")
    pattern, _ = _named_groups(expression)
    longer = pc.replace_substring_regex(text, pattern=pattern, replacement="\\0 ")
    found = (bytes_of(longer, 0) - before).astype(np.int32)
    return pa.array(found, INT, mask=pc.is_null(text).to_numpy(zero_copy_only=False))


def _instr(text: Any, expression: str | None) -> pa.Array:
    if expression is None:
        return pa.nulls(len(text), INT)
    return in_characters(text, pc.find_substring_regex(text, _named_groups(expression)[0]))


def _rewritten(replacement: str, numbers: dict[str, int]) -> str:
    """Return a replacement of Java, with groups as $1 or ${name}, in the words of RE2."""
    done: list[str] = []
    at = 0
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\":
            if at == len(replacement):
                raise DataError("a replacement must have a character after a backslash")
            done.append(replacement[at].replace("\\", "\\\\"))
            at += 1
        elif character == "$":
            number, at = _group_at(replacement, at, numbers)
            done.append(f"\\{number}")
        else:
            done.append(character)
    return "".join(done)


def _group_at(replacement: str, at: int, numbers: dict[str, int]) -> tuple[int, int]:
    """Return the group that is meant at a place, and where the text goes on."""
    found = re.compile(r"\{(\w+)\}|([0-9]+)").match(replacement, at)
    if found is None:
        raise DataError("a replacement must have the number of a group after $, or \\$ for itself")
    digits = found[2]
    while digits and len(digits) > 1 and digits not in numbers:
        digits = digits[:-1]  # as in Java, as many digits as make a group
    number = 0 if digits == "0" else numbers.get(found[1] or digits)
    if number is None:
        raise DataError(f"a replacement must name groups that there are, got ${found[0]}")
    if number > 9:
        raise DataError(f"a replacement must name groups up to $9, got ${number}")
    return number, found.end() if found[1] else at + len(digits)


def _replace(
    text: Any, expression: str | None, replacement: str | None, position: int | None = 1
) -> Any:
    if expression is None or replacement is None or position is None:
        return pa.nulls(len(text), STRING)
    if position < 1:
        raise DataError(f"a position must be at least 1, got {position}")
    expression, numbers = _named_groups(expression)
    rewritten = _rewritten(replacement, numbers)
    if position == 1:
        return _replaced(text, expression, rewritten)
    tail = pc.utf8_slice_codeunits(text, position - 1)
    head = pc.utf8_slice_codeunits(text, 0, position - 1)
    done = concat(head, _replaced(tail, expression, rewritten))
    return pc.if_else(pc.equal(tail, ""), text, done)


_UNCOUNTED = 1 << 30
"""Bytes up to which a column of texts may grow without a closer look."""


def _replaced(text: Any, expression: str, rewritten: str) -> Any:
    usage = "regexp_replace(s, expression, replacement)"
    before = bytes_of(text, 0)
    uses = len(re.findall(r"\\\d", rewritten))
    copied, added = before * (1 + uses), len(rewritten.encode())
    if int((copied + (before + 1) * added).sum()) > _UNCOUNTED:  # if each byte were a match
        found = np.asarray(_count(text, expression).fill_null(0), np.int64)
        check_total(int((copied + found * added).sum()), usage)
    done = pc.replace_substring_regex(text, pattern=expression, replacement=rewritten)
    check_sizes(bytes_of(done, 0), usage)
    return done


_ADVICE = {"advice": "correct the expression"}

FUNCTIONS = (
    function(
        "s RLIKE expression",
        takes(TEXT, TEXT, gives=BOOLEAN),
        grouped(lambda s, pattern: pc.match_substring_regex(s, pattern), BOOLEAN),
        "Whether a regular expression (of RE2: no look-around, no back references) is found in it.",
        "regexp",
        "regexp_like",
        name="rlike",
        spark=None,
        constants=(1,),
        advice="correct the expression",
    ),
    function(
        "regexp_extract(s, expression [, group])",
        takes(TEXT, TEXT, COUNT, gives=STRING, optional=1),
        on_distinct("regexp_extract(s, expression)", _extract),
        "What a group of the expression found first, by default group 1; 0 is all that was found. "
        "Empty if nothing was.",
        spark=None,
        constants=(1, 2),
        **_ADVICE,
    ),
    function(
        "regexp_substr(s, expression)",
        takes(TEXT, TEXT, gives=STRING),
        on_distinct("regexp_substr(s, expression)", _substr),
        "The first part of the text that matches; null if there is none or it is empty.",
        spark=None,
        constants=(1,),
        **_ADVICE,
    ),
    function(
        "regexp_replace(s, expression, replacement [, position])",
        takes(TEXT, TEXT, TEXT, COUNT, gives=STRING, optional=1),
        on_distinct("regexp_replace(s, expression, replacement)", _replace),
        "Every match at or after a position replaced; `$1` in the replacement is the first group, "
        "`\\\\$` a dollar sign. All but the text are constants.",
        spark=None,
        constants=(1, 2, 3),
        total=False,
    ),
    function(
        "regexp_count(s, expression)",
        takes(TEXT, TEXT, gives=INT),
        on_distinct("regexp_count(s, expression)", _count),
        "Number of matches; an empty one right behind another does not count.",
        spark=None,
        constants=(1,),
        **_ADVICE,
    ),
    function(
        "regexp_instr(s, expression)",
        takes(TEXT, TEXT, gives=INT),
        on_distinct("regexp_instr(s, expression)", _instr),
        "Position of the first match, 0 if there is none.",
        spark=None,
        constants=(1,),
        **_ADVICE,
    ),
)
