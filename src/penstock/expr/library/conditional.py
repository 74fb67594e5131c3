"""Comparison, logic and null handling.

Comparison follows Spark: NaN equals NaN and is greater than every number; -0.0 equals 0.0; a null
operand gives null.  Logic is three-valued (Kleene).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.expr.casts import check_cast, try_cast_array
from penstock.expr.nested_types import has_map
from penstock.expr.nodes import Expr, Literal
from penstock.expr.signatures import (
    ANY,
    REAL,
    TRUTH,
    Mismatch,
    Types,
    alike,
    function,
    infix,
    takes,
)
from penstock.expr.types import (
    BINARY,
    BOOLEAN,
    NULL,
    STRING,
    is_floating,
    is_numeric,
    is_temporal,
    parse_type,
)
from penstock.nested.comparable import comparable
from penstock.nested.shapes import is_nested


def _compare(plain: Any, with_nan: Any) -> Any:
    """Combine Arrow's comparison, false for NaN, with the cases in which NaN makes it true."""

    def compare(a: Any, b: Any) -> Any:
        if is_nested(a.type):
            return plain(_as_bytes(a), _as_bytes(b))
        result = plain(a, b)
        if not is_floating(a.type):
            return result
        return pc.or_(result, with_nan(pc.is_nan(a), pc.is_nan(b)))

    return compare


def _as_bytes(value: Any) -> Any:
    """Return nested values as bytes in their order."""
    return comparable(value) if isinstance(value, pa.Array) else comparable(pa.repeat(value, 1))[0]


equal = _compare(pc.equal, pc.and_)
_less = _compare(pc.less, lambda a, b: pc.and_not(b, a))
_less_equal = _compare(pc.less_equal, lambda a, b: b)
_greater = _compare(pc.greater, lambda a, b: pc.and_not(a, b))
_greater_equal = _compare(pc.greater_equal, lambda a, b: a)


def _not_equal(a: Any, b: Any) -> Any:
    return pc.invert(equal(a, b))


def _equal_null_safe(a: Any, b: Any) -> Any:
    both_null = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.fill_null(equal(a, b), False), both_null)


def _overlaps(start: Any, end: Any, other_start: Any, other_end: Any) -> Any:
    """Half-open intervals, their ends in either order; equal starts always overlap, as in SQL."""
    low, high = _ordered(start, end)
    other_low, other_high = _ordered(other_start, other_end)
    inside = pc.and_(_less(low, other_high), _less(other_low, high))
    return pc.or_(inside, equal(low, other_low))


def _ordered(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the smaller and the greater one; null where one of them is null."""
    swapped = _less(b, a)
    return pc.if_else(swapped, b, a), pc.if_else(swapped, a, b)


def _is_in(value: Any, *listed: Any) -> Any:
    """Null where the value is null, or where it is not listed and the list has a null."""
    chosen = [item for item in listed if item is not None]
    if is_nested(value.type):  # others than nulls are compared one by one
        return pa.nulls(len(value), BOOLEAN)
    found = pc.is_in(value, value_set=pa.array(chosen, value.type))
    unknown = pc.is_null(value)
    if len(chosen) < len(listed):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, BOOLEAN), found)


def _nullif(a: Any, b: Any) -> Any:
    return pc.if_else(pc.fill_null(equal(a, b), False), pa.scalar(None, a.type), a)


def _greatest(*values: Any) -> Any:
    result = pc.max_element_wise(*values, skip_nulls=True)
    if not is_floating(result.type):
        return result
    some_nan = pc.fill_null(pc.is_nan(values[0]), False)
    for value in values[1:]:
        some_nan = pc.or_(some_nan, pc.fill_null(pc.is_nan(value), False))
    return pc.if_else(some_nan, pa.scalar(float("nan"), result.type), result)


def _orderable(type_: pa.DataType) -> bool:
    return is_numeric(type_) or is_temporal(type_) or type_ in (STRING, BINARY)


def _try_cast_rule(args: Sequence[Expr]) -> tuple[Types, pa.DataType]:
    name = args[1] if len(args) == 2 else None
    if not isinstance(name, Literal) or name.type != STRING:
        raise Mismatch("a value and the name of a type, TRY_CAST(x AS type)")
    target = parse_type(str(name.value))
    check_cast(args[0].type, target)
    source = target if args[0].type == NULL else args[0].type
    return (source, STRING), target


def _try_cast(value: Any, name: str) -> Any:
    return try_cast_array(value, parse_type(name))


def _comparable(type_: pa.DataType) -> bool:
    return not has_map(type_)


def _no_map(args: Sequence[Expr]) -> str:
    if not any(has_map(arg.type) for arg in args):
        return ""
    return " that can be compared, which a MAP is not; compare map_keys(x) and map_values(x)"


_COMPARABLE = alike(
    "two values of one type (use CAST)", _comparable, gives=BOOLEAN, instead=_no_map
)
_TRUTHS = takes(TRUTH, TRUTH, gives=BOOLEAN)
_EVERY = takes(ANY, gives=BOOLEAN)

FUNCTIONS = (
    infix("eq", "a = b", _COMPARABLE, (equal, operator.eq), "Equal."),
    infix("ne", "a <> b", _COMPARABLE, (_not_equal, operator.ne), "Not equal."),
    infix("lt", "a < b", _COMPARABLE, (_less, operator.lt), "Less."),
    infix("le", "a <= b", _COMPARABLE, (_less_equal, operator.le), "Less or equal."),
    infix("gt", "a > b", _COMPARABLE, (_greater, operator.gt), "Greater."),
    infix("ge", "a >= b", _COMPARABLE, (_greater_equal, operator.ge), "Greater or equal."),
    infix(
        "eq_null_safe",
        "a <=> b",
        _COMPARABLE,
        (_equal_null_safe, lambda a, b: a.eqNullSafe(b)),
        "Equal, where two nulls are equal; never null. Also `IS NOT DISTINCT FROM`.",
        "equal_null",
    ),
    infix(
        "and",
        "a AND b",
        _TRUTHS,
        (pc.and_kleene, operator.and_),
        "Both hold. The right side is evaluated only where the left one is not false.",
    ),
    infix(
        "or",
        "a OR b",
        _TRUTHS,
        (pc.or_kleene, operator.or_),
        "At least one holds. The right side is evaluated only where the left one is not true.",
    ),
    function(
        "(a, b) OVERLAPS (c, d)",
        alike("four values of one type", _orderable, gives=BOOLEAN, least=4, most=4),
        _overlaps,
        "Whether two half-open intervals have an instant or a number in common. The ends of each "
        "may stand in either order; intervals with the same start overlap, even empty ones.",
        name="overlaps",
        spark=None,
    ),
    infix("not", "NOT a", takes(TRUTH, gives=BOOLEAN), (pc.invert, operator.invert), "Negation."),
    infix(
        "is_null",
        "a IS NULL",
        _EVERY,
        (pc.is_null, operator.methodcaller("isNull")),
        "Whether the value is missing.",
        "isnull",
    ),
    infix(
        "is_not_null",
        "a IS NOT NULL",
        _EVERY,
        (pc.is_valid, operator.methodcaller("isNotNull")),
        "Whether the value is present.",
        "isnotnull",
    ),
    function(
        "isnan(x)",
        takes(REAL, gives=BOOLEAN),
        lambda x: pc.fill_null(pc.is_nan(x), False),
        "Whether a number is NaN; false for null.",
        "isnan",
        name="is_nan",
        spark=lambda f, x: f.isnan(x),
    ),
    infix(
        "in",
        "x IN (a, b, ..)",
        alike("values of one type", _comparable, gives=BOOLEAN, most=None, instead=_no_map),
        (_is_in, lambda value, *listed: value.isin(*listed)),
        "Whether the value is one of the list.",
        constants=range(1, 1 << 31),
    ),
    function(
        "coalesce(a, b, ..)",
        alike("values of one type", least=1, most=None, of_null=pa.null()),
        pc.coalesce,
        "The first value that is not null. Later ones are evaluated only where needed.",
        "nvl",
        "ifnull",
    ),
    function(
        "TRY_CAST(x AS type)",
        _try_cast_rule,
        _try_cast,
        "The value converted as CAST does; null where it does not fit.",
        name="try_cast",
        spark=None,
        constants=(1,),
    ),
    function(
        "nullif(a, b)",
        alike("two values of one type", _comparable, instead=_no_map),
        _nullif,
        "Null where both are equal, else the first.",
    ),
    function(
        "greatest(a, b, ..)",
        alike("numbers, strings or times", _orderable, most=None),
        _greatest,
        "The greatest value; nulls are skipped.",
    ),
    function(
        "least(a, b, ..)",
        alike("numbers, strings or times", _orderable, most=None),
        lambda *values: pc.min_element_wise(*values, skip_nulls=True),
        "The least value; nulls are skipped.",
    ),
)
