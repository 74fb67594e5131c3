"""Joins of three or more inputs: one operator, or a cascade of joins of two [B 6].

A tree of inner joins is taken apart into its inputs and conditions.  One operator can do it all
if one order of each input serves its conditions with the others:

* *equal keys*: some class of equal expressions has a member in every input;
* *intervals*: conditions between two inputs each are bands or overlaps, an input has the same
  coordinates in all of its own, and they connect all inputs.

Everything else is tested on the tuples that are left, as soon as they are complete; a condition
that can fail waits for all that stand before it.

One operator stores the inputs, a cascade stores its intermediate results as well and probes them
instead of joining again.  So the cascade is taken when an intermediate result is known to be small,
when another query needs it anyway, and when an input is a table, which may be larger than memory.
A query that runs keeps the form that its state has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.expr import nodes as expr
from penstock.expr.arrow import cannot_fail
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Expr, columns_of, conjuncts, shift
from penstock.kernels.join_orders import Band, Overlap
from penstock.operators.join import JoinSpec
from penstock.operators.multi_join import MultiJoinSpec, Reach
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.project import ProjectSpec
from penstock.physical.exchange import SINGLE, ByKey, Exchange
from penstock.physical.graph import Graph
from penstock.physical.joins import with_key_columns
from penstock.physical.plan import PhysicalPlan
from penstock.physical.predicates import recognise

_SELECTIVE = 0.5
"""A first join that gives fewer results per row that comes in is worth storing."""


@dataclass(frozen=True)
class Condition:
    """A conjunct over the columns of all inputs, and the inputs that must be there to test it.

    ``sides`` are those of an equality that is a join key.
    """

    expr: Expr
    inputs: frozenset[int]
    sides: tuple[Expr, Expr] | None = None


@dataclass
class Tree:
    """The inputs of a tree of inner joins, its conditions in order, and its columns.

    Columns are numbered over all inputs, one after another; ``output`` are those of the tree.
    """

    inputs: list[Node] = field(default_factory=list)
    home: list[tuple[int, int]] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    first: algebra.Join | None = None

    def inputs_of(self, *exprs: Expr) -> frozenset[int]:
        """Return the inputs that expressions read."""
        return frozenset(self.home[c][0] for e in exprs for c in columns_of(e))

    def own(self, e: Expr) -> Expr:
        """Return an expression that reads one input, over that input's own columns."""
        return shift(e, {c: self.home[c][1] for c in columns_of(e)})


@dataclass(frozen=True)
class Form:
    """How one operator can do a tree: coordinates of each input, and what else must be true."""

    label: str
    coordinates: tuple[tuple[Expr, ...], ...]
    conditions: tuple[Condition, ...]
    reaches: tuple[Reach, ...] | None = None


# ---- taking a tree apart


def gather(node: algebra.Join) -> Tree:
    """Take a tree of inner joins apart, through projections that only pick columns."""
    tree = Tree()
    tree.output = _visit(node, tree, node.hint)
    return tree


def _visit(node: Node, tree: Tree, hint: str) -> list[int]:
    """Add a node to the tree and return its columns, numbered over all inputs."""
    match node:
        case algebra.Join(kind="inner") if node.hint == hint:
            before = len(tree.inputs)
            left, right = _visit(node.left, tree, hint), _visit(node.right, tree, hint)
            if len(tree.inputs) == before + 2 and tree.first is None:
                tree.first = node
            _conditions(node, left, right, frozenset(range(before, len(tree.inputs))), tree)
            return left + right
        case algebra.Project(below, exprs) if _is_join(below, hint) and all(
            isinstance(e, expr.Column) for e in exprs
        ):
            columns = _visit(below, tree, hint)
            return [columns[e.index] for e in exprs if isinstance(e, expr.Column)]
    first = len(tree.home)
    tree.home += [(len(tree.inputs), i) for i in range(len(node.schema))]
    tree.inputs.append(node)
    return list(range(first, len(tree.home)))


def _is_join(node: Node, hint: str) -> bool:
    return isinstance(node, algebra.Join) and node.kind == "inner" and node.hint == hint


def _conditions(
    node: algebra.Join, left: list[int], right: list[int], inside: frozenset[int], tree: Tree
) -> None:
    def moved(e: Expr, columns: list[int]) -> Expr:
        return shift(e, {c: columns[c] for c in columns_of(e)})

    def add(whole: Expr, sides: tuple[Expr, Expr] | None = None) -> None:
        inputs = tree.inputs_of(whole)
        soon = len(inputs) > 1 and cannot_fail(whole)
        tree.conditions.append(Condition(whole, inputs if soon else inside, sides))

    for a, b in zip(node.left_keys, node.right_keys, strict=True):
        sides = moved(a, left), moved(b, right)
        add(resolve_call("eq", sides), sides)
    for part in [] if node.residual is None else conjuncts(node.residual):
        add(moved(part, left + right))


# ---- which order serves all


def form_of(tree: Tree, index: bool) -> Form | None:
    """Return how one operator can do a tree, None if no order serves all its inputs."""
    return _equal_form(tree) or (_interval_form(tree) if index else None)


def _equal_form(tree: Tree) -> Form | None:
    """Look for classes of equal expressions that have a member in every input."""
    classes: list[dict[int, Expr]] = []
    members: list[set[tuple[int, Expr]]] = []
    for sides in (c.sides for c in tree.conditions if c.sides is not None):
        homes = [tree.inputs_of(side) for side in sides]
        if any(len(home) != 1 for home in homes) or not all(map(cannot_fail, sides)):
            continue
        pair = {(next(iter(home)), tree.own(side)) for home, side in zip(homes, sides, strict=True)}
        touched = [m for m in members if m & pair]
        members = [m for m in members if not m & pair] + [pair.union(*touched)]
    for group in members:
        if {i for i, _ in group} == set(range(len(tree.inputs))):
            chosen: dict[int, Expr] = {}
            for i, e in sorted(group, key=repr):
                chosen.setdefault(i, e)
            classes.append(chosen)
    if not classes:
        return None
    classes.sort(key=lambda chosen: repr(chosen[0]))
    rest = [
        condition
        for condition in tree.conditions
        if condition.sides is None
        or not any(all(_stands_for(tree, chosen, side) for side in condition.sides)
                   for chosen in classes)
    ]  # fmt: skip
    keys = tuple(tuple(chosen[i] for chosen in classes) for i in range(len(tree.inputs)))
    return Form("by equal keys", keys, tuple(rest))


def _stands_for(tree: Tree, chosen: Mapping[int, Expr], side: Expr) -> bool:
    home = tree.inputs_of(side)
    return len(home) == 1 and chosen[next(iter(home))] == tree.own(side)


def _interval_form(tree: Tree) -> Form | None:
    """Look for bands and overlaps that connect all inputs by one interval each."""
    by_pair: dict[tuple[int, int], list[Expr]] = {}
    for condition in tree.conditions:
        inputs = sorted(tree.inputs_of(condition.expr))
        if len(inputs) == 2:
            by_pair.setdefault((inputs[0], inputs[1]), []).append(condition.expr)
    reaches: list[Reach] = []
    coordinates: dict[int, tuple[Expr, ...]] = {}
    places = set()
    for (a, b), parts in sorted(by_pair.items()):
        width = len(tree.inputs[a].schema)
        both = {c: own + (width if i == b else 0)
                for c, (i, own) in enumerate(tree.home) if i in (a, b)}  # fmt: skip
        whole = parts[0]
        for part in parts[1:]:
            whole = resolve_call("and", [whole, part])
        found = recognise(shift(whole, {c: both[c] for c in columns_of(whole)}), width)
        match found.place:
            case Overlap():
                mine, theirs, low, high = found.left, found.right, 0.0, 0.0
            case Band(low, high):
                mine, theirs = found.left * 2, found.right * 2
            case _:
                continue
        if coordinates.get(a, mine) == mine and coordinates.get(b, theirs) == theirs:
            coordinates |= {a: mine, b: theirs}
            reaches.append((a, b, low, high))
            places.add(type(found.place))
    if not _connected(len(tree.inputs), reaches):
        return None
    label = "of intervals that meet" if places == {Overlap} else "in bands"
    keys = tuple(coordinates[i] for i in range(len(tree.inputs)))
    return Form(label, keys, tuple(tree.conditions), tuple(reaches))


def _connected(inputs: int, reaches: Sequence[Reach]) -> bool:
    reached, grown = {0}, True
    while grown:
        new = {i for a, b, low, high in reaches if math.isfinite(low) or math.isfinite(high)
               for i in (a, b) if {a, b} & reached}  # fmt: skip
        grown = not new <= reached
        reached |= new
    return len(reached) == inputs


# ---- choosing and building


@dataclass(frozen=True)
class Surroundings:
    """What the planner knows: how to lower inputs, and what speaks for one form or the other.

    ``known`` are the digests of nodes that have state already.  ``users`` tells in how many queries
    a join stands.  ``measured`` are results per row of joins that run, by what they mean.
    """

    lower: Callable[[Node], int]
    cascade: Callable[[algebra.Join], int]
    known: frozenset[str]
    users: Callable[[algebra.Join], int]
    measured: Mapping[str, float]


def multiway(graph: Graph, node: algebra.Join, around: Surroundings) -> int:
    """Add the operators of a tree of inner joins, as one operator or as a cascade."""
    tree = gather(node)
    if len(tree.inputs) < 3:
        return around.cascade(node)
    form = form_of(tree, graph.config.join_index)
    if form is None:
        wished = node.hint == "multiway" or graph.config.join_multiway == "always"
        why = "no order serves all inputs" if wished else ""
        return _explained(graph, around.cascade(node), why)
    at = _build(graph, node, tree, form, around.lower)
    if graph.nodes[at].digest in around.known:
        return _explained(graph, at, "as it runs already")
    apart = around.cascade(node)
    if graph.nodes[apart].digest in around.known:
        return _explained(graph, apart, "cascade: as it runs already")
    together, why = _decision(graph, node, tree, around)
    if together:
        return _explained(graph, at, why)
    return _explained(graph, apart, f"cascade: {why}")


def _decision(
    graph: Graph, node: algebra.Join, tree: Tree, around: Surroundings
) -> tuple[bool, str]:
    """Return whether one operator does it all, and why."""
    if node.hint:
        return node.hint == "multiway", "hint"
    if graph.config.join_multiway != "auto":
        return graph.config.join_multiway == "always", "join.multiway"
    if any(isinstance(n, algebra.TableScan) for i in tree.inputs for n in _rows_of(i)):
        return False, "a table may be large"
    parts = [n for n in algebra.walk(node) if isinstance(n, algebra.Join) and n is not node]
    if any(around.users(part) > around.users(node) for part in parts):
        return False, "another query needs a part"
    assert tree.first is not None
    ratio = around.measured.get(meaning_of(tree.first))
    if ratio is None:
        return True, "intermediate results not measured"
    text = f"first join gives {ratio:.2g} results per row"
    return ratio >= _SELECTIVE, text


def meaning_of(node: algebra.Join) -> str:
    """Return what a join computes, as a short text."""
    return hashlib.sha256(repr(replace(node, hint="")).encode()).hexdigest()[:24]


def measured(plan: PhysicalPlan, rows: Mapping[str, int]) -> dict[str, float]:
    """Return results per row that came in, by meaning, of the joins of two that run.

    ``rows`` are those that left each node, by its digest.
    """
    found: dict[str, float] = {}
    for node in plan.nodes:
        join = node
        while isinstance(join.spec, ProjectSpec | NegativeTuplesSpec):
            join = plan.nodes[join.inputs[0].producer]
        below = [plan.nodes[i.producer].digest for i in join.inputs]
        came = sum(rows.get(digest, 0) for digest in below)
        if node.meaning and isinstance(join.spec, JoinSpec) and came and join.digest in rows:
            found[node.meaning] = rows[join.digest] / came
    return found


def probe_orders(
    plan: PhysicalPlan, states: Sequence[Mapping[str, Any]], digests: Container[str]
) -> list[str]:
    """Return, for each join of many inputs and each shard, in which order it probes at present."""
    lines = []
    for node in plan.nodes:
        if isinstance(node.spec, MultiJoinSpec) and node.digest in digests:
            joined = node.spec.build()
            for shard, known in enumerate(states):
                if node.digest in known:
                    text = joined.describe(known[node.digest]["numbers"])
                    lines.append(f"{node.label.split(';')[0]}, shard {shard}: {text}")
    return lines


def _rows_of(node: Node) -> list[Node]:
    """Return a node and what it only selects from."""
    if isinstance(node, algebra.Filter | algebra.Project):
        return [node, *_rows_of(node.input)]
    return [node]


def _explained(graph: Graph, at: int, why: str) -> int:
    """Say in a join's label why it is as it is."""
    if not why:
        return at
    target = at
    while graph.nodes[target].label == "Project":
        target = graph.nodes[target].inputs[0].producer
    node = graph.nodes[target]
    if why not in node.label:
        graph.nodes[target] = replace(node, label=f"{node.label}; {why}")
    return at


def _build(
    graph: Graph,
    node: algebra.Join,
    tree: Tree,
    form: Form,
    lower: Callable[[Node], int],
) -> int:
    """Add the operator that does it all."""
    below: list[int] = []
    keys: list[tuple[int, ...]] = []
    for member, own in zip(tree.inputs, form.coordinates, strict=True):
        at, columns = lower(member), tuple[int, ...]()
        if form.reaches is None:
            at, columns = with_key_columns(graph, at, own)
        below.append(at)
        keys.append(columns)
    types = [graph.nodes[at].types for at in below]
    first = [sum(len(t) for t in types[:i]) for i in range(len(types))]
    moved = {c: first[i] + at for c, (i, at) in enumerate(tree.home)}
    coordinates = form.coordinates
    demands: list[Exchange] = [SINGLE] * len(below)
    if form.reaches is None:
        coordinates = tuple(
            tuple(expr.Column(k, kinds[k]) for k in columns)
            for columns, kinds in zip(keys, types, strict=True)
        )
        demands = _distributions(graph, below, keys)
    output = tuple(moved[c] for c in tree.output)
    conditions = tuple(
        (shift(c.expr, {i: moved[i] for i in columns_of(c.expr)}), tuple(sorted(c.inputs)))
        for c in form.conditions
    )
    return graph.operator(
        MultiJoinSpec(tuple(types), coordinates, conditions, output, form.reaches),
        below,
        demands,
        node.schema.types,
        _partitioning(demands, first, output),
        f"Join of {len(below)} inputs {form.label}",
        algebra.update_pattern(node),
    )


def _distributions(
    graph: Graph, below: Sequence[int], keys: Sequence[tuple[int, ...]]
) -> list[Exchange]:
    """Return how all inputs must be distributed so that equal keys meet.

    By the keys that most inputs are distributed by already, if there are such.
    """
    have = [graph.nodes[at].partitioning for at in below]
    if all(h == SINGLE for h in have):
        return [SINGLE] * len(below)
    votes: dict[tuple[int, ...], int] = {}
    for h, own in zip(have, keys, strict=True):
        if h is not None and h.kind == "hash" and h.keys and set(h.keys) <= set(own):
            chosen = tuple(own.index(k) for k in h.keys)
            votes[chosen] = votes.get(chosen, 0) + 1
    everything = tuple(range(len(keys[0])))
    by = max(votes, key=lambda chosen: votes[chosen]) if votes else everything
    return [ByKey(tuple(own[k] for k in by)) for own in keys]


def _partitioning(
    demands: Sequence[Exchange], first: Sequence[int], output: Sequence[int]
) -> Exchange | None:
    """Return how results are distributed, as far as their columns can say it."""
    if demands[0] == SINGLE:
        return SINGLE
    place = {c: i for i, c in reversed(list(enumerate(output)))}
    for demand, offset in zip(demands, first, strict=True):
        columns = [offset + k for k in demand.keys]
        if all(c in place for c in columns):
            return ByKey(tuple(place[c] for c in columns))
    return None
