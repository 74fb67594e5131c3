"""Push-down: what a plan needs of the streams that Spark parses itself, as native expressions.

Before rows cross into Python, columns that nobody reads become null and rows that no query wants
lose all their values but the time.  They are not dropped: late is decided by the times of *all*
rows (semantics, section 5), so a row that is filtered still moves the heartbeat.  A flag tells
which rows are wanted.  Expressions are built node by node from the bound tree.
"""

from __future__ import annotations

from functools import reduce

import pyspark.sql.functions as F  # noqa: N812
from pyspark.sql import Column, DataFrame

from penstock.catalog import StreamDef
from penstock.expr.nodes import Expr, columns_of
from penstock.physical.plan import PhysicalPlan
from penstock.sources.readers import CORRUPT
from penstock.spark.columns import is_same_in_spark, to_column
from penstock.spark.sources import native_column, spark_schema

WANTED = "_wanted"
"""The field of a native struct that says whether any query wants the row."""


def push_down(frame: DataFrame, plan: PhysicalPlan, streams: dict[str, StreamDef]) -> DataFrame:
    """Narrow the native columns of a batch to what the plan needs."""
    for stream in streams.values():
        name = native_column(stream.name)
        if name in frame.columns and stream.late is None:
            frame = frame.withColumn(name, _narrowed(F.col(name), plan, stream))
    return frame


def needs_of(plan: PhysicalPlan, stream: StreamDef) -> tuple[frozenset[int], list[Expr] | None]:
    """Return the columns that a plan reads of a stream, and its conditions (None: all rows).

    Any row may be a punctuation, so where there are some, all rows are read.
    """
    columns: frozenset[int] = frozenset()
    predicates: list[Expr] | None = None if stream.timing.punctuations else []
    for punctuation in stream.timing.punctuations:
        columns |= columns_of(punctuation.condition) | frozenset(punctuation.on)
        columns |= frozenset() if punctuation.time is None else columns_of(punctuation.time)
    for at in plan.sources("stream"):
        source = plan.nodes[at].source
        if source is None or source.name != stream.name:
            continue
        columns |= frozenset(source.columns)
        if source.predicate is None:
            predicates = None
        else:
            columns |= columns_of(source.predicate)
            if predicates is not None:
                predicates.append(source.predicate)
    return columns, predicates


def _narrowed(native: Column, plan: PhysicalPlan, stream: StreamDef) -> Column:
    needed, predicates = needs_of(plan, stream)
    if predicates is not None and not all(is_same_in_spark(p) for p in predicates):
        predicates = None
    fields = [native.getField(f.name) for f in stream.schema]
    wanted = F.lit(True)
    if predicates is not None:
        each = [F.coalesce(to_column(p, fields), F.lit(False)) for p in predicates]
        wanted = reduce(lambda a, b: a | b, each, F.lit(False))
    values = []
    for at, (field, kind) in enumerate(zip(fields, spark_schema(stream.schema), strict=True)):
        if at == stream.time:
            value = field
        elif at in needed:
            value = field if predicates is None else F.when(wanted, field)
        else:
            value = F.lit(None).cast(kind.dataType)
        values.append(value.alias(kind.name))
    corrupt = native.getField(CORRUPT).alias(CORRUPT)
    return F.when(native.isNotNull(), F.struct(*values, corrupt, wanted.alias(WANTED)))
