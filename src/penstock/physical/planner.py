"""Algebra to physical nodes: choice of operator, keys, exchanges, stages, and sharing.

Lowering is a table of small functions by node class.  Equal sub-plans become one node, because
plans are compared after names are taken away.  An operator asks for a distribution of each input:

* equal keys in one shard (join, aggregate, partitioned windows, sets by all columns),
* everything in one shard (no keys), or
* nothing (selection, projection).

A hash by some columns also serves an operator that asks for more columns: rows that agree in all of
them agree in these.  Where the distribution is not there yet, the input goes through a channel and
the operator runs one stage later.

Selections and projections over a source run where its rows are packed (stage -1).  A window by time
over a source stays above the exchange, so that one channel serves every window over the same rows;
selections and projections above it move below it, which changes nothing: it touches only times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Node
from penstock.config import Config
from penstock.expr import nodes as expr
from penstock.expr.nodes import Expr
from penstock.model import Schema
from penstock.operators.aggregate import AggregateOperator
from penstock.operators.base import Operator
from penstock.operators.distinct import DistinctOperator
from penstock.operators.filter import FilterOperator
from penstock.operators.join import JoinOperator
from penstock.operators.output import OutputOperator
from penstock.operators.project import ProjectOperator
from penstock.operators.row_window import RowWindowOperator
from penstock.operators.session_window import SessionWindowOperator
from penstock.operators.set_operation import SetOperator
from penstock.operators.time_window import TimeWindowOperator
from penstock.operators.to_stream import ToStreamOperator
from penstock.operators.top_k import TopKOperator
from penstock.operators.union import UnionOperator
from penstock.optimizer.nameless import canonical
from penstock.physical.plan import (
    SINGLE,
    SPREAD,
    Answer,
    Channel,
    Exchange,
    Input,
    PhysicalNode,
    PhysicalPlan,
    Source,
)
from penstock.windows import WindowSpec


@dataclass(frozen=True)
class Query:
    """A query to be planned: ``since`` is the time from which it sees its streams (None: ever).

    ``batch`` is the first batch that it takes part in: the one in which its tables are sent.
    """

    name: str
    plan: Node
    mode: str = "intervals"
    since: int | None = None
    batch: int = 0


def plan(queries: Sequence[Query], config: Config, numbers: dict[str, int]) -> PhysicalPlan:
    """Plan all queries of a group together. ``numbers`` are those given to digests before."""
    planner = Planner(config, dict(numbers))
    answers = []
    for query in queries:
        planner.since, planner.batch = query.since, query.batch
        node = planner.lower(canonical(query.plan))
        mode = query.mode if not algebra.is_stream(query.plan) else "stream"
        answers.append(Answer(query.name, planner.output(query.name, node, mode), mode))
    return _reachable(
        PhysicalPlan(tuple(planner.nodes), tuple(planner.channels), tuple(answers), planner.numbers)
    )


class Planner:
    """Builds the graph of one group. Node numbers are stable: holders in the state contain them."""

    def __init__(self, config: Config, numbers: dict[str, int]) -> None:
        self.config = config
        self.numbers = numbers
        self.since: int | None = None
        self.batch = 0
        self.nodes: list[PhysicalNode] = []
        self.channels: list[Channel] = []
        self._by_digest: dict[str, int] = {}
        self._memo: dict[tuple[Node, int | None, int], int] = {}

    def lower(self, node: Node) -> int:
        """Return the position of the physical node for a logical one."""
        key = (node, self.since, self.batch)
        if key not in self._memo:
            self._memo[key] = lower(node, self)
        return self._memo[key]

    def source(self, kind: str, name: str, columns: tuple[int, ...], schema: Schema,
               predicate: Expr | None) -> int:  # fmt: skip
        since = self.since if kind == "stream" else self.batch
        source = Source(kind, name, columns, predicate, since)
        return self._add(
            PhysicalNode(
                digest=_digest("source", source),
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
        kind: type[Operator],
        arguments: tuple[Any, ...],
        producers: Sequence[int],
        demands: Sequence[Exchange | None],
        types: Sequence[pa.DataType],
        partitioning: Exchange | None,
        label: str,
        pattern: str,
        identity: object = None,
    ) -> int:
        """Add an operator; ``demands`` say how each input must be distributed (None: any)."""
        producers = [self._lifted(p, d) for p, d in zip(producers, demands, strict=True)]
        needed = [self._needs(p, d) for p, d in zip(producers, demands, strict=True)]
        stage = 0
        for producer, exchange in zip(producers, needed, strict=True):
            below = self.nodes[producer].stage
            stage = max(stage, below + (1 if exchange is not None else 0))
        inputs = []
        for producer, exchange in zip(producers, needed, strict=True):
            if exchange is None and self.nodes[producer].stage < stage:
                exchange = self.nodes[producer].partitioning or SPREAD  # only carried on
            channel = None if exchange is None else self._channel(producer, exchange, stage)
            inputs.append(Input(producer, channel))
        digest = _digest(
            kind.__name__,
            arguments,
            tuple(self.nodes[p].digest for p in producers),
            tuple(self.channels[i.channel].exchange if i.channel is not None else None
                  for i in inputs),
            identity,
        )  # fmt: skip
        return self._add(
            PhysicalNode(
                digest=digest,
                number=0,
                stage=stage,
                types=tuple(types),
                label=label,
                partitioning=partitioning,
                operator=kind,
                arguments=arguments,
                inputs=tuple(inputs),
                pattern=pattern,
            )
        )

    def stateless(
        self,
        kind: type[Operator],
        arguments: tuple[Any, ...],
        producer: int,
        types: Sequence[pa.DataType],
        partitioning: Exchange | None,
        label: str,
        pattern: str,
    ) -> int:
        """Add a selection, projection or window by time: in the packing stage if it can be."""
        node = self.nodes[producer]
        if node.stage >= 0:
            return self.operator(
                kind, arguments, [producer], [None], types, partitioning, label, pattern
            )
        if node.operator is TimeWindowOperator:  # go below the window: it touches only times
            below = self.stateless(
                kind, arguments, node.inputs[0].producer, types, partitioning, label, ""
            )
            return self.stateless(
                TimeWindowOperator, node.arguments, below, types, None, node.label, pattern
            )
        digest = _digest(kind.__name__, arguments, node.digest)
        return self._add(
            PhysicalNode(
                digest, 0, -1, tuple(types), label, None, None, kind, arguments,
                (Input(producer),), pattern,
            )
        )  # fmt: skip

    def _lifted(self, producer: int, demand: Exchange | None) -> int:
        """Put a window that is still in the packing stage above the exchange."""
        node = self.nodes[producer]
        if node.stage >= 0 or node.operator is not TimeWindowOperator:
            return producer
        exchange = demand or SPREAD
        return self.operator(
            TimeWindowOperator,
            node.arguments,
            [node.inputs[0].producer],
            [exchange],
            node.types,
            exchange if exchange.kind != "spread" else None,
            node.label,
            node.pattern,
        )

    def output(self, query: str, producer: int, mode: str) -> int:
        """Add the node where a query leaves the plan."""
        node = self.nodes[producer]
        demand = _relaxed(self, producer, all_columns(node.types)) if mode == "log" else None
        where = node.partitioning if demand is None else self._needs(producer, demand)
        return self.operator(
            OutputOperator,
            (node.types, mode),
            [producer],
            [demand],
            node.types,
            where,
            f"Output {query} ({mode})",
            "",
            identity=(query, self.since, self.batch),
        )

    def _needs(self, producer: int, demand: Exchange | None) -> Exchange | None:
        """Return the exchange that an input must go through, or None if it is right already."""
        node = self.nodes[producer]
        if node.stage < 0:
            return demand or SPREAD
        if demand is None or node.partitioning == demand:
            return None
        have = node.partitioning
        if have is not None and have.kind == "hash" and demand.kind == "hash":
            return None if set(have.keys) <= set(demand.keys) else demand
        return demand

    def _channel(self, producer: int, exchange: Exchange, stage: int) -> int:
        channel = Channel(producer, exchange, stage)
        if channel not in self.channels:
            self.channels.append(channel)
        return self.channels.index(channel)

    def _add(self, node: PhysicalNode) -> int:
        if node.digest in self._by_digest:
            return self._by_digest[node.digest]
        number = self.numbers.setdefault(node.digest, len(self.numbers))
        self.nodes.append(replace(node, number=number))
        self._by_digest[node.digest] = len(self.nodes) - 1
        return len(self.nodes) - 1


def _reachable(whole: PhysicalPlan) -> PhysicalPlan:
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
    return PhysicalPlan(nodes, channels, answers, whole.numbers)


@singledispatch
def lower(node: Any, planner: Planner) -> int:
    """Add the physical nodes of a logical node and return the position of the last."""
    raise TypeError(f"no lowering for {type(node).__name__}")


@lower.register
def _(node: algebra.Scan, planner: Planner) -> int:
    columns = node.columns if node.columns is not None else tuple(range(len(node.schema)))
    return planner.source("stream", node.stream, columns, node.schema, node.predicate)


@lower.register
def _(node: algebra.TableScan, planner: Planner) -> int:
    return planner.source("table", node.table, tuple(range(len(node.schema))), node.schema, None)


@lower.register
def _(node: algebra.Window, planner: Planner) -> int:
    stream = node.input
    never_dies = node.spec.by_time and algebra.update_pattern(stream) == "monotonic"
    if not algebra.is_stream(stream) and not never_dies:
        stream = algebra.ToStream("istream", stream)
    below = planner.lower(stream)
    types = node.schema.types
    label = f"Window {spec_text(node.spec)}"
    pattern = algebra.update_pattern(node)
    if node.spec.by_time:
        have = planner.nodes[below].partitioning
        return planner.stateless(
            TimeWindowOperator, (node.spec,), below, types, have, label, pattern
        )
    keys = node.spec.partition_by
    demand = _relaxed(planner, below, Exchange("hash", keys) if keys else SINGLE)
    kind = SessionWindowOperator if node.spec.session is not None else RowWindowOperator
    where = _after(planner, below, demand)
    return planner.operator(
        kind, (types, node.spec), [below], [demand], types, where, label, pattern
    )


@lower.register
def _(node: algebra.Filter, planner: Planner) -> int:
    below = planner.lower(node.input)
    have = planner.nodes[below].partitioning
    return planner.stateless(
        FilterOperator,
        (node.predicate,),
        below,
        node.schema.types,
        have,
        "Filter",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Project, planner: Planner) -> int:
    below = planner.lower(node.input)
    have = planner.nodes[below].partitioning
    kept = {e.index: i for i, e in reversed(list(enumerate(node.exprs)))
            if isinstance(e, expr.Column)}  # fmt: skip
    if have is not None and have.kind == "hash":
        known = all(k in kept for k in have.keys)
        have = Exchange("hash", tuple(kept[k] for k in have.keys)) if known else None
    return planner.stateless(
        ProjectOperator,
        (node.exprs,),
        below,
        node.schema.types,
        have,
        "Project",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Join, planner: Planner) -> int:
    left, left_keys = _with_key_columns(planner, node.left, node.left_keys)
    right, right_keys = _with_key_columns(planner, node.right, node.right_keys)
    have_left = planner.nodes[left].partitioning
    have_right = planner.nodes[right].partitioning
    demand_left = Exchange("hash", left_keys) if left_keys else SINGLE
    demand_right = Exchange("hash", right_keys) if right_keys else SINGLE
    if have_left == SINGLE and have_right == SINGLE:
        demand_left = demand_right = SINGLE
    elif left_keys and not _aligned(have_left, left_keys, have_right, right_keys):
        if _usable(planner, left, left_keys):
            assert have_left is not None
            demand_right = Exchange("hash", _translate(have_left.keys, left_keys, right_keys))
            demand_left = have_left
        elif _usable(planner, right, right_keys):
            assert have_right is not None
            demand_left = Exchange("hash", _translate(have_right.keys, right_keys, left_keys))
            demand_right = have_right
    elif left_keys:
        assert have_left is not None
        assert have_right is not None
        demand_left, demand_right = have_left, have_right
    left_types, right_types = planner.nodes[left].types, planner.nodes[right].types
    widths = len(node.left.schema), len(node.right.schema)
    where = SINGLE if demand_left == SINGLE else demand_left
    key_exprs = [
        tuple(expr.Column(k, types[k]) for k in keys)
        for types, keys in ((left_types, left_keys), (right_types, right_keys))
    ]
    wide = len(left_types) > widths[0] or len(right_types) > widths[1]
    residual = node.residual
    if residual is not None and wide:
        moved = {i: i for i in range(widths[0])}
        moved |= {widths[0] + i: len(left_types) + i for i in range(widths[1])}
        residual = expr.shift(residual, moved)
    demands = [_exact(planner, left, demand_left), _exact(planner, right, demand_right)]
    joined = planner.operator(
        JoinOperator,
        (left_types, right_types, key_exprs[0], key_exprs[1], residual),
        [left, right],
        demands,
        left_types + right_types,
        where,
        "Join" if left_keys else "Join without keys",
        algebra.update_pattern(node),
    )
    if not wide:
        return joined
    kept = [*range(widths[0]), *(len(left_types) + i for i in range(widths[1]))]
    types = left_types + right_types
    columns = tuple(expr.Column(i, types[i]) for i in kept)
    place = {k: i for i, k in enumerate(kept)}
    visible = where.kind != "hash" or all(k in place for k in where.keys)
    after = replace(where, keys=tuple(place[k] for k in where.keys)) if visible else None
    return planner.operator(
        ProjectOperator,
        (columns,),
        [joined],
        [None],
        node.schema.types,
        after,
        "Project",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Aggregate, planner: Planner) -> int:
    below, keys = _with_key_columns(planner, node.input, node.keys)
    types = planner.nodes[below].types
    demand = _relaxed(planner, below, Exchange("hash", keys) if node.keys else SINGLE)
    where = _after(planner, below, demand)
    if where is not None and where.kind == "hash":
        where = Exchange("hash", tuple(keys.index(k) for k in where.keys))
    key_exprs = tuple(expr.Column(k, types[k]) for k in keys)
    panes = bool(self_sliding(node.input)) and planner.config["panes"]
    return planner.operator(
        AggregateOperator,
        (types, key_exprs, node.aggregates, panes),
        [below],
        [demand],
        node.schema.types,
        where,
        f"Aggregate {'from panes' if panes else ''}".strip(),
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Distinct, planner: Planner) -> int:
    below = planner.lower(node.input)
    types = node.schema.types
    demand = _relaxed(planner, below, all_columns(types))
    return planner.operator(
        DistinctOperator,
        (types,),
        [below],
        [demand],
        types,
        _after(planner, below, demand),
        "Distinct",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.UnionAll, planner: Planner) -> int:
    below = [planner.lower(m) for m in node.members]
    have = {planner.nodes[b].partitioning for b in below}
    where = have.pop() if len(have) == 1 else None
    return planner.operator(
        UnionOperator,
        (len(below),),
        below,
        [None] * len(below),
        node.schema.types,
        where,
        "UnionAll",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.SetOp, planner: Planner) -> int:
    below = [planner.lower(node.left), planner.lower(node.right)]
    types = node.schema.types
    demand = all_columns(types)
    have = [planner.nodes[b].partitioning for b in below]
    if have[0] == have[1] and have[0] is not None and have[0].kind != "spread":
        demand = have[0]
    return planner.operator(
        SetOperator,
        (types, node.kind, node.all),
        below,
        [_exact(planner, b, demand) for b in below],
        types,
        demand,
        f"{node.kind.capitalize()}{' all' if node.all else ''}",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.TopK, planner: Planner) -> int:
    below = planner.lower(node.input)
    order = tuple((k.expr, k.descending, k.nulls_first) for k in node.order)
    return planner.operator(
        TopKOperator,
        (node.schema.types, order, node.limit),
        [below],
        [SINGLE],
        node.schema.types,
        SINGLE,
        f"Top {node.limit}",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.ToStream, planner: Planner) -> int:
    below = planner.lower(node.input)
    types = node.schema.types
    demand = SINGLE if node.kind == "rstream" else _relaxed(planner, below, all_columns(types))
    return planner.operator(
        ToStreamOperator,
        (types, node.kind, node.pulses),
        [below],
        [demand],
        types,
        _after(planner, below, demand),
        node.kind.upper(),
        algebra.update_pattern(node),
    )


def self_sliding(node: Node) -> bool:
    """Whether many rows share one validity because the rows come from a SLIDE by time."""
    match node:
        case algebra.Window(_, spec):
            return spec.slide is not None or spec.fixed is not None
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return self_sliding(below)
    return False


def all_columns(types: Sequence[pa.DataType]) -> Exchange:
    """Return the distribution in which equal rows meet."""
    return Exchange("hash", tuple(range(len(types))))


def _relaxed(planner: Planner, producer: int, demand: Exchange) -> Exchange:
    """An operator with one input may stay in one shard if its input is there already."""
    return SINGLE if planner.nodes[producer].partitioning == SINGLE else demand


def _after(planner: Planner, producer: int, demand: Exchange) -> Exchange:
    """Return how rows are distributed once the demand is met."""
    have = planner.nodes[producer].partitioning
    if have is None or planner._needs(producer, demand) is not None:
        return demand
    return have


def _usable(planner: Planner, producer: int, keys: tuple[int, ...]) -> bool:
    have = planner.nodes[producer].partitioning
    return have is not None and have.kind == "hash" and set(have.keys) <= set(keys)


def _translate(keys: tuple[int, ...], here: tuple[int, ...], there: tuple[int, ...]) -> Any:
    return tuple(there[here.index(k)] for k in keys)


def _aligned(
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
    return tuple(_translate(left.keys, left_keys, right_keys)) == right.keys


def _exact(planner: Planner, producer: int, demand: Exchange) -> Exchange | None:
    """Demand exactly this distribution: both inputs of an operator must be cut in one way."""
    node = planner.nodes[producer]
    return None if node.stage >= 0 and node.partitioning == demand else demand


def _with_key_columns(
    planner: Planner, node: Node, keys: tuple[Expr, ...]
) -> tuple[int, tuple[int, ...]]:
    """Lower a node and add computed key columns at its end; return it and the keys' positions."""
    below = planner.lower(node)
    types = planner.nodes[below].types
    positions: list[int] = []
    extra: list[Expr] = []
    for key in keys:
        if isinstance(key, expr.Column):
            positions.append(key.index)
        else:
            positions.append(len(types) + len(extra))
            extra.append(key)
    if not extra:
        return below, tuple(positions)
    columns: tuple[Expr, ...] = tuple(expr.Column(i, t) for i, t in enumerate(types))
    everything = columns + tuple(extra)
    wide = planner.stateless(
        ProjectOperator,
        (everything,),
        below,
        tuple(e.type for e in everything),
        planner.nodes[below].partitioning,
        "Project with keys",
        planner.nodes[below].pattern,
    )
    return wide, tuple(positions)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def spec_text(spec: WindowSpec) -> str:
    """Return a window as EXPLAIN shows it."""
    set_fields = {
        name: value
        for name, value in vars(spec).items()
        if value is not None and value is not False and value != ()
    }
    inner = " ".join(f"{name}={value}" for name, value in set_fields.items())
    return f"[{inner or 'unbounded'}]"
