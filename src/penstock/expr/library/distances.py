"""Distances of points and of texts.

A distance of points takes ``2n`` numbers: the coordinates of one point, then those of the other.
Sums are made in the order of the arguments, so that the last bit is always the same one.  NaN in
any coordinate gives NaN, which is greater than every number: such points are near to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError
from penstock.expr.edit import edit_distances
from penstock.expr.nodes import Expr
from penstock.expr.signatures import COUNT, REAL, TEXT, Mismatch, Rule, Types, function, takes
from penstock.expr.text_sizes import repeated
from penstock.expr.types import DOUBLE, INT

Numbers = npt.NDArray[np.float64]


def _points(first: int) -> Rule:
    """Numbers in two halves; ``first`` more stand before them."""

    def rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
        rest = len(args) - first
        if rest < 2 or rest % 2:
            order = "the order and " if first else ""
            raise Mismatch(
                f"{order}an even number of coordinates (those of one point, then as many of the "
                "other)"
            )
        for position, arg in enumerate(args, 1):
            if REAL.accept(arg) is None:
                raise Mismatch(f"a number as argument {position}")
        return (DOUBLE,) * len(args), DOUBLE

    return rule


def _differences(values: Sequence[Any]) -> tuple[Any, list[Numbers]]:
    """Return where any value is null, and the differences of the coordinates."""
    rows = next(len(v) for v in values if isinstance(v, pa.Array))
    null = np.zeros(rows, bool)
    numbers: list[Any] = []
    for value in values:
        if isinstance(value, pa.Scalar):
            null |= not value.is_valid
            numbers.append(value.as_py() if value.is_valid else 0.0)
            continue
        if value.null_count:
            null |= pc.is_null(value).to_numpy(zero_copy_only=False)
            value = pc.fill_null(value, 0.0)
        numbers.append(value.to_numpy(zero_copy_only=False))
    half = len(numbers) // 2
    with np.errstate(all="ignore"):
        return null, [
            np.subtract(a, b) for a, b in zip(numbers[:half], numbers[half:], strict=True)
        ]


def _norm(combine: Callable[[list[Numbers]], Any]) -> Callable[..., pa.Array]:
    def apply(*values: Any) -> pa.Array:
        null, differences = _differences(values)
        with np.errstate(all="ignore"):
            result = np.broadcast_to(combine(differences), null.shape)
        return pa.array(result, DOUBLE, mask=null, from_pandas=False)

    return apply


def _euclid(differences: list[Numbers]) -> Any:
    total = differences[0] * differences[0]
    for difference in differences[1:]:
        total = total + difference * difference
    return np.sqrt(total)


def _city_block(differences: list[Numbers]) -> Any:
    total = np.abs(differences[0])
    for difference in differences[1:]:
        total = total + np.abs(difference)
    return total


def _largest(differences: list[Numbers]) -> Any:
    total = np.abs(differences[0])
    for difference in differences[1:]:
        total = np.maximum(total, np.abs(difference))
    return total


def _of_order(order: float | None, *values: Any) -> pa.Array:
    """Measured in parts of the largest difference, so that no power vanishes or overflows."""
    if order is None:
        return pa.nulls(next(len(v) for v in values if isinstance(v, pa.Array)), DOUBLE)
    if not order >= 1:
        raise DataError(f"the order of a distance must be at least 1, got {order}")
    if order == 1:
        return _norm(_city_block)(*values)
    if order == 2:
        return _norm(_euclid)(*values)

    def combine(differences: list[Numbers]) -> Any:
        unit = np.asarray(_largest(differences))
        if order == np.inf:
            return unit
        plain = np.isfinite(unit) & (unit > 0)
        scale = np.where(plain, unit, 1.0)
        total = sum((np.abs(d) / scale) ** order for d in differences)
        return np.where(plain, scale * total ** (1 / order), unit)

    return _norm(combine)(*values)


def _levenshtein(one: Any, other: Any, *most: int | None) -> pa.Array:
    rows = next(len(v) for v in (one, other) if isinstance(v, pa.Array))
    if None in most:
        return pa.nulls(rows, INT)
    bound = most[0] if most else None
    if bound is not None and bound < 0:
        raise DataError(f"the largest distance must be at least 0, got {bound}")
    texts = [v if isinstance(v, pa.Array) else repeated(v, rows) for v in (one, other)]
    null = pc.or_(pc.is_null(texts[0]), pc.is_null(texts[1])).to_numpy(zero_copy_only=False)
    found = edit_distances(texts[0], texts[1], bound)
    if bound is not None:
        found = np.where(found > bound, -1, found)
    return pa.array(found.astype(np.int32), INT, mask=null)


FUNCTIONS = (
    function(
        "distance(x1, .., xn, y1, .., yn)",
        _points(0),
        _norm(_euclid),
        "Distance of the points (x1, .., xn) and (y1, .., yn): the square root of the sum of the "
        "squares of the differences.",
        spark=None,
    ),
    function(
        "distance_l1(x1, .., xn, y1, .., yn)",
        _points(0),
        _norm(_city_block),
        "Sum of the absolute differences.",
        spark=None,
    ),
    function(
        "distance_max(x1, .., xn, y1, .., yn)",
        _points(0),
        _norm(_largest),
        "Largest absolute difference.",
        spark=None,
    ),
    function(
        "distance_lp(p, x1, .., xn, y1, .., yn)",
        _points(1),
        _of_order,
        "The p-th root of the sum of the p-th powers of the absolute differences; p, a constant, "
        "is at least 1.",
        spark=None,
        constants=(0,),
    ),
    function(
        "levenshtein(a, b [, most])",
        takes(TEXT, TEXT, COUNT, gives=INT, optional=1),
        _levenshtein,
        "Edit distance: the least number of characters to insert, delete or replace that turns "
        "one text into the other. Above `most`, a constant, it is -1.",
        spark=lambda f, a, b, *most: f.call_function("levenshtein", a, b, *most),
        constants=(2,),
    ),
)
