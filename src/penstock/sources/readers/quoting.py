"""Quotes of delimited lines: which lines are well formed, before Arrow splits them into values.

A quoted value begins and ends on one line.  In CSV a quote stands around a whole value, or is
doubled inside a quoted one, and nowhere else; so both ends of a value that was broken in two by a
newline are bad, and a stray quote spoils its own line only.  In the text format there may be blanks
around the quotes, and a value that does not begin with a quote may hold some (``O'Brien``).
A carriage return may only end a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Schema
from penstock.sources.readers.lines import BOM, Block, pieces

_RETURN, _NEWLINE = b"\r\n"


@dataclass(frozen=True)
class Dialect:
    """How the lines of one file are read: ``places`` maps declared columns to the file's.

    ``trim``: values may have blanks around them, as in the text format.
    """

    schema: Schema
    places: Mapping[int, int]
    width: int
    delimiter: str
    quote: str
    trim: bool
    null_values: tuple[str, ...]


def well_formed(block: Block, dialect: Dialect) -> bool:
    """Whether all lines seem to be: a quick look, which Arrow's count of rows must confirm."""
    data = block.data_bytes
    if block.holds(_RETURN):
        at = np.flatnonzero(data == _RETURN)
        if not (data[np.minimum(at + 1, len(data) - 1)] == _NEWLINE).all():
            return False
    if not block.holds(ord(dialect.quote)):
        return True
    return not dialect.trim and _quoted_well(block, dialect)


def malformed(block: Block, dialect: Dialect) -> dict[int, str]:
    """Return the lines that are not well formed, by their places, with what is wrong with them."""
    found: dict[int, str] = {}
    if block.holds(ord(dialect.quote)):
        fine = pc.match_substring_regex(block.lines, _line_pattern(dialect))
        places = np.flatnonzero(~np.asarray(fine))
        found |= dict.fromkeys(
            places.tolist(),
            f"a value in quotes ({dialect.quote}) must begin and end on its line, with quotes "
            f"inside it doubled",
        )
    if not block.holds(_RETURN):
        return found
    returns = np.flatnonzero(block.data_bytes == _RETURN)
    lines = block.line_of(returns)
    rest = block.offsets[lines + 1] - returns
    newline = block.data_bytes[block.offsets[lines + 1] - 1] == _NEWLINE
    places = lines[rest != 1 + newline]
    found |= dict.fromkeys(places.tolist(), "a line must not hold a carriage return but at its end")
    return found


def _quoted_well(block: Block, dialect: Dialect) -> bool:
    """Whether every second quote opens a value and the others close one, or are doubled.

    Whether a value ends on its line is not looked at: if not, Arrow finds fewer rows than lines.
    """
    data, last = block.data_bytes, len(block.data_bytes) - 1
    opening, closing = np.zeros(256, bool), np.zeros(256, bool)
    opening[list(f"{dialect.delimiter}{dialect.quote}\n".encode())] = True
    closing[list(f"{dialect.delimiter}{dialect.quote}\r\n".encode())] = True
    seen = 0
    for first, part in pieces(data):
        quotes = np.flatnonzero(part == ord(dialect.quote)) + first
        before = np.maximum(quotes[seen % 2 :: 2] - 1, 0)
        after = np.minimum(quotes[1 - seen % 2 :: 2] + 1, last)
        if not (opening[data[before]].all() and closing[data[after]].all()):
            return False
        seen += len(quotes)
    return seen % 2 == 0


def _line_pattern(dialect: Dialect) -> str:
    """Return the regular expression, for RE2, of a well-formed line."""
    quote, delimiter = _exactly(dialect.quote), _exactly(dialect.delimiter)
    quoted = _quoted_pattern(dialect)
    plain = f"[^{quote}{delimiter}]*"
    if dialect.trim:
        blanks = _blanks_pattern(dialect)
        quoted = f"{blanks}{quoted}{blanks}"
        plain = f"{blanks}(?:[^{quote}{delimiter} \\t][^{delimiter}]*)?"
    value = f"(?:{quoted}|{plain})"
    return f"^{value}(?:{delimiter}{value})*\\r?\\n?$"


def _exactly(character: str) -> str:
    return f"\\x{ord(character):02x}"


def _quoted_pattern(dialect: Dialect) -> str:
    quote = _exactly(dialect.quote)
    return f"{quote}(?:[^{quote}]|{quote}{quote})*{quote}"


def _blanks_pattern(dialect: Dialect) -> str:
    blanks = " \t".replace(dialect.delimiter, "")
    return f"[{blanks}]*"


def for_arrow(block: Block, dialect: Dialect) -> pa.Buffer:
    """Return well-formed lines so that Arrow sees the values that they have.

    It would skip a byte-order mark at the start of any block, and take a quote after blanks, as the
    text format allows, for a part of the value.
    """
    data: pa.Buffer = block.data
    if bytes(block.data_bytes[: len(BOM)]) == BOM:
        data = pa.py_buffer(BOM + data.to_pybytes())
    if not dialect.trim or not block.holds(ord(dialect.quote)):
        return data
    start = f"(?m)(^|{_exactly(dialect.delimiter)}){_blanks_pattern(dialect)}"
    pattern = f"{start}({_quoted_pattern(dialect)})".encode()
    return pa.py_buffer(re.sub(pattern, rb"\1\2", data.to_pybytes()))
