"""Starting a session: everything is compared with its checkpoint before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from penstock.algebra import Node
from penstock.asking.checkpoints import open_checkpoint
from penstock.asking.encoding import Declared
from penstock.catalog import CLOCK, QueryDef, written_tables
from penstock.errors import PenstockError, StateError
from penstock.physical.lane_plan import has_priorities
from penstock.runs import failpoints
from penstock.runs.checkpoint import Checkpoint
from penstock.runs.manifest import Manifest
from penstock.runs.reading import CheckpointReader
from penstock.session.outlets import (
    LANE_MODES,
    open_early_outlet,
    open_lane_outlet,
    open_outlets,
)
from penstock.session.replacing import (
    check_priorities,
    check_priority_clauses,
    check_same_priorities,
    check_streams,
    replace_running,
)
from penstock.session.replaying import read_again
from penstock.settings import Settings
from penstock.sinks.delivery import Delivery
from penstock.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from penstock.session.handle import QueryHandle
    from penstock.session.session import Session


def newest_manifest(checkpoint: str | os.PathLike[str] | None) -> Manifest | None:
    """Return the newest manifest of a checkpoint; what is damaged is said later."""
    with suppress(StateError):
        return None if checkpoint is None else CheckpointReader(checkpoint).newest()
    return None


def remembered(checkpoint: str | os.PathLike[str] | None) -> frozenset[str]:
    """Return the names of the queries that a checkpoint runs."""
    newest = newest_manifest(checkpoint)
    return frozenset() if newest is None else frozenset(n.lower() for n in newest.queries)


def opened_pipeline(session: Session) -> Pipeline:
    """Return a pipeline on the session's checkpoint, which is locked from now on."""
    checkpoint = Checkpoint(session._folder, session.config.fsync, session.config.retain_manifests)
    checkpoint.lock()  # before Spark is started, which takes long
    try:
        failpoints.passing("lock-taken")
        retained = checkpoint.open()
        if retained:
            _check_settings(checkpoint, retained[-1], session.config)
        return Pipeline(
            session.spark,
            session.config,
            checkpoint,
            retained,
            {},
            {},
            Delivery(checkpoint.found),
            session._spool_folder,
            catalog=session.catalog,
        )
    except BaseException:
        checkpoint.unlock()
        raise


def _check_settings(checkpoint: Checkpoint, manifest: Manifest, config: Settings) -> None:
    """Check the settings that a checkpoint keeps for ever."""
    if config.lifetime != manifest.lifetime:
        raise StateError(
            f"a checkpoint keeps the lifetime method that it was made with: {checkpoint.folder} "
            f"has {manifest.lifetime}, got --set lifetime={config.lifetime}; give it that "
            f"or use another --checkpoint"
        )
    if config.shards not in (0, manifest.shards):
        raise StateError(
            f"a checkpoint keeps the number of shards it was made with: {checkpoint.folder} has "
            f"{manifest.shards}, got --set shards={config.shards}; leave it out or use "
            f"another --checkpoint"
        )


def change_running(session: Session) -> None:
    """Put new texts and clauses in the place of those that run."""
    pipeline = session.pipeline
    pipeline.streams.update({d.name: d for d in (CLOCK, *session.catalog.streams.values())})
    pipeline.tables.update({d.name: d for d in session.catalog.tables.values()})
    replace_running(session)


def start_queries(session: Session) -> None:
    """Compare every query that is new with the checkpoint, then add them all and run."""
    pipeline = session.pipeline
    change_running(session)
    fresh = {
        name: definition
        for name, definition in session.catalog.queries.items()
        if definition.name not in pipeline.book.queries
    }
    for definition in fresh.values():
        pipeline.tables.update(written_tables(definition.plan))
    fresh = read_again(session, fresh)
    for name in pipeline.book.missing():
        if name.lower() in session._forgotten:
            pipeline.drop(name)
    session._forgotten.clear()
    waiting: dict[str, list[str]] = {}
    try:
        for name, definition in fresh.items():
            waiting[name] = _checked(session, name, definition)
        _check_missing(session, {definition.name for definition in fresh.values()})
        for name, definition in fresh.items():
            handle = session._handles[name]
            with _undone(session, name, waiting[name]):
                pipeline.delivery.begin(waiting[name])
            del waiting[name]
            pipeline.add(handle.booked())
            if handle.paused:
                pipeline.book.pause(definition.name)
    except BaseException:  # the others are opened again at the next start
        pipeline.delivery.forget(outlet for outlets in waiting.values() for outlet in outlets)
        raise
    pipeline.start()


def _checked(session: Session, name: str, definition: QueryDef) -> list[str]:
    """Compare a query, its streams and its sinks with the checkpoint; return its outlets."""
    handle = session._handles[name]
    handle.before = None  # it was never started
    opened: list[str] = []
    with _undone(session, name, opened):
        check_streams(session, definition)
        booked = handle.booked()
        replaces = session.pipeline.book.replaces(booked)
        declared = _declared(session) if replaces else None
        known = None if declared is None else _known(declared, name)
        if declared is not None and known is not None:
            check_same_priorities(definition.name, definition.plan, known[0])
            check_priority_clauses(session, definition, declared.catalog)
        session.pipeline.book.check(booked)
        other = replaces and not _alike(handle, known)
        if replaces:
            check_priorities(definition.name, definition.plan, known and known[0])
        if other:  # what was delivered is complete
            session.pipeline.end_outlets([definition.name])
        for outlet in open_outlets(session, handle):
            opened.append(outlet)
        if handle.mode in LANE_MODES and has_priorities(definition.plan):
            opened.append(open_lane_outlet(session, handle))
        if definition.early is not None:
            opened.append(open_early_outlet(session, handle))
        session.pipeline.check_sinks(opened, session.allow_change)
        if other and definition.name in opened:
            session.pipeline.delivery.let_go(definition.name)
    return opened


def _declared(session: Session) -> Declared:
    """Return what was declared when the newest manifest of the checkpoint was written."""
    return open_checkpoint(session._folder).declared(session.pipeline.manifest)


def _known(declared: Declared, name: str) -> tuple[Node, str] | None:
    """Return the plan and the mode of a query as the checkpoint knows it."""
    found = declared.queries
    return next((told for key, told in found.items() if key.lower() == name.lower()), None)


def _alike(handle: QueryHandle, known: tuple[Node, str] | None) -> bool:
    """Whether a query delivers the columns that the checkpoint knows, in the same way."""
    mine = handle.definition.plan.schema, handle.mode
    return known is not None and (known[0].schema, known[1]) == mine


@contextmanager
def _undone(session: Session, name: str, opened: Iterable[str]) -> Iterator[None]:
    """Drop a query, and close its outlets, when something is refused."""
    try:
        yield
    except (PenstockError, OSError):
        session.pipeline.delivery.forget(opened)
        session._drop("query", name, if_exists=True)
        raise


def _check_missing(session: Session, fresh: set[str]) -> None:
    """Check that no query of the checkpoint is gone without a word."""
    for name in session.pipeline.book.missing():
        if name in fresh:
            continue
        if session.allow_change:
            session.pipeline.drop(name)
            continue
        quoted = name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
        raise StateError(
            f"the checkpoint {session._folder} runs query '{name}', which is not declared any "
            f"more: without a word its answers would have a gap when it comes back. Nothing "
            f"was changed: declare it, write DROP QUERY IF EXISTS {quoted} (or DROP "
            f"MATERIALIZED VIEW IF EXISTS {quoted}), or go on by --allow-change (in Python, "
            f"Session(allow_change=True); or "
            f"declare all queries before the first one starts, with Session(autostart=False))"
        )
