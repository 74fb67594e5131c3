"""A fragment: the operators of one stage in one shard, joined by queues, driven by a scheduler.

The same object runs inside a Spark task, in unit tests and in experiments.  It is fed trains of
messages, or single ones, works in turns until every queue is empty, and hands on what leaves the
stage: messages for later stages, and the rows of answers.

A *turn* lets one operator take one message.  It ends when the operator has made all that follows,
or a quantum of rows: then it goes on in a later turn, and what it made can be worked off before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import DataError
from penstock.model import INF, MIN_TIME, Batch, Closed, Heartbeat, Message
from penstock.operators.base import Context, Operator
from penstock.operators.output import OutputOperator
from penstock.physical.boards import board_of
from penstock.physical.efforts import Effort, Experience
from penstock.physical.overflow import Overflow
from penstock.physical.plan import PhysicalPlan
from penstock.physical.trains import Trains
from penstock.queues.held import Held
from penstock.queues.stored import Queue, Stored
from penstock.runs.destinations import Destinations
from penstock.runs.merging import Merging
from penstock.runs.state import State, Storage
from penstock.schedule.fifo import Nearest
from penstock.schedule.policy import Policy, policy
from penstock.settings import Settings

Reader = tuple[int, int, tuple[int, ...] | None]
"""An operator, its port, and the columns that it reads, None: all."""


class Work:
    """Counts what one operator does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rows_in = self.rows_out = self.bytes_in = self.bytes_out = self.queued = 0

    def effort(self) -> Effort:
        return Effort(
            self.seconds, self.rows_in, self.rows_out, self.bytes_out, self.queued, self.bytes_in
        )


class Fragment:
    """One stage of a plan in one shard, for one micro-batch.

    ``send(channel, message)`` is called for what goes to a later stage, and ``deliver(node, batch,
    operator)`` for the rows of an answer.  ``positions`` are the operators that take part, all of
    the stage unless it is said otherwise.  ``experience`` is what policies know beforehand.
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
        experience: Experience | None = None,
    ) -> None:
        self.plan = plan
        chosen = plan.of_stage(stage) if positions is None else positions
        self.positions = [at for at in chosen if plan.nodes[at].spec is not None]
        self._send = send
        self._deliver = deliver
        self._config = config
        self._quantum = config.scheduler_quantum
        self._most_made = config.scheduler_quantum or config.block_rows
        self._operators: dict[int, Operator] = {}
        self._states: dict[int, State] = {}
        self._contexts: list[tuple[Context, frozenset[str]]] = []
        self._queues: dict[int, list[Queue]] = {}
        self._readers: dict[int, list[Reader]] = {}
        self._channel_readers: dict[int, list[Reader]] = {}
        self._outgoing: dict[int, list[int]] = {}
        self._works: dict[int, Work] = {}
        self._under_way: dict[int, tuple[Iterator[Message], int]] = {}
        """What operators still have to make, of which train, after they stopped."""
        self._last_beats: dict[int, Heartbeat] = {}
        """For the answers that show how things are now: they get one heartbeat a batch."""
        self._train = 0
        self._made_before: dict[int, int] = {}
        self._trains: Trains | None = None
        self.held = Held()
        self._overflow: Overflow | None = None
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
            self._queues[at] = [Queue(source.columns) for source in node.inputs]
            self._works[at] = Work()
            for port, source in enumerate(node.inputs):
                reader = (at, port, source.columns)
                if source.channel is None:
                    self._readers.setdefault(source.producer, []).append(reader)
                else:
                    self._channel_readers.setdefault(source.channel, []).append(reader)
        for number, channel in enumerate(plan.channels):
            self._outgoing.setdefault(channel.producer, []).append(number)
        self.board = board_of(plan, self.positions, self._queues, experience or Experience())
        self.board.bound = config.scheduler_bound
        self.board.waiting = self._waiting = dict.fromkeys(self.positions, 0)
        self._follow(Nearest())
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
        """Put a message that came through a channel into the queues of its readers."""
        self._put(self._channel_readers.get(channel, []), message, None)

    def bring(self, source: int, rows: Batch) -> None:
        """Put rows of a source into the queues of its readers, as trains if they are many."""
        step = self._config.train_rows or len(rows)
        for first in range(0, max(1, len(rows)), max(1, step)):
            self._train += 1
            piece = rows if step >= len(rows) else rows.slice(first, min(len(rows), first + step))
            self.emit(source, piece)
        if step < len(rows):
            self._choose()

    def emit(self, source: int, message: Message) -> None:
        """Hand on what a source brought: to the next queues and out of the stage."""
        self._put(self._readers.get(source, []), message, None)
        self._out(source, message)

    def _out(self, producer: int, message: Message) -> None:
        for channel in self._outgoing.get(producer, ()):
            self._send(channel, message)

    def run(self) -> None:
        """Work until every queue is empty."""
        while self.turn():
            pass

    def admit(self, trains: Trains) -> None:
        """Take trains, of which the next is begun when an operator that reads them gets a turn."""
        self._trains = trains
        self.board.more = True
        if self._quantum or not trains.is_one:
            self._choose()
        for at in self.board.leaves:
            self._policy.ready(at)
        if self._config.scheduler.startswith("qos"):  # all that came is there to be chosen from
            while self.board.more:
                self._next_train()

    def turn(self) -> bool:
        """Let one operator work; return False when there is nothing more to do."""
        at = self._policy.next()
        if at is None:
            if self.board.more:
                self._next_train()
            elif self._last_beats:
                beats, self._last_beats = self._last_beats, {}
                for output, beat in beats.items():
                    self._into([(output, 0, None)], beat, None)
            else:
                return False
            return True
        if not self.board.waits(at):
            self._next_train()
            if not self.board.waits(at):  # the train has nothing for it
                self._wake(at)
                return True
        self._step(at)
        while self._whole and self.board.waits(at):
            self._step(at)
        self._wake(at)
        return True

    def done(self) -> dict[str, Effort]:
        """Return what each operator did so far, by digest."""
        return {self.plan.nodes[at].digest: self._works[at].effort() for at in self.positions}

    def _wake(self, at: int) -> None:
        if self.board.is_ready(at):
            self._policy.ready(at)

    def efforts(self) -> dict[str, tuple[float | int, ...]]:
        """Return the same for a report: the fields of each `Effort`."""
        return {digest: effort.told() for digest, effort in self.done().items()}

    def close(self) -> dict[str, Any]:
        """Close every operator and return the description of each state, by digest."""
        described = {}
        for at, operator in self._operators.items():
            began = time.perf_counter()
            operator.close()
            self._works[at].seconds += time.perf_counter() - began
            described[self.plan.nodes[at].digest] = self._states[at].describe()
        return described

    # choosing

    def _choose(self) -> None:
        """Follow the policy of the settings."""
        self._follow(policy(self._config.scheduler))
        self._whole = self._config.scheduler.endswith("+")

    def _follow(self, chosen: Policy) -> None:
        self._policy = chosen
        self._whole = False
        chosen.open(self.board)
        for at in self.positions:
            if self.board.is_ready(at):
                chosen.ready(at)

    def _next_train(self) -> None:
        """Feed the next train, if there is one."""
        assert self._trains is not None
        self._trains.used(max(self.held.restart(), self._most_made_of_one()))
        train = self._trains.next()
        if train is None:
            self.board.more = False
            return
        self._train += 1
        self.board.admitted = self._train + 1
        for channel, message in train.messages:
            self.feed(channel, message)
        for channel, beat in train.beats.items():
            self.feed(channel, Heartbeat(beat))
        self.board.more = not train.last

    def _most_made_of_one(self) -> int:
        """Return the most bytes that one operator made since the last call.

        They may never have waited all at once, but the operator had the rows for them.
        """
        made = {at: work.bytes_out for at, work in self._works.items()}
        before, self._made_before = self._made_before, made
        return max((size - before.get(at, 0) for at, size in made.items()), default=0)

    # working

    def _step(self, at: int) -> None:
        """Let one operator take one message, or go on with the one that it has begun."""
        operator, work = self._operators[at], self._works[at]
        began = time.perf_counter()
        if at in self._under_way:
            results, train = self._under_way.pop(at)
            del self.board.unfinished[at]
        else:
            port = next(p for p, queue in enumerate(self._queues[at]) if len(queue))
            message, train = self._take(at, port, work)
            results = iter(operator.receive(port, message))
        work.seconds += time.perf_counter() - began
        made = 0
        while made < self._most_made:
            began = time.perf_counter()
            try:
                result = next(results, None)
            except DataError as error:
                raise self.plan.blamed(error, at) from None
            work.seconds += time.perf_counter() - began
            if result is None:
                return
            made += self._hand_on(at, result, operator, train)
        self._under_way[at] = results, train
        self.board.unfinished[at] = train

    def _take(self, at: int, port: int, work: Work) -> tuple[Message, int]:
        queue = self._queues[at][port]
        bytes_before, train = queue.bytes, queue.train
        message, stored = queue.take(self._quantum)
        if isinstance(message, Batch):
            work.rows_in += len(message)
            work.bytes_in += bytes_before - queue.bytes
        if stored is not None:
            self._waiting[at] -= 1
            if not stored.readers:
                self._free(stored)
        return message, train

    def _hand_on(self, at: int, result: Message, operator: Operator, train: int) -> int:
        """Pass on what an operator made; return how many rows it has."""
        if isinstance(operator, OutputOperator):
            if isinstance(result, Batch):
                self._deliver(at, result, operator)
            return 0
        rows = size = 0
        if isinstance(result, Batch):
            rows = len(result)
            if rows == 0:
                return 0
            size = result.nbytes
            work = self._works[at]
            work.rows_out += rows
            work.bytes_out += size
        elif not isinstance(result, Heartbeat) and len(result) == 0:
            return 0
        self._put(self._readers.get(at, []), result, train, size)
        self._out(at, result)
        return rows

    def _put(
        self, readers: list[Reader], message: Message, train: int | None, size: int | None = None
    ) -> None:
        """Put a message into queues; heartbeats of what shows the present wait for the end."""
        if isinstance(message, Heartbeat):
            now = [reader for reader in readers if self._shows_now(reader[0])]
            for at, _, _ in now:
                self._last_beats[at] = message
            if now:
                readers = [reader for reader in readers if reader not in now]
        elif isinstance(message, Closed):
            for reader in readers:
                columns = reader[2]
                moved: Closed | None = message
                if columns is not None:
                    moved = message.moved({c: at for at, c in enumerate(columns)})
                if moved is not None:
                    self._into([reader], moved, train)
            return
        self._into(readers, message, train, size)

    def _into(
        self, readers: list[Reader], message: Message, train: int | None, size: int | None = None
    ) -> None:
        if not readers:
            return
        made = train is not None
        stored = Stored(message, self._train if train is None else train, made, size)
        if made and stored.bytes and self.held.now + stored.bytes > self._config.stage_memory:
            stored.message, stored.spilled = self._spilled(message), True
        for at, port, _ in readers:
            self._queues[at][port].put(stored)
            self._waiting[at] += 1
            work = self._works[at]
            if work.queued < self._waiting[at]:
                work.queued = self._waiting[at]
        if made:
            under_way = self.board.under_way
            under_way[stored.train] = under_way.get(stored.train, 0) + 1
        if stored.bytes:
            self.held.add(stored.bytes, stored.spilled)
        for at, _, _ in readers:
            self._policy.ready(at)

    def _spilled(self, message: Message) -> Message:
        """Return rows that wait on disk: those before them fill the memory of the stage."""
        assert isinstance(message, Batch)
        if self._overflow is None:
            self._overflow = Overflow(0)
        return self._overflow.keep(message)

    def _free(self, stored: Stored) -> None:
        """Forget a message that all readers have taken."""
        if stored.bytes:
            self.held.add(-stored.bytes, stored.spilled)
        if stored.made:
            under_way = self.board.under_way
            under_way[stored.train] -= 1
            if not under_way[stored.train]:
                del under_way[stored.train]

    def _shows_now(self, at: int) -> bool:
        """Whether an operator is an answer that shows how things are at one instant."""
        operator = self._operators[at]
        return isinstance(operator, OutputOperator) and operator.mode in ("view", "delta", "kept")
