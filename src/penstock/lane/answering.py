"""Answering rows from the state of the last committed batch; nothing of it is changed.

An `Answerer` follows rows from their scans to the outputs of a plan, as `physical.lane_plan` says
what they may meet: at a join, what is stored or waits on the other ports below the heartbeat that
counts there, and rows that were answered before.

Of those it remembers what the committed state does not show: a row of a port, or a result of the
joins below it, that has a part at or above that heartbeat, and whose other parts were answered or
are below it.  Results of joins below a port depend on what is committed, so they are made anew for
each batch.  Only ports opposite which rows may be answered are remembered at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.algebra import Mark
from penstock.expr.arrow import evaluate_mask
from penstock.expr.nodes import Column
from penstock.model import I64, INF, MIN_TIME, Batch, Mask, one_array, to_numpy
from penstock.operators.base import Context, Operator
from penstock.operators.filter import FilterSpec
from penstock.operators.inbox import Inbox
from penstock.operators.join import JoinOperator, JoinSpec
from penstock.operators.multi_join import MultiJoinOperator, MultiJoinSpec
from penstock.operators.output import OutputSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.to_stream import ToStreamSpec
from penstock.operators.union import UnionSpec
from penstock.physical.answered import heard, hidden_columns
from penstock.physical.plan import Input, PhysicalPlan
from penstock.physical.split_routes import Route
from penstock.runs.spine import Piece
from penstock.runs.state import MemoryStorage, State, Storage
from penstock.settings import Settings


@dataclass(frozen=True)
class Committed:
    """What is true after a batch: states by shard and digest, and the heartbeats of streams.

    ``routes`` say where keys of joins are split.
    """

    batch: int
    states: Sequence[Mapping[str, Any]]
    beats: Mapping[str, int]
    storage: Storage
    routes: Mapping[int, Route] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """Rows of one stream that are to be answered: all declared columns, and their times."""

    columns: Sequence[pa.Array]
    time: I64

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True)
class _Leaf:
    """Where the hidden columns of a leaf stand in a node: its time, and its turn if it has one."""

    time: int
    turn: int | None


Leaves = Mapping[int, _Leaf]


class _Joins(Protocol):
    """An operator that can be asked for results without storing anything."""

    inbox: Inbox

    def laid(self, port: int, rows: Batch) -> Piece | None: ...
    def pieces(self, port: int) -> list[Piece]: ...
    def meet(
        self, port: int, rows: Batch, others: Sequence[Sequence[Piece]]
    ) -> Iterator[Batch]: ...


class Answerer:
    """Answers rows for one plan, from the state of one batch after another."""

    def __init__(self, plan: PhysicalPlan, config: Settings) -> None:
        self.plan = plan
        self._config = config
        lanes = {answer.query: answer for answer in plan.answers if answer.lane}
        self.queries = frozenset(lanes)
        self._wanted = frozenset(at for query in lanes for at in plan.below(query))
        self._outputs = {answer.node: answer for answer in lanes.values()}
        marks = {at: mark for at in self._wanted if (mark := self._mark(at)) is not None}
        asked = [(mark.leaf, at) for at, mark in marks.items() if mark.prioritised]
        self._sources = [at for _, at in sorted(asked)]
        self._leaves = self._follow_columns()
        self._asked_below = self._asked()
        self._operators: dict[int, Operator] = {}
        self._joins: dict[tuple[int, int], _Join] = {}
        self._answers: dict[str, list[Batch]] = {}
        self._committed: Committed | None = None

    @property
    def streams(self) -> frozenset[str]:
        """The streams whose rows it can answer."""
        return frozenset(self._source(at).name for at in self._sources)

    @property
    def digests(self) -> frozenset[str]:
        """The operators whose state it looks into."""
        return frozenset(self.plan.nodes[at].digest for at, _ in self._ports())

    @property
    def remembers(self) -> bool:
        """Whether rows that were answered matter for later ones."""
        return any(self._is_remembered(at, port) for at, port in self._ports())

    # -- what is true now ------------------------------------------------------------------------

    def renew(self, committed: Committed, memory: Sequence[Remembered] = ()) -> None:
        """Go on from another batch; ``memory`` are the rows that were answered and still count."""
        self._committed = committed
        self._joins = {}
        if not memory or not self.remembers:
            return
        oldest = oldest_remembered(self.plan, committed.beats)
        for at in self._sources:
            stream = self._source(at).name
            for known in memory:
                if known.stream == stream and known.batch >= self._first(at):
                    turn = np.full(len(known.rows), known.number, np.int64)
                    rows = self._scanned(at, known.rows, turn, known.batch, known.beats)
                    self._hand_on(at, rows, _Way(self._mark_of(at), oldest[stream]), None)

    def warm(self) -> None:
        """Open what will be asked, before anybody waits for it."""
        assert self._committed is not None
        for at, port in self._ports():
            others = (some for p, some in enumerate(self._asked_below[at]) if p != port)
            marks = {self._mark_of(source) for some in others for source in some}
            for shard in range(len(self._committed.states)):
                join = self._join(at, shard)
                for mark in marks:
                    self._seen(at, join, port, mark)

    def answer(self, rows: Mapping[str, Asked], turn: int) -> dict[str, Batch]:
        """Answer rows in one turn; return what is delivered to each query."""
        assert self._committed is not None
        self._answers = {}
        batch, beats = self._committed.batch, {self._committed.batch: self._committed.beats}
        for at in self._sources:
            asked = rows.get(self._source(at).name)
            if asked is not None and len(asked) and batch >= self._first(at):
                count = len(asked)
                turns = np.full(count, turn, np.int64)
                scanned = self._scanned(at, asked, turns, batch, beats)
                self._hand_on(at, scanned, _Way(self._mark_of(at)), None)
        return {query: Batch.concat(parts) for query, parts in self._answers.items()}

    # -- the plan --------------------------------------------------------------------------------

    def _source(self, at: int) -> Any:
        return self.plan.nodes[at].source

    def _mark(self, at: int) -> Mark | None:
        source = self.plan.nodes[at].source
        return None if source is None else source.mark

    def _mark_of(self, at: int) -> Mark:
        mark = self._mark(at)
        assert mark is not None
        return mark

    def _first(self, at: int) -> int:
        return self._mark_of(at).first

    def _ports(self) -> Iterator[tuple[int, int]]:
        """Yield the ports of all joins."""
        for at in sorted(self._wanted):
            if isinstance(self.plan.nodes[at].spec, JoinSpec | MultiJoinSpec):
                yield from ((at, port) for port in range(len(self.plan.nodes[at].inputs)))

    def _asked(self) -> dict[int, list[frozenset[int]]]:
        """Return for each node, port by port, the scans below it whose rows may be answered."""
        below: dict[int, frozenset[int]] = {}
        found: dict[int, list[frozenset[int]]] = {}
        for at in sorted(self._wanted):
            found[at] = [below[i.producer] for i in self.plan.nodes[at].inputs]
            own = frozenset((at,)) if at in self._sources else frozenset()
            below[at] = own.union(*found[at])
        return found

    def _is_remembered(self, at: int, port: int) -> bool:
        """Whether rows that come in by a port may be asked for by rows of another."""
        asked = self._asked_below[at]
        return bool(asked[port]) and any(asked[p] for p in range(len(asked)) if p != port)

    def _follow_columns(self) -> dict[int, Leaves]:
        """Return where hidden columns stand, node by node."""
        found: dict[int, Leaves] = {}
        for at in sorted(self._wanted):
            node = self.plan.nodes[at]
            mark = self._mark(at)
            if node.source is not None:
                width = len(node.source.columns)
                if mark is not None:
                    turn = width + 1 if mark.prioritised else None
                    found[at] = {mark.leaf: _Leaf(width, turn)}
                else:
                    found[at] = {}
                continue
            inputs = [_picked(found[i.producer], i) for i in node.inputs]
            match node.spec:
                case ProjectSpec(exprs):
                    places = {e.index: c for c, e in enumerate(exprs) if isinstance(e, Column)}
                    found[at] = _moved(inputs[0], places)
                case JoinSpec(left, _):
                    behind = {c: c + len(left) for own in inputs[1].values() for c in _both(own)}
                    found[at] = {**inputs[0], **_moved(inputs[1], behind)}
                case MultiJoinSpec(types):
                    found[at] = _of_tree(inputs, types, node.spec.output)
                case _:
                    found[at] = inputs[0]
        return found

    # -- following rows --------------------------------------------------------------------------

    def _scanned(
        self,
        at: int,
        asked: Asked,
        turn: I64,
        batch: int,
        beats: Mapping[int, Mapping[str, int]],
    ) -> Batch:
        """Return rows as a scan brings them, with their hidden columns."""
        source = self._source(at)
        keep: Mask = np.ones(len(asked), bool)
        if source.predicate is not None:
            keep = np.array(evaluate_mask(source.predicate, asked.columns, len(asked)))
        if source.since is not None:
            keep &= asked.time >= source.since
        batches = np.full(len(asked), batch, np.int64)
        columns = [asked.columns[c] for c in source.columns]
        columns += hidden_columns(self._mark_of(at), asked.time, turn, batches, beats)
        return Batch.of(columns, asked.time).take(keep)

    def _hand_on(self, at: int, rows: Batch, way: _Way, shard: int | None) -> None:
        """Hand rows of a node to who reads it, in its shard or, behind an exchange, in others."""
        if len(rows) == 0:
            return
        assert self._committed is not None
        for reader, source in self.plan.readers.get(at, ()):
            if reader not in self._wanted:
                continue
            port = next(p for p, i in enumerate(self.plan.nodes[reader].inputs) if i is source)
            if source.channel is None:
                self._take(reader, port, _columns(rows, source), way, shard)
                continue
            channel = self.plan.channels[source.channel]
            shards, route = len(self._committed.states), self._committed.routes.get(source.channel)
            for to, part in channel.exchange.route(rows, shards, route):
                self._take(reader, port, _columns(part, source), way, to)

    def _take(self, at: int, port: int, rows: Batch, way: _Way, shard: int | None) -> None:
        """Let a node take rows on a port."""
        spec = self.plan.nodes[at].spec
        match spec:
            case JoinSpec() | MultiJoinSpec():
                assert shard is not None
                for results in self._met(at, port, rows, way, shard):
                    self._hand_on(at, results, way, shard)
            case OutputSpec():
                if way.remembered is None:
                    self._answers.setdefault(self._outputs[at].query, []).append(
                        _leaving(rows, spec.mode)
                    )
            case FilterSpec(undelivered=True) | ToStreamSpec() | UnionSpec():
                self._hand_on(at, rows, way, shard)
            case _:
                for made in self._operator(at).receive(port, rows):
                    if isinstance(made, Batch):
                        self._hand_on(at, made, way, shard)

    def _operator(self, at: int) -> Operator:
        """Return an operator that has no state."""
        if at not in self._operators:
            spec = self.plan.nodes[at].spec
            assert spec is not None
            self._operators[at] = spec.build()
            self._operators[at].open(Context(State(MemoryStorage()), settings=self._config))
        return self._operators[at]

    # -- joins -----------------------------------------------------------------------------------

    def _met(self, at: int, port: int, rows: Batch, way: _Way, shard: int) -> Iterator[Batch]:
        """Yield what rows that come in by a port meet on the others; remember them."""
        join = self._join(at, shard)
        ports = range(len(self.plan.nodes[at].inputs))
        results: list[Batch] = []
        if way.remembered is None or self._goes_on(at):
            seen = [[] if p == port else self._seen(at, join, p, way.mark) for p in ports]
            results = list(join.operator.meet(port, rows, seen))
        if way.remembered is not None:
            results = [way.once(made, self._leaves[at]) for made in results]
        if self._is_remembered(at, port):
            join.remember(port, rows, self._leaves_of(at, port))
        return iter(results)

    def _goes_on(self, at: int) -> bool:
        """Whether results of a join are remembered by another one above it."""
        above = [reader for reader, _ in self.plan.readers.get(at, ()) if reader in self._wanted]
        return any(
            (isinstance(self.plan.nodes[r].spec, JoinSpec | MultiJoinSpec)) or self._goes_on(r)
            for r in above
        )

    def _leaves_of(self, at: int, port: int) -> Leaves:
        source = self.plan.nodes[at].inputs[port]
        return _picked(self._leaves[source.producer], source)

    def _seen(self, at: int, join: _Join, port: int, mark: Mark) -> list[Piece]:
        """Return what rows of a leaf see of a port."""
        assert self._committed is not None
        leaves = self._leaves_of(at, port)
        bounds = {heard(self._committed.beats, mark.siblings[leaf]) for leaf in leaves}
        bound = min(bounds, default=INF)
        return join.seen(port, bound, leaves)

    def _join(self, at: int, shard: int) -> _Join:
        """Return a join on the state of a shard."""
        if (at, shard) not in self._joins:
            assert self._committed is not None
            node = self.plan.nodes[at]
            assert isinstance(node.spec, JoinSpec | MultiJoinSpec)
            known = self._committed.states[shard].get(node.digest)
            operator = node.spec.build()
            shards = len(self._committed.states)
            context = Context(
                State(self._committed.storage, known), node.number, shard, shards,
                settings=self._config,
            )  # fmt: skip
            tables = (p for p, i in enumerate(node.inputs) if self.plan.is_table(i.producer))
            context.tables = frozenset(tables)
            operator.open(context)
            self._joins[at, shard] = _Join(operator)
        return self._joins[at, shard]


@dataclass(frozen=True)
class Remembered:
    """Rows of a stream that were answered: the number of the turn, and what was true then."""

    stream: str
    rows: Asked
    number: int
    batch: int
    beats: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True)
class _Way:
    """How rows go through the plan: those of which leaf, and whether they are answered now.

    Otherwise they are brought again, to be ``remembered``, with all others that were answered and
    are of this time or later, one leaf after another.
    """

    mark: Mark
    remembered: int | None = None

    def once(self, rows: Batch, leaves: Leaves) -> Batch:
        """Leave out results with rows that are brought later: they will be made by these."""
        keep: Mask = np.ones(len(rows), bool)
        for number, leaf in leaves.items():
            if number > self.mark.leaf and leaf.turn is not None:
                answered = to_numpy(rows.columns[leaf.turn]) > 0
                keep &= ~(answered & (to_numpy(rows.columns[leaf.time]) >= self.remembered))
        return rows.take(keep)


def oldest_remembered(plan: PhysicalPlan, beats: Mapping[str, int]) -> dict[str, int]:
    """Return for each stream from which time on rows that were answered must be remembered.

    What is below the heartbeats of all streams that it may meet is committed.
    """
    return {
        name: min(beats.get(other, MIN_TIME) for other in group)
        for group in plan.stream_groups
        for name in group
    }


class _Join:
    """A join on the state of one batch, and what is remembered of its ports."""

    def __init__(self, operator: JoinOperator | MultiJoinOperator) -> None:
        self.operator: _Joins = operator
        self._stored: dict[tuple[int, int], list[Piece]] = {}
        self._memory: dict[int, list[tuple[Batch, _Times]]] = {}

    def remember(self, port: int, rows: Batch, leaves: Leaves) -> None:
        """Keep rows of a port that were answered, or results with such rows."""
        self._memory.setdefault(port, []).append((rows, _Times.of(rows, leaves)))

    def seen(self, port: int, bound: int, leaves: Leaves) -> list[Piece]:
        """Return what may be seen of a port below a heartbeat."""
        if (port, bound) not in self._stored:
            self._stored[port, bound] = list(self._committed(port, bound, leaves))
        pieces = self._stored[port, bound]
        remembered = self._memory.get(port, ())
        known = [rows.take(times.hidden_but_seen(bound)) for rows, times in remembered]
        known = [rows for rows in known if len(rows)]
        piece = self.operator.laid(port, Batch.concat(known)) if known else None
        return pieces if piece is None else [*pieces, piece]

    def _committed(self, port: int, bound: int, leaves: Leaves) -> Iterator[Piece]:
        """Yield what the state has of a port below a heartbeat."""
        for piece in self.operator.pieces(port):
            if not leaves or piece.stats["max_start"] < bound:
                yield piece
                continue
            below = _below(_rows_of(piece), bound, leaves)
            found = self.operator.laid(port, below) if len(below) else None
            if found is not None:
                yield found
        waiting = [_below(rows, bound, leaves) for rows in self.operator.inbox.waiting(port)]
        waiting = [rows for rows in waiting if len(rows)]
        found = self.operator.laid(port, Batch.concat(waiting)) if waiting else None
        if found is not None:
            yield found


@dataclass(frozen=True)
class _Times:
    """Of each row the latest time of its parts, and of those that were not answered, if any."""

    newest: I64
    unanswered: I64
    whole: Mask
    """All parts were answered."""

    @staticmethod
    def of(rows: Batch, leaves: Leaves) -> _Times:
        newest = np.full(len(rows), MIN_TIME, np.int64)
        unanswered, whole = newest.copy(), np.ones(len(rows), bool)
        for leaf in leaves.values():
            time = to_numpy(rows.columns[leaf.time])
            newest = np.maximum(newest, time)
            answered = np.zeros(len(rows), bool)
            if leaf.turn is not None:
                answered = to_numpy(rows.columns[leaf.turn]) > 0
            unanswered = np.where(answered, unanswered, np.maximum(unanswered, time))
            whole &= answered
        return _Times(newest, unanswered, whole)

    def hidden_but_seen(self, bound: int) -> Mask:
        """Return which rows may be seen although they are not committed below a heartbeat."""
        return (self.newest >= bound) & (self.whole | (self.unanswered < bound))


def _below(rows: Batch, bound: int, leaves: Leaves) -> Batch:
    """Return the rows all of whose parts are below a heartbeat; those of tables are."""
    return rows.take(_Times.of(rows, leaves).newest < bound) if leaves else rows


def _rows_of(piece: Piece) -> Batch:
    width = sum(1 for name in piece.table.column_names if name.startswith("c"))
    columns = [one_array(piece.table.column(f"c{i}")) for i in range(width)]
    return Batch.of(columns, piece.numbers("_start"), piece.numbers("_end"))


def _columns(rows: Batch, source: Input) -> Batch:
    if source.columns is None:
        return rows
    return rows.with_columns([rows.columns[c] for c in source.columns])


def _leaving(rows: Batch, mode: str) -> Batch:
    """Return rows as an output delivers them."""
    end = rows.end if mode == "intervals" else np.full(len(rows), INF, np.int64)
    return Batch(rows.columns, rows.start, end, np.zeros(len(rows), np.int64))


def _both(leaf: _Leaf) -> list[int]:
    return [leaf.time] if leaf.turn is None else [leaf.time, leaf.turn]


def _moved(leaves: Leaves, places: Mapping[int, int]) -> Leaves:
    """Return the leaves whose columns are still there, where they are now."""
    return {
        number: _Leaf(places[own.time], None if own.turn is None else places[own.turn])
        for number, own in leaves.items()
        if all(c in places for c in _both(own))
    }


def _picked(leaves: Leaves, source: Input) -> Leaves:
    if source.columns is None:
        return leaves
    return _moved(leaves, {c: at for at, c in enumerate(source.columns)})


def _of_tree(
    inputs: Sequence[Leaves], types: Sequence[Sequence[pa.DataType]], output: Sequence[int]
) -> Leaves:
    """Return the leaves of a join of many inputs, whose columns are numbered over all of them."""
    places = {c: at for at, c in enumerate(output)}
    found: dict[int, _Leaf] = {}
    first = 0
    for leaves, own in zip(inputs, types, strict=True):
        moved = {c: c + first for leaf in leaves.values() for c in _both(leaf)}
        found |= _moved(_moved(leaves, moved), places)
        first += len(own)
    return found
