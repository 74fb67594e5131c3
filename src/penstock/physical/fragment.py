"""A fragment: the operators of one stage in one shard, joined by queues, driven by a scheduler.

The same object runs inside a Spark task, in unit tests and in experiments.  It is fed messages from
channels, works until every queue is empty, and hands on what leaves the stage: messages for later
stages, and the rows of answers.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import DataError
from penstock.model import INF, MIN_TIME, Batch, Closed, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.output import OutputOperator
from penstock.physical.plan import PhysicalPlan
from penstock.queues.fifo import Fifo, Queue
from penstock.runs.destinations import Destinations
from penstock.runs.merging import Merging
from penstock.runs.state import State, Storage
from penstock.schedule.policy import policy
from penstock.settings import Settings


@dataclass(frozen=True)
class Effort:
    """What an operator did: seconds, rows that came and left, bytes of the columns that left.

    ``queued`` is how many messages waited for it at once, at most, in one shard.
    """

    seconds: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    queued: int = 0

    def __add__(self, other: Effort) -> Effort:
        return Effort(
            self.seconds + other.seconds,
            self.rows_in + other.rows_in,
            self.rows_out + other.rows_out,
            self.bytes_out + other.bytes_out,
            max(self.queued, other.queued),
        )


class Fragment:
    """One stage of a plan in one shard, for one micro-batch.

    ``send(channel, message)`` is called for what goes to a later stage, and ``deliver(node, batch,
    operator)`` for the rows of an answer.  ``positions`` are the operators that take part, all of
    the stage unless it is said otherwise.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        stage: int,
        shard: int,
        shards: int,
        states: dict[str, Any],
        storage: Storage,
        config: Settings,
        times: Mapping[str, int],
        send: Callable[[int, Message], None],
        deliver: Callable[[int, Batch, OutputOperator], None],
        positions: Sequence[int] | None = None,
    ) -> None:
        self.plan = plan
        chosen = plan.of_stage(stage) if positions is None else positions
        self.positions = [at for at in chosen if plan.nodes[at].spec is not None]
        self._send = send
        self._deliver = deliver
        self._policy = policy(config.scheduler)
        self._operators: dict[int, Operator] = {}
        self._states: dict[int, State] = {}
        self._contexts: list[tuple[Context, frozenset[str]]] = []
        self._queues: dict[int, list[Queue]] = {}
        self._is_last = True
        self._held = self._most_held = 0
        """Bytes of the rows that wait now, and at most."""
        self._waiting = dict.fromkeys(self.positions, 0)
        """How many messages wait for each operator."""
        self._ready: list[int] = []
        """The operators for which messages wait, in topological order."""
        self._consumers: dict[int, list[tuple[int, int, tuple[int, ...] | None]]] = {}
        self._channel_consumers: dict[int, list[tuple[int, int, tuple[int, ...] | None]]] = {}
        self._outgoing: dict[int, list[int]] = {}
        self.seconds: dict[int, float] = {}
        self._rows_in: dict[int, int] = {}
        self._rows_out: dict[int, int] = {}
        self._bytes_out: dict[int, int] = {}
        self._queued: dict[int, int] = {}
        self._merging = merging = Merging.within(
            config.merge_strategy, config.merge_fan_in, config.join_memory
        )
        for at in self.positions:
            node = plan.nodes[at]
            assert node.spec is not None
            state = State(storage, states.get(node.digest))
            operator = node.spec.build()
            tables = (p for p, source in enumerate(node.inputs) if plan.is_table(source.producer))
            context = Context(
                state, node.number, shard, shards, MIN_TIME, merging, config.block_rows, config
            )
            context.tables = frozenset(tables)
            operator.open(context)
            self._operators[at], self._states[at] = operator, state
            self._contexts.append((context, plan.streams_below(at)))
            self._queues[at] = [Fifo() for _ in node.inputs]
            self.seconds[at] = 0.0
            self._rows_in[at] = self._rows_out[at] = self._bytes_out[at] = self._queued[at] = 0
            for port, source in enumerate(node.inputs):
                entry = (at, port, source.columns)
                if source.channel is None:
                    self._consumers.setdefault(source.producer, []).append(entry)
                else:
                    self._channel_consumers.setdefault(source.channel, []).append(entry)
        for number, channel in enumerate(plan.channels):
            self._outgoing.setdefault(channel.producer, []).append(number)
        self.reached(times)

    def reached(self, times: Mapping[str, int]) -> None:
        """Tell every operator the largest time of the streams that it reads."""
        for context, streams in self._contexts:
            context.now = max((times.get(s, MIN_TIME) for s in streams), default=MIN_TIME)

    def heard(self, beats: Mapping[str, int]) -> None:
        """Tell the relations that are kept how far the slowest of them has come."""
        operators = self._operators.values()
        kept = [o for o in operators if isinstance(o, OutputOperator) and o.mode == "kept"]
        slowest = self.plan.slowest(beats) if kept else {}
        for operator in kept:
            operator.context.slowest = slowest.get(operator.timestamps, INF)

    def destinations(self, channel: int) -> Destinations:
        """Open what is remembered of the shards that a channel's rows went to."""
        target = self.plan.channels[channel]
        name = f"sent.{target.stage}.{target.exchange!r}"
        return Destinations(self._states[target.producer], name, self._merging)

    def feed(self, channel: int, message: Message) -> None:
        """Put a message that came through a channel into the queues of its consumers."""
        self._put(self._channel_consumers.get(channel, []), message)

    def emit(self, producer: int, message: Message) -> None:
        """Hand on what a node (or a source) made: to the next queues and out of the stage."""
        self._put(self._consumers.get(producer, []), message)
        for channel in self._outgoing.get(producer, ()):
            self._send(channel, message)

    def run(self) -> None:
        """Work until every queue is empty."""
        while self._ready:
            self._step(self._policy.next(self._ready))

    def advance(self, beats: Mapping[int, int], last: bool) -> int:
        """Feed heartbeats by channel and work; return how many bytes waited at once, at most.

        Only the ``last`` heartbeats of a batch reach answers that show how things are now.
        """
        self._is_last = last
        self._most_held = self._held
        for channel, beat in beats.items():
            self.feed(channel, Heartbeat(beat))
        self.run()
        return self._most_held

    def efforts(self) -> dict[str, tuple[float, int, int, int, int]]:
        """Return what was done so far, for a report: the fields of an `Effort`, by digest."""
        return {
            self.plan.nodes[at].digest: (
                self.seconds[at],
                self._rows_in[at],
                self._rows_out[at],
                self._bytes_out[at],
                self._queued[at],
            )
            for at in self.positions
        }

    def close(self) -> dict[str, Any]:
        """Close every operator and return the description of each state, by digest."""
        described = {}
        for at, operator in self._operators.items():
            began = time.perf_counter()
            operator.close()
            self.seconds[at] += time.perf_counter() - began
            described[self.plan.nodes[at].digest] = self._states[at].describe()
        return described

    def _step(self, at: int) -> None:
        """Let one operator take one message."""
        operator = self._operators[at]
        port = next(p for p, queue in enumerate(self._queues[at]) if len(queue))
        began = time.perf_counter()
        queue = self._queues[at][port]
        self._held -= queue.bytes
        message = queue.take()
        self._held += queue.bytes
        self._waiting[at] -= 1
        if not self._waiting[at]:
            del self._ready[bisect_left(self._ready, at)]
        spent = time.perf_counter() - began
        results = operator.receive(port, message)
        while True:
            began = time.perf_counter()
            try:
                result = next(results, None)
            except DataError as error:
                raise self.plan.blamed(error, at) from None
            spent += time.perf_counter() - began
            if result is None:
                break
            if isinstance(operator, OutputOperator):
                if isinstance(result, Batch):
                    self._deliver(at, result, operator)
                continue
            if isinstance(result, Batch):
                if len(result) == 0:
                    continue
                self._rows_out[at] += len(result)
                self._bytes_out[at] += sum(column.nbytes for column in result.columns)
            elif not isinstance(result, Heartbeat) and len(result) == 0:
                continue
            self.emit(at, result)
        self.seconds[at] += spent

    def _put(
        self, consumers: list[tuple[int, int, tuple[int, ...] | None]], message: Message
    ) -> None:
        rows = len(message) if isinstance(message, Batch) else 0
        for at, port, columns in consumers:
            if not self._is_last and isinstance(message, Heartbeat) and self._shows_now(at):
                continue
            queue = self._queues[at][port]
            self._rows_in[at] += rows
            self._queued[at] = max(self._queued[at], len(queue) + 1)
            self._held -= queue.bytes
            if columns is not None and isinstance(message, Batch):
                picked = message.with_columns([message.columns[c] for c in columns])
                queue.put(picked)
            elif columns is not None and isinstance(message, Closed):
                moved = message.moved({c: at for at, c in enumerate(columns)})
                if moved is None:
                    self._held += queue.bytes
                    continue
                queue.put(moved)
            else:
                queue.put(message)
            self._held += queue.bytes
            if not self._waiting[at]:
                insort(self._ready, at)
            self._waiting[at] += 1
        self._most_held = max(self._most_held, self._held)

    def _shows_now(self, at: int) -> bool:
        """Whether an operator is an answer that shows how things are at one instant."""
        operator = self._operators[at]
        return isinstance(operator, OutputOperator) and operator.mode in ("view", "delta", "kept")
