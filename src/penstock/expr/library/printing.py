"""Values written by a format, as Java's ``String.format`` has it, and so Spark's format_string.

A format is a constant.  It is read once into pieces; each piece that is not plain text becomes a
column of text, and these are put together.  What a piece writes is known from its flags:

| piece | of | flags |
|---|---|---|
| %s, %S | any text, number or BOOLEAN, as CAST writes it; in capitals | - |
| %b, %B | BOOLEAN | - |
| %d | whole numbers | - + blank 0 , ( |
| %x, %X, %o | whole numbers, to base 16 or 8; negative ones as their bits | - # 0 |
| %f | FLOAT and DOUBLE, with 6 digits behind the point, or .n | - + blank 0 , ( # |
| %e, %E | the same as 1.5e+03 | - + blank 0 ( # |
| %n, %% | nothing: a new line, a percent sign | |

A number in front says the least width, .n behind it how many digits, or for %s how many characters
at most.  Java counts characters of 16 bits.  A null is written as null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.casts import cast_array
from penstock.expr.library.arrays import each_distinct, spread
from penstock.expr.library.strings import concat
from penstock.expr.nodes import Expr
from penstock.expr.signatures import TEXT, Kind, function, takes
from penstock.expr.types import BOOLEAN, NULL, STRING, is_floating, is_integer, type_name

_USAGE = "format_string(format, a, ..)"
_WIDEST = 10_000
_PIECE = re.compile(r"%(?:([1-9][0-9]*)\$)?([-#+ 0,(]*)([1-9][0-9]*)?(?:\.([0-9]+))?([A-Za-z%])?")
_FLAGS = {"s": "-", "b": "-", "d": "-+ 0,(", "x": "-#0", "o": "-#0", "f": "-#+ 0,(", "e": "-#+ 0("}
_DIGITS = Context(prec=12_000)


@dataclass(frozen=True)
class Piece:
    """What stands for one value: ``place`` is which."""

    text: str
    place: int
    letter: str
    flags: str
    width: int
    precision: int | None

    @property
    def kind(self) -> str:
        """The letter, small."""
        return self.letter.lower()


@lru_cache(256)
def pieces_of(format_: str) -> tuple[str | Piece, ...]:
    """Read a format into plain text and pieces."""
    found: list[str | Piece] = []
    at = place = 0
    for match in _PIECE.finditer(format_):
        if at < match.start():
            found.append(format_[at : match.start()])
        at = match.end()
        text, flags, letter = match[0], match[2], match[5]
        if text in ("%%", "%n"):
            found.append("%" if text == "%%" else "\n")
            continue
        if letter is None or letter.lower() not in _FLAGS or letter in ("D", "F", "O"):
            raise DataError(
                "a format must be made of text and of %s, %d, %f, %e, %x, %o, %b, %n and %%, got "
                f"{format_[match.start() : match.end() + (letter is None)]!r} in {format_!r}"
            )
        wrong = [flag for flag in flags if flag not in _FLAGS[letter.lower()]]
        twice = len(set(flags)) < len(flags)
        unfit = ("-" in flags and "0" in flags) or ("+" in flags and " " in flags)
        narrow = match[3] is None and ("-" in flags or "0" in flags)
        exact = match[4] is not None and letter in "dxXo"
        if wrong or twice or unfit or narrow or exact:
            raise DataError(_unfit(text, letter, wrong, narrow, exact))
        width, precision = int(match[3] or 0), None if match[4] is None else int(match[4])
        if max(width, precision or 0) > _WIDEST:
            raise DataError(f"a width must be at most {_WIDEST:,}, got {text!r}")
        if match[1] is None:
            place += 1
        found.append(Piece(text, int(match[1] or place), letter, flags, width, precision))
    if at < len(format_):
        found.append(format_[at:])
    return tuple(found)


def _unfit(text: str, letter: str, wrong: list[str], narrow: bool, exact: bool) -> str:
    if wrong:
        return f"the flags of %{letter} must be of '{_FLAGS[letter.lower()]}', got {text!r}"
    if narrow:
        return f"the flags - and 0 must have a width behind them, got {text!r}"
    if exact:
        return f"%{letter} must have no digits behind a point, got {text!r}"
    return f"each flag must stand there once, and not - with 0 or + with a blank, got {text!r}"


def _fits(kind: str, type_: pa.DataType) -> bool:
    if kind == "b":
        return type_ in (BOOLEAN, NULL)
    if kind in "fe":
        return is_floating(type_) or type_ == NULL
    return kind == "s" or is_integer(type_) or type_ == NULL


_WANTED = {"b": "a BOOLEAN", "f": "a FLOAT or DOUBLE", "e": "a FLOAT or DOUBLE"}


def _format(format_: str | None, *values: Any) -> Any:
    rows, columns = spread(*values)
    if format_ is None:
        return pa.nulls(rows, STRING)
    made: list[Any] = []
    for piece in pieces_of(format_):
        if isinstance(piece, str):
            made.append(pa.scalar(piece, STRING))
            continue
        if piece.place > len(columns):
            raise DataError(f"{piece.text!r} must have a value, got {len(columns)} of them")
        column = columns[piece.place - 1]
        if not _fits(piece.kind, column.type):
            raise DataError(
                f"{piece.text!r} must get {_WANTED.get(piece.kind, 'a whole number')}, got "
                f"{type_name(column.type)}; use CAST"
            )
        made.append(_written(piece, column))
    return concat(pa.repeat(pa.scalar("", STRING), rows), *made)


def _written(piece: Piece, column: pa.Array) -> pa.Array:
    """Return a column of what a piece writes."""
    null = "false" if piece.kind == "b" else "null"
    nothing = _justified(piece, _cut(piece, null))
    if column.type == NULL:
        return pa.repeat(pa.scalar(nothing, STRING), len(column))
    if piece.kind in "sb":
        text = column if column.type == STRING else cast_array(column, STRING)
        plain = piece.letter in "sb" and not piece.width and piece.precision is None
        if not plain:
            text = each_distinct(_USAGE, lambda v: _justified(piece, _cut(piece, v)), STRING, text)
    elif piece.kind == "d" and not piece.flags and not piece.width:
        text = pc.cast(column, STRING)
    else:
        bits = column.type.bit_width
        write: Callable[[Any], str] = {
            "d": lambda value: _whole(piece, value),
            "x": lambda value: _bits(piece, value % (1 << bits), "x", "0x"),
            "o": lambda value: _bits(piece, value % (1 << bits), "o", "0"),
        }.get(piece.kind, lambda value: _real(piece, value))
        text = each_distinct(_USAGE, lambda value: _justified(piece, write(value)), STRING, column)
    return pc.fill_null(text, nothing)


def _length(text: str) -> int:
    """The number of Java's characters."""
    return len(text) + sum(letter > "\uffff" for letter in text)


def _cut(piece: Piece, text: str) -> str:
    """Return as many of Java's characters as there may be; half of one is a question mark."""
    if piece.precision is None or _length(text) <= piece.precision:
        return text
    units = text.encode("utf-16-le")[: 2 * piece.precision]
    whole = units.decode("utf-16-le", "ignore")
    return whole if 2 * _length(whole) == len(units) else whole + "?"


def _justified(piece: Piece, text: str) -> str:
    if piece.letter.isupper():
        text = text.upper()
    blanks = " " * (piece.width - _length(text))
    return text + blanks if "-" in piece.flags else blanks + text


def _signed(piece: Piece, negative: bool, whole: str, behind: str) -> str:
    """Return a number with its sign, the commas and the zeros that the flags want."""
    bracket = negative and "(" in piece.flags
    before = "(" if bracket else "-" if negative else "+" if "+" in piece.flags else ""
    if not before and " " in piece.flags:
        before = " "
    if "," in piece.flags:
        whole = f"{int(whole):,}"
    if "0" in piece.flags:
        least = piece.width - len(before) - bracket - len(behind)
        whole = whole.rjust(least, "0")
    return f"{before}{whole}{behind}{')' if bracket else ''}"


def _whole(piece: Piece, value: int) -> str:
    return _signed(piece, value < 0, str(abs(value)), "")


def _bits(piece: Piece, value: int, base: str, prefix: str) -> str:
    before = prefix if "#" in piece.flags else ""
    digits = format(value, base)
    return before + (digits.rjust(piece.width - len(before), "0") if "0" in piece.flags else digits)


def _real(piece: Piece, value: float) -> str:
    """Write a number; Java rounds the digits that it shows of a number half up."""
    if math.isnan(value):
        return "NaN"
    negative = math.copysign(1.0, value) < 0
    if math.isinf(value):
        without = Piece("", 0, "f", piece.flags.translate({48: None, 44: None}), 0, None)
        return _signed(without, negative, "Infinity", "")
    digits = 6 if piece.precision is None else piece.precision
    size = abs(Decimal(repr(value)))
    power = size.adjusted() if size and piece.kind == "e" else 0
    shown = size.scaleb(-power, _DIGITS).quantize(
        Decimal(1).scaleb(-digits), ROUND_HALF_UP, _DIGITS
    )
    if piece.kind == "e" and shown >= 10:
        shown = shown.scaleb(-1, _DIGITS).quantize(Decimal(1).scaleb(-digits), None, _DIGITS)
        power += 1
    whole, _, fraction = f"{shown:f}".partition(".")
    behind = f".{fraction}" if fraction or "#" in piece.flags else ""
    if piece.kind == "e":
        behind += f"e{'-' if power < 0 else '+'}{abs(power):02}"
    return _signed(piece, negative, whole, behind)


def _shown(expr: Expr) -> pa.DataType | None:
    simple = expr.type in (STRING, BOOLEAN, NULL)
    return expr.type if simple or is_integer(expr.type) or is_floating(expr.type) else None


_VALUE = Kind(
    "a STRING, BOOLEAN, integer, FLOAT or DOUBLE (of a time, date_format(t, format); of a DECIMAL, "
    "CAST(x AS STRING) or AS DOUBLE)",
    _shown,
)

FUNCTIONS = (
    function(
        _USAGE,
        takes(TEXT, _VALUE, gives=STRING, more=_VALUE),
        _format,
        "Values written by a constant format: %s, %d, %.2f, %e, %x, %o, %b, %n and %%, with flags "
        "and widths of Java, such as %-10s, %08.3f, %,d, %+d and %2$s. A null is written as null.",
        "printf",
        spark=None,
        constants=(0,),
        total=False,
    ),
)
