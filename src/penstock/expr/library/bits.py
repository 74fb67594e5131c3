"""Bits of integers, and integers written to other bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.library.arrays import each_distinct, null_mask, numbers, numpy_of, spread
from penstock.expr.nodes import Expr
from penstock.expr.signatures import (
    COUNT,
    LONG,
    TEXT,
    Kind,
    alike,
    called,
    function,
    infix,
    takes,
)
from penstock.expr.types import BIGINT, BINARY, BOOLEAN, INT, NULL, STRING, TINYINT, is_integer

_ALL = 2**64 - 1


def _as_counted(expr: Expr) -> pa.DataType | None:
    return BOOLEAN if expr.type == BOOLEAN else LONG.accept(expr)


def _integer(expr: Expr) -> pa.DataType | None:
    if expr.type == NULL:
        return INT
    return expr.type if is_integer(expr.type) else None


def _shiftable(expr: Expr) -> pa.DataType | None:
    return BIGINT if expr.type == BIGINT else COUNT.accept(expr)


def _hexable(expr: Expr) -> pa.DataType | None:
    return expr.type if expr.type in (STRING, BINARY) else LONG.accept(expr)


def _shift(move: Callable[[Any, Any], Any]) -> Callable[..., pa.Array]:
    """As in Java, only the low bits of the number of places count: 33 places of an INT are 1."""

    def apply(value: Any, places: Any) -> pa.Array:
        _, (value, places) = spread(value, places)
        by = (numpy_of(places) & (value.type.bit_width - 1)).astype(numpy_of(value).dtype)
        return numbers(move(numpy_of(value), by), value.type, null_mask(value, places))

    return apply


def _unsigned_right(value: Any, places: Any) -> Any:
    unsigned = np.dtype(f"u{value.dtype.itemsize}")
    return (value.view(unsigned) >> places.view(unsigned)).view(value.dtype)


def _bit_count(value: Any) -> pa.Array:
    """A negative number has the bits of a BIGINT."""
    found = numpy_of(value.cast(BIGINT)).view(np.uint64)
    return numbers(np.bitwise_count(found).astype(np.int32), INT, null_mask(value))


def _bit_get(value: Any, place: Any) -> pa.Array:
    _, (value, place) = spread(value, place)
    null = null_mask(value, place)
    bits, places = numpy_of(value), numpy_of(place)
    if (((places < 0) | (places >= value.type.bit_width)) & ~null).any():
        raise pa.ArrowInvalid("a place outside of the number")
    by = np.clip(places, 0, value.type.bit_width - 1).astype(bits.dtype)
    return numbers(((bits >> by) & 1).astype(np.int8), TINYINT, null)


def _bitmap_bit(value: Any) -> pa.Array:
    found = numpy_of(value)
    with np.errstate(over="ignore"):
        place = np.where(found > 0, (found - 1) % 32_768, np.abs(np.fmod(found, 32_768)))
    return numbers(place, BIGINT, null_mask(value))


def _bitmap_bucket(value: Any) -> pa.Array:
    found = numpy_of(value)
    with np.errstate(over="ignore"):
        bucket = np.where(found > 0, 1 + (found - 1) // 32_768, (found + 32_767) // 32_768)
    return numbers(bucket, BIGINT, null_mask(value))


def _hex(value: Any) -> pa.Array:
    """Written once per distinct value: Arrow has no kernel for it."""
    if value.type == BINARY:
        return each_distinct("hex(x)", lambda data: data.hex().upper(), STRING, value)
    if value.type == STRING:
        return each_distinct("hex(x)", lambda s: s.encode().hex().upper(), STRING, value)
    return each_distinct("hex(x)", lambda number: f"{number & _ALL:X}", STRING, value)


def _bin(value: Any) -> pa.Array:
    """Written once per distinct value: Arrow has no kernel for it."""
    return each_distinct("bin(x)", lambda number: f"{number & _ALL:b}", STRING, value)


_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _conv(*values: Any) -> pa.Array:
    """Converted once per distinct text and bases: Arrow has no kernel for it."""
    return each_distinct("conv(s, from_base, to_base)", _converted, STRING, *values)


def _converted(text: str, source: int, target: int) -> str | None:
    """Return the number at the start of a text in another base; what is no digit ends it."""
    text = text.strip(" ")
    if not (2 <= source <= 36 and 2 <= abs(target) <= 36 and text):
        return None
    negative = text.startswith("-")
    number = 0
    for character in text[negative:]:
        digit = _DIGITS.find(character.upper()) if character.isascii() else -1
        if not 0 <= digit < source:
            break
        number = number * source + digit
        if number > _ALL:
            raise pa.ArrowInvalid("overflow")
    if negative and target > 0:
        number = -number & _ALL if number < 2**63 else _ALL
    if target < 0 and number >= 2**63:
        number, negative = 2**64 - number, True
    written = ""
    while number:
        number, digit = divmod(number, abs(target))
        written = _DIGITS[digit] + written
    return ("-" if negative and target < 0 else "") + (written or "0")


_INTEGERS = alike("two integers", is_integer, of_null=INT)
_SHIFT = takes(Kind("an INT or BIGINT", _shiftable), COUNT, gives=lambda types: types[0])

FUNCTIONS = (
    infix(
        "bit_and_of",
        "a & b",
        _INTEGERS,
        (pc.bit_wise_and, lambda a, b: a.bitwiseAND(b)),
        "Bits that both have.",
    ),
    infix(
        "bit_or_of",
        "a | b",
        _INTEGERS,
        (pc.bit_wise_or, lambda a, b: a.bitwiseOR(b)),
        "Bits that one of them has.",
    ),
    infix(
        "bit_xor_of",
        "a ^ b",
        _INTEGERS,
        (pc.bit_wise_xor, lambda a, b: a.bitwiseXOR(b)),
        "Bits that exactly one of them has.",
    ),
    function(
        "~a",
        takes(Kind("an integer", _integer), gives=lambda types: types[0]),
        pc.bit_wise_not,
        "All bits turned round.",
        name="bit_not",
        spark=lambda f, a: f.bitwise_not(a),
    ),
    function(
        "shiftleft(x, places), x << places",
        _SHIFT,
        _shift(np.left_shift),
        "Bits moved to the left; of the places only those below the number of bits count.",
        spark=called("shiftleft"),
    ),
    function(
        "shiftright(x, places), x >> places",
        _SHIFT,
        _shift(np.right_shift),
        "Bits moved to the right; the sign stays.",
        spark=called("shiftright"),
    ),
    function(
        "shiftrightunsigned(x, places), x >>> places",
        _SHIFT,
        _shift(_unsigned_right),
        "Bits moved to the right, zeros from the left.",
        spark=called("shiftrightunsigned"),
    ),
    function(
        "bit_count(x)",
        takes(Kind("an integer or BOOLEAN", _as_counted), gives=INT),
        _bit_count,
        "Number of bits that are 1; a negative number has those of a BIGINT.",
    ),
    function(
        "bit_get(x, place)",
        takes(Kind("an integer", _integer), COUNT, gives=TINYINT),
        _bit_get,
        "The bit at a place, counted from 0 at the right.",
        "getbit",
        total=False,
        advice="count places from 0, up to the bits of the type",
    ),
    function(
        "bitmap_bit_position(x)",
        takes(LONG, gives=BIGINT),
        _bitmap_bit,
        "The place of a number in its bitmap of 32,768 bits.",
    ),
    function(
        "bitmap_bucket_number(x)",
        takes(LONG, gives=BIGINT),
        _bitmap_bucket,
        "The number of the bitmap of 32,768 bits in which a number is.",
    ),
    function(
        "hex(x)",
        takes(Kind("an integer, STRING or BINARY", _hexable), gives=STRING),
        _hex,
        "An integer, bytes, or those of a text, in hexadecimal digits.",
    ),
    function("bin(x)", takes(LONG, gives=STRING), _bin, "An integer in binary digits."),
    function(
        "conv(s, from_base, to_base)",
        takes(TEXT, COUNT, COUNT, gives=STRING),
        _conv,
        "A whole number written to another base, 2 to 36; a negative one says that it has a sign.",
        spark=called("conv"),
        total=False,
        advice="the number must fit 64 bits; use CASE to leave such rows out",
    ),
)
