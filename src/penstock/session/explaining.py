"""EXPLAIN: the plans of a query as text, as they run or as they would beside the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock import cql
from penstock.algebra import Node, streams_of
from penstock.catalog import QueryDef
from penstock.errors import QueryError, QueryWarning
from penstock.lane.telling import priority_texts, taken
from penstock.physical import explain as physical_explain
from penstock.physical.book import BookedQuery, Moment, QueryBook
from penstock.physical.explain_change import change_texts
from penstock.physical.explain_closing import closing_texts
from penstock.physical.explain_work import charts_of, service_of, work_of
from penstock.physical.multiway import probe_orders
from penstock.physical.observation import Observation
from penstock.physical.plan import PhysicalPlan
from penstock.physical.selections import conjunct_orders
from penstock.physical.waits import heartbeats
from penstock.runs.manifest import Manifest
from penstock.schedule.board import Promise
from penstock.session.replacing import check_priorities
from penstock.session.starting import newest_manifest
from penstock.spark.pipeline import moment_after

if TYPE_CHECKING:
    from penstock.session import Session


def explanation(session: Session, level: str, node: Node, name: str) -> list[str]:
    """Return the lines of EXPLAIN for a query of a session, or one that may be added to it."""
    levels = ("logical", "optimized", "physical", "analyze", "all")
    if level not in levels:
        raise QueryError(f"the level of EXPLAIN must be one of {', '.join(levels)}, got '{level}'")
    lines = []
    book, whole = _planned(session, node, name)
    if level in ("logical", "all"):
        lines += ["logical plan", cql.render_plan(node), ""]
    if level in ("optimized", "all"):
        lines += ["optimized plan", cql.render_plan(book.optimized(name)), ""]
    if level in ("physical", "analyze", "all"):
        shards = session.config.shards or _cores(session)
        automatic = session.config.join_split == 0
        lines += ["physical plan", physical_explain.explain(whole, name, shards, automatic)]
        lines += _heartbeats(session, node)
        lines += _priorities(session, node, name, book, whole)
        lines += closing_texts(whole, name, session.catalog.streams)
        if session._pipeline is not None:
            seen = session._pipeline.observation
            digests = seen.digests(name)
            lines += [str(h) for h in seen.hot_shards if h.digest in digests]
            lines += [str(s) for s in seen.split_keys if s.digest in digests]
            lines += probe_orders(whole, seen.manifest.states, digests)
            states = [*seen.manifest.states, seen.selections]
            names = {s.name: s.schema.names for s in session.catalog.streams.values()}
            lines += conjunct_orders(whole, states, digests, names)
        lines.append("")
    if level == "analyze":
        lines += [*_measured(session, whole, name), ""]
    return [*lines, *warning_lines(w for w in session.warnings if w.about == name)]


def warning_lines(warnings: Iterable[QueryWarning]) -> list[str]:
    """Return the doubts about a query as lines of EXPLAIN."""
    return [f"warning: {warning.message}" for warning in warnings]


def _measured(session: Session, whole: PhysicalPlan, name: str) -> Iterator[str]:
    """Say what was measured of the operators of a query."""
    pipeline = session._pipeline
    manifest = newest_manifest(session._checkpoint) if pipeline is None else None
    seen = Observation(manifest or Manifest()) if pipeline is None else pipeline.observation
    yield from work_of(whole, name, seen.manifest.measured, seen.totals)
    yield from charts_of(whole, name, seen.manifest.measured, session.config.scheduler)
    yield from service_of(
        whole.answer(name).promise, seen.services.get(name), seen.last_served.get(name)
    )


def _heartbeats(session: Session, node: Node) -> list[str]:
    """Say of each stream of a query where its heartbeats come from."""
    seen = None if session._pipeline is None else session._pipeline.observation
    return [
        heartbeats(session.catalog.get("stream", name), None if seen is None else seen.stream(name))
        for name in sorted(streams_of(node))
    ]


def _priorities(
    session: Session, node: Node, name: str, book: QueryBook, whole: PhysicalPlan
) -> Iterator[str]:
    """Say which rows of a query are important, and which way they take."""
    streams = [session.catalog.get("stream", stream) for stream in sorted(streams_of(node))]
    yield from priority_texts(streams)
    way = taken(whole.answer(name), streams, session.config, book.queries[name])
    if way is not None:
        yield str(way)


def _planned(session: Session, node: Node, name: str) -> tuple[QueryBook, PhysicalPlan]:
    """Return the plan that runs; for a query that does not run, what it would be beside the others.

    That is tried in a copy of the book, with every query that will be started, as things stand now.
    """
    pipeline = session._pipeline
    if pipeline is not None:
        seen, running = pipeline.observation, pipeline.book.queries.get(name)
        begun = None if running is None or running.paused else running.batch
        if begun is not None and begun <= seen.batch and seen.plan is not None:
            return pipeline.book, seen.plan
    book, now = _trial(session)
    _add_others(session, book, "")
    if name in book.queries:
        book.resume(name)
    else:
        book.add(BookedQuery(name, node, "view"))
    return book, book.plan(now)


def booked_query(session: Session, made: QueryDef, mode: str) -> BookedQuery:
    """Return a query as the book takes it."""
    streams = (session.catalog.get("stream", name) for name in streams_of(made.plan))
    return BookedQuery(
        made.name,
        made.plan,
        mode,
        made.keep or 0,
        Promise(made.within, made.weight),
        early=made.early,
        parts_close=any(stream.timing.closing is not None for stream in streams),
    )


def _trial(session: Session) -> tuple[QueryBook, Moment]:
    """Return a copy of the book, and how things stand now."""
    pipeline = session._pipeline
    if pipeline is not None:
        return pipeline.book.copy(), pipeline.moment()
    manifest = newest_manifest(session._checkpoint)
    known = {} if manifest is None else manifest.queries
    return QueryBook(session.config, known, session._checkpoint or ""), moment_after(manifest)


def _add_others(session: Session, book: QueryBook, but: str) -> None:
    """Add every query that will be started, but one, and drop those that will be."""
    for gone in book.missing():
        if gone.lower() in session._forgotten:
            book.drop(gone)
    for handle in session.handles():
        if handle.name not in book.queries and handle.name != but:
            book.add(handle.booked())


def change_explained(session: Session, change: QueryDef, mode: str) -> list[str]:
    """Say what would go on of a query, and what begins anew, if a text took its place."""
    book, now = _trial(session)
    _add_others(session, book, change.name)
    booked = booked_query(session, change, mode)
    booked.replaces = True
    book.add(booked)
    whole = book.plan(now)
    before = session.catalog.queries.get(change.name.lower())
    if booked.before is not None and not booked.goes_on(now):
        check_priorities(change.name, change.plan, None if before is None else before.plan)
    lines = [f"replacing query {change.name}, with batch {now.batch}"]
    return [*lines, *change_texts(whole, booked, book.optimized(change.name), now)]


def _cores(session: Session) -> int:
    if session._pipeline is not None:
        return session._pipeline.shards
    return os.cpu_count() or 1
