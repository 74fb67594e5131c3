"""Joins to physical operators: how the inputs are distributed, and which operator joins them.

With keys, equal keys meet in one shard, or in the several that share a key (`join.split`).  Without
keys, each left row has one shard that owns it, and right rows are copied to every shard in which
they may have a partner: so every pair is made exactly once, and all partners of a left row are
where the row is.

* A condition that bounds differences at both ends (a band, points that are near) cuts space into
  cells a few times as wide as its reach: right rows go to one shard, near a border to two or more.
* For any other condition the left rows are owned by their hash and right rows go to all shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa

from penstock import algebra
from penstock.expr import nodes as expr
from penstock.expr.nodes import Expr
from penstock.kernels.join_orders import EQUAL, Anywhere, Band, Equal, EqualBand, Near, Place
from penstock.operators.join import JoinSpec, SharedJoinSpec
from penstock.operators.merge_join import ProgressiveMergeJoinSpec, TemporalMergeJoinSpec
from penstock.operators.project import ProjectSpec
from penstock.operators.spec import Spec
from penstock.physical.exchange import COPIES, OWNED, SINGLE, ByKey, Cells, Exchange, Shared
from penstock.physical.graph import Graph, aligned, translate, usable
from penstock.physical.predicates import Recognised, recognise, sharpened

_COPYING_KINDS = ("inner", "left", "right", "semi", "anti")
"""Kinds that follow the rows of one side only, which is the owned one."""

_LAG = pa.int64()
"""The type of the column that a shared join has behind those of its inputs."""

_CELLS_PER_REACH = (16.0, 8.0)
"""Widths of cells, in widths of the reach, in one and in two dimensions.

A right row is copied with probability 1/16 in one dimension and about 1/4 in two.
"""


@dataclass(frozen=True)
class Joined:
    """A lowered input of a join: its position in the graph, and the columns that are its keys.

    Computed keys stand behind the columns of the logical node.  Without equality the keys are the
    coordinates that decide about the shard; ``coordinates`` are all that the ``place`` compares.
    ``copied``: rows of the right side may stand in several shards.  ``windows`` are those of the
    queries that share the join, if there are several: its results have a column more, the lag.
    """

    at: int
    keys: tuple[int, ...]
    place: Place = EQUAL
    coordinates: tuple[Expr, ...] = ()
    copied: bool = False
    label: str = "Join"
    windows: tuple[tuple[int, int], ...] = ()

    @property
    def by_key(self) -> bool:
        """Whether partners have equal keys."""
        return isinstance(self.place, Equal | EqualBand)


def prepared(graph: Graph, node: algebra.Join, left: int, right: int) -> tuple[Joined, Joined]:
    """Return the inputs of a join, both lowered already, with their keys or coordinates."""
    found = Recognised(Anywhere())
    if graph.config.join_index:
        found = recognise(node.residual, len(node.left.schema))
    if node.left_keys:
        keys = node.left_keys, node.right_keys
        if isinstance(found.place, Band):
            place, label = EqualBand(found.place), f"{found.label}, by key"
            found = Recognised(place, keys[0] + found.left, keys[1] + found.right, label)
        else:
            found = Recognised(EQUAL, *keys, "Join")
    else:
        dimensions = _dimensions(found.place)
        keys = found.left[:dimensions], found.right[:dimensions]
    copied = node.kind in _COPYING_KINDS
    sides = []
    for at, own, coordinates in zip((left, right), keys, (found.left, found.right), strict=True):
        wide, positions = with_key_columns(graph, at, own)
        types = graph.nodes[wide].types
        as_columns = tuple(expr.Column(k, types[k]) for k in positions)
        rest = coordinates[len(positions) :]
        sides.append(Joined(wide, positions, found.place, as_columns + rest, copied, found.label))
    return sides[0], sides[1]


def exchanged(left: Joined, right: Joined) -> tuple[Joined, Joined]:
    """Return the inputs of the same join with its sides exchanged."""
    place = left.place
    if isinstance(place, Band):
        place = _negative(place)
    elif isinstance(place, EqualBand):
        place = EqualBand(_negative(place.band))
    return replace(right, place=place), replace(left, place=place)


def _negative(band: Band) -> Band:
    return Band(-band.high + 0.0, -band.low + 0.0)


def _dimensions(place: Place) -> int:
    """Return how many coordinates cut space into cells; 0 if there is no grid for the place."""
    match place:
        case Band(low, high) if math.isfinite(low) and math.isfinite(high):
            return 1
        case Near(widths):
            return min(2, len(widths))
    return 0


def join(
    graph: Graph,
    node: algebra.Join,
    left: Joined,
    right: Joined,
    demands: Sequence[Exchange] | None = None,
    extra: Sequence[int] = (),
) -> int:
    """Add the operators of an inner join; both inputs are lowered already.

    ``extra`` are columns of the joined inputs that are kept behind those of the logical node.
    """
    types = [graph.nodes[side.at].types for side in (left, right)]
    widths = len(node.left.schema), len(node.right.schema)
    demands = demands or distributions(graph, left, right)
    where = demands[0] if demands[0].kind in ("hash", "single") else None
    wide = len(types[0]) > widths[0] or len(types[1]) > widths[1]
    spec, label = _spec(graph, node, left, right)
    if extra and isinstance(spec, JoinSpec) and not left.windows:
        spec = replace(spec, numbers=tuple(extra))
    both = types[0] + types[1] + ((_LAG,) if left.windows else ())
    joined = graph.operator(
        spec,
        [left.at, right.at],
        demands,
        both,
        where,
        label,
        algebra.update_pattern(node),
    )
    if not wide:
        return joined
    kept = [*range(widths[0]), *(len(types[0]) + i for i in range(widths[1])), *extra]
    columns = tuple(expr.Column(i, both[i]) for i in kept)
    place = {k: i for i, k in enumerate(kept)}
    then = None
    if where is not None and all(k in place for k in where.keys):
        then = replace(where, keys=tuple(place[k] for k in where.keys))
    return graph.operator(
        ProjectSpec(columns),
        [joined],
        [None],
        tuple(c.type for c in columns),
        then,
        "Project",
        algebra.update_pattern(node),
    )


def numbers_of_pairs(
    graph: Graph,
    node: algebra.Join,
    left: Joined,
    right: Joined,
    demands: Sequence[Exchange],
    shown: Sequence[int] = (),
) -> int:
    """Add an inner join of which only the number of the left row is needed, its last column.

    ``shown`` are columns of the left input, ascending, that stand in front of it.
    """
    number = len(graph.nodes[left.at].types) - 1
    spec, label = _spec(graph, node, left, right)
    kept = (*shown, number)
    types = graph.nodes[left.at].types + graph.nodes[right.at].types
    only = tuple(types[c] for c in kept)
    picked = isinstance(spec, JoinSpec)
    if isinstance(spec, JoinSpec):
        spec = replace(spec, numbers=(number,), kept=kept)
        types = only
    pattern = algebra.update_pattern(node)
    where = demands[0] if demands[0].kind == "single" else None
    joined = graph.operator(spec, [left.at, right.at], demands, types, where, label, pattern)
    if picked:
        return joined
    columns = tuple(expr.Column(c, types[c]) for c in kept)
    return graph.operator(ProjectSpec(columns), [joined], [None], only, where, "Project", pattern)


def _spec(graph: Graph, node: algebra.Join, left: Joined, right: Joined) -> tuple[Spec, str]:
    """Return the operator of an inner join, and its name in EXPLAIN."""
    types = [graph.nodes[side.at].types for side in (left, right)]
    widths = len(node.left.schema), len(node.right.schema)
    residual = None if node.residual is None else sharpened(node.residual)
    if residual is not None and (len(types[0]) > widths[0] or len(types[1]) > widths[1]):
        moved = {i: i for i in range(widths[0])}
        moved |= {widths[0] + i: len(types[0]) + i for i in range(widths[1])}
        residual = expr.shift(residual, moved)
    coordinates = [side.coordinates for side in (left, right)]
    if left.place == EQUAL:
        coordinates = [
            tuple(expr.Column(k, columns[k]) for k in side.keys)
            for columns, side in zip(types, (left, right), strict=True)
        ]
    return _method(graph, node, left, types, coordinates, residual)


def _method(
    graph: Graph,
    node: algebra.Join,
    left: Joined,
    types: Sequence[tuple[pa.DataType, ...]],
    coordinates: Sequence[tuple[Expr, ...]],
    residual: Expr | None,
) -> tuple[Spec, str]:
    """Return the operator of an inner join, and its name in EXPLAIN.

    Joins by merging need rows whose ends are known at birth, and each shard has a heartbeat of its
    own; where that does not do, and where results leave at once, rows are joined by probing.
    """
    method = graph.config.join_method
    by_merging = node.kind == "inner" and determined(node) and not graph.in_step
    by_merging &= not graph.negative and not graph.at_once and not left.windows
    if method in ("tpmj", "pmj") and by_merging:
        place, exprs = left.place, tuple(coordinates)
        if isinstance(place, EqualBand):
            place, exprs = EQUAL, tuple(given[:-1] for given in exprs)
        given = tuple(types), exprs, place, residual
        if method == "tpmj":
            return TemporalMergeJoinSpec(*given), f"{left.label}, by merging in slices (TPMJ)"
        return ProgressiveMergeJoinSpec(*given), f"{left.label}, by merging (PMJ)"
    spec = JoinSpec(
        left_types=types[0],
        right_types=types[1],
        left_keys=coordinates[0],
        right_keys=coordinates[1],
        residual=residual,
        place=left.place,
        at_once=graph.at_once,
    )
    if left.windows:
        own = {f.name: getattr(spec, f.name) for f in fields(spec)}
        spec = SharedJoinSpec(**own, windows=left.windows)
    return spec, left.label


def determined(node: algebra.Node) -> bool:
    """Whether the ends of all rows are known when they are born: no row has a holder."""
    match node:
        case algebra.Window(_, spec):
            return spec.by_time
        case algebra.Scan() | algebra.TableScan() | algebra.ToStream() | algebra.Over():
            return True
        case algebra.Filter() | algebra.Project() | algebra.UnionAll():
            return all(determined(below) for below in algebra.inputs(node))
        case algebra.Distinct(below, cut):
            return cut and determined(below)
        case algebra.Join():
            known = all(determined(below) for below in algebra.inputs(node))
            return node.kind == "inner" and known
    return False


def distributions(graph: Graph, left: Joined, right: Joined) -> list[Exchange]:
    """Return how both inputs must be distributed so that partners meet."""
    have_left = graph.nodes[left.at].partitioning
    have_right = graph.nodes[right.at].partitioning
    if have_left == SINGLE and have_right == SINGLE:
        return [SINGLE, SINGLE]
    if not left.by_key:
        return _without_keys(left, right)
    if not left.keys:
        return [SINGLE, SINGLE]
    ways = graph.config.join_split
    if ways > 1 and left.copied:
        return [Shared(left.keys, ways), Shared(right.keys, ways, True)]
    if aligned(have_left, left.keys, have_right, right.keys):
        assert have_left is not None
        assert have_right is not None
        return [have_left, have_right]
    if usable(graph, left.at, left.keys):
        assert have_left is not None
        return [have_left, ByKey(translate(have_left.keys, left.keys, right.keys))]
    if usable(graph, right.at, right.keys):
        assert have_right is not None
        return [ByKey(translate(have_right.keys, right.keys, left.keys)), have_right]
    return [ByKey(left.keys), ByKey(right.keys)]


def _without_keys(left: Joined, right: Joined) -> list[Exchange]:
    """Return where left rows are owned, and where right rows are copied to."""
    if not left.copied:
        return [SINGLE, SINGLE]
    below: tuple[float, ...]
    above: tuple[float, ...]
    match left.place:
        case Band(low, high) if left.keys:
            below, above = (high,), (-low,)
        case Near(widths) if left.keys:
            below = above = widths[: len(left.keys)]
        case _:
            return [OWNED, COPIES]
    factor = _CELLS_PER_REACH[len(below) - 1]
    cells = tuple((b + a) * factor or 1.0 for b, a in zip(below, above, strict=True))
    return [
        Cells(left.keys, cells),
        Cells(right.keys, cells, below, above),
    ]


def with_key_columns(
    graph: Graph, below: int, keys: tuple[Expr, ...]
) -> tuple[int, tuple[int, ...]]:
    """Add computed key columns behind a node's own; return the node and the keys' positions."""
    types = graph.nodes[below].types
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
    wide = graph.stateless(
        ProjectSpec(everything),
        below,
        tuple(e.type for e in everything),
        graph.nodes[below].partitioning,
        "Project with keys",
        graph.nodes[below].pattern,
    )
    return wide, tuple(positions)
