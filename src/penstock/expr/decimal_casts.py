"""Conversions to and from DECIMAL and BINARY.

A DECIMAL takes what it can round to: digits behind the point that are too many are rounded half
away from zero.  Digits before the point that are too many do not fit, nor do NaN and infinities.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import decimals
from penstock.decimals import Integers
from penstock.expr.types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MOST_DIGITS,
    STRING,
    is_decimal,
    is_floating,
    is_integer,
)
from penstock.model import Mask, to_mask

DECIMAL_TEXT = "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?"
"""What text of a DECIMAL looks like, as a regular expression."""

_BLANKS = " \t\r\n"
_LARGEST = 10 ** (MOST_DIGITS + 1)
_EXACT = 10.0**15
_ROOMY = Context(prec=2 * MOST_DIGITS + 400, rounding=ROUND_HALF_UP, Emin=-(10**9), Emax=10**9)


def to_decimal(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return numbers, truths or readable text as a DECIMAL, and which of them do not fit.

    Null is none of them.
    """
    missing = to_mask(array.is_null())
    source = array.type
    if source == STRING:
        units, bad = _of_text(array, kind.scale)
    elif is_floating(source):
        units, bad = _of_doubles(pc.cast(array, DOUBLE), kind.scale)
    elif is_decimal(source):
        units = decimals.shifted(decimals.integers(array), kind.scale - source.scale)
        bad = np.zeros(len(array), bool)
    else:
        plain = pc.fill_null(pc.cast(array, BIGINT), 0).to_numpy(zero_copy_only=False)
        units, bad = decimals.shifted(plain, kind.scale), np.zeros(len(array), bool)
    bad = (bad | ~decimals.fitting(units, kind)) & ~missing
    units = np.where(bad | missing, 0, units)
    return decimals.of_words(decimals.in_words(units), kind, missing | bad), bad


def from_decimal(array: pa.Array, target: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return a DECIMAL as another type, and which values do not fit."""
    missing, scale = to_mask(array.is_null()), array.type.scale
    none = np.zeros(len(array), bool)
    if target == STRING:
        return decimal_text(array), none
    if target == BOOLEAN:
        found = decimals.words(array)
        truth = (found["low"] != 0) | (found["high"] != 0)
        return pa.array(truth, BOOLEAN, mask=missing), none
    units = decimals.integers(array)
    if is_integer(target):
        units = decimals.cut(units, 10**scale) if scale else units
        bits = target.bit_width - 1
        bad = np.asarray((units < -(2**bits)) | (units >= 2**bits), bool)
        plain = np.where(bad, 0, units).astype(np.int64)
        return pa.array(plain, BIGINT, mask=missing | bad).cast(target), bad & ~missing
    doubles = pa.array(decimals.to_doubles(units, scale), DOUBLE, mask=missing)
    return doubles.cast(target), none


def decimal_text(array: pa.Array) -> pa.Array:
    """Write numbers plainly, with all digits of their scale: -0.50."""
    scale = array.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(MOST_DIGITS, 0), len(array), array.buffers(), offset=array.offset
    )
    text = pc.cast(whole, STRING)
    if scale == 0:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    behind = pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, before, ".", behind, "")


def _of_text(array: pa.Array, scale: int) -> tuple[Integers, Mask]:
    """Return units of texts that `DECIMAL_TEXT` matches: by their digits where they are plain."""
    text = pc.fill_null(pc.utf8_trim(array, _BLANKS), "0")
    parts = pc.extract_regex(
        text, r"\A(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<behind>[0-9]*))?\z"
    )
    plain = to_mask(parts.is_valid())
    whole, behind = (pc.fill_null(pc.struct_field(parts, name), "") for name in ("whole", "behind"))
    plain &= to_mask(pc.less_equal(pc.utf8_length(whole), MOST_DIGITS - scale))
    behind = pc.utf8_rpad(pc.utf8_slice_codeunits(behind, 0, scale + 1), scale + 1, "0")
    digits = pc.binary_join_element_wise(whole, pc.utf8_slice_codeunits(behind, 0, scale), "")
    digits = pc.if_else(pa.array(plain), digits, "0")
    digits = pc.if_else(pc.equal(digits, ""), "0", digits)
    if int(pc.max(pc.utf8_length(digits)).as_py() or 0) <= decimals.NARROW:
        units: Integers = pc.cast(digits, BIGINT).to_numpy()
    else:
        units = decimals.integers(pc.cast(digits, pa.decimal128(MOST_DIGITS, 0)))
    up = to_mask(pc.greater_equal(pc.utf8_slice_codeunits(behind, scale, scale + 1), "5"))
    units = decimals.plus(units, (up & plain).astype(np.int64))
    minus = to_mask(pc.starts_with(text, "-"))
    units = np.where(minus, -units, units)
    bad = np.zeros(len(array), bool)
    for row in np.flatnonzero(~plain).tolist():  # exponents, and more digits than there may be
        if units.dtype != object:
            units = units.astype(object)
        units[row], bad[row] = _units_of(Decimal(text[row].as_py()), scale)
    return units, bad


def _units_of(value: Decimal, scale: int) -> tuple[int, bool]:
    """Return the units of a number, and whether it is far too large to have any."""
    if value and value.adjusted() > MOST_DIGITS:
        return 0, True
    if value.adjusted() < -scale - 2:
        return 0, False
    return int(
        value.quantize(Decimal(1).scaleb(-scale, _ROOMY), context=_ROOMY).scaleb(scale, _ROOMY)
    ), False


def _of_doubles(array: pa.Array, scale: int) -> tuple[Integers, Mask]:
    """Return units of the numbers as they are written: of 0.1 one tenth.

    A number with at most 15 digits is what it is written as: no other such number has its bits.
    """
    values = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
    bad = ~np.isfinite(values)
    values = np.where(bad, 0.0, values)
    with np.errstate(over="ignore"):
        sized = values * 10.0**scale if scale <= 22 else np.full(len(values), np.inf)
    easy = np.abs(sized) < _EXACT
    near = np.rint(np.where(easy, sized, 0.0))
    easy &= near / 10.0 ** min(scale, 22) == values
    units: Integers = np.where(easy, near, 0).astype(np.int64)
    hard = np.flatnonzero(~easy)
    if len(hard):
        distinct, back = np.unique(values[hard], return_inverse=True)
        found = [_units_of(Decimal(repr(float(v))), scale) for v in distinct]
        units = units.astype(object)
        units[hard] = np.array([u for u, _ in found], object)[back]
        bad[hard] |= np.array([b for _, b in found], bool)[back]
    return units, bad


def to_binary(array: pa.Array) -> pa.Array:
    """Return the bytes of texts."""
    return pc.cast(array, pa.binary())


def from_binary(array: pa.Array) -> tuple[pa.Array, Mask]:
    """Return bytes as text, and which of them are no UTF-8."""
    try:
        return pc.cast(array, STRING), np.zeros(len(array), bool)
    except pa.ArrowInvalid:
        found = [_decoded(value) for value in array.to_pylist()]
    text = pa.array(found, STRING)
    return text, to_mask(text.is_null()) & to_mask(array.is_valid())


def _decoded(value: bytes | None) -> Any:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
