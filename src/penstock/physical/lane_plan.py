"""Which queries take the lane, and what their plans carry for it.

Two lanes answer a query whose streams have priorities.  The *main lane*, the micro-batches, sees
every row.  The *lane* answers prioritised rows beside them, from the state that the last batch
committed, one *turn* after another, and changes no state.  Each result must leave once.

The law.  Let the row ``e`` of leaf ``A`` be answered in turn ``k``, while ``N`` is the newest
committed batch.  (A *leaf* is a scan, or a union of scans, with what is selected, projected and
windowed of it.)  On its way to the output ``e`` meets rows of other leaves at joins.  A row ``s``
comes in through a sibling subtree, and ``H(A, s, N)`` is the least heartbeat, after batch ``N``, of
the streams of that subtree.  The lane makes exactly the results that contain ``e``, and otherwise
only rows that were answered in earlier turns, and rows with ``s.t < H(A, s, N)``.

In the main lane a row carries its time, the turn in which it was answered (0: never) and, if it
was, ``H(A, s, N)`` for every other leaf.  Of a result let ``k`` be the latest turn.  If every
contributing row was answered, or has ``s.t < H(A, s, N)`` as the row of turn ``k`` says, the lane
has delivered the result, and it is left out here (`Filter.undelivered`).

Why each result leaves once.  A result without an answered row is made by the main lane alone.
Otherwise let ``e`` be its row with the latest turn ``k``.

* The lane can make it in no other turn.  In an earlier one ``e`` was not yet answered, and it was
  in no batch, because a row that a batch has taken is not taken by the lane any more: so it was
  not seen.  In later turns none of its rows is the one that is answered.
* In turn ``k`` it is made if and only if all its other rows were answered before or are below their
  ``H``.  The first is what "latest" means, the second is what the row of turn ``k`` carries.  So
  both lanes decide by the same numbers.
* What the lane may see, it finds.  Rows below the heartbeat of their stream are all committed.
  Those that joins have let go of ended at or before the least heartbeat, so before ``e`` begins:
  ``e`` is not late.  Results of a subtree below its least heartbeat are committed as well, as rows
  that wait in the next join.  Rows that were answered and are not below it are in the memory of the
  lane (`penstock.lane.answering`).

A turn may answer many rows of many streams at once: that is as if they were answered one leaf after
another, so a row carries ``turn * leaves + leaf + 1``, and no two leaves of a result have the same.

What can take the lane: plans whose results have both ends when they are made, and in which nothing
that comes later changes one.  An ISTREAM is the births of its relation only if no birth meets the
death of an equal row (`penstock.physical.at_once`).  That is so if the answer has the time of every
leaf whose rows die: equal rows then die at one instant, and every birth is before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa

from penstock import algebra
from penstock.algebra import Mark, Node, Scan
from penstock.expr.functions import resolve_call
from penstock.expr.nodes import Column, Expr, Literal, shift
from penstock.model import Field, Schema

_NUMBER = pa.int64()


@dataclass(frozen=True)
class Lane:
    """Which lane a query takes: ``node`` is its plan with what the lane needs, None: main.

    ``why`` says why it must take the main lane.
    """

    node: Node | None = None
    why: str = ""


class _MainLaneError(Exception):
    """Why a plan must take the main lane."""


def has_priorities(node: Node) -> bool:
    """Whether a plan reads a stream with priorities."""
    return bool(algebra.streams_with_priorities(node))


def lane_of(node: Node, mode: str, first: int, by_merging: bool = False) -> Lane:
    """Say whether a plan that reads a stream with priorities takes the lane.

    ``mode`` is how its answer is delivered, ``first`` its first batch, ``by_merging`` whether joins
    merge runs, which nobody can look into from outside.
    """
    try:
        if mode not in ("stream", "intervals"):
            kind = _MODES.get(mode, mode)
            _each_branch(node, first)  # what the plan itself has against it comes first
            raise _MainLaneError(f"a {kind} needs deaths too, in their order{_OTHER_MODES[mode]}")
        if by_merging and any(isinstance(n, algebra.Join) for n in algebra.walk(node)):
            raise _MainLaneError("joins by merging cannot be asked between two batches")
        if isinstance(node, algebra.ToStream):
            if node.kind != "istream":
                raise _MainLaneError(f"{node.kind.upper()} needs the original order")
            return Lane(replace(node, input=_undelivered(node.input, first, births=True)))
        return Lane(_each_branch(node, first))
    except _MainLaneError as why:
        return Lane(None, str(why))


_BY_LANE = "; ISTREAM (..), or a sink with changes 'intervals', can take the lane"
_OTHER_MODES = {"log": _BY_LANE, "view": _BY_LANE, "delta": _BY_LANE, "kept": ""}
_MODES = {"log": "change log", "view": "view", "delta": "view", "kept": "kept relation"}


def _each_branch(node: Node, first: int) -> Node:
    """Leave out what the lane has delivered, of each branch of a union by itself."""
    match node:
        case algebra.UnionAll(members) if not _is_leaf(node):
            return replace(node, members=tuple(_each_branch(m, first) for m in members))
        case algebra.Filter(below, _) | algebra.Project(below, _, _) if _has_branches(below):
            return replace(node, input=_each_branch(below, first))
    return _undelivered(node, first) if has_priorities(node) else node


def _has_branches(node: Node) -> bool:
    match node:
        case algebra.UnionAll():
            return not _is_leaf(node)
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _has_branches(below)
    return False


def _undelivered(node: Node, first: int, births: bool = False) -> Node:
    """Return a plan without what the lane has delivered.

    ``births``: its births are the answer, so none may meet a death.
    """
    shape = _shape(node)
    marked = _Marker(shape, first).mark(node)
    if births:
        without = sorted(marked.mortal - marked.times.keys())
        if without:
            named = dict.fromkeys(name for leaf in without for name in shape.leaves[leaf].streams)
            raise _MainLaneError(
                f"a row of the answer could equal another one that ends when it begins; add the "
                f"time of {' and '.join(named)} to the answer to let it take the lane"
            )
    kept = algebra.Filter(marked.node, _rule(marked.hidden), undelivered=True)
    types, names = node.schema.types, node.schema.names
    shown = tuple(Column(at, kind) for at, kind in zip(marked.places, types, strict=True))
    return algebra.Project(kept, shown, names)


# ---- the shape of a plan


@dataclass(frozen=True)
class _Leaf:
    """A scan or a union of scans, with what stands between them and a join."""

    streams: tuple[str, ...]
    prioritised: bool
    pulsed: bool
    """Some of its rows begin later than at their own time."""


@dataclass
class _Shape:
    """The leaves of a plan from left to right, and which streams meet which through a join.

    ``siblings[i][j]`` are the streams of the subtree through which rows of j meet those of i.
    """

    leaves: list[_Leaf] = field(default_factory=list)
    siblings: dict[int, dict[int, tuple[str, ...]]] = field(default_factory=dict)

    def mark(self, leaf: int, first: int) -> Mark:
        """Return what packing adds to the rows of a leaf."""
        known = self.siblings.get(leaf, {})
        streams = tuple(known.get(other, ()) for other in range(len(self.leaves)))
        return Mark(leaf, len(self.leaves), streams, self.leaves[leaf].prioritised, first)


def _shape(node: Node) -> _Shape:
    shape = _Shape()
    _add(node, shape)
    return shape


def _add(node: Node, shape: _Shape) -> list[int]:
    """Add the leaves of a plan and return their numbers; a table has none."""
    if _is_leaf(node):
        scans = [n for n in algebra.walk(node) if isinstance(n, Scan)]
        streams = tuple(sorted({scan.stream for scan in scans}))
        windows = [n.spec for n in algebra.walk(node) if isinstance(n, algebra.Window)]
        pulsed = any(spec.is_late for spec in windows)
        shape.leaves.append(_Leaf(streams, any(scan.prioritised for scan in scans), pulsed))
        return [len(shape.leaves) - 1]
    match node:
        case algebra.TableScan():
            if node.valid_from is not None:
                raise _MainLaneError(f"rows of table {node.table} begin at times of their own")
            return []
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _add(below, shape)
        case algebra.Join(left, right, kind="inner"):
            sides = _add(left, shape), _add(right, shape)
            for mine, theirs in (sides, sides[::-1]):
                _check_below(mine, theirs, shape)
                through = {name for leaf in theirs for name in shape.leaves[leaf].streams}
                for leaf in mine:
                    found = dict.fromkeys(theirs, tuple(sorted(through)))
                    shape.siblings.setdefault(leaf, {}).update(found)
            return [*sides[0], *sides[1]]
    raise _MainLaneError(algebra.why_in_order(node))


def _check_below(mine: list[int], theirs: list[int], shape: _Shape) -> None:
    """Check that results of a join below are committed as soon as all their rows are."""
    asked = any(shape.leaves[leaf].prioritised for leaf in mine)
    if asked and len(theirs) > 1 and any(shape.leaves[leaf].pulsed for leaf in theirs):
        raise _MainLaneError("a sliding window below another join needs the original order")


def _is_leaf(node: Node, windowed: bool = False) -> bool:
    """Whether a plan is a scan, or a union of scans, selected, projected and windowed by time."""
    match node:
        case Scan():
            return True
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _is_leaf(below, windowed)
        case algebra.Window(below, spec):
            return not windowed and spec.by_time and _is_leaf(below, True)
        case algebra.UnionAll(members):
            return all(_is_leaf(member, windowed) for member in members)
    return False


# ---- what is carried


@dataclass(frozen=True)
class _Hidden:
    """Where the columns of a leaf that nobody sees stand in a node."""

    time: int
    turn: int | None = None
    heard: tuple[int, ...] = ()
    """How far each other leaf was seen, in order, without its own."""

    def moved(self, places: Sequence[int]) -> _Hidden:
        """Return it when column c stands at ``places[c]``."""
        turn = None if self.turn is None else places[self.turn]
        return _Hidden(places[self.time], turn, tuple(places[c] for c in self.heard))

    @property
    def columns(self) -> list[int]:
        return [self.time, *([] if self.turn is None else [self.turn]), *self.heard]

    def of_other(self, mine: int, other: int) -> int:
        """Return the column that says how far another leaf was seen."""
        return self.heard[other - (other > mine)]


@dataclass(frozen=True)
class _Marked:
    """A plan with hidden columns: ``places[c]`` is where its column c stands now.

    ``times`` are the columns (as numbered before) that hold the time of a leaf, ``mortal`` the
    leaves whose rows die.
    """

    node: Node
    places: tuple[int, ...]
    hidden: dict[int, _Hidden]
    times: dict[int, frozenset[int]]
    mortal: frozenset[int] = frozenset()

    @property
    def mapping(self) -> dict[int, int]:
        return dict(enumerate(self.places))


class _Marker:
    """Adds hidden columns to a plan, leaf by leaf from left to right."""

    def __init__(self, shape: _Shape, first: int) -> None:
        self._shape = shape
        self._first = first
        self._next = iter(range(len(shape.leaves)))

    def mark(self, node: Node) -> _Marked:
        """Return a plan with its hidden columns."""
        if _is_leaf(node):
            leaf = next(self._next)
            return self._leaf(node, leaf, self._shape.mark(leaf, self._first))
        match node:
            case algebra.TableScan():
                return _Marked(node, tuple(range(len(node.schema))), {}, {})
            case algebra.Filter(below, predicate):
                return _filtered(node, self.mark(below), predicate)
            case algebra.Project(below, _, _):
                return _projected(node, self.mark(below))
            case algebra.Join(left, right):
                return _joined(node, self.mark(left), self.mark(right))
        raise AssertionError(f"no leaf stands in a {type(node).__name__}")

    def _leaf(self, node: Node, leaf: int, mark: Mark) -> _Marked:
        match node:
            case Scan():
                return _scanned(node, leaf, mark)
            case algebra.Filter(below, predicate):
                return _filtered(node, self._leaf(below, leaf, mark), predicate)
            case algebra.Project(below, _, _):
                return _projected(node, self._leaf(below, leaf, mark))
            case algebra.Window(below, spec):
                found = self._leaf(below, leaf, mark)
                added = 0 if spec.bounds is None else len(spec.bounds.names)
                width = len(found.node.schema)
                places = (*found.places, *range(width, width + added))
                cut = spec.bounds is not None and spec.hop != spec.slide
                mortal = found.mortal if spec.unbounded else found.mortal | {leaf}
                times = {} if cut else found.times  # its rows are born several times
                return _Marked(replace(node, input=found.node), places, found.hidden, times, mortal)
            case algebra.UnionAll(members):
                return _united([self._leaf(member, leaf, mark) for member in members], leaf)
        raise AssertionError(f"{type(node).__name__} is no part of a leaf")


def _scanned(node: Scan, leaf: int, mark: Mark) -> _Marked:
    width = len(node.schema)
    read = tuple(range(width)) if node.columns is None else node.columns
    added = tuple(Field("", _NUMBER) for _ in range(mark.columns))
    schema = Schema(node.schema.fields + added)
    kind = node.time_type
    made = replace(node, schema=schema, columns=read, narrowed_time=kind, mark=mark)
    heard = tuple(range(width + 2, width + mark.columns)) if mark.prioritised else ()
    hidden = _Hidden(width, width + 1 if mark.prioritised else None, heard)
    times = {leaf: frozenset(i for i, c in enumerate(read) if c == node.time)}
    times = {at: columns for at, columns in times.items() if columns}
    return _Marked(made, tuple(range(width)), {leaf: hidden}, times)


def _filtered(node: algebra.Filter, below: _Marked, predicate: Expr) -> _Marked:
    moved = replace(node, input=below.node, predicate=shift(predicate, below.mapping))
    return replace(below, node=moved)


def _projected(node: algebra.Project, below: _Marked) -> _Marked:
    """Keep the hidden columns behind those that are computed."""
    exprs = [shift(e, below.mapping) for e in node.exprs]
    places = [0] * len(below.node.schema)
    hidden = [c for own in below.hidden.values() for c in own.columns]
    for at, column in enumerate(hidden):
        places[column] = len(exprs) + at
    plain = {i: e.index for i, e in enumerate(node.exprs) if isinstance(e, Column)}
    times = {
        leaf: frozenset(i for i, c in plain.items() if c in columns)
        for leaf, columns in below.times.items()
    }
    names = (*node.names, *("" for _ in hidden))
    columns = (*exprs, *(Column(c, _NUMBER) for c in hidden))
    return _Marked(
        algebra.Project(below.node, columns, names),
        tuple(range(len(exprs))),
        {leaf: own.moved(places) for leaf, own in below.hidden.items()},
        {leaf: found for leaf, found in times.items() if found},
        below.mortal,
    )


def _joined(node: algebra.Join, left: _Marked, right: _Marked) -> _Marked:
    width, behind = len(node.left.schema), len(left.node.schema)
    places = (*left.places, *(behind + c for c in right.places))
    residual = node.residual
    if residual is not None:
        residual = shift(residual, dict(enumerate(places)))
    moved = range(behind, behind + len(right.node.schema))
    made = replace(
        node,
        left=left.node,
        right=right.node,
        left_keys=tuple(shift(key, left.mapping) for key in node.left_keys),
        right_keys=tuple(shift(key, right.mapping) for key in node.right_keys),
        residual=residual,
    )
    later = {leaf: frozenset(c + width for c in cs) for leaf, cs in right.times.items()}
    return _Marked(
        made,
        places,
        left.hidden | {leaf: own.moved(moved) for leaf, own in right.hidden.items()},
        left.times | later,
        left.mortal | right.mortal,
    )


def _united(members: list[_Marked], leaf: int) -> _Marked:
    """Put branches of one leaf together: each gets its columns in the same order."""
    branches = []
    for member in members:
        order = [*member.places, *member.hidden[leaf].columns]
        types = member.node.schema.types
        exprs = tuple(Column(c, types[c]) for c in order)
        branches.append(algebra.Project(member.node, exprs, ("",) * len(exprs)))
    first = members[0]
    width = len(first.places)
    count = len(first.hidden[leaf].columns)
    at = range(width, width + count)
    hidden = _Hidden(at[0], at[1] if count > 1 else None, tuple(at[2:]))
    mortal = frozenset[int]().union(*(member.mortal for member in members))
    return _Marked(
        algebra.UnionAll(tuple(branches)),
        tuple(range(width)),
        {leaf: hidden},
        {},
        mortal,
    )


# ---- the rule


def _rule(hidden: dict[int, _Hidden]) -> Expr:
    """Return the condition under which the lane has not delivered a result."""
    asked = [(leaf, own) for leaf, own in hidden.items() if own.turn is not None]
    delivered = [_all(_delivered_by(leaf, own, hidden)) for leaf, own in asked]
    return resolve_call("not", [reduce(lambda a, b: resolve_call("or", [a, b]), delivered)])


def _delivered_by(leaf: int, own: _Hidden, hidden: dict[int, _Hidden]) -> Iterator[Expr]:
    """Yield what must hold if the lane has delivered a result when it answered a leaf's row."""
    mine = Column(own.turn or 0, _NUMBER)
    yield resolve_call("gt", [mine, Literal(0, _NUMBER)])
    for other, theirs in hidden.items():
        if other == leaf:
            continue
        seen = Column(own.of_other(leaf, other), _NUMBER)
        below = resolve_call("lt", [Column(theirs.time, _NUMBER), seen])
        if theirs.turn is None:
            yield below
            continue
        turn = Column(theirs.turn, _NUMBER)
        answered = resolve_call("gt", [turn, Literal(0, _NUMBER)])
        yield resolve_call("gt", [mine, turn])
        yield resolve_call("or", [answered, below])


def _all(parts: Iterator[Expr]) -> Expr:
    return reduce(lambda a, b: resolve_call("and", [a, b]), parts)
