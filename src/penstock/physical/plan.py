"""The physical plan: one graph of operators for all queries of a group, cut into stages.

Stage -1 is packing: sources, and what can be done before the exchange.  A node of stage k runs once
per shard in the k-th Spark stage.  An input that crosses stages goes through a channel, which says
how rows find their shard.  A node's digest names what it computes: equal digests are one node, and
its state is kept under that name, so queries come and go without disturbing the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.algebra import Mark
from penstock.errors import DataError
from penstock.expr.nodes import Expr
from penstock.model import INF, MIN_TIME
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.output import OutputSpec
from penstock.operators.spec import Spec
from penstock.physical.exchange import ByKey, Cells, Exchange, Shared
from penstock.schedule.board import Promise


@dataclass(frozen=True)
class Source:
    """What is packed of a stream or table: some columns of the rows that pass a predicate.

    ``since`` is the time below which elements of a stream are not seen, for queries that were added
    later.  Of a table it is the batch in which its rows are sent: a query that was added later has
    a source of its own.  ``mark`` says what is added to the columns for the lane.
    """

    kind: str  # 'stream' or 'table'
    name: str
    columns: tuple[int, ...]
    predicate: Expr | None
    since: int | None
    mark: Mark | None = None


@dataclass(frozen=True)
class Input:
    """One input of a node: its producer, and the channel if it is not in the same stage.

    ``columns`` picks from the producer's columns, which may be more than this consumer needs.
    """

    producer: int
    channel: int | None = None
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PhysicalNode:
    """An operator of the plan, which its ``spec`` describes, or a source (``spec`` is None)."""

    digest: str
    number: int
    stage: int
    types: tuple[pa.DataType, ...]
    label: str
    partitioning: Exchange | None
    source: Source | None = None
    spec: Spec | None = None
    inputs: tuple[Input, ...] = ()
    pattern: str = ""
    meaning: str = ""
    """Of a join: what it computes, whatever the time from which its query sees the streams."""

    @property
    def rowwise(self) -> bool:
        """Whether it treats each row alone and leaves its validity as it is."""
        return self.spec is not None and self.spec.rowwise


@dataclass(frozen=True)
class Channel:
    """Rows of ``producer`` on their way to the shards of ``stage``."""

    producer: int
    exchange: Exchange
    stage: int


@dataclass(frozen=True)
class Answer:
    """Where a query leaves the plan: its output node, how it is delivered, and how soon.

    ``lane``: important rows are answered in the lane; ``why_main`` says why they are not, where
    streams have priorities.
    """

    query: str
    node: int
    mode: str
    promise: Promise = field(default_factory=Promise)
    lane: bool = False
    why_main: str = ""


@dataclass(frozen=True)
class PhysicalPlan:
    """All nodes, producers before consumers.

    What is asked of a plan for every batch or parcel is found once, in one pass over its nodes.
    """

    nodes: tuple[PhysicalNode, ...]
    channels: tuple[Channel, ...]
    answers: tuple[Answer, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to other processes: the plan without what was found in it."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    def answer(self, query: str) -> Answer:
        """Return where a query leaves the plan."""
        return next(answer for answer in self.answers if answer.query == query)

    @cached_property
    def stages(self) -> int:
        return max((n.stage for n in self.nodes), default=-1) + 1

    @cached_property
    def negative(self) -> bool:
        """Whether some rows die as negative tuples."""
        return any(isinstance(node.spec, NegativeTuplesSpec) for node in self.nodes)

    @cached_property
    def _streams_below(self) -> list[frozenset[str]]:
        found: list[frozenset[str]] = []
        for node in self.nodes:
            below = [found[i.producer] for i in node.inputs]
            if node.source is not None and node.source.kind == "stream":
                below = [frozenset((node.source.name,))]
            alike = len(below) == 1 or (below and all(b == below[0] for b in below))
            found.append(below[0] if alike else frozenset().union(*below))
        return found

    def streams_below(self, node: int) -> frozenset[str]:
        """Return the names of the streams that a node reads, directly or not."""
        return self._streams_below[node]

    def slowest(self, beats: Mapping[str, int]) -> dict[bool, int]:
        """Return the least heartbeat of the kept relations, by whether time is in timestamps.

        One of which nothing was heard, or that has ended, holds nobody back.
        """
        found: dict[bool, int] = {}
        for answer in self.answers:
            if answer.mode == "kept":
                streams = self.streams_below(answer.node)
                beat = min((beats.get(s, MIN_TIME) for s in streams), default=INF)
                output = self.nodes[answer.node].spec
                assert isinstance(output, OutputSpec)
                clock = output.timestamps
                if MIN_TIME < beat < INF:
                    found[clock] = min(found.get(clock, INF), beat)
        return found

    @cached_property
    def _by_stage(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for at, node in enumerate(self.nodes):
            found.setdefault(node.stage, []).append(at)
        return found

    def below(self, query: str) -> set[int]:
        """Return the positions of all nodes that a query needs."""
        found: set[int] = set()
        waiting = [a.node for a in self.answers if a.query == query]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += [i.producer for i in self.nodes[at].inputs]
        return found

    def of_stage(self, stage: int) -> Sequence[int]:
        """Return the nodes of a stage."""
        return self._by_stage.get(stage, ())

    @cached_property
    def _sources(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for at, node in enumerate(self.nodes):
            if node.source is not None:
                found.setdefault((node.source.kind, node.source.name), []).append(at)
        return found

    def sources(self, kind: str, name: str | None = None) -> list[int]:
        """Return the sources that read streams, or tables: all, or those of one name."""
        if name is not None:
            return self._sources.get((kind, name), [])
        return sorted(at for key, some in self._sources.items() if key[0] == kind for at in some)

    @cached_property
    def stream_groups(self) -> tuple[frozenset[str], ...]:
        """The streams that meet in some query, directly or by way of others; none is in two."""
        groups: list[set[str]] = []
        for query in sorted({answer.query for answer in self.answers}):
            sources = (self.nodes[at].source for at in self.below(query))
            met = {s.name for s in sources if s is not None and s.kind == "stream"}
            apart = [group for group in groups if not group & met]
            groups = [*apart, met.union(*(group for group in groups if group & met))]
        return tuple(frozenset(group) for group in groups)

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, Input]]]:
        """Who reads each node, with the input by which it does."""
        found: dict[int, list[tuple[int, Input]]] = {}
        for at, node in enumerate(self.nodes):
            for source in node.inputs:
                found.setdefault(source.producer, []).append((at, source))
        return found

    def packed(self, sources: Sequence[int]) -> list[int]:
        """Return the operators that run while the rows of some sources are packed."""
        found: set[int] = set()
        waiting = list(sources)
        while waiting:
            readers = self.readers.get(waiting.pop(), ())
            above = {at for at, _ in readers if self.nodes[at].stage < 0}
            waiting += above - found
            found |= above
        return sorted(found)

    @cached_property
    def _tables(self) -> frozenset[int]:
        found: set[int] = set()
        for at, node in enumerate(self.nodes):
            if node.source is not None:
                table = node.source.kind == "table"
            else:
                table = node.rowwise and node.inputs[0].producer in found
            if table:
                found.add(at)
        return frozenset(found)

    def is_table(self, node: int) -> bool:
        """Whether a node brings the rows of a static table, at most selected and projected."""
        return node in self._tables

    @cached_property
    def _by_key(self) -> list[str | None]:
        found: list[str | None] = []
        for target in self.channels:
            match target.exchange:
                case ByKey() | Cells(below=()) | Shared(copied=False):
                    found.append(f"{self.nodes[target.producer].digest} {target.exchange}")
                case _:
                    found.append(None)
        return found

    @cached_property
    def in_step(self) -> frozenset[int]:
        """The nodes whose heartbeats are the same in all shards.

        They follow from those that come in, which all shards hear alike, unless an operator moves
        on as its own rows allow.
        """
        found: set[int] = set()
        for at, node in enumerate(self.nodes):
            heard = (i.channel is not None or i.producer in found for i in node.inputs)
            if (node.spec is None or node.spec.keeps_step) and all(heard):
                found.add(at)
        return frozenset(found)

    def by_key(self, channel: int) -> str | None:
        """Return what a channel carries, as digest and keys, if its rows are spread by keys."""
        return self._by_key[channel]

    def users(self) -> dict[int, set[str]]:
        """Return the names of the queries that need each node, by its position."""
        users: dict[int, set[str]] = {i: set() for i in range(len(self.nodes))}
        for answer in self.answers:
            users[answer.node].add(answer.query)
        for at in reversed(range(len(self.nodes))):  # a node stands behind its inputs
            for source in self.nodes[at].inputs:
                users[source.producer] |= users[at]
        return users

    @cached_property
    def promises(self) -> list[Promise]:
        """How soon what each node makes is wanted, by all the queries that need it."""
        by_query = {answer.query: answer.promise for answer in self.answers}
        found = []
        for _, users in sorted(self.users().items()):
            some = [by_query[query] for query in users]
            soon = [promise.within for promise in some if promise.within is not None]
            weight = sum(promise.weight for promise in some)
            found.append(Promise(min(soon, default=None), weight))
        return found

    def blamed(self, error: DataError, at: int) -> DataError:
        """Return an error that a row caused in a node, with the queries that need the node."""
        return DataError(f"{error} (query {', '.join(sorted(self.users()[at]))})")
