"""Algebra to physical nodes: lowering is a table of small functions by node class.

Equal sub-plans become one node, because plans are compared after names are taken away.  How rows
must be distributed, and so where exchanges stand, is the business of `penstock.physical.graph`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.cql.render import bounds_text, in_timestamps, window_text
from penstock.errors import NotSupportedError
from penstock.expr import nodes as expr
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.distinct import DistinctSpec
from penstock.operators.filter import FilterSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.row_window import RowWindowSpec
from penstock.operators.session_window import SessionWindowSpec
from penstock.operators.set_operation import SetSpec
from penstock.operators.time_window import TimeWindowSpec
from penstock.operators.to_stream import ToStreamSpec
from penstock.operators.top_k import TopKSpec
from penstock.operators.union import UnionSpec
from penstock.optimizer.nameless import canonical
from penstock.physical.asof import asof_join
from penstock.physical.at_once import at_once
from penstock.physical.exchange import SINGLE, ByKey, Exchange
from penstock.physical.graph import Graph, after, all_columns, projected, reachable, relaxed
from penstock.physical.join_kinds import join_of_kind
from penstock.physical.joins import Joined, prepared, with_key_columns
from penstock.physical.multiway import Surroundings, meaning_of, multiway
from penstock.physical.over import over
from penstock.physical.plan import Answer, PhysicalPlan
from penstock.physical.window_distribution import wanted
from penstock.settings import Settings
from penstock.windows import WindowSpec

MOST_WINDOWS = 100_000
"""How many windows that show their bounds a row may be in."""


@dataclass(frozen=True)
class Query:
    """A query to be planned: ``since`` is the time from which it sees its streams (None: ever).

    ``batch`` is the first batch that it takes part in: the one in which its tables are sent.
    ``keep`` is for how long its past stays, if its mode is ``kept``.
    """

    name: str
    plan: Node
    mode: str = "intervals"
    since: int | None = None
    batch: int = 0
    keep: int = 0


def plan(
    queries: Sequence[Query],
    config: Settings,
    numbers: dict[str, int],
    measured: Mapping[str, float] | None = None,
) -> PhysicalPlan:
    """Plan all queries of a group together. ``numbers`` are those given to digests before.

    ``measured`` are results per row of joins that run (`penstock.physical.multiway.measured`).
    """
    planner = Planner(config, dict(numbers), measured)
    answers = []
    nameless = [canonical(query.plan) for query in queries]
    for query, whole in zip(queries, nameless, strict=True):
        planner.since, planner.batch = query.since, query.batch
        planner.announce(whole)
    for query, whole in zip(queries, nameless, strict=True):
        planner.since, planner.batch = query.since, query.batch
        planner.in_step = query.mode in ("view", "delta", "kept")
        mode = query.mode if not algebra.is_stream(query.plan) else "stream"
        ready = at_once(whole, mode)
        if ready is None:
            held = (query.keep, in_timestamps(query.plan)) if mode == "kept" else None
            output = planner.output(query.name, planner.lower(whole), mode, held)
        else:
            output = planner.output_at_once(query.name, ready, mode)
        answers.append(Answer(query.name, output, mode))
    return reachable(
        PhysicalPlan(tuple(planner.nodes), tuple(planner.channels), tuple(answers), planner.numbers)
    )


class Planner(Graph):
    """A graph that knows how to lower logical nodes into itself."""

    def __init__(
        self, config: Settings, numbers: dict[str, int], measured: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(config, numbers)
        self._memo: dict[tuple[Node, int | None, int, bool, bool], int] = {}
        self._joins: Counter[tuple[Node, int | None, int]] = Counter()
        self.wanted: dict[Node, Exchange] = {}
        self.around = Surroundings(
            self.lower,
            lambda join: _join_of_two(join, self),
            frozenset(numbers),
            lambda join: self._joins[join, self.since, self.batch],
            measured or {},
        )

    def announce(self, node: Node) -> None:
        """Look over a query before any is lowered: its joins, and what its windows are for."""
        joins = {n for n in algebra.walk(node) if isinstance(n, algebra.Join)}
        self._joins.update((n, self.since, self.batch) for n in joins)
        if self.negative:
            self.wanted = wanted(node) | self.wanted

    def lower(self, node: Node) -> int:
        """Return the position of the physical node for a logical one."""
        key = (node, self.since, self.batch, self.in_step, self.at_once)
        if key not in self._memo:
            self._memo[key] = lower(node, self)
            if isinstance(node, algebra.Join):
                at = self._memo[key]
                self.nodes[at] = replace(self.nodes[at], meaning=meaning_of(node))
        return self._memo[key]

    def output_at_once(self, query: str, node: Node, mode: str) -> int:
        """Add the output of rows that wait for nothing: their ends need no negative tuples."""
        negative, self.negative, self.at_once = self.negative, False, True
        try:
            return self.output(query, self.lower(node), mode)
        finally:
            self.negative, self.at_once = negative, False


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
    at = planner.source("table", node.table, tuple(range(len(node.schema))), node.schema, None)
    mortal = node.valid_to is not None
    return planner.signed(at) if planner.negative and mortal else at


@lower.register
def _(node: algebra.Window, planner: Planner) -> int:
    stream = node.input
    plain = not any(isinstance(n, algebra.Window) for n in algebra.walk(stream))
    never_dies = plain and node.spec.by_time and algebra.update_pattern(stream) == "monotonic"
    if not algebra.is_stream(stream) and not never_dies:
        stream = algebra.ToStream("istream", stream)
    below = planner.lower(stream)
    types = node.schema.types
    label = f"Window {_window_text(node)}"
    pattern = algebra.update_pattern(node)
    _check_windows(node.spec)
    if node.spec.by_time:
        have = planner.nodes[below].partitioning
        return planner.stateless(
            TimeWindowSpec(node.spec),
            below,
            types,
            have,
            label,
            pattern,
            planner.wanted.get(node),
        )
    keys = node.spec.partition_by
    demand = relaxed(planner, below, ByKey(keys) if keys else SINGLE)
    kind = SessionWindowSpec if node.spec.session is not None else RowWindowSpec
    where = after(planner, below, demand)
    spec = kind(stream.schema.types, node.spec)
    return planner.operator(spec, [below], [demand], types, where, label, pattern)


@lower.register
def _(node: algebra.Filter, planner: Planner) -> int:
    below = planner.lower(node.input)
    have = planner.nodes[below].partitioning
    return planner.stateless(
        FilterSpec(node.predicate),
        below,
        node.schema.types,
        have,
        "Filter",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Project, planner: Planner) -> int:
    below = planner.lower(node.input)
    have = projected(planner.nodes[below].partitioning, node.exprs)
    return planner.stateless(
        ProjectSpec(node.exprs),
        below,
        node.schema.types,
        have,
        "Project",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Join, planner: Planner) -> int:
    return multiway(planner, node, planner.around)


def _join_of_two(node: algebra.Join, planner: Planner) -> int:
    sides = prepared(planner, node, planner.lower(node.left), planner.lower(node.right))
    return join_of_kind(planner, node, *sides)


@lower.register
def _(node: algebra.AsofJoin, planner: Planner) -> int:
    left, left_keys = with_key_columns(planner, planner.lower(node.left), node.left_keys)
    right, right_keys = with_key_columns(planner, planner.lower(node.right), node.right_keys)
    return asof_join(planner, node, Joined(left, left_keys), Joined(right, right_keys))


@lower.register
def _(node: algebra.Aggregate, planner: Planner) -> int:
    below, keys = with_key_columns(planner, planner.lower(node.input), node.keys)
    types = planner.nodes[below].types
    demand = relaxed(planner, below, ByKey(keys) if node.keys else SINGLE)
    where = after(planner, below, demand)
    if where is not None and where.kind == "hash":
        where = ByKey(tuple(keys.index(k) for k in where.keys))
    key_exprs = tuple(expr.Column(k, types[k]) for k in keys)
    panes = bool(self_sliding(node.input)) and planner.config.panes and not planner.negative
    return planner.operator(
        AggregateSpec(types, key_exprs, node.aggregates, panes),
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
    demand = relaxed(planner, below, all_columns(types))
    return planner.operator(
        DistinctSpec(types),
        [below],
        [demand],
        types,
        after(planner, below, demand),
        "Distinct",
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.UnionAll, planner: Planner) -> int:
    below = [planner.lower(m) for m in node.members]
    have = {planner.nodes[b].partitioning for b in below}
    where = have.pop() if len(have) == 1 else None
    return planner.operator(
        UnionSpec(len(below)),
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
    for have in (planner.nodes[b].partitioning for b in below):
        if have is not None and have.kind == "hash":  # rows that are equal agree in these columns
            demand = have
            break
    return planner.operator(
        SetSpec(types, node.kind, node.all),
        below,
        [demand, demand],
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
        TopKSpec(node.schema.types, order, node.limit),
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
    # an RSTREAM speaks when anything changes; with pulses, the first and the last change anywhere
    # bound it, which no shard needs to know if all rows come and go
    alone = node.kind == "rstream" and not (node.pulses and algebra.is_mortal(node.input))
    demand = SINGLE if alone else relaxed(planner, below, all_columns(types))
    return planner.operator(
        ToStreamSpec(types, node.kind, node.pulses, node.to_the_end),
        [below],
        [demand],
        types,
        after(planner, below, demand),
        node.kind.upper(),
        algebra.update_pattern(node),
    )


@lower.register
def _(node: algebra.Over, planner: Planner) -> int:
    return over(planner, node, planner.lower(node.input))


def self_sliding(node: Node) -> bool:
    """Whether many rows share one validity because the rows come from a SLIDE by time."""
    match node:
        case algebra.Window(_, spec):
            return spec.slide is not None or spec.fixed is not None
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return self_sliding(below)
    return False


def _window_text(node: algebra.Window) -> str:
    names = [f"#{i}" for i in range(len(node.schema))]
    return window_text(node.spec, names, in_timestamps(node)) + bounds_text(node.spec)


def _check_windows(spec: WindowSpec) -> None:
    """Refuse bounds of so many windows that no row or group could be shown in all of them."""
    slide = spec.slide if spec.hop is not None else spec.range
    if spec.bounds is None or slide is None or not spec.bounds.length:
        return
    count = -(-spec.bounds.length // slide)
    if count > MOST_WINDOWS:
        raise NotSupportedError(
            f"window_start and window_end can be shown where a row is in at most {MOST_WINDOWS} "
            f"windows, but this HOP puts it into {count}; use a longer SLIDE, or leave the two "
            f"columns out"
        )
