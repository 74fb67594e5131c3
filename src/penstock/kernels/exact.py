"""Exact sums of numbers: independent of order, of batches and of the length of the stream.

A number is written with digits of 32 bits, ``sum(digits[b] * 2**(32*b))``, as a dictionary from
the *bin* ``b`` to an ``int64`` column with one digit per row (`Digits`).  A double fills at most
three bins. Adding and taking away are additions of ``int64`` columns, hence exact: nothing drifts,
and running sums are plain cumulative sums.  Only bins that occur are there; usual data has three
or four.

Invariants:

* A digit of a sum may be any ``int64`` below ``2**62`` in size: ``2**29`` values can be added
  before carries must be resolved.  Wrapping inside a cumulative sum is harmless, because it is
  undone when the sum before a segment is taken away.
* `normalise` resolves carries so that ``-2**31 <= digit < 2**31``.  This form is unique: equal
  numbers have equal digits, however they were added up.  (Digits of both signs keep sums of very
  different magnitudes sparse; digits of one sign would need a chain of borrows.)
* NaN, +infinity and -infinity are counted in bins of their own, far above the others.

`to_double` rounds the exact sum once, to the nearest double, ties to even.  Every double is a
multiple of ``2**-1074``, so a sum below the normal range is representable: rounding never happens
twice.

Squares are exact as well: with ``x = m * 2**e`` and ``m = h * 2**27 + l``, ``x*x = (h*h * 2**54 +
2*h*l * 2**27 + l*l) * 2**(2e)``, three integers below ``2**56``.  The variance is ``(n*sum(x*x) -
sum(x)**2) / (n*n)``; the numerator is evaluated in digits and rounded once, so no cancellation is
possible: equal values have a variance of exactly 0, whatever their size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.decimals import WORDS, Words, of_words_integers
from penstock.errors import DataError
from penstock.model import I64, Mask

F64: TypeAlias = npt.NDArray[np.float64]
Digits: TypeAlias = dict[int, I64]

PACKED = pa.list_(pa.int64())
"""The Arrow type of normalised digits: one word ``(bin + 512) << 32 | digit`` per digit."""

_NAN, _PLUS, _MINUS = 200, 204, 208
_FINITE_TOP = 190
BLOCK = 1 << 15
"""Rows that are worked on at once, so that their columns stay in the processor's cache."""

_MASK = np.int64(0xFFFF_FFFF)
_HALF = np.int64(1 << 31)
_ONE = np.uint64(1)
_POWERS = np.ldexp(1.0, np.arange(-1000, 1001))


def split_doubles(values: F64, sign: I64 | None = None) -> Digits:
    """Return the digits of each value, times its ``sign`` (1, 0 or -1)."""
    return _in_blocks(_split_doubles, values, sign)


def split_squares(values: F64, sign: I64 | None = None) -> Digits:
    """Return the digits of the square of each value, times its ``sign``."""
    return _in_blocks(_split_squares, values, sign)


def split_integers(values: I64, sign: I64 | None = None) -> Digits:
    """Return the digits of each integer, times its ``sign``.

    One bin where even the sum of all sizes stays below ``2**62``, else two.
    """
    if len(values) == 0:
        return {}
    largest = max(-int(values.min()), int(values.max()))
    if largest * len(values) < 2**62:
        return {0: values if sign is None else values * sign}
    low, high = values & _MASK, values >> 32
    return {0: low, 1: high} if sign is None else {0: low * sign, 1: high * sign}


def split_words(values: Words, sign: I64 | None = None) -> Digits:
    """Return the digits of each integer of 128 bits, times its ``sign``."""
    if len(values) == 0:
        return {}
    whole = of_words_integers(values)
    if whole.dtype != object:
        return split_integers(whole, sign)
    found: Digits = {}
    for place, name in ((0, "low"), (2, "high")):
        word = values[name].view(np.int64)
        found[place] = word & _MASK
        found[place + 1] = (word >> 32) & _MASK if place == 0 else word >> 32
    return found if sign is None else {b: digit * sign for b, digit in found.items()}


def normalise(digits: Digits) -> Digits:
    """Resolve carries: every digit in ``[-2**31, 2**31)``, columns of zeros left out."""
    result: Digits = {}
    todo = sorted(digits)
    carry: I64 | None = None
    place = 0
    bin_ = todo[0] if todo else 0
    while place < len(todo) or carry is not None:
        if carry is None:
            bin_ = todo[place]
        here = place < len(todo) and todo[place] == bin_
        value = digits[bin_] if here else np.zeros_like(carry)
        place += here
        if carry is not None:
            value = value + carry
        over = (value + _HALF) >> 32
        if over.any():
            value = value - (over << 32)
            carry = over
        else:
            carry = None
        if value.any():
            result[bin_] = value
        bin_ += 1
    return result


def whole(values: I64) -> Digits:
    """Return integers of any size as normalised digits."""
    return normalise({0: values})


def multiply(left: Digits, right: Digits) -> Digits:
    """Return the products of normalised finite numbers, normalised."""
    total: Digits = {}
    for low, digit in left.items():
        for high, other in right.items():
            _add_product(total, low + high, digit * other, 1)
    return normalise(total)


def add(left: Digits, right: Digits, factor: int = 1) -> Digits:
    """Return ``left + factor * right``, not normalised."""
    total = dict(left)
    for bin_, digit in right.items():
        total[bin_] = total[bin_] + digit * factor if bin_ in total else digit * factor
    return total


def finite_part(digits: Digits) -> tuple[Digits, Mask | None]:
    """Return the finite digits, and which rows hold NaN or an infinity; None for none."""
    finite, special = _separate(digits)
    if not special:
        return finite, None
    strange: Mask = np.logical_or.reduce(list(special.values()))
    return finite, strange


def round_once(digits: Digits, rows: int) -> tuple[F64, I64]:
    """Return finite numbers as ``mantissa * 2**exponent``, each rounded once to 53 bits."""
    if not digits:
        return np.zeros(rows), np.zeros(rows, np.int64)
    return _round(digits)


def to_double(digits: Digits, rows: int) -> F64:
    """Return the nearest double of each number; NaN and infinities as IEEE 754 adds them."""
    finite, special = _separate(digits)
    if not special and finite.keys() == {0}:  # one integer: the processor rounds it as we would
        return finite[0].astype(np.float64)
    result = np.zeros(rows)
    for first in range(0, rows, BLOCK):
        some = {b: d[first : first + BLOCK] for b, d in finite.items()}
        if some:
            mantissa, exponent = _round(some)
            result[first : first + BLOCK] = scale(mantissa, exponent)
    if special:
        none = np.zeros(rows, bool)
        plus, minus = (special.get(b, none) for b in (_PLUS, _MINUS))
        result[plus] = np.inf
        result[minus] = -np.inf
        result[special.get(_NAN, none) | (plus & minus)] = np.nan
    return result


def to_integer(digits: Digits, rows: int) -> tuple[I64, Mask]:
    """Return each number as ``int64``, and where it does not fit."""
    if not digits:
        return np.zeros(rows, np.int64), np.zeros(rows, bool)
    low = digits.get(0, np.zeros(rows, np.int64))
    if set(digits) <= {0}:
        return low, np.zeros(rows, bool)
    high = low >> 32
    for bin_ in (1, 2):
        if bin_ in digits:
            high = high + (digits[bin_] << (32 * (bin_ - 1)))
    beyond = (high < -_HALF) | (high >= _HALF)
    for bin_ in (b for b in digits if b > 2):
        beyond |= digits[bin_] != 0
    return (high << 32) | (low & _MASK), beyond


def to_words(digits: Digits, rows: int) -> tuple[Words, Mask]:
    """Return each number as an integer of 128 bits, and where it does not fit."""
    none = np.zeros(rows, np.int64)
    parts, carry = [], none
    for bin_ in range(4):
        value = digits.get(bin_, none) + carry
        parts.append(value & _MASK)
        carry = value >> 32
    found = np.empty(rows, WORDS)
    found["low"] = (parts[0] | (parts[1] << 32)).view(np.uint64)
    found["high"] = parts[2] | (parts[3] << 32)
    for bin_ in sorted(b for b in digits if b > 3):
        # Digits may have both signs, so a number is small if what is above it is only its sign.
        carry = carry + digits[bin_] if bin_ == 4 else np.where(digits[bin_] != 0, _HALF, carry)
    return found, carry != found["high"] >> 63


def checked_integer(digits: Digits, rows: int) -> I64:
    """Return each number as ``int64``; one that does not fit is an error of the data."""
    values, beyond = to_integer(digits, rows)
    if beyond.any():
        raise DataError(
            "SUM exceeded BIGINT: the sum of the integers of a group must fit into 64 bits; "
            "cast the argument to DOUBLE"
        )
    return values


def variance_parts(count: I64, sums: Digits, squares: Digits) -> tuple[F64, I64]:
    """Return ``n*sum(x*x) - sum(x)**2``, rounded once, as ``mantissa * 2**exponent``.

    NaN where a value was not finite.
    """
    rows = len(count)
    finite, special = _separate(sums)
    finite_squares, _ = _separate(squares)
    mantissa, exponent = np.zeros(rows), np.zeros(rows, np.int64)
    for first in range(0, rows, BLOCK):
        block = slice(first, first + BLOCK)
        own = normalise({b: d[block] for b, d in finite.items()})
        own_squares = normalise({b: d[block] for b, d in finite_squares.items()})
        numerator: Digits = {}
        for bin_, digit in own_squares.items():
            _add_product(numerator, bin_, count[block] * digit, 1)
        bins = sorted(own)
        for i, low in enumerate(bins):
            for high in bins[i:]:
                _add_product(numerator, low + high, own[low] * own[high], -1 if low == high else -2)
        if numerator:
            mantissa[block], exponent[block] = _round(numerator)
    for where in special.values():
        mantissa[where] = np.nan
    return mantissa, exponent


def variance(count: I64, parts: tuple[F64, I64], sample: bool) -> F64:
    """Return the variance; ``n - 1`` in the denominator if ``sample`` (NaN for one value)."""
    mantissa, exponent = parts
    return scale(_divide(count, mantissa, sample), exponent)


def deviation(count: I64, parts: tuple[F64, I64], sample: bool) -> F64:
    """Return the standard deviation, the square root of `variance`, without overflow between."""
    mantissa, exponent = parts
    odd = exponent & 1
    quotient = _divide(count, mantissa, sample) * np.where(odd == 1, 2.0, 1.0)
    return scale(np.sqrt(quotient), (exponent - odd) >> 1)


def scale(mantissa: F64, exponent: I64) -> F64:
    """Return ``mantissa * 2**exponent``."""
    if len(exponent) == 0:
        return mantissa
    if exponent.min() >= -900 and exponent.max() <= 900:
        small: F64 = mantissa * _POWERS[exponent + 1000]
        return small
    with np.errstate(over="ignore", under="ignore"):
        scaled: F64 = np.ldexp(mantissa, np.clip(exponent, -10_000, 10_000).astype(np.int32))
    return scaled


def pack(digits: Digits, rows: int) -> pa.Array:
    """Return normalised digits as a column of lists (`PACKED`), one word per non-zero digit."""
    bins = sorted(digits)
    if not bins:
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.int64())
        )
    table = np.stack([digits[b] for b in bins], axis=1)
    there = table != 0
    words = ((np.array(bins, np.int64) + 512) << 32) | (table & _MASK)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(words[there]))


def unpack(column: pa.Array) -> Digits:
    """Return the digits of a packed column; null is 0."""
    rows = len(column)
    if rows == 0:
        return {}
    if column.null_count:
        column = pa.concat_arrays([column, pa.array([[]], PACKED)]).take(
            pa.array(
                np.where(column.is_null().to_numpy(zero_copy_only=False), rows, np.arange(rows))
            )
        )
    offsets = column.offsets.to_numpy()
    words = column.values.to_numpy()[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(rows), np.diff(offsets))
    bins = (words >> 32) - 512
    digit = (words << 32) >> 32
    result: Digits = {}
    lowest = int(bins.min(initial=0))
    for bin_ in (np.flatnonzero(np.bincount(bins - lowest)) + lowest).tolist():
        mine = bins == bin_
        result[bin_] = np.zeros(rows, np.int64)
        result[bin_][row[mine]] = digit[mine]
    return result


def _separate(digits: Digits) -> tuple[Digits, dict[int, Mask]]:
    """Return the finite digits, and the rows that hold NaN and infinities."""
    finite = {b: d for b, d in digits.items() if b < _FINITE_TOP}
    special: dict[int, Mask] = {}
    for bin_, digit in digits.items():
        for base in (_NAN, _PLUS, _MINUS):
            if base <= bin_ < base + 3:
                there = digit != 0
                special[base] = special[base] | there if base in special else there
    return finite, special


def _in_blocks(
    split: Callable[[F64, I64 | None], list[tuple[int, I64]]], values: F64, sign: I64 | None
) -> Digits:
    """Apply ``split`` to blocks that fit into the processor's cache."""
    rows = len(values)
    result: Digits = {}
    for first in range(0, rows, BLOCK):
        block = slice(first, first + BLOCK)
        for bin_, digit in split(values[block], None if sign is None else sign[block]):
            if bin_ not in result:
                result[bin_] = np.zeros(rows, np.int64)
            result[bin_][block] += digit
    return result


def _mantissas(values: F64, sign: I64 | None) -> tuple[I64, I64, list[tuple[int, I64]]]:
    """Return integers and exponents with ``value = mantissa * 2**exponent``; specials counted."""
    bits = np.ascontiguousarray(values).view(np.int64)
    biased = (bits >> 52) & 0x7FF
    mantissa = bits & 0xF_FFFF_FFFF_FFFF
    mantissa |= (biased > 0).astype(np.int64) << 52
    exponent = np.maximum(biased, 1) - 1075
    specials: list[tuple[int, I64]] = []
    strange = biased == 0x7FF
    if strange.any():
        mantissa[strange] = 0
        exponent[strange] = 0
        for bin_, mask in (
            (_NAN, np.isnan(values)),
            (_PLUS, values == np.inf),
            (_MINUS, values == -np.inf),
        ):
            if mask.any():
                specials.append((bin_, mask.astype(np.int64) * (1 if sign is None else sign)))
    return mantissa, exponent, specials


def _split_doubles(values: F64, sign: I64 | None) -> list[tuple[int, I64]]:
    whole = _small_integers(values)
    if whole is not None:
        return [(0, whole if sign is None else whole * sign)]
    mantissa, exponent, parts = _mantissas(values, sign)
    negative = np.signbit(values)
    if negative.any():
        mantissa = np.where(negative, -mantissa, mantissa)
    if sign is not None:
        mantissa = mantissa * sign
    _place(parts, mantissa, exponent)
    return parts


def _small_integers(values: F64) -> I64 | None:
    """Return the numbers as integers if they all are, and fit into one digit."""
    some = values[:16]
    if not (some == np.trunc(some)).all() or not (np.abs(values) < 2.0**31).all():
        return None
    whole: I64 = values.astype(np.int64)
    return whole if (whole == values).all() else None


def _split_squares(values: F64, sign: I64 | None) -> list[tuple[int, I64]]:
    mantissa, exponent, parts = _mantissas(values, sign)
    high, low = mantissa >> 27, mantissa & ((1 << 27) - 1)
    if sign is None:
        signed_high, signed_low = high, low
    else:
        signed_high, signed_low = high * sign, low * sign
    _place(parts, high * signed_high, 2 * exponent + 54)
    _place(parts, high * signed_low, 2 * exponent + 28)
    _place(parts, low * signed_low, 2 * exponent)
    return parts


def _place(parts: list[tuple[int, I64]], mantissa: I64, exponent: I64) -> None:
    """Append the digits of ``mantissa * 2**exponent`` to ``parts``."""
    used = mantissa != 0
    bins = exponent >> 5
    if not used.all():
        if not used.any():
            return
        bins = np.where(used, bins, bins[int(np.argmax(used))])
    shift = exponent & 31
    rest = mantissa >> (32 - shift)
    digits = ((mantissa << shift) & _MASK, rest & _MASK, rest >> 32)
    lowest, highest = int(bins.min()), int(bins.max())
    if lowest == highest:
        parts.extend((lowest + i, digit) for i, digit in enumerate(digits))
        return
    present = np.bincount(bins - lowest) > 0
    for bin_ in (np.flatnonzero(present) + lowest).tolist():
        here = bins == bin_
        parts.extend((bin_ + i, digit * here) for i, digit in enumerate(digits))


def _add_product(total: Digits, bin_: int, product: I64, factor: int) -> None:
    for place, part in ((bin_, product & _MASK), (bin_ + 1, product >> 32)):
        term = part * factor
        total[place] = total[place] + term if place in total else term


def _divide(count: I64, mantissa: F64, sample: bool) -> F64:
    weight = count.astype(np.float64)
    other = weight - 1.0 if sample else weight
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: F64 = mantissa / (weight * other)
    return quotient


def _round(digits: Digits) -> tuple[F64, I64]:
    """Return the nearest 53-bit number of a block of sums as ``mantissa * 2**exponent``."""
    lowest, highest = min(digits), max(digits)
    if highest - lowest < 4:
        columns = [digits.get(lowest + i) for i in range(4)]
        found = _round_four(columns, lowest)
        if found is not None:
            return found
    rows = len(digits[lowest])
    return _round_any(normalise(digits), rows)


def _round_four(columns: list[I64 | None], lowest: int) -> tuple[F64, I64] | None:
    """Round sums that fit into four neighbouring bins; None when the top one overflows."""
    words: list[I64] = []
    carry: I64 | None = None
    rows = next(len(c) for c in columns if c is not None)
    for column in columns:
        value = column if column is not None else np.zeros(rows, np.int64)
        if carry is not None:
            value = value + carry
        words.append(value)
        carry = value >> 32
    top = words[3]
    if top.min() <= -(2**30) or top.max() >= 2**30:
        return None
    high = (top << 32) | (words[2] & _MASK)
    low = (((words[1] & _MASK) << 32) | (words[0] & _MASK)).view(np.uint64)
    negative = high < 0
    if negative.any():
        high = np.where(negative, ~high + (low == 0), high)
        low = np.where(negative, ~low + _ONE, low)
    sign = np.where(negative, -1.0, 1.0)
    if not high.any():
        return low.astype(np.float64) * sign, np.full(rows, 32 * lowest, np.int64)
    mantissa, shift = _nearest(high.view(np.uint64), low)
    return mantissa * sign, 32 * lowest + shift


def _nearest(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> tuple[F64, I64]:
    """Round the 128-bit ``high:low`` (``high < 2**63``): 53 bits, and the power of two they count.

    The top 63 or 64 bits are kept; whatever is below them only sets the last bit, which decides
    ties and cannot be seen otherwise, since at least ten bits lie between it and the 53rd.
    """
    bits = (high.astype(np.float64).view(np.int64) >> 52) - 1022  # may be one too many: harmless
    left = np.clip(63 - bits, 0, 63).astype(np.uint64)
    word = (high << left) | ((low >> _ONE) >> (np.uint64(63) - left))
    word |= ((low << left) != 0).astype(np.uint64)
    small = high == 0
    if small.any():
        word = np.where(small, low, word)
        left = np.where(small, np.uint64(64), left)
    return word.astype(np.float64), 64 - left.astype(np.int64)


def _round_any(digits: Digits, rows: int) -> tuple[F64, I64]:
    """Round normalised digits in any bins: the top one, the two below it, and the rest's sign."""
    zeros = np.zeros(rows, np.int64)
    top, first, second, third, rest = (zeros.copy() for _ in range(5))
    for bin_ in sorted(digits, reverse=True):
        digit = digits[bin_]
        unset = first == 0
        gap = np.where(unset, 0, top - bin_)
        first = np.where(unset, digit, first)
        top = np.where(unset, bin_, top)
        second = np.where(gap == 1, digit, second)
        third = np.where(gap == 2, digit, third)
        rest = np.where((gap > 2) & (rest == 0), np.sign(digit), rest)
    sign = np.where(first < 0, -1, 1)
    first, second, third, rest = first * sign, second * sign, third * sign, rest * sign
    third = third - (rest < 0)  # a little less than third: one less, and something below it
    second = second + (third >> 32)
    first = first + (second >> 32)
    high = ((first << 32) | (second & _MASK)).view(np.uint64)
    low = (((third & _MASK) << 32) | (rest != 0)).view(np.uint64)
    mantissa, shift = _nearest(high, low)
    return mantissa * sign, 32 * (top - 3) + shift
