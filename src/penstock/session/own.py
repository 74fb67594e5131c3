"""Functions of the user's own that are declared in Python."""

from __future__ import annotations

from typing import Any

from penstock import cql
from penstock.catalog import Catalog
from penstock.cql.binding.own import check_function_name, declared_function
from penstock.cql.binding.statements import Create
from penstock.errors import QueryError
from penstock.expr.own import FunctionDef, noted, parameter_names
from penstock.expr.types import parse_type
from penstock.model import Field, Schema


def own_definition(
    function: Any, parameters: str, returns: str, using: str, takes: str
) -> FunctionDef:
    """Return the definition of a function given by its name, or behind the decorator."""
    if not isinstance(function, str):
        said, place = noted(function)
        names = parameter_names(function, len(said.parameters))
        pairs = zip(names, said.parameters, strict=True)
        schema = Schema(tuple(Field(n, parse_type(t)) for n, t in pairs))
        check_function_name(said.name)
        returned = parse_type(said.returns)
        return declared_function(said.name, schema, returned, (place, said.takes))
    if not parameters or not returns or not using:
        raise QueryError(
            f"a function must have parameters, a type and a place, such as create_function("
            f"'{function}', 'x DOUBLE', 'DOUBLE', using='module:name')"
        )
    quoted = using.replace("'", "''")
    more = f" TAKES {takes}" if takes else ""
    text = f"CREATE FUNCTION {function} ({parameters}) RETURNS {returns} USING '{quoted}'{more}"
    (parsed,) = cql.parse_script(text)
    statement = cql.bind(parsed, Catalog())
    assert isinstance(statement, Create)
    assert isinstance(statement.definition, FunctionDef)
    return statement.definition
