"""The physical plan: one graph of operators for all queries of a group, cut into stages.

Stage -1 is packing: sources, and what can be done before the exchange.  A node of stage k runs once
per shard in the k-th Spark stage.  An input that crosses stages goes through a channel, which says
how rows find their shard.  A node's digest names what it computes: equal digests are one node, and
its state is kept under that name, so queries come and go without disturbing the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.expr.nodes import Expr
from penstock.model import INF, MIN_TIME
from penstock.operators.base import Operator


@dataclass(frozen=True)
class Exchange:
    """How rows find their shard.

    ``hash`` of key columns, ``single`` (shard 0), ``spread`` (any shard); for joins without keys
    ``owned`` (one shard, by the whole row), ``copies`` (every shard) and ``cells`` (`Cells`).
    """

    kind: str
    keys: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            f"hash({', '.join(f'#{k}' for k in self.keys)})" if self.kind == "hash" else self.kind
        )


@dataclass(frozen=True)
class Cells(Exchange):
    """By the cells of a grid over the key columns: see `penstock.kernels.cells`.

    A row goes to the cells between ``below`` and ``above`` its coordinates.  Empty ends: to the one
    cell that it lies in.
    """

    widths: tuple[float, ...] = ()
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def __str__(self) -> str:
        pairs = zip(self.keys, self.widths, strict=True)
        sides = ", ".join(f"#{key} by {width:.6g}" for key, width in pairs)
        return f"cells({sides}{', with neighbours' if self.below else ''})"


@dataclass(frozen=True)
class Shared(Exchange):
    """By key, but a key has ``ways`` shards: rows of one side stand in one of them, by the whole
    row, and rows of the other side are ``copied`` to all of them.
    """

    ways: int = 1
    copied: bool = False

    def __str__(self) -> str:
        keys = ", ".join(f"#{k}" for k in self.keys)
        return f"hash({keys}, {'copies in' if self.copied else 'one of'} {self.ways} shards)"


SINGLE = Exchange("single")
SPREAD = Exchange("spread")
OWNED = Exchange("owned")
COPIES = Exchange("copies")


@dataclass(frozen=True)
class Source:
    """What is packed of a stream or table: some columns of the rows that pass a predicate.

    ``since`` is the time below which elements of a stream are not seen, for queries that were added
    later.  Of a table it is the batch in which its rows are sent: a query that was added later has
    a source of its own.
    """

    kind: str  # 'stream' or 'table'
    name: str
    columns: tuple[int, ...]
    predicate: Expr | None
    since: int | None


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
    """An operator of the plan, or a source (``operator`` is None)."""

    digest: str
    number: int
    stage: int
    types: tuple[pa.DataType, ...]
    label: str
    partitioning: Exchange | None
    source: Source | None = None
    operator: type[Operator] | None = None
    arguments: tuple[Any, ...] = ()
    inputs: tuple[Input, ...] = ()
    pattern: str = ""
    meaning: str = ""
    """Of a join: what it computes, whatever the time from which its query sees the streams."""

    def build(self) -> Operator:
        assert self.operator is not None
        return self.operator(*self.arguments)


@dataclass(frozen=True)
class Channel:
    """Rows of ``producer`` on their way to the shards of ``stage``."""

    producer: int
    exchange: Exchange
    stage: int


@dataclass(frozen=True)
class Answer:
    """Where a query leaves the plan: its output node and how it is delivered."""

    query: str
    node: int
    mode: str


@dataclass(frozen=True)
class PhysicalPlan:
    """All nodes, producers before consumers."""

    nodes: tuple[PhysicalNode, ...]
    channels: tuple[Channel, ...]
    answers: tuple[Answer, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        return max((n.stage for n in self.nodes), default=-1) + 1

    def streams_below(self, node: int) -> frozenset[str]:
        """Return the names of the streams that a node reads, directly or not."""
        below, waiting = {node}, [node]
        while waiting:
            new = {i.producer for i in self.nodes[waiting.pop()].inputs} - below
            below |= new
            waiting += new
        sources = (self.nodes[at].source for at in below)
        return frozenset(s.name for s in sources if s is not None and s.kind == "stream")

    def slowest(self, beats: Mapping[str, int]) -> dict[bool, int]:
        """Return the least heartbeat of the kept relations, by whether time is in timestamps.

        One of which nothing was heard, or that has ended, holds nobody back.
        """
        found: dict[bool, int] = {}
        for answer in self.answers:
            if answer.mode == "kept":
                streams = self.streams_below(answer.node)
                beat = min((beats.get(s, MIN_TIME) for s in streams), default=INF)
                clock = bool(self.nodes[answer.node].arguments[3])
                if MIN_TIME < beat < INF:
                    found[clock] = min(found.get(clock, INF), beat)
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

    def of_stage(self, stage: int) -> list[int]:
        return [i for i, n in enumerate(self.nodes) if n.stage == stage]

    def sources(self, kind: str) -> list[int]:
        return [
            i for i, n in enumerate(self.nodes) if n.source is not None and n.source.kind == kind
        ]

    def is_table(self, node: int) -> bool:
        """Whether a node brings the rows of a static table, at most selected and projected."""
        found = self.nodes[node]
        while found.source is None:
            if found.operator is None or not found.operator.rowwise:
                return False
            found = self.nodes[found.inputs[0].producer]
        return found.source.kind == "table"

    def by_key(self, channel: int) -> str | None:
        """Return what a channel carries, as digest and keys, if its rows are spread by keys."""
        target = self.channels[channel]
        match target.exchange:
            case Exchange("hash") | Cells(below=()) | Shared(copied=False):
                return f"{self.nodes[target.producer].digest} {target.exchange}"
        return None

    def users(self) -> dict[int, set[str]]:
        """Return the names of the queries that need each node, by its position."""
        users: dict[int, set[str]] = {i: set() for i in range(len(self.nodes))}

        def mark(at: int, query: str) -> None:
            if query not in users[at]:
                users[at].add(query)
                for source in self.nodes[at].inputs:
                    mark(source.producer, query)

        for answer in self.answers:
            mark(answer.node, answer.query)
        return users

    def blamed(self, error: DataError, at: int) -> DataError:
        """Return an error that a row caused in a node, with the queries that need the node."""
        return DataError(f"{error} (query {', '.join(sorted(self.users()[at]))})")
