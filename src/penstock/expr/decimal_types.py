"""The types of DECIMAL arithmetic, and numbers as they are written.

Digits and scale of results are Spark's (with ``allowPrecisionLoss``): what would need more than 38
digits keeps those before the point, and at least 6 behind it.

A number such as ``1.5`` is a DOUBLE, but beside a DECIMAL it counts as the DECIMAL that is written:
`Written` remembers the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

from penstock.expr.nodes import Expr, Literal
from penstock.expr.types import (
    BIGINT,
    DOUBLE,
    MOST_DIGITS,
    NULL,
    as_decimal_type,
    decimal_type,
    is_decimal,
    is_floating,
    is_integer,
)

_LEAST_SCALE = 6
"""Digits behind the point that a result keeps where it has too many."""

_ARITHMETIC = frozenset(("add", "subtract", "multiply", "divide", "mod", "div", "pmod"))
_TRIED = frozenset(("try_add", "try_subtract", "try_multiply", "try_divide", "try_mod"))


class Written(float):
    """A DOUBLE that knows how it was written."""

    text: str

    def __new__(cls, text: object) -> Written:
        made = super().__new__(cls, str(text))
        made.text = str(text)
        return made

    def __neg__(self) -> Written:
        return Written(self.text[1:] if self.text.startswith("-") else "-" + self.text)


def decimal_literal(text: str) -> Literal | None:
    """Return digits with a point as a constant; None where they are too many."""
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    whole = max(len(digits) + int(exponent), 0) if any(digits) else 0
    if max(whole + scale, 1) > MOST_DIGITS:
        return None
    return Literal(value, decimal_type(max(whole + scale, 1), scale))


def written(expr: Expr) -> Literal | None:
    """Return a constant DOUBLE as the DECIMAL that it is written as, None if it is not one."""
    if isinstance(expr, Literal) and expr.type == DOUBLE and isinstance(expr.value, Written):
        return decimal_literal(expr.value.text)
    return None


def _as_constant(expr: Expr) -> Expr:
    """Return a constant integer with only the digits that it has, as Spark counts them."""
    if isinstance(expr, Literal) and is_integer(expr.type) and expr.value is not None:
        return decimal_literal(str(expr.value)) or expr
    return expr


def beside_decimals(name: str, args: Sequence[Expr]) -> Sequence[Expr]:
    """Return arguments among which are DECIMALs: constants as they are written.

    Where another argument is a FLOAT or DOUBLE, all stay what they are: the result is a DOUBLE.
    """
    if not any(is_decimal(arg.type) for arg in args):
        return args
    if any(is_floating(arg.type) and written(arg) is None for arg in args):
        return args
    plain = [written(arg) or arg for arg in args]
    return list(map(_as_constant, plain)) if name in _ARITHMETIC | _TRIED else plain


def uses_decimals(args: Sequence[Expr]) -> bool:
    """Whether two arguments are computed as DECIMALs: one is, and the other is no DOUBLE."""
    kinds = [arg.type for arg in args]
    return (
        len(kinds) == 2
        and any(map(is_decimal, kinds))
        and all(is_decimal(k) or is_integer(k) or k == NULL for k in kinds)
    )


def operand_types(args: Sequence[Expr]) -> tuple[pa.DataType, pa.DataType]:
    """Return the DECIMALs that two arguments are; a bare NULL is what the other one is."""
    known = [as_decimal_type(arg.type) for arg in args if arg.type != NULL]
    first, last = (known[0], known[-1])
    return first, last


def _adjusted(digits: int, scale: int) -> pa.DataType:
    if digits <= MOST_DIGITS:
        return decimal_type(digits, scale)
    whole = digits - scale
    kept = max(MOST_DIGITS - whole, min(scale, _LEAST_SCALE))
    return decimal_type(MOST_DIGITS, kept)


def sum_of(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type of ``a + b`` and ``a - b``."""
    scale = max(a.scale, b.scale)
    return _adjusted(max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale)


def product_of(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type of ``a * b``."""
    return _adjusted(a.precision + b.precision + 1, a.scale + b.scale)


def quotient_of(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type of ``a / b``."""
    scale = max(_LEAST_SCALE, a.scale + b.precision + 1)
    return _adjusted(a.precision - a.scale + b.scale + scale, scale)


def remainder_of(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type of ``a % b``."""
    scale = max(a.scale, b.scale)
    return _adjusted(min(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def whole_quotient_of(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type of ``a DIV b``."""
    return BIGINT


def rounded_of(kind: pa.DataType, digits: int) -> pa.DataType:
    """Return the type of ``round(x, digits)``."""
    whole = kind.precision - kind.scale + 1
    if digits < 0:
        return decimal_type(min(max(whole, 1 - digits), MOST_DIGITS), 0)
    scale = min(kind.scale, digits)
    return decimal_type(min(whole + scale, MOST_DIGITS), scale)


def whole_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``floor(x)`` and ``ceil(x)``."""
    return decimal_type(min(kind.precision - kind.scale + 1, MOST_DIGITS), 0)


def total_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``SUM(x)``."""
    return decimal_type(min(kind.precision + 10, MOST_DIGITS), kind.scale)


def mean_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``AVG(x)``."""
    return decimal_type(min(kind.precision + 4, MOST_DIGITS), min(kind.scale + 4, MOST_DIGITS))
