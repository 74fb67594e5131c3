"""The live table of a running session: what comes in, what goes out, how far it lags.

On a terminal it is redrawn in place; elsewhere a plain line per interval is printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.lane.telling import LaneState
from penstock.physical.observation import Observation
from penstock.session import QueryHandle, Session
from penstock.showing import SCREEN, size_text, terminal_table, time_text
from penstock.sources.base import Waiting

_REDRAW = 0.5
_LINE_EVERY = 5.0
_ANSWER_ROWS = 8
"""Rows of an answer that are shown while it changes."""
_PRIORITIES = 6
"""The highest priorities, of which is shown how soon rows were answered."""


class LiveTable:
    """Shows a session until the caller stops calling `tick`."""

    def __init__(self, session: Session, console: Console, title: str) -> None:
        self.session = session
        self.console = console
        self.title = title
        self._began = time.monotonic()
        self._next = self._next_line = 0.0
        self._losses = 0
        self._live: Live | None = None
        self._drawing = ExitStack()

    def __enter__(self) -> LiveTable:
        if self.console.is_terminal:
            self._live = in_place(self.console, self.render(), self._drawing)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            self._drawing.close()
        else:
            self._tell_loss()
            self._print(self.line())

    def tick(self) -> None:
        """Redraw if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + _REDRAW
            self._live.update(Group(self.render(), *self._answers()), refresh=True)
            return
        self._next = now + _REDRAW
        self._tell_loss()
        if now >= self._next_line and self.session.pipeline.observation.batches:
            self._next_line = now + _LINE_EVERY
            self._print(self.line())

    def _tell_loss(self) -> None:
        """Say once that the process of the lane was lost; the table shows it as well."""
        lane = self.session.pipeline.lane_state()
        if lane is not None and lane.status.losses > self._losses:
            self._losses = lane.status.losses
            self._print(lane.loss)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Return the state of the session as one plain line."""
        pipeline = self.session.pipeline
        seen, lane = pipeline.observation, pipeline.lane_state()
        rows = sum(seen.rows_out.values())
        if lane is not None:
            rows += sum(lane.status.rows.values())
        return (
            f"{datetime.now():%H:%M:%S} batch {seen.batch} "
            f"in {seen.arrived} rows ({seen.rate_in:.0f}/s) out {rows} rows "
            f"batch time {seen.batch_seconds:.2f} s heartbeat {self._heartbeats(seen)}"
            f"{self._late(seen)}{'' if lane is None else f' {lane}'}"
        )

    def render(self) -> RenderableType:
        """Return the table."""
        pipeline = self.session.pipeline
        seen = pipeline.observation
        streams = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("stream", "rows", "late", "rejected", "heartbeat", "lag", "waiting"):
            streams.add_column(name, justify="left" if name in ("stream", "heartbeat") else "right")
        for name in sorted(pipeline.book.streams):
            stream, stamps = seen.stream(name), self._stamps(name)
            streams.add_row(
                name,
                f"{stream.rows:,}",
                f"{stream.late:,}",
                f"{stream.rejected:,}",
                time_text(stream.heartbeat, stamps),
                format_lag(stream.lag, stamps),
                format_waiting(pipeline.waiting(name)),
            )
        queries = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("query", "state", "rows", "rows/s", "state rows", "state size", "answers to"):
            queries.add_column(name, justify="left" if name in ("query", "state") else "right")
        for handle in self.session.handles():
            queries.add_row(*_query_row(handle))
        spent = time.monotonic() - self._began
        head = Text.assemble(
            (self.title, "bold"),
            f"  {spent:5.0f} s  batch {max(0, seen.batch)}"
            f"  {seen.batch_seconds:.2f} s per batch  {seen.rate_in:,.0f} rows/s in",
        )
        hot = [Text(str(found), style="yellow") for found in seen.hot_shards]
        hot += [Text(str(found), style="dim") for found in seen.split_keys]
        hot += [Text(told, style="dim") for told in self.session.waits()]
        lane = pipeline.lane_state()
        if lane is not None and not pipeline.active:
            lane = replace(lane, why="")  # the queries tell how they ended
        important = [] if lane is None else [Text(), *_lane_lines(lane)]
        return Group(head, Text(), streams, Text(), queries, *important, *hot)

    def _answers(self) -> list[RenderableType]:
        """Return what answers that go into no sink are by now."""
        found: list[RenderableType] = []
        for handle in self.session.handles():
            if handle.mode == "view" and handle.definition.sink is None:
                try:
                    rows = handle.shown_rows()
                except PenstockError:  # it has not begun
                    continue
                found += [Text(), terminal_table(rows, _ANSWER_ROWS, handle.name)]
        return found

    def _stamps(self, stream: str) -> bool:
        definition = self.session.pipeline.streams[stream]
        return str(definition.schema[definition.time].type).startswith("timestamp")

    def _late(self, seen: Observation) -> str:
        late = {name: stream.late for name, stream in sorted(seen.streams.items()) if stream.late}
        told = " ".join(f"{name}={count}" for name, count in late.items())
        return f" late {told}" if told else ""

    def _heartbeats(self, seen: Observation) -> str:
        names = sorted(self.session.pipeline.book.streams)
        beats = [time_text(seen.stream(name).heartbeat, self._stamps(name)) for name in names]
        return " ".join(f"{name}={beat}" for name, beat in zip(names, beats, strict=True))


def _lane_lines(lane: LaneState) -> Iterator[RenderableType]:
    """Yield what is shown of the lane: how it does, how soon answers came, by priority."""
    yield Text(str(lane), style="yellow" if lane.why else "")
    found = list(lane.status.latencies.items())
    if found:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("priority", "answered", "median", "99 % within"):
            table.add_column(name, justify="right")
        for priority, (count, middle, high) in found[:_PRIORITIES]:
            table.add_row(f"{priority}", f"{count:,}", _milliseconds(middle), _milliseconds(high))
        if len(found) > _PRIORITIES:
            table.add_row("others", f"{sum(told[0] for _, told in found[_PRIORITIES:]):,}")
        yield table
    if lane.loss:
        yield Text(lane.loss, style="yellow")


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def in_place(console: Console, first: RenderableType, until: ExitStack) -> Live:
    """Begin to draw in place on a terminal; what is printed meanwhile stands above it."""
    drawn = Live(
        first, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    until.enter_context(drawn)
    until.enter_context(SCREEN.taken(console))
    return drawn


def format_waiting(waiting: Waiting | None) -> str:
    """Return how much input is waiting as people read it."""
    if waiting is None:
        return "-"
    if waiting.unit == "bytes":
        return size_text(waiting.amount)
    return f"{waiting.amount:,} {waiting.unit}"


def format_lag(lag: int | None, stamps: bool) -> str:
    """Return how far a heartbeat is behind as people read it."""
    if lag is None:
        return "-"
    return f"{lag / 1e6:.1f} s" if stamps else str(lag)


def _query_row(handle: QueryHandle) -> list[str]:
    status = handle.status()
    return [
        handle.name,
        str(status["state"]),
        f"{status['rows']:,}",
        f"{status.get('rows_per_second', 0.0):,.0f}",
        f"{status.get('state_rows', 0):,}",
        size_text(status.get("state_bytes", 0)),
        time_text(status.get("heartbeat"), handle.timestamps),
    ]
