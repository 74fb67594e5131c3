"""More mathematics: remainders, rounding to even, hyperbolic functions, buckets.

The functions whose last bit differs between Java and C are evaluated by Arrow and NumPy alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr import decimal_types
from penstock.expr.library import decimal_arithmetic
from penstock.expr.library.arrays import made_null, null_mask, numbers, numpy_of, spread
from penstock.expr.library.decimal_arithmetic import on_decimals, or_decimals, or_rounded
from penstock.expr.library.math import rounded
from penstock.expr.nodes import Expr
from penstock.expr.signatures import (
    COUNT,
    LONG,
    REAL,
    Function,
    Kind,
    Mismatch,
    Types,
    alike,
    called,
    function,
    takes,
)
from penstock.expr.types import BIGINT, DOUBLE, FLOAT, is_floating, is_integer, is_numeric


def _real(kernel: Callable[..., Any]) -> Callable[..., pa.Array]:
    """A NumPy function of DOUBLEs."""

    def apply(*values: Any) -> pa.Array:
        _, columns = spread(*values)
        with np.errstate(all="ignore"):
            result = kernel(*map(numpy_of, columns))
        return numbers(result, DOUBLE, null_mask(*columns))

    return apply


def _logarithm(kernel: Callable[..., Any], bound: float) -> Callable[..., pa.Array]:
    """As in Spark, null where any argument is at or below the bound."""

    def apply(*values: Any) -> pa.Array:
        _, columns = spread(*values)
        return _real(kernel)(*(made_null(c, pc.less_equal(c, bound)) for c in columns))

    return apply


def _remainder(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend; by -1 it is 0, where the machine itself fails."""
    if a.dtype.kind == "i":
        b = np.where(b == -1, a.dtype.type(1), b)
    return np.fmod(a, b)


def _pmod(a: Any, b: Any) -> pa.Array:
    _, (a, b) = spread(a, b)
    null = null_mask(a, b)
    x, y = numpy_of(a), numpy_of(b)
    if ((y == 0) & ~null).any():
        raise pa.ArrowInvalid("divide by zero")
    y = np.where(y == 0, y.dtype.type(1), y)
    with np.errstate(all="ignore"):
        rest = _remainder(x, y)
        moved = (rest < 0) & (y > 0)
        up = _remainder(np.where(moved, rest, 0) + np.where(moved, y, 1), y)
    return numbers(np.where(moved, up, rest).astype(x.dtype), a.type, null)


def _spark_pmod(f: Any, a: Any, b: Any) -> Any:
    """Spark's own function adds the divisor to a remainder without looking for an overflow."""
    rest = a % b
    return f.when((rest < 0) & (b > 0), (rest + b) % b).otherwise(rest)


def _bround(value: Any, digits: int | None = 0) -> Any:
    return rounded(value, digits, even=True)


_FACTORIALS = np.array([math.factorial(n) for n in range(21)], np.int64)


def _factorial(value: Any) -> pa.Array:
    found = numpy_of(value)
    outside = (found < 0) | (found > 20)
    return numbers(_FACTORIALS[np.where(outside, 0, found)], BIGINT, outside | null_mask(value))


def _nanvl(value: Any, other: Any) -> Any:
    return pc.if_else(pc.is_nan(value), other, value)


def _width_bucket(*values: Any) -> pa.Array:
    """As in Spark, a quotient that is too large is the largest BIGINT, and one more wraps."""
    _, columns = spread(*values)
    value, low, high, count = map(numpy_of, columns)
    bounded = np.isfinite(low) & np.isfinite(high) & (low != high)
    null = null_mask(*columns) | (count <= 0) | (count == 2**63 - 1) | np.isnan(value) | ~bounded
    up = low < high
    with np.errstate(all="ignore"):
        way = np.where(up, value - low, low - value)
        part = count.astype(np.float64) * way / np.abs(high - low)
        part = np.where(np.isnan(part), 0.0, part)
        whole = np.where(np.abs(part) < 2.0**63, part, 0.0).astype(np.int64)
        whole = np.where(part >= 2.0**63, np.int64(2**63 - 1), whole) + 1
    before = np.where(up, value < low, value > low)
    behind = np.where(up, value >= high, value <= high)
    return numbers(np.where(before, 0, np.where(behind, count + 1, whole)), BIGINT, null)


def _try(overflows: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Arithmetic that gives null where an integer does not fit its type."""

    def apply(a: Any, b: Any) -> pa.Array:
        _, (a, b) = spread(a, b)
        x, y, null = numpy_of(a), numpy_of(b), null_mask(a, b)
        with np.errstate(all="ignore"):
            if is_floating(a.type):
                return numbers(kernel(x, y), a.type, null)
            if a.type == BIGINT:
                found = kernel(x, y)
                return numbers(found, BIGINT, null | overflows(x, y, found))
            found = kernel(x.astype(np.int64), y.astype(np.int64))
        bits = a.type.bit_width - 1
        null |= (found < -(2**bits)) | (found >= 2**bits)
        return numbers(np.where(null, 0, found).astype(x.dtype), a.type, null)

    return apply


def _product_overflows(a: Any, b: Any, product: Any) -> Any:
    """The quotient of a product that has not wrapped is the factor, and of any other it is not."""
    divisor = np.where((b == 0) | (b == -1), 1, b)
    wrapped = (product // divisor != a) & (b != 0) & (b != -1)
    return wrapped | ((b == -1) & (a == -(2**63)))


_try_add = _try(lambda a, b, found: ((a ^ found) & (b ^ found)) < 0, np.add)
_try_subtract = _try(lambda a, b, found: ((a ^ b) & (a ^ found)) < 0, np.subtract)
_try_multiply = _try(_product_overflows, np.multiply)


def _by_nonzero(kernel: Callable[..., Any]) -> Callable[..., pa.Array]:
    def apply(a: Any, b: Any) -> pa.Array:
        _, (a, b) = spread(a, b)
        y = numpy_of(b)
        with np.errstate(all="ignore"):
            found = kernel(numpy_of(a), np.where(y == 0, y.dtype.type(1), y))
        return numbers(found, a.type, null_mask(a, b) | (y == 0))

    return apply


def _float_types(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    """Two FLOATs stay FLOATs, all other numbers become DOUBLEs."""
    if len(args) != 2:
        raise Mismatch("2 arguments")
    if not all(REAL.accept(arg) for arg in args):
        raise Mismatch("two numbers")
    type_ = FLOAT if all(arg.type == FLOAT for arg in args) else DOUBLE
    return (type_, type_), type_


def _own(usage: str, kernel: Any, doc: str, *aliases: str) -> Function:
    """A function of one DOUBLE that only NumPy evaluates: Java's last bit is another one."""
    return function(usage, takes(REAL, gives=DOUBLE), kernel, doc, *aliases, spark=None)


def _roundable(expr: Expr) -> pa.DataType | None:
    return expr.type if is_integer(expr.type) else REAL.accept(expr)


def _tried(
    usage: str, rule: Any, plain: Any, decimals: tuple[Any, Any], doc: str, **more: Any
) -> Function:
    """Arithmetic that gives null where its result does not fit."""
    operate, result = decimals
    divides = operate in (decimal_arithmetic.divide, decimal_arithmetic.remainder)
    kernel = on_decimals(plain, operate, result, divides, tried=True)
    return function(usage, or_decimals(rule, result), kernel, doc, **more)


_NUMBERS = alike("two numbers", is_numeric)
_SUM, _DIFFERENCE, _PRODUCT, _QUOTIENT, _REST, _POSITIVE = (
    (decimal_arithmetic.add, decimal_types.sum_of),
    (decimal_arithmetic.subtract, decimal_types.sum_of),
    (decimal_arithmetic.multiply, decimal_types.product_of),
    (decimal_arithmetic.divide, decimal_types.quotient_of),
    (decimal_arithmetic.remainder, decimal_types.remainder_of),
    (decimal_arithmetic.positive_remainder, decimal_types.remainder_of),
)
_REALS = takes(REAL, REAL, gives=DOUBLE)

FUNCTIONS = (
    function(
        "pmod(a, b)",
        or_decimals(_NUMBERS, decimal_types.remainder_of),
        on_decimals(_pmod, *_POSITIVE, divides=True),
        "Remainder that is not negative if b is positive; division by zero is an error.",
        spark=_spark_pmod,
        total=False,
        advice="use NULLIF(b, 0) or CASE to leave out divisors of zero",
    ),
    _tried("try_add(a, b)", _NUMBERS, _try_add, _SUM, "Sum; null where it does not fit."),
    _tried(
        "try_subtract(a, b)",
        _NUMBERS,
        _try_subtract,
        _DIFFERENCE,
        "Difference; null where it does not fit.",
    ),
    _tried(
        "try_multiply(a, b)",
        _NUMBERS,
        _try_multiply,
        _PRODUCT,
        "Product; null where it does not fit.",
    ),
    _tried(
        "try_divide(a, b)",
        _REALS,
        _by_nonzero(np.divide),
        _QUOTIENT,
        "Quotient as DOUBLE, of DECIMALs as DECIMAL; null where the divisor is zero.",
    ),
    _tried(
        "try_mod(a, b)",
        _NUMBERS,
        _by_nonzero(_remainder),
        _REST,
        "Remainder; null where the divisor is zero.",
        spark=called("try_mod"),
    ),
    function(
        "bround(x [, digits])",
        or_rounded(
            takes(Kind("a number", _roundable), COUNT, gives=lambda types: types[0], optional=1)
        ),
        _bround,
        "Rounded half to even, as the number is written; digits may be negative.",
        spark=None,
        constants=(1,),
        total=False,
        advice="use a wider type, for instance CAST(x AS BIGINT) or CAST(x AS DOUBLE)",
    ),
    function(
        "rint(x)",
        takes(REAL, gives=DOUBLE),
        _real(np.rint),
        "Nearest whole number as DOUBLE, of two the even one.",
    ),
    function(
        "factorial(n)",
        takes(COUNT, gives=BIGINT),
        _factorial,
        "Factorial of 0 to 20; null for other numbers.",
    ),
    function(
        "nanvl(x, y)",
        _float_types,
        _nanvl,
        "y where x is NaN, else x.",
    ),
    function(
        "width_bucket(x, low, high, n)",
        takes(REAL, REAL, REAL, LONG, gives=BIGINT),
        _width_bucket,
        "The number, 1 to n, of the part of [low, high) in which x lies; 0 before it, n + 1 behind "
        "it. low may be above high. Null where there are no parts.",
    ),
    function("hypot(x, y)", _REALS, _real(np.hypot), "Square root of x² + y².", spark=None),
    function(
        "log(base, x)",
        _REALS,
        _logarithm(lambda base, x: np.log(x) / np.log(base), 0.0),
        "Logarithm to a base; null where one of them is at or below zero. `log(x)` is `ln(x)`.",
        name="log_base",
        spark=None,
    ),
    _own(
        "log1p(x)", _logarithm(np.log1p, -1.0), "Natural logarithm of 1 + x; null at and below -1."
    ),
    _own("expm1(x)", _real(np.expm1), "e to the power of x, minus 1."),
    _own("cbrt(x)", _real(np.cbrt), "Cube root."),
    _own("sinh(x)", _real(np.sinh), "Hyperbolic sine."),
    _own("cosh(x)", _real(np.cosh), "Hyperbolic cosine."),
    _own("tanh(x)", _real(np.tanh), "Hyperbolic tangent."),
    _own("asinh(x)", _real(np.arcsinh), "Inverse hyperbolic sine."),
    _own("acosh(x)", _real(np.arccosh), "Inverse hyperbolic cosine; NaN below 1."),
    _own("atanh(x)", _real(np.arctanh), "Inverse hyperbolic tangent; NaN outside -1 to 1."),
    _own("cot(x)", _real(lambda x: 1 / np.tan(x)), "Cotangent of an angle in radians."),
    _own("sec(x)", _real(lambda x: 1 / np.cos(x)), "Secant of an angle in radians."),
    _own("csc(x)", _real(lambda x: 1 / np.sin(x)), "Cosecant of an angle in radians."),
)
