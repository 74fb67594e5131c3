"""The run-time interface of operators, and the base of those that work in complete time slices.

Per micro-batch an operator is opened on its state, receives messages on its ports, and is closed.
A sliced operator waits until the heartbeat of *all* its ports has passed from ``since`` to
``until``; then `slice` sees every row with ``since <= start < until`` and every told end in that
range, and what it emits about that range is final.  Rows and ends at or above ``until`` wait in its
state. So an answer cannot depend on where batches were cut.

Negative tuples reach `slice` as ends.  An operator that ``reads_deaths`` also gets the rows that
died, as `Deaths`: it needs no memory of what is alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.model import (
    I64,
    INF,
    MIN_TIME,
    Batch,
    Deaths,
    Ends,
    Heartbeat,
    Mask,
    Message,
    one_array,
    to_mask,
    told_by,
)
from penstock.runs.lifetimes import ORIGIN
from penstock.runs.merging import Merging
from penstock.runs.state import State
from penstock.settings import Settings

_LARGE = 4096
"""Rows of a part from which on copying it costs more than one part more."""


@dataclass
class Context:
    """What an operator is given when it is opened.

    ``node`` and ``shard`` make holder numbers unique in the whole plan.  ``now`` is the largest
    time seen in the data.  ``block`` bounds the rows of one output batch of an expansion.
    ``settings`` are those in force: none of them may change an answer.  ``tables`` are the ports
    whose rows are those of a static table: they all come in one micro-batch, before the first
    slice.  ``slowest`` is the least heartbeat of the relations that are kept to be asked.
    """

    state: State
    node: int = 0
    shard: int = 0
    now: int = MIN_TIME
    merging: Merging = field(default_factory=Merging)
    block: int = 1 << 18
    settings: Settings = field(default_factory=Settings)
    tables: frozenset[int] = frozenset()
    slowest: int = INF

    def new_holders(self, count: int) -> I64:
        """Return ``count`` holder numbers never used before, ascending."""
        used = self.state.numbers.get("holders", 0)
        self.state.numbers["holders"] = used + count
        base = ((self.node + 1) << (ORIGIN + 10)) | (self.shard << ORIGIN)
        return np.arange(base + used + 1, base + used + 1 + count, dtype=np.int64)


class Operator(ABC):
    """Four methods: open, receive, close, and the number of ports.

    ``rowwise``: a row in, at most one row out, with the same validity.  ``holders`` says whether
    the operator ``makes`` holders of its own, ``passes`` those of its inputs on, makes them only
    where an input has them (``combines``), or has ``none`` on its rows.  ``ends_rows``: it decides
    when its rows end, so that they need new signs where negative tuples are used.
    """

    ports: int = 1
    rowwise: bool = False
    holders: str = "makes"
    ends_rows: bool = True

    def open(self, context: Context) -> None:
        """Start a micro-batch. The default keeps the context."""
        self.context = context

    @abstractmethod
    def receive(self, port: int, message: Message) -> Iterator[Message]:
        """Take one message and yield what follows from it."""

    def close(self) -> None:  # noqa: B027 (most stateless operators have nothing to do here)
        """End the micro-batch: put into the state what must survive."""


class SlicedOperator(Operator):
    """The base of operators with state. Subclasses implement `load`, `slice` and `save`.

    ``negative``: rows and their ends come as negative tuples.
    """

    reads_deaths: bool = False

    def __init__(self, input_types: Sequence[Sequence[pa.DataType]]) -> None:
        self.ports = len(input_types)
        self.input_types = [tuple(t) for t in input_types]

    def open(self, context: Context) -> None:
        super().open(context)
        state = context.state
        self.negative = context.settings.lifetime == "negative"
        self._rows: list[list[Batch]] = [[] for _ in range(self.ports)]
        self._ends: list[list[Ends]] = [[] for _ in range(self.ports)]
        self._minus: list[list[Batch]] = [[] for _ in range(self.ports)]
        for port in range(self.ports):
            for run in state.runs(f"waiting.{port}"):
                self._rows[port].append(Batch.from_table(run.table()))
            for run in state.runs(f"ends.{port}"):
                table = run.table()
                self._ends[port].append(
                    Ends(table.column("holder").to_numpy(), table.column("end").to_numpy())
                )
            for run in state.runs(f"minus.{port}"):
                self._minus[port].append(replace(Batch.from_table(run.table()), minus=True))
        self._beats = [state.numbers.get(f"heartbeat.{p}", MIN_TIME) for p in range(self.ports)]
        self.since = state.numbers.get("since", MIN_TIME)
        self._changed = [False] * self.ports
        self.load()

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        if isinstance(message, Batch):
            if message.minus and not self.reads_deaths:
                self._ends[port].append(told_by(message))
            elif len(message):
                (self._minus if message.minus else self._rows)[port].append(message)
            self._changed[port] = True
            return
        if isinstance(message, Ends):
            if len(message):
                self._ends[port].append(message)
                self._changed[port] = True
            return
        self._beats[port] = max(self._beats[port], message.time)
        until = min(self._beats)
        if until <= self.since:
            yield Heartbeat(self.since)
            return
        parts, ends = [], []
        for p in range(self.ports):
            cut = [some.split(until) for some in self._ends[p]]
            told = Ends.concat([below for below, _ in cut])
            parts.append(self._starting_below(p, told, until))
            if self.reads_deaths and self.negative:
                told = self._told_by_rows(p, until)
            ends.append(told)
            self._ends[p] = [later for _, later in cut if len(later)]
            self._changed[p] = True
        yield from self.work(parts, ends, self.since, until)
        self.since = until
        yield Heartbeat(until)

    def _starting_below(self, port: int, told: Ends, until: int) -> list[Batch]:
        """Return the rows that start below ``until``, as they came; the others wait."""
        below, later = [], []
        for rows in self._rows[port]:
            now = rows.start < until
            if now.all():
                below.append(rows)
                continue
            below.append(rows.take(now))
            rest = rows.take(~now)
            known = told.told(rest.holder)  # told before it starts: a ghost
            later.append(rest if known is None else rest.take(known == INF))
        self._rows[port] = [rows for rows in later if len(rows)]
        return [rows for rows in below if len(rows)]

    def _told_by_rows(self, port: int, until: int) -> Deaths:
        """Return what the negative tuples below ``until`` tell; the others wait."""
        below, later = [Batch.empty(self.input_types[port])], []
        for rows in self._minus[port]:
            now = rows.end < until
            if until == INF or now.all():
                below.append(rows)
                continue
            below.append(rows.take(now))
            later.append(rows.take(~now))
        self._minus[port] = [rows for rows in later if len(rows)]
        return Deaths.brought(below)

    def work(
        self, parts: list[list[Batch]], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        """Work off one complete slice, whose rows come in parts.

        The default puts the parts of a port together for `slice`; where that is not needed, rows
        pass uncopied.
        """
        rows = [
            Batch.concat(some or [Batch.empty(types)])
            for some, types in zip(parts, self.input_types, strict=True)
        ]
        yield from self.slice(rows, ends, since, until)

    def close(self) -> None:
        state = self.context.state
        for port in range(self.ports):
            state.numbers[f"heartbeat.{port}"] = self._beats[port]
            if not self._changed[port]:
                continue
            state.drop(f"waiting.{port}")
            state.drop(f"ends.{port}")
            if self._rows[port]:
                state.append(f"waiting.{port}", Batch.concat(self._rows[port]).to_table())
            ends = Ends.concat(self._ends[port])
            state.append(f"ends.{port}", pa.table({"holder": ends.holder, "end": ends.end}))
            state.drop(f"minus.{port}")
            if self._minus[port]:
                state.append(f"minus.{port}", Batch.concat(self._minus[port]).to_table())
        state.numbers["since"] = self.since
        self.save()

    @abstractmethod
    def load(self) -> None:
        """Read the state of this operator from ``self.context.state``."""

    @abstractmethod
    def slice(
        self, rows: list[Batch], ends: list[Ends], since: int, until: int
    ) -> Iterator[Batch | Ends]:
        """Work off one complete slice. ``rows[p]`` and ``ends[p]`` belong to port p, in no order.

        What is yielded: rows with ``since <= start < until`` (any end, determined or with a holder
        made by ``self.context.new_holders``), and ends in ``[since, until)`` of holders yielded
        before. An operator whose rows keep the holders of its input must also yield the input's
        ends.
        """

    @abstractmethod
    def save(self) -> None:
        """Write the state of this operator to ``self.context.state``."""


def few(parts: list[Batch]) -> list[Batch]:
    """Put parts together unless they are large: each becomes a run of state or of an answer."""
    if len(parts) < 2 or sum(map(len, parts)) >= _LARGE * len(parts):
        return parts
    return [Batch.concat(parts)]


def with_keys(rows: Batch, keys: Sequence[Expr]) -> tuple[Batch, list[pa.Array]]:
    """Return the rows none of whose keys is null, and their keys: a null has no partners."""
    columns = [one_array(evaluate(key, rows.columns, len(rows))) for key in keys]
    usable: Mask | None = None
    for column in columns:
        if column.null_count:
            valid = to_mask(column.is_valid())
            usable = valid if usable is None else usable & valid
    if usable is None:
        return rows, columns
    return rows.take(usable), [column.filter(pa.array(usable)) for column in columns]
