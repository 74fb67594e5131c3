"""Functions of the user's own in CQL: CREATE FUNCTION, and calls of what it declares.

CREATE FUNCTION imports the module, so that what is wrong with it is told before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.cql.binding.script import Script
from penstock.cql.grammar.syntax import CreateSyntax, Name, Scalar, span_of
from penstock.errors import ConfigError, QueryError
from penstock.expr.aggregates import is_aggregate
from penstock.expr.frames import ORDINALS, PICKS
from penstock.expr.functions import coerce, is_function, resolve_case
from penstock.expr.nodes import AggregateCall, Call, Column, Expr, Literal
from penstock.expr.own import (
    FORMS,
    FunctionDef,
    adds_up_exactly,
    declare,
    is_aggregate_class,
    state_columns,
)
from penstock.expr.types import (
    BINARY,
    NULL,
    STRING,
    common_type,
    is_decimal,
    is_numeric,
    is_temporal,
    parse_type,
    type_name,
)
from penstock.expr.types import type_name as word
from penstock.model import Field, Schema
from penstock.nested.shapes import is_nested

_WINDOWS = (*ORDINALS, *PICKS, "lag", "lead", "ntile", "grouping", "grouping_id")


def bind_function(source: Script, syntax: CreateSyntax, sql: str) -> FunctionDef:
    """Return what CREATE FUNCTION declares; its module is imported."""
    using: Name | None = syntax.clauses.get("USING")
    if using is None:
        source.fail(
            "a function must say where its Python is: USING 'module:name'", syntax.name.span
        )
    fields: list[Field] = []
    for column in syntax.columns:
        with source.at(column.type.span):
            fields.append(Field(column.name.text, parse_type(column.type.text)))
    returned: Name = syntax.clauses["RETURNS"]
    with source.at(returned.span):
        returns = parse_type(returned.text)
    takes: Name | None = syntax.clauses.get("TAKES")
    with source.at(syntax.name.span):
        check_function_name(syntax.name.text)
    place = using.text, "" if takes is None else takes.text
    try:
        with source.at((takes or using).span):
            return declared_function(syntax.name.text, Schema(tuple(fields)), returns, place, sql)
    except ConfigError as error:
        source.fail(str(error), using.span)


def check_function_name(name: str) -> None:
    """Refuse names that cannot be typed as a call, or mean something already."""
    if not name.isidentifier():
        raise QueryError(
            f"the name of a function must be a word of letters, digits and _, got '{name}'"
        )
    key = name.lower()
    if is_function(key) or is_aggregate(key) or key in _WINDOWS:
        raise QueryError(
            f"the name of a function must be free, but '{name}' is a function of Penstock; choose "
            f"another name"
        )


def declared_function(
    name: str,
    parameters: Schema,
    returns: pa.DataType,
    using: tuple[str, str],
    sql: str = "",
) -> FunctionDef:
    """Return a function of the user's own, after its module was imported.

    ``using`` is its place, and the form of its arrays ("": the usual one).
    """
    place, form = using[0], using[1].lower()
    if form and form not in FORMS:
        raise QueryError(f"a function TAKES {', '.join(FORMS).upper()}, got {using[1]}")
    if not parameters.names:
        raise QueryError(
            f"a function must have a parameter, whose rows it is computed for, but {name} has "
            f"none; a constant can stand in the query"
        )
    for kind in (*parameters.types, returns):
        if is_nested(kind):
            raise QueryError(
                f"a function of your own takes and gives numbers, texts, times and BOOLEAN, got "
                f"{type_name(kind)}; declare STRING, and to_json and from_json in the query"
            )
        if is_decimal(kind) or kind == BINARY:
            raise QueryError(
                f"a function of your own takes and gives numbers, texts, times and BOOLEAN, got "
                f"{type_name(kind)}; declare {'STRING' if kind == BINARY else 'DOUBLE or STRING'} "
                f"and CAST in the query"
            )
    made = declare(place)
    if not is_aggregate_class(made):
        return FunctionDef(name, parameters, returns, place, form or "arrow", sql=sql)
    if form not in ("", "numpy"):
        raise QueryError(
            f"an aggregate takes arrays of NumPy, got TAKES {form.upper()}; leave TAKES out"
        )
    columns = state_columns(made, place)
    kept = columns if adds_up_exactly(made, columns) else ()
    state = Schema(tuple(Field(c.name, c.type) for c in kept))
    return FunctionDef(name, parameters, returns, place, "numpy", True, state, sql)


def check_own(source: Script, own: FunctionDef, node: Scalar) -> None:
    """Refuse what cannot stand with a function of the user's own."""
    span = span_of(node)
    if "over" in node.meta:
        source.refuse(
            f"OVER is not known with functions of your own, got {own.name}; put a window such as "
            f"[PARTITION BY c ROWS 10] after the stream and use it with GROUP BY",
            span,
        )
    if node.meta["distinct"] and own.aggregate:
        source.refuse(
            f"DISTINCT is not known in aggregates of your own, got {own.name}; SELECT DISTINCT in "
            f"a sub-query in FROM",
            span,
        )
    if node.meta["star"] or ("filter" in node.meta and not own.aggregate) or node.meta["distinct"]:
        source.fail(
            f"DISTINCT, '*' and FILTER belong to aggregates, and {own.usage} takes its arguments",
            span,
        )


def own_call(own: FunctionDef, args: Sequence[Expr]) -> Expr:
    """Return the typed call of a scalar function."""
    return Call(own.call_name, _coerced(own, args), own.returns)


def own_aggregate(
    own: FunctionDef, args: Sequence[Expr], where: Expr | None = None
) -> AggregateCall:
    """Return the typed call of an aggregate, of the rows in which ``where`` holds."""
    first, *more = _coerced(own, args)
    if where is not None:
        first = resolve_case([(where, first)])
    state = tuple(Column(i, f.type, f.name) for i, f in enumerate(own.state))
    return AggregateCall(own.call_name, first, own.returns, tuple(more), state=state)


def _coerced(own: FunctionDef, args: Sequence[Expr]) -> tuple[Expr, ...]:
    if len(args) != len(own.parameters):
        count = len(own.parameters)
        wanted = "1 argument" if count == 1 else f"{count} arguments"
        raise QueryError(f"the function {own.usage} must get {wanted}, got {len(args)}")
    return tuple(
        _fitting(own, i, arg, f.type)
        for i, (arg, f) in enumerate(zip(args, own.parameters, strict=True))
    )


def _fitting(own: FunctionDef, place: int, arg: Expr, target: pa.DataType) -> Expr:
    """Return an argument as its parameter's type, into which it must fit without loss."""
    constant = isinstance(arg, Literal) and (
        (is_numeric(arg.type) and is_numeric(target))
        or (arg.type == STRING and is_temporal(target))
    )
    if arg.type in (target, NULL) or constant or common_type(arg.type, target) == target:
        return coerce(arg, target)
    raise QueryError(
        f"the function {own.usage} must get {word(target)} as argument {place + 1}, got "
        f"{word(arg.type)}; use CAST"
    )


__all__ = ["bind_function", "check_own", "declared_function", "own_aggregate", "own_call"]
