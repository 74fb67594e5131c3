"""Replacing queries that run: the new text takes the place of the old one in one batch.

Everything is checked and opened before anything changes, while no batch runs.  Where the new answer
has the columns of the old one and goes the same way into the same sink, that goes on as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import algebra
from penstock.algebra import Node
from penstock.catalog import Catalog, QueryDef, written_tables
from penstock.cql.render import expr_text
from penstock.errors import PenstockError, StateError
from penstock.physical.lane_plan import has_priorities
from penstock.session.outlets import Way, open_outlets, ways

if TYPE_CHECKING:
    from penstock.session.handle import QueryHandle
    from penstock.session.session import Session


def replace_running(session: Session) -> None:
    """Put every text that was declared in the place of one that runs there."""
    for handle in list(session._handles.values()):
        before = handle.before
        if before is None or before.name not in session.pipeline.book.queries:
            continue
        with _restored(session, handle, before), session.pipeline.book.lock:
            _replace(session, handle, before)
        handle.before = None


@contextmanager
def _restored(session: Session, handle: QueryHandle, before: QueryHandle) -> Iterator[None]:
    """Bring the old text back when the new one is refused: it has never stopped."""
    try:
        yield
    except (PenstockError, OSError):
        session.catalog.replace(before.definition)
        session._handles[before.name.lower()] = before
        raise


def _replace(session: Session, handle: QueryHandle, before: QueryHandle) -> None:
    pipeline, definition = session.pipeline, handle.definition
    check_streams(session, definition)
    pipeline.tables.update(written_tables(definition.plan))
    booked = handle.booked()
    old, new = _answers(session, before), _answers(session, handle)
    same_sink = _sink_of(session, before) == _sink_of(session, handle)
    kept = booked.signature == pipeline.book.queries[before.name].signature
    if not (kept and same_sink and definition.early == before.definition.early):
        check_priorities(definition.name, definition.plan, before.definition.plan)
    known = pipeline.delivery.outlets.get(before.name)
    if old == new and same_sink:
        handle.sink = before.sink
    elif known is not None:
        del pipeline.delivery.outlets[before.name]
    told = pipeline.delivered(before.name)
    opened: list[str] = []
    try:
        if not same_sink:
            pipeline.end_outlets([before.name])
        for outlet in open_outlets(session, handle):
            opened.append(outlet)
        pipeline.check_sinks(opened, session.allow_change)
        if before.name in opened:
            pipeline.delivery.let_go(before.name)
        pipeline.delivery.begin(opened)
    except BaseException:
        pipeline.delivery.forget(opened)
        pipeline.deliver_from(before.name, told)
        if known is not None:
            pipeline.delivery.outlets[before.name] = known
        raise
    if known is not None and handle.sink is not before.sink:
        known.sink.close()
    pipeline.replace(booked)


def _answers(session: Session, handle: QueryHandle) -> Way | None:
    """Return the way of a query's answers; None if they are kept."""
    found = next(ways(session.catalog, handle.definition, handle.mode), None)
    return None if found is None or found.key is not None else found


def _sink_of(session: Session, handle: QueryHandle) -> object:
    name = handle.definition.sink
    return None if name is None else session.catalog.get("sink", name)


def check_priorities(name: str, new: Node, old: Node | None) -> None:
    """Refuse another text, sink or EARLY INTO where answers may be on their way by the lane."""
    if any(has_priorities(plan) for plan in (new, old) if plan is not None):
        raise StateError(
            f"a query over streams with PRIORITY must keep its text, its sink and EARLY INTO while "
            f"it exists, because answers may be on their way by the lane, but those of '{name}' "
            f"would change; write DROP QUERY IF EXISTS {name} before CREATE QUERY, for one run: it "
            f"begins anew"
        )


def check_same_priorities(name: str, new: Node, old: Node) -> None:
    """Refuse that a stream got a PRIORITY, or lost it, under a query that stays the same."""
    had = algebra.streams_with_priorities(old)
    changed = sorted(algebra.streams_with_priorities(new) ^ had)
    if not changed or algebra.with_priorities(new, ()) != algebra.with_priorities(old, ()):
        return
    stream = changed[0]
    if stream in had:
        what, instead = "had a PRIORITY and has none now", "write PRIORITY 0: no row is important"
    else:
        what, instead = "had no PRIORITY and has one now", "leave it out"
    raise StateError(
        f"the streams of query '{name}' must have a PRIORITY as they had when it began, but "
        f"{stream} {what}: answers may be on their way by the lane. Nothing was changed: "
        f"{instead}; or write DROP QUERY IF EXISTS {name} before CREATE QUERY, for one run: it "
        f"begins anew"
    )


def check_priority_clauses(session: Session, query: QueryDef, known: Catalog) -> None:
    """Refuse that a PRIORITY became another, where the query's plan has changed by it."""
    for name in sorted(algebra.streams_with_priorities(query.plan)):
        stream, before = session.catalog.get("stream", name), known.streams.get(name.lower())
        if before is None or before.priority == stream.priority:
            continue
        was, now = (
            "none" if s.priority is None else expr_text(s.priority, s.schema.names)
            for s in (before, stream)
        )
        raise StateError(
            f"PRIORITY of stream {name} must be as it was when query '{query.name}' began, which "
            f"reads it as _priority or differs otherwise too, but it was {was} and is {now}. "
            f"Nothing was changed: put it back; or write DROP QUERY IF EXISTS {query.name} before "
            f"CREATE QUERY, for one run: it begins anew"
        )


def check_streams(session: Session, query: QueryDef) -> None:
    """Check that the streams of a query are read as the checkpoint knows them."""
    for name in sorted(algebra.streams_of(query.plan)):
        stream = session.catalog.get("stream", name)
        replaces = name.lower() in session._replacing and stream.priority is None
        changed = session.pipeline.changed_stream(stream, replaces)
        if changed is not None and not session.allow_change:
            slack = changed.startswith("SLACK ") and stream.priority is None
            other = ", write CREATE OR REPLACE STREAM if it is to be another from now on"
            hint = other if slack else ""
            raise StateError(
                f"the stream {name} must be read as the checkpoint {session._folder} was made "
                f"with, but {changed}: answers would be of two kinds. Nothing was changed: put "
                f"it back{hint}, use another --checkpoint, or go on by --allow-change"
            )
