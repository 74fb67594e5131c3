"""The run-time interface of operators, and the base of those that work in complete time slices.

Per micro-batch an operator is opened on its state, receives messages on its ports, and is closed.
`Operator.receive` is the only place that asks what kind a message is: rows go to `on_rows`, told
ends to `on_ends`, heartbeats to `on_progress`; these two pass on what they get unless an operator
says otherwise.  That a part is closed goes to `on_closed`: who does not know what to make of it
lets it drop, which is always correct.

A sliced operator waits until the heartbeats of *all* its ports have passed from ``since`` to
``until``; then `slice` sees every row with ``since <= start < until`` and every told end in that
range (`penstock.operators.inbox`), and what it emits about that range is final.  Rows and ends at
or above ``until`` wait in its state.  So an answer cannot depend on where batches were cut.

Negative tuples reach `slice` as ends.  An operator that ``reads_deaths`` also gets the rows that
died (`Slice.deaths`): it need not remember which rows are alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.expr.arrow import evaluate
from penstock.expr.nodes import Expr
from penstock.model import (
    I64,
    INF,
    MIN_TIME,
    Batch,
    Closed,
    Ends,
    Heartbeat,
    Mask,
    Message,
    Settled,
    one_array,
    to_mask,
)
from penstock.operators.inbox import Inbox, Slice
from penstock.operators.parts import WaitingParts, newest_of
from penstock.runs.holder_numbers import holder_numbers
from penstock.runs.merging import Merging
from penstock.runs.state import State
from penstock.settings import Settings

Columns: TypeAlias = tuple[int, ...]

_LARGE = 4096
"""Parts with at least this many rows on average stay apart: copying costs more than it saves."""


@dataclass
class Context:
    """What an operator is given when it is opened.

    ``node`` and ``shard``, one of ``shards``, make holder numbers unique in the whole plan.
    ``now`` is the largest time seen in the data.  ``block`` bounds the rows of one output batch of
    an expansion.
    ``settings`` are those in force: none of them may change an answer.  ``tables`` are the ports
    whose rows are those of a static table: they all come in one micro-batch, before the first
    slice.  ``slowest`` is the least heartbeat of the relations that are kept for one-time queries.
    """

    state: State
    node: int = 0
    shard: int = 0
    shards: int = 1
    now: int = MIN_TIME
    merging: Merging = field(default_factory=Merging)
    block: int = 1 << 18
    settings: Settings = field(default_factory=Settings)
    tables: frozenset[int] = frozenset()
    slowest: int = INF

    def new_holders(self, count: int) -> I64:
        """Return ``count`` holder numbers never used before, ascending."""
        used = self.state.numbers.get("holders", 0)
        first = holder_numbers(self.node, self.shard, self.shards).after(used, count)
        self.state.numbers["holders"] = used + count
        return np.arange(first, first + count, dtype=np.int64)


class Operator(ABC):
    """What a fragment runs: it is opened, receives messages on its ports, and is closed.

    What planners must know of it beforehand stands in its `penstock.operators.spec.Spec`.
    """

    ports: int = 1

    def open(self, context: Context) -> None:
        """Start a micro-batch. The default keeps the context."""
        self.context = context

    def receive(self, port: int, message: Message) -> Iterator[Message]:
        """Take one message and yield what follows from it."""
        if isinstance(message, Batch):
            yield from self.on_rows(port, message)
        elif isinstance(message, Ends):
            yield from self.on_ends(port, message)
        elif isinstance(message, Heartbeat):
            yield from self.on_progress(port, message.time)
        elif isinstance(message, Closed):
            yield from self.on_closed(port, message)
        else:
            yield from self.on_settled(port, message)

    @abstractmethod
    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        """Take rows, or the negative tuples of rows that die."""

    def on_ends(self, port: int, ends: Ends) -> Iterable[Message]:
        """Take told ends. The default passes them on."""
        return (ends,)

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        """Take a heartbeat. The default, for one port, passes it on."""
        return (Heartbeat(time),)

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        """Take the promise that a part of a port is closed. The default makes no use of it."""
        return ()

    def on_settled(self, port: int, settled: Settled) -> Iterable[Message]:
        """Take holders that are never told. The default passes them on."""
        return (settled,)

    def uses_part(self, port: int, closed: Closed) -> bool:
        """Whether the operator can use that a part is closed. The default cannot."""
        return False

    def parts_after(self, known: Sequence[tuple[int, Columns]]) -> Sequence[Columns]:
        """Return the columns whose parts it can close itself, given those of its ports.

        ``known`` are ports and columns, all of which it uses.  The default can close none.
        """
        return ()

    def close(self) -> None:  # noqa: B027 (most stateless operators have nothing to do here)
        """End the micro-batch: put into the state what must survive."""


class SlicedOperator(Operator):
    """The base of operators with state. Subclasses implement `load`, `slice` and `save`."""

    reads_deaths: bool = False

    def __init__(self, input_types: Sequence[Sequence[pa.DataType]]) -> None:
        self.ports = len(input_types)
        self.input_types = [tuple(t) for t in input_types]

    @property
    def since(self) -> int:
        """The instant below which everything is worked off."""
        return self.inbox.since

    def open(self, context: Context) -> None:
        super().open(context)
        whole = self.reads_deaths and context.settings.lifetime == "negative"
        self.inbox = Inbox(context.state, self.input_types, whole)
        self.waiting_parts = WaitingParts(context.state)
        self.load()

    def on_rows(self, port: int, rows: Batch) -> Iterable[Message]:
        self.inbox.put_rows(port, rows)
        return ()

    def on_ends(self, port: int, ends: Ends) -> Iterable[Message]:
        self.inbox.put_ends(port, ends)
        return ()

    def on_progress(self, port: int, time: int) -> Iterable[Message]:
        until = self.inbox.progress(port, time)
        if until > self.since:
            yield from self.slice(self.inbox.take(until))
            self.inbox.since = until
        yield from self.close_parts(until)
        yield Heartbeat(until)

    def on_closed(self, port: int, closed: Closed) -> Iterable[Message]:
        if self.uses_part(port, closed):
            self.waiting_parts.add(port, closed, self.newest(port, closed))
        return ()

    def on_settled(self, port: int, settled: Settled) -> Iterable[Message]:
        return ()

    def newest(self, port: int, closed: Closed) -> int:
        """Return an instant that must pass before all rows of a part are worked off."""
        if closed.numbered:
            return self.inbox.newest
        return newest_of(self.inbox.waiting(port), closed)

    def close_parts(self, until: int) -> Iterator[Message]:
        """Use the closed parts all of whose rows are worked off at ``until``."""
        if self.waiting_parts:
            for port, closed in self.waiting_parts.ready(until):
                yield from self.close_part(port, closed)

    def close_part(self, port: int, closed: Closed) -> Iterable[Message]:
        """Free state, and tell what is known now: no more rows of a part come."""
        return ()

    def close(self) -> None:
        self.inbox.save()
        self.waiting_parts.save()
        self.save()

    @abstractmethod
    def load(self) -> None:
        """Read the state of this operator from ``self.context.state``."""

    @abstractmethod
    def slice(self, slice: Slice) -> Iterator[Batch | Ends | Closed | Settled]:
        """Work off one complete slice.

        What is yielded: rows with ``since <= start < until`` (any end, determined or with a holder
        made by ``self.context.new_holders``), and ends in ``[since, until)`` of holders yielded
        before. An operator whose rows keep the holders of its input must also yield the input's
        ends.
        """

    @abstractmethod
    def save(self) -> None:
        """Write the state of this operator to ``self.context.state``."""


def few(parts: list[Batch]) -> list[Batch]:
    """Put small parts together, because each part becomes a run of state or of an answer."""
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
