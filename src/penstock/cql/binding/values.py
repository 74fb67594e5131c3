"""VALUES: rows of constants, as a table in FROM and as what INSERT adds to a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.algebra import TableScan
from penstock.catalog import StreamDef, written_name
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import find_column
from penstock.cql.grammar.syntax import InsertSyntax, ValuesSyntax, span_of
from penstock.errors import DataError
from penstock.expr.arrow import evaluate
from penstock.expr.functions import coerce
from penstock.expr.nodes import Expr, Literal
from penstock.expr.types import NULL, STRING, common_type, is_numeric, is_temporal, type_name
from penstock.model import Field, Schema, one_array


def bind_values(source: Script, values: ValuesSyntax) -> TableScan:
    """Return rows of constants as a table with the columns ``col1``, ``col2`` and so on."""
    rows = _bound(source, values)
    fields, columns = [], []
    for at in range(len(rows[0])):
        kind = rows[0][at].type
        for row, node in zip(rows[1:], values.rows[1:], strict=True):
            both = common_type(kind, row[at].type)
            if both is None:
                source.fail(
                    f"column {at + 1} of VALUES must have one type, got {type_name(kind)} and "
                    f"{type_name(row[at].type)}; CAST one of them",
                    span_of(node[at]),
                )
            kind = both
        if kind == NULL:
            source.fail(
                f"column {at + 1} of VALUES needs a type, such as CAST(NULL AS INT)",
                span_of(values.rows[0][at]),
            )
        fields.append(Field(f"col{at + 1}", kind))
        places = [span_of(row[at]) for row in values.rows]
        columns.append(_column(source, [row[at] for row in rows], kind, places))
    schema = Schema(tuple(fields))
    plain = tuple(zip(*(_plain(column) for column in columns), strict=True))
    return TableScan(written_name(schema, plain), schema, rows=plain)


def bind_insert(source: Script, stream: StreamDef, syntax: InsertSyntax) -> pa.Table:
    """Return the rows of INSERT with all columns of a stream; those not named are null."""
    schema, owner = stream.schema, f"stream {stream.name}"
    places = [find_column(source, schema, name, owner) for name in syntax.columns]
    for name, at in zip(syntax.columns, places, strict=True):
        if places.count(at) > 1:
            source.fail(f"column '{name.text}' can be given once, got it twice", name.span)
    places = places or list(range(len(schema)))
    rows = _bound(source, syntax.values)
    if len(rows[0]) != len(places):
        source.fail(
            f"a row must have {len(places)} values, one for each of "
            f"{', '.join(schema[at].name for at in places)}, got {len(rows[0])}",
            syntax.values.span,
        )
    arrays = [pa.nulls(len(rows), field.type) for field in schema]
    for number, at in enumerate(places):
        field = schema[at]
        given = [row[number] for row in rows]
        spans = [span_of(row[number]) for row in syntax.values.rows]
        for expr, span in zip(given, spans, strict=True):
            if not _fits(expr, field.type):
                source.fail(
                    f"column {field.name} must be {type_name(field.type)}, got "
                    f"{type_name(expr.type)}; CAST it",
                    span,
                )
        arrays[at] = _column(source, given, field.type, spans)
    return pa.Table.from_arrays(arrays, names=list(schema.names))


def _bound(source: Script, values: ValuesSyntax) -> list[list[Expr]]:
    """Return the expressions of all rows, which have one length and read no columns."""
    binder = ScalarBinder(source, Scope(()), "VALUES")
    for row in values.rows:
        if len(row) != len(values.rows[0]):
            source.fail(
                f"all rows of VALUES must have the same number of values, got "
                f"{len(values.rows[0])} and {len(row)}",
                span_of(row[0]),
            )
    return [[binder.bind(node) for node in row] for row in values.rows]


def _fits(expr: Expr, to: pa.DataType) -> bool:
    """Whether a value may stand for a column: of its type, any number for one, text for a time."""
    if expr.type in (to, NULL) or (is_numeric(expr.type) and is_numeric(to)):
        return True
    return is_temporal(to) and (
        is_temporal(expr.type) or (expr.type == STRING and isinstance(expr, Literal))
    )


def _column(
    source: Script, given: Sequence[Expr], kind: pa.DataType, places: Sequence[Any]
) -> pa.Array:
    """Return the values of expressions as one column of a type."""
    arrays = []
    for expr, place in zip(given, places, strict=True):
        try:
            with source.at(place):
                arrays.append(one_array(evaluate(coerce(expr, kind), [], 1)))
        except DataError as error:
            source.fail(str(error), place)
    return pa.concat_arrays(arrays)


def _plain(column: pa.Array) -> list[Any]:
    """Return values as plain Python objects; times and dates are counts."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return found
