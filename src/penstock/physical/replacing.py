"""Which parts of a query go on when another text takes its place.

The new text is planned as if it had begun when the old one did.  Where that gives an operator that
runs, under the digest of all that it computes, its state fits, whoever made it.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock import algebra
from penstock.algebra import Node
from penstock.operators.aggregate import AggregateSpec
from penstock.operators.merge_join import TemporalMergeJoinSpec
from penstock.operators.negative_tuples import NegativeTuplesSpec
from penstock.operators.since import SinceSpec
from penstock.optimizer.window_joins import digest
from penstock.physical.eras import are_groups, can_go_on
from penstock.physical.plan import PhysicalPlan
from penstock.physical.planner import Planner, Query, prepared_query
from penstock.settings import Settings


def parts_that_go_on(
    query: Query,
    config: Settings,
    numbers: Mapping[str, int],
    measured: Mapping[str, float],
    parts_close: bool,
) -> frozenset[str]:
    """Return the largest parts of a query whose state there is, by the digests of their algebra.

    ``query`` has the eras of the text whose place it takes, ``numbers`` are those of all operators
    that run; ``parts_close`` is as in `penstock.physical.eras.can_go_on`.
    """
    planner = Planner(config, dict(numbers), measured)
    whole, _, _ = prepared_query(query, config)
    planner.enter(query.all_eras)
    planner.announce(whole)
    planner.begin(query, whole)
    planner.lower(whole)
    there = {
        node
        for node, at in planner.lowered()
        if can_go_on(node, parts_close) and _fits(planner, node, at, numbers)
    }
    found: set[str] = set()

    def visit(node: Node) -> None:
        if node in there:
            found.add(digest(node))
            return
        for below in algebra.inputs(node):
            visit(below)

    visit(whole)
    return frozenset(found)


def _fits(planner: Planner, part: Node, at: int, numbers: Mapping[str, int]) -> bool:
    """Whether an operator runs already, and gives its rows in complete slices of time."""
    node = planner.nodes[at]
    signs = isinstance(node.spec, NegativeTuplesSpec)
    made = planner.nodes[node.inputs[0].producer].spec if signs else node.spec
    if are_groups(part) and not isinstance(made, AggregateSpec):
        return False
    in_slices = made is not None and (made.sliced or isinstance(made, TemporalMergeJoinSpec))
    return node.digest in numbers and in_slices


def broken(made: PhysicalPlan, numbers: Mapping[str, int]) -> frozenset[str]:
    """Return the queries of a plan with a part that was to go on, and has no state there."""
    users = made.users()
    found: set[str] = set()
    for at, node in enumerate(made.nodes):
        if isinstance(node.spec, SinceSpec):
            below = made.nodes[node.inputs[0].producer]
            if below.digest not in numbers:
                found |= users[at]
    return frozenset(found)
