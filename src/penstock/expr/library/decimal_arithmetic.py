"""Arithmetic of DECIMALs on columns: exact, then rounded half away from zero to the result's scale.

Each function gets arguments of DECIMAL types; the type of its result follows from theirs
(`penstock.expr.decimal_types`).  A result with too many digits is an error, for ``try_`` null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock import decimals
from penstock.decimals import Integers
from penstock.expr import decimal_types
from penstock.expr.decimal_types import operand_types, uses_decimals
from penstock.expr.library.arrays import null_mask, spread
from penstock.expr.nodes import Expr, Literal
from penstock.expr.signatures import Mismatch, Rule, Types
from penstock.expr.types import BIGINT, INT, is_decimal
from penstock.model import Mask

Operation: TypeAlias = Callable[[Integers, Integers, pa.DataType, pa.DataType, pa.DataType], Any]
"""Of the numbers of units, their types, and the type of the result."""


def or_decimals(rule: Rule, result: Callable[[Any, Any], pa.DataType]) -> Rule:
    """Return a rule that takes two DECIMALs as they are, other arguments as ``rule`` does."""

    def both(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        if not uses_decimals(args):
            return rule(args)
        kinds = operand_types(args)
        return kinds, result(*kinds)

    return both


def on_decimals(
    plain: Callable[..., Any],
    operate: Operation,
    result: Callable[[Any, Any], pa.DataType],
    divides: bool = False,
    tried: bool = False,
) -> Callable[..., Any]:
    """Return a kernel that uses ``operate`` for DECIMALs and ``plain`` for everything else."""

    def apply(a: Any, b: Any) -> Any:
        if not is_decimal(a.type):
            return plain(a, b)
        kind = result(a.type, b.type)
        _, (a, b) = spread(a, b)
        missing = null_mask(a, b)
        x, y = decimals.integers(a), decimals.integers(b)
        if divides:
            zero = np.asarray(y == 0, bool)
            if not tried and (zero & ~missing).any():
                raise pa.ArrowInvalid("divide by zero")
            missing = missing | zero
            y = np.where(zero, 1, y)
        found = operate(x, y, a.type, b.type, kind)
        if kind == BIGINT:
            return _as_long(found, missing)
        if tried:
            missing = missing | ~decimals.fitting(found, kind)
        return decimals.of_integers(found, kind, missing)

    return apply


def _as_long(found: Integers, missing: Mask) -> pa.Array:
    if found.dtype == object:
        beyond = np.asarray((found >= 2**63) | (found < -(2**63)), bool)
        if (beyond & ~missing).any():
            raise pa.ArrowInvalid("overflow")
        found = np.where(beyond, 0, found).astype(np.int64)
    return pa.array(found, BIGINT, mask=missing)


def _aligned(x: Integers, y: Integers, a: Any, b: Any) -> tuple[Integers, Integers, int]:
    """Return numbers of units of the finer scale."""
    scale = max(a.scale, b.scale)
    return decimals.shifted(x, scale - a.scale), decimals.shifted(y, scale - b.scale), scale


def add(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Sum."""
    x, y, scale = _aligned(x, y, a, b)
    return decimals.shifted(decimals.plus(x, y), kind.scale - scale)


def subtract(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Difference."""
    return add(x, decimals.times(y, -1), a, b, kind)


def multiply(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Product."""
    return decimals.shifted(decimals.times(x, y), kind.scale - a.scale - b.scale)


_SPARKS_SCALE = 39
"""Digits behind the point to which Spark rounds a quotient before it rounds it to its scale."""


def divide(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Quotient, rounded as Spark does: twice, which shows only where there are very many digits."""
    once = kind.scale - a.scale + b.scale
    if kind.scale + max(0, -once) + len(str(decimals.largest(y))) < _SPARKS_SCALE:
        return _quotient(x, y, once)
    fine = _quotient(x, y, once + _SPARKS_SCALE - kind.scale)
    return decimals.shifted(fine, kind.scale - _SPARKS_SCALE)


def _quotient(x: Integers, y: Integers, places: int) -> Integers:
    if places >= 0:
        return decimals.divided(decimals.times(x, 10**places), y)
    return decimals.divided(x, decimals.times(y, 10**-places))


def remainder(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Remainder with the sign of the dividend."""
    x, y, scale = _aligned(x, y, a, b)
    return decimals.shifted(decimals.rest(x, y), kind.scale - scale)


def positive_remainder(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Remainder that is not negative if the divisor is positive."""
    x, y, scale = _aligned(x, y, a, b)
    left = decimals.rest(x, y)
    up = decimals.rest(decimals.plus(left, y), y)
    moved = np.asarray((left < 0) & (y > 0), bool)
    return decimals.shifted(np.where(moved, up, left), kind.scale - scale)


def whole_quotient(x: Integers, y: Integers, a: Any, b: Any, kind: Any) -> Integers:
    """Quotient without its fraction."""
    x, y, _ = _aligned(x, y, a, b)
    return decimals.cut(x, y)


def or_rounded(rule: Rule) -> Rule:
    """Return a rule of ``round(x [, digits])`` that takes a DECIMAL as it is."""

    def both(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        if not args or not is_decimal(args[0].type) or len(args) > 2:
            return rule(args)
        digits = args[1] if len(args) == 2 else Literal(0, INT)
        if not isinstance(digits, Literal) or not isinstance(digits.value, int | None):
            raise Mismatch("a constant INT as argument 2")
        kind = decimal_types.rounded_of(args[0].type, digits.value or 0)
        return (args[0].type, INT)[: len(args)], kind

    return both


def rounded(value: pa.Array, digits: int | None, even: bool) -> pa.Array:
    """Round at a decimal digit; a half goes away from zero, or to the even neighbour."""
    kind = decimal_types.rounded_of(value.type, digits or 0)
    if digits is None:
        return pa.nulls(len(value), kind)
    found, places = decimals.integers(value), value.type.scale - digits
    if places > 0 and even:
        found = decimals.half_even(found, 10**places)
    elif places > 0:
        found = decimals.shifted(found, -places)
    if digits < 0:
        found = decimals.times(found, 10**-digits)
    return decimals.of_integers(found, kind, null_mask(value))


def to_whole(value: pa.Array, up: bool) -> pa.Array:
    """Return the nearest integer at or below, or at or above, as a DECIMAL."""
    kind = decimal_types.whole_of(value.type)
    found, unit = decimals.integers(value), 10**value.type.scale
    if found.dtype != object and unit >= 2**63:
        found = found.astype(object)
    whole = -(-found // unit) if up else found // unit
    return decimals.of_integers(whole, kind, null_mask(value))
