"""EXPLAIN: the plans of a query as text, as they run or as they would beside the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock import cql
from penstock.algebra import Node
from penstock.errors import QueryError
from penstock.physical import explain as physical_explain
from penstock.physical.book import BookedQuery, QueryBook
from penstock.physical.multiway import probe_orders
from penstock.physical.plan import PhysicalPlan
from penstock.spark.pipeline import Pipeline, moment_after

if TYPE_CHECKING:
    from penstock.session import Session


def explanation(session: Session, level: str, node: Node, name: str) -> list[str]:
    """Return the lines of EXPLAIN for a query of a session, or one that may be added to it."""
    levels = ("logical", "optimized", "physical", "all")
    if level not in levels:
        raise QueryError(f"the level of EXPLAIN must be one of {', '.join(levels)}, got '{level}'")
    lines = []
    book, whole = _planned(session, node, name)
    if level in ("logical", "all"):
        lines += ["logical plan", cql.render_plan(node), ""]
    if level in ("optimized", "all"):
        lines += ["optimized plan", cql.render_plan(book.optimized(name)), ""]
    if level in ("physical", "all"):
        shards = session.config["shards"] or _cores(session)
        automatic = session.config["join.split"] == 0
        lines += ["physical plan", physical_explain.explain(whole, name, shards, automatic)]
        if session._pipeline is not None:
            digests = digests_of(session._pipeline, name)
            lines += [str(h) for h in session._pipeline.hot_shards() if h.digest in digests]
            lines += [str(s) for s in session._pipeline.split_keys() if s.digest in digests]
            lines += probe_orders(whole, session._pipeline.manifest.states, digests)
        lines.append("")
    return lines


def _planned(session: Session, node: Node, name: str) -> tuple[QueryBook, PhysicalPlan]:
    """Return the plan that runs; for a query that does not run, what it would be beside the others.

    That is tried in a copy of the book, with every query that will be started, as things stand now.
    """
    pipeline = session._pipeline
    book = QueryBook(session.config)
    if pipeline is not None:
        running, whole = pipeline.book.queries.get(name), pipeline.last_plan
        begun = running is not None and running.batch is not None and not running.paused
        if begun and whole is not None and name in {a.query for a in whole.answers}:
            return pipeline.book, whole
        book = pipeline.book.copy()
    manifest = session.newest_manifest()
    known = {} if manifest is None else manifest.queries
    dropped = set() if pipeline is None else pipeline.book.dropped
    for handle in session.handles():
        gone = handle.name in dropped or handle.name.lower() in session._forgotten
        if handle.name not in book.queries:
            book.add(handle.booked(), None if gone else known.get(handle.name))
    if name in book.queries:
        book.resume(name)
    else:
        book.add(BookedQuery(name, node, "view"))
    now = moment_after(manifest, {}) if pipeline is None else pipeline.moment()
    return book, book.plan(now)


def _cores(session: Session) -> int:
    if session._pipeline is not None:
        return session._pipeline.shards
    return os.cpu_count() or 1


def digests_of(pipeline: Pipeline, query: str) -> set[str]:
    """Return the digests of the operators that a query uses; a running batch is not waited for."""
    whole = pipeline.last_plan
    found: set[str] = set()
    if whole is None:
        return found
    todo = [a.node for a in whole.answers if a.query == query]
    while todo:
        node = whole.nodes[todo.pop()]
        if node.digest not in found:
            found.add(node.digest)
            todo.extend(i.producer for i in node.inputs)
    return found
