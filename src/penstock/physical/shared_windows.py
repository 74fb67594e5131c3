"""Joins that queries share although their windows differ: who shares, and how it is planned.

`settle` decides when queries begin, as the book of queries does with everything they share:

* Of window joins with the same base (`penstock.optimizer.window_joins`), those that begin together
  become a *group* if at least two of their windows differ.  The conditions that all of them have
  are tested in the join, the others behind it.
* One that begins later joins the oldest group of its base that has the columns it needs and no
  condition that it does not have.  Its window may be larger than all others: it sees no row that
  was stored before.

What was decided stays (`Part`).  A group lives as long as one of its queries; the name of its state
tells neither its queries nor their windows, so these come and go without touching it.

The planner gives the join of a group the largest windows of those that run (`Groups`, `routed`),
and puts in front of each query what gives it its rows.  Below that ends are known at birth, also
where negative tuples are used: signs stand behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock import algebra
from penstock.algebra import Node
from penstock.cql.render import duration_text, in_timestamps, window_text
from penstock.errors import some_of
from penstock.kernels.lags import Windows
from penstock.model import MIN_TIME
from penstock.operators.route import RouteSpec
from penstock.optimizer import asked_columns, core_of
from penstock.optimizer.nameless import canonical
from penstock.optimizer.window_joins import (
    Part,
    WindowJoin,
    digest,
    range_of,
    shape_of,
    window_joins,
    windows_of,
)
from penstock.physical.graph import Graph
from penstock.physical.joins import Joined, join

Parts = dict[str, Part]
"""What a query shares with others whose windows differ, by the names of its window joins."""


@dataclass(frozen=True)
class Member:
    """A query that `settle` looks at: its plan before the rules, and what it shares otherwise.

    ``parts`` are given for those that run.
    """

    node: Node
    since: int | None
    shared: Sequence[str] = ()
    parts: Mapping[str, Part] | None = None

    def asks(self, join: WindowJoin, kept: Collection[str], rules: bool) -> frozenset[int]:
        """Return the columns that it needs of one of its window joins."""
        return asked_columns(self.node, self.shared, join, kept, rules)


def settle(members: Mapping[str, Member], rules: bool) -> dict[str, Parts]:
    """Return for each query that begins how its window joins take part in groups."""
    groups: dict[str, list[Part]] = {}
    for member in members.values():
        for found in window_joins(member.node) if member.parts else ():
            part = (member.parts or {}).get(found.name)
            if part is not None and part not in groups.setdefault(found.base, []):
                groups[found.base].append(part)
    settled: dict[str, Parts] = {name: {} for name, m in members.items() if m.parts is None}
    alone: dict[str, list[tuple[str, WindowJoin]]] = {}
    for name in settled:
        for found in window_joins(members[name].node):
            fitting = [
                part
                for part in groups.get(found.base, ())
                if set(part.kept) <= set(found.conditions)
                and members[name].asks(found, part.kept, rules) <= set(part.columns)
            ]
            if fitting:
                settled[name][found.name] = min(fitting, key=lambda part: _first(part.since))
            else:
                alone.setdefault(found.base, []).append((name, found))
    for together in alone.values():
        if len({found.windows for _, found in together}) > 1:
            part = _founded(members, together, rules)
            for name, found in together:
                settled[name][found.name] = part
    return settled


def _founded(
    members: Mapping[str, Member], together: Sequence[tuple[str, WindowJoin]], rules: bool
) -> Part:
    """Return a new group of window joins with the same base."""
    since = min((members[name].since for name, _ in together), key=_first)
    kept = frozenset.intersection(*(frozenset(found.conditions) for _, found in together))
    asked = (members[name].asks(found, kept, rules) for name, found in together)
    return Part(since, tuple(sorted(kept)), tuple(sorted(frozenset[int]().union(*asked))))


def cores(node: Node, parts: Mapping[str, Part], rules: bool) -> dict[str, int | None]:
    """Return, by the digest of what the planner sees of it, since when each group is."""
    return {
        digest(canonical(core_of(found, parts[found.name], rules))): parts[found.name].since
        for found in window_joins(node)
        if found.name in parts
    }


def _first(since: int | None) -> int:
    return MIN_TIME if since is None else since


@dataclass
class Group:
    """Queries that share a join, with the windows of each, by their names."""

    name: str
    since: int | None
    windows: dict[str, set[Windows]] = field(default_factory=dict)

    @property
    def all_windows(self) -> tuple[Windows, ...]:
        """The windows of all queries, those that several have as often."""
        return tuple(sorted(pair for own in self.windows.values() for pair in own))

    @property
    def largest(self) -> Windows:
        """The largest window of each input."""
        left, right = zip(*self.all_windows, strict=True)
        return max(left), max(right)


class Groups:
    """The groups of a plan: all that its queries say, before any is planned."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int | None], Group] = {}

    def add(self, query: str, node: Node, known: Mapping[str, int | None]) -> None:
        """Add the window joins of a query that take part in groups."""
        for below in algebra.walk(node) if known else ():
            group = self.of(below, known)
            windows = windows_of(below)
            if group is not None and windows is not None:
                group.windows.setdefault(query, set()).add(windows)

    def of(self, node: Node, known: Mapping[str, int | None]) -> Group | None:
        """Return the group of a node, None if it is in none."""
        if not known or not isinstance(node, algebra.Join):
            return None
        name = digest(node)
        if name not in known:
            return None
        shape = shape_of(node)
        return self._found.setdefault((shape, known[name]), Group(shape, known[name]))


def label_of(group: Group, node: algebra.Join, label: str) -> str:
    """Return what EXPLAIN says about a shared join."""
    stamps = in_timestamps(node)
    largest = sorted(set(group.largest), reverse=True)
    texts = " and ".join(duration_text(length, stamps) for length in largest)
    are = "are the largest" if len(largest) > 1 else "is the largest"
    names = some_of(sorted(group.windows))
    return f"{label}; one join with the windows of {names}; {texts} {are}"


def shared(graph: Graph, node: algebra.Join, group: Group, sides: tuple[Joined, Joined]) -> int:
    """Add the join of a group, whose inputs are lowered already."""
    label = label_of(group, node, sides[0].label)
    left, right = (replace(side, windows=group.all_windows, label=label) for side in sides)
    lag = sum(len(graph.nodes[side.at].types) for side in sides)
    return join(graph, node, left, right, extra=[lag])


def routed(graph: Graph, node: algebra.Join, group: Group, joined: int) -> int:
    """Add what gives a query its rows of the join of a group."""
    own = windows_of(node)
    assert own is not None
    return graph.operator(
        RouteSpec(*own, None if graph.since == group.since else graph.since),
        [joined],
        [None],
        node.schema.types,
        graph.nodes[joined].partitioning,
        f"Rows of {_windows_text(own, in_timestamps(node))}",
        algebra.update_pattern(node),
    )


def _windows_text(windows: Iterable[int], stamps: bool) -> str:
    return ", ".join(window_text(range_of(length), (), stamps) for length in windows)
