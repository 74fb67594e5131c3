"""The handle of a query: what a user holds of it, and what it says about itself."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.asking.onetime import Snapshot
from penstock.catalog import QueryDef
from penstock.errors import PenstockError, QueryError
from penstock.lane.telling import taken
from penstock.masking import masked
from penstock.model import MIN_TIME
from penstock.physical.book import BookedQuery
from penstock.physical.early_plan import early_outlet
from penstock.physical.efforts import Service
from penstock.physical.observation import Observation
from penstock.physical.once import in_order
from penstock.physical.waits import waits
from penstock.session.explaining import booked_query, explanation
from penstock.showing import as_moment, html_table
from penstock.sinks import MemorySink, Sink
from penstock.sources.formats import is_finite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.session.session import Session
    from penstock.spark.pipeline import Pipeline


_SHOWN = 20
"""Rows that a notebook shows."""


@dataclass(repr=False)
class QueryHandle:
    """A continuous query of a session."""

    session: Session
    definition: QueryDef
    mode: str
    timestamps: bool
    sink: Sink | None = None
    paused: bool = False
    replaces: bool = False
    """It may take the place of another text of its name, here or in the checkpoint."""
    before: QueryHandle | None = None
    """The handle of the text that runs, until this one takes its place."""

    @property
    def name(self) -> str:
        return self.definition.name

    def __repr__(self) -> str:
        status = self.status()
        return (
            f"<query {self.name}: {status['state']}, {status['rows']:,} rows delivered, into "
            f"{status['sink']}>"
        )

    def _repr_html_(self) -> str:
        status = self.status()
        title = f"query {self.name}: {status['state']}, {status['rows']:,} rows delivered"
        notes = [status["note"]] if status.get("note") else []
        try:
            rows = self.shown_rows()
        except PenstockError:
            told = [title, f"into {status['sink']}", *notes]
            return "".join(f"<div>{html.escape(text)}</div>" for text in told)
        if self.mode == "stream":
            rows = rows.slice(max(0, rows.num_rows - _SHOWN))
        return html_table(rows, _SHOWN, title, notes)

    def booked(self) -> BookedQuery:
        """Return the query as the book takes it."""
        booked = booked_query(self.session, self.definition, self.mode)
        booked.paused, booked.replaces = self.paused, self.replaces
        return booked

    def start(self) -> QueryHandle:
        """Run the session's queries, this one among them."""
        self.session.start()
        return self

    def pause(self) -> QueryHandle:
        """Stop working on the query from the next batch on; the others go on."""
        self.paused = True
        if self._running():
            self.session.pipeline.pause(self.name)
        return self

    def resume(self) -> QueryHandle:
        """Work on it again: it begins anew; `status` says from which time its answers hold."""
        self.paused = False
        if self._running():
            self.session.pipeline.resume(self.name)
        return self

    def stop(self) -> None:
        """Drop the query; the others go on."""
        self.session._drop("query", self.name, if_exists=True)

    def explain(self, level: str = "all") -> str:
        """Return the logical, the optimized and the physical plan as text."""
        lines = explanation(self.session, level, self.definition.plan, self.name)
        return masked("\n".join(lines))

    def rows(self) -> pa.Table:
        """Return what a memory sink holds: the current snapshot of a view, else all rows so far.

        Of a materialized view it is the newest snapshot.
        """
        if self.mode == "kept":
            name = self.name.replace('"', '""')
            answer: Snapshot = self.session.query(f'SELECT * FROM "{name}"')  # noqa: S608 (quoted)
            return answer.to_arrow()
        if not isinstance(self.sink, MemorySink):
            raise QueryError(
                f"rows are kept only by a memory sink, but query '{self.name}' goes into "
                f"'{self.definition.sink}'"
            )
        return self.sink.table()

    def shown_rows(self) -> pa.Table:
        """Return `rows` as they are shown: a snapshot in an order that stays."""
        rows = self.rows()
        whole = self.mode in ("view", "kept")
        return in_order(self.definition.plan, rows) if whole else rows

    def latest(self) -> DataFrame:
        """Return the newest answer as a Spark DataFrame."""
        return self.session.spark.createDataFrame(self.rows())

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the session's finite streams have ended; False if the time-out passed."""
        return self.session.await_end(timeout)

    def status(self) -> dict[str, Any]:
        """Return state, since when answers hold, rows, state size, heartbeat, load, lane.

        ``late`` are the late rows of its streams since it began, ``waits`` says which rows wait for
        time and what would release them (None: none), ``streams`` how far each stream is.
        ``lane`` says which way important rows take, how many rows of the answer came by it, and how
        the lane of the session does; None: no stream of the query has priorities.
        """
        pipeline = self.session._pipeline
        answer: dict[str, Any] = {
            "query": self.name,
            "state": "paused" if self.paused else "created",
            "since": None,
            "rows": 0,
            "late": 0,
            "sink": "kept" if self.mode == "kept" else self.definition.sink or "memory",
            "lane": None,
        }
        if pipeline is None or self.name not in pipeline.book.queries:
            return answer
        running = pipeline.book.queries[self.name]
        seen = pipeline.observation
        digests = seen.digests(self.name)
        streams = sorted(running.streams)
        waiting = {s: pipeline.waiting(s) for s in streams}
        lane = pipeline.lane.status()
        answer |= {
            "state": self._state(pipeline, running),
            "since": as_moment(running.since, self.timestamps),
            "note": self._note(pipeline, running),
            "rows": seen.rows_out.get(self.name, 0) + lane.rows.get(self.name, 0),
            "rows_per_second": (
                seen.rates_out.get(self.name, 0.0) + lane.rates.get(self.name, 0.0)
            ),
            "service": self._service(seen, running),
            "work": self._work(seen),
            "state_rows": seen.state_rows(self.name),
            "state_bytes": seen.state_bytes(self.name),
            "heartbeat": as_moment(
                min((seen.stream(s).heartbeat for s in streams), default=MIN_TIME), self.timestamps
            ),
            "finite": all(is_finite(pipeline.streams[s]) for s in streams),
            "late": sum(seen.stream(s).late - running.late.get(s, 0) for s in streams),
            "streams": {s: asdict(seen.stream(s)) for s in streams},
            "waits": waits(seen, self.name, pipeline.streams),
            "waiting": {s: None if w is None else asdict(w) for s, w in waiting.items()},
            "hot_shards": [asdict(h) for h in seen.hot_shards if h.digest in digests],
            "split_keys": [asdict(s) for s in seen.split_keys if s.digest in digests],
            "lane": self._lane(pipeline, running),
        }
        return answer

    def _lane(self, pipeline: Pipeline, running: BookedQuery) -> dict[str, Any] | None:
        """Return which way important rows take, and how the lane does."""
        streams = [pipeline.streams[s] for s in sorted(running.streams)]
        state = pipeline.lane_state()
        if state is None or all(stream.priority is None for stream in streams):
            return None
        plan, way = pipeline.observation.plan, None
        if plan is not None and plan.below(self.name):
            way = taken(plan.answer(self.name), streams, self.session.config, running)
        return {
            "by": None if way is None else way.by,
            "text": "the query takes part from the next batch on" if way is None else str(way),
            "rows": state.status.rows.get(self.name, 0),
            "early_rows": state.status.rows.get(early_outlet(self.name), 0),
            **state.described(),
        }

    def _service(self, seen: Observation, running: BookedQuery) -> dict[str, Any]:
        """Return how soon answers are wanted and came, and what they were worth."""
        promise, service = running.promise, seen.services.get(self.name, Service())
        last = seen.last_served.get(self.name)
        rate = seen.rates_out.get(self.name, 0.0)
        return {
            "within": promise.within,
            "weight": promise.weight,
            "utility": service.utility / service.rows / promise.weight if service.rows else None,
            "first": None if last is None else last.first,
            "last": None if last is None else last.last,
            "weighted_rows_per_second": promise.weight * rate,
        }

    def _work(self, seen: Observation) -> list[dict[str, Any]]:
        """Return what each operator of the query did since the pipeline was opened."""
        if seen.plan is None:
            return []
        nodes = (seen.plan.nodes[at] for at in sorted(seen.plan.below(self.name)))
        return [
            {"operator": node.label, "stage": node.stage} | asdict(seen.totals[node.digest])
            for node in nodes
            if node.digest in seen.totals
        ]

    def _state(self, pipeline: Pipeline, running: BookedQuery) -> str:
        if running.paused:
            return "paused"
        if pipeline.failure() is not None:
            return "failed"
        if pipeline.have_ended(running.streams):
            return "ended"
        return "running" if pipeline.active else "stopped"

    def _note(self, pipeline: Pipeline, running: BookedQuery) -> str:
        """Return what a user should know of a query that will see nothing."""
        if running.paused or not pipeline.have_ended(running.streams):
            return ""
        seen, streams = pipeline.observation, sorted(running.streams)
        since = running.since
        if running.batch is not None and (
            since is None or any(seen.stream(s).newest >= since for s in streams)
        ):
            return ""
        which = f"stream {streams[0]}" if len(streams) == 1 else f"streams {', '.join(streams)}"
        return (
            f"{which} had ended before query {self.name} began, so it sees no row; create the "
            f"query before the stream is read to its end, or run it on another checkpoint"
        )

    def _running(self) -> bool:
        pipeline = self.session._pipeline
        return pipeline is not None and self.name in pipeline.book.queries
