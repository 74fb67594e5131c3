"""Algebra to physical nodes: lowering is a table of small functions by node class.

Equal sub-plans become one node, because plans are compared after names are taken away.  How rows
must be distributed, and so where exchanges stand, is the business of `penstock.physical.graph`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.cql.render import (
    bounds_text,
    duration_text,
    in_timestamps,
    time_text,
    window_text,
)
from penstock.errors import NotSupportedError
from penstock.expr import nodes as expr
from penstock.model import INF
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.distinct import CutDistinctSpec, DistinctSpec
from penstock.operators.filter import FilterSpec
from penstock.operators.group_top import GroupTopSpec
from penstock.operators.later import LaterSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.rank import RankSpec
from penstock.operators.row_window import RowWindowSpec
from penstock.operators.session_window import SessionWindowSpec
from penstock.operators.set_operation import SetSpec
from penstock.operators.since import SinceSpec
from penstock.operators.spec import Spec
from penstock.operators.time_window import SharedWindowSpec, TimeWindowSpec
from penstock.operators.to_stream import ToStreamSpec
from penstock.operators.top_k import TopKSpec
from penstock.operators.union import UnionSpec
from penstock.optimizer.nameless import canonical
from penstock.optimizer.window_joins import range_of
from penstock.physical.asof import asof_join
from penstock.physical.at_once import at_once
from penstock.physical.eras import Era, Eras, era_of, renewed
from penstock.physical.exchange import SINGLE, ByKey, Exchange
from penstock.physical.graph import Graph, after, all_columns, projected, reachable, relaxed
from penstock.physical.join_kinds import join_of_kind
from penstock.physical.joins import Joined, determined, prepared, with_key_columns
from penstock.physical.lane_plan import Lane, has_priorities, lane_of
from penstock.physical.multiway import Surroundings, meaning_of, multiway
from penstock.physical.over import over
from penstock.physical.plan import Answer, PhysicalPlan
from penstock.physical.shared_windows import Group, Groups, routed, shared
from penstock.physical.window_distribution import wanted
from penstock.schedule.board import Promise
from penstock.settings import Settings
from penstock.windows import WindowSpec

BY_PROBING = ("auto", "temporal")
"""Methods of joins that keep their inputs in sides, which others may look into."""

MOST_WINDOWS = 100_000
"""How many windows that show their bounds a row may be in."""


@dataclass(frozen=True)
class Query:
    """A query to be planned: ``since`` is the time from which it sees its streams (None: ever).

    ``batch`` is the first batch that it takes part in: the one in which its tables are sent.
    ``keep`` is for how long its past stays, if its mode is ``kept``, ``promise`` how soon it wants
    its answers.  ``cores`` are its joins that queries with other windows share
    (`penstock.physical.shared_windows.cores`).
    """

    name: str
    plan: Node
    mode: str = "intervals"
    since: int | None = None
    batch: int = 0
    keep: int = 0
    promise: Promise = field(default_factory=Promise)
    cores: Mapping[str, int | None] = field(default_factory=dict)
    eras: Eras = ()
    """Those of its text and of the texts before, if some part of these goes on."""

    @property
    def all_eras(self) -> Eras:
        """Its eras, or the only one."""
        return self.eras or (Era(self.since, self.batch),)


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
    prepared = [prepared_query(query, config) for query in queries]
    for query, (whole, _, _) in zip(queries, prepared, strict=True):
        planner.enter(query.all_eras)
        planner.announce(whole)
        planner.groups.add(query.name, whole, query.cores)
    for query, (whole, ready, lane) in zip(queries, prepared, strict=True):
        mode = planner.begin(query, whole)
        if ready:
            output = planner.output_knowing_ends(query.name, whole, mode, at_once=True)
        elif lane.node is not None:
            output = planner.output_knowing_ends(query.name, whole, mode, at_once=False)
        else:
            held = (query.keep, in_timestamps(query.plan)) if mode == "kept" else None
            output = planner.output(query.name, planner.lower(whole), mode, held)
        answers.append(
            Answer(query.name, output, mode, query.promise, lane.node is not None, lane.why)
        )
    whole_plan = PhysicalPlan(
        tuple(renewed(planner.nodes)), tuple(planner.channels), tuple(answers), planner.numbers
    )
    return reachable(whole_plan)


def mode_of(query: Query) -> str:
    """Return how the answer of a query leaves."""
    return query.mode if not algebra.is_stream(query.plan) else "stream"


def prepared_query(query: Query, config: Settings) -> tuple[Node, bool, Lane]:
    """Return what is lowered of a query, whether its rows wait for nothing, and its lane."""
    whole = canonical(query.plan)
    ready = at_once(whole, mode_of(query))
    chosen = whole if ready is None else ready
    if not has_priorities(chosen):
        return chosen, ready is not None, Lane()
    by_merging = config.join_method not in BY_PROBING
    lane = lane_of(chosen, mode_of(query), query.batch, by_merging)
    return chosen if lane.node is None else lane.node, ready is not None, lane


class Planner(Graph):
    """A graph that knows how to lower logical nodes into itself."""

    def __init__(
        self, config: Settings, numbers: dict[str, int], measured: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(config, numbers)
        self._memo: dict[tuple[Any, ...], int] = {}
        self._joins: Counter[tuple[Node, int | None, int]] = Counter()
        self.wanted: dict[Node, Exchange] = {}
        """How the windows of the query that is planned should be distributed."""
        self.groups = Groups()
        self.eras: Eras = (Era(None, 0),)
        self.cores: Mapping[str, int | None] = {}
        self.widened: tuple[str, int] | None = None
        """Of the input of a shared join: its name, and the largest window."""
        self.around = Surroundings(
            self.lower,
            lambda join: _join_of_two(join, self),
            frozenset(numbers),
            lambda join: self._joins[join, self.since, self.batch],
            measured or {},
        )

    def enter(self, eras: Eras) -> None:
        """Plan in the first of some eras from now on."""
        self.eras = eras
        self.since, self.batch = eras[0].since, eras[0].batch

    def begin(self, query: Query, whole: Node) -> str:
        """Begin to lower a query; return how its answer leaves."""
        self.enter(query.all_eras)
        self.cores = query.cores
        self.in_step = query.mode in ("view", "delta", "kept")
        self.wanted = wanted(whole) if self.negative else {}
        return mode_of(query)

    def announce(self, node: Node) -> None:
        """Look over the joins of a query before any is lowered."""
        joins: set[tuple[Node, int | None, int]] = set()

        def visit(part: Node, eras: Eras) -> None:
            eras = eras[era_of(part, eras) :]
            if isinstance(part, algebra.Join):
                joins.add((part, eras[0].since, eras[0].batch))
            for below in algebra.inputs(part):
                visit(below, eras)

        visit(node, self.eras)
        self._joins.update(joins)

    def lowered(self) -> Iterator[tuple[Node, int]]:
        """Yield what was lowered, with its position."""
        for (node, *_), at in self._memo.items():
            yield node, at

    def lower(self, node: Node) -> int:
        """Return the position of the physical node for a logical one."""
        number = era_of(node, self.eras)
        if number:
            return self._lower_before(node, number)
        core = self.groups.of(node, self.cores)
        group = None if core is None else (core.name, core.since)
        spread: frozenset[tuple[Node, Exchange]] = frozenset()
        if self.wanted:
            windows = self.wanted.keys() & set(algebra.walk(node))
            spread = frozenset((window, self.wanted[window]) for window in windows)
        how = self.in_step, self.at_once, self.negative, self.widened, group, spread, self.eras
        key = (node, self.since, self.batch, *how)
        if key not in self._memo:
            self._memo[key] = lower(node, self) if core is None else self._lower_core(node, core)
            if isinstance(node, algebra.Join):
                at = self._memo[key]
                self.nodes[at] = replace(self.nodes[at], meaning=meaning_of(node))
        return self._memo[key]

    def _lower_before(self, node: Node, number: int) -> int:
        """Add a part of an era before, and what gives this era its rows."""
        eras = self.eras
        assert eras[0].since is not None, "an era that keeps something begins at an instant"
        self.enter(eras[number:])
        try:
            below = self.lower(node)
        finally:
            self.enter(eras)
        made, pattern = self.nodes[below], algebra.update_pattern(node)
        label = f"Since {time_text(eras[0].since, in_timestamps(node))}"
        spec = SinceSpec(eras[0].since)
        return self.stateless(spec, below, made.types, made.partitioning, label, pattern)

    def _lower_core(self, node: Node, group: Group) -> int:
        """Add a join that queries with other windows share, and the way to this one's rows."""
        assert isinstance(node, algebra.Join)
        since, negative = self.since, self.negative
        self.since, self.negative = group.since, False
        try:
            below = []
            for side, input in enumerate((node.left, node.right)):
                self.widened = f"{group.name} {side}", group.largest[side]
                below.append(self.lower(input))
            self.widened = None
            sides = prepared(self, node, *below)
            joined = shared(self, node, group, sides)
        finally:
            self.since, self.negative, self.widened = since, negative, None
        return routed(self, node, group, joined)

    def output_knowing_ends(self, query: str, node: Node, mode: str, at_once: bool) -> int:
        """Add the output of rows whose ends are known at birth: they need no negative tuples.

        ``at_once``: they wait for nothing.
        """
        negative, self.negative, self.at_once = self.negative, False, at_once
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
    return planner.source("stream", node.stream, columns, node.schema, node.predicate, node.mark)


@lower.register
def _(node: algebra.TableScan, planner: Planner) -> int:
    at = planner.source("table", node.table, tuple(range(len(node.schema))), node.schema, None)
    mortal = node.valid_to is not None
    return planner.signed(at) if planner.negative and mortal else at


@lower.register
def _(node: algebra.Window, planner: Planner) -> int:
    stream = node.input
    alone = not any(isinstance(n, algebra.Window) for n in algebra.walk(stream))
    never_dies = alone and node.spec.by_time and algebra.update_pattern(stream) == "monotonic"
    if not algebra.is_stream(stream) and not never_dies:
        stream = algebra.ToStream("istream", stream)
    below = planner.lower(stream)
    types = node.schema.types
    label = f"Window {_window_text(node)}"
    pattern = algebra.update_pattern(node)
    _check_windows(node.spec)
    if node.spec.by_time:
        have = planner.nodes[below].partitioning
        spec: TimeWindowSpec = TimeWindowSpec(node.spec)
        if planner.widened is not None:
            spec = SharedWindowSpec(range_of(planner.widened[1]), planner.widened[0])
            label = f"Window {_window_text(replace(node, spec=spec.window))}"
        return planner.stateless(
            spec,
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
    if node.spec.slide is None and node.spec.shift is None:
        by_rows = kind(stream.schema.types, node.spec)
        return planner.operator(by_rows, [below], [demand], types, where, label, pattern)
    plain = replace(node.spec, slide=None, shift=None, range=_bounded(node.spec.range))
    negative, planner.negative = planner.negative, False
    try:
        text = f"Window {_window_text(replace(node, spec=plain))}"
        by_rows = kind(stream.schema.types, plain)
        made = planner.operator(by_rows, [below], [demand], types, where, text, pattern)
    finally:
        planner.negative = negative
    later = LaterSpec(types, node.spec.slide, node.spec.pulses_from, node.spec.shift or 0)
    label = f"Later {_later_text(node)}"
    return planner.operator(later, [made], [None], types, where, label, pattern)


def _later_text(node: algebra.Window) -> str:
    """Return which changes of a window happen later, and when."""
    spec, stamps = node.spec, in_timestamps(node)
    parts = []
    if spec.slide is not None:
        parts.append(f"at pulses every {duration_text(spec.slide, stamps)}")
    if spec.shift is not None:
        parts.append(f"shifted by {duration_text(spec.shift, stamps)}")
    return ", ".join(parts)


def _bounded(length: int | None) -> int | None:
    """Return the length of a RANGE, None if it has no end."""
    return None if length == INF else length


@lower.register
def _(node: algebra.Filter, planner: Planner) -> int:
    below = planner.lower(node.input)
    have = planner.nodes[below].partitioning
    return planner.stateless(
        FilterSpec(node.predicate, node.undelivered),
        below,
        node.schema.types,
        have,
        "Undelivered" if node.undelivered else "Filter",
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
    known = determined(node) and not planner.negative
    return planner.operator(
        CutDistinctSpec(types) if known else DistinctSpec(types),
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
    if node.offset:  # ties are equal rows, so the first rows can be taken away as a bag
        most: Node = replace(node, limit=node.limit + node.offset, offset=0)
        if node.limit >= algebra.EVERY:
            most = node.input
        first = replace(node, limit=node.offset, offset=0)
        return planner.lower(algebra.SetOp("except", True, most, first))
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
def _(node: algebra.Rank | algebra.GroupTop, planner: Planner) -> int:
    below, keys = with_key_columns(planner, planner.lower(node.input), node.partition)
    wide = planner.nodes[below].types
    order = tuple((k.expr, k.descending, k.nulls_first) for k in node.order)
    demand = relaxed(planner, below, ByKey(keys) if keys else SINGLE)
    spec: Spec
    if isinstance(node, algebra.Rank):
        spec, label = RankSpec(wide, keys, order, node.calls), "Rank"
    else:
        shown = bool(node.names)
        spec = GroupTopSpec(wide, keys, order, node.by, node.limit, shown)
        label = f"Top {node.limit} of groups by {node.by}"
    width, pattern = len(node.input.schema), algebra.update_pattern(node)
    added = node.schema.types[width:]
    types, where = (*wide, *added), after(planner, below, demand)
    at = planner.operator(spec, [below], [demand], types, where, label, pattern)
    if len(wide) == width:
        return at
    shown_columns = (*range(width), *range(len(wide), len(types)))  # the keys go
    exprs = tuple(expr.Column(i, types[i]) for i in shown_columns)
    have = projected(planner.nodes[at].partitioning, exprs)
    return planner.stateless(ProjectSpec(exprs), at, node.schema.types, have, "Project", pattern)


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
            return spec.by_time and (spec.slide is not None or spec.fixed is not None)
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
