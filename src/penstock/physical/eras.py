"""What is kept of a query whose text is replaced: its eras, and from when on the new one counts.

State is kept under the digest of what it belongs to, and that contains since when the streams are
seen.  So a new text that begins anew has state of its own, and parts that go on must be planned as
before.  A query is planned in *eras*: its newest one is that of its text; a part that is ``kept``
is planned in the era before, and so on.  Above such a part stands a `SinceSpec`: the new text sees
what begins in its own era.  That is exact for two kinds of parts:

* **Groups** (`Aggregate`): at the first instant of the new era the operator ends all its rows and
  begins equal ones (``renewed``).  No snapshot changes by that, so other readers are not disturbed;
  the new text sees the whole relation from that instant on, with all its history.
* **Inner joins of rows that begin at their own time**, as windows ``RANGE`` make them: each result
  is one row, which begins when the later of its partners does.  The new text sees those that begin
  in its era, also with partners from before.

The results of both leave in complete slices of time, so what was emitted before begins below the
heartbeat.  The new era begins at the first instant of which nothing has been seen, and not below
the heartbeats, so nothing of it was emitted before.

Other parts begin anew, unless they lie below such a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock import algebra
from penstock.algebra import Node
from penstock.model import INF
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.since import SinceSpec
from penstock.optimizer.window_joins import digest
from penstock.physical.plan import PhysicalNode
from penstock.windows import WindowSpec


@dataclass(frozen=True)
class Era:
    """Since when a text saw its streams, its first batch, and which parts are of the era before.

    Parts are known by the digests of their algebra, without names.
    """

    since: int | None
    batch: int
    kept: frozenset[str] = frozenset()

    def describe(self) -> dict[str, Any]:
        """Return its entry in a manifest."""
        return {"since": self.since, "batch": self.batch, "kept": sorted(self.kept)}

    @staticmethod
    def of(told: Mapping[str, Any]) -> Era:
        """Return what a manifest describes."""
        return Era(told["since"], told["batch"], frozenset(told["kept"]))


Eras = tuple[Era, ...]
"""The newest first; the last one keeps nothing."""


def era_of(node: Node, eras: Eras) -> int:
    """Return in which era a part is planned; 0 is that of the text."""
    number = 0
    while number + 1 < len(eras) and digest(node) in eras[number].kept:
        number += 1
    return number


def used(eras: Eras) -> Eras:
    """Return the eras without those in which nothing is planned any more."""
    newest, rest = eras[0], eras[1:]
    if not newest.kept:
        return eras[:1]
    while len(rest) > 1 and newest.kept <= rest[0].kept:  # all of it is older
        rest = rest[1:]
    return (newest, *used(rest))


def are_groups(node: Node) -> bool:
    """Whether a part that goes on is seen whole, with all that was there before."""
    return isinstance(node, algebra.Aggregate)


def can_go_on(node: Node, parts_close: bool) -> bool:
    """Whether a new text can see a part of an old one, from an instant on, exactly.

    ``parts_close``: groups without end may be forgotten, because punctuations close them.
    """
    match node:
        case algebra.Aggregate(below):
            return algebra.is_mortal(below) or not parts_close
        case algebra.Join(kind="inner"):
            return _at_own_time(node)
    return False


def _at_own_time(node: Node) -> bool:
    """Whether each row of a relation is one element, which begins at the time of a stream's row."""
    match node:
        case algebra.Window(algebra.Scan(), spec):
            return spec == WindowSpec(range=spec.range, now=spec.now)
        case algebra.Window(algebra.Filter() | algebra.Project() as below, spec):
            return spec == WindowSpec(range=spec.range, now=spec.now) and _of_stream(below)
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _at_own_time(below)
        case algebra.UnionAll(members):
            return all(map(_at_own_time, members))
        case algebra.Join(left, right, kind="inner"):
            sides = [side for side in (left, right) if not _of_table(side)]
            return bool(sides) and all(map(_at_own_time, sides))
    return False


def _of_stream(node: Node) -> bool:
    """Whether a plan is a stream whose rows were selected and projected."""
    match node:
        case algebra.Scan():
            return True
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _of_stream(below)
    return False


def _of_table(node: Node) -> bool:
    """Whether a plan is a table of rows that are valid for all time."""
    match node:
        case algebra.TableScan():
            return node.valid_from is None and node.valid_to is None
        case algebra.Filter(below, _) | algebra.Project(below, _, _):
            return _of_table(below)
    return False


def begins(first_unseen: int | None, heartbeats: Iterable[int]) -> int | None:
    """Return the first instant of a new era; None if nothing of the old one can be kept."""
    beats = list(heartbeats)
    if first_unseen is None or max(beats, default=INF) == INF:
        return None
    return max(first_unseen, *beats)


def renewed(nodes: Sequence[PhysicalNode]) -> list[PhysicalNode]:
    """Let the groups that go on begin equal rows where a new era begins."""
    found: dict[int, set[int]] = {}
    for node in nodes:
        if isinstance(node.spec, SinceSpec):
            at = node.inputs[0].producer
            if isinstance(nodes[at].spec, NegativeTuplesSpec):
                at = nodes[at].inputs[0].producer
            found.setdefault(at, set()).add(node.spec.since)
    made = list(nodes)
    for at, instants in found.items():
        spec = made[at].spec
        if isinstance(spec, AggregateSpec):
            made[at] = replace(made[at], spec=replace(spec, renewed=tuple(sorted(instants))))
    return made
