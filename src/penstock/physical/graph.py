"""The graph of physical nodes under construction: demands, exchanges, stages, sharing.

An operator asks for a distribution of each input:

* equal keys in one shard (join, aggregate, partitioned windows, sets by all columns),
* everything in one shard (no keys), or
* nothing (selection, projection).

A hash by some columns also serves an operator that asks for more columns: rows that agree in all of
them agree in these.  Where the distribution is not there yet, the input goes through a channel and
the operator runs one stage later.

Selections and projections over a source run where its rows are packed (stage -1).  A window by time
over a source stays above the exchange, so that one channel serves every window over the same rows;
selections and projections above it move below it, which changes nothing: it touches only times,
unless it adds columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.algebra import Mark
from penstock.expr.nodes import Column, Expr
from penstock.model import Schema
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.output import OutputSpec
from penstock.operators.route import RouteSpec
from penstock.operators.spec import Spec, digest_of
from penstock.operators.time_window import TimeWindowSpec
from penstock.physical.exchange import SINGLE, SPREAD, ByKey, Exchange
from penstock.physical.plan import Channel, Input, PhysicalNode, PhysicalPlan, Source
from penstock.runs.holder_numbers import check_operators
from penstock.settings import Settings


class Graph:
    """Builds the graph of one group.

    Holders in the state contain the number of the node that made them, so a node keeps its number
    while it is in the plan; a number is free again when its node, and so all that read it, is gone.
    """

    def __init__(self, config: Settings, numbers: dict[str, int]) -> None:
        self.config = config
        self.negative: bool = config.lifetime == "negative"
        self.numbers = numbers
        self.since: int | None = None
        self.batch = 0
        self.in_step = False
        """Whether all shards of the answer must have the same heartbeat, as those of a view."""
        self.at_once = False
        """Whether the rows of the answer wait for nothing (`penstock.physical.at_once`)."""
        self.nodes: list[PhysicalNode] = []
        self.channels: list[Channel] = []
        self._by_digest: dict[str, int] = {}
        self._channel_numbers: dict[Channel, int] = {}
        used = frozenset(numbers.values())
        self._free_numbers = (n for n in itertools.count() if n not in used)

    def source(self, kind: str, name: str, columns: tuple[int, ...], schema: Schema,
               predicate: Expr | None, mark: Mark | None = None) -> int:  # fmt: skip
        since = self.since if kind == "stream" else self.batch
        source = Source(kind, name, columns, predicate, since, mark)
        return self._add(
            PhysicalNode(
                digest=digest_of(source),
                number=0,
                stage=-1,
                types=schema.types,
                label=f"{kind} {name}",
                partitioning=None,
                source=source,
            )
        )

    def operator(
        self,
        spec: Spec,
        producers: Sequence[int],
        demands: Sequence[Exchange | None],
        types: Sequence[pa.DataType],
        partitioning: Exchange | None,
        label: str,
        pattern: str,
        identity: object = None,
        at_least: int = 0,
    ) -> int:
        """Add an operator; ``demands`` say how each input must be distributed (None: any).

        It runs in the earliest stage in which all its inputs can be there, ``at_least`` the given.
        With negative tuples an operator that decides when rows end is followed by their signs.
        """
        together = len(producers) > 1
        producers = [self._settled(p, d) for p, d in zip(producers, demands, strict=True)]
        needed = [self.needs(p, d, together) for p, d in zip(producers, demands, strict=True)]
        stage = at_least
        for producer, exchange in zip(producers, needed, strict=True):
            below = self.nodes[producer].stage
            stage = max(stage, below + (1 if exchange is not None else 0))
        producers = [self._lifted(p, d, stage) for p, d in zip(producers, demands, strict=True)]
        needed = [self.needs(p, d, together) for p, d in zip(producers, demands, strict=True)]
        inputs = []
        for producer, exchange in zip(producers, needed, strict=True):
            if exchange is None and self.nodes[producer].stage < stage:
                exchange = self.nodes[producer].partitioning or SPREAD  # only carried on
            channel = None if exchange is None else self._channel(producer, exchange, stage)
            inputs.append(Input(producer, channel))
        digest = digest_of(
            spec,
            tuple(self.nodes[p].digest for p in producers),
            tuple(self.channels[i.channel].exchange if i.channel is not None else None
                  for i in inputs),
            identity,
        )  # fmt: skip
        added = self._add(
            PhysicalNode(
                digest=digest,
                number=0,
                stage=stage,
                types=tuple(types),
                label=label,
                partitioning=partitioning,
                spec=spec,
                inputs=tuple(inputs),
                pattern=pattern,
            )
        )
        return self.signed(added) if self.negative and spec.ends_rows else added

    def signed(self, below: int) -> int:
        """Add the signs of a node's rows."""
        node = self.nodes[below]
        return self.operator(
            NegativeTuplesSpec(node.types), [below], [None], node.types, node.partitioning,
            "Signs", node.pattern,
        )  # fmt: skip

    def stateless(
        self,
        spec: Spec,
        producer: int,
        types: Sequence[pa.DataType],
        partitioning: Exchange | None,
        label: str,
        pattern: str,
        demand: Exchange | None = None,
    ) -> int:
        """Add a selection, projection or window by time: in the packing stage if it can be.

        A window whose rows need signs cannot; ``demand`` is then how they shall be distributed.
        """
        node = self.nodes[producer]
        if self.negative and spec.ends_rows:
            where = partitioning if demand is None else demand
            return self.operator(spec, [producer], [demand], types, where, label, pattern)
        window = node.spec if isinstance(node.spec, TimeWindowSpec) else None
        below_window = window is not None and spec.rowwise
        must_wait = window is not None and (
            window.window.bounds is not None  # it adds columns
            or window.window.until is not None  # it reads one
            or (window.window.drops_rows and not spec.cannot_fail())
        )
        if node.stage >= 0 or (below_window and must_wait):
            return self.operator(spec, [producer], [None], types, partitioning, label, pattern)
        if window is not None and below_window:  # it touches only times
            below = node.inputs[0].producer
            below = self.stateless(spec, below, types, partitioning, label, "")
            return self.stateless(window, below, types, None, node.label, pattern)
        return self._add(
            PhysicalNode(
                digest=digest_of(spec, node.digest),
                number=0,
                stage=-1,
                types=tuple(types),
                label=label,
                partitioning=None,
                spec=spec,
                inputs=(Input(producer),),
                pattern=pattern,
            )
        )

    def _settled(self, producer: int, demand: Exchange | None) -> int:
        """Put a window above an exchange of its own if its bounds decide about the next one."""
        width = self.unbounded_width(producer)
        if width is None or demand is None or demand in (SPREAD, SINGLE):
            return producer
        below = demand.kind == "hash" and all(key < width for key in demand.keys)
        return producer if below else self._lifted(producer, None, 0)

    def unbounded_width(self, producer: int) -> int | None:
        """Return how many columns a window in the packing stage had without its bounds, if any."""
        node = self.nodes[producer]
        if node.stage >= 0 or not isinstance(node.spec, TimeWindowSpec):
            return None
        bounds = node.spec.window.bounds
        return None if bounds is None else len(node.types) - len(bounds.names)

    def _lifted(self, producer: int, demand: Exchange | None, stage: int) -> int:
        """Put a window that is still in the packing stage above the exchange, into ``stage``."""
        node = self.nodes[producer]
        if node.stage >= 0 or not isinstance(node.spec, TimeWindowSpec):
            return producer
        exchange = demand or SPREAD
        return self.operator(
            node.spec,
            [node.inputs[0].producer],
            [exchange],
            node.types,
            exchange if exchange != SPREAD else None,
            node.label,
            node.pattern,
            identity=("stage", stage),
            at_least=stage,
        )

    def output(
        self,
        query: str,
        producer: int,
        mode: str,
        held: tuple[int, bool] | None = None,
    ) -> int:
        """Add the node where a query leaves the plan.

        ``held`` says of a kept relation for how long, and whether its time is in timestamps.
        """
        node = self.nodes[producer]
        demand = None
        if mode == "log" and not self.at_once:
            demand = relaxed(self, producer, all_columns(node.types))
        where = node.partitioning if demand is None else self.needs(producer, demand)
        return self.operator(
            OutputSpec(
                node.types, mode, *(held or (0, False)), self.at_once, self._is_final(producer)
            ),
            [producer],
            [demand],
            node.types,
            where,
            f"Output {query} ({mode})",
            "",
            identity=(query, self.since, self.batch),
        )

    def _is_final(self, producer: int) -> bool:
        """Whether the rows of a node were selected of those that an operator in slices made."""
        while self.nodes[producer].rowwise and self.nodes[producer].stage >= 0:
            producer = self.nodes[producer].inputs[0].producer
        return isinstance(self.nodes[producer].spec, RouteSpec)

    def needs(
        self, producer: int, demand: Exchange | None, together: bool = False
    ) -> Exchange | None:
        """Return the exchange that an input must go through, or None if it is right already.

        Inputs that must meet (``together``) have to be cut in exactly the way demanded.
        """
        node = self.nodes[producer]
        if node.stage < 0:
            return demand or SPREAD
        if demand is None or node.partitioning == demand:
            return None
        have = node.partitioning
        if not together and have is not None and have.kind == demand.kind == "hash":
            return None if set(have.keys) <= set(demand.keys) else demand
        return demand

    def _channel(self, producer: int, exchange: Exchange, stage: int) -> int:
        channel = Channel(producer, exchange, stage)
        if channel not in self._channel_numbers:
            self._channel_numbers[channel] = len(self.channels)
            self.channels.append(channel)
        return self._channel_numbers[channel]

    def _add(self, node: PhysicalNode) -> int:
        if node.digest in self._by_digest:
            return self._by_digest[node.digest]
        number = self.numbers.get(node.digest)
        if number is None:
            number = next(self._free_numbers)
            check_operators(number + 1)
            self.numbers[node.digest] = number
        self.nodes.append(replace(node, number=number))
        self._by_digest[node.digest] = len(self.nodes) - 1
        return len(self.nodes) - 1


def reachable(whole: PhysicalPlan) -> PhysicalPlan:
    """Drop nodes that no answer needs, and renumber."""
    wanted: set[int] = set()
    todo = [a.node for a in whole.answers]
    while todo:
        at = todo.pop()
        if at not in wanted:
            wanted.add(at)
            todo.extend(i.producer for i in whole.nodes[at].inputs)
    place = {old: new for new, old in enumerate(sorted(wanted))}
    used = sorted({i.channel for at in wanted for i in whole.nodes[at].inputs
                   if i.channel is not None})  # fmt: skip
    channel_place: dict[int | None, int | None] = {old: new for new, old in enumerate(used)}
    channel_place[None] = None
    nodes = tuple(
        replace(
            whole.nodes[old],
            inputs=tuple(
                replace(i, producer=place[i.producer], channel=channel_place[i.channel])
                for i in whole.nodes[old].inputs
            ),
        )
        for old in sorted(wanted)
    )
    channels = tuple(
        replace(whole.channels[old], producer=place[whole.channels[old].producer]) for old in used
    )
    answers = tuple(replace(a, node=place[a.node]) for a in whole.answers)
    return PhysicalPlan(nodes, channels, answers, {n.digest: n.number for n in nodes})


def all_columns(types: Sequence[pa.DataType]) -> Exchange:
    """Return the distribution in which equal rows meet."""
    return ByKey(tuple(range(len(types))))


def relaxed(graph: Graph, producer: int, demand: Exchange) -> Exchange:
    """An operator with one input may stay in one shard if its input is there already.

    The bounds of a window are made above the exchange: other keys decide, if there are any.
    """
    width = graph.unbounded_width(producer)
    if width is not None and demand.kind == "hash":
        own = tuple(key for key in demand.keys if key < width)
        return ByKey(own) if own else demand
    return SINGLE if graph.nodes[producer].partitioning == SINGLE else demand


def after(graph: Graph, producer: int, demand: Exchange) -> Exchange:
    """Return how rows are distributed once the demand is met."""
    have = graph.nodes[producer].partitioning
    if have is None or graph.needs(producer, demand) is not None:
        return demand
    return have


def projected(have: Exchange | None, exprs: Sequence[Expr]) -> Exchange | None:
    """Return how rows are distributed by the columns that a projection makes of them."""
    if have is None or not have.keys:
        return have
    kept = {e.index: i for i, e in reversed(list(enumerate(exprs))) if isinstance(e, Column)}
    known = all(k in kept for k in have.keys)
    return replace(have, keys=tuple(kept[k] for k in have.keys)) if known else None


def usable(graph: Graph, producer: int, keys: tuple[int, ...]) -> bool:
    """Whether a producer's rows are already distributed by some of the keys."""
    have = graph.nodes[producer].partitioning
    return have is not None and have.kind == "hash" and set(have.keys) <= set(keys)


def translate(keys: tuple[int, ...], here: tuple[int, ...], there: tuple[int, ...]) -> Any:
    """Return the keys of one side of a join as columns of the other."""
    return tuple(there[here.index(k)] for k in keys)


def aligned(
    left: Exchange | None,
    left_keys: tuple[int, ...],
    right: Exchange | None,
    right_keys: tuple[int, ...],
) -> bool:
    """Whether two hash distributions put matching join keys into the same shard."""
    if left is None or right is None or left.kind != "hash" or right.kind != "hash":
        return False
    if not set(left.keys) <= set(left_keys) or not set(right.keys) <= set(right_keys):
        return False
    return tuple(translate(left.keys, left_keys, right_keys)) == right.keys
