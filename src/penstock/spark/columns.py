"""Expressions as Spark columns, built node by node.

Nothing here is ever text that Spark parses: literals are passed as values, functions come from
the table of `penstock.expr.functions` and from nowhere else.  The session must be in ANSI mode with
UTC as its time zone, and must not compute the right side of AND and OR in advance
(`penstock.spark.engine`); then a column has the very values that `penstock.expr.arrow` computes.
Where the two cannot agree, `is_same_in_spark` is false and the expression stays with Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce, singledispatch

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as f

from penstock.errors import InternalError
from penstock.expr.casts import GRAMMAR, same_in_spark, unreadable
from penstock.expr.functions import FUNCTIONS
from penstock.expr.nodes import Call, Case, Cast, Column, Expr, Literal, walk
from penstock.expr.types import BIGINT, BINARY, DATE, DOUBLE, FLOAT, INT, STRING, is_decimal
from penstock.model import TIMESTAMP
from penstock.spark.types import spark_type

Columns = Sequence[SparkColumn]


def is_same_in_spark(expr: Expr) -> bool:
    """Whether Spark computes the very same values, so that the expression may be pushed down."""
    for part in walk(expr):
        if is_decimal(part.type) or part.type == BINARY:
            return False
        known = FUNCTIONS.get(part.name) if isinstance(part, Call) else None
        if isinstance(part, Call) and (known is None or known.spark is None):
            return False  # functions of the user's own are in no table
        if isinstance(part, Cast) and not same_in_spark(part.arg.type, part.type):
            return False
    return True


def to_column(expr: Expr, columns: Columns) -> SparkColumn:
    """Return the expression over the given input columns; ask `is_same_in_spark` first."""
    return _column(expr, columns)


@singledispatch
def _column(expr: Expr, columns: Columns) -> SparkColumn:
    raise InternalError(f"an expression must be one of the five nodes, got {type(expr).__name__}")


@_column.register
def _input(expr: Column, columns: Columns) -> SparkColumn:
    return columns[expr.index]


@_column.register
def _literal(expr: Literal, columns: Columns) -> SparkColumn:
    if expr.value is None:
        return f.lit(None).cast(spark_type(expr.type))
    if expr.type == TIMESTAMP:
        return f.timestamp_micros(f.lit(expr.value).cast(spark_type(BIGINT)))
    if expr.type == DATE:
        return f.date_from_unix_date(f.lit(expr.value).cast(spark_type(INT)))
    return f.lit(expr.value).cast(spark_type(expr.type))


@_column.register
def _cast(expr: Cast, columns: Columns) -> SparkColumn:
    source, target = expr.arg.type, expr.type
    if not same_in_spark(source, target):
        raise InternalError(f"Spark must not be asked to convert {source} to {target}")
    value = _column(expr.arg, columns)
    if source == STRING and target in GRAMMAR:
        return _read(value, target)
    return value.cast(spark_type(target))


def _read(text: SparkColumn, target: pa.DataType) -> SparkColumn:
    """Read text by our grammar only: Spark's own is wider."""
    # A FLOAT is the DOUBLE rounded once more, on both sides.
    through = spark_type(DOUBLE if target == FLOAT else target)
    before, after = unreadable("\0", target).split(repr("\0"))
    message = f.concat(f.lit(before + "'"), text, f.lit("'" + after))
    refused = f.raise_error(message).cast(through)
    readable = text.isNull() | text.rlike(GRAMMAR[target])
    return f.when(readable, text.cast(through)).otherwise(refused).cast(spark_type(target))


@_column.register
def _call(expr: Call, columns: Columns) -> SparkColumn:
    function = FUNCTIONS.get(expr.name)
    if function is None or function.spark is None:
        raise InternalError(f"the function '{expr.name}' is not one that Spark may evaluate")
    result: SparkColumn = function.spark(f, *(_column(arg, columns) for arg in expr.args))
    return result


@_column.register
def _case(expr: Case, columns: Columns) -> SparkColumn:
    pairs = [(_column(c, columns), _column(v, columns)) for c, v in expr.branches]
    (condition, value), *others = pairs
    chain = reduce(lambda done, pair: done.when(*pair), others, f.when(condition, value))
    return chain.otherwise(_column(expr.otherwise, columns))
