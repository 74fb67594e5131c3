"""The oracle's aggregates over the rows of a group.

Floating-point sums are exact: they are added as fractions and rounded once, at the end.  So an
engine is measured against the true value and not against another way to round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from penstock.errors import InternalError
from penstock.expr.nodes import AggregateCall
from penstock.reference.expressions import evaluate
from penstock.reference.values import NAN, canonical, compare, double, fit


def aggregate(call: AggregateCall, rows: Sequence[Sequence[Any]]) -> Any:
    """Return one aggregate over the rows of a group."""
    if call.arg is None:
        return len(rows)
    values = [v for row in rows if (v := evaluate(call.arg, row)) is not None]
    match call.name:
        case "count":
            return len(values)
        case "count_distinct":
            return len(set(values))
        case "sum":
            return fit(_sum(values), call.type) if values else None
        case "avg":
            # SUM / COUNT
            return canonical(double(_sum(values)) / len(values)) if values else None
        case "min" | "max":
            best = values[0] if values else None
            for value in values:
                if compare(value, best) == (1 if call.name == "max" else -1):
                    best = value
            return best
        case "var_pop" | "stddev_pop":
            return _spread(values, len(values), root=call.name == "stddev_pop")
        case "var_samp" | "stddev_samp":
            return _spread(values, len(values) - 1, root=call.name == "stddev_samp")
    raise InternalError(f"the reference does not know the aggregate '{call.name}'")


def _sum(values: Sequence[Any]) -> Any:
    """Return the exact sum: an integer, a fraction, or the infinity or NaN that it comes to."""
    strange = [v for v in values if isinstance(v, float) and not math.isfinite(v)]
    if strange:
        return canonical(sum(strange))
    if any(isinstance(v, float) for v in values):
        return sum((Fraction(v) for v in values), Fraction(0))
    return sum(values)


def _spread(values: Sequence[Any], divisor: int, root: bool) -> float | None:
    """Return the exact variance, or its root; null where the divisor is not above zero."""
    if divisor <= 0:
        return None
    total = _sum(values)
    if isinstance(total, float):
        return NAN
    mean = Fraction(total) / len(values)
    variance = sum(((Fraction(v) - mean) ** 2 for v in values), Fraction(0)) / divisor
    return _root(variance) if root else double(variance)


def _root(square: Fraction) -> float:
    """Return the square root, also where the square itself is beyond the range of DOUBLE."""
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return double(Fraction(math.sqrt(square / Fraction(4) ** shift)) * Fraction(2) ** shift)
