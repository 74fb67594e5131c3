"""Scripts for the engine without Spark: the plans of their queries."""

from __future__ import annotations

from penstock import cql
from penstock.algebra import Node
from penstock.catalog import Catalog
from penstock.cql.binding import statements


def plans_of(script: str) -> dict[str, Node]:
    """Return the plans of a script's queries, by name."""
    catalog = Catalog()
    for parsed in cql.parse_script(script):
        statement = cql.bind(parsed, catalog)
        if isinstance(statement, statements.Create):
            catalog.add(statement.definition)
    return {query.name: query.plan for query in catalog.queries.values()}
