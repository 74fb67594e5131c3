"""A query that begins after its replays have ended reads them again, for itself.

A stream is read once, and a query that is added later sees what comes from then on.  Of files that
were replayed to their end nothing comes any more: who asks a second question about them wants the
rows.  So the query gets streams of its own, which read the same files again: of ``s`` a stream
``s (2)``, then ``s (3)`` ..  Queries that begin together share them.

On a checkpoint that is kept a query must stay the one that the script says, so there nothing is
read again; `QueryHandle.status` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import algebra
from penstock.catalog import QueryDef, StreamDef, ViewDef
from penstock.sources.formats import ends_by_itself

if TYPE_CHECKING:
    from penstock.session.session import Session


def read_again(session: Session, fresh: Mapping[str, QueryDef]) -> dict[str, QueryDef]:
    """Return queries that begin now, those over replays that have ended with streams anew."""
    if not session._temporary:
        return dict(fresh)
    made: dict[str, str] = {}
    return {name: _reading(session, definition, made) for name, definition in fresh.items()}


def _reading(session: Session, query: QueryDef, made: dict[str, str]) -> QueryDef:
    names = algebra.streams_of(query.plan)
    streams: dict[str, StreamDef] = {n: session.catalog.get("stream", n) for n in names}
    known = session.pipeline.streams.keys() >= names
    if not known or not session.pipeline.have_ended(names):
        return query
    if not all(ends_by_itself(stream) for stream in streams.values()):
        return query
    for name, stream in streams.items():
        if name not in made:
            made[name] = _another(session, stream)
    changed = replace(query, plan=algebra.with_streams(query.plan, made))
    session.catalog.queries[query.name.lower()] = changed
    if query.keep is not None:  # a materialized view is also read by its name
        view: ViewDef = session.catalog.get("view", query.name)
        session.catalog.views[query.name.lower()] = replace(view, plan=changed.plan)
    session._handles[query.name.lower()].definition = changed
    return changed


def _another(session: Session, stream: StreamDef) -> str:
    """Declare a stream that reads the same files again; return its name."""
    number = 2
    while f"{stream.name} ({number})".lower() in session.catalog.streams:
        number += 1
    text = f"-- {stream.name}, read again\n{stream.sql}"
    another = replace(stream, name=f"{stream.name} ({number})", sql=text)
    session.catalog.add(another)
    session.pipeline.streams[another.name] = another
    return another.name
