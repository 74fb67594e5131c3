"""Rules that rewrite algebra, one per file; `RULES` gives their order.

A rule maps a plan and the set of shared sub-plans to a plan; it returns the same object when it
changed nothing.  A sub-plan that several queries have in common is run once, so no rule may push a
query's own selection or choice of columns into it.

State is kept under the digest of what it belongs to, so the plan of a query that runs must not
change when others come and go.  `shared_digests` tells what is shared when a query is first
planned; `optimize_alone` makes the same plan from that again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from penstock import algebra
from penstock.algebra import Node
from penstock.optimizer.distinct_partners import distinct_partners
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.group_before_bounds import group_before_bounds
from penstock.optimizer.nameless import canonical
from penstock.optimizer.narrow_scans import narrow_scans
from penstock.optimizer.push_filters import push_filters
from penstock.optimizer.reduce_outer_joins import reduce_outer_joins

Rule = Callable[[Node, frozenset[Node]], Node]

RULES: tuple[Rule, ...] = (
    drop_identities,
    reduce_outer_joins,
    push_filters,
    distinct_partners,
    group_before_bounds,
    narrow_scans,
    drop_identities,
)


def optimize(plans: Mapping[str, Node]) -> dict[str, Node]:
    """Apply all rules to plans that will run together."""
    shared = shared_parts(plans)
    return {name: _apply(plan, shared) for name, plan in plans.items()}


def optimize_alone(plan: Node, digests: Iterable[str]) -> Node:
    """Apply all rules to one plan, of which the parts with these digests are shared."""
    known = frozenset(digests)
    return _apply(plan, frozenset(n for n in _parts(plan) if known and _digest(n) in known))


def shared_digests(plans: Mapping[str, Node]) -> dict[str, list[str]]:
    """Return, for each plan, the digests of its parts that it shares with others."""
    shared = shared_parts(plans)
    return {
        name: sorted(_digest(node) for node in _parts(plan) & shared)
        for name, plan in plans.items()
    }


def shared_parts(plans: Mapping[str, Node]) -> frozenset[Node]:
    """Return the sub-plans, without names, that stand in two plans and hold state."""
    seen: Counter[Node] = Counter()
    for plan in plans.values():
        seen.update(_parts(plan))
    return frozenset(node for node, count in seen.items() if count > 1)


def _apply(plan: Node, shared: frozenset[Node]) -> Node:
    for rule in RULES:
        plan = rule(plan, shared)
    return plan


def _parts(plan: Node) -> frozenset[Node]:
    plan = drop_identities(plan, frozenset())
    return frozenset(canonical(n) for n in algebra.walk(plan) if _holds_state(n))


def _digest(node: Node) -> str:
    return hashlib.sha256(repr(node).encode()).hexdigest()[:24]


def _holds_state(node: Node) -> bool:
    match node:
        case algebra.Window(_, spec):
            return not spec.by_time
        case algebra.Scan() | algebra.TableScan() | algebra.Filter() | algebra.Project():
            return False
        case algebra.UnionAll():
            return False
    return True
