"""Expressions over two sides as sums of terms: what a comparison says about the two sides.

A term is a factor and an *atom*: an expression over the columns of one side, with constants taken
away, or one over both that is no sum.  Terms of integers and times are exact.  Of floating numbers
two atoms of one side stay together, because taking them apart would round in another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.expr.arrow import cannot_fail, evaluate
from penstock.expr.casts import never_fails
from penstock.expr.nodes import Call, Cast, Expr, children, columns_of
from penstock.expr.types import (
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    is_decimal,
    is_floating,
    is_integer,
    is_numeric,
    is_temporal,
)
from penstock.model import TIMESTAMP

ROUNDING = Fraction(1, 2**50)
"""A few roundings of a DOUBLE, as a part of the number."""

_TAME = ("add", "subtract", "multiply", "negate", "abs", "time_add", "time_diff")
"""What fails only when integers or times overflow."""

LEFT, RIGHT, BOTH, NONE = "left", "right", "both", "none"


@dataclass(frozen=True)
class Sum:
    """A sum of terms and a constant.

    ``exact``: computed in integers.  ``noise`` is what its constants may be off by rounding.
    """

    terms: tuple[tuple[Expr, Fraction], ...] = ()
    constant: Fraction = Fraction(0)
    exact: bool = True
    noise: Fraction = Fraction(0)
    coarse: bool = False

    def plus(self, other: Sum) -> Sum | None:
        """Return the sum; None where equal terms of floating numbers would cancel."""
        exact = self.exact and other.exact
        terms = dict(self.terms)
        for atom, factor in other.terms:
            if atom in terms and not exact:
                return None
            terms[atom] = terms.get(atom, Fraction(0)) + factor
        return Sum(
            tuple((a, f) for a, f in terms.items() if f),
            self.constant + other.constant,
            exact,
            self.noise + other.noise,
            self.coarse or other.coarse,
        )

    def times(self, factor: Fraction) -> Sum:
        terms = tuple((atom, f * factor) for atom, f in self.terms) if factor else ()
        return replace(
            self,
            terms=terms,
            constant=self.constant * factor,
            noise=self.noise * abs(factor),
        )


class Sums:
    """Makes sums of expressions whose first ``width`` columns are the left side's."""

    def __init__(self, width: int) -> None:
        self._width = width

    def side_of_all(self, exprs: tuple[Expr, ...]) -> str:
        found = {self.side(e) for e in exprs} - {NONE}
        return found.pop() if len(found) == 1 else BOTH if found else NONE

    def side(self, expr: Expr) -> str:
        columns = columns_of(expr)
        left = any(c < self._width for c in columns)
        right = any(c >= self._width for c in columns)
        return BOTH if left and right else LEFT if left else RIGHT if right else NONE

    def of(self, expr: Expr) -> Sum | None:
        """Return an expression as a sum; None if it has a constant that has no value."""
        if self.side(expr) == NONE:
            value = _constant(expr)
            if value is None:
                return None
            exact = _is_exact(expr.type)
            noise = abs(value) * ROUNDING if is_floating(expr.type) else 0 * value
            return Sum((), value, exact, noise)
        found = self._parts_of(expr)
        return found if found is not None else _atom(expr)

    def _parts_of(self, expr: Expr) -> Sum | None:
        """Return the sum of an expression that is built as one, else None."""
        if isinstance(expr, Cast):
            return self._cast(expr)
        if not isinstance(expr, Call):
            return None
        if expr.type == FLOAT:
            return self._coarse(expr)
        if is_decimal(expr.type) and not never_rounds(expr):
            return None
        match expr:
            case Call("add" | "time_add" | "date_add", (a, b)):
                return self._added(a, b, 1, expr)
            case Call("subtract" | "time_diff" | "date_sub" | "date_diff", (a, b)):
                return self._added(a, b, -1, expr)
            case Call("negate", (a,)):
                return self._scaled(a, Fraction(-1), expr)
            case Call("multiply", (a, b)):
                for value, other in ((a, b), (b, a)):
                    if self.side(value) == NONE and (factor := _constant(value)) is not None:
                        return self._scaled(other, factor, expr)
            case Call("divide", (a, b)) if self.side(b) == NONE:
                divisor = _constant(b)
                return self._scaled(a, 1 / divisor, expr) if divisor else None
        return None

    def _cast(self, expr: Cast) -> Sum | None:
        source, target = expr.arg.type, expr.type
        widened = is_integer(source) and (is_integer(target) or target == DOUBLE)
        if widened and is_integer(target):
            widened = target.bit_width > source.bit_width
        if not widened and not (source == FLOAT and target == DOUBLE):
            return None
        inner = self.of(expr.arg)
        if inner is not None and source == BIGINT and target == DOUBLE:
            noise = inner.noise + abs(inner.constant) * ROUNDING
            return replace(inner, exact=False, noise=noise)
        return inner

    def _coarse(self, expr: Call) -> Sum | None:
        """Of arithmetic in FLOAT only a difference between the sides is taken apart."""
        if expr.name != "subtract" or self.side(expr) != BOTH:
            return None
        if any(self.side(arg) == BOTH for arg in expr.args):
            return None
        one, other = (_atom(arg) for arg in expr.args)
        whole = one.plus(other.times(Fraction(-1)))
        return None if whole is None else replace(whole, coarse=True)

    def _added(self, a: Expr, b: Expr, sign: int, whole: Expr) -> Sum | None:
        one, other = self.of(a), self.of(b)
        if one is None or other is None or not self._may_split(whole, (a, b)):
            return None
        return self._rounded(one.plus(other.times(Fraction(sign))), whole)

    def _scaled(self, a: Expr, factor: Fraction, whole: Expr) -> Sum | None:
        inner = self.of(a)
        if inner is None or factor == 0:
            return None
        if is_floating(whole.type):
            inner = replace(inner, exact=False)
        return self._rounded(inner.times(factor), whole)

    def _may_split(self, whole: Expr, args: tuple[Expr, Expr]) -> bool:
        """Whether a sum may be taken apart: two atoms of one side stay together."""
        return self.side(whole) == BOTH or NONE in [self.side(arg) for arg in args]

    def _rounded(self, found: Sum | None, expr: Expr) -> Sum | None:
        if found is None or not is_floating(expr.type):
            return found
        return replace(found, noise=found.noise + abs(found.constant) * ROUNDING)


def _atom(expr: Expr) -> Sum:
    return Sum(((expr, Fraction(1)),), exact=_is_exact(expr.type))


def _is_exact(kind: pa.DataType) -> bool:
    """Whether numbers of a type are computed in integers; those of DECIMAL have fractions."""
    return not is_floating(kind) and not is_decimal(kind)


def never_rounds(expr: Call) -> bool:
    """Whether a sum, difference or product of DECIMALs keeps all digits behind the point."""
    scales = [arg.type.scale for arg in expr.args if is_decimal(arg.type)]
    if len(scales) != len(expr.args):
        return False
    match expr.name:
        case "add" | "subtract" | "negate":
            return bool(expr.type.scale == max(scales))
        case "multiply":
            return bool(expr.type.scale == sum(scales))
    return False


def plus_constant(whole: Sum, value: Fraction) -> Sum:
    """Return a sum with a constant more."""
    return replace(whole, constant=whole.constant + value)


def tightened(whole: Sum, strictly: bool) -> Sum:
    """Of integers, ``n < 0`` is ``n + 1 <= 0``."""
    integers = [whole.constant, *(f for _, f in whole.terms)]
    if strictly and whole.exact and all(f.denominator == 1 for f in integers):
        return plus_constant(whole, Fraction(1))
    return whole


def _constant(expr: Expr) -> Fraction | None:
    """Return the value of an expression without columns, None if it has none that is finite."""
    if not (is_numeric(expr.type) or is_temporal(expr.type)):
        return None
    try:
        (value,) = evaluate(expr, [], 1)
    except PenstockError:
        return None
    value = value.value if is_temporal(expr.type) else value.as_py()
    return None if value is None or not math.isfinite(value) else Fraction(value)


def tame(expr: Expr) -> bool:
    """Whether an expression may be evaluated on every row: it fails by overflow at most."""
    if isinstance(expr, Call) and expr.name in _TAME:
        return all(tame(child) for child in children(expr))
    if isinstance(expr, Cast):
        known = (expr.arg.type, expr.type) == (DATE, TIMESTAMP)
        return (known or never_fails(expr.arg.type, expr.type)) and tame(expr.arg)
    return cannot_fail(expr)
