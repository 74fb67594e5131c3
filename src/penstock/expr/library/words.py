"""More functions of text: parts and places, other letters, other spellings.

Positions count characters from 1.  What Arrow has no kernel for is computed once per distinct row
of arguments (`each_distinct`), not once per row.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.library.arrays import each_distinct, null_mask, numpy_of, spread
from penstock.expr.library.strings import concat, find, grouped, part
from penstock.expr.signatures import BYTES, COUNT, LONG, PRINTABLE, TEXT, called, function, takes
from penstock.expr.types import BIGINT, BOOLEAN, DOUBLE, INT, STRING

_ZERO, _ONE = (pa.scalar(number, INT) for number in (0, 1))
_REST = pa.scalar(2**32, BIGINT)


def _ascii(text: Any) -> pa.Array:
    """Looked up once per distinct first character."""
    first = pc.utf8_slice_codeunits(text, 0, 1)
    return each_distinct("ascii(s)", lambda s: ord(s) if s else 0, INT, first)


_CHARACTERS = pa.array([*map(chr, range(256)), ""], STRING)


def _chr(number: Any) -> pa.Array:
    found = numpy_of(number)
    place = np.where(found < 0, 256, found & 255)
    return _CHARACTERS.take(pa.array(place, mask=null_mask(number)))


def _locate_plain(text: pa.Array, search: str, position: int) -> pa.Array:
    if position < 1:
        return pc.if_else(pc.is_valid(text), _ZERO, pa.scalar(None, INT))
    if not search:
        return pc.if_else(pc.is_valid(text), _ONE, pa.scalar(None, INT))
    found = find(pc.utf8_slice_codeunits(text, position - 1), search)
    return pc.if_else(pc.equal(found, 0), _ZERO, pc.add(found, pa.scalar(position - 1, INT)))


_located = grouped(_locate_plain, INT)


def _locate(search: Any, text: Any, position: Any = None) -> Any:
    """As in Spark, a position that is null finds nothing: 0."""
    if position is None:
        return _located(text, search, _ONE)
    _, (search, text, position) = spread(search, text, position)
    found = _located(text, search, pc.fill_null(position, 0))
    return pc.if_else(pc.is_null(position), _ZERO, found)


_parts = grouped(part, STRING)


def _overlay(text: Any, replacement: Any, position: Any, length: Any = None) -> pa.Array:
    given = pa.scalar(-1, INT) if length is None else length
    _, (text, replacement, position, given) = spread(text, replacement, position, given)
    length = pc.if_else(pc.less(given, 0), pc.utf8_length(replacement), given)
    before = _bounded(pc.subtract(position.cast(BIGINT), 1))
    behind = _bounded(pc.add(position.cast(BIGINT), length.cast(BIGINT)))
    return concat(_parts(text, _ONE, before), replacement, _parts(text, behind, _REST))


def _bounded(number: Any) -> Any:
    """Return the nearest INT."""
    bounded = pc.max_element_wise(number, pa.scalar(-(2**31), BIGINT), skip_nulls=False)
    return pc.min_element_wise(bounded, pa.scalar(2**31 - 1, BIGINT), skip_nulls=False).cast(INT)


def _translated(text: str, search: str, replacement: str) -> str:
    return text.translate(_table(search, replacement))


@lru_cache
def _table(search: str, replacement: str) -> dict[int, str | None]:
    table: dict[int, str | None] = {}
    for place, character in enumerate(search):
        table.setdefault(ord(character), replacement[place : place + 1] or None)
    return table


_CODES = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))


def _soundex(text: str) -> str:
    first = text[:1].upper()
    if first not in _CODES or not text[0].isascii():
        return text
    code, last = first, _CODES[first]
    for character in text[1:]:
        found = _CODES.get(character.upper(), "-") if character.isascii() else "-"
        if found == "7":  # H and W do not part two equal letters
            continue
        if found not in ("0", "-", last):
            code += found
        last = found
    return code[:4].ljust(4, "0")


def _until(text: str, delimiter: str, count: int) -> str:
    """Return what stands before the n-th delimiter; they may overlap, as in Spark."""
    if not delimiter or count == 0:
        return ""
    place = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):
        if count > 0:
            place = text.find(delimiter, place + 1)
        else:
            place = (
                text.rfind(delimiter, 0, max(place - 1 + len(delimiter), 0)) if place > 0 else -1
            )
        if place < 0:
            return text
    return text[:place] if count > 0 else text[place + len(delimiter) :]


def _elt(index: Any, *values: Any) -> Any:
    _, (index, *columns) = spread(index, *values)
    known = pc.and_(pc.greater_equal(index, 1), pc.less_equal(index, len(columns)))
    if pc.all(known).as_py() is False:
        raise pa.ArrowInvalid(f"a number outside of 1 to {len(columns)}")
    return pc.choose(pc.subtract(index, _ONE), *columns)


def _find_in_set(text: str, listed: str) -> int:
    items = listed.split(",")
    return items.index(text) + 1 if text in items else 0


_MASKED = {"Lu": 0, "Ll": 1, "Nd": 2}


def _mask(text: Any, *letters: str | None) -> pa.Array:
    """Masked once per distinct text: letters are sorted by Unicode's categories."""
    chosen = [*letters, *("X", "x", "n", None)[len(letters) :]]
    for letter in chosen:
        if letter is not None and len(letter) != 1:
            raise DataError(f"a letter that masks must be one character, got {letter!r}")

    def masked(text: str) -> str:
        picked = ((chosen[_MASKED.get(unicodedata.category(c), 3)], c) for c in text)
        return "".join(c if letter is None else letter for letter, c in picked)

    return each_distinct("mask(s)", masked, STRING, text)


def _is_luhn(text: str) -> bool:
    if not re.fullmatch("[0-9]+", text):
        return False
    doubled = (int(c) * (1 + place % 2) for place, c in enumerate(reversed(text)))
    return sum(n - 9 if n > 9 else n for n in doubled) % 10 == 0


def _quote(text: Any) -> pa.Array:
    plain = pc.replace_substring(text, pattern="'", replacement="\\'")
    return concat(pa.scalar("'"), plain, pa.scalar("'"))


def _similarity(one: str, other: str) -> float:
    """Jaro and Winkler's, on units of UTF-16 as Java counts them."""
    if one == other:
        return 1.0
    a, b = (np.frombuffer(t.encode("utf-16-le"), "<u2").tolist() for t in (one, other))
    reach = max(max(len(a), len(b)) // 2 - 1, 0)
    taken: list[int] = []
    pairs = []
    for place, unit in enumerate(a):
        near = range(max(place - reach, 0), min(place + reach + 1, len(b)))
        partner = next((j for j in near if j not in taken and b[j] == unit), None)
        if partner is not None:
            taken.append(partner)
            pairs.append(unit)
    if not pairs:
        return 0.0
    swapped = sum(x != b[j] for x, j in zip(pairs, sorted(taken), strict=True)) / 2
    same = len(pairs)
    jaro = (same / len(a) + same / len(b) + (same - swapped) / same) / 3
    prefix = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    prefix = min(4, len(a), len(b)) if prefix is None else min(4, prefix)
    return float(jaro + prefix * 0.1 * (1 - jaro))


def _distinct(usage: str, change: Any, gives: pa.DataType) -> Any:
    return lambda *values: each_distinct(usage, change, gives, *values)


FUNCTIONS = (
    function(
        "ascii(s)",
        takes(TEXT, gives=INT),
        _ascii,
        "The number of the first character in Unicode; 0 for an empty text.",
    ),
    function(
        "char(n)",
        takes(LONG, gives=STRING),
        _chr,
        "The character with the number n modulo 256; an empty text below 0.",
        "chr",
    ),
    function(
        "octet_length(s)", takes(BYTES, gives=INT), pc.binary_length, "Number of bytes, in UTF-8."
    ),
    function(
        "bit_length(s)",
        takes(BYTES, gives=INT),
        lambda s: pc.multiply(pc.binary_length(s), pa.scalar(8, INT)),
        "Number of bits, in UTF-8.",
    ),
    function(
        "locate(part, s [, position]), position(part, s [, position])",
        takes(TEXT, TEXT, COUNT, gives=INT, optional=1),
        _locate,
        "Position of the first occurrence at or after a position, 0 if there is none. Also "
        "`POSITION(part IN s)`.",
        "position",
        spark=called("locate"),
    ),
    function(
        "overlay(s, replacement, position [, length])",
        takes(TEXT, TEXT, COUNT, COUNT, gives=STRING, optional=1),
        _overlay,
        "The characters from a position on replaced, as many as the replacement has or as said. "
        "Also `OVERLAY(s PLACING replacement FROM position FOR length)`.",
        total=False,
    ),
    function(
        "translate(s, search, replacement)",
        takes(TEXT, TEXT, TEXT, gives=STRING),
        _distinct("translate(s, search, replacement)", _translated, STRING),
        "Each character of the search replaced by the one at its place in the replacement, or "
        "left out.",
        spark=called("translate"),
    ),
    function(
        "soundex(s)",
        takes(TEXT, gives=STRING),
        _distinct("soundex(s)", _soundex, STRING),
        "A letter and three digits, the same for English names that sound alike.",
    ),
    function(
        "substring_index(s, delimiter, n)",
        takes(TEXT, TEXT, COUNT, gives=STRING),
        _distinct("substring_index(s, delimiter, n)", _until, STRING),
        "What stands before the n-th delimiter, or behind the n-th from the end if n is negative.",
        spark=called("substring_index"),
    ),
    function(
        "elt(n, a, b, ..)",
        takes(COUNT, PRINTABLE, gives=STRING, more=PRINTABLE),
        _elt,
        "The n-th of the texts.",
        total=False,
        advice="count from 1; use CASE to leave other numbers out",
    ),
    function(
        "find_in_set(s, list)",
        takes(TEXT, TEXT, gives=INT),
        _distinct("find_in_set(s, list)", _find_in_set, INT),
        "The place of a text in a list with commas between, 0 if it is not there.",
    ),
    function(
        "mask(s [, upper [, lower [, digit [, other]]]])",
        takes(TEXT, TEXT, TEXT, TEXT, TEXT, gives=STRING, optional=4),
        _mask,
        "Upper case letters, lower case letters, digits and other characters replaced by 'X', 'x', "
        "'n' and themselves, or by the constants given; NULL keeps them.",
        spark=None,
        constants=(1, 2, 3, 4),
    ),
    function(
        "luhn_check(s)",
        takes(TEXT, gives=BOOLEAN),
        _distinct("luhn_check(s)", _is_luhn, BOOLEAN),
        "Whether the text is digits whose last one is right by Luhn's formula, as in card numbers.",
        spark=called("luhn_check"),
    ),
    function(
        "quote(s)",
        takes(TEXT, gives=STRING),
        _quote,
        "The text in single quotes, with a backslash before those in it.",
        spark=called("quote"),
        total=False,
    ),
    function(
        "jaro_winkler_similarity(a, b)",
        takes(TEXT, TEXT, gives=DOUBLE),
        _distinct("jaro_winkler_similarity(a, b)", _similarity, DOUBLE),
        "How alike two texts are, from 0 to 1, by Jaro and Winkler.",
        spark=None,
    ),
)
