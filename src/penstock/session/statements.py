"""What each statement does in a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import algebra
from penstock.catalog import QueryDef, SinkDef, StreamDef, TableDef, ViewDef
from penstock.cql.binding import statements
from penstock.cql.binding.clock import beside_clock
from penstock.cql.render import (
    duration_text,
    expr_text,
    in_timestamps,
    render_plan,
    time_text,
    timing_texts,
)
from penstock.errors import QueryError
from penstock.expr import functions
from penstock.expr.own import FunctionDef
from penstock.expr.types import type_name
from penstock.masking import masked, shown_option
from penstock.model import INF, MIN_TIME, TIMESTAMP
from penstock.physical.early_plan import early_outlet, early_plan
from penstock.physical.observation import StreamState
from penstock.physical.waits import is_timed
from penstock.runs.deliveries import lane_outlet, reject_outlet
from penstock.session.explaining import change_explained, explanation, warning_lines
from penstock.session.handle import QueryHandle
from penstock.session.outlets import has_timestamps, mode_of
from penstock.session.scripts import UNNAMED
from penstock.showing import cell_text
from penstock.sinks import check_sink
from penstock.sources.formats import check_stream
from penstock.sources.table_formats import check_table

if TYPE_CHECKING:
    from penstock.session.session import Session


def execute(session: Session, statement: statements.Statement) -> Any:
    """Carry out one bound statement, without starting the pipeline."""
    match statement:
        case statements.Create(definition, replaces=True):
            return create_or_replace(session, definition)
        case statements.Create(definition, if_not_exists):
            return create(session, definition, if_not_exists)
        case statements.Drop(kind, name, if_exists):
            return drop(session, kind, name, if_exists)
        case statements.Pause(name):
            return session.query(name).pause()
        case statements.Resume(name):
            return session.query(name).resume()
        case statements.Change(setting, value):
            return session.set(setting, value)
        case statements.Insert(stream, rows):
            session.push(stream, rows)
            return f"{rows.num_rows} {'row' if rows.num_rows == 1 else 'rows'} into {stream}"
        case statements.Show(kind):
            return _show(session, kind)
        case statements.ShowCreate(name, kind):
            return _show_create(session, name, kind)
        case statements.Describe(name, kind):
            return _describe(session, name, kind)
        case statements.Explain(change=QueryDef() as change, warnings=doubts):
            lines = change_explained(session, change, change_mode(session, change))
            return masked("\n".join([*lines, *warning_lines(doubts)]))
        case statements.Explain(level, node, name, doubts):
            lines = explanation(session, level, node, name or "the query")
            return masked("\n".join([*lines, *warning_lines(doubts)]))
        case statements.Ask(parsed):
            return session.ask(parsed)
        case statements.Select(node, sql):
            session._unnamed += 1
            return create(session, QueryDef(f"{UNNAMED}{session._unnamed}", node, None, sql))


def create(session: Session, definition: Any, if_not_exists: bool = False) -> Any:
    """Declare something, after checks that need no other part; of a query, return its handle."""
    kind = type(definition).__name__.removesuffix("Def").lower()
    if if_not_exists and definition.name.lower() in session.catalog.of_kind(kind):
        return session._handles.get(definition.name.lower()) if kind in ("query", "view") else None
    check_definition(definition)
    if isinstance(definition, StreamDef):
        session._replacing.discard(definition.name.lower())
    return declare(session, definition)


def create_or_replace(session: Session, definition: Any) -> Any:
    """Declare something in the place of what has its name; of a query, return its handle.

    A query that runs goes on until its successor begins, when the session starts.
    """
    kind = type(definition).__name__.removesuffix("Def").lower()
    before = session.catalog.of_kind(kind).get(definition.name.lower())
    if isinstance(definition, QueryDef):
        definition = replace(definition, plan=beside_clock(definition.plan))
        mode = change_mode(session, definition)
    if before is None:
        made = create(session, definition)
    else:
        check_definition(definition)
        session.catalog.replace(definition)
        made = None
    if isinstance(definition, StreamDef):
        session._replacing.add(definition.name.lower())
    kept = isinstance(definition, ViewDef) and definition.keep is not None
    if not (isinstance(definition, QueryDef) or kept):
        return None
    if before is not None:
        known = session.catalog.get("query", definition.name)
        made = _handle(session, known, "kept" if kept else mode)
    made.replaces = True
    return made


def change_mode(session: Session, definition: QueryDef) -> str:
    """Return how the answer of a query is to be delivered, which may replace another."""
    if not algebra.streams_of(definition.plan):
        raise QueryError(
            f"a continuous query must read at least one stream, but '{definition.name}' reads none"
        )
    if definition.early is not None:
        early_plan(definition.plan)  # says why it cannot be
    sink = None if definition.sink is None else session.catalog.get("sink", definition.sink)
    return mode_of(definition, sink)


def check_definition(definition: Any) -> None:
    """Check what needs no other part."""
    if isinstance(definition, StreamDef):
        check_stream(definition)
    if isinstance(definition, TableDef):
        check_table(definition)
    if isinstance(definition, SinkDef):
        check_sink(definition)


def declare(session: Session, definition: Any) -> Any:
    """Add a definition to the catalog; of a query, return its handle."""
    if isinstance(definition, QueryDef):
        return _create_query(session, definition)
    session.catalog.add(definition)
    if isinstance(definition, ViewDef) and definition.keep is not None:
        return _handle(session, session.catalog.get("query", definition.name), "kept")
    return None


def _create_query(session: Session, definition: QueryDef) -> QueryHandle:
    definition = replace(definition, plan=beside_clock(definition.plan))
    mode = change_mode(session, definition)
    session.catalog.add(definition)
    return _handle(session, definition, mode)


def _handle(session: Session, definition: QueryDef, mode: str) -> QueryHandle:
    stamps = has_timestamps(session.catalog, definition.plan)
    handle = QueryHandle(session, definition, mode, stamps)
    before = session._handles.get(definition.name.lower())
    if before is not None:  # whose place it takes when it is started
        handle.before = before.before or before
        handle.paused = before.paused
    session._handles[definition.name.lower()] = handle
    return handle


def drop(session: Session, kind: str, name: str, if_exists: bool) -> None:
    """Take something back; a query is dropped from the pipeline, and its sink closed."""
    unknown = name.lower() not in session.catalog.of_kind(kind)
    if unknown and kind in ("query", "view") and name.lower() in session.catalog.remembered:
        session._forgotten.add(name.lower())
        return
    if if_exists and unknown:
        return
    kept = kind == "view" and session.catalog.get("view", name).keep is not None
    session.catalog.remove(kind, name)
    pipeline = session._pipeline
    if kind == "stream" and pipeline is not None:
        aside = [reject_outlet(*key) for key in pipeline.delivery.rejects]
        mine = {reject_outlet(name, why).lower() for why in ("late", "rejected")}
        dropped = [outlet for outlet in aside if outlet.lower() in mine]
        pipeline.delivery.forget(dropped)
        pipeline.end_outlets(dropped)
    if kind == "query" or kept:
        handle = session._handles.pop(name.lower())
        if pipeline is not None and handle.name in pipeline.book.queries:
            pipeline.drop(handle.name)
        outlets = {} if pipeline is None else pipeline.delivery.outlets
        if handle.name in outlets:
            outlets.pop(handle.name).sink.close()
        if pipeline is not None:
            early = lane_outlet(early_outlet(handle.name))
            pipeline.delivery.forget([lane_outlet(handle.name), early])


def _show(session: Session, kind: str) -> pa.Table:
    if kind == "functions":
        own = {d.name: _own_text(d) for d in session.catalog.functions.values()}
        names = sorted([*functions.FUNCTIONS, *own])
        told = pa.array([own.get(name) for name in names], pa.string())
        return pa.table({"function": names, "own": told})
    if kind == "queries":
        rows = [h.status() for h in session._handles.values()]
        shown = ("query", "state", "since", "rows", "late", "sink", "waits")
        texts = {
            c: pa.array(["" if r.get(c) is None else cell_text(r[c]) for r in rows], pa.string())
            for c in shown
        }
        for count in ("rows", "late"):
            texts[count] = pa.array([r[count] for r in rows], pa.int64())
        texts["waits"] = pa.array([r.get("waits") for r in rows], pa.string())
        return pa.table({c: texts[c] for c in shown})
    if kind == "streams":
        return _shown_streams(session)
    singular = kind.removesuffix("s")
    found = session.catalog.of_kind(singular).values()
    if singular == "view":
        kept = [None if d.keep is None else _keep_text(d) for d in found]
        return pa.table(
            {
                "view": [d.name for d in found],
                "kept": pa.array(kept, pa.string()),
                "sql": [masked(d.sql) for d in found],
            }
        )
    return pa.table({singular: [d.name for d in found], "format": [d.format for d in found]})


def _own_text(own: FunctionDef) -> str:
    """Return what was declared of a function of the user's own."""
    return f"{own.usage} RETURNS {type_name(own.returns)} USING '{own.place}'"


def _shown_streams(session: Session) -> pa.Table:
    """Return all streams; of those that no query reads, only what is declared."""
    found = list(session.catalog.streams.values())
    pipeline = session._pipeline
    running = frozenset() if pipeline is None else pipeline.book.streams
    states: list[StreamState | None] = [
        pipeline.observation.stream(d.name) if pipeline and d.name in running else None
        for d in found
    ]
    pairs = list(zip(found, states, strict=True))
    count, text = pa.int64(), pa.string()
    return pa.table(
        {
            "stream": [d.name for d in found],
            "format": [d.format for d in found],
            "rows": pa.array([s and s.rows for s in states], count),
            "late": pa.array([s and s.late for s in states], count),
            "rejected": pa.array([s and s.rejected for s in states], count),
            "heartbeat": pa.array([s and _time(d, s.heartbeat) for d, s in pairs], text),
            "newest": pa.array([s and _time(d, s.newest) for d, s in pairs], text),
            "partitions": pa.array([s and len(s.partitions) for s in states], count),
            "slack": pa.array([_slack(d, s) for d, s in pairs], text),
        }
    )


def _time(stream: StreamDef, time: int) -> str | None:
    """Return a time as text; None if there was none yet."""
    if time == INF:
        return "end"
    return None if time == MIN_TIME else time_text(time, is_timed(stream))


def _slack(stream: StreamDef, state: StreamState | None) -> str | None:
    """Return the slack that is in force; None while SLACK AUTO knows too little."""
    slack: int | None = stream.timing.slack
    if stream.timing.keeping is not None:
        slack = None if state is None else state.slack
    return None if slack is None else duration_text(slack, is_timed(stream))


def _describe(session: Session, name: str, kind: str) -> pa.Table:
    """Return what was declared: the columns, then the format, its options and the clauses."""
    definition = session.catalog.get(kind, name)
    rows: list[tuple[str, str, str]] = []
    if kind == "function":
        rows += [("parameter", f.name, type_name(f.type)) for f in definition.parameters]
    elif kind != "sink":
        schema = definition.schema if kind in ("stream", "table") else definition.plan.schema
        rows += [("column", f.name, type_name(f.type)) for f in schema]
    if kind in ("stream", "table", "sink"):
        rows.append(("format", "USING", definition.format))
        rows += [
            ("option", k, shown_option(definition.format, k, v))
            for k, v in definition.options.items()
        ]
    rows += [("clause", clause, told) for clause, told in _clauses(definition)]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            title: pa.array(list(column), pa.string())
            for title, column in zip(("what", "name", "value"), columns, strict=True)
        }
    )


def _clauses(definition: Any) -> Iterator[tuple[str, str]]:
    """Yield the clauses of a definition, as they are typed; those of Python and defaults too."""
    match definition:
        case StreamDef():
            yield "TIMESTAMP BY", definition.schema[definition.time].name
            if definition.until is not None:
                yield "UNTIL", definition.schema[definition.until].name
            stamps = bool(definition.schema[definition.time].type == TIMESTAMP)
            yield from timing_texts(definition.timing, definition.schema.names, stamps).items()
            if definition.priority is not None:
                yield "PRIORITY", expr_text(definition.priority, definition.schema.names)
            dead = definition.deadletter
            yield "ON ERROR", "FAIL" if dead is None else f"DEADLETTER {dead}"
            if definition.late is not None:
                yield "LATE INTO", definition.late
        case FunctionDef():
            yield "RETURNS", type_name(definition.returns)
            yield "USING", definition.place
            yield "TAKES", definition.form.upper()
        case TableDef():
            if definition.valid_from is not None:
                yield "VALID FROM", definition.schema[definition.valid_from].name
            if definition.valid_to is not None:
                yield "TO", definition.schema[definition.valid_to].name
        case ViewDef(keep=int()):
            yield "KEEP", _keep_text(definition)
        case QueryDef(keep=None):
            yield "INTO", definition.sink or "memory"
            if definition.early is not None:
                yield "EARLY INTO", definition.early
            if definition.within is not None:
                yield "WITHIN", f"{definition.within:g} SECONDS"
            if definition.weight != 1:
                yield "WEIGHT", f"{definition.weight:g}"


def _show_create(session: Session, name: str, kind: str) -> str:
    """Return the text of a definition as it was typed, without secrets."""
    definition = session.catalog.get(kind, name)
    if definition.sql:
        return masked(f"{definition.sql};")
    told = f"-- {kind} {definition.name} was made in Python"
    plan = getattr(definition, "plan", None)
    if plan is None:
        return f"{told}; DESCRIBE {definition.name} shows it"
    lines = masked(render_plan(plan)).splitlines()
    return "\n".join([f"{told}; its plan:", *(f"--   {line}" for line in lines)])


def _keep_text(view: ViewDef) -> str:
    """Return for how long the past of a materialized view stays."""
    if not view.keep:
        return "the last instant"
    return duration_text(view.keep, in_timestamps(view.plan))
