"""Outer, semi and anti joins to physical operators: all are made from the inner join.

The rows of a side that must be followed get a number (`RowNumbersSpec`) right in front of the inner
join, so the pairs carry it.  From the pairs,

* the rows without a partner are what `UnmatchedSpec` leaves of the numbered rows;
* the rows with a partner are the pairs' own columns, each number once (`DistinctSpec`).

Where the ends of all rows are known at birth, as those of time windows, less has to be followed:
`CoveredSpec` does both.

LEFT is the pairs and the left rows without a partner, RIGHT the same with the sides exchanged, FULL
has both kinds of lonely rows.  Nothing is exchanged between the join and what follows it: a
numbered row stands in one shard and meets all its partners there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from penstock import algebra
from penstock.expr import nodes as expr
from penstock.expr.nodes import Expr
from penstock.kernels.join_orders import EQUAL
from penstock.operators.covered import CoveredSpec
from penstock.operators.distinct import DistinctSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.row_numbers import NUMBER, RowNumbersSpec
from penstock.operators.union import UnionSpec
from penstock.operators.unmatched import UnmatchedSpec
from penstock.physical.exchange import Exchange
from penstock.physical.graph import Graph
from penstock.physical.joins import (
    Joined,
    determined,
    distributions,
    exchanged,
    join,
    numbers_of_pairs,
)


def join_of_kind(graph: Graph, node: algebra.Join, left: Joined, right: Joined) -> int:
    """Add the operators of a join of any kind; both inputs are lowered already."""
    match node.kind:
        case "inner":
            return join(graph, node, left, right)
        case "right":
            return _exchanged(graph, node, left, right)
        case "anti":
            return _of_rows(graph, node, left, right, False)
        case "semi" if _known(graph, node):
            return _of_rows(graph, node, left, right, True)
        case "semi":
            return _semi(graph, node, left, right)
    return _with_lonely(graph, node, left, right)


def _with_lonely(graph: Graph, node: algebra.Join, left: Joined, right: Joined) -> int:
    """LEFT and FULL: the pairs, and the rows without a partner."""
    demands = distributions(graph, left, right)
    stage = _stage(graph, (left, right), demands)
    sides = [left, right]
    followed = (0, 1) if node.kind == "full" else (0,)
    for i in followed:
        sides[i] = _tagged(graph, sides[i], demands[i], stage)
    ends = [len(graph.nodes[side.at].types) for side in sides]
    numbers = [ends[0] - 1, ends[0] + ends[1] - 1]
    inner = replace(node, kind="inner")
    pairs = join(graph, inner, sides[0], sides[1], demands, [numbers[i] for i in followed])
    widths = len(node.left.schema), len(node.right.schema)
    known = _known(graph, node)
    lonely = [
        _lonely(graph, sides[i], widths[i], _columns(graph, pairs, [sum(widths) + place]), known)
        for place, i in enumerate(followed)
    ]
    types = node.schema.types
    members = [_columns(graph, pairs, range(sum(widths)))]
    members.append(_filled(graph, lonely[0], types, 0))
    if node.kind == "full":
        members.append(_filled(graph, lonely[1], types, widths[0]))
    where = {graph.nodes[m].partitioning for m in members}
    return graph.operator(
        UnionSpec(len(members)),
        members,
        [None] * len(members),
        types,
        where.pop() if len(where) == 1 else None,
        f"{node.kind.capitalize()} join",
        algebra.update_pattern(node),
    )


def _of_rows(graph: Graph, node: algebra.Join, left: Joined, right: Joined, partners: bool) -> int:
    """SEMI and ANTI: the left rows by their partners; of the pairs only the number is made.

    A semi join has the keys besides, so that it knows of which parts no more pairs come.
    """
    demands = distributions(graph, left, right)
    tagged = _tagged(graph, left, demands[0], _stage(graph, (left, right), demands))
    inner = replace(node, kind="inner")
    width = len(node.left.schema)
    shown: tuple[int, ...] = ()
    if partners and left.place == EQUAL and all(key < width for key in left.keys):
        shown = tuple(sorted(set(left.keys)))
    pairs = numbers_of_pairs(graph, inner, tagged, right, demands, shown)
    if partners:
        rows = _numbered(graph, tagged, width)
        spec = CoveredSpec(graph.nodes[rows].types[:-1], True, shown)
        return _beside(graph, spec, [rows, pairs], "Semi join", algebra.update_pattern(node))
    return _lonely(graph, tagged, width, pairs, _known(graph, node))


def _semi(graph: Graph, node: algebra.Join, left: Joined, right: Joined) -> int:
    """SEMI where ends are told: the columns of the pairs' left rows, each number once."""
    demands = distributions(graph, left, right)
    tagged = _tagged(graph, left, demands[0], _stage(graph, (left, right), demands))
    number = len(graph.nodes[tagged.at].types) - 1
    pairs = join(graph, replace(node, kind="inner"), tagged, right, demands, [number])
    width = len(node.left.schema)
    rows = _columns(graph, pairs, [*range(width), width + len(node.right.schema)])
    types = graph.nodes[rows].types
    once = graph.operator(
        DistinctSpec(types),
        [rows],
        [None],
        types,
        graph.nodes[rows].partitioning,
        "Semi join",
        algebra.update_pattern(node),
    )
    return _columns(graph, once, range(width))


def _exchanged(graph: Graph, node: algebra.Join, left: Joined, right: Joined) -> int:
    """A RIGHT join: the LEFT join of the sides exchanged."""
    widths = len(node.left.schema), len(node.right.schema)
    places = {i: widths[1] + i for i in range(widths[0])}
    places |= {widths[0] + i: i for i in range(widths[1])}
    mirrored = algebra.Join(
        node.right,
        node.left,
        node.right_keys,
        node.left_keys,
        None if node.residual is None else expr.shift(node.residual, places),
        "left",
    )
    below = _with_lonely(graph, mirrored, *exchanged(left, right))
    return _columns(graph, below, [places[i] for i in range(sum(widths))])


def _stage(graph: Graph, sides: Sequence[Joined], demands: Sequence[Exchange]) -> int:
    """Return the stage in which a join of the sides runs."""
    return max(
        graph.nodes[side.at].stage + (graph.needs(side.at, demand, True) is not None)
        for side, demand in zip(sides, demands, strict=True)
    )


def _tagged(graph: Graph, side: Joined, where: Exchange, stage: int) -> Joined:
    """Return an input with a number behind its columns, in the stage of the join."""
    below = graph.nodes[side.at]
    at = graph.operator(
        RowNumbersSpec(),
        [side.at],
        [where],
        (*below.types, NUMBER),
        where,
        "Number",
        below.pattern,
        identity=("stage", stage),
        at_least=stage,
    )
    return replace(side, at=at)


def _known(graph: Graph, node: algebra.Join) -> bool:
    """Whether the ends of all rows and pairs are known when they are born."""
    return not graph.negative and determined(node.left) and determined(node.right)


def _lonely(graph: Graph, side: Joined, width: int, pairs: int, known: bool) -> int:
    """Return the rows of a numbered side while no pair has their number.

    ``pairs`` are the numbers of the pairs; ``known``: the ends of all are.
    """
    rows = _numbered(graph, side, width)
    types = graph.nodes[rows].types[:-1]
    spec = CoveredSpec(types, False) if known else UnmatchedSpec(types)
    return _beside(graph, spec, [rows, pairs], "Rows without partner", "strict")


def _numbered(graph: Graph, side: Joined, width: int) -> int:
    """Return the rows of a side with their number, without computed keys."""
    return _columns(graph, side.at, [*range(width), len(graph.nodes[side.at].types) - 1])


def _beside(
    graph: Graph,
    spec: CoveredSpec | UnmatchedSpec,
    inputs: Sequence[int],
    label: str,
    pattern: str,
) -> int:
    """Add an operator that follows rows by their pairs, in the shard where both are."""
    where = graph.nodes[inputs[0]].partitioning
    return graph.operator(spec, inputs, [None, None], spec.types, where, label, pattern)


def _columns(graph: Graph, below: int, kept: Sequence[int]) -> int:
    """Return some columns of a node, in any order."""
    types = graph.nodes[below].types
    if list(kept) == list(range(len(types))):
        return below
    exprs = tuple(expr.Column(i, types[i]) for i in kept)
    return _projected(graph, below, exprs, {k: i for i, k in enumerate(kept)})


def _filled(graph: Graph, below: int, types: Sequence[pa.DataType], first: int) -> int:
    """Return rows of one side as rows of the join, with nulls for the other side."""
    own = graph.nodes[below].types
    exprs: list[Expr] = [expr.Literal(None, t) for t in types]
    exprs[first : first + len(own)] = [expr.Column(i, t) for i, t in enumerate(own)]
    return _projected(graph, below, tuple(exprs), {i: first + i for i in range(len(own))})


def _projected(graph: Graph, below: int, exprs: tuple[Expr, ...], places: dict[int, int]) -> int:
    """Add a projection; ``places`` says where columns of its input stand in it."""
    have = graph.nodes[below].partitioning
    if have is not None and have.keys:
        known = all(k in places for k in have.keys)
        have = replace(have, keys=tuple(places[k] for k in have.keys)) if known else None
    return graph.operator(
        ProjectSpec(exprs),
        [below],
        [None],
        tuple(e.type for e in exprs),
        have,
        "Project",
        graph.nodes[below].pattern,
    )
