"""The oracle's bits of integers, and integers written to other bases."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from penstock.errors import DataError

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def _signed(number: int, bits: int) -> int:
    """Return the lowest bits of a number, read as one with a sign."""
    number %= 2**bits
    return number - 2**bits if number >= 2 ** (bits - 1) else number


def _shift_left(value: int, places: int, bits: int) -> int:
    return _signed(value << places % bits, bits)


def _shift_right(value: int, places: int, bits: int) -> int:
    return value >> places % bits


def _shift_unsigned(value: int, places: int, bits: int) -> int:
    return _signed((value % 2**bits) >> places % bits, bits)


def _bit_get(value: int, place: int, bits: int) -> int:
    if not 0 <= place < bits:
        raise DataError(f"a place must be from 0 to {bits - 1}, got {place}")
    return value >> place & 1


def _bucket(value: int) -> int:
    return 1 + (value - 1) // 32_768 if value > 0 else -(-value // 32_768)


def _hex(value: Any) -> str:
    if isinstance(value, bytes):
        return "".join(f"{byte:02X}" for byte in value)
    if isinstance(value, str):
        return "".join(f"{byte:02X}" for byte in value.encode())
    return format(value % 2**64, "X")


def _conv(text: str, source: int, target: int) -> str | None:
    """A number of 64 bits without sign; one that was negative is turned round, or keeps a sign."""
    text = text.strip(" ").lower() if text.isascii() else text.strip(" ")
    if not 2 <= source <= 36 or not 2 <= abs(target) <= 36 or not text:
        return None
    digits = text[1:] if text[0] == "-" else text
    known = [*_DIGITS[:source], *_DIGITS[:source].upper()]
    size = next((i for i, c in enumerate(digits) if c not in known), len(digits))
    number = int(digits[:size], source) if size else 0
    if number >= 2**64:
        raise DataError(f"a number must fit 64 bits, got {text}")
    value, negative = _signed(number, 64), text[0] == "-"
    if negative and target > 0:
        value = -1 if value < 0 else -value
    if target < 0 and value < 0:
        value, negative = -value, True
    sign = "-" if negative and target < 0 else ""
    return sign + _written(value % 2**64, abs(target))


def _written(number: int, base: int) -> str:
    rest, digit = divmod(number, base)
    return (_written(rest, base) if rest else "") + _DIGITS[digit].upper()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bit_and_of": operator.and_,
    "bit_or_of": operator.or_,
    "bit_xor_of": operator.xor,
    "bit_not": operator.invert,
    "bit_count": lambda x: (int(x) % 2**64).bit_count(),
    "bitmap_bit_position": lambda x: (x - 1) % 32_768 if x > 0 else -x % 32_768,
    "bitmap_bucket_number": _bucket,
    "hex": _hex,
    "bin": lambda x: format(x % 2**64, "b"),
    "conv": _conv,
}
"""Functions of integers, which are null where an argument is."""

WITH_BITS: dict[str, Callable[..., Any]] = {
    "shiftleft": _shift_left,
    "shiftright": _shift_right,
    "shiftrightunsigned": _shift_unsigned,
    "bit_get": _bit_get,
}
"""Functions that are also told how many bits the type of their first argument has."""
