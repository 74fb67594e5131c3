"""Arithmetic and mathematics.

Integers are checked: an overflow or a division by zero is an error, as in Spark's ANSI mode.  ``/``
gives DOUBLE; ``DIV`` and ``%`` cut towards zero, so that ``%`` has the sign of the dividend.

Rounding is half away from zero *of the number as it is written*: ``round(2.675, 2)`` is 2.68
although the nearest DOUBLE lies below 2.675.  With ``k`` the digits kept, the written number is at
or above the midpoint ``m = (2k+1) / (2 * 10**n)`` exactly when the DOUBLE is at or above the DOUBLE
nearest to ``m``, because decimals of at most 15 digits have distinct DOUBLEs and rounding is
monotone.  Longer numbers take the slow way through `decimal`.  Spark rounds the text that Java
makes of the number, before Java 19 not always the shortest; so rounding stays with Arrow.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr import decimal_types
from penstock.expr.casts import map_distinct
from penstock.expr.library import decimal_arithmetic
from penstock.expr.library.arrays import null_mask, numpy_of, spread
from penstock.expr.library.decimal_arithmetic import on_decimals, or_decimals, or_rounded
from penstock.expr.nodes import Expr
from penstock.expr.signatures import (
    COUNT,
    LONG,
    NUMBER,
    REAL,
    Function,
    Kind,
    Rule,
    Types,
    alike,
    function,
    infix,
    takes,
)
from penstock.expr.types import BIGINT, DOUBLE, is_decimal, is_integer, is_numeric, is_temporal

_EXACT = 10.0**14


def _mod(a: Any, b: Any) -> pa.Array:
    _, (a, b) = spread(a, b)
    null = null_mask(a, b)
    divisor = numpy_of(b)
    if ((divisor == 0) & ~null).any():
        raise pa.ArrowInvalid("divide by zero")
    # A remainder by -1 is 0; the machine's own instruction fails on the smallest integer.
    harmless = (divisor == 0) | (divisor == -1) if is_integer(a.type) else divisor == 0
    with np.errstate(invalid="ignore"):
        result = np.fmod(numpy_of(a), np.where(harmless, divisor.dtype.type(1), divisor))
    return pa.array(result, a.type, mask=null, from_pandas=False)


def _real(function: Any) -> Any:
    """A NumPy function of one DOUBLE."""

    def apply(value: Any) -> pa.Array:
        with np.errstate(all="ignore"):
            result = function(numpy_of(value))
        return pa.array(result, DOUBLE, mask=null_mask(value), from_pandas=False)

    return apply


def _logarithm(function: Any) -> Any:
    """As in Spark, null at and below zero."""

    def apply(value: Any) -> Any:
        return function(pc.if_else(pc.less_equal(value, 0.0), pa.scalar(None, DOUBLE), value))

    return apply


def _power(base: Any, exponent: Any) -> pa.Array:
    """Unlike C, and like Java and Spark, 1 to the power of NaN or infinity is NaN."""
    _, (base, exponent) = spread(base, exponent)
    x, y = numpy_of(base), numpy_of(exponent)
    with np.errstate(all="ignore"):
        result = np.power(x, y)
        undefined = np.isnan(y) | ((np.abs(x) == 1) & np.isinf(y))
    result[undefined] = np.nan
    return pa.array(result, DOUBLE, mask=null_mask(base, exponent), from_pandas=False)


def _atan2(y: Any, x: Any) -> pa.Array:
    _, (y, x) = spread(y, x)
    # Java adds 0.0, so that -0.0 counts as 0.0.
    result = np.arctan2(numpy_of(y) + 0.0, numpy_of(x) + 0.0)
    return pa.array(result, DOUBLE, mask=null_mask(y, x), from_pandas=False)


def _to_whole(function: Any) -> Any:
    """Round to BIGINT; NaN and what is too large do not fit."""

    def apply(value: Any) -> Any:
        if is_decimal(value.type):
            return decimal_arithmetic.to_whole(value, function is pc.ceil)
        if value.type == BIGINT:
            return value
        whole = function(value)
        fits = pc.and_(pc.greater_equal(whole, -(2.0**63)), pc.less(whole, 2.0**63))
        if pc.all(fits).as_py() is False:
            raise pa.ArrowInvalid("overflow")
        return pc.cast(whole, BIGINT, safe=False)

    return apply


def _spark_to_whole(name: str) -> Any:
    """Spark refuses what is too large, but takes NaN for 0."""

    def apply(f: Any, value: Any) -> Any:
        refused = f.raise_error(f.lit(f"{name}(x) must get a number that fits BIGINT, got NaN"))
        return f.when(f.isnan(value), refused.cast("bigint")).otherwise(getattr(f, name)(value))

    return apply


def rounded(value: Any, digits: int | None = 0, even: bool = False) -> Any:
    """Round at a decimal digit; a half goes away from zero, or to the even neighbour."""
    if is_decimal(value.type):
        return decimal_arithmetic.rounded(value, digits, even)
    if digits is None:
        return pa.nulls(len(value), value.type)
    if is_integer(value.type):
        return value if digits >= 0 else _round_integers(value, -digits, even)
    numbers = numpy_of(value)
    sizes = np.abs(numbers)
    if digits > 22 or digits < -22:
        easy = np.zeros(len(sizes), bool)
        result = numbers.copy()
    else:
        scale = 10.0 ** abs(digits)
        with np.errstate(over="ignore"):
            easy = (sizes * scale < _EXACT) if digits >= 0 else (sizes < _EXACT)
        written = _round_written(np.where(easy, sizes, 0.0), scale, digits, even)
        result = np.where(easy, written, sizes)
        result = np.copysign(result, numbers)
    hard = ~easy & np.isfinite(numbers)
    if hard.any():
        column = pa.array(numbers[hard])
        by_text = map_distinct(column, lambda v: _round_decimal(v, digits, even), DOUBLE)
        result[hard] = by_text.to_numpy()
    return pa.array(result, DOUBLE, mask=null_mask(value), from_pandas=False)


def _round_written(sizes: Any, scale: float, digits: int, even: bool) -> Any:
    """Round numbers >= 0 at ``10**-digits``; see the head of this module."""
    if digits < 0:
        kept = np.floor(sizes / scale)
        kept -= kept * scale > sizes
        kept += (kept + 1) * scale <= sizes
        return (kept + _is_up(sizes, kept, (2 * kept + 1) * (scale / 2), even)) * scale
    kept = np.floor(sizes * scale)
    kept -= kept / scale > sizes
    kept += (kept + 1) / scale <= sizes
    return (kept + _is_up(sizes, kept, (2 * kept + 1) / (2 * scale), even)) / scale


def _is_up(sizes: Any, kept: Any, middle: Any, even: bool) -> Any:
    """Whether a size is rounded up, which is between what is kept and one unit more."""
    if not even:
        return sizes >= middle
    return (sizes > middle) | ((sizes == middle) & (np.fmod(kept, 2) == 1))


def _round_decimal(value: float, digits: int, even: bool) -> float:
    written = Decimal(repr(value))
    exponent = written.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent <= digits:
        return value
    if written.adjusted() + 1 < -digits:
        return math.copysign(0.0, value)
    way = ROUND_HALF_EVEN if even else ROUND_HALF_UP
    return float(written.quantize(Decimal(1).scaleb(-digits), way))


def _round_integers(value: pa.Array, zeros: int, even: bool) -> pa.Array:
    bits = value.type.bit_width - 1
    numbers = numpy_of(value).astype(np.int64)
    if zeros > 18:  # ten to the power of 19 is above every BIGINT
        half = 5 * 10**18 + even
        if zeros == 19 and ((numbers >= half) | (numbers <= -half)).any():
            raise pa.ArrowInvalid("overflow")
        return pc.multiply(value, pa.scalar(0, value.type))
    step = 10**zeros
    rest = np.fmod(numbers, step)
    base = numbers - rest
    away = np.where(_is_up(np.abs(rest), base // step, step // 2, even), np.sign(rest), 0)
    above = (away > 0) & (base > 2**bits - 1 - step)
    below = (away < 0) & (base < step - 2**bits)
    if (above | below).any():
        raise pa.ArrowInvalid("overflow")
    return pa.array(base + away * step, BIGINT, mask=null_mask(value)).cast(value.type)


def _time_hint(args: Sequence[Expr]) -> str:
    if not any(is_temporal(arg.type) for arg in args):
        return ""
    return (
        " (for times use t + INTERVAL .., time_add(t, microseconds), time_diff(t1, t2) in "
        "microseconds, date_add(d, days) or date_diff(d1, d2) in days)"
    )


def _first(types: Types) -> pa.DataType:
    return types[0]


def _unary(usage: str, kernel: Any, doc: str, *aliases: str) -> Function:
    """A function of one DOUBLE that only Arrow evaluates: Java's last bit is another one."""
    return function(usage, _REAL, kernel, doc, *aliases, spark=None)


_NUMBERS = alike("two numbers", is_numeric, instead=_time_hint)
_REAL = takes(REAL, gives=DOUBLE)
_NUMBER = takes(NUMBER, gives=_first)
_REALS = takes(REAL, REAL, gives=DOUBLE)
_OVERFLOW: dict[str, Any] = {
    "total": False,
    "advice": "use a wider type, for instance CAST(x AS BIGINT) or CAST(x AS DOUBLE)",
}
_BY_ZERO: dict[str, Any] = {
    "total": False,
    "advice": "use NULLIF(b, 0) or CASE to leave out divisors of zero",
}


def _integer_or_real(expr: Expr) -> pa.DataType | None:
    if is_integer(expr.type):
        return expr.type
    return REAL.accept(expr)


def _long_or_real(expr: Expr) -> pa.DataType | None:
    return LONG.accept(expr) if is_integer(expr.type) else REAL.accept(expr)


_ROUNDABLE = Kind("a number", _integer_or_real)
_TO_WHOLE = takes(
    Kind("a number", lambda e: e.type if is_decimal(e.type) else _long_or_real(e)),
    gives=lambda types: decimal_types.whole_of(types[0]) if is_decimal(types[0]) else BIGINT,
)


def _of_two(
    name: str, usage: str, rule: Rule, kernels: tuple[Any, Any], doc: str, **more: Any
) -> Function:
    """An operator of two numbers, which computes DECIMALs as such."""
    operate, result = _DECIMALS[name]
    plain, spark = kernels
    kernel = on_decimals(plain, operate, result, divides=name in ("divide", "div", "mod"))
    return infix(name, usage, or_decimals(rule, result), (kernel, spark), doc, **more)


_DECIMALS: dict[str, tuple[Any, Any]] = {
    "add": (decimal_arithmetic.add, decimal_types.sum_of),
    "subtract": (decimal_arithmetic.subtract, decimal_types.sum_of),
    "multiply": (decimal_arithmetic.multiply, decimal_types.product_of),
    "divide": (decimal_arithmetic.divide, decimal_types.quotient_of),
    "div": (decimal_arithmetic.whole_quotient, decimal_types.whole_quotient_of),
    "mod": (decimal_arithmetic.remainder, decimal_types.remainder_of),
}

FUNCTIONS = (
    _of_two("add", "a + b", _NUMBERS, (pc.add_checked, operator.add), "Sum.", **_OVERFLOW),
    _of_two(
        "subtract",
        "a - b",
        _NUMBERS,
        (pc.subtract_checked, operator.sub),
        "Difference.",
        **_OVERFLOW,
    ),
    _of_two(
        "multiply", "a * b", _NUMBERS, (pc.multiply_checked, operator.mul), "Product.", **_OVERFLOW
    ),
    _of_two(
        "divide",
        "a / b",
        _REALS,
        (pc.divide_checked, operator.truediv),
        "Quotient as DOUBLE, of DECIMALs as DECIMAL; division by zero is an error.",
        **_BY_ZERO,
    ),
    function(
        "a DIV b",
        or_decimals(takes(LONG, LONG, gives=BIGINT), decimal_types.whole_quotient_of),
        on_decimals(pc.divide_checked, *_DECIMALS["div"], divides=True),
        "Whole quotient, cut towards zero; division by zero is an error.",
        name="div",
        spark=lambda f, a, b: f.call_function("div", a, b),
        **_BY_ZERO,
    ),
    _of_two(
        "mod",
        "a % b",
        _NUMBERS,
        (_mod, operator.mod),
        "Remainder with the sign of the dividend; division by zero is an error.",
        **_BY_ZERO,
    ),
    infix(
        "negate",
        "-a",
        _NUMBER,
        (pc.negate_checked, operator.neg),
        "Negative.",
        "negative",
        **_OVERFLOW,
    ),
    function("abs(x)", _NUMBER, pc.abs_checked, "Absolute value.", **_OVERFLOW),
    function(
        "sign(x)",
        _REAL,
        pc.sign,
        "-1.0, 0.0 or 1.0.",
        "signum",
        spark=lambda f, x: f.signum(x) + 0.0,
    ),
    function(
        "round(x [, digits])",
        or_rounded(takes(_ROUNDABLE, COUNT, gives=_first, optional=1)),
        rounded,
        "Rounded half away from zero, as the number is written; digits may be negative.",
        spark=None,
        constants=(1,),
        **_OVERFLOW,
    ),
    function(
        "floor(x)",
        _TO_WHOLE,
        _to_whole(pc.floor),
        "Largest integer at or below, as BIGINT, of a DECIMAL as DECIMAL; it must fit.",
        spark=_spark_to_whole("floor"),
        total=False,
    ),
    function(
        "ceil(x)",
        _TO_WHOLE,
        _to_whole(pc.ceil),
        "Smallest integer at or above, as BIGINT, of a DECIMAL as DECIMAL; it must fit.",
        "ceiling",
        spark=_spark_to_whole("ceil"),
        total=False,
    ),
    function("sqrt(x)", _REAL, pc.sqrt, "Square root; NaN below zero."),
    _unary("exp(x)", _real(np.exp), "e to the power of x."),
    _unary("ln(x)", _logarithm(pc.ln), "Natural logarithm; null at and below zero."),
    _unary("log10(x)", _logarithm(pc.log10), "Logarithm to base 10; null at and below zero."),
    _unary("log2(x)", _logarithm(pc.log2), "Logarithm to base 2; null at and below zero."),
    function("power(x, y)", _REALS, _power, "x to the power of y.", "pow", spark=None),
    _unary("sin(x)", _real(np.sin), "Sine of an angle in radians."),
    _unary("cos(x)", _real(np.cos), "Cosine of an angle in radians."),
    _unary("tan(x)", _real(np.tan), "Tangent of an angle in radians."),
    _unary("asin(x)", _real(np.arcsin), "Arc sine in radians; NaN outside -1 to 1."),
    _unary("acos(x)", _real(np.arccos), "Arc cosine in radians; NaN outside -1 to 1."),
    _unary("atan(x)", _real(np.arctan), "Arc tangent in radians."),
    function("atan2(y, x)", _REALS, _atan2, "Angle of the point (x, y) in radians.", spark=None),
    _unary("radians(x)", _real(np.radians), "Degrees to radians."),
    _unary("degrees(x)", _real(np.degrees), "Radians to degrees."),
)
