"""Covariance, correlation, skewness and kurtosis from exact sums of products and powers.

With ``S1 = sum(x)``, ``S2 = sum(x**2)`` .. and n values,

* ``n * sum((x - mean)**2) = n*S2 - S1**2 = B``,
* ``n * sum((x - mean) * (y - mean)) = n*Sxy - Sx*Sy = P``,
* ``n**2 * sum((x - mean)**3) = n**2*S3 - 3*n*S1*S2 + 2*S1**3 = C``,
* ``n**3 * sum((x - mean)**4) = n**3*S4 - 4*n**2*S1*S3 + 6*n*S1**2*S2 - 3*S1**4 = D``.

These are sums and products of integers (`kernels.exact`), so they are exact and rounded once.  The
covariance is ``P / n**2``, the correlation ``P / sqrt(B * B')``, the skewness ``C / B**1.5`` and
the excess kurtosis ``D / B**2 - 3``: all n cancel out.  Numbers are kept as mantissa and exponent
until the end, so nothing overflows on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.kernels import exact
from penstock.kernels.exact import BLOCK, F64, Digits
from penstock.model import I64, Mask

Rounded = tuple[F64, I64]
"""Numbers as ``mantissa * 2**exponent``."""


def split_cubes(values: F64, sign: I64 | None = None) -> Digits:
    """Return the digits of the third power of each value, times its ``sign``."""
    return _powers(values, 3, sign)


def split_fourths(values: F64, sign: I64 | None = None) -> Digits:
    """Return the digits of the fourth power of each value, times its ``sign``."""
    return _powers(values, 4, sign)


def split_products(values: F64, others: F64, sign: I64 | None = None) -> Digits:
    """Return the digits of the product of each pair, times its ``sign``."""

    def make(block: slice) -> Digits:
        return exact.multiply(_finite(values[block]), _finite(others[block]))

    return _signed(make, len(values), sign)


def split_bits(values: I64, sign: I64 | None = None) -> Digits:
    """Return for each bit, in bin ``2 * bit``, whether it is set, times the ``sign``.

    So digits of a sum say how often a bit is set; bins between leave room for what they carry.
    """
    used = int(np.bitwise_or.reduce(values)) if len(values) else 0
    found: Digits = {}
    for bit in range(64):
        if (used >> bit) & 1:
            there = (values >> bit) & 1
            found[2 * bit] = there if sign is None else there * sign
    return found


def bits_of(name: str, digits: Digits, count: I64) -> I64:
    """Return the integers whose bits are set in all values, in some, or in an odd number."""
    result = np.zeros(len(count), np.int64)
    none = np.zeros(len(count), np.int64)
    for bit in range(64):
        if 2 * bit in digits or 2 * bit + 1 in digits:
            times = digits.get(2 * bit, none) + (digits.get(2 * bit + 1, none) << 32)
            there = {"bit_and": times == count, "bit_or": times > 0}.get(name, times & 1)
            result |= np.asarray(there).astype(np.int64) << bit
    return result


def covariance(count: I64, sums: Digits, others: Digits, products: Digits) -> Rounded:
    """Return ``n*Sxy - Sx*Sy``; NaN where a value was not finite."""
    given = {"x": sums, "y": others, "xy": products}

    def make(n: Digits, s: dict[str, Digits]) -> Digits:
        return exact.add(exact.multiply(n, s["xy"]), exact.multiply(s["x"], s["y"]), -1)

    return _rounded(count, given, make)


def correlation(covariance: Rounded, spread: Rounded, other: Rounded) -> tuple[F64, Mask]:
    """Return the correlations, and where there is one."""
    (mantissa, exponent), (own, power), (others, their_power) = covariance, spread, other
    root, half = _root(own * others, power + their_power)
    there: Mask = root != 0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = exact.scale(mantissa / root, exponent - half)
    return np.clip(found, -1.0, 1.0), there


def skewness(count: I64, powers: list[Digits], spread: Rounded) -> tuple[F64, Mask]:
    """Return the skewness from the sums of three powers, and where there is one."""
    given = dict(zip(("1", "2", "3"), powers, strict=True))

    def make(n: Digits, s: dict[str, Digits]) -> Digits:
        inner = exact.add(exact.multiply(n, s["3"]), exact.multiply(s["1"], s["2"]), -3)
        cube = exact.multiply(exact.multiply(s["1"], s["1"]), s["1"])
        return exact.add(exact.multiply(n, exact.normalise(inner)), cube, 2)

    mantissa, exponent = _rounded(count, given, make)
    own, power = spread
    root, half = _root(own, power)
    with np.errstate(divide="ignore", invalid="ignore"):
        return exact.scale(mantissa / own / root, exponent - power - half), own != 0


def kurtosis(count: I64, powers: list[Digits], spread: Rounded) -> tuple[F64, Mask]:
    """Return the excess kurtosis from the sums of four powers, and where there is one."""
    given = dict(zip(("1", "2", "3", "4"), powers, strict=True))

    def make(n: Digits, s: dict[str, Digits]) -> Digits:
        # n * (n * (n*S4 - 4*S1*S3) + 6*S1**2*S2) - 3*S1**4, from inside out
        square = exact.multiply(s["1"], s["1"])
        first = exact.add(exact.multiply(n, s["4"]), exact.multiply(s["1"], s["3"]), -4)
        second = exact.multiply(n, exact.normalise(first))
        second = exact.add(second, exact.multiply(square, s["2"]), 6)
        third = exact.multiply(n, exact.normalise(second))
        return exact.add(third, exact.multiply(square, square), -3)

    mantissa, exponent = _rounded(count, given, make)
    own, power = spread
    with np.errstate(divide="ignore", invalid="ignore"):
        return exact.scale(mantissa / own / own, exponent - 2 * power) - 3.0, own != 0


def _finite(values: F64) -> Digits:
    """Return the finite values as normalised digits; others are 0."""
    return exact.normalise(exact.finite_part(exact.split_doubles(values))[0])


def _powers(values: F64, power: int, sign: I64 | None) -> Digits:
    def make(block: slice) -> Digits:
        base = _finite(values[block])
        square = exact.multiply(base, base)
        return exact.multiply(square, base if power == 3 else square)

    return _signed(make, len(values), sign)


def _signed(make: Callable[[slice], Digits], rows: int, sign: I64 | None) -> Digits:
    """Make digits block by block, each times its sign."""
    result: Digits = {}
    for first in range(0, rows, BLOCK):
        block = slice(first, first + BLOCK)
        for bin_, digit in make(block).items():
            if bin_ not in result:
                result[bin_] = np.zeros(rows, np.int64)
            result[bin_][block] = digit if sign is None else digit * sign[block]
    return result


def _rounded(
    count: I64, sums: dict[str, Digits], make: Callable[[Digits, dict[str, Digits]], Digits]
) -> Rounded:
    """Return what ``make`` computes of the counts and finite sums, block by block, rounded once."""
    rows = len(count)
    mantissa, exponent = np.zeros(rows), np.zeros(rows, np.int64)
    parts = {name: exact.finite_part(digits) for name, digits in sums.items()}
    for first in range(0, rows, BLOCK):
        block = slice(first, first + BLOCK)
        some = {
            name: exact.normalise({b: d[block] for b, d in finite.items()})
            for name, (finite, _) in parts.items()
        }
        n = count[block]
        found = make(exact.whole(n), some)
        mantissa[block], exponent[block] = exact.round_once(exact.normalise(found), len(n))
    for _, strange in parts.values():
        if strange is not None:
            mantissa[strange] = np.nan
    return mantissa, exponent


def _root(mantissa: F64, exponent: I64) -> Rounded:
    """Return the square root of ``mantissa * 2**exponent``."""
    odd = exponent & 1
    with np.errstate(invalid="ignore"):
        return np.sqrt(mantissa * np.where(odd == 1, 2.0, 1.0)), (exponent - odd) >> 1
