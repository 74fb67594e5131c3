"""Rules that rewrite algebra, one per file; `RULES` gives their order.

A rule maps a plan and the set of shared sub-plans to a plan; it returns the same object when it
changed nothing.  A sub-plan that several queries have in common is run once, so no rule may push a
query's own selection or choice of columns into it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from penstock import algebra
from penstock.algebra import Node
from penstock.optimizer.drop_identities import drop_identities
from penstock.optimizer.nameless import canonical
from penstock.optimizer.narrow_scans import narrow_scans
from penstock.optimizer.push_filters import push_filters

Rule = Callable[[Node, frozenset[Node]], Node]

RULES: tuple[Rule, ...] = (drop_identities, push_filters, narrow_scans, drop_identities)


def optimize(plans: Mapping[str, Node]) -> dict[str, Node]:
    """Apply all rules to plans that will run together."""
    shared = shared_parts(plans)
    result = {}
    for name, plan in plans.items():
        for rule in RULES:
            plan = rule(plan, shared)
        result[name] = plan
    return result


def shared_parts(plans: Mapping[str, Node]) -> frozenset[Node]:
    """Return the sub-plans, without names, that stand in two plans and hold state."""
    seen: Counter[Node] = Counter()
    for plan in plans.values():
        plan = drop_identities(plan, frozenset())
        seen.update({canonical(n) for n in algebra.walk(plan) if _holds_state(n)})
    return frozenset(node for node, count in seen.items() if count > 1)


def _holds_state(node: Node) -> bool:
    match node:
        case algebra.Window(_, spec):
            return not spec.by_time
        case algebra.Scan() | algebra.TableScan() | algebra.Filter() | algebra.Project():
            return False
        case algebra.UnionAll():
            return False
    return True
