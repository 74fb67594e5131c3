"""Evaluation of expressions on Arrow columns.

`evaluate` returns one plain array of exactly the expression's type.  Inside, a constant stays a
scalar until it meets a column.  What may fail is evaluated only on the rows that need it: the
branches of CASE where their condition holds, the right side of AND and OR where the left one does
not decide, the later arguments of COALESCE where the earlier are null.  What cannot fail is
evaluated on all rows, which is faster than picking some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, InternalError
from penstock.expr.casts import cast_array, never_fails
from penstock.expr.functions import FUNCTIONS
from penstock.expr.nodes import Call, Case, Cast, Column, Expr, Literal, children, columns_of
from penstock.expr.own import is_own
from penstock.expr.own_calls import call_own
from penstock.expr.text_sizes import repeated
from penstock.expr.types import is_floating, type_name
from penstock.model import I64, Mask, to_mask

Value: TypeAlias = Any
"""An Arrow array, or an Arrow scalar that stands for a column of equal values."""


@dataclass(frozen=True)
class _Frame:
    """The input columns and the number of rows. Columns that nobody reads may be None."""

    columns: Sequence[pa.Array | None]
    rows: int

    def take(self, index: I64, readers: Iterable[Expr]) -> _Frame:
        """Return some of the rows, with the columns that ``readers`` need."""
        if len(index) == self.rows:
            return self
        needed = frozenset[int]().union(*(columns_of(expr) for expr in readers))
        indices = pa.array(index)
        columns = [
            column.take(indices) if i in needed and column is not None else None
            for i, column in enumerate(self.columns)
        ]
        return _Frame(columns, len(index))


def evaluate(expr: Expr, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return the values of the expression as one array of its type and of ``rows`` rows."""
    return _array(expr, _Frame(columns, rows))


def evaluate_mask(expr: Expr, columns: Sequence[pa.Array], rows: int) -> Mask:
    """Return where a condition is true; null counts as false."""
    return to_mask(evaluate(expr, columns, rows))


def cannot_fail(expr: Expr) -> bool:
    """Whether the expression has a value for every row, whatever the data."""
    own = True
    if isinstance(expr, Call):
        known = FUNCTIONS.get(expr.name)
        own = known is not None and (known.total or _is_floating_arithmetic(expr))
    elif isinstance(expr, Cast):
        own = never_fails(expr.arg.type, expr.type)
    return own and all(cannot_fail(child) for child in children(expr))


def _is_floating_arithmetic(call: Call) -> bool:
    """Sums, differences and products of floating numbers cannot fail, those of integers can."""
    return is_floating(call.type) and call.name in ("add", "subtract", "multiply", "negate", "abs")


def _array(expr: Expr, frame: _Frame) -> pa.Array:
    if frame.rows == 0:
        return pa.array([], expr.type)
    value = _value(expr, frame)
    if isinstance(value, pa.Scalar):
        value = repeated(value, frame.rows)
    if value.type != expr.type:
        raise InternalError(f"{expr} must give {expr.type}, got {value.type}")
    return value


@singledispatch
def _value(expr: Expr, frame: _Frame) -> Value:
    raise InternalError(f"an expression must be one of the five nodes, got {type(expr).__name__}")


@_value.register
def _column(expr: Column, frame: _Frame) -> Value:
    column = frame.columns[expr.index]
    if column is None:
        raise InternalError(f"column {expr.index} was not kept for {expr}")
    return column


@_value.register
def _literal(expr: Literal, frame: _Frame) -> Value:
    return pa.scalar(expr.value, expr.type)


@_value.register
def _cast(expr: Cast, frame: _Frame) -> Value:
    value = _value(expr.arg, frame)
    if isinstance(value, pa.Scalar):
        return cast_array(pa.repeat(value, 1), expr.type)[0]
    return cast_array(value, expr.type)


@_value.register
def _call(expr: Call, frame: _Frame) -> Value:
    lazy = _LAZY.get(expr.name)
    if lazy is not None and not all(cannot_fail(arg) for arg in expr.args[1:]):
        return lazy(expr, frame)
    if is_own(expr.name):
        return _own_call(expr, frame)
    function = FUNCTIONS.get(expr.name)
    if function is None:
        raise InternalError(f"the function '{expr.name}' is not in the table")
    args = [
        arg.value
        if position in function.constants and isinstance(arg, Literal)
        else _value(arg, frame)
        for position, arg in enumerate(expr.args)
    ]
    constant = not any(isinstance(arg, pa.Array) for arg in args)
    if constant:
        args = [pa.repeat(arg, 1) if isinstance(arg, pa.Scalar) else arg for arg in args]
    try:
        result = function.arrow(*args)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise DataError(
            f"{function.usage} must have a {type_name(expr.type)} value on every row, got: {error}"
            f"; {function.advice or 'use CASE to leave such rows out'}"
        ) from None
    return result[0] if constant else result


def _own_call(expr: Call, frame: _Frame) -> Value:
    """A function of the user's own; of constants it is computed once."""
    args = [_value(arg, frame) for arg in expr.args]
    constant = not any(isinstance(arg, pa.Array) for arg in args)
    rows = 1 if constant else frame.rows
    arrays = [repeated(arg, rows) if isinstance(arg, pa.Scalar) else arg for arg in args]
    result = call_own(expr.name, expr.type, arrays)
    return result[0] if constant else result


@_value.register
def _case(expr: Case, frame: _Frame) -> Value:
    if all(cannot_fail(child) for child in children(expr)):
        conditions = [_array(condition, frame) for condition, _ in expr.branches]
        values = [_value(value, frame) for _, value in expr.branches]
        return pc.case_when(
            pc.make_struct(*conditions, field_names=[str(i) for i in range(len(conditions))]),
            *values,
            _value(expr.otherwise, frame),
        )
    waiting = np.arange(frame.rows)
    pieces: list[tuple[I64, pa.Array]] = []
    for condition, value in expr.branches:
        holds = to_mask(_array(condition, frame.take(waiting, (condition,))))
        hit = waiting[holds]
        pieces.append((hit, _array(value, frame.take(hit, (value,)))))
        waiting = waiting[~holds]
    pieces.append((waiting, _array(expr.otherwise, frame.take(waiting, (expr.otherwise,)))))
    return _assemble(pieces)


def _assemble(pieces: Sequence[tuple[I64, pa.Array]]) -> pa.Array:
    """Put values back to their rows; the pieces hold each row once."""
    kept = [(index, values) for index, values in pieces if len(index)]
    if len(kept) == 1:
        return kept[0][1]
    order = np.concatenate([index for index, _ in kept])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return pa.concat_arrays([values for _, values in kept]).take(pa.array(place))


def _decided_by(truth: bool) -> Callable[[Call, _Frame], Value]:
    """AND is decided by a false left side, OR by a true one."""
    combine = pc.or_kleene if truth else pc.and_kleene

    def lazy(expr: Call, frame: _Frame) -> Value:
        left, right = expr.args
        first = _array(left, frame)
        known = pc.fill_null(first, not truth) if truth else pc.invert(pc.fill_null(first, True))
        decided = to_mask(known)
        open_rows = np.flatnonzero(~decided)
        second = _array(right, frame.take(open_rows, (right,)))
        done_rows = np.flatnonzero(decided)
        return _assemble(
            [
                (done_rows, first.take(pa.array(done_rows))),
                (open_rows, combine(first.take(pa.array(open_rows)), second)),
            ]
        )

    return lazy


def _first_valid(expr: Call, frame: _Frame) -> Value:
    waiting = np.arange(frame.rows)
    pieces: list[tuple[I64, pa.Array]] = []
    for arg in expr.args:
        values = _array(arg, frame.take(waiting, (arg,)))
        present = pc.is_valid(values).to_numpy(zero_copy_only=False)
        pieces.append((waiting[present], values.filter(pa.array(present))))
        waiting = waiting[~present]
    pieces.append((waiting, pa.nulls(len(waiting), expr.type)))
    return _assemble(pieces)


_LAZY: dict[str, Callable[[Call, _Frame], Value]] = {
    "and": _decided_by(False),
    "or": _decided_by(True),
    "coalesce": _first_valid,
}
