"""CREATE statements to the definitions of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.algebra import Node, Scan, is_stream, streams_of, walk
from penstock.catalog import (
    Catalog,
    Definition,
    QueryDef,
    SinkDef,
    StreamDef,
    TableDef,
    ViewDef,
    check_name,
)
from penstock.cql.binding.binder import QueryBinder
from penstock.cql.binding.clock import beside_clock
from penstock.cql.binding.own import bind_function
from penstock.cql.binding.priorities import HIGHEST, constants
from penstock.cql.binding.scalars import ScalarBinder
from penstock.cql.binding.scope import Scope
from penstock.cql.binding.script import Script
from penstock.cql.binding.times import chronons, find_column, kind_of_type, seconds, time_kinds
from penstock.cql.binding.timing import TimingBinder
from penstock.cql.grammar.syntax import CreateSyntax, Name, OptionValue, Span, span_of
from penstock.errors import DataError, suggest
from penstock.expr.functions import coerce
from penstock.expr.nodes import Expr
from penstock.expr.types import BOOLEAN, INT, NULL, is_integer, parse_type, type_name
from penstock.masking import masked_script
from penstock.model import INF, TIMESTAMP, Field, Schema
from penstock.options import Secret

CHANGES = ("intervals", "log", "view")

EARLY_COLUMNS = ("_time", "_as_of")
"""What an early row says besides its values: when it came, and as of when it holds."""

MOST_WEIGHT = 1_000_000
"""Of a query."""


class DefinitionBinder:
    """Binds one CREATE statement."""

    def __init__(self, source: Script, catalog: Catalog, syntax: CreateSyntax, sql: str) -> None:
        self.source = source
        self.catalog = catalog
        self.syntax = syntax
        self.sql = masked_script(sql)

    def bind(self) -> Definition:
        """Return the definition, checked."""
        with self.source.at(self.syntax.name.span):
            check_name(self.syntax.kind, self.syntax.name.text)
        self._check_free()
        return _BINDERS[self.syntax.kind](self)

    def _check_free(self) -> None:
        kind, name = self.syntax.kind, self.syntax.name
        if self.syntax.if_not_exists:
            return
        shared = ("stream", "table", "view")
        rivals: tuple[str, ...] = shared if kind in shared else (kind,)
        if kind == "materialized view":
            rivals = (*shared, "query")
        for other in rivals:
            known = self.catalog.of_kind(other).get(name.text.lower())
            if known is not None and not self._may_replace(other, known):
                hint = (
                    ", write CREATE OR REPLACE to put this in its place," if kind == other else ""
                )
                self.source.fail(
                    f"the name of a {kind} must be free, but {other} '{name.text}' exists; DROP it "
                    f"first{hint} or choose another name",
                    name.span,
                )

    def _may_replace(self, kind: str, known: Definition) -> bool:
        """Whether OR REPLACE is about what has the name."""
        kept = getattr(known, "keep", None) is not None
        materialized = self.syntax.kind == "materialized view"
        own = ("view", "query") if materialized else (self.syntax.kind,)
        return self.syntax.or_replace and kind in own and kept == materialized

    def altered(self, found: QueryDef) -> QueryDef:
        """Return a query after ALTER QUERY: what is not said stays as it is."""
        given = self.syntax.clauses
        for clause, sink in (("INTO", found.sink), ("EARLY", found.early)):
            if sink is not None:
                given.setdefault(clause, Name(sink, self.syntax.name.span))
        sql = f"{found.sql};\n{self.sql}" if found.sql else ""
        if self.syntax.query is not None:
            made = self._query()
            return replace(made, name=found.name, within=found.within, weight=found.weight, sql=sql)
        within, weight = found.within, found.weight
        if "WITHIN" in given:
            within = seconds(self.source, given["WITHIN"], "WITHIN")
        if "WEIGHT" in given:
            weight = self._weight()
        into, early = self._sink("INTO"), self._early(found.plan)
        return replace(found, sink=into, early=early, within=within, weight=weight, sql=sql)

    def _schema(self) -> Schema:
        if not self.syntax.columns:
            return self._found_schema()
        fields: list[Field] = []
        for column in self.syntax.columns:
            if column.name.text.lower() in {f.name.lower() for f in fields}:
                self.source.fail(
                    f"the column '{column.name.text}' is declared twice", column.name.span
                )
            with self.source.at(column.type.span):
                fields.append(Field(column.name.text, parse_type(column.type.text)))
        return Schema(tuple(fields))

    def _found_schema(self) -> Schema:
        """Return the columns that files have, where the statement lists none."""
        kind, name = self.syntax.kind, self.syntax.name
        format, options = self._format(), self._options()
        if self.catalog.schemas is None or any(isinstance(v, Secret) for v in options.values()):
            self.source.fail(
                f"CREATE {kind.upper()} {name.text} must be followed by its columns in "
                f"parentheses, such as (id INT, t TIMESTAMP), because no files are looked at here",
                self.syntax.clauses["USING"].span,
            )
        with self.source.at(self.syntax.clauses["USING"].span):
            return self.catalog.schemas(kind, name.text, format, options)

    def _format(self) -> str:
        given: Name | None = self.syntax.clauses.get("USING")
        if given is None:
            examples = "jsonl" if self.syntax.kind == "sink" else "csv"
            self.source.fail(
                f"a {self.syntax.kind} must say USING and a format, such as USING {examples}",
                self.syntax.name.span,
            )
        return given.text.lower() if "." not in given.text else given.text

    def _options(self) -> dict[str, str]:
        given: dict[str, OptionValue] = self.syntax.clauses.get("OPTIONS", {})
        return {k: Secret(v.text) if v.secret else v.text for k, v in given.items()}

    def _sink(self, clause: str) -> str | None:
        given: Name | None = self.syntax.clauses.get(clause)
        if given is None:
            return None
        found = self.catalog.sinks.get(given.text.lower())
        if found is None:
            names = [s.name for s in self.catalog.sinks.values()]
            self.source.fail(
                f"there is no sink '{given.text}'; {suggest(given.text, names)}; CREATE SINK "
                f"{given.text} before this statement",
                given.span,
            )
        return found.name

    # ---- one method per kind

    def _stream(self) -> StreamDef:
        schema = self._schema()
        time = self._time(schema, f"stream {self.syntax.name.text}")
        return StreamDef(
            name=self.syntax.name.text,
            schema=schema,
            format=self._format(),
            options=self._options(),
            time=time,
            timing=TimingBinder(self.source, self.syntax, schema, time).bind(),
            priority=self._priority(schema),
            deadletter=self._sink("ON"),
            late=self._sink("LATE"),
            sql=self.sql,
            until=self._until(schema, time),
        )

    def _until(self, schema: Schema, time: int) -> int | None:
        """Return the column of UNTIL, which counts as the time column does."""
        given: Name | None = self.syntax.clauses.get("UNTIL")
        if given is None:
            return None
        at = find_column(self.source, schema, given, f"stream {self.syntax.name.text}")
        kind, own = schema[at].type, schema[time].type
        if (kind != own and not (is_integer(kind) and is_integer(own))) or at == time:
            self.source.fail(
                f"UNTIL must name a second column that counts time as {schema[time].name} does, "
                f"{type_name(own)}, got {given.text}, {type_name(kind)}",
                given.span,
            )
        return at

    def _time(self, schema: Schema, owner: str) -> int:
        able = [f.name for f in schema.fields if f.type == TIMESTAMP or is_integer(f.type)]
        listed = ", ".join(able) or "none; declare one as TIMESTAMP"
        given: Name | None = self.syntax.clauses.get("TIMESTAMP")
        if given is None:
            self.source.fail(
                f"a stream must say TIMESTAMP BY <column>; columns that can be one: {listed}",
                self.syntax.name.span,
            )
        at = find_column(self.source, schema, given, owner)
        if schema[at].name not in able:
            self.source.fail(
                f"TIMESTAMP BY must name a TIMESTAMP or integer column, got "
                f"{type_name(schema[at].type)}; columns that can be one: {listed}",
                given.span,
            )
        return at

    def _priority(self, schema: Schema) -> Expr | None:
        given = self.syntax.clauses.get("PRIORITY")
        if given is None:
            return None
        name = self.syntax.name.text
        bound = ScalarBinder(self.source, Scope.of(name, schema), "PRIORITY", of_row=True).bind(
            given
        )
        if bound.type == NULL:
            bound = coerce(bound, INT)
        if not is_integer(bound.type) and bound.type != BOOLEAN:
            self.source.fail(
                f"PRIORITY must be a whole number or BOOLEAN, got {type_name(bound.type)}; say "
                f"which rows are urgent by a condition, or by CASE WHEN .. THEN 5 ELSE 0 END",
                span_of(given),
            )
        self._check_priority(bound, span_of(given))
        return bound

    def _check_priority(self, priority: Expr, span: Span) -> None:
        """Refuse a constant that is no priority."""
        try:
            for value in constants(priority):
                if not 0 <= value <= HIGHEST:
                    self.source.fail(
                        f"PRIORITY must be from 0 (normal) to {HIGHEST}, got {value}; write a "
                        f"number in between",
                        span,
                    )
        except DataError as error:
            self.source.fail(f"PRIORITY must have a value, but: {error}", span)

    def _table(self) -> TableDef:
        schema = self._schema()
        first, last = self._validity(schema)
        return TableDef(
            self.syntax.name.text, schema, self._format(), self._options(), first, last, self.sql
        )

    def _validity(self, schema: Schema) -> tuple[int | None, int | None]:
        given: tuple[Name, Name | None] | None = self.syntax.clauses.get("VALID")
        if given is None:
            return None, None
        owner = f"table {self.syntax.name.text}"
        places: list[int | None] = []
        for name in given:
            if name is None:
                places.append(None)
                continue
            at = find_column(self.source, schema, name, owner)
            if schema[at].type != TIMESTAMP and not is_integer(schema[at].type):
                self.source.fail(
                    f"VALID FROM .. TO must name TIMESTAMP or integer columns, got "
                    f"{type_name(schema[at].type)}",
                    name.span,
                )
            places.append(at)
        first, last = places
        if first is not None and last is not None and given[1] is not None:
            kinds = {kind_of_type(schema[at].type) for at in (first, last)}
            if len(kinds) > 1:
                self.source.fail(
                    "VALID FROM and TO must both be TIMESTAMP or both be integers", given[1].span
                )
        return first, last

    def _sink_def(self) -> SinkDef:
        changes: Name | None = self.syntax.clauses.get("OPTIONS", {}).get("changes")
        if changes is not None and changes.text.lower() not in CHANGES:
            self.source.fail(
                f"the option 'changes' must be one of {', '.join(CHANGES)}, got '{changes.text}'",
                changes.span,
            )
        options = self._options()
        if changes is not None:
            options["changes"] = changes.text.lower()
        return SinkDef(self.syntax.name.text, self._format(), options, self.sql)

    def _view(self) -> ViewDef:
        assert self.syntax.query is not None
        plan = QueryBinder(self.source, self.catalog).view(self.syntax.query)
        return ViewDef(self.syntax.name.text, plan, self.sql)

    def _materialized_view(self) -> ViewDef:
        assert self.syntax.query is not None
        plan = QueryBinder(self.source, self.catalog).top(self.syntax.query)
        span, name = self.syntax.query.span, self.syntax.name.text
        plan = beside_clock(plan)
        if not streams_of(plan):
            self.source.fail(
                "a materialized view must read a stream, and this one reads only tables, which a "
                "SELECT reads at any time",
                span,
            )
        if is_stream(plan):
            self.source.fail(
                "a materialized view keeps a relation, and this is a stream; put a window on it: "
                "SELECT * FROM (..) [RANGE ..]",
                span,
            )
        given = self.syntax.clauses.get("KEEP", 0)
        if given is None:
            return ViewDef(name, plan, self.sql, INF)
        keep = 0
        if given:
            kind = next(iter(time_kinds(plan)))
            keep = chronons(self.source, given, kind, f"materialized view {name}", least=0)
        return ViewDef(name, plan, self.sql, keep)

    def _query(self) -> QueryDef:
        assert self.syntax.query is not None
        plan = beside_clock(QueryBinder(self.source, self.catalog).top(self.syntax.query))
        if not streams_of(plan):
            if time_kinds(plan):
                self.source.fail(
                    "a continuous query must read a stream, because time passes only where one "
                    "brings rows, or by the clock, and this one reads only tables that are valid "
                    "by integers; ask for an instant with SELECT .. AS OF time, declare TIMESTAMP "
                    "columns, or join them with a stream",
                    self.syntax.query.span,
                )
            self.source.fail(
                "a continuous query must read a stream, and this one reads only tables, whose "
                "answer does not change; ask for it once, with a SELECT that stands alone in the "
                "shell or in session.query",
                self.syntax.query.span,
            )
        given = self.syntax.clauses.get("WITHIN")
        within = None if given is None else seconds(self.source, given, "WITHIN")
        return QueryDef(
            self.syntax.name.text,
            plan,
            self._sink("INTO"),
            self.sql,
            within=within,
            weight=self._weight(),
            early=self._early(plan),
        )

    def _early(self, plan: Node) -> str | None:
        """Return the sink of EARLY INTO."""
        given: Name | None = self.syntax.clauses.get("EARLY")
        early = self._sink("EARLY")
        if given is None or early is None:
            return None
        if early == self._sink("INTO"):
            self.source.fail(
                f"EARLY INTO must name another sink than INTO, because early rows are no part of "
                f"the answer, got '{early}' twice; CREATE SINK for one of them",
                given.span,
            )
        if not any(isinstance(node, Scan) and node.prioritised for node in walk(plan)):
            names = ", ".join(sorted(streams_of(plan)))
            self.source.fail(
                f"EARLY INTO is about rows with a priority, and no stream of this query says "
                f"PRIORITY ({names}); declare it on one of them, or leave EARLY INTO out",
                given.span,
            )
        taken = next((n for n in plan.schema.names if n.lower() in EARLY_COLUMNS), None)
        if taken is not None:
            self.source.fail(
                f"EARLY INTO adds the columns {' and '.join(EARLY_COLUMNS)}, and this query has a "
                f"column '{taken}'; give it another name with AS",
                given.span,
            )
        return early

    def _weight(self) -> float:
        """Return how much the answers of a query count."""
        text, span = self.syntax.clauses.get("WEIGHT", ("1", (0, 0)))
        weight = float(text)
        if not 0 < weight <= MOST_WEIGHT:
            self.source.fail(
                f"WEIGHT must be more than 0 and at most {MOST_WEIGHT:,}, got {text}", span
            )
        return weight


_BINDERS: dict[str, Callable[[DefinitionBinder], Definition]] = {
    "stream": DefinitionBinder._stream,
    "table": DefinitionBinder._table,
    "sink": DefinitionBinder._sink_def,
    "view": DefinitionBinder._view,
    "materialized view": DefinitionBinder._materialized_view,
    "query": DefinitionBinder._query,
    "function": lambda binder: bind_function(binder.source, binder.syntax, binder.sql),
}
