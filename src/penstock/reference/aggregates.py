"""The oracle's aggregates over the rows of a group.

Floating-point sums are exact: they are added as fractions and rounded once, at the end.  So an
engine is measured against the true value and not against another way to round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cmp_to_key, reduce
from operator import and_, or_, xor
from typing import Any

from penstock.errors import InternalError
from penstock.expr.nodes import AggregateCall
from penstock.expr.own import is_own
from penstock.reference import own
from penstock.reference.expressions import evaluate
from penstock.reference.values import NAN, canonical, compare, double, fit, is_decimal


def aggregate(call: AggregateCall, rows: Sequence[Sequence[Any]]) -> Any:
    """Return one aggregate over the rows of a group."""
    if call.arg is None:
        return len(rows)
    options = call.more if call.name in ("percentile", "string_agg") else ()
    given = [[evaluate(e, row) for e in call.args[: len(call.args) - len(options)]] for row in rows]
    if call.name in ("min_by", "max_by"):
        return _picked([pair for pair in given if pair[0] is not None], call.name == "max_by")
    found = [tuple(values) for values in given if None not in values]
    if is_own(call.name):
        return canonical(own.aggregate(call.name, [a.type for a in call.args], found, call.type))
    if call.distinct or call.name == "count_distinct":
        found = list(set(found))
    if call.name == "count_distinct":
        return len(found)
    if call.name in ("covar_pop", "covar_samp", "corr"):
        return _joint(call.name, found)
    values = [value for (value,) in found]
    if call.name in ("percentile", "string_agg"):
        option = evaluate(options[0], ())
        return _percentile(values, option) if call.name == "percentile" else _listed(values, option)
    return _of_one(call, values)


def _of_one(call: AggregateCall, values: Sequence[Any]) -> Any:
    """Return an aggregate of one argument, whose nulls are left out."""
    match call.name:
        case "count":
            return len(values)
        case "sum":
            return fit(_sum(values), call.type) if values else None
        case "avg":
            if values and is_decimal(call.type):
                return fit(_sum(values) / len(values), call.type)
            # SUM / COUNT
            return canonical(double(_sum(values)) / len(values)) if values else None
        case "min" | "max":
            return _in_order(values)[0 if call.name == "min" else -1] if values else None
        case "var_pop" | "stddev_pop":
            return _spread(values, len(values), root=call.name == "stddev_pop")
        case "var_samp" | "stddev_samp":
            return _spread(values, len(values) - 1, root=call.name == "stddev_samp")
        case "skewness" | "kurtosis":
            return _shape(values, 3 if call.name == "skewness" else 4)
        case "bit_and" | "bit_or" | "bit_xor":
            operate = {"bit_and": and_, "bit_or": or_, "bit_xor": xor}[call.name]
            return reduce(operate, values) if values else None
        case "mode":
            return max(_in_order(values), key=values.count) if values else None
    raise InternalError(f"the reference does not know the aggregate '{call.name}'")


def _in_order(values: Sequence[Any]) -> list[Any]:
    return sorted(values, key=cmp_to_key(compare))


def _picked(pairs: Sequence[Sequence[Any]], largest: bool) -> Any:
    """Return what stands with the best of something: the smallest such, a null before others."""
    if not pairs:
        return None
    best = _in_order([by for by, _ in pairs])[-1 if largest else 0]
    values = [value for by, value in pairs if compare(by, best) == 0]
    return None if None in values else _in_order(values)[0]


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value at a share of the way through the values in order, or between two."""
    if not values:
        return None
    place = (len(values) - 1) * share
    low, high = math.floor(place), math.ceil(place)
    first, second = (_in_order(values)[at] for at in (low, high))
    if compare(first, second) == 0:
        return float(first)
    return float(canonical((high - place) * first + (place - low) * second))


def _listed(values: Sequence[str], delimiter: str) -> str | None:
    """Return all texts in order, with something between them."""
    return delimiter.join(_in_order(values)) if values else None


def _joint(name: str, pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the exact covariance or correlation, rounded at the end."""
    count = len(pairs)
    if count == 0 or (count == 1 and name != "covar_pop"):
        return None
    if not all(math.isfinite(v) for pair in pairs for v in pair):
        return NAN
    (xs, x_unit), (ys, y_unit) = (_deviations(side) for side in zip(*pairs, strict=True))
    both = sum(a * b for a, b in zip(xs, ys, strict=True))
    if name != "corr":
        divisor = count if name == "covar_pop" else count - 1
        return double(Fraction(both, x_unit * y_unit * divisor))
    square = sum(a * a for a in xs) * sum(b * b for b in ys)
    if square == 0:
        return None
    root = _root(Fraction(both * both, square))
    return root if both > 0 else canonical(-root)


def _shape(values: Sequence[float], power: int) -> float | None:
    """Return the skewness (the third moment) or the excess kurtosis (the fourth)."""
    if not all(map(math.isfinite, values)):
        return NAN
    deviations, _ = _deviations(values)
    second, moment = (sum(d**p for d in deviations) for p in (2, power))
    if second == 0:
        return None
    if power == 4:
        return double(Fraction(len(values) * moment, second * second) - 3)
    root = _root(Fraction(len(values) * moment * moment, second**3))
    return root if moment > 0 else canonical(-root)


def _deviations(values: Sequence[float]) -> tuple[list[int], int]:
    """Return how far each value is from the mean, as integers, and of what unit they count parts.

    All units are powers of two times the number of values, so nothing is rounded.
    """
    ratios = [float(v).as_integer_ratio() for v in values]
    unit = max((below for _, below in ratios), default=1)
    whole = [above * (unit // below) for above, below in ratios]
    return [len(values) * w - sum(whole) for w in whole], len(values) * unit


def _sum(values: Sequence[Any]) -> Any:
    """Return the exact sum: an integer, a fraction, or the infinity or NaN that it comes to."""
    strange = [v for v in values if isinstance(v, float) and not math.isfinite(v)]
    if strange:
        return canonical(sum(strange))
    if any(isinstance(v, float | Decimal) for v in values):
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
