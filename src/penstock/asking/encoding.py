"""Plans and declarations as JSON, and back: what a checkpoint tells whoever only reads it.

A plan is data, so its form follows from its classes: a node is ``{"is": class, field: value, ..}``,
a type ``{"type": name}``, a tuple a list.  Nothing is executed when it is read: the classes are
those of `_CLASSES` and no others.  Of the options of a table, secrets are masked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.catalog import Catalog, StreamDef, TableDef, ViewDef
from penstock.errors import QueryError, StateError
from penstock.expr import nodes as expr
from penstock.expr.frames import Extent, Frame, OverCall, RankCall
from penstock.expr.own import FunctionDef
from penstock.expr.types import NULL, TYPES, parse_type, type_name
from penstock.masking import shown_option
from penstock.model import Field, Schema
from penstock.options import Secret
from penstock.timing import Punctuation, TimeRules
from penstock.windows import Bounds, WindowSpec

_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *algebra.NODES,
        algebra.SortKey,
        expr.Column,
        expr.Literal,
        expr.Cast,
        expr.Call,
        expr.Case,
        expr.AggregateCall,
        Frame,
        OverCall,
        Extent,
        RankCall,
        Field,
        Schema,
        Bounds,
        WindowSpec,
        TimeRules,
        Punctuation,
        StreamDef,
        TableDef,
        ViewDef,
        FunctionDef,
    )
}
_TYPES = {str(kind): kind for kind in (*TYPES, NULL)}


def encode(value: Any) -> Any:
    """Return a plan, a definition or a part of one as JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return {"secret": str(value)} if isinstance(value, Secret) else value
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"bytes": value.hex()}
        case pa.DataType():
            return {"type": str(value) if str(value) in _TYPES else type_name(value)}
        case tuple() | list():
            return [encode(v) for v in value]
        case StreamDef():
            value = replace(value, options={}, sql="")
        case TableDef():
            shown = {k: _option(value.format, k, v) for k, v in value.options.items()}
            value = replace(value, options=shown, sql="")
    if isinstance(value, Mapping):
        return {"map": {str(k): encode(v) for k, v in value.items()}}
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        own = {f.name: encode(getattr(value, f.name)) for f in fields(value)}
        return {"is": type(value).__name__, **own}
    raise TypeError(f"{type(value).__name__} is not part of a plan")


def decode(value: Any) -> Any:
    """The inverse of `encode`; lists become tuples."""
    match value:
        case list():
            return tuple(decode(v) for v in value)
        case {"is": name, **own}:
            given = {str(k): decode(v) for k, v in own.items()}
            try:
                return _known(_CLASSES, name)(**given)
            except TypeError as error:
                raise StateError(
                    f"a {name} of the checkpoint must be one of this version of Penstock, but: "
                    f"{error}"
                ) from None
        case {"type": name}:
            return _type(name)
        case {"decimal": text}:
            return Decimal(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"secret": text}:
            return Secret(text)
        case {"map": entries}:
            return {k: decode(v) for k, v in entries.items()}
    return value


def _type(name: str) -> pa.DataType:
    """Return a type by its Arrow name or, if it has parameters, by its name in SQL."""
    if name in _TYPES:
        return _TYPES[name]
    try:
        return parse_type(name)
    except QueryError:
        return _known(_TYPES, name)


def _option(format: str, name: str, value: str) -> str:
    """Return an option as a file may hold it: without secrets, but with references to them."""
    shown = shown_option(format, name, value)
    return Secret(shown) if isinstance(value, Secret) and shown == value else shown


def _known(found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        raise StateError(
            f"the checkpoint must hold plans of this version of Penstock, got '{name}'"
        )
    return found[name]


@dataclass(frozen=True)
class Declared:
    """What a question may name: definitions, and queries with their plans and modes."""

    catalog: Catalog
    queries: Mapping[str, tuple[Node, str]]

    @property
    def plans(self) -> dict[str, Node]:
        """The plans of the queries."""
        return {name: plan for name, (plan, _) in self.queries.items()}

    def to_bytes(self) -> bytes:
        """Return all of it as a file holds it. What is too deep to be written is left out."""
        content = {
            "streams": _encoded(list(self.catalog.streams.values())),
            "tables": _encoded(list(self.catalog.tables.values())),
            "views": _encoded(list(self.catalog.views.values())),
            "functions": _encoded(replace(f, sql="") for f in self.catalog.functions.values()),
            "queries": _encoded((name, *found) for name, found in self.queries.items()),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def declared_in(data: bytes) -> Declared:
    """The inverse of `Declared.to_bytes`."""
    content = json.loads(data)
    catalog = Catalog()
    for kind in ("streams", "tables", "views", "functions"):
        for encoded in content.get(kind, ()):  # older checkpoints have no functions
            definition = decode(encoded)
            getattr(catalog, kind)[definition.name.lower()] = definition
    ranked = {s.name for s in catalog.streams.values() if s.priority is not None}
    for name, view in catalog.views.items():  # plans of older checkpoints say nothing of priorities
        catalog.views[name] = replace(view, plan=algebra.with_priorities(view.plan, ranked))
    queries = (decode(query) for query in content["queries"])
    plans = {name: (algebra.with_priorities(plan, ranked), mode) for name, plan, mode in queries}
    return Declared(catalog, plans)


def _encoded(values: Iterable[Any]) -> list[Any]:
    found = []
    for value in values:
        try:
            encoded = encode(value)
            json.dumps(encoded)
        except RecursionError:
            continue
        found.append(encoded)
    return found
