"""PRIORITY of a stream, and the pseudo-column `_priority` that a query reads it by.

`_priority` is no column of its own: it stands for the PRIORITY of the stream as an expression over
the stream's columns, so that nothing behind the binder knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.catalog import Catalog, StreamDef, TableDef
from penstock.cql.binding.scope import PRIORITY, Priority, Scope
from penstock.expr.arrow import evaluate
from penstock.expr.functions import resolve_call, resolve_case, resolve_cast
from penstock.expr.nodes import Case, Cast, Column, Expr, Literal, columns_of, shift
from penstock.expr.types import BIGINT, BOOLEAN, INT, STRING
from penstock.model import Schema

HIGHEST = 255
"""The greatest priority that an element can have; 0 is normal."""

_NORMAL = Literal(0, INT)


def priority_of(stream: StreamDef) -> Expr:
    """Return the priority of a stream's rows, an INT over its columns; null counts as 0.

    What rows bring below 0 counts as 0, and above 255 as 255.
    """
    if stream.priority is None:
        return _NORMAL
    number = stream.priority
    if _is_bounded(number):
        return resolve_call("coalesce", [resolve_cast(number, INT), _NORMAL])
    kind = BIGINT if number.type == BIGINT else INT
    number = resolve_call("greatest", [resolve_cast(number, kind), Literal(0, kind)])
    number = resolve_call("least", [number, Literal(HIGHEST, kind)])
    if kind == BIGINT:  # of a number in the range TRY_CAST is no null, and unlike CAST it may move
        number = resolve_call("try_cast", [number, Literal("INT", STRING)])
    return resolve_call("coalesce", [number, _NORMAL])


def item_scope(
    qualifier: str, schema: Schema, offset: int, owner: StreamDef | TableDef | None, filled: bool
) -> Scope:
    """Return the scope of a FROM item: its columns from ``offset`` on, and its `_priority`.

    ``owner`` is what was declared, None for a query.  ``filled``: an outer join may fill its
    columns with nulls, and then its priority is null as well.
    """
    given = None
    if isinstance(owner, StreamDef):
        given = priority_of(owner)
        if filled:
            time = Column(owner.time, owner.schema[owner.time].type)
            given = resolve_case([(resolve_call("is_not_null", [time]), given)])
    value = own_priority(schema, given)
    if value is not None:
        value = shift(value, {i: offset + i for i in range(len(schema))})
    priority = Priority(qualifier, value, offset, isinstance(owner, TableDef))
    return Scope.of(qualifier, schema, offset).ranked(priority)


def declared_priority(catalog: Catalog, name: str) -> Expr | None:
    """Return what `_priority` means in a relation by its name; None if it is no stream."""
    stream = catalog.streams.get(name.lower())
    return None if stream is None else own_priority(stream.schema, priority_of(stream))


def own_priority(schema: Schema, priority: Expr | None) -> Expr | None:
    """Return the column `_priority` of a schema if it has one, else the ``priority`` given."""
    found = [(i, f) for i, f in enumerate(schema) if f.name.lower() == PRIORITY]
    return Column(found[0][0], found[0][1].type, found[0][1].name) if found else priority


def _is_bounded(priority: Expr) -> bool:
    """Whether nothing that rows bring can lead out of the range; constants were checked."""
    match priority:
        case Case(branches, otherwise):
            return all(_is_bounded(value) for _, value in branches) and _is_bounded(otherwise)
        case Cast(arg) if columns_of(arg):
            return _is_bounded(arg)
    return priority.type == BOOLEAN or not columns_of(priority)


def constants(priority: Expr) -> Iterator[int]:
    """Yield the constants that a PRIORITY gives, alone or in a branch of CASE."""
    match priority:
        case Case(branches, otherwise):
            for _, value in branches:
                yield from constants(value)
            yield from constants(otherwise)
        case Cast(arg) if columns_of(arg):
            yield from constants(arg)
        case _ if not columns_of(priority):
            value = evaluate(priority, [], 1)[0].as_py()
            yield int(value or 0)
